//! The JSON of a run: its plan, measurements, choices and results.

use evenfall_core::ClockError;
use evenfall_placement_machine::DelayRecord;
use evenfall_placement_planner::delays::EdgeStats;
use serde::{Deserialize, Serialize};

use super::file::RunPlan;

/// Shares at which a record has the points of a leaf's distribution.
const SHARES: [f64; 25] = [
    0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75,
    0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.999,
];

/// The record of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The program that wrote the record.
    pub software: String,
    /// The plan of the run.
    pub plan: RunPlan,
    /// Why the run has no tree; `None` for a run with a tree. A run without a tree is tried again.
    pub error: Option<String>,
    /// The tree's hosts, the root first, level by level.
    pub tree: Vec<String>,
    /// Every measurement, in its order.
    pub stages: Vec<StageRecord>,
    /// The delays at the receivers of the tree.
    pub statistics: Option<Statistics>,
    /// The worst leaf's 90th percentile that the planner on all pairs expected, us (min-max only).
    pub expected_us: Option<f64>,
    /// Lower bound on the worst leaf's 90th percentile over all trees, us (min-max only).
    pub bound_us: Option<f64>,
    /// Hosts that failed.
    pub failed: Vec<FailedHost>,
    /// The times of the parts of the run.
    pub timers: Timers,
    /// Probes that were sent and that count.
    pub probes: u64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// End of the measurement, in seconds since the run began, in the time of the field.
    pub at_s: f64,
    /// Duration of the measurement in the time of the field, seconds.
    pub took_s: f64,
    /// The sender; `None` when all hosts sent.
    pub parent: Option<String>,
    /// Number of the part of the measurement, from 0.
    pub round: u32,
    /// Number of parts of the measurement.
    pub rounds: u32,
    /// The candidates with their measurements.
    pub candidates: Vec<CandidateRecord>,
    /// The candidates that the tree has below this parent.
    pub chosen: Vec<String>,
}

/// A candidate, or a pair when all hosts send to all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// The sender, when all hosts sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The receiver.
    pub host: String,
    /// The statistics of this part.
    pub stats: Option<EdgeStats>,
    /// The score by the strategy. Lower is better.
    pub score: Option<f64>,
    /// Why nothing was measured.
    pub failure: Option<String>,
}

/// A host that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedHost {
    /// Its name.
    pub host: String,
    /// Why.
    pub reason: String,
}

/// The times of the parts of a run, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timers {
    /// Measurements for the tree, in the time of the field. This time is simulated in the
    /// simulator, and 0 on recorded delays.
    pub measuring_s: f64,
    /// Measurements of the tree, in the time of the field.
    pub evaluating_s: f64,
    /// Choosing, on this machine.
    pub deciding_s: f64,
    /// All of it, on this machine.
    pub wall_s: f64,
}

/// The delays at the receivers of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// The leaf with the largest 90th percentile.
    pub worst_leaf: String,
    /// Every leaf, the worst first.
    pub leaves: Vec<Leaf>,
    /// The worst leaf of every window by itself.
    pub windows: Vec<MulticastWindow>,
    /// Leaves that no probe reached. Leaves without delays count as worse than the worst leaf.
    pub unreached: Vec<String>,
}

impl Statistics {
    /// The figures of the worst leaf.
    pub fn worst(&self) -> Option<&Leaf> {
        self.leaves.first()
    }
}

/// One leaf over all windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leaf {
    /// Its name.
    pub host: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// Its distribution: delays in us, each with the share of the arrived probes that lie below.
    pub cdf: Vec<(f64, f64)>,
}

/// A leaf's delays in us.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// 50th percentile.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stddev_us: f64,
    /// Share of probes that did not arrive.
    pub loss: f64,
    /// Bound on the error of each delay that comes from the clocks, us; `None` without a stated
    /// bound.
    pub clock_error_us: Option<f64>,
    /// Probes that arrived.
    pub count: u64,
}

/// One multicast over the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MulticastWindow {
    /// End of the multicast, in seconds since the beginning of the first multicast, in the time of
    /// the field.
    pub at_s: f64,
    /// Its worst leaf.
    pub worst_leaf: String,
    /// That leaf's figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The probes of one leaf.
#[derive(Clone, Debug)]
pub struct LeafSample {
    /// Number of the host.
    pub host: usize,
    /// Probes sent that count.
    pub sent: u64,
    /// The delays of the arrived probes. The percentiles are upper edges of buckets a sixteenth
    /// apart.
    pub record: DelayRecord,
    /// The delays one by one, us, where the field has them. The percentiles are then exact.
    pub samples: Vec<f32>,
}

impl LeafSample {
    /// The figures of the leaf.
    pub fn figures(&self) -> Figures {
        let f = self.record.figures();
        let sent = u32::try_from(self.sent).unwrap_or(u32::MAX);
        if let Some(exact) = EdgeStats::from_samples(&mut self.samples.clone(), sent) {
            return Figures {
                p50_us: exact.p50_us.into(),
                p90_us: exact.p90_us.into(),
                p99_us: exact.p99_us.into(),
                mean_us: exact.mean_us.into(),
                stddev_us: exact.stddev_us.into(),
                loss: exact.loss.into(),
                clock_error_us: f.clock_error_us,
                count: f.count,
            };
        }
        Figures {
            p50_us: f.p50_us,
            p90_us: f.p90_us,
            p99_us: f.p99_us,
            mean_us: f.mean_us,
            stddev_us: f.stddev_us,
            loss: (1.0 - f.count as f64 / self.sent.max(1) as f64).max(0.0),
            clock_error_us: f.clock_error_us,
            count: f.count,
        }
    }

    fn cdf(&self) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut sorted = self.samples.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        for share in SHARES {
            let exact = evenfall_core::nearest_rank(&sorted, share).map(f64::from);
            let us = exact.unwrap_or_else(|| self.record.quantile_between_ns(share) / 1e3);
            match points.last_mut() {
                Some(last) if last.0 == us => last.1 = share,
                _ => points.push((us, share)),
            }
        }
        points
    }
}

/// Joins windows, each with its end and its leaves. Leaves that no probe reached have no
/// percentiles. A tree none of whose leaves was reached has no statistics.
pub fn statistics(windows: &[(f64, Vec<LeafSample>)], names: &[String]) -> Option<Statistics> {
    let mut whole: Vec<LeafSample> = Vec::new();
    let mut series = Vec::new();
    let reached = |host: usize| {
        let mut all = windows.iter().flat_map(|(_, leaves)| leaves);
        all.any(|leaf| leaf.host == host && leaf.record.count() > 0)
    };
    let never = windows.first()?.1.iter().filter(|leaf| !reached(leaf.host));
    let unreached = never.map(|leaf| names[leaf.host].clone()).collect();
    for (at_s, leaves) in windows {
        let mut worst: Option<(usize, Figures)> = None;
        for leaf in leaves.iter().filter(|leaf| leaf.record.count() > 0) {
            let figures = leaf.figures();
            if worst.is_none_or(|(_, most)| figures.p90_us > most.p90_us) {
                worst = Some((leaf.host, figures));
            }
            match whole.iter_mut().find(|known| known.host == leaf.host) {
                None => whole.push(leaf.clone()),
                Some(known) => {
                    known.sent += leaf.sent;
                    known.record.merge(&leaf.record);
                    known.samples.extend_from_slice(&leaf.samples);
                }
            }
        }
        let window = worst.map(|(host, figures)| MulticastWindow {
            at_s: *at_s,
            worst_leaf: names[host].clone(),
            figures,
        });
        series.extend(window);
    }
    let leaf = |sample: &LeafSample| Leaf {
        host: names[sample.host].clone(),
        figures: sample.figures(),
        cdf: sample.cdf(),
    };
    let mut leaves: Vec<Leaf> = whole.iter().map(leaf).collect();
    leaves.sort_by(|a, b| b.figures.p90_us.total_cmp(&a.figures.p90_us));
    let worst_leaf = leaves.first()?.host.clone();
    Some(Statistics { worst_leaf, leaves, windows: series, unreached })
}

/// The clock error of delays that state none.
pub fn unknown_clock(stats: &EdgeStats) -> ClockError {
    match stats.clock_error_us {
        us if us > 0.0 => {
            ClockError::Within(core::time::Duration::from_nanos((f64::from(us) * 1e3) as u64))
        }
        _ => ClockError::Unknown,
    }
}
