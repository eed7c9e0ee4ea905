//! What one evenfall process runs: machines on a driver, with settings, logs and metrics around.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | one TOML file for all hosts, overridden by environment and `--set` |
//! | [`roles`] | root, proxy, receiver, agent and surveyor as they run in a process |
//! | [`subscriber`] | the feed in a program of your own |
//! | [`player`] | a feed played as a live MoldUDP64 session, for tests |
//! | [`group`] | group communication in a program of your own: shuffle, broadcast and the rest |
//! | [`publisher`] | the root in a program of your own |
//! | [`carrier`] | gRPC as a carrier of control messages |
//! | [`experiment`] | placement experiments: runs, their records, their report |
//! | [`fanout`] | the root as a source for the fan-out benchmark |
//! | [`input`] | feed files and the generator, by a schedule |
//! | [`intake`] | where a running root's messages come from: replay, live feed, publisher |
//! | [`store`] | the store: files, journal, objects, names, over TCP |
//! | [`http`] | an HTTP server with limits on everything; knows no role |
//! | [`telemetry`] | `/metrics`, `/healthz`, `/status` |
//! | [`notes`] | what a process says of itself, on standard error |
//! | [`memory`] | the memory of each process over its run, a row per second |
//! | [`runlog`] | the binary file in which each process of a run writes down what it did and when |
//! | [`report`] | reads the run logs of all processes, judges the run, writes `report.html` |
#![forbid(unsafe_code)]
// A note that cannot be written costs the note; these macros panic.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod carrier;
pub mod experiment;
pub mod fanout;
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
pub mod http;
pub mod input;
pub mod intake;
pub mod memory;
pub mod notes;
pub mod player;
pub mod publisher;
pub mod report;
pub mod roles;
pub mod runlog;
pub mod settings;
pub mod store;
pub mod subscriber;
pub mod telemetry;

pub use publisher::{PublishError, Publisher};
pub use settings::Settings;
pub use subscriber::{Subscriber, Update};
