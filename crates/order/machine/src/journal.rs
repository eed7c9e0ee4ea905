//! The records that a replica keeps on its disk, and the effects that follow a written record.
//!
//! One log ([`core::journal`](evenfall_core::journal)) of records:
//!
//! ```text
//!  | kind u8 | ...                                                     |
//!    1 entry      a proposal
//!    2 promise    owner u32, incarnation u32, term u32, to u32
//!    3 end        owner u32, incarnation u32, term u32, end u64
//!    4 committed  the state of the root
//!    5 checkpoint a checkpoint
//!    6 group      owner u32, incarnation u32, report
//! ```
//!
//! **Compaction.** A checkpoint replaces the whole log in one step. The new log has the checkpoint,
//! what the replica has decided in each group, and the entries of cycles that are not committed.

use bytes::Bytes;
use evenfall_core::{Malformed, NodeId, Reader, journal};

use crate::checkpoint::Checkpoint;
use crate::group::Report;
use crate::{OrderError, Proposal, State, wire};

/// The name of the log.
pub const LOG: &str = "order";

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry of a member's group was stored.
    Entry(Proposal),
    /// A promise was made: owner, incarnation, term, to whom.
    Promise(NodeId, u32, u32, NodeId),
    /// An end was accepted: owner, incarnation, term, end.
    End(NodeId, u32, u32, u64),
    /// A cycle was committed.
    Committed(State),
    /// All cycles up to this checkpoint were committed.
    Checkpoint(Checkpoint),
    /// What was decided in the group of an owner and incarnation, when the log was compacted.
    Group(NodeId, u32, Report),
}

/// An effect that follows when a record is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The group of an owner and incarnation hears what this replica has on its disk.
    Report(NodeId, u32, Report),
    /// The replica's own proposal of this cycle may leave.
    Propose(u64),
}

/// Records on their way to the disk.
pub type Journal = journal::Journal<Effect>;

/// The bytes of a record.
pub fn body(record: &Record) -> Vec<u8> {
    let mut body = Vec::new();
    match record {
        Record::Entry(proposal) => {
            body.push(1);
            wire::put_proposal(&mut body, proposal);
        }
        Record::Promise(owner, incarnation, term, to) => {
            body.push(2);
            for word in [owner.0, *incarnation, *term, to.0] {
                body.extend(word.to_le_bytes());
            }
        }
        Record::End(owner, incarnation, term, end) => {
            body.push(3);
            for word in [owner.0, *incarnation, *term] {
                body.extend(word.to_le_bytes());
            }
            body.extend(end.to_le_bytes());
        }
        Record::Committed(state) => {
            body.push(4);
            wire::put_state(&mut body, state);
        }
        Record::Checkpoint(checkpoint) => {
            body.push(5);
            checkpoint.put(&mut body);
        }
        Record::Group(owner, incarnation, report) => {
            body.push(6);
            body.extend(owner.0.to_le_bytes());
            body.extend(incarnation.to_le_bytes());
            wire::put_report(&mut body, report);
        }
    }
    body
}

/// The whole records at the beginning of a log, and the bytes that these records and the header
/// take in the log.
///
/// # Errors
/// The log is refused, or a record matches its checksum and is not of this protocol.
pub fn read(log: &Bytes) -> Result<(Vec<Record>, u64), OrderError> {
    let (bodies, good) = journal::read(log).map_err(OrderError::Log)?;
    Ok((records(&bodies)?, good))
}

pub(crate) fn records(bodies: &[Bytes]) -> Result<Vec<Record>, OrderError> {
    bodies.iter().map(record).collect::<Result<_, _>>().map_err(OrderError::Record)
}

fn record(body: &Bytes) -> Result<Record, Malformed> {
    let r = &mut Reader::new(body);
    let record = match r.u8()? {
        1 => Record::Entry(wire::proposal(r, body)?),
        2 => Record::Promise(NodeId(r.u32()?), r.u32()?, r.u32()?, NodeId(r.u32()?)),
        3 => Record::End(NodeId(r.u32()?), r.u32()?, r.u32()?, r.u64()?),
        4 => Record::Committed(wire::state(r, body)?),
        5 => Record::Checkpoint(Checkpoint::read(r, body)?),
        6 => Record::Group(NodeId(r.u32()?), r.u32()?, wire::report(r)?),
        _ => return Err(r.malformed("no such record")),
    };
    r.finish()?;
    Ok(record)
}
