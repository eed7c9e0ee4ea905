//! The message file inside a zip, read from front to back.
//!
//! LOBSTER's samples come as a zip of an order book file, a message file and a read-me. The
//! archive is walked by its local headers, so that a plain reader is enough and nothing is
//! unpacked to disk. Of the format what such archives use is read: stored or deflated entries, and
//! deflated ones whose checksum and sizes stand behind the data.
//!
//! ```text
//! 0           4         6       8        10          14    18           22         26     28
//! | P K 3 4   | version | flags | method | time date | crc | compressed | original | name | extra
//! 30
//! | name bytes | extra bytes | data
//! ```
//!
//! Source: PKWARE APPNOTE 6.3, section 4.3.7.

use crate::error::{Fault, FeedError};
use crate::input::Input;
use flate2::Crc;
use flate2::bufread::DeflateDecoder;
use std::io::{BufRead, Error, ErrorKind, Read};

/// Bytes of a local header before the name.
const HEADER_BYTES: usize = 30;

/// Bytes handed on at a time.
const PIECE_BYTES: usize = 4096;

/// Bytes of the descriptor behind an entry, without its optional signature.
const DESCRIPTOR_BYTES: usize = 12;

/// Flag bits: encrypted, and checksum and sizes behind the data.
const FLAG_ENCRYPTED: u16 = 1;
const FLAG_DESCRIPTOR: u16 = 1 << 3;

/// The compression methods that are read.
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

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

/// The bytes of one entry, unpacked. Length and checksum are checked at its end.
pub(crate) struct Entry<R: Read> {
    data: Data<R>,
    crc: Crc,
    crc_expected: u32,
    original_bytes: u64,
    has_descriptor: bool,
    checked: bool,
}

enum Data<R: Read> {
    Stored(Limited<R>),
    Deflated(DeflateDecoder<Limited<R>>),
}

impl<R: Read> Entry<R> {
    /// Walks to the first `.csv` entry whose name has "message" in it.
    pub fn find_messages(reader: R, name: &str) -> Result<Self, FeedError> {
        let mut input = Input::new(reader, name);
        loop {
            if input.peek(4) != b"PK\x03\x04" {
                let found = "no entry named *message*.csv".to_owned();
                return Err(input.error(Fault::Malformed { what: "zip archive", found }));
            }
            let header = Header::parse(input.look(HEADER_BYTES, "zip entry header")?);
            let endless = header.method == STORED && header.flags & FLAG_DESCRIPTOR != 0;
            let encrypted = header.flags & FLAG_ENCRYPTED != 0;
            if encrypted || endless || !matches!(header.method, STORED | DEFLATED) {
                let found = format!("flags {:#06x}, method {}", header.flags, header.method);
                return Err(input.error(Fault::Malformed { what: "zip entry", found }));
            }
            let head = input.look(header.head_bytes, "zip entry header")?;
            let is_wanted = is_message_file(&head[HEADER_BYTES..][..header.name_bytes]);
            input.take(header.head_bytes);
            let mut entry = Self::new(input, &header);
            if is_wanted {
                return Ok(entry);
            }
            let skipped = std::io::copy(&mut entry, &mut std::io::sink());
            input = entry.into_input();
            if let Err(error) = skipped {
                let fault = Fault::Io { kind: error.kind(), detail: error.to_string() };
                return Err(input.error(fault));
            }
        }
    }

    fn new(input: Input<R>, header: &Header) -> Self {
        let has_descriptor = header.flags & FLAG_DESCRIPTOR != 0;
        // Deflated data says itself where it ends.
        let left = if has_descriptor { u64::MAX } else { header.compressed };
        let limited = Limited { input, left };
        let data = match header.method {
            STORED => Data::Stored(limited),
            _ => Data::Deflated(DeflateDecoder::new(limited)),
        };
        Self {
            data,
            crc: Crc::new(),
            crc_expected: header.crc,
            original_bytes: header.original,
            has_descriptor,
            checked: false,
        }
    }

    fn limited(&mut self) -> &mut Limited<R> {
        match &mut self.data {
            Data::Stored(limited) => limited,
            Data::Deflated(decoder) => decoder.get_mut(),
        }
    }

    fn into_input(self) -> Input<R> {
        match self.data {
            Data::Stored(limited) => limited.input,
            Data::Deflated(decoder) => decoder.into_inner().input,
        }
    }

    /// Compares what was read with what the header, or the descriptor behind the data, says.
    fn check(&mut self) -> std::io::Result<()> {
        if self.has_descriptor {
            let input = &mut self.limited().input;
            let signature = if input.peek(4) == b"PK\x07\x08" { 4 } else { 0 };
            let bytes = signature + DESCRIPTOR_BYTES;
            let found = input.look(bytes, "zip descriptor").map_err(std::io::Error::other)?;
            let long =
                |at: usize| u32::from_le_bytes(core::array::from_fn(|i| found[signature + at + i]));
            let (crc, original) = (long(0), long(8));
            input.take(bytes);
            (self.crc_expected, self.original_bytes) = (crc, original.into());
        }
        // A reader cannot hold 4 GiB of one symbol's day, so the low 32 bits are the length.
        let same_length = u64::from(self.crc.amount()) == self.original_bytes;
        if !same_length || self.crc.sum() != self.crc_expected {
            let what = "zip entry fails its length or its checksum";
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        Ok(())
    }
}

fn is_message_file(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(b".csv") && name.windows(7).any(|window| window == b"message")
}

impl<R: Read> Read for Entry<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = match &mut self.data {
            Data::Stored(data) => data.read(out)?,
            Data::Deflated(data) => data.read(out)?,
        };
        self.crc.update(&out[..read]);
        if read == 0 && !out.is_empty() && !self.checked {
            self.check()?;
            self.checked = true;
        }
        Ok(read)
    }
}

/// The packed bytes of one entry.
struct Limited<R> {
    input: Input<R>,
    left: u64,
}

impl<R: Read> BufRead for Limited<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.left == 0 {
            return Ok(&[]);
        }
        if self.input.at_end().map_err(Error::other)? {
            return Err(Error::new(ErrorKind::UnexpectedEof, "zip archive ends inside an entry"));
        }
        let want = self.left.min(PIECE_BYTES as u64) as usize;
        Ok(self.input.peek(want))
    }

    fn consume(&mut self, bytes: usize) {
        self.input.take(bytes);
        self.left -= bytes as u64;
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let ahead = self.fill_buf()?;
        let read = ahead.len().min(out.len());
        out[..read].copy_from_slice(&ahead[..read]);
        self.consume(read);
        Ok(read)
    }
}
