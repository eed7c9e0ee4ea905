//! The verdict of the mesh about a node's clock, and the readings of that clock with their bounds.

use core::time::Duration;

use evenfall_core::Timestamp;
use evenfall_core::time::nanos;

use crate::Config;
use crate::filter::WANDER_PPB_S;
use crate::table::Slope;

/// The horizon of the reference, whose bounds do not grow.
pub(crate) const ALWAYS: Duration = Duration::from_nanos(u64::MAX);

/// The state of a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ClockState {
    /// Nothing was measured yet.
    #[default]
    Unknown = 0,
    /// The last window was measured.
    Synchronised = 1,
    /// The last measurement is older than two windows, and the clock goes on at its last rate.
    FreeRunning = 2,
    /// The clock stepped. Its last measurement is from after the step, and its course is not known.
    Disrupted = 3,
}

impl ClockState {
    /// The state with this number on the wire.
    pub fn from_wire(byte: u8) -> Option<Self> {
        [Self::Unknown, Self::Synchronised, Self::FreeRunning, Self::Disrupted]
            .get(usize::from(byte))
            .copied()
    }
}

/// A node's clock as the solve of one window left it. Times are on the node's own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockVerdict {
    /// Where the line begins.
    pub at: Timestamp,
    /// The correction at `at`: nanoseconds to add to the node's clock.
    pub offset_ns: i64,
    /// The growth of the correction for each nanosecond after `at`.
    pub rate: f64,
    /// Whether the clock goes on as before or began anew.
    pub state: ClockState,
    /// The part of the assumed bound that does not grow with time: the remainders of the pairs
    /// after the last solve, and the assumed share of asymmetry, which no measurement shows.
    pub standing_ns: f64,
    /// Variances at `at`, in nanoseconds and seconds: offset, offset with rate, rate.
    pub variances: [f64; 3],
    /// The least and the greatest value by which `offset_ns` can be too small; infinite when
    /// nothing is proven.
    pub proven_ns: [f64; 2],
    /// How much `proven_ns` changes for each nanosecond, up to `horizon`.
    pub proven_rate: [f64; 2],
    /// Time after `at` beyond which the proven bounds grow by the worst drift.
    pub horizon: Duration,
}

impl ClockVerdict {
    /// The verdict of the reference about itself. Its clock is the time of the mesh.
    pub fn reference(at: Timestamp) -> Self {
        Self {
            at,
            offset_ns: 0,
            rate: 0.0,
            state: ClockState::Synchronised,
            standing_ns: 0.0,
            variances: [0.0; 3],
            proven_ns: [0.0; 2],
            proven_rate: [0.0; 2],
            horizon: ALWAYS,
        }
    }

    /// The reading of the clock at its own time `now`.
    pub fn reading(&self, now: Timestamp, config: &Config) -> BoundedReading {
        let age_ns = now.signed_since(self.at);
        let age = age_ns as f64;
        let free = age > 2.0 * nanos(config.window) as f64 && self.horizon != ALWAYS;
        let proven_ns = self.proven(age, config);
        let assumed_ns = self.assumed(age, config);
        BoundedReading {
            offset_ns: self.offset_ns.saturating_add(Slope::of(self.rate).after(age_ns)),
            state: if free { ClockState::FreeRunning } else { self.state },
            proven_ns,
            assumed_ns: Some(proven_ns.map_or(assumed_ns, |proven| assumed_ns.min(proven))),
        }
    }

    /// The proven bound after `age` nanoseconds; `None` when nothing is proven.
    pub(crate) fn proven(&self, age: f64, config: &Config) -> Option<u64> {
        if self.horizon == ALWAYS {
            return Some(0);
        }
        let horizon = nanos(self.horizon) as f64;
        let (within, beyond) = (age.min(horizon), (age - horizon).max(0.0));
        let reach = |k: usize| (self.proven_ns[k] + self.proven_rate[k] * within).abs();
        let bend = config.bend_ns(age.min(horizon));
        let bound = reach(0).max(reach(1)) + bend + config.drift_max() * beyond;
        bound.is_finite().then(|| whole(bound))
    }

    /// The assumed bound after `age` nanoseconds, which may be wider than the proven bound.
    pub(crate) fn assumed(&self, age: f64, config: &Config) -> u64 {
        let seconds = age.abs() * 1e-9;
        let [oo, or, rr] = self.variances;
        let bend = WANDER_PPB_S * seconds * seconds / 2.0;
        let variance = oo + 2.0 * or * seconds + rr * seconds * seconds + bend * bend;
        whole(self.standing_ns + config.assumed_errors * variance.max(0.0).sqrt())
    }
}

/// The least whole number of nanoseconds that is not below `ns`. A call of the platform's `ceil`
/// takes some nanoseconds, and every reading rounds its bounds.
fn whole(ns: f64) -> u64 {
    let cut = ns as u64;
    cut.saturating_add(u64::from((cut as f64) < ns))
}

/// One reading of a clock, with two bounds on its error against the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundedReading {
    /// Nanoseconds to add to the local clock.
    pub offset_ns: i64,
    /// The state of the clock.
    pub state: ClockState,
    /// The error is not larger as long as delays are not negative, stamps are honest, and clocks
    /// keep the worst drift and wander of the configuration. `None` when nothing is proven.
    pub proven_ns: Option<u64>,
    /// The error stays within this bound under two conditions: the network errs as in the past, and
    /// the two ways through a node's own links differ by no more than the configured share. `None`
    /// before the first measurement.
    pub assumed_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_the_platform_rounds_them() {
        for ns in [0.0, 0.2, 0.5, 0.9, 1.0, 1.5, 2.5, 7e9, 7.3e9, 1e30, f64::INFINITY] {
            assert_eq!(whole(ns), ns.ceil() as u64, "{ns}");
        }
    }
}
