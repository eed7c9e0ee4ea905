//! The signatures of a recorded stream, beside the frames that they cover.
//!
//! ```text
//! <name>.<stream>.signatures
//!  0         8           16      24      26       28                                      128
//! +---------+-----------+-------+-------+--------+---------------------------------------+
//! | time i64| frame u64 | run   | part  | length | 100 bytes of the body, then zero      |
//! +---------+-----------+-------+-------+--------+---------------------------------------+
//! ```
//!
//! A signature has the number of a frame, and a body of 116 to 1,124 bytes, as it was sent
//! (`docs/wire/multicast.md`). Its parts lie in consecutive records, and each states the length of
//! the whole body. The first part has the count, the chain hash before and the signature, and the
//! others have the digests. The run is the random number of the run, under which digests are made.
//!
//! A signature is appended before its frame, so that a reader who finds the frame finds the
//! signature too. After a crash a recorder may append a signature a second time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use evenfall_multicast_machine::Release;
use evenfall_store_engine::source::RecordSource;
use evenfall_store_engine::{Store, StoreError};
use evenfall_store_recording::files::{signatures_name, signatures_schema};
use evenfall_store_recording::replay::first_where;

use crate::frames::{PendingRecords, numbers_of};

/// Bytes of a record.
const RECORD_BYTES: usize = 128;
/// Bytes of a record before the part of the body.
const HEAD_BYTES: usize = 28;
/// Bytes of the body in a record.
const PART_BYTES: usize = RECORD_BYTES - HEAD_BYTES;
/// Records that are read at once: 256 KiB.
const READ_RECORDS: u64 = 2_048;
/// Records that are read at once by a reader of few signatures: 32 KiB.
const FEW_RECORDS: u64 = 256;

/// Writes the signatures of a recording.
pub struct SignatureLog<'a> {
    store: &'a Store,
    name: String,
    is_stopping: &'a AtomicBool,
    /// The streams that have signatures. The files of others are not created.
    streams: BTreeMap<u32, PendingRecords>,
}

impl<'a> SignatureLog<'a> {
    /// Starts a log of this recording. Signatures that the store refuses after `is_stopping` is set
    /// are given up.
    pub fn new(store: &'a Store, name: &str, is_stopping: &'a AtomicBool) -> Self {
        Self { store, name: name.to_owned(), is_stopping, streams: BTreeMap::new() }
    }

    /// Takes the next frame of its stream, if it is a signature.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn push(&mut self, release: &Release, time_ns: i64) -> Result<(), StoreError> {
        let Some(body) = &release.signature else { return Ok(()) };
        let pending = match self.streams.entry(release.stream) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(first) => {
                let file = signatures_name(&self.name, release.stream);
                let file = self.store.create(&file, &signatures_schema())?;
                first.insert(PendingRecords::of_file(file))
            }
        };
        let indexed_ns = pending.index_time(self.store, time_ns);
        for (part, bytes) in (0u16..).zip(body.chunks(PART_BYTES)) {
            let end = pending.bytes.len() + RECORD_BYTES;
            pending.bytes.extend_from_slice(&indexed_ns.to_le_bytes());
            pending.bytes.extend_from_slice(&release.sequence.to_le_bytes());
            pending.bytes.extend_from_slice(&release.run_id.to_le_bytes());
            pending.bytes.extend_from_slice(&part.to_le_bytes());
            pending.bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
            pending.bytes.extend_from_slice(bytes);
            pending.bytes.resize(end, 0);
        }
        Ok(())
    }

    /// Appends the gathered signatures.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        for pending in self.streams.values_mut() {
            pending.append_all(self.store, self.is_stopping)?;
        }
        Ok(())
    }
}

fn word_of(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("a record of 128 bytes"))
}

/// A recorded signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSignature {
    /// Its number among the frames.
    pub number: u64,
    /// The random number of the run.
    pub run_id: u64,
    /// Its body. A part that is missing makes the body too short.
    pub body: Vec<u8>,
}

/// Reads the signatures of a stream in the order in which they were recorded.
pub struct SignatureReader<'a> {
    source: &'a dyn RecordSource,
    file: String,
    numbers: Range<u64>,
    /// Records that are read at once.
    at_once: u64,
    records: Vec<u8>,
    at: usize,
    /// Run and number of the last signature.
    last: Option<(u64, u64)>,
}

impl<'a> SignatureReader<'a> {
    /// The signatures of a stream; none where the stream has no file of signatures.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn new(source: &'a dyn RecordSource, name: &str, stream: u32) -> Result<Self, StoreError> {
        let file = signatures_name(name, stream);
        let numbers = numbers_of(source, &file)?;
        let (at_once, records) = (READ_RECORDS, Vec::new());
        Ok(Self { source, file, numbers, at_once, records, at: 0, last: None })
    }

    /// Skips to the first signature that has this number or a higher one, for a reader that
    /// needs few of them.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn skip_to(mut self, number: u64) -> Result<Self, StoreError> {
        self.at_once = FEW_RECORDS;
        if !self.numbers.is_empty() {
            let is_it = |record: &[u8]| word_of(record, 8) >= number;
            let numbers = self.numbers.clone();
            self.numbers.start = first_where(self.source, &self.file, numbers, is_it)?;
        }
        Ok(self)
    }

    /// The record at the cursor.
    fn head(&mut self) -> Result<Option<&[u8]>, StoreError> {
        if self.at >= self.records.len() {
            if self.numbers.is_empty() {
                return Ok(None);
            }
            let until = (self.numbers.start + self.at_once).min(self.numbers.end);
            self.records = self.source.numbers(&self.file, self.numbers.start..until)?;
            (self.numbers.start, self.at) = (until, 0);
        }
        Ok(self.records.get(self.at..self.at + RECORD_BYTES))
    }

    /// The next signature. A signature that was recorded a second time is passed over.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn next_signature(&mut self) -> Result<Option<RecordedSignature>, StoreError> {
        loop {
            let Some(signature) = self.read_signature()? else { return Ok(None) };
            let RecordedSignature { run_id, number, .. } = signature;
            let is_again = self.last.is_some_and(|(run, last)| run == run_id && last >= number);
            if !is_again {
                self.last = Some((run_id, number));
                return Ok(Some(signature));
            }
        }
    }

    fn read_signature(&mut self) -> Result<Option<RecordedSignature>, StoreError> {
        let mut signature: Option<RecordedSignature> = None;
        while let Some(record) = self.head()? {
            let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
            let (number, run_id, part) = (word_of(record, 8), word_of(record, 16), half(24));
            let length = usize::from(half(26));
            let first = signature.get_or_insert_with(|| RecordedSignature {
                number,
                run_id,
                body: Vec::with_capacity(length),
            });
            if (first.number, first.run_id) != (number, run_id) {
                // Another signature begins, and parts of this one are missing.
                break;
            }
            if part == 0 {
                // A crash cut the signature short, and it was recorded again.
                first.body.clear();
            }
            let room = length.saturating_sub(first.body.len()).min(PART_BYTES);
            first.body.extend_from_slice(&record[HEAD_BYTES..HEAD_BYTES + room]);
            let is_whole = first.body.len() >= length;
            self.at += RECORD_BYTES;
            if is_whole {
                break;
            }
        }
        Ok(signature)
    }
}
