//! One turn of one node: an input, its events and installs, and what it sends.
//!
//! ```text
//! idle  -- input --> turn --> idle            inputs while busy wait in the inbox; one pending
//!                     | busy until cursor     wake-up per node takes the next from it
//!                     v
//!   at    begun = at + cost of the input     cursor = begun + cost of each copy sent
//!   |------|-----------|----|----|----|-------|
//!        handle()      copies leave here
//! ```

use core::time::Duration;

use evenfall_core::{Arrival, Destination, Install, Machine, Sent, StampedBy, Timestamp, Transmit};

use super::departures::{Departures, hand_over};
use super::effects::EffectSink;
use super::fabric::{Pending, datagram};
use super::node::{Input, NEVER, Node};
use super::node_number;
use super::region::Region;
use crate::cloud::OVERHEAD_BYTES;
use crate::host::Host;
use crate::network::Loss;
use crate::observer::Seen;
use crate::{HostIndex, NodeIndex, SimTime};

/// Transmits pulled in one turn before the inbox is looked at again: one call of `sendmmsg`.
pub(super) const SEND_BATCH: u32 = 64;
/// Transmits pulled in one turn while arrivals wait: enough that what one arrival causes leaves
/// before the next is handed in, few enough that a long backlog does not starve the socket.
pub(super) const SEND_BATCH_BUSY: u32 = 8;
/// Turns without new input at one instant. A machine that still wants more is spinning: it asks
/// for a time that has passed, or never stops sending while nothing costs time.
const SPINS_MAX: u32 = 1_000;
/// How long counters of installed state are collected before they are told.
const COUNTERS_EVERY: Duration = Duration::from_millis(10);
/// Events or installs after one input, at most. No window or ring of a machine is larger.
const DRAIN_MAX: u32 = 1 << 20;

impl<M: Machine> Region<'_, M> {
    /// A datagram reaches the receiver's card, which takes in one datagram after the other.
    #[inline]
    pub(super) fn come_in<O: EffectSink<M>>(
        &mut self,
        at: u64,
        from: u32,
        to: u32,
        datagram: bytes::Bytes,
        out: &mut O,
    ) {
        let (_, host) = self.node(to);
        if out.host_of(from) == out.host_of(to) {
            // Two nodes of one host do not need the card.
            return self.arrive(at, from, to, datagram, out);
        }
        let bytes = datagram.len() as u64 + OVERHEAD_BYTES;
        match host.take_in(at, bytes) {
            Some(taken) if taken == at => self.arrive(at, from, to, datagram, out),
            Some(taken) => {
                let taken_in = Pending::TakenIn { from, to, datagram };
                out.push(taken, taken_in);
            }
            None => {
                out.tally().lose(Loss::Buffer);
                out.lost(at, from, to, Loss::Buffer);
            }
        }
    }

    /// A datagram reaches a socket.
    #[inline]
    pub(super) fn arrive<O: EffectSink<M>>(
        &mut self,
        at: u64,
        from: u32,
        to: u32,
        datagram: bytes::Bytes,
        out: &mut O,
    ) {
        out.tally().hops += 1;
        let (node, host) = self.node(to);
        let loss = if !node.up {
            Loss::Down
        } else if node.queued >= host.receive_queue {
            Loss::Socket
        } else {
            // A host that is taken away cannot stamp: packets wait in the card until it is back.
            let arrived = host.awake(at);
            let is_forwarded =
                node.forwarder.is_some() && self.forward(arrived, to, (from, &datagram), out);
            let input = Input::Datagram { from, datagram, arrived, is_forwarded };
            return self.offer(at, to, input, out);
        };
        out.tally().lose(loss);
        out.lost(at, from, to, loss);
    }

    /// Forwards a packet as the node has installed it, before the node's process sees the packet
    /// and at no cost to the process. True when the packet was forwarded.
    fn forward<O: EffectSink<M>>(
        &mut self,
        at: u64,
        index: u32,
        (from, datagram): (u32, &bytes::Bytes),
        out: &mut O,
    ) -> bool {
        let (node, host) = self.node(index);
        let local = host.clock.local(at);
        let Some((forwarder, groups)) = node.offload() else { return false };
        let from = super::address_of(from);
        let mut arrival = Arrival::new(from, datagram.clone(), local, StampedBy::Kernel);
        let mut sent: Option<(Transmit, &[u32])> = None;
        forwarder.offer(local, &mut arrival, |_, transmit| {
            let Destination::Group(group) = transmit.to else { return false };
            let members = Node::<M>::members(groups, group);
            sent = Some((transmit, members));
            !members.is_empty()
        });
        if let Some((transmit, members)) = sent {
            let (class, bytes) = (transmit.class, super::fabric::datagram(transmit));
            out.transmit(index, class, &bytes);
            for &to in members {
                out.copy(at, index, to, class, &bytes);
            }
        }
        if !core::mem::replace(&mut node.counts, true) {
            let (at, generation) = ((SimTime(at) + COUNTERS_EVERY).0, node.generation);
            let look = Pending::Counters { node: index, generation };
            out.push(at, look);
        }
        arrival.is_forwarded
    }

    /// Tells a machine what its installs did since the last time.
    pub(super) fn tell_counters<O: EffectSink<M>>(
        &mut self,
        at: u64,
        index: u32,
        generation: u32,
        out: &mut O,
    ) {
        let (node, _) = self.node(index);
        if node.generation != generation {
            return;
        }
        node.counts = false;
        let mut told = Vec::new();
        if let Some(forwarder) = &mut node.forwarder {
            forwarder.take_counters(|_, id, counters| told.push((id, counters)));
        }
        for (id, counters) in told {
            self.offer(at, index, Input::Counters(id, counters), out);
        }
    }

    /// Writes of a node are done: their disk keeps them from now on, and the machine is told as
    /// soon as the node is not busy.
    pub(super) fn tell_written<O: EffectSink<M>>(
        &mut self,
        at: u64,
        index: u32,
        generation: u32,
        out: &mut O,
    ) {
        let (node, _) = self.node(index);
        if node.generation != generation || node.written_at != at {
            return;
        }
        node.written_at = NEVER;
        let mut told = Vec::new();
        if let Some(writes) = &mut node.writes {
            while let Some(answer) = writes.answer(Timestamp::from_nanos(at)) {
                told.push(answer);
            }
            if let Some(next) = writes.poll_timeout() {
                node.written_at = next.nanos();
                let next = Pending::Written { node: index, generation };
                out.push(node.written_at, next);
            }
        }
        for (id, done) in told {
            self.offer(at, index, Input::Written(id, done), out);
        }
    }

    /// Hands an input to an idle node at once. A busy node finds the input in its inbox.
    #[inline]
    pub(super) fn offer<O: EffectSink<M>>(
        &mut self,
        at: u64,
        index: u32,
        input: Input,
        out: &mut O,
    ) {
        let (node, host) = self.node(index);
        let mut ready = host.ready(node.free().max(at));
        if matches!(input, Input::Datagram { .. }) {
            ready = ready.max(rest(node, host, at));
        }
        if node.inbox.is_empty() && ready == at {
            return self.turn(at, index, input, true, out);
        }
        match input {
            Input::Datagram { .. } => {
                node.queued += 1;
                let longest = &mut out.tally().longest_inbox;
                *longest = (*longest).max(node.queued);
            }
            Input::Clock => node.clock_waits = true,
            _ => {}
        }
        node.inbox.push_back(input);
        self.wake_at(index, ready, out);
    }

    /// Makes sure that a busy node is woken at `at` or earlier.
    pub(super) fn wake_at<O: EffectSink<M>>(&mut self, index: u32, at: u64, out: &mut O) {
        let (node, _) = self.node(index);
        if at < node.wake_at {
            node.wake_at = at;
            out.push(at, Pending::Wake { node: index });
        }
    }

    /// A wake-up came. The node takes its timeout when that is due, or else its oldest input. After
    /// a timeout an input has its turn first.
    pub(super) fn wake<O: EffectSink<M>>(&mut self, at: u64, index: u32, out: &mut O) {
        let (node, host) = self.node(index);
        if node.wake_at != at {
            return;
        }
        node.wake_at = NEVER;
        let ready = host.ready(node.free().max(at));
        if ready > at {
            return self.wake_at(index, ready, out);
        }
        let due = node.machine.poll_timeout().is_some_and(|due| due <= host.clock.local(at));
        let input = if due && (node.inbox.is_empty() || !node.timeout_last) {
            Input::Timeout
        } else {
            node.take_input().unwrap_or(Input::Nothing)
        };
        self.turn(at, index, input, false, out);
    }

    /// A timer came up. The machine may want a later time by now.
    pub(super) fn fire<O: EffectSink<M>>(&mut self, at: u64, index: u32, out: &mut O) {
        let (node, host) = self.node(index);
        let armed = node.armed.take();
        let Some(timeout) = node.machine.poll_timeout().filter(|_| node.up) else { return };
        if armed != Some(timeout) {
            node.fires = host.fires(index, timeout);
        }
        let ready = host.ready(node.fires.max(node.free()).max(at));
        if ready > at {
            node.armed = Some(timeout);
            return self.arm(index, ready);
        }
        self.turn(at, index, Input::Timeout, false, out);
    }

    /// Hands in one input and follows the contract to its end.
    pub(super) fn turn<O: EffectSink<M>>(
        &mut self,
        at: u64,
        index: u32,
        input: Input,
        was_idle: bool,
        out: &mut O,
    ) {
        let (node, host) = self.node(index);
        host.forget(at);
        let is_datagram = matches!(input, Input::Datagram { .. });
        // Only the first datagram after idle time pays for the wake-up: the process finds the
        // others when it looks again.
        let cost = match (is_datagram, was_idle) {
            (true, true) => host.costs.wake + host.costs.receive,
            (true, false) => host.costs.receive,
            (false, _) => 0,
        };
        let begun = host.work(at, cost);
        let local = host.clock.local(begun);
        node.timeout_last = false;
        out.note(begun, index);
        match input {
            Input::Datagram { from, datagram, arrived, is_forwarded } => {
                out.received(seen(node, index, begun, local), from, &datagram);
                let from = super::address_of(from);
                let received = host.clock.local(arrived);
                let stamped_by = StampedBy::Kernel;
                let arrival = Arrival { from, datagram, received, stamped_by, is_forwarded };
                if node.machine.handle(local, arrival).is_err() {
                    out.tally().malformed += 1;
                }
            }
            Input::Invoke(token) => {
                let seen = seen(node, index, begun, local);
                out.invoke(seen, token, &mut node.machine);
            }
            Input::Clock => {
                node.booted = true;
                node.reading = host.clock.reading(begun);
                if let Some(forwarder) = &mut node.forwarder {
                    forwarder.adopt_clock(node.reading);
                }
                node.machine.handle_clock(local, node.reading);
            }
            Input::Sent(sent) => node.machine.handle_sent(local, sent),
            Input::Counters(of, counters) => node.machine.handle_counters(local, of, counters),
            Input::Written(id, done) => {
                let durable = node.machine.durable().expect("the machine asked for the write");
                durable.handle_written(local, id, done);
            }
            Input::Timeout => {
                node.timeout_last = true;
                out.tally().timeouts += 1;
                node.machine.handle_timeout(local);
                assert_moves_on(node, index, begun);
            }
            Input::Nothing => assert_moves_on(node, index, begun),
        }
        self.settle(begun, index, out);
    }

    /// Does what follows an input that was handed in at `begun`: takes events, installs and
    /// transmits, and sets the timer.
    pub(super) fn settle<O: EffectSink<M>>(&mut self, begun: u64, index: u32, out: &mut O) {
        let (node, host) = self.node(index);
        let mut drained = 0;
        while let Some(event) = node.machine.poll_event() {
            out.tally().events += 1;
            out.event(seen(node, index, begun, host.clock.local(begun)), event);
            assert_ends::<M>(&mut drained, index, "events");
        }
        while let Some(install) = node.machine.poll_install() {
            match install {
                Install::Group(group, members) => {
                    let members = members.iter().map(|&member| node_number(member)).collect();
                    node.install(group, members);
                }
                Install::Forward(id, rules) => {
                    if let Some(forwarder) = &mut node.forwarder {
                        forwarder.install(0, id, rules.as_ref());
                    }
                }
                _ => {}
            }
            assert_ends::<M>(&mut drained, index, "installs");
        }
        if let Some(at) = node.ask_writes(index, begun) {
            let generation = node.generation;
            out.push(at, Pending::Written { node: index, generation });
        }
        if node.departures.is_some() {
            node.busy = hand_over(node, host, index, begun, out);
            if let Some(at) = node.departures.as_deref_mut().and_then(Departures::announce) {
                out.push(at, Pending::Leave { node: index });
            }
        } else {
            node.busy = pull(node, host, index, begun, out);
        }
        host.occupy(node.busy);
        let (mut arm, mut wake) = (None, None);
        if let Some(timeout) = node.machine.poll_timeout() {
            if node.armed != Some(timeout) {
                node.armed = Some(timeout);
                node.fires = host.fires(index, timeout);
                arm = Some(node.fires.max(node.busy));
            }
            // A node that is awake looks at its timer before it sleeps, and is not late.
            if node.fires > node.busy && host.clock.local(node.busy) >= timeout {
                node.fires = node.busy;
                arm = Some(node.busy);
            }
        }
        if !node.inbox.is_empty() {
            // A node that is awake takes all arrivals that it finds.
            wake = Some(node.busy);
        } else if node.more {
            wake = Some(node.busy.max(node.send_at));
        }
        if let Some(at) = arm {
            self.arm(index, at);
        }
        if let Some(at) = wake {
            self.wake_at(index, at, out);
        }
    }
}

/// The time until which a node leaves arrivals unread.
#[inline]
fn rest<M: Machine>(node: &Node<M>, host: &mut Host, at: u64) -> u64 {
    if host.moderation == 0 {
        return at;
    }
    let most = at.saturating_add(host.moderation);
    let lull = node.machine.poll_lull();
    lull.map_or(at, |lull| host.clock.true_time(lull).clamp(at, most))
}

/// Pulls transmits as fast as the host can send them. Returns the time at which that is done.
#[inline]
fn pull<M: Machine, O: EffectSink<M>>(
    node: &mut Node<M>,
    host: &mut Host,
    index: u32,
    begun: u64,
    out: &mut O,
) -> u64 {
    let here = HostIndex(node.host);
    let mut cursor = begun;
    node.more = false;
    let batch = if node.inbox.is_empty() { SEND_BATCH } else { SEND_BATCH_BUSY };
    for _ in 0..batch {
        // What the host cannot send yet stays in the machine, which alone may drop or reorder it.
        let ready = out.send_ready(here, cursor);
        if ready > cursor {
            node.send_at = ready;
            node.more = true;
            return cursor;
        }
        let (machine, groups) = node.parts();
        let Some(transmit) = machine.poll_transmit(host.clock.local(cursor)) else {
            return cursor;
        };
        cursor = host.work(cursor, host.costs.send);
        let (class, to, token) = (transmit.class, transmit.to, transmit.token);
        let bytes = datagram(transmit);
        out.transmit(index, class, &bytes);
        let copy = host.costs.copy;
        let mut left = None;
        match to {
            Destination::One(address) => {
                cursor = host.work(cursor, copy);
                left = Some(cursor);
                out.copy(cursor, index, node_number(address), class, &bytes);
            }
            Destination::Group(group) => {
                for &to in Node::<M>::members(groups, group) {
                    cursor = host.work(cursor, copy);
                    left = Some(cursor);
                    out.copy(cursor, index, to, class, &bytes);
                }
            }
        }
        // Through the inbox, as from the error queue of a socket: the machine hears of a departure
        // in a later input, never while it is asked for transmits.
        if let Some(token) = token {
            let at = left.map(|left| host.clock.local(left));
            let sent = Sent { token, at, stamped_by: StampedBy::Kernel };
            node.inbox.push_back(Input::Sent(sent));
        }
    }
    node.more = true;
    node.send_at = cursor;
    cursor
}

pub(super) fn seen<M: Machine>(node: &Node<M>, index: u32, at: u64, local: Timestamp) -> Seen {
    let sync = node.sync(local);
    let own = node.machine.clock().map_or(sync, |clock| clock.sync(local));
    Seen { node: NodeIndex(index), at: SimTime(at), local, sync, own }
}

/// # Panics
/// When a machine keeps asking for turns without letting time pass.
fn assert_moves_on<M>(node: &mut Node<M>, index: u32, at: u64) {
    if node.spins.0 == at {
        node.spins.1 += 1;
        let name = core::any::type_name::<M>();
        assert!(node.spins.1 <= SPINS_MAX, "{name} on node {index} spins at {}", SimTime(at));
    } else {
        node.spins = (at, 1);
    }
}

/// # Panics
/// When a machine does not stop emitting after one input.
#[inline]
fn assert_ends<M>(drained: &mut u32, index: u32, what: &str) {
    *drained += 1;
    let name = core::any::type_name::<M>();
    assert!(*drained < DRAIN_MAX, "{name} on node {index} emits {what} without end");
}
