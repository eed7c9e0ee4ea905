//! Chunks and tails on their way into the object store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use evenfall_core::Objects as _;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{
    SEGMENT_BYTES, SEGMENTS_PER_CHUNK, block_name, catalog_name, tail_name,
};
use evenfall_store_format::metadata::{MetadataNode, NODES_PER_BLOCK, decode_block, encode_block};
use evenfall_store_format::publication::{End, gather_chunk, publish, put_chunk};
use evenfall_store_format::{FileId, Kind};

use super::archive;
use super::engine::{Shared, StoreFile};
use super::{StoreError, lock};

/// Pause behind a request that failed.
const RETRY: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Due {
    /// Chunks that are full and synced.
    chunks: VecDeque<(FileId, u32)>,
    /// Chunks that are objects and still on the disk, oldest first.
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
        lock(&self.due).chunks.len() as u64
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(super) fn wake(&self) {
        self.wake.notify_all();
    }

    /// A segment is synced; the last of a chunk makes the chunk due.
    pub(super) fn synced(&self, file: FileId, number: u32) {
        if (number + 1).is_multiple_of(SEGMENTS_PER_CHUNK) {
            lock(&self.due).chunks.push_back((file, number / SEGMENTS_PER_CHUNK));
            self.wake.notify_one();
        }
    }

    /// The chunk is an object, and may leave the disk when room is needed.
    pub(super) fn is_uploaded(&self, file: FileId, chunk: u32) {
        lock(&self.due).uploaded.push_back((file, chunk));
    }

    pub(super) fn pop_uploaded(&self) -> Option<(FileId, u32)> {
        lock(&self.due).uploaded.pop_front()
    }
}

/// Whether the objects have less of the file than there is.
fn is_changed(file: &StoreFile) -> bool {
    !file.is_listed.load(Relaxed) || lock(&file.published).records != file.records()
}

impl Shared {
    pub(super) fn run_uploads(&self) {
        let mut published_at = Instant::now();
        while !self.is_stopping() {
            let next = {
                let due = lock(&self.uploads.due);
                let wait = |due: &mut Due| due.chunks.is_empty() && !self.is_stopping();
                let waited = self.uploads.wake.wait_timeout_while(due, RETRY, wait);
                waited.unwrap_or_else(|e| e.into_inner()).0.chunks.front().copied()
            };
            if self.names.check_lease().is_err() {
                std::thread::sleep(RETRY);
                continue;
            }
            if let Some((file, chunk)) = next {
                let done = self.upload(file, chunk);
                let mut due = lock(&self.uploads.due);
                due.chunks.pop_front();
                if done.is_err() {
                    // Behind the others, so that a file that is fenced holds up nobody.
                    due.chunks.push_back((file, chunk));
                    drop(due);
                    self.upload_failed();
                }
            }
            if published_at.elapsed() > self.config.publish_every {
                let published = self.publish_changed(&|| !self.is_stopping());
                if published.and_then(|()| self.trim_all()).is_err() {
                    self.upload_failed();
                }
                published_at = Instant::now();
            }
        }
    }

    fn upload_failed(&self) {
        self.uploads.errors.fetch_add(1, Relaxed);
        std::thread::sleep(RETRY);
    }

    fn upload(&self, id: FileId, chunk: u32) -> Result<(), StoreError> {
        let Some(file) = self.file_of(id) else { return Ok(()) };
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let _published = lock(&file.published);
        let is_ours = file.check_ours().is_ok() && self.check_kept(&file).is_ok();
        if file.uploaded.load(Relaxed) > chunk || !is_ours {
            return Ok(());
        }
        let mut segments = self.segments(&file, Interest::Passing);
        let bytes = gather_chunk(&mut segments, (Kind::Data, id, chunk))?;
        put_chunk(bucket, (Kind::Data, id, chunk), file.entry.token, bytes)?;
        if file.uploaded.load(Relaxed) == chunk {
            file.uploaded.store(chunk + 1, Relaxed);
            self.uploads.is_uploaded(id, chunk);
        }
        Ok(())
    }

    /// Publishes every file that has changed, block by block, while it may go on.
    pub(super) fn publish_changed(&self, goes_on: &dyn Fn() -> bool) -> Result<(), StoreError> {
        let files = self.our_files();
        let mut blocks: BTreeMap<u32, Vec<&StoreFile>> = BTreeMap::new();
        for file in files.iter().filter(|file| is_changed(file)) {
            blocks.entry(file.entry.slot / NODES_PER_BLOCK as u32).or_default().push(file);
        }
        let mut done = Ok(());
        for (block, files) in blocks {
            if !goes_on() {
                break;
            }
            done = done.and(self.publish_block(block, &files));
        }
        done
    }

    /// Publishes one file.
    pub(super) fn publish(&self, file: &StoreFile) -> Result<(), StoreError> {
        self.publish_block(file.entry.slot / NODES_PER_BLOCK as u32, &[file])
    }

    /// Tails, then the block of metadata, then, once in the life of a primary, the entries of the
    /// catalogue. A file that fails keeps back none of the others.
    fn publish_block(&self, block: u32, files: &[&StoreFile]) -> Result<(), StoreError> {
        let mut done = Ok(());
        let mut ready = Vec::new();
        for file in files {
            match self.publish_tail(file) {
                Ok(()) => ready.push(*file),
                Err(error) => done = done.and(Err(error)),
            }
        }
        if ready.is_empty() {
            return done;
        }
        if let Err(error) = self.put_block(block) {
            // Nobody sees it yet, whatever the records say.
            ready.iter().for_each(|file| file.is_listed.store(false, Relaxed));
            return Err(error);
        }
        let unlisted = |file: &&StoreFile| !file.is_listed.load(Relaxed);
        let unlisted: Vec<&StoreFile> = ready.into_iter().filter(unlisted).collect();
        done.and(self.list(block, &unlisted))
    }

    fn publish_tail(&self, file: &StoreFile) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let mut published = lock(&file.published);
        self.check_kept(file)?;
        let end = End::of(&lock(&file.appender), file.first());
        let mut segments = self.segments(file, Interest::Passing);
        let chunks = file.uploaded.load(Relaxed);
        let done = MetadataNode { data_chunks: chunks, ..*published };
        *published = publish(bucket, &mut segments, &end, &done)?;
        file.uploaded.store(published.data_chunks, Relaxed);
        (chunks..published.data_chunks).for_each(|c| self.uploads.is_uploaded(file.id, c));
        Ok(())
    }

    /// Puts files into the catalogue, tells the names that this life has published them, and
    /// removes what the life before had published, which nothing names any more.
    fn list(&self, block: u32, files: &[&StoreFile]) -> Result<(), StoreError> {
        if files.is_empty() {
            return Ok(());
        }
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        for file in files {
            archive::put_catalog(bucket, &file.name, &file.entry_now())?;
        }
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        self.names.list_published(&names)?;
        let mut before = BTreeSet::new();
        for file in files {
            let token = file.token_before;
            if token > 0 && token != file.entry.token {
                bucket.delete(&catalog_name(file.id, token))?;
                bucket.delete(&tail_name(file.id, token))?;
                before.insert(token);
            }
            file.is_listed.store(true, Relaxed);
        }
        before.into_iter().try_for_each(|token| self.drop_block(block, token))
    }

    /// Removes a block of an earlier life once each of its files is published by this one.
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
        }
        Ok(())
    }

    pub(super) fn put_block(&self, block: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let first = block * NODES_PER_BLOCK as u32;
        // One writer at a time, so that an older block never follows a newer one.
        let _turn = lock(&self.block_turn);
        let none = MetadataNode::default();
        let mut nodes = vec![none; NODES_PER_BLOCK];
        for file in self.our_files() {
            let place = file.entry.slot.wrapping_sub(first) as usize;
            if let Some(node) = nodes.get_mut(place) {
                *node = *lock(&file.published);
            }
        }
        // All files of a store have the token of its life, and the block is named by it.
        let token = self.names.token();
        nodes.iter_mut().filter(|node| node.token != token).for_each(|node| *node = none);
        let bytes = encode_block(self.names.node(), block, &nodes);
        bucket.put(&block_name(token, block), bytes)?;
        Ok(())
    }
}
