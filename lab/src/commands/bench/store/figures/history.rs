//! Figure 5.12: history is read beside an ingest, at another node of the cluster or at the primary.
//!
//! Clients append at a fixed rate to the primary. Readers then read ranges of one published file,
//! first at a node that is not its primary, and then at the primary. The thesis has both nodes on
//! machines of their own; here they and their clients share one.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_core::Prng;
use evenfall_host::process;
use evenfall_store_engine::Client;
use evenfall_store_format::Schema;
use serde_json::Value;

use super::super::remote::{Served, due};
use super::super::{Args, Failure, percentile};
use super::second::{RECORDS, fill};
use crate::product;
use evenfall_runtime::program::Outcome;

/// Bytes of each node's cache: less than the history, so that its readers need the objects.
const CACHE_BYTES: u64 = 32 << 20;
/// Records a second that are appended where no rate is given.
const RATE: f64 = 200_000.0;
/// Readers of history. The thesis has ten on machines of their own.
const READERS: usize = 2;
/// Records of one read of history.
const PART: u64 = 65_536;
/// How long the names may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names of the two nodes: a replica of ordered keys in a process of its own.
struct NamesServer {
    child: Child,
    address: SocketAddr,
}

impl NamesServer {
    fn start(dir: &Path) -> Result<Self, Failure> {
        let address = evenfall_host::ports::free(Ipv4Addr::LOCALHOST.into())?;
        let mut command = Command::new(product::program());
        command.args(["run", "keys", "--node=0", "--of=1"]).arg("--dir").arg(dir);
        command.arg(format!("--zookeeper={address}"));
        process::end_with_parent(&mut command, process::Signal::Kill);
        let child = command.stdout(Stdio::null()).spawn()?;
        let server = Self { child, address };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > end {
                return Err("the names do not answer".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for NamesServer {
    fn drop(&mut self) {
        process::send(self.child.id(), process::Signal::Kill);
        let _ = self.child.wait();
    }
}

pub(super) fn main(args: &Args) -> Outcome {
    let rate = Some(args.rate.unwrap_or(RATE));
    let args = &Args { no_objects: false, cache_bytes: CACHE_BYTES, rate, ..args.clone() };
    let dir = args.fresh(0);
    std::fs::create_dir_all(&dir)?;
    let measured = measure(args, &dir);
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn measure(args: &Args, dir: &Path) -> Outcome {
    let names = NamesServer::start(&dir.join("names"))?;
    let place = format!("keys://{}/bench", names.address);
    let objects = dir.join("objects").display().to_string();
    let more = ["--names", &place, "--objects", &objects];
    let primary = Served::spawn_with(args, &dir.join("primary"), None, &more)?;
    let other = Served::spawn_with(args, &dir.join("other"), None, &more)?;
    let mut client = primary.connect()?;
    client.create("s0", &Schema::opaque(args.record_bytes))?;
    fill(args, &mut client)?;
    say!(
        "{:.2} M records/s appended in batches of {}, {READERS} readers\n",
        args.rate.unwrap_or(RATE) / 1e6,
        args.batch
    );
    say!("| history is read | append p50, p99 us | M records/s | objects, cache, primary |");
    say!("|---|---|---|---|");
    for run in 0..args.runs.max(1) {
        let places = [
            ("not at all", None),
            ("at another node", Some(&other)),
            ("at the primary", Some(&primary)),
        ];
        for (who, at) in places {
            row(args, who, run, &primary, at)?;
        }
    }
    Ok(())
}

/// Appends for as long as a run lasts while others read, and prints what both got.
fn row(
    args: &Args,
    who: &str,
    run: usize,
    primary: &Served,
    readers_at: Option<&Served>,
) -> Outcome {
    let before = readers_at.map(Served::sample).transpose()?;
    let stop = AtomicBool::new(false);
    let mut clients = Vec::new();
    if let Some(served) = readers_at {
        for _ in 0..READERS {
            clients.push(served.connect()?);
        }
    }
    let (mut times, read) = std::thread::scope(|scope| -> Result<_, Failure> {
        let (stop, mut readers) = (&stop, Vec::new());
        for (number, client) in clients.into_iter().enumerate() {
            let seed = (run * READERS + number + 1) as u64;
            readers.push(scope.spawn(move || read_history(client, seed, stop)));
        }
        let appended = primary.connect().and_then(|client| append_at_rate(args, client));
        stop.store(true, Relaxed);
        let mut read = 0;
        for reader in readers {
            let records = reader.join().map_err(|_| "a reader ended early")?;
            read += records.map_err(|error| error.to_string())?;
        }
        Ok((appended?, read))
    })?;
    let after = readers_at.map(Served::sample).transpose()?;
    times.sort_unstable();
    let more = |name: &str| {
        let of = |sample: &Option<Value>| {
            sample.as_ref().map_or(0, |sample| sample[name].as_u64().unwrap_or(0))
        };
        (of(&after) - of(&before)) / 1_000_000
    };
    let places = ["others_object_bytes", "others_cache_bytes", "others_primary_bytes"].map(more);
    say!(
        "| {who} | {:.0}, {:.0} | {:.1} | {}, {}, {} MB |",
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        read as f64 / args.duration.as_secs_f64() / 1e6,
        places[0],
        places[1],
        places[2]
    );
    Ok(())
}

/// Appends at the rate, each append waited for. Times count from the moment at which an append is
/// due.
fn append_at_rate(args: &Args, mut client: Client) -> Result<Vec<u64>, Failure> {
    let mut files = Vec::new();
    for stream in 0..args.streams {
        files.push(client.create(&format!("i{stream}"), &Schema::opaque(args.record_bytes))?);
    }
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    // A file takes records in order of time, also those of the next row.
    let mut clock = 0i64;
    for file in &files {
        let numbers = client.size(file)?;
        if numbers.end > 0 {
            let last = client.record(file, numbers.end - 1)?;
            let time = last.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
            clock = clock.max(time);
        }
    }
    let mut times = Vec::new();
    let started = Instant::now();
    let rate = args.rate.unwrap_or(RATE);
    for turn in 0u64.. {
        let due = started + due(args, rate, turn);
        if due.duration_since(started) >= args.duration {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
        }
        client.append(&files[turn as usize % files.len()], &batch, args.ack)?;
        client.completion()?.ok_or("no completion")?.first?;
        times.push(due.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

/// Reads ranges of the lower half of the history until it is told to stop. Returns how many records
/// it has got.
fn read_history(
    mut client: Client,
    seed: u64,
    stop: &AtomicBool,
) -> Result<u64, evenfall_store_engine::StoreError> {
    let mut prng = Prng::new(seed);
    let file = client.open("s0")?;
    let mut read = 0;
    while !stop.load(Relaxed) {
        let first = prng.below(RECORDS / 2 / PART) * PART;
        client.read(&file, first..first + PART, &mut |_| Ok(()))?;
        read += PART;
    }
    Ok(read)
}
