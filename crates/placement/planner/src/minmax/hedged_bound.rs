//! A lower bound for trees that hedge.
//!
//! A node takes the first of its copies, which share the edges above them. The copies of one node
//! are never less alike than independent copies: a slow edge delays several at once (Harris'
//! inequality, since every copy only becomes later when an edge does). Let `G(u)` be the share of
//! messages that reach host `u` by each time, and `F(u, v)` that of one edge. Then
//!
//! ```text
//! G(v) <= 1 - (1 - (G * F)(u1, v)) ... (1 - (G * F)(uk, v))      * is the convolution
//! ```
//!
//! for the sources `u1` to `uk` of `v`, one more than the extra copies. With the best sources of
//! the whole pool in the place of the tree's, time by time, the right side holds for every tree.
//! Level by level this gives each host a time before which no tree reaches it at the percentile.
//! A tree needs as many such hosts as it has leaves. As the search, the bound takes the delays of
//! edges as independent, and their distributions as drawn through the measured percentiles.
//!
//! Times are counted in bins, and every edge is rounded down, so the bound is low by up to a bin
//! for each hop.

use super::MinMax;
use crate::curve::Curve;
use crate::delays::HostPool;

/// Bins up to the worst leaf of the tree that is known. Three hops lose 1.2 % at most.
const BINS: usize = 256;
/// Parts of an edge's distribution, each rounded down to its beginning.
const PARTS: u32 = 2_048;
/// Largest pool with a bound: its work grows with the square, and takes two seconds for 220 hosts.
const BOUND_HOSTS: usize = 220;
/// Largest pool whose hosts are considered as root one by one, when no root is given.
const ROOTS_HOSTS: usize = 40;

/// Shares of the messages by their time in bins; the rest comes later or never.
type Shares = Vec<f64>;

/// No tree of this pool has a worst leaf below the result, microseconds. `most` is the worst leaf
/// of a tree that is known. `None` when the pool is too large.
pub(super) fn bound(pool: &HostPool<'_>, what: &MinMax, most: f64) -> Option<f64> {
    if pool.hosts() > BOUND_HOSTS || most <= 0.0 {
        return None;
    }
    let mut levels = Levels { pool, what, width: most / BINS as f64, edges: Vec::new() };
    if pool.hosts() <= ROOTS_HOSTS {
        let pairs = (0..pool.hosts()).flat_map(|from| (0..pool.hosts()).map(move |to| (from, to)));
        levels.edges = pairs.map(|(from, to)| levels.edge(from, to)).collect();
    }
    let roots: Vec<Option<usize>> = match what.root {
        Some(root) => vec![Some(root)],
        None if pool.hosts() <= ROOTS_HOSTS => (0..pool.hosts()).map(Some).collect(),
        // Each host of the first level gets the best of all roots.
        None => vec![None],
    };
    let least = roots.into_iter().map(|root| levels.bound(root)).fold(f64::INFINITY, f64::min);
    Some(least.min(most))
}

/// The bounds of all hosts, level by level.
struct Levels<'a> {
    pool: &'a HostPool<'a>,
    what: &'a MinMax,
    width: f64,
    /// The shares of all edges, of a small pool whose roots are considered one by one. Those of the
    /// largest pool would take 100 MB.
    edges: Vec<Shares>,
}

impl Levels<'_> {
    fn bound(&self, root: Option<usize>) -> f64 {
        let shape = self.what.shape;
        let is_root = |host: usize| root.is_none_or(|root| root == host);
        let start = |host| if is_root(host) { vec![1.0] } else { Vec::new() };
        let mut level: Vec<Shares> = (0..self.pool.hosts()).map(start).collect();
        for hop in 0..shape.depth {
            let copies = if hop == 0 { 1 } else { 1 + self.what.aunts() };
            let reached = |to| {
                if root == Some(to) { Vec::new() } else { self.reach_host(&level, to, copies) }
            };
            level = (0..self.pool.hosts()).map(reached).collect();
        }
        let mut bins: Vec<usize> =
            level.iter().filter_map(|shares| self.percentile(shares)).collect();
        bins.sort_unstable();
        let last = bins.get(shape.leaves().len() - 1);
        last.map_or(f64::INFINITY, |&bin| bin as f64 * self.width)
    }

    /// The shares of a host that gets `copies` copies from the best hosts of the level above.
    fn reach_host(&self, above: &[Shares], to: usize, copies: usize) -> Shares {
        // By bin, the shares by this time of the best sources, the greatest first.
        let mut best = vec![vec![0.0; copies]; BINS];
        for (from, shares) in above.iter().enumerate() {
            if from == to || shares.is_empty() {
                continue;
            }
            let way = match self.edges.get(from * self.pool.hosts() + to) {
                Some(edge) => add_times(shares, edge),
                None => add_times(shares, &self.edge(from, to)),
            };
            let mut by_now = 0.0;
            for (best, share) in best.iter_mut().zip(way) {
                by_now += share;
                let place = best.partition_point(|&other| other >= by_now);
                if place < copies {
                    best[place..].rotate_right(1);
                    best[place] = by_now;
                }
            }
        }
        let mut before = 0.0;
        let by_bin = |best: Vec<f64>| {
            let by_now = 1.0 - best.iter().map(|share| 1.0 - share).product::<f64>();
            let now = (by_now - before).max(0.0);
            before = by_now.max(before);
            now
        };
        best.into_iter().map(by_bin).collect()
    }

    /// The shares of one edge by bins; no share for an edge that cannot be used.
    fn edge(&self, from: usize, to: usize) -> Shares {
        let mut shares = vec![0.0; BINS];
        let stats = self.pool.edge(from, to);
        let Some((curve, loss)) = stats.and_then(|stats| Some((Curve::of(stats)?, stats.loss)))
        else {
            return shares;
        };
        let share = (1.0 - f64::from(loss).max(0.0)) / f64::from(PARTS);
        for part in 0..PARTS {
            let us = curve.at(f64::from(part) / f64::from(PARTS));
            if let Some(bin) = shares.get_mut((us / self.width) as usize) {
                *bin += share;
            }
        }
        shares
    }

    /// The bin in which the percentile of these shares lies.
    fn percentile(&self, shares: &Shares) -> Option<usize> {
        let mut by_now = 0.0;
        shares.iter().position(|share| {
            by_now += share;
            by_now >= self.what.share - ROUNDING
        })
    }
}

/// Sums of 2,048 parts are wrong by less than this.
const ROUNDING: f64 = 1e-9;

/// The shares of a sum of two independent times.
fn add_times(a: &Shares, b: &Shares) -> Shares {
    let mut sum = vec![0.0; BINS];
    for (i, &first) in a.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        let used = b.iter().enumerate().take(BINS - i).filter(|(_, share)| **share > 0.0);
        used.for_each(|(j, second)| sum[i + j] += first * second);
    }
    sum
}
