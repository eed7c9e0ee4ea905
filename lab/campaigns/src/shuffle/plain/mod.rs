//! The protocol as chapter 6 of the thesis describes it, for the rivals and variants of that
//! chapter.
//!
//! The thesis compares schemes that differ in one or two rules, and the shuffle of the product has
//! these rules fixed. The shuffle takes logarithmic time per packet. This machine looks at every
//! message for every packet, which makes it simple enough to serve as a model for tests of the
//! shuffle (`lab/studies/tests/shuffle_thesis.rs`). The machine does not handle loss or silence,
//! because its network loses no packets.
//!
//! | module | what it holds |
//! |---|---|
//! | [`rules`] | [`Rules`]: order, windows, slots, packets that are sent unasked |
//! | `sender`, `receiver` | both halves of one shuffle |

pub mod rules;

mod receiver;
mod sender;

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_collectives_machine::ShuffleEvent;
use evenfall_collectives_machine::wire::{HEADER_BYTES, ShuffleHeader, ShuffleKind};
use evenfall_core::{
    Arrival, ClockReading, Destination, Machine, Malformed, Timestamp, TrafficClass, Transmit,
};

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
    /// Control datagrams that wait, with at most one grant per rank. A later grant replaces the
    /// earlier one, because each grant states its end.
    owed: VecDeque<(usize, ShuffleKind)>,
    /// For each rank, the end of its grant, while that grant waits to be sent.
    grants: Vec<Option<u32>>,
    events: VecDeque<ShuffleEvent>,
    /// Time at which the link is free again, in picoseconds.
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
        self.owed = silent.map(|to| (to, ShuffleKind::Data)).collect();
    }

    /// Allows all packets for this rank at once. Schemes whose order is decided outside the machine
    /// use this call.
    pub fn admit(&mut self, to: usize) {
        self.sender.grant(to, u32::MAX);
    }

    /// Whether the message of this rank is incomplete and gets grants.
    pub fn works_on(&self, from: usize) -> bool {
        self.receiver.works_on(from)
    }

    /// The rank without whose grant this machine can send nothing; `None` when a packet may be
    /// sent, or when all have been sent.
    pub fn waits_for(&self) -> Option<usize> {
        let may_send = !self.owed.is_empty() || self.sender.ready().is_some();
        self.sender.first(false).filter(|_| !may_send)
    }

    /// Packets that were granted to this rank and have not arrived.
    pub fn outstanding(&self, from: usize) -> u32 {
        self.receiver.outstanding(from)
    }

    /// Messages with at least one byte here, complete messages, and bytes of all messages.
    pub fn progress(&self) -> (usize, usize, u64) {
        self.receiver.progress()
    }

    fn data(&mut self, header: &ShuffleHeader, payload: Bytes) {
        if self.receiver.take(header, payload.len() as u32) {
            self.owed.push_back((usize::from(header.from), ShuffleKind::Ack));
            // The simulation never reads the bytes of a message, so the last packet stands for the
            // whole message.
            let (operation, from, body) = (self.operation, header.from, payload);
            self.events.push_back(ShuffleEvent::Message { operation, from, body });
        }
        while let Some((to, end)) = self.receiver.grant() {
            if self.grants[to].replace(end).is_none() {
                self.owed.push_back((to, ShuffleKind::Grant));
            }
        }
    }

    fn transmit(&self, to: usize, header: &ShuffleHeader, body: Bytes) -> Transmit {
        let head = header.encode();
        Transmit {
            class: header.class,
            to: Destination::One(self.members[to]),
            head,
            body,
            token: None,
        }
    }

    fn header(&self, to: usize, kind: ShuffleKind, class: TrafficClass) -> ShuffleHeader {
        let message = &self.sender.messages[to];
        ShuffleHeader {
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
        let mut header = self.header(to, kind, TrafficClass::Control);
        if let (ShuffleKind::Grant, Some(packets)) = (kind, self.grants[to].take()) {
            header.offset = packets;
        }
        Some(self.transmit(to, &header, Bytes::new()))
    }

    fn spend(&mut self, now: Timestamp, ps: u64) {
        self.free_ps = self.free_ps.max(u128::from(now.nanos()) * 1_000) + u128::from(ps);
    }
}

impl Machine for Plain {
    type Event = ShuffleEvent;

    fn handle(&mut self, _: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let header = ShuffleHeader::decode(&arrival.datagram)?;
        match header.kind {
            ShuffleKind::Data => self.data(&header, arrival.datagram.slice(HEADER_BYTES..)),
            // The offset counts packets. The shuffle counts bytes, because its grants must not
            // depend on the packet size.
            ShuffleKind::Grant => self.sender.grant(usize::from(header.from), header.offset),
            _ => {}
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.paced_until = self.paced_until.filter(|&at| at > now);
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<ShuffleEvent> {
        self.events.pop_front()
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
        let header = self.header(to, ShuffleKind::Data, TrafficClass::Bulk);
        let begin = index * self.rules.packet_bytes;
        let end = begin.saturating_add(self.rules.packet_bytes).min(header.length);
        let payload = self.sender.messages[to].body.slice(begin as usize..end as usize);
        let pace = self.rules.pace;
        self.spend(now, pace.ps_per_data + pace.ps_per_byte * payload.len() as u64);
        Some(self.transmit(to, &ShuffleHeader { offset: begin, ..header }, payload))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.paced_until
    }
}
