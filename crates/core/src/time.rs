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
}

/// A statement of a clock source: `synchronised = local + offset`, and how wrong the offset may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ClockReading {
    /// Nanoseconds to add to the local clock to get the synchronised time.
    pub offset_ns: i64,
    /// Bound on the error of `offset_ns`.
    pub error: ClockError,
}

/// A machine's view of the synchronised clock. It applies the last reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Clock {
    reading: ClockReading,
}

impl Clock {
    /// Adopts a new reading, whether or not the clock stepped.
    pub fn set(&mut self, reading: ClockReading) {
        self.reading = reading;
    }

    /// The last reading.
    pub fn reading(&self) -> ClockReading {
        self.reading
    }

    /// The synchronised time at the local time `now`.
    pub fn sync(&self, now: Timestamp) -> SyncTime {
        SyncTime(now.0.saturating_add_signed(self.reading.offset_ns))
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
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO - Duration::from_secs(1), Timestamp::ZERO);
        assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), Duration::ZERO);
    }
}
