//! `evenfall bench files --lab`: bulk reads over TCP through a fat tree of namespaces, by policy,
//! beside the simulation of the same reads.
//!
//! The rates of the network and the length of blocks are those of the thesis divided by the same
//! number, so that a read takes as long as there. Rows of a busy machine say nothing about a
//! network, and are marked as void. The share of the machine that this process and its switches
//! took, and the time for which a thread of this process waits for a core, tell whether the machine
//! decided.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenfall_core::statistics::mean;
use evenfall_files_flow::{PART_BYTES, ThreeTier};
use evenfall_host::procstat;
use evenfall_runtime::program::Outcome;
use evenfall_studies::files::{BLOCK_BYTES, FilesSummary, RACK_RATIO, ReadParams, Steering};
use serde_json::{Value, json};

use crate::commands::sim::seeds;
use crate::sockets::{Sockets, Switches};

/// Time between two looks of a thread that measures how long it waits for a core.
const WAKE_EVERY: Duration = Duration::from_millis(5);
/// Share of the machine's processor time above which a row is void.
const BUSY_MAX: f64 = 0.6;
/// Time before the reads of a row, in which the connections of the row before end.
const SETTLE: Duration = Duration::from_secs(1);

/// Arguments of `evenfall bench files --lab`.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// Measure policies that choose copy and path of bulk reads: 16 hosts as network namespaces,
    /// with eight paths between two pods. Needs the user root.
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
    #[arg(long, requires = "lab", default_value_t = 1, value_parser = seeds::first_seed())]
    seed: u64,
    /// What forwards packets: routers of the kernel (kernel), or Open vSwitch's userspace datapath
    /// (ovs), whose switches get rules for each read by OpenFlow 1.3 and count the bytes. The
    /// package openvswitch-switch has to be installed.
    #[arg(long, requires = "lab", default_value = "kernel")]
    switches: Forwarding,
    /// Divides the thesis's rates and lengths. Hosts have links of 1 Gb/s divided by this number.
    #[arg(long, requires = "lab", default_value = "10")]
    slower: NonZeroU64,
}

/// What forwards packets.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Forwarding {
    Kernel,
    Ovs,
}

impl From<Forwarding> for Switches {
    fn from(forwarding: Forwarding) -> Self {
        match forwarding {
            Forwarding::Kernel => Self::Routers,
            Forwarding::Ovs => Self::OpenVswitch,
        }
    }
}

/// Two pods of two racks of four hosts. All links above the racks have half of the rate of a host,
/// as in the thesis.
fn spec(slower: u64) -> ThreeTier {
    let (racks, hosts) = (2, 4);
    let total_ratio = f64::from(racks * hosts) / 2.0;
    let thesis = ThreeTier::thesis(RACK_RATIO, total_ratio);
    let host_bytes_per_s = thesis.host_bytes_per_s / slower as f64;
    let half = host_bytes_per_s / 2.0;
    let (rack_bytes_per_s, core_bytes_per_s) = (half, half);
    let pods = 2;
    ThreeTier { pods, racks, hosts, host_bytes_per_s, rack_bytes_per_s, core_bytes_per_s, ..thesis }
}

fn params(args: &Args, steering: Steering) -> ReadParams {
    let part_bytes = PART_BYTES / args.slower;
    let spec = spec(args.slower.get());
    let mut params = ReadParams { steering, spec, part_bytes, ..ReadParams::default() };
    (params.load.rate, params.load.reads) = (args.rate, args.reads);
    params.load.bytes = BLOCK_BYTES / args.slower;
    params
}

/// The processor time of the machine, and that of this process and its switches.
struct Spent {
    host: procstat::HostUsage,
    own: Duration,
}

impl Spent {
    fn now(sockets: &Sockets) -> Result<Self, evenfall_host::Error> {
        let mut own = procstat::this_process()?.cpu;
        for pid in sockets.lab().switch_pids() {
            own += procstat::process(pid)?.cpu;
        }
        Ok(Self { host: procstat::host()?, own })
    }

    /// The share of the machine's processor time that was used since an earlier look, and the share
    /// that this process and its switches used. Packets that others' processor time forwarded count
    /// as others'.
    fn since(&self, before: &Self) -> (f64, f64) {
        let busy =
            |usage: &procstat::HostUsage| usage.user + usage.system + usage.softirq + usage.steal;
        let idle = self.host.idle.saturating_sub(before.host.idle).as_secs_f64();
        let busy = busy(&self.host).saturating_sub(busy(&before.host)).as_secs_f64();
        let own = self.own.saturating_sub(before.own).as_secs_f64();
        let all = (busy + idle).max(f64::MIN_POSITIVE);
        (busy / all, own / all)
    }
}

/// A thread that sleeps and measures by how much it wakes too late: the time for which a thread of
/// this process waits for a core.
struct Wakes {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl Wakes {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut late_s = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(WAKE_EVERY);
                late_s.push(begun.elapsed().saturating_sub(WAKE_EVERY).as_secs_f64());
            }
            late_s
        });
        Self { is_over, thread }
    }

    /// Milliseconds that 99 % of the wakes were late at most.
    fn p99_ms(self) -> f64 {
        self.is_over.store(true, Ordering::Relaxed);
        let mut late_s = self.thread.join().unwrap_or_default();
        late_s.sort_by(f64::total_cmp);
        let at = (0.99 * late_s.len() as f64) as usize;
        late_s.get(at).map_or(f64::NAN, |late_s| late_s * 1e3)
    }
}

/// The runs of one policy.
struct Row {
    params: ReadParams,
    real: FilesSummary,
    /// Shares of the machine that were used by all, and by this process and its switches.
    busy: Vec<f64>,
    busy_own: Vec<f64>,
    wake_p99_ms: Vec<f64>,
    /// Mean time in which the switches took the rules of a path; NaN without rules.
    setup_ms: Vec<f64>,
}

impl Row {
    fn run(&mut self, seed: u64, sockets: &Sockets) -> Result<(), Box<dyn std::error::Error>> {
        let (before, wakes) = (Spent::now(sockets)?, Wakes::start());
        let done = self.params.run_on(seed, |plan, policy| sockets.run(plan, policy));
        let wake_p99_ms = wakes.p99_ms();
        let (times, bound_s) = done?;
        let (busy, own) = Spent::now(sockets)?.since(&before);
        self.real.take(&times, bound_s);
        self.busy.push(busy);
        self.busy_own.push(own);
        self.wake_p99_ms.push(wake_p99_ms);
        self.setup_ms.push(mean(&sockets.setups_s()).map_or(f64::NAN, |s| s * 1e3));
        let (name, mean) = (self.params.steering.name(), self.real.mean_s.last());
        aside!("seed {seed}, {name}: mean {:.2} s", mean.copied().unwrap_or(f64::NAN));
        Ok(())
    }

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
            ("busy_own", &self.busy_own),
            ("wake_p99_ms", &self.wake_p99_ms),
            ("setup_ms", &self.setup_ms),
        ];
        let run = |at: usize| figures.iter().map(|(name, of)| (*name, json!(of[at]))).collect();
        let runs: Vec<Value> = (0..self.busy.len()).map(run).collect();
        let mut shown = seeds::combined(&runs);
        shown["policy"] = self.params.steering.name().into();
        shown["rate"] = args.rate.into();
        shown["seed"] = args.seed.into();
        shown["seeds"] = args.seeds.get().into();
        shown["reads"] = args.reads.into();
        shown["slower"] = args.slower.get().into();
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
        real: FilesSummary::default(),
        busy: Vec::new(),
        busy_own: Vec::new(),
        wake_p99_ms: Vec::new(),
        setup_ms: Vec::new(),
    };
    let mut rows: Vec<Row> = args.policy.iter().map(row).collect();
    let sockets = Sockets::new(&spec(args.slower.get()), args.switches.into());
    let sockets = sockets.map_err(|error| error.to_string())?;
    for seed in args.seed..args.seed.saturating_add(args.seeds.get()) {
        for row in &mut rows {
            std::thread::sleep(SETTLE);
            row.run(seed, &sockets)?;
        }
    }
    for row in &rows {
        let shown = row.shown(args);
        if is_json {
            say!("{shown}");
            continue;
        }
        let is_void = shown["void"] == true;
        let busy = if is_void { "; void, the machine was busy" } else { "" };
        say!("{} at {} reads/s and host{busy}", row.params.steering.name(), args.rate);
        seeds::print(&shown);
    }
    Ok(())
}
