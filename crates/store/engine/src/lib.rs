//! The store as it runs: files over one local disk, an object store and a directory of names.
//!
//! ```text
//!  append ──> Appender (one lock per file) ──> acknowledged: memory
//!                 │ full segments, frames
//!                 v
//!            disk thread: commit + sync ──────> acknowledged: local
//!                 │       chunks, sync, checkpoint
//!                 v
//!            upload thread: full chunks, and tails now and then ──> acknowledged: object
//! ```
//!
//! An append takes the lock of its own file, and the shared queue only when a segment fills or the
//! client asks for `local`. Whatever cannot go on in its stage is refused at the door, before
//! anything is taken, by the name of the stage; a refused append may be tried again.
//!
//! | module | what it holds |
//! |---|---|
//! | [`engine`] | [`Store`]: open, create, append, read, close |
//! | [`archive`] | [`Archive`]: the same files read from objects alone |
//! | [`level`] | [`Level`]: words, wire numbers and waits of the levels |
//! | [`directory`], [`bucket`], [`names`] | the disk, the objects, the names |
//! | `parts`, `uploads` | chunks out of the objects, several at once, and into them |
//! | [`source`] | reading, the same from a store and from an archive |
//! | [`cluster_source`] | any file of a cluster: objects, and the primary for what is newer |
//! | [`export`] | records as text and as batches |
//! | [`import`] | records out of text |
//! | [`columns`] | records as Arrow columns |
//! | [`sheet`] | batches as Parquet or as an Arrow stream |
//! | [`protocol`], [`client`] | the store on a port, from its client |
//! | [`seal`] | the list of whole files that a clean stop leaves behind |

#![forbid(unsafe_code)]

pub mod archive;
pub mod bucket;
pub mod client;
#[cfg(feature = "etcd")]
pub mod cluster_source;
#[cfg(feature = "arrow")]
pub mod columns;
pub mod directory;
pub mod engine;
pub mod export;
#[doc(hidden)]
pub mod fuzzing;
pub mod import;
pub mod level;
pub mod names;
mod parts;
pub mod protocol;
pub mod seal;
#[cfg(feature = "arrow")]
pub mod sheet;
pub mod source;
mod uploads;

#[cfg(test)]
mod tests;

pub use archive::Archive;
pub use bucket::{Bucket, BucketOptions};
pub use client::{Client, Completion, RemoteFile, RemoteSource};
#[cfg(feature = "etcd")]
pub use cluster_source::{ClusterSource, Freshness};
pub use directory::Directory;
pub use engine::{Occupancy, Opened, Store, StoreConfig, StoreFile, TakenOver};
pub use level::{Level, LevelError, Wait};
pub use names::{ClusterConfig, Entry, Names, NamesError};
pub use source::{Listed, RecordSource};

use evenfall_store_format::Error;

/// Why the store did not do it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The store's own reason.
    Store(Error),
    /// The directory of names.
    Names(NamesError),
    /// The lease of this store node has run out: what was asked for is not acknowledged.
    LeaseLost {
        /// The store node.
        node: u32,
        /// Whether it is over for good; otherwise it may still be renewed.
        is_over: bool,
    },
    /// The second node does not have it.
    Replica {
        /// Which, and why.
        what: String,
        /// Whether the same request may succeed later.
        is_retryable: bool,
    },
    /// The file is a copy of another node's, and takes records from that node alone.
    IsCopy {
        /// Its name.
        file: String,
    },
    /// The records of an append are taken and readable, and have not reached its level. The same
    /// append again would take them twice.
    Unreached {
        /// Number of the first of them.
        first: u64,
        /// The level.
        level: Level,
        /// Why.
        why: Box<StoreError>,
    },
    /// There is no object store to do it with.
    NoObjects,
    /// The store is being closed.
    Closing,
    /// The other end of a connection said so, or the connection itself.
    Remote {
        /// In words.
        what: String,
        /// Whether the same request may succeed later.
        is_retryable: bool,
    },
}

impl StoreError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Remote { is_retryable, .. } | Self::Replica { is_retryable, .. } => *is_retryable,
            Self::LeaseLost { is_over, .. } => !is_over,
            Self::Names(error) => matches!(error, NamesError::Unavailable(_)),
            Self::NoObjects | Self::Closing | Self::IsCopy { .. } | Self::Unreached { .. } => false,
        }
    }
}

impl StoreError {
    /// Whether a disk has no room: waiting alone does not help.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Store(Error::NoRoom { .. }))
    }
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Names(error) => error.fmt(f),
            Self::LeaseLost { node, is_over } => {
                NamesError::LeaseLost { node: *node, is_over: *is_over }.fmt(f)
            }
            Self::Unreached { first, level, why } => write!(
                f,
                "{why}; not {level}: the records from {first} on are taken, do not repeat them"
            ),
            Self::NoObjects => {
                f.write_str("no object store is configured: name one, or ask for local")
            }
            Self::Closing => f.write_str("the store is being closed"),
            Self::Remote { what, .. } | Self::Replica { what, .. } => f.write_str(what),
            Self::IsCopy { file } => write!(
                f,
                "{file} is a copy of another node's file here: append there, or, when that node \
                 is lost, serve this one with --take-over"
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => std::error::Error::source(error),
            Self::Names(error) => std::error::Error::source(error),
            Self::Unreached { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<evenfall_core::StorageError> for StoreError {
    fn from(error: evenfall_core::StorageError) -> Self {
        Self::Store(error.into())
    }
}

impl From<NamesError> for StoreError {
    fn from(error: NamesError) -> Self {
        match error {
            NamesError::LeaseLost { node, is_over } => Self::LeaseLost { node, is_over },
            NamesError::Fenced { file, token, newer } => {
                Error::Fenced { file, token, newer }.into()
            }
            other => Self::Names(other),
        }
    }
}

/// Connections of the store have no key, and without a key nothing leaves loopback: servers,
/// clients, second nodes and names all ask here first.
///
/// # Errors
/// Of an address that is not of this machine alone.
pub fn expect_loopback(what: &str, address: std::net::SocketAddr) -> Result<(), NotLoopback> {
    match address.ip().to_canonical().is_loopback() {
        true => Ok(()),
        false => Err(NotLoopback { what: what.to_owned(), address }),
    }
}

/// An address that other machines reach, for a connection that has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLoopback {
    /// What the address is of.
    pub what: String,
    /// The address.
    pub address: std::net::SocketAddr,
}

impl std::fmt::Display for NotLoopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, address } = self;
        write!(
            f,
            "{what} {address} is not loopback: the connection has no key, and without a key \
             nothing leaves loopback; use 127.0.0.1 and a tunnel"
        )
    }
}

impl std::error::Error for NotLoopback {}

/// The content of a mutex, also when a thread that held it has panicked.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
