//! Rivals on the interface of the selector: one rule picks the copy, then another picks the path.

use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::{
    Config, Count, FlowId, Leg, LinkIndex, NodeIndex, Policy, Read, Reroute, Route, Selector,
    ThreeTier, Topology, Two,
};
use evenfall_sim::{Fluid, FluidLink, SimTime};

use crate::files::prequal::Prequal;

/// How a copy is picked.
pub enum Copies {
    /// The one with the fewest links between; equals by lot.
    Nearest,
    /// One in the client's rack, or any by lot: HDFS with rack awareness.
    Hdfs,
    /// The one with the most room between, by what the hosts send: Sinbad, turned to reads.
    Sinbad,
    /// By requests in flight and latency.
    Prequal(Prequal),
}

/// How a path is picked.
pub enum Paths {
    /// By the hash of the flow.
    Hash,
    /// By equation 3.2 among the paths of the picked copy.
    Cost(Box<Selector>),
    /// By the hash, and every five seconds large flows move to where they fit: Hedera.
    FirstFit(Box<Topology>),
}

/// A flow as the ends see it.
struct Seen {
    from: NodeIndex,
    to: NodeIndex,
    /// Bytes a second in the last interval; at first what the policy expects.
    rate: f64,
    moved: f64,
    at: Timestamp,
    begun: Timestamp,
    /// The path, where the rule knows it.
    path: usize,
}

/// See the module documentation.
pub struct Rival {
    copies: Copies,
    paths: Paths,
    spec: ThreeTier,
    prng: Prng,
    flows: BTreeMap<FlowId, Seen>,
    interval: Duration,
    scheduled: Timestamp,
}

/// How often Hedera looks for better paths: five seconds in its paper.
const FIRST_FIT_EVERY: Duration = Duration::from_secs(5);
/// Flows that ask for less than a tenth of their host's link stay where the hash put them (Hedera,
/// section 4).
const LARGE: f64 = 0.1;

/// How far two hosts are: links of the shortest path.
pub fn links_between(spec: &ThreeTier, one: NodeIndex, other: NodeIndex) -> u32 {
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

impl Rival {
    /// A rival; counts come every `interval`.
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

    /// Mayflower's paths for a copy that is picked already.
    pub fn cost(spec: &ThreeTier, interval: Duration) -> Paths {
        let topology = spec.build();
        Paths::Cost(Box::new(Selector::new(topology, Config::default(), Two::Never, interval)))
    }

    /// One of the copies for which the number is least, by lot.
    fn least(
        &mut self,
        copies: &[NodeIndex],
        mut number: impl FnMut(NodeIndex) -> f64,
    ) -> NodeIndex {
        let numbers: Vec<f64> = copies.iter().map(|&copy| number(copy)).collect();
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let equals = copies.iter().zip(&numbers).filter(|(_, number)| **number <= least);
        let equals: Vec<NodeIndex> = equals.map(|(&copy, _)| copy).collect();
        equals[self.prng.below(equals.len() as u64) as usize]
    }

    /// Bytes a second that are free between copy and client, going up: at the host, at the links
    /// that leave its rack, at those that leave its pod. Hosts know what they send whither, so the
    /// links above are summed from them and spread evenly.
    fn room(&self, copy: NodeIndex, client: NodeIndex) -> f64 {
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

    fn copy(&mut self, now: Timestamp, read: &Read<'_>) -> NodeIndex {
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

    /// What the new flow will likely have until it is counted: the room, but never less than the
    /// even share of its host's link.
    fn expected(&self, copy: NodeIndex, client: NodeIndex) -> f64 {
        let beside = self.flows.values().filter(|flow| flow.from == copy).count();
        let even = self.spec.host_bytes_per_s / (beside + 1) as f64;
        self.room(copy, client).max(even).min(self.spec.host_bytes_per_s)
    }

    /// Global first fit of Hedera: natural demands first, then the first path with room for each.
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
                    moves.push(Reroute { flow, route: Route::Path(number) });
                }
            }
            for link in paths.path(seen.path) {
                room[link.0 as usize] -= demand;
            }
        }
        moves
    }
}

/// What each flow would have if only the links of hosts were narrow (Hedera, section 4.2).
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

impl Policy for Rival {
    fn choose(&mut self, now: Timestamp, read: &Read<'_>) -> Vec<Leg> {
        let copy = self.copy(now, read);
        let flow = read.flows[0];
        let rate = self.expected(copy, read.client);
        let (from, to) = (copy, read.client);
        let mut seen = Seen { from, to, rate, moved: 0.0, at: now, begun: now, path: 0 };
        let route = match &mut self.paths {
            Paths::Hash => Route::Port(self.prng.next_u64() as u16),
            Paths::Cost(selector) => {
                selector.choose(now, &Read { copies: &[copy], ..*read })[0].route
            }
            Paths::FirstFit(topology) => {
                let paths = topology.paths(copy, read.client);
                seen.path = self.prng.below(paths.len() as u64) as usize;
                Route::Path(seen.path)
            }
        };
        self.flows.insert(flow, seen);
        vec![Leg { flow, copy, route, bytes: read.bytes }]
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
