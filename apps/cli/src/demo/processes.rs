//! The processes of a demo, and how they are started, watched and ended.

use std::fs::{self, File};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenfall_core::NodeId;
use evenfall_host::clock::{MonotonicClock, SyncSource};
use evenfall_host::interrupt;
use evenfall_host::lab::Lab;
use evenfall_host::process::{Lifeline, Signal, send};
use evenfall_multicast_machine::Shape;
use evenfall_multicast_machine::tree::Dimensions;
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::report::{RUN_FILE, RunEvent};
use evenfall_multicast_service::settings::{MulticastNode, RoleName, steps_file};

use super::Args;
use super::faults::{DemoFault, Harm};
use super::trading::Exchange;
use crate::stat;
use evenfall_runtime::progress::Progress;

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(1_000);
/// How long processes may take to end after the root has ended, or after they should have noticed
/// its death.
const AFTER_ROOT: Duration = Duration::from_secs(8);
/// How long a run may take to end in order after a signal. Processes that are left are then killed,
/// so that no process of a demo lives two seconds after the signal, on a busy machine too.
const STOP_MAX: Duration = Duration::from_millis(1_400);
/// How long processes may take to end after they were told to, before they are killed.
const INSIST: Duration = Duration::from_secs(2);
/// File of injected delays, in the directory of the run.
pub const DELAYS_FILE: &str = "delays.txt";
/// Standbys of a root that may die. With the root they are three, of which any one may die.
const STANDBYS: u32 = 2;
/// Name of the author.
pub const AUTHOR: &str = "author";
/// How long an author that was killed stays away until it is started again.
const AUTHOR_AWAY: Duration = Duration::from_secs(1);
/// Port of every process in a lab, where each has an address of its own.
const LAB_PORT: u16 = 9000;

fn proxies_per_tree(args: &Args, receivers: u32) -> u64 {
    let shape = Shape { depth: Some(args.depth), fanout: args.fanout, ..Shape::default() };
    let wanted = Dimensions::of(&shape, args.mode, receivers as usize).proxies(&shape);
    (wanted as u64).saturating_add(args.spares.into())
}

/// Whether the demo makes the clock of any process's host wrong.
pub fn steps(args: &Args) -> bool {
    args.trading.plants_clock_errors()
        || args.fault.iter().any(|fault| matches!(fault.harm, Harm::Step(_)))
}

/// Whether the demo slows any process.
pub fn slows(args: &Args) -> bool {
    args.fault.iter().any(|fault| matches!(fault.harm, Harm::Slow(_)))
}

/// Delays that a comparison or trading plants on the way to receivers, over and over: of five
/// receivers, two are farther away. Loopback has no network, so that the paths to all receivers
/// are equally long without these delays.
const FAR_US: [u32; 5] = [0, 100, 0, 300, 0];

/// Whether a file of delays is in use.
pub fn plants_delays(args: &Args) -> bool {
    slows(args) || has_far_receivers(args)
}

/// Whether the paths to some receivers are longer.
fn has_far_receivers(args: &Args) -> bool {
    (args.compare || args.trading.is_on()) && !args.lab
}

/// The lines of the delays file for the receivers with longer paths, and the same delays in words,
/// such as `receiver-2 100 us`.
pub fn far_receivers(args: &Args, settings: &Settings) -> (String, String) {
    let (mut rules, mut words) = (String::new(), Vec::new());
    if has_far_receivers(args) {
        for (node, us) in
            receivers(settings).zip(FAR_US.into_iter().cycle()).filter(|far| far.1 > 0)
        {
            rules.push_str(&format!("* {} {us}\n", node.address));
            words.push(format!("{} {us} us", node.name));
        }
    }
    (rules, words.join(", "))
}

/// Processes of a demo with this many receivers. Each has a host of its own in a lab.
pub fn hosts(args: &Args, receivers: u32) -> u64 {
    let proxies = proxies_per_tree(args, receivers).saturating_mul(args.trees.into());
    let beside =
        u64::from(standbys(args)) + u64::from(args.author) + u64::from(args.gateway.is_some());
    proxies.saturating_add(1 + beside + u64::from(receivers))
}

fn standbys(args: &Args) -> u32 {
    if args.standby { STANDBYS } else { 0 }
}

/// The nodes of the run: the root and its standbys, the proxies of each tree, and the receivers.
pub fn nodes(args: &Args, lab: Option<&Lab>) -> Result<Vec<MulticastNode>, String> {
    let mut nodes: Vec<MulticastNode> = Vec::new();
    let mut add = |name: String, role: RoleName, tree: u32| -> Result<(), String> {
        let id = nodes.len();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let address = match lab {
            Some(lab) => SocketAddr::new(IpAddr::V4(lab.address(id)), LAB_PORT),
            // The root and its standbys need fixed ports, because all processes must find them.
            // Processes that the file of delays names need fixed ports too, and so do processes
            // that probe each other's clocks.
            None if is_root(role) || plants_delays(args) || args.plant_clocks.is_some() => {
                free_address(loopback)?
            }
            None => SocketAddr::new(loopback, 0),
        };
        let http = (lab.is_none() && is_root(role)).then(|| free_address(loopback)).transpose()?;
        let id = NodeId(id as u32);
        nodes.push(MulticastNode { name, id, role, address, http, tree, record: None, from: None });
        Ok(())
    };
    add("root".into(), RoleName::Root, 0)?;
    for i in 1..=standbys(args) {
        add(format!("standby-{i}"), RoleName::Standby, 0)?;
    }
    if args.author {
        add(AUTHOR.into(), RoleName::Author, 0)?;
    }
    let per_tree = proxies_per_tree(args, args.receivers) as usize;
    for tree in 0..args.trees {
        for i in 0..per_tree {
            let number = tree as usize * per_tree + i + 1;
            add(format!("proxy-{number}"), RoleName::Proxy, tree)?;
        }
    }
    for i in 1..=args.receivers {
        add(format!("receiver-{i}"), RoleName::Receiver, 0)?;
    }
    if args.gateway.is_some() {
        add(super::participant::GATEWAY.into(), RoleName::Gateway, 0)?;
    }
    if args.record.is_some() {
        add(super::record::NODE.into(), RoleName::Recorder, 0)?;
    }
    args.fault.iter().try_for_each(|fault| check_fault(fault, &nodes))?;
    Ok(nodes)
}

/// Refuses a fault that reaches no process.
fn check_fault(fault: &DemoFault, nodes: &[MulticastNode]) -> Result<(), String> {
    let name = &fault.name;
    let Some(node) = nodes.iter().find(|node| node.name == *name) else {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let names = names.join(", ");
        return Err(format!("--fault: no process is called {name}; there are {names}"));
    };
    if node.role == RoleName::Recorder && !matches!(fault.harm, Harm::Slow(_) | Harm::Step(_)) {
        return Err(format!(
            "--fault: {name} is a part of the demo's own process, which only slow:{name} and \
             step:{name} can harm"
        ));
    }
    Ok(())
}

fn free_address(loopback: IpAddr) -> Result<SocketAddr, String> {
    evenfall_host::ports::free(loopback).map_err(|e| format!("no free port on loopback: {e}"))
}

fn is_root(role: RoleName) -> bool {
    matches!(role, RoleName::Root | RoleName::Standby)
}

/// The root and its standbys.
pub fn roots(settings: &Settings) -> impl Iterator<Item = &MulticastNode> {
    settings.nodes.iter().filter(|node| is_root(node.role))
}

/// The nodes that release: the receivers, and the gateway.
pub fn receivers(settings: &Settings) -> impl Iterator<Item = &MulticastNode> {
    let does_release = |role| matches!(role, RoleName::Receiver | RoleName::Gateway);
    settings.nodes.iter().filter(move |node| does_release(node.role))
}

/// A key from the system's randomness, in the form of a key file.
pub fn fresh_key() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    evenfall_host::random::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

struct Actor {
    node: MulticastNode,
    child: Child,
    ended: Option<Result<(), String>>,
}

fn start(
    args: &Args,
    node: &MulticastNode,
    lab: Option<&Lab>,
    exchange: Option<&Exchange>,
    lifeline: &Lifeline,
) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
    let role = match node.role {
        RoleName::Root => "root",
        RoleName::Standby => "standby",
        RoleName::Author => "author",
        RoleName::Proxy => "proxy",
        RoleName::Receiver => "receiver",
        RoleName::Gateway => "gateway",
        RoleName::Recorder => "recorder",
        _ => return Err(format!("{} has no role of a demo", node.name)),
    };
    let stderr = File::create(args.dir.join(format!("{}.stderr", node.name)))
        .map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let mut command = Command::new(program);
    command.args(["run", role, "--lifeline", "--name", &node.name, "--config"]);
    command.arg(super::settings_path(&args.dir));
    command.args(args.set.iter().flat_map(|set| ["--set", set.as_str()]));
    if let Some(seat) = exchange.and_then(|exchange| exchange.describe_seat(args, node)) {
        command.args(["--trade", &seat]);
    }
    if let Some(file) = super::signed::key_file(node).filter(|_| args.signed) {
        command.args(["--set", &format!("trust.signing_key_file={file}")]);
    }
    command.stdout(Stdio::null()).stderr(stderr);
    // Ctrl-C on the terminal goes to this process alone, which ends the others in the right order.
    command.process_group(0);
    lifeline.tie(&mut command).map_err(|error| format!("{}: {error}", node.name))?;
    if let Some(lab) = lab {
        lab.inside(node.id.0 as usize, &mut command).map_err(|error| error.to_string())?;
    }
    command.spawn().map_err(|error| format!("{}: {error}", node.name))
}

impl Actor {
    /// Looks whether the process has ended.
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
pub struct PlayedFeed {
    /// The processes that failed for another reason than a planted fault.
    pub outcome: Result<(), String>,
    /// The faults that were planted, for the timeline.
    pub events: Vec<RunEvent>,
    /// The faults that were not planted, a sentence each.
    pub missed: Vec<String>,
    /// Whether a signal asked this program to stop.
    pub stopped: bool,
    /// Whether the rehearsal was over, so that there is something to judge.
    pub is_fed: bool,
}

/// The running processes, and the faults that are planted in them.
struct Stage<'a> {
    args: &'a Args,
    lab: Option<&'a Lab>,
    exchange: Option<&'a Exchange>,
    settings: &'a Settings,
    actors: Vec<Actor>,
    faults: Vec<Planned>,
    delays_file: Option<PathBuf>,
    /// The rules of injected delays so far.
    delays: String,
    events: Vec<RunEvent>,
    missed: Vec<String>,
    /// When the tree was first seen to stand.
    stood: Option<Instant>,
    /// Time by which all processes are killed, after a signal asked this program to stop.
    stop_by: Option<Instant>,
    /// The lifeline that holds the processes.
    lifeline: Lifeline,
}

/// Starts all processes, plants the faults, and waits until all have ended.
pub fn play(
    args: &Args,
    settings: &Settings,
    lab: Option<&Lab>,
    exchange: Option<&Exchange>,
    messages: u64,
    progress: &Progress,
) -> Result<PlayedFeed, String> {
    let mut stage = Stage {
        args,
        lab,
        exchange,
        settings,
        actors: Vec::new(),
        faults: Vec::new(),
        delays_file: None,
        delays: far_receivers(args, settings).0,
        events: Vec::new(),
        missed: Vec::new(),
        stood: None,
        stop_by: None,
        lifeline: Lifeline::new().map_err(|error| format!("a pipe: {error}"))?,
    };
    let started = Instant::now();
    stage.start(progress)?;
    progress.stage("waiting until the tree stands", None);
    let sent = sent_by(roots(settings).filter_map(|root| root.http).collect());
    let (mut is_rehearsing, mut is_feeding) = (false, false);
    while stage.is_led() {
        std::thread::sleep(LOOK);
        stage.turn();
        let Some(stood) = stage.stood else { continue };
        if !mem::replace(&mut is_rehearsing, true) {
            let took = stood.duration_since(started).as_secs_f64();
            progress.note(&format!("the tree stands after {took:.1} s"));
            progress.stage("rehearsing: the root learns how long messages take", None);
        }
        if stage.is_fed() {
            if !mem::replace(&mut is_feeding, true) {
                progress.stage("sending the feed", Some(messages));
            }
            progress.at(sent.load(Relaxed), messages);
        }
    }
    let outcome = stage.wind_up();
    for Planned { name, act, .. } in mem::take(&mut stage.faults) {
        stage.note_missed(&name, act, "the run was over before");
    }
    let (stopped, is_fed) = (stage.stop_by.is_some(), stage.is_fed());
    let (events, missed) = (mem::take(&mut stage.events), mem::take(&mut stage.missed));
    Ok(PlayedFeed { outcome, events, missed, stopped, is_fed })
}

/// No process of the demo outlives the stage, in whatever way the stage ends.
impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.signal_all(Signal::Kill);
        for actor in self.actors.iter_mut().filter(|actor| actor.ended.is_none()) {
            // The process was killed, so its exit status tells nothing.
            drop(actor.child.wait());
        }
    }
}

impl Stage<'_> {
    fn start(&mut self, progress: &Progress) -> Result<(), String> {
        // The recorder runs in this process.
        let nodes = self.settings.nodes.iter().filter(|node| node.name != super::record::NODE);
        let count = nodes.clone().count();
        progress.stage(&format!("starting {count} processes"), Some(count as u64));
        for node in nodes {
            if interrupt::raised() {
                return Err("stopped while its processes were started; nothing was sent".into());
            }
            let child = start(self.args, node, self.lab, self.exchange, &self.lifeline)?;
            self.actors.push(Actor { node: node.clone(), child, ended: None });
            progress.at(self.actors.len() as u64, count as u64);
        }
        Ok(())
    }

    fn roots(&self) -> impl Iterator<Item = &Actor> {
        self.actors.iter().filter(|actor| is_root(actor.node.role))
    }

    /// Whether a planted fault may end this process.
    fn is_hurt(&self, actor: &Actor) -> bool {
        let of = |fault: &DemoFault| fault.name == actor.node.name && fault.is_excuse();
        self.args.fault.iter().any(of)
    }

    /// Whether the roots have failed: all of them, or one without a planted fault.
    fn has_failed(&self) -> bool {
        let failed = |root: &Actor| matches!(root.ended, Some(Err(_)));
        self.roots().all(failed) || self.roots().any(|root| failed(root) && !self.is_hurt(root))
    }

    /// Whether the roots may still send.
    fn is_led(&self) -> bool {
        let has_ended = self.roots().any(|root| root.ended == Some(Ok(())));
        !has_ended && !self.has_failed() && !self.is_overdue()
    }

    /// Whether the rehearsal was over when a signal stopped this run, if one did.
    fn is_fed(&self) -> bool {
        let until = self.stop_by.map_or_else(Instant::now, |by| by - STOP_MAX);
        self.stood.is_some_and(|stood| until >= stood + self.settings.course.rehearsal())
    }

    fn is_overdue(&self) -> bool {
        self.stop_by.is_some_and(|by| Instant::now() >= by)
    }

    /// Looks at the processes, plants the faults that are due, and obeys signals.
    fn turn(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.look(self.args));
        // The root writes the file when the tree stands, and feeds after the rehearsal.
        if self.stood.is_none() && self.settings.run.dir.join(RUN_FILE).exists() {
            let now = Instant::now();
            self.stood = Some(now);
            self.faults = plan(self.args, now + self.settings.course.rehearsal());
            self.delays_file = self.settings.inject.file.clone();
        }
        self.plant();
        if interrupt::raised() && self.stop_by.is_none() {
            self.stop_by = Some(Instant::now() + STOP_MAX);
            self.stop();
        }
    }

    /// Ends the run in order: the root tells the other processes where the stream ends.
    fn stop(&mut self) {
        for planned in mem::take(&mut self.faults) {
            // A paused process must continue before it can end.
            if planned.act == Act::Signal(Signal::Continue) {
                self.signal(&planned.name, Signal::Continue);
            }
        }
        if self.is_fed() {
            // The root that leads needs the votes of the others to end the feed.
            for root in self.roots().filter(|root| root.ended.is_none()) {
                send(root.child.id(), Signal::Terminate);
            }
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
        while self.alive() && Instant::now() < until && !self.is_overdue() {
            std::thread::sleep(LOOK);
            self.turn();
        }
    }

    /// Waits for the other processes, then ends them. Returns the processes that failed.
    fn wind_up(&mut self) -> Result<(), String> {
        let is_planted = self.roots().any(|root| self.is_hurt(root));
        let patience = match (self.has_failed(), is_planted) {
            // Half of the time that is left, because proxies stay for a while to repair unless they
            // are told to end.
            _ if let Some(by) = self.stop_by => by.saturating_duration_since(Instant::now()) / 2,
            // The time in which the others should notice the root's death by themselves.
            (true, true) => self.settings.multicast.membership.root_timeout + AFTER_ROOT,
            (true, false) => Duration::ZERO,
            (false, _) => AFTER_ROOT,
        };
        self.wait(patience);
        if self.alive() && !self.is_overdue() {
            self.signal_all(Signal::Continue);
            self.signal_all(Signal::Terminate);
            self.wait(INSIST);
        }
        for actor in self.actors.iter_mut().filter(|actor| actor.ended.is_none()) {
            send(actor.child.id(), Signal::Kill);
            if let Ok(status) = actor.child.wait() {
                actor.ended = Some(actor.verdict(self.args, status));
            }
        }
        if self.stop_by.is_some() {
            // A process that did not end in order was told to stop early.
            return Ok(());
        }
        let bystanders = self.actors.iter().filter(|actor| !self.is_hurt(actor));
        let mut failures = bystanders.filter_map(|actor| actor.ended.as_ref()?.as_ref().err());
        let Some(first) = failures.next() else { return Ok(()) };
        let more = failures.count();
        let logs = self.args.dir.display();
        let rest = if more > 0 { format!(" (and {more} more failed)") } else { String::new() };
        Err(format!("{first}{rest}; their messages are in {logs}/*.stderr"))
    }

    /// Plants the faults that are due.
    fn plant(&mut self) {
        while self.faults.first().is_some_and(|planned| planned.at <= Instant::now()) {
            let Planned { name, act, .. } = self.faults.remove(0);
            if act == Act::Start {
                self.start_again(&name);
                continue;
            }
            let actor = self.actors.iter().find(|actor| actor.node.name == name);
            let is_over = actor.is_some_and(|actor| actor.ended.is_some());
            let Some(node) = self.settings.nodes.iter().find(|node| node.name == name) else {
                continue;
            };
            if is_over {
                self.note_missed(&name, act, "it had ended before");
                continue;
            }
            let (node, address) = (node.id, node.address);
            let (kind, done) = match act {
                Act::Signal(signal) => {
                    self.signal(&name, signal);
                    match signal {
                        Signal::Kill => ("fault", "killed".to_owned()),
                        Signal::Stop => ("fault", "paused".to_owned()),
                        Signal::Continue | Signal::Terminate => ("resume", "let go on".to_owned()),
                        Signal::Reload => ("fault", "told to attach its programs anew".to_owned()),
                    }
                }
                // The process is started above, because it has ended.
                Act::Start => continue,
                Act::Slow(by) => match self.slow(address, by) {
                    Ok(()) => ("fault", format!("slowed by {by:?} each way")),
                    Err(error) => ("fault", format!("not slowed: {DELAYS_FILE}: {error}")),
                },
                Act::Step(by_ns) => {
                    let file = self.args.dir.join(steps_file(&name));
                    let shown = file.display();
                    match fs::write(&file, by_ns.to_string()) {
                        Ok(()) => ("fault", format!("given a clock that stepped by {by_ns} ns")),
                        Err(error) => ("fault", format!("not given a step: {shown}: {error}")),
                    }
                }
            };
            self.events.push(RunEvent {
                at_ns: self.now_ns(),
                kind: kind.to_owned(),
                node: Some(node),
                text: format!("{name} was {done} (--fault)"),
            });
        }
    }

    /// Notes a fault that was not planted, so that nobody takes the run for one with the fault.
    fn note_missed(&mut self, name: &str, act: Act, why: &str) {
        if let Some(harm) = act.harm_in_words() {
            self.missed.push(format!("--fault: {name} was not {harm}, because {why}"));
        }
    }

    /// Starts a process again that was killed.
    fn start_again(&mut self, name: &str) {
        let found = self.actors.iter_mut().find(|actor| actor.node.name == name);
        let Some(actor) = found else { return };
        let text = match start(self.args, &actor.node, self.lab, self.exchange, &self.lifeline) {
            Ok(child) => {
                // The process that was killed is waited for, so that it leaves no zombie.
                drop(mem::replace(&mut actor.child, child).wait());
                actor.ended = None;
                format!("{name} was started again (--fault)")
            }
            Err(error) => format!("{name} was not started again: {error}"),
        };
        let node = Some(actor.node.id);
        self.events.push(RunEvent { at_ns: self.now_ns(), kind: "resume".to_owned(), node, text });
    }

    /// The present time on the clock of the report. With planted clocks this is the true clock,
    /// which is the host's monotonic clock.
    fn now_ns(&self) -> u64 {
        let now = MonotonicClock::now();
        let Settings { run, clock, .. } = self.settings;
        if run.clock == "same-host" || clock.is_planted() {
            return now.nanos();
        }
        let ahead = SyncSource::Realtime.read().map_or(0, |reading| reading.offset_ns);
        now.nanos().saturating_add_signed(ahead)
    }

    /// Delays all datagrams to and from an address by this much, from the processes' next look at
    /// the file on.
    fn slow(&mut self, address: SocketAddr, by: Duration) -> std::io::Result<()> {
        let Some(file) = &self.delays_file else { return Ok(()) };
        let us = by.as_micros();
        self.delays.push_str(&format!("{address} * {us}\n* {address} {us}\n"));
        let next = file.with_extension("next");
        fs::write(&next, &self.delays)?;
        fs::rename(next, file)
    }
}

/// An action on a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Signal(Signal),
    /// The process is started again.
    Start,
    Slow(Duration),
    Step(i64),
}

impl Act {
    /// What the process would be after this harm; `None` for an action that harms nothing.
    fn harm_in_words(self) -> Option<&'static str> {
        match self {
            Self::Signal(Signal::Kill) => Some("killed"),
            Self::Signal(Signal::Stop) => Some("paused"),
            Self::Signal(Signal::Reload) => Some("told to attach its programs anew"),
            Self::Signal(Signal::Continue | Signal::Terminate) | Self::Start => None,
            Self::Slow(_) => Some("slowed"),
            Self::Step(_) => Some("given a clock that stepped"),
        }
    }
}

/// A planned action on a process, with its time.
struct Planned {
    at: Instant,
    name: String,
    act: Act,
}

/// The planned actions, in order of time.
fn plan(args: &Args, first_message: Instant) -> Vec<Planned> {
    let mut planned = Vec::new();
    for fault in &args.fault {
        let at = first_message + fault.at;
        let mut add = |at, act| planned.push(Planned { at, name: fault.name.clone(), act });
        match fault.harm {
            Harm::Kill => {
                add(at, Act::Signal(Signal::Kill));
                if fault.name == AUTHOR {
                    add(at + AUTHOR_AWAY, Act::Start);
                }
            }
            Harm::Reload => add(at, Act::Signal(Signal::Reload)),
            Harm::Slow(by) => add(at, Act::Slow(by)),
            Harm::Step(by_ns) => add(at, Act::Step(by_ns)),
            Harm::Pause(pause) => {
                add(at, Act::Signal(Signal::Stop));
                add(at + pause, Act::Signal(Signal::Continue));
            }
        }
    }
    planned.sort_by_key(|planned| planned.at);
    planned
}

/// The number of messages that the roots report as sent, about every second. A thread of its own
/// asks, because a paused root answers late and signals must be obeyed meanwhile. The thread ends
/// when the number has no reader any more.
fn sent_by(roots: Vec<SocketAddr>) -> Arc<AtomicU64> {
    let sent = Arc::new(AtomicU64::new(0));
    let kept = Arc::downgrade(&sent);
    let ask = move || {
        while let Some(sent) = kept.upgrade() {
            for root in &roots {
                let status = stat::fetch(*root).unwrap_or_default();
                let trees = status.as_array().into_iter().flatten();
                let count: u64 = trees.filter_map(|tree| tree["messages"].as_u64()).sum();
                sent.fetch_max(count, Relaxed);
            }
            drop(sent);
            std::thread::sleep(PROGRESS);
        }
    };
    std::thread::spawn(ask);
    sent
}
