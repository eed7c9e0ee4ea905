//! The recorder: a receiver that keeps every message in a store, and recordings read back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`role`] | the recorder as a process |
//! | [`recording`] | a feed in the store, message by message |
//! | [`frames`] | which messages left together, for the answers of a recorder |
//! | [`utc`] | UTC beside a recording, with its bound |
//! | [`messages`] | a recording's messages as text and as batches |
#![forbid(unsafe_code)]

pub mod frames;
pub mod messages;
pub mod recording;
pub mod role;
#[cfg(test)]
mod tests;
pub mod utc;
