//! The messages of a recording, decoded: all of them, or those of one symbol.

use std::ops::RangeInclusive;

use evenfall_feed_formats::Format;
use evenfall_feed_formats::codec::{self, Clock};
use evenfall_feed_formats::event::Events;
use evenfall_feed_formats::itch::Stock;
use evenfall_store_engine::{Listed, RecordSource, StoreError};

use crate::catalog::{first_whole, format_of, streams};
use crate::files::is_message_file_of;
use crate::records::RecordedMessage;
use crate::replay::StreamReplay;
use crate::rows::MessageRow;

/// Decodes the messages of a recording.
pub struct MessageDecoder {
    events: Events,
    /// The format of messages without a tag.
    untagged: Format,
}

impl MessageDecoder {
    /// A decoder for this recording.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn new(source: &dyn RecordSource, recording: &str) -> Result<Self, StoreError> {
        Ok(Self { events: Events::new(), untagged: format_of(source, recording)? })
    }

    /// The row of a message, and whether the message names the symbol.
    pub fn decode(
        &mut self,
        stream: u32,
        mut recorded: RecordedMessage,
        symbol: Option<&str>,
    ) -> (MessageRow, bool) {
        if recorded.format == Format::OPAQUE {
            recorded.format = self.untagged;
        }
        let mut is_named = symbol.is_none();
        let event = self.events.read_each(recorded.format, &recorded.bytes, |event| {
            let found = event.symbol.as_ref().map(Stock::trimmed);
            is_named |= found.is_some() && found == symbol.map(str::as_bytes);
        });
        (MessageRow { stream, recorded, event }, is_named)
    }
}

/// Streams that retention has shortened: stream, and the number of its first message.
pub type Shortened = Vec<(u32, u64)>;

/// Gives the messages of a recording that lie between the times and belong to the symbol. The
/// recording is read from its beginning, because the order of an execution names the symbol, and
/// the execution does not.
///
/// # Errors
/// The errors of the source and of `each`.
pub fn read_messages<E: From<StoreError>>(
    source: &dyn RecordSource,
    recording: &str,
    symbol: Option<&str>,
    times: RangeInclusive<i64>,
    each: &mut dyn FnMut(MessageRow) -> Result<(), E>,
) -> Result<Shortened, E> {
    let mut shortened = Vec::new();
    for stream in streams(source, recording)? {
        let mut decoder = MessageDecoder::new(source, recording)?;
        let mut replay = StreamReplay::new(source, recording, stream, i64::MIN..=*times.end())?;
        let first = first_whole(source, recording, stream)?;
        if first > 0 {
            shortened.push((stream, first));
        }
        while let Some(recorded) = replay.next_message()? {
            let (row, is_wanted) = decoder.decode(stream, recorded, symbol);
            let is_in_time = row.recorded.indexed_ns >= *times.start();
            if is_wanted && is_in_time && row.recorded.number >= first {
                each(row)?;
            }
        }
    }
    Ok(shortened)
}

/// The clock of the venue of a recording's messages.
///
/// # Errors
/// The errors of the source.
pub fn venue_clock(source: &dyn RecordSource, recording: &str) -> Result<Clock, StoreError> {
    let mut decoder = MessageDecoder::new(source, recording)?;
    for stream in streams(source, recording)? {
        let mut replay = StreamReplay::new(source, recording, stream, i64::MIN..=i64::MAX)?;
        if let Some(recorded) = replay.next_message()? {
            let format = decoder.decode(stream, recorded, None).0.recorded.format;
            return Ok(codec::of(format).map_or(Clock::Epoch, codec::Codec::clock));
        }
    }
    Ok(Clock::Epoch)
}

/// The first and the last time of a recording's messages.
///
/// # Errors
/// The errors of the source.
pub fn recording_span(
    source: &dyn RecordSource,
    recording: &str,
) -> Result<Option<(i64, i64)>, StoreError> {
    let mut span = None;
    for file in source.listed()?.iter().filter(|file| is_message_file_of(&file.name, recording)) {
        span = joined(span, file_span(source, file)?);
    }
    Ok(span)
}

/// The span of two spans together.
pub fn joined(one: Option<(i64, i64)>, other: Option<(i64, i64)>) -> Option<(i64, i64)> {
    match (one, other) {
        (Some((from, to)), Some((first, last))) => Some((from.min(first), to.max(last))),
        (one, other) => one.or(other),
    }
}

/// The first and the last time of a file's records.
///
/// # Errors
/// The errors of the source.
pub fn file_span(
    source: &dyn RecordSource,
    file: &Listed,
) -> Result<Option<(i64, i64)>, StoreError> {
    let all = source.between(&file.name, i64::MIN, i64::MAX)?;
    let Some(last) = all.end.checked_sub(1).filter(|last| *last >= all.start) else {
        return Ok(None);
    };
    let time = |number: u64| -> Result<i64, StoreError> {
        let record = source.numbers(&file.name, number..number + 1)?;
        Ok(evenfall_store_format::layout::record_time(&record))
    };
    Ok(Some((time(all.start)?, time(last)?)))
}
