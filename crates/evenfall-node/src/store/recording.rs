//! A feed in the store: every message, in the order of its stream, byte for byte.
//!
//! Records have one length and messages have many, so each stream is kept in a few files by size
//! class: a message goes into the smallest record that holds it, with its number in the stream.
//! Reading merges the classes by that number.
//!
//! ```text
//! <name>.<stream>.<record bytes>
//!  0           8           16       18
//! +-----------+-----------+--------+-------------------
//! | time  i64 | number u64| length | message, then zero
//! +-----------+-----------+--------+-------------------
//! ```
//!
//! The time is when the message was released, or the feed's own; it never goes back within a file,
//! and a message whose own time does is kept under the time before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenfall_store::{Field, FieldType, Schema};

use super::source::RecordSource;
use super::{Level, Store, StoreError, StoreFile};

/// Bytes in front of the message.
const HEAD_BYTES: usize = 18;
/// Record lengths. ITCH messages have 12 to 50 bytes and fill the first three well; the last
/// holds any datagram's worth.
const CLASSES: [u16; 6] = [32, 48, 72, 160, 1_024, 16_352];
/// Bytes gathered for a file before they are appended.
const BATCH_BYTES: usize = 64 << 10;
/// Records read at once.
const READ_RECORDS: u64 = 4_096;

fn schema(record_bytes: u16) -> Schema {
    let mut schema = Schema::of(&[("time", FieldType::Time), ("number", FieldType::U64)]);
    let mut add = |name: &str, offset, len, kind| {
        let name = name.to_owned();
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    };
    add("length", 16, 2, FieldType::U16);
    add("message", 18, record_bytes - 18, FieldType::Bytes);
    schema.record_bytes = record_bytes;
    schema
}

struct Pending {
    file: Arc<StoreFile>,
    bytes: Vec<u8>,
    last_ns: i64,
}

/// Writes a recording.
pub struct Recorder<'a> {
    store: &'a Store,
    name: String,
    level: Level,
    files: BTreeMap<(u32, u16), Pending>,
    messages: u64,
}

/// A message of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number in the stream.
    pub number: u64,
    /// Its time.
    pub time_ns: i64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl<'a> Recorder<'a> {
    /// Records under this name, or goes on with what is there.
    pub fn new(store: &'a Store, name: &str, level: Level) -> Self {
        Self { store, name: name.into(), level, files: BTreeMap::new(), messages: 0 }
    }

    /// Takes the next message of a stream.
    ///
    /// # Errors
    /// [`evenfall_store::Error::RecordLength`] of a message that fits no class; what the store
    /// says.
    pub fn push(
        &mut self,
        stream: u32,
        number: u64,
        time_ns: i64,
        message: &[u8],
    ) -> Result<(), StoreError> {
        let needed = HEAD_BYTES + message.len();
        let class = CLASSES.into_iter().find(|class| usize::from(*class) >= needed);
        let class = class.ok_or(evenfall_store::Error::RecordLength { record_bytes: needed })?;
        let pending = match self.files.entry((stream, class)) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let name = format!("{}.{stream}.{class}", self.name);
                let file = self.store.create(&name, &schema(class))?;
                let last_ns = file.last_ns().unwrap_or(i64::MIN);
                free.insert(Pending { file, bytes: Vec::new(), last_ns })
            }
        };
        pending.last_ns = pending.last_ns.max(time_ns);
        let end = pending.bytes.len() + usize::from(class);
        pending.bytes.extend_from_slice(&pending.last_ns.to_le_bytes());
        pending.bytes.extend_from_slice(&number.to_le_bytes());
        pending.bytes.extend_from_slice(&(message.len() as u16).to_le_bytes());
        pending.bytes.extend_from_slice(message);
        pending.bytes.resize(end, 0);
        self.messages += 1;
        if end >= BATCH_BYTES {
            let bytes = std::mem::take(&mut pending.bytes);
            let file = Arc::clone(&pending.file);
            self.append(&file, &bytes)?;
        }
        Ok(())
    }

    /// A recorder has nowhere to put what is refused, so it waits.
    fn append(&self, file: &StoreFile, bytes: &[u8]) -> Result<(), StoreError> {
        loop {
            match self.store.append(file, bytes, self.level) {
                Err(error) if error.is_retryable() => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                done => return done.map(drop),
            }
        }
    }

    /// Appends what was gathered.
    ///
    /// # Errors
    /// What the store says.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        for key in self.files.keys().copied().collect::<Vec<_>>() {
            let Some(pending) = self.files.get_mut(&key) else { continue };
            let (bytes, file) = (std::mem::take(&mut pending.bytes), Arc::clone(&pending.file));
            if !bytes.is_empty() {
                self.append(&file, &bytes)?;
            }
        }
        Ok(())
    }

    /// Messages taken.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

/// The streams of a recording.
///
/// # Errors
/// What the source says.
pub fn streams(source: &dyn RecordSource, name: &str) -> Result<Vec<u32>, StoreError> {
    let prefix = format!("{name}.");
    let mut streams: Vec<u32> = source
        .listed()?
        .iter()
        .filter_map(|file| file.name.strip_prefix(&prefix)?.split_once('.')?.0.parse().ok())
        .collect();
    streams.sort_unstable();
    streams.dedup();
    Ok(streams)
}

/// One class of a stream while it is merged.
struct Cursor {
    name: String,
    size: usize,
    next: u64,
    end: u64,
    records: Vec<u8>,
    at: usize,
}

impl Cursor {
    /// The record that it stands at.
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

fn number_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[8..16].try_into().expect("a record has a number"))
}

/// Gives every message of a stream between two times, in order of numbers.
///
/// # Errors
/// What the source or `each` says.
pub fn replay(
    source: &dyn RecordSource,
    name: &str,
    stream: u32,
    times: std::ops::RangeInclusive<i64>,
    each: &mut dyn FnMut(Recorded) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let prefix = format!("{name}.{stream}.");
    let mut cursors = Vec::new();
    for file in source.listed()?.into_iter().filter(|file| file.name.starts_with(&prefix)) {
        let numbers = source.between(&file.name, *times.start(), *times.end())?;
        let size = usize::from(file.schema.record_bytes);
        let (next, end) = (numbers.start, numbers.end);
        cursors.push(Cursor { name: file.name, size, next, end, records: Vec::new(), at: 0 });
    }
    loop {
        let mut first: Option<(u64, usize)> = None;
        for (at, cursor) in cursors.iter_mut().enumerate() {
            if let Some(record) = cursor.head(source)? {
                let number = number_of(record);
                first = Some(first.map_or((number, at), |best| best.min((number, at))));
            }
        }
        let Some((number, at)) = first else { return Ok(()) };
        let cursor = &mut cursors[at];
        let Some(record) = cursor.head(source)? else { return Ok(()) };
        let time_ns = evenfall_store::layout::record_time(record);
        let len = usize::from(u16::from_le_bytes([record[16], record[17]]));
        let body = record.get(HEAD_BYTES..HEAD_BYTES + len).unwrap_or(&record[HEAD_BYTES..]);
        let bytes = body.to_vec();
        cursor.at += cursor.size;
        each(Recorded { number, time_ns, bytes })?;
    }
}
