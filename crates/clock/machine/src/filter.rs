//! The course of one node's clock against the reference, from solve to solve.
//!
//! One window of two seconds gives the rate of a clock with an error of some parts per billion. The
//! result is used up to three seconds after the middle of the window. A Kalman filter with two
//! states, offset and rate, therefore combines the windows. In the filter the rate wanders as the
//! rate of a crystal does. A measurement far from the prediction means that the clock stepped, and
//! the filter begins anew.

use core::time::Duration;

use evenfall_core::Timestamp;

use crate::bound::{ClockState, ClockVerdict};

/// How fast the rates of two crystals usually move apart, in nanoseconds per second squared.
/// Sensors in server rooms see some hundredths of a kelvin per second at a change of load. The rate
/// of a crystal moves by up to a part per million for each kelvin. The worst value, for the proven
/// bound, is in the configuration.
pub(crate) const WANDER_PPB_S: f64 = 20.0;
/// Standard errors beyond which a measurement is a step and not noise.
const STEP_ERRORS: f64 = 8.0;
/// A smaller difference is no step, however quiet the network was: 20 us. The filter follows such a
/// difference within a few windows.
const STEP_NS_MIN: f64 = 20_000.0;

/// Offset and rate of a node against the reference.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    /// Time of the reference.
    at: Timestamp,
    /// The whole nanoseconds of the node's clock less the clock of the reference.
    base: i64,
    /// The fraction of the difference, which is added to `base`.
    rest: f64,
    /// Nanoseconds for each second.
    rate: f64,
    /// Variances of offset, of offset and rate together, and of rate.
    variances: [f64; 3],
}

/// Variances after `seconds` without a measurement.
fn later([oo, or, rr]: [f64; 3], seconds: f64) -> [f64; 3] {
    let change = WANDER_PPB_S * seconds;
    let shift = change * seconds / 2.0;
    [
        oo + 2.0 * or * seconds + rr * seconds * seconds + shift * shift,
        or + rr * seconds + change * shift,
        rr + change * change,
    ]
}

impl Filter {
    fn new(at: Timestamp, offset: (i64, f64), rate: f64, variances: (f64, f64)) -> Self {
        let variances = [variances.0, 0.0, variances.1 * 1e18];
        Self { at, base: offset.0, rest: offset.1, rate: rate * 1e9, variances }
    }

    /// Takes a measurement at the reference's time `at`: the offset in two parts, the rate, and
    /// both variances. The variance of the offset is in nanoseconds squared, and the variance of
    /// the rate has no unit. Returns false when the clock has stepped.
    pub(crate) fn advance(
        course: &mut Option<Self>,
        at: Timestamp,
        offset: (i64, f64),
        rate: f64,
        variances: (f64, f64),
    ) -> bool {
        let fresh = Self::new(at, offset, rate, variances);
        let Some(old) = course else {
            *course = Some(fresh);
            return true;
        };
        let seconds = at.signed_since(old.at) as f64 * 1e-9;
        let mut spread = later(old.variances, seconds);
        let shift = (i128::from(offset.0) - i128::from(old.base)) as f64;
        let mut rest = old.rest + old.rate * seconds - shift;
        let mut slope = old.rate;
        let off = offset.1 - rest;
        let limit = (STEP_ERRORS * (spread[0] + variances.0).sqrt()).max(STEP_NS_MIN);
        if off.abs() > limit || seconds <= 0.0 {
            *course = Some(fresh);
            return false;
        }
        // The offset first, then the rate: two measurements of one number each.
        let [oo, or, rr] = spread;
        let gain = [oo / (oo + variances.0), or / (oo + variances.0)];
        rest += gain[0] * off;
        slope += gain[1] * off;
        spread = [(1.0 - gain[0]) * oo, (1.0 - gain[0]) * or, rr - gain[1] * or];
        let [oo, or, rr] = spread;
        let variance = variances.1 * 1e18;
        let gain = [or / (rr + variance), rr / (rr + variance)];
        let off = rate * 1e9 - slope;
        rest += gain[0] * off;
        slope += gain[1] * off;
        spread = [oo - gain[0] * or, (1.0 - gain[1]) * or, (1.0 - gain[1]) * rr];
        *course = Some(Self { at, base: offset.0, rest, rate: slope, variances: spread });
        true
    }

    /// By how much the clock of the reference has jumped, if the node's clock has not. The
    /// reference shows `at`, and the node's clock is ahead of the reference by `ahead.0 + ahead.1`.
    pub(crate) fn jump_of_reference(&self, at: Timestamp, ahead: (i64, f64)) -> i64 {
        let passed = i128::from(at.nanos()) - i128::from(self.at.nanos());
        let shown = passed + i128::from(ahead.0) - i128::from(self.base);
        // The reading of the node's clock, as a time of the reference without the jump.
        let real = (shown as f64 + ahead.1 - self.rest) / (1.0 + self.rate * 1e-9);
        let jump = passed - real as i128;
        jump.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Goes on with the course after the clock of the reference has jumped ahead by `by`
    /// nanoseconds. The node's clock has not jumped.
    pub(crate) fn follow_reference(&mut self, by: i64) {
        self.at = Timestamp::from_nanos(self.at.nanos().saturating_add_signed(by));
        self.base = self.base.saturating_sub(by);
    }

    /// The verdict of the course at the reference's time `now`. `bounds` are the proven bounds at
    /// `now` and at `horizon` later, less `coarse`.
    pub(crate) fn verdict(
        &self,
        now: Timestamp,
        coarse: i64,
        bounds: [[f64; 2]; 2],
        horizon: Duration,
    ) -> ClockVerdict {
        let seconds = now.signed_since(self.at) as f64 * 1e-9;
        let ahead = self.rest + self.rate * seconds;
        let whole = ahead.floor();
        let offset = self.base.saturating_add(whole as i64);
        let shift = (i128::from(coarse) - i128::from(offset)) as f64;
        let rise = self.rate * horizon.as_secs_f64();
        let horizon_ns = horizon.as_secs_f64() * 1e9;
        // A node that is further ahead than the estimate has to be set back further.
        let early = |bound: f64| -(shift + bound);
        let late = |bound: f64| -(shift + bound - rise);
        let [from, to] = [bounds[0][1], bounds[0][0]].map(early);
        let [from_later, to_later] = [bounds[1][1], bounds[1][0]].map(late);
        ClockVerdict {
            at: Timestamp::from_nanos(now.nanos().saturating_add_signed(offset)),
            offset_ns: offset.saturating_neg(),
            rate: -self.rate * 1e-9 / (1.0 + self.rate * 1e-9),
            state: ClockState::Synchronised,
            standing_ns: 0.0,
            variances: later(self.variances, seconds),
            proven_ns: [from, to],
            proven_rate: [(from_later - from) / horizon_ns, (to_later - to) / horizon_ns],
            horizon,
        }
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_course_learns_a_rate_better_than_one_window_tells_it() {
        let mut prng = Prng::new(1);
        let mut course = None;
        for k in 1..=30 {
            let offset = (40_000 * 2 * k as i64, 30.0 * prng.normal());
            let rate = 40e-6 + 200e-9 * prng.normal();
            assert!(Filter::advance(&mut course, at(2 * k), offset, rate, (900.0, 4e-14)));
        }
        let course = course.expect("measured");
        assert!((course.rate - 40_000.0).abs() < 60.0, "{}", course.rate);
        assert!(course.rest.abs() < 60.0 && course.variances[0] < 900.0);
    }

    #[test]
    fn a_step_begins_the_course_anew_and_is_said() {
        for step in [1_000_000_000i64, -946_728_000_000_000_000] {
            let mut course = None;
            let variances = (100.0, 1e-16);
            assert!(Filter::advance(&mut course, at(2), (5, 0.0), 0.0, variances));
            assert!(Filter::advance(&mut course, at(4), (0, 4.0), 0.0, variances));
            assert!(!Filter::advance(&mut course, at(6), (step, 4.0), 0.0, variances));
            assert_eq!(course.as_ref().expect("measured").base, step);
        }
    }
}
