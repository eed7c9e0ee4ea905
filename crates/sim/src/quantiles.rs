//! A distribution of durations as a table of its quantiles.
//!
//! Whatever the distribution, parametric or measured, a sample costs one random word, one table
//! look-up and one integer interpolation. The table has two levels: 1,024 cells of equal
//! probability, of which the last is split into 256 cells, because the tails of delays determine
//! the latency of a multicast.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use crate::math::{exp, ln, normal_quantile};

/// Cells of equal probability.
const BODY: usize = 1024;
/// Cells that the last body cell is split into: the finest quantile is 1 - 1/262,144.
const TAIL: usize = 256;
/// The smallest and, from the top, largest probability asked of a quantile function: an unbounded
/// distribution is cut here, at about one in a million.
const EDGE: f64 = 1.0 / (4 * BODY * TAIL) as f64;

/// Quantiles of a distribution of durations of up to 4.29 s, at nanosecond resolution. Cloning
/// shares the table.
#[derive(Clone)]
pub struct Quantiles(Arc<Cells>);

struct Cells {
    body: [u32; BODY + 1],
    tail: [u32; TAIL + 1],
}

impl fmt::Debug for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99] = [0.5, 0.99].map(|q| Duration::from_nanos(self.at(q)));
        write!(f, "Quantiles(p50 {p50:?}, p99 {p99:?})")
    }
}

impl PartialEq for Quantiles {
    fn eq(&self, other: &Self) -> bool {
        self.0.body == other.0.body && self.0.tail == other.0.tail
    }
}

impl Quantiles {
    /// Tabulates a quantile function that maps a probability to nanoseconds.
    pub fn from_fn(quantile_ns: impl Fn(f64) -> f64) -> Self {
        // `as` saturates: negative and not-a-number become 0, the too long 4.29 s.
        let at = |q: f64| quantile_ns(q.clamp(EDGE, 1.0 - EDGE)) as u32;
        let body = core::array::from_fn(|i| at(i as f64 / BODY as f64));
        let tail = core::array::from_fn(|i| at(1.0 - (1.0 - i as f64 / TAIL as f64) / BODY as f64));
        Self(Arc::new(Cells { body, tail }))
    }

    /// Always this long.
    pub fn constant(value: Duration) -> Self {
        let ns = value.as_nanos() as f64;
        Self::from_fn(|_| ns)
    }

    /// Exponential with this mean.
    pub fn exponential(mean: Duration) -> Self {
        let mean = mean.as_nanos() as f64;
        Self::from_fn(|q| -mean * ln(1.0 - q))
    }

    /// Lognormal: half lies below `median`, and the logarithm has the standard deviation `sigma`.
    pub fn lognormal(median: Duration, sigma: f64) -> Self {
        let median = median.as_nanos() as f64;
        Self::from_fn(|q| median * exp(sigma * normal_quantile(q)))
    }

    /// Pareto: at least `least`, longer than `x` with probability `(least / x)^alpha`, cut at
    /// `most`. The heavy tail of rare spikes.
    pub fn pareto(least: Duration, alpha: f64, most: Duration) -> Self {
        let (least, most) = (least.as_nanos() as f64, most.as_nanos() as f64);
        Self::from_fn(|q| (least * exp(-ln(1.0 - q) / alpha)).min(most))
    }

    /// Through measured points `(probability, nanoseconds)`, straight lines between, flat outside.
    ///
    /// # Errors
    /// When there is no point, or they do not ascend in both coordinates.
    pub fn from_points(points: &[(f64, f64)]) -> Result<Self, QuantileTableError> {
        let ascending = |p: &[(f64, f64)]| p[0].0 < p[1].0 && p[0].1 <= p[1].1;
        if let Some(i) = points.windows(2).position(|pair| !ascending(pair)) {
            return Err(QuantileTableError { line: i + 2, what: "quantiles must ascend" });
        }
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Err(QuantileTableError { line: 1, what: "no quantiles" });
        };
        Ok(Self::from_fn(|q| {
            let above = points.partition_point(|p| p.0 <= q);
            match (above.checked_sub(1).map(|i| points[i]), points.get(above)) {
                (Some((q0, v0)), Some((q1, v1))) => v0 + (v1 - v0) * (q - q0) / (q1 - q0),
                (None, _) => first.1,
                (_, None) => last.1,
            }
        }))
    }

    /// Reads a table: a line per quantile, `percentile value` separated by space or comma. With
    /// one number a line they are the percentiles 1, 2, 3 and so on. Empty lines and those that
    /// begin with `#` are skipped. `unit` is what a value of 1 means.
    ///
    /// # Errors
    /// The number of the first line that has another form.
    pub fn parse(text: &str, unit: Duration) -> Result<Self, QuantileTableError> {
        let mut points = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let bad = |what| QuantileTableError { line: number + 1, what };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut numbers = Vec::new();
            for word in line.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
                numbers.push(word.parse::<f64>().map_err(|_| bad("not a number"))?);
            }
            let (percentile, value) = match numbers[..] {
                [value] => ((points.len() + 1) as f64, value),
                [percentile, value] => (percentile, value),
                _ => return Err(bad("expected one or two numbers")),
            };
            if !(0.0..=100.0).contains(&percentile) || !(0.0..f64::INFINITY).contains(&value) {
                return Err(bad("percentile outside 0..=100, or value negative or endless"));
            }
            let point = (percentile / 100.0, value * unit.as_nanos() as f64);
            if points.last().is_some_and(|&(q, v)| q >= point.0 || v > point.1) {
                return Err(bad("quantiles must ascend"));
            }
            points.push(point);
        }
        Self::from_points(&points)
    }

    /// The sample that belongs to a random (or hashed) word, in nanoseconds.
    #[inline]
    pub fn sample(&self, word: u64) -> u64 {
        let cell = (word >> 54) as usize;
        if cell < BODY - 1 {
            let pair = &self.0.body[cell..cell + 2];
            between(pair[0], pair[1], word >> 22)
        } else {
            let cell = (word >> 46) as usize % TAIL;
            between(self.0.tail[cell], self.0.tail[cell + 1], word >> 14)
        }
    }

    /// The share of samples of at most this many nanoseconds.
    pub fn share_below(&self, ns: f64) -> f64 {
        let cells = &self.0;
        let share = |table: &[u32], cell: usize| {
            let (low, high) = (f64::from(table[cell]), f64::from(table[cell + 1]));
            let part = if high > low { (ns - low) / (high - low) } else { 1.0 };
            (cell as f64 + part.clamp(0.0, 1.0)) / (table.len() - 1) as f64
        };
        let above = cells.body.partition_point(|&value| f64::from(value) <= ns);
        if above == 0 {
            return 0.0;
        }
        if above < BODY {
            return share(&cells.body, above - 1);
        }
        let above = cells.tail.partition_point(|&value| f64::from(value) <= ns);
        let within = if above > TAIL { 1.0 } else { share(&cells.tail, above.max(1) - 1) };
        ((BODY - 1) as f64 + within) / BODY as f64
    }

    /// The quantile of this probability, in nanoseconds.
    pub fn at(&self, q: f64) -> u64 {
        self.sample((q.clamp(0.0, 1.0) * 18_446_744_073_709_551_616.0) as u64)
    }
}

/// Interpolates by the low 32 bits of `fraction`. Tables ascend, but a caller's function may not:
/// then the lower end is kept.
#[inline]
fn between(low: u32, high: u32, fraction: u64) -> u64 {
    let rise = u64::from(high.saturating_sub(low));
    u64::from(low) + ((rise * (fraction & 0xffff_ffff)) >> 32)
}

/// A quantile table that does not make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantileTableError {
    /// Line (or point), from 1.
    pub line: usize,
    /// The mistake on that line.
    pub what: &'static str,
}

impl fmt::Display for QuantileTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for QuantileTableError {}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn samples_have_the_moments_of_their_distribution() {
        let mut prng = Prng::new(1);
        let n = 200_000;
        let mut mean = |d: &Quantiles| {
            (0..n).map(|_| d.sample(prng.next_u64())).sum::<u64>() as f64 / f64::from(n)
        };
        let exponential = mean(&Quantiles::exponential(100 * US));
        assert!((exponential / 100_000.0 - 1.0).abs() < 0.01, "{exponential}");
        // The mean of a lognormal is median * exp(sigma^2 / 2).
        let lognormal = mean(&Quantiles::lognormal(100 * US, 0.5));
        assert!((lognormal / 113_315.0 - 1.0).abs() < 0.01, "{lognormal}");
        let pareto = Quantiles::pareto(100 * US, 1.5, Duration::from_millis(50));
        assert!((pareto.at(0.999) as f64 / 1e7 - 1.0).abs() < 0.01, "{pareto:?}");
        assert!(pareto.at(1.0) <= 50_000_000);
    }

    #[test]
    fn a_text_table_is_read_and_its_mistakes_are_named() {
        let table = Quantiles::parse("# p, us\n1 10\n50, 20\n99\t40\n", US).expect("good table");
        assert_eq!(table.at(0.0), 10_000);
        assert!(table.at(0.5).abs_diff(20_000) <= 30, "{table:?}");
        assert_eq!(table.at(1.0), 40_000);
        let bare: String = (1..=99).map(|p| format!("{}\n", p * 2)).collect();
        assert!(Quantiles::parse(&bare, US).expect("p1..p99").at(0.25).abs_diff(50_000) < 50);
        let line = |text| Quantiles::parse(text, US).expect_err("bad table").line;
        assert_eq!(line("1 10\n2 x\n"), 2);
        assert_eq!(line("50 10\n\n40 20\n"), 3);
        assert_eq!(line("50 10\n60 inf\n"), 2);
        assert_eq!(line(""), 1);
    }
}
