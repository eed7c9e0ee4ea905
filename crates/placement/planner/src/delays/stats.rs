//! The statistics of one ordered pair.

use evenfall_core::math;
use serde::{Deserialize, Deserializer, Serialize};

/// A statistic by name, as strategies write it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DelayStatistic {
    /// 25th percentile, microseconds.
    P25,
    /// Median, microseconds.
    P50,
    /// 75th percentile, microseconds.
    P75,
    /// 90th percentile, microseconds.
    P90,
    /// 99th percentile, microseconds.
    P99,
    /// Mean, microseconds.
    Mean,
    /// Standard deviation, microseconds.
    Stddev,
    /// Share of probes that did not arrive, 0 to 1.
    Loss,
}

impl DelayStatistic {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("p25", Self::P25),
        ("p50", Self::P50),
        ("p75", Self::P75),
        ("p90", Self::P90),
        ("p99", Self::P99),
        ("mean", Self::Mean),
        ("stddev", Self::Stddev),
        ("loss", Self::Loss),
    ];

    /// The name that strategies use.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }
}

/// Statistics of the one-way delays from one host to another in microseconds, over the probes that
/// arrived. Statistics that were not measured are `NaN` (in JSON `null`).
///
/// Values have single precision, because a pool of 1,500 hosts has 2.25 million of these records,
/// and no clock of a cloud is exact to seven digits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EdgeStats {
    /// 25th percentile.
    #[serde(deserialize_with = "or_nan")]
    pub p25_us: f32,
    /// Median.
    #[serde(deserialize_with = "or_nan")]
    pub p50_us: f32,
    /// 75th percentile.
    #[serde(deserialize_with = "or_nan")]
    pub p75_us: f32,
    /// 90th percentile.
    #[serde(deserialize_with = "or_nan")]
    pub p90_us: f32,
    /// 99th percentile.
    #[serde(deserialize_with = "or_nan")]
    pub p99_us: f32,
    /// Mean.
    #[serde(deserialize_with = "or_nan")]
    pub mean_us: f32,
    /// Standard deviation.
    #[serde(deserialize_with = "or_nan")]
    pub stddev_us: f32,
    /// Share of probes that did not arrive, 0 to 1.
    pub loss: f32,
    /// Bound on the error of the delays that comes from the two clocks, in microseconds. 0 when
    /// both hosts share a clock, `NaN` when the clocks state no bound.
    #[serde(deserialize_with = "or_nan")]
    pub clock_error_us: f32,
    /// Probes that arrived; 0 when not stated.
    pub count: u32,
}

fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Option::<f32>::deserialize(from).map(|value| value.unwrap_or(f32::NAN))
}

impl PartialEq for EdgeStats {
    /// Compares bit by bit, so that a missing statistic (`NaN`) equals itself.
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (f32, f32)| a == b || (a.is_nan() && b.is_nan());
        self.count == other.count && self.values().into_iter().zip(other.values()).all(same)
    }
}

impl EdgeStats {
    /// Statistics of which none was measured.
    pub const UNKNOWN: Self = Self {
        p25_us: f32::NAN,
        p50_us: f32::NAN,
        p75_us: f32::NAN,
        p90_us: f32::NAN,
        p99_us: f32::NAN,
        mean_us: f32::NAN,
        stddev_us: f32::NAN,
        loss: 0.0,
        clock_error_us: 0.0,
        count: 0,
    };

    /// Statistics of a constant delay.
    pub fn constant(owd_us: f64) -> Self {
        let us = owd_us as f32;
        Self {
            p25_us: us,
            p50_us: us,
            p75_us: us,
            p90_us: us,
            p99_us: us,
            mean_us: us,
            stddev_us: 0.0,
            ..Self::UNKNOWN
        }
    }

    /// Statistics of the probes that arrived, out of `sent`; sorts its argument. Percentiles are
    /// nearest ranks. `None` when none arrived.
    pub fn from_samples(owd_us: &mut [f32], sent: u32) -> Option<Self> {
        owd_us.sort_unstable_by(f32::total_cmp);
        let at = |q| evenfall_core::nearest_rank(owd_us, q);
        let count = owd_us.len() as f64;
        let mean = owd_us.iter().map(|&us| f64::from(us)).sum::<f64>() / count;
        let square = |&us: &f32| math::square(f64::from(us) - mean);
        let variance = owd_us.iter().map(square).sum::<f64>() / count;
        Some(Self {
            p25_us: at(0.25)?,
            p50_us: at(0.5)?,
            p75_us: at(0.75)?,
            p90_us: at(0.9)?,
            p99_us: at(0.99)?,
            mean_us: mean as f32,
            stddev_us: variance.sqrt() as f32,
            loss: (1.0 - count / f64::from(sent.max(1))).max(0.0) as f32,
            clock_error_us: 0.0,
            count: u32::try_from(owd_us.len()).unwrap_or(u32::MAX),
        })
    }

    /// A statistic by name; `NaN` when it was not measured.
    pub fn field(&self, field: DelayStatistic) -> f32 {
        match field {
            DelayStatistic::P25 => self.p25_us,
            DelayStatistic::P50 => self.p50_us,
            DelayStatistic::P75 => self.p75_us,
            DelayStatistic::P90 => self.p90_us,
            DelayStatistic::P99 => self.p99_us,
            DelayStatistic::Mean => self.mean_us,
            DelayStatistic::Stddev => self.stddev_us,
            DelayStatistic::Loss => self.loss,
        }
    }

    fn values(&self) -> [f32; 9] {
        let [a, b, c, d, e, f, g, h] = DelayStatistic::ALL.map(|(_, field)| self.field(field));
        [a, b, c, d, e, f, g, h, self.clock_error_us]
    }

    pub(super) fn from_values(values: [f32; 9], count: u32) -> Self {
        let [p25_us, p50_us, p75_us, p90_us, p99_us, mean_us, stddev_us, loss, clock_error_us] =
            values;
        Self {
            p25_us,
            p50_us,
            p75_us,
            p90_us,
            p99_us,
            mean_us,
            stddev_us,
            loss,
            clock_error_us,
            count,
        }
    }

    /// Combines repeats of one measurement: the median of every statistic, so that one bad run
    /// among several does not count, and the sum of the probes. Returns `None` for an empty list.
    pub fn median_of(repeats: &[Self]) -> Option<Self> {
        let median = |i: usize| {
            let mut values: Vec<f32> = repeats.iter().map(|stats| stats.values()[i]).collect();
            values.retain(|value| !value.is_nan());
            values.sort_unstable_by(f32::total_cmp);
            let n = values.len();
            if n == 0 { f32::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
        };
        let count = repeats.iter().fold(0, |sum: u32, stats| sum.saturating_add(stats.count));
        (!repeats.is_empty()).then(|| Self::from_values(core::array::from_fn(median), count))
    }

    /// Combines consecutive rounds of one measurement, each weighted by its received probes. Mean
    /// and standard deviation are exact. Percentiles are averages over the rounds, and the loss
    /// assumes rounds of equal length. Returns `None` for an empty list.
    pub fn mean_of(rounds: &[Self]) -> Option<Self> {
        let weight = |stats: &Self| f64::from(stats.count.max(1));
        let total: f64 = rounds.iter().map(weight).sum();
        let average = |value: &dyn Fn(&Self) -> f64| {
            rounds.iter().map(|stats| value(stats) * weight(stats)).sum::<f64>() / total
        };
        let mean = average(&|stats| f64::from(stats.mean_us));
        let variance = average(&|stats| {
            math::square(f64::from(stats.stddev_us)) + math::square(f64::from(stats.mean_us) - mean)
        });
        let value = |i: usize| average(&|stats| f64::from(stats.values()[i])) as f32;
        let mut values: [f32; 9] = core::array::from_fn(value);
        if !mean.is_nan() {
            values[6] = variance.sqrt() as f32;
        }
        values[7] = rounds.iter().map(|s| s.loss).sum::<f32>() / rounds.len().max(1) as f32;
        let worse = |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) };
        values[8] = rounds.iter().map(|s| s.clock_error_us).fold(0.0, worse);
        let count = rounds.iter().fold(0, |sum: u32, stats| sum.saturating_add(stats.count));
        (!rounds.is_empty()).then(|| Self::from_values(values, count))
    }

    /// The delay below which this share of the *arrived* probes lies, by straight lines between the
    /// measured percentiles; `None` when the median is not known.
    ///
    /// Below the 25th percentile the line continues with the same slope, down to 0. Beyond the last
    /// known percentile the tail is an exponential through the last two percentiles. The tail ends
    /// at the 99th percentile, because slower probes are too rare to have been measured.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        Some(crate::curve::Curve::of(self)?.at(share))
    }

    /// The statistics with lost probes counted as infinitely late. Percentiles are then those of
    /// all *sent* probes, so a loss of 12 % makes the 90th percentile infinite. A loss of half
    /// makes the edge useless.
    pub fn counting_loss(&self) -> Self {
        if self.loss <= 0.0 {
            return *self;
        }
        let arrived = 1.0 - f64::from(self.loss);
        let curve = crate::curve::Curve::of(self);
        let late = |share: f64, known: f32| match &curve {
            _ if known.is_nan() => f32::NAN,
            _ if share >= arrived => f32::INFINITY,
            Some(curve) => (curve.at(share / arrived) as f32).max(known),
            None => known,
        };
        Self {
            p25_us: late(0.25, self.p25_us),
            p50_us: late(0.5, self.p50_us),
            p75_us: late(0.75, self.p75_us),
            p90_us: late(0.9, self.p90_us),
            p99_us: late(0.99, self.p99_us),
            ..*self
        }
    }

    /// The first flaw of these numbers, if there is one: no median, a percentile that is not
    /// positive or is below a lower percentile, or a loss outside 0 to 1.
    pub fn flaw(&self) -> Option<String> {
        let percentiles = &DelayStatistic::ALL[..5];
        let mut last = 0.0;
        for (name, field) in percentiles {
            let value = self.field(*field);
            if value.is_nan() {
                continue;
            }
            if value <= 0.0 || value.is_infinite() {
                return Some(format!("{name} is {value}, a delay is above 0"));
            }
            if value < last {
                return Some(format!("{name} is {value}, below the percentile before it"));
            }
            last = value;
        }
        if self.p50_us.is_nan() {
            return Some("there is no median".into());
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Some(format!("loss is {}, it must be 0 to 1", self.loss));
        }
        let spread = [("mean", self.mean_us), ("stddev", self.stddev_us)];
        let bad = spread.into_iter().find(|(_, value)| *value < 0.0 || value.is_infinite());
        bad.map(|(name, value)| format!("{name} is {value}"))
    }
}
