//! One time for all nodes, measured in the simulator, where the true time is known.
//!
//! The machines of `evenfall-clock-machine` run on every node over a network whose queues have
//! memory. Every 130 ms all clocks are read and compared with the clock of the reference. Two
//! rivals get the same stamps.
//!
//! | module | what it holds |
//! |---|---|
//! | [`paths`] | the network: queues with memory, planted asymmetry |
//! | `node` | the machine with noisy stamps, and liars |
//! | [`parts`] | estimates without codes, hulls or loops on the same stamps |
//! | `rivals` | NTP-style and PTP-style on the same stamps |

mod node;
pub mod parts;
pub mod paths;
mod rivals;

use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_campaigns::model::{Model, Simulated, Stack};
use evenfall_clock_machine::{
    ClockEdge, ClockSeat, ClockState, Config, MeshSolver, PairEstimate, TimeEvent, Timekeeper,
    graph,
};
use evenfall_core::{Prng, Timestamp, nearest_rank};
use evenfall_sim::{
    Action, ClockSpec, Fault, HostIndex, HostSpec, NodeIndex, Observer, Seen, SimTime, World,
};
use serde::Serialize;

use node::Node;
use parts::{Ablation, PartsLeftOut};
use paths::{ClockPaths, PathsSpec};
use rivals::Follower;

/// Time between two looks at all clocks. This time is no divisor of the window of two seconds, so
/// that the looks find verdicts of every age.
const LOOK: Duration = Duration::from_millis(130);
/// Time before the first look: five windows, in which the filters settle. No look falls on a whole
/// second, in which rates change: a host that has computed ahead changes its rate at the end of its
/// computation, and until then shows the time of that end.
const WARM_UP: Duration = Duration::from_millis(12_505);
/// Time between two changes of the rate of a clock.
const WANDER_STEP: Duration = Duration::from_secs(1);
/// How long hosts grow warmer. In ten seconds a crystal of 1 ppm per kelvin changes by 1 ppm at a
/// tenth of a kelvin a second.
const WARMING: Duration = Duration::from_secs(10);

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockParams {
    /// Nodes; the first is the reference.
    pub nodes: u32,
    /// The network.
    pub paths: PathsSpec,
    /// The cloud whose paths, hosts and clocks take the place of the study's own. Of `paths` the
    /// load remains.
    pub model: Option<Model>,
    /// Seed of everything.
    pub seed: u64,
    /// Time that is looked at, after the warm-up.
    pub duration: Duration,
    /// The machines.
    pub config: Config,
    /// Greatest error of a stamp, either way, in nanoseconds.
    pub noise_ns: u64,
    /// Standard deviation of the rates of clocks, in parts per billion; without a model.
    pub drift_ppb: f64,
    /// Standard deviation of the change of a rate in a second, in parts per billion; without a
    /// model.
    pub wander_ppb: f64,
    /// Change of the rates of half of the clocks in each of ten seconds, from the middle of the run
    /// on, in parts per billion: their hosts grow warmer. Without a model.
    pub warming_ppb_s: f64,
    /// Share of the nodes that tell each neighbour another time; never the reference.
    pub liars: f64,
    /// Share of the nodes that crash in the middle of the run; never the reference.
    pub lost: f64,
    /// Further estimates of the same stamps, each without some parts of the method.
    pub without: Vec<PartsLeftOut>,
}

impl Default for ClockParams {
    fn default() -> Self {
        Self {
            nodes: 100,
            paths: PathsSpec {
                load: 0.5,
                base_ns: (20_000, 10_000),
                asymmetry_ns: 0,
                fabric: None,
            },
            model: None,
            seed: 1,
            duration: Duration::from_secs(20),
            config: Config::default(),
            noise_ns: 30,
            drift_ppb: 20_000.0,
            wander_ppb: 5.0,
            warming_ppb_s: 0.0,
            liars: 0.0,
            lost: 0.0,
            without: Vec::new(),
        }
    }
}

impl ClockParams {
    /// The middle of the time that is looked at.
    fn middle(&self) -> SimTime {
        SimTime::ZERO + WARM_UP + self.duration / 2
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClockSpread {
    /// Half are below.
    pub p50: f64,
    /// All but one in a hundred are below.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl ClockSpread {
    /// The percentiles of nanoseconds, which are sorted.
    pub fn of(ns: &mut [u64]) -> Self {
        ns.sort_unstable();
        let us = |share: f64| nearest_rank(ns, share).map_or(0.0, |ns| ns as f64 / 1e3);
        Self { p50: us(0.5), p99: us(0.99), max: us(1.0) }
    }
}

/// The results of a run. An error is the difference of a node's reading and the clock of the
/// reference at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClockResults {
    /// Errors less the part that the asymmetry of lasting delays causes and that no measurement
    /// between nodes can find.
    pub error_us: ClockSpread,
    /// Errors with the part that asymmetry causes.
    pub whole_error_us: ClockSpread,
    /// Proven bounds.
    pub proven_us: ClockSpread,
    /// Assumed bounds.
    pub assumed_us: ClockSpread,
    /// Share of the readings whose whole error lies within the assumed bound.
    pub coverage: f64,
    /// The same for the proven bound; readings without a proven bound count as outside.
    pub proven_coverage: f64,
    /// NTP-style on the same stamps: errors with the planted asymmetry of their own paths.
    pub ntp_error_us: ClockSpread,
    /// PTP-style on the same stamps.
    pub ptp_error_us: ClockSpread,
    /// Errors with the part that asymmetry causes, of estimates without some parts of the method,
    /// by the names of these parts.
    pub without_us: BTreeMap<String, ClockSpread>,
    /// Readings of honest nodes that are up.
    pub readings: u64,
    /// Readings that said that the clock is not synchronised.
    pub not_synchronised: u64,
    /// Liars that were planted, those named in the last window, and honest nodes named.
    pub liars: [u64; 3],
    /// The median surplus of loops in the last window, in nanoseconds.
    pub surplus_ns: f64,
    /// What a node sent, in kilobits a second with all headers: the mean.
    pub sent_kbit_s: f64,
    /// Packets that crossed the network.
    pub hops: u64,
    /// Equal runs have equal digests.
    pub digest: String,
}

/// What is noted while a run goes on.
struct Watch {
    masters: Vec<Option<u32>>,
    followers: Vec<Follower>,
    ablations: Vec<Ablation>,
    liars: Vec<u32>,
    surplus_ns: f64,
    bytes: u64,
}

impl Observer<Node, ClockPaths> for Watch {
    fn event(&mut self, seen: Seen, event: TimeEvent) {
        let node = seen.node.0 as usize;
        match event {
            TimeEvent::Pair(peer, ours, pair) => {
                if self.masters[node] == Some(peer) {
                    self.followers[node].pair(ours, &pair);
                }
                for ablation in &mut self.ablations {
                    ablation.pair(seen.node.0, peer, ours, &pair);
                }
            }
            TimeEvent::Window(peer, found) => {
                for ablation in &mut self.ablations {
                    ablation.window(seen.node.0, peer, found);
                }
            }
            TimeEvent::Verdict(..) => self.followers[node].close(),
            TimeEvent::Solved(health, _) => {
                self.ablations.iter_mut().for_each(Ablation::solve);
                self.liars = health.liars;
                self.surplus_ns = health.surplus_ns;
            }
            _ => {}
        }
    }

    fn sent(&mut self, packet: &evenfall_sim::Packet, _: &[u8], _: evenfall_sim::Verdict) {
        self.bytes += u64::from(packet.bytes) + 66;
    }
}

/// The error of every node that the asymmetry of lasting delays causes at a time. The mesh solves
/// estimates without any other error: each is wrong by half of the difference of its two ways.
fn forced(params: &ClockParams, paths: &ClockPaths, pairs: &[(u32, u32)], at: SimTime) -> Vec<i64> {
    let end = Timestamp::from_nanos(1 << 40);
    let edge = |&(a, b): &(u32, u32)| {
        let way = |from, to| paths.base_ns(HostIndex(from), HostIndex(to), at) as i64;
        let (there, back) = (way(a, b), way(b, a));
        let half = (there + back) / 2;
        let estimate = PairEstimate {
            middle: end - params.config.window / 2,
            end,
            offset_ns: (there - back).div_euclid(2),
            rate: 0.0,
            half_ns: half as u64,
            kept: 1,
            proven_ns: [-back, there],
            proven_rate: [0.0; 2],
        };
        ClockEdge { a, b, estimate }
    };
    let edges: Vec<ClockEdge> = pairs.iter().map(edge).collect();
    let (verdicts, _) = MeshSolver::new(params.config.clone(), params.nodes, 0).solve(end, &edges);
    verdicts.iter().map(|verdict| verdict.map_or(0, |verdict| verdict.offset_ns)).collect()
}

/// A drawn set of nodes without the reference.
fn drawn(nodes: u32, share: f64, prng: &mut Prng) -> Vec<u32> {
    let mut all: Vec<u32> = (1..nodes).collect();
    prng.shuffle(&mut all);
    all.truncate((f64::from(nodes) * share) as usize);
    all
}

/// Builds the world, and schedules the changes of all clocks' rates where no model has them.
fn world(params: &ClockParams, liars: &[u32], prng: &mut Prng) -> World<Node, ClockPaths> {
    let paths = ClockPaths::new(params.paths.clone(), params.seed);
    let (paths, usual, drift_ppb, wander_ppb) = match &params.model {
        Some(model) => (paths.in_cloud(model.cloud()), model.host(Stack::Sockets), 0.0, 0.0),
        None => (paths, HostSpec::default(), params.drift_ppb, params.wander_ppb),
    };
    let mut world = World::new(paths, params.seed);
    let addresses: Vec<_> = (0..params.nodes).map(|n| NodeIndex(n).address()).collect();
    let end = WARM_UP + params.duration;
    let warm = params.middle()..params.middle() + WARMING;
    for number in 0..params.nodes {
        let warming = if number % 2 == 1 { params.warming_ppb_s } else { 0.0 };
        let mut drift = drift_ppb * normal(prng);
        let origin = Timestamp::from_nanos(1_000_000_000 + prng.below(1 << 43));
        let clock =
            ClockSpec { origin: Some(origin), drift_ppb: drift as i64, ..usual.clock.clone() };
        let seat = ClockSeat {
            addresses: addresses.clone(),
            number,
            run: params.seed | 1 << 63,
            started: 0,
        };
        let mut keeper = Timekeeper::new(params.config.clone(), seat, None, origin);
        keeper.tell_pairs();
        let node = Node {
            keeper,
            noise_ns: params.noise_ns,
            lies: liars.contains(&number),
            prng: prng.fork(u64::from(number)),
        };
        let index = world.add(node, HostSpec { clock, ..usual.clone() });
        let mut at = SimTime::ZERO;
        while wander_ppb + warming > 0.0 && at < SimTime::ZERO + end {
            at = at + WANDER_STEP;
            drift += wander_ppb * normal(prng);
            drift += if warm.contains(&at) { warming } else { 0.0 };
            world.schedule(at, Action::Fault(Fault::ClockDrift(index, drift as i64)));
        }
    }
    world
}

/// A draw that is nearly normally distributed: the sum of twelve uniform draws.
fn normal(prng: &mut Prng) -> f64 {
    (0..12).map(|_| prng.unit()).sum::<f64>() - 6.0
}

/// Readings of one run.
#[derive(Default)]
struct Looks {
    error: Vec<u64>,
    whole: Vec<u64>,
    proven: Vec<u64>,
    assumed: Vec<u64>,
    rivals: [Vec<u64>; 2],
    ablations: BTreeMap<PartsLeftOut, Vec<u64>>,
    within: [u64; 2],
    not_synchronised: u64,
}

impl Looks {
    fn look(
        &mut self,
        world: &World<Node, ClockPaths>,
        watch: &Watch,
        forced: &[i64],
        liars: &[u32],
    ) {
        let truth = world.local(NodeIndex(0));
        for number in 1..world.node_count() as u32 {
            let index = NodeIndex(number);
            if !world.is_up(index) || liars.contains(&number) {
                continue;
            }
            let local = world.local(index);
            let reading = world.machine(index).keeper.read(local);
            let shown = local.signed_since(truth).saturating_add(reading.offset_ns);
            let whole = shown.unsigned_abs();
            self.whole.push(whole);
            self.error.push((shown - forced[number as usize]).unsigned_abs());
            self.within[0] += u64::from(reading.assumed_ns.is_some_and(|bound| whole <= bound));
            self.within[1] += u64::from(reading.proven_ns.is_some_and(|bound| whole <= bound));
            self.assumed.extend(reading.assumed_ns);
            self.proven.extend(reading.proven_ns);
            self.not_synchronised += u64::from(reading.state != ClockState::Synchronised);
            for ablation in &watch.ablations {
                let shown = local.signed_since(truth);
                let offset = ablation.offset_ns(number, local);
                self.ablations
                    .entry(ablation.without())
                    .or_default()
                    .extend(offset.map(|by| shown.saturating_add(by).unsigned_abs()));
            }
            for (rival, errors) in self.rivals.iter_mut().enumerate() {
                errors.extend(
                    chained(watch, number, local, rival)
                        .map(|at| at.signed_since(truth).unsigned_abs()),
                );
            }
        }
    }

    /// The results that readings alone give.
    fn results(mut self) -> ClockResults {
        let readings = self.whole.len() as u64;
        let share = |count: u64| count as f64 / readings.max(1) as f64;
        let [ntp, ptp] = &mut self.rivals;
        let without = self.ablations.iter_mut();
        ClockResults {
            error_us: ClockSpread::of(&mut self.error),
            whole_error_us: ClockSpread::of(&mut self.whole),
            proven_us: ClockSpread::of(&mut self.proven),
            assumed_us: ClockSpread::of(&mut self.assumed),
            coverage: share(self.within[0]),
            proven_coverage: share(self.within[1]),
            ntp_error_us: ClockSpread::of(ntp),
            ptp_error_us: ClockSpread::of(ptp),
            without_us: without
                .map(|(parts, errors)| (parts.name(), ClockSpread::of(errors)))
                .collect(),
            readings,
            not_synchronised: self.not_synchronised,
            ..ClockResults::default()
        }
    }
}

/// The time of the reference as a rival has it at a node, by the chain of masters.
fn chained(watch: &Watch, number: u32, local: Timestamp, rival: usize) -> Option<Timestamp> {
    let (mut node, mut at) = (number, local);
    while let Some(master) = watch.masters[node as usize] {
        let offset = watch.followers[node as usize].offsets(at)?[rival];
        at = Timestamp::from_nanos(at.nanos().saturating_add_signed(offset));
        node = master;
    }
    Some(at)
}

/// Runs it. `progress` hears how much of the run is over.
pub fn run(params: &ClockParams, progress: &mut dyn FnMut(Duration, Duration)) -> ClockResults {
    let mut prng = Prng::new(params.seed ^ 0x0063_6c6f_636b);
    let liars = drawn(params.nodes, params.liars, &mut prng);
    let lost = drawn(params.nodes, params.lost, &mut prng);
    let mut world = world(params, &liars, &mut prng);
    let pairs = graph::pairs(params.nodes, graph::degree(params.nodes), params.seed | 1 << 63);
    let mut asymmetry = forced(params, world.network(), &pairs, SimTime::ZERO);
    let mut watch = Watch {
        masters: parts::shortest_chains(params.nodes, &pairs),
        followers: vec![Follower::default(); params.nodes as usize],
        ablations: params
            .without
            .iter()
            .map(|without| Ablation::new(*without, &params.config, params.nodes))
            .collect(),
        liars: Vec::new(),
        surplus_ns: 0.0,
        bytes: 0,
    };
    let end = WARM_UP + params.duration;
    for &node in &lost {
        world.schedule(params.middle(), Action::Fault(Fault::Crash(NodeIndex(node))));
    }
    let mut looks = Looks::default();
    let mut at = WARM_UP;
    while at <= end {
        world.run_until(SimTime::ZERO + at, &mut watch);
        if params.model.is_some() {
            // Routes change, and lasting delays with them.
            asymmetry = forced(params, world.network(), &pairs, world.now());
        }
        looks.look(&world, &watch, &asymmetry, &liars);
        progress(at, end);
        at += LOOK;
    }
    let kbit = watch.bytes as f64 * 8.0 / 1e3 / end.as_secs_f64() / f64::from(params.nodes);
    let named = |honest: bool| {
        watch.liars.iter().filter(|named| liars.contains(named) != honest).count() as u64
    };
    ClockResults {
        liars: [liars.len() as u64, named(false), named(true)],
        surplus_ns: watch.surplus_ns,
        sent_kbit_s: kbit,
        hops: world.tally().hops,
        digest: format!("{:016x}", world.digest()),
        ..looks.results()
    }
}

#[cfg(test)]
mod tests;
