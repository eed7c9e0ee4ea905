//! What a replica needs to know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenfall_consensus_machine::{LeafMember, LeafOnlyTree, SecondRound, SuperLeaf};
use evenfall_core::{NodeId, SharedKey};

use crate::ReplicaError;

/// What a replica needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of this replica among `replicas`.
    pub node: usize,
    /// Where each replica receives datagrams.
    pub replicas: Vec<SocketAddr>,
    /// The directory of the log.
    pub directory: PathBuf,
    /// Cycles for which a write lease lasts; 0 without leases. All replicas need the same number.
    pub lease_cycles: u64,
    /// The racks of the replicas. All replicas need the same.
    pub racks: RackSettings,
    /// The key that all replicas share. Without a key nothing leaves loopback.
    pub key: Option<SharedKey>,
}

/// Which replica is in which rack, and how the racks agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackSettings {
    /// The rack of each replica, from 0 to 63; empty when all replicas are in one rack.
    pub of: Vec<u8>,
    /// How the racks agree on what each cycle has, so that some of them may vanish. With a
    /// membership service outside, [`Replica::open`](crate::Replica::open) needs the service.
    pub second_round: SecondRound,
    /// The farthest round trip between two racks.
    pub round_trip: Duration,
}

impl RackSettings {
    /// Most racks. One word has a bit for each.
    pub const MAX: usize = 64;

    /// The numbers of the racks, in order.
    pub fn numbers(&self) -> Vec<u8> {
        let all: BTreeSet<u8> = self.of.iter().copied().collect();
        all.into_iter().collect()
    }
}

impl Settings {
    /// The number of this replica's rack.
    pub fn rack(&self) -> u8 {
        self.racks.of.get(self.node).copied().unwrap_or(0)
    }

    /// The replicas of each rack as a super-leaf.
    ///
    /// # Errors
    /// When there are no replicas, or more than a tree may have.
    pub fn tree(&self) -> Result<LeafOnlyTree, ReplicaError> {
        let mut leaves: BTreeMap<Vec<u8>, Vec<LeafMember>> = BTreeMap::new();
        let is_wide = self.racks.numbers().len() > 1;
        for (n, address) in self.replicas.iter().enumerate() {
            let rack = self.racks.of.get(n).copied().filter(|_| is_wide);
            let member = LeafMember { node: NodeId(n as u32), address: *address };
            leaves.entry(rack.into_iter().collect()).or_default().push(member);
        }
        let leaf = |(path, members)| SuperLeaf { path, members };
        Ok(LeafOnlyTree::new(leaves.into_iter().map(leaf).collect())?)
    }
}
