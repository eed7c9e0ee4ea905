//! Reads the files of a store from its objects alone, without the node that wrote them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use evenfall_core::Objects as _;
use evenfall_store_format::index::IndexSummary;
use evenfall_store_format::layout::{SEGMENT_BYTES, SEGMENTS_PER_CHUNK, block_name};
use evenfall_store_format::metadata::{MetadataNode, NODES_PER_BLOCK, decode_block};
use evenfall_store_format::publication::Publication;
use evenfall_store_format::reader::resume;
use evenfall_store_format::{
    Error, FileEndSnapshot, FileId, Resumption, Schema, SealedSegment, SegmentKind, Segments,
    SnapshotReader,
};

use super::life_catalog::read_catalog;
use super::parts::Parts;
use super::uploads::in_parallel;
use super::{Bucket, BucketOptions, Entry, StoreError};

/// All files that are published in this bucket, as far as the listing shows them. Each file has the
/// entry of its newest primary.
///
/// # Errors
/// The errors of the object store; [`Error::Damaged`].
pub fn catalog(bucket: &Bucket) -> Result<Vec<(String, Entry)>, StoreError> {
    read_catalog(bucket)
}

/// The metadata node of a file as it was last published; `None` when it was never published.
///
/// # Errors
/// The errors of the object store; [`Error::Damaged`].
pub(super) fn node_of(bucket: &Bucket, entry: &Entry) -> Result<Option<MetadataNode>, StoreError> {
    if entry.listed == 0 {
        return Ok(None);
    }
    let name = block_of(entry);
    let absent = || absent(&name, entry.id);
    let bytes = bucket.get(&name, 0, SEGMENT_BYTES)?.ok_or_else(absent)?;
    Ok(Some(node_in(&bytes, &name, entry)?.ok_or_else(absent)?))
}

/// The error for a published file whose block of metadata is missing.
pub(super) fn absent(block: &str, file: FileId) -> Error {
    Error::Damaged {
        place: block.into(),
        what: format!(
            "file {file} was published, and its metadata is not in the object store: it is another \
             bucket, or was lost"
        ),
    }
}

/// The block that has the metadata node of this file, as it was last published.
pub(super) fn block_of(entry: &Entry) -> String {
    block_name(entry.listed, entry.slot / NODES_PER_BLOCK as u32)
}

/// The metadata node of a file from its block; `None` when another file has its place in the block.
///
/// # Errors
/// [`Error::Damaged`].
pub(super) fn node_in(
    block: &[u8],
    name: &str,
    entry: &Entry,
) -> Result<Option<MetadataNode>, StoreError> {
    let nodes = decode_block(block, name)?;
    let node = nodes.get(entry.slot as usize % NODES_PER_BLOCK).copied();
    let node = node.filter(|node| node.file == entry.id && node.token == entry.listed);
    let Some(mut node) = node else { return Ok(None) };
    // Earlier versions counted chunks that were uploaded ahead of the records. A node that
    // continues from here has none of those chunks.
    let full = entry.schema.layout()?.full_segments(node.records);
    node.data_chunks = node.data_chunks.min(full / SEGMENTS_PER_CHUNK);
    Ok(Some(node))
}

/// The state from which a new primary starts.
pub(super) struct Taken {
    pub(super) start: Resumption,
    /// Records in full chunks, which stay objects.
    pub(super) first_written: u64,
    /// Full segments after those chunks.
    pub(super) sealed: Vec<SealedSegment>,
}

pub(super) fn take_over(
    bucket: &Bucket,
    node: MetadataNode,
    schema: &Schema,
) -> Result<Taken, StoreError> {
    let mut publication = Publication::open(bucket, node)?;
    let snapshot = publication.snapshot(schema)?;
    let (file, token) = (node.file, node.token);
    let mut sealed = Vec::new();
    let tail = snapshot.tail.clone();
    let start = resume(file, token, schema, node.records, tail, &mut publication, &mut sealed)?;
    let data = node.data_chunks * SEGMENTS_PER_CHUNK..snapshot.layout.full_segments(node.records);
    let index = node.index_chunks * SEGMENTS_PER_CHUNK..node.index_nodes;
    for (kind, numbers) in [(SegmentKind::Data, data.clone()), (SegmentKind::Index, index)] {
        for number in numbers {
            let bytes = publication.segment(kind, file, number)?;
            sealed.push(SealedSegment { kind, file, number, bytes });
        }
    }
    let first_written = snapshot.layout.first_record(data.start);
    Ok(Taken { start, first_written, sealed })
}

/// Reads full segments from chunk objects. The segments that a scan announces come in parts,
/// several parts at once. Any other segment comes by itself.
pub struct ChunkReader<'a> {
    bucket: &'a Bucket,
    tail: BTreeMap<(SegmentKind, u32), Bytes>,
    parts: Parts,
}

impl<'a> ChunkReader<'a> {
    /// A reader over these chunks and these segments of an end.
    pub fn new(bucket: &'a Bucket, tail: BTreeMap<(SegmentKind, u32), Bytes>) -> Self {
        Self { bucket, tail, parts: Parts::default() }
    }
}

impl Segments for ChunkReader<'_> {
    fn segment(
        &mut self,
        kind: SegmentKind,
        file: FileId,
        number: u32,
    ) -> evenfall_store_format::Result<Bytes> {
        if let Some(bytes) = self.tail.get(&(kind, number)) {
            return Ok(bytes.clone());
        }
        let tail = &self.tail;
        let is_object = |number| !tail.contains_key(&(SegmentKind::Data, number));
        self.parts.segment(self.bucket, kind, file, number, &is_object)
    }

    fn expect(&mut self, _: FileId, numbers: Range<u32>) {
        self.parts.expect(numbers);
    }
}

/// A store's files, from its objects alone.
pub struct Archive {
    bucket: Bucket,
    files: BTreeMap<String, Entry>,
}

/// A file of an archive at one moment.
pub struct ArchivedFile<'a> {
    bucket: &'a Bucket,
    entry: Entry,
    snapshot: FileEndSnapshot,
    last_ns: i64,
    segments: ChunkReader<'a>,
}

impl Archive {
    /// Opens the objects in this directory or under this address.
    ///
    /// # Errors
    /// The errors of the object store; [`Error::Damaged`].
    pub fn open(place: &str) -> Result<Self, StoreError> {
        Self::of(Bucket::open_to_read(place, &BucketOptions::default())?)
    }

    /// Opens the objects of this bucket.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of(bucket: Bucket) -> Result<Self, StoreError> {
        let files = catalog(&bucket)?.into_iter().collect();
        Ok(Self { bucket, files })
    }

    /// Names and entries.
    pub fn files(&self) -> &BTreeMap<String, Entry> {
        &self.files
    }

    /// The records of each file, as published now, in order of names. Files share blocks of
    /// metadata, so this takes one request for 127 files.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub fn count_records(&self) -> Result<Vec<u64>, StoreError> {
        let names: BTreeSet<String> = self.files.values().map(block_of).collect();
        let names: Vec<String> = names.into_iter().collect();
        let got = in_parallel(&names, |name| self.bucket.get(name, 0, SEGMENT_BYTES));
        let mut blocks = BTreeMap::new();
        for (name, got) in names.iter().zip(got) {
            if let Some(block) = got? {
                blocks.insert(name, block);
            }
        }
        let records = |(name, entry): (&String, &Entry)| -> Result<u64, StoreError> {
            let block = block_of(entry);
            let node = blocks.get(&block).map(|bytes| node_in(bytes, &block, entry)).transpose()?;
            match node.flatten() {
                Some(node) => Ok(node.records),
                // A new primary has published the file since the catalogue was read.
                None => Ok(self.file(name)?.records()),
            }
        };
        self.files.iter().map(records).collect()
    }

    /// The file of this name, as published now.
    ///
    /// # Errors
    /// [`Error::UnknownFile`], [`Error::Damaged`], the errors of the object store.
    pub fn file(&self, name: &str) -> Result<ArchivedFile<'_>, StoreError> {
        let unknown = || Error::UnknownFile { file: name.into() };
        let entry = self.files.get(name).ok_or_else(unknown)?;
        ArchivedFile::open(&self.bucket, entry).or_else(|error| {
            // A new primary may have published the file since, and removed the objects of the old
            // primary.
            let is_newer = |known: &Entry| known.id == entry.id && known.listed > entry.listed;
            match catalog(&self.bucket)?.into_iter().find(|(_, known)| is_newer(known)) {
                Some((_, newer)) => ArchivedFile::open(&self.bucket, &newer),
                None => Err(error),
            }
        })
    }
}

impl<'a> ArchivedFile<'a> {
    /// The file of this entry, as its last primary has published it.
    ///
    /// # Errors
    /// [`Error::UnknownFile`], [`Error::Damaged`], the errors of the object store.
    pub fn open(bucket: &'a Bucket, entry: &Entry) -> Result<Self, StoreError> {
        let unknown = || Error::UnknownFile { file: entry.id.to_string() };
        let node = node_of(bucket, entry)?.ok_or_else(unknown)?;
        let PublishedEnd { node, snapshot, tail } = PublishedEnd::open(bucket, entry, node)?;
        let segments = ChunkReader::new(bucket, tail);
        let entry = entry.clone();
        Ok(Self { bucket, entry, snapshot, last_ns: node.last_ns, segments })
    }
}

/// The end of a file as its last primary has published it.
#[derive(Debug)]
pub(super) struct PublishedEnd {
    pub(super) node: MetadataNode,
    pub(super) snapshot: FileEndSnapshot,
    /// The segments that are in no chunk yet.
    pub(super) tail: BTreeMap<(SegmentKind, u32), Bytes>,
}

impl PublishedEnd {
    /// The end that this node states, or that a later node states when the objects of this one are
    /// gone.
    ///
    /// # Errors
    /// [`Error::UnknownFile`], [`Error::Damaged`], the errors of the object store.
    pub(super) fn open(
        bucket: &Bucket,
        entry: &Entry,
        mut node: MetadataNode,
    ) -> Result<Self, StoreError> {
        let unknown = || Error::UnknownFile { file: entry.id.to_string() };
        let publication = loop {
            let opened = Publication::open(bucket, node);
            if !matches!(opened, Err(Error::Damaged { .. })) {
                break opened?;
            }
            // A pack is deleted some time after the last block that named it.
            let newer = node_of(bucket, entry)?.ok_or_else(unknown)?;
            if newer == node {
                break opened?;
            }
            node = newer;
        };
        let snapshot = publication.snapshot(&entry.schema)?;
        Ok(Self { node, snapshot, tail: publication.into_tail() })
    }
}

impl ArchivedFile<'_> {
    /// Records that can be read.
    pub fn records(&self) -> u64 {
        self.snapshot.records
    }

    /// Time of the last record.
    pub fn last_ns(&self) -> i64 {
        self.last_ns
    }

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// [`Error::Damaged`], the errors of the object store.
    pub fn find(&mut self, from_ns: i64, to_ns: i64) -> Result<std::ops::Range<u64>, StoreError> {
        Ok(SnapshotReader::new(&self.snapshot, &mut self.segments).between(from_ns, to_ns)?)
    }

    /// The records of these numbers.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::NoRecord`].
    pub fn read_numbers(
        &mut self,
        numbers: std::ops::Range<u64>,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<(), StoreError> {
        let first = numbers.start;
        let read = SnapshotReader::new(&self.snapshot, &mut self.segments).records(numbers, each);
        read.map_err(|error| self.missing(first, error))
    }

    /// Count, times and aggregates of the records of these numbers.
    ///
    /// # Errors
    /// As [`read_numbers`](Self::read_numbers).
    pub fn summary(&mut self, numbers: Range<u64>) -> Result<Option<IndexSummary>, StoreError> {
        if numbers.is_empty() {
            return Ok(None);
        }
        let schema = &self.entry.schema;
        Ok(SnapshotReader::new(&self.snapshot, &mut self.segments).summary(numbers, schema)?)
    }

    /// The error for a missing object, to a reader of records from this record on. The object is
    /// damaged, unless retention removed it meanwhile, which the metadata states.
    fn missing(&self, first: u64, error: Error) -> StoreError {
        let kept = match node_of(self.bucket, &self.entry) {
            Ok(Some(node)) if matches!(error, Error::Damaged { .. }) => node.first,
            _ => return error.into(),
        };
        if kept <= first {
            return error.into();
        }
        let record = format!("{first}: retention deleted it while it was read");
        Error::NoRecord { record, first: kept, end: self.snapshot.records }.into()
    }

    /// The records from one time to another, both included.
    ///
    /// # Errors
    /// [`Error::Damaged`], the errors of the object store and of `each`.
    pub fn read(
        &mut self,
        from_ns: i64,
        to_ns: i64,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<std::ops::Range<u64>, StoreError> {
        let numbers = self.find(from_ns, to_ns)?;
        self.read_numbers(numbers.clone(), each)?;
        Ok(numbers)
    }
}
