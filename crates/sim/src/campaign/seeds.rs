//! Many runs, one per seed, on all cores.
//!
//! Each run is a value of its own, so threads share nothing but the counter that hands out seeds.
//! The outcome does not depend on the number of threads: results come sorted by seed, and with
//! [`Seeds::stop_at_first`] the reported failure is the one of the smallest failing seed,
//! because every smaller seed was handed out before it and is waited for.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

/// Which seeds to run, and how.
#[derive(Clone, Debug)]
pub struct Seeds {
    /// Seeds to run.
    pub range: Range<u64>,
    /// Threads; 0 for as many as the machine has cores.
    pub threads: usize,
    /// Hand out no more seeds once one has failed.
    pub stop_at_first: bool,
}

/// The progress of the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedsProgress {
    /// Runs that ended.
    pub done: u64,
    /// Number of seeds that failed.
    pub failed: u64,
    /// Runs in all.
    pub of: u64,
}

impl Seeds {
    /// All cores, stop at the first failure.
    pub fn new(range: Range<u64>) -> Self {
        Self { range, threads: 0, stop_at_first: true }
    }

    /// Runs the seeds and returns those that failed, in order, with the words of the error or of
    /// the panic. `take` is called on the calling thread with the result of every run that passed,
    /// in no order, so that a long campaign keeps sums and not results.
    pub fn run<R: Send>(
        &self,
        run: impl Fn(u64) -> Result<R, String> + Sync,
        mut take: impl FnMut(u64, R),
        mut progress: impl FnMut(SeedsProgress),
    ) -> Vec<(u64, String)> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { cores } else { self.threads };
        let (next, stop) = (AtomicU64::new(self.range.start), AtomicBool::new(false));
        let (sender, results) = mpsc::channel();
        let of = self.range.end.saturating_sub(self.range.start);
        let (mut done, mut failed) = (0, Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, next, stop, run) = (sender.clone(), &next, &stop, &run);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let after = |seed| (seed < self.range.end).then(|| seed + 1);
                        let order = Ordering::Relaxed;
                        let Ok(seed) = next.fetch_update(order, order, after) else { return };
                        let result = one(|| run(seed));
                        stop.fetch_or(result.is_err() && self.stop_at_first, Ordering::Relaxed);
                        if sender.send((seed, result)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for (seed, result) in results {
                match result {
                    Ok(value) => take(seed, value),
                    Err(why) => failed.push((seed, why)),
                }
                done += 1;
                progress(SeedsProgress { done, failed: failed.len() as u64, of });
            }
        });
        failed.sort_unstable();
        failed
    }
}

/// Runs one seed. A panic counts as a failure.
pub(super) fn one<R>(run: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    // No value of the run outlives a panic, so no half-changed value is ever used.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(words.unwrap_or_else(|| "a panic without words".to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd_ones_fail_from(first: u64) -> impl Fn(u64) -> Result<u64, String> + Sync {
        move |seed| match seed {
            _ if seed >= first && seed % 2 == 1 => Err(format!("{seed} is odd")),
            _ => Ok(seed * seed),
        }
    }

    #[test]
    fn the_smallest_failing_seed_is_reported_on_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let seeds = Seeds { threads, ..Seeds::new(0..1_000) };
            let mut passed = 0;
            let failed = seeds.run(odd_ones_fail_from(500), |_, _| passed += 1, |_| {});
            assert_eq!(failed[0], (501, "501 is odd".to_owned()));
            assert!(passed < 1_000);
        }
    }

    #[test]
    fn the_greatest_seeds_run_once() {
        let mut passed = Vec::new();
        let seeds = Seeds { threads: 2, ..Seeds::new(u64::MAX - 3..u64::MAX) };
        let failed = seeds.run(Ok, |seed, _| passed.push(seed), |_| {});
        passed.sort_unstable();
        assert_eq!((failed, passed), (vec![], (u64::MAX - 3..u64::MAX).collect()));
    }

    #[test]
    fn every_seed_runs_once_when_not_stopped_and_progress_tells() {
        let seeds = Seeds { stop_at_first: false, ..Seeds::new(10..200) };
        let (mut passed, mut last) = (Vec::new(), None);
        let failed = seeds.run(
            odd_ones_fail_from(100),
            |seed, square| passed.push((seed, square)),
            |progress| last = Some(progress),
        );
        assert_eq!((passed.len(), failed.len()), (140, 50));
        assert!(passed.iter().all(|(seed, square)| *square == seed * seed));
        assert_eq!(last, Some(SeedsProgress { done: 190, failed: 50, of: 190 }));
    }

    #[test]
    fn a_panic_is_a_failure_with_its_words() {
        let broke = |seed: u64| -> Result<(), String> { panic!("seed {seed} broke") };
        let failed = Seeds::new(0..1).run(broke, |_, ()| {}, |_| {});
        assert_eq!(failed, [(0, "seed 0 broke".to_owned())]);
    }
}
