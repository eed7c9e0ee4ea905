//! `evenfall plan run`: carries out an experiment file.

use evenfall_placement_survey::experiment::command;
use evenfall_placement_survey::experiment::file::On;

pub use evenfall_placement_survey::experiment::command::Args;

use crate::{Outcome, instrument};

/// Carries out the experiment. A simulated pool needs the instruments.
pub fn main(args: &Args) -> Outcome {
    match args.experiment()?.on {
        On::Simulated(_) => instrument::hand_over("experiment", std::env::args_os().skip(3)),
        _ => command::main(args, command::field),
    }
}
