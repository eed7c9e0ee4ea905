//! A recorder mends what rings have forgotten, and replays to who comes late, whatever the network
//! does. `EVENFALL_SEEDS` runs more seeds.

use evenfall_lab::multicast::faults::{Scene, Verdict};
use evenfall_sim::Campaign;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 8;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |n| n.parse().expect("a number of seeds"))
}

fn run(seed: u64) -> Result<Verdict, String> {
    let verdict = Scene::with_a_recorder(seed).run();
    let lines: Vec<String> = verdict.violations.iter().map(ToString::to_string).collect();
    if lines.is_empty() { Ok(verdict) } else { Err(lines.join("\n  ")) }
}

#[test]
fn nobody_misses_a_frame_that_a_recorder_has() {
    let first = setting("EVENFALL_SEED_FIRST", 0);
    let seeds = first..first + setting("EVENFALL_SEEDS", SEEDS);
    let replay = "EVENFALL_SEED_FIRST={seed} EVENFALL_SEEDS=1 cargo test -p evenfall-sims recorder";
    let outcome = Campaign::new(seeds.clone(), replay).run(run, |_| {});
    let (mut caught_up, mut lost, mut lived) = (0, 0, 0);
    for (seed, verdict) in outcome.unwrap() {
        let dies = seed % 4 == 3;
        lived += 2 * u64::from(!dies);
        caught_up += if dies { 0 } else { verdict.caught_up };
        lost += if dies { 0 } else { verdict.lost };
    }
    println!("recorder seeds {}..{}: {caught_up} late joiners caught up", seeds.start, seeds.end);
    assert_eq!((caught_up, lost), (lived, 0));
}

#[test]
fn without_a_recorder_the_same_runs_lose_frames() {
    let lost: u64 = (3..8).step_by(4).map(|seed| Scene::with_a_recorder(seed).run().lost).sum();
    assert!(lost > 0, "pauses that lose nothing test nothing");
}
