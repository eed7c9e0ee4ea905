//! Attacks of a node of the mesh on the clocks of others, with one key for all nodes and with keys
//! of two ends.

use std::time::Duration;

use evenfall_clock_machine::forging::forge_all;
use evenfall_clock_machine::wire::{ClockBody, ClockMessage, CodedProbe};
use evenfall_clock_machine::{ClockState, ClockVerdict};
use evenfall_core::{MasterKey, SharedKey, Timestamp};

use super::machines::Bench;

/// Nodes of a mesh: the reference, two nodes that are attacked, one more, and the attacker.
const NODES: u32 = 5;
const VICTIM: usize = 2;
const OTHER: usize = 1;
const THIEF: usize = 4;
/// By how much the attacker wants to move the clock of its victim.
const FALSE_NS: i64 = 5_000_000;
/// The false probes: in whose name, and to whom. Where all are believed, three of the victim's four
/// neighbours contradict it.
const FALSE_PROBES: [(usize, usize); 3] = [(VICTIM, 0), (VICTIM, OTHER), (3, VICTIM)];
/// When every node knows its time.
const LEARNT: u64 = 7_500_000_000;

fn shared() -> SharedKey {
    SharedKey::new(1, [9; 32])
}

fn master() -> MasterKey {
    MasterKey::new([7; 32])
}

fn keyed(started: u32, lives: u64) -> Bench {
    Bench::begun(NODES, Some(&shared()), started).with_node_keys(&master(), lives)
}

/// Sends everything that the attacker can make of a message, in the name of `from`. Returns how
/// many datagrams it sent, and how many were refused.
fn send_forged(bench: &mut Bench, from: usize, to: usize, message: &ClockMessage) -> (u64, u64) {
    let forged = forge_all(&bench.nodes[THIEF], &shared(), message);
    let mut refused = 0;
    for datagram in &forged {
        refused += u64::from(bench.inject((from, to, datagram.to_vec())));
    }
    (forged.len() as u64, refused)
}

/// A verdict of the reference that moves the victim's clock, for each window that may be the
/// present one.
fn forge_verdicts(bench: &mut Bench) -> (u64, u64) {
    let (local, reading) = (bench.local(VICTIM, bench.now), bench.error(VICTIM).1);
    let verdict = ClockVerdict {
        offset_ns: reading.offset_ns + FALSE_NS,
        state: ClockState::Synchronised,
        horizon: Duration::from_secs(4),
        ..ClockVerdict::reference(local)
    };
    let (mut sent, mut refused) = (0, 0);
    for number in 9..20 {
        let body = ClockBody::Verdict { verdict, base_ns: 0, utc: None };
        let message = ClockMessage { run: 77, from: 0, number, body };
        let (more, against) = send_forged(bench, 0, VICTIM, &message);
        sent += more;
        refused += against;
    }
    (sent, refused)
}

/// Pairs of probes in the name of a node, whose stamps say that its clock is ahead.
fn forge_probes(bench: &mut Bench, from: usize, to: usize) -> (u64, u64) {
    let (mut sent, mut refused) = (0, 0);
    let mut departed = [Timestamp::ZERO; 2];
    for pair in 0..3 {
        let ahead = Duration::from_nanos(FALSE_NS as u64);
        let stamp = bench.local(from, bench.now) + ahead;
        let stamps = [stamp, stamp + Duration::from_micros(20)];
        for (half, second) in [false, true].into_iter().enumerate() {
            let probe = CodedProbe {
                second,
                sent: stamps[half],
                departed,
                heard_number: 0,
                heard: [Timestamp::ZERO; 2],
            };
            let body = ClockBody::Probe(probe);
            let message = ClockMessage { run: 77, from: from as u32, number: 50_000 + pair, body };
            let (more, against) = send_forged(bench, from, to, &message);
            sent += more;
            refused += against;
            bench.run(bench.now + 20_000);
        }
        departed = stamps;
    }
    (sent, refused)
}

fn assert_clocks_are_right(bench: &Bench) {
    for n in 0..NODES as usize {
        let (error, reading) = bench.error(n);
        assert_eq!(reading.state, ClockState::Synchronised, "node {n}");
        assert!(!bench.nodes[n].is_left_out(), "node {n}");
        assert!(error.abs() <= 20, "node {n}: {error} ns");
    }
}

#[test]
fn nodes_with_keys_of_two_ends_find_their_time_and_refuse_nothing_of_each_other() {
    let mut bench = keyed(9, 1);
    // A neighbour may probe a node before the node has its keys.
    bench.run(1_000_000_000);
    let before = bench.refused.clone();
    bench.run(LEARNT);
    assert_clocks_are_right(&bench);
    assert_eq!(bench.refused, before);
}

#[test]
fn under_one_key_for_all_nodes_a_subscriber_moves_the_clock_of_another() {
    let mut bench = Bench::new(NODES, Some(&shared()));
    bench.run(LEARNT);
    assert_clocks_are_right(&bench);
    assert_eq!(forge_verdicts(&mut bench), (11, 0));
    let (error, _) = bench.error(VICTIM);
    assert!((error - FALSE_NS).abs() < 1_000, "{error} ns");
    let mut bench = Bench::new(NODES, Some(&shared()));
    bench.run(LEARNT);
    for (from, to) in FALSE_PROBES {
        assert_eq!(forge_probes(&mut bench, from, to), (6, 0));
    }
    bench.run(LEARNT + 100_000_000);
    assert!(bench.nodes[VICTIM].is_left_out(), "most neighbours believe that its clock jumped");
}

#[test]
fn with_keys_of_two_ends_forged_probes_and_verdicts_are_refused_and_no_clock_moves() {
    let mut bench = keyed(9, 1);
    bench.run(LEARNT);
    let before: u64 = bench.refused.iter().sum();
    let (mut sent, mut refused) = forge_verdicts(&mut bench);
    for (from, to) in FALSE_PROBES {
        let (more, against) = forge_probes(&mut bench, from, to);
        sent += more;
        refused += against;
    }
    // Each message goes out under the shared key and under the keys with four other nodes.
    assert_eq!((sent, refused), (5 * (11 + 3 * 6), sent));
    assert_clocks_are_right(&bench);
    bench.run(LEARNT + 4_000_000_000);
    assert_clocks_are_right(&bench);
    assert_eq!(bench.refused.iter().sum::<u64>() - before, refused);
}

#[test]
fn datagrams_that_were_recorded_in_an_earlier_run_move_no_clock() {
    // Numbers of probes begin again after 49 days: in the second case, the recorded probes look
    // newer than those of the run.
    for (earlier, is_older) in [(9, true), (1_000_000, false)] {
        let mut recorded = keyed(earlier, 1);
        recorded.run(LEARNT);
        let mut bench = keyed(109, 1_000);
        let is_probe = |bytes: &[u8]| bytes[3] == 0;
        let replayed = recorded.carried.iter().filter(|(_, _, bytes)| is_older || is_probe(bytes));
        let step = LEARNT / recorded.carried.len() as u64;
        let mut sent = 0u64;
        for carried in replayed {
            bench.inject(carried.clone());
            sent += 1;
            bench.run(sent * step);
        }
        let refused: u64 = bench.refused.iter().sum();
        assert!(refused > sent / 2, "{refused} of {sent}");
        bench.run(LEARNT + 4_000_000_000);
        assert_clocks_are_right(&bench);
        let kept = bench.refused.iter().sum::<u64>() - refused;
        assert!(kept < 10, "{kept} datagrams of the run were refused behind the attack");
    }
}

#[test]
fn a_probe_of_this_run_is_refused_when_it_is_sent_again() {
    let mut bench = keyed(9, 1);
    bench.run(3_000_000_000);
    let probes = bench.carried.iter().filter(|(_, to, bytes)| *to == OTHER && bytes[3] == 0);
    let probes: Vec<_> = probes.cloned().collect();
    bench.run(LEARNT);
    assert!(probes.len() > 100, "{} probes", probes.len());
    for probe in probes {
        assert!(bench.inject(probe.clone()), "{probe:?}");
    }
    bench.run(LEARNT + 4_000_000_000);
    assert_clocks_are_right(&bench);
}
