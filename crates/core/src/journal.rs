//! A log of records that a machine keeps on its disk, and the effects that follow a written record.
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
//! **A full disk** fails a write, and every write behind it. The journal keeps the bytes of the
//! failed writes. At each retry the journal cuts the log behind the last write that is done, and
//! asks for the failed writes again. The machine passes its timeouts to
//! [`Journal::handle_timeout`], and counts [`Journal::poll_timeout`] among its own timeouts.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use crate::durable::Change;
use crate::math::FNV_BASIS;
use crate::{Reader, StorageError, Timestamp, Write, WriteId};

/// Bytes in front of a record: its length and its checksum.
const HEAD_BYTES: usize = 12;

/// A change of the log, and the effects that follow when the change is on the disk.
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
    /// Steps that the driver has taken and not answered.
    under_way: VecDeque<(WriteId, Step<E>)>,
    /// Steps whose write failed, in order.
    failed: VecDeque<Step<E>>,
    /// Time between two attempts to write.
    retry_every: Duration,
    /// When the failed steps are tried again. `None` unless a write has failed and none has
    /// succeeded since.
    retry_at: Option<Timestamp>,
    /// Length of the log as of the last step that is done.
    good: u64,
    /// Bytes of the records that last replaced the log.
    replaced_bytes: u64,
    last_id: u64,
}

impl<E> Journal<E> {
    /// The journal of a new log of this name. A journal whose writes fail tries them again every
    /// `retry_every`.
    pub fn new(log: &'static str, retry_every: Duration) -> Self {
        Self {
            log,
            bytes: Vec::new(),
            effects: Vec::new(),
            next: VecDeque::new(),
            under_way: VecDeque::new(),
            failed: VecDeque::new(),
            retry_every,
            retry_at: None,
            good: 0,
            replaced_bytes: 0,
            last_id: 0,
        }
    }

    /// The bodies of the records that a disk has in the log of this name, and the journal that goes
    /// on behind those records. The journal's first write cuts a torn tail off.
    pub fn open(log: &'static str, retry_every: Duration, bytes: &Bytes) -> (Vec<Bytes>, Self) {
        let (records, good) = read(bytes);
        let cut = (!bytes.is_empty()).then(|| Step::cut(good));
        let next = cut.into_iter().collect();
        (records, Self { next, good, ..Self::new(log, retry_every) })
    }

    /// Adds a record, and the effects that follow once the record is on the disk.
    pub fn add(&mut self, record: &[u8], effects: impl IntoIterator<Item = E>) {
        put(&mut self.bytes, record);
        self.effects.extend(effects);
    }

    /// Replaces the whole log by these records. Earlier records that no write has yet are dropped,
    /// so the new records have to say what the dropped ones said. The effects of the dropped
    /// records follow when the replacement is on the disk.
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
        self.replaced_bytes = bytes.len() as u64;
        self.next.push_back(Step { change: Change::Replace(bytes.into()), effects: all });
    }

    /// The next write. While failed writes wait for their retry, there is no next write.
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

    /// Takes the answer to a write, and returns the effects that follow. A failed write has no
    /// effects yet.
    ///
    /// # Errors
    /// The failure after which the journal is [failing](Self::is_failing). Later failures are no
    /// errors here, so the caller hears of each full disk once.
    pub fn handle_written(
        &mut self,
        now: Timestamp,
        id: WriteId,
        done: Result<(), StorageError>,
    ) -> Result<Vec<E>, StorageError> {
        let is_next = self.under_way.front().is_some_and(|(first, _)| *first == id);
        let step = is_next.then(|| self.under_way.pop_front()).flatten();
        let Some((_, step)) = step else { return Ok(Vec::new()) };
        let Err(error) = done else { return Ok(self.done(step)) };
        self.failed.push_back(step);
        if self.is_failing() {
            return Ok(Vec::new());
        }
        self.retry_at = Some(now + self.retry_every);
        Err(error)
    }

    fn done(&mut self, step: Step<E>) -> Vec<E> {
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
        // A full disk can be cut as well, so a cut alone does not show that the disk has room.
        if is_all || !matches!(step.change, Change::Truncate(_)) {
            self.retry_at = None;
        }
        effects
    }

    /// Whether a write has failed and none has succeeded since.
    pub fn is_failing(&self) -> bool {
        self.retry_at.is_some()
    }

    /// The time of the next retry; `None` while the journal is not failing.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.retry_at
    }

    /// Asks for the failed writes again when the time of the retry has come and every other write
    /// is answered. An early call is harmless.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let Some(retry_at) = self.retry_at.as_mut().filter(|at| **at <= now) else { return };
        *retry_at = now + self.retry_every;
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

    /// Whether the log is worth a replacement: it has `bytes_min` bytes, is four times as long as
    /// the last replacement, and no replacement is under way.
    pub fn is_long(&self, bytes_min: u64) -> bool {
        self.len() >= bytes_min.max(4 * self.replaced_bytes) && !self.is_compacting()
    }

    /// Whether a replacement of the log is not on the disk yet.
    pub fn is_compacting(&self) -> bool {
        let steps = self.under_way.iter().map(|(_, step)| step).chain(&self.next);
        steps.chain(&self.failed).any(|step| matches!(step.change, Change::Replace(_)))
    }
}

fn put(out: &mut Vec<u8>, body: &[u8]) {
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(checksum(body).to_le_bytes());
    out.extend_from_slice(body);
}

/// A hash that finds torn records: the hash of Fowler, Noll and Vo, with one multiplication for each
/// word of eight bytes in place of each byte. Each step is a bijection of the hash, so two bodies
/// that differ in one word never have the same hash. The hash does not protect against forgers.
fn checksum(body: &[u8]) -> u64 {
    let (words, rest) = body.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The length tells a body from the same body with zeros behind it.
    words.iter().chain([&last]).fold(FNV_BASIS ^ body.len() as u64, |hash, word| {
        let product = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3);
        product ^ (product >> 32)
    })
}

/// The bodies of the whole records at the beginning of a log, and the bytes that these records take
/// in the log.
pub fn read(log: &Bytes) -> (Vec<Bytes>, u64) {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(head) = log.get(at..at + HEAD_BYTES) {
        let r = &mut Reader::new(head);
        let (Ok(len), Ok(sum)) = (r.u32(), r.u64()) else { break };
        let len = len as usize;
        let begin = at + HEAD_BYTES;
        let Some(end) = begin.checked_add(len).filter(|end| *end <= log.len()) else { break };
        let body = log.slice(begin..end);
        if body.is_empty() || checksum(&body) != sum {
            break;
        }
        records.push(body);
        at = begin + len;
    }
    (records, at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    fn full() -> StorageError {
        StorageError::Full { name: "log".to_owned() }
    }

    /// Writes that a journal asks for now.
    fn polled(journal: &mut Journal<u32>) -> Vec<Write> {
        core::iter::from_fn(|| journal.poll()).collect()
    }

    #[test]
    fn a_failure_is_told_once_and_its_writes_are_repeated_behind_a_cut() {
        let mut journal = Journal::new("log", EVERY);
        journal.add(b"one", [1]);
        let first = journal.poll().expect("a record");
        journal.add(b"two", [2]);
        let second = journal.poll().expect("a record");
        assert_eq!(journal.handle_written(at(1), first.id, Err(full())), Err(full()));
        assert_eq!(journal.handle_written(at(2), second.id, Err(full())), Ok(Vec::new()));
        assert!(journal.is_failing());
        assert_eq!(journal.poll_timeout(), Some(at(11)), "from the first failure on");

        journal.handle_timeout(at(10));
        assert!(journal.poll().is_none(), "the retry is not due yet");
        journal.handle_timeout(at(11));
        let again = polled(&mut journal);
        let changes: Vec<_> = again.iter().map(|write| write.change.clone()).collect();
        assert_eq!(changes, [Change::Truncate(0), first.change, second.change]);

        // The disk can be cut and is still full.
        assert_eq!(journal.handle_written(at(12), again[0].id, Ok(())), Ok(Vec::new()));
        assert_eq!(journal.handle_written(at(12), again[1].id, Err(full())), Ok(Vec::new()));
        assert_eq!(journal.handle_written(at(12), again[2].id, Err(full())), Ok(Vec::new()));
        assert_eq!(journal.poll_timeout(), Some(at(21)));

        journal.handle_timeout(at(21));
        let effects: Vec<u32> = polled(&mut journal)
            .into_iter()
            .flat_map(|write| journal.handle_written(at(22), write.id, Ok(())).expect("room"))
            .collect();
        assert_eq!(effects, [1, 2]);
        assert!(!journal.is_failing());
        assert_eq!(journal.poll_timeout(), None);
    }

    #[test]
    fn a_log_is_gone_on_with_behind_its_last_whole_record() {
        let mut journal = Journal::<u32>::new("log", EVERY);
        journal.add(b"one", []);
        journal.add(b"two", []);
        let Some(Write { change: Change::Append(bytes), .. }) = journal.poll() else {
            panic!("two records in an append")
        };
        let good = bytes.len() as u64 / 2;
        let torn = bytes.slice(..bytes.len() - 1);
        let (records, mut journal) = Journal::<u32>::open("log", EVERY, &torn);
        assert_eq!(records, [Bytes::from_static(b"one")]);
        let first = journal.poll().map(|write| write.change);
        assert_eq!(first, Some(Change::Truncate(good)));
        let (records, mut journal) = Journal::<u32>::open("log", EVERY, &Bytes::new());
        assert!(records.is_empty());
        assert_eq!(journal.poll(), None, "a new log has nothing to cut");
    }

    #[test]
    fn a_checksum_tells_lengths_places_and_single_bits_apart() {
        let body: Vec<u8> = (1..=21).collect();
        let mut others = vec![[&body[..], &[0]].concat(), body[..20].to_vec(), Vec::new()];
        others.extend((0..21 * 8).map(|bit| {
            let mut other = body.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            other
        }));
        let mut swapped = body.clone();
        swapped.rotate_left(8);
        others.push(swapped);
        assert!(others.iter().all(|other| checksum(other) != checksum(&body)));
    }

    #[test]
    fn a_log_is_long_when_it_is_four_times_as_long_as_its_replacement() {
        let mut journal = Journal::<u32>::new("log", EVERY);
        journal.add(&[0; 88], []);
        assert_eq!((journal.len(), journal.is_long(101)), (100, false));
        assert!(journal.is_long(100));
        journal.replace([[0_u8; 88]], []);
        assert!(!journal.is_long(0), "the replacement is not written yet");
        let write = journal.poll().expect("a replacement");
        journal.handle_written(at(0), write.id, Ok(())).expect("room");
        journal.add(&[0; 287], []);
        assert_eq!((journal.len(), journal.is_long(100)), (399, false));
        journal.add(&[0], []);
        assert!(journal.is_long(100));
    }
}
