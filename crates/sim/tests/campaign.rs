//! A campaign for a new protocol, in fifty lines: a sender that waits for each acknowledgement.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::*;
use evenfall_sim::campaign::{NamedVariant, Outline};
use evenfall_sim::{
    Alteration, Altered, AnyCampaign, Bounds, Campaign, Collect, Fault, FaultKind, HostSpec,
    NodeIndex, Plan, Run, SimTime, Transcript, Victims, Wire, World, named_variants,
};

/// Messages of a run.
const MESSAGES: u8 = 100;
/// Of a packet: all messages take as long as faults do.
const DELAY: Duration = Duration::from_millis(5);
/// Silence after which the sender repeats a message: five times as long as an answer takes.
const RESEND: Duration = Duration::from_millis(50);

/// Sends each message until the message is acknowledged, or acknowledges.
struct Link {
    /// Where messages go; `None` for the end that receives.
    to: Option<SocketAddr>,
    /// The message that is under way, or that must come next.
    number: u8,
    send: VecDeque<(SocketAddr, u8)>,
    resend_at: Option<Timestamp>,
    delivered: Option<u8>,
}

impl Link {
    fn new(to: Option<SocketAddr>) -> Self {
        Self { to, number: 0, send: VecDeque::new(), resend_at: None, delivered: None }
    }

    fn send(&mut self, now: Timestamp) {
        let to = self.to.filter(|_| self.number < MESSAGES);
        self.send.extend(to.map(|to| (to, self.number)));
        self.resend_at = to.map(|_| now + RESEND);
    }
}

impl Machine for Link {
    type Event = u8;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let Some(&number) = arrival.datagram.first() else {
            return Err(Malformed { what: "empty", offset: 0 });
        };
        let next = number == self.number;
        self.number += u8::from(next);
        if self.to.is_none() {
            self.delivered = next.then_some(number);
            self.send.push_back((arrival.from, number));
        } else if next {
            self.send(now);
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.resend_at.is_some_and(|at| at <= now) {
            self.send(now);
        }
    }

    /// A link begins with its first clock reading.
    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        if self.resend_at.is_none() {
            self.send(now);
        }
    }

    fn poll_event(&mut self) -> Option<u8> {
        self.delivered.take()
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        let (to, number) = self.send.pop_front()?;
        let (to, head) = (Destination::One(to), Head::new(&[number]));
        Some(Transmit::new(TrafficClass::Live, to, head, Bytes::new()))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.resend_at
    }
}

// The campaign begins.
named_variants! {
    /// What must hold.
    pub enum Check {
        /// Every message is delivered once and in order.
        OnceInOrder,
    }
    /// What may be wrong.
    pub enum Mutant {
        /// Loses the first message that comes, and acknowledges the message.
        Forgets,
    }
}
impl Alteration<Link> for Mutant {
    fn event(&mut self, event: u8, out: &mut VecDeque<u8>) {
        out.extend((event > 0).then_some(event));
    }
}
struct StopAndWait;
impl Campaign for StopAndWait {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;
    fn outline(&self) -> Outline<Mutant, Check> {
        Outline {
            name: "stop-and-wait",
            about: "a sender that waits for each acknowledgement, under loss and pauses",
            seeds: 200,
            once_failed: &[],
            kinds: &[FaultKind::Loss, FaultKind::Duplicate, FaultKind::Pause],
            counts_min: &[("packets lost", 100)],
            mutants: &[(Mutant::Forgets, Check::OnceInOrder, 0..1)],
        }
    }
    fn scene(&self, seed: u64) -> Plan {
        let bounds = Bounds { kinds: self.outline().kinds.to_vec(), ..Bounds::default() };
        Plan::new(seed, &bounds).aimed(&bounds, &Victims::returning(0..2))
    }
    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let mut world = World::new(Wire::new(DELAY), plan.seed);
        let receiver = world.add(Altered::new(Link::new(None), mutant), HostSpec::ideal());
        let link = Link::new(Some(world.address(receiver)));
        world.add(Altered::new(link, None), HostSpec::ideal());
        plan.schedule(&mut world);
        let mut watch = Transcript::told(Collect::default(), story);
        world.run_until(SimTime::from_millis(30_000), &mut watch);
        let came: Vec<u8> = watch.inner.0.iter().map(|(_, number)| *number).collect();
        let mut run = Run { digest: world.digest(), story: watch.text, ..Run::default() };
        run.counts.push(("packets lost", world.tally().lost.iter().sum()));
        run.expect(Check::OnceInOrder, came.iter().copied().eq(0..MESSAGES), || {
            format!("{came:?}")
        });
        run
    }
}
// The campaign ends.

#[test]
fn a_whole_campaign_takes_fifty_lines() {
    let lines = include_str!("campaign.rs").lines();
    let lines = lines.skip_while(|line| !line.starts_with("// The campaign begins."));
    let lines = lines.take_while(|line| !line.starts_with("// The campaign ends."));
    let code = lines.filter(|line| !line.trim_start().starts_with("//")).count();
    assert!(code <= 50, "{code} lines");
}

#[test]
fn a_protocol_that_holds_passes_and_its_mutant_is_caught() {
    let coverage = StopAndWait.prove(None, &mut |_| {}).expect("everything holds");
    assert_eq!(coverage.runs, 200);
    let caught = StopAndWait.catch().expect("the mutant is caught");
    assert_eq!(
        (&*caught[0].mutant, &*caught[0].check, caught[0].seed),
        ("forgets", "once-in-order", 0)
    );
}

#[test]
fn a_replay_tells_the_seed_and_leaves_out_the_faults_that_are_not_needed() {
    let healthy = StopAndWait.replay(3, None).expect("no mutant is named");
    assert!(healthy.violations.is_empty() && healthy.suffices.is_empty());
    assert!(healthy.story.contains("n1 > n0   1 B live"), "{}", healthy.story);
    let (again, broken) = (StopAndWait.replay(3, None), StopAndWait.replay(3, Some("forgets")));
    assert_eq!(again.expect("the same").digest, healthy.digest);
    let broken = broken.expect("there is this mutant");
    assert!(broken.violations[0].starts_with("once-in-order [1, "), "{:?}", broken.violations);
    assert_eq!(broken.suffices, "", "the mutant needs no fault");
    let unknown = StopAndWait.replay(3, Some("dreams")).expect_err("no such mutant");
    assert_eq!(unknown, "campaign stop-and-wait has no mutant \"dreams\"; it has forgets");
}

#[test]
fn a_list_names_checks_and_mutants_in_their_own_words() {
    let text = StopAndWait.describe();
    assert!(text.starts_with("stop-and-wait: a sender that waits"), "{text}");
    assert!(text.contains(Check::OnceInOrder.about()) && text.contains(Mutant::Forgets.about()));
}

/// The same protocol, said to break when the receiver is paused.
struct Fragile;

impl Campaign for Fragile {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;
    fn outline(&self) -> Outline<Mutant, Check> {
        let mutants = &[(Mutant::Forgets, Check::OnceInOrder, 0..1)];
        Outline { name: "fragile", mutants, once_failed: &[1_000], ..StopAndWait.outline() }
    }
    fn scene(&self, seed: u64) -> Plan {
        StopAndWait.scene(seed)
    }
    fn run(&self, plan: &Plan, _: Option<Mutant>, story: bool) -> Run<Check> {
        let mut run = StopAndWait.run(plan, None, story);
        let breaks = |fault: &Fault| matches!(fault, Fault::Pause(NodeIndex(0), _));
        let broken = plan.faults.iter().any(|(_, fault)| breaks(fault));
        run.expect(Check::OnceInOrder, !broken, || "the receiver stopped".to_owned());
        run
    }
}

#[test]
fn a_failure_names_the_smallest_seed_the_faults_that_suffice_and_the_command() {
    let said = Fragile.prove(None, &mut |_| {}).expect_err("pauses break the protocol");
    assert!(said.starts_with("campaign fragile: seed "), "{said}");
    let (_, tail) = said.split_once("these faults alone:\n").expect("the faults");
    let (faults, command) = tail.split_once("replay: ").expect("the command");
    assert!(faults.lines().count() > 0, "{said}");
    assert!(faults.lines().all(|fault| fault.contains("Pause(NodeIndex(0)")), "{said}");
    let seed = command.strip_prefix("evenfall sim campaign fragile --seed ").expect("the seed");
    let seed: u64 = seed.trim().parse().expect("a number");
    assert!(
        (0..seed).all(|seed| Fragile.replay(seed, None).is_ok_and(|r| r.violations.is_empty()))
    );
}

/// The same protocol, in runs that differ although their seed is the same.
struct Moody(AtomicU64);

impl Campaign for Moody {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;
    fn outline(&self) -> Outline<Mutant, Check> {
        Outline { name: "moody", ..StopAndWait.outline() }
    }
    fn scene(&self, seed: u64) -> Plan {
        StopAndWait.scene(seed)
    }
    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let digest = self.0.fetch_add(1, Ordering::Relaxed);
        Run { digest, ..StopAndWait.run(plan, mutant, story) }
    }
}

#[test]
fn a_seed_that_gives_two_runs_fails_and_is_named() {
    let said = Moody(AtomicU64::new(0)).prove(Some(0..5), &mut |_| {}).expect_err("runs differ");
    assert!(said.starts_with("campaign moody: seed 0 failed:"), "{said}");
    assert!(said.contains("digest beside other runs is"), "{said}");
}

#[test]
fn a_mutant_that_does_nothing_is_not_caught_and_is_named() {
    let mild = Fragile.catch().expect_err("seed 0 pauses nobody");
    assert!(
        mild.contains("the mutant forgets was not caught by the check once-in-order"),
        "{mild}"
    );
}
