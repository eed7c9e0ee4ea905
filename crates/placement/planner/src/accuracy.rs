//! The error of a planned length.
//!
//! The length of a way is a percentile of delays. The length has two errors:
//!
//! - **Clocks.** A delay between two hosts is wrong by the difference of their clocks. Two limits
//!   bound this error after a correction ([`DelayMatrix::correct_clocks`]): the bounds that the
//!   clocks state, and the longer of the two ways, because no delay is negative. The bounds of all
//!   edges of a way add up.
//! - **Sampling.** The share of delays below the measured percentile of `n` probes differs from the
//!   wanted share `q`. In 19 of 20 measurements the difference is at most two standard errors,
//!   `2 sqrt(q (1 - q) / n)`. The sampling error is the change of the delay when the share changes
//!   by two standard errors. Edges are measured independently, so that the sampling errors of all
//!   edges of a way add up in squares.

use serde::Serialize;

use crate::curve::Curve;
use crate::delays::{DelayMatrix, EdgeStats};
use crate::tree::PlacedTree;

/// Number of standard errors that 19 of 20 measurements do not exceed.
const STANDARD_ERRORS: f64 = 2.0;

/// The error of a length in microseconds. An unknown part is infinite, which is `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LengthError {
    /// The bound on the error of the length by the errors of the clocks.
    #[serde(rename = "clock_error_us")]
    pub clock_us: f64,
    /// The sampling error, which 19 of 20 measurements do not exceed.
    #[serde(rename = "sampling_error_us")]
    pub sampling_us: f64,
}

impl LengthError {
    /// An edge that was not measured.
    pub const UNKNOWN: Self = Self { clock_us: f64::INFINITY, sampling_us: f64::INFINITY };

    /// The error of an edge at a percentile, given as a share of 0.5 to 0.999. The sampling error
    /// is unknown when the statistics do not contain the number of probes.
    pub fn of(stats: &EdgeStats, share: f64) -> Self {
        let clock_us = match f64::from(stats.clock_error_us) {
            unknown if unknown.is_nan() => f64::INFINITY,
            us => us,
        };
        let sampling_us = sampling_us(stats, share).unwrap_or(f64::INFINITY);
        Self { clock_us, sampling_us }
    }

    /// The greatest clock error and the greatest sampling error of the ways to the leaves of a
    /// tree. The two may belong to different leaves. Together they bound the error of the worst
    /// leaf's length.
    pub fn of_tree(delays: &DelayMatrix, tree: &PlacedTree, share: f64) -> Self {
        let (shape, hosts) = (tree.shape(), tree.hosts());
        let mut ways = vec![Self::default(); hosts.len()];
        for place in 1..hosts.len() {
            let parent = (place - 1) / usize::from(shape.fanout);
            let edge = delays.edge(hosts[parent], hosts[place]);
            let edge = edge.map_or(Self::UNKNOWN, |stats| Self::of(stats, share));
            ways[place] = ways[parent].plus(edge);
        }
        shape.leaves().map(|leaf| ways[leaf]).fold(Self::default(), |a, b| Self {
            clock_us: a.clock_us.max(b.clock_us),
            sampling_us: a.sampling_us.max(b.sampling_us),
        })
    }

    /// The error of a way with one more edge.
    pub fn plus(self, edge: Self) -> Self {
        let squares = self.sampling_us * self.sampling_us + edge.sampling_us * edge.sampling_us;
        Self { clock_us: self.clock_us + edge.clock_us, sampling_us: squares.sqrt() }
    }

    /// Both errors together.
    pub fn us(self) -> f64 {
        self.clock_us + self.sampling_us
    }
}

/// The sampling error of a percentile. `None` when the number of probes is unknown, or when the
/// probes are too few for the percentile.
fn sampling_us(stats: &EdgeStats, share: f64) -> Option<f64> {
    let curve = Curve::of(stats).filter(|_| stats.count > 0)?;
    let share = share / (1.0 - f64::from(stats.loss.max(0.0)));
    let variance = share * (1.0 - share) / f64::from(stats.count);
    let off = STANDARD_ERRORS * variance.max(0.0).sqrt();
    if share + off >= 1.0 {
        return None;
    }
    let middle = curve.tail_at(share);
    let (below, above) = (curve.tail_at((share - off).max(0.0)), curve.tail_at(share + off));
    Some((above - middle).max(middle - below))
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;
    use crate::tree::TreeShape;

    #[test]
    fn nineteen_of_twenty_measurements_are_within_the_sampling_error() {
        let mut prng = Prng::new(5);
        let (runs, probes) = (400, 1_000);
        // Of exponential delays above 40 us, nine in ten are below 40 us + 20 us * ln 10.
        let truth = 40.0 + 20.0 * core::f64::consts::LN_10;
        let mut within = 0;
        for _ in 0..runs {
            let mut delays: Vec<f32> =
                (0..probes).map(|_| (40.0 + prng.exponential(20.0)) as f32).collect();
            let stats = EdgeStats::from_samples(&mut delays, probes).expect("samples");
            let error = LengthError::of(&stats, 0.9);
            assert!(error.clock_us == 0.0 && error.sampling_us < 7.0, "{error:?}");
            let off = (f64::from(stats.p90_us) - truth).abs();
            within += u32::from(off <= error.sampling_us);
        }
        assert!(within * 100 >= runs * 93, "{within} of {runs}");
    }

    #[test]
    fn clocks_add_up_along_a_way_and_samples_in_squares() {
        let edge = LengthError { clock_us: 5.0, sampling_us: 3.0 };
        let way = edge.plus(LengthError { clock_us: 2.0, sampling_us: 4.0 });
        assert_eq!((way.clock_us, way.sampling_us, way.us()), (7.0, 5.0, 12.0));
    }

    #[test]
    fn what_is_not_known_is_infinite_and_the_worst_leaf_counts() {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut delays = DelayMatrix::from_fn(names, |_, _| 50.0);
        let tree = PlacedTree::new(TreeShape { depth: 1, fanout: 2 }, vec![0, 1, 2]);
        let error = LengthError::of_tree(&delays, &tree, 0.9);
        assert_eq!((error.clock_us, error.sampling_us), (0.0, f64::INFINITY), "no counts");
        let stats = |clock_error_us, count| EdgeStats {
            clock_error_us,
            count,
            ..EdgeStats::constant(50.0)
        };
        for (one, other) in [(3.0, 8.0), (8.0, 3.0)] {
            for (count, sampling_us) in [(1_000, 0.0), (0, f64::INFINITY)] {
                delays.set(0, 1, Some(stats(one, count)));
                delays.set(0, 2, Some(stats(other, count)));
                let error = LengthError::of_tree(&delays, &tree, 0.9);
                assert_eq!((error.clock_us, error.sampling_us), (8.0, sampling_us));
            }
        }
        delays.set(0, 1, Some(stats(f32::NAN, 1_000)));
        let error = LengthError::of_tree(&delays, &tree, 0.9);
        assert_eq!(error.clock_us, f64::INFINITY);
        let few = LengthError::of(&stats(0.0, 20), 0.9);
        assert_eq!(few.sampling_us, f64::INFINITY, "twenty probes have no 90th percentile");
    }
}
