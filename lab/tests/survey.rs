//! Live measurement under faults: a plan or a clear error, whatever agents do. A thousand seeds;
//! more with `EVENFALL_SEEDS=20000`.

use evenfall_lab::survey::subject::Mutant;
use evenfall_lab::survey::{Scene, run_seed};
use evenfall_sim::{Campaign, Coverage, FaultKind};

/// Seeds of an ordinary test run: a few seconds.
const SEEDS: u64 = 1_000;
/// Seeds within which a mutant must be caught by the checker that is meant for it.
const MUTANT_SEEDS: u64 = 400;

fn seeds() -> u64 {
    std::env::var("EVENFALL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn every_survey_ends_with_a_plan_or_a_clear_error() {
    let replay = "cargo run --release -p evenfall-sims --example survey -- {seed}";
    let mut campaign = Campaign::new(0..seeds(), replay);
    campaign.stop_at_first = false;
    let outcome = campaign.run(run_seed, |_| {});
    let mut coverage = Coverage::default();
    let (mut planned, mut refused, mut dropped, mut jobs) = (0, 0, 0, 0);
    let mut worst = core::time::Duration::ZERO;
    for (_, (plan, verdict)) in outcome.unwrap() {
        coverage.add(&plan);
        planned += u64::from(verdict.planned);
        refused += u64::from(verdict.refused.is_some());
        (dropped, jobs) = (dropped + verdict.dropped, jobs + verdict.jobs);
        worst = worst.max(verdict.took);
    }
    println!("{coverage}");
    println!("survey seeds 0..{} pass: {planned} plans, {refused} errors", seeds());
    println!("{jobs} jobs, {dropped} hosts named as failed, the longest took {worst:?}");
    assert!(planned > 0 && refused > 0 && dropped > 0, "a campaign too mild or too wild");
    for kind in FaultKind::ALL {
        assert!(coverage.runs_with(kind) > 0, "no seed had {}", kind.name());
    }
}

#[test]
fn every_checker_of_surveys_catches_its_mutant() {
    for (mutant, check) in Mutant::ALL {
        let caught = (0..MUTANT_SEEDS).find(|seed| {
            let mut scene = Scene::of(*seed);
            scene.mutant = Some(mutant);
            scene.run().violations.iter().any(|violation| violation.check == check)
        });
        println!("{mutant:?} is caught by {check:?} under seed {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught by {check:?}");
    }
}

#[test]
fn a_survey_seed_gives_one_run_for_ever() {
    for seed in [0, 1, 2] {
        let (once, again) = (Scene::of(seed).run(), Scene::of(seed).run());
        assert_eq!((once.digest, once.jobs), (again.digest, again.jobs), "seed {seed}");
    }
}
