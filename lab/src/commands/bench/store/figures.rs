//! The figures of the Kawkab thesis (chapter 5), measured on our store.
//!
//! | figure | ours |
//! |---|---|
//! | 5.8 bursts, and how full each stage is | `burst` |
//! | 5.10 batch sizes | `batch` |
//! | 5.11 reads and writes mixed | `mix` |
//! | 5.12 history beside an ingest | `history` |
//! | 5.13 nodes | `nodes`, one process each on this machine |
//!
//! The figure `second` is not in the thesis.

use std::time::{Duration, Instant};

use evenfall_core::Prng;
use evenfall_store_engine::{Client, RemoteFile, StoreAckLevel};
use serde_json::Value;

use super::remote::{self, Served};
use super::{Args, Failure, median, percentile};
use evenfall_runtime::program::Outcome;

mod history;
mod second;

/// A figure to measure.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Figure {
    /// Throughput and append times by batch size.
    Batch,
    /// Throughput and times by share of writes.
    Mix,
    /// Bursts over 10,000 streams.
    Burst,
    /// Throughput by nodes.
    Nodes,
    /// Append times while history is read at another node of the cluster, and at the primary.
    History,
    /// The load that a scan of history on a second node puts on the primary.
    Second,
}

/// Batch sizes of figure 5.10.
const BATCHES: [usize; 6] = [100, 500, 1_000, 10_000, 20_000, 30_000];
/// Share of the greatest rate that is offered where times are measured, as in the thesis.
const LOAD: f64 = 0.7;
/// Percent of writes in figure 5.11.
const WRITES: [u64; 4] = [100, 80, 50, 20];
/// Clients of the read mix. Each client waits for each of its requests.
const CLIENTS: usize = 4;
/// Records from which reads choose: the last of a stream.
const RECENT: u64 = 50_000;
/// Pause before a failed append is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// Nodes of figure 5.13.
const NODES: [usize; 4] = [1, 2, 3, 4];

/// Prints the table of a figure.
pub(super) fn main(args: &Args, figure: Figure) -> Outcome {
    match figure {
        Figure::Batch => batch(args),
        Figure::Mix => mix(args),
        Figure::Burst => burst(args),
        Figure::Nodes => nodes(args),
        Figure::History => history::main(args),
        Figure::Second => second::main(args),
    }
}

/// Makes several runs with these arguments.
fn runs(args: &Args) -> Result<Vec<Value>, Failure> {
    let one = |run| {
        let dir = args.fresh(run);
        let value = remote::run(args, &dir);
        std::fs::remove_dir_all(&dir)?;
        value
    };
    (0..args.runs.max(1)).map(one).collect()
}

fn median_of(runs: &[Value], path: &str) -> f64 {
    median(runs.iter().filter_map(|run| run.pointer(path)?.as_f64()).collect())
}

fn batch(args: &Args) -> Outcome {
    println!("| batch | M records/s | append p50 at 70 % of it, us | p99, us |");
    println!("|---|---|---|---|");
    for batch in BATCHES {
        let free = Args { batch, rate: None, ..args.clone() };
        let rate = median_of(&runs(&free)?, "/records_per_s");
        // As in the thesis, the load is a stream of appends of which several are under way.
        let loaded = Args { rate: Some(LOAD * rate), ..free };
        let at = runs(&loaded)?;
        let (p50, p99) = (median_of(&at, "/append_us/p50"), median_of(&at, "/append_us/p99"));
        println!("| {batch} | {:.1} | {p50:.0} | {p99:.0} |", rate / 1e6);
    }
    Ok(())
}

fn burst(args: &Args) -> Outcome {
    let rate = args.rate.unwrap_or(1e6);
    let loaded = Args { burst: true, rate: Some(rate), ..args.clone() };
    let all = runs(&loaded)?;
    println!("{:.2} M records/s in the mean, twice that in one second of five", rate / 1e6);
    let taken = median_of(&all, "/records_per_s") / 1e6;
    let refused = median_of(&all, "/flush_lag/refused_and_tried_again");
    println!("{taken:.2} M taken; {refused:.0} appends refused and tried again\n");
    println!(
        "| s | memory MiB | cache MiB | local disk MiB | chunks to upload |\n|---|---|---|---|---|"
    );
    for row in all[0]["curve"].as_array().into_iter().flatten() {
        let of = |name: &str| row[name].as_f64().unwrap_or(0.0);
        println!(
            "| {} | {:.1} | {:.0} | {:.0} | {} |",
            of("s"),
            of("memory_mib"),
            of("cache_mib"),
            of("local_mib"),
            of("upload_chunks")
        );
    }
    Ok(())
}

/// The counts and times of one client of the mix.
#[derive(Default)]
struct Mixed {
    records: u64,
    writes_ns: Vec<u64>,
    reads_ns: Vec<u64>,
    /// Appends that the server gave up. Each was tried again.
    failed: u64,
}

fn mix(args: &Args) -> Outcome {
    println!("| writes | M records/s | mean us | write p50, p99 us | read p50, p99 us | failed |");
    println!("|---|---|---|---|---|---|");
    for writes in WRITES {
        let mut rates = Vec::new();
        let mut all = Mixed::default();
        for run in 0..args.runs.max(1) {
            let dir = args.fresh(run);
            let served = Served::start(args, &dir, args.streams)?;
            let mixed = clients(args, &served, writes)?;
            drop(served);
            std::fs::remove_dir_all(&dir)?;
            rates.push(mixed.records as f64 / args.duration.as_secs_f64());
            all.failed += mixed.failed;
            all.writes_ns.extend(mixed.writes_ns);
            all.reads_ns.extend(mixed.reads_ns);
        }
        let times = all.writes_ns.iter().chain(&all.reads_ns);
        let (sum, count) = times.fold((0u64, 0u64), |(sum, count), ns| (sum + ns, count + 1));
        let of = |times: &mut Vec<u64>| {
            times.sort_unstable();
            match times.is_empty() {
                true => "-".to_owned(),
                false => format!("{:.0}, {:.0}", percentile(times, 0.5), percentile(times, 0.99)),
            }
        };
        println!(
            "| {writes} % | {:.1} | {:.0} | {} | {} | {} |",
            median(rates) / 1e6,
            sum as f64 / count.max(1) as f64 / 1e3,
            of(&mut all.writes_ns),
            of(&mut all.reads_ns),
            all.failed
        );
    }
    Ok(())
}

fn clients(args: &Args, served: &Served, writes: u64) -> Result<Mixed, Failure> {
    let mut all = Mixed::default();
    std::thread::scope(|scope| -> Result<(), Failure> {
        let mut threads = Vec::new();
        for client in 0..CLIENTS {
            let connection = served.connect()?;
            threads.push(scope.spawn(move || {
                client_of_mix(args, connection, client, writes).map_err(|error| error.to_string())
            }));
        }
        for thread in threads {
            let mixed = thread.join().map_err(|_| "a client of the mix ended early")??;
            all.records += mixed.records;
            all.failed += mixed.failed;
            all.writes_ns.extend(mixed.writes_ns);
            all.reads_ns.extend(mixed.reads_ns);
        }
        Ok(())
    })?;
    Ok(all)
}

/// Appends and reads in a random order, each waited for. Times are record numbers, so a range of
/// times is a range of records.
fn client_of_mix(
    args: &Args,
    mut connection: Client,
    client: usize,
    writes: u64,
) -> Result<Mixed, Failure> {
    let mut prng = Prng::new(client as u64 + 1);
    let own = (0..args.streams).filter(|stream| stream % CLIENTS == client);
    let open = |stream| connection.open(&format!("s{stream}"));
    let files: Vec<RemoteFile> = own.map(open).collect::<Result<_, _>>()?;
    let mut ends = vec![0i64; files.len()];
    let mut mixed = Mixed::default();
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let started = Instant::now();
    // Every file has records to read before anything is counted.
    let fill = RECENT.div_ceil(args.batch as u64) as usize * files.len();
    let (mut turn, mut counted_at) = (0, started);
    while turn < fill || counted_at.elapsed() < args.duration {
        let at = turn % files.len();
        turn += 1;
        let is_write = turn <= fill || prng.below(100) < writes;
        let begun = Instant::now();
        if is_write {
            for record in batch.chunks_exact_mut(size) {
                record[..8].copy_from_slice(&ends[at].to_le_bytes());
                ends[at] += 1;
            }
            loop {
                connection.append(&files[at], &batch, StoreAckLevel::Memory)?;
                match connection.completion()?.ok_or("no completion")?.first {
                    Err(error) if remote::is_refusal(&error) => {
                        mixed.failed += 1;
                        std::thread::sleep(PAUSE);
                        connection.open(&format!("s{}", at * CLIENTS + client))?;
                    }
                    done => {
                        done?;
                        break;
                    }
                }
            }
        } else {
            let back = prng.below(RECENT - args.batch as u64) as i64 + args.batch as i64;
            let from = ends[at] - back;
            connection.between(&files[at], from, from + args.batch as i64 - 1)?;
        }
        if turn <= fill {
            counted_at = Instant::now();
            continue;
        }
        let took = begun.elapsed().as_nanos() as u64;
        if is_write { &mut mixed.writes_ns } else { &mut mixed.reads_ns }.push(took);
        mixed.records += args.batch as u64;
    }
    Ok(mixed)
}

fn nodes(args: &Args) -> Outcome {
    let offered = args.rate.unwrap_or(1e6);
    println!(
        "| nodes | M records/s, all they take | M records/s, {:.1} M offered to each |",
        offered / 1e6
    );
    println!("|---|---|---|");
    for nodes in NODES {
        let free = Args { rate: None, ..args.clone() };
        let paced = Args { rate: Some(offered), ..args.clone() };
        let (free, paced) = (together(&free, nodes)?, together(&paced, nodes)?);
        println!("| {nodes} | {:.1} | {:.2} |", free / 1e6, paced / 1e6);
    }
    Ok(())
}

/// The sum of the rates of this many nodes at once, each with a client of its own; the median over
/// runs.
fn together(args: &Args, nodes: usize) -> Result<f64, Failure> {
    let mut rates = Vec::new();
    for run in 0..args.runs.max(1) {
        let one = |node: usize| {
            let dir = args.fresh(run * 100 + node);
            let value = remote::run(args, &dir).map_err(|error| error.to_string());
            std::fs::remove_dir_all(&dir).map_err(|error| error.to_string())?;
            Ok::<f64, String>(value?["records_per_s"].as_f64().unwrap_or(0.0))
        };
        let sum: Result<f64, String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..nodes).map(|node| scope.spawn(move || one(node))).collect();
            let ended = "a node ended early";
            threads.into_iter().map(|t| t.join().map_err(|_| ended.to_owned())?).sum()
        });
        rates.push(sum?);
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(median(rates))
}
