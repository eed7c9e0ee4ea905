//! The records that a replica keeps on its disk, and the effects that follow a written record.
//!
//! One log ([`core::journal`](evenfall_core::journal)) of records:
//!
//! ```text
//!  | kind u8 | ...                                                     |
//!    1 entry      a proposal of a node
//!    2 promise    owner u32, incarnation u32, term u32, to u32
//!    3 end        owner u32, incarnation u32, term u32, end u64
//!    6 group      owner u32, incarnation u32, report
//!    7 committed  cycle u64, number u64, count u16, membership changes, count u16, sets: tag u8,
//!                 then 0 named: node u32, incarnation u32, or 1 whole: the set
//!   14 disk       the number of this disk, and the numbers of the peers' disks
//!   13 checkpoint a checkpoint
//!   15 list       the list of a membership service outside
//!   12 state      an entry of a super-leaf's group: vnode u16, incarnation u32, then as committed
//! ```
//!
//! **Each request is in the log once.** A cycle consists of sets that members have proposed. The
//! log has the sets of the own super-leaf already, as entries. The record of a committed cycle
//! therefore names these sets, and contains the sets of which the log has no entry.
//!
//! **Compaction.** A checkpoint replaces the whole log in one step. The new log has the checkpoint,
//! the record of disks, the list of a service outside, what the replica has decided in each group,
//! and the entries of cycles that are not committed.

use bytes::Bytes;
use evenfall_core::{Malformed, NodeId, Reader, journal};

use crate::checkpoint::Checkpoint;
use crate::disk_identity::DiskRecord;
use crate::group::DurableReport;
use crate::{AgreedChange, ConsensusError, Proposal, RequestSet, VnodeId, wire};

/// The name of the log.
pub const LOG: &str = "order";

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaRecord {
    /// An entry of a member's group was stored.
    Entry(Proposal),
    /// A promise was made: owner, incarnation, term, to whom.
    Promise(NodeId, u32, u32, NodeId),
    /// An end was accepted: owner, incarnation, term, end.
    End(NodeId, u32, u32, u64),
    /// An entry of a super-leaf's group was stored: the super-leaf, its incarnation, and its state
    /// without the sets that the log has already.
    State(VnodeId, u32, Commit),
    /// A cycle was committed.
    Committed(Commit),
    /// All cycles up to this checkpoint were committed.
    Checkpoint(Checkpoint),
    /// What was decided in the group of an owner and incarnation, when the log was compacted.
    Group(NodeId, u32, DurableReport),
    /// Which disk this is, and which disks the peers have.
    Disk(DiskRecord),
    /// The list of vanished super-leaves, as this replica last read it from the service outside.
    List(Bytes),
}

/// A committed cycle, or the state of a super-leaf. It names the sets that the log has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The cycle.
    pub cycle: u64,
    /// The largest proposal number.
    pub number: u64,
    /// Membership changes.
    pub changes: Vec<AgreedChange>,
    /// The sets, in the agreed order.
    pub sets: Vec<CommittedSet>,
}

/// A set of requests in a committed cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedSet {
    /// The set of the entry that the log has of this member and incarnation in the cycle.
    Named(NodeId, u32),
    /// A set of which the log has no entry.
    Whole(RequestSet),
}

/// An effect that follows when a record is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The group of an owner and incarnation hears what this replica has on its disk.
    Report(NodeId, u32, DurableReport),
    /// The replica's own proposal of this cycle may leave.
    Propose(u64),
    /// The peers may be greeted: the number of this disk is written.
    Greet,
    /// A peer may be told that the number of its disk is written.
    Answer(NodeId, u64),
    /// The reports of this replica count.
    Vote,
}

/// Records on their way to the disk.
pub type ReplicaJournal = journal::Journal<Effect>;

/// Bytes in front of the contents of a record.
pub(crate) const KIND_BYTES: usize = 1;

/// The bytes of a record.
pub fn body(record: &ReplicaRecord) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, record);
    body
}

/// Adds the bytes of a record.
pub(crate) fn put(out: &mut Vec<u8>, record: &ReplicaRecord) {
    match record {
        ReplicaRecord::Entry(proposal) => {
            out.push(1);
            wire::put_proposal(out, proposal);
        }
        ReplicaRecord::Promise(owner, incarnation, term, to) => {
            out.push(2);
            for word in [owner.0, *incarnation, *term, to.0] {
                out.extend(word.to_le_bytes());
            }
        }
        ReplicaRecord::End(owner, incarnation, term, end) => {
            out.push(3);
            for word in [owner.0, *incarnation, *term] {
                out.extend(word.to_le_bytes());
            }
            out.extend(end.to_le_bytes());
        }
        ReplicaRecord::State(leaf, incarnation, commit) => {
            out.push(12);
            out.extend(leaf.0.to_le_bytes());
            out.extend(incarnation.to_le_bytes());
            put_commit(out, commit);
        }
        ReplicaRecord::Committed(commit) => {
            out.push(7);
            put_commit(out, commit);
        }
        ReplicaRecord::Checkpoint(checkpoint) => put_checkpoint(out, |out| checkpoint.put(out)),
        ReplicaRecord::Group(owner, incarnation, report) => {
            out.push(6);
            out.extend(owner.0.to_le_bytes());
            out.extend(incarnation.to_le_bytes());
            wire::put_report(out, report);
        }
        ReplicaRecord::Disk(disk) => {
            out.push(14);
            disk.put(out);
        }
        ReplicaRecord::List(list) => {
            out.push(15);
            out.extend_from_slice(list);
        }
    }
}

/// A [`ReplicaRecord::Checkpoint`] with the checkpoint that `checkpoint` appends.
pub(crate) fn put_checkpoint(out: &mut Vec<u8>, checkpoint: impl FnOnce(&mut Vec<u8>)) {
    out.push(13);
    checkpoint(out);
}

fn put_commit(out: &mut Vec<u8>, commit: &Commit) {
    out.extend(commit.cycle.to_le_bytes());
    out.extend(commit.number.to_le_bytes());
    out.extend((commit.changes.len() as u16).to_le_bytes());
    wire::put_changes(out, &commit.changes);
    out.extend((commit.sets.len() as u16).to_le_bytes());
    for set in &commit.sets {
        match set {
            CommittedSet::Named(node, incarnation) => {
                out.push(0);
                out.extend(node.0.to_le_bytes());
                out.extend(incarnation.to_le_bytes());
            }
            CommittedSet::Whole(set) => {
                out.push(1);
                wire::put_set(out, set);
            }
        }
    }
}

fn commit(r: &mut Reader<'_>, body: &Bytes) -> Result<Commit, Malformed> {
    let (cycle, number, count) = (r.u64()?, r.u64()?, r.u16()?);
    let changes = wire::changes(r, count)?;
    let count = r.u16()?;
    let mut sets = Vec::new();
    for _ in 0..count {
        sets.push(match r.u8()? {
            0 => CommittedSet::Named(NodeId(r.u32()?), r.u32()?),
            1 => CommittedSet::Whole(wire::set(r, body)?),
            _ => return Err(r.malformed("no such set")),
        });
    }
    Ok(Commit { cycle, number, changes, sets })
}

/// The whole records at the beginning of a log, and the bytes that these records and the header
/// take in the log.
///
/// # Errors
/// The log is refused, or a record matches its checksum and is not of this protocol.
pub fn read(log: &Bytes) -> Result<(Vec<ReplicaRecord>, u64), ConsensusError> {
    let (bodies, good) = journal::read(log).map_err(ConsensusError::Log)?;
    Ok((records(&bodies)?, good))
}

pub(crate) fn records(bodies: &[Bytes]) -> Result<Vec<ReplicaRecord>, ConsensusError> {
    bodies.iter().map(record).collect::<Result<_, _>>().map_err(ConsensusError::Record)
}

fn record(body: &Bytes) -> Result<ReplicaRecord, Malformed> {
    let r = &mut Reader::new(body);
    let record = match r.u8()? {
        1 => ReplicaRecord::Entry(wire::proposal(r, body)?),
        2 => ReplicaRecord::Promise(NodeId(r.u32()?), r.u32()?, r.u32()?, NodeId(r.u32()?)),
        3 => ReplicaRecord::End(NodeId(r.u32()?), r.u32()?, r.u32()?, r.u64()?),
        7 => ReplicaRecord::Committed(commit(r, body)?),
        14 => ReplicaRecord::Disk(DiskRecord::read(r)?),
        13 => ReplicaRecord::Checkpoint(Checkpoint::read(r, body)?),
        15 => ReplicaRecord::List(body.slice_ref(r.take(body.len() - KIND_BYTES)?)),
        12 => ReplicaRecord::State(VnodeId(r.u16()?), r.u32()?, commit(r, body)?),
        6 => ReplicaRecord::Group(NodeId(r.u32()?), r.u32()?, wire::report(r)?),
        _ => return Err(r.malformed("no such record")),
    };
    r.finish()?;
    Ok(record)
}
