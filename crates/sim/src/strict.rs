//! The rule of the machine contract, asserted.
//!
//! The world follows the rule by construction, and [`Strict`] checks that it does. [`Strict`] wraps
//! any machine. [`Strict`] panics when the driver hands in an input before the last one was
//! drained, lets time go back, or pulls a transmit before it has drained events and installs.
//! [`Strict`] also panics when the machine emits events or installs without an input, because a
//! driver that sleeps until the next input would never see them.

use core::cell::Cell;

use evenfall_core::{
    Arrival, Clock, ClockReading, Durable, ForwardCounters, ForwardId, Install, Machine, Malformed,
    Sent, StorageError, Timestamp, Transmit, Write, WriteId,
};

/// A machine that panics when the rule is broken.
#[derive(Debug)]
pub struct Strict<M> {
    /// The machine itself.
    pub inner: M,
    now: Timestamp,
    drained: Cell<Drained>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drained {
    events: bool,
    installs: bool,
}

impl<M: Machine> Strict<M> {
    /// Wraps a machine. A new machine may have events or installs before its first input, so a
    /// driver may begin by draining or by an input.
    pub fn new(inner: M) -> Self {
        let drained = Cell::new(Drained { events: true, installs: true });
        Self { inner, now: Timestamp::ZERO, drained }
    }

    /// Calls a method of the machine that is an input in its own right, such as publishing.
    pub fn input<R>(&mut self, now: Timestamp, call: impl FnOnce(&mut M) -> R) -> R {
        self.time(now);
        let drained = self.drained.replace(Drained { events: false, installs: false });
        assert!(drained.events, "an input before events were drained");
        assert!(drained.installs, "an input before installs were applied");
        call(&mut self.inner)
    }

    /// Takes a transmit by one of the two methods for it.
    fn pull(
        &mut self,
        now: Timestamp,
        poll: impl FnOnce(&mut M, Timestamp) -> Option<Transmit>,
    ) -> Option<Transmit> {
        self.time(now);
        let Drained { events, installs } = self.drained.get();
        assert!(
            events && installs,
            "a transmit was pulled before events and installs were drained"
        );
        let transmit = poll(&mut self.inner, now);
        let quiet = self.inner.poll_event().is_none() && self.inner.poll_install().is_none();
        assert!(quiet, "sending made an event or an install, which only an input may");
        transmit
    }

    fn time(&mut self, now: Timestamp) {
        assert!(now >= self.now, "time went back from {:?} to {now:?}", self.now);
        self.now = now;
    }
}

impl<M: Machine> Machine for Strict<M> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        assert!(arrival.received <= now, "received {:?} after now {now:?}", arrival.received);
        self.input(now, |machine| machine.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.input(now, |machine| machine.handle_timeout(now));
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.input(now, |machine| machine.handle_clock(now, reading));
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.input(now, |machine| machine.handle_sent(now, sent));
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.input(now, |machine| machine.handle_counters(now, of, counters));
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        let event = self.inner.poll_event();
        self.drained.set(Drained { events: event.is_none(), ..self.drained.get() });
        event
    }

    fn poll_install(&mut self) -> Option<Install> {
        assert!(self.drained.get().events, "installs were asked for before events were drained");
        let install = self.inner.poll_install();
        self.drained.set(Drained { installs: install.is_none(), ..self.drained.get() });
        install
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.pull(now, M::poll_transmit)
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.pull(now, M::poll_urgent)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.inner.poll_timeout()
    }

    fn poll_lull(&self) -> Option<Timestamp> {
        self.inner.poll_lull()
    }

    fn clock(&self) -> Option<Clock> {
        self.inner.clock()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        self.inner.durable().is_some().then_some(self as &mut dyn Durable)
    }
}

impl<M: Machine> Durable for Strict<M> {
    fn poll_write(&mut self) -> Option<Write> {
        let Drained { events, installs } = self.drained.get();
        assert!(
            events && installs,
            "a write was asked for before events and installs were drained"
        );
        self.inner.durable()?.poll_write()
    }

    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        self.input(now, |machine| {
            let durable = machine.durable().expect("the machine asked for the write");
            durable.handle_written(now, id, done);
        });
    }
}
