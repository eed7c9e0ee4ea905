//! Runs every campaign under the seeds of an ordinary test run, and every mutant under its check.
//! `EVENFALL_SEEDS=100000` runs more seeds (`make test-long`), and `EVENFALL_SEED_FIRST` begins
//! later, so that a long campaign can be run in parts.

use std::collections::BTreeMap;
use std::process::Command;

use evenfall_lab::{CAMPAIGNS, store};
use evenfall_sim::AnyCampaign;
use evenfall_store_engine::Level;

/// The number in a variable of the environment.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number of seeds")))
}

/// Runs these seeds, or those of an ordinary test run.
fn prove(campaign: &dyn AnyCampaign, first: u64, seeds: Option<u64>) -> Result<(), String> {
    let end = first.saturating_add(seeds.unwrap_or_else(|| campaign.seeds()));
    let seeds = first.min(campaign.seeds_max())..end.min(campaign.seeds_max());
    let coverage = campaign.prove(Some(seeds.clone()), &mut |_| {})?;
    println!("campaign {}: seeds {seeds:?} pass\n{coverage}", campaign.name());
    Ok(())
}

#[test]
fn every_campaign_passes_its_seeds() {
    let (first, seeds) = (setting("EVENFALL_SEED_FIRST").unwrap_or(0), setting("EVENFALL_SEEDS"));
    // Beside each other: the last seeds of one campaign leave cores to the others.
    let failed: Vec<String> = std::thread::scope(|scope| {
        let start = |campaign: &&'static dyn AnyCampaign| {
            let campaign = *campaign;
            scope.spawn(move || prove(campaign, first, seeds))
        };
        let all: Vec<_> = CAMPAIGNS.iter().map(start).collect();
        all.into_iter().filter_map(|one| one.join().expect("a campaign's thread").err()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_mutant_is_caught_by_its_check() {
    for campaign in CAMPAIGNS {
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
    let unproved = unused(CAMPAIGNS.iter().flat_map(|campaign| campaign.checks()));
    assert!(unproved.is_empty(), "no mutant proves {unproved:?}");
    let idle = unused(CAMPAIGNS.iter().flat_map(|campaign| campaign.mutants()));
    assert!(idle.is_empty(), "no campaign runs {idle:?}");
}

#[test]
fn what_each_level_of_the_store_waits_for_has_a_check_in_the_campaign_of_the_store() {
    for wait in Level::ALL.iter().flat_map(|level| level.waits()) {
        let name = format!("{wait:?}");
        let known = store::OF_WAITS.iter().any(|(of, _)| *of == name);
        assert!(known, "no check of lab/src/store.rs proves what {name} promises");
    }
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
    assert!(
        fine && CAMPAIGNS.iter().all(|campaign| list.contains(&format!("{}: ", campaign.name())))
    );
    for campaign in CAMPAIGNS {
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
