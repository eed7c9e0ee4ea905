//! Readings of a noisy clock do not show in the figures of a run whose machines do not follow them.

use core::time::Duration;

use evenfall_campaigns::multicast::{OverlayParams, OverlayRun, run};
use evenfall_core::ClockError;

fn noisy(noise: Duration) -> OverlayRun {
    let mut params = OverlayParams { receivers: 20, ..OverlayParams::default() };
    params.duration = Duration::from_millis(500);
    params.host.clock.noise = noise;
    params.host.clock.stated = ClockError::Within(Duration::from_micros(200));
    run(&params)
}

#[test]
fn latencies_and_lateness_are_those_of_exact_readings() {
    let (exact, noisy) = (noisy(Duration::ZERO), noisy(Duration::from_micros(200)));
    let un_held = |run: &OverlayRun| run.results.oml_us.p50;
    // The hold follows the clocks, and with it which frames leave together.
    assert!((un_held(&noisy) / un_held(&exact) - 1.0).abs() < 0.1, "{}", un_held(&noisy));
    assert!(un_held(&noisy) < noisy.results.held_oml_us.p50);
    let late = |run: &OverlayRun| run.results.release_late_us.p50;
    assert!(late(&noisy) < late(&exact) + 5.0, "{}, {}", late(&noisy), late(&exact));
}
