//! The best permutation that a given effort buys: FAQ, then iterated tabu search.
//!
//! FAQ sees the whole and ends near a good place, but a few percent above the best; a descent by
//! swaps ends in the nearest hollow. Tabu search walks on out of it: at every look it makes the
//! best swap of all, though it raise the cost, and forbids for a random while to put the two hosts
//! back where they were, unless that gives the best permutation so far. When a walk finds nothing
//! new, the best is shaken by random swaps, a few at first and more each time, and walked from
//! again: small shakes serve instances with structure, whose good permutations lie together, large
//! ones those without. The effort is counted in looks at all pairs, not in time, so a seed gives
//! one answer on any machine.
//!
//! Sources: E. Taillard, "Robust taboo search for the quadratic assignment problem" (1991), for
//! the neighbourhood and the random tenure; A. Misevicius, "An implementation of the iterated tabu
//! search algorithm for the quadratic assignment problem" (2012), for walks and shakes by turns.

use super::faq::{Settings, faq};
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
    /// About half the time that 30 starts of scipy's FAQ take at this size (docs/results/qap.md).
    pub fn standard(size: usize) -> Self {
        let _ = size;
        Self { looks: 30_000, faq: Settings::default() }
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
    let mut failures = 0;
    while left > 0 {
        let found = walk.run(run_looks(n), &mut left);
        if found {
            failures = 0;
        } else {
            failures += 1;
        }
        if left > 0 {
            left -= walk.shake(strength(n, failures)).min(left);
        }
    }
    solution.swaps += walk.swaps.count();
    let cost = instance.cost(&walk.best);
    if cost < solution.cost {
        solution.cost = cost;
        solution.permutation = walk.best;
    }
    solution
}

/// Looks without a new best after which a walk ends.
fn run_looks(n: usize) -> u64 {
    10 * n as u64
}

/// Places that a shake moves, after so many walks that found nothing.
fn strength(n: usize, failures: u32) -> usize {
    let (least, most) = (3.min(n), (n / 3).max(4).min(n));
    least + failures as usize % (most - least + 1)
}

/// Tabu search on its way.
struct Walk {
    n: usize,
    swaps: Swaps,
    cost: f64,
    best: Vec<usize>,
    best_cost: f64,
    /// Look up to which a place may not take a host again: `place * n + host`.
    tabu: Vec<f64>,
    /// Look up to which a pair may not swap, the lesser of its two: as `Swaps` lays pairs out.
    until: Vec<f64>,
    look: f64,
    prng: Prng,
}

impl Walk {
    fn new(instance: &Instance, permutation: Vec<usize>, prng: Prng) -> Self {
        let n = instance.size;
        let cost = instance.cost(&permutation);
        let swaps = Swaps::new(instance, permutation.clone());
        Self {
            n,
            swaps,
            cost,
            best: permutation,
            best_cost: cost,
            tabu: vec![0.0; n * n],
            until: vec![0.0; n * n],
            look: 0.0,
            prng,
        }
    }

    /// Swaps until so many looks brought no new best; whether there was one.
    fn run(&mut self, patience: u64, left: &mut u64) -> bool {
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

    /// Random swaps of this many places from the best; how many looks' work it was.
    fn shake(&mut self, places: usize) -> u64 {
        self.swaps.restart(&self.best);
        self.cost = self.best_cost;
        let mut order: Vec<usize> = (0..self.n).collect();
        for i in 0..places {
            let other = i + self.prng.below((self.n - i) as u64) as usize;
            order.swap(i, other);
        }
        for pair in order[..places].windows(2) {
            self.look += 1.0;
            self.make(self.swaps.delta(pair[0], pair[1]), pair[0], pair[1]);
        }
        places as u64
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
                let there = self.tabu[moved * n + hosts[other]];
                let back = self.tabu[other * n + hosts[moved]];
                let at = moved.min(other) * n + moved.max(other);
                self.until[at] = there.min(back);
            }
        }
    }

    /// The best swap that is not forbidden, or that gives a new best.
    fn best_allowed(&self) -> Option<Swap> {
        let aspired = self.best_cost - self.cost - 1e-9 * self.best_cost.abs().min(1.0);
        let mut best = (f64::INFINITY, 0);
        for u in 0..self.n - 1 {
            let until = &self.until[u * self.n + u + 1..(u + 1) * self.n];
            let least = least_allowed(self.swaps.deltas(u), until, self.look, aspired);
            if least < best.0 {
                best = (least, u);
            }
        }
        let (change, u) = best;
        let until = &self.until[u * self.n + u + 1..];
        let allowed = |(&delta, &until): (&f64, &f64)| {
            delta == change && (until <= self.look || delta < aspired)
        };
        let at = self.swaps.deltas(u).iter().zip(until).position(allowed)?;
        Some((change, u, u + 1 + at))
    }
}

/// The least change of a row that is allowed.
#[inline]
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
