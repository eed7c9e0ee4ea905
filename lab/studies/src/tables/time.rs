//! One time for all nodes: errors and bounds of clocks by load, budget and fault, beside two rivals
//! on the same stamps.

use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};

use super::{Table, columns};
use crate::clock::{ClockParams, ClockResults, run};

/// What a run came to.
type Figure = (&'static str, fn(&ClockResults) -> f64);

const FIGURES: [Figure; 9] = [
    ("error p50", |results| results.error_us.p50),
    ("p99", |results| results.error_us.p99),
    ("max", |results| results.error_us.max),
    ("NTP-style p99", |results| results.ntp_error_us.p99),
    ("PTP-style p99", |results| results.ptp_error_us.p99),
    ("assumed p50", |results| results.assumed_us.p50),
    ("proven p50", |results| results.proven_us.p50),
    ("within assumed", |results| results.coverage),
    ("within proven", |results| results.proven_coverage),
];

/// A row: its name, and what differs from a load of one half without faults.
type Row = (&'static str, fn(&mut ClockParams));

const ROWS: [Row; 10] = [
    ("no load", |params| params.paths.load = 0.0),
    ("load .5", |_| {}),
    ("load .9", |params| params.paths.load = 0.9),
    ("load .5, 50 kb/s", |params| params.config.budget_bits_s = 50_000),
    ("load .5, 5 Mb/s", |params| params.config.budget_bits_s = 5_000_000),
    ("load .5, rates of 30 ppm", |params| params.drift_ppb = 30_000.0),
    ("load .5, half of the hosts grow warmer", |params| params.warming_ppb_s = 100.0),
    ("load .5, ways differ by up to 2 us", |params| params.paths.asymmetry_ns = 2_000),
    ("load .5, one liar in ten", |params| params.liars = 0.1),
    ("load .5, one node in five is lost", |params| params.lost = 0.2),
];

/// The table for this many nodes, under `seeds.1` seeds from `seeds.0` on.
pub fn table(nodes: u32, seeds: (u64, u32), progress: &mut dyn FnMut(&str)) -> Table {
    let usual = ClockParams { nodes, ..ClockParams::default() };
    let method = format!(
        "{nodes} nodes, {} kb/s of probes for each node, rates of {} ppm (standard deviation), {} \
         s after a warm-up; means over seeds {} to {}, +- is 95 % by Student's t; microseconds",
        usual.config.budget_bits_s / 1_000,
        usual.drift_ppb / 1e3,
        usual.duration.as_secs(),
        seeds.0,
        seeds.0 + u64::from(seeds.1) - 1,
    );
    let heads = FIGURES.map(|(name, _)| (None, name));
    let mut table = Table::new("Errors and bounds of clocks", method, &columns("run", &heads));
    for (name, change) in ROWS {
        progress(name);
        let mut params = usual.clone();
        change(&mut params);
        let one = |seed| run(&ClockParams { seed, ..params.clone() }, &mut |_, _| {});
        let done = |finished| progress(&format!("{name}, {finished} of {} seeds", seeds.1));
        let runs = in_parallel(seeds.0, seeds.1.into(), one, done);
        let cells = FIGURES.map(|(_, of)| {
            let (mean, half) = mean_and_half_width(&runs.iter().map(of).collect::<Vec<f64>>());
            [mean, half]
        });
        table.row(name.to_owned(), cells.into_iter().flatten());
    }
    table
}
