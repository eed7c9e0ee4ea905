//! The errors that a caller can see.

use core::fmt;

use evenfall_core::Malformed;
use evenfall_keys_machine::KeyRefusal;

/// Why a client got no answer, or not the one that it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// The keys refused a call.
    Refused(KeyRefusal),
    /// A rack cannot leave, and why.
    Rack(u8, &'static str),
    /// No replica answered: what the last one said.
    Unanswered(String),
    /// An answer cannot be read.
    Answer(Malformed),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Rack(rack, why) => write!(f, "rack {rack} does not leave: {why}"),
            Self::Unanswered(what) => write!(f, "no replica answered: {what}"),
            Self::Answer(error) => write!(f, "the answer cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of an error contains its cause already, so the source is the cause of that
        // cause.
        match self {
            Self::Refused(refusal) => refusal.source(),
            Self::Answer(error) => error.source(),
            Self::Rack(..) | Self::Unanswered(_) => None,
        }
    }
}
