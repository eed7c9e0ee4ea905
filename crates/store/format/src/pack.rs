//! Packs: the ends of many files in one object.
//!
//! Records that fill no chunk become objects too, for acknowledgements at `object` and for readers
//! that have only the objects. One object for each file would cost a request for each file, and a
//! file's end of up to 8 MiB would be put again whenever the file grows. A pack has a part for each
//! file that has grown. A part has the segments that no chunk and no earlier part has, and the two
//! open segments as they are. The metadata node of a file names the parts that are needed.
//!
//! ```text
//! chunks of the file    D-..-00000000   D-..-00000001
//! parts in packs                                       | 40 segments | 12 | 3 | open |
//! named by the node                                      pack 7       19    20  20
//! ```
//!
//! A part with the last segments replaces the parts of the file that it repeats. A node names
//! [`PARTS_MAX`] parts at most. A further part repeats the newest parts, and older parts as long as
//! they are no larger than what it repeats already, as runs of a log-structured merge tree do. A
//! segment is so put a few times before its chunk is whole, and a reader opens a file by a few
//! requests.
//!
//! Segments are framed as they are, and not put into columns. Recovery and readers need them byte
//! for byte, with their checksums and with the nodes of the time index. Builds without Parquet read
//! them. A part lives until the chunk has its records, and the chunk is in columns.
//!
//! The zeros at the end of a segment are left out: an open segment of a few records takes a few
//! bytes.
//!
//! ```text
//! part    0      4  5     8       16        20     24    28
//!         "EFPP" v  zero  file    segments  bytes  zero  crc32c of all else before the segments
//!         32                      8 bytes for each segment, then the segments without last zeros
//!         kind u8  zero u8  bytes u16  number u32 ...
//! pack    parts, one behind the other
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::layout::{FileId, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind};
use crate::metadata::MetadataNode;
use crate::publication::End;
use crate::reader::Segments;
use crate::segment;

/// Parts that a metadata node names at most. Each costs a reader of the file's end a request.
pub const PARTS_MAX: usize = 5;
/// Bytes of a part's header.
const HEADER_BYTES: usize = 32;
/// Bytes of the header for each segment.
const ENTRY_BYTES: usize = 8;
/// The first bytes of a part.
const MAGIC: &[u8; 4] = b"EFPP";
/// Version of the layout of a part.
const VERSION: u8 = 1;
/// Limit of the segments of a part, and of a tail of version 1: at most 255 data segments, 255
/// index segments and the two open ones.
pub(crate) const SEGMENTS_MAX: usize = 2 * SEGMENTS_PER_CHUNK as usize;

/// The place of a file's part in a pack of the primary's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackPart {
    /// Number of the pack.
    pub pack: u32,
    /// First byte of the part in the pack.
    pub offset: u32,
    /// Bytes of the part; zero for no part.
    pub bytes: u32,
}

/// A part, and the full segments in it that no later part and no chunk has.
#[derive(Clone, Debug)]
struct PlacedPart {
    place: PackPart,
    data: Range<u32>,
    index: Range<u32>,
}

impl PlacedPart {
    fn segments(&self) -> usize {
        self.data.len() + self.index.len()
    }

    /// The part without the segments in front of these, which chunks have.
    fn behind(&self, data: u32, index: u32) -> Self {
        let cut = |range: &Range<u32>, first: u32| range.start.max(first)..range.end.max(first);
        Self { place: self.place, data: cut(&self.data, data), index: cut(&self.index, index) }
    }
}

/// The parts in which a primary has put the end of a file, in the order of their segments. The next
/// life of a primary begins with none.
#[derive(Clone, Debug, Default)]
pub struct PackedEnd {
    parts: Vec<PlacedPart>,
    /// Records of the file when the newest part was put.
    records: Option<u64>,
}

/// The next part of a file, which [`PackedEnd::accept_part`] takes once it is in a pack.
#[derive(Clone, Debug)]
pub struct PartDraft {
    node: MetadataNode,
    bytes: Bytes,
    /// The earlier parts that stay.
    kept: Vec<PlacedPart>,
    data: Range<u32>,
    index: Range<u32>,
}

impl PartDraft {
    /// The bytes to put into a pack. No bytes when the earlier parts have everything.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl PackedEnd {
    /// Whether a part of the file is in one of these packs.
    pub fn is_in(&self, is_pack: &dyn Fn(u32) -> bool) -> bool {
        self.parts.iter().any(|part| is_pack(part.place.pack))
    }

    /// Makes the next part, for a file whose chunks `node` states. The new part repeats all that is
    /// in packs for which `is_leaving` is true.
    ///
    /// # Errors
    /// The error of a segment that cannot be read.
    pub fn draft_part(
        &self,
        segments: &mut dyn Segments,
        end: &End,
        node: MetadataNode,
        is_leaving: &dyn Fn(u32) -> bool,
    ) -> Result<PartDraft> {
        let (full, nodes) = (end.at.layout.full_segments(node.records), node.index_nodes);
        let data_first = node.data_chunks * SEGMENTS_PER_CHUNK;
        let index_first = node.index_chunks * SEGMENTS_PER_CHUNK;
        let mut kept: Vec<PlacedPart> =
            self.parts.iter().map(|part| part.behind(data_first, index_first)).collect();
        // Without new records the newest part still has the open segments.
        if self.records == Some(node.records) && !self.is_in(is_leaving) {
            let last = kept.len().saturating_sub(1);
            let mut at = 0..;
            kept.retain(|part| at.next() == Some(last) || part.segments() > 0);
            return Ok(PartDraft { node, bytes: Bytes::new(), kept, data: 0..0, index: 0..0 });
        }
        kept.retain(|part| part.segments() > 0);
        let next = kept.last().map_or((data_first, index_first), |p| (p.data.end, p.index.end));
        let count = full.saturating_sub(next.0) + nodes.saturating_sub(next.1);
        let first_repeated = first_repeated(&kept, count as usize, is_leaving);
        let repeated = kept.split_off(first_repeated);
        let first = repeated.first().map_or(next, |part| (part.data.start, part.index.start));
        let (data, index) = (first.0..full.max(first.0), first.1..nodes.max(first.1));
        let bytes = encode_part(segments, end, &data, &index)?;
        Ok(PartDraft { node, bytes, kept, data, index })
    }

    /// Takes a part that is in a pack now. Returns the node that names all parts.
    pub fn accept_part(&mut self, draft: PartDraft, place: PackPart) -> MetadataNode {
        let PartDraft { mut node, bytes, kept, data, index } = draft;
        (self.parts, self.records) = (kept, Some(node.records));
        if !bytes.is_empty() {
            self.parts.push(PlacedPart { place, data, index });
        }
        node.parts = [PackPart::default(); PARTS_MAX];
        for (part, out) in self.parts.iter().zip(&mut node.parts) {
            *out = part.place;
        }
        node
    }
}

/// The first of these parts that a part with `count` new segments repeats.
fn first_repeated(
    parts: &[PlacedPart],
    mut count: usize,
    is_leaving: &dyn Fn(u32) -> bool,
) -> usize {
    let leaving = parts.iter().position(|part| is_leaving(part.place.pack));
    let room = parts.len().min(PARTS_MAX - 1);
    let mut first = leaving.map_or(room, |at| at.min(room));
    if first == parts.len() {
        return first;
    }
    count += parts[first..].iter().map(PlacedPart::segments).sum::<usize>();
    while first > 0 && parts[first - 1].segments() <= count {
        first -= 1;
        count += parts[first].segments();
    }
    first
}

/// The bytes without the zeros at their end.
fn without_last_zeros(bytes: &Bytes) -> Bytes {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.slice(..used)
}

fn encode_part(
    segments: &mut dyn Segments,
    end: &End,
    data: &Range<u32>,
    index: &Range<u32>,
) -> Result<Bytes> {
    let file = end.at.file;
    let mut found = Vec::new();
    let kinds =
        [(SegmentKind::Data, data, &end.open_data), (SegmentKind::Index, index, &end.open_index)];
    for (kind, numbers, open) in kinds {
        for number in numbers.clone() {
            found.push((kind, number, without_last_zeros(&segments.segment(kind, file, number)?)));
        }
        if let Some(open) = open {
            found.push((kind, numbers.end, without_last_zeros(open)));
        }
    }
    if found.is_empty() {
        return Ok(Bytes::new());
    }
    let head = HEADER_BYTES + ENTRY_BYTES * found.len();
    let len = head + found.iter().map(|(.., bytes)| bytes.len()).sum::<usize>();
    let mut part = BytesMut::zeroed(head);
    part.reserve(len - head);
    part[..4].copy_from_slice(MAGIC);
    part[4] = VERSION;
    part[8..16].copy_from_slice(&file.0.to_le_bytes());
    part[16..20].copy_from_slice(&(found.len() as u32).to_le_bytes());
    part[20..24].copy_from_slice(&(len as u32).to_le_bytes());
    let entries = part[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
    for ((kind, number, bytes), out) in found.iter().zip(entries) {
        out[0] = kind.letter() as u8;
        out[2..4].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        out[4..8].copy_from_slice(&number.to_le_bytes());
    }
    let crc = checksum(&part);
    part[28..32].copy_from_slice(&crc.to_le_bytes());
    found.iter().for_each(|(.., bytes)| part.extend_from_slice(bytes));
    Ok(part.freeze())
}

/// The checksum of a part's header and entries.
fn checksum(head: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..28]), &head[HEADER_BYTES..])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The bytes of the header with the entries, after they were checked.
fn check_head<'a>(bytes: &'a [u8], place: &str) -> Result<&'a [u8]> {
    let damaged = |what: &str| Error::damaged(place, what);
    if bytes.len() < HEADER_BYTES || bytes[..4] != *MAGIC {
        return Err(damaged("not a part of a pack"));
    }
    let segments = word(bytes, 16) as usize;
    if segments > SEGMENTS_MAX {
        return Err(damaged("more segments than fit"));
    }
    let head = bytes.get(..HEADER_BYTES + ENTRY_BYTES * segments);
    let head = head.ok_or_else(|| damaged("it ends early"))?;
    if checksum(head) != word(bytes, 28) {
        return Err(damaged("wrong checksum"));
    }
    if bytes[4] != VERSION {
        return Err(Error::Version { place: place.into(), version: bytes[4] });
    }
    Ok(head)
}

/// The segments of a file's part.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`].
pub fn decode_part(
    bytes: &Bytes,
    file: FileId,
    place: &str,
) -> Result<BTreeMap<(SegmentKind, u32), Bytes>> {
    let damaged = |what: &str| Error::damaged(place, what);
    let head = check_head(bytes, place)?;
    if head[8..16] != file.0.to_le_bytes() {
        return Err(damaged("it is the part of another file"));
    }
    let mut rest = bytes.slice(head.len()..);
    let mut segments = BTreeMap::new();
    for entry in head[HEADER_BYTES..].chunks_exact(ENTRY_BYTES) {
        let kind = SegmentKind::from_letter(entry[0]).ok_or_else(|| damaged("unknown kind"))?;
        let len = usize::from(u16::from_le_bytes([entry[2], entry[3]]));
        if len > SEGMENT_BYTES || len > rest.len() {
            return Err(damaged("it ends early"));
        }
        let mut bytes = rest.split_to(len);
        if len < SEGMENT_BYTES {
            let mut whole = BytesMut::from(&bytes[..]);
            whole.resize(SEGMENT_BYTES, 0);
            bytes = whole.freeze();
        }
        let number = word(entry, 4);
        segment::expect(&bytes, kind, file, number)?;
        segments.insert((kind, number), bytes);
    }
    Ok(segments)
}

/// Checks a pack. Returns its number of parts.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`].
pub fn check_pack(bytes: &Bytes, name: &str) -> Result<usize> {
    let mut rest = bytes.clone();
    let mut parts = 0;
    while !rest.is_empty() || parts == 0 {
        let head = check_head(&rest, name)?;
        let file = FileId(u64::from_le_bytes(head[8..16].try_into().expect("eight bytes")));
        let (len, head_bytes) = (word(head, 20) as usize, head.len());
        if len < head_bytes || len > rest.len() {
            return Err(Error::damaged(name, "it ends early"));
        }
        decode_part(&rest.split_to(len), file, name)?;
        parts += 1;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
