//! The leaf-only tree: nodes in super-leaves, and virtual nodes above them.
//!
//! ```text
//!            z            root, height 2           VnodeId(0), path []
//!          /   \
//!         x     y         super-leaves, height 1   VnodeId(1), path [1]; VnodeId(2), path [2]
//!        /|\   /|\
//!       A B C D E F       nodes
//! ```
//!
//! Only nodes exist. Every node emulates all vnodes above itself: it knows their states.

use std::net::SocketAddr;

use evenfall_core::NodeId;
use evenfall_core::math::{FNV_BASIS, fnv1a};

use crate::ConsensusError;
use crate::config::{Config, NODES_MAX};
use crate::group::OWNERS;

/// A vnode, by its place in the order of paths. The root is number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnodeId(pub u16);

impl VnodeId {
    /// The vnode above all others.
    pub const ROOT: Self = Self(0);
}

/// A node and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafMember {
    /// The name of the node, unique in the tree.
    pub node: NodeId,
    /// Where the node receives datagrams.
    pub address: SocketAddr,
}

/// The nodes of one rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperLeaf {
    /// The way from the root to the super-leaf: as many numbers as the tree is high, less one.
    pub path: Vec<u8>,
    /// The nodes.
    pub members: Vec<LeafMember>,
}

/// A leaf-only tree. Its super-leaves do not change while it is in use; nodes leave and come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafOnlyTree {
    height: usize,
    /// Sorted by path.
    vnodes: Vec<Vnode>,
    /// Sorted by path, with members sorted by name.
    leaves: Vec<SuperLeaf>,
}

/// A vnode. Every datagram asks for what is below one, so the answers are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Vnode {
    path: Vec<u8>,
    /// The vnodes right below.
    children: Vec<VnodeId>,
    /// The super-leaves at the vnode or below.
    leaves: Vec<VnodeId>,
}

impl LeafOnlyTree {
    /// A tree of these super-leaves.
    ///
    /// # Errors
    /// [`ConsensusError::Tree`] when paths differ in length or repeat, a super-leaf is empty, a
    /// node comes twice, or there are more than [`NODES_MAX`].
    pub fn new(mut leaves: Vec<SuperLeaf>) -> Result<Self, ConsensusError> {
        // All replicas number the vnodes alike, in whatever order their settings list the
        // super-leaves.
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        let Some(first) = leaves.first() else { return Err(ConsensusError::Tree("no super-leaf")) };
        let height = first.path.len() + 1;
        if leaves.iter().any(|leaf| leaf.path.len() + 1 != height) {
            return Err(ConsensusError::Tree("super-leaves at different depths"));
        }
        if leaves.windows(2).any(|two| two[0].path == two[1].path) {
            return Err(ConsensusError::Tree("two super-leaves with one path"));
        }
        let mut nodes = Vec::new();
        for leaf in &mut leaves {
            if leaf.members.is_empty() {
                return Err(ConsensusError::Tree("a super-leaf without nodes"));
            }
            leaf.members.sort_by_key(|member| member.node);
            nodes.extend(leaf.members.iter().map(|member| member.node));
        }
        nodes.sort();
        if nodes.len() > NODES_MAX {
            return Err(ConsensusError::Tree("more nodes than a state has room for"));
        }
        // Names from there on stand for super-leaves as owners of groups.
        if nodes.last() >= Some(&OWNERS) {
            return Err(ConsensusError::Tree("a node with a name of 2147483648 or above"));
        }
        if nodes.windows(2).any(|two| two[0] == two[1]) {
            return Err(ConsensusError::Tree("a node that is in the tree twice"));
        }
        let mut paths: Vec<&[u8]> = leaves
            .iter()
            .flat_map(|leaf| (0..=leaf.path.len()).map(|depth| &leaf.path[..depth]))
            .collect();
        paths.sort();
        paths.dedup();
        let below = |above: &[u8], length: usize| -> Vec<VnodeId> {
            let all = paths.iter().enumerate();
            let found = all.filter(|(_, path)| path.len() == length && path.starts_with(above));
            found.map(|(at, _)| VnodeId(at as u16)).collect()
        };
        let vnode = |path: &&[u8]| Vnode {
            path: path.to_vec(),
            children: below(path, path.len() + 1),
            leaves: below(path, height - 1),
        };
        let vnodes = paths.iter().map(vnode).collect();
        Ok(Self { height, vnodes, leaves })
    }

    /// Rounds of a cycle.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Every node, super-leaf by super-leaf.
    pub fn members(&self) -> impl Iterator<Item = &LeafMember> {
        self.leaves.iter().flat_map(|leaf| &leaf.members)
    }

    /// The super-leaves with their vnodes.
    pub fn leaves(&self) -> impl Iterator<Item = (VnodeId, &SuperLeaf)> + Clone {
        // Both are sorted by path.
        self.leaves_below(VnodeId::ROOT).zip(&self.leaves)
    }

    /// The nodes of each super-leaf.
    pub fn racks(&self) -> Vec<Vec<NodeId>> {
        let nodes = |leaf: &SuperLeaf| leaf.members.iter().map(|member| member.node).collect();
        self.leaves.iter().map(nodes).collect()
    }

    /// The super-leaf of a node.
    pub fn super_leaf_of(&self, node: NodeId) -> Option<&SuperLeaf> {
        self.leaves.iter().find(|leaf| leaf.members.iter().any(|member| member.node == node))
    }

    /// The address of a node.
    pub fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.members().find(|member| member.node == node).map(|member| member.address)
    }

    /// The vnode of this path.
    pub fn vnode(&self, path: &[u8]) -> Option<VnodeId> {
        let at = self.vnodes.binary_search_by(|vnode| vnode.path.as_slice().cmp(path)).ok()?;
        Some(VnodeId(at as u16))
    }

    /// The path of a vnode; `None` when there is no such vnode.
    pub fn path(&self, vnode: VnodeId) -> Option<&[u8]> {
        self.vnodes.get(usize::from(vnode.0)).map(|vnode| vnode.path.as_slice())
    }

    /// The vnodes above a super-leaf, from its own to the root.
    pub fn ancestors(&self, leaf: &SuperLeaf) -> Vec<VnodeId> {
        (0..=leaf.path.len()).rev().filter_map(|depth| self.vnode(&leaf.path[..depth])).collect()
    }

    /// The vnodes right below a vnode.
    pub fn children(&self, vnode: VnodeId) -> &[VnodeId] {
        self.vnodes.get(usize::from(vnode.0)).map_or(&[], |vnode| &vnode.children)
    }

    /// The super-leaves at a vnode or below.
    pub fn leaves_below(&self, vnode: VnodeId) -> impl Iterator<Item = VnodeId> + Clone {
        let vnode = self.vnodes.get(usize::from(vnode.0));
        vnode.into_iter().flat_map(|vnode| vnode.leaves.iter().copied())
    }

    /// The nodes that emulate a vnode.
    pub fn emulators(&self, vnode: VnodeId) -> Vec<LeafMember> {
        let Some(above) = self.path(vnode) else { return Vec::new() };
        let below = self.leaves.iter().filter(|leaf| leaf.path.starts_with(above));
        below.flat_map(|leaf| leaf.members.iter().copied()).collect()
    }

    /// The number that all datagrams of a cluster have. Two clusters share it only when they have
    /// the same nodes in the same places, write leases of the same length, the same pipeline, and
    /// the same second round. Addresses are left out, because a node may move.
    pub fn digest(&self, config: &Config) -> u64 {
        let mut bytes = vec![config.second_round.word()];
        bytes.extend(config.pipeline.to_le_bytes());
        for leaf in &self.leaves {
            bytes.push(leaf.path.len() as u8);
            bytes.extend_from_slice(&leaf.path);
            bytes.extend((leaf.members.len() as u32).to_le_bytes());
            bytes.extend(leaf.members.iter().flat_map(|member| member.node.0.to_le_bytes()));
        }
        fnv1a(FNV_BASIS, &bytes).wrapping_add(config.lease_cycles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(path: &[u8], nodes: core::ops::Range<u32>) -> SuperLeaf {
        let address = ([127, 0, 0, 1], 1).into();
        let members = nodes.map(|node| LeafMember { node: NodeId(node), address }).collect();
        SuperLeaf { path: path.to_vec(), members }
    }

    #[test]
    fn a_tree_of_height_three_knows_ancestors_children_and_emulators() {
        let tree = LeafOnlyTree::new(vec![
            leaf(&[2, 1], 9..12),
            leaf(&[1, 1], 0..3),
            leaf(&[1, 2], 3..6),
            leaf(&[1, 3], 6..9),
        ])
        .expect("a tree");
        assert_eq!((tree.height(), tree.vnodes.len()), (3, 7));
        let first = tree.super_leaf_of(NodeId(1)).expect("node 1");
        let paths: Vec<_> = tree.ancestors(first).iter().map(|v| tree.path(*v).unwrap()).collect();
        assert_eq!(paths, [&[1, 1][..], &[1], &[]]);
        let one = tree.vnode(&[1]).expect("vnode 1");
        assert_eq!((tree.children(one).len(), tree.emulators(one).len()), (3, 9));
        assert_eq!(tree.emulators(VnodeId::ROOT).len(), 12);
    }

    #[test]
    fn a_tree_that_is_none_is_refused() {
        assert!(LeafOnlyTree::new(vec![]).is_err());
        assert!(LeafOnlyTree::new(vec![leaf(&[1], 0..1), leaf(&[1], 1..2)]).is_err());
        assert!(LeafOnlyTree::new(vec![leaf(&[1], 0..1), leaf(&[2, 1], 1..2)]).is_err());
        assert!(LeafOnlyTree::new(vec![leaf(&[1], 0..2), leaf(&[2], 1..3)]).is_err());
        assert!(LeafOnlyTree::new(vec![leaf(&[1], 0..0)]).is_err());
    }
}
