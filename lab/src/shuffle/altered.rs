//! A machine whose events and datagrams are altered on their way out: what a mutant is, so that
//! production code has no switches.

use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};
use evenfall_exchange_machine::wire::Kind;

/// Where the kind stands in a datagram.
const KIND_OFFSET: usize = 3;

/// What is altered.
pub(super) trait Alteration<E> {
    /// What the owner hears instead of this event; `again` is heard after it.
    fn alter(&mut self, event: E, again: &mut Option<E>) -> Option<E>;

    /// The kind of datagrams that do not leave.
    fn hides(&self) -> Option<Kind>;
}

/// The machine, altered.
pub(super) struct Altered<M: Machine, A> {
    pub(super) machine: M,
    alteration: A,
    again: Option<M::Event>,
}

impl<M: Machine, A> Altered<M, A> {
    pub(super) fn new(machine: M, alteration: A) -> Self {
        Self { machine, alteration, again: None }
    }
}

impl<M: Machine, A: Alteration<M::Event>> Machine for Altered<M, A> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.machine.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.machine.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<M::Event> {
        if let Some(event) = self.again.take() {
            return Some(event);
        }
        loop {
            let event = self.machine.poll_event()?;
            if let Some(event) = self.alteration.alter(event, &mut self.again) {
                return Some(event);
            }
        }
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.machine.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        loop {
            let transmit = self.machine.poll_transmit(now)?;
            let kind = transmit.head.as_slice().get(KIND_OFFSET).copied();
            let hides = self.alteration.hides().map(|kind| kind as u8);
            if hides.is_none() || hides != kind {
                return Some(transmit);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.machine.poll_timeout()
    }
}
