//! Datagrams of the clock under keys of their two ends.
//!
//! Every subscriber holds the shared key of a run. Under the shared key, any subscriber can
//! therefore write probes in the name of two other nodes, and pull their clocks apart. With node
//! keys ([`evenfall_core::node_keys`]) each datagram has its code under a key that no third node
//! has:
//!
//! | between | key | derived by |
//! |---|---|---|
//! | a node and the reference | of the node | both, since the reference is a root |
//! | two neighbours | of the secret of the lower id, and the higher id | the lower id, and the roots |
//!
//! The neighbour with the higher id gets the key from the reference. The reference cannot seal the
//! key with its place in the tree, because nodes learn their time before they join. It sends the
//! key masked by a value that it derives out of the secret of that neighbour:
//!
//! ```text
//!   node --key request, nonce--> reference --keys: nonce, (neighbour, key ^ mask) ...--> node
//! ```
//!
//! One mask hides one key for ever: both follow from the same two nodes. Two datagrams with masked
//! keys therefore tell no more than one, and there is no nonce of a cipher to use twice. The code
//! of the datagram shows that the reference wrote it.
//!
//! Keys of two nodes last as long as the master key, so what was recorded in an earlier run has a
//! right code. Three rules refuse it:
//!
//! - A probe counts only when it tells that the neighbour heard one of the last pairs of this node.
//!   Nobody else can write that, and an old probe tells of older pairs. A neighbour that has heard
//!   nothing yet has just begun. Its probes are answered, and do not count.
//! - A node that has begun ignores windows and verdicts until the reference has repeated its nonce,
//!   and then takes windows only that are newer than that answer.
//! - The reference takes reports of the present window alone, and jumps of this window and the one
//!   before.

use std::collections::BTreeMap;

use evenfall_core::node_keys::NODE_KEY_ID;
use evenfall_core::{EndKeys, MacKey, NodeId, NodeKey};

use crate::wire::KEY_BYTES;

/// Use of the key of a node and the reference.
const OF_REFERENCE: &str = "evenfall clock v2 code of a node and the reference";
/// Use of the key of two neighbours.
const OF_NEIGHBOURS: &str = "evenfall clock v2 code of two neighbours";
/// Use of the value that masks the key of two neighbours on its way.
const OF_MASK: &str = "evenfall clock v2 mask of a key of two neighbours";

/// A key of two neighbours, as the reference sends it to the one with the higher id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourKey {
    /// The place of the neighbour with the lower id.
    pub neighbour: u32,
    /// The key, masked for the node that gets it.
    pub masked: [u8; KEY_BYTES],
}

/// The keys of a node with its ends.
#[derive(Debug)]
pub(crate) struct ClockEnds {
    own: EndKeys,
    place: u32,
    /// The ids of all nodes, by place.
    ids: Vec<NodeId>,
    /// Neighbours of this node; at the reference, of every node.
    neighbours: Vec<Vec<u32>>,
    /// The keys that this node knows, by the place of the other end. The reference derives those of
    /// nodes that are no neighbours when it needs them.
    known: BTreeMap<u32, MacKey>,
    /// The random number of this life of the node, which the reference repeats.
    nonce: u64,
    is_answered: bool,
}

fn code_key(node: &NodeKey, context: &str, beside: &[u8]) -> [u8; KEY_BYTES] {
    *node.derive(context, beside).first_chunk().expect("32 bytes")
}

/// The key of two neighbours, masked for the one with the higher id, or with its mask taken off.
fn mask_key(key: [u8; KEY_BYTES], higher: &NodeKey, lower: NodeId) -> [u8; KEY_BYTES] {
    let mask = code_key(higher, OF_MASK, &lower.0.to_le_bytes());
    core::array::from_fn(|at| key[at] ^ mask[at])
}

impl ClockEnds {
    /// The keys of the node at this place. `pairs` are all pairs of neighbours.
    ///
    /// # Panics
    /// When the place has no id.
    pub(crate) fn new(
        own: EndKeys,
        ids: Vec<NodeId>,
        place: u32,
        pairs: &[(u32, u32)],
        nonce: u64,
    ) -> Self {
        assert!((place as usize) < ids.len(), "a node has an id");
        let mut neighbours = vec![Vec::new(); ids.len()];
        for &(a, b) in pairs.iter().filter(|(a, b)| place == 0 || [*a, *b].contains(&place)) {
            neighbours[a as usize].push(b);
            neighbours[b as usize].push(a);
        }
        let mut ends = Self {
            own,
            place,
            ids,
            neighbours,
            known: BTreeMap::new(),
            nonce,
            // The reference asks nobody.
            is_answered: place == 0,
        };
        let others = ends.neighbours[place as usize].clone();
        for other in others.into_iter().chain([0]).filter(|other| *other != place) {
            let known = ends.derive_key(other).map(|key| (other, MacKey::new(NODE_KEY_ID, &key)));
            ends.known.extend(known);
        }
        ends
    }

    /// The secret of a node: of this node, and at a root of every node.
    fn secret_of(&self, place: u32) -> Option<NodeKey> {
        let id = *self.ids.get(place as usize)?;
        match &self.own {
            EndKeys::Root(master) => Some(master.node(id)),
            EndKeys::Node(own) => (place == self.place).then(|| own.clone()),
        }
    }

    /// The key of two neighbours, if this node can derive it.
    fn derive_pair_key(&self, a: u32, b: u32) -> Option<[u8; KEY_BYTES]> {
        let id = |place: u32| self.ids.get(place as usize).copied();
        let (lower, higher) = if id(a)? < id(b)? { (a, b) } else { (b, a) };
        Some(code_key(&self.secret_of(lower)?, OF_NEIGHBOURS, &id(higher)?.0.to_le_bytes()))
    }

    /// The key of this node and another node, if this node can derive it.
    fn derive_key(&self, other: u32) -> Option<[u8; KEY_BYTES]> {
        if self.place > 0 && other > 0 {
            return self.derive_pair_key(self.place, other);
        }
        let node = self.place.max(other);
        Some(code_key(&self.secret_of(node)?, OF_REFERENCE, &[]))
    }

    /// All keys that this node knows.
    pub(crate) fn known_keys(&self) -> impl Iterator<Item = &MacKey> {
        self.known.values()
    }

    /// Whether there is a key of this node and that node.
    pub(crate) fn reaches(&self, other: u32) -> bool {
        let is_node = other != self.place && (other as usize) < self.ids.len();
        is_node && (self.place == 0 || self.known.contains_key(&other))
    }

    /// The key of this node and that node.
    pub(crate) fn key_with(&self, other: u32) -> Option<MacKey> {
        if let Some(known) = self.known.get(&other) {
            return Some(known.clone());
        }
        let derived = self.derive_key(other).filter(|_| self.reaches(other))?;
        Some(MacKey::new(NODE_KEY_ID, &derived))
    }

    /// The random number of this life; `None` when the reference has repeated it.
    pub(crate) fn unanswered(&self) -> Option<u64> {
        (!self.is_answered).then_some(self.nonce)
    }

    /// The keys that a node cannot derive itself; `None` when this node is not the reference.
    pub(crate) fn answer(&self, node: u32) -> Option<Vec<NeighbourKey>> {
        if self.place > 0 {
            return None;
        }
        let secret = self.secret_of(node)?;
        let id = self.ids[node as usize];
        let lower = |other: &&u32| **other > 0 && self.ids[**other as usize] < id;
        let lower = self.neighbours[node as usize].iter().filter(lower);
        let key = |&neighbour: &u32| {
            let key = self.derive_pair_key(neighbour, node)?;
            let masked = mask_key(key, &secret, self.ids[neighbour as usize]);
            Some(NeighbourKey { neighbour, masked })
        };
        Some(lower.filter_map(key).collect())
    }

    /// Takes the answer of the reference. Returns whether it is the answer to this life.
    pub(crate) fn take_answer(&mut self, nonce: u64, keys: &[NeighbourKey]) -> bool {
        if self.is_answered || nonce != self.nonce {
            return false;
        }
        self.is_answered = true;
        let EndKeys::Node(own) = &self.own else { return true };
        for key in keys {
            if !self.neighbours[self.place as usize].contains(&key.neighbour) {
                continue;
            }
            let lower = self.ids[key.neighbour as usize];
            let code = MacKey::new(NODE_KEY_ID, &mask_key(key.masked, own, lower));
            // A key that this node derives itself is known already.
            self.known.entry(key.neighbour).or_insert(code);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::MasterKey;

    use super::*;

    const IDS: [u32; 5] = [0, 30, 10, 20, 40];

    fn ends(own: EndKeys, place: u32) -> ClockEnds {
        let pairs: Vec<(u32, u32)> = (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b))).collect();
        ClockEnds::new(own, IDS.map(NodeId).to_vec(), place, &pairs, 1_000 + u64::from(place))
    }

    fn node(place: u32) -> ClockEnds {
        let master = MasterKey::new([7; 32]);
        ends(EndKeys::Node(master.node(NodeId(IDS[place as usize]))), place)
    }

    fn reference() -> ClockEnds {
        ends(EndKeys::Root(MasterKey::new([7; 32])), 0)
    }

    /// A node that the reference has answered.
    fn seated(place: u32) -> ClockEnds {
        let mut node = node(place);
        let keys = reference().answer(place).expect("the reference");
        assert!(node.take_answer(1_000 + u64::from(place), &keys));
        node
    }

    fn code(ends: &ClockEnds, other: u32) -> Option<u64> {
        ends.key_with(other).map(|key| key.mac(&[b"datagram"]))
    }

    #[test]
    fn both_ends_of_each_pair_have_one_key_which_no_third_node_has() {
        let nodes: Vec<ClockEnds> =
            (0..5).map(|place| if place == 0 { reference() } else { seated(place) }).collect();
        let mut codes = Vec::new();
        for a in 0..5u32 {
            assert_eq!(code(&nodes[a as usize], a), None, "a node writes to itself");
            for b in a + 1..5 {
                let one = code(&nodes[a as usize], b);
                assert!(one.is_some() && one == code(&nodes[b as usize], a), "{a} and {b}");
                codes.extend(one);
            }
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), 10, "each pair has a key of its own");
    }

    #[test]
    fn a_node_has_no_key_with_a_lower_neighbour_before_the_reference_has_answered_it() {
        let mut fresh = node(4);
        assert_eq!(fresh.unanswered(), Some(1_004));
        let reached: Vec<u32> = (0..6).filter(|other| fresh.reaches(*other)).collect();
        assert_eq!(reached, [0]);
        let keys = reference().answer(4).expect("the reference");
        assert_eq!(keys.len(), 3);
        assert!(!fresh.take_answer(1_003, &keys), "the answer to an earlier life");
        assert!(fresh.take_answer(1_004, &keys) && fresh.unanswered().is_none());
        assert!((0..4).all(|other| fresh.reaches(other)) && !fresh.reaches(5));
        assert!(!fresh.take_answer(1_004, &keys), "the same answer again");
        // The lowest id derives all of its keys.
        assert!((0..5).filter(|other| *other != 2).all(|other| node(2).reaches(other)));
    }

    #[test]
    fn masked_keys_are_of_no_use_to_another_node() {
        let keys = reference().answer(4).expect("the reference");
        let of_pair = keys.iter().find(|key| key.neighbour == 1).expect("30 is below 40");
        let wanted = code(&seated(1), 4);
        // Node 3 holds its own secret, and what it saw on the way to node 4.
        let mut thief = node(3);
        let stolen = [1, 2, 4].map(|neighbour| NeighbourKey { neighbour, ..*of_pair });
        thief.take_answer(1_003, &stolen);
        for other in 0..5 {
            assert_ne!(code(&thief, other), wanted);
        }
        let plain = MacKey::new(NODE_KEY_ID, &of_pair.masked).mac(&[b"datagram"]);
        assert_ne!(Some(plain), wanted);
    }

    #[test]
    fn only_the_reference_answers() {
        assert!(seated(1).answer(2).is_none());
        assert_eq!(reference().answer(2).map(|keys| keys.len()), Some(0), "the lowest id");
    }
}
