//! `evenfall completions`: a script that completes the words of the command line in a shell.

use std::io::Write as _;

use clap::CommandFactory as _;
use clap_complete::Shell;
use evenfall_runtime::program::Stdout;

use crate::{Cli, Outcome};

/// Arguments of `evenfall completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell that reads the script.
    shell: Shell,
}

/// Prints the script.
pub fn main(args: &Args) -> Outcome {
    Ok(Stdout.write_all(&script(args.shell))?)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "evenfall", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_is_told_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).expect("UTF-8");
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
