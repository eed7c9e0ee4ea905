//! Retention by age under a wall clock that steps by years, and machines that are started again.
//!
//! The campaign knows the true time. A record may go when it is truly older than the age, but for
//! the hour by which a clock may be wrong since an operator set it, and another for each start of
//! the machine.

use std::collections::VecDeque;

use evenfall_core::Prng;
use evenfall_store_format::age_clock::{AgeClock, ClockPair, STEP_NS_MAX, Uptime};
use evenfall_store_format::retention::Retention;

use super::{Broken, Check, Mutant, broken};

const HOUR_NS: i64 = STEP_NS_MAX as i64;
const YEARS_NS: i64 = 30 * 365 * 24 * HOUR_NS;
/// The true time at the beginning: a moment in 2026.
const START_NS: i64 = 1_790_000_000_000_000_000;
/// The age beyond which records may go.
const AGE_NS: i64 = 30 * 24 * HOUR_NS;

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct AgeCounts {
    /// Steps of the wall clock, ahead and back.
    pub(super) steps: u64,
    /// Looks at which ages stood still.
    pub(super) stood_still: u64,
    /// Records that went for their age.
    pub(super) gone: u64,
}

/// A file with an age, as the times of its records, on a machine whose wall clock steps.
pub(super) struct AgingFile {
    prng: Prng,
    mutant: Option<Mutant>,
    ages: AgeClock,
    /// The reading that the directory keeps.
    kept: Option<ClockPair>,
    true_ns: i64,
    step_ns: i64,
    uptime: Uptime,
    /// Starts of the machine since an operator confirmed the clock.
    starts: i64,
    /// True times of the records that are there, the oldest first.
    records: VecDeque<i64>,
    pub(super) counts: AgeCounts,
}

impl AgingFile {
    pub(super) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut file = Self {
            // A generator of its own, so that the disk does the same with and without ages.
            prng: Prng::new(seed ^ 0xa9e5),
            mutant,
            ages: AgeClock::new(None),
            kept: None,
            true_ns: START_NS,
            step_ns: 0,
            uptime: Uptime { boot: 1, ns: 0 },
            starts: 0,
            records: VecDeque::new(),
            counts: AgeCounts::default(),
        };
        // The operator who sets an age looks at the clock.
        file.confirm();
        file
    }

    fn reading(&self) -> ClockPair {
        let wall_ns = self.true_ns.saturating_add(self.step_ns);
        ClockPair { wall_ns, uptime: self.uptime }
    }

    fn confirm(&mut self) {
        self.ages.confirm(self.reading());
        (self.kept, self.starts) = (self.ages.last_vetted(), 0);
    }

    fn pass(&mut self, ns: i64) {
        self.true_ns += ns;
        self.uptime.ns += ns as u64;
    }

    /// One event, and a look of retention.
    pub(super) fn step(&mut self) -> Result<(), Broken> {
        let days = 1 + self.prng.below(10) as i64;
        match self.prng.below(8) {
            0..=3 => {
                self.records.push_back(self.true_ns);
                self.pass(days * 24 * HOUR_NS);
            }
            4 => {
                let steps = [YEARS_NS, -YEARS_NS, 40 * 24 * HOUR_NS, HOUR_NS / 2, 0];
                self.step_ns = steps[self.prng.below(5) as usize];
                self.counts.steps += 1;
            }
            5 => self.start_process(),
            6 => self.start_machine(days),
            _ if self.step_ns == 0 => self.confirm(),
            _ => {}
        }
        self.trim()
    }

    /// A new life of the process. The directory may keep an older reading than the last.
    fn start_process(&mut self) {
        let is_forgotten = self.mutant == Some(Mutant::ClockForgotten);
        self.ages = AgeClock::new(self.kept.filter(|_| !is_forgotten));
    }

    fn start_machine(&mut self, days: i64) {
        let off_ns = if self.prng.chance(0.5) { HOUR_NS / 4 } else { days * 24 * HOUR_NS };
        self.true_ns += off_ns;
        self.uptime = Uptime { boot: self.uptime.boot + 1, ns: 1_000_000_000 };
        self.starts += 1;
        self.start_process();
    }

    fn trim(&mut self) -> Result<(), Broken> {
        let reading = self.reading();
        let vetted = self.ages.read(reading);
        self.counts.stood_still += u64::from(vetted.is_none());
        if vetted.is_some() && self.prng.chance(0.5) {
            self.kept = self.ages.last_vetted();
        }
        let is_trusted = self.mutant == Some(Mutant::AgeBySteppedClock);
        let now_ns = if is_trusted { Some(reading.wall_ns) } else { vetted };
        let retention = Retention { age_ns_max: Some(AGE_NS as u64), bytes_max: None };
        let newest_ns = self.records.back().copied().unwrap_or(START_NS);
        let horizon_ns = now_ns.and_then(|now_ns| retention.horizon_ns(newest_ns, now_ns));
        let Some(horizon_ns) = horizon_ns else { return Ok(()) };
        let tolerance_ns = HOUR_NS * (1 + self.starts);
        while let Some(time_ns) = self.records.pop_front_if(|time_ns| *time_ns < horizon_ns) {
            let age_ns = self.true_ns - time_ns;
            if age_ns < AGE_NS - tolerance_ns {
                let what = format!("a record of {} days is gone", age_ns / HOUR_NS / 24);
                return Err(broken(Check::Aged, what));
            }
            self.counts.gone += 1;
        }
        Ok(())
    }
}
