//! Races candidates against each other, so that probing stops when the choice is clear.
//!
//! A measurement is cut into rounds, and each round gives every candidate one score. The scores of
//! a candidate spread about its mean. That spread, and not the number of probes, tells how well the
//! mean is known, because probes a tenth of a millisecond apart depend on each other. A candidate
//! is *in* when too few others can still be better, and *out* when enough others certainly are. The
//! other candidates are measured further.
//!
//! Each judgement of a candidate may be wrong. A race may be wrong with a probability of 5 %, which
//! is therefore divided by the number of candidates and judgements (Bonferroni). Every interval is
//! Student's interval for its part of the 5 %. If the scores of rounds are normal and independent,
//! all verdicts of a race are right together in 95 of 100 races.
//!
//! ```text
//!  score   a |--x--|                     in: of b to e at most one can be below it (2 are taken)
//!          b    |---x----|               measured on
//!          c         |---x---|           measured on
//!          d                  |--x---|   out
//! ```

use std::collections::BTreeMap;

use evenfall_core::statistics::half_width;

use crate::delays::EdgeStats;

/// The rounds of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Racing {
    /// Rounds of a whole measurement. With 1, all candidates are measured for the whole time.
    pub rounds: u32,
    /// Rounds before any candidate is judged; at least two, because one value has no spread.
    pub rounds_min: u32,
}

impl Default for Racing {
    /// Ten rounds, of a second each when the measurement takes ten seconds as in the thesis. Four
    /// rounds come before the first verdict, because t at a thousandth is 32 for three values and
    /// 13 for four.
    fn default() -> Self {
        Self { rounds: 10, rounds_min: 4 }
    }
}

impl Racing {
    /// No racing: one round for all candidates.
    pub const OFF: Self = Self { rounds: 1, rounds_min: 1 };
}

/// Probability that a race has a wrong verdict.
const WRONG: f64 = 0.05;

#[derive(Clone, Debug, Default)]
struct Runner {
    scores: Vec<f64>,
    rounds: Vec<EdgeStats>,
}

impl Runner {
    fn mean(&self) -> f64 {
        self.scores.iter().sum::<f64>() / self.scores.len().max(1) as f64
    }

    /// The interval in which the long-run score lies, with a probability of error of `tail`.
    fn bounds(&self, tail: f64) -> (f64, f64) {
        let mean = self.mean();
        match half_width(&self.scores, tail) {
            Some(half) => (mean - half, mean + half),
            // An infinite score, which comes from too much loss, makes the mean infinite.
            None if self.scores.len() > 1 => (mean, mean),
            None => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }
}

/// A race for a number of places. Lower scores win.
#[derive(Clone, Debug)]
pub struct Race {
    racing: Racing,
    places: usize,
    /// Candidates at the start.
    candidates: usize,
    round: u32,
    runners: BTreeMap<usize, Runner>,
}

impl Race {
    /// These candidates for this many places.
    pub fn new(racing: Racing, places: usize, candidates: &[usize]) -> Self {
        let runners = candidates.iter().map(|&host| (host, Runner::default())).collect();
        Self { racing, places, candidates: candidates.len(), round: 0, runners }
    }

    /// The round that is run next, from 0.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Records the score and statistics of a candidate in this round.
    pub fn record(&mut self, candidate: usize, score: f64, stats: EdgeStats) {
        if let Some(runner) = self.runners.get_mut(&candidate) {
            runner.scores.push(score);
            runner.rounds.push(stats);
        }
    }

    /// Removes a candidate that failed.
    pub fn remove(&mut self, candidate: usize) {
        self.runners.remove(&candidate);
    }

    /// Ends the round. Returns the candidates to measure further; none when the race is over.
    pub fn next_round(&mut self) -> Vec<usize> {
        self.round += 1;
        if self.round >= self.racing.rounds {
            return Vec::new();
        }
        let first_look = self.racing.rounds_min.max(2);
        if self.round < first_look {
            return self.runners.keys().copied().collect();
        }
        let looks = f64::from(self.racing.rounds - first_look);
        let tail = WRONG / (self.candidates as f64 * looks);
        let bounds: Vec<(usize, (f64, f64))> =
            self.runners.iter().map(|(&host, runner)| (host, runner.bounds(tail))).collect();
        let open = bounds.iter().filter(|&&(host, (low, high))| {
            let others = || bounds.iter().filter(move |(other, _)| *other != host);
            let maybe_better = others().filter(|(_, other)| other.0 <= high).count();
            let surely_better = others().filter(|(_, other)| other.1 < low).count();
            maybe_better >= self.places && surely_better < self.places
        });
        open.map(|(host, _)| *host).collect()
    }

    /// Scores and merged statistics of all candidates that were measured.
    pub fn results(&self) -> impl Iterator<Item = (usize, f64, EdgeStats)> + '_ {
        self.runners.iter().filter_map(|(&host, runner)| {
            Some((host, runner.mean(), EdgeStats::mean_of(&runner.rounds)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::Prng;

    /// Runs a race with normal scores. Returns the candidates that won, and the number of
    /// candidate-rounds used.
    fn race(means: &[f64], sigma: f64, places: usize, prng: &mut Prng) -> (Vec<usize>, usize) {
        let all: Vec<usize> = (0..means.len()).collect();
        let mut race = Race::new(Racing::default(), places, &all);
        let (mut open, mut used) = (all, 0);
        while !open.is_empty() {
            for &host in &open {
                let score = means[host] + sigma * prng.normal();
                race.record(host, score, EdgeStats::constant(score.max(1.0)));
            }
            used += open.len();
            open = race.next_round();
        }
        let mut results: Vec<_> = race.results().map(|(host, score, _)| (score, host)).collect();
        results.sort_by(|a, b| a.0.total_cmp(&b.0));
        (results[..places].iter().map(|result| result.1).collect(), used)
    }

    #[test]
    fn a_clear_race_ends_after_its_first_rounds() {
        let (taken, used) = race(&[50.0, 90.0, 51.0, 95.0], 0.5, 2, &mut Prng::new(1));
        assert_eq!((taken.contains(&0), taken.contains(&2), used), (true, true, 16));
    }

    #[test]
    fn racing_saves_probes_and_rarely_errs() {
        let mut prng = Prng::new(2);
        let (mut used, mut missed) = (0, 0);
        for _ in 0..500 {
            let means: Vec<f64> = (0..8).map(|_| 60.0 + 10.0 * prng.normal()).collect();
            let (taken, rounds) = race(&means, 3.0, 2, &mut prng);
            let rank = |host: usize| means.iter().filter(|mean| **mean < means[host]).count();
            missed += taken.iter().filter(|&&host| rank(host) > 2).count();
            used += rounds;
        }
        // Without racing, all candidates would take 40,000 candidate-rounds.
        assert!(used < 36_000, "{used}");
        assert!(missed < 20, "{missed} of 1,000 places to hosts beyond the third");
    }

    #[test]
    fn verdicts_of_a_whole_race_are_right_as_often_as_is_said() {
        // Eight hosts whose mean scores are one standard deviation of a round apart, or a third.
        for apart in [1.0, 0.3] {
            let mut prng = Prng::new(3);
            let mut wrong = 0;
            for _ in 0..400 {
                let means: Vec<f64> = (0..8).map(|host| 50.0 + apart * f64::from(host)).collect();
                let all: Vec<usize> = (0..8).collect();
                let mut race = Race::new(Racing::default(), 2, &all);
                let mut open = all;
                let mut is_wrong = false;
                while !open.is_empty() {
                    for &host in &open {
                        let score = means[host] + prng.normal();
                        race.record(host, score, EdgeStats::constant(score));
                    }
                    let next = race.next_round();
                    // A candidate that leaves before the last round has a verdict, in or out.
                    let last = race.round() >= Racing::default().rounds;
                    for &host in open.iter().filter(|host| !last && !next.contains(host)) {
                        let runner = &race.runners[&host];
                        let below = race.runners.values().filter(|r| r.mean() < runner.mean());
                        is_wrong |= (below.count() < 2) != (host < 2);
                    }
                    open = next;
                }
                wrong += usize::from(is_wrong);
            }
            assert!(wrong <= 20, "{wrong} of 400 races at {apart}");
        }
    }

    #[test]
    fn candidates_that_lost_everything_are_out() {
        let mut race = Race::new(Racing::default(), 1, &[1, 2]);
        for _ in 0..3 {
            race.record(1, f64::INFINITY, EdgeStats::UNKNOWN);
            race.record(2, 50.0, EdgeStats::constant(50.0));
            race.next_round();
        }
        assert!(race.next_round().is_empty());
    }
}
