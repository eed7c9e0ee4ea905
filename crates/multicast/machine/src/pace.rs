//! The rate at which copies of old frames leave a node. Repair must not take the link from the live
//! feed.

use core::time::Duration;

use evenfall_core::Timestamp;

/// A rate with a small credit. The credit makes up for a timer that fires late.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Time between two copies at this rate.
    every: Duration,
    /// Copies that may leave at once after a pause.
    burst: u32,
    /// Time before which the next copy does not leave.
    next: Timestamp,
    /// Time at which to look again, after a copy was refused.
    retry_at: Option<Timestamp>,
}

impl Pace {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let every = Duration::from_secs(1) / per_second.max(1);
        Self { every, burst, next: Timestamp::ZERO, retry_at: None }
    }

    pub(crate) fn set_rate(&mut self, per_second: u32) {
        self.every = Duration::from_secs(1) / per_second.max(1);
    }

    /// Whether a copy may leave now. A refusal sets [`retry_at`](Self::retry_at).
    pub(crate) fn allows(&mut self, now: Timestamp) -> bool {
        let allowed = self.next <= now;
        self.retry_at = (!allowed).then_some(self.next);
        allowed
    }

    /// A copy leaves now.
    pub(crate) fn spend(&mut self, now: Timestamp) {
        self.next = self.next.max(now - self.every * self.burst) + self.every;
    }

    /// When a refused copy may leave. `None` while the driver takes no copies, because a due time
    /// that no call answers would keep the driver awake.
    pub(crate) fn retry_at(&self) -> Option<Timestamp> {
        self.retry_at
    }

    /// Clears [`retry_at`](Self::retry_at) when its time has come. The driver then asks for a copy.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        self.retry_at = self.retry_at.filter(|at| *at > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_asking_brings_the_stated_number_of_copies_and_no_burst_above_the_credit() {
        let (mut pace, mut sent, mut now) =
            (Pace::new(1_000, 4), 0, Timestamp::from_nanos(1 << 40));
        let mut at_once = 0;
        while pace.allows(now) {
            pace.spend(now);
            at_once += 1;
        }
        assert_eq!(at_once, 5, "the credit, and the copy that is due");
        let end = now + Duration::from_secs(1);
        while let Some(at) = pace.retry_at().filter(|at| *at <= end) {
            now = at;
            pace.handle_timeout(now);
            assert_eq!(pace.retry_at(), None);
            while pace.allows(now) {
                pace.spend(now);
                sent += 1;
            }
        }
        assert_eq!(sent, 1_000);
    }
}
