//! Watches a simulated shuffle for its end and its progress, and informs schemes that need facts
//! from outside.

use core::time::Duration;

use evenfall_collectives_machine::ShuffleEvent;
use evenfall_collectives_machine::wire::HEADER_BYTES;
use evenfall_core::TrafficClass;
use evenfall_sim::{Action, FatTree, NodeIndex, Observer, Packet, Seen, SimTime, Verdict, World};

use super::matrix::Matrix;
use super::node::Node;
use super::preempt::PauseSchedule;
use super::scene::{LINK_BITS_PER_S, PACKET_NS};
use super::unfinished::{self, Link};

/// The progress of a shuffle at one time.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct ShuffleSample {
    /// Time since the start.
    pub at_us: f64,
    /// Bytes that nodes sent since the last sample, as a share of the capacity of their links.
    pub uplinks: f64,
    /// Bytes that nodes received since the last sample, as a share of the capacity of their links.
    pub downlinks: f64,
    /// Share of the non-empty messages of which at least one byte has arrived.
    pub started: f64,
    /// Share of the non-empty messages that have arrived in full.
    pub completed: f64,
    /// Incomplete messages to which a node grants: the fewest, the median and the most over all
    /// nodes.
    pub incoming: [usize; 3],
    /// Incomplete messages that a node sends with grants: the fewest, the median and the most over
    /// all nodes.
    pub outgoing: [usize; 3],
}

/// Watches for the last message, and informs schemes that need facts from outside.
pub(super) struct Watch {
    pub(super) messages_left: usize,
    pub(super) last: SimTime,
    /// Sender of the message that arrived last.
    pub(super) last_sender: usize,
    pub(super) failed: Option<String>,
    /// Packets that were sent.
    pub(super) sent: u64,
    pub(super) schedules: Vec<PauseSchedule>,
    pub(super) pauses: Vec<usize>,
    pub(super) refresh: Option<Refresh>,
    pub(super) lockstep: Option<Lockstep>,
    pub(super) timeline: Option<Timeline>,
}

/// Takes samples of the progress.
pub(super) struct Timeline {
    pub(super) every: Duration,
    operation: u64,
    /// For each node: non-empty messages, empty messages, and bytes.
    all: Vec<(usize, usize, u64)>,
    /// By sender and receiver: whether there is an incomplete message.
    open: Vec<bool>,
    scale: u32,
    sent: u64,
    received: u64,
    pub(super) samples: Vec<ShuffleSample>,
}

impl Timeline {
    pub(super) fn new(every: Duration, operation: u64, short: &Matrix, scale: u32) -> Self {
        let nodes = short.nodes();
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        Self {
            every,
            operation,
            all: (0..nodes).map(|to| expected(short, to)).collect(),
            open: pairs.map(|(from, to)| from != to && short.cell(from, to) > 0).collect(),
            scale,
            sent: 0,
            received: 0,
            samples: Vec::new(),
        }
    }

    fn spread(mut counts: Vec<usize>) -> [usize; 3] {
        counts.sort_unstable();
        [0, counts.len() / 2, counts.len() - 1].map(|at| counts[at])
    }

    fn sample(&mut self, world: &World<Node, FatTree>) {
        let nodes = self.all.len();
        let (mut started, mut completed, mut received, mut messages) = (0, 0, 0, 0);
        let (mut incoming, mut outgoing) = (vec![0; nodes], vec![0; nodes]);
        for (to, &(full, empty, bytes)) in self.all.iter().enumerate() {
            let machine = world.machine(NodeIndex(to as u32));
            let all = (full + empty, full + empty, bytes);
            let (begun, complete, here) = machine.progress(self.operation).unwrap_or(all);
            messages += full;
            // Empty messages are complete with their announcement, and samples leave them out.
            started += begun.saturating_sub(empty);
            completed += complete.saturating_sub(empty);
            received += here;
            for from in (0..nodes).filter(|&from| self.open[from * nodes + to]) {
                let works = usize::from(machine.works_on(from));
                incoming[to] += works;
                outgoing[from] += works;
            }
        }
        let room = self.every.as_secs_f64() * LINK_BITS_PER_S as f64 * nodes as f64;
        let busy = |bytes: u64| bytes as f64 * f64::from(self.scale) * 8.0 / room;
        let share = |count: usize| count as f64 / messages.max(1) as f64;
        self.samples.push(ShuffleSample {
            at_us: world.now().nanos() as f64 / 1e3,
            uplinks: busy(core::mem::take(&mut self.sent)),
            downlinks: busy(received - self.received),
            started: share(started),
            completed: share(completed),
            incoming: Self::spread(incoming),
            outgoing: Self::spread(outgoing),
        });
        self.received = received;
    }
}

/// Tells all receivers, at an interval, the bytes that the slowest receiver misses.
pub(super) struct Refresh {
    pub(super) every: Duration,
    pub(super) operation: u64,
}

/// A barrier after each step.
pub(super) struct Lockstep {
    step: usize,
    /// Messages of the present step that have not arrived. `messages` holds the number of messages
    /// of each step.
    left: usize,
    messages: Vec<usize>,
    barrier: Duration,
}

impl Lockstep {
    pub(super) fn new(short: &Matrix, barrier: Duration) -> Self {
        let messages = (0..short.nodes()).map(|step| messages_of(short, step)).collect();
        Self { step: 0, left: 0, messages, barrier }
    }
}

/// Token of the refresh. Lower tokens are nodes to be paused.
pub(super) const REFRESH: u64 = 1 << 40;
/// Token of the next step.
pub(super) const STEP: u64 = 1 << 41;
/// Token of the next sample.
pub(super) const SAMPLE: u64 = 1 << 42;

impl Observer<Node, FatTree> for Watch {
    fn event(&mut self, seen: Seen, event: ShuffleEvent) {
        match event {
            ShuffleEvent::Message { from, .. } if u32::from(from) == seen.node.0 => {}
            ShuffleEvent::Message { body, from, .. } => {
                self.messages_left -= 1;
                if let Some(timeline) = &mut self.timeline {
                    let at = usize::from(from) * timeline.all.len() + seen.node.0 as usize;
                    timeline.open[at] = false;
                }
                if seen.at >= self.last {
                    (self.last, self.last_sender) = (seen.at, usize::from(from));
                }
                if let Some(lockstep) = &mut self.lockstep {
                    // Empty messages are announced at the start, before their step.
                    lockstep.left -= usize::from(!body.is_empty());
                }
            }
            ShuffleEvent::Here { .. } | ShuffleEvent::Completed { .. } => {}
            ShuffleEvent::Failed { failure, .. } => self.failed = Some(failure.to_string()),
        }
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], _: Verdict) {
        self.sent += 1;
        if let Some(timeline) =
            self.timeline.as_mut().filter(|_| packet.class != TrafficClass::Control)
        {
            timeline.sent += (datagram.len() - HEADER_BYTES) as u64;
        }
    }

    fn token(&mut self, world: &mut World<Node, FatTree>, token: u64) {
        match token {
            REFRESH => self.tell_slowest(world),
            STEP => self.next_step(world),
            SAMPLE => self.sample(world),
            node => self.pause(world, node as usize),
        }
    }
}

/// The nodes that wait for each other, in the order of the circle.
pub(super) fn circle(world: &World<Node, FatTree>) -> Option<Vec<Link>> {
    let plain = |node: usize| match world.machine(NodeIndex(node as u32)) {
        Node::Plain(plain) => Some(plain),
        Node::Shuffle(_) => None,
    };
    let waits_for = |sender| plain(sender).and_then(|machine| machine.waits_for());
    let held = |receiver, sender| plain(receiver).map_or(0, |machine| machine.outstanding(sender));
    unfinished::find_circle(world.node_count(), waits_for, held)
}

impl Watch {
    fn pause(&mut self, world: &mut World<Node, FatTree>, node: usize) {
        let number = self.pauses[node];
        self.pauses[node] += 1;
        let (begin, end) = self.schedules[node].pause(number);
        world.pause(NodeIndex(node as u32), Duration::from_nanos(end - begin));
        let next = self.schedules[node].pause(number + 1).0;
        world.schedule(SimTime::from_nanos(next), Action::Token(node as u64));
    }

    fn tell_slowest(&mut self, world: &mut World<Node, FatTree>) {
        let Some(refresh) = &self.refresh else { return };
        let (operation, every) = (refresh.operation, refresh.every);
        let nodes = (0..world.node_count() as u32).map(NodeIndex);
        let missing = |node| match world.machine(node) {
            Node::Shuffle(shuffle) => shuffle.missing_bytes(operation),
            Node::Plain(_) => 0,
        };
        let slowest = nodes.clone().map(missing).max();
        // Each node keeps the value until the next refresh. The interval stands for the duration of
        // the all-reduce, so a value is at most one all-reduce old.
        for node in nodes {
            world.call(node, &mut *self, |machine, _| {
                if let Node::Shuffle(shuffle) = machine {
                    shuffle.set_slowest(operation, slowest.unwrap_or(0));
                }
            });
        }
        let next = world.now() + every;
        world.schedule(next, Action::Token(REFRESH));
    }

    /// Takes a sample of the progress, if the run has a timeline.
    pub(super) fn sample(&mut self, world: &mut World<Node, FatTree>) {
        let Some(timeline) = &mut self.timeline else { return };
        timeline.sample(world);
        let next = world.now() + timeline.every;
        world.schedule(next, Action::Token(SAMPLE));
    }

    fn next_step(&mut self, world: &mut World<Node, FatTree>) {
        let nodes = world.node_count();
        let Some(lockstep) = &mut self.lockstep else { return };
        if lockstep.left > 0 {
            let soon = world.now() + Duration::from_nanos(PACKET_NS);
            return world.schedule(soon, Action::Token(STEP));
        }
        lockstep.step += 1;
        let step = lockstep.step;
        if step >= nodes {
            return;
        }
        lockstep.left = lockstep.messages[step];
        let barrier = lockstep.barrier;
        for node in 0..nodes {
            let to = (node + step) % nodes;
            world.call(NodeIndex(node as u32), &mut *self, |machine, _| {
                if let Node::Plain(plain) = machine {
                    plain.admit(to);
                }
            });
        }
        let next = world.now() + barrier;
        world.schedule(next, Action::Token(STEP));
    }
}

/// Non-empty messages to a node, empty messages to the node, and bytes.
fn expected(short: &Matrix, to: usize) -> (usize, usize, u64) {
    let cells = (0..short.nodes()).filter(|&from| from != to).map(|from| short.cell(from, to));
    let full = cells.clone().filter(|&bytes| bytes > 0).count();
    (full, short.nodes() - 1 - full, cells.sum())
}

/// Number of non-empty messages in one step of lock-step.
fn messages_of(short: &Matrix, step: usize) -> usize {
    let nodes = short.nodes();
    (0..nodes).filter(|&from| short.cell(from, (from + step) % nodes) > 0).count()
}
