//! The segments of a raw chunk, out of its Parquet file.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_store_format::columnar::{GROUPS_PER_CHUNK, SEGMENTS_PER_GROUP};
use evenfall_store_format::layout::{
    Layout, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::segment::{self, SegmentHeader};
use evenfall_store_format::{Error, Field, FileId, Result, Schema, SegmentKind};
use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReader;
use parquet::data_type::FixedLenByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::properties::ReaderProperties;
use parquet::file::reader::RowGroupReader as _;
use parquet::file::serialized_reader::SerializedRowGroupReader;
use parquet::schema::types::ColumnDescriptor;

use crate::checksums::Checksums;
use crate::damaged;
use crate::encode::{ABOUT, About, MESSAGES_VERSION, PARTED_VERSION, VERSION};
use crate::messages;
use crate::plan::{ColumnKind, ColumnPlan, WIDE_BYTES, plan};

/// The rows that a group gets back, with the headers of their segments still missing.
pub(crate) struct Segments {
    bytes: Vec<u8>,
    size: usize,
    rows_per_segment: usize,
}

impl Segments {
    pub(crate) fn rows(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (size, len) = (self.size, self.size * self.rows_per_segment);
        let segments = self.bytes.chunks_exact_mut(SEGMENT_BYTES);
        segments.flat_map(move |one| {
            one[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + len].chunks_exact_mut(size)
        })
    }

    /// Puts a number into each row.
    fn put<const N: usize>(&mut self, column: &ColumnPlan, values: impl Iterator<Item = [u8; N]>) {
        let at = column.pieces[0].start;
        self.rows().zip(values).for_each(|(row, value)| row[at..at + N].copy_from_slice(&value));
    }

    fn put_words(&mut self, column: &ColumnPlan, values: &[i32]) {
        match column.bytes() {
            1 => self.put(column, values.iter().map(|value| [value.to_le_bytes()[0]])),
            2 => self.put(
                column,
                values.iter().map(|value| {
                    let [low, high, ..] = value.to_le_bytes();
                    [low, high]
                }),
            ),
            _ => self.put(column, values.iter().map(|value| value.to_le_bytes())),
        }
    }

    fn put_fixed(&mut self, column: &ColumnPlan, values: &[FixedLenByteArray]) {
        if column.kind == ColumnKind::Wide {
            return self.put(column, values.iter().map(wide_bytes));
        }
        for (row, value) in self.rows().zip(values) {
            let mut rest = value.data();
            for piece in &column.pieces {
                let (these, others) = rest.split_at(piece.len());
                row[piece.clone()].copy_from_slice(these);
                rest = others;
            }
        }
    }

    /// Puts all values of a column into the rows.
    fn put_column(&mut self, column: &ColumnPlan, values: &ColumnValues) {
        match values {
            ColumnValues::Words(values) => self.put_words(column, values),
            ColumnValues::Longs(values) => {
                self.put(column, values.iter().map(|value| value.to_le_bytes()));
            }
            ColumnValues::Doubles(values) => {
                self.put(column, values.iter().map(|value| value.to_le_bytes()));
            }
            ColumnValues::Fixed(values) => self.put_fixed(column, values),
        }
    }

    fn sealed(mut self, about: &About, group: u32) -> Bytes {
        let first = group * SEGMENTS_PER_GROUP;
        for (slot, bytes) in (first..).zip(self.bytes.chunks_exact_mut(SEGMENT_BYTES)) {
            let after = about.tokens.partition_point(|(from, _)| *from <= slot);
            let token = after.checked_sub(1).map_or(0, |at| about.tokens[at].1);
            let header = SegmentHeader {
                kind: SegmentKind::Data,
                entry_bytes: self.size as u16,
                file: FileId(about.file),
                number: about.chunk * SEGMENTS_PER_CHUNK + slot,
                count: self.rows_per_segment as u32,
                token,
            };
            segment::seal(&header, bytes);
        }
        Bytes::from(self.bytes)
    }
}

/// The eight bytes of a wide price, the least first.
fn wide_bytes(value: &FixedLenByteArray) -> [u8; 8] {
    // The first of the nine bytes repeats the sign.
    let mut bytes: [u8; 8] = value.data()[1..WIDE_BYTES].try_into().unwrap_or_default();
    bytes.reverse();
    bytes
}

/// The values of a column in a group.
enum ColumnValues {
    Words(Vec<i32>),
    Longs(Vec<i64>),
    Doubles(Vec<f64>),
    Fixed(Vec<FixedLenByteArray>),
}

impl ColumnValues {
    fn read(column: &ColumnPlan, reader: ColumnReader, rows: usize) -> Result<Self, ParquetError> {
        let (read, values) = match reader {
            ColumnReader::Int32ColumnReader(mut from) if column.kind == ColumnKind::Word => {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                (values.len(), Self::Words(values))
            }
            ColumnReader::Int64ColumnReader(mut from) if column.kind == ColumnKind::Long => {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                (values.len(), Self::Longs(values))
            }
            ColumnReader::DoubleColumnReader(mut from) if column.kind == ColumnKind::Double => {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                (values.len(), Self::Doubles(values))
            }
            ColumnReader::FixedLenByteArrayColumnReader(mut from)
                if matches!(column.kind, ColumnKind::Fixed | ColumnKind::Wide) =>
            {
                let mut values: Vec<FixedLenByteArray> = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                let len = if column.kind == ColumnKind::Wide { WIDE_BYTES } else { column.bytes() };
                if values.iter().any(|value| value.len() != len) {
                    return Err(ParquetError::General("a value of another length".into()));
                }
                (values.len(), Self::Fixed(values))
            }
            _ => return Err(ParquetError::General("a column of another type".into())),
        };
        match read == rows {
            true => Ok(values),
            false => Err(ParquetError::General(format!("{read} of {rows} rows"))),
        }
    }

    /// Appends the values of a field as its bytes in the rows.
    fn append_to(&self, column: &ColumnPlan, bytes: &mut Vec<u8>) {
        match self {
            Self::Words(values) => {
                let len = column.bytes();
                values.iter().for_each(|value| bytes.extend(&value.to_le_bytes()[..len]));
            }
            Self::Longs(values) => {
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            Self::Doubles(values) => {
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            Self::Fixed(values) if column.kind == ColumnKind::Wide => {
                values.iter().for_each(|value| bytes.extend(wide_bytes(value)));
            }
            Self::Fixed(values) => values.iter().for_each(|value| bytes.extend(value.data())),
        }
    }
}

/// What the footer says of the chunk.
fn about(metadata: &ParquetMetaData, place: &str) -> Result<About> {
    let pairs = metadata.file_metadata().key_value_metadata();
    let pair = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == ABOUT));
    let text = pair.and_then(|pair| pair.value.as_deref());
    let text = text.ok_or_else(|| damaged(place, "its footer does not say which chunk it is"))?;
    let about: About = serde_json::from_str(text).map_err(|error| damaged(place, error))?;
    if !matches!(about.version, VERSION | MESSAGES_VERSION | PARTED_VERSION) {
        return Err(Error::Version { place: place.into(), version: about.version });
    }
    if about.messages.is_some() != (about.version != VERSION) {
        return Err(damaged(place, "its version does not tell whether it has messages"));
    }
    about.schema.check()?;
    if about.chunk > u32::MAX / SEGMENTS_PER_CHUNK {
        return Err(damaged(place, "no chunk has its number"));
    }
    Ok(about)
}

/// Where the footer says that a column lies; `None` for a place that no file has. The library's
/// own `byte_range` ends the process for such a place.
pub(crate) fn bytes_of(column: &ColumnChunkMetaData) -> Option<Range<usize>> {
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let end = start.checked_add(column.compressed_size())?;
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// A stored chunk whose footer was read.
pub(crate) struct StoredChunk<'a> {
    stored: &'a Bytes,
    pub place: &'a str,
    checksums: Checksums,
    metadata: ParquetMetaData,
    pub about: About,
    layout: Layout,
}

impl<'a> StoredChunk<'a> {
    pub(crate) fn open(stored: &'a Bytes, place: &'a str) -> Result<Self> {
        let checksums = Checksums::of(stored, place)?;
        let metadata = ParquetMetaDataReader::new().parse_and_finish(stored);
        let metadata = metadata.map_err(|error| damaged(place, error))?;
        let about = about(&metadata, place)?;
        let groups = metadata.num_row_groups();
        if groups != GROUPS_PER_CHUNK as usize {
            return Err(damaged(place, format!("{groups} groups of rows")));
        }
        let layout = about.schema.layout()?;
        Ok(Self { stored, place, checksums, metadata, about, layout })
    }

    /// Records of each group.
    pub(crate) fn rows(&self) -> usize {
        self.layout.records_per_segment() as usize * SEGMENTS_PER_GROUP as usize
    }

    /// Readers of the columns of a group, which has this many columns.
    pub(crate) fn group(&self, group: u32, columns: usize) -> Result<GroupReader<'_>> {
        let place = self.place;
        if group >= GROUPS_PER_CHUNK {
            return Err(damaged(place, format!("it has no group {group}")));
        }
        let of = self.metadata.row_group(group as usize);
        let rows = usize::try_from(of.num_rows()).unwrap_or_default();
        // A message in parts is one row.
        let is_parted = self.about.version == PARTED_VERSION;
        let has_rows = if is_parted { 1..=self.rows() } else { self.rows()..=self.rows() };
        if of.num_columns() != columns || !has_rows.contains(&rows) {
            return Err(damaged(place, "its columns are not those of its schema"));
        }
        let source = Arc::new(self.stored.clone());
        let properties = Arc::new(ReaderProperties::builder().build());
        let reader = SerializedRowGroupReader::new(source, of, None, properties);
        let reader = reader.map_err(|error| damaged(place, error))?;
        Ok(GroupReader { chunk: self, group, of, rows, reader })
    }

    /// Gives these columns of a group to `each`, with their places in `wanted`.
    fn read_columns(
        &self,
        group: u32,
        columns: &[ColumnPlan],
        wanted: &[usize],
        mut each: impl FnMut(usize, &ColumnPlan, &ColumnValues),
    ) -> Result<()> {
        let group = self.group(group, columns.len())?;
        for (at, column) in wanted.iter().enumerate() {
            let plan = columns.get(*column);
            let plan =
                plan.ok_or_else(|| damaged(self.place, format!("it has no column {column}")))?;
            let values = group.read(*column, &plan.name, |reader, _| {
                ColumnValues::read(plan, reader, self.rows())
            })?;
            each(at, plan, &values);
        }
        Ok(())
    }

    /// Segments of a group without their rows.
    fn empty_segments(&self) -> Segments {
        Segments {
            bytes: vec![0; SEGMENTS_PER_GROUP as usize * SEGMENT_BYTES],
            size: self.layout.record_bytes(),
            rows_per_segment: self.layout.records_per_segment() as usize,
        }
    }
}

/// The columns of a group of rows.
pub(crate) struct GroupReader<'a> {
    chunk: &'a StoredChunk<'a>,
    group: u32,
    of: &'a RowGroupMetaData,
    rows: usize,
    reader: SerializedRowGroupReader<'a, Bytes>,
}

impl GroupReader<'_> {
    /// Number of rows in each column of the group.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Reads the column at this place, after a check of its bytes.
    pub(crate) fn read<T>(
        &self,
        column: usize,
        name: &str,
        read: impl FnOnce(ColumnReader, &ColumnDescriptor) -> Result<T, ParquetError>,
    ) -> Result<T> {
        let StoredChunk { stored, place, checksums, .. } = self.chunk;
        let of = self.of.column(column);
        let range = bytes_of(of);
        let range = range.ok_or_else(|| damaged(place, "its footer has negative places"))?;
        let what = format!("column {name} of group {}", self.group);
        checksums.check(stored, range, &what, place)?;
        let reader = self.reader.get_column_reader(column);
        let values = reader.and_then(|reader| read(reader, of.column_descr()));
        values.map_err(|error| damaged(place, format!("column {name}: {error}")))
    }
}

/// The segments of one group of a stored chunk.
///
/// # Errors
/// [`Error::Damaged`] when the footer, a column or a checksum is not as it was written.
pub(crate) fn decode(stored: &Bytes, group: u32, place: &str) -> Result<Bytes> {
    let chunk = StoredChunk::open(stored, place)?;
    let mut segments = chunk.empty_segments();
    if chunk.about.messages.is_some() {
        messages::read_rows(&chunk, group, &mut segments)?;
    } else {
        let columns = planned(&chunk.about, &chunk.metadata);
        let all: Vec<usize> = (0..columns.len()).collect();
        chunk.read_columns(group, &columns, &all, |_, column, values| {
            segments.put_column(column, values);
        })?;
    }
    Ok(segments.sealed(&chunk.about, group))
}

/// The bytes of these fields in the rows of some groups, field by field.
///
/// # Errors
/// As for [`decode`]. Only the columns of the fields are checked.
pub(crate) fn decode_fields(
    stored: &Bytes,
    groups: Range<u32>,
    fields: &[usize],
    place: &str,
) -> Result<Vec<Vec<u8>>> {
    let chunk = StoredChunk::open(stored, place)?;
    let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); fields.len()];
    let columns = planned(&chunk.about, &chunk.metadata);
    for group in groups.clone() {
        if chunk.about.messages.is_some() {
            let mut segments = chunk.empty_segments();
            messages::read_rows(&chunk, group, &mut segments)?;
            put_fields(&chunk.about.schema, fields, &mut segments, &mut bytes);
            continue;
        }
        chunk.read_columns(group, &columns, fields, |at, column, values| {
            let field = &mut bytes[at];
            field.reserve_exact(chunk.rows() * column.bytes() * (groups.end - group) as usize);
            values.append_to(column, field);
        })?;
    }
    Ok(bytes)
}

/// Appends the bytes of these fields in all rows.
fn put_fields(schema: &Schema, fields: &[usize], rows: &mut Segments, bytes: &mut [Vec<u8>]) {
    for row in rows.rows() {
        for (field, bytes) in fields.iter().zip(&mut *bytes) {
            bytes.extend(schema.fields.get(*field).into_iter().flat_map(|field| field.of(row)));
        }
    }
}

/// The columns as they were written: the type of a price's column tells how wide its values are.
fn planned(about: &About, metadata: &ParquetMetaData) -> Vec<ColumnPlan> {
    let described = metadata.file_metadata().schema_descr();
    let is_wide = |field: &Field| {
        let column = described.columns().iter().find(|column| column.name() == field.name);
        column.is_some_and(|column| column.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY)
    };
    plan(&about.schema, &is_wide)
}
