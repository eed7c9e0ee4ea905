//! The clock that a program reads. Once in use, the clock never goes back and never steps.
//!
//! Verdicts differ a little from one solve to the next, and a program that stamps messages must not
//! see the difference. The [`SoftwareClock`] follows its verdicts as NTP follows its servers.
//! Before the first message the clock may step. Once in use it runs faster or slower, by
//! [`Config::slew_ppm`] at most. The correction that is still missing is added to both bounds of a
//! reading.
//!
//! A clock that was left out of a solve is disrupted: it goes on at its last rate, and nothing may
//! be released by it. So the clock may step at the verdict that ends the disruption.

use core::time::Duration;

use evenfall_core::Timestamp;
use evenfall_core::time::nanos;

use crate::table::Table;
use crate::{BoundedReading, ClockState, ClockVerdict, Config};

/// A clock that follows the verdicts of the mesh.
#[derive(Clone, Debug)]
pub struct SoftwareClock {
    config: Config,
    verdict: Option<ClockVerdict>,
    /// The table of the verdict. Readings come from the table from `settled` on.
    table: Option<Table>,
    /// When the correction of `lag_ns` began.
    since: Timestamp,
    /// How far the clock was behind its verdict at `since`, in nanoseconds.
    lag_ns: f64,
    /// When the correction of `lag_ns` ends.
    settled: Timestamp,
    in_use: bool,
    held: bool,
}

impl SoftwareClock {
    /// A clock that knows nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            verdict: None,
            table: None,
            since: Timestamp::ZERO,
            lag_ns: 0.0,
            settled: Timestamp::ZERO,
            in_use: false,
            held: false,
        }
    }

    /// From now on the clock is slewed and does not step.
    pub fn begin_use(&mut self) {
        self.in_use = true;
    }

    /// Follows a new verdict from `now` on.
    pub fn follow(&mut self, now: Timestamp, verdict: ClockVerdict) {
        let was_held = core::mem::replace(&mut self.held, false);
        let is_slewed = self.in_use && !was_held;
        let before = self.verdict.filter(|_| is_slewed).map(|_| self.read(now).offset_ns);
        self.verdict = Some(verdict);
        self.table = Table::of(&verdict, &self.config);
        self.since = now;
        let target = verdict.reading(now, &self.config).offset_ns;
        let lag = before.map_or(0, |before| i128::from(target) - i128::from(before));
        self.lag_ns = lag as f64;
        let takes_ns = self.lag_ns.abs() * 1e6 / f64::from(self.config.slew_ppm);
        self.settled = now + Duration::from_nanos(takes_ns.ceil() as u64);
    }

    /// Notes that the last solve left this node out. The clock goes on at its rate, and all
    /// readings are [`ClockState::Disrupted`] until the next verdict.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Whether the last solve left this node out.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// The part of `lag_ns` that is not corrected yet at `now`.
    fn lag(&self, now: Timestamp) -> f64 {
        let passed = nanos(now.since(self.since)) as f64;
        let most = passed * f64::from(self.config.slew_ppm) * 1e-6;
        if self.lag_ns > 0.0 {
            (self.lag_ns - most).max(0.0)
        } else {
            (self.lag_ns + most).min(0.0)
        }
    }

    /// The clock at the local time `now`. Unknown before the first verdict.
    #[inline]
    pub fn read(&self, now: Timestamp) -> BoundedReading {
        let table = self.table.as_ref().filter(|_| now >= self.settled);
        let reading = table.and_then(|table| table.reading(now));
        let mut reading = reading.unwrap_or_else(|| self.computed(now));
        if self.held {
            reading.state = ClockState::Disrupted;
        }
        reading
    }

    /// The reading by the formulas of the verdict, with the part of the correction that is still
    /// missing.
    fn computed(&self, now: Timestamp) -> BoundedReading {
        let Some(verdict) = &self.verdict else { return BoundedReading::default() };
        let mut reading = verdict.reading(now, &self.config);
        let lag = self.lag(now) as i64;
        if lag != 0 {
            reading.offset_ns = reading.offset_ns.saturating_sub(lag);
            let more = |bound: u64| bound.saturating_add(lag.unsigned_abs());
            reading.proven_ns = reading.proven_ns.map(more);
            reading.assumed_ns = reading.assumed_ns.map(more);
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(at: Timestamp, offset_ns: i64) -> ClockVerdict {
        let horizon = Duration::from_secs(4);
        ClockVerdict { offset_ns, horizon, proven_ns: [-9.0, 9.0], ..ClockVerdict::reference(at) }
    }

    fn at(us: u64) -> Timestamp {
        Timestamp::from_nanos(1 << 60) + Duration::from_micros(us)
    }

    #[test]
    fn before_its_use_a_clock_steps_and_afterwards_it_is_slewed_within_the_rate() {
        let config = Config::default();
        let mut clock = SoftwareClock::new(config.clone());
        assert_eq!(clock.read(at(0)), BoundedReading::default());
        clock.follow(at(0), verdict(at(0), 5));
        clock.follow(at(1), verdict(at(1), 3_600_000_000_000));
        assert_eq!(clock.read(at(1)).offset_ns, 3_600_000_000_000, "not in use: it may step");
        clock.begin_use();
        let mut before = at(1).nanos() as i64 + 3_600_000_000_000;
        for (k, target) in [3_600_000_400_000, 3_599_999_000_000, 0].into_iter().enumerate() {
            let from = 10 + 3_000_000 * k as u64;
            clock.follow(at(from), verdict(at(from), target));
            for ms in 0..3_000 {
                let now = at(from + 1_000 * ms);
                let reading = clock.read(now);
                let shown = now.nanos() as i64 + reading.offset_ns;
                let passed = 1_000_000 - if ms == 0 { 0 } else { 501 };
                assert!(shown > before && (ms == 0 || shown - before >= passed));
                assert!(ms == 0 || shown - before <= 1_000_500 + 1, "{}", shown - before);
                let error = (reading.offset_ns - target).unsigned_abs();
                assert!(reading.proven_ns.expect("proven") >= error, "what is to come counts");
                before = shown;
            }
            if target != 0 {
                assert_eq!(clock.read(at(from + 2_999_000)).offset_ns, target, "made up");
            }
        }
    }

    #[test]
    fn a_clock_that_was_left_out_says_so_and_steps_at_the_next_verdict() {
        let mut clock = SoftwareClock::new(Config::default());
        clock.follow(at(0), verdict(at(0), 77));
        clock.begin_use();
        clock.hold();
        let reading = clock.read(at(1_000));
        assert_eq!((reading.offset_ns, reading.state), (77, ClockState::Disrupted));
        clock.follow(at(2_000), verdict(at(2_000), -5_000_000));
        let reading = clock.read(at(2_000));
        assert_eq!((reading.offset_ns, reading.state), (-5_000_000, ClockState::Synchronised));
        clock.follow(at(3_000), verdict(at(3_000), 0));
        assert_eq!(clock.read(at(3_000)).offset_ns, -5_000_000, "slewed again");
    }
}
