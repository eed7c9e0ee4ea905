//! Who may write to a node: its neighbours, its root, and the roots that may take over. See
//! [`standby`](crate::standby).

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Malformed, NodeId, Timestamp};

use super::Uplink;
use crate::control::{Peer, Role, TreePosition};
use crate::wire::{Datagram, DatagramKind, EPOCH_OFFSET, SENDER_OFFSET};

impl Uplink {
    /// Whether a node at an address may give orders in this run.
    pub(super) fn authenticate_order(
        &self,
        id: NodeId,
        from: SocketAddr,
        run: (u32, u64),
    ) -> Result<(), Malformed> {
        if self.run.is_some_and(|mine| mine.0 == run.0 && mine.1 != run.1) {
            // Nothing tells which of the two runs began later.
            return Err(Malformed { what: "another run of this epoch", offset: EPOCH_OFFSET });
        }
        let is_root = self.root_id.is_none_or(|root| root == id);
        let is_late = self.run.is_some_and(|mine| mine.1 == run.1 && run.0 < mine.0);
        let succeeds =
            self.who.standbys.contains(&from) && self.run.is_none_or(|mine| run.0 > mine.0);
        if is_late {
            let what = "an order of a root that has a successor";
            Err(Malformed { what, offset: EPOCH_OFFSET })
        } else if is_root && from == self.who.root || succeeds {
            Ok(())
        } else {
            let what = "an order that is not from the root";
            Err(Malformed { what, offset: SENDER_OFFSET })
        }
    }

    /// Whether the place of this node lets the sender of an authentic datagram send it.
    pub(super) fn check_business(
        &mut self,
        datagram: &Datagram,
        from: SocketAddr,
    ) -> Result<(), Malformed> {
        use DatagramKind::{Assign, Challenge, Evict, Nack, Probe, Report};
        let (sender, kind) = (datagram.hop.from, datagram.fixed.kind);
        // An order is authentic only if it comes from a root.
        let is_order = matches!(kind, Assign | Evict | Probe | Challenge);
        if is_order || self.knows(sender, from, kind) {
            return Ok(());
        }
        // A root may tell a child of its parent before it tells the parent of the child.
        let is_early = matches!(kind, Report | Nack) && !self.has_below(sender);
        self.refusals.unplaced += u64::from(is_early);
        self.refusals.forged += u64::from(!is_early);
        let what = "sender has no business with this node";
        Err(Malformed { what, offset: SENDER_OFFSET })
    }

    /// Whether a node at an address may send this kind of datagram, by the present or the last
    /// place.
    fn knows(&self, id: NodeId, addr: SocketAddr, kind: DatagramKind) -> bool {
        let listed = |peers: &[Peer]| peers.iter().any(|p| p.id == id && p.addr == addr);
        let by = |place: &TreePosition| match kind {
            DatagramKind::Data | DatagramKind::Signature | DatagramKind::Beacon => {
                listed(&place.sources)
            }
            DatagramKind::Report => listed(&place.children),
            DatagramKind::Nack => listed(&place.children) || listed(&place.nieces),
            _ => false,
        };
        let asks = matches!(kind, DatagramKind::Nack | DatagramKind::Locate)
            && self.role == Role::Recorder;
        let may_answer = kind.is_frame() || kind == DatagramKind::Located;
        let answers = may_answer && listed(&self.recorders);
        asks || answers
            || self.place.as_ref().is_some_and(by)
            || self.previous.as_ref().is_some_and(by)
            || (addr == self.who.root && self.root_id == Some(id))
    }

    /// Whether a node is below this one, by the present or the last place, at whatever address.
    fn has_below(&self, id: NodeId) -> bool {
        let by = |place: &TreePosition| {
            place.children.iter().chain(&place.nieces).any(|peer| peer.id == id)
        };
        self.place.as_ref().is_some_and(by) || self.previous.as_ref().is_some_and(by)
    }

    /// Another root goes on with the run. This node keeps all that it has.
    pub(super) fn follow_successor(&mut self, run: (u32, u64), place: &mut TreePosition) {
        self.run = Some(run);
        self.out.run = run;
        // The successor counts its views and beats from one again, and does not know with which
        // frame this node began.
        if let Some(old) = self.place.take() {
            (place.start, place.start_message) = (old.start, old.start_message);
            self.previous = Some(old);
        }
        self.root_beat = 0;
    }

    /// The root that sent the present order is the root from now on.
    pub(super) fn obey_root(&mut self, id: NodeId) {
        self.root_id = Some(id);
        let before = core::mem::replace(&mut self.who.root, self.ordered_by);
        if let Some(place) = self.who.standbys.iter_mut().find(|at| **at == self.ordered_by) {
            *place = before;
        }
    }

    /// Whether another root may lead by now: the root has been silent, or a node named a later
    /// epoch.
    pub(super) fn seeks_root(&self, now: Timestamp) -> bool {
        let is_silent = now.since(self.root_heard) >= self.config.membership.silence / 2;
        let is_succeeded = self.epoch().is_some_and(|mine| mine < self.newest_epoch);
        self.may_seek_root() && (is_silent || is_succeeded)
    }

    pub(super) fn may_seek_root(&self) -> bool {
        self.place.is_some() && !self.who.standbys.is_empty()
    }

    /// Sends a datagram to the root, and to the roots that may have taken over.
    pub(super) fn tell_roots(&mut self, kind: DatagramKind, body: &Bytes) {
        for to in core::iter::once(self.who.root).chain(self.who.standbys.iter().copied()) {
            self.out.control_to_root(to, kind, body.clone());
        }
    }
}
