//! Bulk reads: the order of the policies, and the invariants of a run under any policy.

use evenfall_core::statistics::mean;
use evenfall_studies::files::{BLOCK_BYTES, ReadParams, Steering};

fn params(steering: Steering) -> ReadParams {
    let mut params = ReadParams { steering, ..ReadParams::default() };
    params.load.reads = 600;
    params
}

#[test]
fn every_policy_ends_every_read_and_none_beats_the_bound() {
    for (name, steering) in Steering::ALL {
        let (times, bound_s) = params(steering).run(7);
        assert!(times.reads_s.iter().all(|seconds| seconds.is_finite()), "{name}");
        let mean_s = mean(&times.reads_s).expect("reads");
        assert!(mean_s >= bound_s, "{name}: {mean_s} below the bound {bound_s}");
        let least = BLOCK_BYTES as f64 / 125e6;
        assert!(times.reads_s.iter().all(|&seconds| seconds > least * 0.999), "{name}");
    }
}

#[test]
fn a_seed_gives_the_same_run() {
    for steering in [Steering::Mayflower, Steering::Agentless] {
        assert_eq!(params(steering).run(3), params(steering).run(3));
    }
}

/// Each of 64 hosts falls silent every 200 s, for 20 s in the mean. The policy of the ends goes on
/// elsewhere, and finds no flow silent when no host is.
#[test]
fn flows_of_hosts_that_hang_go_on_from_other_copies() {
    assert_eq!(params(Steering::Agentless).run(1).0.hedged, 0);
    let hanging = |steering| {
        let (times, _) = ReadParams { hangs: (0.005, 20.0), ..params(steering) }.run(1);
        let late = times.reads_s.iter().filter(|&&seconds| seconds > 10.0).count();
        (times.hedged, mean(&times.reads_s).expect("reads"), late)
    };
    let (hedged, mean_s, late) = hanging(Steering::Agentless);
    let (_, other_s, others_late) = hanging(Steering::Mayflower);
    assert!(hedged > 10, "{hedged} hedges");
    assert!(mean_s < other_s && late < others_late, "{mean_s} {late}, {other_s} {others_late}");
}

/// Every read crosses exactly one link out of a copy's host and one link into its client.
#[test]
fn divided_reads_carry_every_byte_once() {
    let params = params(Steering::Mayflower);
    let (times, _) = params.run(5);
    assert!(times.divided > 100);
    // Section 3.2.3: the two flows of a read end within one second of each other in the mean.
    assert_eq!(times.apart_s.len(), times.divided);
    assert!(mean(&times.apart_s).expect("reads") < 1.0);
    let topology = params.spec.build();
    let hosts = params.spec.host_count();
    let sent = topology.links().iter().zip(&times.carried).filter(|(link, _)| link.from.0 < hosts);
    let sent: f64 = sent.map(|(_, bytes)| bytes).sum();
    let asked = (BLOCK_BYTES * params.load.reads as u64) as f64;
    assert!((sent / asked - 1.0).abs() < 1e-6, "{sent} of {asked}");
}

/// Section 3.4.3: reading the nearest copy is slowest, picking the copy by load is faster, and
/// choosing copy and path together is fastest.
#[test]
fn policies_come_in_the_order_of_the_thesis() {
    let mean_s = |steering| {
        let summary = params(steering).runs(1, 4);
        mean(&summary.mean_s).expect("runs")
    };
    let both = mean_s(Steering::Mayflower);
    let one = mean_s(Steering::MayflowerB);
    let picked = mean_s(Steering::SinbadMf);
    let nearest = mean_s(Steering::NearestMf);
    let hashed = mean_s(Steering::Nearest);
    assert!(both < one && one < picked && picked < nearest && nearest < hashed);
    let ends = mean_s(Steering::Agentless);
    assert!(ends < 1.25 * both, "the ends alone: {ends}, with the network's help {both}");
}
