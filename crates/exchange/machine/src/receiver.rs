//! The receiving half of one operation: whom to grant, and how much.
//!
//! Two limits (section 3.4): `overcommit` round trips' worth of packets granted and not yet here
//! in all, and for each message a window in proportion to what is missing of it. Among messages
//! below their window, the one with the greatest remaining fraction is granted next.
//!
//! Every arrival changes every window, for the remainder of the whole operation is in all of them;
//! a scan per packet would be the obvious way, and costs a thousand nodes a thousand steps. But
//! `outstanding < limit * missing / total` is the same as `outstanding / missing < limit / total`:
//! on the left only what is the message's own, on the right one threshold for all, which rises
//! while the operation runs. So messages at their window wait in a heap by their left side; when
//! the threshold passes it, they move to a heap by priority:
//!
//! ```text
//!   arrival or grant        key < threshold
//!  ---------------> blocked ----------------> eligible ---> granted, and back to blocked
//!                   least key first           greatest remaining fraction first
//! ```
//!
//! Entries of a message that has changed since are recognised by its version and dropped: O(log n)
//! per packet.
//!
//! At the start the total is not known: senders in the own rack are heard first, and would be given
//! all that may ever be outstanding, for others to starve on until it is used up. That alone cost
//! 2 to 3 % of a shuffle of 16 packets per message, and nothing else did. So the first limit starts
//! at one round trip, which keeps the link busy, and grows by one with each packet that comes, as
//! TCP's does: the slow start that section 3.4 names as a fix and leaves open.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use evenfall_core::{Malformed, Timestamp};

use crate::buffers::Buffers;
use crate::config::Config;
use crate::error::Failure;
use crate::priority::{fraction, message_seed, tie};
use crate::wire::{HEADER_BYTES, Header, RANGES_MAX};

/// A message of one packet is handed on without a copy from this length on: then it fills a good
/// part of the receive buffer that it keeps from being used again.
const SHARED_BYTES_MIN: usize = 16_384;

/// One incoming message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incoming {
    /// Whether there will be one.
    pub(crate) expected: bool,
    /// Whether its length is known.
    pub(crate) announced: bool,
    /// Whether all of it was here.
    pub(crate) complete: bool,
    /// Packets that its sender may send.
    pub(crate) granted: u32,
    /// When something new came of it.
    pub(crate) progress: Timestamp,
    total: u32,
    packets: u32,
    received_bytes: u32,
    received: u32,
    /// Packets before this one are all here.
    first_missing: u32,
    /// One past the last packet that is here.
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

    /// Puts a piece where it belongs. In order it is only appended; zeroes are written for gaps
    /// alone, for to clear all first costs as much as a copy.
    fn store(&mut self, begin: usize, payload: &[u8]) {
        if begin >= self.buffer.len() {
            self.buffer.resize(begin, 0);
            self.buffer.extend_from_slice(payload);
        } else {
            self.buffer[begin..begin + payload.len()].copy_from_slice(payload);
        }
    }

    /// The first packet from this one on that is missing, or that is not; `packets` for none.
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

    /// Whether a packet came after one that is missing: that one is lost, or late.
    pub(crate) fn overtaken(&self) -> bool {
        self.received > self.first_missing
    }

    fn has(&self, index: u32) -> bool {
        self.bitmap[index as usize / 64] >> (index % 64) & 1 == 1
    }
}

/// What a DATA packet led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Only its length, or a piece.
    Part,
    /// A piece that was here already.
    Duplicate,
    /// The last piece: here is the message.
    Whole(Bytes),
    /// The message was complete before.
    Known,
    /// It cannot be taken.
    Refused(Failure),
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Receiver {
    me: u16,
    buffers: Buffers,
    pub(crate) messages: Vec<Incoming>,
    /// Messages that are expected and not complete.
    pub(crate) open: usize,
    /// Bytes missing of the messages whose length is known.
    pub(crate) missing_bytes: u64,
    /// Packets that were here already.
    pub(crate) duplicates: u64,
    /// Packets granted in all, beyond what senders sent unasked.
    pub(crate) grants: u64,
    /// Bytes missing at the slowest receiver, when that is known.
    pub(crate) slowest_bytes: Option<u64>,
    announced_bytes: u64,
    incoming_bytes_max: u64,
    outstanding: u64,
    outstanding_max: f64,
    /// Packets with payload that were new.
    received: u64,
    packet_bytes: u32,
    rtt_packets: u32,
    grant_packets: u32,
    /// Priority, tie-break, message, version.
    eligible: BinaryHeap<(u64, u16, u16, u32)>,
    blocked: BinaryHeap<Reverse<(u64, u16, u32)>>,
}

impl Receiver {
    pub(crate) fn new(
        config: &Config,
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
            eligible: BinaryHeap::new(),
            blocked: BinaryHeap::new(),
        }
    }

    /// A packet of a message of this operation.
    pub(crate) fn data(
        &mut self,
        now: Timestamp,
        header: &Header,
        payload: &Bytes,
    ) -> Result<Taken, Malformed> {
        let from = header.from;
        let message = &self.messages[usize::from(from)];
        if message.complete {
            self.duplicates += u64::from(!payload.is_empty());
            return Ok(Taken::Known);
        }
        if !message.expected || message.announced && message.total != header.length {
            return Ok(Taken::Refused(Failure::Disagrees { rank: from }));
        }
        let index = packet_index(header, payload.len(), self.packet_bytes)?;
        if !message.announced {
            let announced = self.announced_bytes + u64::from(header.length);
            if announced > self.incoming_bytes_max {
                return Ok(Taken::Refused(Failure::TooMuch { rank: from }));
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

    fn announce(&mut self, now: Timestamp, header: &Header) {
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
            // Not sooner: nothing is spent on an announcement alone.
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
            // Its sender took more than it was given; count it as given.
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

    /// Enters the message anew, after something of it has changed.
    fn requeue(&mut self, from: u16) {
        let message = &mut self.messages[usize::from(from)];
        message.version += 1;
        if message.granted < message.packets {
            let (key, version) = (self.window_key(from), self.messages[usize::from(from)].version);
            self.blocked.push(Reverse((key, from, version)));
        }
        let entries = self.blocked.len() + self.eligible.len();
        if entries > 8 * self.messages.len() + 64 {
            self.sweep();
        }
    }

    /// Drops stale entries, so that the heaps stay as small as there are messages.
    fn sweep(&mut self) {
        let messages = &self.messages;
        let fresh = |from: u16, version| messages[usize::from(from)].version == version;
        self.blocked.retain(|&Reverse((_, from, version))| fresh(from, version));
        self.eligible.retain(|&(_, _, from, version)| fresh(from, version));
    }

    /// The left side: what is outstanding, over what is missing. Bits of a non-negative float sort
    /// as it does.
    fn window_key(&self, from: u16) -> u64 {
        let message = &self.messages[usize::from(from)];
        let outstanding = f64::from(message.outstanding());
        (outstanding / f64::from(message.missing().max(1))).to_bits()
    }

    /// Packets that may be outstanding in all, now.
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
        // By what is granted, not by what is here: with windows of a whole round trip the message
        // that came first would else be given all of it, being no less behind for it.
        fraction(message.total, self.packet_bytes, message.granted, Some(message.seed))
    }

    /// Grants something to one message, if the limits allow. Whom.
    pub(crate) fn grant(&mut self) -> Option<u16> {
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
                // The threshold has fallen since: more is expected than was known.
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

    /// Whether packets that were granted are not here.
    pub(crate) fn has_gap(&self, from: u16) -> bool {
        let message = &self.messages[usize::from(from)];
        !message.complete && message.announced && message.first_missing < message.granted
    }

    /// Ranges of packets to ask for again, the first ones of them: those that others have
    /// overtaken, for what was granted behind these is still on its way; where there are none, all
    /// that were granted and are not here.
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

    /// Messages of which something is here, those that are complete, and bytes of all of them.
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

/// Which packet a payload is; `None` for an announcement.
fn packet_index(
    header: &Header,
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
    use evenfall_core::Class;

    use super::*;
    use crate::wire::Kind;

    #[test]
    fn what_was_overtaken_is_asked_for_before_what_may_be_on_its_way() {
        let config = Config { packet_bytes: 10, ..Config::default() };
        let mut receiver = Receiver::new(&config, 1, 0, 2, Buffers::new(0));
        receiver.messages[1].expected = true;
        receiver.open = 1;
        let take = |receiver: &mut Receiver, index: u32| {
            let (kind, class) = (Kind::Data, Class::Bulk);
            // Six of its eight packets may come unasked.
            let (offset, length, extra) = (10 * index, 80, 6);
            let header =
                Header { kind, class, from: 1, operation: 1, offset, length, extra, agreement: 0 };
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
