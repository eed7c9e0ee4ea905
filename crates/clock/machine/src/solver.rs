//! Weighted least squares over the pairs of a graph, by conjugate gradients.
//!
//! The unknowns are one number for each node, zero at the reference. A pair says what the number of
//! its second node less that of its first should be. The normal equations are a Laplacian. In a
//! random graph the Laplacian is well conditioned, so twenty or thirty rounds of conjugate
//! gradients give all digits that matter. Each round is a pass over the pairs. Nothing but `+ - *
//! /` is used.

/// Rounds of conjugate gradients at most: a ring of 1,000 nodes, the worst graph that anybody would
/// choose, needs 500.
const ROUNDS: usize = 600;
/// Relative size of the remainder at which the solve ends. Offsets of milliseconds are then right
/// to nanoseconds.
const LEFT: f64 = 1e-9;

/// The equations of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Laplacian {
    reference: usize,
    pairs: Vec<(u32, u32)>,
    weights: Vec<f64>,
    diagonal: Vec<f64>,
}

impl Laplacian {
    /// All pairs weigh one.
    pub(crate) fn new(nodes: usize, reference: usize, pairs: Vec<(u32, u32)>) -> Self {
        let weights = vec![1.0; pairs.len()];
        let mut new = Self { reference, pairs, weights, diagonal: vec![0.0; nodes] };
        new.sum_weights();
        new
    }

    fn sum_weights(&mut self) {
        self.diagonal.fill(0.0);
        for (&(a, b), weight) in self.pairs.iter().zip(&self.weights) {
            self.diagonal[a as usize] += weight;
            self.diagonal[b as usize] += weight;
        }
    }

    /// Gives pairs a weight of one up to a remainder of `plain`, and beyond as the square of the
    /// remainder falls: a pair that is far off pulls less the further it is off.
    pub(crate) fn reweigh(&mut self, remainders: &[f64], plain: f64) {
        let plain = plain.max(1.0);
        for (weight, rest) in self.weights.iter_mut().zip(remainders) {
            let relative = (rest.abs() / plain).max(1.0);
            *weight = 1.0 / (relative * relative);
        }
        self.sum_weights();
    }

    /// The remainder of each pair under the solution.
    pub(crate) fn remainders(&self, wanted: &[f64], solution: &[f64]) -> Vec<f64> {
        let rest = |(&(a, b), wanted): (&(u32, u32), &f64)| {
            wanted - (solution[b as usize] - solution[a as usize])
        };
        self.pairs.iter().zip(wanted).map(rest).collect()
    }

    fn apply(&self, x: &[f64], out: &mut [f64]) {
        for (out, (x, diagonal)) in out.iter_mut().zip(x.iter().zip(&self.diagonal)) {
            *out = x * diagonal;
        }
        for (&(a, b), weight) in self.pairs.iter().zip(&self.weights) {
            out[a as usize] -= weight * x[b as usize];
            out[b as usize] -= weight * x[a as usize];
        }
        out[self.reference] = 0.0;
    }

    /// Improves `x` until the squares are least. Nodes without pairs stay at their value.
    pub(crate) fn solve(&self, wanted: &[f64], x: &mut [f64]) {
        let n = x.len();
        let mut rest = vec![0.0; n];
        for ((&(a, b), weight), left) in
            self.pairs.iter().zip(&self.weights).zip(self.remainders(wanted, x))
        {
            rest[b as usize] += weight * left;
            rest[a as usize] -= weight * left;
        }
        rest[self.reference] = 0.0;
        // Jacobi's preconditioner: liars have small weights, and their nodes small diagonals.
        let scaled = |rest: &[f64]| -> Vec<f64> {
            let divide = |(r, d): (&f64, &f64)| if *d > 0.0 { r / d } else { 0.0 };
            rest.iter().zip(&self.diagonal).map(divide).collect()
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut z = scaled(&rest);
        let mut direction = z.clone();
        let mut size = dot(&rest, &z);
        let enough = size * LEFT * LEFT;
        let mut image = vec![0.0; n];
        for _ in 0..ROUNDS {
            if size <= enough || size == 0.0 {
                return;
            }
            self.apply(&direction, &mut image);
            let step = size / dot(&direction, &image);
            for k in 0..n {
                x[k] += step * direction[k];
                rest[k] -= step * image[k];
            }
            z = scaled(&rest);
            let next = dot(&rest, &z);
            let turn = next / size;
            size = next;
            for k in 0..n {
                direction[k] = z[k] + turn * direction[k];
            }
        }
    }
}

/// The middle value; zero of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let mut values = values.to_vec();
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    #[test]
    fn consistent_pairs_are_solved_exactly() {
        let mut prng = Prng::new(1);
        for n in [2usize, 3, 50, 400] {
            let truth: Vec<f64> =
                (0..n).map(|k| if k == 1 { 0.0 } else { prng.normal() * 1e6 }).collect();
            let mut pairs: Vec<(u32, u32)> = (1..n as u32).map(|b| (b - 1, b)).collect();
            pairs.extend((0..3 * n).filter_map(|_| {
                let [a, b] = [0; 2].map(|_| prng.below(n as u64) as u32);
                (a != b).then_some((a, b))
            }));
            let wanted: Vec<f64> =
                pairs.iter().map(|&(a, b)| truth[b as usize] - truth[a as usize]).collect();
            let mut solution = vec![0.0; n];
            Laplacian::new(n, 1, pairs).solve(&wanted, &mut solution);
            for (ours, truth) in solution.iter().zip(&truth) {
                assert!((ours - truth).abs() < 1e-2, "{n} nodes: {ours}, not {truth}");
            }
        }
    }

    #[test]
    fn a_loop_s_surplus_is_spread_evenly_over_its_pairs() {
        let pairs = vec![(0, 1), (1, 2), (2, 0)];
        let wanted = [10.0, 20.0, -27.0];
        let laplacian = Laplacian::new(3, 0, pairs);
        let mut solution = vec![0.0; 3];
        laplacian.solve(&wanted, &mut solution);
        for rest in laplacian.remainders(&wanted, &solution) {
            assert!((rest - 1.0).abs() < 1e-9, "a third of the surplus of 3 each: {rest}");
        }
    }
}
