//! Runs one after another, each into a file of its own.
//!
//! ```text
//! DIR/experiment.json      title, pool and seed, for the report
//! DIR/runs/<id>.json       a run that is complete
//! DIR/runs/<id>.json.part  a run that is being written; never read
//! DIR/report.html          the report
//! ```
//!
//! A file is written whole and then renamed, so it is complete or missing. A run that has a file is
//! carried out again only when its file has no tree.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ExperimentError;
use super::field::{RunField, RunWatch};
use super::file::{Experiment, PoolSettings, RunPlan};
use super::record::RunRecord;

/// Largest file of a run that is read.
pub(super) const RECORD_BYTES_MAX: u64 = 256 << 20;
/// The file with the description of an experiment, beside its runs.
pub(super) const DESCRIPTION: &str = "experiment.json";

/// Writes a file whose name ends with `.json`, whole or not at all.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), ExperimentError> {
    let part = path.with_extension("json.part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.map_err(ExperimentError::file(path))
}

/// The directory in which the runs of an experiment are kept.
#[derive(Clone, Debug)]
pub struct RunsDirectory(PathBuf);

/// The description of the whole experiment for the report, kept in `experiment.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// First line of the report.
    pub title: String,
    /// Seed of the first repetition.
    pub seed: u64,
    /// The machines, as the file has them.
    pub pool: Option<PoolSettings>,
    /// Names of all runs, in their order.
    pub runs: Vec<String>,
}

/// The counts of an execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutionCounts {
    /// Runs that were complete already.
    pub kept: usize,
    /// Runs that ended with a tree.
    pub done: usize,
    /// Runs that ended without one.
    pub failed: usize,
    /// Runs that were not begun, or not ended.
    pub missing: usize,
}

impl RunsDirectory {
    /// Opens the directory. A missing directory is created.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> Result<Self, ExperimentError> {
        let runs = path.join("runs");
        fs::create_dir_all(&runs).map_err(ExperimentError::file(&runs))?;
        Ok(Self(path.to_owned()))
    }

    /// Opens an existing directory.
    ///
    /// # Errors
    /// When the directory is missing or has no experiment.
    pub fn open(path: &Path) -> Result<Self, ExperimentError> {
        if path.join("runs").is_dir() {
            return Ok(Self(path.to_owned()));
        }
        Err(ExperimentError::Refused(format!(
            "{}: has no runs; name the directory that evenfall plan run wrote",
            path.display()
        )))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the description of the experiment.
    ///
    /// # Errors
    /// What the system says.
    pub fn describe(&self, experiment: &Experiment) -> Result<(), ExperimentError> {
        let description = Description {
            title: experiment.title.clone(),
            seed: experiment.seed,
            pool: experiment.pool.clone(),
            runs: experiment.plans().into_iter().map(|plan| plan.id).collect(),
        };
        let path = self.0.join(DESCRIPTION);
        let json =
            serde_json::to_string_pretty(&description).map_err(ExperimentError::json(&path))?;
        write_whole(&path, &(json + "\n"))
    }

    /// Reads the description of the experiment.
    ///
    /// # Errors
    /// When the file is missing or wrong.
    pub fn description(&self) -> Result<Description, ExperimentError> {
        let path = self.0.join(DESCRIPTION);
        let text = fs::read_to_string(&path).map_err(ExperimentError::file(&path))?;
        serde_json::from_str(&text).map_err(ExperimentError::json(&path))
    }

    fn file(&self, id: &str) -> PathBuf {
        self.0.join("runs").join(format!("{id}.json"))
    }

    fn read_file(path: &Path) -> Result<Option<RunRecord>, ExperimentError> {
        let size = match fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ExperimentError::File(path.to_owned(), error)),
            Ok(metadata) => metadata.len(),
        };
        if size > RECORD_BYTES_MAX {
            let shown = path.display();
            let why = format!("{shown}: {size} bytes; a run has {RECORD_BYTES_MAX} at most");
            return Err(why.into());
        }
        let text = fs::read_to_string(path).map_err(ExperimentError::file(path))?;
        serde_json::from_str(&text).map(Some).map_err(ExperimentError::json(path))
    }

    /// All runs in the directory, in the order of their names.
    ///
    /// # Errors
    /// The first file that cannot be read.
    pub fn read(&self) -> Result<Vec<RunRecord>, ExperimentError> {
        let runs = self.0.join("runs");
        let mut paths = Vec::new();
        for entry in fs::read_dir(&runs).map_err(ExperimentError::file(&runs))? {
            let path = entry.map_err(ExperimentError::file(&runs))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut records = Vec::new();
        for path in paths {
            records.extend(Self::read_file(&path)?);
        }
        records.sort_by_key(|record| record.plan.repetition);
        Ok(records)
    }

    /// Writes the file of a run, whole or not at all.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, record: &RunRecord) -> Result<(), ExperimentError> {
        let path = self.file(&record.plan.id);
        let json = serde_json::to_string_pretty(record).map_err(ExperimentError::json(&path))?;
        write_whole(&path, &(json + "\n"))
    }

    /// The plans of these that are still to be carried out: those without a file or without a tree,
    /// and with `force` all of them.
    fn pending(&self, plans: Vec<RunPlan>, force: bool) -> Result<Vec<RunPlan>, ExperimentError> {
        let mut pending = Vec::new();
        for plan in plans {
            let known = if force { None } else { Self::read_file(&self.file(&plan.id))? };
            match known {
                Some(known) if known.plan != plan => {
                    return Err(ExperimentError::Refused(format!(
                        "{}: was run with other settings; take another --dir, or --force to run \
                         it again",
                        self.file(&plan.id).display()
                    )));
                }
                Some(RunRecord { error: None, .. }) => {}
                Some(_) | None => pending.push(plan),
            }
        }
        Ok(pending)
    }
}

/// Writes each finished run to its file, and prints a line for it.
struct Keeper<'a> {
    directory: &'a RunsDirectory,
    outcome: &'a mut ExecutionCounts,
    number: usize,
    runs: usize,
    said: &'a mut dyn FnMut(&str),
    error: Option<ExperimentError>,
}

impl RunWatch for Keeper<'_> {
    fn over(&mut self, record: RunRecord) -> bool {
        self.number += 1;
        let plan = &record.plan;
        let head = format!("run {} of {}, {}, seed {}", self.number, self.runs, plan.id, plan.seed);
        match (&record.error, record.statistics.as_ref().and_then(|s| s.worst())) {
            (None, Some(worst)) => {
                self.outcome.done += 1;
                (self.said)(&format!(
                    "{head}: worst leaf {}, p50 {:.1} us, p90 {:.1} us, stddev {:.1} us ({:.1} s)",
                    worst.host,
                    worst.figures.p50_us,
                    worst.figures.p90_us,
                    worst.figures.stddev_us,
                    record.timers.wall_s
                ));
            }
            (error, _) => {
                self.outcome.failed += 1;
                (self.said)(&format!("{head}: {}", error.as_deref().unwrap_or("no statistics")));
            }
        }
        self.error = self.directory.write(&record).err();
        self.error.is_none()
    }

    fn said(&mut self, run: &RunPlan, words: &str) {
        (self.said)(&format!("  {}: {words}", run.id));
    }
}

/// Carries out the runs of an experiment that have no file or no tree yet. `said` gets lines for
/// people.
///
/// # Errors
/// The reason why no further run can be carried out. Finished runs are kept.
pub fn execute(
    experiment: &Experiment,
    directory: &RunsDirectory,
    field: &mut dyn RunField,
    force: bool,
    said: &mut dyn FnMut(&str),
) -> Result<ExecutionCounts, ExperimentError> {
    let plans = experiment.plans();
    let all = plans.len();
    let pending = directory.pending(plans, force)?;
    let runs = pending.len();
    let mut outcome = ExecutionCounts { kept: all - runs, ..ExecutionCounts::default() };
    if outcome.kept > 0 {
        said(&format!("{} of {all} runs are complete already", outcome.kept));
    }
    if runs == 0 {
        return Ok(outcome);
    }
    let mut keeper =
        Keeper { directory, outcome: &mut outcome, number: 0, runs, said, error: None };
    field.carry_out(pending, &mut keeper)?;
    if let Some(error) = keeper.error {
        return Err(error);
    }
    outcome.missing = runs - outcome.done - outcome.failed;
    Ok(outcome)
}
