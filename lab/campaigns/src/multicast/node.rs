//! One machine type for all roles, because a world has one type.

use evenfall_clock_machine::Timekeeper;
use evenfall_core::{Machine, NodeId, Timestamp};
use evenfall_multicast_machine::{Receiver, ReceiverEvent, Relay, RelayEvent, Root, RootEvent};

use super::archive::CampaignArchive;
use evenfall_sim::{NodeIndex, Prefetch, Strict, any_machine};

/// A machine of the overlay.
pub enum CampaignNode {
    /// The root of a tree. There are few, and they are large.
    Root(Box<Root>),
    /// A proxy.
    Relay(Box<Relay>),
    /// A receiver.
    Receiver(Box<Receiver>),
    /// A recorder and what it keeps.
    Recorder(Box<CampaignArchive>),
    /// The clock of a host, beside the roles of the host.
    Keeper(Box<Timekeeper>),
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
    /// From a keeper of time, whose owner reads the clock instead.
    Keeper,
}

/// The name of the machine on a node: the same number, so that transcripts need no legend.
pub fn id_of(node: NodeIndex) -> NodeId {
    NodeId(node.0)
}

any_machine! {
    impl Machine for CampaignNode {
        type Event = NodeEvent;

        Root(root) => root.poll_event().map(NodeEvent::Root),
        Relay(relay) => relay.poll_event().map(NodeEvent::Relay),
        Receiver(receiver) => receiver.poll_event().map(NodeEvent::Receiver),
        Recorder(archive) => archive.poll_event().map(NodeEvent::Receiver),
        Keeper(keeper) => keeper.poll_event().map(|_| NodeEvent::Keeper),
    }
}

/// What the world reads of the machines inside before their turns. Roots and recorders are few.
pub fn prefetch<A: MulticastActor>() -> Prefetch<A> {
    Prefetch {
        near: |actor| match actor.node() {
            CampaignNode::Relay(relay) => relay.prefetch(),
            CampaignNode::Receiver(receiver) => receiver.prefetch(),
            CampaignNode::Root(_) | CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => 0,
        },
        far: |actor| match actor.node() {
            CampaignNode::Relay(relay) => relay.prefetch_far(),
            CampaignNode::Receiver(receiver) => receiver.prefetch_far(),
            CampaignNode::Root(_) | CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => 0,
        },
    }
}

/// A [`CampaignNode`], or a wrapper with a [`CampaignNode`] inside.
pub trait MulticastActor: Machine<Event = NodeEvent> {
    /// The machine inside.
    fn node(&self) -> &CampaignNode;

    /// Calls the machine inside. The call is an input to the machine, like an arrival.
    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut CampaignNode));
}

impl MulticastActor for CampaignNode {
    fn node(&self) -> &CampaignNode {
        self
    }

    fn input(&mut self, _: Timestamp, call: &mut dyn FnMut(&mut CampaignNode)) {
        call(self);
    }
}

impl MulticastActor for Strict<CampaignNode> {
    fn node(&self) -> &CampaignNode {
        &self.inner
    }

    fn input(&mut self, now: Timestamp, call: &mut dyn FnMut(&mut CampaignNode)) {
        Strict::input(self, now, call);
    }
}
