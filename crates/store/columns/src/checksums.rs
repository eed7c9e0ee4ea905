//! The checksums of a Parquet file, in a block between its columns and its footer.
//!
//! ```text
//!  0        4   5       8        12
//! +--------+---+-------+--------+--------------------------+---------+-------+-------+
//! | "EFCR" | v | zeros | ranges | end u32, crc32c u32  ... | footer  | bytes | crc32c|
//! +--------+---+-------+--------+--------------------------+---------+-------+-------+
//!   magic   1            u32      one for each range         crc32c    u32     of all before
//! ```
//!
//! The ranges lie one behind the other and cover the file from its first byte to the block. A
//! column chunk is a range of its own. The footer's checksum covers everything behind the block. So
//! every byte of the file is covered once, and a reader of a few columns checks those alone.

use std::ops::Range;

use evenfall_store_format::Result;

use crate::damaged;

const MAGIC: &[u8; 4] = b"EFCR";
const VERSION: u8 = 1;
/// Bytes before the ranges.
const HEAD_BYTES: usize = 12;
/// Bytes behind the ranges.
const TAIL_BYTES: usize = 12;
/// Bytes of a range.
const RANGE_BYTES: usize = 8;
/// Bytes at the end of a Parquet file: the length of the footer, and the magic.
pub(crate) const END_BYTES: usize = 8;
/// The first and last bytes of a Parquet file.
pub(crate) const PARQUET_MAGIC: &[u8; 4] = b"PAR1";

/// Where the footer begins; `None` when the bytes do not end as a Parquet file does.
pub(crate) fn footer_start(bytes: &[u8]) -> Option<usize> {
    let end = bytes.len().checked_sub(END_BYTES)?;
    let (len, magic) = bytes[end..].split_at(4);
    let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
    if magic != PARQUET_MAGIC {
        return None;
    }
    end.checked_sub(len)
}

/// Puts the block into a whole Parquet file. `columns` are the places of its column chunks.
///
/// Only the footer moves, and nothing in a Parquet file says where the footer is but its end.
pub(crate) fn insert(bytes: &[u8], mut columns: Vec<Range<usize>>) -> Option<Vec<u8>> {
    let footer = footer_start(bytes)?;
    columns.sort_unstable_by_key(|range| range.start);
    let mut ends = Vec::new();
    let mut at = 0;
    for range in columns {
        ends.extend((range.start > at).then_some(range.start));
        ends.push(range.end);
        at = range.end;
    }
    ends.extend((footer > at).then_some(footer));
    let mut block = Vec::with_capacity(HEAD_BYTES + RANGE_BYTES * ends.len() + TAIL_BYTES);
    block.extend_from_slice(MAGIC);
    block.extend([VERSION, 0, 0, 0]);
    block.extend((ends.len() as u32).to_le_bytes());
    let mut at = 0;
    for end in ends {
        block.extend((end as u32).to_le_bytes());
        block.extend(crc32c::crc32c(bytes.get(at..end)?).to_le_bytes());
        at = end;
    }
    block.extend(crc32c::crc32c(&bytes[footer..]).to_le_bytes());
    block.extend(((block.len() + 8) as u32).to_le_bytes());
    block.extend(crc32c::crc32c(&block).to_le_bytes());
    Some([&bytes[..footer], &block[..], &bytes[footer..]].concat())
}

/// The checksums of one file.
#[derive(Clone, Debug)]
pub struct Checksums {
    /// End and checksum of each range.
    ranges: Vec<(usize, u32)>,
}

impl Checksums {
    /// Reads the block, and checks the block and the footer.
    ///
    /// # Errors
    /// [`Error::Damaged`](evenfall_store_format::Error::Damaged) when either is not as it was
    /// written.
    pub fn of(bytes: &[u8], place: &str) -> Result<Self> {
        let footer = footer_start(bytes);
        let footer = footer.ok_or_else(|| damaged(place, "not a whole Parquet file"))?;
        let absent = || damaged(place, "it has no checksums");
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let crc_at = footer.checked_sub(4).ok_or_else(absent)?;
        let len = crc_at.checked_sub(4).and_then(word).ok_or_else(absent)? as usize;
        let begin = footer.checked_sub(len).ok_or_else(absent)?;
        let block = bytes.get(begin..crc_at).ok_or_else(absent)?;
        if block.len() < HEAD_BYTES + TAIL_BYTES - 4 || block[..4] != *MAGIC {
            return Err(absent());
        }
        if Some(crc32c::crc32c(block)) != word(crc_at) {
            return Err(damaged(place, "wrong checksum of its checksums"));
        }
        if block[4] != VERSION {
            let version = block[4];
            return Err(evenfall_store_format::Error::Version { place: place.into(), version });
        }
        let count = word(begin + 8).ok_or_else(absent)? as usize;
        let table = &block[HEAD_BYTES..block.len() - (TAIL_BYTES - 4)];
        if Some(table.len()) != count.checked_mul(RANGE_BYTES) {
            return Err(damaged(place, "its checksums end early"));
        }
        if word(crc_at - 8) != Some(crc32c::crc32c(&bytes[footer..])) {
            return Err(damaged(place, "wrong checksum of its footer"));
        }
        let mut ranges = Vec::with_capacity(count);
        let mut at = 0;
        for range in table.chunks_exact(RANGE_BYTES) {
            let [end, crc] = [0, 4].map(|from| {
                u32::from_le_bytes(range[from..from + 4].try_into().expect("four bytes"))
            });
            if (end as usize) < at || end as usize > begin {
                return Err(damaged(place, "its checksums are out of order"));
            }
            at = end as usize;
            ranges.push((at, crc));
        }
        // A byte in none of the ranges would be read without a proof.
        if at != begin {
            return Err(damaged(place, "its checksums leave bytes out"));
        }
        Ok(Self { ranges })
    }

    /// Checks the range with exactly these bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`](evenfall_store_format::Error::Damaged), naming `what`.
    pub fn check(&self, bytes: &[u8], range: Range<usize>, what: &str, place: &str) -> Result<()> {
        let at = self.ranges.partition_point(|(end, _)| *end < range.end);
        let begin = at.checked_sub(1).map_or(0, |before| self.ranges[before].0);
        match self.ranges.get(at) {
            Some((end, crc)) if begin == range.start && *end == range.end => {
                match crc32c::crc32c(&bytes[range]) == *crc {
                    true => Ok(()),
                    false => Err(damaged(place, format!("wrong checksum of {what}"))),
                }
            }
            _ => Err(damaged(place, format!("it has no checksum of {what}"))),
        }
    }

    /// Checks every byte in front of the block. [`of`](Self::of) has checked the others.
    ///
    /// # Errors
    /// [`Error::Damaged`](evenfall_store_format::Error::Damaged), naming the first wrong range.
    pub fn check_all(&self, bytes: &[u8], place: &str) -> Result<()> {
        let mut at = 0;
        for (end, crc) in &self.ranges {
            if crc32c::crc32c(&bytes[at..*end]) != *crc {
                return Err(damaged(place, format!("wrong checksum of its bytes {at} to {end}")));
            }
            at = *end;
        }
        Ok(())
    }
}
