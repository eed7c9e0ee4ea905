//! A host's two clocks: the local monotonic one, and what a clock source says about it.

use core::time::Duration;

use evenfall_core::time::nanos;
use evenfall_core::{ClockError, ClockReading, Prng, Timestamp};

/// Drift is kept in units of 2^-40, fine enough for a nanosecond in a quarter of an hour, so that
/// a conversion is one multiplication and one shift.
const RATE_BITS: u32 = 40;

/// Timeouts further away than this (146 years) never come; below it nothing overflows.
const NEVER: u64 = 1 << 62;

/// How the clocks of a host behave.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockSpec {
    /// What the local clock shows when the run starts; drawn from the seed when `None`, so that
    /// nobody comes to rely on equal origins.
    pub origin: Option<Timestamp>,
    /// How much faster than true time the local clock runs, in parts per billion.
    pub drift_ppb: i64,
    /// Lasting error of the synchronised clock.
    pub offset_ns: i64,
    /// Each reading is wrong by up to this much more, either way.
    pub noise: Duration,
    /// The bound that readings state, be it true or not.
    pub stated: ClockError,
    /// Time between readings.
    pub period: Duration,
}

impl Default for ClockSpec {
    /// A perfect synchronised clock over a drift-free local one, read every 100 ms (a bound kept
    /// by a daemon such as chrony moves no faster).
    fn default() -> Self {
        Self {
            origin: None,
            drift_ppb: 0,
            offset_ns: 0,
            noise: Duration::ZERO,
            stated: ClockError::Within(Duration::ZERO),
            period: Duration::from_millis(100),
        }
    }
}

/// The state of a host's clocks.
#[derive(Clone, Debug)]
pub(crate) struct HostClock {
    spec: ClockSpec,
    /// True time and local time of the last change of rate.
    base: (u64, u64),
    rate: i64,
    inverse: i64,
    prng: Prng,
}

impl HostClock {
    pub(crate) fn new(spec: ClockSpec, mut prng: Prng) -> Self {
        // Between one second and about 2.4 hours, so that early times can be subtracted from.
        let drawn = 1_000_000_000 + prng.below(1 << 43);
        let origin = spec.origin.map_or(drawn, Timestamp::nanos);
        let mut clock = Self { base: (0, origin), rate: 0, inverse: 0, prng, spec };
        clock.set_drift(0, clock.spec.drift_ppb);
        clock
    }

    pub(crate) fn period(&self) -> Duration {
        self.spec.period
    }

    /// The local clock at a true time.
    #[inline]
    pub(crate) fn local(&self, at: u64) -> Timestamp {
        let passed = at.saturating_sub(self.base.0);
        Timestamp::from_nanos(self.base.1 + passed.wrapping_add_signed(scaled(passed, self.rate)))
    }

    /// The first true time at which the local clock shows at least `local`.
    #[inline]
    pub(crate) fn true_time(&self, local: Timestamp) -> u64 {
        let passed = local.nanos().saturating_sub(self.base.1);
        if passed > NEVER {
            return u64::MAX;
        }
        let guess = passed.saturating_add_signed(scaled(passed, self.inverse).saturating_neg());
        let mut at = self.base.0 + guess;
        if self.rate == 0 {
            return at;
        }
        // Rounding leaves the guess a few nanoseconds off.
        while self.local(at) < local {
            at += 1;
        }
        while at > self.base.0 && self.local(at - 1) >= local {
            at -= 1;
        }
        at
    }

    /// Changes the rate of the local clock; it goes on from where it is.
    pub(crate) fn set_drift(&mut self, now: u64, drift_ppb: i64) {
        self.base = (now, self.local(now).nanos());
        let per_billion = |n: i128, d: i128| ((n << RATE_BITS) / d) as i64;
        self.rate = per_billion(drift_ppb.into(), 1_000_000_000);
        self.inverse = per_billion(drift_ppb.into(), 1_000_000_000 + i128::from(drift_ppb));
    }

    /// The synchronised clock is wrong by this much more from now on.
    pub(crate) fn step(&mut self, by_ns: i64) {
        self.spec.offset_ns = self.spec.offset_ns.saturating_add(by_ns);
    }

    /// What the clock source says at a true time.
    pub(crate) fn reading(&mut self, at: u64) -> ClockReading {
        let right = at as i64 - self.local(at).nanos() as i64;
        let noise = nanos(self.spec.noise);
        let wrong = self.prng.below(2 * noise + 1) as i64 - noise as i64;
        ClockReading {
            offset_ns: right.saturating_add(self.spec.offset_ns).saturating_add(wrong),
            error: self.spec.stated,
        }
    }
}

#[inline]
fn scaled(ns: u64, rate: i64) -> i64 {
    ((i128::from(ns) * i128::from(rate)) >> RATE_BITS) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(drift_ppb: i64) -> HostClock {
        HostClock::new(ClockSpec { drift_ppb, ..ClockSpec::default() }, Prng::new(4))
    }

    #[test]
    fn a_drifting_clock_gains_what_its_rate_says() {
        let clock = clock(50_000);
        let gained = clock.local(10_000_000_000).since(clock.local(0));
        assert_eq!(gained, Duration::from_nanos(10_000_500_000 - 1), "50 ppm over 10 s, rounded");
    }

    #[test]
    fn true_time_is_the_first_instant_that_shows_the_local_time() {
        let mut prng = Prng::new(1);
        for drift in [0, 1, -1, 50_000, -200_000, 1_000_000] {
            let mut clock = clock(drift);
            clock.set_drift(1_234_567, drift * 2);
            for _ in 0..2_000 {
                let at = 1_234_567 + 1 + prng.below(1 << 42);
                let local = clock.local(at);
                let first = clock.true_time(local);
                assert!(first <= at && clock.local(first) >= local, "drift {drift} at {at}");
                assert!(clock.local(first - 1) < local, "drift {drift} at {at}");
            }
        }
    }

    #[test]
    fn never_is_never() {
        assert_eq!(clock(0).true_time(Timestamp::MAX), u64::MAX);
        assert_eq!(clock(100_000).true_time(Timestamp::MAX), u64::MAX);
    }

    #[test]
    fn a_reading_is_wrong_by_its_offset_and_noise_only() {
        let noise = Duration::from_nanos(300);
        let spec = ClockSpec { drift_ppb: 9_000, offset_ns: -500, noise, ..ClockSpec::default() };
        let mut clock = HostClock::new(spec, Prng::new(2));
        clock.step(100_000);
        for at in (0..1_000_000_000).step_by(1_000_003) {
            let shown = clock.local(at).nanos() as i64 + clock.reading(at).offset_ns;
            assert!((shown - at as i64 - 99_500).abs() <= 300);
        }
    }
}
