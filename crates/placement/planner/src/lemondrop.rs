//! LemonDrop chooses the tree whose edges cost least in sum.
//!
//! LemonDrop (Sachidananda 2022, as the TreeBuilder thesis describes it in section 2.1.3) asks
//! which hosts should run the places of an application. LemonDrop is given the median delay between
//! any two hosts and the load between any two places. This is a quadratic assignment: minimise the
//! delays weighted by the loads, equation 2.1. In a multicast tree every edge from parent to child
//! has the same load, and all other pairs have no load. LemonDrop therefore minimises the sum of
//! the edges' delays. A receiver waits for a path, however, and a deadline waits for the worst
//! path. LemonDrop is here for comparison, and as a start for searches that look at paths.
//!
//! The pool is larger than the tree, so the load matrix is padded with places that have no load.
//! The hosts on these places are not used.

use crate::qap::faq::{Settings, faq};
use crate::qap::printed::printed;
use crate::qap::search::{SearchEffort, search};
use crate::qap::{Instance, SIZE_MAX, Solution};
use crate::tree::{PlacedTree, TreeShape};
use evenfall_core::Prng;

/// Cost of an unusable edge, as a multiple of the worst usable edge. The cost is more than a tree
/// of up to 10,000 places could save elsewhere by using the edge.
const UNUSABLE_EDGES: f64 = 10_000.0;

/// The solver of the assignment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum AssignmentMethod {
    /// FAQ with the correct step, from one start or many, with or without a polish.
    Faq(Settings),
    /// The variant that the thesis prints, whose steps hardly move.
    Printed {
        /// Ends the run when a step moves P by less.
        epsilon: f64,
        /// Limit of steps.
        iterations_max: u64,
    },
    /// FAQ, then tabu search.
    Search(SearchEffort),
}

/// The settings of the thesis, appendix A.5.6: name, epsilon and limit of steps.
pub const LEMON_SETTINGS: [(&str, f64, u64); 3] =
    [("LEMON-1", 1e-4, 1_000), ("LEMON-2", 2.2e-5, 10_000), ("LEMON-3", 1.7e-5, 100_000)];

/// Reasons why LemonDrop has no tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LemonDropError {
    /// The matrix has not `pool` x `pool` cells.
    #[error("the delay matrix has {found} cells; the pool asks for {needed}")]
    Cells {
        /// Cells that a pool of this size needs.
        needed: usize,
        /// Cells found.
        found: usize,
    },
    /// The pool is smaller than the tree.
    #[error("the tree has {places} places, the pool {pool} hosts: {} are missing", .places - .pool)]
    PoolTooSmall {
        /// Places of the tree.
        places: usize,
        /// Hosts there are.
        pool: usize,
    },
    /// The pool is larger than an assignment may be.
    #[error("a pool of {pool} hosts: at most {SIZE_MAX} can be assigned")]
    PoolTooLarge {
        /// Hosts there are.
        pool: usize,
    },
    /// A delay is negative, or too large to be summed up.
    #[error("the delay from host {from} to {to} is negative or beyond {DELAY_MAX:e}")]
    Delay {
        /// The host that sends.
        from: usize,
        /// The host that receives.
        to: usize,
    },
    /// The root is no host of the pool.
    #[error("root {0} is not in the pool")]
    Root(usize),
    /// No tree without unusable edges was found.
    #[error("no tree avoids the unmeasured edge from host {from} to {to}")]
    Unreachable {
        /// The host that would have to feed...
        from: usize,
        /// ...this one.
        to: usize,
    },
}

/// Largest delay, in any unit. A larger value is an error.
const DELAY_MAX: f64 = 1e30;

/// The load matrix of a tree, `pool` x `pool` row by row: `packets_per_s` from every place to each
/// of its children, and 0 for the padding places.
///
/// # Panics
/// When the pool is smaller than the tree.
pub fn load_matrix(shape: TreeShape, packets_per_s: f64, pool: usize) -> Vec<f64> {
    assert!(pool >= shape.places(), "the pool has a host for every place");
    let mut load = vec![0.0; pool * pool];
    for parent in 0..shape.inner() {
        for child in shape.children(parent) {
            load[parent * pool + child] = packets_per_s;
        }
    }
    load
}

/// The input of LemonDrop.
#[derive(Clone, Copy, Debug)]
pub struct LemonDrop<'a> {
    /// Depth and fan-out.
    pub shape: TreeShape,
    /// Hosts that were measured.
    pub pool: usize,
    /// The median delay at `[from * pool + to]`, in any unit. A value that is not finite marks an
    /// unmeasured pair, which is avoided. The diagonal is not read.
    pub delays: &'a [f64],
    /// The load of each edge. All edges have the same load, so the tree does not depend on this
    /// value.
    pub packets_per_s: f64,
    /// The host that must be root; chosen when `None`.
    pub root: Option<usize>,
}

impl LemonDrop<'_> {
    /// The tree, and the assignment from which it follows.
    ///
    /// # Errors
    /// When the input is invalid, or when every tree that was found has an unmeasured edge.
    pub fn plan(
        &self,
        method: AssignmentMethod,
        prng: &mut Prng,
    ) -> Result<(PlacedTree, Solution), LemonDropError> {
        let instance = self.instance()?;
        let mut solution = match method {
            AssignmentMethod::Faq(settings) => faq(&instance, &settings, prng),
            AssignmentMethod::Printed { epsilon, iterations_max } => {
                printed(&instance, epsilon, iterations_max)
            }
            AssignmentMethod::Search(effort) => search(&instance, &effort, prng),
        };
        // The load on the root's place already puts the root there, except in the printed variant,
        // which hardly moves.
        if let Some(root) = self.root {
            let at = solution.permutation.iter().position(|&host| host == root);
            solution.permutation.swap(0, at.unwrap_or(0));
            solution.cost = instance.cost(&solution.permutation);
        }
        let places = self.shape.places();
        let tree = PlacedTree::new(self.shape, solution.permutation[..places].to_vec());
        let unusable =
            |&(from, to): &(usize, usize)| !self.delays[from * self.pool + to].is_finite();
        let hole = tree.edges().find(unusable);
        match hole {
            Some((from, to)) => Err(LemonDropError::Unreachable { from, to }),
            None => Ok((tree, solution)),
        }
    }

    /// The quadratic assignment: loads and delays.
    fn instance(&self) -> Result<Instance, LemonDropError> {
        let (pool, places) = (self.pool, self.shape.places());
        if self.delays.len() != pool * pool {
            let found = self.delays.len();
            return Err(LemonDropError::Cells { needed: pool * pool, found });
        }
        if places > pool {
            return Err(LemonDropError::PoolTooSmall { places, pool });
        }
        if pool > SIZE_MAX {
            return Err(LemonDropError::PoolTooLarge { pool });
        }
        if let Some(root) = self.root.filter(|root| *root >= pool) {
            return Err(LemonDropError::Root(root));
        }
        let pairs = (0..pool * pool).filter(|at| at / pool != at % pool);
        let mut worst = 0.0_f64;
        for at in pairs.filter(|&at| self.delays[at].is_finite()) {
            if !(0.0..=DELAY_MAX).contains(&self.delays[at]) {
                return Err(LemonDropError::Delay { from: at / pool, to: at % pool });
            }
            worst = worst.max(self.delays[at]);
        }
        let unusable = UNUSABLE_EDGES * worst.max(1.0);
        let cell = |at: usize| match self.delays[at] {
            _ if at / pool == at % pool => 0.0,
            delay if delay.is_finite() => delay,
            _ => unusable,
        };
        let mut delays: Vec<f64> = (0..pool * pool).map(cell).collect();
        // The rate has the same weight for all edges. A rate of 1 keeps the numbers near the
        // delays.
        let rate = if self.packets_per_s > 0.0 { self.packets_per_s.min(DELAY_MAX) } else { 1.0 };
        let mut load = load_matrix(self.shape, rate, pool);
        if let Some(root) = self.root {
            // The root's place gets a load to itself, which costs on every host except the wanted
            // root.
            load[0] = rate;
            let price = 2.0 * (worst.max(1.0)) * f64::from(self.shape.fanout);
            for host in (0..pool).filter(|host| *host != root) {
                delays[host * pool + host] = price;
            }
        }
        Ok(Instance::new(pool, load, delays).expect("cells were bounded above"))
    }
}

#[cfg(test)]
mod tests;
