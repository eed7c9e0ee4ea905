//! Deletion: the old end of a file by its retention, and whole files.
//!
//! Each step leaves a store that can be read, and each step may be repeated after a crash. First
//! the names and the metadata stop naming the deleted part, then its objects are deleted, then its
//! chunks. A later deletion finds the remains. The remains of an old end lie below the file's first
//! record, because chunks are deleted in order. The remains of a deleted file are found by its
//! name, which is deleted last.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_core::Objects as _;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{DataChunk, SEGMENTS_PER_CHUNK, chunk_name};
use evenfall_store_format::metadata::NODES_PER_BLOCK;
use evenfall_store_format::retention::{Retention, TIMES_OF_DAY_END_NS};
use evenfall_store_format::{Error, Kind, Reader};

use super::{Shared, Store, StoreFile};
use crate::{Entry, StoreError, archive, lock};

impl Store {
    /// Sets how long and how much of the file is kept, and deletes what lies beyond. From then on
    /// the file is checked after every [`publish_every`](super::StoreConfig::publish_every).
    /// Returns the first record that is kept. Whole chunks are deleted, and the newest chunk stays.
    ///
    /// # Errors
    /// [`Error::Ageless`] for an age of records that have times of day, and the errors of names,
    /// disk or object store. The call may be repeated.
    pub fn retain(&self, file: &StoreFile, retention: Retention) -> Result<u64, StoreError> {
        self.shared.check_writing(&file.name)?;
        file.check_ours()?;
        let has_no_date = file.last_ns().is_some_and(|newest| newest < TIMES_OF_DAY_END_NS);
        if retention.age_ns_max.is_some() && has_no_date {
            return Err(Error::Ageless { file: file.name.clone() }.into());
        }
        self.shared.names.keep(&file.name, file.first(), retention)?;
        *lock(&file.retention) = retention;
        // The catalogue gets the retention too, for readers that have only the objects.
        file.is_listed.store(false, Relaxed);
        self.shared.trim(file)?;
        Ok(file.first())
    }

    /// Deletes the file: its name, its chunks and its objects. Its number is never used again.
    ///
    /// # Errors
    /// [`Error::UnknownFile`], and the errors of names, disk or object store. The call may be
    /// repeated.
    pub fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.shared.check_writing(name)?;
        // A file whose deletion was cut short can be deleted again.
        let file = self.shared.named(name).map_or_else(|| self.file(name), Ok)?;
        {
            let _appender = lock(&file.appender);
            file.is_deleted.store(true, Relaxed);
        }
        // Records appended before are on their way to the disk. The next turn has taken them.
        let turn = lock(&self.shared.queue).ticket + 2;
        self.shared.await_commit(turn)?;
        self.shared.delete(&file)
    }
}

impl Shared {
    /// Deletes what the retention of each file lets go.
    pub(crate) fn trim_all(&self) -> Result<(), StoreError> {
        let files = self.our_files();
        let kept = files.iter().filter(|file| file.retention() != Retention::default());
        kept.map(|file| self.trim(file)).fold(Ok(()), Result::and)
    }

    fn trim(&self, file: &StoreFile) -> Result<(), StoreError> {
        let retention = file.retention();
        let at = self.snapshot(file);
        let mut first_by_age = 0;
        let now_ns = self.now_ns();
        let horizon = file.last_ns().and_then(|newest| retention.horizon_ns(newest, now_ns));
        if let Some(horizon) = horizon {
            let mut segments = self.segments(file, Interest::Passing);
            first_by_age = Reader::new(&at, &mut segments).between(horizon, i64::MAX)?.start;
        }
        // After a crash the open index node is built again from its data.
        let indexed = at.nodes * at.geometry.entries_per_node() / SEGMENTS_PER_CHUNK;
        let chunk = retention.first_chunk(at.layout, at.records, first_by_age).min(indexed);
        let before = at.layout.full_segments(at.first) / SEGMENTS_PER_CHUNK;
        if chunk > before {
            // This call syncs the index nodes over the deleted part.
            self.flush_beside(false)?;
            let first = at.layout.first_record(chunk * SEGMENTS_PER_CHUNK);
            self.names.keep(&file.name, first, retention)?;
            file.first.store(first, Relaxed);
        }
        let end = chunk.max(before);
        if lock(&file.gone_below).is_some_and(|gone| gone >= end) {
            return Ok(());
        }
        // Readers of objects are told first, because an earlier try may have stopped before that.
        let is_told = || {
            let first = at.layout.first_record(end * SEGMENTS_PER_CHUNK);
            file.is_listed.load(Relaxed) && lock(&file.published).first >= first
        };
        if self.bucket.is_some() && !is_told() {
            self.publish(file)?;
        }
        self.sweep(file, end)
    }

    /// Deletes the chunks below this chunk, in order, in all places. Chunks that a reader still
    /// needs are deleted at a later look.
    fn sweep(&self, file: &StoreFile, end: u32) -> Result<(), StoreError> {
        let chunk_of = |record| file.layout().full_segments(record) / SEGMENTS_PER_CHUNK;
        let end = file.first_pinned().map_or(end, |first| end.min(chunk_of(first)));
        let mut gone = lock(&file.gone_below);
        let from = match *gone {
            Some(from) => from,
            None => self.left_behind(file, end)?,
        };
        for chunk in from..end {
            *gone = Some(chunk);
            if let Some(bucket) = &self.bucket {
                bucket.delete(&chunk_name(Kind::Data, file.id, chunk))?;
            }
            lock(&self.volume).evict_chunk(file.id, chunk)?;
        }
        *gone = Some(end);
        Ok(())
    }

    /// The first chunk below this chunk that an earlier life has not deleted. Chunks are deleted in
    /// order, so the remains reach from the result to this chunk.
    fn left_behind(&self, file: &StoreFile, end: u32) -> Result<u32, StoreError> {
        let mut from = end;
        while from > 0 {
            let name = chunk_name(Kind::Data, file.id, from - 1);
            let object = self.bucket.as_ref().map_or(Ok(None), |bucket| bucket.get(&name, 0, 1))?;
            if object.is_none()
                && !self.disk.has_chunk(DataChunk { file: file.id, number: from - 1 })?
            {
                break;
            }
            from -= 1;
        }
        Ok(from)
    }

    fn delete(&self, file: &Arc<StoreFile>) -> Result<(), StoreError> {
        if file.check_ours().is_err() {
            self.names.remove_copy(&file.name)?;
            self.flush_beside(false)?;
            lock(&self.volume).delete(file.id)?;
            self.forget(file);
            return Ok(());
        }
        // A node that is no longer the primary gets its error here, before it has removed anything.
        if let Err(error) = self.names.bury(&file.name) {
            file.is_listed.store(false, Relaxed);
            file.is_deleted.store(false, Relaxed);
            return Err(error.into());
        }
        if let Some(bucket) = &self.bucket {
            archive::remove_catalog(bucket, file.id, file.entry.token)?;
            // When this lock is taken, all publications under way have ended.
            drop(lock(&file.published));
            self.put_block(file.entry.slot / NODES_PER_BLOCK as u32)?;
        }
        self.flush_beside(false)?;
        lock(&self.volume).delete(file.id)?;
        self.finish_deletion(&file.name, &file.entry)?;
        self.forget(file);
        Ok(())
    }

    /// Removes the remains of a deleted file of which this disk has nothing. Its name goes last.
    pub(super) fn finish_deletion(&self, name: &str, entry: &Entry) -> Result<(), StoreError> {
        if let Some(bucket) = &self.bucket {
            archive::remove_catalog(bucket, entry.id, entry.token)?;
            for kind in ["D", "I", "T"] {
                for object in bucket.list(&format!("{kind}-{}-", entry.id))? {
                    bucket.delete(&object)?;
                }
            }
        }
        Ok(self.names.remove(name)?)
    }

    /// Removes the file from the store's list.
    fn forget(&self, file: &StoreFile) {
        self.by_name.write().unwrap_or_else(|e| e.into_inner()).remove(&file.name);
        self.files.write().unwrap_or_else(|e| e.into_inner()).remove(&file.id);
    }

    /// Refuses a request for a file that is being deleted.
    pub(crate) fn check_kept(&self, file: &StoreFile) -> Result<(), StoreError> {
        match file.is_deleted.load(Relaxed) {
            true => Err(Error::UnknownFile { file: file.name.clone() }.into()),
            false => Ok(()),
        }
    }
}
