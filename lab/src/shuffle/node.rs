//! A node of a simulated shuffle: the exchange itself, or a rival.

use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};
use evenfall_exchange_machine::{Event, Exchange};

use super::plain::Plain;

/// The machine of a node.
#[derive(Debug)]
pub(super) enum Node {
    Exchange(Box<Exchange>),
    Plain(Box<Plain>),
}

/// Calls a method of the machine of either kind.
macro_rules! each {
    ($node:expr, $machine:ident => $call:expr) => {
        match $node {
            Node::Exchange($machine) => $call,
            Node::Plain($machine) => $call,
        }
    };
}

impl Node {
    /// Messages with at least one byte here, complete messages, and bytes of all messages; `None`
    /// when the shuffle has ended at this node.
    pub(super) fn progress(&self, operation: u64) -> Option<(usize, usize, u64)> {
        match self {
            Self::Exchange(exchange) => exchange.progress(operation),
            Self::Plain(plain) => Some(plain.progress()),
        }
    }

    /// Whether this node grants packets of the incomplete message from `from`. The exchange grants
    /// to all messages at once.
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
