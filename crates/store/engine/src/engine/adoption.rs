//! How a store that is opened gets its files: from its disk, or from objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use evenfall_core::{Disk as _, StorageError};
use evenfall_store_format::cache::{Cache, Interest};
use evenfall_store_format::journal::{FRAME_BYTES, JournalBatch, Origin};
use evenfall_store_format::layout::{SEGMENT_BYTES, parse_chunk_name};
use evenfall_store_format::metadata::MetadataNode;
use evenfall_store_format::publication::mend_lost;
use evenfall_store_format::reader::resume;
use evenfall_store_format::volume::{DiskLoss, Recovered, RecoveredFile, read_segment};
use evenfall_store_format::{
    Appender, Error, FileEndSnapshot, Resumption, Schema, SealedSegment, SegmentKind,
    SnapshotReader, TailRecords,
};

use super::disposal::is_disk_full;
use super::settlement::{Awaited, Need, is_away};
use super::{FLUSH_SEGMENTS, StoreEngine, StoreFile, TakenOver, origin};
use crate::names::Claimed;
use crate::{Entry, StoreError, archive, lock};

/// Blocks of metadata that are read at once, when a store has no account of them on its disk.
const BLOCKS_AT_ONCE: usize = 16;

/// Limit of the bytes of frames for each byte of a tail. With records of eight bytes of which every
/// other one is lost, each record has a frame of 40 bytes.
const LOST_FRAMES: usize = 10;

/// A file that is ready to be installed, once its segments are synced.
pub(super) struct Adopted {
    file: StoreFile,
    /// For a file that comes from objects, the records with which its journal has to begin.
    tail: Option<TailRecords>,
}

impl StoreEngine {
    /// Takes every file of this node, from the disk or from the objects.
    pub(super) fn adopt_all(&self, found: &mut Recovered) -> Result<(), StoreError> {
        self.recall_lost(found)?;
        let read = |(name, entry)| Claimed { name, entry, was_ours: true };
        let take_over = self.config.cluster.as_ref().is_some_and(|cluster| cluster.take_over);
        // Entries that this directory had before the claim, which states the present entries.
        let before: BTreeMap<String, Entry> = self.names.list()?.into_iter().collect();
        let claimed = match self.is_reading {
            true => self.names.list()?.into_iter().map(read).collect(),
            false => {
                self.names.claim(take_over || self.config.keep_copies, true, &BTreeSet::new())?
            }
        };
        let records = |entry: &Entry| found.files.get(&entry.id).map_or(0, |file| file.records);
        let entries = claimed.iter().map(|one: &Claimed| &one.entry);
        let is_known = |entry: &&Entry| self.kept_node(entry, records(entry)).is_some();
        self.read_blocks(entries.filter(|entry| !is_known(entry)));
        let mut adopted = Vec::new();
        for one in claimed {
            let recovered = found.files.remove(&one.entry.id);
            if one.entry.is_deleted {
                self.bury(&one.name, &one.entry);
                continue;
            }
            // No node has published since this directory did, so its records continue from there.
            let held = before.get(&one.name).filter(|held| held.id == one.entry.id);
            let is_newest = held.is_some_and(|held| one.entry.listed <= held.token);
            // A copy is a beginning of the file, unless another node continued with fewer records.
            let is_copy = held.and_then(|held| held.copies);
            let is_whole = is_copy.is_some_and(|of| !one.entry.has_forked_since(of));
            let is_current = one.was_ours || is_newest || is_whole;
            let old_token = held.filter(|_| !is_current).map(|held| held.token);
            adopted.push(self.adopt(one, recovered, old_token, &mut found.losses)?);
            self.install_many(&mut adopted)?;
        }
        self.install_all(adopted)?;
        self.keep_unsettled()?;
        lock(&self.blocks_before).clear();
        self.adopt_copies(&before, found)?;
        self.put_strays_aside(&before, found)?;
        for (file, lost) in &found.files {
            let what = format!("{} records of a file without a name", lost.records);
            found.losses.push(DiskLoss { place: format!("file {file}"), what, is_torn_end: false });
            // The name of the file may come back.
            lock(&self.strays).insert(*file, lost.tail.clone());
        }
        // Without objects nothing is uploaded, and a listing of many thousand files takes a while.
        let listed = if self.bucket.is_some() { self.disk.list()? } else { Vec::new() };
        for (name, _) in listed {
            let Some((SegmentKind::Data, id, chunk)) = parse_chunk_name(&name) else { continue };
            let Some(file) = self.file_of(id) else { continue };
            if chunk < lock(&file.published).data_chunks {
                self.uploads.is_uploaded(id, chunk);
            }
        }
        Ok(())
    }

    /// Adopts copies of files whose primary was and still is another node.
    fn adopt_copies(
        &self,
        before: &BTreeMap<String, Entry>,
        found: &mut Recovered,
    ) -> Result<(), StoreError> {
        let mut adopted = Vec::new();
        for (name, held) in before {
            if held.copies.is_none() || self.file_of(held.id).is_some() {
                continue;
            }
            let recovered = found.files.remove(&held.id);
            // The segments of the copy carry the token of this life, as all segments of this disk
            // do.
            let entry = Entry { token: self.names.token(), ..held.clone() };
            let schema = Arc::new(entry.schema.clone());
            let appender = self.adopt_local(name, &entry, &schema, recovered)?;
            let file = StoreFile::new(name, entry, schema, appender, None);
            adopted.push(Adopted { file, tail: None });
        }
        self.install_all(adopted)
    }

    /// Sets aside files of this disk whose primary is now another node.
    fn put_strays_aside(
        &self,
        before: &BTreeMap<String, Entry>,
        found: &mut Recovered,
    ) -> Result<(), StoreError> {
        let Some(member) = self.names.member() else { return Ok(()) };
        for (name, held) in before {
            let Some(old) = found.files.get(&held.id) else { continue };
            let Some(entry) = member.find(name)? else { continue };
            if entry.id == held.id {
                self.put_aside(name, &entry, old, held.token, &mut found.losses)?;
                found.files.remove(&held.id);
            }
        }
        Ok(())
    }

    /// While the store runs, takes over the files whose primary has no lease any more. A file that
    /// fails does not delay the others, and the next call tries it again.
    pub(super) fn adopt_orphans(&self) -> Result<TakenOver, StoreError> {
        let _turn = lock(&self.adoption_turn);
        // The open files are listed before the names are asked, so that a file deleted meanwhile is
        // still in the list.
        let open = self.files.read().unwrap_or_else(|e| e.into_inner()).keys().copied().collect();
        let mut taken = TakenOver::default();
        let mut adopted = Vec::new();
        for one in self.names.claim(true, false, &open)? {
            if one.entry.is_deleted {
                self.bury(&one.name, &one.entry);
                continue;
            }
            let name = one.name.clone();
            match self.adopt(one, None, None, &mut taken.losses) {
                Ok(file) => adopted.push(file),
                Err(error) => taken.failed.push((name, error)),
            }
            taken.files += self.install_many(&mut adopted)?;
        }
        taken.files += adopted.len();
        self.install_all(adopted)?;
        Ok(taken)
    }

    /// Calls [`install_all`](Self::install_all) once there is enough to sync, because memory holds
    /// the segments until then.
    fn install_many(&self, adopted: &mut Vec<Adopted>) -> Result<usize, StoreError> {
        if lock(&self.volume).unsynced() < FLUSH_SEGMENTS {
            return Ok(0);
        }
        let adopted = std::mem::take(adopted);
        let count = adopted.len();
        self.install_all(adopted)?;
        Ok(count)
    }

    /// Syncs the segments of these files, writes into the journal where they begin, and makes the
    /// files usable.
    pub(super) fn install_all(&self, adopted: Vec<Adopted>) -> Result<(), StoreError> {
        if adopted.is_empty() {
            return Ok(());
        }
        match self.flush_beside(false) {
            // The journals have what could not be written. A store that did not open could not make
            // room either.
            Err(error @ Error::Storage(StorageError::Full { .. }))
                if adopted.iter().all(|one| one.tail.is_none()) =>
            {
                self.note::<()>(Err(error));
            }
            done => done?,
        }
        // A checkpoint asks for the ends of all files, so it must not come between the journal and
        // the files.
        let mut volume = lock(&self.volume);
        let mut batch = JournalBatch::default();
        for Adopted { file, tail } in &adopted {
            let Some(tail) = tail else { continue };
            if !batch.fits(2 * FRAME_BYTES + LOST_FRAMES * tail.bytes.len()) {
                volume.commit(&mut batch)?;
                batch.clear();
            }
            let (origin, synced) = (origin(file, file.entry.token), volume.synced(file.id));
            batch.push_node(origin, synced);
            batch.push_tail(origin, synced, tail);
        }
        if !batch.is_empty() {
            volume.commit(&mut batch)?;
        }
        for Adopted { file, .. } in adopted {
            self.install(&mut volume, file);
        }
        Ok(())
    }

    /// Finishes a deletion that was cut short. When it fails, the next life tries again.
    fn bury(&self, name: &str, entry: &Entry) {
        if !self.is_reading {
            let gone = lock(&self.volume).delete(entry.id).map_err(StoreError::from);
            let _ = gone.and_then(|()| self.finish_deletion(name, entry));
        }
    }

    /// Reads what exists of a file. [`install_all`](Self::install_all) then makes it a file of this
    /// store.
    pub(super) fn adopt(
        &self,
        Claimed { name, mut entry, was_ours }: Claimed,
        mut recovered: Option<RecoveredFile>,
        old_token: Option<u32>,
        losses: &mut Vec<DiskLoss>,
    ) -> Result<Adopted, StoreError> {
        let schema = Arc::new(entry.schema.clone());
        let on_disk = recovered.as_ref().filter(|_| old_token.is_none());
        // Files of this node can be opened with what its disk has.
        let may_wait = was_ours && old_token.is_none();
        let (published, mut need) =
            match self.published(&entry, on_disk.map_or(0, |file| file.records)) {
                Err(error) if may_wait && is_away(&error) => (None, Some(Need::End)),
                published => (published?, None),
            };
        entry.first = entry.first.max(published.map_or(0, |node| node.first));
        if let (Some(token), Some(old)) = (old_token, &recovered) {
            self.put_aside(&name, &entry, old, token, losses)?;
            recovered = None;
        }
        if let (Some(node), Some(found)) = (published, &mut recovered) {
            match self.heal(&name, node, &schema, found, losses) {
                Err(error) if may_wait && is_away(&error) => need = Some(Need::Middle),
                healed => {
                    healed?;
                    self.drop_index_behind(&entry, &schema, found)?;
                }
            }
        }
        let awaited = need.map(|need| Awaited::new(need, recovered.as_ref()));
        let records = recovered.as_ref().map_or(0, |found| found.records);
        let (appender, tail) = match published.filter(|node| node.records > records) {
            Some(node) => {
                let start = self.adopt_published(&entry, node, records, losses)?;
                let tail = start.tail.clone();
                (Appender::resume(entry.id, entry.token, schema.clone(), start)?, Some(tail))
            }
            None => (self.adopt_local(&name, &entry, &schema, recovered)?, None),
        };
        if !was_ours {
            self.names.fork(&name, appender.records())?;
            entry.fork(appender.records());
        }
        losses.extend(awaited.as_ref().map(|awaited| awaited.loss(&name, records)));
        let mut file = StoreFile::new(&name, entry, schema, appender, published);
        file.awaited = awaited;
        Ok(Adopted { file, tail })
    }

    /// The published part of a file. A disk that has all of it, by its own account, does not ask
    /// the objects. A recorder whose disk is whole therefore starts while its bucket is away.
    fn published(&self, entry: &Entry, records: u64) -> Result<Option<MetadataNode>, StoreError> {
        let Some(bucket) = &self.bucket else { return Ok(None) };
        if let Some(node) = self.kept_node(entry, records) {
            return Ok(Some(node));
        }
        let name = archive::block_of(entry);
        if let Some(block) = lock(&self.blocks_before).get(&name)
            && let Some(node) = archive::node_in(block, &name, entry)?
        {
            return Ok(Some(node));
        }
        match archive::node_of(bucket, entry) {
            // Another node may have the file by now. The records in this directory can still be
            // read.
            Err(StoreError::Store(Error::Damaged { .. })) if self.is_reading => Ok(None),
            node => node,
        }
    }

    /// The metadata node that was kept when this node last published the file, if the disk has as
    /// many records.
    fn kept_node(&self, entry: &Entry, records: u64) -> Option<MetadataNode> {
        let name = archive::block_of(entry);
        // When the kept block cannot be read, the objects are asked.
        let block = self.names.local().block(&name).ok()??;
        let node = archive::node_in(&block, &name, entry).ok()??;
        (node.records <= records).then_some(node)
    }

    /// Reads the blocks of metadata of these files ahead, each once and several at a time. A block
    /// that fails is asked for again when its file is adopted, which reports the error.
    fn read_blocks<'a>(&self, entries: impl Iterator<Item = &'a Entry>) {
        let Some(bucket) = &self.bucket else { return };
        let listed = entries.filter(|entry| entry.listed > 0 && !entry.is_deleted);
        let names: BTreeSet<String> = listed.map(archive::block_of).collect();
        let names: Vec<String> = names.into_iter().collect();
        for names in names.chunks(BLOCKS_AT_ONCE) {
            let fetch = |name: &String| bucket.fetch(name, 0, SEGMENT_BYTES);
            let fetches: Vec<_> = names.iter().map(fetch).collect();
            for (name, fetch) in names.iter().zip(fetches) {
                let Ok(Some(block)) = fetch() else { return };
                lock(&self.blocks_before).insert(name.clone(), block);
            }
        }
    }

    /// This disk has a file that another node took over after the life of `token` on this disk.
    /// Later records of this disk were acknowledged by this node at `local` or below, and are no
    /// part of the file any more. These records are kept beside the file, as plain records, and the
    /// disk begins anew.
    fn put_aside(
        &self,
        name: &str,
        entry: &Entry,
        old: &RecoveredFile,
        token: u32,
        losses: &mut Vec<DiskLoss>,
    ) -> Result<(), StoreError> {
        let common = entry.forked_at(token).max(entry.first);
        if old.records > common {
            let aside = format!("ASIDE-{}-{token:08x}-{common}", entry.id);
            let count = old.records - common;
            let what = match self.copy_aside(name, entry, old, common, &aside) {
                Ok(()) => format!(
                    "another node took it over; {count} records that only this disk had are in \
                     {aside}"
                ),
                // The file stays in place until there is room.
                Err(error @ StoreError::Store(Error::Storage(_))) => return Err(error),
                Err(error) => format!(
                    "another node took it over; {count} records that only this disk had cannot \
                     all be read: {error}"
                ),
            };
            losses.push(DiskLoss { place: format!("file {name}"), what, is_torn_end: false });
        }
        // The file's segments were read through the cache, and are no part of the file any more.
        self.cache.iter().for_each(|shard| *lock(shard) = Cache::new(self.config.cache_segments()));
        Ok(lock(&self.volume).delete(entry.id)?)
    }

    fn copy_aside(
        &self,
        name: &str,
        entry: &Entry,
        old: &RecoveredFile,
        from: u64,
        aside: &str,
    ) -> Result<(), StoreError> {
        let schema = Arc::new(entry.schema.clone());
        let file = self.unborn(name, entry, &schema)?;
        let mut segments = self.segments(&file, Interest::Passing);
        let (id, token, records, tail) = (entry.id, entry.token, old.records, old.tail.clone());
        let mut rebuilt = Vec::new();
        let held = resume(id, token, &schema, records, tail, &mut segments, &mut rebuilt)?;
        let appender = Appender::resume(id, token, Arc::clone(&schema), held)?;
        let at = FileEndSnapshot::of(&appender, entry.first);
        let mut offset = 0;
        SnapshotReader::new(&at, &mut segments).records(from..records, &mut |part: Bytes| {
            self.disk.write(aside, offset, &part)?;
            offset += part.len() as u64;
            Ok(())
        })?;
        Ok(self.disk.sync(aside)?)
    }

    /// A file that is not installed yet, for reading its segments.
    fn unborn(
        &self,
        name: &str,
        entry: &Entry,
        schema: &Arc<Schema>,
    ) -> Result<StoreFile, StoreError> {
        let appender = Appender::new(entry.id, entry.token, Arc::clone(schema))?;
        Ok(StoreFile::new(name, entry.clone(), Arc::clone(schema), appender, None))
    }

    /// Takes from the objects the records that are lost on this disk.
    fn heal(
        &self,
        name: &str,
        node: MetadataNode,
        schema: &Schema,
        found: &mut RecoveredFile,
        losses: &mut Vec<DiskLoss>,
    ) -> Result<(), StoreError> {
        let is_published = found.lost.iter().any(|range| range.start < node.records);
        let Some(bucket) = self.bucket.as_ref().filter(|_| is_published) else {
            return Ok(());
        };
        let count = |lost: &[Range<u64>]| -> u64 { lost.iter().map(|r| r.end - r.start).sum() };
        let before = count(&found.lost);
        let read = &mut |number| read_segment(&self.disk, SegmentKind::Data, node.file, number);
        let what = match mend_lost(bucket, node, schema, found, read) {
            Ok(sealed) => {
                self.write_all(sealed)?;
                format!("{} of them are taken from objects", before - count(&found.lost))
            }
            // The next publication would put these records in their place.
            Err(error @ Error::Storage(_)) => return Err(error.into()),
            Err(error) => format!("they cannot be taken from objects: {error}"),
        };
        // An earlier opening has told what is still lost.
        if before > count(&found.lost) || !found.partial.is_empty() {
            let what = format!("{before} records are lost on the disk, {what}");
            losses.push(DiskLoss { place: format!("file {name}"), what, is_torn_end: false });
        }
        Ok(())
    }

    /// Continues from what the disk has of a file. Segments for which a full disk has no room stay
    /// in memory.
    fn adopt_local(
        &self,
        name: &str,
        entry: &Entry,
        schema: &Arc<Schema>,
        recovered: Option<RecoveredFile>,
    ) -> Result<Appender, StoreError> {
        let (records, tail, mut unwritten) = recovered
            .map_or((0, TailRecords::default(), Vec::new()), |f| (f.records, f.tail, f.unwritten));
        let file = self.unborn(name, entry, schema)?;
        lock(&file.appender).keep_unwritten(&unwritten);
        self.memory_bytes.fetch_add((unwritten.len() * SEGMENT_BYTES) as u64, Relaxed);
        let mut rebuilt = Vec::new();
        let mut segments = self.segments(&file, Interest::Passing);
        let (id, token) = (entry.id, entry.token);
        let start = resume(id, token, schema, records, tail, &mut segments, &mut rebuilt)?;
        lock(&self.volume).truncate(SegmentKind::Index, id, start.index.nodes())?;
        for node in rebuilt {
            match self.write_all(vec![node.clone()]) {
                Err(error) if is_disk_full(&error) => unwritten.push(node),
                done => done?,
            }
        }
        let mut appender = Appender::resume(id, token, Arc::clone(schema), start)?;
        appender.keep_unwritten(&unwritten);
        Ok(appender)
    }

    /// Writes segments that did not pass through the queue. These segments too are in memory until
    /// the next flush.
    fn write_all(&self, segments: Vec<SealedSegment>) -> Result<(), StoreError> {
        let mut volume = lock(&self.volume);
        for sealed in segments {
            self.memory_bytes.fetch_add(SEGMENT_BYTES as u64, Relaxed);
            volume.write(sealed)?;
        }
        Ok(())
    }

    /// Continues from the published part, because the disk has fewer records or none.
    fn adopt_published(
        &self,
        entry: &Entry,
        node: MetadataNode,
        records: u64,
        losses: &mut Vec<DiskLoss>,
    ) -> Result<Resumption, StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let taken = archive::take_over(bucket, node, &entry.schema)?;
        let what = format!("{records} records on the disk, {} taken from objects", node.records);
        losses.push(DiskLoss { place: format!("file {}", entry.id), what, is_torn_end: true });
        let origin =
            Origin { file: entry.id, record_bytes: entry.schema.record_bytes, token: entry.token };
        lock(&self.volume).adopt(origin, taken.first_written);
        self.write_all(taken.sealed)?;
        Ok(taken.start)
    }
}
