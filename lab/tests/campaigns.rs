//! Runs every campaign under the seeds of an ordinary test run, and every mutant under its check.
//! `EVENFALL_SEEDS=100000` runs more seeds (`make test-long`), and `EVENFALL_SEED_FIRST` begins
//! later, so that a long campaign can be run in parts.

use std::collections::BTreeMap;
use std::process::Command;

use evenfall_lab::campaigns::{ALL, by_name};

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number of seeds")))
}

fn prove(name: &str) {
    let (first, seeds) = (setting("EVENFALL_SEED_FIRST"), setting("EVENFALL_SEEDS"));
    prove_seeds(name, first.unwrap_or(0), seeds);
}

/// Runs this many seeds. `None` runs the seeds of an ordinary test run.
fn prove_seeds(name: &str, first: u64, seeds: Option<u64>) {
    let campaign = by_name(name).expect("a campaign");
    let seeds = first..first + seeds.unwrap_or_else(|| campaign.seeds());
    match campaign.prove(Some(seeds.clone()), &mut |_| {}) {
        Ok(coverage) => println!("campaign {name}: seeds {seeds:?} pass\n{coverage}"),
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn nothing_forbidden_happens_under_any_fault_of_the_overlay() {
    prove("multicast");
}

#[test]
fn nobody_misses_a_frame_that_a_recorder_has() {
    prove("recorder");
}

#[test]
fn siblings_of_a_slow_receiver_do_not_notice() {
    // On a quiet network the seeds differ mainly in their clocks, so a few seeds are enough.
    prove_seeds("slow-receiver", 0, None);
}

#[test]
fn a_slow_proxy_is_replaced_and_nobody_misses_a_frame() {
    prove_seeds("slow-proxy", 0, None);
}

#[test]
fn every_survey_ends_with_a_plan_or_a_clear_error() {
    prove("survey");
}

#[test]
fn messages_arrive_whole_and_once_or_the_failure_names_the_dead_rank() {
    prove("shuffle");
}

#[test]
fn calls_end_once_with_the_right_outcome_or_name_the_dead_rank() {
    prove("group");
}

#[test]
fn acknowledged_means_readable_after_any_crash() {
    prove("store");
}

#[test]
fn all_replicas_have_one_order_and_reads_see_it() {
    prove("order");
}

#[test]
fn every_mutant_is_caught_by_its_check() {
    for campaign in ALL {
        for caught in campaign.catch().unwrap_or_else(|why| panic!("{why}")) {
            println!("campaign {}: {caught:?}", campaign.name());
        }
    }
}

/// Words that no campaign uses. Campaigns of one protocol share their words.
fn unused(words: impl Iterator<Item = (String, bool)>) -> Vec<String> {
    let mut used = BTreeMap::new();
    for (word, is_used) in words {
        *used.entry(word).or_insert(false) |= is_used;
    }
    used.into_iter().filter(|(_, is_used)| !is_used).map(|(word, _)| word).collect()
}

#[test]
fn every_check_has_a_mutant_and_every_mutant_is_run() {
    let unproved = unused(ALL.iter().flat_map(|campaign| campaign.checks()));
    assert!(unproved.is_empty(), "no mutant proves {unproved:?}");
    let idle = unused(ALL.iter().flat_map(|campaign| campaign.mutants()));
    assert!(idle.is_empty(), "no campaign runs {idle:?}");
}

/// Output, errors and success of `evenfall sim campaign`.
fn command(arguments: &str) -> (String, String, bool) {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_evenfall-lab"));
    lab.args(["sim", "campaign"]).args(arguments.split(' '));
    let output = lab.output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}

#[test]
fn one_command_lists_all_campaigns_and_tells_a_seed_of_any() {
    let (list, _, fine) = command("--list");
    assert!(fine && ALL.iter().all(|campaign| list.contains(&format!("{}: ", campaign.name()))));
    for campaign in ALL {
        let name = campaign.name();
        let (told, complaint, fine) = command(&format!("{name} --seed 1"));
        assert!(fine, "{name}: {complaint}");
        assert!(told.contains("seed 1: 0 violations, digest "), "{name}: {told}");
    }
    let (_, complaint, fine) = command("multicats --seed 1");
    assert!(!fine && complaint.contains("there is no campaign \"multicats\""), "{complaint}");
}

#[test]
fn a_mutant_is_told_with_the_check_that_caught_it_and_the_command_fails() {
    let (told, complaint, fine) = command("shuffle --seed 7 --mutant blames-another");
    assert!(!fine && complaint.contains("campaign shuffle: seed 7: "), "{complaint}");
    assert!(told.contains("VIOLATION named rank"), "{told}");
    assert!(told.contains("these faults alone:\n  0.0"), "{told}");
    assert!(told.contains("Crash("), "{told}");
}

#[test]
fn the_old_flag_of_the_multicast_command_tells_the_same_seed() {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_evenfall-lab"));
    let output = lab.args(["sim", "multicast", "--faults", "--seed", "1"]).output();
    let told = String::from_utf8_lossy(&output.expect("the program runs").stdout).into_owned();
    assert_eq!(told, command("multicast --seed 1").0);
}
