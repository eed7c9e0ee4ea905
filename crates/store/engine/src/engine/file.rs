//! A file of an open store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use evenfall_store_format::layout::Layout;
use evenfall_store_format::metadata::{MetadataNode, NODES_PER_BLOCK};
use evenfall_store_format::retention::Retention;
use evenfall_store_format::{Appender, FileId, Schema};

use super::StoreEngine;
use super::settlement::Awaited;
use crate::append_watch::FileSignals;
use crate::publisher::PackedFile;
use crate::uploads::UploadedChunks;
use crate::{Entry, FileListing, StoreError, lock};

/// How long retention waits for a reader. A client that has stopped reading keeps old chunks on the
/// disk no longer than this.
const PIN_MAX: Duration = Duration::from_secs(600);

/// The chunks below which all chunks are deleted. Objects stay longer than the disk's chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GoneBelow {
    pub(super) disk: u32,
    pub(super) objects: u32,
}

/// Readers under way by number: the first record that each may read, and its start.
#[derive(Debug, Default)]
pub(super) struct Pins {
    next: u64,
    readers: BTreeMap<u64, (u64, Instant)>,
}

/// A reader under way. The records that it may read stay until the pin is dropped.
pub(super) struct Pin<'a> {
    file: &'a StoreFile,
    number: u64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        lock(&self.file.pins).readers.remove(&self.number);
    }
}

/// A file of an open store.
#[derive(Debug)]
pub struct StoreFile {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: FileId,
    /// Meaning of the records.
    pub schema: Arc<Schema>,
    /// Its entry in the directory of names.
    pub entry: Entry,
    pub(crate) appender: Mutex<Appender>,
    /// Threads that wait for records.
    pub(crate) signals: FileSignals,
    /// The published part of the file, as the last publication states it.
    pub(crate) published: Mutex<MetadataNode>,
    /// The parts that this life has put. They change while `published` is locked.
    pub(crate) packed: Mutex<PackedFile>,
    /// Records that a block of metadata of this life states.
    pub(crate) shown: AtomicU64,
    /// Full chunks that are objects.
    pub(crate) uploaded: Mutex<UploadedChunks>,
    /// Uploads of chunks under way. A deletion waits for them.
    pub(crate) uploading: RwLock<()>,
    /// First record that is kept.
    pub(super) first: AtomicU64,
    /// The readers of the file.
    pins: Mutex<Pins>,
    /// The chunks that are deleted, once that is known.
    pub(super) gone_below: Mutex<Option<GoneBelow>>,
    pub(super) retention: Mutex<Retention>,
    /// Whether the file takes no appends any more, and will be deleted.
    pub(super) is_deleted: AtomicBool,
    /// Whether the catalogue and a block of metadata agree with `published`.
    pub(crate) is_listed: AtomicBool,
    /// Token of the last publication before this life; zero for none.
    pub(crate) token_before: u32,
    /// Generation of the tail that the previous life published, when it was of an earlier version.
    pub(crate) tail_before: Option<u32>,
    /// Records that survive a crash of this node, as far as an append has waited for them.
    pub durable: AtomicU64,
    /// Whether the file has records that no append waits for, and the disk thread knows.
    pub(super) is_lagging: AtomicBool,
    /// What the file waits for until the objects answer.
    pub(super) awaited: Option<Awaited>,
    /// For a copy, the token of the primary whose records it takes; zero for a file of this node.
    pub(super) copies: AtomicU32,
}

impl StoreFile {
    /// A file as it is adopted or created, with its published part.
    pub(super) fn new(
        name: &str,
        entry: Entry,
        schema: Arc<Schema>,
        appender: Appender,
        published: Option<MetadataNode>,
    ) -> Self {
        let none = MetadataNode { file: entry.id, ..MetadataNode::default() };
        let published = published.unwrap_or(none);
        Self {
            name: name.to_owned(),
            id: entry.id,
            schema,
            durable: AtomicU64::new(appender.records()),
            appender: Mutex::new(appender),
            signals: FileSignals::default(),
            packed: Mutex::default(),
            shown: AtomicU64::new(0),
            uploaded: Mutex::new(UploadedChunks::new(published.data_chunks)),
            uploading: RwLock::new(()),
            tail_before: (published.tail_segments > 0).then_some(published.tail_generation),
            published: Mutex::new(published),
            first: AtomicU64::new(entry.first),
            pins: Mutex::default(),
            gone_below: Mutex::new((entry.first == 0).then(GoneBelow::default)),
            retention: Mutex::new(entry.retention),
            is_deleted: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            token_before: entry.listed,
            is_lagging: AtomicBool::new(false),
            awaited: None,
            copies: AtomicU32::new(entry.copies.unwrap_or(0)),
            entry,
        }
    }

    /// Whether this node may append to the file for its own clients.
    ///
    /// # Errors
    /// [`StoreError::IsCopy`].
    pub fn check_ours(&self) -> Result<(), StoreError> {
        match self.copies.load(Relaxed) {
            0 => Ok(()),
            _ => Err(StoreError::IsCopy { file: self.name.clone() }),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        lock(&self.appender).layout()
    }

    /// Records so far.
    pub fn records(&self) -> u64 {
        lock(&self.appender).records()
    }

    /// The file as a list of files shows it.
    pub(crate) fn as_listed(&self) -> FileListing {
        let (name, schema) = (self.name.clone(), (*self.schema).clone());
        FileListing { name, schema, records: self.records() }
    }

    /// First record that is kept.
    pub fn first(&self) -> u64 {
        self.first.load(Relaxed)
    }

    /// Whether the file is deleted, or is being deleted.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Relaxed)
    }

    /// Keeps the readable records until the pin is dropped, or for [`PIN_MAX`].
    pub(super) fn pin(&self) -> Pin<'_> {
        let mut pins = lock(&self.pins);
        let number = pins.next;
        pins.next += 1;
        // The first record is read under the lock, because retention first moves it and then looks
        // for readers.
        pins.readers.insert(number, (self.first(), Instant::now()));
        Pin { file: self, number }
    }

    /// The first record that any reader under way may read; `None` without readers.
    pub(super) fn first_pinned(&self) -> Option<u64> {
        let pins = lock(&self.pins);
        let waited_for = pins.readers.values().filter(|(_, since)| since.elapsed() < PIN_MAX);
        waited_for.map(|(first, _)| *first).min()
    }

    /// How long and how much of the file is kept.
    pub fn retention(&self) -> Retention {
        *lock(&self.retention)
    }

    /// The entry as names and catalogue have it after this life has published the file.
    pub(crate) fn entry_now(&self) -> Entry {
        let (first, retention, listed) = (self.first(), self.retention(), self.entry.token);
        Entry { first, retention, listed, ..self.entry.clone() }
    }

    /// Time of the last record; `None` for a file without records.
    pub fn last_ns(&self) -> Option<i64> {
        let appender = lock(&self.appender);
        (appender.records() > 0).then(|| appender.last_ns())
    }
}

impl StoreEngine {
    /// The files of this node whose metadata is in this block. The names give a file the place that
    /// is one less than its number.
    pub(crate) fn files_of_block(&self, block: u32) -> Vec<Arc<StoreFile>> {
        let places = NODES_PER_BLOCK as u64;
        let first = 1 + u64::from(block) * places;
        let files = self.files.read().unwrap_or_else(|e| e.into_inner());
        let of_block = files.range(FileId(first)..FileId(first + places)).map(|(_, file)| file);
        of_block.filter(|file| file.check_ours().is_ok() && !file.is_deleted()).cloned().collect()
    }
}
