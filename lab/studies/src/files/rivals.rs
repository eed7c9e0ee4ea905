//! Rivals of the selector: one rule picks the copy, then another rule picks the path.

use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::{
    BeginningRead, Config, Count, FlowId, FlowLeg, FlowRoute, LinkIndex, Policy, Reroute, Selector,
    ThreeTier, Topology, TopologyNode, Two,
};
use evenfall_sim::{Fluid, FluidLink, SimTime};

use crate::files::prequal::Prequal;

/// The rule that picks a copy.
pub enum Copies {
    /// The copy with the fewest links to the client; a random one among equals.
    Nearest,
    /// A copy in the client's rack, or else a random copy: HDFS with rack awareness.
    Hdfs,
    /// The copy with the most free bandwidth to the client, estimated from the rates at which hosts
    /// send. This is Sinbad's rule for writes, applied to reads.
    Sinbad,
    /// By requests in flight and latency.
    Prequal(Prequal),
}

/// The rule that picks a path.
pub enum Paths {
    /// By the hash of the flow.
    Hash,
    /// By equation 3.2 among the paths of the picked copy.
    Cost(Box<Selector>),
    /// By the hash of the flow. Every five seconds, large flows move to the first path with room:
    /// Hedera.
    FirstFit(Box<Topology>),
}

/// The record of a flow that its hosts keep.
struct Seen {
    from: TopologyNode,
    to: TopologyNode,
    /// Bytes a second in the last interval; before the first count, the rate that the policy
    /// expects.
    rate: f64,
    moved: f64,
    at: Timestamp,
    begun: Timestamp,
    /// The path, where the rule knows it.
    path: usize,
}

/// See the module documentation.
pub struct FilesRival {
    copies: Copies,
    paths: Paths,
    spec: ThreeTier,
    prng: Prng,
    flows: BTreeMap<FlowId, Seen>,
    interval: Duration,
    scheduled: Timestamp,
}

/// Time between two searches of Hedera for better paths: five seconds in its paper.
const FIRST_FIT_EVERY: Duration = Duration::from_secs(5);
/// Flows that ask for less than a tenth of their host's link stay where the hash put them (Hedera,
/// section 4).
const LARGE: f64 = 0.1;

/// Number of links on the shortest path between two hosts.
pub fn links_between(spec: &ThreeTier, one: TopologyNode, other: TopologyNode) -> u32 {
    if one == other {
        0
    } else if spec.rack_of(one) == spec.rack_of(other) {
        2
    } else if spec.pod_of(one) == spec.pod_of(other) {
        4
    } else {
        6
    }
}

impl FilesRival {
    /// A rival that gets byte counts every `interval`.
    pub fn new(
        copies: Copies,
        paths: Paths,
        spec: ThreeTier,
        interval: Duration,
        seed: u64,
    ) -> Self {
        let (prng, flows) = (Prng::new(seed), BTreeMap::new());
        Self { copies, paths, spec, prng, flows, interval, scheduled: Timestamp::ZERO }
    }

    /// Mayflower's rule for paths, for a copy that another rule has picked.
    pub fn cost(spec: &ThreeTier, interval: Duration) -> Paths {
        let topology = spec.build();
        Paths::Cost(Box::new(Selector::new(topology, Config::default(), Two::Never, interval)))
    }

    /// A random copy among the copies for which the number is least.
    fn least(
        &mut self,
        copies: &[TopologyNode],
        mut number: impl FnMut(TopologyNode) -> f64,
    ) -> TopologyNode {
        let numbers: Vec<f64> = copies.iter().map(|&copy| number(copy)).collect();
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let equals = copies.iter().zip(&numbers).filter(|(_, number)| **number <= least);
        let equals: Vec<TopologyNode> = equals.map(|(&copy, _)| copy).collect();
        equals[self.prng.below(equals.len() as u64) as usize]
    }

    /// Free bytes a second on the way up from the copy to the client: at the host, at the links
    /// that leave its rack, and at the links that leave its pod. Hosts know their own rates and
    /// receivers. The load of the higher links is the sum of these rates, divided equally among the
    /// links.
    fn room(&self, copy: TopologyNode, client: TopologyNode) -> f64 {
        let spec = &self.spec;
        let sum = |fits: &dyn Fn(&Seen) -> bool| -> f64 {
            self.flows.values().filter(|flow| fits(flow)).map(|flow| flow.rate).sum()
        };
        let mut room = spec.host_bytes_per_s - sum(&|flow| flow.from == copy);
        let rack = |host| spec.rack_of(host);
        if rack(copy) != rack(client) {
            let out = sum(&|flow| rack(flow.from) == rack(copy) && rack(flow.to) != rack(copy));
            let links = f64::from(spec.aggs);
            room = room.min(spec.rack_bytes_per_s - out / links);
        }
        let pod = |host| spec.pod_of(host);
        if pod(copy) != pod(client) {
            let out = sum(&|flow| pod(flow.from) == pod(copy) && pod(flow.to) != pod(copy));
            let links = f64::from(spec.aggs * spec.cores);
            room = room.min(spec.core_bytes_per_s - out / links);
        }
        room
    }

    fn copy(&mut self, now: Timestamp, read: &BeginningRead<'_>) -> TopologyNode {
        let spec = self.spec.clone();
        let away = |copy| f64::from(links_between(&spec, copy, read.client));
        match &mut self.copies {
            Copies::Nearest => self.least(read.copies, away),
            Copies::Hdfs => self.least(read.copies, |copy| away(copy).clamp(2.0, 4.0)),
            Copies::Sinbad => {
                let rooms: BTreeMap<_, _> =
                    read.copies.iter().map(|&copy| (copy, self.room(copy, read.client))).collect();
                self.least(read.copies, |copy| -rooms[&copy])
            }
            Copies::Prequal(prequal) => prequal.pick(now, read, &mut self.prng),
        }
    }

    /// The expected rate of a new flow until its first byte count: the free bandwidth, but at least
    /// an equal share of its host's link.
    fn expected(&self, copy: TopologyNode, client: TopologyNode) -> f64 {
        let beside = self.flows.values().filter(|flow| flow.from == copy).count();
        let even = self.spec.host_bytes_per_s / (beside + 1) as f64;
        self.room(copy, client).max(even).min(self.spec.host_bytes_per_s)
    }

    /// Global first fit of Hedera: estimates the natural demand of each flow, then moves each flow
    /// to the first path with room.
    fn first_fit(&mut self, now: Timestamp) -> Vec<Reroute> {
        let Paths::FirstFit(topology) = &mut self.paths else { return Vec::new() };
        if now.since(self.scheduled) < FIRST_FIT_EVERY {
            return Vec::new();
        }
        self.scheduled = now;
        let demands = demands(&self.spec, &self.flows);
        let mut room: Vec<f64> = topology.links().iter().map(|link| link.bytes_per_s).collect();
        let mut moves = Vec::new();
        for ((&flow, seen), demand) in self.flows.iter_mut().zip(demands) {
            let paths = topology.paths(seen.from, seen.to);
            let fits = |room: &[f64], path: &[LinkIndex]| {
                path.iter().all(|link| room[link.0 as usize] >= demand * (1.0 - 1e-9))
            };
            if demand >= LARGE * self.spec.host_bytes_per_s {
                let first = (0..paths.len()).find(|&number| fits(&room, paths.path(number)));
                if let Some(number) = first.filter(|&number| number != seen.path) {
                    seen.path = number;
                    moves.push(Reroute { flow, copy: None, route: FlowRoute::Path(number) });
                }
            }
            for link in paths.path(seen.path) {
                room[link.0 as usize] -= demand;
            }
        }
        moves
    }
}

/// The natural demand of each flow: its rate if only the links of hosts were narrow (Hedera,
/// section 4.2).
fn demands(spec: &ThreeTier, flows: &BTreeMap<FlowId, Seen>) -> Vec<f64> {
    let mut fluid = Fluid::new();
    let hosts = spec.host_count();
    for _ in 0..2 * hosts {
        fluid.link(spec.host_bytes_per_s as u64);
    }
    let started: Vec<_> = flows
        .values()
        .map(|flow| {
            let path = [FluidLink(flow.from.0), FluidLink(hosts + flow.to.0)];
            fluid.start(SimTime::ZERO, &path, 1)
        })
        .collect();
    started.into_iter().map(|flow| fluid.rate(flow)).collect()
}

impl Policy for FilesRival {
    fn choose(&mut self, now: Timestamp, read: &BeginningRead<'_>) -> Vec<FlowLeg> {
        let copy = self.copy(now, read);
        let flow = read.flows[0];
        let rate = self.expected(copy, read.client);
        let (from, to) = (copy, read.client);
        let mut seen = Seen { from, to, rate, moved: 0.0, at: now, begun: now, path: 0 };
        let route = match &mut self.paths {
            Paths::Hash => FlowRoute::Port(self.prng.next_u64() as u16),
            Paths::Cost(selector) => {
                selector.choose(now, &BeginningRead { copies: &[copy], ..*read })[0].route
            }
            Paths::FirstFit(topology) => {
                let paths = topology.paths(copy, read.client);
                seen.path = self.prng.below(paths.len() as u64) as usize;
                FlowRoute::Path(seen.path)
            }
        };
        self.flows.insert(flow, seen);
        vec![FlowLeg { flow, copy, route, bytes: read.bytes }]
    }

    fn ended(&mut self, now: Timestamp, flow: FlowId) {
        if let Paths::Cost(selector) = &mut self.paths {
            selector.ended(now, flow);
        }
        let Some(seen) = self.flows.remove(&flow) else { return };
        if let Copies::Prequal(prequal) = &mut self.copies {
            prequal.ended(seen.from, flow, now.since(seen.begun));
        }
    }

    fn counted(&mut self, now: Timestamp, counts: &[Count]) -> Vec<Reroute> {
        if let Paths::Cost(selector) = &mut self.paths {
            selector.counted(now, counts);
        }
        for count in counts {
            let Some(seen) = self.flows.get_mut(&count.flow) else { continue };
            let seconds = now.since(seen.at).as_secs_f64();
            if seconds > 0.0 {
                seen.rate = (count.moved - seen.moved) / seconds;
                (seen.moved, seen.at) = (count.moved, now);
            }
        }
        self.first_fit(now)
    }

    fn background(&mut self, now: Timestamp, flow: FlowId, path: &[LinkIndex]) {
        if let Paths::Cost(selector) = &mut self.paths {
            selector.background(now, flow, path);
        }
    }

    fn interval(&self) -> Duration {
        self.interval
    }
}
