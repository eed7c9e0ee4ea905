//! The emulation table: which node takes part in which cycle, and which keys may be written in it.
//!
//! Changes are agreed together with requests. A change that is agreed in cycle c applies from cycle
//! c + pipeline, and no replica starts that cycle before it has committed c, so that all replicas
//! have the same table in the same cycle. A super-leaf that leaves takes part one cycle longer, so
//! that a node of it that has started the last of its cycles has committed the change.

use std::collections::BTreeMap;

use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_core::{Malformed, NodeId, Reader};

use crate::config::SecondRound;
use crate::leases::Leases;
use crate::{AgreedChange, Config, LeafOnlyTree, LeavingReason, VnodeId};

/// From a cycle on, a node or a super-leaf takes part under an incarnation, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    incarnation: u32,
    is_in: bool,
}

/// The spans of a node or of a super-leaf, sorted by cycle; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Life(Vec<Span>);

impl Life {
    fn new() -> Self {
        Self(vec![Span { from: 0, incarnation: 0, is_in: true }])
    }

    fn at(&self, cycle: u64) -> Option<Span> {
        self.0.iter().rev().find(|span| span.from <= cycle).copied()
    }

    fn incarnation(&self, cycle: u64) -> Option<u32> {
        self.at(cycle).filter(|span| span.is_in).map(|span| span.incarnation)
    }

    fn last(&self) -> Option<Span> {
        self.0.last().copied()
    }

    fn add(&mut self, from: u64, incarnation: u32, is_in: bool) {
        self.0.push(Span { from, incarnation, is_in });
    }

    /// Adds the next incarnation, unless the owner is in.
    fn return_at(&mut self, from: u64) {
        if let Some(last) = self.last().filter(|last| !last.is_in) {
            self.add(from, last.incarnation + 1, true);
        }
    }

    /// The first cycle of the latest incarnation, and the incarnation.
    fn joined(&self) -> Option<(u64, u32)> {
        let last = self.0.iter().rev().find(|span| span.is_in)?;
        Some((last.from, last.incarnation))
    }

    fn forget(&mut self, before: u64) {
        while self.0.len() > 1 && self.0[1].from <= before {
            self.0.remove(0);
        }
    }

    /// Spans u8, and per span the first cycle u64, the incarnation u32 and whether the owner is in
    /// u8.
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        for span in &self.0 {
            out.extend(span.from.to_le_bytes());
            out.extend(span.incarnation.to_le_bytes());
            out.push(u8::from(span.is_in));
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut spans = Vec::new();
        for _ in 0..r.u8()? {
            spans.push(Span { from: r.u64()?, incarnation: r.u32()?, is_in: r.u8()? == 1 });
        }
        if spans.is_empty() { Err(r.malformed("a life without a span")) } else { Ok(Self(spans)) }
    }
}

/// The nodes and the super-leaves that take part in each cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulationTable {
    lives: BTreeMap<NodeId, Life>,
    leaves: BTreeMap<VnodeId, Life>,
    /// The super-leaf of each node.
    homes: BTreeMap<NodeId, VnodeId>,
    leases: Leases,
}

impl EmulationTable {
    /// Every node of the tree takes part from the first cycle.
    pub fn new(tree: &LeafOnlyTree) -> Self {
        let homes = tree
            .leaves()
            .flat_map(|(vnode, leaf)| leaf.members.iter().map(move |member| (member.node, vnode)));
        let homes: BTreeMap<NodeId, VnodeId> = homes.collect();
        Self {
            lives: homes.keys().map(|node| (*node, Life::new())).collect(),
            leaves: homes.values().map(|leaf| (*leaf, Life::new())).collect(),
            homes,
            leases: Leases::default(),
        }
    }

    /// The write leases of the cycles that are not committed yet.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The incarnation under which a node takes part in a cycle; `None` when it does not.
    pub fn incarnation(&self, node: NodeId, cycle: u64) -> Option<u32> {
        self.lives.get(&node)?.incarnation(cycle)
    }

    /// The incarnation under which a super-leaf takes part in a cycle; `None` when it does not.
    pub fn leaf_incarnation(&self, leaf: VnodeId, cycle: u64) -> Option<u32> {
        self.leaves.get(&leaf)?.incarnation(cycle)
    }

    /// The latest incarnation that a super-leaf has had by a cycle, whether it still takes part or
    /// has left.
    pub(crate) fn leaf_latest(&self, leaf: VnodeId, cycle: u64) -> Option<u32> {
        Some(self.leaves.get(&leaf)?.at(cycle)?.incarnation)
    }

    /// The super-leaf of a node.
    pub fn home(&self, node: NodeId) -> Option<VnodeId> {
        self.homes.get(&node).copied()
    }

    /// The incarnation under which a node that does not take part in a cycle would come back, as
    /// far as the cycle's own table tells.
    pub fn next_in(&self, node: NodeId, cycle: u64) -> Option<u32> {
        let span = self.lives.get(&node)?.at(cycle);
        span.filter(|span| !span.is_in).map(|span| span.incarnation + 1)
    }

    /// The incarnation that a node has after all changes so far.
    pub fn latest(&self, node: NodeId) -> Option<u32> {
        self.incarnation(node, u64::MAX)
    }

    /// The incarnation under which an absent node would come back.
    pub fn next(&self, node: NodeId) -> Option<u32> {
        self.next_in(node, u64::MAX)
    }

    /// Applies a change that is agreed in `cycle`, from a pipeline later on. Changes are repeated,
    /// and a change that has no effect any more is ignored. A node comes back only when every cycle
    /// that is not yet committed does without its last incarnation, so that two groups of a node
    /// never overlap. The same holds for a super-leaf.
    pub fn apply(&mut self, change: AgreedChange, cycle: u64, config: &Config) {
        let from = cycle + config.pipeline;
        match change {
            AgreedChange::Leave(node, incarnation) => {
                let life = self.lives.get_mut(&node);
                if let Some(life) = life.filter(|l| l.incarnation(u64::MAX) == Some(incarnation)) {
                    life.add(from, incarnation, false);
                }
            }
            AgreedChange::Join(node, incarnation) => self.join(node, incarnation, cycle, from),
            AgreedChange::Retire(leaf, incarnation, reason) => {
                let is_in = self.leaf_incarnation(leaf, u64::MAX) == Some(incarnation);
                if is_in && self.may_leave(leaf, reason, cycle, config) {
                    self.retire(leaf, cycle, from + 1);
                }
            }
            AgreedChange::Lease(key) => {
                if config.lease_cycles > 0 {
                    self.leases.grant(key, from, from + config.lease_cycles);
                }
            }
        }
    }

    /// The super-leaves that take part after all changes so far.
    pub fn leaves_in(&self) -> impl Iterator<Item = VnodeId> {
        let is_in = |(_, life): &(&VnodeId, &Life)| life.incarnation(u64::MAX).is_some();
        self.leaves.iter().filter(is_in).map(|(leaf, _)| *leaf)
    }

    /// Whether enough other super-leaves take part for this one to leave for a reason that is
    /// agreed in `cycle`. With a service outside, these are super-leaves that take part in the
    /// cycle already: the cycle shows that they can vote.
    pub fn may_leave(
        &self,
        leaf: VnodeId,
        reason: LeavingReason,
        cycle: u64,
        config: &Config,
    ) -> bool {
        let needed = match (reason, config.second_round) {
            (LeavingReason::Vanished, _)
            | (LeavingReason::Anew, SecondRound::Off | SecondRound::Consensus) => 0,
            (LeavingReason::Planned, SecondRound::Consensus) => self.leaves.len() / 2 + 1,
            (LeavingReason::Planned, _) | (LeavingReason::Anew, SecondRound::External) => 1,
        };
        let votes = |other: &VnodeId| {
            let latest = self.leaf_incarnation(*other, u64::MAX);
            let is_external = config.second_round == SecondRound::External;
            !is_external || self.leaf_incarnation(*other, cycle) == latest
        };
        let others = self.leaves_in().filter(|other| *other != leaf);
        others.filter(votes).count() >= needed
    }

    /// The first cycle without a super-leaf that is out.
    pub fn left(&self, leaf: VnodeId) -> Option<u64> {
        self.leaves.get(&leaf)?.last().filter(|last| !last.is_in).map(|last| last.from)
    }

    fn join(&mut self, node: NodeId, incarnation: u32, cycle: u64, from: u64) {
        let home = self.homes.get(&node).and_then(|home| self.leaves.get_mut(home));
        let (Some(home), Some(life)) = (home, self.lives.get_mut(&node)) else { return };
        let (Some(leaf), Some(last)) = (home.last(), life.last()) else { return };
        let is_next = !last.is_in && last.incarnation + 1 == incarnation && last.from <= cycle + 1;
        if is_next && (leaf.is_in || leaf.from <= cycle + 1) {
            life.add(from, incarnation, true);
            home.return_at(from);
        }
    }

    /// Takes a super-leaf and its nodes out. When no super-leaf is left, all of them with all their
    /// nodes come back by rule, as soon as all cycles with the last incarnations are over.
    fn retire(&mut self, leaf: VnodeId, cycle: u64, from: u64) {
        let nodes = self.lives.iter_mut().filter(|(node, _)| self.homes.get(node) == Some(&leaf));
        let own = self.leaves.get_mut(&leaf);
        for life in nodes.map(|(_, life)| life).chain(own) {
            if let Some(incarnation) = life.incarnation(u64::MAX) {
                life.add(from, incarnation, false);
            }
        }
        if self.leaves_in().next().is_none() {
            let back = from + (from - cycle);
            self.leaves.values_mut().for_each(|life| life.return_at(back));
            self.lives.values_mut().for_each(|life| life.return_at(back));
        }
    }

    /// Forgets the spans that ended before this cycle, and the leases that no later cycle has.
    pub fn forget(&mut self, before: u64) {
        self.leases.forget(before);
        self.lives
            .values_mut()
            .chain(self.leaves.values_mut())
            .for_each(|life| life.forget(before));
    }

    /// The cycle from which a node takes part under its latest incarnation, and the incarnation.
    pub(crate) fn joined(&self, node: NodeId) -> Option<(u64, u32)> {
        self.lives.get(&node)?.joined()
    }

    /// The cycle from which a super-leaf takes part under its latest incarnation, and the
    /// incarnation.
    pub(crate) fn leaf_joined(&self, leaf: VnodeId) -> Option<(u64, u32)> {
        self.leaves.get(&leaf)?.joined()
    }

    /// Whether the table has exactly the nodes of a tree.
    pub(crate) fn is_of(&self, tree: &LeafOnlyTree) -> bool {
        let new = Self::new(tree);
        self.homes == new.homes && self.leaves.keys().eq(new.leaves.keys())
    }

    /// Nodes u16, and per node its name u32, its super-leaf u16 and its life; super-leaves u16, and
    /// per super-leaf its vnode u16 and its life; then the leases.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend((self.lives.len() as u16).to_le_bytes());
        for ((node, life), home) in self.lives.iter().zip(self.homes.values()) {
            out.extend(node.0.to_le_bytes());
            out.extend(home.0.to_le_bytes());
            life.put(out);
        }
        out.extend((self.leaves.len() as u16).to_le_bytes());
        for (leaf, life) in &self.leaves {
            out.extend(leaf.0.to_le_bytes());
            life.put(out);
        }
        self.leases.put(out);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (mut lives, mut homes) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..r.u16()? {
            let (node, home) = (NodeId(r.u32()?), VnodeId(r.u16()?));
            lives.insert(node, Life::read(r)?);
            homes.insert(node, home);
        }
        let mut leaves = BTreeMap::new();
        for _ in 0..r.u16()? {
            leaves.insert(VnodeId(r.u16()?), Life::read(r)?);
        }
        Ok(Self { lives, leaves, homes, leases: Leases::read(r)? })
    }

    /// Equal tables of a cycle have equal digests.
    pub fn digest(&self, cycle: u64) -> u64 {
        let mut bytes = Vec::new();
        let nodes = self.lives.iter().map(|(node, life)| (node.0, life));
        let leaves = self.leaves.iter().map(|(leaf, life)| (leaf.0.into(), life));
        for (name, life) in nodes.chain(leaves) {
            bytes.extend(name.to_le_bytes());
            let incarnation = life.incarnation(cycle).map_or(u64::MAX, u64::from);
            bytes.extend(incarnation.to_le_bytes());
        }
        self.leases.digest(fnv1a(FNV_BASIS, &bytes), cycle)
    }
}
