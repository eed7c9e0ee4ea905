//! A rank of a sort or of a query as a process of your own, over UDP.
//!
//! A program becomes a [`GroupMember`] and hands the member to a [`SortMember`]. All ranks sort at
//! the same time, and each rank ends with its part of the sorted records. The program below sorts
//! in four local processes, of which the first starts the other three:
//!
//! ```standalone_crate
//! use evenfall_query_member::{KeyDraw, SortConfig, SortMember, local, make_records};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let member = local(4)?;
//!     let records = make_records(KeyDraw::Uniform, 1, member.rank(), 1_000);
//!     let mut sorter = SortMember::new(member, SortConfig::weighted(1));
//!     let sorted = sorter.sort_records(records)?.output.records;
//!     assert!(sorted.keys.as_chunks::<10>().0.is_sorted());
//!     sorter.into_member().leave();
//!     Ok(())
//! }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`member`] | [`BurstMember`]: runs bursts of any program, with work in a thread of its own |
//! | [`access`] | which standing workers are asked, from where, and under which key |
//! | [`standing`] | workers that wait for questions, and whoever asks them |
//! | [`tap`] | the messages of a feed as rows of the last seconds |
//! | [`files`] | records of 100 bytes in files: a rank's share of a file, and its part of the output |
//! | [`check`] | whether the output of a sort is its input in order |
#![forbid(unsafe_code)]

pub mod access;
pub mod check;
pub mod files;
pub mod member;
pub mod standing;
pub mod tap;

pub use access::{AccessError, AddressListError, WORKER_SILENCE, WorkerAccess, parse_addresses};
pub use evenfall_collectives_member::{
    GroupError, GroupMember, GroupSocket, GroupSocketOptions, local, unlimited_settings,
};
pub use evenfall_query_burst::burst::SortPhases;
pub use evenfall_query_burst::query::{Duplicates, MilliQuery, QueryOutput, QueryRows};
pub use evenfall_query_burst::rows::{KeyDraw, make_records};
pub use evenfall_query_burst::sort::{MilliSort, SortConfig, SortRecords, SortedRecords};
pub use evenfall_query_burst::{desk, standing as standing_group};
pub use member::{BurstMember, BurstRun, SortMember};
pub use standing::{
    DeskClient, DeskWorker, SharedRows, StandingCounters, StandingThread, answer_questions,
};
pub use tap::FeedTap;
