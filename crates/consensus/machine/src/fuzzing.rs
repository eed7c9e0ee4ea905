//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Durable as _, Machine as _, NodeId, StampedBy, Timestamp,
};

use crate::disk_identity::{DiskRecord, PeerDisk};
use crate::journal::ReplicaRecord;
use crate::wire::{MAGIC, ReplicaMessage, VERSION};
use crate::{Canopus, Config, LeafMember, LeafOnlyTree, SuperLeaf, journal};

/// The length of write leases in the checks, in cycles.
const LEASE_CYCLES: u64 = 8;

/// Input is datagrams, each behind two bytes of length. What decodes is encoded to the same bytes.
/// A replica that votes takes any datagram, and so does a replica that has just started without a
/// log. The head of a datagram is made right, so that the fuzzer need not guess the digest of the
/// tree.
pub fn datagrams(data: &[u8]) {
    // Peers whose disks have the number 1 are known to the replica that votes.
    let peers = [1, 2].map(|node| (NodeId(node), PeerDisk { number: 1, count: 1 })).into();
    let disk = DiskRecord { votes: true, peers, ..DiskRecord::new(NodeId(0), 1, &config()) };
    let log = evenfall_core::journal::log_of([journal::body(&ReplicaRecord::Disk(disk))]);
    hand_in(data, &log);
    hand_in(data, &Bytes::new());
}

fn config() -> Config {
    Config { lease_cycles: LEASE_CYCLES, ..Config::default() }
}

/// Hands datagrams to a replica with this log.
fn hand_in(data: &[u8], log: &Bytes) {
    let address = |n: u32| std::net::SocketAddr::from(([127, 0, 0, 1], 1 + n as u16));
    let members = (0..3).map(|n| LeafMember { node: NodeId(n), address: address(n) }).collect();
    let tree =
        LeafOnlyTree::new(vec![SuperLeaf { path: vec![], members }]).expect("a tree of ours");
    let config = config();
    let digest = tree.digest(&config);
    let mut replica = Canopus::new(config, tree, NodeId(0), 1, log).expect("a replica of ours");
    replica.handle_clock(Timestamp::ZERO, ClockReading::default());
    let (mut at, mut number) = (0, 0);
    while let Some(head) = data.get(at..at + 2) {
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let mut datagram = data[at + 2..data.len().min(at + 2 + length)].to_vec();
        at += 2 + length;
        number += 1;
        if datagram.len() >= 16 {
            datagram[..2].copy_from_slice(&MAGIC.to_le_bytes());
            datagram[2] = VERSION;
            datagram[4..8].copy_from_slice(&(1 + number as u32 % 2).to_le_bytes());
            datagram[8..16].copy_from_slice(&digest.to_le_bytes());
        }
        let datagram = Bytes::from(datagram);
        if let Ok((from, message)) = ReplicaMessage::decode(&datagram, digest) {
            assert_eq!(Bytes::from(message.encode(from, digest)), datagram);
        }
        let now = Timestamp::from_nanos(number * 1_000_000);
        let from = address(1 + number as u32 % 2);
        // A malformed datagram is refused, and nothing else happens.
        replica.handle(now, Arrival::new(from, datagram, now, StampedBy::User)).ok();
        replica.handle_timeout(now);
        while replica.poll_event().is_some() {}
        while let Some(write) = replica.poll_write() {
            replica.handle_written(now, write.id, Ok(()));
        }
        while replica.poll_transmit(now).is_some() {}
    }
}

/// Any bytes are a log that is read up to its first broken record, and the list of a membership
/// service or none.
pub fn logs(data: &[u8]) {
    let _ = journal::read(&Bytes::copy_from_slice(data));
    let header = evenfall_core::journal::header();
    let _ = journal::read(&[&header[..], data].concat().into());
    crate::external_membership::check(data);
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("consensus_datagrams", datagrams), ("consensus_logs", logs)]);
    }
}
