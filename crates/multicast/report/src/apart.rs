//! The window of one message: the time between its first and its last receiver, by clocks that may
//! be wrong.
//!
//! A receiver states the time `x` of its release, and its clock states a bound. The true time of
//! the release lies in an interval around `x`:
//!
//! ```text
//!   receiver 1   |-------x-------|
//!   receiver 2                       |----x----|
//!                        |<--- shown ---->|
//!                        .       |<->|    .            at least: earliest end to latest beginning
//!                |<--------- at most --------->|       earliest beginning to latest end, of two
//!                                                      receivers
//! ```
//!
//! The true window of each message lies between the two limits. Each percentile of the true windows
//! therefore lies between the same percentiles of the two limits.

use serde::Serialize;

use super::sample::Sample;

/// The number of microseconds above which a window counts as infinite: 1e15 us, which are 31 years.
/// Only a clock without a bound gives a window above this limit.
const ENDLESS_US: f64 = 1e15;

/// The times of one event at several receivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    earliest_begin_ns: u64,
    earliest_end_ns: u64,
    latest_begin_ns: u64,
    latest_end_ns: u64,
    most_ns: u64,
}

impl Spread {
    pub(super) const EMPTY: Self = Self {
        first_ns: u64::MAX,
        last_ns: 0,
        earliest_begin_ns: u64::MAX,
        earliest_end_ns: u64::MAX,
        latest_begin_ns: 0,
        latest_end_ns: 0,
        most_ns: 0,
    };

    /// Adds the time of one receiver. The error of the receiver's clock is at most `bound_ns`, and
    /// `u64::MAX` stands for a clock without a bound.
    #[inline]
    pub(super) fn add(&mut self, at_ns: u64, bound_ns: u64) {
        let (begin, end) = (at_ns.saturating_sub(bound_ns), at_ns.saturating_add(bound_ns));
        // The greatest distances between the new interval and all earlier intervals. Both are zero
        // for the first interval.
        let to_the_new = end.saturating_sub(self.earliest_begin_ns);
        let from_the_new = self.latest_end_ns.saturating_sub(begin);
        self.most_ns = self.most_ns.max(to_the_new).max(from_the_new);
        self.first_ns = self.first_ns.min(at_ns);
        self.last_ns = self.last_ns.max(at_ns);
        self.earliest_begin_ns = self.earliest_begin_ns.min(begin);
        self.earliest_end_ns = self.earliest_end_ns.min(end);
        self.latest_begin_ns = self.latest_begin_ns.max(begin);
        self.latest_end_ns = self.latest_end_ns.max(end);
    }

    /// Time between the first and the last receiver, as their clocks show it.
    pub(super) fn shown_ns(&self) -> i64 {
        whole(self.last_ns.saturating_sub(self.first_ns))
    }

    /// The least and the most time that can lie between the first and the last receiver.
    fn limits_ns(&self) -> [i64; 2] {
        [whole(self.latest_begin_ns.saturating_sub(self.earliest_end_ns)), whole(self.most_ns)]
    }
}

/// A time as a signed number. Times beyond 292 years count as 292 years.
fn whole(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// Percentiles of windows in microseconds, each with its least and its greatest possible value. The
/// greatest value is infinite where a clock stated no bound. JSON has `null` for an infinite value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Between {
    /// Median.
    pub p50: [f64; 2],
    /// 90th percentile.
    pub p90: [f64; 2],
    /// 99th percentile.
    pub p99: [f64; 2],
    /// Largest value.
    pub max: [f64; 2],
}

/// Windows as the clocks show them, and their limits.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    pub(super) shown: Sample,
    /// The least and the greatest windows. `None` while both limits of every window equal the shown
    /// window. For receivers that share a clock the limits are always equal.
    limits: Option<Box<[Sample; 2]>>,
}

impl Windows {
    pub(super) fn record(&mut self, spread: &Spread) {
        let (shown, limits) = (spread.shown_ns(), spread.limits_ns());
        if self.limits.is_none() && limits != [shown; 2] {
            self.limits = Some(Box::new([self.shown.clone(), self.shown.clone()]));
        }
        for (sample, limit) in
            self.limits.iter_mut().flat_map(|samples| samples.iter_mut()).zip(limits)
        {
            sample.record(limit);
        }
        self.shown.record(shown);
    }

    pub(super) fn between(&mut self) -> Between {
        let [least, most] = match &mut self.limits {
            Some(limits) => limits.each_mut().map(Sample::summary),
            None => [self.shown.summary(); 2],
        };
        let ended = |us: f64| if us > ENDLESS_US { f64::INFINITY } else { us };
        Between {
            p50: [least.p50, ended(most.p50)],
            p90: [least.p90, ended(most.p90)],
            p99: [least.p99, ended(most.p99)],
            max: [least.max, ended(most.max)],
        }
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    fn limits(intervals: &[(u64, u64)]) -> [i64; 2] {
        let mut spread = Spread::EMPTY;
        intervals.iter().for_each(|&(at, bound)| spread.add(at, bound));
        spread.limits_ns()
    }

    #[test]
    fn limits_are_those_of_all_pairs_of_receivers() {
        let mut prng = Prng::new(3);
        for _ in 0..2_000 {
            let count = 1 + prng.below(5) as usize;
            let all: Vec<(u64, u64)> =
                (0..count).map(|_| (1_000 + prng.below(500), prng.below(200))).collect();
            let pairs = || {
                (0..count).flat_map(|i| (0..count).filter(move |&j| j != i).map(move |j| (i, j)))
            };
            let apart = |(i, j): (usize, usize), sign: i64| {
                let gap = all[i].0 as i64 - all[j].0 as i64;
                gap + sign * (all[i].1 + all[j].1) as i64
            };
            let least = pairs().map(|pair| apart(pair, -1)).max().unwrap_or(0).max(0);
            let most = pairs().map(|pair| apart(pair, 1)).max().unwrap_or(0);
            assert_eq!(limits(&all), [least, most], "{all:?}");
        }
    }

    #[test]
    fn one_receiver_is_not_apart_from_itself_however_wrong_its_clock() {
        assert_eq!(limits(&[(1_000, 900)]), [0, 0]);
        assert_eq!(limits(&[(1_000, u64::MAX)]), [0, 0]);
    }

    #[test]
    fn receivers_with_one_clock_need_no_samples_of_limits() {
        let mut windows = Windows::default();
        for last in [3_000, 4_000] {
            let mut spread = Spread::EMPTY;
            spread.add(1_000, 0);
            spread.add(last, 0);
            windows.record(&spread);
        }
        assert!(windows.limits.is_none());
        assert_eq!((windows.between().p50, windows.between().max), ([2.0; 2], [3.0; 2]));
    }

    #[test]
    fn a_clock_without_a_bound_leaves_a_window_without_a_limit() {
        assert_eq!(limits(&[(1_000, 0), (5_000, u64::MAX)]), [0, i64::MAX]);
        assert_eq!(limits(&[(5_000, u64::MAX), (1_000, 0), (1_300, 100)]), [200, i64::MAX]);
        let mut windows = Windows::default();
        for bound in [0, 0, u64::MAX] {
            let mut spread = Spread::EMPTY;
            spread.add(1_000, 0);
            spread.add(5_000, bound);
            windows.record(&spread);
        }
        let between = windows.between();
        assert_eq!((between.p50, between.max), ([4.0, 4.0], [4.0, f64::INFINITY]));
        let json = serde_json::to_value(between).expect("plain data");
        assert!(json["max"][1].is_null(), "{json}");
    }
}
