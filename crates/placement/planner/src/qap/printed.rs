//! The FAQ that the TreeBuilder thesis prints (Algorithm 1 and listing A.9), kept for comparison.
//!
//! Its step is P + a Q where Frank-Wolfe's is P + a (Q - P), both in the line search and in the
//! update. With costs that are never negative, f(P + a Q) grows with a, so the search for the best
//! a in [0, 1] ends at the lower bound, or rather at the tolerance of the method that looks for it
//! (Brent's, to 1e-5: about 6e-6). Each step then moves P by 6e-6 sqrt(n). At n = 25 that is 3e-5:
//! below an epsilon of 1e-4, so the run stops after one step; above 2.2e-5 and 1.7e-5, so those
//! runs go on to their iteration limit. P stays nearly flat, and what is read off in the end is
//! little more than the first assignment. Use [`faq`](mod@super::faq).

use super::faq::Descent;
use super::{Instance, Solution};

/// Tolerance of the line search: that of the bounded scalar minimiser the listing calls.
const TOLERANCE: f64 = 1e-5;

/// Limit of the evaluations of the line search, as in the listing.
const EVALUATIONS_MAX: u32 = 500;

/// Runs the printed variant from the barycentre, until a step moves P by less than `epsilon` or the
/// limit of iterations is reached.
pub fn printed(instance: &Instance, epsilon: f64, iterations_max: u64) -> Solution {
    let symmetrised = instance.symmetrised();
    let symmetric = symmetrised.is_some();
    let work = symmetrised.as_ref().unwrap_or(instance);
    let mut descent = Descent::new(work, symmetric);
    descent.start_at_barycentre();
    let (mut iterations, mut converged) = (0, 0);
    loop {
        let (q, slope, corner) = descent.corner();
        let cost = descent.cost;
        let a = bounded_minimum(|a| cost + a * slope + a * a * corner);
        descent.mix(1.0, a, &q);
        descent.cost = cost + a * slope + a * a * corner;
        iterations += 1;
        if a * (work.size as f64).sqrt() < epsilon {
            converged = 1;
            break;
        }
        // The listing counts after the test, so it makes one step more than its limit.
        if iterations > iterations_max {
            break;
        }
        descent.climb(a, &q);
    }
    let permutation = descent.projection();
    let cost = instance.cost(&permutation);
    Solution { permutation, cost, iterations, converged, swaps: 0 }
}

/// Brent's minimum of a function on [0, 1]: parabolas where they help, golden sections else
/// (R. P. Brent, "Algorithms for minimization without derivatives", 1973, chapter 5).
fn bounded_minimum(f: impl Fn(f64) -> f64) -> f64 {
    let golden = 0.5 * (3.0 - 5.0_f64.sqrt());
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    let mut x = low + golden * (high - low);
    // The best point, the second best point, and the second best point of the step before.
    let (mut w, mut v) = (x, x);
    let mut fx = f(x);
    let (mut fw, mut fv) = (fx, fx);
    let (mut step, mut step_before) = (0.0_f64, 0.0_f64);
    for _ in 1..EVALUATIONS_MAX {
        let middle = 0.5 * (low + high);
        let tolerance = f64::EPSILON.sqrt() * x.abs() + TOLERANCE / 3.0;
        if (x - middle).abs() <= 2.0 * tolerance - 0.5 * (high - low) {
            break;
        }
        let mut parabolic = false;
        if step_before.abs() > tolerance {
            let r = (x - w) * (fx - fv);
            let q = (x - v) * (fx - fw);
            let p = (x - v) * q - (x - w) * r;
            let q = 2.0 * (q - r);
            let (p, q) = if q > 0.0 { (-p, q) } else { (p, -q) };
            let allowed = (0.5 * q * step_before).abs();
            if p.abs() < allowed && p > q * (low - x) && p < q * (high - x) {
                parabolic = true;
                (step_before, step) = (step, p / q);
                let at = x + step;
                if at - low < 2.0 * tolerance || high - at < 2.0 * tolerance {
                    step = if middle >= x { tolerance } else { -tolerance };
                }
            }
        }
        if !parabolic {
            step_before = if x >= middle { low - x } else { high - x };
            step = golden * step_before;
        }
        let at = x + step.abs().max(tolerance).copysign(if step >= 0.0 { 1.0 } else { -1.0 });
        let value = f(at);
        if value <= fx {
            if at >= x {
                low = x
            } else {
                high = x
            }
            (v, fv, w, fw, x, fx) = (w, fw, x, fx, at, value);
        } else {
            if at < x {
                low = at
            } else {
                high = at
            }
            if value <= fw || w == x {
                (v, fv, w, fw) = (w, fw, at, value);
            } else if value <= fv || v == x || v == w {
                (v, fv) = (at, value);
            }
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::bounded_minimum;

    #[test]
    fn the_line_search_finds_a_minimum_inside() {
        assert!((bounded_minimum(|x| (x - 0.3) * (x - 0.3)) - 0.3).abs() < 1e-5);
        assert!((bounded_minimum(|x| (x - 0.7).abs()) - 0.7).abs() < 1e-5);
        assert!(bounded_minimum(|x| -x) > 1.0 - 1e-5);
    }

    #[test]
    fn of_a_growing_function_it_returns_its_floor_of_6e_6() {
        // Thesis, listing A.9: the lower end of the line search, which keeps the printed variant
        // from moving.
        let floor = bounded_minimum(|x| 1.0 + x + x * x);
        assert!((5.9e-6..6.1e-6).contains(&floor), "{floor}");
    }
}
