//! Chunks and tails on their way into the object store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use evenfall_core::Objects as _;
use evenfall_store::cache::Interest;
use evenfall_store::layout::{
    SEGMENT_BYTES, SEGMENTS_PER_CHUNK, block_name, chunk_name, segment_place, tail_name,
};
use evenfall_store::metadata::{MetadataNode, NODES_PER_BLOCK, encode_block};
use evenfall_store::publication::{End, gather_chunk, publish, put_chunk};
use evenfall_store::{FileId, Kind, segment};

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
                for file in self.all_files() {
                    if !self.is_stopping() && self.publish_if_changed(&file).is_err() {
                        self.upload_failed();
                    }
                }
                if self.trim_all().is_err() {
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
        let mut published = lock(&file.published);
        if published.data_chunks > chunk || self.check_kept(&file).is_err() {
            return Ok(());
        }
        let mut segments = self.segments(&file, Interest::Passing);
        let bytes = gather_chunk(&mut segments, (Kind::Data, id, chunk))?;
        put_chunk(bucket, (Kind::Data, id, chunk), file.entry.token, bytes)?;
        if published.data_chunks == chunk {
            published.data_chunks += 1;
            self.uploads.is_uploaded(id, chunk);
        }
        Ok(())
    }

    pub(super) fn publish_if_changed(&self, file: &StoreFile) -> Result<(), StoreError> {
        let (records, token) = {
            let published = lock(&file.published);
            (published.records, published.token)
        };
        if token == file.entry.token && records == file.records() {
            return Ok(());
        }
        self.publish(file)
    }

    /// Tail, metadata block and, once in the life of a primary, the catalogue entry.
    pub(super) fn publish(&self, file: &StoreFile) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let before = lock(&file.published).token;
        let is_first = before != file.entry.token;
        {
            let mut published = lock(&file.published);
            self.check_kept(file)?;
            let end = End::of(&lock(&file.appender), file.first());
            let mut segments = self.segments(file, Interest::Passing);
            let chunks = published.data_chunks;
            *published = publish(bucket, &mut segments, &end, &published)?;
            (chunks..published.data_chunks).for_each(|c| self.uploads.is_uploaded(file.id, c));
        }
        let listed = self.put_block(file.entry.slot).and_then(|()| match is_first {
            true => archive::put_catalog(bucket, &file.name, &file.entry),
            false => Ok(()),
        });
        if listed.is_err() {
            // Nobody sees it yet: the next publication begins as if it were the first.
            lock(&file.published).token = 0;
        } else if is_first && before > 0 {
            // The tail of the life before: no metadata names it any more.
            bucket.delete(&tail_name(file.id, before))?;
        }
        listed
    }

    pub(super) fn put_block(&self, slot: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let block = slot / NODES_PER_BLOCK as u32;
        let first = block * NODES_PER_BLOCK as u32;
        // One writer at a time, so that an older block never follows a newer one.
        let _turn = lock(&self.block_turn);
        let mut nodes = vec![MetadataNode::default(); NODES_PER_BLOCK];
        for file in self.all_files() {
            let place = file.entry.slot.wrapping_sub(first) as usize;
            if let Some(node) = nodes.get_mut(place) {
                *node = *lock(&file.published);
            }
        }
        let node = self.config.node;
        let bytes = encode_block(node, block, &nodes);
        bucket.put(&block_name(node, block), bytes)?;
        Ok(())
    }

    /// A segment that is not on the disk any more.
    pub(super) fn fetch(
        &self,
        file: &StoreFile,
        kind: Kind,
        number: u32,
    ) -> evenfall_store::Result<bytes::Bytes> {
        let Some(bucket) = &self.bucket else {
            return Err(evenfall_store::Error::Damaged {
                place: format!("segment {number} of {}-{}", kind.letter(), file.id),
                what: "it is not on the disk, and no object store is configured".into(),
            });
        };
        let (chunk, offset) = segment_place(number);
        let name = chunk_name(kind, file.id, chunk);
        let bytes = bucket.get(&name, offset, SEGMENT_BYTES)?.unwrap_or_default();
        segment::expect(&bytes, kind, file.id, number)?;
        Ok(bytes)
    }
}
