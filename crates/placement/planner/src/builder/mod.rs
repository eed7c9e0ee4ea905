//! TreeBuilder grows a tree from the root down, with one parent's measurement after another.
//!
//! Knowing all delays of a pool takes as many measurements as there are pairs. TreeBuilder (thesis
//! section 3.2.3, algorithm 2) measures only from each parent to K candidates. TreeBuilder takes
//! the F candidates with the best scores as children, and continues with them:
//!
//! ```text
//! while an inner place lacks children:
//!     parent      <- the first such place, level by level
//!     candidates  <- K hosts of the pool at random                (2a)
//!     measure parent -> candidates                                (2b)
//!     children    <- the F with the least score                   (2c)
//!     pool        <- pool without them                            (2d)
//! ```
//!
//! The algorithm waits for measurements, so it is a value without IO: [`TreeBuilder::step`] states
//! the next measurement, and [`TreeBuilder::answer`] takes its result. A live survey, a simulation
//! and a recorded matrix drive the same value. The builder goes beyond the thesis in five ways:
//!
//! - hosts and edges that fail are left out with their reason, and other hosts are tried;
//! - a host that cannot feed F children may still be a leaf, and another host gets its place;
//! - candidates are raced ([`race`]);
//! - the root may be chosen by what it can reach ([`RootRule::Reach`]);
//! - any part of a finished tree can be built again ([`TreeBuilder::rebuild`]).

pub mod race;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::Prng;

pub use race::Racing;

use crate::delays::{DelayMatrix, EdgeStats};
use crate::strategy::{Pick, Strategy};
use crate::tree::{PlacedTree, TreeShape};
use race::Race;

/// The rule that chooses the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootRule {
    /// This host is the root.
    Host(usize),
    /// A random host is the root, as in the thesis (step 1).
    #[default]
    Random,
    /// This many random hosts are measured, each to K candidates as a parent is. The host whose
    /// F-th best candidate has the lowest score becomes the root, and its measurement is the first
    /// of the tree.
    Reach(u32),
}

/// What to build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildPlan {
    /// D and F.
    pub shape: TreeShape,
    /// K: candidates that are measured per parent, at least F.
    pub candidates: usize,
    /// S: the score of a candidate.
    pub strategy: Strategy,
    /// Whether the best, the worst or random candidates are taken.
    pub pick: Pick,
    /// The rule that chooses the root.
    pub root: RootRule,
    /// How measurements are cut into rounds.
    pub racing: Racing,
}

/// A requested measurement, from a parent to candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementRequest {
    /// The sending host.
    pub parent: usize,
    /// The receiving hosts.
    pub candidates: Vec<usize>,
    /// Number of the round, from 0.
    pub round: u32,
    /// Parts into which a whole measurement is cut. Each takes the job's duration divided by this
    /// number.
    pub rounds: u32,
}

/// Reasons why a candidate has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The host failed, and gets no place in the tree.
    Host(String),
    /// The edge cannot be used or was not measured. The host may serve elsewhere.
    Edge(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(reason) | Self::Edge(reason) => f.write_str(reason),
        }
    }
}

/// The next step of the builder.
#[derive(Clone, Debug, PartialEq)]
pub enum BuilderStep {
    /// Make this measurement. The step stays the same until it is answered.
    Measure(MeasurementRequest),
    /// The tree is finished.
    Done(PlacedTree),
    /// No tree can be built.
    Failed(BuildError),
}

/// Reasons why no tree can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A tree of no depth or no fan-out, or of more places than a pool may have hosts.
    #[error(
        "depth {} and fan-out {}: both must be 1 or more, and the tree no larger than {} places",
        .shape.depth,
        .shape.fanout,
        crate::delays::HOSTS_MAX
    )]
    NoShape {
        /// The requested shape.
        shape: TreeShape,
    },
    /// Fewer candidates than children.
    #[error(
        "{candidates} candidates per parent for {fanout} children: let candidates be {fanout} or \
         more"
    )]
    TooFewCandidates {
        /// K.
        candidates: usize,
        /// F.
        fanout: u16,
    },
    /// The pool is too small, perhaps after hosts failed.
    #[error(
        "the tree has {places} places and the pool {hosts} usable hosts: {} are missing",
        .places.saturating_sub(*.hosts)
    )]
    PoolTooSmall {
        /// Places of the tree.
        places: usize,
        /// Hosts that can take a place.
        hosts: usize,
    },
    /// The root is not in the pool, or it failed.
    #[error("{}: {reason}", name_root(*.host))]
    NoRoot {
        /// The host that was named as root, if there was one.
        host: Option<usize>,
        /// What happened.
        reason: String,
    },
}

/// What is said of the host that was named as root, or of all hosts.
fn name_root(host: Option<usize>) -> String {
    host.map_or("no host can be the root".into(), |host| format!("root (host {host})"))
}

/// The part of a tree that is built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePart {
    /// All places below this place. The host of this place stays.
    Below(usize),
    /// All leaves.
    Leaves,
}

/// The measurement that is under way.
#[derive(Clone, Debug)]
struct Job {
    parent: usize,
    race: Race,
    open: Vec<usize>,
}

/// The state of the algorithm while it waits for a measurement.
#[derive(Clone, Debug)]
pub struct TreeBuilder {
    plan: BuildPlan,
    prng: Prng,
    /// The host of each place, so far.
    hosts: Vec<Option<usize>>,
    /// Hosts without a place.
    free: BTreeSet<usize>,
    /// Hosts that could not feed F children. These hosts can only become leaves.
    barren: BTreeSet<usize>,
    /// Scores by (parent, candidate); `None` for an edge that cannot be used.
    scores: BTreeMap<(usize, usize), Option<f64>>,
    /// Root candidates that are still to be measured.
    roots: Vec<usize>,
    /// Root candidates, each with the score of its F-th best candidate.
    reach: Vec<(f64, usize)>,
    job: Option<Job>,
    stats: BTreeMap<(usize, usize), EdgeStats>,
    dropped: Vec<(usize, String)>,
    jobs: u32,
    probed_rounds: u64,
    failed: Option<BuildError>,
}

impl TreeBuilder {
    /// A builder for a tree from the hosts of this pool.
    ///
    /// # Errors
    /// When the plan cannot be carried out with any measurements.
    pub fn new(plan: BuildPlan, pool: &[usize], seed: u64) -> Result<Self, BuildError> {
        let hosts = vec![None; checked_places(&plan)?];
        let mut builder = Self::with(plan, hosts, pool, seed);
        builder.enough()?;
        builder.choose_root()?;
        Ok(builder)
    }

    /// Builds a part of a tree again. The rest is unchanged. Hosts that lose their place return to
    /// the pool, and the hosts in `avoid` get no place.
    ///
    /// # Errors
    /// As [`TreeBuilder::new`].
    pub fn rebuild(
        plan: BuildPlan,
        tree: &PlacedTree,
        part: TreePart,
        pool: &[usize],
        avoid: &[usize],
        seed: u64,
    ) -> Result<Self, BuildError> {
        let plan = BuildPlan { shape: tree.shape(), root: RootRule::Host(tree.hosts()[0]), ..plan };
        checked_places(&plan)?;
        let mut hosts: Vec<Option<usize>> = tree.hosts().iter().copied().map(Some).collect();
        let shape = tree.shape();
        match part {
            TreePart::Leaves => hosts[shape.leaves()].fill(None),
            TreePart::Below(place) => shape.below(place).for_each(|below| hosts[below] = None),
        }
        let mut pool: Vec<usize> = pool.iter().chain(tree.hosts()).copied().collect();
        pool.retain(|host| !avoid.contains(host) && !hosts.contains(&Some(*host)));
        let builder = Self::with(plan, hosts, &pool, seed);
        builder.enough()?;
        Ok(builder)
    }

    fn with(plan: BuildPlan, hosts: Vec<Option<usize>>, pool: &[usize], seed: u64) -> Self {
        Self {
            plan,
            prng: Prng::new(seed),
            hosts,
            free: pool.iter().copied().collect(),
            barren: BTreeSet::new(),
            scores: BTreeMap::new(),
            roots: Vec::new(),
            reach: Vec::new(),
            job: None,
            stats: BTreeMap::new(),
            dropped: Vec::new(),
            jobs: 0,
            probed_rounds: 0,
            failed: None,
        }
    }

    /// Checks that enough hosts are free for the empty places.
    fn enough(&self) -> Result<(), BuildError> {
        let holes = self.hosts.iter().filter(|host| host.is_none()).count();
        if holes <= self.free.len() {
            return Ok(());
        }
        let places = self.hosts.len();
        Err(BuildError::PoolTooSmall { places, hosts: self.free.len() + places - holes })
    }

    /// Up to `count` random free hosts for which `pass` holds.
    fn draw(&mut self, count: usize, pass: impl Fn(&Self, usize) -> bool) -> Vec<usize> {
        let mut hosts: Vec<usize> =
            self.free.iter().copied().filter(|&host| pass(self, host)).collect();
        self.prng.shuffle(&mut hosts);
        hosts.truncate(count);
        hosts
    }

    fn choose_root(&mut self) -> Result<(), BuildError> {
        let can = |builder: &Self, host: usize| !builder.barren.contains(&host);
        let root = match self.plan.root {
            RootRule::Host(host) if self.free.contains(&host) && can(self, host) => Some(host),
            RootRule::Host(host) => {
                let known = self.dropped.iter().find(|dropped| dropped.0 == host);
                let reason = match known {
                    Some((_, reason)) => reason.clone(),
                    None if self.barren.contains(&host) => "it cannot feed enough children".into(),
                    None => "it is not in the pool".into(),
                };
                return Err(BuildError::NoRoot { host: Some(host), reason });
            }
            RootRule::Random => self.draw(1, can).first().copied(),
            RootRule::Reach(count) => {
                self.reach.clear();
                self.roots = self.draw(count.max(1) as usize, can);
                self.roots.first().copied()
            }
        };
        let Some(root) = root else {
            let reason = format!("none of {} can feed enough children", self.free.len());
            return Err(BuildError::NoRoot { host: None, reason });
        };
        if self.roots.is_empty() {
            self.place(0, root);
        }
        Ok(())
    }

    fn place(&mut self, place: usize, host: usize) {
        self.free.remove(&host);
        self.hosts[place] = Some(host);
    }

    /// The next step. Another call without an answer returns the same step.
    pub fn step(&mut self) -> BuilderStep {
        loop {
            if let Some(error) = &self.failed {
                return BuilderStep::Failed(error.clone());
            }
            if let Some(job) = &self.job {
                return BuilderStep::Measure(MeasurementRequest {
                    parent: job.parent,
                    candidates: job.open.clone(),
                    round: job.race.round(),
                    rounds: self.racing().rounds.max(1),
                });
            }
            let done = match self.roots.last().copied() {
                Some(root) => self.reach_of(root),
                None => match self.first_parent() {
                    Some((place, parent)) => self.grow(place, parent),
                    None => return self.finished(),
                },
            };
            if let Err(error) = done {
                self.failed = Some(error);
            }
        }
    }

    fn finished(&self) -> BuilderStep {
        let hosts: Vec<usize> = self.hosts.iter().flatten().copied().collect();
        BuilderStep::Done(PlacedTree::new(self.plan.shape, hosts))
    }

    /// The rounds of a measurement. A random pick needs no race, so its measurement has one round.
    fn racing(&self) -> Racing {
        if self.plan.pick == Pick::Random { Racing::OFF } else { self.plan.racing }
    }

    /// The first inner place, level by level, that has a host and lacks children.
    fn first_parent(&self) -> Option<(usize, usize)> {
        (0..self.plan.shape.inner()).find_map(|place| {
            let lacking = self.plan.shape.children(place).any(|child| self.hosts[child].is_none());
            self.hosts[place].filter(|_| lacking).map(|parent| (place, parent))
        })
    }

    /// Free hosts that this parent reached, the best first.
    fn ranked(&self, parent: usize, inner: bool) -> Vec<(f64, usize)> {
        let known = self.scores.range((parent, 0)..=(parent, usize::MAX));
        let usable = known.filter_map(|(&(_, host), score)| {
            let fit = self.free.contains(&host) && !(inner && self.barren.contains(&host));
            score.filter(|score| fit && score.is_finite()).map(|score| (score, host))
        });
        let mut ranked: Vec<(f64, usize)> = usable.collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ranked
    }

    /// Begins a measurement from a parent to hosts without a result from this parent. Returns false
    /// when no such host is left.
    fn ask(&mut self, parent: usize, count: usize, places: usize, inner: bool) -> bool {
        let untried = |builder: &Self, host: usize| {
            host != parent
                && !builder.scores.contains_key(&(parent, host))
                && !(inner && builder.barren.contains(&host))
        };
        let open = self.draw(count, untried);
        if open.is_empty() {
            return false;
        }
        self.jobs += 1;
        let race = Race::new(self.racing(), places, &open);
        self.job = Some(Job { parent, race, open });
        true
    }

    /// Number of candidates to which a parent is measured before it chooses.
    fn wanted(&self) -> usize {
        match self.plan.pick {
            Pick::Random => self.plan.shape.fanout as usize,
            _ => self.plan.candidates,
        }
    }

    fn reach_of(&mut self, root: usize) -> Result<(), BuildError> {
        let fanout = self.plan.shape.fanout as usize;
        let inner = self.plan.shape.depth > 1;
        let ranked = self.ranked(root, inner);
        let missing = self.wanted().saturating_sub(self.tried(root));
        if missing > 0 && self.ask(root, missing, fanout, inner) {
            return Ok(());
        }
        if let Some((score, _)) = ranked.get(fanout - 1) {
            self.reach.push((*score, root));
        }
        // A host that reached too few hosts is not tried again.
        if ranked.len() < fanout {
            self.barren.insert(root);
        }
        self.roots.pop();
        self.settle_root()
    }

    /// Chooses a root when the tree has none and no root candidate is under measurement: the
    /// candidate with the best reach, or else a new candidate.
    fn settle_root(&mut self) -> Result<(), BuildError> {
        if self.hosts[0].is_some() || !self.roots.is_empty() {
            return Ok(());
        }
        let fit = self.reach.iter().filter(|root| !self.barren.contains(&root.1));
        match fit.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))) {
            Some(&(_, root)) => self.place(0, root),
            None => self.choose_root()?,
        }
        Ok(())
    }

    fn tried(&self, parent: usize) -> usize {
        self.scores.range((parent, 0)..=(parent, usize::MAX)).count()
    }

    /// Chooses the children of a place, or begins the measurement that is missing for the choice.
    fn grow(&mut self, place: usize, parent: usize) -> Result<(), BuildError> {
        self.enough()?;
        let shape = self.plan.shape;
        let holes: Vec<usize> =
            shape.children(place).filter(|&child| self.hosts[child].is_none()).collect();
        let inner = holes[0] < shape.inner();
        let ranked = self.ranked(parent, inner);
        let untried = self.wanted().saturating_sub(self.tried(parent));
        let missing = untried.max(if ranked.len() < holes.len() { self.wanted() } else { 0 });
        if missing > 0 && self.ask(parent, missing, holes.len(), inner) {
            return Ok(());
        }
        if ranked.len() < holes.len() {
            return self.retire(place, parent);
        }
        for (hole, (_, host)) in holes.into_iter().zip(ranked) {
            self.place(hole, host);
        }
        Ok(())
    }

    /// Takes the place from a host that cannot feed F children. The host may become a leaf.
    fn retire(&mut self, place: usize, host: usize) -> Result<(), BuildError> {
        self.barren.insert(host);
        self.vacate(place);
        self.free.insert(host);
        self.settle_root()
    }

    /// Removes the host of a place and all hosts below it from the tree. The hosts below are free
    /// again.
    fn vacate(&mut self, place: usize) {
        for below in self.plan.shape.below(place) {
            if let Some(host) = self.hosts[below].take() {
                self.free.insert(host);
            }
        }
        self.hosts[place] = None;
    }

    /// Takes the result of the measurement that [`step`](Self::step) asked for: a result per
    /// candidate. Candidates without a result count as edges that were not measured. Other results
    /// are ignored.
    pub fn answer(&mut self, results: &[(usize, Result<EdgeStats, Failure>)]) {
        let Some(mut job) = self.job.take() else { return };
        self.probed_rounds += job.open.len() as u64;
        for &candidate in &job.open {
            let result = results.iter().find(|result| result.0 == candidate).map(|r| &r.1);
            let failure = match result {
                Some(Ok(stats)) => match stats.flaw() {
                    None => {
                        job.race.record(candidate, self.badness(stats), *stats);
                        continue;
                    }
                    Some(flaw) => Failure::Edge(flaw),
                },
                Some(Err(failure)) => failure.clone(),
                None => Failure::Edge("no result".into()),
            };
            job.race.remove(candidate);
            self.scores.insert((job.parent, candidate), None);
            match failure {
                Failure::Host(reason) => self.drop_host(candidate, reason),
                Failure::Edge(_) => {}
            }
        }
        job.open = job.race.next_round();
        if !job.open.is_empty() {
            self.job = Some(job);
            return;
        }
        for (candidate, score, stats) in job.race.results() {
            self.scores.insert((job.parent, candidate), Some(score));
            self.stats.insert((job.parent, candidate), stats);
        }
    }

    /// Reports that the measurement failed because its parent failed. The parent is left out with
    /// this reason.
    pub fn answer_failed(&mut self, reason: &str) {
        let Some(job) = self.job.take() else { return };
        self.drop_host(job.parent, reason.into());
    }

    /// A host failed, in this job or elsewhere. The host loses its place and gets no other.
    pub fn drop_host(&mut self, host: usize, reason: String) {
        self.free.remove(&host);
        self.roots.retain(|root| *root != host);
        self.reach.retain(|root| root.1 != host);
        self.dropped.push((host, reason));
        if let Some(place) = self.hosts.iter().position(|taken| *taken == Some(host)) {
            self.vacate(place);
        }
        if self.job.as_ref().is_some_and(|job| job.parent == host) {
            self.job = None;
        }
        if let Err(error) = self.settle_root() {
            self.failed.get_or_insert(error);
        }
    }

    fn badness(&mut self, stats: &EdgeStats) -> f64 {
        let score = self.plan.strategy.score(stats);
        match self.plan.pick {
            Pick::Best => score,
            Pick::Worst if score.is_finite() => -score,
            Pick::Worst => score,
            Pick::Random => self.prng.unit(),
        }
    }

    /// Hosts that failed, with their reasons.
    pub fn dropped(&self) -> &[(usize, String)] {
        &self.dropped
    }

    /// Measured statistics by (parent, candidate).
    pub fn measured(&self) -> &BTreeMap<(usize, usize), EdgeStats> {
        &self.stats
    }

    /// Measurements begun.
    pub fn jobs(&self) -> u32 {
        self.jobs
    }

    /// Amount of probing so far, in whole measurements of one candidate. One of ten rounds counts
    /// as a tenth.
    pub fn probing(&self) -> f64 {
        self.probed_rounds as f64 / f64::from(self.racing().rounds.max(1))
    }

    /// Drives the builder with delays that are known already.
    ///
    /// # Errors
    /// The errors of the builder.
    pub fn run_on(&mut self, delays: &DelayMatrix) -> Result<PlacedTree, BuildError> {
        self.run(|parent, candidate, _| {
            let unknown = || Failure::Edge("not measured".into());
            delays.edge(parent, candidate).copied().ok_or_else(unknown)
        })
    }

    /// Drives the builder: `measure(parent, candidate, round)` gives one round's statistics.
    ///
    /// # Errors
    /// The errors of the builder.
    pub fn run(
        &mut self,
        mut measure: impl FnMut(usize, usize, u32) -> Result<EdgeStats, Failure>,
    ) -> Result<PlacedTree, BuildError> {
        loop {
            match self.step() {
                BuilderStep::Done(tree) => return Ok(tree),
                BuilderStep::Failed(error) => return Err(error),
                BuilderStep::Measure(request) => {
                    let result =
                        |&host: &usize| (host, measure(request.parent, host, request.round));
                    let results: Vec<_> = request.candidates.iter().map(result).collect();
                    self.answer(&results);
                }
            }
        }
    }
}

fn checked_places(plan: &BuildPlan) -> Result<usize, BuildError> {
    let TreeShape { depth, fanout } = plan.shape;
    let Some(places) = plan.shape.checked_places().filter(|_| depth > 0 && fanout > 0) else {
        return Err(BuildError::NoShape { shape: plan.shape });
    };
    if plan.pick != Pick::Random && plan.candidates < fanout as usize {
        return Err(BuildError::TooFewCandidates { candidates: plan.candidates, fanout });
    }
    Ok(places)
}

#[cfg(test)]
mod tests;
