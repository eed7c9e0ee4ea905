//! Where the effects of turns go.
//!
//! Turns change nothing but their own node and host. All else goes through an [`EffectSink`]:
//! packets, events for the observer, the digest, wake-ups for later. On one core the effects happen
//! at once ([`Direct`]). On several cores they are written down and happen in the order of one
//! core: see [`super::cores`].

use bytes::Bytes;
use evenfall_core::{Machine, TrafficClass};

use super::WorldTally;
use super::fabric::{Fabric, Pending};
use crate::network::{Loss, Network};
use crate::observer::{Observer, Seen};
use crate::{HostIndex, NodeIndex, SimTime};

/// The effects of a turn beyond its own node and host.
pub(super) trait EffectSink<M: Machine> {
    /// Counts that add up in any order.
    fn tally(&mut self) -> &mut WorldTally;

    /// The host of a node.
    fn host_of(&self, node: u32) -> u32;

    /// A node has its turn: a word of the digest.
    fn note(&mut self, at: u64, node: u32);

    /// Something is to happen on this node later.
    fn push(&mut self, at: u64, pending: Pending);

    /// When the card of a host takes the next packet.
    fn send_ready(&self, host: HostIndex, now: u64) -> u64;

    /// A node begins to send copies of a datagram: its bytes are words of the digest.
    fn transmit(&mut self, from: u32, class: TrafficClass, datagram: &Bytes);

    /// A copy of the datagram that was begun last leaves the sender.
    fn copy(&mut self, at: u64, from: u32, to: u32, class: TrafficClass, datagram: &Bytes);

    /// A machine tells its owner something.
    fn event(&mut self, seen: Seen, event: M::Event);

    /// A datagram is about to be handed to a machine.
    fn received(&mut self, seen: Seen, from: u32, datagram: &Bytes);

    /// A copy is lost at its receiver.
    fn lost(&mut self, at: u64, from: u32, to: u32, loss: Loss);

    /// The owner calls a machine.
    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut M);
}

/// Effects happen at once.
pub(super) struct Direct<'a, N, O> {
    pub(super) fabric: &'a mut Fabric<N>,
    pub(super) observer: &'a mut O,
}

impl<M: Machine, N: Network, O: Observer<M, N>> EffectSink<M> for Direct<'_, N, O> {
    #[inline]
    fn tally(&mut self) -> &mut WorldTally {
        &mut self.fabric.tally
    }

    #[inline]
    fn host_of(&self, node: u32) -> u32 {
        self.fabric.borders.host_of[node as usize]
    }

    #[inline]
    fn note(&mut self, at: u64, node: u32) {
        self.fabric.tally.note(at, node);
    }

    #[inline]
    fn push(&mut self, at: u64, pending: Pending) {
        self.fabric.queue.push(at, pending);
    }

    #[inline]
    fn send_ready(&self, host: HostIndex, now: u64) -> u64 {
        self.fabric.network.send_ready(host, SimTime(now)).0
    }

    #[inline]
    fn transmit(&mut self, _: u32, _: TrafficClass, datagram: &Bytes) {
        self.fabric.tally.note_bytes(datagram);
    }

    #[inline]
    fn copy(&mut self, at: u64, from: u32, to: u32, class: TrafficClass, datagram: &Bytes) {
        self.fabric.send(at, (from, to), class, datagram.clone(), self.observer);
    }

    #[inline]
    fn event(&mut self, seen: Seen, event: M::Event) {
        self.observer.event(seen, event);
    }

    #[inline]
    fn received(&mut self, seen: Seen, from: u32, datagram: &Bytes) {
        self.observer.received(seen, NodeIndex(from), datagram);
    }

    #[inline]
    fn lost(&mut self, at: u64, from: u32, to: u32, loss: Loss) {
        self.observer.lost(SimTime(at), NodeIndex(from), NodeIndex(to), loss);
    }

    #[inline]
    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut M) {
        self.observer.invoke(seen, token, machine);
    }
}
