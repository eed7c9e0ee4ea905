//! Rows that are written once: beside their journals they are held in memory until their chunk is
//! whole, and the caller then writes the chunk in columns.
//!
//! ```text
//!  hold_segment ──> held ──(256 of them)──> columns, by the caller ──> seal_chunk ──> flush
//!                     └──(no room in memory or in the journals)──> spill_chunk: raw ──> flush
//! ```
//!
//! Journals have the held rows, and stay until the rows are in synced chunks. The bytes of journals
//! are bounded, because recovery reads them all: when the oldest journal has to go, the chunks that
//! it has rows of are spilled. Memory is bounded by a number of chunks, of which each takes its
//! room when its first segment comes. Ten thousand files therefore hold no more than sixteen do.
//! The files that find no room write raw chunks, and try again at their next chunk. Files that grow
//! too slowly for the journals try again more and more seldom. On a disk that runs low no chunk
//! begins to be held, because its journals take room.
//!
//! What is held of a file is always its end, so that one number still says how far the file is
//! synced. A chunk that has a raw file on the disk is not held, because a raw chunk counts where
//! both forms are on the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use evenfall_core::Disk;

use super::Volume;
use crate::error::Result;
use crate::journal::JournalBatch;
use crate::layout::{
    CHUNK_BYTES, DataChunk, FileId, Layout, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind,
    segment_place,
};
use crate::segment::SealedSegment;

/// Chunks of a file that are passed over at most, after several that did not become whole in time.
const PASSES_MAX: u32 = 31;

/// The chunks of a file that are written raw because those before them had to be spilled: they grow
/// too slowly for the journals. The file tries again more and more seldom, since a spill holds up
/// commits while it writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HoldPasses {
    /// First chunk that may be held again.
    until: u32,
    /// Number of chunks that were passed over the last time.
    count: u32,
}

impl HoldPasses {
    /// Passes over the chunks behind this one, about twice as many as the last time. The journals
    /// with rows of this chunk had to go before the chunk was whole.
    fn pass_over(&mut self, chunk: u32) {
        self.count = (2 * self.count + 1).min(PASSES_MAX);
        self.until = chunk.saturating_add(1 + self.count);
    }
}

/// The chunks of a file up to this one.
fn up_to(chunk: DataChunk) -> core::ops::RangeInclusive<DataChunk> {
    DataChunk { file: chunk.file, number: 0 }..=chunk
}

/// The last chunk that a file can have.
fn last_of(file: FileId) -> DataChunk {
    DataChunk { file, number: u32::MAX }
}

impl<D: Disk> Volume<D> {
    /// The counter of the bytes of held segments.
    pub fn held_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.held_bytes)
    }

    /// The files of which rows are held, each once for each of its held chunks.
    pub fn held_files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.held.keys().map(|chunk| chunk.file)
    }

    /// Takes a full segment: holds it, or writes it when there is no room to hold its chunk. The
    /// segments of a file come in order. Returns the chunk that the segment makes whole. Its
    /// columns can be written then, in the order of the file's chunks.
    ///
    /// # Errors
    /// `Error::Storage`; what could not be written is kept, and written again by the next flush.
    pub fn hold_segment(&mut self, sealed: SealedSegment) -> Result<Option<DataChunk>> {
        if sealed.kind == SegmentKind::Index {
            return self.write(sealed).map(|()| None);
        }
        let chunk = DataChunk { file: sealed.file, number: segment_place(sealed.number).0 };
        if self.continues_chunk(chunk, sealed.number) {
            return Ok(self.keep_segment(chunk, sealed));
        }
        if !self.begins_chunk(chunk, sealed.number) {
            let spilled = self.spill_chunk(last_of(chunk.file));
            let written = self.write(sealed);
            return spilled.and(written).map(|()| None);
        }
        let mut spilled = Ok(());
        if self.held.len() >= self.config.held_chunks_max
            && let Some(oldest) = self.held.range(up_to(chunk)).next().map(|(of, _)| *of)
        {
            // The encoder is behind, so the chunk that waits for it goes to the disk raw.
            spilled = self.spill_chunk(oldest);
        }
        if self.held.len() >= self.config.held_chunks_max {
            let written = self.write(sealed);
            return spilled.and(written).map(|()| None);
        }
        let whole = self.keep_segment(chunk, sealed);
        spilled.map(|()| whole)
    }

    /// Whether the segment follows the last one that is held of its chunk.
    fn continues_chunk(&self, chunk: DataChunk, number: u32) -> bool {
        let last = self.held.get(&chunk).and_then(|segments| segments.last());
        last.is_some_and(|last| last.number + 1 == number)
    }

    /// Whether the segment begins a chunk that may be held.
    fn begins_chunk(&self, chunk: DataChunk, number: u32) -> bool {
        self.config.held_chunks_max > 0
            && !self.is_low
            && number == chunk.first_segment()
            && self.files.get(&chunk.file).is_some_and(|of| chunk.number >= of.passes.until)
            && self.next_segment(chunk.file) == Some(number)
            && !self.chunks.bytes.contains_key(&(SegmentKind::Data, chunk.file, chunk.number))
    }

    /// The number behind the last segment that is held or written of a file.
    fn next_segment(&self, file: FileId) -> Option<u32> {
        let last = self.held.range(up_to(last_of(file))).next_back();
        if let Some(last) = last.and_then(|(_, segments)| segments.last()) {
            return Some(last.number + 1);
        }
        let shelf = self.files.get(&file)?;
        let layout = Layout::new(usize::from(shelf.origin.record_bytes)).ok()?;
        let segment = layout.full_segments(shelf.written);
        // A file whose beginning is elsewhere may have been given an end inside of a segment.
        (layout.first_record(segment) == shelf.written).then_some(segment)
    }

    fn keep_segment(&mut self, chunk: DataChunk, sealed: SealedSegment) -> Option<DataChunk> {
        self.held_bytes.fetch_add(SEGMENT_BYTES as u64, Relaxed);
        let segments = self.held.entry(chunk).or_default();
        segments.push(sealed);
        (segments.len() == SEGMENTS_PER_CHUNK as usize).then_some(chunk)
    }

    fn let_go(&mut self, chunk: DataChunk) -> Option<Vec<SealedSegment>> {
        let segments = self.held.remove(&chunk)?;
        self.held_bytes.fetch_sub((segments.len() * SEGMENT_BYTES) as u64, Relaxed);
        Some(segments)
    }

    /// The first chunk of a file of which something is held.
    pub fn oldest_held(&self, file: FileId) -> Option<DataChunk> {
        self.held.range(up_to(last_of(file))).next().map(|(chunk, _)| *chunk)
    }

    /// Whether a whole chunk is held.
    pub fn holds_chunk(&self, chunk: DataChunk) -> bool {
        let segments = self.held.get(&chunk);
        segments.is_some_and(|segments| segments.len() == SEGMENTS_PER_CHUNK as usize)
    }

    /// The segments of a whole chunk that is held.
    pub fn held_chunk(&self, chunk: DataChunk) -> Option<Vec<Bytes>> {
        let segments = self.held.get(&chunk).filter(|_| self.holds_chunk(chunk))?;
        Some(segments.iter().map(|sealed| sealed.bytes.clone()).collect())
    }

    /// Writes what is held of a chunk, and of the chunks before it in its file, as raw chunks.
    ///
    /// # Errors
    /// As [`write`](Self::write), for the first segment that could not be written.
    pub fn spill_chunk(&mut self, chunk: DataChunk) -> Result<()> {
        let due: Vec<DataChunk> = self.held.range(up_to(chunk)).map(|(of, _)| *of).collect();
        let mut done = Ok(());
        for sealed in due.into_iter().filter_map(|of| self.let_go(of)).flatten().collect::<Vec<_>>()
        {
            let written = self.write(sealed);
            done = done.and(written);
        }
        done
    }

    /// As [`spill_chunk`](Self::spill_chunk), for all that is held of a file.
    ///
    /// # Errors
    /// As [`spill_chunk`](Self::spill_chunk).
    pub fn spill_file(&mut self, file: FileId) -> Result<()> {
        self.spill_chunk(last_of(file))
    }

    /// The columns of a held chunk take `stored` bytes and are synced, and so is their name. The
    /// segments of the chunk leave memory with the next flush. `false` when nothing is held of the
    /// chunk any more.
    ///
    /// # Errors
    /// As [`spill_chunk`](Self::spill_chunk), for earlier chunks of the file that are still held.
    pub fn seal_chunk(&mut self, chunk: DataChunk, stored: u64) -> Result<bool> {
        let before = chunk.number.checked_sub(1);
        let before = before.map(|number| DataChunk { file: chunk.file, number });
        let spilled = before.map_or(Ok(()), |before| self.spill_chunk(before));
        let Some(segments) = self.let_go(chunk) else { return spilled.map(|()| false) };
        self.chunks.reach(SegmentKind::Data, chunk.file, chunk.number, CHUNK_BYTES as u64);
        self.chunks.shrink(chunk, stored);
        if let Some(shelf) = self.files.get_mut(&chunk.file) {
            shelf.passes = HoldPasses::default();
        }
        segments.iter().for_each(|sealed| self.mark_written(sealed));
        self.sealed.extend(segments);
        spilled.map(|()| true)
    }

    /// Segments of a file that are in memory until they are synced: held, written or sealed.
    pub fn segments_in_memory(&self, file: FileId) -> usize {
        let held = self.held.range(up_to(last_of(file))).flat_map(|(_, segments)| segments);
        let others = [&self.unsynced, &self.flushing, &self.sealed, &self.releasing];
        let others = others.into_iter().flatten().filter(|sealed| sealed.file == file);
        held.count() + others.count()
    }

    /// Removes from memory what is held of a deleted file.
    pub(super) fn forget_held(&mut self, file: FileId) -> Result<()> {
        let held: Vec<DataChunk> =
            self.held.range(up_to(last_of(file))).map(|(chunk, _)| *chunk).collect();
        for chunk in held {
            // Columns of the chunk may be on their way.
            self.disk.remove(&chunk.raw_name())?;
            self.let_go(chunk);
        }
        self.sealed.retain(|sealed| sealed.file != file);
        self.releasing.retain(|sealed| sealed.file != file);
        Ok(())
    }

    /// Adds to a commit how far files are synced of which chunks were sealed. Recovery then does
    /// not read their columns.
    pub(super) fn state_sealed(&mut self, batch: &mut JournalBatch) {
        while batch.fits(0)
            && let Some(file) = self.unstated.pop_first()
        {
            if let Some(shelf) = self.files.get(&file) {
                batch.push_node(shelf.origin, shelf.synced);
            }
        }
    }

    /// For each file, the number after its last record in the `count` oldest journals.
    pub(super) fn ends_of_oldest(&self, count: usize) -> BTreeMap<FileId, u64> {
        let mut ends = BTreeMap::new();
        for (file, end) in self.old.iter().take(count).flat_map(|old| &old.ends) {
            let known: &mut u64 = ends.entry(*file).or_default();
            *known = (*known).max(*end);
        }
        ends
    }

    /// How many of the oldest journals have to go, whatever it costs: all when nothing is held or
    /// the disk runs low, those up to the last one that cannot be trusted or used again, and those
    /// beyond the limit of bytes.
    pub(super) fn overdue_journals(&self) -> usize {
        if self.held.is_empty() || self.is_low {
            return self.old.len();
        }
        let failed = self.old.iter().rposition(|old| !old.is_reusable).map_or(0, |at| at + 1);
        let mut left = self.config.recovery_bytes_max.saturating_sub(self.config.journal_bytes_max);
        let stays = self.old.iter().rev().take_while(|old| {
            let rest = left.checked_sub(old.bytes);
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        failed.max(self.old.len() - stays.count())
    }

    /// How many of the oldest journals may go at a checkpoint: those that have to, and those of
    /// which all records are in synced chunks.
    pub(super) fn disposable_journals(&self) -> usize {
        let is_synced = |(file, end): (&FileId, &u64)| {
            self.files.get(file).is_none_or(|shelf| shelf.synced >= *end)
        };
        let free = self.old.iter().take_while(|old| old.ends.iter().all(is_synced));
        free.count().max(self.overdue_journals())
    }

    /// Spills the chunks of which rows are in journals that have to go. To carry the rows over into
    /// the next journal would write them again and again while their chunk fills.
    pub(super) fn spill_overdue(&mut self) {
        let ends = self.ends_of_oldest(self.overdue_journals());
        let is_due = |chunk: &DataChunk| {
            let shelf = self.files.get(&chunk.file)?;
            let layout = Layout::new(usize::from(shelf.origin.record_bytes)).ok()?;
            let first = layout.first_record(chunk.first_segment());
            Some(ends.get(&chunk.file).is_some_and(|end| *end > first))
        };
        let due: Vec<DataChunk> =
            self.held.keys().filter(|chunk| is_due(chunk).unwrap_or(true)).copied().collect();
        for chunk in due {
            if let Some(shelf) = self.files.get_mut(&chunk.file) {
                shelf.passes.pass_over(chunk.number);
            }
            // The flush that follows writes again what could not be written, and reports the error.
            let _ = self.spill_chunk(chunk);
        }
    }
}
