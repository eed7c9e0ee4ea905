//! One scene under many seeds: the runs on all cores, and the mean and the interval of a number.

use std::collections::BTreeMap;

use evenfall_core::statistics::{half_width, mean};
use evenfall_sim::campaign::Seeds;

/// The results of `run` for `count` seeds from `first` on, in the order of the seeds. `done` is
/// called with the number of finished runs.
///
/// # Panics
/// When a run panics. The message names the seed.
pub fn in_parallel<T: Send>(
    first: u64,
    count: u64,
    run: impl Fn(u64) -> T + Sync,
    mut done: impl FnMut(u64),
) -> Vec<T> {
    let mut results = BTreeMap::new();
    let take = |seed, result| drop(results.insert(seed, result));
    let seeds = Seeds::new(first..first.saturating_add(count));
    let failed = seeds.run(|seed| Ok(run(seed)), take, |progress| done(progress.done));
    if let Some((seed, panic)) = failed.first() {
        panic!("seed {seed}: {panic}");
    }
    results.into_values().collect()
}

/// The mean of a number over runs, and half the width of its 95 % interval by Student's t. A single
/// run has no interval.
pub fn mean_and_half_width(values: &[f64]) -> (Option<f64>, Option<f64>) {
    (mean(values), half_width(values, 0.05))
}
