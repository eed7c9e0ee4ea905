//! Connections whose append the store had no room for, and who look for it again.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Time between two looks of one connection at least.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time between two looks of all connections together. Eight hundred that looked each millisecond
/// left no time to the threads that make room, and nothing was taken any more.
const LOOK_SHARE: Duration = Duration::from_micros(50);

/// How many connections of a server look for room.
#[derive(Debug, Default)]
pub(crate) struct RoomQueue(AtomicU32);

/// A connection that looks for room until this is dropped.
pub(super) struct RoomWaiter<'q>(&'q RoomQueue);

impl RoomQueue {
    /// One connection more looks for room.
    pub(super) fn join(&self) -> RoomWaiter<'_> {
        self.0.fetch_add(1, Relaxed);
        RoomWaiter(self)
    }
}

impl RoomWaiter<'_> {
    /// Time until the next look of this connection.
    pub(super) fn pause(&self) -> Duration {
        LOOK_EVERY.max(LOOK_SHARE * self.0.0.load(Relaxed))
    }
}

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_of_all_connections_together_are_as_many_as_of_a_few() {
        let queue = RoomQueue::default();
        let first = queue.join();
        assert_eq!(first.pause(), Duration::from_millis(1));
        let others: Vec<_> = (1..800).map(|_| queue.join()).collect();
        assert_eq!(first.pause(), Duration::from_millis(40));
        drop(others);
        assert_eq!(first.pause(), Duration::from_millis(1));
    }
}
