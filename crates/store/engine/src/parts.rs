//! Data segments out of chunk objects: what a scan reads next comes in parts, several at once;
//! whatever else is asked for comes by itself, one segment a request.
//!
//! ```text
//!  expected by the scan   [ read | the part | coming ... PARTS_AHEAD | not asked for yet )
//! ```
//!
//! A part ends with its chunk, 4 MiB at most: smaller ones take more requests, and servers answer
//! a whole object best. A scan says first which segments it will read, and reads them in order, so
//! nothing is asked for that nobody reads. Memory is bounded twice: a reader holds the part that
//! it reads and those ahead; and all readers of a bucket together hold so many parts, beyond which
//! a reader goes on segment by segment.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use evenfall_core::Objects as _;
use evenfall_store_format::layout::{SEGMENT_BYTES, SEGMENTS_PER_CHUNK, chunk_name, segment_place};
use evenfall_store_format::{Error, FileId, Kind, segment};

use super::Bucket;
use super::bucket::{Fetch, Room};

/// Parts on their way beside the one being read: enough that requests to a distant store overlap.
const PARTS_AHEAD: usize = 8;
/// Parts that all readers of one bucket have at once, 256 MiB.
pub(super) const PARTS_MAX: usize = 64;
/// A scan of so few segments is not worth a part.
const LONE_MAX: usize = 2;

/// A part on its way.
struct Coming {
    numbers: Range<u32>,
    fetch: Fetch,
    room: Room,
}

/// A part that is here.
struct Part {
    numbers: Range<u32>,
    bytes: Bytes,
    _room: Room,
}

/// The parts of one reader's scan of one file.
#[derive(Default)]
pub(super) struct Parts {
    /// Segments that the scan reads next and nobody has asked the bucket for.
    expected: Range<u32>,
    /// Parts on their way, in order.
    coming: VecDeque<Coming>,
    /// The part being read.
    part: Option<Part>,
}

impl Parts {
    /// These segments will be asked for, in order; what was expected before will not.
    pub(super) fn expect(&mut self, numbers: Range<u32>) {
        let expected = if numbers.len() > LONE_MAX { numbers } else { 0..0 };
        *self = Self { expected, ..Self::default() };
    }

    /// The segment, checked. `is_object` says of a segment whether it is to be read from a chunk
    /// object, so that nothing is fetched that is at hand.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it is not there or not whole; what the object store says.
    pub(super) fn segment(
        &mut self,
        bucket: &Bucket,
        file: FileId,
        number: u32,
        is_object: &dyn Fn(u32) -> bool,
    ) -> evenfall_store_format::Result<Bytes> {
        if self.part.as_ref().is_none_or(|part| !part.numbers.contains(&number)) {
            self.turn_to(bucket, file, number, is_object)?;
        }
        let Some(Part { numbers, bytes, .. }) = &self.part else {
            return fetch_segment(bucket, Kind::Data, file, number);
        };
        let from = ((number - numbers.start) as usize * SEGMENT_BYTES).min(bytes.len());
        let bytes = bytes.slice(from..(from + SEGMENT_BYTES).min(bytes.len()));
        segment::expect(&bytes, Kind::Data, file, number)?;
        Ok(bytes)
    }

    /// Waits for the part that has the segment; there is none when the scan did not expect it, or
    /// when other readers have all the room.
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
        // What the scan had elsewhere is passed over.
        if self.expected.contains(&number) {
            self.expected.start = number;
        }
        self.fetch_ahead(bucket, file, is_object);
        if self.coming.front().is_none_or(|part| !part.numbers.contains(&number)) {
            return Ok(());
        }
        let Some(Coming { numbers, fetch, room }) = self.coming.pop_front() else { return Ok(()) };
        // The next ones are asked for before this one is waited for.
        self.fetch_ahead(bucket, file, is_object);
        let bytes = fetch()?.unwrap_or_default();
        self.part = Some(Part { numbers, bytes, _room: room });
        Ok(())
    }

    /// Asks for what comes next, as far as the limit and the objects reach.
    fn fetch_ahead(&mut self, bucket: &Bucket, file: FileId, is_object: &dyn Fn(u32) -> bool) {
        while self.coming.len() < PARTS_AHEAD && !self.expected.is_empty() {
            let first = self.expected.start;
            if !is_object(first) {
                return;
            }
            let end = self.expected.end.min((first / SEGMENTS_PER_CHUNK + 1) * SEGMENTS_PER_CHUNK);
            let (chunk, offset) = segment_place(first);
            let (name, len) = (chunk_name(Kind::Data, file, chunk), (end - first) as usize);
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
/// [`Error::Damaged`] when it is not there or not whole; what the object store says.
pub(super) fn fetch_segment(
    bucket: &Bucket,
    kind: Kind,
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
