//! The errors that a caller can see.

use evenfall_core::journal::LogError;
use evenfall_core::{Malformed, NodeId};

use crate::config::SecondRound;

/// Why a replica was not made, or did not take a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConsensusError {
    /// The tree is no leaf-only tree.
    #[error("the tree is not usable: {0}")]
    Tree(&'static str),
    /// The tree does not have the node.
    #[error("the tree has no node {0}")]
    Stranger(NodeId),
    /// The log on the disk is refused.
    #[error(transparent)]
    Log(LogError),
    /// The log has a record of another protocol or of another version of this protocol.
    #[error(
        "the log has a record that this build cannot read ({0}): start the build that wrote the log"
    )]
    Record(Malformed),
    /// The log is of another node.
    #[error("the log is of node {0}: start this node with its own directory, or with an empty one")]
    OtherNode(NodeId),
    /// The log has write leases of another length than the configuration.
    #[error(
        "the log has write leases of {log} cycles and not of {given}: start all replicas with the \
         number of their logs"
    )]
    OtherLeases {
        /// [`Config::lease_cycles`](crate::Config::lease_cycles) of the log.
        log: u64,
        /// [`Config::lease_cycles`](crate::Config::lease_cycles) of the configuration.
        given: u64,
    },
    /// The log began with another pipeline than the configuration.
    #[error(
        "the log has {log} cycles under way at once and not {given}: start all replicas with the \
         round trip between racks with which they began"
    )]
    OtherPipeline {
        /// [`Config::pipeline`](crate::Config::pipeline) of the log.
        log: u64,
        /// [`Config::pipeline`](crate::Config::pipeline) of the configuration.
        given: u64,
    },
    /// The log began with another [`Config::second_round`](crate::Config::second_round), and this
    /// is the log's.
    #[error(
        "the log began with another setting of how racks may vanish ({0}): start all replicas with \
         the setting of their logs"
    )]
    OtherRounds(SecondRound),
    /// The list of the membership service outside is refused, and why.
    #[error("the list of the membership service {0}")]
    ExternalList(&'static str),
    /// The settings exclude each other.
    #[error("{0}")]
    Settings(&'static str),
    /// The other super-leaves could not go on without this one.
    #[error("the super-leaves that are left could not go on")]
    Needed,
    /// The limit of waiting requests is reached. Try again when some are committed.
    #[error("too many requests wait: try again when some are committed")]
    Full,
    /// The request is longer than what the tree allows a node in one cycle.
    #[error("a request of {bytes} bytes: at most {bytes_max} fit a cycle")]
    TooLong {
        /// Bytes of the request.
        bytes: usize,
        /// Most bytes of a request.
        bytes_max: usize,
    },
    /// The disk is full. The replica takes requests again when there is room on the disk.
    #[error("the disk is full: make room on it")]
    DiskFull,
    /// The disk failed: the replica has stopped. Mend the disk and start the replica again.
    #[error("the disk failed and the replica has stopped")]
    Stopped,
}
