//! The page of an experiment: curves, series over time and tables of worst leaves, by kind of tree.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::error::ExperimentError;
use super::execute::{Description, RunsDirectory};
use super::file::On;
use super::record::{Figures, Leaf, RunRecord};
use evenfall_runtime::page::page;

const SCRIPT: &str = include_str!("../../../../../web/plan.js");

/// The data of the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExperimentPage {
    /// The description of the experiment.
    pub description: Description,
    /// The field of the runs, in words.
    pub field: String,
    /// Kinds of trees, in the order of their runs.
    pub groups: Vec<TreeGroup>,
    /// Runs without a tree, with the reason.
    pub failures: Vec<String>,
}

/// Repetitions of one kind of tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeGroup {
    /// Name of the group.
    pub name: String,
    /// Its runs that have a tree.
    pub runs: Vec<RunLine>,
    /// Medians over the runs of their worst leaves' figures.
    pub worst: Option<Figures>,
    /// Distribution of the worst leaf of the run in the middle.
    pub cdf: Vec<(f64, f64)>,
    /// The run in the middle, by the worst leaf's 90th percentile, and its leaves.
    pub leaves_of: String,
    /// See `leaves_of`.
    pub leaves: Vec<Leaf>,
    /// The worst leaf of every window, medians over the runs.
    pub series: Vec<WindowPoint>,
    /// Medians of the cost of choosing a tree.
    pub timers: ChoiceEffort,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunLine {
    /// Its name.
    pub id: String,
    /// Its seed.
    pub seed: u64,
    /// The tree's hosts, the root first, level by level.
    pub tree: Vec<String>,
    /// The leaf with the largest 90th percentile.
    pub worst_leaf: String,
    /// That leaf's figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// Lower bound on the worst leaf's 90th percentile over all trees, us (min-max only).
    pub bound_us: Option<f64>,
}

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowPoint {
    /// When it was over.
    pub at_s: f64,
    /// Runs that had it.
    pub runs: usize,
    /// Median, 90th percentile and standard deviation of its worst leaf, us.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p90_us: f64,
    /// See `p50_us`.
    pub stddev_us: f64,
}

/// The cost of choosing a tree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChoiceEffort {
    /// Seconds of measuring, in the time of the field.
    pub measuring_s: f64,
    /// Seconds of choosing.
    pub deciding_s: f64,
    /// Probes sent.
    pub probes: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    evenfall_core::nearest_rank(&values, 0.5).unwrap_or(0.0)
}

/// The median of each figure.
fn middle(all: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| median(all.iter().map(figure));
    let errors: Option<Vec<f64>> = all.iter().map(|f| f.clock_error_us).collect();
    Figures {
        p50_us: of(|f| f.p50_us),
        p90_us: of(|f| f.p90_us),
        p99_us: of(|f| f.p99_us),
        mean_us: of(|f| f.mean_us),
        stddev_us: of(|f| f.stddev_us),
        loss: of(|f| f.loss),
        clock_error_us: errors.map(|errors| errors.into_iter().fold(0.0, f64::max)),
        count: of(|f| f.count as f64) as u64,
    }
}

/// The runs that have a tree and statistics.
fn lines(records: &[&RunRecord]) -> Vec<RunLine> {
    let line = |record: &&RunRecord| {
        let statistics = record.statistics.as_ref()?;
        Some(RunLine {
            id: record.plan.id.clone(),
            seed: record.plan.seed,
            tree: record.tree.clone(),
            worst_leaf: statistics.worst_leaf.clone(),
            figures: statistics.worst()?.figures,
            bound_us: record.bound_us,
        })
    };
    records.iter().filter_map(line).collect()
}

fn series(records: &[&RunRecord]) -> Vec<WindowPoint> {
    let mut windows: BTreeMap<u64, Vec<Figures>> = BTreeMap::new();
    for statistics in records.iter().filter_map(|record| record.statistics.as_ref()) {
        for window in &statistics.windows {
            windows.entry((window.at_s * 1e6) as u64).or_default().push(window.figures);
        }
    }
    let point = |(at_us, figures): (u64, Vec<Figures>)| {
        let Figures { p50_us, p90_us, stddev_us, .. } = middle(&figures);
        WindowPoint { at_s: at_us as f64 / 1e6, runs: figures.len(), p50_us, p90_us, stddev_us }
    };
    windows.into_iter().map(point).collect()
}

fn group(name: String, records: &[&RunRecord]) -> TreeGroup {
    let runs = lines(records);
    let figures: Vec<Figures> = runs.iter().map(|run| run.figures).collect();
    let mut order: Vec<&RunLine> = runs.iter().collect();
    order.sort_by(|a, b| a.figures.p90_us.total_cmp(&b.figures.p90_us));
    let middle_run = order.get(order.len().saturating_sub(1) / 2);
    let record = middle_run.and_then(|line| records.iter().find(|r| r.plan.id == line.id));
    let statistics = record.and_then(|record| record.statistics.as_ref());
    let leaves: Vec<Leaf> = statistics.map_or(Vec::new(), |s| s.leaves.clone());
    let timer = |of: fn(&RunRecord) -> f64| median(records.iter().map(|record| of(record)));
    TreeGroup {
        name,
        worst: (!runs.is_empty()).then(|| middle(&figures)),
        cdf: leaves.first().map_or(Vec::new(), |leaf| leaf.cdf.clone()),
        leaves_of: record.map_or(String::new(), |record| record.plan.id.clone()),
        leaves,
        series: series(records),
        timers: ChoiceEffort {
            measuring_s: timer(|record| record.timers.measuring_s),
            deciding_s: timer(|record| record.timers.deciding_s),
            probes: timer(|record| record.probes as f64),
        },
        runs,
    }
}

impl ExperimentPage {
    /// Reads the runs of an experiment. Runs of an earlier version of the experiment file are left
    /// out.
    ///
    /// # Errors
    /// The first file that cannot be read, or a directory without runs.
    pub fn read(directory: &RunsDirectory) -> Result<Self, ExperimentError> {
        let description = directory.description()?;
        let mut records = directory.read()?;
        records.retain(|record| description.runs.contains(&record.plan.id));
        if records.is_empty() {
            let shown = directory.path().display();
            return Err(format!("{shown}: no run is complete").into());
        }
        let mut names: Vec<String> = Vec::new();
        for id in &description.runs {
            let record = records.iter().find(|record| record.plan.id == *id);
            if let Some(name) = record.map(|record| &record.plan.group)
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        let of = |name: String| {
            let members = records.iter().filter(|r| r.plan.group == name && r.error.is_none());
            group(name.clone(), &members.collect::<Vec<_>>())
        };
        let groups = names.into_iter().map(of).collect();
        let failed = |r: &RunRecord| Some(format!("{}: {}", r.plan.id, r.error.as_deref()?));
        let field = match &records[0].plan.on {
            On::Recorded { owd } => {
                format!("recorded, {}", owd.file_name().unwrap_or_default().to_string_lossy())
            }
            On::Simulated(simulated) => format!("simulated, {} hosts", simulated.hosts),
            On::Live { .. } => "live".into(),
        };
        let failures = records.iter().filter_map(failed).collect();
        Ok(Self { description, field, groups, failures })
    }

    /// The page: one file, no network, no libraries.
    pub fn html(&self) -> String {
        page(&self.description.title, SCRIPT, self)
    }

    /// Writes the page.
    ///
    /// # Errors
    /// What the system says.
    pub fn write_html(&self, path: &Path) -> Result<(), ExperimentError> {
        fs::write(path, self.html()).map_err(ExperimentError::file(path))
    }
}
