//! The network that a cloud tenant sees: hosts, delays between them, and no idea why.
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

use evenfall_core::Prng;
use evenfall_core::time::nanos;

use crate::math::mix;
use crate::network::{Agenda, Chance, Chances, Loss, Network, Packet, Rates, Verdict};
use crate::{HostIndex, HostSpec, SimTime};
use path::{Ends, Path, Paths};
pub use profile::{CloudProfile, Load, Outages, PathLoss, Reroutes, Spread, Stragglers};
pub use queueing::Waits;

/// What a datagram adds on the wire: UDP 8, IPv4 20, Ethernet 14 + 4, preamble and gap 20.
pub(crate) const OVERHEAD_BYTES: u64 = 66;
/// Fixed-point bits of nanoseconds per byte.
const POINT: u32 = 20;

struct CloudHost {
    ends: Ends,
    /// Nanoseconds per byte, times 2^POINT.
    per_byte: u64,
    /// The card needs this long for a packet, however short.
    per_packet: u64,
    nic_free: u64,
    slowing: Slowing,
    /// Hosts to which this one has packets queued by the limit of a flow, and until when.
    flows: Vec<(u32, u64)>,
}

/// What a fault adds to the delay of everything that a host sends and receives.
///
/// A change to less takes effect at the rate of time: no packet after the change leaves this stage
/// earlier than the last packet before.
#[derive(Clone, Copy, Debug, Default)]
struct Slowing {
    /// What the stage adds in the end.
    ns: u64,
    /// Before this time nothing leaves the stage.
    floor: u64,
}

impl Slowing {
    #[inline]
    fn at(&self, at: u64) -> u64 {
        self.ns.max(self.floor.saturating_sub(at))
    }
}

/// The cloud model. See the module documentation.
pub struct Cloud {
    profile: CloudProfile,
    paths: Paths,
    seed: u64,
    hosts: Vec<CloudHost>,
    chances: Chances,
    /// Nanoseconds per byte of one flow, times 2^POINT.
    flow_per_byte: u64,
    /// The lasting delay and the wait of a path of median spread.
    typical: f64,
    /// The latest time at which the slowness of a host was asked for.
    latest: u64,
    random_loss: u64,
    burst_loss: u64,
}

impl Cloud {
    /// A cloud whose lasting properties come from this seed.
    pub fn new(profile: CloudProfile, seed: u64) -> Self {
        let seed = mix(seed ^ 0x0063_6c6f_7564);
        let threshold = |p: f64| (p.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        Self {
            seed,
            paths: Paths::new(&profile, seed),
            hosts: Vec::new(),
            chances: Chances::default(),
            flow_per_byte: per_byte(profile.flow_bits_per_s),
            typical: nanos(profile.base + profile.waits.median()) as f64,
            latest: 0,
            random_loss: threshold(profile.loss.random),
            burst_loss: threshold(profile.loss.within),
            profile,
        }
    }

    /// The lasting slowness of a host as sender and as receiver, from the seed and its
    /// specification.
    pub fn slowness(&self, host: HostIndex) -> (f64, f64) {
        let ends = &self.hosts[host.0 as usize].ends;
        (ends.send, ends.receive)
    }

    /// The lasting delay of a pair in nanoseconds at a time, without waits and drift.
    pub fn base_ns(&self, from: HostIndex, to: HostIndex, at: SimTime) -> u64 {
        self.paths.base(&self.path(from, to), at.0)
    }

    #[inline]
    fn path(&self, from: HostIndex, to: HostIndex) -> Path {
        let ends = |host: HostIndex| (host, &self.hosts[host.0 as usize].ends);
        self.paths.path(ends(from), ends(to))
    }

    /// The packet leaves the card; the card is busy until then.
    #[inline]
    fn departure(&mut self, packet: &Packet) -> u64 {
        let host = &mut self.hosts[packet.from_host.0 as usize];
        let bytes = u64::from(packet.bytes) + OVERHEAD_BYTES;
        let start = host.nic_free.max(packet.at.0);
        host.nic_free = start + ((bytes * host.per_byte) >> POINT).max(host.per_packet);
        host.nic_free
    }

    /// When the limit of a flow lets the packet pass; `None` when the flow's queue is full.
    fn shaped(&mut self, packet: &Packet, at: u64) -> Option<u64> {
        let flows = &mut self.hosts[packet.from_host.0 as usize].flows;
        // A flow without a queue needs no memory.
        flows.retain(|&(_, free)| free > at);
        let bytes = u64::from(packet.bytes) + OVERHEAD_BYTES;
        let takes = (bytes * self.flow_per_byte) >> POINT;
        let to = packet.to_host.0;
        match flows.iter_mut().find(|flow| flow.0 == to) {
            Some((_, free)) if *free - at > nanos(self.profile.flow_queue) => None,
            Some((_, free)) => {
                *free += takes;
                Some(*free)
            }
            None => {
                flows.push((to, at + takes));
                Some(at + takes)
            }
        }
    }

    /// Whether the packet is lost on the path.
    #[inline]
    fn is_lost(&self, path: &Path, at: u64, prng: &mut Prng) -> bool {
        let is_burst = self.burst_loss > 0 && self.paths.loses(path, at);
        let share = if is_burst { self.burst_loss } else { self.random_loss };
        share > 0 && prng.next_u64() >> 32 < share
    }
}

/// Nanoseconds per byte at a rate, in fixed-point; zero for no limit.
fn per_byte(bits_per_s: u64) -> u64 {
    (8_000_000_000u64 << POINT).checked_div(bits_per_s).unwrap_or(0)
}

impl Network for Cloud {
    fn add_host(&mut self, spec: &HostSpec) {
        let number = self.hosts.len() as u64;
        self.hosts.push(CloudHost {
            ends: Ends::new(&self.profile, self.seed, number, spec.slowness),
            per_byte: per_byte(spec.nic_bits_per_s),
            per_packet: 1_000_000_000u64.checked_div(spec.nic_packets_per_s).unwrap_or(0),
            nic_free: 0,
            slowing: Slowing::default(),
            flows: Vec::new(),
        });
    }

    #[inline]
    fn route(&mut self, packet: &Packet, prng: &mut Prng, _: &mut Agenda) -> Verdict {
        if packet.from_host == packet.to_host {
            return Verdict::Deliver(packet.at + self.profile.loopback);
        }
        let mut at = self.departure(packet);
        let chance = self.chances.draw(prng);
        if chance == Chance::Lose {
            return Verdict::Lose(Loss::Random);
        }
        if self.flow_per_byte > 0 {
            match self.shaped(packet, at) {
                Some(shaped) => at = shaped,
                None => return Verdict::Lose(Loss::Buffer),
            }
        }
        let path = self.path(packet.from_host, packet.to_host);
        if (self.burst_loss | self.random_loss) > 0 && self.is_lost(&path, at, prng) {
            return Verdict::Lose(Loss::Random);
        }
        at += self.hosts[packet.from_host.0 as usize].slowing.at(at);
        self.latest = self.latest.max(at);
        at += self.hosts[packet.to_host.0 as usize].slowing.at(at);
        let arrival = SimTime(self.paths.arrival(&path, at));
        match chance {
            Chance::Reorder(by) => Verdict::Deliver(arrival + by),
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

    fn slow(&mut self, now: SimTime, host: HostIndex, factor: f64) {
        let typical = self.typical;
        let host = &mut self.hosts[host.0 as usize];
        let lasting = (host.ends.send * host.ends.receive).sqrt();
        // Packets are routed ahead of the run's time by what the senders' processors and cards
        // have to do still: the change comes after all of them.
        let changed = self.latest.max(now.0);
        host.slowing.floor = changed + host.slowing.at(changed);
        host.slowing.ns = ((factor - 1.0).max(0.0) * lasting * typical) as u64;
    }
}
