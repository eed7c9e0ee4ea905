//! A file of an open store.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use evenfall_store_format::metadata::MetadataNode;
use evenfall_store_format::retention::Retention;
use evenfall_store_format::{Appender, FileId, Schema};

use crate::{Entry, StoreError, lock};

/// A file of an open store.
#[derive(Debug)]
pub struct StoreFile {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: FileId,
    /// What its records mean.
    pub schema: Arc<Schema>,
    /// Its entry in the directory of names.
    pub(crate) entry: Entry,
    pub(crate) appender: Mutex<Appender>,
    /// What of it is in the object store, as its last publication says.
    pub(crate) published: Mutex<MetadataNode>,
    /// Full chunks that are objects: some of them may be in no publication yet. It changes while
    /// `published` is locked.
    pub(crate) uploaded: AtomicU32,
    /// First record that is kept.
    pub(super) first: AtomicU64,
    /// The chunk below which there is none any more, once that is known.
    pub(super) gone_below: Mutex<Option<u32>>,
    pub(super) retention: Mutex<Retention>,
    /// It takes no appends any more, and will be gone.
    pub(super) is_deleted: AtomicBool,
    /// Whether the catalogue and a block of metadata say what `published` says.
    pub(crate) is_listed: AtomicBool,
    /// Token of the last publication before this life; zero of none.
    pub(crate) token_before: u32,
    /// Records that survive a crash of this node, as far as somebody waited for them.
    pub durable: AtomicU64,
    /// Of a copy the token of the primary whose records it takes; zero of a file of our own.
    pub(super) copies: AtomicU32,
}

impl StoreFile {
    /// One as it is adopted or created, with what of it is published.
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
            uploaded: AtomicU32::new(published.data_chunks),
            published: Mutex::new(published),
            first: AtomicU64::new(entry.first),
            gone_below: Mutex::new((entry.first == 0).then_some(0)),
            retention: Mutex::new(entry.retention),
            is_deleted: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            token_before: entry.listed,
            copies: AtomicU32::new(entry.copies.unwrap_or(0)),
            entry,
        }
    }

    /// Whether this node may append to it for its own clients.
    ///
    /// # Errors
    /// [`StoreError::IsCopy`].
    pub fn check_ours(&self) -> Result<(), StoreError> {
        match self.copies.load(Relaxed) {
            0 => Ok(()),
            _ => Err(StoreError::IsCopy { file: self.name.clone() }),
        }
    }

    /// Records so far.
    pub fn records(&self) -> u64 {
        lock(&self.appender).records()
    }

    /// First record that is kept.
    pub fn first(&self) -> u64 {
        self.first.load(Relaxed)
    }

    /// How long and how much of it is kept.
    pub fn retention(&self) -> Retention {
        *lock(&self.retention)
    }

    /// The entry as names and catalogue have it once this life has published the file.
    pub(crate) fn entry_now(&self) -> Entry {
        let (first, retention, listed) = (self.first(), self.retention(), self.entry.token);
        Entry { first, retention, listed, ..self.entry.clone() }
    }

    /// Time of the last record; `None` of none.
    pub fn last_ns(&self) -> Option<i64> {
        let appender = lock(&self.appender);
        (appender.records() > 0).then(|| appender.last_ns())
    }
}
