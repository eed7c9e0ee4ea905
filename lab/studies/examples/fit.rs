//! Fits a model to published rows, and judges it by others:
//! `cargo run --release -p evenfall-studies --example fit -- MODEL SEEDS [show | KEY...]`.
//!
//! With `show` nothing is fitted, and with keys only the numbers of these keys. Prints the numbers,
//! every row with ours beside it, and the errors of the rows that were in the fit and of those that
//! were not.

use std::time::Duration;

use evenfall_campaigns::model::{Model, Stack};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_core::math;
use evenfall_studies::published::{PublishedRow, ROWS};

/// Messages per row and seed while fitting: a 99th percentile of 15 samples a seed.
const MESSAGES_FIT: u32 = 1_500;
/// Messages per row and seed when rows are shown.
const MESSAGES_SHOWN: u32 = 5_000;
/// The published rate, messages per second.
const RATE: f64 = 5_000.0;
/// What the fit may change, by key.
const KEYS: [&str; 7] = [
    "path.base_us",
    "path.wait.median_us",
    "path.spikes.gap_ms",
    "path.spikes.length.least_us",
    "stack.kernel-bypass.card_ns",
    "host.stalls.0.gap_ms",
    "host.stalls.0.length.mean_us",
];
/// Factors of the steps of the descent.
const STEPS: [f64; 3] = [1.3, 1.15, 1.07];

/// A published value beside ours: the mean over seeds and half the width of its 95 % interval.
struct Pair {
    name: &'static str,
    published: f64,
    ours: f64,
    half: Option<f64>,
}

/// Published and simulated values of a row.
fn pairs(model: &Model, row: &PublishedRow, seeds: u64, messages: u32) -> Vec<Pair> {
    let one = |seed| {
        let mut params = OverlayParams {
            receivers: row.receivers,
            receivers_per_host: row.per_host,
            rate: RATE,
            duration: Duration::from_secs_f64(f64::from(messages) / RATE),
            warm_up: Duration::from_millis(20),
            seed,
            ..OverlayParams::default()
        }
        .on(model, Stack::KernelBypass);
        params.config.mode = row.mode;
        params.config.shape.depth = Some(row.depth);
        params.config.shape.fanout = Some(row.fanout);
        params.config.shape.hedging = evenfall_core::Hedging(row.hedging);
        let results = run(&params).results;
        let oml = results.oml_us;
        [oml.p50, oml.p90, oml.p99, results.arrival_window_us.p50]
    };
    let runs = in_parallel(1, seeds, one, |_| {});
    let published = row.oml.into_iter().chain([row.window]);
    let named = ["p50", "p90", "p99", "window"].into_iter().zip(published).enumerate();
    named
        .filter_map(|(at, (name, published))| {
            let values: Vec<f64> = runs.iter().map(|run| run[at]).collect();
            let (ours, half) = mean_and_half_width(&values);
            Some(Pair { name, published: published?, ours: ours?, half })
        })
        .collect()
}

fn square(pair: &Pair) -> f64 {
    math::square(math::ln(pair.ours / pair.published))
}

/// The sum of squared logarithms over the rows of the fit.
fn loss(model: &Model, seeds: u64) -> f64 {
    let rows = ROWS.iter().filter(|row| row.in_fit);
    rows.flat_map(|row| pairs(model, row, seeds, MESSAGES_FIT)).map(|pair| square(&pair)).sum()
}

/// Coordinate descent by factors that shrink.
fn fit(mut best: Model, keys: &[String], seeds: u64) -> Model {
    let mut least = loss(&best, seeds);
    for step in STEPS {
        let mut moved = true;
        while moved {
            moved = false;
            for key in keys {
                for factor in [step, 1.0 / step] {
                    let Ok(trial) = best.scaled(key, factor) else { continue };
                    let value = loss(&trial, seeds);
                    // Less than a thousandth is luck.
                    if value < least * 0.999 {
                        (best, least, moved) = (trial, value, true);
                        eprintln!("{least:.4} {key} {:.4}", best.number(key).unwrap_or(f64::NAN));
                        break;
                    }
                }
            }
        }
    }
    best
}

fn root_mean_square(errors: &[f64]) -> f64 {
    (errors.iter().sum::<f64>() / errors.len().max(1) as f64).sqrt()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::named(&arguments.next().unwrap_or("aws".into()))?;
    let seeds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let mut keys: Vec<String> = arguments.collect();
    let shown = keys.first().is_some_and(|key| key == "show");
    if keys.is_empty() {
        keys = KEYS.map(String::from).to_vec();
    }
    let model = if shown { model } else { fit(model, &keys, seeds) };
    for key in KEYS {
        println!("{key} {:.4}", model.number(key)?);
    }
    println!("{:<8} {:>5} {:>2} {:>4} {:>2}  published / ours", "mode", "N", "D", "F", "H");
    let (mut fitted, mut judged) = (Vec::new(), Vec::new());
    for row in &ROWS {
        let PublishedRow { mode, receivers, depth, fanout, hedging, .. } = row;
        let mode = format!("{mode:?}");
        print!("{mode:<8} {receivers:>5} {depth:>2} {fanout:>4} {hedging:>2}");
        let messages = if row.receivers > 1_000 { MESSAGES_FIT } else { MESSAGES_SHOWN };
        for pair in pairs(&model, row, seeds, messages) {
            let Pair { name, published, ours, half } = &pair;
            let percent = 100.0 * (ours / published - 1.0);
            let half = half.unwrap_or(f64::NAN);
            print!("  {name} {published:.0} / {ours:.0} +- {half:.0} ({percent:+.0} %)");
            let errors = if row.in_fit { &mut fitted } else { &mut judged };
            errors.push(square(&pair));
        }
        println!("{}", if row.in_fit { "" } else { "  judges" });
    }
    println!(
        "root mean square of the logarithm: {:.3} over {} values in the fit, {:.3} over {} that \
         judge; {seeds} seeds",
        root_mean_square(&fitted),
        fitted.len(),
        root_mean_square(&judged),
        judged.len()
    );
    Ok(())
}
