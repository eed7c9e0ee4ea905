//! One run: reads arrive, a policy chooses copies and paths, a network moves the bytes, and byte
//! counts go back to the policy. The network is simulated ([`fluids`](super::fluids)) or real
//! (`sockets` of the program `evenfall-lab`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_files_flow::{
    BeginningRead, Count, FlowId, FlowLeg, FlowRoute, LinkIndex, Policy, ReadDivision, ThreeTier,
    Topology, TopologyNode,
};

use crate::files::workload::{Hang, Job, Stranger};

/// The ends and the way of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The host that sends, and the host that receives.
    pub ends: [TopologyNode; 2],
    /// What the policy asked for.
    pub route: FlowRoute,
    /// The path, where the route names it or the simulator hashes the port.
    pub path: &'a [LinkIndex],
}

/// What moves the bytes of flows. Times are nanoseconds since the start of the run.
pub trait FlowNetwork {
    /// Starts a flow, which first moves this many bytes.
    fn start(&mut self, now: u64, flow: FlowId, way: Way<'_>, bytes: u64);
    /// Removes a flow.
    fn stop(&mut self, now: u64, flow: FlowId);
    /// Bytes of the flow that have not arrived yet.
    fn left(&mut self, now: u64, flow: FlowId) -> f64;
    /// Sets how many bytes have not arrived yet, counted from the last call of
    /// [`left`](Self::left).
    fn resize(&mut self, now: u64, flow: FlowId, bytes: u64);
    /// Moves a flow to another way to the same reader.
    fn reroute(&mut self, now: u64, flow: FlowId, way: Way<'_>);
    /// From now on the host sends nothing, or sends again. A network that cannot plant such faults
    /// does nothing.
    fn hang(&mut self, now: u64, host: TopologyNode, is_hung: bool) {
        let _ = (now, host, is_hung);
    }
    /// The bytes of flows that the switch of a rack has counted. A flow that is absent is counted
    /// by its own hosts.
    ///
    /// # Errors
    /// What failed.
    fn counted(&mut self, rack: u32) -> Result<BTreeMap<FlowId, u64>, String> {
        let _ = rack;
        Ok(BTreeMap::new())
    }
    /// Waits until this time, or until a flow has moved all of its bytes. Returns the time, and the
    /// flow.
    ///
    /// # Errors
    /// What failed.
    fn wait(&mut self, until: u64) -> Result<(u64, Option<FlowId>), String>;
}

/// First name of a background flow. The flows of reads have smaller names.
const STRANGERS: u64 = 1 << 40;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadTimes {
    /// Seconds from the arrival of each read to its last byte, by number of the read.
    pub reads_s: Vec<f64>,
    /// Seconds from the start of each wave to its last byte. Reads that arrive at the same time are
    /// a wave.
    pub waves_s: Vec<f64>,
    /// Seconds from the start of each background flow to its last byte.
    pub strangers_s: Vec<f64>,
    /// Reads that used two copies.
    pub divided: usize,
    /// Seconds between the ends of the two flows of each of these reads.
    pub apart_s: Vec<f64>,
    /// Changes of the path of a flow.
    pub reroutes: usize,
    /// Flows that fell silent and went on from another copy.
    pub hedged: usize,
    /// Bytes that each link carried, by number, where the network is simulated.
    pub carried: Vec<f64>,
    /// When the last read ended, in seconds.
    pub end_s: f64,
}

/// A flow on the network.
struct Live {
    from: TopologyNode,
    to: TopologyNode,
    /// The number of the read and the number of its leg; `None` for a background flow.
    leg: Option<(usize, usize)>,
    /// Bytes of the parts before the present part, and the length of the present part.
    moved: f64,
    present: u64,
    begun: u64,
}

/// A read on its way.
struct Open {
    parts: Option<ReadDivision>,
    legs: usize,
    /// When the first of two flows ended.
    first_end: Option<u64>,
}

/// A run, without its network.
#[derive(Clone, Copy)]
pub struct ReadPlan<'a> {
    /// The parts of the network.
    pub spec: &'a ThreeTier,
    /// The reads.
    pub jobs: &'a [Job],
    /// Background flows.
    pub strangers: &'a [Stranger],
    /// Times in which hosts send nothing.
    pub hangs: &'a [Hang],
    /// Whether the policy is told of background flows.
    pub seen: bool,
    /// Time between the arrival of a read and its first byte, in which the policy is asked and the
    /// path is set up.
    pub setup: Duration,
    /// Bytes of the parts of a read from two copies.
    pub part_bytes: u64,
    /// The seed of hashed paths.
    pub seed: u64,
}

/// The world of a run.
struct Scene<'a> {
    plan: ReadPlan<'a>,
    topology: Topology,
    policy: &'a mut dyn Policy,
    network: &'a mut dyn FlowNetwork,
    live: BTreeMap<FlowId, Live>,
    open: BTreeMap<usize, Open>,
    times: ReadTimes,
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

/// Runs all reads to their ends.
///
/// # Errors
/// What failed in the network.
pub fn run(
    plan: ReadPlan<'_>,
    policy: &mut dyn Policy,
    network: &mut dyn FlowNetwork,
) -> Result<ReadTimes, String> {
    let times = ReadTimes {
        reads_s: vec![f64::NAN; plan.jobs.len()],
        strangers_s: vec![f64::NAN; plan.strangers.len()],
        ..ReadTimes::default()
    };
    let (live, open, topology) = (BTreeMap::new(), BTreeMap::new(), plan.spec.build());
    let mut scene = Scene { plan, topology, policy, network, live, open, times };
    scene.play()?;
    let (jobs, reads_s) = (plan.jobs, &scene.times.reads_s);
    let starts = jobs.chunk_by(|one, other| one.at_s.total_cmp(&other.at_s).is_eq());
    let mut done = reads_s.iter().copied();
    scene.times.waves_s =
        starts.map(|wave| done.by_ref().take(wave.len()).fold(0.0, f64::max)).collect();
    Ok(scene.times)
}

impl Scene<'_> {
    fn play(&mut self) -> Result<(), String> {
        let ReadPlan { jobs, strangers, setup, spec, .. } = self.plan;
        let racks = u64::from(spec.pods * spec.racks);
        let turn_ns = (self.policy.interval().as_nanos() as u64 / racks).max(1);
        let (mut arrived, mut strange, mut poll) = (0, 0, 0u64);
        let mut faults = self.faults();
        let mut chosen: VecDeque<(u64, usize, Vec<FlowLeg>)> = VecDeque::new();
        let mut ended = 0;
        while ended < jobs.len() {
            let arrival = jobs.get(arrived).map_or(u64::MAX, |job| nanos(job.at_s));
            let start = chosen.front().map_or(u64::MAX, |chosen| chosen.0);
            let stranger = strangers.get(strange).map_or(u64::MAX, |s| nanos(s.at_s));
            let count = (poll + 1) * turn_ns;
            let fault = faults.front().map_or(u64::MAX, |fault| fault.0);
            let next = arrival.min(start).min(stranger).min(count).min(fault);
            let (now, flow) = self.network.wait(next)?;
            if let Some(flow) = flow {
                ended += usize::from(self.end(now, flow));
            } else if next == fault {
                let (_, host, is_hung) = faults.pop_front().expect("a first");
                self.network.hang(now, host, is_hung);
            } else if next == start {
                let (_, job, legs) = chosen.pop_front().expect("a first");
                self.start(now, job, &legs);
            } else if next == arrival {
                let legs = self.choose(now, arrived);
                chosen.push_back((now + setup.as_nanos() as u64, arrived, legs));
                arrived += 1;
            } else if next == stranger {
                self.stranger(now, strange);
                strange += 1;
            } else {
                self.count(now, (poll % racks) as u32)?;
                poll += 1;
            }
            self.times.end_s = now as f64 / 1e9;
        }
        Ok(())
    }

    /// When hosts begin and cease to hang, in order.
    fn faults(&self) -> VecDeque<(u64, TopologyNode, bool)> {
        let ends = |hang: &Hang| {
            [(nanos(hang.at_s), hang.host, true), (nanos(hang.until_s), hang.host, false)]
        };
        let mut faults: Vec<_> = self.plan.hangs.iter().flat_map(ends).collect();
        faults.sort_unstable_by_key(|fault| fault.0);
        faults.into()
    }

    fn choose(&mut self, now: u64, number: usize) -> Vec<FlowLeg> {
        let job = &self.plan.jobs[number];
        let flows = [0, 1].map(|leg| FlowId(2 * number as u64 + leg));
        let read =
            BeginningRead { client: job.client, copies: &job.copies, bytes: job.bytes, flows };
        let legs = self.policy.choose(Timestamp::from_nanos(now), &read);
        assert!(matches!(legs.len(), 1 | 2), "a policy reads one copy or two");
        legs
    }

    fn path(&mut self, [from, to]: [TopologyNode; 2], route: FlowRoute) -> Vec<LinkIndex> {
        let paths = self.topology.paths(from, to);
        let number = match route {
            FlowRoute::Path(number) => number,
            FlowRoute::Port(port) => {
                let words = [from.0.into(), to.0.into(), port.into(), self.plan.seed];
                (hashed(words) % paths.len() as u64) as usize
            }
        };
        paths.path(number).to_vec()
    }

    fn flow(
        &mut self,
        now: u64,
        id: FlowId,
        ends: [TopologyNode; 2],
        route: FlowRoute,
        bytes: u64,
    ) {
        let path = self.path(ends, route);
        self.network.start(now, id, Way { ends, route, path: &path }, bytes);
        let leg = (id.0 < STRANGERS).then_some((id.0 as usize / 2, id.0 as usize % 2));
        let [from, to] = ends;
        self.live.insert(id, Live { from, to, leg, moved: 0.0, present: bytes, begun: now });
        if id.0 >= STRANGERS && self.plan.seen {
            self.policy.background(Timestamp::from_nanos(now), id, &path);
        }
    }

    fn start(&mut self, now: u64, number: usize, legs: &[FlowLeg]) {
        let job = &self.plan.jobs[number];
        let (client, bytes) = (job.client, job.bytes);
        let mut parts =
            (legs.len() > 1).then(|| ReadDivision::new(bytes, self.plan.part_bytes, legs.len()));
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
        self.open.insert(number, Open { parts, legs: legs.len(), first_end: None });
        for (leg, length) in legs.iter().zip(lengths) {
            self.flow(now, leg.flow, [leg.copy, client], leg.route, length);
        }
    }

    fn stranger(&mut self, now: u64, number: usize) {
        let stranger = &self.plan.strangers[number];
        let (ends, bytes) = ([stranger.from, stranger.to], stranger.bytes);
        let id = FlowId(STRANGERS + number as u64);
        self.flow(now, id, ends, FlowRoute::Port(number as u16), bytes);
    }

    /// Ends a part or a flow. Returns whether a read has finished.
    fn end(&mut self, now: u64, id: FlowId) -> bool {
        let live = self.live.get_mut(&id).expect("a live flow");
        (live.moved, live.present) = (live.moved + live.present as f64, 0);
        let Some((number, copy)) = live.leg else {
            self.close(now, id);
            let stranger = (id.0 - STRANGERS) as usize;
            let begun_s = self.plan.strangers[stranger].at_s;
            self.times.strangers_s[stranger] = now as f64 / 1e9 - begun_s;
            return false;
        };
        if self.next_part(now, number, copy) {
            return false;
        }
        self.close(now, id);
        let open = self.open.get_mut(&number).expect("an open read");
        open.legs -= 1;
        if open.legs > 0 {
            open.first_end = Some(now);
            return false;
        }
        let apart = open.first_end.map(|first| (now - first) as f64 / 1e9);
        self.times.apart_s.extend(apart);
        self.open.remove(&number);
        self.times.reads_s[number] = now as f64 / 1e9 - self.plan.jobs[number].at_s;
        true
    }

    fn close(&mut self, now: u64, id: FlowId) {
        self.live.remove(&id);
        self.network.stop(now, id);
        self.policy.ended(Timestamp::from_nanos(now), id);
    }

    /// Gives the next part to a copy that has finished its part. Returns whether there was a next
    /// part.
    fn next_part(&mut self, now: u64, number: usize, copy: usize) -> bool {
        let open = self.open.get_mut(&number).expect("an open read");
        let Some(parts) = &mut open.parts else { return false };
        let mut speeds = [0.0; 2];
        for (leg, speed) in speeds.iter_mut().enumerate() {
            let flow = FlowId((2 * number + leg) as u64);
            let Some(live) = self.live.get_mut(&flow) else { continue };
            if leg != copy {
                let left = self.network.left(now, flow).ceil() as u64;
                live.moved += (live.present - left.min(live.present)) as f64;
                live.present = left.min(live.present);
            }
            let range = parts.reading(leg);
            parts.read(leg, (range.end - range.start).saturating_sub(live.present));
            *speed = live.moved / ((now - live.begun).max(1) as f64 / 1e9);
        }
        let Some(range) = parts.next(copy, &speeds) else { return false };
        for leg in 0..2 {
            let flow = FlowId((2 * number + leg) as u64);
            let Some(live) = self.live.get_mut(&flow) else { continue };
            let range = if leg == copy { range.clone() } else { parts.reading(leg) };
            let length = range.end - range.start;
            if length != live.present {
                live.present = length;
                self.network.resize(now, flow, length);
            }
        }
        true
    }

    /// Counts the bytes of the flows that end in a rack, by its switch or by its hosts.
    fn count(&mut self, now: u64, rack: u32) -> Result<(), String> {
        let mut counts = Vec::new();
        let by_switch = self.network.counted(rack)?;
        for (&flow, live) in &self.live {
            if self.plan.spec.rack_of(live.to) == rack && (live.leg.is_some() || self.plan.seen) {
                let part = live.present as f64 - self.network.left(now, flow);
                let own = live.moved + part;
                let moved = by_switch.get(&flow).map_or(own, |&bytes| bytes as f64);
                counts.push(Count { flow, moved });
            }
        }
        for reroute in self.policy.counted(Timestamp::from_nanos(now), &counts) {
            let Some(live) = self.live.get_mut(&reroute.flow) else { continue };
            if let Some(copy) = reroute.copy {
                live.from = copy;
                self.times.hedged += 1;
            }
            let (ends, route) = ([live.from, live.to], reroute.route);
            let path = self.path(ends, route);
            self.network.reroute(now, reroute.flow, Way { ends, route, path: &path });
            self.times.reroutes += 1;
        }
        Ok(())
    }
}
