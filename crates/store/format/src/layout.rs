//! Computes the place of a record: from its number to names and offsets, without a look-up.
//!
//! Records have one length, and segments hold whole records. A record's number therefore gives its
//! segment, the segment its chunk, and the chunk its name (thesis, section 5.4.1). No map from
//! blocks to places has to be kept, cached or recovered.
//!
//! ```text
//! record n      segment n / R, slot n % R          R = (16,384 - 32) / record length
//! segment s     chunk s / 256, byte (s % 256) * 16,384 of it
//! chunk c       D-<file id>-<c>   data             I-<file id>-<c>   index
//! pack          P-<token>-<number>                 metadata block    M-<token>-<block>
//! catalogue     S-<file id>-<token>                S-catalog-<token>-<number>
//! ```

use core::ops::Range;

use crate::error::{Error, Result};

/// Bytes of a segment with its header. Segments are small, because each open stream has one in
/// memory.
pub const SEGMENT_BYTES: usize = 16 << 10;
/// Bytes of a segment's header.
pub const SEGMENT_HEADER_BYTES: usize = 32;
/// Bytes for records in a segment.
pub const PAYLOAD_BYTES: usize = SEGMENT_BYTES - SEGMENT_HEADER_BYTES;
/// Segments of a chunk. A chunk has 4 MiB, because object stores charge and limit by request, and
/// smaller objects would need more requests.
pub const SEGMENTS_PER_CHUNK: u32 = 256;
/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = SEGMENT_BYTES * SEGMENTS_PER_CHUNK as usize;
/// Shortest record: its time stamp.
pub const RECORD_BYTES_MIN: usize = 8;
/// Longest record: one that fills a segment alone.
pub const RECORD_BYTES_MAX: usize = PAYLOAD_BYTES;

/// The number of a file, never used twice.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct FileId(pub u64);

impl core::fmt::Display for FileId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Records.
    Data,
    /// A node of the time index.
    Index,
}

impl SegmentKind {
    /// The letter of the kind in names and headers.
    pub fn letter(self) -> char {
        match self {
            Self::Data => 'D',
            Self::Index => 'I',
        }
    }

    /// The kind of this letter.
    pub fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'D' => Some(Self::Data),
            b'I' => Some(Self::Index),
            _ => None,
        }
    }
}

/// A chunk of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataChunk {
    /// Its file.
    pub file: FileId,
    /// Its number in the file.
    pub number: u32,
}

impl DataChunk {
    /// The name of the raw chunk.
    pub fn raw_name(self) -> String {
        chunk_name(SegmentKind::Data, self.file, self.number)
    }

    /// Number of its first segment.
    pub fn first_segment(self) -> u32 {
        self.number * SEGMENTS_PER_CHUNK
    }
}

/// The name of a chunk, on disk and in the object store alike.
pub fn chunk_name(kind: SegmentKind, file: FileId, chunk: u32) -> String {
    format!("{}-{file}-{chunk:08x}", kind.letter())
}

/// The parts of a name by [`chunk_name`]; `None` for any other name.
pub fn parse_chunk_name(name: &str) -> Option<(SegmentKind, FileId, u32)> {
    let mut parts = name.split('-');
    let kind = parts.next().filter(|letter| letter.len() == 1)?;
    let kind = SegmentKind::from_letter(kind.as_bytes()[0])?;
    let file = parts.next().filter(|part| part.len() == 16)?;
    let chunk = parts.next().filter(|part| part.len() == 8)?;
    let file = FileId(u64::from_str_radix(file, 16).ok()?);
    let chunk = u32::from_str_radix(chunk, 16).ok()?;
    (parts.next().is_none() && chunk_name(kind, file, chunk) == name).then_some((kind, file, chunk))
}

/// The name of a pack, which has the ends of files that fill no chunk yet. The token is part of the
/// name, so that an old primary cannot replace what a new primary wrote. Each try to put a pack has
/// a number of its own, so that a put that lands late cannot replace the pack of a later put.
pub fn pack_name(token: u32, number: u32) -> String {
    format!("{}{number:08x}", packs_prefix(token))
}

/// The token and the number of a name by [`pack_name`]; `None` for any other name.
pub fn parse_pack_name(name: &str) -> Option<(u32, u32)> {
    parse_numbers(name, "P-").filter(|(token, number)| pack_name(*token, *number) == name)
}

/// The two numbers behind this beginning of a name.
fn parse_numbers(name: &str, beginning: &str) -> Option<(u32, u32)> {
    let (first, second) = name.strip_prefix(beginning)?.split_once('-')?;
    Some((u32::from_str_radix(first, 16).ok()?, u32::from_str_radix(second, 16).ok()?))
}

/// The beginning of the names of a life's packs.
pub fn packs_prefix(token: u32) -> String {
    format!("P-{token:08x}-")
}

/// The name of the object in which earlier versions put the end of one file. Still earlier versions
/// had no generation, and their metadata has zero.
pub fn tail_name(file: FileId, token: u32, generation: u32) -> String {
    match generation {
        0 => format!("T-{file}-{token:08x}"),
        _ => format!("T-{file}-{token:08x}-{generation:08x}"),
    }
}

/// The file and the token of a name by [`tail_name`]; `None` for any other name.
pub fn parse_tail_name(name: &str) -> Option<(FileId, u32)> {
    let mut parts = name.strip_prefix("T-")?.split('-');
    let file = FileId(u64::from_str_radix(parts.next()?, 16).ok()?);
    let token = u32::from_str_radix(parts.next()?, 16).ok()?;
    let generation = parts.next().map_or(Ok(0), |digits| u32::from_str_radix(digits, 16)).ok()?;
    (tail_name(file, token, generation) == name).then_some((file, token))
}

/// The name of a block of metadata nodes. Only the life of the store node that has the token writes
/// the block. A put that is still under way when that life has ended therefore changes nothing that
/// a later life wrote.
pub fn block_name(token: u32, block: u32) -> String {
    format!("{}{block:08x}", blocks_prefix(token))
}

/// The token and the number of a name by [`block_name`]; `None` for any other name.
pub fn parse_block_name(name: &str) -> Option<(u32, u32)> {
    parse_numbers(name, "M-").filter(|(token, block)| block_name(*token, *block) == name)
}

/// The beginning of the names of a life's blocks.
pub fn blocks_prefix(token: u32) -> String {
    format!("M-{token:08x}-")
}

/// The name of a file's entry in the catalogue. Of several entries, the entry with the greatest
/// token counts.
pub fn catalog_name(file: FileId, token: u32) -> String {
    format!("S-{file}-{token:08x}")
}

/// The parts of a name by [`catalog_name`]; `None` for any other name.
pub fn parse_catalog_name(name: &str) -> Option<(FileId, u32)> {
    let (file, token) = name.strip_prefix("S-")?.split_once('-')?;
    let file = FileId(u64::from_str_radix(file, 16).ok()?);
    let token = u32::from_str_radix(token, 16).ok()?;
    (catalog_name(file, token) == name).then_some((file, token))
}

/// The beginning of all names of the catalogue.
pub const ENTRIES_PREFIX: &str = "S-";
/// The beginning of the names of catalogues with many files.
pub const CATALOGS_PREFIX: &str = "S-catalog-";

/// The name of a catalogue with all files that the life of this token has published. Each try to
/// put a catalogue has a number of its own, and of several catalogues of a life the one with the
/// greatest number counts.
pub fn life_catalog_name(token: u32, number: u32) -> String {
    format!("{CATALOGS_PREFIX}{token:08x}-{number:08x}")
}

/// The token and the number of a name by [`life_catalog_name`]; `None` for any other name.
pub fn parse_life_catalog_name(name: &str) -> Option<(u32, u32)> {
    let parsed = parse_numbers(name, CATALOGS_PREFIX);
    parsed.filter(|(token, number)| life_catalog_name(*token, *number) == name)
}

/// The beginning of the names of deletions in the catalogue.
pub const DELETIONS_PREFIX: &str = "S-gone-";

/// The name of the object by which the life of this token says that a file is deleted, until a
/// catalogue of that life says so.
pub fn deletion_name(token: u32, file: FileId) -> String {
    format!("{DELETIONS_PREFIX}{token:08x}-{file}")
}

/// The token and the file of a name by [`deletion_name`]; `None` for any other name.
pub fn parse_deletion_name(name: &str) -> Option<(u32, FileId)> {
    let (token, file) = name.strip_prefix(DELETIONS_PREFIX)?.split_once('-')?;
    let token = u32::from_str_radix(token, 16).ok()?;
    let file = FileId(u64::from_str_radix(file, 16).ok()?);
    (deletion_name(token, file) == name).then_some((token, file))
}

/// The name of the file without records that keeps blocks of the disk for the next journal.
pub const RESERVE: &str = "RESERVE";

/// The name of a journal file.
pub fn journal_name(number: u64) -> String {
    format!("J-{number:016x}")
}

/// The number of a journal file; `None` for any other name.
pub fn parse_journal_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("J-").filter(|digits| digits.len() == 16)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (journal_name(number) == name).then_some(number)
}

/// Chunk of a segment, and the segment's first byte in it.
pub fn segment_place(segment: u32) -> (u32, u64) {
    let slot = segment % SEGMENTS_PER_CHUNK;
    (segment / SEGMENTS_PER_CHUNK, u64::from(slot) * SEGMENT_BYTES as u64)
}

/// The arithmetic of one record length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    record_bytes: u16,
}

impl Layout {
    /// The layout of records of this length.
    ///
    /// # Errors
    /// [`Error::RecordLength`] outside [`RECORD_BYTES_MIN`]..=[`RECORD_BYTES_MAX`].
    pub fn new(record_bytes: usize) -> Result<Self> {
        if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&record_bytes) {
            return Err(Error::RecordLength { record_bytes });
        }
        Ok(Self { record_bytes: record_bytes as u16 })
    }

    /// Bytes of a record.
    pub fn record_bytes(self) -> usize {
        usize::from(self.record_bytes)
    }

    /// Records of a full segment.
    pub fn records_per_segment(self) -> u64 {
        (PAYLOAD_BYTES / self.record_bytes()) as u64
    }

    /// Segment of a record, and the record's place among its records.
    ///
    /// # Errors
    /// [`Error::FileFull`] past 2^32 segments.
    pub fn locate(self, record: u64) -> Result<(u32, usize)> {
        let segment = record / self.records_per_segment();
        let segment = u32::try_from(segment).map_err(|_| Error::FileFull { records: record })?;
        Ok((segment, (record % self.records_per_segment()) as usize))
    }

    /// Full segments of a file of this many records.
    pub fn full_segments(self, records: u64) -> u32 {
        u32::try_from(records / self.records_per_segment()).unwrap_or(u32::MAX)
    }

    /// First record of a segment.
    pub fn first_record(self, segment: u32) -> u64 {
        u64::from(segment) * self.records_per_segment()
    }

    /// The numbers of the records at these places of a segment.
    pub fn numbers_of(self, segment: u32, places: &Range<usize>) -> Range<u64> {
        let first = self.first_record(segment);
        first + places.start as u64..first + places.end as u64
    }

    /// Bytes of records of a segment with this many.
    pub fn payload_bytes(self, count: usize) -> usize {
        count * self.record_bytes()
    }
}

/// The time stamp of a record: nanoseconds, in its first eight bytes.
///
/// # Panics
/// When the record is shorter than that, which no [`Layout`] allows.
pub fn record_time(record: &[u8]) -> i64 {
    i64::from_le_bytes(record[..8].try_into().expect("a record begins with its time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_back_what_they_were_made_of() {
        let name = chunk_name(SegmentKind::Index, FileId(77), 3);
        assert_eq!(parse_chunk_name(&name), Some((SegmentKind::Index, FileId(77), 3)));
        for other in
            ["", "D", "D-1-2", "X-000000000000004d-00000003", "D-000000000000004D-00000003"]
        {
            assert_eq!(parse_chunk_name(other), None, "{other}");
        }
        assert_eq!(parse_journal_name(&journal_name(9)), Some(9));
        assert_eq!(parse_journal_name("J-9"), None);
        assert_eq!(parse_catalog_name(&catalog_name(FileId(7), 2)), Some((FileId(7), 2)));
        assert_eq!(parse_catalog_name("S-0000000000000007"), None);
        assert_eq!(parse_life_catalog_name(&life_catalog_name(7, 2)), Some((7, 2)));
        assert_eq!(parse_catalog_name(&life_catalog_name(7, 2)), None);
        assert_eq!(parse_pack_name(&pack_name(7, 2)), Some((7, 2)));
        assert_eq!(parse_pack_name("P-7-2"), None);
        assert_eq!(parse_block_name(&block_name(7, 2)), Some((7, 2)));
        for generation in [0, 3] {
            let name = tail_name(FileId(7), 2, generation);
            assert_eq!(parse_tail_name(&name), Some((FileId(7), 2)));
        }
        assert_eq!(parse_life_catalog_name(&catalog_name(FileId(7), 2)), None);
        let deletion = deletion_name(2, FileId(7));
        assert_eq!(parse_deletion_name(&deletion), Some((2, FileId(7))));
        assert_eq!(
            (parse_catalog_name(&deletion), parse_life_catalog_name(&deletion)),
            (None, None)
        );
    }

    #[test]
    fn a_record_is_found_by_arithmetic() {
        let layout = Layout::new(16).unwrap();
        assert_eq!(layout.records_per_segment(), 1_022);
        assert_eq!(layout.locate(1_022 * 257 + 5).unwrap(), (257, 5));
        assert_eq!(segment_place(257), (1, SEGMENT_BYTES as u64));
        assert!(Layout::new(7).is_err() && Layout::new(RECORD_BYTES_MAX + 1).is_err());
        assert!(layout.locate(u64::MAX).is_err());
    }
}
