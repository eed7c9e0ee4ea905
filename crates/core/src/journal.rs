//! A log of records that a machine keeps on its disk, and what follows once they are there.
//!
//! Every record stands behind its length and a checksum:
//!
//! ```text
//!  | length u32 | checksum u64 | body |
//! ```
//!
//! A crash tears the tail of the log. The first record that is cut or does not match its checksum
//! ends the log. The machine has not told anybody of that record or of those behind it, because it
//! sends what depends on a record only after the record is written.
//!
//! **Compaction.** [`Journal::replace`] puts new records in the place of the whole log in one step.
//!
//! **A full disk** fails a write, and with it all later ones. The journal keeps their bytes, cuts
//! the log behind the last write that is done, and tries the same bytes again.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::durable::Change;
use crate::math::{FNV_BASIS, fnv1a};
use crate::{Reader, Write, WriteId};

/// Bytes in front of a record: its length and its checksum.
const HEAD_BYTES: usize = 12;

/// A change of the log, and what follows when it is done.
#[derive(Debug)]
struct Step<E> {
    change: Change,
    effects: Vec<E>,
}

impl<E> Step<E> {
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
#[derive(Debug)]
pub struct Journal<E> {
    log: &'static str,
    /// Records that no step has yet.
    bytes: Vec<u8>,
    effects: Vec<E>,
    /// Steps that the driver has not taken yet.
    next: VecDeque<Step<E>>,
    under_way: VecDeque<(WriteId, Step<E>)>,
    /// Steps that failed because the disk was full, in order.
    failed: VecDeque<Step<E>>,
    /// A write has failed, and none has succeeded since.
    is_failing: bool,
    /// Length of the log as of the last step that is done.
    good: u64,
    last_id: u64,
}

impl<E> Journal<E> {
    /// The journal of a new log of this name.
    pub fn new(log: &'static str) -> Self {
        Self {
            log,
            bytes: Vec::new(),
            effects: Vec::new(),
            next: VecDeque::new(),
            under_way: VecDeque::new(),
            failed: VecDeque::new(),
            is_failing: false,
            good: 0,
            last_id: 0,
        }
    }

    /// Goes on behind the good part of a log.
    pub fn behind(log: &'static str, good: u64) -> Self {
        Self { next: [Step::cut(good)].into(), good, ..Self::new(log) }
    }

    /// Adds a record, and what follows once it is on the disk.
    pub fn add(&mut self, record: &[u8], effects: impl IntoIterator<Item = E>) {
        put(&mut self.bytes, record);
        self.effects.extend(effects);
    }

    /// Replaces the whole log by these records. What was added before and is not written yet is
    /// dropped, so the records have to say all of it; its effects follow once they are there.
    pub fn replace<R: AsRef<[u8]>>(
        &mut self,
        records: impl IntoIterator<Item = R>,
        effects: impl IntoIterator<Item = E>,
    ) {
        let mut bytes = Vec::new();
        records.into_iter().for_each(|record| put(&mut bytes, record.as_ref()));
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
        Some(Write { id, log: self.log.into(), change })
    }

    /// A write is done: what follows.
    pub fn done(&mut self, id: WriteId) -> Vec<E> {
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

    fn answered(&mut self, id: WriteId) -> Option<Step<E>> {
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

fn put(out: &mut Vec<u8>, body: &[u8]) {
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(fnv1a(FNV_BASIS, body).to_le_bytes());
    out.extend_from_slice(body);
}

/// The bodies of the records of a log, and the length of the part that they are in.
pub fn read(log: &Bytes) -> (Vec<Bytes>, u64) {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(head) = log.get(at..at + HEAD_BYTES) {
        let r = &mut Reader::new(head);
        let (Ok(len), Ok(sum)) = (r.u32(), r.u64()) else { break };
        let len = len as usize;
        let begin = at + HEAD_BYTES;
        let Some(end) = begin.checked_add(len).filter(|end| *end <= log.len()) else { break };
        let body = log.slice(begin..end);
        if body.is_empty() || fnv1a(FNV_BASIS, &body) != sum {
            break;
        }
        records.push(body);
        at = begin + len;
    }
    (records, at as u64)
}
