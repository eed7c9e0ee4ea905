//! The sending half of one operation: which packet goes next.
//!
//! ```text
//! message:  |sent...........|granted......|not granted...............|
//!            ^next - 1       ^next         ^granted
//! ```
//!
//! The packet schedule of the thesis is never written out. A heap holds the key of the next packet
//! of each message that has a granted packet. Keys fall within a message, so the first entry of the
//! heap is the first granted packet of the whole schedule. Each packet costs one pop and one push.

use std::collections::{BinaryHeap, VecDeque};

use bytes::Bytes;

use crate::chunks::ChunkTurns;
use crate::config::ShuffleConfig;
use crate::priority::{fraction, message_seed, tie};

/// One outgoing message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outgoing {
    /// Bytes of the message; `None` while the message is missing, or when there is no message.
    pub(crate) body: Option<Bytes>,
    /// Whether a message is sent to this rank.
    pub(crate) wanted: bool,
    /// Packets of the whole message.
    pub(crate) packets: u32,
    /// Packets that were sent at least once.
    pub(crate) sent: u32,
    /// Packets that may be sent.
    pub(crate) granted: u32,
    /// Packets that may be sent unasked.
    pub(crate) unscheduled: u32,
    /// Whether the receiver has the whole message.
    pub(crate) acked: bool,
    /// Packets to send again, as ranges `begin..end`. The list holds no more ranges than a RESEND
    /// asks for.
    again: VecDeque<(u32, u32)>,
    in_ready: bool,
    seed: u64,
}

impl Outgoing {
    /// Length in bytes; 0 while the message is missing.
    pub(crate) fn len(&self) -> u32 {
        self.body.as_ref().map_or(0, |body| body.len() as u32)
    }

    /// Whether the message still needs work.
    pub(crate) fn open(&self) -> bool {
        self.wanted && !self.acked
    }
}

/// The sending half of one operation at one rank.
#[derive(Debug)]
pub(crate) struct Sender {
    me: u16,
    pub(crate) messages: Vec<Outgoing>,
    /// Messages that are wanted and not acknowledged.
    pub(crate) open: usize,
    /// Packets with payload sent, and how many of these were sent again.
    pub(crate) sent: u64,
    pub(crate) sent_again: u64,
    pub(crate) packet_bytes: u32,
    /// Messages with a granted packet: key of the packet, tie-break, message.
    ready: BinaryHeap<(u64, u16, u16)>,
    /// Messages with packets to be sent again.
    again: VecDeque<u16>,
    /// The chunks, in place of `ready`, where messages are cut.
    turns: Option<ChunkTurns>,
}

impl Sender {
    pub(crate) fn new(config: &ShuffleConfig, operation: u64, me: u16, members: usize) -> Self {
        let seed = |to| message_seed(operation, me, to as u16);
        let message = |to| Outgoing { seed: seed(to), ..Outgoing::default() };
        Self {
            me,
            messages: (0..members).map(message).collect(),
            open: 0,
            sent: 0,
            sent_again: 0,
            packet_bytes: config.packet_bytes,
            ready: BinaryHeap::new(),
            again: VecDeque::new(),
            turns: config.chunks.map(|rule| ChunkTurns::new(rule, operation, me)),
        }
    }

    /// Takes a message that is to be sent.
    pub(crate) fn offer(&mut self, to: u16, body: Bytes) {
        let packets = (body.len() as u32).div_ceil(self.packet_bytes);
        let message = &mut self.messages[usize::from(to)];
        message.packets = packets;
        message.body = Some(body);
    }

    /// Decides which packets of the present messages are sent unasked. These are the first packets
    /// of the schedule of a sender without limits, one round trip of them. The packets of each
    /// message are therefore in proportion to the lengths.
    pub(crate) fn begin(&mut self, packets: u32) {
        if let Some(turns) = &self.turns {
            let chunk = turns.chunk_packets();
            self.messages.iter_mut().for_each(|one| one.unscheduled = chunk.min(one.packets));
            return self.grant_unscheduled();
        }
        let mut schedule: BinaryHeap<(u64, u16, u16, u32)> = (0..self.messages.len() as u16)
            .filter(|&to| self.messages[usize::from(to)].packets > 0)
            .map(|to| (self.key(to, 0), self.tie(to), to, 0))
            .collect();
        for _ in 0..packets {
            let Some((_, tie, to, index)) = schedule.pop() else { break };
            self.messages[usize::from(to)].unscheduled = index + 1;
            if index + 1 < self.messages[usize::from(to)].packets {
                schedule.push((self.key(to, index + 1), tie, to, index + 1));
            }
        }
        self.grant_unscheduled();
    }

    fn grant_unscheduled(&mut self) {
        for to in 0..self.messages.len() as u16 {
            self.grant(to, self.messages[usize::from(to)].unscheduled);
        }
    }

    /// Grants the beginning of a message that comes alone: up to `packets` packets, and no more
    /// than a chunk where messages are cut. Returns the number of granted packets.
    pub(crate) fn begin_alone(&mut self, to: u16, packets: u32) -> u32 {
        let chunk = self.turns.as_ref().map_or(packets, ChunkTurns::chunk_packets);
        let message = &mut self.messages[usize::from(to)];
        message.unscheduled = message.packets.min(packets).min(chunk);
        let unscheduled = message.unscheduled;
        self.grant(to, unscheduled);
        unscheduled
    }

    fn tie(&self, to: u16) -> u16 {
        let members = self.messages.len();
        tie(members + usize::from(to) - usize::from(self.me), members)
    }

    /// The key of one packet; larger goes first.
    fn key(&self, to: u16, index: u32) -> u64 {
        let message = &self.messages[usize::from(to)];
        fraction(message.len(), self.packet_bytes, index, Some(message.seed))
    }

    /// The receiver allows all packets below `granted`.
    pub(crate) fn grant(&mut self, to: u16, granted: u32) {
        let message = &mut self.messages[usize::from(to)];
        let before = message.granted;
        message.granted = before.max(granted.min(message.packets));
        if let Some(turns) = &mut self.turns {
            if message.granted > before && !message.acked {
                turns.wait(to);
            }
            return;
        }
        self.make_ready(to);
    }

    fn make_ready(&mut self, to: u16) {
        let message = &self.messages[usize::from(to)];
        if !message.in_ready && !message.acked && message.sent < message.granted {
            let key = self.key(to, message.sent);
            self.messages[usize::from(to)].in_ready = true;
            self.ready.push((key, self.tie(to), to));
        }
    }

    /// Whether a packet can be sent at once.
    pub(crate) fn is_ready(&self) -> bool {
        let is_cut = |turns: &ChunkTurns| turns.is_ready(has_packet(&self.messages));
        !self.again.is_empty() || !self.ready.is_empty() || self.turns.as_ref().is_some_and(is_cut)
    }

    /// The next packet: its receiver, its index, and whether it was sent before.
    pub(crate) fn next(&mut self) -> Option<(u16, u32, bool)> {
        while let Some(&to) = self.again.front() {
            let message = &mut self.messages[usize::from(to)];
            if let Some((index, end)) = message.again.front_mut().filter(|_| !message.acked) {
                let next = *index;
                *index += 1;
                if *index >= *end {
                    message.again.pop_front();
                }
                self.sent_again += 1;
                return Some((to, next, true));
            }
            message.again.clear();
            self.again.pop_front();
        }
        if let Some(turns) = &mut self.turns {
            let to = turns.next(has_packet(&self.messages))?;
            let message = &mut self.messages[usize::from(to)];
            let index = message.sent;
            message.sent += 1;
            self.sent += 1;
            return Some((to, index, false));
        }
        let (_, _, to) = self.ready.pop()?;
        let message = &mut self.messages[usize::from(to)];
        message.in_ready = false;
        if message.acked {
            return self.next();
        }
        let index = message.sent;
        message.sent += 1;
        self.sent += 1;
        self.make_ready(to);
        Some((to, index, false))
    }

    /// The receiver misses these ranges. Returns whether any packet is sent again. Otherwise the
    /// packets still wait in the schedule, or the last packets left just now (`fresh`) and are
    /// under way. The receiver then needs no more than a sign of life. A range that ends before the
    /// last sent packet was overtaken by that packet.
    pub(crate) fn resend(
        &mut self,
        to: u16,
        ranges: impl Iterator<Item = (u32, u32)>,
        fresh: bool,
    ) -> bool {
        let waited = !self.messages[usize::from(to)].again.is_empty();
        self.messages[usize::from(to)].again.clear();
        for (begin, end) in ranges {
            // Packets beyond the known grant were granted, and the grant was lost.
            self.grant(to, end);
            let message = &mut self.messages[usize::from(to)];
            let end = end.min(message.sent);
            let coming = fresh && end == message.sent;
            if !message.acked && begin < end && !coming {
                message.again.push_back((begin, end));
            }
        }
        let again = !self.messages[usize::from(to)].again.is_empty();
        if again && !waited {
            self.again.push_back(to);
        }
        again
    }

    /// The receiver has the whole message. True when this is the first acknowledgement.
    pub(crate) fn ack(&mut self, to: u16) -> bool {
        let message = &mut self.messages[usize::from(to)];
        if !message.open() || message.body.is_none() {
            return false;
        }
        message.acked = true;
        message.body = None;
        self.open -= 1;
        if let Some(turns) = &mut self.turns {
            turns.end(to);
        }
        true
    }
}

/// Whether a message has a granted packet that has not left.
fn has_packet(messages: &[Outgoing]) -> impl Fn(u16) -> bool + '_ {
    |to| {
        let message = &messages[usize::from(to)];
        !message.acked && message.sent < message.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::ChunkRule;

    #[test]
    fn a_grant_ends_a_chunk_and_begins_the_next() {
        let chunks = Some(ChunkRule { packets: 2, at_once: 1 });
        let config = ShuffleConfig { packet_bytes: 10, chunks, ..ShuffleConfig::default() };
        let mut sender = Sender::new(&config, 1, 0, 3);
        for to in [1, 2] {
            sender.messages[usize::from(to)].wanted = true;
            sender.offer(to, Bytes::from_static(&[7; 50]));
        }
        sender.begin(100);
        let mut first = Vec::new();
        while let Some((to, index, _)) = sender.next() {
            first.push((to, index));
        }
        let (to, other) = (first[0].0, 3 - first[0].0);
        assert_eq!(first, [(to, 0), (to, 1)], "one chunk is under way");
        assert!(!sender.is_ready());
        sender.grant(to, 4);
        assert!(sender.is_ready());
        let next = sender.next().map(|(to, index, _)| (to, index));
        assert!(next == Some((to, 2)) || next == Some((other, 0)), "{next:?}");
    }

    #[test]
    fn what_was_overtaken_is_sent_again_and_what_left_just_now_is_not() {
        let config = ShuffleConfig { packet_bytes: 10, ..ShuffleConfig::default() };
        let mut sender = Sender::new(&config, 1, 0, 2);
        sender.messages[1].wanted = true;
        sender.offer(1, Bytes::from_static(&[7; 50]));
        sender.grant(1, 4);
        for index in 0..4 {
            assert_eq!(sender.next(), Some((1, index, false)));
        }
        assert!(!sender.resend(1, [(2, 4)].into_iter(), true));
        assert_eq!(sender.next(), None);
        assert!(sender.resend(1, [(1, 2), (3, 4)].into_iter(), true));
        assert_eq!((sender.next(), sender.next()), (Some((1, 1, true)), None));
        assert!(sender.resend(1, [(3, 4)].into_iter(), false));
        assert_eq!((sender.next(), sender.next()), (Some((1, 3, true)), None));
    }
}
