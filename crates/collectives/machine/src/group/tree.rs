//! Trees along which messages are passed on.
//!
//! In a k-nomial tree every rank with the message sends the message to `k - 1` other ranks per
//! round. `n` ranks have the message after `log_k n` rounds. A larger `k` makes fewer hops, and
//! each rank sends more messages in a row. Two times decide which `k` is best, and both can be
//! measured: how long a small message takes, and how long a rank is busy with a message before it
//! can send the next (section 2.4.1).

use core::time::Duration;

/// Arity of a gather. Six children keep a link busy at each step (section 2.4.1).
pub const GATHER_ARITY: usize = 6;
/// Largest arity that the search looks at. Beyond 64, a rank would send for longer than any hop of
/// a group of 65,535 ranks takes.
const ARITY_MAX: usize = 64;

/// The k-nomial tree of a group below a root.
///
/// Ranks are counted from the root on, in digits to the base `k`. The parent of a rank is the
/// rank's number with the last digit that is not 0 set to 0:
///
/// ```text
///  k = 3, n = 9        0
///            .---.---.-+-.
///            6   3   2   1        0 sends to 6 and 3 first: they have most to do
///           8 7 5 4
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knomial {
    arity: usize,
    ranks: usize,
    root: usize,
}

impl Knomial {
    /// The tree of this arity (2 at least) over `ranks` ranks below `root`.
    pub fn new(arity: usize, ranks: usize, root: usize) -> Self {
        Self { arity: arity.max(2), ranks, root }
    }

    /// The arity with which all ranks have a small message soonest. A message arrives after
    /// `latency`, and its sender can send the next message after `per_message`.
    pub fn best_arity(ranks: usize, latency: Duration, per_message: Duration) -> usize {
        let took = |arity: usize| Self::new(arity, ranks, 0).completion(latency, per_message);
        (2..=ARITY_MAX.min(ranks.max(2))).min_by_key(|&arity| (took(arity), arity)).unwrap_or(2)
    }

    /// The rank that sends to this rank; `None` for the root.
    pub fn parent(&self, rank: usize) -> Option<usize> {
        let place = self.place(rank);
        let mut stride = 1;
        while stride < self.ranks {
            let digit = place / stride % self.arity;
            if digit > 0 {
                return Some(self.rank(place - digit * stride));
            }
            stride *= self.arity;
        }
        None
    }

    /// The ranks to which this rank sends. The child with the largest subtree comes first.
    pub fn children(&self, rank: usize) -> Vec<usize> {
        let place = self.place(rank);
        let mut children = Vec::new();
        let mut stride = 1;
        while stride < self.ranks && (place / stride).is_multiple_of(self.arity) {
            let last = (1..self.arity).map(|digit| place + digit * stride);
            children.extend(last.filter(|&child| child < self.ranks).map(|p| self.rank(p)));
            stride *= self.arity;
        }
        children.reverse();
        children
    }

    /// The time at which the last rank has a small message. [`best_arity`](Self::best_arity)
    /// explains the two times.
    pub fn completion(&self, latency: Duration, per_message: Duration) -> Duration {
        // In the order of places, parents come before their children.
        let mut here = vec![Duration::ZERO; self.ranks];
        for place in 0..self.ranks {
            let mut free = here[place];
            for child in self.children(self.rank(place)) {
                free += per_message;
                here[self.place(child)] = free + latency;
            }
        }
        here.into_iter().max().unwrap_or_default()
    }

    fn place(&self, rank: usize) -> usize {
        (rank + self.ranks - self.root) % self.ranks
    }

    fn rank(&self, place: usize) -> usize {
        (place + self.root) % self.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_but_the_root_is_the_child_of_its_parent_and_of_nobody_else() {
        for arity in 2..8 {
            for ranks in 1..70 {
                let tree = Knomial::new(arity, ranks, ranks / 3);
                let mut parents = vec![None; ranks];
                for rank in 0..ranks {
                    for child in tree.children(rank) {
                        assert_eq!(parents[child].replace(rank), None, "{tree:?}: {child}");
                    }
                }
                for (rank, parent) in parents.into_iter().enumerate() {
                    assert_eq!(parent, tree.parent(rank), "{tree:?}: {rank}");
                    assert_eq!(parent.is_none(), rank == ranks / 3);
                }
            }
        }
    }

    /// The tree follows from latency and cost per message (section 2.4.1).
    #[test]
    fn dear_messages_make_the_tree_deep_and_long_ways_make_it_flat() {
        let us = Duration::from_micros;
        assert_eq!(Knomial::best_arity(64, Duration::ZERO, us(1)), 2);
        assert!(Knomial::best_arity(64, us(5), us(1)) > 2);
        let flat = Knomial::new(Knomial::best_arity(64, us(500), us(1)), 64, 0);
        assert_eq!(flat.children(0).len(), 63);
        let tree = Knomial::new(2, 8, 0);
        assert_eq!(tree.completion(us(5), us(1)), us(18));
    }
}
