//! Reads of memory ahead of the turns that need it.
//!
//! A run of thousands of machines spends much of its time on waiting for memory, one turn after the
//! other. The world therefore reads words of several nodes before their turns, and the memory
//! delivers them all at once. The reads change nothing, so that a run without them has the same
//! result.

use evenfall_core::{Machine, Timestamp};

/// What the world reads of a machine before its turn. The result of a read depends on all words
/// that were read, so that no compiler leaves a read out.
///
/// These are functions and not a trait of machines, because a crate of machines knows no simulator.
pub struct Prefetch<M> {
    /// Reads independent fields only, and follows no pointer that was just read.
    pub near: fn(&M) -> u64,
    /// Follows the pointers in the fields that `near` has read.
    pub far: fn(&M) -> u64,
}

impl<M> Clone for Prefetch<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Prefetch<M> {}

impl<M: Machine> Default for Prefetch<M> {
    /// The next timeout, which lies beside the other fields of most machines.
    fn default() -> Self {
        Self { near: |machine| machine.poll_timeout().map_or(0, Timestamp::nanos), far: |_| 0 }
    }
}
