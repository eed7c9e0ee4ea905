//! Pauses of nodes, and the oracles that bound a shuffle under them.

use evenfall_campaigns::shuffle::preempt::{PauseSchedule, Pauses, Runs, oracles_ns, receiver_ns};
use evenfall_core::Prng;

const PACKET_NS: u64 = 480;

fn law(packets: f64, runs: Runs) -> Pauses {
    Pauses { mean_ns: packets * PACKET_NS as f64, runs, packet_ns: PACKET_NS }
}

fn of(pauses: &[(u64, u64)]) -> PauseSchedule {
    let law = law(1.0, Runs::Alike);
    let late = (u64::MAX / 4, u64::MAX / 2);
    let pauses = pauses.iter().map(|&(a, b)| (a * PACKET_NS - 1, b * PACKET_NS)).chain([late]);
    PauseSchedule::of_pauses(law, Prng::new(1), pauses.collect())
}

#[test]
fn a_node_that_is_away_half_of_the_time_takes_twice_as_long() {
    for runs in [Runs::Alike, Runs::Memoryless] {
        let mut schedule = PauseSchedule::new(law(20.0, runs), Prng::new(1));
        let work = 40_000 * PACKET_NS;
        let done = schedule.runs_for(work).last().expect("runs").1;
        assert!((done as f64 / (2 * work) as f64 - 1.0).abs() < 0.05, "{runs:?}: {done}");
        let paused = schedule.paused_ns(done);
        assert!((paused as f64 / work as f64 - 1.0).abs() < 0.1, "{runs:?}: {paused}");
    }
}

/// Computed by hand: node 0 pauses from packet time 2 to 5, node 2 from 6 to 9.
#[test]
fn oracles_see_the_pauses_of_senders_and_of_receivers() {
    let bound = |cells: [[u64; 3]; 3], pauses: [&[(u64, u64)]; 3]| {
        let mut schedules = pauses.map(of);
        // One more packet, because the oracles leave out one packet time of every message.
        let work = |from: usize, to: usize| match cells[from][to] {
            0 => 0,
            packets => (packets + 1) * PACKET_NS,
        };
        oracles_ns(&mut schedules, PACKET_NS, work) / PACKET_NS
    };
    let away: [&[(u64, u64)]; 3] = [&[(2, 5)], &[], &[(6, 9)]];
    // The sender sends 2 packets, pauses for 3 packet times, and sends 3 packets.
    assert_eq!(bound([[0, 5, 0], [0; 3], [0; 3]], away), 8);
    // The receiver is in a pause when the last packet arrives, at 8.
    assert_eq!(bound([[0, 0, 5], [0; 3], [0; 3]], away), 9);
    // Two senders send 4 and 6 packets. The link is never idle, and ends at 10.
    assert_eq!(bound([[0, 0, 4], [0, 0, 6], [0; 3]], away), 10);
    // Both senders pause from 2 to 5. The link is idle from 4 to 5, and ends at 9.
    let both: [&[(u64, u64)]; 3] = [&[(2, 5)], &[(2, 5)], &[]];
    assert_eq!(bound([[0, 0, 4], [0, 0, 4], [0; 3]], both), 9);
}

#[test]
fn no_message_alone_takes_longer_than_the_oracle_of_its_receiver() {
    let mut prng = Prng::new(7);
    for runs in [Runs::Alike, Runs::Memoryless] {
        let schedule = |node| PauseSchedule::new(law(160.0, runs), Prng::new(node));
        let mut schedules: Vec<PauseSchedule> = (0..8).map(schedule).collect();
        let lengths: Vec<u64> = (0..8).map(|_| prng.below(500_000)).collect();
        let receiver = receiver_ns(&mut schedules, 0, |from| lengths[from] * (from.min(1) as u64));
        for from in 1..8 {
            let sent = schedules[from].runs_for(lengths[from]).last().expect("runs").1;
            assert!(schedules[0].runs_at(sent) <= receiver);
        }
    }
}
