//! The emulation table: which node takes part in which cycle, and which keys may be written in it.
//!
//! Changes are agreed together with requests. A change that is agreed in cycle c applies from cycle
//! c + pipeline, and no replica starts that cycle before it has committed c, so that all replicas
//! have the same table in the same cycle.

use std::collections::BTreeMap;

use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_core::{Malformed, NodeId, Reader};

use crate::leases::Leases;
use crate::{Change, Tree};

/// From a cycle on, a node takes part under an incarnation, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    incarnation: u32,
    is_in: bool,
}

/// The nodes that take part in each cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The spans of each node, sorted by cycle; never empty.
    lives: BTreeMap<NodeId, Vec<Span>>,
    leases: Leases,
}

impl Table {
    /// Every node of the tree takes part from the first cycle.
    pub fn new(tree: &Tree) -> Self {
        let life = vec![Span { from: 0, incarnation: 0, is_in: true }];
        let lives = tree.members().map(|member| (member.node, life.clone())).collect();
        Self { lives, leases: Leases::default() }
    }

    /// The write leases of the cycles that are not committed yet.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    fn span(&self, node: NodeId, cycle: u64) -> Option<Span> {
        self.lives.get(&node)?.iter().rev().find(|span| span.from <= cycle).copied()
    }

    fn last(&self, node: NodeId) -> Option<Span> {
        self.lives.get(&node)?.last().copied()
    }

    /// The incarnation under which a node takes part in a cycle; `None` when it does not.
    pub fn incarnation(&self, node: NodeId, cycle: u64) -> Option<u32> {
        self.span(node, cycle).filter(|span| span.is_in).map(|span| span.incarnation)
    }

    /// The incarnation under which a node that does not take part in a cycle would come back, as
    /// far as the cycle's own table tells.
    pub fn next_in(&self, node: NodeId, cycle: u64) -> Option<u32> {
        self.span(node, cycle).filter(|span| !span.is_in).map(|span| span.incarnation + 1)
    }

    /// The incarnation that a node has after all changes so far.
    pub fn latest(&self, node: NodeId) -> Option<u32> {
        self.incarnation(node, u64::MAX)
    }

    /// The incarnation under which an absent node would come back.
    pub fn next(&self, node: NodeId) -> Option<u32> {
        self.next_in(node, u64::MAX)
    }

    /// Applies a change that is agreed in `cycle`, from a later cycle on. A write lease ends
    /// `lease_cycles` later. Returns whether the members have changed, because changes are
    /// repeated. A node comes back only when every cycle that is not yet committed does without its
    /// last incarnation, so that two groups of a node never overlap.
    pub fn apply(&mut self, change: Change, cycle: u64, from: u64, lease_cycles: u64) -> bool {
        let (node, incarnation, is_in) = match change {
            Change::Leave(node, incarnation) => (node, incarnation, false),
            Change::Join(node, incarnation) => (node, incarnation, true),
            Change::Lease(_) if lease_cycles == 0 => return false,
            Change::Lease(key) => {
                self.leases.grant(key, from, from + lease_cycles);
                return false;
            }
        };
        let Some(last) = self.last(node) else { return false };
        let is_next = match is_in {
            false => last.is_in && last.incarnation == incarnation,
            true => !last.is_in && last.incarnation + 1 == incarnation && last.from <= cycle + 1,
        };
        if is_next && let Some(life) = self.lives.get_mut(&node) {
            life.push(Span { from, incarnation, is_in });
        }
        is_next
    }

    /// Forgets the spans that ended before this cycle, and the leases that no later cycle has.
    pub fn forget(&mut self, before: u64) {
        self.leases.forget(before);
        for life in self.lives.values_mut() {
            while life.len() > 1 && life[1].from <= before {
                life.remove(0);
            }
        }
    }

    /// The cycle from which a node takes part under its latest incarnation, and the incarnation.
    pub(crate) fn joined(&self, node: NodeId) -> Option<(u64, u32)> {
        let last = self.lives.get(&node)?.iter().rev().find(|span| span.is_in)?;
        Some((last.from, last.incarnation))
    }

    /// Whether the table has exactly the nodes of a tree.
    pub(crate) fn is_of(&self, tree: &Tree) -> bool {
        let mut nodes: Vec<NodeId> = tree.members().map(|member| member.node).collect();
        nodes.sort();
        self.lives.keys().copied().eq(nodes)
    }

    /// Nodes u16; then per node its name u32, spans u8, and per span the first cycle u64, the
    /// incarnation u32 and whether the node is in u8; then the leases.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend((self.lives.len() as u16).to_le_bytes());
        for (node, life) in &self.lives {
            out.extend(node.0.to_le_bytes());
            out.push(life.len() as u8);
            for span in life {
                out.extend(span.from.to_le_bytes());
                out.extend(span.incarnation.to_le_bytes());
                out.push(u8::from(span.is_in));
            }
        }
        self.leases.put(out);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut lives = BTreeMap::new();
        for _ in 0..r.u16()? {
            let (node, count) = (NodeId(r.u32()?), r.u8()?);
            let mut life = Vec::new();
            for _ in 0..count {
                life.push(Span { from: r.u64()?, incarnation: r.u32()?, is_in: r.u8()? == 1 });
            }
            if life.is_empty() {
                return Err(r.malformed("a node without a span"));
            }
            lives.insert(node, life);
        }
        Ok(Self { lives, leases: Leases::read(r)? })
    }

    /// Equal tables of a cycle have equal digests.
    pub fn digest(&self, cycle: u64) -> u64 {
        let mut bytes = Vec::new();
        for node in self.lives.keys() {
            bytes.extend(node.0.to_le_bytes());
            let incarnation = self.incarnation(*node, cycle).map_or(u64::MAX, u64::from);
            bytes.extend(incarnation.to_le_bytes());
        }
        self.leases.digest(fnv1a(FNV_BASIS, &bytes), cycle)
    }
}
