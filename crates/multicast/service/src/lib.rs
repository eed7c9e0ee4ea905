//! Root, proxy and receiver as processes, the feed in a program of your own, and the report of a
//! run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | the part of the settings that the roles read |
//! | [`roles`] | root, proxy and receiver as they run in a process |
//! | `signing` | keys by which a root signs the feed (feature `signing`) |
//! | `subscriber` | the feed in a program of your own (feature `subscriber`) |
//! | `embedded_root` | the root in a program of your own (feature `publisher`) |
//! | `publisher` | a publisher in a program of your own that outlives the root (feature `publisher`) |
//! | `gateway` | a receiver that hands the feed on to participants without a key (feature `roles`) |
//! | [`runlog`] | the binary file in which each process records what it did and when |
//! | `runinfo` | the facts of a run that are not in its logs (feature `summary`) |
//! | `report` | reads the logs of a run, judges the run, writes `report.html` (feature `report`) |
#![forbid(unsafe_code)]
// The print macros panic when a note cannot be written, and a note must not end a process.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

#[cfg(feature = "publisher")]
pub mod embedded_root;
#[cfg(all(feature = "report", feature = "roles", any(fuzzing, test)))]
pub mod fuzzing;
#[cfg(feature = "roles")]
pub mod gateway;
#[cfg(feature = "publisher")]
pub mod publisher;
#[cfg(feature = "report")]
pub mod report;
#[cfg(feature = "publisher")]
mod role_thread;
pub mod roles;
#[cfg(feature = "summary")]
pub mod runinfo;
pub mod runlog;
#[cfg(feature = "roles")]
pub mod service;
pub mod settings;
#[cfg(feature = "signing")]
pub mod signing;
#[cfg(feature = "subscriber")]
pub mod subscriber;

#[cfg(feature = "publisher")]
pub use embedded_root::{EmbeddedRoot, EmbeddedRootError};
pub use evenfall_multicast_machine::Config;
#[cfg(feature = "publisher")]
pub use publisher::{Publisher, PublisherError};
pub use roles::RoleError;
pub use settings::Settings;
#[cfg(feature = "subscriber")]
pub use subscriber::{FeedUpdate, QueueLimits, SubscribeError, Subscriber, UpdateBatch};
