//! The fields on which runs take place: recorded delays and running agents. The simulator drives
//! the same [`SurveyedRuns`] as the agents do.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use evenfall_core::{ClockError, Prng, math};
use evenfall_host::interrupt;
use evenfall_placement_machine::job::{HOSTS_MAX, MESH_HOSTS_MAX};
use evenfall_placement_machine::surveyor::{Welcome, guilty};
use evenfall_placement_machine::{
    DelayRecord, HostFailure, JobOutcome, JobSpec, MeasurementKind, ProbePace, Program, SurveyStep,
    SurveyorConfig,
};
use evenfall_placement_planner::builder::{Failure, MeasurementRequest};
use evenfall_placement_planner::curve::Curve;
use evenfall_placement_planner::delays::{DelayMatrix, EdgeStats};
use evenfall_placement_planner::tree::PlacedTree;

use super::course::{ExperimentRun, FoundCandidate, Want};
use super::error::ExperimentError;
use super::file::RunPlan;
use super::record::{LeafSample, RunRecord, unknown_clock};
use crate::surveyor;
use crate::{Settings, SurveyError};

/// An observer of the runs.
pub trait RunWatch {
    /// Takes the record of a finished run. `false` stops the other runs.
    fn over(&mut self, record: RunRecord) -> bool;

    /// Takes a line about a run under way.
    fn said(&mut self, run: &RunPlan, words: &str) {
        let _ = (run, words);
    }
}

/// Where runs take place.
pub trait RunField {
    /// Carries out these runs, one after another, until a signal comes.
    ///
    /// # Errors
    /// The reason why no run can continue. A run that fails alone ends with an error in its record.
    fn carry_out(
        &mut self,
        runs: Vec<RunPlan>,
        watch: &mut dyn RunWatch,
    ) -> Result<(), ExperimentError>;
}

// ---- recorded ----------------------------------------------------------------------------------

/// Most probes of one window that are drawn on recorded delays. More probes do not make a 90th
/// percentile more certain than the file is.
const DRAWN_MAX: u64 = 20_000;
/// Most probes that are drawn in one run. This many probes take 80 MB.
const SAMPLES_MAX: u64 = 20_000_000;
/// Share of probes that meet a spike. The spikes make up the part of an edge's measured standard
/// deviation that its percentiles do not explain.
const SPIKES: f64 = 1e-3;

/// Delays from a file. A tree is evaluated by probes that are drawn along its paths, as if the
/// edges were independent. Most probes follow the recorded percentiles. Rare spikes make up the
/// rest of the recorded standard deviation, and the recorded loss counts too.
#[derive(Debug)]
pub struct Recorded {
    delays: DelayMatrix,
}

/// The distribution from which the probes of one edge are drawn.
struct Edge {
    curve: Curve,
    spike_us: f64,
    loss: f64,
    clock: ClockError,
}

impl Edge {
    fn of(stats: &EdgeStats) -> Option<Self> {
        let curve = Curve::of(stats)?;
        let cells = 200;
        let mean = curve.mean();
        let cell = |i: u32| math::square(curve.at((f64::from(i) + 0.5) / f64::from(cells)) - mean);
        let body = (0..cells).map(cell).sum::<f64>() / f64::from(cells);
        let measured = math::square(f64::from(stats.stddev_us));
        // E[spike^2] of an exponential is twice its mean squared. An unknown spread has no rest.
        let rest = if measured > body { measured - body } else { 0.0 };
        let spike_us = (rest / (2.0 * SPIKES)).sqrt();
        let clock = unknown_clock(stats);
        Some(Self { curve, spike_us, loss: f64::from(stats.loss), clock })
    }

    fn draw(&self, prng: &mut Prng) -> Option<f64> {
        if prng.chance(self.loss) {
            return None;
        }
        let body = self.curve.at(prng.unit());
        let spike = if prng.chance(SPIKES) { prng.exponential(self.spike_us) } else { 0.0 };
        Some(body + spike)
    }
}

impl Recorded {
    /// Delays that were read.
    pub fn new(delays: DelayMatrix) -> Self {
        Self { delays }
    }

    /// Reads a file. `skipped` gets a line for each row that is left out.
    ///
    /// # Errors
    /// The file, the line and the mistake.
    pub fn read(path: &Path, skipped: &mut dyn FnMut(String)) -> Result<Self, ExperimentError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(ExperimentError::file(path))?;
        let loaded = DelayMatrix::parse(&text).map_err(|error| format!("{shown}: {error}"))?;
        if loaded.skipped_rows > 0 {
            let first = loaded.skipped.first().map(ToString::to_string).unwrap_or_default();
            skipped(format!("{shown}: skipped {} rows, first {first}", loaded.skipped_rows));
        }
        Ok(Self { delays: loaded.delays })
    }

    fn parent(&self, request: &MeasurementRequest) -> Vec<FoundCandidate> {
        let unknown = || Failure::Edge("not measured".into());
        let edge = |host: &usize| {
            let stats = self.delays.edge(request.parent, *host).copied();
            (*host, stats.ok_or_else(unknown))
        };
        request.candidates.iter().map(edge).collect()
    }

    fn pairs(&self, hosts: &[usize]) -> Vec<(usize, usize, EdgeStats)> {
        let to = |from: usize| {
            let edge = move |&to: &usize| Some((from, to, *self.delays.edge(from, to)?));
            hosts.iter().filter_map(edge)
        };
        hosts.iter().flat_map(|from| to(*from)).collect()
    }

    /// Draws one window. Random numbers belong to places and not to hosts, so that trees are
    /// compared on the same draws.
    fn window(&self, tree: &PlacedTree, count: u64, seed: u64) -> Result<Vec<LeafSample>, String> {
        let (shape, hosts) = (tree.shape(), tree.hosts());
        let mut ways: Vec<Vec<Option<f64>>> = vec![vec![Some(0.0); count as usize]];
        let mut clocks = vec![ClockError::SameClock];
        let mut leaves = Vec::new();
        for place in 1..hosts.len() {
            let parent = shape.parent(place).unwrap_or(0);
            let (from, to) = (hosts[parent], hosts[place]);
            let edge = self.delays.edge(from, to).and_then(Edge::of).ok_or_else(|| {
                let name = |host: usize| &self.delays.names()[host];
                format!("no delays from {} to {}", name(from), name(to))
            })?;
            let mut prng = Prng::new(seed).fork(place as u64);
            let hop = |way: &Option<f64>| {
                // The delay is drawn for a lost probe too, so that a loss does not shift the draws
                // of later probes.
                let drawn = edge.draw(&mut prng);
                Some((*way)? + drawn?)
            };
            let way: Vec<Option<f64>> = ways[parent].iter().map(hop).collect();
            let clock = farther(clocks[parent], edge.clock);
            if shape.leaves().contains(&place) {
                let mut record = DelayRecord::default();
                way.iter().flatten().for_each(|us| record.record((us * 1e3) as i64, clock));
                let samples = way.iter().flatten().map(|us| *us as f32).collect();
                leaves.push(LeafSample { host: to, sent: count, record, samples });
            } else {
                ways.push(way);
                clocks.push(clock);
            }
        }
        Ok(leaves)
    }

    fn run(&self, plan: RunPlan) -> RunRecord {
        let mut course = ExperimentRun::new(plan, self.delays.names().to_vec(), Vec::new());
        if let Err(error) = self.measure(&mut course) {
            course.fail(error);
        }
        course.into_record()
    }

    /// Takes the course to its end.
    fn measure(&self, course: &mut ExperimentRun) -> Result<(), String> {
        let plan = course.plan();
        if let Some(field) = course.strategy().and_then(|strategy| strategy.lacks(&self.delays)) {
            return Err(format!(
                "its strategy reads {}, which the file does not have",
                field.name()
            ));
        }
        let length_s = plan.evaluation.duration.as_secs_f64();
        let all = u64::from(plan.evaluation.windows) * plan.shape().places() as u64;
        let most = (SAMPLES_MAX / all.max(1)).clamp(1, DRAWN_MAX);
        let count = ((f64::from(plan.probe.rate) * length_s) as u64).clamp(1, most);
        let (seed, nothing) = (plan.seed, Duration::ZERO);
        let mut windows = 0;
        loop {
            match course.want() {
                Want::Done => return Ok(()),
                Want::Parent(request) => {
                    course.take_parent(Ok(&self.parent(&request)), nothing, 0);
                }
                Want::AllToAll(hosts) => {
                    course.take_matrix(&self.pairs(&hosts), &[], false, nothing, 0);
                }
                Want::Tree(tree) => {
                    windows += 1;
                    let leaves = self.window(&tree, count, seed << 20 ^ windows)?;
                    course.take_tree(leaves, &[], nothing, 0);
                }
            }
        }
    }
}

/// The clock error of a path: the errors of its edges add up.
fn farther(way: ClockError, edge: ClockError) -> ClockError {
    match (way, edge) {
        (ClockError::Within(a), ClockError::Within(b)) => ClockError::Within(a + b),
        (ClockError::SameClock, other) | (other, ClockError::SameClock) => other,
        _ => ClockError::Unknown,
    }
}

impl RunField for Recorded {
    fn carry_out(
        &mut self,
        runs: Vec<RunPlan>,
        watch: &mut dyn RunWatch,
    ) -> Result<(), ExperimentError> {
        for plan in runs {
            if interrupt::raised() || !watch.over(self.run(plan)) {
                return Ok(());
            }
        }
        Ok(())
    }
}

// ---- surveyed ----------------------------------------------------------------------------------

/// Probes of the shortest measurement. Fewer probes have no 90th percentile.
const PROBES_MIN: u64 = 10;
/// Rounds after the first warm up for the whole warm-up time divided by this number, because their
/// paths are warm.
const WARM_SHARE: u32 = 10;

/// Runs as a program of a surveyor: one after another over the same pool.
pub struct SurveyedRuns<'a> {
    names: Vec<String>,
    runs: std::vec::IntoIter<RunPlan>,
    course: Option<ExperimentRun>,
    /// Hosts that gave no answer, with the reason.
    absent: Vec<(usize, String)>,
    watch: &'a mut dyn RunWatch,
    stopped: bool,
}

impl core::fmt::Debug for SurveyedRuns<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SurveyedRuns").field("course", &self.course).finish_non_exhaustive()
    }
}

impl<'a> SurveyedRuns<'a> {
    /// These runs, in a pool with these names.
    pub fn new(names: Vec<String>, runs: Vec<RunPlan>, watch: &'a mut dyn RunWatch) -> Self {
        let runs = runs.into_iter();
        Self { names, runs, course: None, absent: Vec::new(), watch, stopped: false }
    }

    /// Whether the observer has stopped the runs.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn spec(&self, course: &ExperimentRun, want: Want) -> Option<JobSpec> {
        let pace = course.plan().probe.pace();
        // The shortest part of a measurement takes `PROBES_MIN` probes.
        let least = Duration::from_secs(PROBES_MIN) / pace.rate_hz.max(1);
        Some(match want {
            Want::Done => return None,
            Want::Parent(request) => {
                let warm = if request.round == 0 { 1 } else { WARM_SHARE };
                let duration = (pace.duration / request.rounds.max(1)).max(least);
                let pace = ProbePace { duration, warm_up: pace.warm_up / warm, ..pace };
                JobSpec::parent(request.parent, &request.candidates, pace)
            }
            Want::AllToAll(hosts) => JobSpec::all_to_all(hosts, pace),
            Want::Tree(tree) => {
                let fanout = tree.shape().fanout;
                let duration = course.plan().evaluation.duration.max(least);
                let pace = ProbePace { duration, ..pace };
                JobSpec::multicast(tree.hosts().to_vec(), fanout, pace)
            }
        })
    }

    /// The next run that has something to measure.
    fn open(&mut self) -> Option<JobSpec> {
        loop {
            if self.stopped {
                return None;
            }
            if self.course.is_none() {
                let plan = self.runs.next()?;
                self.course =
                    Some(ExperimentRun::new(plan, self.names.clone(), self.absent.clone()));
            }
            let mut course = self.course.take()?;
            let want = course.want();
            if let Some(spec) = self.spec(&course, want) {
                self.course = Some(course);
                return Some(spec);
            }
            self.stopped = !self.watch.over(course.into_record());
        }
    }
}

/// For each candidate of a parent, its measurement in this part or its failure.
fn candidates(outcome: &JobOutcome) -> Vec<FoundCandidate> {
    let one = |&host: &usize| {
        let failed = outcome.failures.iter().find(|(failed, _)| *failed == host);
        let found = match (failed, outcome.edge(outcome.spec.hosts[0], host)) {
            (Some((_, reason)), _) => Err(Failure::Host(reason.to_string())),
            (None, Some(stats)) => Ok(stats),
            (None, None) => Err(Failure::Edge(HostFailure::NoProbes.to_string())),
        };
        (host, found)
    };
    outcome.spec.hosts[1..].iter().map(one).collect()
}

impl Program for SurveyedRuns<'_> {
    fn greeted(&mut self, pool: &[Result<Welcome, HostFailure>]) {
        let absent = |(host, answer): (usize, &Result<Welcome, HostFailure>)| {
            Some((host, answer.as_ref().err()?.to_string()))
        };
        self.absent = pool.iter().enumerate().filter_map(absent).collect();
    }

    fn next(&mut self) -> SurveyStep {
        self.open().map_or(SurveyStep::Done, SurveyStep::Job)
    }

    fn take(&mut self, outcome: &JobOutcome) {
        let Some(course) = &mut self.course else { return };
        let probes = outcome.pairs.iter().filter(|pair| !pair.path).map(|pair| pair.sent).sum();
        let own = guilty(&outcome.failures);
        let failed = outcome.failures.iter().filter(|(host, _)| own.contains(host));
        let failed: Vec<_> = failed.map(|(host, why)| (*host, why.to_string())).collect();
        let (took, leader) = (outcome.took, outcome.spec.hosts[0]);
        let words = match outcome.spec.kind {
            MeasurementKind::Parent | MeasurementKind::BothWays => {
                let lost = outcome.failures.iter().find(|(host, _)| *host == leader);
                match lost {
                    Some((_, why)) => course.take_parent(Err(&why.to_string()), took, probes),
                    None => course.take_parent(Ok(&candidates(outcome)), took, probes),
                }
                format!("{} to {} candidates", self.names[leader], outcome.spec.hosts.len() - 1)
            }
            MeasurementKind::AllToAll => {
                let edge = |pair: &evenfall_placement_machine::PairDelays| {
                    Some((pair.from, pair.to, pair.record.edge(pair.sent)?))
                };
                let pairs: Vec<_> = outcome.pairs.iter().filter_map(edge).collect();
                let again = outcome.failures.len() > failed.len();
                course.take_matrix(&pairs, &failed, again, took, probes);
                format!("all to all, {} hosts", outcome.spec.hosts.len())
            }
            MeasurementKind::Multicast => {
                course.take_tree(leaves(outcome), &failed, took, probes);
                format!("multicast over the tree, {} hosts", outcome.spec.hosts.len())
            }
        };
        let failures = failed.iter().map(|(host, why)| format!("; {}: {why}", self.names[*host]));
        let words = format!("{words}, {:.2} s{}", took.as_secs_f64(), failures.collect::<String>());
        self.watch.said(course.plan(), &words);
    }
}

/// The probes that reached the leaves.
fn leaves(outcome: &JobOutcome) -> Vec<LeafSample> {
    let spec = &outcome.spec;
    let has_children = |place: usize| place * usize::from(spec.fanout) + 1 < spec.hosts.len();
    let places = spec.hosts.iter().enumerate().filter(|(place, _)| !has_children(*place));
    let of = |(_, host): (usize, &usize)| {
        let pair = outcome.pairs.iter().find(|pair| pair.path && pair.to == *host)?;
        let record = pair.record.clone();
        Some(LeafSample { host: *host, sent: pair.sent, record, samples: Vec::new() })
    };
    places.filter_map(of).collect()
}

// ---- live --------------------------------------------------------------------------------------

/// Running agents.
#[derive(Debug)]
pub struct Live {
    settings: Settings,
    names: Vec<String>,
    agents: Vec<SocketAddr>,
}

impl Live {
    /// The agents of a settings file.
    ///
    /// # Errors
    /// When the file is wrong, or names no agents.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        let settings = Settings::load(path, &[]).map_err(SurveyError::from)?;
        let agents = settings.agents.iter();
        let (names, agents): (Vec<_>, Vec<_>) =
            agents.map(|node| (node.name.clone(), node.address)).unzip();
        if agents.is_empty() {
            return Err(format!("{}: no [[node]] has role = \"agent\"", path.display()).into());
        }
        if agents.len() > HOSTS_MAX {
            return Err(format!("{} agents: {HOSTS_MAX} at most", agents.len()).into());
        }
        Ok(Self { settings, names, agents })
    }
}

impl RunField for Live {
    fn carry_out(
        &mut self,
        runs: Vec<RunPlan>,
        watch: &mut dyn RunWatch,
    ) -> Result<(), ExperimentError> {
        let all = |plan: &&RunPlan| plan.needs_all_pairs();
        if let Some(plan) = runs.iter().find(all).filter(|_| self.agents.len() > MESH_HOSTS_MAX) {
            let (id, count) = (&plan.id, self.agents.len());
            return Err(ExperimentError::Refused(format!(
                "run {id}: measures all pairs of {count} agents; {MESH_HOSTS_MAX} at most"
            )));
        }
        let key = self.settings.run.key().map_err(SurveyError::from)?;
        let timing = self.settings.survey.timing();
        let config = SurveyorConfig {
            timing,
            greet: timing.lease,
            busy_patience: timing.idle_limit(8),
            ..SurveyorConfig::default()
        };
        let survey = SurveyedRuns::new(self.names.clone(), runs, watch);
        surveyor::run(config, key.as_ref(), self.agents.clone(), survey, &mut |_, _| {})?;
        Ok(())
    }
}
