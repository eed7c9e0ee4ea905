//! Many receivers in one process, for `scripts/costs.py`, which measures what a root pays for them.
//!
//! `crowd ROOT HOST FIRST COUNT SECONDS`, such as `crowd 127.0.0.1:9000 127.0.0.1 1 100 30`.
//! Receiver `id`, from FIRST on, listens at port 20,000 + `id` of HOST. Receivers report and are
//! missed twenty times more slowly than by default, as in the settings of the script's root: all of
//! them share a host with it, and have no proxies between.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use evenfall::NodeId;
use evenfall::subscriber::{Subscriber, Subscription};

/// Port of the receiver 0.
const PORT: u16 = 20_000;
/// Updates that are taken of a receiver at once.
const MOST: usize = 4_096;
/// Pause between two rounds. The threads of the receivers answer the root meanwhile.
const PAUSE: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [root, host, first, count, seconds] = &args[..] else {
        return Err("usage: crowd ROOT HOST FIRST COUNT SECONDS".into());
    };
    let (root, host): (SocketAddr, IpAddr) = (root.parse()?, host.parse()?);
    let (first, count): (u16, u16) = (first.parse()?, count.parse()?);
    let mut crowd = Vec::new();
    for id in first..first + count {
        let own = SocketAddr::new(host, PORT + id);
        let mut subscription = Subscription::new(root, own, NodeId(id.into()));
        let membership = &mut subscription.multicast.membership;
        membership.join_retry = Duration::from_secs(1);
        membership.beacon_interval = Duration::from_millis(500);
        membership.report_interval = Duration::from_secs(1);
        membership.silence = Duration::from_secs(20);
        membership.root_timeout = Duration::from_secs(60);
        crowd.push(Subscriber::of(&subscription)?);
    }
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    let mut updates = 0;
    while Instant::now() < end {
        for subscriber in &mut crowd {
            if let Some(batch) = subscriber.next_batch(MOST, Duration::ZERO) {
                updates += batch?.updates.len();
            }
        }
        thread::sleep(PAUSE);
    }
    println!("{updates} updates at {count} receivers");
    Ok(())
}
