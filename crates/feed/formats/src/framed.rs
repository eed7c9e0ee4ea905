//! ITCH files, in which each message follows a 2-byte big-endian length (Nasdaq BinaryFILE).
//!
//! ```text
//!  +--------+----------------+--------+----------------+-- ... --+-------+
//!  | length | message        | length | message        |         | 00 00 |
//!  +--------+----------------+--------+----------------+-- ... --+-------+
//! ```
//!
//! A length of zero ends a complete session. An excerpt has no end mark, so a file may also end
//! between two messages. A file that was cut between two messages looks like an excerpt. Zeros
//! behind the end mark are padding. Another session may follow the end mark, when files were put
//! behind each other. Other bytes behind the end mark are left out, and a note says so.
//!
//! The R package RITCH writes a length of zero in front of every message. A file that begins so is
//! read by the lengths of the types.

use crate::codec::{Codec, Format, ITCH, TimeOrigin};
use crate::columns::{ColumnSink, MessageColumn};
use crate::error::{FeedError, FeedFault};
use crate::event::{EVENT_COLUMNS, Event};
use crate::input::Input;
use crate::itch::codec::Header;
use crate::itch::{self, ItchError, ItchKind, Symbols, View};
use crate::pcap::Skipped;
use crate::source::{DayWatch, FeedMessage, MessageSource};
use bytes::Bytes;
use std::io::Read;

/// Bytes of the length in front of a message.
const LENGTH_BYTES: usize = 2;

/// Where the length of a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LengthPlace {
    /// In front of the message.
    Stated,
    /// Nowhere: the stated lengths are zero, and the type has a length.
    OfType,
}

/// Reads frames with any contents.
#[derive(Debug)]
pub struct FramedMessageReader<R> {
    input: Input<R>,
    /// Known from the first frame on.
    lengths: Option<LengthPlace>,
    ended: bool,
    /// End marks that another session followed.
    further_sessions: u64,
    /// Bytes behind the last end mark that are no padding.
    left_out: u64,
}

/// One frame and where its message starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramedMessage {
    /// Frames before this one.
    pub index: u64,
    /// Bytes in the stream before the message itself.
    pub offset: u64,
    /// The message.
    pub bytes: Bytes,
}

impl<R: Read> FramedMessageReader<R> {
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        let input = Input::new(reader, name);
        Self { input, lengths: None, ended: false, further_sessions: 0, left_out: 0 }
    }

    /// The next frame; `None` at the last end mark or at the end of the stream.
    ///
    /// # Errors
    /// When the reader fails, the stream ends inside a frame, or zeros stand between frames.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<FramedMessage>, FeedError> {
        let Some(length) = self.look_frame()? else { return Ok(None) };
        Ok(Some(self.take_frame(length)))
    }

    /// Length of the next message, which is then buffered whole; `None` at the end.
    #[inline]
    fn look_frame(&mut self) -> Result<Option<usize>, FeedError> {
        loop {
            if self.ended || self.input.at_end()? {
                return Ok(None);
            }
            let head = self.input.look(LENGTH_BYTES, "frame length")?;
            let stated = usize::from(u16::from_be_bytes([head[0], head[1]]));
            let length = match self.lengths {
                Some(LengthPlace::Stated) => stated,
                _ => self.length_of_type(stated)?,
            };
            if length > 0 {
                self.input.look(LENGTH_BYTES + length, "frame")?;
                return Ok(Some(length));
            }
            self.end_session()?;
        }
    }

    /// The length of a frame of a file in which it may stand nowhere; 0 for an end mark.
    #[cold]
    fn length_of_type(&mut self, stated: usize) -> Result<usize, FeedError> {
        let ahead = self.input.peek(HEAD_BYTES);
        let lengths = *self.lengths.get_or_insert(match are_zero_lengths(ahead) {
            true => LengthPlace::OfType,
            false => LengthPlace::Stated,
        });
        let letter = ahead.get(LENGTH_BYTES).copied();
        match (lengths, letter) {
            (LengthPlace::Stated, _) => Ok(stated),
            (LengthPlace::OfType, None | Some(0)) if stated == 0 => Ok(0),
            (LengthPlace::OfType, Some(letter)) => {
                let kind = ItchKind::from_letter(letter).filter(|_| stated == 0);
                kind.map(ItchKind::length).ok_or_else(|| {
                    let found = format!(
                        "length {stated} and type '{}' in a file whose lengths are zero",
                        letter.escape_ascii()
                    );
                    self.input.error(FeedFault::Malformed { what: "frame", found })
                })
            }
            (LengthPlace::OfType, None) => Err(self.input.short("frame", stated as u64)),
        }
    }

    #[inline]
    fn take_frame(&mut self, length: usize) -> FramedMessage {
        let mut bytes = self.input.take(LENGTH_BYTES + length);
        bytes::Buf::advance(&mut bytes, LENGTH_BYTES);
        let offset = self.input.offset() - length as u64;
        FramedMessage { index: self.input.next_index(), offset, bytes }
    }

    /// Reads an end mark. The session ends here for good, or another session follows.
    fn end_session(&mut self) -> Result<(), FeedError> {
        self.input.take(LENGTH_BYTES);
        if begins_with_message(self.input.peek(LENGTH_BYTES + 1)) {
            self.further_sessions += 1;
            return Ok(());
        }
        let mut zeros = 0_u64;
        while let &[0, next, ..] = self.input.peek(LENGTH_BYTES + 1) {
            // The high byte of a length is a zero too, so that a zero is padding only when no
            // message begins with it.
            if next != 0 && begins_with_message(self.input.peek(LENGTH_BYTES + 1)) {
                let found = format!("{zeros} zero bytes in front of further messages");
                return Err(self
                    .input
                    .error(FeedFault::Malformed { what: "end of session", found }));
            }
            self.input.take(1);
            zeros += 1;
        }
        self.ended = true;
        let mut is_padding = true;
        while !self.input.at_end()? {
            let ahead = self.input.peek(CHUNK_BYTES);
            is_padding &= ahead.iter().all(|byte| *byte == 0);
            let count = ahead.len();
            self.left_out += if is_padding { 0 } else { count as u64 };
            self.input.take(count);
        }
        Ok(())
    }

    /// What a person should know of a file that was read to its end.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.lengths == Some(LengthPlace::OfType) {
            notes.push(
                "the lengths in front of the messages are zero, as the R package RITCH writes \
                 them: each message has the length of its type"
                    .to_owned(),
            );
        }
        if self.further_sessions > 0 {
            let count = self.further_sessions + 1;
            notes.push(format!("the file holds {count} sessions, one behind the other"));
        }
        if self.left_out > 0 {
            let count = self.left_out;
            notes.push(format!("{count} bytes behind the end of the session are not in the feed"));
        }
        notes
    }
}

/// Bytes that are dropped at a time behind the end of a session.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes by which zero lengths are recognised: two messages of the greatest length and three
/// lengths.
const HEAD_BYTES: usize = 2 * itch::MESSAGE_BYTES_MAX + 3 * LENGTH_BYTES;

/// Whether a frame with these first bytes holds a message of ITCH 5.0.
fn begins_with_message(head: &[u8]) -> bool {
    let [high, low, letter, ..] = head else { return false };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    ItchKind::from_letter(*letter).is_some_and(|kind| kind.length() == length)
}

/// Whether a file begins with messages behind lengths of zero, each as long as its type says.
fn are_zero_lengths(head: &[u8]) -> bool {
    let mut rest = head;
    let mut messages = 0;
    while let [0, 0, letter, ..] = rest {
        let Some(kind) = ItchKind::from_letter(*letter) else { break };
        messages += 1;
        rest = rest.get(LENGTH_BYTES + kind.length()..).unwrap_or_default();
    }
    // The messages reach to the end of the bytes, or to bytes that begin another zero length.
    messages > 0 && (rest.is_empty() || rest.iter().take(LENGTH_BYTES).all(|byte| *byte == 0))
}

/// Whether the first frames hold messages of ITCH 5.0. Types of later versions count when a known
/// type is among the frames and their headers make sense.
fn are_messages(head: &[u8]) -> bool {
    let mut rest = head;
    let mut is_known = false;
    while let [high, low, message @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let is_whole = message.len() >= length;
        let message = &message[..length.min(message.len())];
        is_known |= begins_with_message(rest);
        let is_unknown = is_whole && Header::of_unknown(message).is_some();
        if is_known || !is_unknown {
            return is_known;
        }
        rest = &rest[LENGTH_BYTES + length..];
    }
    false
}

/// A framed file of ITCH 5.0 messages as a [`MessageSource`].
#[derive(Debug)]
pub struct ItchSource<R> {
    frames: FramedMessageReader<R>,
    days: DayWatch,
    /// Messages of types that ITCH 5.0 does not have.
    unknown: u64,
}

impl<R: Read> ItchSource<R> {
    /// Reads from `reader`. Errors call it `name`.
    pub fn new(reader: R, name: &str) -> Self {
        Self {
            frames: FramedMessageReader::new(reader, name),
            days: DayWatch::default(),
            unknown: 0,
        }
    }
}

impl<R: Read> MessageSource for ItchSource<R> {
    #[inline]
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
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
                    self.frames.input.error_ahead(LENGTH_BYTES, FeedFault::Itch(error))
                })?
            }
        };
        let (time_ns, shard_key) = (header.time_ns, header.shard_key());
        self.days.check(time_ns).map_err(|fault| self.frames.input.error(fault))?;
        let FramedMessage { index, bytes, .. } = self.frames.take_frame(length);
        Ok(Some(FeedMessage { index, time_ns, shard_key, format: ITCH, bytes }))
    }

    fn skipped(&self) -> Skipped {
        Skipped { unknown_types: self.unknown, ..Skipped::default() }
    }

    fn notes(&self) -> Vec<String> {
        self.frames.notes()
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

    fn clock(&self) -> TimeOrigin {
        TimeOrigin::Midnight { zone: "America/New_York" }
    }

    fn is_file(&self, head: &[u8]) -> bool {
        // Only the end mark: a session without messages.
        head == [0, 0] || are_messages(head) || are_zero_lengths(head)
    }

    fn open(
        &self,
        reader: Box<dyn Read + Send>,
        name: &str,
    ) -> Option<Box<dyn MessageSource + Send>> {
        Some(Box::new(ItchSource::new(reader, name)))
    }

    fn own_time_ns(&self, message: &[u8]) -> Option<u64> {
        let header = View::decode(message).map(|view| Header::of(&view)).ok();
        header.or_else(|| Header::of_unknown(message)).map(|header| header.time_ns)
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

    fn columns(&self) -> &'static [MessageColumn] {
        EVENT_COLUMNS
    }

    fn put_rows(&self, message: &[u8], symbols: &mut Symbols, sink: &mut dyn ColumnSink) {
        self.events(message, symbols, &mut |event| event.put_row(sink));
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
