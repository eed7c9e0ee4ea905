//! The root as a process. It replays or relays the feed into its trees, and records what it sent.

mod awaited;
#[cfg(feature = "roles")]
mod by_letter;
mod lead;
mod letters;
mod live_page;
mod page;
mod queue;
mod rehearsal;
mod run_ledger;

use std::collections::VecDeque;
use std::time::Duration;

use evenfall_clock_service::Standing;
use evenfall_core::{MasterKey, SyncTime, Timestamp, TrafficClass};
use evenfall_feed_formats::FeedMessage;
use evenfall_feed_formats::sharding::trees_of;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{interrupt, procstat};
use evenfall_multicast_machine::{Config, Mode, PublishError, Root, RootRun, RootStatus};
use evenfall_multicast_sessions::ConsensusError;
use serde::Serialize;

use self::lead::VoterDecisions;
use self::live_page::{ClockPage, LivePage, MEMBERS_FAST_MAX, Moment, Phase};
use self::run_ledger::RunLedger;
use super::{RoleError, RoleProcess, random};
use crate::settings::{MulticastNode, Settings};
use evenfall_feed_service::IntakeError;
use evenfall_feed_service::intake::{FeedStatus, Intake, Next};
use evenfall_multicast_sessions::{ReplicatedRoot, ReplicatedRootEvent, VoterConfig};
use evenfall_runtime::process::PortTaken;

/// Messages that are published before arrivals and departures get their turn.
const PUBLISH_BATCH: usize = 256;
/// How long the root stays after the last receiver finished, for repairs under way.
const LINGER: Duration = Duration::from_millis(200);
/// How long receivers have to finish after a signal.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often the root prints the nodes that it waits for.
const SAY_AWAITED_EVERY: Duration = Duration::from_secs(5);
/// Time from the tree's standing until the first message is due.
const LEAD: Duration = Duration::from_millis(20);

/// The summary of a root.
#[derive(Clone, Debug, Serialize)]
pub struct RootSummary {
    /// Name of the root.
    pub name: String,
    /// Whether this root sent the feed at the end. A root without standbys always does.
    pub leads: bool,
    /// Messages of the feed that were sent, by this root or by the roots that led before.
    pub messages: u64,
    /// Hash of the sent messages, in order, over all trees.
    pub content_hash: String,
    /// Counters of the root, one entry per tree.
    pub trees: Vec<RootStatus>,
    /// Times that a message had to wait because the send queue was full.
    pub held_back: u64,
    /// Copies of live frames that left, to all children.
    pub copies: u64,
    /// Copies of `copies` that the kernel made.
    pub copies_by_port: u64,
    /// The kind of its port, and why.
    pub port: PortTaken,
    /// Datagrams that were no messages of the protocol.
    pub malformed: u64,
    /// Largest resident memory seen, bytes.
    pub resident_bytes_max: u64,
    /// Figures of a live feed; `None` for a file.
    pub feed: Option<FeedStatus>,
    /// The last state of the mesh of clocks; `None` when each node used its host's clock.
    pub clock: Option<Standing>,
    /// Why the root ended.
    pub ended: String,
}

/// The run under way.
struct Run<'a> {
    settings: &'a Settings,
    node: &'a MulticastNode,
    intake: &'a mut dyn Intake,
    process: RoleProcess,
    roots: Vec<ReplicatedRoot>,
    /// The events of the roots since the last look, each with its time and the number of its tree.
    pending_events: VecDeque<(Timestamp, usize, ReplicatedRootEvent)>,
    decisions: VoterDecisions,
    ledger: RunLedger,
    held_back: u64,
    /// Trees that have taken the present message, when the message goes to all trees.
    published: u32,
    /// Rehearsed frames so far.
    rehearsed: usize,
    started_unix_s: u64,
    phase: Phase,
    /// When the pages of a large tree are made next.
    pages_at: Timestamp,
}

/// How often the pages of a large tree are made.
const PAGES_EVERY: Duration = Duration::from_secs(1);

/// Seconds since 1970 by the clock of this host. The result is 1 when the clock is before 1970.
fn unix_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs())
}

/// A run of the root. The second of the start orders it after earlier runs. Its random number tells
/// it from a run that began in the same second, or under a clock that was set back.
fn new_run() -> Result<RootRun, RoleError> {
    Ok(RootRun::new(unix_s() as u32, random()?))
}

impl<'a> Run<'a> {
    fn start(
        settings: &'a Settings,
        node: &'a MulticastNode,
        intake: &'a mut dyn Intake,
    ) -> Result<Self, RoleError> {
        // A root that receivers would refuse must not listen.
        let signer = settings.trust.load_signer(settings.key()?.as_ref())?;
        let mut process = RoleProcess::unlogged(settings, node)?;
        intake.attach(process.base.port.as_ref());
        let trees = settings.course.trees;
        let key = process.base.key.clone();
        let run = new_run()?;
        let voters = settings.voters().iter().map(|node| (node.id, node.address)).collect();
        let seed = u64::from_le_bytes(random()?);
        let master = process.master_key();
        // With node keys, the roots vote under a key that no other node can derive.
        let votes = master.as_ref().map(MasterKey::roots).or_else(|| key.clone());
        let ballot = VoterConfig { me: node.id, voters, seed, key: votes };
        if ballot.voters.is_empty() {
            process.begin_log(settings, node)?;
        }
        let new_root = |stream| -> Result<ReplicatedRoot, ConsensusError> {
            let membership = awaited::expected(settings, stream);
            let config = Config { membership, ..settings.multicast };
            let now = MonotonicClock::now();
            let root = Root::new(config, node.id, stream, run, key.as_ref(), now);
            let root =
                root.admitting(awaited::guests(settings, stream, key.is_some(), master.is_some()));
            let root = match &master {
                Some(master) => root.with_node_keys(master.clone(), settings.course.key_lifetime),
                None => root,
            };
            let root = match &signer {
                Some(signer) => root.sign_frames(signer.clone()),
                None => root,
            };
            let candidate = match ballot.voters.is_empty() {
                true => ReplicatedRoot::alone(root),
                false => ReplicatedRoot::new(root, run, &ballot)?,
            };
            Ok(match letters::authors(settings).is_empty() {
                true => candidate,
                false => {
                    let ingress =
                        letters::open_ingress(settings, key.clone(), master.clone(), seed);
                    candidate.receiving(ingress, run)
                }
            })
        };
        let roots = (0..trees).map(new_root).collect::<Result<_, _>>();
        letters::warn_of_open_ports(settings, node, key.is_some());
        let ledger = RunLedger::new(settings, node.id, process.base.clock());
        let mut run = Self {
            settings,
            node,
            intake,
            process,
            roots: roots.map_err(|error| RoleError::Part(Box::new(error)))?,
            pending_events: VecDeque::new(),
            decisions: VoterDecisions::default(),
            ledger,
            held_back: 0,
            published: 0,
            rehearsed: 0,
            started_unix_s: unix_s(),
            phase: Phase::default(),
            pages_at: Timestamp::ZERO,
        };
        let Self { process, roots, pending_events, .. } = &mut run;
        process.keep_time(roots, true, &mut listen(pending_events))?;
        run.drain_events()?;
        Ok(run)
    }

    /// Does one turn and all housekeeping that is due. `false` when a signal came, or another root
    /// leads now.
    fn turn(&mut self, until: Option<Timestamp>) -> Result<bool, RoleError> {
        let Self { process, roots, pending_events, .. } = self;
        process.keep_time(roots, false, &mut listen(pending_events))?;
        self.ledger.clock = process.base.clock();
        process.base.driver.turn(
            roots,
            process.base.port.as_mut(),
            until,
            &mut listen(pending_events),
        )?;
        self.drain_events()?;
        for record in self.ledger.records.drain(..) {
            self.process.note(record);
        }
        if self.process.housekeeping_due() {
            self.housekeep()?;
            self.check_majority()?;
        }
        Ok(!interrupt::raised() && !self.decisions.is_lost)
    }

    fn each_root(&mut self, input: impl Fn(&mut Root, Timestamp)) -> Result<(), RoleError> {
        (0..self.roots.len()).try_for_each(|tree| self.on_root(tree, &input))
    }

    fn on_root<T>(
        &mut self,
        tree: usize,
        input: impl FnOnce(&mut Root, Timestamp) -> T,
    ) -> Result<T, RoleError> {
        self.on_candidate(tree, |candidate, now| candidate.input(now, |root| input(root, now)))
    }

    /// Hands a root one input. The events of the root are taken at the next turn.
    fn on_candidate<T>(
        &mut self,
        tree: usize,
        input: impl FnOnce(&mut ReplicatedRoot, Timestamp) -> T,
    ) -> Result<T, RoleError> {
        let Self { process, roots, pending_events, .. } = self;
        let (root, port) = (&mut roots[tree], process.base.port.as_mut());
        Ok(process.base.driver.input(tree, root, port, input, &mut listen(pending_events))?)
    }

    fn statuses(&self) -> Vec<RootStatus> {
        self.roots.iter().map(|candidate| candidate.root().status()).collect()
    }

    fn housekeep(&mut self) -> Result<(), RoleError> {
        while let Some((path, value)) = self.process.base.telemetry.order() {
            if path == super::TO_SHUT_OUT.path {
                self.shut_out(&value)?;
            } else if let Ok(mode) = super::mode(&value) {
                // The word was checked when the order was taken.
                self.change_mode(mode)?;
            }
        }
        self.publish_pages();
        if let Some(standing) = self.process.standing() {
            self.ledger.clocks(MonotonicClock::now(), &standing);
        }
        self.keep_info()
    }

    /// Takes the node of this name out for good, so that it gets no key of the run any more.
    fn shut_out(&mut self, name: &str) -> Result<(), RoleError> {
        let Some(node) = self.settings.nodes.iter().find(|node| node.name == name) else {
            tracing::warn!("{}: no node is called {name}; nobody is shut out", self.node.name);
            return Ok(());
        };
        tracing::info!("{}: {name} is shut out", self.node.name);
        self.each_root(|root, now| root.shut_out(now, node.id))
    }

    /// Publishes the state of the run, where somebody can read it.
    fn publish_pages(&mut self) {
        let now = MonotonicClock::now();
        if !self.process.base.telemetry.is_served() || now < self.pages_at {
            return;
        }
        let moment = Moment {
            settings: self.settings,
            node: self.node,
            leads: self.leads(),
            phase: self.phase,
            events: &self.ledger.events,
            now: self.ledger.event_time(now),
        };
        let roots = || self.roots.iter().map(ReplicatedRoot::root);
        let pages: Vec<LivePage> = roots().map(|root| LivePage::of(root, &moment)).collect();
        let ill = self.leads() && !self.ledger.formed();
        let ill = ill.then(|| "waiting for receivers".into());
        let ill = ill.or_else(|| self.intake.ill(now));
        let mut page = page::metrics(&self.process.base.name, self.leads(), roots());
        let help = "Datagrams that were no messages.";
        // A datagram that is no message names no tree.
        page.counter("malformed_datagrams_total", help, 0, self.process.base.refused());
        for (tree, candidate) in (0..).zip(&self.roots).filter(|(_, root)| root.is_voter()) {
            page::put_repeated_votes(&mut page, tree, candidate.repeated_votes());
        }
        self.intake.status().iter().for_each(|feed| feed.show(&mut page));
        let clock = self.process.standing().map(|standing| ClockPage::of(standing, &pages));
        self.process.publish_with(pages, clock, ill, move |_| page);
        let members: usize = self
            .roots
            .iter()
            .map(|candidate| {
                let status = candidate.root().status();
                status.receivers + status.proxies
            })
            .sum();
        if members > MEMBERS_FAST_MAX {
            self.pages_at = now + PAGES_EVERY;
        }
    }

    fn change_mode(&mut self, mode: Mode) -> Result<(), RoleError> {
        self.ledger.event(MonotonicClock::now(), "mode", None, format!("{mode} was ordered"));
        self.each_root(|root, now| root.set_mode(now, mode))
    }

    /// Waits for the first tree, then rehearses, unless the feed is under way. `false` when a
    /// signal came, or another root leads now.
    fn form(&mut self) -> Result<bool, RoleError> {
        let patience = self.settings.course.finish_timeout;
        let give_up = MonotonicClock::now() + patience;
        self.phase = Phase::Forming;
        let mut say_at = MonotonicClock::now() + SAY_AWAITED_EVERY;
        while !self.ledger.formed() {
            if self.decisions.begun.is_some() && MonotonicClock::now() >= give_up {
                // All receivers may be gone because they have the whole feed.
                let receivers = self.settings.count_leaves();
                return Err(RoleError::Unfinished { finished: 0, receivers, waited: patience });
            }
            if !self.turn(Some(say_at))? || self.intake.is_cancelled() {
                return Ok(false);
            }
            let now = MonotonicClock::now();
            if now >= say_at {
                say_at = now + SAY_AWAITED_EVERY;
                if let Some(words) = awaited::missing(self.settings, &self.roots) {
                    tracing::info!("{}: {words}", self.process.base.name);
                }
            }
        }
        self.say_tree();
        self.write_info()?;
        if self.decisions.begun.is_some() {
            return Ok(true);
        }
        let warm_up = self.settings.course.rehearsal();
        self.phase = Phase::Rehearsing;
        let name = &self.process.base.name;
        tracing::info!("{name}: rehearses for {warm_up:?}: empty frames show how long paths take");
        let settled = warm_up / 5;
        if !self.rehearse_for(settled)? {
            return Ok(false);
        }
        self.each_root(Root::forget_warm_up)?;
        self.rehearse_for(warm_up - settled)
    }

    fn say_tree(&self) {
        let all = self.statuses();
        let proxies: usize = all.iter().map(|tree| tree.proxies).sum();
        tracing::info!(
            "{}: the tree stands: {} receivers and recorders, {proxies} proxies, {} trees, mode {}",
            self.process.base.name,
            all.iter().map(|tree| tree.receivers).max().unwrap_or(0),
            all.len(),
            self.settings.multicast.mode
        );
    }

    /// When the first message is due. The roots agree on it once.
    fn begin(&mut self) -> Result<Timestamp, RoleError> {
        let clock = self.process.base.clock();
        if let Some(at) = self.decisions.begun {
            return Ok(clock.local(at));
        }
        let start = MonotonicClock::now() + LEAD;
        self.on_candidate(0, |candidate, now| candidate.begin(now, clock.sync(start)))?;
        Ok(start)
    }

    /// The next message: one that this root has published in vain, or else the next of the feed.
    fn next(&mut self) -> Result<Next, RoleError> {
        if let Some(again) = self.ledger.queue(0).again() {
            let due = self.process.base.clock().local(again.scheduled);
            return Ok(Next::Message(again.message.clone(), due));
        }
        let next = self.intake.next(MonotonicClock::now());
        next.map_err(|error| IntakeError::Broken { error, sent: self.ledger.published() }.into())
    }

    /// Sends the whole feed, each message at its time. `false` when a signal came, or another root
    /// leads now.
    fn send_feed(&mut self) -> Result<bool, RoleError> {
        let start = self.begin()?;
        self.phase = Phase::Feeding;
        tracing::info!("{}: the feed begins", self.process.base.name);
        if self.has_authors() {
            return self.send_letters();
        }
        self.intake.begin(start, self.process.base.port.as_mut())?;
        loop {
            let mut until = None;
            let mut published = 0;
            while until.is_none() {
                let is_again = self.ledger.queue(0).again().is_some();
                match self.next()? {
                    Next::Message(_, due) if published == PUBLISH_BATCH => until = Some(due),
                    Next::Message(message, due) => {
                        let scheduled = self.process.base.clock().sync(due);
                        if publish(self, &message, scheduled)? {
                            if !is_again {
                                self.intake.take();
                            }
                            published += 1;
                        } else {
                            // The message is openly late: its latency counts from the time at which
                            // it was due.
                            self.held_back += 1;
                            until = Some(MonotonicClock::now());
                        }
                    }
                    Next::NotBefore(at) => until = Some(at),
                    Next::End => break,
                }
            }
            self.each_root(Root::flush)?;
            self.report_events();
            if until.is_none() {
                return Ok(true);
            }
            if !self.turn(until)? {
                return Ok(false);
            }
        }
    }

    /// Records the feed's news, and prints it.
    fn report_events(&mut self) {
        for (kind, text) in self.intake.news() {
            tracing::warn!("{}: {text}", self.process.base.name);
            self.ledger.event(MonotonicClock::now(), kind, None, text);
        }
    }

    /// Tells all receivers where the stream ends, and waits until all have it. Sent messages shall
    /// arrive, so a first signal does not cut the wait short. A second signal does.
    fn finish(&mut self, waited: Duration) -> Result<(), RoleError> {
        self.process.base.port.watch(Vec::new());
        self.phase = Phase::Ending;
        self.each_root(Root::finish)?;
        let give_up = MonotonicClock::now() + waited;
        let mut ended = Ok(());
        while !self.ledger.finished() && !self.decisions.is_lost {
            self.turn(Some(give_up))?;
            if MonotonicClock::now() >= give_up {
                let all = self.statuses();
                let finished = all.iter().map(|tree| tree.tally.finished).min().unwrap_or(0);
                let receivers = all[0].receivers;
                ended = Err(RoleError::Unfinished { finished, receivers, waited });
                break;
            }
        }
        self.close()?;
        if ended.is_ok() {
            self.drain()?;
        }
        ended
    }

    /// Stays for a moment, for repairs and votes under way.
    fn drain(&mut self) -> Result<(), RoleError> {
        let end = MonotonicClock::now() + LINGER;
        while MonotonicClock::now() < end {
            self.turn(Some(end))?;
        }
        Ok(())
    }

    /// Writes the description of the run when the tree stands, and again at the end. A root that is
    /// killed therefore leaves a description by which the run can be judged.
    fn write_info(&self) -> Result<(), RoleError> {
        if !self.settings.run.log {
            return Ok(());
        }
        let dir = &self.settings.run.dir;
        let (memberships, events) = (self.ledger.memberships.clone(), self.ledger.events.clone());
        let (feed, started) = (self.intake.title(), self.started_unix_s);
        let info = page::run_info(self.settings, feed, started, memberships, events);
        Ok(info.write(dir)?)
    }

    fn end(mut self, ended: Result<&str, RoleError>) -> Result<RootSummary, RoleError> {
        self.housekeep()?;
        let (counters, live) = (*self.process.base.port.counters(), TrafficClass::Live as usize);
        let summary = RootSummary {
            name: self.process.base.name.clone(),
            leads: self.leads(),
            messages: self.ledger.hash.messages(),
            content_hash: self.ledger.hash.finish_hex(),
            trees: self.statuses(),
            held_back: self.held_back,
            copies: counters.sent[live],
            copies_by_port: counters.sent_by_kernel[live],
            port: self.process.base.port_taken.clone(),
            malformed: self.process.base.refused(),
            resident_bytes_max: procstat::resident_bytes_max(),
            feed: self.intake.status(),
            clock: self.process.standing(),
            ended: ended.as_ref().map_or_else(ToString::to_string, ToString::to_string),
        };
        let sum = |count: fn(&RootStatus) -> u64| summary.trees.iter().map(count).sum::<u64>();
        if summary.leads {
            tracing::info!(
                "{}: {}: {} messages sent; the {} receivers at the end report {} released, \
                 {} late, {} lost",
                summary.name,
                summary.ended,
                summary.messages,
                // The root has no counts of receivers that have left.
                summary.trees.iter().map(|tree| tree.tally.receivers).max().unwrap_or(0),
                sum(|tree| tree.tally.released),
                sum(|tree| tree.tally.late),
                sum(|tree| tree.tally.lost)
            );
            self.write_info()?;
        } else {
            let RootSummary { name, ended, messages, .. } = &summary;
            tracing::info!("{name}: {ended}: another root led; {messages} messages were agreed");
        }
        self.process.end(self.settings, &summary)?;
        ended.map(|_| summary)
    }
}

/// Keeps what roots tell until the run hears it.
fn listen(
    pending_events: &mut VecDeque<(Timestamp, usize, ReplicatedRootEvent)>,
) -> impl FnMut(&ReplicatedRoot, Timestamp, ReplicatedRootEvent) {
    move |candidate, now, event| {
        pending_events.push_back((now, candidate.root().stream() as usize, event))
    }
}

/// Hands a message to its tree, or to every tree when the message concerns all keys. `false` when a
/// tree has no room. The next call continues with that tree.
fn publish(
    run: &mut Run<'_>,
    message: &FeedMessage,
    scheduled: SyncTime,
) -> Result<bool, RoleError> {
    let trees = trees_of(message.shard_key, run.settings.course.trees);
    for tree in trees.skip(run.published as usize) {
        if !publish_by(run, tree as usize, message, scheduled)? {
            return Ok(false);
        }
        run.published += 1;
    }
    run.published = 0;
    Ok(true)
}

fn publish_by(
    run: &mut Run<'_>,
    tree: usize,
    message: &FeedMessage,
    scheduled: SyncTime,
) -> Result<bool, RoleError> {
    match run.on_root(tree, |root, now| root.publish(now, message.format, &message.bytes))? {
        Ok(_) => {
            run.ledger.queue(tree).give(message, scheduled);
            Ok(true)
        }
        Err(PublishError::Full) => Ok(false),
        Err(why) => Err(RoleError::Message { index: message.index, why }),
    }
}

/// Runs the root on the feed of its settings until the feed has been sent and all receivers have
/// it, or a signal comes.
///
/// # Errors
/// [`RoleError`]. A damaged feed is reported as an error after all readable messages were sent and
/// received.
#[cfg(feature = "roles")]
pub fn run(settings: &Settings, node: &MulticastNode) -> Result<RootSummary, RoleError> {
    if let Some(mut by_letter) = by_letter::ByLetter::of(settings) {
        return run_with(settings, node, &mut by_letter);
    }
    // The feed is opened first, so that no node waits for a feed that is missing.
    let mut intake =
        evenfall_feed_service::intake::open(&settings.feed, &settings.run, &settings.io)?;
    run_with(settings, node, &mut *intake)
}

/// Runs the root on this intake.
pub(crate) fn run_with(
    settings: &Settings,
    node: &MulticastNode,
    intake: &mut dyn Intake,
) -> Result<RootSummary, RoleError> {
    let mut run = Run::start(settings, node, intake)?;
    let ended = run.play();
    run.end(ended)
}
