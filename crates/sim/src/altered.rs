//! A machine whose inputs or outputs are altered. Mutants are made this way.
//!
//! A machine whose requests for repair are swallowed behaves as a machine that forgets to repair. A
//! mutant is therefore the real machine with an [`Alteration`] between the machine and the world,
//! and production code needs no switches. An alteration also stands for a stranger who changes
//! datagrams on the path.
//!
//! The machine itself stands under [`Strict`], which asserts the rule of the contract.

use std::collections::{BTreeSet, VecDeque};

use evenfall_core::durable::WRITES_MAX;
use evenfall_core::{
    Arrival, Clock, ClockReading, Durable, ForwardCounters, ForwardId, Install, Machine, Malformed,
    Sent, StorageError, Timestamp, Transmit, Write, WriteId,
};

use crate::strict::Strict;

/// The alteration. A method that is not implemented lets everything through unchanged.
pub trait Alteration<M: Machine> {
    /// The arrival that the machine gets instead of this arrival, if any.
    fn arrival(&mut self, machine: &M, now: Timestamp, arrival: Arrival) -> Option<Arrival> {
        let _ = (machine, now);
        Some(arrival)
    }

    /// The clock reading that the machine gets instead of this reading.
    fn reading(&self, machine: &M, reading: ClockReading) -> ClockReading {
        let _ = machine;
        reading
    }

    /// Whether this datagram leaves, perhaps altered.
    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        let _ = transmit;
        true
    }

    /// The request that the disk gets instead of this write.
    fn write(&mut self, write: Write) -> Asked {
        Asked::Write(write)
    }

    /// The answer to a write that the machine gets instead of this answer.
    fn written(
        &mut self,
        id: WriteId,
        done: Result<(), StorageError>,
    ) -> (WriteId, Result<(), StorageError>) {
        (id, done)
    }

    /// The events that the owner gets instead of this event.
    fn event(&mut self, event: M::Event, out: &mut VecDeque<M::Event>) {
        out.push_back(event);
    }
}

/// The fate of a write on its way to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The disk is asked for this write.
    Write(Write),
    /// The disk is asked for this write, and the machine is told at once that the write is done.
    /// The machine never gets the disk's own answer.
    Early(Write),
    /// The disk is not asked, and the machine is told at once that the write is done.
    Never(WriteId),
}

/// The machine, altered or as it is.
pub struct Altered<M: Machine, A> {
    strict: Strict<M>,
    alteration: Option<A>,
    /// Events of the machine that were altered and not yet heard.
    events: VecDeque<M::Event>,
    /// Installs and writes of the machine that were taken while events were drained: only a
    /// machine with an alteration has any.
    installs: VecDeque<Install>,
    writes: VecDeque<Write>,
    /// Writes whose machine was told before the disk had done them.
    told: BTreeSet<WriteId>,
    /// The time of the last input.
    now: Timestamp,
}

impl<M: Machine, A: Alteration<M>> Altered<M, A> {
    /// The machine with this alteration, or without any.
    pub fn new(machine: M, alteration: Option<A>) -> Self {
        Self {
            strict: Strict::new(machine),
            alteration,
            events: VecDeque::new(),
            installs: VecDeque::new(),
            writes: VecDeque::new(),
            told: BTreeSet::new(),
            now: Timestamp::ZERO,
        }
    }

    /// The machine itself.
    pub fn machine(&self) -> &M {
        &self.strict.inner
    }

    /// Calls a method of the machine that is an input in its own right, such as publishing.
    pub fn input<R>(&mut self, now: Timestamp, call: impl FnOnce(&mut M) -> R) -> R {
        self.now = now;
        self.strict.input(now, call)
    }

    /// Takes the writes that the machine asks for now, and alters them. Returns whether the machine
    /// got an answer to a write. An answer is an input, so the machine must be drained again.
    fn take_writes(&mut self) -> bool {
        let Some(alteration) = &mut self.alteration else { return false };
        if self.strict.durable().is_none() {
            return false;
        }
        while let Some(install) = self.strict.poll_install() {
            self.installs.push_back(install);
        }
        while self.writes.len() < WRITES_MAX {
            let Some(write) = self.strict.poll_write() else { return false };
            let id = match alteration.write(write) {
                Asked::Write(write) => {
                    self.writes.push_back(write);
                    continue;
                }
                Asked::Early(write) => {
                    let id = write.id;
                    self.told.insert(id);
                    self.writes.push_back(write);
                    id
                }
                Asked::Never(id) => id,
            };
            self.strict.handle_written(self.now, id, Ok(()));
            return true;
        }
        false
    }
}

impl<M: Machine, A: Alteration<M>> Machine for Altered<M, A> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.now = now;
        let arrival = match &mut self.alteration {
            Some(alteration) => alteration.arrival(&self.strict.inner, now, arrival),
            None => Some(arrival),
        };
        arrival.map_or(Ok(()), |arrival| self.strict.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.now = now;
        self.strict.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.now = now;
        let machine = &self.strict.inner;
        let reading = self.alteration.as_ref().map_or(reading, |a| a.reading(machine, reading));
        self.strict.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.now = now;
        self.strict.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.now = now;
        self.strict.handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<M::Event> {
        loop {
            let Some(alteration) = &mut self.alteration else { return self.strict.poll_event() };
            while let Some(event) = self.strict.poll_event() {
                alteration.event(event, &mut self.events);
            }
            if !self.take_writes() {
                return self.events.pop_front();
            }
        }
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front().or_else(|| self.strict.poll_install())
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        loop {
            let mut transmit = self.strict.poll_transmit(now)?;
            if self.alteration.as_mut().is_none_or(|alteration| alteration.sends(&mut transmit)) {
                return Some(transmit);
            }
        }
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        loop {
            let mut transmit = self.strict.poll_urgent(now)?;
            if self.alteration.as_mut().is_none_or(|alteration| alteration.sends(&mut transmit)) {
                return Some(transmit);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.strict.poll_timeout()
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        self.strict.poll_lull()
    }

    fn clock(&self) -> Option<Clock> {
        self.strict.clock()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        self.strict.durable().is_some().then_some(self as &mut dyn Durable)
    }
}

impl<M: Machine, A: Alteration<M>> Durable for Altered<M, A> {
    fn poll_write(&mut self) -> Option<Write> {
        match self.alteration {
            Some(_) => self.writes.pop_front(),
            None => self.strict.poll_write(),
        }
    }

    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        self.now = now;
        if self.told.remove(&id) {
            return;
        }
        let (id, done) = match &mut self.alteration {
            Some(alteration) => alteration.written(id, done),
            None => (id, done),
        };
        self.strict.handle_written(now, id, done);
    }
}
