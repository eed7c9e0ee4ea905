//! The table that a proxy installs makes a port send exactly the bytes that the proxy sends by
//! hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Format, ForwardCounters, ForwardId, Forwarder,
    GroupId, Install, Installed, Machine, NodeId, SharedKey, StampedBy, Timestamp, TrafficClass,
    Transmit,
};
use evenfall_multicast_machine::{Config, Identity, Mode, Receiver, Relay, Root, RootRun};

const START: Timestamp = Timestamp::from_nanos(1_000_000_000);
const FORMING_MS: u64 = 2_000;
const FRAMES: u64 = 50;
const ROOT: u16 = 1;
const PROXY: u16 = 2;
const RECEIVER: u16 = 3;

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn bytes(transmit: &Transmit) -> Vec<u8> {
    [transmit.head.as_slice(), &transmit.body].concat()
}

/// Two proxies in the same place. The second gets every datagram of the first, through a port that
/// forwards. The datagrams that the second sends go nowhere.
struct Stage {
    now: Timestamp,
    root: Root,
    by_hand: Relay,
    by_port: Relay,
    port: Forwarder,
    receiver: Receiver,
    groups: BTreeMap<(u16, GroupId), Arc<[SocketAddr]>>,
    /// Live frames that left by hand and by the port.
    sent: [Vec<Vec<u8>>; 2],
    /// Live frames that the second proxy sent although its port forwards them.
    twice: usize,
    ignored: usize,
}

impl Stage {
    fn new(key: Option<&SharedKey>) -> Self {
        let mut config = Config { mode: Mode::Tree, ..Config::default() };
        (config.shape.depth, config.shape.fanout) = (Some(2), Some(1));
        config.framing.messages_max = 1;
        (config.membership.expect_receivers, config.membership.expect_proxies) = (1, 1);
        let who = |port: u16| Identity {
            id: NodeId(port.into()),
            stream: 0,
            root: addr(ROOT),
            standbys: vec![],
            incarnation: 1,
        };
        let run = RootRun::new(1, [7; 24]);
        let reading = ClockReading { offset_ns: 77, error: ClockError::SameClock };
        let mut stage = Self {
            now: START,
            root: Root::new(config, NodeId(ROOT.into()), 0, run, key, START),
            by_hand: Relay::new(config, who(PROXY), key, START),
            by_port: Relay::new(config, who(PROXY), key, START),
            port: Forwarder::default(),
            receiver: Receiver::new(config, who(RECEIVER), key, START),
            groups: BTreeMap::new(),
            sent: Default::default(),
            twice: 0,
            ignored: 0,
        };
        stage.by_hand.handle_clock(START, reading);
        stage.by_port.handle_clock(START, reading);
        stage.port.adopt_clock(reading);
        stage
    }

    fn arrive(&mut self, from: u16, to: SocketAddr, transmit: &Transmit) {
        let now = self.now;
        let arrival = Arrival::new(addr(from), bytes(transmit).into(), now, StampedBy::User);
        // A node that is not in the tree yet refuses datagrams for other nodes.
        match to.port() {
            ROOT => drop(self.root.handle(now, arrival)),
            RECEIVER => drop(self.receiver.handle(now, arrival)),
            _ => {
                self.by_hand.handle(now, arrival.clone()).ok();
                let mut arrival = arrival;
                let sent = &mut self.sent[1];
                self.port.offer(now, &mut arrival, |_, transmit| {
                    sent.push(bytes(&transmit));
                    true
                });
                self.by_port.handle(now, arrival).ok();
            }
        }
        self.apply_installs();
    }

    fn apply_installs(&mut self) {
        let of_root = core::iter::from_fn(|| self.root.poll_install()).map(|i| (ROOT, i));
        let of_hand = core::iter::from_fn(|| self.by_hand.poll_install()).map(|i| (PROXY, i));
        for (owner, install) in of_root.chain(of_hand) {
            if let Install::Group(id, members) = install {
                self.groups.insert((owner, id), members);
            }
        }
        while let Some(install) = self.by_port.poll_install() {
            if let Install::Forward(id, table) = install {
                let installed = self.port.install(0, id, table.as_ref());
                self.ignored += usize::from(installed == Installed::Ignored);
            }
        }
    }

    fn deliver(&mut self, from: u16, transmit: &Transmit) {
        let members = match transmit.to {
            Destination::One(to) => Arc::from([to]),
            Destination::Group(group) => {
                self.groups.get(&(from, group)).cloned().unwrap_or_default()
            }
        };
        members.iter().for_each(|to| self.arrive(from, *to, transmit));
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        let now = self.now;
        self.root.handle_timeout(now);
        self.by_hand.handle_timeout(now);
        self.by_port.handle_timeout(now);
        self.receiver.handle_timeout(now);
        self.apply_installs();
        while let Some(transmit) = self.root.poll_transmit(now) {
            self.deliver(ROOT, &transmit);
        }
        while let Some(transmit) = self.by_hand.poll_transmit(now) {
            if transmit.class == TrafficClass::Live {
                self.sent[0].push(bytes(&transmit));
            }
            self.deliver(PROXY, &transmit);
        }
        while let Some(transmit) = self.by_port.poll_transmit(now) {
            self.twice += usize::from(transmit.class == TrafficClass::Live);
        }
        while let Some(transmit) = self.receiver.poll_transmit(now) {
            self.deliver(RECEIVER, &transmit);
        }
        while self.root.poll_event().is_some() {}
        while self.receiver.poll_event().is_some() {}
        while self.by_hand.poll_event().is_some() || self.by_port.poll_event().is_some() {}
    }

    fn run(mut self) -> Self {
        (0..FORMING_MS).for_each(|_| self.step());
        for _ in 0..FRAMES {
            self.root.publish(self.now, Format::OPAQUE, b"a trade").unwrap();
            self.root.flush(self.now);
            self.step();
        }
        self
    }
}

#[test]
fn a_port_forwards_the_very_bytes_that_the_proxy_forwards_by_hand() {
    for key in [None, Some(&SharedKey::new(1, [7; 32]))] {
        let stage = Stage::new(key).run();
        let [by_hand, by_port] = &stage.sent;
        assert!(by_hand.len() as u64 >= FRAMES, "{} frames", by_hand.len());
        assert_eq!(by_hand, by_port);
        assert_eq!((stage.twice, stage.ignored), (0, 0));
        assert_eq!(stage.by_hand.status().forwarded, stage.by_port.status().forwarded);
    }
}

#[test]
fn all_that_the_port_counts_for_the_table_is_in_the_status_of_the_proxy() {
    let mut proxy = Stage::new(None).by_port;
    let told = ForwardCounters { forwarded: 4, duplicates: 3, behind: 2, refused: 1 };
    proxy.handle_counters(START, ForwardId(0), told);
    proxy.handle_counters(START, ForwardId(0), told);
    // These counters belong to the stream of another machine.
    proxy.handle_counters(START, ForwardId(1), told);
    let status = proxy.status();
    let left = (status.duplicates_in_port, status.behind_in_port, status.refused_by_port);
    assert_eq!((status.forwarded_by_port, left), (8, (6, 4, 2)));
}
