//! The world: nodes on hosts, one network, one queue, one clock of true time.

mod control;
mod cores;
mod departures;
mod effects;
mod fabric;
mod node;
mod packet_faults;
mod prefetch;
mod region;
mod turn;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use evenfall_core::{Machine, Prng, Timestamp};

use crate::faults::Fault;
use crate::host::{Host, HostSpec};
use crate::network::{Loss, Network};
use crate::observer::Observer;
use crate::timers::Timers;
use crate::{HostIndex, NodeIndex, SimTime, SimWrites};
pub use control::{Cut, PartitionId};
use departures::Departures;
use effects::{Direct, EffectSink};
use fabric::{Borders, Fabric, Pending};
use node::{Input, Node};
pub use packet_faults::{Bursts, Late};
pub use prefetch::Prefetch;
use region::Region;

/// Port of every node. Addresses are 10.0.0.1 and following, in the order of numbers.
pub const PORT: u16 = 7_000;
/// Nodes that 10.0.0.0/8 can name, less the first and the last address.
const NODES_MAX: u32 = (1 << 24) - 2;

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A fault.
    Fault(Fault),
    /// [`Observer::token`] is called with this.
    Token(u64),
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldTally {
    /// Packets that crossed the network, up to the receiver's socket.
    pub hops: u64,
    /// Copies handed to the network.
    pub sent: u64,
    /// Copies that the network doubled.
    pub duplicated: u64,
    /// Copies lost, in the order of [`Loss`].
    pub lost: [u64; 6],
    /// Datagrams that their machine refused.
    pub malformed: u64,
    /// Timeouts handed in.
    pub timeouts: u64,
    /// Events that machines emitted.
    pub events: u64,
    /// Calls of the owner that found their node down.
    pub invokes_missed: u64,
    /// Most datagrams that ever waited in one socket buffer.
    pub longest_inbox: u32,
    digest: u64,
}

impl WorldTally {
    /// Copies lost for this reason.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.lost[loss as usize]
    }

    /// Takes in what another core has counted, all but its digest.
    fn add(&mut self, other: &Self) {
        self.hops += other.hops;
        self.sent += other.sent;
        self.duplicated += other.duplicated;
        for (mine, others) in self.lost.iter_mut().zip(other.lost) {
            *mine += others;
        }
        self.malformed += other.malformed;
        self.timeouts += other.timeouts;
        self.events += other.events;
        self.invokes_missed += other.invokes_missed;
        self.longest_inbox = self.longest_inbox.max(other.longest_inbox);
    }

    fn lose(&mut self, loss: Loss) {
        self.lost[loss as usize] += 1;
    }

    /// Takes one turn of a node into the digest.
    #[inline]
    fn note(&mut self, at: u64, node: u32) {
        self.note_word(at ^ (u64::from(node) << 40));
    }

    #[inline]
    fn note_word(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// Takes what a node sends into the digest, once for all copies.
    #[inline]
    fn note_bytes(&mut self, bytes: &[u8]) {
        self.note_word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.note_word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.note_word(u64::from_le_bytes(last));
    }
}

/// A run of machines on a network. See the crate documentation.
pub struct World<M: Machine, N: Network> {
    now: SimTime,
    nodes: Vec<Node<M>>,
    hosts: Vec<Host>,
    timers: Timers,
    fabric: Fabric<N>,
    prng: Prng,
    /// The number of events that concerned the whole world. Each of these events may have changed
    /// whether cores can work side by side.
    worldwide: u64,
    prefetch: Prefetch<M>,
}

impl<M: Machine, N: Network> World<M, N> {
    /// An empty world at time zero. Everything random comes from the seed.
    pub fn new(network: N, seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        Self {
            now: SimTime::ZERO,
            nodes: Vec::new(),
            hosts: Vec::new(),
            timers: Timers::default(),
            fabric: Fabric::new(network, prng.fork(0)),
            prng,
            worldwide: 0,
            prefetch: Prefetch::default(),
        }
    }

    /// Sets what is read of a machine ahead of its turn.
    pub fn set_prefetch(&mut self, prefetch: Prefetch<M>) {
        self.prefetch = prefetch;
    }

    /// Adds a host.
    pub fn add_host(&mut self, spec: HostSpec) -> HostIndex {
        let index = self.hosts.len() as u32;
        self.fabric.network.add_host(&spec);
        self.hosts.push(Host::new(spec, self.prng.fork(u64::from(index) + 1)));
        HostIndex(index)
    }

    /// Starts a machine on a host. Its first input is a clock reading, when the run goes on or
    /// [`call`](Self::call) is used.
    ///
    /// # Panics
    /// When there is no such host or the address space is full.
    pub fn add_node(&mut self, machine: M, host: HostIndex) -> NodeIndex {
        let index = self.nodes.len() as u32;
        assert!(index < NODES_MAX, "no address left");
        self.hosts[host.0 as usize].add_node(index);
        let mut node = Node::new(machine, host.0);
        node.departures = Departures::of(self.hosts[host.0 as usize].spec());
        self.nodes.push(node);
        self.timers.add_node();
        self.fabric.borders.host_of.push(host.0);
        self.fabric.borders.sides.push(0);
        self.boot(index);
        NodeIndex(index)
    }

    /// Starts a machine on a host of its own.
    pub fn add(&mut self, machine: M, spec: HostSpec) -> NodeIndex {
        let host = self.add_host(spec);
        self.add_node(machine, host)
    }

    /// From now on a node's forwarding installs ([`evenfall_core::forward`]) are carried out ahead
    /// of its process, at no cost to its processor, as a kernel or a card does. Without this call
    /// they are ignored.
    pub fn offload(&mut self, node: NodeIndex) {
        self.nodes[node.0 as usize].forwarder.get_or_insert_default();
    }

    /// Gives a node a disk, which carries out what a machine that is
    /// [`durable`](Machine::durable) asks for. A crash of the node tears or loses what was not
    /// answered. The owner keeps a clone of the [`SimDisk`](crate::SimDisk), out of which the
    /// machine of the next life is made in [`Observer::revive`].
    pub fn attach(&mut self, node: NodeIndex, writes: SimWrites) {
        self.nodes[node.0 as usize].writes = Some(Box::new(writes));
    }

    /// All nodes as one region, and an outlet through which effects happen at once.
    #[inline]
    fn parts<'a, O>(&'a mut self, observer: &'a mut O) -> (Region<'a, M>, Direct<'a, N, O>) {
        let (nodes, hosts) = (&mut self.nodes[..], &mut self.hosts[..]);
        let prefetch = self.prefetch;
        let region = Region { nodes, hosts, timers: &mut self.timers, first: (0, 0), prefetch };
        (region, Direct { fabric: &mut self.fabric, observer })
    }

    fn boot(&mut self, index: u32) {
        let generation = self.nodes[index as usize].generation;
        self.fabric.queue.push(self.now.0, Pending::Clock { node: index, generation });
    }

    /// A node that is called before it has run has its first clock reading now.
    fn boot_early<O: Observer<M, N>>(&mut self, index: u32, observer: &mut O) {
        let node = &mut self.nodes[index as usize];
        node.booted_early = true;
        let at = self.hosts[node.host as usize].ready(node.free().max(self.now.0));
        let (mut region, mut out) = self.parts(observer);
        region.turn(at, index, Input::Clock, false, &mut out);
    }

    /// The true time.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// How many nodes there are, up or down.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The address of a node, existing or to come: node 0 is 10.0.0.1.
    pub fn address(&self, node: NodeIndex) -> SocketAddr {
        address_of(node.0)
    }

    /// The node with this address.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeIndex> {
        let number = node_number(address);
        ((number as usize) < self.nodes.len()).then_some(NodeIndex(number))
    }

    /// The machine of a node, also after a crash.
    pub fn machine(&self, node: NodeIndex) -> &M {
        &self.nodes[node.0 as usize].machine
    }

    /// Whether the node has not crashed.
    pub fn is_up(&self, node: NodeIndex) -> bool {
        self.nodes[node.0 as usize].up
    }

    /// The host of a node.
    pub fn host_of(&self, node: NodeIndex) -> HostIndex {
        HostIndex(self.nodes[node.0 as usize].host)
    }

    /// A node's local clock now.
    pub fn local(&self, node: NodeIndex) -> Timestamp {
        self.hosts[self.host_of(node).0 as usize].clock.local(self.now.0)
    }

    /// The network model.
    pub fn network(&self) -> &N {
        &self.fabric.network
    }

    /// The network model, to change what its own interface offers.
    pub fn network_mut(&mut self) -> &mut N {
        &mut self.fabric.network
    }

    /// The counts so far.
    pub fn tally(&self) -> WorldTally {
        self.fabric.tally
    }

    /// A hash of when which node had a turn and of the bytes that it sent: equal runs have equal
    /// digests.
    pub fn digest(&self) -> u64 {
        self.fabric.tally.digest
    }

    /// Events that wait, timers not counted.
    pub fn pending(&self) -> usize {
        self.fabric.queue.len()
    }

    /// Puts something on the agenda; now, when the time has passed.
    pub fn schedule(&mut self, at: SimTime, action: Action) {
        self.fabric.queue.push(at.max(self.now).0, Pending::Action(Box::new(action)));
    }

    /// Has the observer call the machine of a node at this time (or as soon as it is not busy):
    /// [`Observer::invoke`] with this token. Calls wait their turn among arrivals. A call that
    /// finds its node down is counted and dropped.
    pub fn invoke_at(&mut self, at: SimTime, node: NodeIndex, token: u64) {
        self.fabric.queue.push(at.max(self.now).0, Pending::Invoke { node: node.0, token });
    }

    /// Calls the machine of a node now (or, on its clock, as soon as it is not busy) and follows
    /// the contract. `None` when the node is down.
    pub fn call<R, O: Observer<M, N>>(
        &mut self,
        node: NodeIndex,
        observer: &mut O,
        call: impl FnOnce(&mut M, Timestamp) -> R,
    ) -> Option<R> {
        let (index, now) = (node.0, self.now.0);
        if !self.nodes[index as usize].up {
            return None;
        }
        if !self.nodes[index as usize].booted {
            self.boot_early(index, observer);
        }
        let (mut region, mut out) = self.parts(observer);
        let (node, host) = region.node(index);
        let begun = host.ready(node.free().max(now));
        let result = call(&mut node.machine, host.clock.local(begun));
        EffectSink::<M>::note(&mut out, begun, index);
        region.settle(begun, index, &mut out);
        Some(result)
    }

    /// Runs everything that is due up to and including this time.
    pub fn run_until<O: Observer<M, N>>(&mut self, until: SimTime, observer: &mut O) {
        while self.step(until, observer) {}
        self.now = self.now.max(until);
    }

    /// Runs the next thing that is due up to and including this time; false when there is none.
    pub fn step<O: Observer<M, N>>(&mut self, until: SimTime, observer: &mut O) -> bool {
        let limit = self.timers.first().min(until.0);
        if let Some((at, pending)) = self.fabric.queue.pop_until(limit) {
            self.now = self.now.max(SimTime(at));
            self.warm();
            self.dispatch(at, pending, observer);
            return true;
        }
        let first = self.timers.first();
        if first > until.0 {
            return false;
        }
        self.now = self.now.max(SimTime(first));
        let (mut region, mut out) = self.parts(observer);
        let Some((at, node)) = region.pop_timer(until.0, &out) else { return false };
        region.fire(at, node, &mut out);
        true
    }

    /// When a bucket of the queue has just been begun, its nodes are fetched from memory together.
    #[inline]
    fn warm(&mut self) {
        let (nodes, hosts) = (&mut self.nodes[..], &mut self.hosts[..]);
        let prefetch = self.prefetch;
        let Fabric { queue, network, .. } = &mut self.fabric;
        if let Some(coming) = queue.begun() {
            let region = Region { nodes, hosts, timers: &mut self.timers, first: (0, 0), prefetch };
            region.warm_for(coming, |host| network.send_ready(host, SimTime::ZERO).0);
        }
    }

    #[inline]
    fn dispatch<O: Observer<M, N>>(&mut self, at: u64, pending: Pending, observer: &mut O) {
        match pending {
            Pending::Network { token } => {
                self.worldwide += 1;
                self.fabric.wake(SimTime(at), token, observer);
            }
            Pending::Action(action) => {
                self.worldwide += 1;
                match *action {
                    Action::Fault(fault) => self.inject(&fault, observer),
                    Action::Token(token) => observer.token(self, token),
                }
            }
            of_a_node => {
                let (mut region, mut out) = self.parts(observer);
                region.take(at, of_a_node, &mut out);
            }
        }
    }
}

/// The address of the node with this number.
pub(crate) fn address_of(node: u32) -> SocketAddr {
    let [_, b, c, d] = (node + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, b, c, d)), PORT)
}

/// The number of the node with this address, existing or not; no node's for foreign addresses.
#[inline]
fn node_number(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(v4) if v4.ip().octets()[0] == 10 && v4.port() == PORT => {
            (v4.ip().to_bits() & 0x00ff_ffff).wrapping_sub(1)
        }
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_numbers_are_inverse() {
        for number in [0, 1, 254, 255, 256, 65_535, NODES_MAX - 1] {
            assert_eq!(node_number(address_of(number)), number);
        }
        for foreign in ["10.0.0.0:7000", "10.0.0.1:7001", "11.0.0.1:7000", "[::1]:7000"] {
            assert_eq!(node_number(foreign.parse().expect("an address")), u32::MAX);
        }
    }
}
