//! The watchers of a run: checkers, statistics, transcripts, and the owner that drives the run.

use evenfall_core::{Machine, SyncTime, Timestamp};

use crate::faults::Fault;
use crate::network::{Loss, Network, Packet, Verdict};
use crate::world::World;
use crate::{NodeIndex, SimTime};

/// Where and when something happened, by every clock there is.
///
/// Times never go back on one node. Between nodes they may be out of order by the processor time
/// of one input: an input that has begun runs to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The node.
    pub node: NodeIndex,
    /// The true time, which no machine knows.
    pub at: SimTime,
    /// The local clock of the node: the `now` that its machine was given.
    pub local: Timestamp,
    /// What the node holds to be the synchronised time: `local` and its last clock reading.
    pub sync: SyncTime,
    /// What the node's machine holds to be the synchronised time. A machine may not follow each
    /// reading of the clock. `own` equals `sync` when the machine keeps no clock.
    pub own: SyncTime,
}

/// Watches a run, and answers when the run asks its owner for something. Every method but
/// [`event`](Self::event) does nothing unless it is written.
pub trait Observer<M: Machine, N: Network> {
    /// A machine told its owner something.
    fn event(&mut self, seen: Seen, event: M::Event);

    /// A call that [`World::invoke_at`] put on the agenda reaches its machine: time to publish,
    /// subscribe or close. The machine's events and transmits are drained afterwards.
    ///
    /// On several cores ([`World::run_until_on`]) events of the last microseconds before a call may
    /// reach the observer after the call. An observer whose calls depend on events of other nodes
    /// makes them by [`token`](Self::token).
    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut M) {
        let _ = (seen, token, machine);
    }

    /// An [`Action::Token`](crate::Action::Token) has come up.
    fn token(&mut self, world: &mut World<M, N>, token: u64) {
        let _ = (world, token);
    }

    /// A copy was handed to the network, with this result.
    fn sent(&mut self, packet: &Packet, datagram: &[u8], verdict: Verdict) {
        let _ = (packet, datagram, verdict);
    }

    /// A datagram is about to be handed to a machine.
    fn received(&mut self, seen: Seen, from: NodeIndex, datagram: &[u8]) {
        let _ = (seen, from, datagram);
    }

    /// Whether [`sent`](Self::sent) and [`received`](Self::received) have a purpose. Without a
    /// purpose, several cores keep no copies of datagrams for them and do not call them.
    fn follows_packets(&self) -> bool {
        true
    }

    /// A copy that the network had accepted was lost after all.
    fn lost(&mut self, at: SimTime, from: NodeIndex, to: NodeIndex, loss: Loss) {
        let _ = (at, from, to, loss);
    }

    /// A scheduled fault is about to be applied.
    fn fault(&mut self, at: SimTime, fault: &Fault) {
        let _ = (at, fault);
    }

    /// The machine of a node that a scheduled [`Fault::Restart`] brings back. `now` is the node's
    /// local clock.
    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<M> {
        let _ = (node, now);
        None
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl<M: Machine, N: Network> Observer<M, N> for Discard {
    fn event(&mut self, _: Seen, _: M::Event) {}
}

/// Keeps every event.
#[derive(Clone, Debug)]
pub struct Collect<E>(pub Vec<(Seen, E)>);

impl<E> Default for Collect<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M: Machine, N: Network> Observer<M, N> for Collect<M::Event> {
    fn event(&mut self, seen: Seen, event: M::Event) {
        self.0.push((seen, event));
    }
}
