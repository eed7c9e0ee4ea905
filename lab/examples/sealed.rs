//! Measures the sealed chunks of a recording, in CPU seconds of one thread:
//! `cargo run --release -p evenfall-lab --example sealed -- FEED DAYS [DIRECTORY]`.
//!
//! The feed is recorded on so many days, one behind the other, so that a short one fills chunks.
//! Prints bytes a row and rows a second for messages as bytes and as columns. With a directory, the
//! chunks are left there as Parquet files, for other programs to read the same rows.

use std::fs::File;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_feed_formats::{FeedMessage, open};
use evenfall_store_engine::{
    ChunkForm, RecordSource, Store, StoreAckLevel, StoreConfig, chunk_codec,
};
use evenfall_store_format::Schema;
use evenfall_store_format::columnar::{ChunkCodec, GROUPS_PER_CHUNK, columnar_name};
use evenfall_store_format::layout::{CHUNK_BYTES, DataChunk, SEGMENTS_PER_CHUNK};
use evenfall_store_format::messages::{InstalledLayouts, MessageField};
use evenfall_store_recording::layouts::message_layouts;
use evenfall_store_recording::{RecordingWriter, StoreTables, TableName, Tables as _};

type Failure = Box<dyn std::error::Error>;

const DAY_NS: i64 = 86_400_000_000_000;
/// Midnight in New York, 2019-12-30.
const MIDNIGHT_NS: i64 = 1_577_682_000_000_000_000;

/// Seconds that this thread has had a core. Other load on the machine does not count.
fn cpu_seconds() -> Result<f64, Failure> {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns: u64 = times.split_whitespace().next().ok_or("no times of this thread")?.parse()?;
    Ok(ns as f64 / 1e9)
}

fn record(feed: &Path, days: i64, directory: &Path) -> Result<u64, Failure> {
    let mut source = open(Box::new(File::open(feed)?), &feed.display().to_string())?;
    let mut messages: Vec<FeedMessage> = Vec::new();
    while let Some(message) = source.next_message()? {
        messages.push(message);
    }
    let config =
        StoreConfig { chunks: ChunkForm::Raw, objects: None, ..StoreConfig::new(directory) };
    let store = Store::open(config)?.store;
    let mut writer = RecordingWriter::new(&store, "feed", 1, StoreAckLevel::Memory)?;
    let mut number = 0;
    for day in 0..days {
        for message in &messages {
            let time_ns = MIDNIGHT_NS + day * DAY_NS + message.time_ns as i64;
            writer.push(0, number, time_ns, message.format, &message.bytes)?;
            number += 1;
        }
    }
    writer.flush()?;
    drop(writer);
    store.close()?;
    Ok(number)
}

/// A raw chunk with the schema of its file.
struct RawChunk {
    chunk: DataChunk,
    schema: Schema,
    bytes: Bytes,
    rows: u64,
}

fn raw_chunks(directory: &Path) -> Result<Vec<RawChunk>, Failure> {
    let store = Store::open_to_read(StoreConfig::new(directory))?.store;
    let mut all = Vec::new();
    for listed in store.listed()? {
        let file = store.file(&listed.name)?;
        let rows = listed.schema.layout()?.records_per_segment() * u64::from(SEGMENTS_PER_CHUNK);
        for number in 0..(listed.records / rows) as u32 {
            let chunk = DataChunk { file: file.id, number };
            let bytes = Bytes::from(std::fs::read(directory.join(chunk.raw_name()))?);
            assert_eq!(bytes.len(), CHUNK_BYTES);
            all.push(RawChunk { chunk, schema: listed.schema.clone(), bytes, rows });
        }
    }
    Ok(all)
}

/// Prints what chunks take when they are encoded with these layouts.
fn measure(
    codec: &dyn ChunkCodec,
    name: &str,
    layouts: InstalledLayouts,
    chunks: &[RawChunk],
    directory: Option<&PathBuf>,
) -> Result<(), Failure> {
    let begun = cpu_seconds()?;
    let mut stored = Vec::new();
    for one in chunks {
        let encoded = codec.encode(&one.schema, one.chunk, &one.bytes, layouts)?;
        stored.push(encoded.ok_or("columns take more bytes than rows")?);
    }
    let encoded = cpu_seconds()? - begun;
    let begun = cpu_seconds()?;
    for bytes in &stored {
        for group in 0..GROUPS_PER_CHUNK {
            black_box(codec.decode(bytes, group, name)?);
        }
    }
    let decoded = cpu_seconds()? - begun;
    let begun = cpu_seconds()?;
    let fields =
        [MessageField::Type, MessageField::Locate, MessageField::Symbol, MessageField::Price];
    for bytes in &stored {
        black_box(codec.decode_messages(bytes, 0..GROUPS_PER_CHUNK, &fields, name)?);
    }
    let values = cpu_seconds()? - begun;
    let rows: u64 = chunks.iter().map(|one| one.rows).sum();
    let mut sizes = std::collections::BTreeMap::new();
    for (one, bytes) in chunks.iter().zip(&stored) {
        let (len, rows) = sizes.entry(one.schema.record_bytes).or_insert((0, 0));
        (*len, *rows) = (*len + bytes.len() as u64, *rows + one.rows);
        if let Some(directory) = directory {
            std::fs::write(directory.join(columnar_name(one.chunk)), bytes)?;
        }
    }
    let rate = |seconds: f64| rows as f64 / 1e6 / seconds;
    println!(
        "{name}: {rows} rows; M rows/s: {:.2} in, {:.1} out as rows, {:.1} as four values",
        rate(encoded),
        rate(decoded),
        rate(values)
    );
    for (record_bytes, (len, rows)) in sizes {
        println!(
            "  records of {record_bytes} bytes: {:.2} bytes a row, {rows} rows",
            len as f64 / rows as f64
        );
    }
    Ok(())
}

/// Seconds of a scan of these columns of all messages.
fn scan(directory: &Path, columns: &[usize]) -> Result<f64, Failure> {
    let store = Store::open_to_read(StoreConfig::new(directory))?.store;
    let tables = StoreTables::new(Arc::new(store));
    let snapshot = tables.open(&TableName::of_recording("feed", "messages"))?;
    let begun = cpu_seconds()?;
    let mut rows = 0;
    snapshot.scan(&snapshot.rows(), columns, &mut |batch| {
        rows += black_box(batch).num_rows();
        ControlFlow::Continue(())
    })?;
    Ok(rows as f64 / 1e6 / (cpu_seconds()? - begun))
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(feed), Some(days)) = (args.get(1), args.get(2)) else {
        return Err("FEED DAYS [DIRECTORY]".into());
    };
    let directory = args.get(3).map(PathBuf::from);
    let codec = chunk_codec().ok_or("a build without columns")?;
    let work = tempfile::tempdir()?;
    let messages = record(Path::new(feed), days.parse()?, work.path())?;
    println!("{messages} messages");
    let chunks = raw_chunks(work.path())?;
    measure(codec, "bytes", None, &chunks, None)?;
    measure(codec, "columns", message_layouts(), &chunks, directory.as_ref())?;
    for layouts in [None, message_layouts()] {
        let copy = tempfile::tempdir()?;
        record(Path::new(feed), days.parse()?, copy.path())?;
        let config = StoreConfig { layouts, objects: None, ..StoreConfig::new(copy.path()) };
        let store = Store::open(config)?.store;
        while !store.await_columns(Duration::from_secs(1)) {}
        store.close()?;
        let all: Vec<usize> = (0..15).collect();
        println!(
            "{}: M rows/s of messages: {:.2} type, symbol, price; {:.2} all columns",
            if layouts.is_some() { "columns" } else { "bytes" },
            scan(copy.path(), &[6, 12, 13])?,
            scan(copy.path(), &all)?
        );
    }
    Ok(())
}
