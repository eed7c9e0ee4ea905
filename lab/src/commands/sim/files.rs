//! `evenfall sim files`: bulk reads of copies on a simulated data centre.

use std::path::Path;
use std::time::Duration;

use evenfall_files_flow::ThreeTier;
use evenfall_runtime::program::Outcome;
use evenfall_studies::files::morning::Morning;
use evenfall_studies::files::study::{self, FIGURES};
use evenfall_studies::files::{ReadParams, Steering, TOTAL_RATIO};
use evenfall_studies::shuffle::plot;
use evenfall_studies::tables::Table;
use serde_json::Value;

use super::seeds;

/// Arguments of `evenfall sim files`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The rule that chooses copy and path of a read: mayflower, mayflower-printed (the thesis's
    /// rule for two copies), mayflower-b (one copy), agentless, prequal, sinbad-mf, sinbad,
    /// nearest-mf, nearest, hedera, hdfs-mf or hdfs.
    #[arg(long, default_value = "mayflower")]
    policy: Steering,
    /// Reads that begin each second, for each host.
    #[arg(long, default_value_t = 0.1)]
    rate: f64,
    /// Runs, each with a seed of its own from --seed on.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_parser = super::seeds::first_seed())]
    seed: u64,
    /// Number of reads in a run.
    #[arg(long, default_value_t = evenfall_studies::files::READS)]
    reads: usize,
    /// Length of a read in megabytes.
    #[arg(long, default_value_t = 128)]
    block: u64,
    /// The rate at which all hosts together can send, divided by the rate that the cores carry.
    /// Racks carry twice the rate of the cores.
    #[arg(long, default_value_t = TOTAL_RATIO)]
    oversubscription: f64,
    /// Seconds between two readings of a flow's byte count.
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Flows of other tenants that begin each second, for each host.
    #[arg(long, default_value_t = 0.0)]
    background: f64,
    /// How often a second each host falls silent. A silent host sends nothing for --hang-seconds.
    #[arg(long, default_value_t = 0.0)]
    hangs: f64,
    /// Mean seconds for which a silent host sends nothing.
    #[arg(long, default_value_t = 5.0)]
    hang_seconds: f64,
    /// Let the policy know the flows of other tenants.
    #[arg(long)]
    aware: bool,
    /// Read what the 22 queries of TPC-H read, at this scale factor: whole tables in blocks of
    /// --block. All reads of a query begin at once, and --rate is the mean.
    #[arg(long, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    tpch: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Smallest interval of byte counts. Switches do not count faster, and the counts would take most
/// of the time of a run.
const INTERVAL_S_MIN: f64 = 0.001;

fn positive(name: &str, value: f64) -> Result<(), String> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(format!("{name} {value}: must be above 0"))
    }
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    positive("--rate", args.rate)?;
    positive("--oversubscription", args.oversubscription)?;
    positive("--hang-seconds", args.hang_seconds)?;
    if !(INTERVAL_S_MIN..=3_600.0).contains(&args.interval) {
        return Err(
            format!("--interval {}: {INTERVAL_S_MIN} to 3600 seconds", args.interval).into()
        );
    }
    if args.reads == 0 || args.block == 0 {
        return Err("--reads and --block: must be above 0".into());
    }
    let mut params = ReadParams { steering: args.policy, ..ReadParams::default() };
    (params.load.rate, params.load.reads) = (args.rate, args.reads);
    params.load.bytes = args.block.saturating_mul(1_000_000);
    params.load.queries = args.tpch;
    params.spec = ThreeTier::thesis(args.oversubscription / 2.0, args.oversubscription);
    params.interval = Duration::try_from_secs_f64(args.interval)?;
    (params.strangers_rate, params.strangers_seen) = (args.background.max(0.0), args.aware);
    params.hangs = (args.hangs.max(0.0), args.hang_seconds);
    let summary = params.runs(args.seed, args.seeds);
    let mut figures = vec![
        ("mean_s", &summary.mean_s),
        ("p50_s", &summary.p50_s),
        ("p95_s", &summary.p95_s),
        ("p99_s", &summary.p99_s),
        ("bound_s", &summary.bound_s),
        ("two_copies", &summary.divided),
        ("apart_s", &summary.apart_s),
        ("reroutes", &summary.reroutes),
        ("hedged", &summary.hedged),
    ];
    figures.extend(args.tpch.map(|_| ("query_s", &summary.waves_s)));
    let run = |at: usize| figures.iter().map(|(name, of)| (*name, Value::from(of[at]))).collect();
    let runs: Vec<Value> = (0..summary.mean_s.len()).map(run).collect();
    let mut shown = seeds::combined(&runs);
    if args.json {
        shown["policy"] = args.policy.name().into();
        shown["rate"] = args.rate.into();
        shown["seed"] = args.seed.into();
        shown["seeds"] = args.seeds.into();
        shown["reads"] = args.reads.into();
        say!("{shown}");
    } else {
        say!("{} at {} reads/s and host, {} seeds", args.policy.name(), args.rate, args.seeds);
        seeds::print(&shown);
    }
    Ok(())
}

/// The figure that is also drawn: [`Morning`].
const MORNING: (&str, &str) =
    ("morning", "A backtest's morning: eight hosts read one day at once, seconds");

/// The tables of `evenfall sim study files`. The picture of the figure `morning` or 3.3b goes to
/// `svg`.
pub fn tables(
    figures: &[String],
    first: u64,
    seeds: u64,
    svg: Option<&Path>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Table>, String> {
    let known: Vec<&str> = FIGURES.iter().chain([&MORNING]).map(|(number, _)| *number).collect();
    if let Some(name) = figures.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--figure {name}: there are {}", known.join(", ")));
    }
    let wanted = |number: &&str| figures.is_empty() || figures.iter().any(|name| name == number);
    let mut tables = Vec::new();
    for number in known.into_iter().filter(wanted) {
        if number == "3.3b" {
            let curves = study::distribution_of_reads(first, seeds, progress);
            if let Some((path, drawing)) = svg.zip(plot::svg(&curves)) {
                std::fs::write(path, drawing).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            tables.push(curves.table());
            continue;
        }
        if number != MORNING.0 {
            tables.push(study::table(number, first, seeds, progress));
            continue;
        }
        let morning = Morning::of(first, seeds, progress);
        if let Some(path) = svg {
            std::fs::write(path, morning.svg()).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        tables.push(morning.table(MORNING.1));
    }
    Ok(tables)
}
