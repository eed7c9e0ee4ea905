//! The errors that a caller can see.

use std::path::PathBuf;

use evenfall_consensus_machine::ConsensusError;

/// Why a replica did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The machine refused.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// The machine refused this log. The log stays as it is.
    #[error("{}: {error}", .0.display(), error = .1)]
    Log(PathBuf, ConsensusError),
    /// A replica was first started with other settings that all replicas share and that its log
    /// depends on: the file that says so, the first settings, and those of this start.
    #[error(
        "{}: the log was made with other settings ({first}) than those of this start ({given}): \
         start the replica as before, or give another directory",
        .path.display()
    )]
    Cluster {
        /// The file.
        path: PathBuf,
        /// The settings of the first start.
        first: String,
        /// The settings of this start.
        given: String,
    },
    /// The host refused a socket or a thread.
    #[error(transparent)]
    Host(#[from] evenfall_host::Error),
    /// A file failed: what was done, and the error.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// The disk failed, and the replica has stopped.
    #[error("the log cannot be written: {0}")]
    Disk(evenfall_core::StorageError),
}
