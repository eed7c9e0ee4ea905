//! A measured run.
//!
//! Times that compare two hosts (overall latency, windows) are the simulator's true time, so that
//! the error of the hosts' clocks shows in the figures. Release lateness is measured by the
//! receiver's own clock, by which the receiver promised its deadline.

use core::time::Duration;

use evenfall_core::{ClockError, Format, SyncTime, nearest_rank};
use evenfall_multicast_machine::{
    PublishError, ReceiverEvent, Release, Replacement, Root, RootEvent, RootStatus,
};
use evenfall_multicast_report::sample::Sample;
use evenfall_multicast_report::{
    Config as LedgerConfig, Flags, Ledger, LedgerOutcome, Lost, Released, Results, SentMessage,
    Series,
};
use evenfall_sim::{Action, Cloud, NodeIndex, Observer, Seen, SimTime, World, WorldTally};
use serde::Serialize;

use super::cast::{DueTimes, FeedPace, message};
use super::keepers::{self, ClockErrors, Keepers};
use super::node::{self, CampaignNode, NodeEvent};
use super::params::{Layout, OverlayParams};

/// The course of a frame that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCourse {
    /// When it was made, from the first message.
    pub at: Duration,
    /// How long it was to be held.
    pub hold: Duration,
    /// Whether a receiver got it after its deadline.
    pub late: bool,
    /// Messages in it.
    pub messages: u16,
    /// How long it took to the slowest receiver that has it, by the clocks of the hosts.
    pub took: Duration,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
pub struct OverlayRun {
    /// The figures, under the keys of `evenfall demo --json`.
    #[serde(flatten)]
    pub results: Results,
    /// Series for the pictures of the report.
    #[serde(skip)]
    pub series: Series,
    /// The hold of every frame, microseconds: median over the run.
    pub hold_us: f64,
    /// Whether every root heard that all its receivers had all messages.
    pub finished: bool,
    /// What each root counted.
    #[serde(skip)]
    pub roots: Vec<RootStatus>,
    /// The held frames of the first tree, in order.
    #[serde(skip)]
    pub frames: Vec<FrameCourse>,
    /// Steps of replacements in the first tree, and when, from the first message.
    #[serde(skip)]
    pub replacements: Vec<(Duration, Replacement)>,
    /// Simulated time from start to end, seconds.
    pub simulated_s: f64,
    /// Packets that crossed a link.
    pub hops: u64,
    /// The simulator's counts.
    #[serde(skip)]
    pub tally: WorldTally,
    /// How far the clocks of hosts with keepers were off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClockErrors>,
    /// Equal runs have equal digests.
    pub digest: u64,
}

/// The feed is scheduled for this long at a time.
const TICK: Duration = Duration::from_millis(10);
/// How long the first tree may take.
const FORMING_MAX: SimTime = SimTime::from_millis(30_000);
/// How long the end of the stream may take to be reported by all.
const ENDING_MAX: Duration = Duration::from_secs(10);

const TOKEN_TICK: u64 = 0;
const TOKEN_CLOCKS: u64 = 1;
const CALL_PUBLISH: u64 = 0;
const CALL_WARM_UP: u64 = 1;
const CALL_FINISH: u64 = 2;
const CALL_CLOCK: u64 = 3;

#[derive(Clone, Debug)]
struct Feed {
    warm: DueTimes,
    schedule: DueTimes,
    /// Next message to publish.
    next: u64,
    finished: bool,
}

struct Owner<'a> {
    layout: Layout,
    hear: &'a mut dyn FnMut(MessageCourse),
    keepers: Option<Keepers>,
    seed: u64,
    size: usize,
    feeds: Vec<Feed>,
    formed: u32,
    receivers: usize,
    ended: u32,
    ledger: Ledger,
    release_late: Sample,
    holds: Vec<u32>,
    frames: Frames,
    replacements: Vec<(Duration, Replacement)>,
    scratch: Vec<u8>,
}

/// Held frames of the first tree that carry messages. Every release looks its frame up, so the
/// frames lie in a list by their number.
#[derive(Default)]
struct Frames {
    first: u64,
    /// The frames from the first on; `None` for a frame without messages.
    courses: Vec<Option<(SyncTime, FrameCourse)>>,
}

impl Frames {
    /// Adds a frame whose number is higher than all others.
    fn push(&mut self, sequence: u64, origin: SyncTime, course: FrameCourse) {
        if self.courses.is_empty() {
            self.first = sequence;
        }
        self.courses.resize((sequence - self.first) as usize, None);
        self.courses.push(Some((origin, course)));
    }

    fn find(&mut self, sequence: u64) -> Option<&mut (SyncTime, FrameCourse)> {
        let at = sequence.checked_sub(self.first)?;
        self.courses.get_mut(at as usize)?.as_mut()
    }
}

/// What a run tells about a message, in nanoseconds of true time. Runs of several trees number the
/// messages of each tree by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageCourse {
    /// The root has sent the message.
    Sent {
        /// Number of the message.
        message: u64,
        /// When the message was due.
        scheduled_ns: u64,
        /// The deadline by the root's clock, if receivers are to hold the message.
        deadline_ns: Option<u64>,
    },
    /// A receiver has released the message.
    Released {
        /// Number of the message.
        message: u64,
        /// Number of the receiver, from 0.
        receiver: u32,
        /// When the first copy came.
        arrival_ns: u64,
        /// When the receiver released the message.
        release_ns: u64,
        /// How far the clock by which the receiver released was ahead of true time.
        ahead_ns: i64,
    },
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunProgress {
    /// The trees are being formed.
    Forming,
    /// The feed, with its warm-up, has been sent up to `at`.
    Sending {
        /// Simulated time since the warm-up began.
        at: Duration,
        /// Simulated time from the warm-up to the last message.
        of: Duration,
        /// Packets that have crossed a link since the run began.
        hops: u64,
    },
    /// The feed has ended, and the last receivers have not reported yet.
    Ending,
}

/// Runs the overlay and measures latency, windows and P(F).
pub fn run(params: &OverlayParams) -> OverlayRun {
    run_seen(params, &mut |_| {})
}

/// As [`run`]. `see` hears now and then how far the run is.
pub fn run_seen(params: &OverlayParams, see: &mut dyn FnMut(RunProgress)) -> OverlayRun {
    run_heard(params, see, &mut |_| {})
}

/// As [`run_seen`]. `hear` hears of each message that it was sent, and of each release.
pub fn run_heard(
    params: &OverlayParams,
    see: &mut dyn FnMut(RunProgress),
    hear: &mut dyn FnMut(MessageCourse),
) -> OverlayRun {
    let mut world: World<CampaignNode, Cloud> =
        World::new(Cloud::new(params.cloud.clone(), params.seed), params.seed);
    world.set_prefetch(node::prefetch());
    let origins = params.populate(&mut world, |node| node);
    let keepers = params.keepers.then(|| keepers::add(&mut world, &origins, params.seed));
    let layout = params.layout();
    let mut owner = Owner {
        layout,
        hear,
        keepers,
        seed: params.seed,
        size: params.size,
        feeds: Vec::new(),
        formed: 0,
        receivers: params.receivers as usize,
        ended: 0,
        ledger: Ledger::new(LedgerConfig::of(layout.receiver_ids())),
        release_late: Sample::many(),
        holds: Vec::new(),
        frames: Frames::default(),
        replacements: Vec::new(),
        scratch: Vec::new(),
    };
    if owner.keepers.is_some() {
        world.schedule(SimTime::ZERO + keepers::TELL_EVERY, Action::Token(TOKEN_CLOCKS));
    }
    // Before the keepers know the clocks, the error of the clocks would be that of their learning.
    let settled = SimTime::ZERO + if params.keepers { keepers::SETTLING } else { Duration::ZERO };
    while (owner.formed < layout.trees && world.now() < FORMING_MAX) || world.now() < settled {
        world.run_until_on(params.cores, world.now() + TICK, &mut owner);
        see(RunProgress::Forming);
    }
    let start = world.now();
    let end = owner.plan(params, start);
    world.schedule(world.now(), Action::Token(TOKEN_TICK));
    for (after, fault) in &params.faults {
        world.schedule(owner.feeds[0].schedule.due(0) + *after, Action::Fault(fault.clone()));
    }
    while world.now() < end {
        world.run_until_on(params.cores, (world.now() + TICK).min(end), &mut owner);
        let (at, of, hops) = (world.now().since(start), end.since(start), world.tally().hops);
        see(RunProgress::Sending { at, of, hops });
    }
    while owner.ended < layout.trees && world.now() < end + ENDING_MAX {
        world.run_until_on(params.cores, world.now() + TICK, &mut owner);
        see(RunProgress::Ending);
    }
    owner.outcome(params, &world)
}

impl Owner<'_> {
    /// Sets the schedule of every tree; returns when the last message is due.
    fn plan(&mut self, params: &OverlayParams, now: SimTime) -> SimTime {
        let trees = params.trees.max(1);
        let interval = Duration::from_secs_f64(1.0 / params.rate.max(1e-3));
        let count = (params.duration.as_secs_f64() * params.rate).round() as u64;
        let warm_count = (params.warm_up.as_secs_f64() * params.rate).round() as u64;
        let start = now + TICK;
        let first = start + params.warm_up;
        for tree in 0..trees {
            let share = |all: u64| (all + u64::from(trees - 1 - tree)) / u64::from(trees);
            let phase = interval * tree;
            let steady = |first, all| {
                DueTimes::Steady(FeedPace {
                    first: first + phase,
                    interval: interval * trees,
                    count: share(all),
                })
            };
            let schedule = match &params.times {
                Some(times) => {
                    let own = times.iter().skip(tree as usize).step_by(trees as usize);
                    DueTimes::Own { first, times: own.copied().collect() }
                }
                None => steady(first, count),
            };
            let warm = steady(start, warm_count);
            self.feeds.push(Feed { warm, schedule, next: 0, finished: false });
        }
        first + params.times.as_ref().map_or(params.duration, |t| *t.last().unwrap_or(&TICK))
    }

    fn publish(&mut self, tree: usize, seen: Seen, root: &mut Root) {
        let feed = &mut self.feeds[tree];
        let due = feed.schedule.due_by(seen.at);
        while feed.next < due {
            message(self.seed ^ tree as u64, feed.next, self.size, &mut self.scratch);
            match root.publish(seen.local, Format::OPAQUE, &self.scratch) {
                Ok(_) => feed.next += 1,
                // Tried again at the next call: the feed falls behind, openly.
                Err(PublishError::Full) => return,
                Err(error) => panic!("message {} of tree {tree}: {error}", feed.next),
            }
        }
        root.flush(seen.local);
    }

    fn root_event(&mut self, seen: Seen, event: &RootEvent) {
        match event {
            RootEvent::View(view) if view.receivers == self.receivers => {
                self.formed += u32::from(self.feeds.is_empty());
            }
            RootEvent::Finished(_) => self.ended += 1,
            RootEvent::Replacement(step) if self.layout.tree_of(seen.node.0) == 0 => {
                let at =
                    self.feeds.first().map_or(Duration::ZERO, |f| seen.at.since(f.schedule.due(0)));
                self.replacements.push((at, *step));
            }
            RootEvent::Framed(framed) if framed.count > 0 => {
                let tree = self.layout.tree_of(seen.node.0);
                if let Some(deadline) = framed.deadline {
                    let hold = deadline.since(framed.origin);
                    self.holds.push(u32::try_from(hold.as_nanos()).unwrap_or(u32::MAX));
                    if tree == 0 {
                        let at = seen.at.since(self.feeds[0].schedule.due(0));
                        let messages = framed.count;
                        let took = Duration::ZERO;
                        let course = FrameCourse { at, hold, late: false, messages, took };
                        self.frames.push(framed.sequence, framed.origin, course);
                    }
                }
                for message in framed.first_message..framed.first_message + u64::from(framed.count)
                {
                    let scheduled_ns = self.feeds[tree as usize].schedule.due(message).nanos();
                    let deadline_ns = framed.deadline.map(|deadline| truly(seen, deadline));
                    let sent_ns = seen.at.nanos();
                    let stream = tree;
                    self.ledger.sent(&SentMessage {
                        stream,
                        message,
                        scheduled_ns,
                        sent_ns,
                        deadline_ns,
                    });
                    (self.hear)(MessageCourse::Sent { message, scheduled_ns, deadline_ns });
                }
            }
            _ => {}
        }
    }

    fn released(&mut self, seen: Seen, release: &Release) {
        if release.count == 0 {
            return;
        }
        let arrival_ns = truly(seen, release.arrived);
        let first = release.first_message;
        for message in first..first + u64::from(release.count) {
            (self.hear)(MessageCourse::Released {
                message,
                receiver: self.layout.number_of(seen.node.0),
                arrival_ns,
                release_ns: seen.at.nanos(),
                ahead_ns: seen.own.signed_since(seen.at.as_sync()),
            });
        }
        let flag = |on, flag| if on { flag } else { Flags(0) };
        self.ledger.released(&Released {
            receiver: self.layout.receiver_of(seen.node.0),
            stream: release.stream,
            first_message: release.first_message,
            count: release.count,
            arrival_ns,
            // The simulator does not tell when a process took a datagram from its socket.
            taken_ns: 0,
            release_ns: seen.at.nanos(),
            flags: flag(release.repaired, Flags::REPAIRED)
                | flag(release.hedge_win, Flags::HEDGE_WIN),
            via: release.via,
        });
        if release.stream == 0
            && let Some((origin, course)) = self.frames.find(release.sequence)
        {
            course.late |= release.deadline.is_none_or(|deadline| release.arrived > deadline);
            course.took = course.took.max(release.arrived.since(*origin));
        }
        if let Some(deadline) = release.deadline {
            self.release_late.record(seen.own.signed_since(deadline));
        }
    }

    fn receiver_event(&mut self, seen: Seen, event: &ReceiverEvent) {
        match event {
            ReceiverEvent::Released(release) => self.released(seen, release),
            ReceiverEvent::Lost { first_message, messages: Some(count), .. } => {
                self.ledger.lost(&Lost {
                    receiver: self.layout.receiver_of(seen.node.0),
                    stream: self.layout.tree_of(seen.node.0),
                    first_message: first_message.unwrap_or(0),
                    count: *count,
                });
            }
            _ => {}
        }
    }

    /// Lets the keepers of all hosts tell their roles the time.
    fn tell_clocks(&mut self, world: &mut World<CampaignNode, Cloud>) {
        let Some(keepers) = &mut self.keepers else { return };
        let now = world.now();
        let is_feed = self.feeds.first().is_some_and(|feed| now >= feed.schedule.due(0));
        for node in keepers.read(world, is_feed) {
            world.invoke_at(now, node, CALL_CLOCK);
        }
        world.schedule(now + keepers::TELL_EVERY, Action::Token(TOKEN_CLOCKS));
    }

    fn outcome(mut self, params: &OverlayParams, world: &World<CampaignNode, Cloud>) -> OverlayRun {
        let mut roots = Vec::new();
        for index in 0..world.node_count() as u32 {
            match world.machine(NodeIndex(index)) {
                CampaignNode::Root(root) => roots.push(root.status()),
                CampaignNode::Receiver(receiver) => {
                    let duplicates = receiver.status().tally.duplicates;
                    self.ledger.duplicates(self.layout.receiver_of(index), duplicates);
                }
                CampaignNode::Relay(_) | CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => {}
            }
        }
        let clock_error = match self.keepers.as_ref().map(Keepers::bound) {
            Some(ClockError::Within(bound)) => ClockError::Within(bound * 2),
            Some(other) => other,
            None => params.clock_error(),
        };
        let LedgerOutcome { mut results, series } = self.ledger.finish(clock_error);
        results.release_late_us = self.release_late.summary();
        self.holds.sort_unstable();
        OverlayRun {
            results,
            series,
            hold_us: nearest_rank(&self.holds, 0.5).map_or(0.0, |ns| f64::from(ns) / 1e3),
            finished: self.ended >= self.layout.trees,
            roots,
            frames: self.frames.courses.into_iter().flatten().map(|(_, course)| course).collect(),
            replacements: self.replacements,
            simulated_s: world.now().nanos() as f64 / 1e9,
            hops: world.tally().hops,
            tally: world.tally(),
            clocks: self.keepers.map(Keepers::errors),
            digest: world.digest(),
        }
    }
}

/// A synchronised time of a machine as true time: less the error of its clock, by which the machine
/// wrote the time. Zero stays zero.
fn truly(seen: Seen, time: SyncTime) -> u64 {
    let error = seen.own.signed_since(seen.at.as_sync());
    if time == SyncTime::ZERO { 0 } else { time.nanos().saturating_add_signed(-error) }
}

impl Observer<CampaignNode, Cloud> for Owner<'_> {
    fn event(&mut self, seen: Seen, event: NodeEvent) {
        match event {
            NodeEvent::Receiver(event) => self.receiver_event(seen, &event),
            NodeEvent::Root(event) => self.root_event(seen, &event),
            NodeEvent::Relay(_) | NodeEvent::Keeper => {}
        }
    }

    fn follows_packets(&self) -> bool {
        false
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut CampaignNode) {
        if token == CALL_CLOCK {
            let reading = self.keepers.as_ref().and_then(|keepers| keepers.reading(seen.node));
            return keepers::take(machine, seen.local, reading);
        }
        let CampaignNode::Root(root) = machine else { return };
        let tree = self.layout.tree_of(seen.node.0) as usize;
        match token {
            CALL_WARM_UP => root.warm_up(seen.local),
            CALL_FINISH => root.finish(seen.local),
            _ => self.publish(tree, seen, root),
        }
    }

    fn token(&mut self, world: &mut World<CampaignNode, Cloud>, token: u64) {
        if token == TOKEN_CLOCKS {
            return self.tell_clocks(world);
        }
        let (from, to) = (world.now(), world.now() + TICK);
        let mut busy = false;
        for (tree, feed) in self.feeds.iter_mut().enumerate() {
            let root = NodeIndex(self.layout.root(tree as u32));
            for (pace, call) in [(&feed.warm, CALL_WARM_UP), (&feed.schedule, CALL_PUBLISH)] {
                for number in pace.due_by(from)..pace.due_by(to) {
                    world.invoke_at(pace.due(number), root, call);
                }
            }
            let all_due = feed.schedule.due_by(from) == feed.schedule.count();
            if all_due && feed.next < feed.schedule.count() {
                world.invoke_at(from, root, CALL_PUBLISH);
            } else if all_due && !core::mem::replace(&mut feed.finished, true) {
                world.invoke_at(from, root, CALL_FINISH);
            }
            busy |= !feed.finished;
        }
        if busy {
            world.schedule(to, Action::Token(TOKEN_TICK));
        }
    }
}
