//! `evenfall plan lab`: starts agents on hosts that are namespaces of this machine, some of them
//! slow, and plans over them live.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_core::NodeId;
use evenfall_host::interrupt;
use evenfall_host::lab::Lab;
use evenfall_host::process::{Lifeline, Signal, end_with_parent, send};
use evenfall_placement_survey::settings::AGENT;
use evenfall_runtime::settings::{InjectSettings, Node, RunSettings, put};

use super::model;
use super::wanted::WantedTree;
use crate::Outcome;
use crate::demo::write_key;
use crate::services::CONFIG;

/// Port of every agent. Each agent has an address of its own.
const PORT: u16 = 9_400;
/// How long agents may take until they listen.
const STARTUP: Duration = Duration::from_secs(10);
/// Time between two looks at the agents while they start, and at the plan while it runs.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `evenfall plan lab`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of hosts. Each has an agent.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=200))]
    hosts: u16,
    /// Slow hosts, by number from 0, separated by commas, such as 3,7.
    #[arg(long, value_delimiter = ',')]
    slow: Vec<u16>,
    /// Delay of every path in us. Exponential jitter adds half as much.
    #[arg(long, default_value_t = 50)]
    delay_us: u32,
    /// Delay in us that a slow host adds in each direction.
    #[arg(long, default_value_t = 500)]
    slow_us: u32,
    #[command(flatten)]
    wanted: WantedTree,
    #[command(flatten)]
    model: model::Args,
    /// Directory of settings, delays and the output of agents. Files of an earlier lab there are
    /// replaced.
    #[arg(long, default_value = "evenfall-lab")]
    dir: PathBuf,
    /// Print the plan as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The delays, in the form that the drivers of the agents read.
fn delays(args: &Args, lab: &Lab) -> String {
    let mut text = format!("* * {} {}\n", args.delay_us, args.delay_us / 2);
    for &host in &args.slow {
        let address = lab.address(usize::from(host));
        let (fixed, jitter) = (args.slow_us, args.slow_us / 4);
        let _ = writeln!(text, "{address} * {fixed} {jitter}");
        let _ = writeln!(text, "* {address} {fixed} {jitter}");
    }
    text
}

/// Writes the files that every process reads: settings, key and delays.
fn prepare(args: &Args, lab: &Lab) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("--dir {}: {error}", args.dir.display());
    fs::create_dir_all(&args.dir).map_err(failed)?;
    let node = |host: u16| Node {
        name: format!("h{host}"),
        id: NodeId(host.into()),
        role: AGENT.into(),
        address: SocketAddr::new(IpAddr::V4(lab.address(host.into())), PORT),
        http: None,
    };
    let run = RunSettings {
        dir: PathBuf::from("."),
        key_file: Some(PathBuf::from("evenfall.key")),
        // All agents run on this host, with or without namespaces.
        clock: "same-host".into(),
        ..RunSettings::default()
    };
    let inject =
        InjectSettings { file: Some(PathBuf::from("delays")), ..InjectSettings::default() };
    let nodes: Vec<Node> = (0..args.hosts).map(node).collect();
    let mut settings = toml::Table::new();
    put(&mut settings, "run", &run);
    put(&mut settings, "inject", &inject);
    let nodes = toml::Value::try_from(nodes).expect("nodes are plain tables");
    settings.insert("node".into(), nodes);
    write_key(&args.dir.join("evenfall.key"))?;
    fs::write(args.dir.join("delays"), delays(args, lab)).map_err(failed)?;
    fs::write(settings_path(&args.dir), settings.to_string()).map_err(failed)
}

fn settings_path(dir: &Path) -> PathBuf {
    dir.join(CONFIG)
}

fn program() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
    let mut command = Command::new(program);
    // Ctrl-C on the terminal goes to this process alone, which ends the others in the right order.
    command.process_group(0);
    Ok(command)
}

/// Agents that end when this value is dropped.
struct Agents {
    children: Vec<Child>,
    /// The lifeline that holds the agents.
    lifeline: Lifeline,
}

impl Drop for Agents {
    fn drop(&mut self) {
        // An agent has nothing to save, so it may be killed.
        self.children.iter().for_each(|child| send(child.id(), Signal::Kill));
        for child in &mut self.children {
            // The agent was killed, so its exit status tells nothing.
            drop(child.wait());
        }
    }
}

fn start(args: &Args, lab: &Lab) -> Result<Agents, String> {
    let lifeline = Lifeline::new().map_err(|error| format!("a pipe: {error}"))?;
    let mut agents = Agents { children: Vec::new(), lifeline };
    for host in 0..args.hosts {
        if interrupt::raised() {
            return Err("stopped while its agents were started".into());
        }
        let name = format!("h{host}");
        let path = args.dir.join(format!("{name}.stderr"));
        let said = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut command = program()?;
        command.args(["run", "agent", "--lifeline", "--name", &name, "--config"]);
        command.arg(settings_path(&args.dir));
        command.stdout(Stdio::null()).stderr(said);
        agents.lifeline.tie(&mut command).map_err(|error| format!("{name}: {error}"))?;
        lab.inside(host.into(), &mut command).map_err(|error| error.to_string())?;
        agents.children.push(command.spawn().map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(agents)
}

/// Waits until every agent listens. The surveyor's host asks.
fn wait(args: &Args, lab: &Lab) -> Result<(), String> {
    let until = Instant::now() + STARTUP;
    let listens = |host: u16| {
        let address = SocketAddr::new(IpAddr::V4(lab.address(host.into())), PORT);
        while TcpStream::connect_timeout(&address, LOOK).is_err() {
            if Instant::now() > until || interrupt::raised() {
                let said = args.dir.join(format!("h{host}.stderr"));
                return Err(format!("h{host} does not listen; see {}", said.display()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    };
    let all = || (0..args.hosts).try_for_each(listens);
    lab.within(args.hosts.into(), all).map_err(|error| error.to_string())?
}

pub fn main(args: &Args) -> Outcome {
    if let Some(none) = args.slow.iter().find(|host| **host >= args.hosts) {
        return Err(format!("--slow {none}: hosts are 0 to {}", args.hosts - 1).into());
    }
    args.model.wanted(args.hosts.into())?;
    interrupt::install()?;
    // The additional host is for the surveyor.
    let lab = Lab::new(usize::from(args.hosts) + 1)?;
    prepare(args, &lab)?;
    let agents = start(args, &lab)?;
    wait(args, &lab)?;
    let mut command = program()?;
    end_with_parent(&mut command, Signal::Kill);
    command.args(["plan", "live", "--config"]).arg(settings_path(&args.dir));
    command.args(args.wanted.as_arguments());
    command.args(args.model.as_arguments());
    command.args(args.json.then_some("--json"));
    lab.inside(args.hosts.into(), &mut command).map_err(|error| error.to_string())?;
    let mut live = command.spawn().map_err(|error| format!("plan live: {error}"))?;
    let mut told = false;
    let status = loop {
        if let Some(status) = live.try_wait()? {
            break status;
        }
        if interrupt::raised() && !std::mem::replace(&mut told, true) {
            send(live.id(), Signal::Terminate);
        }
        std::thread::sleep(LOOK);
    };
    drop(agents);
    if status.success() { Ok(()) } else { Err("there is no plan".into()) }
}
