//! A pool whose model is known is surveyed in the simulator, and the survey gives the model back.

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_campaigns::survey::pool::{PoolSpec, survey};
use evenfall_model::{Pair, PoolSurvey};
use evenfall_placement_machine::{Extent, ProbePace, TreeSurvey};
use evenfall_placement_planner::planner::{PlanMethod, Planner};

const HOSTS: u32 = 20;
const RATE_HZ: u32 = 1_000;
/// The numbers that are compared.
const KEYS: [&str; 7] = [
    "path.base_us",
    "path.wait.median_us",
    "path.wait.sigma",
    "path.sender_sigma",
    "path.receiver_sigma",
    "path.host_correlation",
    "path.direction_sigma",
];

/// The model that a survey of a pool in this cloud gives. `base` fills in what is not measured.
fn surveyed(truth: &Model, base: &Model, seed: u64) -> Model {
    let shape = evenfall_placement_planner::tree::TreeShape { depth: 1, fanout: 2 };
    let names = (0..HOSTS).map(|host| format!("h{host}")).collect();
    let pace = ProbePace { rate_hz: RATE_HZ, ..ProbePace::default() };
    let planner = Planner { seed, ..Planner::new(PlanMethod::Greedy, shape) };
    let mut program = TreeSurvey::new(planner, names, pace, Extent::AllPairs).keeping_records();
    survey(&PoolSpec::new(truth, HOSTS, seed), RATE_HZ, &mut program, &mut || false);
    let pairs = program.records().map(|(from, to, sent, record)| Pair {
        from,
        to,
        sent,
        record: record.clone(),
    });
    let pool = PoolSurvey {
        hosts: HOSTS as usize,
        pairs: pairs.collect(),
        seconds: pace.duration.as_secs_f64(),
        stack: Stack::Sockets,
        date: "2026-11-23".into(),
    };
    let text = pool.model("pool", base).expect("a model").to_toml();
    Model::parse("pool", &text).expect("the file that was written")
}

/// The results of a survey of `gcp`, less the parts that hosts alone add: no pauses and no slow
/// host, so that each number of the file has one true value.
fn truth() -> Model {
    let mut model = Model::named("gcp").expect("built in");
    model.host.stalls.clear();
    model.path.reroutes = None;
    model.path.straggler_share.is = 0.0;
    model
}

#[test]
fn a_survey_gives_the_parameters_of_its_cloud_within_the_stated_errors() {
    let (truth, base) = (truth(), Model::named("aws").expect("built in"));
    let mut outside = Vec::new();
    for seed in 1..=4 {
        let found = surveyed(&truth, &base, seed);
        let errors = found.numbers();
        for key in KEYS {
            let (is, true_value) = (found.number(key).expect(key), truth.number(key).expect(key));
            let error = errors.iter().find(|(name, _)| name == key).and_then(|(_, error)| *error);
            let (error, off) = (error.expect(key) * is, (is - true_value).abs());
            if off > error {
                outside.push(format!("{seed} {key}: {is} +- {error:.3}, not {true_value}"));
            }
            // Twice the stated error is no luck.
            assert!(off < 2.0 * error + 0.05 * true_value, "{key} {is} {error} {true_value}");
        }
        // A few probes of 420,000 are lost, or none.
        assert!((1e-7..2e-5).contains(&found.path.random_loss.is), "{:?}", found.path.random_loss);
        assert!(found.host.cores.source.starts_with("not measured, as aws"));
    }
    // One of twenty intervals misses its value, and 28 are looked at.
    assert!(outside.len() <= 5, "{outside:#?}");
}

#[test]
fn a_simulated_multicast_on_the_surveyed_model_has_the_latency_of_the_cloud() {
    let (truth, base) = (truth(), Model::named("aws").expect("built in"));
    let found = surveyed(&truth, &base, 1);
    let median = |model: &Model| {
        let params = OverlayParams {
            receivers: 200,
            rate: 1_000.0,
            duration: std::time::Duration::from_secs(1),
            ..OverlayParams::default()
        };
        run(&params.on(model, Stack::Sockets)).results.oml_us.p50
    };
    let (there, here) = (median(&truth), median(&found));
    assert!((here / there - 1.0).abs() < 0.15, "{here}, not {there}");
}
