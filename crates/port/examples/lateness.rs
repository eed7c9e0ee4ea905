//! How late a wait ends, asleep and with a spin before the deadline.
//!
//! `cargo run --release -p evenfall-port --example lateness [waits]`

use std::time::Duration;

use evenfall_core::Summary;
use evenfall_host::Error;
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_port::udp::UdpDriver;
use evenfall_port::{Options, Port};

fn main() -> Result<(), Error> {
    let waits: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5000);
    for spin_us in [0, 20, 50, 100, 200] {
        let spin = Duration::from_micros(spin_us);
        let options = Options { spin, ..Options::default() };
        let mut driver = UdpDriver::bind(([127, 0, 0, 1], 0).into(), options)?;
        let mut late = Vec::new();
        let cpu = thread_cpu();
        for _ in 0..waits {
            let deadline = MonotonicClock::now() + Duration::from_micros(500);
            driver.wait(None, Some(deadline));
            late.push(MonotonicClock::now().signed_since(deadline));
        }
        let cpu = (thread_cpu() - cpu) / waits;
        let late = Summary::of_nanos(&mut late);
        println!("spin {spin_us:3} us: late {late:?}, {cpu:?} of processor per wait");
    }
    Ok(())
}
