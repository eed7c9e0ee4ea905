//! The threads that own the disk: commits, chunks, syncs and checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use evenfall_core::{Disk as _, StorageError};
use evenfall_store_format::cache::Interest;
use evenfall_store_format::journal::JournalBatch;
use evenfall_store_format::layout::SEGMENT_BYTES;
use evenfall_store_format::volume::pieces;
use evenfall_store_format::{Error, FileId, SealedSegment, SegmentKind, TailRecords, Volume};

use super::{
    FLUSH_LAG, FLUSH_SEGMENTS, JOURNAL_LAG, SHARDS, StoreEngine, TICK, TROUBLE_PATIENCE, no_room,
    origin,
};
use crate::{StoreDisk, StoreError, lock};

/// How long a stop enters files without records into the catalogue of the objects. The next life
/// enters the rest. Until then, a reader of the objects alone does not know these files.
const EMPTY_PATIENCE: Duration = Duration::from_secs(1);

/// Chunks that leave a disk that runs low in one turn. The next turn looks again: a file system may
/// need a while to count the room.
const LEAVE_AT_ONCE: usize = 8;

/// Notes the end of the thread, whatever ended it, so that waiting appends stop waiting.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

type VolumeGuard<'a> = MutexGuard<'a, Volume<StoreDisk>>;

/// The work of one turn of the disk thread.
struct Turn {
    /// Files with records that an append waits for.
    waiting: BTreeSet<FileId>,
    sealed: Vec<SealedSegment>,
    stop: bool,
}

impl StoreEngine {
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
        let mut batch = JournalBatch::default();
        let (mut lagging, mut looked_at) = (BTreeMap::new(), Instant::now());
        loop {
            let mut turn = self.take_work();
            if looked_at.elapsed() >= JOURNAL_LAG {
                self.look_at_lagging(&mut lagging, &mut turn);
                looked_at = Instant::now();
            }
            let Some(mut volume) = self.commit(lock(&self.volume), &turn, &mut batch) else {
                // The store stops while the disk still fails.
                drop(lock(&self.queue).sealed.splice(..0, turn.sealed));
                return;
            };
            for sealed in turn.sealed {
                self.take_segment(&mut volume, sealed);
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

    /// Holds a full segment or writes it. A chunk that is whole in memory is due in columns.
    fn take_segment(&self, volume: &mut VolumeGuard<'_>, sealed: SealedSegment) {
        let held = volume.hold_segment(sealed);
        let whole = held.as_ref().ok().copied().flatten();
        self.note(held);
        whole.into_iter().for_each(|chunk| self.encodings.push_held(chunk));
    }

    /// Adds to the files that this turn commits: files whose records have stayed in an open segment
    /// since the last look, and files whose full segments no chunk gets soon. `lagging` keeps the
    /// other files, each with its open segment.
    fn look_at_lagging(&self, lagging: &mut BTreeMap<FileId, u32>, turn: &mut Turn) {
        let new = std::mem::take(&mut lock(&self.queue).lagging);
        if new.is_empty() && lagging.is_empty() {
            return;
        }
        let held: BTreeSet<FileId> = lock(&self.volume).held_files().collect();
        for (id, seen) in std::mem::take(lagging) {
            let Some(file) = self.file_of(id) else { continue };
            let appender = lock(&file.appender);
            let open = appender.index().segments();
            if open == seen || held.contains(&id) {
                // The next look sees records that are appended from here on.
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

    /// Syncs chunks in a thread of its own. Such a sync takes as long as the disk needs for
    /// megabytes, and appends that wait for a commit of kilobytes must not wait for it.
    pub(super) fn run_flushes(&self) {
        let (mut flushed_at, mut trimmed_at) = (Instant::now(), Instant::now());
        while !self.is_stopping() {
            let mut due = lock(&self.flush_due);
            if !*due {
                due = self.flush.wait_timeout(due, FLUSH_LAG).unwrap_or_else(|e| e.into_inner()).0;
            }
            *due = false;
            drop(due);
            self.look_at_room();
            let (waiting, is_due) = {
                let volume = lock(&self.volume);
                (volume.unsynced(), volume.is_checkpoint_due())
            };
            let is_old = waiting > 0 && flushed_at.elapsed() >= FLUSH_LAG;
            if is_due || is_old || waiting >= FLUSH_SEGMENTS {
                self.note(self.flush_beside(is_due));
                flushed_at = Instant::now();
            }
            // Trimming syncs for each file, so the committing thread does not do it. With objects,
            // the upload thread does it.
            if self.bucket.is_none() && trimmed_at.elapsed() > self.config.publish_every {
                let trimmed = self.trim_all();
                self.disk_errors.fetch_add(u64::from(trimmed.is_err()), Relaxed);
                trimmed_at = Instant::now();
            }
        }
    }

    /// Looks whether the file system runs low.
    fn look_at_room(&self) {
        let is_low = self.disk.inner().is_low();
        if self.is_disk_low.swap(is_low, Relaxed) != is_low {
            self.note(lock(&self.volume).set_low(is_low));
        }
    }

    /// Flushes, or writes a checkpoint, without delaying commits while the disk syncs.
    pub(super) fn flush_beside(&self, is_checkpoint: bool) -> evenfall_store_format::Result<()> {
        let _turn = lock(&self.flush_turn);
        match is_checkpoint {
            true => lock(&self.volume).begin_checkpoint(),
            false => lock(&self.volume).begin_flush(),
        }?;
        let synced = self.disk.sync_all();
        let flushed = lock(&self.volume).end_flush(synced.map_err(Into::into));
        self.release(flushed?);
        // While commits fail, only a successful commit ends the trouble.
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

    /// Commits the records of the waiting files that no chunk has, and repeats until it succeeds,
    /// because nothing has been promised to the waiting appends until then. `None` when the store
    /// stops first.
    fn commit<'a>(
        &'a self,
        mut volume: VolumeGuard<'a>,
        turn: &Turn,
        batch: &mut JournalBatch,
    ) -> Option<VolumeGuard<'a>> {
        let mut reached = Vec::new();
        for id in &turn.waiting {
            let Some(file) = self.file_of(*id) else { continue };
            let (token, taken, end) = {
                let mut appender = lock(&file.appender);
                let taken = match appender.push_uncommitted(batch) {
                    true => None,
                    false => appender.take_uncommitted(),
                };
                (appender.token(), taken, appender.records())
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

    /// Between two tries other threads may take the volume, so that a failing disk delays only
    /// callers that wait for it.
    fn commit_batch<'a>(
        &'a self,
        mut volume: VolumeGuard<'a>,
        batch: &mut JournalBatch,
    ) -> Option<VolumeGuard<'a>> {
        while let Err(error) = volume.commit(batch) {
            drop(volume);
            self.is_in_trouble(error);
            if self.is_stopping() {
                return None;
            }
            self.evict();
            std::thread::sleep(TICK);
            volume = lock(&self.volume);
        }
        batch.clear();
        lock(&self.queue).trouble = None;
        self.is_disk_full.store(false, Relaxed);
        Some(volume)
    }

    /// Notes that commits fail. Waiting appends are told after a while.
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

    /// Counts a failure of the disk, and remembers whether the disk has room.
    pub(super) fn note<T>(&self, done: evenfall_store_format::Result<T>) {
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

    fn tail_of(&self, file: FileId, first: u64) -> Option<TailRecords> {
        match self.file_of(file) {
            Some(file) => lock(&file.appender).records_from(first),
            None => lock(&self.strays).get(&file).cloned(),
        }
    }

    /// Moves synced segments from the appenders' memory to the cache.
    pub(super) fn release(&self, flushed: Vec<SealedSegment>) {
        let bytes = (flushed.len() * SEGMENT_BYTES) as u64;
        for sealed in flushed {
            let key = (sealed.file, sealed.kind, sealed.number);
            let shard = &self.cache[sealed.number as usize % SHARDS];
            lock(shard).insert(key, sealed.bytes, Interest::Recent);
            let Some(file) = self.file_of(sealed.file) else { continue };
            match sealed.kind {
                SegmentKind::Data => {
                    lock(&file.appender).release(sealed.number);
                    self.segment_synced(sealed.file, sealed.number);
                }
                SegmentKind::Index => lock(&file.appender).release_node(sealed.number),
            }
        }
        let before = self.memory_bytes.load(Relaxed);
        self.memory_bytes.fetch_sub(bytes.min(before), Relaxed);
    }

    /// Whether chunks that are objects should leave the disk: more than half of its limit is used,
    /// or the file system has no room.
    fn is_crowded(&self, has_left: usize) -> bool {
        let is_short = self.is_disk_low.load(Relaxed) || self.is_disk_full.load(Relaxed);
        self.local_bytes.load(Relaxed) > self.config.local_bytes_max / 2
            || is_short && has_left < LEAVE_AT_ONCE && self.disk.inner().is_low()
    }

    /// Removes uploaded chunks from a crowded disk.
    fn evict(&self) {
        let (mut newest, mut has_left) = (Vec::new(), 0);
        while self.is_crowded(has_left) {
            let Some((file, chunk)) = self.uploads.pop_uploaded() else { break };
            let evicted = lock(&self.volume).evict_chunk(file, chunk);
            has_left += usize::from(matches!(evicted, Ok(true)));
            if !matches!(evicted, Ok(true)) && self.file_of(file).is_some() {
                newest.push((file, chunk));
            }
            if evicted.is_err() {
                break;
            }
        }
        // The chunk that is the newest now may be removed when a newer chunk exists.
        newest.into_iter().for_each(|(file, chunk)| self.uploads.is_uploaded(file, chunk));
    }

    /// The last steps, after the threads have ended.
    pub(super) fn finish(&self, bucket_end: Option<Instant>) -> Result<(), StoreError> {
        let sealed = std::mem::take(&mut lock(&self.queue).sealed);
        let mut volume = lock(&self.volume);
        for sealed in sealed {
            volume.hold_segment(sealed)?;
        }
        let flushed = volume.close(&mut |file, first| self.tail_of(file, first))?;
        self.keep_age_clock()?;
        self.release(flushed);
        drop(volume);
        // A node that has lost its lease leaves its records on the disk, because the file may
        // belong to another node.
        if self.bucket.is_some() && self.names.check_lease().is_ok() {
            let (empty, others): (Vec<_>, Vec<_>) =
                self.our_files().into_iter().partition(|file| file.records() == 0);
            let is_open = || bucket_end.is_none_or(|end| Instant::now() < end);
            self.publish_changed(&others, &is_open)?;
            self.expect_published(&others)?;
            let end = Instant::now() + EMPTY_PATIENCE;
            self.publish_changed(&empty, &|| is_open() && Instant::now() < end)?;
        }
        Ok(())
    }
}
