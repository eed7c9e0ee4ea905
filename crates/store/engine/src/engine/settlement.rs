//! Files that are opened while the objects do not answer, and need them.
//!
//! A disk that is whole needs nothing from the objects. A disk that has lost records may get them
//! from there. When the objects do not answer, such a file is opened with what the disk has:
//!
//! - When records in front of others are lost, the file takes appends and publishes nothing. A
//!   publication would put the loss in the place of the objects.
//! - When the objects may have records behind the disk's end, the file takes no appends either,
//!   because their numbers may be taken.
//!
//! The next life of the store asks again, and a server opens its store again as soon as the objects
//! answer. Recovery has written segments with lost records by then, and does not look at them a
//! second time. So the directory of names remembers what is lost until the objects were asked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use evenfall_core::StorageError;
use evenfall_store_format::volume::{
    DiskLoss, PartialSegment, Recovered, RecoveredFile, join_ranges,
};
use evenfall_store_format::{Error, FileId, Schema, SegmentKind};
use serde::{Deserialize, Serialize};

use super::{Store, StoreEngine, StoreFile};
use crate::{Entry, NamesError, StoreError, archive, lock};

/// The setting of the directory that keeps what is lost and may be among the objects.
const LOST: &str = "lost records";

/// What a file needs the objects for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Lost records in front of others.
    Middle,
    /// How many records the file has.
    End,
}

/// What a file waits for until the objects answer.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    need: Need,
    lost: LostNumbers,
}

/// What a disk has lost of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LostNumbers {
    /// Full segments with lost records, in order.
    segments: Vec<u32>,
    /// The lost records, in order.
    records: Vec<Range<u64>>,
}

impl LostNumbers {
    fn of(found: &RecoveredFile) -> Self {
        let segments = found.partial.iter().map(|partial| partial.number).collect();
        Self { segments, records: found.lost.clone() }
    }

    /// Adds these numbers to what a recovery has found.
    fn add_to(self, found: &mut RecoveredFile) {
        let is_new = |number: &u32| found.partial.iter().all(|partial| partial.number != *number);
        let new: Vec<u32> = self.segments.into_iter().filter(is_new).collect();
        found.partial.extend(new.into_iter().map(|number| PartialSegment { number, kept: 0 }));
        found.partial.sort_unstable_by_key(|partial| partial.number);
        found.lost.extend(self.records);
        found.lost = join_ranges(std::mem::take(&mut found.lost));
    }
}

impl Awaited {
    pub(super) fn new(need: Need, found: Option<&RecoveredFile>) -> Self {
        Self { need, lost: found.map_or_else(LostNumbers::default, LostNumbers::of) }
    }

    /// The loss that says what is not known.
    pub(super) fn loss(&self, file: &str, records: u64) -> DiskLoss {
        let what = match self.need {
            Need::Middle => {
                "the objects do not answer, and may have its lost records: it takes records, and \
                 publishes none until it is opened while they answer"
                    .to_owned()
            }
            Need::End => format!(
                "the objects do not answer, and may have more than the {records} records on this \
                 disk: it takes no records until it is opened while they answer"
            ),
        };
        DiskLoss { place: format!("file {file}"), what, is_torn_end: false }
    }
}

/// Whether this is the error of objects that do not answer.
pub(super) fn is_away(error: &StoreError) -> bool {
    matches!(error, StoreError::Store(Error::Storage(StorageError::Unavailable { .. })))
}

impl StoreFile {
    /// Whether the file waits for no answer of the objects.
    pub(crate) fn is_settled(&self) -> bool {
        self.awaited.is_none()
    }

    /// An error when the file still waits for the objects.
    pub(crate) fn check_settled(&self) -> Result<(), StoreError> {
        if self.is_settled() {
            return Ok(());
        }
        let name = format!("file {}", self.name);
        let what = "its disk has lost records, and the objects did not answer when the store was \
                    opened: open it again while they answer";
        Err(StorageError::Unavailable { name, what: what.into() }.into())
    }

    /// An error when the number of the file's records is not known, so that an append could give
    /// out numbers a second time.
    pub(super) fn check_end(&self) -> Result<(), StoreError> {
        match &self.awaited {
            Some(Awaited { need: Need::End, .. }) => self.check_settled(),
            _ => Ok(()),
        }
    }
}

impl Store {
    /// Whether files of this store wait for the objects.
    pub fn awaits_objects(&self) -> bool {
        !self.shared.unsettled_files().is_empty()
    }

    /// Asks the objects whether they have the metadata of all files that wait for them. A caller
    /// that gets `true` closes the store and opens it again. `None` when no file waits, or no
    /// thread can be had.
    ///
    /// A thread of its own asks, because objects that are silent take up to half a minute for each
    /// file, and the caller has a lease and a signal to look at. The thread holds no part of the
    /// store.
    pub fn ask_to_settle(&self) -> Option<Receiver<bool>> {
        let bucket = self.shared.bucket.clone()?;
        let waiting = self.shared.unsettled_files();
        let entries: Vec<Entry> = waiting.iter().map(|file| file.entry.clone()).collect();
        if entries.is_empty() {
            return None;
        }
        let (answer, answered) = sync_channel(1);
        let ask = move || {
            let answers = |entry: &Entry| archive::node_of(&bucket, entry).is_ok();
            // Nobody waits for the answer once the store is closed.
            let _ = answer.send(entries.iter().all(answers));
        };
        std::thread::Builder::new().name("store-settle".into()).spawn(ask).ok()?;
        Some(answered)
    }
}

impl StoreEngine {
    fn unsettled_files(&self) -> Vec<Arc<StoreFile>> {
        let mut files = self.our_files();
        files.retain(|file| !file.is_settled());
        files
    }

    /// Adds the lost records that earlier lives have remembered. The records that this life has
    /// found lost are remembered too: it may end before the objects answer.
    pub(super) fn recall_lost(&self, found: &mut Recovered) -> Result<(), NamesError> {
        let kept = self.names.local().setting(LOST)?;
        let kept: Vec<(FileId, LostNumbers)> =
            kept.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        for (file, lost) in kept {
            if let Some(found) = found.files.get_mut(&file) {
                lost.add_to(found);
            }
        }
        let is_partial = |(_, found): &(&FileId, &RecoveredFile)| !found.partial.is_empty();
        let partial = found.files.iter().filter(is_partial);
        self.keep_lost(partial.map(|(file, found)| (*file, LostNumbers::of(found))).collect())
    }

    /// Remembers the lost records of the files that still wait for the objects, and no others.
    pub(super) fn keep_unsettled(&self) -> Result<(), NamesError> {
        let lost = |file: Arc<StoreFile>| Some((file.id, file.awaited.clone()?.lost));
        self.keep_lost(self.unsettled_files().into_iter().filter_map(lost).collect())
    }

    fn keep_lost(&self, lost: BTreeMap<FileId, LostNumbers>) -> Result<(), NamesError> {
        let local = self.names.local();
        if self.is_reading || lost.is_empty() && local.setting(LOST)?.is_none() {
            return Ok(());
        }
        let lost: Vec<_> = lost.into_iter().collect();
        local.set(LOST, &serde_json::to_string(&lost).unwrap_or_default())
    }

    /// Lets the index be built again from the first segment with records that were lost: a life
    /// that could not ask the objects has written an index without them.
    pub(super) fn drop_index_behind(
        &self,
        entry: &Entry,
        schema: &Schema,
        found: &RecoveredFile,
    ) -> Result<(), Error> {
        let Some(first) = found.partial.first() else { return Ok(()) };
        let node = first.number / schema.geometry()?.entries_per_node();
        lock(&self.volume).truncate(SegmentKind::Index, entry.id, node)
    }
}

#[cfg(test)]
mod tests;
