//! The worked example of section 4.2.7: two super-leaves of three nodes, A to F. A and B have
//! requests, C learns of the cycle from A, and the request of F for the state of x waits at A.

use std::collections::VecDeque;

use bytes::Bytes;
use evenfall_consensus_machine::wire::ReplicaMessage;
use evenfall_consensus_machine::{
    Canopus, ClientRequest, Config, Event, LeafMember, LeafOnlyTree, SuperLeaf,
};
use evenfall_core::{
    Arrival, ClockReading, Destination, Durable as _, Machine as _, NodeId, StampedBy, Timestamp,
};

const NAMES: [&str; 6] = ["A", "B", "C", "D", "E", "F"];
const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

fn address(node: usize) -> std::net::SocketAddr {
    ([127, 0, 0, 1], 7_000 + node as u16).into()
}

/// Six replicas, the datagrams between them, and what happened as text.
struct Example {
    replicas: Vec<Canopus>,
    tree: LeafOnlyTree,
    wire: VecDeque<(usize, usize, Bytes)>,
    told: Vec<Option<Vec<u32>>>,
    text: String,
}

impl Example {
    fn new() -> Self {
        let leaf = |path: u8, nodes: std::ops::Range<usize>| {
            let member = |n| LeafMember { node: NodeId(n as u32), address: address(n) };
            SuperLeaf { path: vec![path], members: nodes.map(member).collect() }
        };
        let tree = LeafOnlyTree::new(vec![leaf(1, 0..3), leaf(2, 3..6)]).expect("a tree");
        let config = Config { redundancy: 2, ..Config::default() };
        let replica =
            |n: u32| Canopus::new(config, tree.clone(), NodeId(n), u64::from(n) + 1, &Bytes::new());
        let mut replicas: Vec<_> = (0..6).map(|n| replica(n).expect("a replica")).collect();
        replicas.iter_mut().for_each(|replica| replica.handle_clock(NOW, ClockReading::default()));
        let (wire, told, text) = (VecDeque::new(), vec![None; 6], String::new());
        let mut example = Self { replicas, tree, wire, told, text };
        // The members of a super-leaf first tell each other that they are new.
        (0..6).for_each(|n| example.drain(n));
        while example.carry() {}
        example
    }

    fn say(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    /// Answers writes, hears events and puts datagrams on the wire.
    fn drain(&mut self, n: usize) {
        let replica = &mut self.replicas[n];
        while let Some(write) = replica.poll_write() {
            replica.handle_written(NOW, write.id, Ok(()));
        }
        while let Some(event) = self.replicas[n].poll_event() {
            let Event::Committed { state, .. } = event else { panic!("{event:?}") };
            if state.cycle == 1 {
                let order: Vec<u32> = state.sets.iter().map(|set| set.node.0).collect();
                self.told[n] = Some(order);
                self.say(&format!("{} commits cycle 1", NAMES[n]));
            }
        }
        while let Some(transmit) = self.replicas[n].poll_transmit(NOW) {
            let datagram: Bytes = [transmit.head.as_slice(), &transmit.body[..]].concat().into();
            let peers = if n < 3 { 0..3 } else { 3..6 };
            let all: Vec<usize> = match transmit.to {
                Destination::One(one) => (0..6).filter(|to| address(*to) == one).collect(),
                Destination::Group(_) => peers.filter(|to| *to != n).collect(),
            };
            self.wire.extend(all.into_iter().map(|to| (n, to, datagram.clone())));
        }
    }

    /// Carries the oldest datagram; false when there is none.
    fn carry(&mut self) -> bool {
        let Some((from, to, datagram)) = self.wire.pop_front() else { return false };
        let message = ReplicaMessage::decode(&datagram, self.tree.digest(&Config::default()))
            .expect("our own")
            .1;
        let (from_name, to_name) = (NAMES[from], NAMES[to]);
        match &message {
            ReplicaMessage::Entry(proposal) if proposal.cycle == 1 => {
                let count = proposal.set.requests.len();
                self.say(&format!("{from_name} > {to_name}  proposal, {count} requests"));
            }
            ReplicaMessage::Request(1, vnode) => {
                let vnode = ["z", "x", "y"][usize::from(vnode.0)];
                self.say(&format!("{from_name} > {to_name}  asks for {vnode}"));
            }
            ReplicaMessage::State(state) if state.cycle == 1 => {
                let vnode = ["z", "x", "y"][usize::from(state.vnode.0)];
                let sets: Vec<_> = state.sets.iter().map(|s| NAMES[s.node.0 as usize]).collect();
                self.say(&format!("{from_name} > {to_name}  state of {vnode}: {}", sets.join(" ")));
            }
            _ => {}
        }
        let arrival = Arrival::new(address(from), datagram, NOW, StampedBy::User);
        self.replicas[to].handle(NOW, arrival).expect("our own");
        self.drain(to);
        true
    }
}

fn run() -> Example {
    let mut example = Example::new();
    for (n, name) in NAMES.iter().enumerate().take(2) {
        let body = Bytes::from(format!("a request of {name}"));
        let request = ClientRequest { client: n as u64, sequence: 1, body };
        example.replicas[n].submit(NOW, request).expect("there is room");
        example.drain(n);
    }
    while example.carry() {}
    example
}

#[test]
fn all_six_nodes_commit_the_same_order_and_sets_of_a_super_leaf_stay_together() {
    let example = run();
    let first = example.told[0].clone().expect("A has committed");
    assert!(example.told.iter().all(|told| told.as_ref() == Some(&first)), "{:?}", example.told);
    let leaves: Vec<bool> = first.iter().map(|node| *node < 3).collect();
    assert!(
        leaves == [true, true, true, false, false, false]
            || leaves == [false, false, false, true, true, true]
    );
}

#[test]
fn a_request_that_comes_before_its_round_waits_and_is_answered() {
    let text = run().text;
    assert_eq!(text, include_str!("golden/example.txt"), "\n{text}");
    let asked = text.find("asks for x").expect("S_y asks for the state of x");
    let answered = text.find("state of x").expect("the state of x leaves");
    assert!(asked < answered);
}

#[test]
fn what_comes_first_by_number_comes_first_in_the_order() {
    use evenfall_consensus_machine::{Proposal, RequestSet, Requests, VnodeId, VnodeState};
    let proposal = |node, number| {
        let set = RequestSet {
            node: NodeId(node),
            incarnation: 0,
            number,
            requests: Requests::default(),
        };
        Proposal { cycle: 1, set, changes: Vec::new() }
    };
    // N_A < N_C < N_B, and N_D < N_E < N_F < N_B.
    let x = [proposal(0, 40), proposal(1, 90), proposal(2, 60)];
    let y = [proposal(3, 10), proposal(4, 20), proposal(5, 70)];
    let x = VnodeState::of_proposals(1, VnodeId(1), x.iter(), std::iter::empty());
    let y = VnodeState::of_proposals(1, VnodeId(2), y.iter(), std::iter::empty());
    let z = VnodeState::of_states(1, VnodeId::ROOT, [&x, &y].into_iter(), [].into_iter());
    let order: Vec<_> = z.sets.iter().map(|set| NAMES[set.node.0 as usize]).collect();
    assert_eq!((order.concat().as_str(), x.number, z.number), ("DEFACB", 90, 90));
}
