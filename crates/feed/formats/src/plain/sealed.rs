//! Plain datagrams that one participant alone reads, who holds a key of its own.
//!
//! A sealed datagram has a whole [plain datagram](super) within, head and message:
//!
//! ```text
//!  0        4         5   8      24        32
//!  +--------+---------+---+------+---------+-----------------------+-----+
//!  | "EVFS" | version | 0 | salt | counter | plain datagram, sealed | tag |
//!  +--------+---------+---+------+---------+-----------------------+-----+
//! ```
//!
//! The salt is drawn at the start of the gateway, and gives that start a key of its own:
//! `blake3::derive_key` of the context below over the key and the salt. The counter, from 1, is the
//! number under which ChaCha20-Poly1305 seals; the 32 bytes in front are sealed beside.

use core::fmt;

use bytes::{Bytes, BytesMut};
use evenfall_core::cipher::TAG_BYTES;
use evenfall_core::{Cipher, SharedKey};

#[cfg(test)]
mod tests;

/// Bytes in front of the sealed datagram.
const PREFIX_BYTES: usize = 32;
/// Bytes that sealing adds to a plain datagram.
pub const SEAL_BYTES: usize = PREFIX_BYTES + TAG_BYTES;
/// Bytes of a salt.
pub const SALT_BYTES: usize = 16;
/// Where the counter begins.
const COUNTER_AT: usize = 24;
const MAGIC: [u8; 4] = *b"EVFS";
const VERSION: u8 = 1;
const CONTEXT: &str = "evenfall gateway participant v1";
/// Starts of gateways whose keys a participant remembers: those of sides A and B, and of the
/// gateways that take their places.
const STARTS_MAX: usize = 4;

fn derive_cipher(key: &SharedKey, salt: &[u8; SALT_BYTES]) -> Cipher {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(key.secret()).update(salt);
    Cipher::new(hasher.finalize().as_bytes())
}

/// Seals plain datagrams for one participant.
pub struct PlainSealer {
    cipher: Cipher,
    salt: [u8; SALT_BYTES],
    counter: u64,
}

impl fmt::Debug for PlainSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlainSealer({} datagrams)", self.counter)
    }
}

impl PlainSealer {
    /// A sealer under the key of a participant. The salt must be random: two starts with one salt
    /// would seal twice under one number.
    pub fn new(key: &SharedKey, salt: [u8; SALT_BYTES]) -> Self {
        Self { cipher: derive_cipher(key, &salt), salt, counter: 0 }
    }

    /// The sealed datagram of a plain one, whose head and message are given.
    pub fn seal(&mut self, head: &[u8], message: &[u8]) -> Bytes {
        self.counter += 1;
        let mut out = BytesMut::with_capacity(SEAL_BYTES + head.len() + message.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.counter.to_le_bytes());
        out.extend_from_slice(head);
        out.extend_from_slice(message);
        let (prefix, plain) = out.split_at_mut(PREFIX_BYTES);
        let tag = self.cipher.seal(self.counter, prefix, plain);
        out.extend_from_slice(&tag);
        out.freeze()
    }
}

/// Opens the datagrams that were sealed for one participant.
pub struct PlainOpener {
    key: SharedKey,
    /// The starts whose datagrams opened, the newest last.
    starts: Vec<([u8; SALT_BYTES], Cipher)>,
}

impl fmt::Debug for PlainOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlainOpener({} starts)", self.starts.len())
    }
}

impl PlainOpener {
    /// An opener under the key of a participant.
    pub fn new(key: SharedKey) -> Self {
        Self { key, starts: Vec::new() }
    }

    /// The plain datagram within. `None` when the bytes are no sealed datagram, were changed, or
    /// were sealed for another participant.
    pub fn open(&mut self, datagram: &[u8]) -> Option<Bytes> {
        let (prefix, sealed) = datagram.split_first_chunk::<PREFIX_BYTES>()?;
        if prefix[..4] != MAGIC || prefix[4..8] != [VERSION, 0, 0, 0] {
            return None;
        }
        let salt = *prefix[8..].first_chunk::<SALT_BYTES>()?;
        let counter = u64::from_le_bytes(*prefix[COUNTER_AT..].first_chunk()?);
        if let Some((_, cipher)) = self.starts.iter().find(|(known, _)| *known == salt) {
            return cipher.open(counter, prefix, sealed);
        }
        // A salt costs a derivation, and is remembered only when its sender has the key.
        let cipher = derive_cipher(&self.key, &salt);
        let opened = cipher.open(counter, prefix, sealed)?;
        if self.starts.len() == STARTS_MAX {
            self.starts.remove(0);
        }
        self.starts.push((salt, cipher));
        Some(opened)
    }
}
