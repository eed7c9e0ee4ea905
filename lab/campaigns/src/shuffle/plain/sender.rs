//! The sending half, which looks at every message for each packet.

use std::collections::BinaryHeap;

use bytes::Bytes;
use evenfall_collectives_machine::priority::{fraction, message_seed, tie};
use evenfall_core::Prng;
use evenfall_core::math::mix;

use super::rules::{Order, Rules, Unasked};

/// Packets of one message that a high-entropy sender sends before it draws another message. 40 KB
/// (section 2.4.1) hold 26 packets of 1,500 bytes.
const CHUNK_PACKETS: u32 = 26;

/// One outgoing message.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    pub(super) body: Bytes,
    pub(super) packets: u32,
    /// Packets that were sent, and packets that may be sent.
    pub(super) sent: u32,
    pub(super) granted: u32,
    /// Packets that are sent unasked.
    pub(super) unasked: u32,
    /// Priority of the next packet. [`Order::Chance`] does not keep it up to date.
    key: u64,
    turn: u64,
    seed: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Sender {
    me: usize,
    rules: Rules,
    pub(super) messages: Vec<Outgoing>,
    packets: u64,
    turn: u64,
    /// Messages that wait for their turn, when the number of outgoing messages is limited.
    waiting: Vec<usize>,
    prng: Prng,
}

impl Sender {
    pub(super) fn new(rules: &Rules, operation: u64, me: usize, bodies: Vec<Bytes>) -> Self {
        let packets = |body: &Bytes| (body.len() as u32).div_ceil(rules.packet_bytes);
        let message = |(to, body): (usize, Bytes)| Outgoing {
            packets: packets(&body),
            body,
            seed: message_seed(operation, me as u16, to as u16),
            ..Outgoing::default()
        };
        let messages: Vec<Outgoing> = bodies.into_iter().enumerate().map(message).collect();
        let packets = messages.iter().map(|message| u64::from(message.packets)).sum();
        let prng = Prng::new(mix(operation ^ me as u64));
        let rules = rules.clone();
        let mut sender = Self { me, rules, messages, packets, turn: 0, waiting: Vec::new(), prng };
        (0..sender.messages.len()).for_each(|to| sender.renew(to));
        sender.begin();
        sender
    }

    /// Decides which packets are sent unasked: the first packets of the whole schedule, or of each
    /// message.
    fn begin(&mut self) {
        let all = 0..self.messages.len();
        match self.rules.unasked {
            Unasked::Nothing => {}
            Unasked::ProRata => self.grant_first(),
            Unasked::PerMessage => {
                all.for_each(|to| self.messages[to].unasked = self.rules.rtt_packets);
            }
            Unasked::All => all.for_each(|to| self.messages[to].unasked = u32::MAX),
        }
        for message in &mut self.messages {
            message.unasked = message.unasked.min(message.packets);
            message.granted = message.unasked;
        }
        if let Some(limit) = self.rules.outgoing_max {
            let open = |&to: &usize| to != self.me && self.messages[to].packets > 0;
            self.waiting = (0..self.messages.len()).filter(open).collect();
            (0..limit).for_each(|_| self.draw());
        }
    }

    fn grant_first(&mut self) {
        let entry = |sender: &Self, to, index| {
            (sender.key_of(to, index), sender.tie(to), core::cmp::Reverse(to), index)
        };
        let others = (0..self.messages.len()).filter(|&to| to != self.me);
        let full = others.filter(|&to| self.messages[to].packets > 0);
        let mut schedule: BinaryHeap<_> = full.map(|to| entry(self, to, 0)).collect();
        for _ in 0..self.rules.rtt_packets {
            let Some((_, _, core::cmp::Reverse(to), index)) = schedule.pop() else { break };
            self.messages[to].unasked = index + 1;
            if index + 1 < self.messages[to].packets {
                schedule.push(entry(self, to, index + 1));
            }
        }
    }

    /// Draws another message at random to work on.
    fn draw(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.prng.below(self.waiting.len() as u64) as usize;
        let to = self.waiting.swap_remove(at);
        let granted = self.messages[to].granted.saturating_add(CHUNK_PACKETS);
        self.grant(to, granted);
    }

    fn tie(&self, to: usize) -> u16 {
        let members = self.messages.len();
        tie(members + to - self.me, members)
    }

    /// The priority of one packet. The packet with the largest value goes first.
    fn key_of(&self, to: usize, index: u32) -> u64 {
        let message = &self.messages[to];
        let left = u64::from(message.packets - index);
        match self.rules.order {
            Order::Grpf { randomise } => {
                let seed = randomise.then_some(message.seed);
                fraction(message.body.len() as u32, self.rules.packet_bytes, index, seed)
            }
            Order::Srpt => u64::MAX - left,
            Order::Grpt => left,
            Order::Fair => u64::MAX - message.turn,
            Order::Chance => mix(message.seed ^ self.turn),
        }
    }

    fn renew(&mut self, to: usize) {
        self.messages[to].key = self.key_of(to, self.messages[to].sent);
    }

    /// Takes a grant for all packets below `granted`.
    pub(super) fn grant(&mut self, to: usize, granted: u32) {
        let message = &mut self.messages[to];
        message.granted = message.granted.max(granted.min(message.packets));
    }

    /// The message whose next packet goes first, among all messages or among the messages with a
    /// granted packet.
    pub(super) fn first(&self, granted: bool) -> Option<usize> {
        let open = |message: &Outgoing| {
            message.sent < if granted { message.granted } else { message.packets }
        };
        let others = self.messages.iter().enumerate().filter(|&(to, _)| to != self.me);
        let open = others.filter(|(_, message)| open(message));
        let chance = self.rules.order == Order::Chance;
        let key = |to: usize, message: &Outgoing| {
            if chance { self.key_of(to, message.sent) } else { message.key }
        };
        open.map(|(to, message)| (key(to, message), self.tie(to), to)).max().map(|(_, _, to)| to)
    }

    /// The message whose next packet can be sent now.
    pub(super) fn ready(&self) -> Option<usize> {
        let to = self.first(true)?;
        let Some(limit) = self.rules.redirect_packets else { return Some(to) };
        let first = self.messages[self.first(false)?].key;
        // Packets are spread evenly over the schedule, so the difference of two fractions is their
        // distance in it.
        let ahead = u128::from(first.saturating_sub(self.messages[to].key));
        ((ahead * u128::from(self.packets)) >> 32 <= u128::from(limit)).then_some(to)
    }

    /// Takes the next packet. Returns its receiver and its index.
    pub(super) fn next(&mut self) -> Option<(usize, u32)> {
        let to = self.ready()?;
        self.turn += 1;
        let message = &mut self.messages[to];
        let index = message.sent;
        message.sent += 1;
        message.turn = self.turn;
        let chunk_done = message.sent == message.granted;
        if message.sent < message.packets {
            if chunk_done && self.rules.outgoing_max.is_some() {
                self.waiting.push(to);
            }
            self.renew(to);
        }
        if chunk_done && self.rules.outgoing_max.is_some() {
            self.draw();
        }
        Some((to, index))
    }
}
