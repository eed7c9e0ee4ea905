//! How much sibling hedging can gain: the Monte Carlo of Jasper section 5.2, and the same with real
//! siblings.
//!
//! Links are uniform on (0, 1). A node at level 1 has one way. A node below takes the first of `H +
//! 1` copies. In the published recursion each copy is drawn independently from the distribution of
//! the level above, as if the aunts had no edge in common:
//!
//! ```text
//! X(1) = U,   X(d) = min over H + 1 of (X'(d-1) + U)
//! ```
//!
//! Real siblings have the same parent and the same aunts. A slow link above delays several of the
//! copies at once, so the gain is smaller.

use evenfall_core::{Prng, math};

use super::Table;

/// Depths and numbers of extra copies of the published table.
const DEPTHS: core::ops::RangeInclusive<usize> = 1..=5;
const COPIES: [usize; 5] = [0, 1, 2, 3, 4];

/// Siblings in a ring: more than copies, as with a fan-out of ten.
const RING: usize = 10;

/// One delay at depth `d` out of independent copies. Each copy is one of a pool drawn for the
/// level above; a pool per trial would cost `(H + 1)^(d - 1)` draws.
fn independent(depth: usize, hedging: usize, trials: usize, prng: &mut Prng) -> Vec<f64> {
    let mut pool: Vec<f64> = (0..trials).map(|_| prng.unit()).collect();
    for _ in 1..depth {
        let above = pool.clone();
        let mut copy = || above[prng.below(trials as u64) as usize] + prng.unit();
        for delay in &mut pool {
            *delay = (0..=hedging).map(|_| copy()).fold(f64::INFINITY, f64::min);
        }
    }
    pool
}

/// One delay at depth `d` below a chain of rings of siblings. Every node takes the first of the
/// copies that its parent and the `H` siblings before the parent send.
fn siblings(depth: usize, hedging: usize, prng: &mut Prng) -> f64 {
    // The ring of level l is the children of one node of level l - 1: all have the same sources,
    // which are that node and its aunts. So a trial needs one ring per level.
    let mut ring: Vec<f64> = (0..RING).map(|_| prng.unit()).collect();
    for _ in 1..depth {
        let copies = hedging.min(RING - 1);
        let sources: Vec<f64> = (0..=copies).map(|j| ring[(RING - j) % RING]).collect();
        for delay in &mut ring {
            *delay = sources.iter().map(|s| s + prng.unit()).fold(f64::INFINITY, f64::min);
        }
    }
    ring[0]
}

fn mean_sd(sample: &[f64]) -> (f64, f64) {
    let n = sample.len() as f64;
    let mean = sample.iter().sum::<f64>() / n;
    let variance = sample.iter().map(|x| math::square(x - mean)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

/// Mean and standard deviation by depth and hedging, of independent copies and of real siblings.
pub fn monte_carlo(trials: usize, seed: u64) -> Table {
    let mut table = Table::new(
        "Hedging with uniform(0, 1) links",
        format!("{trials} trials, seed {seed}; H counts extra copies"),
        &["D, H", "independent mean", "sd", "siblings mean", "sd"],
    );
    for depth in DEPTHS {
        for hedging in COPIES {
            let mut prng = Prng::new(seed).fork((depth * 100 + hedging) as u64);
            let (mean, sd) = mean_sd(&independent(depth, hedging, trials, &mut prng));
            let real: Vec<f64> = (0..trials).map(|_| siblings(depth, hedging, &mut prng)).collect();
            let (real_mean, real_sd) = mean_sd(&real);
            let values = [mean, sd, real_mean, real_sd].map(Some);
            table.row(format!("D{depth} H{hedging}"), values);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(table: &Table, name: &str) -> Vec<f64> {
        let row = table.rows.iter().find(|row| row.0 == name).expect("a row");
        row.1.iter().flatten().copied().collect()
    }

    #[test]
    fn jasper_section_5_published_values_are_those_of_independent_copies() {
        let table = monte_carlo(100_000, 1);
        let published = [
            ("D1 H0", 0.5, 0.3),
            ("D5 H0", 2.5, 0.6),
            ("D4 H0", 2.0, 0.6),
            ("D4 H1", 1.3, 0.4),
            ("D4 H2", 0.9, 0.3),
            ("D4 H3", 0.8, 0.2),
            ("D4 H4", 0.7, 0.2),
            ("D5 H4", 0.7, 0.2),
        ];
        for (name, mean, sd) in published {
            let ours = values(&table, name);
            assert!((ours[0] - mean).abs() < 0.06, "{name}: {ours:?}");
            assert!((ours[1] - sd).abs() < 0.06, "{name}: {ours:?}");
        }
        // Real siblings share the path above them.
        assert!((values(&table, "D4 H2")[2] - 1.0).abs() < 0.06);
        assert!((values(&table, "D5 H4")[2] - 0.8).abs() < 0.06);
    }
}
