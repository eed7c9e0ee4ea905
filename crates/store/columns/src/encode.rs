//! A raw chunk becomes a Parquet file.
//!
//! No encoding is best for all fields of a type: times and counters grow in small steps, references
//! share their upper bytes, a venue takes few values, a float is noise in its last bytes. Their
//! names do not say which. So a sample of the chunk, [`SAMPLE_ROWS`] rows from two places, is
//! encoded and compressed in every way that fits the column's type.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_store_format::columnar::{GROUPS_PER_CHUNK, SEGMENTS_PER_GROUP};
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::messages::{FormatLayout, InstalledLayouts};
use evenfall_store_format::{FieldType, Result, Schema, SegmentKind, segment};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnPath, SchemaDescriptor, TypePtr};

use crate::messages::ChunkMessages;
use crate::plan::{ColumnKind, ColumnPlan, WIDE_BYTES, is_wide_price, parquet_schema, plan};
use crate::{checksums, damaged, decode, messages};

/// Key of [`About`] in the footer.
pub(crate) const ABOUT: &str = "evenfall";
/// Rows that are encoded in several ways. 8,192 rows show the steps of a counter and the values of
/// a dictionary, and encoding them takes a tenth of the time of the chunk.
const SAMPLE_ROWS: usize = 8_192;
/// The level of Zstandard. On ticks and ITCH messages, level 3 saves one per cent of the bytes and
/// takes a third more time.
const ZSTD_LEVEL: i32 = 1;
/// Limit of a page. A group has at most 1 MiB of rows, so a column of it is one page.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// What the footer says of a chunk besides its columns.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct About {
    /// Version of the meaning of all this.
    pub version: u8,
    pub file: u64,
    pub chunk: u32,
    /// Each token behind the first segment that has it, counted within the chunk.
    pub tokens: Vec<(u32, u32)>,
    pub schema: Schema,
    /// How the messages of the rows were shredded; `None` for rows that are no messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<FormatLayout>>,
}

/// The version of a chunk whose columns are the fields of its schema.
pub(crate) const VERSION: u8 = 1;
/// The version of a chunk whose messages were shredded. Builds that know version 1 alone refuse it
/// by its number.
pub(crate) const MESSAGES_VERSION: u8 = 2;
/// The version of a chunk whose messages were put together out of their parts, and shredded.
pub(crate) const PARTED_VERSION: u8 = 3;

/// The rows of a chunk or of a part of it, segment by segment.
#[derive(Clone, Debug)]
pub(crate) struct Rows<'a> {
    parts: Vec<&'a [u8]>,
    size: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(bytes: &'a [u8], size: usize, rows_per_segment: usize) -> Self {
        let rows = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + size * rows_per_segment;
        let parts = bytes.chunks_exact(SEGMENT_BYTES).map(|one| &one[rows.clone()]).collect();
        Self { parts, size }
    }

    pub(crate) fn group(&self, group: u32) -> Self {
        let first = (group * SEGMENTS_PER_GROUP) as usize;
        let parts = self.parts[first..first + SEGMENTS_PER_GROUP as usize].to_vec();
        Self { parts, size: self.size }
    }

    /// Two runs of segments that have a sample together.
    pub(crate) fn sample(&self) -> Self {
        let rows = self.parts.first().map_or(1, |part| part.len() / self.size).max(1);
        let run = (SAMPLE_ROWS / 2).div_ceil(rows).min(self.parts.len() / 2);
        let starts = [self.parts.len() / 4, self.parts.len() * 3 / 4 - run / 2];
        let parts = starts.iter().flat_map(|at| &self.parts[*at..at + run]).copied().collect();
        Self { parts, size: self.size }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.parts.iter().flat_map(|part| part.chunks_exact(self.size))
    }

    /// All rows in order, by an iterator that does not borrow this value.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = &'a [u8]> {
        let size = self.size;
        self.parts.into_iter().flat_map(move |part| part.chunks_exact(size))
    }

    /// The numbers of `N` bytes in this place of each row.
    fn numbers<const N: usize>(&self, at: usize) -> impl Iterator<Item = [u8; N]> + '_ {
        self.rows().map(move |row| {
            // The place comes from a checked schema. A wrong one would give zeros and no panic.
            row.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
        })
    }
}

/// The values of one column.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    Words(Vec<i32>),
    Longs(Vec<i64>),
    Doubles(Vec<f64>),
    Fixed(Vec<FixedLenByteArray>),
    Texts(Vec<ByteArray>),
}

impl Values {
    fn of(rows: &Rows<'_>, column: &ColumnPlan) -> Self {
        let Range { start: at, end } = column.pieces[0];
        match (column.kind, end - at) {
            (ColumnKind::Word, 1) => {
                Self::Words(rows.numbers::<1>(at).map(|[byte]| byte.into()).collect())
            }
            (ColumnKind::Word, 2) => Self::Words(
                rows.numbers(at).map(|bytes| u16::from_le_bytes(bytes).into()).collect(),
            ),
            (ColumnKind::Word, _) => {
                Self::Words(rows.numbers(at).map(i32::from_le_bytes).collect())
            }
            (ColumnKind::Long, _) => {
                Self::Longs(rows.numbers(at).map(i64::from_le_bytes).collect())
            }
            (ColumnKind::Double, _) => {
                Self::Doubles(rows.numbers(at).map(f64::from_le_bytes).collect())
            }
            (ColumnKind::Wide, _) => {
                let wide = |bytes| i128::from(i64::from_le_bytes(bytes)).to_be_bytes();
                let prices =
                    rows.numbers(at).flat_map(|bytes| wide(bytes)[16 - WIDE_BYTES..].to_vec());
                Self::fixed(prices.collect(), WIDE_BYTES)
            }
            (ColumnKind::Fixed, _) => {
                let piece = |row: &[u8], out: &mut Vec<u8>| {
                    column.pieces.iter().for_each(|at| out.extend_from_slice(&row[at.clone()]));
                };
                let mut bytes = Vec::new();
                rows.rows().for_each(|row| piece(row, &mut bytes));
                Self::fixed(bytes, column.bytes())
            }
            // No field of a schema has values of many lengths.
            (ColumnKind::Text, _) => Self::Texts(Vec::new()),
        }
    }

    fn fixed(bytes: Vec<u8>, len: usize) -> Self {
        let bytes = Bytes::from(bytes);
        let values = (0..bytes.len() / len).map(|at| bytes.slice(at * len..(at + 1) * len));
        Self::Fixed(values.map(|value| ByteArray::from(value).into()).collect())
    }

    /// Adds the values of another part of the column.
    pub(crate) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Words(all), Self::Words(more)) => all.extend(more),
            (Self::Longs(all), Self::Longs(more)) => all.extend(more),
            (Self::Texts(all), Self::Texts(more)) => all.extend(more),
            _ => {}
        }
    }

    /// Writes the values. `levels` has a 1 for each row with a value, and a 0 for the others;
    /// `None` for a column without nulls.
    fn write(
        &self,
        writer: &mut ColumnWriter<'_>,
        levels: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        match (writer, self) {
            (ColumnWriter::Int32ColumnWriter(to), Self::Words(values)) => {
                to.write_batch(values, levels, None)
            }
            (ColumnWriter::Int64ColumnWriter(to), Self::Longs(values)) => {
                to.write_batch(values, levels, None)
            }
            (ColumnWriter::DoubleColumnWriter(to), Self::Doubles(values)) => {
                to.write_batch(values, levels, None)
            }
            (ColumnWriter::FixedLenByteArrayColumnWriter(to), Self::Fixed(values)) => {
                to.write_batch(values, levels, None)
            }
            (ColumnWriter::ByteArrayColumnWriter(to), Self::Texts(values)) => {
                to.write_batch(values, levels, None)
            }
            _ => return Err(ParquetError::General("a column of another type".into())),
        }
        .map(drop)
    }
}

/// A way to encode a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Differences, in as many bits as they need: times and counters.
    Delta,
    /// All first bytes, then all second bytes, and so on: references and floats.
    Split,
    /// A list of values, and places in it: few values.
    Dictionary,
    Plain,
}

impl Coding {
    fn all(kind: ColumnKind) -> &'static [Self] {
        match kind {
            ColumnKind::Word | ColumnKind::Long => {
                &[Self::Delta, Self::Split, Self::Dictionary, Self::Plain]
            }
            ColumnKind::Double => &[Self::Split, Self::Dictionary, Self::Plain],
            // DuckDB 2.0 and polars 2.1 read no split columns of fixed length.
            ColumnKind::Wide | ColumnKind::Fixed | ColumnKind::Text => {
                &[Self::Dictionary, Self::Plain]
            }
        }
    }

    pub(crate) fn set(
        self,
        to: WriterPropertiesBuilder,
        name: &str,
        kind: ColumnKind,
    ) -> WriterPropertiesBuilder {
        let path = || ColumnPath::new(vec![name.to_owned()]);
        let encoding = match self {
            Self::Delta => Encoding::DELTA_BINARY_PACKED,
            Self::Split => Encoding::BYTE_STREAM_SPLIT,
            Self::Dictionary | Self::Plain => Encoding::PLAIN,
        };
        // Other readers skip groups by the statistics of numbers. Those of bytes help nobody.
        let statistics = match kind {
            ColumnKind::Word | ColumnKind::Long | ColumnKind::Double => EnabledStatistics::Chunk,
            ColumnKind::Wide | ColumnKind::Fixed | ColumnKind::Text => EnabledStatistics::None,
        };
        to.set_column_encoding(path(), encoding)
            .set_column_dictionary_enabled(path(), self == Self::Dictionary)
            .set_column_statistics_enabled(path(), statistics)
    }
}

pub(crate) fn properties(rows: usize) -> WriterPropertiesBuilder {
    let level = ZstdLevel::try_new(ZSTD_LEVEL).unwrap_or_default();
    WriterProperties::builder()
        .set_created_by(concat!("evenfall ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_data_page_size_limit(PAGE_BYTES_MAX)
        .set_data_page_row_count_limit(rows.max(1))
        .set_write_batch_size(rows.max(1))
        // A column of a group has one page, whose place the footer knows.
        .set_offset_index_disabled(true)
}

/// A part of a column with what is known of the column.
pub(crate) struct Sample<'a> {
    pub name: &'a str,
    pub kind: ColumnKind,
    pub values: Values,
    /// As for [`Values::write`].
    pub levels: Option<Vec<i16>>,
    /// Rows with and without a value.
    pub rows: usize,
}

/// The coding of the column at this place that takes the fewest bytes for a sample.
pub(crate) fn choose(
    sample: &Sample<'_>,
    schema: &TypePtr,
    at: usize,
) -> Result<Coding, ParquetError> {
    let mut best = (u64::MAX, Coding::Plain);
    for coding in Coding::all(sample.kind) {
        let properties = coding.set(properties(sample.rows), sample.name, sample.kind).build();
        let descriptor = SchemaDescriptor::new(Arc::clone(schema)).column(at);
        let mut out = TrackedWrite::new(Vec::new());
        let pages = Box::new(SerializedPageWriter::new(&mut out));
        let mut writer = get_column_writer(descriptor, Arc::new(properties), pages);
        sample.values.write(&mut writer, sample.levels.as_deref())?;
        let bytes = writer.close()?.bytes_written;
        if bytes < best.0 {
            best = (bytes, *coding);
        }
    }
    Ok(best.1)
}

/// The tokens of a chunk's segments; `None` when it cannot be told from its rows alone, because it
/// is no whole chunk, has lost rows, or has bytes where none belong.
fn tokens_of(schema: &Schema, chunk: DataChunk, bytes: &[u8]) -> Result<Option<Vec<(u32, u32)>>> {
    let layout = schema.layout()?;
    let payload = layout.payload_bytes(layout.records_per_segment() as usize);
    if bytes.len() != CHUNK_BYTES {
        return Ok(None);
    }
    let mut tokens: Vec<(u32, u32)> = Vec::new();
    for (slot, part) in (0..SEGMENTS_PER_CHUNK).zip(bytes.chunks_exact(SEGMENT_BYTES)) {
        let number = chunk.first_segment() + slot;
        let header = segment::expect(part, SegmentKind::Data, chunk.file, number)?;
        let is_whole = u64::from(header.count) == layout.records_per_segment()
            && header.entry_bytes == schema.record_bytes
            && part[SEGMENT_HEADER_BYTES + payload..].iter().all(|byte| *byte == 0);
        if !is_whole {
            return Ok(None);
        }
        if tokens.last().is_none_or(|(_, token)| *token != header.token) {
            tokens.push((slot, header.token));
        }
    }
    Ok(Some(tokens))
}

/// The chunk as a Parquet file; `None` when it is better left as it is. `layouts` shred the
/// messages of a recording.
///
/// # Errors
/// [`Error::Damaged`](evenfall_store_format::Error::Damaged) for a chunk with a segment that is not
/// whole, and when the file does not give the chunk back.
pub(crate) fn encode(
    schema: &Schema,
    chunk: DataChunk,
    bytes: &Bytes,
    layouts: InstalledLayouts,
) -> Result<Option<Bytes>> {
    schema.check()?;
    let place = chunk.raw_name();
    let Some(tokens) = tokens_of(schema, chunk, bytes)? else { return Ok(None) };
    let (size, layout) = (usize::from(schema.record_bytes), schema.layout()?);
    let rows = Rows::new(bytes, size, layout.records_per_segment() as usize);
    let known = layouts.and_then(|layouts| {
        let candidates = layouts.layouts_of(schema)?;
        Some((layouts, candidates, ChunkMessages::of(&rows, schema)?))
    });
    let mut about = About {
        version: VERSION,
        file: chunk.file.0,
        chunk: chunk.number,
        tokens,
        schema: schema.clone(),
        messages: None,
    };
    let written = match known {
        Some((layouts, candidates, messages)) => {
            messages::write(&messages, layouts, candidates, &mut about)
        }
        None => write_fields(&rows, &about),
    };
    let (whole, places) = written.map_err(|error| damaged(&place, error))?;
    let whole = checksums::insert(&whole, places);
    let whole = Bytes::from(whole.ok_or_else(|| damaged(&place, "no footer was written"))?);
    if whole.len() >= CHUNK_BYTES {
        return Ok(None);
    }
    // The raw chunk goes when this returns. A mistake of an encoder must not cost a row.
    for group in 0..GROUPS_PER_CHUNK {
        let first = (group * SEGMENTS_PER_GROUP) as usize * SEGMENT_BYTES;
        let was = &bytes[first..first + SEGMENTS_PER_GROUP as usize * SEGMENT_BYTES];
        if decode::decode(&whole, group, &place)? != was {
            return Err(damaged(&place, "its columns do not give its rows back"));
        }
    }
    Ok(Some(whole))
}

/// A Parquet file without checksums, and the places of its column chunks.
pub(crate) type BareFile = (Vec<u8>, Vec<Range<usize>>);

/// The fields of the schema as columns.
fn write_fields(rows: &Rows<'_>, about: &About) -> Result<BareFile, ParquetError> {
    let has_wide = |field: &evenfall_store_format::Field| {
        let mut prices = rows.numbers(usize::from(field.offset)).map(i64::from_le_bytes);
        field.kind == FieldType::Price && prices.any(is_wide_price)
    };
    let columns = plan(&about.schema, &has_wide);
    let schema = parquet_schema(columns.iter().map(ColumnPlan::parquet_type))?;
    let sample = rows.sample();
    let mut codings = Vec::with_capacity(columns.len());
    for (at, column) in columns.iter().enumerate() {
        let (values, rows) = (Values::of(&sample, column), sample.rows().count());
        let sample = Sample { name: &column.name, kind: column.kind, values, levels: None, rows };
        codings.push((sample.name, sample.kind, choose(&sample, &schema, at)?));
    }
    let layout = FileLayout { schema: &schema, codings: &codings, about };
    layout.write(rows.group(0).rows().count(), |group, at| {
        Ok((Values::of(&rows.group(group), &columns[at]), None))
    })
}

/// The columns of a file, and the note in its footer.
pub(crate) struct FileLayout<'a> {
    pub schema: &'a TypePtr,
    /// Name, kind and coding of each column.
    pub codings: &'a [(&'a str, ColumnKind, Coding)],
    pub about: &'a About,
}

impl FileLayout<'_> {
    /// Writes the file. `values` gives a column of a group, with its levels as for
    /// [`Values::write`].
    pub(crate) fn write(
        &self,
        group_rows: usize,
        mut values: impl FnMut(u32, usize) -> Result<(Values, Option<Vec<i16>>), ParquetError>,
    ) -> Result<BareFile, ParquetError> {
        let about = serde_json::to_string(self.about);
        let about = about.map_err(|error| ParquetError::General(error.to_string()))?;
        let mut properties = properties(group_rows)
            .set_key_value_metadata(Some(vec![KeyValue::new(ABOUT.to_owned(), about)]));
        for (name, kind, coding) in self.codings {
            properties = coding.set(properties, name, *kind);
        }
        let properties = Arc::new(properties.build());
        let mut out = Vec::with_capacity(CHUNK_BYTES / 4);
        let mut file = SerializedFileWriter::new(&mut out, Arc::clone(self.schema), properties)?;
        for group in 0..GROUPS_PER_CHUNK {
            let mut to = file.next_row_group()?;
            for at in 0..self.codings.len() {
                let Some(mut writer) = to.next_column()? else { break };
                let (values, levels) = values(group, at)?;
                values.write(writer.untyped(), levels.as_deref())?;
                writer.close()?;
            }
            to.close()?;
        }
        let metadata = file.finish()?;
        let place = |column: &parquet::file::metadata::ColumnChunkMetaData| {
            let (start, len) = column.byte_range();
            start as usize..(start + len) as usize
        };
        let groups = metadata.row_groups().iter();
        let places = groups.flat_map(|group| group.columns().iter().map(place)).collect();
        drop(file);
        Ok((out, places))
    }
}
