//! The network between rented machines: delays, losses and limits of every pair of hosts.
//!
//! ```text
//! sender's card                     between the hosts                          receiver
//! queue, bits/s, packets/s -> queue of the path -> lasting delay ----> its card (the world's)
//!                             spikes, bursts of    drift, changes
//!                             losses               of the route
//!        episodes and strangers' load of the host, at both ends
//! ```
//!
//! A table of N x N delays for 6,000 hosts would not fit any cache, and hardly the memory. Every
//! property of a pair, lasting or passing, is instead *hashed* from the pair, the time and the
//! seed: the same pair always has the same delay at the same time, and nothing is stored.
//!
//! | module | what it holds |
//! |---|---|
//! | `profile` | [`CloudProfile`]: the parameters, as plain values |
//! | `queueing` | waits and outages as processes in time |
//! | `path` | the stages of a path, one after the other |

mod path;
mod profile;
mod queueing;

use core::time::Duration;

use evenfall_core::Prng;
use evenfall_core::time::nanos;

use crate::math::mix;
use crate::network::{
    Agenda, Chance, Chances, Divisible, Fate, Loss, Network, Packet, Rates, Slowing, Verdict,
};
use crate::{HostIndex, HostSpec, SimTime};
use path::{Ends, Path, Paths};
pub use profile::{CloudProfile, HostLoad, Outages, PathLoss, Reroutes, Spread, Stragglers};
pub use queueing::Waits;
pub(crate) use queueing::{draw, unit};

/// What a datagram adds on the wire: UDP 8, IPv4 20, Ethernet 14 + 4, preamble and gap 20.
pub(crate) const OVERHEAD_BYTES: u64 = 66;
/// Fixed-point bits of nanoseconds per byte.
const POINT: u32 = 20;

/// The part of a host on which the packets of other hosts depend too.
struct Seat {
    ends: Ends,
    slowing: Slowing,
}

/// The sending half of a host's card, and the flows that begin there. Only packets of the host
/// change it.
pub struct CloudSender {
    /// Nanoseconds per byte, times 2^POINT.
    per_byte: u64,
    /// Least time that the card needs for a packet, nanoseconds.
    per_packet: u64,
    nic_free: u64,
    /// Hosts for which packets wait at the limit of a flow, and when the queue of each is empty.
    flows: Vec<(u32, u64)>,
    /// The latest time at which a packet of this host reached the delay by a fault.
    latest: u64,
}

/// The part of a cloud that every packet reads and no packet changes.
pub struct CloudMap {
    profile: CloudProfile,
    paths: Paths,
    seats: Vec<Seat>,
    /// Nanoseconds per byte of one flow, times 2^POINT.
    flow_per_byte: u64,
    random_loss: u64,
    burst_loss: u64,
}

/// The cloud model. See the module documentation.
pub struct Cloud {
    map: CloudMap,
    seed: u64,
    senders: Vec<CloudSender>,
    chances: Chances,
    /// Lasting delay and median wait of a path of median spread, nanoseconds.
    typical: f64,
}

impl Cloud {
    /// A cloud whose lasting properties come from this seed.
    pub fn new(profile: CloudProfile, seed: u64) -> Self {
        let seed = mix(seed ^ 0x0063_6c6f_7564);
        let threshold = |p: f64| (p.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        let typical = nanos(profile.base + profile.waits.median()) as f64;
        let map = CloudMap {
            paths: Paths::new(&profile, seed),
            seats: Vec::new(),
            flow_per_byte: per_byte(profile.flow_bits_per_s),
            random_loss: threshold(profile.loss.random),
            burst_loss: threshold(profile.loss.within),
            profile,
        };
        Self { map, seed, senders: Vec::new(), chances: Chances::default(), typical }
    }

    /// The lasting delay of a pair in nanoseconds at a time, without waits and drift.
    pub fn base_ns(&self, from: HostIndex, to: HostIndex, at: SimTime) -> u64 {
        self.map.paths.base(&self.map.path(from, to), at.0)
    }

    /// When a packet that enters the path between two hosts at a time comes to the receiver's card.
    /// Neither cards nor losses count: the time is that of the path alone.
    #[inline]
    pub fn arrival(&self, from: HostIndex, to: HostIndex, enters: SimTime) -> SimTime {
        SimTime(self.map.paths.arrival(&self.map.path(from, to), enters.0))
    }
}

impl CloudSender {
    /// The time at which the packet leaves the card. The card is busy until then.
    #[inline]
    fn departure(&mut self, packet: &Packet) -> u64 {
        let bytes = u64::from(packet.bytes) + OVERHEAD_BYTES;
        let start = self.nic_free.max(packet.at.0);
        self.nic_free = start + ((bytes * self.per_byte) >> POINT).max(self.per_packet);
        self.nic_free
    }

    /// When the limit of a flow lets the packet pass; `None` when the flow's queue is full.
    fn shaped(&mut self, map: &CloudMap, packet: &Packet, at: u64) -> Option<u64> {
        // A flow whose queue is empty is forgotten.
        self.flows.retain(|&(_, free)| free > at);
        let bytes = u64::from(packet.bytes) + OVERHEAD_BYTES;
        let takes = (bytes * map.flow_per_byte) >> POINT;
        let to = packet.to_host.0;
        match self.flows.iter_mut().find(|flow| flow.0 == to) {
            Some((_, free)) if *free - at > nanos(map.profile.flow_queue) => None,
            Some((_, free)) => {
                *free += takes;
                Some(*free)
            }
            None => {
                self.flows.push((to, at + takes));
                Some(at + takes)
            }
        }
    }
}

impl CloudMap {
    #[inline]
    fn path(&self, from: HostIndex, to: HostIndex) -> Path {
        self.numbered_path(from, to, 0)
    }

    #[inline]
    fn numbered_path(&self, from: HostIndex, to: HostIndex, number: u64) -> Path {
        let ends = |host: HostIndex| (host, &self.seats[host.0 as usize].ends);
        self.paths.path(ends(from), ends(to), number)
    }

    /// The path of a packet that leaves at this time: one of several where packets are sprayed.
    #[inline]
    fn path_of(&self, packet: &Packet, at: u64) -> Path {
        let (from, to) = (packet.from_host, packet.to_host);
        match u64::from(self.profile.sprayed_paths) {
            0 | 1 => self.path(from, to),
            // The nanosecond at which a packet leaves draws its path. That needs no state.
            paths => self.numbered_path(from, to, mix(at ^ (u64::from(to.0) << 32)) % paths),
        }
    }

    /// The fate of a packet that has left its card.
    #[inline]
    fn fate(&self, sender: &mut CloudSender, packet: &Packet, mut at: u64) -> Fate {
        if self.flow_per_byte > 0 {
            match sender.shaped(self, packet, at) {
                Some(shaped) => at = shaped,
                None => return Fate::Lost(Loss::Buffer),
            }
        }
        let path = self.path_of(packet, at);
        let is_burst = self.burst_loss > 0 && self.paths.loses(&path, at);
        let loss = if is_burst { self.burst_loss } else { self.random_loss };
        at += self.seats[packet.from_host.0 as usize].slowing.at(at);
        sender.latest = sender.latest.max(at);
        at += self.seats[packet.to_host.0 as usize].slowing.at(at);
        Fate::Arrives { at: SimTime(self.paths.arrival(&path, at)), loss }
    }
}

/// Nanoseconds per byte at a rate, in fixed-point; zero for no limit.
fn per_byte(bits_per_s: u64) -> u64 {
    (8_000_000_000u64 << POINT).checked_div(bits_per_s).unwrap_or(0)
}

impl Network for Cloud {
    fn add_host(&mut self, spec: &HostSpec) {
        let number = self.senders.len() as u64;
        let ends = Ends::new(&self.map.profile, self.seed, number, spec.slowness);
        self.map.seats.push(Seat { ends, slowing: Slowing::default() });
        self.senders.push(CloudSender {
            per_byte: per_byte(spec.nic_bits_per_s),
            per_packet: 1_000_000_000u64.checked_div(spec.nic_packets_per_s).unwrap_or(0),
            nic_free: 0,
            flows: Vec::new(),
            latest: 0,
        });
    }

    #[inline]
    fn route(&mut self, packet: &Packet, prng: &mut Prng, _: &mut Agenda) -> Verdict {
        if packet.from_host == packet.to_host {
            return Verdict::Deliver(packet.at + self.map.profile.loopback);
        }
        let sender = &mut self.senders[packet.from_host.0 as usize];
        let departure = sender.departure(packet);
        let chance = self.chances.draw(prng);
        if chance == Chance::Lose {
            return Verdict::Lose(Loss::Random);
        }
        match (self.map.fate(sender, packet, departure).drawn(prng), chance) {
            (Verdict::Deliver(at), Chance::Reorder(by)) => Verdict::Deliver(at + by),
            (Verdict::Deliver(at), Chance::Duplicate(lag)) => Verdict::Twice(at, at + lag),
            (verdict, _) => verdict,
        }
    }

    #[inline]
    fn send_ready(&self, host: HostIndex, now: SimTime) -> SimTime {
        Self::ready(&self.map, &self.senders[host.0 as usize], now)
    }

    fn set_rates(&mut self, rates: Rates) {
        self.chances = Chances::new(rates);
    }

    fn slow(&mut self, now: SimTime, host: HostIndex, factor: f64) {
        let seat = &mut self.map.seats[host.0 as usize];
        let lasting = (seat.ends.send * seat.ends.receive).sqrt();
        let more = ((factor - 1.0).max(0.0) * lasting * self.typical) as u64;
        seat.slowing.change(now, self.senders.iter().map(|sender| sender.latest), more);
    }
}

impl Divisible for Cloud {
    type Sender = CloudSender;
    type Map = CloudMap;

    fn divide(&mut self) -> Option<(&CloudMap, &mut [CloudSender])> {
        let is_calm = self.chances == Chances::default();
        is_calm.then_some((&self.map, &mut self.senders[..]))
    }

    fn least(&self) -> Duration {
        let of = |ends: fn(&Ends) -> f64| {
            self.map.seats.iter().map(|seat| ends(&seat.ends)).fold(f64::MAX, f64::min)
        };
        let path = self.map.paths.least(of(|ends| ends.send) * of(|ends| ends.receive));
        Duration::from_nanos(path).min(self.map.profile.loopback)
    }

    #[inline]
    fn fate(map: &CloudMap, sender: &mut CloudSender, packet: &Packet) -> Fate {
        if packet.from_host == packet.to_host {
            return Fate::Arrives { at: packet.at + map.profile.loopback, loss: 0 };
        }
        let departure = sender.departure(packet);
        map.fate(sender, packet, departure)
    }

    #[inline]
    fn ready(map: &CloudMap, sender: &CloudSender, now: SimTime) -> SimTime {
        now.max(SimTime(sender.nic_free) - map.profile.send_queue)
    }
}
