use super::*;

fn run(params: &ClockParams) -> ClockResults {
    super::run(params, &mut |_, _| {})
}

fn short() -> ClockParams {
    ClockParams { nodes: 30, duration: Duration::from_secs(5), ..ClockParams::default() }
}

#[test]
fn readings_keep_their_bounds_at_every_load_and_beat_both_rivals() {
    for load in [0.0, 0.5, 0.9] {
        let mut params = short();
        params.paths.load = load;
        let results = run(&params);
        assert!(results.proven_coverage == 1.0, "load {load}: {results:?}");
        assert!(results.coverage >= 0.999, "load {load}: {results:?}");
        let most = if load > 0.8 { 3.0 } else { 0.2 };
        // The paths of this study are equal both ways, so that nothing excuses a larger error.
        let errors = [&results.error_us, &results.whole_error_us];
        assert!(errors.iter().all(|error| error.p99 < most), "load {load}: {results:?}");
        // A bound that is true because it is wide is of no use. Half a round trip is 100 us here.
        assert!(results.assumed_us.p99 < 10.0, "load {load}: {results:?}");
        assert!(results.proven_us.p99 < 300.0, "load {load}: {results:?}");
        if load > 0.0 {
            assert!(results.ntp_error_us.p99 > results.error_us.p99, "load {load}: {results:?}");
            assert!(results.ptp_error_us.p99 > results.error_us.p99, "load {load}: {results:?}");
        }
    }
}

#[test]
fn one_liar_in_ten_is_named_and_one_seed_gives_one_result() {
    let params = ClockParams { liars: 0.1, ..short() };
    let results = run(&params);
    assert_eq!(results.liars, [3, 3, 0], "{results:?}");
    assert_eq!(results, run(&params));
}

#[test]
fn the_paths_and_clocks_of_a_model_keep_the_proven_bounds() {
    let model = evenfall_campaigns::model::Model::named("gcp").expect("built in");
    let results = run(&ClockParams { model: Some(model), ..short() });
    assert!(results.proven_coverage == 1.0, "{results:?}");
    // The asymmetry of the model's pairs is a tenth of a delay of 70 us.
    assert!(results.whole_error_us.p99 > 2.0 * run(&short()).whole_error_us.p99, "{results:?}");
    assert!(results.whole_error_us.p99 < results.assumed_us.p99, "{results:?}");
}

#[test]
fn clocks_of_the_study_with_all_parts_are_those_of_the_machines() {
    let without = [&[PartsLeftOut::default()], &PartsLeftOut::EACH_AND_ALL[..]].concat();
    let results = run(&ClockParams { without, ..short() });
    let errors = |parts: &str| results.without_us[parts];
    // A verdict takes some 20 us from the reference to its node.
    let apart = (errors("").p99 - results.whole_error_us.p99).abs();
    assert!(apart < 0.002, "{results:?}");
    assert_eq!(errors("").p50, results.whole_error_us.p50, "{results:?}");
    // Without all parts the clocks are far worse, and each part alone helps.
    let whole = results.whole_error_us.p99;
    assert!(errors("codes+hulls+loops").p99 > 10.0 * whole, "{results:?}");
    assert!(errors("hulls").p99 > 2.0 * whole, "{results:?}");
    assert!(errors("loops").p99 > whole, "{results:?}");
}

#[test]
fn bounds_hold_in_a_fat_tree_whose_flows_are_hashed() {
    let mut params = short();
    params.paths.fabric = Some(paths::FabricSpec::default());
    let results = run(&params);
    assert!(results.proven_coverage == 1.0, "{results:?}");
    assert!(results.coverage >= 0.999, "{results:?}");
    assert!(results.whole_error_us.p99 < 1.0, "{results:?}");
}
