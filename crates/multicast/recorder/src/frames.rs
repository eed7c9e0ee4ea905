//! The frames of a recorded stream: which messages left together, and when. A recorder uses them to
//! rebuild what the root sent, byte for byte.
//!
//! ```text
//! <name>.<stream>.frames
//!  0         8          16              24       32         40      44      46     47     48
//! +---------+----------+---------------+--------+----------+-------+-------+------+------+
//! | time i64| frame u64| first message | origin | deadline | epoch | count |format| kind |
//! +---------+----------+---------------+--------+----------+-------+-------+------+------+
//! ```
//!
//! A frame is appended after its messages, so that a reader who finds the frame finds the messages
//! too.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use evenfall_core::{Format, NodeId, SyncTime};
use evenfall_multicast_machine::{Archived, Begin, Release, Resume, wire};

use evenfall_store_engine::source::RecordSource;
use evenfall_store_engine::{Store, StoreAckLevel, StoreError, StoreFile};
use evenfall_store_recording::StreamReplay;
use evenfall_store_recording::files::{frames_name, frames_schema};
use evenfall_store_recording::replay::first_where;
use evenfall_store_recording::writer::append_when_admitted;

use crate::signatures::SignatureReader;

/// Bytes of a frame's record.
pub(crate) const RECORD_BYTES: usize = 48;
/// The kind of a signature. A frame of the feed has the kind 0, and may have no messages.
const SIGNATURE: u8 = 1;
/// Askers whose place in the recording is remembered, so that their next read continues there.
const PLACES_MAX: usize = 16;

/// Records of one file that wait to be appended.
pub(crate) struct PendingRecords {
    file: Arc<StoreFile>,
    pub(crate) bytes: Vec<u8>,
    last_ns: i64,
}

impl PendingRecords {
    pub(crate) fn of_file(file: Arc<StoreFile>) -> Self {
        let last_ns = file.last_ns().unwrap_or(i64::MIN);
        Self { file, bytes: Vec::new(), last_ns }
    }

    /// The time of the next record. Records are indexed like messages: a stamp from the future
    /// moves no later record.
    pub(crate) fn index_time(&mut self, store: &Store, time_ns: i64) -> i64 {
        self.last_ns = time_ns.min(store.now_ns()).max(self.last_ns);
        self.last_ns
    }

    /// Appends the gathered records. No caller waits for them: the commit of the next messages
    /// includes them.
    pub(crate) fn append_all(
        &mut self,
        store: &Store,
        is_stopping: &AtomicBool,
    ) -> Result<(), StoreError> {
        if !self.bytes.is_empty() {
            let is_stopping = Some(is_stopping);
            append_when_admitted(
                store,
                &self.file,
                &self.bytes,
                StoreAckLevel::Local,
                is_stopping,
            )?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Writes the frames of a recording.
pub struct FrameLog<'a> {
    store: &'a Store,
    is_stopping: &'a AtomicBool,
    streams: BTreeMap<u32, PendingRecords>,
}

impl<'a> FrameLog<'a> {
    /// Starts a log for the streams `0..streams` of this recording. Frames that the store refuses
    /// after `is_stopping` is set are given up.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn new(
        store: &'a Store,
        name: &str,
        streams: u32,
        is_stopping: &'a AtomicBool,
    ) -> Result<Self, StoreError> {
        let open = |stream| {
            let file = store.create(&frames_name(name, stream), &frames_schema())?;
            Ok((stream, PendingRecords::of_file(file)))
        };
        let streams = (0..streams).map(open).collect::<Result<_, StoreError>>()?;
        Ok(Self { store, is_stopping, streams })
    }

    /// Takes the next frame of its stream.
    pub fn push(&mut self, release: &Release, time_ns: i64) {
        let Some(pending) = self.streams.get_mut(&release.stream) else { return };
        let indexed_ns = pending.index_time(self.store, time_ns);
        let bytes = &mut pending.bytes;
        bytes.extend_from_slice(&indexed_ns.to_le_bytes());
        for word in [
            release.sequence,
            release.first_message,
            release.origin.nanos(),
            wire::on_wire(release.deadline),
        ] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&release.epoch.to_le_bytes());
        bytes.extend_from_slice(&release.count.to_le_bytes());
        bytes.extend_from_slice(&[release.format.0, u8::from(release.signature.is_some())]);
    }

    /// Appends the gathered frames. Their messages must have been appended before.
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

/// Where each stream of a recording continues: after its last frame. `None` for a stream without
/// frames.
///
/// # Errors
/// The errors of the source.
pub fn resumes(
    source: &dyn RecordSource,
    name: &str,
    streams: u32,
) -> Result<Vec<Option<Resume>>, StoreError> {
    let of = |stream| {
        let file = frames_name(name, stream);
        let numbers = source.between(&file, i64::MIN, i64::MAX)?;
        let Some(last) = numbers.end.checked_sub(1).filter(|last| *last >= numbers.start) else {
            return Ok(None);
        };
        let record = source.numbers(&file, last..last + 1)?;
        let (frame, epoch) = (FrameRecord::of(&record), FrameRecord::epoch_of(&record));
        let (next, message) = (frame.sequence + 1, frame.end_message());
        Ok(Some(Resume { epoch, frame: next, message }))
    };
    (0..streams).map(of).collect()
}

/// The numbers of all records of a file; none where the source has no such file.
pub(crate) fn numbers_of(source: &dyn RecordSource, file: &str) -> Result<Range<u64>, StoreError> {
    match source.listed()?.iter().any(|listed| listed.name == file) {
        true => source.between(file, i64::MIN, i64::MAX),
        false => Ok(0..0),
    }
}

/// A frame without its messages.
#[derive(Clone, Copy)]
pub(crate) struct FrameRecord {
    pub(crate) sequence: u64,
    first_message: u64,
    origin: SyncTime,
    deadline: Option<SyncTime>,
    count: u16,
    format: Format,
    /// Whether it is known to be a signature. Recorders of earlier versions did not say so.
    pub(crate) is_signature: bool,
}

impl FrameRecord {
    pub(crate) fn of(record: &[u8]) -> Self {
        let word = |at: usize| {
            u64::from_le_bytes(record[at..at + 8].try_into().expect("a record of eight-byte words"))
        };
        Self {
            sequence: word(8),
            first_message: word(16),
            origin: SyncTime::from_nanos(word(24)),
            deadline: wire::off_wire(word(32)),
            count: u16::from_le_bytes([record[44], record[45]]),
            format: Format(record[46]),
            is_signature: record[47] == SIGNATURE,
        }
    }

    fn epoch_of(record: &[u8]) -> u32 {
        u32::from_le_bytes([record[40], record[41], record[42], record[43]])
    }

    fn end_message(&self) -> u64 {
        self.first_message + u64::from(self.count)
    }

    /// The frame with its messages, out of a replay that has not passed them; `None` when a message
    /// is missing. Messages that are passed over are added to `passed`.
    pub(crate) fn with_messages(
        &self,
        replay: &mut StreamReplay<'_>,
        passed: &mut u64,
    ) -> Result<Option<Archived>, StoreError> {
        let mut messages = Vec::with_capacity(usize::from(self.count));
        for number in self.first_message..self.end_message() {
            // Messages before this number belong to a frame that was not recorded.
            let message = loop {
                match replay.next_message()? {
                    Some(recorded) if recorded.number < number => *passed += 1,
                    other => break other,
                }
            };
            let Some(message) = message.filter(|message| message.number == number) else {
                return Ok(None);
            };
            messages.push(Bytes::from(message.bytes));
        }
        let Self { sequence, first_message, origin, deadline, format, .. } = *self;
        let signature = None;
        Ok(Some(Archived {
            sequence,
            first_message,
            origin,
            deadline,
            format,
            messages,
            signature,
        }))
    }
}

/// The place of an asker in a recording.
struct Place<'a> {
    asker: NodeId,
    stream: u32,
    next_frame: u64,
    replay: StreamReplay<'a>,
}

/// Reads frames back, for askers that ask again and again.
pub struct FrameReader<'a> {
    source: &'a dyn RecordSource,
    name: String,
    places: VecDeque<Place<'a>>,
}

impl<'a> FrameReader<'a> {
    /// Reads the frames of this recording.
    pub fn new(source: &'a dyn RecordSource, name: &str) -> Self {
        Self { source, name: name.into(), places: VecDeque::new() }
    }

    fn numbers(&self, file: &str) -> Result<Range<u64>, StoreError> {
        self.source.between(file, i64::MIN, i64::MAX)
    }

    fn record(&self, file: &str, number: u64) -> Result<FrameRecord, StoreError> {
        self.source.numbers(file, number..number + 1).map(|record| FrameRecord::of(&record))
    }

    /// The frame to begin with and the number of its first message; `None` when the recording has
    /// no such frame.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn locate(&self, stream: u32, begin: Begin) -> Result<Option<(u64, u64)>, StoreError> {
        let file = frames_name(&self.name, stream);
        let numbers = self.numbers(&file)?;
        let at = match begin {
            Begin::Live | Begin::Start => numbers.start,
            Begin::Message(wanted) => {
                let is_it = |record: &[u8]| FrameRecord::of(record).end_message() > wanted;
                first_where(self.source, &file, numbers.clone(), is_it)?
            }
            Begin::Time(ns) => {
                let is_it =
                    |record: &[u8]| evenfall_store_format::layout::record_time(record) >= ns;
                first_where(self.source, &file, numbers.clone(), is_it)?
            }
        };
        if !numbers.contains(&at) {
            return Ok(None);
        }
        let frame = self.record(&file, at)?;
        Ok(Some((frame.sequence, frame.first_message)))
    }

    /// The recorded frames of `first..first + count`, with their messages.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn frames(
        &mut self,
        (asker, stream): (NodeId, u32),
        first: u64,
        count: u16,
    ) -> Result<Vec<Archived>, StoreError> {
        let file = frames_name(&self.name, stream);
        let numbers = self.numbers(&file)?;
        let end = first + u64::from(count);
        let is_it = |record: &[u8]| FrameRecord::of(record).sequence >= first;
        let at = first_where(self.source, &file, numbers.clone(), is_it)?;
        let until = (at + u64::from(count)).min(numbers.end);
        let records = self.source.numbers(&file, at..until.max(at))?;
        let frames = records.chunks_exact(RECORD_BYTES).map(FrameRecord::of);
        let frames: Vec<_> = frames.filter(|frame| frame.sequence < end).collect();
        let place = self.places.iter().position(|place| {
            (place.asker, place.stream, place.next_frame) == (asker, stream, first)
        });
        // A replay that began earlier does not see the frames recorded since, so a new replay
        // begins.
        let known = place.and_then(|at| self.places.remove(at)).map(|place| place.replay);
        if let Some(replay) = known
            && let Some(found) = self.rebuild((asker, stream), &frames, replay)?
        {
            return Ok(found);
        }
        let Some(message) = frames.first().map(|frame| frame.first_message) else {
            return Ok(Vec::new());
        };
        let replay = StreamReplay::from_number(self.source, &self.name, stream, message)?;
        Ok(self.rebuild((asker, stream), &frames, replay)?.unwrap_or_default())
    }

    /// Adds the bodies of signatures to the frames that were found of these records, one each. The
    /// place of a signature without its body is no frame, and counts as absent.
    fn add_signatures(
        &self,
        stream: u32,
        records: &[FrameRecord],
        found: &mut Vec<Archived>,
    ) -> Result<(), StoreError> {
        let Some(first) = records.iter().find(|record| record.is_signature) else {
            return Ok(());
        };
        let reader = SignatureReader::new(self.source, &self.name, stream)?;
        let mut reader = reader.skip_to(first.sequence)?;
        let mut next = reader.next_signature()?;
        for (_, frame) in records.iter().zip(&mut *found).filter(|(record, _)| record.is_signature)
        {
            while next.as_ref().is_some_and(|next| next.number < frame.sequence) {
                next = reader.next_signature()?;
            }
            if let Some(signature) = next.take_if(|next| next.number == frame.sequence) {
                frame.signature = Some(signature.body.into());
                next = reader.next_signature()?;
            }
        }
        let mut is_marked = records.iter().map(|record| record.is_signature);
        found.retain(|frame| is_marked.next() == Some(false) || frame.signature.is_some());
        Ok(())
    }

    /// The frames with their messages; `None` when a message is missing.
    fn rebuild(
        &mut self,
        (asker, stream): (NodeId, u32),
        frames: &[FrameRecord],
        mut replay: StreamReplay<'a>,
    ) -> Result<Option<Vec<Archived>>, StoreError> {
        let mut found = Vec::with_capacity(frames.len());
        for frame in frames {
            let Some(archived) = frame.with_messages(&mut replay, &mut 0)? else {
                return Ok(None);
            };
            found.push(archived);
        }
        self.add_signatures(stream, frames, &mut found)?;
        if let Some(last) = frames.last() {
            let next_frame = last.sequence + 1;
            self.places.push_back(Place { asker, stream, next_frame, replay });
            if self.places.len() > PLACES_MAX {
                self.places.pop_front();
            }
        }
        Ok(Some(found))
    }
}
