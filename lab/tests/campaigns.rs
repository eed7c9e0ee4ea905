//! The command that runs and tells campaigns, and what the levels of the store promise.

use std::process::Command;

use evenfall_campaigns::{CAMPAIGNS, store};
use evenfall_store_engine::StoreAckLevel;

#[test]
fn what_each_level_of_the_store_waits_for_has_a_check_in_the_campaign_of_the_store() {
    for wait in StoreAckLevel::ALL.iter().flat_map(|level| level.waits()) {
        let name = format!("{wait:?}");
        let known = store::OF_WAITS.iter().any(|(of, _)| *of == name);
        assert!(known, "no check of lab/campaigns/src/store.rs proves what {name} promises");
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
