//! The owner of the machines of a fault run. The owner publishes, lets nodes join, leave and
//! revive, switches modes, and tells the checks every event.

use core::time::Duration;

use evenfall_core::{Format, NodeId, Prng, Timestamp, TrafficClass};
use evenfall_multicast_machine::{Begin, Root, RootEvent};
use evenfall_sim::{
    Action, Cloud, Fault, NodeIndex, Observer, Packet, Seen, SimTime, Transcript,
    Verdict as NetworkVerdict, World,
};

use super::cast::{Cast, message};
use super::checks::{Check, Checks, size_of};
use super::faults::MulticastScene;
use super::node::{CampaignNode, MulticastActor, NodeEvent};
use super::subject::Subject;

/// The owner checks the world at this interval, and schedules the feed for the next interval.
pub(super) const TICK_EVERY: Duration = Duration::from_millis(10);
/// Sizes of rings and queues are checked once in this many ticks.
const SIZES_EVERY: u64 = 5;

/// Tokens of the world's agenda.
pub(super) const TICK: u64 = 0;
pub(super) const JOIN: u64 = 100;
pub(super) const LEAVE: u64 = 200;
pub(super) const SWITCH: u64 = 300;

/// A late joiner of a recorded run asks for all frames from this time on.
const RECORDED_SINCE_NS: i64 = 300_000_000;

/// An observer with an [`Owner`] inside.
pub(super) trait Watch: Observer<Subject, Cloud> {
    fn owner(&mut self) -> &mut Owner;
}

impl Watch for Transcript<Owner> {
    fn owner(&mut self) -> &mut Owner {
        &mut self.inner
    }
}

pub(super) struct Owner {
    scene: MulticastScene,
    cast: Cast,
    pub(super) checks: Checks,
    proxies: u32,
    prng: Prng,
    /// The run of the root; `None` while it is down.
    epoch: Option<u32>,
    epochs: u32,
    /// Next message of the feed.
    next: u64,
    ticks: u64,
    asked_to_finish: bool,
    finished: bool,
    pub(super) acts: u64,
    /// Replacements that were tried, made, rolled back and abandoned.
    pub(super) replacements: [u64; 4],
    scratch: Vec<u8>,
    /// Time of the last fault.
    fault_at: SimTime,
    /// Time of the last restart of the root.
    revived_at: SimTime,
}

impl Owner {
    pub(super) fn new(
        scene: MulticastScene,
        cast: Cast,
        checks: Checks,
        proxies: u32,
        prng: Prng,
    ) -> Self {
        Self {
            scene,
            cast,
            checks,
            proxies,
            prng,
            epoch: Some(1),
            epochs: 1,
            next: 0,
            ticks: 0,
            asked_to_finish: false,
            finished: false,
            acts: 0,
            replacements: [0; 4],
            scratch: Vec::new(),
            fault_at: SimTime::ZERO,
            revived_at: SimTime::ZERO,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    fn publish(&mut self, seen: Seen, root: &mut Root) {
        let (Some(epoch), due) = (self.epoch, self.scene.pace().due_by(seen.at)) else { return };
        while self.next < due {
            let size = size_of(self.next);
            message(self.scene.plan.seed, self.next, size, &mut self.scratch);
            if root.publish(seen.local, Format::OPAQUE, &self.scratch).is_err() {
                return;
            }
            self.checks.published(epoch, self.next);
            self.next += 1;
        }
        root.flush(seen.local);
        if self.next == self.scene.pace().count && self.asked_to_finish {
            root.finish(seen.local);
        }
    }

    fn join(&mut self, world: &mut World<Subject, Cloud>) {
        let node = NodeIndex(world.node_count() as u32);
        let (spec, origin) = self.scene.newcomer(&mut self.prng);
        let now = origin + world.now().since(SimTime::ZERO);
        let machine = match self.scene.is_recorded() {
            false => self.cast.receiver(NodeId(node.0), 1, now),
            true => {
                let begin = match node.0 % 2 {
                    0 => Begin::Start,
                    _ => Begin::Time(RECORDED_SINCE_NS),
                };
                self.cast.late_receiver(NodeId(node.0), begin, now)
            }
        };
        world.add(self.scene.dress(machine, node.0, world.now(), now), spec);
        self.checks.born(node);
    }

    fn tick(&mut self, world: &mut World<Subject, Cloud>) {
        let (from, to) = (world.now(), world.now() + TICK_EVERY);
        let pace = self.scene.pace();
        for number in pace.due_by(from)..pace.due_by(to) {
            world.invoke_at(pace.due(number), NodeIndex(0), TICK);
        }
        if pace.due_by(from) == pace.count && !self.finished {
            self.asked_to_finish = true;
            world.invoke_at(from, NodeIndex(0), TICK);
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(SIZES_EVERY) {
            self.sizes(world);
        }
        world.schedule(to, Action::Token(TICK));
    }

    /// Checks rings, queues and held frames against their limits.
    fn sizes(&mut self, world: &World<Subject, Cloud>) {
        let config = &self.scene.config;
        for index in (0..world.node_count() as u32).map(NodeIndex) {
            let stored = match world.machine(index).node() {
                CampaignNode::Root(root) => root.status().stored,
                CampaignNode::Relay(relay) => relay.status().stored,
                CampaignNode::Receiver(receiver) => {
                    let held = receiver.status().held;
                    if held > config.framing.held_frames as u64 {
                        let what = format!("{held} frames held");
                        self.checks.fail(Check::Bounded, world.now(), index, what);
                    }
                    continue;
                }
                CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => continue,
            };
            if stored.frames > config.repair.ring_frames
                || stored.bytes > config.repair.ring_bytes
                || stored.asked > config.repair.child_queue_max
                || stored.queued > config.framing.send_queue_frames
            {
                let what = format!("{stored:?}");
                self.checks.fail(Check::Bounded, world.now(), index, what);
            }
        }
    }

    /// The checks at the end of the run, of the tree as well.
    pub(super) fn close(&mut self, world: &World<Subject, Cloud>) {
        let now = world.now();
        self.checks.over(now, self.epoch);
        if self.epoch.is_none() {
            return;
        }
        for node in self.checks.alive() {
            let CampaignNode::Receiver(receiver) = world.machine(node).node() else { continue };
            let status = receiver.status();
            let checked = status.trust.map(|trust| trust.verified + trust.unsigned);
            if checked.is_some_and(|checked| checked != status.tally.released) {
                let what = format!("{status:?} at the end");
                self.checks.fail(Check::Signed, now, node, what);
            }
            let Some(place) = receiver.place() else {
                self.checks.fail(Check::Healed, now, node, "has no place".into());
                continue;
            };
            let parent = place.sources.first().and_then(|peer| world.node_at(peer.addr));
            let parent = parent.filter(|parent| world.is_up(*parent));
            let knows = parent.is_some_and(|parent| match world.machine(parent).node() {
                CampaignNode::Root(_) => true,
                CampaignNode::Relay(relay) => relay.place().is_some_and(|place| {
                    place.children.iter().any(|child| child.id == NodeId(node.0))
                }),
                CampaignNode::Receiver(_) | CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => {
                    false
                }
            });
            if !knows {
                let what = format!("its parent is dead or does not know it: {place:?}");
                self.checks.fail(Check::Healed, now, node, what);
            }
        }
        if !self.finished && !self.checks.alive().is_empty() {
            self.checks.fail(Check::Counted, now, NodeIndex(0), "never finished".into());
        }
    }

    fn is_receiver(&self, node: NodeIndex) -> bool {
        node.0 > self.proxies
    }
}

impl Observer<Subject, Cloud> for Owner {
    fn event(&mut self, seen: Seen, event: NodeEvent) {
        let Some(epoch) = self.epoch.or(Some(self.epochs)) else { return };
        match event {
            NodeEvent::Receiver(event) => self.checks.receiver(seen, &event),
            NodeEvent::Root(RootEvent::Framed(framed)) => self.checks.framed(seen, epoch, framed),
            NodeEvent::Root(RootEvent::Finished(tally)) => {
                self.finished = true;
                self.checks.finished(seen, epoch, &tally);
            }
            NodeEvent::Root(RootEvent::Replacement(replacement)) => {
                self.replacements[replacement.step as usize] += 1;
                self.checks.replacement(seen, &replacement);
            }
            NodeEvent::Root(_) | NodeEvent::Relay(_) | NodeEvent::Keeper => {}
        }
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut Subject) {
        // A process reads its clock before it takes calls. A call that was scheduled before the
        // restart can come at the instant of the restart.
        if seen.at <= self.revived_at {
            return;
        }
        machine.input(seen.local, |node| match node {
            CampaignNode::Root(root) if token >= SWITCH => {
                root.set_mode(seen.local, self.scene.mode_after(token - SWITCH));
            }
            CampaignNode::Root(root) => self.publish(seen, root),
            CampaignNode::Receiver(receiver) => {
                self.checks.left(seen.node);
                receiver.leave();
            }
            CampaignNode::Relay(_) | CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => {}
        });
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], _: NetworkVerdict) {
        let most = self.scene.config.framing.datagram_bytes;
        if packet.class == TrafficClass::Control && datagram.len() > most {
            let what = format!("a control datagram of {} bytes", datagram.len());
            self.checks.fail(Check::Bounded, packet.at, packet.from, what);
        }
    }

    fn token(&mut self, world: &mut World<Subject, Cloud>, token: u64) {
        self.acts += u64::from(token != TICK);
        match token {
            TICK => self.tick(world),
            JOIN..LEAVE => self.join(world),
            LEAVE..SWITCH => {
                let receiver = 1 + self.proxies + (token - LEAVE) as u32;
                world.invoke_at(world.now(), NodeIndex(receiver), LEAVE);
            }
            _ => world.invoke_at(world.now(), NodeIndex(0), token),
        }
    }

    fn fault(&mut self, at: SimTime, fault: &Fault) {
        self.fault_at = at;
        if let Fault::Crash(node) = *fault {
            if node.0 == 0 {
                self.epoch = None;
            } else if self.is_receiver(node) {
                self.checks.died(node);
            }
        }
    }

    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<Subject> {
        let id = NodeId(node.0);
        let machine = if node.0 == 0 {
            self.revived_at = self.fault_at;
            self.epochs += 1;
            self.epoch = Some(self.epochs);
            self.checks.root_started(self.epochs);
            self.cast.root(self.epochs, now)
        } else if self.is_receiver(node) {
            self.checks.born(node);
            // The clock of the host runs on while the process restarts.
            self.cast.receiver(id, now.nanos(), now)
        } else {
            self.cast.relay(id, now.nanos(), now)
        };
        Some(self.scene.dress(machine, node.0, self.fault_at, now))
    }
}
