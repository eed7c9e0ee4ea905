//! ITCH files, in which each message follows a 2-byte big-endian length (Nasdaq BinaryFILE).
//!
//! ```text
//!  +--------+----------------+--------+----------------+-- ... --+-------+
//!  | length | message        | length | message        |         | 00 00 |
//!  +--------+----------------+--------+----------------+-- ... --+-------+
//! ```
//!
//! A length of zero ends a complete session. An excerpt has no end mark, so a file may also end
//! between two messages. A file that was cut between two messages looks like an excerpt.

use crate::codec::{Clock, Codec, Format, ITCH};
use crate::error::{Fault, FeedError};
use crate::event::Event;
use crate::input::Input;
use crate::itch::codec::Header;
use crate::itch::{self, ItchError, Kind, Symbols, View};
use crate::pcap::Skipped;
use crate::source::{Message, Source};
use bytes::Bytes;
use std::io::Read;

/// Bytes of the length in front of a message.
const LENGTH_BYTES: usize = 2;

/// Reads frames with any contents.
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
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        Self { input: Input::new(reader, name), ended: false }
    }

    /// The next frame; `None` at the end mark or at the end of the stream.
    ///
    /// # Errors
    /// When the reader fails, the stream ends inside a frame, or bytes follow the end mark.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FeedError> {
        let Some(length) = self.look_frame()? else { return Ok(None) };
        Ok(Some(self.take_frame(length)))
    }

    /// Length of the next message, which is then buffered whole; `None` at the end.
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
    /// Messages of types that ITCH 5.0 does not have.
    unknown: u64,
}

impl<R: Read> ItchSource<R> {
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        Self { frames: FrameReader::new(reader, name), unknown: 0 }
    }
}

impl<R: Read> Source for ItchSource<R> {
    #[inline]
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        let Some(length) = self.frames.look_frame()? else { return Ok(None) };
        let frame = self.frames.input.look(LENGTH_BYTES + length, "frame")?;
        let message = &frame[LENGTH_BYTES..];
        let header = match View::decode(message) {
            Ok(view) => Header::of(&view),
            Err(error) => {
                let unknown = matches!(error, ItchError::UnknownType { .. });
                let header = Header::of_unknown(message).filter(|_| unknown);
                self.unknown += u64::from(header.is_some());
                header.ok_or_else(|| {
                    self.frames.input.error_ahead(LENGTH_BYTES, Fault::Itch(error))
                })?
            }
        };
        let Frame { index, bytes, .. } = self.frames.take_frame(length);
        let (time_ns, shard_key) = (header.time_ns, header.shard_key());
        Ok(Some(Message { index, time_ns, shard_key, format: ITCH, bytes }))
    }

    fn skipped(&self) -> Skipped {
        Skipped { unknown_types: self.unknown, ..Skipped::default() }
    }
}

/// The codec of ITCH 5.0.
pub(crate) struct ItchCodec;

impl Codec for ItchCodec {
    fn format(&self) -> Format {
        ITCH
    }

    fn word(&self) -> &'static str {
        "itch"
    }

    fn name(&self) -> &'static str {
        "ITCH 5.0"
    }

    fn clock(&self) -> Clock {
        Clock::Midnight { zone: "America/New_York" }
    }

    fn is_file(&self, head: &[u8]) -> bool {
        match head {
            // Only the end mark: a session without messages.
            [0, 0] => true,
            [high, low, letter, ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                Kind::from_letter(*letter).is_some_and(|kind| kind.length() == length)
            }
            _ => false,
        }
    }

    fn open(&self, reader: Box<dyn Read + Send>, name: &str) -> Option<Box<dyn Source + Send>> {
        Some(Box::new(ItchSource::new(reader, name)))
    }

    fn shard_key(&self, message: &[u8]) -> u32 {
        let header = View::decode(message).map(|view| Header::of(&view)).ok();
        header.or_else(|| Header::of_unknown(message)).map_or(0, Header::shard_key)
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        View::decode(message).ok().map(|view| view.kind().name())
    }

    fn events(&self, message: &[u8], symbols: &mut Symbols, each: &mut dyn FnMut(Event)) {
        itch::codec::event(message, symbols).into_iter().for_each(each);
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
