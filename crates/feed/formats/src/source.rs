//! Where messages come from: one trait for all sources.

use crate::codec::{self, Format};
#[cfg(feature = "files")]
use crate::dates::Date;
use crate::error::FeedError;
use crate::pcap::Skipped;
use bytes::Bytes;

/// One message of a feed, as it goes to the receivers: bytes that nobody parses again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Messages of the source before this one.
    pub index: u64,
    /// The message's own time in nanoseconds: since midnight for ITCH and LOBSTER, since 1970
    /// for captures. Only differences mean anything to a replay.
    pub time_ns: u64,
    /// What the message must stay in order with: the stock locate of ITCH, a hash of the
    /// channel for captures, 0 for a file of one symbol; [`GLOBAL`](crate::sharding::GLOBAL) when
    /// with all of them.
    pub shard_key: u32,
    /// What the bytes are, for [`codec::of`].
    pub format: Format,
    /// The message, without framing. It shares a piece of about 64 KiB with its neighbours, which
    /// stays in memory as long as one of them does.
    pub bytes: Bytes,
}

impl Message {
    /// A message that came by itself, not out of a file; its key is as in files.
    pub fn live(index: u64, time_ns: u64, format: Format, bytes: Bytes) -> Self {
        let shard_key = codec::of(format).map_or(0, |codec| codec.shard_key(&bytes));
        Self { index, time_ns, shard_key, format, bytes }
    }
}

/// Something that gives messages in order.
pub trait Source {
    /// The next message; `None` once the source is complete.
    ///
    /// # Errors
    /// The first thing that cannot be read. All messages before it have been given, so
    /// [`FeedError::index`] is how many that were; asking again gives the error again.
    fn next_message(&mut self) -> Result<Option<Message>, FeedError>;

    /// What was passed over so far because it is no message of the feed. Nothing is passed over
    /// except in captures.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }

    /// The day whose midnight times of day count from, where the source knows it.
    #[cfg(feature = "files")]
    fn date(&self) -> Option<Date> {
        None
    }

    /// How the copies of two sides fared, where the source chooses between sides.
    fn copies(&self) -> Option<crate::arbiter::Counts> {
        None
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        (**self).next_message()
    }

    fn skipped(&self) -> Skipped {
        (**self).skipped()
    }

    #[cfg(feature = "files")]
    fn date(&self) -> Option<Date> {
        (**self).date()
    }

    fn copies(&self) -> Option<crate::arbiter::Counts> {
        (**self).copies()
    }
}
