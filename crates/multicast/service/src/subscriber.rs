//! The feed in a program of your own: a receiver that runs in a thread and hands over messages.
//!
//! ```no_run
//! use evenfall_core::NodeId;
//! use evenfall_multicast_service::settings::Subscription;
//! use evenfall_multicast_service::{Subscriber, Update};
//!
//! let (root, own) = ("127.0.0.1:9000".parse()?, "127.0.0.1:0".parse()?);
//! let subscription = Subscription::new(root, own, NodeId(1));
//! let mut desk = Subscriber::of(&subscription)?.only(&["AAPL", "MSFT"]);
//! while let Some(update) = desk.next() {
//!     match update? {
//!         Update::Message(m) => println!("{} {:?} {} bytes", m.number, m.released, m.bytes.len()),
//!         Update::Lost { stream, messages, .. } => eprintln!("tree {stream} lost {messages:?}"),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
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

/// Updates that may wait for the program. A program that is further behind is too slow: its
/// subscription ends with the error [`SubscribeError::TooSlow`], and other receivers are not
/// affected.
const WAITING_MAX: usize = 65_536;

/// One message, released.
#[derive(Clone, Debug)]
pub struct Message {
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
pub enum Update {
    /// A message.
    Message(Message),
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

/// Why a subscription ended before the stream did.
#[derive(Debug)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The receiver could not start, or ended.
    Role(RoleError),
    /// The program took its messages too slowly.
    TooSlow {
        /// Updates that were waiting.
        waiting: usize,
    },
    /// The node of the settings is no receiver.
    NotAReceiver(String),
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(error) => write!(f, "{error}"),
            Self::TooSlow { waiting } => write!(
                f,
                "cut off: {waiting} updates were waiting; take them faster, or filter by symbol"
            ),
            Self::NotAReceiver(name) => {
                write!(f, "{name} is not a receiver; subscribe as a node with role = \"receiver\"")
            }
        }
    }
}

impl std::error::Error for SubscribeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Role(error) => std::error::Error::source(error),
            Self::TooSlow { .. } | Self::NotAReceiver(_) => None,
        }
    }
}

impl From<SettingsError> for SubscribeError {
    fn from(error: SettingsError) -> Self {
        Self::Role(error.into())
    }
}

impl From<RoleError> for SubscribeError {
    fn from(error: RoleError) -> Self {
        Self::Role(error)
    }
}

/// Passes on the messages that the filter lets through.
struct Channel {
    to: SyncSender<Update>,
    /// Reads messages, and learns the symbols of locate numbers from the feed itself.
    events: Events,
    /// The wanted symbols; `None` lets all messages through.
    only: Option<Vec<Stock>>,
    stop: Arc<AtomicBool>,
    too_slow: Arc<AtomicBool>,
}

impl Channel {
    fn wants(&mut self, format: Format, message: &[u8]) -> bool {
        let Some(only) = &self.only else { return true };
        self.events.concerns(format, message, only)
    }

    fn pass(&self, update: Update) {
        match self.to.try_send(update) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.too_slow.store(true, Ordering::Release);
                self.stop.store(true, Ordering::Release);
            }
            Err(TrySendError::Disconnected(_)) => self.stop.store(true, Ordering::Release),
        }
    }
}

impl Sink for Channel {
    fn released(&mut self, release: &Release, at: SyncTime) {
        for (number, bytes) in (release.first_message..).zip(release.messages.clone()) {
            if self.wants(release.format, &bytes) && !self.wants_to_stop() {
                let Release { stream, deadline, format, .. } = *release;
                let message = Message { stream, number, deadline, released: at, format, bytes };
                self.pass(Update::Message(message));
            }
        }
    }

    fn lost(&mut self, stream: u32, first: Option<u64>, messages: Option<u64>) {
        self.pass(Update::Lost { stream, first, messages });
    }

    fn wants_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

type Ended = Result<ReceiverSummary, RoleError>;

/// A subscription. Iterating gives its updates, and dropping it leaves the run.
pub struct Subscriber {
    settings: Settings,
    name: String,
    only: Option<Vec<Stock>>,
    running: Option<(Receiver<Update>, JoinHandle<Ended>)>,
    /// An update that [`wait`](Self::wait) has taken from the channel.
    waiting: Option<Update>,
    stop: Arc<AtomicBool>,
    too_slow: Arc<AtomicBool>,
    done: bool,
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
            running: None,
            waiting: None,
            stop: Arc::default(),
            too_slow: Arc::default(),
            done: false,
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

    /// Waits until an update has come or the stream has ended, and for `time` at most. Returns
    /// whether [`next`](Iterator::next) answers at once.
    pub fn wait(&mut self, time: Duration) -> bool {
        if self.done || self.waiting.is_some() {
            return true;
        }
        match self.start().0.recv_timeout(time) {
            Ok(update) => {
                self.waiting = Some(update);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    fn start(&mut self) -> &mut (Receiver<Update>, JoinHandle<Ended>) {
        let (stop, too_slow) = (Arc::clone(&self.stop), Arc::clone(&self.too_slow));
        let (settings, name, only) = (self.settings.clone(), self.name.clone(), self.only.clone());
        self.running.get_or_insert_with(|| {
            let (to, from) = sync_channel(WAITING_MAX);
            let events = Events::new();
            let mut sink = Channel { to, events, only, stop, too_slow };
            let run = move || {
                let node = settings.node(&name)?.clone();
                receiver::run(&settings, &node, &mut sink)
            };
            (from, std::thread::spawn(run))
        })
    }
}

impl Iterator for Subscriber {
    type Item = Result<Update, SubscribeError>;

    /// Waits for the next update. `None` once the stream has ended.
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if let Some(update) = self.waiting.take() {
            return Some(Ok(update));
        }
        if let Ok(update) = self.start().0.recv() {
            return Some(Ok(update));
        }
        self.done = true;
        if self.too_slow.load(Ordering::Acquire) {
            return Some(Err(SubscribeError::TooSlow { waiting: WAITING_MAX }));
        }
        let (_, thread) = self.running.take()?;
        match thread.join() {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(Err(SubscribeError::Role(error))),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some((from, thread)) = self.running.take() {
            drop(from);
            thread.join().ok();
        }
    }
}
