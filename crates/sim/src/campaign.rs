//! Many runs, one per seed, on all cores.
//!
//! Each run is a value of its own, so threads share nothing but the counter that hands out seeds.
//! The outcome does not depend on the number of threads: results come sorted by seed, and with
//! [`Campaign::stop_at_first`] the reported failure is the one of the smallest failing seed,
//! because every smaller seed was handed out before it and is waited for.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

/// How to run the seeds.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Seeds to run.
    pub seeds: Range<u64>,
    /// Threads; 0 for as many as the machine has cores.
    pub threads: usize,
    /// Hand out no more seeds once one has failed.
    pub stop_at_first: bool,
    /// The command that replays one run, with `{seed}` where the seed goes.
    pub replay: String,
}

/// How far a campaign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Runs that ended.
    pub done: u64,
    /// Those that failed.
    pub failed: u64,
    /// Runs in all.
    pub of: u64,
}

/// A seed whose run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What the run or its panic said.
    pub why: String,
    /// The command that shows it again.
    pub replay: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} failed: {}\n  replay: {}", self.seed, self.why, self.replay)
    }
}

/// What came of all runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<R> {
    /// Results of the runs that passed, by seed.
    pub passed: Vec<(u64, R)>,
    /// The runs that failed, by seed.
    pub failed: Vec<Failure>,
}

impl<R> Outcome<R> {
    /// Panics with the first failing seed and its replay command, if there is one.
    ///
    /// # Panics
    /// When a run failed.
    pub fn unwrap(self) -> Vec<(u64, R)> {
        if let Some(failure) = self.failed.first() {
            panic!(
                "{} of {} runs\n{failure}",
                self.failed.len(),
                self.failed.len() + self.passed.len()
            );
        }
        self.passed
    }
}

impl Campaign {
    /// All cores, stop at the first failure.
    pub fn new(seeds: Range<u64>, replay: impl Into<String>) -> Self {
        Self { seeds, threads: 0, stop_at_first: true, replay: replay.into() }
    }

    /// Runs the seeds. A run fails by an error or by a panic. `progress` is called on the calling
    /// thread after every run.
    pub fn run<R: Send>(
        &self,
        run: impl Fn(u64) -> Result<R, String> + Sync,
        mut progress: impl FnMut(Progress),
    ) -> Outcome<R> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { cores } else { self.threads };
        let (next, stop) = (AtomicU64::new(self.seeds.start), AtomicBool::new(false));
        let (sender, results) = mpsc::channel();
        let mut outcome = Outcome { passed: Vec::new(), failed: Vec::new() };
        let of = self.seeds.end.saturating_sub(self.seeds.start);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, next, stop, run) = (sender.clone(), &next, &stop, &run);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= self.seeds.end {
                            return;
                        }
                        let result = one(run, seed);
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
                    Ok(value) => outcome.passed.push((seed, value)),
                    Err(why) => outcome.failed.push(self.failure(seed, why)),
                }
                let (passed, failed) = (outcome.passed.len() as u64, outcome.failed.len() as u64);
                progress(Progress { done: passed + failed, failed, of });
            }
        });
        outcome.passed.sort_unstable_by_key(|&(seed, _)| seed);
        outcome.failed.sort_unstable_by_key(|failure| failure.seed);
        outcome
    }

    fn failure(&self, seed: u64, why: String) -> Failure {
        Failure { seed, why, replay: self.replay.replace("{seed}", &seed.to_string()) }
    }
}

/// One run; a panic is a failure like any other.
fn one<R>(run: &impl Fn(u64) -> Result<R, String>, seed: u64) -> Result<R, String> {
    // Nothing of the run outlives it, so nothing half-changed is ever seen.
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
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
            let campaign = Campaign { threads, ..Campaign::new(0..1_000, "sim --seed {seed}") };
            let outcome = campaign.run(odd_ones_fail_from(500), |_| {});
            let first = &outcome.failed[0];
            assert_eq!((first.seed, &*first.why), (501, "501 is odd"));
            assert_eq!(first.replay, "sim --seed 501");
            assert!(outcome.passed.len() < 1_000);
        }
    }

    #[test]
    fn every_seed_runs_once_when_not_stopped_and_progress_tells() {
        let campaign = Campaign { stop_at_first: false, ..Campaign::new(10..200, "") };
        let mut last = None;
        let outcome = campaign.run(odd_ones_fail_from(100), |progress| last = Some(progress));
        assert_eq!((outcome.passed.len(), outcome.failed.len()), (140, 50));
        assert!(outcome.passed.is_sorted());
        assert_eq!(last, Some(Progress { done: 190, failed: 50, of: 190 }));
    }

    #[test]
    fn a_panic_is_a_failure_with_its_words() {
        let campaign = Campaign::new(0..1, "again {seed}");
        let outcome = campaign.run::<()>(|seed| panic!("seed {seed} broke"), |_| {});
        assert_eq!(outcome.failed[0].why, "seed 0 broke");
    }
}
