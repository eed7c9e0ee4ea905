//! Writes that a machine asks for and does not wait for.
//!
//! A protocol must have its promises on a disk before it makes them. [`Disk`](crate::Disk) answers
//! at once and would stop the machine for the time of a sync, so a machine hands its bytes over,
//! goes on, and is told when they survive a crash:
//!
//! ```text
//!  machine ──poll_write──> driver ──write, sync──> disk
//!     ^                                              │
//!     └───────────────handle_written─────────────────┘
//! ```
//!
//! The writes of one log are carried out in the order in which they were polled, and are answered
//! in that order. A driver has [`WRITES_MAX`] of them under way at most, and polls no more until
//! some are answered. A write is answered once. A write that was polled and not answered before a
//! crash may be there, be torn, or be missing.
//!
//! **A write that fails** leaves the end of its log unknown. Every later append to that log fails
//! too, until a [`Change::Truncate`] or a [`Change::Replace`] of it succeeds: no append can follow
//! a gap.

use bytes::Bytes;

use crate::{StorageError, Timestamp};

/// Writes under way at once: what one sync can take, so that a slow disk delays a machine and does
/// not fill the memory.
pub const WRITES_MAX: usize = 64;

/// The name that a machine gives to one of its writes; it comes back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What becomes of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These bytes are added at its end. A log that is not there is made.
    Append(Bytes),
    /// The log keeps this many bytes, or all when it has fewer.
    Truncate(u64),
    /// The log has these bytes and no others. After a crash the log has the old bytes or these,
    /// never a mixture.
    Replace(Bytes),
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its name.
    pub id: WriteId,
    /// The log: 1 to 64 letters, digits, `-` and `_`.
    pub log: String,
    /// What becomes of the log.
    pub change: Change,
}

impl Write {
    /// Refuses names that could leave the directory, or that not every disk can have.
    ///
    /// # Errors
    /// [`StorageError::Failed`].
    pub fn check_name(&self) -> Result<(), StorageError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match (1..=64).contains(&self.log.len()) && self.log.bytes().all(is_plain) {
            true => Ok(()),
            false => Err(StorageError::Failed {
                name: self.log.clone(),
                what: "the name of a log is 1 to 64 letters, digits, - and _".into(),
            }),
        }
    }
}

/// A machine that asks for writes. A [`Machine`](crate::Machine) that writes says so in
/// [`Machine::durable`](crate::Machine::durable), and then the loop of `evenfall-port` and the
/// simulated world carry its writes out. What depends on a write, the machine sends after
/// [`handle_written`](Self::handle_written) only: **write, then send**.
pub trait Durable {
    /// The next write to carry out; `None` when there is nothing to write now.
    fn poll_write(&mut self) -> Option<Write>;

    /// The write survives a crash from now on, or it failed. This is an input like any other.
    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>);
}
