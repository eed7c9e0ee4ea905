//! The recorder: a receiver that keeps every message in a recording of a store.
//!
//! | module | what it holds |
//! |---|---|
//! | [`role`] | the recorder as a process |
//! | [`service`] | its role among the nodes of a settings file |
//! | [`frames`] | which messages left together, for the answers of a recorder |
//! | [`recent`] | the last seconds in memory, for the questions of a desk |
//! | [`tables`] | trades and quotes beside the messages |
//! | `recording_thread` | the thread that writes |
//! | [`utc`] | UTC beside a recording, with its bound |
#![forbid(unsafe_code)]

pub mod frames;
pub mod recent;
mod recording_thread;
pub mod role;
pub mod service;
pub mod tables;
pub mod utc;
