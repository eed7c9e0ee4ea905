//! What a store knows about its recordings without reading their messages.

use evenfall_feed_formats::{Format, codec};
use evenfall_store_format::Schema;
use evenfall_store_format::schema::Arrival;

use evenfall_store_engine::source::RecordSource;
use evenfall_store_engine::{Listed, StoreError};

use crate::files::{file_name, parse_file_name};
use crate::records::{CLASSES, number_of};
use crate::replay::StreamReplay;

/// Messages that decide the format of a recording without tags.
pub const FORMAT_MESSAGES: usize = 1_000;

/// How messages come to a recording, as its first file states; `None` when there is no file.
///
/// # Errors
/// The errors of the source.
pub fn arrival_of(source: &dyn RecordSource, name: &str) -> Result<Option<Arrival>, StoreError> {
    Ok(schema_of(source, name)?.map(|schema| schema.arrival))
}

/// The schema of the recording's first file.
pub(crate) fn schema_of(
    source: &dyn RecordSource,
    name: &str,
) -> Result<Option<Schema>, StoreError> {
    let first = file_name(name, 0, CLASSES[0]);
    let there = source.listed()?.into_iter().find(|file| file.name == first);
    Ok(there.map(|file| file.schema))
}

/// The format of the recording's messages that have no tag.
///
/// # Errors
/// The errors of the source.
pub fn format_of(source: &dyn RecordSource, name: &str) -> Result<Format, StoreError> {
    let mut untagged = Vec::new();
    for stream in streams(source, name)? {
        let mut replay = StreamReplay::new(source, name, stream, i64::MIN..=i64::MAX)?;
        let mut left = FORMAT_MESSAGES;
        while left > 0
            && let Some(recorded) = replay.next_message()?
        {
            left -= 1;
            if recorded.format == Format::OPAQUE {
                untagged.push(recorded.bytes);
            }
        }
    }
    Ok(codec::of_untagged(untagged.iter().map(|bytes| &bytes[..])))
}

/// Names of the recordings, in order.
///
/// # Errors
/// The errors of the source.
pub fn names(source: &dyn RecordSource) -> Result<Vec<String>, StoreError> {
    let name_of = |file: &Listed| Some(parse_file_name(&file.name)?.0.to_owned());
    let mut names: Vec<String> = source.listed()?.iter().filter_map(name_of).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The streams of a recording.
///
/// # Errors
/// The errors of the source.
pub fn streams(source: &dyn RecordSource, name: &str) -> Result<Vec<u32>, StoreError> {
    let stream_of = |file: &Listed| {
        let (of, stream, _) = parse_file_name(&file.name)?;
        (of == name).then_some(stream)
    };
    let mut streams: Vec<u32> = source.listed()?.iter().filter_map(stream_of).collect();
    streams.sort_unstable();
    streams.dedup();
    Ok(streams)
}

/// The first message of a stream from which on all messages are present. Retention removes whole
/// chunks, file by file, so before this message some sizes are present and others are gone.
///
/// # Errors
/// The errors of the source.
pub fn first_whole(source: &dyn RecordSource, name: &str, stream: u32) -> Result<u64, StoreError> {
    let mut first = 0;
    for file in source.listed()? {
        if parse_file_name(&file.name).is_none_or(|(of, s, _)| (of, s) != (name, stream)) {
            continue;
        }
        let numbers = source.between(&file.name, i64::MIN, i64::MAX)?;
        if numbers.start > 0 && !numbers.is_empty() {
            let record = source.numbers(&file.name, numbers.start..numbers.start + 1)?;
            first = first.max(number_of(&record));
        }
    }
    Ok(first)
}
