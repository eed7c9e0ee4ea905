//! The tree: which node sends to which nodes. The tree is a plain value. The root computes it, and
//! each node gets its [`TreePosition`](crate::control::TreePosition).
//!
//! Level 0 is the root, levels 1 to D-1 are proxies, and level D is the receivers, so all paths are
//! equally long. With fan-out F, level l holds F^l proxies, and the receivers are spread evenly
//! over the last layer of proxies. When D and F are not given, F = 10 and D = round(log10 N)
//! (Jasper section 4).
//!
//! Hedging (section 5.1): the children of a node also get copies from H of its siblings, their
//! *aunts*. Siblings are the children of one parent, in order, taken as a ring.

use std::collections::BTreeMap;

use evenfall_core::{NodeId, math};

use crate::config::{Mode, Scheme, Shape};

/// Fan-out of the rule of section 4.
const FANOUT_RULE: f64 = 10.0;

/// Depth and fan-out for a number of receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Hops from the root to a receiver.
    pub depth: u8,
    /// Children per inner node above the last layer of proxies.
    pub fanout: usize,
}

impl Dimensions {
    /// The dimensions that a shape and a mode give for this many receivers.
    pub fn of(shape: &Shape, mode: Mode, receivers: usize) -> Self {
        let n = receivers.max(1) as f64;
        if mode.direct() {
            return Self { depth: 1, fanout: receivers.max(1) };
        }
        match (shape.depth, shape.fanout) {
            (Some(depth), Some(fanout)) => Self { depth, fanout: usize::from(fanout) },
            (Some(depth), None) => {
                // The smallest fan-out that reaches all receivers.
                let root = math::pow(n, 1.0 / f64::from(depth.max(1))) as usize;
                let reaches = |f: &usize| f.saturating_pow(depth.into()) >= receivers;
                let fanout = (root.saturating_sub(1).max(1)..).find(reaches);
                Self { depth, fanout: fanout.expect("some fan-out reaches them") }
            }
            (None, Some(fanout)) => {
                let f = f64::from(fanout).max(2.0);
                Self {
                    depth: (math::ln(n) / math::ln(f)).round().max(1.0) as u8,
                    fanout: fanout.into(),
                }
            }
            (None, None) => {
                Self { depth: math::log10(n).round().max(1.0) as u8, fanout: FANOUT_RULE as usize }
            }
        }
    }

    /// Proxies that a full tree of these dimensions needs. The result saturates at the largest
    /// number.
    pub fn proxies(&self, shape: &Shape) -> usize {
        let layer = |l| self.fanout.saturating_pow(l);
        let inner = (1..u32::from(self.depth)).map(layer).fold(0, usize::saturating_add);
        let extra = match shape.scheme {
            Scheme::Siblings => 0,
            // Every node that has proxies as children also has H extra children.
            Scheme::Extra => (0..u32::from(self.depth).saturating_sub(1))
                .map(|l| layer(l).saturating_mul(shape.hedging.copies()))
                .fold(0, usize::saturating_add),
        };
        inner.saturating_add(extra)
    }
}

/// One node's neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Distance from the root; `None` for a spare.
    pub level: Option<u8>,
    /// The parent, then the aunts.
    pub sources: Vec<NodeId>,
    /// The node's own children, with hedge nodes.
    pub children: Vec<NodeId>,
    /// Children of siblings that get extra copies from this node.
    pub nieces: Vec<NodeId>,
}

/// The senders and the children of every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: NodeId,
    depth: u8,
    hedging: usize,
    /// By inner node, its children in order. The extra hedge nodes of [`Scheme::Extra`] are kept
    /// apart.
    children: BTreeMap<NodeId, Vec<NodeId>>,
    /// Hedge nodes per parent ([`Scheme::Extra`] only).
    extra: BTreeMap<NodeId, Vec<NodeId>>,
    /// Parent of every node in the tree except the root.
    parent: BTreeMap<NodeId, NodeId>,
    /// Level of every node in the tree.
    level: BTreeMap<NodeId, u8>,
    /// Proxies without a place, ready to take one.
    spares: Vec<NodeId>,
    /// Proxies that the wanted dimensions lack.
    missing: usize,
    /// A proxy and the node that feeds beside it. A former spare is in none of the maps, because
    /// its neighbours follow from the proxy. A sibling has its own place.
    overlap: Option<(NodeId, NodeId)>,
}

impl Tree {
    /// A tree of these members, in this order.
    ///
    /// With fewer proxies than the dimensions ask for, every layer is thinned in proportion, but
    /// keeps at least one proxy. [`missing`](Self::missing) then gives the number of absent
    /// proxies. Without any proxy, the root sends to the receivers itself.
    pub fn build(
        root: NodeId,
        proxies: &[NodeId],
        receivers: &[NodeId],
        shape: &Shape,
        mode: Mode,
    ) -> Self {
        let wanted = Dimensions::of(shape, mode, receivers.len());
        let need = wanted.proxies(shape);
        let depth = usize::from(wanted.depth).min(proxies.len() + 1) as u8;
        let mut tree = Self {
            root,
            depth,
            hedging: if mode.hedges() { shape.hedging.copies() } else { 0 },
            children: BTreeMap::from([(root, Vec::new())]),
            extra: BTreeMap::new(),
            parent: BTreeMap::new(),
            level: BTreeMap::from([(root, 0)]),
            spares: Vec::new(),
            missing: need.saturating_sub(proxies.len()),
            overlap: None,
        };
        let mut pool = proxies.iter().copied();
        let mut last = vec![root];
        for level in 1..depth {
            let full = wanted.fanout.pow(level.into());
            let width = if need <= proxies.len() {
                full
            } else {
                (full * proxies.len() / need.max(1)).max(1)
            };
            let layer: Vec<NodeId> = pool.by_ref().take(width).collect();
            tree.attach_evenly(&last, &layer, level);
            last = layer;
        }
        if shape.scheme == Scheme::Extra && tree.hedging > 0 {
            tree.place_extra(&mut pool);
        }
        tree.spares = pool.collect();
        tree.attach_evenly(&last, receivers, depth);
        tree
    }

    /// Spreads `nodes` over `parents` in order. The numbers of children differ by one at most.
    fn attach_evenly(&mut self, parents: &[NodeId], nodes: &[NodeId], level: u8) {
        for parent in parents {
            self.children.entry(*parent).or_default();
        }
        for (i, node) in nodes.iter().enumerate() {
            self.attach(parents[i * parents.len() / nodes.len()], *node, level);
        }
    }

    fn attach(&mut self, parent: NodeId, node: NodeId, level: u8) {
        self.children.entry(parent).or_default().push(node);
        self.parent.insert(node, parent);
        self.level.insert(node, level);
        if level < self.depth {
            self.children.entry(node).or_default();
        }
    }

    fn place_extra(&mut self, pool: &mut impl Iterator<Item = NodeId>) {
        let parents: Vec<(NodeId, u8)> = self
            .children
            .keys()
            .map(|node| (*node, self.level[node]))
            .filter(|&(_, level)| level + 1 < self.depth)
            .collect();
        for (parent, level) in parents {
            for node in pool.by_ref().take(self.hedging) {
                self.extra.entry(parent).or_default().push(node);
                self.parent.insert(node, parent);
                self.level.insert(node, level + 1);
            }
        }
    }

    /// Hops from the root to a receiver.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// How many more proxies the wanted dimensions need.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Proxies without a place.
    pub fn spares(&self) -> &[NodeId] {
        &self.spares
    }

    /// Whether this node has a place.
    pub fn contains(&self, node: NodeId) -> bool {
        self.level.contains_key(&node) || self.overlap.is_some_and(|(_, new)| new == node)
    }

    /// The parent of a node.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        let beside = self.overlap.filter(|(_, new)| *new == node).map(|(old, _)| old);
        self.parent.get(&node).or_else(|| self.parent.get(&beside?)).copied()
    }

    /// All nodes in the tree and their levels, the root among them.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, u8)> + '_ {
        self.level.iter().map(|(node, level)| (*node, *level))
    }

    /// The siblings of `parent` that hedge for its children, in the order of the ring.
    fn aunts_by_way_of(&self, parent: NodeId) -> Vec<NodeId> {
        let Some(grandparent) = self.parent.get(&parent) else { return Vec::new() };
        if let Some(extra) = self.extra.get(grandparent) {
            return extra.clone();
        }
        let ring = &self.children[grandparent];
        let Some(at) = ring.iter().position(|n| *n == parent) else { return Vec::new() };
        let hedging = self.hedging.min(ring.len() - 1);
        (1..=hedging).map(|j| ring[(at + ring.len() - j) % ring.len()]).collect()
    }

    /// The nodes to whose children `node` sends extra copies.
    fn hedged_siblings(&self, node: NodeId) -> Vec<NodeId> {
        let Some(parent) = self.parent.get(&node) else { return Vec::new() };
        let leaf = self.level.get(&node) == Some(&self.depth);
        let ring = &self.children[parent];
        if leaf || self.hedging == 0 {
            return Vec::new();
        }
        match ring.iter().position(|n| *n == node) {
            Some(_) if self.extra.contains_key(parent) => Vec::new(),
            Some(at) => {
                let hedging = self.hedging.min(ring.len() - 1);
                (1..=hedging).map(|j| ring[(at + j) % ring.len()]).collect()
            }
            // An extra hedge node serves the children of all its siblings.
            None => ring.clone(),
        }
    }

    /// What a node needs to know about the tree.
    pub fn neighbours(&self, node: NodeId) -> Neighbours {
        let Some((old, new)) = self.overlap else { return self.lasting_neighbours(node) };
        let has_place = self.level.contains_key(&new);
        if node == new {
            // The second node does all that the first does, except hearing reports, and also keeps
            // its own work.
            let (own, mut near) = (self.lasting_neighbours(new), self.lasting_neighbours(old));
            near.nieces.splice(0..0, near.children.drain(..));
            if !has_place {
                return near;
            }
            near.nieces.retain(|n| !own.children.contains(n) && !own.nieces.contains(n));
            return Neighbours { nieces: [own.nieces, near.nieces].concat(), ..own };
        }
        let mut near = self.lasting_neighbours(node);
        let add = |list: &mut Vec<NodeId>| {
            if list.contains(&old) && !list.contains(&new) {
                list.push(new);
            }
        };
        add(&mut near.sources);
        if !has_place {
            add(&mut near.children);
            add(&mut near.nieces);
        }
        near
    }

    fn lasting_neighbours(&self, node: NodeId) -> Neighbours {
        let Some(&level) = self.level.get(&node) else { return Neighbours::default() };
        let mut sources = Vec::new();
        if let Some(&parent) = self.parent.get(&node) {
            sources.push(parent);
            sources.extend(self.aunts_by_way_of(parent));
        }
        let extra = self.extra.get(&node).into_iter().flatten();
        let children = self.children.get(&node).into_iter().flatten().chain(extra).copied();
        let children = children.collect();
        let nieces = self
            .hedged_siblings(node)
            .iter()
            .flat_map(|sibling| self.children.get(sibling).into_iter().flatten().copied())
            .collect();
        Neighbours { level: Some(level), sources, children, nieces }
    }

    /// Whether a spare could take this node's place. The node must be a proxy with children.
    pub fn is_replaceable(&self, node: NodeId) -> bool {
        let children = self.children.get(&node).is_some_and(|children| !children.is_empty());
        node != self.root && children && self.level.contains_key(&node)
    }

    /// The root.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// Receivers in the subtree of a node, with the node itself.
    pub fn receivers_below(&self, node: NodeId) -> usize {
        if self.level.get(&node) == Some(&self.depth) {
            return 1;
        }
        let children = self.children.get(&node).into_iter().flatten();
        children.map(|child| self.receivers_below(*child)).sum()
    }

    /// The proxy that may be replaced, and the node that feeds beside it.
    pub fn overlap(&self) -> Option<(NodeId, NodeId)> {
        self.overlap
    }

    /// The other proxies with the same parent.
    pub fn siblings(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let ring = self.parent.get(&node).and_then(|parent| self.children.get(parent));
        let others = ring.into_iter().flatten().copied().filter(move |other| *other != node);
        others.filter(|other| self.children.contains_key(other))
    }

    /// From now on `new`, a spare or a sibling, feeds beside the proxy `old`. A spare is fed as
    /// well. Returns `false` and changes nothing when `old` cannot be replaced, `new` is neither
    /// spare nor sibling, or another overlap is under way.
    pub fn begin_overlap(&mut self, old: NodeId, new: NodeId) -> bool {
        let spare = self.spares.iter().position(|spare| *spare == new);
        let sibling = self.siblings(old).any(|sibling| sibling == new);
        if self.overlap.is_some() || !self.is_replaceable(old) || spare.is_none() && !sibling {
            return false;
        }
        spare.map(|at| self.spares.remove(at));
        self.overlap = Some((old, new));
        true
    }

    /// Ends the overlap. With `replace`, the new node takes the place (a sibling takes the
    /// children) and the old node becomes a spare. Otherwise the tree is as it was before.
    pub fn end_overlap(&mut self, replace: bool) {
        let Some((old, new)) = self.overlap.take() else { return };
        let sibling = self.level.contains_key(&new);
        if !replace {
            self.spares.extend((!sibling).then_some(new));
            return;
        }
        let level = self.level.remove(&old).expect("who is to be replaced has a place");
        let parent = self.parent.remove(&old).expect("and is not the root");
        let children = self.children.remove(&old).expect("and has children");
        let extra = self.extra.remove(&old).unwrap_or_default();
        if sibling {
            self.ring(parent).retain(|child| *child != old);
            self.dismiss(&extra);
            children.into_iter().for_each(|child| {
                let own_level = self.level[&child];
                self.attach(new, child, own_level);
            });
            self.missing += 1;
            self.spares.push(old);
            return;
        }
        for child in self.ring(parent).iter_mut().filter(|child| **child == old) {
            *child = new;
        }
        self.succeed(new, (parent, level), children, extra);
        self.spares.push(old);
    }

    /// Adds a receiver under the last proxy with the fewest children.
    pub fn add_receiver(&mut self, node: NodeId) {
        let last = self.depth - 1;
        let parent = self
            .children
            .iter()
            .filter(|(n, _)| self.level.get(n) == Some(&last))
            .min_by_key(|(_, children)| children.len())
            .map(|(n, _)| *n)
            .expect("the layer above the receivers is never empty");
        self.attach(parent, node, self.depth);
    }

    /// Adds a proxy that waits for a place.
    pub fn add_spare(&mut self, node: NodeId) {
        self.spares.push(node);
    }

    /// Moves a node to the sibling of its parent that has the fewest children. All other nodes
    /// stay. Returns whether there was a sibling.
    pub fn move_away_from_parent(&mut self, node: NodeId) -> bool {
        let Some(&old) = self.parent.get(&node) else { return false };
        let level = self.level[&old];
        let new = self
            .children
            .iter()
            .filter(|(n, _)| **n != old && self.level.get(n) == Some(&level))
            .min_by_key(|(_, children)| children.len())
            .map(|(n, _)| *n);
        let Some(new) = new else { return false };
        let own_level = self.level[&node];
        let is_child = self.ring(old).contains(&node);
        if is_child {
            self.ring(old).retain(|n| *n != node);
            self.attach(new, node, own_level);
        } else {
            // An extra hedge node stays an extra one.
            self.extra
                .get_mut(&old)
                .expect("a node that is no child is extra")
                .retain(|n| *n != node);
            self.extra.entry(new).or_default().push(node);
            self.parent.insert(node, new);
        }
        true
    }

    /// Takes a node out. A spare takes the place of a proxy. Without a spare, the proxy's children
    /// go to the other nodes of its level. Returns `false` when the proxy was the last of its
    /// level: the tree must then be built anew before any other change.
    pub fn remove(&mut self, node: NodeId) -> bool {
        if let Some((old, new)) = self.overlap
            && (node == old || node == new)
        {
            self.end_overlap(node == old);
        }
        self.spares.retain(|n| *n != node);
        let Some(level) = self.level.remove(&node) else { return true };
        let parent = self.parent.remove(&node).expect("only the root has no parent");
        let Some(at) = self.ring(parent).iter().position(|n| *n == node) else {
            let extra = self.extra.get_mut(&parent).expect("who is no child is an extra one");
            extra.retain(|n| *n != node);
            self.missing += 1;
            return true;
        };
        let Some(orphans) = self.children.remove(&node) else {
            self.ring(parent).remove(at);
            return true;
        };
        let extra = self.extra.remove(&node).unwrap_or_default();
        if !self.spares.is_empty() {
            let spare = self.spares.remove(0);
            self.ring(parent)[at] = spare;
            self.succeed(spare, (parent, level), orphans, extra);
            return true;
        }
        self.missing += 1;
        self.ring(parent).remove(at);
        self.dismiss(&extra);
        orphans.into_iter().all(|orphan| self.adopt(orphan, level))
            && self.children.keys().any(|n| self.level.get(n) == Some(&level))
    }

    /// The children of an inner node, in their order.
    fn ring(&mut self, parent: NodeId) -> &mut Vec<NodeId> {
        self.children.get_mut(&parent).expect("a parent has a list")
    }

    /// A spare gets the place and all nodes below it.
    fn succeed(
        &mut self,
        spare: NodeId,
        (parent, level): (NodeId, u8),
        children: Vec<NodeId>,
        extra: Vec<NodeId>,
    ) {
        self.parent.insert(spare, parent);
        self.level.insert(spare, level);
        self.parent.extend(children.iter().chain(&extra).map(|child| (*child, spare)));
        self.children.insert(spare, children);
        if !extra.is_empty() {
            self.extra.insert(spare, extra);
        }
    }

    /// Hedge nodes whose parent is gone become spares.
    fn dismiss(&mut self, extra: &[NodeId]) {
        for node in extra {
            self.parent.remove(node);
            self.level.remove(node);
            self.spares.push(*node);
        }
        self.missing += extra.len();
    }

    /// Puts an orphan below the node of this level that has the fewest children.
    fn adopt(&mut self, orphan: NodeId, level: u8) -> bool {
        let heir = self
            .children
            .iter()
            .filter(|(n, _)| self.level.get(n) == Some(&level))
            .min_by_key(|(_, children)| children.len())
            .map(|(n, _)| *n);
        let Some(heir) = heir else { return false };
        let own_level = self.level[&orphan];
        self.attach(heir, orphan, own_level);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(from: u32, n: u32) -> Vec<NodeId> {
        (from..from + n).map(NodeId).collect()
    }

    fn tree(proxies: u32, receivers: u32, shape: Shape) -> Tree {
        Tree::build(NodeId(0), &ids(1, proxies), &ids(1_000, receivers), &shape, Mode::Release)
    }

    fn shape(depth: u8, fanout: u16, hedging: u8) -> Shape {
        let hedging = evenfall_core::Hedging(hedging);
        Shape { depth: Some(depth), fanout: Some(fanout), hedging, scheme: Scheme::Siblings }
    }

    #[test]
    fn jasper_section_4_rule_is_ten_children_and_round_log10() {
        let of = |n| Dimensions::of(&Shape::default(), Mode::Tree, n);
        assert_eq!([of(10).depth, of(100).depth, of(1_000).depth, of(5_832).depth], [1, 2, 3, 4]);
        assert_eq!(of(100).fanout, 10);
        let given = Shape { depth: Some(2), ..Shape::default() };
        assert_eq!(Dimensions::of(&given, Mode::Tree, 20).fanout, 5);
        assert_eq!(Dimensions::of(&given, Mode::Unicast, 20).depth, 1);
    }

    #[test]
    fn paths_are_equally_long_and_receivers_evenly_spread() {
        let tree = tree(12, 30, shape(3, 3, 1));
        for receiver in ids(1_000, 30) {
            let mut hops = 0;
            let mut at = receiver;
            while let Some(parent) = tree.parent(at) {
                (at, hops) = (parent, hops + 1);
            }
            assert_eq!((at, hops), (NodeId(0), 3));
        }
        for proxy in ids(4, 9) {
            let n = tree.neighbours(proxy).children.len();
            assert!((3..=4).contains(&n), "{proxy} has {n}");
        }
    }

    #[test]
    fn everybody_below_the_first_layer_gets_h_extra_copies() {
        for hedging in 0..3 {
            let tree = tree(12, 30, shape(3, 3, hedging));
            let mut copies = BTreeMap::<NodeId, Vec<NodeId>>::new();
            for (node, _) in tree.nodes() {
                let n = tree.neighbours(node);
                for to in n.children.iter().chain(&n.nieces) {
                    copies.entry(*to).or_default().push(node);
                }
            }
            for (node, level) in tree.nodes().filter(|&(_, level)| level > 0) {
                let mut from = copies[&node].clone();
                let mut sources = tree.neighbours(node).sources;
                assert_eq!(from.len(), 1 + if level > 1 { usize::from(hedging) } else { 0 });
                from.sort();
                sources.sort();
                assert_eq!(from, sources, "senders and named sources agree");
            }
        }
    }

    #[test]
    fn the_extra_variant_gives_as_many_copies_from_nodes_without_children() {
        let shape = Shape { scheme: Scheme::Extra, ..shape(3, 3, 1) };
        assert_eq!(Dimensions::of(&shape, Mode::Release, 27).proxies(&shape), 12 + 1 + 3);
        let tree = tree(16, 27, shape);
        let receiver = tree.neighbours(NodeId(1_000));
        assert_eq!(receiver.sources.len(), 2);
        let hedge = tree.neighbours(receiver.sources[1]);
        assert!(hedge.children.is_empty());
        assert_eq!(hedge.nieces.len(), 9, "F^2 copies");
        for (node, _) in tree.nodes().filter(|&(_, level)| level > 0) {
            let parent = tree.parent(node).expect("below the root");
            let children = tree.neighbours(parent).children;
            assert!(children.contains(&node), "{parent} sends to {node} as well");
        }
    }

    #[test]
    fn hedge_nodes_go_with_the_place_of_their_parent() {
        let shape = Shape { scheme: Scheme::Extra, ..shape(3, 3, 1) };
        let mut with_spare = tree(17, 27, shape);
        let spare = with_spare.spares()[0];
        let extra = with_spare.extra[&NodeId(1)].clone();
        assert!(with_spare.remove(NodeId(1)));
        assert!(extra.iter().all(|node| with_spare.parent(*node) == Some(spare)));
        let mut without = tree(16, 27, shape);
        assert!(without.remove(NodeId(1)));
        assert_eq!((without.spares(), without.missing()), (&extra[..], 2));
        for (node, _) in without.nodes() {
            without.neighbours(node);
        }
    }

    #[test]
    fn a_spare_takes_the_place_of_a_dead_proxy_and_nobody_else_moves() {
        let mut tree = tree(4, 9, shape(2, 3, 1));
        let before = tree.neighbours(NodeId(2)).children;
        assert!(tree.remove(NodeId(2)));
        assert_eq!(tree.neighbours(NodeId(4)).children, before);
        assert!(tree.spares().is_empty() && !tree.contains(NodeId(2)));
    }

    /// Every node accepts copies from all nodes that send to it, and from no other node. With
    /// siblings the two sets are equal.
    fn senders_are_sources(tree: &Tree, everybody: &[NodeId]) {
        let mut from = BTreeMap::<NodeId, Vec<NodeId>>::new();
        for node in everybody {
            let near = tree.neighbours(*node);
            for to in near.children.iter().chain(&near.nieces) {
                from.entry(*to).or_default().push(*node);
            }
        }
        for node in everybody {
            let mut sources = tree.neighbours(*node).sources;
            let senders = from.entry(*node).or_default();
            sources.sort();
            senders.sort();
            if !tree.extra.is_empty() {
                // A hedge node appears among the sources of other hedge nodes, but does not send to
                // them.
                sources.retain(|source| senders.contains(source));
            }
            assert_eq!(*senders, sources, "of {node}");
        }
    }

    #[test]
    fn both_feed_the_same_nodes_while_a_spare_is_tried() {
        for scheme in [Scheme::Siblings, Scheme::Extra] {
            for hedging in 0..3 {
                let mut tree = tree(22, 30, Shape { scheme, ..shape(3, 3, hedging) });
                let everybody = [ids(0, 23), ids(1_000, 30)].concat();
                let (old, new) = (NodeId(5), tree.spares()[0]);
                let (before, whole) = (tree.neighbours(old), tree.clone());
                assert!(tree.begin_overlap(old, new));
                assert!(!tree.begin_overlap(NodeId(4), NodeId(22)), "one at a time");
                senders_are_sources(&tree, &everybody);
                let beside = tree.neighbours(new);
                assert_eq!((beside.level, beside.children.len()), (before.level, 0));
                assert_eq!(beside.nieces.len(), before.children.len() + before.nieces.len());
                assert_eq!(tree.parent(new), tree.parent(old));
                let mut back = tree.clone();
                back.end_overlap(false);
                assert_eq!(back.neighbours(old), before);
                assert_eq!(back.spares().len(), whole.spares().len());
                tree.end_overlap(true);
                assert_eq!(tree.neighbours(new), before);
                assert!(!tree.contains(old) && tree.spares().contains(&old));
                senders_are_sources(&tree, &everybody);
            }
        }
    }

    #[test]
    fn a_sibling_feeds_a_proxys_children_before_it_takes_them_over() {
        for hedging in 0..3 {
            let mut tree = tree(12, 30, shape(3, 3, hedging));
            let everybody = [ids(0, 13), ids(1_000, 30)].concat();
            let (old, new) = (NodeId(5), NodeId(6));
            assert!(!tree.begin_overlap(old, NodeId(7)), "of another parent");
            let orphans = tree.neighbours(old).children;
            let before = tree.clone();
            assert!(tree.begin_overlap(old, new));
            senders_are_sources(&tree, &everybody);
            let near = tree.neighbours(new);
            assert!(orphans.iter().all(|orphan| near.nieces.contains(orphan)));
            let mut back = tree.clone();
            back.end_overlap(false);
            assert_eq!(back, before);
            tree.end_overlap(true);
            senders_are_sources(&tree, &everybody);
            assert!(orphans.iter().all(|orphan| tree.parent(*orphan) == Some(new)));
            assert_eq!((tree.spares(), tree.missing()), (&[old][..], 1));
        }
    }

    /// Every child and every extra node has its parent and the level below its parent.
    fn is_whole(tree: &Tree) {
        let below = tree.children.iter().chain(&tree.extra);
        let mut seen = BTreeMap::new();
        for (parent, child) in
            below.flat_map(|(parent, list)| list.iter().map(move |c| (parent, c)))
        {
            assert_eq!(seen.insert(child, parent), None, "{child} has one place");
            assert_eq!(tree.parent.get(child), Some(parent), "the parent of {child}");
            assert_eq!(tree.level.get(child), tree.level.get(parent).map(|l| l + 1).as_ref());
            assert!(!tree.spares.contains(child), "{child} has a place and is a spare");
        }
        assert_eq!(seen.len(), tree.parent.len());
    }

    #[test]
    fn a_tree_stays_whole_through_any_changes() {
        use evenfall_core::Prng;
        for seed in 0..400 {
            let mut prng = Prng::new(seed);
            let scheme = if prng.below(2) == 0 { Scheme::Siblings } else { Scheme::Extra };
            let hedging = prng.below(3) as u8;
            let shape = Shape { scheme, ..shape(2 + prng.below(2) as u8, 3, hedging) };
            let (proxies, mut receivers) = (prng.below(22) as u32 + 4, ids(1_000, 12));
            let mut tree = tree(proxies, 12, shape);
            is_whole(&tree);
            for step in 0..60 {
                let everybody = [ids(1, proxies), receivers.clone()].concat();
                let any = |prng: &mut Prng| everybody[prng.below(everybody.len() as u64) as usize];
                match prng.below(6) {
                    0 => {
                        let new = NodeId(2_000 + step);
                        receivers.push(new);
                        tree.add_receiver(new);
                    }
                    1 => {
                        if !tree.remove(any(&mut prng)) {
                            break;
                        }
                    }
                    2 | 3 => drop(tree.move_away_from_parent(any(&mut prng))),
                    4 => drop(tree.begin_overlap(any(&mut prng), any(&mut prng))),
                    _ => tree.end_overlap(prng.below(2) == 0),
                }
                is_whole(&tree);
            }
        }
    }

    #[test]
    fn of_two_side_by_side_the_one_that_lives_stays() {
        let whole = {
            let mut tree = tree(4, 9, shape(2, 3, 1));
            assert!(tree.begin_overlap(NodeId(2), NodeId(4)));
            tree
        };
        let before = whole.neighbours(NodeId(2)).children;
        let mut tree = whole.clone();
        assert!(tree.remove(NodeId(2)));
        assert_eq!((tree.neighbours(NodeId(4)).children, tree.overlap()), (before.clone(), None));
        assert!(tree.spares().is_empty() && !tree.contains(NodeId(2)));
        let mut tree = whole;
        assert!(tree.remove(NodeId(4)));
        assert_eq!((tree.neighbours(NodeId(2)).children, tree.overlap()), (before, None));
        assert!(tree.spares().is_empty() && !tree.contains(NodeId(4)));
    }

    #[test]
    fn without_a_spare_siblings_adopt_the_orphans_and_the_last_of_a_level_forces_a_rebuild() {
        let mut tree = tree(3, 9, shape(2, 3, 1));
        assert!(tree.remove(NodeId(1)));
        for receiver in ids(1_000, 9) {
            assert!(tree.parent(receiver).is_some_and(|p| p == NodeId(2) || p == NodeId(3)));
        }
        assert!(tree.remove(NodeId(2)));
        assert!(!tree.remove(NodeId(3)));
    }

    #[test]
    fn too_few_proxies_thin_every_layer_and_are_counted() {
        let tree = tree(5, 27, shape(3, 3, 1));
        assert_eq!(tree.missing(), 7);
        assert_eq!(tree.depth(), 3);
        assert_eq!(tree.nodes().filter(|&(_, level)| level == 3).count(), 27);
        let none = Tree::build(NodeId(0), &[], &ids(1, 4), &shape(3, 3, 1), Mode::Release);
        assert_eq!((none.depth(), none.neighbours(NodeId(0)).children.len()), (1, 4));
    }
}
