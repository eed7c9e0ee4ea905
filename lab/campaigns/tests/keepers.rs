//! Receivers release by clocks that they found over the network.

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_multicast_machine::Mode;

#[test]
fn receivers_release_together_by_clocks_that_they_found_over_the_network() {
    let model = Model::named("quiet").expect("built in");
    let mut params = OverlayParams {
        receivers: 8,
        rate: 500.0,
        duration: core::time::Duration::from_millis(400),
        warm_up: core::time::Duration::from_millis(400),
        keepers: true,
        ..OverlayParams::default()
    }
    .on(&model, Stack::KernelBypass);
    params.config.mode = Mode::Release;
    let done = run(&params);
    assert!(done.finished);
    let clocks = done.clocks.expect("hosts have keepers");
    assert!(clocks.p99_us > 0.0 && clocks.p99_us < 3.0, "{clocks:?}");
    assert!(clocks.within > 0.99, "{clocks:?}");
    let results = done.results;
    assert!(results.p_f.is_some_and(|p_f| p_f > 0.9), "{results:?}");
    // The window is in true time, so that the errors of the clocks show in it.
    assert!(results.window_us.p50 < 4.0, "{results:?}");
}
