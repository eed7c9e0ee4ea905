//! One test body over the simulated and the real disk: writes that a machine asks for without
//! waiting.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::durable::{Change, Durable, WRITES_MAX, Write, WriteId};
use evenfall_core::{StorageError, Timestamp};
use evenfall_host::writes::Writes;
use evenfall_sim::{DiskFaults, SimDisk, SimWrites};

/// A machine that asks for some writes, one after the other.
#[derive(Default)]
struct Journal {
    wanted: VecDeque<(&'static str, Change)>,
    asked: u64,
    under_way: usize,
    done: Vec<Result<(), StorageError>>,
}

impl Durable for Journal {
    fn poll_write(&mut self) -> Option<Write> {
        let (log, change) = self.wanted.pop_front()?;
        let id = WriteId(self.asked);
        self.asked += 1;
        self.under_way += 1;
        assert!(self.under_way <= WRITES_MAX);
        Some(Write { id, log: log.into(), change })
    }

    fn handle_written(&mut self, _: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        assert_eq!(id.0, self.done.len() as u64, "answered out of order");
        self.under_way -= 1;
        self.done.push(done);
    }
}

impl Journal {
    fn wants(&mut self, log: &'static str, change: Change) {
        self.wanted.push_back((log, change));
    }

    fn all_done(&self) -> bool {
        self.wanted.is_empty() && self.under_way == 0
    }
}

trait Disks {
    fn run(&mut self, journal: &mut Journal, until: &dyn Fn(&Journal) -> bool);
    /// Crashes the machine. Writes without an answer may be present or not.
    fn crash(&mut self);
    fn read(&self, log: &str) -> Bytes;
}

struct Simulated(SimWrites, Timestamp);

impl Simulated {
    fn with(seed: u64, faults: DiskFaults) -> (SimDisk, Self) {
        let disk = SimDisk::new(seed, faults);
        let writes = SimWrites::new(disk.clone(), seed, Duration::from_millis(3));
        (disk, Self(writes, Timestamp::from_nanos(1)))
    }
}

impl Disks for Simulated {
    fn run(&mut self, journal: &mut Journal, until: &dyn Fn(&Journal) -> bool) {
        self.0.drive(self.1, journal);
        while !until(journal) {
            self.1 = self.0.poll_timeout().expect("something under way");
            self.0.drive(self.1, journal);
        }
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn read(&self, log: &str) -> Bytes {
        self.0.read(log).expect("a disk")
    }
}

struct Real(tempfile::TempDir, Option<Writes>);

impl Real {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let writes = Writes::open(directory.path()).expect("a thread");
        Self(directory, Some(writes))
    }

    fn writes(&mut self) -> &mut Writes {
        self.1.get_or_insert_with(|| Writes::open(self.0.path()).expect("a thread"))
    }
}

impl Disks for Real {
    fn run(&mut self, journal: &mut Journal, until: &dyn Fn(&Journal) -> bool) {
        let writes = self.writes();
        writes.drive(Timestamp::from_nanos(1), journal);
        for _ in 0..10_000 {
            if until(journal) {
                return;
            }
            writes.wait(Duration::from_millis(100));
            writes.drive(Timestamp::from_nanos(1), journal);
        }
        panic!("never done");
    }

    fn crash(&mut self) {
        self.1 = None;
    }

    fn read(&self, log: &str) -> Bytes {
        std::fs::read(self.0.path().join(log)).unwrap_or_default().into()
    }
}

fn part(n: u8) -> Bytes {
    vec![n; 700 + usize::from(n)].into()
}

fn parts(numbers: std::ops::Range<u8>) -> Vec<u8> {
    numbers.flat_map(part).collect()
}

/// Answered writes are present in order after a crash. The machine asks for more writes than may be
/// under way.
fn appends_are_there_in_order_once_they_are_answered(disks: &mut dyn Disks) {
    let mut journal = Journal::default();
    (0..200).for_each(|n| journal.wants("log", Change::Append(part(n))));
    disks.run(&mut journal, &|journal| journal.done.len() >= 50);
    let answered = journal.done.len() as u8;
    assert!(journal.done.iter().all(Result::is_ok));
    disks.crash();
    let there = disks.read("log");
    assert!(there.starts_with(&parts(0..answered)), "{answered} were answered");
    // The next life cuts off torn bytes, and goes on.
    let mut journal = Journal::default();
    let keep = parts(0..answered);
    journal.wants("log", Change::Truncate(keep.len() as u64));
    (answered..201).for_each(|n| journal.wants("log", Change::Append(part(n))));
    disks.run(&mut journal, &Journal::all_done);
    disks.crash();
    assert!(disks.read("log") == parts(0..201));
}

fn a_replaced_log_is_the_old_or_the_new_one(disks: &mut dyn Disks) {
    let mut journal = Journal::default();
    journal.wants("snapshot", Change::Replace(part(1)));
    disks.run(&mut journal, &Journal::all_done);
    journal.wants("snapshot", Change::Replace(part(2)));
    disks.run(&mut journal, &|_| true);
    disks.crash();
    let there = disks.read("snapshot");
    assert!(there == part(1) || there == part(2));
    let mut journal = Journal::default();
    journal.wants("snapshot", Change::Replace(part(3)));
    journal.wants("snapshot", Change::Append(part(4)));
    disks.run(&mut journal, &Journal::all_done);
    disks.crash();
    assert!(disks.read("snapshot") == parts(3..5));
}

fn a_name_that_leaves_the_directory_is_refused(disks: &mut dyn Disks) {
    let mut journal = Journal::default();
    for log in ["../log", "", "a/b", ".new"] {
        journal.wants(log, Change::Append(part(1)));
    }
    disks.run(&mut journal, &Journal::all_done);
    assert!(journal.done.iter().all(Result::is_err));
}

macro_rules! over_both_disks {
    ($($name:ident),* $(,)?) => {
        mod simulated {
            use super::{DiskFaults, Simulated};
            $(#[test] fn $name() {
                for seed in 0..50 {
                    let (_, mut disks) = Simulated::with(seed, DiskFaults::default());
                    super::$name(&mut disks);
                }
            })*
        }
        mod real {
            $(#[test] fn $name() { super::$name(&mut super::Real::new()); })*
        }
    };
}

over_both_disks!(
    appends_are_there_in_order_once_they_are_answered,
    a_replaced_log_is_the_old_or_the_new_one,
    a_name_that_leaves_the_directory_is_refused,
);

#[test]
fn a_slow_disk_answers_later_and_keeps_what_it_answered() {
    let took = |slow_by| {
        let (_, mut disks) = Simulated::with(7, DiskFaults { slow_by, ..DiskFaults::default() });
        let mut journal = Journal::default();
        journal.wants("log", Change::Append(part(1)));
        disks.run(&mut journal, &Journal::all_done);
        disks.crash();
        assert!(disks.read("log") == part(1));
        disks.1
    };
    let (quick, slow) = (took(Duration::ZERO), took(Duration::from_secs(10)));
    assert!(quick < Timestamp::from_nanos(4_000_000), "{quick:?}");
    assert!(slow > Timestamp::from_nanos(100_000_000), "{slow:?}");
}

#[test]
fn behind_a_write_that_failed_nothing_is_appended_until_the_log_is_cut() {
    let broken = DiskFaults { sync_fails: 1.0, ..DiskFaults::default() };
    let (disk, mut disks) = Simulated::with(7, broken);
    let mut journal = Journal::default();
    journal.wants("log", Change::Append(part(1)));
    disks.run(&mut journal, &Journal::all_done);
    disk.set_faults(DiskFaults::default());
    journal.wants("log", Change::Append(part(2)));
    journal.wants("log", Change::Truncate(0));
    journal.wants("log", Change::Append(part(3)));
    disks.run(&mut journal, &Journal::all_done);
    let outcomes: Vec<bool> = journal.done.iter().map(Result::is_ok).collect();
    assert_eq!(outcomes, [false, false, true, true]);
    disks.crash();
    assert!(disks.read("log") == part(3));
}
