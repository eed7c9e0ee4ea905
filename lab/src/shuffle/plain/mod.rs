//! The protocol as chapter 6 of the thesis describes it, for rivals and for the variants printed
//! there.
//!
//! The thesis compares schemes that differ in a rule or two, and the exchange of the product has no
//! such rules to choose from. The exchange works in logarithmic time. This machine looks at every
//! message for every packet instead, so it is also the simple model with which the exchange is
//! compared (`lab/tests/shuffle_thesis.rs`). It knows neither loss nor silence, because its network
//! loses nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | [`rules`] | [`Rules`]: order, windows, slots, what goes unasked |
//! | `sender`, `receiver` | both halves of one shuffle |

pub mod rules;

mod receiver;
mod sender;

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Class, ClockReading, Destination, Install, Machine, Malformed, Timestamp, Transmit,
};
use evenfall_exchange_machine::Event;
use evenfall_exchange_machine::wire::{HEADER_BYTES, Header, Kind};

use receiver::Receiver;
use rules::Rules;
use sender::Sender;

/// See the module documentation.
#[derive(Debug)]
pub struct Plain {
    rules: Rules,
    me: usize,
    operation: u64,
    members: Vec<SocketAddr>,
    sender: Sender,
    receiver: Receiver,
    /// Control that waits; a grant at most once per rank, since it says where the grant ends.
    owed: VecDeque<(usize, Kind)>,
    /// By rank: where its grant ends, if that waits to be said.
    grants: Vec<Option<u32>>,
    events: VecDeque<Event>,
    /// When the link is free, in picoseconds.
    free_ps: u128,
    paced_until: Option<Timestamp>,
}

impl Plain {
    /// A machine that waits for [`start`](Self::start).
    pub fn new(rules: Rules) -> Self {
        Self {
            me: 0,
            operation: 0,
            members: Vec::new(),
            sender: Sender::new(&rules, 0, 0, Vec::new()),
            receiver: Receiver::new(&rules, 0, 0, 0),
            owed: VecDeque::new(),
            grants: Vec::new(),
            events: VecDeque::new(),
            free_ps: 0,
            paced_until: None,
            rules,
        }
    }

    /// Begins a shuffle: a message to every rank. All ranks begin at the same time.
    pub fn start(
        &mut self,
        operation: u64,
        me: usize,
        members: Vec<SocketAddr>,
        bodies: Vec<Bytes>,
    ) {
        self.me = me;
        self.operation = operation;
        self.receiver = Receiver::new(&self.rules, operation, me, members.len());
        self.sender = Sender::new(&self.rules, operation, me, bodies);
        self.grants = vec![None; members.len()];
        self.members = members;
        let silent = |&to: &usize| to != me && self.sender.messages[to].unasked == 0;
        let silent = (0..self.members.len()).filter(silent);
        self.owed = silent.map(|to| (to, Kind::Data)).collect();
    }

    /// For schemes that are told from outside: everything for this rank may go at once.
    pub fn admit(&mut self, to: usize) {
        self.sender.grant(to, u32::MAX);
    }

    /// Whether the message of this rank is one of those that are granted to and not all here.
    pub fn works_on(&self, from: usize) -> bool {
        self.receiver.works_on(from)
    }

    /// The rank without whose grant this machine can send nothing: `None` when a packet may go, or
    /// all are sent.
    pub fn waits_for(&self) -> Option<usize> {
        let may_send = !self.owed.is_empty() || self.sender.ready().is_some();
        self.sender.first(false).filter(|_| !may_send)
    }

    /// Packets that this rank was granted and that are not here.
    pub fn outstanding(&self, from: usize) -> u32 {
        self.receiver.outstanding(from)
    }

    /// Messages of which something is here, those that are complete, and bytes of all of them.
    pub fn progress(&self) -> (usize, usize, u64) {
        self.receiver.progress()
    }

    fn data(&mut self, header: &Header, payload: Bytes) {
        if self.receiver.take(header, payload.len() as u32) {
            self.owed.push_back((usize::from(header.from), Kind::Ack));
            // Nobody reads what messages say: the last packet stands for the whole.
            let (operation, from, body) = (self.operation, header.from, payload);
            self.events.push_back(Event::Message { operation, from, body });
        }
        while let Some((to, end)) = self.receiver.grant() {
            if self.grants[to].replace(end).is_none() {
                self.owed.push_back((to, Kind::Grant));
            }
        }
    }

    fn transmit(&self, to: usize, header: &Header, body: Bytes) -> Transmit {
        let head = header.encode(None, &body);
        Transmit {
            class: header.class,
            to: Destination::One(self.members[to]),
            head,
            body,
            token: None,
        }
    }

    fn header(&self, to: usize, kind: Kind, class: Class) -> Header {
        let message = &self.sender.messages[to];
        Header {
            kind,
            class,
            from: self.me as u16,
            operation: self.operation,
            offset: 0,
            length: message.body.len() as u32,
            extra: message.unasked,
            agreement: 0,
        }
    }

    fn control(&mut self) -> Option<Transmit> {
        let (to, kind) = self.owed.pop_front()?;
        let mut header = self.header(to, kind, Class::Control);
        if let (Kind::Grant, Some(packets)) = (kind, self.grants[to].take()) {
            header.offset = packets;
        }
        Some(self.transmit(to, &header, Bytes::new()))
    }

    fn spend(&mut self, now: Timestamp, ps: u64) {
        self.free_ps = self.free_ps.max(u128::from(now.nanos()) * 1_000) + u128::from(ps);
    }
}

impl Machine for Plain {
    type Event = Event;

    fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let header = Header::decode(&arrival.datagram, None)?;
        match header.kind {
            Kind::Data => self.data(&header, arrival.datagram.slice(HEADER_BYTES..)),
            // In packets, unlike the exchange's, which must not depend on their size.
            Kind::Grant => self.sender.grant(usize::from(header.from), header.offset),
            _ => {}
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.paced_until = self.paced_until.filter(|&at| at > now);
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        None
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(transmit) = self.control() {
            self.spend(now, self.rules.pace.ps_per_control);
            return Some(transmit);
        }
        let free_at = Timestamp::from_nanos(self.free_ps.div_ceil(1_000) as u64);
        if free_at > now {
            self.paced_until = self.sender.ready().map(|_| free_at);
            return None;
        }
        self.paced_until = None;
        let (to, index) = self.sender.next()?;
        let header = self.header(to, Kind::Data, Class::Bulk);
        let begin = index * self.rules.packet_bytes;
        let end = begin.saturating_add(self.rules.packet_bytes).min(header.length);
        let payload = self.sender.messages[to].body.slice(begin as usize..end as usize);
        let pace = self.rules.pace;
        self.spend(now, pace.ps_per_data + pace.ps_per_byte * payload.len() as u64);
        Some(self.transmit(to, &Header { offset: begin, ..header }, payload))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.paced_until
    }
}
