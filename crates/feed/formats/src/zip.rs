//! The feed inside a zip: the message files of LOBSTER, or a single file of any format.
//!
//! LOBSTER's samples are zips of an order book file, a message file and a read-me. An order of
//! several days is a zip with a message file for each day.
//!
//! The directory at the archive's end is read by the crate `zip`, which knows ZIP64. The entries
//! are unpacked here as they are read, because an entry of that crate borrows its archive. Nothing
//! is unpacked to disk, and length and checksum of an entry are checked at the entry's end.

use crate::codec::DAY_NS;
use crate::dates::{Date, date_in_name};
use crate::error::{FeedError, FeedFault};
use crate::file::FeedReader;
use crate::itch::Stock;
use crate::lobster::{LobsterSource, symbol_in_name};
use crate::source::{FeedMessage, MessageSource};
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::{Error, ErrorKind, Read, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};
use zip::{CompressionMethod, ZipArchive};

/// Entries looked at: an order of a whole market's year has fewer.
const ENTRIES_MAX: usize = 100_000;

/// Where an entry is and what it must unpack to.
#[derive(Clone, Debug)]
struct Place {
    name: String,
    date: Option<Date>,
    method: CompressionMethod,
    is_encrypted: bool,
    start: u64,
    packed_bytes: u64,
    bytes: u64,
    crc: u32,
}

/// The message files of an archive, one day behind the other.
pub(crate) struct Days {
    reader: Arc<Mutex<FeedReader>>,
    name: String,
    places: std::vec::IntoIter<Place>,
    day: Option<LobsterSource<Entry>>,
    first: Option<Date>,
    symbol: Option<Stock>,
    /// Time of the present day's midnight, counted from the first day's.
    midnight_ns: u64,
    given: u64,
    /// The notes of the days before.
    notes: Vec<String>,
}

/// The feed in an archive.
pub(crate) enum ZipContents {
    /// Message files of LOBSTER.
    Days(Box<Days>),
    /// The only file of the archive, of any format.
    Single {
        /// Names of the archive and of the entry, for errors.
        name: String,
        /// The date in the entry's name.
        date: Option<Date>,
        /// The entry's bytes.
        entry: Box<Entry>,
    },
}

/// Opens an archive; the reader is at its start.
pub(crate) fn open(reader: FeedReader, name: &str) -> Result<ZipContents, FeedError> {
    let failed = |fault| FeedError { name: name.to_owned(), offset: 0, index: 0, fault };
    let damaged = |error: ::zip::result::ZipError| {
        failed(FeedFault::Malformed { what: "zip archive", found: error.to_string() })
    };
    let mut archive = ZipArchive::new(reader).map_err(damaged)?;
    if archive.len() > ENTRIES_MAX {
        let (found, max) = (archive.len() as u64, ENTRIES_MAX as u64);
        return Err(failed(FeedFault::TooLarge { what: "zip directory", found, max }));
    }
    let mut places = Vec::new();
    for at in 0..archive.len() {
        let entry = archive.by_index_raw(at).map_err(damaged)?;
        if entry.is_file() && !is_about_the_archive(entry.name()) {
            places.push(Place::of(&entry));
        }
    }
    let is_lobster = places.iter().any(|place| is_message_file(&place.name));
    if is_lobster {
        // LOBSTER packs the states of the book of each day beside the messages.
        places.retain(|place| is_message_file(&place.name));
    }
    // An archive may list its days in any order.
    places.sort_by(|one, other| (one.date, &one.name).cmp(&(other.date, &other.name)));
    if let Some(fault) = places.iter().find_map(Place::fault) {
        return Err(failed(fault));
    }
    if is_lobster {
        check_days(&places).map_err(failed)?;
    }
    let reader = Arc::new(Mutex::new(archive.into_inner()));
    match &places[..] {
        [] => Err(failed(FeedFault::Refused {
            what: "this zip has no file in it".to_owned(),
            advice: "give an archive with a feed in it",
        })),
        [place] if !is_lobster => Ok(ZipContents::Single {
            name: format!("{name}: {}", place.name),
            date: place.date,
            entry: Box::new(Entry::new(&reader, place)),
        }),
        _ if !is_lobster => Err(failed(several_files(&places))),
        [first, ..] => Ok(ZipContents::Days(Box::new(Days {
            reader,
            name: name.to_owned(),
            first: first.date,
            symbol: symbol_in_name(&first.name),
            places: places.into_iter(),
            day: None,
            midnight_ns: 0,
            given: 0,
            notes: Vec::new(),
        }))),
    }
}

/// Files that packers and venues add to an archive.
fn is_about_the_archive(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    name.starts_with("__MACOSX/")
        || matches!(file, ".DS_Store" | "Thumbs.db" | "desktop.ini")
        || file.to_ascii_lowercase().contains("readme")
}

fn several_files(places: &[Place]) -> FeedFault {
    /// Names that fit a line.
    const NAMED_MAX: usize = 4;
    let names: Vec<&str> = places.iter().take(NAMED_MAX).map(|place| &*place.name).collect();
    let more = if places.len() > NAMED_MAX { ", ..." } else { "" };
    FeedFault::Refused {
        what: format!(
            "this zip has {} files and no message file of LOBSTER: {}{more}",
            places.len(),
            names.join(", ")
        ),
        advice: "unpack it, or give one file by a pipe: unzip -p FILE NAME | evenfall feed info -",
    }
}

impl Place {
    fn of<R: Read>(entry: &::zip::read::ZipFile<'_, R>) -> Self {
        Self {
            date: date_in_name(entry.name()),
            name: entry.name().to_owned(),
            method: entry.compression(),
            is_encrypted: entry.encrypted(),
            start: entry.data_start(),
            packed_bytes: entry.compressed_size(),
            bytes: entry.size(),
            crc: entry.crc32(),
        }
    }

    /// The reason why the entry cannot be unpacked here.
    fn fault(&self) -> Option<FeedFault> {
        let is_read =
            matches!(self.method, CompressionMethod::Stored | CompressionMethod::Deflated);
        let (why, advice) = match (self.is_encrypted, is_read) {
            (true, _) => {
                ("encrypted".to_owned(), "unpack it with its password: unzip -P PASSWORD FILE")
            }
            (false, false) => (
                format!("packed by {}", self.method),
                "unpack it, or give it by a pipe: 7z x -so FILE NAME | evenfall feed info -",
            ),
            (false, true) => return None,
        };
        Some(FeedFault::Refused { what: format!("{} in the zip is {why}", self.name), advice })
    }
}

/// Several files are one feed when they are days of one symbol.
fn check_days(places: &[Place]) -> Result<(), FeedFault> {
    for pair in places.windows(2) {
        let is_later = pair[0].date.is_some() && pair[0].date < pair[1].date;
        if !is_later || symbol(&pair[1].name) != symbol(&pair[0].name) {
            let (one, other) = (&pair[0].name, &pair[1].name);
            return Err(FeedFault::Refused {
                what: format!("{one} and {other} are not days of one symbol"),
                advice: "unpack the zip, and give the files of each symbol by themselves",
            });
        }
    }
    Ok(())
}

/// What LOBSTER writes in front of the date.
fn symbol(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.split('_').next().unwrap_or(file)
}

fn is_message_file(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".csv") && name.contains("message")
}

impl Days {
    /// The source of the present day; `None` behind the last one.
    fn day(&mut self) -> Option<&mut LobsterSource<Entry>> {
        if self.day.is_none() {
            let place = self.places.next()?;
            if let (Some(first), Some(date)) = (self.first, place.date) {
                let days = first.until(date).map_or(0, |span| span.get_days());
                self.midnight_ns = u64::from(days.unsigned_abs()) * DAY_NS;
            }
            let name = format!("{}: {}", self.name, place.name);
            self.day = Some(LobsterSource::new(Entry::new(&self.reader, &place), &name));
        }
        self.day.as_mut()
    }
}

impl MessageSource for Days {
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
        let given = self.given;
        while let Some(day) = self.day() {
            let next = day.next_message().map_err(|error| FeedError { index: given, ..error })?;
            if let Some(message) = next {
                self.given += 1;
                let time_ns = message.time_ns + self.midnight_ns;
                return Ok(Some(FeedMessage { index: given, time_ns, ..message }));
            }
            self.notes.extend(self.day.take().map(|day| day.notes()).unwrap_or_default());
        }
        Ok(None)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn date(&self) -> Option<Date> {
        self.first
    }

    fn only_symbol(&self) -> Option<Stock> {
        self.symbol
    }
}

/// The bytes of one entry, unpacked.
pub(crate) struct Entry {
    data: Data,
    crc: Crc,
    read: u64,
    bytes: u64,
    crc_expected: u32,
}

enum Data {
    Stored(Packed),
    Deflated(DeflateDecoder<Packed>),
}

impl Entry {
    fn new(reader: &Arc<Mutex<FeedReader>>, place: &Place) -> Self {
        let packed =
            Packed { reader: Arc::clone(reader), at: place.start, left: place.packed_bytes };
        let data = match place.method {
            CompressionMethod::Stored => Data::Stored(packed),
            _ => Data::Deflated(DeflateDecoder::new(packed)),
        };
        Self { data, crc: Crc::new(), read: 0, bytes: place.bytes, crc_expected: place.crc }
    }
}

impl Read for Entry {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = match &mut self.data {
            Data::Stored(data) => data.read(out)?,
            Data::Deflated(data) => data.read(out)?,
        };
        self.crc.update(&out[..read]);
        self.read += read as u64;
        let is_end = read == 0 && !out.is_empty();
        if self.read > self.bytes
            || is_end && (self.read != self.bytes || self.crc.sum() != self.crc_expected)
        {
            let what = "zip entry fails its length or its checksum";
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        Ok(read)
    }
}

/// The packed bytes of one entry. The next entry takes the reader when this one has ended.
struct Packed {
    reader: Arc<Mutex<FeedReader>>,
    at: u64,
    left: u64,
}

impl Read for Packed {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.seek(SeekFrom::Start(self.at))?;
        let read = reader.read(&mut out[..want])?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
