//! CME MDP 3.0: packets of SBE messages. The packet's head and the type of its first message are
//! read, and the contents of messages are not decoded.
//!
//! ```text
//!  0          4              12     14             16          18        20        22   all
//!  +----------+--------------+------+--------------+-----------+---------+---------+--- little-
//!  | sequence | sending time | size | block length | template  | schema  | version | ... endian
//!  +----------+--------------+------+--------------+-----------+---------+---------+---
//!                             one or more messages; a size counts its own two bytes
//! ```
//!
//! Source: CME Group, MDP 3.0 Binary Packet Header and SBE Message Header.

use crate::codec::{Clock, Codec, Format, MDP3, PacketHead};
use crate::columns::{ColumnSink, MessageColumn, TYPE_COLUMN};
use crate::itch::Symbols;

/// Bytes in front of a packet's messages.
const HEAD_BYTES: usize = 12;
/// Bytes in front of the contents of a message.
const MESSAGE_HEAD_BYTES: usize = 10;
/// The schema number of MDP 3.0.
const SCHEMA: u16 = 1;

pub(crate) struct Mdp3;

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// What the heads of a packet's messages say.
struct MessageHeads {
    /// Template of the first message.
    template: u16,
    /// Version of the schema of the first message.
    version: u16,
    /// Number of messages.
    messages: u64,
}

/// The heads of a packet that holds whole messages to its last byte.
fn message_heads(packet: &[u8]) -> Option<MessageHeads> {
    let (mut at, mut messages) = (HEAD_BYTES, 0);
    while at < packet.len() {
        let size = usize::from(short(packet, at)?);
        if size < MESSAGE_HEAD_BYTES || short(packet, at + 6)? != SCHEMA {
            return None;
        }
        at += size;
        messages += 1;
    }
    let [template, version] = [4, 8].map(|offset| short(packet, HEAD_BYTES + offset));
    if at != packet.len() {
        return None;
    }
    Some(MessageHeads { template: template?, version: version?, messages })
}

/// The columns, with what the heads of a packet and of its messages say.
const COLUMNS: &[MessageColumn] = &[
    TYPE_COLUMN,
    MessageColumn::unsigned("template", 16),
    MessageColumn::unsigned("schema_version", 16),
    MessageColumn::unsigned("packet_sequence", 32),
    MessageColumn::unsigned("sending_time_ns", 64),
    MessageColumn::unsigned("messages", 16),
];

impl Codec for Mdp3 {
    fn format(&self) -> Format {
        MDP3
    }

    fn word(&self) -> &'static str {
        "mdp3"
    }

    fn name(&self) -> &'static str {
        "CME MDP 3.0 (types and packet numbers are read, fields are not)"
    }

    fn clock(&self) -> Clock {
        Clock::Epoch
    }

    fn is_packet(&self, datagram: &[u8]) -> bool {
        message_heads(datagram).is_some()
    }

    fn packet_head(&self, packet: &[u8]) -> Option<PacketHead> {
        let (sequence, rest) = packet.split_first_chunk()?;
        let sent_ns = u64::from_le_bytes(*rest.first_chunk()?);
        Some(PacketHead { sequence: u32::from_le_bytes(*sequence).into(), sent_ns })
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        Some(match message_heads(message)?.template {
            4 => "ChannelReset4",
            12 => "AdminHeartbeat12",
            15 => "AdminLogin15",
            16 => "AdminLogout16",
            27 | 54 => "MDInstrumentDefinitionFuture",
            29 | 56 => "MDInstrumentDefinitionSpread",
            30 => "SecurityStatus30",
            32 | 46 => "MDIncrementalRefreshBook",
            33 | 49 => "MDIncrementalRefreshDailyStatistics",
            34 | 50 => "MDIncrementalRefreshLimitsBanding",
            35 | 51 => "MDIncrementalRefreshSessionStatistics",
            36 => "MDIncrementalRefreshTrade36",
            37 => "MDIncrementalRefreshVolume37",
            38 | 52 => "SnapshotFullRefresh",
            39 => "QuoteRequest39",
            41 | 55 => "MDInstrumentDefinitionOption",
            42 | 48 => "MDIncrementalRefreshTradeSummary",
            43 | 47 => "MDIncrementalRefreshOrderBook",
            44 | 53 => "SnapshotFullRefreshOrderBook",
            _ => "other template of MDP 3.0",
        })
    }

    fn columns(&self) -> &'static [MessageColumn] {
        COLUMNS
    }

    fn put_values(&self, message: &[u8], _: &mut Symbols, sink: &mut dyn ColumnSink) {
        let (Some(heads), Some(packet)) = (message_heads(message), self.packet_head(message))
        else {
            return;
        };
        self.type_name(message).inspect(|name| sink.put_text(0, name));
        sink.put_unsigned(1, heads.template.into());
        sink.put_unsigned(2, heads.version.into());
        sink.put_unsigned(3, packet.sequence);
        sink.put_unsigned(4, packet.sent_ns);
        sink.put_unsigned(5, heads.messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{ColumnBuffers, ColumnValues};

    fn packet(sizes: &[u16], schema: u16) -> Vec<u8> {
        let mut packet = [&7u32.to_le_bytes()[..], &9u64.to_le_bytes()].concat();
        for &size in sizes {
            for word in [size, 0, 46, schema, 9] {
                packet.extend_from_slice(&word.to_le_bytes());
            }
            packet.resize(packet.len() + usize::from(size) - MESSAGE_HEAD_BYTES, 0);
        }
        packet
    }

    #[test]
    fn a_packet_states_what_its_heads_say() {
        let mut rows = ColumnBuffers::new(Mdp3.columns());
        for bytes in [&packet(&[20, 10], 1)[..], b"no packet"] {
            Mdp3.put_values(bytes, &mut Symbols::new(), &mut rows);
            rows.end_row();
        }
        let number = |(_, values): (&MessageColumn, &ColumnValues)| match values {
            ColumnValues::Unsigned(values) => Some(values.clone()),
            _ => None,
        };
        let numbers: Vec<_> = rows.columns().filter_map(number).collect();
        let stated = [46, 9, 7, 9, 2].map(|number| vec![Some(number), None]);
        assert_eq!(numbers, stated);
    }

    #[test]
    fn a_packet_is_told_by_its_structure_and_named_by_its_first_message() {
        let whole = packet(&[20, 10], 1);
        assert_eq!(Mdp3.type_name(&whole), Some("MDIncrementalRefreshBook"));
        assert_eq!(Mdp3.packet_head(&whole), Some(PacketHead { sequence: 7, sent_ns: 9 }));
        for end in 0..whole.len() {
            // A cut between two messages leaves a valid packet.
            assert_eq!(Mdp3.is_packet(&whole[..end]), end == HEAD_BYTES + 20, "cut at {end}");
        }
        assert!(!Mdp3.is_packet(&packet(&[20], 2)));
        assert!(!Mdp3.is_packet(&[&whole[..], b"x"].concat()));
    }
}
