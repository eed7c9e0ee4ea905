//! A signed feed without a network: a root and its receivers, whose datagrams arrive at once.
//!
//! [`hostile`] attacks the messages of the feed as a subscriber can that holds the shared key,
//! [`forgery`] attacks what nodes and roots say to each other, and [`clocks`] attacks the clocks of
//! other nodes. [`cost`] measures what signing and checking take.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Format, GroupId, Install, Machine, MasterKey,
    NodeId, StampedBy, Timestamp, Transmit,
};
use evenfall_multicast_machine::{
    Config, FrameSigner, Identity, Receiver, ReceiverEvent, ReleaseAfter, Root, Run, SharedKey,
    SignatureVerifier,
};
use evenfall_multicast_service::signing::{RootKeys, SigningKey};

pub mod clocks;
pub mod cost;
pub mod forgery;
pub mod hostile;

/// The run of every feed here.
pub const EPOCH: u32 = 1;
const RANDOM: [u8; 24] = [7; 24];
/// The secret of the root's signing key.
const SECRET: [u8; 32] = [3; 32];
/// How long a tree takes to form at most. It takes two exchanges of each join.
const FORMING: Duration = Duration::from_secs(2);
/// The root waits for all its receivers.
const EXPECTED_WITHIN: Duration = Duration::from_secs(1);

/// How the receivers of a feed check it; `None` for a feed without signatures.
pub type Checked = Option<ReleaseAfter>;

/// The root and its receivers.
pub struct SignedFeed {
    now: Timestamp,
    root: Root,
    receivers: Vec<Receiver>,
    groups: BTreeMap<GroupId, Arc<[SocketAddr]>>,
    /// The events of each receiver that nobody has looked at.
    events: Vec<VecDeque<ReceiverEvent>>,
    /// Datagrams of the root on their way.
    flight: VecDeque<Transmit>,
    /// Datagrams of the root to addresses where no receiver listens.
    strays: Vec<(SocketAddr, Bytes)>,
}

fn address(node: u32) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], node as u16 + 1))
}

fn as_arrival(transmit: &Transmit, from: SocketAddr, now: Timestamp) -> Arrival {
    let datagram: Bytes = [transmit.head.as_slice(), &transmit.body].concat().into();
    Arrival::new(from, datagram, now, StampedBy::User)
}

impl SignedFeed {
    /// A feed whose tree stands, with one key for all nodes.
    pub fn new(receivers: u32, key: Option<&SharedKey>, checked: Checked) -> Self {
        Self::with_master(receivers, key, checked, None)
    }

    /// A feed whose tree stands. With a master key, control datagrams are under keys of their ends.
    pub fn with_master(
        receivers: u32,
        key: Option<&SharedKey>,
        checked: Checked,
        master: Option<&MasterKey>,
    ) -> Self {
        let now = Timestamp::from_nanos(1_000_000_000);
        let mut config = Config::default();
        config.membership.expect_receivers = receivers;
        config.membership.expect_timeout = EXPECTED_WITHIN;
        let root = Root::new(config, NodeId(0), 0, Run::new(EPOCH, RANDOM), key, now);
        let signing = SigningKey::new(&SECRET);
        let keys: Arc<dyn SignatureVerifier> = Arc::new(RootKeys::new(&[signing.public_key()]));
        let signer: Arc<dyn FrameSigner> = Arc::new(signing);
        let root = if checked.is_some() { root.sign_frames(signer) } else { root };
        let root = match master {
            Some(master) => root.with_node_keys(master.clone(), Duration::ZERO),
            None => root,
        };
        let receiver = |id| {
            let who = Identity {
                id: NodeId(id),
                stream: 0,
                root: address(0),
                standbys: Vec::new(),
                incarnation: 1,
            };
            let receiver = Receiver::new(config, who, key, now);
            let receiver = match master {
                Some(master) => receiver.with_node_key(master.node(NodeId(id))),
                None => receiver,
            };
            match checked {
                Some(rule) => receiver.check_signatures(Arc::clone(&keys), rule),
                None => receiver,
            }
        };
        let mut feed = Self {
            now,
            root,
            receivers: (1..=receivers).map(receiver).collect(),
            groups: BTreeMap::new(),
            events: (0..receivers).map(|_| VecDeque::new()).collect(),
            flight: VecDeque::new(),
            strays: Vec::new(),
        };
        let until = feed.now + FORMING;
        while feed.now < until {
            feed.pass(Duration::from_millis(1));
        }
        assert!(feed.receivers.iter().all(|receiver| receiver.place().is_some()), "no tree");
        feed.events.iter_mut().for_each(VecDeque::clear);
        feed
    }

    /// Publishes a message in a frame of its own.
    pub fn publish(&mut self, message: &[u8]) {
        let now = self.now;
        self.root.publish(now, Format::OPAQUE, message).expect("room in the queue");
        self.root.flush(now);
        self.carry_datagrams();
    }

    /// No message follows.
    pub fn finish(&mut self) {
        self.root.finish(self.now);
        self.carry_datagrams();
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
        self.root.handle_clock(self.now, reading);
        self.root.handle_timeout(self.now);
        for receiver in &mut self.receivers {
            receiver.handle_clock(self.now, reading);
            receiver.handle_timeout(self.now);
        }
        self.carry_datagrams();
    }

    /// A datagram arrives at a receiver, from the address of the root or of another node.
    pub fn inject(&mut self, receiver: usize, from: u32, datagram: Bytes) {
        let arrival = Arrival::new(address(from), datagram, self.now, StampedBy::User);
        self.receivers[receiver].handle(self.now, arrival).ok();
        self.carry_datagrams();
    }

    /// A datagram arrives at the root, from the address of this node.
    pub fn inject_at_root(&mut self, from: u32, datagram: Bytes) {
        let arrival = Arrival::new(address(from), datagram, self.now, StampedBy::User);
        self.root.handle(self.now, arrival).ok();
        self.carry_datagrams();
    }

    /// The last datagram of the root to this node, which is no receiver of the feed.
    pub fn last_stray(&self, to: u32) -> Option<Bytes> {
        let stray = self.strays.iter().rfind(|(at, _)| *at == address(to));
        stray.map(|(_, datagram)| datagram.clone())
    }

    /// The root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A receiver, by its place.
    pub fn receiver(&self, at: usize) -> &Receiver {
        &self.receivers[at]
    }

    /// Carries datagrams until none is on its way.
    fn carry_datagrams(&mut self) {
        let now = self.now;
        loop {
            let mut is_quiet = true;
            while let Some(transmit) = self.root.poll_transmit(now) {
                self.flight.push_back(transmit);
            }
            while let Some(install) = self.root.poll_install() {
                if let Install::Group(id, members) = install {
                    self.groups.insert(id, members);
                }
            }
            while self.root.poll_event().is_some() {}
            while let Some(transmit) = self.flight.pop_front() {
                is_quiet = false;
                let to: Arc<[SocketAddr]> = match transmit.to {
                    Destination::One(one) => Arc::from([one]),
                    Destination::Group(id) => self.groups.get(&id).cloned().unwrap_or_default(),
                };
                let strangers = to
                    .iter()
                    .filter(|to| (1..=self.receivers.len() as u32).all(|id| address(id) != **to));
                let datagram = as_arrival(&transmit, address(0), now).datagram;
                self.strays.extend(strangers.map(|to| (*to, datagram.clone())));
                for (receiver, id) in self.receivers.iter_mut().zip(1..) {
                    if to.contains(&address(id)) {
                        receiver.handle(now, as_arrival(&transmit, address(0), now)).ok();
                    }
                }
            }
            for (at, receiver) in self.receivers.iter_mut().enumerate() {
                while let Some(transmit) = receiver.poll_transmit(now) {
                    is_quiet = false;
                    let from = address(at as u32 + 1);
                    self.root.handle(now, as_arrival(&transmit, from, now)).ok();
                }
                self.events[at].extend(core::iter::from_fn(|| receiver.poll_event()));
            }
            if is_quiet {
                return;
            }
        }
    }

    /// The events of a receiver since the last look.
    pub fn take_events(&mut self, receiver: usize) -> Vec<ReceiverEvent> {
        self.events[receiver].drain(..).collect()
    }

    /// The number of the next frame, and of its first message.
    pub fn next(&self) -> (u64, u64) {
        let status = self.root.status();
        (status.frames, status.messages)
    }
}
