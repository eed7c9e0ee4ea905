//! The store's format and rules: records, segments, chunks, time index, journal, recovery.
//!
//! A desk wants the last five seconds in a millisecond and last year in one scan, from one system,
//! on cheap object storage. Kawkab (thesis, chapter 5) shows how: append-only files of fixed-length
//! records, small segments in memory, larger chunks on the local disk, objects at the end; names
//! that are computed and not looked up; a time index that only grows. Its code synced nothing, had
//! no checksums and lost its memory in a crash; here each append is acknowledged at a level that
//! the client chose, every segment and commit has a checksum, and recovery names the records that
//! it dropped.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | the arithmetic: where a record is, and what that place is called |
//! | [`schema`] | what the bytes of a record mean |
//! | [`segment`] | 16 KiB that say what they are and whether they are whole |
//! | [`index`] | the time index: a k-ary post-order heap |
//! | [`appender`] | the writing end of a file |
//! | [`reader`] | the reading end: by number, by time, by range, and summaries |
//! | [`journal`] | commits of all streams of a disk, in one file |
//! | [`volume`] | one disk: journal, chunks, checkpoints, recovery, verification |
//! | [`metadata`] | what a file is, in blocks of nodes; its tail as an object |
//! | [`publication`] | chunks, tails and metadata into the object store, and back |
//! | [`ordering`] | late records sorted in, copies dropped |
//! | [`cache`] | which segments stay in memory |
//! | [`retention`] | which chunks may go |
//!
//! Nothing here opens a file or starts a thread: a disk and an object store are the traits
//! [`Disk`](evenfall_core::Disk) and [`Objects`](evenfall_core::Objects). `evenfall-sim` has those
//! that tear, forget and fail; `evenfall-store-engine` has real ones, and the threads around them.
//!
//! ```
//! use std::sync::Arc;
//! use evenfall_store_format::{Appender, FileId, Kind, Reader, Result, Schema, Segments, Snapshot};
//!
//! struct Nowhere;
//! impl Segments for Nowhere {
//!     fn segment(&mut self, _: Kind, _: FileId, _: u32) -> Result<bytes::Bytes> {
//!         unreachable!("three records fill no segment")
//!     }
//! }
//!
//! let schema = Arc::new(Schema::opaque(16));
//! let mut appender = Appender::new(FileId(1), 1, schema)?;
//! let mut full = Vec::new();
//! for time_ns in [10i64, 20, 30] {
//!     let record = [time_ns.to_le_bytes(), 7i64.to_le_bytes()].concat();
//!     appender.append(&record, &mut full)?;
//! }
//! let now = Snapshot::of(&appender, 0);
//! let mut nowhere = Nowhere;
//! let mut reader = Reader::new(&now, &mut nowhere);
//! assert_eq!(reader.between(15, 30)?, 1..3);
//! assert_eq!(reader.latest_at(29)?, 1);
//! # Ok::<(), evenfall_store_format::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod appender;
pub mod cache;
pub mod error;
pub mod index;
pub mod journal;
pub mod layout;
pub mod metadata;
pub mod ordering;
pub mod publication;
pub mod reader;
pub mod retention;
pub mod schema;
pub mod segment;
pub mod volume;

pub use appender::{Appender, Resumption};
pub use error::{Error, Result, Stage};
pub use layout::{FileId, Kind, Layout};
pub use reader::{Reader, Segments, Snapshot};
pub use schema::{Field, FieldType, Schema};
pub use segment::Sealed;
pub use volume::{Volume, VolumeConfig};
