//! Makes one ordered feed from redundant, lossy and reordered copies.
//!
//! A venue sends every packet twice, over networks that fail independently (sides A and B). The
//! receiver takes the copy that comes first. A hole on one side is therefore no loss yet. The
//! arbiter reports the hole once, as a range, so that the caller can ask for the messages again.
//! The arbiter holds the messages behind the hole until the hole is filled, is given up, or a
//! stated limit is reached. No message is skipped without an [`Event::Lost`].
//!
//! A sequence number is only a claim. A damaged or forged packet may claim a place far from all
//! others, and so make a hole that no packet can fill. To give that hole up would skip the rest of
//! the feed. A packet further away than [`Limits::jump_max`] is therefore refused with [`Far`]. The
//! arbiter follows the feed to a far place after [`FAR_PACKETS`] packets that follow each other
//! from there. In this time no packet may carry the feed on at its old place. The first packet's
//! choice of a start is held to the same rule until a second packet has carried it on.
//!
//! The arbiter knows only sequence numbers. The arbiter therefore serves MoldUDP64
//! ([`crate::mold`]), CME MDP 3.0 and any other feed that numbers its messages.

use bytes::Bytes;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// The redundant side that a copy came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first feed.
    A,
    /// The second feed.
    B,
    /// Neither side: an answer to a request for missing messages.
    Again,
}

/// How many messages may wait behind a hole before the hole is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages that may wait. A 1 Gb/s feed of 40-byte messages sends the default number in about
    /// 20 ms. A re-request within one site takes less time.
    pub messages_max: usize,
    /// Bytes that may wait, so that large messages cannot take more memory than small ones.
    pub bytes_max: usize,
    /// How far from the last known message a packet may lie and still be believed at once, in
    /// messages. The busiest feed on record (484,460 messages in its first second) sends the
    /// default, 4,194,304, in eight seconds. A longer silence of both sides is a fault for people
    /// to look at.
    pub jump_max: u64,
}

/// Packets that must follow each other from a far place before the place is believed. A single
/// fault damages fewer, and a busy feed sends eight in less than a millisecond.
pub const FAR_PACKETS: u32 = 8;

/// A packet that claims a place too far from the others to be believed. The packet is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// The place that it claims.
    pub sequence: u64,
    /// The number after the last message known to exist.
    pub expected: u64,
}

impl core::fmt::Display for Far {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { sequence, expected } = self;
        write!(f, "sequence {sequence} is too far from {expected}, which comes next")
    }
}

impl std::error::Error for Far {}

/// A far place to which the feed may have moved.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The number after its last message.
    end: u64,
    packets: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { messages_max: 65_536, bytes_max: 16 << 20, jump_max: 1 << 22 }
    }
}

/// An event of the arbiter. Events come in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next message.
    Message {
        /// Its number.
        sequence: u64,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Messages that exist and have not come. Each range is reported once, when it is first seen.
    Gap(Range<u64>),
    /// Messages that are given up. The next message follows them.
    Lost(Range<u64>),
}

/// Counts of the messages that passed through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages that came first over side A.
    pub first_a: u64,
    /// Messages that came first over side B.
    pub first_b: u64,
    /// Messages that came first as an answer to a request.
    pub first_again: u64,
    /// Copies of messages that had been delivered, held or given up before.
    pub ignored: u64,
    /// Messages given up.
    pub lost: u64,
    /// Packets refused with [`Far`].
    pub far: u64,
    /// Far places that were believed in the end.
    pub jumps: u64,
}

impl core::ops::Add for Counts {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            delivered: self.delivered + more.delivered,
            first_a: self.first_a + more.first_a,
            first_b: self.first_b + more.first_b,
            first_again: self.first_again + more.first_again,
            ignored: self.ignored + more.ignored,
            lost: self.lost.saturating_add(more.lost),
            far: self.far + more.far,
            jumps: self.jumps + more.jumps,
        }
    }
}

/// Orders the messages of a feed. After each input, the caller drains [`Arbiter::poll`].
#[derive(Debug)]
pub struct Arbiter {
    limits: Limits,
    /// The next sequence to deliver; `None` until the first message when the start is open.
    next: Option<u64>,
    /// The number after the highest sequence known to exist.
    known_end: u64,
    /// Whether the start is certain: it was given, or a second packet has carried it on.
    is_sure: bool,
    candidate: Option<Candidate>,
    held: BTreeMap<u64, Bytes>,
    held_bytes: usize,
    events: VecDeque<Event>,
    counts: Counts,
}

impl Arbiter {
    /// Starts at sequence `first`, or at the first message that comes.
    pub fn new(first: Option<u64>, limits: Limits) -> Self {
        Self {
            limits,
            next: first,
            known_end: first.unwrap_or(0),
            is_sure: first.is_some(),
            candidate: None,
            held: BTreeMap::new(),
            held_bytes: 0,
            events: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Takes one copy of a packet of one message.
    ///
    /// # Errors
    /// [`Far`], and the packet is ignored.
    pub fn offer(&mut self, side: Side, sequence: u64, bytes: Bytes) -> Result<(), Far> {
        self.offer_all(side, sequence, [bytes])
    }

    /// Takes one copy of a packet of several messages. `sequence` is the number of the first
    /// message.
    ///
    /// # Errors
    /// [`Far`], and the packet is ignored.
    pub fn offer_all(
        &mut self,
        side: Side,
        sequence: u64,
        messages: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), Far> {
        self.admit(sequence)?;
        // The last number has no successor, so no message has it.
        for (bytes, sequence) in messages.into_iter().zip(sequence..u64::MAX) {
            self.take(side, sequence, bytes);
        }
        Ok(())
    }

    fn take(&mut self, side: Side, sequence: u64, bytes: Bytes) {
        let next = self.next.unwrap_or(sequence);
        if sequence < next || self.held.contains_key(&sequence) {
            self.counts.ignored += 1;
            return;
        }
        match side {
            Side::A => self.counts.first_a += 1,
            Side::B => self.counts.first_b += 1,
            Side::Again => self.counts.first_again += 1,
        }
        self.know(sequence);
        self.known_end = self.known_end.max(sequence + 1);
        if sequence == next {
            self.deliver(sequence, bytes);
            self.drain_held();
            return;
        }
        self.held_bytes += bytes.len();
        self.held.insert(sequence, bytes);
        while self.held.len() > self.limits.messages_max || self.held_bytes > self.limits.bytes_max
        {
            self.abandon();
        }
    }

    /// Notes that all messages before `next_sequence` exist, as a heartbeat states.
    ///
    /// # Errors
    /// [`Far`], and the heartbeat is ignored.
    pub fn announce(&mut self, next_sequence: u64) -> Result<(), Far> {
        self.admit(next_sequence)?;
        self.know(next_sequence);
        Ok(())
    }

    fn know(&mut self, end: u64) {
        if end > self.known_end {
            self.events.push_back(Event::Gap(self.known_end..end));
            self.known_end = end;
        }
    }

    /// Decides whether a packet that begins here is believed.
    fn admit(&mut self, sequence: u64) -> Result<(), Far> {
        let Some(next) = self.next else {
            self.start(sequence);
            return Ok(());
        };
        let jump_max = self.limits.jump_max;
        let is_ahead = sequence > self.known_end.saturating_add(jump_max);
        let is_behind = !self.is_sure && sequence.saturating_add(jump_max) < next;
        if !is_ahead && !is_behind {
            if sequence >= self.known_end {
                self.candidate = None;
                self.is_sure |= self.counts.delivered > 0;
            }
            return Ok(());
        }
        if self.believes(sequence) {
            self.counts.jumps += 1;
            self.candidate = None;
            if is_behind {
                self.held.clear();
                self.held_bytes = 0;
                self.start(sequence);
            }
            self.is_sure = true;
            return Ok(());
        }
        self.counts.far += 1;
        Err(Far { sequence, expected: self.known_end })
    }

    /// Whether this packet completes enough packets that follow each other.
    fn believes(&mut self, sequence: u64) -> bool {
        let jump_max = self.limits.jump_max;
        let packets = match self.candidate {
            Some(Candidate { end, packets }) if sequence.abs_diff(end) <= jump_max => {
                // A copy of a packet does not count as a second packet.
                if sequence < end {
                    return false;
                }
                packets + 1
            }
            _ => 1,
        };
        self.candidate = Some(Candidate { end: sequence.saturating_add(1), packets });
        packets >= FAR_PACKETS
    }

    /// Gives up the first hole, when there is one: reports the loss and continues behind it.
    pub fn abandon(&mut self) {
        let Some(hole) = self.missing().next() else { return };
        self.counts.lost = self.counts.lost.saturating_add(hole.end - hole.start);
        self.next = Some(hole.end);
        self.events.push_back(Event::Lost(hole));
        self.drain_held();
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The holes, in order: messages known to exist that are neither delivered nor held.
    pub fn missing(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = self.next.unwrap_or(self.known_end);
        let ends = self.held.keys().copied().chain([self.known_end]);
        ends.filter_map(move |end| {
            let hole = from..end;
            from = end.saturating_add(1);
            (!hole.is_empty()).then_some(hole)
        })
    }

    /// The sequence of the next message to deliver; `None` before the first message.
    pub fn next_sequence(&self) -> Option<u64> {
        self.next
    }

    /// The number after the last message known to exist; 0 before the first message.
    pub fn known_end(&self) -> u64 {
        self.known_end
    }

    /// Messages held behind a hole, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held_bytes)
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn start(&mut self, sequence: u64) {
        self.next = Some(sequence);
        self.known_end = sequence;
    }

    fn deliver(&mut self, sequence: u64, bytes: Bytes) {
        self.next = Some(sequence + 1);
        self.counts.delivered += 1;
        self.events.push_back(Event::Message { sequence, bytes });
    }

    fn drain_held(&mut self) {
        while let Some(entry) = self.held.first_entry() {
            if Some(*entry.key()) != self.next {
                break;
            }
            let (sequence, bytes) = entry.remove_entry();
            self.held_bytes -= bytes.len();
            self.deliver(sequence, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(sequence: u64) -> Bytes {
        Bytes::from(sequence.to_le_bytes().to_vec())
    }

    fn drain(arbiter: &mut Arbiter) -> Vec<Event> {
        core::iter::from_fn(|| arbiter.poll()).collect()
    }

    fn message(sequence: u64) -> Event {
        Event::Message { sequence, bytes: body(sequence) }
    }

    #[test]
    fn a_hole_on_one_side_is_filled_by_the_other() {
        let mut arbiter = Arbiter::new(Some(1), Limits::default());
        arbiter.offer(Side::A, 1, body(1)).unwrap();
        arbiter.offer(Side::A, 3, body(3)).unwrap();
        assert_eq!(drain(&mut arbiter), [message(1), Event::Gap(2..3)]);
        arbiter.offer(Side::B, 1, body(1)).unwrap();
        arbiter.offer(Side::B, 2, body(2)).unwrap();
        arbiter.offer(Side::B, 3, body(3)).unwrap();
        assert_eq!(drain(&mut arbiter), [message(2), message(3)]);
        let counts = arbiter.counts();
        assert_eq!((counts.first_a, counts.first_b, counts.ignored), (2, 1, 2));
    }

    #[test]
    fn a_full_hold_gives_the_first_hole_up_and_says_so() {
        let limits = Limits { messages_max: 2, bytes_max: 1 << 10, ..Limits::default() };
        let mut arbiter = Arbiter::new(Some(1), limits);
        for sequence in [3, 4, 6] {
            arbiter.offer(Side::A, sequence, body(sequence)).unwrap();
        }
        let expected =
            [Event::Gap(1..3), Event::Gap(5..6), Event::Lost(1..3), message(3), message(4)];
        assert_eq!(drain(&mut arbiter), expected);
        assert_eq!((arbiter.missing().next(), arbiter.missing().count()), (Some(5..6), 1));
        assert_eq!(arbiter.held(), (1, 8));
    }

    #[test]
    fn a_heartbeat_shows_a_hole_at_the_end() {
        let mut arbiter = Arbiter::new(None, Limits::default());
        arbiter.offer(Side::A, 7, body(7)).unwrap();
        arbiter.announce(10).unwrap();
        arbiter.announce(10).unwrap();
        assert_eq!(drain(&mut arbiter), [message(7), Event::Gap(8..10)]);
        arbiter.abandon();
        arbiter.abandon();
        assert_eq!(drain(&mut arbiter), [Event::Lost(8..10)]);
        assert_eq!(arbiter.next_sequence(), Some(10));
    }

    #[test]
    fn the_largest_sequence_does_not_overflow() {
        let mut arbiter = Arbiter::new(None, Limits::default());
        arbiter.offer(Side::A, u64::MAX, body(0)).unwrap();
        arbiter.offer(Side::A, u64::MAX - 1, body(0)).unwrap();
        arbiter.announce(u64::MAX).unwrap();
        assert_eq!(arbiter.next_sequence(), Some(u64::MAX));
    }

    #[test]
    fn one_wild_sequence_does_not_move_the_feed() {
        for wild in [1 << 60, u64::MAX - 1] {
            let mut arbiter = Arbiter::new(Some(1), Limits::default());
            arbiter.offer(Side::A, 1, body(1)).unwrap();
            let far = Far { sequence: wild, expected: 2 };
            assert_eq!(arbiter.offer(Side::A, wild, body(0)), Err(far));
            assert_eq!(arbiter.announce(wild), Err(far));
            arbiter.offer(Side::A, 2, body(2)).unwrap();
            assert_eq!(drain(&mut arbiter), [message(1), message(2)]);
            assert_eq!((arbiter.missing().next(), arbiter.counts().far), (None, 2));
        }
    }

    #[test]
    fn packets_that_follow_each_other_from_a_far_place_are_believed() {
        let mut arbiter = Arbiter::new(Some(1), Limits::default());
        arbiter.offer(Side::A, 1, body(1)).unwrap();
        let far = 1 << 30;
        for sequence in far..far + 7 {
            arbiter.offer(Side::A, sequence, body(sequence)).unwrap_err();
            arbiter.offer(Side::B, sequence, body(sequence)).unwrap_err();
        }
        arbiter.offer(Side::A, far + 7, body(far + 7)).unwrap();
        assert_eq!(drain(&mut arbiter), [message(1), Event::Gap(2..far + 7)]);
        arbiter.abandon();
        assert_eq!(drain(&mut arbiter), [Event::Lost(2..far + 7), message(far + 7)]);
        assert_eq!(arbiter.counts().jumps, 1);
    }

    #[test]
    fn a_far_place_is_not_believed_while_the_feed_goes_on_where_it_was() {
        let mut arbiter = Arbiter::new(Some(0), Limits::default());
        for sequence in 0..50 {
            arbiter.offer(Side::A, sequence, body(sequence)).unwrap();
            arbiter.offer(Side::B, (1 << 40) + sequence, body(0)).unwrap_err();
        }
        assert_eq!((arbiter.counts().delivered, arbiter.counts().far), (50, 50));
    }

    #[test]
    fn a_wild_first_packet_does_not_choose_the_start_for_good() {
        let mut arbiter = Arbiter::new(None, Limits::default());
        arbiter.offer(Side::A, 1 << 60, body(0)).unwrap();
        for sequence in 100..200 {
            arbiter.offer(Side::A, sequence, body(sequence)).ok();
        }
        let delivered = drain(&mut arbiter);
        assert_eq!(delivered[1..], (107..200).map(message).collect::<Vec<_>>());
    }

    proptest! {
        /// Compares with the plainest model. Whatever the order and the copies, delivered numbers
        /// increase. Delivered, lost and missing numbers together cover every number once.
        #[test]
        fn every_number_is_delivered_lost_or_missing(
            offers in prop::collection::vec((0u64..60, any::<bool>()), 0..200),
            messages_max in 0usize..20,
        ) {
            let limits = Limits { messages_max, bytes_max: 1 << 20, ..Limits::default() };
            let mut arbiter = Arbiter::new(Some(0), limits);
            let mut place = 0;
            let mut gaps = 0;
            for &(sequence, side) in &offers {
                let side = if side { Side::A } else { Side::B };
                arbiter.offer(side, sequence, body(sequence)).unwrap();
                prop_assert!(arbiter.held().0 <= messages_max);
                for event in drain(&mut arbiter) {
                    match event {
                        Event::Message { sequence, bytes } => {
                            prop_assert_eq!(sequence, place);
                            prop_assert_eq!(bytes, body(sequence));
                            place += 1;
                        }
                        Event::Lost(range) => {
                            prop_assert_eq!(range.start, place);
                            place = range.end;
                        }
                        Event::Gap(range) => {
                            prop_assert!(range.start >= gaps);
                            gaps = range.end;
                        }
                    }
                }
            }
            let top = offers.iter().map(|&(sequence, _)| sequence + 1).max().unwrap_or(0);
            let missing: u64 = arbiter.missing().map(|hole| hole.end - hole.start).sum();
            prop_assert_eq!(place + missing + arbiter.held().0 as u64, top);
        }
    }
}
