//! House keeping: `cargo xtask tidy` fails when the tree breaks a rule of the house.
//!
//! | module | what it holds |
//! |---|---|
//! | [`text`] | rules about the text of one file: length, columns, words, paths |
//! | [`layers`] | rules about crates: the table of ARCHITECTURE.md against `cargo metadata` |
//! | [`tree`] | which files there are, and all rules over all of them |
//!
//! Rules are pure functions from text to [`Finding`]s, so that each is tested on a few lines.
#![forbid(unsafe_code)]

mod layers;
mod text;
mod tree;

use std::fmt;
use std::process::ExitCode;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Path from the root of the repository.
    file: String,
    /// Line from 1.
    line: usize,
    what: String,
    /// What to do about it.
    instead: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>, instead: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into(), instead: instead.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, instead } = self;
        write!(f, "{file}:{line}: {what}\n    {instead}")
    }
}

const USAGE: &str = "usage: cargo xtask tidy\n\n  tidy   check the rules of the house";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let root = match tree::root() {
        Ok(root) => root,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::from(2);
        }
    };
    match tree::check(&root) {
        Ok(report) if report.findings.is_empty() => {
            println!("tidy: {} files, {} crates, all in order", report.files, report.crates);
            ExitCode::SUCCESS
        }
        Ok(report) => {
            for finding in &report.findings {
                println!("{finding}");
            }
            println!("tidy: {} to put right", report.findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}
