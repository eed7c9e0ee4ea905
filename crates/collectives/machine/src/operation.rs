//! One operation at one rank: its sending and receiving halves, the ranks that are alive, and the
//! control datagrams to send.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::math::mix;
use evenfall_core::{Malformed, Timestamp, TrafficClass};

use crate::buffers::Buffers;
use crate::config::ShuffleConfig;
use crate::error::RankFailure;
use crate::receiver::{Receiver, Taken};
use crate::remainder::{Reduction, Step};
use crate::rtt::RoundTrip;
use crate::sender::Sender;
use crate::wire::{
    ABORT_DISAGREES, HEADER_BYTES, ShuffleHeader, ShuffleKind, encode_ranges, ranges,
};

/// Bytes per unit of a remainder on the wire. With 256 bytes a unit, 32 bits cover a terabyte.
const REMAINDER_UNIT: u64 = 256;
/// Repeats of a probe after which its interval stops doubling. Four doublings make the interval 16
/// times as long.
const BACKOFF_MAX: u32 = 4;
/// A packet that later packets have overtaken is asked for after this part of the interval. A
/// packet that was only reordered arrives within that time.
const OVERTAKEN_DIVISOR: u32 = 4;
/// A result of the all-reduce is trusted for this many times as long as it took. After that time a
/// rank has probably left, and windows follow the own state.
const RESULT_AGE_MAX: u32 = 4;

/// Control that this rank owes to another rank. The queue holds each kind at most once per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Grant = 1,
    Ack = 2,
    Announce = 4,
    Resend = 8,
    Wait = 16,
}

/// State of one other rank.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    heard: Timestamp,
    probe_in: Timestamp,
    probe_out: Timestamp,
    tries: u32,
    owed: u8,
    /// Whether a datagram of this operation came from the rank.
    met: bool,
    /// When the last packet of the message to the rank left. `None` when the rank was not met by
    /// then, or a packet was repeated.
    last_sent: Option<Timestamp>,
    /// When the newest packet to the rank left.
    left: Option<Timestamp>,
    /// The address from which a datagram came that named this rank, but is not the rank's.
    elsewhere: Option<SocketAddr>,
}

/// An event of an operation for the shuffle.
#[derive(Debug)]
pub(crate) enum Happened {
    Message(u16, Bytes),
    Failed(RankFailure),
}

/// One operation at one rank.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) number: u64,
    pub(crate) me: u16,
    pub(crate) members: Vec<SocketAddr>,
    /// Numbers of the members in their group, by place; empty when places are numbers.
    pub(crate) among: Arc<[u16]>,
    /// Whether the owner knows that everything is here.
    pub(crate) told_here: bool,
    pub(crate) agreement: u32,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) next_check: Timestamp,
    pub(crate) rtt: RoundTrip,
    peers: Vec<Peer>,
    owed: VecDeque<(u16, Owed)>,
    reduction: Option<Reduction>,
    steps: VecDeque<Step>,
    reduced: (Timestamp, u64),
}

/// A hash of the settings on which all members must agree.
pub(crate) fn agreement(members: usize, packet_bytes: u32) -> u32 {
    mix((members as u64) << 32 | u64::from(packet_bytes)) as u32
}

impl Operation {
    pub(crate) fn new(
        config: &ShuffleConfig,
        now: Timestamp,
        (number, me): (u64, u16),
        (members, among): (Vec<SocketAddr>, Arc<[u16]>),
        (rtt, buffers): (RoundTrip, Buffers),
    ) -> Self {
        let n = members.len();
        let first = now + rtt.interval(config);
        let peer = Peer { heard: now, probe_in: first, probe_out: first, ..Peer::default() };
        Self {
            number,
            me,
            agreement: agreement(n, config.packet_bytes),
            sender: Sender::new(config, number, me, n),
            receiver: Receiver::new(config, number, me, n, buffers),
            next_check: now + rtt.interval(config) / 2,
            rtt,
            peers: vec![peer; n],
            owed: VecDeque::new(),
            reduction: (config.reduce && n > 1).then(|| Reduction::new(n, usize::from(me))),
            steps: VecDeque::new(),
            reduced: (now, 0),
            members,
            among,
            told_here: false,
        }
    }

    /// The number in the group of the rank at this place of the operation.
    pub(crate) fn name(&self, place: u16) -> u16 {
        self.among.get(usize::from(place)).copied().unwrap_or(place)
    }

    /// The place in the operation of the rank with this number in the group.
    pub(crate) fn place(&self, name: u16) -> Option<u16> {
        if self.among.is_empty() {
            return Some(name);
        }
        self.among.binary_search(&name).ok().map(|place| place as u16)
    }

    /// Decides which data goes unasked, and announces all other messages. The messages and
    /// expectations are set by now.
    pub(crate) fn begin(&mut self, config: &ShuffleConfig) {
        self.sender.begin(config.rtt_packets);
        for to in 0..self.members.len() as u16 {
            let message = &self.sender.messages[usize::from(to)];
            if message.body.is_some() && message.unscheduled == 0 {
                self.owe(to, Owed::Announce);
            }
        }
        let own = self.remainder();
        self.reduce(|reduction, out| {
            reduction.begin(own, out);
            None
        });
    }

    /// Takes a message that comes after the operation began.
    pub(crate) fn offer(&mut self, config: &ShuffleConfig, to: u16, body: Bytes) {
        self.sender.offer(to, body);
        // The message comes alone and shares the link with no other, so its first round trip goes
        // unasked.
        if self.sender.begin_alone(to, config.rtt_packets) == 0 {
            self.owe(to, Owed::Announce);
        }
    }

    fn remainder(&self) -> u32 {
        let units = self.receiver.missing_bytes.div_ceil(REMAINDER_UNIT);
        units.min(u64::from(u32::MAX)) as u32
    }

    fn reduce(&mut self, go: impl FnOnce(&mut Reduction, &mut Vec<Step>) -> Option<u32>) {
        let Some(reduction) = &mut self.reduction else { return };
        let mut out = Vec::new();
        let result = go(reduction, &mut out);
        self.steps.extend(out);
        if let Some(result) = result {
            self.receiver.slowest_bytes = Some(u64::from(result) * REMAINDER_UNIT);
        }
    }

    fn owe(&mut self, to: u16, owed: Owed) {
        let peer = &mut self.peers[usize::from(to)];
        if peer.owed & owed as u8 == 0 {
            peer.owed |= owed as u8;
            self.owed.push_back((to, owed));
        }
    }

    /// Whether this rank has received and delivered all messages.
    pub(crate) fn is_done(&self) -> bool {
        self.receiver.open == 0 && self.sender.open == 0
    }

    /// Takes notice of a datagram that names this place as its sender, but came from an address
    /// that is not the rank's.
    pub(crate) fn note_elsewhere(&mut self, place: u16, address: SocketAddr) {
        if let Some(peer) = self.peers.get_mut(usize::from(place)) {
            peer.elsewhere = Some(address);
        }
    }

    /// Takes a datagram of this operation, which came from the address of its rank.
    pub(crate) fn handle(
        &mut self,
        config: &ShuffleConfig,
        now: Timestamp,
        header: &ShuffleHeader,
        datagram: &Bytes,
    ) -> Result<Option<Happened>, Malformed> {
        let from = header.from;
        if header.kind == ShuffleKind::Abort {
            let (rank, disagrees) = (header.extra as u16, header.offset == ABORT_DISAGREES);
            let aborted = RankFailure::Aborted { by: from, rank, disagrees };
            return Ok(Some(Happened::Failed(aborted)));
        }
        if header.agreement != self.agreement {
            return Ok(Some(Happened::Failed(RankFailure::Disagrees { rank: from })));
        }
        let peer = &mut self.peers[usize::from(from)];
        peer.heard = now;
        peer.tries = 0;
        if header.kind == ShuffleKind::Wait {
            // The rank lives. The rank has no message for us yet, or cannot use ours yet.
            let later = now + config.resend_after;
            (peer.probe_in, peer.probe_out) = (later, later);
        } else if !peer.met {
            peer.met = true;
            let soon = now + self.rtt.interval(config);
            (peer.probe_in, peer.probe_out) = (soon, soon);
        }
        match header.kind {
            ShuffleKind::Data => return self.data(config, now, header, datagram),
            ShuffleKind::Grant => {
                let granted = header.offset.div_ceil(config.packet_bytes);
                self.sender.grant(from, granted);
                self.peers[usize::from(from)].probe_out = now + self.rtt.interval(config);
            }
            ShuffleKind::Ack => {
                if self.sender.ack(from)
                    && let Some(sent) = self.peers[usize::from(from)].last_sent
                {
                    self.rtt.take(now.since(sent));
                }
            }
            ShuffleKind::Resend => self.resend(config, now, header, &datagram[HEADER_BYTES..]),
            ShuffleKind::Wait | ShuffleKind::Abort => {}
            ShuffleKind::Reduce => {
                let own = self.remainder();
                let step = (header.extra, header.offset, header.length);
                let before = self.receiver.slowest_bytes;
                self.reduce(|reduction, out| reduction.take(step, own, out));
                if self.receiver.slowest_bytes != before {
                    self.reduced = (now, now.since(self.reduced.0).as_nanos() as u64);
                }
                self.grant();
            }
        }
        Ok(None)
    }

    fn data(
        &mut self,
        config: &ShuffleConfig,
        now: Timestamp,
        header: &ShuffleHeader,
        datagram: &Bytes,
    ) -> Result<Option<Happened>, Malformed> {
        let from = header.from;
        let payload = datagram.slice(HEADER_BYTES..);
        let overtaken = self.receiver.messages[usize::from(from)].overtaken();
        let announced = self.receiver.messages[usize::from(from)].announced;
        let taken = self.receiver.data(now, header, &payload)?;
        let interval = self.rtt.interval(config);
        let probe_in = &mut self.peers[usize::from(from)].probe_in;
        let is_overtaken = self.receiver.messages[usize::from(from)].overtaken();
        if is_overtaken && !overtaken {
            // The first packet after a gap makes the receiver ask soon. Later packets do not delay
            // the question.
            *probe_in = now + interval / OVERTAKEN_DIVISOR;
            self.next_check = self.next_check.min(*probe_in);
        } else if !is_overtaken && (!announced || !payload.is_empty()) {
            *probe_in = now + interval;
        }
        match taken {
            // A repeated announcement is a probe, and the answer says what is missing. Granted
            // packets may still wait for their sender's pace. A request for these packets would
            // only cause the next announcement.
            Taken::Part if payload.is_empty() && announced => {
                let gap = now >= *probe_in && self.receiver.has_gap(from);
                if gap {
                    *probe_in = now + interval;
                }
                self.owe(from, if gap { Owed::Resend } else { Owed::Grant });
            }
            Taken::Part | Taken::Duplicate => {}
            Taken::Known => self.owe(from, Owed::Ack),
            Taken::Whole(body) => {
                self.owe(from, Owed::Ack);
                self.grant();
                return Ok(Some(Happened::Message(from, body)));
            }
            Taken::Refused(failure) => return Ok(Some(Happened::Failed(failure))),
        }
        self.grant();
        Ok(None)
    }

    fn resend(
        &mut self,
        config: &ShuffleConfig,
        now: Timestamp,
        header: &ShuffleHeader,
        payload: &[u8],
    ) {
        let from = header.from;
        let message = &self.sender.messages[usize::from(from)];
        if message.body.is_none() {
            if !message.acked {
                self.owe(from, Owed::Wait);
            }
            return;
        }
        self.peers[usize::from(from)].last_sent = None;
        let packets = |(offset, length): (u32, u32)| {
            let end = offset.saturating_add(length).div_ceil(config.packet_bytes);
            (offset / config.packet_bytes, end)
        };
        let missing = ranges(header, payload).map(packets);
        // Packets that left less than a round trip ago were under way when the receiver asked.
        let left = self.peers[usize::from(from)].left;
        let fresh = left.is_some_and(|left| now.since(left) < self.rtt.mean());
        if header.length == 0 || !self.sender.resend(from, missing, fresh) {
            self.owe(from, Owed::Announce);
        }
    }

    fn grant(&mut self) {
        while let Some(to) = self.receiver.grant() {
            self.owe(to, Owed::Grant);
        }
    }

    /// Sets the remainder of the slowest receiver from a source outside.
    pub(crate) fn set_slowest(&mut self, bytes: u64) {
        self.receiver.slowest_bytes = Some(bytes);
        self.grant();
    }

    /// Looks for messages that have stalled. Returns a failure when a rank has been silent for too
    /// long.
    pub(crate) fn check(&mut self, config: &ShuffleConfig, now: Timestamp) -> Option<RankFailure> {
        self.next_check = now + self.rtt.interval(config) / 2;
        let (at, took_ns) = self.reduced;
        if self.reduction.is_some() && now.since(at) > config.resend_after {
            let mut out = Vec::new();
            self.reduction.iter().for_each(|reduction| reduction.again(&mut out));
            // Each repeat replaces the waiting steps, so the queue never holds more than two
            // rounds.
            self.steps = out.into();
            let age_max = took_ns.saturating_mul(u64::from(RESULT_AGE_MAX));
            if now.since(at).as_nanos() as u64 > age_max {
                self.receiver.slowest_bytes = None;
                self.grant();
            }
        }
        for rank in 0..self.members.len() as u16 {
            if rank != self.me
                && let Some(failure) = self.check_peer(config, now, rank)
            {
                return Some(failure);
            }
        }
        None
    }

    fn check_peer(
        &mut self,
        config: &ShuffleConfig,
        now: Timestamp,
        rank: u16,
    ) -> Option<RankFailure> {
        let at = usize::from(rank);
        let (incoming, outgoing) = (&self.receiver.messages[at], &self.sender.messages[at]);
        let wants_in = incoming.expected && !incoming.complete;
        let wants_out = outgoing.open() && outgoing.body.is_some();
        if !wants_in && !wants_out {
            // The rank owes nothing. Its silence begins when something is asked of it.
            self.peers[at].heard = now;
            return None;
        }
        let peer = self.peers[at];
        if now.since(peer.heard) >= config.silence_max {
            // Anybody may claim to be the rank, so the claim only explains a silence.
            let silent = RankFailure::Silent { rank };
            let elsewhere = |address| RankFailure::Elsewhere { rank, address };
            return Some(peer.elsewhere.map_or(silent, elsewhere));
        }
        let backoff = 1 << peer.tries.min(BACKOFF_MAX);
        let interval = self.rtt.interval(config) * backoff;
        // Before the announcement of a message, its sender is the rank that asks soon.
        let patience = if incoming.announced { interval } else { config.resend_after * backoff };
        let stuck = !incoming.announced || self.receiver.has_gap(rank);
        if wants_in && stuck && now >= peer.probe_in {
            self.peers[at].probe_in = now + patience;
            self.peers[at].tries += 1;
            self.owe(rank, Owed::Resend);
        }
        if wants_out && now >= peer.probe_out {
            self.peers[at].probe_out = now + interval;
            self.peers[at].tries += 1;
            self.peers[at].last_sent = None;
            self.owe(rank, Owed::Announce);
        }
        None
    }

    fn header(&self, kind: ShuffleKind, to: u16, class: TrafficClass) -> ShuffleHeader {
        let operation = self.number;
        let message = &self.sender.messages[usize::from(to)];
        ShuffleHeader {
            kind,
            class,
            from: self.me,
            operation,
            offset: 0,
            length: message.len(),
            extra: message.unscheduled,
            agreement: self.agreement,
        }
    }

    /// The next control datagram, with its receiver.
    pub(crate) fn next_control(&mut self) -> Option<(u16, ShuffleHeader, Bytes)> {
        if let Some(Step { to, round, step, value }) = self.steps.pop_front() {
            let header = self.header(ShuffleKind::Reduce, to, TrafficClass::Control);
            let header = ShuffleHeader { offset: step, length: value, extra: round, ..header };
            return Some((to, header, Bytes::new()));
        }
        while let Some((to, owed)) = self.owed.pop_front() {
            self.peers[usize::from(to)].owed &= !(owed as u8);
            if let Some((header, payload)) = self.control(to, owed) {
                return Some((to, header, payload));
            }
        }
        None
    }

    /// The control datagram that is owed; `None` when it has become pointless.
    fn control(&self, to: u16, owed: Owed) -> Option<(ShuffleHeader, Bytes)> {
        let plain = |kind| ShuffleHeader {
            length: 0,
            extra: 0,
            ..self.header(kind, to, TrafficClass::Control)
        };
        let incoming = &self.receiver.messages[usize::from(to)];
        let header = match owed {
            Owed::Ack => plain(ShuffleKind::Ack),
            Owed::Wait => plain(ShuffleKind::Wait),
            Owed::Grant | Owed::Resend if incoming.complete => return None,
            Owed::Grant => ShuffleHeader {
                offset: self.receiver.granted_bytes(to),
                ..plain(ShuffleKind::Grant)
            },
            Owed::Announce => {
                let message = &self.sender.messages[usize::from(to)];
                message.body.as_ref()?;
                self.header(ShuffleKind::Data, to, TrafficClass::Control)
            }
            Owed::Resend => {
                let packet = u64::from(self.sender.packet_bytes);
                let bytes =
                    |index: u32| (u64::from(index) * packet).min(u64::from(u32::MAX)) as u32;
                let range = |(begin, end)| (bytes(begin), bytes(end) - bytes(begin));
                let missing: Vec<_> = self.receiver.gaps(to).into_iter().map(range).collect();
                let (offset, length) = missing.first().copied().unwrap_or((0, 0));
                let header = ShuffleHeader { offset, length, ..plain(ShuffleKind::Resend) };
                return Some((header, encode_ranges(&missing)));
            }
        };
        Some((header, Bytes::new()))
    }

    /// The next packet with payload.
    pub(crate) fn next_data(
        &mut self,
        config: &ShuffleConfig,
        now: Timestamp,
    ) -> Option<(u16, ShuffleHeader, Bytes)> {
        let (to, index, again) = self.sender.next()?;
        let interval = self.rtt.interval(config);
        let message = &self.sender.messages[usize::from(to)];
        let peer = &mut self.peers[usize::from(to)];
        peer.probe_out = now + interval;
        peer.left = Some(now);
        peer.last_sent = (peer.met && !again && index + 1 == message.packets).then_some(now);
        let class = if again { TrafficClass::Repair } else { TrafficClass::Bulk };
        let header = self.header(ShuffleKind::Data, to, class);
        let begin = index * config.packet_bytes;
        let end = begin.saturating_add(config.packet_bytes).min(header.length);
        let body = self.sender.messages[usize::from(to)].body.as_ref()?;
        let payload = body.slice(begin as usize..end as usize);
        Some((to, ShuffleHeader { offset: begin, ..header }, payload))
    }
}
