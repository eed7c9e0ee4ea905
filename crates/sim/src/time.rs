//! True time, which only the simulator knows.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

use evenfall_core::SyncTime;
use evenfall_core::time::nanos;

/// Nanoseconds of true time since the start of the run.
///
/// True time has a type of its own beside `Timestamp` and `SyncTime`, so that no machine can get it
/// by accident. Machines see only their host's clock and the readings of a clock source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SimTime(pub(crate) u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Never.
    pub const MAX: Self = Self(u64::MAX);

    /// This many nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// This many microseconds after the start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// This many milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Nanoseconds since the start.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The reading of a synchronised clock without error at this time.
    pub const fn as_sync(self) -> SyncTime {
        SyncTime::from_nanos(self.0)
    }
}

impl Add<Duration> for SimTime {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl Sub<Duration> for SimTime {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl fmt::Debug for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}s")
    }
}
