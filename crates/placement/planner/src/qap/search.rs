//! Searches for a good permutation within a given effort: FAQ, followed by iterated tabu search.
//!
//! FAQ ends a few percent above the best cost, and a descent by swaps ends in the nearest local
//! minimum. Tabu search leaves the minimum. In each scan of all pairs it makes the best swap, even
//! when the swap raises the cost. For a random time it then forbids to put the two hosts back,
//! unless that gives the best permutation so far. Many short walks find better permutations than
//! one long walk. The first walks start from random permutations, and later walks from the best
//! permutations found. Two of these are crossed, which helps with structured instances, whose good
//! permutations are similar. Or some places of a permutation are changed at random, which helps
//! with instances without structure. The effort is counted in scans of all pairs and not in time,
//! so a seed gives the same answer on any machine.
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

/// The effort of a search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SearchEffort {
    /// Limit of scans of all pairs. Each swap takes one scan.
    pub looks: u64,
    /// Settings of FAQ for the first permutation.
    pub faq: Settings,
}

impl SearchEffort {
    /// An effort that takes at most the time of 30 starts of scipy's FAQ for up to 100 hosts
    /// (docs/results/qap.md). FAQ is fast on sparse instances, and a scan takes twice as long on
    /// asymmetric instances. From 300 hosts on the number of scans falls, so that the time does not
    /// grow with the square.
    pub fn standard(instance: &Instance) -> Self {
        let n = instance.size as u64;
        let looks = if instance.is_sparse() { 4_000 + 330 * n } else { 700 * n };
        let looks = if instance.symmetrised().is_some() { 2 * looks } else { looks };
        let most = if n < 300 { 50_000 } else { 50_000 * 300 * 300 / (n * n) };
        Self { looks: looks.min(most), faq: Settings::default() }
    }
}

/// Runs FAQ, then tabu search from its result, with this effort.
pub fn search(instance: &Instance, effort: &SearchEffort, prng: &mut Prng) -> Solution {
    let mut solution = faq(instance, &effort.faq, prng);
    let n = instance.size;
    // Two places have a single pair, which the descent has tried. One place has no pair.
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

/// A permutation of the pool with some places changed at random.
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

/// Number of permutations in the pool. At 100 hosts, five permutations with shaking gave better
/// results than eight without. The two changes were not measured separately.
const POOL: usize = 5;
/// Walks without a new permutation for the pool, after which all permutations except the best are
/// drawn again. By then the permutations of the pool are nearly equal.
const IDLE_MAX: u32 = 12;

/// Scans without a new best of the walk, after which the walk ends.
fn patience(n: usize) -> u64 {
    if n < 60 { 6 * n as u64 } else { 3 * n as u64 }
}

/// Inserts a permutation into the pool by its cost, when it is new and good enough.
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

/// Crosses two permutations of the pool: keeps the hosts on which both agree, and fills the other
/// places with the host of either where it is still free.
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

/// The state of a tabu search.
pub(super) struct Walk {
    n: usize,
    /// The present permutation.
    pub swaps: Swaps,
    cost: f64,
    /// The best permutation since the start.
    pub best: Vec<usize>,
    best_cost: f64,
    /// Number of the scan until which a place may not take a host again, at `place * n + host`.
    tabu: Vec<f64>,
    /// Number of the scan until which a pair may not be swapped, in the layout of `Swaps`: the
    /// lesser of the numbers of its two places. A pair of places without load may never be swapped:
    /// the swap changes nothing, and would be the best swap in every local minimum.
    until: Vec<f64>,
    /// Places without any load.
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

    /// Allows all swaps except the useless swaps of places without load.
    fn allow_all(&mut self) {
        self.tabu.fill(0.0);
        for (row, &silent) in self.until.chunks_exact_mut(self.n).zip(&self.silent) {
            for (until, &other) in row.iter_mut().zip(&self.silent) {
                *until = if silent && other { f64::INFINITY } else { 0.0 };
            }
        }
    }

    /// Swaps until `patience` scans brought no new best. Returns whether the walk found a new best.
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

    /// Makes a swap, and forbids its reversal for some scans.
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

    /// The best swap among the allowed swaps and the swaps that give a new best.
    fn best_allowed(&mut self) -> Option<Swap> {
        // Equal changes are frequent when flows are small integers. The scan begins at a random
        // row, so that the first of several equal swaps differs from scan to scan.
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

/// The least allowed change of a row.
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
