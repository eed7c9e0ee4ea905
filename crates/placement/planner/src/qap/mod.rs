//! Quadratic assignment: puts hosts on places when pairs of places have a load between them.
//!
//! Given matrices A (how much place i sends to place j) and B (what it costs from host k to host
//! l), find the permutation p that minimises
//!
//! ```text
//!   cost(p) = sum over i, j of A[i][j] * B[p(i)][p(j)]
//! ```
//!
//! The problem is NP-hard, and a descent by swaps alone stops in the first local minimum. The
//! module has these parts:
//!
//! - [`file`](mod@file): instances and solutions in QAPLIB's text form;
//! - [`assignment`]: the linear assignment that every step of FAQ solves;
//! - [`faq`](mod@faq): Frank-Wolfe over doubly stochastic matrices (Vogelstein et al., "Fast
//!   approximate quadratic programming for large (brain) graph matching"), with the correct step
//!   P + a (Q - P) and an exact line search;
//! - [`printed`](mod@printed): the variant that the TreeBuilder thesis prints, whose step P + a Q
//!   hardly moves;
//! - [`swaps`]: the change of the cost by every swap of two hosts, kept up to date in O(n^2);
//! - [`search`](mod@search): FAQ followed by iterated tabu search, within a given effort.
//!
//! ```
//! use evenfall_core::Prng;
//! use evenfall_placement_planner::qap::{Instance, search::{self, SearchEffort}};
//!
//! // Three places in a line, and three hosts of which 0 and 2 are far apart.
//! let line = vec![0., 1., 0., 1., 0., 1., 0., 1., 0.];
//! let delay = vec![0., 1., 9., 1., 0., 1., 9., 1., 0.];
//! let instance = Instance::new(3, line, delay).unwrap();
//! let solution = search::search(&instance, &SearchEffort::standard(&instance), &mut Prng::new(1));
//! assert_eq!((solution.cost, solution.permutation[1]), (4.0, 1));
//! ```

/// Share of cells below which a matrix counts as sparse.
const SPARSE_SHARE: f64 = 0.15;

pub mod assignment;
pub mod faq;
pub mod file;
mod gradient;
mod lanes;
pub mod printed;
mod product;
pub mod search;
pub mod swaps;

#[cfg(test)]
mod generator;
#[cfg(test)]
mod tests;

/// Limit of the places and hosts of an instance. Two matrices of 10,000^2 cells take 1.6 GB.
pub const SIZE_MAX: usize = 10_000;

/// The largest value of a cell. The cost of an assignment adds up to [`SIZE_MAX`]^2 products of two
/// cells each, and stays a finite number.
pub const CELL_MAX: f64 = 1e100;

/// Two n x n matrices, row by row.
#[derive(Clone, PartialEq, Debug)]
pub struct Instance {
    size: usize,
    a: Vec<f64>,
    b: Vec<f64>,
}

/// Reasons why two matrices are not an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstanceError {
    /// The size is 0 or above [`SIZE_MAX`].
    #[error("size {0}: must be 1 to {SIZE_MAX}")]
    Size(usize),
    /// A matrix has not n x n cells.
    #[error("matrix {matrix} has {found} cells; its size asks for {needed}")]
    Cells {
        /// `'A'` or `'B'`.
        matrix: char,
        /// Cells that the size asks for.
        needed: usize,
        /// Cells there are.
        found: usize,
    },
    /// A cell is not a number, or beyond +-[`CELL_MAX`].
    #[error(
        "matrix {matrix}, row {}, column {}: not a number within +-{CELL_MAX:e}",
        .row + 1,
        .column + 1
    )]
    Cell {
        /// `'A'` or `'B'`.
        matrix: char,
        /// From 0.
        row: usize,
        /// From 0.
        column: usize,
    },
}

impl Instance {
    /// Takes the two matrices, row by row.
    ///
    /// # Errors
    /// When the size is out of range, a matrix has not n x n cells, or a cell is beyond
    /// [`CELL_MAX`].
    pub fn new(size: usize, a: Vec<f64>, b: Vec<f64>) -> Result<Self, InstanceError> {
        if size == 0 || size > SIZE_MAX {
            return Err(InstanceError::Size(size));
        }
        for (matrix, cells) in [('A', &a), ('B', &b)] {
            if cells.len() != size * size {
                let (needed, found) = (size * size, cells.len());
                return Err(InstanceError::Cells { matrix, needed, found });
            }
            let wrong = |cell: &f64| !(-CELL_MAX..=CELL_MAX).contains(cell);
            if let Some(at) = cells.iter().position(wrong) {
                let (row, column) = (at / size, at % size);
                return Err(InstanceError::Cell { matrix, row, column });
            }
        }
        Ok(Self { size, a, b })
    }

    /// Number of rows of either matrix, n.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The first matrix, row by row: loads between places.
    pub fn a(&self) -> &[f64] {
        &self.a
    }

    /// The second matrix, row by row: costs between hosts.
    pub fn b(&self) -> &[f64] {
        &self.b
    }

    /// The sum over i, j of `A[i][j] * B[p(i)][p(j)]`.
    ///
    /// # Panics
    /// When `permutation` is shorter than the instance or names hosts beyond it.
    pub fn cost(&self, permutation: &[usize]) -> f64 {
        let n = self.size;
        let row_cost = |i: usize| -> f64 {
            let there = &self.b[permutation[i] * n..][..n];
            let here = &self.a[i * n..][..n];
            here.iter().zip(&permutation[..n]).map(|(&a, &p)| a * there[p]).sum()
        };
        (0..n).map(row_cost).sum()
    }

    /// The same problem with the matrices' roles exchanged: its solutions are the inverses.
    fn exchanged(&self) -> Self {
        Self { size: self.size, a: self.b.clone(), b: self.a.clone() }
    }

    /// Whether few pairs of places have a load, so that adding rows is faster than a dense product.
    fn is_sparse(&self) -> bool {
        let cells = self.a.iter().filter(|cell| **cell != 0.0).count();
        (cells as f64) < SPARSE_SHARE * self.a.len() as f64
    }

    /// The same costs from symmetric matrices, when one of the two is symmetric already.
    ///
    /// The antisymmetric part of the other matrix then contributes nothing to the cost, because its
    /// partner is symmetric. Without this part, every product and every swap takes half the time.
    fn symmetrised(&self) -> Option<Self> {
        let n = self.size;
        if !symmetric(n, &self.a) && !symmetric(n, &self.b) {
            return None;
        }
        let half = |m: &[f64]| -> Vec<f64> {
            (0..n * n).map(|at| 0.5 * (m[at] + m[at % n * n + at / n])).collect()
        };
        Some(Self { size: n, a: half(&self.a), b: half(&self.b) })
    }
}

/// A solution of an instance.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// `permutation[i]` is the host on place i.
    pub permutation: Vec<usize>,
    /// The cost of the permutation, summed from the matrices.
    pub cost: f64,
    /// Frank-Wolfe steps taken, over all starts.
    pub iterations: u64,
    /// Starts of Frank-Wolfe whose step fell below epsilon.
    pub converged: u32,
    /// Swaps made after Frank-Wolfe.
    pub swaps: u64,
}

/// Whether a matrix equals its transpose.
fn symmetric(n: usize, m: &[f64]) -> bool {
    (0..n).all(|i| (0..i).all(|j| m[i * n + j] == m[j * n + i]))
}

/// The inverse permutation.
pub fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut back = vec![0; permutation.len()];
    for (from, &to) in permutation.iter().enumerate() {
        back[to] = from;
    }
    back
}

/// A matrix's rows as its columns.
fn transposed(n: usize, m: &[f64]) -> Vec<f64> {
    (0..n * n).map(|at| m[at % n * n + at / n]).collect()
}
