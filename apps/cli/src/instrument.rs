//! `evenfall sim` and `evenfall bench`: instruments are a program of their own, `evenfall-lab`, so
//! that a person who runs a feed builds no simulator. The commands stay the same.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;

/// The program that has the instruments.
const PROGRAM: &str = "evenfall-lab";

/// Arguments, as they are handed over.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What evenfall-lab takes; --help lists it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Beside this program, or else on the PATH.
fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}

/// Becomes the other program.
///
/// # Errors
/// When there is no such program, and how to get it.
pub fn hand_over(noun: &str, arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    let error = Command::new(program()).arg(noun).args(arguments).exec();
    Err(format!(
        "this is an instrument and needs the program {PROGRAM}, which cannot be started ({error}); \
         get it with `cargo install --path lab`, or build it beside this program with `cargo build \
         --release --package evenfall-lab`"
    )
    .into())
}

/// `evenfall sim` or `evenfall bench`.
pub fn main(noun: &str, args: Args) -> Outcome {
    hand_over(noun, args.arguments)
}
