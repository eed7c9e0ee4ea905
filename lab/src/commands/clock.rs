//! `evenfall clock lab`: nodes with planted clocks on this machine, where the truth is known.

mod processes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Subcommand;
use evenfall_clock_service::{ClockSettings, Planting, plant};
use evenfall_host::lab;
use evenfall_host::{Error, interrupt};
use evenfall_runtime::program::Outcome;
use evenfall_studies::clock::ClockSpread;
use serde::Serialize;

use super::bench::cross;
use crate::laboratory::{self, ClockSample, LaboratoryResults, Planted};

/// Clock reads of a busy loop between two checks whether the loop should end.
const BUSY_READS: u32 = 10_000;

/// Arguments of `evenfall-lab clock`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Plant wrong clocks in nodes on this machine, and compare the times that the nodes find with
    /// the true time.
    Lab(Lab),
    /// One node of `clock lab`.
    #[command(hide = true)]
    Node,
}

#[derive(clap::Args, Debug)]
struct Lab {
    /// Nodes, the first of which is the reference. As root, each is a process in a network
    /// namespace of its own. Without root, each is a thread with a socket of its own on loopback.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=256))]
    hosts: u32,
    /// Clocks are up to this much ahead or behind.
    #[arg(long, default_value = "20ms", value_name = "DURATION", value_parser = plant::offset)]
    offset: Duration,
    /// Clocks are up to this much too fast or too slow.
    #[arg(long, default_value = "100ppm", value_name = "RATE", value_parser = plant::rate)]
    drift: u32,
    /// Samples of each node, 27 a second.
    #[arg(
        long,
        default_value_t = 500,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    samples: u32,
    /// Limit of the probes that a node sends, in kilobits per second.
    #[arg(long, value_name = "KBIT/S", default_value_t = 500)]
    budget: u64,
    /// Limit of the processor time that a node takes for its probes, in percent of a core.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    core: f64,
    /// Run a second mesh of the same hosts at the same time, over other ports, and compare the
    /// clocks of both meshes. On real hosts, where nobody knows the true time, only this comparison
    /// is possible.
    #[arg(long)]
    twice: bool,
    /// Make threads also as root.
    #[arg(long)]
    threads: bool,
    /// Loops that keep a core each busy beside the nodes.
    #[arg(
        long,
        default_value_t = 0,
        value_name = "LOOPS",
        value_parser = clap::value_parser!(u32).range(0..=64)
    )]
    busy: u32,
    /// Other traffic beside the probes: what each node's host sends to the next host, in megabits
    /// per second. On loopback one socket sends as much as all hosts would.
    #[arg(
        long,
        default_value_t = 0,
        value_name = "MBIT/S",
        value_parser = clap::value_parser!(u64).range(0..=100_000)
    )]
    traffic: u64,
    /// Seed of the planted clocks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The results of a laboratory.
#[derive(Debug, Serialize)]
struct Results {
    hosts: u32,
    /// "processes", each in a network namespace of its own, or "threads".
    nodes: &'static str,
    /// Busy loops beside the nodes.
    busy: u32,
    /// Megabits a second of other traffic, all hosts together.
    traffic_mbit_s: u64,
    samples: usize,
    /// Errors at use, against the clock of the reference.
    error_us: ClockSpread,
    /// Proven bounds.
    proven_us: ClockSpread,
    /// Assumed bounds.
    assumed_us: ClockSpread,
    /// Share of the samples within the assumed bound.
    coverage: f64,
    /// Share of the samples within the proven bound.
    proven_coverage: f64,
    /// Greatest share of a core that a node took from its first sample on, system calls included.
    core_share: f64,
    /// Greatest share of a core that a node measured for its clock at the end of the run.
    clock_core_share: f64,
    /// The fewest pairs of probes that a node sent in a second at the end of the run.
    pairs_per_s: f64,
    /// The most that a node sent, in kilobits a second with the headers of all layers.
    sent_kbit_s: f64,
    /// Difference of two disjoint meshes over the same hosts.
    between_us: Option<ClockSpread>,
    /// Share of these differences within the sum of both assumed bounds.
    between_coverage: Option<f64>,
}

/// Differences of two meshes: of the k-th samples of each host. The samples of both are at most
/// some tens of milliseconds apart.
fn between(one: &[ClockSample], two: &[ClockSample]) -> (ClockSpread, f64) {
    let mut other: BTreeMap<u32, VecDeque<&ClockSample>> = BTreeMap::new();
    two.iter().for_each(|sample| other.entry(sample.node).or_default().push_back(sample));
    let (mut apart, mut within) = (Vec::new(), 0);
    for sample in one {
        let Some(twin) = other.get_mut(&sample.node).and_then(VecDeque::pop_front) else {
            continue;
        };
        let difference = sample.error_ns.abs_diff(twin.error_ns);
        let bounds = sample.assumed_ns.zip(twin.assumed_ns).map(|(a, b)| a + b);
        within += usize::from(bounds.is_some_and(|bounds| difference <= bounds));
        apart.push(difference);
    }
    let share = within as f64 / apart.len().max(1) as f64;
    (ClockSpread::of(&mut apart), share)
}

fn results(args: &Lab, nodes: &'static str, found: &LaboratoryResults) -> Results {
    let samples = &found.samples;
    let spread = |of: fn(&ClockSample) -> Option<u64>| {
        ClockSpread::of(&mut samples.iter().filter_map(of).collect::<Vec<u64>>())
    };
    let within = |bound: fn(&ClockSample) -> Option<u64>| {
        let fits = |sample: &&ClockSample| {
            bound(sample).is_some_and(|bound| sample.error_ns.unsigned_abs() <= bound)
        };
        samples.iter().filter(fits).count() as f64 / samples.len().max(1) as f64
    };
    Results {
        hosts: args.hosts,
        nodes,
        busy: args.busy,
        traffic_mbit_s: args.traffic * u64::from(args.hosts),
        samples: samples.len(),
        error_us: spread(|sample| Some(sample.error_ns.unsigned_abs())),
        proven_us: spread(|sample| sample.proven_ns),
        assumed_us: spread(|sample| sample.assumed_ns),
        coverage: within(|sample| sample.assumed_ns),
        proven_coverage: within(|sample| sample.proven_ns),
        core_share: found.core_share,
        clock_core_share: found.clock_core_share,
        pairs_per_s: found.pairs_per_s,
        sent_kbit_s: found.sent_bits_s as f64 / 1e3,
        between_us: None,
        between_coverage: None,
    }
}

/// Loops that keep cores busy until this value is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new(loops: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..loops {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..BUSY_READS {
                        std::hint::black_box(std::time::Instant::now());
                    }
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The hosts of the nodes; `None` for threads on this host.
fn hosts(args: &Lab) -> Result<Option<lab::Lab>, Error> {
    if args.threads {
        return Ok(None);
    }
    match lab::Lab::new(args.hosts as usize) {
        Ok(lab) => Ok(Some(lab)),
        Err(error @ Error::Lab { .. }) => {
            aside!("{error}\nThe nodes are threads on loopback instead of processes.");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Runs one mesh, or two at a time.
fn found(
    args: &Lab,
    lab: Option<&lab::Lab>,
    planted: &Planted,
) -> Result<(LaboratoryResults, Option<LaboratoryResults>), String> {
    let one = |mesh| match lab {
        Some(lab) => processes::run(lab, planted, mesh),
        None => laboratory::run(planted).map_err(|error| error.to_string()),
    };
    if !args.twice {
        return Ok((one(0)?, None));
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(|| one(1));
        let found = one(0);
        let second = second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((found?, Some(second?)))
    })
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Lab(args) => run(args),
        Command::Node => processes::node(),
    }
}

fn run(args: &Lab) -> Outcome {
    let clock = ClockSettings {
        budget_bits_s: args.budget.saturating_mul(1_000),
        budget_core_share: args.core / 100.0,
        plant: Some(Planting { offset: args.offset, drift_ppb: args.drift }),
        plant_seed: args.seed,
        ..ClockSettings::default()
    };
    let planted = Planted { hosts: args.hosts, samples: args.samples, clock };
    planted.clock.check()?;
    let lab = hosts(args)?;
    if lab.is_some() {
        // A signal then ends the nodes, and their hosts are removed.
        interrupt::install()?;
    }
    let nodes = if lab.is_some() { "processes" } else { "threads" };
    let bits_per_s = 1_000_000 * args.traffic;
    let _traffic = match (&lab, bits_per_s) {
        (_, 0) => None,
        (Some(lab), _) => Some(cross::start(lab, 0, bits_per_s)?),
        (None, _) => Some(cross::start_on_loopback(bits_per_s * u64::from(args.hosts))?),
    };
    let _busy = Busy::new(args.busy);
    let (found, second) = found(args, lab.as_ref(), &planted)?;
    let mut results = results(args, nodes, &found);
    if let Some(second) = &second {
        let (spread, coverage) = between(&found.samples, &second.samples);
        (results.between_us, results.between_coverage) = (Some(spread), Some(coverage));
    }
    if args.json {
        say!("{}", serde_json::to_value(&results)?);
        return Ok(());
    }
    say!("{} nodes, which are {nodes} on this machine", args.hosts);
    say!("{:<16} {:>10} {:>10} {:>10}", "us", "p50", "p99", "max");
    for (name, spread) in [
        ("error", results.error_us),
        ("assumed bound", results.assumed_us),
        ("proven bound", results.proven_us),
    ] {
        say!("{name:<16} {:>10.3} {:>10.3} {:>10.3}", spread.p50, spread.p99, spread.max);
    }
    say!(
        "{} samples: {:.3} % within the assumed bound, {:.3} % within the proven bound",
        results.samples,
        100.0 * results.coverage,
        100.0 * results.proven_coverage
    );
    say!(
        "a node took {:.2} % of a core and sent {:.0} kbit/s at most, {:.0} pairs/s at least",
        100.0 * results.core_share,
        results.sent_kbit_s,
        results.pairs_per_s
    );
    if let Some((spread, coverage)) = results.between_us.zip(results.between_coverage) {
        say!(
            "two meshes differ by {:.3} us (p50), {:.3} us (p99), {:.3} us (max); {:.3} % of the \
             differences are within the sum of both assumed bounds",
            spread.p50,
            spread.p99,
            spread.max,
            100.0 * coverage
        );
    }
    Ok(())
}
