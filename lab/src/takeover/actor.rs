//! The machine of a node: a candidate among the roots, or any other node of the overlay.

use evenfall_core::any_machine;
use evenfall_multicast_sessions::{Author, AuthorEvent};
use evenfall_multicast_sessions::{Candidate, CandidateEvent};

use crate::multicast::node::{Node, NodeEvent};

/// A machine of this campaign.
pub enum Actor {
    /// One of the roots.
    Candidate(Box<Candidate>),
    /// A proxy or a receiver.
    Node(Node),
    /// A publisher in a process of its own.
    Author(Box<Author>),
}

/// An event of a machine of this campaign for its owner.
#[derive(Clone, Debug)]
pub enum Told {
    /// An event of a candidate.
    Candidate(CandidateEvent),
    /// An event of a proxy or a receiver.
    Node(NodeEvent),
    /// An event of a publisher.
    Author(AuthorEvent),
}

any_machine! {
    impl Machine for Actor {
        type Event = Told;

        Candidate(candidate) => candidate.poll_event().map(Told::Candidate),
        Node(node) => node.poll_event().map(Told::Node),
        Author(author) => author.poll_event().map(Told::Author),
    }
}
