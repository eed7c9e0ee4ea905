//! A publisher in a program of your own that outlives the root.
//!
//! An [`EmbeddedRoot`](crate::EmbeddedRoot) is the root itself, and ends with its process. An
//! [`Publisher`] sends its messages to a root and its standbys. It has the number of a message in
//! the feed when the roots agree on the message, and goes on with the next root when a root dies.
//!
//! ```no_run
//! use evenfall_core::NodeId;
//! use evenfall_multicast_service::publisher::{Publisher, PublisherSettings};
//!
//! // The root and its standbys, as in their settings, which name this author with role "author".
//! let roots = ["10.0.0.1:9000".parse()?, "10.0.0.8:9000".parse()?, "10.0.0.9:9000".parse()?];
//! let author = Publisher::of(&PublisherSettings::new(&roots, "10.0.0.2:0".parse()?, NodeId(40)))?;
//! println!("{} messages of this author are in the feed already", author.before()?);
//! // One message after the other, each when the roots have the one before it.
//! println!("message {}", author.publish("an order")?);
//! // Many under way: 1,024 messages or 256 KiB wait for their numbers at most.
//! let pending: Vec<_> = (0..100).map(|_| author.send("a trade")).collect::<Result<_, _>>()?;
//! for message in pending {
//!     println!("message {}", message.number()?);
//! }
//! author.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The author runs in a thread of its own. Messages that are published before a root leads wait in
//! a queue of 16,384 messages and 32 MiB. When the queue is full, [`send`](Publisher::send) waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenfall_feed_service::intake::handover::Refused;
use evenfall_host::clock::MonotonicClock;
use evenfall_runtime::SettingsError;

pub use crate::embedded_root::MESSAGE_BYTES_MAX;
use crate::role_thread::RoleThread;
pub use crate::roles::author::PublisherSummary;
use crate::roles::{RoleError, author};
pub use crate::settings::PublisherSettings;
use crate::settings::Settings;

/// Why a message has no number, or an author did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublisherError {
    /// The author has ended. [`Publisher::finish`] gives the reason. Messages without a number may
    /// be in the feed or not: another author under the same id learns how many are.
    #[error("the author has ended; Publisher::finish says why")]
    Ended,
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {bytes} bytes; the most is {MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Length of the message.
        bytes: usize,
    },
    /// The author could not start, or failed.
    #[error(transparent)]
    Role(#[from] RoleError),
}

impl From<SettingsError> for PublisherError {
    fn from(error: SettingsError) -> Self {
        Self::Role(error.into())
    }
}

/// The numbers that threads of the program wait for.
#[derive(Default)]
struct Board {
    /// Places whose number is awaited, with the number once it is known.
    awaited: BTreeMap<u64, Option<u64>>,
    /// The place of the next message.
    next: u64,
    /// Messages of earlier processes under this id, once the roots have told.
    before: Option<u64>,
    is_over: bool,
}

/// How a wait for the roots ended.
enum Waited<T> {
    Found(T),
    /// The author has ended.
    Ended,
    TimeIsUp,
}

impl<T> Waited<T> {
    /// What was found; `None` when the time is up.
    fn found(self) -> Result<Option<T>, PublisherError> {
        match self {
            Self::Found(found) => Ok(Some(found)),
            Self::TimeIsUp => Ok(None),
            Self::Ended => Err(PublisherError::Ended),
        }
    }
}

#[derive(Default)]
struct Numbers {
    board: Mutex<Board>,
    changed: Condvar,
}

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `found` finds something. `None` when the author ended first.
    fn wait<T>(&self, mut found: impl FnMut(&mut Board) -> Option<T>) -> Option<T> {
        loop {
            match self.wait_within(Duration::from_secs(3_600), &mut found) {
                Waited::Found(found) => return Some(found),
                Waited::Ended => return None,
                Waited::TimeIsUp => {}
            }
        }
    }

    /// Waits until `found` finds something, for `time` at most.
    fn wait_within<T>(
        &self,
        time: Duration,
        mut found: impl FnMut(&mut Board) -> Option<T>,
    ) -> Waited<T> {
        let until = MonotonicClock::now() + time;
        let mut board = self.lock();
        loop {
            if let Some(found) = found(&mut board) {
                return Waited::Found(found);
            }
            if board.is_over {
                return Waited::Ended;
            }
            let left = until.since(MonotonicClock::now());
            if left.is_zero() {
                return Waited::TimeIsUp;
            }
            let waited = self.changed.wait_timeout(board, left);
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn change(&self, change: impl FnOnce(&mut Board)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// A message that was sent and may have no number yet.
pub struct PendingMessage {
    place: u64,
    numbers: Arc<Numbers>,
}

impl PendingMessage {
    /// Waits for the number of the message in the feed. All receivers get the message under this
    /// number, whichever root dies.
    ///
    /// # Errors
    /// [`PublisherError::Ended`].
    pub fn number(self) -> Result<u64, PublisherError> {
        let number = self.numbers.wait(|board| board.awaited.get(&self.place).copied().flatten());
        number.ok_or(PublisherError::Ended)
    }

    /// The number of the message in the feed, as soon as it is known; `None` when the time is up.
    ///
    /// # Errors
    /// [`PublisherError::Ended`].
    pub fn number_within(&self, time: Duration) -> Result<Option<u64>, PublisherError> {
        let found = |board: &mut Board| board.awaited.get(&self.place).copied().flatten();
        self.numbers.wait_within(time, found).found()
    }
}

impl Drop for PendingMessage {
    fn drop(&mut self) {
        self.numbers.lock().awaited.remove(&self.place);
    }
}

/// A publisher that outlives the root. Threads share it by reference.
pub struct Publisher {
    role: RoleThread<PublisherSummary>,
    numbers: Arc<Numbers>,
}

impl Publisher {
    /// Starts an author, and returns when it listens.
    ///
    /// # Errors
    /// Which value is wrong, or why the author cannot start.
    pub fn of(authorship: &PublisherSettings) -> Result<Self, PublisherError> {
        Self::start(authorship.settings()?, PublisherSettings::NAME)
    }

    /// Starts the author of these settings. The feed that the settings name is not read.
    ///
    /// # Errors
    /// When the settings have no such node, or the author cannot start.
    pub fn start(settings: Settings, name: &str) -> Result<Self, PublisherError> {
        let node = settings.node(name)?.clone();
        let numbers = Arc::new(Numbers::default());
        let told = Arc::clone(&numbers);
        let role = RoleThread::start("author", move |taker| {
            let ended = author::run_with(&settings, &node, taker, &mut |told_of| {
                told.change(|board| match told_of {
                    author::Told::Begun(before) => board.before = Some(before),
                    author::Told::Numbered { place, number } => {
                        if let Some(awaited) = board.awaited.get_mut(&place) {
                            *awaited = Some(number);
                        }
                    }
                });
            });
            told.change(|board| board.is_over = true);
            ended
        });
        Ok(Self { role: role?.ok_or(PublisherError::Ended)?, numbers })
    }

    /// Waits until a root takes messages. Returns how many messages of earlier processes under this
    /// id are in the feed.
    ///
    /// # Errors
    /// [`PublisherError::Ended`].
    pub fn before(&self) -> Result<u64, PublisherError> {
        self.numbers.wait(|board| board.before).ok_or(PublisherError::Ended)
    }

    /// Waits for at most this time until a root takes messages. Returns how many messages of
    /// earlier processes under this id are in the feed, or `None` when the time is up.
    ///
    /// # Errors
    /// [`PublisherError::Ended`].
    pub fn before_within(&self, time: Duration) -> Result<Option<u64>, PublisherError> {
        self.numbers.wait_within(time, |board| board.before).found()
    }

    /// Sends a message, and waits while the queue is full. Messages are in the feed in the order of
    /// the calls.
    ///
    /// # Errors
    /// When the message is too long, or the author has ended.
    pub fn send(&self, message: impl Into<Bytes>) -> Result<PendingMessage, PublisherError> {
        let message = message.into();
        loop {
            if let Some(pending) = self.send_within(message.clone(), Duration::from_secs(3_600))? {
                return Ok(pending);
            }
        }
    }

    /// Sends a message, and waits for at most this time while the queue is full. Returns `None`
    /// when the queue is still full.
    ///
    /// # Errors
    /// When the message is too long, or the author has ended.
    pub fn send_within(
        &self,
        message: impl Into<Bytes>,
        time: Duration,
    ) -> Result<Option<PendingMessage>, PublisherError> {
        let message = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(PublisherError::TooLong { bytes: message.len() });
        }
        // The place is that of the message in the queue, so nobody else may put one meanwhile. Each
        // number that comes makes room.
        let put = |board: &mut Board| match self.role.queue.put(0, message.clone(), false) {
            Ok(()) => {
                let place = board.next;
                board.next += 1;
                board.awaited.insert(place, None);
                Some(Ok(PendingMessage { place, numbers: Arc::clone(&self.numbers) }))
            }
            Err(Refused::Gone) => Some(Err(PublisherError::Ended)),
            Err(Refused::Full) => None,
        };
        self.numbers.wait_within(time, put).found()?.transpose()
    }

    /// Sends a message, and waits for its number in the feed.
    ///
    /// # Errors
    /// When the message is too long, or the author ends before the message has its number.
    pub fn publish(&self, message: impl Into<Bytes>) -> Result<u64, PublisherError> {
        self.send(message)?.number()
    }

    /// Tells the roots that no message follows, and returns when all messages have numbers.
    ///
    /// # Errors
    /// Why the author failed.
    pub fn finish(self) -> Result<PublisherSummary, PublisherError> {
        Ok(self.role.finish()?)
    }
}
