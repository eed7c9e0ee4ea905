//! The checks of the survey campaign, which must hold under all faults.
//!
//! The checks see the events that machines give to their owners, and the datagrams that the network
//! delivers.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::Timestamp;
use evenfall_placement_machine::surveyor::guilty;
use evenfall_placement_machine::{
    AgentEvent, HostFailure, Idle, JobOutcome, MeasurementKind, SurveyLine, SurveyorEvent,
    TreeSurvey,
};
use evenfall_sim::{
    Cloud, Fault, FaultKind, NodeIndex, Observer, Run, Seen, SimTime, Violation, World,
    named_variants,
};

use super::SurveyScene;
use super::subject::{FOREIGN_VERSION, Station, StationEvent, SurveySubject, probe_of};

/// Token of the moment at which the surveyor's lines are saved.
pub(super) const SAVE: u64 = 1;
/// Tolerance of time limits: clocks drift by up to 150 ppm, and a machine needs time to take its
/// turn.
const SLACK: Duration = Duration::from_millis(20);
/// Smallest step of a clock that counts as a fault, in nanoseconds. No stated bound is as large.
const STEP_NS_MIN: u64 = 5_000_000;

named_variants! {
    /// The checkers, by name.
    pub enum Check {
        /// Every job, and the survey, ends within its stated time.
        Ends,
        /// No agent is busy for longer than its job may last, or without a job.
        Idle,
        /// No probe counts twice or for another job.
        Counted,
        /// No result includes measurements during a step of a clock.
        Stepped,
        /// An agent of another version is reported with its version.
        Named,
        /// A survey ends with a plan without failed hosts, or with an error message.
        Placed,
    }
}

/// Probes that reached a node in a job from one sender, each with the time of its first copy.
type Delivered = BTreeMap<u32, SimTime>;

/// Watches a survey, and restarts machines that are due to return.
pub(super) struct Owner {
    scene: SurveyScene,
    violations: Vec<Violation<Check>>,
    over: Option<SimTime>,
    life: u64,
    kept: Vec<SurveyLine>,
    /// Number of the running job, its time limit and its start.
    ordered: Option<(u32, Duration, SimTime)>,
    jobs: u64,
    /// Number of the last multicast job.
    multicast: Option<u32>,
    /// The node that last received a probe of that job.
    measured: Option<NodeIndex>,
    /// For each agent, the time until which it may be busy.
    busy: BTreeMap<NodeIndex, SimTime>,
    /// Keys are the life of the run, the job, the sender and the receiver.
    delivered: BTreeMap<(u64, u32, u32, u32), Delivered>,
    steps: Vec<(NodeIndex, SimTime)>,
    /// Hosts named as failed, by number in the pool.
    named: BTreeMap<usize, HostFailure>,
    /// Hosts that failed in the last job.
    last: BTreeSet<usize>,
}

impl Owner {
    pub(super) fn new(scene: SurveyScene) -> Self {
        Self {
            scene,
            violations: Vec::new(),
            over: None,
            life: 1,
            kept: Vec::new(),
            ordered: None,
            jobs: 0,
            multicast: None,
            measured: None,
            busy: BTreeMap::new(),
            delivered: BTreeMap::new(),
            steps: Vec::new(),
            named: BTreeMap::new(),
            last: BTreeSet::new(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// The node that last received a probe of a multicast.
    pub(super) fn measured(&self) -> Option<NodeIndex> {
        self.measured
    }

    fn fail(&mut self, check: Check, at: SimTime, what: String) {
        self.violations.push(Violation { check, what: format!("at {at}: {what}") });
    }

    /// Whether the plan has one of these kinds of faults.
    fn has(&self, kinds: &[FaultKind]) -> bool {
        self.scene.plan.kinds.iter().any(|kind| kinds.contains(kind))
    }

    fn agent(&mut self, seen: Seen, event: AgentEvent) {
        match event {
            AgentEvent::Busy { limit, .. } => {
                self.busy.insert(seen.node, seen.at + limit);
            }
            AgentEvent::Idle { why, .. } => {
                let until = self.busy.remove(&seen.node);
                let stops = [FaultKind::Pause, FaultKind::Slow];
                let late = until.is_none_or(|until| seen.at > until + SLACK);
                if late && !self.has(&stops) {
                    let what = format!("{} was busy until {why:?}, allowed {until:?}", seen.node);
                    self.fail(Check::Idle, seen.at, what);
                }
                if why == Idle::TooLong {
                    self.fail(Check::Idle, seen.at, format!("{} was not let go", seen.node));
                }
            }
        }
    }

    fn surveyor(&mut self, at: SimTime, event: SurveyorEvent) {
        match event {
            SurveyorEvent::Greeted { failures, .. } => self.named.extend(failures),
            SurveyorEvent::Ordered { job, limit, kind, .. } => {
                self.ordered = Some((job, limit, at));
                self.multicast = (kind == MeasurementKind::Multicast).then_some(job);
            }
            SurveyorEvent::Finished(outcome) => self.finished(at, &outcome),
            SurveyorEvent::Over => self.over = Some(at),
        }
    }

    fn finished(&mut self, at: SimTime, outcome: &JobOutcome) {
        self.jobs += 1;
        if let Some((job, limit, began)) = self.ordered.take()
            && (job != outcome.job || at > began + limit + SLACK)
        {
            let what = format!("job {} took {:?} of {limit:?}", outcome.job, at.since(began));
            self.fail(Check::Ends, at, what);
        }
        self.last = guilty(&outcome.failures);
        let own = outcome.failures.iter().filter(|(host, _)| self.last.contains(host));
        self.named.extend(own.copied());
        for pair in outcome.pairs.iter().filter(|pair| !pair.path) {
            let (from, to) = (pair.from as u32 + 1, pair.to as u32 + 1);
            let delivered = self.delivered.get(&(self.life, outcome.job, from, to));
            let count = delivered.map_or(0, |delivered| delivered.len() as u64);
            if pair.record.count() > count {
                let counted = pair.record.count();
                let what = format!("n{from} to n{to}: {counted} counted, {count} delivered");
                self.fail(Check::Counted, at, what);
            }
            self.stepped(at, (outcome.job, from, to), pair.record.count());
        }
    }

    /// A clock that stepped between two probes of a pair makes the pair worthless. When a pair
    /// counts at most as many probes as arrived before the step, all of its counted probes may be
    /// from before the step.
    fn stepped(&mut self, at: SimTime, (job, from, to): (u32, u32, u32), counted: u64) {
        let stops = [FaultKind::Pause, FaultKind::Slow, FaultKind::Restart, FaultKind::Crash];
        if self.has(&stops) {
            return;
        }
        let delivered = self.delivered.get(&(self.life, job, from, to));
        let Some(delivered) = delivered else { return };
        let within = |(node, when): &&(NodeIndex, SimTime)| {
            let before = delivered.values().filter(|at| *at < when).count() as u64;
            (node.0 == from || node.0 == to) && (1..counted).contains(&before)
        };
        if let Some((node, when)) = self.steps.iter().find(within) {
            let what = format!("n{from} to n{to} counts, and {node} stepped at {when}");
            self.fail(Check::Stepped, at, what);
        }
    }

    /// The checks at the end of a run.
    pub(super) fn close(
        mut self,
        world: &World<SurveySubject, Cloud>,
        ended: SimTime,
    ) -> Run<Check> {
        let gone = self.scene.dies.is_some() && self.scene.returns.is_none();
        if self.over.is_none() && !gone {
            self.fail(Check::Ends, ended, "no end".into());
        }
        for node in (1..world.node_count() as u32).map(NodeIndex) {
            let Station::Agent(agent) = world.machine(node).station() else { continue };
            if world.is_up(node) && agent.is_busy() {
                let what = format!("{node} is still busy: {:?}", agent.status().busy);
                self.fail(Check::Idle, world.now(), what);
            }
        }
        let (mut planned, mut refused, mut dropped) = (false, None, 0);
        if let (Station::Surveyor(surveyor), Some(at)) =
            (world.machine(NodeIndex(0)).station(), self.over)
        {
            let survey = &surveyor.program().survey;
            dropped = survey.dropped().len();
            planned = survey.result().is_ok();
            refused = survey.result().err().map(|error| error.to_string());
            self.placed(at, survey);
        }
        let took = self.over.unwrap_or(ended).since(SimTime::ZERO);
        let counts = vec![
            ("plans", u64::from(planned)),
            ("plans around failed hosts", u64::from(planned && !self.named.is_empty())),
            ("errors in words", u64::from(refused.is_some())),
            ("hosts named as failed", dropped as u64),
            ("jobs", self.jobs),
            ("milliseconds until the end", took.as_millis() as u64),
        ];
        let story = refused.map_or_else(String::new, |error| format!("no plan: {error}\n"));
        Run { violations: self.violations, digest: world.digest(), counts, story }
    }

    fn placed(&mut self, at: SimTime, survey: &TreeSurvey) {
        if self.jobs > survey.jobs_max() * self.life {
            let what = format!("{} jobs, {} allowed", self.jobs, survey.jobs_max());
            self.fail(Check::Ends, at, what);
        }
        let named: BTreeMap<usize, String> =
            self.named.iter().map(|(host, reason)| (*host, reason.to_string())).collect();
        let foreign = self.scene.foreign.map(|node| node as usize - 1);
        let version = HostFailure::Version(FOREIGN_VERSION);
        // A host that does not answer reports no version, so a silent host may count as silent
        // instead.
        let silence = (!self.quiet()).then_some(HostFailure::Silent);
        let right = |reason: &HostFailure| *reason == version || Some(*reason) == silence;
        if let Some(host) = foreign
            && !self.named.get(&host).is_some_and(right)
        {
            let what = format!("host {host} is {:?}", self.named.get(&host));
            self.fail(Check::Named, at, what);
        }
        match survey.result() {
            Ok(plan) => {
                let excused = |host: &usize| {
                    self.last.contains(host)
                        && plan.evaluation.failures.iter().any(|failure| failure.0 == *host)
                };
                let hosts = plan.tree.hosts();
                let bad: Vec<_> =
                    hosts.iter().filter(|h| named.contains_key(h) && !excused(h)).collect();
                if !bad.is_empty() {
                    self.fail(Check::Placed, at, format!("{bad:?} have places, and failed"));
                }
            }
            Err(error) => {
                let needed = self.scene.wanted.shape.places();
                let enough = self.scene.agents as usize >= needed;
                if error.to_string().is_empty() || (enough && named.is_empty()) && self.quiet() {
                    self.fail(Check::Placed, at, format!("no plan, and nobody failed: {error}"));
                }
            }
        }
    }

    /// Whether the run had no fault of the network or of agents.
    fn quiet(&self) -> bool {
        let clocks = [FaultKind::ClockStep, FaultKind::ClockDrift];
        self.scene.plan.kinds.iter().all(|kind| clocks.contains(kind)) && self.life == 1
    }
}

impl Observer<SurveySubject, Cloud> for Owner {
    fn event(&mut self, seen: Seen, event: StationEvent) {
        match event {
            StationEvent::Agent(event) => self.agent(seen, event),
            StationEvent::Surveyor(event) => self.surveyor(seen.at, event),
        }
    }

    fn token(&mut self, world: &mut World<SurveySubject, Cloud>, _: u64) {
        if let Station::Surveyor(surveyor) = world.machine(NodeIndex(0)).station() {
            self.kept = surveyor.program().survey.lines().to_vec();
        }
    }

    fn received(&mut self, seen: Seen, from: NodeIndex, datagram: &[u8]) {
        let Some(probe) = probe_of(datagram, self.scene.bytes_key()) else { return };
        let life = probe.run & 0xff;
        let pair = (life, probe.job, from.0, seen.node.0);
        let delivered = self.delivered.entry(pair).or_default();
        // A duplicate, whether late or sent by a rogue, does not show when the pair was measured.
        if probe.warm_up || delivered.contains_key(&probe.sequence) {
            return;
        }
        delivered.insert(probe.sequence, seen.at);
        if self.multicast == Some(probe.job) {
            self.measured = Some(seen.node);
        }
    }

    fn fault(&mut self, at: SimTime, fault: &Fault) {
        match *fault {
            Fault::ClockStep(node, by) if by.unsigned_abs() > STEP_NS_MIN => {
                self.steps.push((node, at));
            }
            Fault::Crash(node) => {
                self.busy.remove(&node);
                if node.0 == 0 {
                    self.ordered = None;
                }
            }
            _ => {}
        }
    }

    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<SurveySubject> {
        Some(match node.0 {
            0 => {
                self.life += 1;
                if self.over.take().is_some() {
                    // The plan was there, and its tree is measured again.
                    self.named.retain(|host, _| !self.last.contains(host));
                }
                self.scene.surveyor(self.life, self.kept.clone(), now)
            }
            number => self.scene.agent(number),
        })
    }
}
