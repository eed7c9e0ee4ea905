//! `evenfall bench files --lab`: bulk reads over TCP through a fat tree of namespaces, by policy,
//! beside the simulation of the same reads.
//!
//! The network has a tenth of the rates of the thesis, and blocks have a tenth of the length, so
//! that a read takes as long as there. Rows of a busy machine say nothing about a network, and are
//! marked as void.

use std::num::NonZeroU64;
use std::time::Duration;

use evenfall_files_flow::{PART_BYTES, ThreeTier};
use evenfall_host::procstat;
use evenfall_runtime::program::Outcome;
use serde_json::{Value, json};

use crate::commands::sim::seeds;
use crate::files::sockets::Sockets;
use crate::files::{BLOCK_BYTES, Params, RACK_RATIO, Steering, Summary};

/// The thesis's rates and lengths divided by those of the lab.
const SCALE: u64 = 10;
/// Share of the machine's processor time above which a row is void.
const BUSY_MAX: f64 = 0.6;
/// Time before the reads of a row, in which the connections of the row before end.
const SETTLE: Duration = Duration::from_secs(1);

/// Arguments of `evenfall bench files --lab`.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// Measure policies that choose copy and path of bulk reads: 16 hosts as network namespaces,
    /// with eight paths between two pods. Needs root.
    #[arg(long)]
    pub lab: bool,
    /// The policies, one or several with commas between them: those of `evenfall sim files`.
    #[arg(long, requires = "lab", value_delimiter = ',', default_value = "mayflower")]
    policy: Vec<Steering>,
    /// Reads that begin each second, for each host.
    #[arg(long, requires = "lab", default_value_t = 0.1)]
    rate: f64,
    /// Number of reads in a run.
    #[arg(long, requires = "lab", default_value_t = 100)]
    reads: usize,
    /// Runs of each policy, each with a seed of its own from --seed on. The policies take turns.
    #[arg(long, requires = "lab", default_value = "1")]
    seeds: NonZeroU64,
    /// The first seed.
    #[arg(long, requires = "lab", default_value_t = 1)]
    seed: u64,
}

/// Two pods of two racks of four hosts. All links above the racks have half of the rate of a host,
/// as in the thesis.
fn spec() -> ThreeTier {
    let (racks, hosts) = (2, 4);
    let total_ratio = f64::from(racks * hosts) / 2.0;
    let thesis = ThreeTier::thesis(RACK_RATIO, total_ratio);
    let host_bytes_per_s = thesis.host_bytes_per_s / SCALE as f64;
    let half = host_bytes_per_s / 2.0;
    let (rack_bytes_per_s, core_bytes_per_s) = (half, half);
    let pods = 2;
    ThreeTier { pods, racks, hosts, host_bytes_per_s, rack_bytes_per_s, core_bytes_per_s, ..thesis }
}

fn params(args: &Args, steering: Steering) -> Params {
    let part_bytes = PART_BYTES / SCALE;
    let mut params = Params { steering, spec: spec(), part_bytes, ..Params::default() };
    (params.load.rate, params.load.reads) = (args.rate, args.reads);
    params.load.bytes = BLOCK_BYTES / SCALE;
    params
}

/// Share of the machine's cores that was busy since an earlier look.
fn busy_since(before: &procstat::HostUsage) -> Result<f64, evenfall_host::Error> {
    let now = procstat::host()?;
    let idle = now.idle.saturating_sub(before.idle).as_secs_f64();
    let busy =
        |usage: &procstat::HostUsage| usage.user + usage.system + usage.softirq + usage.steal;
    let busy = busy(&now).saturating_sub(busy(before)).as_secs_f64();
    Ok(busy / (busy + idle).max(f64::MIN_POSITIVE))
}

/// The runs of one policy.
struct Row {
    params: Params,
    real: Summary,
    busy: Vec<f64>,
}

impl Row {
    fn shown(&self, args: &Args) -> Value {
        let simulated = self.params.runs(args.seed, args.seeds.get());
        let figures = [
            ("mean_s", &self.real.mean_s),
            ("p50_s", &self.real.p50_s),
            ("p95_s", &self.real.p95_s),
            ("bound_s", &self.real.bound_s),
            ("simulated_mean_s", &simulated.mean_s),
            ("simulated_p95_s", &simulated.p95_s),
            ("two_copies", &self.real.divided),
            ("reroutes", &self.real.reroutes),
            ("busy", &self.busy),
        ];
        let run = |at: usize| figures.iter().map(|(name, of)| (*name, json!(of[at]))).collect();
        let runs: Vec<Value> = (0..self.busy.len()).map(run).collect();
        let mut shown = seeds::combined(&runs);
        shown["policy"] = self.params.steering.name().into();
        shown["rate"] = args.rate.into();
        shown["seed"] = args.seed.into();
        shown["seeds"] = args.seeds.get().into();
        shown["reads"] = args.reads.into();
        shown["void"] = self.busy.iter().any(|busy| *busy > BUSY_MAX).into();
        shown
    }
}

/// Measures, and prints a row for each policy.
pub fn main(args: &Args, is_json: bool) -> Outcome {
    if !(args.rate > 0.0 && args.rate.is_finite()) || args.reads == 0 {
        return Err("--rate and --reads: must be above 0".into());
    }
    let row = |steering: &Steering| Row {
        params: params(args, *steering),
        real: Summary::default(),
        busy: Vec::new(),
    };
    let mut rows: Vec<Row> = args.policy.iter().map(row).collect();
    let sockets = Sockets::new(&spec())?;
    for seed in args.seed..args.seed.saturating_add(args.seeds.get()) {
        for row in &mut rows {
            std::thread::sleep(SETTLE);
            let before = procstat::host()?;
            let (times, bound_s) =
                row.params.run_on(seed, |plan, policy| sockets.run(plan, policy))?;
            row.real.take(&times, bound_s);
            row.busy.push(busy_since(&before)?);
            let (name, mean) = (row.params.steering.name(), row.real.mean_s.last());
            eprintln!("seed {seed}, {name}: mean {:.2} s", mean.copied().unwrap_or(f64::NAN));
        }
    }
    for row in &rows {
        let shown = row.shown(args);
        if is_json {
            println!("{shown}");
            continue;
        }
        let is_void = shown["void"] == true;
        let busy = if is_void { "; void, the machine was busy" } else { "" };
        println!("{} at {} reads/s and host{busy}", row.params.steering.name(), args.rate);
        seeds::print(&shown);
    }
    Ok(())
}
