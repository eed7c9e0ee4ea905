//! A region: some hosts with all of their nodes, and what happens to them.
//!
//! Whatever happens to a node changes that node, its host and their timers, and has further effects
//! through an [`EffectSink`] only. A world on one core is a single region. Several cores work on a
//! region each: see [`super::cores`].

use evenfall_core::Machine;
use evenfall_core::time::nanos;

use super::effects::EffectSink;
use super::fabric::Pending;
use super::node::{Input, Node};
use super::prefetch::Prefetch;
use crate::HostIndex;
use crate::host::Host;
use crate::timers::Timers;

/// Nodes and hosts whose numbers follow each other.
pub(super) struct Region<'a, M> {
    pub(super) nodes: &'a mut [Node<M>],
    pub(super) hosts: &'a mut [Host],
    /// Timers of the nodes, the first node having the number 0.
    pub(super) timers: &'a mut Timers,
    /// Numbers of the first node and of the first host.
    pub(super) first: (u32, u32),
    pub(super) prefetch: Prefetch<M>,
}

impl<M: Machine> Region<'_, M> {
    /// A node and its host.
    #[inline]
    pub(super) fn node(&mut self, index: u32) -> (&mut Node<M>, &mut Host) {
        let node = &mut self.nodes[(index - self.first.0) as usize];
        let host = &mut self.hosts[(node.host - self.first.1) as usize];
        (node, host)
    }

    /// Reads words of these nodes, their hosts and machines, and of the cards by `card`. The memory
    /// then delivers many of them at a time, where turns one after the other would wait for each.
    #[inline]
    pub(super) fn warm(
        &self,
        nodes: impl Iterator<Item = u32> + Clone,
        card: impl Fn(HostIndex) -> u64,
    ) {
        let nodes = nodes.filter_map(|index| self.nodes.get((index - self.first.0) as usize));
        // Each pass has the addresses that the pass before it has read.
        for node in nodes.clone() {
            core::hint::black_box(node.touch());
        }
        for node in nodes.clone() {
            let host = &self.hosts[(node.host - self.first.1) as usize];
            core::hint::black_box((host.touch(), card(HostIndex(node.host))));
            core::hint::black_box((self.prefetch.near)(&node.machine));
        }
        for node in nodes {
            core::hint::black_box((self.prefetch.far)(&node.machine));
        }
    }

    /// Prefetches the nodes and datagrams of these events.
    #[inline]
    pub(super) fn warm_for<'p>(
        &self,
        coming: impl Iterator<Item = &'p Pending> + Clone,
        card: impl Fn(HostIndex) -> u64,
    ) {
        // The events come first, because they name the nodes and the datagrams.
        for pending in coming.clone() {
            core::hint::black_box(pending.node());
        }
        for pending in coming.clone() {
            core::hint::black_box(pending.touch());
        }
        self.warm(coming.filter_map(Pending::node), card);
    }

    /// Takes out the timer that comes up first. When none of the few next timers is left, this
    /// method picks the next few up to the time `until`, and reads their nodes from memory.
    #[inline]
    pub(super) fn pop_timer<O: EffectSink<M>>(
        &mut self,
        until: u64,
        out: &O,
    ) -> Option<(u64, u32)> {
        if self.timers.begin(until.saturating_add(1)) {
            let first = self.first.0;
            let coming = self.timers.begun().map(|own| first + own);
            self.warm(coming, |host| out.send_ready(host, 0));
        }
        let (at, own) = self.timers.pop()?;
        Some((at, self.first.0 + own))
    }

    /// Makes sure that a node's timer comes up at `at` or before.
    #[inline]
    pub(super) fn arm(&mut self, index: u32, at: u64) {
        self.timers.arm(index - self.first.0, at);
    }

    /// Carries out an event that waited in the queue for a node.
    #[inline]
    pub(super) fn take<O: EffectSink<M>>(&mut self, at: u64, pending: Pending, out: &mut O) {
        match pending {
            Pending::Packet { from, to, datagram } => self.come_in(at, from, to, datagram, out),
            Pending::TakenIn { from, to, datagram } => self.arrive(at, from, to, datagram, out),
            Pending::Wake { node } => self.wake(at, node, out),
            Pending::Leave { node } => self.leave(at, node, out),
            Pending::Clock { node, generation } => self.tick(at, node, generation, out),
            Pending::Counters { node, generation } => {
                self.tell_counters(at, node, generation, out);
            }
            Pending::Written { node, generation } => self.tell_written(at, node, generation, out),
            Pending::Invoke { node, token } => {
                let (called, _) = self.node(node);
                called.called = true;
                if called.up {
                    self.offer(at, node, Input::Invoke(token), out);
                } else {
                    out.tally().invokes_missed += 1;
                }
            }
            Pending::Network { .. } | Pending::Action(_) => {
                unreachable!("what concerns the whole world is not given to a region")
            }
        }
    }

    /// A clock source is read, and will be again.
    fn tick<O: EffectSink<M>>(&mut self, at: u64, index: u32, generation: u32, out: &mut O) {
        let (node, host) = self.node(index);
        if !node.up || node.generation != generation {
            return;
        }
        let period = host.clock.period();
        if !period.is_zero() {
            // Each host has its own phase, or all clocks of a world would be read at once.
            let is_first = !node.booted || node.booted_early;
            let after = if is_first { host.clock.phase() } else { nanos(period) };
            let next = at.saturating_add(after.max(1));
            out.push(next, Pending::Clock { node: index, generation });
        }
        self.follow_temperature(at, index);
        if !core::mem::take(&mut self.node(index).0.booted_early) {
            self.read_clock(at, index, out);
        }
    }

    /// A node reads its clock as soon as it is not busy.
    pub(super) fn read_clock<O: EffectSink<M>>(&mut self, at: u64, index: u32, out: &mut O) {
        if !self.node(index).0.clock_waits {
            self.offer(at, index, Input::Clock, out);
        }
    }

    /// The rate of a host's clock follows the temperature, when the clock is read.
    fn follow_temperature(&mut self, at: u64, index: u32) {
        // Armed timers keep the true time for which they were armed. Their error is the change of
        // the rate since then, times their length. For 100 ms and a few parts per billion the error
        // is less than a nanosecond.
        let (node, host) = self.node(index);
        let number = node.host;
        if host.clock.wanders() {
            let from = self.read_ahead(number, at);
            self.node(index).1.clock.wander(from);
        }
    }

    /// The latest true time at which a node of a host has read its clock, and `now` at least. A
    /// rate that changed before that time would let the clock go back. A process that is stopped
    /// has not read its clock ahead.
    pub(super) fn read_ahead(&self, host: u32, now: u64) -> u64 {
        let nodes = &self.hosts[(host - self.first.1) as usize].nodes;
        let busy = nodes.iter().map(|&node| self.nodes[(node - self.first.0) as usize].busy);
        busy.max().unwrap_or(0).max(now)
    }
}
