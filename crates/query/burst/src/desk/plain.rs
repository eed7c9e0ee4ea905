//! Both answers by plain programs that have the rows of all workers in one place.
//!
//! They look at each time and each venue anew, and share no step with the programs of the ranks but
//! the meaning of a single judgement.

use std::collections::{BTreeMap, BTreeSet};

use super::nbbo::{
    BestSide, DeskFill, JudgedFill, NbboAnswer, NbboWindow, SymbolNbbo, is_through, markout_of,
};
use super::recent::{QuoteAt, SymbolName, TradeAt};
use super::reprice::{AccountChange, DeskPosition, RepriceAnswer, answer_reprice};
use super::{DeskAnswer, DeskAsk, DeskQuestion};

/// The answer of a question over the rows of the workers that have a part in it, for the window of
/// the answer.
pub fn answer_plainly(workers: &[PlainRows], ask: &DeskAsk, window_ns: [i64; 2]) -> DeskAnswer {
    match ask.of {
        DeskQuestion::Reprice => {
            DeskAnswer::Reprice(reprice_plainly(workers, window_ns, ask.worst))
        }
        DeskQuestion::Nbbo { .. } => {
            DeskAnswer::Nbbo(nbbo_plainly(workers, &ask.fills, ask.of.nbbo_window(window_ns)))
        }
    }
}

/// All rows of a worker, in their order.
#[derive(Clone, Debug, Default)]
pub struct PlainRows {
    /// Quotes.
    pub quotes: Vec<(SymbolName, QuoteAt)>,
    /// Trades.
    pub trades: Vec<(SymbolName, TradeAt)>,
    /// Positions.
    pub positions: Vec<DeskPosition>,
}

impl PlainRows {
    /// Quotes and trades of a symbol alone.
    fn only(&self, symbol: SymbolName) -> Self {
        let quotes = self.quotes.iter().filter(|(of, _)| *of == symbol).copied().collect();
        let trades = self.trades.iter().filter(|(of, _)| *of == symbol).copied().collect();
        Self { quotes, trades, positions: Vec::new() }
    }

    /// By symbol: the last quote up to a time.
    fn marks(&self, time_ns: i64) -> BTreeMap<SymbolName, QuoteAt> {
        self.quotes.iter().filter(|(_, quote)| quote.time_ns <= time_ns).copied().collect()
    }

    /// The last quote of a symbol for whose time the test holds.
    fn last(&self, symbol: SymbolName, is_in: impl Fn(i64) -> bool) -> Option<QuoteAt> {
        let of = self.quotes.iter().filter(|(of, _)| *of == symbol).map(|(_, quote)| *quote);
        of.filter(|quote| is_in(quote.time_ns)).last()
    }
}

/// The answer of `reprice`.
pub fn reprice_plainly(
    workers: &[PlainRows],
    [then_ns, now_ns]: [i64; 2],
    worst: usize,
) -> RepriceAnswer {
    let mut sums = BTreeMap::new();
    for worker in workers {
        let marks = [then_ns, now_ns].map(|time_ns| worker.marks(time_ns));
        for position in &worker.positions {
            let mark = |at: usize| {
                let quote = marks[at].get(&position.symbol)?;
                Some(i128::from(quote.bid?.price) + i128::from(quote.ask?.price))
            };
            let account = position.account;
            let none = AccountChange { account, change: 0, positions: 0, unpriced: 0 };
            let sum = sums.entry(account).or_insert(none);
            sum.positions += 1;
            match (mark(0), mark(1)) {
                (Some(then), Some(now)) => {
                    sum.change += (now - then) * i128::from(position.quantity);
                }
                _ => sum.unpriced += 1,
            }
        }
    }
    answer_reprice(sums.into_values().collect(), worst)
}

/// The best bid and offer of a symbol over venues: each venue counts with its last quote for whose
/// time the test holds. Venues are numbered from 1.
fn best_at(
    workers: &[PlainRows],
    symbol: SymbolName,
    is_in: impl Fn(i64) -> bool + Copy,
) -> [Option<BestSide>; 2] {
    let quotes: Vec<(u16, QuoteAt)> = (1..)
        .zip(workers)
        .filter_map(|(venue, worker)| Some((venue, worker.last(symbol, is_in)?)))
        .collect();
    let best = |price: Option<i64>, side: fn(&QuoteAt) -> Option<super::recent::SidePrice>| {
        let price = price?;
        let at = |(venue, quote): &(u16, QuoteAt)| {
            side(quote).filter(|side| side.price == price).map(|side| (*venue, side.shares))
        };
        let all: Vec<(u16, u32)> = quotes.iter().filter_map(at).collect();
        let shares = all.iter().map(|(_, shares)| u64::from(*shares)).sum();
        Some(BestSide { price, shares, venue: all.first()?.0 })
    };
    let bid = quotes.iter().filter_map(|(_, quote)| Some(quote.bid?.price)).max();
    let ask = quotes.iter().filter_map(|(_, quote)| Some(quote.ask?.price)).min();
    [best(bid, |quote| quote.bid), best(ask, |quote| quote.ask)]
}

/// The answer of `nbbo`. A worker's venue is its place here plus 1.
pub fn nbbo_plainly(workers: &[PlainRows], fills: &[DeskFill], window: NbboWindow) -> NbboAnswer {
    let NbboWindow { after_ns, until_ns, markout_ns } = window;
    let is_inside = |time_ns: i64| time_ns > after_ns && time_ns <= until_ns;
    let prices = |best: [Option<BestSide>; 2]| best.map(|side| side.map(|side| side.price));
    let top = |best: [Option<BestSide>; 2]| best.map(|side| side.map(|s| (s.price, s.shares)));
    let mut names: BTreeSet<SymbolName> = BTreeSet::new();
    for worker in workers {
        let quoted = worker.quotes.iter().filter(|(_, quote)| quote.time_ns <= until_ns);
        names.extend(quoted.map(|(symbol, _)| *symbol));
        let traded = worker.trades.iter().filter(|(_, trade)| is_inside(trade.time_ns));
        names.extend(traded.map(|(symbol, _)| *symbol));
    }
    let symbol = |&symbol: &SymbolName| {
        let workers: &[PlainRows] =
            &workers.iter().map(|worker| worker.only(symbol)).collect::<Vec<_>>();
        let quotes = workers.iter().flat_map(|worker| &worker.quotes);
        let mut times: Vec<i64> = quotes
            .filter(|(of, quote)| *of == symbol && is_inside(quote.time_ns))
            .map(|(_, quote)| quote.time_ns)
            .collect();
        let count = times.len() as u32;
        times.sort_unstable();
        times.dedup();
        let has_changed = |time: &&i64| {
            let [before, then] = [0, 1].map(|add| best_at(workers, symbol, |at| at < **time + add));
            top(before) != top(then)
        };
        let trades = workers.iter().flat_map(|worker| &worker.trades);
        let trades: Vec<TradeAt> = trades
            .filter(|(of, trade)| *of == symbol && is_inside(trade.time_ns))
            .map(|(_, trade)| *trade)
            .collect();
        let through = |trade: &&TradeAt| {
            // Quotes of the trade's own nanosecond may be its effect, so that only earlier ones
            // judge it.
            let best = prices(best_at(workers, symbol, |at| at < trade.time_ns));
            is_through(trade.price, best, None) == Some(true)
        };
        let [bid, ask] = best_at(workers, symbol, |at| at <= until_ns);
        SymbolNbbo {
            symbol,
            bid,
            ask,
            quotes: count,
            changes: times.iter().filter(has_changed).count() as u32,
            trades: trades.len() as u32,
            through: trades.iter().filter(through).count() as u32,
        }
    };
    let judge = |(number, fill): (u32, &DeskFill)| {
        if !is_inside(fill.time_ns) {
            return JudgedFill { fill: number, bid: None, ask: None, through: None, markout: None };
        }
        let [bid, ask] = prices(best_at(workers, fill.symbol, |at| at < fill.time_ns));
        let end = fill.time_ns + markout_ns;
        let later = prices(best_at(workers, fill.symbol, |at| at <= end));
        JudgedFill {
            fill: number,
            bid,
            ask,
            through: is_through(fill.price, [bid, ask], Some(fill.side)),
            markout: (end <= until_ns).then(|| markout_of(fill, later)).flatten(),
        }
    };
    let fills = (0..).zip(fills).map(judge).collect();
    NbboAnswer { symbols: names.iter().map(symbol).collect(), fills }
}
