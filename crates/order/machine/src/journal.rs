//! What a replica has on its disk, and what it does once that is there.
//!
//! One log of records, each behind its length and a checksum:
//!
//! ```text
//!  | length u32 | checksum u64 | kind u8 | ...                          |
//!    1 entry      a proposal
//!    2 promise    owner u32, incarnation u32, term u32, to u32
//!    3 end        owner u32, incarnation u32, term u32, end u64
//!    4 committed  the state of the root
//! ```
//!
//! A crash tears the tail of the log. The first record that is cut or does not match its checksum
//! ends the log; the replica has not told anybody of that record or of those behind it.

use bytes::Bytes;
use evenfall_core::durable::Change;
use evenfall_core::{Malformed, NodeId, Reader, Write, WriteId};

use crate::group::Report;
use crate::tree::checksum;
use crate::{Proposal, State, wire};

/// The name of the log.
pub const LOG: &str = "order";
/// Bytes of requests and promises that wait to be taken by one write. The driver asks after every
/// input, so this is what one input can make: a replica that stores more stops.
const HEAD_BYTES: usize = 12;

/// A record, read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry of somebody's group was stored.
    Entry(Proposal),
    /// A promise was made: owner, incarnation, term, to whom.
    Promise(NodeId, u32, u32, NodeId),
    /// An end was accepted: owner, incarnation, term, end.
    End(NodeId, u32, u32, u64),
    /// A cycle was committed.
    Committed(State),
}

/// What follows when a write is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// This is on the disk of the group of an owner and incarnation.
    Report(NodeId, u32, Report),
    /// The replica's own proposal of this cycle may leave.
    Propose(u64),
}

/// Records on their way to the disk.
#[derive(Debug, Default)]
pub struct Journal {
    bytes: Vec<u8>,
    effects: Vec<Effect>,
    under_way: std::collections::VecDeque<(WriteId, Vec<Effect>)>,
    /// Length to which the log is cut before anything is appended.
    cut: Option<u64>,
    next: u64,
}

impl Journal {
    /// Goes on behind the good part of a log.
    pub fn behind(good: u64) -> Self {
        Self { cut: Some(good), ..Self::default() }
    }

    /// Adds a record, and what follows once it is on the disk.
    pub fn add(&mut self, record: &Record, effects: impl IntoIterator<Item = Effect>) {
        let mut body = Vec::new();
        match record {
            Record::Entry(proposal) => {
                body.push(1);
                wire::put_proposal(&mut body, proposal);
            }
            Record::Promise(owner, incarnation, term, to) => {
                body.push(2);
                [owner.0, *incarnation, *term, to.0]
                    .iter()
                    .for_each(|word| body.extend(word.to_le_bytes()));
            }
            Record::End(owner, incarnation, term, end) => {
                body.push(3);
                [owner.0, *incarnation, *term]
                    .iter()
                    .for_each(|word| body.extend(word.to_le_bytes()));
                body.extend(end.to_le_bytes());
            }
            Record::Committed(state) => {
                body.push(4);
                wire::put_state(&mut body, state);
            }
        }
        self.bytes.extend((body.len() as u32).to_le_bytes());
        self.bytes.extend(checksum(&body).to_le_bytes());
        self.bytes.extend_from_slice(&body);
        self.effects.extend(effects);
    }

    /// The next write.
    pub fn poll(&mut self) -> Option<Write> {
        let (change, effects) = match self.cut.take() {
            Some(good) => (Change::Truncate(good), Vec::new()),
            None if self.bytes.is_empty() => return None,
            None => {
                let bytes = core::mem::take(&mut self.bytes);
                (Change::Append(bytes.into()), core::mem::take(&mut self.effects))
            }
        };
        self.next += 1;
        let id = WriteId(self.next);
        self.under_way.push_back((id, effects));
        Some(Write { id, log: LOG.into(), change })
    }

    /// A write is done: what follows.
    pub fn done(&mut self, id: WriteId) -> Vec<Effect> {
        match self.under_way.front() {
            Some((first, _)) if *first == id => {
                self.under_way.pop_front().map_or_else(Vec::new, |(_, effects)| effects)
            }
            _ => Vec::new(),
        }
    }
}

/// The records of a log, and the length of the part that they are in.
///
/// # Errors
/// A record that matches its checksum and is none.
pub fn read(log: &Bytes) -> Result<(Vec<Record>, u64), Malformed> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(head) = log.get(at..at + HEAD_BYTES) {
        let r = &mut Reader::new(head);
        let (len, sum) = (r.u32()? as usize, r.u64()?);
        let begin = at + HEAD_BYTES;
        let Some(body) = begin.checked_add(len).filter(|end| *end <= log.len()) else { break };
        let body = log.slice(begin..body);
        if body.is_empty() || checksum(&body) != sum {
            break;
        }
        records.push(record(&body)?);
        at = begin + len;
    }
    Ok((records, at as u64))
}

fn record(body: &Bytes) -> Result<Record, Malformed> {
    let r = &mut Reader::new(body);
    let record = match r.u8()? {
        1 => Record::Entry(wire::proposal(r, body)?),
        2 => Record::Promise(NodeId(r.u32()?), r.u32()?, r.u32()?, NodeId(r.u32()?)),
        3 => Record::End(NodeId(r.u32()?), r.u32()?, r.u32()?, r.u64()?),
        4 => Record::Committed(wire::state(r, body)?),
        _ => return Err(r.malformed("no such record")),
    };
    r.finish()?;
    Ok(record)
}
