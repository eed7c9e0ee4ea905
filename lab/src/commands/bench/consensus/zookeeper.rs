//! `evenfall bench zookeeper`: operations per second of servers that speak ZooKeeper's protocol,
//! ours or others, with the load generator of `evenfall bench consensus`. With `--rival`, the
//! servers are our own over a protocol of the lab, and begin and end with the measurement.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_core::Prng;
use evenfall_keys_machine::jute::{Fields, JuteMessage, error, op};
use evenfall_runtime::program::Outcome;
use humantime::parse_duration;
use serde_json::json;

use super::keys::KeyServers;
use super::load::{Decode, Encode, Load};
use super::{measured, times_us};

/// The node below which the keys are.
const PARENT: &str = "/bench";
/// Timeout of the sessions. A run is shorter, and needs no ping.
const TIMEOUT_MS: i32 = 40_000;
/// Bytes of the head of a reply: xid, revision and error.
const REPLY_BYTES: usize = 16;

/// The operation that is measured.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZooKeeperOperation {
    /// `setData`.
    Set,
    /// `getData`.
    Get,
}

/// Arguments of `evenfall bench zookeeper`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Addresses of the servers.
    #[arg(long, value_delimiter = ',', required_unless_present = "rival")]
    servers: Vec<SocketAddr>,
    /// In the place of `--servers`: measure three replicas of ordered keys that begin now and agree
    /// by canopus, raft, multi-paxos or nezha. A rival keeps its log in memory, canopus on the
    /// disk.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["servers", "pids"])]
    rival: Option<Protocol>,
    /// The operation.
    #[arg(long, value_enum, default_value_t = ZooKeeperOperation::Set)]
    operation: ZooKeeperOperation,
    /// Sessions with each server.
    #[arg(long, default_value_t = 1)]
    sessions: usize,
    /// Requests under way, over all sessions.
    #[arg(long, default_value_t = 6_000)]
    outstanding: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 16)]
    value_bytes: usize,
    /// Number of keys, which are made first and then chosen at random.
    #[arg(long, default_value_t = 1_000)]
    keys: u64,
    /// Process of a server, whose processor time is then printed per operation.
    #[arg(long = "pid")]
    pids: Vec<u32>,
    /// Time before the measurement. Servers on a Java machine compile their code in this time.
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    warm_up: Duration,
    /// Duration of the measurement.
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures the servers, and prints the result.
pub fn main(args: &Args) -> Outcome {
    let started = args.rival.map(KeyServers::start).transpose()?;
    let mut args = args.clone();
    if let Some(servers) = &started {
        (args.servers, args.pids) = (servers.addresses().to_vec(), servers.pids());
    }
    let args = &args;
    let sessions = args.sessions.max(1) * args.servers.len();
    let addresses = args.servers.iter().cycle().take(sessions).copied().collect();
    make_keys(args)?;
    let outstanding = args.outstanding.div_ceil(sessions);
    let open = |seed, stream: &mut TcpStream| {
        greet(stream).map_err(|error| format!("a server refused a session: {error}"))?;
        Ok((requests(args, seed), replies()))
    };
    let load = Load { addresses, open: &open, warm_up: args.warm_up, duration: args.duration };
    let (peak, cost) = measured(&args.pids, |edge| load.closed(outstanding, edge))?;
    let value = json!({
        "protocol": args.rival.map(Protocol::name),
        "servers": args.servers.len(), "sessions": sessions,
        "operation": format!("{:?}", args.operation).to_lowercase(),
        "value_bytes": args.value_bytes, "keys": args.keys,
        "outstanding": outstanding * sessions,
        "operations_per_s": peak.per_s(),
        "times_us": times_us(&peak),
        "cpu_us_per_operation": cost.servers_us / peak.done as f64,
        "load_cpu_us_per_operation": cost.load_us / peak.done as f64,
        "load_cpu_share": cost.load_us / peak.seconds / 1e6,
        "host_busy_share": cost.host_us / peak.seconds / 1e6,
    });
    match args.json {
        true => say!("{value}"),
        false => say!(
            "{:.0} operations/s, {:.2} us of CPU each in the servers, {:.2} in the generator",
            peak.per_s(),
            cost.servers_us / peak.done as f64,
            cost.load_us / peak.done as f64
        ),
    }
    Ok(())
}

fn path(key: u64) -> String {
    format!("{PARENT}/{key}")
}

/// Begins a session.
fn greet(stream: &mut TcpStream) -> std::io::Result<()> {
    let hello = JuteMessage::default().int(0).long(0).int(TIMEOUT_MS).long(0).buffer(&[0; 16]);
    stream.write_all(&hello.bool(false).finish())?;
    read_message(stream).map(drop)
}

fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    evenfall_keys_client::frame(length, stream, 1 << 20)
}

/// Makes the keys that do not exist yet.
fn make_keys(args: &Args) -> Outcome {
    let mut stream = TcpStream::connect(args.servers[0])?;
    greet(&mut stream)?;
    let paths: Vec<String> =
        std::iter::once(PARENT.to_owned()).chain((0..args.keys).map(path)).collect();
    for (xid, path) in (1..).zip(&paths) {
        let value = vec![0; args.value_bytes];
        let create = JuteMessage::default().int(xid).int(op::CREATE).text(path).buffer(&value);
        let create = create.int(1).int(31).text("world").text("anyone").int(0);
        stream.write_all(&create.finish())?;
        let reply = read_message(&mut stream)?;
        let number = Fields::new(reply.get(12..).unwrap_or_default()).int()?;
        if number != error::OK && number != error::NODE_EXISTS {
            return Err(format!("a server refused to make {path}: error {number}").into());
        }
    }
    // A sync at every server makes the keys known there.
    for server in &args.servers {
        let mut stream = TcpStream::connect(server)?;
        greet(&mut stream)?;
        stream.write_all(&JuteMessage::default().int(1).int(op::SYNC).text(PARENT).finish())?;
        read_message(&mut stream)?;
    }
    Ok(())
}

fn requests(args: &Args, seed: u64) -> Encode {
    let (operation, keys, value) = (args.operation, args.keys, vec![7; args.value_bytes]);
    let (mut prng, mut xid) = (Prng::new(seed), 0_i32);
    Box::new(move |count, out| {
        for _ in 0..count {
            xid = xid.wrapping_add(1) & i32::MAX;
            let path = path(prng.below(keys));
            let message = JuteMessage::default().int(xid);
            let message = match operation {
                ZooKeeperOperation::Set => {
                    message.int(op::SET_DATA).text(&path).buffer(&value).int(-1)
                }
                ZooKeeperOperation::Get => message.int(op::GET_DATA).text(&path).bool(false),
            };
            out.extend_from_slice(&message.finish());
        }
    })
}

/// Replies without an error, which have to come in the order of the requests.
fn replies() -> Decode {
    let mut xid = 0_i32;
    Box::new(move |bytes| {
        let (mut at, mut count) = (0, 0);
        while let Some(length) = bytes[at..].first_chunk() {
            let length = u32::from_be_bytes(*length) as usize;
            let Some(reply) = bytes.get(at + 4..at + 4 + length) else { break };
            let number = |at: usize| {
                let word = reply.get(at..REPLY_BYTES).and_then(|rest| rest.first_chunk());
                word.map_or(i32::MIN, |word| i32::from_be_bytes(*word))
            };
            xid = xid.wrapping_add(1) & i32::MAX;
            if (number(0), number(12)) != (xid, error::OK) {
                return Err(format!("request {xid}: xid {}, error {}", number(0), number(12)));
            }
            at += 4 + length;
            count += 1;
        }
        Ok((at, count))
    })
}
