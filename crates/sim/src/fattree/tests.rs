//! The fat tree by itself, packet by packet.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::NodeIndex;

/// Datagram bytes that make 1,500 on the wire: 480 ns at 25 Gb/s.
const FULL: u32 = 1_434;

/// Drives a tree as the world does: wakes in order of time, then the next packet.
struct Drive {
    tree: FatTree,
    prng: Prng,
    wakes: BinaryHeap<Reverse<(SimTime, u64, u64)>>,
    woken: u64,
    /// What became of packets, by ticket.
    ended: Vec<(u64, Verdict)>,
}

impl Drive {
    fn new(spec: FatTreeSpec, hosts: u32) -> Self {
        let mut tree = FatTree::new(spec);
        (0..hosts).for_each(|_| tree.add_host(&HostSpec::ideal()));
        let (wakes, ended) = (BinaryHeap::new(), Vec::new());
        Self { tree, prng: Prng::new(1), wakes, woken: 0, ended }
    }

    fn follow(&mut self, agenda: Agenda) {
        for (at, token) in agenda.wakes {
            self.woken += 1;
            self.wakes.push(Reverse((at, self.woken, token)));
        }
        self.ended.extend(agenda.releases.into_iter().map(|(ticket, end)| (ticket.0, end)));
    }

    /// Wakes the tree until this time.
    fn run(&mut self, until: SimTime) {
        while self.wakes.peek().is_some_and(|wake| wake.0.0 <= until) {
            let Some(Reverse((at, _, token))) = self.wakes.pop() else { return };
            let mut agenda = Agenda::default();
            self.tree.wake(at, token, &mut self.prng, &mut agenda);
            self.follow(agenda);
        }
    }

    fn send(&mut self, at_ns: u64, from: u32, to: u32, class: TrafficClass) -> Verdict {
        let at = SimTime::from_nanos(at_ns);
        self.run(at);
        let (from, to) = (NodeIndex(from), NodeIndex(to));
        let (from_host, to_host) = (HostIndex(from.0), HostIndex(to.0));
        let packet = Packet { at, from, to, from_host, to_host, bytes: FULL, class };
        let mut agenda = Agenda::default();
        let verdict = self.tree.route(&packet, &mut self.prng, &mut agenda);
        self.follow(agenda);
        verdict
    }

    /// When packets arrived, in the order in which their last port sent them.
    fn arrivals(&mut self) -> Vec<u64> {
        self.run(SimTime::from_millis(100));
        let time = |&(_, verdict): &(u64, Verdict)| match verdict {
            Verdict::Deliver(at) => Some(at.nanos()),
            _ => None,
        };
        self.ended.iter().filter_map(time).collect()
    }
}

#[test]
fn a_packet_takes_its_links_one_after_the_other() {
    let mut drive = Drive::new(FatTreeSpec::default(), 80);
    drive.send(0, 0, 1, TrafficClass::Bulk);
    drive.send(0, 2, 41, TrafficClass::Bulk);
    // Two host links of 720 and 480 ns; across, two more of 960 and 12 ns.
    assert_eq!(drive.arrivals(), [2_400, 4_344]);
}

#[test]
fn packets_to_one_host_wait_for_its_link() {
    let mut drive = Drive::new(FatTreeSpec::default(), 40);
    for from in 1..=4 {
        drive.send(0, from, 0, TrafficClass::Bulk);
    }
    assert_eq!(drive.arrivals(), [2_400, 2_880, 3_360, 3_840]);
    assert_eq!(drive.tree.down_bytes_max(), 4_500);
    assert_eq!(drive.tree.racks()[0].bytes, 0);
}

#[test]
fn control_passes_what_waits_where_it_has_priority() {
    for (priorities, place) in [(Priorities::Edge, 1), (Priorities::Nowhere, 4)] {
        let mut drive = Drive::new(FatTreeSpec { priorities, ..FatTreeSpec::default() }, 40);
        for from in 1..=4 {
            drive.send(0, from, 0, TrafficClass::Bulk);
        }
        // A short packet reaches the rack sooner: sent late, it finds four there.
        let control = drive.send(470, 5, 0, TrafficClass::Control);
        let Verdict::Hold(ticket) = control else { panic!("{control:?}") };
        drive.arrivals();
        let order: Vec<u64> = drive.ended.iter().map(|end| end.0).collect();
        let at = order.iter().position(|&other| other == ticket.0);
        assert_eq!(at, Some(place), "{priorities:?}");
    }
}

#[test]
fn a_full_buffer_drops_and_says_so() {
    let spec = FatTreeSpec { port_bytes_max: Some(3_000), ..FatTreeSpec::default() };
    let mut drive = Drive::new(spec, 40);
    for from in 1..=5 {
        drive.send(0, from, 0, TrafficClass::Bulk);
    }
    // One is on the link, two wait, two are lost.
    assert_eq!(drive.arrivals().len(), 3);
    let lost = drive.ended.iter().filter(|end| end.1 == Verdict::Lose(Loss::Buffer)).count();
    assert_eq!(lost, 2);
}

#[test]
fn a_rate_that_is_no_whole_number_of_picoseconds_a_byte_is_kept() {
    // 9 Gb/s: 1,333.3 ns a packet, and 888.9 ps a byte.
    let spec = FatTreeSpec { rack_bits_per_s: 9_000_000_000, ..FatTreeSpec::default() };
    let mut drive = Drive::new(spec, 80);
    for from in 0..31 {
        drive.send(0, from, 40 + from, TrafficClass::Bulk);
    }
    let times = drive.arrivals();
    let took = times[30] - times[0];
    assert!(took.abs_diff(40_000) <= 2, "30 packets took {took} ns");
}

#[test]
fn flows_that_hash_to_one_path_share_it_while_another_is_idle() {
    // Two flows of 25 Gb/s, and a core of two paths with 25 Gb/s each.
    let spec = |core_paths| FatTreeSpec {
        core_paths,
        rack_hosts: 8,
        rack_bits_per_s: 50_000_000_000,
        ..FatTreeSpec::default()
    };
    let tree = FatTree::new(spec(2));
    let pairs = || (8..16).flat_map(|a| (8..16).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let collide = |&(a, b): &(u32, u32)| tree.path(0, a) == tree.path(1, b);
    let last = |core_paths, (a, b): (u32, u32)| {
        let mut drive = Drive::new(spec(core_paths), 16);
        for _ in 0..40 {
            drive.send(0, 0, a, TrafficClass::Bulk);
            drive.send(0, 1, b, TrafficClass::Bulk);
        }
        *drive.arrivals().last().expect("eighty packets")
    };
    let same = pairs().find(collide).expect("flows that collide");
    let apart = pairs().find(|pair| !collide(pair)).expect("flows that do not");
    assert!(last(2, same) > last(1, same) * 3 / 2);
    assert!(last(2, apart) < last(1, apart) * 11 / 10);
}
