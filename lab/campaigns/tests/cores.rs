//! A simulated multicast on several cores has the results of one core.

use core::time::Duration;

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_core::Hedging;
use evenfall_sim::{Cut, Fault, NodeIndex, Rates};

const MS: Duration = Duration::from_millis(1);

/// All results of a short run on the whole model of AWS, with faults, on this many cores.
fn outcome(seed: u64, cores: usize) -> String {
    let node = NodeIndex;
    let mut params = OverlayParams {
        receivers: 60,
        receivers_per_host: 2,
        trees: 2,
        rate: 2_000.0,
        duration: 120 * MS,
        warm_up: 20 * MS,
        seed,
        cores,
        faults: vec![
            (10 * MS, Fault::Slow(node(2), 4.0)),
            (15 * MS, Fault::OneWay(vec![node(5)], Cut::Deaf)),
            (20 * MS, Fault::Pause(node(9), 5 * MS)),
            (30 * MS, Fault::Heal),
            (40 * MS, Fault::Rates(Rates { loss: 0.01, ..Rates::default() })),
            (60 * MS, Fault::Rates(Rates::default())),
            (70 * MS, Fault::ClockStep(node(11), 40_000)),
        ],
        ..OverlayParams::default()
    };
    params = params.on(&Model::named("aws").expect("a built-in model"), Stack::Sockets);
    params.config.shape.hedging = Hedging(1);
    let run = run(&params);
    assert!(run.finished && run.results.messages == 240, "{:?}", run.results);
    format!("{run:?}")
}

#[test]
fn a_multicast_on_several_cores_has_the_results_of_one_core() {
    for seed in 1..=2 {
        let one = outcome(seed, 1);
        for cores in 2..=4 {
            assert!(outcome(seed, cores) == one, "seed {seed} on {cores} cores");
        }
    }
}
