//! The cast of a demo: which processes there are, how they are started, watched and ended.

use std::fs::{self, File};
use std::io::{IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_core::NodeId;
use evenfall_io::interrupt;
use evenfall_io::lab::Lab;
use evenfall_io::process::{Signal, end_with_parent, send};
use evenfall_multicast::Shape;
use evenfall_multicast::tree::Dimensions;
use evenfall_node::settings::{Node, RoleName, Settings};

use super::Args;
use crate::stat;

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(1_000);
/// How long processes may take to end after the root has.
const AFTER_ROOT: Duration = Duration::from_secs(8);
/// Port of every process in a lab, where each has an address of its own.
const LAB_PORT: u16 = 9000;

fn proxies_per_tree(args: &Args) -> usize {
    let shape = Shape { depth: Some(args.depth), fanout: args.fanout, ..Shape::default() };
    let wanted = Dimensions::of(&shape, args.mode, args.receivers as usize).proxies(&shape);
    wanted + args.spares as usize
}

/// Hosts that a lab needs.
pub fn hosts(args: &Args) -> usize {
    1 + proxies_per_tree(args) * args.trees as usize + args.receivers as usize
}

/// The nodes of the run: the root, the proxies of each tree, the receivers.
pub fn nodes(args: &Args, lab: Option<&Lab>) -> Result<Vec<Node>, String> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut add = |name: String, role: RoleName, tree: u32| -> Result<(), String> {
        let id = nodes.len();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let address = match lab {
            Some(lab) => SocketAddr::new(IpAddr::V4(lab.address(id)), LAB_PORT),
            // Only the root must be found by others.
            None if role == RoleName::Root => SocketAddr::new(loopback, free_udp_port()?),
            None => SocketAddr::new(loopback, 0),
        };
        let http = (lab.is_none() && role == RoleName::Root).then(free_tcp).transpose()?;
        nodes.push(Node { name, id: NodeId(id as u32), role, address, http, tree });
        Ok(())
    };
    add("root".into(), RoleName::Root, 0)?;
    let per_tree = proxies_per_tree(args);
    for tree in 0..args.trees {
        for i in 0..per_tree {
            let number = tree as usize * per_tree + i + 1;
            add(format!("proxy-{number}"), RoleName::Proxy, tree)?;
        }
    }
    for i in 1..=args.receivers {
        add(format!("recv-{i}"), RoleName::Receiver, 0)?;
    }
    for fault in &args.fault {
        if !nodes.iter().any(|node| node.name == fault.name) {
            let names: Vec<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
            return Err(format!("--fault: no {}; there are {}", fault.name, names.join(", ")));
        }
    }
    Ok(nodes)
}

fn free_udp_port() -> Result<u16, String> {
    let socket = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr());
    Ok(socket.map_err(|error| format!("no free UDP port on loopback: {error}"))?.port())
}

fn free_tcp() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    listener.map_err(|error| format!("no free TCP port on loopback: {error}"))
}

/// The receivers among the nodes.
pub fn receivers(settings: &Settings) -> impl Iterator<Item = &Node> {
    settings.nodes.iter().filter(|node| node.role == RoleName::Receiver)
}

/// A key from the system's randomness, as the settings want it.
pub fn fresh_key() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

struct Actor {
    node: Node,
    child: Child,
    /// Ended, and how.
    ended: Option<Result<(), String>>,
}

fn start(args: &Args, node: &Node, lab: Option<&Lab>) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
    let role = match node.role {
        RoleName::Root => "root",
        RoleName::Proxy => "proxy",
        RoleName::Receiver => "recv",
    };
    let stderr = File::create(args.dir.join(format!("{}.stderr", node.name)))
        .map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let mut command = Command::new(program);
    command.args(["run", role, "--name", &node.name, "--config"]);
    command.arg(super::settings_path(&args.dir));
    command.args(args.set.iter().flat_map(|set| ["--set", set.as_str()]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    end_with_parent(&mut command);
    if let Some(lab) = lab {
        lab.inside(node.id.0 as usize, &mut command).map_err(|error| error.to_string())?;
    }
    command.spawn().map_err(|error| format!("{}: {error}", node.name))
}

impl Actor {
    /// Looks whether it has ended.
    fn look(&mut self, args: &Args) {
        if self.ended.is_some() {
            return;
        }
        let Ok(Some(status)) = self.child.try_wait() else { return };
        let name = &self.node.name;
        self.ended = Some(if status.success() {
            Ok(())
        } else {
            let path = args.dir.join(format!("{name}.stderr"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let last = text.lines().rev().find(|line| line.starts_with("evenfall: "));
            let words = last.map_or("", |line| line.trim_start_matches("evenfall: "));
            Err(format!("{name} ended with {status}: {words}"))
        });
    }
}

/// Starts everybody, plants the faults, and waits until all have ended. The inner result is how the
/// root ended.
pub fn play(
    args: &Args,
    settings: &Settings,
    lab: Option<&Lab>,
    messages: u64,
) -> Result<Result<(), String>, String> {
    let mut actors = Vec::new();
    for node in &settings.nodes {
        let child = start(args, node, lab)?;
        actors.push(Actor { node: node.clone(), child, ended: None });
    }
    let started = Instant::now();
    let mut planned = plan(args, started);
    let mut shown = started;
    let mut asked_to_stop = false;
    while actors[0].ended.is_none() {
        std::thread::sleep(LOOK);
        actors.iter_mut().for_each(|actor| actor.look(args));
        plant(&mut planned, &actors);
        if interrupt::raised() && !core::mem::replace(&mut asked_to_stop, true) {
            // A terminal tells all of them; another sender only told this one.
            signal_all(&actors, Signal::Terminate);
        }
        if !args.json && shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            progress(&actors[0].node, messages);
        }
    }
    clear_progress();
    Ok(wind_up(args, actors))
}

/// Waits for the rest, then insists. How the root ended, and who failed besides.
fn wind_up(args: &Args, mut actors: Vec<Actor>) -> Result<(), String> {
    let root_failed = matches!(actors[0].ended, Some(Err(_)));
    let deadline = Instant::now() + if root_failed { Duration::ZERO } else { AFTER_ROOT };
    while actors.iter().any(|actor| actor.ended.is_none()) && Instant::now() < deadline {
        std::thread::sleep(LOOK);
        actors.iter_mut().for_each(|actor| actor.look(args));
    }
    let alive = |actors: &[Actor]| actors.iter().any(|actor| actor.ended.is_none());
    for insist in [Signal::Terminate, Signal::Kill] {
        if alive(&actors) {
            signal_all(&actors, Signal::Continue);
            signal_all(&actors, insist);
            let until = Instant::now() + Duration::from_secs(2);
            while alive(&actors) && Instant::now() < until {
                std::thread::sleep(LOOK);
                actors.iter_mut().for_each(|actor| actor.look(args));
            }
        }
    }
    let hurt = |name: &str| args.fault.iter().any(|fault| fault.name == name);
    let mut failures = actors
        .iter()
        .filter(|actor| !hurt(&actor.node.name))
        .filter_map(|actor| actor.ended.as_ref().and_then(|ended| ended.as_ref().err().cloned()));
    match failures.next() {
        None => Ok(()),
        Some(first) => {
            let more = failures.count();
            let logs = args.dir.display();
            let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
            Err(format!("{first}{rest}; what they said is in {logs}/*.stderr"))
        }
    }
}

fn signal_all(actors: &[Actor], signal: Signal) {
    for actor in actors.iter().filter(|actor| actor.ended.is_none()) {
        send(actor.child.id(), signal);
    }
}

/// Faults in order of time: when, whom, which signal.
fn plan(args: &Args, started: Instant) -> Vec<(Instant, String, Signal)> {
    let mut planned = Vec::new();
    for fault in &args.fault {
        let at = started + fault.at;
        match fault.pause {
            None => planned.push((at, fault.name.clone(), Signal::Kill)),
            Some(pause) => {
                planned.push((at, fault.name.clone(), Signal::Stop));
                planned.push((at + pause, fault.name.clone(), Signal::Continue));
            }
        }
    }
    planned.sort_by_key(|(at, ..)| *at);
    planned
}

fn plant(planned: &mut Vec<(Instant, String, Signal)>, actors: &[Actor]) {
    while planned.first().is_some_and(|(at, ..)| *at <= Instant::now()) {
        let (_, name, signal) = planned.remove(0);
        let found = actors.iter().find(|actor| actor.node.name == name);
        if let Some(actor) = found.filter(|actor| actor.ended.is_none()) {
            send(actor.child.id(), signal);
        }
    }
}

/// One line on the terminal, rewritten.
fn progress(root: &Node, messages: u64) {
    let Some(status) = root.http.and_then(|address| stat::fetch(address).ok()) else { return };
    let trees = status.as_array().cloned().unwrap_or_default();
    let sum = |key: &str| trees.iter().filter_map(|tree| tree[key].as_u64()).sum::<u64>();
    if !std::io::stdout().is_terminal() {
        return;
    }
    print!(
        "\r\x1b[K{} of {messages} messages sent, hold {} us",
        sum("messages"),
        sum("hold_ns") / 1_000 / trees.len().max(1) as u64
    );
    std::io::stdout().flush().ok();
}

fn clear_progress() {
    if std::io::stdout().is_terminal() {
        print!("\r\x1b[K");
    }
}
