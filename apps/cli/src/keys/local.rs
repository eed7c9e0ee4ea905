//! Replicas of ordered keys as processes of this machine.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use evenfall_keys_zookeeper::settings::{KEYS, default_directory};
use evenfall_runtime::notes;
use evenfall_runtime::service::{self, Start};
use evenfall_runtime::settings::{Node, SettingsDocument};

use super::RunArgs;
use crate::Outcome;
use crate::local::{LocalArgs, at, supervise};
use crate::services::SERVICES;

/// Most replicas on this machine. The simulator shows what more replicas do.
const LOCAL_MAX: usize = 9;
/// The first replica's address, which ZooKeeper's clients and `evenfall kv` know.
const FIRST: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 21_811);

/// The settings of replicas of this machine, as a file would have them.
fn settings_of(
    args: &RunArgs,
    of: usize,
    directory: &Path,
) -> Result<SettingsDocument, Box<dyn std::error::Error>> {
    let (first, racks) = (args.zookeeper.unwrap_or(FIRST), args.racks.unwrap_or(1));
    let mut text = String::new();
    for number in 0..of {
        let (address, rack) = (at(first, number)?, number * racks / of);
        let keys = toml::Value::from(directory.join(number.to_string()).display().to_string());
        writeln!(
            text,
            "[[node]]\nname = \"replica-{number}\"\nid = {number}\nrole = \"{KEYS}\"\n\
             address = \"{address}\"\nrack = \"{rack}\"\nkeys = {keys}"
        )?;
    }
    let mut document =
        SettingsDocument::parse(&text, "evenfall run keys", std::iter::empty(), &[])?;
    RunArgs { racks: None, zookeeper: None, ..args.clone() }.apply(&mut document)?;
    service::check(SERVICES, &document)?;
    Ok(document)
}

/// Runs a replica of this machine, or several as processes.
pub fn run(local: &LocalArgs, args: &RunArgs) -> Outcome {
    let directory = local.dir.clone().unwrap_or_else(default_directory);
    if let (Some(count), None) = (local.local, local.node) {
        return run_local(args, count, &directory);
    }
    let (number, of) = (local.node.unwrap_or(0), local.of.unwrap_or(1));
    if number >= of {
        return Err(format!("--node {number}: there are only {of} replicas, from 0 on").into());
    }
    notes::name(&replica(number));
    let document = settings_of(args, of, &directory)?;
    let nodes: Vec<Node> = document.list("node")?;
    let (keys, role) = service::find_role(SERVICES, KEYS)?;
    let say = |line: &str| say!("{line}");
    let start = Start { document: &document, role, node: &nodes[number], say: &say };
    keys.run(&start).map(drop)
}

fn replica(number: usize) -> String {
    format!("replica {number}")
}

fn run_local(args: &RunArgs, count: usize, directory: &Path) -> Outcome {
    if !(1..=LOCAL_MAX).contains(&count) {
        return Err(format!("--local {count}: from 1 to {LOCAL_MAX} replicas").into());
    }
    let racks = args.racks.unwrap_or(1);
    if !(1..=count).contains(&racks) {
        return Err(format!("--racks {racks}: from 1 to the {count} replicas").into());
    }
    // A mistake in an option is said once, and not by each replica.
    settings_of(args, count, directory)?;
    supervise(count, &replica, &|number, command| {
        command.args(["run", "keys", "--lifeline"]);
        command.arg(format!("--node={number}")).arg(format!("--of={count}"));
        command.args(args.zookeeper.map(|first| format!("--zookeeper={first}")));
        command.args(args.keys_mib.map(|mib| format!("--keys-mib={mib}")));
        command.args(args.lease_cycles.map(|cycles| format!("--lease-cycles={cycles}")));
        command.args(args.racks.map(|racks| format!("--racks={racks}")));
        let round_trip = args.round_trip.map(humantime::format_duration);
        command.args(round_trip.map(|time| format!("--round-trip={time}")));
        command.args(args.second_round.then_some("--second-round"));
        command.args(args.membership.iter().map(|at| format!("--membership={at}")));
        command.args(args.zookeeper_options.iter().map(|option| format!("--zoo={option}")));
        command.arg("--dir").arg(directory);
    })
}
