//! An author: a publisher in a process of its own.
//!
//! An author knows the addresses of all roots, and does not know which of them leads. It asks all
//! of them until one says that it leads. From then on it sends its messages to that root, in the
//! order of their places, and keeps each message until its number has come. Without progress for a
//! while, the author begins again at the first message that has no number, and asks all roots. The
//! wait doubles each time. A root of a later epoch is preferred, because two roots may believe for
//! a moment that they lead.
//!
//! The first message leaves when the roots have agreed that the line begins. Their answer tells how
//! many messages of the author's name are in the feed already, so that a process that was started
//! again goes on behind them.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Destination, Format, Machine, Malformed, SharedKey, Timestamp,
    TrafficClass, Transmit,
};

use super::wire::{
    LETTER_OVERHEAD, MESSAGE_OVERHEAD, ProduceRequest, ProduceResponse, ProducerDirection,
    ProducerEnvelope,
};
use super::{NumberedRange, WINDOW};

/// Bytes of messages without an answer, beyond which no message is taken. They fit the receive
/// buffer of a root.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Longest message. A datagram of UDP carries it with its letter.
pub const MESSAGE_BYTES_MAX: usize = 65_000;
/// Bytes of a letter with several messages: a frame of Ethernet.
const LETTER_BYTES: usize = 1_400;
/// Wait without progress until the author sends again. A vote takes a millisecond on a quiet
/// machine.
const PATIENCE: Duration = Duration::from_millis(20);
/// Longest wait until the author sends again. It is short beside a takeover, which takes a third
/// of a second.
const PATIENCE_MAX: Duration = Duration::from_millis(80);

/// An event of an author for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProducerEvent {
    /// The line has begun. So many messages of the author's name are in the feed, of the processes
    /// before this one.
    Begun(u64),
    /// Roots answer, and none of them takes messages yet.
    Waiting,
    /// Another process publishes under the name of this author. No message of this author follows.
    Replaced,
    /// The message of this place has this number in the feed, whichever root dies.
    Numbered {
        /// The place.
        place: u64,
        /// The number in the feed.
        number: u64,
    },
    /// A root of this epoch leads, and takes messages.
    Leads(u32),
    /// The roots know that no message follows.
    Over,
    /// The run has as many authors as it may have.
    Refused,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProduceRefusal {
    /// As many messages wait for their numbers as may.
    Full,
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// The line is finished.
    Finished,
}

/// See the module documentation.
pub struct ProducerSession {
    life: u64,
    name: u64,
    /// Messages of the name in front of this line, once the line has begun.
    base: Option<u64>,
    /// Whether the owner knows that the roots take no messages.
    is_waiting: bool,
    /// When a root of the run was heard last.
    heard: Timestamp,
    key: Option<SharedKey>,
    roots: Vec<SocketAddr>,
    /// The run; 0 while no root that leads has named it.
    run_id: u64,
    epoch: u32,
    leader: Option<SocketAddr>,
    /// Messages without a number, from place `first` on.
    waiting: VecDeque<(Format, Bytes)>,
    waiting_bytes: usize,
    first: u64,
    /// The place that is sent next.
    next: u64,
    is_finished: bool,
    is_over: bool,
    /// Whether the end of the line is to be told.
    tells_end: bool,
    letters: u64,
    asks: VecDeque<SocketAddr>,
    retry_at: Timestamp,
    patience: Duration,
    events: VecDeque<ProducerEvent>,
}

impl ProducerSession {
    /// An author without a message. `life` is a random number above 0 that no other author has.
    pub fn new(now: Timestamp, roots: &[SocketAddr], life: u64, key: Option<SharedKey>) -> Self {
        Self {
            life: life.max(1),
            name: 0,
            base: None,
            is_waiting: false,
            heard: now,
            key,
            roots: roots.to_vec(),
            run_id: 0,
            epoch: 0,
            leader: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            first: 0,
            next: 0,
            is_finished: false,
            is_over: false,
            tells_end: false,
            letters: 0,
            asks: VecDeque::new(),
            retry_at: now,
            patience: PATIENCE,
            events: VecDeque::new(),
        }
    }

    /// Gives the author a name, which a process that is started again has too. 0 is no name.
    pub fn named(self, name: u64) -> Self {
        Self { name, ..self }
    }

    /// When a root of the run was heard last.
    pub fn heard(&self) -> Timestamp {
        self.heard
    }

    /// Takes a message. Returns its place.
    ///
    /// # Errors
    /// [`ProduceRefusal`]; the message has no place then.
    pub fn publish(
        &mut self,
        now: Timestamp,
        format: Format,
        message: Bytes,
    ) -> Result<u64, ProduceRefusal> {
        if self.is_finished {
            return Err(ProduceRefusal::Finished);
        }
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(ProduceRefusal::TooLong);
        }
        let bytes = self.waiting_bytes + message.len();
        if self.waiting.len() == WINDOW || !self.waiting.is_empty() && bytes > WINDOW_BYTES {
            return Err(ProduceRefusal::Full);
        }
        self.rest(now);
        self.waiting_bytes = bytes;
        self.waiting.push_back((format, message));
        Ok(self.end() - 1)
    }

    /// No message follows.
    pub fn finish(&mut self, now: Timestamp) {
        self.rest(now);
        self.is_finished = true;
        self.tells_end = true;
    }

    /// The number of messages without an answer.
    pub fn unanswered(&self) -> usize {
        self.waiting.len()
    }

    /// The place behind the last message.
    fn end(&self) -> u64 {
        self.first + self.waiting.len() as u64
    }

    /// Whether the author waits for something.
    fn waits(&self) -> bool {
        let wants_end = self.is_finished && !self.is_over;
        let has_begun = self.leader.is_some() && self.base.is_some();
        !self.is_over && (!has_begun || !self.waiting.is_empty() || wants_end)
    }

    /// The wait for an answer begins now, unless the author waits already.
    fn rest(&mut self, now: Timestamp) {
        if !self.waits() {
            (self.patience, self.retry_at) = (PATIENCE, now + PATIENCE);
        }
    }

    fn answered(
        &mut self,
        now: Timestamp,
        from: SocketAddr,
        run_id: u64,
        answer: &ProduceResponse,
    ) {
        if self.run_id == 0 && answer.leads {
            self.run_id = run_id;
        }
        if answer.is_refused {
            self.events.push_back(ProducerEvent::Refused);
        }
        if self.run_id == 0 || run_id != self.run_id {
            self.notice(answer);
            return;
        }
        self.heard = now;
        if answer.is_begun && self.base.is_none() {
            self.base = Some(answer.base);
            self.events.push_back(ProducerEvent::Begun(answer.base));
        }
        for stretch in &answer.stretches {
            self.number(now, stretch);
        }
        if answer.is_over && !self.is_over {
            self.is_over = true;
            let event = match answer.is_finished {
                true => ProducerEvent::Over,
                false => ProducerEvent::Replaced,
            };
            self.events.push_back(event);
        }
        self.follow(now, from, answer);
    }

    /// Tells the owner once that roots answer and none of them leads.
    fn notice(&mut self, answer: &ProduceResponse) {
        let is_new = self.leader.is_none() && !answer.leads && !self.is_waiting;
        if is_new {
            self.is_waiting = true;
            self.events.push_back(ProducerEvent::Waiting);
        }
    }

    /// Takes the numbers of the first messages that have none.
    fn number(&mut self, now: Timestamp, stretch: &NumberedRange) {
        let end = stretch.place + u64::from(stretch.count);
        while (stretch.place..end).contains(&self.first) {
            // No root numbers a place that was never sent.
            let Some((_, message)) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= message.len();
            let number = stretch.number + (self.first - stretch.place);
            self.events.push_back(ProducerEvent::Numbered { place: self.first, number });
            self.first += 1;
            self.next = self.next.max(self.first);
            (self.patience, self.retry_at) = (PATIENCE, now + PATIENCE);
        }
    }

    /// Follows the root that leads.
    fn follow(&mut self, now: Timestamp, from: SocketAddr, answer: &ProduceResponse) {
        if answer.epoch < self.epoch {
            return;
        }
        if !answer.leads {
            if self.leader == Some(from) {
                self.leader = None;
                self.retry_at = now;
            }
            self.notice(answer);
            return;
        }
        if self.leader != Some(from) || answer.epoch > self.epoch {
            (self.leader, self.epoch) = (Some(from), answer.epoch);
            (self.patience, self.retry_at) = (PATIENCE, now + PATIENCE);
            self.again();
            self.is_waiting = false;
            // A root begins a line when an author that knows the run asks.
            self.asks.extend(self.base.is_none().then_some(from));
            self.events.push_back(ProducerEvent::Leads(answer.epoch));
        }
    }

    /// Everything without an answer is sent again.
    fn again(&mut self) {
        self.next = self.first;
        self.tells_end = self.is_finished;
    }

    /// A letter with the next messages.
    fn say(&mut self) -> ProduceRequest {
        let (have, place) = (self.first, self.next);
        let skipped = (self.next - self.first) as usize;
        let mut bytes = LETTER_OVERHEAD;
        let mut messages = Vec::new();
        for (format, message) in self.waiting.iter().skip(skipped) {
            bytes += message.len() + MESSAGE_OVERHEAD;
            if bytes > LETTER_BYTES && !messages.is_empty() {
                break;
            }
            messages.push((*format, message.clone()));
        }
        self.next += messages.len() as u64;
        ProduceRequest { have, place, is_end: false, messages }
    }

    fn letter(&mut self, to: SocketAddr, class: TrafficClass, say: &ProduceRequest) -> Transmit {
        self.letters += 1;
        let envelope = ProducerEnvelope {
            kind: ProducerDirection::ToRoot,
            name: self.name,
            author: self.life,
            life: 0,
            run_id: self.run_id,
            number: self.letters,
        };
        let (head, body) = envelope.seal(self.key.as_ref(), say.encode());
        Transmit::new(class, Destination::One(to), head, body)
    }

    fn ask(&self, is_end: bool) -> ProduceRequest {
        let place = self.first;
        ProduceRequest { have: place, place, is_end, messages: Vec::new() }
    }
}

impl Machine for ProducerSession {
    type Event = ProducerEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let (envelope, body) = ProducerEnvelope::open(self.key.as_ref(), &arrival.datagram)?;
        let is_ours =
            envelope.kind == ProducerDirection::ToPublisher && envelope.author == self.life;
        if !is_ours || !self.roots.contains(&arrival.from) {
            return Err(Malformed { what: "no answer of a root to this author", offset: 0 });
        }
        let answer = ProduceResponse::decode(&body)?;
        self.answered(now, arrival.from, envelope.run_id, &answer);
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if !self.waits() || now < self.retry_at {
            return;
        }
        self.again();
        self.asks.clear();
        let hears_nothing = self.base.is_none();
        let asked = |root: &&SocketAddr| hears_nothing || self.leader != Some(**root);
        self.asks.extend(self.roots.iter().filter(asked));
        self.retry_at = now + self.patience;
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<ProducerEvent> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        if let Some(root) = self.asks.pop_front() {
            let say = self.ask(false);
            return Some(self.letter(root, TrafficClass::Control, &say));
        }
        let leader = self.leader.filter(|_| self.base.is_some() && !self.is_over)?;
        if self.next < self.end() {
            let say = self.say();
            return Some(self.letter(leader, TrafficClass::Live, &say));
        }
        // The end is told when all numbers are known, since a root refuses it earlier.
        let tells_end = self.waiting.is_empty() && core::mem::take(&mut self.tells_end);
        let say = self.ask(true);
        tells_end.then(|| self.letter(leader, TrafficClass::Live, &say))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.waits().then_some(self.retry_at)
    }
}
