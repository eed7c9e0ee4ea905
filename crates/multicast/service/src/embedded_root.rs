//! The root in a program of your own. A matching engine, a simulator or a test publishes messages,
//! and all receivers release them at the same time.
//!
//! ```no_run
//! use evenfall_core::NodeId;
//! use evenfall_multicast_service::EmbeddedRoot;
//! use evenfall_multicast_service::settings::EmbeddedRootSettings;
//!
//! let mut settings = EmbeddedRootSettings::new("127.0.0.1:9000".parse()?, NodeId(0));
//! settings.receivers = vec![(NodeId(1), "127.0.0.1:0".parse()?)];
//! let root = EmbeddedRoot::of(&settings)?;
//! for trade in 0_u64..1_000 {
//!     // Messages of one key keep their order; different keys may travel by different trees.
//!     let symbol = (trade % 7) as u32;
//!     root.publish(trade.to_le_bytes().to_vec(), symbol)?;
//! }
//! let summary = root.finish()?;
//! println!("{} messages, content {}", summary.messages, summary.content_hash);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The root runs in a thread of its own and waits there for its receivers. Messages that are
//! published before the tree stands wait in a queue. A message's latency counts from the call of
//! [`publish`](EmbeddedRoot::publish). The queue is bounded (16,384 messages, 32 MiB). When it is
//! full, `publish` waits, and [`try_publish`](EmbeddedRoot::try_publish) returns
//! [`EmbeddedRootError::Full`].

use bytes::Bytes;

use crate::role_thread::RoleThread;
use crate::roles::RoleError;
use crate::roles::root::{self, RootSummary};
use crate::settings::{EmbeddedRootSettings, RoleName, Settings};
use evenfall_feed_service::intake::handover::Refused;
use evenfall_runtime::SettingsError;

/// Longest message: a datagram less every header, and less the room that the seal of a keyed run
/// takes.
pub const MESSAGE_BYTES_MAX: usize = 65_000;

/// Why a message was not published, or a publisher did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedRootError {
    /// The queue is full. Only [`EmbeddedRoot::try_publish`] returns this error.
    #[error("as many messages wait as may; publish again later")]
    Full,
    /// The root has ended. [`EmbeddedRoot::finish`] gives the reason.
    #[error("the root has ended; EmbeddedRoot::finish says why")]
    Ended,
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {bytes} bytes; the most is {MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Length of the message.
        bytes: usize,
    },
    /// The root could not start, or failed.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// The node of the settings is no root.
    #[error("{0} is not a root; publish as the node with role = \"root\"")]
    NotARoot(String),
}

impl From<SettingsError> for EmbeddedRootError {
    fn from(error: SettingsError) -> Self {
        Self::Role(error.into())
    }
}

/// A root that sends the messages that it is given. Threads share it by reference. Messages of one
/// key go out in the order of the calls. Dropping the publisher ends the stream as `finish` does,
/// but stops within two seconds when its receivers have not come yet.
pub struct EmbeddedRoot {
    role: RoleThread<RootSummary>,
}

impl EmbeddedRoot {
    /// Starts a root from plain values, and returns when the root listens.
    ///
    /// # Errors
    /// Which value is wrong, or why the root cannot start.
    pub fn of(publication: &EmbeddedRootSettings) -> Result<Self, EmbeddedRootError> {
        Self::start(publication.settings()?, EmbeddedRootSettings::NAME)
    }

    /// Starts the root of these settings, and returns when the root listens. Feeds that the
    /// settings name are not read.
    ///
    /// # Errors
    /// When the settings have no such node, the node is no root, or the root cannot start.
    pub fn start(settings: Settings, name: &str) -> Result<Self, EmbeddedRootError> {
        let node = settings.node(name)?.clone();
        if node.role != RoleName::Root {
            return Err(EmbeddedRootError::NotARoot(name.to_owned()));
        }
        if !settings.voters().is_empty() {
            let why = "nodes with role = \"standby\": a root in a program has no standbys, because \
                       no other process has the program's messages";
            return Err(SettingsError::new(why).into());
        }
        let role = RoleThread::start("root", move |taker| root::run_with(&settings, &node, taker))?;
        Ok(Self { role: role.ok_or(EmbeddedRootError::Ended)? })
    }

    /// Publishes a message, and waits while the queue is full. Messages of one `shard_key` keep
    /// their order.
    ///
    /// # Errors
    /// When the message is too long or the root has ended.
    pub fn publish(
        &self,
        message: impl Into<Bytes>,
        shard_key: u32,
    ) -> Result<(), EmbeddedRootError> {
        self.put(message.into(), shard_key, true)
    }

    /// Publishes a message, or returns at once when the queue is full.
    ///
    /// # Errors
    /// When the message is too long, the root has ended, or the queue is full
    /// ([`EmbeddedRootError::Full`]).
    pub fn try_publish(
        &self,
        message: impl Into<Bytes>,
        shard_key: u32,
    ) -> Result<(), EmbeddedRootError> {
        self.put(message.into(), shard_key, false)
    }

    fn put(&self, message: Bytes, shard_key: u32, patient: bool) -> Result<(), EmbeddedRootError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(EmbeddedRootError::TooLong { bytes: message.len() });
        }
        self.role.queue.put(shard_key, message, patient).map_err(|refused| match refused {
            Refused::Full => EmbeddedRootError::Full,
            Refused::Gone => EmbeddedRootError::Ended,
        })
    }

    /// Ends the stream, waits until every receiver has it, and returns the summary.
    ///
    /// # Errors
    /// Why the root failed, or that receivers did not finish in time.
    pub fn finish(self) -> Result<RootSummary, EmbeddedRootError> {
        Ok(self.role.finish()?)
    }
}
