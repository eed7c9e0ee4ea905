//! The figures of a run as a table on a terminal.

use std::fmt::Write as _;

use evenfall_core::Summary;
use evenfall_multicast_machine::fairness::Results;

/// A row of percentiles in microseconds.
fn row(text: &mut String, name: &str, s: &Summary) {
    let _ =
        writeln!(text, "  {name:<18}{:>11.1}{:>11.1}{:>11.1}{:>11.1}", s.p50, s.p90, s.p99, s.max);
}

/// The figures, several lines.
pub fn table(r: &Results) -> String {
    let mut text = format!(
        "{} messages to {} receivers: {} delivered, {} lost, {} repaired, {} duplicates dropped\n",
        r.messages, r.receivers, r.delivered, r.lost, r.repaired, r.duplicates_dropped
    );
    if let Some(on_time) = r.on_time_fraction {
        let _ = writeln!(text, "on time at every receiver: {:.3} % of messages", on_time * 100.0);
    }
    let _ = writeln!(text, "  {:<18}{:>11}{:>11}{:>11}{:>11}", "us", "p50", "p90", "p99", "max");
    row(&mut text, "OML, un-held", &r.oml_us);
    row(&mut text, "OML, held", &r.held_oml_us);
    row(&mut text, "delivery window", &r.window_us);
    row(&mut text, "release lateness", &r.release_late_us);
    row(&mut text, "wait", &r.wait_us);
    row(&mut text, "margin", &r.margin_us);
    let error = serde_json::to_value(r.clock_error_us).unwrap_or_default();
    let _ = writeln!(text, "  clock error between hosts: {error} us");
    text
}
