//! The two clocks of a host: the local monotonic clock, and the synchronised clock as a clock
//! source states it.

use core::time::Duration;

use evenfall_core::time::nanos;
use evenfall_core::{ClockError, ClockReading, Prng, Timestamp};

use crate::cloud::{draw, unit};
use crate::math::{mix, normal_quantile};

/// Drift is kept in units of 2^-40, so that a conversion is one multiplication and one shift. This
/// unit is fine enough for a nanosecond in a quarter of an hour.
const RATE_BITS: u32 = 40;

/// Timeouts further away than 146 years never come. The sum of two shorter times does not overflow.
const NEVER: u64 = 1 << 62;

/// How the clocks of a host behave.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockSpec {
    /// What the local clock shows when the run starts; drawn from the seed when `None`, so that
    /// nobody comes to rely on equal origins.
    pub origin: Option<Timestamp>,
    /// How much faster than true time the local clock runs, in parts per billion.
    pub drift_ppb: i64,
    /// Each host has a drift of its own besides, which the seed draws: up to this much either way.
    pub drift_spread_ppb: u32,
    /// Standard deviation by which the rate wanders about the drift, in parts per billion. The
    /// crystal of a host follows the temperature. A rate is renewed in `wander_period`.
    pub wander_ppb: u32,
    /// The time in which the rate is renewed: values this far apart are independent.
    pub wander_period: Duration,
    /// Lasting error of the synchronised clock.
    pub offset_ns: i64,
    /// Each host has an error of its own besides, which the seed draws: up to this much either way.
    pub offset_spread: Duration,
    /// At most how fast the synchronised clock goes back to its lasting error after a step, in
    /// parts per billion; 0 for never. A daemon such as chrony slews and does not step back.
    pub slew_ppb: u32,
    /// Each reading is wrong by up to this much more, either way.
    pub noise: Duration,
    /// The error bound that readings state, whether or not the bound is true.
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
            drift_spread_ppb: 0,
            wander_ppb: 0,
            wander_period: Duration::from_secs(60),
            offset_ns: 0,
            offset_spread: Duration::ZERO,
            slew_ppb: 0,
            noise: Duration::ZERO,
            stated: ClockError::Within(Duration::ZERO),
            period: Duration::from_millis(100),
        }
    }
}

/// The state of a host's clocks. The fields that convert times come first, for one line of the
/// cache.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct HostClock {
    /// True time and local time of the last change of rate.
    base: (u64, u64),
    rate: i64,
    inverse: i64,
    prng: Prng,
    /// The present wander of the rate.
    wander_key: u64,
    /// By how much a step has moved the synchronised clock from its lasting error, and when that
    /// was last looked at.
    stepped: i64,
    slewed_to: u64,
    spec: Box<ClockSpec>,
}

impl HostClock {
    pub(crate) fn new(mut spec: ClockSpec, mut prng: Prng) -> Self {
        // Between one second and about 2.4 hours, so that early times can be subtracted from.
        let drawn = 1_000_000_000 + prng.below(1 << 43);
        let origin = spec.origin.map_or(drawn, Timestamp::nanos);
        let mut own = Prng::new(drawn);
        let mut either_way = |most: u64| own.below(2 * most + 1) as i64 - most as i64;
        spec.drift_ppb += either_way(spec.drift_spread_ppb.into());
        spec.offset_ns = spec.offset_ns.saturating_add(either_way(nanos(spec.offset_spread)));
        let (wander_key, base) = (mix(drawn), (0, origin));
        let (rate, inverse, stepped, slewed_to) = (0, 0, 0, 0);
        let mut clock = Self {
            base,
            rate,
            inverse,
            prng,
            wander_key,
            stepped,
            slewed_to,
            spec: Box::new(spec),
        };
        clock.set_drift(0, clock.spec.drift_ppb);
        clock
    }

    /// Whether the rate changes by itself.
    pub(crate) fn wanders(&self) -> bool {
        self.spec.wander_ppb > 0
    }

    /// The rate follows the temperature. Called when the clock is read: between two readings the
    /// temperature does not change much.
    pub(crate) fn wander(&mut self, now: u64) {
        let rate = self.rate_at(now);
        self.set_rate(now, rate);
    }

    /// Drift and wander at a time, in parts per billion. The wander is straight lines between
    /// hashed values, one per period.
    fn rate_at(&self, at: u64) -> f64 {
        let period = nanos(self.spec.wander_period).max(1);
        let (number, within) = (at / period, at % period);
        let value =
            |k: u64| normal_quantile(unit(draw(self.wander_key, k)).clamp(1e-9, 1.0 - 1e-9));
        let drift = self.spec.drift_ppb as f64;
        if self.spec.wander_ppb == 0 {
            return drift;
        }
        let (from, to) = (value(number), value(number + 1));
        let wander = from + (to - from) * (within as f64 / period as f64);
        drift + wander * f64::from(self.spec.wander_ppb)
    }

    /// Reads the lines of the cache that a conversion of times needs.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.base.0 ^ self.inverse as u64
    }

    pub(crate) fn period(&self) -> Duration {
        self.spec.period
    }

    /// The time from the first reading to the second, from the seed.
    pub(crate) fn phase(&mut self) -> u64 {
        self.prng.below(nanos(self.spec.period).max(1))
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
        self.spec.drift_ppb = drift_ppb;
        let rate = self.rate_at(now);
        self.set_rate(now, rate);
    }

    fn set_rate(&mut self, now: u64, ppb: f64) {
        self.base = (now, self.local(now).nanos());
        // Thousandths of a part per billion: finer than any crystal is known.
        let thousandths = (ppb * 1e3) as i128;
        let share = |n: i128, d: i128| ((n << RATE_BITS) / d) as i64;
        self.rate = share(thousandths, 1_000_000_000_000);
        self.inverse = share(thousandths, 1_000_000_000_000 + thousandths);
    }

    /// The synchronised clock is wrong by this much more from now on, or until it has slewed back.
    pub(crate) fn step(&mut self, now: u64, by_ns: i64) {
        self.slew(now);
        self.stepped = self.stepped.saturating_add(by_ns);
    }

    /// From now on readings state this error.
    pub(crate) fn state(&mut self, error: ClockError) {
        self.spec.stated = error;
    }

    /// Goes back towards the lasting error, as far as the time since the last look allows.
    fn slew(&mut self, now: u64) {
        let passed = now.saturating_sub(core::mem::replace(&mut self.slewed_to, now));
        let most = (u128::from(passed) * u128::from(self.spec.slew_ppb) / 1_000_000_000) as i64;
        self.stepped -= self.stepped.clamp(-most, most);
    }

    fn wrong_by(&self) -> i64 {
        self.spec.offset_ns.saturating_add(self.stepped)
    }

    /// What the clock source says at a true time.
    pub(crate) fn reading(&mut self, at: u64) -> ClockReading {
        self.slew(at);
        let right = at as i64 - self.local(at).nanos() as i64;
        let noise = nanos(self.spec.noise);
        let wrong = self.prng.below(2 * noise + 1) as i64 - noise as i64;
        ClockReading {
            offset_ns: right.saturating_add(self.wrong_by()).saturating_add(wrong),
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
        clock.step(0, 100_000);
        for at in (0..1_000_000_000).step_by(1_000_003) {
            let shown = clock.local(at).nanos() as i64 + clock.reading(at).offset_ns;
            assert!((shown - at as i64 - 99_500).abs() <= 300);
        }
    }
}
