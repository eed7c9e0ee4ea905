//! How many hops per second one core simulates: `cargo run --release -p evenfall-sim --example
//! hops`.
//!
//! A root throws 5,000 messages of 80 bytes into a tree of three levels of ten: 1,110 nodes that
//! forward to their group and do nothing else, on the cloud model with everything switched on.
//! Prints the median of five runs, which are equal but for the time they take. Another tree:
//! `-- 18 3`, fan-out and levels.

use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{
    Arrival, Class, ClockReading, Destination, GroupId, Head, Install, Machine, Malformed,
    Timestamp, Transmit,
};
use evenfall_sim::{
    Cloud, CloudProfile, HostSpec, NodeIndex, Observer, Quantiles, Seen, SimTime, StallSpec, World,
};

/// Sends what it receives to its group.
#[derive(Default)]
struct Forwarder {
    install: Option<Install>,
    forward: Option<Bytes>,
    has_children: bool,
    received: u64,
    timeout: Option<Timestamp>,
}

impl Machine for Forwarder {
    type Event = ();

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.received += 1;
        self.timeout = Some(now + Duration::from_millis(50));
        self.forward = self.has_children.then_some(arrival.datagram);
        Ok(())
    }

    fn handle_timeout(&mut self, _: Timestamp) {
        self.timeout = None;
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.install.take()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        let datagram = self.forward.take()?;
        let (head, body) = (Head::new(&datagram[..40]), datagram.slice(40..));
        Some(Transmit::new(Class::Live, Destination::Group(GroupId(0)), head, body))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.timeout
    }
}

/// Publishes.
struct Feed;

impl Observer<Forwarder, Cloud> for Feed {
    fn event(&mut self, _: Seen, (): ()) {}

    fn invoke(&mut self, _: Seen, _: u64, root: &mut Forwarder) {
        root.forward = Some(Bytes::from_static(&[7; 80]));
    }
}

fn world(fanout: u32, levels: u32) -> World<Forwarder, Cloud> {
    let mut world = World::new(Cloud::new(CloudProfile::default(), 1), 1);
    let stalls = StallSpec {
        mean_gap: Duration::from_millis(50),
        length: Quantiles::exponential(Duration::from_micros(100)),
    };
    let spec = HostSpec { stalls: vec![stalls], ..HostSpec::default() };
    // The tree in the order of its levels: the children of node i are F i + 1 to F i + F.
    let parents = (0..levels).map(|level| fanout.pow(level)).sum();
    let nodes = parents + fanout.pow(levels);
    for index in 0..nodes {
        let mut machine = Forwarder::default();
        if index < parents {
            let children = (1..=fanout).map(|k| world.address(NodeIndex(fanout * index + k)));
            machine.install = Some(Install::Group(GroupId(0), children.collect()));
            machine.has_children = true;
        }
        world.add(machine, spec.clone());
    }
    world
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let (fanout, levels) = (numbers.next().unwrap_or(10), numbers.next().unwrap_or(3));
    let mut rates = Vec::new();
    for run in 0..5 {
        let mut world = world(fanout, levels);
        for message in 0..5_000 {
            world.invoke_at(SimTime::from_micros(message * 200), NodeIndex(0), message);
        }
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures the wall clock")]
        let start = Instant::now();
        world.run_until(SimTime::from_millis(1_100), &mut Feed);
        let (took, tally) = (start.elapsed(), world.tally());
        let rate = tally.hops as f64 / took.as_secs_f64() / 1e6;
        println!("run {run}: {} hops in {took:.2?}, {rate:.2} M/s", tally.hops);
        if run == 0 {
            println!("  digest {:016x}, {tally:?}", world.digest());
        }
        rates.push(rate);
    }
    rates.sort_by(f64::total_cmp);
    println!("median {:.2} M hops/s", rates[2]);
}
