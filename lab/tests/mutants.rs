//! Every checker catches its mutant, and soon.

use evenfall_lab::multicast::checks::Check;
use evenfall_lab::multicast::faults::Scene;
use evenfall_lab::multicast::mutants::Mutant;

/// Seeds within which a mutant must be caught by the checker that is meant for it. Repair can only
/// be
/// judged where nothing is ever down, which one seed in fifty or so is.
const SEEDS: u64 = 400;
/// Seeds of these that are run without mutants here; the fault campaign runs them all.
const SEEDS_WITHOUT: u64 = 60;

#[test]
fn every_checker_catches_its_mutant() {
    // Those two have scenes of their own.
    let own = [Check::Siblings, Check::Switched];
    for (mutant, check) in Mutant::ALL.into_iter().filter(|(_, check)| !own.contains(check)) {
        let caught = (0..SEEDS).find(|seed| {
            let mut scene = Scene::of(*seed);
            scene.mutant = Some(mutant);
            scene.run().violations.iter().any(|violation| violation.check == check)
        });
        println!("{mutant:?} is caught by {check:?} under seed {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught by {check:?} in {SEEDS} seeds");
    }
}

#[test]
fn the_same_seeds_pass_without_mutants() {
    for seed in 0..SEEDS_WITHOUT {
        let violations = Scene::of(seed).run().violations;
        assert!(violations.is_empty(), "seed {seed}: {violations:?}");
    }
}

#[test]
fn siblings_of_a_slow_receiver_do_not_notice_unless_it_is_served_first() {
    let mut caught = false;
    for seed in 0..5 {
        let mut scene = Scene::with_a_slow_receiver(seed);
        let verdict = scene.run();
        assert!(verdict.violations.is_empty(), "seed {seed}: {:?}", verdict.violations);
        scene.mutant = Some(Mutant::ServesTheSlowFirst);
        caught |= scene.run().violations.iter().any(|v| v.check == Check::Siblings);
    }
    assert!(caught, "the mutant was not caught");
}

#[test]
fn a_slow_proxy_is_replaced_and_nobody_misses_a_frame_unless_it_is_let_go_too_soon() {
    for seed in 0..6 {
        let mut scene = Scene::with_a_slow_proxy(seed);
        let verdict = scene.run();
        assert!(verdict.violations.is_empty(), "seed {seed}: {:?}", verdict.violations);
        assert_eq!((verdict.replacements, verdict.lost), ([1, 1, 0, 0], 0), "seed {seed}");
        scene.mutant = Some(Mutant::BreaksBeforeMaking);
        let caught = scene.run().violations.iter().any(|v| v.check == Check::Switched);
        assert!(caught, "seed {seed}: the mutant was not caught");
    }
}
