//! The thread that owns the disk: commits, chunks, syncs, checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Disk as _, StorageError};
use evenfall_store_format::cache::Interest;
use evenfall_store_format::journal::Batch;
use evenfall_store_format::layout::SEGMENT_BYTES;
use evenfall_store_format::volume::pieces;
use evenfall_store_format::{Error, FileId, Kind, Sealed, Volume};

use super::{
    FLUSH_LAG, FLUSH_SEGMENTS, JOURNAL_LAG, SHARDS, Shared, TICK, TROUBLE_PATIENCE, no_room, origin,
};
use crate::{Directory, StoreError, lock};

/// How long a stop lists files that have no record in the catalogue of the objects. The next life
/// lists the others; until then a reader of objects alone does not know of them.
const EMPTY_PATIENCE: Duration = Duration::from_secs(1);

/// Says that the thread has ended, whatever ended it: who waits for a commit waits no longer.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

type VolumeGuard<'a> = MutexGuard<'a, Volume<Directory>>;

/// What the disk thread does at one time.
struct Turn {
    /// Files whose records are waited for.
    waiting: BTreeSet<FileId>,
    sealed: Vec<Sealed>,
    stop: bool,
}

impl Shared {
    pub(crate) fn await_commit(&self, ticket: u64) -> Result<(), StoreError> {
        let mut queue = lock(&self.queue);
        while queue.committed < ticket {
            if self.disk_ended.load(Relaxed) {
                return Err(StoreError::Closing);
            }
            if let Some((since, error)) = &queue.trouble
                && since.elapsed() >= TROUBLE_PATIENCE
            {
                return Err(error.clone().into());
            }
            let waited = self.done.wait_timeout(queue, TICK);
            queue = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        Ok(())
    }

    pub(super) fn run_disk(&self) {
        let _ended = Ended(&self.disk_ended);
        let mut batch = Batch::default();
        let (mut lagging, mut looked_at) = (BTreeMap::new(), Instant::now());
        loop {
            let mut turn = self.take_work();
            if looked_at.elapsed() >= JOURNAL_LAG {
                self.look_at_lagging(&mut lagging, &mut turn);
                looked_at = Instant::now();
            }
            let Some(mut volume) = self.commit(lock(&self.volume), &turn, &mut batch) else {
                // The store stops, and the disk fails still.
                drop(lock(&self.queue).sealed.splice(..0, turn.sealed));
                return;
            };
            for sealed in turn.sealed {
                self.note(volume.write(sealed));
            }
            let is_due = volume.is_checkpoint_due() || volume.unsynced() >= FLUSH_SEGMENTS;
            drop(volume);
            if is_due {
                *lock(&self.flush_due) = true;
                self.flush.notify_one();
            }
            self.evict();
            if turn.stop {
                return;
            }
        }
    }

    /// Adds the files whose records have waited in an open segment since the last look to those
    /// that this turn commits. `lagging` has the others, each with the segment that was open.
    fn look_at_lagging(&self, lagging: &mut BTreeMap<FileId, u32>, turn: &mut Turn) {
        let new = std::mem::take(&mut lock(&self.queue).lagging);
        for (id, seen) in std::mem::take(lagging) {
            let Some(file) = self.file_of(id) else { continue };
            let appender = lock(&file.appender);
            let open = appender.index().segments();
            if open == seen {
                // What is appended from here on is seen by another look.
                file.is_lagging.store(false, Relaxed);
                turn.waiting.insert(id);
            } else {
                lagging.insert(id, open);
            }
        }
        for id in new {
            let Some(file) = self.file_of(id) else { continue };
            lagging.insert(id, lock(&file.appender).index().segments());
        }
    }

    /// Syncs chunks: beside the thread that commits, because such a sync takes as long as the disk
    /// needs for megabytes, and who waits for a commit of kilobytes must not wait for it.
    pub(super) fn run_flushes(&self) {
        let (mut flushed_at, mut trimmed_at) = (Instant::now(), Instant::now());
        while !self.is_stopping() {
            let mut due = lock(&self.flush_due);
            if !*due {
                due = self.flush.wait_timeout(due, FLUSH_LAG).unwrap_or_else(|e| e.into_inner()).0;
            }
            *due = false;
            drop(due);
            let (waiting, is_due) = {
                let volume = lock(&self.volume);
                (volume.unsynced(), volume.is_checkpoint_due())
            };
            let is_old = waiting > 0 && flushed_at.elapsed() >= FLUSH_LAG;
            if is_due || is_old || waiting >= FLUSH_SEGMENTS {
                self.note(self.flush_beside(is_due));
                flushed_at = Instant::now();
            }
            // It syncs for each file, so it is not for the thread that commits. With objects, the
            // thread that speaks to them does it.
            if self.bucket.is_none() && trimmed_at.elapsed() > self.config.publish_every {
                let trimmed = self.trim_all();
                self.disk_errors.fetch_add(u64::from(trimmed.is_err()), Relaxed);
                trimmed_at = Instant::now();
            }
        }
    }

    /// A flush, or a checkpoint, that keeps no commit waiting while the disk syncs.
    pub(super) fn flush_beside(&self, is_checkpoint: bool) -> evenfall_store_format::Result<()> {
        let _turn = lock(&self.flush_turn);
        match is_checkpoint {
            true => lock(&self.volume).begin_checkpoint(),
            false => lock(&self.volume).begin_flush(),
        }?;
        let synced = self.disk.sync_all();
        let flushed = lock(&self.volume).end_flush(synced.map_err(Into::into));
        self.release(flushed?);
        // While commits fail, they decide.
        if lock(&self.queue).trouble.is_none() {
            self.is_disk_full.store(false, Relaxed);
        }
        if !is_checkpoint {
            return Ok(());
        }
        lock(&self.volume).end_checkpoint(&mut |file, first| self.tail_of(file, first))
    }

    /// Waits for work and takes all of it.
    fn take_work(&self) -> Turn {
        let mut queue = lock(&self.queue);
        if queue.waiting.is_empty() && queue.sealed.is_empty() && !self.is_stopping() {
            queue = self.work.wait_timeout(queue, TICK).unwrap_or_else(|e| e.into_inner()).0;
        }
        queue.has_work = false;
        queue.ticket += 1;
        Turn {
            waiting: std::mem::take(&mut queue.waiting),
            sealed: std::mem::take(&mut queue.sealed),
            stop: self.is_stopping(),
        }
    }

    /// Commits what the files that are waited for have and no chunk has, until it is done: whoever
    /// waits has been promised nothing until then. `None` when the store stops before.
    fn commit<'a>(
        &'a self,
        mut volume: VolumeGuard<'a>,
        turn: &Turn,
        batch: &mut Batch,
    ) -> Option<VolumeGuard<'a>> {
        let mut reached = Vec::new();
        for id in &turn.waiting {
            let Some(file) = self.file_of(*id) else { continue };
            let (token, taken, end) = {
                let mut appender = lock(&file.appender);
                (appender.token(), appender.take_uncommitted(), appender.records())
            };
            reached.push((Arc::clone(&file), end));
            let Some((first, records)) = taken else { continue };
            let origin = origin(&file, token);
            for (first, piece) in pieces(origin, first, &records) {
                if !batch.fits(piece.len()) {
                    volume = self.commit_batch(volume, batch)?;
                }
                batch.push_records(origin, first, piece);
            }
        }
        if !batch.is_empty() {
            volume = self.commit_batch(volume, batch)?;
        }
        self.committed(reached);
        lock(&self.queue).committed += 1;
        self.done.notify_all();
        Some(volume)
    }

    /// Others have the volume between two tries, so that a disk that fails holds up nobody who
    /// does not wait for it.
    fn commit_batch<'a>(
        &'a self,
        mut volume: VolumeGuard<'a>,
        batch: &mut Batch,
    ) -> Option<VolumeGuard<'a>> {
        while let Err(error) = volume.commit(batch) {
            drop(volume);
            self.is_in_trouble(error);
            if self.is_stopping() {
                return None;
            }
            std::thread::sleep(TICK);
            volume = lock(&self.volume);
        }
        batch.clear();
        lock(&self.queue).trouble = None;
        self.is_disk_full.store(false, Relaxed);
        Some(volume)
    }

    /// Commits fail: whoever waits for one is told after a while.
    fn is_in_trouble(&self, error: Error) {
        self.note::<()>(Err(error.clone()));
        let error = match error {
            Error::Storage(StorageError::Full { name }) => no_room(name),
            other => other,
        };
        let mut queue = lock(&self.queue);
        let since = queue.trouble.take().map_or_else(Instant::now, |(since, _)| since);
        queue.trouble = Some((since, error));
        drop(queue);
        self.done.notify_all();
    }

    /// Counts a failure of the disk, and remembers whether it has room.
    fn note<T>(&self, done: evenfall_store_format::Result<T>) {
        match done {
            Ok(_) => {}
            Err(error) => {
                self.disk_errors.fetch_add(1, Relaxed);
                if matches!(error, Error::Storage(StorageError::Full { .. })) {
                    self.is_disk_full.store(true, Relaxed);
                }
            }
        }
    }

    fn tail_of(&self, file: FileId, first: u64) -> Option<Bytes> {
        match self.file_of(file) {
            Some(file) => lock(&file.appender).records_from(first),
            None => lock(&self.strays).get(&file).cloned(),
        }
    }

    /// Segments that are synced leave the appenders' memory and go on in the cache.
    pub(super) fn release(&self, flushed: Vec<Sealed>) {
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
            let evicted = lock(&self.volume).evict_chunk(file, chunk);
            if !evicted.is_ok_and(|evicted| evicted) && self.file_of(file).is_some() {
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
        self.release(flushed);
        drop(volume);
        // Who has lost its lease leaves what it has on the disk: the file may be another's.
        if self.bucket.is_some() && self.names.check_lease().is_ok() {
            let (empty, others): (Vec<_>, Vec<_>) =
                self.our_files().into_iter().partition(|file| file.records() == 0);
            self.publish_changed(&others, &|| true)?;
            let end = Instant::now() + EMPTY_PATIENCE;
            self.publish_changed(&empty, &|| Instant::now() < end)?;
        }
        Ok(())
    }
}
