//! Chapter 6 of the thesis, figure by figure.
//!
//! A figure has curves over message skewness. A point of a curve is several [`ShuffleRun`]s with
//! seeds of their own. Figures share runs: throughput and buffers of one setup come from the same
//! runs. A [`Record`] is one finished run as a line of text, so that a stopped study can be
//! continued.

use core::fmt;
use std::collections::BTreeMap;

use evenfall_campaigns::shuffle::preempt::Runs;
use evenfall_campaigns::shuffle::rivals::{Ablation, ShuffleRival};
use evenfall_campaigns::shuffle::scene::{
    Control, Done, LINK_BITS_PER_S, RACK_HOSTS, ShuffleParams, run,
};
use evenfall_campaigns::shuffle::unfinished::Unfinished;
use evenfall_campaigns::shuffle::{Links, Matrix, workload};
use evenfall_core::Prng;
use evenfall_sim::Priorities;

use super::curves::Curves;

/// The parameters of a run without its matrix and its seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Nodes, 40 in a rack.
    pub nodes: usize,
    /// Mean length of a message in packets.
    pub mean_packets: u32,
    /// The scheme.
    pub rival: ShuffleRival,
    /// Parts that the scheme lacks.
    pub ablation: Ablation,
    /// Limit of outstanding grants in round trips, which replaces the value of the scheme.
    pub overcommit: Option<u32>,
    /// Bandwidth of a rack's uplinks in percent of the bandwidth of its hosts.
    pub core_percent: u32,
    /// Mean pause in round trips; 0 for none.
    pub preempt_rtt: u32,
    /// Distribution of the runs between pauses.
    pub runs: Runs,
    /// Ports at which control packets go before data.
    pub priorities: Priorities,
    /// Duration of the all-reduce, divided by the duration of the fastest all-reduce in software; 0
    /// for an immediate result.
    pub stale: u32,
    /// Cost of control packets.
    pub control: Control,
}

impl Setup {
    /// A complete scheme on a network of full bisection without pre-emption.
    pub(super) fn new(nodes: usize, mean_packets: u32, rival: ShuffleRival) -> Self {
        Self {
            nodes,
            mean_packets,
            rival,
            ablation: Ablation::Whole,
            overcommit: None,
            core_percent: 100,
            preempt_rtt: 0,
            runs: Runs::Alike,
            priorities: Priorities::Edge,
            stale: 0,
            control: Control::Free,
        }
    }
}

/// The name of the setup in records. The name is one word, and equal setups have equal names.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}-{}", self.nodes, self.mean_packets, self.rival)?;
        match self.ablation {
            Ablation::Whole => {}
            Ablation::Redirect(packets) => write!(f, "-redirect{packets}")?,
            other => write!(f, "-{}", format!("{other:?}").to_lowercase())?,
        }
        self.overcommit.map_or(Ok(()), |times| write!(f, "-over{times}"))?;
        let runs = if self.runs == Runs::Memoryless { "m" } else { "" };
        write!(f, "-core{}-pause{}{runs}", self.core_percent, self.preempt_rtt)?;
        let control = if self.control == Control::Free { "free" } else { "charged" };
        let place = format!("{:?}", self.priorities).to_lowercase();
        write!(f, "-{place}-stale{}-{control}", self.stale)
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShuffleRun {
    /// The setup.
    pub setup: Setup,
    /// Message skewness that the generator aims at, in percent.
    pub skewness_percent: u32,
    /// Seed of the matrix and of all other draws.
    pub seed: u64,
}

impl ShuffleRun {
    /// The beginning of the run's record. Equal runs have equal keys.
    pub fn key(&self) -> String {
        format!("{} {} {}", self.setup, self.skewness_percent, self.seed)
    }

    /// The parameters of the simulation.
    pub fn params(&self) -> ShuffleParams {
        let Setup { nodes, control, .. } = self.setup;
        let (payload, scale) = control.payload();
        let mean = f64::from(self.setup.mean_packets) * f64::from(payload * scale);
        let skewness = f64::from(self.skewness_percent) / 100.0;
        let normal = workload::by_sampling(nodes, skewness, &mut Prng::new(self.seed));
        let preempt = self.setup.preempt_rtt;
        ShuffleParams {
            rival: self.setup.rival,
            ablation: self.setup.ablation,
            overcommit: self.setup.overcommit.map(f64::from),
            core: f64::from(self.setup.core_percent) / 100.0,
            preempt_rtt: (preempt > 0).then(|| (f64::from(preempt), self.setup.runs)),
            priorities: self.setup.priorities,
            stale: f64::from(self.setup.stale),
            control,
            ..ShuffleParams::new(normal.bytes(mean), self.seed)
        }
    }

    /// Runs the simulation.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&self) -> Result<Record, Unfinished> {
        Ok(Record::new(self.key(), &run(&self.params())?))
    }
}

/// The quantity that a curve shows.
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
    /// Time that the last sender was pre-empted. A value of .5 is the least time of the shuffle
    /// without pre-emption. See [`Done::last_paused`].
    LastPaused,
    /// See [`Done::last_starved`].
    LastStarved,
    /// Gigabits per second and node that the most loaded link allows.
    Bound,
    /// Bytes on the most loaded link between a rack and the core, in percent of the mean bytes
    /// that the nodes of a rack send.
    CoreLoad,
}

impl Metric {
    fn more_is_better(self) -> bool {
        matches!(self, Self::Throughput | Self::Optimality | Self::Bound)
    }

    /// The value that follows from the matrix alone; `None` for a quantity that needs a run.
    fn of_matrix(self, matrix: &Matrix, core_percent: u32) -> Option<f64> {
        let hosts = LINK_BITS_PER_S as f64;
        let racks = matrix.nodes().div_ceil(RACK_HOSTS) as f64;
        let bits = matrix.total() as f64 * 8.0;
        let bound = |host_bits_per_s, rack_bits_per_s| {
            let links = Links { rack_hosts: RACK_HOSTS, host_bits_per_s, rack_bits_per_s };
            matrix.bound(&links, |bytes| bytes as f64)
        };
        match self {
            Self::Bound => {
                let core = f64::from(core_percent) / 100.0 * hosts * RACK_HOSTS as f64;
                Some(bits / matrix.nodes() as f64 / bound(hosts, core) / 1e9)
            }
            // With infinite host links and a core of one bit per second, the bound in seconds is
            // the load in bits.
            Self::CoreLoad => Some(100.0 * bound(f64::INFINITY, 1.0) * racks / bits),
            _ => None,
        }
    }
}

/// Metrics of a run, in the order of a record's numbers.
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
    /// [`ShuffleRun::key`].
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
            Metric::Bound | Metric::CoreLoad => f64::NAN,
        });
        Self { key, values }
    }

    /// Reads a line. Returns `None` when the line is not a whole record.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (key, numbers) = words.split_at_checked(3)?;
        let numbers: Vec<f64> = numbers.iter().map_while(|word| word.parse().ok()).collect();
        Some(Self { key: key.join(" "), values: numbers.try_into().ok()? })
    }

    /// The value of a metric.
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
    /// The number of the figure, such as `6.7a`.
    pub number: &'static str,
    /// Title of the figure.
    pub title: &'static str,
    /// The quantity on the vertical axis.
    pub metric: Metric,
    /// Names and setups of the curves.
    pub curves: Vec<(String, Setup)>,
    /// For relative figures: the setup with which a curve is compared, seed by seed.
    pub over: Option<fn(Setup) -> Setup>,
}

impl Figure {
    /// The runs of the figure, ordered by seed: all points of all curves with the first seed come
    /// before the second seed. A figure that follows from matrices has no runs.
    pub fn runs(&self, skewness: &[u32], runs: u64) -> Vec<ShuffleRun> {
        let mut setups: Vec<Setup> = self.curves.iter().map(|&(_, setup)| setup).collect();
        if let Some(over) = self.over {
            setups.extend(setups.clone().into_iter().map(over));
        }
        if matches!(self.metric, Metric::Bound | Metric::CoreLoad) {
            setups.clear();
        }
        let setups = &setups;
        (1..=runs)
            .flat_map(|seed| skewness.iter().map(move |&percent| (seed, percent)))
            .flat_map(|(seed, skewness_percent)| {
                setups.iter().map(move |&setup| ShuffleRun { setup, skewness_percent, seed })
            })
            .collect()
    }
}

/// All available figures, in the order of the thesis.
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
    Figure { number, title, metric, curves: curves.into_iter().collect(), over: None }
}

/// Messages that a receiver of Hadoop fetches at a time, in figures 6.1 to 6.4.
pub(super) const HADOOPS: [u32; 5] = [3, 5, 10, 20, 1000];

/// Section 6.1.
fn ideal() -> Vec<Figure> {
    use Metric::Throughput;
    use Priorities::{Everywhere, Nowhere};
    let overview = |nodes| {
        let rivals = HADOOPS.map(ShuffleRival::Hadoop);
        let all = [ShuffleRival::Madd, ShuffleRival::Grpf].into_iter().chain(rivals);
        all.chain([ShuffleRival::HadoopGranted(5)])
            .map(move |rival| (rival.to_string(), Setup::new(nodes, 16, rival)))
    };
    let policies = |times, priorities| {
        [ShuffleRival::Grpf, ShuffleRival::Grpt, ShuffleRival::Srpt].map(|rival| {
            let setup = baseline(rival, times, priorities);
            (rival.to_string(), setup)
        })
    };
    let over = |priorities| {
        [1, 2, 5, 10].map(|times| {
            (format!("overcommit {times}"), baseline(ShuffleRival::Grpf, times, priorities))
        })
    };
    let [constant, pro_rata, random] = randomised();
    let small = Setup { nodes: 40, ..random };
    let unasked = [
        ("none", Ablation::Scheduled),
        ("pro rata", Ablation::Printed),
        ("per message", Ablation::PerMessage),
        ("pro rata and slow start: ours", Ablation::Whole),
    ];
    let unasked = unasked.map(|(name, ablation)| (name.into(), Setup { ablation, ..small }));
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
                ("all of ours".into(), Setup { ablation: Ablation::Whole, ..random }),
            ],
        ),
        figure("6.10", "unscheduled packets, 40 nodes, Gb/s", Throughput, unasked),
    ]
}

fn baseline(rival: ShuffleRival, times: u32, priorities: Priorities) -> Setup {
    let ablation = Ablation::Baseline;
    Setup { ablation, overcommit: Some(times), priorities, ..Setup::new(160, 16, rival) }
}

/// Three setups: constant windows, windows in proportion, and windows in proportion with randomised
/// priorities.
pub(super) fn randomised() -> [Setup; 3] {
    let constant = baseline(ShuffleRival::Grpf, 10, Priorities::Nowhere);
    [Ablation::Baseline, Ablation::Even, Ablation::Scheduled]
        .map(|ablation| Setup { ablation, ..constant })
}

/// Section 6.2. Curves with "any time" use [`Runs::Memoryless`].
fn preempted() -> Vec<Figure> {
    use Metric::{LastPaused, LastStarved, Optimality, PortMax, RackMax, Throughput};
    let any_time = |setup| Setup { runs: Runs::Memoryless, ..setup };
    let pauses = |rival| {
        let paused = |preempt_rtt| Setup { preempt_rtt, ..Setup::new(40, 400, rival) };
        let name = |preempt_rtt| format!("{rival}, {preempt_rtt} RTT");
        let regular = [1, 5, 10, 20].map(|rtt| (name(rtt), paused(rtt)));
        let other = (name(20) + ", any time", any_time(paused(20)));
        regular.into_iter().chain([other])
    };
    let longest = Setup { preempt_rtt: 20, ..Setup::new(40, 400, ShuffleRival::Grpf) };
    let reach = [5, 25, 125].map(|trips| {
        let ablation = Ablation::Redirect(trips * 8);
        (format!("{trips} RTT ahead"), Setup { ablation, ..longest })
    });
    let any = ("any".to_owned(), Setup { ablation: Ablation::Printed, ..longest });
    let reach = reach.into_iter().chain([any]);
    let redirect = reach.flat_map(|(name, setup)| {
        let other = (name.clone() + ", any time", any_time(setup));
        [(name, setup), other]
    });
    let over = [5, 10, 20, 40]
        .map(|times| (format!("overcommit {times}"), Setup { overcommit: Some(times), ..longest }));
    vec![
        figure("6.11", "pre-empted: MADD, Gb/s", Throughput, pauses(ShuffleRival::Madd)),
        figure("6.12", "the same over the oracles' bound", Optimality, pauses(ShuffleRival::Madd)),
        figure("6.13", "pre-empted: GRPF, Gb/s", Throughput, pauses(ShuffleRival::Grpf)),
        figure("6.14a", "last sender: time pre-empted", LastPaused, pauses(ShuffleRival::Grpf)),
        figure(
            "6.14b",
            "last sender: time without grants",
            LastStarved,
            pauses(ShuffleRival::Grpf),
        ),
        figure("6.15", "redirection, 20 RTT, Gb/s", Throughput, redirect),
        figure("6.16", "overcommitment, 20 RTT, Gb/s", Throughput, over),
        figure("6.17", "pre-empted: Hadoop-10, Gb/s", Throughput, pauses(ShuffleRival::Hadoop(10))),
        figure(
            "6.18a",
            "largest buffer of the rack switch, MB",
            RackMax,
            pauses(ShuffleRival::Grpf),
        ),
        figure("6.18b", "longest queue to one host, MB", PortMax, pauses(ShuffleRival::Grpf)),
    ]
}

/// Section 6.3.
fn limited() -> Vec<Figure> {
    use Metric::{Bound, CoreLoad, CoreMax, CoreMean, Optimality, RackMax, RackMean, Throughput};
    use Priorities::{Edge, Everywhere};
    let cores = |nodes, rival, priorities: Priorities| {
        [50, 75, 90].map(|core_percent| {
            let setup = Setup { core_percent, priorities, ..Setup::new(nodes, 16, rival) };
            let place = if priorities == Edge { " edge" } else { "" };
            (format!("{rival}{place}, core {core_percent} %"), setup)
        })
    };
    let versions = || {
        let edge = cores(320, ShuffleRival::Grpf, Edge);
        let all = cores(320, ShuffleRival::Grpf, Everywhere);
        edge.into_iter().chain(all).chain(cores(320, ShuffleRival::Global, Everywhere))
    };
    let half = Setup {
        core_percent: 50,
        priorities: Everywhere,
        ..Setup::new(320, 16, ShuffleRival::Grpf)
    };
    let stale = [0, 1, 3, 10].map(|stale| {
        (format!("stale {stale}"), Setup { rival: ShuffleRival::Global, stale, ..half })
    });
    let none = [("no all-reduce".to_owned(), half)];
    let global = |nodes| cores(nodes, ShuffleRival::Global, Everywhere);
    let hadoop = || cores(320, ShuffleRival::Hadoop(10), Edge);
    let quiet = Setup::new(160, 16, ShuffleRival::Grpf);
    let bounds = [50, 75, 90, 100]
        .map(|core_percent| (format!("core {core_percent} %"), Setup { core_percent, ..quiet }));
    let load = [("load".to_owned(), quiet)];
    let speedup = |rival, over| Figure {
        over: Some(over),
        ..figure("", "", Throughput, cores(160, rival, Everywhere))
    };
    vec![
        figure("6.19", "what the links allow, 160 nodes, Gb/s", Bound, bounds),
        figure("6.20", "load of the fullest core link, percent", CoreLoad, load),
        figure("6.21a", "GlobalSched over the bound, 160 nodes", Optimality, global(160)),
        figure("6.21b", "GlobalSched over the bound, 320 nodes", Optimality, global(320)),
        Figure {
            number: "6.22a",
            title: "priority in the core over priority at the edge, 160 nodes",
            ..speedup(ShuffleRival::Grpf, |setup| Setup { priorities: Edge, ..setup })
        },
        Figure {
            number: "6.22b",
            title: "global scheduling over priority in the core, 160 nodes",
            ..speedup(ShuffleRival::Global, |setup| Setup { rival: ShuffleRival::Grpf, ..setup })
        },
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

impl Figure {
    /// The curves of the figure, made from the records that exist.
    pub fn curves(&self, skewness: &[u32], runs: u64, records: &[Record]) -> Curves {
        let by_key: BTreeMap<&str, &Record> = records.iter().map(|r| (r.key.as_str(), r)).collect();
        let value = |run: ShuffleRun| match self.metric {
            Metric::Bound | Metric::CoreLoad => {
                self.metric.of_matrix(&run.params().matrix, run.setup.core_percent)
            }
            metric => by_key.get(run.key().as_str()).map(|record| record.value(metric)),
        };
        let relative = |run: ShuffleRun| match self.over {
            Some(over) => Some(value(run)? / value(ShuffleRun { setup: over(run.setup), ..run })?),
            None => value(run),
        };
        let point = |setup, skewness_percent| {
            (1..=runs)
                .filter_map(|seed| relative(ShuffleRun { setup, skewness_percent, seed }))
                .collect()
        };
        let curve = |setup| skewness.iter().map(|&percent| point(setup, percent)).collect();
        Curves {
            number: self.number,
            title: self.title,
            x: "message skewness",
            at: skewness.iter().map(|&percent| f64::from(percent) / 100.0).collect(),
            worst: if self.metric.more_is_better() { 10 } else { 90 },
            curves: self.curves.iter().map(|(name, s)| (name.clone(), curve(*s))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_record_that_was_written_reads_back_and_one_cut_off_does_not() {
        let setup = Setup::new(4, 2, ShuffleRival::Grpf);
        let record = ShuffleRun { setup, skewness_percent: 50, seed: 3 }.run().expect("runs");
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
    fn a_relative_figure_compares_the_runs_of_one_seed() {
        let setup = Setup::new(4, 2, ShuffleRival::Madd);
        let over = |setup| Setup { nodes: 5, ..setup };
        let mut relative = figure("0", "t", Metric::Throughput, [("a".into(), setup)]);
        relative.over = Some(over);
        let runs = relative.runs(&[50], 1);
        let records: Vec<Record> = runs.iter().map(|run| run.run().expect("runs")).collect();
        let [own, base] = [&records[0], &records[1]].map(|record| record.value(Metric::Throughput));
        assert_eq!(relative.curves(&[50], 2, &records).curves[0].1, [[own / base]]);
    }

    /// Section 6.3: with equal messages in four racks, three quarters of the bytes of a rack's
    /// nodes cross the uplinks of the rack. A core of 75 % is just enough for these bytes.
    #[test]
    fn a_core_of_three_quarters_is_just_enough_for_equal_messages_in_four_racks() {
        let matrix = Matrix::of(160, vec![24_000; 160 * 160]);
        let load = Metric::CoreLoad.of_matrix(&matrix, 100).expect("of a matrix");
        assert!((load - 75.0).abs() < 1e-9, "{load}");
        let bound = |core| Metric::Bound.of_matrix(&matrix, core).expect("of a matrix");
        assert!((bound(50) - 50.0 / 3.0).abs() < 1e-9, "{}", bound(50));
        // A message to itself takes no link.
        assert!((bound(90) - 25.0 * 160.0 / 159.0).abs() < 1e-9, "{}", bound(90));
        assert!((bound(75) - 25.0).abs() < 1e-9, "{}", bound(75));
    }
}
