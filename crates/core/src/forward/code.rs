//! The code of one hop, which a port checks and writes when it sends a keyed datagram on.
//!
//! ```text
//!  0          first      at       at + 8     head_bytes                    length
//!  | covered  |          | code   |          | body            | covered   |
//!                                                              | last bytes|
//! ```
//!
//! Both covered ranges have fixed lengths, so that a kernel program computes the code of a long
//! datagram as fast as the code of a short one.

use core::fmt;

use crate::MacKey;

/// SipHash-2-4 over the first and the last bytes of a datagram, and the place of the code.
#[derive(Clone)]
pub struct HopCode {
    key: [u8; 16],
    mac: MacKey,
    first: u8,
    last: u8,
    at: u8,
}

impl PartialEq for HopCode {
    fn eq(&self, other: &Self) -> bool {
        let of = |code: &Self| (code.key, code.first, code.last, code.at);
        of(self) == of(other)
    }
}

impl Eq for HopCode {}

impl fmt::Debug for HopCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, at, .. } = self;
        write!(f, "HopCode(first {first} and last {last} bytes, at {at})")
    }
}

impl HopCode {
    /// A code under this key. It covers the `first` bytes of a datagram and its `last` bytes, and
    /// stands at the offset `at`: eight bytes, little-endian.
    pub fn new(key: &[u8; 16], first: u8, last: u8, at: u8) -> Self {
        Self { key: *key, mac: MacKey::new(0, key), first, last, at }
    }

    /// The secret bytes, for a port that computes the code elsewhere.
    pub fn key(&self) -> &[u8; 16] {
        &self.key
    }

    /// How many of the first bytes are covered.
    pub fn first(&self) -> usize {
        self.first.into()
    }

    /// How many of the last bytes are covered.
    pub fn last(&self) -> usize {
        self.last.into()
    }

    /// Offset of the code.
    pub fn at(&self) -> usize {
        self.at.into()
    }

    /// Whether the code stands inside a head of this length, behind the bytes that it covers.
    pub(super) fn is_sound(&self, head_bytes: usize) -> bool {
        self.first() <= self.at() && self.at() + 8 <= head_bytes
    }

    /// The code of a datagram with this head and this body; `None` where the body is too short.
    fn of(&self, head: &[u8], body: &[u8]) -> Option<u64> {
        let last = body.len().checked_sub(self.last())?;
        Some(self.mac.mac(&[&head[..self.first()], &body[last..]]))
    }

    /// Whether the datagram has the right code.
    pub(super) fn fits(&self, head: &[u8], body: &[u8]) -> bool {
        let code = &head[self.at()..self.at() + 8];
        self.of(head, body).is_some_and(|right| code == right.to_le_bytes())
    }

    /// Writes the code of a changed head. The body must be long enough.
    pub(super) fn write(&self, head: &mut [u8], body: &[u8]) {
        if let Some(code) = self.of(head, body) {
            head[self.at()..self.at() + 8].copy_from_slice(&code.to_le_bytes());
        }
    }
}
