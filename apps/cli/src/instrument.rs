//! `evenfall sim`, `bench`, `clock lab` and `plan qap`, which hand over to the program
//! `evenfall-lab`, and `evenfall query`, which hands over to `evenfall-query`. Both are programs of
//! their own, so that a person who runs a feed builds no simulator and no query engine.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;

/// A program that this program hands over to.
struct OtherProgram {
    name: &'static str,
    /// Where its package lies, for `cargo install`.
    path: &'static str,
}

/// The program that has the instruments.
const LAB: OtherProgram = OtherProgram { name: "evenfall-lab", path: "lab" };
/// The program that answers SQL.
const QUERY: OtherProgram = OtherProgram { name: "evenfall-query", path: "apps/query" };
/// The variable that tells the instruments the path of this program. Some instruments start and
/// measure its processes.
const OWN: &str = "EVENFALL";

/// Arguments, which are handed over unchanged.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Arguments for the other program; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

impl OtherProgram {
    /// Looks for the program beside this program, then on the PATH.
    fn file(&self) -> PathBuf {
        let own = std::env::current_exe().ok();
        let beside = own.and_then(|own| Some(own.parent()?.join(self.name)));
        beside.filter(|path| path.is_file()).unwrap_or_else(|| self.name.into())
    }

    /// Replaces this process by the other program.
    fn run(&self, arguments: impl IntoIterator<Item = OsString>) -> Outcome {
        let mut command = Command::new(self.file());
        command.args(arguments);
        if let Ok(own) = std::env::current_exe() {
            command.env(OWN, own);
        }
        let error = command.exec();
        let Self { name, path } = self;
        Err(format!(
            "this command needs the program {name}, which cannot be started ({error}); get the \
             program with `cargo install --path {path}`, or build it beside this program with \
             `cargo build --release --package {name}`"
        )
        .into())
    }
}

/// Replaces this process by the program of the instruments.
///
/// # Errors
/// When the program is missing. The error says how to get it.
pub fn hand_over(noun: &str, arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    LAB.run(std::iter::once(OsString::from(noun)).chain(arguments))
}

/// `evenfall sim` or `evenfall bench`.
pub fn main(noun: &str, args: Args) -> Outcome {
    hand_over(noun, args.arguments)
}

/// `evenfall query`.
pub fn query(args: Args) -> Outcome {
    QUERY.run(args.arguments)
}
