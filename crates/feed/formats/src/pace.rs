//! When each message of a replay is due.
//!
//! A replay that waits for a slow sender hides the delays that it should measure. The schedule
//! therefore knows nothing of the sender. A due time follows from the messages alone, never moves
//! and never slows. A sender that falls behind sends late, and its latency counts from the due
//! time.

use crate::source::FeedMessage;
use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

/// The rule for due times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PaceMode {
    /// By the messages' own times. A speed of 2 takes half the time.
    OwnTimes {
        /// Factor by which the recording is sped up, above zero.
        speed: f64,
        /// Longest silence between two messages. Longer silences are cut to it, so a capture of a
        /// weekend replays in seconds and its bursts stay as they were. `Duration::MAX` cuts
        /// nothing.
        silence: Duration,
    },
    /// At a steady rate.
    Rate {
        /// Messages per second, above zero.
        messages_per_s: f64,
    },
}

/// A speed or rate that gives no schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceError(
    /// The mode that was asked for.
    pub PaceMode,
);

impl fmt::Display for PaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, value) = match self.0 {
            PaceMode::OwnTimes { speed, .. } => ("speed", speed),
            PaceMode::Rate { messages_per_s } => ("rate", messages_per_s),
        };
        write!(f, "a replay {what} of {value}: give a finite number above zero")
    }
}

impl std::error::Error for PaceError {}

/// The schedule of one replay. The schedule starts with the due time of the first message.
#[derive(Clone, Debug)]
pub struct Pace {
    mode: PaceMode,
    first: Option<(u64, u64)>,
    last: Duration,
    /// Silence that has been cut so far.
    cut: Duration,
}

impl Pace {
    /// A schedule.
    ///
    /// # Errors
    /// A speed or rate that is not a finite number above zero.
    pub fn new(mode: PaceMode) -> Result<Self, PaceError> {
        let (PaceMode::OwnTimes { speed: value, .. } | PaceMode::Rate { messages_per_s: value }) =
            mode;
        if !value.is_finite() || value <= 0.0 {
            return Err(PaceError(mode));
        }
        Ok(Self { mode, first: None, last: Duration::ZERO, cut: Duration::ZERO })
    }

    /// When this message is due, from the start of the replay. The caller asks once per message, in
    /// order.
    ///
    /// A message whose own time is before its predecessor's is due together with the predecessor.
    /// Captures of two channels cross by microseconds, and order is more important than time. A due
    /// time beyond the range of `Duration` stays at the largest value.
    pub fn due(&mut self, message: &FeedMessage) -> Duration {
        let (first_index, first_ns) = *self.first.get_or_insert((message.index, message.time_ns));
        let due_at = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let due = match self.mode {
            PaceMode::OwnTimes { speed, silence } => {
                let uncut = due_at(message.time_ns.saturating_sub(first_ns) as f64 / (speed * 1e9));
                let due = uncut.saturating_sub(self.cut);
                let longest = self.last.saturating_add(silence);
                self.cut += due.saturating_sub(longest);
                due.min(longest)
            }
            PaceMode::Rate { messages_per_s } => {
                due_at(message.index.saturating_sub(first_index) as f64 / messages_per_s)
            }
        };
        self.last = self.last.max(due);
        self.last
    }
}

/// The gaps between the messages of a feed, from which the longest silence to keep is computed.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    last_ns: Option<u64>,
    /// Gaps and their sum in nanoseconds, by length: eight classes per doubling.
    by_length: BTreeMap<u32, (u64, u128)>,
}

impl Gaps {
    /// Takes the time of the next message of the feed.
    pub fn push(&mut self, time_ns: u64) {
        let last = *self.last_ns.get_or_insert(time_ns);
        let gap = time_ns.saturating_sub(last);
        self.last_ns = Some(time_ns.max(last));
        if gap > 0 {
            // The class is the position of the leading bit and the three bits below it.
            let shift = gap.ilog2().saturating_sub(3);
            let (count, sum) =
                self.by_length.entry(shift << 4 | (gap >> shift) as u32).or_default();
            *count += 1;
            *sum += u128::from(gap);
        }
    }

    /// From the first message to the last.
    pub fn span(&self) -> Duration {
        self.span_cut_to(u64::MAX)
    }

    /// The longest silence with which the feed takes no longer than `span`, to about an eighth.
    /// `Duration::MAX` when the feed is short enough already.
    pub fn silence_for(&self, span: Duration) -> Duration {
        if self.span() <= span {
            return Duration::MAX;
        }
        let (mut fits, mut too_long) = (0, u64::MAX);
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            let place = if self.span_cut_to(middle) <= span { &mut fits } else { &mut too_long };
            *place = middle;
        }
        Duration::from_nanos(fits)
    }

    fn span_cut_to(&self, silence_ns: u64) -> Duration {
        // All gaps of a class count with the mean of the class.
        let cut =
            |(count, sum): &(u64, u128)| (*sum).min(u128::from(*count) * u128::from(silence_ns));
        let sum: u128 = self.by_length.values().map(cut).sum();
        Duration::from_nanos(u64::try_from(sum).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(index: u64, time_ns: u64) -> FeedMessage {
        FeedMessage { index, time_ns, bytes: Bytes::new(), ..FeedMessage::default() }
    }

    fn own_times(speed: f64) -> PaceMode {
        PaceMode::OwnTimes { speed, silence: Duration::MAX }
    }

    #[test]
    fn silences_are_cut_and_bursts_stay_as_they_were() {
        let times = [0, 3, 5, 1_000_000, 1_000_002, 900_000, 1_000_010, 9_000_000];
        let silence = Duration::from_nanos(100);
        let mut pace = Pace::new(PaceMode::OwnTimes { speed: 1.0, silence }).unwrap();
        let mut due = Vec::new();
        for (index, time_ns) in (0..).zip(times) {
            due.push(pace.due(&message(index, time_ns)).as_nanos());
        }
        assert_eq!(due, [0, 3, 5, 105, 107, 107, 115, 215]);
    }

    #[test]
    fn the_silence_that_fits_is_found() {
        let mut prng = evenfall_core::Prng::new(1);
        let (mut gaps, mut times, mut now) = (Gaps::default(), Vec::new(), 0);
        for _ in 0..10_000 {
            now += prng.exponential(1e6) as u64 * if prng.chance(0.01) { 1_000 } else { 1 };
            gaps.push(now);
            times.push(now);
        }
        assert_eq!(gaps.span().as_nanos(), u128::from(now - times[0]));
        assert_eq!(gaps.silence_for(gaps.span()), Duration::MAX);
        for span in [1, 5, 12].map(Duration::from_secs) {
            let silence = gaps.silence_for(span);
            let mut pace = Pace::new(PaceMode::OwnTimes { speed: 1.0, silence }).unwrap();
            let due = (0..).zip(&times).map(|(index, at)| pace.due(&message(index, *at))).last();
            let took = due.unwrap().as_secs_f64() / span.as_secs_f64();
            assert!((0.98..1.02).contains(&took), "{span:?} became {due:?}");
        }
    }

    #[test]
    fn own_times_are_scaled_and_never_go_back() {
        let mut pace = Pace::new(own_times(2.0)).unwrap();
        let times = [5_000, 7_000, 6_000, 9_000, 4_000];
        let due: Vec<u128> = (0..)
            .zip(times)
            .map(|(index, time_ns)| pace.due(&message(index, time_ns)).as_nanos())
            .collect();
        assert_eq!(due, [0, 1_000, 1_000, 2_000, 2_000]);
    }

    #[test]
    fn a_rate_counts_from_the_first_message_asked_about() {
        let mut pace = Pace::new(PaceMode::Rate { messages_per_s: 1_000.0 }).unwrap();
        assert_eq!(pace.due(&message(10, 0)), Duration::ZERO);
        assert_eq!(pace.due(&message(2_010, 0)), Duration::from_secs(2));
    }

    #[test]
    fn a_day_of_nanoseconds_keeps_its_microseconds() {
        let mut pace = Pace::new(own_times(1.0)).unwrap();
        pace.due(&message(0, 1_577_700_000_000_000_000));
        let due = pace.due(&message(1, 1_577_700_000_000_000_000 + 86_400_000_000_123));
        assert!(due.as_nanos().abs_diff(86_400_000_000_123) < 100, "{due:?}");
    }

    #[test]
    fn speeds_that_make_no_schedule_are_refused() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pace::new(own_times(value)).is_err());
            assert!(Pace::new(PaceMode::Rate { messages_per_s: value }).is_err());
        }
        let mut slow = Pace::new(own_times(1e-300)).unwrap();
        slow.due(&message(0, 0));
        assert_eq!(slow.due(&message(1, 1)), Duration::MAX);
    }
}
