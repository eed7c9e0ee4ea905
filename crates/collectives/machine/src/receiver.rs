//! The receiving half of one operation: which message gets the next grant.
//!
//! Two limits hold (section 3.4). All messages together may have `overcommit` round trips of
//! packets granted and not yet received. Each message has a window in proportion to its missing
//! bytes. Among the messages below their window, the message with the greatest remaining fraction
//! gets the next grant.
//!
//! Every arrival changes every window, because all windows depend on the remainder of the whole
//! operation. The obvious scan per packet costs a thousand steps with a thousand nodes. But
//! `outstanding < limit * missing / total` is the same as `outstanding / missing < limit / total`.
//! The left side depends on one message alone. The right side is a threshold for all messages, and
//! rises while the operation runs. Messages at their window therefore wait in a heap ordered by the
//! left side. When the threshold passes a message, the message moves to a heap ordered by priority:
//!
//! ```text
//!   arrival or grant        key < threshold
//!  ---------------> blocked ----------------> eligible ---> granted, and back to blocked
//!                   least key first           greatest remaining fraction first
//! ```
//!
//! An entry carries the version of its message. An entry with an old version is dropped, so each
//! packet costs O(log n).
//!
//! At the start the total is unknown, because the announcements of senders in the own rack arrive
//! first. These senders would get all the grants that may ever be outstanding, and other senders
//! would starve until the grants are used up. This starvation alone cost 2 to 3 % of a shuffle of
//! 16 packets per message. The first limit is therefore one round trip, which keeps the link busy,
//! and grows by one packet with each arrival, as TCP's slow start does. Section 3.4 names slow
//! start as a remedy and leaves it open.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use bytes::Bytes;
use evenfall_core::{Malformed, Timestamp};

use crate::buffers::Buffers;
use crate::config::ShuffleConfig;
use crate::error::RankFailure;
use crate::priority::{fraction, message_seed, tie};
use crate::wire::{HEADER_BYTES, RANGES_MAX, ShuffleHeader};

/// A message of one packet is handed on without a copy from 16 KiB on. A message of that length
/// fills a good part of the receive buffer that it holds.
const SHARED_BYTES_MIN: usize = 16_384;

/// One incoming message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incoming {
    /// Whether a message is expected from this rank.
    pub(crate) expected: bool,
    /// Whether the length of the message is known.
    pub(crate) announced: bool,
    /// Whether the message has arrived in full.
    pub(crate) complete: bool,
    /// Packets that the sender may send.
    pub(crate) granted: u32,
    /// When the newest new packet of the message arrived.
    pub(crate) progress: Timestamp,
    total: u32,
    packets: u32,
    received_bytes: u32,
    received: u32,
    /// All packets before this index have arrived.
    first_missing: u32,
    /// Index after the last packet that has arrived.
    end: u32,
    bitmap: Vec<u64>,
    buffer: Vec<u8>,
    version: u32,
    seed: u64,
}

impl Incoming {
    fn missing(&self) -> u32 {
        self.total - self.received_bytes
    }

    fn outstanding(&self) -> u32 {
        self.granted - self.received
    }

    /// Stores a piece at its place. A piece in order is appended. Zeroes are written only into
    /// gaps, because clearing the whole message first costs as much as a copy.
    fn store(&mut self, begin: usize, payload: &[u8]) {
        if begin >= self.buffer.len() {
            self.buffer.resize(begin, 0);
            self.buffer.extend_from_slice(payload);
        } else {
            self.buffer[begin..begin + payload.len()].copy_from_slice(payload);
        }
    }

    /// The first packet from `from` on that is missing, or that has arrived; `packets` when there
    /// is none.
    fn next(&self, from: u32, missing: bool) -> u32 {
        let mut at = from;
        while at < self.packets {
            let word = self.bitmap[at as usize / 64] ^ if missing { u64::MAX } else { 0 };
            let rest = word >> (at % 64);
            if rest != 0 {
                return (at + rest.trailing_zeros()).min(self.packets);
            }
            at = (at / 64 + 1) * 64;
        }
        self.packets
    }

    /// Whether a packet arrived after a missing packet. The missing packet is lost or late.
    pub(crate) fn overtaken(&self) -> bool {
        self.received > self.first_missing
    }

    fn has(&self, index: u32) -> bool {
        self.bitmap[index as usize / 64] >> (index % 64) & 1 == 1
    }
}

/// The effect of a DATA packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The packet brought a length, or a piece of the message.
    Part,
    /// The piece had arrived before.
    Duplicate,
    /// The packet brought the last piece of this message.
    Whole(Bytes),
    /// The message had been completed before.
    Known,
    /// The packet cannot be taken.
    Refused(RankFailure),
}

/// The receiving half of one operation at one rank.
#[derive(Debug)]
pub(crate) struct Receiver {
    me: u16,
    buffers: Buffers,
    pub(crate) messages: Vec<Incoming>,
    /// Messages that are expected and not complete.
    pub(crate) open: usize,
    /// Bytes missing of the messages whose length is known.
    pub(crate) missing_bytes: u64,
    /// Packets that had arrived before.
    pub(crate) duplicates: u64,
    /// Packets granted, without the packets that senders sent unasked.
    pub(crate) grants: u64,
    /// Bytes missing at the slowest receiver, when they are known.
    pub(crate) slowest_bytes: Option<u64>,
    announced_bytes: u64,
    incoming_bytes_max: u64,
    outstanding: u64,
    outstanding_max: f64,
    /// New packets with payload.
    received: u64,
    packet_bytes: u32,
    rtt_packets: u32,
    grant_packets: u32,
    /// Packets of a chunk, where messages are cut ([`chunks`](crate::chunks)).
    chunk_packets: Option<u32>,
    /// The messages whose next chunk may be granted.
    chunks_due: VecDeque<u16>,
    /// Priority, tie-break, message, version.
    eligible: BinaryHeap<(u64, u16, u16, u32)>,
    blocked: BinaryHeap<Reverse<(u64, u16, u32)>>,
}

impl Receiver {
    pub(crate) fn new(
        config: &ShuffleConfig,
        operation: u64,
        me: u16,
        members: usize,
        buffers: Buffers,
    ) -> Self {
        let seed = |from| message_seed(operation, from as u16, me);
        let message = |from| Incoming { seed: seed(from), ..Incoming::default() };
        Self {
            me,
            buffers,
            messages: (0..members).map(message).collect(),
            open: 0,
            missing_bytes: 0,
            duplicates: 0,
            grants: 0,
            slowest_bytes: None,
            announced_bytes: 0,
            incoming_bytes_max: config.incoming_bytes_max,
            outstanding: 0,
            outstanding_max: config.overcommit * f64::from(config.rtt_packets),
            received: 0,
            packet_bytes: config.packet_bytes,
            rtt_packets: config.rtt_packets,
            grant_packets: config.grant_packets.max(1),
            chunk_packets: config.chunks.map(|rule| rule.packets.max(1)),
            chunks_due: VecDeque::new(),
            eligible: BinaryHeap::new(),
            blocked: BinaryHeap::new(),
        }
    }

    /// Takes a packet of a message of this operation.
    pub(crate) fn data(
        &mut self,
        now: Timestamp,
        header: &ShuffleHeader,
        payload: &Bytes,
    ) -> Result<Taken, Malformed> {
        let from = header.from;
        let message = &self.messages[usize::from(from)];
        if message.complete {
            self.duplicates += u64::from(!payload.is_empty());
            return Ok(Taken::Known);
        }
        if !message.expected || message.announced && message.total != header.length {
            return Ok(Taken::Refused(RankFailure::Disagrees { rank: from }));
        }
        let index = packet_index(header, payload.len(), self.packet_bytes)?;
        if !message.announced {
            let announced = self.announced_bytes + u64::from(header.length);
            if announced > self.incoming_bytes_max {
                return Ok(Taken::Refused(RankFailure::TooMuch { rank: from }));
            }
            self.announced_bytes = announced;
            self.announce(now, header);
        }
        match index {
            Some(index) => Ok(self.take(now, from, index, payload)),
            None if header.length == 0 => Ok(self.finish(from)),
            None => Ok(Taken::Part),
        }
    }

    fn announce(&mut self, now: Timestamp, header: &ShuffleHeader) {
        let packets = header.length.div_ceil(self.packet_bytes);
        let message = &mut self.messages[usize::from(header.from)];
        message.announced = true;
        message.progress = now;
        message.total = header.length;
        message.packets = packets;
        message.granted = header.extra.min(packets);
        message.bitmap = vec![0; packets.div_ceil(64) as usize];
        self.missing_bytes += u64::from(header.length);
        self.outstanding += u64::from(message.granted);
        self.requeue(header.from);
    }

    fn take(&mut self, now: Timestamp, from: u16, index: u32, payload: &Bytes) -> Taken {
        let message = &mut self.messages[usize::from(from)];
        if message.has(index) {
            self.duplicates += 1;
            return Taken::Duplicate;
        }
        let shared = message.packets == 1 && payload.len() >= SHARED_BYTES_MIN;
        if !shared && message.buffer.capacity() == 0 {
            // The memory is taken only now: an announcement alone costs none.
            message.buffer = self.buffers.take(message.total as usize);
        }
        if !shared {
            message.store(index as usize * self.packet_bytes as usize, payload);
        }
        message.bitmap[index as usize / 64] |= 1 << (index % 64);
        message.progress = now;
        message.received += 1;
        message.end = message.end.max(index + 1);
        message.received_bytes += payload.len() as u32;
        message.first_missing = message.next(message.first_missing, true);
        if message.granted < message.received.max(index + 1) {
            // The sender sent more than it was granted. The packets are counted as granted.
            let granted = message.received.max(index + 1);
            self.outstanding += u64::from(granted - message.granted);
            message.granted = granted;
        }
        self.received += 1;
        self.outstanding -= 1;
        self.missing_bytes -= payload.len() as u64;
        if message.received == message.packets {
            let whole = self.finish(from);
            return if shared { Taken::Whole(payload.clone()) } else { whole };
        }
        self.requeue(from);
        Taken::Part
    }

    fn finish(&mut self, from: u16) -> Taken {
        let message = &mut self.messages[usize::from(from)];
        message.complete = true;
        message.version += 1;
        message.bitmap = Vec::new();
        self.open -= 1;
        Taken::Whole(self.buffers.share(core::mem::take(&mut message.buffer)))
    }

    /// Enters the message again, after its state has changed.
    fn requeue(&mut self, from: u16) {
        let message = &mut self.messages[usize::from(from)];
        message.version += 1;
        if self.chunk_packets.is_some() {
            // The chunk before is here in full.
            if message.first_missing == message.granted && message.granted < message.packets {
                self.chunks_due.push_back(from);
            }
            return;
        }
        if message.granted < message.packets {
            let (key, version) = (self.window_key(from), self.messages[usize::from(from)].version);
            self.blocked.push(Reverse((key, from, version)));
        }
        let entries = self.blocked.len() + self.eligible.len();
        if entries > 8 * self.messages.len() + 64 {
            self.sweep();
        }
    }

    /// Drops entries of old versions, so that the heaps hold no more entries than messages.
    fn sweep(&mut self) {
        let messages = &self.messages;
        let fresh = |from: u16, version| messages[usize::from(from)].version == version;
        self.blocked.retain(|&Reverse((_, from, version))| fresh(from, version));
        self.eligible.retain(|&(_, _, from, version)| fresh(from, version));
    }

    /// The left side: outstanding bytes over missing bytes. The bits of a float that is not
    /// negative sort as the float does.
    fn window_key(&self, from: u16) -> u64 {
        let message = &self.messages[usize::from(from)];
        let outstanding = f64::from(message.outstanding());
        (outstanding / f64::from(message.missing().max(1))).to_bits()
    }

    /// Packets that may be outstanding at present, over all messages.
    fn limit(&self) -> f64 {
        let started = u64::from(self.rtt_packets) + self.received;
        self.outstanding_max.min(started as f64)
    }

    /// The right side: equation 3.8, or 3.14 where the slowest receiver is known.
    fn threshold(&self) -> f64 {
        let total = self.missing_bytes.max(1) as f64;
        match self.slowest_bytes {
            None => self.limit() / total,
            Some(slowest) => {
                let slowest = (slowest as f64).max(total);
                self.limit() * total / (slowest * slowest)
            }
        }
    }

    fn tie(&self, from: u16) -> u16 {
        let members = self.messages.len();
        tie(members + usize::from(self.me) - usize::from(from), members)
    }

    fn priority(&self, from: u16) -> u64 {
        let message = &self.messages[usize::from(from)];
        // The priority counts granted packets, not arrived packets. With windows of a whole round
        // trip, a count of arrivals would leave the first message at the same priority after each
        // grant. The first message would then get all grants.
        fraction(message.total, self.packet_bytes, message.granted, Some(message.seed))
    }

    /// Grants packets to one message, if the limits allow it. Returns the rank of the message.
    pub(crate) fn grant(&mut self) -> Option<u16> {
        if let Some(chunk) = self.chunk_packets {
            let from = self.chunks_due.pop_front()?;
            let message = &mut self.messages[usize::from(from)];
            let packets = chunk.min(message.packets - message.granted);
            message.granted += packets;
            self.outstanding += u64::from(packets);
            self.grants += u64::from(packets);
            return Some(from);
        }
        if self.outstanding as f64 + 1.0 > self.limit() {
            return None;
        }
        let threshold = self.threshold();
        let bits = threshold.to_bits();
        while let Some(&Reverse((key, from, version))) = self.blocked.peek() {
            if key >= bits {
                break;
            }
            self.blocked.pop();
            if self.messages[usize::from(from)].version == version {
                self.eligible.push((self.priority(from), self.tie(from), from, version));
            }
        }
        loop {
            let (_, _, from, version) = self.eligible.pop()?;
            if self.messages[usize::from(from)].version != version {
                continue;
            }
            let key = self.window_key(from);
            if key >= bits {
                // The threshold has fallen, because newly announced bytes raised the total.
                self.blocked.push(Reverse((key, from, version)));
                continue;
            }
            self.grant_to(from, threshold);
            return Some(from);
        }
    }

    fn grant_to(&mut self, from: u16, threshold: f64) {
        let room = (self.limit() - self.outstanding as f64) as u32;
        let message = &mut self.messages[usize::from(from)];
        let window = (threshold * f64::from(message.missing())).ceil() as u32;
        let packets = window.saturating_sub(message.outstanding()).min(self.grant_packets);
        let packets = packets.clamp(1, room.max(1)).min(message.packets - message.granted);
        message.granted += packets;
        self.outstanding += u64::from(packets);
        self.grants += u64::from(packets);
        self.requeue(from);
    }

    /// Whether granted packets are missing.
    pub(crate) fn has_gap(&self, from: u16) -> bool {
        let message = &self.messages[usize::from(from)];
        !message.complete && message.announced && message.first_missing < message.granted
    }

    /// The first ranges of packets to ask for again. When later packets have overtaken missing
    /// packets, only the overtaken packets are asked for, because packets granted behind them are
    /// still under way. Otherwise all granted packets that have not arrived are asked for.
    pub(crate) fn gaps(&self, from: u16) -> Vec<(u32, u32)> {
        let message = &self.messages[usize::from(from)];
        let last = if message.overtaken() { message.end } else { message.granted };
        let mut gaps = Vec::new();
        let mut at = message.first_missing;
        while self.has_gap(from) && at < last && gaps.len() < RANGES_MAX {
            let end = message.next(at, false).min(last);
            gaps.push((at, end));
            at = message.next(end, true);
        }
        gaps
    }

    /// Messages with at least one byte here, complete messages, and bytes of all messages.
    pub(crate) fn progress(&self) -> (usize, usize, u64) {
        let begun = self.messages.iter().filter(|m| m.received > 0 || m.complete).count();
        let complete = self.messages.iter().filter(|m| m.complete).count();
        (begun, complete, self.messages.iter().map(|m| u64::from(m.received_bytes)).sum())
    }

    /// Where the grant of a message ends, in bytes.
    pub(crate) fn granted_bytes(&self, from: u16) -> u32 {
        let message = &self.messages[usize::from(from)];
        let bytes = u64::from(message.granted) * u64::from(self.packet_bytes);
        bytes.min(u64::from(message.total)) as u32
    }
}

/// Index of the packet that a payload is; `None` for an announcement.
fn packet_index(
    header: &ShuffleHeader,
    length: usize,
    packet_bytes: u32,
) -> Result<Option<u32>, Malformed> {
    if length == 0 {
        return Ok(None);
    }
    let left = header.length.saturating_sub(header.offset);
    if !header.offset.is_multiple_of(packet_bytes)
        || length as u64 != u64::from(left.min(packet_bytes))
    {
        return Err(Malformed { what: "not a whole packet of its message", offset: HEADER_BYTES });
    }
    Ok(Some(header.offset / packet_bytes))
}

#[cfg(test)]
mod tests {
    use evenfall_core::TrafficClass;

    use super::*;
    use crate::wire::ShuffleKind;

    #[test]
    fn what_was_overtaken_is_asked_for_before_what_may_be_on_its_way() {
        let config = ShuffleConfig { packet_bytes: 10, ..ShuffleConfig::default() };
        let mut receiver = Receiver::new(&config, 1, 0, 2, Buffers::new(0));
        receiver.messages[1].expected = true;
        receiver.open = 1;
        let take = |receiver: &mut Receiver, index: u32| {
            let (kind, class) = (ShuffleKind::Data, TrafficClass::Bulk);
            // The sender may send six of the eight packets unasked.
            let (offset, length, extra) = (10 * index, 80, 6);
            let header = ShuffleHeader {
                kind,
                class,
                from: 1,
                operation: 1,
                offset,
                length,
                extra,
                agreement: 0,
            };
            receiver.data(Timestamp::ZERO, &header, &Bytes::from_static(&[7; 10]))
        };
        assert_eq!(take(&mut receiver, 0), Ok(Taken::Part));
        assert_eq!(take(&mut receiver, 3), Ok(Taken::Part));
        assert_eq!(receiver.gaps(1), [(1, 3)]);
        assert_eq!(take(&mut receiver, 1), Ok(Taken::Part));
        assert_eq!(take(&mut receiver, 2), Ok(Taken::Part));
        assert_eq!(receiver.gaps(1), [(4, 6)]);
    }
}
