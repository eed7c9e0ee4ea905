//! Canopus and its rivals over racks and sites: rate, times of commits and bytes on wide links,
//! simulated.
//!
//! Every replica has a host with one core for the replica, and a host of clients beside it. Clients
//! send datagrams of writes or of reads every millisecond, at a rate, and the time of a request
//! counts from its departure to its answer.
//!
//! A datagram of [`DATAGRAM_BYTES`] carries some thirty writes, and keeps its receiver busy for as
//! long as thirty writes take a replica of `evenfall bench consensus`. A shorter datagram costs as
//! much. So processor time limits the rate as it does on a real host. All protocols have these
//! costs, the same network and the same clients.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::config::REQUEST_HEAD_BYTES;
use evenfall_consensus_machine::{
    ClientRequest, Config, Consensus as _, Event, LeafMember, LeafOnlyTree, LeaseKey, SecondRound,
    SuperLeaf,
};
use evenfall_core::time::nanos;
use evenfall_core::{
    Arrival, ClockReading, Destination, Head, Install, Machine, Malformed, NodeId, Prng, Reader,
    Timestamp, TrafficClass, Transmit,
};
use evenfall_sim::network::{Agenda, Divisible, Fate, Network, Packet, Rates, Verdict};
use evenfall_sim::{
    Cloud, HostIndex, HostSpec, NodeIndex, Observer, Seen, SimTime, World, any_machine,
};

use super::ordered::{Ordered, Replicas};
use super::rivals::Protocol;
use crate::model::{Model, Simulated, Stack};

/// Bytes of the longest datagram.
pub const DATAGRAM_BYTES: usize = 1_400;
/// Bytes that a write takes in a proposal: a head, a key of eight bytes and a value of sixteen.
pub const WRITE_BYTES: usize = REQUEST_HEAD_BYTES + 24;
/// Bytes of a read on its way to a replica: a sequence and a key.
const READ_BYTES: usize = 16;
/// Bytes that a read takes where it is ordered like a write: a head and a key.
const ORDERED_READ_BYTES: usize = REQUEST_HEAD_BYTES + 8;
/// Bytes of an answer: a sequence, and with a read the value.
const WRITE_ANSWER_BYTES: usize = 8;
const READ_ANSWER_BYTES: usize = 24;
/// Writes and reads in a datagram of clients, so that neither the datagram nor its answer is longer
/// than allowed.
const WRITES_MAX: usize = 30;
const READS_MAX: usize = 50;
/// First bytes of the datagrams between clients and replicas.
const MAGIC: [u8; 4] = *b"CLIE";
/// Bodies of requests and of datagrams: zeros, and in the second one a first byte that marks writes
/// of the key in common. Contents have no effect on a run, so all bodies share these bytes.
static BODIES: [[u8; DATAGRAM_BYTES]; 2] = {
    let mut bodies = [[0; DATAGRAM_BYTES]; 2];
    bodies[1][0] = 1;
    bodies
};
/// Processor time of a write at one replica: a third of what three replicas of `evenfall bench
/// consensus` took together in the slowest sitting, with 6,000 writes under way and logs that were
/// made in memory. The sittings of docs/results/consensus.md took .25 to .40 us.
const WRITE_COST: Duration = Duration::from_nanos(130);
/// A rate at which no request waits for a processor, and a rate beyond all limits.
const LOW_PER_S: f64 = 50_000.0;
const RATE_MAX: f64 = 1e9;
/// The longest median in a data centre, by the thesis.
pub const RACK_LIMIT: Duration = Duration::from_millis(10);
/// Time between two checks whether a simulation is decided ([`Scenario::is_decided`]).
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time between two departures of clients.
const CLIENTS_EVERY: Duration = Duration::from_millis(1);

/// Round trips between sites in milliseconds, as the thesis prints them for Ireland, California,
/// Virginia, Tokyo, Oregon, Sydney and Frankfurt. Whether the numbers are round trips or one way,
/// the thesis does not say. Here they are round trips.
const SITES_MS: [[u64; 7]; 7] = [
    [0, 133, 66, 243, 154, 295, 22],
    [133, 0, 60, 113, 20, 168, 145],
    [66, 60, 0, 145, 80, 226, 89],
    [243, 113, 145, 0, 100, 103, 226],
    [154, 20, 80, 100, 0, 161, 156],
    [295, 168, 226, 103, 161, 0, 322],
    [22, 145, 89, 226, 156, 322, 0],
];
/// One way between two hosts of a rack or of a site: half of .2 ms, which lies between .13 and .26.
const INSIDE: Duration = Duration::from_micros(100);
/// One way between two racks of a data centre.
const BETWEEN_RACKS: Duration = Duration::from_micros(150);
/// Racks of a group, which share a vnode in a tree of height 3.
const GROUP: usize = 3;
/// One way between two racks of different groups: a further switch, as far as from rack to rack.
const BETWEEN_GROUPS: Duration = Duration::from_micros(200);

/// The replicas, the network and the load of a simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The protocol of the replicas.
    pub protocol: Protocol,
    /// Replicas of each super-leaf.
    pub leaf_sizes: Vec<u32>,
    /// Time of a datagram from one super-leaf to another, or inside a super-leaf.
    pub one_way: Vec<Vec<Duration>>,
    /// Requests of all clients in a second.
    pub requests_per_s: f64,
    /// The share of writes among the requests.
    pub writes: f64,
    /// Processor time of a write at one replica.
    pub write_cost: Duration,
    /// Shortest time between the starts of two cycles, or between two batches of a rival.
    pub cycle_every: Duration,
    /// The share of writes that have one key in common. The others interfere with nothing.
    pub conflicts: f64,
    /// Cycles for which a write lease lasts; 0 when Canopus has no write leases.
    pub lease_cycles: u64,
    /// The second round of Canopus.
    pub second_round: SecondRound,
    /// Keys that are written and read. Requests that depart together have one key in common.
    pub keys: u64,
    /// How long the clients are watched, after a warm-up.
    pub watched: Duration,
    /// Whether super-leaves stand below vnodes of three each, which stand below the root.
    pub is_high: bool,
    /// The cloud whose paths, losses and hosts take the place of [`INSIDE`] and of hosts that only
    /// work on writes.
    pub model: Option<Model>,
    /// Cores that share the run. The results do not depend on their number. Runs over the paths of
    /// a model take one core.
    pub cores: usize,
    /// Seed of the replicas and of the network.
    pub seed: u64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub struct WideOutcome {
    /// Writes answered in a second.
    pub writes_per_s: f64,
    /// Reads answered in a second.
    pub reads_per_s: f64,
    /// Times of the writes.
    pub write_times: Times,
    /// Times of the reads.
    pub read_times: Times,
    /// Bytes on the links between super-leaves, over the writes.
    pub wan_bytes_per_write: f64,
    /// By how many seconds the mean time grows in a second: .05 when five of a hundred requests
    /// that come join a queue.
    pub growth: f64,
}

impl WideOutcome {
    /// The median time of writes, or of reads where nobody writes.
    pub fn median(&self) -> Duration {
        let writes = self.write_times.quantile(0.5);
        if writes.is_zero() { self.read_times.quantile(0.5) } else { writes }
    }
}

/// Times of requests, to the nanosecond: the goal for a commit lies closer to a round trip than the
/// buckets of a histogram.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// A time, and how many requests took it.
    all: Vec<(Duration, u32)>,
}

impl Times {
    fn add(&mut self, time: Duration, count: u32) {
        self.all.push((time, count));
    }

    fn sorted(&self) -> Self {
        let mut all = self.all.clone();
        all.sort_unstable();
        Self { all }
    }

    /// The time that this share of the requests did not exceed; zero when there were none.
    pub fn quantile(&self, share: f64) -> Duration {
        let total: u64 = self.all.iter().map(|(_, count)| u64::from(*count)).sum();
        let (rank, mut seen) = ((share * total as f64).ceil() as u64, 0);
        for (time, count) in &self.all {
            seen += u64::from(*count);
            if seen >= rank {
                return *time;
            }
        }
        Duration::ZERO
    }
}

impl Scenario {
    /// Three replicas at each of the first `sites` sites of the table.
    pub fn sites(sites: usize) -> Self {
        let sites = sites.clamp(1, SITES_MS.len());
        let one = |a: usize, b: usize| match a == b {
            true => INSIDE,
            false => Duration::from_millis(SITES_MS[a][b]) / 2,
        };
        let one_way = (0..sites).map(|a| (0..sites).map(|b| one(a, b)).collect()).collect();
        Self::of(vec![3; sites], one_way)
    }

    /// Three racks of `size` replicas each.
    pub fn racks(size: u32) -> Self {
        Self::many_racks(3, size)
    }

    /// This many racks of `size` replicas each. Racks stand in groups of three, and groups are
    /// farther apart.
    pub fn many_racks(racks: usize, size: u32) -> Self {
        let one = |a: usize, b: usize| match (a == b, a / GROUP == b / GROUP) {
            (true, _) => INSIDE,
            (_, true) => BETWEEN_RACKS,
            _ => BETWEEN_GROUPS,
        };
        let one_way = (0..racks).map(|a| (0..racks).map(|b| one(a, b)).collect()).collect();
        Self::of(vec![size; racks], one_way)
    }

    fn of(leaf_sizes: Vec<u32>, one_way: Vec<Vec<Duration>>) -> Self {
        Self {
            protocol: Protocol::Canopus,
            leaf_sizes,
            one_way,
            requests_per_s: 100_000.0,
            writes: 0.2,
            write_cost: WRITE_COST,
            cycle_every: Duration::from_millis(5),
            conflicts: 0.0,
            lease_cycles: 0,
            second_round: SecondRound::Off,
            keys: 10_000,
            watched: Duration::from_secs(1),
            is_high: false,
            model: None,
            cores: 1,
            seed: 1,
        }
    }

    /// The farthest round trip between two super-leaves.
    pub fn farthest(&self) -> Duration {
        self.one_way.iter().flatten().max().copied().unwrap_or_default() * 2
    }

    /// Whether the rest of a simulation would show nothing new. Either all watched requests are
    /// answered, or more than half of the requests that are older than [`limit`](Self::limit) are
    /// not: the median then exceeds the limit.
    fn is_decided(&self, now: SimTime, watch: &Watch) -> bool {
        let done = watch.done.iter().sum::<u64>() as f64;
        let departed = |until: SimTime| {
            let watched = until.min(watch.end).nanos().saturating_sub(watch.warm_up.nanos());
            self.requests_per_s * watched as f64 / 1e9
        };
        // A replica's clients keep less than one request of each kind for the next departure.
        let over = f64::from(2 * self.replicas());
        let has_all = now >= watch.end && done + over >= departed(watch.end);
        let old = SimTime::ZERO + Duration::from_nanos(now.nanos()).saturating_sub(self.limit());
        has_all || done < departed(old) / 2.0
    }

    /// A time that no allowed median exceeds. The thesis allows 10 ms in a data centre. Over sites
    /// the thesis allows 1.5 times the median at a low rate, and that median is at most two of the
    /// farthest round trips.
    fn limit(&self) -> Duration {
        match self.is_wide() {
            true => self.farthest() * 3,
            false => RACK_LIMIT,
        }
    }

    /// Whether the super-leaves are at several sites.
    fn is_wide(&self) -> bool {
        self.farthest() > RACK_LIMIT
    }

    /// Number of replicas.
    pub fn replicas(&self) -> u32 {
        self.leaf_sizes.iter().sum()
    }

    fn config(&self) -> Config {
        let base = Config { cycle_every: self.cycle_every, ..Config::default() };
        let across = base.across(self.farthest());
        Config {
            // A write waits for its lease for a whole pipeline, so that one round trip has to do.
            pipeline: match self.lease_cycles {
                0 => across.pipeline,
                _ => base.pipeline.midpoint(across.pipeline),
            },
            batch_bytes: 2 << 20,
            datagram_bytes: DATAGRAM_BYTES,
            // A busy replica answers later than an idle one.
            fetch_every: self.farthest() * 2 + Duration::from_millis(100),
            suspect_after: Duration::from_secs(2),
            lease_cycles: self.lease_cycles,
            second_round: self.second_round,
            // The histories of 21 replicas with the usual 64 MiB would take more than a gigabyte.
            // The cycles of a pipeline are kept anyhow.
            history_bytes: 16 << 20,
            ..across
        }
    }

    /// How long a write waits for its lease at most, beside the round trip that agrees the lease.
    fn lease_wait(&self) -> Duration {
        match self.lease_cycles {
            0 => Duration::ZERO,
            _ => self.cycle_every * self.config().pipeline as u32,
        }
    }

    /// The first replica of the super-leaf that is nearest to all others: the place of a leader.
    fn central(&self) -> u32 {
        let distance = |leaf: &usize| self.one_way[*leaf].iter().sum::<Duration>();
        let nearest = (0..self.leaf_sizes.len()).min_by_key(distance).unwrap_or(0);
        self.leaf_sizes[..nearest].iter().sum()
    }

    fn host(&self) -> HostSpec {
        let writes = (DATAGRAM_BYTES / WRITE_BYTES) as u32;
        let work = self.write_cost * writes;
        if let Some(model) = &self.model {
            let host = model.host(Stack::Sockets);
            let receive_cost = host.receive_cost + work;
            // A replica drops nothing that its card took.
            return HostSpec { receive_cost, receive_queue: 1 << 20, ..host };
        }
        HostSpec {
            receive_cost: work,
            // A copy costs the same in a call of its own and in a call for many destinations.
            send_cost: Duration::ZERO,
            copy_cost: Duration::from_micros(2),
            receive_queue: 1 << 20,
            ingress_queue: Duration::from_millis(100),
            ..HostSpec::default()
        }
    }

    /// The network of the replicas' hosts, which come first, and of the hosts of their clients.
    fn network(&self, watched: Range<SimTime>) -> Sites {
        let leaf_of: Vec<usize> = (0..)
            .zip(&self.leaf_sizes)
            .flat_map(|(leaf, size)| core::iter::repeat_n(leaf, *size as usize))
            .collect();
        Sites {
            map: SiteMap { one_way: self.one_way.clone(), hosts: Vec::new(), watched },
            wan_bytes: Vec::new(),
            next: leaf_of.iter().chain(&leaf_of).copied().rev().collect(),
            cloud: self.model.as_ref().map(|model| Cloud::new(model.cloud(), self.seed)),
        }
    }

    /// Simulates the scenario. Only requests that depart while the clients are watched count. The
    /// simulation ends when all of these requests are answered, or when the rate is far too high.
    pub fn run(&self) -> WideOutcome {
        let warm_up = SimTime::ZERO + self.farthest() + Duration::from_millis(50);
        let end = warm_up + self.watched;
        let mut world: World<Node, Sites> = World::new(self.network(warm_up..end), self.seed);
        let count = self.replicas();
        let tree = tree(&self.leaf_sizes, self.is_high);
        let replicas = Replicas {
            protocol: self.protocol,
            config: self.config(),
            tree: &tree,
            leader: self.central(),
            has_keys: true,
            in_memory: true,
        };
        let mut prng = Prng::new(self.seed);
        for node in 0..count {
            let replica = Replica {
                inner: replicas.replica(node, prng.next_u64()).expect("a replica of this tree"),
                clients: NodeIndex(count + node).address(),
                last: 0,
                keys: (self.keys, Prng::new(self.seed ^ u64::from(node) << 32)),
                under_way: BTreeMap::new(),
                out: VecDeque::new(),
                now: Timestamp::ZERO,
            };
            world.add(Node::Replica(Box::new(replica)), self.host());
        }
        for node in 0..count {
            let per_turn = self.requests_per_s / f64::from(count) * CLIENTS_EVERY.as_secs_f64();
            let clients = Clients {
                replica: NodeIndex(node).address(),
                // Clients of different replicas do not depart at one moment.
                after: CLIENTS_EVERY * node / count,
                next: None,
                per_turn: [per_turn * self.writes, per_turn * (1.0 - self.writes)],
                due: [0.0; 2],
                conflicts: self.conflicts,
                due_conflicts: 0.0,
                out: VecDeque::new(),
                answers: VecDeque::new(),
            };
            world.add(Node::Clients(clients), HostSpec::ideal());
        }
        let mut watch = Watch { warm_up, end, ..Watch::default() };
        // The last requests have time to be answered.
        let last = end + self.farthest() * 2 + self.lease_wait() + Duration::from_millis(20);
        // `is_decided` is false before this time.
        let looks = end.min(warm_up + self.limit()).nanos() / nanos(LOOK_EVERY);
        let first_look = SimTime::ZERO + LOOK_EVERY * looks as u32;
        while world.now() < last && !self.is_decided(world.now(), &watch) {
            let look = first_look.max(world.now() + LOOK_EVERY);
            world.run_until_on(self.cores, last.min(look), &mut watch);
        }
        let wan_bytes: u64 = world.network().wan_bytes.iter().sum();
        let per_s = |done: u64| done as f64 / self.watched.as_secs_f64();
        let [first, second] = watch.halves.map(|(ns, count)| ns / count.max(1.0));
        WideOutcome {
            growth: (second - first) * 2.0 / self.watched.as_nanos() as f64,
            writes_per_s: per_s(watch.done[0]),
            reads_per_s: per_s(watch.done[1]),
            wan_bytes_per_write: wan_bytes as f64 / watch.done[0].max(1) as f64,
            write_times: watch.times[0].sorted(),
            read_times: watch.times[1].sorted(),
        }
    }
}

fn tree(leaf_sizes: &[u32], is_high: bool) -> LeafOnlyTree {
    let mut nodes = 0..;
    let leaf = |(number, size): (u8, &u32)| {
        let members = nodes.by_ref().take(*size as usize);
        let member = |node| LeafMember { node: NodeId(node), address: NodeIndex(node).address() };
        let path = match (leaf_sizes.len() > 1, is_high) {
            (true, true) => vec![number / GROUP as u8, number % GROUP as u8],
            (true, false) => vec![number],
            _ => Vec::new(),
        };
        SuperLeaf { path, members: members.map(member).collect() }
    };
    LeafOnlyTree::new((0..).zip(leaf_sizes).map(leaf).collect()).expect("a tree of ours")
}

/// Delays between super-leaves. Without a cloud nothing is lost.
struct Sites {
    map: SiteMap,
    /// For each host, the bytes of its packets to other super-leaves while clients were watched.
    wan_bytes: Vec<u64>,
    /// The super-leaves of the hosts to come, the next one last.
    next: Vec<usize>,
    /// The paths inside a rack. Longer ways add what they are longer than [`INSIDE`].
    cloud: Option<Cloud>,
}

/// The part of [`Sites`] that no packet changes. All cores read it.
struct SiteMap {
    one_way: Vec<Vec<Duration>>,
    /// The super-leaf of each host.
    hosts: Vec<usize>,
    /// When the clients are watched.
    watched: Range<SimTime>,
}

impl SiteMap {
    /// The delay of a packet. Adds the packet's bytes to `wan_bytes` when the packet leaves its
    /// super-leaf while the clients are watched.
    fn delay(&self, wan_bytes: &mut u64, packet: &Packet) -> Duration {
        let leaf = |host: HostIndex| self.hosts[host.0 as usize];
        let (from, to) = (leaf(packet.from_host), leaf(packet.to_host));
        if from != to && self.watched.contains(&packet.at) {
            *wan_bytes += u64::from(packet.bytes);
        }
        self.one_way[from][to]
    }
}

impl Network for Sites {
    fn add_host(&mut self, spec: &HostSpec) {
        self.map.hosts.push(self.next.pop().unwrap_or(0));
        self.wan_bytes.push(0);
        self.cloud.iter_mut().for_each(|cloud| cloud.add_host(spec));
    }

    fn route(&mut self, packet: &Packet, prng: &mut Prng, agenda: &mut Agenda) -> Verdict {
        let wan_bytes = &mut self.wan_bytes[packet.from_host.0 as usize];
        let delay = self.map.delay(wan_bytes, packet);
        let Some(cloud) = &mut self.cloud else { return Verdict::Deliver(packet.at + delay) };
        let farther = delay.saturating_sub(INSIDE);
        match cloud.route(packet, prng, agenda) {
            Verdict::Deliver(at) => Verdict::Deliver(at + farther),
            lost => lost,
        }
    }

    fn set_rates(&mut self, _: Rates) {}

    fn slow(&mut self, _: SimTime, _: HostIndex, _: f64) {}
}

impl Divisible for Sites {
    type Sender = u64;
    type Map = SiteMap;

    fn divide(&mut self) -> Option<(&SiteMap, &mut [u64])> {
        // A cloud has a map and senders of its own.
        self.cloud.is_none().then_some((&self.map, &mut self.wan_bytes[..]))
    }

    fn least(&self) -> Duration {
        self.map.one_way.iter().flatten().min().copied().unwrap_or_default()
    }

    fn fate(map: &SiteMap, wan_bytes: &mut u64, packet: &Packet) -> Fate {
        Fate::Arrives { at: packet.at + map.delay(wan_bytes, packet), loss: 0 }
    }

    fn ready(_: &SiteMap, _: &u64, now: SimTime) -> SimTime {
        now
    }
}

/// Requests that departed together: when, how many, whether they are writes, and whether one of
/// them writes the key that requests have in common.
#[derive(Clone, Copy, Debug)]
struct Bundle {
    departed: u64,
    count: u32,
    is_write: bool,
    conflicts: bool,
}

impl Bundle {
    fn head(self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend(self.departed.to_le_bytes());
        head.extend(self.count.to_le_bytes());
        head.push(self.is_write.into());
        head.push(self.conflicts.into());
        head
    }

    fn read(datagram: &[u8]) -> Result<Self, Malformed> {
        let r = &mut Reader::new(datagram);
        r.take(MAGIC.len())?;
        let (departed, count) = (r.u64()?, r.u32()?);
        Ok(Self { departed, count, is_write: r.u8()? == 1, conflicts: r.u8()? == 1 })
    }

    fn transmit(self, to: SocketAddr, [write, read]: [usize; 2]) -> Transmit {
        let bytes = if self.is_write { write } else { read } * self.count as usize;
        let (head, to) = (Head::new(&self.head()), Destination::One(to));
        Transmit::new(TrafficClass::Live, to, head, Bytes::from_static(&BODIES[0][..bytes]))
    }
}

/// An event of clients: the requests of a bundle were answered.
struct Answered {
    bundle: Bundle,
    at: Timestamp,
}

/// A replica with the clients that it serves. A bundle is one request of the order, as long as its
/// requests.
struct Replica {
    inner: Ordered,
    clients: SocketAddr,
    last: u64,
    /// The number of keys, and the choice among them.
    keys: (u64, Prng),
    under_way: BTreeMap<u64, Bundle>,
    out: VecDeque<Transmit>,
    /// The time of the last input.
    now: Timestamp,
}

impl Replica {
    fn take(&mut self, now: Timestamp, bundle: Bundle) {
        self.last += 1;
        let sequence = self.last;
        let each = if bundle.is_write { WRITE_BYTES } else { ORDERED_READ_BYTES };
        let length = bundle.count as usize * each - REQUEST_HEAD_BYTES;
        let body = Bytes::from_static(&BODIES[usize::from(bundle.conflicts)][..length]);
        // A client has one request under way.
        let request = ClientRequest { client: sequence, sequence, body };
        let key = LeaseKey(self.keys.1.below(self.keys.0));
        let is_in = match bundle.is_write {
            true => self.inner.write(now, request, key),
            false => self.inner.read(now, request, key),
        };
        self.inner.settle(now);
        // A request that finds no room is never answered, so that the rate of answers falls.
        if is_in.is_ok() {
            self.under_way.insert(sequence, bundle);
        }
    }

    fn answer(&mut self, token: u64) {
        if let Some(bundle) = self.under_way.remove(&token) {
            let bytes = [WRITE_ANSWER_BYTES, READ_ANSWER_BYTES];
            self.out.push_back(bundle.transmit(self.clients, bytes));
        }
    }
}

impl Machine for Replica {
    type Event = Answered;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.now = now;
        if !arrival.datagram.starts_with(&MAGIC) {
            return self.inner.handle(now, arrival);
        }
        let bundle = Bundle::read(&arrival.datagram)?;
        self.take(now, bundle);
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.now = now;
        self.inner.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.now = now;
        self.inner.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<Answered> {
        while let Some(event) = self.inner.poll_event() {
            match event {
                Event::Committed { state, reads, .. } => {
                    let own = state.set_of(self.inner.node());
                    for request in own.into_iter().flat_map(|set| &set.requests) {
                        self.answer(request.sequence);
                    }
                    reads.iter().for_each(|read| self.answer(read.token));
                }
                Event::Answered(token) => self.answer(token),
                Event::CheckpointWanted => {
                    // This replica keeps no state of the executed requests.
                    self.inner.checkpoint(b"nothing");
                    self.inner.settle(self.now);
                }
                _ => {}
            }
        }
        None
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.inner.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.inner.poll_transmit(now).or_else(|| self.out.pop_front())
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.inner.poll_timeout()
    }
}

/// The clients of one replica.
struct Clients {
    replica: SocketAddr,
    /// Time from the first clock reading to the first departure.
    after: Duration,
    next: Option<Timestamp>,
    /// Writes and reads between two departures, and those that are due.
    per_turn: [f64; 2],
    due: [f64; 2],
    /// The share of writes that have a key in common, and how many of these are due.
    conflicts: f64,
    due_conflicts: f64,
    out: VecDeque<Transmit>,
    answers: VecDeque<Answered>,
}

impl Machine for Clients {
    type Event = Answered;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let bundle = Bundle::read(&arrival.datagram)?;
        self.answers.push_back(Answered { bundle, at: now });
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        let Some(next) = self.next.filter(|next| *next <= now) else { return };
        self.next = Some(next + CLIENTS_EVERY);
        for (kind, most) in [WRITES_MAX, READS_MAX].into_iter().enumerate() {
            self.due[kind] += self.per_turn[kind];
            while self.due[kind] >= 1.0 {
                let count = (self.due[kind] as u32).min(most as u32);
                self.due[kind] -= f64::from(count);
                let is_write = kind == 0;
                if is_write {
                    self.due_conflicts += f64::from(count) * self.conflicts;
                }
                let conflicts = is_write && self.due_conflicts >= 1.0;
                if conflicts {
                    self.due_conflicts -= self.due_conflicts.floor();
                }
                let bundle = Bundle { departed: now.nanos(), count, is_write, conflicts };
                let bytes = [WRITE_BYTES - REQUEST_HEAD_BYTES + 8, READ_BYTES];
                self.out.push_back(bundle.transmit(self.replica, bytes));
            }
        }
    }

    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        self.next.get_or_insert(now + self.after);
    }

    fn poll_event(&mut self) -> Option<Answered> {
        self.answers.pop_front()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.next
    }
}

enum Node {
    Replica(Box<Replica>),
    Clients(Clients),
}

any_machine! {
    impl Machine for Node {
        type Event = Answered;
        Replica(machine) => machine.poll_event(),
        Clients(machine) => machine.poll_event(),
    }
}

#[derive(Default)]
struct Watch {
    warm_up: SimTime,
    end: SimTime,
    done: [u64; 2],
    times: [Times; 2],
    /// The sum of all times in nanoseconds, and their number, of the requests that departed in
    /// each half of the time.
    halves: [(f64, f64); 2],
}

impl Observer<Node, Sites> for Watch {
    fn event(&mut self, seen: Seen, answered: Answered) {
        let Answered { bundle, at } = answered;
        let time = Duration::from_nanos(at.nanos().saturating_sub(bundle.departed));
        let departed = seen.at.nanos().saturating_sub(time.as_nanos() as u64);
        if (self.warm_up.nanos()..self.end.nanos()).contains(&departed) {
            let kind = usize::from(!bundle.is_write);
            self.done[kind] += u64::from(bundle.count);
            self.times[kind].add(time, bundle.count);
            let is_late = departed - self.warm_up.nanos() > self.end.nanos() - departed;
            let (sum, count) = &mut self.halves[usize::from(is_late)];
            *sum += time.as_nanos() as f64 * f64::from(bundle.count);
            *count += f64::from(bundle.count);
        }
    }

    fn follows_packets(&self) -> bool {
        false
    }
}

/// The highest rate that the thesis's rule allows, and the outcome at that rate. Over sites, the
/// median is at most 1.5 times the median at a low rate. In a data centre, the median is at most 10
/// ms. A short run does not show a queue that grows slowly, so at most one request in twenty may
/// join a queue, and 98 of 100 requests have to be answered. The rate is found within 9 %.
pub fn peak(scenario: &Scenario) -> (f64, WideOutcome) {
    let at = |requests_per_s: f64| Scenario { requests_per_s, ..scenario.clone() }.run();
    let low = at(LOW_PER_S);
    let limit = match scenario.is_wide() {
        true => low.median() + low.median() / 2,
        false => RACK_LIMIT,
    };
    let holds = |outcome: &WideOutcome, rate: f64| {
        let is_answered = outcome.writes_per_s + outcome.reads_per_s >= rate * 0.98;
        is_answered && outcome.median() <= limit && outcome.growth <= 0.05
    };
    let (mut rate, mut best) = (LOW_PER_S, low);
    let (mut step, mut has_failed) = (8.0_f64, false);
    while step > 1.05 && rate < RATE_MAX {
        let next = rate * step;
        let outcome = at(next);
        if holds(&outcome, next) {
            (rate, best) = (next, outcome);
            step = if has_failed { step.sqrt() } else { 2.0 };
        } else {
            (step, has_failed) = (step.sqrt(), true);
        }
    }
    (rate, best)
}
