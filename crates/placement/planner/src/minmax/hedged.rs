//! Worst leaves of trees that hedge.
//!
//! With sibling hedging (Jasper section 5.1) a node below the first level gets copies from its
//! parent and from H siblings of its parent, and takes the first copy. The copies share the edges
//! above them, so a slow link near the root delays several copies at once. The time of the first
//! copy therefore does not follow from two numbers per path, and delays are sampled. Every edge has
//! a fixed sample of its distribution, and the time at which a message reaches a place is computed
//! for every draw:
//!
//! ```text
//! time(place)[s] = min over sources of (time(source)[s] + sample(source, place)[s])
//! ```
//!
//! Samples are stratified: each edge has one draw from every 512th of its distribution, in an order
//! of its own. A percentile of a path is then exact to about one percent. The search uses one set
//! of samples, and another, larger set judges its result. With the same set, the search would fit
//! its tree to the random draws.
//!
//! Percentiles of edges alone give no lower bound of a hedged tree. When a leaf has a share q of
//! its messages by the time T, at least one of its (H + 1)^(D - 1) paths has the share
//! q / (H + 1)^(D - 1) by T. The sum of so low percentiles over the path's edges is no bound: with
//! edges of 50 us at 20 % and 80 us else, the percentile 22.5 of each edge is 80 us, and that of
//! two edges 130 us. The bound therefore takes whole distributions (`hedged_bound`).

use evenfall_core::Prng;

use super::search::Late;
use super::{MinMax, UNUSABLE_US};
use crate::curve::Curve;
use crate::delays::HostPool;
use crate::tree::{PlacedTree, TreeShape};

/// Draws while searching, as a power of two.
const SEARCH_BITS: u32 = 9;
/// Draws that judge the result, as a power of two.
const JUDGE_BITS: u32 = 13;
/// Limit of the edges whose samples one search computes, unless its moves are given. The search
/// then takes some seconds.
const EDGES: u64 = 400_000;
/// The target as a share of the best tree's percentile.
const TARGET: f64 = 0.99;
/// The excess that a move may add, as a share of the target: at the beginning of the search, and at
/// its end.
const HEAT: (f64, f64) = (0.01, 0.000_3);

/// Times at which messages reach the places of a tree, for each draw.
struct Times<'a> {
    pool: &'a HostPool<'a>,
    shape: TreeShape,
    hedging: usize,
    share: f64,
    bits: u32,
    seed: u64,
    /// By place times the number of draws.
    times: Vec<f32>,
    edge: Vec<f32>,
    /// Edges drawn so far.
    work: u64,
}

impl<'a> Times<'a> {
    fn new(pool: &'a HostPool<'a>, what: &MinMax, bits: u32, seed: u64) -> Self {
        let draws = 1 << bits;
        Self {
            pool,
            shape: what.shape,
            hedging: what.hedging.copies(),
            share: what.share,
            bits,
            seed,
            times: vec![0.0; what.shape.places() << bits],
            edge: vec![0.0; draws],
            work: 0,
        }
    }

    /// The places that send to a place.
    fn sources(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let fanout = self.shape.fanout as usize;
        let parent = (place - 1) / fanout;
        let aunts = if parent == 0 { 0 } else { self.hedging.min(fanout - 1) };
        let (first, at) = ((parent.max(1) - 1) / fanout * fanout + 1, (parent.max(1) - 1) % fanout);
        (0..=aunts).map(move |j| if j == 0 { parent } else { first + (at + fanout - j) % fanout })
    }

    /// The draws of one edge, in an order of its own.
    fn draw(&mut self, from: usize, to: usize) {
        self.work += 1;
        let stats = self.pool.edge(from, to);
        let curve = stats.and_then(|stats| Some((Curve::of(stats)?, f64::from(stats.loss))));
        let Some((curve, loss)) = curve else { return self.edge.fill(UNUSABLE_US as f32) };
        let draws = self.edge.len() as u64;
        let mut prng = Prng::new(self.seed ^ (from as u64) << 32 ^ to as u64);
        let (a, b, c) = (prng.next_u64() | 1, prng.next_u64(), prng.next_u64() | 1);
        let (mask, shift) = (draws - 1, self.bits / 2);
        for s in 0..draws {
            // Each of the three steps is a permutation of the draws.
            let mut x = s.wrapping_mul(a).wrapping_add(b) & mask;
            x ^= x >> shift;
            x = x.wrapping_mul(c) & mask;
            x ^= x >> shift;
            let share = (x as f64 + 0.5) / draws as f64;
            let lost = share >= 1.0 - loss;
            let us = if lost { UNUSABLE_US } else { curve.at(share / (1.0 - loss)) };
            self.edge[s as usize] = us as f32;
        }
    }

    /// Computes the times of a place from those of its sources.
    fn renew(&mut self, place: usize, hosts: &[usize]) {
        let draws = self.edge.len();
        for (copy, source) in self.sources(place).enumerate() {
            self.draw(hosts[source], hosts[place]);
            let (above, own) = self.times.split_at_mut(place * draws);
            let above = &above[source * draws..][..draws];
            for ((own, above), edge) in own[..draws].iter_mut().zip(above).zip(&self.edge) {
                let us = above + edge;
                *own = if copy == 0 { us } else { own.min(us) };
            }
        }
    }

    /// The percentile of a place.
    fn percentile(&self, place: usize) -> f64 {
        let draws = self.edge.len();
        let mut times = self.times[place * draws..][..draws].to_vec();
        let rank = ((self.share * draws as f64).ceil() as usize).clamp(1, draws) - 1;
        f64::from(*times.select_nth_unstable_by(rank, f32::total_cmp).1)
    }

    fn worst(&mut self, hosts: &[usize]) -> f64 {
        (1..self.shape.places()).for_each(|place| self.renew(place, hosts));
        self.shape.leaves().map(|leaf| self.percentile(leaf)).fold(0.0, f64::max)
    }
}

/// The estimated percentile of the worst leaf of a tree that hedges, microseconds.
pub(super) fn worst_leaf(pool: &HostPool<'_>, what: &MinMax, tree: &PlacedTree) -> f64 {
    let mut times = Times::new(pool, what, JUDGE_BITS, what.seed ^ 0x006a_7564_6765);
    times.worst(tree.hosts())
}

/// Searches for a good tree with hedging, beginning at a tree that is good without hedging.
pub(super) fn search(pool: &HostPool<'_>, what: &MinMax, tree: &PlacedTree) -> PlacedTree {
    let (shape, mut prng) = (what.shape, Prng::new(what.seed));
    let mut times = Times::new(pool, what, SEARCH_BITS, what.seed);
    let (places, first_leaf) = (shape.places(), shape.leaves().start);
    let mut hosts = tree.hosts().to_vec();
    hosts.extend((0..pool.hosts()).filter(|host| !tree.hosts().contains(host)));
    let mut best = (times.worst(&hosts), hosts.clone());
    let mut late = Late::new(shape.leaves().len());
    shape.leaves().for_each(|leaf| late.set(leaf - first_leaf, times.percentile(leaf)));
    late.aim(best.0 * TARGET);
    let top = usize::from(what.root.is_some());
    let draws = times.edge.len();
    let mut undo: Vec<(usize, Vec<f32>)> = Vec::new();
    let work = if what.moves > 0 { what.moves } else { EDGES };
    while times.work < work {
        if late.is_met() || late.worst() < best.0 {
            best = (late.worst(), hosts.clone());
            late.aim(best.0 * TARGET);
        }
        // Simulated annealing: a move for the worse is taken more rarely as the work is used up.
        let cooled = times.work as f64 / work as f64;
        let heat = (HEAT.0 + (HEAT.1 - HEAT.0) * cooled) * best.0;
        let Some(leaf) = late.any(&mut prng) else { break };
        let mut a = first_leaf + leaf;
        // A leaf may be late by any edge above it. Half of the moves are at the leaf, a quarter one
        // level higher, and so on.
        while prng.below(2) == 0 {
            match times.sources(a).nth(prng.below(2) as usize).filter(|&source| source >= top) {
                Some(source) if a > 0 && source > 0 => a = source,
                _ => break,
            }
        }
        let b = top + prng.below((hosts.len() - top) as u64) as usize;
        if a == b {
            continue;
        }
        let before = late.excess();
        hosts.swap(a, b);
        let mut changed = vec![false; places];
        // Sources have lower numbers than the places that they feed, so that one pass renews all.
        for place in a.min(b)..places {
            let moved = place == a || place == b;
            changed[place] = moved || (place > 0 && times.sources(place).any(|s| changed[s]));
            if changed[place] && place > 0 {
                undo.push((place, times.times[place * draws..][..draws].to_vec()));
                times.renew(place, &hosts);
                if place >= first_leaf {
                    late.set(place - first_leaf, times.percentile(place));
                }
            }
        }
        let added = late.excess() - before;
        if added > 0.0 && added > prng.exponential(heat) {
            hosts.swap(a, b);
            for (place, old) in undo.drain(..) {
                times.times[place * draws..][..draws].copy_from_slice(&old);
                if place >= first_leaf {
                    late.set(place - first_leaf, times.percentile(place));
                }
            }
        }
        undo.clear();
    }
    PlacedTree::new(shape, best.1[..places].to_vec())
}
