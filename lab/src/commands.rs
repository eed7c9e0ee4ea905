//! The program `evenfall-lab`, to which `evenfall sim`, `bench`, `clock lab` and `plan qap` hand
//! over.

use clap::{Parser, Subcommand};
use evenfall_runtime::program::Outcome;

mod bench;
mod clock;
mod experiment;
mod hostile;
mod qap;
mod rounds;
mod sim;

/// Instruments of evenfall: the simulator, its studies, and benchmarks.
#[derive(Parser)]
#[command(name = "evenfall-lab", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run feeds, clocks, shuffles, reads of files and orders of requests in the simulator.
    Sim(sim::Args),
    /// Measure costs on this machine: copies of messages, shuffles, store, files, consensus.
    Bench(bench::Args),
    /// Measure how well nodes on this machine find their time from planted wrong clocks.
    Clock(clock::Args),
    /// Attack a receiver of a feed as a subscriber can that holds the shared key.
    Hostile(hostile::Args),
    /// Solve a quadratic assignment problem from a QAPLIB file.
    Qap(qap::Args),
    /// Carry out a placement experiment, also on a simulated pool.
    Experiment(evenfall_placement_survey::experiment::command::Args),
}

/// Runs the command.
///
/// # Errors
/// A message for the user.
pub fn command(cli: Cli) -> Outcome {
    match cli.command {
        Command::Sim(args) => sim::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Clock(args) => clock::main(&args),
        Command::Hostile(args) => hostile::main(&args),
        Command::Qap(args) => qap::main(&args),
        Command::Experiment(args) => experiment::main(&args),
    }
}
