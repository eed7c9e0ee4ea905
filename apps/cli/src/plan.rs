//! `evenfall plan`: chooses the machine for each place in the tree.

#[cfg(feature = "agents")]
mod apply;
#[cfg(feature = "agents")]
mod deploy;
#[cfg(feature = "agents")]
mod fetch;
#[cfg(feature = "agents")]
mod lab;
#[cfg(feature = "agents")]
mod live;
#[cfg(feature = "agents")]
mod model;
#[cfg(feature = "agents")]
mod rebuild;
#[cfg(feature = "agents")]
mod report;
#[cfg(feature = "agents")]
mod run;
mod tree;
#[cfg(feature = "agents")]
mod wanted;

use clap::Subcommand;
use evenfall_placement_planner::accuracy::LengthError;
use evenfall_placement_planner::planner::PlanMethod;

use crate::{Outcome, instrument};

#[cfg(not(feature = "agents"))]
use self::absent::{deploy, fetch, lab, live, report, run};

/// The commands that need agents or experiments, in a build without them.
#[cfg(not(feature = "agents"))]
mod absent {
    macro_rules! stand_in {
        ($($command:ident),*) => {
            $(pub mod $command {
                pub use crate::missing::Args;

                pub fn main(_: &Args) -> crate::Outcome {
                    crate::missing::main(concat!("plan ", stringify!($command)), "agents")
                }
            })*
        };
    }
    stand_in!(deploy, fetch, lab, live, report, run);
}

/// Arguments of `evenfall plan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Write the files that bring up the pool of an experiment: settings, Terraform values,
    /// manifests.
    Deploy(deploy::Args),
    /// Measure running agents, and choose a tree from them.
    Live(live::Args),
    /// Measure agents in namespaces of this machine, some of them slow, and choose a tree; needs
    /// the user root.
    Lab(lab::Args),
    /// Choose a multicast tree from a pool whose delays are in a file.
    Tree(tree::Args),
    /// Solve a quadratic assignment problem from a QAPLIB file.
    #[command(disable_help_flag = true)]
    Qap(instrument::Args),
    /// Carry out an experiment file: live, in the simulator, or on recorded delays.
    Run(run::Args),
    /// Bring the runs of an experiment home from the machine that carries it out.
    Fetch(fetch::Args),
    /// Draw a finished experiment as one page.
    Report(report::Args),
}

/// The planner of `--method`.
fn method(word: &str) -> Result<PlanMethod, String> {
    PlanMethod::parse(word)
        .map_err(|error| format!("--method {word}: {error}; allowed: {}", PlanMethod::WORDS))
}

/// Text with the two parts of a length's error.
fn error_parts(error: LengthError) -> String {
    let part = |name: &str, us: f64| match us.is_finite() {
        true => format!("{name} {us:.1} us"),
        false => format!("{name} unknown"),
    };
    format!("{}, {}", part("clocks", error.clock_us), part("sampling", error.sampling_us))
}

pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Deploy(args) => deploy::main(args),
        Command::Live(args) => live::main(args),
        Command::Lab(args) => lab::main(args),
        Command::Tree(args) => tree::main(args),
        Command::Qap(args) => instrument::hand_over("qap", args.arguments.iter().cloned()),
        Command::Run(args) => run::main(args),
        Command::Fetch(args) => fetch::main(args),
        Command::Report(args) => report::main(args),
    }
}
