//! `evenfall plan tree`: a multicast tree out of measured delays.

use std::path::PathBuf;

use clap::ValueEnum;
use evenfall_placement::builder::{BuildPlan, Builder, Racing, RootRule};
use evenfall_placement::delays::Delays;
use evenfall_placement::paths::Lengths;
use evenfall_placement::strategy::{Pick, Strategy};
use evenfall_placement::tree::{Shape, Tree};
use serde_json::json;

use crate::Outcome;

/// Arguments of `evenfall plan tree`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Delays: a dense matrix in microseconds, or a list of pairs (first line names its columns).
    #[arg(long)]
    owd: PathBuf,
    /// Hops from the root to a leaf.
    #[arg(long)]
    depth: u32,
    /// Children of every inner place.
    #[arg(long)]
    fanout: u32,
    /// The host that is the root, by name; the planner chooses when left out.
    #[arg(long)]
    root: Option<String>,
    /// Roots that are tried, the tree with the best worst leaf is kept.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    roots: u32,
    /// Candidates per parent; twice the fan-out when left out.
    #[arg(long)]
    candidates: Option<usize>,
    /// The percentile of a path that counts.
    #[arg(long, default_value_t = 90.0)]
    percentile: f64,
    /// weighted, p90, p50, rand, or a sum such as "max(p90, mean + 2 * stddev)".
    #[arg(long, default_value = "weighted")]
    strategy: String,
    /// Take the candidates that score best, or worst.
    #[arg(long, default_value = "best")]
    pick: PickName,
    /// The same seed gives the same tree, on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PickName {
    Best,
    Worst,
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    let path = args.owd.display();
    let text = std::fs::read_to_string(&args.owd).map_err(|error| format!("{path}: {error}"))?;
    let loaded = Delays::parse(&text).map_err(|error| format!("{path}: {error}"))?;
    let delays = loaded.delays;
    for row in loaded.skipped.iter().take(if args.json { 0 } else { 5 }) {
        eprintln!("{path}: {row}; skipped");
    }
    if loaded.skipped_rows > 0 {
        eprintln!("{path}: {} rows skipped", loaded.skipped_rows);
    }
    let random = args.strategy.eq_ignore_ascii_case("rand");
    let strategy = if random { Strategy::p50() } else { Strategy::parse(&args.strategy)? };
    if let Some(field) = strategy.lacks(&delays) {
        return Err(format!("{path} has no {}, which the strategy reads", field.name()).into());
    }
    let root = match &args.root {
        None => RootRule::Random,
        Some(name) => {
            RootRule::Host(delays.host(name).ok_or(format!("--root {name}: not in {path}"))?)
        }
    };
    let pick = match args.pick {
        _ if random => Pick::Random,
        PickName::Best => Pick::Best,
        PickName::Worst => Pick::Worst,
    };
    let plan = BuildPlan {
        shape: Shape { depth: args.depth, fanout: args.fanout },
        candidates: args.candidates.unwrap_or(2 * args.fanout as usize),
        strategy,
        pick,
        root,
        racing: Racing::OFF,
    };
    let pool: Vec<usize> = (0..delays.hosts()).collect();
    let tree = Builder::new(plan, &pool, args.seed)?.run_on(&delays)?;
    let lengths = Lengths::new(&delays, args.percentile / 100.0);
    let (_, worst) = lengths.worst_leaf(&tree);
    print(args, &delays, &tree, worst);
    Ok(())
}

fn print(args: &Args, delays: &Delays, tree: &Tree, worst: f64) {
    let names: Vec<&str> = tree.hosts().iter().map(|&h| delays.names()[h].as_str()).collect();
    if args.json {
        println!("{}", json!({ "tree": names, "worst_leaf_us": worst }));
    } else {
        println!("{}", names.join(" "));
        println!("worst leaf: p{} {worst:.1} us", args.percentile);
    }
}
