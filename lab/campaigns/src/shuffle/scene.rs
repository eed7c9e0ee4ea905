//! One shuffle on a fat tree, compared with the bound of its links.
//!
//! The network is that of chapter 6 of the thesis: 25 Gb/s, packets of 1,500 bytes (480 ns), racks
//! of 40, round trips of 8 and 16 packet times. Payloads are shortened in memory and counted at
//! full length on every link ([`Costs::scale`]), so that a thousand nodes fit.

use core::time::Duration;

use bytes::Bytes;
use evenfall_collectives_machine::{LinkPace, Shuffle, ShuffleConfig, ShufflePlan};
use evenfall_core::{Prng, Timestamp};
use evenfall_sim::{
    Action, Costs, FatTree, FatTreeSpec, HostSpec, NodeIndex, Priorities, SimTime, World,
};

use super::matrix::{Links, Matrix};
use super::node::Node;
use super::plain::{Plain, rules::Rules};
use super::preempt::{PauseSchedule, Pauses, Runs, oracles_ns};
use super::rivals::{Ablation, ShuffleRival};
use super::unfinished::Unfinished;
use super::watch::{
    self, Lockstep, REFRESH, Refresh, SAMPLE, STEP, ShuffleSample, Timeline, Watch,
};

/// Hosts of a rack.
pub const RACK_HOSTS: usize = 40;
/// Rate of a host's link.
pub const LINK_BITS_PER_S: u64 = 25_000_000_000;
/// Time of a full packet on a host's link, without headers.
pub const PACKET_NS: u64 = 480;
/// Wire bytes of a datagram without payload: header 40, UDP and IPv4 28, Ethernet 38.
const CONTROL_BYTES: u32 = 106;
/// Base of the operation number of a run. A hash of the seed changes the number.
const OPERATION: u64 = 0x5e00_0000;
/// A run fails when it takes more than this many times its bound. Lock-step takes up to a hundred
/// times the bound when one long message delays each step.
const BOUNDS_MAX: f64 = 400.0;
/// Mean pauses without a packet after which a run counts as stuck. By then every node has ended the
/// pause in which it was when the last packet was sent: a pause of this length is twenty-eight
/// standard deviations above the mean.
const QUIET_PAUSES: f64 = 8.0;
/// Shortest time without a packet after which a run counts as stuck. A packet and its answer have
/// crossed the network by then: the fullest queue of figure 6.26 holds 20.5 MB, which a link of 25
/// Gb/s sends in 6.6 ms.
const QUIET_MIN: Duration = Duration::from_millis(10);

/// The cost of control packets on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Control packets cost nothing, and data packets have no headers, as in the thesis.
    Free,
    /// Control packets cost the length of their frames, and data packets have headers.
    Charged,
}

impl Control {
    /// Payload bytes of a full packet in memory, and the number of real bytes for which each of
    /// them stands.
    pub fn payload(self) -> (u32, u32) {
        match self {
            // 15 x 100 = 1,500, the packet of the thesis.
            Self::Free => (15, 100),
            // 8 x 179 = 1,432, the payload of a frame of 1,538 wire bytes.
            Self::Charged => (8, 179),
        }
    }

    fn costs(self) -> Costs {
        let (_, scale) = self.payload();
        let data_head_bytes = evenfall_collectives_machine::wire::HEADER_BYTES as u32;
        match self {
            Self::Free => {
                let data_overhead_bytes = -(data_head_bytes as i32);
                Costs { control_bytes: 0, data_overhead_bytes, scale, data_head_bytes }
            }
            Self::Charged => Costs {
                control_bytes: CONTROL_BYTES,
                data_overhead_bytes: (CONTROL_BYTES - data_head_bytes) as i32,
                scale,
                data_head_bytes,
            },
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct ShuffleParams {
    /// Bytes from each sender to each receiver, at full length.
    pub matrix: Matrix,
    /// The scheme.
    pub rival: ShuffleRival,
    /// Bandwidth of a rack's uplinks divided by the bandwidth of its hosts.
    pub core: f64,
    /// Mean pause in round trips, and the distribution of the runs between pauses; `None` without
    /// pre-emption.
    pub preempt_rtt: Option<(f64, Runs)>,
    /// Ports at which control packets go before data.
    pub priorities: Priorities,
    /// Cost of control packets.
    pub control: Control,
    /// Duration of the all-reduce of `global`, divided by the duration of the fastest all-reduce in
    /// software; 0 for an immediate result.
    pub stale: f64,
    /// Seed of all random draws except the matrix.
    pub seed: u64,
    /// Parts that the scheme lacks.
    pub ablation: Ablation,
    /// Overcommitment that replaces the value of the scheme.
    pub overcommit: Option<f64>,
    /// Time between two samples of the progress; `None` for no samples.
    pub sample_every: Option<Duration>,
}

impl ShuffleParams {
    /// The shuffle on a network of full bisection without pre-emption. Control packets cost
    /// nothing and go first.
    pub fn new(matrix: Matrix, seed: u64) -> Self {
        Self {
            matrix,
            rival: ShuffleRival::Grpf,
            core: 1.0,
            preempt_rtt: None,
            priorities: Priorities::Everywhere,
            control: Control::Free,
            stale: 0.0,
            seed,
            ablation: Ablation::Whole,
            overcommit: None,
            sample_every: None,
        }
    }

    fn rtt_packets(&self) -> u32 {
        if self.matrix.nodes() <= RACK_HOSTS { 8 } else { 16 }
    }

    fn rtt_ns(&self) -> f64 {
        f64::from(self.rtt_packets()) * PACKET_NS as f64
    }

    fn config(&self) -> ShuffleConfig {
        let (packet_bytes, scale) = self.control.payload();
        let ps_per_wire_byte = 8_000_000_000_000 / LINK_BITS_PER_S;
        let charged = u64::from(self.control == Control::Charged);
        let frame_ps = charged * ps_per_wire_byte * u64::from(CONTROL_BYTES);
        ShuffleConfig {
            packet_bytes,
            rtt_packets: self.rtt_packets(),
            pace: LinkPace {
                ps_per_byte: ps_per_wire_byte * u64::from(scale),
                ps_per_data: frame_ps,
                ps_per_control: frame_ps,
                burst: Duration::ZERO,
            },
            overcommit: self.overcommit.unwrap_or(ShuffleConfig::default().overcommit),
            reduce: self.rival == ShuffleRival::Reduce,
            // The network loses no packets. A packet is late only because its sender is in a pause.
            resend_after: Duration::from_millis(20),
            resend_after_min: Duration::from_millis(20),
            silence_max: Duration::from_secs(60),
            ..ShuffleConfig::default()
        }
    }

    /// The rules of the plain machine, if the plain machine runs.
    fn rules(&self, config: &ShuffleConfig) -> Option<Rules> {
        let printed = Rules::printed(config.packet_bytes, config.rtt_packets, config.pace);
        let mut rules = self.rival.rules(self.ablation, printed)?;
        if let Some(overcommit) = self.overcommit {
            rules.outstanding_max = overcommit * f64::from(config.rtt_packets);
        }
        Some(rules)
    }

    /// The least time that the links allow, without pre-emption.
    pub fn shortest(&self) -> Duration {
        Duration::from_secs_f64(self.bound(&self.shortened(), &mut []))
    }

    fn links(&self) -> Links {
        let host_bits_per_s = LINK_BITS_PER_S as f64;
        let rack_bits_per_s = self.core * host_bits_per_s * RACK_HOSTS as f64;
        Links { rack_hosts: RACK_HOSTS, host_bits_per_s, rack_bits_per_s }
    }

    /// The matrix in shortened bytes, as they lie in memory.
    fn shortened(&self) -> Matrix {
        let (_, scale) = self.control.payload();
        let nodes = self.matrix.nodes();
        let short = |bytes: u64| bytes.div_ceil(u64::from(scale));
        let cells = (0..nodes).flat_map(|from| self.matrix.row(from).iter().map(|&b| short(b)));
        Matrix::of(nodes, cells.collect())
    }

    /// By sender and receiver: 1 for a message of which a packet may be sent unasked, else 0. These
    /// are the longest messages of a sender, as many as the first round trip has packets.
    fn unasked(&self, short: &Matrix) -> Vec<Vec<u64>> {
        let nodes = short.nodes();
        let of = |from: usize| {
            let mut full: Vec<usize> =
                (0..nodes).filter(|&to| to != from && short.cell(from, to) > 0).collect();
            full.sort_by_key(|&to| core::cmp::Reverse(short.cell(from, to)));
            let mut row = vec![0; nodes];
            full.iter().take(self.rtt_packets() as usize).for_each(|&to| row[to] = 1);
            row
        };
        (0..nodes).map(of).collect()
    }

    /// A lower bound on the time of the matrix, in seconds: the time of the most loaded link. Where
    /// control packets are charged, the bound counts an acknowledgement per message, a grant per
    /// packet that is not sent unasked, and an announcement per message without unasked packets.
    /// With pre-emption, the bound also includes the oracles of section 6.2.1.
    fn bound(&self, short: &Matrix, schedules: &mut [PauseSchedule]) -> f64 {
        let (packet, scale) = self.control.payload();
        let nodes = short.nodes();
        let frame = u64::from(CONTROL_BYTES) * u64::from(self.control == Control::Charged);
        let packets = |bytes: u64| bytes.div_ceil(u64::from(packet));
        let unasked = self.unasked(short);
        let mut wire = Matrix::new(nodes);
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let (out, back) = (short.cell(from, to), short.cell(to, from));
            let data = out * u64::from(scale) + packets(out) * frame;
            let grants = packets(back) - unasked[to][from];
            let announcement = 1 - unasked[from][to];
            wire.set(from, to, data + (grants + 1 + announcement) * frame);
        }
        let links = wire.bound(&self.links(), |bytes| bytes as f64);
        let work_ns = |from, to| wire.cell(from, to) * 8_000_000_000 / LINK_BITS_PER_S;
        links.max(oracles_ns(schedules, PACKET_NS, work_ns) as f64 / 1e9)
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Done {
    /// Time from the start to the arrival of the last message.
    pub completion_us: f64,
    /// Lower bound on the completion.
    pub bound_us: f64,
    /// Bound over completion.
    pub efficiency: f64,
    /// Bytes of all messages, divided by the number of nodes and the time. Messages that stay on
    /// their node are included.
    pub throughput_gbps: f64,
    /// Most bytes that ever waited in one switch.
    pub buffer_bytes_max: u64,
    /// Most bytes that ever waited in one rack's switch.
    pub rack_bytes_max: u64,
    /// Bytes that waited in a rack's switch, as a mean over time and racks.
    pub rack_bytes_mean: f64,
    /// Most bytes that ever waited in the core.
    pub core_bytes_max: u64,
    /// Bytes that waited in the core, as a mean over time.
    pub core_bytes_mean: f64,
    /// Most bytes that ever waited for one port to a host.
    pub down_bytes_max: u64,
    /// Time that the last sender to end was pre-empted, divided by the least time of the shuffle
    /// without pre-emption.
    pub last_paused: f64,
    /// Time that the last sender to end ran without sending because it waited for grants, in the
    /// same unit.
    pub last_starved: f64,
    /// Message skewness of the matrix.
    pub skewness: f64,
    /// Packets that crossed the network.
    pub hops: u64,
    /// Equal runs have equal digests.
    pub digest: u64,
}

/// Runs one shuffle.
///
/// # Errors
/// When the shuffle fails or does not end. Figure 6.15 can come to [`Unfinished::Deadlock`];
/// everything else is a bug.
pub fn run(params: &ShuffleParams) -> Result<Done, Unfinished> {
    timeline(params).map(|(done, _)| done)
}

/// Runs one shuffle, and samples its progress at the interval of the parameters.
///
/// # Errors
/// As [`run`].
pub fn timeline(params: &ShuffleParams) -> Result<(Done, Vec<ShuffleSample>), Unfinished> {
    let short = params.shortened();
    let nodes = short.nodes();
    let mut prng = Prng::new(params.seed ^ 0x7368_7566);
    let rtt_ns = params.rtt_ns();
    let mut schedule = |(rtt, runs), node| {
        let law = Pauses { mean_ns: rtt * rtt_ns, runs, packet_ns: PACKET_NS };
        PauseSchedule::new(law, prng.fork(node as u64))
    };
    let paused = params.preempt_rtt.map(|law| (0..nodes).map(|node| schedule(law, node)).collect());
    let mut schedules: Vec<PauseSchedule> = paused.unwrap_or_default();
    let bound = params.bound(&short, &mut schedules);
    let spec = FatTreeSpec {
        rack_hosts: RACK_HOSTS as u32,
        host_bits_per_s: LINK_BITS_PER_S,
        rack_bits_per_s: (params.core * (LINK_BITS_PER_S * RACK_HOSTS as u64) as f64) as u64,
        priorities: params.priorities,
        costs: params.control.costs(),
        ..FatTreeSpec::default()
    };
    let mut world = World::new(FatTree::new(spec), params.seed);
    let operation = OPERATION ^ params.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let half_rtt_ns = rtt_ns / 2.0;
    let reduce_ns = f64::from(nodes.next_power_of_two().ilog2()) * half_rtt_ns;
    let mut watch = Watch {
        messages_left: nodes * (nodes - 1),
        last: SimTime::ZERO,
        last_sender: 0,
        failed: None,
        sent: 0,
        pauses: vec![0; schedules.len()],
        schedules,
        refresh: (params.rival == ShuffleRival::Global).then(|| Refresh {
            // An immediate result is approximated by a refresh every four packet times.
            every: Duration::from_nanos((reduce_ns * params.stale) as u64)
                .max(Duration::from_nanos(4 * PACKET_NS)),
            operation,
        }),
        lockstep: (params.rival == ShuffleRival::Lockstep)
            .then(|| Lockstep::new(&short, Duration::from_nanos(reduce_ns as u64))),
        timeline: params
            .sample_every
            .map(|every| Timeline::new(every, operation, &short, params.control.payload().1)),
    };
    start(params, &short, operation, &mut world, &mut watch);
    let limit = SimTime::from_nanos((bound * BOUNDS_MAX * 1e9) as u64 + 100_000_000);
    finish(params, &mut world, &mut watch, limit)?;
    watch.sample(&mut world);
    let done = measure(params, &world, &mut watch, &short, bound);
    Ok((done, watch.timeline.map_or_else(Vec::new, |timeline| timeline.samples)))
}

/// Lets the shuffle run until its last message has arrived.
fn finish(
    params: &ShuffleParams,
    world: &mut World<Node, FatTree>,
    watch: &mut Watch,
    limit: SimTime,
) -> Result<(), Unfinished> {
    let seed = params.seed;
    let pause_ns = params.preempt_rtt.map_or(0.0, |(trips, _)| trips * params.rtt_ns());
    let quiet = Duration::from_nanos((pause_ns * QUIET_PAUSES) as u64).max(QUIET_MIN);
    let (mut sent, mut since, mut looked_at) = (0, SimTime::ZERO, SimTime::ZERO);
    while watch.messages_left > 0 && watch.failed.is_none() {
        let has_more = world.step(limit, watch);
        let (now, left) = (world.now(), watch.messages_left);
        if watch.sent > sent {
            (sent, since, looked_at) = (watch.sent, now, now);
        } else if left > 0 && (!has_more || now > looked_at + quiet) {
            // Lock-step waits at its barriers until messages are admitted from outside.
            let circle = watch.lockstep.is_none().then(|| watch::circle(world)).flatten();
            if let Some(circle) = circle {
                return Err(Unfinished::Deadlock { seed, since, left, circle });
            }
            looked_at = now;
        }
        if !has_more {
            break;
        }
    }
    let left = watch.messages_left;
    match watch.failed.take() {
        Some(failure) => Err(Unfinished::Failed { seed, failure }),
        None if left > 0 => Err(Unfinished::Late { seed, left, limit }),
        None => Ok(()),
    }
}

fn start(
    params: &ShuffleParams,
    short: &Matrix,
    operation: u64,
    world: &mut World<Node, FatTree>,
    watch: &mut Watch,
) {
    let nodes = short.nodes();
    let config = params.config();
    let links = params.links();
    let longest = (0..nodes).flat_map(|from| short.row(from)).max().copied().unwrap_or(0);
    // All messages are slices of one buffer, because the simulation never reads their bytes.
    let bytes = Bytes::from(vec![0x5a; longest as usize]);
    let bound = short.bound(&links, |bytes| bytes as f64);
    let rules = params.rules(&config);
    for node in 0..nodes {
        let Some(mut own) = rules.clone() else {
            world.add(Node::Shuffle(Box::new(Shuffle::new(config.clone()))), HostSpec::ideal());
            continue;
        };
        if params.rival == ShuffleRival::Madd && bound > 0.0 {
            // Each message is sent at the rate of its length divided by the bound. The sum of these
            // rates is the rate of the node.
            let own_share = short.sent_by(node) as f64 * 8.0 / LINK_BITS_PER_S as f64 / bound;
            let slower = |ps: u64| (ps as f64 / own_share.max(1e-6)) as u64;
            own.pace.ps_per_byte = slower(own.pace.ps_per_byte);
            own.pace.ps_per_data = slower(own.pace.ps_per_data);
        }
        world.add(Node::Plain(Box::new(Plain::new(own))), HostSpec::ideal());
    }
    for (node, pause) in watch.schedules.iter_mut().map(|s| s.pause(0).0).enumerate() {
        world.schedule(SimTime::from_nanos(pause), Action::Token(node as u64));
    }
    let members: Vec<_> = (0..nodes as u32).map(|n| world.address(NodeIndex(n))).collect();
    for rank in 0..nodes {
        let body = |to: usize| bytes.slice(..short.cell(rank, to) as usize);
        let bodies: Vec<Bytes> = (0..nodes).map(body).collect();
        let members = members.clone();
        let begin = |machine: &mut Node, now: Timestamp| match machine {
            Node::Plain(plain) => {
                plain.start(operation, rank, members, bodies);
                Ok(())
            }
            Node::Shuffle(shuffle) => {
                shuffle.start(now, ShufflePlan::shuffle(operation, rank, members, bodies))
            }
        };
        let begun = world.call(NodeIndex(rank as u32), watch, begin);
        assert_eq!(begun, Some(Ok(())), "a plan of our own is right");
    }
    if watch.refresh.is_some() {
        world.schedule(SimTime::from_nanos(2 * PACKET_NS * 16), Action::Token(REFRESH));
    }
    if let Some(timeline) = &watch.timeline {
        world.schedule(SimTime::ZERO + timeline.every, Action::Token(SAMPLE));
    }
    if watch.lockstep.is_some() {
        world.schedule(SimTime::ZERO, Action::Token(STEP));
    }
}

fn measure(
    params: &ShuffleParams,
    world: &World<Node, FatTree>,
    watch: &mut Watch,
    short: &Matrix,
    bound: f64,
) -> Done {
    let completion = watch.last.nanos() as f64 / 1e9;
    let undisturbed = params.bound(short, &mut []).max(f64::MIN_POSITIVE);
    let sender = watch.last_sender;
    let sending = params.matrix.sent_by(sender) as f64 * 8.0 / LINK_BITS_PER_S as f64;
    let schedule = watch.schedules.get_mut(sender);
    let paused = schedule.map_or(0, |schedule| schedule.paused_ns(watch.last.nanos())) as f64 / 1e9;
    let tree = world.network();
    let most = |values: &mut dyn Iterator<Item = u64>| values.max().unwrap_or(0);
    let rack_bytes_max = most(&mut tree.racks().iter().map(|rack| rack.bytes_max));
    let racks = tree.racks().len().max(1) as f64;
    let bits = params.matrix.total() as f64 * 8.0;
    Done {
        completion_us: completion * 1e6,
        bound_us: bound * 1e6,
        efficiency: bound / completion,
        throughput_gbps: bits / params.matrix.nodes() as f64 / completion / 1e9,
        buffer_bytes_max: rack_bytes_max.max(tree.core().bytes_max),
        rack_bytes_max,
        rack_bytes_mean: tree.racks().iter().map(|rack| rack.bytes_mean()).sum::<f64>() / racks,
        core_bytes_max: tree.core().bytes_max,
        core_bytes_mean: tree.core().bytes_mean(),
        down_bytes_max: tree.down_bytes_max(),
        last_paused: paused / undisturbed,
        last_starved: (completion - paused - sending).max(0.0) / undisturbed,
        skewness: params.matrix.skewness(),
        hops: world.tally().hops,
        digest: world.digest(),
    }
}
