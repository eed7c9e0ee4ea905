//! Min-max on few of all pairs: which to measure next, until the tree has no guessed edge.
//!
//! All pairs of 1,500 hosts are 2.2 million; a tree uses a thousand of them. Most pairs need no
//! measurement to be left out: a delay is mostly the sender's slowness times the receiver's, and
//! the pair's own part is small. So:
//!
//! ```text
//! groups    each host meets a few others at random: slowness of every sender and receiver
//! trees     guess every unmeasured pair, a little too fast; search the best tree;
//!           measure that tree's edges, all at once; again while better trees come of that
//! plan      search among measured pairs only
//! ```
//!
//! A guess that is a little too fast makes a search try pairs that may be good; a pair that
//! disappoints is not tried again (optimism in the face of uncertainty). The measured trees are
//! whole trees, so there is a plan after the first of them, whatever ends the search.
//!
//! Like the [`Builder`](crate::builder::Builder), the explorer is a value without IO:
//! [`Explorer::step`] says which pairs to measure, and [`Explorer::answer`] takes the measured
//! delays. One job measures a group of hosts among each other, or all edges of one tree.

use evenfall_core::{Prng, math};

use crate::delays::{Delays, EdgeStats, Pool};
use crate::minmax::{self, MinMax, MinMaxError, UNUSABLE_US};
use crate::paths::{Length, Lengths};
use crate::planner::Plan;
use crate::tree::Tree;

/// Pairs that a survey measures for each host of the pool unless another budget is given: of these
/// half meet the host in a group, the rest are edges of some 50 trees.
pub const PAIRS_PER_HOST: u64 = 40;
/// Share of the budget that goes to groups; the rest to trees.
const GROUPS_SHARE: f64 = 0.5;
/// Hosts of a group: with fewer than 4 a host meets too few to tell its own slowness from theirs;
/// more than 64 are no better, for few pairs of a group end in the tree.
const GROUP: (usize, usize) = (4, 64);
/// How much faster than its guess an unmeasured pair may be, in standard deviations of what pairs
/// add of their own: at half of one, three of ten pairs are as fast as the search hopes.
const HOPE: f64 = 0.5;
/// Trees without a better one after which there is nothing more to gain.
const PATIENCE: u32 = 6;
/// Trees measured at most, so that a survey ends whatever its budget.
const TREES_MAX: u32 = 100;
/// Moves of the search for a tree that is to be measured; the last search has its usual effort.
const MOVES: u64 = 100_000;
/// Rounds of fitting senders to receivers and back: the fit moves less than a thousandth after.
const FITS: u32 = 8;

/// What is to be measured next.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// All pairs of these hosts.
    Group(Vec<usize>),
    /// The edges of this tree.
    Edges(Tree),
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

/// What the explorer wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// This measurement; the same until it is answered.
    Measure(Ask),
    /// Nothing: here is the plan. It has no bound, for unmeasured pairs might do better.
    Done(Plan),
    /// Nothing: there is no tree.
    Failed(MinMaxError),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Explorer {
    what: MinMax,
    alive: Vec<usize>,
    delays: Delays,
    /// By sender times hosts plus receiver: whether it was measured, with or without success.
    asked: Vec<bool>,
    /// Pairs that may be measured, repetitions counted.
    budget: u64,
    spent: u64,
    groups: Vec<Vec<usize>>,
    job: Option<Ask>,
    trees: u32,
    /// Trees measured since the best one.
    idle: u32,
    best: Option<(f64, Tree)>,
}

impl Explorer {
    /// Explores this pool of the hosts with these names; `budget` is how many pairs may be
    /// measured. At least one tree is measured, and three pairs of every host.
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
            delays: Delays::new(names),
            budget,
            spent: 0,
            groups,
            job: None,
            trees: 0,
            idle: 0,
            best: None,
        }
    }

    /// Measurements that the exploration of a pool may want at most.
    pub fn jobs_max(hosts: usize) -> u64 {
        (hosts / GROUP.0) as u64 + 1 + u64::from(TREES_MAX)
    }

    /// What was measured.
    pub fn delays(&self) -> &Delays {
        &self.delays
    }

    /// Pairs measured, repetitions counted.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// What is wanted next. Asking again changes nothing.
    pub fn step(&mut self) -> Step {
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
                Err(error) => return Step::Failed(error),
            }
        }
        self.job.clone().map_or_else(|| self.plan(), Step::Measure)
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

    /// What came of the last measurement: every pair that has delays. The others of the measurement
    /// cannot be used.
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

    /// A host failed: it gets no place.
    pub fn drop_host(&mut self, host: usize) {
        self.alive.retain(|alive| *alive != host);
        let lost = |tree: &Tree| tree.hosts().contains(&host);
        if self.best.as_ref().is_some_and(|best| lost(&best.1)) {
            // The trees measured so far need one edge more or less: others are tried again.
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

    /// The best tree if every unmeasured pair were as fast as may be hoped.
    fn hoped(&self) -> Result<Tree, MinMaxError> {
        let pool = Pool::new(&self.delays, &self.alive);
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

    fn numbered(&self, pool: &Pool<'_>) -> Result<MinMax, MinMaxError> {
        let number = |root| pool.number(root).ok_or(MinMaxError::NoRoot);
        let root = self.what.root.map(number).transpose()?;
        Ok(MinMax { root, ..self.what })
    }

    /// The best tree of measured pairs.
    fn plan(&self) -> Step {
        let start = self.best.as_ref().map(|best| &best.1);
        match minmax::plan(&self.delays, &self.alive, &self.what, start) {
            Ok(plan) => Step::Done(Plan {
                tree: plan.tree,
                worst_leaf_us: plan.worst_leaf_us,
                bound_us: None,
            }),
            Err(error) => Step::Failed(error),
        }
    }
}

/// Every pair as its sender's slowness times its receiver's, fitted to those that were measured.
struct Guess {
    send: Vec<f64>,
    receive: Vec<f64>,
    /// The mean of excess / mean^2, which says how wide delays spread beside how long they are.
    spread: f64,
    /// What is hoped for, as a factor.
    hope: f64,
}

impl Guess {
    /// Alternating means of logarithms of the edges' means.
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

/// The mean of what belongs to each host, drawn towards half of the pool's mean by one value more:
/// a host that was measured once is not believed to be as fast as that.
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
    use crate::tree::Shape;

    /// Slow and fast hosts, and links with a part of their own.
    fn world(hosts: usize, seed: u64) -> Delays {
        let mut prng = Prng::new(seed);
        let slow: Vec<(f64, f64)> = (0..hosts)
            .map(|_| (math::exp(0.1 * prng.normal()), math::exp(0.15 * prng.normal())))
            .collect();
        let names = (0..hosts).map(|host| host.to_string()).collect();
        let mut delays = Delays::new(names);
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

    fn explore(delays: &Delays, explorer: &mut Explorer, dead: &[usize]) -> Step {
        loop {
            match explorer.step() {
                Step::Measure(ask) => {
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
        let shape = Shape { depth: 2, fanout: 6 };
        let (hosts, pool) = (200, (0..200).collect::<Vec<_>>());
        for seed in 1..4 {
            let delays = world(hosts, seed);
            let what = MinMax { root: Some(0), seed, ..MinMax::new(shape) };
            let best = minmax::plan(&delays, &pool, &what, None).expect("a plan");
            let budget = 4_000;
            let mut explorer = Explorer::new(what, delays.names().to_vec(), &pool, budget);
            let Step::Done(plan) = explore(&delays, &mut explorer, &[]) else { panic!("no plan") };
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
        let what = MinMax::new(Shape { depth: 2, fanout: 3 });
        let pool: Vec<usize> = (0..39).collect();
        let mut explorer = Explorer::new(what, delays.names().to_vec(), &pool, 400);
        let dead = [3, 7];
        let Step::Done(plan) = explore(&delays, &mut explorer, &dead) else { panic!("no plan") };
        let places = |plan: &Plan, host: usize| plan.tree.hosts().contains(&host);
        assert!(!dead.iter().any(|host| places(&plan, *host)) && !places(&plan, 39));
        assert!(explorer.spent() <= 400, "{}", explorer.spent());
        let lost = plan.tree.hosts()[1];
        explorer.drop_host(lost);
        let Step::Done(again) = explore(&delays, &mut explorer, &dead) else { panic!("no plan") };
        assert!(!places(&again, lost));
    }

    #[test]
    fn one_seed_asks_for_the_same_pairs() {
        let delays = world(30, 6);
        let what = MinMax::new(Shape { depth: 2, fanout: 2 });
        let pool: Vec<usize> = (0..30).collect();
        let run = || {
            let mut explorer = Explorer::new(what, delays.names().to_vec(), &pool, 300);
            (explore(&delays, &mut explorer, &[]), explorer.spent())
        };
        assert_eq!(run(), run());
    }
}
