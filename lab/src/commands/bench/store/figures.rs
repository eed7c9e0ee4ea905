//! The figures of the Kawkab thesis (chapter 5), measured on our store.
//!
//! | figure | ours |
//! |---|---|
//! | 5.8 bursts, and how full each stage is, until bucket and disk are full | `full-bucket` |
//! | 5.9 the same with uploads that are slower than the appends | `slow-uploads` |
//! | 5.10 batch sizes | `batch` |
//! | 5.11 reads and writes mixed | `mix` |
//! | 5.12 history beside an ingest | `history` |
//! | 5.13 nodes | `nodes`, one process each on this machine |
//! | 5.15 a limited disk | `disk` |
//!
//! The figures `burst`, with many files and with or without objects, and `second` are not in the
//! thesis.

use std::time::Duration;

use serde_json::Value;

use super::remote;
use super::{Args, Failure, median};
use evenfall_runtime::program::Outcome;

mod disk;
mod history;
mod mix;
mod second;
mod stages;

use stages::Cause;

/// A figure to measure.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum StoreFigure {
    /// Bursts until the bucket takes no more and the local disk is full, and back: rates, times
    /// and the stages in each second.
    #[value(alias = "5.8")]
    FullBucket,
    /// Bursts until the local disk is full because uploads are slower, and back.
    #[value(alias = "5.9")]
    SlowUploads,
    /// Throughput and append times by batch size.
    #[value(alias = "5.10")]
    Batch,
    /// Throughput and times by share of writes, with --connections.
    #[value(alias = "5.11")]
    Mix,
    /// Append times while history is read at another node of the cluster, and at the primary.
    #[value(alias = "5.12")]
    History,
    /// Throughput by nodes.
    #[value(alias = "5.13")]
    Nodes,
    /// Throughput and append times by length of the records, on a disk that takes 250 MB/s.
    #[value(alias = "5.15")]
    Disk,
    /// Bursts over 10,000 streams.
    Burst,
    /// The load that a scan of history on a second node puts on the primary.
    Second,
}

/// Batch sizes of figure 5.10.
const BATCHES: [usize; 6] = [100, 500, 1_000, 10_000, 20_000, 30_000];
/// Share of the greatest rate that is offered where times are measured, as in the thesis.
const LOAD: f64 = 0.7;
/// Nodes of figure 5.13.
const NODES: [usize; 4] = [1, 2, 3, 4];

/// Prints the table of a figure.
pub(super) fn main(args: &Args, figure: StoreFigure) -> Outcome {
    match figure {
        StoreFigure::FullBucket => stages::main(args, Cause::FullBucket),
        StoreFigure::SlowUploads => stages::main(args, Cause::SlowUploads),
        StoreFigure::Batch => batch(args),
        StoreFigure::Mix => mix::main(args),
        StoreFigure::History => history::main(args),
        StoreFigure::Nodes => nodes(args),
        StoreFigure::Disk => disk::main(args),
        StoreFigure::Burst => burst(args),
        StoreFigure::Second => second::main(args),
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
    say!("| batch | M records/s | append p50 at 70 % of it, us | p99, us |");
    say!("|---|---|---|---|");
    for batch in BATCHES {
        let free = Args { batch, rate: None, ..args.clone() };
        let rate = median_of(&runs(&free)?, "/records_per_s");
        // As in the thesis, the load is a stream of appends of which several are under way.
        let loaded = Args { rate: Some(LOAD * rate), ..free };
        let at = runs(&loaded)?;
        let (p50, p99) = (median_of(&at, "/append_us/p50"), median_of(&at, "/append_us/p99"));
        say!("| {batch} | {:.1} | {p50:.0} | {p99:.0} |", rate / 1e6);
    }
    Ok(())
}

fn burst(args: &Args) -> Outcome {
    let rate = args.rate.unwrap_or(1e6);
    let loaded = Args { burst: true, rate: Some(rate), ..args.clone() };
    let all = runs(&loaded)?;
    say!("{:.2} M records/s in the mean, twice that in one second of five", rate / 1e6);
    let taken = median_of(&all, "/records_per_s") / 1e6;
    let refused = median_of(&all, "/flush_lag/refused_and_tried_again");
    say!("{taken:.2} M taken; {refused:.0} appends refused and tried again\n");
    say!(
        "| s | memory MiB | cache MiB | local disk MiB | chunks to upload |\n|---|---|---|---|---|"
    );
    for row in all[0]["curve"].as_array().into_iter().flatten() {
        let of = |name: &str| row[name].as_f64().unwrap_or(0.0);
        say!(
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

/// A column of a table.
struct Column {
    head: &'static str,
    /// Where its number is in a row.
    path: &'static str,
    /// What its number is divided by.
    unit: f64,
    digits: usize,
}

fn print_table(columns: &[Column], rows: &[Value]) {
    let heads: Vec<&str> = columns.iter().map(|column| column.head).collect();
    say!("| {} |\n|{}", heads.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cell = |column: &Column| match row.pointer(column.path).and_then(Value::as_f64) {
            Some(number) => format!("{:.*}", column.digits, number / column.unit),
            None => "-".to_owned(),
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        say!("| {} |", cells.join(" | "));
    }
}

fn nodes(args: &Args) -> Outcome {
    let offered = args.rate.unwrap_or(1e6);
    say!(
        "| nodes | M records/s, all they take | M records/s, {:.1} M offered to each |",
        offered / 1e6
    );
    say!("|---|---|---|");
    for nodes in NODES {
        let free = Args { rate: None, ..args.clone() };
        let paced = Args { rate: Some(offered), ..args.clone() };
        let (free, paced) = (together(&free, nodes)?, together(&paced, nodes)?);
        say!("| {nodes} | {:.1} | {:.2} |", free / 1e6, paced / 1e6);
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
