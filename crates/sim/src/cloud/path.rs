//! A path: the stages between two cards, one after the other.
//!
//! ```text
//! sender's card -> slowness by a fault -> sender's host -> queue of the path -> lasting delay
//!               -> receiver's host -> receiver's card
//! ```
//!
//! Every stage maps the time at which a packet enters to the time at which the packet leaves. The
//! map never decreases. So packets of a pair stay in order through all of them.

use evenfall_core::Prng;
use evenfall_core::time::nanos;

use crate::HostIndex;
use crate::cloud::profile::{CloudProfile, Spread};
use crate::cloud::queueing::{GOLDEN, LoadTimes, ONE, OutageTimes, POINT, draw, factors, unit};
use crate::math::{exp, mix, normal_quantile};
use crate::quantiles::Quantiles;

/// Words that give every stage of a path random numbers of its own.
mod salt {
    pub(super) const PAIR: u64 = 0x70_61_69_72;
    pub(super) const DIRECTION: u64 = 0x64_69_72;
    pub(super) const SPIKE: u64 = 0x73_70_69_6b;
    pub(super) const LOSS: u64 = 0x6c_6f_73_73;
    pub(super) const ROUTE: u64 = 0x72_6f_75_74;
    pub(super) const INGRESS: u64 = 0x69_6e;
    pub(super) const SPRAY: u64 = 0x73_70_72_61;
}

const SQRT_3: f64 = 1.732_050_807_568_877_2;
/// The largest wander: the drift of a pair must not be longer than its delay.
const WANDER_MAX: f64 = 0.5;
/// The shortest time between two changes of a route. A routing protocol needs about as long.
const ROUTE_LEAST_NS: u64 = 100_000_000;

/// The lasting properties of a host at the ends of its paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Its key, from which its episodes and loads are drawn.
    pub(super) key: u64,
    /// Factors on the delay of what the host sends and of what it receives.
    pub(super) send: f64,
    pub(super) receive: f64,
}

impl Ends {
    /// Draws the properties of a host from the seed.
    pub(super) fn new(profile: &CloudProfile, seed: u64, host: u64, slowness: f64) -> Self {
        let key = mix(seed ^ host.wrapping_mul(GOLDEN));
        let mut prng = Prng::new(key);
        let mut normal = || normal_quantile(prng.unit().clamp(1e-9, 1.0 - 1e-9));
        let Spread { sender, receiver, correlation, .. } = profile.spread;
        let (both, own) = (normal(), normal());
        let rest = (1.0 - correlation * correlation).max(0.0).sqrt();
        let mut send = slowness * exp(sender * both);
        let mut receive = slowness * exp(receiver * (correlation * both + rest * own));
        if prng.chance(profile.stragglers.share) {
            send *= profile.stragglers.send;
            receive *= profile.stragglers.receive;
        }
        Self { key, send, receive }
    }
}

/// A path is at most this many times as slow as the median, in fixed-point. A delay of four
/// seconds, the longest of a model, then has room in 64 bits.
const SCALE_MAX: u64 = 2_048 << POINT;

/// A slowness in fixed-point.
fn scale_of(slowness: f64) -> u64 {
    ((slowness * ONE as f64) as u64).min(SCALE_MAX)
}

/// A slowness times another factor in fixed-point.
fn scaled(scale: u64, factor: u64) -> u64 {
    ((scale * factor) >> POINT).min(SCALE_MAX)
}

/// A delay times a factor in fixed-point.
fn times(delay: u64, factor: u64) -> u64 {
    ((u128::from(delay) * u128::from(factor)) >> POINT) as u64
}

/// A path with its lasting properties.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) key: u64,
    /// The factors of both hosts, of the pair and of the direction, multiplied, in fixed-point.
    scale: u64,
    from: u64,
    to: u64,
}

/// All paths of a cloud. Nothing is stored for a single path.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    seed: u64,
    profile: CloudProfile,
    base: u64,
    wander_ns: u64,
    pair: Option<Quantiles>,
    direction: Option<Quantiles>,
    spikes: Option<OutageTimes>,
    episodes: Option<OutageTimes>,
    load: Option<LoadTimes>,
    losses: Option<OutageTimes>,
    routes: Option<Routes>,
}

impl Paths {
    pub(super) fn new(profile: &CloudProfile, seed: u64) -> Self {
        let outages = |outages: &Option<_>| outages.as_ref().map(OutageTimes::new);
        Self {
            seed,
            base: nanos(profile.base),
            wander_ns: nanos(profile.wander_period).max(1),
            pair: factors(profile.spread.pair),
            direction: factors(profile.spread.direction),
            spikes: outages(&profile.spikes),
            episodes: outages(&profile.episodes),
            load: profile.load.as_ref().map(LoadTimes::new),
            losses: outages(&profile.loss.bursts),
            routes: profile.reroutes.map(|routes| Routes::new(nanos(routes.every), routes.sigma)),
            profile: profile.clone(),
        }
    }

    /// The path from one host to another. Sprayed packets have paths with numbers above 0.
    #[inline]
    pub(super) fn path(
        &self,
        from: (HostIndex, &Ends),
        to: (HostIndex, &Ends),
        number: u64,
    ) -> Path {
        let ((from, sender), (to, receiver)) = (from, to);
        let hash = |a: u32, b: u32| {
            mix(self.seed ^ (u64::from(a) << 32 | u64::from(b)).wrapping_mul(GOLDEN))
        };
        let mut key = hash(from.0, to.0);
        if number > 0 {
            key = mix(key ^ salt::SPRAY ^ number.wrapping_mul(GOLDEN));
        }
        let mut scale = scale_of(sender.send * receiver.receive);
        if let Some(direction) = &self.direction {
            scale = scaled(scale, direction.sample(mix(key ^ salt::DIRECTION)));
        }
        if let Some(pair) = &self.pair {
            let both = hash(from.0.min(to.0), from.0.max(to.0));
            scale = scaled(scale, pair.sample(mix(both ^ salt::PAIR)));
        }
        Path { key, scale, from: sender.key, to: receiver.key }
    }

    /// The lasting delay of a path at a time, without drift.
    pub(super) fn base(&self, path: &Path, at: u64) -> u64 {
        let base = (self.base * path.scale) >> POINT;
        self.routes.as_ref().map_or(base, |routes| routes.at(path.key, base, at))
    }

    /// No packet on any path takes less, in nanoseconds, when the slowness of the two hosts of a
    /// path is at least `ends`.
    pub(super) fn least(&self, ends: f64) -> u64 {
        let mut scale = scale_of(ends);
        for spread in [&self.direction, &self.pair].into_iter().flatten() {
            scale = scaled(scale, spread.at(0.0));
        }
        let usual = (self.base * scale) >> POINT;
        let shortest = self.routes.as_ref().map_or(usual, |routes| routes.least(usual));
        let drift = usual as f64 * SQRT_3 * self.profile.wander.min(WANDER_MAX);
        // Rounding takes up to three nanoseconds.
        let lasting = shortest.saturating_sub(drift as u64 + 3);
        lasting + self.profile.waits.least(scale)
    }

    /// When a packet that enters the path at a time comes to the receiver's card.
    #[inline]
    pub(super) fn arrival(&self, path: &Path, enters: u64) -> u64 {
        let mut at = enters;
        if self.episodes.is_some() || self.load.is_some() {
            at += self.standstill(path.from, path.from, at);
        }
        let wait = self.profile.waits.at(path.key, path.scale, at);
        let spike = self.spikes.as_ref().map_or(0, |s| s.at(path.key ^ salt::SPIKE, at));
        at += wait.max(spike);
        at = self.lasting(path, at);
        if self.episodes.is_some() || self.load.is_some() {
            at += self.standstill(path.to, path.to ^ salt::INGRESS, at);
        }
        at
    }

    /// How long a packet waits at a host, nanoseconds. Each direction has a `key` of its own for
    /// the waits by load. The episodes of a host hit both directions at the same times.
    fn standstill(&self, host: u64, key: u64, at: u64) -> u64 {
        let episode = self.episodes.as_ref().map_or(0, |episodes| episodes.at(host, at));
        let load = self.load.as_ref().map_or(0, |load| load.at(host, key, at));
        episode.max(load)
    }

    /// When a packet that has passed the queue of the path has also passed the lasting delay and
    /// its drift.
    ///
    /// While a shorter route takes over, the delay falls as fast as time passes. If the drift made
    /// the delay fall faster still, packets would overtake each other. So the drift is a stage of
    /// its own: the lasting delay less the largest drift comes first, then the drift plus the
    /// largest drift, which is never negative.
    #[inline]
    fn lasting(&self, path: &Path, at: u64) -> u64 {
        let base = self.base(path, at);
        if self.profile.wander == 0.0 {
            return at + base;
        }
        let usual = (self.base * path.scale) >> POINT;
        let most = usual as f64 * SQRT_3 * self.profile.wander.min(WANDER_MAX);
        let at = at + base.saturating_sub(most as u64);
        at + (most * (1.0 + self.drift(path.key, at))) as u64
    }

    /// The drift of a pair, from -1 to 1: straight lines between hashed values, one per period.
    /// Cheap and without state, where an Ornstein-Uhlenbeck process would need a number per pair.
    /// The lines fall much more slowly than time passes, so packets stay in order.
    #[inline]
    fn drift(&self, key: u64, at: u64) -> f64 {
        // Each pair has its own phase. Otherwise the drifts of all pairs would turn at one instant.
        let shifted = at + key % self.wander_ns;
        let (period, within) = (shifted / self.wander_ns, shifted % self.wander_ns);
        // The values are uniform in -1..1, of standard deviation 1/sqrt 3.
        let value = |k: u64| 2.0 * unit(draw(key, k)) - 1.0;
        let (from, to) = (value(period), value(period + 1));
        from + (to - from) * (within as f64 / self.wander_ns as f64)
    }

    /// Whether a burst of losses is under way on the path at a time.
    #[inline]
    pub(super) fn loses(&self, path: &Path, at: u64) -> bool {
        self.losses.as_ref().is_some_and(|losses| losses.at(path.key ^ salt::LOSS, at) > 0)
    }
}

/// The routes that a pair has one after the other, each with its own lasting delay.
#[derive(Clone, Debug)]
struct Routes {
    factors: Option<Quantiles>,
    /// The route changes once in each period. Nanoseconds.
    period: u64,
}

impl Routes {
    fn new(every: u64, sigma: f64) -> Self {
        Self { factors: factors(sigma), period: every.max(2 * ROUTE_LEAST_NS) }
    }

    /// The lasting delay of the shortest route that there can be.
    fn least(&self, base: u64) -> u64 {
        self.factors.as_ref().map_or(base, |factors| times(base, factors.at(0.0)))
    }

    /// The lasting delay at a time. A route that is shorter than the one before takes over at the
    /// rate of time: the first packets on the new route arrive together with the last on the old.
    fn at(&self, key: u64, base: u64, at: u64) -> u64 {
        let Some(factors) = &self.factors else { return base };
        let key = key ^ salt::ROUTE;
        let shifted = at + key % self.period;
        let period = shifted / self.period;
        let word = draw(key, period);
        // The change comes at a random time of the period, but not in its last 100 ms. So two
        // changes are at least 100 ms apart.
        let change = (((self.period - ROUTE_LEAST_NS) as f64) * unit(word)) as u64;
        let within = shifted - period * self.period;
        let delay = |period: u64| {
            let delay = times(base, factors.sample(mix(draw(key, period) ^ GOLDEN)));
            // A change to the shortest route must be over before the next change can come.
            if delay <= ROUTE_LEAST_NS {
                delay
            } else {
                delay.min(self.least(base) + ROUTE_LEAST_NS)
            }
        };
        if within < change {
            return delay(period);
        }
        let left = delay(period).saturating_sub(within - change);
        delay(period + 1).max(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_delays_have_room() {
        let mut scale = scale_of(1e4);
        for _ in 0..2 {
            scale = scaled(scale, u64::from(u32::MAX));
        }
        assert_eq!(scale, SCALE_MAX);
        let longest = nanos(core::time::Duration::from_secs(4)).checked_mul(scale);
        let routed = times(longest.expect("64 bits are enough") >> POINT, u64::from(u32::MAX));
        assert!(routed > 4_000_000_000 * 2_048 * 4_095, "{routed}");
    }
}
