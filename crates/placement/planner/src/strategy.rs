//! The score of a candidate: a number out of the statistics of the edge to it.
//!
//! TreeBuilder (thesis section 4.3.1, table 4.1) ranks candidates by one of three scores. Any other
//! statistic of an edge may stand in their place:
//!
//! ```text
//! WEIGHTED   0.3 * p90 + 0.7 * stddev
//! P90        p90
//! P50        p50
//! others     p25, p75, p99, mean, stddev or loss
//! ```
//!
//! A lower score is better. Lost probes count as infinitely late: percentiles are those of the sent
//! probes (see [`EdgeStats::counting_loss`]).

use core::fmt;

use crate::delays::{DelayMatrix, DelayStatistic, EdgeStats};

/// What ranks the candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// 0.3 p90 + 0.7 stddev.
    Weighted,
    /// A statistic of the edge.
    Statistic(DelayStatistic),
}

/// Which candidates are taken, once they are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// The candidates that score lowest.
    #[default]
    Best,
    /// The candidates that score highest: the harm that stragglers can do to a tree.
    Worst,
    /// Random candidates, as in a cluster without selection.
    Random,
}

/// A strategy that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "strategy {text:?}: expected weighted, or one of {}",
    DelayStatistic::ALL.map(|(name, _)| name).join(" ")
)]
pub struct BadStrategy {
    text: String,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weighted => "weighted",
            Self::Statistic(field) => field.name(),
        })
    }
}

impl Strategy {
    /// 0.3 p90 + 0.7 stddev.
    pub fn weighted() -> Self {
        Self::Weighted
    }

    /// The 90th percentile.
    pub fn p90() -> Self {
        Self::Statistic(DelayStatistic::P90)
    }

    /// The median.
    pub fn p50() -> Self {
        Self::Statistic(DelayStatistic::P50)
    }

    /// `weighted`, or the name of a statistic, in any case.
    ///
    /// # Errors
    /// Another word, and the words that are allowed.
    pub fn parse(text: &str) -> Result<Self, BadStrategy> {
        let lower = text.trim().to_ascii_lowercase();
        if lower == "weighted" {
            return Ok(Self::Weighted);
        }
        let found = DelayStatistic::ALL.iter().find(|(name, _)| *name == lower);
        let refused = || BadStrategy { text: text.chars().take(80).collect() };
        found.map(|(_, field)| Self::Statistic(*field)).ok_or_else(refused)
    }

    /// A statistic that the strategy reads and these measurements lack.
    pub fn lacks(&self, delays: &DelayMatrix) -> Option<DelayStatistic> {
        let read = match self {
            Self::Weighted => &[DelayStatistic::P90, DelayStatistic::Stddev][..],
            Self::Statistic(field) => core::slice::from_ref(field),
        };
        read.iter().copied().find(|field| !delays.has(*field))
    }

    /// The score of an edge. The score is infinite when too many probes were lost, or when a
    /// statistic of the strategy was not measured.
    pub fn score(&self, stats: &EdgeStats) -> f64 {
        let stats = stats.counting_loss();
        let value = |field| f64::from(stats.field(field));
        let score = match self {
            Self::Weighted => {
                0.3 * value(DelayStatistic::P90) + 0.7 * value(DelayStatistic::Stddev)
            }
            Self::Statistic(field) => value(*field),
        };
        if score.is_nan() { f64::INFINITY } else { score }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> EdgeStats {
        let (p50_us, p90_us, stddev_us) = (50.0, 100.0, 20.0);
        EdgeStats { p50_us, p90_us, stddev_us, mean_us: 55.0, ..EdgeStats::UNKNOWN }
    }

    #[test]
    fn thesis_table_4_1_strategies_score_as_printed() {
        let score = |text: &str| Strategy::parse(text).expect("a strategy").score(&stats());
        assert!((score("WEIGHTED") - (0.3 * 100.0 + 0.7 * 20.0)).abs() < 1e-9);
        assert_eq!((score("P90"), score(" p50 "), score("mean")), (100.0, 50.0, 55.0));
        assert_eq!(score("WEIGHTED"), Strategy::weighted().score(&stats()));
        assert_eq!((score("loss"), score("p99")), (0.0, f64::INFINITY));
    }

    #[test]
    fn other_words_are_refused_with_those_that_are_allowed() {
        for text in ["p95", "", "p90 + p50", "é"] {
            let said = Strategy::parse(text).expect_err(text).to_string();
            assert_eq!(
                said,
                format!(
                    "strategy {text:?}: expected weighted, or one of p25 p50 p75 p90 p99 mean \
                     stddev loss"
                )
            );
        }
    }
}
