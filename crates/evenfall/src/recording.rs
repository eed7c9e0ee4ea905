//! Recordings of feeds: listed, read at one moment, and followed while they grow.
//!
//! With the feature `arrow`, recordings and files are tables of Arrow columns too ([`Tables`]).

pub use evenfall_store_recording::rows::{COLUMNS, csv, json};
#[cfg(feature = "arrow")]
pub use evenfall_store_recording::{
    BookDepth, BookRequest, DepthTime, Snapshot, StoreTables, TableInfo, TableName, Tables,
};
pub use evenfall_store_recording::{
    Catalog, MessageRow, RecordedMessage, RecordingFiles, RecordingFollower, RecordingSnapshot,
    RecordingWriter, Recordings, RowSelection, StreamReplay,
};
