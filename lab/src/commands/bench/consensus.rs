//! `evenfall bench consensus`: single-key writes that replicas of one order execute in a second.
//!
//! Every replica is a process with a UDP socket for its peers and a TCP socket for the generator.
//! The generator is this process, with a connection to each replica. A write is answered when the
//! replica that took the write has executed it, in the agreed order.

pub mod keys;
mod load;
pub mod replica;
pub mod zookeeper;

use std::io::{BufRead as _, BufReader, Lines};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_host::{ports, process, procstat};
use evenfall_runtime::program::Outcome;
use serde_json::{Value, json};

use super::{Failure, several};
use crate::commands::rounds::Rounds;
use evenfall_core::Prng;
use humantime::parse_duration;
use load::{Decode, Edge, Encode, Load, Measured};
use replica::{KEY_BYTES, ReplicaEnd, SEQUENCE_BYTES};

/// Time before a measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time for the answers to the last writes, and for the messages after the last cycle.
const SETTLE: Duration = Duration::from_millis(500);
/// Shares of the peak at which the latency is measured.
const SHARES: [u32; 3] = [25, 50, 70];

/// Arguments of `evenfall bench consensus`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The protocol: canopus, raft, multi-paxos, epaxos, zab or nezha. Only canopus can keep its
    /// log on the disk.
    #[arg(
        long,
        visible_alias = "rival",
        default_value_t = Protocol::Canopus,
        value_name = "NAME"
    )]
    protocol: Protocol,
    /// Number of replicas.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Number of super-leaves. By default one for up to five replicas, and one for each three
    /// replicas otherwise.
    #[arg(long)]
    racks: Option<usize>,
    #[command(flatten)]
    rounds: Rounds,
    /// Bytes of a value. A key has eight bytes.
    #[arg(long, default_value_t = 16)]
    value_bytes: usize,
    /// Number of keys, which the writes choose at random.
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// Writes under way, over all replicas.
    #[arg(long, default_value_t = 6_000)]
    outstanding: usize,
    /// Keep the logs on the disk. A replica then syncs a record before it sends any message that
    /// depends on the record. Without this option, replicas keep no log, as those of the rivals.
    #[arg(long)]
    durable: bool,
    /// Directory below which fresh logs are made, and removed afterwards.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Shortest time between the starts of two cycles of a replica, or between two batches of a
    /// rival's replica.
    #[arg(long, default_value = "1ms", value_name = "DURATION", value_parser = parse_duration)]
    cycle_every: Duration,
    /// Cycles under way at once.
    #[arg(long, default_value_t = 4)]
    pipeline: u64,
    /// Duration of each measurement, after a warm-up of one second.
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// Number of runs. The medians are printed, with the least and the greatest rate.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Measure the peak alone, and not the latency below it.
    #[arg(long)]
    peak: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn racks(&self) -> usize {
        let usual = if self.replicas <= 5 { 1 } else { self.replicas.div_ceil(3) };
        self.racks.unwrap_or(usual)
    }
}

/// Measures what the arguments ask for, and prints the results.
pub fn main(args: &Args) -> Outcome {
    if args.replicas == 0 || args.outstanding < args.replicas || args.keys == 0 {
        return Err(
            "--replicas and --keys: must be 1 or more; --outstanding: at least 1 for each replica"
                .into(),
        );
    }
    if args.durable && args.protocol != Protocol::Canopus {
        return Err(format!("--durable: {} has no log on a disk here", args.protocol).into());
    }
    let value = several(args.runs, "writes_per_s", |_| one(args))?;
    match args.json {
        true => say!("{value}"),
        false => print(args, &value),
    }
    Ok(())
}

fn one(args: &Args) -> Result<Value, Failure> {
    let dir = args.dir.join(format!("evenfall-bench-consensus-{}", std::process::id()));
    let measured = run(args, &dir);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    measured
}

fn run(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let replicas = Replicas::start(args, dir)?;
    let (keys, value_bytes) = (args.keys, args.value_bytes);
    let open = |seed, _: &mut TcpStream| Ok((writes(seed, keys, value_bytes), answers()));
    let (addresses, duration) = (replicas.doors(), args.duration);
    let load = Load { addresses, open: &open, warm_up: WARM_UP, duration };
    let outstanding = args.outstanding.div_ceil(args.replicas);
    let pids = replicas.pids();
    let (peak, cost) = measured(&pids, |edge| load.closed(outstanding, edge))?;
    let mut value = json!({
        "protocol": args.protocol.name(),
        "replicas": args.replicas, "racks": args.racks(), "value_bytes": args.value_bytes,
        "second_round": args.rounds.second_round.name(),
        "durable": args.durable, "outstanding": outstanding * args.replicas, "keys": args.keys,
        "writes_per_s": peak.per_s(),
        "commit_us": times_us(&peak),
        "cpu_us_per_write": cost.servers_us / peak.done as f64,
        "load_cpu_us_per_write": cost.load_us / peak.done as f64,
        "load_cpu_share": cost.load_us / peak.seconds / 1e6,
        "replicas_cpu_share": cost.servers_us / peak.seconds / 1e6,
        "host_busy_share": cost.host_us / peak.seconds / 1e6,
    });
    for share in SHARES.iter().filter(|_| !args.peak) {
        let rate = peak.per_s() * f64::from(*share) / 100.0;
        let (paced, cost) = measured(&pids, |edge| load.paced(rate, edge))?;
        value[format!("at_{share}")] = json!({
            "writes_per_s": paced.per_s(),
            "commit_us": times_us(&paced),
            "cpu_us_per_write": cost.servers_us / paced.done as f64,
        });
    }
    let ends = replicas.end()?;
    let first = &ends[0];
    if ends.iter().any(|end| (end.executed, end.digest) != (first.executed, first.digest)) {
        return Err(format!("the replicas executed different requests: {ends:?}").into());
    }
    value["writes_per_cycle"] = json!(first.executed as f64 / first.cycles as f64);
    value["dropped_datagrams"] = json!(ends.iter().map(|end| end.dropped).sum::<u64>());
    Ok(value)
}

/// Writes of random keys.
fn writes(seed: u64, keys: u64, value_bytes: usize) -> Encode {
    let (mut prng, mut last) = (Prng::new(seed), 0_u64);
    Box::new(move |count, out| {
        out.reserve(count * (SEQUENCE_BYTES + KEY_BYTES + value_bytes));
        for _ in 0..count {
            last += 1;
            out.extend_from_slice(&last.to_le_bytes());
            out.extend_from_slice(&prng.below(keys).to_le_bytes());
            out.resize(out.len() + value_bytes, last as u8);
        }
    })
}

/// Answers, which have to come in the order of the writes.
fn answers() -> Decode {
    let mut last = 0_u64;
    Box::new(move |bytes| {
        let (answers, _) = bytes.as_chunks::<SEQUENCE_BYTES>();
        for answer in answers {
            last += 1;
            if u64::from_le_bytes(*answer) != last {
                return Err(format!("write {last} was not answered in its turn"));
            }
        }
        Ok((answers.len() * SEQUENCE_BYTES, answers.len()))
    })
}

fn times_us(measured: &Measured) -> Value {
    let at = |share| measured.times.quantile(share).as_nanos() as f64 / 1e3;
    json!({"p50": at(0.5), "p90": at(0.9), "p99": at(0.99)})
}

fn print(args: &Args, value: &Value) {
    let number = |path: &str| value.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let log = if args.durable { "synced logs" } else { "no log" };
    say!(
        "{} replicas of {}, each a process, {log}; {} writes under way; medians of {}",
        args.replicas,
        args.protocol,
        number("/outstanding"),
        number("/runs")
    );
    say!(
        "  {:.0} writes/s ({:.0} to {:.0}), {:.2} us of CPU per write in all replicas",
        number("/writes_per_s"),
        number("/writes_per_s_least"),
        number("/writes_per_s_greatest"),
        number("/cpu_us_per_write")
    );
    say!(
        "  the generator took {:.2} us of CPU per write, {:.2} of a core; the host was busy with \
         {:.2} cores",
        number("/load_cpu_us_per_write"),
        number("/load_cpu_share"),
        number("/host_busy_share")
    );
    let row = |name: &str, path: &str| {
        let at = |part: &str| number(&format!("{path}/commit_us/{part}")) / 1e3;
        say!(
            "  {name}: commit p50 {:.2}, p90 {:.2}, p99 {:.2} ms",
            at("p50"),
            at("p90"),
            at("p99")
        );
    };
    row("at the peak", "");
    for share in SHARES.iter().filter(|_| !args.peak) {
        row(&format!("at {share} % of it"), &format!("/at_{share}"));
    }
}

/// Processor time during a measurement, in microseconds.
struct Cost {
    servers_us: f64,
    load_us: f64,
    /// Of all programs of this host.
    host_us: f64,
}

/// Carries out a measurement, and reads the processor times of servers, generator and host at its
/// beginning and at its end.
fn measured(
    servers: &[u32],
    measurement: impl FnOnce(&mut Edge<'_>) -> Result<Measured, Failure>,
) -> Result<(Measured, Cost), Failure> {
    let mut edges = Vec::new();
    let mut edge = || {
        let mut all = Duration::ZERO;
        for pid in servers {
            all += procstat::process(*pid)?.cpu;
        }
        let (own, host) = (procstat::this_process()?.cpu, procstat::host()?);
        edges.push([all, own, host.user + host.system + host.softirq]);
        Ok(())
    };
    let measured = measurement(&mut edge)?;
    let [begin, end] = edges[..] else { return Err("a measurement without two edges".into()) };
    let us = |of: usize| end[of].saturating_sub(begin[of]).as_nanos() as f64 / 1e3;
    Ok((measured, Cost { servers_us: us(0), load_us: us(1), host_us: us(2) }))
}

/// The replicas, which end when this value is dropped.
struct Replicas {
    all: Vec<Served>,
}

struct Served {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    door: SocketAddr,
}

impl Replicas {
    fn start(args: &Args, dir: &Path) -> Result<Self, Failure> {
        let free = |_| Ok(ports::free(Ipv4Addr::LOCALHOST.into())?.to_string());
        let addresses = (0..args.replicas).map(free);
        let addresses = addresses.collect::<Result<Vec<String>, std::io::Error>>()?.join(",");
        let mut started = Self { all: Vec::new() };
        for node in 0..args.replicas {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "consensus-replica", "--replicas", &addresses]);
            command.args(["--node", &node.to_string(), "--racks", &args.racks().to_string()]);
            command.args(["--value-bytes", &args.value_bytes.to_string()]);
            command.arg(format!("--second-round={}", args.rounds.second_round.name()));
            command.args(["--protocol", args.protocol.name()]);
            command.args(["--pipeline", &args.pipeline.to_string()]);
            command.args(["--cycle-every", &format!("{}ns", args.cycle_every.as_nanos())]);
            if args.durable {
                command.arg("--dir").arg(dir.join(node.to_string()));
            }
            process::end_with_parent(&mut command, process::Signal::Kill);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let out = child.stdout.take().ok_or("a replica has no output")?;
            let mut lines = BufReader::new(out).lines();
            let Some(line) = lines.next().transpose()? else {
                return Err(explain_end(node, &mut child).into());
            };
            let door = line.strip_prefix("serving ").and_then(|text| text.parse().ok());
            let door = door.ok_or_else(|| format!("replica {node} did not start: {line}"))?;
            started.all.push(Served { child, lines, door });
        }
        Ok(started)
    }

    fn doors(&self) -> Vec<SocketAddr> {
        self.all.iter().map(|served| served.door).collect()
    }

    fn pids(&self) -> Vec<u32> {
        self.all.iter().map(|served| served.child.id()).collect()
    }

    /// Ends the replicas with SIGTERM, and returns what each of them has executed.
    fn end(mut self) -> Result<Vec<ReplicaEnd>, Failure> {
        std::thread::sleep(SETTLE);
        let all = self.all.iter();
        all.for_each(|served| process::send(served.child.id(), process::Signal::Terminate));
        let mut ends = Vec::new();
        for (node, served) in self.all.iter_mut().enumerate() {
            let Some(line) = served.lines.next().transpose()? else {
                return Err(explain_end(node, &mut served.child).into());
            };
            let end = serde_json::from_str(&line);
            ends.push(end.map_err(|error| format!("replica {node} ended with {line:?}: {error}"))?);
        }
        Ok(ends)
    }
}

/// Why a replica's output is at its end. The replica itself has told the reason on standard error,
/// which is this program's, unless a signal ended it.
fn explain_end(node: usize, child: &mut Child) -> String {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return format!("replica {node} has ended too early: {status}"),
            // A process closes its output just before it ends.
            Ok(None) if begun.elapsed() < SETTLE => std::thread::sleep(SETTLE / 50),
            Ok(None) => return format!("replica {node} has closed its output, and goes on"),
            Err(error) => return format!("replica {node} has closed its output: {error}"),
        }
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        for served in &mut self.all {
            process::send(served.child.id(), process::Signal::Kill);
            let _ = served.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_ends_without_a_word_is_named_with_its_exit_code() {
        let mut child = Command::new("false").spawn().expect("a process");
        let said = explain_end(2, &mut child);
        assert_eq!(said, "replica 2 has ended too early: exit status: 1");
    }
}
