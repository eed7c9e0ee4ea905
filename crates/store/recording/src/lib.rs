//! Recordings in a store: a feed's messages, in the order of their streams, byte for byte.
//!
//! A recording is a set of files of a store that share a name. Each stream has a file for each size
//! of messages. A recording that a run made has files of frames and of UTC too.
//!
//! | module | what it holds |
//! |---|---|
//! | [`files`] | the names of a recording's files |
//! | [`records`] | a message as a record of its file |
//! | [`writer`] | [`RecordingWriter`]: messages into files |
//! | [`catalog`] | names, streams and formats of the recordings of a store |
//! | [`replay`] | [`StreamReplay`]: the messages of a stream, in order |
//! | [`read`] | messages decoded, by times and by symbol |
//! | [`follow`] | messages of a recording that still grows |
//! | [`rows`] | messages as rows: CSV, JSON, and batches of columns |
//! | [`verify`] | a recording compared with its feed |
#![forbid(unsafe_code)]

pub mod catalog;
pub mod files;
pub mod follow;
pub mod read;
pub mod records;
pub mod replay;
pub mod rows;
#[cfg(test)]
mod tests;
pub mod verify;
pub mod writer;

pub use records::RecordedMessage;
pub use replay::StreamReplay;
pub use rows::MessageRow;
pub use writer::RecordingWriter;
