//! `evenfall demo --compare`: plays the same feed in several modes, one after the other, and
//! compares them.

use std::path::{Path, PathBuf};

use evenfall_multicast_machine::Mode;
use evenfall_multicast_service::report::compare::{Comparison, compare as set_side_by_side};

use super::{Args, Folder, once};
use crate::Outcome;
use evenfall_runtime::progress::Progress;

/// The modes in the order of play. Each adds a technique to the mode before, and the last one holds
/// messages.
const MODES: [Mode; 4] = [Mode::Unicast, Mode::Tree, Mode::Hedge, Mode::Release];

/// Plays the feed in every mode and prints the comparison.
pub fn compare(args: &Args, progress: &Progress) -> Outcome {
    let mut runs: Vec<(String, PathBuf)> = Vec::new();
    let (mut held, mut traded) = (None, Vec::new());
    for mode in MODES {
        let name = mode.to_string();
        progress.note(&format!("mode {name} ({} of {})", runs.len() + 1, MODES.len()));
        let run = Args { mode, dir: args.dir.join(&name), ..args.clone() };
        let _folder = Folder::take(&run.dir)?;
        let played = once(&run, progress).map_err(|error| format!("mode {name}: {error}"))?;
        traded.extend(played.traded.map(|outcome| (name.clone(), outcome)));
        held = Some(played.report);
        runs.push((name, run.dir));
    }
    let held = held.ok_or("no mode was played")?;
    let runs: Vec<(String, &Path)> =
        runs.iter().map(|(name, dir)| (name.clone(), &**dir)).collect();
    let comparison = set_side_by_side(&held, &runs)?;
    let page = args.dir.join("report.html");
    std::fs::write(&page, comparison.html(&held))
        .map_err(|error| format!("{}: {error}", page.display()))?;
    if args.json {
        let mut json = serde_json::to_value(&comparison)?;
        json["verdict"] = comparison.sentence().into();
        json["report"] = page.display().to_string().into();
        for (name, outcome) in &traded {
            json["trading"][name] = outcome.to_json();
        }
        say!("{json}");
        return Ok(());
    }
    show(&comparison);
    for (name, outcome) in &traded {
        say!("  profit, {name:<8} {}", outcome.say_shares());
    }
    if !args.lab {
        say!(
            "  The paths to two of five receivers were made 100 us and 300 us longer. The windows \
             without a hold show that. What is left with a hold is the scheduler of this \
             machine: `evenfall sim multicast --receivers 100 --duration 200ms` has 100 \
             machines of their own."
        );
    }
    say!("page: {}", page.display());
    Ok(())
}

/// A number of microseconds; a dash for none.
fn shown(us: f64) -> String {
    if us.is_nan() { "-".to_owned() } else { format!("{us:.1}") }
}

fn show(comparison: &Comparison) {
    say!("{}", comparison.sentence());
    say!(
        "  {:<9}{:>12}{:>12}{:>12}{:>12}{:>12}{:>10}{:>7}",
        "us",
        "window p50",
        "p99",
        "OML p50",
        "p99",
        "handed on",
        "P(F)",
        "lost"
    );
    for run in &comparison.runs {
        let r = &run.results;
        say!(
            "  {:<9}{:>12}{:>12}{:>12}{:>12}{:>12}{:>8.2} %{:>7}",
            run.mode,
            shown(r.window_us.p50),
            shown(r.window_us.p99),
            shown(r.oml_us.p50),
            shown(r.oml_us.p99),
            shown(r.held_oml_us.p50),
            run.p_f_of_allowance * 100.0,
            r.lost
        );
    }
    say!(
        "  P(F): share of messages that reached every receiver within {:.0} us, the mean \
         hold of the last mode",
        comparison.allowance_us
    );
}
