//! The datagram of an order: 32 bytes, little-endian.
//!
//! ```text
//!  0        4             8        16        24        32
//!  +--------+-------------+--------+---------+---------+
//!  | "EVO1" | participant | run    | trade   | stamp   |
//!  +--------+-------------+--------+---------+---------+
//! ```
//!
//! The participant counts from 0. The run is a random number of the demo, so that a participant
//! that an earlier demo left behind places no order in this one. The trade is the number of its
//! message within the feed. The stamp is the participant's synchronised time in nanoseconds. What
//! an order earns is not in the datagram: the exchange has the feed and knows it.

use evenfall_core::Reader;

/// Bytes of an order.
pub const ORDER_BYTES: usize = 32;
/// The first bytes: the name, and the version of this layout.
const MAGIC: [u8; 4] = *b"EVO1";

/// An order that a participant places for a trade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderDatagram {
    /// The place of the participant in the market, from 0.
    pub participant: u32,
    /// The demo that the order is for.
    pub run: u64,
    /// The number of the message with the trade.
    pub trade: u64,
    /// When the participant placed the order, by its own clock.
    pub stamp_ns: u64,
}

impl OrderDatagram {
    /// The datagram of this order.
    pub fn encode(self) -> [u8; ORDER_BYTES] {
        let mut bytes = [0; ORDER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.participant.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.run.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.trade.to_le_bytes());
        bytes[24..].copy_from_slice(&self.stamp_ns.to_le_bytes());
        bytes
    }

    /// The order in these bytes; `None` for bytes of another length or another beginning.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ORDER_BYTES] = bytes.try_into().ok()?;
        let mut reader = Reader::new(bytes);
        if reader.array().ok()? != MAGIC {
            return None;
        }
        let (participant, run) = (reader.u32().ok()?, reader.u64().ok()?);
        let (trade, stamp_ns) = (reader.u64().ok()?, reader.u64().ok()?);
        Some(Self { participant, run, trade, stamp_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_read_as_it_was_written_and_other_bytes_are_none() {
        let order = OrderDatagram { participant: 3, run: 1 << 60, trade: 17, stamp_ns: u64::MAX };
        let bytes = order.encode();
        assert_eq!(OrderDatagram::decode(&bytes), Some(order));
        for cut in 0..ORDER_BYTES {
            assert_eq!(OrderDatagram::decode(&bytes[..cut]), None);
        }
        assert_eq!(OrderDatagram::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(OrderDatagram::decode(&[&b"EVO2"[..], &bytes[4..]].concat()), None);
    }
}
