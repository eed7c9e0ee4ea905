//! `evenfall man`: the manual pages of all commands, as packages install them.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use crate::examples::add_examples;
use crate::{Cli, Outcome};

/// Arguments of `evenfall man`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory for the pages. A missing directory is created.
    dir: PathBuf,
}

/// Writes the pages.
pub fn main(args: &Args) -> Outcome {
    let count = write(&args.dir)?;
    say!("{count} pages in {}", args.dir.display());
    Ok(())
}

fn write(dir: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let said = |error: std::io::Error| format!("{}: {error}", dir.display());
    std::fs::create_dir_all(dir).map_err(said)?;
    clap_mangen::generate_to(add_examples(Cli::command()), dir).map_err(said)?;
    Ok(std::fs::read_dir(dir).map_err(said)?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_says_what_it_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let count = write(directory.path()).expect("pages");
        let commands: Vec<_> = Cli::command().get_subcommands().cloned().collect();
        assert!(count > commands.len(), "{count} pages");
        for command in commands {
            let path = directory.path().join(format!("evenfall-{}.1", command.get_name()));
            let page = std::fs::read_to_string(&path).expect("a page");
            let about = command.get_about().expect("a line").to_string();
            let first = about.split(['-', '\'', '.']).next().unwrap_or_default().to_owned();
            assert!(page.contains(&first), "{}: {first}", path.display());
        }
    }
}
