//! Bodies of the control datagrams. [`crate::wire`] describes the header in front of each body.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Malformed, NodeId, Reader};

use crate::wire::{NUMBER_MAX, number};

mod report;

pub use self::report::{MemberFigures, ReleaseSpread, SampledDelay, Tally, Worst};
pub(crate) use self::report::{Report, WORST_MAX};

/// What a node does in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Forwards.
    Proxy,
    /// Holds and releases.
    Receiver,
    /// A receiver that keeps everything. It answers nodes that miss frames which no other node has
    /// any more.
    Recorder,
}

impl Role {
    /// Whether the node is a leaf of the tree. Leaves release messages and count as receivers.
    pub fn receives(self) -> bool {
        self != Self::Proxy
    }

    fn wire(self) -> u8 {
        match self {
            Self::Proxy => 0,
            Self::Receiver => 1,
            Self::Recorder => 2,
        }
    }
}

/// A node and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub id: NodeId,
    /// Its address.
    pub addr: SocketAddr,
}

fn put_peer(out: &mut BytesMut, peer: &Peer) {
    out.put_u32_le(peer.id.0);
    out.put_u16_le(peer.addr.port());
    match peer.addr.ip() {
        IpAddr::V4(ip) => {
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(6);
            out.put_slice(&ip.octets());
        }
    }
}

fn peer(r: &mut Reader<'_>) -> Result<Peer, Malformed> {
    let (id, port) = (NodeId(r.u32()?), r.u16()?);
    let ip = match r.u8()? {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(r.take(4)?).expect("four bytes"))),
        6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(r.take(16)?).expect("16 bytes"))),
        _ => return Err(r.malformed("address family")),
    };
    Ok(Peer { id, addr: SocketAddr::new(ip, port) })
}

fn put_peers(out: &mut BytesMut, peers: &[Peer]) {
    out.put_u16_le(peers.len() as u16);
    peers.iter().for_each(|p| put_peer(out, p));
}

fn peers(r: &mut Reader<'_>) -> Result<Vec<Peer>, Malformed> {
    let n = r.u16()?;
    // The list grows as bytes are found. A count alone allocates nothing.
    (0..n).map(|_| peer(r)).collect()
}

/// A request for a place in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub role: Role,
    /// A number that grows with every start of the node, so that the root can tell a restart from a
    /// retry.
    pub incarnation: u64,
    /// The cookie of the root's last challenge; zero before the first one.
    pub cookie: u64,
}

impl Join {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(17);
        out.put_u8(self.role.wire());
        out.put_u64_le(self.incarnation);
        out.put_u64_le(self.cookie);
        out.freeze()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let role = match r.u8()? {
            0 => Role::Proxy,
            1 => Role::Receiver,
            2 => Role::Recorder,
            _ => return Err(r.malformed("role")),
        };
        let join = Self { role, incarnation: number(&mut r)?, cookie: r.u64()? };
        r.finish()?;
        Ok(join)
    }
}

/// Two numbers of 64 bits: the body of `Challenge` (an incarnation, and the cookie that its next
/// `Join` must carry) and of `Alive` (the number of the probe, and the answering incarnation).
pub(crate) fn encode_pair(first: u64, second: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(16);
    out.put_u64_le(first);
    out.put_u64_le(second);
    out.freeze()
}

pub(crate) fn decode_pair(body: &[u8]) -> Result<(u64, u64), Malformed> {
    let mut r = Reader::new(body);
    let pair = (r.u64()?, r.u64()?);
    r.finish()?;
    Ok(pair)
}

/// A place in the tree, from a view on and until the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePosition {
    /// The first view in which the place holds.
    pub view: u32,
    /// Distance from the root.
    pub level: u8,
    /// The first frame that concerns a node which joins late.
    pub start: u64,
    /// The number of the first message in that frame.
    pub start_message: u64,
    /// The node's senders: the parent first, then the aunts. On the wire, an empty list means the
    /// root, which knows its own address less well than its children do.
    pub sources: Vec<Peer>,
    /// The node's own children, which report to it.
    pub children: Vec<Peer>,
    /// Children of siblings. The node sends extra copies to them.
    pub nieces: Vec<Peer>,
    /// The recorders, except the node itself. Recorders have frames that all other nodes have
    /// forgotten.
    pub recorders: Vec<Peer>,
}

/// Recorders that a place names at most. A node asks recorders one after the other, so more names
/// help no node.
pub(crate) const RECORDERS_MAX: usize = 4;

impl TreePosition {
    /// The parent; `None` when the place names no sender.
    pub fn parent(&self) -> Option<&Peer> {
        self.sources.first()
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u32_le(self.view);
        out.put_u8(self.level);
        out.put_u64_le(self.start);
        out.put_u64_le(self.start_message);
        put_peers(&mut out, &self.sources);
        put_peers(&mut out, &self.children);
        put_peers(&mut out, &self.nieces);
        put_peers(&mut out, &self.recorders);
        out.freeze()
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            view: r.u32()?,
            level: r.u8()?,
            start: number(r)?,
            start_message: number(r)?,
            sources: peers(r)?,
            children: peers(r)?,
            nieces: peers(r)?,
            recorders: peers(r)?,
        })
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let place = Self::read(&mut r)?;
        r.finish()?;
        Ok(place)
    }
}

/// How far the stream has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Beacon {
    /// The frame after the newest frame that the sender knows.
    pub next: u64,
    /// A number that grows as long as the root lives.
    pub root_beat: u64,
    /// Frames and messages in the whole stream, once the root has ended it.
    pub end: Option<(u64, u64)>,
}

impl Beacon {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(32);
        out.put_u64_le(self.next);
        out.put_u64_le(self.root_beat);
        let (frames, messages) = self.end.unwrap_or((u64::MAX, 0));
        out.put_u64_le(frames);
        out.put_u64_le(messages);
        out.freeze()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let (next, root_beat, end) =
            (number(&mut r)?, number(&mut r)?, (r.u64()?, number(&mut r)?));
        if end.0 > NUMBER_MAX && end.0 != u64::MAX {
            return Err(r.malformed("a number that no stream reaches"));
        }
        r.finish()?;
        Ok(Self { next, root_beat, end: (end.0 != u64::MAX).then_some(end) })
    }
}

/// The message with which a receiver begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// The first message of the frame that is open when the receiver joins.
    #[default]
    Live,
    /// The first message that a recorder has.
    Start,
    /// The message with this number.
    Message(u64),
    /// The first message that was recorded at or after this time, in nanoseconds since 1970.
    Time(i64),
}

impl Begin {
    fn put(self, out: &mut BytesMut) {
        let (kind, value) = match self {
            Self::Live => (0, 0),
            Self::Start => (1, 0),
            Self::Message(number) => (2, number),
            Self::Time(ns) => (3, ns as u64),
        };
        out.put_u8(kind);
        out.put_u64_le(value);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (kind, value) = (r.u8()?, r.u64()?);
        match kind {
            1 => Ok(Self::Start),
            2 if value <= NUMBER_MAX => Ok(Self::Message(value)),
            3 => Ok(Self::Time(value as i64)),
            _ => Err(r.malformed("where to begin")),
        }
    }

    /// Body of `Locate`.
    pub(crate) fn encode(self) -> Bytes {
        let mut out = BytesMut::with_capacity(9);
        self.put(&mut out);
        out.freeze()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let begin = Self::read(&mut r)?;
        r.finish()?;
        Ok(begin)
    }
}

/// A recorder's answer: the frame to begin with and its first message; `None` when the recorder has
/// no such frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub begin: Begin,
    pub at: Option<(u64, u64)>,
}

impl Located {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(26);
        self.begin.put(&mut out);
        let (frame, message) = self.at.unwrap_or_default();
        out.put_u8(self.at.is_some().into());
        out.put_u64_le(frame);
        out.put_u64_le(message);
        out.freeze()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let begin = Begin::read(&mut r)?;
        let (found, at) = (r.u8()?, (number(&mut r)?, number(&mut r)?));
        if found > 1 {
            return Err(r.malformed("neither found nor not"));
        }
        r.finish()?;
        Ok(Self { begin, at: (found == 1).then_some(at) })
    }
}

/// Ranges of missing frames, as first frame and count.
pub(crate) type Ranges = Vec<(u64, u16)>;

/// Bytes of a range in a request. The count before the ranges takes fewer bytes.
pub(crate) const RANGE_BYTES: usize = 10;
/// Ranges that one request may hold: a kilobyte.
pub(crate) const RANGES_MAX: usize = 100;

pub(crate) fn encode_ranges(ranges: &[(u64, u16)]) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + ranges.len() * RANGE_BYTES);
    out.put_u16_le(ranges.len() as u16);
    for &(first, count) in ranges {
        out.put_u64_le(first);
        out.put_u16_le(count);
    }
    out.freeze()
}

pub(crate) fn decode_ranges(body: &[u8]) -> Result<Ranges, Malformed> {
    let mut r = Reader::new(body);
    let n = usize::from(r.u16()?);
    if n > RANGES_MAX {
        return Err(r.malformed("more ranges than allowed"));
    }
    let ranges =
        (0..n).map(|_| Ok((number(&mut r)?, r.u16()?))).collect::<Result<Ranges, Malformed>>()?;
    r.finish()?;
    Ok(ranges)
}

/// Why a node is suspected, has left, or was taken out.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DepartureReason {
    /// The node said good-bye.
    Left,
    /// No node heard the node, and the node did not answer the root.
    Silent,
    /// The node asked for more repair than its queue holds.
    TooSlow,
    /// The node started again under the same name.
    Restarted,
}

impl DepartureReason {
    const ALL: [Self; 4] = [Self::Left, Self::Silent, Self::TooSlow, Self::Restarted];

    pub(crate) fn wire(self) -> u8 {
        Self::ALL.iter().position(|r| *r == self).expect("ALL is all") as u8
    }

    fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// A node and a reason: body of `Suspect`, `Leave` and `Evict`.
pub(crate) fn encode_verdict(node: NodeId, reason: DepartureReason) -> Bytes {
    let mut out = BytesMut::with_capacity(5);
    out.put_u32_le(node.0);
    out.put_u8(reason.wire());
    out.freeze()
}

pub(crate) fn decode_verdict(body: &[u8]) -> Result<(NodeId, DepartureReason), Malformed> {
    let mut r = Reader::new(body);
    let (node, byte) = (NodeId(r.u32()?), r.u8()?);
    let reason = DepartureReason::from_wire(byte).ok_or(r.malformed("unknown reason"))?;
    r.finish()?;
    Ok((node, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_survive_the_wire() {
        let peer = |n: u32, s: &str| Peer { id: NodeId(n), addr: s.parse().unwrap() };
        let place = TreePosition {
            view: 3,
            level: 1,
            start: 10,
            start_message: 40,
            sources: vec![peer(1, "127.0.0.1:9"), peer(2, "[::1]:10")],
            children: vec![],
            nieces: vec![peer(7, "10.1.2.3:65535")],
            recorders: vec![peer(8, "10.1.2.3:1")],
        };
        assert_eq!(TreePosition::decode(&place.encode()).unwrap(), place);
        let beacon = Beacon { next: 9, root_beat: 2, end: None };
        assert_eq!(Beacon::decode(&beacon.encode()).unwrap(), beacon);
        let ranges = vec![(5, 2), (9, 1)];
        assert_eq!(decode_ranges(&encode_ranges(&ranges)).unwrap(), ranges);
        for begin in [Begin::Start, Begin::Message(7), Begin::Time(-1)] {
            assert_eq!(Begin::decode(&begin.encode()).unwrap(), begin);
            for at in [None, Some((3, 9))] {
                let located = Located { begin, at };
                assert_eq!(Located::decode(&located.encode()).unwrap(), located);
            }
        }
        for reason in DepartureReason::ALL {
            let body = encode_verdict(NodeId(4), reason);
            assert_eq!(decode_verdict(&body).unwrap(), (NodeId(4), reason));
        }
    }
}
