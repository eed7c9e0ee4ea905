//! Min-max planning on few pairs. The explorer chooses the pairs to measure next, until the tree
//! has no guessed edge.
//!
//! 1,500 hosts have 2.2 million pairs, and a tree uses a thousand of them. A delay is mostly the
//! product of the sender's and the receiver's slowness, and the pair's own part is small. Most
//! pairs can therefore be ruled out without a measurement. The explorer therefore works in three
//! phases:
//!
//! ```text
//! groups    each host meets a few others at random: slowness of every sender and receiver
//! trees     guess every unmeasured pair, a little too fast; search the best tree;
//!           measure that tree's edges, all at once; again while better trees come of that
//! plan      search among measured pairs only
//! ```
//!
//! Guesses are a little too fast, so that the search tries pairs that may be good. A pair that
//! turns out slow is not tried again (optimism in the face of uncertainty). Every measured tree is
//! a whole tree, so a plan exists after the first one, even when the search ends early.
//!
//! Like the [`TreeBuilder`](crate::builder::TreeBuilder), the explorer is a value without IO:
//! [`Explorer::step`] returns the pairs to measure, and [`Explorer::answer`] takes the measured
//! delays. One job measures all pairs of a group of hosts, or all edges of one tree.

use evenfall_core::{Prng, math};

use crate::delays::{DelayMatrix, EdgeStats, HostPool};
use crate::minmax::{self, MinMax, MinMaxError, UNUSABLE_US};
use crate::paths::{Length, Lengths};
use crate::planner::TreePlan;
use crate::tree::PlacedTree;

/// Default budget of a survey: pairs per host of the pool. Half of the pairs are measured in
/// groups, and the others are edges of about 50 trees.
pub const PAIRS_PER_HOST: u64 = 40;
/// Share of the budget for groups. The rest is for trees.
const GROUPS_SHARE: f64 = 0.5;
/// Least and largest number of hosts in a group. With fewer than 4, the slowness of a host cannot
/// be told from the slowness of the others. More than 64 give no better tree, because few pairs of
/// a group become edges of the tree.
const GROUP: (usize, usize) = (4, 64);
/// How much faster than its guess an unmeasured pair is assumed to be, in standard deviations of
/// the pair's own part. At half a standard deviation, three of ten pairs are as fast as assumed.
const HOPE: f64 = 0.5;
/// Measured trees in a row without a better tree, after which the search ends.
const PATIENCE: u32 = 6;
/// Limit of measured trees, which ends a survey with any budget.
const TREES_MAX: u32 = 100;
/// Moves of the search for a tree to measure. The last search has the usual effort of min-max.
const MOVES: u64 = 100_000;
/// Rounds of fitting senders to receivers and back. After 8 rounds the fit changes by less than a
/// thousandth.
const FITS: u32 = 8;

/// The next measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// All pairs of these hosts.
    Group(Vec<usize>),
    /// The edges of this tree.
    Edges(PlacedTree),
}

impl Ask {
    /// The pairs, sender first.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Group(hosts) => {
                let to = |from: usize| {
                    hosts.iter().filter(move |to| **to != from).map(move |&to| (from, to))
                };
                hosts.iter().flat_map(|&from| to(from)).collect()
            }
            Self::Edges(tree) => tree.edges().collect(),
        }
    }
}

/// The next step of the explorer.
#[derive(Clone, Debug, PartialEq)]
pub enum ExplorerStep {
    /// Make this measurement. The step stays the same until it is answered.
    Measure(Ask),
    /// The plan is finished. The plan has no lower bound, because a tree with unmeasured pairs
    /// could be better.
    Done(TreePlan),
    /// No tree was found.
    Failed(MinMaxError),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Explorer {
    what: MinMax,
    alive: Vec<usize>,
    delays: DelayMatrix,
    /// Whether a pair was measured, with or without success. The index is sender times hosts plus
    /// receiver.
    asked: Vec<bool>,
    /// Pairs that may be measured, repetitions counted.
    budget: u64,
    spent: u64,
    groups: Vec<Vec<usize>>,
    job: Option<Ask>,
    trees: u32,
    /// Trees measured since the best tree.
    idle: u32,
    best: Option<(f64, PlacedTree)>,
}

impl Explorer {
    /// An explorer of this pool of the hosts with these names. `budget` limits the number of
    /// measured pairs. At least one tree and three pairs of every host are measured.
    pub fn new(what: MinMax, names: Vec<String>, pool: &[usize], budget: u64) -> Self {
        let mut hosts = pool.to_vec();
        Prng::new(what.seed).shuffle(&mut hosts);
        let share = budget as f64 * GROUPS_SHARE / hosts.len().max(1) as f64;
        let size = (share as usize + 1).clamp(GROUP.0, GROUP.1);
        let count = (hosts.len() / size).max(1);
        let mut groups = vec![Vec::new(); count];
        for (at, host) in hosts.into_iter().enumerate() {
            groups[at % count].push(host);
        }
        Self {
            what,
            alive: pool.to_vec(),
            asked: vec![false; names.len() * names.len()],
            delays: DelayMatrix::new(names),
            budget,
            spent: 0,
            groups,
            job: None,
            trees: 0,
            idle: 0,
            best: None,
        }
    }

    /// Limit of the measurements in the exploration of a pool.
    pub fn jobs_max(hosts: usize) -> u64 {
        (hosts / GROUP.0) as u64 + 1 + u64::from(TREES_MAX)
    }

    /// The measured delays.
    pub fn delays(&self) -> &DelayMatrix {
        &self.delays
    }

    /// Pairs measured, repetitions counted.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// The next step. Another call without an answer returns the same step.
    pub fn step(&mut self) -> ExplorerStep {
        while self.job.is_none() {
            if let Some(mut group) = self.groups.pop() {
                group.retain(|host| self.alive.contains(host));
                self.job = (group.len() > 1).then_some(Ask::Group(group));
                continue;
            }
            if self.is_over() {
                return self.plan();
            }
            match self.hoped() {
                Ok(tree) if tree.edges().all(|(from, to)| self.was_asked(from, to)) => {
                    self.idle = PATIENCE;
                }
                Ok(tree) => self.job = Some(Ask::Edges(tree)),
                Err(error) => return ExplorerStep::Failed(error),
            }
        }
        self.job.clone().map_or_else(|| self.plan(), ExplorerStep::Measure)
    }

    fn is_over(&self) -> bool {
        let edges = self.what.shape.checked_places().unwrap_or(1) as u64 - 1;
        let first = self.best.is_none() && self.trees < PATIENCE;
        let poor = self.spent + edges > self.budget && !first;
        poor || self.idle >= PATIENCE || self.trees >= TREES_MAX
    }

    fn was_asked(&self, from: usize, to: usize) -> bool {
        self.asked[from * self.delays.hosts() + to]
    }

    /// Takes the result of the last measurement: every pair with delays. Pairs of the measurement
    /// without delays cannot be used.
    pub fn answer(&mut self, edges: &[(usize, usize, EdgeStats)]) {
        let Some(job) = self.job.take() else { return };
        let hosts = self.delays.hosts();
        for (from, to) in job.pairs() {
            self.asked[from * hosts + to] = true;
            self.delays.set(from, to, None);
            self.spent += 1;
        }
        for (from, to, stats) in edges.iter().filter(|edge| edge.2.flaw().is_none()) {
            if self.asked[from * hosts + to] {
                self.delays.set(*from, *to, Some(*stats));
            }
        }
        let Ask::Edges(tree) = job else { return };
        self.trees += 1;
        self.idle += 1;
        let us = minmax::worst_leaf_us(&self.delays, &self.what, &tree);
        if us < UNUSABLE_US && self.best.as_ref().is_none_or(|best| us < best.0) {
            self.best = Some((us, tree));
            self.idle = 0;
        }
    }

    /// Reports that a host failed. The host gets no place.
    pub fn drop_host(&mut self, host: usize) {
        self.alive.retain(|alive| *alive != host);
        let lost = |tree: &PlacedTree| tree.hosts().contains(&host);
        if self.best.as_ref().is_some_and(|best| lost(&best.1)) {
            // The measured trees may contain the host, so the search for the best tree begins
            // again.
            self.best = None;
            self.idle = 0;
        }
        let concerned = match &self.job {
            Some(Ask::Group(hosts)) => hosts.contains(&host),
            Some(Ask::Edges(tree)) => lost(tree),
            None => false,
        };
        if concerned {
            self.job = None;
        }
    }

    /// The best tree under the assumption that every unmeasured pair is as fast as [`HOPE`] allows.
    fn hoped(&self) -> Result<PlacedTree, MinMaxError> {
        let pool = HostPool::new(&self.delays, &self.alive);
        let mut lengths = Lengths::new(&pool, self.what.share);
        let guess = Guess::fit(&lengths);
        let hosts = self.alive.len();
        for pair in (0..hosts * hosts).filter(|pair| pair / hosts != pair % hosts) {
            let (from, to) = (pair / hosts, pair % hosts);
            if !self.was_asked(self.alive[from], self.alive[to]) {
                lengths.set(from, to, guess.length(from, to));
            }
        }
        let what = self.numbered(&pool)?;
        let what = MinMax { moves: MOVES, seed: what.seed ^ u64::from(self.trees), ..what };
        let start = self.best.as_ref().and_then(|best| pool.numbered(&best.1));
        let (_, tree) = minmax::search(&lengths, &what, start.as_ref())?;
        Ok(pool.named(&tree))
    }

    fn numbered(&self, pool: &HostPool<'_>) -> Result<MinMax, MinMaxError> {
        let number = |root| pool.number(root).ok_or(MinMaxError::NoRoot);
        let root = self.what.root.map(number).transpose()?;
        Ok(MinMax { root, ..self.what })
    }

    /// The best tree of measured pairs.
    fn plan(&self) -> ExplorerStep {
        let start = self.best.as_ref().map(|best| &best.1);
        match minmax::plan(&self.delays, &self.alive, &self.what, start) {
            Ok(plan) => ExplorerStep::Done(TreePlan {
                tree: plan.tree,
                worst_leaf_us: plan.worst_leaf_us,
                bound_us: None,
            }),
            Err(error) => ExplorerStep::Failed(error),
        }
    }
}

/// A model of every pair as the product of its sender's and its receiver's slowness, fitted to the
/// measured pairs.
struct Guess {
    send: Vec<f64>,
    receive: Vec<f64>,
    /// The mean of excess / mean^2: the spread of delays in proportion to their length.
    spread: f64,
    /// Factor of an optimistic guess, from [`HOPE`].
    hope: f64,
}

impl Guess {
    /// Fits senders and receivers in turn, by means of the logarithms of the edges' mean delays.
    fn fit(lengths: &Lengths) -> Self {
        let hosts = lengths.hosts();
        let all = (0..hosts * hosts).map(|pair| (pair / hosts, pair % hosts));
        let known: Vec<(usize, usize, f64)> = all
            .filter(|(from, to)| from != to && !lengths.edge(*from, *to).is_none())
            .map(|(from, to)| (from, to, math::ln(lengths.edge(from, to).mean_us.max(1e-3))))
            .collect();
        let count = known.len().max(1) as f64;
        let mean = known.iter().map(|edge| edge.2).sum::<f64>() / count;
        let mut guess = Self {
            send: vec![mean / 2.0; hosts],
            receive: vec![mean / 2.0; hosts],
            spread: 0.0,
            hope: 1.0,
        };
        for _ in 0..FITS {
            guess.receive =
                means(hosts, mean, &known, |&(from, to, ln)| (to, ln - guess.send[from]));
            guess.send =
                means(hosts, mean, &known, |&(from, to, ln)| (from, ln - guess.receive[to]));
        }
        let residual = |&(from, to, ln): &(usize, usize, f64)| {
            math::square(ln - guess.send[from] - guess.receive[to])
        };
        let sigma = (known.iter().map(residual).sum::<f64>() / count).sqrt();
        let spread = |&(from, to, _): &(usize, usize, f64)| {
            let Length { mean_us, excess_us2 } = lengths.edge(from, to);
            excess_us2 / (mean_us * mean_us).max(1e-6)
        };
        guess.spread = known.iter().map(spread).sum::<f64>() / count;
        guess.hope = math::exp(-HOPE * sigma);
        guess
    }

    fn length(&self, from: usize, to: usize) -> Length {
        let mean_us = math::exp(self.send[from] + self.receive[to]) * self.hope;
        Length { mean_us, excess_us2: self.spread * mean_us * mean_us }
    }
}

/// The mean of the values of each host, with half of the pool's mean as one more value. A single
/// fast measurement therefore does not make a host look as fast as the measurement.
fn means<T>(hosts: usize, mean: f64, all: &[T], of: impl Fn(&T) -> (usize, f64)) -> Vec<f64> {
    let mut sums = vec![(mean / 2.0, 1.0); hosts];
    for (host, value) in all.iter().map(of) {
        sums[host].0 += value;
        sums[host].1 += 1.0;
    }
    sums.into_iter().map(|(sum, count)| sum / count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeShape;

    /// Slow and fast hosts, and links with a part of their own.
    fn world(hosts: usize, seed: u64) -> DelayMatrix {
        let mut prng = Prng::new(seed);
        let slow: Vec<(f64, f64)> = (0..hosts)
            .map(|_| (math::exp(0.1 * prng.normal()), math::exp(0.15 * prng.normal())))
            .collect();
        let names = (0..hosts).map(|host| host.to_string()).collect();
        let mut delays = DelayMatrix::new(names);
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
            let us = 80.0 * slow[from].0 * slow[to].1 * math::exp(0.1 * prng.normal());
            let at = |factor: f64| (us * factor) as f32;
            let stats = EdgeStats {
                p25_us: at(0.8),
                p50_us: at(1.0),
                p75_us: at(1.2),
                p90_us: at(1.45),
                p99_us: at(2.0),
                ..EdgeStats::UNKNOWN
            };
            delays.set(from, to, Some(stats));
        }
        delays
    }

    fn explore(delays: &DelayMatrix, explorer: &mut Explorer, dead: &[usize]) -> ExplorerStep {
        loop {
            match explorer.step() {
                ExplorerStep::Measure(ask) => {
                    let alive = |&(a, b): &(usize, usize)| !dead.contains(&a) && !dead.contains(&b);
                    let edge = |(a, b): (usize, usize)| (a, b, *delays.edge(a, b).expect("dense"));
                    let edges: Vec<_> = ask.pairs().into_iter().filter(alive).map(edge).collect();
                    explorer.answer(&edges);
                }
                over => return over,
            }
        }
    }

    #[test]
    fn a_tenth_of_all_pairs_gives_a_tree_within_a_tenth_of_the_best() {
        let shape = TreeShape { depth: 2, fanout: 6 };
        let (hosts, pool) = (200, (0..200).collect::<Vec<_>>());
        for seed in 1..4 {
            let delays = world(hosts, seed);
            let what = MinMax { root: Some(0), seed, ..MinMax::new(shape) };
            let best = minmax::plan(&delays, &pool, &what, None).expect("a plan");
            let budget = 4_000;
            let mut explorer = Explorer::new(what, delays.names().to_vec(), &pool, budget);
            let ExplorerStep::Done(plan) = explore(&delays, &mut explorer, &[]) else {
                panic!("no plan")
            };
            assert!(explorer.spent() <= budget, "{}", explorer.spent());
            let greedy = minmax::greedy_tree(&delays, &pool, &what).expect("a tree");
            let greedy = minmax::worst_leaf_us(&delays, &what, &greedy);
            let us = plan.worst_leaf_us;
            println!(
                "{us} of {} pairs; {} of all; greedy {greedy}",
                explorer.spent(),
                best.worst_leaf_us
            );
            assert!(us < 1.1 * best.worst_leaf_us, "seed {seed}: {us} {}", best.worst_leaf_us);
            assert!((minmax::worst_leaf_us(&delays, &what, &plan.tree) - us).abs() < 1e-6);
        }
    }

    #[test]
    fn hosts_that_fail_get_no_place_and_the_budget_is_kept() {
        let delays = world(40, 5);
        let what = MinMax::new(TreeShape { depth: 2, fanout: 3 });
        let pool: Vec<usize> = (0..39).collect();
        let mut explorer = Explorer::new(what, delays.names().to_vec(), &pool, 400);
        let dead = [3, 7];
        let ExplorerStep::Done(plan) = explore(&delays, &mut explorer, &dead) else {
            panic!("no plan")
        };
        let places = |plan: &TreePlan, host: usize| plan.tree.hosts().contains(&host);
        assert!(!dead.iter().any(|host| places(&plan, *host)) && !places(&plan, 39));
        assert!(explorer.spent() <= 400, "{}", explorer.spent());
        let lost = plan.tree.hosts()[1];
        explorer.drop_host(lost);
        let ExplorerStep::Done(again) = explore(&delays, &mut explorer, &dead) else {
            panic!("no plan")
        };
        assert!(!places(&again, lost));
    }

    #[test]
    fn one_seed_asks_for_the_same_pairs() {
        let delays = world(30, 6);
        let what = MinMax::new(TreeShape { depth: 2, fanout: 2 });
        let pool: Vec<usize> = (0..30).collect();
        let run = || {
            let mut explorer = Explorer::new(what, delays.names().to_vec(), &pool, 300);
            (explore(&delays, &mut explorer, &[]), explorer.spent())
        };
        assert_eq!(run(), run());
    }
}
