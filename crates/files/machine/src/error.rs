//! Why a call was refused, and why a machine cannot start.

use evenfall_core::journal::LogError;
use serde::{Deserialize, Serialize};

/// Why a call was refused. Every reason has its exception in Hadoop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum FilesRefusal {
    /// No file or directory has this path.
    #[error("{0} does not exist")]
    NotFound(String),
    /// A file or directory has this path already.
    #[error("{0} exists already")]
    Exists(String),
    /// A part of the path is a file.
    #[error("{0} is a file and not a directory")]
    NotDirectory(String),
    /// The path is a directory, and a file is needed.
    #[error("{0} is a directory and not a file")]
    IsDirectory(String),
    /// The path has another file than the caller knew, or the file has another length.
    #[error("{0} has changed meanwhile")]
    Changed(String),
    /// The directory has entries, and the call is not recursive.
    #[error("{0} is not empty: delete it recursively")]
    NotEmpty(String),
    /// The user lacks a right. The text says which one, in the words of HDFS.
    #[error("{0}")]
    Denied(String),
    /// The path or an argument is not valid. The text says why.
    #[error("{0}")]
    Invalid(String),
    /// A limit is reached. The text names the limit.
    #[error("{0}")]
    Limit(String),
    /// Too few dataservers are alive for the copies of the file. The numbers are the needed and the
    /// live dataservers.
    #[error("the file needs {0} dataservers, and {1} are alive: start more")]
    TooFewServers(usize, usize),
    /// An append is empty or too long.
    #[error("an append has 1 to {} bytes", crate::config::APPEND_BYTES_MAX)]
    Length,
    /// This dataserver has no copy of the file.
    #[error("this dataserver has no copy of the file")]
    NotHere,
    /// This dataserver is not the primary of the file now. The nameserver knows the primary.
    #[error("this dataserver does not lead the file now")]
    NotPrimary,
    /// The queue of writes for the disks is full. The caller may try again.
    #[error("too much waits for the disks: try again")]
    Busy,
    /// The append was not made and will not be made. The caller may try again.
    #[error("the append was given up: try again")]
    Again,
    /// The append may have been made or not. The dataserver does not know.
    #[error("the append may have been made or not: read the file to find out")]
    Unknown,
    /// The disk of the nameserver is full.
    #[error("the disk of the nameserver takes no bytes")]
    DiskFull,
    /// The disk of the dataserver is full. The append was not made.
    #[error("the disk of the dataserver is full")]
    NoRoom,
    /// The log of the nameserver is older than a copy that a dataserver keeps.
    #[error(
        "the log of the nameserver is older than its copies on dataservers: rebuild the \
         nameserver from them (docs/files.md)"
    )]
    OldLog,
    /// All dataservers that keep copies of the nameserver's log are silent. The texts are the names
    /// of the dataservers that changes wait for. Once an operator has given these up, changes go
    /// on.
    #[error(
        "all dataservers with copies of the nameserver's log are silent ({}): start one of them \
         or another dataserver, or give up those that never come back with `evenfall files \
         forget`",
        .0.join(", ")
    )]
    SilentKeepers(Vec<String>),
    /// Another writer holds the lease of the file. The text says who, since when and until when.
    #[error("{0}")]
    LeaseHeld(String),
    /// The lease of another writer ends now. The caller may try again.
    #[error("{0}")]
    Recovering(String),
    /// The writer has lost its lease. The text says who holds the lease now, since when and until
    /// when.
    #[error("{0}")]
    LeaseLost(String),
    /// The dataserver that leads the file is of a build that does not check leases. The text names
    /// the dataserver.
    #[error(
        "the dataserver {0} is of an earlier build, which does not check the leases of \
         writers: start the build of the nameserver there"
    )]
    OldServer(String),
}

/// Why a machine cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The log on the disk is refused.
    #[error(transparent)]
    Log(LogError),
    /// The log has a record of another program or of another version.
    #[error("the log has a record that this build cannot read: start the build that wrote the log")]
    Record,
}
