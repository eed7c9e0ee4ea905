//! The codec of the campaign. The campaign tests how a chunk changes its form, thousands of times.
//! It has no use for small columns, so this codec leaves the headers of the segments out, and that
//! is all. What Parquet does with rows is tested in `crates/store/columns`.
//!
//! ```text
//! "PAR1" | crc32c u32 of all behind | file u64 | chunk u32 | entry bytes u16 | count u16
//!        | a token u32 for each segment | the rows of each segment, 16,352 bytes
//! ```
//!
//! Messages in parts are put together as Parquet has them, a row a message, where all records of
//! the chunk are those of whole messages. `MESSAGES` in the count tells so. Each group then has its
//! length, and its messages:
//!
//! ```text
//! time i64 | number u64 | format u8 | 1 with an own time | missed u32 | records u32 | length u32
//!          | the message, and its own time
//! ```

use std::borrow::Cow;

use bytes::Bytes;
use evenfall_store_format::columnar::{ChunkCodec, SEGMENTS_PER_GROUP};
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, PAYLOAD_BYTES, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::messages::InstalledLayouts;
use evenfall_store_format::messages::parts::{
    JoinedMessage, PART_BYTES, PARTED_RECORD_BYTES, PartedGroup, PartedMessage, is_parted,
    split_own_time,
};
use evenfall_store_format::segment::{self, SegmentHeader};
use evenfall_store_format::{Error, FileId, Result, Schema, SegmentKind};

const HEAD_BYTES: usize = 24;
const TOKENS_BYTES: usize = 4 * SEGMENTS_PER_CHUNK as usize;
/// Flag in the count of a chunk whose rows are messages.
const MESSAGES: u16 = 1 << 15;
/// Bytes in front of a message.
const MESSAGE_HEAD_BYTES: usize = 30;
/// Bytes of the records of a segment with messages in parts.
const PARTED_BYTES: usize = PAYLOAD_BYTES - PAYLOAD_BYTES % PARTED_RECORD_BYTES as usize;

/// Chunks without the headers of their segments.
pub(super) struct Packing {
    /// Whether a message loses all but its first record, as a mutant has it.
    pub(super) cuts_messages: bool,
}

impl Packing {
    /// The messages in the rows of a chunk. `None` when the records are not those of whole
    /// messages.
    fn pack_messages(&self, rows: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for group in rows.chunks(SEGMENTS_PER_GROUP as usize * PAYLOAD_BYTES) {
            let payloads = group.chunks(PAYLOAD_BYTES);
            let record_bytes = usize::from(PARTED_RECORD_BYTES);
            let joined =
                PartedGroup::join(payloads.flat_map(|rows| rows.chunks_exact(record_bytes)));
            let begin = out.len();
            out.extend([0; 4]);
            joined?.messages().for_each(|message| self.pack_message(&message, &mut out));
            let len = (out.len() - begin - 4) as u32;
            out[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
        }
        Some(out)
    }

    fn pack_message(&self, one: &JoinedMessage<'_>, out: &mut Vec<u8>) {
        let JoinedMessage { message, with_own_time, records } = one;
        let len_max = if self.cuts_messages { PART_BYTES } else { usize::MAX };
        let bytes = &with_own_time[..with_own_time.len().min(len_max)];
        out.extend(message.recorded_ns.to_le_bytes());
        out.extend(message.number.to_le_bytes());
        out.extend([message.tag, u8::from(message.own_ns.is_some())]);
        out.extend(message.missed.to_le_bytes());
        out.extend(records.to_le_bytes());
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    }
}

/// The records of the messages of a group.
fn unpack_messages(mut packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !packed.is_empty() {
        let (head, behind) = packed.split_at(MESSAGE_HEAD_BYTES);
        let long = |at: usize| head[at..at + 8].try_into().expect("eight bytes");
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let (bytes, rest) = behind.split_at(word(26) as usize);
        let (bytes, own_ns) = split_own_time(bytes, head[17] != 0);
        let (recorded_ns, number) = (i64::from_le_bytes(long(0)), u64::from_le_bytes(long(8)));
        let (tag, missed) = (head[16], word(18));
        let message = PartedMessage { recorded_ns, number, tag, missed, own_ns, bytes };
        message.put(&mut out);
        message.put_filler(word(22) as usize - message.records(), &mut out);
        packed = rest;
    }
    out
}

/// The bytes of the messages of a group, behind their length.
fn packed_group(stored: &[u8], group: u32) -> &[u8] {
    let mut behind = &stored[HEAD_BYTES + TOKENS_BYTES..];
    for at in 0..=group {
        let (len, rest) = behind.split_at(4);
        let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
        if at == group {
            return &rest[..len];
        }
        behind = &rest[len..];
    }
    behind
}

impl ChunkCodec for Packing {
    fn encode(
        &self,
        schema: &Schema,
        chunk: DataChunk,
        bytes: &Bytes,
        _: InstalledLayouts,
    ) -> Result<Option<Bytes>> {
        let count = schema.layout()?.records_per_segment() as u16;
        let mut head = vec![0; 8];
        head[..4].copy_from_slice(b"PAR1");
        head.extend(chunk.file.0.to_le_bytes());
        head.extend(chunk.number.to_le_bytes());
        head.extend(schema.record_bytes.to_le_bytes());
        head.extend(count.to_le_bytes());
        let mut rows = Vec::with_capacity(CHUNK_BYTES);
        for (slot, part) in (0..SEGMENTS_PER_CHUNK).zip(bytes.chunks_exact(SEGMENT_BYTES)) {
            let number = chunk.first_segment() + slot;
            let header = segment::expect(part, SegmentKind::Data, chunk.file, number)?;
            if header.count != u32::from(count) {
                return Ok(None);
            }
            head.extend(header.token.to_le_bytes());
            rows.extend_from_slice(&part[SEGMENT_HEADER_BYTES..]);
        }
        if is_parted(schema)
            && let Some(messages) = self.pack_messages(&rows)
        {
            rows = messages;
            head[22..HEAD_BYTES].copy_from_slice(&(count | MESSAGES).to_le_bytes());
        }
        head.append(&mut rows);
        let crc = crc32c::crc32c(&head[8..]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        Ok(Some(Bytes::from(head)))
    }

    fn decode(&self, stored: &Bytes, group: u32, place: &str) -> Result<Bytes> {
        self.check(stored, place)?;
        let long = |at: usize| stored[at..at + 8].try_into().expect("eight bytes");
        let word =
            |at: usize| u32::from_le_bytes(stored[at..at + 4].try_into().expect("four bytes"));
        let half = |at: usize| u16::from_le_bytes([stored[at], stored[at + 1]]);
        let (rows, step): (Cow<'_, [u8]>, usize) = match half(22) & MESSAGES != 0 {
            true => (Cow::Owned(unpack_messages(packed_group(stored, group))), PARTED_BYTES),
            false => {
                let len = SEGMENTS_PER_GROUP as usize * PAYLOAD_BYTES;
                let at = HEAD_BYTES + TOKENS_BYTES + group as usize * len;
                (Cow::Borrowed(&stored[at..at + len]), PAYLOAD_BYTES)
            }
        };
        let mut bytes = Vec::with_capacity(SEGMENTS_PER_GROUP as usize * SEGMENT_BYTES);
        for (slot, rows) in (group * SEGMENTS_PER_GROUP..).zip(rows.chunks(step)) {
            let mut part = vec![0; SEGMENT_BYTES];
            part[SEGMENT_HEADER_BYTES..][..rows.len()].copy_from_slice(rows);
            let header = SegmentHeader {
                kind: SegmentKind::Data,
                entry_bytes: half(20),
                file: FileId(u64::from_le_bytes(long(8))),
                number: word(16) * SEGMENTS_PER_CHUNK + slot,
                count: (half(22) & !MESSAGES).into(),
                token: word(HEAD_BYTES + 4 * slot as usize),
            };
            segment::seal(&header, &mut part);
            bytes.append(&mut part);
        }
        Ok(Bytes::from(bytes))
    }

    fn check(&self, stored: &Bytes, place: &str) -> Result<()> {
        let whole = HEAD_BYTES + TOKENS_BYTES + PAYLOAD_BYTES * SEGMENTS_PER_CHUNK as usize;
        let has_messages = stored.get(23).is_some_and(|byte| byte & 0x80 != 0);
        let crc = stored.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let is_whole = (has_messages || stored.len() == whole)
            && stored.starts_with(b"PAR1")
            && crc == Some(crc32c::crc32c(&stored[8..]));
        match is_whole {
            true => Ok(()),
            false => Err(Error::Damaged {
                place: place.into(),
                what: "wrong checksum, or not whole".into(),
            }),
        }
    }
}
