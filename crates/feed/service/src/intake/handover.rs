//! A queue between the threads of a program that publishes and the thread of its root.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use evenfall_core::Timestamp;
use evenfall_feed_formats::{FeedError, FeedMessage, Format};
use evenfall_host::Waker;
use evenfall_host::clock::MonotonicClock;
use evenfall_port::Port;

use super::{Intake, Next};
use crate::IntakeError;

/// Limit of the messages in the queue. The root's side may hold the same number.
const MESSAGES_MAX: usize = 8_192;
/// Limit of the bytes in the queue, which large messages reach before the limit of messages.
const BYTES_MAX: usize = 16 << 20;

/// A message and when it was published.
type Item = (u32, Bytes, Timestamp);

/// Why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The limits are reached.
    Full,
    /// The root has ended.
    Gone,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Item>,
    bytes: usize,
    /// No message follows.
    finished: bool,
    /// The publisher does not wait for the delivery of its messages.
    cancelled: bool,
    /// The root has ended, so no message is taken any more.
    gone: bool,
    /// The root found no message and waits to be woken.
    asleep: bool,
}

/// The queue.
#[derive(Default)]
pub struct Handover {
    state: Mutex<State>,
    room: Condvar,
    waker: OnceLock<Waker>,
}

impl Handover {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message. With `patient`, waits for room when the queue is full.
    pub fn put(&self, shard_key: u32, bytes: Bytes, patient: bool) -> Result<(), Refused> {
        // The latency of the message counts from here, and includes the wait for room.
        let at = MonotonicClock::now();
        let mut state = self.lock();
        while !state.gone && (state.waiting.len() >= MESSAGES_MAX || state.bytes >= BYTES_MAX) {
            if !patient {
                return Err(Refused::Full);
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.gone {
            return Err(Refused::Gone);
        }
        state.bytes += bytes.len();
        state.waiting.push_back((shard_key, bytes, at));
        self.rouse(state);
        Ok(())
    }

    /// No message follows.
    pub fn finish(&self) {
        let mut state = self.lock();
        state.finished = true;
        self.rouse(state);
    }

    /// Ends the queue. A root whose tree is not formed yet gives up.
    pub fn cancel(&self) {
        self.lock().cancelled = true;
        self.finish();
    }

    /// Wakes the root if it sleeps. A burst of messages takes one system call.
    fn rouse(&self, mut state: MutexGuard<'_, State>) {
        let asleep = core::mem::take(&mut state.asleep);
        drop(state);
        if asleep && let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// The root's end of the queue.
pub struct Taker {
    queue: Arc<Handover>,
    taken: VecDeque<Item>,
    next: u64,
    attached: Option<std::sync::mpsc::SyncSender<()>>,
}

impl Taker {
    /// The root's end of a queue. `attached` gets a message when the root's process is ready.
    pub fn new(queue: Arc<Handover>, attached: std::sync::mpsc::SyncSender<()>) -> Self {
        Self { queue, taken: VecDeque::new(), next: 0, attached: Some(attached) }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.queue.lock().gone = true;
        self.queue.room.notify_all();
    }
}

impl Intake for Taker {
    fn attach(&mut self, port: &dyn Port) {
        self.queue.waker.get_or_init(|| port.waker());
        if let Some(attached) = self.attached.take() {
            attached.send(()).ok();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.queue.lock().cancelled
    }

    fn begin(&mut self, _: Timestamp, _: &mut dyn Port) -> Result<(), IntakeError> {
        Ok(())
    }

    fn next(&mut self, _: Timestamp) -> Result<Next, FeedError> {
        if self.taken.is_empty() {
            let mut state = self.queue.lock();
            core::mem::swap(&mut state.waiting, &mut self.taken);
            state.bytes = 0;
            if self.taken.is_empty() {
                if state.finished {
                    return Ok(Next::End);
                }
                state.asleep = true;
                return Ok(Next::NotBefore(Timestamp::MAX));
            }
            drop(state);
            self.queue.room.notify_all();
        }
        let (shard_key, bytes, at) = self.taken.front().expect("filled above");
        let (index, shard_key, bytes) = (self.next, *shard_key, bytes.clone());
        let (time_ns, format) = (at.nanos(), Format::OPAQUE);
        Ok(Next::Message(FeedMessage { index, time_ns, shard_key, format, bytes }, *at))
    }

    fn take(&mut self) {
        self.taken.pop_front();
        self.next += 1;
    }

    fn title(&self) -> String {
        "published by a program".to_owned()
    }
}
