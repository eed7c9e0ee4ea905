//! Latency histograms that merge, and exact summaries of small samples.

use core::time::Duration;

use serde::Serialize;

use crate::time::nanos;

/// Buckets for each doubling of the duration. With 8 buckets, a bucket is at most 12.5 % wide.
const PER_OCTAVE: usize = 8;
/// Doublings, from 1 us to 4.2 s. Shorter durations count in the first bucket, longer durations in
/// the last.
const OCTAVES: usize = 22;
/// Buckets in all.
pub const BUCKETS: usize = PER_OCTAVE * OCTAVES;
/// Lower edge of the first bucket.
const FLOOR_NS: u64 = 1_000;

/// A log-linear histogram of durations. Its size is fixed, so merging histograms up a tree costs
/// the same for any number of observations.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl core::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Histogram({} samples, p50 {:?})", self.total, self.quantile(0.5))
    }
}

impl Histogram {
    /// The bucket into which a duration falls.
    pub fn bucket(duration: Duration) -> usize {
        let ns = nanos(duration).max(FLOOR_NS);
        let octave = (ns / FLOOR_NS).ilog2() as usize;
        let low = FLOOR_NS << octave.min(OCTAVES);
        // The value is scaled down first, so that the divisor is a constant; the result is the
        // same.
        let within = (((ns - low) >> octave) * PER_OCTAVE as u64 / FLOOR_NS) as usize;
        (octave * PER_OCTAVE + within).min(BUCKETS - 1)
    }

    /// The longest duration that falls into this bucket.
    pub fn upper_edge(bucket: usize) -> Duration {
        let low = FLOOR_NS << (bucket / PER_OCTAVE);
        Duration::from_nanos(low + low * (bucket % PER_OCTAVE + 1) as u64 / PER_OCTAVE as u64)
    }

    /// Counts one observation.
    pub fn record(&mut self, duration: Duration) {
        self.add(Self::bucket(duration), 1);
    }

    /// Adds `count` observations to a bucket, as a report carries them. A bucket number beyond the
    /// end counts in the last bucket.
    pub fn add(&mut self, bucket: usize, count: u64) {
        let slot = &mut self.counts[bucket.min(BUCKETS - 1)];
        *slot = slot.saturating_add(count);
        self.total = self.total.saturating_add(count);
    }

    /// Adds all observations of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.occupied() {
            self.add(bucket, count);
        }
    }

    /// Sets all counts to zero.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// Number of observations.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of observations in a bucket. A bucket number beyond the end names the last bucket.
    pub fn count(&self, bucket: usize) -> u64 {
        self.counts[bucket.min(BUCKETS - 1)]
    }

    /// The buckets that are not empty, in order.
    pub fn occupied(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().copied().enumerate().filter(|&(_, count)| count > 0)
    }

    /// Upper edge of the bucket in which the `q`-quantile lies (`q` in `0..=1`). An empty histogram
    /// gives zero.
    pub fn quantile(&self, q: f64) -> Duration {
        quantile(self.total, self.occupied(), q)
    }

    /// An estimate of the `q`-quantile (`q` in `0..=1`): the observations of a bucket are taken to
    /// lie evenly in it. An empty histogram gives zero.
    ///
    /// Use this for figures that people compare, and [`quantile`](Self::quantile) where no value
    /// may look smaller than it was.
    pub fn interpolated_quantile(&self, q: f64) -> Duration {
        let rank = (q * self.total as f64).clamp(0.0, self.total as f64);
        let mut before = 0.0;
        for (bucket, count) in self.occupied() {
            let count = count as f64;
            if before + count >= rank {
                let (low, high) = (lower_edge(bucket), Self::upper_edge(bucket));
                let part = (rank - before) / count;
                let ns = nanos(low) as f64 + nanos(high - low) as f64 * part;
                return Duration::from_nanos(ns as u64);
            }
            before += count;
        }
        Duration::ZERO
    }
}

fn lower_edge(bucket: usize) -> Duration {
    match bucket {
        0 => Duration::ZERO,
        _ => Histogram::upper_edge(bucket - 1),
    }
}

fn quantile(total: u64, occupied: impl Iterator<Item = (usize, u64)>, q: f64) -> Duration {
    let rank = ((q * total as f64).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    for (bucket, count) in occupied {
        seen += count;
        if seen >= rank {
            return Histogram::upper_edge(bucket);
        }
    }
    Duration::ZERO
}

/// A histogram of the same buckets for places that keep many histograms of few observations each.
/// Only buckets that are not empty take room, eight bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseHistogram {
    /// Bucket and count, in the order of the buckets.
    counts: Vec<(u8, u32)>,
    total: u64,
}

impl SparseHistogram {
    /// Counts one observation.
    pub fn record(&mut self, duration: Duration) {
        self.add(Histogram::bucket(duration), 1);
    }

    /// Adds `count` observations to a bucket, as [`Histogram::add`] does. A bucket counts up to
    /// 2^32 - 1.
    pub fn add(&mut self, bucket: usize, count: u32) {
        const { assert!(BUCKETS <= 256) }
        let bucket = bucket.min(BUCKETS - 1) as u8;
        let slot = match self.counts.binary_search_by_key(&bucket, |&(bucket, _)| bucket) {
            Ok(at) => &mut self.counts[at].1,
            Err(at) => {
                self.counts.insert(at, (bucket, 0));
                &mut self.counts[at].1
            }
        };
        let before = *slot;
        *slot = slot.saturating_add(count);
        self.total += u64::from(*slot - before);
    }

    /// Adds all observations of `other`.
    pub fn merge(&mut self, other: &Self) {
        for &(bucket, count) in &other.counts {
            self.add(bucket.into(), count);
        }
    }

    /// Number of observations.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The buckets that are not empty, in order.
    pub fn occupied(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.counts.iter().map(|&(bucket, count)| (bucket.into(), count))
    }

    /// As [`Histogram::quantile`].
    pub fn quantile(&self, q: f64) -> Duration {
        let occupied = self.occupied().map(|(bucket, count)| (bucket, count.into()));
        quantile(self.total, occupied, q)
    }
}

/// Median, p90, p99 and maximum of a sample in microseconds, as the `--json` of every command
/// prints them. The quantiles are exact: they are nearest ranks. All four are NaN for an empty
/// sample, and `null` in JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// The summary of an empty sample.
    pub const EMPTY: Self = Self { p50: f64::NAN, p90: f64::NAN, p99: f64::NAN, max: f64::NAN };

    /// Summarises nanoseconds, and sorts its argument.
    pub fn of_nanos(sample: &mut [i64]) -> Self {
        sample.sort_unstable();
        let us = |q| nearest_rank(sample, q).map_or(f64::NAN, |ns| ns as f64 / 1e3);
        Self { p50: us(0.5), p90: us(0.9), p99: us(0.99), max: us(1.0) }
    }

    fn bits(&self) -> [u64; 4] {
        [self.p50, self.p90, self.p99, self.max].map(f64::to_bits)
    }
}

/// Summaries of empty samples are equal.
impl PartialEq for Summary {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

/// The nearest-rank `q`-quantile of a sorted sample; `None` for an empty sample.
pub fn nearest_rank<T: Copy>(sorted: &[T], q: f64) -> Option<T> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolated_quantiles_differ_where_bucket_ends_are_equal() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.interpolated_quantile(0.5), Duration::ZERO);
        // Evenly from 1,024 us to 1,152 us, which is one bucket.
        (0..128).for_each(|us| histogram.record(Duration::from_micros(1_025 + us)));
        let us = |q| histogram.interpolated_quantile(q).as_micros();
        assert!((1_086..=1_090).contains(&us(0.5)), "{}", us(0.5));
        assert!((1_148..=1_152).contains(&us(0.99)), "{}", us(0.99));
        assert_eq!(histogram.quantile(0.5), histogram.quantile(0.99));
    }

    #[test]
    fn every_duration_lies_in_its_bucket() {
        for shift in 0..45 {
            for extra in [0u64, 1, 3, 7] {
                let d = Duration::from_nanos((1u64 << shift) + extra * (1 << shift) / 8);
                let b = Histogram::bucket(d);
                if b < BUCKETS - 1 {
                    assert!(d <= Histogram::upper_edge(b), "{d:?} in {b}");
                }
                if b > 0 && b < BUCKETS - 1 {
                    assert!(d >= Histogram::upper_edge(b - 1), "{d:?} in {b}");
                }
            }
        }
        assert_eq!(Histogram::bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth_and_merge() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        for us in 1..=1000 {
            if us % 2 == 0 { &mut a } else { &mut b }.record(Duration::from_micros(us));
        }
        a.merge(&b);
        let p90 = a.quantile(0.9).as_secs_f64() * 1e6;
        assert!((900.0..=1000.0).contains(&p90), "{p90}");
        assert_eq!(a.total(), 1000);
    }

    #[test]
    fn a_sparse_histogram_says_the_same() {
        let (mut dense, mut sparse) = (Histogram::default(), SparseHistogram::default());
        let (mut other, mut far) = (SparseHistogram::default(), 7u64);
        for i in 0..500 {
            far = far.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let d = Duration::from_nanos(far >> (34 + i % 20));
            dense.record(d);
            if i % 3 == 0 { &mut other } else { &mut sparse }.record(d);
        }
        sparse.merge(&other);
        let pairs: Vec<_> = sparse.occupied().map(|(b, n)| (b, u64::from(n))).collect();
        assert_eq!((sparse.total(), pairs), (dense.total(), dense.occupied().collect()));
        for q in [0.0, 0.25, 0.5, 0.9, 1.0] {
            assert_eq!(sparse.quantile(q), dense.quantile(q));
        }
    }

    #[test]
    fn summary_is_exact() {
        let mut sample: Vec<i64> = (1..=100).rev().map(|us| us * 1000).collect();
        let s = Summary::of_nanos(&mut sample);
        assert_eq!((s.p50, s.p90, s.p99, s.max), (50.0, 90.0, 99.0, 100.0));
        assert_eq!(Summary::of_nanos(&mut []), Summary::EMPTY);
    }
}
