//! The JSON of a run: its plan, measurements, choices and results.

use evenfall_core::ClockError;
use evenfall_placement_machine::DelayRecord;
use evenfall_placement_planner::delays::EdgeStats;
use serde::{Deserialize, Serialize};

use super::file::RunPlan;

/// Shares at which a leaf's distribution is written down.
const SHARES: [f64; 25] = [
    0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75,
    0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.999,
];

/// One run, as it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The program that wrote the record.
    pub software: String,
    /// What was asked for.
    pub plan: RunPlan,
    /// Why there is no tree, when there is none: such a run is tried again.
    pub error: Option<String>,
    /// The tree's hosts, the root first, level by level.
    pub tree: Vec<String>,
    /// Every measurement, in its order.
    pub stages: Vec<StageRecord>,
    /// What the tree's receivers saw.
    pub statistics: Option<Statistics>,
    /// What a planner on all pairs expected of the worst leaf's 90th percentile, and below which no
    /// tree comes, us; min-max only.
    pub expected_us: Option<f64>,
    /// See `expected_us`.
    pub bound_us: Option<f64>,
    /// Hosts that failed.
    pub failed: Vec<FailedHost>,
    /// How long things took.
    pub timers: Timers,
    /// Probes that were sent and count.
    pub probes: u64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// When it was over, since the run began, in the time of the field.
    pub at_s: f64,
    /// How long it took there.
    pub took_s: f64,
    /// The sender; `None` when all hosts sent.
    pub parent: Option<String>,
    /// Which part of the measurement, from 0, and of how many.
    pub round: u32,
    /// See `round`.
    pub rounds: u32,
    /// What was measured to whom.
    pub candidates: Vec<CandidateRecord>,
    /// The candidates that the tree has below this parent.
    pub chosen: Vec<String>,
}

/// A candidate, or a pair when all send to all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// The sender, when all hosts sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The receiver.
    pub host: String,
    /// What was measured in this part.
    pub stats: Option<EdgeStats>,
    /// What the strategy makes of it: lower is better.
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

/// How long things took, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timers {
    /// Measurements for the tree, in the time of the field: simulated in the simulator, nothing on
    /// recorded delays.
    pub measuring_s: f64,
    /// Measurements of the tree, in the time of the field.
    pub evaluating_s: f64,
    /// Choosing, on this machine.
    pub deciding_s: f64,
    /// All of it, on this machine.
    pub wall_s: f64,
}

/// What the receivers of a tree saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// The leaf with the largest 90th percentile.
    pub worst_leaf: String,
    /// Every leaf, the worst first.
    pub leaves: Vec<Leaf>,
    /// The worst leaf of every window by itself.
    pub windows: Vec<Window>,
    /// Leaves that no probe reached: they have no delays, and are worse than the worst.
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
    /// Its distribution: delays in us, and the share of what arrived that lies below.
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
    /// How wrong each delay may be because of the clocks; `None` when nobody offers a bound.
    pub clock_error_us: Option<f64>,
    /// Probes that arrived.
    pub count: u64,
}

/// One multicast over the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// When it was over, since the first began, in the time of the field.
    pub at_s: f64,
    /// Its worst leaf.
    pub worst_leaf: String,
    /// That leaf's figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What reached one leaf.
#[derive(Clone, Debug)]
pub struct LeafSample {
    /// Number of the host.
    pub host: usize,
    /// Probes sent that count.
    pub sent: u64,
    /// What arrived. Its percentiles are upper edges of buckets, a sixteenth apart.
    pub record: DelayRecord,
    /// What arrived, us, one by one where somebody has it: then percentiles are exact.
    pub samples: Vec<f32>,
}

impl LeafSample {
    /// In numbers.
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
            let us = exact.unwrap_or_else(|| self.record.quantile_ns(share) / 1e3);
            match points.last_mut() {
                Some(last) if last.0 == us => last.1 = share,
                _ => points.push((us, share)),
            }
        }
        points
    }
}

/// Joins windows: when each was over, and its leaves. Leaves that nothing reached have no
/// percentiles; a tree whose leaves all got nothing has no statistics.
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
        let window = worst.map(|(host, figures)| Window {
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

/// The bound of delays that say nothing of their clocks.
pub fn unknown_clock(stats: &EdgeStats) -> ClockError {
    match stats.clock_error_us {
        us if us > 0.0 => {
            ClockError::Within(core::time::Duration::from_nanos((f64::from(us) * 1e3) as u64))
        }
        _ => ClockError::Unknown,
    }
}
