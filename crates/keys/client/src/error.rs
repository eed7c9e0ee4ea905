//! The errors that a caller can see.

use evenfall_core::Malformed;
use evenfall_keys_machine::KeyRefusal;

/// Why a client got no answer, or not the one that it asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The keys refused a call.
    #[error(transparent)]
    Refused(KeyRefusal),
    /// A rack cannot leave, and why.
    #[error("rack {0} does not leave: {1}")]
    Rack(u8, &'static str),
    /// No replica answered: what the last one said.
    #[error("no replica answered: {0}")]
    Unanswered(String),
    /// An answer cannot be read.
    #[error("the answer cannot be read: {0}")]
    Answer(Malformed),
}
