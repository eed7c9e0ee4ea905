//! `evenfall-lab experiment`: carries out an experiment file, also on a simulated pool.

use evenfall_campaigns::model::Model;
use evenfall_campaigns::survey::pool::{PoolSpec, survey};
use evenfall_host::interrupt;
use evenfall_placement_survey::experiment::command::{self, Args};
use evenfall_placement_survey::experiment::field::RunWatch;
use evenfall_placement_survey::experiment::file::{On, SimulatedPool};
use evenfall_placement_survey::experiment::{ExperimentError, RunField, RunPlan, SurveyedRuns};
use evenfall_runtime::program::Outcome;

/// Agents and surveyor in the simulator. Every run has a world of its own, so that runs of one
/// repetition have the same pool and the same random numbers.
struct InSimulator(SimulatedPool, Model);

impl RunField for InSimulator {
    fn carry_out(
        &mut self,
        runs: Vec<RunPlan>,
        watch: &mut dyn RunWatch,
    ) -> Result<(), ExperimentError> {
        let Self(SimulatedPool { hosts, slow, slow_factor, .. }, model) = self;
        for plan in runs {
            let spec = PoolSpec {
                model: model.clone(),
                hosts: *hosts,
                slow: slow.clone(),
                slow_factor: *slow_factor,
                seed: plan.seed,
            };
            let names = (0..*hosts).map(|host| format!("h{host}")).collect();
            let rate_hz = plan.probe.rate;
            let mut program = SurveyedRuns::new(names, vec![plan], watch);
            survey(&spec, rate_hz, &mut program, &mut interrupt::raised);
            if interrupt::raised() || program.is_stopped() {
                break;
            }
        }
        Ok(())
    }
}

/// Carries the experiment out, on agents, on recorded delays or in the simulator, as its file says.
pub fn main(args: &Args) -> Outcome {
    command::main(args, |experiment| match &experiment.on {
        On::Simulated(simulated) => {
            let model = Model::named(&simulated.model).map_err(|error| {
                ExperimentError::Refused(format!("on.simulated.model: {error}"))
            })?;
            Ok(Box::new(InSimulator(simulated.clone(), model)))
        }
        _ => command::field(experiment),
    })
}
