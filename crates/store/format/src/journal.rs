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
//!  4  version                  4  bytes of frames   u32             X file deleted
//!  5  1 if spare, 2 zero       8  sequence          u64          2  bytes of a record    u16
//!  8  number       u64        16  journal's number  u64          4  token                u32
//! 16  store node   u32        24  frames            u32          8  file id              u64
//! 20  zero                    28  crc32c            u32         16  first record         u64
//! 28  crc32c       u32        32  frames ...                    24  bytes behind          u32
//! 32  commits ...                 32 zero: the end              28  zero
//! ```
//!
//! The checksum of a commit covers bytes 4..28 of it and its frames; commits are numbered without
//! gaps within a file. A node frame states how many records of a file are in synced chunks.
//! Recovery begins its search there. The next journal begins with node frames and with the records
//! that fill no segment yet. Then the previous journal is no longer needed.
//!
//! The previous journal is not removed from the disk. The previous journal is marked as a spare,
//! and a later journal is written over it. A sync of a growing file waits until the file system has
//! written its own journal and all other new data. A sync of existing blocks waits for these blocks
//! only. Every journal has its own number, by which the remains of an earlier journal are
//! recognised. A commit before such remains is followed by zeros, which the next commit overwrites.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::layout::FileId;

/// Bytes of a journal file's header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a commit's header.
pub const COMMIT_BYTES: usize = 32;
/// Zeros behind the last commit.
const END_BYTES: usize = COMMIT_BYTES;
/// Bytes of a frame's header.
pub const FRAME_BYTES: usize = 32;
/// Limit of the bytes of one commit. The limit bounds a group commit, and the memory of recovery.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;
/// The version that this code writes and reads.
pub const VERSION: u8 = 2;
const FILE_MAGIC: &[u8; 4] = b"EFJL";
const COMMIT_MAGIC: &[u8; 4] = b"EFCM";

/// The header of journal `number`, or of the spare that it has become.
pub fn header(number: u64, node: u32, is_spare: bool) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(FILE_MAGIC);
    bytes[4] = VERSION;
    bytes[5] = u8::from(is_spare);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..20].copy_from_slice(&node.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// What one commit will hold.
#[derive(Debug)]
pub struct Batch {
    /// Room for the commit's header, then frames; behind them, once sealed, zeros.
    bytes: Vec<u8>,
    /// Bytes of the commit.
    len: usize,
    frames: u32,
    /// For each frame of records: its origin, and the number after its last record.
    ends: Vec<(Origin, u64)>,
}

impl Default for Batch {
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

impl Batch {
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

    /// Adds a node frame: this many records of the file are in synced chunks.
    pub fn push_node(&mut self, origin: Origin, synced: u64) {
        self.push(b'N', origin, synced, &[]);
    }

    /// Adds a deletion frame: the file was deleted.
    pub fn push_deletion(&mut self, origin: Origin) {
        self.push(b'X', origin, 0, &[]);
    }

    fn push(&mut self, kind: u8, origin: Origin, first: u64, body: &[u8]) {
        self.bytes.truncate(self.len);
        self.bytes.extend_from_slice(&[kind, 0]);
        self.bytes.extend_from_slice(&origin.record_bytes.to_le_bytes());
        self.bytes.extend_from_slice(&origin.token.to_le_bytes());
        self.bytes.extend_from_slice(&origin.file.0.to_le_bytes());
        self.bytes.extend_from_slice(&first.to_le_bytes());
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(body);
        self.len = self.bytes.len();
        self.frames += 1;
    }

    /// The commit of journal `number` with this sequence number: its length, and its bytes with
    /// the zeros behind it.
    pub fn seal(&mut self, number: u64, sequence: u64) -> (usize, &[u8]) {
        self.bytes.truncate(self.len);
        let body = (self.len - COMMIT_BYTES) as u32;
        self.bytes[..4].copy_from_slice(COMMIT_MAGIC);
        self.bytes[4..8].copy_from_slice(&body.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        self.bytes[16..24].copy_from_slice(&number.to_le_bytes());
        self.bytes[24..28].copy_from_slice(&self.frames.to_le_bytes());
        let crc = commit_checksum(&self.bytes);
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

fn commit_checksum(commit: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&commit[4..28]), &commit[COMMIT_BYTES..])
}

/// One frame of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Records, from this number on.
    Records(Origin, u64, Bytes),
    /// This many records are in synced chunks.
    Node(Origin, u64),
    /// The file was deleted.
    Deletion(FileId),
}

/// What is in a journal file.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Frames of whole commits, in order.
    pub frames: Vec<Frame>,
    /// Whole commits.
    pub commits: u64,
    /// Bytes of the file that they and the header take.
    pub bytes: u64,
    /// Bytes behind the last whole commit that are neither a commit nor the end: a torn commit, or
    /// damage.
    pub dropped: Option<Dropped>,
}

/// Bytes at which a journal neither continues nor ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// First byte.
    pub at: u64,
    /// Bytes to the end of the file, including remains of an earlier journal.
    pub bytes: u64,
    /// Whole commits of this journal among these bytes. A torn write leaves no such commits. Damage
    /// in the middle of a journal does.
    pub commits_behind: u64,
    /// The fault of the first of these bytes.
    pub what: &'static str,
}

/// The header of a journal file: the journal's number, and whether the file is a spare by now.
/// `None` for bytes that are no header.
///
/// # Errors
/// [`Error::Version`] of another format.
pub fn parse_header(name: &str, bytes: &[u8]) -> Result<Option<(u64, bool)>> {
    let Some(header) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
    let crc = u32::from_le_bytes(header[28..].try_into().expect("four bytes"));
    if header[..4] != *FILE_MAGIC || crc32c::crc32c(&header[..28]) != crc {
        return Ok(None);
    }
    if header[4] != VERSION {
        return Err(Error::Version { place: name.into(), version: header[4] });
    }
    Ok(Some((long(header, 8), header[5] != 0)))
}

/// Reads a journal file. A spare counts as empty.
///
/// # Errors
/// [`Error::Version`] of another format. A damaged header is [`Scan::dropped`], as all else.
pub fn scan(name: &str, bytes: &Bytes) -> Result<Scan> {
    let mut scan = Scan::default();
    let drop_from = |at: usize, number, what| Dropped {
        at: at as u64,
        bytes: (bytes.len() - at) as u64,
        commits_behind: commits_behind(&bytes[at..], number),
        what,
    };
    let number = match parse_header(name, bytes)? {
        Some((_, true)) => return Ok(scan),
        Some((number, false)) => number,
        None if bytes.is_empty() => return Ok(scan),
        None => {
            scan.dropped = Some(drop_from(0, None, "not a journal's header"));
            return Ok(scan);
        }
    };
    let mut at = HEADER_BYTES;
    let mut next = None;
    while at < bytes.len() {
        match commit(&bytes[at..], Some(number), next) {
            Ok((len, sequence)) => {
                frames(&bytes.slice(at + COMMIT_BYTES..at + len), &mut scan.frames);
                next = Some(sequence.wrapping_add(1));
                scan.commits += 1;
                at += len;
            }
            Err(what) => {
                let dropped = drop_from(at, Some(number), what);
                // The zeros behind the last commit mark the end, unless a later commit follows
                // them.
                let is_end = bytes[at..].iter().take(END_BYTES).all(|byte| *byte == 0);
                scan.dropped = (!is_end || dropped.commits_behind > 0).then_some(dropped);
                break;
            }
        }
    }
    scan.bytes = at as u64;
    Ok(scan)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Length and sequence of the whole commit at the start of `bytes`, if the commit is of this
/// journal and the next in turn.
fn commit(
    bytes: &[u8],
    number: Option<u64>,
    next: Option<u64>,
) -> Result<(usize, u64), &'static str> {
    if bytes.len() < COMMIT_BYTES || bytes[..4] != *COMMIT_MAGIC {
        return Err("no commit begins here");
    }
    if number.is_some_and(|number| number != long(bytes, 16)) {
        return Err("the commit is of an earlier journal");
    }
    let body = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
    let sequence = long(bytes, 8);
    let count = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
    let crc = u32::from_le_bytes(bytes[28..32].try_into().expect("four bytes"));
    let commit = bytes.get(..COMMIT_BYTES + body).ok_or("the commit goes past the end")?;
    if commit_checksum(commit) != crc {
        return Err("the commit's checksum is wrong");
    }
    if next.is_some_and(|next| next != sequence) {
        return Err("the commit is not the next one");
    }
    // The checksum is right, so a wrong structure is a fault of the writer. The commit is still
    // refused.
    if frame_count(&commit[COMMIT_BYTES..]) != Some(count) {
        return Err("the commit's frames do not fill it");
    }
    Ok((commit.len(), sequence))
}

fn frame_len(bytes: &[u8]) -> Option<usize> {
    let body = u32::from_le_bytes(bytes.get(24..28)?.try_into().ok()?) as usize;
    let record_bytes = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let whole = match bytes[0] {
        b'R' => record_bytes > 0 && body.is_multiple_of(record_bytes),
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
fn frames(bytes: &Bytes, out: &mut Vec<Frame>) {
    let mut at = 0;
    while let Some(len) = frame_len(&bytes[at..]).filter(|_| at < bytes.len()) {
        let frame = &bytes[at..at + len];
        let origin = Origin {
            file: FileId(long(frame, 8)),
            record_bytes: u16::from_le_bytes([frame[2], frame[3]]),
            token: u32::from_le_bytes(frame[4..8].try_into().expect("four bytes")),
        };
        out.push(match frame[0] {
            b'R' => {
                Frame::Records(origin, long(frame, 16), bytes.slice(at + FRAME_BYTES..at + len))
            }
            b'N' => Frame::Node(origin, long(frame, 16)),
            _ => Frame::Deletion(origin.file),
        });
        at += len;
        if at >= bytes.len() {
            break;
        }
    }
}

/// Bytes between two places whose checksum from the first byte on is kept.
const SUM_EVERY: usize = 4 << 10;

/// Checksums of any part of some bytes, each in the same short time: that of the part is what is
/// left of the checksum of all bytes up to its end without those before it. Records of a client may
/// look like headers of commits of any length, and the opening of a store must not read their bytes
/// once a header.
struct PartSums<'a> {
    bytes: &'a [u8],
    sums: Vec<u32>,
}

impl<'a> PartSums<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let mut sums = vec![0];
        for part in bytes.chunks_exact(SUM_EVERY) {
            sums.push(crc32c::crc32c_append(sums[sums.len() - 1], part));
        }
        Self { bytes, sums }
    }

    fn up_to(&self, end: usize) -> u32 {
        let at = end / SUM_EVERY;
        crc32c::crc32c_append(self.sums[at], &self.bytes[at * SUM_EVERY..end])
    }

    fn part(&self, start: usize, end: usize) -> u32 {
        self.up_to(end) ^ crc32c::crc32c_combine(self.up_to(start), 0, end - start)
    }
}

/// The number of whole commits in these bytes, at whatever byte they begin: of journal `number`, or
/// of any journal.
fn commits_behind(bytes: &[u8], number: Option<u64>) -> u64 {
    let sums = PartSums::of(bytes);
    let (mut at, mut found) = (0, 0);
    while at + COMMIT_BYTES <= bytes.len() {
        let head = &bytes[at..at + COMMIT_BYTES];
        let body = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        let end = at + COMMIT_BYTES + body;
        let is_whole = head[..4] == *COMMIT_MAGIC && end <= bytes.len() && {
            let parts = sums.part(at + COMMIT_BYTES, end);
            let sum = crc32c::crc32c_combine(crc32c::crc32c(&head[4..28]), parts, body);
            sum == u32::from_le_bytes(head[28..].try_into().expect("four bytes"))
        };
        match is_whole.then(|| commit(&bytes[at..], number, None)) {
            Some(Ok((len, _))) => {
                found += 1;
                at += len;
            }
            _ => at += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin { file: FileId(3), record_bytes: 16, token: 2 };

    fn commits(number: u64, count: u64, bytes: usize) -> Vec<u8> {
        let mut file = header(number, 1, false).to_vec();
        for sequence in 0..count {
            let mut batch = Batch::default();
            batch.push_node(ORIGIN, 5);
            batch.push_records(ORIGIN, sequence * 10, &vec![sequence as u8; bytes]);
            let (len, sealed) = batch.seal(number, sequence);
            let (commit, zeros) = sealed.split_at(len);
            assert!(zeros.iter().all(|byte| *byte == 0));
            file.extend_from_slice(commit);
        }
        file.extend_from_slice(&[0; END_BYTES]);
        file
    }

    fn sample() -> Vec<u8> {
        commits(7, 3, 160)
    }

    #[test]
    fn commits_read_back_in_order() {
        let file = Bytes::from(sample());
        let scan = scan("J", &file).unwrap();
        assert_eq!((scan.commits, scan.bytes as usize), (3, file.len() - END_BYTES));
        assert_eq!(scan.frames.len(), 6);
        assert_eq!(scan.dropped, None);
        assert_eq!(scan.frames[5], Frame::Records(ORIGIN, 20, Bytes::from(vec![2; 160])));
    }

    #[test]
    fn what_an_earlier_journal_left_behind_is_not_read() {
        // Commits of the same lengths, so that the earlier ones begin where later ones would.
        let earlier = commits(6, 9, 160);
        let later = commits(7, 3, 160);
        let mut file = earlier.clone();
        file[..later.len()].copy_from_slice(&later);
        let found = scan("J", &Bytes::from(file.clone())).unwrap();
        assert_eq!((found.commits, found.dropped), (3, None));
        // The zeros were not written, and the remains are no part of this journal all the same.
        file[later.len() - END_BYTES..].copy_from_slice(&earlier[later.len() - END_BYTES..]);
        let found = scan("J", &Bytes::from(file.clone())).unwrap();
        assert_eq!((found.commits, found.dropped.unwrap().commits_behind), (3, 0));
        file[..HEADER_BYTES].copy_from_slice(&header(7, 1, true));
        let found = scan("J", &Bytes::from(file)).unwrap();
        assert_eq!((found.commits, found.dropped, found.frames.len()), (0, None, 0));
    }

    #[test]
    fn the_checksum_of_a_part_is_that_of_its_bytes() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        let sums = PartSums::of(&bytes);
        for (start, end) in [(0, 0), (0, 20_000), (5, 4_096), (4_096, 8_192), (4_097, 19_999)] {
            assert_eq!(sums.part(start, end), crc32c::crc32c(&bytes[start..end]), "{start} {end}");
        }
    }

    #[test]
    fn records_that_look_like_headers_are_passed_over_and_the_commit_behind_them_is_found() {
        let mut file = header(7, 1, false).to_vec();
        let begin = file.len();
        // Each looks like a commit of everything behind it.
        for at in 0..4_000_usize {
            let body = ((4_000 - at - 1) * COMMIT_BYTES) as u32;
            file.extend_from_slice(COMMIT_MAGIC);
            file.extend_from_slice(&body.to_le_bytes());
            file.extend_from_slice(&[0; 8]);
            file.extend_from_slice(&7_u64.to_le_bytes());
            file.extend_from_slice(&[0; 8]);
        }
        let last = commits(7, 1, 160);
        file.extend_from_slice(&last[HEADER_BYTES..]);
        let dropped = scan("J", &Bytes::from(file)).unwrap().dropped.unwrap();
        assert_eq!((dropped.at as usize, dropped.commits_behind), (begin, 1));
    }

    #[test]
    fn a_commit_behind_zeros_is_damage() {
        let mut file = sample();
        let second = HEADER_BYTES + (file.len() - HEADER_BYTES - END_BYTES) / 3;
        file[second..second + 2 * END_BYTES].fill(0);
        let dropped = scan("J", &Bytes::from(file)).unwrap().dropped.unwrap();
        assert_eq!((dropped.at as usize, dropped.commits_behind), (second, 1));
    }

    #[test]
    fn a_torn_end_is_dropped_and_said() {
        let file = sample();
        for cut in 0..file.len() - END_BYTES {
            let scan = scan("J", &Bytes::copy_from_slice(&file[..cut])).unwrap();
            assert!(scan.frames.len() < 6);
            assert_eq!(scan.dropped.is_some(), cut != 0 && scan.bytes as usize != cut);
            assert!(scan.dropped.is_none_or(|dropped| dropped.commits_behind == 0));
        }
    }

    #[test]
    fn every_flipped_byte_is_found_and_damage_is_told_from_a_torn_end() {
        let mut file = sample();
        for at in 0..file.len() {
            file[at] ^= 1;
            let found = scan("J", &Bytes::copy_from_slice(&file));
            let found = found.map(|scan| (scan.dropped, scan.commits));
            assert!(!matches!(found, Ok((None, _))), "byte {at}");
            if (HEADER_BYTES..HEADER_BYTES + COMMIT_BYTES).contains(&at) {
                let dropped = found.unwrap().0.unwrap();
                assert_eq!(dropped.commits_behind, 2, "byte {at}");
            }
            file[at] ^= 1;
        }
    }
}
