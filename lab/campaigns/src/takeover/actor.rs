//! The machine of a node: a candidate among the roots, or any other node of the overlay.

use evenfall_multicast_sessions::{ProducerEvent, ProducerSession};
use evenfall_multicast_sessions::{ReplicatedRoot, ReplicatedRootEvent};
use evenfall_sim::any_machine;

use crate::multicast::node::{CampaignNode, NodeEvent};

/// A machine of this campaign.
pub enum Actor {
    /// One of the roots.
    ReplicatedRoot(Box<ReplicatedRoot>),
    /// A proxy or a receiver.
    Node(CampaignNode),
    /// A publisher in a process of its own.
    ProducerSession(Box<ProducerSession>),
}

/// An event of a machine of this campaign for its owner.
#[derive(Clone, Debug)]
pub enum Told {
    /// An event of a candidate.
    ReplicatedRoot(ReplicatedRootEvent),
    /// An event of a proxy or a receiver.
    Node(NodeEvent),
    /// An event of a publisher.
    ProducerSession(ProducerEvent),
}

any_machine! {
    impl Machine for Actor {
        type Event = Told;

        ReplicatedRoot(candidate) => candidate.poll_event().map(Told::ReplicatedRoot),
        Node(node) => node.poll_event().map(Told::Node),
        ProducerSession(author) => author.poll_event().map(Told::ProducerSession),
    }
}
