//! Which frames have been seen (a sliding window of bits) and which are missing (ranges).
//!
//! The published code keeps a set that grows for ever, or a buffer that assumes that a second of
//! messages is never reordered. The window in this module has the configured width, and slides when
//! its oldest frame is settled. A frame beyond the window moves it on, and the missing frames that
//! fall out are given up.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;

/// The state of a frame number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The frame is new: use it.
    First,
    /// The frame was seen or given up before: drop it.
    Duplicate,
    /// The frame lies too far ahead. [`Window::give_up`] must make room first.
    Beyond,
}

/// The de-duplication window of one (stream, epoch).
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// All frames below this number are settled: seen or given up.
    base: u64,
    /// The number after the highest frame seen or heard of.
    next: u64,
    /// One bit per frame of `base..base + capacity`, by frame number modulo capacity.
    bits: Box<[u64]>,
}

impl Window {
    pub(crate) fn new(frames: usize, start: u64) -> Self {
        Self { base: start, next: start, bits: vec![0; frames / 64].into() }
    }

    fn slot(&self, sequence: u64) -> (usize, u64) {
        let bit = sequence as usize & (self.bits.len() * 64 - 1);
        (bit / 64, 1 << (bit % 64))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.bits.len() as u64 * 64
    }

    /// The lowest frame that is neither seen nor given up.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Reads the bit of the next frame.
    pub(crate) fn prefetch(&self) -> u64 {
        self.bits[self.slot(self.base).0]
    }

    /// The number after the highest frame heard of.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn contains(&self, sequence: u64) -> bool {
        if sequence < self.base || sequence >= self.base + self.capacity() {
            return sequence < self.base;
        }
        let (word, mask) = self.slot(sequence);
        self.bits[word] & mask != 0
    }

    /// Marks a frame as seen. For a first copy, `gap` is the range of frames that it jumped over.
    pub(crate) fn insert(&mut self, sequence: u64) -> (Seen, Option<(u64, u64)>) {
        if self.contains(sequence) {
            return (Seen::Duplicate, None);
        }
        if sequence >= self.base + self.capacity() {
            return (Seen::Beyond, None);
        }
        let (word, mask) = self.slot(sequence);
        self.bits[word] |= mask;
        let gap = self.hear_of(sequence + 1).map(|(from, to)| (from, to - 1));
        self.advance();
        (Seen::First, gap.filter(|(from, to)| from < to))
    }

    /// Learns that frames below `next` exist. Returns the frames not heard of before, as far as the
    /// window reaches.
    pub(crate) fn hear_of(&mut self, next: u64) -> Option<(u64, u64)> {
        let next = next.min(self.base + self.capacity());
        if next <= self.next {
            return None;
        }
        let new = (self.next, next);
        self.next = next;
        Some(new)
    }

    /// Gives up all frames below `sequence` that were not seen. Returns their number.
    pub(crate) fn give_up(&mut self, sequence: u64) -> u64 {
        let mut missing = sequence.saturating_sub(self.base);
        while self.base < sequence {
            if self.base + self.capacity() <= sequence {
                // The whole window lies behind, so it is cleared at once instead of bit by bit.
                missing -= self.bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
                self.bits.fill(0);
                self.base = sequence;
                break;
            }
            let (word, mask) = self.slot(self.base);
            missing -= u64::from(self.bits[word] & mask != 0);
            self.bits[word] &= !mask;
            self.base += 1;
        }
        self.next = self.next.max(self.base);
        self.advance();
        missing
    }

    fn advance(&mut self) {
        loop {
            let (word, mask) = self.slot(self.base);
            if self.bits[word] & mask == 0 {
                return;
            }
            self.bits[word] &= !mask;
            self.base += 1;
        }
    }
}

/// A range of missing frames.
#[derive(Clone, Copy, Debug)]
struct Gap {
    first: u64,
    /// Number after the last frame of the range.
    end: u64,
    /// When the range is asked for next.
    next_ask: Timestamp,
    /// How often the range was asked for.
    asks: u32,
    /// Number after the last frame that was asked for.
    asked: u64,
    /// Whether the answering node has answered most of the request. The next part is then asked for
    /// before the rest has arrived.
    more: bool,
    /// When the gap was found, or when a frame of it last arrived.
    progress: Timestamp,
}

/// A request that is due now: frames `first..first + count`, to the `asks`-th source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub first: u64,
    pub count: u16,
    pub attempt: u32,
}

/// A repair copy arrived: which node to ask for the frames behind it, and how long to wait for them
/// first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// The place of the sender in the list of nodes to ask, as in [`Ask::attempt`].
    pub source: u32,
    /// Time within which another copy is due, since copies leave their sender at a bounded rate.
    pub patience: Duration,
}

/// Frames that one request asks for. Further frames are asked for as these arrive, so that a long
/// gap does not overflow the queue of the repairing node.
const ASK_FRAMES_MAX: u64 = 512;
/// When fewer requested frames than this are still to come, the next frames are asked for.
const ASK_AHEAD: u64 = ASK_FRAMES_MAX / 2;
/// Ranges that are tracked at once. Beyond this number the oldest range is given up, because repair
/// cannot help a node that loses every other frame for so long.
const GAPS_MAX: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    /// Gaps in the order of frame numbers. A new gap is always the highest.
    gaps: VecDeque<Gap>,
    /// The earliest `next_ask`, or an earlier time at which it is recomputed.
    next_ask: Option<Timestamp>,
}

impl Gaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Since when the repair of the oldest gap has made no progress. Each gap has its own time,
    /// because progress of one gap says nothing about another.
    pub(crate) fn progress(&self) -> Option<Timestamp> {
        self.gaps.front().map(|gap| gap.progress)
    }

    /// Notes that `first..end` is missing and may be asked for after `delay`. Returns a frame below
    /// which all frames must be given up, when too many ranges are open.
    pub(crate) fn open(
        &mut self,
        now: Timestamp,
        (first, end): (u64, u64),
        delay: Duration,
    ) -> Option<u64> {
        let next_ask = now + delay;
        let gap = Gap { first, end, next_ask, asks: 0, asked: first, more: false, progress: now };
        self.gaps.push_back(gap);
        self.next_ask = Some(self.next_ask.map_or(next_ask, |t| t.min(next_ask)));
        (self.gaps.len() > GAPS_MAX).then(|| self.gaps[0].end)
    }

    /// Adds missing frames to the last gap. Returns `false` when no gap ends where these frames
    /// begin.
    pub(crate) fn extend(&mut self, (first, end): (u64, u64)) -> bool {
        let last = self.gaps.back_mut().filter(|gap| gap.end == first);
        last.map(|gap| gap.end = end).is_some()
    }

    /// A frame arrived. Returns whether it had been missing. Repair is asked for as a stream: each
    /// frame that arrives makes room to ask the same node for another.
    pub(crate) fn fill(&mut self, now: Timestamp, sequence: u64, answer: Option<Answer>) -> bool {
        let at = self.gaps.partition_point(|gap| gap.end <= sequence);
        let Some(gap) = self.gaps.get_mut(at).filter(|gap| gap.first <= sequence) else {
            return false;
        };
        gap.progress = now;
        // The frames behind an answered part were not asked for yet, so their requests start with
        // the parent again.
        let mut rest = Gap { first: sequence + 1, asks: gap.asks.min(1), ..*gap };
        gap.end = sequence;
        gap.asked = gap.asked.min(sequence);
        gap.more = false;
        if let Some(answer) = answer {
            // Copies come in order, so the rest is still under way. A part that was jumped over
            // keeps its own time. The sender is asked for more frames when most of its answer has
            // arrived.
            rest.asks = answer.source;
            rest.more = rest.asked < rest.end && rest.asked <= rest.first + ASK_AHEAD;
            rest.next_ask = if rest.more { now } else { rest.next_ask.max(now + answer.patience) };
            if rest.more {
                self.next_ask = Some(now);
            }
        }
        match (gap.first < gap.end, rest.first < rest.end) {
            (false, false) => drop(self.gaps.remove(at)),
            (false, true) => self.gaps[at] = rest,
            (true, false) => {}
            (true, true) => self.gaps.insert(at + 1, rest),
        }
        if self.gaps.is_empty() {
            self.next_ask = None;
        }
        true
    }

    /// Forgets everything below `sequence`.
    pub(crate) fn give_up(&mut self, sequence: u64) {
        while self.gaps.front().is_some_and(|gap| gap.end <= sequence) {
            self.gaps.pop_front();
        }
        if let Some(gap) = self.gaps.front_mut() {
            gap.first = gap.first.max(sequence);
        } else {
            self.next_ask = None;
        }
    }

    /// The frame after the oldest gaps that have made no progress since `since`.
    pub(crate) fn stale(&self, since: Timestamp) -> Option<u64> {
        let stale = self.gaps.iter().take_while(|gap| gap.progress <= since);
        stale.last().map(|gap| gap.end)
    }

    pub(crate) fn next_ask(&self) -> Option<Timestamp> {
        self.next_ask
    }

    /// The requests that are due now, `max` at most.
    pub(crate) fn due(&mut self, now: Timestamp, retry: Duration, max: usize) -> Vec<Ask> {
        let mut due = Vec::new();
        let mut budget = ASK_FRAMES_MAX;
        let mut earliest = None::<Timestamp>;
        for gap in &mut self.gaps {
            if gap.next_ask <= now && due.len() < max && budget > 0 {
                let more = core::mem::take(&mut gap.more);
                let first = if more { gap.asked.max(gap.first) } else { gap.first };
                let ahead = if more { ASK_AHEAD } else { ASK_FRAMES_MAX };
                let count = (gap.end - first).min(budget).min(ahead);
                budget -= count;
                gap.asked = first + count;
                // A process that was stopped could not ask, and its answers wait behind this timer.
                // The time of the stop is taken off the gap's patience. An ordinary turn is late by
                // less than a retry, and counts.
                let late = now.since(gap.next_ask);
                if late > retry {
                    gap.progress = (gap.progress + late).min(now);
                }
                due.push(Ask { first, count: count as u16, attempt: gap.asks });
                // The wait doubles up to eight times its length, so that a node that is far or busy
                // is not flooded.
                gap.next_ask = now + retry * (1 << gap.asks.min(3));
                gap.asks += 1;
            }
            earliest = Some(earliest.map_or(gap.next_ask, |t| t.min(gap.next_ask)));
        }
        // Ranges beyond the limit are still due. They come up again when answers have had time to
        // arrive.
        self.next_ask = earliest.map(|t| t.max(now + retry / 4));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::Prng;
    use std::collections::BTreeSet;

    const NOW: Timestamp = Timestamp::from_nanos(1_000);
    const RETRY: Duration = Duration::from_millis(1);

    #[test]
    fn window_equals_a_set_on_random_input() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let (mut window, mut model) = (Window::new(128, 0), BTreeSet::new());
            for _ in 0..2_000 {
                let sequence = window.base().saturating_sub(10) + prng.below(100);
                let expected = if sequence < window.base() || model.contains(&sequence) {
                    Seen::Duplicate
                } else {
                    model.insert(sequence);
                    Seen::First
                };
                assert_eq!(window.insert(sequence).0, expected, "seed {seed} frame {sequence}");
                assert!(!model.contains(&window.base()), "seed {seed}: the base was seen");
                model.retain(|&s| s >= window.base());
            }
        }
    }

    #[test]
    fn a_jump_reports_its_gap_and_beyond_needs_room() {
        let mut window = Window::new(64, 10);
        assert_eq!(window.insert(10), (Seen::First, None));
        assert_eq!(window.insert(13), (Seen::First, Some((11, 13))));
        assert_eq!(window.insert(11 + 64), (Seen::Beyond, None));
        window.give_up(12);
        assert_eq!(window.base(), 12);
        assert_eq!(window.insert(11 + 64), (Seen::First, Some((14, 75))));
        window.give_up(1_000);
        assert_eq!((window.base(), window.next()), (1_000, 1_000));
        assert_eq!(window.insert(999).0, Seen::Duplicate);
    }

    #[test]
    fn gaps_split_shrink_and_are_asked_for_in_turn() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.open(NOW, (5, 10), RETRY), None);
        assert!(gaps.due(NOW, RETRY, 9).is_empty(), "reordering is given a chance");
        assert!(gaps.fill(NOW, 7, None) && !gaps.fill(NOW, 7, None) && !gaps.fill(NOW, 4, None));
        let later = NOW + RETRY;
        let ask = |first, count, attempt| Ask { first, count, attempt };
        assert_eq!(gaps.due(later, RETRY, 9), [ask(5, 2, 0), ask(8, 2, 0)]);
        assert!(gaps.due(later, RETRY, 9).is_empty());
        gaps.give_up(6);
        assert_eq!(gaps.due(later + RETRY, RETRY, 9), [ask(6, 1, 1), ask(8, 2, 1)]);
        for frame in [6, 8, 9] {
            assert!(gaps.fill(later, frame, None));
        }
        assert!(gaps.is_empty() && gaps.next_ask().is_none());
    }

    #[test]
    fn who_repairs_is_asked_in_a_stream_and_a_stall_asks_again() {
        // The recorder is the fourth node that is asked, because parent, aunt and root do not have
        // the frames.
        for source in [0, 3] {
            let mut gaps = Gaps::default();
            gaps.open(NOW, (0, 10_000), RETRY);
            let mut now = NOW + RETRY;
            for attempt in 0..=source {
                let asks = gaps.due(now, RETRY, 9);
                assert_eq!(asks[0], Ask { first: 0, count: 512, attempt });
                now += RETRY * 8 * u32::from(attempt < source);
            }
            let answer = Some(Answer { source, patience: RETRY });
            let mut most = 512;
            for frame in 0..3_000 {
                assert!(gaps.fill(now, frame, answer));
                if gaps.next_ask().is_some_and(|at| at <= now) {
                    for ask in gaps.due(now, RETRY, 9) {
                        assert_eq!((ask.first, ask.attempt), (most, source));
                        most = ask.first + u64::from(ask.count);
                    }
                }
                assert!(most > frame + 1 && most <= frame + 1 + 512, "{frame}: {most} asked for");
            }
            now += RETRY * 8;
            let stalled = gaps.due(now, RETRY, 9)[0];
            assert_eq!(stalled.first, 3_000, "what did not come is asked for again");
            assert!(gaps.extend((10_000, 10_001)) && !gaps.extend((20_000, 20_001)));
        }
    }

    #[test]
    fn a_slow_answer_is_waited_for_and_a_frame_lost_within_it_is_not() {
        let mut gaps = Gaps::default();
        gaps.open(NOW, (0, 100), RETRY);
        let mut now = NOW + RETRY;
        assert_eq!(gaps.due(now, RETRY, 9)[0].count, 100);
        let lost = 10;
        let answer = Some(Answer { source: 0, patience: RETRY });
        let mut asked = Vec::new();
        for frame in (0..100).filter(|frame| *frame != lost) {
            now += RETRY * 3 / 4;
            asked.extend(gaps.due(now, RETRY, 9));
            gaps.fill(now, frame, answer);
        }
        assert!(asked.iter().all(|ask| (ask.first, ask.count) == (lost, 1)), "{asked:?}");
        assert!(!asked.is_empty());
    }

    #[test]
    fn a_stop_of_the_process_is_no_part_of_a_gaps_patience() {
        let patience = RETRY * 100;
        let mut gaps = Gaps::default();
        gaps.open(NOW, (5, 6), RETRY);
        assert_eq!(gaps.due(NOW + RETRY, RETRY, 9).len(), 1);
        // Stopped for ten times the patience, the node asks once more before it gives up.
        let woken = NOW + patience * 10;
        assert_eq!(gaps.due(woken, RETRY, 9).len(), 1);
        assert_eq!(gaps.stale(woken - patience), None);
        assert_eq!(gaps.stale(woken), Some(6));
        // A node that was not stopped gives up when the patience ends, late timers or not.
        let mut gaps = Gaps::default();
        gaps.open(NOW, (5, 6), RETRY);
        let mut now = NOW;
        while now < NOW + patience {
            now = gaps.next_ask().expect("a request") + RETRY / 2;
            gaps.due(now, RETRY, 9);
        }
        assert_eq!(gaps.stale(now - patience), Some(6));
    }
}
