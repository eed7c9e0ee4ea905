//! Canopus and its rivals over sites and racks answer every request within the bounds of their
//! network.

use std::time::Duration;

use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_campaigns::consensus::wide::{RACK_LIMIT, Scenario, WideOutcome};
use evenfall_campaigns::model::Model;

fn at_three_sites(protocol: Protocol, conflicts: f64) -> WideOutcome {
    let watched = Duration::from_millis(100);
    Scenario { protocol, conflicts, watched, ..Scenario::sites(3) }.run()
}

#[test]
fn every_protocol_answers_all_requests_after_a_round_trip_of_its_quorum() {
    for protocol in Protocol::ALL {
        let outcome = at_three_sites(protocol, 0.0);
        let done = outcome.writes_per_s + outcome.reads_per_s;
        assert!((99_000.0..101_000.0).contains(&done), "{protocol}: {done} of 100,000 requests");
        // The nearest two sites are 60 ms apart; the clients add .2 ms.
        let least = outcome.write_times.quantile(0.01);
        assert!(least >= Duration::from_millis(60), "{protocol}: a commit in {least:?}");
        let most = outcome.write_times.quantile(1.0);
        assert!(most < Duration::from_millis(300), "{protocol}: a commit in {most:?}");
    }
}

#[test]
fn every_protocol_answers_over_the_paths_and_hosts_of_a_model() {
    let model = Model::named("aws").ok();
    for protocol in Protocol::ALL {
        let watched = Duration::from_millis(100);
        let scenario = Scenario { protocol, watched, model: model.clone(), ..Scenario::sites(3) };
        let outcome = scenario.run();
        let done = outcome.writes_per_s + outcome.reads_per_s;
        assert!(done > 98_000.0, "{protocol}: {done} of 100,000 requests");
        assert!(outcome.median() > Duration::from_millis(60), "{protocol}");
    }
    let racks = Scenario { watched: Duration::from_millis(50), model, ..Scenario::racks(3) };
    let seeds = [1, 2].map(|seed| Scenario { seed, ..racks.clone() }.run().median());
    assert!(seeds[0] != seeds[1], "the network of a model has its seed: {seeds:?}");
}

#[test]
fn a_tree_of_height_three_pays_one_more_round() {
    let scenario = |is_high| {
        let watched = Duration::from_millis(50);
        Scenario { watched, is_high, ..Scenario::many_racks(9, 3) }.run()
    };
    let [flat, high] = [false, true].map(scenario);
    let done = high.writes_per_s + high.reads_per_s;
    assert!((99_000.0..101_000.0).contains(&done), "{done} of 100,000 requests");
    assert!(high.median() > flat.median(), "{:?} {:?}", high.median(), flat.median());
    assert!(high.median() < RACK_LIMIT, "{:?}", high.median());
}

#[test]
fn epaxos_commits_later_when_writes_have_a_key_in_common() {
    let [apart, common] =
        [0.0, 1.0].map(|conflicts| at_three_sites(Protocol::Epaxos, conflicts).median());
    assert!(common > apart + Duration::from_millis(20), "{apart:?} and {common:?}");
}

#[test]
fn cores_share_a_run_with_the_results_of_one_core() {
    for protocol in [Protocol::Canopus, Protocol::Epaxos] {
        let run = |cores| {
            let watched = Duration::from_millis(20);
            Scenario { protocol, watched, cores, ..Scenario::racks(3) }.run()
        };
        let [one, two] = [1, 2].map(|cores| format!("{:?}", run(cores)));
        assert!(one == two, "{protocol}: two cores have another outcome than one");
    }
}
