//! The orders that the exchange collects while the feed runs, by trade.
//!
//! Nothing of a datagram is taken on trust. A datagram of another shape or of another demo, an
//! unknown participant, a message without a trade that is worth an order, and a second order of one
//! participant for one trade are refused and counted. A trade is closed when all participants have
//! placed their orders, or [`ANSWER_MAX`] after the first of them. Later orders are refused too.

use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_multicast_report::market::{OrderStamps, PARTICIPANTS};
use serde::Serialize;

use super::order::OrderDatagram;

/// How long a trade stays open after its first order. Planted delays are 300 us, and a busy machine
/// may let a process wait for tens of milliseconds. A participant that was killed never answers.
pub const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Datagrams that were no orders to fill, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RefusedOrders {
    /// Bytes that are no order.
    pub malformed: u64,
    /// Orders whose run is that of another demo, or whose participant is above 3.
    pub strange: u64,
    /// Orders for messages that are no trade worth an order.
    pub no_trade: u64,
    /// Further orders of one participant for one trade.
    pub repeated: u64,
    /// Orders for trades that were closed.
    pub late: u64,
}

impl RefusedOrders {
    /// The datagrams refused for any reason.
    pub fn sum(&self) -> u64 {
        let Self { malformed, strange, no_trade, repeated, late } = self;
        malformed + strange + no_trade + repeated + late
    }
}

/// A trade that is worth an order, and the orders for it.
#[derive(Clone, Copy, Debug)]
pub struct OpenTrade {
    /// What the order that is filled earns, in cents.
    pub profit_cents: u64,
    /// The stamps of the orders so far.
    pub stamps: OrderStamps,
    /// When the first order came.
    first_order: Option<Timestamp>,
}

/// The orders of a demo.
#[derive(Debug)]
pub struct OrderCollection {
    run: u64,
    /// By the number of the message; `None` for a message that is worth no order.
    trades: Vec<Option<OpenTrade>>,
    refused: RefusedOrders,
}

impl OrderCollection {
    /// A collection without orders, for a feed whose messages are worth this much.
    pub fn new(run: u64, profits_cents: impl IntoIterator<Item = Option<u64>>) -> Self {
        let open = |profit_cents| OpenTrade {
            profit_cents,
            stamps: [None; PARTICIPANTS],
            first_order: None,
        };
        let trades = profits_cents.into_iter().map(|profit| profit.map(open)).collect();
        Self { run, trades, refused: RefusedOrders::default() }
    }

    /// Takes a datagram that came now.
    pub fn take_datagram(&mut self, now: Timestamp, datagram: &[u8]) {
        if let Err(count) = self.place_order(now, datagram) {
            *count(&mut self.refused) += 1;
        }
    }

    /// Places the order of a datagram. The error is the counter of the reason why there is none.
    fn place_order(
        &mut self,
        now: Timestamp,
        datagram: &[u8],
    ) -> Result<(), fn(&mut RefusedOrders) -> &mut u64> {
        let Some(order) = OrderDatagram::decode(datagram) else {
            return Err(|refused| &mut refused.malformed);
        };
        let seat = order.participant as usize;
        if order.run != self.run || seat >= PARTICIPANTS {
            return Err(|refused| &mut refused.strange);
        }
        let place = usize::try_from(order.trade).ok();
        let trade = place.and_then(|place| self.trades.get_mut(place)?.as_mut());
        let Some(trade) = trade else { return Err(|refused| &mut refused.no_trade) };
        if trade.stamps[seat].is_some() {
            return Err(|refused| &mut refused.repeated);
        }
        if now.since(*trade.first_order.get_or_insert(now)) > ANSWER_MAX {
            return Err(|refused| &mut refused.late);
        }
        trade.stamps[seat] = Some(order.stamp_ns);
        Ok(())
    }

    /// The trades that are worth an order, each with the number of its message.
    pub fn open_trades(&self) -> impl Iterator<Item = (u64, &OpenTrade)> {
        let numbered = self.trades.iter().enumerate();
        numbered.filter_map(|(number, trade)| Some((number as u64, trade.as_ref()?)))
    }

    /// The messages of the feed.
    pub fn messages(&self) -> usize {
        self.trades.len()
    }

    /// The orders of each participant.
    pub fn placed(&self) -> [u64; PARTICIPANTS] {
        let mut placed = [0; PARTICIPANTS];
        for trade in self.trades.iter().flatten() {
            for (count, stamp) in placed.iter_mut().zip(trade.stamps) {
                *count += u64::from(stamp.is_some());
            }
        }
        placed
    }

    /// The datagrams that were refused.
    pub fn refused(&self) -> RefusedOrders {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 77;

    fn at_ms(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    fn order(participant: u32, trade: u64, stamp_ns: u64) -> OrderDatagram {
        OrderDatagram { participant, run: RUN, trade, stamp_ns }
    }

    /// Three messages, of which the one in the middle is worth no order.
    fn collection() -> OrderCollection {
        OrderCollection::new(RUN, [Some(50), None, Some(70)])
    }

    #[test]
    fn orders_are_kept_by_trade_and_a_trade_may_stay_without() {
        let mut all = collection();
        all.take_datagram(at_ms(1), &order(2, 0, 900).encode());
        all.take_datagram(at_ms(2), &order(0, 0, 800).encode());
        let trades: Vec<_> =
            all.open_trades().map(|(number, trade)| (number, trade.stamps)).collect();
        assert_eq!(trades, [(0, [Some(800), None, Some(900), None]), (2, [None; 4])]);
        assert_eq!((all.placed(), all.refused().sum()), ([1, 0, 1, 0], 0));
    }

    #[test]
    fn order_after_the_trade_was_closed_is_late_and_an_order_in_time_is_not() {
        let mut all = collection();
        all.take_datagram(at_ms(10), &order(0, 0, 1).encode());
        all.take_datagram(at_ms(1_010), &order(1, 0, 1).encode());
        all.take_datagram(at_ms(1_011), &order(2, 0, 1).encode());
        // A trade whose first order comes late is open from then on.
        all.take_datagram(at_ms(9_000), &order(3, 2, 1).encode());
        assert_eq!((all.placed(), all.refused().late), ([1, 1, 0, 1], 1));
    }

    #[test]
    fn hostile_datagrams_are_counted_by_reason_and_change_no_order() {
        let mut all = collection();
        let good = order(1, 2, 5);
        all.take_datagram(at_ms(1), &good.encode());
        let mut longer = good.encode().to_vec();
        longer.push(0);
        let hostile: [&[u8]; 8] = [
            b"",
            b"GET / HTTP/1.1",
            &longer,
            &OrderDatagram { run: RUN + 1, ..good }.encode(),
            &order(4, 2, 5).encode(),
            &order(u32::MAX, 2, 5).encode(),
            &order(0, 1, 5).encode(),
            &order(0, u64::MAX, 5).encode(),
        ];
        hostile.iter().for_each(|bytes| all.take_datagram(at_ms(1), bytes));
        all.take_datagram(at_ms(1), &order(1, 2, 4).encode());
        let refused = RefusedOrders { malformed: 3, strange: 3, no_trade: 2, repeated: 1, late: 0 };
        assert_eq!((all.refused(), all.refused().sum()), (refused, 9));
        let (_, trade) = all.open_trades().last().unwrap();
        assert_eq!((trade.stamps, all.placed()), ([None, Some(5), None, None], [0, 1, 0, 0]));
    }
}
