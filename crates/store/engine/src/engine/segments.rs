//! The segments of one file, wherever they are. A reader looks first in the cache, then at unsynced
//! segments, on the disk, and in the object store.

use std::ops::Range;

use bytes::Bytes;
use evenfall_core::Disk as _;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::index::Summary;
use evenfall_store_format::layout::{chunk_name, segment_place};
use evenfall_store_format::volume::read_segment;
use evenfall_store_format::{Error, FileId, Kind, Reader, Segments, Snapshot};

use super::file::Pin;
use super::{SHARDS, Shared, Store, StoreFile};
use crate::parts::{Parts, fetch_segment};
use crate::{StoreError, lock};

/// A reader's access to the segments.
pub(crate) struct FileSegments<'a> {
    shared: &'a Shared,
    file: &'a StoreFile,
    interest: Interest,
    /// Parts of a scan that has to read from the object store.
    parts: Parts,
    /// The pin for which retention waits.
    _pin: Option<Pin<'a>>,
}

impl Shared {
    /// The file at this moment, with access to its segments. The segments stay as long as this
    /// value lives.
    pub(crate) fn reading<'a>(
        &'a self,
        file: &'a StoreFile,
        interest: Interest,
    ) -> (Snapshot, FileSegments<'a>) {
        let pin = Some(file.pin());
        (self.snapshot(file), FileSegments { _pin: pin, ..self.segments(file, interest) })
    }

    pub(crate) fn segments<'a>(
        &'a self,
        file: &'a StoreFile,
        interest: Interest,
    ) -> FileSegments<'a> {
        FileSegments { shared: self, file, interest, parts: Parts::default(), _pin: None }
    }
}

fn unsynced(of: &StoreFile, kind: Kind, number: u32) -> Option<Bytes> {
    let appender = lock(&of.appender);
    match kind {
        Kind::Data => appender.unsynced_segment(number),
        Kind::Index => appender.unsynced_node(number),
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

    /// Fetches a segment that has left the disk.
    fn fetch(
        &mut self,
        kind: Kind,
        file: FileId,
        number: u32,
    ) -> evenfall_store_format::Result<Bytes> {
        let Some(bucket) = &self.shared.bucket else {
            return Err(Error::Damaged {
                place: format!("segment {number} of {}-{file}", kind.letter()),
                what: "it is not on the disk, and no object store is configured".into(),
            });
        };
        if kind == Kind::Index {
            return fetch_segment(bucket, kind, file, number);
        }
        let (disk, of) = (&self.shared.disk, self.file);
        let is_object = |number| {
            // A segment that no synced chunk has is no object either, and its chunk may not be made
            // yet.
            let name = chunk_name(kind, file, segment_place(number).0);
            unsynced(of, kind, number).is_none()
                && disk.read(&name, 0, 1).is_ok_and(|byte| byte.is_empty())
        };
        let bytes = self.parts.segment(bucket, file, number, &is_object)?;
        // The bytes are copied, because a slice in the cache would keep the whole part in memory.
        Ok(Bytes::copy_from_slice(&bytes))
    }
}

impl Segments for FileSegments<'_> {
    fn segment(
        &mut self,
        kind: Kind,
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
        let found = match read_segment(&self.shared.disk, kind, file, number)? {
            Some(bytes) => bytes,
            None => self.fetch(kind, file, number).map_err(|error| match kind {
                Kind::Data => self.missing(number, error),
                Kind::Index => error,
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
    /// [`summary`](Self::summary) of the records of these numbers.
    ///
    /// # Errors
    /// As [`read_numbers`](Self::read_numbers).
    pub fn summary_of_numbers(
        &self,
        file: &StoreFile,
        numbers: Range<u64>,
    ) -> Result<Option<Summary>, StoreError> {
        if numbers.is_empty() {
            return Ok(None);
        }
        let (at, mut segments) = self.shared.reading(file, Interest::Recent);
        Ok(Reader::new(&at, &mut segments).summary(numbers, &file.schema)?)
    }
}
