//! The public run of TreeBuilder, tree by tree, beside our planners on the same pairs.
//!
//! The file lists the jobs of the run: seven stages, one for each inner place of a tree of depth 3
//! and fan-out 2, each with the delays from one parent to four candidates, and each stage four
//! times. The candidates stand in the order of their score. BEST keeps the first two of a stage,
//! the next stages' parents, and WORST the last two. So each repeat gives one tree of 15 places
//! with the delays of all its edges. RAND has rows of zeros only.

use std::collections::BTreeMap;

use evenfall_core::statistics::{half_width, mean};
use evenfall_placement_planner::builder::RootRule;
use evenfall_placement_planner::delays::DelayMatrix;
use evenfall_placement_planner::minmax::{self, MinMax};
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::strategy::{Pick, Strategy};
use evenfall_placement_planner::tree::{PlacedTree, TreeShape};

use crate::tables::Table;

/// The shape of the archived trees.
const SHAPE: TreeShape = TreeShape { depth: 3, fanout: 2 };
/// The shape of the trees of `plans/gcp-pairs.toml`.
const SHALLOW: TreeShape = TreeShape { depth: 2, fanout: 2 };
/// Candidates of a stage.
const CANDIDATES: usize = 4;
/// Worst leaves of the archived trees, 90th percentile, microseconds: the least and the greatest.
const PUBLISHED: [(&str, [f64; 2]); 3] =
    [("BEST", [291.0, 329.0]), ("RAND", [353.0, 368.0]), ("WORST", [415.0, 465.0])];
/// A path with an edge that was not measured is longer than this.
const MEASURED_US: f64 = 1e6;

/// A row of the file: its text, its parent and its child.
#[derive(Clone, Copy, Debug)]
struct JobRow<'a> {
    text: &'a str,
    parent: &'a str,
    child: &'a str,
}

/// The rows of a run by stage, in the order of the file.
fn stages<'a>(text: &'a str, run: &str) -> Vec<Vec<JobRow<'a>>> {
    let mut stages: BTreeMap<u32, Vec<JobRow<'a>>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let mut cells = line.split(',');
        let (Some(of), Some(stage), Some(parent), Some(child)) =
            (cells.next(), cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        if let (true, Ok(stage)) = (of == run, stage.parse()) {
            stages.entry(stage).or_default().push(JobRow { text: line, parent, child });
        }
    }
    stages.into_values().collect()
}

/// The worst leaf of each repeat's tree of a run, microseconds, estimated from the delays that the
/// same repeat measured. A repeat without delays has no tree.
fn worst_leaves(text: &str, run: &str, is_best: bool) -> Vec<f64> {
    let heads = text.lines().next().unwrap_or_default();
    let stages = stages(text, run);
    let repeats = stages.first().map_or(0, |stage| stage.len() / CANDIDATES);
    let tree = |repeat: usize| {
        let jobs: Vec<&[JobRow<'_>]> = stages
            .iter()
            .map(|stage| stage.chunks(CANDIDATES).nth(repeat))
            .collect::<Option<_>>()?;
        let rows = jobs.iter().flat_map(|job| job.iter().map(|row| row.text));
        let list: Vec<&str> = [heads].into_iter().chain(rows).collect();
        let delays = DelayMatrix::parse(&list.join("\n")).ok()?.delays;
        let mut hosts = vec![delays.host(jobs.first()?.first()?.parent)?];
        for job in jobs {
            let kept: Vec<&JobRow<'_>> =
                if is_best { job.iter().collect() } else { job.iter().rev().collect() };
            for row in kept.into_iter().take(SHAPE.fanout as usize) {
                hosts.push(delays.host(row.child)?);
            }
        }
        let tree = (hosts.len() == SHAPE.places()).then(|| PlacedTree::new(SHAPE, hosts))?;
        let us = minmax::worst_leaf_us(&delays, &MinMax::new(SHAPE), &tree);
        (us < MEASURED_US).then_some(us)
    };
    (0..repeats).filter_map(tree).collect()
}

/// The worst leaves of a planner's trees from the archived root, one for each seed that gives a
/// tree of measured pairs.
fn planned(
    delays: &DelayMatrix,
    root: usize,
    method: &PlanMethod,
    shape: TreeShape,
    seeds: u64,
) -> Vec<f64> {
    let hosts: Vec<usize> = (0..delays.hosts()).collect();
    let of = |seed| {
        let planner = Planner {
            root: RootRule::Host(root),
            candidates: Some(hosts.len() - 1),
            seed,
            ..Planner::new(method.clone(), shape)
        };
        let plan = planner.plan(delays, &hosts).ok()?;
        (plan.worst_leaf_us < MEASURED_US).then_some(plan.worst_leaf_us)
    };
    (1..=seeds).filter_map(of).collect()
}

/// The archived trees and ours. `text` is the file of the pairs.
///
/// # Errors
/// When the file is not that of the run.
pub fn archived_trees(text: &str, seeds: u64) -> Result<Table, String> {
    let loaded = DelayMatrix::parse(text).map_err(|error| error.to_string())?;
    let delays = &loaded.delays;
    let root = stages(text, "BEST").first().and_then(|stage| Some(stage.first()?.parent));
    let root = root.and_then(|name| delays.host(name)).ok_or("the file has no run BEST")?;
    let mut table = Table::new(
        "Worst leaves of TreeBuilder's public run, and of our planners on the same pairs",
        format!(
            "p90, microseconds; {} hosts, {} of {} ordered pairs measured, the run's root, seeds 1 \
             to {seeds}; all of ours are estimated from the percentiles of pairs",
            delays.hosts(),
            delays.edges(),
            delays.hosts() * (delays.hosts() - 1),
        ),
        &["tree", "published least", "most", "least", "mean", "+-", "most", "trees"],
    );
    let mut add = |name: String, published: Option<[f64; 2]>, us: &[f64]| {
        let [least, most] = published.map_or([None; 2], |published| published.map(Some));
        let ends = [f64::min, f64::max].map(|end| us.iter().copied().reduce(end));
        let trees = Some(us.len() as f64);
        let row = [least, most, ends[0], mean(us), half_width(us, 0.05), ends[1], trees];
        table.row(name, row);
    };
    for (run, published) in PUBLISHED {
        let us = worst_leaves(text, run, run == "BEST");
        if !us.is_empty() {
            add(format!("{run}, its own trees of three hops"), Some(published), &us);
        }
    }
    let methods = [
        ("BEST-P90", PlanMethod::best(Strategy::p90())),
        ("RAND", PlanMethod::random()),
        ("WORST-P90", PlanMethod::TreeBuilder(Strategy::p90(), Pick::Worst)),
        ("min-max", PlanMethod::MinMax),
    ];
    for (shape, hops) in [(SHAPE, "three"), (SHALLOW, "two")] {
        for (name, method) in &methods {
            let us = planned(delays, root, method, shape, seeds);
            let published = PUBLISHED.iter().find(|(run, _)| name.starts_with(run));
            let published = published.filter(|_| shape == SHAPE).map(|(_, us)| *us);
            add(format!("{name} on all pairs, {hops} hops"), published, &us);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of one repeat whose edges take 50 us for the first candidate, 60 for the second, and
    /// so on, without spread.
    fn run() -> String {
        let mut text =
            "run,stage,parent,child,p25_us,p50_us,p75_us,p90_us,stddev_us,recv\n".to_owned();
        for (run, parents) in [
            ("BEST", ["r", "a0", "a1", "b0", "b1", "c0", "c1"]),
            ("WORST", ["r", "a3", "a2", "b3", "b2", "c3", "c2"]),
        ] {
            for (stage, parent) in parents.into_iter().enumerate() {
                let of = ["a", "b", "c", "d", "e", "f", "g"][stage];
                for rank in 0..CANDIDATES {
                    let us = 50 + 10 * rank;
                    let row = [run, &stage.to_string(), parent, &format!("{of}{rank}")].join(",");
                    text += &format!("{row},{us},{us},{us},{us},0,100\n");
                }
            }
        }
        text
    }

    #[test]
    fn a_run_is_read_as_the_trees_that_it_kept() {
        let text = run();
        // The second-best child of the second-best child of the second-best child.
        assert_eq!(worst_leaves(&text, "BEST", true), [180.0]);
        assert_eq!(worst_leaves(&text, "WORST", false), [240.0]);
        assert!(worst_leaves(&text, "RAND", false).is_empty());
        let table = archived_trees(&text, 2).expect("a run");
        let row = |name: &str| {
            let found = table.rows.iter().find(|row| row.0.starts_with(name)).expect("a row");
            found.1.clone()
        };
        assert_eq!(row("BEST, its own")[..3], [Some(291.0), Some(329.0), Some(180.0)]);
        assert_eq!(row("min-max on all pairs, three")[2], Some(180.0));
        assert!(
            archived_trees("", 1).is_err()
                && archived_trees("parent,child,p50\na,b,5\n", 1).is_err()
        );
    }
}
