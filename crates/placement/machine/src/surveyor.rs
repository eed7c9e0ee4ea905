//! The machine that orders jobs. The surveyor greets the pool, and then orders the jobs that its
//! program asks for.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Head, MacKey, Machine, Malformed, Timestamp,
    TrafficClass, Transmit,
};
use evenfall_placement_planner::delays::EdgeStats;

use super::branch::Branch;
use super::job::{JobSeat, JobSpec, LEADER, MeasurementKind, Task, Timing};
use super::record::DelayRecord;
use super::wire::{self, Decoded, HostFailure, ReportEntry, SurveyBody, SurveyMessage};

/// Limit of control messages that wait. Beyond it the newest message is dropped, because every
/// message is repeated.
const CONTROL_MAX: usize = 8_192;

/// Settings of a surveyor.
#[derive(Clone, Debug)]
pub struct SurveyorConfig {
    /// Intervals and limits of control messages.
    pub timing: Timing,
    /// How long an agent has to answer the first greeting.
    pub greet: Duration,
    /// How long to wait for agents that work for another surveyor, which may be dead.
    pub busy_patience: Duration,
    /// Key that authenticates control messages and probes.
    pub key: Option<MacKey>,
}

impl Default for SurveyorConfig {
    /// An agent has twenty polls to answer the greeting. The surveyor waits for busy agents until
    /// agents of a dead surveyor are idle, in a job of eight layers.
    fn default() -> Self {
        let timing = Timing::default();
        let greet = timing.lease;
        Self { timing, greet, busy_patience: timing.idle_limit(8), key: None }
    }
}

/// An agent that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Name and version of the software, for people.
    pub software: String,
    /// Error bound of the agent's clock.
    pub clock: ClockError,
}

/// The next step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SurveyStep {
    /// Order this job.
    Job(JobSpec),
    /// End the survey.
    Done,
}

/// The purpose of a survey: it asks for one job after the other. Hosts are numbers of the pool.
pub trait Program {
    /// Takes the answers to the greeting. Called once, before the first job.
    fn greeted(&mut self, pool: &[Result<Welcome, HostFailure>]);

    /// The next step. Called once for every answer.
    fn next(&mut self) -> SurveyStep;

    /// Takes the outcome of the last job.
    fn take(&mut self, outcome: &JobOutcome);
}

/// The measured delays from one host to another.
#[derive(Clone, Debug, PartialEq)]
pub struct PairDelays {
    /// Sender, or the leader when the delays are those of a path.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Whether the delays are those of the whole path through the tree.
    pub path: bool,
    /// Probes that were sent and counted.
    pub sent: u64,
    /// Delays of the probes that arrived.
    pub record: DelayRecord,
}

impl PairDelays {
    /// Share of probes that did not arrive.
    pub fn loss(&self) -> f64 {
        if self.sent == 0 {
            return 1.0;
        }
        1.0 - (self.record.count() as f64 / self.sent as f64).min(1.0)
    }
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOutcome {
    /// Number of the job, unique in the run.
    pub job: u32,
    /// The job that the program asked for.
    pub spec: JobSpec,
    /// Every pair whose two hosts both reported. A pair may have lost all its probes.
    pub pairs: Vec<PairDelays>,
    /// Hosts that failed, and why.
    pub failures: Vec<(usize, HostFailure)>,
    /// Time from the order to the report.
    pub took: Duration,
}

impl JobOutcome {
    /// The delays from one host to another, if there are any. Where the job has measured the way
    /// back too, the difference of the two clocks is taken out of the delays. A job in both ways
    /// gives no delays for a pair whose way back is unknown.
    pub fn edge(&self, from: usize, to: usize) -> Option<EdgeStats> {
        let way = |from: usize, to: usize| {
            let mut pairs = self.pairs.iter().filter(|pair| !pair.path);
            let pair = pairs.find(|pair| (pair.from, pair.to) == (from, to))?;
            pair.record.edge(pair.sent)
        };
        let (there, back) = (way(from, to)?, way(to, from));
        match back {
            Some(back) => Some(there.without_clocks(&back)),
            None => (self.spec.kind != MeasurementKind::BothWays).then_some(there),
        }
    }
}

/// Events of a surveyor for its owner.
#[derive(Clone, Debug, PartialEq)]
pub enum SurveyorEvent {
    /// All agents have answered, or their time is over.
    Greeted {
        /// Number of agents that answered.
        usable: usize,
        /// Hosts that did not answer, with their reasons.
        failures: Vec<(usize, HostFailure)>,
    },
    /// A job was ordered.
    Ordered {
        /// Number of the job.
        job: u32,
        /// What is measured.
        kind: MeasurementKind,
        /// Host that leads the job.
        leader: usize,
        /// Number of hosts in the job.
        hosts: usize,
        /// Limit of the job's duration.
        limit: Duration,
    },
    /// A job is over.
    Finished(Box<JobOutcome>),
    /// The program has ended, or was stopped.
    Over,
}

#[derive(Debug)]
struct Active {
    job: u32,
    spec: JobSpec,
    branch: Branch,
    began: Timestamp,
    expires: Timestamp,
}

#[derive(Debug)]
enum State {
    Greeting {
        answers: Vec<Option<Result<Welcome, HostFailure>>>,
        began: Timestamp,
        next: Timestamp,
    },
    Working(Box<Active>),
    Over,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Surveyor<P> {
    config: SurveyorConfig,
    run: u64,
    agents: Vec<SocketAddr>,
    program: P,
    state: State,
    jobs: u32,
    control: VecDeque<(SocketAddr, Bytes)>,
    events: VecDeque<SurveyorEvent>,
    /// Control messages dropped because too many waited.
    dropped: u64,
}

impl<P: Program> Surveyor<P> {
    /// A surveyor that begins at `now`. `run` must differ in each of its lives.
    pub fn new(
        config: SurveyorConfig,
        run: u64,
        agents: Vec<SocketAddr>,
        program: P,
        now: Timestamp,
    ) -> Self {
        let answers = vec![None; agents.len()];
        Self {
            config,
            run,
            agents,
            program,
            state: State::Greeting { answers, began: now, next: now },
            jobs: 0,
            control: VecDeque::new(),
            events: VecDeque::new(),
            dropped: 0,
        }
    }

    /// The program of this surveyor.
    pub fn program(&self) -> &P {
        &self.program
    }

    /// Gives the program back.
    pub fn into_program(self) -> P {
        self.program
    }

    /// Whether the program has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Control messages dropped so far because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Ends the run. The agents are told to be idle.
    pub fn stop(&mut self) {
        if let State::Working(active) = &self.state {
            let (job, hosts) = (active.job, active.spec.hosts.clone());
            self.release(job, &hosts);
        }
        self.end();
    }

    fn end(&mut self) {
        if !self.is_over() {
            self.state = State::Over;
            self.events.push_back(SurveyorEvent::Over);
        }
    }

    fn release(&mut self, job: u32, hosts: &[usize]) {
        for &host in hosts {
            self.send(self.agents[host], job, SurveyBody::Release);
        }
    }

    fn send(&mut self, to: SocketAddr, job: u32, body: SurveyBody) {
        if self.control.len() >= CONTROL_MAX {
            self.dropped += 1;
            return;
        }
        let message = SurveyMessage { run: self.run, job, body };
        self.control.push_back((to, message.encode(self.config.key.as_ref())));
    }

    fn greet(&mut self, now: Timestamp) {
        let State::Greeting { answers, began, next } = &mut self.state else { return };
        let waited = now.since(*began);
        let open = answers.iter().any(|answer| match answer {
            None => waited < self.config.greet,
            Some(Err(HostFailure::Busy(_))) => waited < self.config.busy_patience,
            Some(_) => false,
        });
        if open && now >= *next {
            *next = now + self.config.timing.poll;
            let waiting =
                |answer: &Option<_>| matches!(answer, None | Some(Err(HostFailure::Busy(_))));
            let unanswered: Vec<SocketAddr> = (self.agents.iter().zip(answers))
                .filter(|(_, answer)| waiting(answer))
                .map(|(address, _)| *address)
                .collect();
            unanswered.into_iter().for_each(|address| self.send(address, 0, SurveyBody::Hello));
        } else if !open {
            let silent = |answer: Option<_>| answer.unwrap_or(Err(HostFailure::Silent));
            let pool: Vec<_> = core::mem::take(answers).into_iter().map(silent).collect();
            let failed = |(host, answer): (usize, &Result<Welcome, HostFailure>)| {
                answer.as_ref().err().map(|reason| (host, *reason))
            };
            let failures: Vec<_> = pool.iter().enumerate().filter_map(failed).collect();
            let usable = pool.len() - failures.len();
            self.events.push_back(SurveyorEvent::Greeted { usable, failures });
            self.program.greeted(&pool);
            self.next(now);
        }
    }

    fn next(&mut self, now: Timestamp) {
        match self.program.next() {
            SurveyStep::Done => self.end(),
            SurveyStep::Job(spec) => self.order(now, spec),
        }
    }

    fn order(&mut self, now: Timestamp, spec: JobSpec) {
        self.jobs += 1;
        let timing = self.config.timing;
        let seat = |(place, host): (usize, &usize)| JobSeat {
            place: place as u16,
            address: self.agents[*host],
        };
        let seats: Vec<JobSeat> = spec.hosts.iter().enumerate().map(seat).collect();
        let mesh = match spec.kind {
            MeasurementKind::AllToAll => seats.clone(),
            MeasurementKind::BothWays => seats[..1].to_vec(),
            MeasurementKind::Parent | MeasurementKind::Multicast => Vec::new(),
        };
        let task = Task {
            kind: spec.kind,
            fanout: spec.fanout,
            pace: spec.pace,
            timing,
            above: LEADER,
            seats,
            mesh,
        };
        let limit = timing.life_limit(spec.height(), &spec.pace);
        self.events.push_back(SurveyorEvent::Ordered {
            job: self.jobs,
            kind: spec.kind,
            leader: spec.hosts[usize::from(LEADER)],
            hosts: spec.hosts.len(),
            limit,
        });
        self.state = State::Working(Box::new(Active {
            job: self.jobs,
            branch: Branch::new(now, task),
            began: now,
            expires: now + limit,
            spec,
        }));
        self.advance(now);
    }

    fn advance(&mut self, now: Timestamp) {
        let State::Working(active) = &mut self.state else { return };
        if active.branch.is_prepared() {
            active.branch.start(now);
        }
        let (to, job) = (active.branch.address(), active.job);
        let body = active.branch.tick(now);
        let over = active.branch.is_over() || now >= active.expires;
        if let Some(body) = body {
            self.send(to, job, body);
        }
        if over {
            self.finish(now);
        }
    }

    fn finish(&mut self, now: Timestamp) {
        let State::Working(active) = core::mem::replace(&mut self.state, State::Over) else {
            return;
        };
        let Active { job, spec, mut branch, began, .. } = *active;
        let outcome = outcome(job, spec, branch.report(), now.since(began));
        // The leader releases the hosts below it. When a host failed, the surveyor releases every
        // host itself, so that none is left out.
        let told = if outcome.failures.is_empty() { 1 } else { outcome.spec.hosts.len() };
        self.release(job, &outcome.spec.hosts[..told]);
        self.program.take(&outcome);
        self.events.push_back(SurveyorEvent::Finished(Box::new(outcome)));
        // The survey goes on: `next` orders another job, or ends the survey.
        self.state = State::Greeting { answers: Vec::new(), began: now, next: Timestamp::MAX };
        self.next(now);
    }

    fn answered(&mut self, from: SocketAddr, answer: Result<Welcome, HostFailure>) {
        let State::Greeting { answers, .. } = &mut self.state else { return };
        let agents = self.agents.iter().zip(answers);
        for (_, slot) in agents.filter(|(address, _)| **address == from) {
            *slot = Some(answer.clone());
        }
    }

    fn handle_message(&mut self, now: Timestamp, from: SocketAddr, message: SurveyMessage) {
        if message.run != self.run {
            return;
        }
        match (&mut self.state, message.body) {
            (State::Greeting { .. }, SurveyBody::Welcome { software, clock }) => {
                self.answered(from, Ok(Welcome { software, clock }));
                self.greet(now);
            }
            (State::Greeting { .. }, SurveyBody::Refusal(reason)) if message.job == 0 => {
                self.answered(from, Err(reason));
                self.greet(now);
            }
            (State::Working(active), body)
                if message.job == active.job && from == active.branch.address() =>
            {
                active.branch.take(now, body);
                self.advance(now);
            }
            _ => {}
        }
    }
}

/// Reads a report: the results to which both ends of a pair agree, and the hosts that failed.
fn outcome(job: u32, spec: JobSpec, entries: Vec<ReportEntry>, took: Duration) -> JobOutcome {
    let hosts = spec.hosts.len();
    let mut failed: BTreeMap<u16, HostFailure> = BTreeMap::new();
    let mut sent: BTreeMap<(u16, u16), u32> = BTreeMap::new();
    let mut found: BTreeMap<(bool, u16, u16), DelayRecord> = BTreeMap::new();
    for entry in entries {
        match entry {
            ReportEntry::Failed { place, reason } if usize::from(place) < hosts => {
                failed.entry(place).or_insert(reason);
            }
            ReportEntry::Sent { from, to, count } => {
                sent.insert((from, to), count);
            }
            ReportEntry::Delays { from, to, path, record } => {
                found.insert((path, from, to), record);
            }
            ReportEntry::Failed { .. } => {}
        }
    }
    let expected = expected(&spec);
    blame(&expected, &found, &mut failed);
    let mut pairs = Vec::new();
    for (path, from, to) in expected {
        // A host forwards every probe that it receives, so its count of received probes is also its
        // count of sent probes.
        let is_in_turn = match spec.kind {
            MeasurementKind::Parent | MeasurementKind::Multicast => false,
            MeasurementKind::AllToAll => true,
            MeasurementKind::BothWays => from > to,
        };
        let sender = if is_in_turn { (from, to) } else { (LEADER, LEADER) };
        let count = sent.get(&sender).copied().unwrap_or(0);
        let (Some(_), None, None) = (sent.get(&sender), failed.get(&from), failed.get(&to)) else {
            continue;
        };
        let record = found.remove(&(path, from, to)).unwrap_or_default();
        let (from, to) = (spec.hosts[usize::from(from)], spec.hosts[usize::from(to)]);
        pairs.push(PairDelays { from, to, path, sent: count.into(), record });
    }
    let failures = failed.into_iter();
    let failures = failures.map(|(place, why)| (spec.hosts[usize::from(place)], why)).collect();
    JobOutcome { job, spec, pairs, failures, took }
}

/// The pairs of places that a job measures.
fn expected(spec: &JobSpec) -> Vec<(bool, u16, u16)> {
    let places = 0..spec.hosts.len() as u16;
    let below = places.clone().skip(1);
    match spec.kind {
        MeasurementKind::Parent => below.map(|to| (false, LEADER, to)).collect(),
        MeasurementKind::BothWays => {
            let above = |host: u16| (host - 1) / spec.fanout;
            below.flat_map(|h| [(false, above(h), h), (false, h, above(h))]).collect()
        }
        MeasurementKind::Multicast => {
            let hops = below.clone().map(|to| (false, (to - 1) / spec.fanout, to));
            hops.chain(below.map(|to| (true, LEADER, to))).collect()
        }
        MeasurementKind::AllToAll => places
            .clone()
            .flat_map(|from| places.clone().map(move |to| (false, from, to)))
            .filter(|(_, from, to)| from != to)
            .collect(),
    }
}

/// Names the hosts whose clocks must be wrong. An impossible delay accuses both of its ends. The
/// host that is accused most often has failed, and the other delays of that host then accuse
/// nobody.
fn blame(
    expected: &[(bool, u16, u16)],
    found: &BTreeMap<(bool, u16, u16), DelayRecord>,
    failed: &mut BTreeMap<u16, HostFailure>,
) {
    let impossible = expected.iter().filter(|(path, ..)| !path).filter_map(|key| {
        let record = found.get(key)?;
        Some((key.1, key.2, record.impossible_ns()?))
    });
    let mut impossible: Vec<(u16, u16, i64)> = impossible.collect();
    loop {
        impossible.retain(|(from, to, _)| !failed.contains_key(from) && !failed.contains_key(to));
        let mut accused: BTreeMap<u16, u32> = BTreeMap::new();
        for (from, to, _) in &impossible {
            *accused.entry(*from).or_default() += 1;
            *accused.entry(*to).or_default() += 1;
        }
        // Among equally accused hosts, the host furthest from the leader is blamed, because a job
        // without its leader is lost.
        let Some((&worst, _)) = accused.iter().max_by_key(|(place, count)| (**count, **place))
        else {
            return;
        };
        let delays = impossible.iter().filter(|(from, to, _)| *from == worst || *to == worst);
        let least = delays.map(|(.., ns)| *ns).min().unwrap_or(0);
        failed.insert(worst, HostFailure::ClockLies(least));
    }
}

impl<P: Program> Machine for Surveyor<P> {
    type Event = SurveyorEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        match wire::decode(&arrival.datagram, self.config.key.as_ref())? {
            Decoded::Message(message) => self.handle_message(now, arrival.from, message),
            Decoded::Foreign { version, .. } => match &mut self.state {
                State::Greeting { .. } => {
                    self.answered(arrival.from, Err(HostFailure::Version(version)));
                    self.greet(now);
                }
                State::Working(active) if active.branch.address() == arrival.from => {
                    active.branch.take(now, SurveyBody::Refusal(HostFailure::Version(version)));
                    self.advance(now);
                }
                State::Working(_) | State::Over => {}
            },
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.greet(now);
        self.advance(now);
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<SurveyorEvent> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        let (to, body) = self.control.pop_front()?;
        let to = Destination::One(to);
        Some(Transmit::new(TrafficClass::Control, to, Head::new(&[]), body))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        match &self.state {
            State::Greeting { next, .. } => Some(*next),
            State::Working(active) => {
                Some(active.branch.due().unwrap_or(active.expires).min(active.expires))
            }
            State::Over => None,
        }
    }
}

/// Hosts that failed for reasons of their own. The other failed hosts may take part again.
pub fn guilty(failures: &[(usize, HostFailure)]) -> BTreeSet<usize> {
    let own = |reason: &HostFailure| !matches!(reason, HostFailure::Unreached(_));
    failures.iter().filter(|(_, reason)| own(reason)).map(|(host, _)| *host).collect()
}
