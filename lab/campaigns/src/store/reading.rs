//! How the campaign of the store reads: segments from wherever they are, and whole files.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use evenfall_core::Objects;
use evenfall_sim::SimObjects;
use evenfall_store_format::index::Geometry;
use evenfall_store_format::layout::{SEGMENT_BYTES, chunk_name, segment_place};
use evenfall_store_format::{
    Appender, ColumnDisk, Error, FileId, Kind, Reader, Result, Sealed, Segments, Snapshot, Volume,
};

use super::Hand;

/// Looks for a segment in memory, then on the disk, then in objects.
pub(super) struct Local<'a> {
    pub appender: Option<&'a Appender>,
    pub volume: &'a Volume<ColumnDisk<Hand>>,
    pub waiting: &'a VecDeque<Sealed>,
    pub objects: &'a SimObjects,
}

impl Segments for Local<'_> {
    fn segment(&mut self, kind: Kind, file: FileId, number: u32) -> Result<Bytes> {
        let kept = self.appender.filter(|_| kind == Kind::Data);
        if let Some(bytes) = kept.and_then(|appender| appender.unsynced_segment(number)) {
            return Ok(bytes);
        }
        let is_it = |s: &&Sealed| (s.kind, s.file, s.number) == (kind, file, number);
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
    fn segment(&mut self, kind: Kind, file: FileId, number: u32) -> Result<Bytes> {
        retry(|| self.0.segment(kind, file, number))
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
/// lost. The bytes of lost segments are zeros.
pub(super) fn everything(
    at: &Snapshot,
    segments: &mut dyn Segments,
    lost: &BTreeSet<u32>,
) -> Result<Vec<u8>> {
    let mut found = Vec::new();
    let geometry: Geometry = at.geometry;
    debug_assert_eq!(geometry.aggregates(), 0);
    let mut reader = Reader::new(at, segments);
    if lost.is_empty() {
        let all = reader.between(i64::MIN, i64::MAX)?;
        reader.records(all, &mut |part| {
            found.extend_from_slice(&part);
            Ok(())
        })?;
        return Ok(found);
    }
    for segment in 0..=at.layout.full_segments(at.records) {
        let first = at.layout.first_record(segment);
        let end = at.layout.first_record(segment + 1).min(at.records);
        let read = reader.records(first..end, &mut |part| {
            found.extend_from_slice(&part);
            Ok(())
        });
        match read {
            Err(Error::Damaged { .. }) if lost.contains(&segment) => {
                found.resize(end as usize * at.layout.record_bytes(), 0);
            }
            read => read?,
        }
    }
    Ok(found)
}
