//! Attacks of a participant on what nodes and roots say to each other.
//!
//! The attacker holds the shared key. Where the run has node keys, it also holds the key of a node
//! of its own, and forges each datagram in every way that its keys allow. It sends from the address
//! of the node whose name it uses.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{MasterKey, NodeId, SyncTime};
use evenfall_multicast_machine::forging::{forge, forge_all};
use evenfall_multicast_machine::wire::{DatagramKind, HEADER_BYTES, Hop, OriginHeader};
use evenfall_multicast_machine::{ReceiverEvent, ReleaseAfter, SharedKey};
use evenfall_multicast_sessions::producer::ingress::LeadStanding;
use evenfall_multicast_sessions::producer::wire::{
    ProduceRequest, ProducerDirection, ProducerEnvelope,
};
use evenfall_multicast_sessions::{ProducerIngress, ProducerTable, letter_key};
use serde::Serialize;

use super::{EPOCH, SignedFeed, SignedFeedPlan, address};

/// The receiver that is attacked, the node of the attacker, and a node that no process has.
pub(super) const VICTIM: u32 = 1;
pub(super) const ATTACKER: u32 = 2;
pub(super) const NOBODY: u32 = 9;
/// Messages before and after the attack.
pub(super) const MESSAGES: u64 = 20;
/// Time between two messages.
pub(super) const EVERY: Duration = Duration::from_micros(700);
/// A number of a control datagram that is above all numbers of this run.
const NEWEST: u64 = 1 << 40;
/// Messages that a forged report states as lost.
pub(super) const LOST: u64 = 1_000_000;

/// What the attacker forges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgery {
    /// An order of the root that takes the victim out.
    Order,
    /// A beacon of the root that ends the feed early.
    Beacon,
    /// A good-bye of the victim to the root.
    GoodBye,
    /// A report of the victim that states losses.
    Report,
    /// A join under the name of a node that is not there.
    Join,
    /// A letter of an author.
    Letter,
}

/// A forgery and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForgeryResult {
    /// What the attacker forged.
    pub attack: &'static str,
    /// The keys of the run: `shared` or `node`.
    pub keys: &'static str,
    /// What the attacker got.
    pub got: String,
    /// Whether the attacker got anything.
    pub succeeded: bool,
    /// Datagrams that the attacked machines refused and counted.
    pub counted: u64,
}

fn words(kind: Forgery) -> (&'static str, &'static str) {
    match kind {
        Forgery::Order => {
            ("an order of the root that takes the victim out", "the victim loses its place")
        }
        Forgery::Beacon => {
            ("a beacon of the root that ends the feed early", "the victim ends without an error")
        }
        Forgery::GoodBye => ("a good-bye of the victim", "the root takes the victim out"),
        Forgery::Report => ("a report of the victim", "the root believes losses that never were"),
        Forgery::Join => ("a join under another name", "the attacker has two places in the tree"),
        Forgery::Letter => ("a letter of an author", "the root takes the message into the feed"),
    }
}

impl ForgeryResult {
    /// An attack on a run with or without node keys, from which the attacker gets what `gained`
    /// says, or nothing.
    pub(super) fn of(
        attack: &'static str,
        has_node_keys: bool,
        gained: Option<String>,
        counted: u64,
    ) -> Self {
        let keys = if has_node_keys { "node" } else { "shared" };
        let succeeded = gained.is_some();
        let nothing = || format!("nothing: {counted} datagrams are refused and counted");
        Self { attack, keys, got: gained.unwrap_or_else(nothing), succeeded, counted }
    }
}

/// The attacker and what it attacks.
pub(super) struct Scene {
    pub(super) feed: SignedFeed,
    pub(super) shared: SharedKey,
    pub(super) master: Option<MasterKey>,
    pub(super) published: u64,
}

impl Scene {
    fn new(has_node_keys: bool) -> Self {
        Self::of_plan(has_node_keys, &SignedFeedPlan::default())
    }

    /// Two receivers that check what they release, and what else the plan has.
    pub(super) fn of_plan(has_node_keys: bool, plan: &SignedFeedPlan<'_>) -> Self {
        let shared = SharedKey::new(1, [5; 32]);
        let master = has_node_keys.then(|| MasterKey::new([6; 32]));
        let feed = SignedFeed::of_plan(&SignedFeedPlan {
            receivers: 2,
            key: Some(&shared),
            checked: Some(ReleaseAfter::Verified),
            master: master.as_ref(),
            ..*plan
        });
        let mut scene = Self { feed, shared, master, published: 0 };
        scene.publish();
        scene
    }

    pub(super) fn publish(&mut self) {
        for _ in 0..MESSAGES {
            self.feed.publish(format!("trade {}", self.published).as_bytes());
            self.published += 1;
            self.feed.pass(EVERY);
        }
    }

    /// All datagrams of this kind that the attacker can make for a victim in the name of a node.
    fn forge_datagrams(&self, kind: DatagramKind, of: u32, victim: u32, body: &[u8]) -> Vec<Bytes> {
        let run_id = u64::from_le_bytes([7; 8]);
        let fixed = OriginHeader { run_id, ..OriginHeader::control(kind, 0, EPOCH, NEWEST) };
        let sent = SyncTime::from_nanos(3_000_000_000);
        let hop = Hop { from: NodeId(of), sent, ..Hop::default() };
        match &self.master {
            None => vec![forge(Some(&self.shared), &fixed, &hop, body)],
            Some(master) => {
                let own = master.node(NodeId(ATTACKER));
                forge_all(&self.shared, &own, NodeId(victim), &fixed, &hop, body)
            }
        }
    }

    fn attack_victim(&mut self, kind: DatagramKind, body: &[u8]) {
        for datagram in self.forge_datagrams(kind, 0, VICTIM, body) {
            self.feed.inject(VICTIM as usize - 1, 0, datagram);
        }
    }

    pub(super) fn attack_root(&mut self, kind: DatagramKind, of: u32, body: &[u8]) {
        for datagram in self.forge_datagrams(kind, of, 0, body) {
            self.feed.inject_at_root(of, datagram);
        }
    }

    /// Joins under another name, and answers the challenge of the root if one comes.
    fn join_as_nobody(&mut self) {
        let join = |cookie: u64| {
            let mut body = BytesMut::new();
            body.put_u8(1);
            body.put_u64_le(1);
            body.put_u64_le(cookie);
            body
        };
        self.attack_root(DatagramKind::Join, NOBODY, &join(0));
        let challenge = self.feed.take_strays(NOBODY).pop().unwrap_or_default();
        let cookie = challenge.get(HEADER_BYTES + 8..).and_then(|body| body.first_chunk());
        let cookie = cookie.map_or(1, |cookie| u64::from_le_bytes(*cookie));
        self.attack_root(DatagramKind::Join, NOBODY, &join(cookie));
    }

    /// Datagrams that the root and the victim refused as forged.
    pub(super) fn count_forged(&self) -> u64 {
        let victim = self.feed.receiver(VICTIM as usize - 1).status();
        self.feed.root().status().refusals.forged + victim.refusals.forged
    }

    /// Forges, and returns whether that had an effect.
    pub(super) fn play_attack(&mut self, kind: Forgery) -> bool {
        let out = |reason: u8| [&VICTIM.to_le_bytes()[..], &[reason]].concat();
        match kind {
            Forgery::Order => {
                self.attack_victim(DatagramKind::Evict, &out(1));
                self.feed.receiver(0).place().is_none()
            }
            Forgery::Beacon => {
                let numbers = [self.published, 1 << 30, self.published, self.published];
                let body: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.attack_victim(DatagramKind::Beacon, &body);
                self.publish();
                let events = self.feed.take_events(0);
                events.iter().any(|event| matches!(event, ReceiverEvent::Finished))
            }
            Forgery::GoodBye => {
                self.attack_root(DatagramKind::Leave, VICTIM, &out(0));
                !self.feed.root().has_member(NodeId(VICTIM))
            }
            Forgery::Report => {
                self.attack_root(DatagramKind::Report, VICTIM, &false_report());
                self.feed.root().status().tally.lost >= LOST
            }
            Forgery::Join => {
                self.join_as_nobody();
                self.feed.root().has_member(NodeId(NOBODY))
            }
            Forgery::Letter => false,
        }
    }
}

/// The report of a receiver that has finished nothing and lost much.
pub(super) fn false_report() -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u32_le(1);
    body.put_u32_le(0);
    [0, 0, LOST, 0, 0, 0].iter().for_each(|word| body.put_u64_le(*word));
    body.put_bytes(0, 15);
    body
}

/// A letter in the name of an author, under every key that the attacker has. Returns whether the
/// root began a line for it, and how many letters the root refused.
pub(super) fn write_letter(has_node_keys: bool, author: NodeId) -> (bool, u64) {
    let shared = SharedKey::new(1, [5; 32]);
    let master = MasterKey::new([6; 32]);
    let mut ingress = ProducerIngress::new(Some(shared.clone()), 7);
    if has_node_keys {
        ingress = ingress.with_node_keys(master.clone());
    }
    ingress.open(true);
    let envelope = ProducerEnvelope {
        kind: ProducerDirection::ToRoot,
        name: u64::from(author.0) + 1,
        author: 8,
        life: 0,
        run_id: 3,
        number: 1,
    };
    let say = ProduceRequest { have: 0, place: 0, is_end: false, messages: Vec::new() };
    let own = letter_key(&master.node(NodeId(ATTACKER)));
    let keys = if has_node_keys { vec![shared, own] } else { vec![shared] };
    let (lines, standing) =
        (ProducerTable::default(), LeadStanding { epoch: EPOCH, run_id: 3, leads: true });
    let (mut succeeded, mut refused) = (false, 0);
    for key in keys {
        let (head, body) = envelope.seal(Some(&key), say.encode());
        let letter = Bytes::from([head.as_slice(), &body].concat());
        let taken =
            ingress.handle((address(NOBODY), &letter), standing, &lines, &mut |_, _, _| Some(0));
        succeeded |= matches!(taken, Ok(Some(_)));
        refused += u64::from(taken.is_err());
    }
    (succeeded, refused)
}

fn play(kind: Forgery, has_node_keys: bool) -> ForgeryResult {
    let (succeeded, refused) = match kind {
        Forgery::Letter => write_letter(has_node_keys, NodeId(VICTIM)),
        _ => {
            let mut scene = Scene::new(has_node_keys);
            (scene.play_attack(kind), scene.count_forged())
        }
    };
    let (attack, gained) = words(kind);
    ForgeryResult::of(attack, has_node_keys, succeeded.then(|| gained.into()), refused)
}

/// All forgeries, on a run with one key for all nodes and on a run with node keys.
pub fn play_forgeries() -> Vec<ForgeryResult> {
    let kinds = [
        Forgery::Order,
        Forgery::Beacon,
        Forgery::GoodBye,
        Forgery::Report,
        Forgery::Join,
        Forgery::Letter,
    ];
    kinds.into_iter().flat_map(|kind| [false, true].map(|keys| play(kind, keys))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_forgery_succeeds_under_the_shared_key_and_is_refused_under_node_keys() {
        for result in play_forgeries() {
            let has_node_keys = result.keys == "node";
            assert_eq!(result.succeeded, !has_node_keys, "{result:?}");
            // Under node keys each way to forge is refused: the shared key, the key of the attacker
            // and the roots, and the key of the attacker and the victim.
            let ways = match result.attack {
                _ if !has_node_keys => 0,
                "a join under another name" => 6,
                "a letter of an author" => 2,
                _ => 3,
            };
            assert_eq!(result.counted, ways, "{result:?}");
        }
    }

    #[test]
    fn a_feed_with_node_keys_reaches_both_receivers() {
        let mut scene = Scene::new(true);
        scene.publish();
        scene.feed.finish();
        (0..1_000).for_each(|_| scene.feed.pass(Duration::from_millis(8)));
        for receiver in [0, 1] {
            let events = scene.feed.take_events(receiver);
            assert!(events.iter().any(|event| matches!(event, ReceiverEvent::Finished)));
            let status = scene.feed.receiver(receiver).status();
            assert_eq!((status.tally.released, status.refusals.forged), (2 * MESSAGES, 0));
        }
        assert_eq!(scene.feed.root().status().refusals.forged, 0);
    }
}
