//! `evenfall plan tree`: plans a multicast tree from measured delays.

use std::path::PathBuf;
use std::time::Instant;

use evenfall_core::Hedging;
use evenfall_host::whole_file::{DELAYS_BYTES_MAX, read_up_to};
use evenfall_placement_planner::assessed::AssessedPlan;
use evenfall_placement_planner::builder::RootRule;
use evenfall_placement_planner::delays::DelayMatrix;
use evenfall_placement_planner::planner::{PlanError, Planner};
use evenfall_placement_planner::tree::TreeShape;
use evenfall_runtime::listing::printable;

use crate::Outcome;

/// Arguments of `evenfall plan tree`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File of delays: a dense matrix in microseconds, or a list of pairs whose first line names
    /// its columns.
    #[arg(long)]
    owd: PathBuf,
    /// Hops from the root to a leaf.
    #[arg(long)]
    depth: u8,
    /// Children of the root and of every inner node.
    #[arg(long)]
    fanout: u16,
    /// The host that is the root, by name. Without it, minmax chooses the best host, and the other
    /// planners may choose any.
    #[arg(long)]
    root: Option<String>,
    /// Random roots that TreeBuilder tries when no root is given. The root with the best reach is
    /// kept.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    roots: u32,
    /// Candidates from which each parent chooses its children. Without it, twice the fan-out.
    #[arg(long)]
    candidates: Option<usize>,
    /// Extra copies that each node below the first level gets from its parent's siblings.
    #[arg(long, default_value_t = Hedging::DEFAULT)]
    hedging: Hedging,
    /// The percentile of a path by which trees are compared, 50 to 99.9.
    #[arg(long, default_value_t = 90.0)]
    percentile: f64,
    /// The planner: minmax, greedy, lemondrop, "lemondrop 30" (30 starts), weighted, p90, p50
    /// or another statistic (p25, p75, p99, mean, stddev, loss), "worst p90", or rand.
    #[arg(long, alias = "strategy", default_value = "minmax")]
    method: String,
    /// Seed of the search. The same seed gives the same tree on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The delays were measured between clocks that may be wrong. Compute the offsets of the clocks
    /// from the delays of both directions, and take them out of all delays.
    #[arg(long)]
    correct_clocks: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

type Result<T> = core::result::Result<T, Box<dyn std::error::Error>>;

pub fn main(args: &Args) -> Outcome {
    let delays = read(args)?;
    let root = match &args.root {
        None => None,
        Some(name) => {
            let unknown = || {
                let (file, count) = (args.owd.display(), delays.hosts());
                let known = delays.names()[..count.min(3)].join(", ");
                format!(
                    "--root {name}: {file} has no such host; it has {count} hosts, the first of \
                     which are {known}"
                )
            };
            Some(delays.host(name).ok_or_else(unknown)?)
        }
    };
    let started = Instant::now();
    let planner = planner(args, root)?;
    if !args.json && delays.hosts() > 300 {
        aside!("planning for {} hosts; this may take half a minute", delays.hosts());
    }
    let plan = planner.assess_tree(&delays, args.correct_clocks).map_err(|error| match error {
        PlanError::Lacks(field) => {
            format!("{} has no {}, which --method reads", args.owd.display(), field.name())
        }
        error => error.to_string(),
    })?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let mut json = serde_json::to_value(&plan)?;
        json["percentile"] = args.percentile.into();
        json["hedging"] = serde_json::to_value(args.hedging)?;
        json["method"] = args.method.as_str().into();
        json["seed"] = args.seed.into();
        json["seconds"] = seconds.into();
        say!("{json}");
        return Ok(());
    }
    print_tree(planner.shape, &plan.tree);
    print_length(args, &plan);
    Ok(())
}

/// Prints the length of the tree, the gap between that length and its lower bound, and the error of
/// the length.
fn print_length(args: &Args, plan: &AssessedPlan) {
    let leaf = plan.worst_leaf.as_ref();
    let host = leaf.map(|name| format!(" {}", printable(name))).unwrap_or_default();
    let worst = plan.worst_leaf_us;
    let bound = match plan.bound_us.zip(plan.gap) {
        Some((bound, gap)) => {
            let gap = gap * 100.0;
            format!("; by these estimates no tree has less than {bound:.1} us: gap <= {gap:.2} %")
        }
        None => "; the distance to the best possible tree is not known".into(),
    };
    say!("worst leaf{host}: p{} {worst:.1} us{bound}", args.percentile);
    let share = plan.gap_error.filter(|share| share.is_finite());
    let share = share.map(|share| format!("; error of the gap: {:.2} %", share * 100.0));
    let error = super::error_parts(plan.error);
    say!("error of that length: {error}{}", share.unwrap_or_default());
}

fn planner(args: &Args, root: Option<usize>) -> Result<Planner> {
    let shape = TreeShape { depth: args.depth, fanout: args.fanout };
    Ok(Planner {
        root: match root {
            Some(root) => RootRule::Host(root),
            None if args.roots > 1 => RootRule::Reach(args.roots),
            None => RootRule::Random,
        },
        candidates: args.candidates,
        share: args.percentile / 100.0,
        hedging: args.hedging,
        seed: args.seed,
        ..Planner::new(super::method(&args.method)?, shape)
    })
}

fn read(args: &Args) -> Result<DelayMatrix> {
    let path = args.owd.display();
    let failed = |error| format!("{path}: {error}");
    let bytes = read_up_to(&args.owd, DELAYS_BYTES_MAX).map_err(failed)?.bytes;
    let form = "give a square matrix of delays, or a list with columns parent, child, p50_us";
    let text = String::from_utf8(bytes).map_err(|_| format!("{path}: not a text file; {form}"))?;
    let loaded = DelayMatrix::parse(&text).map_err(|error| format!("{path}: {error}"))?;
    if let Some(summary) = loaded.skipped_summary() {
        aside!("{path}: {summary}");
    }
    let mut delays = loaded.delays;
    if args.correct_clocks {
        // A file does not say whether its hosts shared a clock.
        delays.forget_clock_errors();
        delays.correct_clocks();
    }
    Ok(delays)
}

/// One line per parent.
fn print_tree(shape: TreeShape, names: &[String]) {
    for place in 0..shape.inner() {
        let mut level = 0;
        while !shape.level(level).contains(&place) {
            level += 1;
        }
        // Names of hosts come from the file of delays, and may hold control characters.
        let children = names[shape.children(place)].iter().map(|name| printable(name));
        let children = children.collect::<Vec<_>>().join(" ");
        say!("{}{} -> {children}", "  ".repeat(level as usize), printable(&names[place]));
    }
}
