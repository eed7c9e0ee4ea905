//! Bulk reads on a simulated data centre: Mayflower, its rivals, and a bound.
//!
//! A run draws the workload of the thesis from a seed. A policy chooses copy and path of every
//! read. Flows share links as fluids ([`evenfall_sim::Fluid`]). A policy with an agent in the
//! network sees the byte counts of edge switches once a second, each rack at another time. A policy
//! without an agent sees the counts of the flows' own hosts.
//!
//! | module | what it holds |
//! |---|---|
//! | [`workload`], [`tpch`] | reads and background flows, drawn from a seed |
//! | [`rivals`], [`prequal`], [`agentless`] | policies beside the selector |
//! | [`scene`] | one run, over a network that is simulated or real |
//! | [`fluids`] | the simulated network |
//! | [`bound`] | a lower bound that no policy can beat |
//! | [`study`] | figures 3.3 to 3.9 of the thesis |
//! | [`morning`] | eight hosts read the same recorded day at once |

pub mod agentless;
pub mod bound;
pub mod fluids;
pub mod morning;
pub mod prequal;
pub mod rivals;
pub mod scene;
pub mod study;
pub mod tpch;
pub mod workload;

use std::str::FromStr;
use std::time::Duration;

use evenfall_campaigns::seeds::in_parallel;
use evenfall_core::statistics::mean;
use evenfall_files_flow::{Config, PART_BYTES, Policy, Selector, ThreeTier, Two};

use agentless::Agentless;
use prequal::Prequal;
use rivals::{Copies, FilesRival, Paths};
use scene::{ReadPlan, ReadTimes};
use workload::{Locality, Placement, ReadLoad};

/// The policies of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Steering {
    /// Up to two copies, by a cost in which the duration counts once.
    Mayflower,
    /// Up to two copies, by the cost that the thesis prints.
    MayflowerPrinted,
    /// One copy: Mayflower-B.
    MayflowerB,
    /// The nearest copy, hashed paths.
    Nearest,
    /// The nearest copy, Mayflower's paths.
    NearestMf,
    /// The copy with the most room above it, hashed paths.
    Sinbad,
    /// The copy with the most room above it, Mayflower's paths.
    SinbadMf,
    /// HDFS' order of copies, hashed paths.
    Hdfs,
    /// HDFS' order of copies, Mayflower's paths.
    HdfsMf,
    /// The nearest copy, and large flows move to paths with room.
    Hedera,
    /// Prequal's choice by requests in flight and latency, hashed paths.
    Prequal,
    /// Source ports that the hosts of a flow measure, without an agent in the network.
    Agentless,
}

impl Steering {
    /// All policies, by name.
    pub const ALL: [(&'static str, Self); 12] = [
        ("mayflower", Self::Mayflower),
        ("mayflower-printed", Self::MayflowerPrinted),
        ("mayflower-b", Self::MayflowerB),
        ("agentless", Self::Agentless),
        ("prequal", Self::Prequal),
        ("sinbad-mf", Self::SinbadMf),
        ("sinbad", Self::Sinbad),
        ("nearest-mf", Self::NearestMf),
        ("nearest", Self::Nearest),
        ("hedera", Self::Hedera),
        ("hdfs-mf", Self::HdfsMf),
        ("hdfs", Self::Hdfs),
    ];

    /// The name of the policy on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, steering)| *steering == self).map_or("", |(name, _)| name)
    }

    /// Time between the arrival of a read and its first byte. A request to the Flowserver and the
    /// set-up of a path take 4 ms (thesis, 3.4.3). A probe of the copies takes one round trip, for
    /// which 1 ms is a generous value. A hash takes no time.
    fn setup(self) -> Duration {
        let millis = match self {
            Self::Nearest | Self::Hdfs | Self::Hedera => 0,
            Self::Prequal | Self::Agentless | Self::Sinbad => 1,
            _ => 4,
        };
        Duration::from_millis(millis)
    }

    fn policy(self, spec: &ThreeTier, interval: Duration, seed: u64) -> Box<dyn Policy> {
        let select = |two| -> Box<dyn Policy> {
            Box::new(Selector::new(spec.build(), Config::default(), two, interval))
        };
        let rival = |copies, paths| -> Box<dyn Policy> {
            Box::new(FilesRival::new(copies, paths, spec.clone(), interval, seed))
        };
        let cost = || FilesRival::cost(spec, interval);
        match self {
            Self::Mayflower => select(Two::Finish),
            Self::MayflowerPrinted => select(Two::Printed),
            Self::MayflowerB => select(Two::Never),
            Self::Nearest => rival(Copies::Nearest, Paths::Hash),
            Self::NearestMf => rival(Copies::Nearest, cost()),
            Self::Sinbad => rival(Copies::Sinbad, Paths::Hash),
            Self::SinbadMf => rival(Copies::Sinbad, cost()),
            Self::Hdfs => rival(Copies::Hdfs, Paths::Hash),
            Self::HdfsMf => rival(Copies::Hdfs, cost()),
            Self::Hedera => rival(Copies::Nearest, Paths::FirstFit(Box::new(spec.build()))),
            Self::Prequal => rival(Copies::Prequal(Prequal::default()), Paths::Hash),
            Self::Agentless => Box::new(Agentless::new(spec.clone(), seed)),
        }
    }
}

impl FromStr for Steering {
    type Err = UnknownSteering;

    fn from_str(name: &str) -> Result<Self, UnknownSteering> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, steering)| *steering).ok_or_else(|| UnknownSteering(name.to_owned()))
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSteering(String);

impl std::fmt::Display for UnknownSteering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = Steering::ALL.iter().map(|(name, _)| *name).collect();
        write!(f, "there is no policy {:?}; there are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownSteering {}

/// The parameters of a run, without its seed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadParams {
    /// The policy.
    pub steering: Steering,
    /// The network.
    pub spec: ThreeTier,
    /// The workload of reads.
    pub load: ReadLoad,
    /// Background flows per second and host; 0 for none.
    pub strangers_rate: f64,
    /// Whether the policy is told of background flows.
    pub strangers_seen: bool,
    /// How often a second each host falls silent, and for how many seconds in the mean; 0 for
    /// never.
    pub hangs: (f64, f64),
    /// Time between two byte counts of a flow by an edge switch.
    pub interval: Duration,
    /// Bytes of the parts of a read from two copies.
    pub part_bytes: u64,
}

/// Oversubscription at a rack: the bandwidth of its hosts divided by the bandwidth of its uplinks.
///
/// The thesis prints only the total oversubscription, and says that the capacity of the higher
/// links was varied. With one capacity for all links above the racks, 500 Mb/s each, the
/// oversubscription is 4:1 at the racks and 2:1 above them.
pub const RACK_RATIO: f64 = 4.0;
/// Total oversubscription of the network of the thesis.
pub const TOTAL_RATIO: f64 = 8.0;
/// Files of a run. The thesis does not print their number. With 1,000 files the most popular file
/// would draw 18 % of all reads. At .1 reads per second and host, policies that read the nearest
/// copy would then overload the link of its primary, and times would grow with the length of the
/// run.
pub const FILES: usize = 10_000;
/// Reads of a run: five minutes at .1 per second and host.
pub const READS: usize = 2_000;
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 128_000_000;

impl Default for ReadParams {
    fn default() -> Self {
        Self {
            steering: Steering::Mayflower,
            spec: ThreeTier::thesis(RACK_RATIO, TOTAL_RATIO),
            load: ReadLoad {
                rate: 0.1,
                reads: READS,
                bytes: BLOCK_BYTES,
                queries: None,
                files: FILES,
                skewness: 1.1,
                locality: Locality { rack: 0.5, pod: 0.3 },
                placement: Placement::Spread,
            },
            strangers_rate: 0.0,
            strangers_seen: false,
            hangs: (0.0, 0.0),
            interval: Duration::from_secs(1),
            part_bytes: PART_BYTES,
        }
    }
}

impl ReadParams {
    /// Runs one seed on the simulated network. Returns the times of the run and the lower bound on
    /// the mean in seconds.
    pub fn run(&self, seed: u64) -> (ReadTimes, f64) {
        match self.run_on(seed, |plan, policy| Ok(fluids::run(plan, policy))) {
            Ok(done) => done,
            Err(error) => unreachable!("fluids do not fail: {error}"),
        }
    }

    /// Runs one seed on any network.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn run_on(
        &self,
        seed: u64,
        run: impl FnOnce(ReadPlan<'_>, &mut dyn Policy) -> Result<ReadTimes, String>,
    ) -> Result<(ReadTimes, f64), String> {
        let jobs = workload::jobs(&self.spec, &self.load, seed);
        let until_s = jobs.last().map_or(0.0, |job| job.at_s);
        let strangers = if self.strangers_rate > 0.0 {
            workload::strangers(&self.spec, self.strangers_rate, until_s, seed)
        } else {
            Vec::new()
        };
        let (rate, hang_s) = self.hangs;
        let hangs = match rate > 0.0 {
            true => workload::hangs(&self.spec, rate, hang_s, until_s, seed),
            false => Vec::new(),
        };
        let mut policy = self.steering.policy(&self.spec, self.interval, seed);
        let plan = ReadPlan {
            spec: &self.spec,
            jobs: &jobs,
            strangers: &strangers,
            hangs: &hangs,
            seen: self.strangers_seen,
            setup: self.steering.setup(),
            part_bytes: self.part_bytes,
            seed,
        };
        Ok((run(plan, policy.as_mut())?, bound::mean_s(&self.spec, &jobs)))
    }

    /// Runs the seeds `first..first + seeds` and collects their figures.
    pub fn runs(&self, first: u64, seeds: u64) -> FilesSummary {
        let mut summary = FilesSummary::default();
        for (times, bound_s) in in_parallel(first, seeds, |seed| self.run(seed), |_| {}) {
            summary.take(&times, bound_s);
        }
        summary
    }
}

/// Percentiles of the distribution of reads.
pub const PERCENTS: [u32; 13] = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99];

/// Figures of several seeds: each list has one value per seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilesSummary {
    /// Mean time of a read, seconds.
    pub mean_s: Vec<f64>,
    /// 50th percentile.
    pub p50_s: Vec<f64>,
    /// 95th percentile.
    pub p95_s: Vec<f64>,
    /// 99th percentile.
    pub p99_s: Vec<f64>,
    /// The percentiles of [`PERCENTS`].
    pub percentiles_s: Vec<Vec<f64>>,
    /// Mean time of a wave: of a query, where queries read.
    pub waves_s: Vec<f64>,
    /// Mean time of the background flows, seconds.
    pub strangers_s: Vec<f64>,
    /// Lower bound on the mean time of a read, seconds.
    pub bound_s: Vec<f64>,
    /// Share of reads from two copies.
    pub divided: Vec<f64>,
    /// Mean time between the ends of the two flows of such a read, seconds; 0 without such reads.
    pub apart_s: Vec<f64>,
    /// Paths changed per read.
    pub reroutes: Vec<f64>,
    /// Flows per read that fell silent and went on from another copy.
    pub hedged: Vec<f64>,
}

impl FilesSummary {
    /// Adds the figures of a seed.
    pub fn take(&mut self, times: &ReadTimes, bound_s: f64) {
        let reads = times.reads_s.len() as f64;
        let mut sorted = times.reads_s.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted[((part * reads).ceil() as usize).clamp(1, sorted.len()) - 1];
        self.mean_s.push(mean(&times.reads_s).unwrap_or(f64::NAN));
        self.p50_s.push(at(0.5));
        self.p95_s.push(at(0.95));
        self.p99_s.push(at(0.99));
        self.percentiles_s.push(PERCENTS.map(|percent| at(f64::from(percent) / 100.0)).to_vec());
        self.waves_s.push(mean(&times.waves_s).unwrap_or(f64::NAN));
        let done: Vec<f64> = times.strangers_s.iter().copied().filter(|s| s.is_finite()).collect();
        self.strangers_s.push(mean(&done).unwrap_or(f64::NAN));
        self.bound_s.push(bound_s);
        self.divided.push(times.divided as f64 / reads);
        self.apart_s.push(mean(&times.apart_s).unwrap_or(0.0));
        self.reroutes.push(times.reroutes as f64 / reads);
        self.hedged.push(times.hedged as f64 / reads);
    }
}
