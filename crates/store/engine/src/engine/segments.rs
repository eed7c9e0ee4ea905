//! The segments of one file, wherever they are. A reader looks first in the cache, then at unsynced
//! segments, on the disk, and in the object store.

use std::ops::Range;

use bytes::Bytes;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::columnar::{SEGMENTS_PER_GROUP, ShreddedColumns};
use evenfall_store_format::index::IndexSummary;
use evenfall_store_format::layout::{DataChunk, SEGMENT_BYTES, segment_place};
use evenfall_store_format::messages::MessageField;
use evenfall_store_format::volume::read_segment;
use evenfall_store_format::{
    Error, FileEndSnapshot, FileId, SegmentKind, Segments, SnapshotReader,
};

use super::file::Pin;
use super::{SHARDS, Store, StoreEngine, StoreFile};
use crate::parts::Parts;
use crate::source::FieldColumns;
use crate::{StoreError, lock};

/// A reader's access to the segments.
pub(crate) struct FileSegments<'a> {
    shared: &'a StoreEngine,
    file: &'a StoreFile,
    interest: Interest,
    /// Parts of a scan that has to read from the object store.
    parts: Parts,
    /// The segments that were decoded last, with the number of the first of them. A scan decodes
    /// each group of a chunk in columns once.
    group: Option<(u32, Bytes)>,
    /// The pin for which retention waits.
    _pin: Option<Pin<'a>>,
}

impl StoreEngine {
    /// The file at this moment, with access to its segments. The segments stay as long as this
    /// value lives.
    pub(crate) fn reading<'a>(
        &'a self,
        file: &'a StoreFile,
        interest: Interest,
    ) -> (FileEndSnapshot, FileSegments<'a>) {
        let pin = Some(file.pin());
        (self.snapshot(file), FileSegments { _pin: pin, ..self.segments(file, interest) })
    }

    pub(crate) fn segments<'a>(
        &'a self,
        file: &'a StoreFile,
        interest: Interest,
    ) -> FileSegments<'a> {
        FileSegments {
            shared: self,
            file,
            interest,
            parts: Parts::default(),
            group: None,
            _pin: None,
        }
    }
}

fn unsynced(of: &StoreFile, kind: SegmentKind, number: u32) -> Option<Bytes> {
    let appender = lock(&of.appender);
    match kind {
        SegmentKind::Data => appender.unsynced_segment(number),
        SegmentKind::Index => appender.unsynced_node(number),
    }
}

impl FileSegments<'_> {
    /// The error for a missing segment: damage, unless retention or a deletion removed it from a
    /// reader that was too slow.
    fn missing(&self, number: u32, error: Error) -> Error {
        let (name, first, end) = (&self.file.name, self.file.first(), self.file.records());
        if self.shared.check_kept(self.file).is_err() {
            return Error::UnknownFile { file: name.clone() };
        }
        if !matches!(error, Error::Damaged { .. })
            || number >= self.file.layout().full_segments(first)
        {
            return error;
        }
        let record = format!("in segment {number}: retention deleted it while it was read");
        Error::NoRecord { record, first, end }
    }

    /// A data segment of a chunk that is in columns on the disk.
    fn decode_segment(
        &mut self,
        file: FileId,
        number: u32,
    ) -> evenfall_store_format::Result<Option<Bytes>> {
        let place = |first: u32, bytes: &Bytes| {
            let at = number.checked_sub(first)? as usize * SEGMENT_BYTES;
            // The bytes are copied, because a slice in the cache would keep the whole group.
            bytes.get(at..at + SEGMENT_BYTES).map(Bytes::copy_from_slice)
        };
        let found = self.group.as_ref().and_then(|(first, bytes)| place(*first, bytes));
        if found.is_some() {
            return Ok(found);
        }
        self.group = self.shared.disk.group_around(file, number)?;
        Ok(self.group.as_ref().and_then(|(first, bytes)| place(*first, bytes)))
    }

    /// Fetches a segment that has left the disk.
    fn fetch(
        &mut self,
        kind: SegmentKind,
        file: FileId,
        number: u32,
    ) -> evenfall_store_format::Result<Bytes> {
        let Some(bucket) = &self.shared.bucket else {
            return Err(Error::Damaged {
                place: format!("segment {number} of {}-{file}", kind.letter()),
                what: "it is not on the disk, and no object store is configured".into(),
            });
        };
        let (disk, of) = (&self.shared.disk, self.file);
        let is_object = |number| {
            // A segment that no synced chunk has is no object either, and its chunk may not be made
            // yet.
            unsynced(of, kind, number).is_none()
                && disk
                    .has_chunk(DataChunk { file, number: segment_place(number).0 })
                    .is_ok_and(|has| !has)
        };
        let bytes = self.parts.segment(bucket, kind, file, number, &is_object)?;
        // The bytes are copied, because a slice in the cache would keep the whole part in memory.
        Ok(Bytes::copy_from_slice(&bytes))
    }
}

impl Segments for FileSegments<'_> {
    fn segment(
        &mut self,
        kind: SegmentKind,
        file: FileId,
        number: u32,
    ) -> evenfall_store_format::Result<Bytes> {
        let key = (file, kind, number);
        let shard = &self.shared.cache[number as usize % SHARDS];
        if let Some(bytes) = lock(shard).get(&key) {
            return Ok(bytes);
        }
        if let Some(bytes) = unsynced(self.file, kind, number) {
            return Ok(bytes);
        }
        let in_columns = match kind {
            SegmentKind::Data => self.decode_segment(file, number)?,
            SegmentKind::Index => None,
        };
        let on_disk = match in_columns {
            Some(bytes) => Some(bytes),
            None => read_segment(&self.shared.disk, kind, file, number)?,
        };
        let found = match on_disk {
            Some(bytes) => bytes,
            None => self.fetch(kind, file, number).map_err(|error| match kind {
                SegmentKind::Data => self.missing(number, error),
                SegmentKind::Index => error,
            })?,
        };
        lock(shard).insert(key, found.clone(), self.interest);
        Ok(found)
    }

    fn expect(&mut self, _: FileId, numbers: Range<u32>) {
        self.parts.expect(numbers);
    }
}

impl Store {
    /// Some fields of the first of these records, when their chunk is in columns on the disk.
    /// `None` also for no fields, and for a field that the schema does not have.
    ///
    /// # Errors
    /// [`Error::Damaged`], and the errors of the disk.
    pub fn fields_of_numbers(
        &self,
        file: &StoreFile,
        numbers: Range<u64>,
        fields: &[usize],
    ) -> Result<Option<FieldColumns>, StoreError> {
        let of_schema = &file.schema.fields;
        let is_known = !fields.is_empty() && fields.iter().all(|place| *place < of_schema.len());
        // The value keeps retention from the chunk.
        let (at, _segments) = self.shared.reading(file, Interest::Passing);
        let is_kept = at.first <= numbers.start && numbers.end <= at.records;
        if !is_known || !is_kept || numbers.is_empty() {
            return Ok(None);
        }
        let (first, last) =
            (at.layout.locate(numbers.start)?.0, at.layout.locate(numbers.end - 1)?.0);
        let found = self.shared.disk.fields_around(file.id, first..=last, fields)?;
        let Some(decoded) = found else { return Ok(None) };
        let begin = at.layout.first_record(decoded.segments.start);
        let end = numbers.end.min(at.layout.first_record(decoded.segments.end));
        let rows = (numbers.start - begin) as usize..(end - begin) as usize;
        let cut = |(place, values): (&usize, Vec<u8>)| {
            let len = usize::from(of_schema[*place].len);
            Bytes::from(values).slice(rows.start * len..rows.end * len)
        };
        let fields = fields.iter().zip(decoded.values).map(cut).collect();
        Ok(Some(FieldColumns { records: end - numbers.start, fields }))
    }

    /// Values of the messages in the first of these records, when the messages of their chunk were
    /// shredded and the chunk is on the disk. The first record must be the first of a message.
    ///
    /// # Errors
    /// [`Error::Damaged`], and the errors of the disk.
    pub fn messages_of_numbers(
        &self,
        file: &StoreFile,
        numbers: Range<u64>,
        fields: &[MessageField],
    ) -> Result<Option<ShreddedColumns>, StoreError> {
        // The value keeps retention from the chunk.
        let (at, _segments) = self.shared.reading(file, Interest::Passing);
        if at.first > numbers.start || numbers.end > at.records || numbers.is_empty() {
            return Ok(None);
        }
        let (first, last) =
            (at.layout.locate(numbers.start)?.0, at.layout.locate(numbers.end - 1)?.0);
        // A group at a time: a reader of a few messages needs no more.
        let last =
            last.min(first / SEGMENTS_PER_GROUP * SEGMENTS_PER_GROUP + SEGMENTS_PER_GROUP - 1);
        let found = self.shared.disk.messages_around(file.id, first..=last, fields)?;
        let Some((segments, mut columns)) = found else { return Ok(None) };
        let begin = at.layout.first_record(segments.start);
        let end = numbers.end.min(at.layout.first_record(segments.end));
        columns.cut(numbers.start - begin..end - begin);
        Ok(Some(columns).filter(|columns| !columns.numbers.is_empty()))
    }

    /// [`summary`](Self::summary) of the records of these numbers.
    ///
    /// # Errors
    /// As [`read_numbers`](Self::read_numbers).
    pub fn summary_of_numbers(
        &self,
        file: &StoreFile,
        numbers: Range<u64>,
    ) -> Result<Option<IndexSummary>, StoreError> {
        if numbers.is_empty() {
            return Ok(None);
        }
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        Ok(SnapshotReader::new(&at, &mut segments).summary(numbers, &file.schema)?)
    }
}
