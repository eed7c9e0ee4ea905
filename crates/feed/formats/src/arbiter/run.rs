//! Packets from another place than the feed's, until it is clear whether the feed has moved there.

use super::FeedSide;
use bytes::Bytes;

/// Packets that are kept while a place is not believed. A place is believed after a few packets,
/// and further packets only come while the feed goes on at its old place.
const PACKETS_MAX: usize = 64;

/// A packet that waits for its place to be believed.
#[derive(Debug)]
pub(super) struct StrayPacket {
    pub side: FeedSide,
    /// Number of the first message.
    pub sequence: u64,
    pub messages: Vec<Bytes>,
    /// How many of the messages have a number under which other bytes came before.
    pub reused: u64,
}

impl StrayPacket {
    fn end(&self) -> u64 {
        self.sequence.saturating_add(self.messages.len() as u64)
    }
}

/// Packets that follow each other from a place where the feed is not.
#[derive(Debug)]
pub(super) struct StrayRun {
    /// The number of its first packet.
    pub start: u64,
    /// The number after its last message.
    pub end: u64,
    /// The highest place that a packet or a heartbeat stated.
    heard: u64,
    /// Packets and heartbeats that followed each other, less the packets that carried the feed on
    /// at its old place.
    pub support: u32,
    /// Whether the place lies ahead of the feed.
    pub is_ahead: bool,
    pub packets: Vec<StrayPacket>,
}

impl StrayRun {
    pub fn new(start: u64, is_ahead: bool) -> Self {
        Self { start, end: start, heard: start, support: 0, is_ahead, packets: Vec::new() }
    }

    /// Whether a packet carries the run on, or fills a hole in it.
    pub fn takes(&self, packet: &StrayPacket, jump_max: u64) -> bool {
        let is_apart =
            |kept: &StrayPacket| packet.end() <= kept.sequence || kept.end() <= packet.sequence;
        let is_inside = packet.sequence >= self.start && self.packets.iter().all(is_apart);
        self.is_followed_by(packet.sequence, jump_max) || packet.sequence < self.end && is_inside
    }

    /// Whether a packet or a heartbeat from here carries the run on.
    pub fn is_followed_by(&self, sequence: u64, jump_max: u64) -> bool {
        sequence >= self.end && sequence - self.end <= jump_max
    }

    /// Takes a packet. Returns the oldest packet when there are too many.
    pub fn push(&mut self, packet: StrayPacket) -> Option<StrayPacket> {
        self.support += u32::from(packet.sequence >= self.end);
        self.end = self.end.max(packet.end());
        self.heard = self.heard.max(self.end);
        self.packets.push(packet);
        (self.packets.len() > PACKETS_MAX).then(|| self.packets.remove(0))
    }

    /// Takes a heartbeat. A repeated heartbeat is no further support.
    pub fn hear(&mut self, sequence: u64) {
        if self.support == 0 || sequence > self.heard {
            self.support += 1;
            self.heard = sequence;
        }
    }

    /// The packet of which this is a copy.
    pub fn original(&self, sequence: u64, messages: &[Bytes]) -> Option<&StrayPacket> {
        let same = |kept: &&StrayPacket| kept.sequence == sequence && kept.messages == messages;
        self.packets.iter().find(same)
    }
}
