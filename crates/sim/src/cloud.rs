//! The network that a cloud tenant sees: hosts, delays between them, and no idea why.
//!
//! ```text
//! sender's card                       between the hosts                         receiver
//! queue, bits/s  ->  base(pair) + jitter [+ spike]  x slowness x wander  ->  its socket buffer
//! ```
//!
//! A table of N x N delays for 6,000 hosts would not fit any cache, and hardly the memory. Every
//! lasting property of a pair is instead *hashed* from the pair and the seed and looked up in a
//! small distribution: the same pair always gets the same base delay, and nothing is stored.

use core::time::Duration;

use evenfall_core::Prng;
use evenfall_core::time::nanos;

use crate::math::{exp, mix, normal_quantile};
use crate::network::{Agenda, Chance, Chances, Loss, Network, Packet, Rates, Verdict};
use crate::quantiles::Quantiles;
use crate::{HostIndex, HostSpec, SimTime};

/// What a datagram adds on the wire: UDP 8, IPv4 20, Ethernet 14 + 4, preamble and gap 20.
const OVERHEAD_BYTES: u64 = 66;
/// Fixed-point bits of nanoseconds per byte, and of factors.
const POINT: u32 = 20;
/// Pairs whose last arrival is remembered (16 bytes each). Two that share a place forget each
/// other, which costs the order of a few packets and nothing else.
const PAIRS_REMEMBERED: usize = 1 << 16;

/// The delays of a cloud. The values of `default()` are of the size that is measured inside one
/// zone; studies fit their own.
#[derive(Clone, Debug)]
pub struct CloudProfile {
    /// Lasting delay of an ordered pair, over all pairs.
    pub base: Quantiles,
    /// What comes on top, over the packets of a pair.
    pub jitter: Quantiles,
    /// Probability that a packet meets a spike.
    pub spike_chance: f64,
    /// How long spikes are.
    pub spike: Quantiles,
    /// Standard deviation of the logarithm of hosts' slowness: delays of a pair are multiplied by
    /// the slowness of both.
    pub slowness_sigma: f64,
    /// Share of hosts that are stragglers besides.
    pub straggler_share: f64,
    /// How much slower those are.
    pub straggler_factor: f64,
    /// Standard deviation of the slow drift of a pair's delay, as a share of the delay; 0 for none.
    pub wander: f64,
    /// The time in which a pair's drift is renewed: values this far apart are independent.
    pub wander_period: Duration,
    /// Packets of one pair stay in order, as flows pinned to one path do; random reordering is
    /// then the only way to overtake.
    pub in_order: bool,
    /// Delay between two nodes of one host.
    pub loopback: Duration,
    /// What a sender may queue at its network card before it has to wait.
    pub send_queue: Duration,
}

impl Default for CloudProfile {
    fn default() -> Self {
        Self {
            base: Quantiles::lognormal(Duration::from_micros(25), 0.2),
            jitter: Quantiles::lognormal(Duration::from_micros(8), 0.6),
            spike_chance: 0.001,
            spike: Quantiles::pareto(Duration::from_micros(100), 1.5, Duration::from_millis(10)),
            slowness_sigma: 0.05,
            straggler_share: 0.02,
            straggler_factor: 1.5,
            wander: 0.05,
            wander_period: Duration::from_secs(5),
            in_order: true,
            loopback: Duration::from_micros(5),
            send_queue: Duration::from_millis(1),
        }
    }
}

impl CloudProfile {
    /// Every packet between two hosts takes exactly this long.
    pub fn constant(delay: Duration) -> Self {
        let nothing = Quantiles::constant(Duration::ZERO);
        Self {
            base: Quantiles::constant(delay),
            jitter: nothing.clone(),
            spike_chance: 0.0,
            spike: nothing,
            slowness_sigma: 0.0,
            straggler_share: 0.0,
            straggler_factor: 1.0,
            wander: 0.0,
            ..Self::default()
        }
    }
}

struct CloudHost {
    /// Nanoseconds per byte, times 2^POINT.
    per_byte: u64,
    nic_free: u64,
    /// Drawn and specified slowness.
    lasting: f64,
    /// That, times the fault in force.
    slowness: f64,
}

/// The cloud model. See the module documentation.
pub struct Cloud {
    profile: CloudProfile,
    seed: u64,
    hosts: Vec<CloudHost>,
    chances: Chances,
    spike: u64,
    wander_ns: u64,
    /// `(pair, last arrival)` by the hash of the pair.
    last: Box<[(u64, u64)]>,
}

impl Cloud {
    /// A cloud whose lasting properties come from this seed.
    pub fn new(profile: CloudProfile, seed: u64) -> Self {
        let places = if profile.in_order { PAIRS_REMEMBERED } else { 0 };
        Self {
            seed: mix(seed ^ 0x0063_6c6f_7564),
            hosts: Vec::new(),
            chances: Chances::default(),
            spike: (profile.spike_chance.clamp(0.0, 1.0) * 4_294_967_296.0) as u64,
            wander_ns: nanos(profile.wander_period).max(1),
            last: vec![(u64::MAX, 0); places].into_boxed_slice(),
            profile,
        }
    }

    /// The lasting slowness that the seed gave to a host, times that of its specification.
    pub fn slowness(&self, host: HostIndex) -> f64 {
        self.hosts[host.0 as usize].lasting
    }

    /// The lasting delay of a pair in nanoseconds, without jitter and drift.
    pub fn base_ns(&self, from: HostIndex, to: HostIndex) -> u64 {
        let slowness = self.slowness(from) * self.slowness(to);
        (self.profile.base.sample(self.hash(from, to)) as f64 * slowness) as u64
    }

    #[inline]
    fn hash(&self, from: HostIndex, to: HostIndex) -> u64 {
        mix(self.seed ^ (u64::from(from.0) << 32 | u64::from(to.0)).wrapping_mul(GOLDEN))
    }

    /// The packet leaves the card; the card is busy until then.
    #[inline]
    fn departure(&mut self, packet: &Packet) -> u64 {
        let host = &mut self.hosts[packet.from_host.0 as usize];
        let bytes = u64::from(packet.bytes) + OVERHEAD_BYTES;
        let start = host.nic_free.max(packet.at.0);
        host.nic_free = start + ((bytes * host.per_byte) >> POINT);
        host.nic_free
    }

    /// The drift of a pair: straight lines between hashed values, one per period. Cheap and
    /// without state, where an Ornstein-Uhlenbeck process would need a number per pair.
    #[inline]
    fn wander(&self, pair: u64, at: u64) -> f64 {
        // Each pair has its own phase, or all would turn at the same instant.
        let shifted = at + pair % self.wander_ns;
        let (period, within) = (shifted / self.wander_ns, shifted % self.wander_ns);
        let value = |k: u64| (mix(pair ^ k.wrapping_mul(GOLDEN)) >> 11) as f64 / HALF_53 - 1.0;
        let (from, to) = (value(period), value(period + 1));
        let drift = from + (to - from) * (within as f64 / self.wander_ns as f64);
        // The values are uniform in -1..1, of standard deviation 1/sqrt 3.
        1.0 + drift * SQRT_3 * self.profile.wander
    }

    /// Delay between the cards.
    #[inline]
    fn delay(&self, packet: &Packet, pair: u64, at: u64, prng: &mut Prng) -> u64 {
        let mut ns = self.profile.base.sample(pair) + self.profile.jitter.sample(prng.next_u64());
        if self.spike > 0 {
            let word = prng.next_u64();
            if word >> 32 < self.spike {
                ns += self.profile.spike.sample(word << 32 | mix(word) >> 32);
            }
        }
        let slowness = |host: HostIndex| self.hosts[host.0 as usize].slowness;
        let mut factor = slowness(packet.from_host) * slowness(packet.to_host);
        if self.profile.wander > 0.0 {
            factor *= self.wander(pair, at);
        }
        (ns as f64 * factor) as u64
    }

    /// Not before the last packet of the same pair.
    #[inline]
    fn in_order(&mut self, pair: u64, arrival: u64) -> u64 {
        let Some(place) = self.last.get_mut(pair as usize % PAIRS_REMEMBERED) else {
            return arrival;
        };
        let arrival = if place.0 == pair { arrival.max(place.1) } else { arrival };
        *place = (pair, arrival);
        arrival
    }
}

/// 2^64 divided by the golden ratio: multiplying by it spreads small numbers.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// 2^52.
const HALF_53: f64 = 4_503_599_627_370_496.0;
const SQRT_3: f64 = 1.732_050_807_568_877_2;

impl Network for Cloud {
    fn add_host(&mut self, spec: &HostSpec) {
        let mut prng = Prng::new(mix(self.seed ^ self.hosts.len() as u64));
        let z = normal_quantile(prng.unit().clamp(1e-9, 1.0 - 1e-9));
        let mut lasting = spec.slowness * exp(self.profile.slowness_sigma * z);
        if prng.chance(self.profile.straggler_share) {
            lasting *= self.profile.straggler_factor;
        }
        let per_byte = match spec.nic_bits_per_s {
            0 => 0,
            bits => (8_000_000_000u64 << POINT) / bits,
        };
        self.hosts.push(CloudHost { per_byte, nic_free: 0, lasting, slowness: lasting });
    }

    #[inline]
    fn route(&mut self, packet: &Packet, prng: &mut Prng, _: &mut Agenda) -> Verdict {
        if packet.from_host == packet.to_host {
            return Verdict::Deliver(packet.at + self.profile.loopback);
        }
        let departure = self.departure(packet);
        let chance = self.chances.draw(prng);
        if chance == Chance::Lose {
            return Verdict::Lose(Loss::Random);
        }
        let pair = self.hash(packet.from_host, packet.to_host);
        let arrival = departure + self.delay(packet, pair, departure, prng);
        if let Chance::Reorder(by) = chance {
            return Verdict::Deliver(SimTime(arrival) + by);
        }
        let arrival = SimTime(self.in_order(pair, arrival));
        match chance {
            Chance::Duplicate(lag) => Verdict::Twice(arrival, arrival + lag),
            _ => Verdict::Deliver(arrival),
        }
    }

    #[inline]
    fn send_ready(&self, host: HostIndex, now: SimTime) -> SimTime {
        let free = SimTime(self.hosts[host.0 as usize].nic_free);
        now.max(free - self.profile.send_queue)
    }

    fn set_rates(&mut self, rates: Rates) {
        self.chances = Chances::new(rates);
    }

    fn slow(&mut self, host: HostIndex, factor: f64) {
        let host = &mut self.hosts[host.0 as usize];
        host.slowness = host.lasting * factor;
    }
}
