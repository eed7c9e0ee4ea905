//! The best permutation within a given effort: FAQ, then iterated tabu search.
//!
//! FAQ sees the whole and ends near a good place, but a few percent above the best; a descent by
//! swaps ends in the nearest hollow. Tabu search walks on out of it: at every look it makes the
//! best swap of all, though it raise the cost, and forbids for a random while to put the two hosts
//! back where they were, unless that gives the best permutation so far. Many short walks do better
//! than a long one. They start from random permutations at first, then from the best few that were
//! found: from two of them crossed, which serves instances with structure, whose good permutations
//! lie together, or from one with some places shaken, which serves those without. The effort is
//! counted in looks at all pairs, not in time, so a seed gives one answer on any machine.
//!
//! Sources: E. Taillard, "Robust taboo search for the quadratic assignment problem" (1991), for
//! the neighbourhood and the random tenure; U. Benlic and J.-K. Hao, "Memetic search for the
//! quadratic assignment problem" (2015), for the uniform crossing and the small pool; A.
//! Misevicius, "An implementation of the iterated tabu search algorithm for the quadratic
//! assignment problem" (2012), for walks and shakes by turns.

use super::faq::{Settings, faq};
use super::lanes::widest;
use super::swaps::{Swap, Swaps};
use super::{Instance, Solution};
use evenfall_core::Prng;

/// Lanes of the sweep over all pairs.
const LANES: usize = 4;

/// What a search may spend.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Effort {
    /// Looks at all pairs: one per swap.
    pub looks: u64,
    /// How FAQ is run for the first permutation.
    pub faq: Settings,
}

impl Effort {
    /// Fits into the time of 30 starts of scipy's FAQ up to 100 hosts (docs/results/qap.md): that
    /// is quick where few places talk, and a look costs twice as much where rows and columns
    /// differ. From 300 on fewer looks, so that the time does not grow with the square.
    pub fn standard(instance: &Instance) -> Self {
        let n = instance.size as u64;
        let looks = if instance.is_sparse() { 4_000 + 330 * n } else { 700 * n };
        let looks = if instance.symmetrised().is_some() { 2 * looks } else { looks };
        let most = if n < 300 { 50_000 } else { 50_000 * 300 * 300 / (n * n) };
        Self { looks: looks.min(most), faq: Settings::default() }
    }
}

/// Runs FAQ, then tabu search from what it found, for this effort.
pub fn search(instance: &Instance, effort: &Effort, prng: &mut Prng) -> Solution {
    let mut solution = faq(instance, &effort.faq, prng);
    let n = instance.size;
    // Two places have one pair: the descent has looked at it. One place has none.
    if n < 3 || effort.looks == 0 {
        return solution;
    }
    let mut walk = Walk::new(instance, solution.permutation.clone(), prng.fork(0));
    let mut left = effort.looks;
    let mut pool: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut idle = 0;
    while left > 0 {
        if pool.len() >= POOL {
            let child = if walk.prng.chance(0.5) {
                cross(&pool, &mut walk.prng)
            } else {
                shaken(&pool, &mut walk.prng)
            };
            walk.restart(&child);
        } else if !pool.is_empty() {
            let mut random: Vec<usize> = (0..n).collect();
            walk.prng.shuffle(&mut random);
            walk.restart(&random);
        }
        walk.run(patience(n), &mut left);
        idle = if admit(&mut pool, walk.best_cost, &walk.best) { 0 } else { idle + 1 };
        if idle > IDLE_MAX {
            idle = 0;
            pool.truncate(1);
        }
        if pool[0].0 < solution.cost {
            solution.cost = pool[0].0;
            solution.permutation.copy_from_slice(&pool[0].1);
        }
    }
    solution.swaps += walk.swaps.count();
    solution.cost = instance.cost(&solution.permutation);
    solution
}

/// One of the pool with some places changed at random.
fn shaken(pool: &[(f64, Vec<usize>)], prng: &mut Prng) -> Vec<usize> {
    let one = prng.below(pool.len() as u64) as usize;
    let mut child = pool[one].1.clone();
    let n = child.len();
    let places = 3 + prng.below(n as u64 / 3 + 1) as usize;
    let mut order: Vec<usize> = (0..n).collect();
    prng.shuffle(&mut order);
    for pair in order[..places.min(n)].windows(2) {
        child.swap(pair[0], pair[1]);
    }
    child
}

/// Permutations of the pool. Five, with shakes, did better than eight without at 100 hosts; the two
/// were not tried apart.
const POOL: usize = 5;
/// Walks without a new one for the pool, after which all but the best are drawn anew: the pool has
/// become all alike by then.
const IDLE_MAX: u32 = 12;

/// Looks without a new best of its own after which a walk ends.
fn patience(n: usize) -> u64 {
    if n < 60 { 6 * n as u64 } else { 3 * n as u64 }
}

/// Puts a permutation in its order into the pool, when it is new and good enough.
fn admit(pool: &mut Vec<(f64, Vec<usize>)>, cost: f64, permutation: &[usize]) -> bool {
    if pool.iter().any(|(_, other)| other == permutation) {
        return false;
    }
    let at = pool.partition_point(|(other, _)| *other <= cost);
    if at == POOL {
        return false;
    }
    pool.truncate(POOL - 1);
    pool.insert(at.min(pool.len()), (cost, permutation.to_vec()));
    true
}

/// A child of two of the pool: what they agree on, then either's host where it is still free.
fn cross(pool: &[(f64, Vec<usize>)], prng: &mut Prng) -> Vec<usize> {
    let one = prng.below(pool.len() as u64) as usize;
    let two = (one + 1 + prng.below(pool.len() as u64 - 1) as usize) % pool.len();
    let (one, two) = (&pool[one].1, &pool[two].1);
    let n = one.len();
    let mut child = vec![usize::MAX; n];
    let mut used = vec![false; n];
    let mut order: Vec<usize> = (0..n).collect();
    prng.shuffle(&mut order);
    for &i in &order {
        if one[i] == two[i] {
            child[i] = one[i];
            used[one[i]] = true;
        }
    }
    for &i in &order {
        if child[i] == usize::MAX {
            let (a, b) = if prng.chance(0.5) { (one[i], two[i]) } else { (two[i], one[i]) };
            if let Some(host) = [a, b].into_iter().find(|&host| !used[host]) {
                child[i] = host;
                used[host] = true;
            }
        }
    }
    let mut rest: Vec<usize> = (0..n).filter(|&host| !used[host]).collect();
    prng.shuffle(&mut rest);
    for cell in child.iter_mut().filter(|cell| **cell == usize::MAX) {
        *cell = rest.pop().expect("as many hosts as places are left");
    }
    child
}

/// Tabu search on its way.
pub(super) struct Walk {
    n: usize,
    /// Where it stands.
    pub swaps: Swaps,
    cost: f64,
    /// The best permutation since the start.
    pub best: Vec<usize>,
    best_cost: f64,
    /// Look up to which a place may not take a host again: `place * n + host`.
    tabu: Vec<f64>,
    /// Look up to which a pair may not swap, the lesser of its two: as `Swaps` lays pairs out. For
    /// ever, when neither place talks: such a swap changes nothing, and would be the best of all
    /// at the bottom of every hollow.
    until: Vec<f64>,
    /// Places that talk to nobody.
    silent: Vec<bool>,
    look: f64,
    prng: Prng,
}

impl Walk {
    /// Starts at a permutation, with nothing forbidden.
    pub fn new(instance: &Instance, permutation: Vec<usize>, prng: Prng) -> Self {
        let n = instance.size;
        let cost = instance.cost(&permutation);
        let swaps = Swaps::new(instance, permutation.clone());
        let silent =
            |i: usize| (0..n).all(|k| instance.a[i * n + k] == 0.0 && instance.a[k * n + i] == 0.0);
        let mut walk = Self {
            n,
            swaps,
            cost,
            best: permutation,
            best_cost: cost,
            tabu: vec![0.0; n * n],
            until: vec![0.0; n * n],
            silent: (0..n).map(silent).collect(),
            look: 0.0,
            prng,
        };
        walk.allow_all();
        walk
    }

    /// Nothing is forbidden but what is useless.
    fn allow_all(&mut self) {
        self.tabu.fill(0.0);
        for (row, &silent) in self.until.chunks_exact_mut(self.n).zip(&self.silent) {
            for (until, &other) in row.iter_mut().zip(&self.silent) {
                *until = if silent && other { f64::INFINITY } else { 0.0 };
            }
        }
    }

    /// Swaps until so many looks brought no new best; whether there was one.
    pub fn run(&mut self, patience: u64, left: &mut u64) -> bool {
        let mut found = false;
        let mut idle = 0;
        while idle < patience && *left > 0 {
            *left -= 1;
            idle += 1;
            self.look += 1.0;
            let Some((change, u, v)) = self.best_allowed() else { continue };
            self.make(change, u, v);
            if self.cost < self.best_cost - 1e-12 * self.best_cost.abs() {
                self.best_cost = self.cost;
                self.best.copy_from_slice(self.swaps.permutation());
                found = true;
                idle = 0;
            }
        }
        found
    }

    /// Continues from another permutation, with nothing forbidden.
    fn restart(&mut self, permutation: &[usize]) {
        self.swaps.restart(permutation);
        self.cost = self.swaps.cost();
        self.best_cost = self.cost;
        self.best.copy_from_slice(permutation);
        self.allow_all();
    }

    /// Makes a swap, and forbids for a while to undo it.
    fn make(&mut self, change: f64, u: usize, v: usize) {
        let n = self.n;
        let (host_u, host_v) = (self.swaps.permutation()[u], self.swaps.permutation()[v]);
        self.swaps.swap(u, v);
        self.cost += change;
        // Taillard's tenure: uniform within 10 % of n.
        for (place, host) in [(u, host_u), (v, host_v)] {
            let tenure = (0.9 + 0.2 * self.prng.unit()) * n as f64;
            self.tabu[place * n + host] = self.look + tenure;
        }
        for moved in [u, v] {
            let hosts = self.swaps.permutation();
            for other in 0..n {
                if self.silent[moved] && self.silent[other] {
                    continue;
                }
                let there = self.tabu[moved * n + hosts[other]];
                let back = self.tabu[other * n + hosts[moved]];
                let at = moved.min(other) * n + moved.max(other);
                self.until[at] = there.min(back);
            }
        }
    }

    /// The best swap that is not forbidden, or that gives a new best.
    fn best_allowed(&mut self) -> Option<Swap> {
        // Equals are frequent where flows are small numbers: rows are looked at from a random one
        // on, so that the first of the equals is not always the same.
        let first = self.prng.below(self.n as u64 - 1) as usize;
        let aspired = self.best_cost - self.cost - 1e-9 * self.best_cost.abs().min(1.0);
        let mut best = (f64::INFINITY, 0);
        widest(
            #[inline(always)]
            || {
                for u in (first..self.n - 1).chain(0..first) {
                    let until = &self.until[u * self.n + u + 1..(u + 1) * self.n];
                    let least = least_allowed(self.swaps.deltas(u), until, self.look, aspired);
                    if least < best.0 {
                        best = (least, u);
                    }
                }
            },
        );
        let (change, u) = best;
        let until = &self.until[u * self.n + u + 1..(u + 1) * self.n];
        let allowed = |(&delta, &until): (&f64, &f64)| {
            delta == change && (until <= self.look || delta < aspired)
        };
        let mut pairs = self.swaps.deltas(u).iter().zip(until);
        let at = if first.is_multiple_of(2) {
            pairs.position(allowed)?
        } else {
            pairs.rposition(allowed)?
        };
        Some((change, u, u + 1 + at))
    }
}

/// The least change of a row that is allowed.
#[inline(always)]
fn least_allowed(deltas: &[f64], until: &[f64], look: f64, aspired: f64) -> f64 {
    let mut least = [f64::INFINITY; LANES];
    let (lanes, rest) = deltas.as_chunks::<LANES>();
    let (until_lanes, until_rest) = until.as_chunks::<LANES>();
    let one = |least: f64, delta: f64, until: f64| {
        let value = if (until <= look) | (delta < aspired) { delta } else { f64::INFINITY };
        if value < least { value } else { least }
    };
    for (deltas, until) in lanes.iter().zip(until_lanes) {
        for lane in 0..LANES {
            least[lane] = one(least[lane], deltas[lane], until[lane]);
        }
    }
    let tail = rest.iter().zip(until_rest);
    let tail = tail.fold(f64::INFINITY, |least, (&delta, &until)| one(least, delta, until));
    least.into_iter().fold(tail, |a, b| if b < a { b } else { a })
}
