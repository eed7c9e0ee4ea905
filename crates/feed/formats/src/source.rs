//! The trait of all sources of messages.

use crate::arbiter::{CopyCounts, FeedSide};
use crate::capture::CopyChoice;
use crate::codec::{self, Format};
#[cfg(feature = "files")]
use crate::dates::Date;
use crate::error::{FeedError, FeedFault};
use crate::itch::Stock;
use crate::pcap::Skipped;
use bytes::Bytes;

/// One message of a feed on its way to the receivers: bytes that are never parsed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedMessage {
    /// Messages of the source before this one.
    pub index: u64,
    /// The message's own time in nanoseconds: since midnight for ITCH and LOBSTER, since 1970
    /// for captures. Only differences mean anything to a replay.
    pub time_ns: u64,
    /// The key of the messages with which this message must stay in order: the stock locate of
    /// ITCH, a hash of the channel for captures, 0 for a file of one symbol, and
    /// [`GLOBAL`](crate::sharding::GLOBAL) for all messages.
    pub shard_key: u32,
    /// Format of the bytes, for [`codec::of`].
    pub format: Format,
    /// The message without framing. A message shares a piece of about 64 KiB with its neighbours.
    /// The piece stays in memory as long as any message in it.
    pub bytes: Bytes,
}

impl FeedMessage {
    /// A message that came live and not from a file. Its codec gives its key
    /// ([`codec::Codec::shard_key`]).
    pub fn live(index: u64, time_ns: u64, format: Format, bytes: Bytes) -> Self {
        let shard_key = codec::of(format).map_or(0, |codec| codec.shard_key(&bytes));
        Self { index, time_ns, shard_key, format, bytes }
    }
}

/// Watches the times of day of a file. A file of one day states no day, so that the messages of a
/// second day behind it would get the first day's date and symbols.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DayWatch {
    latest_ns: u64,
}

impl DayWatch {
    /// Times that fall back by more belong to another day or to another file. Late messages of one
    /// day are milliseconds late.
    const FALL_MAX_NS: u64 = 3_600_000_000_000;

    /// Takes the time of the next message.
    ///
    /// # Errors
    /// The fault of a time that belongs to another day.
    #[inline]
    pub fn check(&mut self, time_ns: u64) -> Result<(), FeedFault> {
        if time_ns >= self.latest_ns {
            self.latest_ns = time_ns;
            return Ok(());
        }
        if self.latest_ns - time_ns <= Self::FALL_MAX_NS {
            return Ok(());
        }
        let clock = |ns: u64| {
            let seconds = ns / 1_000_000_000;
            format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
        };
        let (from, to) = (clock(self.latest_ns), clock(time_ns));
        Err(FeedFault::Refused {
            what: format!("the times fall back from {from} to {to}: another day begins here"),
            advice: "cut the file at this byte, and give each day by itself with its own --date",
        })
    }
}

/// Where a message of a capture came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketOrigin {
    /// The key of the channel.
    pub channel: u32,
    /// The side, where the capture has both sides of the channel.
    pub side: Option<FeedSide>,
    /// The number of the message on its channel.
    pub sequence: Option<u64>,
    /// When the venue sent the packet, in nanoseconds since 1970.
    pub sent_ns: Option<u64>,
}

/// A source that gives messages in order.
pub trait MessageSource {
    /// The next message; `None` once the source is complete.
    ///
    /// # Errors
    /// The first part that cannot be read. All messages before it have been given, and
    /// [`FeedError::index`] is their number. Asking again gives the error again.
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError>;

    /// Packets that were skipped so far because they are no message of the feed. Only captures have
    /// such packets.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }

    /// What a person should know of a source that was read to its end: bytes that are not in the
    /// feed, and readings that the source chose by itself. Each note is a clause without a full
    /// stop.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The day to which times of day belong, where the source knows it.
    #[cfg(feature = "files")]
    fn date(&self) -> Option<Date> {
        None
    }

    /// The security of all messages, where they name none and the source knows it.
    fn only_symbol(&self) -> Option<Stock> {
        None
    }

    /// Counts of the copies of two sides, where the source chooses between sides.
    fn copies(&self) -> Option<CopyCounts> {
        None
    }

    /// Chooses the copies that are given of a capture with sides A and B. Called before the first
    /// message is taken.
    ///
    /// # Errors
    /// When first copies are wanted and there are no two sides.
    fn choose_copies(&mut self, choice: CopyChoice) -> Result<(), FeedError> {
        if choice != CopyChoice::First {
            return Ok(());
        }
        let found = "a file of messages, which has no sides".to_owned();
        let (name, fault) = ("feed".to_owned(), FeedFault::NoTwoSides { found });
        Err(FeedError { name, offset: 0, index: 0, fault })
    }

    /// Where the last message came from; `None` when the source is no capture.
    fn origin(&self) -> Option<PacketOrigin> {
        None
    }

    /// Sentences for people about a source that was read to its end: what was not taken, the notes,
    /// and the copies.
    fn remarks(&self) -> Vec<String> {
        let skipped = Some(self.skipped()).filter(|skipped| *skipped != Skipped::default());
        let skipped =
            skipped.map(|skipped| format!("not all of the file is in the feed: {skipped}"));
        let copies = self.copies().map(|counts| remark_on_copies(&counts));
        skipped.into_iter().chain(self.notes()).chain(copies).collect()
    }
}

fn remark_on_copies(counts: &CopyCounts) -> String {
    let CopyCounts { first_a, first_b, ignored, lost, far, late, .. } = counts;
    let late = match late {
        0 => String::new(),
        late => format!(", {late} too late or before the first"),
    };
    format!(
        "the capture has sides A and B: of each packet the first copy was kept ({first_a} of A, \
         {first_b} of B; {ignored} further copies, {lost} lost on both sides, {far} with a number \
         too far away{late})"
    )
}

impl<S: MessageSource + ?Sized> MessageSource for Box<S> {
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
        (**self).next_message()
    }

    fn skipped(&self) -> Skipped {
        (**self).skipped()
    }

    fn notes(&self) -> Vec<String> {
        (**self).notes()
    }

    #[cfg(feature = "files")]
    fn date(&self) -> Option<Date> {
        (**self).date()
    }

    fn only_symbol(&self) -> Option<Stock> {
        (**self).only_symbol()
    }

    fn copies(&self) -> Option<CopyCounts> {
        (**self).copies()
    }

    fn choose_copies(&mut self, choice: CopyChoice) -> Result<(), FeedError> {
        (**self).choose_copies(choice)
    }

    fn origin(&self) -> Option<PacketOrigin> {
        (**self).origin()
    }
}
