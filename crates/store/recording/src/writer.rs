//! Writes a recording.

use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenfall_feed_formats::Format;
use evenfall_feed_formats::itch::Stock;
use evenfall_store_format::Schema;
use evenfall_store_format::messages::parts::{
    PARTED_RECORD_BYTES, PartRecord, PartedMessage, parted_schema,
};
use evenfall_store_format::schema::ArrivalOrder;

use evenfall_store_engine::{Store, StoreAckLevel, StoreError, StoreFile};

use crate::catalog::Catalog;
use crate::files::{messages_name, sized_name};
use crate::records::{
    CLASSES, HEAD_BYTES, MESSAGE_BYTES_MAX, RecordLayout, RecordView, Unwritten, number_of,
    sized_schema, tag_of,
};

/// Bytes that are gathered for a file before they are appended.
const BATCH_BYTES: usize = 64 << 10;
/// Pause after the store refused an append.
const REFUSED: Duration = Duration::from_millis(10);

struct PendingFile {
    file: Arc<StoreFile>,
    bytes: Vec<u8>,
    last_ns: i64,
    /// Number of the first message that the file does not have yet.
    next: u64,
    /// Records of the file, those in `bytes` too.
    records: u64,
    /// The head of the last record of a file with messages in parts.
    last: Option<PartedMessage<'static>>,
    /// Whether readers see messages of which no flush was begun.
    is_ahead: bool,
}

impl PendingFile {
    /// Continues a file behind its last record.
    fn open(store: &Store, file: Arc<StoreFile>, layout: RecordLayout) -> Result<Self, StoreError> {
        let last_ns = file.last_ns().unwrap_or(i64::MIN);
        let records = file.records();
        let (mut next, mut last) = (0, None);
        if let Some(place) = records.checked_sub(1) {
            let record = store.record(&file, place)?;
            let kind = RecordView::of(&record, layout).kind;
            // A crash may have kept the first parts of a message. The message is then recorded
            // again, and readers pass over the parts.
            next = number_of(&record) + u64::from(!kind.is_cut_end());
            let head = PartRecord::of(&record).message;
            last = (layout == RecordLayout::Parted).then_some(PartedMessage {
                own_ns: None,
                bytes: &[],
                ..head
            });
        }
        let (bytes, is_ahead) = (Vec::new(), false);
        Ok(Self { file, bytes, last_ns, next, records, last, is_ahead })
    }
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

/// Name and schema of the file of a stream's messages, or of those of a size class.
fn name_and_schema(
    recording: &str,
    stream: u32,
    class: u16,
    layout: RecordLayout,
    arrival: &ArrivalOrder,
) -> (String, Schema) {
    match layout {
        RecordLayout::Parted => (messages_name(recording, stream), parted_schema(arrival)),
        RecordLayout::Sized { head_bytes } => {
            (sized_name(recording, stream, class), sized_schema(class, arrival, head_bytes))
        }
    }
}

/// Writes a recording.
pub struct RecordingWriter<'a> {
    store: &'a Store,
    name: String,
    level: StoreAckLevel,
    files: BTreeMap<(u32, u16), PendingFile>,
    messages: u64,
    /// The time by which the last message is indexed; `None` when an earlier process recorded it.
    indexed_ns: Option<i64>,
    arrival: ArrivalOrder,
    /// How messages lie in records. A recording keeps the layout with which it began.
    layout: RecordLayout,
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
        level: StoreAckLevel,
    ) -> Result<Self, StoreError> {
        Self::with_arrival(store, name, streams, level, ArrivalOrder::default())
    }

    /// Records a single stream, whose messages are all of this security where they name none. An
    /// existing recording keeps its own symbol.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn of_symbol(
        store: &'a Store,
        name: &str,
        level: StoreAckLevel,
        symbol: Option<Stock>,
    ) -> Result<Self, StoreError> {
        let symbol = symbol.map(|symbol| symbol.to_string()).unwrap_or_default();
        Self::with_arrival(
            store,
            name,
            1,
            level,
            ArrivalOrder { symbol, ..ArrivalOrder::default() },
        )
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
        level: StoreAckLevel,
        arrival: ArrivalOrder,
    ) -> Result<Self, StoreError> {
        let catalog = Catalog::read(store)?;
        catalog.expect_no_file(name)?;
        let there = catalog.recording(name).and_then(|there| there.files().next());
        let layout = there.map_or(RecordLayout::Parted, |file| RecordLayout::of(&file.schema));
        let arrival = there.map_or(arrival, |file| file.schema.arrival.clone());
        let named = |stream| name_and_schema(name, stream, CLASSES[0], layout, &arrival);
        let wanted: Vec<_> = (0..streams).map(named).collect();
        store.create_all(&wanted)?;
        Ok(Self {
            store,
            name: name.into(),
            level,
            files: BTreeMap::new(),
            messages: 0,
            indexed_ns: None,
            arrival,
            layout,
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
    /// because each file has all of its messages up to some number.
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
        if message.len() > MESSAGE_BYTES_MAX {
            let record_bytes = HEAD_BYTES + message.len();
            return Err(evenfall_store_format::Error::RecordLength { record_bytes }.into());
        }
        self.indexed_ns = None;
        let is_full = match self.layout {
            RecordLayout::Parted => self.push_parted(stream, number, time_ns, format, message)?,
            RecordLayout::Sized { head_bytes } => {
                self.push_sized(head_bytes, stream, number, time_ns, format, message)?
            }
        };
        self.messages += 1;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Takes a message into the file of its stream. Returns whether a flush is due.
    fn push_parted(
        &mut self,
        stream: u32,
        number: u64,
        time_ns: i64,
        format: Format,
        message: &[u8],
    ) -> Result<bool, StoreError> {
        let now_ns = self.store.now_ns();
        let pending = self.pending(stream, PARTED_RECORD_BYTES)?;
        if number < pending.next {
            return Ok(false);
        }
        let recorded_ns = time_ns.min(now_ns).max(pending.last_ns);
        let own_ns = (recorded_ns != time_ns).then_some(time_ns);
        let before = pending.last.map_or(0, |last| last.missed);
        let missed = before.wrapping_add((number - pending.next) as u32);
        let tag = tag_of(format);
        let parted = PartedMessage { recorded_ns, number, tag, missed, own_ns, bytes: message };
        let records = parted.put_behind(pending.last, pending.records, &mut pending.bytes);
        pending.records += records;
        pending.last = Some(PartedMessage { own_ns: None, bytes: &[], ..parted });
        (pending.next, pending.last_ns) = (number + 1, recorded_ns);
        let is_full = pending.bytes.len() >= BATCH_BYTES;
        self.indexed_ns = Some(recorded_ns);
        Ok(is_full)
    }

    /// Takes a message into the file of its size class. Returns whether a flush is due.
    fn push_sized(
        &mut self,
        head_bytes: usize,
        stream: u32,
        number: u64,
        time_ns: i64,
        format: Format,
        message: &[u8],
    ) -> Result<bool, StoreError> {
        let format = (head_bytes == HEAD_BYTES).then_some(format);
        let now_ns = self.store.now_ns();
        let largest = CLASSES[CLASSES.len() - 1];
        let fits =
            |class: &u16| *class == largest || head_bytes + message.len() <= usize::from(*class);
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
            let is_full = pending.bytes.len() >= BATCH_BYTES;
            self.indexed_ns = Some(indexed_ns);
            return Ok(is_full);
        }
        Ok(false)
    }

    /// The file of a stream's messages, or of a size class.
    fn pending(&mut self, stream: u32, class: u16) -> Result<&mut PendingFile, StoreError> {
        match self.files.entry((stream, class)) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(free) => {
                let (layout, arrival) = (self.layout, &self.arrival);
                let (name, schema) = name_and_schema(&self.name, stream, class, layout, arrival);
                let file = self.store.create(&name, &schema)?;
                Ok(free.insert(PendingFile::open(self.store, file, layout)?))
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
            append_when_admitted(store, file, bytes, StoreAckLevel::Memory, is_stopping)?;
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
    level: StoreAckLevel,
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
