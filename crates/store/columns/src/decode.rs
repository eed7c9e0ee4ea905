//! The segments of a raw chunk, out of its Parquet file.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_store_format::columnar::{GROUPS_PER_CHUNK, SEGMENTS_PER_GROUP};
use evenfall_store_format::layout::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK};
use evenfall_store_format::segment::{self, Header};
use evenfall_store_format::{Error, Field, FileId, Kind, Result};
use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReader;
use parquet::data_type::FixedLenByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::ReaderProperties;
use parquet::file::reader::RowGroupReader as _;
use parquet::file::serialized_reader::SerializedRowGroupReader;

use crate::checksums::Checksums;
use crate::damaged;
use crate::encode::{ABOUT, About, VERSION};
use crate::plan::{ColumnKind, ColumnPlan, WIDE_BYTES, plan};

/// The rows that a group gets back, with the headers of their segments still missing.
struct Segments {
    bytes: Vec<u8>,
    size: usize,
    rows_per_segment: usize,
}

impl Segments {
    fn rows(&mut self) -> impl Iterator<Item = &mut [u8]> {
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
            return self.put(
                column,
                values.iter().map(|value| {
                    // The first of the nine bytes repeats the sign.
                    let mut bytes: [u8; 8] =
                        value.data()[1..WIDE_BYTES].try_into().unwrap_or_default();
                    bytes.reverse();
                    bytes
                }),
            );
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

    /// Reads all values of a column, and puts them into the rows.
    fn read(
        &mut self,
        column: &ColumnPlan,
        reader: ColumnReader,
        rows: usize,
    ) -> Result<(), ParquetError> {
        let read = match reader {
            ColumnReader::Int32ColumnReader(mut from) if column.kind == ColumnKind::Word => {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                self.put_words(column, &values);
                values.len()
            }
            ColumnReader::Int64ColumnReader(mut from) if column.kind == ColumnKind::Long => {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                self.put(column, values.iter().map(|value: &i64| value.to_le_bytes()));
                values.len()
            }
            ColumnReader::DoubleColumnReader(mut from) if column.kind == ColumnKind::Double => {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                self.put(column, values.iter().map(|value: &f64| value.to_le_bytes()));
                values.len()
            }
            ColumnReader::FixedLenByteArrayColumnReader(mut from)
                if matches!(column.kind, ColumnKind::Fixed | ColumnKind::Wide) =>
            {
                let mut values = Vec::with_capacity(rows);
                from.read_records(rows, None, None, &mut values)?;
                let len = if column.kind == ColumnKind::Wide { WIDE_BYTES } else { column.bytes() };
                if values.iter().any(|value| value.len() != len) {
                    return Err(ParquetError::General("a value of another length".into()));
                }
                self.put_fixed(column, &values);
                values.len()
            }
            _ => return Err(ParquetError::General("a column of another type".into())),
        };
        match read == rows {
            true => Ok(()),
            false => Err(ParquetError::General(format!("{read} of {rows} rows"))),
        }
    }

    fn sealed(mut self, about: &About, group: u32) -> Bytes {
        let first = group * SEGMENTS_PER_GROUP;
        for (slot, bytes) in (first..).zip(self.bytes.chunks_exact_mut(SEGMENT_BYTES)) {
            let after = about.tokens.partition_point(|(from, _)| *from <= slot);
            let token = after.checked_sub(1).map_or(0, |at| about.tokens[at].1);
            let header = Header {
                kind: Kind::Data,
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

/// What the footer says of the chunk.
fn about(metadata: &ParquetMetaData, place: &str) -> Result<About> {
    let pairs = metadata.file_metadata().key_value_metadata();
    let pair = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == ABOUT));
    let text = pair.and_then(|pair| pair.value.as_deref());
    let text = text.ok_or_else(|| damaged(place, "its footer does not say which chunk it is"))?;
    let about: About = serde_json::from_str(text).map_err(|error| damaged(place, error))?;
    if about.version != VERSION {
        return Err(Error::Version { place: place.into(), version: about.version });
    }
    about.schema.check()?;
    if about.chunk > u32::MAX / SEGMENTS_PER_CHUNK {
        return Err(damaged(place, "no chunk has its number"));
    }
    Ok(about)
}

/// The segments of one group of a stored chunk.
///
/// # Errors
/// [`Error::Damaged`] when the footer, a column or a checksum is not as it was written.
pub(crate) fn decode(stored: &Bytes, group: u32, place: &str) -> Result<Bytes> {
    let checksums = Checksums::of(stored, place)?;
    let metadata = ParquetMetaDataReader::new().parse_and_finish(stored);
    let metadata = metadata.map_err(|error| damaged(place, error))?;
    let about = about(&metadata, place)?;
    let columns = planned(&about, &metadata);
    let groups = metadata.num_row_groups();
    if groups != GROUPS_PER_CHUNK as usize || group >= GROUPS_PER_CHUNK {
        return Err(damaged(place, format!("{groups} groups of rows")));
    }
    let layout = about.schema.layout()?;
    let rows_per_segment = layout.records_per_segment() as usize;
    let rows = rows_per_segment * SEGMENTS_PER_GROUP as usize;
    let of = metadata.row_group(group as usize);
    if of.num_columns() != columns.len() || of.num_rows() != rows as i64 {
        return Err(damaged(place, "its columns are not those of its schema"));
    }
    let mut segments = Segments {
        bytes: vec![0; SEGMENTS_PER_GROUP as usize * SEGMENT_BYTES],
        size: layout.record_bytes(),
        rows_per_segment,
    };
    for (column, chunk) in columns.iter().zip(of.columns()) {
        let (start, len) = chunk.byte_range();
        let range = start as usize..start.saturating_add(len) as usize;
        let what = format!("column {} of group {group}", column.name);
        checksums.check(stored, range, &what, place)?;
    }
    let source = Arc::new(stored.clone());
    let properties = Arc::new(ReaderProperties::builder().build());
    let reader = SerializedRowGroupReader::new(source, of, None, properties);
    let reader = reader.map_err(|error| damaged(place, error))?;
    for (at, column) in columns.iter().enumerate() {
        let done =
            reader.get_column_reader(at).and_then(|reader| segments.read(column, reader, rows));
        done.map_err(|error| damaged(place, format!("column {}: {error}", column.name)))?;
    }
    Ok(segments.sealed(&about, group))
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
