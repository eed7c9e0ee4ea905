//! Measures the processor time of a receive, per datagram, of a driver that finds its socket full.
//!
//! `cargo run --release -p evenfall-lab --example receive [rounds]`

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Destination, Head, TrafficClass, Transmit};
use evenfall_host::Error;
use evenfall_host::clock::thread_cpu;
use evenfall_port::udp::UdpDriver;
use evenfall_port::{Options, Port};

/// Datagrams that wait before the clock runs.
const WAITING: usize = 640;

/// Nanoseconds per datagram.
fn receive(bytes: usize, segmented: bool, options: &Options, rounds: usize) -> Result<f64, Error> {
    let loopback = ([127, 0, 0, 1], 0).into();
    let mut receiver = UdpDriver::bind(loopback, options.clone())?;
    let send = Options { segmentation: segmented, ..Options::default() };
    let mut sender = UdpDriver::bind(loopback, send)?;
    let body = Bytes::from(vec![7; bytes]);
    let mut arrivals = Vec::new();
    // The arrivals that a machine would hold: those of the last round, dropped in the order in
    // which they came.
    let mut held = Vec::new();
    let (mut spent, mut count) = (Duration::ZERO, 0);
    for _ in 0..rounds {
        for _ in 0..WAITING {
            let to = Destination::One(receiver.local_addr());
            let head = Head::new(b"");
            let frame = Transmit::new(TrafficClass::Live, to, head, body.clone());
            sender.send(0, frame).expect("room for a round");
        }
        sender.flush();
        let before = thread_cpu();
        loop {
            let got = receiver.receive(&mut arrivals);
            if got == 0 {
                break;
            }
            count += got;
            held.append(&mut arrivals);
        }
        spent += thread_cpu() - before;
        let before = thread_cpu();
        held.drain(..held.len().saturating_sub(WAITING));
        spent += thread_cpu() - before;
    }
    assert_eq!(count, WAITING * rounds, "nothing is lost on the way");
    Ok(spent.as_nanos() as f64 / count as f64)
}

fn main() -> Result<(), Error> {
    let rounds: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(500);
    let coalesced = Options::default();
    let single = Options { coalescing: false, ..Options::default() };
    let stamped = Options { kernel_timestamps: true, ..coalesced.clone() };
    let unpooled = Options { pinned_bytes_max: 0, ..coalesced.clone() };
    let rows = [
        ("single datagrams, plain", false, &single),
        ("single datagrams, coalescing on", false, &coalesced),
        ("segments, coalescing off", true, &single),
        ("segments, coalescing on", true, &coalesced),
        ("segments, kernel time stamps", true, &stamped),
        ("segments, nothing pooled", true, &unpooled),
    ];
    for bytes in [118, 256, 878, 1400] {
        for (name, segmented, options) in rows {
            let mut results = [0.0; 5];
            for result in &mut results {
                *result = receive(bytes, segmented, options, rounds / 5)?;
            }
            results.sort_by(f64::total_cmp);
            println!("{bytes:5} bytes, {name:34} {:7.1} ns", results[2]);
        }
    }
    Ok(())
}
