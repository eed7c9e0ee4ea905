//! The authors of a candidate: publishers that are processes of their own. See
//! [`line`](crate::producer).

use std::collections::VecDeque;

use evenfall_core::{Arrival, Malformed, Timestamp, Transmit};
use evenfall_multicast_machine::{Draft, ProducerMark, Root, RootRun};

use super::{ReplicatedRootEvent, Voter};
use crate::producer::ingress::LeadStanding;
use crate::{ProducerIngress, ProducerTable, SessionChange};

/// A message in the feed: its number, its author and its place.
type Placed = (u64, u64, u64);

/// The authors of a candidate.
pub(super) struct RootProducers {
    ingress: ProducerIngress,
    /// The messages that are in no draft yet.
    undrafted: VecDeque<Placed>,
    /// The run of a root without voters.
    run: RootRun,
    /// The lines of a root without voters.
    lines: ProducerTable,
    /// ProducerTable that shall begin when all messages of their names are in drafts. A frame with
    /// a message of a line that is over would be refused, and all frames behind it.
    begins: Vec<SessionChange>,
    /// The changes on which the voters are asked to agree.
    changes: Vec<SessionChange>,
}

impl RootProducers {
    pub(super) fn new(ingress: ProducerIngress, run: RootRun) -> Self {
        let (undrafted, lines) = Default::default();
        Self { ingress, undrafted, run, lines, begins: Vec::new(), changes: Vec::new() }
    }

    pub(super) fn admit(&mut self, is_open: bool) {
        self.ingress.open(is_open);
    }

    /// The lines on which the voters agreed, or those of a root without voters.
    pub(super) fn lines<'a>(&'a self, voter: Option<&'a Voter>) -> &'a ProducerTable {
        voter.map_or(&self.lines, |voter| voter.sequence.lines())
    }

    fn standing(&self, voter: Option<&Voter>, root: &Root) -> LeadStanding {
        let own = (self.run.epoch, self.run.id);
        let run = voter.map_or(Some(own), |voter| voter.sequence.run());
        let (epoch, run_id) = run.unwrap_or_default();
        LeadStanding { epoch, run_id, leads: run.is_some() && !root.is_waiting() }
    }

    /// Takes a letter, and publishes its messages. Returns a change on which the voters shall
    /// agree.
    pub(super) fn handle(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
        (voter, root): (Option<&Voter>, &mut Root),
        events: &mut VecDeque<ReplicatedRootEvent>,
    ) -> Result<Option<SessionChange>, Malformed> {
        let standing = self.standing(voter, root);
        let lines = voter.map_or(&self.lines, |voter| voter.sequence.lines());
        let undrafted = &mut self.undrafted;
        let letter = (arrival.from, &arrival.datagram);
        let change = self.ingress.handle(letter, standing, lines, &mut |author, place, said| {
            let (format, message) = said;
            let number = root.publish(now, format, &message).ok()?;
            undrafted.push_back((number, author, place));
            events.push_back(ReplicatedRootEvent::Published { number, format, message });
            Some(number)
        })?;
        root.flush(now);
        if voter.is_none() {
            self.agree_alone(change, events);
            return Ok(None);
        }
        let change = change.filter(|change| !self.changes.contains(change));
        self.changes.extend(change);
        if let Some(SessionChange::Begin { .. }) = change {
            self.begins.extend(change);
            return Ok(None);
        }
        Ok(change)
    }

    /// A root without voters agrees with itself.
    fn agree_alone(
        &mut self,
        change: Option<SessionChange>,
        events: &mut VecDeque<ReplicatedRootEvent>,
    ) {
        for (number, author, place) in self.undrafted.drain(..) {
            self.lines.take(&[ProducerMark { author, place, count: 1 }], number);
            self.ingress.agreed(author);
        }
        if let Some(change) = change.filter(|change| self.lines.grant(change)) {
            self.ingress.agreed(change.author());
            events.push_back(ReplicatedRootEvent::Session(change));
        }
    }

    /// The next line that may begin.
    pub(super) fn poll_begin(&mut self, lines: &ProducerTable) -> Option<SessionChange> {
        let waits = |name: u64| self.undrafted.iter().any(|(_, of, _)| lines.name(*of) == name);
        let may_begin = |change: &SessionChange| match *change {
            SessionChange::Begin { name, .. } => name == 0 || !waits(name),
            SessionChange::End { .. } => true,
        };
        let place = self.begins.iter().position(may_begin)?;
        Some(self.begins.remove(place))
    }

    /// The voters agreed on messages of this author, or on the end of its line.
    pub(super) fn agreed(&mut self, author: u64) {
        self.ingress.agreed(author);
    }

    /// The lead has changed.
    pub(super) fn turn_over(&mut self) {
        self.ingress.turn_over();
        self.undrafted.clear();
        self.begins.clear();
        self.changes.clear();
    }

    /// A draft with the authors of its messages.
    pub(super) fn marked(&self, draft: Draft) -> Draft {
        let numbers = draft.first_message()..draft.first_message() + u64::from(draft.count());
        let placed = self.undrafted.iter().filter(|(number, ..)| numbers.contains(number));
        let mut placed = placed.peekable();
        if placed.peek().is_none() {
            return draft;
        }
        let mut marks: Vec<ProducerMark> = Vec::new();
        for number in numbers.clone() {
            let own = placed.next_if(|(placed, ..)| *placed == number);
            let (author, place) = own.map_or((0, 0), |(_, author, place)| (*author, *place));
            let follows = |mark: &&mut ProducerMark| {
                let next = if author == 0 { 0 } else { mark.place + u64::from(mark.count) };
                (mark.author, next) == (author, place)
            };
            match marks.last_mut().filter(follows) {
                Some(mark) => mark.count += 1,
                None => marks.push(ProducerMark { author, place, count: 1 }),
            }
        }
        draft.marked(marks)
    }

    /// A draft is on its way to the voters.
    pub(super) fn drafted(&mut self, draft: &Draft) {
        let end = draft.first_message() + u64::from(draft.count());
        let is_in = |(number, ..): &&Placed| *number < end;
        let count = self.undrafted.iter().take_while(is_in).count();
        self.undrafted.drain(..count);
    }

    /// The next answer to an author.
    pub(super) fn poll_transmit(&mut self, voter: Option<&Voter>, root: &Root) -> Option<Transmit> {
        let standing = self.standing(voter, root);
        let lines = voter.map_or(&self.lines, |voter| voter.sequence.lines());
        self.ingress.poll_transmit(standing, lines)
    }
}
