//! Proposals, and the states of vnodes that proposals are merged to.
//!
//! A state is the ordered sets of requests of all nodes below its vnode, with the largest proposal
//! number and all membership changes. Merging sorts the children by their numbers, and equal
//! numbers by name. The requests of one node in one cycle are never separated.

use std::collections::BTreeSet;

use bytes::Bytes;
use evenfall_core::NodeId;

use crate::VnodeId;
use crate::config::REQUEST_HEAD_BYTES;

/// A client's request for a place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The name of the client. Requests that a client sends to one node keep their order.
    pub client: u64,
    /// The client's own number of the request.
    pub sequence: u64,
    /// What the request is, which the machine does not read.
    pub body: Bytes,
}

/// A change of who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// The node makes no proposals any more under this incarnation.
    Leave(NodeId, u32),
    /// The node makes proposals again, under this incarnation.
    Join(NodeId, u32),
}

/// The requests of one node in one cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSet {
    /// The node.
    pub node: NodeId,
    /// How often the node has joined.
    pub incarnation: u32,
    /// The proposal number: random, and what the sets are sorted by.
    pub number: u64,
    /// In the order in which the node received them.
    pub requests: Vec<Request>,
}

/// What a node broadcasts in the first round of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The cycle.
    pub cycle: u64,
    /// The requests of the node, and their number.
    pub set: RequestSet,
    /// Nodes that asked this node to let them back in.
    pub changes: Vec<Change>,
}

/// The state of a vnode in a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The cycle.
    pub cycle: u64,
    /// The vnode.
    pub vnode: VnodeId,
    /// The largest proposal number below the vnode; 0 when no node proposed.
    pub number: u64,
    /// Membership changes, sorted, each once.
    pub changes: Vec<Change>,
    /// In the order that is agreed.
    pub sets: Vec<RequestSet>,
}

impl State {
    /// The state of a super-leaf: proposals of its members, and what became of members without.
    pub fn of_proposals<'a>(
        cycle: u64,
        vnode: VnodeId,
        proposals: impl Iterator<Item = &'a Proposal>,
        leaves: impl Iterator<Item = Change>,
    ) -> Self {
        let mut changes: BTreeSet<Change> = leaves.collect();
        let mut sets = Vec::new();
        for proposal in proposals {
            changes.extend(&proposal.changes);
            sets.push(proposal.set.clone());
        }
        sets.sort_by_key(|set| (set.number, set.node));
        let number = sets.last().map_or(0, |set| set.number);
        Self { cycle, vnode, number, changes: changes.into_iter().collect(), sets }
    }

    /// The state of a vnode above others.
    pub fn of_states<'a>(
        cycle: u64,
        vnode: VnodeId,
        children: impl Iterator<Item = &'a Self>,
    ) -> Self {
        let mut children: Vec<&Self> = children.collect();
        children.sort_by_key(|child| (child.number, child.vnode));
        let number = children.last().map_or(0, |child| child.number);
        let changes: BTreeSet<Change> =
            children.iter().flat_map(|child| child.changes.iter().copied()).collect();
        let sets = children.iter().flat_map(|child| child.sets.iter().cloned()).collect();
        Self { cycle, vnode, number, changes: changes.into_iter().collect(), sets }
    }

    /// Bytes of the requests, each counted with its head.
    pub fn bytes(&self) -> usize {
        let requests = self.sets.iter().flat_map(|set| &set.requests);
        requests.map(|request| request.body.len() + REQUEST_HEAD_BYTES).sum()
    }

    /// The set of a node, when its proposal is in.
    pub fn set_of(&self, node: NodeId) -> Option<&RequestSet> {
        self.sets.iter().find(|set| set.node == node)
    }
}
