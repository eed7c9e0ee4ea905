//! `evenfall plan deploy`: the files that bring up the machines of an experiment's pool.
//!
//! All files follow from the experiment file: the settings of its agents and its feed, and the
//! values of the Terraform modules or the Kubernetes manifests in `deploy/`.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use evenfall_host::whole_file::{SETTINGS_BYTES_MAX, read_text_up_to};
use evenfall_placement_planner::tree::TreeShape;
use evenfall_placement_survey::experiment::Experiment;
use evenfall_placement_survey::experiment::file::{PoolSettings, Provider};
use serde_json::json;

use crate::Outcome;
use crate::generate::pod::{self, NODE_NAME, RolePod, check_host_name};

/// Port of the agents, over TCP and UDP.
const AGENT_PORT: u16 = 9_400;
/// Port of the feed on every machine.
const FEED_PORT: u16 = 9_000;
/// Port of metrics and health. 9100 is the port of Prometheus' own exporter of a host's figures.
const HTTP_PORT: u16 = 9_180;
/// Where the manager keeps the runs on the first machine: as the unit and the containers have it.
const RESULTS: &str = "/var/lib/evenfall/plan";
/// The first address of a subnet that a machine gets. Clouds keep lower addresses for themselves.
const FIRST_HOST: u32 = 10;

/// Arguments of `evenfall plan deploy`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The experiment file; its `[pool]` states the number and the kind of the machines.
    file: PathBuf,
    /// The directory into which all files are written.
    #[arg(long)]
    out: PathBuf,
    /// Network of the machines. The first machine gets the tenth address.
    #[arg(long, default_value = "10.77.0.0/20")]
    subnet: String,
    /// Existing machines, as NAME=ADDRESS. Kubernetes needs them: they are its nodes.
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<String>,
    /// Place of the key file on every machine.
    #[arg(long, default_value = "/etc/evenfall/evenfall.key")]
    key_file: String,
    /// The clock that all machines share, as in run.clock.
    #[arg(long, default_value = "auto")]
    clock: String,
    /// The feed file on the first machine. Without it the feed is generated.
    #[arg(long)]
    feed: Option<String>,
    /// Depth of the feed's tree. Without it, the depth of the first `[[run]]`.
    #[arg(long)]
    feed_depth: Option<u8>,
    /// Fan-out of the feed's tree. Without it, the fan-out of the first `[[run]]`.
    #[arg(long)]
    feed_fanout: Option<u16>,
}

struct Machine {
    name: String,
    address: Ipv4Addr,
}

fn subnet(text: &str) -> Result<(Ipv4Addr, u32), String> {
    let wrong = || format!("--subnet {text}: a network such as 10.77.0.0/20");
    let (network, bits) = text.split_once('/').ok_or_else(wrong)?;
    let (network, bits) = (network.parse().map_err(|_| wrong())?, bits.parse::<u32>());
    let bits = bits.ok().filter(|bits| (8..=29).contains(bits)).ok_or_else(wrong)?;
    Ok((network, 1 << (32 - bits)))
}

fn machines(args: &Args, pool: &PoolSettings) -> Result<Vec<Machine>, String> {
    if args.hosts.is_empty() {
        if pool.provider == Provider::Kubernetes {
            return Err("--hosts: Kubernetes runs agents on nodes that exist; name them, as in \
                        --hosts node-a=10.0.0.4,node-b=10.0.0.5"
                .into());
        }
        let (network, size) = subnet(&args.subnet)?;
        let room = size.saturating_sub(FIRST_HOST + 1);
        if pool.count > room {
            let PoolSettings { count, .. } = pool;
            return Err(format!(
                "--subnet {}: has room for {room} machines, and [pool] has count = {count}",
                args.subnet
            ));
        }
        let machine = |at| Machine {
            name: format!("{}-{at}", pool.name),
            address: Ipv4Addr::from(u32::from(network) + FIRST_HOST + at),
        };
        return Ok((0..pool.count).map(machine).collect());
    }
    let parse = |text: &String| {
        let parsed = text.split_once('=').and_then(|(name, address)| {
            Some(Machine { name: name.to_owned(), address: address.parse().ok()? })
        });
        parsed.ok_or_else(|| format!("--hosts {text}: must be NAME=ADDRESS"))
    };
    let all: Vec<Machine> = args.hosts.iter().map(parse).collect::<Result<_, _>>()?;
    if pool.provider == Provider::Kubernetes {
        all.iter().try_for_each(|machine| check_host_name(&machine.name))?;
    }
    if all.len() != pool.count as usize {
        return Err(format!(
            "--hosts: names {} machines, and [pool] has count = {}; make the numbers equal",
            all.len(),
            pool.count
        ));
    }
    Ok(all)
}

/// The experiment, to be carried out on the agents of this deployment.
fn planned(file: &Path) -> Result<String, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = read_text_up_to(file, SETTINGS_BYTES_MAX).map_err(|error| wrong(&error))?;
    let mut document: toml_edit::DocumentMut = text.parse().map_err(|error| wrong(&error))?;
    let mut on = toml_edit::Table::new();
    on.set_implicit(true);
    on["live"] = toml_edit::table();
    on["live"]["settings"] = toml_edit::value("agents.toml");
    document["on"] = toml_edit::Item::Table(on);
    Ok(document.to_string())
}

/// The beginning of every settings file.
fn settings_head(args: &Args) -> String {
    let Args { key_file, clock, .. } = args;
    format!("[run]\nkey_file = {key_file:?}\nclock = {clock:?}\ndir = \"run\"\n")
}

fn node(name: &str, id: usize, role: &str, machine: &Machine, port: u16) -> String {
    let address = SocketAddr::from((machine.address, port));
    let http = SocketAddr::from((machine.address, HTTP_PORT + u16::from(port == FEED_PORT)));
    format!(
        "\n[[node]]\nname = {name:?}\nid = {id}\nrole = {role:?}\naddress = \"{address}\"\n\
         http = \"{http}\"\n"
    )
}

fn agents(args: &Args, all: &[Machine]) -> String {
    let nodes = all.iter().enumerate();
    let head = settings_head(args) + &format!("\n[survey]\nresults = {RESULTS:?}\n");
    nodes.fold(head, |text, (id, machine)| {
        text + &node(&machine.name, id, "agent", machine, AGENT_PORT)
    })
}

/// The roles of the feed: the first machine is the root, the next machines are proxies.
fn roles<'a>(
    all: &'a [Machine],
    shape: TreeShape,
) -> Result<Vec<(String, &'static str, &'a Machine)>, String> {
    let TreeShape { depth, fanout } = shape;
    let width = |level| u64::from(fanout).saturating_pow(u32::from(level));
    let proxies = (1..depth).map(width).fold(0, u64::saturating_add);
    let needed = proxies.saturating_add(2);
    if (all.len() as u64) < needed {
        return Err(format!(
            "[pool] count {}: a feed of depth {depth} and fan-out {fanout} takes a root, {proxies} \
             proxies and one receiver at least; {} are missing",
            all.len(),
            needed - all.len() as u64
        ));
    }
    let role = |(at, machine): (usize, &'a Machine)| match at as u64 {
        0 => ("root".to_owned(), "root", machine),
        at if at <= proxies => (format!("proxy-{at}"), "proxy", machine),
        at => (format!("receiver-{}", at - proxies), "receiver", machine),
    };
    Ok(all.iter().enumerate().map(role).collect())
}

fn feed(args: &Args, roles: &[(String, &str, &Machine)], shape: TreeShape) -> String {
    let mut text = settings_head(args);
    if let Some(file) = &args.feed {
        let _ = write!(text, "\n[feed]\nfile = {file:?}\n");
    }
    let TreeShape { depth, fanout } = shape;
    let _ = write!(text, "\n[multicast.shape]\ndepth = {depth}\nfanout = {fanout}\n");
    for (id, (name, role, machine)) in roles.iter().enumerate() {
        text += &node(name, id, role, machine, FEED_PORT);
    }
    text
}

/// One pod on every node of the cluster, in its host's network, because agents are known by
/// address. An agent has the name of its host. Edited settings replace the pods, because kustomize
/// names settings by their content.
fn manifests(pool: &PoolSettings, all: &[Machine]) -> serde_json::Value {
    let image = if pool.image.is_empty() { "evenfall:local" } else { &pool.image };
    let pod = RolePod {
        role: "agent",
        name: NODE_NAME,
        image,
        settings: "agents.toml",
        settings_map: "evenfall-settings",
        address_port: AGENT_PORT,
        http_port: Some(HTTP_PORT),
        claim: None,
    };
    let hosts: Vec<&str> = all.iter().map(|machine| machine.name.as_str()).collect();
    let agents = pod::make_daemon_set("agents", "evenfall", &hosts, &pod);
    json!({"apiVersion": "v1", "kind": "List", "items": [agents]})
}

fn save(dir: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn main(args: &Args) -> Outcome {
    let experiment = Experiment::load(&args.file, &[])?;
    let name = args.file.display();
    let pool = experiment.pool.as_ref().ok_or_else(|| {
        format!(
            "{name}: there is no [pool]; add it with name, provider (gcp, aws, docker, kubernetes) \
             and count"
        )
    })?;
    let trees = experiment.runs.first().ok_or_else(|| format!("{name}: no [[run]]"))?;
    let all = machines(args, pool)?;
    let shape = TreeShape {
        depth: args.feed_depth.unwrap_or(trees.depth),
        fanout: args.feed_fanout.unwrap_or(trees.fanout),
    };
    let roles = roles(&all, shape)?;
    let dir = &args.out;
    fs::create_dir_all(dir).map_err(|error| format!("--out {}: {error}", dir.display()))?;
    save(dir, "plan.toml", &planned(&args.file)?)?;
    save(dir, "agents.toml", &agents(args, &all))?;
    save(dir, "feed.toml", &feed(args, &roles, shape))?;
    if pool.provider == Provider::Kubernetes {
        let list = serde_json::to_string_pretty(&manifests(pool, &all))?;
        save(dir, "agents.json", &list)?;
    } else {
        let machine = |((role, kind, machine), at): (&(String, &str, &Machine), usize)| {
            json!({
                "index": at, "name": machine.name, "address": machine.address,
                "feed_name": role, "feed_role": kind,
            })
        };
        let values = json!({
            "name": pool.name,
            "machine_type": pool.machine_type,
            "image": pool.image,
            "subnet": args.subnet,
            "machines": roles.iter().zip(0..).map(machine).collect::<Vec<_>>(),
        });
        save(dir, "terraform.tfvars.json", &serde_json::to_string_pretty(&values)?)?;
    }
    say!("{} machines: settings and values are in {}", all.len(), dir.display());
    Ok(())
}
