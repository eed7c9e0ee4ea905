//! The same over loopback: a server in its own process, one client thread here.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_io::process;
use evenfall_node::store::{Client, Completion, RemoteFile};
use evenfall_store::Schema;
use serde_json::json;

use super::{Args, percentile};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// More than the requests that a server lets be under way.
const STARTS: usize = 1 << 16;

/// A server process; it ends with this value.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(args: &Args, dir: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["store", "serve", "--listen", "127.0.0.1:0"]).arg(dir);
        if args.no_objects {
            command.arg("--no-objects");
        }
        process::end_with_parent(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let address = line.trim().strip_prefix("serving tcp://").map(str::to_owned);
        let address = address.ok_or_else(|| format!("the server did not start: {line}"))?;
        Ok(Self { child, address })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // What it holds is thrown away.
        process::send(self.child.id(), process::Signal::Kill);
        let _ = self.child.wait();
    }
}

/// Appends under way and what is known of those that are done.
struct Flow {
    starts: Vec<Instant>,
    latencies_ns: Vec<u64>,
    records: u64,
}

impl Flow {
    fn done(&mut self, completion: Completion) -> Outcome {
        completion.first?;
        let begun = self.starts[completion.request as usize % STARTS];
        self.latencies_ns.push(begun.elapsed().as_nanos() as u64);
        Ok(())
    }
}

/// Runs it.
pub(super) fn main(args: &Args, dir: &Path) -> Outcome {
    let served = Served::start(args, dir)?;
    let measured = measure(args, &served);
    drop(served);
    std::fs::remove_dir_all(dir)?;
    let (mut flow, elapsed, range_us) = measured?;
    flow.latencies_ns.sort_unstable();
    let rate = flow.records as f64 / elapsed.as_secs_f64();
    let (p50, p99) = (percentile(&flow.latencies_ns, 0.5), percentile(&flow.latencies_ns, 0.99));
    if args.json {
        let line = json!({
            "record_bytes": args.record_bytes, "batch": args.batch, "streams": args.streams,
            "embedded": false, "records": flow.records, "records_per_s": rate,
            "append_us": {"p50": p50, "p99": p99}, "range_10k_us": range_us,
        });
        println!("{line}");
        return Ok(());
    }
    println!("{} records in {:.2} s over loopback", flow.records, elapsed.as_secs_f64());
    println!("  {:.2} M records/s, append p50 {p50:.1} us, p99 {p99:.1} us", rate / 1e6);
    println!("  last 10,000 records: {range_us:.1} us (median)");
    Ok(())
}

fn measure(args: &Args, served: &Served) -> Result<(Flow, Duration, f64), Failure> {
    let mut client = Client::connect(served.address.parse()?)?;
    let schema = Schema::opaque(args.record_bytes);
    let create = |n| client.create(&format!("s{n}"), &schema);
    let files: Vec<RemoteFile> = (0..args.streams).map(create).collect::<Result<_, _>>()?;
    let now = Instant::now();
    let mut flow = Flow { starts: vec![now; STARTS], latencies_ns: Vec::new(), records: 0 };
    let elapsed = append(args, &mut client, &files, &mut flow)?;
    let range_us = ranges(&mut client, &files[0])?;
    Ok((flow, elapsed, range_us))
}

fn append(
    args: &Args,
    client: &mut Client,
    files: &[RemoteFile],
    flow: &mut Flow,
) -> Result<Duration, Failure> {
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let (mut clock, mut turn) = (0i64, 0);
    let interval = args.rate.map(|rate| Duration::from_secs_f64(args.batch as f64 / rate));
    let started = Instant::now();
    while started.elapsed() < args.duration {
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
        }
        let due = interval.map(|interval| started + interval * turn);
        while let Some(wait) = due.and_then(|due| due.checked_duration_since(Instant::now())) {
            std::thread::sleep(wait);
        }
        // An append that comes late, because the one before took long, counts from when it was due.
        let begun = due.unwrap_or_else(Instant::now);
        let request = client.append(&files[turn as usize % files.len()], &batch, args.ack)?;
        flow.starts[request as usize % STARTS] = begun;
        flow.records += args.batch as u64;
        turn += 1;
        if interval.is_some() {
            finish(client, flow)?;
        }
        while let Some(completion) = client.completed() {
            flow.done(completion)?;
        }
    }
    finish(client, flow)?;
    Ok(started.elapsed())
}

fn finish(client: &mut Client, flow: &mut Flow) -> Outcome {
    while let Some(completion) = client.completion()? {
        flow.done(completion)?;
    }
    Ok(())
}

/// Median time of reading the last 10,000 records.
fn ranges(client: &mut Client, file: &RemoteFile) -> Result<f64, Failure> {
    let end = client.size(file)?.end;
    let first = client.record(file, end.saturating_sub(10_000))?;
    let from = evenfall_store::layout::record_time(&first);
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        client.between(file, from, i64::MAX)?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(percentile(&times, 0.5))
}
