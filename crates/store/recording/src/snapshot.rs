//! A recording at one moment.

use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::{Arc, OnceLock};

use evenfall_feed_formats::Format;
#[cfg(feature = "arrow")]
use evenfall_feed_formats::codec::Codec;
use evenfall_feed_formats::codec::{self, TimeOrigin};
use evenfall_feed_formats::itch::Stock;
use evenfall_store_engine::{FileListing, KnownEnd, RecordSource, StoreError};
use evenfall_store_format::layout::record_time;
use evenfall_store_format::messages::parts::{PartKind, messages_between};

use crate::catalog::RecordingFiles;
use crate::decode::{DecodedStream, MessageDecoder};
use crate::records::{RecordLayout, RecordView, number_of};
use crate::replay::{StreamReplay, first_where, records_of_times};
use crate::rows::MessageRow;

/// Messages that decide the format of messages for which the writer stated none.
pub const FORMAT_MESSAGES: usize = 1_000;
/// How often the ends of a stream's files are read until two readings agree, where an earlier
/// version began the recording and a stream has several. A live recorder appends to the files one
/// after the other, so one reading may see a message and miss the message before it.
const READINGS_MAX: usize = 3;
/// All times.
pub(crate) const ALL_TIMES: RangeInclusive<i64> = i64::MIN..=i64::MAX;

/// Some rows of a table at one moment. A row's number is its place in the table. In a recording the
/// streams follow one after the other, and a message that was lost leaves its number unused. The
/// rows of a recording's `trades` and `quotes` have the numbers of messages: a number has no row, a
/// row, or several rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSelection {
    /// Numbers of rows, in order.
    pub ranges: Vec<Range<u64>>,
    /// Times of rows. A row of the ranges with another time is not selected.
    pub times: RangeInclusive<i64>,
}

impl RowSelection {
    /// All rows of these numbers.
    pub fn of(ranges: Vec<Range<u64>>) -> Self {
        Self { ranges, times: ALL_TIMES }
    }

    /// Cuts the rows into `n` parts of about equal length, where a number is a multiple of `unit`.
    #[cfg(any(feature = "arrow", test))]
    pub(crate) fn parts(&self, n: usize, unit: u64) -> Vec<Self> {
        let all: u64 = self.ranges.iter().map(|range| range.end - range.start).sum();
        let each = all.div_ceil(n.max(1) as u64).max(1);
        let mut parts = vec![Vec::new()];
        let mut left = each;
        for range in &self.ranges {
            let mut range = range.clone();
            while !range.is_empty() {
                let cut = (range.start + left).next_multiple_of(unit.max(1)).min(range.end);
                left = left.saturating_sub(cut - range.start);
                if let Some(part) = parts.last_mut() {
                    part.push(range.start..cut);
                }
                range.start = cut;
                if left == 0 {
                    parts.push(Vec::new());
                    left = each;
                }
            }
        }
        parts.retain(|part| !part.is_empty());
        parts.into_iter().map(|ranges| Self { ranges, times: self.times.clone() }).collect()
    }
}

/// A stream of a recording at one moment.
#[derive(Clone, Debug)]
pub struct StreamSnapshot {
    stream: u32,
    files: Vec<(FileListing, Range<u64>)>,
    /// The first message of which the stream still has any.
    oldest: u64,
    /// The first message from which on all messages are present, and the number after the last.
    numbers: Range<u64>,
    /// Whether there is a message for each of these numbers, and only one.
    is_dense: bool,
    /// Whether retention has removed messages.
    is_shortened: bool,
    /// The format that the writer stated for the oldest message.
    format: Option<Format>,
}

impl StreamSnapshot {
    /// The stream of these files as it is now.
    pub(crate) fn open(
        source: &dyn RecordSource,
        recording: &RecordingFiles,
        stream: u32,
    ) -> Result<Self, StoreError> {
        let files = recording.of_stream(stream);
        let mut seen = Self::read(source, files, stream)?;
        for _ in 1..READINGS_MAX {
            if seen.is_dense || seen.parted_file().is_some() {
                break;
            }
            let again = Self::read(source, files, stream)?;
            let is_same = again.files == seen.files;
            seen = again;
            if is_same {
                break;
            }
        }
        Ok(seen)
    }

    fn read(
        source: &dyn RecordSource,
        files: &[FileListing],
        stream: u32,
    ) -> Result<Self, StoreError> {
        let (mut oldest, mut first_whole, mut end) = (u64::MAX, 0, 0);
        let (mut there, mut is_shortened, mut format) = (Vec::new(), false, None);
        for file in files {
            let records = source.between(&file.name, i64::MIN, i64::MAX)?;
            let Some(last) = records.end.checked_sub(1).filter(|last| *last >= records.start)
            else {
                continue;
            };
            let record = source.numbers(&file.name, records.start..records.start + 1)?;
            let first = number_of(&record);
            let view = RecordView::of(&record, RecordLayout::of(&file.schema));
            if first < oldest {
                format = view.format;
            }
            if records.start > 0 {
                is_shortened = true;
                // Retention removes whole chunks, file by file. It may have removed the first parts
                // of this message.
                let is_cut = matches!(view.kind, PartKind::Middle | PartKind::Last);
                first_whole = first_whole.max(first + u64::from(is_cut));
            }
            oldest = oldest.min(first);
            let record = source.numbers(&file.name, last..last + 1)?;
            // After a crash the file may end within a message, which is not there then.
            let is_cut = RecordView::of(&record, RecordLayout::of(&file.schema)).kind.is_cut_end();
            end = end.max(number_of(&record) + u64::from(!is_cut));
            there.push((file.clone(), records));
        }
        let oldest = oldest.min(end);
        let numbers = oldest.max(first_whole).min(end)..end;
        let mut snapshot =
            Self { stream, files: there, oldest, numbers, is_dense: false, is_shortened, format };
        let there = match snapshot.messages_in(source, &snapshot.numbers)? {
            Some(messages) => messages,
            None => snapshot.records_from(source, snapshot.numbers.start)?,
        };
        snapshot.is_dense = there == snapshot.numbers.end - snapshot.numbers.start;
        Ok(snapshot)
    }

    /// The file of a stream whose messages are in parts, and in one file alone.
    fn parted_file(&self) -> Option<(&FileListing, &Range<u64>)> {
        let [(file, records)] = &self.files[..] else { return None };
        (RecordLayout::of(&file.schema) == RecordLayout::Parted).then_some((file, records))
    }

    /// The messages of these numbers, counted by the records at both ends. `None` where records do
    /// not tell.
    fn messages_in(
        &self,
        source: &dyn RecordSource,
        numbers: &Range<u64>,
    ) -> Result<Option<u64>, StoreError> {
        let Some((file, records)) = self.parted_file() else { return Ok(None) };
        let record = |at: u64| source.numbers(&file.name, at..at + 1);
        let place_of = |number: u64| match number > self.oldest {
            true => {
                let is_it = |record: &[u8]| number_of(record) >= number;
                first_where(source, &file.name, records.clone(), is_it)
            }
            false => Ok(records.start),
        };
        let (start, last) = (place_of(numbers.start)?, record(records.end - 1)?);
        if number_of(&last) < numbers.end {
            // The message of the last record is one of them, if any is.
            let is_any = start < records.end;
            let first = if is_any { record(start)? } else { last.clone() };
            return Ok(Some(messages_between(&first, &last) + u64::from(is_any)));
        }
        let end = place_of(numbers.end)?;
        Ok(Some(messages_between(&record(start)?, &record(end)?)))
    }

    /// Records of messages from this number on.
    fn records_from(&self, source: &dyn RecordSource, number: u64) -> Result<u64, StoreError> {
        let mut all = 0;
        for (file, records) in &self.files {
            let start = match number > self.oldest {
                true => first_where(source, &file.name, records.clone(), |record| {
                    number_of(record) >= number
                })?,
                false => records.start,
            };
            all += records.end - start;
        }
        Ok(all)
    }

    /// The names of the files with the stream's messages.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(file, _)| file.name.as_str())
    }

    /// The stream's number in its recording.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// The first message from which on all messages are present, and the number after the last.
    pub fn numbers(&self) -> Range<u64> {
        self.numbers.clone()
    }

    /// Whether retention has removed messages before the first of [`numbers`](Self::numbers).
    pub fn is_shortened(&self) -> bool {
        self.is_shortened
    }

    /// The first message of which the stream still has any. Messages of some sizes are missing
    /// between this message and the first of [`numbers`](Self::numbers).
    pub(crate) fn oldest(&self) -> u64 {
        self.oldest
    }

    /// The messages of these numbers that are indexed by these times.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn replay<'a>(
        &self,
        source: &'a dyn RecordSource,
        numbers: Range<u64>,
        times: &RangeInclusive<i64>,
    ) -> Result<StreamReplay<'a>, StoreError> {
        let mut files = Vec::with_capacity(self.files.len());
        for (file, records) in &self.files {
            let mut records = records.clone();
            if *times != ALL_TIMES {
                records = records_of_times(source, &file.name, records, times)?;
            }
            files.push((file, records));
        }
        let start = if numbers.start > self.oldest { numbers.start } else { 0 };
        StreamReplay::of(source, files).within(start..numbers.end)
    }

    /// The numbers between the first and the last message that is indexed by these times.
    fn between(
        &self,
        source: &dyn RecordSource,
        times: &RangeInclusive<i64>,
    ) -> Result<Range<u64>, StoreError> {
        let mut found: Option<Range<u64>> = None;
        for (file, records) in &self.files {
            let timed = records_of_times(source, &file.name, records.clone(), times)?;
            if timed.is_empty() {
                continue;
            }
            let first = number_of(&source.numbers(&file.name, timed.start..timed.start + 1)?);
            let last = number_of(&source.numbers(&file.name, timed.end - 1..timed.end)?);
            let (from, to) = found.map_or((first, last + 1), |numbers| {
                (numbers.start.min(first), numbers.end.max(last + 1))
            });
            found = Some(from..to);
        }
        let found = found.unwrap_or(self.numbers.start..self.numbers.start);
        let start = found.start.clamp(self.numbers.start, self.numbers.end);
        Ok(start..found.end.clamp(start, self.numbers.end))
    }
}

/// The format of those messages of these streams whose writer stated no format.
pub(crate) fn untagged_format_of(
    source: &dyn RecordSource,
    streams: &[StreamSnapshot],
) -> Result<Format, StoreError> {
    let mut untagged = Vec::new();
    for stream in streams {
        let mut replay = stream.replay(source, 0..u64::MAX, &ALL_TIMES)?;
        let mut left = FORMAT_MESSAGES;
        while left > 0
            && let Some(recorded) = replay.next_message()?
        {
            left -= 1;
            if recorded.format.is_none() {
                untagged.push(recorded.bytes);
            }
        }
    }
    Ok(codec::of_untagged(untagged.iter().map(|bytes| &bytes[..])))
}

/// A recording at one moment. Every message whose append had returned is in it.
pub struct RecordingSnapshot {
    source: Arc<dyn RecordSource>,
    name: String,
    streams: Vec<StreamSnapshot>,
    untagged: OnceLock<Format>,
    only: Option<Stock>,
}

impl RecordingSnapshot {
    /// The recording of these files as it is now.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn open(
        source: Arc<dyn RecordSource>,
        recording: &RecordingFiles,
    ) -> Result<Self, StoreError> {
        let streams = recording.streams();
        let streams = streams.map(|stream| StreamSnapshot::open(&*source, recording, stream));
        let streams = streams.collect::<Result<_, _>>()?;
        let (name, untagged) = (recording.name.clone(), OnceLock::new());
        Ok(Self { source, name, streams, untagged, only: recording.only_symbol() })
    }

    /// The security of messages that name none, where the recording's writer stated it.
    pub fn only_symbol(&self) -> Option<Stock> {
        self.only
    }

    /// A decoder for the messages of a stream from this number on.
    ///
    /// # Errors
    /// As [`untagged_format`](Self::untagged_format).
    pub(crate) fn decoder_at(&self, first: u64) -> Result<MessageDecoder, StoreError> {
        Ok(MessageDecoder::new(self.untagged_format()?, first, self.only))
    }

    /// Name of the recording.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends a stream in front of a message: later messages are not in the snapshot.
    #[cfg(feature = "arrow")]
    pub(crate) fn end_stream(&mut self, place: usize, end: u64) {
        if let Some(stream) = self.streams.get_mut(place) {
            stream.numbers.end = end.clamp(stream.numbers.start, stream.numbers.end);
        }
    }

    /// The streams, in order.
    pub fn streams(&self) -> &[StreamSnapshot] {
        &self.streams
    }

    /// How far the files of the streams reach in this snapshot. Files without records reach to 0.
    pub(crate) fn known_ends(&self, recording: &RecordingFiles) -> Vec<KnownEnd> {
        let of_stream = |stream: &StreamSnapshot| {
            let end_of = |name: &str| {
                let file = stream.files.iter().find(|(file, _)| file.name == name);
                file.map_or(0, |(_, records)| records.end)
            };
            let files = recording.of_stream(stream.stream).iter();
            let ends = files.map(|file| (file.name.clone(), end_of(&file.name)));
            ends.map(|(name, end)| KnownEnd { name, end }).collect::<Vec<_>>()
        };
        self.streams.iter().flat_map(of_stream).collect()
    }

    /// Streams with the number of their first row.
    fn placed(&self) -> impl Iterator<Item = (u64, &StreamSnapshot)> {
        self.streams.iter().scan(0, |next, stream| {
            let place = *next;
            *next += stream.numbers.end - stream.numbers.start;
            Some((place, stream))
        })
    }

    /// The rows of some messages of the stream at this place.
    #[cfg(feature = "arrow")]
    pub(crate) fn rows_of(&self, place: usize, numbers: Range<u64>) -> Option<Range<u64>> {
        let (first, stream) = self.placed().nth(place)?;
        let clamp = |number: u64| number.clamp(stream.numbers.start, stream.numbers.end);
        let row = |number: u64| first + clamp(number) - stream.numbers.start;
        Some(row(numbers.start)..row(numbers.end)).filter(|rows| !rows.is_empty())
    }

    /// All rows.
    pub fn rows(&self) -> RowSelection {
        let placed = self.placed();
        let ranges = placed.map(|(place, s)| place..place + s.numbers.end - s.numbers.start);
        RowSelection::of(ranges.filter(|range| !range.is_empty()).collect())
    }

    /// The rows that are indexed by a time from one to another, both included. The index finds
    /// them, so that no message before them is read.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn between(&self, times: RangeInclusive<i64>) -> Result<RowSelection, StoreError> {
        if times == ALL_TIMES {
            return Ok(self.rows());
        }
        let mut ranges = Vec::new();
        for (place, stream) in self.placed() {
            let numbers = stream.between(&*self.source, &times)?;
            let shift = |number: u64| place + number - stream.numbers.start;
            if !numbers.is_empty() {
                ranges.push(shift(numbers.start)..shift(numbers.end));
            }
        }
        Ok(RowSelection { ranges, times })
    }

    /// The selected messages of each stream, by their numbers.
    pub(crate) fn selected<'a>(
        &'a self,
        rows: &'a RowSelection,
    ) -> impl Iterator<Item = (&'a StreamSnapshot, Range<u64>)> {
        self.placed().flat_map(move |(place, stream)| {
            let len = stream.numbers.end - stream.numbers.start;
            rows.ranges.iter().filter_map(move |range| {
                let start = range.start.max(place);
                let end = range.end.min(place + len);
                let number = |row: u64| row - place + stream.numbers.start;
                (start < end).then(|| (stream, number(start)..number(end)))
            })
        })
    }

    /// Cuts the rows into at most `n` parts, none of which begins within a stream.
    #[cfg(feature = "arrow")]
    pub(crate) fn stream_parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        let of_stream = |(place, stream): (u64, &StreamSnapshot)| -> Vec<Range<u64>> {
            let end = place + stream.numbers.end - stream.numbers.start;
            let cut = |range: &Range<u64>| range.start.max(place)..range.end.min(end);
            rows.ranges.iter().map(cut).filter(|range| !range.is_empty()).collect()
        };
        let mut streams: Vec<_> = self.placed().map(of_stream).collect();
        streams.retain(|ranges| !ranges.is_empty());
        let parts = streams.chunks(streams.len().div_ceil(n.max(1)).max(1));
        parts
            .map(|part| RowSelection { ranges: part.concat(), times: rows.times.clone() })
            .collect()
    }

    /// How many rows are selected.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn count(&self, rows: &RowSelection) -> Result<u64, StoreError> {
        let mut count = 0;
        for (stream, numbers) in self.selected(rows) {
            if rows.times == ALL_TIMES {
                if stream.is_dense {
                    count += numbers.end - numbers.start;
                    continue;
                }
                if let Some(messages) = stream.messages_in(&*self.source, &numbers)? {
                    count += messages;
                    continue;
                }
            }
            let mut replay = stream.replay(&*self.source, numbers, &rows.times)?;
            while replay.next_message()?.is_some() {
                count += 1;
            }
        }
        Ok(count)
    }

    /// The first and the last time by which messages are indexed; `None` without messages.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn span(&self) -> Result<Option<(i64, i64)>, StoreError> {
        let mut span: Option<(i64, i64)> = None;
        for (file, records) in self.streams.iter().flat_map(|stream| &stream.files) {
            let time = |number: u64| -> Result<i64, StoreError> {
                Ok(record_time(&self.source.numbers(&file.name, number..number + 1)?))
            };
            let (first, last) = (time(records.start)?, time(records.end - 1)?);
            span = Some(span.map_or((first, last), |(from, to)| (from.min(first), to.max(last))));
        }
        Ok(span)
    }

    /// The format of messages for which the writer stated none: the only format that reads all of
    /// the first [`FORMAT_MESSAGES`] of them in each stream, or opaque.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn untagged_format(&self) -> Result<Format, StoreError> {
        if let Some(known) = self.untagged.get() {
            return Ok(*known);
        }
        let found = untagged_format_of(&*self.source, &self.streams)?;
        Ok(*self.untagged.get_or_init(|| found))
    }

    /// The format of the recording: what the writer stated of the oldest message of the first
    /// stream that has any. `None` without messages, and where the writer stated no format.
    pub fn stated_format(&self) -> Option<Format> {
        self.streams.iter().find_map(|stream| stream.format)
    }

    /// The codec of the recording, where its messages have columns of their own. `None` for formats
    /// that are read into events, and for opaque and unknown formats.
    #[cfg(feature = "arrow")]
    pub(crate) fn own_codec(&self) -> Option<&'static dyn Codec> {
        codec::of(self.stated_format()?).filter(|codec| codec.has_own_columns())
    }

    /// The name of the recording's format, where messages of it are not read into trades, quotes
    /// and books.
    #[cfg(feature = "arrow")]
    pub(crate) fn bookless_format(&self) -> Option<String> {
        let format = self.stated_format()?;
        match codec::of(format) {
            Some(codec) if codec.has_own_columns() && codec.market_codec().is_none() => {
                Some(codec.name().to_owned())
            }
            Some(_) => None,
            None if format == Format::OPAQUE => Some("opaque bytes".to_owned()),
            None => Some(format!("format {}", format.0)),
        }
    }

    /// The clock of the venue of the first message.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn venue_clock(&self) -> Result<TimeOrigin, StoreError> {
        for stream in &self.streams {
            let mut replay = stream.replay(&*self.source, 0..u64::MAX, &ALL_TIMES)?;
            if let Some(recorded) = replay.next_message()? {
                let format = recorded.format.map_or_else(|| self.untagged_format(), Ok)?;
                return Ok(codec::of(format).map_or(TimeOrigin::Epoch, codec::Codec::clock));
            }
        }
        Ok(TimeOrigin::Epoch)
    }

    /// Gives the selected messages, decoded, until `each` breaks. With a symbol, only messages of
    /// that symbol are given.
    ///
    /// # Errors
    /// The errors of the source and of `each`.
    pub fn read<E: From<StoreError>>(
        &self,
        rows: &RowSelection,
        symbol: Option<&str>,
        each: &mut dyn FnMut(MessageRow) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let source = &*self.source;
        for (stream, numbers) in self.selected(rows) {
            let mut decoder = self.decoder_at(numbers.start)?;
            let from = DecodedStream { source, stream };
            let mut replay = stream.replay(source, numbers, &rows.times)?;
            while let Some(recorded) = replay.next_message()? {
                let (row, is_wanted) = decoder.decode(from, recorded, symbol)?;
                if is_wanted && each(row)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The source of the snapshot.
    pub(crate) fn source(&self) -> &Arc<dyn RecordSource> {
        &self.source
    }
}
