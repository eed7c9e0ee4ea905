//! A replica whose writes go to the driver's disk, or are answered at once.

use evenfall_consensus_machine::{Canopus, Event};
use evenfall_core::{
    Arrival, ClockReading, Durable, Install, Machine, Malformed, Timestamp, Transmit,
};

/// See the module documentation.
#[derive(Debug)]
pub struct Logged {
    /// The replica.
    pub machine: Canopus,
    /// Whether writes are answered at once, so that a crash would forget them.
    pub in_memory: bool,
}

impl Logged {
    /// Answers the writes that the last input caused. An input from outside the contract, such as a
    /// request, is followed by this call.
    pub fn settle(&mut self, now: Timestamp) {
        while self.in_memory
            && let Some(write) = self.machine.poll_write()
        {
            self.machine.handle_written(now, write.id, Ok(()));
        }
    }
}

impl Machine for Logged {
    type Event = Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let done = self.machine.handle(now, arrival);
        self.settle(now);
        done
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
        self.settle(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.machine.handle_clock(now, reading);
        self.settle(now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.machine.poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.machine.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.machine.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.machine.poll_timeout()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        if self.in_memory { None } else { self.machine.durable() }
    }
}
