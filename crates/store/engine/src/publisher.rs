//! Publishes the ends of files. Files share packs and blocks of metadata.
//!
//! ```text
//!  append at `object`, file a ──> waits ─┐
//!  append at `object`, file b ──> waits ─┼─> the first of them publishes all that wait:
//!  append at `object`, file a ──> waits ─┘    full chunks, one pack, one block for 127 files
//!
//!  upload thread, each period: the same for all files that have changed, in several groups
//! ```
//!
//! One group is published at a time. Appends that come meanwhile are in the next group, as commits
//! of one journal share a sync: the more appends wait, the fewer requests each of them costs.
//!
//! A pack goes when no block of metadata names it. A reader may have read a block before the block
//! was replaced, so packs that nothing names stay for a while. When more than [`LIVE_MAX`] packs
//! are named, the next period repeats the parts of the oldest ones in new packs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use evenfall_core::Objects as _;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::layout::{DataChunk, blocks_prefix, pack_name, packs_prefix};
use evenfall_store_format::metadata::{MetadataNode, NODES_PER_BLOCK};
use evenfall_store_format::pack::{PackPart, PackedEnd, PartDraft};
use evenfall_store_format::publication::{End, publish_chunks};
use evenfall_store_format::{FileId, SegmentKind};

use super::engine::{StoreEngine, StoreFile};
use super::uploads::in_parallel;
use super::{Entry, StoreError, lock};

/// Number of named packs beyond which the oldest ones are merged into new ones. A pack keeps the
/// bytes of all its parts, whether they are named or not.
const LIVE_MAX: usize = 64;
/// Limit of the packs that nothing names and that stay for readers of an earlier block. At twenty
/// groups a second, of which each leaves one such pack, a pack stays for three seconds.
const STALE_MAX: usize = 64;
/// Limit of the bytes of such packs. The packs that lost their last name with the last group do not
/// count.
const STALE_BYTES_MAX: u64 = 64 << 20;
/// Bytes after which a pack is put and the next one begins.
const PACK_BYTES_MAX: usize = 16 << 20;
/// Files of one group of a period. Appends at `object` wait for one such group at most.
const GROUP_FILES: usize = 4 * NODES_PER_BLOCK;
/// Parts that are made at once. A part has up to 8 MiB in the first publication of a life, and a
/// few segments later.
const DRAFTS_AT_ONCE: usize = 16;

/// The state of the publications of a life.
#[derive(Default)]
pub(super) struct PackPublisher {
    waiting: Mutex<WaitingFiles>,
    /// The packs of this life. The thread that publishes a group holds the lock.
    packs: Mutex<LivePacks>,
}

impl PackPublisher {
    /// The packs of this life, when no group is being published.
    pub(super) fn lock_packs(&self) -> MutexGuard<'_, LivePacks> {
        lock(&self.packs)
    }
}

/// The files for whose publication a thread waits.
#[derive(Default)]
struct WaitingFiles {
    /// Number of the group that they will be in.
    group: u64,
    files: BTreeSet<FileId>,
    /// Files whose last publication failed, with the group and the reason.
    failed: BTreeMap<FileId, (u64, StoreError)>,
}

impl WaitingFiles {
    /// The result of a group, or of a later one, for a file.
    fn outcome(&self, file: FileId, group: u64) -> Result<(), StoreError> {
        match self.failed.get(&file) {
            Some((failed, error)) if *failed >= group => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// A pack in the object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LivePack {
    /// Files of which a block may name a part in the pack.
    files: usize,
    bytes: u64,
}

/// The packs that this life has put.
#[derive(Debug, Default)]
pub(super) struct LivePacks {
    /// Number of the last try, whether or not it succeeded.
    last: u32,
    named: BTreeMap<u32, LivePack>,
    /// Packs that nothing names any more, in the order in which they lost their last name.
    stale: VecDeque<(u32, u64)>,
}

impl LivePacks {
    /// A number that no earlier try has. A put of an earlier try may still take effect.
    fn next_number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Whether a pack of an earlier try is named by no block, and was not named just before.
    pub(super) fn is_forgotten(&self, number: u32) -> bool {
        let is_stale = self.stale.iter().any(|(stale, _)| *stale == number);
        number <= self.last && !is_stale && !self.named.contains_key(&number)
    }

    fn add_pack(&mut self, number: u32, bytes: u64) {
        self.named.insert(number, LivePack { files: 0, bytes });
    }

    fn hold_pack(&mut self, number: u32) {
        self.named.entry(number).or_default().files += 1;
    }

    fn release_pack(&mut self, number: u32) {
        if let Some(pack) = self.named.get_mut(&number) {
            pack.files = pack.files.saturating_sub(1);
        }
    }

    /// The oldest packs, when there are too many.
    fn find_leaving(&self) -> BTreeSet<u32> {
        let surplus = match self.named.len() > LIVE_MAX {
            true => self.named.len() - LIVE_MAX / 2,
            false => 0,
        };
        self.named.keys().take(surplus).copied().collect()
    }

    /// The packs to delete after a group. Packs that have lost their last name since the last call
    /// are not among them.
    fn take_stale(&mut self) -> Vec<(u32, u64)> {
        let mut gone = Vec::new();
        let mut bytes: u64 = self.stale.iter().map(|(_, bytes)| bytes).sum();
        while self.stale.len() > STALE_MAX || bytes > STALE_BYTES_MAX {
            let Some(oldest) = self.stale.pop_front() else { break };
            bytes -= oldest.1;
            gone.push(oldest);
        }
        let unnamed = self.named.iter().filter(|(_, pack)| pack.files == 0);
        self.stale.extend(unnamed.map(|(number, pack)| (*number, pack.bytes)));
        self.named.retain(|_, pack| pack.files > 0);
        gone
    }
}

/// The parts of a file in packs.
#[derive(Debug, Default)]
pub(crate) struct PackedFile {
    end: PackedEnd,
    /// Packs that a block in the object store may name for this file. A block whose put has failed
    /// may be there.
    held: BTreeSet<u32>,
}

/// A pack before it is put.
#[derive(Default)]
struct OpenPack {
    parts: Vec<(Arc<StoreFile>, PartDraft)>,
    bytes: usize,
}

/// The outcome of a group.
#[derive(Default)]
struct PublishedGroup {
    /// Files whose part is in a pack.
    packed: Vec<Arc<StoreFile>>,
    failed: BTreeMap<FileId, StoreError>,
}

/// Whether the objects have fewer records of the file than the store.
pub(super) fn is_changed(file: &StoreFile) -> bool {
    !file.is_listed.load(Relaxed) || lock(&file.published).records != file.records()
}

/// The block with the metadata of the file.
pub(super) fn block_of(file: &StoreFile) -> u32 {
    file.entry.slot / NODES_PER_BLOCK as u32
}

impl StoreEngine {
    /// Publishes a file together with all files that wait for it.
    pub(super) fn publish(&self, file: &StoreFile) -> Result<(), StoreError> {
        if self.bucket.is_none() {
            return Err(StoreError::NoObjects);
        }
        let publisher = &self.publisher;
        let group = {
            let mut waiting = lock(&publisher.waiting);
            waiting.files.insert(file.id);
            waiting.group
        };
        let mut packs = lock(&publisher.packs);
        let ids = {
            let mut waiting = lock(&publisher.waiting);
            // Another thread has published the group while this one waited for the packs.
            if waiting.group > group {
                self.check_kept(file)?;
                return waiting.outcome(file.id, group);
            }
            waiting.group += 1;
            std::mem::take(&mut waiting.files)
        };
        let files: Vec<_> = ids.iter().filter_map(|id| self.file_of(*id)).collect();
        let mut failed = self.publish_group(&mut packs, &files);
        let mut waiting = lock(&publisher.waiting);
        for id in ids {
            match failed.remove(&id) {
                Some(error) => drop(waiting.failed.insert(id, (group, error))),
                None => drop(waiting.failed.remove(&id)),
            }
        }
        self.check_kept(file)?;
        waiting.outcome(file.id, group)
    }

    /// Returns when the object store has the record of this number, and all that were appended with
    /// it.
    pub(super) fn await_published(&self, file: &StoreFile, first: u64) -> Result<(), StoreError> {
        match self.is_published(file, first) {
            true => Ok(()),
            false => self.publish(file),
        }
    }

    /// Whether the object store has the record of this number, and all that were appended with it.
    /// An append takes all its records at once, and a publication takes all records so far.
    pub(super) fn is_published(&self, file: &StoreFile, first: u64) -> bool {
        // An append without records waits for those before it.
        let end = file.records().min(first + 1);
        file.is_listed.load(Relaxed) && file.shown.load(Relaxed) >= end
    }

    /// Publishes each of these files that has changed, and merges the oldest packs when there are
    /// many, as long as `goes_on` is true.
    pub(super) fn publish_changed(
        &self,
        files: &[Arc<StoreFile>],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        let leaving = lock(&self.publisher.packs).find_leaving();
        let is_leaving = |pack: u32| leaving.contains(&pack);
        let is_due =
            |file: &&Arc<StoreFile>| is_changed(file) || lock(&file.packed).end.is_in(&is_leaving);
        let settled = files.iter().filter(|file| file.is_settled());
        let mut due: Vec<_> = settled.filter(is_due).cloned().collect();
        // Files of one block are published together.
        due.sort_by_key(|file| file.entry.slot);
        let mut done = Ok(());
        for files in due.chunks(GROUP_FILES) {
            if !goes_on() {
                break;
            }
            let failed = self.publish_group(&mut lock(&self.publisher.packs), files);
            done = failed.into_values().next().map_or(done, Err);
        }
        done
    }

    /// Publishes chunks, then packs, then blocks of metadata, and then, once in the life of a
    /// primary, the entries of the catalogue. A file that fails does not delay the others. Returns
    /// the files that failed.
    fn publish_group(
        &self,
        packs: &mut LivePacks,
        files: &[Arc<StoreFile>],
    ) -> BTreeMap<FileId, StoreError> {
        let mut group = PublishedGroup::default();
        if let Err(error) = self.see_catalog() {
            return files.iter().map(|file| (file.id, error.clone())).collect();
        }
        self.commit_first(files);
        let leaving = packs.find_leaving();
        let mut pack = OpenPack::default();
        for files in files.chunks(DRAFTS_AT_ONCE) {
            let drafts = in_parallel(files, |file| self.draft_part(file, &leaving));
            for (file, draft) in files.iter().zip(drafts) {
                match draft {
                    Ok(draft) => {
                        pack.bytes += draft.bytes().len();
                        pack.parts.push((Arc::clone(file), draft));
                    }
                    Err(error) => drop(group.failed.insert(file.id, error)),
                }
            }
            if pack.bytes >= PACK_BYTES_MAX {
                self.put_pack(packs, std::mem::take(&mut pack), &mut group);
            }
        }
        self.put_pack(packs, pack, &mut group);
        self.put_blocks(packs, &mut group);
        self.drop_stale(packs);
        group.failed
    }

    /// Puts the full chunks of a file, and makes its next part.
    fn draft_part(
        &self,
        file: &StoreFile,
        leaving: &BTreeSet<u32>,
    ) -> Result<PartDraft, StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        file.check_settled()?;
        self.check_objects(file)?;
        self.check_kept(file)?;
        // The chunks are counted before the end is taken, so that the end is behind all of them.
        let uploaded = lock(&file.uploaded).first_missing;
        let done = MetadataNode { data_chunks: uploaded, ..*lock(&file.published) };
        let end = End::of(&lock(&file.appender), file.first());
        let mut segments = self.segments(file, Interest::Passing);
        let form =
            |kind: SegmentKind, of: DataChunk, raw: &Bytes| self.uploaded_form(file, kind, of, raw);
        let node = publish_chunks(bucket, &mut segments, &end, &done, &form)?;
        for chunk in uploaded..node.data_chunks {
            self.note_uploaded(file, chunk);
        }
        let packed = lock(&file.packed);
        Ok(packed
            .end
            .draft_part(&mut segments, &end, node, &|pack: u32| leaving.contains(&pack))?)
    }

    /// Makes sure that the journal has the records that are published next. While the disk is
    /// whole, a reopened store then needs nothing from the objects. A disk that refuses writes does
    /// not keep records from the objects, and the next life then asks the objects.
    fn commit_first(&self, files: &[Arc<StoreFile>]) {
        let behind = |file: &&Arc<StoreFile>| file.durable.load(Relaxed) < file.records();
        let tickets = files.iter().filter(behind).map(|file| self.queue(file, Vec::new(), true));
        if let Some(ticket) = tickets.max() {
            let _ = self.await_commit(ticket);
        }
    }

    fn put_pack(&self, packs: &mut LivePacks, pack: OpenPack, group: &mut PublishedGroup) {
        if pack.parts.is_empty() {
            return;
        }
        let mut bytes = BytesMut::with_capacity(pack.bytes);
        pack.parts.iter().for_each(|(_, draft)| bytes.extend_from_slice(draft.bytes()));
        let (mut number, mut offset) = (0, 0);
        // Files without new segments have a new node only.
        if !bytes.is_empty() {
            number = packs.next_number();
            let (name, len) = (pack_name(self.names.token(), number), bytes.len() as u64);
            let put = match &self.bucket {
                Some(bucket) => bucket.put(&name, bytes.freeze()).map_err(StoreError::from),
                None => Err(StoreError::NoObjects),
            };
            if let Err(error) = put {
                let failed = pack.parts.iter().map(|(file, _)| (file.id, error.clone()));
                group.failed.extend(failed);
                return;
            }
            packs.add_pack(number, len);
        }
        for (file, draft) in pack.parts {
            let place = PackPart { pack: number, offset, bytes: draft.bytes().len() as u32 };
            offset += place.bytes;
            let mut published = lock(&file.published);
            let mut packed = lock(&file.packed);
            *published = packed.end.accept_part(draft, place);
            for part in published.packed_parts() {
                if packed.held.insert(part.pack) {
                    packs.hold_pack(part.pack);
                }
            }
            drop((published, packed));
            group.packed.push(file);
        }
    }

    /// Puts the blocks that name the new parts. Readers see the publication from then on.
    fn put_blocks(&self, packs: &mut LivePacks, group: &mut PublishedGroup) {
        let mut blocks: BTreeMap<u32, Vec<Arc<StoreFile>>> = BTreeMap::new();
        for file in std::mem::take(&mut group.packed) {
            blocks.entry(block_of(&file)).or_default().push(file);
        }
        let blocks: Vec<_> = blocks.into_iter().collect();
        let put = in_parallel(&blocks, |(block, _)| self.put_block(*block));
        let mut shown = Vec::new();
        for ((_, files), put) in blocks.into_iter().zip(put) {
            if let Err(error) = put {
                for file in files {
                    // No reader may see the publication yet, whatever the records state.
                    file.is_listed.store(false, Relaxed);
                    group.failed.insert(file.id, error.clone());
                }
                continue;
            }
            files.iter().for_each(|file| note_named(file, packs));
            shown.extend(files);
        }
        let unlisted =
            |file: &&Arc<StoreFile>| !file.is_listed.load(Relaxed) && self.check_kept(file).is_ok();
        let unlisted: Vec<&StoreFile> = shown.iter().filter(unlisted).map(|file| &**file).collect();
        if let Err(error) = self.list(&unlisted) {
            let failed = unlisted.iter().map(|file| (file.id, error.clone()));
            group.failed.extend(failed);
        }
    }

    /// Deletes packs that no reader follows any more. A pack that cannot be deleted now is tried
    /// again after the next group.
    fn drop_stale(&self, packs: &mut LivePacks) {
        let Some(bucket) = &self.bucket else { return };
        let gone = packs.take_stale();
        let token = self.names.token();
        let dropped = in_parallel(&gone, |(number, _)| bucket.delete(&pack_name(token, *number)));
        for (pack, dropped) in gone.into_iter().zip(dropped).rev() {
            if dropped.is_err() {
                packs.stale.push_front(pack);
            }
        }
    }

    /// Waits for the group that is being published, and names no part of a deleted file any more.
    pub(super) fn release_packs(&self, file: &StoreFile) {
        let mut packs = lock(&self.publisher.packs);
        for pack in std::mem::take(&mut lock(&file.packed).held) {
            packs.release_pack(pack);
        }
    }

    /// All files that the names know, with those of other nodes of a cluster.
    pub(super) fn list_entries(&self) -> Result<Vec<(String, Entry)>, StoreError> {
        Ok(match self.names.member() {
            Some(member) => member.list()?,
            None => self.names.list()?,
        })
    }

    /// Removes the packs, the blocks and the catalogue of an earlier life once no file is published
    /// by that life any more.
    pub(super) fn drop_life(&self, token: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let is_behind =
            |file: &Arc<StoreFile>| file.token_before == token && !file.is_listed.load(Relaxed);
        if self.our_files().iter().any(is_behind) {
            return Ok(());
        }
        // Other nodes may have taken over other files of that life.
        if self.list_entries()?.iter().any(|(_, entry)| entry.listed == token && !entry.is_deleted)
        {
            return Ok(());
        }
        let packs = bucket.list(&packs_prefix(token))?;
        in_parallel(&packs, |pack| bucket.delete(pack)).into_iter().collect::<Result<(), _>>()?;
        for block in bucket.list(&blocks_prefix(token))? {
            bucket.delete(&block)?;
            self.names.local().keep_block(&block, None)?;
        }
        self.drop_catalog_of(token)
    }
}

/// Notes that the block in the object store names the published parts of this file, and no others.
fn note_named(file: &StoreFile, packs: &mut LivePacks) {
    let published = lock(&file.published);
    let mut packed = lock(&file.packed);
    let named: BTreeSet<u32> = published.packed_parts().map(|part| part.pack).collect();
    packed.held.difference(&named).for_each(|pack| packs.release_pack(*pack));
    packed.held = named;
    file.shown.store(published.records, Relaxed);
}

#[cfg(test)]
mod tests;
