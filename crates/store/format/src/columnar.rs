//! Chunks in columns, in the place of raw chunks.
//!
//! A raw chunk is written segment by segment, which columns cannot be. Once a chunk is whole, its
//! rows can be encoded in columns, which take a fraction of its bytes. Rows that are held in memory
//! until then have no raw chunk, and are written once. All readers, recovery and verification know
//! raw segments alone. [`ColumnDisk`] therefore lies between them and the disk: a chunk that is in
//! columns reads as the raw chunk that it was or would have been, to the last byte.
//!
//! ```text
//!  D-f-c                        whole, synced, stated by the journal
//!  D-f-c + D-f-c.parquet.new    stage: encoded, compared, written and synced
//!  D-f-c + D-f-c.parquet        adopt: renamed and synced
//!          D-f-c.parquet        drop_raw
//!
//!  held in memory               whole; journals have what was promised of it
//!          D-f-c.parquet.new    begin_switch, stage_rows
//!          D-f-c.parquet        adopt: renamed and synced; drop_raw ends the switch
//! ```
//!
//! A crash at any point leaves the columns, or what they are made of, or both: the raw chunk, or
//! journals with the rows. While the raw chunk is there, it counts: columns beside it come from a
//! switch that was cut short, and the next switch writes them again. The raw chunk and the journals
//! go only when the columns and their name are synced. A power cut may also bring a removed raw
//! chunk back, with the bytes that were synced before.
//!
//! Nothing writes to a whole chunk, except a recovery that has lost its journals and finds damage.
//! The chunk then becomes raw again first, and damaged columns are kept aside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};

use crate::error::{Error, Result};
use crate::layout::{
    CHUNK_BYTES, DataChunk, FileId, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind,
    parse_chunk_name, segment_place,
};
use crate::messages::{InstalledLayouts, MessageField};
use crate::schema::Schema;

/// Segments that are encoded and decoded together. 64 segments are 1 MiB of rows: a reader of a
/// single row decodes no more, and the columns are long enough to compress well.
pub const SEGMENTS_PER_GROUP: u32 = 64;
/// Groups of a chunk.
pub const GROUPS_PER_CHUNK: u32 = SEGMENTS_PER_CHUNK / SEGMENTS_PER_GROUP;
/// Bytes of the raw segments of a group.
const GROUP_BYTES: usize = SEGMENTS_PER_GROUP as usize * SEGMENT_BYTES;
/// What the name of a chunk in columns has behind the name of the raw chunk.
const COLUMNS: &str = ".parquet";
/// What the name has while the columns are written.
const STAGED: &str = ".parquet.new";

/// Encodes chunks in columns, and decodes them.
pub trait ChunkCodec: Send + Sync {
    /// The chunk in columns; `None` when the chunk is better left raw, because records of it are
    /// lost or the columns would take as many bytes. Messages of a recording are shredded by the
    /// layouts; without layouts they are bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a chunk that is not whole.
    fn encode(
        &self,
        schema: &Schema,
        chunk: DataChunk,
        bytes: &Bytes,
        layouts: InstalledLayouts,
    ) -> Result<Option<Bytes>>;

    /// The raw segments of a group, exactly as they were encoded.
    ///
    /// # Errors
    /// [`Error::Damaged`], naming `place`.
    fn decode(&self, stored: &Bytes, group: u32, place: &str) -> Result<Bytes>;

    /// The bytes of these fields, by their places in the schema, in the rows of some groups: field
    /// by field, and row by row within a field. `None` from a codec that gives whole rows alone.
    ///
    /// # Errors
    /// [`Error::Damaged`], naming `place`.
    fn decode_fields(
        &self,
        stored: &Bytes,
        groups: Range<u32>,
        fields: &[usize],
        place: &str,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let _ = (stored, groups, fields, place);
        Ok(None)
    }

    /// These values of the messages in some groups. `None` for a chunk whose rows were not
    /// shredded.
    ///
    /// # Errors
    /// [`Error::Damaged`], naming `place`.
    fn decode_messages(
        &self,
        stored: &Bytes,
        groups: Range<u32>,
        fields: &[MessageField],
        place: &str,
    ) -> Result<Option<ShreddedColumns>> {
        let _ = (stored, groups, fields, place);
        Ok(None)
    }

    /// Checks every byte of a chunk in columns.
    ///
    /// # Errors
    /// [`Error::Damaged`], naming `place`.
    fn check(&self, stored: &Bytes, place: &str) -> Result<()>;
}

/// One value of each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageValues {
    /// Numbers.
    Numbers(Vec<Option<i64>>),
    /// Texts without padding.
    Texts(Vec<Option<Bytes>>),
}

/// Messages out of a chunk in columns, value by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShreddedColumns {
    /// The number of each message.
    pub numbers: Vec<u64>,
    /// From the first record of each message to that of the next.
    pub records: Vec<u32>,
    /// What the venue's clock shows at each message.
    pub wall_ns: Vec<i64>,
    /// The time under which each message is recorded.
    pub recorded_ns: Vec<i64>,
    /// The tags of the formats.
    pub tags: Vec<u8>,
    /// Whether each message was shredded. The values of another message are its type alone.
    pub is_shredded: Vec<bool>,
    /// The values that were asked for.
    pub values: Vec<MessageValues>,
}

impl ShreddedColumns {
    /// No messages, with room for these values.
    pub fn new(fields: &[MessageField]) -> Self {
        let values = fields.iter().map(|field| match MessageField::TEXTS.contains(field) {
            true => MessageValues::Texts(Vec::new()),
            false => MessageValues::Numbers(Vec::new()),
        });
        Self {
            numbers: Vec::new(),
            records: Vec::new(),
            wall_ns: Vec::new(),
            recorded_ns: Vec::new(),
            tags: Vec::new(),
            is_shredded: Vec::new(),
            values: values.collect(),
        }
    }

    /// Records of all these messages.
    pub fn records(&self) -> u64 {
        self.records.iter().map(|records| u64::from(*records)).sum()
    }

    /// Keeps the messages of which all records are among these. Keeps no message when the first of
    /// these records is not the first record of a message.
    pub fn cut(&mut self, records: Range<u64>) {
        fn keep<T>(all: &mut Vec<T>, rows: &Range<usize>) {
            all.truncate(rows.end);
            all.drain(..rows.start.min(all.len()));
        }
        let (mut at, mut rows) = (0, 0..0);
        let mut has_first = false;
        for (row, taken) in self.records.iter().enumerate() {
            if at == records.start {
                (rows, has_first) = (row..row, true);
            }
            at += u64::from(*taken);
            if has_first && at <= records.end {
                rows.end = row + 1;
            }
        }
        keep(&mut self.numbers, &rows);
        keep(&mut self.records, &rows);
        keep(&mut self.wall_ns, &rows);
        keep(&mut self.recorded_ns, &rows);
        keep(&mut self.tags, &rows);
        keep(&mut self.is_shredded, &rows);
        for values in &mut self.values {
            match values {
                MessageValues::Numbers(all) => keep(all, &rows),
                MessageValues::Texts(all) => keep(all, &rows),
            }
        }
    }
}

/// The codec of a program, if it has one.
pub type InstalledCodec = Option<&'static dyn ChunkCodec>;

/// Whether these are the first bytes of a chunk in columns, and not of a raw segment.
pub fn is_columnar(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PAR1")
}

/// The name of a chunk in columns on a disk.
pub fn columnar_name(chunk: DataChunk) -> String {
    format!("{}{COLUMNS}", chunk.raw_name())
}

fn staged_name(chunk: DataChunk) -> String {
    format!("{}{STAGED}", chunk.raw_name())
}

fn parse_with(name: &str, suffix: &str) -> Option<DataChunk> {
    parse_data(name.strip_suffix(suffix)?)
}

/// File and chunk of the name of a data chunk.
fn parse_data(name: &str) -> Option<DataChunk> {
    match parse_chunk_name(name)? {
        (SegmentKind::Data, file, number) => Some(DataChunk { file, number }),
        (SegmentKind::Index, ..) => None,
    }
}

/// The error of a program that has no codec.
fn without_codec(name: &str) -> StorageError {
    let what = "it is in columns, and this program was built without them: open it with a build \
                that has the feature arrow (`cargo install --path apps/cli --features full`)";
    StorageError::Failed { name: name.into(), what: what.into() }
}

/// The error of a disk or of objects for damage in columns.
fn storage_error(name: &str, error: Error) -> StorageError {
    match error {
        Error::Storage(error) => error,
        Error::Damaged { place, what } => StorageError::Damaged { name: place, what },
        error => StorageError::Failed { name: name.into(), what: error.to_string() },
    }
}

/// A part of a raw chunk, decoded from its columns. Fewer bytes at the end of the chunk.
///
/// # Errors
/// [`StorageError::Damaged`], naming `name`, and [`StorageError::Failed`] without a codec.
pub fn decode_part(
    codec: InstalledCodec,
    name: &str,
    stored: &Bytes,
    offset: u64,
    len: usize,
) -> core::result::Result<Bytes, StorageError> {
    let codec = codec.ok_or_else(|| without_codec(name))?;
    let Range { start, end } = within_chunk(offset, len);
    if start >= end {
        return Ok(Bytes::new());
    }
    let failed = |error| storage_error(name, error);
    if end - start == CHUNK_BYTES {
        // A reader of everything wants everything checked.
        codec.check(stored, name).map_err(failed)?;
    }
    let (first, last) = (start / GROUP_BYTES, (end - 1) / GROUP_BYTES);
    if first == last {
        let bytes = codec.decode(stored, first as u32, name).map_err(failed)?;
        return Ok(bytes.slice(start - first * GROUP_BYTES..end - first * GROUP_BYTES));
    }
    let mut bytes = Vec::with_capacity((last + 1 - first) * GROUP_BYTES);
    for group in first..=last {
        bytes.extend_from_slice(&codec.decode(stored, group as u32, name).map_err(failed)?);
    }
    Ok(Bytes::from(bytes).slice(start - first * GROUP_BYTES..end - first * GROUP_BYTES))
}

/// The group of a segment in its chunk.
fn group_of(segment: u32) -> u32 {
    segment % SEGMENTS_PER_CHUNK / SEGMENTS_PER_GROUP
}

/// The groups of a chunk from one segment to another, and the segments of these groups.
fn groups_around(chunk: DataChunk, segments: RangeInclusive<u32>) -> (Range<u32>, Range<u32>) {
    let begin = chunk.first_segment();
    let last = (*segments.end()).min(begin + (SEGMENTS_PER_CHUNK - 1));
    let groups = group_of(*segments.start())..group_of(last) + 1;
    let segments =
        begin + groups.start * SEGMENTS_PER_GROUP..begin + groups.end * SEGMENTS_PER_GROUP;
    (groups, segments)
}

fn within_chunk(offset: u64, len: usize) -> Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(CHUNK_BYTES);
    start..start.saturating_add(len).min(CHUNK_BYTES)
}

/// A group that was decoded last.
#[derive(Clone)]
struct Recent {
    chunk: DataChunk,
    group: u32,
    bytes: Bytes,
}

/// Values of some fields out of a chunk in columns, from [`ColumnDisk::fields_around`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedFields {
    /// The segments that hold these rows: whole groups of one chunk.
    pub segments: Range<u32>,
    /// The bytes of each field, row after row, in the order in which the fields were asked for.
    pub values: Vec<Vec<u8>>,
}

/// A disk on which chunks may be in columns. Clones are the same disk.
#[derive(Clone)]
pub struct ColumnDisk<D> {
    disk: D,
    codec: InstalledCodec,
    layouts: InstalledLayouts,
    /// The chunks that are in columns alone, with the lengths of their files. Another process may
    /// change the disk of a reader, which then finds out by a file that is not there.
    columnar: Arc<Mutex<BTreeMap<DataChunk, u64>>>,
    /// The chunks whose switch is under way. A chunk that is removed or written meanwhile leaves
    /// the set, and keeps its form.
    switching: Arc<Mutex<BTreeSet<DataChunk>>>,
    /// Recovery and take-overs read segment by segment. They would decode each group 64 times.
    recent: Arc<Mutex<Option<Recent>>>,
}

impl<D: Debug> Debug for ColumnDisk<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ColumnDisk").field(&self.disk).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> ColumnDisk<D> {
    /// The disk with its chunks, whatever their form. Nothing is changed.
    ///
    /// # Errors
    /// [`StorageError::Failed`] without a codec, when there are chunks in columns. The errors of
    /// the disk.
    pub fn open(disk: D, codec: InstalledCodec) -> core::result::Result<Self, StorageError> {
        let listed = disk.list()?;
        let raw = |of: &DataChunk| {
            let name = of.raw_name();
            listed.binary_search_by(|(other, _)| other.as_str().cmp(&name)).is_ok()
        };
        let mut columnar = BTreeMap::new();
        for (name, bytes) in &listed {
            // An empty file is what a crash may leave of a name that was not synced.
            let Some(chunk) = parse_with(name, COLUMNS).filter(|_| *bytes > 0) else { continue };
            if codec.is_none() {
                return Err(without_codec(name));
            }
            if !raw(&chunk) {
                columnar.insert(chunk, *bytes);
            }
        }
        let columnar = Arc::new(Mutex::new(columnar));
        let (switching, recent, layouts) = (Arc::default(), Arc::default(), None);
        Ok(Self { disk, codec, layouts, columnar, switching, recent })
    }

    /// The disk on which the messages of recordings are shredded by these layouts when they are
    /// encoded.
    pub fn with_layouts(self, layouts: InstalledLayouts) -> Self {
        Self { layouts, ..self }
    }

    /// Removes what a switch that was cut short has left beside raw chunks.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn sweep(&self) -> core::result::Result<(), StorageError> {
        for (name, bytes) in self.disk.list()? {
            let is_staged = parse_with(&name, STAGED).is_some();
            let is_left = parse_with(&name, COLUMNS)
                .is_some_and(|chunk| bytes == 0 || !lock(&self.columnar).contains_key(&chunk));
            if is_staged || is_left {
                self.disk.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The disk below.
    pub fn inner(&self) -> &D {
        &self.disk
    }

    /// The chunks in columns, with the lengths of their files.
    pub fn columnar_chunks(&self) -> Vec<(DataChunk, u64)> {
        lock(&self.columnar).iter().map(|(chunk, bytes)| (*chunk, *bytes)).collect()
    }

    /// The raw chunks that have their full length.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn raw_chunks(&self) -> core::result::Result<Vec<DataChunk>, StorageError> {
        let listed = self.disk.list()?;
        let whole = listed.iter().filter(|(_, bytes)| *bytes == CHUNK_BYTES as u64);
        Ok(whole.filter_map(|(name, _)| parse_data(name)).collect())
    }

    /// Whether a chunk is on the disk, in whatever form.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn has_chunk(&self, chunk: DataChunk) -> core::result::Result<bool, StorageError> {
        if lock(&self.columnar).contains_key(&chunk) {
            return Ok(true);
        }
        Ok(!self.disk.read(&chunk.raw_name(), 0, 1)?.is_empty())
    }

    /// The file of a chunk in columns; `None` when there is none, or when the raw chunk counts.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn read_columns(
        &self,
        chunk: DataChunk,
    ) -> core::result::Result<Option<Bytes>, StorageError> {
        if !lock(&self.columnar).contains_key(&chunk) {
            return Ok(None);
        }
        let bytes = self.disk.read(&columnar_name(chunk), 0, CHUNK_BYTES)?;
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// The segments of the group around a segment, with the number of the first of them, when its
    /// chunk is in columns.
    ///
    /// # Errors
    /// [`Error::Damaged`], and the errors of the disk.
    pub fn group_around(&self, file: FileId, segment: u32) -> Result<Option<(u32, Bytes)>> {
        let chunk = DataChunk { file, number: segment_place(segment).0 };
        let (Some(codec), Some(stored)) = (self.codec, self.read_columns(chunk)?) else {
            return Ok(None);
        };
        let group = group_of(segment);
        let bytes = codec.decode(&stored, group, &columnar_name(chunk))?;
        Ok(Some((chunk.first_segment() + group * SEGMENTS_PER_GROUP, bytes)))
    }

    /// These fields in the rows of the groups from one segment to another, when the chunk of the
    /// first segment is in columns. The groups end with that chunk.
    ///
    /// # Errors
    /// [`Error::Damaged`], and the errors of the disk.
    pub fn fields_around(
        &self,
        file: FileId,
        segments: RangeInclusive<u32>,
        fields: &[usize],
    ) -> Result<Option<DecodedFields>> {
        let chunk = DataChunk { file, number: segment_place(*segments.start()).0 };
        let (Some(codec), Some(stored)) = (self.codec, self.read_columns(chunk)?) else {
            return Ok(None);
        };
        let (groups, segments) = groups_around(chunk, segments);
        let values = codec.decode_fields(&stored, groups, fields, &columnar_name(chunk))?;
        Ok(values.map(|values| DecodedFields { segments, values }))
    }

    /// As [`fields_around`](Self::fields_around), with values of messages. `None` for a chunk whose
    /// messages were not shredded, too.
    ///
    /// # Errors
    /// [`Error::Damaged`], and the errors of the disk.
    pub fn messages_around(
        &self,
        file: FileId,
        segments: RangeInclusive<u32>,
        fields: &[MessageField],
    ) -> Result<Option<(Range<u32>, ShreddedColumns)>> {
        let chunk = DataChunk { file, number: segment_place(*segments.start()).0 };
        let (Some(codec), Some(stored)) = (self.codec, self.read_columns(chunk)?) else {
            return Ok(None);
        };
        let (groups, segments) = groups_around(chunk, segments);
        let found = codec.decode_messages(&stored, groups, fields, &columnar_name(chunk))?;
        Ok(found.map(|found| (segments, found)))
    }

    /// Whether a chunk is in columns alone.
    pub fn is_columnar(&self, chunk: DataChunk) -> bool {
        lock(&self.columnar).contains_key(&chunk)
    }

    /// Begins the switch of a chunk whose rows are in memory and in no raw chunk. A chunk that is
    /// removed or written from here on keeps its form.
    pub fn begin_switch(&self, chunk: DataChunk) {
        lock(&self.switching).insert(chunk);
    }

    /// Encodes a whole raw chunk, and writes and syncs the columns under a name of their own.
    /// Returns their bytes; `None` when the chunk stays raw.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a chunk that is not whole, and the errors of the disk. The call may
    /// be repeated.
    pub fn stage(&self, schema: &Schema, chunk: DataChunk) -> Result<Option<u64>> {
        if self.codec.is_none() {
            return Ok(None);
        }
        self.begin_switch(chunk);
        let raw = self.disk.read(&chunk.raw_name(), 0, CHUNK_BYTES)?;
        if raw.len() < CHUNK_BYTES {
            return Ok(None);
        }
        self.stage_rows(schema, chunk, &raw)
    }

    /// As [`stage`](Self::stage), with the bytes of the chunk out of memory. The switch has
    /// [begun](Self::begin_switch).
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn stage_rows(
        &self,
        schema: &Schema,
        chunk: DataChunk,
        raw: &Bytes,
    ) -> Result<Option<u64>> {
        let Some(codec) = self.codec else { return Ok(None) };
        let encoded = codec.encode(schema, chunk, raw, self.layouts)?;
        let Some(stored) = encoded else { return Ok(None) };
        let name = staged_name(chunk);
        // What an earlier try has left may be longer.
        self.disk.remove(&name)?;
        self.disk.write(&name, 0, &stored)?;
        self.disk.sync(&name)?;
        Ok(Some(stored.len() as u64))
    }

    /// Gives staged columns their name, unless the raw chunk was removed or written since. No other
    /// thread may do either during the call. A [`sync`](Disk::sync) of [`columnar_name`] must
    /// follow.
    ///
    /// # Errors
    /// The errors of the disk. The raw chunk still counts.
    pub fn adopt(&self, chunk: DataChunk) -> Result<bool> {
        let staged = staged_name(chunk);
        if !lock(&self.switching).contains(&chunk) {
            self.disk.remove(&staged)?;
            return Ok(false);
        }
        self.disk.rename(&staged, &columnar_name(chunk))?;
        Ok(true)
    }

    /// Removes the raw chunk, whose columns and their name are synced. Returns the length of the
    /// columns; `None` when the raw chunk was removed or written since. No other thread may do
    /// either during the call.
    ///
    /// # Errors
    /// The errors of the disk. The raw chunk still counts.
    pub fn drop_raw(&self, chunk: DataChunk) -> Result<Option<u64>> {
        if !lock(&self.switching).remove(&chunk) {
            return Ok(None);
        }
        let bytes = self.disk.read(&columnar_name(chunk), 0, CHUNK_BYTES)?.len() as u64;
        if bytes == 0 {
            return Ok(None);
        }
        // A reader that misses the raw chunk looks for columns in any case.
        self.disk.remove(&chunk.raw_name())?;
        lock(&self.columnar).insert(chunk, bytes);
        Ok(Some(bytes))
    }

    /// Reads a part of a chunk that is in columns; `None` when it is not.
    fn read_columnar(
        &self,
        chunk: DataChunk,
        offset: u64,
        len: usize,
    ) -> core::result::Result<Option<Bytes>, StorageError> {
        let name = columnar_name(chunk);
        let Range { start, end } = within_chunk(offset, len);
        let group = (start / GROUP_BYTES) as u32;
        let in_group = |bytes: &Bytes| {
            let from = start % GROUP_BYTES;
            bytes.slice(from..from + (end - start))
        };
        let is_in_one = start < end && (end - 1) / GROUP_BYTES == start / GROUP_BYTES;
        if let Some(recent) = &*lock(&self.recent)
            && (recent.chunk, recent.group) == (chunk, group)
            && is_in_one
        {
            return Ok(Some(in_group(&recent.bytes)));
        }
        let stored = self.disk.read(&name, 0, CHUNK_BYTES)?;
        if stored.is_empty() {
            return Ok(None);
        }
        if !is_in_one {
            return decode_part(self.codec, &name, &stored, offset, len).map(Some);
        }
        let whole = (u64::from(group) * GROUP_BYTES as u64, GROUP_BYTES);
        let bytes = decode_part(self.codec, &name, &stored, whole.0, whole.1)?;
        let found = in_group(&bytes);
        *lock(&self.recent) = Some(Recent { chunk, group, bytes });
        Ok(Some(found))
    }

    /// Ends a switch that failed. What was staged goes.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn abandon(&self, chunk: DataChunk) -> Result<()> {
        lock(&self.switching).remove(&chunk);
        Ok(self.disk.remove(&staged_name(chunk))?)
    }

    fn forget(&self, chunk: DataChunk) {
        lock(&self.switching).remove(&chunk);
        lock(&self.columnar).remove(&chunk);
        lock(&self.recent).take_if(|recent| recent.chunk == chunk);
    }

    /// Makes a chunk raw again. A damaged group is a hole in the raw chunk.
    fn make_raw(&self, chunk: DataChunk) -> core::result::Result<(), StorageError> {
        let (name, raw) = (columnar_name(chunk), chunk.raw_name());
        let stored = self.disk.read(&name, 0, CHUNK_BYTES)?;
        let codec = self.codec.ok_or_else(|| without_codec(&name))?;
        let (mut is_whole, mut has_raw) = (true, false);
        for group in 0..GROUPS_PER_CHUNK {
            let offset = u64::from(group) * GROUP_BYTES as u64;
            match codec.decode(&stored, group, &name) {
                Ok(bytes) => {
                    self.disk.write(&raw, offset, &bytes)?;
                    has_raw = true;
                }
                Err(_) => is_whole = false,
            }
        }
        // Without a group that is whole, there is no raw chunk yet.
        if has_raw {
            self.disk.sync(&raw)?;
        }
        match is_whole {
            true => self.disk.remove(&name)?,
            false => self
                .disk
                .rename(&name, &format!("DAMAGED-{}-{}{COLUMNS}", chunk.file, chunk.number))?,
        }
        self.forget(chunk);
        Ok(())
    }
}

impl<D: Disk> Disk for ColumnDisk<D> {
    fn write(
        &self,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> core::result::Result<(), StorageError> {
        if let Some(chunk) = parse_data(name) {
            lock(&self.switching).remove(&chunk);
            if lock(&self.columnar).contains_key(&chunk) {
                self.make_raw(chunk)?;
            }
        }
        self.disk.write(name, offset, bytes)
    }

    fn sync(&self, name: &str) -> core::result::Result<(), StorageError> {
        self.disk.sync(name)
    }

    fn sync_all(&self) -> core::result::Result<(), StorageError> {
        self.disk.sync_all()
    }

    fn read(
        &self,
        name: &str,
        offset: u64,
        len: usize,
    ) -> core::result::Result<Bytes, StorageError> {
        let Some(chunk) = parse_data(name) else { return self.disk.read(name, offset, len) };
        if !lock(&self.columnar).contains_key(&chunk) {
            let bytes = self.disk.read(name, offset, len)?;
            // The chunk may have changed its form since the disk was listed.
            if !bytes.is_empty() || len == 0 || self.codec.is_none() {
                return Ok(bytes);
            }
        }
        match self.read_columnar(chunk, offset, len)? {
            Some(bytes) => Ok(bytes),
            None => self.disk.read(name, offset, len),
        }
    }

    /// Chunks in columns stand here under the names and with the lengths of the raw chunks.
    fn list(&self) -> core::result::Result<Vec<(String, u64)>, StorageError> {
        let mut listed = BTreeMap::new();
        for (name, bytes) in self.disk.list()? {
            if let Some(chunk) = parse_with(&name, COLUMNS) {
                if bytes > 0 {
                    let raw = chunk.raw_name();
                    listed.entry(raw).or_insert(CHUNK_BYTES as u64);
                }
            } else if parse_with(&name, STAGED).is_none() {
                // The raw chunk counts, and its name comes before that of its columns.
                listed.insert(name, bytes);
            }
        }
        Ok(listed.into_iter().collect())
    }

    fn remove(&self, name: &str) -> core::result::Result<(), StorageError> {
        self.disk.remove(name)?;
        let Some(chunk) = parse_data(name) else { return Ok(()) };
        self.disk.remove(&columnar_name(chunk))?;
        self.forget(chunk);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> core::result::Result<(), StorageError> {
        self.disk.rename(from, to)
    }
}
