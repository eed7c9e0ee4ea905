//! `evenfall clock lab`: nodes with planted clocks on this machine, where the truth is known.

use std::time::Duration;

use clap::Subcommand;
use evenfall_clock_service::ClockSettings;
use evenfall_clock_service::laboratory::{Planted, Sample, run};
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
    /// Plants wrong clocks in nodes on this machine, and compares what they find with the truth.
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
    #[arg(long, default_value = "100ppm", value_name = "RATE", value_parser = ppb)]
    drift: u32,
    /// Samples of each node, 27 a second.
    #[arg(long, default_value_t = 500)]
    samples: u32,
    /// What a node may send for its probes, in kilobits a second.
    #[arg(long, value_name = "KBIT/S", default_value_t = 500)]
    budget: u64,
    /// Seed of the planted clocks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Reads a rate such as `100ppm` or `20ppb`, up to the worst drift that the clock allows for.
fn ppb(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text}: must be 0ppm to 100ppm, or so many ppb");
    let (number, unit) = match (text.strip_suffix("ppm"), text.strip_suffix("ppb")) {
        (Some(number), _) => (number, 1_000),
        (_, Some(number)) => (number, 1),
        _ => return Err(wrong()),
    };
    let number: u32 = number.trim().parse().map_err(|_| wrong())?;
    let rate = number.checked_mul(unit).filter(|rate| *rate <= 100_000);
    rate.ok_or_else(wrong)
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
}

fn results(hosts: u32, samples: &[Sample]) -> Results {
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
    }
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    let Command::Lab(args) = &args.command;
    let planted = Planted {
        hosts: args.hosts,
        offset: args.offset,
        drift_ppb: args.drift,
        samples: args.samples,
        clock: ClockSettings { mesh: true, budget_bits_s: 1_000 * args.budget },
        seed: args.seed,
    };
    planted.clock.check()?;
    let samples = run(&planted)?;
    let results = results(args.hosts, &samples);
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_unit_and_stay_within_what_crystals_do() {
        assert_eq!((ppb("100ppm"), ppb("20ppb")), (Ok(100_000), Ok(20)));
        assert!(ppb("101ppm").is_err() && ppb("100").is_err() && ppb("9999999ppm").is_err());
    }
}
