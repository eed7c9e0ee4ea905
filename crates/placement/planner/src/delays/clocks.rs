//! Takes the differences of clocks out of one-way delays.
//!
//! A one-way delay is the receiver's clock at the arrival less the sender's clock at the departure.
//! A host whose clock is 100 us ahead therefore looks 100 us farther to all senders, and 100 us
//! nearer to all receivers. A planner that believes such delays chooses trees by clocks.
//!
//! The two delays of a pair of hosts differ by twice the difference of the clocks, plus the real
//! difference of the two directions. Around a loop of hosts the differences of clocks add up to
//! zero, and the real differences of directions do not. So a fit by least squares over all pairs
//! finds the offsets of the clocks, and the real differences of single pairs stay in the delays.
//! All ways into a host may really take longer than all ways out of the host. The difference then
//! looks like an error of the host's clock, and is taken out too.

use super::{DelayMatrix, EdgeStats};

/// Most rounds until the offsets have settled. Ten rounds suffice where all pairs are measured. A
/// pool of 5,000 hosts with forty pairs for each host needs some hundred.
const ROUNDS_MAX: usize = 1_000;
/// Offsets have settled when none moves by a thousandth of a nanosecond in a round.
const SETTLED_US: f64 = 1e-6;
/// Number of fits. Each fit gives less weight to pairs that were far from the fit before.
const REWEIGHTINGS: usize = 4;
/// A pair keeps its whole weight up to this many times the median distance from the fit.
const PLAIN: f64 = 2.0;
/// The shortest delay that a correction leaves, in microseconds. Light takes longer through a rack.
const DELAY_US_MIN: f64 = 0.1;

impl DelayMatrix {
    /// Takes the offsets of clocks out of all delays of pairs that were measured both ways. Returns
    /// the offset of each host in microseconds; positive where its clock is ahead of most.
    ///
    /// Hosts that share a clock state an error of zero, and nothing is taken out of their delays.
    /// Hosts that state a bound are corrected by that bound at most. The true delays are not
    /// negative and have the same sum as the corrected delays. The error of a delay is therefore at
    /// most the longer of the two corrected ways. The error is also at most the stated bound plus
    /// the correction.
    pub fn correct_clocks(&mut self) -> Vec<f64> {
        let pairs = self.both_ways();
        let offsets = settle(&pairs);
        for (one, others) in pairs.iter().enumerate() {
            for other in others.iter().filter(|other| other.host > one) {
                let ahead = offsets[other.host] - offsets[one];
                let ahead = ahead.clamp(-other.stated_us, other.stated_us);
                for (from, to, by) in [(one, other.host, -ahead), (other.host, one, ahead)] {
                    let stats =
                        self.edge(from, to).map(|stats| stats.moved(by, other.error(ahead)));
                    self.set(from, to, stats);
                }
            }
        }
        offsets
    }

    /// Forgets what the clocks state about their errors. Afterwards no bound limits a correction,
    /// and no two hosts count as hosts with one clock.
    pub fn forget_clock_errors(&mut self) {
        for stats in self.stats.iter_mut().flatten() {
            stats.clock_error_us = f32::NAN;
        }
    }

    /// For each host, the other hosts with another clock whose delays are known in both directions.
    fn both_ways(&self) -> Vec<Vec<Pair>> {
        let hosts = self.hosts();
        let pair =
            |one: usize, host: usize| Pair::of(host, self.edge(one, host)?, self.edge(host, one)?);
        (0..hosts).map(|one| (0..hosts).filter_map(|host| pair(one, host)).collect()).collect()
    }
}

impl EdgeStats {
    /// These delays, without the difference of the clocks of the two hosts, which the delays of the
    /// way back show. Clocks that state a bound are corrected by that bound at most. For clocks
    /// that state none, both ways count as equally long.
    pub fn without_clocks(&self, back: &Self) -> Self {
        let Some(pair) = Pair::of(0, self, back) else { return *self };
        let ahead = pair.ahead_us.clamp(-pair.stated_us, pair.stated_us);
        self.moved(-ahead, pair.error(ahead))
    }

    /// The statistics after a correction: all known delays are longer by `by_us`, and the error of
    /// the clocks is `clock_error_us`.
    fn moved(&self, by_us: f64, clock_error_us: f64) -> Self {
        let moved = |us: f32| (f64::from(us) + by_us).max(DELAY_US_MIN) as f32;
        // An unknown statistic stays unknown. `max` would turn NaN into the shortest delay.
        let moved = |us: f32| if us.is_nan() { us } else { moved(us) };
        Self {
            p25_us: moved(self.p25_us),
            p50_us: moved(self.p50_us),
            p75_us: moved(self.p75_us),
            p90_us: moved(self.p90_us),
            p99_us: moved(self.p99_us),
            mean_us: moved(self.mean_us),
            clock_error_us: clock_error_us as f32,
            ..*self
        }
    }
}

/// Another host, and the difference of the clocks by the delays in both directions.
struct Pair {
    host: usize,
    /// The stated bound on the difference of the two clocks; infinite without a statement.
    stated_us: f64,
    /// How far the other host's clock seems to be ahead.
    ahead_us: f64,
    /// Half of the round trip.
    half_us: f64,
}

impl Pair {
    /// The pair of the delays to and from a host. `None` where both ends share a clock, or where a
    /// delay is unknown.
    fn of(host: usize, there: &EdgeStats, back: &EdgeStats) -> Option<Self> {
        let stated_us = f64::from(there.clock_error_us.max(back.clock_error_us));
        let unstated = there.clock_error_us.is_nan() || back.clock_error_us.is_nan();
        let stated_us = if unstated { f64::INFINITY } else { stated_us };
        let (there, back) = (quiet(there), quiet(back));
        let (ahead_us, half_us) = ((there - back) / 2.0, (there + back) / 2.0);
        let pair = Self { host, stated_us, ahead_us, half_us };
        (stated_us > 0.0 && ahead_us.is_finite()).then_some(pair)
    }

    /// The error of the delays after a correction by `ahead_us`.
    fn error(&self, ahead_us: f64) -> f64 {
        let longer = self.half_us + (self.ahead_us - ahead_us).abs();
        longer.min(self.stated_us + ahead_us.abs())
    }
}

/// A delay that few queues have lengthened: the lowest percentile that is known.
fn quiet(stats: &EdgeStats) -> f64 {
    f64::from(if stats.p25_us.is_nan() { stats.p50_us } else { stats.p25_us })
}

/// The offsets with the least squares over all pairs, counted from the median offset. Pairs that
/// are far from the fit count less. Each step depends only on the distances of the pairs from the
/// fit, so setting a clock forward changes the offset of that clock alone.
fn settle(pairs: &[Vec<Pair>]) -> Vec<f64> {
    let mut offsets = vec![0.0; pairs.len()];
    let mut plain = f64::INFINITY;
    for _ in 0..REWEIGHTINGS {
        let before = offsets.clone();
        let rest = |one: usize, other: &Pair| before[other.host] - before[one] - other.ahead_us;
        let weigh = |one: usize, other: &Pair| {
            let rest = rest(one, other).abs();
            if rest <= plain { 1.0 } else { plain / rest }
        };
        let weights: Vec<Vec<f64>> = pairs
            .iter()
            .enumerate()
            .map(|(one, others)| others.iter().map(|other| weigh(one, other)).collect())
            .collect();
        least_squares(pairs, &weights, &mut offsets);
        let rest = |one: usize, other: &Pair| offsets[other.host] - offsets[one] - other.ahead_us;
        let all = pairs.iter().enumerate();
        let mut left: Vec<f64> =
            all.flat_map(|(one, others)| others.iter().map(move |o| rest(one, o).abs())).collect();
        plain = PLAIN * median(&mut left).unwrap_or(0.0);
        if plain == 0.0 {
            break;
        }
    }
    let known = |one: &usize| !pairs[*one].is_empty();
    let mut all: Vec<f64> = (0..pairs.len()).filter(known).map(|one| offsets[one]).collect();
    let middle = median(&mut all).unwrap_or(0.0);
    (0..pairs.len()).map(|one| if known(&one) { offsets[one] - middle } else { 0.0 }).collect()
}

/// Moves each offset to the weighted mean of the offsets that the pairs of its host ask for, until
/// all offsets have settled.
fn least_squares(pairs: &[Vec<Pair>], weights: &[Vec<f64>], offsets: &mut [f64]) {
    for _ in 0..ROUNDS_MAX {
        let mut moved = 0.0f64;
        for (one, (others, weights)) in pairs.iter().zip(weights).enumerate() {
            let total: f64 = weights.iter().sum();
            if total <= 0.0 {
                continue;
            }
            let wanted =
                |(other, weight): (&Pair, &f64)| weight * (offsets[other.host] - other.ahead_us);
            let offset = others.iter().zip(weights).map(wanted).sum::<f64>() / total;
            moved = moved.max((offset - offsets[one]).abs());
            offsets[one] = offset;
        }
        if moved < SETTLED_US {
            return;
        }
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenfall_core::Prng;

    use super::*;
    use crate::planner::{PlanMethod, Planner};
    use crate::tree::TreeShape;

    const HOSTS: usize = 15;

    /// Delays of 60 us and more between hosts whose clocks are ahead by `clocks`, and state
    /// `stated_us`.
    fn pool(seed: u64, clocks: &[f64], stated_us: f32) -> DelayMatrix {
        let mut prng = Prng::new(seed);
        let names = (0..HOSTS).map(|host| format!("h{host}")).collect();
        let slow: Vec<f64> = (0..HOSTS).map(|_| 40.0 * prng.unit()).collect();
        let mut delays = DelayMatrix::new(names);
        for from in 0..HOSTS {
            for to in (0..HOSTS).filter(|&to| to != from) {
                let link = 60.0 + slow[from] + slow[to] + 30.0 * prng.unit();
                let owd = link + clocks[to] - clocks[from];
                let mut stats = EdgeStats::constant(owd);
                stats.p90_us += 15.0 * prng.unit() as f32;
                stats.p99_us = stats.p90_us + 10.0;
                stats.clock_error_us = stated_us;
                delays.set(from, to, Some(stats));
            }
        }
        delays
    }

    /// The parent of each host in the tree that a method chooses.
    fn tree(delays: &DelayMatrix, method: PlanMethod) -> BTreeMap<usize, usize> {
        let all: Vec<usize> = (0..HOSTS).collect();
        let planner = Planner::new(method, TreeShape { depth: 2, fanout: 3 });
        let plan = planner.plan(delays, &all).expect("all pairs are known");
        let hosts = plan.tree.hosts();
        let inner = 0..plan.tree.shape().inner();
        let edges = inner.flat_map(|place| {
            plan.tree.shape().children(place).map(move |child| (hosts[child], hosts[place]))
        });
        edges.collect()
    }

    #[test]
    fn a_planted_clock_error_no_longer_changes_which_tree_is_chosen() {
        let mut misled = 0;
        for seed in 1..=10 {
            let mut prng = Prng::new(seed ^ 77);
            let clocks: Vec<f64> = (0..HOSTS).map(|_| 50.0 * prng.unit() - 25.0).collect();
            let (mut right, mut wrong) =
                (pool(seed, &[0.0; HOSTS], f32::NAN), pool(seed, &clocks, f32::NAN));
            let method = || PlanMethod::parse("minmax").expect("a method");
            misled += u32::from(tree(&right, method()) != tree(&wrong, method()));
            let (none, found) = (right.correct_clocks(), wrong.correct_clocks());
            assert_eq!(tree(&right, method()), tree(&wrong, method()), "seed {seed}");
            let weighted = || PlanMethod::parse("weighted").expect("a method");
            assert_eq!(tree(&right, weighted()), tree(&wrong, weighted()), "seed {seed}");
            let mut rest: Vec<f64> =
                (0..HOSTS).map(|host| found[host] - none[host] - clocks[host]).collect();
            let middle = median(&mut rest).expect("hosts");
            assert!(rest.iter().all(|rest| (rest - middle).abs() < 0.01), "{rest:?}");
        }
        assert!(misled >= 5, "uncorrected clocks changed {misled} of 10 trees");
    }

    #[test]
    fn real_differences_of_single_pairs_stay() {
        let mut delays = pool(3, &[0.0; HOSTS], f32::NAN);
        let before = |delays: &DelayMatrix| delays.edge(4, 9).expect("measured").p50_us;
        let plain = before(&delays);
        let slow = EdgeStats::constant(f64::from(plain) + 200.0);
        delays.set(4, 9, Some(EdgeStats { clock_error_us: f32::NAN, ..slow }));
        delays.correct_clocks();
        let after = before(&delays);
        assert!((after - plain - 200.0).abs() < 20.0, "{plain} became {after}");
    }

    #[test]
    fn one_clock_is_left_alone_and_a_stated_bound_limits_the_correction() {
        let clocks: Vec<f64> = (0..HOSTS).map(|host| if host == 5 { 40.0 } else { 0.0 }).collect();
        let mut same = pool(1, &clocks, 0.0);
        let before = same.clone();
        assert!(same.correct_clocks().iter().all(|offset| *offset == 0.0));
        assert_eq!(same, before, "the hosts share a clock: the ways differ, and not the clocks");
        let mut stated = pool(1, &clocks, 8.0);
        let before = stated.clone();
        stated.correct_clocks();
        for host in (0..HOSTS).filter(|&host| host != 5) {
            let change = before.edge(host, 5).expect("measured").p50_us
                - stated.edge(host, 5).expect("measured").p50_us;
            assert!((change - 8.0).abs() < 1e-3, "{change}");
            let error = stated.edge(host, 5).expect("measured").clock_error_us;
            assert_eq!(error, 16.0, "each clock is within 8 us, and 8 us were taken out");
        }
    }

    #[test]
    fn one_pair_alone_is_corrected_within_the_bound_that_its_clocks_state() {
        let pair = |there, back, clock_error_us| {
            let stats = |us| EdgeStats { clock_error_us, ..EdgeStats::constant(us) };
            stats(there).without_clocks(&stats(back))
        };
        let unstated = pair(160.0, 60.0, f32::NAN);
        assert_eq!((unstated.p90_us, unstated.clock_error_us), (110.0, 110.0));
        let stated = pair(160.0, 60.0, 20.0);
        assert_eq!((stated.p90_us, stated.clock_error_us), (140.0, 40.0));
        let one_clock = pair(160.0, 60.0, 0.0);
        assert_eq!((one_clock.p90_us, one_clock.clock_error_us), (160.0, 0.0));
    }

    #[test]
    fn a_correction_says_how_wrong_it_may_be_and_leaves_one_way_pairs_alone() {
        let mut delays = pool(1, &[0.0; HOSTS], f32::NAN);
        delays.set(1, 2, None);
        let lonely = *delays.edge(2, 1).expect("measured");
        delays.correct_clocks();
        assert_eq!(delays.edge(2, 1), Some(&lonely));
        let (there, back) =
            (delays.edge(3, 4).expect("measured"), delays.edge(4, 3).expect("measured"));
        let longer = there.p25_us.max(back.p25_us);
        assert!((there.clock_error_us - longer).abs() < 0.01, "{} {longer}", there.clock_error_us);
    }
}
