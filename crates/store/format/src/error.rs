//! The errors of the store.

use core::fmt;

use evenfall_core::StorageError;

use crate::layout::{FileId, RECORD_BYTES_MAX, RECORD_BYTES_MIN};

/// Shorthand of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The queues through which an append passes, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stage {
    /// Segments in memory that no disk has yet.
    Memory,
    /// Chunks and journals on the local disk.
    LocalDisk,
    /// Chunks that wait for the object store.
    Upload,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::LocalDisk => "local disk",
            Self::Upload => "upload queue",
        })
    }
}

/// Why the store refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The length of the records is outside the allowed range.
    RecordLength {
        /// Bytes of a record.
        record_bytes: usize,
    },
    /// The bytes are not a whole number of records.
    BatchLength {
        /// Bytes of the batch.
        bytes: usize,
        /// Bytes of a record of this file.
        record_bytes: usize,
    },
    /// Time went back, further than the file's window allows. Nothing of the batch was taken.
    TimeWentBack {
        /// Place in the batch.
        at: usize,
        /// Time of the record.
        time_ns: i64,
        /// The earliest time that the file takes.
        limit_ns: i64,
    },
    /// A record's time lies too far ahead of the clock. Nothing of the batch was taken.
    TimeAhead {
        /// Place in the batch.
        at: usize,
        /// Time of the record.
        time_ns: i64,
        /// The latest time that is taken now.
        limit_ns: i64,
    },
    /// The times of a file count from midnight, so its records have no age.
    Ageless {
        /// The file's name.
        file: String,
    },
    /// A file has 2^32 segments at most.
    FileFull {
        /// Records in the file.
        records: u64,
    },
    /// There is no such file.
    UnknownFile {
        /// Name or number of the file.
        file: String,
    },
    /// A file of that name exists with another schema.
    FileExists {
        /// Name of the file.
        file: String,
    },
    /// The record does not exist yet, or is no longer kept.
    NoRecord {
        /// Number or time of the record, in words.
        record: String,
        /// First record that is kept.
        first: u64,
        /// The number behind the last record.
        end: u64,
    },
    /// The schema is invalid.
    Schema {
        /// The fault.
        what: String,
    },
    /// Bytes of another format or another version of ours.
    Version {
        /// File, chunk or segment.
        place: String,
        /// The version that the bytes state.
        version: u8,
    },
    /// Bytes whose checksum or structure is wrong.
    Damaged {
        /// File, chunk or segment.
        place: String,
        /// The fault.
        what: String,
    },
    /// Another node is the file's primary now.
    Fenced {
        /// The file.
        file: FileId,
        /// Our token.
        token: u32,
        /// The token that was seen.
        newer: u32,
    },
    /// A queue is at its limit. Nothing was taken; the same append may succeed later.
    Refused {
        /// The queue.
        stage: Stage,
        /// Bytes in the queue.
        bytes: u64,
        /// Limit of the queue, in bytes.
        bytes_max: u64,
    },
    /// The disk or object store behind a queue is full, although the queue is below its limit.
    /// Nothing was taken. The same append may succeed once there is room.
    NoRoom {
        /// The queue.
        stage: Stage,
        /// The error of the disk or the object store.
        why: StorageError,
    },
    /// The disk or the object store.
    Storage(StorageError),
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::NoRoom { .. } => true,
            Self::Storage(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// [`Error::Damaged`] in fewer words.
    pub(crate) fn damaged(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), what: what.into() }
    }
}

impl From<StorageError> for Error {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Damaged { name: place, what } => Self::Damaged { place, what },
            error => Self::Storage(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordLength { record_bytes } => write!(
                f,
                "a record of {record_bytes} bytes: it must have {RECORD_BYTES_MIN} to \
                 {RECORD_BYTES_MAX}"
            ),
            Self::BatchLength { bytes, record_bytes } => {
                write!(f, "{bytes} bytes are not a whole number of {record_bytes}-byte records")
            }
            Self::TimeWentBack { at, time_ns, limit_ns } => write!(
                f,
                "record {at} of the batch has time {time_ns} ns, before {limit_ns} ns: send in \
                 order of time, or make another file with a wider window (store create --window), \
                 for a file keeps its window"
            ),
            Self::TimeAhead { at, time_ns, limit_ns } => write!(
                f,
                "record {at} of the batch has time {time_ns} ns, which is later than {limit_ns} \
                 ns: the store takes no record so far ahead of this machine's clock, and nothing \
                 of the batch was taken; correct the time or the clock, or allow more with \
                 --time-ahead"
            ),
            Self::Ageless { file } => write!(
                f,
                "the times of {file} count from midnight, so its records have no age: limit \
                 the file by bytes"
            ),
            Self::FileFull { records } => {
                write!(f, "record {records} is past the end of any file: start a new file")
            }
            Self::UnknownFile { file } => write!(f, "there is no file {file}"),
            Self::FileExists { file } => {
                write!(f, "there is a file {file} already, with another schema")
            }
            Self::NoRecord { record, first, end } => {
                write!(f, "no record {record}: the file has records {first} to {end} (excluded)")
            }
            Self::Schema { what } => write!(f, "schema: {what}"),
            Self::Version { place, version } => {
                write!(f, "{place} has format version {version}; this program reads 1")
            }
            Self::Damaged { place, what } => write!(f, "{place} is damaged: {what}"),
            Self::Fenced { file, token, newer } => write!(
                f,
                "file {file}: token {token} is not valid any more, {newer} is: another node is \
                 its primary, append there"
            ),
            Self::Refused { stage, bytes, bytes_max } => write!(
                f,
                "the {stage} is at its limit, {bytes} of {bytes_max} bytes: try again later"
            ),
            Self::NoRoom { stage, why } => write!(f, "the {stage} is full: {why}"),
            Self::Storage(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
