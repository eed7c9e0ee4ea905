//! The codec of the campaign. The campaign tests how a chunk changes its form, thousands of times.
//! It has no use for small columns, so this codec leaves the headers of the segments out, and that
//! is all. What Parquet does with rows is tested in `crates/store/columns`.
//!
//! ```text
//! "PAR1" | crc32c u32 of all behind | file u64 | chunk u32 | entry bytes u16 | count u16
//!        | a token u32 for each segment | the rows of each segment, 16,352 bytes
//! ```

use bytes::Bytes;
use evenfall_store_format::columnar::{ChunkCodec, SEGMENTS_PER_GROUP};
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, PAYLOAD_BYTES, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::messages::InstalledLayouts;
use evenfall_store_format::segment::{self, Header};
use evenfall_store_format::{Error, FileId, Kind, Result, Schema};

const HEAD_BYTES: usize = 24;
const TOKENS_BYTES: usize = 4 * SEGMENTS_PER_CHUNK as usize;

/// Chunks without the headers of their segments.
pub(super) struct Packing;

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
            let header = segment::expect(part, Kind::Data, chunk.file, number)?;
            if header.count != u32::from(count) {
                return Ok(None);
            }
            head.extend(header.token.to_le_bytes());
            rows.extend_from_slice(&part[SEGMENT_HEADER_BYTES..]);
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
        let mut bytes = Vec::with_capacity(SEGMENTS_PER_GROUP as usize * SEGMENT_BYTES);
        for slot in group * SEGMENTS_PER_GROUP..(group + 1) * SEGMENTS_PER_GROUP {
            let mut part = vec![0; SEGMENT_BYTES];
            let at = HEAD_BYTES + TOKENS_BYTES + slot as usize * PAYLOAD_BYTES;
            part[SEGMENT_HEADER_BYTES..].copy_from_slice(&stored[at..at + PAYLOAD_BYTES]);
            let header = Header {
                kind: Kind::Data,
                entry_bytes: half(20),
                file: FileId(u64::from_le_bytes(long(8))),
                number: word(16) * SEGMENTS_PER_CHUNK + slot,
                count: half(22).into(),
                token: word(HEAD_BYTES + 4 * slot as usize),
            };
            segment::seal(&header, &mut part);
            bytes.append(&mut part);
        }
        Ok(Bytes::from(bytes))
    }

    fn check(&self, stored: &Bytes, place: &str) -> Result<()> {
        let whole = HEAD_BYTES + TOKENS_BYTES + PAYLOAD_BYTES * SEGMENTS_PER_CHUNK as usize;
        let crc = stored.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let is_whole = stored.len() == whole
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
