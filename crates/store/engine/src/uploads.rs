//! Uploads chunks into the object store, the oldest first, and names what is published there: in
//! blocks of metadata and in the catalogue. `publisher` puts the ends of files.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Objects as _, StorageError};
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, block_name, tail_name,
};
use evenfall_store_format::metadata::{MetadataNode, NODES_PER_BLOCK, decode_block, encode_block};
use evenfall_store_format::publication::{gather_chunk, put_block, put_chunk};
use evenfall_store_format::{Error, FileId, SegmentKind};

use super::archive;
use super::engine::{StoreEngine, StoreFile};
use super::publisher::{block_of, is_changed};
use super::{Bucket, Names, StoreError, lock};

/// The setting of a directory that was begun while its bucket did not answer.
const UNSEEN: &str = "unseen objects";

/// Takes the names of the bucket's files into a directory that has none. Returns whether the bucket
/// has not answered, so that [`StoreEngine::see_catalog`] has to ask it before the first
/// publication.
pub(super) fn restore_names(
    names: &Names,
    bucket: &Bucket,
    is_reading: bool,
) -> Result<bool, StoreError> {
    if names.is_empty()? {
        match archive::catalog(bucket) {
            Ok(known) if known.is_empty() => {}
            Ok(known) => names.restore(&known)?,
            Err(StoreError::Store(Error::Storage(StorageError::Unavailable { .. })))
                if !is_reading && names.member().is_none() =>
            {
                names.local().set(UNSEEN, "yes")?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(names.local().setting(UNSEEN)?.is_some_and(|unseen| unseen == "yes"))
}

/// How often the bucket is listed for objects that nothing names.
const ORPHANS_EVERY: Duration = Duration::from_secs(3_600);

/// Pause after a failed request.
const RETRY: Duration = Duration::from_millis(200);

/// Tails of an earlier version that are deleted besides its last tail. That version kept one tail
/// for readers, and another may come from a failed try.
const TAILS_BEFORE: u32 = 2;

/// Requests under way at once, for uploads and for publications of many files. Each upload holds
/// the bytes of a chunk. At 100 ms for a request, eight uploads at once move 300 MB/s.
const AT_ONCE: usize = 8;

/// Calls `each` on every item from a few threads. The results are in the order of the items.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < 2 {
        return items.iter().map(each).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let at = next.fetch_add(1, Relaxed)
            && let Some(item) = items.get(at)
        {
            done.push((at, each(item)));
        }
        done
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE.min(items.len())).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.flat_map(|done| done.expect("a thread that only publishes")).collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Chunks of a file that are objects.
#[derive(Debug, Default)]
pub(crate) struct UploadedChunks {
    /// All chunks before this one are objects. Some may be in no publication yet.
    pub(crate) first_missing: u32,
    /// Chunks behind it that are objects too, because several are uploaded at once.
    ahead: BTreeSet<u32>,
}

impl UploadedChunks {
    /// A file of which the chunks before this one are objects.
    pub(crate) fn new(first_missing: u32) -> Self {
        Self { first_missing, ahead: BTreeSet::new() }
    }

    fn has_chunk(&self, chunk: u32) -> bool {
        chunk < self.first_missing || self.ahead.contains(&chunk)
    }

    /// Adds a chunk. Returns the chunks that have no missing chunk before them from now on.
    fn add_chunk(&mut self, chunk: u32) -> std::ops::Range<u32> {
        let before = self.first_missing;
        if chunk >= before {
            self.ahead.insert(chunk);
        }
        while self.ahead.remove(&self.first_missing) {
            self.first_missing += 1;
        }
        before..self.first_missing
    }
}

/// The pace of uploads under a limit of bytes per second. Times are since the upload thread began.
#[derive(Debug)]
struct UploadPace {
    bytes_per_s: Option<u64>,
    /// When the bytes so far are within the limit.
    free_at: Duration,
}

impl UploadPace {
    fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, free_at: Duration::ZERO }
    }

    /// How long the next upload has to wait.
    fn wait(&self, now: Duration) -> Duration {
        self.free_at.saturating_sub(now)
    }

    /// Uploads that may begin at once: what the limit lets through in a second, and at least one.
    fn at_once(&self) -> usize {
        let Some(limit) = self.bytes_per_s else { return AT_ONCE };
        usize::try_from(limit / CHUNK_BYTES as u64).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
    }

    fn count_bytes(&mut self, now: Duration, bytes: u64) {
        let Some(limit) = self.bytes_per_s else { return };
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(limit.max(1));
        let takes = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(now).saturating_add(takes);
    }
}

#[derive(Default)]
struct Due {
    /// Chunks that are full and synced, the oldest first.
    chunks: VecDeque<DataChunk>,
    /// Chunks that are being uploaded.
    under_way: usize,
    /// Chunks that are objects and still on the disk, the oldest first.
    uploaded: VecDeque<(FileId, u32)>,
}

/// The queue of the upload thread.
#[derive(Default)]
pub(super) struct Uploads {
    due: Mutex<Due>,
    wake: Condvar,
    errors: AtomicU64,
}

impl Uploads {
    pub(super) fn waiting(&self) -> u64 {
        let due = lock(&self.due);
        (due.chunks.len() + due.under_way) as u64
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(super) fn wake(&self) {
        self.wake.notify_all();
    }

    /// The chunk is full and synced, and in columns if it will ever be.
    pub(super) fn is_due(&self, chunk: DataChunk) {
        lock(&self.due).chunks.push_back(chunk);
        self.wake.notify_one();
    }

    /// The chunk is an object, and may leave the disk when room is needed.
    pub(super) fn is_uploaded(&self, file: FileId, chunk: u32) {
        lock(&self.due).uploaded.push_back((file, chunk));
    }

    pub(super) fn pop_uploaded(&self) -> Option<(FileId, u32)> {
        lock(&self.due).uploaded.pop_front()
    }

    /// Waits for chunks for a while, and takes the oldest of them.
    fn take_due(&self, count: usize, is_stopping: &dyn Fn() -> bool) -> Vec<DataChunk> {
        let wait = |due: &mut Due| due.chunks.is_empty() && !is_stopping();
        let waited = self.wake.wait_timeout_while(lock(&self.due), RETRY, wait);
        let mut due = waited.unwrap_or_else(PoisonError::into_inner).0;
        due.under_way = count.min(due.chunks.len());
        let taken = due.under_way;
        due.chunks.drain(..taken).collect()
    }

    /// Ends the uploads that were taken. A chunk that failed goes to the end of the queue, so that
    /// a fenced file does not delay the others. Returns how many have failed.
    fn end_uploads(&self, failed: Vec<DataChunk>) -> u64 {
        let count = failed.len() as u64;
        let mut due = lock(&self.due);
        due.under_way = 0;
        due.chunks.extend(failed);
        count
    }
}

impl StoreEngine {
    pub(super) fn run_uploads(&self) {
        let begun = Instant::now();
        let (mut published_at, mut orphans_at) = (begun, begun);
        let mut pace = UploadPace::new(self.config.upload_bytes_per_s);
        while !self.is_stopping() {
            if self.names.check_lease().is_err() {
                std::thread::sleep(RETRY);
                continue;
            }
            let wait = pace.wait(begun.elapsed());
            if wait.is_zero() {
                self.upload_due(&mut pace, begun);
            } else {
                std::thread::sleep(wait.min(RETRY));
            }
            if published_at.elapsed() > self.config.publish_every {
                let mut files = self.our_files();
                // With a limit, the ends of files do not overtake their chunks.
                if self.config.upload_bytes_per_s.is_some() {
                    files.retain(|file| !lacks_chunks(file));
                }
                let published = self.publish_changed(&files, &|| !self.is_stopping());
                if published.and_then(|()| self.trim_all()).is_err() {
                    self.uploads_failed(1);
                }
                published_at = Instant::now();
            }
            if orphans_at.elapsed() > ORPHANS_EVERY {
                if self.remove_orphans().is_err() {
                    self.uploads_failed(1);
                }
                orphans_at = Instant::now();
            }
        }
    }

    /// Uploads the chunks that are due, several at once.
    fn upload_due(&self, pace: &mut UploadPace, begun: Instant) {
        let taken = self.uploads.take_due(pace.at_once(), &|| self.is_stopping());
        let done = in_parallel(&taken, |chunk| self.upload(*chunk));
        let mut failed = Vec::new();
        for (chunk, done) in taken.into_iter().zip(done) {
            match done {
                Ok(bytes) => pace.count_bytes(begun.elapsed(), bytes),
                Err(_) => failed.push(chunk),
            }
        }
        let count = self.uploads.end_uploads(failed);
        if count > 0 {
            self.uploads_failed(count);
        }
    }

    fn uploads_failed(&self, count: u64) {
        self.uploads.errors.fetch_add(count, Relaxed);
        std::thread::sleep(RETRY);
    }

    /// Uploads a chunk. Returns its bytes.
    fn upload(&self, chunk: DataChunk) -> Result<u64, StoreError> {
        let (id, number) = (chunk.file, chunk.number);
        let Some(file) = self.file_of(id) else { return Ok(0) };
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        // A deletion waits until the lock is given back.
        let _uploading = file.uploading.read().unwrap_or_else(PoisonError::into_inner);
        let is_ours = file.check_ours().is_ok() && self.check_kept(&file).is_ok();
        if lock(&file.uploaded).has_chunk(number) || !is_ours || !file.is_settled() {
            return Ok(0);
        }
        self.see_catalog()?;
        let mut segments = self.segments(&file, Interest::Passing);
        let raw = gather_chunk(&mut segments, (SegmentKind::Data, id, number))?;
        let stored = AtomicU64::new(0);
        let form = |kind: SegmentKind, of: DataChunk, raw: &Bytes| {
            let bytes = self.uploaded_form(&file, kind, of, raw);
            stored.store(bytes.len() as u64, Relaxed);
            bytes
        };
        put_chunk(bucket, (SegmentKind::Data, id, number), file.entry.token, &raw, &form)?;
        self.note_uploaded(&file, number);
        Ok(stored.load(Relaxed))
    }

    /// Notes that a chunk is an object.
    pub(super) fn note_uploaded(&self, file: &StoreFile, chunk: u32) {
        let uploaded = lock(&file.uploaded).add_chunk(chunk);
        uploaded.for_each(|chunk| self.uploads.is_uploaded(file.id, chunk));
    }

    /// The error of a stop that has not published these files.
    pub(super) fn expect_published(&self, files: &[Arc<StoreFile>]) -> Result<(), StoreError> {
        // The opening has named files that wait for the objects.
        let behind = |file: &&Arc<StoreFile>| is_changed(file) && file.is_settled();
        let behind = files.iter().filter(behind).count();
        if behind == 0 {
            return Ok(());
        }
        let name = "the objects".to_owned();
        let what = format!("they lack records of {behind} files, which the next opening publishes");
        Err(StorageError::Unavailable { name, what }.into())
    }

    /// A directory that was begun while its bucket did not answer knows no files of the bucket. It
    /// must not publish over them: its own files have the same numbers.
    pub(super) fn see_catalog(&self) -> Result<(), StoreError> {
        if !self.is_catalog_unseen.load(Relaxed) {
            return Ok(());
        }
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        if let Some((name, _)) = archive::catalog(bucket)?.first() {
            let what = format!(
                "another directory has published there ({name:?}), which this directory did not \
                 see when it was begun: its records stay on this disk"
            );
            return Err(StorageError::Failed { name: "the objects".into(), what }.into());
        }
        self.names.local().set(UNSEEN, "no")?;
        self.is_catalog_unseen.store(false, Relaxed);
        Ok(())
    }

    /// A store that was opened without its objects must have them by now, or report that they are
    /// lost. New objects of this life are useless without the chunks of earlier lives.
    pub(super) fn check_objects(&self, file: &StoreFile) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let name = block_name(file.token_before, block_of(file));
        let is_new = file.token_before == 0 || file.is_listed.load(Relaxed);
        if is_new || lock(&self.blocks_seen).contains(&name) {
            return Ok(());
        }
        if bucket.get(&name, 0, 1)?.is_none() {
            return Err(archive::absent(&name, file.id).into());
        }
        lock(&self.blocks_seen).insert(name);
        Ok(())
    }

    /// Puts files into the catalogue, and notes in the names that this life has published these
    /// files. Then removes the publications of the previous life, which nothing names any more.
    pub(super) fn list(&self, files: &[&StoreFile]) -> Result<(), StoreError> {
        if files.is_empty() {
            return Ok(());
        }
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        self.enter_catalog(files)?;
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        self.names.list_published(&names)?;
        let is_later =
            |file: &&&StoreFile| file.token_before > 0 && file.token_before != file.entry.token;
        let later: Vec<&StoreFile> = files.iter().filter(is_later).copied().collect();
        let removed = in_parallel(&later, |file| {
            // The newest generation was read last. Older generations come from earlier tries and
            // publications.
            let Some(newest) = file.tail_before else { return Ok(()) };
            (newest.saturating_sub(TAILS_BEFORE)..=newest).try_for_each(|generation| {
                bucket.delete(&tail_name(file.id, file.token_before, generation))
            })
        });
        removed.into_iter().collect::<Result<(), _>>()?;
        files.iter().for_each(|file| file.is_listed.store(true, Relaxed));
        let blocks: BTreeSet<(u32, u32)> =
            later.iter().map(|file| (file.token_before, block_of(file))).collect();
        blocks.iter().try_for_each(|(token, block)| self.drop_block(*block, *token))?;
        let before: BTreeSet<u32> = blocks.into_iter().map(|(token, _)| token).collect();
        before.into_iter().try_for_each(|token| self.drop_life(token))
    }

    /// Removes a block of an earlier life once this life has published each of its files.
    fn drop_block(&self, block: u32, token: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let name = block_name(token, block);
        let Some(bytes) = bucket.get(&name, 0, SEGMENT_BYTES)? else { return Ok(()) };
        let nodes = decode_block(&bytes, &name)?;
        let is_past = |node: &MetadataNode| {
            let file = self.file_of(node.file);
            node.token == 0 || file.is_some_and(|file| file.is_listed.load(Relaxed))
        };
        if nodes.iter().all(is_past) {
            bucket.delete(&name)?;
            self.names.local().keep_block(&name, None)?;
        }
        Ok(())
    }

    pub(super) fn put_block(&self, block: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let first = block * NODES_PER_BLOCK as u32;
        let last = Arc::clone(lock(&self.blocks).entry(block).or_default());
        // Writers of a block take turns, so that an older block never follows a newer one.
        let mut last = lock(&last);
        let none = MetadataNode::default();
        let mut nodes = vec![none; NODES_PER_BLOCK];
        for file in self.files_of_block(block) {
            let place = file.entry.slot.wrapping_sub(first) as usize;
            if let Some(node) = nodes.get_mut(place) {
                *node = *lock(&file.published);
            }
        }
        // All files of a store carry the token of its life, and the token is in the name of the
        // block.
        let token = self.names.token();
        nodes.iter_mut().filter(|node| node.token != token).for_each(|node| *node = none);
        let bytes = encode_block(self.names.node(), block, &nodes);
        let name = block_name(token, block);
        // The block is kept before it is put. A later life then finds here at least as much as the
        // objects have, and knows without them whether its disk has everything.
        self.names.local().keep_block(&name, Some(&bytes))?;
        Ok(put_block(bucket, &name, &mut last, &bytes)?)
    }
}

/// Whether a chunk of the file is full, kept by retention, and no object yet.
fn lacks_chunks(file: &StoreFile) -> bool {
    let (layout, records) = (file.layout(), file.records());
    let chunk_of = |record| layout.full_segments(record) / SEGMENTS_PER_CHUNK;
    lock(&file.uploaded).first_missing.max(chunk_of(file.first())) < chunk_of(records)
}

#[cfg(test)]
mod tests;
