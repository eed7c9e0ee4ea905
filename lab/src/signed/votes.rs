//! Attacks of a participant on what roots say to each other.
//!
//! Three roots agree on each frame before it leaves. The attacker hears what they say and can send
//! from the address of any of them. It holds the shared key, and with node keys also the key of a
//! node of its own. Its forgeries are made by the roots' own machines, under each of its keys.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Destination, Format, Head, Machine, MasterKey, NodeId, StampedBy, Timestamp,
    TrafficClass, Transmit,
};
use evenfall_multicast_machine::{Config, Root, RootRun, SharedKey};
use evenfall_multicast_sessions::standby::session::{VOTE_HEAD_BYTES, VoterSession};
use evenfall_multicast_sessions::{ReplicatedRoot, ReplicatedRootEvent, VoterConfig, letter_key};

use super::forgery::{ATTACKER, ForgeryResult};
use super::hostile::FALSE;
use super::{EPOCH, address};

const ROOTS: u32 = 3;
/// The root that leads first, and a standby.
const LEADER: u32 = 0;
const STANDBY: u32 = 1;
/// Time in which roots meet, and agree on frames.
const MEETING: Duration = Duration::from_millis(500);
/// Time after which a standby leads in the place of a dead leader, with room: a takeover begins
/// after .3 s at the latest.
const TAKEOVER: Duration = Duration::from_secs(2);
/// Time between two datagrams of the attacker.
const EVERY: Duration = Duration::from_millis(10);
/// Where a greeting states its kind and the lives of the roots, and a vote states its number.
const KIND_AT: usize = 3;
const LIVES_AT: usize = 7;
const NUMBER_AT: usize = 16;
const HELLO: u8 = 1;

/// What the attacker forges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VoteForgery {
    /// Votes in the place of a leader that was not started.
    Leader,
    /// Signs of life of a leader that has died.
    SignsOfLife,
    /// Recorded votes of a leader that has died.
    RecordedVotes,
    /// A greeting that tells a root that it was started again.
    Greeting,
    /// Recorded greetings of an earlier session.
    RecordedGreetings,
}

fn words(kind: VoteForgery) -> (&'static str, &'static str) {
    match kind {
        VoteForgery::Leader => {
            ("votes of a leader that was not started", "the standbys agree on a false message")
        }
        VoteForgery::SignsOfLife => (
            "votes of a leader that has died",
            "the standbys take the leader for alive, and none takes over",
        ),
        VoteForgery::RecordedVotes => (
            "recorded votes of a leader that has died",
            "the standbys take the leader for alive, and none takes over",
        ),
        VoteForgery::Greeting => (
            "a greeting that says that a root was started again",
            "the root stops, as if the others went on without it",
        ),
        VoteForgery::RecordedGreetings => (
            "recorded greetings of an earlier session of the roots",
            "the root stops, as if the others went on without it",
        ),
    }
}

/// Three roots that can reach each other, and what the attacker heard of them.
struct VoteScene {
    now: Timestamp,
    roots: [Option<ReplicatedRoot>; ROOTS as usize],
    /// The datagrams that were carried: sender, receiver, bytes.
    heard: Vec<(u32, u32, Bytes)>,
    /// Datagrams in the name of this root are the attacker's.
    forged_name: Option<u32>,
    /// Datagrams of the attacker that were refused.
    refused: u64,
}

fn datagram_of(transmit: &Transmit) -> Bytes {
    [transmit.head.as_slice(), &transmit.body].concat().into()
}

fn voters() -> Vec<(NodeId, std::net::SocketAddr)> {
    (0..ROOTS).map(|node| (NodeId(node), address(node))).collect()
}

/// A root whose life has this number.
fn start_voter(node: u32, key: &SharedKey, life: u64, now: Timestamp) -> ReplicatedRoot {
    let run = RootRun::new(EPOCH + node, [node as u8 + 1; 24]);
    let root = Root::new(Config::default(), NodeId(node), 0, run, Some(key), now);
    let me = NodeId(node);
    let config = VoterConfig { me, voters: voters(), seed: life, key: Some(key.clone()) };
    ReplicatedRoot::new(root, run, &config).expect("three voters")
}

impl VoteScene {
    /// No root has started.
    fn new() -> Self {
        let now = Timestamp::from_nanos(1_000_000_000);
        let roots = [const { None }; ROOTS as usize];
        Self { now, roots, heard: Vec::new(), forged_name: None, refused: 0 }
    }

    /// Roots that have met. Their lives follow this number.
    fn after_meeting(key: &SharedKey, first_life: u64) -> Self {
        let mut scene = Self::new();
        (0..ROOTS).for_each(|node| scene.start(node, key, first_life));
        scene.pass(MEETING);
        let leader = scene.roots[LEADER as usize].as_ref();
        assert!(leader.is_some_and(ReplicatedRoot::leads), "the first root leads");
        scene
    }

    fn start(&mut self, node: u32, key: &SharedKey, first_life: u64) {
        let life = first_life + u64::from(node);
        self.roots[node as usize] = Some(start_voter(node, key, life, self.now));
    }

    fn root(&mut self, node: u32) -> Option<&mut ReplicatedRoot> {
        self.roots[node as usize].as_mut()
    }

    /// A datagram arrives from the address of a root.
    fn deliver(&mut self, from: u32, to: u32, datagram: Bytes) -> bool {
        let now = self.now;
        let Some(root) = self.root(to) else { return true };
        let arrival = Arrival::new(address(from), datagram, now, StampedBy::User);
        root.handle(now, arrival).is_ok()
    }

    /// The attacker sends a datagram from the address of a root.
    fn inject(&mut self, from: u32, to: u32, datagram: Bytes) {
        self.refused += u64::from(!self.deliver(from, to, datagram));
    }

    /// Lets time pass. A datagram arrives within a millisecond.
    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() {
            self.now += Duration::from_millis(1);
            let now = self.now;
            let mut flight = Vec::new();
            for (from, root) in (0..).zip(&mut self.roots) {
                let Some(root) = root else { continue };
                root.handle_timeout(now);
                while root.poll_install().is_some() {}
                while let Some(transmit) = root.poll_transmit(now) {
                    let datagram = datagram_of(&transmit);
                    let is_to = |to: &u32| match transmit.to {
                        Destination::One(one) => one == address(*to),
                        Destination::Group(_) => *to != from,
                    };
                    let is_vote = VoterSession::is_of(&datagram);
                    let all = (0..ROOTS).filter(is_to).filter(|_| is_vote);
                    flight.extend(all.map(|to| (from, to, datagram.clone())));
                }
            }
            for (from, to, datagram) in flight {
                self.heard.push((from, to, datagram.clone()));
                let is_taken = self.deliver(from, to, datagram);
                self.refused += u64::from(!is_taken && self.forged_name == Some(from));
            }
        }
    }

    /// The lives that a greeting of a root in the session names.
    fn overheard_lives(&self) -> [u64; ROOTS as usize] {
        let last = self.heard.iter().rfind(|(.., datagram)| datagram[KIND_AT] == HELLO);
        let (.., last) = last.expect("roots greet each other");
        core::array::from_fn(|place| {
            let life = last[LIVES_AT + 8 * place..].first_chunk().expect("eight bytes");
            u64::from_le_bytes(*life)
        })
    }

    /// Recorded datagrams of a kind: votes, or greetings.
    fn recorded(&self, are_greetings: bool) -> Vec<(u32, u32, Bytes)> {
        let is_kind =
            |(.., datagram): &&(u32, u32, Bytes)| (datagram[KIND_AT] == HELLO) == are_greetings;
        self.heard.iter().filter(is_kind).cloned().collect()
    }

    fn has_successor(&self) -> bool {
        self.roots[1..].iter().flatten().any(ReplicatedRoot::leads)
    }

    /// The events of a root since the last look.
    fn take_events(&mut self, node: u32) -> Vec<ReplicatedRootEvent> {
        let Some(root) = self.root(node) else { return Vec::new() };
        core::iter::from_fn(|| root.poll_event()).collect()
    }

    fn was_replaced(&mut self, node: u32) -> bool {
        self.take_events(node).contains(&ReplicatedRootEvent::Replaced)
    }
}

/// The sessions of all roots, as a holder of a key can make them by itself.
fn sessions_of(lives: [u64; ROOTS as usize], key: &SharedKey, now: Timestamp) -> Vec<VoterSession> {
    let session = |(node, life)| VoterSession::new(NodeId(node), &voters(), life, Some(key));
    let all = (0..).zip(lives).map(session);
    let mut all: Vec<VoterSession> = all.map(|session| session.expect("one of them")).collect();
    all.iter_mut().for_each(|session| session.handle_timeout(now));
    // Two exchanges of all with all are enough.
    for _ in 0..4 * ROOTS {
        for from in 0..ROOTS {
            while let Some(greeting) = all[from as usize].poll_transmit() {
                let to = (0..ROOTS).find(|to| greeting.to == Destination::One(address(*to)));
                let Some(to) = to else { continue };
                let datagram = datagram_of(&greeting);
                let arrival = Arrival::new(address(from), datagram, now, StampedBy::User);
                all[to as usize].handle(now, &arrival).ok();
            }
        }
    }
    assert!(all.iter().all(VoterSession::is_open), "they hold one key");
    all
}

/// The keys of the attacker under which roots may take its datagrams.
fn attacker_keys(shared: &SharedKey, master: Option<&MasterKey>) -> Vec<SharedKey> {
    let own = master.map(|master| letter_key(&master.node(NodeId(ATTACKER))));
    core::iter::once(shared.clone()).chain(own).collect()
}

/// An attacker that votes in the name of the dead leader.
struct VoteForger {
    session: VoterSession,
    /// What the votes contain.
    order: Bytes,
}

impl VoteForger {
    /// Takes what a recorded vote contains, to send it under numbers above all of the leader.
    fn new(lives: [u64; ROOTS as usize], key: &SharedKey, recorded: &RecordedVote) -> Self {
        let RecordedVote { to, at, vote } = recorded;
        let mut sessions = sessions_of(lives, key, *at);
        let arrival = Arrival::new(address(LEADER), vote.clone(), *at, StampedBy::User);
        // Under another key than the roots have, the attacker cannot read the vote.
        let order = sessions[*to as usize].handle(*at, &arrival).ok().flatten();
        let order = order.unwrap_or_else(|| vote.slice(VOTE_HEAD_BYTES..));
        let session = sessions.swap_remove(LEADER as usize);
        let mut forger = Self { session, order };
        let number = vote[NUMBER_AT..].first_chunk().expect("eight bytes");
        (0..u64::from_le_bytes(*number)).for_each(|_| drop(forger.write_vote(*to)));
        forger
    }

    fn write_vote(&mut self, to: u32) -> Bytes {
        let to = Destination::One(address(to));
        let order = Transmit::new(TrafficClass::Live, to, Head::new(&[]), self.order.clone());
        datagram_of(&self.session.seal(&order).expect("a session"))
    }
}

/// A vote of the leader that the attacker recorded.
struct RecordedVote {
    to: u32,
    at: Timestamp,
    vote: Bytes,
}

fn play_leader(real: &SharedKey, keys: &[SharedKey]) -> (bool, u64) {
    let (mut succeeded, mut refused) = (false, 0);
    for key in keys {
        let mut scene = VoteScene::new();
        scene.forged_name = Some(LEADER);
        for node in 0..ROOTS {
            scene.start(node, if node == LEADER { key } else { real }, 10);
        }
        scene.pass(MEETING);
        let now = scene.now;
        if let Some(attacker) = scene.root(LEADER).filter(|root| root.leads()) {
            attacker.input(now, |root| {
                root.publish(now, Format::OPAQUE, FALSE).ok();
                root.flush(now);
            });
        }
        scene.pass(MEETING);
        let is_false = |event: &ReplicatedRootEvent| match event {
            ReplicatedRootEvent::Kept(draft) => draft.body().ends_with(FALSE),
            _ => false,
        };
        succeeded |= scene.take_events(STANDBY).iter().any(is_false);
        refused += scene.refused;
    }
    (succeeded, refused)
}

fn play_dead_leader(kind: VoteForgery, real: &SharedKey, keys: &[SharedKey]) -> (bool, u64) {
    let mut scene = VoteScene::after_meeting(real, 10);
    let (lives, at) = (scene.overheard_lives(), scene.now);
    let votes = scene.recorded(false).into_iter().filter(|(from, ..)| *from == LEADER);
    let votes: Vec<_> = votes.map(|(_, to, vote)| RecordedVote { to, at, vote }).collect();
    scene.roots[LEADER as usize] = None;
    let last = votes.last().expect("the leader votes");
    let mut forgers: Vec<_> = keys.iter().map(|key| VoteForger::new(lives, key, last)).collect();
    let turns = (TAKEOVER.as_nanos() / EVERY.as_nanos()) as usize;
    // The newest recorded votes are of most use.
    for recorded in votes.iter().rev().cycle().take(turns) {
        scene.pass(EVERY);
        for to in 1..ROOTS {
            if kind == VoteForgery::RecordedVotes {
                scene.inject(LEADER, to, recorded.vote.clone());
                continue;
            }
            let forged: Vec<_> = forgers.iter_mut().map(|forger| forger.write_vote(to)).collect();
            forged.into_iter().for_each(|vote| scene.inject(LEADER, to, vote));
        }
    }
    let repeated = scene.roots.iter().flatten().map(ReplicatedRoot::repeated_votes).sum::<u64>();
    (!scene.has_successor(), scene.refused + repeated)
}

fn play_greeting(real: &SharedKey, keys: &[SharedKey]) -> (bool, u64) {
    let mut scene = VoteScene::new();
    scene.start(LEADER, real, 10);
    scene.start(STANDBY, real, 10);
    scene.pass(MEETING);
    let greetings = scene.recorded(true);
    let greeting = greetings.into_iter().rfind(|(from, ..)| *from == LEADER).expect("it greets").2;
    let now = scene.now;
    for key in keys {
        // A session of the attacker's own, which does not have this life of the root.
        let mut sessions = sessions_of([77, 78, 79], key, now);
        let other = &mut sessions[STANDBY as usize];
        let arrival = Arrival::new(address(LEADER), greeting.clone(), now, StampedBy::User);
        let answer = other.handle(now, &arrival).ok().and_then(|_| other.poll_transmit());
        // Under another key than the roots have, the attacker cannot read the greeting.
        let answer = answer.or_else(|| {
            let mut fresh = VoterSession::new(NodeId(STANDBY), &voters(), 78, Some(key))?;
            fresh.handle_timeout(now);
            fresh.poll_transmit()
        });
        scene.inject(STANDBY, LEADER, datagram_of(&answer.expect("a greeting")));
    }
    (scene.was_replaced(LEADER), scene.refused)
}

fn play_recorded_greetings(real: &SharedKey) -> (bool, u64) {
    let recorded = VoteScene::after_meeting(real, 10).recorded(true);
    let mut scene = VoteScene::new();
    scene.start(LEADER, real, 50);
    for (from, _, greeting) in recorded.into_iter().filter(|(_, to, _)| *to == LEADER) {
        scene.inject(from, LEADER, greeting);
    }
    let stops = scene.was_replaced(LEADER);
    (1..ROOTS).for_each(|node| scene.start(node, real, 50));
    scene.pass(MEETING);
    (stops || !scene.root(LEADER).is_some_and(|root| root.is_ready()), scene.refused)
}

fn play(kind: VoteForgery, has_node_keys: bool) -> ForgeryResult {
    let shared = SharedKey::new(1, [5; 32]);
    let master = has_node_keys.then(|| MasterKey::new([6; 32]));
    let real = master.as_ref().map_or_else(|| shared.clone(), MasterKey::roots);
    let keys = attacker_keys(&shared, master.as_ref());
    let (succeeded, refused) = match kind {
        VoteForgery::Leader => play_leader(&real, &keys),
        VoteForgery::SignsOfLife | VoteForgery::RecordedVotes => {
            play_dead_leader(kind, &real, &keys)
        }
        VoteForgery::Greeting => play_greeting(&real, &keys),
        VoteForgery::RecordedGreetings => play_recorded_greetings(&real),
    };
    let (attack, gained) = words(kind);
    ForgeryResult::of(attack, has_node_keys, succeeded.then(|| gained.into()), refused)
}

/// All attacks on votes, with one key for all nodes and with node keys.
pub fn play_vote_forgeries() -> Vec<ForgeryResult> {
    let kinds = [
        VoteForgery::Leader,
        VoteForgery::SignsOfLife,
        VoteForgery::RecordedVotes,
        VoteForgery::Greeting,
        VoteForgery::RecordedGreetings,
    ];
    kinds.into_iter().flat_map(|kind| [false, true].map(|keys| play(kind, keys))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_are_forged_under_the_shared_key_and_refused_under_node_keys() {
        for kind in [VoteForgery::Leader, VoteForgery::SignsOfLife, VoteForgery::Greeting] {
            let shared = play(kind, false);
            assert!(shared.succeeded, "{shared:?}");
            let node = play(kind, true);
            assert!(!node.succeeded && node.counted > 0, "{node:?}");
        }
    }

    #[test]
    fn recorded_votes_and_greetings_serve_nobody() {
        for kind in [VoteForgery::RecordedVotes, VoteForgery::RecordedGreetings] {
            for has_node_keys in [false, true] {
                let result = play(kind, has_node_keys);
                assert!(!result.succeeded && result.counted > 0, "{result:?}");
            }
        }
    }
}
