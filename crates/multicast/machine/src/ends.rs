//! Control datagrams under keys of their two ends.
//!
//! Every subscriber holds the shared key, so a code under the shared key shows only that some node
//! of the run made a datagram. With node keys, each control datagram has its code under a key that
//! the two ends alone have:
//!
//! | datagram | key | derived by | given to |
//! |---|---|---|---|
//! | orders, and what nodes tell a root | of the node and the roots | both ends | nobody |
//! | beacon, report, nack, locate, located between nodes | of the upper and the lower node | the upper node | the lower node, with its place |
//!
//! The upper node is the parent, the aunt or the recorder. It derives the key out of its own secret
//! and the name of the lower node, and keeps no table. With each place, a root gives the lower node
//! the keys of its upper nodes. The place is sealed for that node alone.
//!
//! Frames of the feed are under keys of the run, which all nodes with a place have. Signatures show
//! who wrote a frame.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use evenfall_core::cipher::TAG_BYTES;
use evenfall_core::node_keys::NODE_KEY_ID;
use evenfall_core::{Cipher, EndKeys, MacKey, Malformed, NodeId, NodeKey};

use crate::wire::{DatagramKind, HEADER_BYTES, OriginHeader};

/// Bytes of a key that a place gives.
pub(crate) const GIVEN_BYTES: usize = 16;
/// Use of a key of a node and the roots.
const OF_ROOTS: &str = "evenfall multicast v4 code of a node and the roots";
/// Use of a key of an upper and a lower node.
const OF_NODES: &str = "evenfall multicast v4 code of an upper and a lower node";
/// Use of the key that seals a place.
const OF_PLACE: &str = "evenfall multicast v4 place";

/// The other end of a control datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Every node with the shared key.
    Everybody,
    /// The roots.
    Roots,
    /// This node; at a node also a root that serves it as its parent.
    Node(NodeId),
}

/// Keys for upper nodes that a place gave.
pub(crate) type GivenKeys = BTreeMap<NodeId, [u8; GIVEN_BYTES]>;

/// The keys by which a machine speaks to its other ends.
#[derive(Clone)]
pub(crate) struct Ends {
    own: EndKeys,
    /// Keys that the present place gave, and those of the place before it.
    given: [GivenKeys; 2],
}

fn code_key(node: &NodeKey, context: &str, beside: &[u8]) -> [u8; GIVEN_BYTES] {
    *node.derive(context, beside).first_chunk().expect("32 bytes")
}

/// The key of an upper node for a node below it.
fn key_below(upper: &NodeKey, lower: NodeId) -> [u8; GIVEN_BYTES] {
    code_key(upper, OF_NODES, &lower.0.to_le_bytes())
}

impl Ends {
    pub(crate) fn new(own: EndKeys) -> Self {
        Self { own, given: Default::default() }
    }

    fn given_key(&self, id: NodeId) -> Option<[u8; GIVEN_BYTES]> {
        self.given.iter().find_map(|given| given.get(&id)).copied()
    }

    /// The key of a datagram of this kind that goes to this end.
    pub(crate) fn key_to(&self, to: End, kind: DatagramKind) -> MacKey {
        let bytes = match (&self.own, to) {
            (EndKeys::Root(master), End::Node(id)) => code_key(&master.node(id), OF_ROOTS, &[]),
            // Roots send each other no control datagrams of the tree.
            (EndKeys::Root(master), _) => *master.roots().secret().first_chunk().expect("32 bytes"),
            (EndKeys::Node(own), End::Node(lower)) if goes_down(kind) => key_below(own, lower),
            (EndKeys::Node(own), End::Node(upper)) => {
                self.given_key(upper).unwrap_or_else(|| code_key(own, OF_ROOTS, &[]))
            }
            (EndKeys::Node(own), _) => code_key(own, OF_ROOTS, &[]),
        };
        MacKey::new(NODE_KEY_ID, &bytes)
    }

    /// The key of a datagram of this kind that names this sender.
    pub(crate) fn key_from(&self, from: NodeId, kind: DatagramKind) -> MacKey {
        let bytes = match &self.own {
            EndKeys::Root(master) => code_key(&master.node(from), OF_ROOTS, &[]),
            EndKeys::Node(own) if goes_up(kind) => key_below(own, from),
            EndKeys::Node(own) => {
                // A root gives no key for itself, so a beacon of a root has the key of the roots.
                let given = goes_down(kind).then(|| self.given_key(from)).flatten();
                given.unwrap_or_else(|| code_key(own, OF_ROOTS, &[]))
            }
        };
        MacKey::new(NODE_KEY_ID, &bytes)
    }

    /// The key for an upper node that a root gives to a lower node.
    pub(crate) fn key_of_nodes(&self, upper: NodeId, lower: NodeId) -> [u8; GIVEN_BYTES] {
        match &self.own {
            EndKeys::Root(master) => key_below(&master.node(upper), lower),
            EndKeys::Node(own) => key_below(own, lower),
        }
    }

    /// Takes the keys that came with a new place. Keys of the place before it stay valid, since
    /// nodes of that place still send while the tree changes.
    pub(crate) fn take_given(&mut self, given: GivenKeys) {
        self.given[1] = core::mem::replace(&mut self.given[0], given);
    }

    /// The cipher of the places of a node in the run and epoch of a datagram, which only one root
    /// writes. Its nonce is the number of the datagram.
    fn place_cipher(node: &NodeKey, root: NodeId, fixed: &OriginHeader) -> Cipher {
        let mut beside = [0; 20];
        beside[..4].copy_from_slice(&root.0.to_le_bytes());
        beside[4..8].copy_from_slice(&fixed.stream.to_le_bytes());
        beside[8..12].copy_from_slice(&fixed.epoch.to_le_bytes());
        beside[12..].copy_from_slice(&fixed.run_id.to_le_bytes());
        Cipher::new(&node.derive(OF_PLACE, &beside))
    }

    /// Seals a place that this root sends to a node.
    pub(crate) fn seal_place(
        &self,
        me: NodeId,
        to: NodeId,
        fixed: &OriginHeader,
        body: Bytes,
    ) -> Bytes {
        let EndKeys::Root(master) = &self.own else { return body };
        let cipher = Self::place_cipher(&master.node(to), me, fixed);
        let mut sealed = BytesMut::with_capacity(body.len() + TAG_BYTES);
        sealed.extend_from_slice(&body);
        let tag = cipher.seal(fixed.sequence, &fixed.associated_data(), &mut sealed);
        sealed.extend_from_slice(&tag);
        sealed.freeze()
    }

    /// Opens a place that a root sent to this node.
    pub(crate) fn open_place(
        &self,
        root: NodeId,
        fixed: &OriginHeader,
        body: &[u8],
    ) -> Result<Bytes, Malformed> {
        let EndKeys::Node(own) = &self.own else { return Ok(Bytes::copy_from_slice(body)) };
        let cipher = Self::place_cipher(own, root, fixed);
        let opened = cipher.open(fixed.sequence, &fixed.associated_data(), body);
        let what = "a place that does not open under the key of this node";
        opened.ok_or(Malformed { what, offset: HEADER_BYTES })
    }
}

/// Whether an upper node sends this kind to a lower node.
fn goes_down(kind: DatagramKind) -> bool {
    matches!(kind, DatagramKind::Beacon | DatagramKind::Located)
}

/// Whether a lower node sends this kind to an upper node.
fn goes_up(kind: DatagramKind) -> bool {
    matches!(kind, DatagramKind::Report | DatagramKind::Nack | DatagramKind::Locate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::MasterKey;

    fn control_kinds() -> impl Iterator<Item = DatagramKind> {
        DatagramKind::ALL.into_iter().filter(|kind| !kind.is_frame())
    }

    fn code(key: &MacKey) -> u64 {
        key.mac(&[b"datagram"])
    }

    fn ends() -> (Ends, impl Fn(u32) -> Ends) {
        let master = MasterKey::new([7; 32]);
        let root = Ends::new(EndKeys::Root(master.clone()));
        (root, move |id| Ends::new(EndKeys::Node(master.node(NodeId(id)))))
    }

    #[test]
    fn a_node_and_a_root_have_one_key_for_each_kind_and_other_nodes_do_not() {
        let (root, node) = ends();
        let (id, other) = (NodeId(5), node(6));
        for kind in control_kinds() {
            let sent = code(&root.key_to(End::Node(id), kind));
            if !goes_up(kind) {
                assert_eq!(sent, code(&node(5).key_from(NodeId(0), kind)), "{kind:?}");
            }
            for end in [End::Roots, End::Node(NodeId(0))] {
                if end == End::Roots || !goes_down(kind) {
                    let told = code(&node(5).key_to(end, kind));
                    assert_eq!(told, code(&root.key_from(id, kind)), "{kind:?}");
                }
            }
            for end in [End::Roots, End::Node(NodeId(0)), End::Node(id)] {
                let forged = code(&other.key_to(end, kind));
                assert_ne!(forged, code(&root.key_from(id, kind)), "{kind:?} as node 5");
                assert_ne!(forged, code(&node(5).key_from(NodeId(0), kind)), "{kind:?} as root");
            }
        }
    }

    #[test]
    fn a_lower_node_speaks_to_its_upper_node_under_the_key_that_a_root_gave() {
        let (root, node) = ends();
        let (upper, mut lower, other) = (node(5), node(6), node(7));
        let up = |lower: &Ends| code(&lower.key_to(End::Node(NodeId(5)), DatagramKind::Report));
        let down = || code(&upper.key_to(End::Node(NodeId(6)), DatagramKind::Beacon));
        let wanted = code(&upper.key_from(NodeId(6), DatagramKind::Report));
        assert_ne!(up(&lower), wanted, "before a place");
        let given = root.key_of_nodes(NodeId(5), NodeId(6));
        lower.take_given([(NodeId(5), given)].into());
        assert_eq!(up(&lower), wanted);
        assert_eq!(code(&lower.key_from(NodeId(5), DatagramKind::Beacon)), down());
        assert_ne!(
            code(&lower.key_from(NodeId(5), DatagramKind::Evict)),
            down(),
            "an upper node orders"
        );
        lower.take_given(GivenKeys::new());
        assert_eq!(up(&lower), wanted, "the place before");
        lower.take_given(GivenKeys::new());
        assert_ne!(up(&lower), wanted, "an old place");
        for end in [End::Roots, End::Node(NodeId(5)), End::Node(NodeId(6))] {
            for kind in control_kinds() {
                assert_ne!(code(&other.key_to(end, kind)), wanted, "{kind:?} as node 6");
                assert_ne!(code(&other.key_to(end, kind)), down(), "{kind:?} as node 5");
            }
        }
    }

    #[test]
    fn a_place_opens_for_its_node_alone() {
        let (root, node) = ends();
        let mut fixed = OriginHeader::control(DatagramKind::Assign, 1, 2, 3);
        fixed.run_id = 4;
        let sealed = root.seal_place(NodeId(0), NodeId(5), &fixed, Bytes::from_static(b"place"));
        assert_eq!(node(5).open_place(NodeId(0), &fixed, &sealed).unwrap(), b"place"[..]);
        assert!(node(6).open_place(NodeId(0), &fixed, &sealed).is_err());
        assert!(node(5).open_place(NodeId(1), &fixed, &sealed).is_err(), "of another root");
        for changed in [
            OriginHeader { sequence: 4, ..fixed },
            OriginHeader { stream: 2, ..fixed },
            OriginHeader { run_id: 5, ..fixed },
            OriginHeader { epoch: 3, ..fixed },
        ] {
            assert!(node(5).open_place(NodeId(0), &changed, &sealed).is_err());
        }
    }
}
