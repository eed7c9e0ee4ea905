//! Attacks of a participant on the clocks of others.
//!
//! The attacker is a node of the mesh of clocks. It holds the shared key, and with node keys also
//! its keys with the reference and with all neighbours. It forges in the name of two other nodes,
//! under each of these keys, and sends again what it recorded. Datagrams arrive after 30 us.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_clock_machine::forging::forge_all;
use evenfall_clock_machine::wire::{ClockBody, ClockMessage, CodedProbe};
use evenfall_clock_machine::{ClockSeat, ClockState, ClockVerdict, Config, Timekeeper};
use evenfall_core::{
    Arrival, Destination, EndKeys, Machine, MasterKey, NodeId, Sent, SharedKey, StampedBy,
    Timestamp,
};

use super::address;
use super::forgery::ForgeryResult;

/// Nodes of the mesh. The first is the reference.
const NODES: usize = 5;
const VICTIM: usize = 2;
const THIEF: usize = 4;
/// The false probes: in whose name, and to whom. Where all are believed, three of the victim's four
/// neighbours contradict it.
const FALSE_PROBES: [(usize, usize); 3] = [(VICTIM, 0), (VICTIM, 1), (3, VICTIM)];
const RUN: u64 = 77;
/// The second in which the nodes began, from which windows and probes are numbered.
const STARTED: u32 = 9;
/// Delay of every datagram.
const DELAY: Duration = Duration::from_micros(30);
/// When the nodes begin, on the clock that all of them have.
const BEGIN: Timestamp = Timestamp::from_nanos(1 << 40);
/// Time after which every node knows its time.
const LEARNING: Duration = Duration::from_millis(7_500);
/// By how much the attacker wants to move a clock.
const AHEAD: Duration = Duration::from_millis(5);
/// A number of probes that is above all numbers of this run.
const NEWEST: u32 = 50_000;
/// A clock that errs by more has been moved: undisturbed clocks err by some nanoseconds.
const MOVED: Duration = Duration::from_micros(1);

/// What the attacker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockAttack {
    /// Probes in the name of two others.
    Probes,
    /// A verdict of the reference.
    Verdict,
    /// Probes that others sent each other before.
    Replay,
}

/// Nodes with one clock, so that the error of each is its offset.
struct ClockScene {
    now: Timestamp,
    nodes: Vec<Timekeeper>,
    wire: BTreeMap<(Timestamp, u64), (usize, usize, Bytes)>,
    sent: u64,
    /// Probes that were carried: sender, receiver, bytes.
    probes: Vec<(usize, usize, Bytes)>,
    refused: u64,
    shared: SharedKey,
}

impl ClockScene {
    fn new(has_node_keys: bool) -> Self {
        let shared = SharedKey::new(1, [5; 32]);
        let master = MasterKey::new([6; 32]);
        let addresses: Vec<SocketAddr> = (0..NODES as u32).map(address).collect();
        let ids: Vec<NodeId> = (0..NODES as u32).map(NodeId).collect();
        let node = |number: u32| {
            let addresses = addresses.clone();
            let seat = ClockSeat { addresses, number, run: RUN, started: STARTED };
            let keeper = Timekeeper::new(Config::default(), seat, Some(&shared), BEGIN);
            let keys = match number {
                0 => EndKeys::Root(master.clone()),
                _ => EndKeys::Node(master.node(NodeId(number))),
            };
            match has_node_keys {
                true => keeper.with_node_keys(keys, ids.clone(), u64::from(number) + 1),
                false => keeper,
            }
        };
        let nodes = (0..NODES as u32).map(node).collect();
        let (wire, probes) = (BTreeMap::new(), Vec::new());
        let mut scene = Self { now: BEGIN, nodes, wire, sent: 0, probes, refused: 0, shared };
        scene.pass(LEARNING);
        let is_right = |node: &Timekeeper| node.read(scene.now).state == ClockState::Synchronised;
        assert!(scene.nodes.iter().all(is_right), "a node has not learnt its time");
        scene.refused = 0;
        scene
    }

    fn drain(&mut self, n: usize) {
        let now = self.now;
        while self.nodes[n].poll_event().is_some() {}
        while let Some(transmit) = self.nodes[n].poll_transmit(now) {
            let Destination::One(to) = transmit.to else { continue };
            let Some(to) = (0..NODES).find(|node| address(*node as u32) == to) else { continue };
            let bytes: Bytes = [transmit.head.as_slice(), &transmit.body].concat().into();
            if let Some(token) = transmit.token {
                self.probes.push((n, to, bytes.clone()));
                let sent = Sent { token, at: Some(now), stamped_by: StampedBy::Kernel };
                self.nodes[n].handle_sent(now, sent);
            }
            self.wire.insert((now + DELAY, self.sent), (n, to, bytes));
            self.sent += 1;
        }
    }

    /// A datagram arrives.
    fn inject(&mut self, from: usize, to: usize, datagram: Bytes) {
        let arrival = Arrival::new(address(from as u32), datagram, self.now, StampedBy::Kernel);
        self.refused += u64::from(self.nodes[to].handle(self.now, arrival).is_err());
        self.drain(to);
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let due = |n: usize| Some((self.nodes[n].poll_timeout()?.max(self.now), n));
            let timer = (0..NODES).filter_map(due).min();
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let at = timer.map(|(at, _)| at).into_iter().chain(arrival).min();
            let Some(at) = at.filter(|at| *at <= until) else { break };
            self.now = at;
            match timer.filter(|(due, _)| arrival.is_none_or(|arrival| *due < arrival)) {
                Some((_, n)) => {
                    self.nodes[n].handle_timeout(at);
                    self.drain(n);
                }
                None => {
                    if let Some((_, (from, to, datagram))) = self.wire.pop_first() {
                        self.inject(from, to, datagram);
                    }
                }
            }
        }
        self.now = until;
    }

    /// Sends a message in the name of a node, under all keys of the attacker.
    fn forge(&mut self, from: usize, to: usize, number: u32, body: ClockBody) {
        let message = ClockMessage { run: RUN, from: from as u32, number, body };
        for datagram in forge_all(&self.nodes[THIEF], &self.shared, &message) {
            self.inject(from, to, datagram);
        }
    }

    /// Pairs of probes in the name of a node, whose stamps say that its clock is ahead.
    fn forge_probes(&mut self, from: usize, to: usize) {
        let gap = Duration::from_micros(20);
        let nothing = [Timestamp::ZERO; 2];
        let mut departed = nothing;
        for pair in 0..3 {
            let stamps = [self.now + AHEAD, self.now + AHEAD + gap];
            for (sent, second) in stamps.into_iter().zip([false, true]) {
                let probe = CodedProbe { second, sent, departed, heard_number: 0, heard: nothing };
                self.forge(from, to, NEWEST + pair, ClockBody::Probe(probe));
                self.pass(gap);
            }
            departed = stamps;
        }
    }

    /// Verdicts that move the victim's clock, for all windows that may be the present one.
    fn forge_verdicts(&mut self) {
        let verdict = ClockVerdict {
            offset_ns: AHEAD.as_nanos() as i64,
            horizon: Duration::from_secs(4),
            ..ClockVerdict::reference(self.now)
        };
        for number in STARTED..STARTED + 10 {
            let body = ClockBody::Verdict { verdict, base_ns: 0, utc: None };
            self.forge(0, VICTIM, number, body);
        }
    }

    /// Whether the victim's clock has moved, or is held because it is thought to have jumped.
    fn is_victim_moved(&self) -> bool {
        let victim = &self.nodes[VICTIM];
        let offset = victim.read(self.now).offset_ns.unsigned_abs();
        victim.is_left_out() || u128::from(offset) > MOVED.as_nanos()
    }
}

fn play(attack: ClockAttack, has_node_keys: bool) -> ForgeryResult {
    let mut scene = ClockScene::new(has_node_keys);
    match attack {
        ClockAttack::Probes => {
            FALSE_PROBES.into_iter().for_each(|(from, to)| scene.forge_probes(from, to));
        }
        ClockAttack::Verdict => scene.forge_verdicts(),
        ClockAttack::Replay => {
            let of_others = |(from, to, _): &(usize, usize, Bytes)| *from != THIEF && *to == VICTIM;
            let recorded = scene.probes.len() / 2;
            let probes: Vec<_> =
                scene.probes[..recorded].iter().filter(|probe| of_others(probe)).cloned().collect();
            for (from, to, datagram) in probes {
                scene.inject(from, to, datagram);
            }
        }
    }
    // Neighbours tell the reference that the victim contradicts them, and it tells the victim.
    let mut succeeded = scene.is_victim_moved();
    let refused = scene.refused;
    scene.pass(Duration::from_millis(100));
    succeeded |= scene.is_victim_moved();
    let (attack, gained) = match attack {
        ClockAttack::Probes => {
            ("clock probes in the name of two others", "the clock of the victim is left out")
        }
        ClockAttack::Verdict => {
            ("a verdict of the reference of the clocks", "the clock of the victim moves by 5 ms")
        }
        ClockAttack::Replay => ("recorded clock probes of others", "the clock of the victim moves"),
    };
    ForgeryResult::of(attack, has_node_keys, succeeded.then(|| gained.into()), refused)
}

/// All attacks on clocks, with one key for all nodes and with node keys.
pub fn play_clock_attacks() -> Vec<ForgeryResult> {
    let kinds = [ClockAttack::Probes, ClockAttack::Verdict, ClockAttack::Replay];
    kinds.into_iter().flat_map(|kind| [false, true].map(|keys| play(kind, keys))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_moved_under_one_key_for_all_and_not_under_node_keys() {
        for kind in [ClockAttack::Probes, ClockAttack::Verdict] {
            let shared = play(kind, false);
            assert!(shared.succeeded && shared.counted == 0, "{shared:?}");
            let node = play(kind, true);
            // Under the shared key, and under the keys with four other nodes.
            let forged = if kind == ClockAttack::Probes { 3 * 6 } else { 10 };
            assert!(!node.succeeded && node.counted == 5 * forged, "{node:?}");
        }
    }

    #[test]
    fn recorded_probes_move_no_clock_and_are_counted_with_node_keys() {
        assert!(!play(ClockAttack::Replay, false).succeeded);
        let node = play(ClockAttack::Replay, true);
        assert!(!node.succeeded && node.counted > 100, "{node:?}");
    }
}
