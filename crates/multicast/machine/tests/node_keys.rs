//! A root that gives each node its own key, and keys of the run that come and go.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::node_keys::run_key_id;
use evenfall_core::{
    Arrival, Destination, Format, Machine, MasterKey, NodeId, StampedBy, SyncTime, Timestamp,
    TrafficClass,
};
use evenfall_multicast_machine::forging::forge;
use evenfall_multicast_machine::wire::{DatagramKind, Hop, OriginHeader, parse};
use evenfall_multicast_machine::{
    Config, Identity, Mode, Receiver, ReceiverEvent, Root, RootRun, SharedKey,
};

/// Where a root has a key announced, and then in use.
const LEAD_MS: u64 = 1_100;

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A root and receivers, whose ids are their ports.
struct Feed {
    now: Timestamp,
    master: MasterKey,
    root: Root,
    receivers: Vec<(u16, Receiver)>,
    /// What each receiver released.
    released: Vec<Vec<Bytes>>,
    /// The frames that left the root.
    frames: Vec<Bytes>,
    published: u64,
}

impl Feed {
    fn new(lifetime: Duration) -> Self {
        let now = Timestamp::from_nanos(1_000_000_000);
        let mut config = Config { mode: Mode::Unicast, ..Config::default() };
        config.membership.expect_receivers = 3;
        // A key is kept for the sum of the two.
        config.membership.root_timeout = Duration::from_millis(300);
        config.repair.gap_timeout = Duration::from_millis(100);
        let master = MasterKey::new([4; 32]);
        let shared = SharedKey::new(1, [5; 32]);
        let root = Root::new(config, NodeId(1), 0, RootRun::new(1, [7; 24]), Some(&shared), now)
            .with_node_keys(master.clone(), lifetime);
        let receiver = |id: u16| {
            let (root, incarnation) = (addr(1), 1);
            let id = NodeId(id.into());
            let who = Identity { id, stream: 0, root, standbys: vec![], incarnation };
            Receiver::new(config, who, Some(&shared), now).with_node_key(master.node(id))
        };
        let receivers = (2..5).map(|id| (id, receiver(id))).collect();
        let (released, frames) = (vec![Vec::new(); 3], Vec::new());
        let mut feed = Self { now, master, root, receivers, released, frames, published: 0 };
        feed.pass(100);
        feed
    }

    fn publish(&mut self) {
        let text = format!("trade {}", self.published);
        self.root.publish(self.now, Format::OPAQUE, text.as_bytes()).unwrap();
        self.root.flush(self.now);
        self.published += 1;
    }

    /// Lets time pass, and all datagrams arrive.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            for (port, receiver) in &mut self.receivers {
                receiver.handle_timeout(self.now);
                while let Some(transmit) = receiver.poll_transmit(self.now) {
                    let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
                    let arrival = Arrival::new(addr(*port), datagram, self.now, StampedBy::User);
                    let _ = self.root.handle(self.now, arrival);
                }
            }
            self.root.handle_timeout(self.now);
            while let Some(transmit) = self.root.poll_transmit(self.now) {
                let datagram: Bytes = [transmit.head.as_slice(), &transmit.body].concat().into();
                if parse(&datagram).unwrap().fixed.kind.is_frame() {
                    self.frames.push(datagram.clone());
                }
                for at in 0..self.receivers.len() {
                    let to = Destination::One(addr(self.receivers[at].0));
                    if matches!(transmit.to, Destination::Group(_)) || transmit.to == to {
                        self.inject(at, datagram.clone());
                    }
                }
            }
            self.now += Duration::from_millis(1);
        }
    }

    /// A datagram arrives at a receiver from the address of the root. Returns whether it was taken.
    fn inject(&mut self, at: usize, datagram: Bytes) -> bool {
        let arrival = Arrival::new(addr(1), datagram, self.now, StampedBy::User);
        let receiver = &mut self.receivers[at].1;
        let taken = receiver.handle(self.now, arrival).is_ok();
        while let Some(event) = receiver.poll_event() {
            if let ReceiverEvent::Released(release) = event {
                self.released[at].extend(release.messages);
            }
        }
        taken
    }

    fn key_ids(&self) -> Vec<u8> {
        let mut ids: Vec<u8> =
            self.frames.iter().map(|frame| parse(frame).unwrap().fixed.key_id).collect();
        ids.dedup();
        ids
    }

    /// A frame with the next number, under a key of the run.
    fn forged(&self, generation: u32) -> Bytes {
        let run_id = u64::from_le_bytes([7; 8]);
        let key = SharedKey::new(run_key_id(generation), self.master.of_run(run_id, generation));
        let status = self.root.status();
        let fixed = OriginHeader {
            class: TrafficClass::Live,
            count: 1,
            run_id,
            first_message: status.messages,
            ..OriginHeader::control(DatagramKind::Data, 0, 1, status.frames)
        };
        let hop = Hop { from: NodeId(1), sent: SyncTime::ZERO, ..Hop::default() };
        forge(Some(&key), &fixed, &hop, b"\x05\0false")
    }

    fn forged_by_nodes(&self) -> u64 {
        self.receivers.iter().map(|(_, receiver)| receiver.status().refusals.forged).sum()
    }
}

#[test]
fn every_message_arrives_while_keys_of_the_run_come_and_go() {
    let mut feed = Feed::new(Duration::from_millis(500));
    for _ in 0..400 {
        feed.publish();
        feed.pass(10);
    }
    feed.pass(500);
    assert!(feed.root.status().key_turns >= 2);
    let ids: Vec<u8> = (0..=feed.root.status().key_turns as u32).map(run_key_id).collect();
    // The last key may have come into use behind the last frame.
    assert!(ids.starts_with(&feed.key_ids()) && feed.key_ids().len() + 1 >= ids.len());
    for released in &feed.released {
        assert_eq!(released.len() as u64, feed.published);
    }
    assert_eq!((feed.forged_by_nodes(), feed.root.status().refusals.forged), (0, 0));
}

#[test]
fn a_node_that_is_shut_out_opens_nothing_once_the_next_key_is_in_use() {
    let mut feed = Feed::new(Duration::ZERO);
    feed.publish();
    feed.pass(20);
    let now = feed.now;
    feed.root.shut_out(now, NodeId(4));
    feed.pass(LEAD_MS);
    assert_eq!(feed.root.status().key_turns, 1);
    assert!(!feed.root.has_member(NodeId(4)) && feed.receivers[2].1.place().is_none());
    assert!(feed.root.status().refusals.forged > 0, "its joins are refused");
    let before = feed.frames.len();
    feed.publish();
    feed.pass(20);
    assert!(feed.inject(0, feed.frames[0].clone()), "the key before is still valid");
    let sent = feed.frames[before..].to_vec();
    assert!(!sent.is_empty() && sent.into_iter().all(|frame| !feed.inject(2, frame)));
    feed.pass(200);
    assert_eq!(feed.released.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn a_frame_under_an_old_key_of_the_run_is_refused() {
    let mut feed = Feed::new(Duration::ZERO);
    let forged = |feed: &mut Feed, generation| {
        let frame = feed.forged(generation);
        feed.inject(0, frame)
    };
    feed.publish();
    feed.pass(20);
    assert!(!forged(&mut feed, 1), "a key that is not announced yet");
    let now = feed.now;
    feed.root.renew_keys(now);
    feed.pass(LEAD_MS);
    let now = feed.now;
    feed.root.renew_keys(now);
    feed.pass(50);
    assert!(forged(&mut feed, 0), "a node may still wait for a frame under this key");
    feed.pass(400);
    assert!(!forged(&mut feed, 0), "a key that was replaced twice");
    // A holder of a valid key forges frames; signatures show that.
    assert!(forged(&mut feed, 1) && feed.inject(1, feed.forged(2)));
}

#[test]
fn a_node_that_lost_the_announcement_of_a_key_is_told_again() {
    let mut feed = Feed::new(Duration::ZERO);
    feed.publish();
    feed.pass(20);
    let now = feed.now;
    feed.root.renew_keys(now);
    // The announcement is lost on its way to all receivers.
    feed.root.handle_timeout(now);
    while feed.root.poll_transmit(now).is_some() {}
    feed.pass(LEAD_MS);
    feed.publish();
    feed.pass(300);
    assert!(feed.released.iter().all(|released| released.len() == 2));
    assert_eq!(feed.forged_by_nodes(), 0);
}
