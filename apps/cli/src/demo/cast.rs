//! The cast of a demo: which processes there are, how they are started, watched and ended.

use std::fs::{self, File};
use std::io::{IsTerminal, Read, Write};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenfall_core::NodeId;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_host::lab::Lab;
use evenfall_host::process::{Signal, end_with_parent, send};
use evenfall_multicast_machine::Shape;
use evenfall_multicast_machine::tree::Dimensions;
use evenfall_multicast_service::report::{RUN_FILE, RunEvent};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::{Node, RoleName};

use super::Args;
use super::faults::Harm;
use crate::stat;

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(1_000);
/// How long processes may take to end after the root has, or after they should have missed it.
const AFTER_ROOT: Duration = Duration::from_secs(8);
/// File of injected delays, in the directory of the run.
pub const DELAYS_FILE: &str = "delays.txt";
/// Port of every process in a lab, where each has an address of its own.
const LAB_PORT: u16 = 9000;

fn proxies_per_tree(args: &Args) -> usize {
    let shape = Shape { depth: Some(args.depth), fanout: args.fanout, ..Shape::default() };
    let wanted = Dimensions::of(&shape, args.mode, args.receivers as usize).proxies(&shape);
    wanted + args.spares as usize
}

/// Whether a process is to be slowed.
pub fn slows(args: &Args) -> bool {
    args.fault.iter().any(|fault| matches!(fault.harm, Harm::Slow(_)))
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
            // Only the root must be found by others, and who is slow by the rules of delays.
            None if role == RoleName::Root || slows(args) => {
                SocketAddr::new(loopback, free_udp_port()?)
            }
            None => SocketAddr::new(loopback, 0),
        };
        let http = (lab.is_none() && role == RoleName::Root).then(free_tcp).transpose()?;
        let id = NodeId(id as u32);
        nodes.push(Node { name, id, role, address, http, tree, record: None, from: None });
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
    if args.record.is_some() {
        add(super::record::NODE.into(), RoleName::Recorder, 0)?;
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
        RoleName::Recorder => "recorder",
        RoleName::Other => return Err(format!("{} has no role of a demo", node.name)),
    };
    let stderr = File::create(args.dir.join(format!("{}.stderr", node.name)))
        .map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let mut command = Command::new(program);
    command.args(["run", role, "--name", &node.name, "--config"]);
    command.arg(super::settings_path(&args.dir));
    command.args(args.set.iter().flat_map(|set| ["--set", set.as_str()]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // A Ctrl-C on the terminal is for this process, which ends the others in the right order.
    command.process_group(0);
    end_with_parent(&mut command);
    if let Some(lab) = lab {
        lab.inside(node.id.0 as usize, &mut command).map_err(|error| error.to_string())?;
    }
    command.spawn().map_err(|error| format!("{}: {error}", node.name))
}

impl Actor {
    /// Looks whether it has ended.
    fn look(&mut self, args: &Args) {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some(self.verdict(args, status));
        }
    }

    fn verdict(&self, args: &Args, status: ExitStatus) -> Result<(), String> {
        if status.success() {
            return Ok(());
        }
        let name = &self.node.name;
        let path = args.dir.join(format!("{name}.stderr"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let last = text.lines().rev().find(|line| line.starts_with("evenfall: "));
        match last.map(|line| line.trim_start_matches("evenfall: ")) {
            Some(words) => Err(format!("{name}: {words}")),
            None => Err(format!("{name} ended with {status}")),
        }
    }
}

/// How a play ended.
pub struct Played {
    /// Who failed, other than by a planted fault.
    pub outcome: Result<(), String>,
    /// What was done to the processes, for the timeline.
    pub events: Vec<RunEvent>,
    /// Somebody asked this program to stop.
    pub stopped: bool,
}

/// Processes and what is done to them.
struct Stage<'a> {
    args: &'a Args,
    actors: Vec<Actor>,
    faults: Vec<Planned>,
    delays_file: Option<PathBuf>,
    /// Rules of injected delays so far.
    delays: String,
    events: Vec<RunEvent>,
}

/// Starts everybody, plants the faults, and waits until all have ended.
pub fn play(
    args: &Args,
    settings: &Settings,
    lab: Option<&Lab>,
    messages: u64,
) -> Result<Played, String> {
    let mut stage = Stage {
        args,
        actors: Vec::new(),
        faults: Vec::new(),
        delays_file: None,
        delays: String::new(),
        events: Vec::new(),
    };
    // The recorder runs in this process.
    for node in settings.nodes.iter().filter(|node| node.name != super::record::NODE) {
        let child = start(args, node, lab)?;
        stage.actors.push(Actor { node: node.clone(), child, ended: None });
    }
    let mut shown = Instant::now();
    let (mut feeding, mut stopped) = (false, false);
    while stage.actors[0].ended.is_none() {
        std::thread::sleep(LOOK);
        stage.look();
        // The root writes it when the tree stands, and feeds after the warm-up.
        if !feeding && settings.run.dir.join(RUN_FILE).exists() {
            feeding = true;
            stage.faults = plan(args, Instant::now() + settings.course.rehearsal());
            stage.delays_file = settings.inject.file.clone();
        }
        stage.plant();
        if interrupt::raised() && !mem::replace(&mut stopped, true) {
            stage.stop(feeding);
        }
        if !args.json && shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            progress(&stage.actors[0].node, messages);
        }
    }
    clear_progress();
    let outcome = stage.wind_up(settings.multicast.membership.root_timeout);
    Ok(Played { outcome, events: stage.events, stopped })
}

impl Stage<'_> {
    fn look(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.look(self.args));
    }

    /// Ends the run in order: the root tells the others where the stream ends.
    fn stop(&mut self, feeding: bool) {
        for planned in mem::take(&mut self.faults) {
            // Who stands still must go on to end.
            if planned.act == Act::Signal(Signal::Continue) {
                self.signal(&planned.name, Signal::Continue);
            }
        }
        if feeding {
            send(self.actors[0].child.id(), Signal::Terminate);
        } else {
            self.signal_all(Signal::Terminate);
        }
    }

    fn signal(&self, name: &str, signal: Signal) {
        let found = self.actors.iter().find(|actor| actor.node.name == name);
        if let Some(actor) = found.filter(|actor| actor.ended.is_none()) {
            send(actor.child.id(), signal);
        }
    }

    fn signal_all(&self, signal: Signal) {
        for actor in self.actors.iter().filter(|actor| actor.ended.is_none()) {
            send(actor.child.id(), signal);
        }
    }

    fn alive(&self) -> bool {
        self.actors.iter().any(|actor| actor.ended.is_none())
    }

    fn wait(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.alive() && Instant::now() < until {
            std::thread::sleep(LOOK);
            self.look();
            self.plant();
        }
    }

    /// Waits for the rest, then insists. Who failed.
    fn wind_up(&mut self, root_timeout: Duration) -> Result<(), String> {
        let hurt = |name: &str| {
            self.args.fault.iter().any(|fault| fault.name == name && fault.is_excuse())
        };
        let root_failed = matches!(self.actors[0].ended, Some(Err(_)));
        let patience = match (root_failed, hurt(&self.actors[0].node.name)) {
            // To see that the others notice by themselves.
            (true, true) => root_timeout + AFTER_ROOT,
            (true, false) => Duration::ZERO,
            (false, _) => AFTER_ROOT,
        };
        self.wait(patience);
        for insist in [Signal::Terminate, Signal::Kill] {
            if self.alive() {
                self.signal_all(Signal::Continue);
                self.signal_all(insist);
                self.wait(Duration::from_secs(2));
            }
        }
        let bystanders = self.actors.iter().filter(|actor| !hurt(&actor.node.name));
        let mut failures = bystanders.filter_map(|actor| actor.ended.as_ref()?.as_ref().err());
        let Some(first) = failures.next() else { return Ok(()) };
        let more = failures.count();
        let logs = self.args.dir.display();
        let rest = if more > 0 { format!(" (and {more} more failed)") } else { String::new() };
        Err(format!("{first}{rest}; what they said is in {logs}/*.stderr"))
    }

    /// Does what is due to be done to the processes.
    fn plant(&mut self) {
        while self.faults.first().is_some_and(|planned| planned.at <= Instant::now()) {
            let Planned { name, act, .. } = self.faults.remove(0);
            let found = self.actors.iter().find(|actor| actor.node.name == name);
            let Some(actor) = found.filter(|actor| actor.ended.is_none()) else { continue };
            let (node, address) = (actor.node.id, actor.node.address);
            let (kind, done) = match act {
                Act::Signal(signal) => {
                    send(actor.child.id(), signal);
                    match signal {
                        Signal::Kill => ("fault", "killed".to_owned()),
                        Signal::Stop => ("fault", "paused".to_owned()),
                        Signal::Continue | Signal::Terminate => ("resume", "let go on".to_owned()),
                    }
                }
                Act::Slow(by) => match self.slow(address, by) {
                    Ok(()) => ("fault", format!("slowed by {by:?} each way")),
                    Err(error) => ("fault", format!("not slowed: {DELAYS_FILE}: {error}")),
                },
            };
            self.events.push(RunEvent {
                // All of it is one host, whose clock is the synchronised one.
                at_ns: MonotonicClock::now().nanos(),
                kind: kind.to_owned(),
                node: Some(node),
                text: format!("{name} was {done} (--fault)"),
            });
        }
    }

    /// Makes everything to and from an address take so much longer, from the next look of the
    /// processes at the file on.
    fn slow(&mut self, address: SocketAddr, by: Duration) -> std::io::Result<()> {
        let Some(file) = &self.delays_file else { return Ok(()) };
        let us = by.as_micros();
        self.delays.push_str(&format!("{address} * {us}\n* {address} {us}\n"));
        let next = file.with_extension("next");
        fs::write(&next, &self.delays)?;
        fs::rename(next, file)
    }
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Signal(Signal),
    Slow(Duration),
}

/// Something to be done to a process.
struct Planned {
    at: Instant,
    name: String,
    act: Act,
}

/// What is to be done, in order of time.
fn plan(args: &Args, first_message: Instant) -> Vec<Planned> {
    let mut planned = Vec::new();
    for fault in &args.fault {
        let at = first_message + fault.at;
        let mut add = |at, act| planned.push(Planned { at, name: fault.name.clone(), act });
        match fault.harm {
            Harm::Kill => add(at, Act::Signal(Signal::Kill)),
            Harm::Slow(by) => add(at, Act::Slow(by)),
            Harm::Pause(pause) => {
                add(at, Act::Signal(Signal::Stop));
                add(at + pause, Act::Signal(Signal::Continue));
            }
        }
    }
    planned.sort_by_key(|planned| planned.at);
    planned
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
