//! Generated rows for the questions of a desk. One seed gives the same rows everywhere.
//!
//! The price of a symbol is a walk of whole cents that all venues share; the quotes of a venue lie
//! around it, so that venues differ and sometimes cross. One quote in 50 lacks a side, as at the
//! begin of a day. One row in 20 is a trade at the last quote of the venue, or a cent outside.

use evenfall_core::Prng;
use evenfall_core::math::mix;

use super::nbbo::{DeskFill, FillSide};
use super::plain::PlainRows;
use super::recent::{QuoteAt, RecentRows, SidePrice, SymbolName, TradeAt};
use super::reprice::{ACCOUNT_BYTES, AccountName, DeskPosition};

/// A cent in 1/10,000 dollar.
const CENT: i64 = 100;
/// Rows in which one is a trade.
const TRADE_EVERY: u64 = 20;
/// Quotes in which one lacks a side.
const ONE_SIDED_EVERY: u64 = 50;

/// How much is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeFeed {
    /// Seed of everything.
    pub seed: u64,
    /// Workers.
    pub workers: usize,
    /// Symbols over all workers.
    pub symbols: usize,
    /// Rows of each worker.
    pub rows: usize,
    /// Accounts.
    pub accounts: usize,
    /// Positions over all workers.
    pub positions: usize,
    /// Fills of the desk.
    pub fills: usize,
    /// The time from the first row to the last.
    pub span_ns: i64,
    /// Whether each worker records all symbols of a venue of its own, or all venues of symbols of
    /// its own.
    pub by_venue: bool,
}

/// The name of a symbol: four letters.
fn symbol_name(number: usize) -> SymbolName {
    let mut name = *b"AAAA    ";
    let mut rest = number;
    for place in (0..4).rev() {
        name[place] = b'A' + (rest % 26) as u8;
        rest /= 26;
    }
    name
}

fn account_name(number: u64) -> AccountName {
    let mut name = [b' '; ACCOUNT_BYTES];
    let text = format!("ACC{number:05}");
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

impl MadeFeed {
    /// The numbers of the symbols that a worker records.
    fn symbols_of(&self, worker: usize) -> Vec<usize> {
        let is_own = |symbol: &usize| self.by_venue || symbol % self.workers == worker;
        (0..self.symbols).filter(is_own).collect()
    }

    /// The price of a symbol at a time, in 1/10,000 dollar: the same at all venues.
    fn price(&self, symbol: usize, time_ns: i64) -> i64 {
        let steps = (time_ns / (1 + self.span_ns / 64)) as u64;
        let seed = mix(self.seed) ^ mix(symbol as u64);
        let walk: i64 = (0..=steps).map(|step| (mix(seed ^ mix(step)) % 7) as i64 - 3).sum();
        (10_000 + (seed % 40_000) as i64 + walk) * CENT
    }

    /// The rows of a worker in the order of their times, with its positions.
    pub fn rows_of(&self, worker: usize) -> PlainRows {
        let mut prng = Prng::new(self.seed).fork(worker as u64);
        let own = self.symbols_of(worker);
        let mut rows = PlainRows::default();
        if own.is_empty() {
            return rows;
        }
        let mut last: Vec<Option<QuoteAt>> = vec![None; self.symbols];
        for at in 0..self.rows {
            let time_ns = 1 + self.span_ns * at as i64 / self.rows as i64;
            let symbol = own[prng.below(own.len() as u64) as usize];
            let name = symbol_name(symbol);
            let side = |quote: QuoteAt| quote.ask.or(quote.bid);
            if prng.below(TRADE_EVERY) == 0
                && let Some(side) = last[symbol].and_then(side)
            {
                let price = side.price + CENT * (prng.below(5) as i64 - 2);
                let shares = 1 + prng.below(500) as u32;
                rows.trades.push((name, TradeAt { time_ns, price, shares }));
                continue;
            }
            let middle = self.price(symbol, time_ns);
            let mut side = |sign: i64| SidePrice {
                price: middle + sign * CENT * prng.below(4) as i64,
                shares: 100 * (1 + prng.below(20) as u32),
            };
            let (mut bid, mut ask) = (Some(side(-1)), Some(side(1)));
            match prng.below(2 * ONE_SIDED_EVERY) {
                0 => bid = None,
                1 => ask = None,
                _ => {}
            }
            let quote = QuoteAt { time_ns, bid, ask };
            last[symbol] = Some(quote);
            rows.quotes.push((name, quote));
        }
        rows.positions = self.positions_of(worker);
        rows
    }

    /// The positions in the symbols of a worker. Where each worker is a venue, they lie with the
    /// first.
    fn positions_of(&self, worker: usize) -> Vec<DeskPosition> {
        if self.by_venue && worker > 0 {
            return Vec::new();
        }
        let mut prng = Prng::new(mix(self.seed) ^ 1);
        let mut position = || {
            // One position in 64 is in a security that nobody quotes.
            let is_unknown = prng.below(64) == 0;
            let number = prng.below(self.symbols as u64) as usize;
            let name = if is_unknown { *b"ZZZZ    " } else { symbol_name(number) };
            let account = account_name(prng.below(self.accounts.max(1) as u64));
            let quantity = prng.below(2_001) as i64 - 1_000;
            (number, DeskPosition { symbol: name, account, quantity })
        };
        let all: Vec<_> = (0..self.positions).map(|_| position()).collect();
        let is_own = |number: usize| self.by_venue || number % self.workers == worker;
        all.into_iter()
            .filter(|(number, _)| is_own(*number))
            .map(|(_, position)| position)
            .collect()
    }

    /// The fills of the desk, in the order of their times.
    pub fn make_fills(&self) -> Vec<DeskFill> {
        let mut prng = Prng::new(mix(self.seed) ^ 2);
        let fill = |at: usize| {
            let time_ns = 1 + self.span_ns * at as i64 / self.fills.max(1) as i64;
            let symbol = prng.below(self.symbols as u64) as usize;
            let price = self.price(symbol, time_ns) + CENT * (prng.below(9) as i64 - 4);
            let side = if prng.below(2) == 0 { FillSide::Buy } else { FillSide::Sell };
            let (symbol, shares) = (symbol_name(symbol), 100);
            DeskFill { time_ns, symbol, side, price, shares }
        };
        (0..self.fills).map(fill).collect()
    }
}

/// Hands rows over as a feed does, by time.
pub fn play_rows(rows: &PlainRows, recent: &mut RecentRows) {
    let mut trades = rows.trades.iter().peekable();
    for (symbol, quote) in &rows.quotes {
        while let Some((of, trade)) = trades.next_if(|(_, trade)| trade.time_ns <= quote.time_ns) {
            recent.push_trade(*of, *trade);
        }
        recent.push_quote(*symbol, *quote);
    }
    trades.for_each(|(of, trade)| recent.push_trade(*of, *trade));
}
