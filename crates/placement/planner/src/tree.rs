//! The shape of a complete tree, and which host stands on each of its places.
//!
//! Places are numbered level by level: the root is 0, the children of place p are
//! `p * F + 1 ..= p * F + F`. Hosts are numbers of the pool that was measured.

use core::ops::Range;

/// A complete tree: every inner place has `fanout` children, every leaf is `depth` hops from the
/// root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeShape {
    /// Hops from the root to a leaf.
    pub depth: u8,
    /// Children of every inner place.
    pub fanout: u16,
}

impl TreeShape {
    /// Places in the tree: (F^(D+1) - 1) / (F - 1).
    pub fn places(&self) -> usize {
        (0..=self.depth).map(|level| self.width(level)).sum()
    }

    /// Places in the tree; `None` when they are more than a pool may have hosts.
    pub fn checked_places(&self) -> Option<usize> {
        if self.fanout == 0 {
            return None;
        }
        let mut places = 0usize;
        let mut width = 1usize;
        for _ in 0..=self.depth {
            places = places.checked_add(width)?;
            if places > crate::delays::HOSTS_MAX {
                return None;
            }
            width = width.checked_mul(self.fanout as usize)?;
        }
        Some(places)
    }

    /// All places below this place, level by level.
    pub fn below(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let (fanout, places) = (self.fanout as usize, self.places());
        let next = move |level: &Range<usize>| {
            let below = level.start * fanout + 1..level.end * fanout + 1;
            (below.start < places).then_some(below)
        };
        core::iter::successors(next(&(place..place + 1)), next).flatten()
    }

    /// Number of places that are not leaves.
    pub fn inner(&self) -> usize {
        (0..self.depth).map(|level| self.width(level)).sum()
    }

    /// Places on one level: F^level.
    pub fn width(&self, level: u8) -> usize {
        (self.fanout as usize).pow(level.into())
    }

    /// The places of one level, the root's is 0.
    pub fn level(&self, level: u8) -> Range<usize> {
        let first = (0..level).map(|above| self.width(above)).sum();
        first..first + self.width(level)
    }

    /// The places of the last level.
    pub fn leaves(&self) -> Range<usize> {
        self.level(self.depth)
    }

    /// The parent of a place; `None` for the root.
    pub fn parent(&self, place: usize) -> Option<usize> {
        place.checked_sub(1).map(|below| below / self.fanout as usize)
    }

    /// The children of a place; empty for a leaf.
    pub fn children(&self, place: usize) -> Range<usize> {
        let first = place * self.fanout as usize + 1;
        if place < self.inner() { first..first + self.fanout as usize } else { 0..0 }
    }
}

/// A tree with a host on every place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedTree {
    shape: TreeShape,
    hosts: Vec<usize>,
}

impl PlacedTree {
    /// Puts the hosts on the places in their order.
    ///
    /// # Panics
    /// When the number of hosts differs from the number of places, or when a host has two places.
    pub fn new(shape: TreeShape, hosts: Vec<usize>) -> Self {
        assert_eq!(hosts.len(), shape.places(), "one host for every place");
        let mut sorted = hosts.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "one place for every host");
        Self { shape, hosts }
    }

    /// Depth and fan-out.
    pub fn shape(&self) -> TreeShape {
        self.shape
    }

    /// The host on every place, the root first, level by level.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// For every place except the root: the host of its parent, and its own host.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> {
        (1..self.hosts.len())
            .filter_map(|place| Some((self.hosts[self.shape.parent(place)?], self.hosts[place])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_counts_as_the_thesis_does() {
        let shape = TreeShape { depth: 3, fanout: 2 };
        assert_eq!((shape.places(), shape.inner(), shape.leaves()), (15, 7, 7..15));
        assert_eq!((shape.children(2), shape.children(7), shape.parent(0)), (5..7, 0..0, None));
        assert!((1..15).all(|p| shape.children(shape.parent(p).expect("inner")).contains(&p)));
        assert_eq!(TreeShape { depth: 3, fanout: 10 }.places(), 1111);
        assert_eq!(shape.below(1).collect::<Vec<_>>(), [3, 4, 7, 8, 9, 10]);
        assert_eq!((shape.below(0).count(), shape.below(9).count()), (14, 0));
        assert_eq!(TreeShape { depth: u8::MAX, fanout: 2 }.checked_places(), None);
        assert_eq!(TreeShape { depth: u8::MAX, fanout: 0 }.checked_places(), None);
        assert_eq!(shape.checked_places(), Some(15));
    }

    #[test]
    fn edges_join_every_place_to_its_parent() {
        let tree = PlacedTree::new(TreeShape { depth: 1, fanout: 3 }, vec![9, 4, 7, 5]);
        assert_eq!(tree.edges().collect::<Vec<_>>(), [(9, 4), (9, 7), (9, 5)]);
    }
}
