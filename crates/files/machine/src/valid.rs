//! How many bytes are right in a copy whose disk is not a member of the file.

use serde::{Deserialize, Serialize};

/// The length up to which the bytes of a copy are right. A copy that never held an epoch may have
/// other bytes behind the beginning of the epoch. The nameserver may not know whether the copy held
/// the epoch, and the copy knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Valid {
    /// The length, if the copy holds this epoch or a later one.
    length: u64,
    epoch: u64,
    /// The length otherwise.
    before: u64,
}

impl Valid {
    /// Up to this length, whatever epoch the copy holds.
    pub const fn up_to(length: u64) -> Self {
        Self { length, epoch: 0, before: length }
    }

    /// Up to `length` if the copy holds `epoch`, and else up to the beginning of that epoch.
    pub fn if_holds(epoch: u64, length: u64, start: u64) -> Self {
        Self { length, epoch, before: start.min(length) }
    }

    /// The length of a copy that holds `epoch`.
    pub fn of(self, epoch: u64) -> u64 {
        if epoch >= self.epoch { self.length } else { self.before }
    }

    /// The same lengths, limited to `length`.
    pub fn at_most(self, length: u64) -> Self {
        Self { length: self.length.min(length), before: self.before.min(length), ..self }
    }
}
