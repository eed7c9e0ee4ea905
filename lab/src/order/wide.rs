//! Canopus over racks and sites: rate, times of commits and bytes on wide links, simulated.
//!
//! Every replica has a host with one core for the replica, and a host of clients beside it. Clients
//! send datagrams of writes or of reads every millisecond, at a rate, and the time of a request
//! counts from its departure to its answer.
//!
//! A datagram of [`DATAGRAM_BYTES`] carries some forty writes, and its receiver is busy for as long
//! as that many writes take a replica of `evenfall bench order`. A shorter datagram costs as much.
//! So processor time limits the rate as it does on a real host.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Class, ClockReading, Destination, Head, Install, Machine, Malformed, NodeId, Prng,
    Reader, Timestamp, Transmit, any_machine,
};
use evenfall_order_machine::config::REQUEST_HEAD_BYTES;
use evenfall_order_machine::{Canopus, Config, Event, Member, Request, SuperLeaf, Tree};
use evenfall_sim::network::{Agenda, Network, Packet, Rates, Verdict};
use evenfall_sim::{HostIndex, HostSpec, NodeIndex, Observer, Seen, SimTime, World};

use super::memory::Logged;

/// Bytes of the longest datagram.
pub const DATAGRAM_BYTES: usize = 1_400;
/// Bytes that a write takes in a proposal: a head, a key of eight bytes and a value of sixteen.
pub const WRITE_BYTES: usize = REQUEST_HEAD_BYTES + 24;
/// Bytes of a read on its way to a replica: a sequence and a key.
const READ_BYTES: usize = 16;
/// Bytes of an answer: a sequence, and with a read the value.
const WRITE_ANSWER_BYTES: usize = 8;
const READ_ANSWER_BYTES: usize = 24;
/// Writes and reads in a datagram of clients, so that neither the datagram nor its answer is longer
/// than allowed.
const WRITES_MAX: usize = 30;
const READS_MAX: usize = 50;
/// First bytes of the datagrams between clients and replicas.
const MAGIC: [u8; 4] = *b"CLIE";
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

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Replicas of each super-leaf.
    pub leaf_sizes: Vec<u32>,
    /// One way between super-leaves, and within one.
    pub one_way: Vec<Vec<Duration>>,
    /// Requests of all clients in a second.
    pub requests_per_s: f64,
    /// The share of writes among the requests.
    pub writes: f64,
    /// Processor time of a write at one replica.
    pub write_cost: Duration,
    /// Shortest time between the starts of two cycles.
    pub cycle_every: Duration,
    /// Seed of the replicas.
    pub seed: u64,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
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
    /// Three replicas at each of the first so many sites of the table.
    pub fn sites(sites: usize) -> Self {
        let sites = sites.clamp(1, SITES_MS.len());
        let one = |a: usize, b: usize| match a == b {
            true => INSIDE,
            false => Duration::from_millis(SITES_MS[a][b]) / 2,
        };
        let one_way = (0..sites).map(|a| (0..sites).map(|b| one(a, b)).collect()).collect();
        Self::of(vec![3; sites], one_way)
    }

    /// Three racks of so many replicas each.
    pub fn racks(size: u32) -> Self {
        let one = |a: usize, b: usize| if a == b { INSIDE } else { BETWEEN_RACKS };
        let one_way = (0..3).map(|a| (0..3).map(|b| one(a, b)).collect()).collect();
        Self::of(vec![size; 3], one_way)
    }

    fn of(leaf_sizes: Vec<u32>, one_way: Vec<Vec<Duration>>) -> Self {
        Self {
            leaf_sizes,
            one_way,
            requests_per_s: 100_000.0,
            writes: 0.2,
            write_cost: Duration::from_nanos(270),
            cycle_every: Duration::from_millis(5),
            seed: 1,
        }
    }

    /// The farthest round trip between two super-leaves.
    pub fn farthest(&self) -> Duration {
        self.one_way.iter().flatten().max().copied().unwrap_or_default() * 2
    }

    /// Replicas.
    pub fn replicas(&self) -> u32 {
        self.leaf_sizes.iter().sum()
    }

    fn config(&self) -> Config {
        let farthest = self.farthest();
        let under_way = farthest.as_nanos() / self.cycle_every.as_nanos().max(1);
        Config {
            pipeline: 4 + 2 * under_way as u64,
            history: 256 + 4 * under_way as u64,
            cycle_every: self.cycle_every,
            batch_bytes: 2 << 20,
            datagram_bytes: DATAGRAM_BYTES,
            // A busy replica answers later than an idle one.
            fetch_every: farthest * 2 + Duration::from_millis(100),
            suspect_after: Duration::from_secs(2),
            ..Config::default()
        }
    }

    fn host(&self) -> HostSpec {
        let writes = (DATAGRAM_BYTES / WRITE_BYTES) as u32;
        HostSpec {
            receive_cost: self.write_cost * writes,
            copy_cost: Duration::from_micros(2),
            receive_queue: 1 << 20,
            ingress_queue: Duration::from_millis(100),
            ..HostSpec::default()
        }
    }

    /// Simulates the scenario. Requests count that depart in the second behind a warm-up.
    pub fn run(&self) -> Outcome {
        let warm_up = SimTime::ZERO + self.farthest() * 4 + Duration::from_millis(300);
        let end = warm_up + Duration::from_secs(1);
        let network = Sites { one_way: self.one_way.clone(), hosts: Vec::new(), next: Vec::new() };
        let mut world: World<Node, Sites> = World::new(network, self.seed);
        let count = self.replicas();
        let leaf_of: Vec<usize> = (0..)
            .zip(&self.leaf_sizes)
            .flat_map(|(leaf, size)| core::iter::repeat_n(leaf, *size as usize))
            .collect();
        world.network_mut().next = leaf_of.iter().chain(&leaf_of).copied().rev().collect();
        let tree = tree(&self.leaf_sizes);
        let mut prng = Prng::new(self.seed);
        for node in 0..count {
            let seed = prng.next_u64();
            let machine =
                Canopus::new(self.config(), tree.clone(), NodeId(node), seed, &Bytes::new());
            let machine = machine.expect("a new replica of this tree");
            let replica = Replica {
                inner: Logged { machine, in_memory: true },
                clients: NodeIndex(count + node).address(),
                last: 0,
                under_way: BTreeMap::new(),
                out: VecDeque::new(),
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
                out: VecDeque::new(),
                answers: VecDeque::new(),
            };
            world.add(Node::Clients(clients), HostSpec::ideal());
        }
        let mut watch = Watch { leaf_of, warm_up, end, ..Watch::default() };
        // The last requests have time to be answered.
        world.run_until(end + self.farthest() * 2 + Duration::from_millis(100), &mut watch);
        Outcome {
            writes_per_s: watch.done[0] as f64,
            reads_per_s: watch.done[1] as f64,
            wan_bytes_per_write: watch.wan_bytes as f64 / watch.done[0].max(1) as f64,
            write_times: watch.times[0].sorted(),
            read_times: watch.times[1].sorted(),
        }
    }
}

fn tree(leaf_sizes: &[u32]) -> Tree {
    let mut nodes = 0..;
    let leaf = |(number, size): (u8, &u32)| {
        let members = nodes.by_ref().take(*size as usize);
        let member = |node| Member { node: NodeId(node), address: NodeIndex(node).address() };
        let path = if leaf_sizes.len() > 1 { vec![number] } else { Vec::new() };
        SuperLeaf { path, members: members.map(member).collect() }
    };
    Tree::new((0..).zip(leaf_sizes).map(leaf).collect()).expect("a tree of ours")
}

/// Delays between super-leaves; nothing is lost.
struct Sites {
    one_way: Vec<Vec<Duration>>,
    /// The super-leaf of each host.
    hosts: Vec<usize>,
    /// The super-leaves of the hosts to come, the next one last.
    next: Vec<usize>,
}

impl Network for Sites {
    fn add_host(&mut self, _: &HostSpec) {
        self.hosts.push(self.next.pop().unwrap_or(0));
    }

    fn route(&mut self, packet: &Packet, _: &mut Prng, _: &mut Agenda) -> Verdict {
        let leaf = |host: HostIndex| self.hosts[host.0 as usize];
        let delay = self.one_way[leaf(packet.from_host)][leaf(packet.to_host)];
        Verdict::Deliver(packet.at + delay)
    }

    fn set_rates(&mut self, _: Rates) {}

    fn slow(&mut self, _: SimTime, _: HostIndex, _: f64) {}
}

/// Requests that departed together: when, how many, and whether they are writes.
#[derive(Clone, Copy, Debug)]
struct Bundle {
    departed: u64,
    count: u32,
    is_write: bool,
}

impl Bundle {
    fn head(self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend(self.departed.to_le_bytes());
        head.extend(self.count.to_le_bytes());
        head.push(self.is_write.into());
        head
    }

    fn read(datagram: &[u8]) -> Result<Self, Malformed> {
        let r = &mut Reader::new(datagram);
        r.take(MAGIC.len())?;
        Ok(Self { departed: r.u64()?, count: r.u32()?, is_write: r.u8()? == 1 })
    }

    fn transmit(self, to: SocketAddr, [write, read]: [usize; 2]) -> Transmit {
        let bytes = if self.is_write { write } else { read } * self.count as usize;
        let (head, to) = (Head::new(&self.head()), Destination::One(to));
        Transmit::new(Class::Live, to, head, Bytes::from(vec![0; bytes]))
    }
}

/// What clients tell.
struct Answered {
    bundle: Bundle,
    at: Timestamp,
}

/// A replica with the clients that it serves. A bundle of writes is one request of the order, as
/// long as its writes.
struct Replica {
    inner: Logged,
    clients: SocketAddr,
    last: u64,
    under_way: BTreeMap<u64, Bundle>,
    out: VecDeque<Transmit>,
}

impl Replica {
    fn take(&mut self, now: Timestamp, bundle: Bundle) {
        self.last += 1;
        let token = self.last;
        self.under_way.insert(token, bundle);
        let replica = &mut self.inner.machine;
        let is_in = match bundle.is_write {
            true => {
                let bytes = bundle.count as usize * WRITE_BYTES - REQUEST_HEAD_BYTES;
                let body = Bytes::from(vec![0; bytes]);
                replica.submit(now, Request { client: 1, sequence: token, body })
            }
            false => replica.read(now, token),
        };
        if is_in.is_err() {
            // A request that finds no room is never answered, and shows in the rate.
            self.under_way.remove(&token);
        }
        self.inner.settle(now);
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
        if !arrival.datagram.starts_with(&MAGIC) {
            return self.inner.handle(now, arrival);
        }
        let bundle = Bundle::read(&arrival.datagram)?;
        self.take(now, bundle);
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.inner.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.inner.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<Answered> {
        while let Some(event) = self.inner.poll_event() {
            match event {
                Event::Committed { state, reads, .. } => {
                    let own = state.set_of(self.inner.machine.node());
                    for request in own.into_iter().flat_map(|set| &set.requests) {
                        self.answer(request.sequence);
                    }
                    reads.iter().for_each(|read| self.answer(read.token));
                }
                Event::CheckpointWanted => {
                    // What was executed is not kept here.
                    self.inner.machine.checkpoint(Bytes::from_static(b"nothing"));
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
        self.inner.settle(now);
        self.inner.poll_transmit(now).or_else(|| self.out.pop_front())
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.inner.poll_timeout()
    }
}

/// The clients of one replica.
struct Clients {
    replica: SocketAddr,
    /// How long behind its first clock reading the clients begin.
    after: Duration,
    next: Option<Timestamp>,
    /// Writes and reads between two departures, and those that are due.
    per_turn: [f64; 2],
    due: [f64; 2],
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
                let bundle = Bundle { departed: now.nanos(), count, is_write: kind == 0 };
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
    /// The super-leaf of each replica.
    leaf_of: Vec<usize>,
    warm_up: SimTime,
    end: SimTime,
    done: [u64; 2],
    times: [Times; 2],
    wan_bytes: u64,
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
        }
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], _: Verdict) {
        let replicas = self.leaf_of.len();
        let leaf = |node: NodeIndex| self.leaf_of[node.0 as usize % replicas];
        if leaf(packet.from) != leaf(packet.to) && (self.warm_up..self.end).contains(&packet.at) {
            self.wan_bytes += datagram.len() as u64;
        }
    }
}

/// The rate up to which requests are answered as fast as they come, and what happens at that rate.
/// The rate is found by steps of a quarter.
pub fn peak(scenario: &Scenario) -> (f64, Outcome) {
    let at = |requests_per_s: f64| Scenario { requests_per_s, ..scenario.clone() }.run();
    let slow = at(20_000.0);
    let limit = |outcome: &Outcome, rate: f64| {
        let done = outcome.writes_per_s + outcome.reads_per_s;
        let median = |outcome: &Outcome| {
            let writes = outcome.write_times.quantile(0.5);
            if writes.is_zero() { outcome.read_times.quantile(0.5) } else { writes }
        };
        let slack = scenario.cycle_every * 2;
        done < rate * 0.98 || median(outcome) > median(&slow) + median(&slow) / 4 + slack
    };
    let (mut rate, mut best) = (20_000.0, slow.clone());
    let mut next = 200_000.0;
    while next < 1e9 {
        let outcome = at(next);
        if limit(&outcome, next) {
            break;
        }
        (rate, best) = (next, outcome);
        next *= 1.25;
    }
    (rate, best)
}
