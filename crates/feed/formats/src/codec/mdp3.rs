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

/// The template of the first message of a packet that holds whole messages to its last byte.
fn first_template(packet: &[u8]) -> Option<u16> {
    let mut at = HEAD_BYTES;
    while at < packet.len() {
        let size = usize::from(short(packet, at)?);
        if size < MESSAGE_HEAD_BYTES || short(packet, at + 6)? != SCHEMA {
            return None;
        }
        at += size;
    }
    (at == packet.len()).then(|| short(packet, HEAD_BYTES + 4)).flatten()
}

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
        first_template(datagram).is_some()
    }

    fn packet_head(&self, packet: &[u8]) -> Option<PacketHead> {
        let (sequence, rest) = packet.split_first_chunk()?;
        let sent_ns = u64::from_le_bytes(*rest.first_chunk()?);
        Some(PacketHead { sequence: u32::from_le_bytes(*sequence).into(), sent_ns })
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        Some(match first_template(message)? {
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
