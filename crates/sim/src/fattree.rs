//! The fat tree of a data centre: hosts, racks, one core.
//!
//! ```text
//!                 [ core ]                     one port per rack
//!               ^ |  rack_bits_per_s  ^ |
//!               | v                   | v
//!            [ rack 0 ]            [ rack 1 ]  one port up, one per host
//!             ^ |   ^ |  host_bits_per_s
//!             | v   | v
//!            host  host             ...        one port up: its card
//! ```
//!
//! As in the simulator of the shuffle thesis, the core is one logical switch. There is one path
//! between two hosts, as if traffic were spread perfectly over several paths. Every output port has
//! a queue per priority, and completes a packet that it has begun to send. A packet that finds its
//! port idle costs one event per hop, and a packet that waits costs two. Free control packets that
//! go first never wait, and cost one event for their whole way.
//!
//! Delays of links hold for the first bit; each port adds the time that the packet takes on its
//! link, so each switch stores a packet before it forwards it.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::math::mix;
use evenfall_core::time::nanos;
use evenfall_core::{Prng, TrafficClass};

use crate::network::{Agenda, Chance, Chances, Loss, Network, Packet, Rates, Ticket, Verdict};
use crate::{HostIndex, HostSpec, SimTime};

/// The ports at which control packets go before data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priorities {
    /// No port. Every port has one queue, first come first served.
    Nowhere,
    /// The ports of rack switches that lead to hosts, and the hosts' own ports.
    Edge,
    /// Every port.
    Everywhere,
}

/// The bytes that a datagram takes on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Bytes of a datagram of class [`TrafficClass::Control`]; 0 makes control free.
    pub control_bytes: u32,
    /// Bytes that other datagrams take besides their length.
    pub data_overhead_bytes: i32,
    /// Factor of the length of a datagram less [`data_head_bytes`](Self::data_head_bytes). A short
    /// simulated payload then stands for a longer payload, which saves memory and time.
    pub scale: u32,
    /// Bytes of a datagram that are not multiplied.
    pub data_head_bytes: u32,
}

impl Default for Costs {
    /// Datagrams as they are, in Ethernet frames: UDP 8, IPv4 20, Ethernet 18, preamble and gap
    /// 20; control is charged 84, the smallest frame.
    fn default() -> Self {
        Self { control_bytes: 84, data_overhead_bytes: 66, scale: 1, data_head_bytes: 0 }
    }
}

impl Costs {
    /// Bytes of one datagram on the wire.
    pub fn wire_bytes(&self, class: TrafficClass, length: u32) -> u32 {
        if class == TrafficClass::Control {
            return self.control_bytes;
        }
        let head = self.data_head_bytes.min(length);
        let payload = (length - head) * self.scale;
        (head + payload).saturating_add_signed(self.data_overhead_bytes)
    }
}

/// The dimensions and rates of a fat tree.
#[derive(Clone, Debug, PartialEq)]
pub struct FatTreeSpec {
    /// Hosts below one rack switch, in the order in which they are added.
    pub rack_hosts: u32,
    /// Link of each host, each way.
    pub host_bits_per_s: u64,
    /// Link of each rack to the core, each way. `rack_hosts * host_bits_per_s` is full bisection.
    pub rack_bits_per_s: u64,
    /// Paths between two racks, each with its share of `rack_bits_per_s`. All packets from one host
    /// to another take the path that a hash of the two names gives, as in a network whose switches
    /// hash flows: two flows may share a path while another is idle. With 1 path no two flows
    /// collide.
    pub core_paths: u32,
    /// Delay of a link between host and rack.
    pub host_delay: Duration,
    /// Delay of a link between rack and core.
    pub rack_delay: Duration,
    /// The ports at which control goes first.
    pub priorities: Priorities,
    /// The bytes that datagrams take on links.
    pub costs: Costs,
    /// Bytes that the queue of one port holds; `None` for no limit. Further packets are dropped.
    pub port_bytes_max: Option<u64>,
}

impl Default for FatTreeSpec {
    /// 25 Gb/s, 40 hosts in a rack, full bisection, round trips of 8 packet times (of 480 ns)
    /// within a rack and 16 across, as in chapter 6 of the thesis.
    fn default() -> Self {
        Self {
            rack_hosts: 40,
            host_bits_per_s: 25_000_000_000,
            rack_bits_per_s: 1_000_000_000_000,
            core_paths: 1,
            host_delay: Duration::from_nanos(720),
            rack_delay: Duration::from_nanos(960),
            priorities: Priorities::Everywhere,
            costs: Costs::default(),
            port_bytes_max: None,
        }
    }
}

/// Bytes in the queues of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueOccupancy {
    /// Now.
    pub bytes: u64,
    /// Most at any time.
    pub bytes_max: u64,
    /// Integral over time, in byte nanoseconds.
    area: u128,
    since: u64,
}

impl QueueOccupancy {
    fn change(&mut self, now: u64, bytes: i64) {
        self.area += u128::from(self.bytes) * u128::from(now.saturating_sub(self.since));
        self.since = self.since.max(now);
        self.bytes = self.bytes.saturating_add_signed(bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Mean from the start of the run to its last change.
    pub fn bytes_mean(&self) -> f64 {
        if self.since == 0 { 0.0 } else { self.area as f64 / self.since as f64 }
    }
}

/// An output port and the packets that wait for it. Control packets wait in a queue of their own if
/// they go first.
#[derive(Debug, Default)]
struct Port {
    bits_per_s: u64,
    free_ps: u64,
    queues: [VecDeque<u32>; 2],
    bytes: u64,
    bytes_max: u64,
    priority: bool,
    draining: bool,
}

impl Port {
    /// Picoseconds in which the port sends this many bytes. The result is rounded once for each
    /// packet, because at 900 Gb/s a byte takes 8.9 ps.
    fn serialise_ps(&self, bytes: u32) -> u64 {
        u64::from(bytes) * 8_000_000_000_000 / self.bits_per_s
    }

    fn is_idle(&self, now: u64) -> bool {
        self.free_ps <= now * 1_000 && self.queues.iter().all(VecDeque::is_empty)
    }
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    from: u32,
    to: u32,
    bytes: u32,
    control: bool,
    /// The path through the core.
    path: u32,
    /// The next port: 0 the card of the sender, then the rack's port up, the core's port down, and
    /// the rack's port to the host.
    hop: u8,
}

impl Way {
    /// Whether the packet takes no time on the link and goes first, so that it passes all waiting
    /// packets.
    fn passes(&self, port: &Port) -> bool {
        self.control && self.bytes == 0 && port.priority
    }
}

/// Token bit: the port drains. Otherwise a packet arrives at its next port.
const DRAIN: u64 = 1 << 63;

/// See the module documentation.
#[derive(Debug)]
pub struct FatTree {
    spec: FatTreeSpec,
    hosts: u32,
    /// Cards of hosts, then ports to hosts.
    cards: Vec<Port>,
    downs: Vec<Port>,
    /// Ports of racks up, ports of the core to racks.
    rack_ups: Vec<Port>,
    rack_downs: Vec<Port>,
    ways: Vec<Way>,
    free: Vec<u32>,
    chances: Chances,
    racks: Vec<QueueOccupancy>,
    core: QueueOccupancy,
    port_bytes_max: u64,
}

impl FatTree {
    /// A tree without hosts. Racks come with their first host.
    pub fn new(spec: FatTreeSpec) -> Self {
        Self {
            spec,
            hosts: 0,
            cards: Vec::new(),
            downs: Vec::new(),
            rack_ups: Vec::new(),
            rack_downs: Vec::new(),
            ways: Vec::new(),
            free: Vec::new(),
            chances: Chances::default(),
            racks: Vec::new(),
            core: QueueOccupancy::default(),
            port_bytes_max: 0,
        }
    }

    /// The dimensions and rates of the tree.
    pub fn spec(&self) -> &FatTreeSpec {
        &self.spec
    }

    /// Queues of each rack switch, ports to hosts and to the core together.
    pub fn racks(&self) -> &[QueueOccupancy] {
        &self.racks
    }

    /// Queues of the core.
    pub fn core(&self) -> &QueueOccupancy {
        &self.core
    }

    /// Most bytes that ever waited for one port that leads to a host.
    pub fn down_bytes_max(&self) -> u64 {
        self.downs.iter().map(|port| port.bytes_max).max().unwrap_or(0)
    }

    /// Most bytes that ever waited for one port of any switch.
    pub fn port_bytes_max(&self) -> u64 {
        self.port_bytes_max
    }

    fn rack(&self, host: u32) -> u32 {
        host / self.spec.rack_hosts
    }

    fn port(&self, bits_per_s: u64, priority: bool) -> Port {
        Port { bits_per_s: bits_per_s.max(1), priority, ..Port::default() }
    }

    /// The number of the port, among those of all racks, by which the rack of a host meets a path.
    fn rack_port(&self, host: u32, path: u32) -> u64 {
        u64::from(self.rack(host)) * u64::from(self.spec.core_paths.max(1)) + u64::from(path)
    }

    /// The path of all packets from one host to another.
    fn path(&self, from: u32, to: u32) -> u32 {
        let paths = self.spec.core_paths.max(1);
        if paths == 1 {
            return 0;
        }
        (mix(u64::from(from) << 32 | u64::from(to)) % u64::from(paths)) as u32
    }

    /// The number of the port that a packet goes to next, over all ports.
    fn place(&self, way: &Way) -> u64 {
        let racks = self.rack_ups.len() as u64;
        let hosts = u64::from(self.hosts);
        match way.hop {
            0 => u64::from(way.from),
            1 => hosts + u64::from(way.to),
            2 => 2 * hosts + self.rack_port(way.from, way.path),
            _ => 2 * hosts + racks + self.rack_port(way.to, way.path),
        }
    }

    fn port_at(&mut self, place: u64) -> &mut Port {
        let (hosts, racks) = (self.hosts as usize, self.rack_ups.len());
        let place = place as usize;
        if place < hosts {
            &mut self.cards[place]
        } else if place < 2 * hosts {
            &mut self.downs[place - hosts]
        } else if place < 2 * hosts + racks {
            &mut self.rack_ups[place - 2 * hosts]
        } else {
            &mut self.rack_downs[place - 2 * hosts - racks]
        }
    }

    /// Counts bytes into or out of the switch that the port belongs to.
    fn occupy(&mut self, now: u64, place: u64, bytes: i64) {
        let (hosts, racks) = (u64::from(self.hosts), self.rack_ups.len() as u64);
        if place < hosts {
            return;
        }
        let occupancy = if place < 2 * hosts {
            let rack = self.rack((place - hosts) as u32);
            &mut self.racks[rack as usize]
        } else if place < 2 * hosts + racks {
            let rack = (place - 2 * hosts) / u64::from(self.spec.core_paths.max(1));
            &mut self.racks[rack as usize]
        } else {
            &mut self.core
        };
        occupancy.change(now, bytes);
        let port = self.port_at(place);
        port.bytes = port.bytes.saturating_add_signed(bytes);
        port.bytes_max = port.bytes_max.max(port.bytes);
        let bytes = port.bytes;
        self.port_bytes_max = self.port_bytes_max.max(bytes);
    }

    /// A packet reaches its next port.
    fn enter(&mut self, now: u64, id: u32, agenda: &mut Agenda) {
        let way = self.ways[id as usize];
        let place = self.place(&way);
        let limit = self.spec.port_bytes_max;
        let port = self.port_at(place);
        if way.passes(port) || port.is_idle(now) {
            return self.forward(now, place, id, agenda);
        }
        if limit.is_some_and(|max| port.bytes + u64::from(way.bytes) > max) {
            self.free.push(id);
            return agenda.release(Ticket(id.into()), Verdict::Lose(Loss::Buffer));
        }
        let queue = usize::from(!(port.priority && way.control));
        port.queues[queue].push_back(id);
        if !port.draining {
            port.draining = true;
            let at = SimTime::from_nanos(port.free_ps.div_ceil(1_000).max(now));
            agenda.wake_at(at, DRAIN | place);
        }
        self.occupy(now, place, i64::from(way.bytes));
    }

    /// A port has become free and takes its next packet.
    fn drain(&mut self, now: u64, place: u64, agenda: &mut Agenda) {
        let port = self.port_at(place);
        port.draining = false;
        let [first, second] = &mut port.queues;
        let Some(id) = first.pop_front().or_else(|| second.pop_front()) else { return };
        self.occupy(now, place, -i64::from(self.ways[id as usize].bytes));
        self.forward(now, place, id, agenda);
        let port = self.port_at(place);
        if port.queues.iter().any(|queue| !queue.is_empty()) {
            port.draining = true;
            let at = SimTime::from_nanos(port.free_ps.div_ceil(1_000).max(now));
            agenda.wake_at(at, DRAIN | place);
        }
    }

    /// A port sends a packet on.
    fn forward(&mut self, now: u64, place: u64, id: u32, agenda: &mut Agenda) {
        let way = self.ways[id as usize];
        let port = self.port_at(place);
        // Rounding to nanoseconds must not add up, so a busy port begins the next packet at the
        // exact end of the last one.
        let begun = if port.free_ps + 1_000 > now * 1_000 { port.free_ps } else { now * 1_000 };
        let gone = if way.passes(port) {
            now * 1_000
        } else {
            port.free_ps = begun + port.serialise_ps(way.bytes);
            port.free_ps
        };
        let rack_link = matches!(way.hop, 2 | 3);
        let delay = if rack_link { self.spec.rack_delay } else { self.spec.host_delay };
        let at = SimTime::from_nanos(gone.div_ceil(1_000) + nanos(delay));
        if way.hop == 1 {
            self.free.push(id);
            return agenda.release(Ticket(id.into()), Verdict::Deliver(at));
        }
        let inside = self.rack(way.from) == self.rack(way.to);
        self.ways[id as usize].hop = match way.hop {
            0 if inside => 1,
            0 => 2,
            2 => 3,
            _ => 1,
        };
        agenda.wake_at(at, id.into());
    }

    /// The way of a packet that waits nowhere and takes no time on any link.
    fn straight(&self, packet: &Packet) -> SimTime {
        let host = 2 * nanos(self.spec.host_delay);
        let core = 2 * nanos(self.spec.rack_delay);
        let inside = self.rack(packet.from_host.0) == self.rack(packet.to_host.0);
        packet.at + Duration::from_nanos(if inside { host } else { host + core })
    }
}

impl Network for FatTree {
    fn add_host(&mut self, _: &HostSpec) {
        let first = self.spec.priorities != Priorities::Nowhere;
        let core = self.spec.priorities == Priorities::Everywhere;
        let (host, rack) = (self.spec.host_bits_per_s, self.spec.rack_bits_per_s);
        if self.hosts.is_multiple_of(self.spec.rack_hosts) {
            let paths = self.spec.core_paths.max(1);
            for _ in 0..paths {
                self.rack_ups.push(self.port(rack / u64::from(paths), core));
                self.rack_downs.push(self.port(rack / u64::from(paths), core));
            }
            self.racks.push(QueueOccupancy::default());
        }
        self.cards.push(self.port(host, first));
        self.downs.push(self.port(host, first));
        self.hosts += 1;
    }

    fn route(&mut self, packet: &Packet, prng: &mut Prng, agenda: &mut Agenda) -> Verdict {
        let control = packet.class == TrafficClass::Control;
        let bytes = self.spec.costs.wire_bytes(packet.class, packet.bytes);
        let fate = self.chances.draw(prng);
        if fate == Chance::Lose {
            return Verdict::Lose(Loss::Random);
        }
        let free = bytes == 0 && self.spec.priorities == Priorities::Everywhere;
        let (mut late, mut twice) = (Duration::ZERO, None);
        match fate {
            Chance::Reorder(by) => late = by,
            Chance::Duplicate(by) => twice = Some(by),
            Chance::Nothing | Chance::Lose => {}
        }
        if free && control || twice.is_some() {
            // A duplicate skips the queues, because it is a rare fault.
            let at = self.straight(packet) + late;
            return match twice {
                Some(by) => Verdict::Twice(at, at + by),
                None => Verdict::Deliver(at),
            };
        }
        let (from, to) = (packet.from_host.0, packet.to_host.0);
        let way = Way { from, to, bytes, control, path: self.path(from, to), hop: 0 };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.ways.push(way);
                self.ways.len() as u32 - 1
            }
        };
        self.ways[id as usize] = way;
        // The packets of one host come in order, and no other host uses its card, so a packet
        // enters the card without an event. Only a packet that a fault delays needs an event.
        let at = packet.at + late;
        if late.is_zero() {
            self.enter(at.nanos(), id, agenda);
        } else {
            agenda.wake_at(at, id.into());
        }
        Verdict::Hold(Ticket(id.into()))
    }

    fn send_ready(&self, host: HostIndex, now: SimTime) -> SimTime {
        let card = &self.cards[host.0 as usize];
        if card.draining { SimTime::from_nanos(card.free_ps.div_ceil(1_000)).max(now) } else { now }
    }

    fn wake(&mut self, now: SimTime, token: u64, _: &mut Prng, agenda: &mut Agenda) {
        if token & DRAIN == 0 {
            self.enter(now.nanos(), token as u32, agenda);
        } else {
            self.drain(now.nanos(), token & !DRAIN, agenda);
        }
    }

    fn set_rates(&mut self, rates: Rates) {
        self.chances = Chances::new(rates);
    }

    fn slow(&mut self, _: SimTime, _: HostIndex, _: f64) {}
}

#[cfg(test)]
mod tests;
