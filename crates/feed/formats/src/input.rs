//! Bytes of a reader, which can be looked at before they are taken.
//!
//! Every format is read in three steps: look at a header, learn the length, take that many bytes as
//! one shared slice. Bytes that were only looked at stay. An error therefore names the place where
//! the bad part begins, and asking again gives the same error.

use crate::error::{FeedError, FeedFault};
use bytes::{Bytes, BytesMut};
use std::io::{ErrorKind, Read};

/// Bytes that the reader is asked for at a time. The size makes the cost of a read per message
/// small, and limits the memory that one kept message pins.
const CHUNK_BYTES: usize = 64 * 1024;

/// A reader with a place in it.
#[derive(Debug)]
pub(crate) struct Input<R> {
    reader: R,
    name: String,
    buffer: BytesMut,
    offset: u64,
    index: u64,
    failure: Option<FeedFault>,
}

impl<R: Read> Input<R> {
    pub fn new(reader: R, name: &str) -> Self {
        let buffer = BytesMut::new();
        Self { reader, name: name.to_owned(), buffer, offset: 0, index: 0, failure: None }
    }

    /// Bytes taken so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The index of the next message, counting it as handed out.
    pub fn next_index(&mut self) -> u64 {
        let index = self.index;
        self.index += 1;
        index
    }

    /// An error at the present place.
    pub fn error(&self, fault: FeedFault) -> FeedError {
        self.error_ahead(0, fault)
    }

    /// An error this many bytes ahead of the present place.
    pub fn error_ahead(&self, ahead: usize, fault: FeedFault) -> FeedError {
        let offset = self.offset + ahead as u64;
        FeedError { name: self.name.clone(), offset, index: self.index, fault }
    }

    /// Up to `count` next bytes. Fewer only where the source ends or fails.
    ///
    /// A failure is kept until the bytes before it are used up, so that every whole message before
    /// it is given. Memory grows with the bytes that the reader gives, not with the size that a
    /// header claims.
    #[inline]
    pub fn peek(&mut self, count: usize) -> &[u8] {
        if self.buffer.len() < count {
            self.fill(count);
        }
        &self.buffer[..count.min(self.buffer.len())]
    }

    fn fill(&mut self, count: usize) {
        while self.buffer.len() < count && self.failure.is_none() {
            let held = self.buffer.len();
            self.buffer.resize(held + CHUNK_BYTES, 0);
            let read = self.reader.read(&mut self.buffer[held..]);
            self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let detail = error.to_string();
                    self.failure = Some(FeedFault::Io { kind: error.kind(), detail });
                }
            }
        }
    }

    /// Whether the reader has failed behind the bytes that are held.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Exactly `count` next bytes, still there afterwards.
    ///
    /// # Errors
    /// The reader's failure, or that the source ends inside `what`.
    #[inline]
    pub fn look(&mut self, count: usize, what: &'static str) -> Result<&[u8], FeedError> {
        let found = self.peek(count).len();
        if found < count {
            return Err(self.short(what, count as u64));
        }
        Ok(&self.buffer[..count])
    }

    /// The error of a source that has fewer bytes than `what` needs.
    pub fn short(&self, what: &'static str, needed: u64) -> FeedError {
        let found = self.buffer.len() as u64;
        let cut = FeedFault::Truncated { what, needed, found };
        self.error(self.failure.clone().unwrap_or(cut))
    }

    /// Takes bytes that were looked at.
    ///
    /// # Panics
    /// When fewer bytes are buffered.
    #[inline]
    pub fn take(&mut self, count: usize) -> Bytes {
        self.offset += count as u64;
        self.buffer.split_to(count).freeze()
    }

    /// Whether nothing is left.
    ///
    /// # Errors
    /// The reader's failure, once all bytes before it are taken.
    #[inline]
    pub fn at_end(&mut self) -> Result<bool, FeedError> {
        if !self.peek(1).is_empty() {
            return Ok(false);
        }
        match &self.failure {
            Some(fault) => Err(self.error(fault.clone())),
            None => Ok(true),
        }
    }
}
