//! A signed feed without a network: a root, perhaps a proxy, and receivers, whose datagrams arrive
//! at once.
//!
//! | module | whose attack it plays |
//! |---|---|
//! | [`hostile`] | a subscriber with the shared key, on the messages of the feed |
//! | [`proxy_lies`] | a proxy, on the messages that it forwards |
//! | [`forgery`] | a participant, on what nodes and roots say to each other |
//! | [`votes`] | a participant, on what roots say to each other |
//! | [`theft`] | a thief of a node key, before and after its node is shut out |
//! | [`early_reading`] | a participant behind a gateway, on the time of release |
//! | [`clocks`] | a node of the mesh of clocks, on the clocks of others |
//!
//! [`cost`] measures what signing and checking take.

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
    Config, FrameSigner, Guest, GuestList, Identity, Receiver, ReceiverEvent, Relay, ReleaseAfter,
    Role, Root, RootRun, SharedKey, SignatureVerifier,
};
use evenfall_multicast_service::signing::{RootKeys, SigningKey};

pub mod clocks;
pub mod cost;
pub mod early_reading;
pub mod forgery;
pub mod hostile;
pub mod proxy_lies;
pub mod theft;
pub mod votes;

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

/// What a feed is made of.
#[derive(Clone, Copy, Default)]
pub struct SignedFeedPlan<'k> {
    /// Receivers, whose ids follow that of the root.
    pub receivers: u32,
    /// The key that all nodes have.
    pub key: Option<&'k SharedKey>,
    /// How receivers check frames.
    pub checked: Checked,
    /// With a master key, control datagrams are under keys of their ends.
    pub master: Option<&'k MasterKey>,
    /// Whether a proxy stands between the root and the receivers. Its id follows theirs.
    pub has_proxy: bool,
    /// Whether the root takes each receiver from its own address alone, as it does where the
    /// settings name the ports.
    pub is_bound: bool,
    /// Whether somebody overhears what the root sends to receivers.
    pub is_overheard: bool,
}

/// What becomes of a datagram that the proxy sends to the receiver in this place.
pub type AlteredForwarding = Box<dyn FnMut(usize, Bytes) -> Vec<Bytes>>;

/// The root, the nodes below it, and datagrams on their way.
pub struct SignedFeed {
    now: Timestamp,
    root: Root,
    proxy: Option<Relay>,
    receivers: Vec<Receiver>,
    groups: BTreeMap<GroupId, Arc<[SocketAddr]>>,
    /// The events of each receiver that nobody has looked at.
    events: Vec<VecDeque<ReceiverEvent>>,
    /// Datagrams of the root on their way.
    flight: VecDeque<Transmit>,
    /// Datagrams of the root to addresses where no node listens.
    strays: Vec<(SocketAddr, Bytes)>,
    /// `None` for a proxy that is honest.
    lie: Option<AlteredForwarding>,
    /// What was overheard since the last look; `None` where nobody listens.
    overheard: Option<Vec<Bytes>>,
}

fn address(node: u32) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], node as u16 + 1))
}

fn as_arrival(transmit: &Transmit, from: SocketAddr, now: Timestamp) -> Arrival {
    let datagram: Bytes = [transmit.head.as_slice(), &transmit.body].concat().into();
    Arrival::new(from, datagram, now, StampedBy::User)
}

fn identity_of(id: u32) -> Identity {
    Identity { id: NodeId(id), stream: 0, root: address(0), standbys: Vec::new(), incarnation: 1 }
}

fn config_of(plan: &SignedFeedPlan<'_>) -> Config {
    let mut config = Config::default();
    config.membership.expect_receivers = plan.receivers;
    config.membership.expect_timeout = EXPECTED_WITHIN;
    if plan.has_proxy {
        config.membership.expect_proxies = 1;
        (config.shape.depth, config.shape.fanout) = (Some(2), Some(1));
    }
    config
}

fn new_root(plan: &SignedFeedPlan<'_>, now: Timestamp) -> Root {
    let mut root =
        Root::new(config_of(plan), NodeId(0), 0, RootRun::new(EPOCH, RANDOM), plan.key, now);
    if plan.checked.is_some() {
        let signer: Arc<dyn FrameSigner> = Arc::new(SigningKey::new(&SECRET));
        root = root.sign_frames(signer);
    }
    if let Some(master) = plan.master {
        root = root.with_node_keys(master.clone(), Duration::ZERO);
    }
    if plan.is_bound {
        let guest = |id| {
            let guest = Guest { role: Some(Role::Receiver), addr: Some(address(id)) };
            (NodeId(id), guest)
        };
        let named = (1..=plan.receivers).map(guest).collect();
        root = root.admitting(GuestList { named, only_named: true, ..GuestList::default() });
    }
    root
}

fn new_receiver(plan: &SignedFeedPlan<'_>, id: u32, now: Timestamp) -> Receiver {
    let receiver = Receiver::new(config_of(plan), identity_of(id), plan.key, now);
    let receiver = match plan.master {
        Some(master) => receiver.with_node_key(master.node(NodeId(id))),
        None => receiver,
    };
    let Some(rule) = plan.checked else { return receiver };
    let public = SigningKey::new(&SECRET).public_key();
    let keys: Arc<dyn SignatureVerifier> = Arc::new(RootKeys::new(&[public]));
    receiver.check_signatures(keys, rule)
}

fn new_proxy(plan: &SignedFeedPlan<'_>, now: Timestamp) -> Relay {
    let id = plan.receivers + 1;
    let proxy = Relay::new(config_of(plan), identity_of(id), plan.key, now);
    match plan.master {
        Some(master) => proxy.with_node_key(master.node(NodeId(id))),
        None => proxy,
    }
}

impl SignedFeed {
    /// A feed whose tree stands, with one key for all nodes.
    pub fn new(receivers: u32, key: Option<&SharedKey>, checked: Checked) -> Self {
        Self::of_plan(&SignedFeedPlan { receivers, key, checked, ..SignedFeedPlan::default() })
    }

    /// A feed of this plan, whose tree stands.
    pub fn of_plan(plan: &SignedFeedPlan<'_>) -> Self {
        let now = Timestamp::from_nanos(1_000_000_000);
        let mut feed = Self {
            now,
            root: new_root(plan, now),
            proxy: plan.has_proxy.then(|| new_proxy(plan, now)),
            receivers: (1..=plan.receivers).map(|id| new_receiver(plan, id, now)).collect(),
            groups: BTreeMap::new(),
            events: (0..plan.receivers).map(|_| VecDeque::new()).collect(),
            flight: VecDeque::new(),
            strays: Vec::new(),
            lie: None,
            overheard: plan.is_overheard.then(Vec::new),
        };
        let until = feed.now + FORMING;
        while feed.now < until {
            feed.pass(Duration::from_millis(1));
        }
        assert!(feed.receivers.iter().all(|receiver| receiver.place().is_some()), "no tree");
        feed.events.iter_mut().for_each(VecDeque::clear);
        feed
    }

    /// The proxy changes what it sends from now on.
    pub fn alter_forwarding(&mut self, lie: AlteredForwarding) {
        self.lie = Some(lie);
    }

    /// What the root sent to receivers since the last look.
    pub fn take_overheard(&mut self) -> Vec<Bytes> {
        self.overheard.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The owner shuts a node out.
    pub fn shut_out(&mut self, node: u32) {
        self.root.shut_out(self.now, NodeId(node));
        self.carry_datagrams();
    }

    /// The owner orders another key of the run.
    pub fn renew_keys(&mut self) {
        self.root.renew_keys(self.now);
        self.carry_datagrams();
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
        if let Some(proxy) = &mut self.proxy {
            proxy.handle_clock(self.now, reading);
            proxy.handle_timeout(self.now);
        }
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

    /// The datagrams of the root to this node, which is no node of the feed.
    pub fn take_strays(&mut self, to: u32) -> Vec<Bytes> {
        let taken = self.strays.extract_if(.., |(at, _)| *at == address(to));
        taken.map(|(_, datagram)| datagram).collect()
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
        loop {
            let is_busy =
                [self.carry_from_root(), self.carry_from_proxy(), self.carry_from_receivers()];
            if is_busy == [false; 3] {
                return;
            }
        }
    }

    fn proxy_address(&self) -> SocketAddr {
        address(self.receivers.len() as u32 + 1)
    }

    fn note_install(&mut self, install: Install) {
        if let Install::Group(id, members) = install {
            self.groups.insert(id, members);
        }
    }

    /// Where a datagram goes.
    fn addresses(&self, to: Destination) -> Arc<[SocketAddr]> {
        match to {
            Destination::One(one) => Arc::from([one]),
            Destination::Group(id) => self.groups.get(&id).cloned().unwrap_or_default(),
        }
    }

    /// Carries what the root sends. Returns whether there was any datagram.
    fn carry_from_root(&mut self) -> bool {
        let (now, proxy_at) = (self.now, self.proxy_address());
        while let Some(transmit) = self.root.poll_transmit(now) {
            self.flight.push_back(transmit);
        }
        while let Some(install) = self.root.poll_install() {
            self.note_install(install);
        }
        while self.root.poll_event().is_some() {}
        let is_busy = !self.flight.is_empty();
        while let Some(transmit) = self.flight.pop_front() {
            let to = self.addresses(transmit.to);
            let arrival = as_arrival(&transmit, address(0), now);
            let nodes = 1..=self.receivers.len() as u32;
            let is_stranger = |to: &&SocketAddr| {
                nodes.clone().all(|id| address(id) != **to)
                    && (self.proxy.is_none() || **to != proxy_at)
            };
            let strangers = to.iter().filter(is_stranger);
            let strays: Vec<_> = strangers.map(|to| (*to, arrival.datagram.clone())).collect();
            self.strays.extend(strays);
            if let Some(proxy) = self.proxy.as_mut().filter(|_| to.contains(&proxy_at)) {
                proxy.handle(now, arrival.clone()).ok();
            }
            for (receiver, id) in self.receivers.iter_mut().zip(1..) {
                if to.contains(&address(id)) {
                    if let Some(overheard) = &mut self.overheard {
                        overheard.push(arrival.datagram.clone());
                    }
                    receiver.handle(now, arrival.clone()).ok();
                }
            }
        }
        is_busy
    }

    /// Carries what the proxy sends, and what it makes of it. Returns whether there was any
    /// datagram.
    fn carry_from_proxy(&mut self) -> bool {
        let (now, from) = (self.now, self.proxy_address());
        let Some(proxy) = &mut self.proxy else { return false };
        let transmits: Vec<Transmit> = core::iter::from_fn(|| proxy.poll_transmit(now)).collect();
        let installs: Vec<Install> = core::iter::from_fn(|| proxy.poll_install()).collect();
        while proxy.poll_event().is_some() {}
        installs.into_iter().for_each(|install| self.note_install(install));
        for transmit in &transmits {
            let to = self.addresses(transmit.to);
            let arrival = as_arrival(transmit, from, now);
            if to.contains(&address(0)) {
                self.root.handle(now, arrival.clone()).ok();
            }
            for at in 0..self.receivers.len() {
                if !to.contains(&address(at as u32 + 1)) {
                    continue;
                }
                let genuine = arrival.datagram.clone();
                let told = match &mut self.lie {
                    Some(lie) => lie(at, genuine),
                    None => vec![genuine],
                };
                for datagram in told {
                    let arrival = Arrival { datagram, ..arrival.clone() };
                    self.receivers[at].handle(now, arrival).ok();
                }
            }
        }
        !transmits.is_empty()
    }

    /// Carries what receivers send. Returns whether there was any datagram.
    fn carry_from_receivers(&mut self) -> bool {
        let (now, proxy_at) = (self.now, self.proxy_address());
        let mut is_busy = false;
        for (at, receiver) in self.receivers.iter_mut().enumerate() {
            while let Some(transmit) = receiver.poll_transmit(now) {
                is_busy = true;
                let arrival = as_arrival(&transmit, address(at as u32 + 1), now);
                match &mut self.proxy {
                    Some(proxy) if transmit.to == Destination::One(proxy_at) => {
                        proxy.handle(now, arrival).ok();
                    }
                    _ => drop(self.root.handle(now, arrival)),
                }
            }
            self.events[at].extend(core::iter::from_fn(|| receiver.poll_event()));
        }
        is_busy
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
