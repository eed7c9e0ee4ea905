//! Feeds on their way into recordings: the instants of their messages, and names that are free.
//!
//! Messages of most equity feeds state a time of day. The day is that of the file.

use std::fmt;

use evenfall_feed_formats::codec::{self, Codec, TimeOrigin};
use evenfall_feed_formats::{Date, FeedError, FeedMessage, MessageSource};
use evenfall_store_engine::{RecordSource, StoreError};

use crate::catalog::Catalog;
use crate::names::{NewNameError, check_new_name};
use crate::replay::StreamReplay;
use crate::writer::RecordingWriter;

/// Why a feed was not recorded, or only its first messages.
#[derive(Debug)]
#[non_exhaustive]
pub enum IntakeFailure {
    /// The messages state times of day, and nothing states the day.
    UnknownDay,
    /// A recording of this name has messages already.
    NameTaken(String),
    /// No new recording may have this name.
    WrongName {
        /// The name.
        name: String,
        /// What a name must be.
        error: NewNameError,
    },
    /// The time of a message is no time.
    WrongTime {
        /// The message's number in the feed.
        index: u64,
        /// Its time, in nanoseconds since the origin of its format's clock.
        time_ns: u64,
    },
    /// The feed is damaged from here on.
    Feed(FeedError),
    /// The store refused.
    Store(StoreError),
}

impl fmt::Display for IntakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDay => f.write_str("its messages say times of day and not the day"),
            Self::NameTaken(name) => {
                write!(
                    f,
                    "there is a recording {name} already: choose a name, or delete that one first"
                )
            }
            Self::WrongName { name, error } => write!(f, "the name {name:?} {error}"),
            Self::WrongTime { index, time_ns } => {
                write!(f, "message {index}: its time, {time_ns} ns, is no time")
            }
            Self::Feed(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for IntakeFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Feed(error) => error.source(),
            Self::Store(error) => error.source(),
            Self::WrongName { error, .. } => std::error::Error::source(error),
            Self::UnknownDay | Self::NameTaken(_) | Self::WrongTime { .. } => None,
        }
    }
}

impl From<StoreError> for IntakeFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<FeedError> for IntakeFailure {
    fn from(error: FeedError) -> Self {
        Self::Feed(error)
    }
}

/// Turns the messages' own times into nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub struct FeedDay {
    /// The day of times of day.
    pub date: Option<Date>,
}

impl FeedDay {
    /// Refuses a feed that would be recorded under an unknown day.
    ///
    /// # Errors
    /// [`IntakeFailure::UnknownDay`].
    pub fn check(self, first: Option<&FeedMessage>) -> Result<(), IntakeFailure> {
        let clock = first.map_or(TimeOrigin::Epoch, clock_of);
        match clock == TimeOrigin::Epoch || self.date.is_some() {
            true => Ok(()),
            false => Err(IntakeFailure::UnknownDay),
        }
    }

    /// The message's own time in nanoseconds since 1970.
    ///
    /// # Errors
    /// [`IntakeFailure::WrongTime`].
    pub fn epoch_ns(self, message: &FeedMessage) -> Result<i64, IntakeFailure> {
        let (index, time_ns) = (message.index, message.time_ns);
        let epoch_ns = clock_of(message).epoch_ns(self.date, time_ns);
        epoch_ns.ok_or(IntakeFailure::WrongTime { index, time_ns })
    }
}

/// The clock of a message's own time. A capture may hold messages of several formats.
fn clock_of(message: &FeedMessage) -> TimeOrigin {
    codec::of(message.format).map_or(TimeOrigin::Epoch, Codec::clock)
}

/// Refuses the name of a recording that has messages, and a name that no new recording may have.
///
/// # Errors
/// [`IntakeFailure::NameTaken`], [`IntakeFailure::WrongName`], and the errors of the source.
pub fn expect_no_messages(
    source: &dyn RecordSource,
    catalog: &Catalog,
    name: &str,
) -> Result<(), IntakeFailure> {
    let Some(files) = catalog.recording(name) else {
        let named = check_new_name(name);
        return named.map_err(|error| IntakeFailure::WrongName { name: name.to_owned(), error });
    };
    for stream in files.streams() {
        let mut there = StreamReplay::new(source, name, stream, i64::MIN..=i64::MAX)?;
        if there.next_message()?.is_some() {
            return Err(IntakeFailure::NameTaken(name.to_owned()));
        }
    }
    Ok(())
}

/// Records all messages of a feed as stream 0, each under its own time, until `goes_on` says no.
/// The messages before a damage are recorded. Returns when all of them are acknowledged.
///
/// # Errors
/// [`IntakeFailure`].
pub fn record_feed(
    writer: &mut RecordingWriter<'_>,
    messages: &mut dyn MessageSource,
    day: FeedDay,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), IntakeFailure> {
    let mut push_all = || -> Result<(), IntakeFailure> {
        let mut number = 0;
        while goes_on() {
            let Some(message) = messages.next_message()? else { break };
            if number == 0 {
                day.check(Some(&message))?;
            }
            let time_ns = day.epoch_ns(&message)?;
            writer.push(0, number, time_ns, message.format, &message.bytes)?;
            number += 1;
        }
        Ok(())
    };
    let pushed = push_all();
    writer.flush()?;
    pushed
}
