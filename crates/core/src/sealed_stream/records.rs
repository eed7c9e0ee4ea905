//! The records of one direction of a sealed stream.

use core::fmt;
use core::ops::Range;

use super::{CipherOf, RECORD_BYTES_MAX, RECORDS_PER_KEY};
use crate::Cipher;
use crate::cipher::TAG_BYTES;

/// Bytes of the length in front of each record.
const LENGTH_BYTES: usize = 2;
/// Bytes of the longest sealed record.
const SEALED_BYTES_MAX: usize = LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES;
/// Bytes of the buffer of an opener: a record that is not whole, and room for another one.
const BUFFER_BYTES: usize = 2 * SEALED_BYTES_MAX;

/// The key of a direction, and the number of the last record under it.
struct DirectionKey {
    secret: [u8; 32],
    cipher: Cipher,
    cipher_of: CipherOf,
    number: u64,
}

impl DirectionKey {
    fn new(secret: [u8; 32], cipher_of: CipherOf) -> Self {
        Self { secret, cipher: cipher_of(&secret), cipher_of, number: 0 }
    }

    /// The number of the next record. The proof of the handshake has number 0.
    fn advance_number(&mut self) -> u64 {
        self.number += 1;
        if self.number.is_multiple_of(RECORDS_PER_KEY) {
            let context = "evenfall sealed stream v1 next key";
            self.secret = blake3::derive_key(context, &self.secret);
            self.cipher = (self.cipher_of)(&self.secret);
        }
        self.number
    }
}

/// Seals the records of one direction.
pub struct RecordSealer(DirectionKey);

impl fmt::Debug for RecordSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordSealer({} records)", self.0.number)
    }
}

impl RecordSealer {
    pub(super) fn new(secret: [u8; 32], cipher_of: CipherOf) -> Self {
        Self(DirectionKey::new(secret, cipher_of))
    }

    pub(super) fn prove_key(&self) -> [u8; TAG_BYTES] {
        self.0.cipher.seal(0, &[], &mut [])
    }

    /// Seals bytes in as many records as they need, and puts the records behind `out`.
    pub fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let records = bytes.len().div_ceil(RECORD_BYTES_MAX);
        out.reserve(bytes.len() + records * (LENGTH_BYTES + TAG_BYTES));
        bytes.chunks(RECORD_BYTES_MAX).for_each(|part| self.seal_record(part, out));
    }

    /// Ends this direction: the other end then knows that nothing was cut off.
    pub fn seal_end(&mut self, out: &mut Vec<u8>) {
        self.seal_record(&[], out);
    }

    fn seal_record(&mut self, part: &[u8], out: &mut Vec<u8>) {
        let length = (part.len() as u16).to_le_bytes();
        out.extend_from_slice(&length);
        let start = out.len();
        out.extend_from_slice(part);
        let number = self.0.advance_number();
        let tag = self.0.cipher.seal(number, &length, &mut out[start..]);
        out.extend_from_slice(&tag);
    }
}

/// Why the bytes of a sealed stream cannot be used. Nothing of the stream can be used afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A record was changed, left out, repeated, or sealed under another key.
    #[error("a sealed record does not open: changed, or another key")]
    Forged,
    /// A record of this many bytes is longer than [`RECORD_BYTES_MAX`].
    #[error("a sealed record of {0} bytes is over the limit {RECORD_BYTES_MAX}")]
    TooLong(usize),
    /// The connection ended before its end was sealed.
    #[error("the sealed connection was cut off")]
    CutOff,
    /// Bytes came behind the sealed end.
    #[error("bytes came behind the end of the sealed connection")]
    BehindEnd,
}

/// What [`RecordOpener::take`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedRecord {
    /// This number of bytes was written to the output.
    Bytes(usize),
    /// No whole record is there: read from the network into [`RecordOpener::room`].
    NeedsMore,
    /// The other end has ended its direction.
    End,
}

/// Opens the records of one direction. It has room for two records, and no more.
///
/// ```text
///  buffer | used | opened | whole record, part of a record | room |
/// ```
pub struct RecordOpener {
    key: DirectionKey,
    buffer: Vec<u8>,
    /// Opened bytes that were not taken yet.
    opened: Range<usize>,
    /// Bytes that have come, behind the opened ones.
    came: Range<usize>,
    has_ended: bool,
}

impl fmt::Debug for RecordOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordOpener({} records)", self.key.number)
    }
}

impl RecordOpener {
    pub(super) fn new(secret: [u8; 32], cipher_of: CipherOf) -> Self {
        let (key, buffer) = (DirectionKey::new(secret, cipher_of), vec![0; BUFFER_BYTES]);
        Self { key, buffer, opened: 0..0, came: 0..0, has_ended: false }
    }

    pub(super) fn is_proof(&self, proof: &[u8]) -> bool {
        self.key.cipher.open_slice(0, &[], &mut proof.to_vec()) == Some(0)
    }

    /// The room for the next bytes of the network. Call this method when [`take`](Self::take) has
    /// returned [`OpenedRecord::NeedsMore`].
    pub fn room(&mut self) -> &mut [u8] {
        if self.opened.is_empty() {
            self.buffer.copy_within(self.came.clone(), 0);
            self.came = 0..self.came.len();
        }
        &mut self.buffer[self.came.end..]
    }

    /// Notes that the network has written this number of bytes into the [`room`](Self::room).
    pub fn note_arrival(&mut self, bytes: usize) {
        self.came.end = (self.came.end + bytes).min(self.buffer.len());
    }

    /// Whether [`take`](Self::take) needs nothing from the network.
    pub fn is_ready(&self) -> bool {
        let came = &self.buffer[self.came.clone()];
        let length = came.first_chunk().map(|length| usize::from(u16::from_le_bytes(*length)));
        let is_whole = length.is_some_and(|length| came.len() >= LENGTH_BYTES + length + TAG_BYTES);
        !self.opened.is_empty() || self.has_ended || is_whole
    }

    /// Moves opened bytes to the output.
    ///
    /// # Errors
    /// [`RecordError`]. Every later call would fail too.
    pub fn take(&mut self, out: &mut [u8]) -> Result<OpenedRecord, RecordError> {
        while self.opened.is_empty() {
            if self.has_ended {
                return if self.came.is_empty() {
                    Ok(OpenedRecord::End)
                } else {
                    Err(RecordError::BehindEnd)
                };
            }
            if !self.open_next()? {
                return Ok(OpenedRecord::NeedsMore);
            }
        }
        let len = out.len().min(self.opened.len());
        let taken = self.opened.start..self.opened.start + len;
        out[..len].copy_from_slice(&self.buffer[taken]);
        self.opened.start += len;
        Ok(OpenedRecord::Bytes(len))
    }

    /// Notes that no more bytes come from the network.
    ///
    /// # Errors
    /// [`RecordError::CutOff`] when the other end has not sealed its end before.
    pub fn note_end(&self) -> Result<(), RecordError> {
        match self.has_ended && self.came.is_empty() {
            true => Ok(()),
            false => Err(RecordError::CutOff),
        }
    }

    /// Opens the next record. Returns false when a part of the record has not come.
    fn open_next(&mut self) -> Result<bool, RecordError> {
        let came = &mut self.buffer[self.came.clone()];
        let Some(prefix) = came.first_chunk::<LENGTH_BYTES>().copied() else { return Ok(false) };
        let length = usize::from(u16::from_le_bytes(prefix));
        if length > RECORD_BYTES_MAX {
            return Err(RecordError::TooLong(length));
        }
        let whole = LENGTH_BYTES + length + TAG_BYTES;
        let Some(sealed) = came.get_mut(LENGTH_BYTES..whole) else { return Ok(false) };
        let number = self.key.advance_number();
        let opened = self.key.cipher.open_slice(number, &prefix, sealed);
        let opened = opened.ok_or(RecordError::Forged)?;
        let start = self.came.start + LENGTH_BYTES;
        self.opened = start..start + opened;
        self.came.start += whole;
        self.has_ended = opened == 0;
        Ok(true)
    }
}
