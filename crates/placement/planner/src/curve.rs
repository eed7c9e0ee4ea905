//! The distribution of one edge's delay, drawn through its measured percentiles.
//!
//! ```text
//! share   0      .25    .5     .75    .9     .99    1
//!         |-------|------|------|------|------|------|
//!         as steep          measured       cut
//! ```
//!
//! Rare spikes (a few in 10,000 probes that take a hundred times as long) dominate the mean and the
//! standard deviation of a pair. Mean and standard deviation therefore say little about the 90th
//! percentile. In the public measurements, repeats of one pair have standard deviations of 23 and
//! 90 us with the same 90th percentile. The body of the distribution is therefore taken from
//! percentiles alone.

use evenfall_core::math;

use crate::delays::EdgeStats;

/// Shares of the points.
const SHARES: [f64; 7] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];
/// The index of the median in [`SHARES`].
const MEDIAN: usize = 2;
/// The index of the last measured percentile in [`SHARES`].
const LAST: usize = 5;
/// Distance of the 75th and the 90th percentile of an exponential tail: ln(0.25 / 0.1).
const LN_2_5: f64 = 0.916_290_731_874_155_1;
/// Distance of the 90th and the 99th percentile of an exponential tail: ln(0.1 / 0.01).
const LN_10: f64 = core::f64::consts::LN_10;

/// A quantile function made of straight lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    at: [f64; 7],
}

impl Curve {
    /// A curve through the measured percentiles. Missing percentiles are filled in from their
    /// neighbours. `None` when there is no median.
    pub fn of(stats: &EdgeStats) -> Option<Self> {
        let known = |value: f32| (!value.is_nan()).then_some(f64::from(value));
        let p50 = known(stats.p50_us)?;
        let p25 = known(stats.p25_us).unwrap_or(p50);
        let p75 = known(stats.p75_us).or(known(stats.p90_us).map(|p90| p50 + (p90 - p50) * 0.45));
        let p75 = p75.unwrap_or(p50);
        let p90 = known(stats.p90_us).unwrap_or(p75 + (p75 - p50));
        let p99 = known(stats.p99_us).unwrap_or(p90 + (p90 - p75) * LN_10 / LN_2_5);
        let p0 = (p25 - (p50 - p25)).max(0.0).min(p25);
        Some(Self { at: [p0, p25, p50, p75, p90, p99, p99] })
    }

    /// The delay below which this share lies.
    pub fn at(&self, share: f64) -> f64 {
        let above = SHARES.partition_point(|&s| s <= share).clamp(1, 6);
        let (s0, s1) = (SHARES[above - 1], SHARES[above]);
        let (v0, v1) = (self.at[above - 1], self.at[above]);
        v0 + (v1 - v0) * ((share - s0) / (s1 - s0)).clamp(0.0, 1.0)
    }

    /// The delay below which this share lies. Above the median, the share of longer delays falls
    /// exponentially from each measured percentile to the next, and beyond the last percentile.
    pub fn tail_at(&self, share: f64) -> f64 {
        let to = SHARES.partition_point(|&known| known <= share).min(LAST);
        if to <= MEDIAN {
            return self.at(share);
        }
        let falls = |share: f64| math::ln((1.0 - SHARES[to - 1]) / (1.0 - share));
        let (from, slope) = (self.at[to - 1], (self.at[to] - self.at[to - 1]) / falls(SHARES[to]));
        from + slope * falls(share)
    }

    /// The mean of the drawn distribution.
    pub fn mean(&self) -> f64 {
        let piece = |i: usize| (SHARES[i + 1] - SHARES[i]) * (self.at[i] + self.at[i + 1]) / 2.0;
        (0..6).map(piece).sum()
    }
}
