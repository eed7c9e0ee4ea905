//! `evenfall plan run`: carries out an experiment file.

use std::path::PathBuf;

use evenfall_host::interrupt;
use evenfall_placement_survey::experiment::execute::execute;
use evenfall_placement_survey::experiment::field::Watch;
use evenfall_placement_survey::experiment::file::{On, Simulated};
use evenfall_placement_survey::experiment::{Directory, Experiment, Field, Live, Recorded, RunPlan, Survey};
use evenfall_lab::survey::pool::{PoolSpec, survey};
use serde_json::json;

use crate::Outcome;

/// Arguments of `evenfall plan run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The experiment file.
    file: PathBuf,
    /// Where runs and report go; the file's name without its ending by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Change a value of the file, such as --set repetitions=3; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run again what is complete already.
    #[arg(long)]
    force: bool,
    /// Only say which runs there are.
    #[arg(long)]
    list: bool,
    /// Print what came of it as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Agents and surveyor in the simulator: a world of its own for every run, so that runs of one
/// repetition meet the same pool and the same luck.
struct InSimulator(Simulated);

impl Field for InSimulator {
    fn carry_out(&mut self, runs: Vec<RunPlan>, watch: &mut dyn Watch) -> Result<(), String> {
        let Simulated { hosts, slow, slow_factor } = &self.0;
        for plan in runs {
            let spec = PoolSpec {
                hosts: *hosts,
                slow: slow.clone(),
                slow_factor: *slow_factor,
                seed: plan.seed,
            };
            let names = (0..*hosts).map(|host| format!("h{host}")).collect();
            let rate_hz = plan.probe.rate;
            let mut program = Survey::new(names, vec![plan], watch);
            survey(&spec, rate_hz, &mut program, &mut interrupt::raised);
            if interrupt::raised() || program.is_stopped() {
                break;
            }
        }
        Ok(())
    }
}

fn field(experiment: &Experiment) -> Result<Box<dyn Field>, String> {
    Ok(match &experiment.on {
        On::Recorded { owd } => {
            Box::new(Recorded::read(owd, &mut |skipped| eprintln!("{skipped}"))?)
        }
        On::Simulated(simulated) => Box::new(InSimulator(simulated.clone())),
        On::Live { settings } => Box::new(Live::load(settings)?),
    })
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    let experiment = Experiment::load(&args.file, &args.set)?;
    if args.list {
        for plan in experiment.plans() {
            println!("{:<32} seed {:<6} {}", plan.id, plan.seed, plan.group);
        }
        return Ok(());
    }
    interrupt::install()?;
    let mut field = field(&experiment)?;
    let path = args
        .dir
        .clone()
        .unwrap_or_else(|| PathBuf::from(args.file.file_stem().unwrap_or("experiment".as_ref())));
    let directory = Directory::create(&path)?;
    directory.describe(&experiment)?;
    let mut say = |line: &str| eprintln!("{line}");
    let outcome = execute(&experiment, &directory, &mut *field, args.force, &mut say)?;
    if args.json {
        let json = json!({
            "dir": path,
            "kept": outcome.kept,
            "done": outcome.done,
            "failed": outcome.failed,
            "missing": outcome.missing,
        });
        println!("{json}");
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
        println!("{runs} runs in {dir}; evenfall plan report {dir} draws them");
    }
    Ok(())
}
