//! Measures reading: recent ranges, scans to Arrow from the cache, and cold objects.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use evenfall_core::Objects as _;
use evenfall_store_engine::bucket::Fetch;
use evenfall_store_engine::columns::Columns;
use evenfall_store_engine::{Archive, Bucket, Client, Store, StoreAckLevel, StoreFile};
use evenfall_store_format::layout::CHUNK_BYTES;
use evenfall_store_format::{FieldType, Schema};
use evenfall_store_server::Server;
use serde_json::{Value, json};

use super::{Args, Failure, embedded, median};

/// Records that are scanned. This many records fit into the store's default cache.
const RECORDS: u64 = 4 << 20;
/// Records of an Arrow batch.
const ROWS: usize = 65_536;
/// Scans for a median.
const SCANS: usize = 5;
/// Ranges for a median.
const RANGES: u64 = 1_001;
/// Requests of the plain download that are under way at once.
const DOWNLOADS: usize = 8;

/// A tick of 16 bytes.
fn tick() -> Schema {
    let kinds = [("time", FieldType::Time), ("price", FieldType::U32), ("shares", FieldType::U32)];
    Schema::of(&kinds)
}

/// A tick of 40 bytes, with a decimal and a float.
fn wide() -> Schema {
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        ("price", FieldType::Price),
        ("order", FieldType::U64),
        ("value", FieldType::F64),
        ("shares", FieldType::U32),
        ("venue", FieldType::U16),
        ("side", FieldType::U8),
        ("kind", FieldType::U8),
    ]);
    schema.price_decimals = 4;
    schema
}

pub(super) fn run(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let mut value = json!({});
    for (name, schema) in [("ticks_of_16_bytes", tick()), ("ticks_of_40_bytes", wide())] {
        // Each schema has objects of its own.
        let objects = args.objects.as_ref().map(|place| format!("{place}/{name}"));
        let args = &Args { objects, ..args.clone() };
        let store = embedded::open(args, dir)?;
        fill(&store, &schema)?;
        value[name] = warm(&store, &schema)?;
        let store = Arc::new(store);
        let server = Server::start(Arc::clone(&store), "127.0.0.1:0".parse()?)?;
        let loopback_us = over_loopback(server.address())?;
        server.stop();
        let index_us = value[name]["index_search_us"].as_f64().unwrap_or(f64::NAN);
        value[name]["range_10k_over_loopback_us"] = json!(loopback_us);
        value[name]["index_share_over_loopback"] = json!(index_us / loopback_us);
        Arc::into_inner(store).ok_or("a connection holds the store")?.close()?;
        let published = embedded::published_bytes_per_row(args, dir, RECORDS)?;
        value[name]["published_bytes_per_row"] = json!(published);
        if !args.no_objects {
            let usual = dir.join("objects").display().to_string();
            let place = args.objects.as_ref().unwrap_or(&usual);
            value[name]["cold_objects"] = cold(place, &schema)?;
        }
        std::fs::remove_dir_all(dir)?;
    }
    Ok(value)
}

fn fill(store: &Store, schema: &Schema) -> Result<(), Failure> {
    let file = store.create("a", schema)?;
    let size = usize::from(schema.record_bytes);
    let mut batch = vec![0u8; 1_000 * size];
    let mut clock = 0i64;
    while (clock as u64) < RECORDS {
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
            record[8..12].copy_from_slice(&(clock as u32).wrapping_mul(7).to_le_bytes());
        }
        while let Err(error) = store.append(&file, &batch, StoreAckLevel::Memory) {
            if !error.is_retryable() {
                return Err(error.into());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    while store.occupancy().memory_bytes > 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

/// Scans and ranges of records in memory.
fn warm(store: &Store, schema: &Schema) -> Result<Value, Failure> {
    let file = store.file("a")?;
    let (mut arrow, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..SCANS {
        let end = file.records();
        let (begun, mut rows, mut columns) = (Instant::now(), 0, Columns::new(schema, ROWS));
        store.read_numbers(&file, 0..end, &mut |part| {
            rows += put(&mut columns, schema, &part)?;
            Ok(())
        })?;
        rows += take(&mut columns)?;
        arrow.push(rows as f64 / begun.elapsed().as_secs_f64());
        let (begun, mut bytes) = (Instant::now(), 0);
        store.read_numbers(&file, 0..end, &mut |part| {
            bytes += part.len();
            Ok(())
        })?;
        let records = bytes / usize::from(schema.record_bytes);
        plain.push(records as f64 / begun.elapsed().as_secs_f64());
    }
    let (range_us, find_us, index_us) = ranges(store, &file)?;
    Ok(json!({
        "scan_to_arrow_per_s": median(arrow), "scan_without_arrow_per_s": median(plain),
        "range_10k_us": range_us, "find_us": find_us, "index_search_us": index_us,
        "index_share_embedded": index_us / range_us,
    }))
}

/// Adds records, and ends a batch before it would grow beyond `ROWS`. Returns the rows of ended
/// batches.
fn put(
    columns: &mut Columns,
    schema: &Schema,
    records: &[u8],
) -> evenfall_store_format::Result<usize> {
    columns.extend(records);
    match columns.rows() + records.len() / usize::from(schema.record_bytes) > ROWS {
        true => take(columns),
        false => Ok(0),
    }
}

fn take(columns: &mut Columns) -> evenfall_store_format::Result<usize> {
    let batch = columns
        .take()
        .map_err(|error| evenfall_store_format::Error::Schema { what: error.to_string() })?;
    Ok(batch.num_rows())
}

/// The beginning of a range of 10,000 records. The beginning differs from turn to turn and follows
/// no pattern of segments. The time of a record is its number plus one.
fn place(turn: u64, end: u64) -> i64 {
    (turn.wrapping_mul(7_919_317) % (end - 10_000)) as i64 + 1
}

/// Median microseconds of three operations: reading 10,000 records by time; finding both ends
/// alone, which takes a snapshot, the index and a search inside two segments; and the index alone.
/// The index alone is so fast that it is timed over all ranges at once.
fn ranges(store: &Store, file: &StoreFile) -> Result<(f64, f64, f64), Failure> {
    let end = file.records();
    let (mut reads, mut finds, mut searches) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..RANGES {
        let from = place(turn, end);
        let begun = Instant::now();
        let mut bytes = Vec::with_capacity(1 << 19);
        store.read(file, from, from + 9_999, &mut |part| {
            bytes.extend_from_slice(&part);
            Ok(())
        })?;
        reads.push(begun.elapsed().as_secs_f64() * 1e6);
        let begun = Instant::now();
        store.find(file, from, from + 9_999)?;
        finds.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    let place = |turn| (place(turn, end), place(turn, end) + 9_999);
    let places: Vec<_> = (0..RANGES).map(place).collect();
    for _ in 0..SCANS {
        let begun = Instant::now();
        store.find_segments(file, &places)?;
        searches.push(begun.elapsed().as_secs_f64() * 1e6 / RANGES as f64);
    }
    Ok((median(reads), median(finds), median(searches)))
}

/// The same reads by a client of a server.
fn over_loopback(address: SocketAddr) -> Result<f64, Failure> {
    let mut client = Client::connect(address)?;
    let file = client.open("a")?;
    let mut times = Vec::new();
    for turn in 0..RANGES {
        let from = place(turn, file.numbers.end);
        let begun = Instant::now();
        client.between(&file, from, from + 9_999)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Reads the objects alone, by the archive to Arrow and as a plain download with as many requests
/// at once. The two take turns, each with a connection of its own.
fn cold(place: &str, schema: &Schema) -> Result<Value, Failure> {
    let (mut scans, mut reads, mut downloads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SCANS {
        let begun = Instant::now();
        downloads.push(download(place)? as f64 / begun.elapsed().as_secs_f64());
        let mut bytes = 0;
        let begun = Instant::now();
        read(place, &mut |part| {
            bytes += part.len();
            Ok(())
        })?;
        reads.push(bytes as f64 / begun.elapsed().as_secs_f64());
        let (mut columns, mut rows) = (Columns::new(schema, ROWS), 0);
        let begun = Instant::now();
        read(place, &mut |part| {
            rows += put(&mut columns, schema, &part)?;
            Ok(())
        })?;
        rows += take(&mut columns)?;
        let bytes = rows * usize::from(schema.record_bytes);
        scans.push(bytes as f64 / begun.elapsed().as_secs_f64());
    }
    let (scan, read, download) = (median(scans), median(reads), median(downloads));
    Ok(json!({
        "scan_to_arrow_bytes_per_s": scan, "read_bytes_per_s": read,
        "plain_download_bytes_per_s": download, "scan_share_of_download": scan / download,
        "read_share_of_download": read / download,
    }))
}

/// Reads all records of the file from the objects alone.
fn read(
    place: &str,
    each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
) -> Result<(), Failure> {
    let archive = Archive::open(place)?;
    let mut file = archive.file("a")?;
    let end = file.records();
    Ok(file.read_numbers(0..end, each)?)
}

/// Downloads the objects that a read needs, a few requests at a time. Returns their bytes.
fn download(place: &str) -> Result<usize, Failure> {
    let bucket = Bucket::open(place)?;
    let mut coming = std::collections::VecDeque::<Fetch>::new();
    let mut bytes = 0;
    for name in bucket.list("")? {
        if coming.len() == DOWNLOADS {
            let Some(fetch) = coming.pop_front() else { break };
            bytes += fetch()?.map_or(0, |bytes| bytes.len());
        }
        coming.push_back(bucket.fetch(&name, 0, 2 * CHUNK_BYTES));
    }
    for fetch in coming {
        bytes += fetch()?.map_or(0, |bytes| bytes.len());
    }
    Ok(bytes)
}
