//! When copies of missed datagrams may enter the kernel.
//!
//! The queues of this process let the feed pass a repair, and the kernel's queues do not: a card
//! sends what came first. A burst of repairs that is in the kernel already delays every live frame
//! behind it. So repairs wait here while much waits there.

use std::time::Duration;

use evenfall_core::Timestamp;

/// How long repairs wait at most. A feed that keeps the kernel's queue long must not starve the
/// nodes that miss something.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// Lets repairs pass while little waits in the kernel.
#[derive(Debug, Default)]
pub(super) struct RepairGate {
    /// When the repairs began to wait; `None` while none waits.
    since: Option<Timestamp>,
}

impl RepairGate {
    /// Whether repairs may leave now, while this many bytes wait in the kernel. `bytes_max` is
    /// `None` where repairs never wait.
    pub(super) fn lets_pass(
        &mut self,
        now: Timestamp,
        bytes_max: Option<usize>,
        waiting_bytes: impl FnOnce() -> u64,
    ) -> bool {
        let Some(bytes_max) = bytes_max else { return true };
        let since = *self.since.get_or_insert(now);
        let passes = waiting_bytes() <= bytes_max as u64 || now.since(since) >= WAIT_MAX;
        if passes {
            self.since = None;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_wait_while_much_waits_in_the_kernel_and_not_for_ever() {
        let (mut gate, now) = (RepairGate::default(), Timestamp::from_nanos(1 << 40));
        assert!(gate.lets_pass(now, None, || u64::MAX), "no limit");
        assert!(gate.lets_pass(now, Some(100), || 100));
        assert!(!gate.lets_pass(now, Some(100), || 101));
        assert!(!gate.lets_pass(now + WAIT_MAX / 2, Some(100), || 101));
        assert!(gate.lets_pass(now + WAIT_MAX, Some(100), || 101), "waited long enough");
        assert!(!gate.lets_pass(now + WAIT_MAX, Some(100), || 101), "the next wait begins");
        assert!(gate.lets_pass(now + WAIT_MAX, Some(100), || 0));
    }
}
