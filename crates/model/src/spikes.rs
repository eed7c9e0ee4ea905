//! Spikes out of the tails of histograms.
//!
//! A spike of length `L` holds every packet back until the spike is over. A probe that meets the
//! spike `t` after its beginning waits `L - t`. At a random instant a wait above `x` therefore has
//! the probability `E[(L - x)+] / gap`, where `gap` is the mean time between two spikes. So a
//! histogram of waits tells how long spikes are and how rare they are, without the order of the
//! probes:
//!
//! ```text
//! exponential lengths of mean M:     P(wait > x) = M / gap * e^(-x / M)
//! Pareto lengths from l, index a:    P(wait > x) = l^a * x^(1 - a) / ((a - 1) gap)   for x >= l
//! ```
//!
//! The ordinary waits of a path hide shorter spikes. Only waits above a threshold of each path
//! count, and the family that explains them better is taken.

use evenfall_core::math::{exp, ln, pow};

use crate::check::{LONGEST_GAPS_MAX, US_MAX};
use crate::file::DelayShape;

/// An integral over durations takes this many points in the shorter half of the durations, in the
/// next quarter, in the next eighth and so on. A few of the longest durations may decide.
const POINTS: u32 = 128;
/// The number of these parts.
const HALVINGS: u32 = 32;
/// Waits above the threshold that can tell lengths. Fewer waits tell only how rare spikes are.
const ENOUGH: f64 = 30.0;
/// The index of a Pareto distribution of lengths is above 1, or spikes would have no mean.
const ALPHA_MIN: f64 = 1.05;

/// The probes of one path.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tail {
    /// Probes that arrived.
    pub(crate) probes: f64,
    /// The threshold above which a wait counts as a spike, us.
    pub(crate) threshold_us: f64,
    /// Waits above the threshold, us, and the number of probes with each wait.
    pub(crate) waits: Vec<(f64, f64)>,
}

/// Spikes of all paths.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spikes {
    pub(crate) gap_ms: f64,
    pub(crate) length: DelayShape,
    /// Whether the survey told the lengths; else they are those of the other model.
    pub(crate) is_length_seen: bool,
    /// Probes that waited above their thresholds.
    pub(crate) late: f64,
}

/// The distribution of the lengths of spikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Exponential,
    Pareto,
}

/// Sum of a function of wait and threshold over all late probes.
fn sum(tails: &[&Tail], value: impl Fn(f64, f64) -> f64) -> f64 {
    let one = |tail: &Tail| -> f64 {
        tail.waits.iter().map(|(wait, n)| n * value(*wait, tail.threshold_us)).sum()
    };
    // The empty sum of floats is -0.
    0.0 + tails.iter().map(|tail| one(tail)).sum::<f64>()
}

impl Spikes {
    /// The spikes of paths; those of `usual` where the paths tell too little. `None` when nothing
    /// was seen and there are none in `usual`.
    pub(crate) fn of(tails: &[&Tail], usual: Option<(&DelayShape, f64)>) -> Option<Self> {
        let late = sum(tails, |_, _| 1.0);
        if late >= ENOUGH {
            return Some(Self::seen(tails, late));
        }
        let (length, usual_gap_ms) = usual?;
        let length = length.clone();
        let open: f64 =
            tails.iter().map(|tail| tail.probes * length.mean_above(tail.threshold_us)).sum();
        // When no probe met a spike, the gap is the one at which one probe would have met a spike.
        // When ordinary waits hide all spikes of these lengths, the probes tell nothing.
        let gap_us = open / late.max(1.0);
        let gap_ms = if gap_us < length.gap_min_us() { usual_gap_ms } else { gap_us / 1e3 };
        (gap_ms > 0.0).then_some(Self { gap_ms, length, is_length_seen: false, late })
    }

    fn seen(tails: &[&Tail], late: f64) -> Self {
        let mean = (sum(tails, |wait, threshold| wait - threshold) / late).min(US_MAX);
        let index = late / sum(tails, |wait, threshold| ln(wait / threshold)).max(1e-9);
        // Logarithms of the likelihoods of the waits above their thresholds.
        let exponential = -late * ln(mean) - late;
        let pareto = late * ln(index)
            - sum(tails, |wait, threshold| ln(threshold) + (index + 1.0) * ln(wait / threshold));
        let family = if pareto > exponential { Family::Pareto } else { Family::Exponential };
        let probes = |value: &dyn Fn(f64) -> f64| -> f64 {
            tails.iter().map(|tail| tail.probes * value(tail.threshold_us)).sum()
        };
        let (gap_us, length) = match family {
            Family::Exponential => {
                let open = mean * probes(&|threshold| exp(-threshold / mean));
                (open / late, DelayShape::Exponential { mean_us: mean })
            }
            Family::Pareto => {
                let alpha = (index + 1.0).max(ALPHA_MIN);
                let waits = tails.iter().filter(|tail| !tail.waits.is_empty());
                let least_us = waits.map(|tail| tail.threshold_us).fold(f64::INFINITY, f64::min);
                let most_us = tails.iter().flat_map(|tail| &tail.waits);
                let most_us = most_us.map(|(wait, _)| *wait).fold(least_us, f64::max);
                let open = probes(&|threshold| {
                    least_us * pow(least_us / threshold, alpha - 1.0) / (alpha - 1.0)
                });
                let most_us =
                    most_us.min(0.98 * LONGEST_GAPS_MAX * open / late).max(least_us).min(US_MAX);
                (open / late, DelayShape::Pareto { least_us, alpha, most_us })
            }
        };
        let gap_ms = gap_us.max(length.gap_min_us()) / 1e3;
        Self { gap_ms, length, is_length_seen: true, late }
    }

    /// The numbers of which errors are stated: the gap in ms, and mean or index of the lengths.
    pub(crate) fn numbers(&self) -> [f64; 2] {
        let second = match &self.length {
            DelayShape::Exponential { mean_us } => *mean_us,
            DelayShape::Pareto { alpha, .. } => *alpha,
            _ => f64::NAN,
        };
        [self.gap_ms, second]
    }
}

impl DelayShape {
    /// The mean, us.
    pub(crate) fn mean_us(&self) -> f64 {
        self.mean_above(0.0)
    }

    /// The least gap between outages of such lengths that a file may have, us: somewhat more than
    /// the check asks for, because numbers are rounded.
    fn gap_min_us(&self) -> f64 {
        self.longest_us() / LONGEST_GAPS_MAX * 1.02
    }

    /// The mean by which durations exceed a threshold, us. Shorter durations count as 0.
    fn mean_above(&self, threshold_us: f64) -> f64 {
        let part = |halving: u32| {
            let left = 1.0 / (1u64 << halving) as f64;
            let above = |i| left * (1.0 - (f64::from(i) + 0.5) / f64::from(2 * POINTS));
            let over = |i: u32| (self.quantile_us(1.0 - above(i)) - threshold_us).max(0.0);
            left / 2.0 * (0..POINTS).map(over).sum::<f64>() / f64::from(POINTS)
        };
        (0..HALVINGS).map(part).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_late_probes_are_zero_and_not_minus_zero() {
        assert_eq!(format!("{}", sum(&[], |_, _| 1.0)), "0");
    }

    #[test]
    fn spikes_of_any_survey_fit_into_a_file() {
        for (often, rare) in [(900.0, 1.0), (40.0, 3.0), (5.0, 1.0), (0.0, 0.0)] {
            for longest_us in [210.0, 5_000.0, 4e6] {
                let waits = vec![(201.0, often), (longest_us, rare)];
                let tail = Tail { probes: 1_000.0, threshold_us: 200.0, waits };
                let usual = DelayShape::Pareto { least_us: 100.0, alpha: 1.1, most_us: 4e6 };
                let spikes = Spikes::of(&[&tail], Some((&usual, 200.0)));
                let Spikes { gap_ms, length, .. } = spikes.expect("there are spikes");
                assert!(
                    gap_ms * 1e3 * LONGEST_GAPS_MAX >= length.longest_us(),
                    "{gap_ms} {length:?}"
                );
            }
        }
    }

    #[test]
    fn spikes_that_ordinary_waits_hide_are_as_rare_as_in_the_other_model() {
        let usual = DelayShape::Pareto { least_us: 100.0, alpha: 1.7, most_us: 5_000.0 };
        for threshold_us in [4_990.0, 5_000.0, 30_000.0] {
            let tail = Tail { probes: 1_000.0, threshold_us, waits: Vec::new() };
            let spikes = Spikes::of(&[&tail], Some((&usual, 459.0))).expect("those of the model");
            assert_eq!((spikes.gap_ms, &spikes.length), (459.0, &usual));
        }
    }

    #[test]
    fn waits_beyond_what_a_file_can_say_are_cut() {
        let waits = vec![(300.0, 30.0), (9e6, 12.0)];
        let tail = Tail { probes: 1e9, threshold_us: 200.0, waits };
        let spikes = Spikes::of(&[&tail], None).expect("enough late probes");
        let DelayShape::Pareto { most_us, .. } = spikes.length else { panic!("{spikes:?}") };
        assert_eq!(most_us, US_MAX, "the longest wait was 9 s");
    }
}
