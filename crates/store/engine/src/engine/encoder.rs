//! The thread that encodes whole chunks in columns.
//!
//! While the encoder keeps up, the rows of a chunk are in journals and in memory until the chunk is
//! whole. The encoder then writes its columns out of memory, and no raw chunk is ever made
//! ([`hold_segment`](evenfall_store_format::Volume::hold_segment)).
//!
//! A chunk that memory has no room to hold is raw until all of it is synced. The encoder then
//! writes its columns beside it, syncs them, and removes the raw chunk. Both happen a few chunks at
//! a time. Appends never wait for the encoder: a chunk that it has not reached becomes or stays raw
//! and is read as it is. When more chunks wait than [`WAITING_MAX`], the newest are left out, and
//! the encoder lists the disk for them when the others are done. Its first list is that of a store
//! that was stopped, or that was raw until now.
//!
//! A chunk goes to the objects when it is in columns, so that it is uploaded once. A chunk that
//! stays raw, or that the encoder has no room for, goes there at once; the upload encodes it then.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::Disk as _;
use evenfall_store_format::columnar::columnar_name;
use evenfall_store_format::layout::{CHUNK_BYTES, DataChunk, SEGMENTS_PER_CHUNK};
use evenfall_store_format::{Error, FileId, Kind, Volume};

use super::{ChunkForm, Shared, Store, StoreFile, TICK};
use crate::{StoreDisk, chunk_codec, lock};

/// Chunks that may wait. 4,096 chunks are 16 GiB of rows, and their numbers take 64 KiB.
const WAITING_MAX: usize = 4_096;
/// Chunks that are encoded between two looks at the journal. Each of them needs a sync, and eight
/// share the sync of their names.
const AT_ONCE: usize = 8;
/// How long the encoder waits for a chunk before it looks whether the store stops.
const IDLE: Duration = Duration::from_millis(250);
/// How often a caller that waits for the encoder looks at it.
const LOOK: Duration = Duration::from_millis(10);
/// Pause after an error of the disk, and between two lists of it.
const PAUSE: Duration = Duration::from_secs(2);

struct Waiting {
    chunks: VecDeque<DataChunk>,
    /// Whether raw chunks may be on the disk that are not in the queue.
    has_more: bool,
    /// Whether the encoder is listing the disk for such chunks. The encoder counts as busy then,
    /// also with an empty queue.
    is_listing: bool,
    /// Chunks that the encoder has taken out of the queue and works on.
    under_way: usize,
}

impl Default for Waiting {
    /// Chunks of an earlier life may be raw.
    fn default() -> Self {
        Self { chunks: VecDeque::new(), has_more: true, is_listing: false, under_way: 0 }
    }
}

/// The queue of the encoder.
#[derive(Default)]
pub(crate) struct Encodings {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    encoded: AtomicU64,
    errors: AtomicU64,
    /// Bytes of the segments that wait in memory for their chunk and its columns. The volume counts
    /// them.
    held_bytes: Arc<AtomicU64>,
}

/// What became of a chunk that was due in columns.
enum Staging {
    /// The columns of the chunk are synced, under the name of a stage.
    Staged,
    /// The chunk stays raw.
    StaysRaw,
    /// The chunk is neither held nor synced, and is due again when it is synced.
    ComesAgain,
}

impl Encodings {
    /// The queue of a store whose volume counts these bytes of held segments.
    pub(super) fn new(held_bytes: Arc<AtomicU64>) -> Self {
        Self { held_bytes, ..Self::default() }
    }

    /// Bytes of the segments that wait in memory for their chunk and its columns.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    /// A chunk is whole, and held in memory or synced. `false` when the queue has no room for it.
    pub(super) fn push(&self, chunk: DataChunk) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.chunks.len() >= WAITING_MAX {
            waiting.has_more = true;
            return false;
        }
        waiting.chunks.push_back(chunk);
        self.wake.notify_one();
        true
    }

    /// Chunks in the queue.
    pub(super) fn waiting(&self) -> u64 {
        lock(&self.waiting).chunks.len() as u64
    }

    /// Chunks that are in columns since this store was opened.
    pub(super) fn encoded_chunks(&self) -> u64 {
        self.encoded.load(Relaxed)
    }

    /// Failed attempts so far.
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    fn is_idle(&self) -> bool {
        let waiting = lock(&self.waiting);
        let has_work = waiting.has_more || waiting.is_listing || waiting.under_way > 0;
        waiting.chunks.is_empty() && !has_work
    }

    /// Begins a list of the disk. `false` when the queue has all its raw chunks.
    fn begin_list(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        waiting.is_listing = std::mem::take(&mut waiting.has_more);
        waiting.is_listing
    }

    fn end_list(&self, is_complete: bool) {
        let mut waiting = lock(&self.waiting);
        waiting.is_listing = false;
        waiting.has_more |= !is_complete;
    }

    pub(super) fn wake(&self) {
        self.wake.notify_all();
    }

    fn wait(&self, time: Duration, ends: &dyn Fn() -> bool) {
        let waiting = lock(&self.waiting);
        drop(self.wake.wait_timeout_while(waiting, time, |_| !ends()));
    }

    fn take(&self, ends: &dyn Fn() -> bool) -> Vec<DataChunk> {
        let waiting = lock(&self.waiting);
        let idle = |waiting: &mut Waiting| waiting.chunks.is_empty() && !ends();
        let waited = self.wake.wait_timeout_while(waiting, IDLE, idle);
        let mut waiting = waited.unwrap_or_else(|e| e.into_inner()).0;
        let count = waiting.chunks.len().min(AT_ONCE);
        waiting.under_way = count;
        waiting.chunks.drain(..count).collect()
    }
}

impl Store {
    /// Waits until every whole chunk that can be in columns is, or for this long. Returns whether
    /// nothing is left to do. Without columns nothing ever is.
    pub fn await_columns(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let shared = &self.shared;
        while shared.has_columns() && !self.threads.is_empty() && !shared.encodings.is_idle() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

impl Shared {
    /// Whether this store keeps its whole chunks in columns.
    pub(super) fn has_columns(&self) -> bool {
        self.config.chunks == ChunkForm::Columns && chunk_codec().is_some()
    }

    /// A data segment was synced. The last segment of a chunk makes the chunk due.
    pub(super) fn segment_synced(&self, file: FileId, number: u32) {
        if !(number + 1).is_multiple_of(SEGMENTS_PER_CHUNK) {
            return;
        }
        let chunk = DataChunk { file, number: number / SEGMENTS_PER_CHUNK };
        let is_due = self.has_columns() && !self.disk.is_columnar(chunk);
        if !is_due || !self.encodings.push(chunk) {
            self.upload_later(chunk);
        }
    }

    fn upload_later(&self, chunk: DataChunk) {
        if self.bucket.is_some() {
            self.uploads.is_due(chunk);
        }
    }

    pub(super) fn run_encoder(&self) {
        let mut left_raw = BTreeSet::new();
        self.list_raw_chunks(&left_raw);
        let mut listed_at = Instant::now();
        while !self.is_stopping() {
            // Appends need the disk and the cores more, unless the segments wait for the encoder.
            let memory = self.memory_bytes.load(Relaxed);
            if memory.saturating_sub(self.encodings.held_bytes()) > self.config.memory_bytes_max / 2
            {
                std::thread::sleep(TICK);
                continue;
            }
            let chunks = self.encodings.take(&|| self.is_stopping());
            if chunks.is_empty() && listed_at.elapsed() > PAUSE {
                self.list_raw_chunks(&left_raw);
                listed_at = Instant::now();
            }
            let mut failed = false;
            let staged = chunks.into_iter().filter(|chunk| match self.stage(*chunk, &left_raw) {
                Ok(Staging::Staged) => true,
                Ok(Staging::ComesAgain) => false,
                Ok(Staging::StaysRaw) => {
                    left_raw.insert(*chunk);
                    self.leave_raw(*chunk);
                    false
                }
                Err(error) => {
                    // Damage stays, and another look would find it again.
                    match error {
                        Error::Damaged { .. } => drop(left_raw.insert(*chunk)),
                        _ => failed = true,
                    }
                    self.give_up_switch(*chunk);
                    false
                }
            });
            let staged: Vec<_> = staged.collect();
            if !staged.is_empty() {
                failed |= !self.switch_form(&staged);
            }
            if failed {
                lock(&self.encodings.waiting).has_more = true;
                self.encodings.wait(PAUSE, &|| self.is_stopping());
            }
        }
    }

    /// Lists the disk, if the queue may lack raw chunks of it.
    fn list_raw_chunks(&self, left_raw: &BTreeSet<DataChunk>) {
        if self.encodings.begin_list() {
            let is_complete = self.queue_raw_chunks(left_raw);
            self.encodings.end_list(is_complete);
        }
    }

    /// Puts the raw chunks of the disk into the queue, the oldest of each file first. Returns
    /// whether the queue has all of them.
    fn queue_raw_chunks(&self, left_raw: &BTreeSet<DataChunk>) -> bool {
        let Ok(chunks) = self.disk.raw_chunks() else { return false };
        chunks.into_iter().all(|chunk| {
            let is_due = !left_raw.contains(&chunk) && self.is_synced(chunk);
            !is_due || self.encodings.push(chunk)
        })
    }

    /// Whether a chunk of a file of this store is synced from its first segment to its last. A
    /// chunk that is not comes when it is ([`segment_synced`](Self::segment_synced)).
    fn is_synced(&self, chunk: DataChunk) -> bool {
        let Some(file) = self.file_of(chunk.file) else { return false };
        let synced = lock(&self.volume).synced(chunk.file);
        let layout = file.schema.layout();
        layout.is_ok_and(|layout| {
            layout.full_segments(synced) >= chunk.first_segment() + SEGMENTS_PER_CHUNK
        })
    }

    /// Writes the columns of a chunk, out of memory or beside the raw chunk.
    fn stage(&self, chunk: DataChunk, left_raw: &BTreeSet<DataChunk>) -> Result<Staging, Error> {
        let Some(file) = self.file_of(chunk.file) else { return Ok(Staging::StaysRaw) };
        let held = {
            let volume = lock(&self.volume);
            let held = volume.held_chunk(chunk);
            if held.is_some() {
                // The volume is locked, so a spill or a deletion comes before or ends the switch.
                self.disk.begin_switch(chunk);
            }
            held
        };
        let staged = if let Some(segments) = held {
            let mut rows = Vec::with_capacity(CHUNK_BYTES);
            segments.iter().for_each(|bytes| rows.extend_from_slice(bytes));
            self.disk.stage_rows(&file.schema, chunk, &Bytes::from(rows))?
        } else if left_raw.contains(&chunk) {
            None
        } else if !self.is_synced(chunk) || !lock(&self.volume).state_chunk(chunk)? {
            // Recovery begins behind what the journal states, and never reads these columns then.
            return Ok(Staging::ComesAgain);
        } else {
            self.disk.stage(&file.schema, chunk)?
        };
        Ok(if staged.is_some() { Staging::Staged } else { Staging::StaysRaw })
    }

    /// Leaves a chunk without columns for now. A held chunk goes to the disk raw, and is due again
    /// when it is synced. Any other chunk is due for its upload.
    fn leave_raw(&self, chunk: DataChunk) {
        if !self.spill_held(&mut lock(&self.volume), chunk) {
            self.upload_later(chunk);
        }
    }

    /// Writes a whole chunk as a raw one when it is held. Returns whether it was.
    fn spill_held(&self, volume: &mut Volume<StoreDisk>, chunk: DataChunk) -> bool {
        let is_held = volume.held_chunk(chunk).is_some();
        if is_held {
            self.note(volume.spill_chunk(chunk));
        }
        is_held
    }

    /// Puts staged columns in the place of raw chunks, and of rows in memory. Returns whether the
    /// disk has taken all that it was given.
    fn switch_form(&self, staged: &[DataChunk]) -> bool {
        let adopted: Vec<_> = {
            let _volume = lock(&self.volume);
            staged.iter().map(|chunk| (*chunk, self.disk.adopt(*chunk))).collect()
        };
        let mut all = true;
        for (chunk, adopted) in adopted {
            // The first sync covers the names of all of them, and the others find nothing to do.
            let synced = match adopted {
                Ok(true) => self.disk.sync(&columnar_name(chunk)).map_err(Error::from),
                // The chunk was removed or written since, and keeps its form.
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let mut volume = lock(&self.volume);
            match synced.and_then(|()| self.disk.drop_raw(chunk)) {
                Ok(Some(bytes)) => {
                    self.encodings.encoded.fetch_add(1, Relaxed);
                    let sealed = volume.seal_chunk(chunk, bytes);
                    // A chunk that was held goes to the objects when its segments are released.
                    if !matches!(sealed, Ok(true)) {
                        volume.count_columnar(chunk, bytes);
                        self.upload_later(chunk);
                    }
                    self.note(sealed);
                }
                Ok(None) => {
                    self.spill_held(&mut volume, chunk);
                }
                Err(_) => {
                    drop(volume);
                    self.give_up_switch(chunk);
                    all = false;
                }
            }
        }
        all
    }

    fn give_up_switch(&self, chunk: DataChunk) {
        self.encodings.errors.fetch_add(1, Relaxed);
        // What is left is removed when the store is opened.
        let _ = self.disk.abandon(chunk);
        self.leave_raw(chunk);
    }

    /// The bytes that are uploaded for a chunk of this file: the columns from the disk, where they
    /// are, or encoded now.
    pub(crate) fn uploaded_form(
        &self,
        file: &StoreFile,
        kind: Kind,
        chunk: DataChunk,
        raw: &Bytes,
    ) -> Bytes {
        let codec = chunk_codec().filter(|_| kind == Kind::Data && self.has_columns());
        let Some(codec) = codec else { return raw.clone() };
        let there = self.disk.read_columns(chunk).ok().flatten();
        let is_whole = |bytes: &Bytes| codec.check(bytes, &columnar_name(chunk)).is_ok();
        if let Some(bytes) = there.filter(is_whole) {
            return bytes;
        }
        let encoded = codec.encode(&file.schema, chunk, raw, self.config.layouts);
        encoded.ok().flatten().unwrap_or_else(|| raw.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_that_lists_the_disk_is_not_idle() {
        let encodings = Encodings::default();
        let chunk = DataChunk { file: FileId(1), number: 0 };
        assert!(encodings.begin_list(), "chunks of an earlier life may be raw");
        assert!(!encodings.is_idle(), "the list is not there yet");
        assert!(encodings.push(chunk));
        encodings.end_list(true);
        assert!(!encodings.is_idle(), "a chunk waits");
        assert_eq!(encodings.take(&|| false), [chunk]);
        assert!(!encodings.is_idle(), "a chunk is under way");
        assert!(encodings.take(&|| true).is_empty());
        assert!(encodings.is_idle() && !encodings.begin_list());
    }
}
