//! A sample of each call and the outcome that the call must have. The tests of this crate, the
//! conformance test over ports (`lab/campaigns/tests/conformance`) and the campaign of faults
//! (`lab/campaigns/src/shuffle/calls.rs`) make all calls of this list.
//!
//! A new call needs a line in [`CALLS`] and its outcome in [`SampleCalls::outcome`].

use bytes::Bytes;
use evenfall_core::{Malformed, Prng};

use super::{Collective, CollectiveOutcome, LANE_BYTES, MergeRule, Reduce};

/// Each call, as a rank makes the call.
pub const CALLS: &[fn(&SampleCalls, usize) -> Collective] = &[
    |of, me| Collective::Broadcast { root: of.root, body: of.body(me, 0) },
    |of, me| Collective::Gather { root: of.root, body: of.body(me, 0) },
    |of, me| Collective::AllGather { body: of.body(me, 0) },
    |of, me| Collective::AllReduce { values: lanes(of.values(me)), by: Reduce::Sum },
    |_, _| Collective::Barrier,
    |of, me| Collective::Shuffle { messages: of.messages(me) },
    |of, me| Collective::TwoLevelShuffle { messages: of.messages(me) },
    |of, me| Collective::Merge { root: of.root, body: lanes(of.values(me)), by: SUMS },
];

/// Two sums, as the values of an all-reduce.
const SUMS: MergeRule = MergeRule {
    number: 1,
    check: |body| match body.len() == 2 * LANE_BYTES {
        true => Ok(()),
        false => Err(Malformed { what: "not two sums", offset: body.len() }),
    },
    merge: |bodies| {
        let two = |a: Bytes, b: &Bytes| Reduce::Sum.lanes(&a, b);
        bodies[1..].iter().fold(bodies[0].clone(), two)
    },
};

/// The messages that the ranks of a group send in the sample calls.
#[derive(Clone, Copy, Debug)]
pub struct SampleCalls {
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

impl SampleCalls {
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
    pub fn calls(&self, me: usize) -> Vec<(Collective, CollectiveOutcome)> {
        let both = |call: Collective| (call.clone(), self.outcome(&call, me));
        CALLS.iter().map(|call| both(call(self, me))).collect()
    }

    /// The outcome that the call must have at rank `me`.
    pub fn outcome(&self, call: &Collective, me: usize) -> CollectiveOutcome {
        let all =
            |to| CollectiveOutcome::All((0..self.ranks).map(|from| self.body(from, to)).collect());
        match call {
            Collective::Broadcast { root, .. } => CollectiveOutcome::One(self.body(*root, 0)),
            Collective::Gather { root, .. } if me != *root => CollectiveOutcome::Nothing,
            Collective::Gather { .. } | Collective::AllGather { .. } => all(0),
            Collective::Merge { root, .. } if me != *root => CollectiveOutcome::Nothing,
            Collective::AllReduce { .. } | Collective::Merge { .. } => {
                let sum = |sum: [u64; 2], from| {
                    let more = self.values(from);
                    [sum[0].wrapping_add(more[0]), sum[1] + more[1]]
                };
                CollectiveOutcome::One(lanes((0..self.ranks).fold([0, 0], sum)))
            }
            Collective::Barrier => CollectiveOutcome::Nothing,
            Collective::Shuffle { .. } | Collective::TwoLevelShuffle { .. } => all(me),
        }
    }
}
