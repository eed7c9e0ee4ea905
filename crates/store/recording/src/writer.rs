//! Writes a recording.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenfall_feed_formats::Format;
use evenfall_store_format::schema::Arrival;

use evenfall_store_engine::{Level, Store, StoreError, StoreFile};

use crate::catalog::schema_of;
use crate::files::file_name;
use crate::records::{
    CLASSES, HEAD_BYTES, OWN_TIME_BYTES, Unwritten, head_bytes, number_of, schema,
};

/// Bytes that are gathered for a file before they are appended.
const BATCH_BYTES: usize = 64 << 10;
/// Pause after the store refused an append.
const REFUSED: std::time::Duration = std::time::Duration::from_millis(10);

struct PendingFile {
    file: Arc<StoreFile>,
    bytes: Vec<u8>,
    last_ns: i64,
    /// Number of the first message that the class does not have yet.
    next: u64,
}

/// Writes a recording.
pub struct RecordingWriter<'a> {
    store: &'a Store,
    name: String,
    level: Level,
    files: BTreeMap<(u32, u16), PendingFile>,
    messages: u64,
    arrival: Arrival,
    /// Bytes in front of a message. A recording that an earlier version began has fewer.
    head_bytes: usize,
}

impl<'a> RecordingWriter<'a> {
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
            let unwritten = Unwritten { number, indexed_ns, format, bytes: message, own_time_ns };
            unwritten.put(class, &mut pending.bytes);
            (pending.next, pending.last_ns) = (number + 1, indexed_ns);
            break pending.bytes.len() >= BATCH_BYTES;
        };
        self.messages += 1;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// The file of a size class.
    fn pending(&mut self, stream: u32, class: u16) -> Result<&mut PendingFile, StoreError> {
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
                Ok(free.insert(PendingFile { file, bytes: Vec::new(), last_ns, next }))
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
            let begun =
                append_when_admitted(self.store, &pending.file, &pending.bytes, self.level)?;
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

/// A recorder has no other place for refused messages, so it waits. A full disk is reported as an
/// error.
pub fn append_when_admitted(
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
