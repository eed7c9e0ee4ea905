//! The delays of pairs as effects of hosts.
//!
//! The logarithm of a pair's delay is a sum of four parts: a mean, an effect of the sender, an
//! effect of the receiver, and a rest. Least squares give the parts. A model draws its own hosts
//! from the spread of these effects over the measured hosts.

use evenfall_core::math::square;
use evenfall_core::statistics::{deviation, mean};

/// Rounds of the fit at most. A few are enough where all pairs are known; where few pairs are
/// known, effects reach far-off hosts slowly.
const ROUNDS_MAX: usize = 2_000;
/// The fit is done when no effect moves by more than this.
const STILL: f64 = 1e-12;

/// Effects of senders and receivers on the logarithms of delays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// The mean logarithm.
    pub mean: f64,
    /// By host, as sender. `None` for a host that sent nothing.
    pub sender: Vec<Option<f64>>,
    /// By host, as receiver. `None` for a host that received nothing.
    pub receiver: Vec<Option<f64>>,
}

/// Standard deviations of the parts of the logarithm. The noise that the estimate of the effects
/// adds to the deviations of hosts has been subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Of hosts as senders.
    pub sender: f64,
    /// Of hosts as receivers.
    pub receiver: f64,
    /// Correlation of the two effects of a host.
    pub correlation: f64,
    /// Of the rest.
    pub rest: f64,
    /// Covariance of the rests of the two directions of a pair.
    pub both_ways: f64,
}

/// The effects of one side, given those of the other.
fn side(hosts: usize, values: impl Iterator<Item = (usize, f64)>) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0u32); hosts];
    for (host, value) in values {
        sums[host].0 += value;
        sums[host].1 += 1;
    }
    sums.into_iter().map(|(sum, n)| (n > 0).then(|| sum / f64::from(n))).collect()
}

impl Effects {
    /// The effects of this many hosts on pairs: sender, receiver and logarithm of the delay.
    ///
    /// # Panics
    /// When a pair names a host beyond the number.
    pub fn of(hosts: usize, pairs: &[(usize, usize, f64)]) -> Self {
        let mut effects =
            Self { mean: 0.0, sender: vec![None; hosts], receiver: vec![None; hosts] };
        for _ in 0..ROUNDS_MAX {
            let before = effects.clone();
            let rest: Vec<f64> = pairs.iter().map(|&(a, b, y)| y - effects.hosts(a, b)).collect();
            effects.mean = mean(&rest).unwrap_or(0.0);
            let less = |effects: &Self, from, to, y| y - effects.mean - effects.hosts(from, to);
            let own = |value: Option<f64>| value.unwrap_or(0.0);
            let values = pairs
                .iter()
                .map(|&(a, b, y)| (a, less(&effects, a, b, y) + own(effects.sender[a])));
            effects.sender = side(hosts, values);
            let values = pairs
                .iter()
                .map(|&(a, b, y)| (b, less(&effects, a, b, y) + own(effects.receiver[b])));
            effects.receiver = side(hosts, values);
            if effects.moved(&before) < STILL {
                break;
            }
        }
        effects
    }

    fn moved(&self, before: &Self) -> f64 {
        let all = |effects: &Self| -> Vec<f64> {
            let sides = effects.sender.iter().chain(&effects.receiver).flatten();
            sides.copied().chain([effects.mean]).collect()
        };
        let (new, old) = (all(self), all(before));
        if new.len() != old.len() {
            return f64::INFINITY;
        }
        new.iter().zip(&old).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    /// The effects of both hosts of a pair together.
    pub fn hosts(&self, from: usize, to: usize) -> f64 {
        self.sender[from].unwrap_or(0.0) + self.receiver[to].unwrap_or(0.0)
    }

    /// The standard deviations of the parts, given the pairs that the effects were fitted to.
    pub fn parts(&self, pairs: &[(usize, usize, f64)]) -> Parts {
        let hosts = self.sender.len();
        let rest = |&(from, to, y): &(usize, usize, f64)| y - self.mean - self.hosts(from, to);
        let parameters = self.sender.iter().chain(&self.receiver).flatten().count();
        let freedom = (pairs.len() + 1).saturating_sub(parameters).max(1);
        let variance = pairs.iter().map(|pair| square(rest(pair))).sum::<f64>() / freedom as f64;
        let mut by_pair = vec![f64::NAN; hosts * hosts];
        for pair in pairs {
            by_pair[pair.0 * hosts + pair.1] = rest(pair);
        }
        let products: Vec<f64> = pairs
            .iter()
            .filter(|pair| pair.0 < pair.1)
            .map(|pair| by_pair[pair.0 * hosts + pair.1] * by_pair[pair.1 * hosts + pair.0])
            .filter(|product| !product.is_nan())
            .collect();
        let spread = |effects: &[Option<f64>]| {
            let values: Vec<f64> = effects.iter().copied().flatten().collect();
            let noise = variance * values.len() as f64 / pairs.len().max(1) as f64;
            (square(deviation(&values).unwrap_or(0.0)) - noise).max(0.0).sqrt()
        };
        Parts {
            sender: spread(&self.sender),
            receiver: spread(&self.receiver),
            correlation: self.correlation(),
            rest: variance.sqrt(),
            both_ways: mean(&products).unwrap_or(0.0),
        }
    }

    fn correlation(&self) -> f64 {
        let both = self.sender.iter().zip(&self.receiver);
        let (s, r): (Vec<f64>, Vec<f64>) = both.filter_map(|(s, r)| Some(((*s)?, (*r)?))).unzip();
        let (Some(ms), Some(mr)) = (mean(&s), mean(&r)) else { return 0.0 };
        let product: f64 = s.iter().zip(&r).map(|(s, r)| (s - ms) * (r - mr)).sum();
        let squares = |values: &[f64], mean: f64| -> f64 {
            values.iter().map(|value| square(value - mean)).sum()
        };
        let both = (squares(&s, ms) * squares(&r, mr)).sqrt();
        if both > 0.0 { (product / both).clamp(-1.0, 1.0) } else { 0.0 }
    }
}
