//! A pool in the simulator for surveys without faults: agents and a surveyor over a cloud that is
//! fitted to the public measurements.
//!
//! The constants are those of [`placement::model`](crate::placement). The delay of a pair is about
//! 82 us at the median. Half of that delay lasts, and half varies by probe. The simulator's
//! hosts have one slowness for both directions, where the measurements have one for sending and one
//! for receiving, so the geometric mean of the two is used. Processor time of hosts comes on top.

use core::time::Duration;

use evenfall_core::{
    Arrival, ClockError, ClockReading, Install, Machine, Malformed, Timestamp, Transmit,
};
use evenfall_placement_machine::surveyor::Welcome;
use evenfall_placement_machine::{
    Agent, AgentConfig, JobOutcome, Program, Reason, Step, Surveyor, SurveyorConfig, SurveyorEvent,
};
use evenfall_sim::{
    ClockSpec, Cloud, CloudProfile, HostSpec, NodeIndex, Observer, Outages, Quantiles, Seen,
    Spread, Stragglers, Waits, World,
};

/// The lasting part of a pair at the median, us, and the standard deviation of its logarithm.
const BASE_US: f64 = 42.4;
const PAIR_SIGMA: f64 = 0.083;
/// A probe's own part: the lognormal distribution with the median and the p90 / p50 of the gamma
/// distribution that was fitted.
const JITTER_US: f64 = 40.0;
const JITTER_SIGMA: f64 = 0.537;
/// One probe in 8,192 met a spike at 5,000 probes a second. A spike of 1.9 ms is met by ten
/// probes, so that spikes are ten times rarer.
const SPIKE_GAP: Duration = Duration::from_millis(16_384);
const SPIKE: Duration = Duration::from_micros(1_900);
/// Standard deviations of the logarithm of a host's slowness, sending and receiving.
const SEND_SIGMA: f64 = 0.07;
const RECEIVE_SIGMA: f64 = 0.11;
/// The one of twenty hosts, which sends 1.22 and receives 1.57 times as slowly.
const STRAGGLER_SHARE: f64 = 0.05;
/// The bound that clocks state, and within which they are.
const CLOCK_BOUND: Duration = Duration::from_micros(1);

/// What is simulated.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Hosts with an agent.
    pub hosts: u32,
    /// Hosts, by number, that are slow besides those that the seed makes slow.
    pub slow: Vec<u32>,
    /// How much slower.
    pub slow_factor: f64,
    /// The pool: its hosts, pairs and all that happens.
    pub seed: u64,
}

fn cloud() -> CloudProfile {
    let us = |us: f64| Duration::from_nanos((us * 1e3) as u64);
    CloudProfile {
        spread: Spread {
            sender: SEND_SIGMA,
            receiver: RECEIVE_SIGMA,
            pair: PAIR_SIGMA,
            ..Spread::default()
        },
        stragglers: Stragglers { share: STRAGGLER_SHARE, send: 1.22, receive: 1.57 },
        waits: Waits::new(
            &Quantiles::lognormal(us(JITTER_US), JITTER_SIGMA),
            Duration::from_micros(50),
        ),
        spikes: Some(Outages { mean_gap: SPIKE_GAP, length: Quantiles::exponential(SPIKE) }),
        ..CloudProfile::constant(us(BASE_US))
    }
}

/// A program that somebody else keeps.
struct Lent<'a, P>(&'a mut P);

impl<P: Program> Program for Lent<'_, P> {
    fn greeted(&mut self, pool: &[Result<Welcome, Reason>]) {
        self.0.greeted(pool);
    }

    fn next(&mut self) -> Step {
        self.0.next()
    }

    fn take(&mut self, outcome: &JobOutcome) {
        self.0.take(outcome);
    }
}

/// An agent or the surveyor.
enum Post<'a, P> {
    Agent(Box<Agent>),
    Surveyor(Box<Surveyor<Lent<'a, P>>>),
}

macro_rules! each {
    ($post:expr, $machine:ident => $call:expr) => {
        match $post {
            Post::Agent($machine) => $call,
            Post::Surveyor($machine) => $call,
        }
    };
}

impl<P: Program> Machine for Post<'_, P> {
    type Event = Option<SurveyorEvent>;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        each!(self, m => m.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        each!(self, m => m.handle_timeout(now));
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        each!(self, m => m.handle_clock(now, reading));
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        match self {
            Self::Agent(m) => m.poll_event().map(|_| None),
            Self::Surveyor(m) => m.poll_event().map(Some),
        }
    }

    fn poll_install(&mut self) -> Option<Install> {
        each!(self, m => m.poll_install())
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        each!(self, m => m.poll_transmit(now))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        each!(self, m => m.poll_timeout())
    }
}

/// Waits for the end.
struct End(bool);

impl<'a, P: Program> Observer<Post<'a, P>, Cloud> for End {
    fn event(&mut self, _: Seen, event: Option<SurveyorEvent>) {
        self.0 |= event == Some(SurveyorEvent::Over);
    }
}

/// Runs a program of a surveyor to its end, or until `stop` says so. `rate_hz` is that of its jobs,
/// which agents must allow.
pub fn survey<P: Program>(
    spec: &PoolSpec,
    rate_hz: u32,
    program: &mut P,
    stop: &mut dyn FnMut() -> bool,
) {
    let mut world = World::new(Cloud::new(cloud(), spec.seed), spec.seed);
    let origin = Timestamp::from_nanos(1_000_000_000);
    let host = |number: u32| {
        let slow = number > 0 && spec.slow.contains(&(number - 1));
        let clock = ClockSpec {
            origin: Some(origin),
            stated: ClockError::Within(CLOCK_BOUND),
            ..ClockSpec::default()
        };
        let slowness = if slow { spec.slow_factor } else { 1.0 };
        HostSpec { slowness, clock, ..HostSpec::default() }
    };
    let agents = (1..=spec.hosts).map(|number| world.address(NodeIndex(number))).collect();
    let config = SurveyorConfig::default();
    let surveyor = Surveyor::new(config, spec.seed | 1, agents, Lent(program), origin);
    world.add(Post::Surveyor(Box::new(surveyor)), host(0));
    let most = u64::from(rate_hz) * u64::from(spec.hosts);
    let allowed = AgentConfig::default().probes_per_second_max.max(most);
    for number in 1..=spec.hosts {
        let config = AgentConfig { probes_per_second_max: allowed, ..AgentConfig::default() };
        world.add(Post::Agent(Box::new(Agent::new(config))), host(number));
    }
    let mut end = End(false);
    while !end.0 && !stop() {
        let next = world.now() + STEP;
        world.run_until(next, &mut end);
    }
}

/// How often somebody looks whether it is over.
const STEP: Duration = Duration::from_millis(50);
