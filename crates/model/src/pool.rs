//! The model of a pool out of its survey.
//!
//! Agents probe each other, all pairs at once, and count the delays of each ordered pair in a
//! histogram. The histograms tell:
//!
//! | part of the model | told by |
//! |---|---|
//! | lasting delay and ordinary wait | the quartiles and the 90th percentile within pairs |
//! | how hosts and pairs differ | the medians of pairs, as effects of senders and receivers |
//! | asymmetry | the same, where the error bound of the clocks is small beside the delay |
//! | stragglers | hosts whose effects stand out |
//! | spikes | the tails of the pairs: see [`spikes`](crate::spikes) |
//! | losses | probes that did not arrive |
//!
//! Everything else comes from another model, and its source says so. The error of each number is
//! that of the jackknife over hosts: the number is computed again without one group of hosts after
//! the other. The scatter of the results tells how far the number depends on the choice of the
//! hosts.

use evenfall_core::math::{exp, ln, square};
use evenfall_core::statistics::{mean, student_t};
use evenfall_placement_machine::DelayRecord;

use crate::check::{SIDE_MAX, SLOWNESS_MAX};
use crate::effects::Effects;
use crate::file::{DelayShape, Distribution, Model, Number, OutageFile, Stack};
use crate::spikes::{Spikes, Tail};

/// Probes that a pair needs. The 90th percentile of fewer probes is mostly chance.
const PROBES_MIN: u64 = 50;
/// Groups of hosts that the jackknife leaves out, one after the other.
const GROUPS_MAX: usize = 20;
/// Clocks are good enough to tell the two directions of a pair when their error is at most this
/// share of the median delay.
const CLOCK_SHARE_MAX: f64 = 0.05;
/// A straggler is slower than the median host by this many robust standard deviations. Of normal
/// hosts, one in 740 is so slow.
const STRAGGLER_SIGMAS: f64 = 3.0;
/// A straggler is also slower than the median host by this factor over both directions, because in
/// a pool of nearly equal hosts three standard deviations are too little to matter.
const STRAGGLER_FACTOR: f64 = 1.2;
/// The standard deviation of a normal distribution over its median absolute deviation.
const ROBUST: f64 = 1.482_6;
/// The third quartile of the standard normal distribution.
const Z75: f64 = 0.674_49;
/// The 90th percentile of the standard normal distribution.
const Z90: f64 = 1.281_55;
/// The value that one in a million of the standard normal distribution exceeds.
const Z_RARE: f64 = 4.753_4;
/// The widest lognormal distribution of waits that a model may have. Rarer and longer waits are
/// spikes.
const SIGMA_MAX: f64 = 1.45;
/// When none of `n` probes is lost, the share of losses is below `3 / n` with 95 % confidence.
const RULE_OF_THREE: f64 = 3.0;

/// The probes from one host to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The sender, by number.
    pub from: usize,
    /// The receiver, by number.
    pub to: usize,
    /// Probes sent.
    pub sent: u64,
    /// The delays of those that arrived.
    pub record: DelayRecord,
}

/// The measurements of agents between the hosts of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSurvey {
    /// Hosts of the pool.
    pub hosts: usize,
    /// Ordered pairs that were probed.
    pub pairs: Vec<Pair>,
    /// Seconds in which each pair was probed.
    pub seconds: f64,
    /// How the agents send and receive.
    pub stack: Stack,
    /// The day of the survey, such as 2026-11-23.
    pub date: String,
}

/// Why a survey gives no model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// This many hosts have measurements, fewer than [`PoolSurvey::HOSTS_MIN`].
    #[error(
        "a model needs measurements of {} hosts, so that effects of senders and of receivers can \
         be told apart, and there are {hosts}; survey more agents",
        PoolSurvey::HOSTS_MIN,
        hosts = .0
    )]
    Hosts(usize),
    /// Too few of the ordered pairs have enough probes.
    #[error(
        "only {known} of {all} ordered pairs received {PROBES_MIN} probes: survey for longer or at \
         a higher rate, or leave out the hosts that failed"
    )]
    Pairs {
        /// Pairs of the hosts.
        all: usize,
        /// Pairs with enough probes.
        known: usize,
    },
    /// Too few of the ordered pairs were measured in both directions, which a survey without good
    /// clocks needs.
    #[error(
        "only {known} of {all} ordered pairs received {PROBES_MIN} probes in both directions, and \
         one direction says nothing where clocks are no better than a delay: survey for longer, or \
         synchronise the clocks"
    )]
    OneWay {
        /// Pairs of the hosts.
        all: usize,
        /// Pairs with enough probes in both directions.
        known: usize,
    },
    /// The median delay of the pairs is below the cost of sending alone. Both are in us.
    #[error(
        "the median delay of {median_us:.1} us is below the {cost_us:.1} us that sending a probe \
         costs by the model whose costs are taken: name another model as base"
    )]
    Delay {
        /// The median delay.
        median_us: f64,
        /// What a probe costs its sender.
        cost_us: f64,
    },
}

/// A pair as the estimates use it: microseconds, without the cost of sending.
#[derive(Clone, Debug)]
struct Known {
    from: usize,
    to: usize,
    count: f64,
    /// Median delay. Where clocks are poor, the mean of the medians of both directions.
    median_us: f64,
    /// Quartiles and the 90th percentile, as distances from the median.
    below_us: f64,
    above_us: f64,
    far_us: f64,
}

/// The numbers of a model that a survey tells.
#[derive(Clone, Debug, PartialEq)]
struct Figures {
    /// Indexed by the constants of [`at`].
    path: [f64; 11],
    spikes: Option<Spikes>,
}

/// Where numbers are in [`Figures::path`].
mod at {
    pub(super) const BASE: usize = 0;
    pub(super) const WAIT: usize = 1;
    pub(super) const SIGMA: usize = 2;
    pub(super) const SENDER: usize = 3;
    pub(super) const RECEIVER: usize = 4;
    pub(super) const CORRELATION: usize = 5;
    pub(super) const PAIR: usize = 6;
    pub(super) const DIRECTION: usize = 7;
    pub(super) const SHARE: usize = 8;
    pub(super) const SEND: usize = 9;
    pub(super) const RECEIVE: usize = 10;
}

/// The survey, and the values that stay the same while groups of hosts are left out.
struct Estimate<'a> {
    hosts: usize,
    base: &'a Model,
    known: Vec<Known>,
    tails: Vec<Tail>,
    stragglers: Vec<usize>,
    is_clock_good: bool,
}

/// Median of values; sorts its argument. `None` for none.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    evenfall_core::nearest_rank(values, 0.5)
}

/// The lognormal wait whose quartiles and 90th percentile lie so far from its median: median and
/// sigma, both as shares of the whole delay.
fn wait(below: f64, above: f64, far: f64) -> (f64, f64) {
    let skew = |sigma: f64| (exp(Z90 * sigma) - 1.0) / (1.0 - exp(-Z75 * sigma));
    // The skew grows with sigma. Where the body is less skewed than any lognormal distribution, the
    // narrowest distribution is taken.
    let (mut low, mut high) = (0.02, SIGMA_MAX);
    for _ in 0..60 {
        let sigma = (low + high) / 2.0;
        if skew(sigma) * below < far { low = sigma } else { high = sigma }
    }
    let mut sigma = low;
    let spans =
        |sigma: f64| [1.0 - exp(-Z75 * sigma), exp(Z75 * sigma) - 1.0, exp(Z90 * sigma) - 1.0];
    let median = (below + above + far) / spans(sigma).iter().sum::<f64>();
    if median <= 1.0 {
        return (median, sigma);
    }
    // The lasting part would be below 0: all of the delay is wait, and its width gives sigma.
    (low, high) = (0.02, SIGMA_MAX);
    for _ in 0..60 {
        sigma = (low + high) / 2.0;
        if spans(sigma).iter().sum::<f64>() < below + above + far {
            low = sigma
        } else {
            high = sigma
        }
    }
    (1.0, sigma)
}

impl Estimate<'_> {
    fn logs(&self, keep: &dyn Fn(usize) -> bool) -> Vec<(usize, usize, f64)> {
        let kept = self.known.iter().filter(|pair| keep(pair.from) && keep(pair.to));
        kept.map(|pair| (pair.from, pair.to, ln(pair.median_us))).collect()
    }

    /// The numbers that the hosts tell for which `keep` is true.
    fn figures(&self, keep: &dyn Fn(usize) -> bool) -> Figures {
        let normal = |host: usize| keep(host) && !self.stragglers.contains(&host);
        let logs = self.logs(&normal);
        let effects = Effects::of(self.hosts, &logs);
        let kept: Vec<&Known> =
            self.known.iter().filter(|pair| keep(pair.from) && keep(pair.to)).collect();
        let share = |value: &dyn Fn(&Known) -> f64| {
            let mut all: Vec<f64> = kept.iter().map(|pair| value(pair) / pair.median_us).collect();
            median(&mut all).unwrap_or(0.0)
        };
        let (wait_share, sigma) = wait(
            share(&|pair| pair.below_us),
            share(&|pair| pair.above_us),
            share(&|pair| pair.far_us),
        );
        let whole = exp(effects.mean);
        let mut path = [0.0; 11];
        path[at::BASE] = whole * (1.0 - wait_share);
        path[at::WAIT] = whole * wait_share;
        path[at::SIGMA] = sigma;
        self.spreads(&mut path, &effects, &logs, &kept);
        self.straggling(&mut path, &effects, keep);
        let tails = self.known.iter().zip(&self.tails);
        let tails: Vec<&Tail> = tails
            .filter(|(pair, _)| keep(pair.from) && keep(pair.to))
            .map(|(_, tail)| tail)
            .collect();
        let usual = self.base.path.spikes.as_ref();
        let usual = usual.map(|spikes| (&spikes.length.shape, spikes.gap_ms.is));
        Figures { path, spikes: Spikes::of(&tails, usual) }
    }

    /// How hosts, pairs and directions differ.
    fn spreads(
        &self,
        path: &mut [f64; 11],
        effects: &Effects,
        logs: &[(usize, usize, f64)],
        kept: &[&Known],
    ) {
        let parts = effects.parts(logs);
        // The variance that the median of a pair has because its probes are few.
        let noise =
            |pair: &&Known| square((pair.below_us + pair.above_us) / pair.median_us) / pair.count;
        let noise = mean(&kept.iter().map(noise).collect::<Vec<_>>()).unwrap_or(0.0);
        let rest = square(parts.rest);
        if self.is_clock_good {
            let both_ways = parts.both_ways.clamp(0.0, rest);
            path[at::SENDER] = parts.sender;
            path[at::RECEIVER] = parts.receiver;
            path[at::CORRELATION] = parts.correlation;
            path[at::PAIR] = both_ways.sqrt();
            path[at::DIRECTION] = (rest - both_ways - noise).max(0.0).sqrt();
            return;
        }
        // Means of both directions tell one effect of a host: half of the sum of its effects as
        // sender and as receiver. The other model says how the two share it.
        let usual = &self.base.path;
        let (s, r) = (usual.sender_sigma.is, usual.receiver_sigma.is);
        let usual_host =
            (square(s) + square(r) + 2.0 * usual.host_correlation.is * s * r).max(0.0).sqrt() / 2.0;
        let host = (parts.sender + parts.receiver) / 2.0;
        let (sender, receiver, correlation) = if usual_host > 0.0 {
            let scale = host / usual_host;
            (s * scale, r * scale, usual.host_correlation.is)
        } else {
            (host, host, 1.0)
        };
        path[at::SENDER] = sender;
        path[at::RECEIVER] = receiver;
        path[at::CORRELATION] = correlation;
        path[at::DIRECTION] = usual.direction_sigma.is;
        let lasting = rest - noise / 2.0 - square(usual.direction_sigma.is) / 2.0;
        path[at::PAIR] = lasting.max(0.0).sqrt();
    }

    /// The share of stragglers, and how much slower than other hosts they are.
    fn straggling(&self, path: &mut [f64; 11], effects: &Effects, keep: &dyn Fn(usize) -> bool) {
        let hosts = (0..self.hosts).filter(|host| keep(*host)).count();
        let slow: Vec<usize> = self.stragglers.iter().copied().filter(|host| keep(*host)).collect();
        path[at::SHARE] = slow.len() as f64 / hosts.max(1) as f64;
        let usual = &self.base.path;
        (path[at::SEND], path[at::RECEIVE]) = (usual.straggler_send.is, usual.straggler_receive.is);
        if slow.is_empty() {
            return;
        }
        let over = |is_sender: bool| {
            let rest = |pair: &Known| {
                ln(pair.median_us) - effects.mean - effects.hosts(pair.from, pair.to)
            };
            let among = self.known.iter().filter(|pair| {
                let (own, other) =
                    if is_sender { (pair.from, pair.to) } else { (pair.to, pair.from) };
                slow.contains(&own) && !self.stragglers.contains(&other) && keep(other)
            });
            exp(mean(&among.map(rest).collect::<Vec<_>>()).unwrap_or(0.0))
        };
        (path[at::SEND], path[at::RECEIVE]) = (over(true), over(false));
        if !self.is_clock_good {
            let ratio = (usual.straggler_receive.is / usual.straggler_send.is).max(1e-3).sqrt();
            let both = (path[at::SEND] * path[at::RECEIVE]).sqrt();
            (path[at::SEND], path[at::RECEIVE]) = (both / ratio, both * ratio);
        }
        // Beyond what a file may say, both directions are as far off.
        let sides = [at::SEND, at::RECEIVE].map(|side| path[side].min(SIDE_MAX));
        let both = sides[0].max(1.0) * sides[1].max(1.0);
        // Numbers are rounded, so that a little is left.
        let excess = (both * 1.02 / SLOWNESS_MAX).max(1.0).sqrt();
        (path[at::SEND], path[at::RECEIVE]) = (sides[0] / excess, sides[1] / excess);
    }

    /// Hosts whose effects stand out.
    fn standing_out(&self) -> Vec<usize> {
        let effects = Effects::of(self.hosts, &self.logs(&|_| true));
        let total: Vec<Option<f64>> = effects
            .sender
            .iter()
            .zip(&effects.receiver)
            .map(|(sender, receiver)| Some((*sender)? + (*receiver)?))
            .collect();
        let mut values: Vec<f64> = total.iter().flatten().copied().collect();
        let Some(middle) = median(&mut values) else { return Vec::new() };
        let mut far: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        let sigma = ROBUST * median(&mut far).unwrap_or(0.0);
        let limit = (STRAGGLER_SIGMAS * sigma).max(ln(STRAGGLER_FACTOR));
        let out = |host: &usize| total[*host].is_some_and(|value| value - middle > limit);
        (0..self.hosts).filter(out).collect()
    }

    /// Half the widths of the 95 % intervals of `path`, and of the numbers of the spikes.
    fn errors(&self, whole: &Figures) -> ([f64; 11], [f64; 2]) {
        let groups = self.hosts.min(GROUPS_MAX);
        let parts: Vec<Figures> =
            (0..groups).map(|group| self.figures(&|host| host % groups != group)).collect();
        let half = |value: &dyn Fn(&Figures) -> f64| {
            let values: Vec<f64> = parts.iter().map(value).collect();
            let Some(mean) = mean(&values) else { return f64::NAN };
            let squares: f64 = values.iter().map(|value| square(value - mean)).sum();
            let n = groups as f64;
            ((n - 1.0) / n * squares).sqrt() * student_t(groups as u32 - 1, 0.05)
        };
        let same = |a: &DelayShape, b: &DelayShape| {
            core::mem::discriminant(a) == core::mem::discriminant(b)
        };
        let spike = |figures: &Figures, number: usize| match (&figures.spikes, &whole.spikes) {
            (Some(part), Some(whole)) if same(&part.length, &whole.length) => {
                part.numbers()[number]
            }
            _ => f64::NAN,
        };
        let path = core::array::from_fn(|i| half(&|figures| figures.path[i]));
        (path, core::array::from_fn(|i| half(&|figures| spike(figures, i))))
    }
}

impl PoolSurvey {
    /// Fewer hosts have too few pairs for an effect of each sender and each receiver.
    pub const HOSTS_MIN: usize = 4;

    /// The model of the pool. What the survey cannot see is taken from `base`.
    ///
    /// # Errors
    /// When there are too few hosts or probes, and when `base` has a stack that costs more than
    /// the delays that were measured.
    pub fn model(&self, name: &str, base: &Model) -> Result<Model, PoolError> {
        let estimate = self.estimate(base)?;
        let figures = estimate.figures(&|_| true);
        let (path_errors, spike_errors) = estimate.errors(&figures);
        let mut model = base.inherited();
        let by = self.by(&estimate);
        model.name = name.to_owned();
        model.about = format!(
            "A pool of {} hosts, measured on {} by `evenfall plan live`. What the survey could not \
             see is as in {}.",
            self.hosts, self.date, base.name
        );
        estimate.write_path(&mut model, &figures, &path_errors, &by);
        estimate.write_spikes(&mut model, &figures, &spike_errors, &by);
        self.write_losses(&mut model, base, &by);
        // The spikes contain the pauses, loads and episodes that were frequent enough for probes to
        // meet them.
        let watched_ms = self.hosts as f64 * self.seconds * 1e3;
        model.host.stalls.retain(|stall| stall.gap_ms.is > watched_ms);
        (model.path.load, model.path.episodes) = (None, None);
        Ok(model)
    }

    /// The source of a number that the survey measured.
    fn by(&self, estimate: &Estimate<'_>) -> String {
        let probes: u64 = self.pairs.iter().map(|pair| pair.sent).sum();
        format!(
            "measured {}, {} pairs of {} hosts, {probes} probes",
            self.date,
            estimate.known.len(),
            self.hosts
        )
    }

    /// The median cost of sending a probe, without its time on the network, us.
    fn cost_us(&self, base: &Model) -> f64 {
        let costs = base.costs(self.stack);
        (costs.send_ns.is + costs.copy_ns.is + costs.card_ns.is) / 1e3
    }

    fn estimate<'a>(&self, base: &'a Model) -> Result<Estimate<'a>, PoolError> {
        let cost_us = self.cost_us(base);
        let us = |pair: &Pair, share| pair.record.quantile_between_ns(share) / 1e3;
        let enough = |pair: &&Pair| pair.from != pair.to && pair.record.count() >= PROBES_MIN;
        let pairs: Vec<&Pair> = self.pairs.iter().filter(enough).collect();
        let seen = |host: usize| pairs.iter().any(|pair| pair.from == host || pair.to == host);
        let hosts = (0..self.hosts).filter(|host| seen(*host)).count();
        if hosts < Self::HOSTS_MIN {
            return Err(PoolError::Hosts(hosts));
        }
        let all = hosts * (hosts - 1);
        // With half of the pairs every host has several others to be compared with.
        if pairs.len() < all / 2 {
            return Err(PoolError::Pairs { all, known: pairs.len() });
        }
        let mut medians: Vec<f64> = pairs.iter().map(|pair| us(pair, 0.5)).collect();
        let median_us = median(&mut medians).unwrap_or(0.0);
        let error = |pair: &&Pair| pair.record.bound().map(|bound| bound.as_secs_f64() * 1e6);
        let is_clock_good = pairs
            .iter()
            .all(|pair| error(pair).is_some_and(|us| us <= CLOCK_SHARE_MAX * median_us));
        let mut way = vec![f64::NAN; self.hosts * self.hosts];
        for pair in &pairs {
            way[pair.from * self.hosts + pair.to] = us(pair, 0.5) - cost_us;
        }
        let is_two_way = |pair: &&&Pair| !way[pair.to * self.hosts + pair.from].is_nan();
        let two_way = pairs.iter().filter(is_two_way).count();
        if !is_clock_good && two_way < all / 2 {
            return Err(PoolError::OneWay { all, known: two_way });
        }
        let known = |pair: &&Pair| {
            let own = way[pair.from * self.hosts + pair.to];
            let back = way[pair.to * self.hosts + pair.from];
            let median_us = if is_clock_good { own } else { (own + back) / 2.0 };
            let far = |share| (us(pair, share) - us(pair, 0.5)).abs();
            // A pair that was measured one way only says nothing where clocks are poor.
            (median_us > 0.0).then(|| Known {
                from: pair.from,
                to: pair.to,
                count: pair.record.count() as f64,
                median_us,
                below_us: far(0.25),
                above_us: far(0.75),
                far_us: far(0.9),
            })
        };
        let (pairs, known): (Vec<&Pair>, Vec<Known>) =
            pairs.iter().filter_map(|pair| Some((*pair, known(pair)?))).unzip();
        if known.len() < all / 2 {
            return Err(PoolError::Delay { median_us, cost_us });
        }
        let mut estimate = Estimate {
            hosts: self.hosts,
            base,
            known,
            tails: Vec::new(),
            stragglers: Vec::new(),
            is_clock_good,
        };
        estimate.stragglers = estimate.standing_out();
        let body = estimate.figures(&|_| true).path;
        let share = body[at::WAIT] / (body[at::BASE] + body[at::WAIT]);
        let tails = pairs.iter().zip(&estimate.known);
        estimate.tails =
            tails.map(|(pair, known)| tail(pair, known, share, body[at::SIGMA])).collect();
        Ok(estimate)
    }

    /// Losses are shared between single ones and bursts as in the other model: the survey counts
    /// lost probes, and not when each was lost.
    fn write_losses(&self, model: &mut Model, base: &Model, by: &str) {
        let sent: u64 = self.pairs.iter().map(|pair| pair.sent).sum();
        let arrived: u64 = self.pairs.iter().map(|pair| pair.record.count()).sum();
        let lost = sent.saturating_sub(arrived);
        let path = &base.path;
        let bursts = path.losses.as_ref().map_or(0.0, |losses| {
            losses.length.shape.mean_us() / 1e3 / losses.gap_ms.is * losses.within.is
        });
        let usual = path.random_loss.is + bursts;
        if lost == 0 && usual * (sent as f64) < RULE_OF_THREE {
            let words =
                format!("none of the probes was lost, which agrees with {}; {by}", base.name);
            model.path.random_loss = Number { is: path.random_loss.is, error: None, source: words };
            return;
        }
        let share = lost as f64 / sent.max(1) as f64;
        let words = format!("{lost} probes were lost; {by}");
        if usual == 0.0 || lost == 0 {
            model.path.random_loss = Number { is: digits(share), error: None, source: words };
            model.path.losses = None;
            return;
        }
        let scale = share / usual;
        let words = format!("{words}; single losses and bursts share them as in {}", base.name);
        let random = digits(path.random_loss.is * scale);
        model.path.random_loss = Number { is: random, error: None, source: words.clone() };
        if let Some(losses) = &mut model.path.losses {
            let gap = digits(losses.gap_ms.is / scale);
            losses.gap_ms = Number { is: gap, error: None, source: words };
        }
    }
}

/// The probes of a pair that waited longer than the ordinary wait explains.
fn tail(pair: &Pair, known: &Known, wait_share: f64, sigma: f64) -> Tail {
    let wait_us = known.median_us * wait_share;
    let threshold_us = wait_us * exp(Z_RARE * sigma);
    // By the pair's own clock difference, so that an error of the clocks is no wait.
    let median_us = pair.record.quantile_between_ns(0.5) / 1e3;
    let waits = pair.record.buckets().filter_map(|(low_ns, high_ns, count)| {
        let wait = |ns: f64| ns / 1e3 - median_us + wait_us;
        let is_over = wait(low_ns) >= threshold_us;
        is_over.then(|| ((wait(low_ns) + wait(high_ns)) / 2.0, count as f64))
    });
    Tail { probes: pair.record.count() as f64, threshold_us, waits: waits.collect() }
}

/// The value, rounded to four significant digits.
fn digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn number(value: f64, error: f64, words: &str, by: &str) -> Number {
    let source = format!("{words}; {by}; {}", interval(error));
    Number { is: digits(value), error: relative(value, error), source }
}

/// An error as a part of its value; `None` when it is not known.
fn relative(value: f64, error: f64) -> Option<f64> {
    let part = error / value.abs();
    part.is_finite().then(|| short(part))
}

/// The words that state an error.
fn interval(error: f64) -> String {
    match error {
        error if error.is_nan() => "error unknown".to_owned(),
        error => format!("+- {} at 95 % over hosts", short(error)),
    }
}

/// An error, rounded to two significant digits.
fn short(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}

impl Estimate<'_> {
    fn write_path(&self, model: &mut Model, figures: &Figures, errors: &[f64; 11], by: &str) {
        let path = &mut model.path;
        let of = |i: usize, words: &str| number(figures.path[i], errors[i], words, by);
        path.base_us = of(
            at::BASE,
            "median over pairs without the median wait and without the sender's cost of a packet",
        );
        let (median_us, sigma) = (figures.path[at::WAIT], figures.path[at::SIGMA]);
        let error = relative(median_us, errors[at::WAIT]);
        path.wait = Distribution {
            shape: DelayShape::Lognormal { median_us: digits(median_us), sigma: digits(sigma) },
            error: error.into_iter().chain(relative(sigma, errors[at::SIGMA])).reduce(f64::max),
            source: format!(
                "quartiles and 90th percentile within pairs; {by}; median +- {}, sigma +- {} at \
                 95 % over hosts",
                short(errors[at::WAIT]),
                short(errors[at::SIGMA])
            ),
        };
        let base = &self.base.name;
        let (sides, pair) = if self.is_clock_good {
            let sides = "effects of hosts on the medians of pairs".to_owned();
            (
                sides,
                "common to the two directions of pairs, besides the effects of hosts".to_owned(),
            )
        } else {
            let sides = format!(
                "effects of hosts on the means of both directions, because clocks are too poor to \
                 tell directions apart; sender and receiver share it as in {base}"
            );
            let pair = format!(
                "the means of both directions without the effects of hosts and without the \
                 direction_sigma of {base}"
            );
            (sides, pair)
        };
        path.sender_sigma = of(at::SENDER, &sides);
        path.receiver_sigma = of(at::RECEIVER, &sides);
        path.pair_sigma = of(at::PAIR, &pair);
        if self.is_clock_good {
            // Poor clocks cannot tell the directions of a pair apart. The figures of the base model
            // stay.
            path.host_correlation = of(at::CORRELATION, &sides);
            path.direction_sigma =
                of(at::DIRECTION, "medians of pairs without the effects of hosts and pairs");
        }
        let words = format!(
            "{} of {} hosts stand out by {STRAGGLER_SIGMAS} robust standard deviations",
            self.stragglers.len(),
            self.hosts
        );
        path.straggler_share = of(at::SHARE, &words);
        if !self.stragglers.is_empty() {
            let words = "stragglers against all other hosts";
            path.straggler_send = of(at::SEND, words);
            path.straggler_receive = of(at::RECEIVE, words);
        }
    }

    fn write_spikes(&self, model: &mut Model, figures: &Figures, errors: &[f64; 2], by: &str) {
        let Some(spikes) = &figures.spikes else {
            model.path.spikes = None;
            return;
        };
        let late = format!("{} probes waited longer than the ordinary wait explains", spikes.late);
        let gap_ms = number(spikes.gap_ms, errors[0], &late, by);
        let usual = model.path.spikes.take().filter(|_| !spikes.is_length_seen);
        let length = usual.map_or_else(
            || {
                let source = match spikes.length {
                    DelayShape::Pareto { .. } => format!(
                        "{late}; {by}; alpha {}; shorter spikes than the least hide in the \
                         ordinary wait, and the most is the longest seen, or a hundred gaps",
                        interval(errors[1])
                    ),
                    _ => format!("{late}; {by}; {}", interval(errors[1])),
                };
                let error = relative(spikes.numbers()[1], errors[1]);
                Distribution { shape: spikes.length.rounded(), error, source }
            },
            |usual| usual.length,
        );
        model.path.spikes = Some(OutageFile { gap_ms, length });
    }
}

impl DelayShape {
    fn rounded(&self) -> Self {
        match self {
            Self::Exponential { mean_us } => Self::Exponential { mean_us: digits(*mean_us) },
            Self::Pareto { least_us, alpha, most_us } => Self::Pareto {
                least_us: digits(*least_us),
                alpha: digits(*alpha),
                most_us: digits(*most_us),
            },
            other => other.clone(),
        }
    }
}
