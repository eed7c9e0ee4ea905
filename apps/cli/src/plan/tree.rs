//! `evenfall plan tree`: a multicast tree out of measured delays.

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use evenfall_core::{Hedging, Prng};
use evenfall_placement_planner::builder::{BuildPlan, Builder, Racing, RootRule};
use evenfall_placement_planner::delays::Delays;
use evenfall_placement_planner::lemondrop::{LemonDrop, Method};
use evenfall_placement_planner::minmax::{self, MinMax};
use evenfall_placement_planner::paths::Lengths;
use evenfall_placement_planner::qap::faq::Settings;
use evenfall_placement_planner::strategy::{Pick, Strategy};
use evenfall_placement_planner::tree::{Shape, Tree};
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
    /// The host that is the root, by name. Left out, minmax takes the best and the others any.
    #[arg(long)]
    root: Option<String>,
    /// Random roots that are tried, when none is given: the tree with the best worst leaf is kept.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    roots: u32,
    /// Candidates that each parent chooses from; twice the fan-out when left out.
    #[arg(long)]
    candidates: Option<usize>,
    /// Extra copies that each node below the first level gets from its parent's siblings.
    #[arg(long, default_value_t = Hedging::DEFAULT)]
    hedging: Hedging,
    /// The percentile of a path that counts, 50 to 99.9.
    #[arg(long, default_value_t = 90.0)]
    percentile: f64,
    /// minmax, lemondrop, weighted, p90, p50, rand, or a sum such as "max(p90, mean + 2 * stddev)".
    #[arg(long, default_value = "minmax")]
    strategy: String,
    /// Take the candidates that score best, or worst; minmax and lemondrop only know best.
    #[arg(long, default_value = "best")]
    pick: PickName,
    /// The same seed gives the same tree, on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PickName {
    Best,
    Worst,
}

type Result<T> = core::result::Result<T, Box<dyn std::error::Error>>;

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    let delays = read(args)?;
    let root = match &args.root {
        None => None,
        Some(name) => {
            let unknown = || {
                let (file, count) = (args.owd.display(), delays.hosts());
                let known = delays.names()[..count.min(3)].join(", ");
                format!("--root {name}: {file} has no such host; its {count} begin with {known}")
            };
            Some(delays.host(name).ok_or_else(unknown)?)
        }
    };
    let started = Instant::now();
    let pool: Vec<usize> = (0..delays.hosts()).collect();
    let shape = Shape { depth: args.depth, fanout: args.fanout };
    let share = args.percentile / 100.0;
    let (seed, hedging) = (args.seed, args.hedging);
    let what = MinMax { root, share, hedging, seed, ..MinMax::new(shape) };
    if !args.json && delays.hosts() > 300 {
        eprintln!("planning for {} hosts; this may take half a minute", delays.hosts());
    }
    let minmax = args.strategy.eq_ignore_ascii_case("minmax");
    let lemon = args.strategy.eq_ignore_ascii_case("lemondrop");
    if (minmax || lemon) && args.pick == PickName::Worst {
        return Err(format!("--pick worst: {} only knows best", args.strategy).into());
    }
    let start = match () {
        () if minmax => None,
        () if lemon => Some(lemondrop(args, &delays, shape, root)?),
        () => Some(by_strategy(args, &delays, shape, root)?),
    };
    let best = minmax::plan(&delays, &pool, &what, start.as_ref())?;
    // The best tree known also bounds what a strategy's tree lacks.
    let tree = start.unwrap_or(best.tree);
    let (leaf, _) = Lengths::new(&delays, share).worst_leaf(&tree);
    let worst = minmax::worst_leaf_us(&delays, &what, &tree);
    let gap = (worst / best.bound_us - 1.0).max(0.0);
    let seconds = started.elapsed().as_secs_f64();
    let names: Vec<&str> = tree.hosts().iter().map(|&h| delays.names()[h].as_str()).collect();
    if args.json {
        let json = json!({
            "tree": names,
            "depth": args.depth,
            "fanout": args.fanout,
            "root": names[0],
            "worst_leaf": (args.hedging == Hedging::NONE).then_some(names[leaf]),
            "worst_leaf_us": rounded(worst),
            "bound_us": rounded(best.bound_us),
            "gap": gap,
            "percentile": args.percentile,
            "hedging": args.hedging,
            "strategy": args.strategy,
            "seed": args.seed,
            "seconds": seconds,
        });
        println!("{json}");
        return Ok(());
    }
    print_tree(&tree, &names);
    println!(
        "worst leaf{}: p{} {worst:.1} us; no tree has less than {:.1} us: gap <= {:.2} %",
        if args.hedging == Hedging::NONE { format!(" {}", names[leaf]) } else { String::new() },
        args.percentile,
        best.bound_us,
        gap * 100.0
    );
    Ok(())
}

/// Nanoseconds are as fine as anybody measures.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

fn read(args: &Args) -> Result<Delays> {
    let path = args.owd.display();
    let text = std::fs::read_to_string(&args.owd).map_err(|error| format!("{path}: {error}"))?;
    let loaded = Delays::parse(&text).map_err(|error| format!("{path}: {error}"))?;
    if let Some(summary) = loaded.skipped_summary() {
        eprintln!("{path}: {summary}");
    }
    Ok(loaded.delays)
}

/// The tree whose edges' medians sum least.
fn lemondrop(args: &Args, delays: &Delays, shape: Shape, root: Option<usize>) -> Result<Tree> {
    let pool = delays.hosts();
    let cell = |pair: usize| {
        let edge = delays.edge(pair / pool, pair % pool);
        edge.map_or(f64::INFINITY, |stats| f64::from(stats.p50_us))
    };
    let matrix: Vec<f64> = (0..pool * pool).map(cell).collect();
    let what = LemonDrop { shape, pool, delays: &matrix, packets_per_s: 1.0, root };
    let (tree, _) = what.plan(Method::Faq(Settings::default()), &mut Prng::new(args.seed))?;
    Ok(tree)
}

/// A tree as TreeBuilder grows it; the best of several roots.
fn by_strategy(args: &Args, delays: &Delays, shape: Shape, root: Option<usize>) -> Result<Tree> {
    let random = args.strategy.eq_ignore_ascii_case("rand");
    let strategy = if random { Strategy::p50() } else { Strategy::parse(&args.strategy)? };
    if let Some(field) = strategy.lacks(delays) {
        let (path, name) = (args.owd.display(), field.name());
        return Err(format!("{path} has no {name}, which --strategy reads").into());
    }
    let pick = match args.pick {
        _ if random => Pick::Random,
        PickName::Best => Pick::Best,
        PickName::Worst => Pick::Worst,
    };
    let plan = BuildPlan {
        shape,
        candidates: args.candidates.unwrap_or(2 * args.fanout as usize),
        strategy,
        pick,
        root: root.map_or(RootRule::Random, RootRule::Host),
        racing: Racing::OFF,
    };
    let pool: Vec<usize> = (0..delays.hosts()).collect();
    let lengths = Lengths::new(delays, args.percentile / 100.0);
    let mut best: Option<(f64, Tree)> = None;
    let mut failed = None;
    for seed in 0..u64::from(if root.is_some() { 1 } else { args.roots }) {
        match Builder::new(plan.clone(), &pool, args.seed + seed)?.run_on(delays) {
            Ok(tree) => {
                let us = lengths.worst_leaf(&tree).1;
                if best.as_ref().is_none_or(|best| us < best.0) {
                    best = Some((us, tree));
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    match (best, failed) {
        (Some((_, tree)), _) => Ok(tree),
        (None, Some(error)) => Err(error.into()),
        (None, None) => Err("--roots: one at least".into()),
    }
}

/// One line per parent.
fn print_tree(tree: &Tree, names: &[&str]) {
    for place in 0..tree.shape().inner() {
        let mut level = 0;
        while !tree.shape().level(level).contains(&place) {
            level += 1;
        }
        let children = tree.shape().children(place).map(|child| names[child]);
        let children: Vec<&str> = children.collect();
        println!("{}{} -> {}", "  ".repeat(level as usize), names[place], children.join(" "));
    }
}
