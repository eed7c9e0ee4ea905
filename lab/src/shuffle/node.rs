//! A node of a simulated shuffle: the exchange itself, or a rival.

use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};
use evenfall_exchange_machine::{Event, Exchange};

use super::plain::Plain;

/// What runs on a node.
#[derive(Debug)]
pub(super) enum Node {
    Exchange(Box<Exchange>),
    Plain(Box<Plain>),
}

/// Calls a method of whichever machine it is.
macro_rules! each {
    ($node:expr, $machine:ident => $call:expr) => {
        match $node {
            Node::Exchange($machine) => $call,
            Node::Plain($machine) => $call,
        }
    };
}

impl Node {
    /// Messages of which something is here, those that are complete, and bytes of all of them;
    /// `None` when the shuffle is over here.
    pub(super) fn progress(&self, operation: u64) -> Option<(usize, usize, u64)> {
        match self {
            Self::Exchange(exchange) => exchange.progress(operation),
            Self::Plain(plain) => Some(plain.progress()),
        }
    }

    /// Whether it grants to this rank's message, if that is not all here: the exchange does so
    /// to all.
    pub(super) fn works_on(&self, from: usize) -> bool {
        match self {
            Self::Exchange(_) => true,
            Self::Plain(plain) => plain.works_on(from),
        }
    }
}

impl Machine for Node {
    type Event = Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        each!(self, machine => machine.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        each!(self, machine => machine.handle_timeout(now));
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        each!(self, machine => machine.handle_clock(now, reading));
    }

    fn poll_event(&mut self) -> Option<Event> {
        each!(self, machine => machine.poll_event())
    }

    fn poll_install(&mut self) -> Option<Install> {
        each!(self, machine => machine.poll_install())
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        each!(self, machine => machine.poll_transmit(now))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        each!(self, machine => machine.poll_timeout())
    }
}
