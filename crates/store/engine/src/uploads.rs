//! Uploads chunks and tails into the object store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Objects as _, StorageError};
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{
    DataChunk, SEGMENT_BYTES, block_name, catalog_name, tail_name,
};
use evenfall_store_format::metadata::{MetadataNode, NODES_PER_BLOCK, decode_block, encode_block};
use evenfall_store_format::publication::{End, gather_chunk, publish, put_block, put_chunk};
use evenfall_store_format::{Error, FileId, Kind};

use super::archive;
use super::engine::{Shared, StoreFile};
use super::{Bucket, Names, StoreError, lock};

/// The setting of a directory that was begun while its bucket did not answer.
const UNSEEN: &str = "unseen objects";

/// Takes the names of the bucket's files into a directory that has none. Returns whether the bucket
/// has not answered, so that [`Shared::see_catalog`] has to ask it before the first publication.
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

/// Pause after a failed request.
const RETRY: Duration = Duration::from_millis(200);

/// Tails of an earlier life that are deleted besides its last tail. That life kept one tail for
/// readers, and another may come from a failed try.
const TAILS_BEFORE: u32 = 2;

/// Requests under way at once when many files are published. With eight requests, a publication
/// takes the time of a few. Each request may hold the bytes of a chunk and of a tail.
const AT_ONCE: usize = 8;

/// Calls `each` on every item from a few threads. The results are in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
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

#[derive(Default)]
struct Due {
    /// Chunks that are full and synced.
    chunks: VecDeque<(FileId, u32)>,
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
        lock(&self.due).chunks.len() as u64
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(super) fn wake(&self) {
        self.wake.notify_all();
    }

    /// The chunk is full and synced, and in columns if it will ever be.
    pub(super) fn is_due(&self, chunk: DataChunk) {
        lock(&self.due).chunks.push_back((chunk.file, chunk.number));
        self.wake.notify_one();
    }

    /// The chunk is an object, and may leave the disk when room is needed.
    pub(super) fn is_uploaded(&self, file: FileId, chunk: u32) {
        lock(&self.due).uploaded.push_back((file, chunk));
    }

    pub(super) fn pop_uploaded(&self) -> Option<(FileId, u32)> {
        lock(&self.due).uploaded.pop_front()
    }
}

/// Whether the objects have fewer records of the file than the store.
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
                    // The chunk goes to the end of the queue, so that a fenced file does not delay
                    // the others.
                    due.chunks.push_back((file, chunk));
                    drop(due);
                    self.upload_failed();
                }
            }
            if published_at.elapsed() > self.config.publish_every {
                let published = self.publish_changed(&self.our_files(), &|| !self.is_stopping());
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
        self.see_catalog()?;
        let mut segments = self.segments(&file, Interest::Passing);
        let bytes = gather_chunk(&mut segments, (Kind::Data, id, chunk))?;
        let form =
            |kind: Kind, of: DataChunk, raw: &Bytes| self.uploaded_form(&file, kind, of, raw);
        put_chunk(bucket, (Kind::Data, id, chunk), file.entry.token, &bytes, &form)?;
        if file.uploaded.load(Relaxed) == chunk {
            file.uploaded.store(chunk + 1, Relaxed);
            self.uploads.is_uploaded(id, chunk);
        }
        Ok(())
    }

    /// Publishes each of these files that has changed, block by block, as long as `goes_on` is
    /// true.
    pub(super) fn publish_changed(
        &self,
        files: &[Arc<StoreFile>],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
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

    /// The error of a stop that has not published these files.
    pub(super) fn expect_published(&self, files: &[Arc<StoreFile>]) -> Result<(), StoreError> {
        let behind = files.iter().filter(|file| is_changed(file)).count();
        if behind == 0 {
            return Ok(());
        }
        let name = "the objects".to_owned();
        let what = format!("they lack records of {behind} files, which the next opening publishes");
        Err(StorageError::Unavailable { name, what }.into())
    }

    pub(super) fn publish(&self, file: &StoreFile) -> Result<(), StoreError> {
        self.publish_block(file.entry.slot / NODES_PER_BLOCK as u32, &[file])
    }

    /// Publishes tails, then the block of metadata, and then, once in the life of a primary, the
    /// entries of the catalogue. A file that fails does not delay the others.
    fn publish_block(&self, block: u32, files: &[&StoreFile]) -> Result<(), StoreError> {
        self.see_catalog()?;
        self.check_objects(block, files)?;
        self.commit_first(files);
        let tails = in_parallel(files, |file| self.publish_tail(file));
        let mut done = Ok(());
        let mut ready = Vec::new();
        for (file, published) in files.iter().zip(tails) {
            match published {
                Ok(()) => ready.push(*file),
                Err(error) => done = done.and(Err(error)),
            }
        }
        if ready.is_empty() {
            return done;
        }
        if let Err(error) = self.put_block(block) {
            // No reader sees the publication yet, whatever the records state.
            ready.iter().for_each(|file| file.is_listed.store(false, Relaxed));
            return Err(error);
        }
        in_parallel(&ready, |file| self.drop_tails(file));
        let unlisted = |file: &&StoreFile| !file.is_listed.load(Relaxed);
        let unlisted: Vec<&StoreFile> = ready.into_iter().filter(unlisted).collect();
        done.and(self.list(block, &unlisted))
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
    fn check_objects(&self, block: u32, files: &[&StoreFile]) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        for file in files.iter().filter(|file| !file.is_listed.load(Relaxed)) {
            let name = block_name(file.token_before, block);
            if file.token_before == 0 || lock(&self.blocks_seen).contains(&name) {
                continue;
            }
            if bucket.get(&name, 0, 1)?.is_none() {
                return Err(archive::absent(&name, file.id).into());
            }
            lock(&self.blocks_seen).insert(name);
        }
        Ok(())
    }

    /// Makes sure that the journal has the records that are published next. While the disk is
    /// whole, a reopened store then needs nothing from the objects. A disk that refuses writes does
    /// not keep records from the objects, and the next life then asks the objects.
    fn commit_first(&self, files: &[&StoreFile]) {
        let behind = |file: &&&StoreFile| file.durable.load(Relaxed) < file.records();
        let tickets = files.iter().filter(behind).map(|file| self.queue(file, Vec::new(), true));
        if let Some(ticket) = tickets.max() {
            let _ = self.await_commit(ticket);
        }
    }

    fn publish_tail(&self, file: &StoreFile) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let mut published = lock(&file.published);
        self.check_kept(file)?;
        let end = End::of(&lock(&file.appender), file.first());
        let mut segments = self.segments(file, Interest::Passing);
        let chunks = file.uploaded.load(Relaxed);
        let done = MetadataNode { data_chunks: chunks, ..*published };
        let generation = {
            let mut tails = lock(&file.tails);
            tails.last += 1;
            tails.last
        };
        let form = |kind: Kind, of: DataChunk, raw: &Bytes| self.uploaded_form(file, kind, of, raw);
        *published = publish(bucket, &mut segments, &end, &done, generation, &form)?;
        file.uploaded.store(published.data_chunks, Relaxed);
        (chunks..published.data_chunks).for_each(|c| self.uploads.is_uploaded(file.id, c));
        Ok(())
    }

    /// Deletes the tails that no reader follows any more. A tail that cannot be deleted now is
    /// tried again with the next publication.
    fn drop_tails(&self, file: &StoreFile) {
        let Some(bucket) = &self.bucket else { return };
        let current = lock(&file.published).tail_generation;
        let mut tails = lock(&file.tails);
        if tails.current != current {
            (tails.kept, tails.current) = (tails.current, current);
        }
        while tails.gone + 1 < tails.kept {
            let name = tail_name(file.id, file.entry.token, tails.gone + 1);
            if bucket.delete(&name).is_err() {
                return;
            }
            tails.gone += 1;
        }
    }

    /// Puts files into the catalogue, and notes in the names that this life has published these
    /// files. Then removes the publications of the previous life, which nothing names any more.
    fn list(&self, block: u32, files: &[&StoreFile]) -> Result<(), StoreError> {
        if files.is_empty() {
            return Ok(());
        }
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let put =
            in_parallel(files, |file| archive::put_catalog(bucket, &file.name, &file.entry_now()));
        put.into_iter().collect::<Result<(), _>>()?;
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        self.names.list_published(&names)?;
        let is_later =
            |file: &&&StoreFile| file.token_before > 0 && file.token_before != file.entry.token;
        let later: Vec<&StoreFile> = files.iter().filter(is_later).copied().collect();
        let removed = in_parallel(&later, |file| {
            bucket.delete(&catalog_name(file.id, file.token_before))?;
            // The newest generation was read last. Older generations come from earlier tries and
            // publications.
            let newest = file.generation_before;
            (newest.saturating_sub(TAILS_BEFORE)..=newest).try_for_each(|generation| {
                bucket.delete(&tail_name(file.id, file.token_before, generation))
            })
        });
        removed.into_iter().collect::<Result<(), _>>()?;
        files.iter().for_each(|file| file.is_listed.store(true, Relaxed));
        let before: BTreeSet<u32> = later.iter().map(|file| file.token_before).collect();
        before.into_iter().try_for_each(|token| self.drop_block(block, token))
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
        // Writers take turns, so that an older block never follows a newer block.
        let mut blocks = lock(&self.blocks);
        let none = MetadataNode::default();
        let mut nodes = vec![none; NODES_PER_BLOCK];
        for file in self.our_files() {
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
        Ok(put_block(bucket, &name, blocks.entry(block).or_default(), &bytes)?)
    }
}
