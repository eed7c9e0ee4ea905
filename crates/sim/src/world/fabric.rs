//! The parts between the nodes: the network model, the event queue, partitions and counts.

use bytes::Bytes;
use evenfall_core::{Machine, Prng, TrafficClass, Transmit};

use crate::network::{Agenda, Loss, Network, Packet, Ticket, Verdict};
use crate::observer::Observer;
use crate::queue::Queue;
use crate::world::packet_faults::PacketFaults;
use crate::world::{Action, WorldTally};
use crate::{HostIndex, NodeIndex, SimTime};

/// An entry of the event queue. Most entries are packets, and a slot of the queue with a packet
/// fills one line of the cache.
pub(super) enum Pending {
    /// A datagram reaches the receiver's card.
    Packet { from: u32, to: u32, datagram: Bytes },
    /// The receiver's card, which was busy, has taken a datagram in.
    TakenIn { from: u32, to: u32, datagram: Bytes },
    /// A node that was busy or waited for its card goes on.
    Wake { node: u32 },
    /// The first copy in the queues of a node's sending threads leaves.
    Leave { node: u32 },
    /// A clock source is read.
    Clock { node: u32, generation: u32 },
    /// Counters of installed state are due.
    Counters { node: u32, generation: u32 },
    /// The oldest write of a node is done.
    Written { node: u32, generation: u32 },
    /// The owner wants to call a machine.
    Invoke { node: u32, token: u64 },
    /// The network asked to be woken.
    Network { token: u64 },
    /// A fault, or a token of the owner.
    Action(Box<Action>),
}

/// The hosts of all nodes, and the partitions between nodes.
#[derive(Default)]
pub(super) struct Borders {
    /// Host of each node.
    pub(super) host_of: Vec<u32>,
    /// For each node, a bit per partition that has it on the inside.
    pub(super) sides: Vec<u64>,
    /// Partitions in force.
    pub(super) partitions: u64,
    /// Partitions whose inside hears the outside and is not heard by it.
    pub(super) mute: u64,
    /// Partitions whose inside is heard by the outside and does not hear it.
    pub(super) deaf: u64,
}

impl Borders {
    /// Why a packet does not enter the network; `None` when it does.
    #[inline]
    pub(super) fn refuse(&self, from: u32, to: u32) -> Option<Loss> {
        if to as usize >= self.host_of.len() {
            Some(Loss::Unroutable)
        } else if self.partitions != 0 && self.is_cut(from, to) {
            Some(Loss::Partition)
        } else {
            None
        }
    }

    /// Whether a partition is between two nodes, in this direction.
    #[inline]
    fn is_cut(&self, from: u32, to: u32) -> bool {
        let (from, to) = (self.sides[from as usize], self.sides[to as usize]);
        let across = from ^ to;
        (across & from & !self.deaf) | (across & to & !self.mute) != 0
    }

    /// A packet from one node to another. The receiver need not exist.
    #[inline]
    pub(super) fn packet(
        &self,
        at: u64,
        (from, to): (u32, u32),
        class: TrafficClass,
        bytes: usize,
    ) -> Packet {
        let host = |node: u32| HostIndex(self.host_of.get(node as usize).copied().unwrap_or(0));
        Packet {
            at: SimTime(at),
            from: NodeIndex(from),
            to: NodeIndex(to),
            from_host: host(from),
            to_host: host(to),
            bytes: bytes as u32,
            class,
        }
    }
}

impl Pending {
    /// The node to which this happens; `None` when it happens to the whole world.
    #[inline]
    pub(super) fn node(&self) -> Option<u32> {
        match *self {
            Self::Packet { to, .. } | Self::TakenIn { to, .. } => Some(to),
            Self::Wake { node }
            | Self::Leave { node }
            | Self::Clock { node, .. }
            | Self::Counters { node, .. }
            | Self::Written { node, .. }
            | Self::Invoke { node, .. } => Some(node),
            Self::Network { .. } | Self::Action(_) => None,
        }
    }

    /// Reads the lines of the cache that a datagram takes. The result depends on each of these
    /// lines.
    #[inline]
    pub(super) fn touch(&self) -> u8 {
        match self {
            Self::Packet { datagram, .. } | Self::TakenIn { datagram, .. } => {
                datagram.first().unwrap_or(&0) ^ datagram.last().unwrap_or(&0)
            }
            _ => 0,
        }
    }
}

pub(super) struct Fabric<N> {
    pub(super) network: N,
    pub(super) queue: Queue<Pending>,
    pub(super) tally: WorldTally,
    pub(super) borders: Borders,
    /// Bursts and late packets in force.
    pub(super) packet_faults: Option<Box<PacketFaults>>,
    pub(super) prng: Prng,
    agenda: Agenda,
    /// The packets that the network holds, by ticket.
    held: Vec<Option<(u32, u32, Bytes)>>,
}

impl<N: Network> Fabric<N> {
    pub(super) fn new(network: N, prng: Prng) -> Self {
        Self {
            network,
            queue: Queue::new(),
            tally: WorldTally::default(),
            borders: Borders::default(),
            packet_faults: None,
            prng,
            agenda: Agenda::default(),
            held: Vec::new(),
        }
    }

    /// One copy leaves its sender at `at`.
    #[inline]
    pub(super) fn send<M: Machine, O: Observer<M, N>>(
        &mut self,
        at: u64,
        (from, to): (u32, u32),
        class: TrafficClass,
        datagram: Bytes,
        observer: &mut O,
    ) {
        self.tally.sent += 1;
        let packet = self.borders.packet(at, (from, to), class, datagram.len());
        let verdict = if let Some(loss) = self.borders.refuse(from, to) {
            Verdict::Lose(loss)
        } else if let Some(trouble) = &mut self.packet_faults
            && trouble.swallows(at, (from, to), &mut self.prng)
        {
            Verdict::Lose(Loss::Random)
        } else {
            let verdict = self.network.route(&packet, &mut self.prng, &mut self.agenda);
            self.delayed(verdict)
        };
        observer.sent(&packet, &datagram, verdict);
        match verdict {
            Verdict::Deliver(at) => self.deliver(at, from, to, datagram),
            Verdict::Twice(first, second) => {
                self.tally.duplicated += 1;
                self.deliver(first, from, to, datagram.clone());
                self.deliver(second, from, to, datagram);
            }
            Verdict::Lose(loss) => self.tally.lose(loss),
            Verdict::Hold(ticket) => self.hold(ticket, (from, to, datagram)),
        }
        if !self.agenda.is_empty() {
            self.follow_agenda(SimTime(at), observer);
        }
    }

    /// The verdict on a packet after late packets were drawn.
    #[inline]
    fn delayed(&mut self, verdict: Verdict) -> Verdict {
        let Some(trouble) = &self.packet_faults else { return verdict };
        match verdict {
            Verdict::Deliver(at) => Verdict::Deliver(trouble.delays(at, &mut self.prng)),
            Verdict::Twice(first, second) => {
                Verdict::Twice(first, trouble.delays(second, &mut self.prng))
            }
            lost_or_held => lost_or_held,
        }
    }

    #[inline]
    fn hold(&mut self, Ticket(ticket): Ticket, packet: (u32, u32, Bytes)) {
        let at = ticket as usize;
        if at >= self.held.len() {
            self.held.resize_with(at + 1, || None);
        }
        self.held[at] = Some(packet);
    }

    #[inline]
    fn deliver(&mut self, at: SimTime, from: u32, to: u32, datagram: Bytes) {
        self.queue.push(at.0, Pending::Packet { from, to, datagram });
    }

    /// The network asked to be woken now.
    pub(super) fn wake<M: Machine, O: Observer<M, N>>(
        &mut self,
        now: SimTime,
        token: u64,
        observer: &mut O,
    ) {
        self.network.wake(now, token, &mut self.prng, &mut self.agenda);
        self.follow_agenda(now, observer);
    }

    fn follow_agenda<M: Machine, O: Observer<M, N>>(&mut self, now: SimTime, observer: &mut O) {
        let mut agenda = core::mem::take(&mut self.agenda);
        for (at, token) in agenda.wakes.drain(..) {
            self.queue.push(at.0, Pending::Network { token });
        }
        for (ticket, verdict) in agenda.releases.drain(..) {
            let held = self.held.get_mut(ticket.0 as usize).and_then(Option::take);
            let (from, to, datagram) = held.expect("the network released what it does not hold");
            match self.delayed(verdict) {
                Verdict::Deliver(at) => self.deliver(at, from, to, datagram),
                Verdict::Twice(first, second) => {
                    self.tally.duplicated += 1;
                    self.deliver(first, from, to, datagram.clone());
                    self.deliver(second, from, to, datagram);
                }
                Verdict::Lose(loss) => {
                    self.tally.lose(loss);
                    observer.lost(now, NodeIndex(from), NodeIndex(to), loss);
                }
                Verdict::Hold(ticket) => panic!("{ticket:?} is held already"),
            }
        }
        // Keeps the allocations.
        self.agenda = agenda;
    }
}

/// Small datagrams live in one allocation together with their reference count.
struct Inline<const CAPACITY: usize> {
    len: usize,
    bytes: [u8; CAPACITY],
}

impl<const CAPACITY: usize> AsRef<[u8]> for Inline<CAPACITY> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const CAPACITY: usize> Inline<CAPACITY> {
    #[inline]
    fn datagram(head: &[u8], body: &[u8]) -> Bytes {
        let mut inline = Self { len: head.len() + body.len(), bytes: [0; CAPACITY] };
        inline.bytes[..head.len()].copy_from_slice(head);
        inline.bytes[head.len()..inline.len].copy_from_slice(body);
        Bytes::from_owner(inline)
    }
}

/// The bytes on the wire: one allocation for each transmit, shared by its copies.
#[inline]
pub(super) fn datagram(transmit: Transmit) -> Bytes {
    let (head, body) = (transmit.head.as_slice(), &transmit.body);
    match head.len() + body.len() {
        _ if head.is_empty() => transmit.body,
        0..=112 => Inline::<112>::datagram(head, body),
        113..=240 => Inline::<240>::datagram(head, body),
        _ => Bytes::from([head, body].concat()),
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::{Destination, GroupId, Head};

    use super::*;

    #[test]
    fn a_datagram_is_head_then_body_whatever_its_length() {
        for (head, body) in [(0, 0), (0, 9), (40, 0), (40, 72), (40, 73), (128, 112), (100, 9_000)]
        {
            let [head, body]: [Vec<u8>; 2] =
                [(head, 1), (body, 7)].map(|(n, seed)| (0..n).map(|i| (i * seed) as u8).collect());
            let wire = datagram(Transmit::new(
                TrafficClass::Live,
                Destination::Group(GroupId(0)),
                Head::new(&head),
                Bytes::from(body.clone()),
            ));
            assert_eq!(wire, [head, body].concat());
        }
    }
}
