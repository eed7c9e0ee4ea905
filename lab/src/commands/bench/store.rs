//! `evenfall bench store`: how fast the store takes and gives records, over loopback or embedded.

mod disk_limit;
mod embedded;
mod figures;
mod raw;
mod remote;
mod reopen;
mod scan;
mod subscribe;
mod ticks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_store_engine::StoreAckLevel;
use serde_json::{Value, json};

use super::{Failure, median, several};
use evenfall_runtime::program::Outcome;
use humantime::parse_duration;

/// Streams from which on the directories of all runs stay until the last run is over. A file system
/// such as ext4 looks at each file that was removed in the last minutes before it makes another
/// one: ten thousand removed files make each new one take .4 ms of a core, where it took .03.
const STREAMS_STAY: usize = 1_000;

/// Arguments of `evenfall bench store`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Bytes of a record.
    #[arg(long, default_value_t = 16)]
    record_bytes: u16,
    /// Number of records in an append.
    #[arg(long, default_value_t = 1_000)]
    batch: usize,
    /// Files that are appended to in turns.
    #[arg(long, visible_alias = "files", default_value_t = 16)]
    streams: usize,
    #[arg(
        long,
        default_value = "memory",
        help = format!("{}; a second node is on this machine and disk", StoreAckLevel::list())
    )]
    ack: StoreAckLevel,
    /// Duration of the appends.
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// Records per second to offer. The time of an append counts from the moment when the append is
    /// due. Without this option, appends go as fast as they can. Not with --embedded.
    #[arg(long, value_name = "RECORDS/S", conflicts_with = "embedded")]
    rate: Option<f64>,
    /// Offer twice the rate in one second of five, and three quarters of it in the other seconds.
    #[arg(long, requires = "rate")]
    burst: bool,
    /// Limit of the bytes of appends under way at once. The limit decides how many appends share a
    /// group commit. By default 4 MiB for memory and 16 MiB for local.
    #[arg(long)]
    window_bytes: Option<u64>,
    /// Run the store in this process instead of in a server process on loopback.
    #[arg(long)]
    embedded: bool,
    /// Directory below which a fresh store is made, and removed afterwards.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Connect as a user with a key, over sealed connections.
    #[arg(long, conflicts_with_all = ["embedded", "scan"])]
    sealed: bool,
    /// Keep all chunks on the local disk, and upload nothing.
    #[arg(long)]
    no_objects: bool,
    /// The object store: an empty directory or an `s3://` address, in which each run has a place of
    /// its own. By default, inside the store's directory.
    #[arg(long, conflicts_with_all = ["no_objects", "figure"])]
    objects: Option<String>,
    /// Limit of the bytes of records that are on no disk yet.
    #[arg(long, default_value_t = 512 << 20)]
    memory_bytes: u64,
    /// Bytes of the store's cache of recent segments.
    #[arg(long, default_value_t = 256 << 20)]
    cache_bytes: u64,
    /// Bytes of each file that are kept, so that a long run does not fill the disk.
    #[arg(long)]
    keep_bytes: Option<u64>,
    /// Limit of the bytes of chunks on the server's local disk.
    #[arg(long, conflicts_with_all = ["embedded", "scan"])]
    local_bytes: Option<u64>,
    /// Bytes of chunks that the server uploads in a second.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["no_objects", "embedded", "scan"])]
    upload_bytes_per_s: Option<u64>,
    /// Bytes that the server writes to its disk in a second: a control group of block IO, as root.
    /// Version 1 of control groups may miss what the kernel writes back.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["embedded", "scan"])]
    disk_bytes_per_s: Option<u64>,
    /// Bytes of objects at which the bucket of `--figure full-bucket` takes no more; by default 80
    /// MiB.
    #[arg(long, value_name = "BYTES", requires = "figure")]
    bucket_bytes: Option<u64>,
    /// Connections of `--figure mix`, each with a thread and at least one file of its own; by
    /// default 4.
    #[arg(long, value_name = "COUNT", requires = "figure",
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: Option<u16>,
    /// Beside each run, also measure the rate of a raw file on the same disk, for this long per
    /// way, such as 5s.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    raw: Option<Duration>,
    /// Measure reading instead: scans to Arrow from the cache and from cold objects, and the share
    /// of the index search in a read.
    #[arg(long)]
    scan: bool,
    /// Measure how far a subscriber is behind the appends of one file, and beside it a reader that
    /// polls ten times a second. Needs --rate.
    #[arg(long, requires = "rate", conflicts_with_all = ["scan", "burst", "raw"])]
    subscribe: bool,
    /// Append for the duration, kill the server, drop the page cache (as root), and measure how
    /// long the store takes to open again, beside a plain read of its journals.
    #[arg(long, conflicts_with_all = ["scan", "subscribe", "embedded", "raw", "sealed", "figure"])]
    open: bool,
    /// Measure a figure of the thesis on Kawkab, by its name or its number, and print the figure as
    /// a table.
    #[arg(long)]
    figure: Option<figures::StoreFigure>,
    /// Number of runs. The medians are printed, with the least and the greatest rate.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn window_bytes(&self) -> u64 {
        let usual = if self.ack.waits().is_empty() { 4 << 20 } else { 16 << 20 };
        self.window_bytes.unwrap_or(usual)
    }

    /// The figure by which several runs are put in order.
    fn ordered_by(&self) -> &'static str {
        if self.open { "open_ms" } else { "records_per_s" }
    }

    /// A directory of one run.
    fn fresh(&self, run: usize) -> PathBuf {
        self.dir.join(format!("evenfall-bench-store-{}-{run}", std::process::id()))
    }
}

/// Microseconds below which this share of the times lies.
fn percentile(sorted: &[u64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1_000.0)
}

/// The median and the 99th percentile of the times, in microseconds.
fn times_us(times_ns: &mut [u64]) -> Value {
    times_ns.sort_unstable();
    json!({"p50": percentile(times_ns, 0.5), "p99": percentile(times_ns, 0.99)})
}

/// Measures what the arguments ask for, and prints the results.
pub fn main(args: &Args) -> Outcome {
    if let Some(figure) = args.figure {
        return figures::main(args, figure);
    }
    let one = |run| one(args, &args.fresh(run));
    let measured = match args.runs {
        0 | 1 => one(0),
        runs => several(runs, args.ordered_by(), one),
    };
    (0..args.runs.max(1)).try_for_each(|run| remove_run(&args.fresh(run)))?;
    let value = measured?;
    match args.json {
        true => say!("{value}"),
        false => print(&value, ""),
    }
    Ok(())
}

fn remove_run(dir: &Path) -> std::io::Result<()> {
    match dir.exists() {
        true => std::fs::remove_dir_all(dir),
        false => Ok(()),
    }
}

/// Makes one run, and measures the raw file beside it.
fn one(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let run = dir.file_name().unwrap_or_default().to_string_lossy();
    let objects = args.objects.as_ref().map(|place| format!("{place}/{run}"));
    let args = &Args { objects, ..args.clone() };
    let measured = match (args.scan, args.embedded) {
        (true, _) => scan::run(args, dir),
        (false, false) if args.open => reopen::run(args, dir),
        (false, false) if args.subscribe => subscribe::run(args, dir),
        (false, true) => embedded::run(args, dir),
        (false, false) => remote::run(args, dir),
    };
    if args.streams < STREAMS_STAY {
        remove_run(dir)?;
    }
    let mut value = measured?;
    if let Some(duration) = args.raw {
        value["raw_file"] = raw::run(args, duration)?;
        if let Some(rate) = value["records_per_s"].as_f64() {
            let of = |way: &str| value["raw_file"][way].as_f64().map(|raw| rate / raw);
            value["share_of_raw"] = json!({
                "each_batch": of("each_batch"),
                "each_window": of("each_window"),
                "once": of("once"),
            });
        }
    }
    Ok(value)
}

fn print(value: &Value, prefix: &str) {
    let Value::Object(parts) = value else { return };
    for (key, part) in parts {
        match part {
            Value::Object(_) => print(part, &format!("{prefix}{key}.")),
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                match number.abs() >= 1e5 {
                    true => say!("{prefix}{key}: {:.2} M", number / 1e6),
                    false => say!("{prefix}{key}: {number:.4}"),
                }
            }
            other => say!("{prefix}{key}: {other}"),
        }
    }
}
