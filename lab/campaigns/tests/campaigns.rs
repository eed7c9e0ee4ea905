//! Runs every campaign under the seeds of an ordinary test run, and every mutant under its check.
//! `EVENFALL_SEEDS=100000` runs more seeds (`make test-long`), and `EVENFALL_SEED_FIRST` begins
//! later, so that a long campaign can be run in parts.

use std::collections::BTreeMap;

use evenfall_campaigns::CAMPAIGNS;
use evenfall_sim::AnyCampaign;

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
