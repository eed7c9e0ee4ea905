//! Bodies of the control datagrams. [`crate::wire`] describes the header in front of each body.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Histogram, Malformed, NodeId, Reader};

use crate::wire::{NUMBER_MAX, number};

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
pub struct Place {
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

impl Place {
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

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let place = Self {
            view: r.u32()?,
            level: r.u8()?,
            start: number(&mut r)?,
            start_message: number(&mut r)?,
            sources: peers(&mut r)?,
            children: peers(&mut r)?,
            nieces: peers(&mut r)?,
            recorders: peers(&mut r)?,
        };
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
pub enum Reason {
    /// The node said good-bye.
    Left,
    /// No node heard the node, and the node did not answer the root.
    Silent,
    /// The node asked for more repair than its queue holds.
    TooSlow,
    /// The node started again under the same name.
    Restarted,
}

impl Reason {
    const ALL: [Self; 4] = [Self::Left, Self::Silent, Self::TooSlow, Self::Restarted];

    pub(crate) fn wire(self) -> u8 {
        Self::ALL.iter().position(|r| *r == self).expect("ALL is all") as u8
    }

    fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// A node and a reason: body of `Suspect`, `Leave` and `Evict`.
pub(crate) fn encode_verdict(node: NodeId, reason: Reason) -> Bytes {
    let mut out = BytesMut::with_capacity(5);
    out.put_u32_le(node.0);
    out.put_u8(reason.wire());
    out.freeze()
}

pub(crate) fn decode_verdict(body: &[u8]) -> Result<(NodeId, Reason), Malformed> {
    let mut r = Reader::new(body);
    let (node, byte) = (NodeId(r.u32()?), r.u8()?);
    let reason = Reason::from_wire(byte).ok_or(r.malformed("unknown reason"))?;
    r.finish()?;
    Ok((node, reason))
}

/// Counters of a receiver since its start. Proxies add the counters of their receivers up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Receivers that this tally covers.
    pub receivers: u32,
    /// Receivers that have released everything up to the end.
    pub finished: u32,
    /// Messages released.
    pub released: u64,
    /// Released messages that came after their deadline.
    pub late: u64,
    /// Messages reported lost.
    pub lost: u64,
    /// Frames that came by repair.
    pub repaired: u64,
    /// Copies that were dropped because the frame had arrived before.
    pub duplicates: u64,
    /// Frames whose first copy did not come from the parent.
    pub hedge_wins: u64,
}

impl Tally {
    /// Adds another part of the tree.
    pub fn add(&mut self, other: &Self) {
        self.receivers = self.receivers.saturating_add(other.receivers);
        self.finished = self.finished.saturating_add(other.finished);
        self.released = self.released.saturating_add(other.released);
        self.late = self.late.saturating_add(other.late);
        self.lost = self.lost.saturating_add(other.lost);
        self.repaired = self.repaired.saturating_add(other.repaired);
        self.duplicates = self.duplicates.saturating_add(other.duplicates);
        self.hedge_wins = self.hedge_wins.saturating_add(other.hedge_wins);
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.receivers);
        out.put_u32_le(self.finished);
        for n in
            [self.released, self.late, self.lost, self.repaired, self.duplicates, self.hedge_wins]
        {
            out.put_u64_le(n);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            receivers: r.u32()?,
            finished: r.u32()?,
            released: r.u64()?,
            late: r.u64()?,
            lost: r.u64()?,
            repaired: r.u64()?,
            duplicates: r.u64()?,
            hedge_wins: r.u64()?,
        })
    }
}

/// The delay of one sampled frame over the receivers that a report covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Frame number.
    pub sequence: u64,
    /// Nanoseconds from the root's send time to the latest arrival at these receivers. The value
    /// saturates at 4.29 s.
    pub latest_ns: u32,
    /// Receivers that are known to have the frame.
    pub receivers: u32,
    /// Receivers that are known to lack the frame: all their reports came, and the frame was in
    /// none.
    pub missing: u32,
}

/// A host or an edge with a large delay. An edge names both ends. A host names only itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Worst {
    /// Sending end of the edge, or the host itself.
    pub from: NodeId,
    /// Receiving end of the edge, or the host itself.
    pub to: NodeId,
    /// Mean delay in the interval in nanoseconds. For an edge the delay is on the wire, and for a
    /// host it is inside the host.
    pub mean_ns: u32,
    /// Longest delay in the interval, ns.
    pub max_ns: u32,
}

/// A report, which travels up the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub tally: Tally,
    /// Maximum over receivers of their 95th percentile delay, ns.
    pub p95_ns: u32,
    /// Number of this report. The next report has the next number, unless samples were dropped or
    /// put off. Where a number is missing, a frame that is in no report may still have arrived.
    pub serial: u32,
    /// Levels of the tree below the sender; 0 for a receiver.
    pub height: u8,
    pub worst: Vec<Worst>,
    /// Delays since the last report.
    pub delays: Histogram,
    /// In order of frame number.
    pub samples: Vec<Sample>,
}

/// Samples that one report may hold. No allowed size of datagram has room for more.
pub(crate) const SAMPLES_MAX: usize = 4_096;
/// Worst hosts and edges that one report names.
pub(crate) const WORST_MAX: usize = 8;
/// Bytes of an entry of [`Report::worst`].
const WORST_BYTES: usize = 16;
/// Bytes of a report whose lists are empty.
const REPORT_BYTES_MIN: usize = 69;

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Bytes that [`put_varint`] writes.
fn varint_bytes(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()).div_ceil(7).max(1) as usize
}

fn varint(r: &mut Reader<'_>) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = r.u8()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(r.malformed("a number of more than 64 bits"))
}

fn varint_u32(r: &mut Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(varint(r)?).map_err(|_| r.malformed("a number of more than 32 bits"))
}

/// The counts of a histogram in at most `bytes_max` bytes. When the counts do not fit, neighbouring
/// buckets are added up in the upper bucket, so that no delay looks shorter than it was.
fn fold(delays: &Histogram, bytes_max: usize) -> Vec<(u8, u64)> {
    const { assert!(evenfall_core::histogram::BUCKETS <= 1 << u8::BITS) };
    let mut folded: Vec<(u8, u64)> = Vec::new();
    for bits in 0..=u8::BITS {
        folded.clear();
        for (bucket, count) in delays.occupied() {
            let upper = (bucket | ((1 << bits) - 1)).min(evenfall_core::histogram::BUCKETS - 1);
            match folded.last_mut().filter(|(last, _)| usize::from(*last) == upper) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => folded.push((upper as u8, count)),
            }
        }
        let bytes: usize = folded.iter().map(|(_, count)| 1 + varint_bytes(*count)).sum();
        if bytes <= bytes_max {
            break;
        }
    }
    folded
}

impl Report {
    /// Encodes the report in at most `bytes_max` bytes. The newest samples, when they do not fit,
    /// stay in the report, and the next report begins with them.
    ///
    /// A quarter of the room goes to the worst hosts, a third to the histogram, and the rest to
    /// samples.
    pub(crate) fn encode(&mut self, bytes_max: usize) -> Bytes {
        self.samples.sort_unstable_by_key(|sample| sample.sequence);
        let mut out = BytesMut::with_capacity(bytes_max.min(2_048));
        self.tally.put(&mut out);
        out.put_u32_le(self.p95_ns);
        out.put_u32_le(self.serial);
        out.put_u8(self.height);
        let room = bytes_max.saturating_sub(REPORT_BYTES_MIN);
        let worst = self.worst.len().min(room / 4 / WORST_BYTES);
        out.put_u8(worst as u8);
        for w in &self.worst[..worst] {
            out.put_u32_le(w.from.0);
            out.put_u32_le(w.to.0);
            out.put_u32_le(w.mean_ns);
            out.put_u32_le(w.max_ns);
        }
        let delays = fold(&self.delays, room / 3);
        out.put_u8(delays.len() as u8);
        for (bucket, count) in delays {
            out.put_u8(bucket);
            put_varint(&mut out, count);
        }
        let told = self.put_samples(&mut out, bytes_max);
        self.samples.drain(..told);
        out.freeze()
    }

    /// The number of samples that had room.
    fn put_samples(&self, out: &mut BytesMut, bytes_max: usize) -> usize {
        let count_at = out.len();
        out.put_u16_le(0);
        let (mut told, mut after) = (0, 0);
        for s in self.samples.iter().take(SAMPLES_MAX) {
            let step = s.sequence - after;
            let parts = [step, s.latest_ns.into(), s.receivers.into(), s.missing.into()];
            let bytes: usize = parts.into_iter().map(varint_bytes).sum();
            if out.len() + bytes > bytes_max {
                break;
            }
            parts.into_iter().for_each(|part| put_varint(out, part));
            (told, after) = (told + 1, s.sequence);
        }
        out[count_at..count_at + 2].copy_from_slice(&(told as u16).to_le_bytes());
        told
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let mut report = Self {
            tally: Tally::read(&mut r)?,
            p95_ns: r.u32()?,
            serial: r.u32()?,
            height: r.u8()?,
            ..Self::default()
        };
        let worst = usize::from(r.u8()?);
        if worst > WORST_MAX {
            return Err(r.malformed("more worst hosts than allowed"));
        }
        for _ in 0..worst {
            report.worst.push(Worst {
                from: NodeId(r.u32()?),
                to: NodeId(r.u32()?),
                mean_ns: r.u32()?,
                max_ns: r.u32()?,
            });
        }
        for _ in 0..r.u8()? {
            let (bucket, count) = (usize::from(r.u8()?), varint(&mut r)?);
            if bucket >= evenfall_core::histogram::BUCKETS {
                return Err(r.malformed("histogram bucket out of range"));
            }
            report.delays.add(bucket, count);
        }
        let samples = usize::from(r.u16()?);
        if samples > SAMPLES_MAX {
            return Err(r.malformed("more samples than allowed"));
        }
        let mut sequence = 0_u64;
        for _ in 0..samples {
            sequence = sequence.saturating_add(varint(&mut r)?);
            if sequence > NUMBER_MAX {
                return Err(r.malformed("a number that no stream reaches"));
            }
            let (latest_ns, receivers) = (varint_u32(&mut r)?, varint_u32(&mut r)?);
            let missing = varint_u32(&mut r)?;
            report.samples.push(Sample { sequence, latest_ns, receivers, missing });
        }
        r.finish()?;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    /// Room for any report of these tests.
    const ROOMY: usize = 1_368;

    /// A report that fills every bucket and the list of worst hosts, with these samples.
    fn full_report(samples: u64) -> Report {
        let mut report = Report::default();
        (0..evenfall_core::histogram::BUCKETS).for_each(|b| report.delays.add(b, 1 << 40));
        let worst = Worst { from: NodeId(1), to: NodeId(2), mean_ns: 3, max_ns: 4 };
        report.worst = vec![worst; WORST_MAX];
        let sample = |n| Sample {
            sequence: (1 << 40) + n * 20,
            latest_ns: 300_000 + n as u32,
            receivers: 1_000,
            missing: 0,
        };
        report.samples = (0..samples).map(sample).collect();
        report
    }

    #[test]
    fn a_report_fits_its_datagram_and_tells_the_rest_in_the_next() {
        for bytes_max in [192, 1_368] {
            let mut report = full_report(500);
            let all = report.samples.clone();
            let mut told = Vec::new();
            while !report.samples.is_empty() {
                let before = report.samples.len();
                let bytes = report.encode(bytes_max);
                assert!(bytes.len() <= bytes_max, "{} of {bytes_max}", bytes.len());
                let back = Report::decode(&bytes).unwrap();
                assert_eq!(back.delays.total(), report.delays.total());
                assert!(back.delays.quantile(0.5) >= report.delays.quantile(0.5));
                told.extend(back.samples);
                assert!(report.samples.len() < before, "{bytes_max} bytes hold no sample");
            }
            assert_eq!(told, all);
        }
    }

    #[test]
    fn fifty_milliseconds_of_two_thousand_samples_a_second_fit_one_datagram() {
        let mut report = full_report(100);
        report.delays = Histogram::default();
        // A thousand receivers at 30,000 frames a second, over two octaves.
        (40..56).for_each(|bucket| report.delays.add(bucket, 100_000));
        report.encode(ROOMY);
        assert_eq!(report.samples, []);
    }

    #[test]
    fn bodies_survive_the_wire() {
        let peer = |n: u32, s: &str| Peer { id: NodeId(n), addr: s.parse().unwrap() };
        let place = Place {
            view: 3,
            level: 1,
            start: 10,
            start_message: 40,
            sources: vec![peer(1, "127.0.0.1:9"), peer(2, "[::1]:10")],
            children: vec![],
            nieces: vec![peer(7, "10.1.2.3:65535")],
            recorders: vec![peer(8, "10.1.2.3:1")],
        };
        assert_eq!(Place::decode(&place.encode()).unwrap(), place);
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
        let mut report = Report { p95_ns: 4, ..Report::default() };
        report.tally.late = 7;
        report.samples.push(Sample { sequence: 3, latest_ns: 99, receivers: 2, missing: 1 });
        report.delays.record(Duration::from_micros(80));
        let samples = report.samples.clone();
        let back = Report::decode(&report.encode(ROOMY)).unwrap();
        assert_eq!((back.tally, back.samples), (report.tally, samples));
        assert_eq!(back.delays, report.delays);
        for reason in Reason::ALL {
            let body = encode_verdict(NodeId(4), reason);
            assert_eq!(decode_verdict(&body).unwrap(), (NodeId(4), reason));
        }
    }

    #[test]
    fn truncated_bodies_are_malformed() {
        let mut report = Report::default();
        report.samples.push(Sample { sequence: 3, latest_ns: 99, receivers: 2, missing: 1 });
        report.delays.record(Duration::from_micros(80));
        let bytes = report.encode(ROOMY);
        for len in 0..bytes.len() {
            assert!(Report::decode(&bytes[..len]).is_err(), "{len}");
        }
    }
}
