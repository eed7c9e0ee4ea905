//! `evenfall sim consensus`: Canopus or a rival over sites, or over the racks of a data centre.

use std::time::Duration;

use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_campaigns::consensus::wide::{self, Scenario};
use evenfall_campaigns::model::Model;
use evenfall_campaigns::seeds::in_parallel;
use evenfall_runtime::program::Outcome;
use evenfall_runtime::progress::Progress;
use humantime::parse_duration;
use serde_json::{Value, json};

use super::{CORES_MAX, all_cores, seeds};
use crate::commands::rounds::Rounds;

/// Arguments of `evenfall sim consensus`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The protocol: canopus, raft, multi-paxos, epaxos, zab or nezha.
    #[arg(long, default_value_t = Protocol::Canopus, value_name = "NAME")]
    protocol: Protocol,
    /// Number of sites with three replicas each, at the round trips of the thesis on Canopus.
    #[arg(
        long,
        default_value_t = 3,
        conflicts_with = "rack_size",
        value_parser = clap::value_parser!(u64).range(2..=7)
    )]
    sites: u64,
    /// Three racks of this many replicas in one data centre, in place of sites.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=42))]
    rack_size: Option<u32>,
    /// Number of racks of --rack-size replicas. Racks stand in groups of three.
    #[arg(
        long,
        default_value_t = 3,
        requires = "rack_size",
        value_parser = clap::value_parser!(u64).range(1..=27)
    )]
    racks: u64,
    /// Height of Canopus's tree: 2, or 3 with a vnode for each group of three racks or sites.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=3))]
    height: u64,
    /// A cloud whose paths, losses and hosts take the place of equal ways inside a rack and of
    /// hosts that only work on writes: aws, gcp, quiet, namespaces, or the path of a file of the
    /// same form. Ways between racks and sites are longer by the same time as without a model.
    #[arg(long, value_name = "NAME|FILE", value_parser = Model::named)]
    model: Option<Model>,
    /// Share of writes among the requests, in percent.
    #[arg(
        long,
        default_value_t = 20,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u64).range(1..=100)
    )]
    writes: u64,
    /// Share of the writes, in percent, that have one key in common. EPaxos orders only these
    /// writes.
    #[arg(
        long,
        default_value_t = 0,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u64).range(0..=100)
    )]
    conflicts: u64,
    /// Cycles for which a write lease of Canopus lasts. Reads of keys without a lease are answered
    /// at once. 0 turns write leases off.
    #[arg(long, default_value_t = 0, value_name = "CYCLES", conflicts_with = "second_round")]
    lease_cycles: u64,
    /// Time of a datagram between two replicas of a super-leaf, one way. Replicas of a super-leaf
    /// may be in several zones of a region, so that the loss of a zone costs none its majority.
    #[arg(long, default_value = "100us", value_name = "DURATION", value_parser = parse_duration)]
    inside: Duration,
    #[command(flatten)]
    rounds: Rounds,
    /// Keys of the clients, of which each is as likely as any other. Requests that depart together
    /// have one key.
    #[arg(
        long,
        default_value_t = 10_000,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    keys: u64,
    /// Shortest time between the starts of two cycles of a replica, or between two batches of a
    /// rival's replica.
    #[arg(long, default_value = "5ms", value_name = "DURATION", value_parser = parse_duration)]
    cycle_every: Duration,
    /// Processor time of a write at one replica. The default is a third of what `evenfall bench
    /// consensus --replicas 3` measured for its three replicas.
    #[arg(long, default_value = "130ns", value_name = "DURATION", value_parser = parse_duration)]
    write_cost: Duration,
    /// How long clients are watched, after a warm-up.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = parse_duration)]
    watched: Duration,
    /// Requests per second of all clients. Without this option, the command looks for the highest
    /// rate at which the median is at most 10 ms in a data centre, and at most 1.5 times the median
    /// at a low rate over sites.
    #[arg(long, value_name = "REQUESTS/S")]
    rate: Option<f64>,
    /// Seed of the replicas and of the network.
    #[arg(long, default_value_t = 1, value_parser = super::seeds::first_seed())]
    seed: u64,
    /// Run under this many seeds, from --seed on. Prints means with 95 % intervals by Student's t.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Cores that share a single run. The results are those of one core. The default is all cores
    /// of this machine. With --seeds each seed runs on one core, and this option is refused.
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u16).range(1..=CORES_MAX as i64),
        conflicts_with = "seeds"
    )]
    cores: Option<u16>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Simulates what the arguments ask for, and prints the results.
pub fn main(args: &Args) -> Outcome {
    let scenario = scenario(args);
    let one = |seed| measure(&Scenario { seed, ..scenario.clone() }, args.rate);
    let mut value = if args.seeds > 1 {
        let shown = Progress::new();
        shown.stage("simulating seeds", Some(args.seeds.into()));
        let done = |finished| shown.at(finished, args.seeds.into());
        let runs = in_parallel(args.seed, args.seeds.into(), one, done);
        shown.end();
        seeds::combined(&runs)
    } else {
        one(args.seed)
    };
    value["protocol"] = json!(args.protocol.name());
    value["conflicts_percent"] = json!(args.conflicts);
    value["lease_cycles"] = json!(args.lease_cycles);
    value["inside_us"] = json!(args.inside.as_micros() as u64);
    value["second_round"] = json!(args.rounds.second_round.name());
    value["keys"] = json!(args.keys);
    value["replicas"] = json!(scenario.replicas());
    value["super_leaves"] = json!(scenario.leaf_sizes.len());
    value["height"] = json!(args.height);
    value["model"] = json!(args.model.as_ref().map(|model| &model.name));
    value["writes_percent"] = json!(args.writes);
    let per_write = scenario.write_cost.as_nanos() as f64 / 1e3 * f64::from(scenario.replicas());
    value["cpu_us_per_write"] = json!(per_write);
    value["farthest_round_trip_us"] = json!(scenario.farthest().as_micros() as u64);
    value["seed"] = json!(args.seed);
    value["seeds"] = json!(args.seeds);
    match args.json {
        true => say!("{value}"),
        false => print(&value),
    }
    Ok(())
}

/// The replicas and the clients that the arguments ask for.
fn scenario(args: &Args) -> Scenario {
    let mut scenario = match args.rack_size {
        Some(size) => Scenario::many_racks(args.racks as usize, size),
        None => Scenario::sites(args.sites as usize),
    };
    scenario.writes = args.writes as f64 / 100.0;
    (scenario.cycle_every, scenario.write_cost) = (args.cycle_every, args.write_cost);
    (scenario.protocol, scenario.watched) = (args.protocol, args.watched);
    (scenario.lease_cycles, scenario.keys) = (args.lease_cycles, args.keys);
    (scenario.is_high, scenario.model) = (args.height == 3, args.model.clone());
    for (leaf, row) in scenario.one_way.iter_mut().enumerate() {
        row[leaf] = args.inside;
    }
    scenario.cores = match (args.cores, args.seeds) {
        (Some(cores), _) => cores.into(),
        (None, 1) => all_cores(),
        (None, _) => 1,
    };
    scenario.second_round = args.rounds.second_round;
    scenario.conflicts = args.conflicts as f64 / 100.0;
    scenario
}

/// The results at this rate, or at the highest rate and at shares of it.
fn measure(scenario: &Scenario, rate: Option<f64>) -> Value {
    let at = |requests_per_s: f64| {
        let mut value = told(&Scenario { requests_per_s, ..scenario.clone() }.run());
        value["offered_per_s"] = json!(requests_per_s);
        value
    };
    if let Some(rate) = rate {
        return at(rate);
    }
    let (rate, best) = wide::peak(scenario);
    let mut value = told(&best);
    value["offered_per_s"] = json!(rate);
    for share in [25, 50, 70] {
        value[format!("at_{share}")] = at(rate * f64::from(share) / 100.0);
    }
    value
}

fn told(outcome: &wide::WideOutcome) -> Value {
    let times = |times: &wide::Times| {
        let at = |share| times.quantile(share).as_nanos() as f64 / 1e3;
        json!({"p50": at(0.5), "p90": at(0.9), "p99": at(0.99)})
    };
    json!({
        "requests_per_s": outcome.writes_per_s + outcome.reads_per_s,
        "writes_per_s": outcome.writes_per_s,
        "commit_us": times(&outcome.write_times),
        "read_us": times(&outcome.read_times),
        "wan_bytes_per_write": outcome.wan_bytes_per_write,
    })
}

fn print(value: &Value) {
    let number = |path: &str| value.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    say!(
        "{}: {} replicas in {} super-leaves, {} % writes: {:.2} M requests/s, of which {:.2} M \
         writes",
        value["protocol"].as_str().unwrap_or_default(),
        number("/replicas"),
        number("/super_leaves"),
        number("/writes_percent"),
        number("/requests_per_s") / 1e6,
        number("/writes_per_s") / 1e6
    );
    let row = |name: &str, path: &str| {
        let ms = |part: &str| number(&format!("{path}/{part}")) / 1e3;
        say!(
            "  {name}: writes p50 {:.1}, p99 {:.1} ms; reads p50 {:.1}, p99 {:.1} ms",
            ms("commit_us/p50"),
            ms("commit_us/p99"),
            ms("read_us/p50"),
            ms("read_us/p99")
        );
    };
    row("at this rate", "");
    for share in [25, 50, 70] {
        if value.get(format!("at_{share}")).is_some() {
            row(&format!("at {share} % of it"), &format!("/at_{share}"));
        }
    }
    let halves = number("/requests_per_s_half_width") / 1e6;
    if !halves.is_nan() {
        say!(
            "  means of {} seeds; 95 %: +- {halves:.2} M requests/s, +- {:.2} ms at the median \
             write",
            number("/seeds"),
            number("/commit_us_half_width/p50") / 1e3
        );
    }
    say!(
        "  {:.0} bytes between super-leaves for a write; the farthest round trip takes {:.1} ms",
        number("/wan_bytes_per_write"),
        number("/farthest_round_trip_us") / 1e3
    );
}
