//! A log of records that a machine keeps on its disk, and the effects that follow a written record.
//!
//! A log begins with a header. In front of the body of every record are the length and a checksum
//! of the body:
//!
//! ```text
//! log                              record
//!  0  "EFLG" magic                  0  bytes of the body    u32
//!  4  version                       4  checksum of the body u64
//!  5  zero                         12  body
//!  8  checksum of bytes 0..8 u64
//! 16  records ...
//! ```
//!
//! A crash tears the tail of the log. The first record that is cut or does not match its checksum
//! ends the log. The machine has told no other node of that record or of later records, because a
//! datagram that depends on a record leaves only after the record is written.
//!
//! **The header is written together with the first record.** A log that ends inside the header, or
//! has zeros in the place of the header and no marks behind it, counts as new: a crash has torn its
//! first write before a machine got the answer to that write. Every other log without this header
//! is refused ([`LogError`]) and stays as it is. Another build may have written such a log in
//! another format, and every record of another format looks torn to this build.
//!
//! **Marks tell damage from a torn tail.** A write ends with a mark. A mark is a record with the
//! upper bit of its length set. The checksum of a mark covers this bit, too.
//!
//! ```text
//! 12  length of the log that was on the disk when the write was made   u64
//! 20  place of the mark in the log                                     u64
//! 28  checksum of the log's first record                               u64
//! ```
//!
//! A mark proves that the log was on the disk up to a place. A log whose whole records end in front
//! of that place was not torn but damaged, and is refused. Bytes of a client may look like a mark,
//! but a client hardly knows the place of its bytes and the checksum of the first record.
//!
//! Two kinds of writes are without such proof, and damage in them looks like a torn tail. A mark
//! knows only of the writes that were answered when its own write was made, so that the last writes
//! of a log are not covered. The first write of a process has no mark, because the writes of an
//! earlier process may be in memory only.
//!
//! **Compaction.** [`Journal::replace`] puts new records in the place of the whole log in one step.
//!
//! **A full disk** fails a write, and every write behind it. The journal keeps the bytes of the
//! failed writes. At each retry the journal cuts the log behind the last write that is done, and
//! asks for the failed writes again. The machine passes its timeouts to
//! [`Journal::handle_timeout`], and counts [`Journal::poll_timeout`] among its own timeouts.

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use crate::durable::Change;
use crate::math::{FNV_BASIS, fnv1a};
use crate::{Reader, StorageError, Timestamp, Write, WriteId};

/// Bytes in front of a record: its length and its checksum.
pub const HEAD_BYTES: usize = 12;
/// Bytes of a log's header.
pub const HEADER_BYTES: usize = 16;
/// The version of the format, and of what records mean, that this build writes and reads. Builds
/// before version 1 wrote logs without a header.
pub const VERSION: u8 = 4;
const MAGIC: &[u8; 4] = b"EFLG";
/// The bit of a length that makes a record a mark.
const MARK: u32 = 1 << 31;
/// Bytes of the body of a mark.
const MARK_BYTES: usize = 24;
/// The checksum of a mark is that of its body, XORed with this number.
const MARK_SUM: u64 = 0x6d61_726b_6d61_726b;

/// What to do about a log of another build.
const DO: &str =
    "start the build that wrote the log, or move the file away if nothing in it is needed";

/// Why a log is refused. A refused log stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log begins with a record: a build before the first version of the format wrote the log.
    #[error("an earlier build wrote this log without a format version: {DO}")]
    Unversioned,
    /// The header states another version of the format.
    #[error("the log has format version {0}, and this build reads version {VERSION}: {DO}")]
    Version(u8),
    /// The header does not match its checksum.
    #[error(
        "the log's header does not match its checksum: restore the file from a copy, or move the \
         file away if nothing in it is needed"
    )]
    Damaged,
    /// The log is damaged in front of its last writes. The first number is the byte at which no
    /// whole record begins. The second is how many bytes of the log were on the disk.
    #[error(
        "the log is damaged: the record at byte {0} cannot be read, and a later one says that {1} \
         bytes were on the disk: restore the file from a copy, or start with an empty directory if \
         other nodes have what it says"
    )]
    Broken(u64, u64),
    /// The file is no log of a machine. The file begins with these bytes.
    #[error(
        "the file begins with \"{}\" and is no log: give another directory, or move the file away",
        .0.escape_ascii()
    )]
    Foreign([u8; 4]),
}

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
    /// Whether records are kept. A journal without records has empty writes.
    keeps_records: bool,
    /// Whether the header is on the disk or on its way there.
    has_header: bool,
    /// The checksum of the log's first record, which marks repeat.
    key: Option<u64>,
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
    /// Length of the log that a write of this journal has brought to the disk. The writes of an
    /// earlier process may be in memory only, and count for nothing here.
    synced: u64,
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
            keeps_records: true,
            has_header: false,
            key: None,
            bytes: Vec::new(),
            effects: Vec::new(),
            next: VecDeque::new(),
            under_way: VecDeque::new(),
            failed: VecDeque::new(),
            retry_every,
            retry_at: None,
            good: 0,
            synced: 0,
            replaced_bytes: 0,
            last_id: 0,
        }
    }

    /// The bodies of the records that a disk has in the log of this name, and the journal that goes
    /// on behind those records. The journal's first write cuts a torn tail off.
    ///
    /// # Errors
    /// When the log has no header of this version, or is damaged in front of its last writes.
    pub fn open(
        log: &'static str,
        retry_every: Duration,
        bytes: &Bytes,
    ) -> Result<(Vec<Bytes>, Self), LogError> {
        let Whole { records, good, key } = whole(bytes)?;
        let cut = (!bytes.is_empty()).then(|| Step::cut(good));
        let next = cut.into_iter().collect();
        let has_header = good > 0;
        Ok((records, Self { has_header, key, next, good, ..Self::new(log, retry_every) }))
    }

    /// Keeps no records from now on, for a machine whose driver has no disk. Writes are empty, and
    /// the effects of the records follow them as before.
    pub fn keep_no_records(&mut self) {
        self.keeps_records = false;
        self.bytes.clear();
        self.key = None;
    }

    /// Adds a record, and the effects that follow once the record is on the disk.
    pub fn add(&mut self, record: &[u8], effects: impl IntoIterator<Item = E>) {
        self.add_with(|out| out.extend_from_slice(record), effects);
    }

    /// Adds the record that `write` appends to a buffer, without a copy of the record.
    pub fn add_with(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
        effects: impl IntoIterator<Item = E>,
    ) {
        if !self.keeps_records {
            self.effects.extend(effects);
            return;
        }
        if !core::mem::replace(&mut self.has_header, true) {
            self.bytes.extend(header());
            self.key = None;
        }
        let sum = put_with(&mut self.bytes, write);
        self.key.get_or_insert(sum);
        self.effects.extend(effects);
    }

    /// Replaces the whole log by these records. Earlier records that no write has yet are dropped,
    /// so the new records have to repeat the contents of the dropped records. The effects of the
    /// dropped records follow when the replacement is on the disk.
    pub fn replace<R: AsRef<[u8]>>(
        &mut self,
        records: impl IntoIterator<Item = R>,
        effects: impl IntoIterator<Item = E>,
    ) {
        self.replace_by(Records::of(records), effects);
    }

    /// Replaces the whole log like [`replace`](Self::replace), but without a copy of the records.
    /// Returns the log.
    pub fn replace_by(&mut self, records: Records, effects: impl IntoIterator<Item = E>) -> Bytes {
        let Records { mut log, key } = records;
        // The new log takes the place of the old one when it is on the disk as a whole.
        let synced = log.len() as u64;
        put_mark(&mut log, synced, 0, key.unwrap_or(0));
        let bytes = Bytes::from(log);
        (self.has_header, self.key) = (true, key);
        self.bytes.clear();
        let mut all = core::mem::take(&mut self.effects);
        all.extend(self.next.drain(..).flat_map(|step| step.effects));
        all.extend(effects);
        self.replaced_bytes = bytes.len() as u64;
        self.next.push_back(Step { change: Change::Replace(bytes.clone()), effects: all });
        bytes
    }

    /// The next write. While failed writes wait for their retry, there is no next write.
    pub fn poll(&mut self) -> Option<Write> {
        if !self.failed.is_empty() {
            return None;
        }
        let has_effects = !self.keeps_records && !self.effects.is_empty();
        if self.next.is_empty() && (!self.bytes.is_empty() || has_effects) {
            self.put_mark();
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

    /// Ends the next write with a mark. A log of which nothing is surely on the disk needs none.
    fn put_mark(&mut self) {
        let (mut synced, mut begin) = (self.synced, self.good);
        for (_, step) in &self.under_way {
            match &step.change {
                Change::Append(bytes) => begin += bytes.len() as u64,
                Change::Truncate(keep) => (synced, begin) = (synced.min(*keep), begin.min(*keep)),
                Change::Replace(bytes) => (synced, begin) = (0, bytes.len() as u64),
            }
        }
        if let Some(key) = self.key.filter(|_| synced > 0) {
            put_mark(&mut self.bytes, synced, begin, key);
        }
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
            Change::Append(bytes) => {
                self.good += bytes.len() as u64;
                self.synced = self.good;
            }
            Change::Truncate(keep) => {
                self.good = self.good.min(*keep);
                self.synced = self.synced.min(*keep);
            }
            Change::Replace(bytes) => {
                // The new log says what all earlier steps say.
                self.good = bytes.len() as u64;
                self.synced = self.good;
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

    /// Bytes of the log that are on the disk. After [`open`](Self::open), those of whole records.
    pub fn done_bytes(&self) -> u64 {
        self.good
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

/// The records of a new log.
#[derive(Debug)]
pub struct Records {
    log: Vec<u8>,
    /// The checksum of the first record.
    key: Option<u64>,
}

impl Records {
    /// No records, with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut log = Vec::with_capacity(HEADER_BYTES + bytes);
        log.extend(header());
        Self { log, key: None }
    }

    fn of<R: AsRef<[u8]>>(records: impl IntoIterator<Item = R>) -> Self {
        let mut log = Self::with_capacity(0);
        records.into_iter().for_each(|record| log.add(record.as_ref()));
        log
    }

    /// Adds a record.
    pub fn add(&mut self, record: &[u8]) {
        self.add_with(|out| out.extend_from_slice(record));
    }

    /// Adds the record that `write` appends to a buffer. Returns the place of the record in the
    /// log.
    pub fn add_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        let begin = self.log.len() + HEAD_BYTES;
        let sum = put_with(&mut self.log, write);
        self.key.get_or_insert(sum);
        begin..self.log.len()
    }
}

/// The header of a log.
pub fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(MAGIC);
    header[4] = VERSION;
    let sum = checksum(&header[..8]);
    header[8..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The bytes of a log that has these records alone.
pub fn log_of<R: AsRef<[u8]>>(records: impl IntoIterator<Item = R>) -> Bytes {
    Records::of(records).log.into()
}

/// The bytes of a record in a log.
pub fn framed(record: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + record.len());
    put(&mut bytes, record);
    bytes.into()
}

fn put(out: &mut Vec<u8>, body: &[u8]) {
    put_with(out, |out| out.extend_from_slice(body));
}

/// Adds the record that `write` appends. Returns its checksum.
fn put_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
    let begin = out.len();
    out.extend([0; HEAD_BYTES]);
    write(out);
    let body = &out[begin + HEAD_BYTES..];
    let (length, checksum) = (body.len() as u32, checksum(body));
    put_head(out, begin, length, checksum);
    checksum
}

/// Sets the head of the record that begins at this place of a buffer.
fn put_head(out: &mut [u8], begin: usize, length: u32, checksum: u64) {
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    out[begin + 4..begin + HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// Adds a mark to a write that begins at this place of the log.
fn put_mark(out: &mut Vec<u8>, synced: u64, begin: u64, key: u64) {
    let (at, place) = (out.len(), begin + out.len() as u64);
    let sum = put_with(out, |out| {
        [synced, place, key].iter().for_each(|word| out.extend(word.to_le_bytes()));
    });
    put_head(out, at, MARK | MARK_BYTES as u32, sum ^ MARK_SUM);
}

/// A hash that finds torn records: the hash of Fowler, Noll and Vo, with one multiplication for
/// each word of eight bytes in place of each byte. Each step is a bijection of the hash, so two
/// bodies that differ in one word never have the same hash. The hash does not protect against
/// forgery.
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

/// The bodies of the whole records at the beginning of a log, and the number of bytes that the
/// header and these records take in the log. A log whose first write is torn has no records and 0
/// bytes.
///
/// # Errors
/// When the log has another format than this version, or is damaged in front of its last writes.
pub fn read(log: &Bytes) -> Result<(Vec<Bytes>, u64), LogError> {
    whole(log).map(|whole| (whole.records, whole.good))
}

/// The whole records at the beginning of a log.
struct Whole {
    /// The bodies of the records.
    records: Vec<Bytes>,
    /// Bytes of the log up to the end of the last record or mark.
    good: u64,
    /// The checksum of the first record.
    key: Option<u64>,
}

fn whole(log: &Bytes) -> Result<Whole, LogError> {
    let (mut records, mut key, mut at) = (Vec::new(), None, header_bytes(log)?);
    // Without a header no record is read. If the header was damaged, the marks are still there.
    while at > 0
        && let Some(found) = found_at(log, at)
    {
        at += HEAD_BYTES;
        match found {
            Found::Record(body, sum) => {
                at += body.len();
                key.get_or_insert(sum);
                records.push(body);
            }
            Found::Mark(_) => at += MARK_BYTES,
        }
    }
    match synced(log, at, key) {
        Some(synced) => Err(LogError::Broken(at as u64, synced)),
        None => Ok(Whole { records, good: at as u64, key }),
    }
}

/// The length of the log that was on the disk, as some mark behind this place says, if that is
/// beyond the place. `key` is the checksum of the first record, if that could be read.
fn synced(log: &Bytes, from: usize, key: Option<u64>) -> Option<u64> {
    let length = (MARK | MARK_BYTES as u32).to_le_bytes();
    let places = log[from..].windows(length.len()).enumerate();
    let found = places.filter(|(_, bytes)| *bytes == length).map(|(place, _)| from + place);
    let marks = found.filter_map(|place| match found_at(log, place) {
        Some(Found::Mark(mark)) if key.is_none_or(|key| key == mark.key) => Some(mark.synced),
        _ => None,
    });
    marks.max().filter(|synced| *synced > from as u64)
}

/// Number of bytes that the header takes in a log. A log whose first write is torn has no header.
fn header_bytes(log: &Bytes) -> Result<usize, LogError> {
    let Some(header) = log.first_chunk::<HEADER_BYTES>() else {
        // A crash leaves a part of the header, or zeros where a part did not reach the disk. Other
        // bytes are another program's file.
        let is_torn = log.iter().zip(header()).all(|(is, whole)| *is == whole || *is == 0);
        if is_torn {
            return Ok(0);
        }
        let mut found = [0; MAGIC.len()];
        let length = log.len().min(found.len());
        found[..length].copy_from_slice(&log[..length]);
        return Err(LogError::Foreign(found));
    };
    if *header == [0; HEADER_BYTES] {
        return Ok(0);
    }
    let [found @ .., version, _, _, _] = *header.first_chunk::<8>().expect("a header is longer");
    if found != *MAGIC {
        // The checksums of earlier builds, the latest first.
        let is_earlier = matches!(found_at(log, 0), Some(Found::Record(..)))
            || framed_by(log, 0).is_some_and(|(_, body, sum)| fnv1a(FNV_BASIS, &body) == sum);
        return Err(if is_earlier { LogError::Unversioned } else { LogError::Foreign(found) });
    }
    if header[8..] != checksum(&header[..8]).to_le_bytes() {
        return Err(LogError::Damaged);
    }
    if version != VERSION {
        return Err(LogError::Version(version));
    }
    Ok(HEADER_BYTES)
}

/// What stands whole at a place of a log.
enum Found {
    /// A record with this body and this checksum.
    Record(Bytes, u64),
    Mark(Mark),
}

/// See the module documentation.
struct Mark {
    synced: u64,
    key: u64,
}

/// The record or the mark at this offset of the log, if it is whole and matches its checksum. A
/// mark has to know its place.
fn found_at(log: &Bytes, at: usize) -> Option<Found> {
    let (is_mark, body, sum) = framed_by(log, at)?;
    if !is_mark {
        return (checksum(&body) == sum).then_some(Found::Record(body, sum));
    }
    let r = &mut Reader::new(&body);
    let (synced, place, key) = (r.u64().ok()?, r.u64().ok()?, r.u64().ok()?);
    let is_it = body.len() == MARK_BYTES && checksum(&body) ^ MARK_SUM == sum;
    (is_it && place == at as u64 && synced <= place).then_some(Found::Mark(Mark { synced, key }))
}

/// The parts of the record at this offset of the log: whether it is a mark, its body, and the
/// checksum that the record states. The result is `None` when the log ends inside the record.
fn framed_by(log: &Bytes, at: usize) -> Option<(bool, Bytes, u64)> {
    let r = &mut Reader::new(log.get(at..at + HEAD_BYTES)?);
    let (length, sum) = (r.u32().ok()?, r.u64().ok()?);
    let (is_mark, len) = (length & MARK != 0, (length & !MARK) as usize);
    let begin = at + HEAD_BYTES;
    let end = begin.checked_add(len).filter(|end| *end <= log.len())?;
    (len > 0).then(|| (is_mark, log.slice(begin..end), sum))
}

#[cfg(test)]
mod tests;
