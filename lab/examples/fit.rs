//! Recomputes the constants of `sims/src/profile.rs` and shows how well they do:
//! `cargo run --release -p evenfall-sims --example fit`. Data: `$EVENFALL_DATA`, or
//! `../shared/data`.

use std::path::PathBuf;
use std::time::Duration;

use evenfall_core::math;
use evenfall_lab::multicast::{Params, Run, run};
use evenfall_lab::profile::{Constants, FITTED, ROWS, Row};

/// Messages per row: enough for a 99th percentile.
const MESSAGES: u32 = 1_500;

fn measure(constants: &Constants, row: &Row) -> Run {
    let mut params = Params {
        receivers: row.receivers,
        cloud: constants.cloud(),
        host: constants.host(),
        // Direct unicast of 100 copies at 2.7 us cannot carry more than 3,700 messages a second.
        rate: 1_000.0,
        duration: Duration::from_millis(1) * MESSAGES,
        warm_up: Duration::from_millis(20),
        ..Params::default()
    };
    params.config.mode = row.mode;
    params.config.shape.depth = Some(row.depth);
    params.config.shape.fanout = Some(row.fanout);
    params.config.shape.hedging = evenfall_core::Hedging(row.hedging);
    run(&params)
}

/// Published and simulated values of a row.
fn pairs(constants: &Constants, row: &Row) -> Vec<(&'static str, f64, f64)> {
    let results = measure(constants, row).results;
    let oml = results.oml_us;
    let mut pairs = Vec::new();
    for (name, published, ours) in
        [("p50", row.oml[0], oml.p50), ("p90", row.oml[1], oml.p90), ("p99", row.oml[2], oml.p99)]
    {
        pairs.extend(published.map(|published| (name, published, ours)));
    }
    let window = results.arrival_window_us.p50;
    pairs.extend(row.window.map(|published| ("window", published, window)));
    pairs
}

fn loss(constants: &Constants) -> f64 {
    let square = |(_, published, ours): (_, f64, f64)| math::square(math::ln(ours / published));
    ROWS.iter().flat_map(|row| pairs(constants, row)).map(square).sum()
}

fn fields(c: &mut Constants) -> [&mut f64; 7] {
    [
        &mut c.base,
        &mut c.jitter,
        &mut c.spike_chance,
        &mut c.spike,
        &mut c.copy,
        &mut c.stall_gap_ms,
        &mut c.stall,
    ]
}

/// Coordinate descent by factors that shrink.
fn fit(mut best: Constants) -> Constants {
    let mut least = loss(&best);
    for step in [1.4, 1.2, 1.1, 1.05] {
        let mut moved = true;
        while moved {
            moved = false;
            for field in 0..7 {
                for factor in [step, 1.0 / step] {
                    let mut trial = best;
                    *fields(&mut trial)[field] *= factor;
                    let value = loss(&trial);
                    if value < least {
                        (best, least, moved) = (trial, value, true);
                        eprintln!("{least:.4} {best:?}");
                    }
                }
            }
        }
    }
    best
}

/// Spread of medians over pairs, and of delays within a pair.
fn shapes() -> Option<(f64, f64)> {
    let data = std::env::var_os("EVENFALL_DATA").map(PathBuf::from);
    let data = data.unwrap_or_else(|| "../shared/data".into());
    let text = std::fs::read_to_string(data.join("latency/gcp_pairs_owd_us.csv")).ok()?;
    let rows: Vec<Vec<f64>> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').skip(4).take(4).filter_map(|n| n.parse().ok()).collect())
        .filter(|row: &Vec<f64>| row.len() == 4 && row[1] > 0.0)
        .collect();
    let logs: Vec<f64> = rows.iter().map(|row| math::ln(row[1])).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance = logs.iter().map(|l| math::square(l - mean)).sum::<f64>() / logs.len() as f64;
    // Of a lognormal above some base, (p75 - p50) / (p50 - p25) = exp(0.674 sigma).
    let mut skews: Vec<f64> = rows
        .iter()
        .filter(|row| row[1] > row[0] && row[2] > row[1])
        .map(|row| math::ln((row[2] - row[1]) / (row[1] - row[0])) / 0.6745)
        .collect();
    skews.sort_by(f64::total_cmp);
    Some((variance.sqrt(), skews[skews.len() / 2]))
}

fn main() {
    match shapes() {
        Some((base, jitter)) => println!("BASE_SIGMA {base:.3}, JITTER_SIGMA {jitter:.3}"),
        None => println!("shapes skipped: no data"),
    }
    let constants =
        if std::env::args().nth(1).as_deref() == Some("show") { FITTED } else { fit(FITTED) };
    println!("{constants:#?}\nsum of squared logarithms {:.4}", loss(&constants));
    println!("{:<10} {:>4} {:>2} {:>4} {:>2}", "mode", "N", "D", "F", "H");
    for row in &ROWS {
        let Row { mode, receivers, depth, fanout, hedging, .. } = row;
        print!("{mode:<10?} {receivers:>4} {depth:>2} {fanout:>4} {hedging:>2}");
        for (name, published, ours) in pairs(&constants, row) {
            print!("  {name} {published:.0} / {ours:.0}");
        }
        println!();
    }
}
