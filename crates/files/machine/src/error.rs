//! Why a call was refused, and why a machine cannot start.

use core::fmt;

use evenfall_core::journal::LogError;
use serde::{Deserialize, Serialize};

/// Why a call was refused. Every reason has its exception in Hadoop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FilesRefusal {
    /// No file or directory has this path.
    NotFound(String),
    /// A file or directory has this path already.
    Exists(String),
    /// A part of the path is a file.
    NotDirectory(String),
    /// The path is a directory, and a file is needed.
    IsDirectory(String),
    /// The path has another file than the caller knew, or the file has another length.
    Changed(String),
    /// The directory has entries, and the call is not recursive.
    NotEmpty(String),
    /// The user lacks a right. The text says which one, in the words of HDFS.
    Denied(String),
    /// The path or an argument is not valid. The text says why.
    Invalid(String),
    /// A limit is reached. The text names the limit.
    Limit(String),
    /// Too few dataservers are alive for the copies of the file. The numbers are the needed and the
    /// live dataservers.
    TooFewServers(usize, usize),
    /// An append is empty or too long.
    Length,
    /// This dataserver has no copy of the file.
    NotHere,
    /// This dataserver is not the primary of the file now. The nameserver knows the primary.
    NotPrimary,
    /// The queue of writes for the disks is full. The caller may try again.
    Busy,
    /// The append was not made and will not be made. The caller may try again.
    Again,
    /// The append may have been made or not. The dataserver does not know.
    Unknown,
    /// The disk of the nameserver is full.
    DiskFull,
    /// The disk of the dataserver is full. The append was not made.
    NoRoom,
    /// The log of the nameserver is older than a copy that a dataserver keeps.
    OldLog,
    /// All dataservers that keep copies of the nameserver's log are silent. The texts are the names
    /// of the dataservers that changes wait for. Once an operator has given these up, changes go
    /// on.
    SilentKeepers(Vec<String>),
    /// Another writer holds the lease of the file. The text says who, since when and until when.
    LeaseHeld(String),
    /// The lease of another writer ends now. The caller may try again.
    Recovering(String),
    /// The writer has lost its lease. The text says who holds the lease now, since when and until
    /// when.
    LeaseLost(String),
    /// The dataserver that leads the file is of a build that does not check leases. The text names
    /// the dataserver.
    OldServer(String),
}

impl fmt::Display for FilesRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(path) => write!(f, "{path} does not exist"),
            Self::Exists(path) => write!(f, "{path} exists already"),
            Self::NotDirectory(path) => write!(f, "{path} is a file and not a directory"),
            Self::IsDirectory(path) => write!(f, "{path} is a directory and not a file"),
            Self::Changed(path) => write!(f, "{path} has changed meanwhile"),
            Self::NotEmpty(path) => write!(f, "{path} is not empty: delete it recursively"),
            Self::Invalid(what)
            | Self::Limit(what)
            | Self::Denied(what)
            | Self::LeaseHeld(what)
            | Self::Recovering(what)
            | Self::LeaseLost(what) => f.write_str(what),
            Self::OldServer(name) => write!(
                f,
                "the dataserver {name} is of an earlier build, which does not check the leases of \
                 writers: start the build of the nameserver there"
            ),
            Self::TooFewServers(needed, live) => {
                write!(f, "the file needs {needed} dataservers, and {live} are alive: start more")
            }
            Self::Length => {
                let most = crate::config::APPEND_BYTES_MAX;
                write!(f, "an append has 1 to {most} bytes")
            }
            Self::NotHere => f.write_str("this dataserver has no copy of the file"),
            Self::NotPrimary => f.write_str("this dataserver does not lead the file now"),
            Self::Busy => f.write_str("too much waits for the disks: try again"),
            Self::Again => f.write_str("the append was given up: try again"),
            Self::Unknown => {
                f.write_str("the append may have been made or not: read the file to find out")
            }
            Self::OldLog => f.write_str(
                "the log of the nameserver is older than its copies on dataservers: rebuild the \
                 nameserver from them (docs/files.md)",
            ),
            Self::SilentKeepers(names) => write!(
                f,
                "all dataservers with copies of the nameserver's log are silent ({}): start one of \
                 them or another dataserver, or give up those that never come back with `evenfall \
                 files forget`",
                names.join(", ")
            ),
            Self::NoRoom => f.write_str("the disk of the dataserver is full"),
            Self::DiskFull => f.write_str("the disk of the nameserver takes no bytes"),
        }
    }
}

impl std::error::Error for FilesRefusal {}

/// Why a machine cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilesError {
    /// The log on the disk is refused.
    Log(LogError),
    /// The log has a record of another program or of another version.
    Record,
}

impl fmt::Display for FilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => error.fmt(f),
            Self::Record => f.write_str(
                "the log has a record that this build cannot read: start the build that wrote the \
                 log",
            ),
        }
    }
}

impl std::error::Error for FilesError {}
