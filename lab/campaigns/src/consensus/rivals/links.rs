//! Links between the replicas of a rival: messages of any length, in order, none lost.
//!
//! The public implementations of the rivals talk over TCP. A link has the parts of TCP that they
//! need: a stream of bytes that is cut into datagrams, acknowledgements that ride on the datagrams
//! of the other direction, and a second copy of the oldest datagram that stays unacknowledged.
//! Messages that are sent together share datagrams.
//!
//! ```text
//!  datagram   magic [4], sender u32, sequence u64, acknowledged u64, bytes of the stream
//!  stream     length u32, message; length u32, message; ...
//! ```
//!
//! Sequences begin at 1, and a datagram with sequence 0 has no bytes of the stream.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use evenfall_core::{
    Arrival, Destination, Head, Malformed, Reader, Timestamp, TrafficClass, Transmit,
};

/// First bytes of a datagram.
const MAGIC: [u8; 4] = *b"RIVL";
/// Bytes in front of the stream.
const HEAD_BYTES: usize = 24;
/// Limit of the datagrams of a link that are not acknowledged. At full length, these datagrams are
/// more than a link of 1 Gb/s carries in the farthest round trip of the thesis, .32 s.
const UNACKNOWLEDGED_MAX: usize = 1 << 16;
/// Limit of the bytes that wait for a link. Beyond the limit, a replica takes no requests.
const UNSENT_BYTES_MAX: usize = 64 << 20;
/// Longest message in bytes. A replica that obeys the limit above sends no longer message.
const MESSAGE_BYTES_MAX: usize = 128 << 20;
/// After this many datagrams, an acknowledgement is sent although no datagram goes the other way.
const OWED_MAX: u32 = 64;

/// The links of one replica to all others.
#[derive(Debug)]
pub struct RivalLinks {
    me: u32,
    addresses: Vec<SocketAddr>,
    datagram_bytes: usize,
    /// Time after which a datagram without acknowledgement counts as lost.
    retry: Duration,
    peers: Vec<Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    /// The bytes of the stream to the peer that are in no datagram yet.
    unsent: BytesMut,
    /// Number of datagrams of the stream so far.
    sent: u64,
    /// The last datagrams, and when each was last sent.
    unacknowledged: VecDeque<(Timestamp, Bytes)>,
    retry_at: Option<Timestamp>,
    /// Number of datagrams from the peer whose bytes were taken in order.
    taken: u64,
    /// Datagrams that came while an earlier datagram was missing.
    early: BTreeMap<u64, Bytes>,
    /// The start of a message whose end has not come.
    partial: BytesMut,
    /// Number of datagrams that are not acknowledged to the peer, and when the acknowledgement is
    /// due.
    owed: u32,
    owed_at: Option<Timestamp>,
}

impl RivalLinks {
    /// The links of replica `me` to the replicas at these addresses.
    pub fn new(
        me: u32,
        addresses: Vec<SocketAddr>,
        datagram_bytes: usize,
        retry: Duration,
    ) -> Self {
        let peers = addresses.iter().map(|_| Peer::default()).collect();
        Self { me, addresses, datagram_bytes, retry, peers }
    }

    /// Number of replicas, with this replica.
    pub fn count(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Whether more bytes wait for a link than the limit allows. The replica then takes no
    /// requests.
    pub fn are_full(&self) -> bool {
        self.peers.iter().any(|peer| peer.unsent.len() > UNSENT_BYTES_MAX)
    }

    /// Sends a message to another replica.
    pub fn send(&mut self, to: u32, message: &[u8]) {
        let unsent = &mut self.peers[to as usize].unsent;
        unsent.extend_from_slice(&(message.len() as u32).to_le_bytes());
        unsent.extend_from_slice(message);
    }

    /// Takes a datagram. Returns its sender, and the messages that are whole now.
    pub fn take(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
    ) -> Result<(u32, Vec<Bytes>), Malformed> {
        let r = &mut Reader::new(&arrival.datagram);
        if r.array()? != MAGIC {
            return Err(Malformed { what: "not of a rival", offset: 0 });
        }
        let (from, sequence, acknowledged) = (r.u32()?, r.u64()?, r.u64()?);
        if from == self.me || self.addresses.get(from as usize) != Some(&arrival.from) {
            return Err(Malformed { what: "from no other replica", offset: 4 });
        }
        let (peer, retry) = (&mut self.peers[from as usize], self.retry);
        peer.acknowledged(now, acknowledged, retry);
        if sequence == 0 {
            return Ok((from, Vec::new()));
        }
        // When a datagram comes again, its acknowledgement was lost or is late, and the peer waits.
        let is_again = sequence <= peer.taken;
        peer.owed = if is_again { OWED_MAX } else { peer.owed + 1 };
        peer.owed_at.get_or_insert(now + retry / 8);
        if !is_again && sequence <= peer.taken + UNACKNOWLEDGED_MAX as u64 {
            peer.early.insert(sequence, arrival.datagram.slice(HEAD_BYTES..));
        }
        Ok((from, peer.messages()?))
    }

    /// The time of the next repeated datagram or belated acknowledgement.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.peers.iter().flat_map(|peer| [peer.retry_at, peer.owed_at]).flatten().min()
    }

    /// The next datagram.
    pub fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        let chunk_bytes = self.datagram_bytes - HEAD_BYTES;
        let (to, sequence, chunk) = (0..).zip(&mut self.peers).find_map(|(to, peer)| {
            let (sequence, chunk) = peer.next(now, chunk_bytes, self.retry)?;
            Some((to as usize, sequence, chunk))
        })?;
        let peer = &mut self.peers[to];
        (peer.owed, peer.owed_at) = (0, None);
        let mut head = MAGIC.to_vec();
        head.extend(self.me.to_le_bytes());
        head.extend(sequence.to_le_bytes());
        head.extend(peer.taken.to_le_bytes());
        let to = Destination::One(self.addresses[to]);
        Some(Transmit::new(TrafficClass::Live, to, Head::new(&head), chunk))
    }
}

impl Peer {
    /// Notes that the peer has the stream up to this datagram.
    fn acknowledged(&mut self, now: Timestamp, upto: u64, retry: Duration) {
        let first = self.sent + 1 - self.unacknowledged.len() as u64;
        let known = (upto + 1).saturating_sub(first).min(self.unacknowledged.len() as u64);
        if known > 0 {
            self.unacknowledged.drain(..known as usize);
            // A datagram that was sent long ago, and is now the first that the peer lacks, is lost.
            let oldest = self.unacknowledged.front();
            self.retry_at = oldest.map(|(sent, _)| now.max(*sent + retry));
        }
    }

    /// The messages that are whole now.
    fn messages(&mut self) -> Result<Vec<Bytes>, Malformed> {
        while let Some(chunk) = self.early.remove(&(self.taken + 1)) {
            self.taken += 1;
            self.partial.extend_from_slice(&chunk);
        }
        let mut messages = Vec::new();
        while let Some(length) = self.partial.first_chunk().map(|l| u32::from_le_bytes(*l)) {
            if length as usize > MESSAGE_BYTES_MAX {
                return Err(Malformed { what: "a message beyond every limit", offset: HEAD_BYTES });
            }
            if self.partial.len() < 4 + length as usize {
                break;
            }
            self.partial.advance(4);
            messages.push(self.partial.split_to(length as usize).freeze());
        }
        Ok(messages)
    }

    /// The next datagram for the peer, with its sequence: the oldest lost datagram, the next bytes
    /// of the stream, or an acknowledgement alone.
    fn next(
        &mut self,
        now: Timestamp,
        chunk_bytes: usize,
        retry: Duration,
    ) -> Option<(u64, Bytes)> {
        if self.retry_at.is_some_and(|at| at <= now)
            && let Some((sent, chunk)) = self.unacknowledged.front_mut()
        {
            (*sent, self.retry_at) = (now, Some(now + retry));
            let chunk = chunk.clone();
            return Some((self.sent + 1 - self.unacknowledged.len() as u64, chunk));
        }
        if !self.unsent.is_empty() && self.unacknowledged.len() < UNACKNOWLEDGED_MAX {
            let chunk = self.unsent.split_to(chunk_bytes.min(self.unsent.len())).freeze();
            self.sent += 1;
            self.retry_at.get_or_insert(now + retry);
            self.unacknowledged.push_back((now, chunk.clone()));
            return Some((self.sent, chunk));
        }
        let is_owed = self.owed >= OWED_MAX || self.owed_at.is_some_and(|at| at <= now);
        is_owed.then_some((0, Bytes::new()))
    }
}
