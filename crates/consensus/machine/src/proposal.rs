//! Proposals, and the states of vnodes into which proposals are merged.
//!
//! A state is the ordered sets of requests of all nodes below its vnode, with the largest proposal
//! number and all membership changes. Merging sorts the children by their numbers, and equal
//! numbers by name. The requests of one node in one cycle are never separated.

use std::collections::BTreeSet;

use bytes::Bytes;
use evenfall_core::{Malformed, NodeId, Reader};

use crate::config::REQUEST_HEAD_BYTES;
use crate::{LeaseKey, VnodeId};

/// A client's request for a place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// The name of the client. Requests that a client sends to one node keep their order.
    pub client: u64,
    /// The client's own number of the request.
    pub sequence: u64,
    /// The contents of the request, which the machine does not read.
    pub body: Bytes,
}

/// Requests one behind the other, in the bytes in which they travel and are written. Copies share
/// the bytes, so that no work is done for a single request between its proposal and its execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    count: u16,
    bytes: Bytes,
}

impl Requests {
    /// Most requests of one node in one cycle.
    pub const COUNT_MAX: usize = u16::MAX as usize;

    /// Reads `count` requests, which share the bytes of `whole`. The reader reads `whole` too.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes end inside a request.
    pub fn read(r: &mut Reader<'_>, whole: &Bytes, count: u16) -> Result<Self, Malformed> {
        let (ahead, mut length) = (&mut r.clone(), 0);
        for _ in 0..count {
            ahead.take(REQUEST_HEAD_BYTES - 4)?;
            let body = ahead.u32()? as usize;
            ahead.take(body)?;
            length += REQUEST_HEAD_BYTES + body;
        }
        Ok(Self { count, bytes: whole.slice_ref(r.take(length)?) })
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All requests, each behind its head.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The requests in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { bytes: &self.bytes, at: 0 }
    }
}

impl<'a> FromIterator<&'a ClientRequest> for Requests {
    /// # Panics
    /// With more than [`Requests::COUNT_MAX`] requests.
    fn from_iter<I: IntoIterator<Item = &'a ClientRequest>>(requests: I) -> Self {
        let (mut bytes, mut count) = (Vec::new(), 0_usize);
        for request in requests {
            bytes.extend_from_slice(&request.client.to_le_bytes());
            bytes.extend_from_slice(&request.sequence.to_le_bytes());
            bytes.extend_from_slice(&(request.body.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&request.body);
            count += 1;
        }
        let count = u16::try_from(count).expect("more requests than a set has");
        Self { count, bytes: bytes.into() }
    }
}

impl<'a> IntoIterator for &'a Requests {
    type Item = ClientRequest;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// See [`Requests::iter`]. The bodies share the bytes of the set.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Iterator for Iter<'_> {
    type Item = ClientRequest;

    fn next(&mut self) -> Option<ClientRequest> {
        let r = &mut Reader::new(self.bytes.get(self.at..)?);
        let (client, sequence, length) = (r.u64().ok()?, r.u64().ok()?, r.u32().ok()?);
        let begin = self.at + REQUEST_HEAD_BYTES;
        self.at = begin + length as usize;
        Some(ClientRequest { client, sequence, body: self.bytes.slice(begin..self.at) })
    }
}

/// A change that is agreed together with requests, and applies a pipeline later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgreedChange {
    /// The node makes no proposals any more under this incarnation.
    Leave(NodeId, u32),
    /// The node makes proposals again, under this incarnation.
    Join(NodeId, u32),
    /// The keys of this name may be written, for [`lease_cycles`](crate::Config::lease_cycles).
    Lease(LeaseKey),
    /// The super-leaf takes no part any more under this incarnation, nor do its nodes. It comes
    /// back when one of its nodes joins.
    Retire(VnodeId, u32, LeavingReason),
}

/// Why a super-leaf takes no part any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeavingReason {
    /// The cycle is without its state.
    Vanished,
    /// As planned.
    Planned,
    /// It begins a new group, in which a replica counts that lost its disk.
    Anew,
}

/// The requests of one node in one cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSet {
    /// The node.
    pub node: NodeId,
    /// How often the node has joined.
    pub incarnation: u32,
    /// The proposal number. It is random, and sets are sorted by it.
    pub number: u64,
    /// In the order in which the node received them.
    pub requests: Requests,
}

/// What a node broadcasts in the first round of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The cycle.
    pub cycle: u64,
    /// The requests of the node, and their number.
    pub set: RequestSet,
    /// Nodes that asked this node to let them back in, and the write leases that the node needs.
    pub changes: Vec<AgreedChange>,
}

/// The state of a vnode in a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodeState {
    /// The cycle.
    pub cycle: u64,
    /// The vnode.
    pub vnode: VnodeId,
    /// The largest proposal number below the vnode; 0 when no node proposed.
    pub number: u64,
    /// Membership changes and write leases, sorted, each once.
    pub changes: Vec<AgreedChange>,
    /// In the order that is agreed.
    pub sets: Vec<RequestSet>,
}

impl VnodeState {
    /// The state of a super-leaf: the proposals of its members, and the changes for members without
    /// a proposal.
    pub fn of_proposals<'a>(
        cycle: u64,
        vnode: VnodeId,
        proposals: impl Iterator<Item = &'a Proposal>,
        leaves: impl Iterator<Item = AgreedChange>,
    ) -> Self {
        let mut changes: BTreeSet<AgreedChange> = leaves.collect();
        let mut sets = Vec::new();
        for proposal in proposals {
            changes.extend(&proposal.changes);
            sets.push(proposal.set.clone());
        }
        sets.sort_by_key(|set| (set.number, set.node));
        let number = sets.last().map_or(0, |set| set.number);
        Self { cycle, vnode, number, changes: changes.into_iter().collect(), sets }
    }

    /// The state of a vnode above others, with changes that no child has.
    pub fn of_states<'a>(
        cycle: u64,
        vnode: VnodeId,
        children: impl Iterator<Item = &'a Self>,
        changes: impl Iterator<Item = AgreedChange>,
    ) -> Self {
        let mut children: Vec<&Self> = children.collect();
        children.sort_by_key(|child| (child.number, child.vnode));
        let number = children.last().map_or(0, |child| child.number);
        let changes: BTreeSet<AgreedChange> = children
            .iter()
            .flat_map(|child| child.changes.iter().copied())
            .chain(changes)
            .collect();
        let sets = children.iter().flat_map(|child| child.sets.iter().cloned()).collect();
        Self { cycle, vnode, number, changes: changes.into_iter().collect(), sets }
    }

    /// Bytes of the requests, each counted with its head.
    pub fn bytes(&self) -> usize {
        self.sets.iter().map(|set| set.requests.as_bytes().len()).sum()
    }

    /// The set of a node, when its proposal is in.
    pub fn set_of(&self, node: NodeId) -> Option<&RequestSet> {
        self.sets.iter().find(|set| set.node == node)
    }
}
