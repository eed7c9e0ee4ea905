//! The machine on every host of the pool. An agent carries out one job at a time, and is idle when
//! no surveyor asks.
//!
//! ```text
//! Preparing --all below ready or given up--> Ready --Go--> Running --length, drain--> Gathering
//!     those below are over --> Done --Release--> idle;   no poll for a lease, anywhere --> idle
//! ```

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Clock, ClockError, ClockReading, Destination, Head, Install, MacKey, Machine,
    Malformed, Timestamp, TrafficClass, Transmit,
};

use super::branch::{Branch, PARTS_PER_POLL};
use super::job::{MeasurementKind, Task};
use super::probe::{self, DelayProbe};
use super::prober::{self, Catcher, GROUP, Prober};
use super::wire::{
    self, Decoded, HostFailure, PART_ENTRIES, Phase, ReportEntry, SurveyBody, SurveyMessage,
    VERSION,
};

/// Control messages that may wait. Beyond this number the newest is dropped, because a poll repeats
/// every message.
const CONTROL_MAX: usize = 4_096;
/// Probes that may wait to be forwarded. Beyond this number the newest is dropped, which counts as
/// loss.
const RELAY_MAX: usize = 256;
/// Share of a step, after the last probe, in which probes under way may still arrive.
const DRAIN_SHARE: u32 = 5;
/// How fast two readings of a good clock may move apart: 500 ppm, the most that the kernel slews.
const SLEW_PPM: u64 = 500;
/// Smallest jump between two readings that counts as a step, because reading a clock takes that
/// long.
const STEP_MIN: Duration = Duration::from_micros(5);
/// Kinds of message, in every version, that wait for an answer.
const ASKING: [u8; 2] = [0, 2];

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name and version of the software, which surveyors print.
    pub software: String,
    /// Probes per second that the agent sends to all receivers together. Faster jobs are refused.
    pub probes_per_second_max: u64,
    /// Key that authenticates control messages and probes.
    pub key: Option<MacKey>,
}

impl Default for AgentConfig {
    /// The default is below the rate at which one core can send through one socket.
    fn default() -> Self {
        let software = concat!("evenfall ", env!("CARGO_PKG_VERSION")).to_owned();
        Self { software, probes_per_second_max: 100_000, key: None }
    }
}

/// Why an agent became idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// The surveyor or a superior released the job.
    Released,
    /// The agent was not polled for the length of its lease.
    LeaseLapsed,
    /// The job took longer than its limit.
    TooLong,
    /// The same surveyor ordered another job.
    Replaced,
}

/// Events of an agent for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// The agent took a job.
    Busy {
        /// Run of the surveyor.
        run: u64,
        /// Job.
        job: u32,
        /// What is measured.
        kind: MeasurementKind,
        /// Limit of the time for which the agent is busy.
        limit: Duration,
    },
    /// The agent is idle again.
    Idle {
        /// Run of the surveyor.
        run: u64,
        /// Job.
        job: u32,
        /// Reason of the end.
        why: Idle,
    },
}

/// The state of an agent, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AgentStatus {
    /// The job, as `run/job`, and its state; `None` when the agent is idle.
    pub busy: Option<String>,
    /// Jobs taken.
    pub jobs: u64,
    /// Probes sent, warm-up and forwarded ones included, each group as one.
    pub probes_sent: u64,
    /// Probes received for the current job.
    pub probes_received: u64,
    /// Ignored probes: probes of other jobs, probes from places that do not send here, and
    /// duplicates.
    pub probes_ignored: u64,
    /// Probes that were not forwarded because too many waited.
    pub probes_dropped: u64,
    /// Control messages dropped because too many waited.
    pub control_dropped: u64,
    /// Leases that lapsed.
    pub leases_lapsed: u64,
}

#[derive(Debug)]
struct Work {
    run: u64,
    job: u32,
    owner: SocketAddr,
    polled: Timestamp,
    expires: Timestamp,
    task: Task,
    phase: Phase,
    /// Time at which the last probes have been sent and have drained.
    drained: Timestamp,
    branches: Vec<Branch>,
    prober: Option<Prober>,
    catcher: Catcher,
    relay: VecDeque<DelayProbe>,
    padding: Bytes,
    stepped: Option<i64>,
    parts: Vec<Vec<ReportEntry>>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    clock: Clock,
    /// Time of the last reading of the clock.
    clock_at: Option<Timestamp>,
    work: Option<Work>,
    /// The last job that the agent took. Older jobs of its run are refused.
    last: (u64, u32),
    control: VecDeque<(SocketAddr, Bytes)>,
    events: VecDeque<AgentEvent>,
    installs: VecDeque<Install>,
    status: AgentStatus,
}

impl Agent {
    /// An idle agent.
    pub fn new(config: AgentConfig) -> Self {
        Self {
            config,
            clock: Clock::default(),
            clock_at: None,
            work: None,
            last: (0, 0),
            control: VecDeque::new(),
            events: VecDeque::new(),
            installs: VecDeque::new(),
            status: AgentStatus::default(),
        }
    }

    /// Whether the agent has a job.
    pub fn is_busy(&self) -> bool {
        self.work.is_some()
    }

    /// The state of the agent, for people.
    pub fn status(&self) -> AgentStatus {
        let busy = |work: &Work| format!("{:016x}/{} {:?}", work.run, work.job, work.phase);
        AgentStatus { busy: self.work.as_ref().map(busy), ..self.status.clone() }
    }

    fn send(&mut self, to: SocketAddr, run: u64, job: u32, body: SurveyBody) {
        if self.control.len() >= CONTROL_MAX {
            self.status.control_dropped += 1;
            return;
        }
        let bytes = SurveyMessage { run, job, body }.encode(self.config.key.as_ref());
        self.control.push_back((to, bytes));
    }

    fn answer(&mut self, to: SocketAddr, asked: &SurveyMessage, body: SurveyBody) {
        self.send(to, asked.run, asked.job, body);
    }

    /// Sends the state to the host that ordered the job, and the report from part `from` on.
    fn report(&mut self, from: u32) {
        let Some(work) = &self.work else { return };
        let (owner, run, job) = (work.owner, work.run, work.job);
        let parts = if work.phase == Phase::Done { work.parts.len() as u32 } else { 0 };
        let progress = work.branches.iter().map(Branch::progress).sum();
        let status = SurveyBody::Status { phase: work.phase, parts, progress };
        let window = work.parts.iter().enumerate().skip(from as usize);
        let window: Vec<SurveyBody> = window
            .take(PARTS_PER_POLL as usize)
            .map(|(index, entries)| SurveyBody::Part {
                index: index as u32,
                entries: entries.clone(),
            })
            .collect();
        self.send(owner, run, job, status);
        window.into_iter().for_each(|part| self.send(owner, run, job, part));
    }

    fn handle_control(&mut self, now: Timestamp, from: SocketAddr, message: SurveyMessage) {
        match &message.body {
            SurveyBody::Hello => self.hello(from, &message),
            SurveyBody::Task(task) => self.order(now, from, &message, task.clone()),
            SurveyBody::Go | SurveyBody::Poll(_) | SurveyBody::Release => {
                self.obey(now, from, &message)
            }
            SurveyBody::Status { .. } | SurveyBody::Part { .. } | SurveyBody::Refusal(_) => {
                if let Some(work) = &mut self.work
                    && (work.run, work.job) == (message.run, message.job)
                    && let Some(branch) = work.branches.iter_mut().find(|b| b.address() == from)
                {
                    branch.take(now, message.body);
                    self.advance(now);
                }
            }
            SurveyBody::Welcome { .. } => {}
        }
    }

    fn hello(&mut self, from: SocketAddr, message: &SurveyMessage) {
        let busy = self.work.as_ref().map(|work| work.run).filter(|run| *run != message.run);
        let body = match busy {
            Some(run) => SurveyBody::Refusal(HostFailure::Busy(run)),
            None => SurveyBody::Welcome {
                software: self.config.software.clone(),
                clock: self.clock.reading().error,
            },
        };
        self.answer(from, message, body);
    }

    fn order(&mut self, now: Timestamp, from: SocketAddr, message: &SurveyMessage, task: Task) {
        let (run, job) = (message.run, message.job);
        match &mut self.work {
            Some(work) if (work.run, work.job) == (run, job) => {
                (work.owner, work.polled) = (from, now);
                return self.report(0);
            }
            Some(work) if work.run != run => {
                let reason = HostFailure::Busy(work.run);
                return self.answer(from, message, SurveyBody::Refusal(reason));
            }
            _ => {}
        }
        if self.last.0 == run && job <= self.last.1 {
            // The poll is for another job, for instance a late duplicate.
            let (phase, parts, progress) = (Phase::None, 0, 0);
            return self.answer(from, message, SurveyBody::Status { phase, parts, progress });
        }
        let copies = task.copies() as u64;
        if u64::from(task.pace.rate_hz) * copies > self.config.probes_per_second_max {
            return self.answer(from, message, SurveyBody::Refusal(HostFailure::Refused));
        }
        self.drop_work(Idle::Replaced);
        self.begin(now, from, (run, job), task);
    }

    fn begin(&mut self, now: Timestamp, owner: SocketAddr, (run, job): (u64, u32), task: Task) {
        let limit = task.timing.life_limit(task.height(), &task.pace);
        self.last = (run, job);
        self.status.jobs += 1;
        self.status.probes_received = 0;
        self.events.push_back(AgentEvent::Busy { run, job, kind: task.kind, limit });
        if task.kind != MeasurementKind::AllToAll {
            let group = task.children().iter().map(|seat| seat.address).collect::<Arc<[_]>>();
            self.installs.push_back(Install::Group(GROUP, group));
        }
        self.work = Some(Work {
            run,
            job,
            owner,
            polled: now,
            expires: now + limit,
            phase: Phase::Preparing,
            drained: Timestamp::MAX,
            branches: task.below().map(|task| Branch::new(now, task)).collect(),
            prober: None,
            catcher: Catcher::default(),
            relay: VecDeque::new(),
            padding: prober::padding(&task.pace),
            stepped: None,
            parts: Vec::new(),
            task,
        });
        self.advance(now);
    }

    fn obey(&mut self, now: Timestamp, from: SocketAddr, message: &SurveyMessage) {
        let work = self.work.as_mut();
        let Some(work) = work.filter(|work| (work.run, work.job) == (message.run, message.job))
        else {
            let (phase, parts, progress) = (Phase::None, 0, 0);
            return self.answer(from, message, SurveyBody::Status { phase, parts, progress });
        };
        (work.owner, work.polled) = (from, now);
        match message.body {
            SurveyBody::Release => {
                self.drop_work(Idle::Released);
                let (phase, parts, progress) = (Phase::None, 0, 0);
                self.answer(from, message, SurveyBody::Status { phase, parts, progress });
            }
            SurveyBody::Go => {
                if work.phase == Phase::Ready {
                    work.phase = Phase::Running;
                    let drain = work.task.timing.step / DRAIN_SHARE;
                    work.drained = prober::ends_at(now, &work.task.pace) + drain;
                    work.prober = Prober::new(now, &work.task);
                    work.branches.iter_mut().for_each(|branch| branch.start(now));
                }
                self.report(0);
                self.advance(now);
            }
            SurveyBody::Poll(from) => self.report(from),
            _ => {}
        }
    }

    /// Drops the job, and releases the hosts below.
    fn drop_work(&mut self, why: Idle) {
        let Some(work) = self.work.take() else { return };
        self.installs.push_back(Install::Group(GROUP, Arc::from([])));
        self.events.push_back(AgentEvent::Idle { run: work.run, job: work.job, why });
        self.status.leases_lapsed += u64::from(why == Idle::LeaseLapsed);
        for branch in &work.branches {
            self.send(branch.address(), work.run, work.job, SurveyBody::Release);
        }
    }

    /// Makes all state transitions that have become possible.
    fn advance(&mut self, now: Timestamp) {
        let Some(work) = &mut self.work else { return };
        let (run, job) = (work.run, work.job);
        let mut asked = Vec::new();
        for branch in &mut work.branches {
            asked.extend(branch.tick(now).map(|body| (branch.address(), body)));
        }
        let before = work.phase;
        if work.phase == Phase::Preparing && work.branches.iter().all(Branch::is_prepared) {
            work.phase = Phase::Ready;
        }
        if work.phase == Phase::Running && now >= work.drained {
            work.phase = Phase::Gathering;
        }
        if work.phase == Phase::Gathering && work.branches.iter().all(Branch::is_over) {
            work.phase = Phase::Done;
            let mut entries = work.found().into_iter().peekable();
            // The entries are moved, because a report of all pairs can take a hundred megabytes.
            while entries.peek().is_some() {
                work.parts.push(entries.by_ref().take(PART_ENTRIES).collect());
            }
        }
        let changed = work.phase != before;
        asked.into_iter().for_each(|(to, body)| self.send(to, run, job, body));
        if changed {
            // The status is sent without a poll, so that a job takes no longer than it must. A poll
            // repeats it.
            self.report(0);
        }
    }

    fn handle_probe(&mut self, arrival: &Arrival) -> Result<(), Malformed> {
        let probe = DelayProbe::decode(&arrival.datagram, self.config.key.as_ref())?;
        let (at, here) = (self.clock.sync(arrival.received), self.clock.reading().error);
        let expected = |work: &&mut Work| {
            (work.run, work.job) == (probe.run, probe.job)
                && matches!(work.phase, Phase::Ready | Phase::Running)
                && work.task.hears(probe.from)
        };
        let Some(work) = self.work.as_mut().filter(expected) else {
            self.status.probes_ignored += 1;
            return Ok(());
        };
        if !work.catcher.take(&probe, at, here) {
            self.status.probes_ignored += 1;
            return Ok(());
        }
        self.status.probes_received += 1;
        if work.task.forwards(probe.from) {
            if work.relay.len() < RELAY_MAX {
                work.relay.push_back(probe);
            } else {
                self.status.probes_dropped += 1;
            }
        }
        Ok(())
    }

    /// The probe that leaves now, if one is due. A forwarded probe goes first, because it is under
    /// way already.
    fn probe(&mut self, now: Timestamp) -> Option<Transmit> {
        let work = self.work.as_mut()?;
        let (sent, error) = (self.clock.sync(now), self.clock.reading().error);
        let from = work.task.me().place;
        let (to, probe) = match work.relay.pop_front() {
            Some(probe) => {
                let probe = DelayProbe { from, sent, sent_error: error, ..probe };
                (Destination::Group(GROUP), probe)
            }
            None => {
                let (to, warm_up, sequence) = work.prober.as_mut()?.take(now)?;
                let (run, job, origin, origin_error) = (work.run, work.job, sent, error);
                let sent_error = error;
                let probe = DelayProbe {
                    warm_up,
                    from,
                    run,
                    job,
                    sequence,
                    origin,
                    sent,
                    origin_error,
                    sent_error,
                };
                (to, probe)
            }
        };
        self.status.probes_sent += 1;
        Some(prober::transmit(&probe, to, &work.padding, self.config.key.as_ref()))
    }
}

impl Work {
    /// The report: the entries of this host, and the entries of all hosts below.
    fn found(&mut self) -> Vec<ReportEntry> {
        let me = self.task.me().place;
        let mut entries = match self.stepped {
            Some(ns) => {
                vec![ReportEntry::Failed { place: me, reason: HostFailure::ClockStepped(ns) }]
            }
            None => self.catcher.entries(&self.task),
        };
        entries.extend(self.prober.iter().flat_map(|prober| prober.entries(me)));
        entries.extend(self.branches.iter_mut().flat_map(Branch::report));
        entries
    }

    fn due(&self) -> Timestamp {
        let branches = self.branches.iter().filter_map(Branch::due).min();
        let prober = self.prober.as_ref().and_then(Prober::poll_timeout);
        let drained = (self.phase == Phase::Running).then_some(self.drained);
        let lease = self.polled + self.task.timing.lease;
        [branches, prober, drained, Some(lease), Some(self.expires)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Timestamp::MAX)
    }
}

/// How far a clock moved between two readings, when that is more than a good clock can move.
fn stepped(before: ClockReading, after: ClockReading, between: Duration) -> Option<i64> {
    let (ClockError::Within(a), ClockError::Within(b)) = (before.error, after.error) else {
        return None;
    };
    let slewed =
        Duration::from_nanos((between.as_nanos() as u64).saturating_mul(SLEW_PPM) / 1_000_000);
    let moved = after.offset_ns.saturating_sub(before.offset_ns);
    let allowed = a + b + slewed + STEP_MIN;
    (u128::from(moved.unsigned_abs()) > allowed.as_nanos()).then_some(moved)
}

impl Machine for Agent {
    type Event = AgentEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        if arrival.datagram.starts_with(&probe::MAGIC) {
            return self.handle_probe(&arrival);
        }
        match wire::decode(&arrival.datagram, self.config.key.as_ref())? {
            Decoded::Message(message) => self.handle_control(now, arrival.from, message),
            Decoded::Foreign { version, kind } => {
                let branches = self.work.iter_mut().flat_map(|work| &mut work.branches);
                let branch = branches.into_iter().find(|b| b.address() == arrival.from);
                if let Some(branch) = branch {
                    branch.take(now, SurveyBody::Refusal(HostFailure::Version(version)));
                    self.advance(now);
                } else if ASKING.contains(&kind) {
                    let body = SurveyBody::Refusal(HostFailure::Version(VERSION));
                    self.send(arrival.from, 0, 0, body);
                }
            }
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        let Some(work) = &mut self.work else { return };
        if now >= work.polled + work.task.timing.lease {
            return self.drop_work(Idle::LeaseLapsed);
        }
        if now >= work.expires {
            return self.drop_work(Idle::TooLong);
        }
        if let Some(prober) = &mut work.prober {
            prober.handle_timeout(now);
        }
        self.advance(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        if let (Some(at), Some(work)) = (self.clock_at, &mut self.work)
            && let Some(ns) = stepped(self.clock.reading(), reading, now.since(at))
        {
            work.stepped = Some(ns);
        }
        self.clock_at = Some(now);
        self.clock.set(reading);
    }

    fn poll_event(&mut self) -> Option<AgentEvent> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some((to, body)) = self.control.pop_front() {
            let to = Destination::One(to);
            return Some(Transmit::new(TrafficClass::Control, to, Head::new(&[]), body));
        }
        self.probe(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.work.as_ref().map(Work::due)
    }
}
