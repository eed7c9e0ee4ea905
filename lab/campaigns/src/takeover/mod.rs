//! A root that may die: three roots vote, and a standby takes over.
//!
//! A seed draws the proxies and receivers, which root may die for good, and the faults. Half of the
//! faults are aimed at the roots alone: pauses, partitions and one-way cuts of up to a second and a
//! half, after which a deposed root wakes. A root that died may be started again without its votes,
//! and must then learn that the others go on without it. Packets of all nodes are lost, doubled and
//! reordered. A publisher hands a message every four milliseconds to each root that says that it
//! leads. Each message names the root and its epoch, so that a number that was used twice shows.
//!
//! In two thirds of the seeds, one or two authors publish in its place. An author is a machine of
//! its own that sends its messages over the same network. It numbers its messages, and each message
//! names the author and this number, the place. So a place that is in the feed twice or not at all
//! shows, whichever roots led. In most of these seeds the authors die once and are started again,
//! and publish again whatever of their messages is not in the feed.
//!
//! Checks look at what roots and receivers told their owners, and at the datagrams that left.

mod actor;
mod checks;
mod mutants;
mod places;

use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_core::{Format, NodeId, Prng, Timestamp};
use evenfall_multicast_machine::{Config, Root, RootEvent, RootRun, Shape};
use evenfall_multicast_sessions::{ProducerEvent, ProducerIngress, ProducerSession};
use evenfall_multicast_sessions::{ReplicatedRoot, ReplicatedRootEvent, VoterConfig};
use evenfall_sim::campaign::Outline;
use evenfall_sim::{
    Action, Altered, Bounds, Campaign, Fault, FaultKind, HostSpec, NodeIndex, Observer, Packet,
    Plan, Run, Seen, SimTime, Transcript, Verdict, Victims, Wire, World,
};

use self::actor::{Actor, Told};
use self::checks::{Check, TakeoverChecks};
use self::mutants::{Mutant, Wrong};
use crate::multicast::cast::{Cast, draw_master, draw_signed};
use crate::multicast::node::{CampaignNode, NodeEvent};

/// Delay of a packet.
const DELAY: Duration = Duration::from_micros(100);
/// Roots of a run.
const ROOTS: u32 = 3;
/// When the first message is published: the tree stands.
const FEED_FROM: SimTime = SimTime::from_millis(600);
/// Time between two messages.
const FEED_EVERY: Duration = Duration::from_millis(4);
/// When the last message is published.
const FEED_UNTIL: SimTime = SimTime::from_millis(5_000);
/// First and last time of any fault.
const FAULTS: (SimTime, SimTime) = (SimTime::from_millis(800), SimTime::from_millis(3_000));
/// When a root that died is started again, if it is.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// When an author that died is started again. Letters of its last process may still be on their
/// way.
const AUTHOR_AGAIN_AFTER: Duration = Duration::from_micros(150);
/// When a run is judged.
const END: SimTime = SimTime::from_millis(6_000);
/// The epoch of the first leader. The other roots would open runs of later epochs.
const EPOCH: u32 = 100;
/// Tokens by which the publisher acts: hands over a message, and ends the feed.
const PUBLISH: u64 = 1;
const FINISH: u64 = 2;
/// Token by which authors end their lines.
const END_LINES: u64 = 3;
/// How long after the last message of the authors the roots end the feed. Authors then have their
/// answers, since the faults are over for long.
const ANSWERED_WITHIN: Duration = Duration::from_millis(250);

type Subject = Altered<Actor, Wrong>;

/// The roots' owner and the publisher.
struct Owner {
    cast: Cast,
    plan: Plan,
    mutant: Option<Mutant>,
    /// The roots that say that they lead, each with its epoch.
    leads: BTreeMap<NodeIndex, u32>,
    /// How often a root was started again.
    lives: BTreeMap<NodeIndex, u32>,
    /// The messages that the roots were given, by root and number.
    given: BTreeMap<(NodeIndex, u64), Vec<u8>>,
    /// The nodes that are authors.
    authors: core::ops::Range<u32>,
    checks: TakeoverChecks,
}

impl Owner {
    fn config(plan: &Plan) -> Config {
        let shape = Shape { depth: Some(2), ..Shape::default() };
        let mut config = Config { shape, ..Config::default() };
        config.membership.expect_receivers = plan.knob("receivers") as u32;
        config.membership.expect_proxies = plan.knob("proxies") as u32;
        config.membership.expect_timeout = Duration::from_secs(1);
        // A gap may have to wait for two takeovers.
        config.repair.gap_timeout = Duration::from_secs(5);
        config
    }

    fn subject(&self, node: NodeIndex, now: Timestamp) -> Subject {
        let id = NodeId(node.0);
        let proxies = self.plan.knob("proxies") as u32;
        let authors_from = ROOTS + proxies + self.plan.knob("receivers") as u32;
        let actor = if node.0 < ROOTS {
            Actor::ReplicatedRoot(Box::new(self.candidate(node, now)))
        } else if node.0 >= authors_from {
            let roots: Vec<_> = (0..ROOTS).map(|n| NodeIndex(n).address()).collect();
            let start = self.lives.get(&node).copied().unwrap_or(0);
            let of = u64::from(node.0) + (u64::from(start) << 32);
            let life = Prng::new(self.plan.seed).fork(of).next_u64();
            let is_named = self.mutant != Some(Mutant::ForgetsItsName);
            let name = if is_named { u64::from(node.0) } else { 0 };
            Actor::ProducerSession(Box::new(
                ProducerSession::new(now, &roots, life, None).named(name),
            ))
        } else if node.0 < ROOTS + proxies {
            Actor::Node(self.cast.relay(id, 1, now))
        } else {
            Actor::Node(self.cast.receiver(id, 1, now))
        };
        let is_receiver = node.0 >= ROOTS + proxies;
        Altered::new(actor, self.mutant.map(|mutant| Wrong::new(mutant, node, is_receiver)))
    }

    fn candidate(&self, node: NodeIndex, now: Timestamp) -> ReplicatedRoot {
        let life = match self.mutant {
            Some(Mutant::KeepsTheLife) => 0,
            _ => self.lives.get(&node).copied().unwrap_or(0),
        };
        let run = RootRun::new(EPOCH + node.0 + ROOTS * life, [node.0 as u8 + 1; 24]);
        let root = Root::new(*self.cast.config, NodeId(node.0), 0, run, None, now);
        let root = self.cast.equip_root(root);
        let voters = (0..ROOTS).map(NodeIndex).map(|n| (NodeId(n.0), n.address())).collect();
        let name = u64::from(node.0 + ROOTS * life);
        let seed = Prng::new(self.plan.seed).fork(name).next_u64();
        let ballot = VoterConfig { me: NodeId(node.0), voters, seed, key: None };
        let candidate =
            ReplicatedRoot::new(root, run, &ballot).expect("three roots are a super-leaf");
        let mut candidate = candidate.receiving(ProducerIngress::new(None, seed), run);
        candidate.admit(true);
        candidate
    }

    fn has_authors(&self) -> bool {
        self.plan.knob("authors") > 0
    }

    /// An author publishes the messages of a process before it that are not in the feed, and `more`
    /// new ones, unless too many have no answer.
    fn author(&mut self, seen: Seen, author: &mut ProducerSession, mut more: u32) {
        while more > 0 || self.checks.places.is_behind(seen.node) {
            more -= u32::from(!self.checks.places.is_behind(seen.node));
            let Some(message) = self.checks.places.next(seen.node, seen.at) else { return };
            if author.publish(seen.local, Format::OPAQUE, message.clone().into()).is_err() {
                return;
            }
            self.checks.places.publish(seen.node, message);
        }
    }

    fn publish(&mut self, seen: Seen, candidate: &mut ReplicatedRoot) {
        let Some(epoch) = self.leads.get(&seen.node).copied() else { return };
        let mut message = seen.node.0.to_le_bytes().to_vec();
        message.extend(epoch.to_le_bytes());
        message.extend(seen.at.nanos().to_le_bytes());
        let number = candidate.input(seen.local, |root| {
            let number = root.publish(seen.local, Format::OPAQUE, &message);
            root.flush(seen.local);
            number
        });
        if let Ok(number) = number {
            self.given.insert((seen.node, number), message);
        }
    }

    fn heard_root(&mut self, seen: Seen, event: ReplicatedRootEvent) {
        match event {
            ReplicatedRootEvent::Leads { epoch, .. } => {
                self.leads.insert(seen.node, epoch);
                self.checks.took_over(epoch);
            }
            ReplicatedRootEvent::Deposed { .. } => {
                self.leads.remove(&seen.node);
            }
            ReplicatedRootEvent::Root(RootEvent::Framed(framed)) => {
                self.checks.agreed(seen, framed.sequence);
                if !self.leads.contains_key(&seen.node) {
                    return;
                }
                for number in framed.first_message..framed.first_message + u64::from(framed.count) {
                    let message = self.given.get(&(seen.node, number)).cloned();
                    self.checks.acknowledged(seen, number, message.unwrap_or_default());
                }
            }
            ReplicatedRootEvent::Published { number, message, .. } => {
                self.given.insert((seen.node, number), message.to_vec());
            }
            ReplicatedRootEvent::Root(RootEvent::Finished(_)) => self.checks.finished(),
            ReplicatedRootEvent::Replaced => self.checks.replaced(seen),
            ReplicatedRootEvent::Forgotten => self.checks.forgotten(seen),
            _ => {}
        }
    }
}

impl Observer<Subject, Wire> for Owner {
    fn event(&mut self, seen: Seen, event: Told) {
        match event {
            Told::ReplicatedRoot(event) => self.heard_root(seen, event),
            Told::Node(NodeEvent::Receiver(event)) => self.checks.receiver(seen, event),
            Told::Node(_) => {}
            Told::ProducerSession(ProducerEvent::Begun(before)) => self.checks.begun(seen, before),
            Told::ProducerSession(ProducerEvent::Numbered { place, number }) => {
                self.checks.answered(seen, place, number);
            }
            Told::ProducerSession(ProducerEvent::Over) => self.checks.places.over(seen.node),
            Told::ProducerSession(_) => {}
        }
    }

    fn invoke(&mut self, seen: Seen, what: u64, subject: &mut Subject) {
        subject.input(seen.local, |actor| match (actor, what) {
            (Actor::ReplicatedRoot(candidate), PUBLISH) if !self.has_authors() => {
                self.publish(seen, candidate);
            }
            (Actor::ReplicatedRoot(candidate), FINISH) if candidate.leads() => {
                candidate.input(seen.local, |root| root.finish(seen.local));
            }
            (Actor::ProducerSession(author), PUBLISH) => self.author(seen, author, 1),
            (Actor::ProducerSession(author), END_LINES) => {
                self.author(seen, author, 0);
                author.finish(seen.local);
            }
            _ => {}
        });
    }

    fn token(&mut self, world: &mut World<Subject, Wire>, token: u64) {
        for node in (0..ROOTS).chain(self.authors.clone()).map(NodeIndex) {
            if world.is_up(node) {
                world.invoke_at(world.now(), node, token);
            }
        }
        let next = world.now() + FEED_EVERY;
        if next <= FEED_UNTIL {
            world.schedule(next, Action::Token(PUBLISH));
        } else if token == PUBLISH && self.has_authors() {
            world.schedule(next, Action::Token(END_LINES));
            world.schedule(next + ANSWERED_WITHIN, Action::Token(FINISH));
        } else if token == PUBLISH {
            world.schedule(next, Action::Token(FINISH));
        }
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], _: Verdict) {
        self.checks.sent(packet, datagram);
    }

    fn fault(&mut self, at: SimTime, fault: &Fault) {
        if let Fault::Crash(node) = *fault {
            self.leads.remove(&node);
            self.checks.crashed(at, node);
        }
    }

    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<Subject> {
        *self.lives.entry(node).or_default() += 1;
        match self.authors.contains(&node.0) {
            true => self.checks.places.started_again(node),
            false => self.checks.started_again(node),
        }
        Some(self.subject(node, now))
    }
}

/// The campaign.
pub struct TakeoverCampaign;

impl TakeoverCampaign {
    fn bounds(&self) -> Bounds {
        Bounds {
            knobs: vec![
                ("proxies", 1..=3),
                ("receivers", 2..=6),
                ("dies", 0..=2),
                ("alone", 0..=3),
                ("again", 0..=1),
                ("authors", 0..=2),
                ("anew", 0..=2),
            ],
            kinds: self.outline().kinds.to_vec(),
            window: FAULTS.0..=FAULTS.1,
            outage: Duration::from_millis(1)..=Duration::from_millis(1_500),
            ..Bounds::default()
        }
    }
}

impl Campaign for TakeoverCampaign {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;

    fn outline(&self) -> Outline<Mutant, Check> {
        Outline {
            name: "takeover",
            about: "three roots vote on each frame; the one that leads dies, sleeps or is cut off",
            seeds: 300,
            // 2,024, 3,373, 12,118: a frame with a message of a process that had been replaced was
            // refused, and so were all frames behind it. The others: the two standbys asked for
            // each other's promise at the same heartbeats, again and again for a second.
            once_failed: &[2_024, 3_373, 7_682, 11_772, 12_118, 13_807, 15_767],
            kinds: &[
                FaultKind::Loss,
                FaultKind::Duplicate,
                FaultKind::Reorder,
                FaultKind::Crash,
                FaultKind::Pause,
                FaultKind::Partition,
                FaultKind::OneWay,
                FaultKind::Slow,
                FaultKind::ClockDrift,
            ],
            counts_min: &[
                ("takeovers", 100),
                ("roots that died alone", 30),
                ("roots started again", 25),
                ("messages acknowledged", 100_000),
                ("messages released", 100_000),
                ("messages verified", 50_000),
                ("places answered", 100_000),
                ("authors started again", 30),
            ],
            mutants: &[
                (Mutant::BelievesAnyVote, Check::Unique, 0..200),
                (Mutant::SendsAtOnce, Check::Agreed, 0..20),
                (Mutant::StampsRepairAnew, Check::Nonce, 0..100),
                (Mutant::SkipsQuietly, Check::Acknowledged, 0..10),
                (Mutant::KeepsTheEpoch, Check::Acknowledged, 0..20),
                (Mutant::MarsSignatures, Check::Signed, 0..20),
                (Mutant::StopsVoting, Check::Continues, 0..5),
                (Mutant::ObeysTheOld, Check::Fenced, 0..100),
                (Mutant::SeeksLate, Check::Prompt, 0..40),
                (Mutant::ReportsToTheFirst, Check::Ends, 0..20),
                (Mutant::KeepsTheLife, Check::Once, 0..20),
                (Mutant::ForgetsThePlaces, Check::Places, 0..100),
                (Mutant::BeginsTheLineAnew, Check::Places, 0..100),
                (Mutant::ForgetsItsName, Check::Places, 0..100),
                (Mutant::AnswersAhead, Check::Places, 0..20),
                (Mutant::LosesItsLine, Check::Answered, 0..20),
            ],
        }
    }

    fn scene(&self, seed: u64) -> Plan {
        let bounds = self.bounds();
        let mut plan = Plan::new(seed, &bounds);
        let mut victims = Victims::returning(0..ROOTS);
        victims.expendable.push(NodeIndex(plan.knob("dies") as u32));
        if plan.knob("alone") == 0 {
            // The first leader dies on a network that never errs, and the takeover is timed.
            plan.kinds = vec![FaultKind::Crash];
            plan.rates = Default::default();
            victims.expendable = vec![NodeIndex(0)];
        }
        plan.aim(&bounds, &victims);
        let crash = plan.faults.iter().find_map(|(at, fault)| match *fault {
            Fault::Crash(node) => Some((*at, node)),
            _ => None,
        });
        if let Some((at, node)) = crash.filter(|_| plan.knob("again") == 1) {
            plan.faults.push((at + AGAIN_AFTER, Fault::Restart(node)));
        }
        if plan.knob("alone") > 0 && plan.knob("anew") > 0 {
            let members = ROOTS + (plan.knob("proxies") + plan.knob("receivers")) as u32;
            let span = FAULTS.1.nanos() - FAULTS.0.nanos();
            let mut prng = Prng::new(plan.seed).fork(u64::from(members));
            for author in (members..members + plan.knob("authors") as u32).map(NodeIndex) {
                let at = FAULTS.0 + Duration::from_nanos(prng.below(span));
                plan.faults.push((at, Fault::Crash(author)));
                plan.faults.push((at + AUTHOR_AGAIN_AFTER, Fault::Restart(author)));
            }
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let members = ROOTS + (plan.knob("proxies") + plan.knob("receivers")) as u32;
        let nodes = members + plan.knob("authors") as u32;
        let cast = Cast {
            config: Owner::config(plan).into(),
            key: None,
            master: draw_master(plan.seed),
            stream: 0,
            root: NodeId(0),
            root_address: NodeIndex(0).address(),
            standbys: (1..ROOTS).map(|n| NodeIndex(n).address()).collect(),
            signed: draw_signed(plan.seed),
        };
        let is_alone = plan.knob("alone") == 0;
        let owner = Owner {
            cast,
            plan: plan.clone(),
            mutant,
            leads: BTreeMap::new(),
            lives: BTreeMap::new(),
            given: BTreeMap::new(),
            authors: members..nodes,
            checks: TakeoverChecks::new(is_alone, members..nodes),
        };
        let mut world = World::new(Wire::new(DELAY), plan.seed);
        for node in (0..nodes).map(NodeIndex) {
            let subject = owner.subject(node, Timestamp::ZERO);
            world.add(subject, HostSpec::ideal());
        }
        world.schedule(FEED_FROM, Action::Token(PUBLISH));
        plan.schedule(&mut world);
        let mut watch = Transcript::told(owner, story);
        world.run_until(END, &mut watch);
        let mut run = Run { digest: world.digest(), story: watch.text, ..Run::default() };
        let first = ROOTS + plan.knob("proxies") as u32;
        let receivers = (first..members).map(NodeIndex);
        let mut verified = 0;
        for node in receivers.clone() {
            let Actor::Node(CampaignNode::Receiver(receiver)) = world.machine(node).machine()
            else {
                continue;
            };
            let status = receiver.status();
            let is_verified = status.trust.is_none_or(|t| t.verified == status.tally.released);
            run.expect(Check::Signed, is_verified, || format!("{node}: {status:?}"));
            verified += status.trust.map_or(0, |trust| trust.verified);
        }
        run.counts.push(("messages verified", verified));
        watch.inner.checks.judge(receivers, &mut run);
        run
    }
}
