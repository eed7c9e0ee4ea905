//! Chunk objects in columns, read as the raw chunks that they were.
//!
//! The name of a chunk object does not tell its form, because a primary puts a chunk only where no
//! object of its name is, and two names would let two primaries put both. The first bytes tell the
//! form. A reader of a raw chunk asks for the segments that it wants, and a reader of columns needs
//! the whole object, which takes fewer bytes than most of those parts. So a bucket asks as the last
//! object wanted to be asked, and once more where that was wrong: where a file changes its form.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use evenfall_core::{PutOutcome, StorageError};
use evenfall_store_format::SegmentKind;
use evenfall_store_format::columnar::{decode_part, is_columnar};
use evenfall_store_format::layout::{CHUNK_BYTES, parse_chunk_name};
use evenfall_store_format::segment;

use super::{Bucket, Fetch};

/// Whether an object may be in columns. Index chunks never are.
pub(super) fn may_be_columnar(name: &str) -> bool {
    parse_chunk_name(name).is_some_and(|(kind, ..)| kind == SegmentKind::Data)
}

impl Bucket {
    /// Begins to read a part of a raw chunk, whatever the form of its object.
    pub(super) fn fetch_of_chunk(&self, name: &str, offset: u64, len: usize) -> Fetch {
        let wants_whole = self.is_columnar.load(Relaxed);
        let begun = match wants_whole {
            true => self.place.fetch(name, 0, CHUNK_BYTES),
            false => self.place.fetch(name, offset, len),
        };
        let (bucket, name) = (self.clone(), name.to_owned());
        Box::new(move || match begun()? {
            Some(bytes) => bucket.part_of_chunk(&name, offset, len, bytes, wants_whole),
            None => Ok(None),
        })
    }

    /// A part of a raw chunk.
    pub(super) fn get_of_chunk(
        &self,
        name: &str,
        offset: u64,
        len: usize,
    ) -> Result<Option<Bytes>, StorageError> {
        let wants_whole = self.is_columnar.load(Relaxed);
        let got = match wants_whole {
            true => self.place.get(name, 0, CHUNK_BYTES)?,
            false => self.place.get(name, offset, len)?,
        };
        got.map_or(Ok(None), |bytes| self.part_of_chunk(name, offset, len, bytes, wants_whole))
    }

    fn part_of_chunk(
        &self,
        name: &str,
        offset: u64,
        len: usize,
        got: Bytes,
        is_whole: bool,
    ) -> Result<Option<Bytes>, StorageError> {
        let whole = match is_whole {
            true => got,
            false if got.starts_with(&segment::MAGIC) => return Ok(Some(got)),
            false => match self.place.get(name, 0, CHUNK_BYTES)? {
                Some(whole) => whole,
                None => return Ok(None),
            },
        };
        let in_columns = is_columnar(&whole);
        self.is_columnar.store(in_columns, Relaxed);
        if in_columns {
            return decode_part(crate::chunk_codec(), name, &whole, offset, len).map(Some);
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(whole.len());
        Ok(Some(whole.slice(from..from.saturating_add(len).min(whole.len()))))
    }

    /// Replaces a chunk object that reads as this raw chunk.
    pub(super) fn swap_chunk(
        &self,
        name: &str,
        was: &Bytes,
        bytes: Bytes,
    ) -> Result<PutOutcome, StorageError> {
        let there = self.place.get(name, 0, CHUNK_BYTES)?;
        let Some(there) = there.filter(|there| is_columnar(there)) else {
            return self.place.swap(name, was, bytes);
        };
        match decode_part(crate::chunk_codec(), name, &there, 0, CHUNK_BYTES)? == *was {
            true => self.place.swap(name, &there, bytes),
            false => Ok(PutOutcome::Exists),
        }
    }
}
