//! Attacks of a node of the mesh on the clocks of others, with one key for all nodes and with keys
//! of two ends.

use std::ops::Range;
use std::time::Duration;

use evenfall_clock_machine::forging::forge_all;
use evenfall_clock_machine::wire::{ClockBody, ClockMessage, CodedProbe};
use evenfall_clock_machine::{ClockState, ClockVerdict};
use evenfall_core::{MasterKey, Prng, SharedKey, Timestamp};

use super::machines::{Bench, Carried};

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
fn forge_verdicts(bench: &mut Bench, windows: Range<u32>) -> (u64, u64) {
    let (local, reading) = (bench.local(VICTIM, bench.now), bench.error(VICTIM).1);
    let verdict = ClockVerdict {
        offset_ns: reading.offset_ns + FALSE_NS,
        state: ClockState::Synchronised,
        horizon: Duration::from_secs(4),
        ..ClockVerdict::reference(local)
    };
    let (mut sent, mut refused) = (0, 0);
    for number in windows {
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
    assert_eq!(forge_verdicts(&mut bench, 9..20), (11, 0));
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
    let (mut sent, mut refused) = forge_verdicts(&mut bench, 9..20);
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

#[test]
fn a_node_that_starts_again_is_heard_again_also_where_its_numbers_look_old() {
    // Numbers of probes grow by a thousand a second, and begin again after 49 days.
    for started in [16, 3_000_000] {
        let mut bench = keyed(9, 1);
        bench.run(LEARNT);
        bench.restart(3, started, &shared(), Some((&master(), 500)));
        assert_eq!(bench.error(3).1.state, ClockState::Unknown);
        bench.run(LEARNT + 15_000_000_000);
        assert_clocks_are_right(&bench);
    }
}

/// The second in which the nodes of a trial begin, which is also their first window.
const BEGUN: u32 = 200_000;

/// Whether every clock that has a bound keeps it, and no node is thought to have jumped.
fn judge_clocks(bench: &Bench) -> Result<(), String> {
    for n in 0..NODES as usize {
        let (error, reading) = bench.error(n);
        if bench.nodes[n].is_left_out() {
            return Err(format!("node {n} is left out"));
        }
        let is_known = reading.state != ClockState::Unknown;
        if is_known && reading.proven_ns.is_some_and(|bound| error.unsigned_abs() > bound) {
            return Err(format!("node {n} errs by {error} ns, {reading:?}"));
        }
    }
    Ok(())
}

/// Runs a mesh with losses and a node that starts again, while an attacker forges verdicts and
/// probes, and sends again what it recorded in this run and in an earlier one. Says which clock
/// went wrong.
fn trial(seed: u64, has_node_keys: bool, recorded: &[Carried]) -> Result<(), String> {
    let mut prng = Prng::new(seed);
    let (master, key, lives) = (master(), shared(), 100 * seed + 50);
    let begun = Bench::begun(NODES, Some(&key), BEGUN);
    let mut bench = match has_node_keys {
        true => begun.with_node_keys(&master, lives),
        false => begun,
    };
    bench.lossy = prng.chance(0.5).then(|| Prng::new(seed + 1_000));
    let restart_at = 4 + prng.below(4);
    for second in 1..=14 {
        bench.run(second * 1_000_000_000);
        judge_clocks(&bench).map_err(|why| format!("seed {seed}, second {second}: {why}"))?;
        if second == restart_at {
            let keys = has_node_keys.then_some((&master, lives + 50));
            bench.restart(3, BEGUN + second as u32, &key, keys);
        }
        for _ in 0..50 {
            let from = if prng.chance(0.5) { recorded } else { &bench.carried[..] };
            let at = prng.below(from.len() as u64) as usize;
            let carried = from[at].clone();
            bench.inject(carried);
        }
        forge_verdicts(&mut bench, BEGUN..BEGUN + 10);
        let (from, to) = FALSE_PROBES[prng.below(3) as usize];
        forge_probes(&mut bench, from, to);
    }
    let is_unknown = |n: &usize| bench.error(*n).1.state == ClockState::Unknown;
    match (0..NODES as usize).find(is_unknown) {
        Some(n) => Err(format!("seed {seed}: node {n} has no time")),
        None => Ok(()),
    }
}

#[test]
fn clocks_keep_their_bounds_under_attack_losses_and_a_restart() {
    let mut earlier = keyed(9, 1);
    earlier.run(2_000_000_000);
    for seed in 0..8 {
        if let Err(why) = trial(seed, true, &earlier.carried) {
            panic!("{why}");
        }
    }
}

#[test]
fn the_same_attack_shows_where_all_nodes_have_one_key() {
    let mut earlier = Bench::begun(NODES, Some(&shared()), 9);
    earlier.run(2_000_000_000);
    for seed in 0..2 {
        assert!(trial(seed, false, &earlier.carried).is_err(), "seed {seed}");
    }
}
