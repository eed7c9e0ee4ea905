//! Root, proxy and receiver as processes, the feed in a program of your own, and the judgement of a
//! run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | what the roles read of the settings |
//! | [`roles`] | root, proxy and receiver as they run in a process |
//! | [`subscriber`] | the feed in a program of your own |
//! | [`publisher`] | the root in a program of your own |
//! | [`runlog`] | the binary file in which each process of a run writes down what it did and when |
//! | [`report`] | reads the run logs of all processes, judges the run, writes `report.html` |
#![forbid(unsafe_code)]
// A note that cannot be written costs the note; these macros panic.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

#[doc(hidden)]
pub mod fuzzing;
pub mod publisher;
pub mod report;
pub mod roles;
pub mod runlog;
pub mod settings;
pub mod subscriber;

pub use publisher::{PublishError, Publisher};
pub use roles::RoleError;
pub use settings::Settings;
pub use subscriber::{Subscriber, Update};
