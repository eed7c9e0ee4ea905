//! The datagrams between who asks and a standing worker, byte by byte. The same drawing with prose
//! is in `docs/wire/questions.md`.
//!
//! All integers are little-endian. Every datagram starts with 24 bytes:
//!
//! ```text
//!  0        2        3      4               6       8
//!  | magic  |version | kind | zero          | rank  |
//!  8                 12               16              24
//!  | number          | rows           | newest        | ASK: who and what; REFUSED: why
//! ```
//!
//! The first 12 bytes keep their places in every version, so that a worker can say by name which
//! version it was asked in. The machines know no key: a port below them seals whole datagrams.
//! Decoding is total.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Head, Malformed};

/// "EB" in ASCII.
pub const QUESTION_MAGIC: [u8; 2] = *b"EB";
/// Version of this layout.
pub const QUESTION_VERSION: u8 = 2;
/// Bytes in front of the payload.
pub const QUESTION_HEADER_BYTES: usize = 24;
/// Payload of a datagram at most: it fits into an Ethernet frame, because a lost fragment would
/// cost the whole question. A question of a desk has room for 194 workers with addresses of IPv4.
pub const QUESTION_PAYLOAD_MAX: usize = 1_400;
/// Bytes of a reason. Longer reasons are cut.
pub const REASON_BYTES_MAX: usize = 240;

/// Kinds of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QuestionKind {
    /// The asker calls the roll of its workers.
    Call = 1,
    /// A worker answers a call. `rows` are the rows that the worker holds, and `newest` is the time
    /// of its newest row.
    Here = 2,
    /// A question. `rank` is the receiver's rank in it. The payload is an [`AskBody`].
    Ask = 3,
    /// A worker takes part in a question.
    Taken = 4,
    /// A worker takes no part. The payload is the reason as UTF-8.
    Refused = 5,
}

impl QuestionKind {
    fn from_wire(byte: u8) -> Option<Self> {
        use QuestionKind::{Ask, Call, Here, Refused, Taken};
        [Call, Here, Ask, Taken, Refused].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// The head of a datagram, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionHeader {
    /// Kind of the datagram.
    pub kind: QuestionKind,
    /// Rank of the receiver in a question; 0 otherwise.
    pub rank: u16,
    /// Number of the roll call or of the question. An asker gives each number once.
    pub number: u32,
    /// Rows that a worker holds.
    pub rows: u32,
    /// Time of the newest row that a worker holds, in nanoseconds; the least number when there is
    /// no row.
    pub newest_ns: i64,
}

impl QuestionHeader {
    /// A head without a rank and without rows.
    pub fn new(kind: QuestionKind, number: u32) -> Self {
        Self { kind, rank: 0, number, rows: 0, newest_ns: i64::MIN }
    }
}

/// A datagram of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionHead {
    /// Of this version.
    Known(QuestionHeader),
    /// Of another version.
    OtherVersion {
        /// That version.
        version: u8,
        /// Number of the call or question.
        number: u32,
    },
}

fn number_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|i| bytes[at + i])
}

impl QuestionHeader {
    /// The bytes of the head.
    pub fn encode(&self) -> Head {
        let mut bytes = [0; QUESTION_HEADER_BYTES];
        bytes[0..2].copy_from_slice(&QUESTION_MAGIC);
        (bytes[2], bytes[3]) = (QUESTION_VERSION, self.kind as u8);
        bytes[6..8].copy_from_slice(&self.rank.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.rows.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.newest_ns.to_le_bytes());
        Head::new(&bytes)
    }

    /// Reads the head of a datagram.
    ///
    /// # Errors
    /// [`Malformed`] when the datagram is of another protocol, or its kind is unknown.
    pub fn decode(datagram: &[u8]) -> Result<QuestionHead, Malformed> {
        let refuse = |what, offset| Err(Malformed { what, offset });
        if datagram.len() < QUESTION_HEADER_BYTES {
            return refuse("shorter than the header of a question", datagram.len());
        }
        if datagram[..2] != QUESTION_MAGIC {
            return refuse("no datagram of a question", 0);
        }
        let number = u32::from_le_bytes(number_at(datagram, 8));
        if datagram[2] != QUESTION_VERSION {
            return Ok(QuestionHead::OtherVersion { version: datagram[2], number });
        }
        let Some(kind) = QuestionKind::from_wire(datagram[3]) else {
            return refuse("unknown kind of a question", 3);
        };
        if datagram[4..6] != [0; 2] {
            return refuse("bytes that must be zero", 4);
        }
        if datagram.len() > QUESTION_HEADER_BYTES + QUESTION_PAYLOAD_MAX {
            return refuse("a question longer than a frame", QUESTION_HEADER_BYTES);
        }
        Ok(QuestionHead::Known(Self {
            kind,
            rank: u16::from_le_bytes(number_at(datagram, 6)),
            number,
            rows: u32::from_le_bytes(number_at(datagram, 12)),
            newest_ns: i64::from_le_bytes(number_at(datagram, 16)),
        }))
    }
}

/// Who takes part in a question, how, and what is asked. Whoever asks is rank 0, and its address is
/// the source of the datagram.
///
/// ```text
///  0              4                12      14
///  | packet bytes | silence ns     | count | count addresses | question
/// ```
///
/// An address is a byte 4 or 6, the address in network order, and the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskBody {
    /// Payload of a full packet between ranks. All ranks use this one.
    pub packet_bytes: u32,
    /// How long a rank may be silent before the others name it.
    pub silence: Duration,
    /// Addresses of the ranks from 1 on.
    pub workers: Vec<SocketAddr>,
    /// The question, in bytes that its plan understands.
    pub question: Bytes,
}

/// Bytes of a payload in front of the addresses.
const ASK_FIXED_BYTES: usize = 14;

/// Bytes of an address: its family, itself, and its port.
fn address_bytes(address: &SocketAddr) -> usize {
    1 + if address.is_ipv4() { 4 } else { 16 } + 2
}

/// How many of these workers, counted from the first, a question of this length can have.
pub fn count_askable(workers: &[SocketAddr], question_bytes: usize) -> usize {
    let room = QUESTION_PAYLOAD_MAX.saturating_sub(ASK_FIXED_BYTES + question_bytes);
    let ends = workers.iter().scan(0, |end, worker| {
        *end += address_bytes(worker);
        Some(*end)
    });
    ends.take_while(|&end| end <= room).count()
}

impl AskBody {
    /// The bytes of the payload. They may be longer than [`QUESTION_PAYLOAD_MAX`], which the asker
    /// checks.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u32_le(self.packet_bytes);
        bytes.put_u64_le(self.silence.as_nanos() as u64);
        bytes.put_u16_le(self.workers.len() as u16);
        for worker in &self.workers {
            match worker.ip() {
                IpAddr::V4(ip) => {
                    bytes.put_u8(4);
                    bytes.put_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.put_u8(6);
                    bytes.put_slice(&ip.octets());
                }
            }
            bytes.put_u16_le(worker.port());
        }
        bytes.put_slice(&self.question);
        bytes.freeze()
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes end early, or an address has no known family.
    pub fn decode(payload: &Bytes) -> Result<Self, Malformed> {
        let short = Malformed { what: "a question that ends early", offset: payload.len() };
        if payload.len() < ASK_FIXED_BYTES {
            return Err(short);
        }
        let count = u16::from_le_bytes(number_at(payload, 12));
        let (mut at, mut workers) = (ASK_FIXED_BYTES, Vec::new());
        for _ in 0..count {
            let family = *payload.get(at).ok_or(short)?;
            let length = match family {
                4 => 4,
                6 => 16,
                _ => return Err(Malformed { what: "an address of no known family", offset: at }),
            };
            let end = at + 1 + length + 2;
            let bytes = payload.get(at + 1..end).ok_or(short)?;
            let ip = match family {
                4 => IpAddr::from(number_at::<4>(bytes, 0)),
                _ => IpAddr::from(number_at::<16>(bytes, 0)),
            };
            workers.push(SocketAddr::new(ip, u16::from_le_bytes(number_at(bytes, length))));
            at = end;
        }
        Ok(Self {
            packet_bytes: u32::from_le_bytes(number_at(payload, 0)),
            silence: Duration::from_nanos(u64::from_le_bytes(number_at(payload, 4))),
            workers,
            question: payload.slice(at..),
        })
    }
}

/// A reason as the payload of [`QuestionKind::Refused`], cut at a whole letter.
pub fn encode_reason(why: &str) -> Bytes {
    let mut end = why.len().min(REASON_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    Bytes::copy_from_slice(&why.as_bytes()[..end])
}

/// The reason in a payload. Control characters become spaces, because the reason is printed.
pub fn decode_reason(payload: &[u8]) -> String {
    let cut = &payload[..payload.len().min(REASON_BYTES_MAX)];
    let text = String::from_utf8_lossy(cut);
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    fn body() -> AskBody {
        AskBody {
            packet_bytes: 1_432,
            silence: Duration::from_millis(200),
            workers: vec!["10.0.0.1:7000".parse().unwrap(), "[::1]:9".parse().unwrap()],
            question: Bytes::from_static(b"what?"),
        }
    }

    #[test]
    fn what_was_encoded_decodes_to_itself() {
        let header = QuestionHeader {
            kind: QuestionKind::Here,
            rank: 3,
            number: 77,
            rows: 12,
            newest_ns: -5,
        };
        let bytes = [header.encode().as_slice(), b"why"].concat();
        assert_eq!(QuestionHeader::decode(&bytes), Ok(QuestionHead::Known(header)));
        assert_eq!(AskBody::decode(&body().encode()), Ok(body()));
    }

    #[test]
    fn as_many_workers_are_askable_as_fit_into_the_payload() {
        for host in ["10.0.0.1", "::1"] {
            let worker = |port| SocketAddr::new(host.parse().unwrap(), port);
            let workers: Vec<SocketAddr> = (0..300).map(worker).collect();
            let question = Bytes::from_static(&[7; 25]);
            let fit = count_askable(&workers, question.len());
            let length = |count: usize| {
                let (workers, question) = (workers[..count].to_vec(), question.clone());
                AskBody { workers, question, ..body() }.encode().len()
            };
            assert!(length(fit) <= QUESTION_PAYLOAD_MAX, "{fit} of {host}");
            assert!(length(fit + 1) > QUESTION_PAYLOAD_MAX, "{fit} of {host}");
        }
        assert_eq!(count_askable(&[], 5_000), 0);
    }

    #[test]
    fn another_version_is_known_by_its_number_and_bytes_in_use_are_refused() {
        let whole = QuestionHeader::new(QuestionKind::Call, 5).encode();
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.as_slice().to_vec();
            bytes[at] = byte;
            QuestionHeader::decode(&bytes).map_err(|error| error.what)
        };
        let other = QuestionHead::OtherVersion { version: 1, number: 5 };
        assert_eq!(changed(2, 1), Ok(other));
        assert_eq!(changed(0, b'X'), Err("no datagram of a question"));
        assert_eq!(changed(3, 9), Err("unknown kind of a question"));
        assert_eq!(changed(4, 1), Err("bytes that must be zero"));
        assert_eq!(changed(5, 1), Err("bytes that must be zero"));
    }

    #[test]
    fn any_bytes_are_a_question_or_malformed() {
        let mut prng = Prng::new(1);
        for _ in 0..20_000 {
            let mut bytes = body().encode().to_vec();
            bytes.truncate(prng.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..prng.below(4) {
                let at = prng.below(bytes.len().max(1) as u64) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = prng.next_u64() as u8;
                }
            }
            let _ = QuestionHeader::decode(&bytes);
            decode_reason(&bytes);
            let _ = AskBody::decode(&bytes.into());
        }
        assert_eq!(decode_reason(&encode_reason(&"ä".repeat(500))).len(), REASON_BYTES_MAX);
    }
}
