//! Chunks of the store as Parquet files.
//!
//! A raw chunk holds rows, and takes as many bytes as were appended. Neighbouring values of one
//! field are alike, so the same rows take a fifth of the bytes in columns, and DuckDB, polars and
//! pyarrow read such a file without this program. The obvious way, an export, is a second copy that
//! the store itself cannot read. Here the Parquet file takes the place of the raw chunk: every byte
//! of every row comes back out of it, and [`ParquetCodec`] compares before it gives a file away.
//!
//! ```text
//! raw chunk       256 segments: [ header | rows | zeros ] [ header | rows | zeros ] ...
//! Parquet file    "PAR1" | group 0: a column chunk per field | group 1 | group 2 | group 3
//!                        | checksums | footer | length | "PAR1"
//! ```
//!
//! A row group has the rows of 64 segments, some 65,000 rows of 16 bytes, and one page per column.
//! The group is therefore what a reader of a single row decodes, and a reader needs no page index.
//!
//! | a field of | is a column of | encodings to choose from |
//! |---|---|---|
//! | times, integers, prices | 32 or 64 bits | delta, bytes split, dictionary, plain |
//! | floats | doubles | bytes split, dictionary, plain |
//! | bytes | fixed length | dictionary, plain |
//! | bytes that no field covers | fixed length, named `_rest` | dictionary, plain |
//!
//! Rows that are messages of a recording have columns of their own: `seq`, `time`, `type`, `price`
//! and so on (the module `messages`). Whoever knows the formats of messages gives the encoder their
//! [`InstalledLayouts`], and the footer of a chunk has those that a decoder needs.
//!
//! A sample of the chunk is encoded in every way that fits the column, and the smallest wins. All
//! columns are then compressed by Zstandard.
//!
//! Parquet has checksums of pages, which the library that writes here does not write. Each column
//! chunk, the footer and everything between them therefore have a CRC32C in a block of their own in
//! front of the footer ([`checksums`]), where other readers of Parquet never look.

#![forbid(unsafe_code)]

pub mod checksums;
#[cfg(test)]
mod crafted;
mod decode;
mod encode;
mod messages;
mod plan;

use std::ops::Range;

use bytes::Bytes;
use evenfall_store_format::columnar::{ChunkCodec, ShreddedColumns};
use evenfall_store_format::layout::DataChunk;
use evenfall_store_format::messages::{InstalledLayouts, MessageField};
use evenfall_store_format::{Error, Result, Schema};

/// The Parquet form of chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParquetCodec;

impl ChunkCodec for ParquetCodec {
    fn encode(
        &self,
        schema: &Schema,
        chunk: DataChunk,
        bytes: &Bytes,
        layouts: InstalledLayouts,
    ) -> Result<Option<Bytes>> {
        encode::encode(schema, chunk, bytes, layouts)
    }

    fn decode(&self, stored: &Bytes, group: u32, place: &str) -> Result<Bytes> {
        decode::decode(stored, group, place)
    }

    fn decode_fields(
        &self,
        stored: &Bytes,
        groups: Range<u32>,
        fields: &[usize],
        place: &str,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        decode::decode_fields(stored, groups, fields, place).map(Some)
    }

    fn decode_messages(
        &self,
        stored: &Bytes,
        groups: Range<u32>,
        fields: &[MessageField],
        place: &str,
    ) -> Result<Option<ShreddedColumns>> {
        let chunk = decode::StoredChunk::open(stored, place)?;
        match chunk.about.messages {
            Some(_) => messages::read_values(&chunk, groups, fields).map(Some),
            None => Ok(None),
        }
    }

    fn check(&self, stored: &Bytes, place: &str) -> Result<()> {
        checksums::Checksums::of(stored, place)?.check_all(stored, place)
    }
}

/// [`Error::Damaged`] in fewer words.
fn damaged(place: &str, what: impl ToString) -> Error {
    Error::Damaged { place: place.into(), what: what.to_string() }
}
