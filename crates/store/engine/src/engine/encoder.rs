//! The thread that encodes whole chunks in columns.
//!
//! While the encoder keeps up, the rows of a chunk are in journals and in memory until the chunk is
//! whole. The encoder then writes its columns out of memory, and no raw chunk is ever made
//! ([`hold_segment`](evenfall_store_format::Volume::hold_segment)).
//!
//! When chunks come faster than the encoder takes them, memory fills, and the oldest held chunk of
//! a file goes to the disk raw. An encoder that took the oldest chunk first would then lose each
//! chunk while it encodes it. It takes the newest one as soon as a quarter of the room waits, and
//! no more at once than it encodes before half of the room fills again:
//!
//! ```text
//!  spilled next <── 4  5  6  7  8  9 ──> encoded next       9 is sealed, and 4 to 8 are raw
//! ```
//!
//! So the share of rows that are written once is that of the rows that the encoder has time for.
//! Raw chunks wait until no held chunk waits.
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
use evenfall_store_format::{Error, FileId, SegmentKind, Volume};

use super::{ChunkForm, Store, StoreEngine, StoreFile, TICK};
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
    /// Raw chunks.
    chunks: VecDeque<DataChunk>,
    held: HeldChunks,
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
        Self {
            chunks: VecDeque::new(),
            held: HeldChunks::default(),
            has_more: true,
            is_listing: false,
            under_way: 0,
        }
    }
}

impl Waiting {
    fn has_none(&self) -> bool {
        self.chunks.is_empty() && self.held.queue.is_empty()
    }
}

/// Whole chunks whose rows are held in memory, in the order in which they became whole.
#[derive(Debug, Default)]
struct HeldChunks {
    queue: VecDeque<DataChunk>,
    /// Chunks that memory has room for, whole or not.
    room: usize,
    /// Chunks that have come since chunks were last taken.
    came: usize,
}

impl HeldChunks {
    fn push(&mut self, chunk: DataChunk) {
        // A chunk that leaves the queue here is spilled when its journal has to go.
        if self.queue.len() >= WAITING_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back(chunk);
        self.came += 1;
    }

    /// Takes the chunks that are encoded next. Before them, `taken` chunks were encoded.
    fn take(&mut self, taken: usize) -> Vec<DataChunk> {
        let come_during_one = self.came.div_ceil(taken.max(1)).max(1);
        self.came = 0;
        let count = (self.room / 2 / come_during_one).clamp(1, AT_ONCE).min(self.queue.len());
        match self.queue.len() > self.room / 4 {
            true => self.queue.split_off(self.queue.len() - count).into(),
            false => self.queue.drain(..count).collect(),
        }
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
    /// The queue of a store whose volume has room for this many held chunks, and counts the bytes
    /// of their segments.
    pub(super) fn new(room: usize, held_bytes: Arc<AtomicU64>) -> Self {
        let held = HeldChunks { room, ..HeldChunks::default() };
        let waiting = Mutex::new(Waiting { held, ..Waiting::default() });
        Self { waiting, held_bytes, ..Self::default() }
    }

    /// Bytes of the segments that wait in memory for their chunk and its columns.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    /// Queues a whole chunk whose rows are held in memory.
    pub(super) fn push_held(&self, chunk: DataChunk) {
        lock(&self.waiting).held.push(chunk);
        self.wake.notify_one();
    }

    /// Takes the chunks out of the queue whose rows have left memory. Each is queued as a raw chunk
    /// when it is synced.
    fn forget_spilled(&self, is_held: &dyn Fn(DataChunk) -> bool) {
        lock(&self.waiting).held.queue.retain(|chunk| is_held(*chunk));
    }

    /// Queues a whole raw chunk that is synced. Returns `false` when the queue has no room for it.
    fn push(&self, chunk: DataChunk) -> bool {
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
        let waiting = lock(&self.waiting);
        (waiting.chunks.len() + waiting.held.queue.len()) as u64
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
        waiting.has_none() && !has_work
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
        let idle = |waiting: &mut Waiting| waiting.has_none() && !ends();
        let waited = self.wake.wait_timeout_while(waiting, IDLE, idle);
        let mut waiting = waited.unwrap_or_else(|e| e.into_inner()).0;
        let before = waiting.under_way;
        let mut taken = waiting.held.take(before);
        if taken.is_empty() {
            let count = waiting.chunks.len().min(AT_ONCE);
            taken.extend(waiting.chunks.drain(..count));
        }
        waiting.under_way = taken.len();
        taken
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

impl StoreEngine {
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
            {
                let volume = lock(&self.volume);
                self.encodings.forget_spilled(&|chunk| volume.holds_chunk(chunk));
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
        self.spill_before(staged);
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

    /// Writes the chunks that are held in front of these in their files as raw ones, because the
    /// rows of a file leave memory in order. Commits may come between two of them.
    fn spill_before(&self, staged: &[DataChunk]) {
        for chunk in staged {
            loop {
                let mut volume = lock(&self.volume);
                let oldest = volume.oldest_held(chunk.file).filter(|oldest| oldest < chunk);
                let Some(oldest) = oldest.filter(|oldest| !staged.contains(oldest)) else { break };
                self.note(volume.spill_chunk(oldest));
                drop(volume);
                std::thread::yield_now();
            }
        }
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
        kind: SegmentKind,
        chunk: DataChunk,
        raw: &Bytes,
    ) -> Bytes {
        let codec = chunk_codec().filter(|_| kind == SegmentKind::Data && self.has_columns());
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

    /// The share of the chunks of a file that are written once, when a chunk comes in each step and
    /// the encoder takes `cost` steps for one.
    fn share_sealed(cost: usize) -> f64 {
        const STEPS: u32 = 2_000;
        const ROOM: usize = 32;
        let encodings = Encodings::new(ROOM, Arc::default());
        let (mut held, mut sealed) = (VecDeque::new(), 0);
        let (mut batch, mut steps_left) = (Vec::new(), 0);
        for number in 0..STEPS {
            let chunk = DataChunk { file: FileId(1), number };
            // The next chunk begins to be held, and takes the room of the oldest.
            if held.len() + 1 == ROOM {
                held.pop_front();
            }
            held.push_back(chunk);
            encodings.push_held(chunk);
            if steps_left == 0 {
                for done in batch {
                    sealed += u32::from(held.contains(&done));
                    held.retain(|of| *of > done);
                }
                encodings.forget_spilled(&|chunk| held.contains(&chunk));
                batch = encodings.take(&|| true);
                steps_left = batch.len() * cost;
            }
            steps_left = steps_left.saturating_sub(1);
        }
        f64::from(sealed) / f64::from(STEPS)
    }

    #[test]
    fn an_encoder_that_is_behind_loses_no_chunk_that_it_encodes() {
        for cost in [1, 2, 3, 5, 10, 20] {
            let best = 1.0 / cost as f64;
            let share = share_sealed(cost);
            assert!(share > 0.95 * best, "{share} of {best}");
        }
    }

    #[test]
    fn held_chunks_are_encoded_before_raw_ones_and_the_oldest_first_while_few_wait() {
        let encodings = Encodings::new(16, Arc::default());
        let chunk = |number| DataChunk { file: FileId(1), number };
        assert!(encodings.push(chunk(0)));
        (1..=3).for_each(|number| encodings.push_held(chunk(number)));
        assert_eq!(encodings.waiting(), 4);
        assert_eq!(encodings.take(&|| true), [chunk(1), chunk(2)]);
        assert_eq!(encodings.take(&|| true), [chunk(3)]);
        (4..=9).for_each(|number| encodings.push_held(chunk(number)));
        assert_eq!(encodings.take(&|| true), [chunk(9)]);
        encodings.forget_spilled(&|chunk| chunk.number == 8);
        assert_eq!(encodings.take(&|| true), [chunk(8)]);
        assert_eq!(encodings.take(&|| true), [chunk(0)]);
    }
}
