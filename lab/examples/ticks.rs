//! Measures bytes and speed of chunks in columns, in CPU seconds of one thread:
//! `cargo run --release -p evenfall-lab --example ticks [DIRECTORY]`.
//!
//! The ticks have random gaps, a price that walks and random sizes, so that nothing in them is an
//! arithmetic series. With a directory, the chunks are left there as Parquet files, for other
//! programs to read the same rows.

use std::hint::black_box;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_store_columns::ParquetCodec;
use evenfall_store_format::columnar::{ChunkCodec as _, GROUPS_PER_CHUNK, columnar_name};
use evenfall_store_format::layout::{
    CHUNK_BYTES, DataChunk, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENTS_PER_CHUNK,
};
use evenfall_store_format::segment::{self, SegmentHeader};
use evenfall_store_format::{FieldType, FileId, Schema, SegmentKind};

/// Chunks of each measurement: some two to four million rows.
const CHUNKS: u32 = 12;

type Failure = Box<dyn std::error::Error>;
type Fill<'a> = Box<dyn FnMut(&mut [u8]) + 'a>;

/// Seconds that this thread has had a core. Other load on the machine does not count.
fn cpu_seconds() -> Result<f64, Failure> {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns: u64 = times.split_whitespace().next().ok_or("no times of this thread")?.parse()?;
    Ok(ns as f64 / 1e9)
}

/// Ticks of 16, 24 and 40 bytes.
fn schemas() -> [(&'static str, Schema); 3] {
    let time = ("time", FieldType::Time);
    let plain = Schema::of(&[time, ("price", FieldType::U32), ("shares", FieldType::U32)]);
    let mut priced = Schema::of(&[time, ("price", FieldType::Price), ("shares", FieldType::I64)]);
    priced.price_decimals = 4;
    let mut order = Schema::of(&[
        time,
        ("price", FieldType::Price),
        ("order", FieldType::U64),
        ("value", FieldType::F64),
        ("shares", FieldType::U32),
        ("venue", FieldType::U16),
        ("side", FieldType::U8),
        ("kind", FieldType::U8),
    ]);
    order.price_decimals = 4;
    [("ticks of 16 bytes", plain), ("ticks of 24 bytes", priced), ("ticks of 40 bytes", order)]
}

fn fill(prng: &mut Prng) -> Fill<'_> {
    let (mut time, mut price) = (1_700_000_000_000_000_000i64, 1_500_000i64);
    Box::new(move |row| {
        time += prng.exponential(25_000.0) as i64 + 1;
        price += 100 * (prng.below(5) as i64 - 2);
        let shares = 100 * (1 + prng.exponential(3.0) as i64);
        row[..8].copy_from_slice(&time.to_le_bytes());
        match row.len() {
            16 => {
                row[8..12].copy_from_slice(&(price as u32).to_le_bytes());
                row[12..16].copy_from_slice(&(shares as u32).to_le_bytes());
            }
            24 => {
                row[8..16].copy_from_slice(&price.to_le_bytes());
                row[16..24].copy_from_slice(&shares.to_le_bytes());
            }
            _ => {
                row[8..16].copy_from_slice(&price.to_le_bytes());
                let order = (time as u64 / 7_000) ^ prng.below(1 << 20);
                row[16..24].copy_from_slice(&order.to_le_bytes());
                row[24..32].copy_from_slice(&(price as f64 / 1e4 * shares as f64).to_le_bytes());
                row[32..36].copy_from_slice(&(shares as u32).to_le_bytes());
                row[36..38].copy_from_slice(&(prng.below(12) as u16).to_le_bytes());
                row[38] = b"BS"[prng.below(2) as usize];
                row[39] = b"AEDXP"[prng.below(5) as usize];
            }
        }
    })
}

fn chunk(schema: &Schema, number: u32, fill: &mut Fill<'_>) -> Result<Bytes, Failure> {
    let (size, layout) = (usize::from(schema.record_bytes), schema.layout()?);
    let rows = layout.records_per_segment() as usize;
    let mut bytes = vec![0; CHUNK_BYTES];
    for (slot, part) in (0..).zip(bytes.chunks_exact_mut(SEGMENT_BYTES)) {
        let payload = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + rows * size;
        part[payload].chunks_exact_mut(size).for_each(&mut *fill);
        let header = SegmentHeader {
            kind: SegmentKind::Data,
            entry_bytes: schema.record_bytes,
            file: FileId(1),
            number: number * SEGMENTS_PER_CHUNK + slot,
            count: rows as u32,
            token: 1,
        };
        segment::seal(&header, part);
    }
    Ok(Bytes::from(bytes))
}

fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).map(std::path::PathBuf::from);
    for (name, schema) in schemas() {
        let mut prng = Prng::new(1);
        let mut fill = fill(&mut prng);
        let chunks: Result<Vec<Bytes>, Failure> =
            (0..CHUNKS).map(|number| chunk(&schema, number, &mut fill)).collect();
        let chunks = chunks?;
        let rows_per_chunk = schema.layout()?.records_per_segment() * u64::from(SEGMENTS_PER_CHUNK);
        let rows = (rows_per_chunk * u64::from(CHUNKS)) as f64;
        let begun = cpu_seconds()?;
        let encode = |(number, raw): (u32, &Bytes)| {
            let stored =
                ParquetCodec.encode(&schema, DataChunk { file: FileId(1), number }, raw, None)?;
            Ok(stored.ok_or("columns take more bytes than rows")?)
        };
        let stored: Result<Vec<Bytes>, Failure> = (0..).zip(&chunks).map(encode).collect();
        let (stored, encoded) = (stored?, cpu_seconds()? - begun);
        let begun = cpu_seconds()?;
        for bytes in &stored {
            for group in 0..GROUPS_PER_CHUNK {
                black_box(ParquetCodec.decode(bytes, group, name)?);
            }
        }
        let decoded = cpu_seconds()? - begun;
        let bytes: usize = stored.iter().map(Bytes::len).sum();
        println!(
            "{name}: {:.2} bytes a row, {:.1} M rows/s in, with the comparison, and {:.1} out",
            bytes as f64 / rows,
            rows / encoded / 1e6,
            rows / decoded / 1e6
        );
        if let Some(directory) = &directory {
            let directory = directory.join(name.replace(' ', "-"));
            std::fs::create_dir_all(&directory)?;
            for (number, bytes) in (0..).zip(&stored) {
                std::fs::write(
                    directory.join(columnar_name(DataChunk { file: FileId(1), number })),
                    bytes,
                )?;
            }
        }
    }
    Ok(())
}
