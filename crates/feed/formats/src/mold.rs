//! MoldUDP64, the envelope of ITCH on multicast.
//!
//! ```text
//!  0             10               18      20                      all big-endian
//!  +-------------+----------------+-------+--------+-----------+-- ... one per message
//!  | session     | sequence       | count | length | message   |
//!  +-------------+----------------+-------+--------+-----------+--
//! ```
//!
//! The sequence belongs to the first message. A count of 0 is a heartbeat, and 0xFFFF is the end of
//! the session. In both, the sequence is the next number. A request for missing messages has the
//! same twenty bytes: session, first sequence, number of messages.
//!
//! Source: MoldUDP64 Protocol Specification 1.00, Nasdaq.

use crate::arbiter::{Arbiter, ArbiterEvent, ArbiterLimits, CopyCounts, FeedSide, SequenceJump};
use bytes::Bytes;
use core::fmt;
use core::ops::Range;

pub mod replay;
#[cfg(test)]
mod tests;

/// Bytes of the header and of a request.
pub const HEADER_BYTES: usize = 20;

/// Messages that one packet or one request can count.
pub const COUNT_MAX: u16 = 0xfffe;

/// The count of a packet that announces the end of the session.
const COUNT_END: u16 = 0xffff;

/// Packets that must state the end of a session before the end is believed. A venue repeats its end
/// for many seconds on both sides. A forged or damaged packet comes once, or once per side.
pub const END_PACKETS: u32 = 3;
/// Bytes of the length in front of each message of a packet.
const LENGTH_BYTES: usize = 2;

/// A session's name: ten bytes, by custom ASCII padded on the left with spaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 10]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.trim_ascii().escape_ascii())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Bytes that are no packet of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoldError {
    /// The packet is shorter than the header, or than a message's own length states.
    #[error("truncated MoldUDP64 packet: it needs {needed} bytes, found {found}")]
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// Bytes behind the last message.
    #[error("{found} bytes behind the last message of a MoldUDP64 packet")]
    Trailing {
        /// Number of bytes.
        found: usize,
    },
    /// Sequence and count pass the end of 64 bits.
    #[error("MoldUDP64 sequence {sequence} and its count pass 64 bits")]
    SequenceOverflow {
        /// The sequence.
        sequence: u64,
    },
    /// A request for no message, or for more messages than can be counted.
    #[error("a MoldUDP64 request for {found} messages: must be 1 to {COUNT_MAX}")]
    RequestCount {
        /// The count.
        found: u16,
    },
    /// A packet of another session than the running session.
    #[error("MoldUDP64 session {found}, but {running} has not ended")]
    OtherSession {
        /// The session that runs.
        running: SessionId,
        /// The packet's.
        found: SessionId,
    },
    /// The end of a session of which no message was seen. Venues repeat yesterday's end.
    #[error("the end of MoldUDP64 session {found}, which was not followed")]
    EndOfUnknown {
        /// The packet's session.
        found: SessionId,
    },
    /// An end before messages that exist.
    #[error("a MoldUDP64 end at sequence {sequence}, in front of {expected}")]
    EarlyEnd {
        /// The sequence that the end claims.
        sequence: u64,
        /// The number after the last message known to exist.
        expected: u64,
    },
    /// A place too far from the others to be believed.
    #[error("MoldUDP64 {0}")]
    Far(SequenceJump),
}

impl From<SequenceJump> for MoldError {
    fn from(far: SequenceJump) -> Self {
        Self::Far(far)
    }
}

fn header(bytes: &[u8]) -> Result<(SessionId, u64, u16), MoldError> {
    let Some((head, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(MoldError::Truncated { needed: HEADER_BYTES, found: bytes.len() });
    };
    let (mut session, mut sequence) = ([0; 10], [0; 8]);
    session.copy_from_slice(&head[..10]);
    sequence.copy_from_slice(&head[10..18]);
    let count = u16::from_be_bytes([head[18], head[19]]);
    Ok((SessionId(session), u64::from_be_bytes(sequence), count))
}

fn write_header(session: SessionId, sequence: u64, count: u16) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..10].copy_from_slice(&session.0);
    out[10..18].copy_from_slice(&sequence.to_be_bytes());
    out[18..].copy_from_slice(&count.to_be_bytes());
    out
}

/// A downstream packet, read in place and checked to its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoldPacket<'a> {
    /// The session.
    pub session: SessionId,
    /// The sequence of the first message. Without messages, the next sequence.
    pub sequence: u64,
    /// What the packet is.
    pub body: Body<'a>,
}

/// The contents of a downstream packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Messages.
    Messages(MoldMessages<'a>),
    /// No message: the session is alive and has come this far.
    Heartbeat,
    /// No message: the session is over.
    EndOfSession,
}

impl<'a> MoldPacket<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`MoldError`] when the bytes do not hold exactly the messages that the header counts.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MoldError> {
        let (session, sequence, count) = header(bytes)?;
        let blocks = &bytes[HEADER_BYTES..];
        let body = match count {
            0 => Body::Heartbeat,
            COUNT_END => Body::EndOfSession,
            count => Body::Messages(MoldMessages { blocks, left: count }),
        };
        if sequence.checked_add(body.count().into()).is_none() {
            return Err(MoldError::SequenceOverflow { sequence });
        }
        let mut at = HEADER_BYTES;
        for _ in 0..body.count() {
            let needed = at + LENGTH_BYTES;
            let Some(length) = bytes.get(at..needed) else {
                return Err(MoldError::Truncated { needed, found: bytes.len() });
            };
            at = needed + usize::from(u16::from_be_bytes([length[0], length[1]]));
        }
        match at.cmp(&bytes.len()) {
            core::cmp::Ordering::Equal => Ok(Self { session, sequence, body }),
            core::cmp::Ordering::Less => Err(MoldError::Trailing { found: bytes.len() - at }),
            core::cmp::Ordering::Greater => {
                Err(MoldError::Truncated { needed: at, found: bytes.len() })
            }
        }
    }

    /// The sequence that comes after this packet.
    pub fn next_sequence(&self) -> u64 {
        self.sequence + u64::from(self.body.count())
    }
}

impl Body<'_> {
    /// Messages in the packet.
    pub fn count(&self) -> u16 {
        match self {
            Self::Messages(messages) => messages.left,
            Self::Heartbeat | Self::EndOfSession => 0,
        }
    }
}

/// The messages of a packet, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoldMessages<'a> {
    blocks: &'a [u8],
    left: u16,
}

impl<'a> Iterator for MoldMessages<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (length, rest) = self.blocks.split_first_chunk::<LENGTH_BYTES>()?;
        let (message, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        self.blocks = rest;
        Some(message)
    }
}

/// Fills one packet.
#[derive(Clone, Debug)]
pub struct PacketBuilder {
    bytes: Vec<u8>,
    bytes_max: usize,
    count: u16,
}

impl PacketBuilder {
    /// An empty packet whose first message has this sequence, of at most `bytes_max` bytes.
    pub fn new(session: SessionId, sequence: u64, bytes_max: usize) -> Self {
        let bytes = write_header(session, sequence, 0).to_vec();
        Self { bytes, bytes_max, count: 0 }
    }

    /// Appends a message; `false`, and nothing done, when it does not fit any more.
    pub fn push(&mut self, message: &[u8]) -> bool {
        let end = self.bytes.len() + LENGTH_BYTES + message.len();
        let Ok(length) = u16::try_from(message.len()) else { return false };
        if end > self.bytes_max || self.count == COUNT_MAX {
            return false;
        }
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(message);
        self.count += 1;
        true
    }

    /// Messages in the packet so far.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The packet. A packet without messages is a heartbeat.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[18..HEADER_BYTES].copy_from_slice(&self.count.to_be_bytes());
        self.bytes
    }
}

/// A packet that says that the session is alive and `next_sequence` comes next.
pub fn heartbeat(session: SessionId, next_sequence: u64) -> [u8; HEADER_BYTES] {
    write_header(session, next_sequence, 0)
}

/// A packet that says that the session ended before `next_sequence`.
pub fn end_of_session(session: SessionId, next_sequence: u64) -> [u8; HEADER_BYTES] {
    write_header(session, next_sequence, COUNT_END)
}

/// A request for missing messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoldRequest {
    /// The session.
    pub session: SessionId,
    /// The first message asked for.
    pub sequence: u64,
    /// Number of messages, 1 to [`COUNT_MAX`].
    pub count: u16,
}

impl MoldRequest {
    /// The request on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        write_header(self.session, self.sequence, self.count)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`MoldError`] when the bytes are not twenty, ask for no message, or pass the last sequence.
    pub fn decode(bytes: &[u8]) -> Result<Self, MoldError> {
        let (session, sequence, count) = header(bytes)?;
        if bytes.len() > HEADER_BYTES {
            return Err(MoldError::Trailing { found: bytes.len() - HEADER_BYTES });
        }
        if count == 0 || count > COUNT_MAX {
            return Err(MoldError::RequestCount { found: count });
        }
        if sequence.checked_add(count.into()).is_none() {
            return Err(MoldError::SequenceOverflow { sequence });
        }
        Ok(Self { session, sequence, count })
    }
}

/// Follows a session: takes datagrams of both sides, and gives messages in order.
///
/// The caller hands in a datagram, then drains [`Tracker::poll`]. For each [`ArbiterEvent::Gap`] it
/// sends [`Tracker::request`], and it calls [`Tracker::abandon`] when its patience ends.
///
/// No single packet moves or ends a session. Far places are refused (see
/// [`arbiter`](crate::arbiter)), and an end counts after [`END_PACKETS`] packets that state the
/// same end. An end begins no session, because venues still repeat yesterday's end in the morning.
/// The caller leaves a session that stopped without an end by [`Tracker::leave`].
#[derive(Debug)]
pub struct Tracker {
    limits: ArbiterLimits,
    session: Option<SessionId>,
    arbiter: Arbiter,
    /// The last stated end, and the number of packets that stated it.
    end: Option<(u64, u32)>,
    /// Whether the session was left, so that any other session may follow.
    is_left: bool,
    /// Counts of earlier sessions.
    past: CopyCounts,
}

impl Tracker {
    /// Waits for a session. `first` is the first wanted sequence: `Some(1)` for a whole session,
    /// `None` to join a session wherever it is.
    pub fn new(first: Option<u64>, limits: ArbiterLimits) -> Self {
        let arbiter = Arbiter::new(first, limits);
        Self {
            limits,
            session: None,
            arbiter,
            end: None,
            is_left: false,
            past: CopyCounts::default(),
        }
    }

    /// Takes a datagram. Its messages share its buffer.
    ///
    /// # Errors
    /// [`MoldError`], and the datagram is ignored. A new session is taken from its first packet
    /// once the old one has [ended](Tracker::is_ended) or was [left](Tracker::leave).
    pub fn datagram(&mut self, side: FeedSide, datagram: &Bytes) -> Result<(), MoldError> {
        let packet = MoldPacket::decode(datagram)?;
        self.enter(&packet)?;
        let sequence = packet.sequence;
        match packet.body {
            Body::Messages(messages) => {
                let messages = messages.map(|message| datagram.slice_ref(message));
                self.arbiter.offer_all(side, sequence, messages)?;
            }
            Body::Heartbeat => self.arbiter.announce(sequence)?,
            Body::EndOfSession => self.hear_end(sequence)?,
        }
        // A refused packet begins no session.
        self.session.get_or_insert(packet.session);
        Ok(())
    }

    fn hear_end(&mut self, sequence: u64) -> Result<(), MoldError> {
        let expected = self.arbiter.known_end();
        if sequence < expected {
            return Err(MoldError::EarlyEnd { sequence, expected });
        }
        self.arbiter.announce(sequence)?;
        let packets =
            self.end.filter(|(end, _)| *end == sequence).map_or(0, |(_, packets)| packets);
        self.end = Some((sequence, packets.saturating_add(1)));
        Ok(())
    }

    fn enter(&mut self, packet: &MoldPacket<'_>) -> Result<(), MoldError> {
        let found = packet.session;
        if self.session == Some(found) && !self.is_left {
            return Ok(());
        }
        if packet.body == Body::EndOfSession {
            return Err(MoldError::EndOfUnknown { found });
        }
        let Some(running) = self.session else { return Ok(()) };
        if running != found && !self.is_left && !self.is_ended() {
            return Err(MoldError::OtherSession { running, found });
        }
        // A later session is followed from its start: sequences begin at 1.
        self.past = self.counts();
        self.arbiter = Arbiter::new(Some(1), self.limits);
        (self.end, self.is_left) = (None, false);
        self.session = Some(found);
        Ok(())
    }

    /// Leaves a session that stopped without an end. Its holes are given up. The next packet with
    /// messages or a heartbeat begins a new session.
    pub fn leave(&mut self) {
        while self.arbiter.missing().next().is_some() {
            self.arbiter.abandon();
        }
        self.is_left = true;
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<ArbiterEvent> {
        self.arbiter.poll()
    }

    /// The request for the first missing messages.
    pub fn request(&self) -> Option<MoldRequest> {
        let session = self.session?;
        let Range { start: sequence, end } = self.arbiter.missing().next()?;
        let count = u16::try_from(end - sequence).unwrap_or(COUNT_MAX).min(COUNT_MAX);
        Some(MoldRequest { session, sequence, count })
    }

    /// Gives the first hole up: [`ArbiterEvent::Lost`] comes first, then the messages behind the
    /// hole.
    pub fn abandon(&mut self) {
        self.arbiter.abandon();
    }

    /// The present session, or the last one.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Whether the session stated its end and every message before the end was delivered or given
    /// up.
    pub fn is_ended(&self) -> bool {
        let Some((end, packets)) = self.end else { return false };
        // A message after the end shows that the session has not ended.
        let is_last = self.arbiter.known_end() <= end;
        let next = self.arbiter.next_sequence();
        packets >= END_PACKETS && is_last && next.is_some_and(|next| next >= end)
    }

    /// The number after the last message known to exist; 0 before the first packet.
    pub fn known_end(&self) -> u64 {
        self.arbiter.known_end()
    }

    /// Counts over all sessions.
    pub fn counts(&self) -> CopyCounts {
        self.past + self.arbiter.counts()
    }

    /// The holes of the session, in order.
    pub fn missing(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.arbiter.missing()
    }
}
