//! Table 2.2 of the thesis: by how much the largest partition exceeds the mean.

use evenfall_core::Prng;
use evenfall_query_burst::partition::splitters;
use evenfall_query_burst::pivots::{Naive, PivotList, SplitterRule, Tag, Weighted, draw};
use evenfall_query_burst::rows::KeyDraw;
use serde::Serialize;

/// Servers of the table.
pub const SERVERS: usize = 120;
/// Records of a server.
const RECORDS: usize = 7_000;
/// Rows of the table: pivots of a server, in multiples of the number of servers.
const ROWS: usize = 5;

/// The published table: P50 and P90 in percent, naive, then weighted.
const UNIFORM: [[f64; 4]; ROWS] = [
    [33.6, 45.5, 6.9, 8.6],
    [23.5, 25.4, 4.4, 5.4],
    [15.9, 16.9, 3.1, 3.8],
    [11.5, 12.3, 2.5, 3.0],
    [9.6, 10.3, 2.0, 2.4],
];
const GAUSSIAN: [[f64; 4]; ROWS] = [
    [37.6, 47.7, 6.9, 8.6],
    [23.4, 25.4, 4.4, 5.5],
    [15.9, 17.0, 3.2, 3.9],
    [11.5, 12.3, 2.5, 3.0],
    [9.7, 10.4, 2.0, 2.5],
];

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BalanceRow {
    /// `uniform` or `gaussian`.
    pub keys: &'static str,
    /// Pivots of a server.
    pub pivots: usize,
    /// P50 and P90 of the largest partition over the mean, in percent: naive, then weighted.
    pub ours: [f64; 4],
    /// The published numbers.
    pub published: [f64; 4],
}

/// By how many percent the largest partition exceeds the mean.
fn largest_percent(rule: &dyn SplitterRule, lists: &[Vec<Tag>], pivots: usize) -> f64 {
    let drawn: Vec<PivotList> =
        lists.iter().map(|list| draw(rule, list.as_slice(), pivots)).collect();
    let Ok(found) = splitters(rule, &drawn, lists.len()) else { return f64::NAN };
    let below = |splitter: &Tag| -> usize {
        lists.iter().map(|list| list.partition_point(|record| record < splitter)).sum()
    };
    let bounds = found.iter().map(below).chain([lists.len() * RECORDS]);
    let mut before = 0;
    let parts = bounds.map(|bound| bound - core::mem::replace(&mut before, bound));
    100.0 * (parts.max().unwrap_or(0) as f64 / RECORDS as f64 - 1.0)
}

/// The sorted records of all servers.
fn sorted_lists(keys: KeyDraw, seed: u64) -> Vec<Vec<Tag>> {
    let mut prng = Prng::new(seed);
    let mut list = |rank: usize| {
        let mut record = |index: usize| {
            u128::from(keys.draw_prefix(&mut prng)) << 64 | (rank as u128) << 32 | index as u128
        };
        let mut records: Vec<Tag> = (0..RECORDS).map(&mut record).collect();
        records.sort_unstable();
        records
    };
    (0..SERVERS).map(&mut list).collect()
}

/// The numbers of one run: naive and weighted for each row.
fn run_once(keys: KeyDraw, seed: u64) -> [[f64; 2]; ROWS] {
    let lists = sorted_lists(keys, seed);
    core::array::from_fn(|row| {
        let rules: [&dyn SplitterRule; 2] = [&Naive, &Weighted];
        rules.map(|rule| largest_percent(rule, &lists, (row + 1) * SERVERS))
    })
}

/// The table over this many runs of each kind of keys. `progress` is told how many runs are over.
pub fn table_2_2(runs: u64, mut progress: impl FnMut(u64)) -> Vec<BalanceRow> {
    let mut rows = Vec::new();
    let kinds = [("uniform", KeyDraw::Uniform, UNIFORM), ("gaussian", KeyDraw::Gaussian, GAUSSIAN)];
    for (at, (keys, draw, published)) in kinds.into_iter().enumerate() {
        let before = at as u64 * runs;
        let one = |seed| run_once(draw, seed);
        let all =
            evenfall_campaigns::seeds::in_parallel(1, runs, one, |done| progress(before + done));
        for (row, published) in published.into_iter().enumerate() {
            let percentile = |rule: usize, share: f64| {
                let mut values: Vec<f64> = all.iter().map(|run| run[row][rule]).collect();
                values.sort_by(f64::total_cmp);
                let at = (share * values.len() as f64) as usize;
                values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
            };
            let ours = [(0, 0.5), (0, 0.9), (1, 0.5), (1, 0.9)];
            let ours = ours.map(|(rule, share)| percentile(rule, share));
            rows.push(BalanceRow { keys, pivots: (row + 1) * SERVERS, ours, published });
        }
    }
    rows
}
