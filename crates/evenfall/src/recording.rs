//! Recordings of feeds: listed, read at one moment, and followed while they grow.
//!
//! With the feature `arrow`, recordings and files are tables of Arrow columns too ([`Tables`]).

pub use evenfall_store_recording::rows::{COLUMNS, csv, json};
pub use evenfall_store_recording::{
    Catalog, MessageRow, RecordedMessage, RecordingFiles, RecordingFollower, RecordingSnapshot,
    RecordingWriter, Recordings, RowSelection, StreamReplay,
};
#[cfg(feature = "arrow")]
pub use evenfall_store_recording::{Snapshot, StoreTables, TableInfo, TableName, Tables};
