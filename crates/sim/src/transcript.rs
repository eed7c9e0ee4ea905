//! A run as a text that people read, and that tests keep as a golden file.
//!
//! One line per thing that happens, with the true time in microseconds:
//!
//! ```text
//!       0.000  n0 > n1   4 B live, arrives 50.000
//!      50.000  n1 < n0   4 B
//!      50.000  n1 event  Pong(1)
//! ```

use core::fmt::{Debug, Write};

use evenfall_core::{Machine, Timestamp, TrafficClass};

use crate::faults::Fault;
use crate::network::{Loss, Network, Packet, Verdict};
use crate::observer::{Observer, Seen};
use crate::world::World;
use crate::{NodeIndex, SimTime};

/// Writes down the events that another observer sees. A transcript is meant for small runs, because
/// each packet takes a line.
#[derive(Debug, Default)]
pub struct Transcript<O> {
    /// The other observer.
    pub inner: O,
    /// The text so far.
    pub text: String,
    silent: bool,
}

impl<O> Transcript<O> {
    /// Watches together with `inner`.
    pub fn new(inner: O) -> Self {
        Self::told(inner, true)
    }

    /// Watches together with `inner`, and writes only when `story` is set. Campaigns run many seeds
    /// without a text and a few with one.
    pub fn told(inner: O, story: bool) -> Self {
        Self { inner, text: String::new(), silent: !story }
    }

    fn line(&mut self, at: SimTime, what: core::fmt::Arguments<'_>) {
        if self.silent {
            return;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:>12}  {what}", micros(at));
    }
}

fn micros(at: SimTime) -> String {
    format!("{}.{:03}", at.nanos() / 1_000, at.nanos() % 1_000)
}

fn class(class: TrafficClass) -> &'static str {
    match class {
        TrafficClass::Control => "control",
        TrafficClass::Live => "live",
        TrafficClass::Repair => "repair",
        TrafficClass::Bulk => "bulk",
    }
}

impl<M: Machine, N: Network, O: Observer<M, N>> Observer<M, N> for Transcript<O>
where
    M::Event: Debug,
{
    fn event(&mut self, seen: Seen, event: M::Event) {
        self.line(seen.at, format_args!("{} event  {event:?}", seen.node));
        self.inner.event(seen, event);
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut M) {
        self.line(seen.at, format_args!("{} call   {token}", seen.node));
        self.inner.invoke(seen, token, machine);
    }

    fn token(&mut self, world: &mut World<M, N>, token: u64) {
        self.line(world.now(), format_args!("token {token}"));
        self.inner.token(world, token);
    }

    fn sent(&mut self, packet: &Packet, datagram: &[u8], verdict: Verdict) {
        if self.silent {
            return self.inner.sent(packet, datagram, verdict);
        }
        let fate = match verdict {
            Verdict::Deliver(at) => format!("arrives {}", micros(at)),
            Verdict::Twice(a, b) => format!("arrives {} and {}", micros(a), micros(b)),
            Verdict::Lose(loss) => format!("lost: {loss:?}"),
            Verdict::Hold(ticket) => format!("held {}", ticket.0),
        };
        let Packet { at, from, to, bytes, class: c, .. } = *packet;
        self.line(at, format_args!("{from} > {to}   {bytes} B {}, {fate}", class(c)));
        self.inner.sent(packet, datagram, verdict);
    }

    fn received(&mut self, seen: Seen, from: NodeIndex, datagram: &[u8]) {
        self.line(seen.at, format_args!("{} < {from}   {} B", seen.node, datagram.len()));
        self.inner.received(seen, from, datagram);
    }

    fn lost(&mut self, at: SimTime, from: NodeIndex, to: NodeIndex, loss: Loss) {
        self.line(at, format_args!("{from} > {to}   lost: {loss:?}"));
        self.inner.lost(at, from, to, loss);
    }

    fn fault(&mut self, at: SimTime, fault: &Fault) {
        self.line(at, format_args!("fault  {fault:?}"));
        self.inner.fault(at, fault);
    }

    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<M> {
        self.inner.revive(node, now)
    }
}
