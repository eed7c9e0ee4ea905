//! `evenfall config`: checks a settings file, and prints the defaults.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use evenfall_multicast_machine::tree::Dimensions;
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::RoleName;
use evenfall_runtime::program::counted;

use crate::Outcome;
use crate::settings::{CONFIG, Union, default_file};

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
        Command::Default => print!("{}", default_file()),
        Command::Check { file, config, set, json } => {
            let file = file.as_deref().or(config.as_deref());
            let file = file.unwrap_or(Path::new(CONFIG));
            let settings = Union::load_runnable(file, set)?;
            if *json {
                println!("{}", serde_json::to_string(&settings.to_table())?);
            } else {
                describe(&settings);
            }
        }
    }
    Ok(())
}

fn describe(all: &Union) {
    let (settings, agents) = (&all.multicast, all.survey.agents.len());
    if agents == settings.nodes.len() {
        println!("ok: {}", counted(agents, "agent"));
        return note_key(settings);
    }
    let (proxies, receivers) =
        (settings.count(RoleName::Proxy), settings.count(RoleName::Receiver));
    let recorders = settings.count(RoleName::Recorder);
    let m = &settings.multicast;
    // A recorder takes a place beside the receivers.
    let tree = Dimensions::of(&m.shape, m.mode, receivers + recorders);
    let wanted = tree.proxies(&m.shape);
    let mut nodes = vec!["1 root".to_owned(), counted(proxies, "proxy")];
    nodes.push(counted(receivers, "receiver"));
    if recorders > 0 {
        nodes.push(counted(recorders, "recorder"));
    }
    println!("ok: {}", nodes.join(", "));
    println!(
        "mode {}: depth {}, fan-out {}, hedging {}, {}",
        m.mode,
        tree.depth,
        tree.fanout,
        m.shape.hedging,
        counted(settings.course.trees as usize, "tree")
    );
    let per_tree = proxies / settings.course.trees.max(1) as usize;
    if !m.mode.direct() && per_tree < wanted {
        let wanted = counted(wanted, "proxy");
        println!("note: a full tree needs {wanted}; with {per_tree} its nodes have more children");
    }
    note_key(settings);
}

fn note_key(settings: &Settings) {
    if settings.run.key_file.is_none() {
        println!("note: no run.key_file, so nothing leaves loopback");
    }
}
