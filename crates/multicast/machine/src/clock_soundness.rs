//! Whether this node's clock can be the root's clock, judged by the delays of the feed and by the
//! nodes that measure the clock.
//!
//! A frame carries the root's time of sending. No copy arrives before it was sent, and no working
//! path takes more than a second for every copy. So the shortest delay of the last moment shows a
//! clock that is far ahead or behind. An honest delay is enough to clear the clock, because only
//! the shortest delay counts.
//!
//! Where the nodes of a run measure each other's clocks, a reading says when this clock has left
//! the bound that was proven for it ([`ClockError::Disproved`]). Such a clock is not sound until
//! the nodes have measured the clock anew, whatever the delays of the feed show.
//!
//! A receiver whose clock is not sound releases a frame the hold's length after the frame arrived.
//! The release is never before the deadline in true time. The delays that such a receiver measures
//! are wrong, and lengthen no hold.

use core::time::Duration;

use evenfall_core::time::nanos;
use evenfall_core::{ClockError, SyncTime, Timestamp};

/// Span of which the shortest delay is kept. The last span and the present one count, so that a
/// clock is judged by half a second to a second.
const SPAN: Duration = Duration::from_millis(500);
/// How far a copy may seem to arrive before it was sent. Clocks that follow servers over the
/// internet differ by some milliseconds.
pub(crate) const SLACK: Duration = Duration::from_millis(10);
/// A shortest delay beyond this limit is an error of the clock, because no working path takes so
/// long for every copy.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// The shortest delays of the feed, by this node's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockSoundness {
    turned: Timestamp,
    least: [Option<i64>; 2],
    /// Whether the clock was ever sound.
    was_sound: bool,
    /// Whether the last reading said that the clock has left its proven bound.
    is_disproved: bool,
}

impl ClockSoundness {
    /// A live frame that the root sent at `origin` arrived at `arrived`, by this node's clock.
    pub(crate) fn note_delay(&mut self, now: Timestamp, origin: SyncTime, arrived: SyncTime) {
        let age = now.since(self.turned);
        if age >= SPAN {
            self.least = [None, self.least[0].filter(|_| age < SPAN * 2)];
            self.turned = now;
        }
        let delay = arrived.signed_since(origin);
        self.least[0] = Some(self.least[0].map_or(delay, |least| least.min(delay)));
        self.was_sound |= self.is_sound();
    }

    /// Reads the lines of the cache that hold the delays.
    pub(crate) fn prefetch(&self) -> u64 {
        self.turned.nanos() ^ u64::from(self.is_disproved)
    }

    /// A reading of the clock states this error.
    pub(crate) fn note_error(&mut self, error: ClockError) {
        self.is_disproved = error == ClockError::Disproved;
    }

    /// Forgets all delays: the clock stepped, or the root is another.
    pub(crate) fn forget_delays(&mut self) {
        self.least = [None; 2];
    }

    /// Whether the clock may step: it is not in use yet, or it is wrong.
    pub(crate) fn may_step(&self) -> bool {
        self.verdict().map_or(!self.was_sound, |sound| !sound)
    }

    /// Whether delays of the feed show that the clock can be the root's, and no node has shown that
    /// the clock cannot.
    pub(crate) fn is_sound(&self) -> bool {
        self.verdict() == Some(true)
    }

    /// Whether the clock can be the root's. `None` before the first frame.
    fn verdict(&self) -> Option<bool> {
        if self.is_disproved {
            return Some(false);
        }
        let [present, last] = self.least;
        let least = present.map_or(last, |ns| Some(last.map_or(ns, |other| other.min(ns))))?;
        Some((-(nanos(SLACK) as i64)..=nanos(DELAY_MAX) as i64).contains(&least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 60;

    fn hear(clock: &mut ClockSoundness, ms: u64, delay_ns: i64) -> Option<bool> {
        let origin = SyncTime::from_nanos(BASE + ms * 1_000_000);
        let arrived = SyncTime::from_nanos(origin.nanos().saturating_add_signed(delay_ns));
        clock.note_delay(Timestamp::from_nanos(ms * 1_000_000), origin, arrived);
        clock.verdict()
    }

    #[test]
    fn a_clock_is_sound_while_one_delay_of_the_last_second_can_be_true() {
        let mut clock = ClockSoundness::default();
        assert_eq!(clock.verdict(), None);
        assert_eq!(hear(&mut clock, 1_000, 80_000), Some(true));
        assert_eq!(hear(&mut clock, 1_400, 10_000_000_000), Some(true), "one late frame");
        assert_eq!(hear(&mut clock, 2_100, 10_000_000_000), Some(false), "all are late");
        assert_eq!(hear(&mut clock, 2_200, 90_000), Some(true), "the clock is right again");
        assert_eq!(hear(&mut clock, 2_300, -20_000_000), Some(false), "before it was sent");
        assert!(clock.may_step());
        clock.forget_delays();
        assert!(!clock.may_step(), "the clock was in use");
        assert_eq!(hear(&mut clock, 2_400, -900_000), Some(true), "within the clocks' errors");
    }

    #[test]
    fn a_clock_beyond_its_proven_bound_is_not_sound_though_its_delays_could_be_true() {
        let mut clock = ClockSoundness::default();
        assert_eq!(hear(&mut clock, 1_000, 80_000), Some(true));
        clock.note_error(ClockError::Disproved);
        assert_eq!(hear(&mut clock, 1_001, 5_080_000), Some(false));
        assert!(clock.may_step() && !clock.is_sound());
        clock.note_error(ClockError::Within(Duration::from_micros(2)));
        assert_eq!(hear(&mut clock, 1_002, 80_000), Some(true), "it was measured anew");
        assert!(clock.is_sound() && !clock.may_step());
    }
}
