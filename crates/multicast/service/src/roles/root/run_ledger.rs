//! The root's notes of a run: what it sent and when, which nodes came and went, and from which
//! message to which message a receiver is expected to have everything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenfall_clock_service::Standing;
use evenfall_core::{Clock, NodeId, SyncTime, Timestamp};
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_multicast_machine::replace::{Replacement, ReplacementStep};
use evenfall_multicast_machine::{DepartureReason, Framed, Role, Root, RootEvent};
use evenfall_multicast_report::SentMessage;

use super::queue::{Queue, Queued};
use crate::runinfo::{ReceiverMembership, RunEvent, RunInfo};
use crate::runlog::RunLogRecord;
use crate::settings::Settings;

/// Events that are kept for the report. The metrics still count the events of a run that has more.
const EVENTS_MAX: usize = 10_000;
/// Frames that are remembered while a late receiver waits for its place. The place comes within a
/// few milliseconds, and this number is half a second at 100,000 frames a second.
const RECENT_MAX: usize = 65_536;
/// Distance of incarnations below which two belong to one process. A process that was taken out
/// joins again under the next incarnation. A process that is started again joins under the
/// nanosecond of its start.
const REJOINS_MAX: u64 = 1_000_000;

/// The notes of one tree.
#[derive(Default)]
struct TreeLedger {
    queue: Queue,
    formed: bool,
    finished: bool,
    /// Messages framed.
    framed: u64,
    /// Receivers that joined while the stream runs and have no place yet.
    newcomers: Vec<NodeId>,
    /// Frame number and first message of the frames since the first newcomer joined.
    recent: VecDeque<(u64, u64)>,
}

impl TreeLedger {
    /// The first message at or after a frame.
    fn message_of(&self, frame: u64) -> u64 {
        let found = self.recent.iter().find(|(sequence, _)| *sequence >= frame);
        found.map_or(self.framed, |(_, first_message)| *first_message)
    }
}

/// The notes of the run so far.
pub(super) struct RunLedger {
    pub(super) clock: Clock,
    pub(super) records: Vec<RunLogRecord>,
    pub(super) events: Vec<RunEvent>,
    pub(super) memberships: Vec<ReceiverMembership>,
    /// The hash of all messages that are in frames.
    pub(super) hash: ContentHash,
    pub(super) id: NodeId,
    names: BTreeMap<NodeId, String>,
    /// The nodes that measure each other's clocks. A place in the list is a node's number there.
    timed: Vec<NodeId>,
    /// The present troubles of clocks: the place of the node, and what is wrong.
    troubles: BTreeSet<(u32, &'static str)>,
    /// Whether the run planted wrong clocks. Events then have times of the host's local clock, by
    /// which the report judges.
    is_planted: bool,
    trees: Vec<TreeLedger>,
    /// The last incarnation of each receiver in each tree.
    lives: BTreeMap<(NodeId, u32), u64>,
}

impl RunLedger {
    pub(super) fn new(settings: &Settings, id: NodeId, clock: Clock) -> Self {
        Self {
            clock,
            records: Vec::new(),
            events: Vec::new(),
            memberships: Vec::new(),
            hash: ContentHash::new(settings.course.trees as usize),
            id,
            names: settings.nodes.iter().map(|node| (node.id, node.name.clone())).collect(),
            timed: settings.timed().into_iter().map(|node| node.id).collect(),
            troubles: BTreeSet::new(),
            is_planted: settings.clock.is_planted(),
            trees: (0..settings.course.trees).map(|_| TreeLedger::default()).collect(),
            lives: BTreeMap::new(),
        }
    }

    /// Whether every tree has come into force.
    pub(super) fn formed(&self) -> bool {
        self.trees.iter().all(|tree| tree.formed)
    }

    /// Whether all receivers of every tree have all messages.
    pub(super) fn finished(&self) -> bool {
        self.trees.iter().all(|tree| tree.finished)
    }

    /// The messages of a tree that are in no frame yet.
    pub(super) fn queue(&mut self, tree: usize) -> &mut Queue {
        &mut self.trees[tree].queue
    }

    /// Messages that were published, whether or not they are in a frame.
    pub(super) fn published(&self) -> u64 {
        let waiting: usize = self.trees.iter().map(|tree| tree.queue.len()).sum();
        self.hash.messages() + waiting as u64
    }

    /// The lead has changed, so that a tree has to be formed before this root can send.
    pub(super) fn turned_over(&mut self) {
        for tree in &mut self.trees {
            (tree.formed, tree.finished) = (false, false);
            tree.newcomers.clear();
            tree.recent.clear();
            tree.queue.forgotten();
        }
    }

    /// Goes on with the notes of the root that led before.
    pub(super) fn adopt(&mut self, info: RunInfo) {
        let mut own = core::mem::replace(&mut self.events, info.events);
        // A root that led before finds its own notes again.
        own.retain(|event| !self.events.contains(event));
        self.events.append(&mut own);
        self.events.truncate(EVENTS_MAX);
        self.memberships = info.memberships;
    }

    pub(super) fn name(&self, id: NodeId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// The time of an event that happens now.
    pub(super) fn event_time(&self, now: Timestamp) -> SyncTime {
        if self.is_planted { SyncTime::from_nanos(now.nanos()) } else { self.clock.sync(now) }
    }

    pub(super) fn event(&mut self, now: Timestamp, kind: &str, node: Option<NodeId>, text: String) {
        if self.events.len() < EVENTS_MAX {
            let at_ns = self.event_time(now).nanos();
            self.events.push(RunEvent { at_ns, kind: kind.to_owned(), node, text });
        }
    }

    /// Names the nodes whose clocks or sources of time are in trouble, once for each trouble.
    pub(super) fn clocks(&mut self, now: Timestamp, standing: &Standing) {
        let all = [
            (&standing.liars, "tells different nodes different times: its clock is left out"),
            (&standing.lost, "was reached by no probe of the last window: is UDP to it open?"),
            (
                &standing.disrupted,
                "has a clock that left its proven bound, and does not use it for now",
            ),
            (&standing.sources_dropped, "has a source of UTC that is wrong by more than it states"),
        ];
        let of = |(places, why): &(&Vec<u32>, &'static str)| {
            places.iter().map(|place| (*place, *why)).collect::<Vec<_>>()
        };
        let found: BTreeSet<(u32, &'static str)> = all.iter().flat_map(of).collect();
        let before = core::mem::replace(&mut self.troubles, found.clone());
        for (place, why) in found.difference(&before) {
            let Some(id) = self.timed.get(*place as usize).copied() else { continue };
            let text = format!("{} {why}", self.name(id));
            tracing::warn!("{text}");
            self.event(now, "clock", Some(id), text);
        }
    }

    pub(super) fn on(&mut self, root: &Root, now: Timestamp, event: RootEvent) {
        let stream = root.stream();
        match event {
            RootEvent::Framed(framed) => self.framed(stream, framed),
            RootEvent::Joined(id, role, life) => self.joined(now, stream, (id, role), life),
            RootEvent::Removed(id, reason) => self.removed(now, stream, id, reason),
            RootEvent::View(view) => {
                let text = format!(
                    "tree {stream}, view {}: depth {}, {} proxies and {} spare, {} receivers",
                    view.number,
                    view.depth,
                    view.proxies,
                    view.spares.len(),
                    view.receivers
                );
                self.event(now, "view", Some(self.id), text);
                self.trees[stream as usize].formed = true;
                self.place_newcomers(stream, |id| root.start_of(id));
            }
            RootEvent::Replacement(replacement) => self.replacement(now, stream, &replacement),
            RootEvent::Finished(_) => self.trees[stream as usize].finished = true,
            _ => {}
        }
    }

    fn framed(&mut self, stream: u32, framed: Framed) {
        let tree = &mut self.trees[stream as usize];
        tree.framed += u64::from(framed.count);
        if !tree.newcomers.is_empty() {
            tree.recent.push_back((framed.sequence, framed.first_message));
            if tree.recent.len() > RECENT_MAX {
                tree.recent.pop_front();
            }
        }
        for message in framed.first_message..framed.first_message + u64::from(framed.count) {
            let scheduled_ns = match tree.queue.framed() {
                Some(Queued { message, scheduled }) => {
                    self.hash.update(stream as usize, &message.bytes);
                    scheduled.nanos()
                }
                None => 0,
            };
            self.records.push(RunLogRecord::Sent(SentMessage {
                stream,
                message,
                scheduled_ns,
                sent_ns: framed.origin.nanos(),
                deadline_ns: framed.deadline.map(SyncTime::nanos),
            }));
        }
    }

    fn joined(&mut self, now: Timestamp, stream: u32, (id, role): (NodeId, Role), life: u64) {
        let text = format!("{} joined tree {stream}", self.name(id));
        self.event(now, "join", Some(id), text);
        if role != Role::Receiver {
            return;
        }
        let before = self.lives.insert((id, stream), life);
        let is_same = before.is_some_and(|before| life.abs_diff(before) < REJOINS_MAX);
        let formed = self.trees[stream as usize].formed;
        let mut all = self.memberships.iter_mut().rev();
        match all.find(|m| m.receiver == id && m.stream == stream) {
            // A receiver that returns from a pause continues where it was, by repair. Before the
            // first message, no receiver has missed one.
            Some(last) if is_same || !formed => {
                (last.until, last.left, last.started_ns) = (None, false, life);
            }
            // Another process, or a late receiver, begins where it gets its place.
            _ if formed => self.trees[stream as usize].newcomers.push(id),
            _ => {}
        }
    }

    /// A receiver that has a place by now is expected to have everything from the place's first
    /// frame on.
    fn place_newcomers(&mut self, stream: u32, start_of: impl Fn(NodeId) -> Option<u64>) {
        for id in core::mem::take(&mut self.trees[stream as usize].newcomers) {
            match start_of(id) {
                Some(frame) => {
                    let from = self.trees[stream as usize].message_of(frame);
                    self.enrol(id, stream, from);
                }
                None => self.trees[stream as usize].newcomers.push(id),
            }
        }
        let tree = &mut self.trees[stream as usize];
        if tree.newcomers.is_empty() {
            tree.recent.clear();
        }
    }

    fn removed(&mut self, now: Timestamp, stream: u32, id: NodeId, reason: DepartureReason) {
        let name = self.name(id);
        let (kind, why) = match reason {
            DepartureReason::Left => ("leave", "it left"),
            DepartureReason::Silent => ("evict", "it was silent and did not answer"),
            DepartureReason::TooSlow => ("evict", "it asked for more repair than its queue holds"),
            DepartureReason::Restarted => ("leave", "it started again"),
            _ => ("evict", "the root took it out"),
        };
        let text = format!("{name} is out of tree {stream}: {why}");
        tracing::warn!("{text}");
        self.event(now, kind, Some(id), text);
        if !self.lives.contains_key(&(id, stream)) {
            return;
        }
        self.found(id);
        self.trees[stream as usize].newcomers.retain(|newcomer| *newcomer != id);
        let until = self.trees[stream as usize].framed;
        for own in &mut self.memberships {
            if own.receiver == id && own.stream == stream && own.until.is_none() {
                (own.until, own.left) = (Some(until), reason == DepartureReason::Left);
            }
        }
    }

    fn replacement(&mut self, now: Timestamp, stream: u32, r: &Replacement) {
        let (old, new) = (self.name(r.old), self.name(r.new));
        let ms = |ns: u64| format!("{:.2} ms", ns as f64 / 1e6);
        let cause = format!("its worst edge takes {}, a quick hop {}", ms(r.edge_ns), ms(r.hop_ns));
        let tail = match r.oml_after_ns {
            0 => "no overall latency was measured".to_owned(),
            after => {
                format!("p90 of the overall latency {} -> {}", ms(r.oml_before_ns), ms(after))
            }
        };
        let text = match r.step {
            ReplacementStep::Tried => format!("{new} is tried in the place of {old}: {cause}"),
            ReplacementStep::Made => format!("{old} is replaced by {new}: {cause}; {tail}"),
            ReplacementStep::RolledBack => format!("{new} steps back, {old} stays: {tail}"),
            ReplacementStep::Abandoned => {
                format!("{new} is no longer tried for {old}: the tree changed")
            }
        };
        let text = format!("tree {stream}: {text}");
        tracing::info!("{text}");
        self.event(now, "replace", Some(r.old), text);
    }

    /// A receiver without a membership was in every tree from the start. When it leaves one tree,
    /// its memberships in all trees must be noted.
    fn found(&mut self, receiver: NodeId) {
        if self.memberships.iter().any(|m| m.receiver == receiver) {
            return;
        }
        for stream in 0..self.trees.len() as u32 {
            if self.trees[stream as usize].newcomers.contains(&receiver) {
                continue;
            }
            self.enrol(receiver, stream, 0);
        }
    }

    fn enrol(&mut self, receiver: NodeId, stream: u32, from: u64) {
        let started_ns = self.lives.get(&(receiver, stream)).copied().unwrap_or(0);
        let membership =
            ReceiverMembership { receiver, stream, from, started_ns, ..Default::default() };
        self.memberships.push(membership);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000);
    /// Start of the first processes. Their replacements start later.
    const STARTED: u64 = 1_753_000_000_000_000_000;
    const AGAIN: u64 = STARTED + 2_000_000_000;

    fn book(trees: u32) -> RunLedger {
        let mut settings = Settings::default();
        settings.course.trees = trees;
        let mut book = RunLedger::new(&settings, NodeId(0), Clock::default());
        book.joined(NOW, 0, (NodeId(1), Role::Proxy), STARTED);
        for stream in 0..trees {
            book.joined(NOW, stream, (NodeId(2), Role::Receiver), STARTED);
            book.trees[stream as usize].formed = true;
        }
        book
    }

    fn frame(book: &mut RunLedger, sequence: u64) {
        let framed = Framed {
            sequence,
            first_message: sequence * 3,
            count: 3,
            origin: SyncTime::ZERO,
            deadline: None,
        };
        book.framed(0, framed);
    }

    #[test]
    fn proxy_that_goes_is_expected_to_release_nothing() {
        let mut book = book(1);
        book.removed(NOW, 0, NodeId(1), DepartureReason::Silent);
        assert_eq!(book.memberships, []);
        assert!(book.events.last().unwrap().text.contains("silent"));
    }

    #[test]
    fn late_receiver_is_expected_from_the_frame_of_its_place_on() {
        let mut book = book(1);
        (0..4).for_each(|sequence| frame(&mut book, sequence));
        book.joined(NOW, 0, (NodeId(9), Role::Receiver), STARTED);
        (4..9).for_each(|sequence| frame(&mut book, sequence));
        book.place_newcomers(0, |_| None);
        assert_eq!(book.memberships, [], "no place yet");
        book.place_newcomers(0, |_| Some(6));
        assert_eq!((book.memberships[0].receiver, book.memberships[0].from), (NodeId(9), 18));
        assert!(book.trees[0].recent.is_empty());
    }

    #[test]
    fn recorder_is_no_receiver_whenever_it_comes_and_goes() {
        let mut book = book(1);
        book.joined(NOW, 0, (NodeId(9), Role::Recorder), STARTED);
        book.place_newcomers(0, |_| Some(0));
        book.removed(NOW, 0, NodeId(9), DepartureReason::Silent);
        assert_eq!(book.memberships, []);
    }

    #[test]
    fn receiver_that_goes_before_it_has_a_place_is_expected_to_have_nothing() {
        let mut book = book(1);
        (0..4).for_each(|sequence| frame(&mut book, sequence));
        book.joined(NOW, 0, (NodeId(9), Role::Receiver), STARTED);
        book.removed(NOW, 0, NodeId(9), DepartureReason::Left);
        assert_eq!(book.memberships, []);
    }

    /// First message, the message after the last, and the start of the process.
    fn spans(book: &RunLedger, stream: u32) -> Vec<(u64, Option<u64>, u64)> {
        let of = book.memberships.iter().filter(|m| m.stream == stream);
        of.map(|m| (m.from, m.until, m.started_ns)).collect()
    }

    #[test]
    fn receiver_back_from_a_pause_goes_on_where_it_was() {
        let mut book = book(2);
        (0..4).for_each(|sequence| frame(&mut book, sequence));
        book.removed(NOW, 0, NodeId(2), DepartureReason::Silent);
        assert_eq!(spans(&book, 0), [(0, Some(12), STARTED)]);
        assert_eq!(spans(&book, 1), [(0, None, STARTED)], "still in the other tree");
        book.joined(NOW, 0, (NodeId(2), Role::Receiver), STARTED + 1);
        assert_eq!(spans(&book, 0), [(0, None, STARTED + 1)]);
    }

    #[test]
    fn receiver_that_is_started_again_opens_a_membership_of_its_own() {
        for reason in [DepartureReason::Silent, DepartureReason::Left, DepartureReason::Restarted] {
            let mut book = book(1);
            (0..4).for_each(|sequence| frame(&mut book, sequence));
            book.removed(NOW, 0, NodeId(2), reason);
            book.joined(NOW, 0, (NodeId(2), Role::Receiver), AGAIN);
            (4..6).for_each(|sequence| frame(&mut book, sequence));
            book.place_newcomers(0, |_| Some(5));
            let expected = [(0, Some(12), STARTED), (15, None, AGAIN)];
            assert_eq!(spans(&book, 0), expected, "{reason:?}");
        }
    }

    #[test]
    fn receiver_started_again_before_the_tree_stands_is_expected_to_have_everything() {
        let mut book = book(2);
        book.trees.iter_mut().for_each(|tree| tree.formed = false);
        for stream in [0, 1] {
            book.removed(NOW, stream, NodeId(2), DepartureReason::Restarted);
            book.joined(NOW, stream, (NodeId(2), Role::Receiver), AGAIN);
            assert_eq!(spans(&book, stream), [(0, None, AGAIN)]);
        }
    }
}
