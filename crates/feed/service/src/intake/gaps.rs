//! Decides when to request missing messages, and when to give them up. The module has no socket and
//! no clock: the caller passes in the time and sends the requests.
//!
//! A new hole is not requested at once, because side B or a reordered packet may fill it. Then all
//! holes are requested in pieces that fit one packet each, because a re-request server answers a
//! request with one packet. The next round follows when all pieces of a round have arrived, or
//! after [`RETRY`]. The first hole is given up when it makes no progress for the patience that
//! [`Gaps::new`] takes.

use core::time::Duration;

use evenfall_core::Timestamp;
use evenfall_feed_formats::mold::{Request, Tracker};

/// How long an answer may take before its request is repeated.
const RETRY: Duration = Duration::from_millis(10);
/// Messages of one request. A packet of 1,400 bytes holds that many of the longest messages of
/// ITCH (50 bytes and 2 for the length).
const PIECE: u64 = 26;
/// Requests of one round: their answers are some 20 KiB, far below a receive buffer.
const ROUND: usize = 16;

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time.
    Wait(Timestamp),
    /// Send these requests, then call `step` again.
    Ask(Vec<Request>),
    /// Give the first hole up, then call `step` again.
    Abandon,
}

#[derive(Clone, Copy, Debug)]
struct Hole {
    start: u64,
    /// Time of the hole's last progress.
    since: Timestamp,
}

/// The holes of a session.
#[derive(Debug)]
pub(super) struct Gaps {
    patience: Duration,
    /// Time for which a hole may come from the delay of the other side.
    skew: Duration,
    /// Whether a re-request server is configured.
    asking: bool,
    hole: Option<Hole>,
    ask_at: Timestamp,
    /// The number after the last message that this round requests.
    asked_end: u64,
}

impl Gaps {
    pub(super) fn new(patience: Duration, skew: Duration, asking: bool) -> Self {
        Self { patience, skew, asking, hole: None, ask_at: Timestamp::MAX, asked_end: 0 }
    }

    /// The next action for the holes of the tracker.
    pub(super) fn step(&mut self, now: Timestamp, tracker: &Tracker) -> Step {
        let Some(first) = tracker.missing().next() else {
            self.hole = None;
            return Step::Wait(Timestamp::MAX);
        };
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
            return Step::Ask(self.round(tracker));
        }
        Step::Wait(self.ask_at.min(since + self.patience))
    }

    /// When the hole that starts here last made progress.
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
        self.hole = Some(Hole { start, since: now });
        now
    }

    fn round(&mut self, tracker: &Tracker) -> Vec<Request> {
        let Some(session) = tracker.session() else { return Vec::new() };
        let mut requests = Vec::with_capacity(ROUND);
        for hole in tracker.missing() {
            let mut sequence = hole.start;
            while sequence < hole.end && requests.len() < ROUND {
                let count = (hole.end - sequence).min(PIECE);
                requests.push(Request { session, sequence, count: count as u16 });
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
    /// Most steps at one instant. The machine may give up one hole and ask for one round of
    /// messages, and a few further steps do no harm.
    const STEPS_MAX: usize = 8;
    let limits = ArbiterLimits { messages_max: 64, ..ArbiterLimits::default() };
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

    #[test]
    fn without_a_server_a_hole_only_waits() {
        let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
        let mut gaps = Gaps::new(PATIENCE, SKEW, false);
        give(&mut tracker, 2..3);
        assert_eq!(gaps.step(at(0), &tracker), Step::Wait(at(100)));
        assert_eq!(gaps.step(at(100), &tracker), Step::Abandon);
    }
}
