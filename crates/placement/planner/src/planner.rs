//! [`Planner::plan`]: all ways to choose a tree, behind one method.
//!
//! The input is a pool, its known delays and a shape. The output is a tree and its known delays.
//! Commands, experiments and studies choose their trees here, so that a table compares the trees of
//! the commands.
//!
//! | method | what it looks at | as written |
//! |---|---|---|
//! | [`PlanMethod::MinMax`] | all pairs; the worst leaf of the whole tree | `minmax` |
//! | [`PlanMethod::Greedy`] | all pairs; the nearest free host, place by place | `greedy` |
//! | [`PlanMethod::LemonDrop`] | all pairs; the sum over all edges | `lemondrop`, `lemondrop 30` |
//! | [`PlanMethod::TreeBuilder`] | K random candidates of each parent | `weighted`, `p90`, `mean` |
//! | the same, at random | nothing | `rand` |
//! | the same, inverted | K candidates, of which it takes the worst | `worst p90` |
//!
//! Only TreeBuilder works without all pairs: [`Planner::build_plan`] starts its machine, the
//! [`TreeBuilder`], when delays are measured from one parent to the next. The
//! [`Explorer`](crate::explorer::Explorer) is min-max on a few of all pairs.

use evenfall_core::{Hedging, Prng};

use crate::builder::{BuildError, BuildPlan, Racing, RootRule, TreeBuilder};
use crate::delays::{DelayMatrix, DelayStatistic, HostPool};
use crate::lemondrop::{self, LemonDrop, LemonDropError};
use crate::minmax::{self, MinMax, MinMaxError};
use crate::qap::faq::Settings;
use crate::strategy::{BadStrategy, Pick, Strategy};
use crate::tree::{PlacedTree, TreeShape};

/// Limit of LemonDrop's starts. A start takes a second for 1,000 hosts, so 1,000 starts take a
/// quarter of an hour.
const STARTS_MAX: u32 = 1_000;

/// The algorithm that chooses the tree.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanMethod {
    /// The tree whose slowest leaf is fastest, by local search over whole trees.
    MinMax,
    /// The host with the shortest way, place by place.
    Greedy,
    /// The least sum of the edges' medians.
    LemonDrop(lemondrop::AssignmentMethod),
    /// The candidates of each parent with the best score by a strategy.
    TreeBuilder(Strategy, Pick),
}

impl PlanMethod {
    /// LemonDrop with the correct step and 2-opt, from this many starts.
    pub fn lemondrop(starts: u32) -> Self {
        Self::LemonDrop(lemondrop::AssignmentMethod::Faq(Settings {
            starts,
            ..Settings::default()
        }))
    }

    /// TreeBuilder that takes the best candidates.
    pub fn best(strategy: Strategy) -> Self {
        Self::TreeBuilder(strategy, Pick::Best)
    }

    /// TreeBuilder that takes random candidates.
    pub fn random() -> Self {
        Self::TreeBuilder(Strategy::p50(), Pick::Random)
    }

    /// Reads a method as the module's table writes it.
    ///
    /// # Errors
    /// A word that is none of these, and the statistics that are allowed.
    pub fn parse(text: &str) -> Result<Self, BadStrategy> {
        let lower = text.trim().to_ascii_lowercase();
        let (word, rest) = lower.split_once(' ').unwrap_or((&lower, ""));
        let starts = rest.trim().parse::<u32>().ok().filter(|n| (1..=STARTS_MAX).contains(n));
        Ok(match (word, rest, starts) {
            ("minmax", "", _) => Self::MinMax,
            ("greedy", "", _) => Self::Greedy,
            ("lemondrop", "", _) => Self::lemondrop(1),
            ("lemondrop", _, Some(starts)) => Self::lemondrop(starts),
            ("rand", "", _) => Self::random(),
            ("worst", score, _) => Self::TreeBuilder(Strategy::parse(score)?, Pick::Worst),
            _ => Self::best(Strategy::parse(&lower)?),
        })
    }

    /// The words of [`parse`](Self::parse), for messages.
    pub const WORDS: &'static str = "minmax, greedy, lemondrop, lemondrop N (starts), weighted, \
                                     p90, p50 or another statistic, worst STATISTIC, rand";

    /// Whether all pairs must be known.
    pub fn needs_all_pairs(&self) -> bool {
        !matches!(self, Self::TreeBuilder(..))
    }
}

/// The settings of a planner: the method and the wanted tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Planner {
    /// The algorithm that chooses the tree.
    pub method: PlanMethod,
    /// D and F.
    pub shape: TreeShape,
    /// The rule that chooses the root. Methods that read all pairs take the best root unless a host
    /// is named.
    pub root: RootRule,
    /// K of TreeBuilder; twice the fan-out when `None`.
    pub candidates: Option<usize>,
    /// How TreeBuilder's measurements are cut into rounds.
    pub racing: Racing,
    /// The percentile of a path that counts, as a share: 0.5 to 0.999.
    pub share: f64,
    /// Extra copies that every node below the first level gets from its parent's siblings.
    pub hedging: Hedging,
    /// The same seed and the same delays give the same tree.
    pub seed: u64,
}

/// A tree with its estimated quality.
#[derive(Clone, Debug, PartialEq)]
pub struct TreePlan {
    /// The tree.
    pub tree: PlacedTree,
    /// The percentile of its worst leaf, estimated from the percentiles of the edges, microseconds.
    pub worst_leaf_us: f64,
    /// No tree of the pool has a better worst leaf by the same estimates; `None` when the method
    /// proves nothing.
    pub bound_us: Option<f64>,
}

impl TreePlan {
    /// Bound on how much worse the tree is than the best possible tree, as a share; `None` when the
    /// method proves nothing.
    pub fn gap(&self) -> Option<f64> {
        Some((self.worst_leaf_us / self.bound_us? - 1.0).max(0.0))
    }
}

/// Reasons why a method has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An error of TreeBuilder.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// An error of min-max or greedy.
    #[error(transparent)]
    MinMax(#[from] MinMaxError),
    /// An error of LemonDrop.
    #[error(transparent)]
    LemonDrop(#[from] LemonDropError),
    /// The strategy reads a statistic that the delays do not have.
    #[error("the strategy reads {}, which the delays lack", .0.name())]
    Lacks(DelayStatistic),
    /// The pool has too few hosts for a tree with the wanted leaves, or no tree of the given
    /// fan-out has so many.
    #[error("{}", explain_no_room(*.receivers, *.places, *.hosts))]
    NoRoom {
        /// The wanted leaves.
        receivers: usize,
        /// Places of the smallest tree with these leaves; `usize::MAX` when there is no such tree.
        places: usize,
        /// Hosts of the pool.
        hosts: usize,
    },
}

/// Why a pool has no room for a tree with these leaves.
fn explain_no_room(receivers: usize, places: usize, hosts: usize) -> String {
    if places == usize::MAX {
        return format!(
            "no tree of this fan-out has {receivers} leaves, in {hosts} hosts or in more: give \
             another fan-out, or none"
        );
    }
    format!(
        "a tree with {receivers} leaves needs {places} hosts, and the pool has {hosts}: add hosts, \
         or ask for fewer receivers"
    )
}

impl Planner {
    /// A planner for the 90th percentile, with any root and without hedging.
    pub fn new(method: PlanMethod, shape: TreeShape) -> Self {
        Self {
            method,
            shape,
            root: RootRule::Random,
            candidates: None,
            racing: Racing::OFF,
            share: 0.9,
            hedging: Hedging::NONE,
            seed: 1,
        }
    }

    /// The input of TreeBuilder's machine; `None` when another method chooses.
    pub fn build_plan(&self) -> Option<BuildPlan> {
        let PlanMethod::TreeBuilder(strategy, pick) = &self.method else { return None };
        Some(BuildPlan {
            shape: self.shape,
            candidates: self.candidates.unwrap_or(2 * self.shape.fanout as usize),
            strategy: strategy.clone(),
            pick: *pick,
            root: self.root,
            racing: self.racing,
        })
    }

    /// The settings of the methods that read all pairs.
    pub fn min_max(&self) -> MinMax {
        let root = match self.root {
            RootRule::Host(root) => Some(root),
            RootRule::Random | RootRule::Reach(_) => None,
        };
        let Self { shape, share, hedging, seed, .. } = *self;
        MinMax { root, share, hedging, seed, ..MinMax::new(shape) }
    }

    /// Chooses a tree from the hosts of the pool. Pairs that `delays` does not know are not used.
    ///
    /// # Errors
    /// The reason why the method has no tree.
    pub fn plan(&self, delays: &DelayMatrix, pool: &[usize]) -> Result<TreePlan, PlanError> {
        let what = self.min_max();
        let tree = match &self.method {
            PlanMethod::MinMax => {
                let plan = minmax::plan(delays, pool, &what, None)?;
                let (worst_leaf_us, bound_us) = (plan.worst_leaf_us, plan.bound_us);
                return Ok(TreePlan { tree: plan.tree, worst_leaf_us, bound_us });
            }
            PlanMethod::Greedy => minmax::greedy_tree(delays, pool, &what)?,
            PlanMethod::LemonDrop(method) => {
                self.lemondrop(&HostPool::new(delays, pool), *method)?
            }
            PlanMethod::TreeBuilder(strategy, _) => {
                if let Some(field) = strategy.lacks(delays) {
                    return Err(PlanError::Lacks(field));
                }
                let plan = self.build_plan().expect("TreeBuilder has one");
                // Known delays need no rounds.
                let plan = BuildPlan { racing: Racing::OFF, ..plan };
                TreeBuilder::new(plan, pool, self.seed)?.run_on(delays)?
            }
        };
        let worst_leaf_us = minmax::worst_leaf_us(delays, &what, &tree);
        Ok(TreePlan { tree, worst_leaf_us, bound_us: None })
    }

    /// The worst leaf of the tree that the method finds, microseconds. Min-max is asked without its
    /// bound and its proofs, which take most of its time and may improve the tree.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub(crate) fn estimate_worst_leaf_us(
        &self,
        delays: &DelayMatrix,
        pool: &[usize],
    ) -> Result<f64, PlanError> {
        match self.method {
            PlanMethod::MinMax => {
                Ok(minmax::searched_worst_leaf_us(delays, pool, &self.min_max())?)
            }
            _ => Ok(self.plan(delays, pool)?.worst_leaf_us),
        }
    }

    fn lemondrop(
        &self,
        pool: &HostPool<'_>,
        method: lemondrop::AssignmentMethod,
    ) -> Result<PlacedTree, PlanError> {
        let hosts = pool.hosts();
        if self.shape.checked_places().is_none() {
            return Err(BuildError::NoShape { shape: self.shape }.into());
        }
        let root = match self.root {
            RootRule::Host(host) => Some(pool.number(host).ok_or(LemonDropError::Root(host))?),
            RootRule::Random | RootRule::Reach(_) => None,
        };
        let cell = |pair: usize| {
            let edge = pool.edge(pair / hosts, pair % hosts);
            edge.map_or(f64::INFINITY, |stats| f64::from(stats.counting_loss().p50_us))
        };
        let delays: Vec<f64> = (0..hosts * hosts)
            .map(|pair| if pair / hosts == pair % hosts { 0.0 } else { cell(pair) })
            .collect();
        let what =
            LemonDrop { shape: self.shape, pool: hosts, delays: &delays, packets_per_s: 1.0, root };
        let (tree, _) = what.plan(method, &mut Prng::new(self.seed))?;
        Ok(pool.named(&tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delays between 12 hosts. Hosts 9 to 11 have the shortest delays, and died after they were
    /// measured.
    fn delays() -> DelayMatrix {
        let names = (0..12).map(|host| format!("h{host}")).collect();
        DelayMatrix::from_fn(names, |from, to| {
            if from.max(to) > 8 { 1.0 } else { 50.0 + ((from * 31 + to * 17) % 23) as f64 }
        })
    }

    const WORDS: [&str; 9] = [
        "minmax",
        "greedy",
        "lemondrop",
        "lemondrop 5",
        "weighted",
        "p50",
        "rand",
        "worst p90",
        "p99",
    ];

    #[test]
    fn every_method_plans_with_hosts_of_the_pool_and_says_the_worst_leaf() {
        let (delays, pool) = (delays(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut worst = Vec::new();
        for word in WORDS {
            for root in [RootRule::Host(4), RootRule::Random] {
                let method = PlanMethod::parse(word).expect(word);
                let planner =
                    Planner { root, ..Planner::new(method, TreeShape { depth: 2, fanout: 2 }) };
                let plan = planner.plan(&delays, &pool).expect(word);
                assert!(plan.tree.hosts().iter().all(|host| pool.contains(host)), "{word}");
                assert!(root == RootRule::Random || plan.tree.hosts()[0] == 4, "{word}");
                let ways = plan
                    .tree
                    .edges()
                    .map(|(from, to)| f64::from(delays.edge(from, to).expect("dense").p90_us));
                let ways: Vec<f64> = ways.collect();
                let leaf = |leaf: usize| ways[leaf - 1] + ways[(leaf - 1) / 2 - 1];
                let most = (3..7).map(leaf).fold(0.0, f64::max);
                assert!((plan.worst_leaf_us - most).abs() < 0.01, "{word}: {plan:?}");
                worst.push(plan.worst_leaf_us);
            }
        }
        assert!(worst.iter().skip(2).step_by(2).all(|us| *us >= worst[0]), "{worst:?}");
    }

    #[test]
    fn a_method_that_cannot_be_read_is_refused_with_what_is_allowed() {
        for text in ["minmax 3", "lemondrop 0", "lemondrop x", "worst", "p95"] {
            let error = PlanMethod::parse(text).expect_err(text).to_string();
            assert!(error.contains("expected weighted"), "{error}");
        }
    }

    #[test]
    fn a_pool_that_is_too_small_is_refused_by_every_method() {
        for word in WORDS {
            let method = PlanMethod::parse(word).expect(word);
            let planner = Planner::new(method, TreeShape { depth: 2, fanout: 3 });
            let error = planner.plan(&delays(), &[0, 1, 2, 3]).expect_err(word).to_string();
            assert!(error.contains("9 are missing"), "{word}: {error}");
        }
    }
}
