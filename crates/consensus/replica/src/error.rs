//! The errors that a caller can see.

use std::path::PathBuf;

use evenfall_consensus_machine::ConsensusError;

/// Why a replica did not start, or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The machine refused.
    Consensus(ConsensusError),
    /// The machine refused this log. The log stays as it is.
    Log(PathBuf, ConsensusError),
    /// A replica was first started with other settings that all replicas share and that its log
    /// depends on: the file that says so, the first settings, and those of this start.
    Cluster {
        /// The file.
        path: PathBuf,
        /// The settings of the first start.
        first: String,
        /// The settings of this start.
        given: String,
    },
    /// The host refused a socket or a thread.
    Host(evenfall_host::Error),
    /// A file failed: what was done, and the error.
    Io(String, std::io::Error),
    /// The disk failed, and the replica has stopped.
    Disk(evenfall_core::StorageError),
}

impl std::fmt::Display for ReplicaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Consensus(error) => error.fmt(f),
            Self::Log(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Cluster { path, first, given } => write!(
                f,
                "{}: the log was made with other settings ({first}) than those of this start \
                 ({given}): start the replica as before, or give another directory",
                path.display()
            ),
            Self::Host(error) => error.fmt(f),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Disk(error) => write!(f, "the log cannot be written: {error}"),
        }
    }
}

impl std::error::Error for ReplicaError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of an error contains its cause already, so the source is the cause of that
        // cause.
        match self {
            Self::Consensus(error) | Self::Log(_, error) => error.source(),
            Self::Host(error) => error.source(),
            Self::Io(_, error) => error.source(),
            Self::Disk(error) => error.source(),
            Self::Cluster { .. } => None,
        }
    }
}

impl From<ConsensusError> for ReplicaError {
    fn from(error: ConsensusError) -> Self {
        Self::Consensus(error)
    }
}

impl From<evenfall_host::Error> for ReplicaError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Host(error)
    }
}
