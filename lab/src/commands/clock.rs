//! `evenfall clock lab`: nodes with planted clocks on this machine, where the truth is known.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use clap::Subcommand;
use evenfall_clock_service::laboratory::{Found, Planted, Sample, run};
use evenfall_clock_service::{ClockSettings, Planting, plant};
use evenfall_runtime::program::Outcome;
use serde::Serialize;

use crate::clock::Spread;

/// Arguments of `evenfall-lab clock`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Plant wrong clocks in nodes on this machine, and compare what they find with the truth.
    Lab(Lab),
}

#[derive(clap::Args, Debug)]
struct Lab {
    /// Nodes, each a thread with a port of its own. The first is the reference.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=256))]
    hosts: u32,
    /// Clocks are up to this much ahead or behind.
    #[arg(
        long,
        default_value = "20ms",
        value_name = "DURATION",
        value_parser = humantime::parse_duration
    )]
    offset: Duration,
    /// Clocks are up to this much too fast or too slow.
    #[arg(long, default_value = "100ppm", value_name = "RATE", value_parser = plant::rate)]
    drift: u32,
    /// Samples of each node, 27 a second.
    #[arg(long, default_value_t = 500)]
    samples: u32,
    /// Limit of the probes that a node sends, in kilobits per second.
    #[arg(long, value_name = "KBIT/S", default_value_t = 500)]
    budget: u64,
    /// Run a second mesh of the same hosts at the same time, over other ports, and compare the
    /// clocks of both meshes. On real hosts, where nobody knows the true time, only this comparison
    /// is possible.
    #[arg(long)]
    twice: bool,
    /// Seed of the planted clocks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What came of a laboratory.
#[derive(Debug, Serialize)]
struct Results {
    hosts: u32,
    samples: usize,
    /// Errors at use, against the clock of the reference.
    error_us: Spread,
    /// Proven bounds.
    proven_us: Spread,
    /// Assumed bounds.
    assumed_us: Spread,
    /// Share of the samples within the assumed bound.
    coverage: f64,
    /// Share of the samples within the proven bound.
    proven_coverage: f64,
    /// Greatest share of a core that a node took, system calls included.
    core_share: f64,
    /// The most that a node sent, in kilobits a second with the headers of all layers.
    sent_kbit_s: f64,
    /// Difference of two disjoint meshes over the same hosts.
    between_us: Option<Spread>,
    /// Share of these differences within the sum of both assumed bounds.
    between_coverage: Option<f64>,
}

/// Differences of two meshes: of the k-th samples of each host. The samples of both are at most
/// some tens of milliseconds apart.
fn between(one: &[Sample], two: &[Sample]) -> (Spread, f64) {
    let mut other: BTreeMap<u32, VecDeque<&Sample>> = BTreeMap::new();
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
    (Spread::of(&mut apart), share)
}

fn results(hosts: u32, found: &Found) -> Results {
    let samples = &found.samples;
    let spread = |of: fn(&Sample) -> Option<u64>| {
        Spread::of(&mut samples.iter().filter_map(of).collect::<Vec<u64>>())
    };
    let within = |bound: fn(&Sample) -> Option<u64>| {
        let fits = |sample: &&Sample| {
            bound(sample).is_some_and(|bound| sample.error_ns.unsigned_abs() <= bound)
        };
        samples.iter().filter(fits).count() as f64 / samples.len().max(1) as f64
    };
    Results {
        hosts,
        samples: samples.len(),
        error_us: spread(|sample| Some(sample.error_ns.unsigned_abs())),
        proven_us: spread(|sample| sample.proven_ns),
        assumed_us: spread(|sample| sample.assumed_ns),
        coverage: within(|sample| sample.assumed_ns),
        proven_coverage: within(|sample| sample.proven_ns),
        core_share: found.core_share,
        sent_kbit_s: found.sent_bits_s as f64 / 1e3,
        between_us: None,
        between_coverage: None,
    }
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    let Command::Lab(args) = &args.command;
    let clock = ClockSettings {
        budget_bits_s: 1_000 * args.budget,
        plant: Some(Planting { offset: args.offset, drift_ppb: args.drift }),
        plant_seed: args.seed,
        ..ClockSettings::default()
    };
    let planted = Planted { hosts: args.hosts, samples: args.samples, clock };
    planted.clock.check()?;
    let (found, second) = if args.twice {
        std::thread::scope(|scope| {
            let second = scope.spawn(|| run(&planted));
            let found = run(&planted);
            let second = second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            found.and_then(|found| Ok((found, Some(second?))))
        })?
    } else {
        (run(&planted)?, None)
    };
    let mut results = results(args.hosts, &found);
    if let Some(second) = &second {
        let (spread, coverage) = between(&found.samples, &second.samples);
        (results.between_us, results.between_coverage) = (Some(spread), Some(coverage));
    }
    if args.json {
        println!("{}", serde_json::to_value(&results)?);
        return Ok(());
    }
    println!("{:<16} {:>10} {:>10} {:>10}", "us", "p50", "p99", "max");
    for (name, spread) in [
        ("error", results.error_us),
        ("assumed bound", results.assumed_us),
        ("proven bound", results.proven_us),
    ] {
        println!("{name:<16} {:>10.3} {:>10.3} {:>10.3}", spread.p50, spread.p99, spread.max);
    }
    println!(
        "{} samples: {:.3} % within the assumed bound, {:.3} % within the proven bound",
        results.samples,
        100.0 * results.coverage,
        100.0 * results.proven_coverage
    );
    println!(
        "a node took {:.2} % of a core and sent {:.0} kbit/s at most",
        100.0 * results.core_share,
        results.sent_kbit_s
    );
    if let Some((spread, coverage)) = results.between_us.zip(results.between_coverage) {
        println!(
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
