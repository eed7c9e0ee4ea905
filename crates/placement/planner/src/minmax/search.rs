//! Local search for a small worst leaf.
//!
//! The worst leaf alone is a poor guide: almost no single exchange improves it, and it does not
//! rank the other exchanges. The search therefore has a target below the best tree so far, and
//! lowers the excess of all leaves together over the target:
//!
//! ```text
//! excess = sum over leaves of max(0, percentile - target)
//! ```
//!
//! A move exchanges the hosts of two places, or a host of the tree with a spare. One of the two
//! places is always on the way to a late leaf, because no other move can lower the excess. Only the
//! ways below the two places change. Moves that raise the excess a little are accepted at times,
//! and less and less often (annealing, in cycles). When the excess is 0, the target goes down.

use evenfall_core::Prng;

use crate::paths::{Length, Lengths};
use crate::tree::{PlacedTree, TreeShape};

/// The target as a share of the best tree's worst leaf.
const TARGET: f64 = 0.995;
/// Excess that a move may add at the beginning and at the end of a cycle, as shares of the target.
const HEAT: (f64, f64) = (0.03, 0.000_3);
/// Target of `settle`, as a share of the worst leaf.
const SETTLED: f64 = 0.75;
/// Times that a search cools down, each from the best tree so far.
const CYCLES: u64 = 6;

/// A tree under search: places first, then spares.
pub(super) struct Search<'a> {
    lengths: &'a Lengths,
    shape: TreeShape,
    places: usize,
    /// Hosts of the places, then the spares.
    hosts: Vec<usize>,
    ways: Vec<Length>,
    /// Percentiles by leaf.
    late: Late,
    root_fixed: bool,
    /// Ways before the last move, to undo it.
    undo: Vec<(usize, Length)>,
    first_leaf: usize,
}

/// Percentiles of the leaves. The leaves beyond the target are kept in a set from which the search
/// can draw.
pub(super) struct Late {
    target: f64,
    us: Vec<f64>,
    beyond: Vec<u32>,
    /// Position in `beyond`, or `u32::MAX`.
    at: Vec<u32>,
    excess: f64,
    /// The largest percentile that was set since this field was last 0.
    peak: f64,
}

impl Late {
    /// All leaves on time.
    pub fn new(leaves: usize) -> Self {
        Self {
            target: f64::INFINITY,
            us: vec![0.0; leaves],
            beyond: Vec::new(),
            at: vec![u32::MAX; leaves],
            excess: 0.0,
            peak: 0.0,
        }
    }

    /// An unusable path is later than any other, and still finite, so that sums stay numbers.
    fn clamp(us: f64) -> f64 {
        us.min(1e9)
    }

    /// Sets the percentile of a leaf, in microseconds.
    #[inline]
    pub fn set(&mut self, leaf: usize, us: f64) {
        let us = Self::clamp(us);
        self.peak = self.peak.max(us);
        let old = core::mem::replace(&mut self.us[leaf], us);
        let over = us > self.target;
        self.excess += (us - self.target).max(0.0) - (old - self.target).max(0.0);
        let at = self.at[leaf];
        if over && at == u32::MAX {
            self.at[leaf] = self.beyond.len() as u32;
            self.beyond.push(leaf as u32);
        } else if !over && at != u32::MAX {
            self.beyond.swap_remove(at as usize);
            if let Some(&moved) = self.beyond.get(at as usize) {
                self.at[moved as usize] = at;
            }
            self.at[leaf] = u32::MAX;
        }
    }

    /// Another target.
    pub fn aim(&mut self, target: f64) {
        self.target = target;
        self.beyond.clear();
        self.excess = 0.0;
        for leaf in 0..self.us.len() {
            self.at[leaf] = u32::MAX;
            if self.us[leaf] > target {
                self.excess += self.us[leaf] - target;
                self.at[leaf] = self.beyond.len() as u32;
                self.beyond.push(leaf as u32);
            }
        }
    }

    /// Whether no leaf is beyond the target.
    pub fn is_met(&self) -> bool {
        self.beyond.is_empty()
    }

    /// The sum over all leaves of the time beyond the target, in microseconds.
    pub fn excess(&self) -> f64 {
        self.excess
    }

    /// A random leaf beyond the target.
    pub fn any(&self, prng: &mut Prng) -> Option<usize> {
        let index = prng.below(self.beyond.len().max(1) as u64) as usize;
        self.beyond.get(index).map(|&leaf| leaf as usize)
    }

    /// The latest leaf.
    pub fn worst(&self) -> f64 {
        self.us.iter().copied().fold(0.0, f64::max)
    }
}

impl<'a> Search<'a> {
    /// A search that begins at a tree. `spares` are hosts that may take places.
    pub fn new(
        lengths: &'a Lengths,
        tree: &PlacedTree,
        spares: &[usize],
        root_fixed: bool,
    ) -> Self {
        let shape = tree.shape();
        let mut hosts = tree.hosts().to_vec();
        hosts.extend_from_slice(spares);
        let first_leaf = shape.leaves().start;
        let mut search = Self {
            lengths,
            shape,
            places: tree.hosts().len(),
            ways: vec![Length::default(); tree.hosts().len()],
            late: Late::new(shape.leaves().len()),
            hosts,
            root_fixed,
            undo: Vec::new(),
            first_leaf,
        };
        search.restart(tree.hosts());
        search
    }

    fn restart(&mut self, hosts: &[usize]) {
        self.hosts[..hosts.len()].copy_from_slice(hosts);
        self.ways = self.lengths.ways(self.shape, &self.hosts[..self.places]);
        for leaf in self.first_leaf..self.places {
            self.late.set(leaf - self.first_leaf, self.ways[leaf].us());
        }
    }

    /// Searches for this many moves. Returns the best tree and the percentile of its worst leaf.
    pub fn run(&mut self, moves: u64, prng: &mut Prng) -> (f64, PlacedTree) {
        let mut best = (self.late.worst(), self.hosts.clone());
        self.late.aim(best.0 * TARGET);
        for step in 0..moves {
            let cycle = moves.div_ceil(CYCLES);
            if step > 0 && step % cycle == 0 {
                self.hosts.copy_from_slice(&best.1);
                self.restart(&best.1[..self.places]);
                self.late.aim(best.0 * TARGET);
            }
            if self.late.is_met() {
                let worst = self.late.worst();
                if worst < best.0 {
                    best = (worst, self.hosts.clone());
                }
                self.late.aim(best.0 * TARGET);
                continue;
            }
            let cooled = (step % cycle) as f64 / cycle as f64;
            let heat = HEAT.0 + (HEAT.1 - HEAT.0) * cooled * (2.0 - cooled);
            self.step(heat * self.late.target, f64::INFINITY, prng);
        }
        // The result of the last moves counts, even when it misses the target.
        let worst = self.late.worst();
        if worst < best.0 {
            best = (worst, self.hosts.clone());
        }
        (best.0, PlacedTree::new(self.shape, best.1[..self.places].to_vec()))
    }

    /// Lowers the other leaves without raising the worst leaf. Measurements are not exact, and
    /// among a hundred leaves that are as late as the worst, some leaf will be later than measured.
    /// The target is a quarter below the worst leaf.
    pub fn settle(&mut self, moves: u64, prng: &mut Prng) -> PlacedTree {
        let most = self.late.worst();
        self.late.aim(most * SETTLED);
        let mut best = (self.late.excess, self.hosts.clone());
        for step in 0..moves {
            if self.late.is_met() {
                break;
            }
            let cooled = step as f64 / moves as f64;
            self.step((HEAT.0 + (HEAT.1 - HEAT.0) * cooled) * most, most, prng);
            if self.late.excess < best.0 {
                best = (self.late.excess, self.hosts.clone());
            }
        }
        PlacedTree::new(self.shape, best.1[..self.places].to_vec())
    }

    /// A random place on the path from the root to a random late leaf: the leaf with probability
    /// 1/2, its parent with probability 1/4, and so on upwards.
    fn place(&self, prng: &mut Prng) -> usize {
        let mut place = self.first_leaf + self.late.any(prng).unwrap_or(0);
        let top = usize::from(self.root_fixed);
        while prng.below(2) == 0 {
            match self.shape.parent(place) {
                Some(parent) if parent >= top => place = parent,
                _ => break,
            }
        }
        place
    }

    /// Makes one move. The move is undone when it makes a leaf later than `most`.
    fn step(&mut self, heat: f64, most: f64, prng: &mut Prng) {
        let a = self.place(prng);
        let low = u64::from(self.root_fixed);
        let b = (low + prng.below(self.hosts.len() as u64 - low)) as usize;
        if a == b {
            return;
        }
        let before = self.late.excess;
        self.undo.clear();
        self.late.peak = 0.0;
        self.exchange(a, b);
        let added = self.late.excess - before;
        if self.late.peak > most || (added > 0.0 && added > prng.exponential(heat)) {
            self.take_back(a, b);
        }
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.hosts.swap(a, b);
        let (upper, lower) = (a.min(b), a.max(b));
        if upper < self.places {
            self.renew(upper);
        }
        if lower < self.places && !self.is_below(lower, upper) {
            self.renew(lower);
        }
    }

    fn is_below(&self, mut place: usize, above: usize) -> bool {
        while place > above {
            place = (place - 1) / self.shape.fanout as usize;
        }
        place == above
    }

    /// Computes the ways to a place and all places below it.
    fn renew(&mut self, top: usize) {
        let fanout = self.shape.fanout as usize;
        let (mut from, mut to) = (top, top + 1);
        while from < self.places {
            for place in from..to {
                let way = match place {
                    0 => Length::default(),
                    _ => {
                        let parent = (place - 1) / fanout;
                        let edge = self.lengths.edge(self.hosts[parent], self.hosts[place]);
                        self.ways[parent].plus(edge)
                    }
                };
                self.undo.push((place, self.ways[place]));
                self.ways[place] = way;
                if place >= self.first_leaf {
                    self.late.set(place - self.first_leaf, way.us());
                }
            }
            (from, to) = (from * fanout + 1, to * fanout + 1);
        }
    }

    fn take_back(&mut self, a: usize, b: usize) {
        self.hosts.swap(a, b);
        while let Some((place, way)) = self.undo.pop() {
            self.ways[place] = way;
            if place >= self.first_leaf {
                self.late.set(place - self.first_leaf, way.us());
            }
        }
    }
}
