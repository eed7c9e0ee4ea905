//! Opens files of all formats. The content decides the format.

use crate::arbiter::CopyCounts;
use crate::capture::{CaptureOptions, CopyChoice, PcapSource};
use crate::codec::{self, Codec, Format};
use crate::dates::Date;
use crate::error::{FeedError, FeedFault};
use crate::foreign;
use crate::gzip::{GzipMembers, LeftOut};
use crate::itch::Stock;
use crate::pcap::{self, Skipped};
use crate::source::{FeedMessage, MessageSource, PacketOrigin};
use crate::zip::{self, ZipContents};
use std::io::{Cursor, Read, Seek, SeekFrom};

/// The shape of a file, as [`open`] recognises it by the first bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum FileShape {
    /// Messages of one format.
    Plain(&'static dyn Codec),
    /// A capture, classic pcap or pcapng. The format of its datagrams is found later.
    Capture,
    /// A zip archive with the message files of LOBSTER, or with a single file of any other shape.
    Zip,
    /// Gzip with any other shape inside.
    Gzip,
}

impl FileShape {
    /// The name of the shape for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(codec) => codec.name(),
            Self::Capture => "capture (pcap or pcapng)",
            Self::Zip => "zip",
            Self::Gzip => "gzip",
        }
    }
}

/// An opened feed.
pub struct FeedFile {
    /// The shape that the first bytes have; `None` where only the user names the format.
    pub shape: Option<FileShape>,
    /// The messages.
    pub source: Box<dyn MessageSource + Send>,
}

/// First bytes that are looked at, enough for the longest line or header by which a format is
/// recognised.
const HEAD_BYTES: usize = 512;

/// Wrappings around a feed that are taken off, such as gzip in a zip. More wrappings than two are
/// no feed file but an attempt to unpack without end.
const WRAPPINGS_MAX: u8 = 2;

/// The shape of a source with this beginning.
pub fn recognise(head: &[u8]) -> Option<FileShape> {
    match head {
        [0x1f, 0x8b, ..] => Some(FileShape::Gzip),
        [b'P', b'K', 3, 4, ..] => Some(FileShape::Zip),
        _ if pcap::is_capture(head) => Some(FileShape::Capture),
        _ => codec::of_file(head).map(FileShape::Plain),
    }
}

/// A source of a feed. Only a zip is read from its end, so a pipe, which cannot seek, may hold any
/// other shape.
pub trait ReadSeek: Read + Seek + Send {}

impl<R: Read + Seek + Send> ReadSeek for R {}

/// A reader of any feed.
pub type FeedReader = Box<dyn ReadSeek>;

/// Bytes that are read once, from the start to the end.
pub(crate) type Stream = Box<dyn Read + Send>;

/// Opens a feed of any known format. The content decides the format, not the name.
///
/// Errors call the source `name`. The reader may be unbuffered. The source is read in pieces of 64
/// KiB, never as a whole.
///
/// # Errors
/// A source that is empty, fails to be read, or has no known format.
/// [`MessageSource::next_message`] reports errors after the first bytes.
///
/// ```
/// use evenfall_feed_formats::{MessageSource, codec, framed, itch, open};
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
pub fn open(reader: FeedReader, name: &str) -> Result<Box<dyn MessageSource + Send>, FeedError> {
    Ok(open_as(None, reader, name)?.source)
}

/// Opens a feed as this format when the user names one, else as [`open`] does.
///
/// # Errors
/// As for [`open`]. Also when the format does not come in files of this shape.
pub fn open_as(
    format: Option<Format>,
    mut reader: FeedReader,
    name: &str,
) -> Result<FeedFile, FeedError> {
    let head = FileHead::read(&mut reader, name)?;
    let shape = head.shape;
    let opening = Opening { format, name };
    let source = match shape {
        Some(FileShape::Zip) => opening.open_zip(reader)?,
        _ => opening.open_stream(head, Box::new(reader), 0)?,
    };
    Ok(FeedFile { shape, source: Box::new(source) })
}

/// The request of a caller.
#[derive(Clone, Copy)]
struct Opening<'a> {
    /// The format that the user names.
    format: Option<Format>,
    name: &'a str,
}

impl Opening<'_> {
    fn refused(&self, what: &str, advice: &'static str) -> FeedError {
        at_start(self.name, FeedFault::Refused { what: what.to_owned(), advice })
    }

    /// Opens an archive, which is read from its end.
    fn open_zip(&self, mut reader: FeedReader) -> Result<Fused, FeedError> {
        reader.seek(SeekFrom::Start(0)).map_err(|_| {
            self.refused(
                "a zip is read from its end, and a pipe has no end yet",
                "give the zip as a file, or unpack it into the pipe: unzip -p FILE | ...",
            )
        })?;
        match zip::open(reader, self.name)? {
            ZipContents::Days(days) => Ok(Fused::new(days)),
            ZipContents::Single { name, date, entry } => {
                let inner = Opening { name: &name, ..*self };
                let mut stream: Stream = entry;
                let head = FileHead::read(&mut stream, &name)?;
                let source = inner.open_stream(head, stream, 1)?;
                Ok(Fused { date, ..source })
            }
        }
    }

    /// Opens bytes that are read once, below this many wrappings.
    fn open_stream(&self, head: FileHead, rest: Stream, wrappings: u8) -> Result<Fused, FeedError> {
        match head.shape {
            Some(FileShape::Gzip) if wrappings < WRAPPINGS_MAX => {
                let (members, left_out) = GzipMembers::new(head.before(rest));
                let mut unpacked: Stream = Box::new(members);
                let inner = FileHead::read(&mut unpacked, self.name)?;
                let source = self.open_stream(inner, unpacked, wrappings + 1)?;
                Ok(source.with_left_out(left_out))
            }
            Some(FileShape::Gzip) => {
                Err(self.refused("this is packed more than twice", "unpack it first"))
            }
            // Seeking needs a file of its own.
            Some(FileShape::Zip) => {
                Err(self.refused("this is a zip in another archive", "unpack the outer one first"))
            }
            _ => Ok(Fused::new(self.open_plain(head, rest)?)),
        }
    }

    fn open_plain(
        &self,
        head: FileHead,
        rest: Stream,
    ) -> Result<Box<dyn MessageSource + Send>, FeedError> {
        let told = match head.shape {
            Some(FileShape::Capture) => {
                let stream = head.before(rest);
                let options = CaptureOptions { format: self.format, ..Default::default() };
                return Ok(Box::new(PcapSource::with_options(stream, self.name, options)));
            }
            Some(FileShape::Plain(codec)) => Some(codec),
            _ => None,
        };
        let codec = self.format.map_or(told, codec::of);
        // A user who names the format knows better than a guess by the structure.
        let foreign = told.is_none().then(|| foreign::fault_of(&head.bytes, codec.is_none()));
        if let Some(fault) = foreign.flatten() {
            return Err(at_start(self.name, fault));
        }
        let mut first = head.bytes.clone();
        first.truncate(16);
        let source = codec.and_then(|codec| codec.open(head.before(rest), self.name));
        source.ok_or_else(|| match codec {
            Some(codec) => self.refused(
                &format!("{} comes in captures", codec.name()),
                "give a capture (pcap or pcapng)",
            ),
            None => at_start(self.name, FeedFault::Unrecognised { head: first }),
        })
    }
}

fn at_start(name: &str, fault: FeedFault) -> FeedError {
    FeedError { name: name.to_owned(), offset: 0, index: 0, fault }
}

/// The first bytes of a source.
struct FileHead {
    bytes: Vec<u8>,
    shape: Option<FileShape>,
    failure: Option<std::io::Error>,
}

impl FileHead {
    fn read(reader: &mut impl Read, name: &str) -> Result<Self, FeedError> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        // A damaged stream may hold whole messages before the damage. The format's own reader gives
        // these messages, and meets the error at its place.
        let failure = reader.take(HEAD_BYTES as u64).read_to_end(&mut bytes).err();
        match failure {
            Some(error) if bytes.is_empty() => {
                let fault = FeedFault::Io { kind: error.kind(), detail: error.to_string() };
                Err(at_start(name, fault))
            }
            None if bytes.is_empty() => Err(at_start(name, FeedFault::Empty)),
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
}

/// A reader that gives an error that was met earlier.
struct Failing(Option<std::io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(self.0.take().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()))
    }
}

/// A source that repeats the end or the error once it was met, because a failed reader may not fail
/// the same way twice. It also says what the wrappings around the feed left out.
struct Fused {
    source: Box<dyn MessageSource + Send>,
    end: Option<Result<(), FeedError>>,
    /// The date in the name of an archive's entry.
    date: Option<Date>,
    /// Bytes behind packed data, of each wrapping.
    left_out: Vec<LeftOut>,
    times: TimeWatch,
}

/// Counts the messages whose times lie before the time of the message in front of them.
#[derive(Debug, Default)]
struct TimeWatch {
    last_ns: u64,
    times_back: u64,
    back_ns_max: u64,
}

impl TimeWatch {
    fn observe(&mut self, time_ns: u64) {
        let back_ns = self.last_ns.saturating_sub(time_ns);
        self.times_back += u64::from(back_ns > 0);
        self.back_ns_max = self.back_ns_max.max(back_ns);
        self.last_ns = time_ns;
    }

    fn note(&self) -> Option<String> {
        let times = match self.times_back {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let most = core::time::Duration::from_nanos(self.back_ns_max);
        (self.times_back > 0).then(|| format!("times go back {times}, by at most {most:?}"))
    }
}

impl Fused {
    fn new(source: Box<dyn MessageSource + Send>) -> Self {
        let (left_out, times) = (Vec::new(), TimeWatch::default());
        Self { source, end: None, date: None, left_out, times }
    }

    fn with_left_out(mut self, left_out: LeftOut) -> Self {
        self.left_out.push(left_out);
        self
    }
}

impl MessageSource for Fused {
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
        match &self.end {
            Some(Ok(())) => return Ok(None),
            Some(Err(error)) => return Err(error.clone()),
            None => {}
        }
        let next = self.source.next_message();
        match &next {
            Ok(Some(message)) => self.times.observe(message.time_ns),
            Ok(None) => self.end = Some(Ok(())),
            Err(error) => self.end = Some(Err(error.clone())),
        }
        next
    }

    fn skipped(&self) -> Skipped {
        self.source.skipped()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.source.notes();
        let counts = self.left_out.iter().map(LeftOut::bytes).filter(|bytes| *bytes > 0);
        notes.extend(counts.map(|bytes| {
            format!("{bytes} bytes behind the packed data (gzip) are not in the feed")
        }));
        notes.extend(self.times.note());
        notes
    }

    fn date(&self) -> Option<Date> {
        self.source.date().or(self.date)
    }

    fn only_symbol(&self) -> Option<Stock> {
        self.source.only_symbol()
    }

    fn copies(&self) -> Option<CopyCounts> {
        self.source.copies()
    }

    fn choose_copies(&mut self, choice: CopyChoice) -> Result<(), FeedError> {
        self.source.choose_copies(choice)
    }

    fn origin(&self) -> Option<PacketOrigin> {
        self.source.origin()
    }
}
