//! Datagrams that wait to be sent. Each class is bounded, and a datagram is stamped when it leaves.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Clock, Destination, GroupId, Head, NodeId, Timestamp, TrafficClass, Transmit};

use crate::control::Peer;
use crate::ends::End;
use crate::ring::Frame;
use crate::seal::Seal;
use crate::wire::{DatagramKind, Hop, OriginHeader};

/// Control datagrams that may wait. Beyond this number the oldest is dropped, because a timer
/// repeats every control datagram.
const CONTROL_MAX: usize = 65_536;

/// A datagram that lacks only the header of this hop.
#[derive(Clone, Debug)]
struct Parcel {
    to: Destination,
    /// The other end, under whose key the datagram leaves.
    end: End,
    view: u32,
    frame: Frame,
}

/// The outgoing side of one machine.
#[derive(Clone)]
pub(crate) struct Outbox {
    pub clock: Clock,
    control: VecDeque<Parcel>,
    live: VecDeque<Parcel>,
    pub seal: Seal,
    me: NodeId,
    pub level: u8,
    pub stream: u32,
    /// Epoch and random id of the run that this node is in. Zeros before the node is in any run.
    pub run: (u32, u64),
    /// Sequence of the next control datagram.
    control_next: u64,
    live_max: usize,
    /// Live frames dropped because the driver did not keep up.
    pub dropped: u64,
}

impl Outbox {
    pub(crate) fn new(
        me: NodeId,
        stream: u32,
        seal: Seal,
        control_first: u64,
        live_max: usize,
    ) -> Self {
        Self {
            seal,
            clock: Clock::default(),
            me,
            level: 0,
            stream,
            run: (0, 0),
            control_next: control_first,
            control: VecDeque::new(),
            live: VecDeque::new(),
            live_max,
            dropped: 0,
        }
    }

    fn control(&mut self, to: Destination, end: End, kind: DatagramKind, mut body: Bytes) {
        let (epoch, run_id) = self.run;
        let mut fixed = OriginHeader::control(kind, self.stream, epoch, self.control_next);
        fixed.run_id = run_id;
        fixed.key_id = self.seal.control_key_id();
        self.control_next += 1;
        if let (DatagramKind::Assign, End::Node(id), Some(ends)) = (kind, end, &self.seal.ends) {
            body = ends.seal_place(self.me, id, &fixed, body);
        }
        if self.control.len() >= CONTROL_MAX {
            self.control.pop_front();
        }
        let frame = Frame { fixed, flags: 0, body };
        self.control.push_back(Parcel { to, end, view: 0, frame });
    }

    /// Queues a control datagram for one node, or for the root that is the parent of this node.
    pub(crate) fn control_to(&mut self, to: Peer, kind: DatagramKind, body: Bytes) {
        self.control(Destination::One(to.addr), End::Node(to.id), kind, body);
    }

    /// Queues a control datagram for a root.
    pub(crate) fn control_to_root(&mut self, to: SocketAddr, kind: DatagramKind, body: Bytes) {
        self.control(Destination::One(to), End::Roots, kind, body);
    }

    /// Queues a control datagram for all nodes of a group. With node keys each node has a code of
    /// its own.
    pub(crate) fn control_to_group<'a>(
        &mut self,
        group: GroupId,
        peers: impl Iterator<Item = &'a Peer>,
        kind: DatagramKind,
        body: Bytes,
    ) {
        if self.seal.ends.is_some() {
            peers.for_each(|peer| self.control_to(*peer, kind, body.clone()));
        } else {
            self.control(Destination::Group(group), End::Everybody, kind, body);
        }
    }

    /// Queues a frame of the feed. When the driver lags behind, the oldest frame is dropped and
    /// counted. The dropped frame is still in the ring, and a node that misses it asks for it.
    pub(crate) fn live(&mut self, to: Destination, view: u32, frame: Frame) {
        if self.live.len() >= self.live_max {
            self.live.pop_front();
            self.dropped += 1;
        }
        self.live.push_back(Parcel { to, end: End::Everybody, view, frame });
    }

    /// Reads the lines of the cache that a frame needs. The result depends on each of these lines.
    pub(crate) fn prefetch(&self) -> u64 {
        let lengths = self.control.len() ^ self.live.len();
        self.clock.reading().offset_ns as u64 ^ lengths as u64 ^ u64::from(self.stream)
    }

    pub(crate) fn live_len(&self) -> usize {
        self.live.len()
    }

    /// The next datagram of the control and live classes.
    pub(crate) fn next(&mut self, now: Timestamp) -> Option<Transmit> {
        let parcel = self.control.pop_front().or_else(|| self.live.pop_front())?;
        Some(self.stamp(now, parcel.to, parcel.end, parcel.view, &parcel.frame))
    }

    /// A repair copy of a frame.
    pub(crate) fn repair(&self, now: Timestamp, to: SocketAddr, frame: &Frame) -> Transmit {
        let mut frame = frame.clone();
        frame.fixed.class = TrafficClass::Repair;
        self.stamp(now, Destination::One(to), End::Everybody, 0, &frame)
    }

    fn stamp(
        &self,
        now: Timestamp,
        to: Destination,
        end: End,
        view: u32,
        frame: &Frame,
    ) -> Transmit {
        let hop = Hop {
            from: self.me,
            view,
            level: self.level,
            flags: frame.flags,
            sent: self.clock.stamp(now),
            earlier: 0,
            spare: 0,
        };
        let header = self.seal.header(end, &frame.fixed, &hop, &frame.body);
        Transmit::new(frame.fixed.class, to, Head::new(&header), frame.body.clone())
    }
}
