//! A root that publishes at a steady rate, beside which `scripts/costs.py` measures subscribers.
//!
//! `paced_root OWN RATE SECONDS BYTES ID=ADDRESS...`, such as
//! `paced_root 127.0.0.1:9000 1000000 60 40 7=127.0.0.1:9007`, prints as JSON how many messages it
//! published, and how many seconds those at the rate took.

use std::thread;
use std::time::{Duration, Instant};

use evenfall::embedded_root::{EmbeddedRoot, EmbeddedRootSettings};
use evenfall::{Bytes, NodeId};

/// Messages in front of those at the rate. They fill the root's queue, so that the last of them is
/// taken when the feed has begun.
const FIRST: u64 = 32_768;
/// Bursts a second. A shorter sleep between two of them would cost more time than it lasts.
const BURSTS_PER_S: f64 = 5_000.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [own, rate, seconds, bytes, receivers @ ..] = &args[..] else {
        return Err("usage: paced_root OWN RATE SECONDS BYTES ID=ADDRESS...".into());
    };
    let (rate, seconds): (f64, f64) = (rate.parse()?, seconds.parse()?);
    let mut settings = EmbeddedRootSettings::new(own.parse()?, NodeId(0));
    for receiver in receivers {
        let (id, address) = receiver.split_once('=').ok_or("a receiver is ID=ADDRESS")?;
        settings.receivers.push((NodeId(id.parse()?), address.parse()?));
    }
    let root = EmbeddedRoot::of(&settings)?;
    let message = Bytes::from(vec![b'm'; bytes.parse()?]);
    for _ in 0..FIRST {
        root.publish(message.clone(), 0)?;
    }
    let (burst, all) = ((rate / BURSTS_PER_S).max(1.0) as u64, (rate * seconds) as u64);
    let begun = Instant::now();
    let mut sent = 0;
    while sent < all {
        let due = begun + Duration::from_secs_f64(sent as f64 / rate);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let end = all.min(sent + burst);
        for _ in sent..end {
            root.publish(message.clone(), 0)?;
        }
        sent = end;
    }
    let took_s = begun.elapsed().as_secs_f64();
    let summary = root.finish()?;
    println!("{{\"messages\": {}, \"seconds\": {took_s:.3}}}", summary.messages);
    Ok(())
}
