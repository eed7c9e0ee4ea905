//! One run, from its first measurement to its record.
//!
//! ```text
//!           +--- grown: Parent, Parent, ... ---+
//!  begin ---+                                  +--> Tree, Tree, ... (windows) --> Done
//!           +--- planned: AllToAll ------------+        |
//!                     ^                                 | a host failed: the tree is mended
//!                     +---------------------------------+
//! ```

use std::time::{Duration, Instant};

use evenfall_placement_planner::builder::{
    BuilderStep, Failure, MeasurementRequest, Racing, TreeBuilder,
};
use evenfall_placement_planner::delays::{DelayMatrix, EdgeStats};
use evenfall_placement_planner::planner::Planner;
use evenfall_placement_planner::strategy::{Pick, Strategy};
use evenfall_placement_planner::tree::PlacedTree;

use super::file::{On, RunPlan};
use super::record::{
    CandidateRecord, FailedHost, LeafSample, RunRecord, StageRecord, Timers, statistics,
};

/// Times that a tree is mended because hosts of it failed, or that all pairs are measured again.
/// Each time removes at least one host.
const ATTEMPTS_MAX: u32 = 4;

/// The next measurement that a run asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// A measurement from a parent to candidates.
    Parent(MeasurementRequest),
    /// All pairs of these hosts.
    AllToAll(Vec<usize>),
    /// A multicast over this tree.
    Tree(PlacedTree),
    /// Nothing more.
    Done,
}

/// The number of a candidate, with its measurement or its failure.
pub type FoundCandidate = (usize, Result<EdgeStats, Failure>);

#[derive(Debug)]
enum State {
    Planning,
    Measuring(MeasurementRequest),
    Matrix(Vec<usize>),
    Evaluating(PlacedTree),
    Over(Result<PlacedTree, String>),
}

/// See the module documentation.
#[derive(Debug)]
pub struct ExperimentRun {
    plan: RunPlan,
    names: Vec<String>,
    state: State,
    planner: Option<Planner>,
    builder: Option<TreeBuilder>,
    /// The delays of all pairs, once they are measured.
    matrix: Option<DelayMatrix>,
    dropped: Vec<(usize, String)>,
    attempts: u32,
    stages: Vec<StageRecord>,
    windows: Vec<(f64, Vec<LeafSample>)>,
    expected: Option<(f64, Option<f64>)>,
    measuring: Duration,
    evaluating: Duration,
    deciding: Duration,
    began: Instant,
    probes: u64,
}

impl ExperimentRun {
    /// A run in a pool with these names. Hosts in `dropped` failed before it began.
    pub fn new(plan: RunPlan, names: Vec<String>, dropped: Vec<(usize, String)>) -> Self {
        let mut course = Self {
            plan,
            names,
            state: State::Planning,
            planner: None,
            builder: None,
            matrix: None,
            dropped,
            attempts: 0,
            stages: Vec::new(),
            windows: Vec::new(),
            expected: None,
            measuring: Duration::ZERO,
            evaluating: Duration::ZERO,
            deciding: Duration::ZERO,
            began: Instant::now(),
            probes: 0,
        };
        course.begin();
        course
    }

    /// The plan of the run.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Names of the hosts, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The finished measurements.
    pub fn stages(&self) -> &[StageRecord] {
        &self.stages
    }

    fn alive(&self) -> Vec<usize> {
        let dead = |host: &usize| self.dropped.iter().any(|(dropped, _)| dropped == host);
        (0..self.names.len()).filter(|host| !dead(host)).collect()
    }

    /// Ends the run without a tree.
    pub(super) fn fail(&mut self, error: impl ToString) {
        self.state = State::Over(Err(error.to_string()));
    }

    /// The score by which a tree that grows parent by parent is chosen; `None` for a planner on all
    /// pairs.
    pub fn strategy(&self) -> Option<Strategy> {
        self.planner.as_ref()?.build_plan().map(|plan| plan.strategy)
    }

    fn begin(&mut self) {
        // A recorded measurement has no parts.
        let recorded = matches!(self.plan.on, On::Recorded { .. });
        let racing = if recorded { Racing::OFF } else { self.plan.probe.racing() };
        let planner = match self.plan.planner(&self.names, racing) {
            Ok(planner) => self.planner.insert(planner),
            Err(error) => return self.fail(error),
        };
        let build = planner.build_plan();
        let alive = self.alive();
        let Some(build) = build else {
            let places = self.plan.shape().places();
            if alive.len() < places {
                let missing = places - alive.len();
                return self.fail(format!(
                    "the tree has {places} places and the pool {} usable hosts: {missing} are \
                     missing",
                    alive.len()
                ));
            }
            self.state = State::Matrix(alive);
            return;
        };
        match TreeBuilder::new(build, &alive, self.plan.seed) {
            Err(error) => self.fail(error),
            Ok(mut builder) => {
                for (host, reason) in &self.dropped {
                    builder.drop_host(*host, reason.clone());
                }
                self.builder = Some(builder);
            }
        }
    }

    /// The measurement that the run asks for. Repeated calls return the same until its result is
    /// taken.
    pub fn want(&mut self) -> Want {
        if matches!(self.state, State::Planning) {
            let began = Instant::now();
            self.decide();
            self.deciding += began.elapsed();
        }
        match &self.state {
            State::Measuring(request) => Want::Parent(request.clone()),
            State::Matrix(hosts) => Want::AllToAll(hosts.clone()),
            State::Evaluating(tree) => Want::Tree(tree.clone()),
            State::Planning | State::Over(_) => Want::Done,
        }
    }

    fn decide(&mut self) {
        if let Some(builder) = &mut self.builder {
            self.state = match builder.step() {
                BuilderStep::Measure(request) => State::Measuring(request),
                BuilderStep::Done(tree) => State::Evaluating(tree),
                BuilderStep::Failed(error) => State::Over(Err(error.to_string())),
            };
            return;
        }
        match self.planned() {
            Ok(tree) => self.state = State::Evaluating(tree),
            Err(error) => self.fail(error),
        }
    }

    /// Plans a tree from the delays of all pairs.
    fn planned(&mut self) -> Result<PlacedTree, String> {
        let matrix = self.matrix.as_ref().ok_or("nothing was measured")?;
        let planner = self.planner.as_ref().ok_or("nothing was planned")?;
        let plan = planner.plan(matrix, &self.alive()).map_err(|error| error.to_string())?;
        self.expected = Some((plan.worst_leaf_us, plan.bound_us));
        Ok(plan.tree)
    }

    fn stage(&mut self, took: Duration, probes: u64, stage: StageRecord) {
        self.measuring += took;
        self.probes += probes;
        let at_s = self.measuring.as_secs_f64();
        self.stages.push(StageRecord { at_s, took_s: took.as_secs_f64(), ..stage });
    }

    fn candidate(&self, (host, found): &FoundCandidate) -> CandidateRecord {
        let stats = found.as_ref().ok().copied();
        let build = self.planner.as_ref().and_then(Planner::build_plan);
        let build = build.filter(|build| build.pick != Pick::Random);
        let score = stats.zip(build).map(|(stats, build)| build.strategy.score(&stats));
        CandidateRecord {
            from: None,
            host: self.names[*host].clone(),
            stats,
            score: score.filter(|score| score.is_finite()),
            failure: found.as_ref().err().map(ToString::to_string),
        }
    }

    /// Takes the result of [`Want::Parent`]; `Err` when the parent itself failed.
    pub fn take_parent(
        &mut self,
        found: Result<&[FoundCandidate], &str>,
        took: Duration,
        probes: u64,
    ) {
        let State::Measuring(request) = std::mem::replace(&mut self.state, State::Planning) else {
            return;
        };
        let of = |found: &FoundCandidate| self.candidate(found);
        let failed = |host: &usize, reason: &str| CandidateRecord {
            from: None,
            host: self.names[*host].clone(),
            stats: None,
            score: None,
            failure: Some(format!("the parent failed: {reason}")),
        };
        let candidates = match found {
            Ok(found) => found.iter().map(of).collect(),
            Err(reason) => request.candidates.iter().map(|host| failed(host, reason)).collect(),
        };
        let stage = StageRecord {
            at_s: 0.0,
            took_s: 0.0,
            parent: Some(self.names[request.parent].clone()),
            round: request.round,
            rounds: request.rounds,
            candidates,
            chosen: Vec::new(),
        };
        self.stage(took, probes, stage);
        let Some(builder) = &mut self.builder else { return };
        match found {
            Ok(found) => builder.answer(found),
            Err(reason) => builder.answer_failed(reason),
        }
    }

    /// Takes the result of [`Want::AllToAll`]: the pairs, and the hosts that failed by themselves.
    /// `again` is true when these hosts kept others from being reached.
    pub fn take_matrix(
        &mut self,
        pairs: &[(usize, usize, EdgeStats)],
        failed: &[(usize, String)],
        again: bool,
        took: Duration,
        probes: u64,
    ) {
        let State::Matrix(_) = std::mem::replace(&mut self.state, State::Planning) else { return };
        let mut matrix = DelayMatrix::new(self.names.clone());
        pairs.iter().for_each(|(from, to, stats)| matrix.set(*from, *to, Some(*stats)));
        let pair = |(from, to, stats): &(usize, usize, EdgeStats)| CandidateRecord {
            from: Some(self.names[*from].clone()),
            host: self.names[*to].clone(),
            stats: Some(*stats),
            score: None,
            failure: None,
        };
        let stage = StageRecord {
            at_s: 0.0,
            took_s: 0.0,
            parent: None,
            round: 0,
            rounds: 1,
            candidates: pairs.iter().map(pair).collect(),
            chosen: Vec::new(),
        };
        self.stage(took, probes, stage);
        self.matrix = Some(matrix);
        self.dropped.extend_from_slice(failed);
        self.attempts += 1;
        if again && !failed.is_empty() && self.attempts < ATTEMPTS_MAX {
            self.begin();
        }
    }

    /// Takes the result of [`Want::Tree`]: the leaves, and the hosts that failed by themselves.
    pub fn take_tree(
        &mut self,
        leaves: Vec<LeafSample>,
        failed: &[(usize, String)],
        took: Duration,
        probes: u64,
    ) {
        let State::Evaluating(tree) = std::mem::replace(&mut self.state, State::Planning) else {
            return;
        };
        self.evaluating += took;
        self.probes += probes;
        self.dropped.extend_from_slice(failed);
        if !failed.is_empty() && self.attempts < ATTEMPTS_MAX {
            self.attempts += 1;
            // The windows of the old tree say nothing about the mended tree.
            self.windows.clear();
            if let Some(builder) = &mut self.builder {
                failed.iter().for_each(|(host, why)| builder.drop_host(*host, why.clone()));
            }
            return;
        }
        self.windows.push((0.0, leaves));
        let number = self.windows.len();
        if let Some(window) = self.windows.last_mut() {
            window.0 = (self.plan.evaluation.duration * number as u32).as_secs_f64();
        }
        self.state = if number < self.plan.evaluation.windows as usize {
            State::Evaluating(tree)
        } else {
            State::Over(Ok(tree))
        };
    }

    /// The record of the finished run.
    pub fn into_record(mut self) -> RunRecord {
        let over = std::mem::replace(&mut self.state, State::Planning);
        let (tree, mut error) = match over {
            State::Over(Ok(tree)) => (Some(tree), None),
            State::Over(Err(error)) => (None, Some(error)),
            _ => (None, Some("stopped before it was complete".into())),
        };
        let names = &self.names;
        let statistics = tree.as_ref().and_then(|_| statistics(&self.windows, names));
        if tree.is_some() && statistics.is_none() {
            error = Some("no probe reached any leaf of the tree".into());
        }
        let built = self.builder.as_ref().map_or(&[][..], TreeBuilder::dropped);
        // The builder may have dropped a host that failed in the evaluation too.
        let more = self.dropped.iter().filter(|dropped| !built.contains(dropped));
        let failed = |(host, reason): &(usize, String)| FailedHost {
            host: names[*host].clone(),
            reason: reason.clone(),
        };
        let failed = built.iter().chain(more).map(failed).collect();
        if let Some(tree) = &tree {
            for stage in &mut self.stages {
                let below = |host: &str| {
                    let edge = |(from, to): (usize, usize)| {
                        stage.parent.as_deref() == Some(names[from].as_str()) && names[to] == host
                    };
                    tree.edges().any(edge)
                };
                let chosen = stage.candidates.iter().filter(|candidate| below(&candidate.host));
                stage.chosen = chosen.map(|candidate| candidate.host.clone()).collect();
            }
        }
        RunRecord {
            software: concat!("evenfall ", env!("CARGO_PKG_VERSION")).into(),
            tree: tree
                .iter()
                .flat_map(PlacedTree::hosts)
                .map(|host| names[*host].clone())
                .collect(),
            error,
            statistics,
            failed,
            expected_us: self.expected.map(|(expected, _)| expected),
            bound_us: self.expected.and_then(|(_, bound)| bound),
            timers: Timers {
                measuring_s: self.measuring.as_secs_f64(),
                evaluating_s: self.evaluating.as_secs_f64(),
                deciding_s: self.deciding.as_secs_f64(),
                wall_s: self.began.elapsed().as_secs_f64(),
            },
            probes: self.probes,
            plan: self.plan,
            stages: self.stages,
        }
    }
}
