//! Data segments from chunk objects. The segments that a scan reads next come in parts, several
//! parts at once. Any other segment comes by itself, with a request of its own.
//!
//! ```text
//!  expected by the scan   [ read | the part | coming ... PARTS_AHEAD | not asked for yet )
//! ```
//!
//! A part ends with its chunk and has 4 MiB at most. Smaller parts would take more requests, and
//! servers serve a whole object best. A scan first states which segments it will read, and then
//! reads them in order, so no unread segment is fetched. Memory is bounded twice: a reader holds
//! the present part and the parts ahead, and all readers of a bucket together hold [`PARTS_MAX`]
//! parts. Beyond that number a reader continues segment by segment.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use evenfall_core::Objects as _;
use evenfall_store_format::layout::{SEGMENT_BYTES, SEGMENTS_PER_CHUNK, chunk_name, segment_place};
use evenfall_store_format::{Error, FileId, SegmentKind, segment};

use super::Bucket;
use super::bucket::{Fetch, Room};

/// Parts under way besides the present part. With eight parts, requests to a distant store overlap.
const PARTS_AHEAD: usize = 8;
/// Parts that all readers of one bucket hold at once: 64 parts of 4 MiB are 256 MiB.
pub(super) const PARTS_MAX: usize = 64;
/// Largest scan that is read without parts.
const LONE_MAX: usize = 2;

/// A part under way.
struct Coming {
    numbers: Range<u32>,
    fetch: Fetch,
    room: Room,
}

/// A part that has arrived.
struct Part {
    numbers: Range<u32>,
    bytes: Bytes,
    _room: Room,
}

/// The parts of one reader's scan of one file.
#[derive(Default)]
pub(super) struct Parts {
    /// Segments that the scan reads next and that have not been requested.
    expected: Range<u32>,
    /// Parts under way, in order.
    coming: VecDeque<Coming>,
    /// The present part.
    part: Option<Part>,
}

impl Parts {
    /// Announces the segments that the scan will read, in order. Earlier announcements are void.
    pub(super) fn expect(&mut self, numbers: Range<u32>) {
        let expected = if numbers.len() > LONE_MAX { numbers } else { 0..0 };
        *self = Self { expected, ..Self::default() };
    }

    /// The segment, checked. Data segments alone come in parts. `is_object` tells whether a data
    /// segment must be read from a chunk object, so that no segment at hand is fetched.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the segment is missing or not whole; the errors of the object store.
    pub(super) fn segment(
        &mut self,
        bucket: &Bucket,
        kind: SegmentKind,
        file: FileId,
        number: u32,
        is_object: &dyn Fn(u32) -> bool,
    ) -> evenfall_store_format::Result<Bytes> {
        if kind == SegmentKind::Index {
            return fetch_segment(bucket, kind, file, number);
        }
        if self.part.as_ref().is_none_or(|part| !part.numbers.contains(&number)) {
            self.turn_to(bucket, file, number, is_object)?;
        }
        let Some(Part { numbers, bytes, .. }) = &self.part else {
            return fetch_segment(bucket, SegmentKind::Data, file, number);
        };
        let from = ((number - numbers.start) as usize * SEGMENT_BYTES).min(bytes.len());
        let bytes = bytes.slice(from..(from + SEGMENT_BYTES).min(bytes.len()));
        segment::expect(&bytes, SegmentKind::Data, file, number)?;
        Ok(bytes)
    }

    /// Waits for the part with the segment. There is none when the scan did not announce the
    /// segment, or when other readers hold all parts.
    fn turn_to(
        &mut self,
        bucket: &Bucket,
        file: FileId,
        number: u32,
        is_object: &dyn Fn(u32) -> bool,
    ) -> evenfall_store_format::Result<()> {
        self.part = None;
        while self.coming.front().is_some_and(|part| part.numbers.end <= number) {
            self.coming.pop_front();
        }
        // Segments that the scan found elsewhere are skipped.
        if self.expected.contains(&number) {
            self.expected.start = number;
        }
        self.fetch_ahead(bucket, file, is_object);
        if self.coming.front().is_none_or(|part| !part.numbers.contains(&number)) {
            return Ok(());
        }
        let Some(Coming { numbers, fetch, room }) = self.coming.pop_front() else { return Ok(()) };
        // The next parts are requested before this part is waited for.
        self.fetch_ahead(bucket, file, is_object);
        let bytes = fetch()?.unwrap_or_default();
        self.part = Some(Part { numbers, bytes, _room: room });
        Ok(())
    }

    /// Requests the next parts, up to the limit and as far as there are objects.
    fn fetch_ahead(&mut self, bucket: &Bucket, file: FileId, is_object: &dyn Fn(u32) -> bool) {
        while self.coming.len() < PARTS_AHEAD && !self.expected.is_empty() {
            let first = self.expected.start;
            if !is_object(first) {
                return;
            }
            let end = self.expected.end.min((first / SEGMENTS_PER_CHUNK + 1) * SEGMENTS_PER_CHUNK);
            let (chunk, offset) = segment_place(first);
            let (name, len) = (chunk_name(SegmentKind::Data, file, chunk), (end - first) as usize);
            let Some(room) = bucket.room() else { return };
            let fetch = bucket.fetch(&name, offset, len * SEGMENT_BYTES);
            self.coming.push_back(Coming { numbers: first..end, fetch, room });
            self.expected.start = end;
        }
    }
}

/// One segment by itself, checked.
///
/// # Errors
/// [`Error::Damaged`] when the segment is missing or not whole; the errors of the object store.
fn fetch_segment(
    bucket: &Bucket,
    kind: SegmentKind,
    file: FileId,
    number: u32,
) -> evenfall_store_format::Result<Bytes> {
    let (chunk, offset) = segment_place(number);
    let name = chunk_name(kind, file, chunk);
    let bytes = bucket.get(&name, offset, SEGMENT_BYTES)?;
    let what = "there is no such object".to_owned();
    let bytes = bytes.ok_or(Error::Damaged { place: name, what })?;
    segment::expect(&bytes, kind, file, number)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
