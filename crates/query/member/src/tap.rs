//! The messages of a feed as rows of the last seconds: books are rebuilt, and each change of a best
//! price and each trade is a row.
//!
//! A row has the time of the run at which its message was released, and not the venue's own,
//! because workers of several venues share the clock of the run. A quote is complete when its
//! nanosecond is over, so that its time is that of the last message in the nanosecond.

use std::collections::BTreeMap;

use evenfall_core::Format;
use evenfall_feed_formats::books::{BookRow, Books, BooksConfig, QuoteRow, TopOfBook, TradeRow};
use evenfall_query_burst::desk::recent::{QuoteAt, RecentRows, SidePrice, SymbolName, TradeAt};

/// The name of the only security of a format that names none.
const UNNAMED: SymbolName = [b' '; 8];

/// Turns messages into rows, tree by tree of the feed.
#[derive(Debug, Default)]
pub struct FeedTap {
    /// By tree: its books, and the time of its last message.
    trees: BTreeMap<u32, (Books, i64)>,
}

impl FeedTap {
    /// Books that begin empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next message of a tree. Messages of other formats than ITCH and LOBSTER change
    /// nothing.
    pub fn push(
        &mut self,
        tree: u32,
        time_ns: i64,
        format: Format,
        message: &[u8],
        rows: &mut RecentRows,
    ) {
        let new = || (Books::new(BooksConfig::default()), time_ns);
        let (books, last_ns) = self.trees.entry(tree).or_insert_with(new);
        let before_ns = *last_ns;
        let mut each = |row| keep_row(row, before_ns, time_ns, rows);
        if books.take(format, message, &mut each) {
            *last_ns = time_ns;
        }
    }

    /// Nothing comes for now: the last nanosecond of each tree is over.
    pub fn settle(&mut self, rows: &mut RecentRows) {
        for (books, last_ns) in self.trees.values_mut() {
            let last_ns = *last_ns;
            books.end_nanosecond(&mut |row| keep_row(row, last_ns, last_ns, rows));
        }
    }
}

fn keep_row(row: BookRow, before_ns: i64, now_ns: i64, rows: &mut RecentRows) {
    match row {
        BookRow::Quote(QuoteRow { symbol, bid, ask, .. }) => {
            let quote = QuoteAt { time_ns: before_ns, bid: side(bid), ask: side(ask) };
            rows.push_quote(symbol.map_or(UNNAMED, |symbol| symbol.0), quote);
        }
        BookRow::Trade(TradeRow { symbol, price: Some(price), shares, .. }) => {
            let shares = u32::try_from(shares).unwrap_or(u32::MAX);
            let trade = TradeAt { time_ns: now_ns, price, shares };
            rows.push_trade(symbol.map_or(UNNAMED, |symbol| symbol.0), trade);
        }
        BookRow::Trade(_) => rows.note_unpriced_trade(),
    }
}

fn side(top: Option<TopOfBook>) -> Option<SidePrice> {
    let top = top?;
    Some(SidePrice { price: top.price, shares: u32::try_from(top.shares).unwrap_or(u32::MAX) })
}
