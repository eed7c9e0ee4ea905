//! Compares several runs of one feed, and shows what holding gains and costs.
//!
//! The window at the arrival and the window at the release of one run belong to one design, so
//! neither is a baseline for the other. The baseline of a held run is a run of the same feed
//! without holding. Therefore the same feed is played in several modes, and all runs are judged by
//! the same stamp: the moment at which a receiver's program hands a message on. In a held run that
//! moment is the release.
//!
//! P(F) needs a deadline, and a run without a hold has none. Therefore all runs are judged by the
//! same allowance: the mean hold that the root of the held run set.

use std::path::Path;

use evenfall_multicast_report::{FairnessRow, Results};
use serde::Serialize;

use super::{Report, ReportError, read};

const SCRIPT: &str = include_str!("../../../../../web/compare.js");

/// One run among several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Name of the mode.
    pub mode: String,
    /// Share of messages that reached every receiver within the allowance, counted from sending.
    pub p_f_of_allowance: f64,
    /// All figures of the run.
    pub results: Results,
    /// CDF of the delivery window, microseconds and share.
    pub window: Vec<(f64, f64)>,
}

/// Several runs of one feed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The time that every message of every run is allowed to take, in microseconds.
    pub allowance_us: f64,
    /// In the order in which they were played.
    pub runs: Vec<Compared>,
}

/// The mean hold that the root set, over all messages; `None` when no message was held.
fn mean_hold_us(report: &Report) -> Option<f64> {
    let held = report.outcome.series.time.iter();
    let held = held.filter_map(|step| Some((step.hold_us?, step.messages as f64)));
    let (sum, messages) = held.fold((0.0, 0.0), |(sum, all), (us, n)| (sum + us * n, all + n));
    (messages > 0.0).then(|| sum / messages)
}

/// Compares runs. Each run is a mode and a directory. `held` is the report of the run whose hold is
/// the allowance.
///
/// # Errors
/// [`ReportError`] of the first run that has no report.
pub fn compare(held: &Report, runs: &[(String, &Path)]) -> Result<Comparison, ReportError> {
    let allowance_us = mean_hold_us(held).unwrap_or_default();
    let allowance_ns = (allowance_us * 1e3) as u64;
    let receivers = held.outcome.results.receivers;
    let mut compared = Vec::new();
    for (mode, directory) in runs {
        let mut on_time = 0_u64;
        let mut count = |row: &FairnessRow| {
            let took_ns = row.last_arrival_ns.saturating_sub(row.sent_ns);
            let is_on_time = u64::from(row.receivers) == receivers && took_ns <= allowance_ns;
            on_time += u64::from(is_on_time);
        };
        let report = read(directory, Some(&mut count))?;
        let results = report.outcome.results;
        compared.push(Compared {
            mode: mode.clone(),
            p_f_of_allowance: on_time as f64 / results.messages.max(1) as f64,
            results,
            window: report.outcome.series.window,
        });
    }
    Ok(Comparison { allowance_us, runs: compared })
}

impl Comparison {
    /// One sentence that compares the held run with the best run without holding.
    pub fn sentence(&self) -> String {
        let (held, free): (Vec<_>, Vec<_>) =
            self.runs.iter().partition(|run| run.results.p_f.is_some());
        let median = |run: &Compared| run.results.window_us.p50;
        let best = free.into_iter().min_by(|a, b| median(a).total_cmp(&median(b)));
        let (Some(held), Some(best)) = (held.last(), best) else {
            return "No run with a hold stands beside a run without a hold.".to_owned();
        };
        let (ours, theirs) = (median(held), median(best));
        let verdict = match theirs / ours {
            times if times >= 1.05 => format!("{times:.1} times more even than"),
            times if times > 0.95 => "as even as".to_owned(),
            times => format!("{:.1} times less even than", 1.0 / times),
        };
        format!(
            "Mode {} is {verdict} mode {}, the best that does not hold: the first and the last \
             receiver had a message {ours:.0} us apart against {theirs:.0} us (medians).",
            held.mode, best.mode
        )
    }

    /// The page of the held run, with the comparison before its own pictures.
    pub fn html(&self, held: &Report) -> String {
        let data = serde_json::json!({ "sentence": self.sentence(), "comparison": self });
        // As an escape, `<` cannot end the script element.
        let data = data.to_string().replace('<', "\\u003c");
        let added = format!(
            "<script type=\"application/json\" id=\"compared\">{data}</script>\n\
             <script>\n{SCRIPT}</script>\n</body>"
        );
        held.html().replacen("</body>", &added, 1)
    }
}
