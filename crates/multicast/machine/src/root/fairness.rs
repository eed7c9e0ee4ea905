//! How even deliveries are while the feed runs: sums over sampled frames, since the start and over
//! the last seconds.
//!
//! Receivers report the arrival of every sampled frame, and the release of some of them. The root
//! knows the deadline. So the root has, without any log, the figures that a report has afterwards:
//!
//! ```text
//!  sent          first arrival  last arrival        deadline  first release  last release
//!   |------------------|-------------|------------------|----------|--------------|----> time
//!   |<------------- OML ------------>|                  |<---- release lateness ->|
//!   |<------------------ hold -------------------------->|          |<-- window -->|
//! ```
//!
//! Frames without messages, which rehearse, do not count. The window is no better than the clocks
//! of the receivers, whose bounds stand beside it.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::{Histogram, Timestamp};

use crate::control::ReleaseSpread;

/// A span whose sums are kept apart.
const SLOT: Duration = Duration::from_secs(1);
/// Spans that are kept: the last ten seconds and the present second.
const SLOTS_MAX: usize = 11;

/// A histogram of durations, with their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// The counts by bucket.
    pub counts: Histogram,
    /// Sum of all durations, ns. It saturates.
    pub sum_ns: u64,
}

impl DurationCounts {
    fn record(&mut self, ns: u32) {
        self.counts.record(Duration::from_nanos(ns.into()));
        self.sum_ns = self.sum_ns.saturating_add(ns.into());
    }

    fn merge(&mut self, other: &Self) {
        self.counts.merge(&other.counts);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// Sums over sampled frames of one span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FairnessSums {
    /// Messages of frames with a deadline of which it is known whether they were in time at every
    /// receiver.
    pub judged: u64,
    /// Messages among them that were late at one receiver or more, or missing there.
    pub late: u64,
    /// From the root's send time to the last arrival: the overall multicast latency (OML).
    pub oml: DurationCounts,
    /// From the first release of a frame to the last one.
    pub window: DurationCounts,
    /// From the deadline of a frame to its last release.
    pub lateness: DurationCounts,
}

impl FairnessSums {
    /// Share of judged messages that reached every receiver in time, P(F). `None` when no message
    /// was judged.
    pub fn on_time_share(&self) -> Option<f64> {
        (self.judged > 0).then(|| 1.0 - self.late as f64 / self.judged as f64)
    }

    fn merge(&mut self, other: &Self) {
        self.judged += other.judged;
        self.late += other.late;
        self.oml.merge(&other.oml);
        self.window.merge(&other.window);
        self.lateness.merge(&other.lateness);
    }
}

/// The sums since the start, and those of the last seconds.
#[derive(Clone, Debug, Default)]
pub struct LiveFairness {
    total: FairnessSums,
    /// The latest spans and when each began, the oldest first.
    slots: VecDeque<(Timestamp, FairnessSums)>,
}

impl LiveFairness {
    /// The sums since this root began to lead.
    pub fn total(&self) -> &FairnessSums {
        &self.total
    }

    /// The sums of the last `span`, which is rounded up to whole seconds and is ten seconds at
    /// most.
    pub fn sums_of_last(&self, now: Timestamp, span: Duration) -> FairnessSums {
        let mut sums = FairnessSums::default();
        let recent = self.slots.iter().filter(|(began, _)| now.since(*began) < span + SLOT);
        recent.for_each(|(_, slot)| sums.merge(slot));
        sums
    }

    /// Adds to the sums since the start and to those of the present second.
    fn note(&mut self, now: Timestamp, add: impl Fn(&mut FairnessSums)) {
        if self.slots.back().is_none_or(|(began, _)| now.since(*began) >= SLOT) {
            self.slots.push_back((now, FairnessSums::default()));
            if self.slots.len() > SLOTS_MAX {
                self.slots.pop_front();
            }
        }
        add(&mut self.total);
        if let Some((_, slot)) = self.slots.back_mut() {
            add(slot);
        }
    }

    /// The arrivals of a frame are known. `late` is `None` for a frame that was not held.
    pub(super) fn note_arrival(
        &mut self,
        now: Timestamp,
        messages: u16,
        latest_ns: u32,
        late: Option<bool>,
    ) {
        if messages == 0 {
            return;
        }
        self.note(now, |sums| {
            sums.judged += late.map_or(0, |_| messages.into());
            sums.late += if late == Some(true) { messages.into() } else { 0 };
            if latest_ns > 0 {
                sums.oml.record(latest_ns);
            }
        });
    }

    /// A frame that looked in time was late after all.
    pub(super) fn note_late(&mut self, now: Timestamp, messages: u16) {
        self.total.late += u64::from(messages);
        // The frame may have been judged in an earlier second, so the sum of this second alone
        // could have more late messages than judged ones.
        self.note(now, |_| {});
        if let Some((_, slot)) = self.slots.back_mut() {
            slot.late = slot.judged.min(slot.late + u64::from(messages));
        }
    }

    /// The releases of a frame are known.
    pub(super) fn note_releases(
        &mut self,
        now: Timestamp,
        hold_ns: Option<u32>,
        spread: &ReleaseSpread,
    ) {
        self.note(now, |sums| {
            sums.window.record(spread.latest_ns.saturating_sub(spread.earliest_ns));
            if let Some(hold_ns) = hold_ns {
                sums.lateness.record(spread.latest_ns.saturating_sub(hold_ns));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos((1 << 40) + ms * 1_000_000)
    }

    #[test]
    fn the_last_ten_seconds_forget_what_the_start_remembers() {
        let mut fairness = LiveFairness::default();
        fairness.note_arrival(at(0), 3, 150_000, Some(true));
        for second in 1..20 {
            fairness.note_arrival(at(second * 1_000), 1, 100_000, Some(false));
        }
        let now = at(19_500);
        assert_eq!((fairness.total().judged, fairness.total().late), (22, 3));
        let recent = fairness.sums_of_last(now, Duration::from_secs(10));
        assert_eq!((recent.judged, recent.on_time_share()), (11, Some(1.0)));
        assert_eq!(fairness.sums_of_last(now, Duration::from_secs(1)).judged, 2);
        assert_eq!(
            fairness.sums_of_last(at(60_000), Duration::from_secs(10)).on_time_share(),
            None
        );
    }

    #[test]
    fn window_and_lateness_come_from_releases_and_rehearsals_do_not_count() {
        let mut fairness = LiveFairness::default();
        fairness.note_arrival(at(0), 0, 150_000, Some(true));
        assert_eq!(*fairness.total(), FairnessSums::default());
        let spread =
            ReleaseSpread { sequence: 4, earliest_ns: 233_000, latest_ns: 240_000, receivers: 9 };
        fairness.note_releases(at(0), Some(232_000), &spread);
        fairness.note_releases(at(0), None, &spread);
        let FairnessSums { window, lateness, .. } = fairness.total();
        assert_eq!((window.sum_ns, window.counts.total()), (14_000, 2));
        assert_eq!((lateness.sum_ns, lateness.counts.total()), (8_000, 1));
    }

    #[test]
    fn a_frame_that_turns_out_late_later_is_counted_once() {
        let mut fairness = LiveFairness::default();
        fairness.note_arrival(at(0), 2, 100_000, Some(false));
        fairness.note_late(at(5), 2);
        assert_eq!(fairness.total().on_time_share(), Some(0.0));
        assert_eq!(fairness.sums_of_last(at(5), Duration::from_secs(1)).late, 2);
    }
}
