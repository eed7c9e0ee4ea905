//! The bytes of a request in a replica's log, and datagrams that are not of whom they name.

use bytes::Bytes;
use evenfall_consensus_machine::{
    Canopus, ClientRequest, Config, Event, LeafMember, LeafOnlyTree, SuperLeaf,
};
use evenfall_core::durable::Change;
use evenfall_core::{Arrival, ClockReading, Durable, Machine, NodeId, StampedBy, Timestamp};

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);
const BODY: &[u8] = b"the body of a request";

/// A replica without peers that starts from this log.
fn replica(log: &Bytes) -> Canopus {
    let member = LeafMember { node: NodeId(0), address: ([127, 0, 0, 1], 1).into() };
    let leaf = SuperLeaf { path: Vec::new(), members: vec![member] };
    let tree = LeafOnlyTree::new(vec![leaf]).expect("a tree of one node");
    let mut replica =
        Canopus::new(Config::default(), tree, NodeId(0), 7, log).expect("a log of this replica");
    replica.handle_clock(NOW, ClockReading::default());
    replica
}

/// Answers all writes, and returns the bytes that they appended.
fn write(replica: &mut Canopus) -> Vec<u8> {
    let mut log = Vec::new();
    while let Some(write) = replica.poll_write() {
        if let Change::Append(bytes) = &write.change {
            log.extend_from_slice(bytes);
        }
        replica.handle_written(NOW, write.id, Ok(()));
    }
    log
}

/// The sequences of the requests that the replica tells, by cycle.
fn told(replica: &mut Canopus) -> Vec<(u64, Vec<u64>)> {
    let mut told = Vec::new();
    while let Some(event) = replica.poll_event() {
        if let Event::Committed { state, .. } = event {
            let requests = state.sets.iter().flat_map(|set| &set.requests);
            told.push((state.cycle, requests.map(|request| request.sequence).collect()));
        }
    }
    told
}

#[test]
fn a_log_has_a_request_once_and_a_restarted_replica_tells_the_same_cycles() {
    let mut first = replica(&Bytes::new());
    let mut log = Vec::new();
    for sequence in 1..=3 {
        let request = ClientRequest { client: 5, sequence, body: Bytes::from_static(BODY) };
        first.submit(NOW, request).expect("there is room");
        log.extend(write(&mut first));
    }
    let cycles = told(&mut first);
    let all: Vec<u64> = cycles.iter().flat_map(|(_, requests)| requests.clone()).collect();
    assert_eq!(all, [1, 2, 3]);
    let times = log.windows(BODY.len()).filter(|window| *window == BODY).count();
    assert_eq!(times, 3, "each request once");
    assert_eq!(told(&mut replica(&log.into())), cycles);
}

#[test]
fn a_datagram_from_elsewhere_is_not_of_the_node_that_it_names() {
    let address = |n: u32| std::net::SocketAddr::from(([127, 0, 0, 1], 1 + n as u16));
    let members = (0..3).map(|n| LeafMember { node: NodeId(n), address: address(n) }).collect();
    let tree = LeafOnlyTree::new(vec![SuperLeaf { path: Vec::new(), members }]).expect("a tree");
    let mut replicas = [0, 1].map(|n| {
        let config = Config::default();
        let mut replica = Canopus::new(config, tree.clone(), NodeId(n), n.into(), &Bytes::new())
            .expect("a replica");
        replica.handle_clock(NOW, ClockReading::default());
        write(&mut replica);
        replica
    });
    let sent = replicas[1].poll_transmit(NOW).expect("a first word to the others");
    let datagram = Bytes::from([sent.head.as_slice(), &sent.body[..]].concat());
    let mut handed = |from| {
        let arrival = Arrival::new(from, datagram.clone(), NOW, StampedBy::User);
        replicas[0].handle(NOW, arrival)
    };
    assert!(handed(address(2)).is_err(), "another node's address");
    assert!(handed(([127, 0, 0, 1], 999).into()).is_err(), "a stranger's address");
    assert_eq!(handed(address(1)), Ok(()));
}
