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

// The macros of the standard library panic when nobody takes what they print. These have the same
// names, so that no line of a command can fail to be safe: what is printed beside the results is
// given up, and a result that is not taken ends the command.
macro_rules! eprint {
    ($($words:tt)*) => { $crate::print::aside(format_args!($($words)*)) };
}
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::print::aside(format_args!("{}\n", format_args!($($words)*))) };
}
macro_rules! print {
    ($($words:tt)*) => { $crate::print::out(format_args!($($words)*)) };
}
macro_rules! println {
    ($($words:tt)*) => { $crate::print::out(format_args!("{}\n", format_args!($($words)*))) };
}

mod bench;
mod config;
mod demo;
mod feed;
mod plan;
mod print;
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

/// A signal asked the program to stop before it was done. What there was has been printed.
#[derive(Debug)]
struct Stopped(u8);

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stopped by signal {}", self.0)
    }
}

impl std::error::Error for Stopped {}

fn command(command: Command) -> Outcome {
    match command {
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

/// Parses the arguments and runs the command; all that it printed is out then.
fn run() -> ExitCode {
    let arguments = match Cli::try_parse() {
        Ok(arguments) => arguments,
        // Help goes to standard output, mistakes go to standard error.
        Err(words) if words.use_stderr() => {
            words.print().ok();
            return ExitCode::from(words.exit_code() as u8);
        }
        Err(help) => {
            help.print().unwrap_or_else(|error| print::unwritten(error));
            print::flush();
            return ExitCode::SUCCESS;
        }
    };
    let notes = match evenfall_node::notes::start() {
        Ok(notes) => notes,
        Err(error) => return failure(&error),
    };
    let outcome = command(arguments.command);
    // The last words are those of the command.
    drop(notes);
    match outcome {
        Ok(()) => {
            print::flush();
            ExitCode::SUCCESS
        }
        Err(error) => match error.downcast_ref() {
            // As shells count it.
            Some(Stopped(signal)) => ExitCode::from(128 + signal),
            None => failure(&*error),
        },
    }
}

fn failure(error: &(impl std::fmt::Display + ?Sized)) -> ExitCode {
    eprintln!("evenfall: {error}");
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<print::Unwritten>() {
            standard(panic);
        }
    }));
    // Unwound, so that what runs beside is taken down.
    std::panic::catch_unwind(run).unwrap_or_else(|panic| match panic.downcast_ref() {
        // Whoever reads the output has seen enough, such as `| head`.
        Some(print::Unwritten(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Some(print::Unwritten(error)) => failure(&format_args!("standard output: {error}")),
        None => std::panic::resume_unwind(panic),
    })
}
