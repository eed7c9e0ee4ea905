//! Deletion: the old end of a file by its retention, and whole files.
//!
//! Each step leaves a store that can be read, and may be repeated after a crash: first the names
//! and the metadata stop naming the deleted part, then its objects go, then its chunks. A later
//! deletion finds the remains: the old end of a file lies below its first record, where chunks go
//! in order, and the rest of a deleted file is found by its name, which goes last.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_core::{Disk as _, Objects as _};
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{SEGMENTS_PER_CHUNK, chunk_name};
use evenfall_store_format::metadata::NODES_PER_BLOCK;
use evenfall_store_format::retention::{Retention, TIMES_OF_DAY_END_NS};
use evenfall_store_format::{Error, Kind, Reader};

use super::{Shared, Store, StoreFile};
use crate::{Entry, StoreError, archive, lock};

impl Store {
    /// Sets how long and how much of the file is kept, and lets go of what is beyond it. From then
    /// on it is looked after every [`publish_every`](super::StoreConfig::publish_every). Gives the
    /// first record that is kept: whole chunks go, and the newest stays.
    ///
    /// # Errors
    /// [`Error::Ageless`] of an age for times of day; what names, disk or object store say, and it
    /// may be called again.
    pub fn retain(&self, file: &StoreFile, retention: Retention) -> Result<u64, StoreError> {
        self.shared.check_writing(&file.name)?;
        file.check_ours()?;
        let has_no_date = file.last_ns().is_some_and(|newest| newest < TIMES_OF_DAY_END_NS);
        if retention.age_ns_max.is_some() && has_no_date {
            return Err(Error::Ageless { file: file.name.clone() }.into());
        }
        self.shared.names.keep(&file.name, file.first(), retention)?;
        *lock(&file.retention) = retention;
        // The catalogue says it too, for who has nothing but the objects.
        file.is_listed.store(false, Relaxed);
        self.shared.trim(file)?;
        Ok(file.first())
    }

    /// Deletes the file: its name, its chunks and its objects. Its number is never used again.
    ///
    /// # Errors
    /// [`Error::UnknownFile`]; what names, disk or object store say, and it may be called again.
    pub fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.shared.check_writing(name)?;
        // One whose deletion was cut short is there to be deleted.
        let file = self.shared.named(name).map_or_else(|| self.file(name), Ok)?;
        {
            let _appender = lock(&file.appender);
            file.is_deleted.store(true, Relaxed);
        }
        // What was appended before is on its way to the disk: the next turn has taken it.
        let turn = lock(&self.shared.queue).ticket + 2;
        self.shared.await_commit(turn)?;
        self.shared.delete(&file)
    }
}

impl Shared {
    /// Lets go of what the retention of each file says.
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
        // The open index node is built again from its data after a crash.
        let indexed = at.nodes * at.geometry.entries_per_node() / SEGMENTS_PER_CHUNK;
        let chunk = retention.first_chunk(at.layout, at.records, first_by_age).min(indexed);
        let before = at.layout.full_segments(at.first) / SEGMENTS_PER_CHUNK;
        if chunk > before {
            // Index nodes over what goes are synced now.
            self.flush_beside(false)?;
            let first = at.layout.first_record(chunk * SEGMENTS_PER_CHUNK);
            self.names.keep(&file.name, first, retention)?;
            file.first.store(first, Relaxed);
        }
        let end = chunk.max(before);
        if lock(&file.gone_below).is_some_and(|gone| gone >= end) {
            return Ok(());
        }
        // Readers of objects are told first: perhaps an earlier try did not come so far.
        let is_told = || {
            let first = at.layout.first_record(end * SEGMENTS_PER_CHUNK);
            file.is_listed.load(Relaxed) && lock(&file.published).first >= first
        };
        if self.bucket.is_some() && !is_told() {
            self.publish(file)?;
        }
        self.sweep(file, end)
    }

    /// Deletes the chunks below this one, in order, wherever they are. Those that a reader is under
    /// way to go at a later look.
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

    /// Where the chunks below this one begin that an earlier life did not get to: they went in
    /// order, so that what is left reaches from there to here.
    fn left_behind(&self, file: &StoreFile, end: u32) -> Result<u32, StoreError> {
        let mut from = end;
        while from > 0 {
            let name = chunk_name(Kind::Data, file.id, from - 1);
            let object = self.bucket.as_ref().map_or(Ok(None), |bucket| bucket.get(&name, 0, 1))?;
            if object.is_none() && self.disk.read(&name, 0, 1)?.is_empty() {
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
        // Who is not the primary any more is told so here, and has removed nothing.
        if let Err(error) = self.names.bury(&file.name) {
            file.is_listed.store(false, Relaxed);
            file.is_deleted.store(false, Relaxed);
            return Err(error.into());
        }
        if let Some(bucket) = &self.bucket {
            archive::remove_catalog(bucket, file.id, file.entry.token)?;
            // Publications under way have ended when this lock is had.
            drop(lock(&file.published));
            self.put_block(file.entry.slot / NODES_PER_BLOCK as u32)?;
        }
        self.flush_beside(false)?;
        lock(&self.volume).delete(file.id)?;
        self.finish_deletion(&file.name, &file.entry)?;
        self.forget(file);
        Ok(())
    }

    /// Removes what is left of a deleted file that this disk has nothing of, its name last.
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

    /// Takes it out of the store's files.
    fn forget(&self, file: &StoreFile) {
        self.by_name.write().unwrap_or_else(|e| e.into_inner()).remove(&file.name);
        self.files.write().unwrap_or_else(|e| e.into_inner()).remove(&file.id);
    }

    /// Refuses what concerns a file that is being deleted.
    pub(crate) fn check_kept(&self, file: &StoreFile) -> Result<(), StoreError> {
        match file.is_deleted.load(Relaxed) {
            true => Err(Error::UnknownFile { file: file.name.clone() }.into()),
            false => Ok(()),
        }
    }
}
