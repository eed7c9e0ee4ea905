//! ITCH files: each message behind a 2-byte big-endian length (Nasdaq BinaryFILE).
//!
//! ```text
//!  +--------+----------------+--------+----------------+-- ... --+-------+
//!  | length | message        | length | message        |         | 00 00 |
//!  +--------+----------------+--------+----------------+-- ... --+-------+
//! ```
//!
//! A length of zero ends a complete session; excerpts have none, so a file may also end between
//! two messages. A file cut exactly there cannot be told from an excerpt.

use crate::error::{Fault, FeedError};
use crate::input::Input;
use crate::itch::View;
use crate::source::{Message, Source};
use bytes::Bytes;
use std::io::Read;

/// Bytes of the length in front of a message.
const LENGTH_BYTES: usize = 2;

/// Reads frames, whatever they hold.
#[derive(Debug)]
pub struct FrameReader<R> {
    input: Input<R>,
    ended: bool,
}

/// One frame and where its message starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Frames before this one.
    pub index: u64,
    /// Bytes in the stream before the message itself.
    pub offset: u64,
    /// The message.
    pub bytes: Bytes,
}

impl<R: Read> FrameReader<R> {
    /// Reads `reader`; `name` is what errors call it.
    pub fn new(reader: R, name: &str) -> Self {
        Self { input: Input::new(reader, name), ended: false }
    }

    /// The next frame; `None` at the end mark or at the end of the stream.
    ///
    /// # Errors
    /// A reader that fails, a stream that ends inside a frame, bytes behind the end mark.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FeedError> {
        let Some(length) = self.look_frame()? else { return Ok(None) };
        Ok(Some(self.take_frame(length)))
    }

    /// Bytes of the next message, which is then buffered whole; `None` at the end.
    #[inline]
    fn look_frame(&mut self) -> Result<Option<usize>, FeedError> {
        if self.ended || self.input.at_end()? {
            return self.check_end();
        }
        let head = self.input.look(LENGTH_BYTES, "frame length")?;
        let length = usize::from(u16::from_be_bytes([head[0], head[1]]));
        if length == 0 {
            self.input.take(LENGTH_BYTES);
            self.ended = true;
            return self.check_end();
        }
        self.input.look(LENGTH_BYTES + length, "frame")?;
        Ok(Some(length))
    }

    #[inline]
    fn take_frame(&mut self, length: usize) -> Frame {
        let mut bytes = self.input.take(LENGTH_BYTES + length);
        bytes::Buf::advance(&mut bytes, LENGTH_BYTES);
        let offset = self.input.offset() - length as u64;
        Frame { index: self.input.next_index(), offset, bytes }
    }

    fn check_end(&mut self) -> Result<Option<usize>, FeedError> {
        if self.input.at_end()? {
            return Ok(None);
        }
        let found = "bytes behind the zero length that ends a session".to_owned();
        Err(self.input.error(Fault::Malformed { what: "end of session", found }))
    }
}

/// A framed file of ITCH 5.0 messages as a [`Source`].
#[derive(Debug)]
pub struct ItchSource<R> {
    frames: FrameReader<R>,
}

impl<R: Read> ItchSource<R> {
    /// Reads `reader`; `name` is what errors call it.
    pub fn new(reader: R, name: &str) -> Self {
        Self { frames: FrameReader::new(reader, name) }
    }
}

impl<R: Read> Source for ItchSource<R> {
    #[inline]
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        let Some(length) = self.frames.look_frame()? else { return Ok(None) };
        let frame = self.frames.input.look(LENGTH_BYTES + length, "frame")?;
        let header = View::decode(&frame[LENGTH_BYTES..])
            .map(|view| (view.timestamp_ns(), u32::from(view.stock_locate())));
        let (time_ns, shard_key) = header
            .map_err(|error| self.frames.input.error_ahead(LENGTH_BYTES, Fault::Itch(error)))?;
        let Frame { index, bytes, .. } = self.frames.take_frame(length);
        Ok(Some(Message { index, time_ns, shard_key, bytes }))
    }
}

/// Appends one frame to `out`.
///
/// # Panics
/// When the message is empty, which would read as the end mark, or longer than 65,535 bytes.
pub fn write_frame(out: &mut Vec<u8>, message: &[u8]) {
    assert!(!message.is_empty(), "an empty frame means the end of the session");
    let length = u16::try_from(message.len()).expect("a frame holds at most 65,535 bytes");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
}

/// Appends the mark that ends a complete session.
pub fn write_end(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}
