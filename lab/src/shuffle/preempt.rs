//! Pre-emption: each node is taken away half of the time (section 6.2 of the thesis).
//!
//! Intervals with and without the processor alternate; their lengths are normal with a standard
//! deviation of a quarter of the mean, and each node starts at a random point of the cycle. The
//! thesis says this of the pre-empted intervals only; the others are taken to be alike.

use evenfall_core::Prng;

/// When one node runs: drawn as far as it is asked for.
#[derive(Clone, Debug)]
pub struct Schedule {
    prng: Prng,
    mean_ns: f64,
    /// Beginnings and ends of pauses.
    pauses: Vec<(u64, u64)>,
}

impl Schedule {
    /// A schedule with pauses of this mean.
    pub fn new(mean_ns: f64, mut prng: Prng) -> Self {
        let start = prng.unit() * 2.0 * mean_ns;
        let first = (start - mean_ns).max(0.0) as u64;
        let mut schedule = Self { prng, mean_ns, pauses: Vec::new() };
        let length = if start < mean_ns { start as u64 + 1 } else { schedule.length() };
        schedule.pauses.push((first, first + length));
        schedule
    }

    fn length(&mut self) -> u64 {
        let length = self.mean_ns * (1.0 + self.prng.normal() / 4.0);
        length.max(self.mean_ns / 10.0) as u64 + 1
    }

    /// The pause with this number: when it begins and ends.
    pub fn pause(&mut self, number: usize) -> (u64, u64) {
        while self.pauses.len() <= number {
            let end = self.pauses[self.pauses.len() - 1].1;
            let (run, pause) = (self.length(), self.length());
            self.pauses.push((end + run, end + run + pause));
        }
        self.pauses[number]
    }

    /// How long it is away until this time.
    pub fn paused_ns(&mut self, until_ns: u64) -> u64 {
        let mut paused = 0;
        for number in 0.. {
            let (begin, end) = self.pause(number);
            if begin >= until_ns {
                break;
            }
            paused += end.min(until_ns) - begin;
        }
        paused
    }

    /// When work of this length is done at the earliest, if it is begun at once and goes on
    /// whenever the node runs: the sender's oracle of section 6.2.1. What the card has begun when
    /// the node is taken away it ends, `packet_ns` at most.
    pub fn done_ns(&mut self, work_ns: u64, packet_ns: u64) -> u64 {
        let (mut at, mut left) = (0, work_ns);
        for number in 0.. {
            let (begin, end) = self.pause(number);
            let run = begin.saturating_sub(at);
            if run >= left {
                break;
            }
            let begun = if run > 0 { packet_ns } else { 0 };
            if run + begun >= left {
                return at + left;
            }
            left -= run + begun;
            at = end;
        }
        at + left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_away_half_of_the_time_takes_twice_as_long() {
        let mut schedule = Schedule::new(10_000.0, Prng::new(1));
        let done = schedule.done_ns(10_000_000, 0);
        assert!((done as f64 / 20_000_000.0 - 1.0).abs() < 0.05, "{done}");
    }
}
