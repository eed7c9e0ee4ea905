//! Delays of one ordered pair of hosts, summed up at the receiver.

use core::time::Duration;

use evenfall_core::{ClockError, Histogram, SparseHistogram};
use serde::Serialize;

use evenfall_placement_planner::delays::EdgeStats;

/// Smallest delay that is reported, in nanoseconds. Light takes longer through a rack.
const DELAY_NS_MIN: f64 = 100.0;

/// The results of the probes from one host to another: sums that can be merged, and the error bound
/// of the two clocks behind them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelayRecord {
    /// Number of probes by delay. Delays below zero are in the first bucket.
    pub histogram: SparseHistogram,
    /// Mean, ns.
    pub mean_ns: f64,
    /// Sum of squared distances from the mean, ns^2.
    pub squares_ns2: f64,
    /// Shortest delay, ns. A delay is below zero when the clocks differ by more than the delay.
    pub min_ns: i64,
    /// Longest, ns.
    pub max_ns: i64,
    /// Bound on the error of each of these delays: the sum of the error bounds of both clocks.
    pub error: ClockError,
}

/// The percentiles that strategies know, in microseconds, with loss and count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DelayFigures {
    /// 25th percentile.
    pub p25_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 75th percentile.
    pub p75_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stddev_us: f64,
    /// Bound on the clock error of each figure in microseconds; `None` when the clocks state no
    /// bound.
    pub clock_error_us: Option<f64>,
    /// Probes that arrived.
    pub count: u64,
}

impl DelayFigures {
    /// These figures as the statistics of an edge that loses the share `loss` of its probes.
    pub fn edge(&self, loss: f64) -> EdgeStats {
        EdgeStats {
            p25_us: self.p25_us as f32,
            p50_us: self.p50_us as f32,
            p75_us: self.p75_us as f32,
            p90_us: self.p90_us as f32,
            p99_us: self.p99_us as f32,
            mean_us: self.mean_us as f32,
            stddev_us: self.stddev_us as f32,
            loss: loss as f32,
            clock_error_us: self.clock_error_us.map_or(f32::NAN, |us| us as f32),
            count: u32::try_from(self.count).unwrap_or(u32::MAX),
        }
    }
}

impl DelayRecord {
    /// Counts one probe.
    pub fn record(&mut self, delay_ns: i64, error: ClockError) {
        let first = self.histogram.total() == 0;
        self.histogram.record(Duration::from_nanos(delay_ns.max(0) as u64));
        // Welford's method, which avoids the cancellation of a plain sum of squares.
        let delta = delay_ns as f64 - self.mean_ns;
        self.mean_ns += delta / self.histogram.total() as f64;
        self.squares_ns2 += delta * (delay_ns as f64 - self.mean_ns);
        self.min_ns = if first { delay_ns } else { self.min_ns.min(delay_ns) };
        self.max_ns = if first { delay_ns } else { self.max_ns.max(delay_ns) };
        self.error = if first { error } else { worse(self.error, error) };
    }

    /// Adds the probes of another record of the same pair.
    pub fn merge(&mut self, other: &Self) {
        if other.count() == 0 {
            return;
        }
        if self.count() == 0 {
            *self = other.clone();
            return;
        }
        let (mine, theirs) = (self.count() as f64, other.count() as f64);
        let delta = other.mean_ns - self.mean_ns;
        self.mean_ns += delta * theirs / (mine + theirs);
        self.squares_ns2 += other.squares_ns2 + delta * delta * mine * theirs / (mine + theirs);
        self.histogram.merge(&other.histogram);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.error = worse(self.error, other.error);
    }

    /// Probes that arrived.
    pub fn count(&self) -> u64 {
        self.histogram.total()
    }

    /// Standard deviation, ns.
    pub fn stddev_ns(&self) -> f64 {
        (self.squares_ns2 / (self.count().saturating_sub(1).max(1)) as f64).max(0.0).sqrt()
    }

    /// The bound on the error of each delay; `None` when the clocks state no bound.
    pub fn bound(&self) -> Option<Duration> {
        match self.error {
            ClockError::SameClock => Some(Duration::ZERO),
            ClockError::Within(bound) => Some(bound),
            ClockError::Unknown | ClockError::Disproved => None,
        }
    }

    /// A delay that is impossible: below zero by more than the clocks may differ. Where no bound is
    /// known, a mean below zero.
    pub fn impossible_ns(&self) -> Option<i64> {
        match self.bound() {
            _ if self.count() == 0 => None,
            Some(bound) => {
                let allowed = i64::try_from(bound.as_nanos()).unwrap_or(i64::MAX);
                (self.min_ns < -allowed).then_some(self.min_ns)
            }
            None => (self.mean_ns < 0.0).then_some(self.mean_ns as i64),
        }
    }

    /// The q-quantile in ns: the upper edge of its bucket, and at most the longest delay seen. The
    /// result is at least 100 ns, because a delay may look like zero or less within the clocks'
    /// error.
    pub fn quantile_ns(&self, q: f64) -> f64 {
        let edge = self.histogram.quantile(q).as_nanos() as f64;
        edge.min(self.max_ns.max(0) as f64).max(DELAY_NS_MIN)
    }

    /// The buckets that are not empty: the shortest and the longest delay that each can hold, ns,
    /// and its count. No bucket reaches beyond the delays that were seen.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, f64, u32)> + '_ {
        let (least, most) = (self.min_ns.max(0) as f64, self.max_ns.max(0) as f64);
        self.histogram.occupied().map(move |(bucket, count)| {
            let edge = |bucket| Histogram::upper_edge(bucket).as_nanos() as f64;
            let low = bucket.checked_sub(1).map_or(0.0, edge);
            (low.clamp(least, most), edge(bucket).clamp(least, most), count)
        })
    }

    /// The q-quantile in ns, as if the delays of a bucket were spread evenly over it. The result is
    /// at least 100 ns, as that of [`quantile_ns`](Self::quantile_ns).
    pub fn quantile_between_ns(&self, q: f64) -> f64 {
        let rank = q * self.count() as f64;
        let mut below = 0.0;
        for (low, high, count) in self.buckets() {
            let count = f64::from(count);
            if below + count >= rank {
                let within = ((rank - below) / count).clamp(0.0, 1.0);
                return (low + (high - low) * within).max(DELAY_NS_MIN);
            }
            below += count;
        }
        (self.max_ns.max(0) as f64).max(DELAY_NS_MIN)
    }

    /// The statistics of the edge; `None` when no probe arrived. `sent` is the sender's count of
    /// probes.
    pub fn edge(&self, sent: u64) -> Option<EdgeStats> {
        if self.count() == 0 {
            return None;
        }
        let us = |q| (self.quantile_ns(q) / 1e3) as f32;
        Some(EdgeStats {
            p25_us: us(0.25),
            p50_us: us(0.5),
            p75_us: us(0.75),
            p90_us: us(0.9),
            p99_us: us(0.99),
            mean_us: (self.mean_ns.max(DELAY_NS_MIN) / 1e3) as f32,
            stddev_us: (self.stddev_ns() / 1e3) as f32,
            loss: (1.0 - self.count() as f64 / sent.max(1) as f64).max(0.0) as f32,
            clock_error_us: self.bound().map_or(f32::NAN, |bound| bound.as_nanos() as f32 / 1e3),
            count: u32::try_from(self.count()).unwrap_or(u32::MAX),
        })
    }

    /// The figures that reports print. Percentiles are interpolated, because trees are compared
    /// whose delays differ by less than a bucket.
    pub fn figures(&self) -> DelayFigures {
        let us = |q| self.quantile_between_ns(q) / 1e3;
        DelayFigures {
            p25_us: us(0.25),
            p50_us: us(0.5),
            p75_us: us(0.75),
            p90_us: us(0.9),
            p99_us: us(0.99),
            mean_us: self.mean_ns / 1e3,
            stddev_us: self.stddev_ns() / 1e3,
            clock_error_us: self.bound().map(|bound| bound.as_nanos() as f64 / 1e3),
            count: self.count(),
        }
    }
}

/// The error of a delay between two clocks.
pub fn between(sender: ClockError, receiver: ClockError) -> ClockError {
    match (sender, receiver) {
        (ClockError::SameClock, ClockError::SameClock) => ClockError::SameClock,
        (ClockError::Within(a), ClockError::Within(b)) => ClockError::Within(a + b),
        // One host states that both share a clock, and the other host does not.
        _ => ClockError::Unknown,
    }
}

/// The worse of two errors.
fn worse(a: ClockError, b: ClockError) -> ClockError {
    match (a, b) {
        (ClockError::SameClock, other) | (other, ClockError::SameClock) => other,
        (ClockError::Within(a), ClockError::Within(b)) => ClockError::Within(a.max(b)),
        _ => ClockError::Unknown,
    }
}
