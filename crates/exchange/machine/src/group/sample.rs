//! A sample of each call and the outcome that the call must have. The tests of this crate, the
//! conformance test over ports (`lab/tests/conformance`) and the campaign of faults
//! (`lab/src/shuffle/calls.rs`) make all calls of this list.
//!
//! A new call needs a line in [`CALLS`] and its outcome in [`Sample::outcome`].

use bytes::Bytes;
use evenfall_core::Prng;

use super::{Call, Outcome, Reduce};

/// Each call, as a rank makes the call.
pub const CALLS: &[fn(&Sample, usize) -> Call] = &[
    |of, me| Call::Broadcast { root: of.root, body: of.body(me, 0) },
    |of, me| Call::Gather { root: of.root, body: of.body(me, 0) },
    |of, me| Call::AllGather { body: of.body(me, 0) },
    |of, me| Call::AllReduce { values: lanes(of.values(me)), by: Reduce::Sum },
    |_, _| Call::Barrier,
    |of, me| Call::Shuffle { messages: of.messages(me) },
    |of, me| Call::TwoLevelShuffle { messages: of.messages(me) },
];

/// The messages that the ranks of a group send in the sample calls.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Ranks of the group.
    pub ranks: usize,
    /// The root of calls that have a root.
    pub root: usize,
    /// Bodies and values follow from the seed.
    pub seed: u64,
    /// Length of the longest body. About half of the bodies are empty.
    pub body_bytes_max: u64,
}

fn lanes(values: [u64; 2]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Sample {
    fn body(&self, from: usize, to: usize) -> Bytes {
        let mut prng = Prng::new(self.seed).fork((from << 16 | to) as u64);
        let length = prng.below(self.body_bytes_max) * prng.below(2);
        (0..length).map(|_| prng.next_u64() as u8).collect()
    }

    fn messages(&self, from: usize) -> Vec<Bytes> {
        (0..self.ranks).map(|to| self.body(from, to)).collect()
    }

    fn values(&self, from: usize) -> [u64; 2] {
        let mut prng = Prng::new(self.seed).fork(from as u64);
        [prng.next_u64(), prng.below(100)]
    }

    /// All calls as rank `me` makes them, each with its required outcome at that rank.
    pub fn calls(&self, me: usize) -> Vec<(Call, Outcome)> {
        let both = |call: Call| (call.clone(), self.outcome(&call, me));
        CALLS.iter().map(|call| both(call(self, me))).collect()
    }

    /// The outcome that the call must have at rank `me`.
    pub fn outcome(&self, call: &Call, me: usize) -> Outcome {
        let all = |to| Outcome::All((0..self.ranks).map(|from| self.body(from, to)).collect());
        match call {
            Call::Broadcast { root, .. } => Outcome::One(self.body(*root, 0)),
            Call::Gather { root, .. } if me != *root => Outcome::Nothing,
            Call::Gather { .. } | Call::AllGather { .. } => all(0),
            Call::AllReduce { .. } => {
                let sum = |sum: [u64; 2], from| {
                    let more = self.values(from);
                    [sum[0].wrapping_add(more[0]), sum[1] + more[1]]
                };
                Outcome::One(lanes((0..self.ranks).fold([0, 0], sum)))
            }
            Call::Barrier => Outcome::Nothing,
            Call::Shuffle { .. } | Call::TwoLevelShuffle { .. } => all(me),
        }
    }
}
