//! The exchange under loss, duplicates, reordering and crashes: whole and once, or a named failure.

use evenfall_lab::shuffle::faults::{Mutant, run_seed};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 1_000;
/// Seeds within which a mutant must be caught by the check that is meant for it. One seed in five
/// has a crash.
const MUTANT_SEEDS: u64 = 60;

#[test]
fn messages_arrive_whole_and_once_or_the_failure_names_the_dead_rank() {
    let seeds = std::env::var("EVENFALL_SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let violations = run_seed(seed, None);
        assert!(violations.is_empty(), "seed {seed}: {violations:?}");
    }
}

#[test]
fn every_check_catches_its_mutant() {
    for (mutant, check) in Mutant::ALL {
        let caught = (0..MUTANT_SEEDS)
            .find(|&seed| run_seed(seed, Some(mutant)).iter().any(|v| v.check == check));
        println!("{mutant:?} is caught by {check:?} under seed {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught by {check:?}");
    }
}
