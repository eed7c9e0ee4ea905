//! A simulated pool for surveys without faults: agents and a surveyor on a cloud that is fitted to
//! the public measurements.
//!
//! The constants are those of [`placement::model`](crate::placement). The delay of a pair is about
//! 82 us at the median. Half of that delay is constant, and half varies by probe. The processor
//! time of hosts is added.

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

/// Median over pairs of the constant part of the delay, in microseconds, and the standard deviation
/// of its logarithm.
const BASE_US: f64 = 42.4;
const PAIR_SIGMA: f64 = 0.083;
/// The part of the delay that varies by probe: median in microseconds and sigma of a lognormal
/// distribution. It has the median and the ratio of p90 to p50 of the fitted gamma distribution.
const JITTER_US: f64 = 40.0;
const JITTER_SIGMA: f64 = 0.537;
/// Mean time between two spikes, and their mean length. At 5,000 probes a second, one probe in
/// 8,192 met a spike. A spike of 1.9 ms delays about ten probes, so spikes are ten times rarer than
/// delayed probes: one in 16.384 s.
const SPIKE_GAP: Duration = Duration::from_millis(16_384);
const SPIKE: Duration = Duration::from_micros(1_900);
/// Standard deviations of the logarithm of a host's slowness, sending and receiving.
const SEND_SIGMA: f64 = 0.07;
const RECEIVE_SIGMA: f64 = 0.11;
/// Share of slow hosts: one of twenty, which sends 1.22 times and receives 1.57 times as slowly as
/// the others.
const STRAGGLER_SHARE: f64 = 0.05;
/// The error bound that clocks state. Their real errors are within it.
const CLOCK_BOUND: Duration = Duration::from_micros(1);

/// Parameters of the simulated pool.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Hosts with an agent.
    pub hosts: u32,
    /// Numbers of hosts that are slow in addition to the hosts that the seed makes slow.
    pub slow: Vec<u32>,
    /// Factor by which the delays of these hosts are longer.
    pub slow_factor: f64,
    /// Seed of the hosts, the pairs and all random events.
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

/// A program that is borrowed from the caller.
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

/// Observer that records the end of the survey.
struct End(bool);

impl<'a, P: Program> Observer<Post<'a, P>, Cloud> for End {
    fn event(&mut self, _: Seen, event: Option<SurveyorEvent>) {
        self.0 |= event == Some(SurveyorEvent::Over);
    }
}

/// Runs a program of a surveyor to its end, or until `stop` returns true. `rate_hz` is the probe
/// rate of its jobs, which agents must allow.
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

/// Simulated time between two checks for the end.
const STEP: Duration = Duration::from_millis(50);
