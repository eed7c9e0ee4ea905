//! When each message of a replay is due.
//!
//! A replay that waits for a slow sender hides what it was made to measure. So the schedule
//! knows nothing of the sender: a due time follows from the messages alone, never moves, and
//! never slows. A sender that falls behind sends late, and its latency counts from the due time.

use crate::source::Message;
use core::fmt;
use core::time::Duration;

/// How due times are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// By the messages' own times; a speed of 2 takes half the time.
    OwnTimes {
        /// Times faster than the recording, above zero.
        speed: f64,
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
    pub Mode,
);

impl fmt::Display for PaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, value) = match self.0 {
            Mode::OwnTimes { speed } => ("speed", speed),
            Mode::Rate { messages_per_s } => ("rate", messages_per_s),
        };
        write!(f, "a replay {what} of {value}: give a finite number above zero")
    }
}

impl std::error::Error for PaceError {}

/// The schedule of one replay. Its start is the due time of the first message it is asked about.
#[derive(Clone, Debug)]
pub struct Pace {
    mode: Mode,
    first: Option<(u64, u64)>,
    last: Duration,
}

impl Pace {
    /// A schedule.
    ///
    /// # Errors
    /// A speed or rate that is not a finite number above zero.
    pub fn new(mode: Mode) -> Result<Self, PaceError> {
        let (Mode::OwnTimes { speed: value } | Mode::Rate { messages_per_s: value }) = mode;
        if !value.is_finite() || value <= 0.0 {
            return Err(PaceError(mode));
        }
        Ok(Self { mode, first: None, last: Duration::ZERO })
    }

    /// When this message is due, from the start of the replay. Ask once per message, in order.
    ///
    /// A message whose own time is before its predecessor's is due together with it: captures of
    /// two channels cross by microseconds, and order outranks time. A due time past what a
    /// `Duration` holds stays at the largest one.
    pub fn due(&mut self, message: &Message) -> Duration {
        let (first_index, first_ns) = *self.first.get_or_insert((message.index, message.time_ns));
        let seconds = match self.mode {
            Mode::OwnTimes { speed } => {
                message.time_ns.saturating_sub(first_ns) as f64 / (speed * 1e9)
            }
            Mode::Rate { messages_per_s } => {
                message.index.saturating_sub(first_index) as f64 / messages_per_s
            }
        };
        let due = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.last = self.last.max(due);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(index: u64, time_ns: u64) -> Message {
        Message { index, time_ns, shard_key: 0, bytes: Bytes::new() }
    }

    #[test]
    fn own_times_are_scaled_and_never_go_back() {
        let mut pace = Pace::new(Mode::OwnTimes { speed: 2.0 }).unwrap();
        let times = [5_000, 7_000, 6_000, 9_000, 4_000];
        let due: Vec<u128> = (0..)
            .zip(times)
            .map(|(index, time_ns)| pace.due(&message(index, time_ns)).as_nanos())
            .collect();
        assert_eq!(due, [0, 1_000, 1_000, 2_000, 2_000]);
    }

    #[test]
    fn a_rate_counts_from_the_first_message_asked_about() {
        let mut pace = Pace::new(Mode::Rate { messages_per_s: 1_000.0 }).unwrap();
        assert_eq!(pace.due(&message(10, 0)), Duration::ZERO);
        assert_eq!(pace.due(&message(2_010, 0)), Duration::from_secs(2));
    }

    #[test]
    fn a_day_of_nanoseconds_keeps_its_microseconds() {
        let mut pace = Pace::new(Mode::OwnTimes { speed: 1.0 }).unwrap();
        pace.due(&message(0, 1_577_700_000_000_000_000));
        let due = pace.due(&message(1, 1_577_700_000_000_000_000 + 86_400_000_000_123));
        assert!(due.as_nanos().abs_diff(86_400_000_000_123) < 100, "{due:?}");
    }

    #[test]
    fn speeds_that_make_no_schedule_are_refused() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pace::new(Mode::OwnTimes { speed: value }).is_err());
            assert!(Pace::new(Mode::Rate { messages_per_s: value }).is_err());
        }
        let mut slow = Pace::new(Mode::OwnTimes { speed: 1e-300 }).unwrap();
        slow.due(&message(0, 0));
        assert_eq!(slow.due(&message(1, 1)), Duration::MAX);
    }
}
