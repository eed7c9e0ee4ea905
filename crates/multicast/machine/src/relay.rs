//! The proxy: it forwards the first copy of every frame, keeps the frame for repair, and merges
//! reports.
//!
//! A port with the ability forwards the stream by itself, by a table that the proxy installs with
//! each place (`offload.rs`). The port still hands every frame to the proxy, which keeps the frame,
//! counts it and closes gaps with it. The proxy forwards every frame that the port did not mark as
//! forwarded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Arrival, Clock, ClockReading, Destination, EndKeys, ForwardCounters, ForwardId, GroupId,
    Histogram, Install, Machine, Malformed, NodeKey, Timestamp, Transmit,
};

use crate::config::Config;
use crate::control::{
    Beacon, DepartureReason, Report, Role, Tally, TreePosition, decode_ranges, encode_verdict,
};
use crate::merge::{Merger, RecentDelays, Wait};
use crate::offload;
use crate::ring::{Frame, RepairQueue, Ring, Stored};
use crate::seal::SharedKey;
use crate::uplink::{Identity, News, Refusals, Uplink};
use crate::window::Seen;
use crate::wire::{Datagram, DatagramKind, SAMPLED};

/// An event of a proxy for its owner.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayEvent {
    /// The proxy has a place in the tree.
    Placed(TreePosition),
    /// The root took the proxy out.
    Evicted(DepartureReason),
    /// The root has been silent for `membership.root_timeout`.
    RootLost,
    /// All receivers below have released the whole stream.
    Finished,
}

/// Counters of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RelayStatus {
    /// Frames forwarded, by this machine or by its port.
    pub forwarded: u64,
    /// Copies that were dropped because the frame had been forwarded before.
    pub duplicates: u64,
    /// Frames sent again because a node asked.
    pub repairs_sent: u64,
    /// Frames that came by repair.
    pub repaired: u64,
    /// Missing frames that were given up.
    pub given_up: u64,
    /// Forwarded frames that the port sent by itself, as last told by the port.
    pub forwarded_by_port: u64,
    /// Copies that the port did not send on because it had sent the frame on.
    pub duplicates_in_port: u64,
    /// Frames that the port left to the machine: further behind the newest than the port's window.
    pub behind_in_port: u64,
    /// Frames that the port left to the machine: it had no room, or no group.
    pub refused_by_port: u64,
    /// Frames dropped because the driver was too slow.
    pub dropped: u64,
    /// Delays of sampled frames that were dropped because reports had no room.
    pub samples_dropped: u64,
    /// Numbers of the frames that the proxy keeps at present.
    pub stored: Stored,
    /// Counters of refused datagrams.
    pub refusals: Refusals,
    /// The merged counters of the receivers below.
    pub below: Tally,
}

/// One proxy of one tree.
pub struct Relay {
    up: Uplink,
    ring: Ring,
    repair_queue: RepairQueue,
    merger: Merger,
    /// Delays from the root to this proxy since the last report.
    delays: Histogram,
    recent: RecentDelays,
    events: VecDeque<RelayEvent>,
    installs: VecDeque<Install>,
    /// The groups of the present place and of the last place.
    groups: (GroupId, GroupId),
    beacon_at: Option<Timestamp>,
    forwarded_since_beacon: bool,
    finished: bool,
    status: RelayStatus,
}

impl Relay {
    /// A proxy that joins at the first call of its timeout. Proxies of one process can share their
    /// settings.
    pub fn new(
        config: impl Into<Arc<Config>>,
        who: Identity,
        key: Option<&SharedKey>,
        now: Timestamp,
    ) -> Self {
        let config = config.into();
        let group = |slot: u32| GroupId(who.stream << 8 | slot);
        Self {
            groups: (group(0), group(1)),
            ring: Ring::new(&config.repair, 0),
            repair_queue: RepairQueue::new(&config.repair),
            up: Uplink::new(config, who, Role::Proxy, key, now),
            merger: Merger::default(),
            delays: Histogram::default(),
            recent: RecentDelays::default(),
            events: VecDeque::new(),
            installs: VecDeque::new(),
            beacon_at: None,
            forwarded_since_beacon: false,
            finished: false,
            status: RelayStatus::default(),
        }
    }

    /// Speaks to the roots and to nodes above and below under keys of the two ends. The call must
    /// come before the proxy joins.
    pub fn with_node_key(mut self, key: NodeKey) -> Self {
        self.up.out.seal.with_ends(EndKeys::Node(key));
        self
    }

    /// Says good-bye to the root, which answers with an eviction for [`DepartureReason::Left`].
    pub fn leave(&mut self) {
        self.up.leave();
    }

    /// Its counters.
    pub fn status(&self) -> RelayStatus {
        RelayStatus {
            dropped: self.up.out.dropped,
            samples_dropped: self.merger.dropped(),
            repaired: self.up.repaired,
            given_up: self.up.given_up,
            refusals: self.up.refusals,
            below: self.merger.tally(),
            stored: Stored {
                asked: self.repair_queue.longest(),
                queued: self.up.out.live_len(),
                ..self.ring.size()
            },
            ..self.status
        }
    }

    /// Its place in the tree, if it has one.
    pub fn place(&self) -> Option<&TreePosition> {
        self.up.place.as_ref()
    }

    fn on_news(&mut self, now: Timestamp, news: News) {
        match news {
            News::Restarted { place, .. } => {
                // Frames count from zero again, and old frames must not pass for new ones.
                self.installs.push_back(Install::Forward(self.table(), None));
                self.ring = Ring::new(&self.up.config.repair, 0);
                self.repair_queue = RepairQueue::new(&self.up.config.repair);
                self.merger = Merger::default();
                self.finished = false;
                self.on_news(now, News::Placed(place));
            }
            News::Placed(place) => {
                self.groups = (self.groups.1, self.groups.0);
                let members: Arc<[_]> =
                    place.children.iter().chain(&place.nieces).map(|p| p.addr).collect();
                self.installs.push_back(Install::Group(self.groups.0, members));
                let table = offload::table(&self.up, self.groups).map(Arc::new);
                self.installs.push_back(Install::Forward(self.table(), table));
                let children = place.children.iter().map(|p| p.id);
                self.merger.expect(now, children, core::iter::empty());
                self.beacon_at = Some(now);
                self.events.push_back(RelayEvent::Placed(place));
            }
            News::Evicted(reason) => {
                self.installs.push_back(Install::Forward(self.table(), None));
                for group in [self.groups.0, self.groups.1] {
                    self.installs.push_back(Install::Group(group, Arc::new([])));
                }
                self.merger.expect(now, core::iter::empty(), core::iter::empty());
                self.beacon_at = None;
                self.events.push_back(RelayEvent::Evicted(reason));
            }
            News::RootLost => self.events.push_back(RelayEvent::RootLost),
            News::Ended => self.beacon_at = Some(now),
            // A proxy does not ask where to begin.
            News::Located(_) => {}
        }
    }

    /// The name of the table by which the port forwards this stream.
    fn table(&self) -> ForwardId {
        ForwardId(self.up.who.stream)
    }

    /// Installs the table anew when another key of the run is in use. Frames under the other valid
    /// key do not match the table, and the proxy forwards them itself.
    fn follow_keys(&mut self) {
        if core::mem::take(&mut self.up.has_turned) && self.up.place.is_some() {
            let table = offload::table(&self.up, self.groups).map(Arc::new);
            self.installs.push_back(Install::Forward(self.table(), table));
        }
    }

    fn on_data(
        &mut self,
        now: Timestamp,
        datagram: Datagram,
        (received, is_forwarded): (Timestamp, bool),
    ) {
        if self.up.on_data(now, &datagram, received) != Seen::First {
            self.status.duplicates += 1;
            return;
        }
        if self.up.soundness.is_sound() {
            self.delays.record(self.up.clock().sync(received).since(datagram.fixed.origin));
        }
        // A frame that the port sent on did not wait for this machine.
        self.up.edges.stayed(if is_forwarded { Duration::ZERO } else { now.since(received) });
        let frame = Frame { fixed: datagram.fixed, flags: datagram.hop.flags, body: datagram.body };
        self.ring.insert(frame.clone());
        let Some(place) = &self.up.place else { return };
        // A frame of an older view goes to the group of the last place, so that a change of view
        // loses no frame.
        let view = datagram.hop.view;
        let previous = self.up.previous.as_ref().filter(|_| view > 0 && view < place.view);
        let (way, group) = match previous {
            Some(previous) => (previous, self.groups.1),
            None => (place, self.groups.0),
        };
        if way.children.is_empty() && way.nieces.is_empty() {
            return;
        }
        self.status.forwarded += 1;
        if frame.flags & SAMPLED != 0 && !way.children.is_empty() {
            self.merger.sampled(now, frame.fixed.sequence);
        }
        self.forwarded_since_beacon = true;
        if !is_forwarded {
            self.up.out.live(Destination::Group(group), view, frame);
        }
    }

    fn on_report(&mut self, now: Timestamp, datagram: &Datagram) -> Result<(), Malformed> {
        let report = Report::decode(&datagram.body)?;
        if !self.merger.absorb(now, datagram.hop.from, &report) {
            self.up.refusals.unplaced += 1;
        }
        Ok(())
    }

    fn on_nack(
        &mut self,
        now: Timestamp,
        datagram: &Datagram,
        arrival_from: std::net::SocketAddr,
    ) -> Result<(), Malformed> {
        let ranges = decode_ranges(&datagram.body)?;
        let asker = (datagram.hop.from, arrival_from);
        self.merger.heard(now, asker.0);
        if self.repair_queue.ask(now, asker, &ranges, &self.ring, &self.up.config.repair) {
            self.repair_queue.forget(asker.0);
            let body = encode_verdict(asker.0, DepartureReason::TooSlow);
            self.up.out.control_to_root(self.up.who.root, DatagramKind::Suspect, body);
        }
        Ok(())
    }

    fn beacon(&mut self, now: Timestamp) {
        let interval = self.up.config.membership.beacon_interval;
        self.beacon_at = Some(now + interval);
        // A frame that was just forwarded tells the children all that a beacon tells, except the
        // end of the stream.
        if core::mem::take(&mut self.forwarded_since_beacon) && self.up.end.is_none() {
            return;
        }
        let (root_beat, end) = (self.up.root_beat, self.up.end);
        let next = self.up.window.as_ref().map_or(0, |w| w.next());
        let body = Beacon { next, root_beat, end }.encode();
        let below =
            self.up.place.iter().flat_map(|place| place.children.iter().chain(&place.nieces));
        self.up.out.control_to_group(self.groups.0, below, DatagramKind::Beacon, body);
    }

    fn report(&mut self, now: Timestamp) {
        let (me, clock) = (self.up.who.id, self.up.clock().reading().error);
        let recent = self.recent.end_interval(now, &self.delays);
        self.delays.clear();
        self.merger.tell_own(now, me, clock, &recent);
        self.merger.add_edges(me, &mut self.up.edges);
        let mut report = self.merger.take(now, &Wait::new(&self.up.config));
        let (tally, body) = (report.tally, report.encode(self.up.body_bytes_max()));
        self.merger.put_back(now, report);
        if let Some(parent) = self.up.parent() {
            self.up.out.control_to(parent, DatagramKind::Report, body);
        }
        // A spare has no node below it. The root may still need the spare until the root has
        // finished and falls silent.
        let idle = self.place().is_some_and(|place| place.children.is_empty())
            && self.up.root_silence(now) >= self.up.config.membership.silence;
        let below = tally.receivers > 0 && tally.finished == tally.receivers;
        let all = self.up.end.is_some() && (below || idle);
        if all && !core::mem::replace(&mut self.finished, true) {
            self.events.push_back(RelayEvent::Finished);
        }
    }

    /// Reads the fields that the next input needs, as a
    /// [receiver does](crate::Receiver::prefetch).
    pub fn prefetch(&self) -> u64 {
        self.up.prefetch() ^ self.ring.size().bytes as u64 ^ self.status.forwarded
    }

    /// Follows what [`prefetch`](Self::prefetch) has read.
    pub fn prefetch_far(&self) -> u64 {
        self.up.prefetch_far() ^ self.ring.prefetch_far()
    }
}

impl Machine for Relay {
    type Event = RelayEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let Some(datagram) = self.up.open(now, &arrival)? else { return Ok(()) };
        self.follow_keys();
        match datagram.fixed.kind {
            DatagramKind::Data | DatagramKind::Signature => {
                self.on_data(now, datagram, (arrival.received, arrival.is_forwarded));
            }
            DatagramKind::Report => self.on_report(now, &datagram)?,
            DatagramKind::Nack => self.on_nack(now, &datagram, arrival.from)?,
            _ => {
                if let Some(news) = self.up.on_control(now, &datagram)? {
                    self.up.has_turned = false;
                    self.on_news(now, news);
                }
                self.follow_keys();
            }
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if let Some(news) = self.up.handle_timeout(now) {
            self.on_news(now, news);
        }
        if let Some(limit) = self.up.overdue(now) {
            self.up.give_up(limit);
        }
        self.repair_queue.handle_timeout(now);
        if self.beacon_at.is_some_and(|at| at <= now) {
            self.beacon(now);
        }
        if self.up.report_due(now) {
            for child in self.merger.silent(now, self.up.config.membership.silence) {
                let body: Bytes = encode_verdict(child, DepartureReason::Silent);
                self.up.out.control_to_root(self.up.who.root, DatagramKind::Suspect, body);
            }
            self.report(now);
        }
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.up.follow(now, reading);
    }

    fn clock(&self) -> Option<Clock> {
        Some(*self.up.clock())
    }

    fn handle_counters(&mut self, _now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        if of == self.table() {
            self.status.forwarded_by_port += counters.forwarded;
            self.status.duplicates_in_port += counters.duplicates;
            self.status.behind_in_port += counters.behind;
            self.status.refused_by_port += counters.refused;
        }
    }

    fn poll_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.installs.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(transmit) = self.up.out.next(now) {
            return Some(transmit);
        }
        let (to, frame) = self.repair_queue.next(now, &self.ring)?;
        self.status.repairs_sent += 1;
        Some(self.up.out.repair(now, to, &frame))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.up.out.next(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let up = self.up.poll_timeout();
        self.beacon_at.into_iter().chain(up).chain(self.repair_queue.poll_timeout()).min()
    }
}
