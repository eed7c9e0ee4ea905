//! The running store: files over one local disk, an object store and a directory of names.
//!
//! ```text
//!  append ──> Appender (one lock per file) ──> acknowledged: memory
//!                 │ full segments, frames
//!                 v
//!            disk thread: commit + sync ──────> acknowledged: local
//!                 │       chunks, sync, checkpoint
//!                 v
//!            upload thread: full chunks, and packs of the ends ──> acknowledged: object
//! ```
//!
//! An append takes the lock of its own file. An append takes the shared queue only when a segment
//! fills or the client asks for `local`. When a stage is at its limit, an append is refused before
//! any record is taken, and the error names the stage. A refused append may be tried again.
//!
//! | module | what it holds |
//! |---|---|
//! | [`engine`] | [`Store`]: open, create, append, read, close |
//! | [`append_watch`] | wakes the threads that wait for appends |
//! | [`archive`] | [`Archive`]: the same files read from objects alone |
//! | [`level`] | [`StoreAckLevel`]: words, wire numbers and waits of the levels |
//! | [`disk_directory`], [`bucket`], [`names`] | the disk, the objects and the names of files |
//! | `parts`, `uploads` | downloads of chunks from the objects, several at once, and uploads |
//! | `life_catalog` | the names of all files of a life, in few objects |
//! | `publisher` | packs with the ends of many files, for readers and acknowledgements at `object` |
//! | [`source`] | one way of reading for a store and an archive |
//! | [`cluster_source`] | any file of a cluster: from objects, and newer records from the primary |
//! | [`export`] | records as text |
//! | [`bars`] | counts and aggregates of intervals of time, out of the index |
//! | [`import`] | records from text |
//! | [`columns`] | records as Arrow columns |
//! | [`batch_writer`] | batches as Parquet or as an Arrow stream |
//! | [`protocol`], [`client`] | the protocol of a store on a port, and its client |
//! | [`wire_socket`] | the socket of a connection, plain or sealed under the key of a user |
//! | [`clean_shutdown`] | the list of whole files that a clean stop leaves behind |
//! | [`write_counters`] | the bytes that are written to the disk, by what they are |

#![forbid(unsafe_code)]

pub mod append_watch;
pub mod archive;
pub mod bars;
#[cfg(feature = "arrow")]
pub mod batch_writer;
pub mod bucket;
pub mod clean_shutdown;
pub mod client;
pub mod cluster_source;
#[cfg(feature = "arrow")]
pub mod columns;
pub mod disk_directory;
pub mod engine;
pub mod export;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod import;
pub mod level;
mod life_catalog;
pub mod names;
mod parts;
pub mod protocol;
mod publisher;
mod read_part;
pub mod source;
mod uploads;
pub mod wire_socket;
pub mod write_counters;

#[cfg(test)]
mod tests;

pub use archive::Archive;
pub use bucket::{Bucket, BucketOptions};
pub use client::{
    AppendCompletion, Client, ConnectOptions, FileSubscription, KEY_VARIABLE, PushedRecords,
    RemoteFile, RemoteSource, read_user_key, user_key_from_environment,
};
pub use cluster_source::ClusterSource;
pub use disk_directory::DiskDirectory;
pub use engine::{
    ChunkForm, NodeReader, NonPrimaryBytes, NonPrimaryFile, Occupancy, OpenedStore, ReadableFile,
    Store, StoreConfig, StoreFile, StorePlaces, TIME_AHEAD_MAX, TakenOver,
};
pub use level::{LevelError, StoreAckLevel, Wait};
pub use names::{ClusterConfig, Entry, Names, NamesError};
pub use protocol::{Freshness, KnownEnd, SubscriptionEnd};
pub use source::{FieldColumns, FileListing, RecordSource};

use evenfall_store_format::columnar::InstalledCodec;
use evenfall_store_format::{ColumnDisk, Error};

/// The disk of a store: a directory whose chunks may be in columns.
pub type StoreDisk = ColumnDisk<DiskDirectory>;

/// The codec of chunks in columns; `None` in a build without the feature `arrow`.
#[cfg(feature = "arrow")]
pub fn chunk_codec() -> InstalledCodec {
    Some(&evenfall_store_columns::ParquetCodec)
}

/// The codec of chunks in columns; `None` in a build without the feature `arrow`.
#[cfg(not(feature = "arrow"))]
pub fn chunk_codec() -> InstalledCodec {
    None
}

/// The first letters of a file's name, for an error whose other words have to fit a reply too.
pub fn shorten_name(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Why the store did not carry out a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// An error of the store itself.
    Store(Error),
    /// An error of the directory of names.
    Names(NamesError),
    /// The lease of this store node has run out, so the request is not acknowledged.
    LeaseLost {
        /// The store node.
        node: u32,
        /// Whether the lease is over for good. Otherwise it may still be renewed.
        is_over: bool,
    },
    /// The second node does not have the records.
    Replica {
        /// The second node, and the reason.
        what: String,
        /// Whether the same request may succeed later.
        is_retryable: bool,
    },
    /// The file is a copy of another node's file, and takes records only from that node.
    IsCopy {
        /// Its name.
        file: String,
    },
    /// The records of an append are taken and readable, but have not reached its level. A repeated
    /// append would take them a second time.
    Unreached {
        /// Number of the first record.
        first: u64,
        /// The level.
        level: StoreAckLevel,
        /// Reason of the failure.
        why: Box<StoreError>,
    },
    /// The primary of a file does not give the records that are not published yet.
    PrimarySilent {
        /// The file's name.
        file: String,
        /// The store node that is the primary.
        primary: u32,
        /// Number behind the last published record.
        published: u64,
        /// Why the primary gives none.
        why: Box<StoreError>,
    },
    /// A name that would stand for a file and for a recording.
    NameTaken {
        /// The name.
        name: String,
        /// What has the name.
        by: &'static str,
    },
    /// The request needs an object store, and the store has none.
    NoObjects,
    /// The store is being closed.
    Closing,
    /// A subscription has ended before its reader ended it.
    SubscriptionEnded {
        /// The reason.
        why: SubscriptionEnd,
        /// Number of the record that would have come next.
        next: u64,
        /// Number of the first record that the file still has.
        kept: u64,
    },
    /// The other end of a connection reported an error, or the connection failed.
    Remote {
        /// The error in words.
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
            Self::PrimarySilent { .. } => true,
            Self::SubscriptionEnded { why, .. } => match why {
                SubscriptionEnd::NoCredit | SubscriptionEnd::ServerStopping => true,
                SubscriptionEnd::Asked
                | SubscriptionEnd::RecordsGone
                | SubscriptionEnd::FileDeleted => false,
            },
            Self::Names(error) => matches!(error, NamesError::Unavailable(_)),
            Self::NoObjects
            | Self::Closing
            | Self::IsCopy { .. }
            | Self::NameTaken { .. }
            | Self::Unreached { .. } => false,
        }
    }
}

impl StoreError {
    /// Whether a disk has no room. Waiting alone does not help then.
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
            Self::PrimarySilent { file, primary, published, why } => {
                let shown = shorten_name(file);
                write!(
                    f,
                    "{shown} is known up to record {published} (excluded), which is published; its \
                     primary, store node {primary}, does not give the rest: {why}"
                )
            }
            Self::NoObjects => {
                f.write_str("no object store is configured: name one, or append at the level local")
            }
            Self::NameTaken { name, by } => {
                write!(f, "{name} is the name of a {by} already: choose another name")
            }
            Self::Closing => f.write_str("the store is being closed"),
            Self::SubscriptionEnded { why, next, kept } => write_end(f, *why, *next, *kept),
            Self::Remote { what, .. } | Self::Replica { what, .. } => f.write_str(what),
            Self::IsCopy { file } => write!(
                f,
                "{file} is a copy of another node's file here: append there, or, when that node \
                 is lost, serve this one with --take-over"
            ),
        }
    }
}

/// Writes why a subscription ended. `next` is the record that would have come next, and `kept` the
/// first record that the file still has.
fn write_end(
    f: &mut std::fmt::Formatter<'_>,
    why: SubscriptionEnd,
    next: u64,
    kept: u64,
) -> std::fmt::Result {
    match why {
        SubscriptionEnd::Asked => write!(f, "the subscription was ended before record {next}"),
        SubscriptionEnd::NoCredit => write!(
            f,
            "the reader took no records for too long: subscribe again from record {next} on"
        ),
        SubscriptionEnd::RecordsGone => write!(
            f,
            "retention has deleted the records {next} to {} before the reader took them: the file \
             begins with record {kept}",
            kept.saturating_sub(1)
        ),
        SubscriptionEnd::FileDeleted => write!(f, "the file was deleted before record {next}"),
        SubscriptionEnd::ServerStopping => {
            write!(f, "the server stops: subscribe again from record {next} on")
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => std::error::Error::source(error),
            Self::Names(error) => std::error::Error::source(error),
            Self::Unreached { why, .. } | Self::PrimarySilent { why, .. } => {
                std::error::Error::source(why)
            }
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

/// Checks that an address is on loopback. A connection without a key may not leave loopback.
/// Servers, clients, second nodes and names all call this function first.
///
/// # Errors
/// When other machines can reach the address.
pub fn expect_loopback(what: &str, address: std::net::SocketAddr) -> Result<(), NotLoopback> {
    expect_closed(what, address, false, "use 127.0.0.1 and a tunnel")
}

/// Checks that an address is on loopback, unless the connection has a key. The advice says how a
/// user gives a key.
///
/// # Errors
/// When other machines can reach the address, and there is no key.
pub fn expect_closed(
    what: &str,
    address: std::net::SocketAddr,
    is_keyed: bool,
    advice: &'static str,
) -> Result<(), NotLoopback> {
    match is_keyed || address.ip().to_canonical().is_loopback() {
        true => Ok(()),
        false => Err(NotLoopback { what: what.to_owned(), address, advice }),
    }
}

/// An address that other machines reach, for a connection that has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLoopback {
    /// The part whose address it is.
    pub what: String,
    /// The address.
    pub address: std::net::SocketAddr,
    /// What to do.
    pub advice: &'static str,
}

impl std::fmt::Display for NotLoopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, address, advice } = self;
        write!(
            f,
            "{what} {address} is not loopback: the connection has no key, and without a key \
             nothing leaves loopback; {advice}"
        )
    }
}

impl std::error::Error for NotLoopback {}

/// Locks a mutex, also when a thread that held it has panicked.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
