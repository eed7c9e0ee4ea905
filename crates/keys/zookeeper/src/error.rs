//! The errors that a caller can see.

use evenfall_consensus_replica::ReplicaError;
use evenfall_core::Malformed;

/// Why a replica of ordered keys did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The replica of the consensus did not start, or ended.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A socket or a thread failed: what was done, and the error.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// A snapshot in the log, or from another replica, cannot be read.
    #[error("the snapshot cannot be read: {0}")]
    Snapshot(Malformed),
    /// The thread of the connections has ended.
    #[error("the thread that serves clients has ended: start the replica again")]
    FrontEnded,
    /// An option of ZooKeeper is unknown or has a value that is not allowed: the option, and what
    /// is allowed.
    #[error("{0}: {1}")]
    Option(String, &'static str),
}
