//! The errors that a caller can see.

use core::fmt;

use evenfall_core::journal::LogError;
use evenfall_core::{Malformed, NodeId};

use crate::config::SecondRound;

/// Why a replica was not made, or did not take a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsensusError {
    /// The tree is no leaf-only tree.
    Tree(&'static str),
    /// The tree does not have the node.
    Stranger(NodeId),
    /// The log on the disk is refused.
    Log(LogError),
    /// The log has a record of another protocol or of another version of this protocol.
    Record(Malformed),
    /// The log is of another node.
    OtherNode(NodeId),
    /// The log has write leases of another length than the configuration.
    OtherLeases {
        /// [`Config::lease_cycles`](crate::Config::lease_cycles) of the log.
        log: u64,
        /// [`Config::lease_cycles`](crate::Config::lease_cycles) of the configuration.
        given: u64,
    },
    /// The log began with another pipeline than the configuration.
    OtherPipeline {
        /// [`Config::pipeline`](crate::Config::pipeline) of the log.
        log: u64,
        /// [`Config::pipeline`](crate::Config::pipeline) of the configuration.
        given: u64,
    },
    /// The log began with another [`Config::second_round`](crate::Config::second_round), and this
    /// is the log's.
    OtherRounds(SecondRound),
    /// The list of the membership service outside is refused, and why.
    ExternalList(&'static str),
    /// The settings exclude each other.
    Settings(&'static str),
    /// The other super-leaves could not go on without this one.
    Needed,
    /// The limit of waiting requests is reached. Try again when some are committed.
    Full,
    /// The request is longer than what the tree allows a node in one cycle.
    TooLong {
        /// Bytes of the request.
        bytes: usize,
        /// Most bytes of a request.
        bytes_max: usize,
    },
    /// The disk is full. The replica takes requests again when there is room on the disk.
    DiskFull,
    /// The disk failed: the replica has stopped. Mend the disk and start the replica again.
    Stopped,
}

impl fmt::Display for ConsensusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(what) => write!(f, "the tree is not usable: {what}"),
            Self::Stranger(node) => write!(f, "the tree has no node {node}"),
            Self::Log(error) => error.fmt(f),
            Self::Record(what) => write!(
                f,
                "the log has a record that this build cannot read ({what}): start the build that \
                 wrote the log"
            ),
            Self::OtherNode(node) => write!(
                f,
                "the log is of node {node}: start this node with its own directory, or with an \
                 empty one"
            ),
            Self::OtherLeases { log, given } => write!(
                f,
                "the log has write leases of {log} cycles and not of {given}: start all replicas \
                 with the number of their logs"
            ),
            Self::OtherPipeline { log, given } => write!(
                f,
                "the log has {log} cycles under way at once and not {given}: start all replicas \
                 with the round trip between racks with which they began"
            ),
            Self::OtherRounds(second_round) => write!(
                f,
                "the log began with another setting of how racks may vanish ({second_round}): \
                 start all replicas with the setting of their logs"
            ),
            Self::ExternalList(what) => write!(f, "the list of the membership service {what}"),
            Self::Settings(what) => f.write_str(what),
            Self::Needed => write!(f, "the super-leaves that are left could not go on"),
            Self::Full => write!(f, "too many requests wait: try again when some are committed"),
            Self::TooLong { bytes, bytes_max } => {
                write!(f, "a request of {bytes} bytes: at most {bytes_max} fit a cycle")
            }
            Self::DiskFull => write!(f, "the disk is full: make room on it"),
            Self::Stopped => write!(f, "the disk failed and the replica has stopped"),
        }
    }
}

impl std::error::Error for ConsensusError {}
