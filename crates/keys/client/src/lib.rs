//! A client of ordered keys, over ZooKeeper's wire with two operations of our own.
//!
//! [`KeysClient`] changes and reads keys. A [call](evenfall_keys_machine::KeyCall) of the client
//! has a sequence, so that the call is applied once however often the client has to send it. A read
//! of the client waits behind all writes that were answered before.
#![forbid(unsafe_code)]

mod client;
mod error;

pub use client::{FoundKey, KeysClient, WatchedChange, Watching, frame, status};
pub use error::ClientError;
pub use evenfall_keys_machine as keys;
