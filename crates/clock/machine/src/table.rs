//! A table of the two bounds of a verdict, for quick readings of the clock.
//!
//! The formulas of a reading take a square root and a dozen conversions between whole and floating
//! numbers. A clock is read at least fifty times a second, and a verdict lasts for two seconds. The
//! table therefore keeps both bounds at the ends of sixteen steps of a quarter of a second. Both
//! bounds are convex functions of the age, so that the straight line between the two ends of a step
//! is never below them. A reading takes the bound from this line, with whole numbers alone.
//!
//! The proven bound is convex within the horizon, because it is the maximum of the absolute values
//! of two straight lines, plus a square of the age. The assumed bound is convex, because it is a
//! constant plus a multiple of the length of a vector: the variances of offset and rate are a
//! covariance matrix, whose quadratic form is a sum of squares of straight lines. The bend adds the
//! square of a convex function that is not negative.
//!
//! ```text
//!   bound |                 o     o  exact, at the ends of steps
//!         |           o  .`          .  a reading between them
//!         |     o  .-`
//!         +-----+-----+-----+---> age of the verdict
//! ```

use evenfall_core::Timestamp;

use crate::bound::ALWAYS;
use crate::{BoundedReading, ClockState, ClockVerdict, Config};

/// The length of a step is 2^28 nanoseconds, which are 268 ms. In the middle of a step, a bound
/// that bends by 200 ppb/s is 2 ns below the line.
const STEP_BITS: u32 = 28;
/// The length of a step in nanoseconds.
const STEP_NS: u64 = 1 << STEP_BITS;
/// Number of steps of a table. Together they last 4.3 s, and the next verdict comes after two
/// seconds.
const STEPS: usize = 16;
/// All bounds of a table are below 2^35 nanoseconds, which are 34 s. The product of a bound and the
/// length of a step then fits into 64 bits.
const BOUND_NS_END: u64 = 1 << (63 - STEP_BITS);

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    at_ns: u64,
    /// Time after `at_ns` in which the table holds.
    span_ns: u64,
    offset_ns: i64,
    slope: Slope,
    state: ClockState,
    is_proven: bool,
    /// Proven and assumed bound at the ends of the steps.
    bounds: [[u64; 2]; STEPS + 1],
}

impl Table {
    /// The table of a verdict. `None` for the verdict of the reference, and for bounds of
    /// [`BOUND_NS_END`] and more.
    pub(crate) fn of(verdict: &ClockVerdict, config: &Config) -> Option<Self> {
        if verdict.horizon == ALWAYS {
            return None;
        }
        // The proven bound grows in another way beyond the horizon, and the clock is free-running
        // beyond two windows.
        let span = verdict.horizon.min(2 * config.window).as_nanos();
        let steps = usize::try_from(span >> STEP_BITS).unwrap_or(STEPS).min(STEPS);
        let is_proven = verdict.proven(0.0, config).is_some();
        let mut bounds = [[0; 2]; STEPS + 1];
        for (step, ends) in bounds.iter_mut().enumerate().take(steps + 1) {
            let age = (step as u64 * STEP_NS) as f64;
            let proven = if is_proven { verdict.proven(age, config)? } else { BOUND_NS_END - 1 };
            *ends = [proven, verdict.assumed(age, config)];
            if ends.iter().any(|bound| *bound >= BOUND_NS_END) {
                return None;
            }
        }
        Some(Self {
            at_ns: verdict.at.nanos(),
            span_ns: steps as u64 * STEP_NS,
            offset_ns: verdict.offset_ns,
            slope: Slope::of(verdict.rate),
            state: verdict.state,
            is_proven,
            bounds,
        })
    }

    /// The reading at `now`. `None` when `now` is before or after the steps of the table.
    #[inline]
    pub(crate) fn reading(&self, now: Timestamp) -> Option<BoundedReading> {
        let age = now.nanos().wrapping_sub(self.at_ns);
        if age >= self.span_ns {
            return None;
        }
        let (step, into) = ((age >> STEP_BITS) as usize, age & (STEP_NS - 1));
        let (from, to) = (self.bounds[step], self.bounds[step + 1]);
        let line =
            |k: usize| (from[k] * (STEP_NS - into) + to[k] * into + (STEP_NS - 1)) >> STEP_BITS;
        let (proven, assumed) = (line(0), line(1));
        Some(BoundedReading {
            offset_ns: self.offset_ns.saturating_add(self.slope.after(age as i64)),
            state: self.state,
            proven_ns: self.is_proven.then_some(proven),
            assumed_ns: Some(assumed.min(proven)),
        })
    }
}

/// A rate in units of 2^-62, for multiplication by whole nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slope(i64);

impl Slope {
    /// Bits behind the binary point. The bits in front of it hold slopes below two, and the sign.
    const BITS: u32 = 62;

    /// The slope of a rate in nanoseconds for each nanosecond. Rates beyond two count as two.
    pub(crate) fn of(rate: f64) -> Self {
        Self((rate * (1u64 << Self::BITS) as f64) as i64)
    }

    /// The correction by the rate after `age_ns` nanoseconds, as the nearest whole number. Halves
    /// are rounded up.
    #[inline]
    pub(crate) fn after(self, age_ns: i64) -> i64 {
        let product = i128::from(self.0) * i128::from(age_ns) + (1 << (Self::BITS - 1));
        // A slope is at most two, so the correction is at most twice the largest age.
        (product >> Self::BITS).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use evenfall_core::Prng;

    use super::*;

    fn verdict(prng: &mut Prng) -> ClockVerdict {
        let reach = 200_000.0 * prng.unit();
        let middle = 20_000.0 * prng.normal();
        let error = |prng: &mut Prng, scale: f64| {
            let deviation = scale * prng.normal();
            deviation * deviation
        };
        let (offset, rate) = (error(prng, 100.0), error(prng, 10.0));
        ClockVerdict {
            offset_ns: (1e12 * prng.normal()) as i64,
            rate: 1e-4 * prng.normal(),
            standing_ns: 3_000.0 * prng.unit(),
            variances: [offset, 0.9 * (offset * rate).sqrt() * (2.0 * prng.unit() - 1.0), rate],
            proven_ns: [middle - reach, middle + reach],
            proven_rate: [-4e-6 * prng.unit(), 4e-6 * prng.unit()],
            horizon: Duration::from_nanos(1_000_000_000 + prng.below(4_000_000_000)),
            ..ClockVerdict::reference(Timestamp::from_nanos(1 << 60))
        }
    }

    #[test]
    fn a_table_says_what_the_formulas_say_and_its_bounds_are_never_narrower() {
        let (mut prng, config) = (Prng::new(17), Config::default());
        let mut read = 0;
        for _ in 0..500 {
            let verdict = verdict(&mut prng);
            let table = Table::of(&verdict, &config).expect("bounds below a second");
            for _ in 0..200 {
                let now = verdict.at + Duration::from_nanos(prng.below(4_200_000_000));
                let Some(fast) = table.reading(now) else { continue };
                let exact = verdict.reading(now, &config);
                read += 1;
                assert_eq!((fast.offset_ns, fast.state), (exact.offset_ns, exact.state));
                for (fast, exact) in
                    [(fast.proven_ns, exact.proven_ns), (fast.assumed_ns, exact.assumed_ns)]
                {
                    let (fast, exact) = (fast.expect("a bound"), exact.expect("a bound"));
                    // The curve has a corner where the other side of the band becomes the
                    // farther side. The slopes of both sides differ by at most 4e-6 here, so the
                    // line is at most 270 ns above the corner.
                    assert!(exact <= fast && fast <= exact + 280, "{fast} {exact}");
                }
            }
        }
        assert!(read > 50_000, "{read}");
    }

    #[test]
    fn before_and_after_its_steps_and_beyond_its_numbers_a_table_is_silent() {
        let (mut prng, config) = (Prng::new(1), Config::default());
        let known = verdict(&mut prng);
        let table = Table::of(&known, &config).expect("a table");
        assert!(table.reading(known.at - Duration::from_nanos(1)).is_none());
        assert!(table.reading(known.at).is_some());
        assert!(table.reading(known.at + known.horizon).is_none());
        assert!(Table::of(&ClockVerdict::reference(known.at), &config).is_none());
        let wide = ClockVerdict { proven_ns: [-1e11, 1e11], ..known };
        assert!(Table::of(&wide, &config).is_none());
        let unproven = ClockVerdict { proven_ns: [f64::NEG_INFINITY, f64::INFINITY], ..known };
        let table = Table::of(&unproven, &config).expect("a table");
        let reading = table.reading(known.at).expect("within the table");
        assert_eq!(reading, unproven.reading(known.at, &config));
        assert_eq!(reading.proven_ns, None);
    }

    #[test]
    fn a_slope_rounds_to_the_nearest_and_does_not_overflow() {
        assert_eq!(Slope::of(0.5).after(3), 2);
        assert_eq!(Slope::of(-0.5).after(3), -1);
        assert_eq!(Slope::of(1e-4).after(1_000_000_000), 100_000);
        assert_eq!(Slope::of(1e300).after(i64::MAX), i64::MAX);
        assert_eq!(Slope::of(-1e300).after(i64::MAX), i64::MIN);
        assert_eq!(Slope::of(f64::NAN).after(i64::MAX), 0);
    }
}
