//! Receivers that leave arrivals in their sockets for a while still release every message in time.

use core::time::Duration;

use evenfall_campaigns::multicast::{OverlayParams, OverlayRun, run};

fn moderated(moderation: Duration) -> OverlayRun {
    let mut params = OverlayParams { receivers: 20, ..OverlayParams::default() };
    params.duration = Duration::from_secs(1);
    params.host.moderation = moderation;
    run(&params)
}

#[test]
fn arrivals_that_wait_until_the_next_release_make_no_release_late() {
    let (at_once, waiting) = (moderated(Duration::ZERO), moderated(Duration::from_millis(20)));
    for run in [&at_once, &waiting] {
        assert!(run.finished);
        assert_eq!(run.results.lost, 0);
    }
    // A different digest shows that inputs came in another order, so arrivals did wait.
    assert_ne!(at_once.digest, waiting.digest);
    let late = |run: &OverlayRun| run.results.release_late_us.p99;
    // Reading the waiting arrivals takes some microseconds of processor time.
    assert!(late(&waiting) < late(&at_once) + 50.0, "{}, {}", late(&waiting), late(&at_once));
}
