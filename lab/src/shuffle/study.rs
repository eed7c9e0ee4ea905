//! Chapter 6 of the thesis, figure by figure.
//!
//! A figure is curves over message skewness; a point of a curve is several [`Run`]s with seeds of
//! their own. Figures share runs: throughput and buffers of one setup come from the same ones. A
//! [`Record`] is one finished run as a line of text, so that a study can be stopped and go on
//! where it was.

use core::fmt;
use std::collections::BTreeMap;

use evenfall_core::Prng;
use evenfall_exchange_machine::workload;
use evenfall_sim::Priorities;

use super::rivals::{Ablation, Rival};
use super::scene::{Control, Done, Params, run};
use crate::studies::Table;

/// Everything of a run but its matrix and its seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Nodes, 40 in a rack.
    pub nodes: usize,
    /// Mean message in packets.
    pub mean_packets: u32,
    /// The scheme.
    pub rival: Rival,
    /// What it lacks.
    pub ablation: Ablation,
    /// Round trips' worth of grants outstanding, instead of the scheme's.
    pub overcommit: Option<u32>,
    /// Bandwidth of the racks' uplinks in per cent of their hosts'.
    pub core_percent: u32,
    /// Mean pause in round trips; 0 for none.
    pub preempt_rtt: u32,
    /// Where control goes first.
    pub priorities: Priorities,
    /// How many times slower than the best in software the all-reduce is; 0 for at once.
    pub stale: u32,
    /// What control costs.
    pub control: Control,
}

impl Setup {
    /// A scheme as it is, on a quiet network of full bisection.
    pub(super) fn new(nodes: usize, mean_packets: u32, rival: Rival) -> Self {
        Self {
            nodes,
            mean_packets,
            rival,
            ablation: Ablation::Whole,
            overcommit: None,
            core_percent: 100,
            preempt_rtt: 0,
            priorities: Priorities::Edge,
            stale: 0,
            control: Control::Free,
        }
    }
}

/// The name of the setup in records: one word, equal for equal setups.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}-{}", self.nodes, self.mean_packets, self.rival)?;
        match self.ablation {
            Ablation::Whole => {}
            Ablation::Redirect(packets) => write!(f, "-redirect{packets}")?,
            other => write!(f, "-{}", format!("{other:?}").to_lowercase())?,
        }
        self.overcommit.map_or(Ok(()), |times| write!(f, "-over{times}"))?;
        write!(f, "-core{}-pause{}", self.core_percent, self.preempt_rtt)?;
        let control = if self.control == Control::Free { "free" } else { "charged" };
        let place = format!("{:?}", self.priorities).to_lowercase();
        write!(f, "-{place}-stale{}-{control}", self.stale)
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// How.
    pub setup: Setup,
    /// Message skewness that is asked of the generator, in per cent.
    pub skewness_percent: u32,
    /// Seed of the matrix and of all else.
    pub seed: u64,
}

impl Run {
    /// Begins its record; equal for equal runs.
    pub fn key(&self) -> String {
        format!("{} {} {}", self.setup, self.skewness_percent, self.seed)
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&self) -> Result<Record, String> {
        let Setup { nodes, control, .. } = self.setup;
        let (payload, scale) = control.payload();
        let mean = f64::from(self.setup.mean_packets) * f64::from(payload * scale);
        let skewness = f64::from(self.skewness_percent) / 100.0;
        let normal = workload::by_sampling(nodes, skewness, &mut Prng::new(self.seed));
        let preempt = self.setup.preempt_rtt;
        let params = Params {
            rival: self.setup.rival,
            ablation: self.setup.ablation,
            overcommit: self.setup.overcommit.map(f64::from),
            core: f64::from(self.setup.core_percent) / 100.0,
            preempt_rtt: (preempt > 0).then(|| f64::from(preempt)),
            priorities: self.setup.priorities,
            stale: f64::from(self.setup.stale),
            control,
            ..Params::new(normal.bytes(mean), self.seed)
        };
        Ok(Record::new(self.key(), &run(&params)?))
    }
}

/// What a curve shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Gigabits per second and node.
    Throughput,
    /// Bound over completion.
    Optimality,
    /// Megabytes in the fullest rack switch.
    RackMax,
    /// Megabytes in a rack switch, mean over time and racks.
    RackMean,
    /// Megabytes in front of one host.
    PortMax,
    /// Megabytes in the core.
    CoreMax,
    /// Megabytes in the core, mean over time.
    CoreMean,
    /// How long the last sender was pre-empted; .5 is what the shuffle takes when nobody is. See
    /// [`Done::last_paused`].
    LastPaused,
    /// See [`Done::last_starved`].
    LastStarved,
}

/// Metrics in the order of a record's numbers.
const METRICS: [Metric; 9] = [
    Metric::Throughput,
    Metric::Optimality,
    Metric::RackMax,
    Metric::RackMean,
    Metric::PortMax,
    Metric::CoreMax,
    Metric::CoreMean,
    Metric::LastPaused,
    Metric::LastStarved,
];

/// A finished run.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// [`Run::key`].
    pub key: String,
    values: [f64; METRICS.len()],
}

impl Record {
    fn new(key: String, done: &Done) -> Self {
        let values = METRICS.map(|metric| match metric {
            Metric::Throughput => done.throughput_gbps,
            Metric::Optimality => done.efficiency,
            Metric::RackMax => done.rack_bytes_max as f64 / 1e6,
            Metric::RackMean => done.rack_bytes_mean / 1e6,
            Metric::PortMax => done.down_bytes_max as f64 / 1e6,
            Metric::CoreMax => done.core_bytes_max as f64 / 1e6,
            Metric::CoreMean => done.core_bytes_mean / 1e6,
            Metric::LastPaused => done.last_paused / 2.0,
            Metric::LastStarved => done.last_starved / 2.0,
        });
        Self { key, values }
    }

    /// Reads a line; `None` for what is not a record, such as one that was cut off.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (key, numbers) = words.split_at_checked(3)?;
        let numbers: Vec<f64> = numbers.iter().map_while(|word| word.parse().ok()).collect();
        Some(Self { key: key.join(" "), values: numbers.try_into().ok()? })
    }

    /// One of its numbers.
    pub fn value(&self, metric: Metric) -> f64 {
        self.values[metric as usize]
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        self.values.iter().try_for_each(|value| write!(f, " {value:.5}"))
    }
}

/// A figure of the thesis.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number, such as `6.7a`.
    pub number: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What is plotted.
    pub metric: Metric,
    /// Names and setups of its curves.
    pub curves: Vec<(String, Setup)>,
}

impl Figure {
    /// The runs of the figure, first those that every point needs most: all points of all curves
    /// with the first seed, then with the next.
    pub fn runs(&self, points: u32, runs: u64) -> Vec<Run> {
        let curves = &self.curves;
        (1..=runs)
            .flat_map(|seed| skewness_points(points).map(move |skewness| (seed, skewness)))
            .flat_map(|(seed, skewness_percent)| {
                curves.iter().map(move |&(_, setup)| Run { setup, skewness_percent, seed })
            })
            .collect()
    }
}

/// Evenly spread over the whole range, in per cent: 5, 15, .. 95 for ten points.
pub fn skewness_points(points: u32) -> impl Iterator<Item = u32> {
    let points = points.clamp(1, 100);
    (0..points).map(move |at| (200 * at + 100) / (2 * points))
}

/// All figures that can be made, in the order of the thesis.
pub fn figures() -> Vec<Figure> {
    let mut all = ideal();
    all.extend(preempted());
    all.extend(limited());
    all
}

fn figure(
    number: &'static str,
    title: &'static str,
    metric: Metric,
    curves: impl IntoIterator<Item = (String, Setup)>,
) -> Figure {
    Figure { number, title, metric, curves: curves.into_iter().collect() }
}

/// Section 6.1.
fn ideal() -> Vec<Figure> {
    use Metric::Throughput;
    use Priorities::{Everywhere, Nowhere};
    let overview = |nodes| {
        let rivals = [3, 5, 10, 20, 1000].map(Rival::Hadoop);
        let all = [Rival::Madd, Rival::Grpf].into_iter().chain(rivals);
        all.map(move |rival| (rival.to_string(), Setup::new(nodes, 16, rival)))
    };
    let policies = |times, priorities| {
        [Rival::Grpf, Rival::Grpt, Rival::Srpt].map(|rival| {
            let setup = baseline(rival, times, priorities);
            (rival.to_string(), setup)
        })
    };
    let over = |priorities| {
        [1, 2, 5, 10]
            .map(|times| (format!("overcommit {times}"), baseline(Rival::Grpf, times, priorities)))
    };
    let constant = baseline(Rival::Grpf, 10, Nowhere);
    let pro_rata = Setup { ablation: Ablation::Even, ..constant };
    let random = Setup { ablation: Ablation::Scheduled, ..constant };
    let small = Setup { nodes: 40, ..random };
    vec![
        figure("6.1a", "throughput, 160 nodes, Gb/s", Throughput, overview(160)),
        figure("6.1b", "throughput, 320 nodes, Gb/s", Throughput, overview(320)),
        figure("6.5a", "policies in the baseline, Gb/s", Throughput, policies(1, Nowhere)),
        figure("6.5b", "and overcommitment, priority", Throughput, policies(10, Everywhere)),
        figure("6.7a", "overcommitment, Gb/s", Throughput, over(Nowhere)),
        figure("6.7b", "overcommitment and priority, Gb/s", Throughput, over(Everywhere)),
        figure(
            "6.8",
            "windows and randomisation, Gb/s",
            Throughput,
            [
                ("constant windows".into(), constant),
                ("pro rata windows".into(), pro_rata),
                ("and randomised".into(), random),
            ],
        ),
        figure(
            "6.10",
            "unscheduled packets, 40 nodes, Gb/s",
            Throughput,
            [
                ("none".into(), small),
                ("pro rata".into(), Setup { ablation: Ablation::Whole, ..small }),
                ("per message".into(), Setup { ablation: Ablation::PerMessage, ..small }),
            ],
        ),
    ]
}

fn baseline(rival: Rival, times: u32, priorities: Priorities) -> Setup {
    let ablation = Ablation::Baseline;
    Setup { ablation, overcommit: Some(times), priorities, ..Setup::new(160, 16, rival) }
}

/// Section 6.2.
fn preempted() -> Vec<Figure> {
    use Metric::{LastPaused, LastStarved, Optimality, PortMax, RackMax, Throughput};
    let pauses = |rival| {
        [1, 5, 10, 20].map(|preempt_rtt| {
            let setup = Setup { preempt_rtt, ..Setup::new(40, 400, rival) };
            (format!("{rival}, {preempt_rtt} RTT"), setup)
        })
    };
    let longest = Setup { preempt_rtt: 20, ..Setup::new(40, 400, Rival::Grpf) };
    let redirect = [125, 250, 500, 1000].map(|trips| {
        let ablation = Ablation::Redirect(trips * 8);
        (format!("{trips} RTT ahead"), Setup { ablation, ..longest })
    });
    let any = [("any".to_owned(), longest)];
    let over = [5, 10, 20, 40]
        .map(|times| (format!("overcommit {times}"), Setup { overcommit: Some(times), ..longest }));
    vec![
        figure("6.11", "pre-empted: MADD, Gb/s", Throughput, pauses(Rival::Madd)),
        figure("6.12", "the same over the oracles' bound", Optimality, pauses(Rival::Madd)),
        figure("6.13", "pre-empted: GRPF, Gb/s", Throughput, pauses(Rival::Grpf)),
        figure("6.14a", "last sender: time pre-empted", LastPaused, pauses(Rival::Grpf)),
        figure("6.14b", "last sender: time without grants", LastStarved, pauses(Rival::Grpf)),
        figure("6.15", "redirection, 20 RTT, Gb/s", Throughput, redirect.into_iter().chain(any)),
        figure("6.16", "overcommitment, 20 RTT, Gb/s", Throughput, over),
        figure("6.17", "pre-empted: Hadoop-10, Gb/s", Throughput, pauses(Rival::Hadoop(10))),
        figure("6.18a", "largest buffer of the rack switch, MB", RackMax, pauses(Rival::Grpf)),
        figure("6.18b", "longest queue to one host, MB", PortMax, pauses(Rival::Grpf)),
    ]
}

/// Section 6.3.
fn limited() -> Vec<Figure> {
    use Metric::{CoreMax, CoreMean, Optimality, RackMax, RackMean, Throughput};
    use Priorities::{Edge, Everywhere};
    let cores = |nodes, rival, priorities: Priorities| {
        [50, 75, 90].map(|core_percent| {
            let setup = Setup { core_percent, priorities, ..Setup::new(nodes, 16, rival) };
            let place = if priorities == Edge { " edge" } else { "" };
            (format!("{rival}{place}, core {core_percent} %"), setup)
        })
    };
    let versions = || {
        let edge = cores(320, Rival::Grpf, Edge);
        let all = cores(320, Rival::Grpf, Everywhere);
        edge.into_iter().chain(all).chain(cores(320, Rival::Global, Everywhere))
    };
    let half =
        Setup { core_percent: 50, priorities: Everywhere, ..Setup::new(320, 16, Rival::Grpf) };
    let stale = [0, 1, 3, 10]
        .map(|stale| (format!("stale {stale}"), Setup { rival: Rival::Global, stale, ..half }));
    let none = [("no all-reduce".to_owned(), half)];
    let global = |nodes| cores(nodes, Rival::Global, Everywhere);
    let hadoop = || cores(320, Rival::Hadoop(10), Edge);
    vec![
        figure("6.21a", "GlobalSched over the bound, 160 nodes", Optimality, global(160)),
        figure("6.21b", "GlobalSched over the bound, 320 nodes", Optimality, global(320)),
        figure("6.22", "three versions, 320 nodes, Gb/s", Throughput, versions()),
        figure("6.23", "late all-reduce, core 50 %", Optimality, stale.into_iter().chain(none)),
        figure("6.24a", "Hadoop-10, 320 nodes, Gb/s", Throughput, hadoop()),
        figure("6.24b", "Hadoop-10 over the bound", Optimality, hadoop()),
        figure("6.25", "fullest rack switch, MB", RackMax, versions()),
        figure("6.25m", "rack switch in the mean, MB", RackMean, versions()),
        figure("6.26", "fullest core, MB", CoreMax, versions()),
        figure("6.26m", "core in the mean, MB", CoreMean, versions()),
    ]
}

/// The table of a figure from whatever records there are: for each curve its median, its 10th
/// percentile (90th for buffers) and the half width of the 95 % interval of the mean.
pub fn table(figure: &Figure, points: u32, runs: u64, records: &[Record]) -> Table {
    let skewness: Vec<u32> = skewness_points(points).collect();
    let heads: Vec<String> = skewness.iter().map(|percent| format!(".{percent:02}")).collect();
    let mut columns = vec!["skewness"];
    columns.extend(heads.iter().map(String::as_str));
    let (mut least, mut most) = (usize::MAX, 0);
    let mut rows = Vec::new();
    let worst =
        if matches!(figure.metric, Metric::Throughput | Metric::Optimality) { 10 } else { 90 };
    let found = values(figure, points, runs, records);
    for ((name, _), all) in figure.curves.iter().zip(found) {
        for found in &all {
            (least, most) = (least.min(found.len()), most.max(found.len()));
        }
        let row = |f: &dyn Fn(&[f64]) -> Option<f64>| all.iter().map(|v| f(v)).collect::<Vec<_>>();
        rows.push((name.clone(), row(&|v| percentile(v, 50))));
        rows.push((format!("{name}, p{worst}"), row(&|v| percentile(v, worst))));
        rows.push((format!("{name}, +-"), row(&half_width)));
    }
    let method = format!(
        "{least} to {most} runs a point, seeds from 1. Rows: median, {worst}th percentile, half \
         width of the 95 % interval of the mean."
    );
    let mut table =
        Table::new(&format!("Figure {}: {}", figure.number, figure.title), method, &columns);
    rows.into_iter().for_each(|(name, values)| table.row(name, values));
    table
}

/// What there is of each point of each curve.
pub(super) fn values(
    figure: &Figure,
    points: u32,
    runs: u64,
    records: &[Record],
) -> Vec<Vec<Vec<f64>>> {
    let by_key: BTreeMap<&str, &Record> = records.iter().map(|r| (r.key.as_str(), r)).collect();
    let point = |setup: Setup, skewness_percent: u32| {
        let key = |seed| Run { setup, skewness_percent, seed }.key();
        let found = (1..=runs).filter_map(|seed| by_key.get(key(seed).as_str()));
        found.map(|record| record.value(figure.metric)).collect()
    };
    let curve = |setup| skewness_points(points).map(|percent| point(setup, percent)).collect();
    figure.curves.iter().map(|&(_, setup)| curve(setup)).collect()
}

/// The percentile by nearest rank.
pub(super) fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied()
}

/// Half the width of the 95 % confidence interval of the mean, by the normal law.
fn half_width(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some(1.96 * (variance / n).sqrt())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_record_that_was_written_reads_back_and_one_cut_off_does_not() {
        let setup = Setup::new(4, 2, Rival::Grpf);
        let record = Run { setup, skewness_percent: 50, seed: 3 }.run().expect("runs");
        let line = record.to_string();
        assert_eq!(Record::parse(&line).expect("a record").key, record.key);
        assert_eq!(Record::parse(&line[..line.len() - 40]), None);
    }

    #[test]
    fn setups_that_differ_have_different_names() {
        let mut names: std::collections::BTreeMap<String, Setup> = BTreeMap::new();
        for (_, setup) in figures().into_iter().flat_map(|figure| figure.curves) {
            let known = names.entry(setup.to_string()).or_insert(setup);
            assert_eq!(*known, setup);
        }
        let numbers: BTreeSet<&str> = figures().iter().map(|figure| figure.number).collect();
        assert_eq!(numbers.len(), figures().len());
    }

    #[test]
    fn a_table_says_how_many_runs_it_has() {
        let figure =
            figure("0", "t", Metric::Throughput, [("a".into(), Setup::new(4, 2, Rival::Madd))]);
        let run = figure.runs(1, 1)[0];
        let table = table(&figure, 1, 2, &[run.run().expect("runs")]);
        assert!(table.method.starts_with("1 to 1 runs"));
        assert!(table.rows[0].1[0].is_some_and(|gbps| gbps > 1.0));
        assert_eq!(table.rows[2].1[0], None);
    }

    #[test]
    fn ten_points_are_spread_from_5_to_95_per_cent() {
        let points: Vec<u32> = skewness_points(10).collect();
        assert_eq!(points, [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]);
    }
}
