//! A thousand simulated crashes of the store, and more with `EVENFALL_SEEDS`.

use evenfall_lab::store::{Mutant, run_seed};
use evenfall_sim::Campaign;

/// Seeds of an ordinary test run; each has several crashes.
const SEEDS: u64 = 400;
/// Seeds within which each mutant must be caught.
const SEEDS_OF_MUTANTS: u64 = 200;

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match number("EVENFALL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("EVENFALL_SEEDS").unwrap_or(SEEDS),
    }
}

#[test]
fn acknowledged_means_readable_after_any_crash() {
    let seeds = seeds();
    let replay = "EVENFALL_SEED={seed} cargo test -p evenfall-lab --test all acknowledged";
    let outcome = Campaign::new(seeds.clone(), replay).run(|seed| run_seed(seed, None), |_| {});
    let runs: Vec<_> = outcome.unwrap().into_iter().map(|(_, run)| run).collect();
    let sum = |of: fn(&evenfall_lab::store::Outcome) -> u64| runs.iter().map(of).sum::<u64>();
    println!(
        "{} crashes, {} failed requests, {} records; {} appends acknowledged local, {} object, \
         {} replica; {} chunks evicted, {} unpromised records lost",
        sum(|run| run.crashes),
        sum(|run| run.failures),
        sum(|run| run.records),
        sum(|run| run.local),
        sum(|run| run.object),
        sum(|run| run.replica),
        sum(|run| run.evicted),
        sum(|run| run.unpromised)
    );
    if seeds.end - seeds.start >= SEEDS {
        assert!(sum(|run| run.crashes) >= 1_000 && sum(|run| run.failures) >= 1_000);
        assert!(sum(|run| run.evicted) > 0, "no chunk left a disk");
        assert!(sum(|run| run.unpromised) > 0, "crashes that never lose anything are too mild");
    }
}

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let caught = (0..SEEDS_OF_MUTANTS).find_map(|seed| run_seed(seed, Some(mutant)).err());
        println!("{mutant:?}: {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught in {SEEDS_OF_MUTANTS} seeds");
    }
}
