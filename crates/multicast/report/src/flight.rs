//! The messages of one stream that still wait for a receiver.
//!
//! ```text
//!   forgotten        base          closed early                 base + slots.len()
//!  ------------------+------+------+--------+------+------+------+
//!                    | wait | wait | closed | wait | hole | wait |   one Slot and one bit per
//!                    +------+------+--------+------+------+------+   receiver each
//! ```
//!
//! Messages close in any order and are forgotten from the front, so a message that waits keeps the
//! closed messages behind it. The ledger's `in_flight_max` bounds their number.

use std::collections::VecDeque;
use std::ops::Range;

use super::apart::Spread;
use super::{FairnessRow, Released, SentMessage};

/// Numbers that the root may skip between two messages. A larger jump comes from a broken log,
/// which must not make the ledger allocate.
const SKIP_MAX: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The number was never sent.
    Hole,
    Waiting,
    Closed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) scheduled_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    first_arrival_ns: u64,
    last_arrival_ns: u64,
    /// When the receivers' programs took the message.
    pub(super) taken: Spread,
    /// When the receivers released the message.
    pub(super) releases: Spread,
    /// Receivers that must account for the message, as last computed.
    pub(super) expected: u32,
    /// Receivers that released the message.
    pub(super) seen: u32,
    /// Receivers that reported the message lost.
    pub(super) lost: u32,
    /// Receivers that got the message after the deadline.
    late: u32,
    state: State,
}

impl Slot {
    fn new(sent: &SentMessage, expected: u32) -> Self {
        Self {
            scheduled_ns: sent.scheduled_ns,
            sent_ns: sent.sent_ns,
            deadline_ns: sent.deadline_ns,
            first_arrival_ns: u64::MAX,
            last_arrival_ns: 0,
            taken: Spread::EMPTY,
            releases: Spread::EMPTY,
            expected,
            seen: 0,
            lost: 0,
            late: 0,
            state: State::Waiting,
        }
    }

    fn hole() -> Self {
        Self { state: State::Hole, ..Self::new(&SentMessage::default(), 0) }
    }

    /// Counts the release of a receiver. The error of the receiver's clock is at most `bound_ns`.
    #[inline]
    pub(super) fn release(&mut self, frame: &Released, bound_ns: u64) {
        self.first_arrival_ns = self.first_arrival_ns.min(frame.arrival_ns);
        self.last_arrival_ns = self.last_arrival_ns.max(frame.arrival_ns);
        self.taken.add(frame.taken_ns.max(frame.arrival_ns), bound_ns);
        self.releases.add(frame.release_ns, bound_ns);
        self.seen += 1;
        let is_late = self.deadline_ns.is_some_and(|deadline_ns| frame.arrival_ns > deadline_ns);
        self.late += u32::from(is_late);
    }

    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Waiting && self.seen + self.lost >= self.expected
    }

    pub(super) fn close(&mut self) {
        self.state = State::Closed;
    }

    pub(super) fn row(&self, stream: u32, message: u64) -> FairnessRow {
        let known = |ns: u64| if self.seen > 0 { ns } else { 0 };
        FairnessRow {
            stream,
            message,
            scheduled_ns: self.scheduled_ns,
            sent_ns: self.sent_ns,
            deadline_ns: self.deadline_ns,
            first_arrival_ns: known(self.first_arrival_ns),
            last_arrival_ns: known(self.last_arrival_ns),
            first_release_ns: known(self.releases.first_ns),
            last_release_ns: known(self.releases.last_ns),
            receivers: self.seen,
            late: self.late + self.expected.saturating_sub(self.seen),
        }
    }
}

/// The effect of a receiver's record about a message.
#[derive(Debug)]
pub(super) enum Place<'a> {
    /// The message waits in this slot, and the receiver has now accounted for it.
    Waiting(&'a mut Slot),
    /// The message was closed early. The copy still counts as delivered.
    Given,
    /// The receiver had already accounted for the message.
    Again,
    /// The message was never sent, or not to this receiver.
    Nowhere,
}

/// The messages of one stream, and the receivers that are expected to release them.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// Number of the first message; `None` before the first.
    first: Option<u64>,
    base: u64,
    slots: VecDeque<Slot>,
    /// Bits of the receivers that have accounted for a message, `words` words per slot.
    spoken: VecDeque<u64>,
    words: usize,
    /// Messages below this number may have been closed before all receivers accounted for them.
    closed_early: u64,
    /// By receiver: the latest range of messages that it is expected to release.
    latest: Vec<Range<u64>>,
    /// Earlier ranges of receivers that came back.
    earlier: Vec<(usize, Range<u64>)>,
    /// Ascending pairs `(from, expected)`: messages from `from` on are expected at `expected`
    /// receivers.
    steps: Vec<(u64, u32)>,
    /// Whether membership has changed since `steps` was made. Thousands of receivers may join at
    /// once.
    stale: bool,
}

impl Flight {
    /// A stream whose first `founders` receivers are expected from its beginning.
    pub(super) fn new(founders: usize, enrolled: usize) -> Self {
        let mut flight = Self {
            first: None,
            base: 0,
            slots: VecDeque::new(),
            spoken: VecDeque::new(),
            words: 0,
            closed_early: 0,
            latest: vec![0..u64::MAX; founders],
            earlier: Vec::new(),
            steps: vec![(0, founders as u32)],
            stale: false,
        };
        flight.make_room(enrolled);
        flight
    }

    /// Widens every table that is indexed by receiver.
    pub(super) fn make_room(&mut self, enrolled: usize) {
        self.latest.resize(self.latest.len().max(enrolled), 0..0);
        let words = enrolled.div_ceil(64);
        if words > self.words {
            let mut spoken = VecDeque::with_capacity(self.slots.len() * words);
            for slot in 0..self.slots.len() {
                let old = (0..self.words).map(|word| self.spoken[slot * self.words + word]);
                spoken.extend(old.chain(std::iter::repeat_n(0, words - self.words)));
            }
            (self.spoken, self.words) = (spoken, words);
        }
    }

    pub(super) fn join(&mut self, receiver: usize, from: u64) {
        let before = std::mem::replace(&mut self.latest[receiver], from..u64::MAX);
        let before = before.start..before.end.min(from);
        if !before.is_empty() {
            self.earlier.push((receiver, before));
        }
        self.stale = true;
    }

    pub(super) fn leave(&mut self, receiver: usize, until: u64) {
        let range = &mut self.latest[receiver];
        range.end = range.end.min(until);
        self.stale = true;
    }

    fn ranges(&self) -> impl Iterator<Item = &Range<u64>> {
        let ranges = self.latest.iter().chain(self.earlier.iter().map(|(_, range)| range));
        ranges.filter(|range| !range.is_empty())
    }

    fn count_steps(&mut self) {
        let changes = self.ranges().flat_map(|range| [(range.start, 1i64), (range.end, -1)]);
        let mut changes: Vec<_> = changes.collect();
        changes.sort_unstable();
        self.stale = false;
        let mut expected = 0i64;
        self.steps = vec![(0, 0)];
        for (from, change) in changes {
            expected += change;
            match self.steps.last_mut() {
                Some(step) if step.0 == from => step.1 = expected as u32,
                _ => self.steps.push((from, expected as u32)),
            }
        }
    }

    /// Receivers that this message is expected to reach.
    #[inline]
    pub(super) fn expected(&mut self, message: u64) -> u32 {
        if self.stale {
            self.count_steps();
        }
        let after = self.steps.partition_point(|&(from, _)| from <= message);
        after.checked_sub(1).map_or(0, |at| self.steps[at].1)
    }

    /// Numbers of this stream that the receiver should have had, skipped ones included.
    pub(super) fn expected_of(&self, receiver: usize) -> u64 {
        let Some(first) = self.first else { return 0 };
        let sent = first..self.range().end;
        let mine = self.earlier.iter().filter(|(who, _)| *who == receiver).map(|(_, range)| range);
        let mine = self.latest.get(receiver).into_iter().chain(mine);
        mine.map(|r| r.end.min(sent.end).saturating_sub(r.start.max(sent.start))).sum()
    }

    /// Adds a sent message; false when its number is impossible.
    pub(super) fn push(&mut self, sent: &SentMessage) -> bool {
        if self.first.is_none() {
            self.first = Some(sent.message);
            self.base = sent.message;
        }
        let next = self.range().end;
        let expected = self.expected(sent.message);
        if sent.message < next || sent.message - next > SKIP_MAX {
            return false;
        }
        for _ in next..sent.message {
            self.slots.push_back(Slot::hole());
        }
        self.slots.push_back(Slot::new(sent, expected));
        self.spoken.resize(self.slots.len() * self.words, 0);
        true
    }

    /// Notes that the receiver accounts for the message, and returns the effect.
    #[inline]
    pub(super) fn take(&mut self, message: u64, receiver: usize) -> Place<'_> {
        if message < self.base {
            return if message < self.closed_early { Place::Given } else { Place::Again };
        }
        let at = (message - self.base) as usize;
        let is_member = self.latest[receiver].contains(&message)
            || self.earlier.iter().any(|(who, r)| *who == receiver && r.contains(&message));
        let Some(slot) = self.slots.get_mut(at) else { return Place::Nowhere };
        if slot.state == State::Hole || !is_member {
            return Place::Nowhere;
        }
        let word = &mut self.spoken[at * self.words + receiver / 64];
        let bit = 1 << (receiver % 64);
        if *word & bit != 0 {
            return Place::Again;
        }
        *word |= bit;
        if slot.state == State::Closed { Place::Given } else { Place::Waiting(slot) }
    }

    /// The slot of a message that waits.
    pub(super) fn slot(&mut self, message: u64) -> Option<&mut Slot> {
        let at = message.checked_sub(self.base)?;
        self.slots.get_mut(at as usize).filter(|slot| slot.state == State::Waiting)
    }

    /// Numbers that are in flight, closed ones and holes between them included.
    pub(super) fn range(&self) -> Range<u64> {
        self.base..self.base + self.slots.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn oldest(&self) -> u64 {
        self.base
    }

    /// Messages at and after `from` that wait.
    pub(super) fn waiting_from(&self, from: u64) -> Vec<u64> {
        let all = self.range().zip(&self.slots);
        let waiting = all.filter(|(message, s)| *message >= from && s.state == State::Waiting);
        waiting.map(|(message, _)| message).collect()
    }

    /// Forgets closed messages and holes at the front.
    pub(super) fn forget_closed(&mut self) {
        while let Some(slot) = self.slots.front().filter(|slot| slot.state != State::Waiting) {
            if slot.seen + slot.lost < slot.expected {
                self.closed_early = self.base + 1;
            }
            self.slots.pop_front();
            self.spoken.drain(..self.words);
            self.base += 1;
        }
    }
}
