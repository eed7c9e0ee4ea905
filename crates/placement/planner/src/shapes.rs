//! [`Planner::plan_shape`] chooses the depth and fan-out that suit a pool, and
//! [`Planner::plan_below`] the tree below a host that stays where it is.
//!
//! Measured delays alone would always choose one hop, because a way over another machine is
//! seldom shorter than the way to the receiver. What makes a wide tree slow is the parent: it sends
//! its copies one after another. A shape therefore costs
//!
//! ```text
//! worst leaf of the planned tree  +  depth * (fan-out - 1) * time of a copy
//! ```
//!
//! The second part is the wait of a leaf that is the last child at every hop. With ways of 50 us
//! and copies of [`COPY_US`], twenty receivers get one hop, and a hundred receivers get two.

use crate::builder::RootRule;
use crate::delays::DelayMatrix;
use crate::minmax::MinMaxError;
use crate::planner::{PlanError, Planner, TreePlan};
use crate::tree::TreeShape;

/// Time of a copy in microseconds, where no other is given: processor time of the sending side for
/// each delivered copy at 10,000 messages a second over loopback, on a virtual machine with two
/// cores of an AMD EPYC (docs/results/fanout.md). `evenfall bench fanout` measures the time of
/// another machine. At full speed a copy takes a fraction of this time.
pub const COPY_US: f64 = 4.2;
/// Deepest tree that is considered when no fan-out is given. Six hops of a fan-out of 2 have 64
/// leaves. For more leaves, a seventh hop pays only when a copy takes about as long as a way.
const DEPTH_MAX: u8 = 6;
/// Roots that are tried below a host that stays: those with the shortest ways from it. A root
/// that is farther away loses on the first hop what it could gain below.
const ROOTS_MAX: usize = 8;

/// The wanted leaves, and what a copy costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShapeSearch {
    /// Fewest leaves of the tree.
    pub receivers: usize,
    /// The fan-out, when it is given. Then the depth follows from the leaves.
    pub fanout: Option<u16>,
    /// Time that a parent takes for a copy, in microseconds.
    pub copy_us: f64,
}

/// The cost of a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShapeCost {
    /// D and F.
    pub shape: TreeShape,
    /// The planned percentile of the worst leaf, microseconds.
    pub worst_leaf_us: f64,
    /// The wait for the copies of earlier children, over all hops, microseconds.
    pub sending_us: f64,
}

impl ShapeCost {
    /// Both parts together, microseconds.
    pub fn total_us(&self) -> f64 {
        self.worst_leaf_us + self.sending_us
    }
}

/// The tree of the shape that costs least.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapedPlan {
    /// The tree.
    pub plan: TreePlan,
    /// The costs of all shapes that fit the pool, from the flattest to the deepest.
    pub costs: Vec<ShapeCost>,
}

impl ShapeSearch {
    /// For each depth, the tree with the smallest fan-out that has enough leaves. Depths at which a
    /// flatter tree of the same fan-out has enough leaves are left out. A fan-out that is given
    /// leaves one shape: the flattest with enough leaves.
    fn shapes(&self) -> Vec<TreeShape> {
        let receivers = self.receivers.max(1) as u64;
        let reaches =
            |fanout: u16, depth: u8| u64::from(fanout).saturating_pow(depth.into()) >= receivers;
        if let Some(fanout) = self.fanout {
            let depth = (1..=u8::MAX).find(|depth| reaches(fanout, *depth));
            return depth.map(|depth| TreeShape { depth, fanout }).into_iter().collect();
        }
        let of_depth = |depth: u8| {
            let fanout = (1..=u16::MAX).find(|fanout| reaches(*fanout, depth))?;
            let is_needed = depth == 1 || !reaches(fanout, depth - 1);
            is_needed.then_some(TreeShape { depth, fanout })
        };
        (1..=DEPTH_MAX).filter_map(of_depth).collect()
    }

    /// The shapes that a pool of this many hosts has room for.
    pub fn shapes_in(&self, hosts: usize) -> Vec<TreeShape> {
        let fits = |shape: &TreeShape| shape.checked_places().is_some_and(|need| need <= hosts);
        self.shapes().into_iter().filter(fits).collect()
    }

    /// The fewest hosts that any of the shapes needs.
    pub fn places_min(&self) -> usize {
        let places = self.shapes().into_iter().filter_map(|shape| shape.checked_places());
        places.min().unwrap_or(usize::MAX)
    }

    fn cost(&self, shape: TreeShape, worst_leaf_us: f64) -> ShapeCost {
        let waits = f64::from(shape.depth) * f64::from(shape.fanout.saturating_sub(1));
        ShapeCost { shape, worst_leaf_us, sending_us: waits * self.copy_us }
    }
}

impl Planner {
    /// Chooses depth, fan-out and tree: the shape whose tree costs least by these delays. The
    /// planner's own shape is not used.
    ///
    /// # Errors
    /// [`PlanError::NoRoom`] when no shape fits the pool, or the reason why the flattest shape has
    /// no tree.
    pub fn plan_shape(
        &self,
        search: &ShapeSearch,
        delays: &DelayMatrix,
        pool: &[usize],
    ) -> Result<ShapedPlan, PlanError> {
        let (mut costs, mut failure) = (Vec::new(), None);
        let mut best: Option<(f64, TreePlan)> = None;
        for shape in search.shapes_in(pool.len()) {
            let planner = Self { shape, ..self.clone() };
            match planner.plan(delays, pool) {
                Err(error) => failure = failure.or(Some(error)),
                Ok(plan) => {
                    let cost = search.cost(shape, plan.worst_leaf_us);
                    costs.push(cost);
                    // Of two shapes that cost the same, the flatter one has fewer machines that
                    // may fail.
                    if best.as_ref().is_none_or(|(least, _)| cost.total_us() < *least) {
                        best = Some((cost.total_us(), plan));
                    }
                }
            }
        }
        let no_room = PlanError::NoRoom {
            receivers: search.receivers,
            places: search.places_min(),
            hosts: pool.len(),
        };
        match best {
            Some((_, plan)) => Ok(ShapedPlan { plan, costs }),
            None => Err(failure.unwrap_or(no_room)),
        }
    }

    /// Chooses the tree of this shape that a host outside the tree feeds. The worst leaf of the
    /// plan counts from that host: the 90th percentile of the way to the root is added to the worst
    /// leaf below the root. The plan has no bound.
    ///
    /// # Errors
    /// The reason why there is no tree.
    pub fn plan_below(
        &self,
        delays: &DelayMatrix,
        above: usize,
        pool: &[usize],
    ) -> Result<TreePlan, PlanError> {
        let way = |root: &usize| {
            let edge = delays.edge(above, *root)?;
            let us = f64::from(edge.counting_loss().p90_us);
            us.is_finite().then_some((us, *root))
        };
        let mut roots: Vec<(f64, usize)> = pool.iter().filter_map(way).collect();
        roots.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        roots.truncate(ROOTS_MAX);
        let no_way = PlanError::MinMax(MinMaxError::NoTree { proven: false });
        let mut best: Result<(f64, f64, Self), PlanError> = Err(no_way);
        for (way_us, root) in roots {
            let planner = Self { root: RootRule::Host(root), ..self.clone() };
            match planner.estimate_worst_leaf_us(delays, pool) {
                Ok(us) => {
                    let worst_leaf_us = way_us + us;
                    if best.as_ref().map_or(true, |(least_us, ..)| worst_leaf_us < *least_us) {
                        best = Ok((worst_leaf_us, way_us, planner));
                    }
                }
                Err(error) if best.is_err() => best = Err(error),
                Err(_) => {}
            }
        }
        // Proofs are worth their time for the best root alone.
        let (_, way_us, planner) = best?;
        let plan = planner.plan(delays, pool)?;
        Ok(TreePlan { worst_leaf_us: way_us + plan.worst_leaf_us, bound_us: None, ..plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::PlanMethod;

    fn search(receivers: usize, fanout: Option<u16>, copy_us: f64) -> ShapeSearch {
        ShapeSearch { receivers, fanout, copy_us }
    }

    fn planner() -> Planner {
        Planner::new(PlanMethod::Greedy, TreeShape { depth: 1, fanout: 1 })
    }

    #[test]
    fn each_depth_has_the_smallest_fanout_with_enough_leaves() {
        let shapes = |receivers, fanout| -> Vec<(u8, u16)> {
            let shapes = search(receivers, fanout, 1.0).shapes();
            shapes.iter().map(|shape| (shape.depth, shape.fanout)).collect()
        };
        assert_eq!(shapes(100, None), [(1, 100), (2, 10), (3, 5), (4, 4), (5, 3)]);
        assert_eq!(shapes(8, None), [(1, 8), (2, 3), (3, 2)]);
        assert_eq!(shapes(1, None), [(1, 1)]);
        assert_eq!(shapes(9, Some(3)), [(2, 3)]);
        assert_eq!(shapes(10, Some(3)), [(3, 3)]);
        assert_eq!(shapes(100, Some(2)), [(7, 2)]);
        assert!(shapes(2, Some(1)).is_empty());
        assert_eq!(search(8, None, 1.0).places_min(), 9);
        assert_eq!(search(8, None, 1.0).shapes_in(12).len(), 1);
    }

    #[test]
    fn wide_trees_lose_when_copies_are_dear_and_win_when_they_are_free() {
        let names = (0..16).map(|host| format!("h{host}")).collect();
        let delays = DelayMatrix::from_fn(names, |from, to| 50.0 + ((from + to) % 3) as f64);
        let pool: Vec<usize> = (0..16).collect();
        let shape = |copy_us| {
            let found = planner().plan_shape(&search(8, None, copy_us), &delays, &pool);
            let found = found.expect("three shapes fit");
            assert_eq!(found.costs.len(), 3);
            let least = found.costs.iter().map(ShapeCost::total_us).fold(f64::MAX, f64::min);
            let shape = found.plan.tree.shape();
            let chosen = found.costs.iter().find(|cost| cost.shape == shape).expect("its cost");
            assert!(chosen.total_us() <= least, "{found:?}");
            (shape.depth, shape.fanout)
        };
        // One hop of about 50 us; the last of eight copies waits for seven others.
        assert_eq!(shape(0.0), (1, 8));
        assert_eq!(shape(COPY_US), (1, 8));
        assert_eq!(shape(1_000.0), (3, 2));
    }

    #[test]
    fn a_pool_without_room_says_how_many_hosts_it_lacks() {
        let names = (0..4).map(|host| format!("h{host}")).collect();
        let delays = DelayMatrix::from_fn(names, |_, _| 50.0);
        let error = planner().plan_shape(&search(8, None, 1.0), &delays, &[0, 1, 2, 3]);
        let error = error.expect_err("too few hosts").to_string();
        assert!(error.contains("8 leaves") && error.contains("9 hosts"), "{error}");
    }

    #[test]
    fn the_tree_below_a_host_has_the_root_that_the_host_reaches_best() {
        let names = (0..6).map(|host| format!("h{host}")).collect();
        // Host 0 stays above. Host 4 is far from it and near to everybody else.
        let delays = DelayMatrix::from_fn(names, |from, to| match (from, to) {
            (0, 4) | (4, 0) => 500.0,
            (4, _) | (_, 4) => 10.0,
            _ => 50.0 + (from + to) as f64,
        });
        let planner = Planner { shape: TreeShape { depth: 1, fanout: 2 }, ..planner() };
        let plan = planner.plan_below(&delays, 0, &[1, 2, 3, 4, 5]).expect("a tree");
        assert_ne!(plan.tree.hosts()[0], 4);
        assert!(plan.tree.hosts().iter().all(|host| *host != 0));
        assert!((100.0..500.0).contains(&plan.worst_leaf_us), "{plan:?}");
        // No other root of this small pool has a better tree.
        for root in [1, 2, 3, 5] {
            let planner = Planner { root: RootRule::Host(root), ..planner.clone() };
            let way_us = f64::from(delays.edge(0, root).expect("an edge").p90_us);
            let whole = planner.plan(&delays, &[1, 2, 3, 4, 5]).expect("a tree");
            assert!(plan.worst_leaf_us <= way_us + whole.worst_leaf_us, "root {root}: {plan:?}");
        }
        // Without a way from above there is no tree.
        let error = planner.plan_below(&DelayMatrix::new(vec!["a".into(), "b".into()]), 0, &[1]);
        assert!(error.is_err());
    }
}
