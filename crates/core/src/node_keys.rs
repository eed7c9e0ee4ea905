//! Keys of two ends: what a node and a root say to each other, or a node and its parent, is
//! authenticated under a key that no third node has.
//!
//! ```text
//!  master secret (roots and standbys alone)
//!    |-- "roots" ----------> secret of the roots among themselves
//!    |-- "run", its id, n -> secret of the frames of a run, the nth of its keys
//!    `-- "node", its id ---> secret of a node (the node, and all roots)
//!          |-- a protocol --------------> key of the node and the roots
//!          `-- a protocol, another id --> key of the node and of another node below it
//! ```
//!
//! Each arrow is BLAKE3's `derive_key`, so an end derives a key when it needs the key and keeps no
//! table of keys. A node derives the keys of all nodes below it out of its own secret. A node that
//! lies below another node cannot derive their key, and a root gives it the key. The scheme is that
//! of DRKey in SCION (Kim et al., "Lightweight Source Authentication and Path Validation", 2014).

use core::fmt;

use crate::seal::{KeyError, secret_from_hex, secret_to_hex};
use crate::{NodeId, SharedKey};

/// The id that datagrams under keys of two ends carry. The shared key of a run has another id, so a
/// datagram under the shared key is refused before its code is computed.
pub const NODE_KEY_ID: u8 = 2;

/// The id of the first key of a run. The ids of the keys of a run follow each other, and begin
/// again behind the last id.
const RUN_KEY_ID_FIRST: u8 = 3;

/// The id that frames under the key of this generation carry.
pub fn run_key_id(generation: u32) -> u8 {
    let ids = u32::from(u8::MAX - RUN_KEY_ID_FIRST) + 1;
    RUN_KEY_ID_FIRST + (generation % ids) as u8
}

/// The id behind this id of a key of a run.
pub fn next_run_key_id(id: u8) -> u8 {
    id.checked_add(1).unwrap_or(RUN_KEY_ID_FIRST)
}

/// The secret out of which all keys of two ends are derived. Roots and standbys alone have it.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey([u8; 32]);

/// The secret of one node, which the roots can derive.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey {
    node: NodeId,
    secret: [u8; 32],
}

/// The secret of a process in a run with node keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndKeys {
    /// A root or a standby.
    Root(MasterKey),
    /// Any other node.
    Node(NodeKey),
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey")
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.node)
    }
}

fn derive(context: &str, secret: &[u8; 32], beside: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(secret).update(beside);
    *hasher.finalize().as_bytes()
}

impl MasterKey {
    /// A master key from 32 secret bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The secret of a node.
    pub fn node(&self, node: NodeId) -> NodeKey {
        let secret = derive("evenfall node keys v1 node", &self.0, &node.0.to_le_bytes());
        NodeKey { node, secret }
    }

    /// The nth key that seals the frames of a run, from 0. Roots give the key to the nodes that
    /// have a place.
    pub fn of_run(&self, run_id: u64, generation: u32) -> [u8; 32] {
        let mut beside = [0; 12];
        beside[..8].copy_from_slice(&run_id.to_le_bytes());
        beside[8..].copy_from_slice(&generation.to_le_bytes());
        derive("evenfall node keys v1 run", &self.0, &beside)
    }

    /// The key under which the roots speak to each other.
    pub fn roots(&self) -> SharedKey {
        SharedKey::new(NODE_KEY_ID, derive("evenfall node keys v1 roots", &self.0, &[]))
    }
}

impl NodeKey {
    /// The secret of a node from the text of its file: the id of the node, and 64 hexadecimal
    /// digits.
    ///
    /// # Errors
    /// What is wrong with the text, without the text itself.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let (node, digits) = text.trim().split_once(' ').ok_or(KeyError::NoNode)?;
        let node = NodeId(node.parse().map_err(|_| KeyError::NoNode)?);
        Ok(Self { node, secret: secret_from_hex(digits)? })
    }

    /// The text of the file of a node.
    pub fn to_text(&self) -> String {
        format!("{} {}\n", self.node.0, secret_to_hex(&self.secret))
    }

    /// The node whose secret this is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// A key of this node for the use that `context` names. `beside` tells keys of one use apart
    /// and must have a fixed length. A root derives the same key. Any other node has the key only
    /// when a root gave it.
    pub fn derive(&self, context: &str, beside: &[u8]) -> [u8; 32] {
        derive(context, &self.secret, beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_and_a_root_derive_the_same_keys_and_no_other_node_does() {
        let master = MasterKey::new([7; 32]);
        let (one, other) = (master.node(NodeId(1)), master.node(NodeId(2)));
        let read = NodeKey::from_text(&one.to_text()).unwrap();
        assert_eq!(read, one);
        assert_eq!(read.derive("a", b"x"), master.node(NodeId(1)).derive("a", b"x"));
        let differ = [
            one.derive("a", b"y"),
            one.derive("b", b"x"),
            other.derive("a", b"x"),
            MasterKey::new([8; 32]).node(NodeId(1)).derive("a", b"x"),
            *master.roots().secret(),
        ];
        assert!(differ.iter().all(|key| *key != one.derive("a", b"x")));
    }

    #[test]
    fn the_text_of_a_node_key_names_its_node_and_an_error_never_shows_the_secret() {
        let text = MasterKey::new([7; 32]).node(NodeId(9)).to_text();
        assert!(text.starts_with("9 ") && text.len() == 2 + 64 + 1);
        assert_eq!(NodeKey::from_text(&text).unwrap().node(), NodeId(9));
        let refusal = |text: &str| NodeKey::from_text(text).unwrap_err();
        assert_eq!(refusal(&text[2..]), KeyError::NoNode, "a shared key");
        assert_eq!(refusal(&text.replacen("9 ", "x ", 1)), KeyError::NoNode);
        assert_eq!(refusal(&text[..20]), KeyError::Length(18));
        let key = NodeKey::from_text(&text).unwrap();
        assert_eq!(format!("{key:?} {:?}", MasterKey::new([1; 32])), "NodeKey(n9) MasterKey");
    }
}
