//! Figure 5.11: appends, and reads of recent records, by the share of appends. Times are record
//! numbers, so a range of times is a range of records.

use std::time::{Duration, Instant};

use evenfall_core::Prng;
use evenfall_host::procstat;
use evenfall_runtime::program::Outcome;
use evenfall_store_engine::{Client, RemoteFile};
use serde_json::{Value, json};

use super::super::remote::{self, Served};
use super::super::{Args, Failure, median, percentile, times_us};
use super::{Column, print_table};

/// Percent of writes.
const WRITES: [u64; 4] = [100, 80, 50, 20];
/// Clients where no number is given. The thesis has 800 on machines of their own.
const CLIENTS: usize = 4;
/// Records from which reads choose: the last of a stream.
const RECENT: u64 = 50_000;
/// Pause before a failed append is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// Stack of a client's thread, which keeps its batch and its records on the heap.
const STACK_BYTES: usize = 256 << 10;
/// Files of this process besides its connections, at most.
const OTHER_FILES: u64 = 64;

const COLUMNS: [Column; 9] = [
    Column { head: "writes, %", path: "/writes_percent", unit: 1.0, digits: 0 },
    Column { head: "M records/s", path: "/records_per_s", unit: 1e6, digits: 1 },
    Column { head: "mean us", path: "/mean_us", unit: 1.0, digits: 0 },
    Column { head: "p99 us", path: "/p99_us", unit: 1.0, digits: 0 },
    Column { head: "write p50 us", path: "/write_us/p50", unit: 1.0, digits: 0 },
    Column { head: "p99 us", path: "/write_us/p99", unit: 1.0, digits: 0 },
    Column { head: "read p50 us", path: "/read_us/p50", unit: 1.0, digits: 0 },
    Column { head: "p99 us", path: "/read_us/p99", unit: 1.0, digits: 0 },
    Column { head: "failed", path: "/failed", unit: 1.0, digits: 0 },
];

pub(super) fn main(args: &Args) -> Outcome {
    let connections = args.connections.map_or(CLIENTS, usize::from);
    let files = procstat::raise_files().unwrap_or(u64::MAX);
    if files < connections as u64 + OTHER_FILES {
        let words = "raise the limit (ulimit -n)";
        return Err(format!(
            "--connections {connections}: this process may open {files} files: {words}"
        )
        .into());
    }
    if args.batch as u64 >= RECENT {
        return Err(format!("--batch {}: reads are from the last {RECENT}", args.batch).into());
    }
    let args = &Args { streams: args.streams.max(connections), ..args.clone() };
    let rows: Result<Vec<Value>, Failure> =
        WRITES.iter().map(|writes| measure_share(args, connections, *writes)).collect();
    let rows = rows?;
    match args.json {
        true => say!("{}", json!({"connections": connections, "rows": rows})),
        false => {
            say!("{connections} connections\n");
            print_table(&COLUMNS, &rows);
        }
    }
    Ok(())
}

/// The counts and times of clients.
#[derive(Default)]
struct Mixed {
    records: u64,
    writes_ns: Vec<u64>,
    reads_ns: Vec<u64>,
    /// Appends that the server gave up. Each was tried again.
    failed: u64,
}

impl Mixed {
    fn add_all(&mut self, other: Self) {
        self.records += other.records;
        self.failed += other.failed;
        self.writes_ns.extend(other.writes_ns);
        self.reads_ns.extend(other.reads_ns);
    }
}

/// Measures one share of writes, on a fresh server for each run.
fn measure_share(args: &Args, connections: usize, writes: u64) -> Result<Value, Failure> {
    let (mut rates, mut all) = (Vec::new(), Mixed::default());
    for run in 0..args.runs.max(1) {
        let dir = args.fresh(run);
        let mixed = Served::start(args, &dir, args.streams)
            .and_then(|served| mix_requests(args, &served, connections, writes));
        std::fs::remove_dir_all(&dir)?;
        let mixed = mixed?;
        rates.push(mixed.records as f64 / args.duration.as_secs_f64());
        all.add_all(mixed);
    }
    let mut times: Vec<u64> = all.writes_ns.iter().chain(&all.reads_ns).copied().collect();
    times.sort_unstable();
    let sum: u64 = times.iter().sum();
    Ok(json!({
        "writes_percent": writes, "records_per_s": median(rates),
        "mean_us": sum as f64 / times.len().max(1) as f64 / 1e3,
        "p99_us": percentile(&times, 0.99),
        "write_us": times_us(&mut all.writes_ns), "read_us": times_us(&mut all.reads_ns),
        "failed": all.failed,
    }))
}

/// Connects all clients, gives all files records to read, and then counts for the duration.
fn mix_requests(
    args: &Args,
    served: &Served,
    connections: usize,
    writes: u64,
) -> Result<Mixed, Failure> {
    let mut clients = Vec::new();
    for number in 0..connections {
        clients.push(MixClient::connect(args, served, number, connections)?);
    }
    run_in_threads(&mut clients, |client| client.fill_files(args))?;
    // The disk then has what was filled in, and works for what is counted alone.
    served.wait_for_empty(&["memory_bytes"])?;
    let started = Instant::now();
    let mut all = Mixed::default();
    for mixed in run_in_threads(&mut clients, |client| client.send_requests(args, writes, started))?
    {
        all.add_all(mixed);
    }
    Ok(all)
}

/// Runs a part of every client's work, each in a thread.
fn run_in_threads<R: Send>(
    clients: &mut [MixClient],
    work: impl Fn(&mut MixClient) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    std::thread::scope(|scope| -> Result<Vec<R>, Failure> {
        let (work, mut threads) = (&work, Vec::new());
        for client in clients {
            let run = move || work(client).map_err(|error| error.to_string());
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            threads.push(thread.spawn_scoped(scope, run)?);
        }
        let mut all = Vec::new();
        for thread in threads {
            all.push(thread.join().map_err(|_| "a client of the mix ended early")??);
        }
        Ok(all)
    })
}

/// A client with files of its own, which waits for each of its requests.
struct MixClient {
    number: usize,
    /// Clients in all.
    count: usize,
    connection: Client,
    files: Vec<RemoteFile>,
    /// Records of each file.
    ends: Vec<i64>,
    batch: Vec<u8>,
    prng: Prng,
}

impl MixClient {
    fn connect(args: &Args, served: &Served, number: usize, count: usize) -> Result<Self, Failure> {
        let mut connection = served.connect()?;
        let own = (0..args.streams).filter(|stream| stream % count == number);
        let open = |stream| connection.open(&format!("s{stream}"));
        let files: Vec<RemoteFile> = own.map(open).collect::<Result<_, _>>()?;
        let ends = vec![0; files.len()];
        let batch = vec![0; args.batch * usize::from(args.record_bytes)];
        let prng = Prng::new(number as u64 + 1);
        Ok(Self { number, count, connection, files, ends, batch, prng })
    }

    /// Appends the records from which reads choose.
    fn fill_files(&mut self, args: &Args) -> Result<(), Failure> {
        for _ in 0..RECENT.div_ceil(args.batch as u64) {
            for at in 0..self.files.len() {
                self.append_batch(args, at)?;
            }
        }
        Ok(())
    }

    /// Appends the next batch of a file. Returns how often the server gave the batch up.
    fn append_batch(&mut self, args: &Args, at: usize) -> Result<u64, Failure> {
        for record in self.batch.chunks_exact_mut(usize::from(args.record_bytes)) {
            record[..8].copy_from_slice(&self.ends[at].to_le_bytes());
            self.ends[at] += 1;
        }
        let mut failed = 0;
        loop {
            self.connection.append(&self.files[at], &self.batch, args.ack)?;
            match self.connection.completion()?.ok_or("no completion")?.first {
                Err(error) if remote::is_refusal(&error) => {
                    failed += 1;
                    std::thread::sleep(PAUSE);
                    self.connection.open(&format!("s{}", at * self.count + self.number))?;
                }
                done => {
                    done?;
                    return Ok(failed);
                }
            }
        }
    }

    /// Reads a batch among the recent records of a file.
    fn read_batch(&mut self, args: &Args, at: usize) -> Result<(), Failure> {
        let batch = args.batch as i64;
        let back = self.prng.below(RECENT - args.batch as u64) as i64 + batch;
        let from = self.ends[at] - back;
        self.connection.between(&self.files[at], from, from + batch - 1)?;
        Ok(())
    }

    /// Appends and reads in a random order until the duration is over. With a rate, requests of all
    /// clients are due in turns, and times count from then.
    fn send_requests(
        &mut self,
        args: &Args,
        writes: u64,
        started: Instant,
    ) -> Result<Mixed, Failure> {
        let (mut mixed, end) = (Mixed::default(), started + args.duration);
        for turn in 0_usize.. {
            let of_all = (turn * self.count + self.number) as u64;
            let due = args.rate.map(|rate| started + remote::due(args, rate, of_all));
            if due.unwrap_or(started).max(Instant::now()) >= end {
                break;
            }
            if let Some(due) = due {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let begun = due.unwrap_or_else(Instant::now);
            let at = turn % self.files.len();
            let is_write = self.prng.below(100) < writes;
            match is_write {
                true => mixed.failed += self.append_batch(args, at)?,
                false => self.read_batch(args, at)?,
            }
            let took = begun.elapsed().as_nanos() as u64;
            if is_write { &mut mixed.writes_ns } else { &mut mixed.reads_ns }.push(took);
            mixed.records += args.batch as u64;
        }
        Ok(mixed)
    }
}
