//! Which frames receivers report one by one.

use core::time::Duration;

use evenfall_core::Timestamp;

/// Frames that are sampled back to back. A receiver's report holds twice as many.
const BURST: u32 = 100;

/// Chooses frames at a bounded mean rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleCredit {
    next: Timestamp,
}

impl SampleCredit {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { next: now }
    }

    /// Whether a frame that leaves now is chosen, at this many frames per second in the long run.
    pub(super) fn choose(&mut self, now: Timestamp, per_second: u32) -> bool {
        // Credit lets a burst be sampled as densely as the quiet time before it, because late
        // messages are late in bursts.
        let every = Duration::from_secs(1) / per_second;
        self.next = self.next.max(now - every * BURST);
        if now < self.next {
            return false;
        }
        self.next += every;
        true
    }
}
