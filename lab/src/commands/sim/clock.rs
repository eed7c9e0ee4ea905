//! `evenfall sim clock`: one time for all nodes, in the simulator.

use std::str::FromStr;
use std::time::Duration;

use evenfall_campaigns::model::Model;
use evenfall_runtime::program::Outcome;
use evenfall_runtime::progress::Progress;
use evenfall_studies::clock::parts::PartsLeftOut;
use evenfall_studies::clock::paths::FabricSpec;
use evenfall_studies::clock::{ClockParams, ClockResults, ClockSpread, run};
use humantime::{format_duration, parse_duration};

use super::seeds;

/// Simulated seconds of all nodes together at most. The readings of each second are kept to the end
/// of the run.
const NODE_SECONDS_MAX: f64 = 10_000_000.0;

/// Arguments of `evenfall sim clock`.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Number of nodes. The first node is the reference.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    nodes: u32,
    /// Share of the time in which other traffic keeps every link busy: 0, .5, .9.
    #[arg(long, default_value_t = 0.5)]
    load: f64,
    /// Greatest lasting difference of the two ways of a pair, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 0.0, conflicts_with = "model")]
    asymmetry: f64,
    /// Standard deviation of the rates of clocks, in parts per million.
    #[arg(long, value_name = "PPM", default_value_t = 20.0, conflicts_with = "model")]
    drift: f64,
    /// How much a rate changes in a second, in parts per billion.
    #[arg(long, value_name = "PPB", default_value_t = 5.0, conflicts_with = "model")]
    wander: f64,
    /// Half of the hosts grow warmer for ten seconds from the middle of the run on. The rates of
    /// their clocks change by this much in each of these seconds, in parts per billion.
    #[arg(long, value_name = "PPB", default_value_t = 0.0, conflicts_with = "model")]
    warming: f64,
    /// A cloud whose paths, hosts and clocks take the place of the study's own: aws, gcp, quiet,
    /// namespaces, or the path of a file of the same form. The traffic of --load is added to the
    /// model.
    #[arg(long, value_name = "NAME|FILE", value_parser = Model::named)]
    model: Option<Model>,
    /// Hosts stand in racks of ten below four core switches, and a hash of two hosts picks the core
    /// switch of each way. Ports have loads of 0 to twice --load.
    #[arg(long, conflicts_with_all = ["model", "asymmetry"])]
    fat_tree: bool,
    /// Compute the clocks without a part of the method, too, on the stamps of the same run: codes
    /// (only pairs of probes that arrived 20 us apart count), hulls (the widest band between the
    /// probes of both ways) or loops (least squares over the mesh); several as in codes+hulls.
    /// May be repeated.
    #[arg(long, value_name = "PARTS", value_parser = PartsLeftOut::from_str)]
    without: Vec<PartsLeftOut>,
    /// Share of the nodes that tell each neighbour another time.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    liars: f64,
    /// Share of the nodes that crash in the middle of the run.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    lost: f64,
    /// Limit of the probes that a node sends, in kilobits per second.
    #[arg(long, value_name = "KBIT/S", default_value_t = 500)]
    budget: u64,
    /// How long clocks are observed, in simulated time.
    #[arg(long, default_value = "20s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// The same seed gives the same run, on any machine.
    #[arg(long, default_value_t = 1, value_parser = super::seeds::first_seed())]
    seed: u64,
    /// Run under this many seeds, from --seed on. Prints means with 95 % intervals by Student's t.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    let params = params(args)?;
    if args.seeds > 1 {
        return several(args, &params);
    }
    let shown = Progress::new();
    shown.stage("simulating milliseconds of clocks", Some(0));
    let results = run(&params, &mut |at, of| {
        shown.at(at.as_millis() as u64, of.as_millis() as u64);
    });
    shown.end();
    if args.json {
        let mut json = serde_json::to_value(&results)?;
        json["seed"] = args.seed.into();
        say!("{json}");
    } else {
        table(&results);
    }
    Ok(())
}

/// The same run under several seeds.
fn several(args: &Args, params: &ClockParams) -> Outcome {
    let one = |seed| run(&ClockParams { seed, ..params.clone() }, &mut |_, _| {});
    seeds::several((args.seed, args.seeds), args.json, one, |results| {
        serde_json::to_value(results)
    })?;
    Ok(())
}

fn table(results: &ClockResults) {
    say!("{:<28} {:>10} {:>10} {:>10}", "us", "p50", "p99", "max");
    let row = |name: &str, spread: ClockSpread| {
        say!("{name:<28} {:>10.3} {:>10.3} {:>10.3}", spread.p50, spread.p99, spread.max);
    };
    row("error", results.error_us);
    row("error with asymmetry", results.whole_error_us);
    row("assumed bound", results.assumed_us);
    row("proven bound", results.proven_us);
    row("error, NTP-style", results.ntp_error_us);
    row("error, PTP-style", results.ptp_error_us);
    for (parts, errors) in &results.without_us {
        row(&format!("whole error without {parts}"), *errors);
    }
    say!(
        "{} readings: {:.3} % within the assumed bound, {:.3} % within the proven bound",
        results.readings,
        100.0 * results.coverage,
        100.0 * results.proven_coverage
    );
}

fn params(args: &Args) -> Result<ClockParams, Box<dyn std::error::Error>> {
    let share = |name: &str, value: f64| {
        let fits = (0.0..1.0).contains(&value);
        if fits { Ok(value) } else { Err(format!("--{name} {value}: from 0 to below 1")) }
    };
    let positive = |name: &str, value: f64| {
        let fits = (0.0..1e6).contains(&value);
        if fits { Ok(value) } else { Err(format!("--{name} {value}: from 0 to a million")) }
    };
    let looks = args.duration.as_secs_f64() * f64::from(args.nodes);
    if args.duration.is_zero() || looks > NODE_SECONDS_MAX {
        let (duration, most) = (format_duration(args.duration), NODE_SECONDS_MAX);
        return Err(format!(
            "--duration {duration}: must be above 0, and at most {most} seconds over --nodes"
        )
        .into());
    }
    if args.budget == 0 {
        return Err("--budget: must be above 0".into());
    }
    let mut params = ClockParams {
        nodes: args.nodes,
        seed: args.seed,
        duration: args.duration,
        drift_ppb: 1e3 * positive("drift", args.drift)?,
        wander_ppb: positive("wander", args.wander)?,
        warming_ppb_s: positive("warming", args.warming)?,
        liars: share("liars", args.liars)?,
        lost: share("lost", args.lost)?,
        model: args.model.clone(),
        without: args.without.clone(),
        ..ClockParams::default()
    };
    params.paths.load = share("load", args.load)?;
    params.paths.asymmetry_ns = (1e3 * positive("asymmetry", args.asymmetry)?) as u64;
    params.paths.fabric = args.fat_tree.then(FabricSpec::default);
    params.config.budget_bits_s = args.budget.saturating_mul(1_000);
    Ok(params)
}
