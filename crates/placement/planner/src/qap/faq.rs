//! FAQ: Frank-Wolfe on doubly stochastic matrices, then the nearest permutation.
//!
//! The permutation matrices are the corners of a polytope. From a point P inside, the gradient
//! says which corner Q promises most (a linear assignment); the step goes to the best point of the
//! segment, P + a (Q - P), which is exact because the cost along it is a parabola:
//!
//! ```text
//!   f(a) = (1-a)^2 f(P) + a (1-a) <G(P), Q> + a^2 f(Q),   G(P) = A P B^T + A^T P B
//! ```
//!
//! All three numbers are at hand in O(n) and O(cells of A): f(P) and |P|^2 are carried along, so a
//! step costs one assignment and one gathered product, and the last step none. Every visited corner
//! is a permutation with a known cost. The answer is the best of these permutations and of the
//! final projection, so the result is never worse than the result of the plain algorithm.
//!
//! Source: J. T. Vogelstein et al., "Fast approximate quadratic programming for large (brain)
//! graph matching" (2014), Algorithm 1; the TreeBuilder thesis, section 2.1.3.

use super::assignment::AssignmentSolver;
use super::gradient::Gradient;
use super::search::Walk;
use super::{Instance, Solution, inverse};
use evenfall_core::Prng;

/// Sweeps of Sinkhorn's scaling for a random start: the sums are within a percent by then, and
/// Frank-Wolfe only needs a start inside.
const SINKHORN_SWEEPS: u32 = 20;

/// Steps after which f(P) is computed anew, so that roundings cannot add up in long runs.
const REFRESH_STEPS: u64 = 64;

/// Limit of the polish, in scans of all pairs without a new best. The number is enough to leave a
/// shallow local minimum, and takes little time beside the preceding steps.
const fn polish_patience(size: usize) -> u64 {
    if size < 150 { 2 } else { 1 }
}
/// Limit of the polish in all, in scans of all pairs.
const POLISH_LOOKS_MAX: u64 = 10;

/// Settings of a run of FAQ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Ends a start when a step moves P by less, in the Frobenius norm. `None`: 0.03 sqrt(n).
    pub epsilon: Option<f64>,
    /// Limit of the steps of one start.
    pub iterations_max: u64,
    /// Number of starts: first the barycentre, then random doubly stochastic matrices. 0 counts as
    /// 1.
    pub starts: u32,
    /// Whether pairs of hosts are swapped afterwards: 2-opt, and a few steps past the first local
    /// minimum.
    pub polish: bool,
}

impl Default for Settings {
    /// One start, thirty steps and the step of scipy's solver, and a polish.
    fn default() -> Self {
        Self { epsilon: None, iterations_max: 30, starts: 1, polish: true }
    }
}

/// Runs FAQ from every start and returns the cheapest permutation.
pub fn faq(instance: &Instance, settings: &Settings, prng: &mut Prng) -> Solution {
    let exchange = denser_first(instance);
    let mut work = if exchange { instance.exchanged() } else { instance.clone() };
    let symmetrised = work.symmetrised();
    let symmetric = symmetrised.is_some();
    work = symmetrised.unwrap_or(work);
    let mut descent = Descent::new(&work, symmetric);
    let mut best: Option<(f64, Vec<usize>)> = None;
    let mut total =
        Solution { permutation: Vec::new(), cost: 0.0, iterations: 0, converged: 0, swaps: 0 };
    for start in 0..settings.starts.max(1) {
        match start {
            0 => descent.start_at_barycentre(),
            _ => descent.start_at(random_doubly_stochastic(work.size, prng)),
        }
        descent.run(settings, &mut total);
        let (mut cost, mut permutation) = descent.answer();
        if settings.polish && work.size > 1 {
            let n = work.size as u64;
            let mut walk = Walk::new(&work, permutation, prng.fork(u64::from(start)));
            walk.run(polish_patience(work.size) * n, &mut (POLISH_LOOKS_MAX * n));
            total.swaps += walk.swaps.count();
            permutation = walk.best;
            cost = work.cost(&permutation);
        }
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, permutation));
        }
    }
    let (_, permutation) = best.unwrap_or_default();
    total.permutation = if exchange { inverse(&permutation) } else { permutation };
    total.cost = instance.cost(&total.permutation);
    total
}

/// Whether B has fewer non-zero cells than A. The roles of A and B are then exchanged, which saves
/// work.
fn denser_first(instance: &Instance) -> bool {
    let cells = |m: &[f64]| m.iter().filter(|cell| **cell != 0.0).count();
    cells(&instance.b) < cells(&instance.a)
}

/// The step that minimises f(a) on [0, 1], from f(P), <G(P), Q> and f(Q).
///
/// When the parabola opens downwards, the step is the better end of the interval.
pub fn step_length(cost: f64, slope: f64, corner: f64) -> f64 {
    let quadratic = cost - slope + corner;
    let linear = slope - 2.0 * cost;
    if quadratic > 0.0 {
        (-linear / (2.0 * quadratic)).clamp(0.0, 1.0)
    } else if linear + quadratic < 0.0 {
        1.0
    } else {
        0.0
    }
}

/// Halfway between the barycentre and a random matrix that Sinkhorn's scaling made doubly
/// stochastic. Row by row.
pub fn random_doubly_stochastic(n: usize, prng: &mut Prng) -> Vec<f64> {
    let mut cells: Vec<f64> = (0..n * n).map(|_| 1.0 - prng.unit()).collect();
    let mut sums = vec![0.0; n];
    for _ in 0..SINKHORN_SWEEPS {
        sums.fill(0.0);
        for row in cells.chunks_exact_mut(n) {
            let sum: f64 = row.iter().sum();
            for (cell, sum_of_column) in row.iter_mut().zip(&mut sums) {
                *cell /= sum;
                *sum_of_column += *cell;
            }
        }
        for row in cells.chunks_exact_mut(n) {
            row.iter_mut().zip(&sums).for_each(|(cell, sum)| *cell /= sum);
        }
    }
    let centre = 0.5 / n as f64;
    cells.iter_mut().for_each(|cell| *cell = 0.5 * *cell + centre);
    cells
}

/// The state of one start of Frank-Wolfe.
pub(super) struct Descent {
    n: usize,
    gradient: Gradient,
    assignment: AssignmentSolver,
    /// P, row by row.
    pub p: Vec<f64>,
    /// G(P).
    pub slope: Vec<f64>,
    /// f(P).
    pub cost: f64,
    /// |P|^2.
    norm: f64,
    best: (f64, Vec<usize>),
}

impl Descent {
    /// Prepares the products. The caller chooses a start next.
    pub fn new(instance: &Instance, symmetric: bool) -> Self {
        let n = instance.size;
        Self {
            n,
            gradient: Gradient::new(instance, symmetric),
            assignment: AssignmentSolver::new(n),
            p: Vec::new(),
            slope: Vec::new(),
            cost: 0.0,
            norm: 0.0,
            best: (f64::INFINITY, Vec::new()),
        }
    }

    /// Starts at the matrix in which all places are spread equally over all hosts.
    pub fn start_at_barycentre(&mut self) {
        self.p = vec![1.0 / self.n as f64; self.n * self.n];
        self.slope = self.gradient.of_barycentre();
        self.started();
    }

    /// Starts at this doubly stochastic matrix.
    pub fn start_at(&mut self, p: Vec<f64>) {
        self.slope = self.gradient.of(&p);
        self.p = p;
        self.started();
    }

    fn started(&mut self) {
        self.norm = self.p.iter().map(|cell| cell * cell).sum();
        self.refresh();
        self.best = (f64::INFINITY, Vec::new());
    }

    /// f(P) = <G(P), P> / 2, since f is a quadratic form.
    fn refresh(&mut self) {
        self.cost = 0.5 * self.slope.iter().zip(&self.p).map(|(g, p)| g * p).sum::<f64>();
    }

    /// Steps until a step is small or the limit of steps is reached.
    fn run(&mut self, settings: &Settings, total: &mut Solution) {
        let n = self.n as f64;
        let epsilon = settings.epsilon.unwrap_or(0.03 * n.sqrt());
        for step in 1..=settings.iterations_max {
            total.iterations += 1;
            let (q, slope, corner) = self.corner();
            if corner < self.best.0 {
                self.best = (corner, q.clone());
            }
            let a = step_length(self.cost, slope, corner);
            let overlap: f64 = self.along(&self.p, &q);
            let moved = a * (self.norm - 2.0 * overlap + n).max(0.0).sqrt();
            let stay = 1.0 - a;
            self.norm = stay * stay * self.norm + 2.0 * a * stay * overlap + a * a * n;
            self.cost = stay * stay * self.cost + a * stay * slope + a * a * corner;
            self.mix(stay, a, &q);
            if moved < epsilon {
                total.converged += 1;
                return;
            }
            if step == settings.iterations_max {
                return;
            }
            self.slope.iter_mut().for_each(|cell| *cell *= stay);
            self.gradient.add(&q, a, &mut self.slope);
            if step % REFRESH_STEPS == 0 {
                self.refresh();
            }
        }
    }

    /// The corner with the steepest descent: Q, <G(P), Q> and f(Q).
    pub fn corner(&mut self) -> (Vec<usize>, f64, f64) {
        let q = self.assignment.solve(&self.slope).to_vec();
        let slope = self.along(&self.slope, &q);
        let corner = self.gradient.cost(&q);
        (q, slope, corner)
    }

    /// <M, Q>.
    pub fn along(&self, m: &[f64], q: &[usize]) -> f64 {
        m.chunks_exact(self.n).zip(q).map(|(row, &column)| row[column]).sum()
    }

    /// P becomes `stay` P + `a` Q; its gradient is left to the caller.
    pub fn mix(&mut self, stay: f64, a: f64, q: &[usize]) {
        if stay != 1.0 {
            self.p.iter_mut().for_each(|cell| *cell *= stay);
        }
        for (row, &column) in self.p.chunks_exact_mut(self.n).zip(q) {
            row[column] += a;
        }
    }

    /// G becomes G + `a` G(Q).
    pub fn climb(&mut self, a: f64, q: &[usize]) {
        self.gradient.add(q, a, &mut self.slope);
    }

    /// The permutation that overlaps most with P.
    pub fn projection(&self) -> Vec<usize> {
        let away: Vec<f64> = self.p.iter().map(|cell| -cell).collect();
        AssignmentSolver::new(self.n).solve(&away).to_vec()
    }

    /// The best of the corners and the projection.
    fn answer(&mut self) -> (f64, Vec<usize>) {
        let projection = self.projection();
        let cost = self.gradient.cost(&projection);
        if cost <= self.best.0 { (cost, projection) } else { self.best.clone() }
    }
}
