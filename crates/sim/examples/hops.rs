//! How many hops per second one core simulates, and what an idle node costs in memory:
//! `cargo run --release -p evenfall-sim --example hops -- 10 3 whole`.
//!
//! A root throws 5,000 messages of 80 bytes into a tree of three levels of ten: 1,110 nodes that
//! forward to their group and do nothing else. `whole` switches on what the default model leaves
//! out: load by strangers, bursts of losses, episodes, changes of routes, limits of packets and
//! flows, clocks that drift and wander. The first two numbers are fan-out and levels of the tree.
//!
//! Prints the median of five runs, which are equal but for the time they take. Times are CPU times,
//! so that other programs on the computer matter less.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Destination, GroupId, Head, Install, Machine, Malformed, Timestamp,
    TrafficClass, Transmit,
};
use evenfall_sim::{
    ClockSpec, Cloud, CloudProfile, HostLoad, HostSpec, NodeIndex, Observer, Outages, PathLoss,
    Quantiles, Reroutes, Seen, SimTime, StallSpec, World,
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
        Some(Transmit::new(TrafficClass::Live, Destination::Group(GroupId(0)), head, body))
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

/// The network and the hosts with every part of the model switched on.
fn whole() -> (CloudProfile, HostSpec) {
    let (us, ms) = (Duration::from_micros, Duration::from_millis);
    let outages =
        |gap, length| Some(Outages { mean_gap: gap, length: Quantiles::exponential(length) });
    let profile = CloudProfile {
        episodes: outages(ms(500), us(200)),
        load: Some(HostLoad {
            levels: vec![(0.4, 0.0), (0.4, 0.5), (0.2, 0.9)],
            burst: us(2),
            period: ms(100),
        }),
        reroutes: Some(Reroutes { every: Duration::from_secs(10), sigma: 0.1 }),
        loss: PathLoss { random: 2e-6, bursts: outages(ms(20_000), ms(1)), within: 0.5 },
        flow_bits_per_s: 5_000_000_000,
        ..CloudProfile::default()
    };
    let clock = ClockSpec { drift_spread_ppb: 10_000, wander_ppb: 20, ..ClockSpec::default() };
    (profile, HostSpec { nic_packets_per_s: 1_500_000, clock, ..HostSpec::default() })
}

fn world(fanout: u32, levels: u32, is_whole: bool) -> World<Forwarder, Cloud> {
    let (profile, spec) = match is_whole {
        true => whole(),
        false => (CloudProfile::default(), HostSpec::default()),
    };
    let mut world = World::new(Cloud::new(profile, 1), 1);
    let stalls = StallSpec {
        mean_gap: Duration::from_millis(50),
        length: Quantiles::exponential(Duration::from_micros(100)),
    };
    let spec = HostSpec { stalls: vec![stalls], ..spec };
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

/// The fields of a file of Linux about this process, from the one with this number on.
fn own<const N: usize>(file: &str, first: usize) -> [u64; N] {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).expect("this is Linux");
    let mut fields =
        text.split_whitespace().skip(first - 1).map(|field| field.parse().unwrap_or(0));
    std::array::from_fn(|_| fields.next().unwrap_or(0))
}

/// CPU time of this process in seconds: clock ticks, of which Linux states 100 a second.
fn cpu_seconds() -> f64 {
    let [user, system] = own("stat", 14);
    (user + system) as f64 / 100.0
}

/// Memory of this process in KiB: pages of 4 KiB.
fn resident_kib() -> u64 {
    let [pages] = own("statm", 2);
    4 * pages
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let (fanout, levels) = (numbers.next().unwrap_or(10), numbers.next().unwrap_or(3));
    let is_whole = std::env::args().any(|arg| arg == "whole");
    let mut rates = Vec::new();
    for run in 0..5 {
        let before = resident_kib();
        let mut world = world(fanout, levels, is_whole);
        world.run_until(SimTime::ZERO, &mut Feed);
        if run == 0 {
            let (kib, nodes) = (resident_kib() - before, world.node_count());
            println!("{nodes} idle nodes: {:.2} KiB a node", kib as f64 / nodes as f64);
        }
        for message in 0..5_000 {
            world.invoke_at(SimTime::from_micros(message * 200), NodeIndex(0), message);
        }
        let start = cpu_seconds();
        world.run_until(SimTime::from_millis(1_100), &mut Feed);
        let (took, tally) = (cpu_seconds() - start, world.tally());
        let rate = tally.hops as f64 / took / 1e6;
        println!("run {run}: {} hops in {took:.2} s of CPU time, {rate:.2} M/s", tally.hops);
        if run == 0 {
            println!("  digest {:016x}, {tally:?}", world.digest());
        }
        rates.push(rate);
    }
    rates.sort_by(f64::total_cmp);
    println!("median {:.2} M hops/s", rates[2]);
}
