//! Makes one ordered feed from redundant, lossy and reordered copies.
//!
//! A venue sends every packet twice, over networks that fail independently (sides A and B). The
//! receiver takes the copy that comes first. A hole on one side is therefore no loss yet. The
//! arbiter reports the hole once, as a range, so that the caller can ask for the messages again.
//! The arbiter holds the messages behind the hole until the hole is filled, is given up, or a
//! stated limit is reached. No message is skipped without an [`ArbiterEvent::Lost`].
//!
//! **A copy has the number and the bytes of a message that was taken.** Numbers begin anew: every
//! week at some venues, and whenever a sender starts again. A message under a used number with
//! other bytes is therefore no copy, and is never thrown away in silence.
//!
//! A sequence number is also only a claim. A damaged or forged packet may claim a place far from
//! all others, and so make a hole that no packet can fill. A packet from another place than the
//! feed's is therefore kept aside, and refused with [`SequenceJump`]. The place is believed after
//! [`FAR_PACKETS`] packets that follow each other from there, while no packet carries the feed on
//! at its old place. Then the kept packets are given.
//!
//! | number of the packet | then |
//! |---|---|
//! | next, or up to [`ArbiterLimits::jump_max`] ahead | it is taken, or held behind the hole |
//! | further ahead | kept aside; when believed, the numbers between are a hole |
//! | used, with the same bytes | a copy ([`CopyCounts::ignored`]) |
//! | given up before | too late ([`CopyCounts::late`]) |
//! | used with other bytes, or behind all that is remembered | kept aside; see below |
//!
//! When packets under used numbers are believed, the numbers begin anew
//! ([`ArbiterEvent::Restart`]). Else they count as [`CopyCounts::reused`], or as `late` where the
//! number is not remembered.
//!
//! A recording ([`ArbiterLimits::recorded`]) holds all packets that will ever come, and nobody
//! forges it. There, a kept packet is also believed when the other side has a copy of it, or when a
//! second packet has followed it before the numbers move again or the recording ends.
//!
//! The arbiter knows only sequence numbers. The arbiter therefore serves MoldUDP64
//! ([`crate::mold`]), CME MDP 3.0 and any other feed that numbers its messages.

mod memory;
mod run;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use core::ops::Range;
use memory::{CopyMemory, Recall};
use run::{StrayPacket, StrayRun};
use std::collections::{BTreeMap, VecDeque};

/// The redundant side that a copy came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FeedSide {
    /// The first feed.
    A,
    /// The second feed.
    B,
    /// Neither side: an answer to a request for missing messages.
    Again,
}

/// How many messages may wait behind a hole before the hole is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbiterLimits {
    /// Messages that may wait. A 1 Gb/s feed of 40-byte messages sends the default number in about
    /// 20 ms. A re-request within one site takes less time.
    pub messages_max: usize,
    /// Bytes that may wait, so that large messages cannot take more memory than small ones.
    pub bytes_max: usize,
    /// How far from the last known message a packet may lie and still be believed at once, in
    /// messages. The busiest feed on record (484,460 messages in its first second) sends the
    /// default, 4,194,304, in eight seconds. A longer silence of both sides is a fault for people
    /// to look at.
    pub jump_max: u64,
    /// Numbers whose bytes are remembered, 16 bytes each. A copy that comes after as many further
    /// messages is not recognised. The default is some 100 ms of the busiest feed, far more than
    /// two paths differ by.
    pub remembered_max: usize,
    /// Whether the packets come out of a recording.
    pub is_recorded: bool,
}

/// Packets that must follow each other from a far place before the place is believed. A single
/// fault damages fewer, and a busy feed sends eight in less than a millisecond.
pub const FAR_PACKETS: u32 = 8;

/// A packet from another place than the feed's, which is not believed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceJump {
    /// The place that it claims.
    pub sequence: u64,
    /// The number after the last message known to exist.
    pub expected: u64,
}

impl core::fmt::Display for SequenceJump {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { sequence, expected } = self;
        if sequence < expected {
            return write!(
                f,
                "sequence {sequence} comes again and is no copy; {expected} comes next"
            );
        }
        write!(f, "sequence {sequence} is too far from {expected}, which comes next")
    }
}

impl std::error::Error for SequenceJump {}

impl Default for ArbiterLimits {
    fn default() -> Self {
        Self {
            messages_max: 65_536,
            bytes_max: 16 << 20,
            jump_max: 1 << 22,
            remembered_max: 1 << 16,
            is_recorded: false,
        }
    }
}

impl ArbiterLimits {
    /// Limits for packets of a recording. A recording may have all of side A in front of side B, so
    /// a million numbers are remembered.
    pub fn recorded() -> Self {
        Self { remembered_max: 1 << 20, is_recorded: true, ..Self::default() }
    }
}

/// An event of the arbiter. Events come in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArbiterEvent {
    /// The next message.
    Message {
        /// Its number.
        sequence: u64,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Messages that exist and have not come. Each range is reported once, when it is first seen.
    Gap(Range<u64>),
    /// Messages that are given up. The next message follows them.
    Lost(Range<u64>),
    /// The numbers begin anew. The next message has this number.
    Restart(u64),
}

/// Counts of the messages that passed through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages that came first over side A.
    pub first_a: u64,
    /// Messages that came first over side B.
    pub first_b: u64,
    /// Messages that came first as an answer to a request.
    pub first_again: u64,
    /// Copies of messages that had been delivered or held before.
    pub ignored: u64,
    /// Messages given up.
    pub lost: u64,
    /// Ranges of messages given up.
    pub losses: u64,
    /// Messages that came after they had been given up, or whose numbers lie before the first.
    pub late: u64,
    /// Messages that were not taken because other bytes came under their numbers before.
    pub reused: u64,
    /// Packets that were not taken because their place is too far ahead.
    pub far: u64,
    /// Far places that were believed in the end.
    pub jumps: u64,
    /// How often the numbers began anew.
    pub restarts: u64,
}

impl core::ops::Add for CopyCounts {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            delivered: self.delivered + more.delivered,
            first_a: self.first_a + more.first_a,
            first_b: self.first_b + more.first_b,
            first_again: self.first_again + more.first_again,
            ignored: self.ignored + more.ignored,
            lost: self.lost.saturating_add(more.lost),
            losses: self.losses + more.losses,
            late: self.late + more.late,
            reused: self.reused + more.reused,
            far: self.far + more.far,
            jumps: self.jumps + more.jumps,
            restarts: self.restarts + more.restarts,
        }
    }
}

/// Orders the messages of a feed. After each input, the caller drains [`Arbiter::poll`].
#[derive(Debug)]
pub struct Arbiter {
    limits: ArbiterLimits,
    /// The next sequence to deliver; `None` until the first message when the start is open.
    next: Option<u64>,
    /// The number after the highest sequence known to exist.
    known_end: u64,
    /// The first number since the numbers began anew.
    first: u64,
    /// Packets from another place.
    stray: Option<StrayRun>,
    memory: CopyMemory,
    held: BTreeMap<u64, Bytes>,
    held_bytes: usize,
    events: VecDeque<ArbiterEvent>,
    counts: CopyCounts,
}

impl Arbiter {
    /// Starts at sequence `first`, or at the first message that comes.
    pub fn new(first: Option<u64>, limits: ArbiterLimits) -> Self {
        Self {
            limits,
            next: first,
            known_end: first.unwrap_or(0),
            first: first.unwrap_or(0),
            stray: None,
            memory: CopyMemory::new(limits.remembered_max),
            held: BTreeMap::new(),
            held_bytes: 0,
            events: VecDeque::new(),
            counts: CopyCounts::default(),
        }
    }

    /// Takes one copy of a packet of one message.
    ///
    /// # Errors
    /// [`SequenceJump`], and the packet is kept aside.
    pub fn offer(
        &mut self,
        side: FeedSide,
        sequence: u64,
        bytes: Bytes,
    ) -> Result<(), SequenceJump> {
        self.offer_all(side, sequence, [bytes])
    }

    /// Takes one copy of a packet of several messages. `sequence` is the number of the first
    /// message.
    ///
    /// # Errors
    /// [`SequenceJump`], and the packet is kept aside.
    pub fn offer_all(
        &mut self,
        side: FeedSide,
        sequence: u64,
        messages: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), SequenceJump> {
        let next = match self.next {
            Some(next) => next,
            None => self.begin_at(sequence),
        };
        let is_ahead = self.is_far_ahead(sequence);
        if sequence < next || is_ahead || !self.held.is_empty() {
            let packet = self.compare(side, sequence, messages.into_iter().collect());
            // An answer to a request says nothing about the place of the feed.
            return match packet.reused > 0 || is_ahead || self.is_unknown(&packet) {
                true if side != FeedSide::Again => self.set_aside(packet, is_ahead),
                _ => {
                    self.take_packet(packet);
                    Ok(())
                }
            };
        }
        self.oppose_stray(sequence);
        // The last number has no successor, so no message has it.
        for (bytes, sequence) in messages.into_iter().zip(sequence..u64::MAX) {
            self.take(side, sequence, bytes);
        }
        Ok(())
    }

    fn is_far_ahead(&self, sequence: u64) -> bool {
        sequence > self.known_end.saturating_add(self.limits.jump_max)
    }

    /// Counts the messages of a packet that are not copies and whose numbers are used.
    fn compare(&self, side: FeedSide, sequence: u64, messages: Vec<Bytes>) -> StrayPacket {
        let numbered = messages.iter().zip(sequence..u64::MAX);
        let is_reused = |bytes: &Bytes, sequence: u64| match self.held.get(&sequence) {
            Some(held) => held != bytes,
            // Behind a restart, numbers that were used before it come again.
            None if Some(sequence) >= self.next => false,
            None => self.memory.recall(sequence, bytes) == Recall::OtherBytes,
        };
        let reused = numbered.filter(|(bytes, sequence)| is_reused(bytes, *sequence)).count();
        StrayPacket { side, sequence, messages, reused: reused as u64 }
    }

    /// Whether all of a packet lies behind what is remembered.
    fn is_unknown(&self, packet: &StrayPacket) -> bool {
        let next = self.next.unwrap_or(0);
        let reach = self.first.max(next.saturating_sub(self.memory.reach()));
        let mut numbered = packet.messages.iter().zip(packet.sequence..u64::MAX);
        packet.sequence < reach
            && numbered.all(|(bytes, sequence)| {
                sequence < reach && self.memory.recall(sequence, bytes) == Recall::Unknown
            })
    }

    /// Takes what is new of a packet, and counts the rest.
    fn take_packet(&mut self, packet: StrayPacket) {
        let StrayPacket { side, sequence, messages, .. } = packet;
        // A run that leads up to a message that was taken lies before the start of the feed.
        if self.stray.as_ref().is_some_and(|run| !run.is_ahead && run.end == sequence) {
            self.drop_stray();
        }
        self.oppose_stray(sequence);
        for (bytes, sequence) in messages.into_iter().zip(sequence..u64::MAX) {
            self.take(side, sequence, bytes);
        }
    }

    fn take(&mut self, side: FeedSide, sequence: u64, bytes: Bytes) {
        let next = self.next.unwrap_or(sequence);
        // Copies of numbers from before a restart may still come over the slower side.
        let recall = self.memory.recall(sequence, &bytes);
        if recall == Recall::Copy || sequence < next || self.held.contains_key(&sequence) {
            *match recall {
                Recall::Copy => &mut self.counts.ignored,
                Recall::OtherBytes => &mut self.counts.reused,
                Recall::Unknown => &mut self.counts.late,
            } += 1;
            if sequence == next {
                self.next = Some(sequence + 1);
                self.known_end = self.known_end.max(sequence + 1);
                self.drain_held();
            }
            return;
        }
        match side {
            FeedSide::A => self.counts.first_a += 1,
            FeedSide::B => self.counts.first_b += 1,
            FeedSide::Again => self.counts.first_again += 1,
        }
        self.memory.remember(sequence, &bytes);
        self.know(sequence);
        self.known_end = self.known_end.max(sequence + 1);
        if sequence == next {
            self.deliver(sequence, bytes);
            self.drain_held();
            return;
        }
        self.held_bytes += bytes.len();
        self.held.insert(sequence, bytes);
        while self.held.len() > self.limits.messages_max || self.held_bytes > self.limits.bytes_max
        {
            self.abandon();
        }
    }

    /// Notes that all messages before `next_sequence` exist, as a heartbeat states.
    ///
    /// # Errors
    /// [`SequenceJump`], and the heartbeat is ignored.
    pub fn announce(&mut self, next_sequence: u64) -> Result<(), SequenceJump> {
        if self.next.is_none() {
            self.begin_at(next_sequence);
        }
        if self.is_far_ahead(next_sequence) {
            let jump_max = self.limits.jump_max;
            let follows =
                |run: &StrayRun| run.is_ahead && run.is_followed_by(next_sequence, jump_max);
            if !self.stray.as_ref().is_some_and(follows) {
                self.drop_stray();
            }
            let run = self.stray.get_or_insert_with(|| StrayRun::new(next_sequence, true));
            run.hear(next_sequence);
            self.counts.far += 1;
            return self.believe_if_supported(next_sequence);
        }
        self.oppose_stray(next_sequence);
        self.know(next_sequence);
        Ok(())
    }

    fn know(&mut self, end: u64) {
        if end > self.known_end {
            self.events.push_back(ArbiterEvent::Gap(self.known_end..end));
            self.known_end = end;
        }
    }

    /// Keeps a packet from another place, until the place is believed.
    fn set_aside(&mut self, packet: StrayPacket, is_ahead: bool) -> Result<(), SequenceJump> {
        let (side, sequence) = (packet.side, packet.sequence);
        let run = self.stray.as_ref();
        if let Some(original) = run.and_then(|run| run.original(sequence, &packet.messages)) {
            self.counts.ignored += packet.messages.len() as u64;
            // Both sides of a recording have the packet, so the venue has sent it.
            if self.limits.is_recorded && original.side != side {
                self.believe_stray();
                return Ok(());
            }
            return Err(SequenceJump { sequence, expected: self.known_end });
        }
        let jump_max = self.limits.jump_max;
        let takes = |run: &StrayRun| run.is_ahead == is_ahead && run.takes(&packet, jump_max);
        if let Some(run) = run.filter(|run| !takes(run)) {
            // The packets of a recording that the numbers leave behind were a session, if more than
            // one of them followed.
            if self.is_session(run) {
                self.believe_stray();
                return self.offer_all(side, sequence, packet.messages);
            }
            self.drop_stray();
        }
        self.counts.far += u64::from(is_ahead);
        let run = self.stray.get_or_insert_with(|| StrayRun::new(sequence, is_ahead));
        if let Some(dropped) = run.push(packet) {
            self.count_dropped(&dropped, is_ahead);
        }
        self.believe_if_supported(sequence)
    }

    /// Whether a run is a session of a recording that has ended.
    fn is_session(&self, run: &StrayRun) -> bool {
        self.limits.is_recorded && run.support > 1
    }

    fn believe_if_supported(&mut self, sequence: u64) -> Result<(), SequenceJump> {
        if self.stray.as_ref().is_some_and(|run| run.support >= FAR_PACKETS) {
            self.believe_stray();
            return Ok(());
        }
        Err(SequenceJump { sequence, expected: self.known_end })
    }

    /// Moves the feed to the place of the packets that were kept aside, and takes them.
    fn believe_stray(&mut self) {
        let Some(run) = self.stray.take() else { return };
        if run.is_ahead {
            self.counts.jumps += 1;
            self.counts.far = self.counts.far.saturating_sub(run.packets.len() as u64);
            self.know(run.start);
        } else {
            self.counts.restarts += 1;
        }
        // What is missing will not come: a restart ends the numbers, and a recording has no server
        // that could be asked.
        while (!run.is_ahead || self.limits.is_recorded) && self.missing().next().is_some() {
            self.abandon();
        }
        if !run.is_ahead {
            self.begin_at(run.start);
            self.events.push_back(ArbiterEvent::Restart(run.start));
        }
        for packet in run.packets {
            for (bytes, sequence) in packet.messages.into_iter().zip(packet.sequence..u64::MAX) {
                self.take(packet.side, sequence, bytes);
            }
        }
    }

    /// A packet that carries the feed on at its old place speaks against every other place.
    fn oppose_stray(&mut self, sequence: u64) {
        if sequence < self.known_end {
            return;
        }
        let Some(run) = &mut self.stray else { return };
        // The slower side of a recording may end the old numbers after the faster side has begun
        // new numbers.
        run.support = run.support.saturating_sub(1);
        if !self.limits.is_recorded {
            self.drop_stray();
        }
    }

    /// Gives up the packets that were kept aside, and counts them.
    fn drop_stray(&mut self) {
        let Some(run) = self.stray.take() else { return };
        run.packets.iter().for_each(|packet| self.count_dropped(packet, run.is_ahead));
    }

    fn count_dropped(&mut self, packet: &StrayPacket, is_ahead: bool) {
        if !is_ahead {
            self.counts.reused += packet.reused;
            self.counts.late += packet.messages.len() as u64 - packet.reused;
        }
    }

    /// The end of a recording: packets that were kept aside are a session or are given up, and so
    /// are all holes.
    pub fn finish(&mut self) {
        match &self.stray {
            Some(run) if self.is_session(run) => self.believe_stray(),
            _ => self.drop_stray(),
        }
        while self.missing().next().is_some() {
            self.abandon();
        }
    }

    /// Gives up the first hole, when there is one: reports the loss and continues behind it.
    pub fn abandon(&mut self) {
        let Some(hole) = self.missing().next() else { return };
        self.counts.lost = self.counts.lost.saturating_add(hole.end - hole.start);
        self.counts.losses += 1;
        self.next = Some(hole.end);
        self.events.push_back(ArbiterEvent::Lost(hole));
        self.drain_held();
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<ArbiterEvent> {
        self.events.pop_front()
    }

    /// The holes, in order: messages known to exist that are neither delivered nor held.
    pub fn missing(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = self.next.unwrap_or(self.known_end);
        let ends = self.held.keys().copied().chain([self.known_end]);
        ends.filter_map(move |end| {
            let hole = from..end;
            from = end.saturating_add(1);
            (!hole.is_empty()).then_some(hole)
        })
    }

    /// The sequence of the next message to deliver; `None` before the first message.
    pub fn next_sequence(&self) -> Option<u64> {
        self.next
    }

    /// The number after the last message known to exist; 0 before the first message.
    pub fn known_end(&self) -> u64 {
        self.known_end
    }

    /// Whether this message was taken under this number, as far as the arbiter remembers.
    pub fn has_taken(&self, sequence: u64, bytes: &[u8]) -> bool {
        self.memory.recall(sequence, bytes) == Recall::Copy
    }

    /// Messages held behind a hole, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held_bytes)
    }

    /// Counts so far.
    pub fn counts(&self) -> CopyCounts {
        self.counts
    }

    fn begin_at(&mut self, sequence: u64) -> u64 {
        self.next = Some(sequence);
        (self.known_end, self.first) = (sequence, sequence);
        sequence
    }

    fn deliver(&mut self, sequence: u64, bytes: Bytes) {
        self.next = Some(sequence + 1);
        self.counts.delivered += 1;
        self.events.push_back(ArbiterEvent::Message { sequence, bytes });
    }

    fn drain_held(&mut self) {
        while let Some(entry) = self.held.first_entry() {
            if Some(*entry.key()) != self.next {
                break;
            }
            let (sequence, bytes) = entry.remove_entry();
            self.held_bytes -= bytes.len();
            self.deliver(sequence, bytes);
        }
    }
}
