//! Connections whose append the store had no room for, and who look for it again.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Least time between two looks of one connection.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time between two looks, of whichever connections. Eight hundred that looked each millisecond
/// left no time to the threads that make room, and nothing was taken any more.
const LOOK_SHARE: Duration = Duration::from_micros(50);

/// Counts the connections of a server that look for room.
#[derive(Debug, Default)]
pub(crate) struct RoomSeekers(AtomicU32);

/// A connection that looks for room until this is dropped.
pub(super) struct RoomWaiter<'s>(&'s RoomSeekers);

impl RoomSeekers {
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
        let seekers = RoomSeekers::default();
        let first = seekers.join();
        assert_eq!(first.pause(), Duration::from_millis(1));
        let others: Vec<_> = (1..800).map(|_| seekers.join()).collect();
        assert_eq!(first.pause(), Duration::from_millis(40));
        drop(others);
        assert_eq!(first.pause(), Duration::from_millis(1));
    }
}
