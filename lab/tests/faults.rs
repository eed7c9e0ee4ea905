//! A thousand fault seeds; a hundred thousand with `EVENFALL_SEEDS=100000` (`make test-long`).
//! `EVENFALL_SEED_FIRST` begins later, so that a long campaign can be run in parts.

use evenfall_lab::multicast::faults::{Scene, run_seed};
use evenfall_sim::{Campaign, Coverage, FaultKind};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 1_000;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |n| n.parse().expect("a number of seeds"))
}

#[test]
fn nothing_forbidden_happens_under_any_fault_seed() {
    let first = setting("EVENFALL_SEED_FIRST", 0);
    let seeds = first..first + setting("EVENFALL_SEEDS", SEEDS);
    let replay = "evenfall sim multicast --faults --seed {seed}";
    let campaign = Campaign::new(seeds.clone(), replay);
    let mut coverage = Coverage::default();
    let (mut hops, mut released, mut lost, mut acts) = (0, 0, 0, 0);
    let mut replacements = [0; 4];
    let outcome = campaign.run(
        |seed| {
            let (plan, verdict) = run_seed(seed)?;
            let mut one = Coverage::default();
            one.add(&plan);
            Ok((one, verdict))
        },
        |_| {},
    );
    for (_, (one, v)) in outcome.unwrap() {
        coverage.merge(&one);
        (hops, released) = (hops + v.hops, released + v.released);
        (lost, acts) = (lost + v.lost, acts + v.acts);
        replacements.iter_mut().zip(v.replacements).for_each(|(sum, n)| *sum += n);
    }
    println!("{coverage}");
    println!("{acts} joins, leaves and switches of mode, {hops} hops, {released} frames released");
    let [tried, made, rolled_back, abandoned] = replacements;
    println!("{tried} replacements: {made} made, {rolled_back} rolled back, {abandoned} abandoned");
    println!("fault seeds {}..{} pass, {lost} frames reported lost", seeds.start, seeds.end);
    for kind in FaultKind::ALL {
        assert!(coverage.runs_with(kind) > 0, "no seed had {}", kind.name());
    }
    assert!(replacements.iter().all(|n| *n > 0), "{replacements:?}");
    assert!(lost > 0, "a campaign in which nothing is ever lost is too mild");
}

/// Seeds that a campaign once stopped at, beyond those of an ordinary run.
#[test]
fn seeds_that_once_failed_pass() {
    for seed in [37_460, 62_358, 75_840, 76_256, 89_455, 204_721] {
        run_seed(seed).unwrap();
    }
}

#[test]
fn a_seed_gives_one_run_for_ever() {
    for seed in [0, 1, 2] {
        let (once, again) = (Scene::of(seed).run(), Scene::of(seed).run());
        assert_eq!((once.digest, once.hops), (again.digest, again.hops), "seed {seed}");
    }
}
