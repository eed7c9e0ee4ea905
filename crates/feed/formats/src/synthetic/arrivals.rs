//! The times of messages: quiet times and bursts, as at the open of a real day.

use super::facts::{LASTING_BINS, LASTING_SHARE, RATE_QUANTILES, SAME_TIME};
use evenfall_core::{Prng, math};

/// Nanoseconds in which the rate stays the same.
pub(super) const BIN_NS: u64 = 10_000_000;

/// The rate of each bin relative to the mean: a normal variable with memory, mapped to the measured
/// quantiles. The quantiles alone would give bursts of the right height that end after one bin.
/// Real bursts last for seconds.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    lasting: f64,
    mean: f64,
}

impl Rates {
    pub fn new(prng: &mut Prng) -> Self {
        Self { lasting: prng.normal(), mean: mean_of_quantiles() }
    }

    /// The next bin's rate in units of the mean rate.
    pub fn next(&mut self, prng: &mut Prng) -> f64 {
        let keep = math::exp(-1.0 / LASTING_BINS);
        self.lasting = keep * self.lasting + (1.0 - keep * keep).sqrt() * prng.normal();
        let passing = prng.normal();
        let z = LASTING_SHARE.sqrt() * self.lasting + (1.0 - LASTING_SHARE).sqrt() * passing;
        quantile(z) / self.mean
    }
}

/// Messages in a bin at this standard normal quantile, between the table's rows on a log scale.
fn quantile(z: f64) -> f64 {
    let rows = &RATE_QUANTILES;
    let above = rows.partition_point(|&(row, _)| row <= z);
    if above == 0 || above == rows.len() {
        return rows[above.min(rows.len() - 1)].1;
    }
    let ((z0, low), (z1, high)) = (rows[above - 1], rows[above]);
    low * math::pow(high / low, (z - z0) / (z1 - z0))
}

/// The mean of [`quantile`] over a standard normal variable, by the midpoint rule.
fn mean_of_quantiles() -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for step in -500..500 {
        let z = (f64::from(step) + 0.5) / 100.0;
        let weight = math::exp(-z * z / 2.0);
        sum += weight * quantile(z);
        weights += weight;
    }
    sum / weights
}

/// The times of messages, never going back.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    prng: Prng,
    rates: Option<Rates>,
    mean_gap_ns: f64,
    /// Mean gap in the present bin, and where the bin ends.
    gap_ns: f64,
    bin_end_ns: f64,
    now_ns: f64,
    start_ns: u64,
}

impl Arrivals {
    /// Starts at `start_ns`; without bursts the rate is the mean rate throughout.
    pub fn new(mut prng: Prng, start_ns: u64, mean_rate: f64, bursts: bool) -> Self {
        let rates = bursts.then(|| Rates::new(&mut prng));
        let mean_gap_ns = 1e9 / mean_rate;
        let bin_end_ns = if bursts { 0.0 } else { f64::INFINITY };
        Self { prng, rates, mean_gap_ns, gap_ns: mean_gap_ns, bin_end_ns, now_ns: 0.0, start_ns }
    }

    /// The time of the next message, nanoseconds since midnight.
    pub fn next(&mut self) -> u64 {
        if !self.prng.chance(SAME_TIME) {
            self.advance();
        }
        // The conversion from float to integer saturates, and so does the sum. A schedule beyond
        // the day's range stays at the last time.
        self.start_ns.saturating_add(self.now_ns as u64)
    }

    fn advance(&mut self) {
        // Exponential gaps have no memory, so a gap that leaves its bin is drawn again in the next
        // bin.
        loop {
            let gap_ns = self.prng.exponential(self.gap_ns / (1.0 - SAME_TIME));
            if self.now_ns + gap_ns <= self.bin_end_ns {
                self.now_ns += gap_ns;
                return;
            }
            self.now_ns = self.bin_end_ns;
            self.bin_end_ns += BIN_NS as f64;
            let rate = self.rates.as_mut().map_or(1.0, |rates| rates.next(&mut self.prng));
            self.gap_ns = self.mean_gap_ns / rate;
        }
    }
}
