//! The writes of machines on a simulated disk. Each write takes a while, and a crash tears or loses
//! writes that were not answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::durable::{Change, Durable, WRITES_MAX, Write, WriteId};
use evenfall_core::{Disk as _, Prng, StorageError, Timestamp};

use crate::SimDisk;

/// Carries out the writes of the machines of one host.
#[derive(Debug)]
pub struct SimWrites {
    disk: SimDisk,
    prng: Prng,
    delay_max: Duration,
    /// The writes under way and the times of their answers, oldest first.
    under_way: VecDeque<(Timestamp, Write)>,
    lens: BTreeMap<String, u64>,
    /// Logs whose end is unknown, because a write of the log failed.
    broken: BTreeSet<String>,
}

impl SimWrites {
    /// Writes on this disk. A write takes up to `delay_max`, and longer while the disk is slow.
    pub fn new(disk: SimDisk, seed: u64, delay_max: Duration) -> Self {
        let (under_way, lens) = (VecDeque::new(), BTreeMap::new());
        Self { disk, prng: Prng::new(seed), delay_max, under_way, lens, broken: BTreeSet::new() }
    }

    /// Answers the writes that are done by now, and takes the machine's new writes.
    pub fn drive(&mut self, now: Timestamp, machine: &mut (impl Durable + ?Sized)) {
        while let Some((id, done)) = self.answer(now) {
            machine.handle_written(now, id, done);
        }
        self.ask(now, machine);
    }

    /// The answer to the oldest write, when the write is done by now.
    pub fn answer(&mut self, now: Timestamp) -> Option<(WriteId, Result<(), StorageError>)> {
        self.under_way.front().filter(|(at, _)| *at <= now)?;
        let (_, write) = self.under_way.pop_front()?;
        Some(self.carry_out(&write))
    }

    /// Takes the machine's new writes.
    pub fn ask(&mut self, now: Timestamp, machine: &mut (impl Durable + ?Sized)) {
        while self.under_way.len() < WRITES_MAX {
            let Some(write) = machine.poll_write() else { return };
            let delay_max = self.delay_max + self.disk.faults().slow_by;
            let delay = self.prng.below(delay_max.as_nanos() as u64 + 1);
            let before = self.under_way.back().map_or(now, |(at, _)| *at);
            let at = (now + Duration::from_nanos(delay)).max(before);
            self.under_way.push_back((at, write));
        }
    }

    /// The disk under the writes.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The time of the next answer.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.under_way.front().map(|(at, _)| *at)
    }

    /// The bytes of a log; empty when the log is missing.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn read(&self, log: &str) -> Result<Bytes, StorageError> {
        self.disk.read(log, 0, usize::MAX)
    }

    /// Cuts the power. No write under way is answered, and some of these writes have begun.
    pub fn crash(&mut self) {
        let begun = self.prng.below(self.under_way.len() as u64 + 1) as usize;
        for (_, write) in self.under_way.drain(..).take(begun).collect::<Vec<_>>() {
            let _ = self.change(&write);
        }
        self.disk.crash();
        self.under_way.clear();
        self.lens.clear();
        self.broken.clear();
    }

    fn carry_out(&mut self, write: &Write) -> (WriteId, Result<(), StorageError>) {
        let done = self.change(write).and_then(|()| self.disk.sync(&write.log));
        match &done {
            Ok(()) if !matches!(write.change, Change::Append(_)) => {
                self.broken.remove(&write.log);
            }
            Ok(()) => {}
            Err(_) => {
                self.broken.insert(write.log.clone());
            }
        }
        (write.id, done)
    }

    fn change(&mut self, write: &Write) -> Result<(), StorageError> {
        write.check_name()?;
        let log = &write.log;
        let len = match self.lens.get(log) {
            Some(len) => *len,
            None => self.disk.read(log, 0, usize::MAX)?.len() as u64,
        };
        let end = match &write.change {
            Change::Append(_) if self.broken.contains(log) => {
                let what = "an earlier write of this log failed: truncate or replace it".to_owned();
                return Err(StorageError::Failed { name: log.clone(), what });
            }
            Change::Append(bytes) => {
                self.disk.write(log, len, bytes)?;
                len + bytes.len() as u64
            }
            Change::Truncate(keep) => self.disk.truncate(log, *keep)?,
            Change::Replace(bytes) => {
                self.disk.replace(log, bytes)?;
                bytes.len() as u64
            }
        };
        self.lens.insert(log.clone(), end);
        Ok(())
    }
}
