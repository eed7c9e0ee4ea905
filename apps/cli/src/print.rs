//! How results look on a terminal.

use evenfall_core::Summary;
use evenfall_multicast_machine::fairness::Results;

/// A number of things, as people say it.
pub fn counted(number: usize, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        _ => format!("{number} {thing}s"),
    }
}

/// A row of percentiles in microseconds.
fn row(name: &str, s: &Summary) {
    println!("  {name:<18}{:>11.1}{:>11.1}{:>11.1}{:>11.1}", s.p50, s.p90, s.p99, s.max);
}

/// Prints the figures of a run.
pub fn results(r: &Results) {
    println!(
        "{} messages to {} receivers: {} delivered, {} lost, {} repaired, {} duplicates dropped",
        r.messages, r.receivers, r.delivered, r.lost, r.repaired, r.duplicates_dropped
    );
    if let Some(on_time) = r.on_time_fraction {
        println!("on time at every receiver: {:.3} % of messages", on_time * 100.0);
    }
    println!("  {:<18}{:>11}{:>11}{:>11}{:>11}", "us", "p50", "p90", "p99", "max");
    row("OML, un-held", &r.oml_us);
    row("OML, held", &r.held_oml_us);
    row("delivery window", &r.window_us);
    row("release lateness", &r.release_late_us);
    row("wait", &r.wait_us);
    row("margin", &r.margin_us);
    let error = serde_json::to_value(r.clock_error_us).unwrap_or_default();
    println!("  clock error between hosts: {error} us");
}
