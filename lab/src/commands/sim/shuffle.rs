//! `evenfall sim shuffle`: one shuffle on a simulated fat tree.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use evenfall_campaigns::shuffle::preempt::Runs;
use evenfall_campaigns::shuffle::{
    Ablation, Control, Matrix, ShuffleParams, ShuffleRival, timeline, workload,
};
use evenfall_core::Prng;
use evenfall_sim::Priorities;

use evenfall_runtime::program::Outcome;

/// Arguments of `evenfall sim shuffle`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of nodes. A rack has 40 of them.
    #[arg(long, default_value_t = 160)]
    nodes: usize,
    /// Message skewness of the generated matrix: 0 when all messages are equal, 1 when each node
    /// sends one message.
    #[arg(long, default_value_t = 0.5)]
    skewness: f64,
    /// How the matrix is generated.
    #[arg(long, value_enum, default_value_t = Generator::Sampled)]
    generator: Generator,
    /// Read the matrix from this file instead: a row per sender, bytes.
    #[arg(long)]
    matrix: Option<PathBuf>,
    /// Write the matrix to this file.
    #[arg(long)]
    save_matrix: Option<PathBuf>,
    /// Mean length of a message in full packets (1,500 bytes when control is free, else 1,432).
    #[arg(long, default_value_t = 16.0)]
    mean_packets: f64,
    /// The scheme: grpf, global (knows the slowest receiver at once), reduce (finds it by
    /// all-reduce), hadoop-C (a slot is free when its message has arrived), hadoop-C-granted (when
    /// its message is granted), madd, srpt, grpt, lockstep or entropy.
    #[arg(long, default_value = "grpf")]
    policy: ShuffleRival,
    /// Bandwidth of the racks' uplinks, in percent of the bandwidth of their hosts.
    #[arg(long, default_value_t = 100.0)]
    core: f64,
    /// Pre-empt nodes half of the time, each time for this many round trips in the mean.
    #[arg(long)]
    preempt_rtt: Option<f64>,
    /// With --preempt-rtt: pre-empt at random times, instead of after runs that are as regular as
    /// the pauses.
    #[arg(long, requires = "preempt_rtt")]
    memoryless: bool,
    /// Ports at which control packets go first.
    #[arg(long, value_enum, default_value_t = Priority::Core)]
    priority: Priority,
    /// Round trips of packets that a receiver grants ahead.
    #[arg(long)]
    overcommit: Option<f64>,
    /// Whether control packets take time on the links.
    #[arg(long, value_enum, default_value_t = Charge::Free)]
    control: Charge,
    /// With --policy global: how many times slower the all-reduce is than the best one in software.
    #[arg(long, default_value_t = 0.0)]
    stale: f64,
    /// With --policy grpf: leave out this part, and all parts before it in the list.
    #[arg(long, value_enum, default_value_t = Lacks::Nothing)]
    lacks: Lacks,
    /// Print the progress of the run at this interval, in microseconds.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeline: Option<u64>,
    /// Seed of the run. The same seed gives the same run on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Generator {
    /// Sizes from a random distribution, with columns repaired.
    Sampled,
    /// The matrix of a distributed sort. The skewness is the share of duplicate keys.
    Sorted,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lacks {
    /// Leave nothing out.
    Nothing,
    /// The slow start, which the thesis leaves open.
    SlowStart,
    /// Unscheduled packets.
    Unscheduled,
    /// Randomness in the priorities.
    Chance,
    /// Windows in proportion to the missing bytes. Without them, the shuffle is the baseline of
    /// section 6.1.2.
    Windows,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Priority {
    /// At every port.
    Core,
    /// At the ports to hosts.
    Edge,
    /// At no port.
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Charge {
    /// Control packets take no time, as in the thesis.
    Free,
    /// Control packets take time like any other packet.
    Charged,
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    let params = params(args)?;
    if let Some(path) = &args.save_matrix {
        std::fs::write(path, params.matrix.to_string())
            .map_err(|error| format!("--save-matrix {}: {error}", path.display()))?;
    }
    let started = std::time::Instant::now();
    let (done, samples) = timeline(&params)?;
    let took = started.elapsed().as_secs_f64();
    if args.json {
        let mut json = serde_json::to_value(done)?;
        json["seed"] = args.seed.into();
        json["policy"] = args.policy.to_string().into();
        json["nodes"] = params.matrix.nodes().into();
        json["digest"] = format!("{:016x}", done.digest).into();
        json["wall_s"] = took.into();
        if args.timeline.is_some() {
            json["timeline"] = serde_json::to_value(samples)?;
        }
        say!("{json}");
        return Ok(());
    }
    let nodes = params.matrix.nodes();
    say!("{} on {nodes} nodes, message skewness {:.3}", args.policy, done.skewness);
    say!("  completed in   {:.1} us; at least {:.1} us", done.completion_us, done.bound_us);
    say!("  efficiency     {:.2} %", done.efficiency * 100.0);
    say!("  throughput     {:.2} Gb/s per node", done.throughput_gbps);
    say!("  largest buffer {} bytes", done.buffer_bytes_max);
    say!("  {} packets in {took:.2} s; seed {}", done.hops, args.seed);
    for s in samples {
        let (at, busy) = (s.at_us, s.downlinks * 100.0);
        let (begun, done) = (s.started * 100.0, s.completed * 100.0);
        say!("  {at:>8.0} us: links {busy:.1} % busy, {begun:.1} % begun, {done:.1} % here");
    }
    Ok(())
}

fn params(args: &Args) -> Result<ShuffleParams, Box<dyn std::error::Error>> {
    let control = match args.control {
        Charge::Free => Control::Free,
        Charge::Charged => Control::Charged,
    };
    let in_range = |what: &str, ok: bool| if ok { Ok(()) } else { Err(what.to_owned()) };
    in_range("--skewness: between 0 and 1", (0.0..=1.0).contains(&args.skewness))?;
    in_range("--core: above 0, up to 100", args.core > 0.0 && args.core <= 100.0)?;
    in_range("--mean-packets: above 0", args.mean_packets > 0.0)?;
    in_range("--nodes: 2 to 5,000", (2..=5_000).contains(&args.nodes))?;
    in_range("--preempt-rtt: above 0", args.preempt_rtt.is_none_or(|rtt| rtt > 0.0))?;
    let whole = matches!(args.lacks, Lacks::Nothing);
    in_range("--lacks: with --policy grpf only", whole || args.policy == ShuffleRival::Grpf)?;
    let runs = if args.memoryless { Runs::Memoryless } else { Runs::Alike };
    let mut prng = Prng::new(args.seed);
    let matrix = match (&args.matrix, args.generator) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("--matrix {}: {error}", path.display()))?;
            Matrix::parse(&text).map_err(|error| format!("--matrix {}: {error}", path.display()))?
        }
        (None, Generator::Sampled) => {
            let normal = workload::by_sampling(args.nodes, args.skewness, &mut prng);
            normal.bytes(args.mean_packets * packet_bytes(control))
        }
        (None, Generator::Sorted) => {
            let normal = workload::by_sorting(args.nodes, args.skewness, &mut prng);
            normal.bytes(args.mean_packets * packet_bytes(control))
        }
    };
    in_range("--matrix: two nodes at least", matrix.nodes() >= 2)?;
    let priorities = match args.priority {
        Priority::Core => Priorities::Everywhere,
        Priority::Edge => Priorities::Edge,
        Priority::None => Priorities::Nowhere,
    };
    Ok(ShuffleParams {
        rival: args.policy,
        core: args.core / 100.0,
        preempt_rtt: args.preempt_rtt.map(|rtt| (rtt, runs)),
        priorities,
        control,
        stale: args.stale,
        overcommit: args.overcommit,
        sample_every: args.timeline.map(Duration::from_micros),
        ablation: match args.lacks {
            Lacks::Nothing => Ablation::Whole,
            Lacks::SlowStart => Ablation::Printed,
            Lacks::Unscheduled => Ablation::Scheduled,
            Lacks::Chance => Ablation::Even,
            Lacks::Windows => Ablation::Baseline,
        },
        ..ShuffleParams::new(matrix, args.seed)
    })
}

fn packet_bytes(control: Control) -> f64 {
    let (payload, scale) = control.payload();
    f64::from(payload * scale)
}
