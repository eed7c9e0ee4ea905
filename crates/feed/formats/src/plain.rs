//! The plain datagrams of a gateway: a message each, behind a head that any program can read.
//!
//! A participant who wants no framing of a venue still has to know which messages are missing and
//! when each was released. The head has both, at fixed places and little-endian:
//!
//! ```text
//!  0        4         5      6        7     8        12      16       24         32         40
//!  +--------+---------+------+--------+-----+--------+-------+--------+----------+----------+--
//!  | "EVFP" | version | kind | format | 0   | tree   | run   | number | deadline | released | body
//!  +--------+---------+------+--------+-----+--------+-------+--------+----------+----------+--
//! ```
//!
//! | kind | number | body |
//! |---|---|---|
//! | 0 message | that of the message within its tree, from 0 | the message as the venue sent it |
//! | 1 heartbeat | that of the next message | none |
//! | 2 end | that of the message which will never come | none |
//! | 3 lost | that of the first message that nobody has any more | how many, eight bytes |
//!
//! `deadline` and `released` are nanoseconds of the synchronised clock; `deadline` is 0 for a
//! message that was not held, and both are 0 in the other kinds.

use evenfall_core::Format;

#[cfg(feature = "sealed")]
pub mod sealed;
#[cfg(test)]
mod tests;

/// Bytes in front of the message.
pub const HEAD_BYTES: usize = 40;
/// The first bytes of every datagram.
const MAGIC: [u8; 4] = *b"EVFP";
/// The version of the head.
const VERSION: u8 = 1;

/// What a plain datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainKind {
    /// A message.
    Message,
    /// The datagram has no message. The gateway is alive, and its next message has this number.
    Heartbeat,
    /// No message: the feed is over.
    End,
    /// No message: this many messages, from the number on, are lost for everybody behind the
    /// gateway; one at least.
    Lost(u64),
}

/// The head of a plain datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHead {
    /// What the datagram is.
    pub kind: PlainKind,
    /// Format of the message; 0 without one.
    pub format: Format,
    /// Tree of the message.
    pub tree: u32,
    /// Run of the root. Numbers count from zero in each run.
    pub run: u32,
    /// Number of the message within its tree, from 0.
    pub number: u64,
    /// When the message was to be released, in nanoseconds of the synchronised clock; 0 when it was
    /// not held.
    pub deadline_ns: u64,
    /// When the gateway released the message, by the same clock; 0 without a message.
    pub released_ns: u64,
}

/// Bytes that are no plain datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlainError {
    /// The datagram is shorter than its head, or than the body of its kind.
    #[error("truncated plain datagram: its head has {HEAD_BYTES} bytes, found {found}")]
    Truncated {
        /// Bytes found.
        found: usize,
    },
    /// The datagram does not begin with `EVFP`.
    #[error("no plain datagram: it does not begin with EVFP")]
    Foreign,
    /// The head has another version.
    #[error("a plain datagram of version {found}; this program reads {VERSION}")]
    Version {
        /// The version.
        found: u8,
    },
    /// The kind has no meaning, or its body has another length.
    #[error("a plain datagram of kind {found} with a wrong body")]
    Kind {
        /// The kind.
        found: u8,
    },
}

impl PlainHead {
    /// The bytes of the head.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        let kind = match self.kind {
            PlainKind::Message => 0,
            PlainKind::Heartbeat => 1,
            PlainKind::End => 2,
            PlainKind::Lost(_) => 3,
        };
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&[VERSION, kind, self.format.0, 0]);
        out[8..12].copy_from_slice(&self.tree.to_le_bytes());
        out[12..16].copy_from_slice(&self.run.to_le_bytes());
        let words = [self.number, self.deadline_ns, self.released_ns];
        for (to, word) in out[16..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// The bytes behind the head, for a kind without a message.
    pub fn encode_body(&self) -> Vec<u8> {
        match self.kind {
            PlainKind::Lost(count) => count.to_le_bytes().to_vec(),
            PlainKind::Message | PlainKind::Heartbeat | PlainKind::End => Vec::new(),
        }
    }

    /// Reads a datagram: its head, and its message, which is empty without one.
    ///
    /// # Errors
    /// [`PlainError`].
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8]), PlainError> {
        let found = datagram.len();
        let Some((head, body)) = datagram.split_first_chunk::<HEAD_BYTES>() else {
            return Err(PlainError::Truncated { found });
        };
        if head[..4] != MAGIC {
            return Err(PlainError::Foreign);
        }
        if head[4] != VERSION {
            return Err(PlainError::Version { found: head[4] });
        }
        let kind = match (head[5], <[u8; 8]>::try_from(body), body) {
            (0, ..) => PlainKind::Message,
            (1, _, []) => PlainKind::Heartbeat,
            (2, _, []) => PlainKind::End,
            (3, Ok(count), _) if count != [0; 8] => PlainKind::Lost(u64::from_le_bytes(count)),
            (found, ..) => return Err(PlainError::Kind { found }),
        };
        let half = |at: usize| head[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let word = |at: usize| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let message = if kind == PlainKind::Message { body } else { &[] };
        let head = Self {
            kind,
            format: Format(head[6]),
            tree: half(8),
            run: half(12),
            number: word(16),
            deadline_ns: word(24),
            released_ns: word(32),
        };
        Ok((head, message))
    }
}
