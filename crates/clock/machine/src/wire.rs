//! The datagrams of the clock, byte by byte.
//!
//! All integers are little-endian. The first eight bytes are the same in every version, so that a
//! foreign version is refused by name:
//!
//! ```text
//!  0        2         3       4        5               8
//!  | "EK"   | version | kind  | key id | half  | zero  |
//!  8                                  16              20              24
//!  | run                              | from          | number        |
//! 24                                  32
//!  | message authentication code      |  body
//!
//! probe (kind 0; number: of the pair; half: 0 or 1)
//! 32                 40                  48                  56
//!  | sent            | departed, half 0  | departed, half 1  |
//! 56                 64                  72                  76
//!  | heard, half 0   | heard, half 1     | heard number      |
//!
//! close (kind 1; number: of the window): no body
//!
//! report (kind 2; number: of the window)
//! 32                 40                  48
//!  | source offset   | source bound      | up to 14 estimates of 80 bytes:
//!    | peer 4 | kept 4 | middle 8 | end 8 | offset 8 | rate 8 | half 8 | proven 16 | rates 16 |
//!
//! verdict (kind 3; number: of the window; half: the state)
//! 32        40       48      56         64              88              104             120
//!  | at     | offset | rate  | standing | variances 3x8 | proven 2 x 8  | rates 2 x 8   |
//! 120       128     136              144                152
//!  | horizon| base   | UTC offset      | UTC bound        |
//!
//! left out (kind 4; number: of the window): no body
//!
//! jump (kind 5; number: of the neighbour)
//! 32        36
//!  | window |
//!
//! key request (kind 6; number: 0)
//! 32       40
//!  | nonce |
//!
//! keys (kind 7; number: of the window)
//! 32       40
//!  | nonce | up to 56 keys of 20 bytes:
//!    | neighbour 4 | masked key 16 |
//! ```
//!
//! `sent` is the time before the system call. `departed` are the stamps of the pair before this
//! pair, or zero without a stamp. `heard` are the arrivals of the receiver's pair with the heard
//! number, and zero says that nothing was heard. A source bound of all ones says that there is no
//! source. The window of a jump is the sender's last window, so that a jump of an earlier window is
//! not believed again. Kinds 6 and 7 are sent where every datagram is under a key of its two ends.
//! `docs/wire/clock.md` explains them.

use core::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::time::nanos;
use evenfall_core::{MacKey, Malformed, Reader, Timestamp};

use crate::{ClockState, ClockVerdict, NeighbourKey, PairEstimate};

/// First bytes of every datagram.
pub const MAGIC: [u8; 2] = *b"EK";
/// Version of this layout.
pub const VERSION: u8 = 2;
/// Bytes in front of the body.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a probe.
pub const PROBE_BYTES: usize = 76;
/// Estimates of one report, which then has 1,168 bytes and fits every path.
pub const REPORT_ESTIMATES: usize = 14;
/// Keys of one datagram, which then has 1,160 bytes and fits every path. A node has 16 neighbours
/// at most, as long as there are fewer than 65,536 nodes.
pub const KEYS_MAX: usize = 56;
/// The bound in a datagram without a claim.
const NO_BOUND: u64 = u64::MAX;
const MAC_OFFSET: usize = 24;
const FROM_OFFSET: usize = 16;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;

/// A claim about another time: the correction of a clock, and the bound on the error of the
/// corrected clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The correction, in nanoseconds.
    pub offset_ns: i64,
    /// The bound that is stated, in nanoseconds.
    pub bound_ns: u64,
}

/// One of two probes that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedProbe {
    /// Which of the two.
    pub second: bool,
    /// When the sender asked its port to send, on its clock.
    pub sent: Timestamp,
    /// When the sender's last pair left, on its clock. Zero without a stamp.
    pub departed: [Timestamp; 2],
    /// Number of the receiver's pair that the sender heard last.
    pub heard_number: u32,
    /// When that pair arrived, on the sender's clock. Zero when no pair arrived.
    pub heard: [Timestamp; 2],
}

/// The body of a datagram.
#[derive(Clone, Debug, PartialEq)]
pub enum ClockBody {
    /// A probe.
    Probe(CodedProbe),
    /// "Your window ends": from the reference to all.
    Close,
    /// The estimates of a window, from a node to the reference.
    Report {
        /// The claim of the node's own source of time, against the node's clock.
        source: Option<Claim>,
        /// Neighbours by number, with the estimates.
        estimates: Vec<(u32, PairEstimate)>,
    },
    /// The verdict of the solve about a node, from the reference to that node.
    Verdict {
        /// The node's clock.
        verdict: ClockVerdict,
        /// Nanoseconds to add to the time of the reference, so that stamps count from 1970.
        base_ns: i64,
        /// UTC against the time of the reference.
        utc: Option<Claim>,
    },
    /// "Your clock is left out": from the reference, to a node whose probes fit no clock.
    LeftOut,
    /// "My clock or the clock of this neighbour has jumped": from a node to the reference.
    Jump {
        /// The last window of the node.
        window: u32,
    },
    /// "Which keys do I have with my neighbours?": from a node to the reference.
    KeyRequest {
        /// A random number, which the answer repeats.
        nonce: u64,
    },
    /// Keys of a node with its neighbours, from the reference to that node.
    Keys {
        /// The number of the request.
        nonce: u64,
        /// The keys that the node cannot derive itself.
        keys: Vec<NeighbourKey>,
    },
}

/// A datagram.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockMessage {
    /// The run; datagrams of another run are refused.
    pub run: u64,
    /// The number of the node that sends.
    pub from: u32,
    /// Number of the pair of probes, of the window, or of the neighbour.
    pub number: u32,
    /// The body.
    pub body: ClockBody,
}

fn finite(r: &mut Reader<'_>) -> Result<f64, Malformed> {
    let value = f64::from_bits(r.u64()?);
    if value.is_finite() { Ok(value) } else { Err(r.malformed("not a finite number")) }
}

/// The greatest bound of a rate in a verdict: a clock that runs at half or at one and a half times
/// the rate is no clock.
const PROVEN_RATE_MAX: f64 = 0.5;

/// A rate of a clock. No real clock gains or loses a whole nanosecond in each nanosecond.
fn rate(r: &mut Reader<'_>) -> Result<f64, Malformed> {
    let value = finite(r)?;
    if value.abs() < 1.0 { Ok(value) } else { Err(r.malformed("a rate that no clock has")) }
}

/// A bound of a rate in a verdict. Senders limit it.
fn proven_rate(r: &mut Reader<'_>) -> Result<f64, Malformed> {
    let value = rate(r)?;
    match value.abs() <= PROVEN_RATE_MAX {
        true => Ok(value),
        false => Err(r.malformed("a bound of a rate that no sender states")),
    }
}

fn times(r: &mut Reader<'_>) -> Result<[Timestamp; 2], Malformed> {
    Ok([Timestamp::from_nanos(r.u64()?), Timestamp::from_nanos(r.u64()?)])
}

fn claim(r: &mut Reader<'_>) -> Result<Option<Claim>, Malformed> {
    let (offset_ns, bound_ns) = (r.i64()?, r.u64()?);
    Ok((bound_ns != NO_BOUND).then_some(Claim { offset_ns, bound_ns }))
}

fn put_claim(out: &mut BytesMut, claim: Option<Claim>) {
    out.put_i64_le(claim.map_or(0, |claim| claim.offset_ns));
    out.put_u64_le(claim.map_or(NO_BOUND, |claim| claim.bound_ns.min(NO_BOUND - 1)));
}

fn put_estimate(out: &mut BytesMut, peer: u32, estimate: &PairEstimate) {
    out.put_u32_le(peer);
    out.put_u32_le(estimate.kept);
    out.put_u64_le(estimate.middle.nanos());
    out.put_u64_le(estimate.end.nanos());
    out.put_i64_le(estimate.offset_ns);
    out.put_f64_le(estimate.rate);
    out.put_u64_le(estimate.half_ns);
    estimate.proven_ns.iter().for_each(|&ns| out.put_i64_le(ns));
    estimate.proven_rate.iter().for_each(|&rate| out.put_f64_le(rate));
}

fn estimate(r: &mut Reader<'_>) -> Result<(u32, PairEstimate), Malformed> {
    let (peer, kept, [middle, end]) = (r.u32()?, r.u32()?, times(r)?);
    let estimate = PairEstimate {
        middle,
        end,
        offset_ns: r.i64()?,
        rate: rate(r)?,
        half_ns: r.u64()?,
        kept,
        proven_ns: [r.i64()?, r.i64()?],
        proven_rate: [rate(r)?, rate(r)?],
    };
    let ordered = estimate.proven_ns[0] <= estimate.proven_ns[1]
        && estimate.proven_rate[0] <= estimate.proven_rate[1];
    if ordered { Ok((peer, estimate)) } else { Err(r.malformed("a bound below its lower bound")) }
}

fn put_verdict(out: &mut BytesMut, verdict: &ClockVerdict) {
    out.put_u64_le(verdict.at.nanos());
    out.put_i64_le(verdict.offset_ns);
    out.put_f64_le(verdict.rate);
    out.put_f64_le(verdict.standing_ns);
    verdict.variances.iter().for_each(|&value| out.put_f64_le(value));
    // A bound that is not proven is infinite. The wire has the greatest number in its place.
    verdict.proven_ns.iter().for_each(|&ns| out.put_f64_le(ns.clamp(f64::MIN, f64::MAX)));
    let slope = |rate: f64| match rate.is_finite() {
        true => rate.clamp(-PROVEN_RATE_MAX, PROVEN_RATE_MAX),
        false => 0.0,
    };
    verdict.proven_rate.iter().for_each(|&rate| out.put_f64_le(slope(rate)));
    out.put_u64_le(nanos(verdict.horizon));
}

fn verdict(r: &mut Reader<'_>, state: ClockState) -> Result<ClockVerdict, Malformed> {
    let verdict = ClockVerdict {
        at: Timestamp::from_nanos(r.u64()?),
        offset_ns: r.i64()?,
        rate: rate(r)?,
        state,
        standing_ns: finite(r)?,
        variances: [finite(r)?, finite(r)?, finite(r)?],
        proven_ns: [finite(r)?, finite(r)?]
            .map(|ns| if ns.abs() == f64::MAX { f64::INFINITY.copysign(ns) } else { ns }),
        proven_rate: [proven_rate(r)?, proven_rate(r)?],
        horizon: Duration::from_nanos(r.u64()?),
    };
    if verdict.standing_ns < 0.0 { Err(r.malformed("a bound below zero")) } else { Ok(verdict) }
}

/// Checks the bytes in front of the kind.
fn check_version(r: &mut Reader<'_>) -> Result<(), Malformed> {
    if r.take(2)? != MAGIC {
        return Err(Malformed { what: "not a datagram of the clock", offset: 0 });
    }
    if r.u8()? != VERSION {
        return Err(Malformed { what: "another version of the clock", offset: 2 });
    }
    Ok(())
}

/// The place that a datagram names as its sender. Only the check of its code shows whether that is
/// true.
pub(crate) fn stated_sender(datagram: &[u8]) -> Result<u32, Malformed> {
    let mut r = Reader::new(datagram);
    check_version(&mut r)?;
    r.take(FROM_OFFSET - 3)?;
    r.u32()
}

fn put_keys(out: &mut BytesMut, keys: &[NeighbourKey]) {
    assert!(keys.len() <= KEYS_MAX, "a node has fewer neighbours");
    for key in keys {
        out.put_u32_le(key.neighbour);
        out.put_slice(&key.masked);
    }
}

fn read_keys(r: &mut Reader<'_>) -> Result<Vec<NeighbourKey>, Malformed> {
    let mut keys = Vec::new();
    while r.finish().is_err() {
        if keys.len() == KEYS_MAX {
            return Err(r.malformed("more keys than a node has neighbours"));
        }
        let neighbour = r.u32()?;
        let mut masked = [0; KEY_BYTES];
        masked.copy_from_slice(r.take(KEY_BYTES)?);
        keys.push(NeighbourKey { neighbour, masked });
    }
    Ok(keys)
}

impl ClockMessage {
    /// The datagram.
    ///
    /// # Panics
    /// When a report has more than [`REPORT_ESTIMATES`], or there are more than [`KEYS_MAX`] keys.
    pub fn encode(&self, key: Option<&MacKey>) -> Bytes {
        let (kind, half) = match &self.body {
            ClockBody::Probe(probe) => (0, u8::from(probe.second)),
            ClockBody::Close => (1, 0),
            ClockBody::Report { .. } => (2, 0),
            ClockBody::Verdict { verdict, .. } => (3, verdict.state as u8),
            ClockBody::LeftOut => (4, 0),
            ClockBody::Jump { .. } => (5, 0),
            ClockBody::KeyRequest { .. } => (6, 0),
            ClockBody::Keys { .. } => (7, 0),
        };
        let mut out = BytesMut::with_capacity(PROBE_BYTES);
        out.put_slice(&MAGIC);
        out.put_slice(&[VERSION, kind, MacKey::id_of(key), half, 0, 0]);
        out.put_u64_le(self.run);
        out.put_u32_le(self.from);
        out.put_u32_le(self.number);
        out.put_u64_le(0);
        match &self.body {
            ClockBody::Probe(probe) => {
                let [first, second] = probe.departed;
                for time in [probe.sent, first, second, probe.heard[0], probe.heard[1]] {
                    out.put_u64_le(time.nanos());
                }
                out.put_u32_le(probe.heard_number);
            }
            ClockBody::Close | ClockBody::LeftOut => {}
            ClockBody::Jump { window } => out.put_u32_le(*window),
            ClockBody::KeyRequest { nonce } => out.put_u64_le(*nonce),
            ClockBody::Keys { nonce, keys } => {
                out.put_u64_le(*nonce);
                put_keys(&mut out, keys);
            }
            ClockBody::Report { source, estimates } => {
                assert!(estimates.len() <= REPORT_ESTIMATES, "the sender divides reports");
                put_claim(&mut out, *source);
                estimates
                    .iter()
                    .for_each(|(peer, estimate)| put_estimate(&mut out, *peer, estimate));
            }
            ClockBody::Verdict { verdict, base_ns, utc } => {
                put_verdict(&mut out, verdict);
                out.put_i64_le(*base_ns);
                put_claim(&mut out, *utc);
            }
        }
        let mac = MacKey::mac_of(key, &[&out[..MAC_OFFSET], &out[HEADER_BYTES..]]);
        out[MAC_OFFSET..HEADER_BYTES].copy_from_slice(&mac.to_le_bytes());
        out.freeze()
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// The datagram is of another protocol, of another version, under another key, forged, or has
    /// impossible values.
    pub fn decode(datagram: &[u8], key: Option<&MacKey>) -> Result<Self, Malformed> {
        let mut r = Reader::new(datagram);
        check_version(&mut r)?;
        let kind = r.u8()?;
        if r.u8()? != MacKey::id_of(key) {
            return Err(Malformed { what: "sealed under another key, or none", offset: 4 });
        }
        let (half, _) = (r.u8()?, r.u16()?);
        let (run, from, number, mac) = (r.u64()?, r.u32()?, r.u32()?, r.u64()?);
        // Before the body is read, so that only holders of the key reach the readers below.
        if mac != MacKey::mac_of(key, &[&datagram[..MAC_OFFSET], &datagram[HEADER_BYTES..]]) {
            return Err(Malformed { what: "message authentication failed", offset: MAC_OFFSET });
        }
        let body = match (kind, half) {
            (0, 0 | 1) => {
                let (sent, departed, heard) =
                    (Timestamp::from_nanos(r.u64()?), times(&mut r)?, times(&mut r)?);
                let heard_number = r.u32()?;
                ClockBody::Probe(CodedProbe {
                    second: half == 1,
                    sent,
                    departed,
                    heard_number,
                    heard,
                })
            }
            (1, 0) => ClockBody::Close,
            (2, 0) => {
                let source = claim(&mut r)?;
                let mut estimates = Vec::new();
                while r.finish().is_err() {
                    if estimates.len() == REPORT_ESTIMATES {
                        return Err(r.malformed("more estimates than a report may have"));
                    }
                    estimates.push(estimate(&mut r)?);
                }
                ClockBody::Report { source, estimates }
            }
            (3, state) => {
                let state = ClockState::from_wire(state).ok_or(r.malformed("unknown state"))?;
                let verdict = verdict(&mut r, state)?;
                ClockBody::Verdict { verdict, base_ns: r.i64()?, utc: claim(&mut r)? }
            }
            (4, 0) => ClockBody::LeftOut,
            (5, 0) => ClockBody::Jump { window: r.u32()? },
            (6, 0) => ClockBody::KeyRequest { nonce: r.u64()? },
            (7, 0) => ClockBody::Keys { nonce: r.u64()?, keys: read_keys(&mut r)? },
            _ => return Err(Malformed { what: "unknown kind of datagram", offset: 3 }),
        };
        r.finish()?;
        Ok(Self { run, from, number, body })
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::{Prng, SharedKey};

    use super::*;

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_nanos(ns)
    }

    fn messages() -> Vec<ClockMessage> {
        let estimate = PairEstimate {
            middle: at(5),
            end: at(6),
            offset_ns: i64::MIN,
            rate: -3e-5,
            half_ns: 25_000,
            kept: 9,
            proven_ns: [-7, 8],
            proven_rate: [-1e-4, 1e-4],
        };
        let verdict = ClockVerdict {
            proven_ns: [f64::NEG_INFINITY, f64::INFINITY],
            offset_ns: -5,
            state: ClockState::Disrupted,
            ..ClockVerdict::reference(at(77))
        };
        let probe = CodedProbe {
            second: true,
            sent: at(1),
            departed: [at(2), at(3)],
            heard_number: 4,
            heard: [at(u64::MAX), at(0)],
        };
        let claim = Some(Claim { offset_ns: 7, bound_ns: 0 });
        let estimates = vec![(3, estimate); REPORT_ESTIMATES];
        let keys = vec![NeighbourKey { neighbour: 5, masked: [9; KEY_BYTES] }; KEYS_MAX];
        let bodies = [
            ClockBody::Probe(probe),
            ClockBody::Close,
            ClockBody::Report { source: None, estimates: vec![] },
            ClockBody::Report { source: claim, estimates },
            ClockBody::Verdict { verdict, base_ns: i64::MIN, utc: claim },
            ClockBody::LeftOut,
            ClockBody::Jump { window: 8 },
            ClockBody::KeyRequest { nonce: 1 << 63 },
            ClockBody::Keys { nonce: 3, keys: vec![] },
            ClockBody::Keys { nonce: 3, keys },
        ];
        bodies.map(|body| ClockMessage { run: 1 << 60, from: 2, number: 9, body }).to_vec()
    }

    fn key() -> MacKey {
        let (id, bytes) = SharedKey::new(3, [7; 32]).derive("a test of the clock");
        MacKey::new(id, &bytes)
    }

    #[test]
    fn every_datagram_is_read_as_it_was_written_with_and_without_a_key() {
        for key in [None, Some(&key())] {
            for message in messages() {
                let bytes = message.encode(key);
                assert!(bytes.len() <= 1_200, "{} bytes", bytes.len());
                assert_eq!(ClockMessage::decode(&bytes, key), Ok(message));
            }
        }
        assert_eq!(messages()[0].encode(None).len(), PROBE_BYTES);
    }

    #[test]
    fn a_changed_byte_or_another_key_is_refused() {
        let key = key();
        for message in messages() {
            let sealed = message.encode(Some(&key)).to_vec();
            for at in 0..sealed.len() {
                let mut forged = sealed.clone();
                forged[at] ^= 0x10;
                assert!(ClockMessage::decode(&forged, Some(&key)).is_err(), "byte {at}");
            }
            assert!(ClockMessage::decode(&sealed, None).is_err());
            assert!(ClockMessage::decode(&message.encode(None), Some(&key)).is_err());
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_malformed() {
        let mut prng = Prng::new(1);
        for message in messages() {
            let bytes = message.encode(None);
            for end in 0..bytes.len() {
                let cut = ClockMessage::decode(&bytes[..end], None);
                // Reports and keys have as many entries as there are bytes.
                let is_whole = match &message.body {
                    ClockBody::Keys { .. } => end >= 40 && (end - 40).is_multiple_of(20),
                    _ => end >= 48 && (end - 48).is_multiple_of(80),
                };
                assert!(cut.is_err() || is_whole, "{end} bytes of {message:?}");
            }
            for _ in 0..2_000 {
                let mut bytes = bytes.to_vec();
                for _ in 0..=prng.below(4) {
                    let at = prng.below(bytes.len() as u64) as usize;
                    bytes[at] = prng.next_u64() as u8;
                }
                if let Ok(message) = ClockMessage::decode(&bytes, None) {
                    assert_eq!(ClockMessage::decode(&message.encode(None), None), Ok(message));
                }
            }
        }
    }
}
