//! `evenfall config`: is a settings file right, and what are the defaults?

use std::path::PathBuf;

use clap::Subcommand;
use evenfall_multicast::tree::Dimensions;
use evenfall_node::Settings;
use evenfall_node::settings::RoleName;

use crate::Outcome;

/// Arguments of `evenfall config`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Check a settings file: the first mistake is named with its key, line and what is allowed.
    Check {
        /// The file.
        #[arg(default_value = "evenfall.toml")]
        file: PathBuf,
        /// Change a setting first; may be repeated.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Print the settings that result, as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a settings file with every default.
    Default,
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Default => print!("{}", Settings::default().to_toml()),
        Command::Check { file, set, json } => {
            let settings = Settings::load(file, set)?;
            settings.key()?;
            if *json {
                println!("{}", serde_json::to_string(&settings)?);
            } else {
                describe(&settings);
            }
        }
    }
    Ok(())
}

fn describe(settings: &Settings) {
    let count = |role| settings.nodes.iter().filter(|n| n.role == role).count();
    let agents = count(RoleName::Agent);
    if agents == settings.nodes.len() && agents > 0 {
        println!("ok: {agents} agents");
        return note_key(settings);
    }
    let (proxies, receivers) = (count(RoleName::Proxy), count(RoleName::Receiver));
    let m = &settings.multicast;
    let tree = Dimensions::of(&m.shape, m.mode, receivers);
    let wanted = tree.proxies(&m.shape);
    println!("ok: 1 root, {proxies} proxies, {receivers} receivers");
    println!(
        "mode {:?}: depth {}, fan-out {}, hedging {}, {} trees",
        m.mode, tree.depth, tree.fanout, m.shape.hedging, settings.run.trees
    );
    let per_tree = proxies / settings.run.trees.max(1) as usize;
    if !m.mode.direct() && per_tree < wanted {
        println!(
            "note: a full tree needs {wanted} proxies; with {per_tree} its layers are thinner"
        );
    }
    note_key(settings);
}

fn note_key(settings: &Settings) {
    if settings.run.key_file.is_none() {
        println!("note: no run.key_file, so nothing leaves loopback");
    }
}
