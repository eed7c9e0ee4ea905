//! The pairs of nodes that probe each other: a random graph in which every node has O(log N)
//! neighbours.
//!
//! All pairs would cost N probes a node, and in a star all nodes would depend on the probes of the
//! middle node. A random graph of degree log2 N connects all nodes by a few hops over many ways
//! that do not meet. Errors of pairs therefore average out, and a liar stands alone. Firefly
//! (SIGCOMM 2025) takes a graph of this kind. Huygens proves in section 4.2 that few links suffice.

use std::collections::BTreeSet;

use evenfall_core::Prng;

/// Up to this many nodes all pairs are probed. The proven bound of a node needs two neighbours with
/// a bound of their own, unless the reference is a neighbour. In random graphs of few nodes some
/// nodes had fewer than two neighbours with a bound: seven of ten nodes of degree 4.
const ALL_PAIRS: u32 = 16;

/// The number of neighbours in a mesh of this many nodes. Up to 16 nodes, all other nodes are
/// neighbours. In larger meshes the number is log2 N, rounded up to an even number.
pub fn degree(nodes: u32) -> u32 {
    if nodes <= ALL_PAIRS {
        return ALL_PAIRS;
    }
    let log = u32::BITS - nodes.saturating_sub(1).leading_zeros();
    log.next_multiple_of(2)
}

/// The pairs of nodes that probe each other, the lower number first, in order. The same seed gives
/// the same pairs at every node.
///
/// The pairs are the union of `degree / 2` rings, each through all nodes in a random order. Every
/// ring connects all nodes, and a pair that two rings share is probed once.
pub fn pairs(nodes: u32, degree: u32, seed: u64) -> Vec<(u32, u32)> {
    let mut pairs = BTreeSet::new();
    if nodes <= degree + 1 {
        pairs.extend((0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b))));
        return pairs.into_iter().collect();
    }
    let mut prng = Prng::new(seed);
    let mut ring: Vec<u32> = (0..nodes).collect();
    for _ in 0..degree.div_ceil(2) {
        prng.shuffle(&mut ring);
        let next = ring.iter().skip(1).chain(ring.first());
        pairs.extend(ring.iter().zip(next).map(|(&a, &b)| (a.min(b), a.max(b))));
    }
    pairs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_about_the_stated_degree_and_the_same_seed_the_same_pairs() {
        assert_eq!([2, 16, 17, 100, 1_000, 5_000].map(degree), [16, 16, 6, 8, 10, 14]);
        let found = pairs(1_000, 10, 7);
        assert_eq!(found, pairs(1_000, 10, 7));
        assert_ne!(found, pairs(1_000, 10, 8));
        let mut degrees = vec![0; 1_000];
        found.iter().for_each(|&(a, b)| {
            assert!(a < b);
            degrees[a as usize] += 1;
            degrees[b as usize] += 1;
        });
        assert!(degrees.iter().all(|degree| (7..=10).contains(degree)), "{degrees:?}");
        assert_eq!(pairs(3, 4, 1), [(0, 1), (0, 2), (1, 2)]);
        assert_eq!((pairs(1, 4, 1), pairs(0, 4, 1)), (vec![], vec![]));
    }
}
