//! A machine of which something is altered on the way in or out: what mutants are made of.
//!
//! Swallowing requests for repair *is* a machine that forgets to repair. So a mutant is the real
//! machine with an [`Alteration`] between the machine and the world, and production code needs no
//! switches. The same place serves for what a stranger on the path does to datagrams.
//!
//! The machine itself stands under [`Strict`], which asserts the rule of the contract.

use std::collections::VecDeque;

use evenfall_core::{
    Arrival, ClockReading, ForwardCounters, ForwardId, Install, Machine, Malformed, Sent,
    Timestamp, Transmit,
};

use crate::strict::Strict;

/// What is altered. Every method lets everything through unless it is written.
pub trait Alteration<M: Machine> {
    /// What the machine gets instead of this arrival, if anything.
    fn arrival(&mut self, machine: &M, now: Timestamp, arrival: Arrival) -> Option<Arrival> {
        let _ = (machine, now);
        Some(arrival)
    }

    /// The clock reading that the machine gets instead of this one.
    fn reading(&self, machine: &M, reading: ClockReading) -> ClockReading {
        let _ = machine;
        reading
    }

    /// Whether this datagram leaves, perhaps altered.
    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        let _ = transmit;
        true
    }

    /// What the owner hears instead of this event.
    fn event(&mut self, event: M::Event, out: &mut VecDeque<M::Event>) {
        out.push_back(event);
    }
}

/// The machine, altered or as it is.
pub struct Altered<M: Machine, A> {
    strict: Strict<M>,
    alteration: Option<A>,
    /// Events of the machine that were altered and not yet heard.
    events: VecDeque<M::Event>,
}

impl<M: Machine, A: Alteration<M>> Altered<M, A> {
    /// The machine with this alteration, or without any.
    pub fn new(machine: M, alteration: Option<A>) -> Self {
        Self { strict: Strict::new(machine), alteration, events: VecDeque::new() }
    }

    /// The machine itself.
    pub fn machine(&self) -> &M {
        &self.strict.inner
    }

    /// Calls a method of the machine that is an input in its own right, such as publishing.
    pub fn input<R>(&mut self, now: Timestamp, call: impl FnOnce(&mut M) -> R) -> R {
        self.strict.input(now, call)
    }
}

impl<M: Machine, A: Alteration<M>> Machine for Altered<M, A> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let arrival = match &mut self.alteration {
            Some(alteration) => alteration.arrival(&self.strict.inner, now, arrival),
            None => Some(arrival),
        };
        arrival.map_or(Ok(()), |arrival| self.strict.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.strict.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        let machine = &self.strict.inner;
        let reading = self.alteration.as_ref().map_or(reading, |a| a.reading(machine, reading));
        self.strict.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.strict.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.strict.handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<M::Event> {
        let Some(alteration) = &mut self.alteration else { return self.strict.poll_event() };
        while let Some(event) = self.strict.poll_event() {
            alteration.event(event, &mut self.events);
        }
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.strict.poll_install()
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
}
