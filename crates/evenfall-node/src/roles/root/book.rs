//! The book of a root: what was said of the run so far, for its log and its report.

use std::collections::VecDeque;

use evenfall_core::{Clock, NodeId, Timestamp};
use evenfall_multicast::fairness::Sent;
use evenfall_multicast::{Reason, Role, Root, RootEvent};

use crate::report::{Membership, RunEvent};
use crate::runlog::Record;

/// What has been said of the run so far.
pub(super) struct Book {
    pub(super) clock: Clock,
    id: NodeId,
    /// Scheduled times of messages that are in no frame yet, per tree.
    pub(super) scheduled: Vec<VecDeque<u64>>,
    pub(super) records: Vec<Record>,
    pub(super) events: Vec<RunEvent>,
    pub(super) memberships: Vec<Membership>,
    pub(super) formed: Vec<bool>,
    pub(super) finished: Vec<bool>,
    /// Messages framed, per tree.
    framed: Vec<u64>,
}

/// Events kept for the report; a run that has more is told by its metrics.
const EVENTS_MAX: usize = 10_000;

impl Book {
    pub(super) fn new(trees: usize, id: NodeId, clock: Clock) -> Self {
        Self {
            clock,
            id,
            scheduled: vec![VecDeque::new(); trees],
            records: Vec::new(),
            events: Vec::new(),
            memberships: Vec::new(),
            formed: vec![false; trees],
            finished: vec![false; trees],
            framed: vec![0; trees],
        }
    }

    pub(super) fn event(&mut self, now: Timestamp, kind: &str, node: Option<NodeId>, text: String) {
        if self.events.len() < EVENTS_MAX {
            let at_ns = self.clock.sync(now).nanos();
            self.events.push(RunEvent { at_ns, kind: kind.to_owned(), node, text });
        }
    }

    pub(super) fn on(&mut self, root: &Root, now: Timestamp, event: RootEvent) {
        let stream = root.stream();
        let tree = stream as usize;
        match event {
            RootEvent::Framed(framed) => {
                self.framed[tree] += u64::from(framed.count);
                for message in framed.first_message..framed.first_message + u64::from(framed.count)
                {
                    let scheduled_ns = self.scheduled[tree].pop_front().unwrap_or_default();
                    self.records.push(Record::Sent(Sent {
                        stream,
                        message,
                        scheduled_ns,
                        sent_ns: framed.origin.nanos(),
                        deadline_ns: framed.deadline.nanos(),
                    }));
                }
            }
            RootEvent::Joined(id, role) => self.joined(now, stream, id, role),
            RootEvent::Removed(id, reason) => self.removed(now, stream, id, reason),
            RootEvent::View(view) => {
                self.formed[tree] = true;
                let text = format!(
                    "tree {stream}, view {}: depth {}, {} proxies and {} spare, {} receivers",
                    view.number,
                    view.depth,
                    view.proxies,
                    view.spares.len(),
                    view.receivers
                );
                self.event(now, "view", Some(self.id), text);
            }
            RootEvent::Finished(_) => self.finished[tree] = true,
        }
    }

    fn joined(&mut self, now: Timestamp, stream: u32, id: NodeId, role: Role) {
        self.event(now, "join", Some(id), format!("{id} joined tree {stream}"));
        if role != Role::Receiver || !self.formed[stream as usize] {
            return;
        }
        let from = self.framed[stream as usize];
        let mut own = self.memberships.iter_mut().filter(|m| m.receiver == id);
        match own.find(|m| m.stream == stream && m.until.is_some()) {
            // Back from a pause: it goes on where it was, by repair.
            Some(earlier) => earlier.until = None,
            None => {
                self.memberships.push(Membership { receiver: id, stream, from, until: None });
            }
        }
    }

    fn removed(&mut self, now: Timestamp, stream: u32, id: NodeId, reason: Reason) {
        let text = format!("{id} is out of tree {stream}: {reason:?}");
        eprintln!("{text}");
        self.event(now, if reason == Reason::Left { "leave" } else { "evict" }, Some(id), text);
        let until = Some(self.framed[stream as usize]);
        let mut own = self.memberships.iter_mut().filter(|m| m.receiver == id);
        match own.find(|m| m.stream == stream && m.until.is_none()) {
            Some(membership) => membership.until = until,
            None => {
                self.memberships.push(Membership { receiver: id, stream, from: 0, until });
            }
        }
    }
}
