//! The `evenfall` program.
//!
//! | module | command |
//! |---|---|
//! | [`demo`] | `evenfall demo`: a whole run on this machine, judged |
//! | [`run`] | `evenfall run root\|proxy\|receiver\|recorder\|agent\|keys\|files`: one process of a
//! run over several hosts |
//! | [`plan`] | `evenfall plan tree`: chooses the machine for each place in the tree |
//! | [`plan`] | `evenfall plan run\|report`: placement experiments |
//! | [`report`] | `evenfall report`: the figures and the page of a run |
//! | [`clock`] | `evenfall clock watch\|report`: how well the nodes of a run know their time |
//! | [`instrument`] | `evenfall sim`, `bench`, `query`: handed over to `evenfall-lab` and `evenfall-query` |
//! | `missing` | the answer to a command that is not in this build |
//! | [`stat`] | `evenfall stat`: the state of running nodes |
//! | [`watch`], [`top`] | `evenfall watch`, `evenfall top`: a run while it goes on |
//! | [`store`] | `evenfall store ls\|append\|read\|export\|verify` |
//! | [`bursts`] | `evenfall sort`, `evenfall burst`: a sort and queries over many ranks |
//! | [`keys`] | `evenfall run keys`, `evenfall kv`: ordered keys |
//! | [`files`] | `evenfall run files`, `evenfall files`: replicated files |
//! | [`feed`] | `evenfall feed play\|info\|make`: files, and a file as a live session |
//! | [`tap`] | `evenfall tap`: a feed as a participant takes it |
//! | [`config`] | `evenfall config check\|default` |
//! | [`init`], [`key`] | `evenfall init`, `evenfall key new`: a settings file, and a key |
//! | [`host`] | `evenfall host check`: what of this host delays a feed |
//! | [`generate`] | `evenfall generate prometheus\|alerts\|grafana\|systemd\|kubernetes` |
//! | [`completions`] | `evenfall completions bash\|zsh\|fish` |
//! | `man` | `evenfall man DIR`: manual pages, in a build with the feature |
#![forbid(unsafe_code)]
// `println!` would end the program with a panic when nobody reads; `say!` and `aside!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate evenfall_runtime;

mod bursts;
mod clock;
mod completions;
mod config;
mod demo;
mod examples;
mod feed;
mod files;
#[cfg(feature = "generate")]
mod generate;
#[cfg(not(feature = "generate"))]
#[path = "generate/lacking.rs"]
mod generate;
mod host;
mod init;
mod instrument;
mod key;
mod keys;
mod local;
#[cfg(feature = "man")]
mod man;
mod missing;
#[cfg(test)]
mod pages;
mod plan;
mod report;
mod run;
mod services;
mod settings;
mod stat;
mod store;
mod tap;
mod top;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use evenfall_runtime::program::{self, Outcome, Stopped};

/// Fair, fast market data on cloud machines whose network nobody can wire or trust.
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
    /// Write a settings file for a run, with a key where nodes are on several hosts.
    Init(init::Args),
    /// Make the shared key of a run, keys of its nodes, or a key by which a root signs.
    Key(key::Args),
    /// Run one process of a run that a settings file describes.
    Run(Box<run::Args>),
    /// Print the figures of a finished run and write its page.
    Report(report::Args),
    /// Show the state of running nodes, or change the mode of a running root.
    Stat(stat::Args),
    /// Serve the live page of a run: a verdict, figures over time, and every node.
    Watch(watch::Args),
    /// Show the same in a terminal: a verdict, rates, and the tree with its figures.
    Top(top::Args),
    /// Choose machines by their measured delays.
    Plan(plan::Args),
    /// Run feeds, clocks, shuffles, reads of files and orders of requests in the simulator.
    #[command(disable_help_flag = true)]
    Sim(instrument::Args),
    /// Show how well the nodes of a run know their time, or measure it with planted clocks.
    Clock(clock::Args),
    /// Measure costs on this machine: copies of messages, shuffles, store, files, consensus.
    #[command(disable_help_flag = true)]
    Bench(instrument::Args),
    /// Record feeds, read them back, export and verify them.
    Store(store::Args),
    /// Answer SQL over recordings and tables, once or for clients of PostgreSQL.
    #[command(disable_help_flag = true)]
    Query(instrument::Args),
    /// Sort records in the memory of many processes or hosts.
    Sort(bursts::SortArgs),
    /// Answer a query over generated rows of many processes or hosts.
    Burst(bursts::BurstArgs),
    /// Put, read, compare and watch ordered keys.
    Kv(keys::KvArgs),
    /// Put, read, append to, list, move and delete replicated files.
    Files(files::FilesArgs),
    /// Inspect a feed file, generate one, or play one as a live MoldUDP64 session.
    Feed(feed::Args),
    /// Take a feed as a participant behind a gateway or a venue does: MoldUDP64 or plain datagrams.
    Tap(tap::Args),
    /// Check a settings file, or print one with every default.
    Config(config::Args),
    /// Check this host: what of it delays a feed, and what mends it.
    Host(host::Args),
    /// Make files for Prometheus, Grafana, systemd and Kubernetes out of a settings file.
    Generate(generate::Args),
    /// Print a script that completes these commands in a shell.
    Completions(completions::Args),
    /// Write the manual pages of all commands.
    #[cfg(feature = "man")]
    Man(man::Args),
}

fn command(cli: Cli) -> Outcome {
    match cli.command {
        Command::Demo(args) => demo::main(&args),
        Command::Init(args) => init::main(&args),
        Command::Key(args) => key::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Stat(args) => stat::main(&args),
        Command::Watch(args) => watch::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Plan(args) => plan::main(&args),
        Command::Sim(args) => instrument::main("sim", args),
        Command::Clock(args) => clock::main(args),
        Command::Bench(args) => instrument::main("bench", args),
        Command::Store(args) => store::main(&args),
        Command::Query(args) => instrument::query(args),
        Command::Sort(args) => bursts::sort_records(&args),
        Command::Burst(args) => bursts::run_query(&args),
        Command::Kv(args) => keys::kv(&args),
        Command::Files(args) => files::files(&args),
        Command::Feed(args) => feed::main(&args),
        Command::Tap(args) => tap::main(&args),
        Command::Config(args) => config::main(&args),
        Command::Host(args) => host::main(&args),
        Command::Generate(args) => generate::main(&args),
        Command::Completions(args) => completions::main(&args),
        #[cfg(feature = "man")]
        Command::Man(args) => man::main(&args),
    }
}

fn main() -> ExitCode {
    program::main("evenfall", examples::add_examples, command)
}
