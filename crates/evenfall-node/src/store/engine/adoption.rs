//! How a store that is opened comes by its files: from its disk, or from objects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use evenfall_core::Disk as _;
use evenfall_store::cache::Interest;
use evenfall_store::journal::{Batch, Origin};
use evenfall_store::layout::parse_chunk_name;
use evenfall_store::metadata::MetadataNode;
use evenfall_store::reader::resume;
use evenfall_store::volume::{Loss, Recovered};
use evenfall_store::{Appender, FileId, Kind, Resumption, Schema};

use super::{Shared, StoreFile};
use crate::store::{Entry, StoreError, archive, lock};

impl Shared {
    /// Takes over every file of the directory of names, from the disk or from the objects.
    pub(super) fn adopt_all(&self, found: &mut Recovered) -> Result<(), StoreError> {
        let before = self.names.list()?.into_iter();
        let writers: BTreeMap<FileId, u32> = before.map(|(_, e)| (e.id, e.primary)).collect();
        let entries = match self.is_reading {
            true => self.names.list()?,
            false => self.names.claim_all(self.config.node)?,
        };
        for (name, mut entry) in entries {
            let schema = Arc::new(entry.schema.clone());
            let recovered = found.files.remove(&entry.id);
            let writer = writers.get(&entry.id).copied().unwrap_or(entry.primary);
            let published = match &self.bucket {
                Some(bucket) => archive::node_of(bucket, &entry, writer)?,
                None => None,
            };
            entry.first = entry.first.max(published.map_or(0, |node| node.first));
            let (records, tail) = recovered.map_or((0, Bytes::new()), |f| (f.records, f.tail));
            let start = match published {
                Some(node) if node.records > records => {
                    self.adopt_published(&entry, node, records, &mut found.losses)?
                }
                _ => self.adopt_local(&name, &entry, &schema, records, tail)?,
            };
            let appender = Appender::resume(entry.id, entry.token, schema.clone(), start)?;
            let none = MetadataNode { file: entry.id, ..MetadataNode::default() };
            self.install(&name, entry, schema, appender, published.unwrap_or(none));
        }
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

    fn adopt_local(
        &self,
        name: &str,
        entry: &Entry,
        schema: &Arc<Schema>,
        records: u64,
        tail: Bytes,
    ) -> Result<Resumption, StoreError> {
        // A file that is not installed yet, to read its segments with.
        let file = StoreFile {
            name: name.to_owned(),
            id: entry.id,
            schema: Arc::clone(schema),
            entry: entry.clone(),
            appender: Mutex::new(Appender::new(entry.id, entry.token, Arc::clone(schema))?),
            published: Mutex::default(),
            first: AtomicU64::new(entry.first),
            retention: Mutex::new(entry.retention),
            is_deleted: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            token_before: 0,
        };
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
