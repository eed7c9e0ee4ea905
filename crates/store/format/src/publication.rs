//! Publishes files to the object store, and reads them from there without the disk.
//!
//! Full chunks become objects that never change, with the names of the local files. The records
//! that fill no chunk go into packs, which many files share ([`pack`](crate::pack)). The metadata
//! node is put last and states how far the chunks reach, and which parts of packs have the rest. A
//! reader that follows the node therefore never reads a partial publication, and needs no listing.
//! Every step can be repeated.
//!
//! One primary: a put whose answer did not come in time may land after the put that followed it.
//! Each try to put a pack has a number of its own in the pack's name. The metadata node states the
//! numbers, so no reader reads a late pack. A block of metadata is put only where none is, or in
//! the place of the bytes that were put last ([`put_block`]), so a late block does nothing. A pack
//! is deleted only after the blocks that do not name it any more are put.
//!
//! Two primaries: the packs, the metadata and the catalogue of a primary carry the primary's token
//! in their names. A put of an old primary that lands late therefore changes an object that nobody
//! reads any more. Chunks are the exception, because readers compute their names. A chunk is put
//! only where no chunk is. An equal chunk that is there comes from an earlier try of this primary.
//! A chunk with a lower token was put by a primary that has lost its lease. This primary swaps that
//! chunk for its own, on condition that the chunk still has the bytes that were compared. A chunk
//! with a higher token shows that this primary has lost its lease. A put of the old primary that is
//! still under way changes nothing, because its condition no longer holds: a chunk is there, or the
//! chunk has other bytes.
//!
//! Earlier versions put the end of each file as an object of its own, the tail, again and again.
//! Such tails are still read:
//!
//! ```text
//! tail object:  "EFTL" v  first data u32  data u32  first index u32  index u32  crc32c | segments
//!                0     4   8               12        16               20         28      32
//! ```

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Objects, PutOutcome};

use crate::appender::Appender;
use crate::error::{Error, Result};
use crate::index::IndexNode;
use crate::journal::Origin;
use crate::layout::{
    CHUNK_BYTES, DataChunk, FileId, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind, chunk_name,
    pack_name, parse_tail_name, segment_place, tail_name,
};
use crate::lost_records::{TailRecords, lost_ranges, seal_segment};
use crate::metadata::MetadataNode;
use crate::pack::{PARTS_MAX, PackPart, SEGMENTS_MAX, decode_part};
use crate::reader::{FileEndSnapshot, Segments, payload_of};
use crate::schema::Schema;
use crate::segment::{self, SealedSegment};
use crate::volume::RecoveredFile;

/// The first bytes of a tail.
const TAIL_MAGIC: &[u8; 4] = b"EFTL";
/// Bytes of the header of a tail.
const TAIL_HEADER_BYTES: usize = 32;

/// Attempts to compare and swap a chunk before the upload is put off. Each failure means that
/// another primary was faster, and a file has few primaries.
const SWAPS_MAX: usize = 4;

/// The end of a file, taken at one moment, ready to be published.
#[derive(Clone, Debug)]
pub struct End {
    /// The end.
    pub at: FileEndSnapshot,
    /// The primary's token.
    pub token: u32,
    /// Time of the last record.
    pub last_ns: i64,
    /// The open segment, sealed as it is.
    pub open_data: Option<Bytes>,
    /// The open index node, sealed as it is.
    pub open_index: Option<Bytes>,
}

impl End {
    /// The end of a file as its primary holds the file.
    pub fn of(appender: &Appender, first: u64) -> Self {
        let (file, token) = (appender.file(), appender.token());
        let open = !appender.index().entries().is_empty();
        Self {
            at: FileEndSnapshot::of(appender, first),
            token,
            last_ns: appender.last_ns(),
            open_data: appender.partial(),
            open_index: open.then(|| appender.index().encode(file, token)),
        }
    }
}

/// Gives the bytes that are put for a raw chunk: the chunk itself ([`as_it_is`]), or its columns.
/// The object store gives the raw chunk to its readers in both cases.
pub type Form<'a> = dyn Fn(SegmentKind, DataChunk, &Bytes) -> Bytes + 'a;

/// The form of chunks that stay raw. Chunks of the index always do.
pub fn as_it_is(_: SegmentKind, _: DataChunk, bytes: &Bytes) -> Bytes {
    bytes.clone()
}

/// Puts a full chunk.
///
/// # Errors
/// [`Error::Fenced`]; [`Error::Storage`], after which it may be put again.
pub fn put_chunk(
    objects: &impl Objects,
    (kind, file, chunk): (SegmentKind, FileId, u32),
    token: u32,
    bytes: &Bytes,
    form: &Form<'_>,
) -> Result<()> {
    let name = chunk_name(kind, file, chunk);
    let stored = form(kind, DataChunk { file, number: chunk }, bytes);
    for _ in 0..SWAPS_MAX {
        if objects.put_new(&name, stored.clone())? == PutOutcome::Created {
            return Ok(());
        }
        let Some(there) = objects.get(&name, 0, CHUNK_BYTES)? else { continue };
        if there == *bytes {
            return Ok(());
        }
        let tokens = there.chunks(SEGMENT_BYTES).filter_map(|part| segment::open(part, &name).ok());
        match tokens.map(|header| header.token).max() {
            Some(newer) if newer > token => return Err(Error::Fenced { file, token, newer }),
            _ => {}
        }
        if objects.swap(&name, &there, stored.clone())? == PutOutcome::Created {
            return Ok(());
        }
    }
    let what = "it changes under our hands".to_owned();
    Err(evenfall_core::StorageError::Unavailable { name, what }.into())
}

/// Puts a block of metadata in the place of `last`, which this life put there before, and keeps it
/// as the next `last`. Only one life writes a block: other bytes than `last` are those of an
/// earlier try that took effect without an answer.
///
/// # Errors
/// [`Error::Storage`]; the block may then be the old or the new one, and may be put again.
pub fn put_block(
    objects: &impl Objects,
    name: &str,
    last: &mut Option<Bytes>,
    bytes: &Bytes,
) -> Result<()> {
    for _ in 0..SWAPS_MAX {
        let outcome = match last {
            Some(was) => objects.swap(name, was, bytes.clone())?,
            None => objects.put_new(name, bytes.clone())?,
        };
        if outcome == PutOutcome::Created {
            *last = Some(bytes.clone());
            return Ok(());
        }
        *last = objects.get(name, 0, SEGMENT_BYTES)?;
        if last.as_ref() == Some(bytes) {
            return Ok(());
        }
    }
    let what = "earlier puts of it take effect one by one".to_owned();
    Err(evenfall_core::StorageError::Unavailable { name: name.into(), what }.into())
}

/// Concatenates the segments of one chunk.
///
/// # Errors
/// The error of a segment that cannot be read.
pub fn gather_chunk(
    segments: &mut dyn Segments,
    (kind, file, chunk): (SegmentKind, FileId, u32),
) -> Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(CHUNK_BYTES);
    let first = chunk * SEGMENTS_PER_CHUNK;
    for number in first..first + SEGMENTS_PER_CHUNK {
        bytes.put(segments.segment(kind, file, number)?);
    }
    Ok(bytes.freeze())
}

/// Puts the chunks of a file that are full at `end`, beginning at the state `done`. Returns the
/// node of the end, which names no parts yet: [`PackedEnd`](crate::pack::PackedEnd) makes and names
/// them. The caller must put the node with its parts into the file's block, and readers see the
/// publication from then on.
///
/// # Errors
/// [`Error::Fenced`]; the errors of a segment or of the object store. The call may be repeated.
pub fn publish_chunks(
    objects: &impl Objects,
    segments: &mut dyn Segments,
    end: &End,
    done: &MetadataNode,
    form: &Form<'_>,
) -> Result<MetadataNode> {
    let (file, at) = (end.at.file, &end.at);
    let full = at.layout.full_segments(at.records);
    let mut node = MetadataNode {
        file,
        token: end.token,
        record_bytes: at.layout.record_bytes() as u16,
        aggregates: at.geometry.aggregates() as u16,
        records: at.records,
        last_ns: end.last_ns,
        first: at.first,
        data_chunks: done.data_chunks,
        index_chunks: done.index_chunks,
        index_nodes: at.nodes,
        tail_segments: 0,
        tail_generation: 0,
        parts: [PackPart::default(); PARTS_MAX],
    };
    let kept = at.layout.full_segments(at.first) / SEGMENTS_PER_CHUNK;
    for (kind, count, chunks, kept) in [
        (SegmentKind::Data, full, &mut node.data_chunks, kept),
        (SegmentKind::Index, at.nodes, &mut node.index_chunks, 0),
    ] {
        *chunks = (*chunks).max(kept);
        while *chunks < count / SEGMENTS_PER_CHUNK {
            let bytes = gather_chunk(segments, (kind, file, *chunks))?;
            put_chunk(objects, (kind, file, *chunks), end.token, &bytes, form)?;
            *chunks += 1;
        }
    }
    Ok(node)
}

/// The name of the tail to which a node of version 1 refers.
fn tail_name_of(node: &MetadataNode) -> String {
    tail_name(node.file, node.token, node.tail_generation)
}

/// A published file, read from the object store.
#[derive(Debug)]
pub struct Publication<'a, O> {
    objects: &'a O,
    node: MetadataNode,
    tail: BTreeMap<(SegmentKind, u32), Bytes>,
}

impl<'a, O: Objects> Publication<'a, O> {
    /// Opens the file in the state that the node describes.
    ///
    /// # Errors
    /// [`Error::Damaged`] when objects are missing or not whole; [`Error::Storage`].
    pub fn open(objects: &'a O, node: MetadataNode) -> Result<Self> {
        let mut tail = BTreeMap::new();
        // A later part has the later form of a segment that was open in an earlier part.
        for part in node.packed_parts() {
            let name = pack_name(node.token, part.pack);
            let bytes = objects.get(&name, part.offset.into(), part.bytes as usize)?;
            let bytes = bytes.ok_or_else(|| Error::damaged(&name, "there is no such object"))?;
            tail.extend(decode_part(&bytes, node.file, &name)?);
        }
        // A part that stays for its nodes of the index still has segments that are in chunks now,
        // the last of them as it was when it was open.
        let first_of = |kind| match kind {
            SegmentKind::Data => node.data_chunks.saturating_mul(SEGMENTS_PER_CHUNK),
            SegmentKind::Index => node.index_chunks.saturating_mul(SEGMENTS_PER_CHUNK),
        };
        tail.retain(|(kind, number), _| *number >= first_of(*kind));
        if !tail.is_empty() || node.tail_segments == 0 {
            return Ok(Self { objects, node, tail });
        }
        let name = tail_name_of(&node);
        let bytes = objects.get(&name, 0, TAIL_HEADER_BYTES + SEGMENTS_MAX * SEGMENT_BYTES)?;
        let bytes = bytes.ok_or_else(|| Error::damaged(&name, "there is no such object"))?;
        let tail = decode_tail(&bytes, node.file, &name)?;
        Ok(Self { objects, node, tail })
    }

    /// The file's end, as published.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the tail does not reach it.
    pub fn snapshot(&self, schema: &Schema) -> Result<FileEndSnapshot> {
        let (layout, geometry) = (schema.layout()?, schema.geometry()?);
        let file = self.node.file;
        let short = || Error::damaged(self.end_name(), "it is an older one");
        let full = layout.full_segments(self.node.records);
        let open = (self.node.records - layout.first_record(full)) as usize;
        let mut tail = TailRecords::default();
        if open > 0 {
            let bytes = self.fetch(SegmentKind::Data, full)?;
            let header = segment::expect(&bytes, SegmentKind::Data, file, full)?;
            let from = crate::layout::SEGMENT_HEADER_BYTES;
            tail.bytes = bytes.slice(from..from + layout.payload_bytes(open));
            tail.lost = lost_ranges(&tail.bytes, layout.record_bytes(), header.count);
            // The end may be newer than the node, and is never older. Behind lost records there are
            // others, so that records which are not there yet are not taken for lost ones.
            if tail.lost.last().is_some_and(|range| range.end == open) {
                return Err(short());
            }
        }
        let indexed = full - (self.node.index_nodes * geometry.entries_per_node()).min(full);
        let mut entries = Vec::new();
        if indexed > 0 {
            let number = self.node.index_nodes;
            let bytes = self.fetch(SegmentKind::Index, number)?;
            let node = IndexNode::open(geometry, file, number, bytes)?;
            entries = (0..indexed).map_while(|at| node.entry(at)).collect();
            if entries.len() < indexed as usize {
                return Err(short());
            }
        }
        let entries = Arc::new(entries);
        let (first, records, nodes) = (self.node.first, self.node.records, self.node.index_nodes);
        let begins_ns = Arc::default();
        Ok(FileEndSnapshot {
            file,
            first,
            records,
            layout,
            geometry,
            nodes,
            begins_ns,
            entries,
            tail,
        })
    }
}

impl<O: Objects> Publication<'_, O> {
    /// The segments that are in no chunk.
    pub fn into_tail(self) -> BTreeMap<(SegmentKind, u32), Bytes> {
        self.tail
    }

    /// The object that has the last segments, for an error.
    fn end_name(&self) -> String {
        let last = self.node.packed_parts().last();
        last.map_or_else(|| tail_name_of(&self.node), |part| pack_name(self.node.token, part.pack))
    }

    /// A segment of the end, or of a chunk.
    fn fetch(&self, kind: SegmentKind, number: u32) -> Result<Bytes> {
        if let Some(bytes) = self.tail.get(&(kind, number)) {
            return Ok(bytes.clone());
        }
        let (chunk, offset) = segment_place(number);
        let name = chunk_name(kind, self.node.file, chunk);
        let bytes = self.objects.get(&name, offset, SEGMENT_BYTES)?;
        let bytes = bytes.ok_or_else(|| Error::damaged(&name, "there is no such object"))?;
        segment::expect(&bytes, kind, self.node.file, number)?;
        Ok(bytes)
    }
}

impl<O: Objects> Segments for Publication<'_, O> {
    fn segment(&mut self, kind: SegmentKind, _: FileId, number: u32) -> Result<Bytes> {
        self.fetch(kind, number)
    }
}

/// Takes the records that the disk has lost of a file out of the file's publication. Those of the
/// tail go into `found`. For full segments, returns segments to write in the place of those on the
/// disk. `read` gives a segment of the disk.
///
/// # Errors
/// [`Error::Damaged`] when objects are missing or not whole; [`Error::Storage`]; the errors of
/// `read`. Nothing is changed then.
pub fn mend_lost(
    objects: &impl Objects,
    node: MetadataNode,
    schema: &Schema,
    found: &mut RecoveredFile,
    read: &mut dyn FnMut(u32) -> Result<Option<Bytes>>,
) -> Result<Vec<SealedSegment>> {
    let layout = schema.layout()?;
    let (file, size) = (node.file, layout.record_bytes());
    let publication = Publication::open(objects, node)?;
    let end = publication.snapshot(schema)?;
    let full = layout.full_segments(node.records);
    let (mut mended, mut taken) = (Vec::new(), Vec::new());
    for number in found.partial.iter().map(|partial| partial.number) {
        let theirs = match number.cmp(&full) {
            core::cmp::Ordering::Less => {
                let bytes = publication.fetch(SegmentKind::Data, number)?;
                let records = payload_of(layout, &bytes);
                // A segment that is whole there takes the place of ours. Only where both have holes
                // are records taken one by one.
                if records.lost.is_empty() {
                    let first = layout.first_record(number);
                    taken.push(first..layout.first_record(number + 1));
                    mended.push(SealedSegment { kind: SegmentKind::Data, file, number, bytes });
                    continue;
                }
                records
            }
            core::cmp::Ordering::Equal => end.tail.clone(),
            // The objects end before this segment, so that its loss stands.
            core::cmp::Ordering::Greater => continue,
        };
        let Some(bytes) = read(number)? else { continue };
        let mut ours = payload_of(layout, &bytes);
        let places = ours.take_lost(&theirs, size);
        if !places.is_empty() {
            let token = segment::header(&bytes).map_or(0, |header| header.token);
            let origin = Origin { token, ..found.origin };
            taken.extend(places.iter().map(|place| layout.numbers_of(number, place)));
            mended.push(seal_segment(origin, number, &ours.bytes, &ours.lost));
        }
    }
    let open = layout.full_segments(found.records);
    if !found.tail.lost.is_empty() && open <= full {
        let theirs = match open == full {
            true => end.tail,
            false => payload_of(layout, &publication.fetch(SegmentKind::Data, open)?),
        };
        let places = found.tail.take_lost(&theirs, size);
        taken.extend(places.iter().map(|place| layout.numbers_of(open, place)));
    }
    found.lost = subtract_ranges(&found.lost, &taken);
    Ok(mended)
}

/// The numbers in these ranges that are in none of the others. Both lists are in order.
fn subtract_ranges(numbers: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in numbers {
        let mut start = range.start;
        for other in others.iter().filter(|other| range.start < other.end) {
            if other.start >= range.end {
                break;
            }
            left.extend((start < other.start).then_some(start..other.start));
            start = other.end;
        }
        left.extend((start < range.end).then_some(start..range.end));
    }
    left
}

fn decode_tail(
    bytes: &Bytes,
    file: FileId,
    name: &str,
) -> Result<BTreeMap<(SegmentKind, u32), Bytes>> {
    let damaged = |what: &str| Error::damaged(name, what);
    if bytes.len() < TAIL_HEADER_BYTES || bytes[..4] != *TAIL_MAGIC {
        return Err(damaged("not a tail"));
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if crc32c::crc32c(&bytes[..28]) != word(28) {
        return Err(damaged("wrong checksum"));
    }
    let mut tail = BTreeMap::new();
    let mut rest = bytes.slice(TAIL_HEADER_BYTES..);
    for (kind, first, count) in
        [(SegmentKind::Data, word(8), word(12)), (SegmentKind::Index, word(16), word(20))]
    {
        for number in first..first.saturating_add(count) {
            if rest.len() < SEGMENT_BYTES {
                return Err(damaged("it ends early"));
            }
            let bytes = rest.split_to(SEGMENT_BYTES);
            segment::expect(&bytes, kind, file, number)?;
            tail.insert((kind, number), bytes);
        }
    }
    Ok(tail)
}

/// Checks a tail object of version 1. Returns its number of segments.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`].
pub fn check_tail(bytes: &Bytes, name: &str) -> Result<usize> {
    let parsed = parse_tail_name(name);
    let (file, _) = parsed.ok_or_else(|| Error::damaged(name, "not the name of a tail"))?;
    Ok(decode_tail(bytes, file, name)?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tails of earlier versions are read, so the test has their bytes.
    #[test]
    fn a_tail_of_an_earlier_version_reads_and_every_flipped_byte_is_found() {
        let mut appender = Appender::new(FileId(5), 1, Arc::new(Schema::opaque(8))).unwrap();
        appender.append(&7i64.to_le_bytes(), &mut Vec::new()).unwrap();
        let open = appender.partial().unwrap();
        let mut tail = BytesMut::zeroed(TAIL_HEADER_BYTES);
        tail[..4].copy_from_slice(TAIL_MAGIC);
        tail[4] = segment::VERSION;
        tail[12..16].copy_from_slice(&1u32.to_le_bytes());
        let crc = crc32c::crc32c(&tail[..28]);
        tail[28..32].copy_from_slice(&crc.to_le_bytes());
        tail.put(open.clone());
        let name = tail_name(FileId(5), 1, 2);
        assert_eq!(check_tail(&tail.clone().freeze(), &name), Ok(1));
        let read = decode_tail(&tail.clone().freeze(), FileId(5), &name).unwrap();
        assert_eq!(read.get(&(SegmentKind::Data, 0)), Some(&open));
        for at in (0..tail.len()).step_by(7) {
            let mut flipped = tail.clone();
            flipped[at] ^= 4;
            assert!(check_tail(&flipped.freeze(), &name).is_err(), "byte {at}");
        }
    }
}
