//! One run: reads arrive, a policy chooses copies and paths, the simulator moves the bytes, and
//! byte counts go back to the policy.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_files_flow::{
    Count, FlowId, Leg, LinkIndex, NodeIndex, PART_BYTES, Parts, Policy, Read, Route, ThreeTier,
    Topology,
};
use evenfall_sim::{Fluid, FluidFlow, FluidLink, SimTime};

use crate::files::workload::{Job, Stranger};

/// First name of a background flow. The flows of reads have smaller names.
const STRANGERS: u64 = 1 << 40;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Seconds from the arrival of each read to its last byte, by number of the read.
    pub reads_s: Vec<f64>,
    /// Seconds from the start of each background flow to its last byte.
    pub strangers_s: Vec<f64>,
    /// Reads that used two copies.
    pub divided: usize,
    /// Changes of the path of a flow.
    pub reroutes: usize,
    /// Bytes that each link carried, by number.
    pub carried: Vec<f64>,
    /// When the last read ended, in seconds.
    pub end_s: f64,
}

/// A flow on the network.
struct Live {
    fluid: FluidFlow,
    from: NodeIndex,
    to: NodeIndex,
    /// The number of the read and the number of its leg; `None` for a background flow.
    leg: Option<(usize, usize)>,
    /// Bytes of the parts before the present part, and the length of the present part.
    moved: f64,
    present: u64,
    begun: u64,
}

/// A read on its way.
struct Open {
    parts: Option<Parts>,
    legs: usize,
}

/// The world of a run.
struct Scene<'a> {
    spec: &'a ThreeTier,
    topology: Topology,
    policy: &'a mut dyn Policy,
    fluid: Fluid,
    live: BTreeMap<FlowId, Live>,
    names: BTreeMap<FluidFlow, FlowId>,
    open: BTreeMap<usize, Open>,
    jobs: &'a [Job],
    strangers: &'a [Stranger],
    seen: bool,
    salt: u64,
    times: Times,
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn hashed(words: [u64; 4]) -> u64 {
    words.into_iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, word| {
        let z = (state ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (z >> 32)
    })
}

/// Runs all reads to their ends. `setup` is the time between the arrival of a read and its first
/// byte, in which the policy is asked and the path is set up. `seen` says whether the policy is
/// told of background flows.
pub fn run(
    spec: &ThreeTier,
    policy: &mut dyn Policy,
    jobs: &[Job],
    strangers: &[Stranger],
    seen: bool,
    setup: Duration,
    seed: u64,
) -> Times {
    let topology = spec.build();
    let mut fluid = Fluid::new();
    for link in topology.links() {
        fluid.link(link.bytes_per_s as u64);
    }
    let times = Times {
        reads_s: vec![f64::NAN; jobs.len()],
        strangers_s: vec![f64::NAN; strangers.len()],
        ..Times::default()
    };
    let mut scene = Scene {
        spec,
        topology,
        policy,
        fluid,
        live: BTreeMap::new(),
        names: BTreeMap::new(),
        open: BTreeMap::new(),
        jobs,
        strangers,
        seen,
        salt: seed,
        times,
    };
    scene.play(setup.as_nanos() as u64);
    scene.times
}

impl Scene<'_> {
    fn play(&mut self, setup_ns: u64) {
        let racks = u64::from(self.spec.pods * self.spec.racks);
        let turn_ns = (self.policy.interval().as_nanos() as u64 / racks).max(1);
        let (mut arrived, mut strangers, mut poll) = (0, 0, 0u64);
        let mut chosen: VecDeque<(u64, usize, Vec<Leg>)> = VecDeque::new();
        let mut ended = 0;
        while ended < self.jobs.len() {
            let arrival = self.jobs.get(arrived).map_or(u64::MAX, |job| nanos(job.at_s));
            let start = chosen.front().map_or(u64::MAX, |chosen| chosen.0);
            let stranger = self.strangers.get(strangers).map_or(u64::MAX, |s| nanos(s.at_s));
            let end = self.fluid.next_end().map_or(u64::MAX, |(at, _)| at.nanos());
            let count = (poll + 1) * turn_ns;
            let now = arrival.min(start).min(stranger).min(end).min(count);
            if now == end {
                ended += usize::from(self.end(now));
            } else if now == start {
                let (_, job, legs) = chosen.pop_front().expect("a first");
                self.start(now, job, &legs);
            } else if now == arrival {
                let legs = self.choose(now, arrived);
                chosen.push_back((now + setup_ns, arrived, legs));
                arrived += 1;
            } else if now == stranger {
                self.stranger(now, strangers);
                strangers += 1;
            } else {
                self.count(now, (poll % racks) as u32);
                poll += 1;
            }
            self.times.end_s = now as f64 / 1e9;
        }
        let at = SimTime::from_nanos(nanos(self.times.end_s));
        let links = 0..self.topology.links().len() as u32;
        self.times.carried = links.map(|link| self.fluid.carried(at, FluidLink(link))).collect();
    }

    fn choose(&mut self, now: u64, number: usize) -> Vec<Leg> {
        let job = &self.jobs[number];
        let flows = [0, 1].map(|leg| FlowId(2 * number as u64 + leg));
        let read = Read { client: job.client, copies: &job.copies, bytes: job.bytes, flows };
        let legs = self.policy.choose(Timestamp::from_nanos(now), &read);
        assert!(matches!(legs.len(), 1 | 2), "a policy reads one copy or two");
        legs
    }

    fn path(&mut self, from: NodeIndex, to: NodeIndex, route: Route) -> Vec<LinkIndex> {
        let paths = self.topology.paths(from, to);
        let number = match route {
            Route::Path(number) => number,
            Route::Port(port) => {
                let words = [from.0.into(), to.0.into(), port.into(), self.salt];
                (hashed(words) % paths.len() as u64) as usize
            }
        };
        paths.path(number).to_vec()
    }

    fn flow(&mut self, now: u64, id: FlowId, ends: [NodeIndex; 2], route: Route, bytes: u64) {
        let [from, to] = ends;
        let path = self.path(from, to, route);
        let links: Vec<_> = path.iter().map(|link| FluidLink(link.0)).collect();
        let fluid = self.fluid.start(SimTime::from_nanos(now), &links, bytes);
        self.names.insert(fluid, id);
        let leg = (id.0 < STRANGERS).then_some((id.0 as usize / 2, id.0 as usize % 2));
        let live = Live { fluid, from, to, leg, moved: 0.0, present: bytes, begun: now };
        self.live.insert(id, live);
        if id.0 >= STRANGERS && self.seen {
            self.policy.background(Timestamp::from_nanos(now), id, &path);
        }
    }

    fn start(&mut self, now: u64, number: usize, legs: &[Leg]) {
        let job = &self.jobs[number];
        let (client, bytes) = (job.client, job.bytes);
        let mut parts = (legs.len() > 1).then(|| Parts::new(bytes, PART_BYTES, legs.len()));
        let mut lengths = Vec::new();
        for copy in 0..legs.len() {
            let range = parts.as_mut().map_or(Some(0..bytes), |parts| parts.next(copy, &[0.0; 2]));
            lengths.push(range.map_or(0, |range| range.end - range.start));
        }
        if let Some(parts) = &parts {
            // The second copy may have taken the end of the first part of a small read.
            lengths[0] = parts.reading(0).end - parts.reading(0).start;
            self.times.divided += 1;
        }
        self.open.insert(number, Open { parts, legs: legs.len() });
        for (leg, length) in legs.iter().zip(lengths) {
            self.flow(now, leg.flow, [leg.copy, client], leg.route, length);
        }
    }

    fn stranger(&mut self, now: u64, number: usize) {
        let stranger = &self.strangers[number];
        let (ends, bytes) = ([stranger.from, stranger.to], stranger.bytes);
        let id = FlowId(STRANGERS + number as u64);
        self.flow(now, id, ends, Route::Port(number as u16), bytes);
    }

    /// Ends a part or a flow. Returns whether a read has finished.
    fn end(&mut self, now: u64) -> bool {
        let (at, fluid) = self.fluid.next_end().expect("an end");
        let id = self.names[&fluid];
        let live = self.live.get_mut(&id).expect("a named flow");
        (live.moved, live.present) = (live.moved + live.present as f64, 0);
        let Some((number, copy)) = live.leg else {
            self.close(at, id);
            let stranger = (id.0 - STRANGERS) as usize;
            self.times.strangers_s[stranger] = now as f64 / 1e9 - self.strangers[stranger].at_s;
            return false;
        };
        if self.next_part(now, number, copy) {
            return false;
        }
        self.close(at, id);
        let open = self.open.get_mut(&number).expect("an open read");
        open.legs -= 1;
        if open.legs > 0 {
            return false;
        }
        self.open.remove(&number);
        self.times.reads_s[number] = now as f64 / 1e9 - self.jobs[number].at_s;
        true
    }

    fn close(&mut self, at: SimTime, id: FlowId) {
        let live = self.live.remove(&id).expect("a live flow");
        self.names.remove(&live.fluid);
        self.fluid.stop(at, live.fluid);
        self.policy.ended(Timestamp::from_nanos(at.nanos()), id);
    }

    /// Gives the next part to a copy that has finished its part. Returns whether there was a next
    /// part.
    fn next_part(&mut self, now: u64, number: usize, copy: usize) -> bool {
        let at = SimTime::from_nanos(now);
        let open = self.open.get_mut(&number).expect("an open read");
        let Some(parts) = &mut open.parts else { return false };
        let mut speeds = [0.0; 2];
        for (leg, speed) in speeds.iter_mut().enumerate() {
            let Some(live) = self.live.get_mut(&FlowId((2 * number + leg) as u64)) else {
                continue;
            };
            if leg != copy {
                let left = self.fluid.left(at, live.fluid).ceil() as u64;
                live.moved += (live.present - left.min(live.present)) as f64;
                live.present = left;
            }
            let range = parts.reading(leg);
            parts.read(leg, (range.end - range.start).saturating_sub(live.present));
            *speed = live.moved / ((now - live.begun).max(1) as f64 / 1e9);
        }
        let Some(range) = parts.next(copy, &speeds) else { return false };
        for leg in 0..2 {
            let Some(live) = self.live.get_mut(&FlowId((2 * number + leg) as u64)) else {
                continue;
            };
            let range = if leg == copy { range.clone() } else { parts.reading(leg) };
            let length = range.end - range.start;
            if length != live.present {
                live.present = length;
                self.fluid.resize(at, live.fluid, length);
            }
        }
        true
    }

    /// Counts the bytes of the flows that end in a rack, by its switch or by its hosts.
    fn count(&mut self, now: u64, rack: u32) {
        let at = SimTime::from_nanos(now);
        let mut counts = Vec::new();
        for (&flow, live) in &self.live {
            if self.spec.rack_of(live.to) == rack && (live.leg.is_some() || self.seen) {
                let part = live.present as f64 - self.fluid.left(at, live.fluid);
                counts.push(Count { flow, moved: live.moved + part });
            }
        }
        for reroute in self.policy.counted(Timestamp::from_nanos(now), &counts) {
            let Some(live) = self.live.get(&reroute.flow) else { continue };
            let (from, to, fluid) = (live.from, live.to, live.fluid);
            let path = self.path(from, to, reroute.route);
            let links: Vec<_> = path.iter().map(|link| FluidLink(link.0)).collect();
            self.fluid.reroute(at, fluid, &links);
            self.times.reroutes += 1;
        }
    }
}
