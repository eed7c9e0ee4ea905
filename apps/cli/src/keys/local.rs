//! Replicas of ordered keys as processes of this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evenfall_consensus_replica::{Racks, SecondRound};
use evenfall_core::SharedKey;
use evenfall_keys_zookeeper::{Options, Settings};
use evenfall_runtime::notes;
use evenfall_runtime::settings::{Document, Node, Run, check_closed, check_nodes};

use super::{RunArgs, membership};
use crate::Outcome;
use crate::local::{LocalArgs, at, supervise};
use crate::settings::{KEYS, is_keys};

/// Most replicas on this machine. The simulator shows what more replicas do.
const LOCAL_MAX: usize = 9;

/// The number of this replica, and the addresses and racks of all replicas.
struct Place {
    node: usize,
    replicas: Vec<SocketAddr>,
    racks: Vec<u8>,
    key: Option<SharedKey>,
}

/// The keys of `[[node]]` that say where a replica is.
#[derive(serde::Deserialize)]
struct Placed {
    name: String,
    role: String,
    rack: Option<String>,
}

/// The rack of each replica. Racks are numbered in the order in which the file names them.
fn racks(mut placed: Vec<Placed>) -> Result<Vec<u8>, String> {
    placed.retain(|node| is_keys(&node.role));
    if placed.iter().all(|node| node.rack.is_none()) {
        return Ok(Vec::new());
    }
    let (mut names, mut racks) = (Vec::new(), Vec::new());
    for Placed { name, rack, .. } in placed {
        let rack =
            rack.ok_or_else(|| format!("node {name} has no rack, and other replicas have one"))?;
        let at = names.iter().position(|name| *name == rack).unwrap_or(names.len());
        if at == names.len() {
            names.push(rack);
        }
        racks.push(at as u8);
        if names.len() > Racks::MAX {
            return Err(format!("the file names more than {} racks", Racks::MAX));
        }
    }
    Ok(racks)
}

/// The place among the nodes of a settings file.
fn in_settings(document: &Document, name: &str) -> Result<Place, Box<dyn std::error::Error>> {
    let mut nodes: Vec<Node> = document.list("node")?;
    check_nodes(&nodes).map_err(|mistake| document.refuse(mistake))?;
    let mut run: Run = document.part("run")?;
    check_closed(&nodes, run.is_keyed()).map_err(|mistake| document.refuse(mistake))?;
    run.rebase(document.base());
    nodes.retain(|node| is_keys(&node.role));
    let node = nodes.iter().position(|node| node.name == name).ok_or_else(|| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        format!(
            "no [[node]] with role = \"{KEYS}\" is called {name}; there are: {}",
            names.join(", ")
        )
    })?;
    let replicas = nodes.iter().map(|node| node.address).collect();
    Ok(Place { node, replicas, racks: racks(document.list("node")?)?, key: run.key()? })
}

/// The place among processes of this machine.
fn beside(local: &LocalArgs, args: &RunArgs) -> Result<Place, Box<dyn std::error::Error>> {
    let (node, of) = (local.node.unwrap_or(0), local.of.unwrap_or(1));
    if node >= of {
        return Err(format!("--node {node}: there are only {of} replicas, from 0 on").into());
    }
    let replicas: Result<Vec<_>, _> = (0..of).map(|n| at(args.zookeeper, n)).collect();
    let racks = (0..of).map(|n| (n * args.racks / of) as u8).collect();
    Ok(Place { node, replicas: replicas?, racks, key: None })
}

/// The directory of the logs when none is named: the directory that an earlier version made, where
/// it is there alone.
fn default_directory() -> PathBuf {
    let [now, before] = ["evenfall-keys", "evenfall-order"].map(PathBuf::from);
    if before.is_dir() && !now.exists() { before } else { now }
}

/// Runs a replica or several. `named` is the settings file and the name of the node in it.
pub fn run(local: &LocalArgs, args: &RunArgs, named: Option<(&Document, &str)>) -> Outcome {
    let mut zookeeper = Options::default();
    for option in &args.zookeeper_options {
        zookeeper.set(option)?;
    }
    let directory = local.dir.clone().unwrap_or_else(default_directory);
    if let (Some(count), None, None) = (local.local, local.node, named) {
        return run_local(args, count, &directory);
    }
    let Place { node, replicas, racks, key } = match named {
        Some((document, name)) => in_settings(document, name)?,
        None => beside(local, args)?,
    };
    if named.is_none() {
        notes::name(&replica(node));
    }
    let of = replicas.len();
    let second_round = match (args.second_round, &args.membership) {
        (true, _) => SecondRound::Consensus,
        (_, Some(_)) => SecondRound::Outside,
        _ => SecondRound::Off,
    };
    let racks = Racks { of: racks, second_round, round_trip: args.round_trip };
    let count = racks.numbers().len();
    match second_round {
        SecondRound::Consensus if count < 3 => {
            return Err(format!("--second-round: with {count} racks, none may vanish").into());
        }
        SecondRound::Outside if count < 2 => {
            return Err(format!("--membership: with {count} racks, none may vanish").into());
        }
        _ => {}
    }
    let membership = args.membership.as_deref().map(membership::open).transpose()?;
    let listen = replicas[node];
    let replica = evenfall_consensus_replica::Settings {
        node,
        replicas,
        directory: directory.join(node.to_string()),
        lease_cycles: args.lease_cycles,
        racks,
        key,
    };
    let bytes_max = args.keys_mib.map(|mib| mib.saturating_mul(1 << 20));
    let settings = Settings { replica, listen, bytes_max, zookeeper };
    evenfall_host::procstat::raise_files();
    let started = || println!("replica {node} of {of} takes clients at {listen}");
    Ok(evenfall_keys_zookeeper::run(&settings, membership, started)?)
}

fn replica(number: usize) -> String {
    format!("replica {number}")
}

fn run_local(args: &RunArgs, count: usize, directory: &Path) -> Outcome {
    if !(1..=LOCAL_MAX).contains(&count) {
        return Err(format!("--local {count}: from 1 to {LOCAL_MAX} replicas").into());
    }
    if !(1..=count).contains(&args.racks) {
        return Err(format!("--racks {}: from 1 to the {count} replicas", args.racks).into());
    }
    supervise(count, &replica, &|number, command| {
        command.args(["run", "keys", "--lifeline"]);
        command.arg(format!("--node={number}")).arg(format!("--of={count}"));
        command.arg(format!("--zookeeper={}", args.zookeeper));
        command.args(args.keys_mib.map(|mib| format!("--keys-mib={mib}")));
        command.arg(format!("--lease-cycles={}", args.lease_cycles));
        command.arg(format!("--racks={}", args.racks));
        command.arg(format!("--round-trip={}", humantime::format_duration(args.round_trip)));
        command.args(args.second_round.then_some("--second-round"));
        command.args(args.membership.iter().map(|at| format!("--membership={at}")));
        command.args(args.zookeeper_options.iter().map(|option| format!("--zoo={option}")));
        command.arg("--dir").arg(directory);
    })
}
