//! Decides when to request missing messages, and when to give them up. The module has no socket and
//! no clock: the caller passes in the time and sends the requests.
//!
//! A new hole is not requested at once, because side B or a reordered packet may fill it. Then all
//! holes are requested in pieces that fit one packet each, because a re-request server answers a
//! request with one packet. The next round follows when all pieces of a round have arrived, or
//! after [`RETRY`]. A hole is given up when it has waited for the patience of [`Gaps::new`].
//!
//! Holes wait side by side. If a hole waited only from the end of the hole before it, then a feed
//! with more than one loss in the time of the patience would fall behind for ever. Without
//! a server, a hole waits from when it is seen. With a server, it waits from its request, and the
//! wait of the first hole begins again with each answer that fills a part of it:
//!
//! ```text
//!  sequences   1 2 _ 4 _ 6 7 _ 9      holes at 3, 5 and 8
//!  awaited     <-------------> since t   one entry: 3, 5 and 8 were missing by time t
//!              3 given up at t + patience, and at once 5 and 8 as well
//! ```

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;
use evenfall_feed_formats::mold::{MoldRequest, SessionId, Tracker};

/// How long an answer may take before its request is repeated.
const RETRY: Duration = Duration::from_millis(10);
/// Messages of one request. A packet of 1,400 bytes holds that many of the longest messages of
/// ITCH (50 bytes and 2 for the length).
const PIECE: u64 = 26;
/// Requests of one round: their answers are some 20 KiB, far below a receive buffer.
const ROUND: usize = 16;
/// Number of parts of the patience. Holes that are awaited within one part share an entry of
/// [`Gaps::awaited`], so that the list stays short. A hole waits longer by one part at most.
const PATIENCE_PARTS: u32 = 16;

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time.
    Wait(Timestamp),
    /// Send these requests, then call `step` again.
    Ask(Vec<MoldRequest>),
    /// Give the first hole up, then call `step` again.
    Abandon,
}

#[derive(Clone, Copy, Debug)]
struct Hole {
    start: u64,
    /// Time from which the patience with the hole counts.
    since: Timestamp,
}

/// Messages that share one beginning of their wait.
#[derive(Clone, Copy, Debug)]
struct AwaitedMessages {
    /// When the first of them was awaited.
    begun: Timestamp,
    /// When the last of them was awaited. The patience with all of them counts from this time.
    since: Timestamp,
    /// The number after the last of them.
    end: u64,
}

/// The holes of a session.
#[derive(Debug)]
pub(super) struct Gaps {
    patience: Duration,
    /// Time for which a hole may come from the delay of the other side.
    skew: Duration,
    /// Whether a re-request server is configured.
    asking: bool,
    /// The first hole; `None` while nothing is missing and after a hole was given up.
    hole: Option<Hole>,
    /// Beginnings of the waits for missing messages, in order of their numbers.
    awaited: VecDeque<AwaitedMessages>,
    /// The session of these numbers, and how often its numbers began anew.
    numbering: (Option<SessionId>, u64),
    ask_at: Timestamp,
    /// The number after the last message that this round requests.
    asked_end: u64,
}

impl Gaps {
    pub(super) fn new(patience: Duration, skew: Duration, asking: bool) -> Self {
        Self {
            patience,
            skew,
            asking,
            hole: None,
            awaited: VecDeque::new(),
            numbering: (None, 0),
            ask_at: Timestamp::MAX,
            asked_end: 0,
        }
    }

    /// The next action for the holes of the tracker.
    pub(super) fn step(&mut self, now: Timestamp, tracker: &Tracker) -> Step {
        let Some(first) = tracker.missing().next() else {
            self.hole = None;
            self.awaited.clear();
            return Step::Wait(Timestamp::MAX);
        };
        let numbering = (tracker.session(), tracker.counts().restarts);
        if self.numbering != numbering {
            // The same numbers mean other messages now.
            (self.numbering, self.hole, self.asked_end) = (numbering, None, 0);
            self.awaited.clear();
        }
        if !self.asking {
            self.await_messages(now, tracker.known_end());
        }
        let since = self.progress(now, first.start);
        if now >= since + self.patience {
            self.hole = None;
            return Step::Abandon;
        }
        if !self.asking {
            return Step::Wait(since + self.patience);
        }
        if now >= self.ask_at {
            self.ask_at = now + RETRY;
            let requests = self.round(tracker);
            self.await_messages(now, self.asked_end);
            return Step::Ask(requests);
        }
        Step::Wait(self.ask_at.min(since + self.patience))
    }

    /// Awaits the messages before this number. Messages that are awaited already keep their time.
    fn await_messages(&mut self, now: Timestamp, end: u64) {
        let part = self.patience / PATIENCE_PARTS;
        match self.awaited.back_mut() {
            Some(last) if end <= last.end => {}
            Some(last) if now < last.begun + part => (last.since, last.end) = (now, end),
            _ => self.awaited.push_back(AwaitedMessages { begun: now, since: now, end }),
        }
    }

    /// The time from which the patience with the hole at `start` counts.
    fn progress(&mut self, now: Timestamp, start: u64) -> Timestamp {
        match self.hole {
            Some(hole) if hole.start == start => return hole.since,
            Some(_) if start >= self.asked_end => self.ask_at = self.ask_at.min(now + self.skew),
            Some(_) => {}
            None => self.ask_at = now + self.skew,
        }
        // The rest of a hole that the server is filling, because a server that answers has the rest
        // too.
        if self.hole.is_some() && start == self.asked_end {
            self.ask_at = now;
        }
        while self.awaited.front().is_some_and(|awaited| awaited.end <= start) {
            self.awaited.pop_front();
        }
        // A hole that is given up clears `hole`, and one that is filled does not. Behind a hole
        // that was given up, the next one has waited since its own entry.
        let is_filled = self.asking && self.hole.is_some();
        let awaited = self.awaited.front().filter(|_| !is_filled);
        let since = awaited.map_or(now, |awaited| awaited.since);
        self.hole = Some(Hole { start, since });
        since
    }

    fn round(&mut self, tracker: &Tracker) -> Vec<MoldRequest> {
        let Some(session) = tracker.session() else { return Vec::new() };
        let mut requests = Vec::with_capacity(ROUND);
        for hole in tracker.missing() {
            let mut sequence = hole.start;
            while sequence < hole.end && requests.len() < ROUND {
                let count = (hole.end - sequence).min(PIECE);
                requests.push(MoldRequest { session, sequence, count: count as u16 });
                sequence += count;
                self.asked_end = sequence;
            }
            if requests.len() == ROUND {
                break;
            }
        }
        requests
    }
}

/// Datagrams of four bytes (milliseconds since the last, sequence, messages). Checks that only
/// missing messages are requested, that a round is bounded, and that the steps at any time end with
/// a wait.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz(data: &[u8]) {
    use evenfall_feed_formats::arbiter::{ArbiterLimits, FeedSide};
    use evenfall_feed_formats::mold::{PacketBuilder, SessionId};
    /// Limit of messages that are held behind holes.
    const HELD_MAX: usize = 64;
    /// Limit of steps at one time: one for each hole that is given up, one for a round of requests,
    /// and a few more.
    const STEPS_MAX: usize = HELD_MAX + 8;
    let limits = ArbiterLimits { messages_max: HELD_MAX, ..ArbiterLimits::default() };
    let mut tracker = Tracker::new(Some(1), limits);
    let mut gaps = Gaps::new(Duration::from_millis(50), Duration::from_millis(1), true);
    let mut now = Timestamp::ZERO;
    let (chunks, _) = data.as_chunks::<4>();
    for &[ms, low, high, count] in chunks {
        now += Duration::from_millis(ms.into());
        let sequence = u64::from(u16::from_le_bytes([low, high]));
        let mut packet = PacketBuilder::new(SessionId(*b"      fuzz"), sequence, 1_400);
        (0..count % 8).for_each(|_| assert!(packet.push(b"message")));
        let _ = tracker.datagram(FeedSide::A, &packet.finish().into());
        let mut steps = 0;
        loop {
            while tracker.poll().is_some() {}
            match gaps.step(now, &tracker) {
                Step::Wait(until) => {
                    assert!(until > now);
                    break;
                }
                Step::Abandon => tracker.abandon(),
                Step::Ask(requests) => {
                    assert!(!requests.is_empty() && requests.len() <= ROUND);
                    for request in requests {
                        let end = request.sequence + u64::from(request.count);
                        let is_missing = |hole: core::ops::Range<u64>| {
                            hole.start <= request.sequence && end <= hole.end
                        };
                        assert!(tracker.missing().any(is_missing), "{request:?}");
                    }
                }
            }
            steps += 1;
            assert!(steps <= STEPS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use evenfall_feed_formats::arbiter::{ArbiterLimits, FeedSide};
    use evenfall_feed_formats::mold::{PacketBuilder, SessionId};

    const SESSION: SessionId = SessionId(*b"   session");
    const PATIENCE: Duration = Duration::from_millis(100);
    const SKEW: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    fn give(tracker: &mut Tracker, sequences: core::ops::Range<u64>) {
        let mut packet = PacketBuilder::new(SESSION, sequences.start, 60_000);
        sequences.for_each(|s| assert!(packet.push(&s.to_le_bytes())));
        tracker.datagram(FeedSide::A, &Bytes::from(packet.finish())).unwrap();
        while tracker.poll().is_some() {}
    }

    fn asked(step: Step) -> Vec<(u64, u16)> {
        let Step::Ask(requests) = step else { panic!("{step:?}") };
        requests.iter().map(|r| (r.sequence, r.count)).collect()
    }

    #[test]
    fn a_hole_is_left_to_the_other_side_then_asked_for_then_given_up() {
        let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
        let mut gaps = Gaps::new(PATIENCE, SKEW, true);
        give(&mut tracker, 1..3);
        assert_eq!(gaps.step(at(0), &tracker), Step::Wait(Timestamp::MAX));
        give(&mut tracker, 5..6);
        assert_eq!(gaps.step(at(10), &tracker), Step::Wait(at(11)));
        assert_eq!(asked(gaps.step(at(11), &tracker)), [(3, 2)]);
        assert_eq!(gaps.step(at(11), &tracker), Step::Wait(at(21)));
        assert_eq!(asked(gaps.step(at(21), &tracker)), [(3, 2)]);
        give(&mut tracker, 3..4);
        // Progress: the patience starts again.
        assert_eq!(gaps.step(at(30), &tracker), Step::Wait(at(31)));
        asked(gaps.step(at(31), &tracker));
        assert_eq!(gaps.step(at(130), &tracker), Step::Abandon);
        tracker.abandon();
        assert_eq!(gaps.step(at(130), &tracker), Step::Wait(Timestamp::MAX));
    }

    #[test]
    fn a_long_hole_is_asked_for_in_rounds_of_packets_without_a_pause() {
        let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
        let mut gaps = Gaps::new(PATIENCE, SKEW, true);
        give(&mut tracker, 10_001..10_002);
        gaps.step(at(0), &tracker);
        let round = asked(gaps.step(at(1), &tracker));
        assert_eq!((round.len(), round[0], round[1]), (16, (1, 26), (27, 26)));
        give(&mut tracker, 1..1 + 16 * 26);
        assert_eq!(asked(gaps.step(at(2), &tracker))[0], (417, 26), "the next round, at once");
    }

    /// Gives up what is to be given up at this time, and returns the number of holes.
    fn abandoned(gaps: &mut Gaps, tracker: &mut Tracker, now: Timestamp) -> usize {
        let mut holes = 0;
        loop {
            match gaps.step(now, tracker) {
                Step::Wait(_) => return holes,
                Step::Ask(_) => {}
                Step::Abandon => {
                    tracker.abandon();
                    while tracker.poll().is_some() {}
                    holes += 1;
                }
            }
        }
    }

    #[test]
    fn holes_wait_side_by_side_and_not_one_behind_the_other() {
        for asking in [false, true] {
            let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
            let mut gaps = Gaps::new(PATIENCE, SKEW, asking);
            // Ten holes within 20 ms: one round of requests has them all.
            for hole in 0..10 {
                give(&mut tracker, 3 * hole + 1..3 * hole + 3);
                assert_eq!(abandoned(&mut gaps, &mut tracker, at(2 * hole)), 0);
            }
            give(&mut tracker, 31..32);
            for ms in 20..40 {
                assert_eq!(abandoned(&mut gaps, &mut tracker, at(ms)), 0, "{ms} ms");
            }
            // No hole is given up before its time, and none waits for twice its time.
            let before = abandoned(&mut gaps, &mut tracker, at(101));
            assert!(before <= 1, "{before} holes at 101 ms");
            let all =
                (102..150).map(|ms| abandoned(&mut gaps, &mut tracker, at(ms))).sum::<usize>();
            assert_eq!(before + all, 10, "asking {asking}");
        }
    }

    #[test]
    fn holes_of_a_session_that_begins_anew_wait_from_when_they_are_seen() {
        let mut tracker = Tracker::new(None, ArbiterLimits::default());
        let mut gaps = Gaps::new(PATIENCE, SKEW, false);
        give(&mut tracker, 1..2);
        give(&mut tracker, 9..10);
        assert_eq!(gaps.step(at(0), &tracker), Step::Wait(at(100)));
        tracker.leave();
        let mut packet = PacketBuilder::new(SessionId(*b"     later"), 1, 1_400);
        assert!(packet.push(b"one"));
        tracker.datagram(FeedSide::A, &Bytes::from(packet.finish())).unwrap();
        let mut packet = PacketBuilder::new(SessionId(*b"     later"), 3, 1_400);
        assert!(packet.push(b"three"));
        tracker.datagram(FeedSide::A, &Bytes::from(packet.finish())).unwrap();
        while tracker.poll().is_some() {}
        assert_eq!(gaps.step(at(90), &tracker), Step::Wait(at(190)));
    }

    #[test]
    fn without_a_server_a_hole_only_waits() {
        let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
        let mut gaps = Gaps::new(PATIENCE, SKEW, false);
        give(&mut tracker, 2..3);
        assert_eq!(gaps.step(at(0), &tracker), Step::Wait(at(100)));
        assert_eq!(gaps.step(at(100), &tracker), Step::Abandon);
    }
}
