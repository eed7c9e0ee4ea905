//! A machine that does what a test tells it, and tells what it saw.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Clock, ClockReading, Destination, GroupId, Head, Install, Machine, Malformed, Sent,
    SyncTime, Timestamp, Token, TrafficClass, Transmit,
};
use evenfall_sim::{Collect, HostSpec, Network, NodeIndex, Observer, Seen, SimTime, Wire, World};

pub const US: Duration = Duration::from_micros(1);
pub const MS: Duration = Duration::from_millis(1);

/// What a probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// A datagram with this first byte, received at this local time.
    Datagram(u8, Timestamp),
    /// Its timeout.
    Timeout(Timestamp),
    /// A clock reading, and the synchronised time by it.
    Clock(SyncTime),
}

/// See the module documentation. Datagrams that begin with an odd byte are answered with the even
/// one below; an empty datagram is malformed.
#[derive(Default)]
pub struct Probe {
    pub outbox: VecDeque<Transmit>,
    pub installs: VecDeque<Install>,
    pub timeout: Option<Timestamp>,
    /// Wants no arrival before this time.
    pub lull: Option<Timestamp>,
    /// Re-arms its timeout after this long.
    pub every: Option<Duration>,
    pub clock: Clock,
    pub silent_clock: bool,
    /// What became of transmits that asked.
    pub sent: Vec<(u64, Option<Timestamp>)>,
    pub saw: VecDeque<Saw>,
}

impl Probe {
    pub fn send(&mut self, to: Destination, bytes: &[u8]) {
        let (head, body) = bytes.split_at(bytes.len().min(1));
        let body = Bytes::copy_from_slice(body);
        self.outbox.push_back(Transmit::new(TrafficClass::Live, to, Head::new(head), body));
    }

    /// Sends, and asks when it left.
    pub fn ask(&mut self, to: Destination, token: u64) {
        self.send(to, &[2]);
        let asking = self.outbox.pop_back().map(|transmit| transmit.asking(Token(token)));
        self.outbox.extend(asking);
    }

    pub fn install(&mut self, group: u32, members: &[SocketAddr]) {
        self.installs.push_back(Install::Group(GroupId(group), Arc::from(members)));
    }
}

impl Machine for Probe {
    type Event = Saw;

    fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let Some(&tag) = arrival.datagram.first() else {
            return Err(Malformed { what: "empty", offset: 0 });
        };
        self.saw.push_back(Saw::Datagram(tag, arrival.received));
        if tag % 2 == 1 {
            self.send(Destination::One(arrival.from), &[tag - 1]);
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.saw.push_back(Saw::Timeout(now));
        self.timeout = self.every.map(|every| now + every);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.clock.set(reading);
        if !self.silent_clock {
            self.saw.push_back(Saw::Clock(self.clock.sync(now)));
        }
    }

    fn handle_sent(&mut self, _: Timestamp, sent: Sent) {
        self.sent.push((sent.token.0, sent.at));
    }

    fn poll_event(&mut self) -> Option<Saw> {
        self.saw.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.timeout
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        self.lull
    }

    fn clock(&self) -> Option<Clock> {
        Some(self.clock)
    }
}

pub fn quiet() -> Probe {
    Probe { silent_clock: true, ..Probe::default() }
}

pub type Probes<N = Wire> = World<Probe, N>;

/// Probes on hosts of their own, 50 us apart.
pub fn probes(count: u32, spec: &HostSpec) -> (Probes, Collect<Saw>) {
    probes_on(Wire::new(50 * US), count, spec)
}

pub fn probes_on<N: Network>(network: N, count: u32, spec: &HostSpec) -> (Probes<N>, Collect<Saw>) {
    let mut world = World::new(network, 1);
    for _ in 0..count {
        world.add(quiet(), spec.clone());
    }
    (world, Collect::default())
}

/// Node `from` sends to node `to`, now.
pub fn send<N: Network, O: Observer<Probe, N>>(
    world: &mut Probes<N>,
    watch: &mut O,
    (from, to): (u32, u32),
    bytes: &[u8],
) {
    let address = world.address(NodeIndex(to));
    world.call(NodeIndex(from), watch, |probe, _| probe.send(Destination::One(address), bytes));
}

/// True times in nanoseconds and tags of the datagrams that a node saw.
pub fn heard(watch: &Collect<Saw>, node: u32) -> Vec<(u64, u8)> {
    let heard = |(seen, saw): &(Seen, Saw)| match saw {
        Saw::Datagram(tag, _) if seen.node.0 == node => Some((seen.at.nanos(), *tag)),
        _ => None,
    };
    watch.0.iter().filter_map(heard).collect()
}

pub fn ms(ms: u64) -> SimTime {
    SimTime::from_millis(ms)
}
