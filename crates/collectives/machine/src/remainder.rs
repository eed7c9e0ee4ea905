//! The all-reduce of remainders, which finds the slowest receiver again and again.
//!
//! The ranks find the largest value by dissemination: in step `k` each rank sends the largest value
//! it knows to rank `+ 2^k`. After `ceil(log2 n)` steps every rank knows the maximum. Dissemination
//! works for any number of ranks, because learning a value twice does not change a maximum. The
//! next round begins when a round ends, so values are as fresh as the network allows.
//!
//! No rank can end round `r + 1` before all ranks have begun it. A message is therefore never more
//! than one round ahead, and repeating the last two rounds brings back all losses.

/// A step to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Receiver of the step.
    pub(crate) to: u16,
    /// Number of the round.
    pub(crate) round: u32,
    /// Number of the step in its round.
    pub(crate) step: u32,
    /// The largest value known to the sender.
    pub(crate) value: u32,
}

/// The rounds as one rank sees them.
#[derive(Debug)]
pub(crate) struct Reduction {
    ranks: usize,
    me: usize,
    steps: usize,
    round: u32,
    step: usize,
    value: u32,
    inbox: [Vec<Option<u32>>; 2],
    sent: [Vec<Option<u32>>; 2],
}

impl Reduction {
    pub(crate) fn new(ranks: usize, me: usize) -> Self {
        let steps = ranks.next_power_of_two().trailing_zeros() as usize;
        let empty = || [vec![None; steps], vec![None; steps]];
        let (inbox, sent) = (empty(), empty());
        Self { ranks, me, steps, round: 0, step: 0, value: 0, inbox, sent }
    }

    /// Begins the first round.
    pub(crate) fn begin(&mut self, own: u32, out: &mut Vec<Step>) {
        self.value = own;
        if self.steps > 0 {
            self.emit(out);
        }
    }

    /// Takes a step of another rank. Returns the result when a round has ended. `own` is the
    /// present value of this rank, and enters the round that then begins.
    pub(crate) fn take(
        &mut self,
        (round, step, value): (u32, u32, u32),
        own: u32,
        out: &mut Vec<Step>,
    ) -> Option<u32> {
        let ahead = round.wrapping_sub(self.round);
        let slot = self.inbox[round as usize % 2].get_mut(step as usize)?;
        if ahead > 1 {
            return None;
        }
        *slot = Some(value);
        let mut result = None;
        while let Some(value) = self.inbox[self.round as usize % 2][self.step] {
            self.value = self.value.max(value);
            self.step += 1;
            if self.step == self.steps {
                result = Some(self.value);
                self.inbox[self.round as usize % 2].fill(None);
                self.round = self.round.wrapping_add(1);
                self.sent[self.round as usize % 2].fill(None);
                self.step = 0;
                self.value = own;
            }
            self.emit(out);
        }
        result
    }

    fn emit(&mut self, out: &mut Vec<Step>) {
        let (round, step, value) = (self.round, self.step, self.value);
        self.sent[round as usize % 2][step] = Some(value);
        let to = ((self.me + (1 << step)) % self.ranks) as u16;
        out.push(Step { to, round, step: step as u32, value });
    }

    /// Repeats all steps that may have been lost.
    pub(crate) fn again(&self, out: &mut Vec<Step>) {
        for round in [self.round.wrapping_sub(1), self.round] {
            for (step, value) in self.sent[round as usize % 2].iter().enumerate() {
                if let Some(value) = *value {
                    let to = ((self.me + (1 << step)) % self.ranks) as u16;
                    out.push(Step { to, round, step: step as u32, value });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    #[test]
    fn every_rank_learns_the_largest_value_whatever_their_number_and_what_is_lost() {
        for ranks in 2..20 {
            let mut prng = Prng::new(ranks as u64);
            let value = |rank: usize| ((rank * 7_919) % 1_000) as u32;
            let most = (0..ranks).map(value).max();
            let mut all: Vec<_> = (0..ranks).map(|me| Reduction::new(ranks, me)).collect();
            let mut wire = Vec::new();
            for (me, one) in all.iter_mut().enumerate() {
                let mut out = Vec::new();
                one.begin(value(me), &mut out);
                wire.extend(out.into_iter().map(|step| (me, step)));
            }
            let mut results = vec![0; ranks];
            while results.iter().any(|&n| n < 5) {
                if wire.is_empty() {
                    for (me, one) in all.iter().enumerate() {
                        let mut out = Vec::new();
                        one.again(&mut out);
                        wire.extend(out.into_iter().map(|step| (me, step)));
                    }
                }
                let at = prng.below(wire.len() as u64) as usize;
                let (_, step) = wire.swap_remove(at);
                if prng.chance(0.1) {
                    continue;
                }
                let (to, mut out) = (usize::from(step.to), Vec::new());
                let arrived = (step.round, step.step, step.value);
                if let Some(result) = all[to].take(arrived, value(to), &mut out) {
                    assert_eq!(Some(result), most, "{ranks} ranks");
                    results[to] += 1;
                }
                wire.extend(out.into_iter().map(|step| (to, step)));
            }
        }
    }
}
