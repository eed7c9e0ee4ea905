//! `evenfall-query`: SQL over recordings and tables, in one shot or served to clients.
//!
//! The program is one of its own, so that a process with deadlines has no query engine in it, and a
//! person who runs a feed builds none. `evenfall query` hands over to it.

// `println!` would end the program with a panic when nobody reads; `say!` and `aside!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate evenfall_runtime;

mod ask;
mod desk;
mod interrupt;
mod open;
mod output;
mod prompt;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use evenfall_query_sql::{EngineLimits, QUERY_STACK_BYTES};

use crate::interrupt::{INTERRUPTED_STATUS, Interrupted};
use crate::output::is_reader_gone;

/// What a command ends with.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Answers SQL over recordings and tables, up to the record that was appended last.
///
/// A recording is a schema of its name with the tables messages, trades, quotes and raw; users'
/// files are tables of public. Only statements that read are taken. `evenfall query serve --help`
/// is about clients of PostgreSQL.
#[derive(Parser)]
#[command(name = "evenfall query", version)]
#[command(after_help = "Examples:
  evenfall query recorded \"SELECT symbol, count(*) FROM messages GROUP BY symbol\"
  evenfall query tcp://127.0.0.1:7410 \"SELECT max(utc) FROM messages\" --format json
  evenfall query recorded
  evenfall query recorded \"SELECT * FROM nbbo(interval '5 s')\" --workers workers.txt
  evenfall query serve tcp://127.0.0.1:7410 --pg 127.0.0.1:5433")]
struct AskCli {
    #[command(flatten)]
    args: ask::AskArgs,
}

/// Answers clients of PostgreSQL and of Arrow Flight SQL until Ctrl-C.
#[derive(Parser)]
#[command(name = "evenfall query serve", version)]
#[command(after_help = "Example:
  evenfall query serve recorded --pg 127.0.0.1:5433 --flight 127.0.0.1:5434
  psql -h 127.0.0.1 -p 5433 evenfall")]
struct ServeCli {
    #[command(flatten)]
    args: serve::ServeArgs,
}

/// Limit of `--threads`. Few machines have more cores, and a program with a million threads did not
/// start within a minute.
const THREADS_MAX: i64 = 1_024;

/// Where the tables are, and how much their queries may take.
#[derive(clap::Args, Clone, Debug)]
struct EngineArgs {
    /// The store: its directory, tcp://127.0.0.1:7410 of a server or of a recorder that serves, or
    /// the place of its objects.
    #[arg(value_name = "PLACE")]
    place: String,
    /// The recording whose tables need no schema in front. By default the only one.
    #[arg(long, value_name = "NAME")]
    recording: Option<String>,
    /// A further table from a file: NAME=FILE.csv, NAME=FILE.parquet or NAME=FILE.arrow.
    #[arg(long = "table", value_name = "NAME=FILE")]
    tables: Vec<NamedFile>,
    /// Memory of all queries together, such as 512MiB.
    #[arg(long, default_value = "1GiB", value_name = "BYTES", value_parser = bytes)]
    memory: u64,
    /// Directory for sorts, joins and aggregates that do not fit into the memory.
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// Bytes of all such files together.
    #[arg(long, default_value = "10GiB", value_name = "BYTES", value_parser = bytes)]
    spill_bytes: u64,
    /// Bytes of a statement.
    #[arg(long, default_value = "1MiB", value_name = "BYTES", value_parser = bytes)]
    statement_bytes: u64,
    /// Parts of a query that run at once. By default as many as there are cores.
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX)
    )]
    threads: Option<u16>,
    #[command(flatten)]
    desk: desk::DeskArgs,
}

impl EngineArgs {
    fn limits(&self) -> EngineLimits {
        let default = EngineLimits::default();
        EngineLimits {
            memory_bytes: usize::try_from(self.memory).unwrap_or(usize::MAX),
            spill_dir: self.spill.clone(),
            spill_bytes: self.spill_bytes,
            threads: self.threads.map_or(default.threads, usize::from),
            statement_bytes: usize::try_from(self.statement_bytes).unwrap_or(usize::MAX),
        }
    }
}

/// A table that a user adds.
#[derive(Clone, Debug)]
struct NamedFile {
    name: String,
    file: PathBuf,
}

impl FromStr for NamedFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, file)) if !name.is_empty() && !file.is_empty() => {
                Ok(Self { name: name.to_owned(), file: file.into() })
            }
            _ => Err(format!("{text}: a table is added by NAME=FILE, as in fills=fills.csv")),
        }
    }
}

/// Bytes with a unit, such as 512MiB.
fn bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        _ => return Err(format!("{text}: write a whole number and B, KiB, MiB or GiB")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text}: write it as 512MiB"))?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number && *bytes > 0)
        .ok_or_else(|| format!("{text}: from 1 byte to 2^63 bytes are taken"))
}

fn main() -> ExitCode {
    // A place may have any name but this one: the first word alone tells both forms apart, and a
    // directory of that name is written ./serve.
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let work = move || {
        let outcome = if arguments.get(1).is_some_and(|word| word == "serve") {
            arguments.remove(1);
            serve::serve(ServeCli::parse_from(arguments).args)
        } else {
            ask::ask(AskCli::parse_from(arguments).args)
        };
        outcome.map_err(|error| Ending::of(&*error))
    };
    // The first thread of a process has the stack that its shell gives; statements need more.
    let thread = std::thread::Builder::new().stack_size(QUERY_STACK_BYTES).spawn(work);
    let outcome = match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        // The panic has printed its words.
        Ok(Err(_)) => return ExitCode::FAILURE,
        Err(error) => Err(Ending::of(&error)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(ending) => {
            if let Some(words) = ending.words {
                aside!("evenfall query: {words}");
            }
            ending.status
        }
    }
}

/// How a command that failed ends the program.
struct Ending {
    /// The words of the error; `None` for an end that is no error.
    words: Option<String>,
    status: ExitCode,
}

impl Ending {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        if is_reader_gone(error) {
            return Self { words: None, status: ExitCode::SUCCESS };
        }
        let status = match error.is::<Interrupted>() {
            true => INTERRUPTED_STATUS.into(),
            false => ExitCode::FAILURE,
        };
        Self { words: Some(error.to_string()), status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_a_range() {
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("7"), Ok(7));
        assert!(bytes("0").is_err());
        assert!(bytes("99999999999GiB").is_err());
        assert!(bytes("1.5GiB").is_err());
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        AskCli::command().debug_assert();
        ServeCli::command().debug_assert();
    }
}
