//! The figures of a run as a table on a terminal.

use std::fmt::Write as _;

use evenfall_core::Summary;
use evenfall_multicast_report::{Between, Results};

/// A row of percentiles in microseconds. An empty sample has none.
fn row(text: &mut String, name: &str, s: &Summary) {
    let _ = match *s == Summary::EMPTY {
        true => writeln!(text, "  {name:<18}{:>11}{:>11}{:>11}{:>11}", "-", "-", "-", "-"),
        false => {
            let Summary { p50, p90, p99, max } = s;
            writeln!(text, "  {name:<18}{p50:>11.1}{p90:>11.1}{p99:>11.1}{max:>11.1}")
        }
    };
}

/// Two rows below a delivery window: the limits of the true window by the errors of the clocks.
/// Equal limits give no rows.
fn limits(text: &mut String, between: &Between) {
    let all = [between.p50, between.p90, between.p99, between.max];
    if all.iter().all(|[least, most]| least == most || least.is_nan()) {
        return;
    }
    for (name, which) in [("at least", 0), ("at most", 1)] {
        let _ = write!(text, "    {name:<16}");
        for limits in all {
            let _ = match limits[which] {
                us if us.is_finite() => write!(text, "{us:>11.1}"),
                _ => write!(text, "{:>11}", "unknown"),
            };
        }
        text.push('\n');
    }
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
    limits(&mut text, &r.window_between_us);
    row(&mut text, "release lateness", &r.release_late_us);
    row(&mut text, "wait", &r.wait_us);
    row(&mut text, "margin", &r.margin_us);
    if r.handed > 0 {
        row(&mut text, "handed on", &r.handed_us);
    }
    let _ = writeln!(text, "  clock error between hosts: {}", r.clock_error_us);
    text
}
