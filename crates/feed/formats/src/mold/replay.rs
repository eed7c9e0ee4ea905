//! The re-request side of a MoldUDP64 sender: which messages can be sent again, and who may ask how
//! fast.
//!
//! A request has twenty bytes and its answer up to a packet, seventy times as much. UDP does not
//! prove who asked, so a server that answers everybody sends a flood to whoever is named as the
//! sender. A server that keeps every message runs out of memory. Three limits hold here:
//!
//! - [`ReplayRing`] keeps the newest messages up to a number and a number of bytes;
//! - an answer is one packet, so a request for 65,534 messages costs no more than any other;
//! - [`RequestGate`] limits the answers of each address, and of all together.
//!
//! ```text
//!  request --> address allowed? --> twenty bytes? --> session? --> rate? --> kept? --> a packet
//!                   stranger         malformed        other      too fast   not kept, not sent
//! ```
//!
//! Source: MoldUDP64 Protocol Specification 1.00, Nasdaq, "Request Packet".

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use evenfall_core::Timestamp;

use super::{MoldRequest, PacketBuilder, SessionId};

#[cfg(test)]
mod tests;

/// Why a request gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum RequestRefusal {
    /// The address may not ask.
    #[error("the address may not ask")]
    Stranger,
    /// The bytes are no request.
    #[error("the bytes are no MoldUDP64 request")]
    Malformed,
    /// The address, or all addresses together, asked faster than they may.
    #[error("asked too fast")]
    TooFast,
    /// The session is not one that this sender sends.
    #[error("another session")]
    OtherSession,
    /// The first message was not sent yet.
    #[error("not sent yet")]
    NotSent,
    /// The first message is not kept any more, or this sender never had it.
    #[error("not kept any more")]
    NotKept,
}

impl RequestRefusal {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Stranger,
        Self::Malformed,
        Self::TooFast,
        Self::OtherSession,
        Self::NotSent,
        Self::NotKept,
    ];

    /// The name of the reason in metrics and summaries.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Malformed => "malformed",
            Self::TooFast => "too_fast",
            Self::OtherSession => "other_session",
            Self::NotSent => "not_sent",
            Self::NotKept => "not_kept",
        }
    }
}

/// How much a ring keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Messages. A message costs 32 bytes beside its own bytes.
    pub messages_max: usize,
    /// Bytes of messages.
    pub bytes_max: usize,
}

/// The newest messages of a session, for answers to requests.
#[derive(Debug)]
pub struct ReplayRing {
    session: SessionId,
    limits: ReplayLimits,
    /// `None` for a message that the sender never had.
    kept: VecDeque<Option<Bytes>>,
    /// Sequence of the first kept message.
    first: u64,
    bytes: usize,
}

impl ReplayRing {
    /// A ring whose next message has this sequence.
    pub fn new(session: SessionId, next_sequence: u64, limits: ReplayLimits) -> Self {
        Self { session, limits, kept: VecDeque::new(), first: next_sequence, bytes: 0 }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Sequence of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Keeps the next message, and drops the oldest messages beyond the limits.
    pub fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.kept.push_back(Some(message));
        self.drop_oldest();
    }

    /// Notes that the sender never had the messages before this sequence. A sequence that is not
    /// ahead changes nothing.
    pub fn skip_to(&mut self, sequence: u64) {
        let ahead = sequence.saturating_sub(self.next_sequence());
        match usize::try_from(ahead) {
            Ok(ahead) if ahead < self.limits.messages_max => {
                self.kept.extend((0..ahead).map(|_| None));
                self.drop_oldest();
            }
            _ => {
                self.kept.clear();
                (self.first, self.bytes) = (sequence, 0);
            }
        }
    }

    fn drop_oldest(&mut self) {
        while (self.bytes > self.limits.bytes_max || self.kept.len() > self.limits.messages_max)
            && let Some(oldest) = self.kept.pop_front()
        {
            self.first += 1;
            self.bytes -= oldest.map_or(0, |message| message.len());
        }
    }

    /// A packet of the requested messages: as many as are kept in a row and fit into it.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn answer(
        &self,
        request: &MoldRequest,
        packet_bytes: usize,
    ) -> Result<PacketBuilder, RequestRefusal> {
        if request.session != self.session {
            return Err(RequestRefusal::OtherSession);
        }
        if request.sequence >= self.next_sequence() {
            return Err(RequestRefusal::NotSent);
        }
        let at = request.sequence.checked_sub(self.first).ok_or(RequestRefusal::NotKept)?;
        let mut packet = PacketBuilder::new(self.session, request.sequence, packet_bytes);
        let wanted = self.kept.range(at as usize..).take(request.count.into());
        for message in wanted {
            if !message.as_ref().is_some_and(|message| packet.push(message)) {
                break;
            }
        }
        if packet.count() > 0 { Ok(packet) } else { Err(RequestRefusal::NotKept) }
    }
}

/// How fast requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Answers a second to one address, in the long run.
    pub per_second: u32,
    /// Answers to one address at once.
    pub burst: u32,
    /// Answers a second to all addresses together, in the long run. A fourth of them may come at
    /// once.
    pub total_per_second: u32,
    /// Addresses whose rate is remembered, 40 bytes each. Further addresses get no answer until
    /// others have been silent for long enough.
    pub requesters_max: usize,
}

/// A rate limit in one number: the time at which the answers so far would be spent at the allowed
/// rate (the generic cell rate algorithm).
#[derive(Clone, Copy, Debug, Default)]
struct RateLimit {
    spent_at: Timestamp,
}

impl RateLimit {
    fn has_room(self, now: Timestamp, interval: Duration, burst: u32) -> bool {
        self.spent_at.since(now) <= interval * burst.saturating_sub(1)
    }

    fn spend(&mut self, now: Timestamp, interval: Duration) {
        self.spent_at = self.spent_at.max(now) + interval;
    }
}

/// Limits the answers to each address.
#[derive(Debug)]
pub struct RequestGate {
    limits: RequestLimits,
    requesters: BTreeMap<IpAddr, RateLimit>,
    all: RateLimit,
}

/// The share of a second's answers to all addresses that may come at once.
const TOTAL_BURST_SHARE: u32 = 4;

impl RequestGate {
    /// A gate at which nobody has asked yet.
    pub fn new(limits: RequestLimits) -> Self {
        Self { limits, requesters: BTreeMap::new(), all: RateLimit::default() }
    }

    /// Counts a request, if it may be answered now.
    ///
    /// # Errors
    /// [`RequestRefusal::TooFast`]. A refused request costs its address nothing.
    pub fn admit(&mut self, now: Timestamp, from: IpAddr) -> Result<(), RequestRefusal> {
        let RequestLimits { per_second, burst, total_per_second, requesters_max } = self.limits;
        let interval = |rate: u32| Duration::from_secs(1) / rate.max(1);
        let all_burst = (total_per_second / TOTAL_BURST_SHARE).max(1);
        if !self.all.has_room(now, interval(total_per_second), all_burst) {
            return Err(RequestRefusal::TooFast);
        }
        if self.requesters.len() >= requesters_max && !self.requesters.contains_key(&from) {
            self.requesters.retain(|_, limit| limit.spent_at > now);
            if self.requesters.len() >= requesters_max {
                return Err(RequestRefusal::TooFast);
            }
        }
        let limit = self.requesters.entry(from).or_default();
        if !limit.has_room(now, interval(per_second), burst.max(1)) {
            return Err(RequestRefusal::TooFast);
        }
        limit.spend(now, interval(per_second));
        self.all.spend(now, interval(total_per_second));
        Ok(())
    }
}

/// Counts of a re-request server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Datagrams that came.
    pub requests: u64,
    /// Requests answered, one packet each.
    pub answers: u64,
    /// Messages in the answers.
    pub messages: u64,
    /// Requests without an answer, by the place of the reason in [`RequestRefusal::ALL`].
    pub refused: [u64; RequestRefusal::ALL.len()],
}

impl RequestCounts {
    /// Counts a datagram and what became of it: the number of messages in the answer.
    pub fn count(&mut self, outcome: Result<u16, RequestRefusal>) {
        self.requests += 1;
        match outcome {
            Ok(messages) => {
                self.answers += 1;
                self.messages += u64::from(messages);
            }
            Err(refusal) => {
                let all = RequestRefusal::ALL.iter();
                let place = all.clone().position(|reason| *reason == refusal);
                place.into_iter().for_each(|place| self.refused[place] += 1);
            }
        }
    }

    /// The reasons with their counts.
    pub fn refused_by_reason(&self) -> impl Iterator<Item = (RequestRefusal, u64)> {
        RequestRefusal::ALL.into_iter().zip(self.refused)
    }
}
