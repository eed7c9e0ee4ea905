//! The message files inside a zip: LOBSTER's samples are zips of an order book file, a message file
//! and a read-me. An order of several days is a zip with a message file for each day.
//!
//! The directory at the archive's end is read by the crate `zip`, which knows ZIP64. The entries
//! are unpacked here as they are read, because an entry of that crate borrows its archive. Nothing
//! is unpacked to disk, and length and checksum of an entry are checked at the entry's end.

use crate::codec::DAY_NS;
use crate::dates::{Date, date_in_name};
use crate::error::{Fault, FeedError};
use crate::file::Reader;
use crate::lobster::LobsterSource;
use crate::source::{Message, Source};
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
    start: u64,
    packed_bytes: u64,
    bytes: u64,
    crc: u32,
}

/// The message files of an archive, one day behind the other.
pub(crate) struct Days {
    reader: Arc<Mutex<Reader>>,
    name: String,
    places: std::vec::IntoIter<Place>,
    day: Option<LobsterSource<Entry>>,
    first: Option<Date>,
    /// Time of the present day's midnight, counted from the first day's.
    midnight_ns: u64,
    given: u64,
}

/// Opens an archive; the reader is at its start.
pub(crate) fn open(reader: Reader, name: &str) -> Result<Days, FeedError> {
    let failed = |found: String| FeedError {
        name: name.to_owned(),
        offset: 0,
        index: 0,
        fault: Fault::Malformed { what: "zip archive", found },
    };
    let mut archive = ZipArchive::new(reader).map_err(|error| failed(error.to_string()))?;
    if archive.len() > ENTRIES_MAX {
        return Err(failed(format!("{} entries, the limit is {ENTRIES_MAX}", archive.len())));
    }
    let mut places = Vec::new();
    for at in 0..archive.len() {
        let entry = archive.by_index_raw(at).map_err(|error| failed(error.to_string()))?;
        let entry_name = entry.name().to_owned();
        if !is_message_file(&entry_name) {
            continue;
        }
        let method = entry.compression();
        let is_read = matches!(method, CompressionMethod::Stored | CompressionMethod::Deflated);
        if !is_read || entry.encrypted() {
            return Err(failed(format!("{entry_name}: encrypted, or packed by {method}")));
        }
        places.push(Place {
            date: date_in_name(&entry_name),
            name: entry_name,
            method,
            start: entry.data_start(),
            packed_bytes: entry.compressed_size(),
            bytes: entry.size(),
            crc: entry.crc32(),
        });
    }
    places.sort_by(|one, other| (one.date, &one.name).cmp(&(other.date, &other.name)));
    check_days(&places).map_err(failed)?;
    Ok(Days {
        reader: Arc::new(Mutex::new(archive.into_inner())),
        name: name.to_owned(),
        first: places[0].date,
        places: places.into_iter(),
        day: None,
        midnight_ns: 0,
        given: 0,
    })
}

/// Several files are one feed when they are days of one symbol.
fn check_days(places: &[Place]) -> Result<(), String> {
    let Some(first) = places.first() else {
        return Err("no entry named *message*.csv".to_owned());
    };
    for pair in places.windows(2) {
        let is_later = pair[0].date.is_some() && pair[0].date < pair[1].date;
        if !is_later || symbol(&pair[1].name) != symbol(&first.name) {
            let (one, other) = (&pair[0].name, &pair[1].name);
            return Err(format!(
                "{one} and {other}, which are not days of one symbol: unpack them"
            ));
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

impl Source for Days {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        let given = self.given;
        while let Some(day) = self.day() {
            let next = day.next_message().map_err(|error| FeedError { index: given, ..error })?;
            if let Some(message) = next {
                self.given += 1;
                let time_ns = message.time_ns + self.midnight_ns;
                return Ok(Some(Message { index: given, time_ns, ..message }));
            }
            self.day = None;
        }
        Ok(None)
    }

    fn date(&self) -> Option<Date> {
        self.first
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
    fn new(reader: &Arc<Mutex<Reader>>, place: &Place) -> Self {
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
    reader: Arc<Mutex<Reader>>,
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
