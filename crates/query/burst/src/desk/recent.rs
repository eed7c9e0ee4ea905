//! The last seconds of a feed in columns: best prices and trades by symbol.
//!
//! A question about the last five seconds must not wait for a disk, nor stop the recorder. Rows
//! come in order of time and go into chunks of [`CHUNK_ROWS`] rows. A full chunk never changes, so
//! that a question shares it and copies only the chunk that is being filled.
//!
//! ```text
//!  left the window          in the window                     being filled
//!  | newest quote | <- drop | chunk | chunk | chunk | chunk | rows ... |  <- push
//!  | per symbol   |
//! ```
//!
//! Of the rows that leave, the newest quote of each symbol stays: it is the price at the begin of
//! the window of a symbol that is quoted rarely.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::DeskRefusal;

/// A security's name, padded with spaces.
pub type SymbolName = [u8; 8];

/// Rows of a chunk. A question copies up to this many rows, some 150 KB, which takes 20 us.
pub const CHUNK_ROWS: usize = 4_096;
/// Securities that are followed at most. Nasdaq has about 11,000.
pub const SYMBOLS_MAX: usize = 65_536;
/// Bytes of a quote in its columns.
pub const QUOTE_BYTES: usize = 8 + 4 + 2 * SIDE_BYTES;
/// Bytes of a trade in its columns.
pub const TRADE_BYTES: usize = 8 + 4 + 8 + 4 + 1;
/// Rows stay for the window and one in so many parts of it: with five seconds, one and a quarter
/// more, within which a question that is under way must read them.
const SLACK_PART: i64 = 4;
/// Bytes of a side of a quote.
const SIDE_BYTES: usize = 8 + 4;

/// Best price of a side, in 1/10,000 dollar, and the shares at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SidePrice {
    /// Price.
    pub price: i64,
    /// Shares; more than 32 bits hold are the most that they hold.
    pub shares: u32,
}

/// The best prices of a security from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuoteAt {
    /// Time in nanoseconds.
    pub time_ns: i64,
    /// Somebody buys.
    pub bid: Option<SidePrice>,
    /// Somebody sells.
    pub ask: Option<SidePrice>,
}

/// An execution at a venue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TradeAt {
    /// Time in nanoseconds.
    pub time_ns: i64,
    /// Price in 1/10,000 dollar.
    pub price: i64,
    /// Shares.
    pub shares: u32,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentConfig {
    /// The window behind the newest row. Rows stay until their whole chunk is older.
    pub keep: Duration,
    /// Rows at most, quotes and trades together.
    pub rows_max: usize,
    /// Bytes of columns at most.
    pub bytes_max: usize,
}

impl Default for RecentConfig {
    /// Five seconds; four million rows, which is Nasdaq at its busiest; 256 MB.
    fn default() -> Self {
        Self { keep: Duration::from_secs(5), rows_max: 4 << 20, bytes_max: 256 << 20 }
    }
}

/// Rows that are gone or were never there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentCounters {
    /// Quotes taken.
    pub quotes: u64,
    /// Trades taken.
    pub trades: u64,
    /// Rows that left because they were older than the window.
    pub aged: u64,
    /// Rows that left although the window still needed them, because a limit was reached.
    pub over_limit: u64,
    /// Rows of securities beyond [`SYMBOLS_MAX`].
    pub unknown_symbols: u64,
    /// Trades whose price nobody knows: executions of orders that were never added.
    pub unpriced_trades: u64,
}

/// Quotes in columns. A side that is empty has no shares and the least price.
#[derive(Clone, Debug, Default)]
struct QuoteChunk {
    time_ns: Vec<i64>,
    symbol: Vec<u32>,
    bid: Vec<i64>,
    ask: Vec<i64>,
    bid_shares: Vec<u32>,
    ask_shares: Vec<u32>,
}

/// The price of an empty side, in columns and on the wire.
pub(super) const EMPTY: i64 = i64::MIN;

/// A side as a price and shares.
pub(super) fn columns_of(side: Option<SidePrice>) -> (i64, u32) {
    side.map_or((EMPTY, 0), |side| (side.price, side.shares))
}

/// The side of a price and shares.
pub(super) fn side_of(price: i64, shares: u32) -> Option<SidePrice> {
    (price != EMPTY).then_some(SidePrice { price, shares })
}

impl QuoteChunk {
    fn len(&self) -> usize {
        self.time_ns.len()
    }

    fn push(&mut self, symbol: u32, quote: &QuoteAt) {
        let ((bid, bid_shares), (ask, ask_shares)) = (columns_of(quote.bid), columns_of(quote.ask));
        self.time_ns.push(quote.time_ns);
        self.symbol.push(symbol);
        self.bid.push(bid);
        self.ask.push(ask);
        self.bid_shares.push(bid_shares);
        self.ask_shares.push(ask_shares);
    }

    fn row(&self, at: usize) -> (u32, QuoteAt) {
        let (bid, ask) = (
            side_of(self.bid[at], self.bid_shares[at]),
            side_of(self.ask[at], self.ask_shares[at]),
        );
        (self.symbol[at], QuoteAt { time_ns: self.time_ns[at], bid, ask })
    }
}

#[derive(Clone, Debug, Default)]
struct TradeChunk {
    time_ns: Vec<i64>,
    symbol: Vec<u32>,
    price: Vec<i64>,
    shares: Vec<u32>,
}

impl TradeChunk {
    fn len(&self) -> usize {
        self.time_ns.len()
    }

    fn row(&self, at: usize) -> (u32, TradeAt) {
        let (time_ns, price, shares) = (self.time_ns[at], self.price[at], self.shares[at]);
        (self.symbol[at], TradeAt { time_ns, price, shares })
    }
}

/// Times of the newest rows that left: the window is whole behind them.
#[derive(Clone, Copy, Debug, Default)]
struct GoneRows {
    /// Because they were too old.
    aged_ns: Option<i64>,
    /// Because of a limit.
    cut_ns: Option<i64>,
}

/// The last seconds of a feed.
#[derive(Clone, Debug)]
pub struct RecentRows {
    config: RecentConfig,
    numbers: BTreeMap<SymbolName, u32>,
    names: Arc<Vec<SymbolName>>,
    quotes: VecDeque<Arc<QuoteChunk>>,
    open_quotes: QuoteChunk,
    trades: VecDeque<Arc<TradeChunk>>,
    open_trades: TradeChunk,
    /// By symbol: the newest quote that has left.
    left: Vec<Option<QuoteAt>>,
    gone: GoneRows,
    newest_ns: Option<i64>,
    rows: usize,
    bytes: usize,
    counters: RecentCounters,
}

impl RecentRows {
    /// No rows yet.
    pub fn new(config: RecentConfig) -> Self {
        Self {
            config,
            numbers: BTreeMap::new(),
            names: Arc::default(),
            quotes: VecDeque::new(),
            open_quotes: QuoteChunk::default(),
            trades: VecDeque::new(),
            open_trades: TradeChunk::default(),
            left: Vec::new(),
            gone: GoneRows::default(),
            newest_ns: None,
            rows: 0,
            bytes: 0,
            counters: RecentCounters::default(),
        }
    }

    /// How much is kept.
    pub fn config(&self) -> &RecentConfig {
        &self.config
    }

    /// Counts so far.
    pub fn counters(&self) -> RecentCounters {
        self.counters
    }

    /// Rows that are held.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of their columns.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Time of the newest row.
    pub fn newest_ns(&self) -> Option<i64> {
        self.newest_ns
    }

    fn number(&mut self, symbol: SymbolName) -> Option<u32> {
        if let Some(&number) = self.numbers.get(&symbol) {
            return Some(number);
        }
        if self.numbers.len() >= SYMBOLS_MAX {
            self.counters.unknown_symbols += 1;
            return None;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(symbol, number);
        // Questions that run keep the names that they began with.
        Arc::make_mut(&mut self.names).push(symbol);
        self.left.push(None);
        Some(number)
    }

    /// A row that comes late, from another tree of a feed, counts as of the newest row.
    fn stamp(&mut self, time_ns: i64) -> i64 {
        let time_ns = self.newest_ns.map_or(time_ns, |newest| newest.max(time_ns));
        self.newest_ns = Some(time_ns);
        time_ns
    }

    /// Takes the next quote.
    pub fn push_quote(&mut self, symbol: SymbolName, quote: QuoteAt) {
        let Some(number) = self.number(symbol) else { return };
        let time_ns = self.stamp(quote.time_ns);
        self.open_quotes.push(number, &QuoteAt { time_ns, ..quote });
        self.counters.quotes += 1;
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + QUOTE_BYTES);
        if self.open_quotes.len() == CHUNK_ROWS {
            self.quotes.push_back(Arc::new(core::mem::take(&mut self.open_quotes)));
        }
        self.shrink();
    }

    /// Takes the next trade.
    pub fn push_trade(&mut self, symbol: SymbolName, trade: TradeAt) {
        let Some(number) = self.number(symbol) else { return };
        let time_ns = self.stamp(trade.time_ns);
        let open = &mut self.open_trades;
        open.time_ns.push(time_ns);
        open.symbol.push(number);
        open.price.push(trade.price);
        open.shares.push(trade.shares);
        self.counters.trades += 1;
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + TRADE_BYTES);
        if self.open_trades.len() == CHUNK_ROWS {
            self.trades.push_back(Arc::new(core::mem::take(&mut self.open_trades)));
        }
        self.shrink();
    }

    /// Counts a trade that cannot be used, because nobody knows its price.
    pub fn note_unpriced_trade(&mut self) {
        self.counters.unpriced_trades += 1;
    }

    /// Drops chunks that are too old, and the oldest chunks beyond the limits.
    fn shrink(&mut self) {
        let Some(newest) = self.newest_ns else { return };
        let keep = i64::try_from(self.config.keep.as_nanos()).unwrap_or(i64::MAX);
        // A question is about the time of its roll call, and rows go on coming until it is here.
        let begin = newest.saturating_sub(keep.saturating_add(keep / SLACK_PART));
        loop {
            let quotes = self.quotes.front().and_then(|chunk| chunk.time_ns.last().copied());
            let trades = self.trades.front().and_then(|chunk| chunk.time_ns.last().copied());
            let Some(oldest) = quotes.into_iter().chain(trades).min() else { return };
            let is_over = self.rows > self.config.rows_max || self.bytes > self.config.bytes_max;
            if oldest > begin && !is_over {
                return;
            }
            let dropped = match quotes == Some(oldest) {
                true => self.drop_quotes(),
                false => self.drop_trades(),
            };
            let (left_at, counter) = match oldest > begin {
                true => (&mut self.gone.cut_ns, &mut self.counters.over_limit),
                false => (&mut self.gone.aged_ns, &mut self.counters.aged),
            };
            *left_at = Some(oldest);
            *counter += dropped as u64;
        }
    }

    fn drop_quotes(&mut self) -> usize {
        let Some(chunk) = self.quotes.pop_front() else { return 0 };
        for at in 0..chunk.len() {
            let (symbol, quote) = chunk.row(at);
            self.left[symbol as usize] = Some(quote);
        }
        self.rows -= chunk.len();
        self.bytes -= chunk.len() * QUOTE_BYTES;
        chunk.len()
    }

    fn drop_trades(&mut self) -> usize {
        let Some(chunk) = self.trades.pop_front() else { return 0 };
        self.rows -= chunk.len();
        self.bytes -= chunk.len() * TRADE_BYTES;
        chunk.len()
    }

    /// The rows as they are now, for a question.
    pub fn snapshot(&self) -> RecentSnapshot {
        let open = Arc::new(self.open_quotes.clone());
        let open_trades = Arc::new(self.open_trades.clone());
        RecentSnapshot {
            names: self.names.clone(),
            quotes: self.quotes.iter().cloned().chain([open]).collect(),
            trades: self.trades.iter().cloned().chain([open_trades]).collect(),
            left: self.left.clone(),
            gone: self.gone,
            keep: self.config.keep,
            rows: self.rows,
        }
    }
}

/// The rows of a moment.
#[derive(Clone, Debug)]
pub struct RecentSnapshot {
    names: Arc<Vec<SymbolName>>,
    quotes: Vec<Arc<QuoteChunk>>,
    trades: Vec<Arc<TradeChunk>>,
    left: Vec<Option<QuoteAt>>,
    gone: GoneRows,
    keep: Duration,
    rows: usize,
}

/// The rows of a chunk behind the first time and up to the second. Times ascend.
fn rows_between(time_ns: &[i64], after_ns: i64, until_ns: i64) -> Range<usize> {
    let [begin, end] = [after_ns, until_ns].map(|time| time_ns.partition_point(|&at| at <= time));
    begin..end.max(begin)
}

impl RecentSnapshot {
    /// Whether all rows of a window that begins behind this time are here.
    ///
    /// # Errors
    /// A window that is longer than rows are kept, and rows of the window that have left.
    pub fn check_window(&self, window: Duration, after_ns: i64) -> Result<(), DeskRefusal> {
        if window > self.keep {
            return Err(DeskRefusal::Window { keep: self.keep, asked: window });
        }
        let GoneRows { aged_ns, cut_ns } = self.gone;
        let short = |gone: Option<i64>| {
            let short = gone?.checked_sub(after_ns).filter(|&short| short > 0)?;
            Some(Duration::from_nanos(short.unsigned_abs()))
        };
        match (short(cut_ns), short(aged_ns)) {
            (Some(short), _) => Err(DeskRefusal::Limit { short }),
            (None, Some(short)) => Err(DeskRefusal::Late { short }),
            (None, None) => Ok(()),
        }
    }

    /// Rows of the snapshot.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of symbols.
    pub fn symbol_count(&self) -> usize {
        self.left.len()
    }

    /// The name of a symbol by its number.
    pub fn name(&self, symbol: u32) -> SymbolName {
        self.names[symbol as usize]
    }

    /// By symbol: the newest quote at or before this time.
    pub fn quotes_as_of(&self, time_ns: i64) -> Vec<Option<QuoteAt>> {
        let mut newest = self.left.clone();
        // A quote that has left because of a limit may be newer than the time.
        newest.iter_mut().for_each(|quote| *quote = quote.filter(|q| q.time_ns <= time_ns));
        for chunk in &self.quotes {
            let end = chunk.time_ns.partition_point(|&at| at <= time_ns);
            for at in 0..end {
                let (symbol, quote) = chunk.row(at);
                newest[symbol as usize] = Some(quote);
            }
        }
        newest
    }

    /// Quotes behind the first time and up to the second, in their order.
    pub fn quotes_between(
        &self,
        after_ns: i64,
        until_ns: i64,
    ) -> impl Iterator<Item = (u32, QuoteAt)> {
        self.quotes.iter().flat_map(move |chunk| {
            rows_between(&chunk.time_ns, after_ns, until_ns).map(|at| chunk.row(at))
        })
    }

    /// Trades behind the first time and up to the second, in their order.
    pub fn trades_between(
        &self,
        after_ns: i64,
        until_ns: i64,
    ) -> impl Iterator<Item = (u32, TradeAt)> {
        self.trades.iter().flat_map(move |chunk| {
            rows_between(&chunk.time_ns, after_ns, until_ns).map(|at| chunk.row(at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SymbolName = *b"A       ";
    const B: SymbolName = *b"B       ";
    const WINDOW: Duration = Duration::from_nanos(10_000);

    fn quote(time_ns: i64, price: i64) -> QuoteAt {
        let bid = Some(SidePrice { price, shares: 1 });
        QuoteAt { time_ns, bid, ask: None }
    }

    fn rows(rows_max: usize) -> RecentRows {
        RecentRows::new(RecentConfig { keep: WINDOW, rows_max, bytes_max: 1 << 30 })
    }

    #[test]
    fn the_newest_quote_of_a_symbol_stays_when_its_rows_leave() {
        let mut recent = rows(1 << 20);
        recent.push_quote(B, quote(1, 77));
        for time in 2..40_000 {
            recent.push_quote(A, quote(time, time));
        }
        assert!(recent.rows() < 10_000 + 2 * CHUNK_ROWS, "{}", recent.rows());
        assert_eq!(recent.counters().over_limit, 0);
        assert_eq!(recent.counters().aged as usize + recent.rows(), 39_999);
        let now = recent.snapshot();
        now.check_window(WINDOW, 29_999).expect("whole");
        assert_eq!(now.quotes_as_of(39_999), [Some(quote(1, 77)), Some(quote(39_999, 39_999))]);
        assert_eq!(now.quotes_as_of(30_000)[1], Some(quote(30_000, 30_000)));
        assert_eq!(now.quotes_between(30_000, 30_002).count(), 2);
    }

    #[test]
    fn the_oldest_rows_leave_at_a_limit_and_the_window_says_so() {
        let mut recent = rows(3 * CHUNK_ROWS);
        for time in 0..9_000 {
            recent.push_quote(A, quote(time, time));
            recent.push_trade(B, TradeAt { time_ns: time, price: time, shares: 1 });
        }
        assert!(recent.rows() <= 3 * CHUNK_ROWS);
        assert_eq!(recent.counters().over_limit as usize + recent.rows(), 18_000);
        let now = recent.snapshot();
        let why = now.check_window(WINDOW, 0).expect_err("cut");
        assert!(matches!(why, DeskRefusal::Limit { .. }), "{why}");
        assert!(now.check_window(WINDOW, 8_000).is_ok());
        let why = now.check_window(Duration::from_secs(1), 8_000).expect_err("short");
        assert!(matches!(why, DeskRefusal::Window { .. }), "{why}");
    }

    #[test]
    fn a_late_row_counts_as_of_the_newest() {
        let mut recent = rows(1 << 20);
        recent.push_quote(A, quote(50, 1));
        recent.push_quote(B, quote(40, 2));
        let now = recent.snapshot();
        assert_eq!(now.quotes_as_of(49), [None, None]);
        assert_eq!(now.quotes_as_of(50)[1], Some(quote(50, 2)));
    }
}
