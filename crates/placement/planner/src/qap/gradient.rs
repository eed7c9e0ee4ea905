//! The gradient of the relaxed cost, G(P) = A P B^T + A^T P B, at the least work.
//!
//! G is linear, so along a step G((1-a) P + a Q) = (1-a) G(P) + a G(Q), and Q is a permutation: Q
//! B^T is B^T with its rows in another order. So a step needs one gathered product. The formula
//! shows four products, and a line search would need two more. The two terms are one product of [A,
//! A^T] with the rows of B^T and B one above the other. When both matrices are symmetric the terms
//! are equal and half of that is left. When A is sparse, as the loads of a tree are, the product is
//! a few row additions and the assignment becomes the dearest part.

use super::lanes::widest;
use super::product::Left;
use super::{Instance, transposed};

/// The form of A that the products use.
#[derive(Clone, Debug)]
enum Flow {
    Dense(Left),
    /// For every row: the row of `right` that is added (before the gather), and its weight.
    Sparse(Vec<Vec<(usize, f64)>>),
}

/// Prepared matrices that give G(Q) for any permutation.
#[derive(Clone, Debug)]
pub(super) struct Gradient {
    n: usize,
    flow: Flow,
    /// B^T above B; or 2 B alone when both matrices are symmetric.
    right: Vec<Vec<f64>>,
    /// Pairs of places with a load: row, column, weight.
    pairs: Vec<(usize, usize, f64)>,
    room: Vec<f64>,
}

impl Gradient {
    /// Prepares the products of this instance; `symmetric` when both matrices are.
    pub fn new(instance: &Instance, symmetric: bool) -> Self {
        let (n, a) = (instance.size, &instance.a);
        let across = transposed(n, a);
        let right = if symmetric {
            vec![instance.b.iter().map(|b| 2.0 * b).collect()]
        } else {
            vec![transposed(n, &instance.b), instance.b.clone()]
        };
        let blocks: &[&[f64]] = if symmetric { &[a] } else { &[a, &across] };
        let cells = (0..n * n).filter(|&at| a[at] != 0.0);
        let pairs: Vec<_> = cells.map(|at| (at / n, at % n, a[at])).collect();
        let flow = if instance.is_sparse() {
            let row = |i: usize| {
                let cell = |k: usize| (k, blocks[k / n][i * n + k % n]);
                (0..n * blocks.len()).map(cell).filter(|&(_, weight)| weight != 0.0).collect()
            };
            Flow::Sparse((0..n).map(row).collect())
        } else {
            Flow::Dense(Left::new(n, blocks))
        };
        Self { n, flow, right, pairs, room: Vec::new() }
    }

    /// `out += scale * G(Q)` for the permutation matrix Q with Q[i][q(i)] = 1.
    pub fn add(&mut self, q: &[usize], scale: f64, out: &mut [f64]) {
        let n = self.n;
        let right = &self.right;
        let row = |k: usize| &right[k / n][q[k % n] * n..][..n];
        match &self.flow {
            Flow::Dense(left) => left.multiply(scale, row, out, &mut self.room),
            Flow::Sparse(lists) => widest(
                #[inline(always)]
                || {
                    for (list, out) in lists.iter().zip(out.chunks_exact_mut(n)) {
                        for &(k, weight) in list {
                            let weight = scale * weight;
                            for (out, cell) in out.iter_mut().zip(row(k)) {
                                *out += weight * cell;
                            }
                        }
                    }
                },
            ),
        }
    }

    /// G(P) of any matrix: by full products, for random starts.
    pub fn of(&mut self, p: &[f64]) -> Vec<f64> {
        let n = self.n;
        let left = Left::new(n, &[p]);
        let mut mixed = vec![vec![0.0; n * n]; self.right.len()];
        for (mixed, right) in mixed.iter_mut().zip(&self.right) {
            left.multiply(1.0, |k| &right[k * n..][..n], mixed, &mut self.room);
        }
        let identity: Vec<usize> = (0..n).collect();
        let mut out = vec![0.0; n * n];
        core::mem::swap(&mut self.right, &mut mixed);
        self.add(&identity, 1.0, &mut out);
        self.right = mixed;
        out
    }

    /// G of the barycentre, where every product is one of row and column sums.
    pub fn of_barycentre(&self) -> Vec<f64> {
        let n = self.n;
        let (mut sent, mut got) = (vec![0.0; n], vec![0.0; n]);
        for &(i, j, weight) in &self.pairs {
            sent[i] += weight;
            got[j] += weight;
        }
        let mut out = vec![0.0; n * n];
        for (right, sums) in self.right.iter().zip([&sent, &got]) {
            let mut columns = vec![0.0; n];
            for row in right.chunks_exact(n) {
                columns.iter_mut().zip(row).for_each(|(sum, cell)| *sum += cell);
            }
            for (out, sum) in out.chunks_exact_mut(n).zip(sums) {
                let weight = sum / n as f64;
                out.iter_mut().zip(&columns).for_each(|(out, column)| *out += weight * column);
            }
        }
        out
    }

    /// The cost of a permutation, summed over the pairs of places with a load.
    pub fn cost(&self, q: &[usize]) -> f64 {
        let n = self.n;
        // The last block is B, or twice B.
        let (last, twice) = (self.right.len() - 1, self.right.len() == 1);
        let b = &self.right[last];
        let sum: f64 = self.pairs.iter().map(|&(i, j, w)| w * b[q[i] * n + q[j]]).sum();
        if twice { 0.5 * sum } else { sum }
    }
}
