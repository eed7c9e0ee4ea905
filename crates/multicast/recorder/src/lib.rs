//! The recorder: a receiver that keeps every message in a recording of a store.
//!
//! | module | what it holds |
//! |---|---|
//! | [`role`] | the recorder as a process |
//! | [`service`] | its role among the nodes of a settings file |
//! | [`frames`] | which messages left together, for the answers of a recorder |
//! | [`signatures`] | the signatures of the root, beside the frames that they cover |
//! | [`audit`] | a recording compared with its signatures |
//! | [`recent`] | the last seconds in memory, for the questions of a desk |
//! | [`tables`] | trades and quotes beside the messages |
//! | `recording_thread` | the thread that writes |
//! | [`utc`] | UTC beside a recording, with its bound |
#![forbid(unsafe_code)]

pub mod audit;
pub mod frames;
pub mod recent;
mod recording_thread;
pub mod role;
pub mod service;
pub mod signatures;
pub mod tables;
pub mod utc;
