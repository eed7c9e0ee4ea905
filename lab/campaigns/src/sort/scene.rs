//! One burst on the network of chapter 2 of the thesis.
//!
//! 70 machines on a two-level fat tree of full bisection, four servers a machine, so that a server
//! has 25 Gb/s; round trips of 5 us; 1.6 million messages a second and server. The thesis does not
//! say how many machines a leaf switch has. Here a leaf has 24 machines and 24 links of 100 Gb/s to
//! the core, as a switch of 48 ports has. A flow, which is what one server sends to another, takes
//! one of the 24 links by a hash.
//!
//! Two things differ from the thesis. The shuffles are by default ours (GRPF), with everything sent
//! unasked, and not its high-entropy shuffle ([`SimShuffle`] has both). And keys and values are two
//! messages.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_collectives_machine::group::{GroupSettings, ProcessGroup};
use evenfall_collectives_machine::{ChunkRule, ShuffleConfig};
use evenfall_core::Prng;
use evenfall_query_burst::burst::{Burst, BurstEvent, BurstProgram};
use evenfall_query_burst::partition::PartitionConfig;
use evenfall_query_burst::pivots::{SplitterRule, Weighted};
use evenfall_query_burst::placement::KeyPlacement;
use evenfall_query_burst::query::{
    Duplicates, MilliQuery, QUERY_PHASES, QueryAnswer, QueryOutput, answer_plainly,
};
use evenfall_query_burst::rows::{KeyDraw, QueryName, make, make_records};
use evenfall_query_burst::sort::{MilliSort, PHASES, SortConfig, SortedRecords, VALUE_BYTES};
use evenfall_sim::{
    Collect, FatTree, FatTreeSpec, HostSpec, NodeIndex, Priorities, Seen, SimTime, World,
};
use serde::Serialize;

use super::node::{WorkModel, WorkedBurst};

/// Rate of a server.
const SERVER_BITS_PER_S: u64 = 25_000_000_000;
/// Servers below one leaf switch: 24 machines with four each.
const LEAF_SERVERS: u32 = 96;
/// Links of a leaf switch to the core, of four servers' rate each.
const LEAF_LINKS: u32 = 24;
/// A link between server and leaf, and one between leaf and core. Two of each make a way of 2.5 us.
const SERVER_DELAY: Duration = Duration::from_nanos(600);
const LEAF_DELAY: Duration = Duration::from_nanos(650);
/// Payload of a packet. Omni-Path takes packets of 8 KiB.
const PACKET_BYTES: u32 = 8_192;
/// A chunk of the high-entropy shuffle at most (section 2.4.1).
const CHUNK_BYTES: u32 = 40_000;
/// Chunks that a server has under way. The thesis names no number.
const CHUNKS_AT_ONCE: usize = 8;
/// Packets that go unasked: more than any sender here has, because messages are short.
const UNASKED_PACKETS: u32 = 1 << 20;
/// A burst that lasts longer than this has failed: a thousand times the time of the largest.
const LATE: SimTime = SimTime::from_millis(10_000);

/// What servers cost. The processor's share of a message is fitted, with the cost of a merged key,
/// to the column of 120 servers of Table 2.5 alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerModel {
    /// Each datagram that arrives or leaves. A message of one packet is two datagrams, itself and
    /// its acknowledgement.
    pub datagram: Duration,
    /// Work on other cores.
    pub work: WorkModel,
}

impl Default for ServerModel {
    /// From Table 2.5, 120 servers with 7,000 records: the local sort takes 118 to 216 us, 147 in
    /// the mean; the rearrangement takes 128 us. Fitted: 445 ns a datagram, with which the shuffle
    /// takes its 377 us, and 8 ns a merged key, with which the sort takes its 976 us.
    fn default() -> Self {
        Self {
            datagram: Duration::from_nanos(445),
            work: WorkModel {
                sort_ns: 16.9,
                sort_spread_ns: 14.0,
                copy_ns: 18.3,
                merge_ns: 8.0,
                // One core merges, where eight merge keys.
                pivot_ns: 64.0,
                row_ns: 5.0,
            },
        }
    }
}

/// How the ranks of a burst shuffle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimShuffle {
    /// The shuffle of the product, with everything sent unasked.
    #[default]
    Grpf,
    /// That of the source: chunks of 32 KB (the source: 40), eight at once, random targets, one
    /// chunk under way to a target.
    Entropy,
}

impl SimShuffle {
    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpf => "grpf",
            Self::Entropy => "entropy",
        }
    }

    fn chunk_rule(self) -> Option<ChunkRule> {
        let packets = CHUNK_BYTES / PACKET_BYTES;
        (self == Self::Entropy).then_some(ChunkRule { packets, at_once: CHUNKS_AT_ONCE })
    }
}

/// One burst.
#[derive(Clone, Debug)]
pub struct BurstScene {
    /// Number of servers.
    pub servers: usize,
    /// Records or rows of each server.
    pub records: usize,
    /// Levels of the partition of a sort.
    pub levels: usize,
    /// How the splitters of a sort are chosen.
    pub rule: Arc<dyn SplitterRule>,
    /// How the keys of a sort are drawn.
    pub keys: KeyDraw,
    /// How the servers shuffle.
    pub shuffle: SimShuffle,
    /// What servers cost.
    pub model: ServerModel,
    /// Seed of the data and of all delays.
    pub seed: u64,
}

impl BurstScene {
    /// A burst of this size, with weighted splitters on two levels.
    pub fn new(servers: usize, records: usize, seed: u64) -> Self {
        let (rule, keys) = (Arc::new(Weighted), KeyDraw::Uniform);
        let (model, shuffle) = (ServerModel::default(), SimShuffle::default());
        Self { servers, records, levels: 2, rule, keys, shuffle, model, seed }
    }

    fn tree(&self) -> FatTree {
        FatTree::new(FatTreeSpec {
            rack_hosts: LEAF_SERVERS,
            host_bits_per_s: SERVER_BITS_PER_S,
            rack_bits_per_s: SERVER_BITS_PER_S * u64::from(LEAF_SERVERS),
            core_paths: LEAF_LINKS,
            host_delay: SERVER_DELAY,
            rack_delay: LEAF_DELAY,
            priorities: Priorities::Nowhere,
            ..FatTreeSpec::default()
        })
    }

    fn host(&self) -> HostSpec {
        let datagram = self.model.datagram;
        HostSpec { receive_cost: datagram, copy_cost: datagram, ..HostSpec::ideal() }
    }

    fn settings(&self) -> GroupSettings {
        let shuffle = ShuffleConfig {
            packet_bytes: PACKET_BYTES,
            rtt_packets: UNASKED_PACKETS,
            chunks: self.shuffle.chunk_rule(),
            // The network loses nothing.
            resend_after: Duration::from_secs(1),
            resend_after_min: Duration::from_secs(1),
            silence_max: Duration::from_secs(60),
            ..ShuffleConfig::default()
        };
        let latency = Duration::from_nanos(2_500) + 2 * self.model.datagram;
        GroupSettings { shuffle, epoch: 0, agreed: 0, latency, per_message: self.model.datagram }
    }

    /// Runs the programs of all servers.
    pub(super) fn play<P: BurstProgram<Output: Debug>>(
        &self,
        program: impl Fn(usize) -> P,
        part: impl Fn(&P::Output) -> u64,
    ) -> Result<(Vec<P::Output>, BurstOutcome), String> {
        let mut world = World::new(self.tree(), self.seed);
        let mut prng = Prng::new(self.seed ^ 0x736f_7274);
        let nodes = (0..self.servers as u32).map(NodeIndex);
        let members: Vec<SocketAddr> = nodes.clone().map(NodeIndex::address).collect();
        for rank in 0..self.servers {
            let group = ProcessGroup::new(rank, members.clone(), self.settings());
            let burst = Burst::new(group.map_err(|error| error.to_string())?);
            let node = WorkedBurst::new(burst, self.model.work, prng.fork(rank as u64));
            world.add(node, self.host());
        }
        let mut watch = Collect::default();
        for node in nodes {
            let program = program(node.0 as usize);
            world.call(node, &mut watch, |rank, now| rank.start_burst(now, program));
        }
        while watch.0.len() < 2 * self.servers && world.step(LATE, &mut watch) {}
        let (digest, hops) = (world.digest(), world.tally().hops);
        let mut ends = RankEnds { times: vec![None; self.servers], phases: Vec::new() };
        let mut outputs: Vec<Option<P::Output>> = (0..self.servers).map(|_| None).collect();
        for (seen, event) in watch.0 {
            ends.take(seen, event, &mut outputs)?;
        }
        let missing = outputs.iter().position(Option::is_none);
        if let Some(rank) = missing {
            return Err(format!("server {rank} has no result after {LATE}"));
        }
        let outputs: Vec<P::Output> = outputs.into_iter().flatten().collect();
        let parts: Vec<u64> = outputs.iter().map(part).collect();
        let outcome = ends.measure(&parts);
        let records = (self.servers * self.records) as u64;
        Ok((outputs, BurstOutcome { records, digest, hops, ..outcome }))
    }
}

/// The ends of all ranks.
struct RankEnds {
    times: Vec<Option<SimTime>>,
    phases: Vec<BTreeMap<&'static str, Duration>>,
}

impl RankEnds {
    fn take<O>(
        &mut self,
        seen: Seen,
        event: BurstEvent<O>,
        outputs: &mut [Option<O>],
    ) -> Result<(), String> {
        let rank = seen.node.0 as usize;
        match event {
            BurstEvent::Result { output, phases, .. } => {
                self.times[rank] = Some(seen.at);
                self.phases.push(phases);
                outputs[rank] = Some(output);
                Ok(())
            }
            BurstEvent::Ended => Ok(()),
            BurstEvent::Failed(failure) => Err(format!("server {rank}: {failure}")),
        }
    }

    fn measure(&self, parts: &[u64]) -> BurstOutcome {
        let sum: u64 = parts.iter().sum();
        let most = parts.iter().max().copied().unwrap_or(0);
        let names = PHASES.iter().chain(&QUERY_PHASES);
        let phase = |&name: &&'static str| {
            let of = |phases: &BTreeMap<&str, Duration>| {
                phases.get(name).map(|took| took.as_nanos() as f64 / 1e3)
            };
            let times: Vec<f64> = self.phases.iter().filter_map(of).collect();
            (!times.is_empty()).then(|| (name, PhaseTimes::of(&times)))
        };
        let ends: Vec<f64> =
            self.times.iter().flatten().map(|at| at.nanos() as f64 / 1e3).collect();
        let total = PhaseTimes::of(&ends);
        BurstOutcome {
            completion_us: total.max,
            records: 0,
            imbalance: if sum == 0 { 1.0 } else { most as f64 * parts.len() as f64 / sum as f64 },
            phases_us: names.filter_map(phase).chain([("total", total)]).collect(),
            hops: 0,
            digest: 0,
        }
    }
}

/// A phase over all servers that have it, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseTimes {
    /// The mean.
    pub mean: f64,
    /// The longest.
    pub max: f64,
    /// The longest over the shortest; `None` when the shortest took no time.
    pub max_over_min: Option<f64>,
}

impl PhaseTimes {
    fn of(times: &[f64]) -> Self {
        let max = times.iter().copied().fold(0.0, f64::max);
        let min = times.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        Self { mean, max, max_over_min: (min > 0.0 && min.is_finite()).then_some(max / min) }
    }
}

/// The result of a burst.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BurstOutcome {
    /// Time until the last server has its result.
    pub completion_us: f64,
    /// Records or rows of all servers.
    pub records: u64,
    /// The largest part over the mean.
    pub imbalance: f64,
    /// Phases, and the whole time as `total`.
    pub phases_us: BTreeMap<&'static str, PhaseTimes>,
    /// Datagrams.
    pub hops: u64,
    /// Equal runs have equal digests.
    pub digest: u64,
}

/// Sorts, and checks that the output is the input in order.
///
/// # Errors
/// When a server fails, or the output is wrong.
pub fn run_sort(scene: &BurstScene) -> Result<BurstOutcome, String> {
    let config = SortConfig {
        value_bytes: VALUE_BYTES,
        partition: PartitionConfig {
            levels: scene.levels,
            pivots_per_rank: 1,
            rule: scene.rule.clone(),
        },
    };
    let records = |rank| make_records(scene.keys, scene.seed, rank, scene.records);
    let program = |rank| MilliSort::new(config.clone(), rank as u16, scene.servers, records(rank));
    let part = |output: &SortedRecords| output.records.len() as u64;
    let (outputs, outcome) = scene.play(program, part)?;
    let (mut numbers, mut last) = (0u64, None);
    for output in &outputs {
        let values = output.records.values.chunks_exact(VALUE_BYTES);
        for (key, value) in output.records.keys.as_chunks::<10>().0.iter().zip(values) {
            let number = evenfall_query_burst::rows::record_number(value);
            let record = Some((*key, number));
            if last >= record {
                return Err("the output is not in order".into());
            }
            last = record;
            numbers = numbers.wrapping_add(evenfall_core::math::mix(number));
        }
    }
    let number = |rank: usize| {
        let first = (rank as u64) << 32;
        (first..first + scene.records as u64).map(evenfall_core::math::mix)
    };
    let wanted = (0..scene.servers).flat_map(number).fold(0u64, u64::wrapping_add);
    if numbers != wanted {
        return Err("the output has other records than the input".into());
    }
    Ok(outcome)
}

/// Answers a query, and compares the answer with that of a plain program.
///
/// # Errors
/// When a server fails, or the answer is another one.
pub fn run_query(
    scene: &BurstScene,
    query: QueryName,
    duplicates: Duplicates,
    placement: KeyPlacement,
) -> Result<BurstOutcome, String> {
    let rows = |rank| make(query, scene.seed, rank, scene.servers, scene.records);
    let program = |rank| {
        let query = MilliQuery::new(scene.servers, rows(rank), duplicates);
        query.placed_by(placement, rank as u16)
    };
    let (outputs, outcome) = scene.play(program, |output: &QueryOutput| output.summed)?;
    let all: Vec<_> = (0..scene.servers).map(rows).collect();
    let plain: QueryAnswer = answer_plainly(&all);
    if outputs.first().map(|output| &output.answer) != Some(&plain) {
        return Err("the answer differs from that of a plain program".into());
    }
    Ok(outcome)
}
