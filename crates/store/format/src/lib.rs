//! The store's format and rules: records, segments, chunks, time index, journal, recovery.
//!
//! A trading desk wants to read the last five seconds in a millisecond and the last year in one
//! scan, from one system on cheap object storage. Kawkab (thesis, chapter 5) shows a design:
//! append-only files of fixed-length records, small segments in memory, larger chunks on the local
//! disk, and objects in an object store. Names are computed, and a time index only grows. The code
//! of Kawkab made no syncs, had no checksums and lost its memory in a crash. In this crate each
//! append is acknowledged at a level that the client chooses. Every segment and commit has a
//! checksum, and recovery reports the records that it dropped.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | the arithmetic from a record's number to its place and name |
//! | [`schema`] | the fields of a record and their types |
//! | [`segment`] | blocks of 16 KiB with a header and a checksum |
//! | [`index`] | the time index: a k-ary post-order heap |
//! | [`appender`] | the writing end of a file |
//! | [`reader`] | the reading end: by number, by time, by range, and summaries |
//! | [`journal`] | commits of all streams of a disk, in one file |
//! | [`lost_records`] | lost records between others, and how a segment states their places |
//! | [`columnar`] | chunks in columns, which read as the raw chunks that they were |
//! | [`messages`] | messages of recordings as values of columns, and back |
//! | [`volume`] | one disk: journal, chunks, checkpoints, recovery, verification |
//! | [`metadata`] | the published state of each file, in blocks of nodes |
//! | [`pack`] | the ends of many files in one object |
//! | [`publication`] | writes chunks and metadata to the object store, and reads what is published |
//! | [`ordering`] | sorts late records and drops duplicates before an append |
//! | [`cache`] | the cache of segments in memory |
//! | [`age_clock`] | the clock by which ages count, and which no step of the wall clock moves |
//! | [`retention`] | the rules by which old chunks are removed |
//!
//! The crate opens no files and starts no threads. A disk and an object store are the traits
//! [`Disk`](evenfall_core::Disk) and [`Objects`](evenfall_core::Objects). `evenfall-sim` implements
//! them with torn writes, lost writes and failures. `evenfall-store-engine` implements them for
//! real, and has the threads.
//!
//! ```
//! use std::sync::Arc;
//! use evenfall_store_format::{
//!     Appender, FileEndSnapshot, FileId, SnapshotReader, Result, Schema, SegmentKind, Segments,
//! };
//!
//! struct Nowhere;
//! impl Segments for Nowhere {
//!     fn segment(&mut self, _: SegmentKind, _: FileId, _: u32) -> Result<bytes::Bytes> {
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
//! let now = FileEndSnapshot::of(&appender, 0);
//! let mut nowhere = Nowhere;
//! let mut reader = SnapshotReader::new(&now, &mut nowhere);
//! assert_eq!(reader.between(15, 30)?, 1..3);
//! assert_eq!(reader.latest_at(29)?, 1);
//! # Ok::<(), evenfall_store_format::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod age_clock;
pub mod appender;
pub mod cache;
pub mod columnar;
pub mod error;
pub mod index;
pub mod journal;
pub mod layout;
pub mod lost_records;
pub mod messages;
pub mod metadata;
pub mod ordering;
pub mod pack;
pub mod publication;
pub mod reader;
pub mod retention;
pub mod schema;
pub mod segment;
pub mod volume;

pub use appender::{Appender, Resumption};
pub use columnar::ColumnDisk;
pub use error::{Error, Result, Stage};
pub use layout::{FileId, Layout, SegmentKind};
pub use lost_records::TailRecords;
pub use reader::{FileEndSnapshot, Segments, SnapshotReader};
pub use schema::{Field, FieldType, Schema};
pub use segment::SealedSegment;
pub use volume::{Volume, VolumeConfig};
