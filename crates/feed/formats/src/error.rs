//! Errors of a feed file: the fault, its place, and advice.
//!
//! A replay that stops must account for the messages that it sent. Every error therefore carries
//! the byte offset and the index of the message that could not be read. All messages with a smaller
//! index have been handed out before the error.

use crate::itch::ItchError;
use std::io::ErrorKind;

/// A feed that cannot be read further, with the place of the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: byte {offset}, message {index}: {fault}; {}", .fault.advice())]
pub struct FeedError {
    /// The name of the source as the caller gave it, usually a path.
    pub name: String,
    /// Bytes before the bad frame, record or line. For a compressed source the bytes of the
    /// decompressed stream count, because a person can look there.
    pub offset: u64,
    /// The index of the message that could not be read. This index equals the number of messages
    /// handed out before.
    pub index: u64,
    /// The fault at that place.
    pub fault: FeedFault,
}

/// A fault in the place of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FeedFault {
    /// The reader failed, or a compressed stream is damaged.
    #[error("cannot read on ({kind:?}): {detail}")]
    Io {
        /// The kind of failure.
        kind: ErrorKind,
        /// The message of the reader.
        detail: String,
    },
    /// The source holds no byte at all.
    #[error("the source is empty")]
    Empty,
    /// The first bytes belong to no known format.
    #[error(
        "unknown format, it starts with{}",
        .head.iter().map(|byte| format!(" {byte:02x}")).collect::<String>()
    )]
    Unrecognised {
        /// Up to sixteen first bytes.
        head: Vec<u8>,
    },
    /// The source ends inside a part.
    #[error("truncated {what}: it needs {needed} bytes, {found} are left")]
    Truncated {
        /// The part that is cut.
        what: &'static str,
        /// Bytes that the part needs.
        needed: u64,
        /// Bytes that are left.
        found: u64,
    },
    /// A well-framed message that is no ITCH 5.0 message.
    #[error("{0}")]
    Itch(ItchError),
    /// A part that contradicts its format.
    #[error("malformed {what}: found {found}")]
    Malformed {
        /// The part that is wrong.
        what: &'static str,
        /// The contents in its place.
        found: String,
    },
    /// A source, or a place in it, that the reader knows and does not take.
    #[error("{what}")]
    Refused {
        /// What the source is, or what comes at this place.
        what: String,
        /// The way to a source that is taken.
        advice: &'static str,
    },
    /// First copies are wanted of a source without two sides.
    #[error("first copies are wanted of a capture without two sides: found {found}")]
    NoTwoSides {
        /// What is there instead.
        found: String,
    },
    /// The source was read to its end, and nothing in it is a message.
    #[error("nothing in it is a message of a feed: {found}")]
    NothingTaken {
        /// What is there instead.
        found: String,
    },
    /// Messages were not taken, because other bytes came under their numbers before.
    #[error("{messages} messages were not taken: their numbers were used before, with other bytes")]
    NumbersReused {
        /// Number of these messages.
        messages: u64,
    },
    /// A claimed size above the reader's limit.
    #[error("{what} claims {found} bytes, the limit is {max}")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Bytes claimed.
        found: u64,
        /// Bytes allowed.
        max: u64,
    },
}

impl FeedFault {
    /// Advice for a person.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Io { kind: ErrorKind::UnexpectedEof, .. } => {
                "the file is cut short: fetch it again"
            }
            Self::Io { kind: ErrorKind::InvalidData | ErrorKind::InvalidInput, .. } => {
                "the file is damaged: fetch it again"
            }
            Self::Io { .. } => "check the file and the permission to read it",
            Self::Empty => "give a file with messages",
            Self::Unrecognised { .. } => {
                "give ITCH 5.0 with 2-byte lengths, pcap, pcapng or a message file of LOBSTER \
                 (CSV), each plain, in gzip or alone in a zip"
            }
            Self::Refused { advice, .. } => advice,
            Self::Truncated { .. } => {
                "the file is cut short: fetch it again, or cut it off at this byte"
            }
            Self::Itch(_) => "the feed is not pure ITCH 5.0 or is damaged: look at this byte",
            Self::Malformed { .. } => "the file is damaged or of another format: look at this byte",
            Self::NoTwoSides { .. } => {
                "without --arbitrate, --sides one or feed.arbitrate = true, all packets are given"
            }
            Self::NothingTaken { .. } => {
                "look with `tshark -r FILE` what the capture holds; whole datagrams of UDP and \
                 connections of SoupBinTCP are read (tcpdump -s 0)"
            }
            Self::NumbersReused { .. } => {
                "all other messages were given; --sides both, --arbitrate false or \
                 feed.arbitrate = false gives every packet as it was captured"
            }
            Self::TooLarge { .. } => "the file is damaged, or was not written by a capture tool",
        }
    }
}

/// A word of the command line or the settings that names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is no format: {}", .0, crate::codec::words())]
pub struct UnknownFormat(pub String);
