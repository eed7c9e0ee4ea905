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
//!    5 checkpoint a checkpoint
//!    6 group      owner u32, incarnation u32, report
//! ```
//!
//! A crash tears the tail of the log. The first record that is cut or does not match its checksum
//! ends the log; the replica has not told anybody of that record or of those behind it.
//!
//! **Compaction.** A checkpoint replaces the whole log in one step. The new log has the checkpoint,
//! what the replica has decided in each group, and the entries of cycles that are not committed.
//!
//! **A full disk** fails a write, and with it all later ones. The journal keeps their bytes, cuts
//! the log behind the last write that is done, and tries the same bytes again.

use std::collections::VecDeque;

use bytes::Bytes;
use evenfall_core::durable::Change;
use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_core::{Malformed, NodeId, Reader, Write, WriteId};

use crate::checkpoint::Checkpoint;
use crate::group::Report;
use crate::{Proposal, State, wire};

/// The name of the log.
pub const LOG: &str = "order";
/// Bytes in front of a record: its length and its checksum.
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
    /// All cycles up to this checkpoint were committed.
    Checkpoint(Checkpoint),
    /// What was decided in the group of an owner and incarnation, when the log was compacted.
    Group(NodeId, u32, Report),
}

/// What follows when a write is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// This is on the disk of the group of an owner and incarnation.
    Report(NodeId, u32, Report),
    /// The replica's own proposal of this cycle may leave.
    Propose(u64),
}

/// A change of the log, and what follows when it is done.
#[derive(Debug)]
struct Step {
    change: Change,
    effects: Vec<Effect>,
}

impl Step {
    fn cut(good: u64) -> Self {
        Self { change: Change::Truncate(good), effects: Vec::new() }
    }

    fn len(&self) -> u64 {
        match &self.change {
            Change::Append(bytes) | Change::Replace(bytes) => bytes.len() as u64,
            Change::Truncate(_) => 0,
        }
    }
}

/// Records on their way to the disk.
#[derive(Debug, Default)]
pub struct Journal {
    /// Records that no step has yet.
    bytes: Vec<u8>,
    effects: Vec<Effect>,
    /// Steps that the driver has not taken yet.
    next: VecDeque<Step>,
    under_way: VecDeque<(WriteId, Step)>,
    /// Steps that failed because the disk was full, in order.
    failed: VecDeque<Step>,
    /// A write has failed, and none has succeeded since.
    is_failing: bool,
    /// Length of the log as of the last step that is done.
    good: u64,
    last_id: u64,
}

impl Journal {
    /// Goes on behind the good part of a log.
    pub fn behind(good: u64) -> Self {
        Self { next: [Step::cut(good)].into(), good, ..Self::default() }
    }

    /// Adds a record, and what follows once it is on the disk.
    pub fn add(&mut self, record: &Record, effects: impl IntoIterator<Item = Effect>) {
        put(&mut self.bytes, record);
        self.effects.extend(effects);
    }

    /// Replaces the whole log by these records. What was added before and is not written yet is
    /// dropped, so the records have to say all of it; its effects follow once they are there.
    pub fn replace(&mut self, records: &[Record], effects: impl IntoIterator<Item = Effect>) {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| put(&mut bytes, record));
        self.bytes.clear();
        let mut all = core::mem::take(&mut self.effects);
        all.extend(self.next.drain(..).flat_map(|step| step.effects));
        all.extend(effects);
        self.next.push_back(Step { change: Change::Replace(bytes.into()), effects: all });
    }

    /// The next write.
    pub fn poll(&mut self) -> Option<Write> {
        if !self.failed.is_empty() {
            return None;
        }
        if self.next.is_empty() && !self.bytes.is_empty() {
            let change = Change::Append(core::mem::take(&mut self.bytes).into());
            let effects = core::mem::take(&mut self.effects);
            self.next.push_back(Step { change, effects });
        }
        let step = self.next.pop_front()?;
        self.last_id += 1;
        let (id, change) = (WriteId(self.last_id), step.change.clone());
        self.under_way.push_back((id, step));
        Some(Write { id, log: LOG.into(), change })
    }

    /// A write is done: what follows.
    pub fn done(&mut self, id: WriteId) -> Vec<Effect> {
        let Some(step) = self.answered(id) else { return Vec::new() };
        let mut effects = Vec::new();
        match &step.change {
            Change::Append(bytes) => self.good += bytes.len() as u64,
            Change::Truncate(keep) => self.good = self.good.min(*keep),
            Change::Replace(bytes) => {
                // The new log says what all earlier steps say.
                self.good = bytes.len() as u64;
                effects.extend(self.failed.drain(..).flat_map(|step| step.effects));
            }
        }
        effects.extend(step.effects);
        let is_all = self.failed.is_empty() && self.next.is_empty() && self.under_way.is_empty();
        self.is_failing &= matches!(step.change, Change::Truncate(_)) && !is_all;
        effects
    }

    /// A write failed, and may be tried again.
    pub fn failed(&mut self, id: WriteId) {
        if let Some(step) = self.answered(id) {
            self.failed.push_back(step);
            self.is_failing = true;
        }
    }

    fn answered(&mut self, id: WriteId) -> Option<Step> {
        let is_next = self.under_way.front().is_some_and(|(first, _)| *first == id);
        is_next.then(|| self.under_way.pop_front()).flatten().map(|(_, step)| step)
    }

    /// Whether a write has failed and none has succeeded since.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Tries again what failed, when all writes are answered.
    pub fn retry(&mut self) {
        if !self.under_way.is_empty() || self.failed.is_empty() {
            return;
        }
        let failed = core::mem::take(&mut self.failed);
        let appends = failed.into_iter().filter(|s| !matches!(s.change, Change::Truncate(_)));
        let steps = [Step::cut(self.good)].into_iter().chain(appends);
        self.next = steps.chain(core::mem::take(&mut self.next)).collect();
    }

    /// Bytes that are not on the disk yet.
    pub fn unwritten(&self) -> usize {
        let steps = self.under_way.iter().map(|(_, step)| step).chain(&self.next);
        let steps: u64 = steps.chain(&self.failed).map(Step::len).sum();
        steps as usize + self.bytes.len()
    }

    /// Bytes of the log when everything is written.
    pub fn len(&self) -> u64 {
        self.good + self.unwritten() as u64
    }

    /// Whether nothing was ever written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a replacement of the log is not done yet.
    pub fn is_compacting(&self) -> bool {
        let steps = self.under_way.iter().map(|(_, step)| step).chain(&self.next);
        steps.chain(&self.failed).any(|step| matches!(step.change, Change::Replace(_)))
    }
}

fn put(out: &mut Vec<u8>, record: &Record) {
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
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(fnv1a(FNV_BASIS, &body).to_le_bytes());
    out.extend_from_slice(&body);
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
        if body.is_empty() || fnv1a(FNV_BASIS, &body) != sum {
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
        5 => Record::Checkpoint(Checkpoint::read(r, body)?),
        6 => Record::Group(NodeId(r.u32()?), r.u32()?, wire::report(r)?),
        _ => return Err(r.malformed("no such record")),
    };
    r.finish()?;
    Ok(record)
}
