//! Estimates percentiles of whole paths from the percentiles of their edges.
//!
//! The 90th percentiles of two edges do not add up to the 90th percentile of the path, because both
//! edges are rarely slow at once. Their means add up, and the distances above the means add up in
//! squares, as independent spreads do. Let m be the mean of an edge's body, and d = p - m the
//! distance of the chosen percentile p above it. The estimate of a path is
//!
//! ```text
//! p(path) = m1 + m2 + ... + sqrt(d1^2 + d2^2 + ...)
//! ```
//!
//! The estimate is exact for one edge, and for any number of edges with normal delays. For the
//! skewed delays of clouds it is within 3.5 % at the 75th and 90th percentiles, and within 7 % at
//! the 99th (the tests compare with Monte Carlo). The sum of the edges' 90th percentiles would be
//! 10 to 15 % too high on three hops. m comes from the percentiles ([`Curve`]) and not from the
//! mean of the samples, which rare spikes shift. A path needs only two sums, so a search is cheap.
//! Both sums only grow along a path, which the lower bound needs.
//!
//! The estimate assumes independent edges. Where hosts stall or links drift, delays of edges that
//! share a host rise together, and every percentile above the median is a little higher than its
//! estimate.

use crate::curve::Curve;
use crate::delays::{EdgeStats, HostPool};
use crate::tree::{PlacedTree, TreeShape};

/// The length of an edge or a path: two numbers that add up along a path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Length {
    /// Sum of the bodies' means, microseconds.
    pub mean_us: f64,
    /// Sum of the squared distances of the percentile above the mean, square microseconds.
    pub excess_us2: f64,
}

impl Length {
    /// An edge that cannot be used.
    pub const NONE: Self = Self { mean_us: f64::INFINITY, excess_us2: 0.0 };

    /// The length of an edge at a percentile, given as a share of 0.5 to 0.999. An edge cannot be
    /// used when it loses so many probes that this percentile of the sent probes never arrives.
    pub fn of(stats: &EdgeStats, share: f64) -> Self {
        let arrived = 1.0 - f64::from(stats.loss.max(0.0));
        let Some(curve) = Curve::of(stats).filter(|_| share < arrived) else { return Self::NONE };
        let mean_us = curve.mean();
        let excess = (curve.at(share / arrived) - mean_us).max(0.0);
        Self { mean_us, excess_us2: excess * excess }
    }

    /// A path with one more edge.
    #[inline]
    pub fn plus(self, edge: Self) -> Self {
        Self { mean_us: self.mean_us + edge.mean_us, excess_us2: self.excess_us2 + edge.excess_us2 }
    }

    /// The estimated percentile, microseconds; infinite when an edge cannot be used.
    #[inline]
    pub fn us(self) -> f64 {
        self.mean_us + self.excess_us2.sqrt()
    }

    /// Whether an edge cannot be used.
    pub fn is_none(self) -> bool {
        self.mean_us == f64::INFINITY
    }
}

/// The lengths of all edges of a pool at one percentile.
#[derive(Clone, Debug)]
pub struct Lengths {
    hosts: usize,
    share: f64,
    /// Lengths at the index sender times hosts plus receiver, in single precision as the
    /// measurements.
    edges: Vec<[f32; 2]>,
}

impl Lengths {
    /// All edges at a percentile, 0.5 to 0.999 as a share.
    pub fn new(pool: &HostPool<'_>, share: f64) -> Self {
        let hosts = pool.hosts();
        let pair = |pair: usize| {
            let edge = pool.edge(pair / hosts, pair % hosts);
            let length = edge.map_or(Length::NONE, |stats| Length::of(stats, share));
            [length.mean_us as f32, length.excess_us2 as f32]
        };
        Self { hosts, share, edges: (0..hosts * hosts).map(pair).collect() }
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// The percentile, as a share.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// One edge.
    #[inline]
    pub fn edge(&self, from: usize, to: usize) -> Length {
        let [mean, excess] = self.edges[from * self.hosts + to];
        Length { mean_us: f64::from(mean), excess_us2: f64::from(excess) }
    }

    /// Replaces one edge.
    pub fn set(&mut self, from: usize, to: usize, length: Length) {
        self.edges[from * self.hosts + to] = [length.mean_us as f32, length.excess_us2 as f32];
    }

    /// The length of the way to every place.
    pub fn ways(&self, shape: TreeShape, hosts: &[usize]) -> Vec<Length> {
        let mut ways = vec![Length::default(); hosts.len()];
        for place in 1..hosts.len() {
            let parent = (place - 1) / shape.fanout as usize;
            ways[place] = ways[parent].plus(self.edge(hosts[parent], hosts[place]));
        }
        ways
    }

    /// The place of the leaf with the largest percentile, and this percentile in microseconds.
    pub fn worst_leaf(&self, tree: &PlacedTree) -> (usize, f64) {
        let ways = self.ways(tree.shape(), tree.hosts());
        let leaves = tree.shape().leaves().map(|leaf| (leaf, ways[leaf].us()));
        leaves.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::{Prng, math};

    /// The delay of an edge: a base, and a skewed part on top.
    fn sample(kind: usize, base: f64, spread: f64, prng: &mut Prng) -> f32 {
        let above = match kind {
            // Exponential, gamma of shape 3 and lognormal are the usual fits of link delays.
            0 => prng.exponential(1.0),
            1 => (0..3).map(|_| prng.exponential(0.58)).sum(),
            _ => math::exp(0.5 * prng.normal()) * 1.7,
        };
        (base + spread * above) as f32
    }

    #[test]
    fn estimates_agree_with_monte_carlo_where_sums_do_not() {
        let mut prng = Prng::new(11);
        let mut worst_sum: f64 = 0.0;
        for trial in 0..30 {
            let hops = 2 + trial % 3;
            let edges: Vec<Vec<f32>> = (0..hops)
                .map(|_| {
                    let (base, spread) = (30.0 + 40.0 * prng.unit(), 8.0 + 25.0 * prng.unit());
                    (0..20_000).map(|_| sample(trial % 3, base, spread, &mut prng)).collect()
                })
                .collect();
            let mut paths: Vec<f32> =
                (0..20_000).map(|i| edges.iter().map(|edge| edge[i]).sum()).collect();
            let path = EdgeStats::from_samples(&mut paths, 20_000).expect("samples");
            let of = |edge: &Vec<f32>| EdgeStats::from_samples(&mut edge.clone(), 20_000);
            let stats: Vec<EdgeStats> = edges.iter().filter_map(of).collect();
            for (share, truth) in [(0.75, path.p75_us), (0.9, path.p90_us), (0.99, path.p99_us)] {
                let length = stats.iter().map(|edge| Length::of(edge, share));
                let us = length.fold(Length::default(), Length::plus).us();
                let error = us / f64::from(truth) - 1.0;
                let most = if share > 0.95 { 0.07 } else { 0.035 };
                assert!(error.abs() < most, "trial {trial}, {share}: {us} for {truth}");
            }
            let sum: f32 = stats.iter().map(|edge| edge.p90_us).sum();
            worst_sum = worst_sum.max(f64::from(sum / path.p90_us) - 1.0);
        }
        assert!(worst_sum > 0.1, "{worst_sum}");
    }

    #[test]
    fn one_edge_is_exact_and_a_lossy_one_is_longer() {
        let mut samples: Vec<f32> = (1..=1000).map(|us| 50.0 + us as f32 / 10.0).collect();
        let stats = EdgeStats::from_samples(&mut samples, 1_000).expect("samples");
        assert!((Length::of(&stats, 0.9).us() - f64::from(stats.p90_us)).abs() < 1e-3);
        let lossy = EdgeStats { loss: 0.05, ..stats };
        assert!(Length::of(&lossy, 0.9).us() > Length::of(&stats, 0.9).us());
        assert!(Length::of(&EdgeStats { loss: 0.1, ..stats }, 0.9).is_none());
    }
}
