//! Samples of signed nanoseconds. A small sample is exact, and a large sample is a fine histogram.

use evenfall_core::{Summary, math, nearest_rank};

/// Values that a [`Sample`] holds exactly, in 8 MiB. A run of a million messages is exact, and a
/// run of a week still ends with bounded memory.
pub const EXACT_MAX: usize = 1 << 20;

/// Binary digits kept by the histograms of whole runs. The relative error is at most 1/256.
const RUN_DIGITS: u32 = 7;

/// Points of a CDF, at most.
pub const CDF_POINTS_MAX: usize = 400;

/// A log-linear histogram of signed nanoseconds. Its length follows from its largest value.
///
/// With `d` digits, each value below `2^d` ns has its own bucket. Each doubling above has `2^d`
/// buckets, so a bucket is at most `1 / 2^d` of its values wide.
///
/// ```text
/// bucket:  0 1 2 ... 2^d-1 | 2^d ... 2^(d+1)-1 | ...
/// width:   1 1 1 ...     1 |   1 ...         1 | 2 2 2 ... | 4 4 4 ...
/// ```
#[derive(Clone, Debug)]
pub struct Fine {
    digits: u32,
    above: Vec<u32>,
    below: Vec<u32>,
    total: u64,
    min: i64,
    max: i64,
}

impl Fine {
    /// An empty histogram that keeps this many binary digits.
    pub fn new(digits: u32) -> Self {
        let (above, below) = (Vec::new(), Vec::new());
        Self { digits, above, below, total: 0, min: i64::MAX, max: i64::MIN }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: i64) {
        let bucket = self.bucket(value.unsigned_abs());
        let side = if value < 0 { &mut self.below } else { &mut self.above };
        match side.get_mut(bucket) {
            Some(count) => *count = count.saturating_add(1),
            None => grow(side, bucket, 1),
        }
        self.total += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// How many values were counted in the bucket of this value.
    pub(super) fn count(&self, value: i64) -> u32 {
        let side = if value < 0 { &self.below } else { &self.above };
        side.get(self.bucket(value.unsigned_abs())).copied().unwrap_or(0)
    }

    /// Adds all values of `other`, which must keep equally many digits.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.digits, other.digits);
        for (mine, theirs) in [(&mut self.above, &other.above), (&mut self.below, &other.below)] {
            if mine.len() < theirs.len() {
                mine.resize(theirs.len(), 0);
            }
            for (count, more) in mine.iter_mut().zip(theirs) {
                *count = count.saturating_add(*more);
            }
        }
        self.total += other.total;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Number of values.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Quantiles for ascending `qs`, in nanoseconds; `None` when empty. The smallest and the
    /// largest value are exact. The values of a bucket are taken to lie evenly in it, so that
    /// samples of which one bucket holds much still differ.
    pub fn quantiles(&self, qs: &[f64]) -> Option<Vec<i64>> {
        if self.total == 0 {
            return None;
        }
        let first = |b: usize, sign: i64| {
            let (low, width) = self.edges(b);
            if sign < 0 { (1 - low - width, width) } else { (low, width) }
        };
        let below = self.below.iter().enumerate().rev().map(|(b, &n)| (first(b, -1), n));
        let above = self.above.iter().enumerate().map(|(b, &n)| (first(b, 1), n));
        let mut buckets = below.chain(above).filter(|&(_, n)| n > 0);
        let (mut bucket, mut count, mut seen) = ((self.min, 1), 1, 0u64);
        let quantiles = qs.iter().map(|q| {
            let rank = ((q * self.total as f64).ceil() as u64).clamp(1, self.total);
            while seen < rank {
                let Some(next) = buckets.next() else { break };
                (bucket, count) = next;
                seen += u64::from(count);
            }
            let (low, width) = bucket;
            let within = (rank + u64::from(count)).saturating_sub(seen) as f64 - 0.5;
            let value = low + (width as f64 * within / f64::from(count)) as i64;
            if rank == self.total { self.max } else { value.clamp(self.min, self.max) }
        });
        Some(quantiles.collect())
    }

    #[inline]
    fn bucket(&self, magnitude: u64) -> usize {
        let octave = (magnitude >> self.digits).checked_ilog2().unwrap_or(0);
        (u64::from(octave << self.digits) + (magnitude >> octave)) as usize
    }

    /// The smallest magnitude of a bucket, and how many magnitudes it has.
    fn edges(&self, bucket: usize) -> (i64, i64) {
        let octave = ((bucket >> self.digits) as u32).saturating_sub(1);
        let low = (bucket as u64 - u64::from(octave << self.digits)) << octave;
        (i64::try_from(low).unwrap_or(i64::MAX - (1 << octave)), 1 << octave)
    }
}

#[cold]
fn grow(side: &mut Vec<u32>, bucket: usize, count: u32) {
    // The table grows by 256 buckets at a time, so that a drifting value does not grow it bucket by
    // bucket.
    side.resize((bucket / 256 + 1) * 256, 0);
    side[bucket] = count;
}

/// A sample that is exact up to [`EXACT_MAX`] values.
#[derive(Clone, Debug)]
pub enum Sample {
    /// Every value.
    Exact(Vec<i64>),
    /// A histogram of too many values to keep.
    Many(Fine),
}

impl Default for Sample {
    fn default() -> Self {
        Self::Exact(Vec::new())
    }
}

impl Sample {
    /// A sample that keeps no single values, for statistics per copy.
    pub fn many() -> Self {
        Self::Many(Fine::new(RUN_DIGITS))
    }

    /// Adds a value.
    #[inline]
    pub fn record(&mut self, value: i64) {
        match self {
            Self::Many(fine) => fine.record(value),
            Self::Exact(values) if values.len() < EXACT_MAX => values.push(value),
            Self::Exact(values) => {
                let mut fine = Fine::new(RUN_DIGITS);
                values.iter().for_each(|&value| fine.record(value));
                fine.record(value);
                *self = Self::Many(fine);
            }
        }
    }

    /// Number of values.
    pub fn total(&self) -> u64 {
        match self {
            Self::Exact(values) => values.len() as u64,
            Self::Many(fine) => fine.total(),
        }
    }

    /// Median, p90, p99 and maximum in microseconds.
    pub fn summary(&mut self) -> Summary {
        let q = self.quantiles_us(&[0.5, 0.9, 0.99, 1.0]);
        q.map_or(Summary::EMPTY, |q| Summary { p50: q[0], p90: q[1], p99: q[2], max: q[3] })
    }

    /// Points `(microseconds, share of values at or below)`, at most [`CDF_POINTS_MAX`]. Points in
    /// the body are half a percent apart. Each further nine of the tail has equally many points.
    pub fn cdf(&mut self) -> Vec<(f64, f64)> {
        self.cdf_at(cdf_shares(self.total()))
    }

    /// The CDF with dense points at the low end, for values that are bad when they are small.
    pub fn cdf_of_low_tail(&mut self) -> Vec<(f64, f64)> {
        let mirrored = cdf_shares(self.total()).into_iter().rev().map(|share| 1.0 - share);
        self.cdf_at(mirrored.collect())
    }

    fn cdf_at(&mut self, qs: Vec<f64>) -> Vec<(f64, f64)> {
        let values = self.quantiles_us(&qs).unwrap_or_default();
        values.into_iter().zip(qs).collect()
    }

    fn quantiles_us(&mut self, qs: &[f64]) -> Option<Vec<f64>> {
        let nanos = match self {
            Self::Many(fine) => fine.quantiles(qs)?,
            Self::Exact(values) => {
                values.sort_unstable();
                qs.iter().map(|&q| nearest_rank(values, q)).collect::<Option<_>>()?
            }
        };
        Some(nanos.into_iter().map(|ns| ns as f64 / 1e3).collect())
    }
}

/// Ascending shares at which a CDF of `total` values is drawn. The last share is 1.
fn cdf_shares(total: u64) -> Vec<f64> {
    let body = (0..=180).map(|step| f64::from(step) / 200.0);
    // Thirty points for each nine, for as many nines as the sample can show.
    let nines = math::log10(total as f64).clamp(1.0, 7.0);
    let tail = (1..).map(|step| f64::from(step) / 30.0).take_while(|&nine| 1.0 + nine < nines);
    let tail = tail.map(|nine| 1.0 - 0.1 * math::pow(10.0, -nine));
    body.chain(tail).chain([1.0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::Prng;

    #[test]
    fn middle_of_a_bucket_is_within_its_error() {
        for digits in [4, 5, RUN_DIGITS] {
            let fine = Fine::new(digits);
            for shift in 0..59 {
                for extra in 0..16u64 {
                    let value = (1u64 << shift) + extra * (1 << shift) / 16;
                    let (low, width) = fine.edges(fine.bucket(value));
                    let held = low as u64..(low + width) as u64;
                    assert!(held.contains(&value), "{value} in {held:?}, {digits}");
                    assert!(width as u64 <= (value >> digits).max(1), "{value}, {digits}");
                }
            }
        }
    }

    #[test]
    fn quantiles_inside_one_bucket_differ() {
        let mut fine = Fine::new(4);
        // Evenly over one bucket of four digits, on each side of zero.
        let (low, width) = (1 << 22, 1 << 18);
        (0..256).for_each(|part| fine.record(low + width / 256 * part));
        (0..256).for_each(|part| fine.record(-low - width / 256 * part));
        let quantiles = fine.quantiles(&[0.25, 0.6, 0.75, 0.99, 1.0]).unwrap();
        assert_eq!(quantiles, [-4_325_887, 4_247_040, 4_324_864, 4_450_816, 4_455_424]);
    }

    #[test]
    fn buckets_ascend_without_holes() {
        let fine = Fine::new(4);
        let mut last = 0;
        for value in 0..100_000 {
            let bucket = fine.bucket(value);
            assert!(bucket == last || bucket == last + 1, "{value}");
            last = bucket;
        }
    }

    #[test]
    fn histogram_agrees_with_the_sorted_sample() {
        let mut prng = Prng::new(5);
        let (mut exact, mut many) = (Sample::default(), Sample::many());
        for _ in 0..50_000 {
            let value = (prng.normal() * 80_000.0 + 50_000.0) as i64;
            exact.record(value);
            many.record(value);
        }
        for (a, b) in exact.cdf().into_iter().zip(many.cdf()) {
            assert!((a.0 - b.0).abs() <= a.0.abs() / 200.0 + 0.05, "{a:?} {b:?}");
        }
        let (a, b) = (exact.summary(), many.summary());
        assert_eq!(a.max, b.max, "the ends are exact");
    }

    #[test]
    fn merging_is_as_if_all_were_recorded_in_one() {
        let (mut a, mut b, mut both) = (Fine::new(5), Fine::new(5), Fine::new(5));
        for value in -500..5_000i64 {
            if value % 3 == 0 { &mut a } else { &mut b }.record(value * 7);
            both.record(value * 7);
        }
        a.merge(&b);
        assert_eq!(a.quantiles(&[0.0, 0.3, 0.9, 1.0]), both.quantiles(&[0.0, 0.3, 0.9, 1.0]));
    }

    #[test]
    fn cdf_ascends_and_keeps_its_limit() {
        for total in [0, 1, 10, 1_000, 10_000_000, u64::MAX] {
            let shares = cdf_shares(total);
            assert!(shares.len() <= CDF_POINTS_MAX && shares.is_sorted(), "{total}");
        }
        assert!(Sample::default().cdf().is_empty());
        let mut sample = Sample::Exact((0..100_000).collect());
        let low = sample.cdf_of_low_tail();
        assert!(low.is_sorted() && low.len() <= CDF_POINTS_MAX);
        assert!(low.iter().filter(|point| point.1 > 0.0 && point.1 < 0.001).count() > 20);
    }

    #[test]
    fn sample_past_its_limit_keeps_counting() {
        let mut sample = Sample::default();
        for value in 0..EXACT_MAX as i64 + 10 {
            sample.record(value);
        }
        assert_eq!(sample.total(), EXACT_MAX as u64 + 10);
        assert!(matches!(sample, Sample::Many(_)));
    }
}
