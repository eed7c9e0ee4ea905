//! `evenfall key`: makes the shared key of a run.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::Outcome;

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// The mode of a key: only its owner reads it.
const OWNER_READS: u32 = 0o600;
/// The mode of a file without secrets.
pub const EVERYBODY_READS: u32 = 0o644;

/// Arguments of `evenfall key`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Write a new random key, which only its owner can read. An existing file stays.
    New {
        /// The file of the key, which `run.key_file` names.
        #[arg(default_value = "evenfall.key")]
        file: PathBuf,
    },
}

/// Writes a file that is not there yet.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let named = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("{}: is there already, and stays; name another file", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(named)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| {
        // Half a file would be taken for a whole one.
        let _ = std::fs::remove_file(path);
        named(error)
    })
}

/// Writes a random key in hexadecimal digits.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn make_key_file(path: &Path) -> Result<(), String> {
    let mut key = [0; KEY_BYTES];
    evenfall_host::random::fill(&mut key).map_err(|error| format!("a random key: {error}"))?;
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    write_new(path, format!("{digits}\n").as_bytes(), OWNER_READS)
}

pub fn main(args: &Args) -> Outcome {
    let Command::New { file } = &args.command;
    make_key_file(file)?;
    println!("{} is written; copy it to every host of the run, with mode 600", file.display());
    Ok(())
}
