//! Every campaign under the seeds of an ordinary test run, and every mutant under its check.
//! `EVENFALL_SEEDS=100000` runs more seeds (`make test-long`), and `EVENFALL_SEED_FIRST` begins
//! later, so that a long campaign can be run in parts.

use evenfall_lab::campaigns::by_name;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number of seeds")))
}

fn prove(name: &str) {
    let campaign = by_name(name).expect("a campaign");
    let (first, seeds) = (setting("EVENFALL_SEED_FIRST"), setting("EVENFALL_SEEDS"));
    let first = first.unwrap_or(0);
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
    prove("slow-receiver");
}

#[test]
fn a_slow_proxy_is_replaced_and_nobody_misses_a_frame() {
    prove("slow-proxy");
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
fn every_mutant_is_caught_by_its_check() {
    for campaign in evenfall_lab::campaigns::ALL {
        for caught in campaign.catch().unwrap_or_else(|why| panic!("{why}")) {
            println!("campaign {}: {caught:?}", campaign.name());
        }
    }
}
