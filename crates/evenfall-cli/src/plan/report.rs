//! `evenfall plan report`: draws an experiment that was carried out.

use std::path::PathBuf;

use evenfall_node::experiment::Directory;

use crate::Outcome;

/// Arguments of `evenfall plan report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory of the experiment.
    dir: PathBuf,
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    let directory = Directory::open(&args.dir)?;
    println!("{} runs", directory.read()?.len());
    Ok(())
}
