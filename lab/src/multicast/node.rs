//! One machine type for all roles, because a world has one type.

use evenfall_core::{
    Arrival, ClockReading, ForwardCounters, ForwardId, Install, Machine, Malformed, NodeId, Sent,
    Timestamp, Transmit,
};
use evenfall_multicast_machine::{Receiver, ReceiverEvent, Relay, RelayEvent, Root, RootEvent};

use super::archive::Archive;
use evenfall_sim::{NodeIndex, Strict};

/// A machine of the overlay.
pub enum Node {
    /// The root of a tree. There are few, and they are large.
    Root(Box<Root>),
    /// A proxy.
    Relay(Box<Relay>),
    /// A receiver.
    Receiver(Box<Receiver>),
    /// A recorder and what it keeps.
    Recorder(Box<Archive>),
}

/// What a machine of the overlay tells its owner.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// From a root.
    Root(RootEvent),
    /// From a proxy.
    Relay(RelayEvent),
    /// From a receiver.
    Receiver(ReceiverEvent),
}

/// The name of the machine on a node: the same number, so that transcripts need no legend.
pub fn id_of(node: NodeIndex) -> NodeId {
    NodeId(node.0)
}

macro_rules! each {
    ($node:expr, $machine:ident => $call:expr) => {
        match $node {
            Node::Root($machine) => $call,
            Node::Relay($machine) => $call,
            Node::Receiver($machine) => $call,
            Node::Recorder($machine) => $call,
        }
    };
}

impl Machine for Node {
    type Event = NodeEvent;

    #[inline]
    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        each!(self, m => m.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        each!(self, m => m.handle_timeout(now));
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        each!(self, m => m.handle_clock(now, reading));
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        each!(self, m => m.handle_sent(now, sent));
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        each!(self, m => m.handle_counters(now, of, counters));
    }

    #[inline]
    fn poll_event(&mut self) -> Option<NodeEvent> {
        match self {
            Self::Root(m) => m.poll_event().map(NodeEvent::Root),
            Self::Relay(m) => m.poll_event().map(NodeEvent::Relay),
            Self::Receiver(m) => m.poll_event().map(NodeEvent::Receiver),
            Self::Recorder(m) => m.poll_event().map(NodeEvent::Receiver),
        }
    }

    #[inline]
    fn poll_install(&mut self) -> Option<Install> {
        each!(self, m => m.poll_install())
    }

    #[inline]
    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        each!(self, m => m.poll_transmit(now))
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Timestamp> {
        each!(self, m => m.poll_timeout())
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        each!(self, m => m.poll_lull())
    }
}

/// A [`Node`], or a wrapper with a [`Node`] inside.
pub trait Actor: Machine<Event = NodeEvent> {
    /// The machine inside.
    fn node(&self) -> &Node;

    /// Calls the machine inside. The call is an input to the machine, like an arrival.
    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut Node));
}

impl Actor for Node {
    fn node(&self) -> &Node {
        self
    }

    fn input(&mut self, _: Timestamp, call: &mut dyn FnMut(&mut Node)) {
        call(self);
    }
}

impl Actor for Strict<Node> {
    fn node(&self) -> &Node {
        &self.inner
    }

    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut Node)) {
        Strict::input(self, now, call);
    }
}
