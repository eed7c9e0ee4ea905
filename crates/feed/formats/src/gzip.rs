//! Gzip as files have it: members behind one another, zeros behind the last member, and sometimes
//! other bytes.
//!
//! Tapes and block devices pad with zeros, which are nothing. Other bytes behind the last member
//! are no part of the packed data. gzip(1) leaves them out with a warning, and so does this reader.
//! A file of BGZF has a member for each 64 KiB, so that memory does not grow with members.

use crate::file::Stream;
use flate2::bufread::GzDecoder;
use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first bytes of a member.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Bytes behind the last member that are no padding, counted while the file is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut(Arc<AtomicU64>);

impl LeftOut {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The unpacked bytes of all members.
pub(crate) struct GzipMembers {
    /// The present member; `None` at the end.
    member: Option<GzDecoder<PeekReader>>,
    left_out: LeftOut,
}

impl GzipMembers {
    /// Unpacks a stream that begins with a member. The count is complete when the stream has ended.
    pub fn new(packed: Stream) -> (Self, LeftOut) {
        let left_out = LeftOut::default();
        let reader = PeekReader { stream: packed, buffer: Vec::new(), start: 0 };
        let member = Some(GzDecoder::new(reader));
        (Self { member, left_out: left_out.clone() }, left_out)
    }

    /// The member behind padding; `None` when no member follows.
    fn next_member(
        &self,
        mut reader: PeekReader,
    ) -> std::io::Result<Option<GzDecoder<PeekReader>>> {
        loop {
            let ahead = reader.peek(MAGIC.len())?;
            if ahead.is_empty() {
                return Ok(None);
            }
            let zeros = ahead.iter().take_while(|byte| **byte == 0).count();
            // Half a magic at the end is a member that was cut.
            if zeros == 0 && MAGIC.starts_with(&ahead[..MAGIC.len().min(ahead.len())]) {
                return Ok(Some(GzDecoder::new(reader)));
            }
            if zeros == 0 {
                break;
            }
            reader.consume(zeros);
        }
        loop {
            let count = reader.fill_buf()?.len();
            if count == 0 {
                return Ok(None);
            }
            self.left_out.0.fetch_add(count as u64, Ordering::Relaxed);
            reader.consume(count);
        }
    }
}

impl Read for GzipMembers {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            let reader = self.member.take().map(GzDecoder::into_inner);
            self.member = reader.map_or(Ok(None), |reader| self.next_member(reader))?;
        }
        Ok(0)
    }
}

/// A buffered reader that shows more than one byte without taking them.
struct PeekReader {
    stream: Stream,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    start: usize,
}

impl PeekReader {
    /// At least `count` next bytes; fewer only where the stream ends.
    fn peek(&mut self, count: usize) -> std::io::Result<&[u8]> {
        while self.buffer.len() - self.start < count {
            self.buffer.drain(..self.start);
            self.start = 0;
            let held = self.buffer.len();
            self.buffer.resize(held + CHUNK_BYTES, 0);
            let read = self.stream.read(&mut self.buffer[held..]);
            self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..])
    }
}

impl Read for PeekReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for PeekReader {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.peek(1)
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }
}
