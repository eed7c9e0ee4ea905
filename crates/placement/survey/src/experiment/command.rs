//! The command that carries out an experiment file: `evenfall plan run`, and the same in the lab on
//! simulated pools.

use std::path::PathBuf;

use evenfall_host::interrupt;
use evenfall_runtime::program::Outcome;
use evenfall_runtime::{aside, say};
use serde_json::json;

use super::execute::execute;
use super::file::On;
use super::{Experiment, ExperimentError, Live, Recorded, RunField, RunsDirectory};

/// Arguments of `evenfall plan run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The experiment file.
    file: PathBuf,
    /// Directory of the runs and the report. By default, the name of the file without its ending.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Change a value of the file, such as --set repetitions=3. The option may be given several
    /// times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Repeat the runs that are complete already.
    #[arg(long)]
    force: bool,
    /// List the runs of the file, and carry none out.
    #[arg(long)]
    list: bool,
    /// Print the results as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The field of an experiment that measures live or reads a record.
///
/// # Errors
/// When the recorded delays or the agents cannot be used, and for a simulated pool, which needs the
/// lab.
pub fn field(experiment: &Experiment) -> Result<Box<dyn RunField>, ExperimentError> {
    Ok(match &experiment.on {
        On::Recorded { owd } => Box::new(Recorded::read(owd, &mut |skipped| aside!("{skipped}"))?),
        On::Live { settings } => Box::new(Live::load(settings)?),
        On::Simulated(_) => {
            let why = "a simulated pool is an instrument of evenfall-lab";
            return Err(ExperimentError::Refused(why.into()));
        }
    })
}

impl Args {
    /// The experiment file with its changes.
    ///
    /// # Errors
    /// The mistake in the file, and its place.
    pub fn experiment(&self) -> Result<Experiment, ExperimentError> {
        Experiment::load(&self.file, &self.set)
    }
}

/// Carries the experiment out on the field that `field` returns.
///
/// # Errors
/// In words for people.
pub fn main(
    args: &Args,
    field: impl FnOnce(&Experiment) -> Result<Box<dyn RunField>, ExperimentError>,
) -> Outcome {
    let experiment = args.experiment()?;
    if args.list {
        for plan in experiment.plans() {
            say!("{:<32} seed {:<6} {}", plan.id, plan.seed, plan.group);
        }
        return Ok(());
    }
    interrupt::install()?;
    let mut field = field(&experiment)?;
    let path = args
        .dir
        .clone()
        .unwrap_or_else(|| PathBuf::from(args.file.file_stem().unwrap_or("experiment".as_ref())));
    let directory = RunsDirectory::create(&path)?;
    directory.describe(&experiment)?;
    let mut say = |line: &str| aside!("{line}");
    let outcome = execute(&experiment, &directory, &mut *field, args.force, &mut say)?;
    if args.json {
        let json = json!({
            "dir": path,
            "kept": outcome.kept,
            "done": outcome.done,
            "failed": outcome.failed,
            "missing": outcome.missing,
        });
        say!("{json}");
    }
    let again = "the same command goes on with what is missing";
    if outcome.missing > 0 {
        return Err(format!("stopped; {} runs are missing: {again}", outcome.missing).into());
    }
    if outcome.failed > 0 {
        return Err(format!("{} runs have no tree; {again}", outcome.failed).into());
    }
    if !args.json {
        let (runs, dir) = (outcome.kept + outcome.done, path.display());
        say!("{runs} runs in {dir}; evenfall plan report {dir} draws them");
    }
    Ok(())
}
