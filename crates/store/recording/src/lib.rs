//! Recordings in a store: a feed's messages, in the order of their streams, byte for byte.
//!
//! A recording is a set of files of a store that share a name. Each stream has a file of messages.
//! A recording that a run made has files of frames and of UTC too.
//!
//! | module | what it holds |
//! |---|---|
//! | [`files`] | the names of a recording's files |
//! | [`records`] | a message as a record of its file |
//! | [`writer`] | [`RecordingWriter`]: messages into files |
//! | [`catalog`] | [`Catalog`]: the recordings and users' files of a store |
//! | [`replay`] | [`StreamReplay`]: the messages of a stream, in order |
//! | [`snapshot`] | [`RecordingSnapshot`]: a recording at one moment; rows by time and symbol |
//! | `depth` | `BookDepth`: the order book of a symbol at a time |
//! | `derived` | `DerivedWriter`: trades and quotes as files beside the messages |
//! | [`follow`] | [`RecordingFollower`]: messages of a recording that still grows |
//! | [`record_append`] | [`RecordAppender`]: rows of users' tables into a file with a schema |
//! | [`late_window`] | [`LateWindow`]: records that come late, sorted or refused |
//! | `layouts` | how the fields of messages lie in their bytes, for the columns of sealed chunks |
//! | [`rows`] | messages as rows: CSV, JSON, and batches of columns |
//! | [`tables`] | `Tables` and `Snapshot`: recordings and files as tables of Arrow columns |
//! | `times` | times as people write them |
//! | [`names`] | names that a person may have meant |
//! | `intake` | a feed file into a recording |
//! | [`verify`] | a recording compared with its feed |
#![forbid(unsafe_code)]

pub mod catalog;
mod decode;
#[cfg(feature = "arrow")]
pub mod depth;
#[cfg(feature = "arrow")]
pub mod derived;
pub mod files;
pub mod follow;
#[cfg(feature = "feeds")]
pub mod intake;
pub mod late_window;
pub mod layouts;
pub mod names;
pub mod record_append;
pub mod records;
pub mod replay;
pub mod rows;
pub mod snapshot;
#[cfg(feature = "arrow")]
pub mod tables;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "feeds", feature = "arrow"))]
pub mod times;
pub mod verify;
pub mod writer;

pub use catalog::{Catalog, RecordingFiles, Recordings, connect_to, open_source};
#[cfg(feature = "arrow")]
pub use depth::{BookDepth, DepthTime};
#[cfg(feature = "arrow")]
pub use derived::DerivedWriter;
#[cfg(feature = "arrow")]
pub use evenfall_feed_formats::books::BooksConfig;
pub use follow::RecordingFollower;
pub use late_window::LateWindow;
pub use record_append::{RecordAppendError, RecordAppender};
pub use records::RecordedMessage;
pub use replay::StreamReplay;
pub use rows::MessageRow;
pub use snapshot::{RecordingSnapshot, RowSelection};
#[cfg(feature = "arrow")]
pub use tables::{BookRequest, Snapshot, StoreTables, TableInfo, TableName, Tables};
pub use writer::RecordingWriter;
