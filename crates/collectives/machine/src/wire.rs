//! The datagrams, byte by byte. The same drawing with prose is in `docs/wire/shuffle.md`.
//!
//! All integers are little-endian. Every datagram starts with 32 bytes:
//!
//! ```text
//!  0        2        3       4        5        6        8
//!  | magic  |version | kind  | class  | zero   | from   |
//!  8                                  16
//!  | operation                        |
//! 16                20                24                28               32
//!  | offset         | length          | extra          | agreement      | payload ...
//! ```
//!
//! DATA has a part of a message as its payload, and RESEND has further ranges. The machine knows no
//! key: a port below it seals whole datagrams. Decoding is total: any bytes give a value or
//! [`Malformed`].

use bytes::Bytes;
use evenfall_core::{Head, Malformed, TrafficClass};

/// "ES" in ASCII.
pub const MAGIC: u16 = u16::from_le_bytes(*b"ES");
/// Version of this layout. A datagram of another version is refused by its number.
pub const VERSION: u8 = 2;
/// Bytes in front of the payload.
pub const HEADER_BYTES: usize = 32;

/// Ranges that one RESEND asks for. With 64 ranges the datagram stays far below an Ethernet frame.
pub const RANGES_MAX: usize = 64;
/// Bytes of each range after the first range: offset and length.
pub const RANGE_BYTES: usize = 8;

/// The `offset` of an ABORT whose sender and the rank to blame state different things. Other
/// aborts have 0, as have those of ranks that do not know this number.
pub const ABORT_DISAGREES: u32 = 1;

/// Kinds of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ShuffleKind {
    /// A range of a message. `length` is the length of the whole message. `extra` is the number of
    /// packets that the sender sends unasked. A DATA datagram without payload only announces the
    /// message.
    Data = 1,
    /// The sender may send all bytes below `offset`.
    Grant = 2,
    /// The receiver has the whole message.
    Ack = 3,
    /// The receiver misses `offset..offset + length`. A length of 0 asks for a sign of life. The
    /// payload holds further ranges.
    Resend = 4,
    /// The answer to a RESEND that came too early: the rank lives, and has no message yet.
    Wait = 5,
    /// A step of the all-reduce of remainders. `extra` is the round, `offset` the step, and
    /// `length` the largest remainder so far in units of 256 bytes.
    Reduce = 6,
    /// The operation has failed at the sender of this datagram. `extra` is the rank to blame, and
    /// `offset` is [`ABORT_DISAGREES`] or 0.
    Abort = 7,
}

impl ShuffleKind {
    fn from_wire(byte: u8) -> Option<Self> {
        use ShuffleKind::{Abort, Ack, Data, Grant, Reduce, Resend, Wait};
        [Data, Grant, Ack, Resend, Wait, Reduce, Abort].into_iter().find(|&k| k as u8 == byte)
    }
}

/// The head of a datagram, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShuffleHeader {
    /// Kind of the datagram.
    pub kind: ShuffleKind,
    /// Priority of the datagram.
    pub class: TrafficClass,
    /// Rank that sent the datagram.
    pub from: u16,
    /// Number of the operation.
    pub operation: u64,
    /// Meaning by [`ShuffleKind`].
    pub offset: u32,
    /// Meaning by [`ShuffleKind`].
    pub length: u32,
    /// Meaning by [`ShuffleKind`].
    pub extra: u32,
    /// Hash of what all members must agree on: the number of members, the packet size, the call and
    /// the number of the group's settings.
    pub agreement: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

/// The payload of a RESEND for these ranges. The head of the datagram holds the first range.
pub fn encode_ranges(ranges: &[(u32, u32)]) -> Bytes {
    let words = ranges.iter().skip(1).flat_map(|&(offset, length)| [offset, length]);
    words.flat_map(u32::to_le_bytes).collect()
}

/// The ranges of a RESEND: the range in its head, then the ranges in its payload.
pub fn ranges<'a>(
    header: &ShuffleHeader,
    payload: &'a [u8],
) -> impl Iterator<Item = (u32, u32)> + 'a {
    let further =
        payload.chunks_exact(RANGE_BYTES).map(|range| (u32_at(range, 0), u32_at(range, 4)));
    std::iter::once((header.offset, header.length)).chain(further)
}

impl ShuffleHeader {
    /// The bytes of the head.
    pub fn encode(&self) -> Head {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = VERSION;
        bytes[3] = self.kind as u8;
        bytes[4] = self.class as u8;
        bytes[6..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.operation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.offset.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.extra.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.agreement.to_le_bytes());
        Head::new(&bytes)
    }

    /// Reads the head of a datagram.
    ///
    /// # Errors
    /// [`Malformed`] when the datagram is of another protocol or another version.
    pub fn decode(datagram: &[u8]) -> Result<Self, Malformed> {
        let refuse = |what, offset| Err(Malformed { what, offset });
        if datagram.len() < HEADER_BYTES {
            return refuse("shorter than a shuffle header", datagram.len());
        }
        if u16_at(datagram, 0) != MAGIC {
            return refuse("not a shuffle datagram", 0);
        }
        if datagram[2] != VERSION {
            return refuse("another version of the shuffle's wire format", 2);
        }
        let Some(kind) = ShuffleKind::from_wire(datagram[3]) else {
            return refuse("unknown kind", 3);
        };
        let Some(class) = TrafficClass::from_wire(datagram[4]) else {
            return refuse("unknown class", 4);
        };
        if datagram[5] != 0 {
            return refuse("a byte that must be zero", 5);
        }
        let payload = &datagram[HEADER_BYTES..];
        if !matches!(kind, ShuffleKind::Data | ShuffleKind::Resend) && !payload.is_empty() {
            return refuse("payload where there is none", HEADER_BYTES);
        }
        let ranges = payload.len() / RANGE_BYTES;
        if kind == ShuffleKind::Resend
            && (ranges >= RANGES_MAX || !payload.len().is_multiple_of(RANGE_BYTES))
        {
            return refuse("not whole ranges, or too many", HEADER_BYTES);
        }
        Ok(Self {
            kind,
            class,
            from: u16_at(datagram, 6),
            operation: u64_at(datagram, 8),
            offset: u32_at(datagram, 16),
            length: u32_at(datagram, 20),
            extra: u32_at(datagram, 24),
            agreement: u32_at(datagram, 28),
        })
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    fn header(kind: ShuffleKind) -> ShuffleHeader {
        let (operation, offset) = (0x0102_0304_0506_0708, 1432);
        let (class, from) = (TrafficClass::Bulk, 513);
        ShuffleHeader {
            kind,
            class,
            from,
            operation,
            offset,
            length: 99,
            extra: 7,
            agreement: 0xabcd,
        }
    }

    #[test]
    fn what_was_encoded_decodes_to_itself() {
        let head = header(ShuffleKind::Data).encode();
        assert_eq!(head.as_slice().len(), HEADER_BYTES);
        let bytes = [head.as_slice(), b"payload"].concat();
        assert_eq!(ShuffleHeader::decode(&bytes), Ok(header(ShuffleKind::Data)));
    }

    #[test]
    fn ranges_of_a_resend_come_back_and_too_many_are_refused() {
        let all: Vec<(u32, u32)> =
            (0..RANGES_MAX as u32 + 1).map(|at| (at * 1_432, 1_432)).collect();
        let datagram = |ranges: &[(u32, u32)]| {
            let (offset, length) = ranges[0];
            let payload = encode_ranges(ranges);
            let head = ShuffleHeader { offset, length, ..header(ShuffleKind::Resend) }.encode();
            [head.as_slice(), &payload].concat()
        };
        for count in [1, 2, RANGES_MAX] {
            let bytes = datagram(&all[..count]);
            let header = ShuffleHeader::decode(&bytes).expect("whole");
            let back: Vec<_> = ranges(&header, &bytes[HEADER_BYTES..]).collect();
            assert_eq!(back, &all[..count]);
        }
        assert!(ShuffleHeader::decode(&datagram(&all)).is_err());
        let cut = datagram(&all[..3]);
        assert!(ShuffleHeader::decode(&cut[..cut.len() - 1]).is_err());
    }

    #[test]
    fn another_protocol_another_version_and_a_byte_in_use_are_refused_by_name() {
        let whole = header(ShuffleKind::Ack).encode();
        let refusal = |at: usize, byte: u8| {
            let mut bytes = whole.as_slice().to_vec();
            bytes[at] = byte;
            ShuffleHeader::decode(&bytes).map_err(|error| error.what)
        };
        assert_eq!(refusal(0, b'X'), Err("not a shuffle datagram"));
        assert_eq!(refusal(2, 1), Err("another version of the shuffle's wire format"));
        assert_eq!(refusal(3, 0), Err("unknown kind"));
        assert_eq!(refusal(5, 1), Err("a byte that must be zero"));
    }

    #[test]
    fn any_bytes_are_a_header_or_malformed() {
        let mut prng = Prng::new(1);
        for _ in 0..20_000 {
            let mut bytes = header(ShuffleKind::Grant).encode().as_slice().to_vec();
            bytes.truncate(prng.below(48) as usize);
            for _ in 0..prng.below(4) {
                let at = prng.below(bytes.len().max(1) as u64) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = prng.next_u64() as u8;
                }
            }
            let _ = ShuffleHeader::decode(&bytes);
        }
    }
}
