//! A protocol that writes before it sends, with its campaign: a ledger keeps each entry on its disk
//! and acknowledges the entry only then. The disk crashes in the middle of writes, and fills up.
//! `campaign.rs` is the same without a disk, and repeats the sender, so that either example can be
//! read by itself.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::durable::Change;
use evenfall_core::journal::{self, Journal};
use evenfall_core::*;
use evenfall_sim::campaign::Outline;
use evenfall_sim::{
    Alteration, Altered, AnyCampaign, Asked, Bounds, Campaign, DiskFaults, FaultKind, HostSpec,
    NodeIndex, Observer, Plan, Run, Seen, SimDisk, SimTime, SimWrites, Transcript, Victims, Wire,
    World, named_variants,
};

/// Entries of a run.
const ENTRIES: u8 = 100;
/// The name of the log on the ledger's disk.
const LOG: &str = "ledger";
/// Bytes of an entry: several sectors, so that a crash can tear an entry.
const ENTRY_BYTES: usize = 2_000;
/// Of a packet: all entries take as long as faults do.
const DELAY: Duration = Duration::from_millis(2);
/// Longest that a write takes: longer than the way of an entry and of its answer, so that most
/// crashes meet a write.
const WRITE: Duration = Duration::from_millis(20);
/// Silence after which the writer repeats an entry: four times as long as an answer takes. The
/// keeper's journal tries failed writes again as often.
const AGAIN: Duration = Duration::from_millis(100);

/// Sends each entry until the entry is acknowledged, or keeps entries and acknowledges them.
struct Ledger {
    /// Where entries go; `None` for the end that keeps them.
    to: Option<SocketAddr>,
    /// The entry that is under way, or that must come next.
    next: u8,
    /// Entries that are on the disk.
    kept: u8,
    /// The log. Each record is an entry, with the acknowledgement that may leave once it is there.
    journal: Journal<(SocketAddr, u8)>,
    send: VecDeque<(SocketAddr, u8)>,
    again_at: Option<Timestamp>,
}

impl Ledger {
    fn writer(to: SocketAddr) -> Self {
        Self { to: Some(to), ..Self::keeper(&Bytes::new()) }
    }

    /// Goes on where the log ends, behind its last whole record.
    fn keeper(log: &Bytes) -> Self {
        let (entries, journal) = Journal::open(LOG, AGAIN, log).expect("a log of a ledger");
        let kept = entries.len() as u8;
        Self { to: None, next: kept, kept, journal, send: VecDeque::new(), again_at: None }
    }

    fn send(&mut self, now: Timestamp) {
        let to = self.to.filter(|_| self.next < ENTRIES);
        self.send.extend(to.map(|to| (to, self.next)));
        self.again_at = to.map(|_| now + AGAIN);
    }

    /// An entry came to the end that keeps entries.
    fn keep(&mut self, from: SocketAddr, number: u8) {
        if number < self.kept {
            self.send.push_back((from, number));
        } else if number == self.next {
            self.next += 1;
            self.journal.add(&[number; ENTRY_BYTES], [(from, number)]);
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
        self.journal.handle_timeout(now);
        if self.again_at.is_some_and(|at| at <= now) {
            self.send(now);
        }
    }

    /// The writer begins with its first clock reading.
    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        if self.again_at.is_none() {
            self.send(now);
        }
    }

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        let (to, number) = self.send.pop_front()?;
        let (to, head) = (Destination::One(to), Head::new(&[number]));
        Some(Transmit::new(TrafficClass::Live, to, head, Bytes::new()))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.again_at.or(self.journal.poll_timeout())
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self)
    }
}

impl Durable for Ledger {
    fn poll_write(&mut self) -> Option<Write> {
        self.journal.poll()
    }

    /// The acknowledgements of the entries that are on the disk leave. The journal tries the rest
    /// again.
    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        let acknowledgements = self.journal.handle_written(now, id, done).unwrap_or_default();
        self.kept += acknowledgements.len() as u8;
        self.send.extend(acknowledgements);
    }
}

// The campaign begins.
named_variants! {
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
        /// Goes on behind a torn record instead of cutting it off.
        LeavesTails,
    }
}
impl Alteration<Ledger> for Mutant {
    fn write(&mut self, write: Write) -> Asked {
        match (*self, &write.change) {
            (Self::SendsEarly, _) => Asked::Early(write),
            (Self::LeavesTails, Change::Append(_)) => Asked::Write(write),
            (Self::WritesNothing | Self::LeavesTails, _) => Asked::Never(write.id),
        }
    }
}
/// Owns the disk of the ledger, and counts the restarts that found a torn record.
struct Owner {
    disk: SimDisk,
    mutant: Option<Mutant>,
    torn: u64,
}
impl Owner {
    fn bytes(&self) -> Bytes {
        self.disk.read(LOG, 0, usize::MAX).expect("no fault of reading is drawn")
    }
}
impl Observer<Altered<Ledger, Mutant>, Wire> for Owner {
    fn event(&mut self, _: Seen, (): ()) {}
    fn revive(&mut self, _: NodeIndex, _: Timestamp) -> Option<Altered<Ledger, Mutant>> {
        let log = self.bytes();
        let (_, good) = journal::read(&log).expect("a log of a ledger");
        self.torn += u64::from(good < log.len() as u64);
        Some(Altered::new(Ledger::keeper(&log), self.mutant))
    }
}
struct Bookkeeping;
impl Campaign for Bookkeeping {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;
    fn outline(&self) -> Outline<Mutant, Check> {
        use FaultKind::{Disk, Duplicate, Loss, Pause, Restart};
        Outline {
            name: "bookkeeping",
            about: "a ledger that writes each entry before it acknowledges the entry",
            seeds: 200,
            once_failed: &[],
            kinds: &[Loss, Duplicate, Restart, Pause, Disk],
            counts_min: &[("crashes", 100), ("torn logs", 10), ("failed writes", 100)],
            mutants: &[
                (Mutant::SendsEarly, Check::Kept, 0..20),
                (Mutant::WritesNothing, Check::Kept, 0..20),
                (Mutant::LeavesTails, Check::Kept, 0..100),
            ],
        }
    }
    fn scene(&self, seed: u64) -> Plan {
        // Disks get full and slow. Other faults of disks are in `DiskFaults`.
        let disk_max = DiskFaults { bytes_max: Some(0), slow_by: WRITE, ..DiskFaults::default() };
        let kinds = self.outline().kinds.to_vec();
        let bounds = Bounds { kinds, disk_max, ..Bounds::default() };
        Plan::new(seed, &bounds).aimed(&bounds, &Victims::returning(0..1))
    }
    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let mut world = World::new(Wire::new(DELAY), plan.seed);
        let disk = SimDisk::new(plan.seed, DiskFaults::default());
        let ledger = Ledger::keeper(&Bytes::new());
        let keeper = world.add(Altered::new(ledger, mutant), HostSpec::ideal());
        world.attach(keeper, SimWrites::new(disk.clone(), plan.seed, WRITE));
        let writer = Ledger::writer(world.address(keeper));
        world.add(Altered::new(writer, None), HostSpec::ideal());
        plan.schedule(&mut world);
        let mut watch = Transcript::told(Owner { disk, mutant, torn: 0 }, story);
        world.run_until(SimTime::from_millis(30_000), &mut watch);
        let (owner, story) = (watch.inner, watch.text);
        let (crashes, failed) = owner.disk.counts();
        let counts =
            vec![("crashes", crashes), ("torn logs", owner.torn), ("failed writes", failed)];
        let mut run = Run { digest: world.digest(), story, counts, ..Run::default() };
        let (entries, _) = journal::read(&owner.bytes()).expect("a log of a ledger");
        let kept: Vec<u8> = entries.iter().map(|entry| entry[0]).collect();
        let is_whole = kept.iter().copied().eq(0..ENTRIES);
        run.expect(Check::Kept, is_whole, || format!("{} entries: {kept:?}", kept.len()));
        run
    }
}
// The campaign ends.

#[test]
fn what_was_acknowledged_survives_crashes_and_a_machine_that_sends_early_is_caught() {
    let coverage = Bookkeeping.prove(None, &mut |_| {}).expect("everything holds");
    assert_eq!(coverage.runs, 200);
    assert_eq!(Bookkeeping.catch().expect("all mutants are caught").len(), 3);
}

/// The ledger of a node without a disk.
#[test]
#[should_panic(expected = "node 0 writes to Some(\"ledger\"): attach a disk to the node")]
fn a_machine_that_writes_on_a_node_without_a_disk_is_named() {
    let mut world = World::new(Wire::new(DELAY), 1);
    let keeper = world.add(Ledger::keeper(&Bytes::new()), HostSpec::ideal());
    world.add(Ledger::writer(world.address(keeper)), HostSpec::ideal());
    world.run_until(SimTime::from_millis(100), &mut evenfall_sim::observer::Discard);
}

#[test]
fn an_answer_is_sent_when_its_write_is_done_and_not_before() {
    let mut world = World::new(Wire::new(DELAY), 1);
    let keeper = world.add(Ledger::keeper(&Bytes::new()), HostSpec::ideal());
    let slow = DiskFaults { slow_by: Duration::from_secs(1), ..DiskFaults::default() };
    let disk = SimDisk::new(1, slow);
    world.attach(keeper, SimWrites::new(disk.clone(), 1, WRITE));
    world.add(Ledger::writer(world.address(keeper)), HostSpec::ideal());
    world.run_until(SimTime::from_millis(10), &mut evenfall_sim::observer::Discard);
    assert_eq!(disk.read(LOG, 0, 1).expect("a disk").len(), 0);
    assert_eq!(world.machine(NodeIndex(1)).next, 0, "nothing is acknowledged");
    world.run_until(SimTime::from_millis(1_050), &mut evenfall_sim::observer::Discard);
    assert!(!disk.read(LOG, 0, 1).expect("a disk").is_empty());
    assert!(world.machine(NodeIndex(1)).next > 0);
}
