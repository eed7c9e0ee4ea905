//! A pool of cloud machines for placement, fitted to public measurements between 20 machines.
//!
//! A host has one factor for sending and one for receiving. In the measurements
//! (`latency/gcp_pairs_owd_us.csv`), factors for receiving vary more over hosts than factors for
//! sending: the standard deviations of their logarithms are .11 and .07. The model of a delay is:
//!
//! ```text
//! delay(i, j) = 82.4 us * send(i) * receive(j) * link(i, j) * drift    lognormal factors
//!               * (0.515 + 0.1813 * spread(i, j) * Gamma(3))    a probe's own part
//!               + now and then a spike
//! ```
//!
//! One host in twenty is a straggler like host 3 of the measurements. It sends 1.22 times and
//! receives 1.57 times as slowly as other hosts, and its own part spreads 1.36 times as wide.
//! [`fit`] compares the measurements with the model.

use evenfall_core::{Prng, math};
use evenfall_placement_planner::delays::{Delays, EdgeStats};

use crate::studies::Table;

/// Median over pairs, microseconds: exp of the mean logarithm, 4.41.
const MEDIAN_US: f64 = 82.4;
/// Standard deviations of logarithms, least squares over the 110 pairs without the straggler.
const SEND_SIGMA: f64 = 0.07;
const RECEIVE_SIGMA: f64 = 0.11;
const LINK_SIGMA: f64 = 0.083;
/// Standard deviation of the logarithm of `spread(i, j)`, over pairs.
const SPREAD_SIGMA: f64 = 0.12;
/// Standard deviations of the logarithm of `drift`, between repeats of a measurement: the part that
/// all pairs of one job share, and the part of each pair.
const JOB_SIGMA: f64 = 0.076;
const DRIFT_SIGMA: f64 = 0.067;
/// Share of stragglers and their factors, from the one straggler of the 20 machines.
const STRAGGLERS: f64 = 0.05;
const STRAGGLER: Straggler = Straggler { send: 1.22, receive: 1.57, spread: 1.36 };
/// The part of a delay that varies by probe. In the measurements, (p75 - p50) / (p50 - p25) is 1.31
/// and (p90 - p50) / (p50 - p25) is 2.77 at the median over pairs. A gamma distribution of shape 3
/// has 1.32 and 2.80. Its scale follows from (p90 - p50) / p50 = 0.484, and the constant part
/// follows from the median.
const BASE: f64 = 0.515;
const SCALE: f64 = 0.1813;
/// Spikes raise the standard deviation above the standard deviation of the gamma part: by a quarter
/// at the median over pairs, and threefold at the 90th percentile. One probe in 8,192 meets a
/// spike: 4 of 4,096 probes are candidates, and one candidate in 8 meets a spike.
const SPIKE_OF_4096: u64 = 4;
const SPIKE_US: f64 = 1_900.0;
const SPIKE_SIGMA: f64 = 0.9;

struct Straggler {
    send: f64,
    receive: f64,
    spread: f64,
}

#[derive(Clone, Copy)]
struct Host {
    send: f64,
    receive: f64,
    spread: f64,
}

/// A pool: the constant factors of its hosts, and the seed from which the factors of each pair
/// follow.
pub struct Pool {
    seed: u64,
    hosts: Vec<Host>,
    gamma: Vec<f32>,
}

/// Distribution of the delays from one host to another.
#[derive(Clone, Copy)]
struct Edge {
    base_us: f64,
    scale_us: f64,
    spike_us: f64,
}

/// Number of tabulated quantiles of the gamma distribution.
const CELLS: usize = 4_096;

/// Quantiles of a gamma distribution of shape 3, by bisection of 1 - e^-x (1 + x + x^2 / 2).
fn gamma_table() -> Vec<f32> {
    let quantile = |q: f64| {
        let (mut low, mut high) = (0.0, 40.0);
        for _ in 0..50 {
            let x: f64 = (low + high) / 2.0;
            let below = 1.0 - math::exp(-x) * (1.0 + x + x * x / 2.0);
            if below < q { low = x } else { high = x }
        }
        low
    };
    let most = 1.0 - 0.25 / CELLS as f64;
    (0..=CELLS).map(|i| quantile((i as f64 / CELLS as f64).min(most)) as f32).collect()
}

impl Pool {
    /// A pool of this many hosts.
    pub fn new(hosts: usize, seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let hosts = (0..hosts).map(|_| {
            let mut host = Host {
                send: math::exp(SEND_SIGMA * prng.normal()),
                receive: math::exp(RECEIVE_SIGMA * prng.normal()),
                spread: 1.0,
            };
            if prng.chance(STRAGGLERS) {
                host.send *= STRAGGLER.send;
                host.receive *= STRAGGLER.receive;
                host.spread *= STRAGGLER.spread;
            }
            host
        });
        Self { seed, hosts: hosts.collect(), gamma: gamma_table() }
    }

    /// The same pool after one of its hosts has turned into a straggler.
    pub fn slowed(&self, host: usize) -> Self {
        let mut hosts = self.hosts.clone();
        hosts[host].send *= STRAGGLER.send;
        hosts[host].receive *= STRAGGLER.receive;
        hosts[host].spread *= STRAGGLER.spread;
        Self { seed: self.seed, hosts, gamma: self.gamma.clone() }
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    fn pair(&self, from: usize, to: usize, what: u64) -> Prng {
        let pair = (from as u64) << 32 | to as u64;
        Prng::new(math::mix(self.seed ^ math::mix(pair)) ^ math::mix(what))
    }

    /// The distribution of a pair at an epoch. Epochs count from 1, and each has its own drift and
    /// spikes. Random streams 1 and 2 give the constant factors, each epoch has ten streams from 10
    /// on, and each probe has one stream from 1,000 on.
    fn edge(&self, from: usize, to: usize, epoch: u64) -> Edge {
        let (sender, receiver) = (self.hosts[from], self.hosts[to]);
        let first = 10 * epoch;
        let link = LINK_SIGMA * self.pair(from, to, 1).normal();
        let drift = JOB_SIGMA * self.pair(from, from, first).normal()
            + DRIFT_SIGMA * self.pair(from, to, first + 1).normal();
        let us = MEDIAN_US * sender.send * receiver.receive * math::exp(link + drift);
        let spread = math::exp(SPREAD_SIGMA * self.pair(from, to, 2).normal());
        let spike = SPIKE_US * math::exp(SPIKE_SIGMA * self.pair(from, to, first + 2).normal());
        Edge {
            base_us: us * BASE,
            scale_us: us * SCALE * spread * sender.spread * receiver.spread,
            spike_us: spike,
        }
    }

    #[inline]
    fn delay(&self, edge: &Edge, prng: &mut Prng) -> f32 {
        let word = prng.next_u64();
        let (cell, within) = ((word >> 52) as usize, (word >> 12 & 0xff_ffff_ffff) as f32);
        let (low, high) = (self.gamma[cell], self.gamma[cell + 1]);
        let gamma = low + (high - low) * within * (1.0 / (1u64 << 40) as f32);
        let mut us = edge.base_us + edge.scale_us * f64::from(gamma);
        // The gamma part does not use the low twelve bits of the word.
        if word & 0xfff < SPIKE_OF_4096 && prng.below(8) == 0 {
            us += prng.exponential(edge.spike_us);
        }
        us as f32
    }

    /// One measurement of a pair: statistics of this many probes. `name` decides the samples, so
    /// that two planners that make the same measurement get the same result.
    pub fn probe(&self, from: usize, to: usize, probes: u32, epoch: u64, name: u64) -> EdgeStats {
        let edge = self.edge(from, to, epoch);
        let mut prng = self.pair(from, to, 1_000 + name);
        let mut samples: Vec<f32> = (0..probes).map(|_| self.delay(&edge, &mut prng)).collect();
        EdgeStats::from_samples(&mut samples, probes).unwrap_or(EdgeStats::UNKNOWN)
    }

    /// All pairs measured with this many probes each.
    pub fn measure(&self, probes: u32, epoch: u64) -> Delays {
        let mut delays = Delays::new((0..self.hosts()).map(|host| host.to_string()).collect());
        for from in 0..self.hosts() {
            for to in (0..self.hosts()).filter(|&to| to != from) {
                delays.set(from, to, Some(self.probe(from, to, probes, epoch, 0)));
            }
        }
        delays
    }

    /// Judges a tree by this many messages. Returns the statistics of the leaf with the largest
    /// 90th percentile. The random numbers belong to the places of the tree and not to hosts, so
    /// that all plans are compared on the same draws. No planner has seen these draws.
    pub fn judge(
        &self,
        tree: &evenfall_placement_planner::tree::Tree,
        messages: u32,
        epoch: u64,
    ) -> EdgeStats {
        let (shape, hosts) = (tree.shape(), tree.hosts());
        let mut worst: Option<EdgeStats> = None;
        let mut ways: Vec<Vec<f32>> = vec![vec![0.0; messages as usize]];
        for place in 1..hosts.len() {
            let parent = shape.parent(place).unwrap_or(0);
            let edge = self.edge(hosts[parent], hosts[place], epoch);
            let mut prng =
                Prng::new(math::mix(self.seed ^ 0x006a_7564_6765) ^ math::mix(place as u64));
            let mut way: Vec<f32> =
                ways[parent].iter().map(|us| us + self.delay(&edge, &mut prng)).collect();
            if place < shape.leaves().start {
                ways.push(way);
                continue;
            }
            let stats = EdgeStats::from_samples(&mut way, messages).unwrap_or(EdgeStats::UNKNOWN);
            if worst.is_none_or(|worst| stats.p90_us > worst.p90_us) {
                worst = Some(stats);
            }
        }
        worst.unwrap_or(EdgeStats::UNKNOWN)
    }
}

/// Statistics over pairs, each by five quantiles, of the measurements.
const FILE: [(&str, [f64; 5]); 6] = [
    ("p50, us", [65.0, 72.0, 84.0, 97.0, 112.0]),
    ("(p90 - p50) / p50", [0.424, 0.440, 0.484, 0.532, 0.636]),
    ("(p75 - p50) / (p50 - p25)", [1.125, 1.219, 1.310, 1.433, 1.556]),
    ("(p90 - p50) / (p50 - p25)", [2.286, 2.467, 2.769, 3.071, 3.455]),
    ("stddev, us", [24.7, 27.7, 34.3, 47.2, 106.9]),
    ("stddev / (p90 - p50)", [0.698, 0.724, 0.836, 1.117, 2.109]),
];

/// The measurements and the model side by side: quantiles over pairs.
pub fn fit(pools: u64) -> Table {
    let mut table = Table::new(
        "Fit of the pool's model",
        format!(
            "quantiles over pairs of 20 hosts: 110 measured pairs (100,000 probes each) and \
             {pools} simulated pools (20,000 probes)"
        ),
        &[
            "statistic",
            "file 10 %",
            "25 %",
            "50 %",
            "75 %",
            "90 %",
            "model 10 %",
            "25 %",
            "50 %",
            "75 %",
            "90 %",
        ],
    );
    let mut values: [Vec<f64>; 6] = Default::default();
    for seed in 1..=pools {
        let pool = Pool::new(20, seed);
        for pair in (0..400).filter(|pair| pair / 20 != pair % 20) {
            let s = pool.probe(pair / 20, pair % 20, 20_000, 1, 0);
            let [p25, p50, p75, p90] = [s.p25_us, s.p50_us, s.p75_us, s.p90_us].map(f64::from);
            let sd = f64::from(s.stddev_us);
            let (up, low) = (p90 - p50, p50 - p25);
            let row = [p50, up / p50, (p75 - p50) / low, up / low, sd, sd / up];
            values.iter_mut().zip(row).for_each(|(all, value)| all.push(value));
        }
    }
    for ((name, file), mut ours) in FILE.into_iter().zip(values) {
        ours.sort_by(f64::total_cmp);
        let model = [0.1, 0.25, 0.5, 0.75, 0.9].map(|q| evenfall_core::nearest_rank(&ours, q));
        table.row(name.into(), file.map(Some).into_iter().chain(model));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_medians_of_the_measurements() {
        let table = fit(6);
        for (name, values) in &table.rows {
            let value = |i: usize| values[i].expect("a value");
            let (file, model) = (value(2), value(7));
            assert!((model / file - 1.0).abs() < 0.1, "{name}: {file} {model}");
        }
    }

    #[test]
    fn drift_and_spread_are_different_draws_at_every_epoch() {
        for epoch in 1..6 {
            let mut pool = Pool::new(40, 1);
            pool.hosts.fill(Host { send: 1.0, receive: 1.0, spread: 1.0 });
            let (mut base, mut width, mut spike) = (Vec::new(), Vec::new(), Vec::new());
            for pair in (0..1_600).filter(|pair| pair / 40 != pair % 40) {
                let edge = pool.edge(pair / 40, pair % 40, epoch);
                base.push(math::ln(edge.base_us));
                width.push(math::ln(edge.scale_us / edge.base_us));
                spike.push(math::ln(edge.spike_us));
            }
            let correlation = |a: &[f64], b: &[f64]| {
                let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
                let (ma, mb) = (mean(a), mean(b));
                let product = |f: &dyn Fn(usize) -> f64| (0..a.len()).map(f).sum::<f64>();
                let both = product(&|i| (a[i] - ma) * (b[i] - mb));
                both / (product(&|i| math::square(a[i] - ma))
                    * product(&|i| math::square(b[i] - mb)))
                .sqrt()
            };
            for (a, b) in [(&base, &width), (&base, &spike), (&width, &spike)] {
                let r = correlation(a, b);
                // For 1,560 pairs, four standard errors of a correlation of 0 are 0.1.
                assert!(r.abs() < 0.1, "epoch {epoch}: {r}");
            }
        }
    }

    #[test]
    fn samples_are_those_of_the_distribution() {
        let pool = Pool::new(4, 1);
        let stats = pool.probe(0, 1, 200_000, 1, 0);
        let edge = pool.edge(0, 1, 1);
        let p50 = edge.base_us + edge.scale_us * 2.674;
        let p90 = edge.base_us + edge.scale_us * 5.322;
        assert!((f64::from(stats.p50_us) / p50 - 1.0).abs() < 0.01);
        assert!((f64::from(stats.p90_us) / p90 - 1.0).abs() < 0.01);
        assert_eq!(pool.probe(0, 1, 100, 1, 0), pool.probe(0, 1, 100, 1, 0));
    }
}
