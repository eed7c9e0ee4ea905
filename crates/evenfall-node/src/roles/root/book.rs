//! What the root writes down of a run: what it sent and when, who came and went, and from which
//! message to which one a receiver is expected to have everything.

use std::collections::{BTreeMap, VecDeque};

use evenfall_core::{Clock, NodeId, Timestamp};
use evenfall_multicast::fairness::Sent;
use evenfall_multicast::replace::{Replacement, Step};
use evenfall_multicast::{Framed, Reason, Role, Root, RootEvent};

use crate::report::{Membership, RunEvent};
use crate::runlog::Record;
use crate::settings::Settings;

/// Events kept for the report; a run that has more is told by its metrics.
const EVENTS_MAX: usize = 10_000;
/// Frames remembered while a late receiver waits for its place. It gets it within a few
/// milliseconds; this is half a second at 100,000 frames a second.
const RECENT_MAX: usize = 65_536;

/// What has been said of one tree.
#[derive(Default)]
struct TreeBook {
    /// Scheduled times of messages that are in no frame yet.
    scheduled: VecDeque<u64>,
    formed: bool,
    finished: bool,
    /// Messages framed.
    framed: u64,
    /// Receivers that joined while the stream runs and have no place yet.
    newcomers: Vec<NodeId>,
    /// Frame number and first message of what was framed since the first of them came.
    recent: VecDeque<(u64, u64)>,
}

impl TreeBook {
    /// The first message at or after a frame.
    fn message_of(&self, frame: u64) -> u64 {
        let found = self.recent.iter().find(|(sequence, _)| *sequence >= frame);
        found.map_or(self.framed, |(_, first_message)| *first_message)
    }
}

/// What has been said of the run so far.
pub(super) struct Book {
    pub(super) clock: Clock,
    pub(super) records: Vec<Record>,
    pub(super) events: Vec<RunEvent>,
    pub(super) memberships: Vec<Membership>,
    id: NodeId,
    names: BTreeMap<NodeId, String>,
    trees: Vec<TreeBook>,
    receivers: Vec<NodeId>,
}

impl Book {
    pub(super) fn new(settings: &Settings, id: NodeId, clock: Clock) -> Self {
        Self {
            clock,
            records: Vec::new(),
            events: Vec::new(),
            memberships: Vec::new(),
            id,
            names: settings.nodes.iter().map(|node| (node.id, node.name.clone())).collect(),
            trees: (0..settings.run.trees).map(|_| TreeBook::default()).collect(),
            receivers: Vec::new(),
        }
    }

    /// Whether every tree has come into force.
    pub(super) fn formed(&self) -> bool {
        self.trees.iter().all(|tree| tree.formed)
    }

    /// Whether all receivers of every tree have everything.
    pub(super) fn finished(&self) -> bool {
        self.trees.iter().all(|tree| tree.finished)
    }

    /// A message is about to be published, and was due at this synchronised time.
    pub(super) fn due(&mut self, tree: usize, scheduled_ns: u64) {
        self.trees[tree].scheduled.push_back(scheduled_ns);
    }

    /// It was not taken after all.
    pub(super) fn refused(&mut self, tree: usize) {
        self.trees[tree].scheduled.pop_back();
    }

    fn name(&self, id: NodeId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    pub(super) fn event(&mut self, now: Timestamp, kind: &str, node: Option<NodeId>, text: String) {
        if self.events.len() < EVENTS_MAX {
            let at_ns = self.clock.sync(now).nanos();
            self.events.push(RunEvent { at_ns, kind: kind.to_owned(), node, text });
        }
    }

    pub(super) fn on(&mut self, root: &Root, now: Timestamp, event: RootEvent) {
        let stream = root.stream();
        match event {
            RootEvent::Framed(framed) => self.framed(stream, framed),
            RootEvent::Joined(id, role) => self.joined(now, stream, id, role),
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
            self.records.push(Record::Sent(Sent {
                stream,
                message,
                scheduled_ns: tree.scheduled.pop_front().unwrap_or_default(),
                sent_ns: framed.origin.nanos(),
                deadline_ns: framed.deadline.nanos(),
            }));
        }
    }

    fn joined(&mut self, now: Timestamp, stream: u32, id: NodeId, role: Role) {
        let text = format!("{} joined tree {stream}", self.name(id));
        self.event(now, "join", Some(id), text);
        if !role.receives() {
            return;
        }
        let known = self.receivers.contains(&id);
        if !known {
            self.receivers.push(id);
        }
        let own = self.memberships.iter_mut().find(|m| m.receiver == id && m.stream == stream);
        match own {
            // Back from a pause: it goes on where it was, by repair.
            Some(earlier) => (earlier.until, earlier.left) = (None, false),
            None if self.trees[stream as usize].formed => {
                self.trees[stream as usize].newcomers.push(id);
            }
            None => {}
        }
    }

    /// Receivers that have a place now are expected to have everything from its first frame on.
    fn place_newcomers(&mut self, stream: u32, start_of: impl Fn(NodeId) -> Option<u64>) {
        let tree = &mut self.trees[stream as usize];
        for id in core::mem::take(&mut tree.newcomers) {
            match start_of(id) {
                Some(frame) => {
                    let from = tree.message_of(frame);
                    let membership =
                        Membership { receiver: id, stream, from, ..Default::default() };
                    self.memberships.push(membership);
                }
                None => tree.newcomers.push(id),
            }
        }
        if tree.newcomers.is_empty() {
            tree.recent.clear();
        }
    }

    fn removed(&mut self, now: Timestamp, stream: u32, id: NodeId, reason: Reason) {
        let name = self.name(id);
        let (kind, why) = match reason {
            Reason::Left => ("leave", "it left"),
            Reason::Silent => ("evict", "it was silent and did not answer"),
            Reason::TooSlow => ("evict", "it asked for more repair than its queue holds"),
            Reason::Restarted => ("leave", "it started again"),
        };
        let text = format!("{name} is out of tree {stream}: {why}");
        eprintln!("{text}");
        self.event(now, kind, Some(id), text);
        if !self.receivers.contains(&id) {
            return;
        }
        self.trees[stream as usize].newcomers.retain(|newcomer| *newcomer != id);
        self.found(id);
        if reason == Reason::Restarted {
            // Another process with a log of its own: it joins as if it had never been there.
            self.memberships.retain(|m| m.receiver != id || m.stream != stream);
            return;
        }
        let until = self.trees[stream as usize].framed;
        for own in &mut self.memberships {
            if own.receiver == id && own.stream == stream && own.until.is_none() {
                (own.until, own.left) = (Some(until), reason == Reason::Left);
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
            Step::Tried => format!("{new} is tried in the place of {old}: {cause}"),
            Step::Made => format!("{old} is replaced by {new}: {cause}; {tail}"),
            Step::RolledBack => format!("{new} steps back, {old} stays: {tail}"),
            Step::Abandoned => format!("{new} is no longer tried for {old}: the tree changed"),
        };
        let text = format!("tree {stream}: {text}");
        eprintln!("{text}");
        self.event(now, "replace", Some(r.old), text);
    }

    /// A receiver without a membership was there from the start, in every tree. When it goes from
    /// one of them, that must be said of all.
    fn found(&mut self, receiver: NodeId) {
        if self.memberships.iter().any(|m| m.receiver == receiver) {
            return;
        }
        for stream in 0..self.trees.len() as u32 {
            if self.trees[stream as usize].newcomers.contains(&receiver) {
                continue;
            }
            self.memberships.push(Membership { receiver, stream, ..Default::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::SyncTime;

    const NOW: Timestamp = Timestamp::from_nanos(1_000);

    fn book(trees: u32) -> Book {
        let mut settings = Settings::default();
        settings.run.trees = trees;
        let mut book = Book::new(&settings, NodeId(0), Clock::default());
        book.joined(NOW, 0, NodeId(1), Role::Proxy);
        for stream in 0..trees {
            book.joined(NOW, stream, NodeId(2), Role::Receiver);
            book.trees[stream as usize].formed = true;
        }
        book
    }

    fn frame(book: &mut Book, sequence: u64) {
        let framed = Framed {
            sequence,
            first_message: sequence * 3,
            count: 3,
            origin: SyncTime::ZERO,
            deadline: SyncTime::ZERO,
        };
        book.framed(0, framed);
    }

    #[test]
    fn proxy_that_goes_is_expected_to_release_nothing() {
        let mut book = book(1);
        book.removed(NOW, 0, NodeId(1), Reason::Silent);
        assert_eq!(book.memberships, []);
        assert!(book.events.last().unwrap().text.contains("silent"));
    }

    #[test]
    fn late_receiver_is_expected_from_the_frame_of_its_place_on() {
        let mut book = book(1);
        (0..4).for_each(|sequence| frame(&mut book, sequence));
        book.joined(NOW, 0, NodeId(9), Role::Receiver);
        (4..9).for_each(|sequence| frame(&mut book, sequence));
        book.place_newcomers(0, |_| None);
        assert_eq!(book.memberships, [], "no place yet");
        book.place_newcomers(0, |_| Some(6));
        assert_eq!((book.memberships[0].receiver, book.memberships[0].from), (NodeId(9), 18));
        assert!(book.trees[0].recent.is_empty());
    }

    #[test]
    fn receiver_that_comes_back_goes_on_and_one_that_starts_again_begins_anew() {
        let mut book = book(2);
        (0..4).for_each(|sequence| frame(&mut book, sequence));
        book.removed(NOW, 0, NodeId(2), Reason::Silent);
        let untils = |book: &Book| book.memberships.iter().map(|m| m.until).collect::<Vec<_>>();
        assert_eq!(untils(&book), [Some(12), None], "still in the other tree");
        book.joined(NOW, 0, NodeId(2), Role::Receiver);
        assert_eq!(untils(&book), [None, None]);
        book.removed(NOW, 0, NodeId(2), Reason::Restarted);
        book.joined(NOW, 0, NodeId(2), Role::Receiver);
        book.place_newcomers(0, |_| Some(4));
        let own = book.memberships.iter().find(|m| m.stream == 0).unwrap();
        assert_eq!((own.from, own.until), (12, None));
    }
}
