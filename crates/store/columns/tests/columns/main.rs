//! Chunks through their columns and back, and columns with flipped bytes.

mod messages;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_store_format::columnar::{ChunkCodec as _, GROUPS_PER_CHUNK};
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::segment::{self, SegmentHeader};
use evenfall_store_format::{Error, Field, FieldType, FileId, Schema, SegmentKind};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use proptest::prelude::*;

use evenfall_store_columns::ParquetCodec;

const CHUNK: DataChunk = DataChunk { file: FileId(5), number: 3 };

/// A raw chunk of rows that `row` fills in. Two primaries have written it, one after the other.
fn raw(schema: &Schema, mut row: impl FnMut(&mut [u8])) -> Bytes {
    let (layout, size) = (schema.layout().unwrap(), usize::from(schema.record_bytes));
    let rows = layout.records_per_segment() as usize;
    let mut bytes = vec![0; CHUNK_BYTES];
    for (slot, part) in (0..SEGMENTS_PER_CHUNK).zip(bytes.chunks_exact_mut(SEGMENT_BYTES)) {
        let payload = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + rows * size;
        part[payload].chunks_exact_mut(size).for_each(&mut row);
        let header = SegmentHeader {
            kind: SegmentKind::Data,
            entry_bytes: schema.record_bytes,
            file: CHUNK.file,
            number: CHUNK.first_segment() + slot,
            count: rows as u32,
            token: if slot < 100 { 7 } else { 9 },
        };
        segment::seal(&header, part);
    }
    Bytes::from(bytes)
}

/// Rows of 200 bytes with a field of each type, bytes that no field covers, and two fields over
/// the same bytes.
fn all_types() -> Schema {
    let kinds = [
        ("time", FieldType::Time),
        ("px", FieldType::Price),
        ("ref", FieldType::U64),
        ("change", FieldType::I64),
        ("rate", FieldType::F64),
        ("shares", FieldType::U32),
        ("venue", FieldType::U16),
        ("side", FieldType::U8),
    ];
    let mut schema = Schema::of(&kinds);
    let bytes = |name: &str, offset, len| Field {
        name: name.into(),
        offset,
        len,
        kind: FieldType::Bytes,
        aggregate: false,
    };
    schema.fields.extend([bytes("symbol", 50, 8), bytes("_rest", 54, 20)]);
    (schema.record_bytes, schema.price_decimals) = (200, 4);
    schema
}

fn fill(prng: &mut Prng, row: &mut [u8]) {
    row.chunks_mut(8)
        .for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
}

/// Ticks as a feed has them: random gaps, a price that walks, few venues.
fn ticks(prng: &mut Prng) -> impl FnMut(&mut [u8]) {
    let (mut time, mut price) = (1_700_000_000_000_000_000i64, 1_000_000i64);
    move |row| {
        time += prng.below(40_000) as i64;
        price += prng.below(5) as i64 - 2;
        row[..8].copy_from_slice(&time.to_le_bytes());
        row[8..16].copy_from_slice(&price.to_le_bytes());
        row[42..44].copy_from_slice(&(prng.below(4) as u16).to_le_bytes());
    }
}

fn decoded(stored: &Bytes) -> evenfall_store_format::Result<Vec<u8>> {
    let groups = (0..GROUPS_PER_CHUNK).map(|group| ParquetCodec.decode(stored, group, "here"));
    groups.map(|group| Ok(group?.to_vec())).collect::<Result<Vec<_>, _>>().map(|all| all.concat())
}

#[test]
fn every_byte_of_a_chunk_comes_back_whatever_its_types() {
    let schema = all_types();
    let mut prng = Prng::new(1);
    let chunk = raw(&schema, ticks(&mut prng));
    let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, None).unwrap().unwrap();
    assert_eq!(decoded(&stored).unwrap(), chunk);
    assert!(stored.len() * 8 < chunk.len(), "{} bytes", stored.len());
}

#[test]
fn other_readers_of_parquet_find_names_types_and_rows() {
    let schema = all_types();
    let chunk = raw(&schema, ticks(&mut Prng::new(2)));
    let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, None).unwrap().unwrap();
    let file = SerializedFileReader::new(stored).unwrap();
    let metadata = file.metadata().file_metadata();
    assert_eq!(metadata.num_rows(), 256 * (16_352 / 200));
    let described = metadata.schema_descr();
    let names: Vec<&str> = described.columns().iter().map(|column| column.name()).collect();
    assert_eq!(names.last(), Some(&"__rest"), "the bytes of no field, beside a field of that name");
    assert_eq!(names.len(), 11);
    let wanted = schema.fields.iter().map(|field| field.name.as_str());
    assert!(wanted.eq(names[..10].iter().copied()));
}

#[test]
fn a_price_of_nineteen_digits_comes_back() {
    let mut schema = Schema::of(&[("time", FieldType::Time), ("px", FieldType::Price)]);
    (schema.record_bytes, schema.price_decimals) = (400, 8);
    let mut sign = 1i64;
    let chunk = raw(&schema, |row| {
        sign = -sign;
        row[8..16].copy_from_slice(&(i64::MAX / 2 * sign).to_le_bytes());
    });
    let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, None).unwrap().unwrap();
    assert_eq!(decoded(&stored).unwrap(), chunk);
}

#[test]
fn a_flipped_byte_anywhere_is_found() {
    let schema = Schema::opaque(2_000);
    let mut value = 0u64;
    let chunk = raw(&schema, |row| {
        value += 1;
        row[..8].copy_from_slice(&value.to_le_bytes());
        row[1_000..1_008].copy_from_slice(&value.wrapping_mul(0x9E37_79B9).to_le_bytes());
    });
    let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, None).unwrap().unwrap();
    ParquetCodec.check(&stored, "here").unwrap();
    let ends = (0..64).chain(stored.len() - 1_500..stored.len());
    let spread = (64..stored.len()).step_by(stored.len() / 400);
    for at in ends.chain(spread) {
        let mut flipped = stored.to_vec();
        flipped[at] ^= 1 << (at % 8);
        let flipped = Bytes::from(flipped);
        let found = ParquetCodec.check(&flipped, "here");
        assert!(matches!(found, Err(Error::Damaged { .. } | Error::Version { .. })), "byte {at}");
    }
    for cut in [0, 1, 8, 100, stored.len() / 2, stored.len() - 1] {
        let cut = stored.slice(..cut);
        assert!(ParquetCodec.check(&cut, "here").is_err());
        assert!(ParquetCodec.decode(&cut, 0, "here").is_err());
    }
}

#[test]
fn a_damaged_column_is_named_and_other_groups_stay_readable() {
    let schema = all_types();
    let chunk = raw(&schema, ticks(&mut Prng::new(3)));
    let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, None).unwrap().unwrap();
    let file = SerializedFileReader::new(stored.clone()).unwrap();
    let (start, len) = file.metadata().row_group(2).column(1).byte_range();
    let mut flipped = stored.to_vec();
    flipped[(start + len / 2) as usize] ^= 4;
    let flipped = Bytes::from(flipped);
    let group = chunk.len() / GROUPS_PER_CHUNK as usize;
    assert_eq!(ParquetCodec.decode(&flipped, 1, "here").unwrap(), chunk[group..2 * group]);
    let error = ParquetCodec.decode(&flipped, 2, "here").unwrap_err().to_string();
    assert!(error.contains("column px of group 2"), "{error}");
}

#[test]
fn a_chunk_that_its_rows_do_not_tell_stays_raw() {
    let schema = Schema::opaque(1_000);
    let chunk = raw(&schema, |row| row[0] = 1);
    let encode =
        |bytes: &[u8]| ParquetCodec.encode(&schema, CHUNK, &Bytes::copy_from_slice(bytes), None);
    assert!(encode(&chunk).unwrap().is_some());
    assert!(encode(&chunk[..CHUNK_BYTES - SEGMENT_BYTES]).unwrap().is_none(), "not whole");
    let reseal = |change: &dyn Fn(&mut SegmentHeader, &mut [u8])| {
        let mut bytes = chunk.to_vec();
        let part = &mut bytes[SEGMENT_BYTES..2 * SEGMENT_BYTES];
        let mut header = segment::header(part).unwrap();
        change(&mut header, part);
        segment::seal(&header, part);
        encode(&bytes)
    };
    assert!(reseal(&|header, _| header.count -= 1).unwrap().is_none(), "lost rows");
    assert!(reseal(&|_, part| part[SEGMENT_BYTES - 1] = 1).unwrap().is_none(), "bytes behind rows");
    assert!(matches!(reseal(&|header, _| header.number += 1), Err(Error::Damaged { .. })));
}

/// A schema of any fields, which may overlap and leave bytes out.
fn any_schema() -> impl Strategy<Value = Schema> {
    let kinds = [
        FieldType::U8,
        FieldType::U16,
        FieldType::U32,
        FieldType::U64,
        FieldType::I64,
        FieldType::Price,
        FieldType::F64,
        FieldType::Bytes,
    ];
    let field = (0..kinds.len(), 0u16..480, 1u16..20);
    (prop::collection::vec(field, 0..6), 500u16..900, 0u8..22).prop_map(
        move |(fields, size, decimals)| {
            let mut schema = Schema::of(&[("time", FieldType::Time)]);
            for (at, (kind, offset, len)) in fields.into_iter().enumerate() {
                let kind = kinds[kind];
                let len = kind.bytes().map_or(len, |len| len as u16);
                let name = format!("field {at}.x");
                schema.fields.push(Field { name, offset, len, kind, aggregate: false });
            }
            (schema.record_bytes, schema.price_decimals) = (size, decimals);
            schema
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_rows_of_any_schema_come_back(schema in any_schema(), seed: u64, noise in 0u64..3) {
        let mut prng = Prng::new(seed);
        let chunk = raw(&schema, |row| match noise {
            0 => {}
            // A few bytes of noise in rows of zeros.
            1 => {
                let at = prng.below(row.len() as u64 - 8) as usize;
                row[at..at + 8].copy_from_slice(&prng.next_u64().to_le_bytes());
            }
            _ => {
                let half = row.len() / 2;
                fill(&mut prng, &mut row[..half]);
            }
        });
        let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, None).unwrap();
        let stored = stored.expect("half of the bytes are zeros");
        prop_assert_eq!(decoded(&stored).unwrap(), &chunk[..]);
        ParquetCodec.check(&stored, "here").unwrap();
    }
}
