//! The receiving half, which looks at every message for each grant.

use evenfall_collectives_machine::priority::{fraction, message_seed, tie};
use evenfall_collectives_machine::wire::ShuffleHeader;
use evenfall_core::Prng;
use evenfall_core::math::mix;

use super::rules::{AskWindow, Order, Rules, Until};

/// One incoming message. These simulations lose and reorder no packets, so a count of packets
/// describes what has arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Incoming {
    announced: bool,
    complete: bool,
    admitted: bool,
    total: u32,
    packets: u32,
    granted: u32,
    received: u32,
    received_bytes: u32,
    turn: u64,
    seed: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Receiver {
    me: usize,
    rules: Rules,
    messages: Vec<Incoming>,
    announced: usize,
    /// Bytes missing of the messages whose length is known.
    missing_bytes: u64,
    outstanding: u64,
    received: u64,
    turn: u64,
    /// Slots in use, and messages that wait for a free slot.
    slots_used: u32,
    waiting: Vec<usize>,
    prng: Prng,
}

impl Receiver {
    pub(super) fn new(rules: &Rules, operation: u64, me: usize, members: usize) -> Self {
        let seed = |from| message_seed(operation, from as u16, me as u16);
        let message = |from| Incoming { seed: seed(from), ..Incoming::default() };
        Self {
            me,
            rules: rules.clone(),
            messages: (0..members).map(message).collect(),
            announced: 0,
            missing_bytes: 0,
            outstanding: 0,
            received: 0,
            turn: 0,
            slots_used: 0,
            waiting: Vec::new(),
            prng: Prng::new(mix(operation.rotate_left(32) ^ me as u64)),
        }
    }

    /// Takes a packet or an announcement. Returns whether its message is now complete.
    pub(super) fn take(&mut self, header: &ShuffleHeader, payload_bytes: u32) -> bool {
        let from = usize::from(header.from);
        if !self.messages[from].announced {
            self.announce(from, header);
        }
        let message = &mut self.messages[from];
        if payload_bytes > 0 {
            message.received += 1;
            message.received_bytes += payload_bytes;
            self.received += 1;
            // A high-entropy sender sends what nobody granted.
            self.outstanding = self.outstanding.saturating_sub(1);
            self.missing_bytes -= u64::from(payload_bytes);
        }
        if message.complete || message.received < message.packets {
            return false;
        }
        message.complete = true;
        self.free(from, Until::Received);
        true
    }

    fn announce(&mut self, from: usize, header: &ShuffleHeader) {
        let packets = header.length.div_ceil(self.rules.packet_bytes);
        let message = &mut self.messages[from];
        message.announced = true;
        message.total = header.length;
        message.packets = packets;
        message.granted = header.extra.min(packets);
        message.admitted = self.rules.slots.is_none();
        self.announced += 1;
        self.missing_bytes += u64::from(header.length);
        self.outstanding += u64::from(message.granted);
        if self.rules.slots.is_some() && message.granted < packets {
            self.waiting.push(from);
        }
        if self.announced == self.messages.len() - 1 {
            // Slots are given only after all announcements have arrived. Otherwise all receivers
            // would begin with the senders that they hear first.
            self.admit();
        }
    }

    /// Gives free slots to randomly drawn messages.
    fn admit(&mut self) {
        let max = self.rules.slots.map_or(0, |slots| slots.messages);
        while self.slots_used < max && !self.waiting.is_empty() {
            let at = self.prng.below(self.waiting.len() as u64) as usize;
            let from = self.waiting.swap_remove(at);
            self.messages[from].admitted = true;
            self.slots_used += 1;
        }
    }

    /// Frees the slot of a message, if slots are used until this event.
    fn free(&mut self, from: usize, until: Until) {
        if self.messages[from].admitted && self.rules.slots.is_some_and(|s| s.until == until) {
            self.slots_used -= 1;
            self.admit();
        }
    }

    fn limit(&self) -> f64 {
        let started = u64::from(self.rules.rtt_packets) + self.received;
        let most = self.rules.outstanding_max;
        if self.rules.slow_start { most.min(started as f64) } else { most }
    }

    fn priority(&self, from: usize, message: &Incoming) -> (u64, u16) {
        let left = u64::from(message.packets - message.granted);
        let priority = match self.rules.order {
            Order::Grpf { randomise } => {
                let seed = randomise.then_some(message.seed);
                fraction(message.total, self.rules.packet_bytes, message.granted, seed)
            }
            Order::Srpt => u64::MAX - left,
            Order::Grpt => left,
            Order::Fair => u64::MAX - message.turn,
            Order::Chance => mix(message.seed ^ self.turn),
        };
        let members = self.messages.len();
        (priority, tie(members + self.me - from, members))
    }

    /// Grants a packet to one message, if the limits allow it. Returns the rank of its sender and
    /// the end of the grant.
    pub(super) fn grant(&mut self) -> Option<(usize, u32)> {
        let limit = self.limit();
        if self.outstanding as f64 + 1.0 > limit {
            return None;
        }
        let share = limit / self.missing_bytes.max(1) as f64;
        let below = |message: &Incoming| {
            let window = match self.rules.window {
                AskWindow::Constant => f64::from(self.rules.rtt_packets),
                AskWindow::ProRata => share * f64::from(message.total - message.received_bytes),
            };
            f64::from(message.granted - message.received) < window
        };
        let open = self.messages.iter().enumerate().filter(|(_, message)| {
            message.admitted && message.granted < message.packets && below(message)
        });
        let (_, from) = open.map(|(from, m)| (self.priority(from, m), from)).max()?;
        self.turn += 1;
        let message = &mut self.messages[from];
        message.granted += 1;
        message.turn = self.turn;
        self.outstanding += 1;
        let (granted, all) = (message.granted, message.granted == message.packets);
        if all {
            self.free(from, Until::Granted);
        }
        Some((from, granted))
    }

    /// Whether this message is incomplete and gets grants.
    pub(super) fn works_on(&self, from: usize) -> bool {
        let message = &self.messages[from];
        message.admitted && !message.complete && message.packets > 0
    }

    /// Packets of this message that were granted and have not arrived.
    pub(super) fn outstanding(&self, from: usize) -> u32 {
        self.messages[from].granted.saturating_sub(self.messages[from].received)
    }

    /// Messages with at least one byte here, complete messages, and bytes of all messages.
    pub(super) fn progress(&self) -> (usize, usize, u64) {
        let begun = self.messages.iter().filter(|m| m.received > 0 || m.complete).count();
        let complete = self.messages.iter().filter(|m| m.complete).count();
        (begun, complete, self.messages.iter().map(|m| u64::from(m.received_bytes)).sum())
    }
}
