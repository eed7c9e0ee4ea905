//! Section 4.5.2 of the thesis, sentence by sentence, on three replicas of one super-leaf.

use bytes::Bytes;
use evenfall_core::{Arrival, ClockReading, Destination, Durable as _, Machine as _, StampedBy};

use super::*;
use crate::{Config, LeafMember, LeafOnlyTree, SuperLeaf};

const PIPELINE: u64 = 3;
const KEY: LeaseKey = LeaseKey(7);
const OTHER: LeaseKey = LeaseKey(8);

fn address(node: usize) -> std::net::SocketAddr {
    ([127, 0, 0, 1], 7_000 + node as u16).into()
}

/// Three replicas, datagrams that arrive at once, and the replicas that nobody hears.
struct Rack {
    now: Timestamp,
    replicas: Vec<Canopus>,
    events: Vec<Vec<Event>>,
    unheard: Vec<usize>,
}

impl Rack {
    fn new(lease_cycles: u64) -> Self {
        let member = |n: usize| LeafMember { node: NodeId(n as u32), address: address(n) };
        let leaf = SuperLeaf { path: vec![], members: (0..3).map(member).collect() };
        let tree = LeafOnlyTree::new(vec![leaf]).expect("a tree");
        let config = Config { pipeline: PIPELINE, lease_cycles, ..Config::default() };
        let replica = |n: u32| {
            let seed = u64::from(n) + 1;
            Canopus::new(config, tree.clone(), NodeId(n), seed, &Bytes::new()).expect("a replica")
        };
        let replicas = (0..3).map(replica).collect();
        let now = Timestamp::from_nanos(1_000_000_000);
        let mut rack = Self { now, replicas, events: vec![Vec::new(); 3], unheard: Vec::new() };
        let replicas = &mut rack.replicas;
        replicas.iter_mut().for_each(|replica| replica.handle_clock(now, ClockReading::default()));
        rack
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            for n in 0..3 {
                let replica = &mut self.replicas[n];
                while let Some(write) = replica.poll_write() {
                    replica.handle_written(self.now, write.id, Ok(()));
                }
                self.events[n].extend(core::iter::from_fn(|| replica.poll_event()));
                while let Some(transmit) = self.replicas[n].poll_transmit(self.now) {
                    let bytes = [transmit.head.as_slice(), &transmit.body[..]].concat();
                    let datagram = Bytes::from(bytes);
                    let is_to = |to: &usize| match transmit.to {
                        Destination::One(one) => one == address(*to),
                        Destination::Group(_) => *to != n,
                    };
                    for to in (0..3).filter(is_to) {
                        if self.unheard.contains(&n) || self.unheard.contains(&to) {
                            continue;
                        }
                        let (from, datagram) = (address(n), datagram.clone());
                        let arrival = Arrival::new(from, datagram, self.now, StampedBy::User);
                        self.replicas[to].handle(self.now, arrival).expect("a datagram of ours");
                    }
                }
            }
        }
    }

    /// Lets time pass, a millisecond at a time.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            self.replicas.iter_mut().for_each(|replica| replica.handle_timeout(self.now));
            self.settle();
        }
    }

    fn write(&mut self, n: usize, client: u64, key: LeaseKey) {
        let request = ClientRequest { client, sequence: client, body: Bytes::from_static(b"x") };
        self.replicas[n].submit_to(self.now, request, key).expect("there is room");
    }

    /// Whether a read is answered at once.
    fn reads_at_once(&mut self, n: usize, key: LeaseKey) -> bool {
        self.replicas[n].read_of(self.now, 99, key).expect("there is room");
        let replica = &mut self.replicas[n];
        let events: Vec<Event> = core::iter::from_fn(|| replica.poll_event()).collect();
        let is_answered = events.contains(&Event::Answered(99));
        self.events[n].extend(events);
        is_answered
    }

    /// The cycles in which a replica has seen leases agreed, and the cycles with requests.
    fn cycles(&self, n: usize) -> (Vec<u64>, Vec<u64>) {
        let states = self.events[n].iter().filter_map(|event| match event {
            Event::Committed { state, .. } => Some(state),
            _ => None,
        });
        let leases = states.clone().filter(|state| !state.changes.is_empty());
        let writes = states.filter(|state| state.bytes() > 0);
        (leases.map(|state| state.cycle).collect(), writes.map(|state| state.cycle).collect())
    }
}

/// "All the correct nodes in the system can apply the lease in the same consensus cycle."
#[test]
fn a_write_is_proposed_when_its_lease_applies_a_pipeline_after_it_was_agreed() {
    let mut rack = Rack::new(8);
    rack.pass(50);
    rack.write(0, 1, KEY);
    rack.pass(20);
    let (leases, writes) = rack.cycles(2);
    assert_eq!((leases.len(), writes.len()), (1, 1));
    assert_eq!(writes[0], leases[0] + PIPELINE);
}

/// "A node performs a read immediately if the write-lease is not active in any of the ongoing
/// cycles", and otherwise "delays the read request until the end of the next consensus cycle".
#[test]
fn a_read_is_answered_at_once_unless_its_key_may_be_written_in_a_cycle_under_way() {
    let mut rack = Rack::new(8);
    rack.pass(50);
    rack.write(0, 1, KEY);
    rack.pass(20);
    assert!(rack.reads_at_once(1, KEY), "no cycle is under way");
    // Replica 0 is alone in a cycle in which the lease applies.
    rack.unheard = vec![0];
    rack.write(0, 2, KEY);
    assert!(!rack.reads_at_once(0, KEY));
    assert!(rack.reads_at_once(0, OTHER));
    assert!(!rack.reads_at_once(0, LeaseKey::ALL), "all keys, one of which has a lease");
    rack.unheard.clear();
    rack.pass(50);
    let is_read = |event: &Event| match event {
        Event::Committed { reads, .. } => !reads.is_empty(),
        _ => false,
    };
    assert!(rack.events[0].iter().any(is_read), "the delayed reads are answered later");
}

#[test]
fn a_replica_that_nobody_vouches_for_answers_nothing_at_once() {
    let mut rack = Rack::new(8);
    assert!(!rack.reads_at_once(0, KEY), "nobody was asked yet");
    rack.pass(50);
    assert!(rack.reads_at_once(0, KEY));
    rack.unheard = vec![0];
    // The last question left 10 ms ago, and counts for three quarters of half of 200 ms.
    rack.pass(60);
    assert!(rack.reads_at_once(0, KEY));
    rack.pass(10);
    assert!(!rack.reads_at_once(0, KEY));
}

#[test]
fn a_member_helps_to_end_no_group_while_it_is_bound() {
    let mut rack = Rack::new(8);
    rack.pass(50);
    rack.unheard = vec![0];
    let helps = |replica: &Canopus| !replica.groups[&NodeId(0)].is_open();
    while !rack.replicas[1..].iter().any(helps) {
        rack.pass(1);
    }
    assert!(!rack.replicas[0].is_vouched_for(rack.now));
    assert!(!rack.replicas[1].is_bound(rack.now, NodeId(0)));
    rack.pass(600);
    assert!(!rack.replicas[1].groups[&NodeId(0)].is_open(), "the others go on without replica 0");
    assert!(!rack.reads_at_once(0, KEY));
    rack.unheard.clear();
    rack.pass(600);
    assert!(rack.reads_at_once(0, KEY), "replica 0 is back");
}

#[test]
fn without_leases_every_read_waits_and_no_write_does() {
    let mut rack = Rack::new(0);
    rack.pass(50);
    assert!(!rack.reads_at_once(0, KEY));
    rack.write(1, 1, KEY);
    rack.pass(20);
    let (leases, writes) = rack.cycles(2);
    assert_eq!((leases.len(), writes.len()), (0, 1));
}

#[test]
fn many_keys_take_the_lease_of_all_keys() {
    let mut rack = Rack::new(8);
    rack.pass(50);
    let first = rack.replicas[0].committed();
    // The first write starts a cycle by itself.
    for client in 0..=1 + LEASES_MAX as u64 {
        rack.write(0, client, LeaseKey(client));
    }
    rack.pass(20);
    let all = AgreedChange::Lease(LeaseKey::ALL);
    let has_all = |event: &Event| match event {
        Event::Committed { state, .. } => state.cycle > first && state.changes.contains(&all),
        _ => false,
    };
    assert!(rack.events[1].iter().any(has_all));
    assert_eq!(rack.replicas[0].waiting(), 0);
}

#[test]
fn leases_without_a_gap_become_one_and_a_gap_stays() {
    let mut leases = Leases::default();
    leases.grant(KEY, 5, 8);
    leases.grant(KEY, 8, 11);
    leases.grant(KEY, 13, 16);
    let written: Vec<u64> = (0..20).filter(|cycle| leases.permits(KEY, *cycle)).collect();
    assert_eq!(written, [5, 6, 7, 8, 9, 10, 13, 14, 15]);
    assert!(!leases.is_written(KEY, 11, 12) && leases.is_written(LeaseKey::ALL, 10, 12));
    let mut bytes = Vec::new();
    leases.put(&mut bytes);
    assert_eq!(Leases::read(&mut Reader::new(&bytes)), Ok(leases.clone()));
    leases.forget(10);
    assert_eq!(leases.keys[&KEY], [(13, 16)]);
}

#[test]
fn a_lease_beyond_the_limit_is_for_all_keys() {
    let mut leases = Leases::default();
    (0..LEASED_KEYS_MAX as u64).for_each(|key| leases.grant(LeaseKey(key), 1, 2));
    assert!(!leases.permits(LeaseKey(u64::MAX - 1), 1));
    leases.grant(LeaseKey(u64::MAX - 1), 1, 2);
    assert!(leases.permits(LeaseKey(u64::MAX - 2), 1), "all keys");
}
