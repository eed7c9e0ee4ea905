//! A segment: a block of 16 KiB with a header that names its contents, and a checksum.
//!
//! ```text
//!  0        4   5   6       8                16        20        24        28        32
//! +--------+---+---+-------+----------------+---------+---------+---------+---------+------
//! | "EFSG" | v | k | entry | file id        | segment | count   | token   | crc32c  | payload
//! +--------+---+---+-------+----------------+---------+---------+---------+---------+------
//!   magic   1  D|I  bytes    u64              u32       u32       u32       u32       16,352
//! ```
//!
//! The checksum (Castagnoli) covers all other bytes. The checksum tells the right segment from a
//! segment of another file, of another number or from an older primary, and finds a flipped bit.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::layout::{FileId, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentKind};

/// First bytes of every segment.
pub const MAGIC: [u8; 4] = *b"EFSG";
/// The version that this code writes and reads.
pub const VERSION: u8 = 1;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Kind of the contents.
    pub kind: SegmentKind,
    /// Bytes of one record or index entry.
    pub entry_bytes: u16,
    /// The file of the segment.
    pub file: FileId,
    /// Its number in the file.
    pub number: u32,
    /// Records or entries in it. A data segment in front of others that counts fewer than fit has
    /// lost the rest.
    pub count: u32,
    /// The fencing token of the primary that wrote it.
    pub token: u32,
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..28]), &bytes[SEGMENT_HEADER_BYTES..])
}

/// Fills in header and checksum of a whole segment whose payload is in place.
///
/// # Panics
/// When `bytes` is not [`SEGMENT_BYTES`] long.
pub fn seal(header: &SegmentHeader, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), SEGMENT_BYTES, "a segment has one size");
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = header.kind.letter() as u8;
    bytes[6..8].copy_from_slice(&header.entry_bytes.to_le_bytes());
    bytes[8..16].copy_from_slice(&header.file.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&header.number.to_le_bytes());
    bytes[20..24].copy_from_slice(&header.count.to_le_bytes());
    bytes[24..28].copy_from_slice(&header.token.to_le_bytes());
    let crc = checksum(bytes);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
}

/// Reads and checks a segment.
///
/// # Errors
/// [`Error::Damaged`] or [`Error::Version`], naming `place`.
pub fn open(bytes: &[u8], place: &str) -> Result<SegmentHeader> {
    if bytes.len() != SEGMENT_BYTES {
        return Err(Error::damaged(place, format!("{} bytes of {SEGMENT_BYTES}", bytes.len())));
    }
    if bytes[..4] != MAGIC {
        return Err(Error::damaged(place, "not a segment"));
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let stored = word(28);
    let found = checksum(bytes);
    if stored != found {
        let what = format!("checksum {found:08x}, and {stored:08x} was written");
        return Err(Error::damaged(place, what));
    }
    if bytes[4] != VERSION {
        return Err(Error::Version { place: place.into(), version: bytes[4] });
    }
    let header = header(bytes).ok_or_else(|| Error::damaged(place, "unknown kind"))?;
    // The header states the number and the length of the entries. Their product is checked against
    // the segment.
    let used = u64::from(header.count) * u64::from(header.entry_bytes);
    if header.entry_bytes == 0 || used > (SEGMENT_BYTES - SEGMENT_HEADER_BYTES) as u64 {
        return Err(Error::damaged(place, "more entries than fit"));
    }
    Ok(header)
}

/// The header of a segment without a check of the checksum; `None` when the bytes cannot be a
/// segment.
pub fn header(bytes: &[u8]) -> Option<SegmentHeader> {
    if bytes.len() != SEGMENT_BYTES {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    Some(SegmentHeader {
        kind: SegmentKind::from_letter(bytes[5])?,
        entry_bytes: u16::from_le_bytes([bytes[6], bytes[7]]),
        file: FileId(u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"))),
        number: word(16),
        count: word(20),
        token: word(24),
    })
}

/// As [`open`], and checks that the segment has this kind, file and number.
///
/// # Errors
/// As [`open`]; [`Error::Damaged`] for a whole segment at the wrong place.
pub fn expect(bytes: &[u8], kind: SegmentKind, file: FileId, number: u32) -> Result<SegmentHeader> {
    let place = format!("segment {number} of {}-{file}", kind.letter());
    let header = open(bytes, &place)?;
    if (header.kind, header.file, header.number) != (kind, file, number) {
        let is = format!("{}-{} {}", header.kind.letter(), header.file, header.number);
        return Err(Error::damaged(place, format!("it is segment {is}")));
    }
    Ok(header)
}

/// A full segment, which does not change any more.
#[derive(Clone, Debug)]
pub struct SealedSegment {
    /// Kind of the contents.
    pub kind: SegmentKind,
    /// The file of the segment.
    pub file: FileId,
    /// Its number.
    pub number: u32,
    /// All bytes of the segment.
    pub bytes: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (SegmentHeader, Vec<u8>) {
        let header = SegmentHeader {
            kind: SegmentKind::Data,
            entry_bytes: 16,
            file: FileId(5),
            number: 9,
            count: 1_022,
            token: 3,
        };
        let mut bytes = vec![7; SEGMENT_BYTES];
        seal(&header, &mut bytes);
        (header, bytes)
    }

    #[test]
    fn a_segment_reads_back() {
        let (header, bytes) = sample();
        assert_eq!(expect(&bytes, SegmentKind::Data, FileId(5), 9), Ok(header));
        assert!(expect(&bytes, SegmentKind::Data, FileId(5), 8).is_err());
        assert!(expect(&bytes, SegmentKind::Index, FileId(5), 9).is_err());
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let (_, mut bytes) = sample();
        for at in 0..SEGMENT_BYTES {
            bytes[at] ^= 0x10;
            assert!(open(&bytes, "here").is_err(), "byte {at}");
            bytes[at] ^= 0x10;
        }
    }

    #[test]
    fn any_length_is_a_value_or_an_error() {
        let (_, bytes) = sample();
        for len in [0, 3, 31, 32, SEGMENT_BYTES - 1] {
            assert!(open(&bytes[..len], "here").is_err());
        }
    }
}
