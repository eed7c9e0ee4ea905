//! The feed in a program of your own: a receiver that runs in a thread and hands over messages.
//!
//! ```no_run
//! use evenfall_core::NodeId;
//! use evenfall_multicast_service::settings::Subscription;
//! use evenfall_multicast_service::{FeedUpdate, Subscriber};
//!
//! let (root, own) = ("127.0.0.1:9000".parse()?, "127.0.0.1:0".parse()?);
//! let subscription = Subscription::new(root, own, NodeId(1));
//! let mut desk = Subscriber::of(&subscription)?.only(&["AAPL", "MSFT"]);
//! while let Some(update) = desk.next() {
//!     match update? {
//!         FeedUpdate::Message(m) => {
//!             println!("{} {:?} {} bytes", m.number, m.released, m.bytes.len())
//!         }
//!         FeedUpdate::Lost { stream, messages, .. } => {
//!             eprintln!("tree {stream} lost {messages:?}")
//!         }
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that is to keep up with a fast feed takes [batches](Subscriber::batches): all messages
//! that wait, under one lock, and one wake-up a release.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Format, SyncTime};
use evenfall_feed_formats::event::Events;
use evenfall_feed_formats::itch::Stock;
use evenfall_multicast_machine::Release;

use crate::roles::RoleError;
use crate::roles::receiver::{self, ReceiverSummary, Sink};
use crate::settings::{RoleName, Settings, Subscription};
use evenfall_runtime::SettingsError;

mod queue;

use queue::UpdateQueue;
pub use queue::{QueueLimits, UpdateBatch, WakeCall};

/// One message, released.
#[derive(Clone, Debug)]
pub struct ReleasedMessage {
    /// Tree of the message.
    pub stream: u32,
    /// Number of the message within its tree.
    pub number: u64,
    /// When the message was to be released; `None` when it was not held.
    pub deadline: Option<SyncTime>,
    /// When the message was released, read from the clock at that moment.
    pub released: SyncTime,
    /// The format of the bytes, as the publisher stated it.
    pub format: Format,
    /// The message as the venue sent it.
    pub bytes: Bytes,
}

/// An update for a subscriber. Updates come in order within each tree.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FeedUpdate {
    /// A message.
    Message(ReleasedMessage),
    /// Messages that could not be repaired. The next message follows them.
    Lost {
        /// Tree of the messages.
        stream: u32,
        /// Number of the first lost message, if it is known.
        first: Option<u64>,
        /// Number of lost messages, if it is known.
        messages: Option<u64>,
    },
}

impl FeedUpdate {
    /// Bytes of the message.
    fn bytes_len(&self) -> usize {
        match self {
            Self::Message(message) => message.bytes.len(),
            Self::Lost { .. } => 0,
        }
    }
}

/// Why a subscription ended before the stream did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The receiver could not start, or ended.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// The program took its messages too slowly.
    #[error(
        "cut off: {waiting} updates of {bytes} bytes were waiting; take them faster, or filter by \
         symbol, or let more of them wait"
    )]
    TooSlow {
        /// Updates that were waiting.
        waiting: usize,
        /// Bytes of their messages.
        bytes: usize,
    },
    /// The node of the settings is no receiver.
    #[error("{0} is not a receiver; subscribe as a node with role = \"receiver\"")]
    NotAReceiver(String),
}

impl From<SettingsError> for SubscribeError {
    fn from(error: SettingsError) -> Self {
        Self::Role(error.into())
    }
}

/// What the program and the thread of its receiver share.
struct Shared {
    queue: UpdateQueue,
    /// The program has left, or was too slow.
    is_stopped: AtomicBool,
    /// What waited when the program was too slow.
    too_slow: OnceLock<QueueLimits>,
}

/// Passes on the messages that the filter lets through.
struct Channel {
    to: Arc<Shared>,
    /// The updates of one release on their way into the queue.
    batch: Vec<FeedUpdate>,
    /// Reads messages, and learns the symbols of locate numbers from the feed itself.
    events: Events,
    /// The wanted symbols; `None` lets all messages through.
    only: Option<Vec<Stock>>,
}

impl Channel {
    fn wants(&mut self, format: Format, message: &[u8]) -> bool {
        let Some(only) = &self.only else { return true };
        self.events.concerns(format, message, only)
    }

    fn pass_batch(&mut self) {
        if self.batch.is_empty() || self.wants_to_stop() {
            return;
        }
        if let Err(waiting) = self.to.queue.push(&mut self.batch) {
            self.to.too_slow.get_or_init(|| waiting);
            self.to.is_stopped.store(true, Ordering::Release);
        }
    }
}

impl Sink for Channel {
    fn released(&mut self, release: &Release, at: SyncTime) {
        for (number, bytes) in (release.first_message..).zip(release.messages.clone()) {
            if self.wants(release.format, &bytes) {
                let Release { stream, deadline, format, .. } = *release;
                let message =
                    ReleasedMessage { stream, number, deadline, released: at, format, bytes };
                self.batch.push(FeedUpdate::Message(message));
            }
        }
        self.pass_batch();
    }

    fn lost(&mut self, stream: u32, first: Option<u64>, messages: Option<u64>) {
        self.batch.push(FeedUpdate::Lost { stream, first, messages });
        self.pass_batch();
    }

    fn wants_to_stop(&self) -> bool {
        self.to.is_stopped.load(Ordering::Acquire)
    }
}

impl Drop for Channel {
    /// Tells the program that no update follows, even if the receiver's thread panics.
    fn drop(&mut self) {
        self.to.queue.close();
    }
}

type Ended = Result<ReceiverSummary, RoleError>;

/// A subscription. Iterating gives its updates, and dropping it leaves the run.
pub struct Subscriber {
    settings: Settings,
    name: String,
    only: Option<Vec<Stock>>,
    limits: QueueLimits,
    running: Option<RunningReceiver>,
    is_done: bool,
}

/// The thread of the receiver, and what it shares with the program.
struct RunningReceiver {
    shared: Arc<Shared>,
    thread: JoinHandle<Ended>,
}

impl Subscriber {
    /// Subscribes by plain values. The receiver joins when the first update is asked for.
    ///
    /// # Errors
    /// Which value is wrong, and what is allowed.
    pub fn of(subscription: &Subscription) -> Result<Self, SubscribeError> {
        Self::with(subscription.settings()?, &subscription.name)
    }

    /// Subscribes as a node of a settings file. The receiver joins when the first update is asked
    /// for.
    ///
    /// # Errors
    /// When the file or the node is wrong.
    #[cfg(feature = "settings")]
    pub fn join(path: impl AsRef<std::path::Path>, name: &str) -> Result<Self, SubscribeError> {
        Self::with(Settings::load(path.as_ref(), &[])?, name)
    }

    /// Subscribes as a node of these settings.
    ///
    /// # Errors
    /// When the settings have no such node, or the node is no receiver.
    pub fn with(settings: Settings, name: &str) -> Result<Self, SubscribeError> {
        if settings.node(name)?.role != RoleName::Receiver {
            return Err(SubscribeError::NotAReceiver(name.to_owned()));
        }
        Ok(Self {
            settings,
            name: name.to_owned(),
            only: None,
            limits: QueueLimits::default(),
            running: None,
            is_done: false,
        })
    }

    /// Lets only messages of these symbols through, and messages that concern no single symbol. A
    /// format whose symbols are not decoded lets all messages through.
    pub fn only(mut self, symbols: &[&str]) -> Self {
        // A text that is no symbol lets no message through.
        let stocks = symbols.iter().filter_map(|symbol| Stock::new(symbol)).collect();
        self.only = (!symbols.is_empty()).then_some(stocks);
        self
    }

    /// Sets how much may wait for the program before its subscription ends.
    pub fn queue_limits(mut self, limits: QueueLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Waits until an update has come or the stream has ended, and for `time` at most. Returns
    /// whether [`next`](Iterator::next) answers at once.
    pub fn wait(&mut self, time: Duration) -> bool {
        self.is_done || self.start().queue.wait(time)
    }

    /// Has this called by the receiver's thread whenever an update comes after none was waiting,
    /// and when the stream ends; at once when an update waits already. A program that waits for
    /// several things at once writes to a descriptor here. The call must not block: it delays
    /// releases.
    pub fn call_when_filled(&mut self, call: WakeCall) {
        self.start().queue.call_when_filled(call);
    }

    /// Takes all updates that wait, `most` of them at most (at least one), under one lock. Without
    /// an update, waits for `time` at most, and then returns an empty batch. `None` once the stream
    /// has ended.
    pub fn next_batch(
        &mut self,
        most: usize,
        time: Duration,
    ) -> Option<Result<UpdateBatch, SubscribeError>> {
        self.take(|queue| queue.take_batch(most, Some(time)))
    }

    /// Iterates over batches of all updates that wait, `most` of them at most (at least one). Each
    /// batch holds an update: the iterator waits for it, and ends with the stream. A program that
    /// keeps up gets a release at a time, and a program that is behind gets several at once.
    pub fn batches(&mut self, most: usize) -> UpdateBatches<'_> {
        UpdateBatches { subscriber: self, most }
    }

    /// Takes from the queue; `None` and the reason once the stream has ended.
    fn take<T>(
        &mut self,
        take: impl FnOnce(&UpdateQueue) -> Option<T>,
    ) -> Option<Result<T, SubscribeError>> {
        if self.is_done {
            return None;
        }
        if let Some(taken) = take(&self.start().queue) {
            return Some(Ok(taken));
        }
        self.is_done = true;
        let RunningReceiver { shared, thread } = self.running.take()?;
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let Some(&QueueLimits { messages, bytes }) = shared.too_slow.get() {
            return Some(Err(SubscribeError::TooSlow { waiting: messages, bytes }));
        }
        ended.err().map(|error| Err(SubscribeError::Role(error)))
    }

    /// Starts the receiver if it does not run yet.
    fn start(&mut self) -> &Shared {
        let (settings, name, only) = (&self.settings, &self.name, &self.only);
        let limits = self.limits;
        let running = self.running.get_or_insert_with(|| {
            let shared = Arc::new(Shared {
                queue: UpdateQueue::new(limits),
                is_stopped: AtomicBool::default(),
                too_slow: OnceLock::new(),
            });
            let (to, events) = (Arc::clone(&shared), Events::new());
            let mut sink = Channel { to, batch: Vec::new(), events, only: only.clone() };
            let (settings, name) = (settings.clone(), name.clone());
            let run = move || {
                let node = settings.node(&name)?.clone();
                receiver::run(&settings, &node, &mut sink)
            };
            RunningReceiver { shared, thread: std::thread::spawn(run) }
        });
        &running.shared
    }
}

impl Iterator for Subscriber {
    type Item = Result<FeedUpdate, SubscribeError>;

    /// Waits for the next update. `None` once the stream has ended.
    fn next(&mut self) -> Option<Self::Item> {
        self.take(UpdateQueue::take)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(RunningReceiver { shared, thread }) = self.running.take() {
            shared.is_stopped.store(true, Ordering::Release);
            thread.join().ok();
        }
    }
}

/// The batches of a subscription. See [`Subscriber::batches`].
pub struct UpdateBatches<'s> {
    subscriber: &'s mut Subscriber,
    most: usize,
}

impl Iterator for UpdateBatches<'_> {
    type Item = Result<UpdateBatch, SubscribeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let most = self.most;
        self.subscriber.take(|queue| queue.take_batch(most, None))
    }
}
