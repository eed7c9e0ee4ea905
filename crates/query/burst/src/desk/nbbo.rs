//! `nbbo`: the best bid and offer over all venues, and executions beside it.
//!
//! Each venue is recorded by a worker of its own, and the question is by symbol. The rows of the
//! window are exchanged, so that one rank has all rows of a symbol:
//!
//! ```text
//!  worker 1, venue 1:  A quotes, B quotes          rank 1:  A of all venues, the desk's fills in A
//!  worker 2, venue 2:  A quotes, B quotes    ->    rank 2:  B of all venues, the desk's fills in B
//!  asker:              fills in A and B
//! ```
//!
//! That rank merges the quotes by time. The best bid is the highest bid of the newest quotes of all
//! venues, the best offer the lowest ask. A venue without a quote in the window counts with its
//! last quote before.
//!
//! An execution is judged by the best prices **before** its nanosecond: a quote is the book at the
//! end of a nanosecond, so that a quote of the same time already shows what the execution did. An
//! execution above the best offer or below the best bid was traded through. Of the desk's own
//! fills, a purchase is judged by the offer alone, and a sale by the bid alone. The markout of a
//! fill is the middle some time later, less its price, as the fill's side sees it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_collectives_machine::group::MergeRule;
use evenfall_core::Malformed;
use evenfall_core::math::mix;

use super::recent::{
    EMPTY, QuoteAt, RecentSnapshot, SidePrice, SymbolName, TradeAt, columns_of, side_of,
};
use super::reprice::{DeskFileError, pad_name};
use super::{TABLE_HEAD_BYTES, TableHead};

/// Bytes of an exchanged row.
pub const EXCHANGED_BYTES: usize = 48;
/// Bytes of a symbol's row in the answer.
const SYMBOL_BYTES: usize = 64;
/// Bytes of a fill's row in the answer.
const FILL_BYTES: usize = 48;

/// What a fill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FillSide {
    /// The desk bought.
    Buy,
    /// The desk sold.
    Sell,
}

/// An execution of the desk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeskFill {
    /// Time in nanoseconds, of the clock of the feed.
    pub time_ns: i64,
    /// The security.
    pub symbol: SymbolName,
    /// Whether the desk bought or sold.
    pub side: FillSide,
    /// Price in 1/10,000 dollar.
    pub price: i64,
    /// Shares.
    pub shares: u32,
}

/// A row that is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExchangedRow {
    /// A quote of the sender's venue: the last before the window, or one in it.
    Quote(QuoteAt),
    /// A trade of the sender's venue.
    Trade(TradeAt),
    /// A fill of the desk, with its place in the desk's list.
    Fill(u32, DeskFill),
}

/// Best price of a side over all venues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestSide {
    /// Price in 1/10,000 dollar.
    pub price: i64,
    /// Shares at this price over all venues.
    pub shares: u64,
    /// The first venue with this price, by rank.
    pub venue: u16,
}

/// A symbol at the end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolNbbo {
    /// The security.
    pub symbol: SymbolName,
    /// The best bid.
    pub bid: Option<BestSide>,
    /// The best offer.
    pub ask: Option<BestSide>,
    /// Quotes in the window.
    pub quotes: u32,
    /// Times in the window at which the price or the size of the best bid or offer changed.
    pub changes: u32,
    /// Trades in the window.
    pub trades: u32,
    /// Trades that were traded through.
    pub through: u32,
}

/// A fill beside the best bid and offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgedFill {
    /// Place in the desk's list.
    pub fill: u32,
    /// The best bid before the fill.
    pub bid: Option<i64>,
    /// The best offer before the fill.
    pub ask: Option<i64>,
    /// Whether a better price was offered elsewhere; `None` where nothing was offered on that side,
    /// or the fill lies outside the window.
    pub through: Option<bool>,
    /// What the fill gained a share in 1/20,000 dollar until the markout; `None` where a side was
    /// empty or the time of the markout lies behind the window.
    pub markout: Option<i64>,
}

/// The answer of `nbbo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbboAnswer {
    /// By symbol, ascending.
    pub symbols: Vec<SymbolNbbo>,
    /// In the order of the desk's list.
    pub fills: Vec<JudgedFill>,
}

/// The times of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbboWindow {
    /// The window begins behind this time.
    pub after_ns: i64,
    /// The window ends with this time.
    pub until_ns: i64,
    /// Time between a fill and its markout.
    pub markout_ns: i64,
}

/// Reads fills: lines of `time_ns,symbol,side,price,shares`, with that heading. A side is `buy` or
/// `sell`, and a price is in dollars.
///
/// # Errors
/// The first line that is no fill.
pub fn read_fills(text: &str) -> Result<Vec<DeskFill>, DeskFileError> {
    let rows = super::csv_rows(text, "time_ns,symbol,side,price,shares");
    let fill = |(line, row): (usize, Result<Vec<&str>, String>)| {
        let fill = row.and_then(|row| {
            let no_number = |what: &str, text: &str| format!("{what} {text:?}: no number");
            let side = match row[2] {
                "buy" => FillSide::Buy,
                "sell" => FillSide::Sell,
                other => return Err(format!("side {other:?}: there are buy and sell")),
            };
            Ok(DeskFill {
                time_ns: row[0].parse().map_err(|_| no_number("time_ns", row[0]))?,
                symbol: pad_name("symbol", row[1])?,
                side,
                price: read_price(row[3]).ok_or_else(|| no_number("price", row[3]))?,
                shares: row[4].parse().map_err(|_| no_number("shares", row[4]))?,
            })
        });
        fill.map_err(|what| DeskFileError { line, what })
    };
    rows.map(fill).collect()
}

/// A price in dollars with up to four digits behind the point, in 1/10,000 dollar.
fn read_price(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if part.len() > 4 || whole.is_empty() || !is_digits(whole) || !is_digits(part) {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let part: i64 = format!("{part:0<4}").parse().ok()?;
    whole.checked_mul(10_000)?.checked_add(part)
}

/// The rank that merges a symbol, of ranks from 1 on: whoever asks merges nothing.
fn owner(symbol: SymbolName, ranks: u16) -> usize {
    let workers = u64::from(ranks.saturating_sub(1).max(1));
    1 + (mix(u64::from_le_bytes(symbol)) % workers) as usize
}

fn put_row(out: &mut BytesMut, symbol: SymbolName, row: &ExchangedRow) {
    let (kind, time_ns, (a, a_shares), (b, b_shares), number) = match row {
        ExchangedRow::Quote(quote) => {
            (1, quote.time_ns, columns_of(quote.bid), columns_of(quote.ask), 0)
        }
        ExchangedRow::Trade(trade) => (2, trade.time_ns, (trade.price, trade.shares), (0, 0), 0),
        ExchangedRow::Fill(number, fill) => {
            let kind = if fill.side == FillSide::Buy { 3 } else { 4 };
            (kind, fill.time_ns, (fill.price, fill.shares), (0, 0), *number)
        }
    };
    out.put_u32_le(kind);
    out.put_u32_le(number);
    out.put_slice(&symbol);
    out.put_i64_le(time_ns);
    out.put_i64_le(a);
    out.put_i64_le(b);
    out.put_u32_le(a_shares);
    out.put_u32_le(b_shares);
}

/// Reads a row; `None` when its kind is unknown.
fn read_row(bytes: &[u8; EXCHANGED_BYTES]) -> Option<(SymbolName, ExchangedRow)> {
    let u32_at = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let i64_at = |at: usize| i64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let symbol: SymbolName = core::array::from_fn(|i| bytes[8 + i]);
    let (time_ns, a, b) = (i64_at(16), i64_at(24), i64_at(32));
    let (a_shares, b_shares) = (u32_at(40), u32_at(44));
    let row = match u32_at(0) {
        1 => ExchangedRow::Quote(QuoteAt {
            time_ns,
            bid: side_of(a, a_shares),
            ask: side_of(b, b_shares),
        }),
        2 => ExchangedRow::Trade(TradeAt { time_ns, price: a, shares: a_shares }),
        kind @ (3 | 4) => {
            let side = if kind == 3 { FillSide::Buy } else { FillSide::Sell };
            let fill = DeskFill { time_ns, symbol, side, price: a, shares: a_shares };
            ExchangedRow::Fill(u32_at(4), fill)
        }
        _ => return None,
    };
    Some((symbol, row))
}

/// The rows of a venue for each rank, and their number.
pub fn exchange_venue(rows: &RecentSnapshot, window: NbboWindow, ranks: u16) -> (Vec<Bytes>, u64) {
    let NbboWindow { after_ns, until_ns, .. } = window;
    let owners: Vec<usize> =
        (0..rows.symbol_count() as u32).map(|symbol| owner(rows.name(symbol), ranks)).collect();
    let mut messages = vec![BytesMut::new(); usize::from(ranks)];
    let mut count = 0;
    let mut put = |symbol: u32, row: ExchangedRow| {
        put_row(&mut messages[owners[symbol as usize]], rows.name(symbol), &row);
        count += 1;
    };
    for (symbol, quote) in (0..).zip(rows.quotes_as_of(after_ns)) {
        if let Some(quote) = quote {
            put(symbol, ExchangedRow::Quote(quote));
        }
    }
    for (symbol, quote) in rows.quotes_between(after_ns, until_ns) {
        put(symbol, ExchangedRow::Quote(quote));
    }
    for (symbol, trade) in rows.trades_between(after_ns, until_ns) {
        put(symbol, ExchangedRow::Trade(trade));
    }
    (messages.into_iter().map(BytesMut::freeze).collect(), count)
}

/// The fills of the desk for each rank.
pub fn exchange_fills(fills: &[DeskFill], ranks: u16) -> Vec<Bytes> {
    let mut messages = vec![BytesMut::new(); usize::from(ranks)];
    for (number, fill) in (0..).zip(fills) {
        let row = ExchangedRow::Fill(number, *fill);
        // With one rank there is no worker, and the asker keeps the fills.
        let to = owner(fill.symbol, ranks).min(messages.len() - 1);
        put_row(&mut messages[to], fill.symbol, &row);
    }
    messages.into_iter().map(BytesMut::freeze).collect()
}

/// The place of the first message that is no list of rows.
pub fn check_exchanged(messages: &[Bytes]) -> Result<(), usize> {
    let is_wrong = |message: &Bytes| {
        let (rows, rest) = message.as_chunks::<EXCHANGED_BYTES>();
        !rest.is_empty() || rows.iter().any(|row| read_row(row).is_none())
    };
    messages.iter().position(is_wrong).map_or(Ok(()), Err)
}

/// A row with the venue that sent it. Rows are sorted by these fields: by symbol, then time;
/// executions before quotes of the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MergedRow {
    symbol: SymbolName,
    time_ns: i64,
    is_quote: bool,
    venue: u16,
    /// Place among the rows of its venue.
    place: u32,
    row: ExchangedRow,
}

/// The newest quotes of all venues of a symbol, and what is best.
#[derive(Default)]
struct Best {
    /// By venue, in the order of ranks.
    venues: BTreeMap<u16, QuoteAt>,
    bid: Option<BestSide>,
    ask: Option<BestSide>,
}

impl Best {
    fn take(&mut self, venue: u16, quote: QuoteAt) {
        self.venues.insert(venue, quote);
        let bids = self.venues.iter().filter_map(|(&venue, quote)| Some((venue, quote.bid?)));
        self.bid = best_of(bids, |price, best| price > best);
        let asks = self.venues.iter().filter_map(|(&venue, quote)| Some((venue, quote.ask?)));
        self.ask = best_of(asks, |price, best| price < best);
    }

    fn prices(&self) -> [Option<i64>; 2] {
        [self.bid.map(|side| side.price), self.ask.map(|side| side.price)]
    }

    /// Prices and sizes, without the venue.
    fn top(&self) -> [Option<(i64, u64)>; 2] {
        [self.bid, self.ask].map(|side| side.map(|side| (side.price, side.shares)))
    }
}

fn best_of(
    sides: impl Iterator<Item = (u16, SidePrice)>,
    is_better: impl Fn(i64, i64) -> bool,
) -> Option<BestSide> {
    let mut best: Option<BestSide> = None;
    for (venue, SidePrice { price, shares }) in sides {
        let shares = u64::from(shares);
        match &mut best {
            Some(known) if known.price == price => known.shares += shares,
            Some(known) if !is_better(price, known.price) => {}
            _ => best = Some(BestSide { price, shares, venue }),
        }
    }
    best
}

/// Whether an execution at this price was traded through; `None` where nothing was offered.
pub(super) fn is_through(
    price: i64,
    [bid, ask]: [Option<i64>; 2],
    side: Option<FillSide>,
) -> Option<bool> {
    match side {
        Some(FillSide::Buy) => ask.map(|ask| price > ask),
        Some(FillSide::Sell) => bid.map(|bid| price < bid),
        None if bid.is_none() && ask.is_none() => None,
        None => Some(ask.is_some_and(|ask| price > ask) || bid.is_some_and(|bid| price < bid)),
    }
}

/// What a fill gained a share, in 1/20,000 dollar.
pub(super) fn markout_of(fill: &DeskFill, [bid, ask]: [Option<i64>; 2]) -> Option<i64> {
    let gain = bid?.checked_add(ask?)?.checked_sub(fill.price.checked_mul(2)?)?;
    Some(if fill.side == FillSide::Buy { gain } else { -gain })
}

/// Merges what a rank received: one message from each rank.
pub fn merge_symbols(messages: &[Bytes], window: NbboWindow) -> NbboAnswer {
    let mut rows = Vec::new();
    for (venue, message) in (0..).zip(messages) {
        let (all, _) = message.as_chunks::<EXCHANGED_BYTES>();
        for (place, (symbol, row)) in (0..).zip(all.iter().filter_map(read_row)) {
            let (time_ns, is_quote) = match &row {
                ExchangedRow::Quote(quote) => (quote.time_ns, true),
                ExchangedRow::Trade(trade) => (trade.time_ns, false),
                ExchangedRow::Fill(_, fill) => (fill.time_ns, false),
            };
            rows.push(MergedRow { symbol, time_ns, is_quote, venue, place, row });
        }
    }
    rows.sort_unstable();
    let mut answer = NbboAnswer::default();
    for of_symbol in rows.chunk_by(|a, b| a.symbol == b.symbol) {
        merge_symbol(of_symbol, window, &mut answer);
    }
    answer.fills.sort_unstable_by_key(|fill| fill.fill);
    answer
}

/// Merges the rows of one symbol.
fn merge_symbol(rows: &[MergedRow], window: NbboWindow, answer: &mut NbboAnswer) {
    let mut best = Best::default();
    let (mut quotes, mut changes, mut trades, mut through) = (0, 0, 0, 0);
    // The best prices from each time on, for markouts.
    let mut course: Vec<(i64, [Option<i64>; 2])> = Vec::new();
    let mut fills: Vec<(DeskFill, JudgedFill)> = Vec::new();
    for of_time in rows.chunk_by(|a, b| a.time_ns == b.time_ns) {
        let time_ns = of_time[0].time_ns;
        let is_inside = time_ns > window.after_ns && time_ns <= window.until_ns;
        let before = best.top();
        for row in of_time {
            match row.row {
                ExchangedRow::Trade(trade) => {
                    trades += 1;
                    through +=
                        u32::from(is_through(trade.price, best.prices(), None) == Some(true));
                }
                ExchangedRow::Fill(number, fill) => {
                    fills.push((fill, judge_fill(number, &fill, best.prices(), is_inside)));
                }
                ExchangedRow::Quote(quote) => {
                    quotes += u32::from(is_inside);
                    best.take(row.venue, quote);
                }
            }
        }
        changes += u32::from(is_inside && best.top() != before);
        course.push((time_ns, best.prices()));
    }
    for (fill, mut judged) in fills {
        let at = fill.time_ns.saturating_add(window.markout_ns);
        if fill.time_ns > window.after_ns && at <= window.until_ns {
            let behind = course.partition_point(|(time, _)| *time <= at);
            let prices = behind.checked_sub(1).map_or([None; 2], |last| course[last].1);
            judged.markout = markout_of(&fill, prices);
        }
        answer.fills.push(judged);
    }
    let is_quoted = !best.venues.is_empty();
    if is_quoted || trades > 0 {
        let (symbol, bid, ask) = (rows[0].symbol, best.bid, best.ask);
        answer.symbols.push(SymbolNbbo { symbol, bid, ask, quotes, changes, trades, through });
    }
}

fn judge_fill(fill: u32, row: &DeskFill, prices: [Option<i64>; 2], is_inside: bool) -> JudgedFill {
    if !is_inside {
        return JudgedFill { fill, bid: None, ask: None, through: None, markout: None };
    }
    let through = is_through(row.price, prices, Some(row.side));
    JudgedFill { fill, bid: prices[0], ask: prices[1], through, markout: None }
}

/// The bytes of a part of the answer: number of symbols, number of fills, then their rows.
pub fn encode_nbbo(head: TableHead, answer: &NbboAnswer) -> Bytes {
    let mut bytes = BytesMut::new();
    head.encode(&mut bytes);
    bytes.put_u32_le(answer.symbols.len() as u32);
    bytes.put_u32_le(answer.fills.len() as u32);
    let side = |bytes: &mut BytesMut, side: Option<BestSide>| {
        bytes.put_i64_le(side.map_or(EMPTY, |side| side.price));
        bytes.put_u64_le(side.map_or(0, |side| side.shares));
        bytes.put_u32_le(side.map_or(0, |side| side.venue.into()));
    };
    for row in &answer.symbols {
        bytes.put_slice(&row.symbol);
        side(&mut bytes, row.bid);
        side(&mut bytes, row.ask);
        for count in [row.quotes, row.changes, row.trades, row.through] {
            bytes.put_u32_le(count);
        }
    }
    for row in &answer.fills {
        bytes.put_u32_le(row.fill);
        bytes.put_u32_le(row.through.map_or(2, u32::from));
        for price in [row.bid, row.ask] {
            bytes.put_i64_le(price.unwrap_or(EMPTY));
        }
        bytes.put_u64_le(row.markout.is_some().into());
        bytes.put_i64_le(row.markout.unwrap_or(0));
        bytes.put_u64_le(0);
    }
    bytes.freeze()
}

/// The symbols and fills of a table, as bytes.
fn parts(table: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = table.get(TABLE_HEAD_BYTES..)?;
    let count = |at: usize| {
        let bytes = rest.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let (symbols, fills, rows) = (count(0)?, count(4)?, rest.get(8..)?);
    let (symbols, fills) = (symbols.checked_mul(SYMBOL_BYTES)?, fills.checked_mul(FILL_BYTES)?);
    (symbols.checked_add(fills)? == rows.len()).then(|| rows.split_at(symbols))
}

fn check_nbbo(bytes: &[u8]) -> Result<(), Malformed> {
    let wrong = Malformed { what: "no table of symbols and fills", offset: bytes.len() };
    parts(bytes).map(drop).ok_or(wrong)
}

/// Joins tables. No symbol and no fill is in two of them.
pub(super) const JOIN_SYMBOLS: MergeRule = MergeRule {
    number: 202,
    check: check_nbbo,
    merge: |tables| {
        let mut answer = NbboAnswer::default();
        for table in tables {
            let part = decode_nbbo(table);
            answer.symbols.extend(part.symbols);
            answer.fills.extend(part.fills);
        }
        answer.symbols.sort_unstable_by_key(|row| row.symbol);
        answer.fills.sort_unstable_by_key(|row| row.fill);
        encode_nbbo(TableHead::merged(tables), &answer)
    },
};

/// The answer in a table. A table that is none, which was refused before, has no rows.
pub(super) fn decode_nbbo(table: &Bytes) -> NbboAnswer {
    let (symbols, fills) = parts(table).unwrap_or_default();
    let i64_at = |row: &[u8], at: usize| i64::from_le_bytes(core::array::from_fn(|i| row[at + i]));
    let u32_at = |row: &[u8], at: usize| u32::from_le_bytes(core::array::from_fn(|i| row[at + i]));
    let side = |row: &[u8], at: usize| {
        let (price, shares) = (i64_at(row, at), i64_at(row, at + 8) as u64);
        let venue = u32_at(row, at + 16) as u16;
        (price != EMPTY).then_some(BestSide { price, shares, venue })
    };
    let symbol = |row: &[u8; SYMBOL_BYTES]| SymbolNbbo {
        symbol: core::array::from_fn(|i| row[i]),
        bid: side(row, 8),
        ask: side(row, 28),
        quotes: u32_at(row, 48),
        changes: u32_at(row, 52),
        trades: u32_at(row, 56),
        through: u32_at(row, 60),
    };
    let price = |row: &[u8], at: usize| Some(i64_at(row, at)).filter(|&price| price != EMPTY);
    let fill = |row: &[u8; FILL_BYTES]| JudgedFill {
        fill: u32_at(row, 0),
        through: match u32_at(row, 4) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        },
        bid: price(row, 8),
        ask: price(row, 16),
        markout: (i64_at(row, 24) != 0).then(|| i64_at(row, 32)),
    };
    NbboAnswer {
        symbols: symbols.as_chunks().0.iter().map(symbol).collect(),
        fills: fills.as_chunks().0.iter().map(fill).collect(),
    }
}
