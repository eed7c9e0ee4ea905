//! `evenfall bench store`: what the store takes, over loopback or embedded.

mod remote;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenfall_node::store::{Level, Store, StoreConfig};
use evenfall_store::Schema;
use serde_json::json;

use crate::Outcome;

/// Arguments of `evenfall bench store`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Bytes of a record.
    #[arg(long, default_value_t = 16)]
    record_bytes: u16,
    /// Records of an append.
    #[arg(long, default_value_t = 1_000)]
    batch: usize,
    /// Files, appended to in turns.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// memory, local or object.
    #[arg(long, default_value = "memory")]
    ack: Level,
    /// How long to append.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Records per second to offer, each append waited for; as fast as it goes without it. Not
    /// with --embedded.
    #[arg(long, conflicts_with = "embedded")]
    rate: Option<f64>,
    /// Appends under way at once (embedded, ack local): how many batches share a group commit.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// In this process; without it, a server process on loopback.
    #[arg(long)]
    embedded: bool,
    /// Where the store is made; a fresh directory below it, removed afterwards.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Leave chunks on the local disk and upload nothing.
    #[arg(long)]
    no_objects: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What one run measured.
struct Measured {
    records: u64,
    elapsed: Duration,
    latencies_ns: Vec<u64>,
    refused: u64,
    read_us: f64,
    scan_per_s: f64,
    memory_bytes_peak: u64,
    settle: Duration,
}

fn percentile(sorted: &[u64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1_000.0)
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    let dir = args.dir.join(format!("evenfall-bench-store-{}", std::process::id()));
    if !args.embedded {
        return remote::main(args, &dir);
    }
    let mut config = StoreConfig::new(&dir);
    if args.no_objects {
        config.objects = None;
    }
    let store = Store::open(config)?.store;
    let measured = measure(args, &store);
    store.close()?;
    std::fs::remove_dir_all(&dir)?;
    let mut measured = measured?;
    measured.latencies_ns.sort_unstable();
    let rate = measured.records as f64 / measured.elapsed.as_secs_f64();
    let (p50, p99) =
        (percentile(&measured.latencies_ns, 0.5), percentile(&measured.latencies_ns, 0.99));
    if args.json {
        let line = json!({
            "record_bytes": args.record_bytes, "batch": args.batch, "streams": args.streams,
            "embedded": true, "records": measured.records, "records_per_s": rate,
            "append_us": {"p50": p50, "p99": p99}, "refused": measured.refused,
            "range_10k_us": measured.read_us, "scan_records_per_s": measured.scan_per_s,
            "memory_bytes_peak": measured.memory_bytes_peak,
            "settle_s": measured.settle.as_secs_f64(),
        });
        println!("{line}");
        return Ok(());
    }
    println!("{} records in {:.2} s", measured.records, measured.elapsed.as_secs_f64());
    println!("  {:.2} M records/s, append p50 {p50:.1} us, p99 {p99:.1} us", rate / 1e6);
    println!("  {} appends refused and tried again", measured.refused);
    println!("  unsynced at most {} MiB", measured.memory_bytes_peak >> 20);
    println!("  all synced {:.2} s after the last append", measured.settle.as_secs_f64());
    println!("  last 10,000 records: {:.1} us (median)", measured.read_us);
    println!("  scan of recent data: {:.1} M records/s", measured.scan_per_s / 1e6);
    Ok(())
}

fn measure(args: &Args, store: &Store) -> Result<Measured, Box<dyn std::error::Error>> {
    let schema = Schema::opaque(args.record_bytes);
    let wanted: Vec<_> = (0..args.streams).map(|n| (format!("s{n}"), schema.clone())).collect();
    let files = store.create_all(&wanted)?;
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let (mut latencies_ns, mut refused, mut records, mut peak) = (Vec::new(), 0, 0u64, 0);
    let mut waiting = std::collections::VecDeque::new();
    let mut clock = 0i64;
    let started = Instant::now();
    let mut turn = 0;
    while started.elapsed() < args.duration {
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
        }
        let file = &files[turn % files.len()];
        turn += 1;
        let begun = Instant::now();
        let (_, ticket) = loop {
            match store.append_begin(file, &batch, args.ack) {
                Err(error) if error.is_retryable() => {
                    refused += 1;
                    std::thread::sleep(Duration::from_micros(500));
                }
                done => break done?,
            }
        };
        records += args.batch as u64;
        if args.ack == Level::Memory {
            latencies_ns.push(begun.elapsed().as_nanos() as u64);
        } else {
            waiting.push_back((begun, file, ticket));
        }
        while waiting.len() >= args.window.max(1) {
            let Some((begun, file, ticket)) = waiting.pop_front() else { break };
            store.append_end(file, ticket, args.ack)?;
            latencies_ns.push(begun.elapsed().as_nanos() as u64);
        }
        if turn % 1_024 == 0 {
            peak = peak.max(store.occupancy().memory_bytes);
        }
    }
    for (begun, file, ticket) in waiting {
        store.append_end(file, ticket, args.ack)?;
        latencies_ns.push(begun.elapsed().as_nanos() as u64);
    }
    let elapsed = started.elapsed();
    let settle = Instant::now();
    while store.occupancy().memory_bytes > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let settle = settle.elapsed();
    let (read_us, scan_per_s) = reads(store, &files[0])?;
    Ok(Measured {
        records,
        elapsed,
        latencies_ns,
        refused,
        read_us,
        scan_per_s,
        memory_bytes_peak: peak,
        settle,
    })
}

/// Median time of reading the last 10,000 records, and the rate of a scan of the last million.
fn reads(
    store: &Store,
    file: &evenfall_node::store::StoreFile,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let end = file.records();
    let first = end.saturating_sub(10_000);
    let from = evenfall_store::layout::record_time(&store.record(file, first)?);
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        let mut bytes = Vec::with_capacity(1 << 18);
        store.read(file, from, i64::MAX, &mut |part| {
            bytes.extend_from_slice(&part);
            Ok(())
        })?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    let first = end.saturating_sub(1_000_000);
    let mut rates = Vec::new();
    for _ in 0..5 {
        let (begun, mut bytes) = (Instant::now(), Vec::new());
        store.read_numbers(file, first..end, &mut |part| {
            bytes.extend_from_slice(&part);
            Ok(())
        })?;
        rates.push((end - first) as f64 / begun.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok((percentile(&times, 0.5), rates[2]))
}
