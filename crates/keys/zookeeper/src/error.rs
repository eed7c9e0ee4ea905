//! The errors that a caller can see.

use core::fmt;

use evenfall_consensus_replica::ReplicaError;
use evenfall_core::Malformed;

/// Why a replica of ordered keys did not start, or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeysError {
    /// The replica of the consensus did not start, or ended.
    Replica(ReplicaError),
    /// A socket or a thread failed: what was done, and the error.
    Io(String, std::io::Error),
    /// A snapshot in the log, or from another replica, cannot be read.
    Snapshot(Malformed),
    /// The thread of the connections has ended.
    FrontEnded,
    /// An option of ZooKeeper is unknown or has a value that is not allowed: the option, and what
    /// is allowed.
    Option(String, &'static str),
}

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(error) => error.fmt(f),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Snapshot(error) => write!(f, "the snapshot cannot be read: {error}"),
            Self::FrontEnded => {
                f.write_str("the thread that serves clients has ended: start the replica again")
            }
            Self::Option(option, may_be) => write!(f, "{option}: {may_be}"),
        }
    }
}

impl std::error::Error for KeysError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of an error contains its cause already, so the source is the cause of that
        // cause.
        match self {
            Self::Replica(error) => error.source(),
            Self::Io(_, error) => error.source(),
            Self::Snapshot(error) => error.source(),
            Self::FrontEnded | Self::Option(..) => None,
        }
    }
}

impl From<ReplicaError> for KeysError {
    fn from(error: ReplicaError) -> Self {
        Self::Replica(error)
    }
}
