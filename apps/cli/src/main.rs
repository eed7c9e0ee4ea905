//! The `evenfall` program.
//!
//! | module | command |
//! |---|---|
//! | [`demo`] | `evenfall demo`: a whole run on this machine, judged |
//! | [`mod@bench`] | `evenfall bench fanout\|shuffle`: what a copy costs, and an exchange |
//! | [`run`] | `evenfall run root\|proxy\|recv`: one process of a run over several hosts |
//! | [`plan`] | `evenfall plan tree`: which machine takes which place |
//! | [`plan`] | `evenfall plan run\|report`: placement experiments |
//! | [`report`] | `evenfall report`: the figures and the page of a run |
//! | [`sim`] | `evenfall sim multicast`: the same machines in the simulator |
//! | [`stat`] | `evenfall stat`: the state of running nodes |
//! | [`store`] | `evenfall store ls\|append\|read\|export\|verify`, `evenfall bench store` |
//! | [`feed`] | `evenfall feed play\|info\|make`: files, and a file as a live session |
//! | [`config`] | `evenfall config check\|default` |
#![forbid(unsafe_code)]

mod bench;
mod config;
mod demo;
mod feed;
mod plan;
mod print;
mod progress;
mod report;
mod run;
mod sim;
mod stat;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Fair, fast market data on cloud machines that nobody can wire or trust.
#[derive(Parser)]
#[command(name = "evenfall", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Multicast a feed fairly between processes on this machine, and judge the run.
    Demo(demo::Args),
    /// Run one process of a run that a settings file describes.
    Run(run::Args),
    /// Print the figures of a finished run and write its page.
    Report(report::Args),
    /// Show the state of running nodes, or change the mode of a running root.
    Stat(stat::Args),
    /// Choose machines by their measured delays.
    Plan(plan::Args),
    /// Run the same machines in the simulator.
    Sim(sim::Args),
    /// Measure what things cost on this machine: copies, an exchange, the store.
    Bench(bench::Args),
    /// Record feeds, read them back, export and verify them.
    Store(store::Args),
    /// Look into a feed file, make one, or play one as a live MoldUDP64 session.
    Feed(feed::Args),
    /// Check a settings file, or print one with every default.
    Config(config::Args),
}

/// What a command ends with: success, or words for people.
type Outcome = Result<(), Box<dyn std::error::Error>>;

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The standard library's panic when `println!` finds nobody who reads.
fn is_unread_print(panic: &(dyn std::any::Any + Send)) -> bool {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    words.is_some_and(|words| words.starts_with("failed printing to stdout"))
}

fn command() -> Outcome {
    match Cli::parse().command {
        Command::Demo(args) => demo::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Stat(args) => stat::main(&args),
        Command::Plan(args) => plan::main(&args),
        Command::Sim(args) => sim::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Store(args) => store::main(&args),
        Command::Feed(args) => feed::main(&args),
        Command::Config(args) => config::main(&args),
    }
}

fn main() -> ExitCode {
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !is_unread_print(panic.payload()) {
            standard(panic);
        }
    }));
    // Whoever reads the output has seen enough, such as `| head`. Unwound, so that what runs beside
    // is taken down.
    match std::panic::catch_unwind(command) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("evenfall: {error}");
            ExitCode::FAILURE
        }
        Err(panic) if is_unread_print(&*panic) => ExitCode::SUCCESS,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
