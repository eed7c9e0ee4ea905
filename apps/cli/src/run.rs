//! `evenfall run`: one process of a run over several hosts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use evenfall_host::{interrupt, process};
use evenfall_multicast_recorder::role as recorder;
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::roles::receiver::NoSink;
use evenfall_multicast_service::roles::{author, proxy, receiver, root};
use evenfall_multicast_service::settings::{Node, RoleName};
use evenfall_runtime::settings;
use evenfall_store_server::Server;

use crate::Outcome;
use crate::settings::{CONFIG, Union};

/// Nodes that an error lists. Six fit into two lines.
const NODES_LISTED_MAX: usize = 6;

/// The role of this process.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// Reads the feed, sets the deadline of each message and builds the tree.
    Root,
    /// Votes with the root on every frame, and goes on with the feed when the root dies. A run has
    /// no standby, two or four.
    Standby,
    /// Reads the feed in place of the root, and publishes it to the root that leads. The author
    /// outlives the root, and goes on where it was when it is started again.
    Author,
    /// Forwards messages to its children.
    Proxy,
    /// Holds each message until its deadline and releases it then.
    #[value(alias = "recv")]
    Receiver,
    /// Receives like a receiver, keeps every message in a store, and answers nodes that missed
    /// messages.
    Recorder,
    /// Measures delays when `evenfall plan live` asks.
    Agent,
    /// Keeps ordered keys for `evenfall kv` and for ZooKeeper's clients. The settings file is read
    /// only with --name.
    #[value(alias = "order")]
    Keys,
    /// Keeps replicated files for `evenfall files` and for WebHDFS's clients: all servers on this
    /// machine. No settings file is read.
    Files,
    /// Keeps the names of replicated files, and the places of their copies.
    Nameserver,
    /// Keeps copies of replicated files.
    Dataserver,
    /// Chooses the copies from which clients read, by the flows that it knows.
    Flowserver,
}

/// Arguments of `evenfall run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The role of this process.
    role: RoleArg,
    /// The settings file, the same on every host; evenfall.toml when left out.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Name of the `[[node]]` of the settings that this process is. Not needed when only one node
    /// has the role.
    #[arg(long)]
    name: Option<String>,
    /// Where a receiver begins: start (of a recorder's messages), live, the number of a message, or
    /// a time such as 2026-11-21T14:30:00Z. Overrides `from` of the settings.
    #[arg(long, value_name = "WHERE")]
    from: Option<String>,
    /// Directory of the store that a recorder writes. Overrides `record` of the settings.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Answer readers of a recorder's store on this loopback address while it records, as `store
    /// serve` does: `evenfall store tail tcp://ADDRESS feed --follow`. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS", value_parser = evenfall_runtime::address::look_up)]
    serve: Option<SocketAddr>,
    /// Change a setting, such as --set multicast.mode=tree. The option may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// End at once when standard input ends. The program that started this process holds the other
    /// end.
    #[arg(long, hide = true)]
    lifeline: bool,
    /// Print the summary as JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Only with keys and files")]
    local: crate::local::LocalArgs,
    #[command(flatten, next_help_heading = "Only with files")]
    files: crate::files::ServersArgs,
    #[command(flatten, next_help_heading = "Only with keys")]
    keys: crate::keys::RunArgs,
}

/// Nodes by name and role, as many as fit into a line.
fn listed<'a>(nodes: impl Iterator<Item = &'a Node>) -> String {
    let all: Vec<String> = nodes.map(|node| format!("{} ({})", node.name, node.role)).collect();
    match all.len() {
        0 => "none".into(),
        1..=NODES_LISTED_MAX => all.join(", "),
        _ => format!("{}, ...", all[..NODES_LISTED_MAX].join(", ")),
    }
}

fn find(settings: &Settings, wanted: RoleName, name: Option<&str>) -> Result<Node, String> {
    if let Some(name) = name {
        let node = settings.node(name).map_err(|error| error.to_string())?;
        return if node.role == wanted {
            Ok(node.clone())
        } else {
            let all = listed(settings.nodes.iter().filter(|node| node.role == wanted));
            let role = node.role;
            Err(format!(
                "--name {name}: the settings give this node the role {role}, not {wanted}; \
                 nodes with that role: {all}"
            ))
        };
    }
    let mut all = settings.nodes.iter().filter(|node| node.role == wanted);
    match (all.next(), all.next()) {
        (Some(node), None) => Ok(node.clone()),
        (None, _) => Err(format!(
            "no [[node]] of the settings has role = \"{wanted}\"; there are: {}",
            listed(settings.nodes.iter())
        )),
        (Some(_), Some(_)) => {
            let all = settings.nodes.iter().filter(|node| node.role == wanted);
            Err(format!(
                "several nodes have the role {wanted}; choose with --name; there are: {}",
                listed(all)
            ))
        }
    }
}

fn find_agent<'a>(
    agents: &'a [settings::Node],
    name: Option<&str>,
) -> Result<&'a settings::Node, String> {
    let names = || {
        let all: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    match (name, agents) {
        (Some(name), _) => agents
            .iter()
            .find(|agent| agent.name == name)
            .ok_or_else(|| format!("no agent is called {name}; there are: {}", names())),
        (None, [agent]) => Ok(agent),
        (None, []) => Err("no [[node]] of the settings has role = \"agent\"".into()),
        (None, _) => {
            Err(format!("several nodes are agents; choose with --name; there are: {}", names()))
        }
    }
}

#[cfg(feature = "agents")]
fn run_agent(
    settings: &evenfall_placement_survey::Settings,
    node: &settings::Node,
) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    Ok(serde_json::to_value(evenfall_placement_survey::agent::run(settings, node)?)?)
}

#[cfg(not(feature = "agents"))]
fn run_agent(
    _: &evenfall_placement_survey::Settings,
    _: &settings::Node,
) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    Err(crate::missing::words("the role of an agent", "agents").into())
}

impl Args {
    fn config(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(CONFIG))
    }
}

/// Runs replicas of this machine, or with a name the replica of the settings file.
fn run_keys(args: &Args) -> Outcome {
    let Some(name) = &args.name else {
        if args.config.is_some() || !args.set.is_empty() {
            let why =
                "--config and --set: give --name too, the replica of the settings that this is";
            return Err(why.into());
        }
        return crate::keys::run(&args.local, &args.keys, None);
    };
    if args.local.local.is_some() || args.keys.racks != 1 {
        return Err("--local, --racks: the settings file says where the replicas are".into());
    }
    let document = settings::Document::load(args.config(), &args.set)?;
    crate::keys::run(&args.local, &args.keys, Some((&document, name)))
}

fn run_root(
    settings: &Settings,
    role: RoleName,
    name: Option<&str>,
) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let node = find(settings, role, name)?;
    Ok(serde_json::to_value(root::run(settings, &node)?)?)
}

fn run_recorder(
    args: &Args,
    settings: &Settings,
) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let mut node = find(settings, RoleName::Recorder, args.name.as_deref())?;
    node.record = args.record.clone().or(node.record);
    let dir = node.record.clone().ok_or_else(|| {
        let name = &node.name;
        format!("node {name}: no directory to record in: give record = \"DIR\" or --record DIR")
    })?;
    let store = Arc::new(crate::store::open(&dir)?);
    let served = args.serve.map(|listen| Server::start_for_readers(Arc::clone(&store), listen));
    let server = served.transpose()?;
    if let Some(server) = &server {
        eprintln!("serving tcp://{}", server.address());
    }
    let recorded = recorder::run(settings, &node, &store);
    drop(server);
    Arc::into_inner(store).ok_or("a connection holds the store")?.close()?;
    Ok(serde_json::to_value(recorded?)?)
}

pub fn main(args: &Args) -> Outcome {
    if args.serve.is_some() && !matches!(args.role, RoleArg::Recorder) {
        return Err("--serve: only a recorder has a store to serve".into());
    }
    if args.lifeline {
        process::end_with_stdin()?;
    }
    interrupt::install()?;
    let name = args.name.as_deref();
    let load = || Union::load(args.config(), &args.set);
    let summary = match args.role {
        RoleArg::Keys => return run_keys(args),
        RoleArg::Files => return crate::files::run(&args.local, &args.files),
        RoleArg::Nameserver => return crate::files::nameserver(&load()?.files, name),
        RoleArg::Dataserver => return crate::files::dataserver(&load()?.files, name),
        RoleArg::Flowserver => return crate::files::flowserver(&load()?.files, name),
        RoleArg::Root => run_root(&load()?.multicast, RoleName::Root, name)?,
        RoleArg::Standby => run_root(&load()?.multicast, RoleName::Standby, name)?,
        RoleArg::Author => {
            let settings = load()?.multicast;
            let node = find(&settings, RoleName::Author, name)?;
            serde_json::to_value(author::run(&settings, &node)?)?
        }
        RoleArg::Proxy => {
            let settings = load()?.multicast;
            let node = find(&settings, RoleName::Proxy, name)?;
            serde_json::to_value(proxy::run(&settings, &node)?)?
        }
        RoleArg::Receiver => {
            let settings = load()?.multicast;
            let mut node = find(&settings, RoleName::Receiver, name)?;
            node.from = args.from.clone().or(node.from);
            serde_json::to_value(receiver::run(&settings, &node, &mut NoSink)?)?
        }
        RoleArg::Recorder => run_recorder(args, &load()?.multicast)?,
        RoleArg::Agent => {
            let survey = load()?.survey;
            run_agent(&survey, find_agent(&survey.agents, name)?)?
        }
    };
    if args.json {
        println!("{summary}");
    } else {
        println!("{}", summary["ended"].as_str().unwrap_or("ended"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_one_word_and_its_old_word_is_understood() {
        for word in ["receiver", "recv"] {
            let role = RoleArg::from_str(word, false).expect("a role");
            assert_eq!(role.to_possible_value().expect("a word").get_name(), "receiver");
        }
    }
}
