//! `evenfall sim`, `evenfall bench` and `evenfall clock lab`, which hand over to the program
//! `evenfall-lab`. The instruments are a program of their own, so that a person who runs a feed
//! does not build a simulator.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;

/// The program that has the instruments.
const PROGRAM: &str = "evenfall-lab";
/// The variable that tells the instruments the path of this program. Some instruments start and
/// measure its processes.
const OWN: &str = "EVENFALL";

/// Arguments, which are handed over unchanged.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Arguments for evenfall-lab; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

/// Looks for the program beside this program, then on the PATH.
fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}

/// Replaces this process by the other program.
///
/// # Errors
/// When the program is missing. The error says how to get it.
pub fn hand_over(noun: &str, arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    let mut command = Command::new(program());
    command.arg(noun).args(arguments);
    if let Ok(own) = std::env::current_exe() {
        command.env(OWN, own);
    }
    let error = command.exec();
    Err(format!(
        "this command needs the program {PROGRAM}, which cannot be started ({error}); get the \
         program with `cargo install --path lab`, or build it beside this program with `cargo \
         build --release --package evenfall-lab`"
    )
    .into())
}

/// `evenfall sim` or `evenfall bench`.
pub fn main(noun: &str, args: Args) -> Outcome {
    hand_over(noun, args.arguments)
}
