//! What the trading of a demo came to, for people and for programs.

use evenfall_multicast_report::market::{Market, PARTICIPANTS};
use serde_json::{Value, json};

use super::collection::RefusedOrders;

/// The figures of a market when its feed has ended.
pub struct TradingOutcome {
    /// The names of the participants' processes.
    pub participants: [String; PARTICIPANTS],
    /// Whether the process of each participant wrote its summary. A killed process writes none.
    pub ended: [bool; PARTICIPANTS],
    /// The orders that were filled and refused.
    pub market: Market,
    /// Trades that were worth an order.
    pub trades: u64,
    /// Trades among them for which no order came.
    pub unanswered: u64,
    /// Orders of each participant that the exchange took.
    pub placed: [u64; PARTICIPANTS],
    /// Datagrams that the exchange refused.
    pub refused: RefusedOrders,
}

impl TradingOutcome {
    /// The object `trading` of the demo's JSON.
    pub fn to_json(&self) -> Value {
        let market = &self.market;
        json!({
            "participants": self.participants,
            "profit_share": market.profit_share(),
            "orders": market.all_filled(),
            "placed": self.placed,
            "filled": market.filled_orders(),
            "trades": self.trades,
            "unanswered": self.unanswered,
            "ties": market.tied_trades(),
            "early": market.early_orders(),
            "refused_early": market.refused_orders().iter().sum::<u64>(),
            "refused_datagrams": self.refused.sum(),
            "refused": self.refused,
            "ended_early": self.name_ended_early(),
        })
    }

    /// The participants that did not live until their end.
    fn name_ended_early(&self) -> Vec<&str> {
        let all = self.participants.iter().zip(self.ended);
        all.filter(|(_, ended)| !ended).map(|(name, _)| name.as_str()).collect()
    }

    /// The shares of the profit in one line.
    pub fn say_shares(&self) -> String {
        let names = self.participants.iter().zip(self.market.profit_share());
        let shares: Vec<String> =
            names.map(|(name, share)| format!("{name} {share:.2} %")).collect();
        shares.join(", ")
    }

    /// Lines for people.
    pub fn say(&self) -> String {
        let (market, refused) = (&self.market, self.refused.sum());
        let (shares, filled, early) =
            (market.profit_share(), market.filled_orders(), market.early_orders());
        let mut text = format!(
            "trading: {} orders filled for {} trades; {} trades without an order, {} decided by \
             lot, {refused} datagrams refused\n  {:<14}{:>10}{:>10}{:>10}{:>24}\n",
            market.all_filled(),
            self.trades,
            self.unanswered,
            market.tied_trades(),
            "participant",
            "profit",
            "filled",
            "placed",
            "stamped before deadline"
        );
        for seat in 0..PARTICIPANTS {
            let (name, placed) = (&self.participants[seat], self.placed[seat]);
            text.push_str(&format!(
                "  {name:<14}{:>8.2} %{:>10}{placed:>10}{:>24}\n",
                shares[seat], filled[seat], early[seat]
            ));
        }
        let refused: u64 = market.refused_orders().iter().sum();
        if refused > 0 {
            text.push_str(&format!(
                "  {refused} orders were refused, because their stamps are before the deadlines of \
                 their messages\n"
            ));
        }
        for name in self.name_ended_early() {
            text.push_str(&format!(
                "  {name} did not live until the end: its share is that of the orders it placed\n"
            ));
        }
        text
    }
}
