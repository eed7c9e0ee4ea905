//! MIAX MACH: packets of one exchange message each, several to a datagram. The type of the first
//! message is read, and the contents of messages are not decoded.
//!
//! ```text
//!  0          8        10     11        12                                      little-endian
//!  +----------+--------+------+---------+------+-- ...
//!  | sequence | length | type | session | kind | message        type 0 heartbeat, 1 start and
//!  +----------+--------+------+---------+------+-- ...               2 end of session, 3 message
//! ```
//!
//! The length counts the twelve bytes in front. Source: MIAX Multicast Communication Header (MACH)
//! and Top of Market Feed 1.9.

use crate::codec::{Clock, Codec, Format, MACH};
use crate::columns::{ColumnSink, MessageColumn, TYPE_COLUMN};
use crate::itch::Symbols;

/// Bytes in front of a message.
const HEAD_BYTES: usize = 12;
/// The types that a packet may have.
const TYPE_MAX: u8 = 3;
/// The type of a packet with an exchange message.
const TYPE_MESSAGE: u8 = 3;

pub(crate) struct Mach;

/// What the head of a datagram's first packet says.
struct FirstPacket {
    sequence: u64,
    packet_type: u8,
    session: u8,
    /// The kind of the exchange message; 0 for a packet without a message.
    kind: u8,
    /// Packets in the datagram.
    packets: u64,
}

/// The first packet of a datagram, which must hold whole packets to its last byte.
fn first(datagram: &[u8]) -> Option<FirstPacket> {
    let (mut rest, mut first, mut packets) = (datagram, None, 0);
    while !rest.is_empty() {
        let head: &[u8; HEAD_BYTES] = rest.first_chunk()?;
        let length = usize::from(u16::from_le_bytes([head[8], head[9]]));
        let packet = rest.get(..length).filter(|_| length >= HEAD_BYTES)?;
        let kind = packet.get(HEAD_BYTES).copied();
        if head[10] > TYPE_MAX || head[10] == TYPE_MESSAGE && kind.is_none() {
            return None;
        }
        packets += 1;
        first.get_or_insert(FirstPacket {
            sequence: u64::from_le_bytes(*head.first_chunk()?),
            packet_type: head[10],
            session: head[11],
            kind: kind.unwrap_or(0),
            packets: 0,
        });
        rest = &rest[length..];
    }
    first.map(|first| FirstPacket { packets, ..first })
}

/// The columns, with what the head of the first packet says.
const COLUMNS: &[MessageColumn] = &[
    TYPE_COLUMN,
    MessageColumn::unsigned("packet_sequence", 64),
    MessageColumn::unsigned("packet_type", 8),
    MessageColumn::unsigned("session", 8),
    MessageColumn::unsigned("packets", 16),
];

impl Codec for Mach {
    fn format(&self) -> Format {
        MACH
    }

    fn word(&self) -> &'static str {
        "mach"
    }

    fn name(&self) -> &'static str {
        "MIAX MACH (types are read, fields are not)"
    }

    fn clock(&self) -> Clock {
        Clock::Epoch
    }

    fn is_packet(&self, datagram: &[u8]) -> bool {
        first(datagram).is_some()
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        let first = first(message)?;
        Some(match (first.packet_type, first.kind) {
            (0, _) => "Heartbeat",
            (1, _) => "StartOfSession",
            (2, _) => "EndOfSession",
            (_, b'1') => "SystemTime",
            (_, b'B' | b'W') => "TopOfMarketBid",
            (_, b'O' | b'A') => "TopOfMarketOffer",
            (_, b'd' | b'D') => "TopOfMarketBidAndOffer",
            (_, b'T') => "LastSale",
            (_, b'X') => "TradeCancel",
            (_, b'P') => "SeriesUpdate",
            (_, b'S') => "SystemState",
            _ => "other message of MACH",
        })
    }

    fn columns(&self) -> &'static [MessageColumn] {
        COLUMNS
    }

    fn put_rows(&self, message: &[u8], _: &mut Symbols, sink: &mut dyn ColumnSink) {
        let Some(first) = first(message) else { return };
        self.type_name(message).inspect(|name| sink.put_text(0, name));
        sink.put_unsigned(1, first.sequence);
        sink.put_unsigned(2, first.packet_type.into());
        sink.put_unsigned(3, first.session.into());
        sink.put_unsigned(4, first.packets);
        sink.end_row();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{ColumnBuffers, ColumnValues};

    #[test]
    fn datagrams_are_told_by_the_lengths_of_all_their_packets() {
        let packet = |kind: u8| {
            let body = [kind, 1, 2, 3];
            [&5u64.to_le_bytes()[..], &16u16.to_le_bytes(), &[3, 1], &body].concat()
        };
        let two = [packet(b'T'), packet(b'B')].concat();
        assert_eq!(Mach.type_name(&two), Some("LastSale"));
        let mut row = ColumnBuffers::new(Mach.columns());
        Mach.put_rows(&two, &mut Symbols::new(), &mut row);
        let stated = row.columns().skip(1).map(|(_, values)| values.clone());
        let expected = [5, 3, 1, 2].map(|number| ColumnValues::Unsigned(vec![Some(number)]));
        assert_eq!(stated.collect::<Vec<_>>(), expected);
        for end in 0..two.len() {
            assert_eq!(Mach.is_packet(&two[..end]), end == 16, "cut at {end}");
        }
        assert!(!Mach.is_packet(b"A\0\0 no packet of MACH"));
    }
}
