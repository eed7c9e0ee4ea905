//! Opens files of all formats. The content decides the format.

use crate::codec::{self, Codec, Format};
use crate::dates::Date;
use crate::error::{Fault, FeedError};
use crate::pcap::{self, PcapSource, Skipped};
use crate::source::{Message, Source};
use crate::zip;
use flate2::read::MultiGzDecoder;
use std::io::{Cursor, Read, Seek, SeekFrom};

/// The shape of a file, as [`open`] recognises it by the first bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Shape {
    /// Messages of one format.
    Plain(&'static dyn Codec),
    /// A capture, classic pcap or pcapng. The format of its datagrams is found later.
    Capture,
    /// A zip archive with LOBSTER message CSV in it.
    Zip,
    /// Gzip with any other shape inside.
    Gzip,
}

impl Shape {
    /// The name of the shape for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(codec) => codec.name(),
            Self::Capture => "capture (pcap or pcapng)",
            Self::Zip => "zip with LOBSTER message CSV",
            Self::Gzip => "gzip",
        }
    }
}

/// First bytes that are looked at, enough for the longest line or header by which a format is
/// recognised.
const HEAD_BYTES: usize = 512;

/// The shape of a source with this beginning.
pub fn recognise(head: &[u8]) -> Option<Shape> {
    match head {
        [0x1f, 0x8b, ..] => Some(Shape::Gzip),
        [b'P', b'K', 3, 4, ..] => Some(Shape::Zip),
        _ if pcap::is_capture(head) => Some(Shape::Capture),
        _ => codec::of_file(head).map(Shape::Plain),
    }
}

/// A source of a feed. Only a zip is read from its end, so a pipe, which cannot seek, may hold any
/// other shape.
pub trait ReadSeek: Read + Seek + Send {}

impl<R: Read + Seek + Send> ReadSeek for R {}

/// A reader of any feed.
pub type Reader = Box<dyn ReadSeek>;

type Stream = Box<dyn Read + Send>;

/// Opens a feed of any known format. The content decides the format, not the name.
///
/// Errors call the source `name`. The reader may be unbuffered. The source is read in pieces of 64
/// KiB, never as a whole.
///
/// # Errors
/// A source that is empty, fails to be read, or has no known format. [`Source::next_message`]
/// reports errors after the first bytes.
///
/// ```
/// use evenfall_feed_formats::{Source, codec, framed, itch, open};
///
/// let mut file = Vec::new();
/// let event = itch::SystemEvent { event_code: itch::Code(b'O'), ..Default::default() };
/// framed::write_frame(&mut file, &event.encode());
/// let mut source = open(Box::new(std::io::Cursor::new(file)), "example").unwrap();
/// let message = source.next_message().unwrap().unwrap();
/// assert_eq!(message.format, codec::ITCH);
/// assert_eq!(itch::View::decode(&message.bytes).unwrap().to_string(), "S,0,0,0.000000000,O");
/// assert!(source.next_message().unwrap().is_none());
/// ```
pub fn open(reader: Reader, name: &str) -> Result<Box<dyn Source + Send>, FeedError> {
    open_as(None, reader, name)
}

/// Opens a feed as this format when the user names one, else as [`open`] does.
///
/// # Errors
/// As for [`open`]. Also when the format does not come in files of this shape.
pub fn open_as(
    format: Option<Format>,
    mut reader: Reader,
    name: &str,
) -> Result<Box<dyn Source + Send>, FeedError> {
    let head = Head::read(&mut reader, name)?;
    match head.shape {
        Some(Shape::Zip) => {
            reader.seek(SeekFrom::Start(0)).map_err(|error| {
                let detail =
                    format!("a zip is read from its end, so give a file and no pipe: {error}");
                at_start(name, Fault::Io { kind: error.kind(), detail })
            })?;
            Ok(Box::new(Fused::new(zip::open(reader, name)?)))
        }
        Some(Shape::Gzip) => {
            let mut unpacked: Stream = Box::new(MultiGzDecoder::new(head.before(reader)));
            let inner = Head::read(&mut unpacked, name)?;
            if let Some(Shape::Gzip | Shape::Zip) = inner.shape {
                let found = "gzip or zip inside gzip".to_owned();
                return Err(at_start(name, Fault::Malformed { what: "compression", found }));
            }
            inner.open(format, unpacked, name)
        }
        _ => head.open(format, Box::new(reader), name),
    }
}

fn at_start(name: &str, fault: Fault) -> FeedError {
    FeedError { name: name.to_owned(), offset: 0, index: 0, fault }
}

/// The first bytes of a source.
struct Head {
    bytes: Vec<u8>,
    shape: Option<Shape>,
    failure: Option<std::io::Error>,
}

impl Head {
    fn read(reader: &mut impl Read, name: &str) -> Result<Self, FeedError> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        // A damaged stream may hold whole messages before the damage. The format's own reader gives
        // these messages, and meets the error at its place.
        let failure = reader.take(HEAD_BYTES as u64).read_to_end(&mut bytes).err();
        match failure {
            Some(error) if bytes.is_empty() => {
                let fault = Fault::Io { kind: error.kind(), detail: error.to_string() };
                Err(at_start(name, fault))
            }
            None if bytes.is_empty() => Err(at_start(name, Fault::Empty)),
            failure => Ok(Self { shape: recognise(&bytes), bytes, failure }),
        }
    }

    /// The first bytes, followed by the rest.
    fn before(self, rest: impl Read + Send + 'static) -> Stream {
        let rest: Stream = match self.failure {
            Some(error) => Box::new(Failing(Some(error))),
            None => Box::new(rest),
        };
        Box::new(Cursor::new(self.bytes).chain(rest))
    }

    fn open(
        self,
        format: Option<Format>,
        rest: Stream,
        name: &str,
    ) -> Result<Box<dyn Source + Send>, FeedError> {
        if let Some(Shape::Capture) = self.shape {
            let capture = PcapSource::with_format(self.before(rest), name, format);
            return Ok(Box::new(Fused::new(capture)));
        }
        let told = match self.shape {
            Some(Shape::Plain(codec)) => Some(codec),
            _ => None,
        };
        let codec = format.map_or(told, codec::of);
        let mut head = self.bytes.clone();
        head.truncate(16);
        let source = codec.and_then(|codec| codec.open(self.before(rest), name));
        let source = source.ok_or_else(|| at_start(name, Fault::Unrecognised { head }))?;
        Ok(Box::new(Fused::new(source)))
    }
}

/// A reader that gives an error that was met earlier.
struct Failing(Option<std::io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(self.0.take().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()))
    }
}

/// A reader that repeats the end or the error once it was met, because a failed reader may not fail
/// the same way twice.
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

    fn date(&self) -> Option<Date> {
        self.source.date()
    }

    fn copies(&self) -> Option<crate::arbiter::Counts> {
        self.source.copies()
    }
}
