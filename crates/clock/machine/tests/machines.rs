//! Machines on a wire without queues, driven by hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use evenfall_clock_machine::{
    BoundedReading, ClockSeat, ClockState, Config, TimeEvent, Timekeeper,
};
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, EndKeys, Machine, MasterKey, NodeId, Prng,
    Sent, SharedKey, StampedBy, Timestamp,
};

/// Delay of every datagram: 30 us.
const DELAY_NS: u64 = 30_000;

/// A datagram, and its sender and receiver.
pub(crate) type Carried = (usize, usize, Vec<u8>);

/// Nodes whose clocks are set apart and run at different rates.
pub(crate) struct Bench {
    pub(crate) nodes: Vec<Timekeeper>,
    addresses: Vec<SocketAddr>,
    clocks: Vec<(u64, f64)>,
    pub(crate) now: u64,
    wire: BTreeMap<(u64, u64), Carried>,
    sent: u64,
    bits: Vec<u64>,
    events: Vec<(usize, TimeEvent)>,
    /// Datagrams that each node refused.
    pub(crate) refused: Vec<u64>,
    /// All datagrams that were carried.
    pub(crate) carried: Vec<Carried>,
    /// Draws whether a datagram is lost, which one in ten is.
    pub(crate) lossy: Option<Prng>,
}

impl Bench {
    pub(crate) fn new(count: u32, key: Option<&SharedKey>) -> Self {
        Self::begun(count, key, 9)
    }

    /// Nodes that were started in this second.
    pub(crate) fn begun(count: u32, key: Option<&SharedKey>, started: u32) -> Self {
        let addresses: Vec<SocketAddr> = (0..count)
            .map(|n| format!("10.0.0.{}:7000", n + 1).parse().expect("an address"))
            .collect();
        let clocks: Vec<(u64, f64)> =
            (0..u64::from(count)).map(|n| (1 << (40 + n), 1e-5 * n as f64)).collect();
        let node = |number: u32| {
            let seat = ClockSeat { addresses: addresses.clone(), number, run: 77, started };
            Timekeeper::new(
                Config::default(),
                seat,
                key,
                Timestamp::from_nanos(clocks[number as usize].0),
            )
        };
        Self {
            nodes: (0..count).map(node).collect(),
            bits: vec![0; count as usize],
            refused: vec![0; count as usize],
            carried: Vec::new(),
            lossy: None,
            addresses,
            clocks,
            now: 0,
            wire: BTreeMap::new(),
            sent: 0,
            events: Vec::new(),
        }
    }

    /// Puts all datagrams under keys of their two ends. Numbers of lives begin at `lives`.
    pub(crate) fn with_node_keys(mut self, master: &MasterKey, lives: u64) -> Self {
        let count = self.nodes.len() as u32;
        let nodes = core::mem::take(&mut self.nodes).into_iter().zip(0u32..);
        self.nodes = nodes
            .map(|(node, place)| keyed(node, count, place, master, lives + u64::from(place)))
            .collect();
        self
    }

    /// A node starts again in this second, on a clock that went on. With a master key it gets the
    /// keys of its ends, and `life` is its number.
    pub(crate) fn restart(
        &mut self,
        n: usize,
        started: u32,
        key: &SharedKey,
        master: Option<(&MasterKey, u64)>,
    ) {
        let addresses = self.addresses.clone();
        let seat = ClockSeat { addresses, number: n as u32, run: 77, started };
        let now = self.local(n, self.now);
        let node = Timekeeper::new(Config::default(), seat, Some(key), now);
        let count = self.nodes.len() as u32;
        self.nodes[n] = match master {
            Some((master, life)) => keyed(node, count, n as u32, master, life),
            None => node,
        };
    }

    /// A datagram arrives at a node. Returns whether the node refused it.
    pub(crate) fn inject(&mut self, (from, to, bytes): Carried) -> bool {
        let local = self.local(to, self.now);
        let arrival = Arrival::new(self.addresses[from], bytes.into(), local, StampedBy::Kernel);
        let is_refused = self.nodes[to].handle(local, arrival).is_err();
        self.refused[to] += u64::from(is_refused);
        self.drain(to);
        is_refused
    }

    pub(crate) fn local(&self, n: usize, at: u64) -> Timestamp {
        let (origin, rate) = self.clocks[n];
        Timestamp::from_nanos(origin + at + (rate * at as f64) as u64)
    }

    /// The earliest true time at which a node wants to be called.
    fn due(&self, n: usize) -> Option<u64> {
        let (origin, rate) = self.clocks[n];
        let local = self.nodes[n].poll_timeout()?.nanos().saturating_sub(origin);
        Some(((local as f64 / (1.0 + rate)).ceil() as u64 + 1).max(self.now))
    }

    fn drain(&mut self, n: usize) {
        let local = self.local(n, self.now);
        while let Some(event) = self.nodes[n].poll_event() {
            self.events.push((n, event));
        }
        while let Some(transmit) = self.nodes[n].poll_transmit(local) {
            let Destination::One(to) = transmit.to else { panic!("the clock has no groups") };
            let to = self.addresses.iter().position(|address| *address == to).expect("a node");
            self.bits[n] += 8 * (transmit.len() as u64 + 66);
            let bytes = [transmit.head.as_slice(), &transmit.body].concat();
            self.wire.insert((self.now + DELAY_NS, self.sent), (n, to, bytes));
            self.sent += 1;
            if let Some(token) = transmit.token {
                let sent = Sent { token, at: Some(local), stamped_by: StampedBy::Kernel };
                self.nodes[n].handle_sent(local, sent);
            }
        }
    }

    pub(crate) fn run(&mut self, until: u64) {
        loop {
            let timers = (0..self.nodes.len()).filter_map(|n| Some((self.due(n)?, n))).min();
            let packet = self.wire.keys().next().copied();
            let (at, n) = match (timers, packet) {
                (Some((at, n)), Some((arrival, _))) if at < arrival => (at, Some(n)),
                (Some((at, n)), None) => (at, Some(n)),
                (_, Some((arrival, _))) => (arrival, None),
                (None, None) => return,
            };
            if at > until {
                self.now = until;
                return;
            }
            self.now = at;
            if let Some(n) = n {
                let local = self.local(n, at);
                self.nodes[n].handle_timeout(local);
                self.drain(n);
            } else {
                let (_, carried) = self.wire.pop_first().expect("a packet");
                if self.lossy.as_mut().is_some_and(|prng| prng.chance(0.1)) {
                    continue;
                }
                self.carried.push(carried.clone());
                self.inject(carried);
            }
        }
    }

    /// The error of a node's clock, and its reading.
    pub(crate) fn error(&self, n: usize) -> (i64, BoundedReading) {
        let local = self.local(n, self.now);
        let reading = self.nodes[n].read(local);
        let shown = local.nanos() as i64 + reading.offset_ns;
        (shown - self.local(0, self.now).nanos() as i64, reading)
    }
}

/// A node at this place with keys of its ends. Ids fall where places rise.
fn keyed(node: Timekeeper, count: u32, place: u32, master: &MasterKey, life: u64) -> Timekeeper {
    let ids: Vec<NodeId> = (0..count).map(|place| NodeId(100 - place)).collect();
    let keys = match place {
        0 => EndKeys::Root(master.clone()),
        place => EndKeys::Node(master.node(ids[place as usize])),
    };
    node.with_node_keys(keys, ids, life)
}

#[test]
fn all_nodes_find_the_time_of_the_reference_within_three_windows() {
    let key = SharedKey::new(1, [9; 32]);
    for key in [None, Some(&key)] {
        let mut bench = Bench::new(6, key);
        assert_eq!(bench.error(3).1.state, ClockState::Unknown);
        bench.run(7_500_000_000);
        for n in 0..6 {
            let (error, reading) = bench.error(n);
            assert_eq!(reading.state, ClockState::Synchronised, "node {n}");
            assert!(error.abs() <= 20, "node {n}: {error} ns");
            let proven = reading.proven_ns.expect("proven");
            assert!(error.unsigned_abs() <= proven, "node {n}: {error} beyond {proven}");
            assert!(error.unsigned_abs() <= reading.assumed_ns.expect("measured"));
            assert!(n == 0 || proven >= DELAY_NS, "no bound is below the delay");
        }
        assert!(bench.refused.iter().all(|refused| *refused == 0), "{:?}", bench.refused);
    }
}

#[test]
fn probes_keep_to_their_budget() {
    let mut bench = Bench::new(6, None);
    bench.run(10_000_000_000);
    let most = Config::default().budget_bits_s * 10;
    for (n, bits) in bench.bits.iter().enumerate() {
        assert!((most * 95 / 100..=most * 102 / 100).contains(bits), "node {n}: {bits} bits");
    }
}

#[test]
fn probes_that_cost_more_are_sent_less_often_and_clocks_stay_measured() {
    let mut bench = Bench::new(6, None);
    bench.run(2_000_000_000);
    let bits_per_pair = Config::default().budget_bits_s as f64 / bench.nodes[1].pairs_per_second();
    // Half a percent of a core is 5 ms a second: 50 pairs of 100 us. Five neighbours get five pairs
    // each in two seconds however much a pair costs. Free pairs cost bits only.
    for (cost, pairs) in [(100, 50.0), (1_000_000, 12.5), (0, bench.nodes[1].pairs_per_second())] {
        bench.nodes.iter_mut().for_each(|node| node.set_pair_cost(Duration::from_micros(cost)));
        // Pairs that were due before the call are sent in this time.
        bench.run(bench.now + 500_000_000);
        let before = bench.bits.clone();
        bench.run(bench.now + 10_000_000_000);
        for (n, before) in before.iter().enumerate() {
            let sent = (bench.bits[n] - before) as f64 / 10.0 / bits_per_pair;
            // Reports and verdicts are sent beside the probes.
            assert!((0.95 * pairs..1.05 * pairs + 6.0).contains(&sent), "node {n}: {sent} pairs/s");
            let (error, reading) = bench.error(n);
            assert_eq!(reading.state, ClockState::Synchronised, "node {n}, {cost} us");
            assert!(error.unsigned_abs() <= reading.assumed_ns.expect("measured"), "node {n}");
        }
    }
}

#[test]
fn when_the_reference_is_gone_clocks_run_free_and_say_so() {
    let mut bench = Bench::new(4, None);
    bench.run(6_500_000_000);
    let before = bench.error(2).1;
    // Nobody calls the reference any more.
    bench.now += 20_000_000_000;
    let (error, after) = bench.error(2);
    assert_eq!(after.state, ClockState::FreeRunning);
    assert!(after.proven_ns > before.proven_ns && after.assumed_ns > before.assumed_ns);
    assert!(error.unsigned_abs() <= after.proven_ns.expect("proven"), "{error}");
}

#[test]
fn a_clock_that_leaves_its_proven_bound_is_named_left_out_and_steps_to_its_time() {
    for jump_ns in [5_000_000i64, -5_000_000, 3_600_000_000_000] {
        let mut bench = Bench::new(6, None);
        bench.nodes.iter_mut().for_each(Timekeeper::begin_use);
        bench.run(9_000_000_000);
        assert!(bench.error(3).0.abs() <= 20);
        bench.clocks[3].0 = bench.clocks[3].0.saturating_add_signed(jump_ns);
        // The window in which the clock jumped ends, and is solved.
        bench.run(10_500_000_000);
        for n in 1..6 {
            let state = if n == 3 { ClockState::Disrupted } else { ClockState::Synchronised };
            assert_eq!((bench.error(n).1.state, bench.nodes[n].is_left_out()), (state, n == 3));
        }
        let solved = bench.events.iter().rev().find_map(|(_, event)| match event {
            TimeEvent::Solved(health, _) => Some(health.clone()),
            _ => None,
        });
        let health = solved.expect("a window ended");
        assert_eq!((health.disrupted, health.lost), (vec![3], vec![]), "jump of {jump_ns} ns");
        bench.run(12_500_000_000);
        let (error, reading) = bench.error(3);
        assert_eq!(
            (reading.state, bench.nodes[3].is_left_out()),
            (ClockState::Synchronised, false)
        );
        assert!(error.abs() <= 20, "{error} ns after a jump of {jump_ns} ns");
        assert!(error.unsigned_abs() <= reading.proven_ns.expect("proven"));
    }
}

#[test]
fn a_jump_is_seen_by_single_probes_long_before_the_window_ends() {
    for (node, jump_ns) in [(3, 5_000_000i64), (3, -5_000_000), (5, -3_600_000_000_000)] {
        let mut bench = Bench::new(6, None);
        bench.run(9_000_000_000);
        bench.clocks[node].0 = bench.clocks[node].0.saturating_add_signed(jump_ns);
        bench.run(9_200_000_000);
        for n in 0..6 {
            assert_eq!(bench.nodes[n].is_left_out(), n == node, "{n}, jump of {jump_ns} ns");
        }
        bench.run(13_000_000_000);
        assert!((0..6).all(|n| !bench.nodes[n].is_left_out()));
        assert!(bench.error(node).0.abs() <= 20, "{} ns", bench.error(node).0);
    }
}

#[test]
fn when_the_clock_of_the_reference_jumps_the_time_of_the_mesh_goes_on() {
    for jump_ns in [5_000_000i64, -5_000_000, 3_600_000_000_000, -3_600_000_000_000] {
        let mut bench = Bench::new(6, None);
        bench.clocks[0].0 = 1 << 50;
        bench.nodes.iter_mut().for_each(Timekeeper::begin_use);
        bench.run(9_000_000_000);
        let before = bench.clocks[0].0;
        bench.clocks[0].0 = before.saturating_add_signed(jump_ns);
        // The time that each node shows, less the time that the clock of the reference would show
        // without its jump.
        let wrong = |bench: &Bench, n: usize| {
            let local = bench.local(n, bench.now);
            let shown = local.nanos() as i64 + bench.nodes[n].read(local).offset_ns;
            (shown - (before + bench.now) as i64).abs()
        };
        for ms in (9_200..20_000).step_by(100) {
            bench.run(ms * 1_000_000);
            let is_astray = bench.nodes[0].is_left_out();
            assert!(ms > 9_200 || is_astray, "seen by single probes, jump of {jump_ns} ns");
            assert!(ms < 14_000 || !is_astray, "jump of {jump_ns} ns");
            for n in usize::from(is_astray)..6 {
                assert!(!bench.nodes[n].is_left_out(), "node {n} has not jumped");
                let wrong = wrong(&bench, n);
                assert!(wrong <= 1_000, "node {n}, {ms} ms, jump of {jump_ns} ns: {wrong} ns");
            }
        }
        let named = |(_, event): &(usize, TimeEvent)| match event {
            TimeEvent::Solved(health, _) => health.disrupted.clone(),
            _ => Vec::new(),
        };
        let mut named: Vec<u32> = bench.events.iter().flat_map(named).collect();
        named.dedup();
        assert_eq!(named, [0], "jump of {jump_ns} ns");
    }
}

#[test]
fn sources_of_several_nodes_give_utc_and_one_that_lies_is_named() {
    let mut bench = Bench::new(5, None);
    let utc = 1_700_000_000_000_000_000i64;
    for second in 1..=9u64 {
        bench.run(second * 900_000_000);
        for n in 0..5 {
            let local = bench.local(n, bench.now);
            let wrong = if n == 4 { 50_000_000 } else { 100 * n as i64 };
            let offset_ns = utc + bench.now as i64 - local.nanos() as i64 + wrong;
            let error = ClockError::Within(Duration::from_micros(2));
            bench.nodes[n].handle_clock(local, ClockReading { offset_ns, error });
        }
    }
    let solved = bench.events.iter().rev().find_map(|(_, event)| match event {
        TimeEvent::Solved(_, utc) => Some(utc.clone()),
        _ => None,
    });
    let found = solved.expect("a window ended");
    assert_eq!(found.dropped, [4]);
    let (truth, claim) = (utc + bench.now as i64, found.claim.expect("four agree"));
    let shown = bench.local(0, bench.now).nanos() as i64 + claim.offset_ns;
    assert!((shown - truth).unsigned_abs() <= claim.bound_ns, "{shown}, {truth}, {claim:?}");
    // The sources were read up to 900 ms ago, in which clocks may drift by 180 us.
    assert!(claim.bound_ns <= 200_000);
}
