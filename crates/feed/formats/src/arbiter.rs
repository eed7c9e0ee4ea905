//! One order out of redundant, lossy, reordered copies.
//!
//! A venue sends every packet twice, over networks that fail apart from each other (sides A and
//! B). The receiver takes whichever copy comes first. So a hole on one side is not a loss yet: it
//! is reported once, as a range, for a caller who can ask for it again, and what came behind it
//! is held until the hole is filled, is given up, or the stated limit is reached. Nothing is
//! passed over without an [`Event::Lost`].
//!
//! It knows sequence numbers only, so it serves MoldUDP64 ([`crate::mold`]), CME MDP 3.0 and any
//! other feed that counts its messages.

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
}

/// How much is held behind a hole before the hole is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages held. The default is what a 1 Gb/s feed of 40-byte messages sends in some 20 ms,
    /// longer than a re-request within one site takes.
    pub messages_max: usize,
    /// Bytes held, so that large messages cannot take what small ones would.
    pub bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { messages_max: 65_536, bytes_max: 16 << 20 }
    }
}

/// What the arbiter says, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next message.
    Message {
        /// Its number.
        sequence: u64,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Messages that exist and have not come; said once per range, when it is first seen.
    Gap(Range<u64>),
    /// Messages that are given up; the next message is behind them.
    Lost(Range<u64>),
}

/// What passed through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages that came first over side A.
    pub first_a: u64,
    /// Messages that came first over side B.
    pub first_b: u64,
    /// Copies of messages that were delivered, held or given up already.
    pub ignored: u64,
    /// Messages given up.
    pub lost: u64,
}

/// The order-maker. One input, then [`Arbiter::poll`] until it is empty.
#[derive(Debug)]
pub struct Arbiter {
    limits: Limits,
    /// The next sequence to deliver; `None` until the first message when the start is open.
    next: Option<u64>,
    /// One behind the highest sequence known to exist.
    known_end: u64,
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
            held: BTreeMap::new(),
            held_bytes: 0,
            events: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Takes one copy of one message.
    pub fn offer(&mut self, side: Side, sequence: u64, bytes: Bytes) {
        // The last number has no successor, so no message has it.
        let Some(end) = sequence.checked_add(1) else {
            self.counts.ignored += 1;
            return;
        };
        let next = self.start(sequence);
        if sequence < next || self.held.contains_key(&sequence) {
            self.counts.ignored += 1;
            return;
        }
        match side {
            Side::A => self.counts.first_a += 1,
            Side::B => self.counts.first_b += 1,
        }
        self.announce(sequence);
        self.known_end = self.known_end.max(end);
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

    /// Learns that all messages before `next_sequence` exist, as heartbeats say it.
    pub fn announce(&mut self, next_sequence: u64) {
        self.start(next_sequence);
        if next_sequence > self.known_end {
            self.events.push_back(Event::Gap(self.known_end..next_sequence));
            self.known_end = next_sequence;
        }
    }

    /// Gives up the first hole, when there is one: says what is lost and goes on behind it.
    pub fn abandon(&mut self) {
        let Some(hole) = self.missing().next() else { return };
        self.counts.lost += hole.end - hole.start;
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

    /// The sequence that is delivered next; `None` before the first.
    pub fn next_sequence(&self) -> Option<u64> {
        self.next
    }

    /// Messages held behind a hole, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held_bytes)
    }

    /// What passed through so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn start(&mut self, sequence: u64) -> u64 {
        *self.next.get_or_insert_with(|| {
            self.known_end = sequence;
            sequence
        })
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
        arbiter.offer(Side::A, 1, body(1));
        arbiter.offer(Side::A, 3, body(3));
        assert_eq!(drain(&mut arbiter), [message(1), Event::Gap(2..3)]);
        arbiter.offer(Side::B, 1, body(1));
        arbiter.offer(Side::B, 2, body(2));
        arbiter.offer(Side::B, 3, body(3));
        assert_eq!(drain(&mut arbiter), [message(2), message(3)]);
        let counts = arbiter.counts();
        assert_eq!((counts.first_a, counts.first_b, counts.ignored), (2, 1, 2));
    }

    #[test]
    fn a_full_hold_gives_the_first_hole_up_and_says_so() {
        let limits = Limits { messages_max: 2, bytes_max: 1 << 10 };
        let mut arbiter = Arbiter::new(Some(1), limits);
        for sequence in [3, 4, 6] {
            arbiter.offer(Side::A, sequence, body(sequence));
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
        arbiter.offer(Side::A, 7, body(7));
        arbiter.announce(10);
        arbiter.announce(10);
        assert_eq!(drain(&mut arbiter), [message(7), Event::Gap(8..10)]);
        arbiter.abandon();
        arbiter.abandon();
        assert_eq!(drain(&mut arbiter), [Event::Lost(8..10)]);
        assert_eq!(arbiter.next_sequence(), Some(10));
    }

    #[test]
    fn the_largest_sequence_does_not_overflow() {
        let mut arbiter = Arbiter::new(None, Limits::default());
        arbiter.offer(Side::A, u64::MAX, body(0));
        arbiter.offer(Side::A, u64::MAX - 1, body(0));
        arbiter.announce(u64::MAX);
        assert_eq!(arbiter.next_sequence(), Some(u64::MAX));
    }

    proptest! {
        /// Against the plainest model: whatever the order and the copies, what is delivered is
        /// increasing, and with what is lost and missing it covers every number once.
        #[test]
        fn every_number_is_delivered_lost_or_missing(
            offers in prop::collection::vec((0u64..60, any::<bool>()), 0..200),
            messages_max in 0usize..20,
        ) {
            let limits = Limits { messages_max, bytes_max: 1 << 20 };
            let mut arbiter = Arbiter::new(Some(0), limits);
            let mut place = 0;
            let mut gaps = 0;
            for &(sequence, side) in &offers {
                let side = if side { Side::A } else { Side::B };
                arbiter.offer(side, sequence, body(sequence));
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
