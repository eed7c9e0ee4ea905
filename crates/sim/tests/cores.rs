//! One run on several cores is the run of one core, to the last bit.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, GroupId, Head, Install, Machine, Malformed,
    Prng, Timestamp, TrafficClass, Transmit,
};
use evenfall_sim::{
    Action, Bursts, Cloud, CloudProfile, Cut, Fault, HostSpec, Late, Loss, NodeIndex, Observer,
    Outages, Packet, PathLoss, Quantiles, Rates, Seen, SimTime, StallSpec, Verdict, World,
};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const GROUP: GroupId = GroupId(0);
/// Nodes; three on each host, so that they share a card, cores and a clock.
const NODES: u32 = 60;
const NODES_A_HOST: u32 = 3;
/// How often a datagram is sent on.
const HOPS: u8 = 4;

/// Sends on what it hears, at once and again when its timer fires, until the datagram has made
/// [`HOPS`] hops.
struct Gossip {
    install: Option<Install>,
    heard: Option<u64>,
    queue: Vec<(Destination, Bytes)>,
    timeout: Option<Timestamp>,
    latest: Bytes,
    others: Vec<std::net::SocketAddr>,
    prng: Prng,
}

impl Gossip {
    fn new(node: u32, life: u64) -> Self {
        let others: Vec<_> = (1..=7).map(|k| NodeIndex((node + k * k) % NODES).address()).collect();
        Self {
            install: Some(Install::Group(GROUP, others[..3].into())),
            heard: None,
            queue: Vec::new(),
            timeout: None,
            latest: Bytes::new(),
            others,
            prng: Prng::new(u64::from(node) ^ life << 32),
        }
    }

    fn one_of_the_others(&mut self) -> Destination {
        let at = self.prng.below(self.others.len() as u64) as usize;
        Destination::One(self.others[at])
    }
}

impl Machine for Gossip {
    type Event = u64;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let hops = arrival.datagram[0];
        self.heard = Some(now.nanos() ^ u64::from(hops) << 56);
        self.latest = arrival.datagram;
        if hops < HOPS {
            self.timeout = Some(now + US * self.prng.below(400) as u32);
            let mut next = self.latest.to_vec();
            next[0] += 1;
            let to = if hops == 0 { Destination::Group(GROUP) } else { self.one_of_the_others() };
            self.queue.push((to, next.into()));
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.timeout.take_if(|timeout| *timeout <= now).is_some() {
            let (to, again) = (self.one_of_the_others(), self.latest.clone());
            let again: Bytes = [&[HOPS], &again[1..]].concat().into();
            self.queue.push((to, again));
            self.heard = Some(now.nanos());
        }
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.heard = Some(now.nanos() ^ reading.offset_ns as u64);
    }

    fn poll_event(&mut self) -> Option<u64> {
        self.heard.take()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.install.take()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        let (to, bytes) = self.queue.pop()?;
        Some(Transmit::new(TrafficClass::Live, to, Head::new(&bytes[..1]), bytes.slice(1..)))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.timeout
    }
}

/// All that an observer can see, in order. Calls are summed up apart, because on several cores a
/// call may come before events of other nodes.
#[derive(Debug, Default, PartialEq)]
struct Watch {
    all: u64,
    calls: u64,
    count: u64,
    lives: u64,
}

impl Watch {
    fn note(&mut self, words: [u64; 4]) {
        self.count += 1;
        for word in words {
            self.all = (self.all ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        }
    }
}

impl Observer<Gossip, Cloud> for Watch {
    fn event(&mut self, seen: Seen, event: u64) {
        self.note([1, seen.at.nanos(), u64::from(seen.node.0), event ^ seen.local.nanos()]);
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut Gossip) {
        let word = seen.at.nanos() << 8 ^ token;
        self.calls = self.calls.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes = vec![0; 20 + token as usize % 100];
        bytes[1] = token as u8;
        machine.queue.push((Destination::Group(GROUP), bytes.into()));
    }

    fn token(&mut self, world: &mut World<Gossip, Cloud>, token: u64) {
        self.note([2, world.now().nanos(), token, world.digest()]);
        for k in 0..40 {
            let node = NodeIndex(if token.is_multiple_of(2) { 0 } else { 17 });
            world.invoke_at(world.now() + US * 23 * k, node, token + u64::from(k));
        }
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], verdict: Verdict) {
        let when = match verdict {
            Verdict::Deliver(at) => at.nanos(),
            Verdict::Twice(first, second) => first.nanos() ^ second.nanos() << 1,
            Verdict::Lose(loss) => loss as u64,
            Verdict::Hold(_) => 0,
        };
        let pair = u64::from(packet.from.0) << 32 | u64::from(packet.to.0);
        self.note([packet.at.nanos(), pair, when, datagram.len() as u64]);
    }

    fn received(&mut self, seen: Seen, from: NodeIndex, datagram: &[u8]) {
        self.note([4, seen.at.nanos(), u64::from(from.0), u64::from(datagram[0])]);
    }

    fn lost(&mut self, at: SimTime, from: NodeIndex, to: NodeIndex, loss: Loss) {
        self.note([at.nanos(), u64::from(from.0), u64::from(to.0), loss as u64]);
    }

    fn fault(&mut self, at: SimTime, _: &Fault) {
        self.note([3, at.nanos(), 0, 0]);
    }

    fn revive(&mut self, node: NodeIndex, _: Timestamp) -> Option<Gossip> {
        self.lives += 1;
        Some(Gossip::new(node.0, self.lives))
    }
}

/// A fault of each kind that a world without disks can have.
fn faults(prng: &mut Prng) -> Vec<Fault> {
    let mut node = || NodeIndex(prng.below(NODES.into()) as u32);
    let crashed = node();
    vec![
        Fault::Crash(crashed),
        Fault::Pause(node(), 2 * MS),
        Fault::Partition(vec![node(), node()]),
        Fault::OneWay(vec![node(), node()], Cut::Deaf),
        Fault::Restart(crashed),
        Fault::Slow(node(), 3.0),
        Fault::ClockStep(node(), 70_000),
        Fault::ClockStated(node(), ClockError::Unknown),
        Fault::Heal,
        Fault::Rates(Rates { loss: 0.1, duplicate: 0.1, reorder: 0.1, reorder_by: MS }),
        Fault::ClockDrift(node(), 90_000),
        Fault::Rates(Rates::default()),
        Fault::Bursts(Bursts { good: 3 * MS, bad: MS, loss: 0.8 }),
        Fault::Restart(node()),
        Fault::Bursts(Bursts::default()),
        Fault::Late(Late { share: 0.1, by: 3 * MS }),
        Fault::Late(Late::default()),
        Fault::Slow(node(), 1.0),
    ]
}

fn world(seed: u64) -> World<Gossip, Cloud> {
    let profile = CloudProfile {
        loss: PathLoss {
            random: 0.01,
            bursts: Some(Outages { mean_gap: 5 * MS, length: Quantiles::exponential(MS) }),
            within: 0.5,
        },
        flow_bits_per_s: 50_000_000,
        flow_queue: 40 * US,
        ..CloudProfile::default()
    };
    let mut world = World::new(Cloud::new(profile, seed), seed);
    let stalls =
        StallSpec { mean_gap: 3 * MS, length: Quantiles::exponential(Duration::from_micros(100)) };
    // Some worlds have hosts that send on threads of their own.
    let (send_threads, card_cost) = if seed % 3 == 1 { (3, 2 * US) } else { (0, Duration::ZERO) };
    let stalls = vec![stalls];
    let spec = HostSpec { stalls, cores: 2, send_threads, card_cost, ..HostSpec::default() };
    for node in 0..NODES {
        if node % NODES_A_HOST == 0 {
            world.add_host(spec.clone());
        }
        world.add_node(Gossip::new(node, 0), evenfall_sim::HostIndex(node / NODES_A_HOST));
    }
    world
}

/// A run on this many cores, with faults.
fn outcome(seed: u64, cores: usize) -> (u64, String, Watch) {
    let (mut world, mut watch) = (world(seed), Watch::default());
    let faults = faults(&mut Prng::new(seed));
    for (at, fault) in (2..).zip(faults) {
        world.schedule(SimTime::from_millis(2 * at), Action::Fault(fault));
    }
    for token in 0..40 {
        world.schedule(SimTime::from_micros(1_000 * token), Action::Token(token));
    }
    for half in 1..=90 {
        world.run_until_on(cores, SimTime::from_micros(half * 500), &mut watch);
    }
    assert!(world.tally().hops > 20_000, "{:?}", world.tally());
    (world.digest(), format!("{:?} {:?}", world.tally(), world.now()), watch)
}

#[test]
fn a_fault_before_the_first_window_comes_before_what_was_asked_for_after_it() {
    let run = |cores| {
        let (mut world, mut watch) = (world(1), Watch::default());
        world.schedule(SimTime::ZERO, Action::Fault(Fault::Crash(NodeIndex(0))));
        world.invoke_at(SimTime::ZERO, NodeIndex(0), 1);
        world.run_until_on(cores, SimTime::from_millis(1), &mut watch);
        (world.digest(), world.tally(), watch)
    };
    let one = run(1);
    assert_eq!(one.1.invokes_missed, 1);
    assert_eq!(run(2), one);
}

#[test]
fn any_number_of_cores_gives_the_run_of_one_core() {
    for seed in 0..6 {
        let one = outcome(seed, 1);
        for cores in 2..=4 {
            assert_eq!(outcome(seed, cores), one, "seed {seed} on {cores} cores");
        }
    }
}
