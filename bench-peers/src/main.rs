//! Fan-out of small messages to ten receivers: evenfall beside other systems, in one run.
//!
//! Three figures per system, each the median of the rounds, rounds interleaved: processor time of
//! the sending side per delivered copy (a) at 10,000 msg/s with every message sent by itself, (b)
//! flat out with each system's own batching; and the highest rate at which nothing is lost.
//!
//! The sending side is the sender, its driver process or threads, and the kernel's threads for soft
//! interrupts. Soft interrupts that run on top of the sender are in the sender's own time. On
//! loopback the sender also runs the receive half of the stack, in every row alike.
//!
//! ```text
//! bench-peers [--rounds N] [--seconds S] [--fanout F] [--size B] [--aeron PATH] [--json FILE]
//! ```

mod peers;
mod udp;
mod zeromq;

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};

/// The result of one measurement of one system.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerSample {
    /// Nanoseconds of the sending side per delivered copy.
    pub cpu_ns_per_copy: f64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// Share of the copies that were not delivered.
    pub lost: f64,
}

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Receivers.
    pub fanout: usize,
    /// Bytes of a message.
    pub size: usize,
    /// How long to send in one measurement.
    pub duration: Duration,
    /// Class path of Aeron and of the program in `aeron/`, when Aeron takes part.
    pub aeron: Option<String>,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The results of one system over the rounds.
#[derive(Clone, Default)]
struct Rounds {
    slow: Vec<PeerSample>,
    full: Vec<PeerSample>,
    lossless: Vec<f64>,
}

/// A system under test.
struct Peer {
    name: &'static str,
    /// Its settings, for the table.
    settings: &'static str,
    /// One measurement at this rate, or flat out.
    run: fn(&Setup, Option<f64>) -> Result<PeerSample>,
    /// The highest rate without loss.
    lossless: fn(&Setup, &PeerSample) -> Result<f64>,
}

const PEERS: [Peer; 8] = [
    Peer {
        name: "evenfall",
        settings: "multicast root; flat out 20 messages per datagram, 64 datagrams per send",
        run: udp::evenfall,
        lossless: udp::evenfall_lossless,
    },
    Peer {
        name: "evenfall, with a key",
        settings: "as above, every datagram authenticated and every body sealed",
        run: udp::keyed,
        lossless: udp::keyed_lossless,
    },
    Peer {
        name: "evenfall, 1 a datagram",
        settings: "as above, but every message in a datagram of its own",
        run: udp::unpacked,
        lossless: udp::unpacked_lossless,
    },
    Peer {
        name: "sendto",
        settings: "one call per copy, no batching",
        run: udp::sendto,
        lossless: udp::sendto_lossless,
    },
    Peer {
        name: "sendmmsg",
        settings: "one call per message, shared iovecs; flat out 20 messages per datagram",
        run: udp::sendmmsg,
        lossless: udp::sendmmsg_lossless,
    },
    Peer {
        name: "sendmmsg + segments",
        settings: "flat out 20 messages per datagram, 64 datagrams per segmented send",
        run: udp::segmented,
        lossless: udp::segmented_lossless,
    },
    Peer {
        name: "Aeron MDC",
        settings: "shared driver, 8 KiB frames, 2 MiB windows, min flow control, claims",
        run: peers::aeron,
        lossless: peers::own_pace,
    },
    Peer {
        name: "ZeroMQ PUB/SUB",
        settings: "TCP, one IO thread, blocks at the high-water mark",
        run: peers::zeromq,
        lossless: peers::own_pace,
    },
];

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn flag(arguments: &[String], name: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).cloned()
}

fn number(arguments: &[String], name: &str, default: f64) -> Result<f64> {
    match flag(arguments, name) {
        Some(text) => text.parse().map_err(|_| format!("{name} {text}: not a number").into()),
        None => Ok(default),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("zeromq-sub") => return zeromq::subscribe(&arguments[1..]),
        Some("zeromq-pub") => return zeromq::publish(&arguments[1..]),
        _ => {}
    }
    let rounds = number(&arguments, "--rounds", 5.0)? as usize;
    let setup = Setup {
        fanout: number(&arguments, "--fanout", 10.0)? as usize,
        size: number(&arguments, "--size", 40.0)? as usize,
        duration: Duration::from_secs_f64(number(&arguments, "--seconds", 1.0)?),
        aeron: flag(&arguments, "--aeron"),
    };
    let report = compare(&setup, rounds)?;
    print_table(&report);
    let text = serde_json::to_string_pretty(&report)?;
    match flag(&arguments, "--json") {
        Some(file) => std::fs::write(file, text)?,
        None => println!("{text}"),
    }
    Ok(())
}

fn compare(setup: &Setup, rounds: usize) -> Result<Value> {
    let taking_part: Vec<&Peer> =
        PEERS.iter().filter(|peer| peer.name != "Aeron MDC" || setup.aeron.is_some()).collect();
    let mut samples = vec![Rounds::default(); taking_part.len()];
    for round in 0..rounds {
        for (peer, samples) in taking_part.iter().zip(&mut samples) {
            eprintln!("round {} of {rounds}: {}", round + 1, peer.name);
            samples.slow.push((peer.run)(setup, Some(10_000.0))?);
            let sample = (peer.run)(setup, None)?;
            samples.lossless.push((peer.lossless)(setup, &sample)?);
            samples.full.push(sample);
        }
    }
    let each = |samples: &[PeerSample]| -> Vec<f64> {
        samples.iter().map(|sample| sample.cpu_ns_per_copy).collect()
    };
    let row = |(peer, Rounds { slow, full, lossless }): (&&Peer, &Rounds)| {
        json!({
            "system": peer.name,
            "settings": peer.settings,
            "cpu_ns_per_copy_10k": median(slow.iter().map(|s| s.cpu_ns_per_copy)),
            "cpu_ns_per_copy_10k_each": each(slow),
            "lost_share_10k": median(slow.iter().map(|s| s.lost)),
            "messages_per_s_10k": median(slow.iter().map(|s| s.messages_per_s)),
            "cpu_ns_per_copy_flat_out": median(full.iter().map(|s| s.cpu_ns_per_copy)),
            "cpu_ns_per_copy_flat_out_each": each(full),
            "messages_per_s_flat_out": median(full.iter().map(|s| s.messages_per_s)),
            "lost_share_flat_out": median(full.iter().map(|s| s.lost)),
            "messages_per_s_lossless": median(lossless.iter().copied()),
        })
    };
    let rows: Vec<Value> = taking_part.iter().zip(&samples).map(row).collect();
    Ok(json!({
        "fanout": setup.fanout,
        "size_bytes": setup.size,
        "rounds": rounds,
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "rows": rows,
    }))
}

/// Prints the table. Ratios are to evenfall: above 1 the other system needs more time, or carries
/// less.
fn print_table(report: &Value) {
    let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let value = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    println!(
        "{:22} {:>16} {:>7} {:>16} {:>7} {:>18} {:>7}",
        "system", "10k msg/s ns", "ratio", "flat out ns", "ratio", "loss-free msg/s", "ratio"
    );
    let Some(ours) = rows.first() else { return };
    for row in rows {
        let keys = ["cpu_ns_per_copy_10k", "cpu_ns_per_copy_flat_out", "messages_per_s_lossless"];
        let [slow, full, rate] = keys.map(|key| value(row, key));
        println!(
            "{:22} {slow:16.0} {:7.2} {full:16.1} {:7.2} {rate:18.0} {:7.2}",
            row["system"].as_str().unwrap_or(""),
            slow / value(ours, keys[0]),
            full / value(ours, keys[1]),
            value(ours, keys[2]) / rate,
        );
    }
}
