//! The thread that owns the disk: commits, chunks, syncs, checkpoints.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use evenfall_store::cache::Interest;
use evenfall_store::journal::Batch;
use evenfall_store::layout::{CHUNK_BYTES, SEGMENT_BYTES};
use evenfall_store::{FileId, Kind, Sealed, Volume};

use super::{FLUSH_LAG, FLUSH_SEGMENTS, SHARDS, Shared, TICK};
use crate::store::{Directory, StoreError, lock};

/// Says that the thread has ended, whatever ended it: who waits for a commit waits no longer.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Shared {
    pub(super) fn await_commit(&self, ticket: u64) -> Result<(), StoreError> {
        let mut queue = lock(&self.queue);
        while queue.committed < ticket {
            if self.disk_ended.load(Relaxed) {
                return Err(StoreError::Closing);
            }
            let waited = self.done.wait_timeout(queue, TICK);
            queue = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        Ok(())
    }

    pub(super) fn run_disk(&self) {
        let _ended = Ended(&self.disk_ended);
        let mut spare = Batch::default();
        let (mut flushed_at, mut trimmed_at) = (Instant::now(), Instant::now());
        loop {
            let (sealed, has_batch, stop) = self.take_work(&mut spare);
            let mut volume = lock(&self.volume);
            if has_batch {
                self.commit(&mut volume, &mut spare);
            }
            for sealed in sealed {
                self.local_bytes.fetch_add(SEGMENT_BYTES as u64, Relaxed);
                self.note(volume.write(sealed));
            }
            let waiting = volume.unsynced();
            let is_old = flushed_at.elapsed() > FLUSH_LAG;
            if waiting >= FLUSH_SEGMENTS || (waiting > 0 && is_old) {
                let flushed = volume.flush();
                self.release(flushed);
                flushed_at = Instant::now();
            }
            if volume.is_checkpoint_due() {
                let flushed = volume.checkpoint(&mut |file, first| self.tail_of(file, first));
                self.release(flushed);
            }
            drop(volume);
            self.evict();
            // With objects, the thread that speaks to them does it.
            if self.bucket.is_none() && trimmed_at.elapsed() > self.config.publish_every {
                let trimmed = self.trim_all();
                self.disk_errors.fetch_add(u64::from(trimmed.is_err()), Relaxed);
                trimmed_at = Instant::now();
            }
            if stop {
                return;
            }
        }
    }

    /// Waits for work and takes all of it. `spare` is empty, and comes back as the batch.
    fn take_work(&self, spare: &mut Batch) -> (Vec<Sealed>, bool, bool) {
        let mut queue = lock(&self.queue);
        if queue.batch.is_empty() && queue.sealed.is_empty() && !self.is_stopping() {
            queue = self.work.wait_timeout(queue, TICK).unwrap_or_else(|e| e.into_inner()).0;
        }
        let has_batch = !queue.batch.is_empty();
        if has_batch {
            std::mem::swap(&mut queue.batch, spare);
            queue.ticket += 1;
        } else if queue.committed == queue.ticket {
            // Someone may wait though nothing was left to commit: all of it was committed before.
            queue.ticket += 1;
            queue.committed += 1;
            self.done.notify_all();
        }
        (std::mem::take(&mut queue.sealed), has_batch, self.is_stopping())
    }

    /// Commits until it is done: whoever waits has been promised nothing until then.
    fn commit(&self, volume: &mut Volume<Directory>, batch: &mut Batch) {
        while let Err(error) = volume.commit(batch) {
            self.note::<()>(Err(error));
            if self.is_stopping() {
                return;
            }
            std::thread::sleep(TICK);
        }
        batch.clear();
        let mut queue = lock(&self.queue);
        queue.committed += 1;
        drop(queue);
        self.done.notify_all();
    }

    fn note<T>(&self, done: evenfall_store::Result<T>) {
        if done.is_err() {
            self.disk_errors.fetch_add(1, Relaxed);
        }
    }

    fn tail_of(&self, file: FileId, first: u64) -> Option<Bytes> {
        let file = self.file_of(file)?;
        lock(&file.appender).records_from(first)
    }

    /// Segments that are synced leave the appenders' memory and go on in the cache.
    pub(super) fn release(&self, flushed: evenfall_store::Result<Vec<Sealed>>) {
        let Ok(flushed) = flushed else { return self.note(flushed) };
        let bytes = (flushed.len() * SEGMENT_BYTES) as u64;
        for sealed in flushed {
            let key = (sealed.file, sealed.kind, sealed.number);
            let shard = &self.cache[sealed.number as usize % SHARDS];
            lock(shard).insert(key, sealed.bytes, Interest::Recent);
            let Some(file) = self.file_of(sealed.file) else { continue };
            match sealed.kind {
                Kind::Data => {
                    lock(&file.appender).release(sealed.number);
                    self.uploads.synced(sealed.file, sealed.number);
                }
                Kind::Index => lock(&file.appender).release_node(sealed.number),
            }
        }
        let before = self.memory_bytes.load(Relaxed);
        self.memory_bytes.fetch_sub(bytes.min(before), Relaxed);
    }

    /// Uploaded chunks make room once half of the disk's share is taken.
    fn evict(&self) {
        let mut newest = Vec::new();
        while self.local_bytes.load(Relaxed) > self.config.local_bytes_max / 2 {
            let Some((file, chunk)) = self.uploads.pop_uploaded() else { break };
            if lock(&self.volume).evict_chunk(file, chunk).is_ok_and(|evicted| evicted) {
                self.freed(CHUNK_BYTES as u64);
            } else if self.file_of(file).is_some() {
                newest.push((file, chunk));
            }
        }
        // The newest chunk of a file may go when there is a newer one.
        newest.into_iter().for_each(|(file, chunk)| self.uploads.is_uploaded(file, chunk));
    }

    /// After the threads have ended.
    pub(super) fn finish(&self) -> Result<(), StoreError> {
        let sealed = std::mem::take(&mut lock(&self.queue).sealed);
        let mut volume = lock(&self.volume);
        for sealed in sealed {
            volume.write(sealed)?;
        }
        let flushed = volume.close(&mut |file, first| self.tail_of(file, first))?;
        self.release(Ok(flushed));
        drop(volume);
        // Who has lost its lease leaves what it has on the disk: the file may be another's.
        if self.bucket.is_some() && self.names.check_lease().is_ok() {
            self.publish_changed(&|| true)?;
        }
        Ok(())
    }
}
