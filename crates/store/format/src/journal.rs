//! The journal: one file per disk that takes every stream's appends in one sequential write.
//!
//! Ten thousand streams cannot each be synced a thousand times a second. One shared journal can: a
//! commit gathers the appends of all streams, is written at once and synced once, and only then are
//! the appends acknowledged at `local`. Chunks are written later, from memory. The journal is read
//! after a crash only.
//!
//! ```text
//! journal file                 commit                            frame
//!  0  "EFJL" magic             0  "EFCM" magic                   0  kind: R records, N node,
//!  4  version                  4  bytes of frames   u32             L lost, X file deleted
//!  5  1 if spare, 2 zero       8  sequence          u64          2  bytes of a record    u16
//!  8  number       u64        16  identity          u64          4  token                u32
//! 16  store node   u32        24  frames            u32          8  file id              u64
//! 20  identity     u64        28  crc32c            u32         16  first record         u64
//! 28  crc32c       u32        32  frames ...                    24  bytes behind         u32
//! 32  the same 32 bytes          32 zero: the end               28  zero
//! 64  commits ...
//! ```
//!
//! The checksum of a commit covers the commit's place in the file (u64), bytes 4..28 of it and its
//! frames; commits are numbered without gaps within a life of the store. A node frame states how
//! many records of a file are in synced chunks. Recovery begins its search there. A frame of lost
//! records has their number (u64) behind it: recovery has told their loss already. The next journal
//! begins with node frames and with the records that fill no segment yet. Then the previous journal
//! is no longer needed.
//!
//! The previous journal is not removed from the disk. The previous journal is marked as a spare,
//! and a later journal is written over it. A sync of a growing file waits until the file system has
//! written its own journal and all other new data. A sync of existing blocks waits for these blocks
//! only. A commit before the remains of an earlier journal is followed by zeros, which the next
//! commit overwrites.
//!
//! A flipped bit costs the commit that it is in, and the commits behind are read on ([`scan()`]).
//! Nothing says where they begin, so each byte may be the first of one, also a byte of a record
//! that a client has made look like a commit. Only the journal's identity tells: a random number
//! that no client learns, and that no other journal has, whatever file it was in. The header is
//! there twice, because without the identity no commit is believed. Without either copy, the
//! journal's first commit tells the identity, or all whole commits together do.

mod scan;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use evenfall_core::Prng;

pub use self::scan::{Dropped, JournalDamage, Scan, ScannedCommit, scan, scan_commits};
use crate::error::{Error, Result};
use crate::layout::FileId;
use crate::lost_records::TailRecords;

/// Bytes of one of the two copies of a journal's header.
const HEADER_COPY_BYTES: usize = 32;
/// Bytes of a journal file's header.
pub const HEADER_BYTES: usize = 2 * HEADER_COPY_BYTES;
/// Bytes of a commit's header.
pub const COMMIT_BYTES: usize = 32;
/// Bytes of a journal file's header, and of the header of the first commit.
pub(crate) const BEGINNING_BYTES: usize = HEADER_BYTES + COMMIT_BYTES;
/// Zeros behind the last commit.
const END_BYTES: usize = COMMIT_BYTES;
/// Bytes of a frame's header.
pub const FRAME_BYTES: usize = 32;
/// Limit of the bytes of one commit. The limit bounds a group commit, and the memory of recovery.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;
/// The version that this code writes.
pub const VERSION: u8 = 3;
/// The previous version: a journal has one copy of its header, and its commits have the number of
/// the journal in the place of an identity. Such a journal is read up to the first damage.
const VERSION_BEFORE: u8 = 2;
const FILE_MAGIC: &[u8; 4] = b"EFJL";
const COMMIT_MAGIC: &[u8; 4] = b"EFCM";

/// The header of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// Number of the journal. A later journal has a greater one.
    pub number: u64,
    /// The random number by which its commits are known.
    pub identity: u64,
    /// Whether the journal is not needed any more.
    pub is_spare: bool,
    version: u8,
    /// First byte of the copy of the header that is not whole.
    damaged_copy: Option<usize>,
}

impl JournalHeader {
    /// Byte of the first commit.
    fn first_commit(&self) -> usize {
        if self.version == VERSION_BEFORE { HEADER_COPY_BYTES } else { HEADER_BYTES }
    }

    /// The number of the first commit, if one of this journal begins behind the header. `bytes`
    /// are the journal's first [`BEGINNING_BYTES`].
    pub(crate) fn first_sequence(&self, bytes: &[u8]) -> Option<u64> {
        let head = bytes.get(self.first_commit()..)?.get(..COMMIT_BYTES)?;
        let is_ours = head[..4] == *COMMIT_MAGIC && long(head, 16) == self.identity;
        (is_ours && !self.is_spare).then(|| long(head, 8))
    }
}

/// The identity of a journal of the life that has this secret.
pub fn identity_of(secret: u64, number: u64) -> u64 {
    // 2^64 divided by the golden ratio spreads the numbers over 64 bits, so that no two journals of
    // two lives with close secrets have the same identity.
    Prng::new(secret ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64()
}

/// The bytes of the header of journal `number`, or of the spare that it has become.
pub fn header(number: u64, identity: u64, node: u32, is_spare: bool) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (first, second) = bytes.split_at_mut(HEADER_COPY_BYTES);
    first[..4].copy_from_slice(FILE_MAGIC);
    first[4] = VERSION;
    first[5] = u8::from(is_spare);
    first[8..16].copy_from_slice(&number.to_le_bytes());
    first[16..20].copy_from_slice(&node.to_le_bytes());
    first[20..28].copy_from_slice(&identity.to_le_bytes());
    let crc = crc32c::crc32c(&first[..28]);
    first[28..].copy_from_slice(&crc.to_le_bytes());
    second.copy_from_slice(first);
    bytes
}

/// The header of a journal file: the copy that is whole, or the newer one of two. `None` for bytes
/// that are no header.
///
/// # Errors
/// [`Error::Version`] of another format.
pub fn parse_header(name: &str, bytes: &[u8]) -> Result<Option<JournalHeader>> {
    let first = parse_header_copy(name, bytes)?;
    if first.is_some_and(|header| header.version == VERSION_BEFORE) {
        return Ok(first);
    }
    let second = parse_header_copy(name, bytes.get(HEADER_COPY_BYTES..).unwrap_or_default())?;
    let is_cut = bytes.len() < HEADER_BYTES;
    let only = |header: JournalHeader, damaged: usize| {
        let damaged_copy = Some(damaged).filter(|_| !is_cut);
        Some(JournalHeader { damaged_copy, ..header })
    };
    Ok(match (first, second) {
        (None, None) => None,
        (Some(first), None) => only(first, HEADER_COPY_BYTES),
        (None, Some(second)) => only(second, 0),
        // A crash has torn the write of a later header, or that of the mark of a spare.
        (Some(first), Some(second)) => {
            let age = |header: &JournalHeader| (header.number, header.is_spare);
            Some(if age(&first) >= age(&second) { first } else { second })
        }
    })
}

fn parse_header_copy(name: &str, bytes: &[u8]) -> Result<Option<JournalHeader>> {
    let Some(copy) = bytes.get(..HEADER_COPY_BYTES) else { return Ok(None) };
    if copy[..4] != *FILE_MAGIC || crc32c::crc32c(&copy[..28]) != word(copy, 28) {
        return Ok(None);
    }
    let version = copy[4];
    if version != VERSION && version != VERSION_BEFORE {
        return Err(Error::Version { place: name.into(), version });
    }
    let number = long(copy, 8);
    let identity = if version == VERSION { long(copy, 20) } else { number };
    Ok(Some(JournalHeader {
        number,
        identity,
        is_spare: copy[5] != 0,
        version,
        damaged_copy: None,
    }))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// What one commit will hold.
#[derive(Debug)]
pub struct JournalBatch {
    /// Room for the commit's header, then frames; behind them, once sealed, zeros.
    bytes: Vec<u8>,
    /// Bytes of the commit.
    len: usize,
    frames: u32,
    /// For each frame of records: its origin, and the number after its last record.
    ends: Vec<(Origin, u64)>,
}

impl Default for JournalBatch {
    fn default() -> Self {
        Self { bytes: vec![0; COMMIT_BYTES], len: COMMIT_BYTES, frames: 0, ends: Vec::new() }
    }
}

/// The file of the records in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub file: FileId,
    /// Bytes of a record.
    pub record_bytes: u16,
    /// The primary's token.
    pub token: u32,
}

impl JournalBatch {
    /// Whether the batch has no frame.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Bytes of the commit.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether another frame with this many bytes fits into one commit.
    pub fn fits(&self, bytes: usize) -> bool {
        self.len + FRAME_BYTES + bytes <= COMMIT_BYTES_MAX
    }

    /// For each frame of records: its origin, and the number after its last record.
    pub fn ends(&self) -> &[(Origin, u64)] {
        &self.ends
    }

    /// Adds records, the first of them being record `first` of the file.
    pub fn push_records(&mut self, origin: Origin, first: u64, records: &[u8]) {
        let count = records.len() / usize::from(origin.record_bytes.max(1));
        self.ends.push((origin, first + count as u64));
        self.push(b'R', origin, first, records);
    }

    /// As [`push_records`](Self::push_records), with `len` bytes of records that lie in parts.
    pub fn push_record_parts<'a>(
        &mut self,
        origin: Origin,
        first: u64,
        len: usize,
        parts: impl Iterator<Item = &'a [u8]>,
    ) {
        let count = len / usize::from(origin.record_bytes.max(1));
        self.ends.push((origin, first + count as u64));
        self.push_head(b'R', origin, first, len);
        parts.for_each(|part| self.bytes.extend_from_slice(part));
        self.len = self.bytes.len();
    }

    /// Adds a node frame: this many records of the file are in synced chunks.
    pub fn push_node(&mut self, origin: Origin, synced: u64) {
        self.push(b'N', origin, synced, &[]);
    }

    /// Adds a frame of lost records: these records are in no place, and the loss has been told.
    pub fn push_lost(&mut self, origin: Origin, first: u64, count: u64) {
        self.push(b'L', origin, first, &count.to_le_bytes());
    }

    /// Adds the records of a tail, the first of them being record `first` of the file.
    pub fn push_tail(&mut self, origin: Origin, first: u64, tail: &TailRecords) {
        for lost in &tail.lost {
            self.push_lost(origin, first + lost.start as u64, lost.len() as u64);
        }
        let size = usize::from(origin.record_bytes.max(1));
        for held in tail.held_ranges(size) {
            let records = &tail.bytes[held.start * size..held.end * size];
            self.push_records(origin, first + held.start as u64, records);
        }
    }

    /// Adds a deletion frame: the file was deleted.
    pub fn push_deletion(&mut self, origin: Origin) {
        self.push(b'X', origin, 0, &[]);
    }

    fn push(&mut self, kind: u8, origin: Origin, first: u64, body: &[u8]) {
        self.push_head(kind, origin, first, body.len());
        self.bytes.extend_from_slice(body);
        self.len = self.bytes.len();
    }

    /// Adds the header of a frame. The body follows.
    fn push_head(&mut self, kind: u8, origin: Origin, first: u64, body_bytes: usize) {
        self.bytes.truncate(self.len);
        self.bytes.extend_from_slice(&[kind, 0]);
        self.bytes.extend_from_slice(&origin.record_bytes.to_le_bytes());
        self.bytes.extend_from_slice(&origin.token.to_le_bytes());
        self.bytes.extend_from_slice(&origin.file.0.to_le_bytes());
        self.bytes.extend_from_slice(&first.to_le_bytes());
        self.bytes.extend_from_slice(&(body_bytes as u32).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.frames += 1;
    }

    /// The commit with this sequence number at this byte of the journal of this identity: its
    /// length, and its bytes with the zeros behind it.
    pub fn seal(&mut self, identity: u64, sequence: u64, place: u64) -> (usize, &[u8]) {
        self.bytes.truncate(self.len);
        let body = (self.len - COMMIT_BYTES) as u32;
        self.bytes[..4].copy_from_slice(COMMIT_MAGIC);
        self.bytes[4..8].copy_from_slice(&body.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        self.bytes[16..24].copy_from_slice(&identity.to_le_bytes());
        self.bytes[24..28].copy_from_slice(&self.frames.to_le_bytes());
        let head = head_checksum(&self.bytes, Some(place));
        let crc = crc32c::crc32c_append(head, &self.bytes[COMMIT_BYTES..]);
        self.bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        self.bytes.resize(self.len + END_BYTES, 0);
        (self.len, &self.bytes)
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(COMMIT_BYTES);
        self.len = COMMIT_BYTES;
        self.frames = 0;
        self.ends.clear();
    }
}

/// The checksum of what comes before the frames of a commit: its place in a journal that has an
/// identity, and its header.
fn head_checksum(commit: &[u8], place: Option<u64>) -> u32 {
    let place = place.map_or(0, |place| crc32c::crc32c(&place.to_le_bytes()));
    crc32c::crc32c_append(place, &commit[4..28])
}

/// One frame of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Records, from this number on.
    Records(Origin, u64, Bytes),
    /// This many records are in synced chunks.
    Node(Origin, u64),
    /// Number of the first lost record, and how many are lost. Recovery has told their loss.
    Lost(Origin, u64, u64),
    /// The file was deleted.
    Deletion(FileId),
}

fn frame_len(bytes: &[u8]) -> Option<usize> {
    let body = word(bytes.get(..FRAME_BYTES)?, 24) as usize;
    let record_bytes = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let whole = match bytes[0] {
        b'R' => record_bytes > 0 && body.is_multiple_of(record_bytes),
        b'L' => body == 8,
        b'N' | b'X' => body == 0,
        _ => false,
    };
    (whole && bytes.len() >= FRAME_BYTES + body).then_some(FRAME_BYTES + body)
}

fn frame_count(mut bytes: &[u8]) -> Option<u32> {
    let mut count = 0;
    while !bytes.is_empty() {
        bytes = &bytes[frame_len(bytes)?..];
        count += 1;
    }
    Some(count)
}

/// The frames of a commit whose structure was checked.
fn parse_frames(bytes: &Bytes) -> Vec<Frame> {
    let (mut at, mut frames) = (0, Vec::new());
    while let Some(len) = frame_len(&bytes[at..]) {
        let frame = &bytes[at..at + len];
        let origin = Origin {
            file: FileId(long(frame, 8)),
            record_bytes: u16::from_le_bytes([frame[2], frame[3]]),
            token: word(frame, 4),
        };
        let first = long(frame, 16);
        frames.push(match frame[0] {
            b'R' => Frame::Records(origin, first, bytes.slice(at + FRAME_BYTES..at + len)),
            b'N' => Frame::Node(origin, first),
            b'L' => Frame::Lost(origin, first, long(frame, FRAME_BYTES)),
            _ => Frame::Deletion(origin.file),
        });
        at += len;
    }
    frames
}
