//! The bytes of a chunk on a dataserver's disk.
//!
//! A chunk is one log of appends, each behind a head with its own checksum:
//!
//! ```text
//!  | length u32 | offset u64 | crc32c of body u32 | crc32c of head u32 | body |
//! ```
//!
//! `offset` is the place of the body in the file. The name of the log has the file and the offset
//! of its first append. A crash tears at most the appends whose writes were under way, at the end
//! of the last chunk. A start therefore verifies the heads of all appends of a chunk, and the
//! bodies of those of its last appends whose writes can have been under way. A flipped bit in an
//! older body is found when the body is read.

use bytes::{BufMut as _, Bytes, BytesMut};
use evenfall_core::durable::WRITES_MAX;
use evenfall_core::{Reader, StorageError};

use crate::InodeId;
use crate::config::WINDOW_BYTES_MAX;

/// Bytes in front of a body.
pub const HEAD_BYTES: usize = 20;

/// The head of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendHead {
    /// Bytes of the body.
    pub length: u32,
    /// Where the body begins in the file.
    pub offset: u64,
    /// The checksum of the body.
    pub crc: u32,
}

impl AppendHead {
    /// Reads a head; `None` when it does not match its checksum.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let r = &mut Reader::new(bytes);
        let (length, offset) = (r.u32().ok()?, r.u64().ok()?);
        let (crc, own) = (r.u32().ok()?, r.u32().ok()?);
        let is_whole = crc32c::crc32c(&bytes[..HEAD_BYTES - 4]) == own && length > 0;
        is_whole.then_some(Self { length, offset, crc })
    }

    /// Whether this is the body.
    pub fn is_of(&self, body: &[u8]) -> bool {
        body.len() == self.length as usize && crc32c::crc32c(body) == self.crc
    }
}

/// Puts an append behind others, as it stands in a chunk.
pub fn put(offset: u64, body: &[u8], out: &mut BytesMut) {
    let begin = out.len();
    out.put_u32_le(body.len() as u32);
    out.put_u64_le(offset);
    out.put_u32_le(crc32c::crc32c(body));
    let own = crc32c::crc32c(&out[begin..]);
    out.put_u32_le(own);
    out.put_slice(body);
}

/// An append as it stands in a chunk.
pub fn encode(offset: u64, body: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + body.len());
    put(offset, body, &mut out);
    out.freeze()
}

/// The name of the log of a chunk.
pub fn log_name(file: InodeId, start: u64) -> String {
    format!("f{:016x}-{start:016x}", file.0)
}

/// The file and the first offset of the log of this name; `None` for another log.
pub fn of_name(name: &str) -> Option<(InodeId, u64)> {
    let (file, start) = name.strip_prefix('f')?.split_once('-')?;
    let hex = |text: &str| {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    Some((InodeId(hex(file)?), hex(start)?))
}

/// Where an append begins: in the file, and in the log of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendMark {
    /// The place in the file.
    pub offset: u64,
    /// The place in the log.
    pub position: u64,
}

/// What a start has found in a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkScan {
    /// The place in the file behind the last good append.
    pub end: u64,
    /// Bytes of the log up to the end of the last good append.
    pub good: u64,
    /// Bytes of the log with its torn tail.
    pub bytes: u64,
    /// Where the appends begin.
    pub marks: Vec<AppendMark>,
}

/// Looks at a chunk that begins at `start` and whose log has this many bytes.
///
/// # Errors
/// The errors of `read`, which is given a position in the log and a number of bytes.
pub fn scan(
    file: InodeId,
    start: u64,
    bytes: u64,
    read: ReadLog<'_>,
) -> Result<ChunkScan, StorageError> {
    let log = log_name(file, start);
    let mut read = |at, len| read(&log, at, len);
    let mut scan = ChunkScan { end: start, good: 0, bytes, marks: Vec::new() };
    let mut heads = Vec::new();
    while scan.good + HEAD_BYTES as u64 <= bytes {
        let head = read(scan.good, HEAD_BYTES)?;
        let Some(head) = AppendHead::read(&head) else { break };
        let next = scan.good + HEAD_BYTES as u64 + u64::from(head.length);
        if head.offset != scan.end || next > bytes {
            break;
        }
        scan.marks.push(AppendMark { offset: scan.end, position: scan.good });
        heads.push(head);
        (scan.end, scan.good) = (scan.end + u64::from(head.length), next);
    }
    // One write may have many appends. The appends of all writes under way fit into the window of
    // the file.
    let torn_from = scan.end.saturating_sub(WINDOW_BYTES_MAX as u64);
    let verified_from = scan.marks.partition_point(|mark| mark.offset < torn_from);
    let verified_from = verified_from.min(heads.len().saturating_sub(WRITES_MAX));
    for (at, head) in heads.iter().enumerate().skip(verified_from) {
        let mark = scan.marks[at];
        let body = read(mark.position + HEAD_BYTES as u64, head.length as usize)?;
        if !head.is_of(&body) {
            (scan.end, scan.good) = (mark.offset, mark.position);
            scan.marks.truncate(at);
            break;
        }
    }
    Ok(scan)
}

/// Why appends cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The disk gave an error.
    #[error(transparent)]
    Disk(StorageError),
    /// From this offset of the file on, the bytes are not those that were written.
    #[error("the bytes from {0} on do not match their checksum")]
    At(u64),
}

/// Reads bytes of a log. The arguments are the name of the log, a position in the log, and a number
/// of bytes. The result has fewer bytes at the end of the log.
pub type ReadLog<'a> = &'a mut dyn FnMut(&str, u64, usize) -> Result<Bytes, StorageError>;

/// Reads the appends of a copy one after the other.
#[derive(Clone, Debug)]
pub struct AppendReader {
    file: InodeId,
    /// Where the chunks begin.
    chunks: Vec<u64>,
    /// The log of the chunk that is being read.
    log: String,
    /// Where the append behind the last append that was read begins.
    next: AppendMark,
    /// Where the chunk ends in the file. The last chunk has no end.
    chunk_end: u64,
}

impl AppendReader {
    /// A reader of a file whose chunks begin at these offsets.
    pub fn new(file: InodeId, chunks: Vec<u64>) -> Self {
        let next = AppendMark { offset: 0, position: 0 };
        Self { file, chunks, log: String::new(), next, chunk_end: 0 }
    }

    fn enter(&mut self, offset: u64) {
        let at = self.chunks.partition_point(|start| *start <= offset).saturating_sub(1);
        let start = self.chunks.get(at).copied().unwrap_or(0);
        self.chunk_end = self.chunks.get(at + 1).copied().unwrap_or(u64::MAX);
        self.log = log_name(self.file, start);
        self.next = AppendMark { offset: start, position: 0 };
    }

    /// The append that has the byte at `offset`: its place in the file, its checksum and its bytes.
    ///
    /// # Errors
    /// When the log has no good append there.
    pub fn read(&mut self, offset: u64, read: ReadLog<'_>) -> Result<(u64, u32, Bytes), Damage> {
        if self.log.is_empty() || offset < self.next.offset || offset >= self.chunk_end {
            self.enter(offset);
        }
        loop {
            let AppendMark { offset: at, position } = self.next;
            let head = read(&self.log, position, HEAD_BYTES).map_err(Damage::Disk)?;
            let head = (head.len() == HEAD_BYTES).then(|| AppendHead::read(&head)).flatten();
            let Some(head) = head.filter(|head| head.offset == at) else {
                return Err(Damage::At(at));
            };
            let behind = position + HEAD_BYTES as u64;
            let end = at + u64::from(head.length);
            self.next = AppendMark { offset: end, position: behind + u64::from(head.length) };
            if offset < end {
                let body = read(&self.log, behind, head.length as usize).map_err(Damage::Disk)?;
                return match head.is_of(&body) {
                    true => Ok((at, head.crc, body)),
                    false => Err(Damage::At(at)),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_of(log: &[u8]) -> ChunkScan {
        let mut read = |_: &str, at: u64, len: usize| {
            let from = (at as usize).min(log.len());
            Ok(Bytes::copy_from_slice(&log[from..(from + len).min(log.len())]))
        };
        scan(InodeId(1), 10, log.len() as u64, &mut read).expect("memory reads well")
    }

    #[test]
    fn any_cut_and_any_flip_keeps_the_appends_in_front_of_it() {
        let log = [encode(10, b"ab"), encode(12, b"cde"), encode(15, b"f")].concat();
        assert_eq!(scan_of(&log).end, 16);
        let ends = [(0, 10), (22, 12), (45, 15), (66, 16)];
        let end_at = |at: usize| ends.iter().rfind(|(begin, _)| *begin <= at).map(|(_, end)| *end);
        for at in 0..log.len() {
            assert_eq!(Some(scan_of(&log[..at]).end), end_at(at), "cut at {at}");
            let mut flipped = log.clone();
            flipped[at] ^= 4;
            assert_eq!(Some(scan_of(&flipped).end), end_at(at), "flip at {at}");
        }
    }

    #[test]
    fn names_of_logs_are_read_back_and_others_are_refused() {
        let name = log_name(InodeId(7), 1 << 40);
        assert_eq!(of_name(&name), Some((InodeId(7), 1 << 40)));
        for other in ["data", "f7-1", "fg000000000000000-0000000000000000", "f-"] {
            assert_eq!(of_name(other), None, "{other}");
        }
    }
}
