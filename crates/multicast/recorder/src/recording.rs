//! A feed in the store: every message, in the order of its stream, byte for byte.
//!
//! The records of a file have one length, and messages have many. Each stream is therefore kept in
//! a few files by size class. A message goes into the smallest record that holds it, with its
//! number in the stream. Reading merges the classes by that number.
//!
//! ```text
//! <name>.<stream>.<record bytes>
//!  0           8           16       18       19
//! +-----------+-----------+--------+--------+-------------------
//! | time  i64 | number u64| length | format | message, then zero
//! +-----------+-----------+--------+--------+-------------------
//! ```
//!
//! The format is the tag of the message's codec ([`evenfall_feed_formats::codec`]). Recordings of
//! earlier versions have no format byte: their messages begin at byte 18, as their schema says.
//! Messages without a tag get the format that can read all of the recording's first
//! [`FORMAT_MESSAGES`] messages ([`format_of`]). A recording keeps the layout with which it began.
//!
//! The time of a message is the time of its release, or the feed's own time. A file is indexed by
//! the first eight bytes of its records, which never decrease. A message's own time may lie before
//! the time of the previous message, or ahead of this machine's clock. The message is then indexed
//! by the nearest allowed time, and its own time follows its bytes, which the highest bit of the
//! length marks. One wrong stamp therefore changes no other message's time, and every stamp is
//! kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenfall_feed_formats::{Format, codec};
use evenfall_store_format::schema::Arrival;
use evenfall_store_format::{Field, FieldType, Schema};

use evenfall_store_engine::source::RecordSource;
use evenfall_store_engine::{Level, Store, StoreError, StoreFile};

/// Bytes in front of the message.
const HEAD_BYTES: usize = 19;
/// Bytes in front of the message in a recording without formats, one byte fewer.
const UNTAGGED_HEAD_BYTES: usize = 18;
/// Messages that decide the format of a recording without tags.
pub const FORMAT_MESSAGES: usize = 1_000;
/// Flag in the length of a message whose own time follows it. The largest record is shorter than
/// this value.
const OWN_TIME: u16 = 1 << 15;
/// Bytes of the message's own time.
const OWN_TIME_BYTES: usize = 8;
/// Record lengths. ITCH messages have 12 to 50 bytes and fill the first three lengths well. The
/// last length holds the contents of any datagram.
const CLASSES: [u16; 6] = [32, 48, 72, 160, 1_024, 16_352];
/// Bytes that are gathered for a file before they are appended.
const BATCH_BYTES: usize = 64 << 10;
/// Pause after the store refused an append.
const REFUSED: std::time::Duration = std::time::Duration::from_millis(10);
/// Records read at once.
const READ_RECORDS: u64 = 4_096;

/// Offset of the message in records of this schema.
fn head_bytes(schema: &Schema) -> usize {
    if schema.field("format").is_some() { HEAD_BYTES } else { UNTAGGED_HEAD_BYTES }
}

fn schema(record_bytes: u16, arrival: &Arrival, head_bytes: usize) -> Schema {
    let mut schema = Schema::of(&[("time", FieldType::Time), ("number", FieldType::U64)]);
    let mut add = |name: &str, offset, len, kind| {
        let name = name.to_owned();
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    };
    add("length", 16, 2, FieldType::U16);
    if head_bytes == HEAD_BYTES {
        add("format", 18, 1, FieldType::U8);
    }
    let head_bytes = head_bytes as u16;
    add("message", head_bytes, record_bytes - head_bytes, FieldType::Bytes);
    schema.record_bytes = record_bytes;
    schema.arrival = arrival.clone();
    schema
}

/// How messages come to a recording, as its first file states; `None` when there is no file.
///
/// # Errors
/// The errors of the source.
pub fn arrival_of(source: &dyn RecordSource, name: &str) -> Result<Option<Arrival>, StoreError> {
    Ok(schema_of(source, name)?.map(|schema| schema.arrival))
}

/// The schema of the recording's first file.
fn schema_of(source: &dyn RecordSource, name: &str) -> Result<Option<Schema>, StoreError> {
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
        let mut replay = Replay::new(source, name, stream, i64::MIN..=i64::MAX)?;
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

struct Pending {
    file: Arc<StoreFile>,
    bytes: Vec<u8>,
    last_ns: i64,
    /// Number of the first message that the class does not have yet.
    next: u64,
}

impl Pending {
    fn put(
        &mut self,
        number: u64,
        indexed_ns: i64,
        format: Option<Format>,
        message: &[u8],
        own_time_ns: Option<i64>,
        record_bytes: u16,
    ) {
        (self.next, self.last_ns) = (number + 1, indexed_ns);
        let end = self.bytes.len() + usize::from(record_bytes);
        let flag = if own_time_ns.is_some() { OWN_TIME } else { 0 };
        let length = message.len() as u16 | flag;
        self.bytes.extend_from_slice(&indexed_ns.to_le_bytes());
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend(format.map(|format| format.0));
        self.bytes.extend_from_slice(message);
        self.bytes.extend(own_time_ns.iter().flat_map(|time_ns| time_ns.to_le_bytes()));
        self.bytes.resize(end, 0);
    }
}

/// Reads a message from its record.
fn parse(record: &[u8], head_bytes: usize) -> Recorded {
    let indexed_ns = evenfall_store_format::layout::record_time(record);
    let length = u16::from_le_bytes([record[16], record[17]]);
    let is_tagged = head_bytes == HEAD_BYTES;
    let format = if is_tagged { Format(record[HEAD_BYTES - 1]) } else { Format::OPAQUE };
    let body = &record[head_bytes..];
    let (message, rest) = body.split_at(usize::from(length & !OWN_TIME).min(body.len()));
    let own_time = rest.first_chunk().filter(|_| length & OWN_TIME != 0);
    let time_ns = own_time.map_or(indexed_ns, |bytes| i64::from_le_bytes(*bytes));
    Recorded { number: number_of(record), time_ns, format, indexed_ns, bytes: message.to_vec() }
}

/// Writes a recording.
pub struct Recorder<'a> {
    store: &'a Store,
    name: String,
    level: Level,
    files: BTreeMap<(u32, u16), Pending>,
    messages: u64,
    arrival: Arrival,
    /// Bytes in front of a message. A recording that an earlier version began has fewer.
    head_bytes: usize,
}

/// A message of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Number of the message in its stream.
    pub number: u64,
    /// The message's own time.
    pub time_ns: i64,
    /// The tag of the message's codec, or opaque in a recording without tags.
    pub format: Format,
    /// The time by which the message is indexed. This time differs from the message's own time when
    /// the own time went back, or lay in the future when the message came.
    pub indexed_ns: i64,
    /// Bytes of the message.
    pub bytes: Vec<u8>,
}

impl<'a> Recorder<'a> {
    /// Records under this name, or continues the recording of that name. The number of streams
    /// tells a reader about streams without messages.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn new(
        store: &'a Store,
        name: &str,
        streams: u32,
        level: Level,
    ) -> Result<Self, StoreError> {
        Self::with_arrival(store, name, streams, level, Arrival::default())
    }

    /// Records with a note in the files on how messages come. An existing recording keeps its own
    /// note.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn with_arrival(
        store: &'a Store,
        name: &str,
        streams: u32,
        level: Level,
        arrival: Arrival,
    ) -> Result<Self, StoreError> {
        let there = schema_of(store, name)?;
        let head_bytes = there.as_ref().map_or(HEAD_BYTES, head_bytes);
        let arrival = there.map_or(arrival, |schema| schema.arrival);
        let schema = schema(CLASSES[0], &arrival, head_bytes);
        let smallest = |s| (file_name(name, s, CLASSES[0]), schema.clone());
        let wanted: Vec<_> = (0..streams).map(smallest).collect();
        store.create_all(&wanted)?;
        let (files, messages) = (BTreeMap::new(), 0);
        Ok(Self { store, name: name.into(), level, files, messages, arrival, head_bytes })
    }

    /// Takes the next message of a stream. A message that was recorded before a crash is skipped,
    /// because each file has all messages of its class up to some number.
    ///
    /// # Errors
    /// [`RecordLength`](evenfall_store_format::Error::RecordLength) for a message that fits no
    /// class, and the errors of the store.
    pub fn push(
        &mut self,
        stream: u32,
        number: u64,
        time_ns: i64,
        format: Format,
        message: &[u8],
    ) -> Result<(), StoreError> {
        let head_bytes = self.head_bytes;
        let needed = head_bytes + message.len();
        let too_long = || evenfall_store_format::Error::RecordLength { record_bytes: needed };
        let now_ns = self.store.now_ns();
        let mut fitting = CLASSES.into_iter().filter(|class| usize::from(*class) >= needed);
        let is_full = loop {
            let class = fitting.next().ok_or_else(too_long)?;
            let pending = self.pending(stream, class)?;
            if number < pending.next {
                break false;
            }
            let indexed_ns = time_ns.min(now_ns).max(pending.last_ns);
            let has_own_time = indexed_ns != time_ns;
            if has_own_time && needed + OWN_TIME_BYTES > usize::from(class) {
                continue;
            }
            let own_time_ns = has_own_time.then_some(time_ns);
            let format = (head_bytes == HEAD_BYTES).then_some(format);
            pending.put(number, indexed_ns, format, message, own_time_ns, class);
            break pending.bytes.len() >= BATCH_BYTES;
        };
        self.messages += 1;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// The file of a size class.
    fn pending(&mut self, stream: u32, class: u16) -> Result<&mut Pending, StoreError> {
        match self.files.entry((stream, class)) {
            std::collections::btree_map::Entry::Occupied(there) => Ok(there.into_mut()),
            std::collections::btree_map::Entry::Vacant(free) => {
                let name = file_name(&self.name, stream, class);
                let schema = schema(class, &self.arrival, self.head_bytes);
                let file = self.store.create(&name, &schema)?;
                let last_ns = file.last_ns().unwrap_or(i64::MIN);
                let next = match file.records().checked_sub(1) {
                    Some(last) => number_of(&self.store.record(&file, last)?) + 1,
                    None => 0,
                };
                Ok(free.insert(Pending { file, bytes: Vec::new(), last_ns, next }))
            }
        }
    }

    /// Appends the gathered messages of all files at once, so that they share a commit. When the
    /// call returns, every message so far is acknowledged.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        let mut waiting = Vec::new();
        for pending in self.files.values_mut().filter(|pending| !pending.bytes.is_empty()) {
            let begun = begin(self.store, &pending.file, &pending.bytes, self.level)?;
            pending.bytes.clear();
            waiting.push((&pending.file, begun));
        }
        for (file, begun) in waiting {
            self.store.append_end(file, begun, self.level)?;
        }
        Ok(())
    }

    /// Messages that the recorder has taken.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

fn file_name(name: &str, stream: u32, class: u16) -> String {
    format!("{name}.{stream}.{class}")
}

/// Recording, stream and record length from the name of a file.
fn parse_file_name(name: &str) -> Option<(&str, u32, u16)> {
    let (rest, class) = name.rsplit_once('.')?;
    let (name, stream) = rest.rsplit_once('.')?;
    Some((name, stream.parse().ok()?, class.parse().ok()?))
}

/// Whether this file holds messages of this recording.
pub fn is_message_file_of(file: &str, recording: &str) -> bool {
    parse_file_name(file).is_some_and(|(name, _, _)| name == recording)
}

/// Whether this file is part of this recording.
pub fn is_file_of(file: &str, recording: &str) -> bool {
    is_message_file_of(file, recording)
        || crate::frames::is_file_of(file, recording)
        || file == crate::utc::file_name(recording)
}

/// A recorder has no other place for refused messages, so it waits. A full disk is reported as an
/// error.
pub(super) fn begin(
    store: &Store,
    file: &StoreFile,
    bytes: &[u8],
    level: Level,
) -> Result<(u64, u64), StoreError> {
    loop {
        match store.append_begin(file, bytes, level) {
            Err(error) if error.is_retryable() && !error.is_full() => std::thread::sleep(REFUSED),
            done => return done,
        }
    }
}

/// Names of the recordings, in order.
///
/// # Errors
/// The errors of the source.
pub fn names(source: &dyn RecordSource) -> Result<Vec<String>, StoreError> {
    let name_of =
        |file: &evenfall_store_engine::Listed| Some(parse_file_name(&file.name)?.0.to_owned());
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
    let stream_of = |file: &evenfall_store_engine::Listed| {
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

/// One class of a stream while it is merged.
struct Cursor {
    name: String,
    size: usize,
    head_bytes: usize,
    next: u64,
    end: u64,
    records: Vec<u8>,
    at: usize,
}

impl Cursor {
    /// The record at the cursor.
    fn head(&mut self, source: &dyn RecordSource) -> Result<Option<&[u8]>, StoreError> {
        if self.at >= self.records.len() {
            if self.next >= self.end {
                return Ok(None);
            }
            let until = (self.next + READ_RECORDS).min(self.end);
            self.records = source.numbers(&self.name, self.next..until)?;
            (self.next, self.at) = (until, 0);
        }
        Ok(self.records.get(self.at..self.at + self.size))
    }
}

/// The first record for which `holds` is true, when `holds` is also true for all records after it.
/// Without such a record, the end of the records.
pub(super) fn first_where(
    source: &dyn RecordSource,
    file: &str,
    numbers: std::ops::Range<u64>,
    holds: impl Fn(&[u8]) -> bool,
) -> Result<u64, StoreError> {
    let (mut low, mut high) = (numbers.start, numbers.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(&source.numbers(file, middle..middle + 1)?) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(low)
}

fn number_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[8..16].try_into().expect("a record has a number"))
}

/// The messages of a stream, in order of their numbers.
pub struct Replay<'a> {
    source: &'a dyn RecordSource,
    cursors: Vec<Cursor>,
    /// The number after the last message that was given out.
    next: Option<u64>,
}

impl<'a> Replay<'a> {
    /// The messages between two times, both included.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn new(
        source: &'a dyn RecordSource,
        name: &str,
        stream: u32,
        times: std::ops::RangeInclusive<i64>,
    ) -> Result<Self, StoreError> {
        let is_part = |file: &evenfall_store_engine::Listed| {
            parse_file_name(&file.name).is_some_and(|(of, s, _)| (of, s) == (name, stream))
        };
        let mut cursors = Vec::new();
        for file in source.listed()?.into_iter().filter(is_part) {
            let numbers = source.between(&file.name, *times.start(), *times.end())?;
            let size = usize::from(file.schema.record_bytes);
            let (next, end) = (numbers.start, numbers.end);
            let (head_bytes, records) = (head_bytes(&file.schema), Vec::new());
            cursors.push(Cursor { name: file.name, size, head_bytes, next, end, records, at: 0 });
        }
        Ok(Self { source, cursors, next: None })
    }

    /// The messages from this number on.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn from_number(
        source: &'a dyn RecordSource,
        name: &str,
        stream: u32,
        number: u64,
    ) -> Result<Self, StoreError> {
        let mut replay = Self::new(source, name, stream, i64::MIN..=i64::MAX)?;
        for cursor in &mut replay.cursors {
            let numbers = cursor.next..cursor.end;
            let is_it = |record: &[u8]| number_of(record) >= number;
            cursor.next = first_where(source, &cursor.name, numbers, is_it)?;
        }
        Ok(replay)
    }

    /// The next message.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn next_message(&mut self) -> Result<Option<Recorded>, StoreError> {
        loop {
            let mut first: Option<(u64, usize)> = None;
            for (at, cursor) in self.cursors.iter_mut().enumerate() {
                if let Some(record) = cursor.head(self.source)? {
                    let number = number_of(record);
                    first = Some(first.map_or((number, at), |best| best.min((number, at))));
                }
            }
            let Some((number, at)) = first else { return Ok(None) };
            let cursor = &mut self.cursors[at];
            let head_bytes = cursor.head_bytes;
            let Some(record) = cursor.head(self.source)? else { return Ok(None) };
            let recorded = parse(record, head_bytes);
            cursor.at += cursor.size;
            // A message that was pushed again after a crash may be in two size classes.
            if self.next.is_none_or(|next| number >= next) {
                self.next = Some(number + 1);
                return Ok(Some(recorded));
            }
        }
    }
}
