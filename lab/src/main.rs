//! The program `evenfall-lab`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use evenfall_lab::commands;
use evenfall_runtime::program;

fn main() -> ExitCode {
    program::main("evenfall-lab", std::convert::identity, commands::command)
}
