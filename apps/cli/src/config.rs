//! `evenfall config`: checks a settings file, and prints the defaults.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use evenfall_runtime::service;
use evenfall_runtime::settings::{RunSettings, SettingsDocument};

use crate::Outcome;
use crate::services::{self, CONFIG, SERVICES};
use crate::settings::default_file;

/// Arguments of `evenfall config`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Check a settings file, and name the first mistake with its key, its line and the allowed
    /// values. A run can begin with a file that passes.
    Check {
        /// The settings file; evenfall.toml when left out.
        file: Option<PathBuf>,
        /// The settings file, under the option that other commands use.
        #[arg(long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
        /// Change a setting before the check. The option may be given several times.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Print the resulting settings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a settings file with every default, and an example of its nodes.
    Default,
}

pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Default => say_part!("{}", default_file()),
        Command::Check { file, config, set, json } => {
            let file = file.as_deref().or(config.as_deref());
            let file = file.unwrap_or(Path::new(CONFIG));
            let document = services::load_runnable(file, set)?;
            if *json {
                let mut all = services::values(&document)?;
                let nodes: Vec<toml::Table> = document.list("node")?;
                all.insert("node".into(), toml::Value::try_from(nodes)?);
                say!("{}", serde_json::to_string(&all)?);
            } else {
                describe(&document)?;
            }
        }
    }
    Ok(())
}

/// What the file holds: how many nodes of each role, and what each service says of them.
fn describe(document: &SettingsDocument) -> Outcome {
    say!("ok: {}", service::counts(SERVICES, document)?.join(", "));
    for service in SERVICES {
        service.describe(document)?.iter().for_each(|line| say!("{line}"));
    }
    let run: RunSettings = document.part("run")?;
    if run.key_file.is_none() {
        say!("note: no run.key_file, so nothing leaves loopback");
    }
    Ok(())
}
