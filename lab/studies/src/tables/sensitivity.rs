//! Which headline moves by how much when a number of the model is wrong by its error.
//!
//! Every number is made larger and smaller by its error, under the same seeds. A cell is half of
//! the difference of the two, in percent of the headline on the model as it is. The difference is
//! taken seed by seed, so that the interval is that of the difference.

use evenfall_campaigns::model::Model;
use evenfall_campaigns::multicast::OverlayRun;
use evenfall_campaigns::seeds::mean_and_half_width;
use evenfall_core::Hedging;
use evenfall_multicast_machine::Mode;

use super::overlay::{Effort, hold_ratio};
use super::{Table, columns};

/// The error of a number that states none, as a part of the number.
const ERROR: f64 = 0.2;
/// Receivers of every run.
const RECEIVERS: u32 = 100;
const HEADLINES: [&str; 6] =
    ["tree p50", "tree p99", "hedge p99", "hedge window p50", "P(F)", "held p50 / un-held p99"];

type Headlines = [f64; HEADLINES.len()];

/// The headlines on a model, by seed.
fn headlines(effort: &Effort, name: &str, progress: &mut dyn FnMut(&str)) -> Vec<Headlines> {
    let tree = effort.params(RECEIVERS, Mode::Tree, Hedging::NONE);
    let tree = effort.each(&tree, progress, name, |run: &OverlayRun| {
        [run.results.oml_us.p50, run.results.oml_us.p99]
    });
    // Un-held latencies do not depend on the hold, so a run that holds tells both.
    let held = effort.params(RECEIVERS, Mode::Release, Hedging(2));
    let held = effort.each(&held, progress, name, |run: &OverlayRun| {
        let results = &run.results;
        let ratio = hold_ratio(run).unwrap_or(f64::NAN);
        let window = results.arrival_window_us.p50;
        [results.oml_us.p99, window, results.p_f.unwrap_or(f64::NAN), ratio]
    });
    let both = tree.into_iter().zip(held);
    both.map(|([p50, p99], [hedge, window, p_f, ratio])| [p50, p99, hedge, window, p_f, ratio])
        .collect()
}

/// A row for every number of the model that moves a headline, the largest effect first.
pub fn table(effort: &Effort, progress: &mut dyn FnMut(&str)) -> Table {
    // A warm-up of half a second keeps the study short. The rule for the hold has not finished
    // learning then.
    let effort = &Effort { warm_up: effort.warm_up.min(2_500), ..effort.clone() };
    let base = headlines(effort, "the model as it is", progress);
    let base_mean: Vec<f64> = (0..HEADLINES.len())
        .map(|at| base.iter().map(|seed| seed[at]).sum::<f64>() / base.len() as f64)
        .collect();
    let mut rows: Vec<(String, Vec<Option<f64>>, f64)> = Vec::new();
    let (mut idle, mut refused) = (Vec::new(), Vec::new());
    for (key, error) in effort.model.numbers() {
        if key.starts_with("stack.") && !key.starts_with(&format!("stack.{}.", effort.stack)) {
            continue;
        }
        let error = error.unwrap_or(ERROR);
        let mut at = |factor: f64, seeds: u32| {
            let model: Model = effort.model.scaled(&key, factor).ok()?;
            Some(headlines(&Effort { model, seeds, ..effort.clone() }, &key, progress))
        };
        // A number without effect gives the same runs. To save time, one seed tells.
        let mut is_base = |factor| at(factor, 1).map(|side| Some(&side[..]) == base.get(..1));
        match (is_base(1.0 + error), is_base(1.0 - error)) {
            (None, None) => {
                refused.push(key);
                continue;
            }
            (Some(false), _) | (_, Some(false)) => {}
            _ => {
                idle.push(key);
                continue;
            }
        }
        let mut at = |factor| at(factor, effort.seeds);
        let (more, less) = (at(1.0 + error), at(1.0 - error));
        // A number at the end of its range moves to one side.
        let sides = f64::from(u8::from(more.is_some()) + u8::from(less.is_some())).max(1.0);
        let (more, less) = (more.unwrap_or(base.clone()), less.unwrap_or(base.clone()));
        let mut values = Vec::new();
        let mut largest: f64 = 0.0;
        for at in 0..HEADLINES.len() {
            let moved = more.iter().zip(&less).map(|(more, less)| more[at] - less[at]);
            let percent: Vec<f64> =
                moved.map(|moved| 100.0 * moved / sides / base_mean[at]).collect();
            let (mean, half) = mean_and_half_width(&percent);
            let beyond_chance = mean.unwrap_or(0.0).abs() - half.unwrap_or(f64::INFINITY);
            largest = largest.max(beyond_chance);
            values.extend([mean, half]);
        }
        rows.push((format!("{key}, {:.0} %", 100.0 * error), values, largest));
    }
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    let heads = columns("number, its error", &HEADLINES.map(|name| (None, name)));
    let method = format!(
        "{}; {RECEIVERS} receivers, the hedged runs with H=2; cells are percent by which the \
         headline moves when the number grows by its error. Without effect in the first seed: {}. \
         Not changed, because no model may have such a number: {}",
        effort.method(),
        listed(&idle),
        listed(&refused)
    );
    let mut table = Table::new("Sensitivity of the headlines", method, &heads);
    table.row(
        "the model as it is, no percent".into(),
        (0..HEADLINES.len()).flat_map(|at| {
            let values: Vec<f64> = base.iter().map(|seed| seed[at]).collect();
            let (mean, half) = mean_and_half_width(&values);
            [mean, half]
        }),
    );
    rows.into_iter().for_each(|(name, values, _)| table.row(name, values));
    table
}

/// These keys, in a line.
fn listed(keys: &[String]) -> String {
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}
