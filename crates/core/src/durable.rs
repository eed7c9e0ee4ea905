//! Writes that a machine asks for and does not wait for.
//!
//! A protocol must have its promises on a disk before it makes them. A call of
//! [`Disk`](crate::Disk) returns only after the sync, and would stop the machine until then. A
//! machine therefore hands its bytes to the driver and goes on working. The driver tells the
//! machine when the bytes survive a crash:
//!
//! ```text
//!  machine ──poll_write──> driver ──write, sync──> disk
//!     ^                                              │
//!     └───────────────handle_written─────────────────┘
//! ```
//!
//! The driver carries out the writes of one log in the order in which it polled them. The driver
//! answers all writes of the machine in the order in which it polled them, also those of different
//! logs: a machine whose file goes on in another log knows by the answer to a write that all writes
//! before it are on the disk too. The driver has at most [`WRITES_MAX`] writes under way, and polls
//! no more until some are answered. Each write gets one answer. After a crash, a write without an
//! answer may be whole, torn or missing.
//!
//! **A write that fails** leaves the end of its log unknown. Every later append to that log fails
//! too, until a [`Change::Truncate`] or a [`Change::Replace`] of it succeeds: no append can follow
//! a gap.

use bytes::Bytes;

use crate::{StorageError, Timestamp};

/// Writes that a driver has under way at most. One sync can take 64 writes together, so a slow disk
/// delays the machine and does not fill the memory.
pub const WRITES_MAX: usize = 64;

/// The name that a machine gives to one of its writes. The answer carries the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// A change of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These bytes are added at the end of the log. A missing log is created.
    Append(Bytes),
    /// The log keeps its first bytes, this many at most.
    Truncate(u64),
    /// The log has these bytes and no others. After a crash the log has the old bytes or these,
    /// never a mixture.
    Replace(Bytes),
}

/// A change of one log, with the name under which the machine is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The name that the answer carries.
    pub id: WriteId,
    /// The log: 1 to 64 letters, digits, `-` and `_`.
    pub log: String,
    /// The change of the log.
    pub change: Change,
}

impl Write {
    /// Refuses log names that could point out of the directory, and names that some disk cannot
    /// have.
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
/// simulated world carry its writes out. The machine sends a datagram that depends on a write only
/// after [`handle_written`](Self::handle_written): **write, then send**.
pub trait Durable {
    /// The next write to carry out; `None` when the machine has no write now.
    fn poll_write(&mut self) -> Option<Write>;

    /// The write survives a crash from now on, or it failed. This is an input like any other.
    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>);
}
