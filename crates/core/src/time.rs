//! Two clocks and two types, so that times of the two clocks are never compared.
//!
//! [`Timestamp`] is the local monotonic clock: timers live on it. [`SyncTime`] is the synchronised
//! clock that all hosts share up to an error: deadlines live on it. A [`Clock`] converts between
//! the two and carries the error bound. A step of the synchronised clock changes the [`Clock`],
//! never a [`Timestamp`], so it cannot fire or lose a timer.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point on the local monotonic clock, in nanoseconds since an origin that the driver chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

/// A point on the synchronised clock, in nanoseconds since the Unix epoch (or, in a simulation,
/// since its start).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SyncTime(u64);

/// Nanoseconds of a duration, saturating at `u64::MAX` (584 years).
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

macro_rules! point_in_time {
    ($name:ident) => {
        impl $name {
            /// The origin of this clock.
            pub const ZERO: Self = Self(0);
            /// Later than any other point: "never".
            pub const MAX: Self = Self(u64::MAX);

            /// The point `nanos` nanoseconds after the origin.
            pub const fn from_nanos(nanos: u64) -> Self {
                Self(nanos)
            }

            /// Nanoseconds since the origin.
            pub const fn nanos(self) -> u64 {
                self.0
            }

            /// Time passed since `earlier`; zero when `earlier` is in fact later.
            pub const fn since(self, earlier: Self) -> Duration {
                Duration::from_nanos(self.0.saturating_sub(earlier.0))
            }

            /// Signed nanoseconds from `other` to `self`, saturating.
            pub fn signed_since(self, other: Self) -> i64 {
                let wide = i128::from(self.0) - i128::from(other.0);
                wide.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
            }
        }

        impl Add<Duration> for $name {
            type Output = Self;
            fn add(self, duration: Duration) -> Self {
                Self(self.0.saturating_add(nanos(duration)))
            }
        }

        impl AddAssign<Duration> for $name {
            fn add_assign(&mut self, duration: Duration) {
                *self = *self + duration;
            }
        }

        impl Sub<Duration> for $name {
            type Output = Self;
            fn sub(self, duration: Duration) -> Self {
                Self(self.0.saturating_sub(nanos(duration)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
            }
        }
    };
}

point_in_time!(Timestamp);
point_in_time!(SyncTime);

/// How wrong the synchronised clock may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ClockError {
    /// Sender and receiver read the same clock, so there is no error between them.
    SameClock,
    /// The true offset lies within this distance of the stated offset.
    Within(Duration),
    /// No source states a bound. Figures that rest on this clock carry the word "unknown".
    #[default]
    Unknown,
    /// Other nodes have measured the clock, and the clock has left the bound that they proved. A
    /// receiver releases nothing by such a clock.
    Disproved,
}

/// A statement of a clock source: `synchronised = local + offset`, and how wrong the offset may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ClockReading {
    /// Nanoseconds to add to the local clock to get the synchronised time.
    pub offset_ns: i64,
    /// Bound on the error of `offset_ns`.
    pub error: ClockError,
}

/// Rate at which a clock in use is corrected, in parts per million. 500 is the rate of NTP.
pub const SLEW_PPM: u64 = 500;
/// The fastest rate at which an honest source moves against the local clock, in parts per million.
/// Crystals of servers keep 100 each, and a daemon corrects its clock by a few hundred more.
pub const DRIFT_PPM_MAX: u64 = 500;
/// How far a source that states no bound may move between two readings before it counts as
/// stepped: 1 ms, which such sources reach by the noise of a network.
const UNSTATED_NS: u64 = 1_000_000;

/// A machine's view of the synchronised clock.
///
/// [`set`](Self::set) adopts a reading as it is. [`follow`](Self::follow) is for a clock by which
/// messages are stamped and released. Such a clock goes on by the local clock, which never steps,
/// and follows its source at [`SLEW_PPM`] at most. When two readings differ by more than their
/// bounds and the worst drift explain, then the source has stepped. This host cannot tell which of
/// the two readings was wrong. The clock therefore goes on as if the step had not happened, and
/// adds the bounds of both readings. After a long time without a reading, the clock follows a step
/// that drift explains. After two seconds, that is a step of up to 1 ms and the two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Clock {
    reading: ClockReading,
    /// The last reading of the source, and its local time.
    source: Option<(Timestamp, ClockReading)>,
    /// Nanoseconds by which the clock still has to be corrected.
    lag_ns: i64,
    /// The part of the bound that comes from readings before the source stepped, in nanoseconds.
    carried_ns: u64,
    steps: u64,
}

impl Clock {
    /// Adopts a new reading, whether or not the clock stepped.
    pub fn set(&mut self, reading: ClockReading) {
        *self = Self { reading, steps: self.steps, ..Self::default() };
    }

    /// Takes a reading at the local time `now`. A clock that `may_step` adopts the reading: the
    /// clock is in use nowhere yet. Processes that read [`ClockError::SameClock`] have one clock,
    /// so that they adopt each reading too. A disproved reading moves no clock in use, which goes
    /// on by the local clock. The first good reading after it is adopted. Returns the nanoseconds
    /// by which the source stepped when the clock did not follow.
    pub fn follow(&mut self, now: Timestamp, reading: ClockReading, may_step: bool) -> Option<i64> {
        if !may_step && self.source.is_some() && reading.error == ClockError::Disproved {
            self.reading.error = ClockError::Disproved;
            return None;
        }
        let before = self.source.replace((now, reading));
        let was_disproved = self.reading.error == ClockError::Disproved;
        let is_followed = !may_step && !was_disproved && reading.error != ClockError::SameClock;
        let Some((at, last)) = before.filter(|_| is_followed) else {
            self.set(reading);
            self.source = Some((now, reading));
            return None;
        };
        let passed = nanos(now.since(at));
        let share = |ppm: u64| passed / 1_000_000 * ppm + passed % 1_000_000 * ppm / 1_000_000;
        let change = reading.offset_ns.saturating_sub(last.offset_ns);
        let stated = |reading: ClockReading| match reading.error {
            ClockError::SameClock => 0,
            ClockError::Within(bound) => nanos(bound),
            ClockError::Unknown => UNSTATED_NS,
            ClockError::Disproved => u64::MAX,
        };
        let explained =
            stated(last).saturating_add(stated(reading)).saturating_add(share(DRIFT_PPM_MAX));
        let stepped = (change.unsigned_abs() > explained).then_some(change);
        if stepped.is_some() {
            self.steps += 1;
            // Which of the two readings was wrong is unknown here, so that the bound has to cover
            // both.
            self.carried_ns = self.carried_ns.saturating_add(stated(last));
        } else {
            self.lag_ns = self.lag_ns.saturating_add(change);
        }
        // A clock by which messages are released is slewed and never stepped, so that a correction
        // does not bring many deadlines at once.
        let most = i64::try_from(share(SLEW_PPM)).unwrap_or(i64::MAX);
        let moved = self.lag_ns.clamp(-most, most);
        self.lag_ns -= moved;
        let error = match reading.error {
            ClockError::Within(bound) => {
                let more = self.carried_ns.saturating_add(self.lag_ns.unsigned_abs());
                ClockError::Within(bound + Duration::from_nanos(more))
            }
            other => other,
        };
        let offset_ns = self.reading.offset_ns.saturating_add(moved);
        self.reading = ClockReading { offset_ns, error };
        stepped
    }

    /// The reading that the clock applies.
    pub fn reading(&self) -> ClockReading {
        self.reading
    }

    /// Steps of the source that the clock did not follow.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The synchronised time at the local time `now`.
    pub fn sync(&self, now: Timestamp) -> SyncTime {
        SyncTime(now.0.saturating_add_signed(self.reading.offset_ns))
    }

    /// The synchronised time at the local time `now` for a datagram. Zero when the clock is
    /// disproved, so that nobody measures delays by it.
    pub fn stamp(&self, now: Timestamp) -> SyncTime {
        if self.reading.error == ClockError::Disproved { SyncTime(0) } else { self.sync(now) }
    }

    /// The local time at which this clock will show `at`.
    pub fn local(&self, at: SyncTime) -> Timestamp {
        Timestamp(at.0.saturating_add_signed(self.reading.offset_ns.saturating_neg()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_and_local_are_inverse() {
        let mut clock = Clock::default();
        for offset_ns in [0, 17, -17, 1_700_000_000_000_000_000] {
            clock.set(ClockReading { offset_ns, error: ClockError::Unknown });
            let now = Timestamp::from_nanos(5_000_000);
            assert_eq!(clock.local(clock.sync(now)), now);
        }
    }

    #[test]
    fn a_clock_in_use_ignores_disproved_readings_and_adopts_the_first_good_one() {
        let (mut clock, at) = (Clock::default(), |ms: u64| Timestamp::from_nanos(ms * 1_000_000));
        let within = ClockError::Within(Duration::from_micros(2));
        let reading = |offset_ns, error| ClockReading { offset_ns, error };
        clock.follow(at(1), reading(500, within), true);
        for ms in 2..2_000 {
            clock.follow(at(ms), reading(7_000_000, ClockError::Disproved), false);
            let expected = reading(500, ClockError::Disproved);
            assert_eq!((clock.reading(), clock.steps()), (expected, 0));
        }
        clock.follow(at(2_000), reading(900, within), false);
        assert_eq!(clock.reading(), reading(900, within));
        clock.follow(at(2_001), reading(7_000_000, within), false);
        assert_eq!((clock.reading().offset_ns, clock.steps()), (900, 1), "followed again");
    }

    #[test]
    fn a_disproved_clock_stamps_nothing() {
        let mut clock = Clock::default();
        for (error, stamp) in [(ClockError::Unknown, 84), (ClockError::Disproved, 0)] {
            clock.set(ClockReading { offset_ns: 77, error });
            assert_eq!(clock.stamp(Timestamp(7)), SyncTime(stamp), "{error:?}");
        }
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO - Duration::from_secs(1), Timestamp::ZERO);
        assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), Duration::ZERO);
    }

    fn within(offset_ns: i64, us: u64) -> ClockReading {
        ClockReading { offset_ns, error: ClockError::Within(Duration::from_micros(us)) }
    }

    fn second(n: u64) -> Timestamp {
        Timestamp::from_nanos(n * 1_000_000_000)
    }

    #[test]
    fn a_step_of_the_source_does_not_show_and_its_later_drift_does() {
        for step in [10_000_000_000, -3_600_000_000_000, 946_080_000_000_000_000] {
            let mut clock = Clock::default();
            assert_eq!(clock.follow(second(1), within(7_000, 20), false), None, "the first");
            assert_eq!(clock.follow(second(2), within(step + 7_000, 20), false), Some(step));
            assert_eq!(clock.reading(), within(7_000, 40), "the bounds of both readings");
            assert_eq!(clock.follow(second(3), within(step + 8_000, 20), false), None);
            assert_eq!(clock.reading().offset_ns, 8_000);
            assert_eq!(clock.follow(second(4), within(8_000, 20), false), Some(-step));
            assert_eq!((clock.reading(), clock.steps()), (within(8_000, 60), 2));
        }
    }

    #[test]
    fn a_clock_in_use_is_slewed_and_says_what_it_lacks() {
        let mut clock = Clock::default();
        clock.follow(second(1), within(0, 900), false);
        clock.follow(second(2), within(1_600_000, 900), false);
        assert_eq!(clock.reading(), within(500_000, 2_000));
        clock.follow(second(3), within(1_600_000, 900), false);
        clock.follow(second(5), within(1_600_000, 900), false);
        assert_eq!(clock.reading(), within(1_600_000, 900));
    }

    #[test]
    fn a_clock_that_is_not_in_use_and_the_one_clock_of_a_host_step() {
        let mut clock = Clock::default();
        clock.follow(second(1), within(0, 20), false);
        assert_eq!(clock.follow(second(2), within(1 << 50, 20), true), None);
        assert_eq!(clock.reading().offset_ns, 1 << 50);
        let same = ClockReading { offset_ns: 3, error: ClockError::SameClock };
        clock.follow(second(3), same, false);
        assert_eq!((clock.reading(), clock.steps()), (same, 0));
    }
}
