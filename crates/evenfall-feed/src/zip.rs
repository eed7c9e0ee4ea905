//! The message file inside a zip, read from front to back.
//!
//! LOBSTER's samples come as a zip of an order book file, a message file and a read-me. The
//! archive is walked by its local headers, so that a plain reader is enough and nothing is
//! unpacked to disk; of the format only what such archives use is read: stored or deflated
//! entries whose sizes stand in front of them.
//!
//! ```text
//!  0           4         6       8        10          14    18           22         26     28      30
//!  +-----------+---------+-------+--------+-----------+-----+------------+----------+------+-------+------+-------+------
//!  | P K 3 4   | version | flags | method | time date | crc | compressed | original | name | extra | name | extra | data
//!  +-----------+---------+-------+--------+-----------+-----+------------+----------+------+-------+------+-------+------
//! ```
//!
//! Source: PKWARE APPNOTE 6.3, section 4.3.7.

use crate::error::{Fault, FeedError};
use crate::input::Input;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::{Error, ErrorKind, Read};

/// Bytes of a local header before the name.
const HEADER_BYTES: usize = 30;

/// Flag bits of entries that are not read: encrypted, and sizes behind the data.
const FLAGS_REFUSED: u16 = 0b1001;

/// Bytes skipped at a time.
const SKIP_BYTES: usize = 64 * 1024;

struct Header {
    flags: u16,
    method: u16,
    crc: u32,
    compressed: u64,
    original: u64,
    name_bytes: usize,
    head_bytes: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Self {
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        let name_bytes = usize::from(short(26));
        Self {
            flags: short(6),
            method: short(8),
            crc: long(14),
            compressed: u64::from(long(18)),
            original: u64::from(long(22)),
            name_bytes,
            head_bytes: HEADER_BYTES + name_bytes + usize::from(short(28)),
        }
    }
}

/// The bytes of the entry with the messages. Its length and checksum are checked at its end.
pub(crate) struct MessageEntry<R: Read> {
    data: Data<R>,
    crc: Crc,
    crc_expected: u32,
    left: u64,
}

enum Data<R: Read> {
    Stored(Limited<R>),
    Deflated(DeflateDecoder<Limited<R>>),
}

impl<R: Read> MessageEntry<R> {
    /// Walks to the first `.csv` entry whose name has "message" in it.
    pub fn find(reader: R, name: &str) -> Result<Self, FeedError> {
        let mut input = Input::new(reader, name);
        loop {
            let magic = input.peek(4);
            if magic != b"PK\x03\x04" {
                let found = "no entry named *message*.csv".to_owned();
                return Err(input.error(Fault::Malformed { what: "zip archive", found }));
            }
            let header = Header::parse(input.look(HEADER_BYTES, "zip entry header")?);
            if header.flags & FLAGS_REFUSED != 0 || !matches!(header.method, 0 | 8) {
                let found = format!("flags {:#06x}, method {}", header.flags, header.method);
                return Err(input.error(Fault::Malformed { what: "zip entry", found }));
            }
            let head = input.look(header.head_bytes, "zip entry header")?;
            let entry = &head[HEADER_BYTES..HEADER_BYTES + header.name_bytes];
            let wanted = is_message_file(entry);
            input.take(header.head_bytes);
            if wanted {
                return Ok(Self::new(input, &header));
            }
            skip(&mut input, header.compressed)?;
        }
    }

    fn new(input: Input<R>, header: &Header) -> Self {
        let limited = Limited { input, left: header.compressed };
        let data = match header.method {
            0 => Data::Stored(limited),
            _ => Data::Deflated(DeflateDecoder::new(limited)),
        };
        Self { data, crc: Crc::new(), crc_expected: header.crc, left: header.original }
    }
}

fn is_message_file(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(b".csv") && name.windows(7).any(|window| window == b"message")
}

fn skip<R: Read>(input: &mut Input<R>, mut bytes: u64) -> Result<(), FeedError> {
    while bytes > 0 {
        let step = bytes.min(SKIP_BYTES as u64) as usize;
        input.look(step, "zip entry")?;
        input.take(step);
        bytes -= step as u64;
    }
    Ok(())
}

impl<R: Read> Read for MessageEntry<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = match &mut self.data {
            Data::Stored(data) => data.read(out)?,
            Data::Deflated(data) => data.read(out)?,
        };
        self.crc.update(&out[..read]);
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "zip entry longer than it claims"))?;
        if read == 0 && !out.is_empty() && (self.left > 0 || self.crc.sum() != self.crc_expected) {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "zip entry is shorter than it claims, or fails its checksum",
            ));
        }
        Ok(read)
    }
}

/// The compressed bytes of one entry.
struct Limited<R> {
    input: Input<R>,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let want = self.left.min(out.len() as u64).min(SKIP_BYTES as u64) as usize;
        if want == 0 {
            return Ok(0);
        }
        if self.input.at_end().map_err(|error| Error::other(error.to_string()))? {
            return Err(Error::new(ErrorKind::UnexpectedEof, "zip archive ends inside an entry"));
        }
        let ahead = self.input.peek(want);
        let read = ahead.len();
        out[..read].copy_from_slice(ahead);
        self.input.take(read);
        self.left -= read as u64;
        Ok(read)
    }
}
