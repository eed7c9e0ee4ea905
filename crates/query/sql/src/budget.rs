//! The memory for long messages of all clients of a listener.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a message holds beside its statement: names, and the types of parameters.
pub const BESIDE_STATEMENT_BYTES: usize = 64 << 10;

/// Messages up to this length are not counted.
pub const UNCOUNTED_BYTES: usize = 16 << 10;

/// Bytes of a permit.
const PERMIT_BYTES: usize = 1 << 10;

/// Bytes of all long messages together.
const ALL_MESSAGES_BYTES: usize = 64 << 20;

/// A budget that long messages share, so that a thousand clients with a statement of the greatest
/// length do not hold a thousand times its memory.
#[derive(Clone, Debug)]
pub struct LongMessageBudget(Arc<Semaphore>);

/// A part of the budget, which comes back when it is dropped.
#[derive(Debug)]
pub struct BudgetShare(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl LongMessageBudget {
    /// A budget into which a statement of the greatest length fits, whatever that length is.
    pub fn new(statement_bytes: usize) -> Self {
        let bytes = ALL_MESSAGES_BYTES.max(statement_bytes.saturating_mul(2));
        Self(Arc::new(Semaphore::new((bytes / PERMIT_BYTES).min(Semaphore::MAX_PERMITS))))
    }

    /// The share of a message, or of a part of one. `None` when others hold too much.
    pub fn take_share(&self, bytes: usize) -> Option<BudgetShare> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(permits).ok().map(BudgetShare)
    }
}
