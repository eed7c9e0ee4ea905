//! The market of the trading demos: what uneven delivery is worth to those who trade on the feed.
//!
//! A trade of the feed is worth an order to every participant, but only the order with the earliest
//! stamp is filled (Jasper, section 8.4 and appendix C). Two orders of the same stamp are decided
//! by lot, because one of two stamps that are equal to the nanosecond was not earlier. The market
//! compares stamps alone, so the simulator and processes with clocks use the same code.
//!
//! ```
//! use evenfall_multicast_report::market::{Market, TradeOrders};
//!
//! let mut market = Market::new(1, true);
//! let stamps = [Some(190), Some(204), None, Some(201)];
//! let orders = TradeOrders { profit_cents: 500, deadline_ns: Some(200), stamps };
//! // The first participant's stamp is before the deadline of the message, so it is refused.
//! assert_eq!(market.fill(&orders), Some(3));
//! assert_eq!(market.refused_orders(), [1, 0, 0, 0]);
//! assert_eq!(market.profit_share(), [0.0, 0.0, 0.0, 100.0]);
//! ```

use evenfall_core::Prng;

/// Participants of the market, as in the source.
pub const PARTICIPANTS: usize = 4;

/// The stamp of each participant's order for a trade, in nanoseconds. `None` without an order.
pub type OrderStamps = [Option<u64>; PARTICIPANTS];

/// What a participant does with its stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampConduct {
    /// Whether the stamp is the time at which the message arrived.
    pub opens_early: bool,
    /// Whether the stamp is the deadline when it would be earlier than that.
    pub writes_deadline: bool,
}

impl StampConduct {
    /// The stamp of an order for a message, by the participant's clock.
    pub fn stamp(self, arrived_ns: u64, released_ns: u64, deadline_ns: Option<u64>) -> u64 {
        let own = if self.opens_early { arrived_ns } else { released_ns };
        own.max(deadline_ns.filter(|_| self.writes_deadline).unwrap_or(0))
    }
}

/// The places of the participants among this number of receivers: the first two and the last two.
pub fn find_participants(receivers: u32) -> [u32; PARTICIPANTS] {
    let last = receivers.saturating_sub(1);
    [0, 1.min(last), last.saturating_sub(1), last]
}

/// The orders for one trade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TradeOrders {
    /// What the order that is filled earns, in cents.
    pub profit_cents: u64,
    /// The deadline of the message with the trade; `None` when the message was not held.
    pub deadline_ns: Option<u64>,
    /// The stamps, by participant.
    pub stamps: OrderStamps,
}

/// A market that fills the orders of one trade after the other.
#[derive(Clone, Debug)]
pub struct Market {
    lots: Prng,
    refuses_early: bool,
    profit_cents: [u64; PARTICIPANTS],
    filled: [u64; PARTICIPANTS],
    early: [u64; PARTICIPANTS],
    ties: u64,
}

/// Forks the lots off the other random numbers of a seed: the letters `lot`.
const LOTS: u64 = 0x6c_6f_74;

impl Market {
    /// A market whose lots come from this seed. A market that refuses early orders fills no order
    /// whose stamp is before the deadline of its message.
    pub fn new(seed: u64, refuses_early: bool) -> Self {
        Self {
            lots: Prng::new(seed).fork(LOTS),
            refuses_early,
            profit_cents: [0; PARTICIPANTS],
            filled: [0; PARTICIPANTS],
            early: [0; PARTICIPANTS],
            ties: 0,
        }
    }

    /// Fills the earliest order for a trade. Returns whose order that is; `None` when there is no
    /// order that may be filled.
    pub fn fill(&mut self, orders: &TradeOrders) -> Option<usize> {
        let (mut first, mut earliest) = (Vec::new(), u64::MAX);
        for (seat, stamp) in orders.stamps.iter().enumerate() {
            let Some(stamp) = *stamp else { continue };
            let is_early = orders.deadline_ns.is_some_and(|deadline| stamp < deadline);
            self.early[seat] += u64::from(is_early);
            if is_early && self.refuses_early {
                continue;
            }
            if stamp < earliest {
                (earliest, first) = (stamp, vec![seat]);
            } else if stamp == earliest {
                first.push(seat);
            }
        }
        if first.is_empty() {
            return None;
        }
        self.ties += u64::from(first.len() > 1);
        let winner = first[self.lots.below(first.len() as u64) as usize];
        self.filled[winner] += 1;
        self.profit_cents[winner] += orders.profit_cents;
        Some(winner)
    }

    /// The share of the profit of each participant, in percent; zeros when nothing was filled.
    pub fn profit_share(&self) -> [f64; PARTICIPANTS] {
        let all = self.profit_cents.iter().sum::<u64>().max(1) as f64;
        self.profit_cents.map(|cents| 100.0 * cents as f64 / all)
    }

    /// The orders that were filled, of each participant.
    pub fn filled_orders(&self) -> [u64; PARTICIPANTS] {
        self.filled
    }

    /// The orders whose stamp was before the deadline of their message, of each participant.
    pub fn early_orders(&self) -> [u64; PARTICIPANTS] {
        self.early
    }

    /// The early orders that were refused; zeros in a market that fills early orders.
    pub fn refused_orders(&self) -> [u64; PARTICIPANTS] {
        if self.refuses_early { self.early } else { [0; PARTICIPANTS] }
    }

    /// The orders that were filled, of all participants.
    pub fn all_filled(&self) -> u64 {
        self.filled.iter().sum()
    }

    /// The trades whose earliest stamp several orders had.
    pub fn tied_trades(&self) -> u64 {
        self.ties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(stamps: OrderStamps) -> TradeOrders {
        TradeOrders { profit_cents: 10, deadline_ns: Some(100), stamps }
    }

    #[test]
    fn earliest_stamp_is_filled_and_a_trade_without_orders_is_not() {
        let mut market = Market::new(1, false);
        assert_eq!(market.fill(&orders([Some(103), Some(101), Some(102), None])), Some(1));
        assert_eq!(market.fill(&orders([None; 4])), None);
        assert_eq!((market.all_filled(), market.profit_share()[1]), (1, 100.0));
    }

    #[test]
    fn equal_stamps_are_decided_by_lot_and_one_seed_draws_the_same_lots() {
        let play = |seed| {
            let mut market = Market::new(seed, false);
            for _ in 0..1_000 {
                market.fill(&orders([Some(7), Some(9), Some(7), None]));
            }
            (market.filled_orders(), market.tied_trades())
        };
        let (filled, ties) = play(3);
        assert!(filled[0] > 400 && filled[2] > 400, "{filled:?}");
        assert_eq!((filled[1], filled[3], ties), (0, 0, 1_000));
        assert_eq!(play(3), (filled, ties));
        assert_ne!(play(4).0, filled);
    }

    #[test]
    fn early_stamp_is_counted_and_refused_only_where_the_market_refuses_it() {
        for (refuses_early, winner, refused) in [(false, 0, 0), (true, 2, 1)] {
            let mut market = Market::new(1, refuses_early);
            let filled = market.fill(&orders([Some(99), None, Some(100), None]));
            assert_eq!((filled, market.early_orders()[0]), (Some(winner), 1));
            assert_eq!(market.refused_orders(), [refused, 0, 0, 0]);
        }
        // A message that was not held has no deadline to be early for.
        let mut market = Market::new(1, true);
        let unheld = TradeOrders { deadline_ns: None, ..orders([Some(1), None, None, None]) };
        assert_eq!((market.fill(&unheld), market.early_orders()), (Some(0), [0; 4]));
    }
}
