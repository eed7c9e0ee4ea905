//! House keeping: `cargo xtask tidy` fails when the tree breaks a rule of the house.
//!
//! | module | what it holds |
//! |---|---|
//! | [`text`] | rules about the text of one file: length, columns, words, paths |
//! | [`signatures`] | rules about public functions: no `Result<_, String>` |
//! | [`layers`] | rules about crates: the table of ARCHITECTURE.md against `cargo metadata` |
//! | [`libraries`] | rules about what `cargo test` builds of a library |
//! | [`tree`] | finds all files and applies all rules to them |
//! | [`features`](mod@features) | builds of single features |
//! | [`names`] | rules about names and shapes of the whole tree, with lists that may only shrink |
//! | [`lean`](mod@lean) | the size of the lean program |
//! | [`licences`](mod@licences) | licences and sources of foreign crates, without cargo-deny |
//!
//! Rules are pure functions from text to [`Finding`]s, so that each is tested on a few lines.
#![forbid(unsafe_code)]

mod features;
mod layers;
mod lean;
mod libraries;
mod licences;
mod names;
mod signatures;
mod text;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Path from the root of the repository.
    file: String,
    /// Line from 1.
    line: usize,
    what: String,
    /// The remedy.
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

const USAGE: &str = "usage: cargo xtask tidy|lists|features|lean|licences\n\n  \
                     tidy       check the rules of the house\n  \
                     lists      remove from xtask/lists what keeps the rules now\n  \
                     lean       build the lean program, and compare it with its limits\n  \
                     features   build each feature of each crate alone\n  \
                     licences   check licences and sources of foreign crates against deny.toml";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy,
        ["lists"] => lists,
        ["features"] => features::check,
        ["lean"] => lean::check,
        ["licences"] => licences,
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let name = &arguments[0];
    match tree::root().and_then(|root| check(&root)) {
        Ok((findings, words)) if findings.is_empty() => {
            println!("{name}: {words}, all in order");
            ExitCode::SUCCESS
        }
        Ok((findings, _)) => {
            for finding in &findings {
                println!("{finding}");
            }
            println!("{name}: {} to put right", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(2)
        }
    }
}

/// The findings of a check, and a text about the checked files.
type Checked = Result<(Vec<Finding>, String), String>;

fn tidy(root: &Path) -> Checked {
    let report = tree::check(root)?;
    Ok((report.findings, format!("{} files, {} crates", report.files, report.crates)))
}

fn lists(root: &Path) -> Checked {
    let [lost, left] = tree::prune_lists(root)?;
    Ok((Vec::new(), format!("{lost} entries removed, {left} left")))
}

fn licences(root: &Path) -> Checked {
    let allowed = licences::AllowedLicences::read(&tree::read(&root.join(licences::LIST_FILE))?)?;
    let listed = tree::run(root, &tree::cargo(), &licences::TREE)?;
    let (findings, count) = licences::check(&allowed, &listed, &root.display().to_string());
    Ok((findings, format!("{count} packages")))
}
