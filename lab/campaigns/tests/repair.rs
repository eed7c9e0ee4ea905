//! Repair beside a live feed. Repair does not delay live frames, receivers do not all ask at once,
//! and late joiners catch up.

use core::time::Duration;
use std::collections::BTreeMap;

use evenfall_campaigns::multicast::cast::Cast;
use evenfall_campaigns::multicast::node::{CampaignNode, NodeEvent};
use evenfall_campaigns::multicast::{OverlayParams, run};
use evenfall_core::{Format, Hedging, NodeId, Prng, Timestamp, TrafficClass, nearest_rank};
use evenfall_multicast_machine::config::Rule;
use evenfall_multicast_machine::{Begin, Config, Mode, ReceiverEvent, Root, wire};
use evenfall_sim::{
    ClockSpec, Cloud, CloudProfile, Fault, HostSpec, Network, NodeIndex, Observer, Packet, Rates,
    Seen, SimTime, Verdict, World,
};

const MS: Duration = Duration::from_millis(1);
/// The feed is scheduled in steps of this length.
const STEP: Duration = Duration::from_millis(10);
/// Delay of a copy between two hosts.
const HOP: Duration = Duration::from_micros(50);
/// Offset of the kind of a datagram, see [`wire`].
const KIND_OFFSET: usize = 3;

/// Numbers of proxies and receivers.
#[derive(Clone, Copy, Default)]
struct Crew {
    proxies: u32,
    receivers: u32,
    recorders: u32,
}

/// Observations of a run.
#[derive(Default)]
struct Log {
    message: Vec<u8>,
    published: u64,
    /// For each first copy of a live frame: the time at which the frame was made, and its delay.
    live: Vec<(SimTime, Duration)>,
    repaired: BTreeMap<NodeIndex, u64>,
    lost: u64,
    caught_up: BTreeMap<NodeIndex, SimTime>,
    falling_behind: u64,
    /// Times and senders of requests for repair.
    asked: Vec<(SimTime, NodeIndex)>,
    /// Delay of the last frame that a node released.
    latest: BTreeMap<NodeIndex, Duration>,
}

impl Log {
    fn publish(&mut self, seen: Seen, root: &mut Root) {
        root.publish(seen.local, Format::OPAQUE, &self.message).expect("the queue has room");
        root.flush(seen.local);
        self.published += 1;
    }
}

impl<N: Network> Observer<CampaignNode, N> for Log {
    fn event(&mut self, seen: Seen, event: NodeEvent) {
        let NodeEvent::Receiver(event) = event else { return };
        match event {
            ReceiverEvent::Released(release) => {
                let took = release.arrived.since(release.origin);
                self.latest.insert(seen.node, took);
                if release.repaired {
                    *self.repaired.entry(seen.node).or_insert(0) += 1;
                } else {
                    self.live.push((SimTime::ZERO + release.origin.since(START), took));
                }
            }
            ReceiverEvent::Lost { frames, .. } => self.lost += frames,
            ReceiverEvent::CaughtUp => drop(self.caught_up.insert(seen.node, seen.at)),
            ReceiverEvent::FallingBehind { .. } => self.falling_behind += 1,
            _ => {}
        }
    }

    fn invoke(&mut self, seen: Seen, _: u64, machine: &mut CampaignNode) {
        if let CampaignNode::Root(root) = machine {
            self.publish(seen, root);
        }
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], _: Verdict) {
        if packet.class == TrafficClass::Control {
            let bytes_max = Config::default().framing.datagram_bytes;
            let kind = datagram[KIND_OFFSET];
            assert!(datagram.len() <= bytes_max, "kind {kind}: {} bytes", datagram.len());
        }
        if packet.class == TrafficClass::Control
            && datagram[KIND_OFFSET] == wire::DatagramKind::Nack as u8
        {
            self.asked.push((packet.at, packet.from));
        }
    }
}

/// The start of a run by the synchronised clocks, which are exact here.
const START: evenfall_core::SyncTime = evenfall_core::SyncTime::from_nanos(0);

struct Stage {
    world: World<CampaignNode, Cloud>,
    cast: Cast,
    host: HostSpec,
    prng: Prng,
    log: Log,
}

impl Stage {
    fn new(mut config: Config, crew: Crew, host: HostSpec) -> Self {
        let world = World::new(Cloud::new(CloudProfile::constant(HOP), 1), 1);
        config.membership.expect_receivers = crew.receivers + crew.recorders;
        config.membership.expect_proxies = crew.proxies;
        let root_address = world.address(NodeIndex(0));
        let (root, standbys) = (NodeId(0), Vec::new());
        let config = config.into();
        let cast = Cast {
            config,
            key: None,
            master: None,
            stream: 0,
            root,
            root_address,
            standbys,
            signed: None,
        };
        let prng = Prng::new(7);
        let mut stage = Self { world, cast, host, prng, log: Log::default() };
        stage.log.message = vec![7; 300];
        stage.add(|cast, _, now| cast.root(1, now));
        for _ in 0..crew.proxies {
            stage.add(|cast, id, now| cast.relay(id, 1, now));
        }
        for _ in 0..crew.receivers {
            stage.add(|cast, id, now| cast.receiver(id, u64::from(id.0), now));
        }
        for _ in 0..crew.recorders {
            stage.add(|cast, id, now| cast.recorder(id, 1, now));
        }
        stage.idle(MS * 300);
        stage
    }

    fn add(&mut self, machine: impl Fn(&Cast, NodeId, Timestamp) -> CampaignNode) -> NodeIndex {
        let origin = Timestamp::from_nanos(1_000_000_000 + self.prng.below(1 << 40));
        let clock = ClockSpec { origin: Some(origin), ..ClockSpec::default() };
        let now = origin + self.world.now().since(SimTime::ZERO);
        let id = NodeId(self.world.node_count() as u32);
        self.world.add(machine(&self.cast, id, now), HostSpec { clock, ..self.host.clone() })
    }

    fn idle(&mut self, time: Duration) {
        self.world.run_until(self.world.now() + time, &mut self.log);
    }

    /// Runs the feed at this rate. Returns its start.
    fn feed(&mut self, per_second: u32, time: Duration) -> SimTime {
        let (begin, every) = (self.world.now(), Duration::from_secs(1) / per_second);
        let end = begin + time;
        let mut due = begin;
        while self.world.now() < end {
            let until = self.world.now() + STEP;
            while due < until {
                self.world.invoke_at(due, NodeIndex(0), 0);
                due = due + every;
            }
            self.world.run_until(until, &mut self.log);
        }
        begin
    }

    /// 99th percentile of the delays of live frames that were made between `from` and `to`.
    fn live_p99(&self, from: SimTime, to: SimTime) -> Duration {
        let of_time = self.log.live.iter().filter(|(made, _)| (from..to).contains(made));
        let mut took: Vec<Duration> = of_time.map(|(_, took)| *took).collect();
        took.sort_unstable();
        nearest_rank(&took, 0.99).expect("frames were made")
    }
}

/// Ten proxies and a hundred receivers, each of which misses 4,096 frames: the p99 of live frames
/// before the loss and while all of it is repaired, and how many frames were repaired.
fn repair_beside_a_feed(frames_per_second: u32) -> (Duration, Duration, u64) {
    let mut config = Config { mode: Mode::Tree, ..Config::default() };
    config.repair.frames_per_second = frames_per_second;
    // Receivers are cut off for most of a second, and the limit of silence keeps them members.
    config.membership.silence = Duration::from_secs(5);
    let crew = Crew { proxies: 10, receivers: 100, recorders: 0 };
    let host = HostSpec { nic_bits_per_s: 2_000_000_000, ..HostSpec::default() };
    let mut stage = Stage::new(config, crew, host);
    // Full datagrams, each of which takes 6 us on this link.
    stage.log.message = vec![7; 1_300];
    let rate = 5_000;
    let before = stage.feed(rate, MS * 200);
    let cut: Vec<NodeIndex> = (11..111).map(NodeIndex).collect();
    stage.world.partition(&cut);
    stage.feed(rate, Duration::from_secs(4_096) / rate);
    stage.world.heal_all();
    let after = stage.feed(rate, MS * 1_500);
    stage.idle(MS * 2_000);
    assert_eq!(stage.log.lost, 0);
    let repaired: Vec<u64> = stage.log.repaired.values().copied().collect();
    assert!(repaired.len() == 100 && repaired.iter().all(|frames| *frames >= 4_096));
    let whole = stage.live_p99(before, before + MS * 200);
    (whole, stage.live_p99(after, after + MS * 700), repaired.iter().sum())
}

#[test]
fn a_burst_of_repair_does_not_delay_the_live_feed_unless_it_is_unpaced() {
    let frames_per_second = Config::default().repair.frames_per_second;
    let (before, during, repaired) = repair_beside_a_feed(frames_per_second);
    let (_, unpaced, _) = repair_beside_a_feed(10_000_000);
    println!(
        "p99 {before:?}, {during:?} while {repaired} frames are repaired, {unpaced:?} unpaced"
    );
    assert!(during <= before + Duration::from_micros(100), "{before:?} became {during:?}");
    assert!(unpaced >= before + Duration::from_micros(300), "{unpaced:?} shows nothing");
}

#[test]
fn nodes_that_miss_the_same_frame_do_not_ask_at_the_same_time() {
    let config = Config { mode: Mode::Tree, ..Config::default() };
    let crew = Crew { proxies: 10, receivers: 100, recorders: 0 };
    let mut stage = Stage::new(config, crew, HostSpec::default());
    stage.feed(1_000, MS * 100);
    let cut: Vec<NodeIndex> = (1..111).map(NodeIndex).collect();
    stage.log.asked.clear();
    stage.world.partition(&cut);
    stage.feed(1_000, STEP);
    stage.world.heal_all();
    stage.feed(1_000, MS * 100);
    let first = stage.log.asked.iter().map(|(at, _)| *at).min().expect("frames were lost");
    let window = Duration::from_micros(100);
    let together = |(at, _): &(SimTime, NodeIndex)| {
        stage.log.asked.iter().filter(|(other, _)| *other >= *at && *other < *at + window).count()
    };
    let most = stage.log.asked.iter().map(together).max().unwrap_or(0);
    let all = stage.log.asked.len();
    println!("{all} requests from {first}, at most {most} within {window:?}");
    assert_eq!(stage.log.lost, 0);
    // Without jitter, all nodes would ask within this window.
    assert!(most <= 110 / 2, "{most} of 110 nodes asked within {window:?}");
}

#[test]
fn orders_and_reports_of_a_thousand_children_fit_their_datagrams() {
    let mut config = Config { mode: Mode::Tree, ..Config::default() };
    (config.shape.depth, config.shape.fanout) = (Some(2), Some(1));
    let crew = Crew { proxies: 1, receivers: 1_000, recorders: 0 };
    let mut stage = Stage::new(config, crew, HostSpec::default());
    // The stage fails when a machine sends an order or a report that is longer than a datagram.
    stage.feed(200, MS * 500);
    stage.idle(MS * 100);
    let children = match stage.world.machine(NodeIndex(1)) {
        CampaignNode::Relay(relay) => relay.place().map(|place| place.children.len()),
        _ => None,
    };
    assert_eq!(children, Some(1_000));
    assert_eq!((stage.log.live.len(), stage.log.lost), (100_000, 0));
}

/// A receiver is cut off for half a second, and the network loses one packet of 500, reports
/// included. The test compares two shares of frames that were in time everywhere: the share that
/// the root counts live, and the share that the ledger computes from the releases of all receivers.
#[test]
fn the_live_share_of_frames_in_time_agrees_with_the_ledger_under_loss() {
    let mut config = Config::default();
    config.deadline.rule = Rule::MaxP95;
    config.shape.hedging = Hedging::NONE;
    config.membership.silence = Duration::from_secs(5);
    let rates = Rates { loss: 0.002, ..Rates::default() };
    let receivers = 40;
    let params = OverlayParams {
        config,
        receivers,
        rate: 2_000.0,
        duration: Duration::from_secs(6),
        warm_up: MS * 200,
        cloud: CloudProfile::constant(HOP),
        ..OverlayParams::default()
    };
    let cut = NodeIndex(1 + params.proxies() + receivers / 2);
    let faults = vec![
        (Duration::ZERO, Fault::Rates(rates)),
        (MS * 2_000, Fault::Partition(vec![cut])),
        (MS * 2_500, Fault::Heal),
    ];
    let run = run(&OverlayParams { faults, ..params });
    let root = &run.roots[0];
    let live = 1.0 - root.sampled_late as f64 / root.sampled as f64;
    let ledger = run.results.on_time_fraction.expect("frames were held");
    println!("in time: live {live:.4} of {} frames, ledger {ledger:.4}", root.sampled);
    assert!((live - ledger).abs() <= 0.02, "live {live:.4}, ledger {ledger:.4}");
    assert!(ledger < 0.95, "a run without late frames shows nothing");
}

#[test]
fn two_late_joiners_beside_a_fast_feed_catch_up() {
    let mut config = Config { mode: Mode::Unicast, ..Config::default() };
    config.repair.ring_frames = 4_096;
    config.repair.window_frames = 16_384;
    config.framing.held_frames = 16_384;
    config.framing.messages_max = 1;
    let crew = Crew { proxies: 0, receivers: 1, recorders: 1 };
    let host = HostSpec { receive_queue: 8_192, ..HostSpec::default() };
    let mut stage = Stage::new(config, crew, host);
    stage.log.message = vec![7; 60];
    let rate = 30_000;
    stage.feed(rate, Duration::from_secs(2));
    let late: Vec<NodeIndex> = (0..2)
        .map(|_| stage.add(|cast, id, now| cast.late_receiver(id, Begin::Start, now)))
        .collect();
    for _ in 0..80 {
        stage.feed(rate, MS * 100);
        if stage.log.caught_up.len() == late.len() {
            break;
        }
    }
    stage.feed(rate, MS * 100);
    println!("caught up: {:?}, {} times behind", stage.log.caught_up, stage.log.falling_behind);
    assert_eq!(stage.log.lost, 0);
    for node in late {
        assert!(stage.log.caught_up.contains_key(&node), "{node:?} never caught up");
        assert!(stage.log.latest[&node] < MS * 10, "{:?} behind", stage.log.latest[&node]);
    }
}
