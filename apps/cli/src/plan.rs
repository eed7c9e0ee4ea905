//! `evenfall plan`: which machine takes which place.

mod apply;
mod deploy;
mod lab;
mod live;
mod qap;
mod report;
mod run;
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
    /// Write what brings up the pool of an experiment: settings, Terraform values, manifests.
    Deploy(deploy::Args),
    /// Measure running agents, and choose a tree out of them.
    Live(live::Args),
    /// Measure agents in namespaces of this machine, some of them slow, and choose a tree; needs
    /// root.
    Lab(lab::Args),
    /// Choose a multicast tree out of a pool whose delays are in a file.
    Tree(tree::Args),
    /// Solve a quadratic assignment out of a QAPLIB file.
    Qap(qap::Args),
    /// Carry out an experiment file: live, in the simulator, or on recorded delays.
    Run(run::Args),
    /// Draw an experiment that was carried out: one page, and pictures.
    Report(report::Args),
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Deploy(args) => deploy::main(args),
        Command::Live(args) => live::main(args),
        Command::Lab(args) => lab::main(args),
        Command::Tree(args) => tree::main(args),
        Command::Qap(args) => qap::main(args),
        Command::Run(args) => run::main(args),
        Command::Report(args) => report::main(args),
    }
}
