//! `evenfall bench`: measures costs on this machine.

mod consensus;
pub(super) mod cross;
mod files;
mod mpi;
mod ports;
mod rank;
mod receive;
mod shuffle;
mod signing;
mod store;

use std::time::Duration;

use crate::fanout::root::RootSource;
use crate::fanout::{FanoutBench, FanoutResult, Sinks, bench_source, highest_lossless};
use clap::Subcommand;
use evenfall_multicast_machine::SharedKey;
use evenfall_multicast_machine::config::Framing;
use evenfall_multicast_service::embedded_root::MESSAGE_BYTES_MAX;
use serde_json::{Map, Value, json};

use evenfall_runtime::program::Outcome;
use humantime::parse_duration;

pub(super) use shuffle::program;

type Failure = Box<dyn std::error::Error>;

/// Arguments of `evenfall bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Processor time of the sending side per delivered copy, and the highest loss-free rate.
    Fanout(Fanout),
    /// Processor time of a hop by each kind of port, beside bare calls of the kernel.
    Ports(ports::Args),
    /// Processor time and calls of the allocator that a message takes of a receiver.
    Receive(receive::Args),
    /// Processor time that signatures take at a root and at a receiver.
    Signing(signing::Args),
    /// Records per second that the store takes, and how fast it gives them back.
    Store(self::store::Args),
    /// Replicated files over loopback, beside `sendfile`, and beside other servers of WebHDFS.
    Files(files::Args),
    /// Shuffles between processes over real sockets, compared with the bound of the links.
    Shuffle(shuffle::Args),
    /// Single-key writes per second that replicas of one order execute, and their latency.
    #[command(alias = "order")]
    Consensus(consensus::Args),
    /// Operations per second of servers that speak ZooKeeper's protocol, ours or others.
    Zookeeper(consensus::zookeeper::Args),
    /// One replica of `bench consensus`.
    #[command(hide = true)]
    ConsensusReplica(consensus::replica::Args),
    /// One replica of ordered keys of `bench zookeeper --rival`.
    #[command(hide = true)]
    KeysReplica(consensus::keys::Args),
    /// One rank of `bench shuffle`.
    #[command(hide = true)]
    Rank(rank::Args),
    /// The other traffic of `bench shuffle --cross`.
    #[command(hide = true)]
    Cross(cross::Args),
}

/// Arguments of `evenfall bench fanout`.
#[derive(clap::Args, Debug)]
struct Fanout {
    /// Number of receivers.
    #[arg(long, default_value_t = 10)]
    fanout: usize,
    /// Bytes of a message.
    #[arg(long, default_value_t = 40)]
    size: usize,
    /// Messages in one datagram at full speed.
    #[arg(long, default_value_t = 20)]
    pack: usize,
    /// Number of rounds. The median is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one measurement.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// Seal and authenticate datagrams under a key.
    #[arg(long)]
    key: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures what the command names.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Fanout(args) => fanout(args),
        Command::Ports(args) => ports::main(args),
        Command::Receive(args) => receive::main(args),
        Command::Signing(args) => signing::main(args),
        Command::Store(args) => self::store::main(args),
        Command::Files(args) => files::main(args),
        Command::Shuffle(args) => shuffle::main(args),
        Command::Consensus(args) => consensus::main(args),
        Command::Zookeeper(args) => consensus::zookeeper::main(args),
        Command::ConsensusReplica(args) => consensus::replica::main(args),
        Command::KeysReplica(args) => consensus::keys::main(args),
        Command::Rank(args) => rank::main(args),
        Command::Cross(args) => cross::main(args),
    }
}

/// One measurement, with a root and receivers of its own.
fn once(bench: &FanoutBench, key: bool) -> Result<FanoutResult, evenfall_host::Error> {
    let sinks = Sinks::start(bench.fanout, bench.coalesce)?;
    let key = key.then(|| SharedKey::new(1, [1; 32]));
    bench_source(bench, &sinks, &mut RootSource::new(bench, key))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Checks the length of a message, and the number of messages in one datagram. A root spreads
/// more messages over several datagrams, and the printed costs would not be those of `pack`.
///
/// # Errors
/// When a root refuses messages of this length, or the messages do not fit one datagram.
fn check_pack(pack: usize, size: usize, is_sealed: bool) -> Result<(), Failure> {
    if size > MESSAGE_BYTES_MAX {
        let why = format!("--size {size}: a message has {MESSAGE_BYTES_MAX} bytes at most");
        return Err(why.into());
    }
    let framing = Framing::default();
    let most = framing.messages_per_datagram(size, is_sealed).min(u16::MAX.into());
    if (1..=most).contains(&pack) {
        return Ok(());
    }
    let limit = framing.datagram_bytes;
    Err(format!(
        "--pack {pack}: must be 1 to {most}, because a root puts no more messages of {size} bytes \
         into one datagram of {limit} bytes; give another --pack or --size"
    )
    .into())
}

/// The median of each number, over several results of the same shape.
fn medians(runs: &[Value]) -> Value {
    match runs.first() {
        Some(Value::Object(first)) => {
            let part = |key: &String| -> Vec<Value> {
                runs.iter().filter_map(|run| run.get(key).cloned()).collect()
            };
            let parts = first.keys().map(|key| (key.clone(), medians(&part(key))));
            Value::Object(parts.collect::<Map<_, _>>())
        }
        Some(Value::Number(_)) => json!(median(runs.iter().filter_map(Value::as_f64).collect())),
        Some(other) => other.clone(),
        None => Value::Null,
    }
}

/// Measures several times. The result has the median of each number, and the least and the greatest
/// of the rate of this name.
fn several(
    runs: usize,
    rate: &str,
    one: impl Fn(usize) -> Result<Value, Failure>,
) -> Result<Value, Failure> {
    let runs = runs.max(1);
    let mut all = Vec::new();
    for run in 0..runs {
        let value = one(run)?;
        if runs > 1 {
            aside!("run {} of {runs}: {value}", run + 1);
        }
        all.push(value);
    }
    let rates = || all.iter().filter_map(|run| run[rate].as_f64());
    let (least, greatest) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
    let mut value = medians(&all);
    if greatest > 0.0 {
        value[format!("{rate}_least")] = json!(least);
        value[format!("{rate}_greatest")] = json!(greatest);
    }
    value["runs"] = json!(runs);
    Ok(value)
}

fn fanout(args: &Fanout) -> Outcome {
    let Fanout { fanout, size, pack, duration, .. } = *args;
    if fanout == 0 {
        return Err("--fanout: must be 1 or more".into());
    }
    check_pack(pack, size, args.key)?;
    let slow = FanoutBench { fanout, size, duration, ..FanoutBench::unbatched() };
    let full = FanoutBench { fanout, size, duration, pack, ..FanoutBench::saturated() };
    let (mut slow_ns, mut full_ns, mut rates, mut lost) = (vec![], vec![], vec![], 0);
    for round in 0..args.rounds.max(1) {
        if !args.json {
            aside!("round {} of {}", round + 1, args.rounds.max(1));
        }
        let paced = once(&slow, args.key)?;
        let flat_out = once(&full, args.key)?;
        slow_ns.push(paced.cpu_ns_per_copy);
        full_ns.push(flat_out.cpu_ns_per_copy);
        rates.push(highest_lossless(&flat_out, |rate| {
            once(&FanoutBench { rate: Some(rate), ..full.clone() }, args.key)
        })?);
        lost += paced.lost + flat_out.lost;
    }
    let (slow_ns, full_ns, rate) = (median(slow_ns), median(full_ns), median(rates));
    if args.json {
        let result = json!({
            "fanout": fanout, "size_bytes": size, "rounds": args.rounds.max(1), "key": args.key,
            "cpu_ns_per_copy": full_ns, "messages_per_s": rate,
            "cpu_ns_per_copy_10k": slow_ns, "messages_per_datagram": pack, "lost_copies": lost,
        });
        say!("{result}");
    } else {
        say!("{fanout} receivers, {size}-byte messages, medians of {}", args.rounds.max(1));
        say!("  at 10,000 msg/s, one a datagram: {slow_ns:.0} ns of CPU per copy");
        say!("  flat out, {pack} a datagram:      {full_ns:.1} ns of CPU per copy");
        say!("  highest loss-free rate:          {rate:.0} msg/s");
    }
    Ok(())
}
