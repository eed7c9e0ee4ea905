//! `evenfall plan`: which machine takes which place.

mod qap;
mod tree;

use clap::Subcommand;

use crate::Outcome;

/// Arguments of `evenfall plan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Choose a multicast tree out of a pool whose delays are in a file.
    Tree(tree::Args),
    /// Solve a quadratic assignment out of a QAPLIB file.
    Qap(qap::Args),
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Tree(args) => tree::main(args),
        Command::Qap(args) => qap::main(args),
    }
}
