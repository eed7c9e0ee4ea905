//! The machines of a run: their numbers, addresses and settings.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_core::{MasterKey, NodeId, Prng, Timestamp};
use evenfall_multicast_machine::forging::{ToySigner, ToyVerifier};
use evenfall_multicast_machine::{
    Begin, Config, Identity, Receiver, Recorder, Relay, ReleaseAfter, Root, RootRun, SharedKey,
};

use super::archive::CampaignArchive;
use super::node::CampaignNode;

/// What the machines of one tree have in common.
#[derive(Clone, Debug)]
pub struct Cast {
    /// Settings of all machines of the tree.
    pub config: Arc<Config>,
    /// The shared key, if there is one.
    pub key: Option<SharedKey>,
    /// The master key, if control datagrams are under keys of their two ends.
    pub master: Option<MasterKey>,
    /// Number of the tree.
    pub stream: u32,
    /// Name of the root.
    pub root: NodeId,
    /// Address of the root.
    pub root_address: SocketAddr,
    /// Addresses of the roots that may take over.
    pub standbys: Vec<SocketAddr>,
    /// Whether the root signs the feed and receivers check it, and when they release.
    pub signed: Option<ReleaseAfter>,
}

/// Whether the roots of a seed sign the feed, each by its own key, and when receivers then release.
pub(crate) fn draw_signed(seed: u64) -> Option<ReleaseAfter> {
    let rules = [Some(ReleaseAfter::Deadline), Some(ReleaseAfter::Verified), None];
    rules[Prng::new(seed).fork(0x73_69_67_6e).below(3) as usize]
}

/// How long a key of the run is in use, so that every run has several.
const KEY_LIFETIME: Duration = Duration::from_millis(700);

/// The master key of every second seed.
pub(crate) fn draw_master(seed: u64) -> Option<MasterKey> {
    let has_node_keys = Prng::new(seed).fork(0x6e_6f_64_65).chance(0.5);
    has_node_keys.then(|| MasterKey::new([seed as u8; 32]))
}

impl Cast {
    /// The root, in its run number `epoch`.
    pub fn root(&self, epoch: u32, now: Timestamp) -> CampaignNode {
        let run = RootRun::new(epoch, [epoch as u8; 24]);
        let root = Root::new(*self.config, self.root, self.stream, run, self.key.as_ref(), now);
        CampaignNode::Root(Box::new(self.equip_root(root)))
    }

    /// A proxy.
    pub fn relay(&self, id: NodeId, incarnation: u64, now: Timestamp) -> CampaignNode {
        let who = self.identity(id, incarnation);
        let relay = Relay::new(self.config.clone(), who, self.key.as_ref(), now);
        CampaignNode::Relay(Box::new(match &self.master {
            Some(master) => relay.with_node_key(master.node(id)),
            None => relay,
        }))
    }

    /// A receiver.
    pub fn receiver(&self, id: NodeId, incarnation: u64, now: Timestamp) -> CampaignNode {
        let who = self.identity(id, incarnation);
        CampaignNode::Receiver(Box::new(self.new_receiver(who, now)))
    }

    /// A receiver that joins a running feed and begins with an earlier frame.
    pub fn late_receiver(&self, id: NodeId, begin: Begin, now: Timestamp) -> CampaignNode {
        let who = self.identity(id, 1);
        CampaignNode::Receiver(Box::new(self.new_receiver(who, now).beginning(begin)))
    }

    /// A recorder.
    pub fn recorder(&self, id: NodeId, incarnation: u64, now: Timestamp) -> CampaignNode {
        let who = self.identity(id, incarnation);
        let recorder = Recorder::new(*self.config, who, self.key.as_ref(), now);
        let recorder = match self.signed {
            Some(rule) => recorder.check_signatures(self.known_roots(), rule),
            None => recorder,
        };
        let recorder = match &self.master {
            Some(master) => recorder.with_node_key(master.node(id)),
            None => recorder,
        };
        CampaignNode::Recorder(Box::new(CampaignArchive::new(recorder)))
    }

    /// The root with the master key, and with a signing key of its own if the feed is signed.
    pub fn equip_root(&self, root: Root) -> Root {
        let root = match &self.master {
            Some(master) => root.with_node_keys(master.clone(), KEY_LIFETIME),
            None => root,
        };
        let me = 1 + (root.id().0 - self.root.0) as u8;
        match self.signed {
            Some(_) => root.sign_frames(Arc::new(ToySigner(me))),
            None => root,
        }
    }

    fn new_receiver(&self, who: Identity, now: Timestamp) -> Receiver {
        let id = who.id;
        let receiver = Receiver::new(self.config.clone(), who, self.key.as_ref(), now);
        let receiver = match &self.master {
            Some(master) => receiver.with_node_key(master.node(id)),
            None => receiver,
        };
        match self.signed {
            Some(rule) => receiver.check_signatures(self.known_roots(), rule),
            None => receiver,
        }
    }

    /// Knows the keys of the root and its standbys.
    fn known_roots(&self) -> Arc<ToyVerifier> {
        Arc::new(ToyVerifier((1..=1 + self.standbys.len() as u8).collect()))
    }

    fn identity(&self, id: NodeId, incarnation: u64) -> Identity {
        Identity {
            id,
            stream: self.stream,
            root: self.root_address,
            standbys: self.standbys.clone(),
            incarnation,
        }
    }
}

/// Writes message number `number` of the feed: its number, then bytes that only this feed has.
pub fn message(seed: u64, number: u64, size: usize, into: &mut Vec<u8>) {
    into.clear();
    let mut word = number;
    while into.len() < size {
        into.extend_from_slice(&word.to_le_bytes());
        word = (word ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }
    into.truncate(size);
}

/// When the messages of a feed are due.
#[derive(Clone, Debug)]
pub enum DueTimes {
    /// At a steady pace.
    Steady(FeedPace),
    /// At the feed's own times.
    Own {
        /// When message 0 is due.
        first: evenfall_sim::SimTime,
        /// When every message is due after `first`; never decreasing.
        times: Arc<[Duration]>,
    },
}

impl DueTimes {
    /// Messages in all.
    pub fn count(&self) -> u64 {
        match self {
            Self::Steady(pace) => pace.count,
            Self::Own { times, .. } => times.len() as u64,
        }
    }

    /// When this message is due.
    pub fn due(&self, number: u64) -> evenfall_sim::SimTime {
        match self {
            Self::Steady(pace) => pace.due(number),
            Self::Own { first, times } => *first + times[number as usize],
        }
    }

    /// How many messages are due up to and including this time.
    pub fn due_by(&self, at: evenfall_sim::SimTime) -> u64 {
        match self {
            Self::Steady(pace) => pace.due_by(at),
            Self::Own { first, times } if at >= *first => {
                times.partition_point(|due| *due <= at.since(*first)) as u64
            }
            Self::Own { .. } => 0,
        }
    }
}

/// The pace of a feed: message `n` is due at `first + n * interval`.
#[derive(Clone, Copy, Debug)]
pub struct FeedPace {
    /// When message 0 is due.
    pub first: evenfall_sim::SimTime,
    /// Time between two messages.
    pub interval: Duration,
    /// Messages in all.
    pub count: u64,
}

impl FeedPace {
    /// When this message is due.
    pub fn due(&self, number: u64) -> evenfall_sim::SimTime {
        let ns = evenfall_core::time::nanos(self.interval).saturating_mul(number);
        self.first + Duration::from_nanos(ns)
    }

    /// How many messages are due up to and including this time.
    pub fn due_by(&self, at: evenfall_sim::SimTime) -> u64 {
        if at < self.first {
            return 0;
        }
        let interval = evenfall_core::time::nanos(self.interval).max(1);
        ((at.nanos() - self.first.nanos()) / interval + 1).min(self.count)
    }
}
