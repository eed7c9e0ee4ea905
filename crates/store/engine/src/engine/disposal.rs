//! Deletion: the old end of a file by its retention, and whole files.
//!
//! Each step leaves a store that can be read, and each step may be repeated after a crash. First
//! the names and the metadata stop naming the deleted part, then its objects are deleted, then its
//! chunks. A later deletion finds the remains. The remains of an old end lie below the file's first
//! record, because chunks are deleted in order. The remains of a deleted file are found by its
//! name, which is deleted last.
//!
//! The age of records counts by a clock that no step of the wall clock moves
//! ([`age_clock`](evenfall_store_format::age_clock)). While the wall clock has stepped, no record
//! is deleted for its age, on the disk or in the objects.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_core::{Objects as _, StorageError};
use evenfall_store_format::age_clock::{AgeClock, ClockPair, ClockStep};
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{DataChunk, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, chunk_name};
use evenfall_store_format::metadata::NODES_PER_BLOCK;
use evenfall_store_format::retention::{OBJECTS_STAY_NS, Retention, TIMES_OF_DAY_END_NS};
use evenfall_store_format::{Error, FileEndSnapshot, SegmentKind, SnapshotReader};

use super::file::GoneBelow;
use super::{Store, StoreEngine, StoreFile};
use crate::{Entry, Names, NamesError, StoreError, lock};

/// The setting of the directory that keeps the last right reading of the clocks.
const CLOCKS: &str = "clocks";
/// How far the kept reading may be behind. After a crash and a new start of the machine, this time
/// counts as time in which the machine was off.
const CLOCKS_EVERY_NS: u64 = 600 * 1_000_000_000;

/// The clock by which ages count, with the part of it that the directory keeps.
#[derive(Debug, Default)]
pub(super) struct KeptAgeClock {
    clock: AgeClock,
    kept: Option<ClockPair>,
}

impl KeptAgeClock {
    /// The clock of the directory.
    pub(super) fn open(names: &Names) -> Result<Self, NamesError> {
        let kept = names.local().setting(CLOCKS)?;
        let kept = kept.and_then(|text| serde_json::from_str(&text).ok());
        Ok(Self { clock: AgeClock::new(kept), kept })
    }

    /// Keeps the last right reading when the kept reading is too old.
    fn keep(&mut self, names: &Names, is_due: bool) -> Result<(), NamesError> {
        let vetted = self.clock.last_vetted().filter(|vetted| self.kept != Some(*vetted));
        let Some(vetted) = vetted else { return Ok(()) };
        let is_old = |kept: ClockPair| {
            let (from, to) = (kept.uptime, vetted.uptime);
            from.boot != to.boot || to.ns.saturating_sub(from.ns) >= CLOCKS_EVERY_NS
        };
        if is_due || self.kept.is_none_or(is_old) {
            names.local().set(CLOCKS, &serde_json::to_string(&vetted).unwrap_or_default())?;
            self.kept = Some(vetted);
        }
        Ok(())
    }
}

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
        file.check_settled()?;
        let has_no_date = file.last_ns().is_some_and(|newest| newest < TIMES_OF_DAY_END_NS);
        if retention.age_ns_max.is_some() && has_no_date {
            return Err(Error::Ageless { file: file.name.clone() }.into());
        }
        self.shared.names.keep(&file.name, file.first(), retention)?;
        *lock(&file.retention) = retention;
        // The catalogue gets the retention too, for readers that have only the objects.
        file.is_listed.store(false, Relaxed);
        let now_ns = self.shared.age_now_ns()?;
        self.shared.trim(file, now_ns)?;
        Ok(file.first())
    }

    /// The step of the wall clock for which retention by age stands still.
    pub fn clock_step(&self) -> Option<ClockStep> {
        lock(&self.shared.age_clock).clock.step()
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
        file.signals.raise();
        match self.shared.await_turn() {
            Err(error) if is_disk_full(&error) => self.shared.make_room_by(&file)?,
            done => done?,
        }
        self.shared.delete(&file)
    }
}

/// Whether this is the error of a disk without room.
pub(super) fn is_disk_full(error: &StoreError) -> bool {
    error.is_full() || matches!(error, StoreError::Store(Error::Storage(StorageError::Full { .. })))
}

impl StoreEngine {
    /// Deletes what the retention of each file lets go.
    pub(crate) fn trim_all(&self) -> Result<(), StoreError> {
        let files = self.our_files();
        let kept = files.iter().filter(|file| file.retention() != Retention::default());
        let kept: Vec<_> = kept.collect();
        let now_ns = match kept.iter().any(|file| file.retention().age_ns_max.is_some()) {
            true => self.age_now_ns()?,
            false => None,
        };
        kept.iter().map(|file| self.trim(file, now_ns)).fold(Ok(()), Result::and)
    }

    /// The time by which ages count; `None` while the wall clock has stepped.
    pub(super) fn age_now_ns(&self) -> Result<Option<i64>, NamesError> {
        let mut ages = lock(&self.age_clock);
        let now_ns = ages.clock.read(self.config.read_clocks());
        ages.keep(&self.names, false)?;
        Ok(now_ns)
    }

    /// Keeps the last right reading of the clocks for the next life.
    pub(super) fn keep_age_clock(&self) -> Result<(), NamesError> {
        lock(&self.age_clock).keep(&self.names, true)
    }

    /// Takes the wall clock as right.
    pub(super) fn confirm_clock(&self) -> Result<(), NamesError> {
        let mut ages = lock(&self.age_clock);
        ages.clock.confirm(self.config.read_clocks());
        ages.keep(&self.names, true)
    }

    /// Deletes what the file's retention lets go. Nothing goes for its age without the time by
    /// which ages count.
    fn trim(&self, file: &StoreFile, now_ns: Option<i64>) -> Result<(), StoreError> {
        if !file.is_settled() {
            return Ok(());
        }
        let retention = file.retention();
        let at = self.snapshot(file);
        let horizon_ns = |now_ns: i64| retention.horizon_ns(file.last_ns()?, now_ns);
        let mut first_by_age = 0;
        if let Some(horizon) = now_ns.and_then(horizon_ns) {
            let mut segments = self.segments(file, Interest::Passing);
            first_by_age =
                SnapshotReader::new(&at, &mut segments).between(horizon, i64::MAX)?.start;
        }
        // After a crash the open index node is built again from its data.
        let indexed = at.nodes * at.geometry.entries_per_node() / SEGMENTS_PER_CHUNK;
        let chunk = retention.first_chunk(at.layout, at.records, first_by_age).min(indexed);
        let before = at.layout.full_segments(at.first) / SEGMENTS_PER_CHUNK;
        if chunk > before {
            self.sync_behind(file, chunk)?;
            // This call syncs the index nodes over the deleted part.
            self.flush_beside(false)?;
            let first = at.layout.first_record(chunk * SEGMENTS_PER_CHUNK);
            self.names.keep(&file.name, first, retention)?;
            file.first.store(first, Relaxed);
        }
        let end = chunk.max(before);
        let objects_end = match now_ns.map(|now_ns| now_ns.saturating_sub(OBJECTS_STAY_NS)) {
            _ if self.bucket.is_none() || retention.age_ns_max.is_none() => end,
            now_ns => self.objects_end(file, now_ns.and_then(horizon_ns))?.min(end),
        };
        let gone = GoneBelow { disk: end, objects: objects_end };
        let is_done = |g: GoneBelow| g.disk >= gone.disk && g.objects >= gone.objects;
        if lock(&file.gone_below).is_some_and(is_done) {
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
        self.sweep(file, gone)
    }

    /// Lets the next flush sync the segment with which this chunk begins, because the chunks before
    /// it leave the disk only then.
    fn sync_behind(&self, file: &StoreFile, chunk: u32) -> Result<(), Error> {
        let end = file.layout().first_record(chunk * SEGMENTS_PER_CHUNK + 1);
        let mut volume = lock(&self.volume);
        match volume.synced(file.id) < end {
            true => volume.spill_file(file.id),
            false => Ok(()),
        }
    }

    /// Deletes the chunks of a file. Its segments in memory count no more.
    fn delete_chunks(&self, file: &StoreFile) -> Result<(), Error> {
        let mut volume = lock(&self.volume);
        let bytes = (volume.segments_in_memory(file.id) * SEGMENT_BYTES) as u64;
        volume.delete(file.id)?;
        let before = self.memory_bytes.load(Relaxed);
        self.memory_bytes.fetch_sub(bytes.min(before), Relaxed);
        Ok(())
    }

    /// The chunk below which objects are deleted in a file with an age: no record there is younger
    /// than the horizon, and no limit of bytes keeps it.
    fn objects_end(&self, file: &StoreFile, horizon_ns: Option<i64>) -> Result<u32, StoreError> {
        // The index still has the chunks that retention has let go.
        let all = FileEndSnapshot::of(&lock(&file.appender), 0);
        let by_bytes = Retention { age_ns_max: None, ..file.retention() };
        let by_bytes = by_bytes.first_chunk(all.layout, all.records, 0);
        let Some(horizon_ns) = horizon_ns else { return Ok(by_bytes) };
        let mut segments = self.segments(file, Interest::Passing);
        let mut reader = SnapshotReader::new(&all, &mut segments);
        let by_age = reader.segments_between(horizon_ns, i64::MAX)?.start / SEGMENTS_PER_CHUNK;
        Ok(by_age.max(by_bytes))
    }

    /// Deletes the chunks below these chunks, in order. Chunks that a reader still needs are
    /// deleted at a later look.
    fn sweep(&self, file: &StoreFile, to: GoneBelow) -> Result<(), StoreError> {
        let chunk_of = |record| file.layout().full_segments(record) / SEGMENTS_PER_CHUNK;
        let end = file.first_pinned().map_or(to.disk, |first| to.disk.min(chunk_of(first)));
        let mut gone = lock(&file.gone_below);
        let mut from = match *gone {
            Some(from) => from,
            None => {
                let from = self.left_behind(file, end)?;
                GoneBelow { disk: from, objects: from }
            }
        };
        // A chunk goes from the disk before its object: it is then read from there.
        while from.disk < end {
            *gone = Some(from);
            lock(&self.volume).evict_chunk(file.id, from.disk)?;
            from.disk += 1;
        }
        while from.objects < to.objects.min(end) {
            *gone = Some(from);
            if let Some(bucket) = &self.bucket {
                bucket.delete(&chunk_name(SegmentKind::Data, file.id, from.objects))?;
            }
            from.objects += 1;
        }
        *gone = Some(from);
        Ok(())
    }

    /// The first chunk below this chunk that an earlier life has not deleted. Chunks are deleted in
    /// order, so the remains reach from the result to this chunk.
    fn left_behind(&self, file: &StoreFile, end: u32) -> Result<u32, StoreError> {
        let mut from = end;
        while from > 0 {
            let name = chunk_name(SegmentKind::Data, file.id, from - 1);
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

    /// Waits for the commit of the records that were appended before. They are on their way to the
    /// disk, and the next turn has taken them.
    fn await_turn(&self) -> Result<(), StoreError> {
        let turn = lock(&self.queue).ticket + 2;
        self.await_commit(turn)
    }

    /// Removes the chunks of a file that is deleted from a disk without room, where the commit of
    /// the records that came before waits for that room. These records come back into the journal
    /// when the commit is done, so that the deletion is stated a second time behind them.
    fn make_room_by(&self, file: &StoreFile) -> Result<(), StoreError> {
        if file.check_ours().is_ok() {
            self.bury_name(file)?;
        }
        self.delete_chunks(file)?;
        // The commit has its usual patience from now on.
        lock(&self.queue).trouble = None;
        self.await_turn()
    }

    /// Marks the file as deleted in the names. A node that is no longer the primary gets its error
    /// here, before it has removed anything.
    fn bury_name(&self, file: &StoreFile) -> Result<(), StoreError> {
        let buried = self.names.bury(&file.name);
        if buried.is_err() {
            file.is_listed.store(false, Relaxed);
            file.is_deleted.store(false, Relaxed);
        }
        Ok(buried?)
    }

    /// Lets no flush that is under way end behind the deletion. A disk without room gets it by the
    /// deletion, and what is not written yet stays in memory.
    fn flush_before_deletion(&self) -> Result<(), StoreError> {
        match self.flush_beside(false) {
            Err(Error::Storage(StorageError::Full { .. })) => Ok(()),
            done => Ok(done?),
        }
    }

    fn delete(&self, file: &Arc<StoreFile>) -> Result<(), StoreError> {
        if file.check_ours().is_err() {
            self.names.remove_copy(&file.name)?;
            self.flush_before_deletion()?;
            self.delete_chunks(file)?;
            self.forget(file);
            return Ok(());
        }
        if self.bucket.is_some() {
            self.see_catalog()?;
        }
        self.bury_name(file)?;
        if self.bucket.is_some() {
            self.leave_catalog(file.id, file.entry.token)?;
            // When these locks are taken, uploads and publications under way have ended.
            drop(file.uploading.write());
            self.release_packs(file);
            self.put_block(file.entry.slot / NODES_PER_BLOCK as u32)?;
        }
        self.flush_before_deletion()?;
        self.delete_chunks(file)?;
        self.finish_deletion(&file.name, &file.entry)?;
        self.forget(file);
        Ok(())
    }

    /// Removes the remains of a deleted file of which this disk has nothing. Its name goes last.
    pub(super) fn finish_deletion(&self, name: &str, entry: &Entry) -> Result<(), StoreError> {
        if let Some(bucket) = &self.bucket {
            self.see_catalog()?;
            self.leave_catalog(entry.id, entry.token)?;
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
