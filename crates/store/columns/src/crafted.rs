//! Chunks in columns that somebody made by hand: their checksums fit, and what they say does not.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_store_format::columnar::{ChunkCodec as _, GROUPS_PER_CHUNK};
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::messages::{
    FieldPlace, FormatLayout, KindLayout, MessageField, MessageLayout, MessageLayouts,
};
use evenfall_store_format::segment::{self, SegmentHeader};
use evenfall_store_format::{Error, Field, FieldType, FileId, Result, Schema, SegmentKind};
use parquet::file::metadata::{
    FileMetaData, ParquetMetaData, ParquetMetaDataBuilder, ParquetMetaDataReader,
    ParquetMetaDataWriter,
};

use crate::ParquetCodec;
use crate::checksums::{Checksums, END_BYTES, footer_start, insert};
use crate::decode::bytes_of;

/// Chunks that are changed at random; `make test-long` sets `EVENFALL_SEEDS`.
fn count_crafted() -> u64 {
    if std::env::var_os("EVENFALL_SEEDS").is_some() { 600 } else { 200 }
}

const CHUNK: DataChunk = DataChunk { file: FileId(5), number: 3 };

/// A chunk in columns without its checksums: columns, then footer.
struct BareChunk {
    columns: Vec<u8>,
    footer: Vec<u8>,
}

impl BareChunk {
    fn of(stored: &[u8]) -> Self {
        let footer = footer_start(stored).expect("a footer");
        let word = stored[footer - 8..footer - 4].try_into().expect("four bytes");
        let block = u32::from_le_bytes(word) as usize;
        Self { columns: stored[..footer - block].to_vec(), footer: stored[footer..].to_vec() }
    }

    fn whole(&self) -> Vec<u8> {
        [&self.columns[..], &self.footer].concat()
    }

    /// The chunk with checksums that fit, for the columns where the footer says that they lie.
    fn sealed(&self) -> Bytes {
        let whole = self.whole();
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(whole.clone()));
        let mut places = Vec::new();
        for column in
            metadata.iter().flat_map(ParquetMetaData::row_groups).flat_map(|g| g.columns())
        {
            let at = places.last().map_or(0, |last: &Range<usize>| last.end);
            let fits = |place: &Range<usize>| {
                at <= place.start && place.start <= place.end && place.end <= self.columns.len()
            };
            places.extend(bytes_of(column).filter(fits));
        }
        let sealed = insert(&whole, places).unwrap_or_default();
        Bytes::from(sealed)
    }

    fn read_metadata(&self) -> ParquetMetaData {
        let whole = Bytes::from(self.whole());
        ParquetMetaDataReader::new().parse_and_finish(&whole).expect("a footer")
    }

    /// The same columns under another footer.
    fn with(&self, metadata: &ParquetMetaData) -> Self {
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, metadata).finish().expect("memory");
        Self { columns: self.columns.clone(), footer }
    }
}

fn encode_chunk() -> Bytes {
    let schema = Schema::of(&[("time", FieldType::Time), ("px", FieldType::Price)]);
    let raw = raw_chunk(&schema, |_| {});
    let stored = ParquetCodec.encode(&schema, CHUNK, &raw, None).expect("a whole chunk");
    stored.expect("columns take less")
}

/// A raw chunk. `row` fills in what follows the time of each row.
fn raw_chunk(schema: &Schema, mut fill: impl FnMut(&mut [u8])) -> Bytes {
    let rows = schema.layout().expect("a layout").records_per_segment() as usize;
    let size = usize::from(schema.record_bytes);
    let mut raw = vec![0; CHUNK_BYTES];
    let mut time = 0i64;
    for (slot, part) in (0..SEGMENTS_PER_CHUNK).zip(raw.chunks_exact_mut(SEGMENT_BYTES)) {
        let payload = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + rows * size;
        for row in part[payload].chunks_exact_mut(size) {
            time += 7;
            row[..8].copy_from_slice(&time.to_le_bytes());
            fill(row);
        }
        let header = SegmentHeader {
            kind: SegmentKind::Data,
            entry_bytes: schema.record_bytes,
            file: CHUNK.file,
            number: CHUNK.first_segment() + slot,
            count: rows as u32,
            token: 1,
        };
        segment::seal(&header, part);
    }
    Bytes::from(raw)
}

/// Messages of one kind: a letter, an order of eight bytes, and a byte of text.
struct Orders;

impl MessageLayouts for Orders {
    fn layouts_of(&self, _: &Schema) -> Option<Vec<FormatLayout>> {
        let place = |field, at, len| FieldPlace { field, at, len };
        let fields = vec![place(MessageField::OrderRef, 1, 8), place(MessageField::Side, 9, 1)];
        let kind = KindLayout { letter: b'A', len: 11, fields };
        Some(vec![FormatLayout { tag: 1, layout: MessageLayout::Kinds(vec![kind]) }])
    }

    fn wall_ns(&self, _: u8, recorded_ns: i64, _: Option<u64>) -> Option<i64> {
        Some(recorded_ns)
    }

    fn type_name(&self, _: u8, _: &[u8]) -> Option<&'static str> {
        None
    }
}

/// A chunk of messages, one of eight of which was not shredded.
fn encode_messages() -> Bytes {
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        ("number", FieldType::U64),
        ("length", FieldType::U16),
        ("format", FieldType::U8),
    ]);
    let (name, kind, aggregate) = ("message".to_owned(), FieldType::Bytes, false);
    schema.fields.push(Field { name, offset: 19, len: 29, kind, aggregate });
    schema.record_bytes = 48;
    let mut number = 0u64;
    let raw = raw_chunk(&schema, |row| {
        number += 1;
        row[8..16].copy_from_slice(&number.to_le_bytes());
        (row[16], row[18], row[19]) = (11, 1, if number.is_multiple_of(8) { b'Z' } else { b'A' });
        row[20..28].copy_from_slice(&number.to_be_bytes());
        (row[28], row[29]) = (b'B', number as u8);
    });
    let stored = ParquetCodec.encode(&schema, CHUNK, &raw, Some(&Orders));
    stored.expect("a whole chunk").expect("columns take less")
}

fn read_all(stored: &Bytes) -> Result<()> {
    for group in 0..GROUPS_PER_CHUNK {
        ParquetCodec.decode(stored, group, "here")?;
    }
    let fields = [MessageField::OrderRef, MessageField::Side];
    ParquetCodec.decode_messages(stored, 0..GROUPS_PER_CHUNK, &fields, "here")?;
    ParquetCodec.decode_fields(stored, 0..GROUPS_PER_CHUNK, &[1], "here").map(drop)
}

#[test]
fn a_column_at_a_negative_place_is_damage() {
    let bare = BareChunk::of(&encode_chunk());
    read_all(&bare.sealed()).expect("the chunk as it was");
    for (start, len) in [(4, -5), (-4, 40), (i64::MAX, 40)] {
        let metadata = bare.read_metadata();
        let mut groups = metadata.row_groups().to_vec();
        let column = groups[0].column(0).clone().into_builder();
        let column = column
            .set_total_compressed_size(len)
            .set_data_page_offset(start)
            .set_dictionary_page_offset(None);
        let mut columns = groups[0].columns().to_vec();
        columns[0] = column.build().expect("a column");
        let group = groups[0].clone().into_builder().set_column_metadata(columns);
        groups[0] = group.build().expect("a group");
        let file = metadata.file_metadata().clone();
        let metadata = ParquetMetaDataBuilder::new(file).set_row_groups(groups).build();
        let crafted = bare.with(&metadata).sealed();
        Checksums::of(&crafted, "here").expect("the checksums fit");
        let error = read_all(&crafted).expect_err("no file has this place");
        assert!(matches!(&error, Error::Damaged { .. }), "{error}");
    }
}

#[test]
fn no_crafted_chunk_ends_the_process() {
    craft_at_random(&encode_chunk());
}

#[test]
fn no_crafted_chunk_of_messages_ends_the_process() {
    craft_at_random(&encode_messages());
}

/// Layouts that do not fit the columns give an error, and no message that was never recorded.
#[test]
fn layouts_that_do_not_fit_their_columns_are_damage() {
    let bare = BareChunk::of(&encode_messages());
    read_all(&bare.sealed()).expect("the chunk as it was");
    for (was, crafted) in [
        (r#""letter":65"#, r#""letter":66"#),
        (r#""len":11"#, r#""len":99"#),
        (r#""len":11"#, r#""len":12"#),
        (r#""len":11"#, r#""len":10"#),
        (r#""at":1,"len":8"#, r#""at":1,"len":7"#),
        (r#""at":1,"len":8"#, r#""at":2,"len":7"#),
        (r#""at":1,"len":8"#, r#""at":0,"len":8"#),
        (r#""order_ref""#, r#""locate""#),
        (r#""tag":1"#, r#""tag":2"#),
        (r#""version":2"#, r#""version":1"#),
        (r#""version":2"#, r#""version":3"#),
        (r#""name":"length""#, r#""name":"lenght""#),
    ] {
        let metadata = bare.read_metadata();
        let file = metadata.file_metadata();
        let mut notes = file.key_value_metadata().expect("notes").clone();
        let note = notes.iter_mut().find_map(|note| note.value.as_mut()).expect("a note");
        assert!(note.contains(was), "{was} in {note}");
        *note = note.replacen(was, crafted, 1);
        let file = FileMetaData::new(
            file.version(),
            file.num_rows(),
            file.created_by().map(str::to_owned),
            Some(notes),
            file.schema_descr_ptr(),
            None,
        );
        let groups = metadata.row_groups().to_vec();
        let metadata = ParquetMetaDataBuilder::new(file).set_row_groups(groups).build();
        let error = read_all(&bare.with(&metadata).sealed()).expect_err(crafted);
        assert!(matches!(&error, Error::Damaged { .. } | Error::Version { .. }), "{error}");
    }
}

fn craft_at_random(stored: &Bytes) {
    let bare = BareChunk::of(stored);
    let (mut refused, mut prng) = (0, Prng::new(40));
    let count = count_crafted();
    for number in 0..count {
        let mut crafted = BareChunk { columns: bare.columns.clone(), footer: bare.footer.clone() };
        // Most of what a chunk says of itself is in the footer.
        let part = match number % 4 {
            0 => &mut crafted.columns,
            _ => &mut crafted.footer,
        };
        let len = part.len() - END_BYTES;
        for _ in 0..=prng.below(3) {
            part[prng.below(len as u64) as usize] = prng.next_u64() as u8;
        }
        let sealed = crafted.sealed();
        let read = catch_unwind(AssertUnwindSafe(|| read_all(&sealed)));
        let read = read.unwrap_or_else(|_| panic!("chunk {number} ended the reader"));
        refused += u64::from(read.is_err());
    }
    assert!(refused > count / 4, "{refused} of {count} were refused");
}
