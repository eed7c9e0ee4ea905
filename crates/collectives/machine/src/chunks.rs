//! The high-entropy schedule (section 2.4.1 of the thesis): granular, concurrent and random.
//!
//! A sender cuts its messages into chunks, works on several chunks at once, draws the target of
//! each at random, and has one chunk under way to a target at a time. Conflicts at a receiver then
//! queue in the network and stall nobody. The chunk of a message that has not begun goes unasked,
//! and the receiver grants the next chunk when it has all of the one before, so that a grant is the
//! acknowledgement of a chunk.
//!
//! ```text
//!   granted          drawn while there is room         all packets left and arrived
//!  ---------> waiting ----------------------> under way ----------------> granted again, or done
//! ```
//!
//! The shuffle's own schedule ([GRPF](crate::sender)) is at least as fast in all that was measured
//! here. This one is for comparison with its source.

use evenfall_core::Prng;
use evenfall_core::math::mix;

/// How messages are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRule {
    /// Length of a chunk in packets. The thesis takes 40 KB at most.
    pub packets: u32,
    /// Chunks that a sender has under way at a time. The thesis names no number.
    pub at_once: usize,
}

/// The chunks of a sender.
#[derive(Debug)]
pub(crate) struct ChunkTurns {
    rule: ChunkRule,
    prng: Prng,
    /// Targets with a chunk that has not begun.
    waiting: Vec<u16>,
    /// Targets with a chunk that has not arrived in full, at most [`ChunkRule::at_once`].
    under_way: Vec<u16>,
}

impl ChunkTurns {
    pub(crate) fn new(rule: ChunkRule, operation: u64, me: u16) -> Self {
        let prng = Prng::new(mix(operation ^ u64::from(me) << 48));
        Self { rule, prng, waiting: Vec::new(), under_way: Vec::new() }
    }

    /// Packets of the first chunk.
    pub(crate) fn chunk_packets(&self) -> u32 {
        self.rule.packets.max(1)
    }

    /// The next chunk to a target may be sent, because the one before has arrived.
    pub(crate) fn wait(&mut self, to: u16) {
        self.end(to);
        if !self.waiting.contains(&to) {
            self.waiting.push(to);
        }
    }

    /// A chunk has arrived.
    pub(crate) fn end(&mut self, to: u16) {
        self.under_way.retain(|&other| other != to);
    }

    /// Whether a packet can leave. `has_packet` tells whether a target has a granted packet that
    /// has not left.
    pub(crate) fn is_ready(&self, has_packet: impl Fn(u16) -> bool) -> bool {
        let has_room = self.under_way.len() < self.rule.at_once.max(1);
        self.under_way.iter().any(|&to| has_packet(to))
            || has_room && self.waiting.iter().any(|&to| has_packet(to))
    }

    /// The target of the next packet: any of those under way.
    pub(crate) fn next(&mut self, has_packet: impl Fn(u16) -> bool) -> Option<u16> {
        while self.under_way.len() < self.rule.at_once.max(1) && !self.waiting.is_empty() {
            let drawn = self.prng.below(self.waiting.len() as u64) as usize;
            let to = self.waiting.swap_remove(drawn);
            // A message that was acknowledged meanwhile has none.
            if has_packet(to) {
                self.under_way.push(to);
            }
        }
        let first = self.prng.below(self.under_way.len().max(1) as u64) as usize;
        let (before, from) = self.under_way.split_at(first.min(self.under_way.len()));
        from.iter().chain(before).copied().find(|&to| has_packet(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_few_at_once_one_a_target_and_drawn_at_random() {
        let draw = |me| {
            let rule = ChunkRule { packets: 4, at_once: 3 };
            let mut turns = ChunkTurns::new(rule, 9, me);
            (0..20).for_each(|to| turns.wait(to));
            let mut left = [4; 20];
            let mut order = Vec::new();
            while let Some(to) = turns.next(|to| left[usize::from(to)] > 0) {
                left[usize::from(to)] -= 1;
                order.push(to);
            }
            // Nothing has arrived: three chunks have left, and no other begins.
            assert_eq!(left.iter().filter(|&&left| left == 0).count(), 3);
            assert!(!turns.is_ready(|to| left[usize::from(to)] > 0));
            let first = order[0];
            turns.end(first);
            assert!(turns.is_ready(|to| left[usize::from(to)] > 0));
            let next = turns.next(|to| left[usize::from(to)] > 0).expect("a fourth chunk");
            assert!(!order.contains(&next));
            order
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
