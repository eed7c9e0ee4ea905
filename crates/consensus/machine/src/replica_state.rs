//! What a replica remembers, by what it is for: its place in the tree, its own requests, how far
//! the cycles are, its heartbeats, the other super-leaves, its checkpoint, and what waits to be
//! sent.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use evenfall_core::{Destination, Head, NodeId, Timestamp, TrafficClass, Transmit};

use crate::canopus::Pending;
use crate::checkpoint::Fetching;
use crate::config::{TRANSMIT_BYTES_MAX, TRANSMITS_MAX};
use crate::external_membership::ExternalMembership;
use crate::group::DurableReport;
use crate::leaf_consensus::RemoteLeafPeer;
use crate::leases::LeaseKey;
use crate::tree::SuperLeaf;
use crate::wire::HEAD_BYTES;
use crate::{LeafOnlyTree, VnodeId};

/// Where a node stands in the tree.
#[derive(Debug)]
pub(crate) struct LeafPlace {
    /// The super-leaf of the node.
    pub(crate) leaf: SuperLeaf,
    /// The vnodes above the node, from its super-leaf to the root.
    pub(crate) ancestors: Vec<VnodeId>,
    /// The nodes of each super-leaf of the tree.
    pub(crate) racks: Vec<Vec<NodeId>>,
    /// The place of the node's super-leaf in `racks`.
    pub(crate) rack: usize,
}

impl LeafPlace {
    /// The place of a node of this super-leaf.
    pub(crate) fn of_node(me: NodeId, leaf: SuperLeaf, tree: &LeafOnlyTree) -> Self {
        let racks = tree.racks();
        let rack = racks.iter().position(|rack| rack.contains(&me)).unwrap_or(0);
        Self { ancestors: tree.ancestors(&leaf), leaf, racks, rack }
    }

    /// The nodes of all other super-leaves.
    pub(crate) fn nodes_elsewhere(&self) -> impl Iterator<Item = NodeId> {
        let own = &self.racks[self.rack];
        self.racks.iter().flatten().filter(|node| !own.contains(node)).copied()
    }
}

/// The requests and reads of this replica that are not committed.
#[derive(Debug, Default)]
pub(crate) struct OwnRequests {
    /// Requests and reads that wait for a cycle.
    pub(crate) pending: VecDeque<Pending>,
    /// Bytes of the requests in `pending`, each with its head.
    pub(crate) pending_bytes: usize,
    /// The requests and reads of each cycle that this replica proposed and that is not committed.
    pub(crate) proposed: BTreeMap<u64, Vec<Pending>>,
    /// The cycle of the proposal under way that asks for each lease.
    pub(crate) leases_asked: BTreeMap<LeaseKey, u64>,
}

/// How far the cycles are.
#[derive(Debug, Default)]
pub(crate) struct CycleProgress {
    /// The last cycle that this life of the replica started.
    pub(crate) started: u64,
    /// The last cycle that an earlier life of this replica started.
    pub(crate) started_before: u64,
    /// The last cycle that is committed here.
    pub(crate) committed: u64,
    /// The last of the cycles in which round 1 is over, without a gap.
    pub(crate) gathered: u64,
    /// The highest cycle that any node has named.
    pub(crate) seen: u64,
    /// When the last cycle was started.
    pub(crate) last_start: Timestamp,
    /// Whether the replica needs a cycle that all replicas which answer have forgotten.
    pub(crate) is_behind: bool,
    /// The last cycle that a peer was asked for because it has committed the cycle.
    pub(crate) asked_until: u64,
}

/// When this replica owes its status, and when it ends the group of a silent peer.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    /// The time of the next heartbeat; `None` before the first clock reading.
    pub(crate) tick_at: Option<Timestamp>,
    /// Heartbeats so far.
    pub(crate) ticks: u64,
    /// Whether a status is due.
    pub(crate) status_due: bool,
    /// When this replica may next try to end the group of each peer.
    pub(crate) next_campaign: BTreeMap<NodeId, Timestamp>,
}

impl Heartbeats {
    /// The heartbeats of a new replica, whose first status is due.
    pub(crate) fn of_new_replica() -> Self {
        Self { tick_at: None, ticks: 0, status_due: true, next_campaign: BTreeMap::new() }
    }
}

/// What this replica knows of the other super-leaves, and what it owes them.
#[derive(Debug)]
pub(crate) struct OtherLeaves {
    /// The nodes of the other super-leaves.
    pub(crate) nodes: BTreeMap<NodeId, RemoteLeafPeer>,
    /// What the membership service outside has said.
    pub(crate) membership: ExternalMembership,
    /// A super-leaf that is to leave as planned.
    pub(crate) retires: Option<VnodeId>,
    /// Whether ballots are due.
    pub(crate) ballots_due: bool,
    /// When the last ballots left.
    pub(crate) spoke_at: Timestamp,
    /// The ballots that left since the last heartbeat.
    pub(crate) told: Vec<(NodeId, u32, DurableReport)>,
}

impl OtherLeaves {
    /// These nodes, of which nothing is known yet. `ballots_due` says whether a second round needs
    /// ballots.
    pub(crate) fn of_nodes(nodes: impl Iterator<Item = NodeId>, ballots_due: bool) -> Self {
        Self {
            nodes: nodes.map(|node| (node, RemoteLeafPeer::default())).collect(),
            membership: ExternalMembership::default(),
            retires: None,
            ballots_due,
            spoke_at: Timestamp::ZERO,
            told: Vec::new(),
        }
    }
}

/// The latest checkpoint, and how it travels.
#[derive(Debug, Default)]
pub(crate) struct KeptCheckpoint {
    /// The cycle of the checkpoint, or 0.
    pub(crate) cycle: u64,
    /// The checkpoint as it travels; empty when it was not encoded.
    pub(crate) encoded: Bytes,
    /// Whether the owner was asked for a checkpoint.
    pub(crate) is_wanted: bool,
    /// A checkpoint of another replica that is being fetched.
    pub(crate) fetching: Option<Fetching>,
    /// A node of another super-leaf that has forgotten a cycle, and the cycle.
    pub(crate) forgotten: Option<(NodeId, u64)>,
}

/// Datagrams that wait for the driver. When the queue is full, a datagram is dropped and counted: a
/// node that misses it asks for its contents again.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    transmits: VecDeque<Transmit>,
    bytes: usize,
    pub(crate) dropped: u64,
}

impl Outbox {
    pub(crate) fn push_datagram(&mut self, to: Destination, bytes: Bytes) {
        self.push_transmit(to, Head::new(&bytes[..HEAD_BYTES]), bytes.slice(HEAD_BYTES..));
    }

    /// As [`push_datagram`](Self::push_datagram), with a body that is a part of a longer value.
    pub(crate) fn push_transmit(&mut self, to: Destination, head: Head, body: Bytes) {
        let transmit = Transmit::new(TrafficClass::Live, to, head, body);
        let is_long = self.bytes + transmit.len() > TRANSMIT_BYTES_MAX;
        if self.transmits.len() >= TRANSMITS_MAX || is_long {
            self.dropped += 1;
            return;
        }
        self.bytes += transmit.len();
        self.transmits.push_back(transmit);
    }

    pub(crate) fn pop_datagram(&mut self) -> Option<Transmit> {
        let next = self.transmits.pop_front()?;
        self.bytes -= next.len();
        Some(next)
    }

    pub(crate) fn clear_all(&mut self) {
        self.transmits.clear();
        self.bytes = 0;
    }
}
