use evenfall_core::Prng;

use super::*;
use crate::trace::{Path, Queue, ZERO, ours};

/// What two nodes know of each other after `windows` windows over queues at this load, and the
/// error of the last estimate at its middle.
fn run(load: f64, offset_ns: i64, rate: f64, seed: u64) -> (PairEstimate, f64) {
    let config = Config::default();
    let mut prng = Prng::new(seed);
    let mut path = Path::new(Queue::new(load, 25_000), Queue::new(load, 25_000), offset_ns, rate);
    let mut meter = PairMeter::default();
    let mut last = None;
    for window in 1..=4u64 {
        let end = window * 2_000_000_000;
        path.fill(&mut meter, (end - 2_000_000_000, end), &config, &mut prng);
        last = Some(meter.close(ours(end), &config).expect("a line fits"));
    }
    let estimate = last.expect("four windows");
    let truth = path.difference(estimate.middle);
    (estimate, (estimate.offset_ns as i128 - truth) as f64)
}

#[test]
fn an_estimate_is_within_nanoseconds_on_a_quiet_path_and_microseconds_on_a_full_one() {
    for (load, most) in [(0.0, 5.0), (0.5, 5.0), (0.9, 5_000.0)] {
        for seed in 0..10 {
            let (_, error) = run(load, 20_000_000, 1e-5, seed);
            assert!(error.abs() < most, "load {load}, seed {seed}: {error} ns");
        }
    }
}

#[test]
fn an_offset_of_thirty_years_costs_no_precision() {
    let years = 30 * 31_557_600 * 1_000_000_000i64;
    let near = run(0.5, 0, -4e-5, 3);
    for offset in [years, -1_000_000, 3_600_000_000_000] {
        let far = run(0.5, offset, -4e-5, 3);
        assert!((far.1 - near.1).abs() <= 1.0, "{} and {}", far.1, near.1);
    }
}

#[test]
fn the_truth_lies_within_the_proven_bounds_and_stays_there_for_two_windows() {
    for load in [0.0, 0.5, 0.9] {
        for seed in 0..20 {
            let config = Config::default();
            let (estimate, _) = run(load, -7_000_000, 3e-5, seed);
            for age in [0u64, 1_000_000_000, 4_000_000_000] {
                let at = estimate.end + Duration::from_nanos(age);
                let truth = -7_000_000.0 + 3e-5 * (at.nanos() - ZERO as u64) as f64;
                let bend = config.bend_ns(age as f64);
                let low = estimate.proven_ns[0] as f64 + estimate.proven_rate[0] * age as f64;
                let high = estimate.proven_ns[1] as f64 + estimate.proven_rate[1] * age as f64;
                assert!(low - bend <= truth && truth <= high + bend, "{low} {truth} {high}");
            }
        }
    }
}

#[test]
fn a_step_within_a_window_drops_the_window_and_the_next_ones_are_right() {
    let config = Config::default();
    for step in [200_000, -200_000, 10_000_000_000, -3_600_000_000_000] {
        let mut prng = Prng::new(9);
        let mut path = Path::new(Queue::new(0.0, 25_000), Queue::new(0.0, 25_000), 0, 0.0);
        let mut meter = PairMeter::default();
        let mut outcomes = Vec::new();
        for window in 0..5u64 {
            let start = window * 2_000_000_000;
            if window == 2 {
                path.fill(&mut meter, (start, start + 1_000_000_000), &config, &mut prng);
                path.step(step);
                path.fill(
                    &mut meter,
                    (start + 1_000_000_000, start + 2_000_000_000),
                    &config,
                    &mut prng,
                );
            } else {
                path.fill(&mut meter, (start, start + 2_000_000_000), &config, &mut prng);
            }
            let end = ours(start + 2_000_000_000);
            outcomes.push(meter.close(end, &config).map(|estimate| estimate.offset_ns));
        }
        assert!(outcomes[..2].iter().all(|offset| offset.is_ok_and(|ns| ns.abs() < 60)));
        assert_eq!(outcomes[2], Err(Gap::Crossed), "step {step}");
        let after = |offset: &Result<i64, Gap>| offset.is_ok_and(|ns| (ns - step).abs() < 60);
        assert!(outcomes[3..].iter().all(after), "step {step}: {outcomes:?}");
    }
}

#[test]
fn pairs_that_a_queue_touched_do_not_count() {
    let at = |ns: [u64; 2]| ns.map(Timestamp::from_nanos);
    let pair = CodedPair { sent: at([0, 20_000]), received: at([1_000_000, 1_021_500]) };
    assert_eq!(pair.strain_ns(), 1_500);
    let backwards = CodedPair { sent: at([0, 20_000]), received: at([u64::MAX, 0]) };
    assert_eq!(backwards.strain_ns(), u64::MAX, "any stamps have a strain");
    let mut meter = PairMeter::default();
    meter.outgoing(pair, Duration::from_nanos(500));
    assert_eq!((meter.all.upper.len(), meter.coded.upper.len()), (2, 0));
}

#[test]
fn a_way_that_is_silent_gives_no_estimate() {
    let at = |ns: [u64; 2]| ns.map(Timestamp::from_nanos);
    let mut meter = PairMeter::default();
    let config = Config::default();
    assert_eq!(meter.close(Timestamp::from_nanos(9), &config), Err(Gap::Silent));
    meter.outgoing(CodedPair { sent: at([0, 5]), received: at([7, 12]) }, config.tolerance);
    assert_eq!(meter.close(Timestamp::from_nanos(9), &config), Err(Gap::Silent));
}
