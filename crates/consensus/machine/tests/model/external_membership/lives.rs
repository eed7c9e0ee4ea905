//! Which super-leaves take part in which cycle, by the rules of `Table` of the machine.

use super::{Agreed, CYCLES_MAX, LEAVES, Leaf, MembershipModel};

/// Spans of a super-leaf: it leaves and comes back twice at most within the cycles of the model.
const SPANS_MAX: usize = 6;
/// Later than every cycle.
const EVER: u8 = u8::MAX;

/// From a cycle on, a super-leaf takes part under an incarnation, or no longer does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    from: u8,
    incarnation: u8,
    is_in: bool,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    spans: [Span; SPANS_MAX],
    count: usize,
}

impl Life {
    fn new() -> Self {
        let first = Span { from: 0, incarnation: 0, is_in: true };
        let mut spans = [Span::default(); SPANS_MAX];
        spans[0] = first;
        Self { spans, count: 1 }
    }

    fn all(&self) -> &[Span] {
        &self.spans[..self.count]
    }

    fn at(&self, cycle: u8) -> Span {
        *self.all().iter().rev().find(|span| span.from <= cycle).unwrap_or(&self.spans[0])
    }

    fn add(&mut self, span: Span) {
        self.spans[self.count] = span;
        self.count += 1;
    }

    fn return_at(&mut self, from: u8) {
        let last = self.at(EVER);
        if !last.is_in {
            self.add(Span { from, incarnation: last.incarnation + 1, is_in: true });
        }
    }
}

/// The table of an actor: what the cycles say that the actor has committed.
#[derive(Clone, Copy, Debug)]
pub struct Lives([Life; LEAVES]);

impl Lives {
    /// The table after the first `committed` cycles.
    pub fn new(agreed: &[Agreed; CYCLES_MAX + 1], committed: u8, model: &MembershipModel) -> Self {
        let mut lives = Self([Life::new(); LEAVES]);
        for cycle in 1..=committed {
            lives.apply(&agreed[usize::from(cycle)], cycle, model);
        }
        lives
    }

    /// The incarnation under which a super-leaf takes part in a cycle.
    pub fn incarnation(&self, leaf: Leaf, cycle: u8) -> Option<u8> {
        let span = self.0[leaf].at(cycle);
        span.is_in.then_some(span.incarnation)
    }

    /// The incarnation after all changes so far.
    pub fn latest(&self, leaf: Leaf) -> Option<u8> {
        self.incarnation(leaf, EVER)
    }

    /// The incarnation under which a super-leaf that is out would come back.
    pub fn next(&self, leaf: Leaf) -> Option<u8> {
        let span = self.0[leaf].at(EVER);
        (!span.is_in).then_some(span.incarnation + 1)
    }

    /// The latest incarnation by a cycle, of a super-leaf that is in or out.
    pub fn latest_by(&self, leaf: Leaf, cycle: u8) -> u8 {
        self.0[leaf].at(cycle).incarnation
    }

    /// The first cycle and the incarnation of the group that an actor has of a super-leaf when it
    /// knows who takes part up to this cycle.
    pub fn group(&self, leaf: Leaf, known: u8) -> (u8, u8) {
        let mut spans = self.0[leaf].all().iter().rev();
        let span = spans.find(|span| span.is_in && span.from <= known);
        span.map_or((1, 0), |span| (span.from.max(1), span.incarnation))
    }

    fn apply(&mut self, agreed: &Agreed, cycle: u8, model: &MembershipModel) {
        let is_in = core::array::from_fn(|leaf| self.incarnation(leaf, cycle));
        let is_in: [Option<u8>; LEAVES] = is_in;
        if let Some((leaf, incarnation)) = agreed.returns {
            let leaf = usize::from(leaf);
            let last = self.0[leaf].at(EVER);
            let is_next = !last.is_in && last.incarnation + 1 == incarnation;
            if is_next && last.from <= cycle + 1 {
                self.0[leaf].return_at(cycle + model.pipeline);
            }
        }
        if model.plan_first {
            self.leave(agreed, cycle, model);
        }
        for (leaf, incarnation) in is_in.into_iter().enumerate() {
            if let Some(incarnation) = incarnation.filter(|_| !agreed.has(leaf)) {
                self.retire(leaf, incarnation, cycle, model);
            }
        }
        if !model.plan_first {
            self.leave(agreed, cycle, model);
        }
    }

    /// A super-leaf leaves as planned, when another one that takes part in the cycle stays.
    fn leave(&mut self, agreed: &Agreed, cycle: u8, model: &MembershipModel) {
        let Some((leaf, incarnation)) = agreed.leaves else { return };
        let leaf = usize::from(leaf);
        let votes = |other: Leaf| {
            let latest = self.latest(other);
            other != leaf && latest.is_some() && latest == self.incarnation(other, cycle)
        };
        if (0..LEAVES).any(votes) {
            self.retire(leaf, incarnation, cycle, model);
        }
    }

    /// Takes a super-leaf out, one cycle later than a pipeline. When none is left, all come back.
    fn retire(&mut self, leaf: Leaf, incarnation: u8, cycle: u8, model: &MembershipModel) {
        if self.latest(leaf) != Some(incarnation) {
            return;
        }
        let from = cycle + model.pipeline + 1;
        self.0[leaf].add(Span { from, incarnation, is_in: false });
        if (0..LEAVES).all(|other| self.latest(other).is_none()) {
            self.0.iter_mut().for_each(|life| life.return_at(from + (from - cycle)));
        }
    }
}
