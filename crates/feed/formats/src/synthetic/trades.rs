//! A feed of trades around one price, for the trading demos.
//!
//! In a feed as it is on a day, one message in two hundred is a trade with a price, and each symbol
//! has a price of its own. A demo of trading needs trades that every participant judges by one
//! rule: every message is a trade of one symbol, and half of the prices are above the threshold of
//! the rule. The bytes are trades of ITCH 5.0 (type P), so that they travel and are decoded like
//! any feed.

use evenfall_core::Prng;

use super::OPEN_NS;
use crate::event::Event;
use crate::itch::{Alpha, Code, Owned, Price4, Trade};

/// Prices lie this far around the threshold, in cents: a trade is above it half of the time.
const PRICES_CENTS: (u64, u64) = (9_000, 11_000);
/// The threshold in cents.
const THRESHOLD_CENTS: u64 = 10_000;
/// Most shares of a trade.
const SHARES_MAX: u64 = 100;
/// Units of a price of ITCH in a cent.
const UNITS_PER_CENT: u64 = 100;
/// Distance of two trades on the clock of the feed: 2,500 trades a second, evenly. A burst would
/// put several trades into one frame, and the frame's release would decide all of them.
const GAP_NS: u64 = 400_000;

/// A trade of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoTrade {
    /// Price of a share in cents.
    pub price_cents: u64,
    /// Shares.
    pub shares: u64,
}

impl DemoTrade {
    /// The trade that message `number` of the feed of this seed carries.
    pub fn of(seed: u64, number: u64) -> Self {
        let mut prng = Prng::new(seed).fork(number);
        let (low, high) = PRICES_CENTS;
        Self { price_cents: low + prng.below(high - low), shares: 1 + prng.below(SHARES_MAX) }
    }

    /// The trade that a decoded message states; `None` for any other message.
    pub fn of_event(event: &Event) -> Option<Self> {
        if event.kind != Some("P") {
            return None;
        }
        let price = u64::try_from(event.price?).ok()?;
        Some(Self { price_cents: price / UNITS_PER_CENT, shares: event.shares? })
    }

    /// What the algorithm of every participant earns by an order for the trade; `None` when it
    /// places no order.
    pub fn profit_cents(self) -> Option<u64> {
        let above = self.price_cents.checked_sub(THRESHOLD_CENTS).filter(|above| *above > 0)?;
        above.checked_mul(self.shares)
    }

    /// Appends the trade as message `number` of a feed to `out`, in the bytes of ITCH.
    pub fn encode_into(self, number: u64, out: &mut bytes::BytesMut) {
        let price = self.price_cents.saturating_mul(UNITS_PER_CENT);
        Owned::Trade(Trade {
            stock_locate: 1,
            timestamp_ns: OPEN_NS.saturating_add(number.saturating_mul(GAP_NS)),
            side: Code(b'B'),
            shares: u32::try_from(self.shares).unwrap_or(u32::MAX),
            stock: Alpha::new("EVEN").unwrap_or_default(),
            price: Price4(u32::try_from(price).unwrap_or(u32::MAX)),
            match_number: number.saturating_add(1),
            ..Trade::default()
        })
        .encode_into(out);
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::codec::ITCH;
    use crate::event::Events;
    use crate::itch::SystemEvent;

    #[test]
    fn what_the_codec_reads_is_the_trade_that_was_written() {
        let mut events = Events::new();
        let mut orders = 0;
        for number in 0..1_000 {
            let (trade, mut bytes) = (DemoTrade::of(7, number), BytesMut::new());
            trade.encode_into(number, &mut bytes);
            assert_eq!(DemoTrade::of_event(&events.read(ITCH, &bytes)), Some(trade));
            orders += u32::from(trade.profit_cents().is_some());
        }
        assert!((450..550).contains(&orders), "half of the trades are above: {orders}");
        let other = events.read(ITCH, &SystemEvent::default().encode());
        assert_eq!(DemoTrade::of_event(&other), None);
    }

    #[test]
    fn threshold_itself_is_worth_no_order() {
        let trade = |price_cents| DemoTrade { price_cents, shares: 3 };
        let profits = [9_999, 10_000, 10_001].map(|cents| trade(cents).profit_cents());
        assert_eq!(profits, [None, None, Some(3)]);
    }
}
