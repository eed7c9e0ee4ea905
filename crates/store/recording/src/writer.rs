//! Writes a recording.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenfall_feed_formats::Format;
use evenfall_store_format::schema::Arrival;

use evenfall_store_engine::{Level, Store, StoreError, StoreFile};

use crate::catalog::Catalog;
use crate::files::file_name;
use crate::records::{
    CLASSES, HEAD_BYTES, MESSAGE_BYTES_MAX, PartKind, RecordView, Unwritten, head_bytes, number_of,
    schema,
};

/// Bytes that are gathered for a file before they are appended.
const BATCH_BYTES: usize = 64 << 10;
/// Pause after the store refused an append.
const REFUSED: Duration = Duration::from_millis(10);

struct PendingFile {
    file: Arc<StoreFile>,
    bytes: Vec<u8>,
    last_ns: i64,
    /// Number of the first message that the class does not have yet.
    next: u64,
    /// Whether readers see messages of which no flush was begun.
    is_ahead: bool,
}

/// A flush that was begun: the store has the messages, and does not acknowledge them yet.
#[derive(Debug)]
pub struct BegunFlush {
    waiting: Vec<(Arc<StoreFile>, (u64, u64))>,
    messages: u64,
}

impl BegunFlush {
    /// Messages that the writer had taken when the flush was begun.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

/// A message that a recording has taken.
#[derive(Clone, Copy, Debug)]
pub struct TakenMessage<'a> {
    /// Its stream.
    pub stream: u32,
    /// Its number in the stream.
    pub number: u64,
    /// The time by which the recording finds the message, in nanoseconds since 1970; `None` when an
    /// earlier process recorded it.
    pub indexed_ns: Option<i64>,
    /// The time of its release.
    pub time_ns: i64,
    /// Its format.
    pub format: Format,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Writes a recording.
pub struct RecordingWriter<'a> {
    store: &'a Store,
    name: String,
    level: Level,
    files: BTreeMap<(u32, u16), PendingFile>,
    messages: u64,
    /// The time by which the last message is indexed; `None` when an earlier process recorded it.
    indexed_ns: Option<i64>,
    arrival: Arrival,
    /// Bytes in front of a message. A recording that an earlier version began has fewer.
    head_bytes: usize,
    /// Set when the writer is to give up what its store refuses.
    is_stopping: Option<&'a AtomicBool>,
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
        let catalog = Catalog::read(store)?;
        catalog.expect_no_file(name)?;
        let there = catalog.recording(name).and_then(|there| there.files().next());
        let head_bytes = there.map_or(HEAD_BYTES, |file| head_bytes(&file.schema));
        let arrival = there.map_or(arrival, |file| file.schema.arrival.clone());
        let schema = schema(CLASSES[0], &arrival, head_bytes);
        let smallest = |s| (file_name(name, s, CLASSES[0]), schema.clone());
        let wanted: Vec<_> = (0..streams).map(smallest).collect();
        store.create_all(&wanted)?;
        Ok(Self {
            store,
            name: name.into(),
            level,
            files: BTreeMap::new(),
            messages: 0,
            indexed_ns: None,
            arrival,
            head_bytes,
            is_stopping: None,
        })
    }

    /// Gives up soon after this flag is set, when the store takes no appends. Without such a flag
    /// the writer waits until the store has room.
    pub fn stopping_with(mut self, flag: &'a AtomicBool) -> Self {
        self.is_stopping = Some(flag);
        self
    }

    /// Takes the next message of a stream. A message that was recorded before a crash is skipped,
    /// because each file has all messages of its class up to some number.
    ///
    /// # Errors
    /// [`RecordLength`](evenfall_store_format::Error::RecordLength) for a message of more than
    /// [`MESSAGE_BYTES_MAX`] bytes, and the errors of the store.
    pub fn push(
        &mut self,
        stream: u32,
        number: u64,
        time_ns: i64,
        format: Format,
        message: &[u8],
    ) -> Result<(), StoreError> {
        let head_bytes = self.head_bytes;
        if message.len() > MESSAGE_BYTES_MAX {
            let record_bytes = head_bytes + message.len();
            return Err(evenfall_store_format::Error::RecordLength { record_bytes }.into());
        }
        let format = (head_bytes == HEAD_BYTES).then_some(format);
        let now_ns = self.store.now_ns();
        let largest = CLASSES[CLASSES.len() - 1];
        let fits =
            |class: &u16| *class == largest || head_bytes + message.len() <= usize::from(*class);
        let mut is_full = false;
        self.indexed_ns = None;
        for class in CLASSES.into_iter().filter(fits) {
            let pending = self.pending(stream, class)?;
            if number < pending.next {
                break;
            }
            let indexed_ns = time_ns.min(now_ns).max(pending.last_ns);
            let own_time_ns = (indexed_ns != time_ns).then_some(time_ns);
            let unwritten = Unwritten { number, indexed_ns, format, bytes: message, own_time_ns };
            if class != largest && !unwritten.fits(class, head_bytes) {
                continue;
            }
            unwritten.put(class, head_bytes, &mut pending.bytes);
            (pending.next, pending.last_ns) = (number + 1, indexed_ns);
            is_full = pending.bytes.len() >= BATCH_BYTES;
            self.indexed_ns = Some(indexed_ns);
            break;
        }
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
                    Some(last) => {
                        let record = self.store.record(&file, last)?;
                        let kind = RecordView::of(&record, self.head_bytes).kind;
                        // A crash may have kept the first parts of a message. The message is then
                        // recorded again, and readers pass over the parts.
                        let is_whole = matches!(kind, PartKind::Whole | PartKind::Last);
                        number_of(&record) + u64::from(is_whole)
                    }
                    None => 0,
                };
                let (bytes, is_ahead) = (Vec::new(), false);
                Ok(free.insert(PendingFile { file, bytes, last_ns, next, is_ahead }))
            }
        }
    }

    /// Appends the gathered messages of all files at once, so that they share a commit. When the
    /// call returns, every message so far is acknowledged.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        let begun = self.begin_flush()?;
        self.end_flush(begun)
    }

    /// Shows the gathered messages to readers. They are on the disk with the next flush, or half a
    /// second later.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn show(&mut self) -> Result<(), StoreError> {
        let (store, is_stopping) = (self.store, self.is_stopping);
        for pending in self.files.values_mut().filter(|pending| !pending.bytes.is_empty()) {
            let (file, bytes) = (&pending.file, &pending.bytes);
            append_when_admitted(store, file, bytes, Level::Memory, is_stopping)?;
            pending.bytes.clear();
            pending.is_ahead = true;
        }
        Ok(())
    }

    /// The first half of a flush, which waits for no disk. Readers see every message so far.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn begin_flush(&mut self) -> Result<BegunFlush, StoreError> {
        let mut waiting = Vec::new();
        let (store, level, is_stopping) = (self.store, self.level, self.is_stopping);
        let is_due = |pending: &&mut PendingFile| pending.is_ahead || !pending.bytes.is_empty();
        for pending in self.files.values_mut().filter(is_due) {
            // No bytes: the messages that were shown before are still to be committed.
            let begun =
                append_when_admitted(store, &pending.file, &pending.bytes, level, is_stopping)?;
            pending.bytes.clear();
            pending.is_ahead = false;
            waiting.push((Arc::clone(&pending.file), begun));
        }
        Ok(BegunFlush { waiting, messages: self.messages })
    }

    /// Whether [`end_flush`](Self::end_flush) returns without waiting.
    pub fn is_flushed(&self, begun: &BegunFlush) -> bool {
        // Commits are made in the order of their tickets.
        let last = begun.waiting.iter().map(|(_, (_, ticket))| *ticket).max();
        last.is_none_or(|ticket| self.store.is_reached(ticket, self.level))
    }

    /// The second half of a flush: returns when its messages are acknowledged.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn end_flush(&self, begun: BegunFlush) -> Result<(), StoreError> {
        for (file, ticket) in begun.waiting {
            self.store.append_end(&file, ticket, self.level)?;
        }
        Ok(())
    }

    /// The time by which the message that was pushed last is indexed.
    pub fn indexed_ns(&self) -> Option<i64> {
        self.indexed_ns
    }

    /// Messages that the recorder has taken.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

/// How often a refused append is tried again after the writer was told to stop: half a second in
/// all, so that a process ends within the seconds that its supervisor grants.
const LAST_TRIES: u32 = 50;

/// Begins an append. A recorder has no other place for refused records, so it waits for room. A
/// full disk is reported as an error, and so is a refusal after `is_stopping` is set.
///
/// # Errors
/// The errors of the store.
pub fn append_when_admitted(
    store: &Store,
    file: &StoreFile,
    bytes: &[u8],
    level: Level,
    is_stopping: Option<&AtomicBool>,
) -> Result<(u64, u64), StoreError> {
    let mut last_tries = 0;
    loop {
        match store.append_begin(file, bytes, level) {
            Err(error) if error.is_retryable() && !error.is_full() => {
                if is_stopping.is_some_and(|flag| flag.load(Relaxed)) {
                    last_tries += 1;
                    if last_tries > LAST_TRIES {
                        return Err(error);
                    }
                }
                std::thread::sleep(REFUSED);
            }
            done => return done,
        }
    }
}
