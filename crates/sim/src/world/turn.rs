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

use super::fabric::{Fabric, Pending, datagram};
use super::node::{Input, NEVER, Node};
use super::{World, node_number};
use crate::cloud::OVERHEAD_BYTES;
use crate::host::Host;
use crate::network::{Loss, Network};
use crate::observer::{Observer, Seen};
use crate::{HostIndex, NodeIndex, SimTime};

/// Transmits pulled in one turn before the inbox is looked at again: one call of `sendmmsg`.
const SEND_BATCH: u32 = 64;
/// Transmits pulled in one turn while arrivals wait: enough that what one arrival causes leaves
/// before the next is handed in, few enough that a long backlog does not starve the socket.
const SEND_BATCH_BUSY: u32 = 8;
/// Turns without new input at one instant. A machine that still wants more is spinning: it asks
/// for a time that has passed, or never stops sending while nothing costs time.
const SPINS_MAX: u32 = 1_000;
/// How long counters of installed state are collected before they are told.
const COUNTERS_EVERY: Duration = Duration::from_millis(10);
/// Events or installs after one input. No window or ring of ours is larger.
const DRAIN_MAX: u32 = 1 << 20;

impl<M: Machine, N: Network> World<M, N> {
    /// A datagram reaches a card, which takes one after the other.
    #[inline]
    pub(super) fn come_in<O: Observer<M, N>>(
        &mut self,
        at: u64,
        from: u32,
        to: u32,
        datagram: bytes::Bytes,
        observer: &mut O,
    ) {
        let node = &self.nodes[to as usize];
        if self.nodes[from as usize].host == node.host {
            // Two nodes of one host do not need the card.
            return self.arrive(at, from, to, datagram, observer);
        }
        let bytes = datagram.len() as u64 + OVERHEAD_BYTES;
        match self.hosts[node.host as usize].take_in(at, bytes) {
            Some(taken) if taken == at => self.arrive(at, from, to, datagram, observer),
            Some(taken) => {
                let taken_in = super::fabric::Pending::TakenIn { from, to, datagram };
                self.fabric.queue.push(taken, taken_in);
            }
            None => {
                self.fabric.tally.lose(Loss::Buffer);
                observer.lost(SimTime(at), NodeIndex(from), NodeIndex(to), Loss::Buffer);
            }
        }
    }

    /// A datagram reaches a socket.
    #[inline]
    pub(super) fn arrive<O: Observer<M, N>>(
        &mut self,
        at: u64,
        from: u32,
        to: u32,
        datagram: bytes::Bytes,
        observer: &mut O,
    ) {
        self.fabric.tally.hops += 1;
        let node = &mut self.nodes[to as usize];
        let host = &mut self.hosts[node.host as usize];
        let loss = if !node.up {
            Loss::Down
        } else if node.queued >= host.spec.receive_queue {
            Loss::Socket
        } else {
            // A host that is taken away cannot stamp: packets wait in the card until it is back.
            let arrived = host.awake(at);
            let is_forwarded =
                node.forwarder.is_some() && self.forward(arrived, to, (from, &datagram), observer);
            let input = Input::Datagram { from, datagram, arrived, is_forwarded };
            return self.offer(at, to, input, observer);
        };
        self.fabric.tally.lose(loss);
        observer.lost(SimTime(at), NodeIndex(from), NodeIndex(to), loss);
    }

    /// What a kernel or a card does with a packet by the node's installs, ahead of its process and
    /// at no cost to it. Whether the packet was sent on.
    fn forward<O: Observer<M, N>>(
        &mut self,
        at: u64,
        index: u32,
        (from, datagram): (u32, &bytes::Bytes),
        observer: &mut O,
    ) -> bool {
        let node = &mut self.nodes[index as usize];
        let local = self.hosts[node.host as usize].clock.local(at);
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
            self.fabric.tally.note_bytes(&bytes);
            for &to in members {
                self.fabric.send(at, (index, to), class, bytes.clone(), observer);
            }
        }
        if !core::mem::replace(&mut node.counts, true) {
            let (at, generation) = ((SimTime(at) + COUNTERS_EVERY).0, node.generation);
            let look = Pending::Counters { node: index, generation };
            self.fabric.queue.push(at, look);
        }
        arrival.is_forwarded
    }

    /// Tells a machine what its installs did since the last time.
    pub(super) fn tell_counters<O: Observer<M, N>>(
        &mut self,
        at: u64,
        index: u32,
        generation: u32,
        observer: &mut O,
    ) {
        let node = &mut self.nodes[index as usize];
        if node.generation != generation {
            return;
        }
        node.counts = false;
        let mut told = Vec::new();
        if let Some(forwarder) = &mut node.forwarder {
            forwarder.take_counters(|_, id, counters| told.push((id, counters)));
        }
        for (id, counters) in told {
            self.offer(at, index, Input::Counters(id, counters), observer);
        }
    }

    /// Writes of a node are done: their disk keeps them from now on, and the machine is told as
    /// soon as the node is not busy.
    pub(super) fn tell_written<O: Observer<M, N>>(
        &mut self,
        at: u64,
        index: u32,
        generation: u32,
        observer: &mut O,
    ) {
        let node = &mut self.nodes[index as usize];
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
                self.fabric.queue.push(node.written_at, next);
            }
        }
        for (id, done) in told {
            self.offer(at, index, Input::Written(id, done), observer);
        }
    }

    /// Gives an idle node its input now, a busy one later.
    #[inline]
    pub(super) fn offer<O: Observer<M, N>>(
        &mut self,
        at: u64,
        index: u32,
        input: Input,
        observer: &mut O,
    ) {
        let node = &mut self.nodes[index as usize];
        let host = &mut self.hosts[node.host as usize];
        let mut ready = host.ready(node.busy.max(at));
        if matches!(input, Input::Datagram { .. }) {
            ready = ready.max(rest(node, host, at));
        }
        if node.inbox.is_empty() && ready == at {
            return self.turn(at, index, input, true, observer);
        }
        match input {
            Input::Datagram { .. } => {
                node.queued += 1;
                self.fabric.tally.longest_inbox = self.fabric.tally.longest_inbox.max(node.queued);
            }
            Input::Clock => node.clock_waits = true,
            _ => {}
        }
        node.inbox.push_back(input);
        self.wake_at(index, ready);
    }

    /// Makes sure that a busy node comes up at `at` or before.
    pub(super) fn wake_at(&mut self, index: u32, at: u64) {
        let node = &mut self.nodes[index as usize];
        if at < node.wake_at {
            node.wake_at = at;
            self.fabric.queue.push(at, Pending::Wake { node: index });
        }
    }

    /// A wake-up came: the node takes what is most pressing.
    pub(super) fn wake<O: Observer<M, N>>(&mut self, at: u64, index: u32, observer: &mut O) {
        let node = &mut self.nodes[index as usize];
        if node.wake_at != at {
            return;
        }
        node.wake_at = NEVER;
        let host = &mut self.hosts[node.host as usize];
        let ready = host.ready(node.busy.max(at));
        if ready > at {
            return self.wake_at(index, ready);
        }
        let due = node.machine.poll_timeout().is_some_and(|due| due <= host.clock.local(at));
        let input = if due && (node.inbox.is_empty() || !node.timeout_last) {
            Input::Timeout
        } else {
            node.take_input().unwrap_or(Input::Nothing)
        };
        self.turn(at, index, input, false, observer);
    }

    /// A timer came up, perhaps earlier than the machine wants by now.
    pub(super) fn fire<O: Observer<M, N>>(&mut self, at: u64, index: u32, observer: &mut O) {
        let node = &mut self.nodes[index as usize];
        let armed = node.armed.take();
        let Some(timeout) = node.machine.poll_timeout().filter(|_| node.up) else { return };
        let host = &mut self.hosts[node.host as usize];
        if armed != Some(timeout) {
            node.fires = host.fires(index, timeout);
        }
        let ready = host.ready(node.fires.max(node.busy).max(at));
        if ready > at {
            node.armed = Some(timeout);
            return self.timers.arm(index, ready);
        }
        self.turn(at, index, Input::Timeout, false, observer);
    }

    /// Hands in one input and follows the contract to its end.
    pub(super) fn turn<O: Observer<M, N>>(
        &mut self,
        at: u64,
        index: u32,
        input: Input,
        was_idle: bool,
        observer: &mut O,
    ) {
        let node = &mut self.nodes[index as usize];
        let host = &mut self.hosts[node.host as usize];
        host.forget(at);
        let is_datagram = matches!(input, Input::Datagram { .. });
        let cost = match (is_datagram, was_idle) {
            (true, true) => host.costs.wake + host.costs.receive,
            (true, false) => host.costs.receive,
            (false, _) => 0,
        };
        let begun = host.work(at, cost);
        let local = host.clock.local(begun);
        let seen = seen(node, index, begun, local);
        node.timeout_last = false;
        self.fabric.tally.note(begun, index);
        match input {
            Input::Datagram { from, datagram, arrived, is_forwarded } => {
                observer.received(seen, NodeIndex(from), &datagram);
                let from = super::address_of(from);
                let received = host.clock.local(arrived);
                let stamped_by = StampedBy::Kernel;
                let arrival = Arrival { from, datagram, received, stamped_by, is_forwarded };
                if node.machine.handle(local, arrival).is_err() {
                    self.fabric.tally.malformed += 1;
                }
            }
            Input::Invoke(token) => observer.invoke(seen, token, &mut node.machine),
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
                self.fabric.tally.timeouts += 1;
                node.machine.handle_timeout(local);
                assert_moves_on(node, index, begun);
            }
            Input::Nothing => assert_moves_on(node, index, begun),
        }
        self.settle(begun, index, observer);
    }

    /// After an input at `begun`: events, installs, transmits, the next timeout.
    pub(super) fn settle<O: Observer<M, N>>(&mut self, begun: u64, index: u32, observer: &mut O) {
        let node = &mut self.nodes[index as usize];
        let host = &mut self.hosts[node.host as usize];
        let seen = seen(node, index, begun, host.clock.local(begun));
        let mut drained = 0;
        while let Some(event) = node.machine.poll_event() {
            self.fabric.tally.events += 1;
            observer.event(seen, event);
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
            self.fabric.queue.push(at, Pending::Written { node: index, generation });
        }
        node.busy = pull(node, host, &mut self.fabric, index, begun, observer);
        host.occupy(node.busy);
        if let Some(timeout) = node.machine.poll_timeout() {
            if node.armed != Some(timeout) {
                node.armed = Some(timeout);
                node.fires = host.fires(index, timeout);
                self.timers.arm(index, node.fires.max(node.busy));
            }
            // A node that is awake looks at its timer before it sleeps, and is not late.
            if node.fires > node.busy && host.clock.local(node.busy) >= timeout {
                node.fires = node.busy;
                self.timers.arm(index, node.busy);
            }
        }
        if !node.inbox.is_empty() {
            let only_datagrams = node.queued as usize == node.inbox.len();
            let at = if only_datagrams { rest(node, host, node.busy) } else { node.busy };
            self.wake_at(index, at);
        } else if node.more {
            let at = node.busy.max(node.send_at);
            self.wake_at(index, at);
        }
    }
}

/// Until when a node leaves what has arrived unread.
#[inline]
fn rest<M: Machine>(node: &Node<M>, host: &mut Host, at: u64) -> u64 {
    if host.spec.moderation.is_zero() {
        return at;
    }
    let most = at.saturating_add(evenfall_core::time::nanos(host.spec.moderation));
    let lull = node.machine.poll_lull();
    lull.map_or(at, |lull| host.clock.true_time(lull).clamp(at, most))
}

/// Pulls transmits as fast as the host can send them; returns when it is done.
#[inline]
fn pull<M: Machine, N: Network, O: Observer<M, N>>(
    node: &mut Node<M>,
    host: &mut Host,
    fabric: &mut Fabric<N>,
    index: u32,
    begun: u64,
    observer: &mut O,
) -> u64 {
    let here = HostIndex(node.host);
    let mut cursor = begun;
    node.more = false;
    let batch = if node.inbox.is_empty() { SEND_BATCH } else { SEND_BATCH_BUSY };
    for _ in 0..batch {
        let ready = fabric.network.send_ready(here, SimTime(cursor)).0;
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
        fabric.tally.note_bytes(&bytes);
        let copy = host.costs.copy;
        let mut left = None;
        match to {
            Destination::One(address) => {
                cursor = host.work(cursor, copy);
                left = Some(cursor);
                fabric.send(cursor, (index, node_number(address)), class, bytes, observer);
            }
            Destination::Group(group) => {
                for &to in Node::<M>::members(groups, group) {
                    cursor = host.work(cursor, copy);
                    left = Some(cursor);
                    fabric.send(cursor, (index, to), class, bytes.clone(), observer);
                }
            }
        }
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
    Seen { node: NodeIndex(index), at: SimTime(at), local, sync: node.sync(local) }
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
