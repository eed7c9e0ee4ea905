//! The authors of a candidate: publishers that are processes of their own. See
//! [`line`](crate::line).

use std::collections::VecDeque;

use evenfall_core::{Arrival, Malformed, Timestamp, Transmit};
use evenfall_multicast_machine::{Draft, Mark, Root, Run};

use super::{CandidateEvent, Voice};
use crate::line::reception::Standing;
use crate::{Lines, Reception, Wish};

/// A message in the feed: its number, its author and its place.
type Placed = (u64, u64, u64);

/// The authors of a candidate.
pub(super) struct Authors {
    reception: Reception,
    /// The messages that are in no draft yet.
    undrafted: VecDeque<Placed>,
    /// The run of a root without voters.
    run: Run,
    /// The lines of a root without voters.
    lines: Lines,
    /// Lines that shall begin when all messages of their names are in drafts. A frame with a
    /// message of a line that is over would be refused, and all frames behind it.
    begins: Vec<Wish>,
    /// The wishes on which the voters are asked to agree.
    wishes: Vec<Wish>,
}

impl Authors {
    pub(super) fn new(reception: Reception, run: Run) -> Self {
        let (undrafted, lines) = Default::default();
        Self { reception, undrafted, run, lines, begins: Vec::new(), wishes: Vec::new() }
    }

    pub(super) fn admit(&mut self, is_open: bool) {
        self.reception.open(is_open);
    }

    /// The lines on which the voters agreed, or those of a root without voters.
    pub(super) fn lines<'a>(&'a self, voice: Option<&'a Voice>) -> &'a Lines {
        voice.map_or(&self.lines, |voice| voice.sequence.lines())
    }

    fn standing(&self, voice: Option<&Voice>, root: &Root) -> Standing {
        let own = (self.run.epoch, self.run.id);
        let run = voice.map_or(Some(own), |voice| voice.sequence.run());
        let (epoch, run_id) = run.unwrap_or_default();
        Standing { epoch, run_id, leads: run.is_some() && !root.is_waiting() }
    }

    /// Takes a letter, and publishes its messages. Returns a wish on which the voters shall agree.
    pub(super) fn handle(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
        (voice, root): (Option<&Voice>, &mut Root),
        events: &mut VecDeque<CandidateEvent>,
    ) -> Result<Option<Wish>, Malformed> {
        let standing = self.standing(voice, root);
        let lines = voice.map_or(&self.lines, |voice| voice.sequence.lines());
        let undrafted = &mut self.undrafted;
        let letter = (arrival.from, &arrival.datagram);
        let wish = self.reception.handle(letter, standing, lines, &mut |author, place, said| {
            let (format, message) = said;
            let number = root.publish(now, format, &message).ok()?;
            undrafted.push_back((number, author, place));
            events.push_back(CandidateEvent::Published { number, format, message });
            Some(number)
        })?;
        root.flush(now);
        if voice.is_none() {
            self.agree_alone(wish, events);
            return Ok(None);
        }
        let wish = wish.filter(|wish| !self.wishes.contains(wish));
        self.wishes.extend(wish);
        if let Some(Wish::Begin { .. }) = wish {
            self.begins.extend(wish);
            return Ok(None);
        }
        Ok(wish)
    }

    /// A root without voters agrees with itself.
    fn agree_alone(&mut self, wish: Option<Wish>, events: &mut VecDeque<CandidateEvent>) {
        for (number, author, place) in self.undrafted.drain(..) {
            self.lines.take(&[Mark { author, place, count: 1 }], number);
            self.reception.agreed(author);
        }
        if let Some(wish) = wish.filter(|wish| self.lines.grant(wish)) {
            self.reception.agreed(wish.author());
            events.push_back(CandidateEvent::Line(wish));
        }
    }

    /// The next line that may begin.
    pub(super) fn poll_begin(&mut self, lines: &Lines) -> Option<Wish> {
        let waits = |name: u64| self.undrafted.iter().any(|(_, of, _)| lines.name(*of) == name);
        let may_begin = |wish: &Wish| match *wish {
            Wish::Begin { name, .. } => name == 0 || !waits(name),
            Wish::End { .. } => true,
        };
        let place = self.begins.iter().position(may_begin)?;
        Some(self.begins.remove(place))
    }

    /// The voters agreed on messages of this author, or on the end of its line.
    pub(super) fn agreed(&mut self, author: u64) {
        self.reception.agreed(author);
    }

    /// The lead has changed.
    pub(super) fn turn_over(&mut self) {
        self.reception.turn_over();
        self.undrafted.clear();
        self.begins.clear();
        self.wishes.clear();
    }

    /// A draft with the authors of its messages.
    pub(super) fn marked(&self, draft: Draft) -> Draft {
        let numbers = draft.first_message()..draft.first_message() + u64::from(draft.count());
        let placed = self.undrafted.iter().filter(|(number, ..)| numbers.contains(number));
        let mut placed = placed.peekable();
        if placed.peek().is_none() {
            return draft;
        }
        let mut marks: Vec<Mark> = Vec::new();
        for number in numbers.clone() {
            let own = placed.next_if(|(placed, ..)| *placed == number);
            let (author, place) = own.map_or((0, 0), |(_, author, place)| (*author, *place));
            let follows = |mark: &&mut Mark| {
                let next = if author == 0 { 0 } else { mark.place + u64::from(mark.count) };
                (mark.author, next) == (author, place)
            };
            match marks.last_mut().filter(follows) {
                Some(mark) => mark.count += 1,
                None => marks.push(Mark { author, place, count: 1 }),
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
    pub(super) fn poll_transmit(&mut self, voice: Option<&Voice>, root: &Root) -> Option<Transmit> {
        let standing = self.standing(voice, root);
        let lines = voice.map_or(&self.lines, |voice| voice.sequence.lines());
        self.reception.poll_transmit(standing, lines)
    }
}
