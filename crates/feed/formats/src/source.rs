//! Where messages come from: one trait, and one door that finds out what a file is.

use crate::error::{Fault, FeedError};
use crate::framed::ItchSource;
use crate::itch::{Kind, View};
use crate::lobster::{self, LobsterSource};
use crate::pcap::{self, PcapSource, Skipped};
use crate::zip;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use std::io::{Cursor, Read};

/// One message of a feed, as it goes to the receivers: bytes that nobody parses again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Messages of the source before this one.
    pub index: u64,
    /// The message's own time in nanoseconds: since midnight for ITCH and LOBSTER, since 1970
    /// for captures. Only differences mean anything to a replay.
    pub time_ns: u64,
    /// What the message must stay in order with: the stock locate of ITCH, a hash of the
    /// channel for captures, 0 for a file of one symbol.
    pub shard_key: u32,
    /// The message, without framing. It shares a piece of about 64 KiB with its neighbours, which
    /// stays in memory as long as one of them does.
    pub bytes: Bytes,
}

impl Message {
    /// A message that came by itself, not out of a file: its key is the stock locate if it is
    /// ITCH, as in files, else 0.
    pub fn live(index: u64, time_ns: u64, bytes: Bytes) -> Self {
        let shard_key = View::decode(&bytes).map_or(0, |view| view.stock_locate().into());
        Self { index, time_ns, shard_key, bytes }
    }
}

/// Something that gives messages in order.
pub trait Source {
    /// The next message; `None` once the source is complete.
    ///
    /// # Errors
    /// The first thing that cannot be read. All messages before it have been given, so
    /// [`FeedError::index`] is how many that were; asking again gives the error again.
    fn next_message(&mut self) -> Result<Option<Message>, FeedError>;

    /// What was passed over so far because it is no message of the feed. Nothing is passed over
    /// except in captures.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        (**self).next_message()
    }

    fn skipped(&self) -> Skipped {
        (**self).skipped()
    }
}

/// A format that [`open`] tells by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ITCH 5.0 behind 2-byte lengths.
    Itch,
    /// A capture, classic pcap or pcapng.
    Capture,
    /// LOBSTER message CSV.
    Lobster,
    /// A zip archive with a LOBSTER message CSV in it.
    Zip,
    /// Gzip of any other one.
    Gzip,
}

/// First bytes that are looked at: more than the longest line or header that tells a format.
const HEAD_BYTES: usize = 512;

/// The format that these first bytes of a source are of.
pub fn recognise(head: &[u8]) -> Option<Format> {
    match head {
        [0x1f, 0x8b, ..] => Some(Format::Gzip),
        [b'P', b'K', 3, 4, ..] => Some(Format::Zip),
        _ if pcap::is_capture(head) => Some(Format::Capture),
        // The end mark alone: a session without messages.
        [0, 0] => Some(Format::Itch),
        [high, low, letter, ..] if is_itch_length([*high, *low], *letter) => Some(Format::Itch),
        _ if lobster::is_message_csv(head) => Some(Format::Lobster),
        _ => None,
    }
}

fn is_itch_length(length: [u8; 2], letter: u8) -> bool {
    let length = usize::from(u16::from_be_bytes(length));
    Kind::from_letter(letter).is_some_and(|kind| kind.length() == length)
}

type Reader = Box<dyn Read + Send>;

/// Opens a feed of any format read here; the content says which, not the name.
///
/// `name` is what errors call the source. The reader may be unbuffered; it is read in pieces of
/// 64 KiB, never as a whole.
///
/// # Errors
/// A source that is empty, fails to be read, or is of no format known here. Everything behind
/// the first bytes is judged by [`Source::next_message`].
///
/// ```
/// use evenfall_feed_formats::{Source, framed, itch, open};
///
/// let mut file = Vec::new();
/// let event = itch::SystemEvent { event_code: itch::Code(b'O'), ..Default::default() };
/// framed::write_frame(&mut file, &event.encode());
/// let mut source = open(Box::new(std::io::Cursor::new(file)), "example").unwrap();
/// let message = source.next_message().unwrap().unwrap();
/// assert_eq!(itch::View::decode(&message.bytes).unwrap().to_string(), "S,0,0,0.000000000,O");
/// assert!(source.next_message().unwrap().is_none());
/// ```
pub fn open(reader: Reader, name: &str) -> Result<Box<dyn Source + Send>, FeedError> {
    let (format, reader) = sniff(reader, name)?;
    if format != Format::Gzip {
        return open_as(format, reader, name);
    }
    let (inner, reader) = sniff(Box::new(MultiGzDecoder::new(reader)), name)?;
    if inner == Format::Gzip {
        let found = "gzip inside gzip".to_owned();
        return Err(at_start(name, Fault::Malformed { what: "compression", found }));
    }
    open_as(inner, reader, name)
}

/// Opens a feed of a known format, [`Format::Gzip`] meaning gzip of whatever is inside.
///
/// # Errors
/// As [`open`].
pub fn open_as(
    format: Format,
    reader: Reader,
    name: &str,
) -> Result<Box<dyn Source + Send>, FeedError> {
    Ok(match format {
        Format::Itch => Box::new(Fused::new(ItchSource::new(reader, name))),
        Format::Capture => Box::new(Fused::new(PcapSource::new(reader, name))),
        Format::Lobster => Box::new(Fused::new(LobsterSource::new(reader, name))),
        Format::Zip => {
            let entry = zip::Entry::find_messages(reader, name)?;
            Box::new(Fused::new(LobsterSource::new(entry, name)))
        }
        Format::Gzip => return open(Box::new(MultiGzDecoder::new(reader)), name),
    })
}

fn at_start(name: &str, fault: Fault) -> FeedError {
    FeedError { name: name.to_owned(), offset: 0, index: 0, fault }
}

/// Reads the first bytes, names the format, and puts the bytes back in front.
fn sniff(mut reader: Reader, name: &str) -> Result<(Format, Reader), FeedError> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let mut failure = None;
    if let Err(error) = reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head) {
        // A damaged stream may still hold whole messages before the damage: let the format's own
        // reader give them and meet the error at its place.
        failure = Some(error);
    }
    if let Some(error) = failure.take_if(|_| head.is_empty()) {
        let fault = Fault::Io { kind: error.kind(), detail: error.to_string() };
        return Err(at_start(name, fault));
    }
    if head.is_empty() {
        return Err(at_start(name, Fault::Empty));
    }
    let Some(format) = recognise(&head) else {
        head.truncate(16);
        return Err(at_start(name, Fault::Unrecognised { head }));
    };
    let rest: Reader = match failure {
        Some(error) => Box::new(Failing(Some(error))),
        None => reader,
    };
    Ok((format, Box::new(Cursor::new(head).chain(rest))))
}

/// Gives an error that was met earlier.
struct Failing(Option<std::io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(self.0.take().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Keeps giving the end, or the error, once it was met: a reader that failed may not fail the
/// same way twice.
#[derive(Debug)]
struct Fused<S> {
    source: S,
    end: Option<Result<(), FeedError>>,
}

impl<S> Fused<S> {
    fn new(source: S) -> Self {
        Self { source, end: None }
    }
}

impl<S: Source> Source for Fused<S> {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        match &self.end {
            Some(Ok(())) => return Ok(None),
            Some(Err(error)) => return Err(error.clone()),
            None => {}
        }
        let next = self.source.next_message();
        match &next {
            Ok(Some(_)) => {}
            Ok(None) => self.end = Some(Ok(())),
            Err(error) => self.end = Some(Err(error.clone())),
        }
        next
    }

    fn skipped(&self) -> Skipped {
        self.source.skipped()
    }
}
