//! The clock by which ages count.
//!
//! Retention by age deletes what a clock calls old. A wall clock that jumps ahead would delete
//! history, and no later correction brings history back. So each reading of the wall clock is
//! compared with the time that has passed since a reading that was right. A machine that runs
//! counts that time itself, and no setting of the wall clock changes the count. When the two differ
//! by more than [`STEP_NS_MAX`], ages stand still until the wall clock is back or an operator says
//! that it is right.
//!
//! A machine that was off has counted nothing. Its clock then has to agree with the last reading
//! as if no time had passed. So a machine that was off for more than [`STEP_NS_MAX`] needs the word
//! of an operator: nothing on it tells a long night from a wrong clock.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// How far the wall clock may step, in nanoseconds, since it was last known to be right: an hour.
/// Corrections of a running clock are seconds, and a wrong day, zone or year is more.
pub const STEP_NS_MAX: u64 = 3_600 * 1_000_000_000;

/// The time since a machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uptime {
    /// A number that identifies one start of one machine.
    pub boot: u64,
    /// Nanoseconds since that start. Time in which the machine slept counts.
    pub ns: u64,
}

/// Both clocks of a machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPair {
    /// Nanoseconds since 1970 by the wall clock.
    pub wall_ns: i64,
    /// The time since the machine was started.
    pub uptime: Uptime,
}

impl ClockPair {
    /// What the wall clock must show at `uptime` if this reading was right.
    fn expected_ns(&self, uptime: Uptime) -> i64 {
        let is_same = self.uptime.boot == uptime.boot;
        let passed = uptime.ns.checked_sub(self.uptime.ns).filter(|_| is_same).unwrap_or(0);
        self.wall_ns.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }
}

/// A step of the wall clock, ahead or back, for which ages stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// What the wall clock shows beyond the time that has passed, in nanoseconds.
    pub ns: i64,
}

impl Display for ClockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, way) = (self.ns.unsigned_abs() / STEP_NS_MAX, self.ns.signum());
        let way = if way < 0 { "behind" } else { "ahead of" };
        write!(
            f,
            "the wall clock is {hours} h {way} the time that this store has seen pass: no record \
             is deleted for its age until the clock is back; if the clock is right, open the \
             store with --confirm-clock (store.confirm_clock)"
        )
    }
}

/// A wall clock whose readings are compared with the time since the machine was started.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgeClock {
    /// The last reading that was right. The next process of the store goes on from this reading.
    vetted: Option<ClockPair>,
    /// How far the wall clock has stepped, if it has stepped too far.
    step: Option<ClockStep>,
}

impl AgeClock {
    /// A clock that goes on from a reading that an earlier life has vetted. Without one, the first
    /// reading counts as right.
    pub fn new(vetted: Option<ClockPair>) -> Self {
        Self { vetted, step: None }
    }

    /// The time by which ages count; `None` while the wall clock has stepped.
    pub fn read(&mut self, now: ClockPair) -> Option<i64> {
        let Some(last) = self.vetted else {
            self.confirm(now);
            return Some(now.wall_ns);
        };
        let expected_ns = last.expected_ns(now.uptime);
        let step = ClockStep { ns: now.wall_ns.saturating_sub(expected_ns) };
        self.step = (step.ns.unsigned_abs() > STEP_NS_MAX).then_some(step);
        if self.step.is_some() {
            return None;
        }
        // On the same machine, the next reading is compared with the same line of time. Steps of
        // less than an hour would otherwise add up without end.
        let is_same = last.uptime.boot == now.uptime.boot;
        let wall_ns = if is_same { expected_ns } else { now.wall_ns };
        self.vetted = Some(ClockPair { wall_ns, ..now });
        Some(now.wall_ns)
    }

    /// Takes the wall clock as right, by the word of an operator.
    pub fn confirm(&mut self, now: ClockPair) {
        *self = Self::new(Some(now));
    }

    /// How far the wall clock has stepped, if ages stand still.
    pub fn step(&self) -> Option<ClockStep> {
        self.step
    }

    /// The reading from which a later life goes on.
    pub fn last_vetted(&self) -> Option<ClockPair> {
        self.vetted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i64 = STEP_NS_MAX as i64;
    const YEARS_NS: i64 = 30 * 365 * 24 * HOUR_NS;
    const NOW_NS: i64 = 1_790_000_000_000_000_000;

    fn reading(boot: u64, hours: i64, step_ns: i64) -> ClockPair {
        let passed = hours * HOUR_NS;
        let uptime = Uptime { boot, ns: 5 + passed as u64 };
        ClockPair { wall_ns: NOW_NS + passed + step_ns, uptime }
    }

    #[test]
    fn a_step_of_more_than_an_hour_stops_ages_until_the_clock_is_back() {
        for step_ns in [YEARS_NS, -YEARS_NS, HOUR_NS + 1, -HOUR_NS - 1, i64::MAX - 2 * NOW_NS] {
            let mut ages = AgeClock::new(None);
            assert_eq!(ages.read(reading(1, 0, 0)), Some(NOW_NS));
            assert_eq!(ages.read(reading(1, 9, step_ns)), None);
            assert_eq!(ages.step(), Some(ClockStep { ns: step_ns }));
            assert_eq!(ages.read(reading(1, 900, step_ns)), None, "time confirms nothing");
            // A life that begins under the wrong clock knows the last right reading.
            let mut later = AgeClock::new(ages.last_vetted());
            assert_eq!(later.read(reading(1, 901, step_ns)), None);
            assert_eq!(ages.read(reading(1, 902, 0)), Some(NOW_NS + 902 * HOUR_NS));
            assert_eq!(ages.step(), None);
        }
    }

    #[test]
    fn an_operator_confirms_a_clock_that_was_set_right() {
        let mut ages = AgeClock::new(None);
        ages.read(reading(1, 0, -YEARS_NS));
        assert_eq!(ages.read(reading(1, 1, 0)), None);
        ages.confirm(reading(1, 1, 0));
        assert_eq!(ages.read(reading(1, 2, 0)), Some(NOW_NS + 2 * HOUR_NS));
    }

    #[test]
    fn corrections_of_less_than_an_hour_pass_and_do_not_add_up_without_end() {
        let mut ages = AgeClock::new(None);
        for (hours, minutes) in [(0, 0), (1, 20), (2, 40), (3, 60)] {
            assert!(ages.read(reading(1, hours, minutes * HOUR_NS / 60)).is_some());
        }
        assert_eq!(ages.read(reading(1, 4, 80 * HOUR_NS / 60)), None);
    }

    #[test]
    fn a_machine_that_was_started_again_must_show_the_time_of_the_last_reading() {
        let mut ages = AgeClock::new(None);
        ages.read(reading(1, 1_000, 0));
        let after = |off_ns: i64| {
            let uptime = Uptime { boot: 2, ns: 7 };
            ClockPair { wall_ns: NOW_NS + 1_000 * HOUR_NS + off_ns, uptime }
        };
        let mut soon = ages;
        assert!(soon.read(after(HOUR_NS / 2)).is_some());
        assert_eq!(soon.last_vetted(), Some(after(HOUR_NS / 2)));
        for off_ns in [HOUR_NS + 1, YEARS_NS, -YEARS_NS] {
            let mut late = ages;
            assert_eq!(late.read(after(off_ns)), None, "{off_ns}");
            late.confirm(after(off_ns));
            assert!(late.read(after(off_ns)).is_some());
        }
    }
}
