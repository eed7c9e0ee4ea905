//! How a store that is opened comes by its files: from its disk, or from objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::Disk as _;
use evenfall_store::cache::{Cache, Interest};
use evenfall_store::journal::{Batch, Origin};
use evenfall_store::layout::parse_chunk_name;
use evenfall_store::metadata::MetadataNode;
use evenfall_store::reader::resume;
use evenfall_store::volume::{Loss, Recovered, RecoveredFile};
use evenfall_store::{Appender, Error, Kind, Reader, Resumption, Schema, Snapshot};

use super::{Shared, StoreFile};
use crate::store::names::Claimed;
use crate::store::{Entry, StoreError, archive, lock};

impl Shared {
    /// Takes every file that is this node's, from the disk or from the objects.
    pub(super) fn adopt_all(&self, found: &mut Recovered) -> Result<(), StoreError> {
        let read = |(name, entry)| Claimed { name, entry, was_ours: true };
        let take_over = self.config.cluster.as_ref().is_some_and(|cluster| cluster.take_over);
        // What this directory held of a file, before the claim says what there is now.
        let before: BTreeMap<String, Entry> = self.names.list()?.into_iter().collect();
        let claimed = match self.is_reading {
            true => self.names.list()?.into_iter().map(read).collect(),
            false => self.names.claim(take_over || self.config.keep_copies, true)?,
        };
        for one in claimed {
            let recovered = found.files.remove(&one.entry.id);
            // Nobody has published since this directory did: what it has goes on from there.
            let held = before.get(&one.name).filter(|held| held.id == one.entry.id);
            let is_newest = held.is_some_and(|held| one.entry.listed <= held.token);
            // A copy is a beginning of the file, unless another node went on with less.
            let is_copy = held.and_then(|held| held.copies);
            let is_whole = is_copy.is_some_and(|of| !one.entry.has_forked_since(of));
            let is_current = one.was_ours || is_newest || is_whole;
            let old_token = held.filter(|_| !is_current).map(|held| held.token);
            self.adopt(one, recovered, old_token, &mut found.losses)?;
        }
        self.adopt_copies(&before, found)?;
        self.put_strays_aside(&before, found)?;
        for (file, lost) in &found.files {
            let what = format!("{} records of a file without a name", lost.records);
            found.losses.push(Loss { place: format!("file {file}"), what, is_torn_end: false });
        }
        lock(&self.volume).flush()?;
        for (name, _) in self.disk.list()? {
            let Some((Kind::Data, id, chunk)) = parse_chunk_name(&name) else { continue };
            let Some(file) = self.file_of(id) else { continue };
            if chunk < lock(&file.published).data_chunks {
                self.uploads.is_uploaded(id, chunk);
            }
        }
        Ok(())
    }

    /// Copies of files whose primary is another node, and still is.
    fn adopt_copies(
        &self,
        before: &BTreeMap<String, Entry>,
        found: &mut Recovered,
    ) -> Result<(), StoreError> {
        for (name, held) in before {
            if held.copies.is_none() || self.file_of(held.id).is_some() {
                continue;
            }
            let recovered = found.files.remove(&held.id);
            let (records, tail) = recovered.map_or((0, Bytes::new()), |f| (f.records, f.tail));
            // Its segments carry the token of this life, as all that this disk has.
            let entry = Entry { token: self.names.token(), ..held.clone() };
            let schema = Arc::new(entry.schema.clone());
            let start = self.adopt_local(name, &entry, &schema, records, tail)?;
            let appender = Appender::resume(entry.id, entry.token, schema.clone(), start)?;
            self.install(StoreFile::new(name, entry, schema, appender, None));
        }
        Ok(())
    }

    /// Files of this disk whose primary is another node now.
    fn put_strays_aside(
        &self,
        before: &BTreeMap<String, Entry>,
        found: &mut Recovered,
    ) -> Result<(), StoreError> {
        let Some(member) = self.names.member() else { return Ok(()) };
        for (name, held) in before {
            let Some(old) = found.files.get(&held.id) else { continue };
            let Some(entry) = member.cluster().find(name)? else { continue };
            if entry.id == held.id {
                self.put_aside(name, &entry, old, held.token, &mut found.losses)?;
                found.files.remove(&held.id);
            }
        }
        Ok(())
    }

    /// Takes over, while the store runs, the files whose primary has no lease any more.
    pub(super) fn adopt_orphans(&self, losses: &mut Vec<Loss>) -> Result<usize, StoreError> {
        let claimed = self.names.claim(true, false)?;
        let count = claimed.len();
        for one in claimed {
            self.adopt(one, None, None, losses)?;
        }
        Ok(count)
    }

    fn adopt(
        &self,
        Claimed { name, mut entry, was_ours }: Claimed,
        mut recovered: Option<RecoveredFile>,
        old_token: Option<u32>,
        losses: &mut Vec<Loss>,
    ) -> Result<(), StoreError> {
        let schema = Arc::new(entry.schema.clone());
        let published = self.published(&entry)?;
        entry.first = entry.first.max(published.map_or(0, |node| node.first));
        if let (Some(token), Some(old)) = (old_token, &recovered) {
            self.put_aside(&name, &entry, old, token, losses)?;
            recovered = None;
        }
        let (records, tail) = recovered.map_or((0, Bytes::new()), |f| (f.records, f.tail));
        let start = match published {
            Some(node) if node.records > records => {
                self.adopt_published(&entry, node, records, losses)?
            }
            _ => self.adopt_local(&name, &entry, &schema, records, tail)?,
        };
        if !was_ours {
            self.names.fork(&name, start.records)?;
            entry.fork(start.records);
        }
        let appender = Appender::resume(entry.id, entry.token, schema.clone(), start)?;
        self.install(StoreFile::new(&name, entry, schema, appender, published));
        Ok(())
    }

    fn published(&self, entry: &Entry) -> Result<Option<MetadataNode>, StoreError> {
        let Some(bucket) = &self.bucket else { return Ok(None) };
        match archive::node_of(bucket, entry) {
            // Another node may have the file by now: what this directory has can be read still.
            Err(StoreError::Store(Error::Damaged { .. })) if self.is_reading => Ok(None),
            node => node,
        }
    }

    /// This disk has a file that another node was the primary of since the life of `token` here.
    /// What the disk has from there on was acknowledged by us, at most at `local`, and is no part
    /// of the file any more: it is kept beside, as plain records, and the disk begins anew.
    fn put_aside(
        &self,
        name: &str,
        entry: &Entry,
        old: &RecoveredFile,
        token: u32,
        losses: &mut Vec<Loss>,
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
                // It stays where it is until there is room.
                Err(error @ StoreError::Store(Error::Storage(_))) => return Err(error),
                Err(error) => format!(
                    "another node took it over; {count} records that only this disk had cannot \
                     all be read: {error}"
                ),
            };
            losses.push(Loss { place: format!("file {name}"), what, is_torn_end: false });
        }
        // Its segments were read through the cache, and are no part of the file any more.
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
        let at = Snapshot::of(&appender, entry.first);
        let mut offset = 0;
        Reader::new(&at, &mut segments).records(from..records, &mut |part: Bytes| {
            self.disk.write(aside, offset, &part)?;
            offset += part.len() as u64;
            Ok(())
        })?;
        Ok(self.disk.sync(aside)?)
    }

    /// A file that is not installed yet, to read its segments with.
    fn unborn(
        &self,
        name: &str,
        entry: &Entry,
        schema: &Arc<Schema>,
    ) -> Result<StoreFile, StoreError> {
        let appender = Appender::new(entry.id, entry.token, Arc::clone(schema))?;
        Ok(StoreFile::new(name, entry.clone(), Arc::clone(schema), appender, None))
    }

    fn adopt_local(
        &self,
        name: &str,
        entry: &Entry,
        schema: &Arc<Schema>,
        records: u64,
        tail: Bytes,
    ) -> Result<Resumption, StoreError> {
        let file = self.unborn(name, entry, schema)?;
        let mut rebuilt = Vec::new();
        let mut segments = self.segments(&file, Interest::Passing);
        let (id, token) = (entry.id, entry.token);
        let start = resume(id, token, schema, records, tail, &mut segments, &mut rebuilt)?;
        let mut volume = lock(&self.volume);
        volume.truncate(Kind::Index, id, start.index.nodes())?;
        for sealed in rebuilt {
            volume.write(sealed)?;
        }
        Ok(start)
    }

    /// Goes on from what was published; the disk has less or nothing.
    fn adopt_published(
        &self,
        entry: &Entry,
        node: MetadataNode,
        records: u64,
        losses: &mut Vec<Loss>,
    ) -> Result<Resumption, StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let taken = archive::take_over(bucket, node, &entry.schema)?;
        let what = format!("{records} records on the disk, {} taken from objects", node.records);
        losses.push(Loss { place: format!("file {}", entry.id), what, is_torn_end: true });
        let mut volume = lock(&self.volume);
        volume.adopt(
            Origin { file: entry.id, record_bytes: entry.schema.record_bytes, token: entry.token },
            taken.first_written,
        );
        for sealed in taken.sealed {
            volume.write(sealed)?;
        }
        volume.flush()?;
        let mut batch = Batch::default();
        let origin =
            Origin { file: entry.id, record_bytes: entry.schema.record_bytes, token: entry.token };
        batch.push_node(origin, volume.synced(entry.id));
        batch.push_records(origin, volume.synced(entry.id), &taken.start.tail);
        volume.commit(&mut batch)?;
        Ok(taken.start)
    }
}
