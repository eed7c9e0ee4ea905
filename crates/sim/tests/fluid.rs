//! Fluid flows beside a filling by brute force, and beside a network of packets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenfall_core::Prng;
use evenfall_sim::{Fluid, FluidFlow, FluidLink, SimTime};

/// Racks of 4 hosts below two spines. Links in order: hosts up, hosts down, racks up, racks down.
struct Leaves {
    hosts: u32,
    rates: Vec<u64>,
}

const RACK_HOSTS: u32 = 4;
const SPINES: u32 = 2;

impl Leaves {
    fn new(racks: u32, host_rate: u64, spine_rate: u64) -> Self {
        let hosts = racks * RACK_HOSTS;
        let mut rates = vec![host_rate; 2 * hosts as usize];
        rates.extend(vec![spine_rate; (2 * racks * SPINES) as usize]);
        Self { hosts, rates }
    }

    fn path(&self, from: u32, to: u32, spine: u32) -> Vec<FluidLink> {
        let [up, down] = [from / RACK_HOSTS, to / RACK_HOSTS];
        let spines = 2 * self.hosts;
        let racks = self.hosts / RACK_HOSTS;
        let mut path = vec![from];
        if up != down {
            path.push(spines + up * SPINES + spine);
            path.push(spines + (racks + down) * SPINES + spine);
        }
        path.push(self.hosts + to);
        path.into_iter().map(FluidLink).collect()
    }

    fn random(&self, prng: &mut Prng) -> Vec<FluidLink> {
        let hosts = u64::from(self.hosts);
        let from = prng.below(hosts);
        let to = (from + 1 + prng.below(hosts - 1)) % hosts;
        self.path(from as u32, to as u32, prng.below(u64::from(SPINES)) as u32)
    }

    fn fluid(&self) -> Fluid {
        let mut fluid = Fluid::new();
        for &rate in &self.rates {
            fluid.link(rate);
        }
        fluid
    }
}

/// Raises the rates of all flows together; those whose link is full stay where they are. All links,
/// all flows, from nothing.
fn by_brute_force(rates: &[u64], paths: &[Vec<FluidLink>]) -> Vec<f64> {
    let mut flows = vec![0.0; paths.len()];
    let mut rising = vec![true; paths.len()];
    while rising.contains(&true) {
        let mut step = f64::INFINITY;
        for (link, &rate) in rates.iter().enumerate() {
            let on = |flow: &usize| paths[*flow].contains(&FluidLink(link as u32));
            let used: f64 = (0..paths.len()).filter(on).map(|flow| flows[flow]).sum();
            let risers = (0..paths.len()).filter(on).filter(|&flow| rising[flow]).count();
            if risers > 0 {
                step = step.min((rate as f64 - used) / risers as f64);
            }
        }
        for flow in 0..paths.len() {
            flows[flow] += if rising[flow] { step.max(0.0) } else { 0.0 };
        }
        for (link, &rate) in rates.iter().enumerate() {
            let on = |flow: &usize| paths[*flow].contains(&FluidLink(link as u32));
            let used: f64 = (0..paths.len()).filter(on).map(|flow| flows[flow]).sum();
            if used >= rate as f64 * (1.0 - 1e-12) {
                (0..paths.len()).filter(on).for_each(|flow| rising[flow] = false);
            }
        }
    }
    flows
}

/// A rate is max-min fair where each flow has a link that is full and gives nobody more.
fn assert_fair(fluid: &Fluid, rates: &[u64], live: &[(FluidFlow, Vec<FluidLink>)]) {
    for (link, &rate) in rates.iter().enumerate() {
        assert!(fluid.load(FluidLink(link as u32)) <= rate as f64 * (1.0 + 1e-9));
    }
    for (flow, path) in live {
        let own = fluid.rate(*flow);
        let bottleneck = path.iter().any(|link| {
            let full = fluid.load(*link) >= rates[link.0 as usize] as f64 * (1.0 - 1e-9);
            let others = live.iter().filter(|(_, other)| other.contains(link));
            full && others.map(|(other, _)| fluid.rate(*other)).fold(0.0, f64::max)
                <= own * (1.0 + 1e-9)
        });
        assert!(bottleneck, "{flow:?} at {own} could have more");
    }
}

#[test]
fn rates_are_those_of_filling_by_brute_force_after_every_change() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let leaves = Leaves::new(4, 125_000_000, [20, 60, 250][seed as usize % 3] * 1_000_000);
        let mut fluid = leaves.fluid();
        let mut live: Vec<(FluidFlow, Vec<FluidLink>)> = Vec::new();
        for step in 0..150 {
            let now = SimTime::from_micros(step);
            let end = live.len() > 40 || (!live.is_empty() && prng.chance(0.4));
            if end {
                let (flow, path) = live.swap_remove(prng.below(live.len() as u64) as usize);
                if prng.chance(0.2) {
                    let path = leaves.random(&mut prng);
                    fluid.reroute(now, flow, &path);
                    live.push((flow, path));
                } else {
                    fluid.stop(now, flow);
                    drop(path);
                }
            } else {
                let path = leaves.random(&mut prng);
                live.push((fluid.start(now, &path, 1_000_000_000), path));
            }
            let paths: Vec<_> = live.iter().map(|(_, path)| path.clone()).collect();
            let expected = by_brute_force(&leaves.rates, &paths);
            for ((flow, _), expected) in live.iter().zip(expected) {
                let rate = fluid.rate(*flow);
                assert!((rate / expected - 1.0).abs() < 1e-9, "{rate}, not {expected}");
            }
            assert_fair(&fluid, &leaves.rates, &live);
        }
    }
}

/// Runs flows of (start, path, bytes) to their ends.
fn ends_of_fluids(leaves: &Leaves, flows: &[(u64, Vec<FluidLink>, u64)]) -> Vec<u64> {
    let mut fluid = leaves.fluid();
    let mut ends = vec![0; flows.len()];
    let mut live: Vec<(FluidFlow, usize)> = Vec::new();
    let mut next = 0;
    loop {
        let start = flows.get(next).map(|flow| SimTime::from_nanos(flow.0));
        match (fluid.next_end(), start) {
            (Some((at, flow)), start) if start.is_none_or(|start| at <= start) => {
                assert_eq!(fluid.stop(at, flow), 0.0);
                let place = live.iter().position(|(other, _)| *other == flow).expect("alive");
                ends[live.swap_remove(place).1] = at.nanos();
            }
            (_, Some(at)) => {
                live.push((fluid.start(at, &flows[next].1, flows[next].2), next));
                next += 1;
            }
            (_, None) => return ends,
        }
    }
}

#[test]
fn every_byte_is_carried_by_every_link_of_its_path() {
    let leaves = Leaves::new(4, 125_000_000, 125_000_000);
    let mut prng = Prng::new(9);
    let mut fluid = leaves.fluid();
    let mut bytes = 0;
    for _ in 0..200 {
        let size = 1_000_000 + prng.below(100_000_000);
        fluid.start(SimTime::ZERO, &leaves.random(&mut prng), size);
        bytes += size;
    }
    let mut at = SimTime::ZERO;
    while let Some((end, flow)) = fluid.next_end() {
        at = end;
        fluid.stop(end, flow);
    }
    let carried = |first: u32| {
        (first..first + leaves.hosts).map(|link| fluid.carried(at, FluidLink(link))).sum::<f64>()
    };
    for carried in [carried(0), carried(leaves.hosts)] {
        assert!((carried / bytes as f64 - 1.0).abs() < 1e-9, "{carried} of {bytes}");
    }
}

#[test]
fn a_flow_that_is_made_longer_ends_later_by_just_that() {
    let mut fluid = Fluid::new();
    let link = fluid.link(1_000);
    let flow = fluid.start(SimTime::ZERO, &[link], 1_000);
    fluid.resize(SimTime::from_millis(500), flow, 1_500);
    assert_eq!(fluid.next_end(), Some((SimTime::from_millis(2_000), flow)));
    assert_eq!(fluid.left(SimTime::from_millis(1_000), flow), 1_000.0);
}

/// Bytes of a packet of the packet network.
const PACKET_BYTES: u64 = 1_500;
/// Packets of a flow between its source and its end. Four links hold four packets of a flow that is
/// alone; the rest waits at the bottleneck, so that its turn never finds nothing.
const WINDOW: u64 = 24;

#[derive(Default)]
struct Sender {
    path: Vec<u32>,
    unsent: u64,
    lacking: u64,
}

/// When, a number that keeps order, the link that has sent, whose packet, which hop.
type Sent = (u64, u64, u32, usize, usize);

/// Ports that serve their flows in turns, a packet each, and store a packet before they send it on.
/// Sources keep [`WINDOW`] packets on their way. Hahne (1991) shows that turns and large windows
/// give max-min shares; nothing of the fluid's arithmetic is used.
struct Packets<'a> {
    rates: &'a [u64],
    senders: Vec<Sender>,
    /// By link and flow: packets that wait; and the flows whose turn comes.
    waiting: Vec<Vec<u32>>,
    turns: Vec<VecDeque<usize>>,
    busy: Vec<bool>,
    agenda: BinaryHeap<Reverse<Sent>>,
    number: u64,
}

impl Packets<'_> {
    fn enter(&mut self, now: u64, flow: usize, hop: usize) {
        let link = self.senders[flow].path[hop] as usize;
        self.waiting[link][flow] += 1;
        if self.waiting[link][flow] == 1 {
            self.turns[link].push_back(flow);
        }
        self.serve(now, link);
    }

    fn serve(&mut self, now: u64, link: usize) {
        if self.busy[link] {
            return;
        }
        let Some(flow) = self.turns[link].pop_front() else { return };
        self.waiting[link][flow] -= 1;
        if self.waiting[link][flow] > 0 {
            self.turns[link].push_back(flow);
        }
        self.busy[link] = true;
        let hop = self.senders[flow].path.iter().position(|&other| other as usize == link);
        let at = now + PACKET_BYTES * 1_000_000_000 / self.rates[link];
        self.number += 1;
        let hop = hop.expect("a link of the path");
        self.agenda.push(Reverse((at, self.number, link as u32, flow, hop)));
    }

    fn emit(&mut self, now: u64, flow: usize) {
        if self.senders[flow].unsent > 0 {
            self.senders[flow].unsent -= 1;
            self.enter(now, flow, 0);
        }
    }
}

fn ends_of_packets(leaves: &Leaves, flows: &[(u64, Vec<FluidLink>, u64)]) -> Vec<u64> {
    let sender = |flow: &(u64, Vec<FluidLink>, u64)| {
        let packets = flow.2 / PACKET_BYTES;
        let path = flow.1.iter().map(|link| link.0).collect();
        Sender { path, unsent: packets, lacking: packets }
    };
    let links = leaves.rates.len();
    let mut net = Packets {
        rates: &leaves.rates,
        senders: flows.iter().map(sender).collect(),
        waiting: vec![vec![0; flows.len()]; links],
        turns: vec![VecDeque::new(); links],
        busy: vec![false; links],
        agenda: BinaryHeap::new(),
        number: 0,
    };
    let mut ends = vec![0; flows.len()];
    let mut next = 0;
    loop {
        let first = net.agenda.peek().map(|Reverse(event)| event.0);
        if let Some(flow) = flows.get(next).filter(|flow| first.is_none_or(|at| flow.0 <= at)) {
            for _ in 0..WINDOW {
                net.emit(flow.0, next);
            }
            next += 1;
            continue;
        }
        let Some(Reverse((now, _, link, flow, hop))) = net.agenda.pop() else { return ends };
        net.busy[link as usize] = false;
        if hop + 1 < net.senders[flow].path.len() {
            net.enter(now, flow, hop + 1);
        } else {
            net.senders[flow].lacking -= 1;
            if net.senders[flow].lacking == 0 {
                ends[flow] = now;
            }
            net.emit(now, flow);
        }
        net.serve(now, link as usize);
    }
}

/// Flows of 3 to 12 MB that come and go: up to a dozen at a time, with bottlenecks at hosts and at
/// spines.
#[test]
fn packets_served_in_turns_end_when_fluids_end() {
    let mut off = Vec::new();
    for seed in 0..6 {
        let mut prng = Prng::new(100 + seed);
        let spine_rate = [62_500_000, 125_000_000, 200_000_000][seed as usize % 3];
        let leaves = Leaves::new(4, 125_000_000, spine_rate);
        let mut at = 0;
        let mut flows = Vec::new();
        for _ in 0..40 {
            at += prng.exponential(12e6) as u64;
            let bytes = (2_000 + prng.below(6_000)) * PACKET_BYTES;
            flows.push((at, leaves.random(&mut prng), bytes));
        }
        let (fluids, packets) = (ends_of_fluids(&leaves, &flows), ends_of_packets(&leaves, &flows));
        for (flow, (fluid, packet)) in flows.iter().zip(fluids.iter().zip(&packets)) {
            let [fluid, packet] = [fluid, packet].map(|end| (end - flow.0) as f64);
            off.push(packet / fluid - 1.0);
        }
    }
    off.sort_by(f64::total_cmp);
    let mean = off.iter().sum::<f64>() / off.len() as f64;
    let (least, most) = (off[0], off[off.len() - 1]);
    println!("packets end later by {least:.4} to {most:.4} of the time, {mean:.4} in the mean");
    // Where a rate has just changed, up to a window of packets waits at the old bottleneck: 24 of
    // the 2,000 packets of the shortest flow for each change that it sees.
    assert!(mean.abs() < 0.005 && least > -0.04 && most < 0.04, "{least} {mean} {most}");
}
