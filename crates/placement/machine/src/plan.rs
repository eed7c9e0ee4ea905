//! The program that ends with a tree. The tree is grown parent by parent, or planned on all pairs
//! or on some pairs. A multicast over the tree then evaluates it as a whole.
//!
//! The [`Planner`], the [`TreeBuilder`] and the [`Explorer`] make all decisions. The program turns
//! their requests into jobs, and the results of jobs into answers. The program keeps the answers as
//! [`SurveyLine`]s. A survey with the same settings and these lines continues where the last survey
//! ended, because the same answers lead to the same requests.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use evenfall_core::ClockError;
use serde::{Deserialize, Serialize};

use super::job::{JobSpec, MeasurementKind, ProbePace};
use super::record::{DelayFigures, DelayRecord};
use super::surveyor::{JobOutcome, Program, SurveyStep, Welcome, guilty};
use super::wire::HostFailure;
use evenfall_placement_planner::builder::{
    self, BuildError, Failure, MeasurementRequest, TreeBuilder,
};
use evenfall_placement_planner::delays::{DelayMatrix, EdgeStats};
use evenfall_placement_planner::explorer::{self, Ask, Explorer};
use evenfall_placement_planner::lemondrop::LemonDropError;
use evenfall_placement_planner::minmax::MinMaxError;
use evenfall_placement_planner::planner::{PlanError, PlanMethod, Planner, TreePlan};
use evenfall_placement_planner::shapes::{ShapeCost, ShapeSearch};
use evenfall_placement_planner::tree::PlacedTree;

/// Repetitions of an evaluation or an all-to-all job in which hosts fail. After this number the
/// plan is given as it is. Each repetition loses at least one host.
const ATTEMPTS_MAX: u32 = 4;
/// Matrices that are measured before the survey gives up without a plan.
const MATRICES_MAX: u32 = 2;
/// Probes of the shortest measurement. Fewer probes have no 90th percentile.
const PROBES_MIN: u64 = 10;
/// The warm-up of rounds after the first is divided by this number, because their paths are warm
/// already.
const WARM_SHARE: u32 = 10;

/// Which pairs are measured before there is a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// From each parent to its candidates, one parent after another; for TreeBuilder.
    ByParent,
    /// All pairs, in one job.
    AllPairs,
    /// At most this many pairs, chosen by earlier measurements; for min-max.
    Pairs(u64),
}

impl Extent {
    /// This extent, or all pairs for a method that needs all pairs.
    pub fn fit(self, method: &PlanMethod) -> Self {
        match (self, method) {
            (Self::ByParent, PlanMethod::TreeBuilder(..))
            | (Self::Pairs(_), PlanMethod::MinMax) => self,
            _ => Self::AllPairs,
        }
    }
}

/// One answer to a request of a survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SurveyLine {
    /// Hosts that did not answer the greeting, or failed while a whole tree or matrix was measured.
    Dropped(Vec<(usize, String)>),
    /// A parent failed, and its measurement was lost.
    ParentFailed {
        /// The parent.
        parent: usize,
        /// Why.
        reason: String,
    },
    /// A round of a parent's measurement.
    Measured {
        /// The parent.
        parent: usize,
        /// Number of the round.
        round: u32,
        /// Candidates and the measured delays to them.
        edges: Vec<(usize, EdgeStats)>,
        /// Failed candidates: the number, whether the host failed (else only the edge), and the
        /// reason.
        failed: Vec<(usize, bool, String)>,
    },
    /// Delays between all hosts, between the hosts of a group, or along an explored tree.
    Matrix(Vec<(usize, usize, EdgeStats)>),
}

/// The result of a multicast over the whole tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeEvaluation {
    /// Paths from the root to each leaf: the host of the leaf, the share of lost probes, and the
    /// delays.
    pub leaves: Vec<(usize, f64, DelayFigures)>,
    /// Hops from each parent to its child: both hosts and the delays.
    pub hops: Vec<(usize, usize, DelayFigures)>,
    /// The leaf with the largest 90th percentile, and this percentile in microseconds.
    pub worst_leaf: Option<(usize, f64)>,
    /// Hosts that failed during the evaluation.
    pub failures: Vec<(usize, String)>,
}

/// The result of a survey.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyPlan {
    /// The tree.
    pub tree: PlacedTree,
    /// The planner's figures; `None` when the tree was grown parent by parent.
    pub planned: Option<TreePlan>,
    /// The result of a multicast over the tree.
    pub evaluation: TreeEvaluation,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanSurveyError {
    /// The planner found no tree.
    #[error(transparent)]
    Plan(PlanError),
    /// The lines belong to a survey with other settings, so this survey cannot continue from them.
    #[error(
        "line {line} was written by a survey with other settings, agents or seed: repeat those, or \
         begin anew with another file"
    )]
    OtherSurvey {
        /// Number of the first line that does not fit, from 1.
        line: usize,
    },
    /// The survey was stopped before there was a tree.
    #[error("stopped before there was a tree")]
    Stopped,
}

/// What is chosen from the delays of all pairs.
#[derive(Clone, Copy, Debug)]
enum PlanGoal {
    /// The tree of the planner's shape.
    Tree,
    /// A shape, and its tree.
    Shape(ShapeSearch),
    /// The tree that this host of the pool feeds. The host has no place in the tree.
    Below(usize),
}

#[derive(Clone, Debug)]
enum Stage {
    /// The survey waits for the answers to its greeting.
    Waiting,
    /// The survey waits for the delays of all pairs.
    Matrix,
    /// The planner plans on the delays of all pairs.
    Planning,
    Building,
    Exploring,
    /// The tree is measured as a whole.
    Evaluating(PlacedTree),
    /// There is a plan, or an error.
    Over,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct TreeSurvey {
    planner: Planner,
    pool: usize,
    pace: ProbePace,
    extent: Extent,
    goal: PlanGoal,
    /// The costs of the shapes among which the last plan was chosen.
    shape_costs: Vec<ShapeCost>,
    stage: Stage,
    builder: Option<TreeBuilder>,
    /// Whether trees are measured in both ways, because the pool has more than one clock.
    both_ways: bool,
    explorer: Option<Explorer>,
    /// The planner's figures of the tree under evaluation.
    planned: Option<TreePlan>,
    delays: DelayMatrix,
    dropped: Vec<(usize, String)>,
    attempts: u32,
    matrices: u32,
    replay: VecDeque<(usize, SurveyLine)>,
    lines: Vec<SurveyLine>,
    result: Option<Result<SurveyPlan, PlanSurveyError>>,
    probes: u64,
    /// By sender and receiver: probes sent, and the delays of those that arrived. `None` when
    /// nobody wants them.
    records: Option<BTreeMap<(usize, usize), (u64, DelayRecord)>>,
}

impl TreeSurvey {
    /// A survey that plans a tree from a pool of hosts with these names. All pairs are measured
    /// when the planner's method needs more pairs than `extent` allows.
    pub fn new(planner: Planner, names: Vec<String>, pace: ProbePace, extent: Extent) -> Self {
        Self {
            extent: extent.fit(&planner.method),
            planner,
            pool: names.len(),
            pace,
            goal: PlanGoal::Tree,
            shape_costs: Vec::new(),
            stage: Stage::Waiting,
            builder: None,
            both_ways: false,
            explorer: None,
            planned: None,
            delays: DelayMatrix::new(names),
            dropped: Vec::new(),
            attempts: 0,
            matrices: 0,
            replay: VecDeque::new(),
            lines: Vec::new(),
            result: None,
            probes: 0,
            records: None,
        }
    }

    /// Chooses depth and fan-out as well, in the place of the planner's shape. All pairs are then
    /// measured.
    pub fn choosing_shape(self, search: ShapeSearch) -> Self {
        Self { goal: PlanGoal::Shape(search), extent: Extent::AllPairs, ..self }
    }

    /// Plans the tree that this host of the pool feeds, without a place for the host itself. All
    /// pairs are then measured.
    pub fn planning_below(self, above: usize) -> Self {
        Self { goal: PlanGoal::Below(above), extent: Extent::AllPairs, ..self }
    }

    /// The costs of the shapes among which the plan was chosen, from the flattest to the deepest.
    /// Empty when the shape was given.
    pub fn shape_costs(&self) -> &[ShapeCost] {
        &self.shape_costs
    }

    /// Keeps the histograms of all pairs that are measured all to all, about 300 bytes a pair.
    pub fn keeping_records(mut self) -> Self {
        self.records = Some(BTreeMap::new());
        self
    }

    /// Sender, receiver, probes sent and the delays of those that arrived, for each pair that was
    /// measured all to all. Empty unless the survey keeps them.
    pub fn records(&self) -> impl Iterator<Item = (usize, usize, u64, &DelayRecord)> {
        let all = self.records.iter().flatten();
        all.map(|((from, to), (sent, record))| (*from, *to, *sent, record))
    }

    /// Continues the survey that left these lines.
    pub fn resume(mut self, lines: Vec<SurveyLine>) -> Self {
        self.replay = lines.into_iter().enumerate().collect();
        self
    }

    /// The lines so far, by which the survey can be continued.
    pub fn lines(&self) -> &[SurveyLine] {
        &self.lines
    }

    /// The plan of a finished survey.
    ///
    /// # Errors
    /// [`PlanSurveyError`].
    pub fn result(&self) -> Result<&SurveyPlan, PlanSurveyError> {
        match &self.result {
            Some(Ok(plan)) => Ok(plan),
            Some(Err(error)) => Err(error.clone()),
            None => Err(PlanSurveyError::Stopped),
        }
    }

    /// All measured delays between hosts.
    pub fn delays(&self) -> &DelayMatrix {
        &self.delays
    }

    /// Hosts that failed, and why.
    pub fn dropped(&self) -> &[(usize, String)] {
        match &self.builder {
            Some(builder) => builder.dropped(),
            None => &self.dropped,
        }
    }

    /// Probes that were sent and counted.
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Limit of the jobs that a survey of this plan orders under any failures. The limit exists
    /// because every measurement of the builder ends in a bounded number of rounds, with a host
    /// placed, dropped or without children.
    pub fn jobs_max(&self) -> u64 {
        let (pool, attempts) = (self.pool as u64, u64::from(ATTEMPTS_MAX));
        match (self.extent, self.planner.build_plan()) {
            (Extent::ByParent, Some(plan)) => {
                let per_parent = pool.div_ceil(plan.candidates.max(1) as u64) + 1;
                (2 * pool + attempts) * per_parent * u64::from(plan.racing.rounds.max(1))
            }
            (Extent::Pairs(_), _) => Explorer::jobs_max(self.pool) + attempts,
            _ => u64::from(MATRICES_MAX + 1) * attempts,
        }
    }

    /// Fewest hosts with which there may be a plan.
    fn places_min(&self) -> usize {
        let of_shape = self.planner.shape.checked_places().unwrap_or(usize::MAX);
        match self.goal {
            PlanGoal::Tree => of_shape,
            PlanGoal::Shape(search) => search.places_min(),
            PlanGoal::Below(_) => of_shape.saturating_add(1),
        }
    }

    fn fail(&mut self, error: PlanSurveyError) {
        self.result = Some(Err(error));
        self.stage = Stage::Over;
    }

    /// The pace of one part of the whole measurement, with at least [`PROBES_MIN`] probes.
    fn part(&self, parts: u32, warm_up: Duration) -> ProbePace {
        let least = Duration::from_secs(PROBES_MIN) / self.pace.rate_hz.max(1);
        let duration = (self.pace.duration / parts.max(1)).max(least);
        ProbePace { duration, warm_up, ..self.pace }
    }

    fn alive(&self) -> Vec<usize> {
        let dead = |host: &usize| self.dropped.iter().any(|(dead, _)| dead == host);
        (0..self.pool).filter(|host| !dead(host)).collect()
    }

    /// Removes hosts from the pool and from the builder.
    fn drop_hosts(&mut self, hosts: &[(usize, String)]) {
        for (host, reason) in hosts {
            if self.dropped().iter().any(|(known, _)| known == host) {
                continue;
            }
            self.dropped.push((*host, reason.clone()));
            if let Some(builder) = &mut self.builder {
                builder.drop_host(*host, reason.clone());
            }
            if let Some(explorer) = &mut self.explorer {
                explorer.drop_host(*host);
            }
        }
    }

    fn begin_exploring(&mut self, budget: u64) {
        let names = self.delays.names().to_vec();
        let what = self.planner.min_max();
        self.explorer = Some(Explorer::new(what, names, &self.alive(), budget));
        self.stage = Stage::Exploring;
    }

    fn begin_building(&mut self) {
        let Some(plan) = self.planner.build_plan() else { return };
        match TreeBuilder::new(plan, &self.alive(), self.planner.seed) {
            Err(error) => self.fail(PlanSurveyError::Plan(error.into())),
            Ok(mut builder) => {
                // Dropped hosts are not in the pool, and are still reported with their reasons.
                let dropped = self.dropped.clone();
                dropped.into_iter().for_each(|(host, reason)| builder.drop_host(host, reason));
                self.builder = Some(builder);
                self.stage = Stage::Building;
            }
        }
    }

    /// Applies a line, from the wire or from a file.
    fn apply(&mut self, line: &SurveyLine) {
        match (line, &mut self.builder) {
            (SurveyLine::Dropped(hosts), _) => self.drop_hosts(hosts),
            (SurveyLine::ParentFailed { reason, .. }, Some(builder)) => {
                builder.answer_failed(reason)
            }
            (SurveyLine::Measured { parent, edges, failed, .. }, Some(builder)) => {
                let found = edges.iter().map(|(host, stats)| (*host, Ok(*stats)));
                let failed = failed.iter().map(|(host, whole, reason)| {
                    let failure = if *whole { Failure::Host } else { Failure::Edge };
                    (*host, Err(failure(reason.clone())))
                });
                builder.answer(&found.chain(failed).collect::<Vec<_>>());
                for (host, stats) in edges {
                    let whole = builder.measured().get(&(*parent, *host)).copied();
                    self.delays.set(*parent, *host, Some(whole.unwrap_or(*stats)));
                }
            }
            (SurveyLine::Matrix(edges), _) => {
                for (from, to, stats) in edges {
                    self.delays.set(*from, *to, Some(*stats));
                }
                match &mut self.explorer {
                    Some(explorer) => explorer.answer(edges),
                    None => self.stage = Stage::Planning,
                }
            }
            (SurveyLine::ParentFailed { .. } | SurveyLine::Measured { .. }, None) => {}
        }
    }

    fn tell(&mut self, line: SurveyLine) {
        self.apply(&line);
        self.lines.push(line);
    }

    /// The next request of the builder that the lines of an earlier survey do not answer.
    fn request(&mut self) -> Option<MeasurementRequest> {
        loop {
            let builder = self.builder.as_mut()?;
            match builder.step() {
                builder::BuilderStep::Done(tree) => match self.replay.pop_front() {
                    // In the earlier survey, hosts failed during the evaluation.
                    Some((_, line @ SurveyLine::Dropped(_))) => self.apply(&line),
                    _ => {
                        self.stage = Stage::Evaluating(tree);
                        return None;
                    }
                },
                builder::BuilderStep::Failed(error) => {
                    self.fail(PlanSurveyError::Plan(error.into()));
                    return None;
                }
                builder::BuilderStep::Measure(request) => match self.replay.pop_front() {
                    None => return Some(request),
                    Some((_, line)) if follows(&line, &request) => self.apply(&line),
                    Some((number, _)) => {
                        self.fail(PlanSurveyError::OtherSurvey { line: number + 1 });
                        return None;
                    }
                },
            }
        }
    }

    /// The next request of the explorer that the lines of an earlier survey do not answer.
    fn exploration(&mut self) -> Option<Ask> {
        loop {
            // In the earlier survey, the explorer dropped these hosts before its next choice. A
            // choice before the drop could differ, and the next lines would then answer requests
            // that this survey never made.
            while let Some((_, SurveyLine::Dropped(hosts))) = self.replay.front() {
                let hosts = hosts.clone();
                self.replay.pop_front();
                self.apply(&SurveyLine::Dropped(hosts));
            }
            let over = match self.explorer.as_mut()?.step() {
                explorer::ExplorerStep::Measure(ask) => match self.replay.pop_front() {
                    None => return Some(ask),
                    Some((_, line @ SurveyLine::Matrix(_))) => {
                        self.apply(&line);
                        continue;
                    }
                    Some((number, _)) => Err(PlanSurveyError::OtherSurvey { line: number + 1 }),
                },
                explorer::ExplorerStep::Done(plan) => match self.replay.pop_front() {
                    None => Ok(plan),
                    Some((number, _)) => Err(PlanSurveyError::OtherSurvey { line: number + 1 }),
                },
                explorer::ExplorerStep::Failed(error) => Err(PlanSurveyError::Plan(error.into())),
            };
            match over {
                Ok(plan) => self.evaluate_plan(plan),
                Err(error) => self.fail(error),
            }
            return None;
        }
    }

    /// The same job. If clocks may differ, the job measures both ways.
    fn ways(&self, job: JobSpec) -> JobSpec {
        if self.both_ways { job.both_ways() } else { job }
    }

    fn evaluate_plan(&mut self, plan: TreePlan) {
        self.stage = Stage::Evaluating(plan.tree.clone());
        self.planned = Some(plan);
    }

    /// Plans a tree from the delays of all pairs.
    fn plan_on_matrix(&mut self) {
        self.delays.correct_clocks();
        let (planner, delays, mut alive) = (&self.planner, &self.delays, self.alive());
        let planned = match self.goal {
            PlanGoal::Tree => planner.plan(delays, &alive),
            PlanGoal::Shape(search) => planner.plan_shape(&search, delays, &alive).map(|shaped| {
                self.shape_costs = shaped.costs;
                shaped.plan
            }),
            PlanGoal::Below(above) => {
                alive.retain(|host| *host != above);
                planner.plan_below(delays, above, &alive)
            }
        };
        match planned {
            Ok(plan) => self.evaluate_plan(plan),
            // An outage of half a second can make a matrix useless, so the measurement is repeated.
            Err(error) if lacks_edges(&error) && self.matrices < MATRICES_MAX => {
                self.stage = Stage::Matrix;
            }
            Err(error) => self.fail(PlanSurveyError::Plan(error)),
        }
    }

    fn explored_outcome(&mut self, outcome: &JobOutcome) {
        let hops = outcome.pairs.iter().filter(|pair| !pair.path);
        let edge = |pair: &super::PairDelays| {
            Some((pair.from, pair.to, outcome.edge(pair.from, pair.to)?))
        };
        self.tell(SurveyLine::Matrix(hops.filter_map(edge).collect()));
        self.drop_guilty(outcome);
    }

    fn parent_outcome(&mut self, outcome: &JobOutcome) {
        let parent = outcome.spec.hosts[0];
        let failed = |host: usize| outcome.failures.iter().find(|failure| failure.0 == host);
        if let Some((_, reason)) = failed(parent) {
            // Other hosts may have failed as well, for reasons of their own.
            let own = guilty(&outcome.failures);
            let others = outcome.failures.iter().filter(|(h, _)| *h != parent && own.contains(h));
            let others: Vec<_> = others.map(|(host, why)| (*host, why.to_string())).collect();
            if !others.is_empty() {
                self.tell(SurveyLine::Dropped(others));
            }
            return self.tell(SurveyLine::ParentFailed { parent, reason: reason.to_string() });
        }
        let round = match self.builder.as_mut().map(TreeBuilder::step) {
            Some(builder::BuilderStep::Measure(request)) => request.round,
            _ => 0,
        };
        let (mut edges, mut bad) = (Vec::new(), Vec::new());
        for &host in &outcome.spec.hosts[1..] {
            match (failed(host), outcome.edge(parent, host)) {
                (Some((_, reason)), _) => bad.push((host, true, reason.to_string())),
                (None, Some(stats)) => edges.push((host, stats)),
                (None, None) => bad.push((host, false, HostFailure::NoProbes.to_string())),
            }
        }
        self.tell(SurveyLine::Measured { parent, round, edges, failed: bad });
    }

    /// Drops the hosts that failed for reasons of their own. Hosts behind them stay in the pool.
    fn drop_guilty(&mut self, outcome: &JobOutcome) -> bool {
        let own = guilty(&outcome.failures);
        let failed = outcome.failures.iter().filter(|(host, _)| own.contains(host));
        let failed: Vec<_> = failed.map(|(host, reason)| (*host, reason.to_string())).collect();
        if failed.is_empty() {
            return false;
        }
        self.tell(SurveyLine::Dropped(failed));
        true
    }

    fn keep_records(&mut self, outcome: &JobOutcome) {
        let Some(records) = &mut self.records else { return };
        for pair in &outcome.pairs {
            let (sent, record) = records.entry((pair.from, pair.to)).or_default();
            *sent += pair.sent;
            record.merge(&pair.record);
        }
    }

    fn matrix_outcome(&mut self, outcome: &JobOutcome) {
        self.keep_records(outcome);
        self.attempts += 1;
        let unreached =
            outcome.failures.iter().any(|(_, why)| matches!(why, HostFailure::Unreached(_)));
        self.drop_guilty(outcome);
        if unreached && self.attempts < ATTEMPTS_MAX {
            return;
        }
        let edge =
            |pair: &super::PairDelays| Some((pair.from, pair.to, pair.record.edge(pair.sent)?));
        self.attempts = 0;
        self.matrices += 1;
        self.tell(SurveyLine::Matrix(outcome.pairs.iter().filter_map(edge).collect()));
    }

    fn tree_outcome(&mut self, tree: PlacedTree, outcome: &JobOutcome) {
        self.attempts += 1;
        let evaluation = evaluate(&tree, outcome);
        if self.attempts < ATTEMPTS_MAX && self.drop_guilty(outcome) {
            // The places of these hosts are empty, so the builder, the explorer or the planner goes
            // on.
            self.stage = match self.extent {
                Extent::ByParent => Stage::Building,
                Extent::AllPairs => Stage::Planning,
                Extent::Pairs(_) => Stage::Exploring,
            };
            return;
        }
        let planned = self.planned.take();
        self.result = Some(Ok(SurveyPlan { tree, planned, evaluation }));
        self.stage = Stage::Over;
    }
}

/// Whether there is no tree because edges are missing that another measurement may find.
fn lacks_edges(error: &PlanError) -> bool {
    matches!(
        error,
        PlanError::Build(BuildError::NoRoot { .. })
            | PlanError::MinMax(MinMaxError::NoTree { .. })
            | PlanError::LemonDrop(LemonDropError::Unreachable { .. })
    )
}

/// Whether a line is an answer to this request, or may come before it.
fn follows(line: &SurveyLine, request: &MeasurementRequest) -> bool {
    match line {
        SurveyLine::Dropped(_) => true,
        SurveyLine::ParentFailed { parent, .. } => *parent == request.parent,
        SurveyLine::Measured { parent, round, edges, failed } => {
            let told = edges.iter().map(|edge| edge.0).chain(failed.iter().map(|edge| edge.0));
            let mut told: Vec<usize> = told.collect();
            let mut asked = request.candidates.clone();
            told.sort_unstable();
            asked.sort_unstable();
            (*parent, *round) == (request.parent, request.round) && told == asked
        }
        SurveyLine::Matrix(_) => false,
    }
}

fn evaluate(tree: &PlacedTree, outcome: &JobOutcome) -> TreeEvaluation {
    let leaves = &tree.hosts()[tree.shape().leaves()];
    let paths = outcome.pairs.iter().filter(|pair| pair.path && leaves.contains(&pair.to));
    let leaves: Vec<_> = paths.map(|pair| (pair.to, pair.loss(), pair.record.figures())).collect();
    let hops = outcome.pairs.iter().filter(|pair| !pair.path);
    let arrived = leaves.iter().filter(|(_, _, figures)| figures.count > 0);
    let worst = arrived.max_by(|a, b| a.2.p90_us.total_cmp(&b.2.p90_us));
    TreeEvaluation {
        worst_leaf: worst.map(|(host, _, figures)| (*host, figures.p90_us)),
        hops: hops.map(|pair| (pair.from, pair.to, pair.record.figures())).collect(),
        failures: outcome.failures.iter().map(|(host, why)| (*host, why.to_string())).collect(),
        leaves,
    }
}

impl Program for TreeSurvey {
    fn greeted(&mut self, pool: &[Result<Welcome, HostFailure>]) {
        // The first answers of the earlier survey.
        let all_pairs = self.extent == Extent::AllPairs;
        let first = |line: &SurveyLine| {
            matches!(line, SurveyLine::Dropped(_))
                || (all_pairs && matches!(line, SurveyLine::Matrix(_)))
        };
        while self.replay.front().is_some_and(|(_, line)| first(line)) {
            let Some((_, line)) = self.replay.pop_front() else { break };
            self.apply(&line);
        }
        let mut welcomes = pool.iter().flatten();
        self.both_ways = welcomes.any(|welcome| welcome.clock != ClockError::SameClock);
        let known: Vec<usize> = self.dropped.iter().map(|(host, _)| *host).collect();
        let failed = pool.iter().enumerate().filter_map(|(host, answer)| {
            answer.as_ref().err().map(|reason| (host, reason.to_string()))
        });
        let failed: Vec<_> = failed.filter(|(host, _)| !known.contains(host)).collect();
        let resumed = !self.replay.is_empty();
        if !failed.is_empty() && !resumed {
            self.tell(SurveyLine::Dropped(failed.clone()));
        }
        match self.extent {
            Extent::AllPairs if matches!(self.stage, Stage::Planning) => {}
            Extent::AllPairs => self.stage = Stage::Matrix,
            Extent::ByParent => self.begin_building(),
            Extent::Pairs(budget) => self.begin_exploring(budget),
        }
        if !resumed || matches!(self.stage, Stage::Over) {
            return;
        }
        // The requests must equal the earlier requests until the earlier answers are used up.
        let stage = self.stage.clone();
        match stage {
            Stage::Building => drop(self.request()),
            Stage::Exploring => drop(self.exploration()),
            _ => {}
        }
        if !failed.is_empty() && !matches!(self.stage, Stage::Over) {
            self.tell(SurveyLine::Dropped(failed));
            self.stage = stage;
        }
    }

    fn next(&mut self) -> SurveyStep {
        loop {
            match &self.stage {
                Stage::Waiting | Stage::Over => return SurveyStep::Done,
                Stage::Matrix => {
                    let hosts = self.alive();
                    let places = self.places_min();
                    if hosts.len() < places.max(2) {
                        let error = BuildError::PoolTooSmall { places, hosts: hosts.len() };
                        self.fail(PlanSurveyError::Plan(error.into()));
                        continue;
                    }
                    return SurveyStep::Job(JobSpec::all_to_all(
                        hosts,
                        self.part(1, self.pace.warm_up),
                    ));
                }
                Stage::Planning => self.plan_on_matrix(),
                Stage::Exploring => {
                    let Some(ask) = self.exploration() else { continue };
                    let pace = self.part(1, self.pace.warm_up);
                    return SurveyStep::Job(match ask {
                        Ask::Group(hosts) => JobSpec::all_to_all(hosts, pace),
                        Ask::Edges(tree) => {
                            let fanout = tree.shape().fanout;
                            self.ways(JobSpec::multicast(tree.hosts().to_vec(), fanout, pace))
                        }
                    });
                }
                Stage::Building => {
                    let Some(request) = self.request() else { continue };
                    let warm = if request.round == 0 { 1 } else { WARM_SHARE };
                    let pace = self.part(request.rounds, self.pace.warm_up / warm);
                    let job = JobSpec::parent(request.parent, &request.candidates, pace);
                    return SurveyStep::Job(self.ways(job));
                }
                Stage::Evaluating(tree) => {
                    let fanout = tree.shape().fanout;
                    let hosts = tree.hosts().to_vec();
                    let pace = self.part(1, self.pace.warm_up);
                    return SurveyStep::Job(JobSpec::multicast(hosts, fanout, pace));
                }
            }
        }
    }

    fn take(&mut self, outcome: &JobOutcome) {
        self.probes += outcome.pairs.iter().filter(|pair| !pair.path).map(|p| p.sent).sum::<u64>();
        match (outcome.spec.kind, self.stage.clone()) {
            (MeasurementKind::Multicast, Stage::Evaluating(tree)) => {
                self.tree_outcome(tree, outcome)
            }
            (
                MeasurementKind::AllToAll | MeasurementKind::Multicast | MeasurementKind::BothWays,
                Stage::Exploring,
            ) => {
                self.explored_outcome(outcome);
            }
            (MeasurementKind::AllToAll, Stage::Matrix) => self.matrix_outcome(outcome),
            (MeasurementKind::Parent | MeasurementKind::BothWays, Stage::Building) => {
                self.parent_outcome(outcome)
            }
            _ => {}
        }
    }
}
