//! The queue between the thread of a receiver and the program that takes its messages.
//!
//! A queue that wakes the program for each message costs a system call a message: on a feed of
//! 100,000 messages a second that is more than the release itself. Here the receiver puts all
//! messages of a release in under one lock, and makes a system call only if the program sleeps.
//! The program takes all that waits under one lock too.
//!
//! ```text
//!  receiver: a release --push--> [ update, update, ... ] --take up to `most`--> program
//!                       | full: refused whole, the subscription ends
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_host::clock::MonotonicClock;

use super::FeedUpdate;

/// How much may wait between a receiver and its program.
///
/// A release that would pass a limit is not queued, and the subscription ends with
/// [`SubscribeError::TooSlow`](super::SubscribeError::TooSlow) once the program has taken what
/// waits. Other receivers are not affected. An empty queue takes a release of any size, so that no
/// limit is too small for the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Updates that may wait.
    pub messages: usize,
    /// Bytes of the messages that may wait. Messages of one datagram share its buffer, so the
    /// process holds up to a datagram for each release.
    pub bytes: usize,
}

impl Default for QueueLimits {
    /// 65,536 updates, .7 s of a feed of 100,000 messages a second, and 64 MiB.
    fn default() -> Self {
        Self { messages: 65_536, bytes: 64 << 20 }
    }
}

/// What a program took from its subscription at once.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UpdateBatch {
    /// The updates, in order within each tree. Empty when nothing came in the time of the wait.
    pub updates: Vec<FeedUpdate>,
    /// How long the first update had waited for the program.
    pub waited: Duration,
}

/// An update that waits.
struct WaitingUpdate {
    update: FeedUpdate,
    since: Timestamp,
}

/// What a program that waits elsewhere has called when there is something to take.
pub type WakeCall = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    waiting: VecDeque<WaitingUpdate>,
    bytes: usize,
    /// The receiver has ended, and no update follows.
    is_closed: bool,
    /// The program found no update, and must be woken.
    is_asleep: bool,
    /// Called when the first update comes into an empty queue, and at the end.
    wake_call: Option<WakeCall>,
}

/// The queue.
pub struct UpdateQueue {
    limits: QueueLimits,
    state: Mutex<State>,
    came: Condvar,
}

impl UpdateQueue {
    pub fn new(limits: QueueLimits) -> Self {
        Self { limits, state: Mutex::default(), came: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all of these updates into the queue. When they do not fit, drops them and returns
    /// what waits.
    pub fn push(&self, updates: &mut Vec<FeedUpdate>) -> Result<(), QueueLimits> {
        let bytes: usize = updates.iter().map(FeedUpdate::bytes_len).sum();
        let since = MonotonicClock::now();
        let mut state = self.lock();
        let (messages, bytes_after) = (state.waiting.len() + updates.len(), state.bytes + bytes);
        let is_over = messages > self.limits.messages || bytes_after > self.limits.bytes;
        if is_over && !state.waiting.is_empty() {
            updates.clear();
            return Err(QueueLimits { messages: state.waiting.len(), bytes: state.bytes });
        }
        state.bytes = bytes_after;
        let was_empty = state.waiting.is_empty();
        state.waiting.extend(updates.drain(..).map(|update| WaitingUpdate { update, since }));
        self.wake_program(state, was_empty);
        Ok(())
    }

    /// No update follows.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.wake_program(state, true);
    }

    /// Has this called, by the receiver's thread, whenever the first update comes into an empty
    /// queue and when the queue closes; at once when there is something to take already.
    pub fn call_when_filled(&self, call: WakeCall) {
        let mut state = self.lock();
        state.wake_call = Some(call);
        if state.is_closed || !state.waiting.is_empty() {
            self.wake_program(state, true);
        }
    }

    /// Wakes the program if it sleeps, and calls it if it waits elsewhere for a queue that was
    /// empty. `notify_one` is a system call even when nobody waits.
    fn wake_program(&self, mut state: MutexGuard<'_, State>, was_empty: bool) {
        let was_asleep = core::mem::take(&mut state.is_asleep);
        let call = state.wake_call.clone().filter(|_| was_empty);
        drop(state);
        if was_asleep {
            self.came.notify_one();
        }
        if let Some(call) = call {
            call();
        }
    }

    /// Waits until an update is there or the queue is closed, for `time` at most, or without end.
    fn wait_locked(&self, time: Option<Duration>) -> MutexGuard<'_, State> {
        let until = time.map(|time| MonotonicClock::now() + time);
        let mut state = self.lock();
        while state.waiting.is_empty() && !state.is_closed {
            state.is_asleep = true;
            state = match until {
                None => self.came.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.since(MonotonicClock::now());
                    if left.is_zero() {
                        state.is_asleep = false;
                        break;
                    }
                    let waited = self.came.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state
    }

    /// Waits until [`take`](Self::take) answers at once, for `time` at most. Returns whether it
    /// does.
    pub fn wait(&self, time: Duration) -> bool {
        let state = self.wait_locked(Some(time));
        state.is_closed || !state.waiting.is_empty()
    }

    /// Takes the next update; `None` once the queue is closed and empty.
    pub fn take(&self) -> Option<FeedUpdate> {
        let mut state = self.wait_locked(None);
        let WaitingUpdate { update, .. } = state.waiting.pop_front()?;
        state.bytes -= update.bytes_len();
        Some(update)
    }

    /// Takes all that waits, `most` updates at most. Without an update, waits for `time` at most,
    /// or without end. `None` once the queue is closed and empty.
    pub fn take_batch(&self, most: usize, time: Option<Duration>) -> Option<UpdateBatch> {
        let mut state = self.wait_locked(time);
        let Some(first) = state.waiting.front() else {
            return (!state.is_closed).then(UpdateBatch::default);
        };
        let since = first.since;
        let count = state.waiting.len().min(most.max(1));
        let mut updates = Vec::with_capacity(count);
        updates.extend(state.waiting.drain(..count).map(|waiting| waiting.update));
        state.bytes -= updates.iter().map(FeedUpdate::bytes_len).sum::<usize>();
        drop(state);
        Some(UpdateBatch { updates, waited: MonotonicClock::now().since(since) })
    }
}

#[cfg(test)]
mod tests;
