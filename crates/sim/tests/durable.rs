//! A campaign for a protocol that writes before it sends, in sixty lines: a ledger keeps each entry
//! on its disk and acknowledges the entry only then. `campaign.rs` is the same without a disk, and
//! repeats the sender, so that either example can be read by itself.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::durable::Change;
use evenfall_core::*;
use evenfall_sim::campaign::Outline;
use evenfall_sim::{
    Alteration, Altered, AnyCampaign, Asked, Bounds, Campaign, DiskFaults, FaultKind, HostSpec,
    NodeIndex, Observer, Plan, Run, Seen, SimDisk, SimTime, SimWrites, Transcript, Victims, Wire,
    World, words,
};

/// Entries of a run.
const ENTRIES: u8 = 100;
/// Of a packet: all entries take as long as faults do.
const DELAY: Duration = Duration::from_millis(2);
/// Longest that a write takes: as long as the way of an entry and of its answer.
const WRITE: Duration = Duration::from_millis(4);
/// Silence after which the writer repeats an entry: five times as long as an answer takes.
const RESEND: Duration = Duration::from_millis(40);

/// Sends each entry until the entry is acknowledged, or keeps entries and acknowledges them.
struct Ledger {
    /// Where entries go; `None` for the end that keeps them.
    to: Option<SocketAddr>,
    /// The entry that is under way, or that must come next.
    next: u8,
    /// The entry that is being written, and the address that waits for it.
    writing: Option<(SocketAddr, u8)>,
    write: Option<Write>,
    send: VecDeque<(SocketAddr, u8)>,
    resend_at: Option<Timestamp>,
}

impl Ledger {
    fn new(to: Option<SocketAddr>, next: u8) -> Self {
        let (send, resend_at) = (VecDeque::new(), None);
        Self { to, next, writing: None, write: None, send, resend_at }
    }

    fn send(&mut self, now: Timestamp) {
        let to = self.to.filter(|_| self.next < ENTRIES);
        self.send.extend(to.map(|to| (to, self.next)));
        self.resend_at = to.map(|_| now + RESEND);
    }

    /// An entry came to the end that keeps entries.
    fn keep(&mut self, from: SocketAddr, number: u8) {
        if number < self.next {
            self.send.push_back((from, number));
        } else if number == self.next && self.writing.is_none() {
            self.writing = Some((from, number));
            let change = Change::Append(Bytes::copy_from_slice(&[number]));
            self.write = Some(Write { id: WriteId(number.into()), log: "ledger".into(), change });
        }
    }
}

impl Machine for Ledger {
    type Event = ();

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let Some(&number) = arrival.datagram.first() else {
            return Err(Malformed { what: "empty", offset: 0 });
        };
        if self.to.is_none() {
            self.keep(arrival.from, number);
        } else if number == self.next {
            self.next += 1;
            self.send(now);
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.resend_at.is_some_and(|at| at <= now) {
            self.send(now);
        }
    }

    /// The writer begins with its first clock reading.
    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        if self.resend_at.is_none() {
            self.send(now);
        }
    }

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn poll_install(&mut self) -> Option<Install> {
        None
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        let (to, number) = self.send.pop_front()?;
        let (to, head) = (Destination::One(to), Head::new(&[number]));
        Some(Transmit::new(Class::Live, to, head, Bytes::new()))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.resend_at
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self)
    }
}

impl Durable for Ledger {
    fn poll_write(&mut self) -> Option<Write> {
        self.write.take()
    }

    fn handle_written(&mut self, _: Timestamp, _: WriteId, done: Result<(), StorageError>) {
        done.expect("the disk of this campaign fails in crashes only");
        self.next += 1;
        self.send.extend(self.writing.take());
    }
}

// The campaign begins.
words! {
    /// What must hold.
    pub enum Check {
        /// The ledger has every entry once and in order.
        Kept,
    }
    /// What may be wrong.
    pub enum Mutant {
        /// Acknowledges an entry before the entry is on the disk.
        SendsEarly,
        /// Acknowledges entries and writes nothing.
        WritesNothing,
    }
}
impl Alteration<Ledger> for Mutant {
    fn write(&mut self, write: Write) -> Asked {
        match self {
            Self::SendsEarly => Asked::Early(write),
            Self::WritesNothing => Asked::Never(write.id),
        }
    }
}
struct Owner(SimDisk, Option<Mutant>);
impl Observer<Altered<Ledger, Mutant>, Wire> for Owner {
    fn event(&mut self, _: Seen, (): ()) {}
    fn revive(&mut self, _: NodeIndex, _: Timestamp) -> Option<Altered<Ledger, Mutant>> {
        let kept = self.0.read("ledger", 0, usize::MAX).expect("a disk").len() as u8;
        Some(Altered::new(Ledger::new(None, kept), self.1))
    }
}
struct Bookkeeping;
impl Campaign for Bookkeeping {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;
    fn outline(&self) -> Outline<Mutant, Check> {
        Outline {
            name: "bookkeeping",
            about: "a ledger that writes each entry before it acknowledges the entry",
            seeds: 200,
            once_failed: &[],
            kinds: &[FaultKind::Loss, FaultKind::Duplicate, FaultKind::Restart, FaultKind::Pause],
            counts_min: &[("crashes", 100)],
            mutants: &[
                (Mutant::SendsEarly, Check::Kept, 20),
                (Mutant::WritesNothing, Check::Kept, 20),
            ],
        }
    }
    fn scene(&self, seed: u64) -> Plan {
        let bounds = Bounds { kinds: self.outline().kinds.to_vec(), ..Bounds::default() };
        Plan::new(seed, &bounds).aimed(&bounds, &Victims::returning(0..1))
    }
    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let mut world = World::new(Wire::new(DELAY), plan.seed);
        let disk = SimDisk::new(plan.seed, DiskFaults::default());
        let keeper = world.add(Altered::new(Ledger::new(None, 0), mutant), HostSpec::ideal());
        world.attach(keeper, SimWrites::new(disk.clone(), plan.seed, WRITE));
        let writer = Ledger::new(Some(world.address(keeper)), 0);
        world.add(Altered::new(writer, None), HostSpec::ideal());
        plan.schedule(&mut world);
        let mut watch = Transcript::told(Owner(disk.clone(), mutant), story);
        world.run_until(SimTime::from_millis(30_000), &mut watch);
        let kept = disk.read("ledger", 0, usize::MAX).expect("a disk");
        let mut run = Run { digest: world.digest(), story: watch.text, ..Run::default() };
        run.counts.push(("crashes", disk.counts().0));
        let whole = kept.iter().copied().eq(0..ENTRIES);
        run.expect(Check::Kept, whole, || format!("{} entries: {kept:?}", kept.len()));
        run
    }
}
// The campaign ends.

#[test]
fn what_was_acknowledged_survives_crashes_and_a_machine_that_sends_early_is_caught() {
    let coverage = Bookkeeping.prove(None, &mut |_| {}).expect("everything holds");
    assert_eq!(coverage.runs, 200);
    assert_eq!(Bookkeeping.catch().expect("both mutants are caught").len(), 2);
}

/// The ledger of a node without a disk.
#[test]
#[should_panic(expected = "node 0 writes to Some(\"ledger\"): attach a disk to the node")]
fn a_machine_that_writes_on_a_node_without_a_disk_is_named() {
    let mut world = World::new(Wire::new(DELAY), 1);
    let keeper = world.add(Ledger::new(None, 0), HostSpec::ideal());
    let writer = Ledger::new(Some(world.address(keeper)), 0);
    world.add(writer, HostSpec::ideal());
    world.run_until(SimTime::from_millis(100), &mut evenfall_sim::observer::Discard);
}

#[test]
fn an_answer_is_sent_when_its_write_is_done_and_not_before() {
    let mut world = World::new(Wire::new(DELAY), 1);
    let keeper = world.add(Ledger::new(None, 0), HostSpec::ideal());
    let slow = DiskFaults { slow_by: Duration::from_secs(1), ..DiskFaults::default() };
    let disk = SimDisk::new(1, slow);
    world.attach(keeper, SimWrites::new(disk.clone(), 1, WRITE));
    world.add(Ledger::new(Some(world.address(keeper)), 0), HostSpec::ideal());
    world.run_until(SimTime::from_millis(10), &mut evenfall_sim::observer::Discard);
    assert_eq!(disk.read("ledger", 0, 1).expect("a disk").len(), 0);
    assert_eq!(world.machine(NodeIndex(1)).next, 0, "nothing is acknowledged");
    world.run_until(SimTime::from_millis(1_020), &mut evenfall_sim::observer::Discard);
    assert!(!disk.read("ledger", 0, 1).expect("a disk").is_empty());
    assert!(world.machine(NodeIndex(1)).next > 0);
}
