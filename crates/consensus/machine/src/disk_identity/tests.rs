//! Three replicas of one super-leaf, their logs, and disks that get lost.

use core::time::Duration;

use bytes::Bytes;
use evenfall_core::durable::Change;
use evenfall_core::{
    Arrival, ClockReading, Destination, Durable as _, Machine as _, StampedBy, Transmit,
};

use super::*;
use crate::{ClientRequest, Config, LeafMember, LeafOnlyTree, SuperLeaf, journal};

fn address(node: usize) -> std::net::SocketAddr {
    ([127, 0, 0, 1], 7_000 + node as u16).into()
}

fn tree() -> LeafOnlyTree {
    let member = |n: usize| LeafMember { node: NodeId(n as u32), address: address(n) };
    let leaf = SuperLeaf { path: vec![], members: (0..3).map(member).collect() };
    LeafOnlyTree::new(vec![leaf]).expect("a tree")
}

/// Replicas, some of which are down, and datagrams that arrive at once.
struct Rack {
    now: Timestamp,
    replicas: Vec<Option<Canopus>>,
    logs: Vec<Vec<u8>>,
    events: Vec<Vec<Event>>,
    /// Every STATUS of replica 0.
    statuses: Vec<Bytes>,
    lives: u64,
}

impl Rack {
    fn new() -> Self {
        Self {
            now: Timestamp::from_nanos(1_000_000_000),
            replicas: vec![None, None, None],
            logs: vec![Vec::new(); 3],
            events: vec![Vec::new(); 3],
            statuses: Vec::new(),
            lives: 0,
        }
    }

    /// Replicas that have all started and take requests.
    fn standing() -> Self {
        let mut rack = Self::new();
        (0..3).for_each(|n| rack.begin(n));
        rack.pass(50);
        rack
    }

    fn begin(&mut self, n: usize) {
        self.lives += 1;
        let log = Bytes::copy_from_slice(&self.logs[n]);
        let node = NodeId(n as u32);
        let replica = Canopus::new(Config::default(), tree(), node, self.lives, &log);
        let mut replica = replica.expect("a log of this replica");
        replica.handle_clock(self.now, ClockReading::default());
        self.replicas[n] = Some(replica);
    }

    fn lose(&mut self, n: usize) {
        self.replicas[n] = None;
        self.logs[n].clear();
    }

    fn settle(&mut self, n: usize) {
        let Some(replica) = &mut self.replicas[n] else { return };
        while let Some(write) = replica.poll_write() {
            match &write.change {
                Change::Append(bytes) => self.logs[n].extend_from_slice(bytes),
                Change::Truncate(length) => self.logs[n].truncate(*length as usize),
                Change::Replace(bytes) => self.logs[n] = bytes.to_vec(),
            }
            replica.handle_written(self.now, write.id, Ok(()));
        }
        self.events[n].extend(core::iter::from_fn(|| replica.poll_event()));
        let mut sent = Vec::new();
        while let Some(transmit) = replica.poll_transmit(self.now) {
            let bytes = [transmit.head.as_slice(), &transmit.body[..]].concat();
            sent.push((transmit.to, Bytes::from(bytes)));
        }
        for (to, datagram) in sent {
            if n == 0 && datagram[3] == crate::wire::kind::STATUS {
                self.statuses.push(datagram.clone());
            }
            for (other, replica) in self.replicas.iter_mut().enumerate() {
                let is_to = match to {
                    Destination::One(one) => one == address(other),
                    Destination::Group(_) => other != n,
                };
                let arrival = Arrival::new(address(n), datagram.clone(), self.now, StampedBy::User);
                if let Some(replica) = replica.as_mut().filter(|_| is_to) {
                    replica.handle(self.now, arrival).expect("a datagram of ours");
                }
            }
        }
    }

    /// Lets time pass, a millisecond at a time.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            for replica in self.replicas.iter_mut().flatten() {
                replica.handle_timeout(self.now);
            }
            (0..3).for_each(|n| self.settle(n));
        }
    }

    fn write(&mut self, n: usize, sequence: u64) {
        let request = ClientRequest { client: 1, sequence, body: Bytes::from_static(b"x") };
        let replica = self.replicas[n].as_mut().expect("a replica that is up");
        replica.submit(self.now, request).expect("there is room");
    }

    /// The sequences of the requests that a replica told in its last life.
    fn told(&self, n: usize) -> Vec<u64> {
        let states = self.events[n].iter().filter_map(|event| match event {
            Event::Committed { state, .. } => Some(state),
            _ => None,
        });
        let sets = states.flat_map(|state| &state.sets);
        sets.flat_map(|set| &set.requests).map(|request| request.sequence).collect()
    }
}

#[test]
fn a_super_leaf_begins_when_all_its_members_have_started_once() {
    let mut rack = Rack::new();
    rack.begin(0);
    rack.begin(1);
    rack.write(0, 1);
    rack.pass(500);
    assert_eq!(rack.told(0), []);
    assert_eq!(rack.replicas[0].as_ref().map(Canopus::awaited), Some(vec![NodeId(2)]));
    rack.begin(2);
    rack.pass(50);
    assert_eq!(rack.told(0), [1]);

    // Later two of them are enough, and a start with the disk asks nobody.
    rack.replicas[2] = None;
    rack.replicas[0] = None;
    rack.begin(0);
    rack.write(0, 2);
    rack.pass(1_000);
    assert!(rack.told(1).ends_with(&[1, 2]), "{:?}", rack.told(1));
}

fn greetings(replica: &mut Canopus, now: Timestamp) -> usize {
    let sent = core::iter::from_fn(|| replica.poll_transmit(now));
    let kind = |transmit: &Transmit| [transmit.head.as_slice(), &transmit.body[..]].concat()[3];
    sent.filter(|transmit| kind(transmit) == crate::wire::kind::GREET).count()
}

/// A number that is told and then lost with a crash would be an earlier disk for ever.
#[test]
fn a_replica_tells_the_number_of_its_disk_when_the_number_is_written() {
    let mut rack = Rack::new();
    rack.begin(0);
    let replica = rack.replicas[0].as_mut().expect("it is up");
    let write = replica.poll_write().expect("the number");
    for _ in 0..100 {
        rack.now += Duration::from_millis(1);
        replica.handle_timeout(rack.now);
        assert_eq!(greetings(replica, rack.now), 0);
    }
    replica.handle_written(rack.now, write.id, Ok(()));
    assert_eq!(greetings(replica, rack.now), 2);
}

#[test]
fn a_replica_without_its_disk_learns_and_comes_back_under_a_new_incarnation() {
    let mut rack = Rack::standing();
    rack.write(0, 1);
    rack.write(1, 2);
    rack.pass(50);
    for n in 0..3 {
        rack.lose(n);
        rack.pass(1);
        rack.events[n].clear();
        rack.begin(n);
        rack.pass(1_500);
        let events = &rack.events[n];
        assert!(events.contains(&Event::Learns) && events.contains(&Event::Learned), "{events:?}");
        let joined = events.iter().any(|event| matches!(event, Event::Joined(_)));
        assert!(joined, "{events:?}");
        rack.write(n, 10 + n as u64);
        rack.pass(50);
        assert!(rack.told(n).contains(&(10 + n as u64)));
    }
    assert_eq!(rack.told(2).iter().filter(|sequence| **sequence <= 2).count(), 2);
}

/// The replica that lost its disk was one of the two that acknowledged. The third knows nothing.
#[test]
fn a_replica_without_its_disk_does_not_vote_while_the_witness_is_down() {
    let mut rack = Rack::standing();
    rack.replicas[2] = None;
    rack.write(1, 1);
    rack.pass(1);
    // Replica 1 goes down with what replica 0 acknowledged and forgets.
    rack.replicas[1] = None;
    rack.lose(0);
    rack.events[0].clear();
    rack.begin(0);
    rack.begin(2);
    rack.write(2, 2);
    rack.pass(2_000);
    assert!(!rack.told(2).contains(&2), "two members of which one forgot are no majority");
    rack.begin(1);
    rack.pass(2_000);
    assert!(rack.told(0).contains(&1), "{:?}", rack.told(0));
}

#[test]
fn two_of_three_replicas_without_their_disks_do_not_go_on_alone() {
    let mut rack = Rack::standing();
    rack.write(0, 1);
    rack.pass(50);
    for n in 0..2 {
        rack.lose(n);
        rack.events[n].clear();
        rack.begin(n);
    }
    rack.write(0, 2);
    rack.pass(3_000);
    assert!(!rack.told(0).contains(&2) && !rack.told(1).contains(&2));
    let waits = rack.replicas[..2].iter().flatten().all(|replica| !replica.is_member());
    assert!(waits, "neither votes");
}

#[test]
fn an_old_status_and_an_old_greeting_of_a_lost_disk_change_nothing() {
    let mut rack = Rack::standing();
    rack.write(0, 1);
    rack.pass(50);
    let old = rack.statuses.last().expect("replica 0 spoke").clone();
    let greeting = rack.replicas[0].as_ref().map(|replica| replica.disk.own.number);
    let greeting = ReplicaMessage::Greet(greeting.expect("it is up"), 0)
        .encode(NodeId(0), tree().digest(&Config::default()));
    rack.lose(0);
    rack.begin(0);
    rack.pass(2);
    let number = rack.replicas[0].as_ref().expect("it is up").disk.own.number;
    for datagram in [Bytes::from(greeting), old] {
        let arrival = Arrival::new(address(0), datagram, rack.now, StampedBy::User);
        let one = rack.replicas[1].as_mut().expect("it is up");
        one.handle(rack.now, arrival).expect("a datagram of ours");
        assert!(one.disk.knows(NodeId(0), number));
        assert!(one.peers[&NodeId(0)].learns, "the old disk does not vote any more");
    }
}

#[test]
fn the_log_of_another_node_is_refused_by_name() {
    let rack = Rack::standing();
    let log = Bytes::copy_from_slice(&rack.logs[1]);
    let other = Canopus::new(Config::default(), tree(), NodeId(2), 9, &log);
    assert_eq!(other.err(), Some(ConsensusError::OtherNode(NodeId(1))));
    assert!(journal::read(&log).is_ok());
}
