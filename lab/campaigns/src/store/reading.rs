//! How the campaign of the store reads: segments from wherever they are, and whole files.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use evenfall_core::{Objects, PutOutcome, StorageError};
use evenfall_sim::SimObjects;
use evenfall_store_format::index::Geometry;
use evenfall_store_format::layout::{SEGMENT_BYTES, chunk_name, segment_place};
use evenfall_store_format::{
    Appender, ColumnDisk, Error, FileEndSnapshot, FileId, Result, SealedSegment, SegmentKind,
    Segments, SnapshotReader, Volume,
};

use super::Hand;

/// Adds records to those before them, with zeros for missing ones.
fn read_held(
    reader: &mut SnapshotReader<'_>,
    numbers: Range<u64>,
    missing: &[Range<u64>],
    record_bytes: usize,
    found: &mut Vec<u8>,
) -> Result<()> {
    let mut read = |held: Range<u64>, found: &mut Vec<u8>| {
        reader.records(held, &mut |part| {
            found.extend_from_slice(&part);
            Ok(())
        })
    };
    let mut next = numbers.start;
    for range in missing {
        let (start, end) = (range.start.max(next), range.end.min(numbers.end));
        if start < end {
            read(next..start, found)?;
            found.resize(end as usize * record_bytes, 0);
            next = end;
        }
    }
    read(next..numbers.end, found)
}

/// Looks for a segment in memory, then on the disk, then in objects.
pub(super) struct Local<'a> {
    pub appender: Option<&'a Appender>,
    pub volume: &'a Volume<ColumnDisk<Hand>>,
    pub waiting: &'a VecDeque<SealedSegment>,
    pub objects: &'a SimObjects,
}

impl Segments for Local<'_> {
    fn segment(&mut self, kind: SegmentKind, file: FileId, number: u32) -> Result<Bytes> {
        let kept = self.appender.filter(|_| kind == SegmentKind::Data);
        if let Some(bytes) = kept.and_then(|appender| appender.unsynced_segment(number)) {
            return Ok(bytes);
        }
        let is_it = |s: &&SealedSegment| (s.kind, s.file, s.number) == (kind, file, number);
        if let Some(sealed) = self.waiting.iter().find(is_it) {
            return Ok(sealed.bytes.clone());
        }
        if let Some(bytes) = self.volume.read(kind, file, number)? {
            return Ok(bytes);
        }
        let (chunk, offset) = segment_place(number);
        let name = chunk_name(kind, file, chunk);
        let found = retry(|| Ok(self.objects.get(&name, offset, SEGMENT_BYTES)?))?;
        let bytes = found.ok_or_else(|| Error::Damaged {
            place: format!("{kind:?} {file} {number}"),
            what: "it is nowhere".into(),
        })?;
        evenfall_store_format::segment::expect(&bytes, kind, file, number)?;
        Ok(bytes)
    }
}

/// Repeats the request for a single segment when an object does not answer.
pub(super) struct Patient<'a>(pub &'a mut dyn Segments);

impl Segments for Patient<'_> {
    fn segment(&mut self, kind: SegmentKind, file: FileId, number: u32) -> Result<Bytes> {
        retry(|| self.0.segment(kind, file, number))
    }
}

/// Repeats each request to read an object until it is answered. A recovery asks for hundreds, and
/// would seldom get through all of them.
pub(super) struct PatientObjects<'a>(pub &'a SimObjects);

impl Objects for PatientObjects<'_> {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.0.put(name, bytes)
    }
    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.0.put_new(name, bytes)
    }
    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.0.swap(name, was, bytes)
    }
    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        let mut left = 200;
        loop {
            match self.0.get(name, offset, len) {
                Err(error) if error.is_retryable() && left > 0 => left -= 1,
                done => return done,
            }
        }
    }
    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.0.delete(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        self.0.list(prefix)
    }
}

/// Repeats a call while its error is temporary.
pub(super) fn retry<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    let mut left = 200;
    loop {
        match act() {
            Err(error) if error.is_retryable() && left > 0 => left -= 1,
            done => return done,
        }
    }
}

/// Reads every record, by a query of the index over all times, or by their numbers when records are
/// lost. The bytes of lost segments and of missing records are zeros. All other records are read.
pub(super) fn everything(
    at: &FileEndSnapshot,
    segments: &mut dyn Segments,
    lost: &BTreeSet<u32>,
    missing: &[Range<u64>],
) -> Result<Vec<u8>> {
    let mut found = Vec::new();
    let geometry: Geometry = at.geometry;
    debug_assert_eq!(geometry.aggregates(), 0);
    let mut reader = SnapshotReader::new(at, segments);
    if lost.is_empty() && missing.is_empty() {
        let all = reader.between(i64::MIN, i64::MAX)?;
        reader.records(all, &mut |part| {
            found.extend_from_slice(&part);
            Ok(())
        })?;
        return Ok(found);
    }
    let size = at.layout.record_bytes();
    for segment in 0..=at.layout.full_segments(at.records) {
        let first = at.layout.first_record(segment);
        let end = at.layout.first_record(segment + 1).min(at.records);
        match read_held(&mut reader, first..end, missing, size, &mut found) {
            Err(Error::Damaged { .. }) if lost.contains(&segment) => {
                found.resize(end as usize * size, 0);
            }
            read => read?,
        }
    }
    Ok(found)
}
