//! The valid length of a stale copy, one for each case of its last epoch.

use serde::{Deserialize, Serialize};

/// The length up to which the bytes of a copy are right. A copy that never held an epoch may have
/// wrong bytes behind the beginning of the epoch. The nameserver may not know whether the copy held
/// the epoch. Only the dataserver of the copy knows that, so this value has a length for each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidLength {
    /// The length up to which a copy is right that holds `epoch` or a later epoch.
    length: u64,
    epoch: u64,
    /// The length up to which a copy is right that never held `epoch`.
    before: u64,
}

impl ValidLength {
    /// A copy is right up to `length`, whatever epoch the copy holds.
    pub const fn up_to(length: u64) -> Self {
        Self { length, epoch: 0, before: length }
    }

    /// A copy that holds `epoch` is right up to `length`. Another copy is right up to `start`,
    /// where that epoch began.
    pub fn if_holds(epoch: u64, length: u64, start: u64) -> Self {
        Self { length, epoch, before: start.min(length) }
    }

    /// The length up to which a copy that holds `epoch` is right.
    pub fn of(self, epoch: u64) -> u64 {
        if epoch >= self.epoch { self.length } else { self.before }
    }

    /// The same lengths, limited to `length`.
    pub fn at_most(self, length: u64) -> Self {
        Self { length: self.length.min(length), before: self.before.min(length), ..self }
    }
}
