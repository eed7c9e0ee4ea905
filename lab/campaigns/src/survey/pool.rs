//! A simulated pool for surveys without faults: agents and a surveyor on the cloud of a model's
//! file.
//!
//! The hosts have the processor costs of sockets, and the cards, pauses and clocks of the model.

use core::time::Duration;

use evenfall_core::Timestamp;
use evenfall_placement_machine::surveyor::Welcome;
use evenfall_placement_machine::{
    Agent, AgentConfig, HostFailure, JobOutcome, Program, SurveyStep, Surveyor, SurveyorConfig,
    SurveyorEvent,
};
use evenfall_sim::{
    ClockSpec, Cloud, HostSpec, NodeIndex, Observer, Seen, SimTime, World, any_machine,
};

use crate::model::{Model, Simulated, Stack};

/// Parameters of the simulated pool.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// The cloud in which the pool is.
    pub model: Model,
    /// Hosts with an agent.
    pub hosts: u32,
    /// Numbers of hosts that are slow in addition to the hosts that the seed makes slow.
    pub slow: Vec<u32>,
    /// Factor by which the delays of these hosts are longer.
    pub slow_factor: f64,
    /// Seed of the hosts, the pairs and all random events.
    pub seed: u64,
}

impl PoolSpec {
    /// A pool of this many hosts, none of which is slow but by the seed.
    pub fn new(model: &Model, hosts: u32, seed: u64) -> Self {
        Self { model: model.clone(), hosts, slow: Vec::new(), slow_factor: 1.0, seed }
    }
}

/// A program that is borrowed from the caller. Its type is open, so that one world serves all
/// programs and is compiled here, with optimisation.
struct Lent<'a>(&'a mut dyn Program);

impl Program for Lent<'_> {
    fn greeted(&mut self, pool: &[Result<Welcome, HostFailure>]) {
        self.0.greeted(pool);
    }

    fn next(&mut self) -> SurveyStep {
        self.0.next()
    }

    fn take(&mut self, outcome: &JobOutcome) {
        self.0.take(outcome);
    }
}

/// An agent or the surveyor.
enum SurveyNode<'a> {
    Agent(Box<Agent>),
    Surveyor(Box<Surveyor<Lent<'a>>>),
}

any_machine! {
    impl Machine for SurveyNode<'_> {
        type Event = Option<SurveyorEvent>;

        Agent(agent) => agent.poll_event().map(|_| None),
        Surveyor(surveyor) => surveyor.poll_event().map(Some),
    }
}

/// What a survey took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Jobs that were finished.
    pub jobs: u64,
    /// Simulated time from the first greeting to the end; `None` when the survey was stopped.
    pub time: Option<Duration>,
}

impl Observer<SurveyNode<'_>, Cloud> for Took {
    fn event(&mut self, seen: Seen, event: Option<SurveyorEvent>) {
        match event {
            Some(SurveyorEvent::Finished(_)) => self.jobs += 1,
            Some(SurveyorEvent::Over) => self.time = Some(seen.at.since(SimTime::ZERO)),
            _ => {}
        }
    }
}

/// Runs a program of a surveyor to its end, or until `stop` returns true. `rate_hz` is the probe
/// rate of its jobs, which agents must allow.
pub fn survey(
    spec: &PoolSpec,
    rate_hz: u32,
    program: &mut dyn Program,
    stop: &mut dyn FnMut() -> bool,
) -> Took {
    let mut world = World::new(Cloud::new(spec.model.cloud(), spec.seed), spec.seed);
    let origin = Timestamp::from_nanos(1_000_000_000);
    let usual = spec.model.host(Stack::Sockets);
    let host = |number: u32| {
        let slow = number > 0 && spec.slow.contains(&(number - 1));
        let clock = ClockSpec { origin: Some(origin), ..usual.clock.clone() };
        let slowness = if slow { spec.slow_factor } else { 1.0 };
        HostSpec { slowness, clock, ..usual.clone() }
    };
    let agents = (1..=spec.hosts).map(|number| world.address(NodeIndex(number))).collect();
    let config = SurveyorConfig::default();
    let surveyor = Surveyor::new(config, spec.seed | 1, agents, Lent(program), origin);
    world.add(SurveyNode::Surveyor(Box::new(surveyor)), host(0));
    let most = u64::from(rate_hz) * u64::from(spec.hosts);
    let allowed = AgentConfig::default().probes_per_second_max.max(most);
    for number in 1..=spec.hosts {
        let config = AgentConfig { probes_per_second_max: allowed, ..AgentConfig::default() };
        world.add(SurveyNode::Agent(Box::new(Agent::new(config))), host(number));
    }
    let mut took = Took::default();
    while took.time.is_none() && !stop() {
        let next = world.now() + STEP;
        world.run_until(next, &mut took);
    }
    took
}

/// Simulated time between two checks for the end.
const STEP: Duration = Duration::from_millis(50);
