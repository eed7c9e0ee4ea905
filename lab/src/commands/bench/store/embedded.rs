//! Appends in this process, by one thread.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use evenfall_store_engine::{Store, StoreConfig};
use evenfall_store_format::Schema;
use serde_json::{Value, json};

use super::ticks::Ticks;
use super::{Args, Failure, times_us};

/// Pause before a refused append is tried again.
const PAUSE: Duration = Duration::from_micros(500);

/// Opens an empty store as the arguments say.
pub(super) fn open(args: &Args, dir: &Path) -> Result<Store, Failure> {
    let mut config = StoreConfig::new(dir);
    if args.no_objects {
        config.objects = None;
    }
    if let Some(place) = &args.objects {
        config.objects = Some(place.clone());
    }
    config.memory_bytes_max = args.memory_bytes;
    config.cache_bytes = args.cache_bytes;
    config.keep.bytes_max = args.keep_bytes;
    Ok(Store::open(config)?.store)
}

pub(super) fn run(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let store = open(args, dir)?;
    let schema = Schema::opaque(args.record_bytes);
    let wanted: Vec<_> = (0..args.streams).map(|n| (format!("s{n}"), schema.clone())).collect();
    let files = store.create_all(&wanted)?;
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let window = (args.window_bytes() / batch.len() as u64).max(1) as usize;
    let (mut times_ns, mut refused, mut records, mut peak) = (Vec::new(), 0, 0u64, 0);
    let mut waiting = VecDeque::new();
    let (mut ticks, mut turn) = (Ticks::new(args.record_bytes), 0);
    let started = Instant::now();
    while started.elapsed() < args.duration {
        ticks.fill_batch(&mut batch);
        let file = &files[turn % files.len()];
        turn += 1;
        let begun = Instant::now();
        let taken = loop {
            match store.append_begin(file, &batch, args.ack) {
                Err(error) if error.is_retryable() => {
                    refused += 1;
                    std::thread::sleep(PAUSE);
                }
                done => break done?,
            }
        };
        records += args.batch as u64;
        waiting.push_back((begun, file, taken));
        while waiting.len() >= if args.ack.waits().is_empty() { 1 } else { window } {
            let Some((begun, file, taken)) = waiting.pop_front() else { break };
            store.append_end(file, taken, args.ack)?;
            times_ns.push(begun.elapsed().as_nanos() as u64);
        }
        if turn % 1_024 == 0 {
            peak = peak.max(store.occupancy().memory_bytes);
        }
    }
    for (begun, file, taken) in waiting {
        store.append_end(file, taken, args.ack)?;
        times_ns.push(begun.elapsed().as_nanos() as u64);
    }
    let elapsed = started.elapsed();
    let settle = Instant::now();
    while store.occupancy().memory_bytes > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let settle = settle.elapsed();
    drop(files);
    let written = store.written();
    store.close()?;
    let written = written.bytes();
    Ok(json!({
        "records": records, "records_per_s": records as f64 / elapsed.as_secs_f64(),
        "append_us": times_us(&mut times_ns), "refused_and_tried_again": refused,
        "memory_bytes_max": peak, "settle_s": settle.as_secs_f64(),
        "written_per_byte": written.total() as f64 / (records * size as u64) as f64,
        "written": written,
        "disk_bytes_per_record": disk_bytes(dir)? as f64 / records as f64,
        "published_bytes_per_row": published_bytes_per_row(args, dir, records)?,
    }))
}

/// Bytes of all objects of a closed store for each of its records: data, index, ends and metadata.
/// `None` where the objects are not in the store's directory, or not of all records.
pub(super) fn published_bytes_per_row(
    args: &Args,
    dir: &Path,
    records: u64,
) -> std::io::Result<Option<f64>> {
    if args.no_objects || args.objects.is_some() || args.keep_bytes.is_some() {
        return Ok(None);
    }
    let mut bytes = 0;
    for object in std::fs::read_dir(dir.join("objects"))? {
        bytes += object?.metadata()?.len();
    }
    Ok(Some(bytes as f64 / records as f64))
}

/// Bytes of the directory's files on the disk, without the objects.
fn disk_bytes(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let metadata = entry?.metadata()?;
        bytes += if metadata.is_file() { metadata.blocks() * 512 } else { 0 };
    }
    Ok(bytes)
}
