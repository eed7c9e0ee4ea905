//! `evenfall sim study placement`: planners compared on simulated pools.

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use evenfall_campaigns::model::Model;
use evenfall_placement_planner::tree::TreeShape;
use evenfall_studies::placement::archived::archived_trees;
use evenfall_studies::placement::model::fit;
use evenfall_studies::placement::tables::{self, PlacementEffort};
use evenfall_studies::tables::Table;

/// Arguments of the placement study.
#[derive(clap::Args, Debug)]
#[group(id = "placement")]
pub struct Args {
    /// The table to make (placement only).
    #[arg(long, default_value = "shape")]
    table: Name,
    /// Hosts of the pool (placement, table shape).
    #[arg(long, default_value_t = 25)]
    pool: usize,
    /// Hops from the root to a leaf (placement, table shape).
    #[arg(long, default_value_t = 3)]
    depth: u8,
    /// Children of the root and of every inner node (placement, table shape).
    #[arg(long, default_value_t = 2)]
    fanout: u16,
    /// Probes of every measured pair (placement only).
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    probes: u32,
    /// The file with the pairs of TreeBuilder's public run (placement, table archived).
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Let delays drift between measuring and judging (placement only).
    #[arg(long)]
    drift: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// The model beside the measurements that the model was fitted to.
    Fit,
    /// The thesis' trees: strategies, worst, random, roots, LemonDrop.
    Thesis,
    /// The gain of building parts of a tree anew.
    Rebuilds,
    /// Planners on one shape.
    Shape,
    /// Probe traffic and time to a plan.
    Probing,
    /// How far min-max plans are from the best possible, on one shape.
    Gap,
    /// The trees of TreeBuilder's public run, and ours on the same pairs.
    Archived,
}

/// Default number of messages that judge a tree. With 5,000 messages, the p90 of the worst leaf is
/// exact to one percent.
const MESSAGES: u32 = 5_000;

/// Pools of a row by default. The first has the seed `first`, and each further pool the next seed.
const POOLS: u32 = 50;

/// Makes the table.
pub fn table(
    args: &Args,
    model: Model,
    first: u64,
    pools: Option<u32>,
    messages: Option<u32>,
    progress: &mut dyn FnMut(&str),
) -> Result<Table, String> {
    let messages = messages.unwrap_or(MESSAGES).max(1);
    let Args { probes, drift, .. } = *args;
    let seeds = u64::from(pools.unwrap_or(POOLS));
    let shape = TreeShape { depth: args.depth, fanout: args.fanout };
    if drift && model.path.reroutes.is_none() {
        return Err(format!(
            "--drift: model {} has no changes of routes; add [path.reroutes] to its file",
            model.name
        ));
    }
    let effort = PlacementEffort { model, first, seeds, probes, messages, drift };
    match args.table {
        Name::Fit => Ok(fit(&effort.model, seeds)),
        Name::Thesis => tables::thesis(&effort, progress),
        Name::Rebuilds => tables::rebuilds(&effort),
        Name::Shape => {
            let began = Instant::now();
            tables::shape(args.pool, shape, &effort, &|| began.elapsed(), progress)
        }
        Name::Archived => {
            let path = args.pairs.as_deref().ok_or("--table archived: give --pairs FILE")?;
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("--pairs {}: {error}", path.display()))?;
            archived_trees(&text, seeds)
        }
        Name::Gap => tables::gaps(&[(args.pool, shape)], &effort, progress),
        Name::Probing => tables::probing(&effort, progress),
    }
}
