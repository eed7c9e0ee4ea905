//! Instances of the kinds that QAPLIB is made of, from a seed.
//!
//! Four instances are too few for tuning. The generated instances follow the published rules of the
//! families: uniform instances without structure, grids, clustered instances like real ones, and
//! trees, which are the problem of multicast.

use super::Instance;
use evenfall_core::{Prng, math};

/// A family of instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Both matrices symmetric and uniform from 0 to 99 (Taillard 1991, the "a" instances).
    Uniform,
    /// As `Uniform`, but not symmetric.
    UniformAsymmetric,
    /// Manhattan distances on a grid, sparse small flows (Nugent, Vollmann, Ruml 1968).
    Grid,
    /// Euclidean distances of clustered points, flows over many magnitudes, not symmetric
    /// (Taillard 1995, "Comparison of iterative searches", section 3.2; the "b" instances).
    Clustered,
    /// The flow is a random tree with weights, the distances uniform (Christofides and
    /// Benavent 1989).
    Tree,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 5] =
        [Self::Uniform, Self::UniformAsymmetric, Self::Grid, Self::Clustered, Self::Tree];
}

/// Makes an instance.
///
/// # Panics
/// When `size` is 0 or above [`SIZE_MAX`](super::SIZE_MAX).
pub fn generate(family: Family, size: usize, prng: &mut Prng) -> Instance {
    let (a, b) = match family {
        Family::Uniform => (uniform(size, true, prng), uniform(size, true, prng)),
        Family::UniformAsymmetric => (uniform(size, false, prng), uniform(size, false, prng)),
        Family::Grid => (grid(size), sparse_flow(size, prng)),
        Family::Clustered => (clusters(size, prng), steep_flow(size, prng)),
        Family::Tree => (tree_flow(size, prng), uniform(size, true, prng)),
    };
    Instance::new(size, a, b).expect("the rules give finite cells")
}

/// Fills a matrix with an empty diagonal. With `symmetric`, the upper half is copied to the lower
/// half.
fn matrix(n: usize, symmetric: bool, mut cell: impl FnMut(usize, usize) -> f64) -> Vec<f64> {
    let mut cells = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..n {
            cells[i * n + j] = match () {
                () if i == j => 0.0,
                () if symmetric && j < i => cells[j * n + i],
                () => cell(i, j),
            };
        }
    }
    cells
}

fn uniform(n: usize, symmetric: bool, prng: &mut Prng) -> Vec<f64> {
    matrix(n, symmetric, |_, _| prng.below(100) as f64)
}

/// Steps between the cells of the grid nearest to a square.
fn grid(n: usize) -> Vec<f64> {
    let width = (n as f64).sqrt().ceil() as usize;
    let apart =
        |i: usize, j: usize| (i % width).abs_diff(j % width) + (i / width).abs_diff(j / width);
    matrix(n, true, |i, j| apart(i, j) as f64)
}

/// Flows in which a third of the pairs have no flow, and small flows are more likely than large
/// ones.
fn sparse_flow(n: usize, prng: &mut Prng) -> Vec<f64> {
    matrix(n, true, |_, _| match prng.below(3) {
        0 => 0.0,
        _ => (prng.unit() * prng.unit() * 11.0).floor(),
    })
}

/// Points in small discs, and the small discs in a large disc.
fn clusters(n: usize, prng: &mut Prng) -> Vec<f64> {
    let mut points = Vec::new();
    while points.len() < n {
        let (angle, far) = (prng.unit() * core::f64::consts::TAU, prng.unit() * 1000.0);
        let (sine, cosine) = math::sin_cos(angle);
        let (x, y) = (far * cosine, far * sine);
        for _ in 0..=prng.below(n as u64 / 4 + 1) {
            let (angle, near) = (prng.unit() * core::f64::consts::TAU, prng.unit() * 100.0);
            let (sine, cosine) = math::sin_cos(angle);
            points.push((x + near * cosine, y + near * sine));
        }
    }
    matrix(n, true, |i, j| {
        let ((x, y), (u, v)) = (points[i], points[j]);
        (math::square(x - u) + math::square(y - v)).sqrt().round()
    })
}

/// Powers of ten from far below one, which vanish, to 10^5.
fn steep_flow(n: usize, prng: &mut Prng) -> Vec<f64> {
    matrix(n, false, |_, _| math::pow(10.0, -10.0 + 15.0 * prng.unit()).floor())
}

fn tree_flow(n: usize, prng: &mut Prng) -> Vec<f64> {
    let mut cells = vec![0.0; n * n];
    for i in 1..n {
        let parent = prng.below(i as u64) as usize;
        let weight = 1.0 + prng.below(99) as f64;
        cells[i * n + parent] = weight;
        cells[parent * n + i] = weight;
    }
    cells
}
