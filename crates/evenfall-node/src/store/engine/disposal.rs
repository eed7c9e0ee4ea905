//! What is kept no more: the old end of a file by its retention, and whole files.
//!
//! Each step leaves something that can be read, and may be repeated after a crash: first the names
//! and the metadata stop naming what goes, then its objects go, then its chunks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_core::Objects as _;
use evenfall_store::cache::Interest;
use evenfall_store::layout::{CHUNK_BYTES, SEGMENTS_PER_CHUNK, chunk_name, tail_name};
use evenfall_store::metadata::NODES_PER_BLOCK;
use evenfall_store::retention::Retention;
use evenfall_store::{Error, Kind, Reader};

use super::{Shared, Store, StoreFile};
use crate::store::{StoreError, archive, lock};

impl Store {
    /// Sets how long and how much of the file is kept, and lets go of what is beyond it. From then
    /// on it is looked after every [`publish_every`](super::StoreConfig::publish_every). Gives the
    /// first record that is kept: whole chunks go, and the newest stays.
    ///
    /// # Errors
    /// What names, disk or object store say; it may be called again.
    pub fn retain(&self, file: &StoreFile, retention: Retention) -> Result<u64, StoreError> {
        self.shared.check_writing(&file.name)?;
        file.check_ours()?;
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
        let file = self.file(name)?;
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
    pub(in crate::store) fn trim_all(&self) -> Result<(), StoreError> {
        let files = self.our_files();
        let kept = files.iter().filter(|file| file.retention() != Retention::default());
        kept.map(|file| self.trim(file)).fold(Ok(()), Result::and)
    }

    fn trim(&self, file: &StoreFile) -> Result<(), StoreError> {
        let retention = file.retention();
        let at = self.snapshot(file);
        let mut first_by_age = 0;
        let horizon = file.last_ns().and_then(|newest| retention.horizon_ns(newest));
        if let Some(horizon) = horizon {
            let mut segments = self.segments(file, Interest::Passing);
            first_by_age = Reader::new(&at, &mut segments).between(horizon, i64::MAX)?.start;
        }
        // The open index node is built again from its data after a crash.
        let indexed = at.nodes * at.geometry.entries_per_node() / SEGMENTS_PER_CHUNK;
        let chunk = retention.first_chunk(at.layout, at.records, first_by_age).min(indexed);
        let before = at.layout.full_segments(at.first) / SEGMENTS_PER_CHUNK;
        if chunk <= before {
            return Ok(());
        }
        // Index nodes over what goes are synced now.
        self.flush_beside(false);
        let first = at.layout.first_record(chunk * SEGMENTS_PER_CHUNK);
        self.names.keep(&file.name, first, retention)?;
        file.first.store(first, Relaxed);
        if self.bucket.is_some() {
            self.publish(file)?;
        }
        for chunk in before..chunk {
            if let Some(bucket) = &self.bucket {
                bucket.delete(&chunk_name(Kind::Data, file.id, chunk))?;
            }
            if lock(&self.volume).evict_chunk(file.id, chunk)? {
                self.freed(CHUNK_BYTES as u64);
            }
        }
        Ok(())
    }

    fn delete(&self, file: &Arc<StoreFile>) -> Result<(), StoreError> {
        if file.check_ours().is_err() {
            self.names.remove_copy(&file.name)?;
            return self.delete_here(file);
        }
        // Who is not the primary any more is told so here, and has removed nothing.
        self.names.keep(&file.name, file.first(), file.retention())?;
        if let Some(bucket) = &self.bucket {
            archive::remove_catalog(bucket, file.id, file.entry.token)?;
        }
        self.names.remove(&file.name)?;
        self.delete_here(file)?;
        let Some(bucket) = &self.bucket else { return Ok(()) };
        // Publications under way have ended when this lock is had.
        let published = *lock(&file.published);
        self.put_block(file.entry.slot / NODES_PER_BLOCK as u32)?;
        for token in [published.token, file.entry.token] {
            bucket.delete(&tail_name(file.id, token))?;
        }
        let first = file.schema.layout()?.full_segments(published.first) / SEGMENTS_PER_CHUNK;
        for (kind, chunks) in
            [(Kind::Data, first..published.data_chunks), (Kind::Index, 0..published.index_chunks)]
        {
            for chunk in chunks {
                bucket.delete(&chunk_name(kind, file.id, chunk))?;
            }
        }
        Ok(())
    }

    /// Removes it from this disk.
    fn delete_here(&self, file: &StoreFile) -> Result<(), StoreError> {
        self.by_name.write().unwrap_or_else(|e| e.into_inner()).remove(&file.name);
        self.flush_beside(false);
        lock(&self.volume).delete(file.id)?;
        self.files.write().unwrap_or_else(|e| e.into_inner()).remove(&file.id);
        Ok(())
    }

    /// Bytes that left the local disk.
    pub(super) fn freed(&self, bytes: u64) {
        let before = self.local_bytes.load(Relaxed);
        self.local_bytes.fetch_sub(bytes.min(before), Relaxed);
    }

    /// Refuses what concerns a file that is being deleted.
    pub(in crate::store) fn check_kept(&self, file: &StoreFile) -> Result<(), StoreError> {
        match file.is_deleted.load(Relaxed) {
            true => Err(Error::UnknownFile { file: file.name.clone() }.into()),
            false => Ok(()),
        }
    }
}
