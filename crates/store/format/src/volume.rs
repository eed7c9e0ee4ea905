//! A disk of a store node: its journal, its chunks, and the synced part of both.
//!
//! ```text
//!  append ──> memory ──(local)──> commit: journal + sync ──> acknowledged
//!                ├──── full segments, held ──> whole chunks in columns ──┐
//!                └──── full segments ──────────────────> raw chunks ─────┴──> sync (flush)
//!                                                                    ──> may leave memory
//!
//!  checkpoint: flush; the next journal takes what fills no segment; journals of which nothing is
//!              held are spare
//!  full disk:  the reserve becomes the next journal, so that chunks can leave
//! ```
//!
//! The volume believes that a write is on the disk only when a sync behind the write has succeeded.
//! A failed sync may have lost any write before it, and a second sync would succeed without these
//! writes. Segments therefore stay in memory until they are synced. After a failure, all of them
//! are written again, and the journal continues in a new file.

mod chunks;
mod held;
mod recovery;
#[cfg(test)]
mod tests;
mod verify;

use self::chunks::Chunks;
use self::held::HoldPasses;
pub use recovery::{DiskLoss, PartialSegment, Recovered, RecoveredFile, join_ranges};
pub use verify::{Finding, Verification, verify};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};

use crate::error::{Error, Result};
use crate::journal::{self, JournalBatch, Origin};
use crate::layout::{
    CHUNK_BYTES, DataChunk, FileId, Layout, RESERVE, SEGMENT_BYTES, SEGMENTS_PER_CHUNK,
    SegmentKind, chunk_name, journal_name, segment_place,
};
use crate::lost_records::TailRecords;
use crate::segment::{self, SealedSegment};

/// Spare journal files. While one journal is written, the previous one waits for a sync of its
/// chunks, and the next must exist already.
const SPARES: usize = 2;
/// Length of the reserve: many statements that a chunk may leave, of which the first makes room.
const RESERVE_BYTES: usize = 64 << 10;
/// Limit of the bytes of records in one frame. Several frames fit into one commit, so a file with
/// many records does not fill the commit alone.
pub(crate) const FRAME_RECORDS_BYTES_MAX: usize = 8 << 20;

/// Default length of a journal. The length is about that of the data that arrives during one sync
/// of the chunks, so that few journals are written before the first spare exists.
pub const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Default limit of the bytes of all journals. Four journals take the rows that come while sixteen
/// files fill a chunk each and the encoder is a second behind. At 500 MB/s they are read in half a
/// second.
pub const RECOVERY_BYTES_MAX: u64 = 256 << 20;
/// Synced bytes that no journal has stated as synced.
const UNSTATED_BYTES_MAX: u64 = 64 << 20;

/// Sizes of a volume.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Number of the store node, written into its journals.
    pub node: u32,
    /// Bytes after which a journal is followed by the next.
    pub journal_bytes_max: u64,
    /// Bytes of all journals, while rows of them are held in memory. Recovery reads no more, but
    /// for what is committed while chunks are synced, and for open segments that are larger by
    /// themselves. Without held rows there are two journals.
    pub recovery_bytes_max: u64,
    /// Chunks whose rows may be held in memory until they are whole, 4 MiB each. With zero, every
    /// full segment goes into a raw chunk at once.
    pub held_chunks_max: usize,
    /// A random number of this life, from which the identities of its journals come. A client that
    /// knew it could make records that look like commits ([`journal`]).
    pub secret: u64,
}

impl Default for VolumeConfig {
    fn default() -> Self {
        Self {
            node: 0,
            journal_bytes_max: JOURNAL_BYTES_MAX,
            recovery_bytes_max: RECOVERY_BYTES_MAX,
            held_chunks_max: 0,
            secret: 0,
        }
    }
}

/// The volume's record of a file.
#[derive(Clone, Copy, Debug)]
struct Shelf {
    origin: Origin,
    /// Records in written segments, or in chunks that are in columns.
    written: u64,
    /// Records in synced segments.
    synced: u64,
    /// Records that the journal states as synced. Recovery begins its search there.
    stated: u64,
    /// The next chunks of the file, which are not held in memory after a spill.
    passes: HoldPasses,
}

impl Shelf {
    /// A file whose first `synced` records are in synced chunks, here or elsewhere.
    fn with_synced(origin: Origin, synced: u64) -> Self {
        Self { origin, written: synced, synced, stated: 0, passes: HoldPasses::default() }
    }
}

/// A journal before the current journal.
#[derive(Debug)]
struct OldJournal {
    number: u64,
    /// Number in the name of its file, which is the number of the first journal in that file.
    slot: u64,
    /// Its length.
    bytes: u64,
    /// For each file, the number after its last record in this journal.
    ends: BTreeMap<FileId, u64>,
    /// Whether its file can be a spare: not when a write or a sync of it has failed, and not when
    /// it is of an earlier life.
    is_reusable: bool,
}

/// One disk of a store node.
#[derive(Debug)]
pub struct Volume<D> {
    disk: D,
    config: VolumeConfig,
    files: BTreeMap<FileId, Shelf>,
    chunks: Chunks,
    /// Segments that are written and not synced.
    unsynced: Vec<SealedSegment>,
    /// Segments that were written before the running sync began. The next field holds how far each
    /// file was written at that time.
    flushing: Vec<SealedSegment>,
    reached: Vec<(FileId, u64)>,
    /// Full segments that are in journals and memory alone, chunk by chunk. Within a file, what is
    /// held is behind everything that is written.
    held: BTreeMap<DataChunk, Vec<SealedSegment>>,
    /// Bytes of these segments, for readers that do not wait for a working volume.
    held_bytes: Arc<AtomicU64>,
    /// Segments of chunks that are on the disk in columns, which are synced. The next flush gives
    /// these segments back, and they leave memory then.
    sealed: Vec<SealedSegment>,
    /// Segments of `sealed` that were there when the running flush began. This flush gives them
    /// back.
    releasing: Vec<SealedSegment>,
    /// Files with synced chunks in columns of which no journal states yet that they are synced.
    unstated: BTreeSet<FileId>,
    /// Whether a sync has failed since, so that all of `unsynced` must be written again.
    rewrite: bool,
    number: u64,
    /// The name of the current journal's file.
    slot: u64,
    offset: u64,
    sequence: u64,
    ends: BTreeMap<FileId, u64>,
    /// Bytes that the current journal took over from earlier journals. A checkpoint is worth its
    /// cost only when the journal holds several times as many.
    base_bytes: u64,
    /// Synced bytes of segments behind the ends that the journal states.
    unstated_bytes: u64,
    old: Vec<OldJournal>,
    /// Journal files with a synced mark as spare.
    spares: Vec<u64>,
    /// Whether the file system of the disk runs low.
    is_low: bool,
    /// Whether the reserve is on the disk: a file without records whose blocks become those of a
    /// journal when the disk is full. Whatever makes room needs a commit first, and a full disk
    /// takes no commit elsewhere.
    has_reserve: bool,
}

/// Gives the records of a file from this number to its end. `None` means that the records cannot be
/// given now; the journals that have them then stay.
pub type Tails<'a> = dyn FnMut(FileId, u64) -> Option<TailRecords> + 'a;

impl<D: Disk> Volume<D> {
    /// The disk.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Begins to keep a file.
    pub fn register(&mut self, origin: Origin) {
        let shelf = Shelf::with_synced(origin, 0);
        self.files.entry(origin.file).or_insert(shelf).origin = origin;
    }

    /// Begins to keep a file of which the first `elsewhere` records are in no chunk of this disk.
    pub fn adopt(&mut self, origin: Origin, elsewhere: u64) {
        self.files.insert(origin.file, Shelf::with_synced(origin, elsewhere));
    }

    /// The greatest number of a file that has chunks on the disk.
    pub fn newest_file(&self) -> Option<FileId> {
        self.chunks.bytes.keys().map(|(_, file, _)| *file).max()
    }

    /// Records of the file in synced chunks.
    pub fn synced(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |shelf| shelf.synced)
    }

    /// The counter of the bytes of chunks on the disk.
    pub fn chunk_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.chunks.total)
    }

    /// Segments that leave memory with the next flush: written or sealed since the last one.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len() + self.sealed.len()
    }

    /// Whether the journal is long enough for a [`checkpoint`](Self::checkpoint).
    ///
    /// A checkpoint also states how far each file is synced. Recovery trusts nothing behind that,
    /// so the stated ends stay close to the synced ends when no journal grows, as at `memory`.
    pub fn is_checkpoint_due(&self) -> bool {
        self.overdue_journals() > 0
            || self.offset > self.journal_bytes_due()
            || self.unstated_bytes > UNSTATED_BYTES_MAX
            || self.is_low && self.offset.max(self.unstated_bytes) > self.low_bytes_max()
    }

    /// Bytes of a journal after which a checkpoint is due: those that it took over, and at least
    /// half as many more, so that no append is carried over again and again. With many files that
    /// are open, a multiple of what was taken over would exceed the limit of what recovery reads,
    /// and a journal beyond the limit has to be taken over whole.
    fn journal_bytes_due(&self) -> u64 {
        self.base_bytes + self.config.journal_bytes_max.max(self.base_bytes / 2)
    }

    /// Bytes of a journal, or of segments behind the ends that it states, after which a checkpoint
    /// is due on a disk that runs low.
    fn low_bytes_max(&self) -> u64 {
        (CHUNK_BYTES as u64).max(4 * self.base_bytes)
    }

    /// Notes whether the file system of the disk runs low. While it does, journals are short, and
    /// no file of a journal is kept as a spare. Short journals also state early that chunks are
    /// synced, so that these can leave a disk on which nothing can be written any more.
    ///
    /// # Errors
    /// `Error::Storage`; a spare that could not be removed stays.
    pub fn set_low(&mut self, is_low: bool) -> Result<()> {
        self.is_low = is_low;
        while let Some(slot) = self.spares.last().copied().filter(|_| is_low) {
            self.disk.remove(&journal_name(slot))?;
            self.spares.pop();
        }
        Ok(())
    }

    /// Writes and syncs one commit. On success, everything in the batch survives a crash.
    ///
    /// # Errors
    /// `Error::Storage`; the batch may then be lost or not, and may be committed again.
    pub fn commit(&mut self, batch: &mut JournalBatch) -> Result<()> {
        if self.offset == 0 {
            self.begin_journal()?;
        }
        self.state_sealed(batch);
        let name = journal_name(self.slot);
        let (len, bytes) = batch.seal(self.identity(), self.sequence, self.offset);
        let done = self.disk.write(&name, self.offset, bytes).and_then(|()| self.disk.sync(&name));
        if let Err(error) = done {
            // The state of the file after a failed write or sync is unknown, so the journal
            // continues in a new file.
            self.retire(false);
            return Err(error.into());
        }
        for (origin, end) in batch.ends() {
            if !self.files.contains_key(&origin.file) {
                self.register(*origin);
            }
            let known = self.ends.entry(origin.file).or_default();
            *known = (*known).max(*end);
        }
        self.offset += len as u64;
        self.sequence += 1;
        Ok(())
    }

    /// Later commits go to the next journal.
    fn retire(&mut self, is_reusable: bool) {
        let ends = std::mem::take(&mut self.ends);
        let number = self.number;
        // A journal that was never begun has no file.
        let slot = if self.offset == 0 { number } else { self.slot };
        self.old.push(OldJournal { number, slot, bytes: self.offset, ends, is_reusable });
        self.number += 1;
        self.offset = 0;
        self.base_bytes = 0;
    }

    fn identity(&self) -> u64 {
        journal::identity_of(self.config.secret, self.number)
    }

    fn begin_journal(&mut self) -> Result<()> {
        let header = journal::header(self.number, self.identity(), self.config.node, false);
        self.slot = self.spares.last().copied().unwrap_or(self.number);
        self.disk.write(&journal_name(self.slot), 0, &header)?;
        self.spares.pop();
        self.offset = header.len() as u64;
        Ok(())
    }

    /// Commits a batch after which chunks can leave the disk. On a full disk, the commit goes to
    /// the reserve.
    fn commit_to_make_room(&mut self, batch: &mut JournalBatch) -> Result<()> {
        match self.commit(batch) {
            Err(error) if is_full(&error) && self.draw_on_reserve() => self.commit(batch),
            done => done,
        }
    }

    /// Makes the reserve the file of the next journal. A write over its blocks needs no room on
    /// file systems that write in place, such as ext4, XFS and tmpfs; Btrfs and ZFS do not.
    fn draw_on_reserve(&mut self) -> bool {
        // Behind a commit that failed, no journal has begun.
        if self.offset > 0 || !std::mem::take(&mut self.has_reserve) {
            return false;
        }
        let is_renamed = self.disk.rename(RESERVE, &journal_name(self.number)).is_ok();
        self.spares.extend(is_renamed.then_some(self.number));
        is_renamed
    }

    /// Makes the reserve again. Without room, the next checkpoint tries again.
    fn keep_reserve(&mut self) {
        if self.has_reserve {
            return;
        }
        let made = self.disk.write(RESERVE, 0, &[0; RESERVE_BYTES]);
        self.has_reserve = made.and_then(|()| self.disk.sync(RESERVE)).is_ok();
        if !self.has_reserve {
            // What a failed write has left takes room.
            let _ = self.disk.remove(RESERVE);
        }
    }

    /// Makes the file of a journal a spare, or removes the file. The mark of a spare is synced
    /// before anything else is written to the file. Otherwise a crash could leave the old header in
    /// front of the first new commits, and the rest of the old commits would look like damage.
    fn dispose_oldest(&mut self) -> Result<()> {
        let Some(OldJournal { number, slot, is_reusable, .. }) = self.old.first_mut() else {
            return Ok(());
        };
        let (number, slot) = (*number, *slot);
        let name = journal_name(slot);
        if *is_reusable && self.spares.len() < SPARES && !self.is_low {
            let header = journal::header(number, 0, self.config.node, true);
            let marked = self.disk.write(&name, 0, &header).and_then(|()| self.disk.sync(&name));
            if let Err(error) = marked {
                *is_reusable = false;
                return Err(error.into());
            }
            self.spares.push(slot);
        } else {
            self.disk.remove(&name)?;
        }
        self.old.remove(0);
        Ok(())
    }

    /// Writes a full segment into its chunk. The segment may not leave memory before
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// `Error::Storage`; the segment is kept and written again by the next flush.
    pub fn write(&mut self, sealed: SealedSegment) -> Result<()> {
        if sealed.kind == SegmentKind::Data && !self.files.contains_key(&sealed.file) {
            let header = segment::expect(&sealed.bytes, sealed.kind, sealed.file, sealed.number)?;
            let (record_bytes, token) = (header.entry_bytes, header.token);
            self.register(Origin { file: sealed.file, record_bytes, token });
        }
        let (chunk, offset) = segment_place(sealed.number);
        self.chunks.reach(sealed.kind, sealed.file, chunk, offset + SEGMENT_BYTES as u64);
        let done = put(&self.disk, &sealed);
        if let Err(error) = done {
            self.rewrite = true;
            self.unsynced.push(sealed);
            return Err(error);
        }
        self.mark_written(&sealed);
        self.unsynced.push(sealed);
        Ok(())
    }

    fn mark_written(&mut self, sealed: &SealedSegment) {
        if let (SegmentKind::Data, Some(shelf)) = (sealed.kind, self.files.get_mut(&sealed.file)) {
            let layout = Layout::new(usize::from(shelf.origin.record_bytes));
            let per_segment = layout.map_or(0, Layout::records_per_segment);
            shelf.written = shelf.written.max((u64::from(sealed.number) + 1) * per_segment);
        }
    }

    /// Syncs every written segment. Returns these segments, which may leave memory now.
    ///
    /// # Errors
    /// `Error::Storage`; all of them stay, and the next flush writes them again first.
    pub fn flush(&mut self) -> Result<Vec<SealedSegment>> {
        self.begin_flush()?;
        let synced = self.disk.sync_all();
        self.end_flush(synced.map_err(Into::into))
    }

    /// The first half of a [`flush`](Self::flush). The caller then syncs the whole disk, and passes
    /// the result to the second half. Commits may happen in between. Another flush, checkpoint or
    /// close may not.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn begin_flush(&mut self) -> Result<()> {
        if self.rewrite {
            for at in 0..self.unsynced.len() {
                put(&self.disk, &self.unsynced[at])?;
                let sealed = self.unsynced[at].clone();
                self.mark_written(&sealed);
            }
        }
        self.rewrite = false;
        self.flushing.append(&mut self.unsynced);
        self.releasing.append(&mut self.sealed);
        let behind = self.files.iter().filter(|(_, shelf)| shelf.written > shelf.synced);
        self.reached = behind.map(|(file, shelf)| (*file, shelf.written)).collect();
        Ok(())
    }

    /// The second half: gives the segments that may leave memory.
    ///
    /// # Errors
    /// The error of the sync.
    pub fn end_flush(&mut self, synced: Result<()>) -> Result<Vec<SealedSegment>> {
        let mut flushed = std::mem::take(&mut self.flushing);
        let mut released = std::mem::take(&mut self.releasing);
        let reached = std::mem::take(&mut self.reached);
        if let Err(error) = synced {
            self.rewrite = true;
            let later = std::mem::replace(&mut self.unsynced, flushed);
            self.unsynced.extend(later);
            // Their columns had a sync of their own, and are not written again.
            let later = std::mem::replace(&mut self.sealed, released);
            self.sealed.extend(later);
            return Err(error);
        }
        let in_columns = released.iter().map(|sealed| sealed.file);
        self.unstated.extend(in_columns.filter(|file| self.files.contains_key(file)));
        flushed.append(&mut released);
        for (file, written) in reached {
            if let Some(shelf) = self.files.get_mut(&file) {
                let more = written.saturating_sub(shelf.synced);
                self.unstated_bytes += more * u64::from(shelf.origin.record_bytes);
                shelf.synced = shelf.synced.max(written);
            }
        }
        Ok(flushed)
    }

    /// Starts the next journal, and removes the journals whose records are all in other places.
    ///
    /// `tails` gives a file's records from a number to its end. Segments that are full must have
    /// been given to [`write`](Self::write) before.
    ///
    /// # Errors
    /// `Error::Storage`; nothing that was promised is lost, and it may be called again.
    pub fn checkpoint(&mut self, tails: &mut Tails) -> Result<Vec<SealedSegment>> {
        self.begin_checkpoint()?;
        let synced = self.disk.sync_all();
        let flushed = self.end_flush(synced.map_err(Into::into))?;
        self.end_checkpoint(tails)?;
        Ok(flushed)
    }

    /// The first part of a [`checkpoint`](Self::checkpoint), and of a flush: commits go to the next
    /// journal from here on. A sync of the whole disk and [`end_flush`](Self::end_flush) follow.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn begin_checkpoint(&mut self) -> Result<()> {
        if self.offset > 0 {
            self.retire(true);
        }
        self.spill_overdue();
        self.begin_flush()
    }

    /// The last part of a [`checkpoint`](Self::checkpoint), when the flush has ended well.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub fn end_checkpoint(&mut self, tails: &mut Tails) -> Result<()> {
        let count = self.disposable_journals();
        if self.rebase(tails, count)? {
            for _ in 0..count {
                self.dispose_oldest()?;
            }
        }
        self.keep_reserve();
        Ok(())
    }

    /// Commits to the current journal where each file stands, and the records of the `count` oldest
    /// journals that are in no synced chunk. Returns whether these are all such records.
    fn rebase(&mut self, tails: &mut Tails, count: usize) -> Result<bool> {
        let mut is_whole = true;
        let ends = self.ends_of_oldest(count);
        let mut batch = JournalBatch::default();
        let mut base_bytes = 0;
        let shelves: Vec<Shelf> = self.files.values().copied().collect();
        for shelf in shelves {
            let file = shelf.origin.file;
            let end = ends.get(&file).copied().unwrap_or(0);
            let needs_tail = end > shelf.synced;
            let tail = if needs_tail { tails(file, shelf.synced) } else { None };
            is_whole &= !needs_tail || tail.is_some();
            let mut tail = tail.unwrap_or_default();
            // Later records are in a later journal, or have no acknowledgement.
            let count = usize::try_from(end.saturating_sub(shelf.synced)).unwrap_or(usize::MAX);
            tail.truncate(count, usize::from(shelf.origin.record_bytes));
            base_bytes += (journal::FRAME_BYTES + tail.bytes.len()) as u64;
            if !batch.fits(journal::FRAME_BYTES) {
                self.commit(&mut batch)?;
                batch.clear();
            }
            batch.push_node(shelf.origin, shelf.synced);
            self.commit_tail(&mut batch, shelf.origin, shelf.synced, &tail)?;
        }
        if !batch.is_empty() {
            self.commit(&mut batch)?;
        }
        for shelf in self.files.values_mut() {
            shelf.stated = shelf.synced;
        }
        self.unstated_bytes = 0;
        self.base_bytes = base_bytes;
        Ok(is_whole)
    }

    /// Adds the records of a tail to the batch, and commits whatever does not fit.
    fn commit_tail(
        &mut self,
        batch: &mut JournalBatch,
        origin: Origin,
        first: u64,
        tail: &TailRecords,
    ) -> Result<()> {
        let size = usize::from(origin.record_bytes.max(1));
        for lost in &tail.lost {
            if !batch.fits(size_of::<u64>()) {
                self.commit(batch)?;
                batch.clear();
            }
            batch.push_lost(origin, first + lost.start as u64, lost.len() as u64);
        }
        for held in tail.held_ranges(size) {
            let records = &tail.bytes[held.start * size..held.end * size];
            for (first, piece) in pieces(origin, first + held.start as u64, records) {
                if !batch.fits(piece.len()) {
                    self.commit(batch)?;
                    batch.clear();
                }
                batch.push_records(origin, first, piece);
            }
        }
        Ok(())
    }

    /// Leaves the disk so that nothing is lost: all full segments in chunks, the rest of every file
    /// in the journal, whatever level it was appended at.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub fn close(&mut self, tails: &mut Tails) -> Result<Vec<SealedSegment>> {
        self.ends.extend(self.files.keys().map(|file| (*file, u64::MAX)));
        // One journal stays. Its file has no remains of an earlier journal.
        self.retire(false);
        self.old.iter_mut().for_each(|old| old.is_reusable = false);
        while let Some(slot) = self.spares.last() {
            self.disk.remove(&journal_name(*slot))?;
            self.spares.pop();
        }
        let flushed = self.checkpoint(tails)?;
        if std::mem::take(&mut self.has_reserve) {
            self.disk.remove(RESERVE)?;
        }
        Ok(flushed)
    }

    /// Reads and checks a segment of a chunk; `None` when it is not there.
    ///
    /// # Errors
    /// `Error::Damaged`, `Error::Version`, `Error::Storage`.
    pub fn read(&self, kind: SegmentKind, file: FileId, number: u32) -> Result<Option<Bytes>> {
        read_segment(&self.disk, kind, file, number)
    }

    /// Wipes the segments from this number on. A crash may leave whole segments behind a gap, and
    /// recovery must not take them for segments that are written there later. The next flush makes
    /// the wipe last, and must come before the first append.
    ///
    /// # Errors
    /// `Error::Storage`.
    pub fn truncate(&mut self, kind: SegmentKind, file: FileId, number: u32) -> Result<()> {
        let (first, _) = segment_place(number);
        for (chunk, bytes) in self.chunks.lengths_of(kind, file, first) {
            let name = chunk_name(kind, file, chunk);
            let keep = number.saturating_sub(chunk * SEGMENTS_PER_CHUNK);
            // Nothing is read behind the end of the chunk, where most files end.
            let there = bytes.div_ceil(SEGMENT_BYTES as u64).min(SEGMENTS_PER_CHUNK.into());
            for slot in keep..there as u32 {
                let offset = u64::from(slot) * SEGMENT_BYTES as u64;
                let is_hole = match self.disk.read(&name, offset, SEGMENT_BYTES) {
                    Ok(there) if there.is_empty() => break,
                    Ok(there) => is_hole(&there),
                    // Damaged columns.
                    Err(StorageError::Damaged { .. }) => false,
                    Err(error) => return Err(error.into()),
                };
                if !is_hole {
                    self.disk.write(&name, offset, &[0; SEGMENT_BYTES])?;
                }
            }
        }
        Ok(())
    }

    /// Forgets a file and removes its chunks.
    ///
    /// # Errors
    /// `Error::Storage`; the file may then be gone or not, and the call may be repeated.
    pub fn delete(&mut self, file: FileId) -> Result<()> {
        let Some(shelf) = self.files.get(&file).copied() else { return Ok(()) };
        // Nothing states the file behind its deletion.
        self.unstated.remove(&file);
        let mut batch = JournalBatch::default();
        batch.push_deletion(shelf.origin);
        let stated = self.commit_to_make_room(&mut batch);
        let is_room_short = stated.as_ref().is_err_and(is_full);
        if !is_room_short {
            stated?;
        }
        self.forget_held(file)?;
        self.unsynced.retain(|sealed| sealed.file != file);
        self.flushing.retain(|sealed| sealed.file != file);
        for kind in [SegmentKind::Data, SegmentKind::Index] {
            for (chunk, _) in self.chunks.lengths_of(kind, file, 0).collect::<Vec<_>>() {
                self.disk.remove(&chunk_name(kind, file, chunk))?;
                self.chunks.remove(kind, file, chunk);
            }
        }
        if is_room_short {
            // The chunks were the room. A crash in front of this commit leaves a file of which only
            // the end is there, and the deletion is repeated.
            self.commit(&mut batch)?;
        }
        self.files.remove(&file);
        self.keep_reserve();
        Ok(())
    }

    /// Removes a data chunk that is elsewhere or not wanted any more. The chunk must be whole,
    /// synced and not the newest. The journal first states that the file goes on behind the chunk.
    /// Otherwise recovery would take the missing chunk for the end of the file, and wipe what
    /// follows.
    ///
    /// # Errors
    /// `Error::Storage`; nothing is removed then.
    pub fn evict_chunk(&mut self, file: FileId, chunk: u32) -> Result<bool> {
        // The newest synced segment stays: recovery looks behind it.
        let segments = (u64::from(chunk) + 1) * u64::from(SEGMENTS_PER_CHUNK) + 1;
        if !self.state_behind(file, segments, Self::commit_to_make_room)? {
            return Ok(false);
        }
        self.disk.remove(&chunk_name(SegmentKind::Data, file, chunk))?;
        self.chunks.remove(SegmentKind::Data, file, chunk);
        self.keep_reserve();
        Ok(true)
    }

    /// Makes the journal state that a whole chunk is synced, so that recovery neither reads nor
    /// writes it. `false` when the chunk is not all synced yet, or the file is gone.
    ///
    /// # Errors
    /// `Error::Storage`.
    pub fn state_chunk(&mut self, chunk: DataChunk) -> Result<bool> {
        let segments = (u64::from(chunk.number) + 1) * u64::from(SEGMENTS_PER_CHUNK);
        self.state_behind(chunk.file, segments, Self::commit)
    }

    /// States the synced end of a file whose first `segments` segments are synced.
    fn state_behind(
        &mut self,
        file: FileId,
        segments: u64,
        commit: fn(&mut Self, &mut JournalBatch) -> Result<()>,
    ) -> Result<bool> {
        let Some(shelf) = self.files.get(&file).copied() else { return Ok(false) };
        let layout = Layout::new(usize::from(shelf.origin.record_bytes))?;
        if u64::from(layout.full_segments(shelf.synced)) < segments {
            return Ok(false);
        }
        if u64::from(layout.full_segments(shelf.stated)) < segments {
            let mut batch = JournalBatch::default();
            batch.push_node(shelf.origin, shelf.synced);
            commit(self, &mut batch)?;
            if let Some(kept) = self.files.get_mut(&file) {
                kept.stated = shelf.synced;
            }
        }
        Ok(true)
    }

    /// Counts a chunk with the bytes that it takes in columns.
    pub fn count_columnar(&mut self, chunk: DataChunk, stored: u64) {
        self.chunks.shrink(chunk, stored);
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Storage(StorageError::Full { .. }))
}

/// Records as parts that fit into a commit, each with the number of its first record.
pub fn pieces(origin: Origin, first: u64, records: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let size = usize::from(origin.record_bytes).max(1);
    let count = (FRAME_RECORDS_BYTES_MAX / size).max(1);
    let parts = records.chunks(count * size).enumerate();
    parts.map(move |(at, part)| (first + (at * count) as u64, part))
}

fn put(disk: &impl Disk, sealed: &SealedSegment) -> Result<()> {
    let (chunk, offset) = segment_place(sealed.number);
    let name = chunk_name(sealed.kind, sealed.file, chunk);
    Ok(disk.write(&name, offset, &sealed.bytes)?)
}

/// Reads and checks a segment of a chunk; `None` when it is not there.
///
/// # Errors
/// `Error::Damaged`, `Error::Version`, `Error::Storage`.
pub fn read_segment(
    disk: &impl Disk,
    kind: SegmentKind,
    file: FileId,
    number: u32,
) -> Result<Option<Bytes>> {
    let (chunk, offset) = segment_place(number);
    let bytes = disk.read(&chunk_name(kind, file, chunk), offset, SEGMENT_BYTES)?;
    // A file that is short or has a hole never had this segment.
    if bytes.len() < SEGMENT_BYTES || is_hole(&bytes) {
        return Ok(None);
    }
    segment::expect(&bytes, kind, file, number)?;
    Ok(Some(bytes))
}

/// Whether nothing was ever written here.
fn is_hole(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|byte| *byte == 0) && bytes.iter().all(|byte| *byte == 0)
}
