//! [`AssessedPlan`]: a tree with its lengths, its bound and their errors, as commands and programs
//! tell them.

use evenfall_core::Hedging;
use serde::Serialize;

use crate::accuracy::LengthError;
use crate::delays::{DelayMatrix, HostPool};
use crate::minmax;
use crate::paths::Lengths;
use crate::planner::{PlanError, Planner, TreePlan};
use crate::tree::PlacedTree;

/// A tree of named hosts, its lengths, and how wrong they may be. Hosts are in the order of their
/// places: the root first, level by level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssessedPlan {
    /// The host on each place, by its number in the delays.
    #[serde(skip)]
    pub hosts: Vec<usize>,
    /// The place of each place's parent; `None` for the root.
    #[serde(skip)]
    pub parent_places: Vec<Option<usize>>,
    /// Names of the hosts.
    pub tree: Vec<String>,
    /// Name of each host's parent; `None` for the root.
    pub parents: Vec<Option<String>>,
    /// The percentile of the way from the root to each host over its parents alone, in
    /// microseconds. Extra copies make the ways shorter.
    pub delays_us: Vec<f64>,
    /// Hops from the root to a leaf.
    pub depth: u8,
    /// Children of the root and of every inner node.
    pub fanout: u16,
    /// Name of the root.
    pub root: String,
    /// Name of the leaf with the longest way; `None` with extra copies, which come over many ways.
    pub worst_leaf: Option<String>,
    /// The percentile of the worst leaf, which the planner makes small, in microseconds. Extra
    /// copies are counted.
    pub worst_leaf_us: f64,
    /// No tree has a better worst leaf by the same estimates; `None` when that is not known.
    pub bound_us: Option<f64>,
    /// How much worse than the best possible tree the tree is at most, as a share.
    pub gap: Option<f64>,
    /// The error of the lengths.
    #[serde(flatten)]
    pub error: LengthError,
    /// Both parts of the error together, in microseconds.
    pub error_us: f64,
    /// The error of the gap, as a share.
    pub gap_error: Option<f64>,
}

/// Rounds to nanoseconds, because no delay is measured more finely.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

impl Planner {
    /// Chooses a tree from all hosts, and assesses it. `is_clock_error_stated` says that the delays
    /// state the errors of their clocks, as corrected delays do. Otherwise errors of zero on all
    /// ways are unknown errors: the hosts need not have shared a clock.
    ///
    /// # Errors
    /// The reason why the method has no tree.
    pub fn assess_tree(
        &self,
        delays: &DelayMatrix,
        is_clock_error_stated: bool,
    ) -> Result<AssessedPlan, PlanError> {
        let pool: Vec<usize> = (0..delays.hosts()).collect();
        let plan = self.bounded(self.plan(delays, &pool)?, delays, &pool)?;
        let (shape, hosts) = (plan.tree.shape(), plan.tree.hosts());
        let numbered = PlacedTree::new(shape, (0..hosts.len()).collect());
        let lengths = Lengths::new(&HostPool::new(delays, hosts), self.share);
        let name = |place: usize| delays.names()[hosts[place]].clone();
        let parent_places: Vec<Option<usize>> =
            (0..hosts.len()).map(|place| shape.parent(place)).collect();
        let ways = lengths.ways(shape, numbered.hosts());
        let error = LengthError::of_tree(delays, &plan.tree, self.share);
        let is_stated = is_clock_error_stated || error.clock_us != 0.0;
        let clock_us = if is_stated { error.clock_us } else { f64::INFINITY };
        let error = LengthError { clock_us, ..error };
        let is_single = self.hedging == Hedging::NONE;
        Ok(AssessedPlan {
            hosts: hosts.to_vec(),
            tree: (0..hosts.len()).map(name).collect(),
            parents: parent_places.iter().map(|parent| parent.map(name)).collect(),
            parent_places,
            delays_us: ways.iter().map(|way| rounded(way.us())).collect(),
            depth: shape.depth,
            fanout: shape.fanout,
            root: name(0),
            worst_leaf: is_single.then(|| name(lengths.worst_leaf(&numbered).0)),
            worst_leaf_us: rounded(plan.worst_leaf_us),
            bound_us: plan.bound_us.map(rounded),
            gap: plan.gap(),
            error,
            error_us: error.us(),
            gap_error: plan.bound_us.map(|bound| error.us() / bound),
        })
    }

    /// The plan with a bound. A plan whose method proves none gets the bound of min-max, which
    /// begins its search at the plan's tree.
    fn bounded(
        &self,
        plan: TreePlan,
        delays: &DelayMatrix,
        pool: &[usize],
    ) -> Result<TreePlan, PlanError> {
        if plan.bound_us.is_some() {
            return Ok(plan);
        }
        if self.hedging > Hedging::NONE {
            let bound_us =
                minmax::hedged_bound_us(delays, pool, &self.min_max(), plan.worst_leaf_us);
            return Ok(TreePlan { bound_us, ..plan });
        }
        let best = minmax::plan(delays, pool, &self.min_max(), Some(&plan.tree))?;
        Ok(TreePlan { bound_us: best.bound_us, ..plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::PlanMethod;
    use crate::tree::TreeShape;

    #[test]
    fn a_plan_names_parents_and_the_way_to_every_host() {
        let names = (0..9).map(|host| format!("h{host}")).collect();
        let delays =
            DelayMatrix::from_fn(names, |from, to| 50.0 + ((from * 31 + to * 17) % 23) as f64);
        for word in ["minmax", "greedy", "lemondrop", "rand"] {
            let method = PlanMethod::parse(word).expect(word);
            let planner = Planner::new(method, TreeShape { depth: 2, fanout: 2 });
            let plan = planner.assess_tree(&delays, false).expect(word);
            assert_eq!((plan.tree.len(), plan.parents[0].as_ref()), (7, None));
            for place in 1..7 {
                let parent = plan.parent_places[place].expect("a parent");
                let edge = delays.edge(plan.hosts[parent], plan.hosts[place]).expect("dense");
                let way = plan.delays_us[parent] + f64::from(edge.p90_us);
                assert!((plan.delays_us[place] - way).abs() < 0.01, "{word}: {plan:?}");
                assert_eq!(plan.parents[place].as_ref(), Some(&plan.tree[parent]));
            }
            let most = plan.delays_us.iter().copied().fold(0.0, f64::max);
            assert!((plan.worst_leaf_us - most).abs() < 0.01, "{word}: {plan:?}");
            assert!(plan.bound_us.is_some_and(|bound| bound <= plan.worst_leaf_us + 0.01));
            assert!(plan.error_us.is_infinite(), "no clock states its error");
        }
        let hedged = Planner {
            hedging: Hedging::DEFAULT,
            ..Planner::new(PlanMethod::MinMax, TreeShape { depth: 1, fanout: 2 })
        };
        assert_eq!(hedged.assess_tree(&delays, true).expect("a tree").worst_leaf, None);
    }
}
