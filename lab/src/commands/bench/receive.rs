//! `evenfall-lab bench receive`: what a message costs a receiver, packed and one by one, sealed and
//! not.

use std::time::Duration;

use evenfall_multicast_machine::SharedKey;
use evenfall_runtime::program::Outcome;
use humantime::parse_duration;
use serde_json::{Value, json};

use super::{check_pack, median};
use crate::receiving::line::{RoleAllocations, count_allocations};
use crate::receiving::{ReceiveBench, ReceiveCost, measure_receiver};

/// Frames during which the calls of the allocator by the machines of all roles are counted.
const FRAMES_COUNTED: u32 = 2_000;

/// Arguments of `evenfall-lab bench receive`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Bytes of a message.
    #[arg(long, default_value_t = 40)]
    size: usize,
    /// Messages in one datagram of a packed feed.
    #[arg(long, default_value_t = 20)]
    pack: u16,
    /// Datagrams a second.
    #[arg(long, default_value_t = 5_000)]
    rate: u32,
    /// Number of rounds, in which the feeds take turns. The medians are printed.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Length of one measurement.
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A kind of feed, and its costs in all rounds.
struct Row {
    bench: ReceiveBench,
    costs: Vec<ReceiveCost>,
}

impl Row {
    fn median_of(&self, of: fn(&ReceiveCost) -> f64) -> f64 {
        median(self.costs.iter().map(of).collect())
    }

    fn as_json(&self) -> Value {
        let ReceiveBench { pack, is_sealed, .. } = self.bench;
        let key = is_sealed.then(|| SharedKey::new(1, [5; 32]));
        let calls = count_allocations(FRAMES_COUNTED, pack, key.as_ref());
        let RoleAllocations { frames, root, proxy, receiver } = calls;
        json!({
            "messages_per_datagram": pack,
            "sealed": is_sealed,
            "cpu_ns_per_message": self.median_of(|cost| cost.cpu_ns_per_message),
            "allocations": self.median_of(|cost| cost.allocations),
            "handover_us": self.median_of(|cost| cost.handover_us),
            "handover_us_p99": self.median_of(|cost| cost.handover_us_p99),
            "lost": self.costs.iter().map(|cost| cost.lost).sum::<u64>(),
            "machines": {
                "frames": frames,
                "allocations": { "root": root, "proxy": proxy, "receiver": receiver },
            },
        })
    }
}

/// Measures and prints.
pub fn main(args: &Args) -> Outcome {
    let Args { size, pack, rate, duration, .. } = *args;
    if rate == 0 {
        return Err("--rate: must be 1 or more".into());
    }
    // One of the packed feeds is sealed.
    check_pack(pack.into(), size, true)?;
    let row = |pack, is_sealed| Row {
        bench: ReceiveBench { size, pack, rate, duration, is_sealed },
        costs: Vec::new(),
    };
    let mut rows = [row(1, false), row(1, true), row(pack, false), row(pack, true)];
    let rounds = args.rounds.max(1);
    for round in 0..rounds {
        if !args.json {
            aside!("round {} of {rounds}", round + 1);
        }
        for row in &mut rows {
            row.costs.push(measure_receiver(&row.bench)?);
        }
    }
    if args.json {
        let all: Vec<Value> = rows.iter().map(Row::as_json).collect();
        say!(
            "{}",
            json!({ "size_bytes": size, "datagrams_per_s": rate, "rounds": rounds, "feeds": all })
        );
        return Ok(());
    }
    say!("{size}-byte messages, {rate} datagrams/s, medians of {rounds}");
    say!("  a datagram  sealed  ns a message  allocations  hand-over, us    p99  lost");
    for row in &rows {
        say!(
            "  {:>10}  {:>6}  {:>12.0}  {:>11.3}  {:>13.1}  {:>5.1}  {:>4}",
            row.bench.pack,
            if row.bench.is_sealed { "yes" } else { "no" },
            row.median_of(|cost| cost.cpu_ns_per_message),
            row.median_of(|cost| cost.allocations),
            row.median_of(|cost| cost.handover_us),
            row.median_of(|cost| cost.handover_us_p99),
            row.costs.iter().map(|cost| cost.lost).sum::<u64>()
        );
    }
    Ok(())
}
