//! What a thief gets who copied the key of a node, and what is left when the node is shut out.
//!
//! The thief holds the shared key and the file of one node key, and hears all that the root sends
//! to receivers. The run has node keys, and the thief's victim is a receiver with its own port.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::node_keys::run_key_id;
use evenfall_core::{Arrival, ClockError, ClockReading, Machine, MasterKey, NodeId, StampedBy};
use evenfall_multicast_machine::wire::DatagramKind;
use evenfall_multicast_machine::{Config, Receiver, ReceiverEvent, SharedKey};

use super::forgery::{
    ATTACKER as ROBBED, EVERY, Forgery, ForgeryResult, LOST, MESSAGES, NOBODY, Scene, VICTIM,
    false_report, write_letter,
};
use super::hostile::{FALSE, Outcome, forged_datagram, framed};
use super::{RANDOM, SignedFeedPlan, address, identity_of};

/// Time from the order that shuts a node out until the next key is in use: a second, and some time
/// for the places that bring the key.
const KEY_TURNS_WITHIN: Duration = Duration::from_millis(1_100);
/// Time for which a key stays valid behind the next one, at the default settings: a node may wait
/// for a repair, and for another root before that.
const KEY_LASTS: Duration = Duration::from_millis(6_100);
/// How long the thief goes on asking for a place.
const ASKING: Duration = Duration::from_millis(300);

/// What the thief does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TheftAttack {
    /// Listens without a node key.
    ListenWithoutKey,
    /// Listens, and opens the places of the robbed node.
    Listen,
    /// Joins in the name of the robbed node, from an address of its own.
    Join,
    /// Reports in the name of the robbed node.
    Report,
    /// Writes a letter in the name of the robbed node.
    Letter,
    /// Writes in the name of the root and of another node.
    OtherNames,
    /// Makes a frame under the key of the run.
    Frame,
    /// Listens when the robbed node was shut out.
    ListenShutOut,
    /// Joins in the name of the robbed node, which was shut out, from its address.
    JoinShutOut,
    /// Reports in the name of the robbed node, which was shut out.
    ReportShutOut,
    /// Makes a frame under the key that was in use before the robbed node was shut out.
    FrameShutOut,
    /// The same after another turn of the keys.
    FrameLater,
}

impl TheftAttack {
    const ALL: [Self; 12] = [
        Self::ListenWithoutKey,
        Self::Listen,
        Self::Join,
        Self::Report,
        Self::Letter,
        Self::OtherNames,
        Self::Frame,
        Self::ListenShutOut,
        Self::JoinShutOut,
        Self::ReportShutOut,
        Self::FrameShutOut,
        Self::FrameLater,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::ListenWithoutKey => "the shared key alone: the thief listens",
            Self::Listen => "a stolen node key: the thief listens",
            Self::Join => "a stolen node key: a join from another address",
            Self::Report => "a stolen node key: a report of its node",
            Self::Letter => "a stolen node key: a letter of its node",
            Self::OtherNames => "a stolen node key: orders, beacons and reports of others",
            Self::Frame => "a stolen node key: a false message to another receiver",
            Self::ListenShutOut => "a revoked node key: the thief listens",
            Self::JoinShutOut => "a revoked node key: a join from the address of its node",
            Self::ReportShutOut => "a revoked node key: a report of its node",
            Self::FrameShutOut => "a revoked node key: a false message under the key before",
            Self::FrameLater => "a revoked node key: the same after another turn of the keys",
        }
    }
}

/// The run, and the thief.
struct TheftScene {
    scene: Scene,
    /// The machine by which the thief reads what it overhears.
    thief: Receiver,
    /// Messages that the thief has read.
    read: u64,
}

impl TheftScene {
    fn new(has_stolen: bool) -> Self {
        let plan =
            SignedFeedPlan { is_bound: true, is_overheard: true, ..SignedFeedPlan::default() };
        let scene = Scene::of_plan(true, &plan);
        let now = scene.feed.now();
        let who = identity_of(ROBBED);
        let thief = Receiver::new(Config::default(), who, Some(&scene.shared), now);
        let thief = match has_stolen {
            true => thief.with_node_key(Self::master_of(&scene).node(NodeId(ROBBED))),
            false => thief,
        };
        Self { scene, thief, read: 0 }
    }

    fn master_of(scene: &Scene) -> &MasterKey {
        scene.master.as_ref().expect("the run has node keys")
    }

    /// The thief reads what it overheard.
    fn listen(&mut self) {
        let now = self.scene.feed.now();
        let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
        self.thief.handle_clock(now, reading);
        for datagram in self.scene.feed.take_overheard() {
            let arrival = Arrival::new(address(0), datagram, now, StampedBy::User);
            self.thief.handle(now, arrival).ok();
        }
        self.thief.handle_timeout(now);
        while let Some(event) = self.thief.poll_event() {
            if let ReceiverEvent::Released(release) = event {
                self.read += u64::from(release.count);
            }
        }
    }

    /// The root publishes, and the thief listens.
    fn publish(&mut self) {
        for _ in 0..MESSAGES {
            self.scene.feed.publish(format!("trade {}", self.scene.published).as_bytes());
            self.scene.published += 1;
            self.scene.feed.pass(EVERY);
            self.listen();
        }
    }

    fn pass(&mut self, time: Duration) {
        let step = Duration::from_millis(1);
        for _ in 0..time.as_millis() {
            self.scene.feed.pass(step);
            self.listen();
        }
    }

    /// The owner shuts the robbed node out, and the next key comes into use.
    fn shut_out(&mut self) {
        self.scene.feed.shut_out(ROBBED);
        self.pass(KEY_TURNS_WITHIN);
    }

    /// The thief asks for a place, and takes the answers that come to this node's address. Returns
    /// whether it got a place.
    fn join_from(&mut self, node: u32) -> bool {
        let until = self.scene.feed.now() + ASKING;
        while self.scene.feed.now() < until {
            self.scene.feed.pass(Duration::from_millis(1));
            let now = self.scene.feed.now();
            self.thief.handle_timeout(now);
            while let Some(transmit) = self.thief.poll_transmit(now) {
                let datagram = [transmit.head.as_slice(), &transmit.body].concat();
                self.scene.feed.inject_at_root(node, datagram.into());
            }
            for datagram in self.scene.feed.take_strays(node) {
                let arrival = Arrival::new(address(0), datagram, now, StampedBy::User);
                self.thief.handle(now, arrival).ok();
            }
        }
        self.thief.place().is_some()
    }

    /// A false message for the other receiver, under this key of the run. Returns the false
    /// messages that the receiver handed on, and the break that ended its feed.
    fn send_false_frame(&mut self, generation: u32) -> (u64, Option<String>) {
        let run_id = u64::from_le_bytes(*RANDOM.first_chunk().expect("24 bytes"));
        let secret = Self::master_of(&self.scene).of_run(run_id, generation);
        let key = SharedKey::new(run_key_id(generation), secret);
        let (frame, first) = self.scene.feed.next();
        let datagram: Bytes =
            forged_datagram(&key, DatagramKind::Data, frame, first, &framed(FALSE));
        let other = VICTIM as usize - 1;
        self.scene.feed.take_events(other);
        self.scene.feed.inject(other, 0, datagram);
        self.publish();
        self.pass(Duration::from_millis(100));
        let mut outcome = Outcome::default();
        outcome.take(self.scene.feed.take_events(other));
        let handed_on = outcome.messages.iter().filter(|(_, message)| *message == FALSE).count();
        (handed_on as u64, outcome.broken)
    }

    /// What the root and the other receiver refused as forged, and breaks.
    fn counted(&self) -> u64 {
        let trust = self.scene.feed.receiver(VICTIM as usize - 1).status().trust;
        self.scene.count_forged() + trust.map_or(0, |trust| trust.breaks)
    }

    fn count_unplaced(&self) -> u64 {
        self.scene.feed.root().status().refusals.unplaced
    }
}

/// What the thief gets by listening: a sentence, if it reads anything.
fn describe_reading(read: u64, published: u64) -> Option<String> {
    (read > 0).then(|| format!("{read} of {published} messages are read"))
}

/// What the thief gets by a false message.
fn describe_frame(handed_on: u64, broken: Option<String>) -> Option<String> {
    match (handed_on, broken) {
        (0, None) => None,
        (0, Some(broken)) => Some(format!("no message, but the receiver ends by name: {broken}")),
        (n, _) => Some(format!("{n} messages released as the root's")),
    }
}

/// Plays an attack before the node is shut out. Returns what the thief got, and what was counted.
fn play_stolen(attack: TheftAttack) -> (Option<String>, u64) {
    let mut theft = TheftScene::new(attack != TheftAttack::ListenWithoutKey);
    let before = theft.counted();
    let got = match attack {
        TheftAttack::Join => {
            let has_place = theft.join_from(NOBODY);
            has_place.then(|| "the thief has the place of the node".into())
        }
        TheftAttack::Report => {
            theft.scene.attack_root(DatagramKind::Report, ROBBED, &false_report());
            let is_believed = theft.scene.feed.root().status().tally.lost >= LOST;
            is_believed.then(|| "the root believes losses that never were".into())
        }
        TheftAttack::Letter => {
            let (is_taken, refused) = write_letter(true, NodeId(ROBBED));
            let got = is_taken.then(|| "the root takes the message into the feed".into());
            return (got, refused);
        }
        TheftAttack::OtherNames => {
            let kinds = [Forgery::Order, Forgery::Beacon, Forgery::GoodBye, Forgery::Report];
            let succeeded = kinds.map(|kind| theft.scene.play_attack(kind));
            succeeded.contains(&true).then(|| "a datagram of another is believed".into())
        }
        TheftAttack::Frame => {
            theft.publish();
            let (handed_on, broken) = theft.send_false_frame(0);
            describe_frame(handed_on, broken)
        }
        _ => {
            theft.listen();
            theft.publish();
            theft.pass(Duration::from_millis(100));
            describe_reading(theft.read, theft.scene.published)
        }
    };
    (got, theft.counted() - before)
}

/// Plays an attack after the node was shut out.
fn play_revoked(attack: TheftAttack) -> (Option<String>, u64) {
    let mut theft = TheftScene::new(true);
    theft.listen();
    theft.publish();
    theft.shut_out();
    if attack == TheftAttack::FrameLater {
        theft.pass(KEY_LASTS);
        theft.scene.feed.renew_keys();
        theft.pass(KEY_TURNS_WITHIN);
    }
    let (read, published) = (theft.read, theft.scene.published);
    let (before, unplaced) = (theft.counted(), theft.count_unplaced());
    let got = match attack {
        TheftAttack::JoinShutOut => {
            let has_place = theft.join_from(ROBBED);
            has_place.then(|| "the thief has the place of the node".into())
        }
        TheftAttack::ReportShutOut => {
            theft.scene.attack_root(DatagramKind::Report, ROBBED, &false_report());
            let is_believed = theft.scene.feed.root().status().tally.lost >= LOST;
            let got = is_believed.then(|| "the root believes losses that never were".into());
            // Two of the three ways to forge are no datagrams of the node at all.
            let counted = theft.count_unplaced() - unplaced + theft.counted() - before;
            return (got, counted);
        }
        TheftAttack::FrameShutOut | TheftAttack::FrameLater => {
            let (handed_on, broken) = theft.send_false_frame(0);
            describe_frame(handed_on, broken)
        }
        _ => {
            theft.publish();
            theft.pass(Duration::from_millis(100));
            let got = describe_reading(theft.read - read, theft.scene.published - published);
            // Nobody sees a listener, so the frames that it could not open are counted.
            return (got, theft.thief.status().refusals.forged);
        }
    };
    (got, theft.counted() - before)
}

fn play(attack: TheftAttack) -> ForgeryResult {
    let is_revoked = matches!(
        attack,
        TheftAttack::ListenShutOut
            | TheftAttack::JoinShutOut
            | TheftAttack::ReportShutOut
            | TheftAttack::FrameShutOut
            | TheftAttack::FrameLater
    );
    let (got, counted) = if is_revoked { play_revoked(attack) } else { play_stolen(attack) };
    ForgeryResult::of(attack.words(), true, got, counted)
}

/// All attacks of a thief.
pub fn play_thefts() -> Vec<ForgeryResult> {
    TheftAttack::ALL.into_iter().map(play).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stolen_key_reads_the_feed_and_speaks_for_its_node_alone() {
        assert!(!play(TheftAttack::ListenWithoutKey).succeeded);
        for attack in [TheftAttack::Listen, TheftAttack::Report, TheftAttack::Letter] {
            let result = play(attack);
            assert!(result.succeeded, "{result:?}");
        }
        for attack in [TheftAttack::Join, TheftAttack::OtherNames] {
            let result = play(attack);
            assert!(!result.succeeded && result.counted > 0, "{result:?}");
        }
        let frame = play(TheftAttack::Frame);
        assert!(frame.got.starts_with("no message, but the receiver ends by name"), "{frame:?}");
        assert_eq!(frame.counted, 1, "{frame:?}");
    }

    #[test]
    fn a_revoked_key_opens_nothing_and_is_refused() {
        for attack in [
            TheftAttack::ListenShutOut,
            TheftAttack::JoinShutOut,
            TheftAttack::ReportShutOut,
            TheftAttack::FrameLater,
        ] {
            let result = play(attack);
            assert!(!result.succeeded && result.counted > 0, "{result:?}");
        }
        // Lost frames under the key before are repaired for some seconds more.
        let frame = play(TheftAttack::FrameShutOut);
        assert!(frame.got.starts_with("no message, but the receiver ends by name"), "{frame:?}");
    }
}
