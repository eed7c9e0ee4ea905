//! A trade and a change of best prices as records of their files.
//!
//! ```text
//! <name>.<stream>.trades
//!  0         8          16          24        32       40      48       56         64
//! +---------+----------+-----------+---------+--------+-------+--------+----------+---------+
//! | time i64|number u64|release i64|event u64| symbol | price | shares |order ref.| match   |
//! +---------+----------+-----------+---------+--------+-------+--------+----------+---------+
//!  72     73     74       75      76     80
//! +------+------+--------+-------+------+
//! | type | side | format | flags | zero |
//! +------+------+--------+-------+------+
//!
//! <name>.<stream>.quotes
//!  0         8          16          24        32       40      48       56      64
//! +---------+----------+-----------+---------+--------+-------+--------+-------+----------+
//! | time i64|number u64|release i64|event u64| symbol | bid   | size   | ask   | size     |
//! +---------+----------+-----------+---------+--------+-------+--------+-------+----------+
//!  72       74       75      76     80
//! +--------+--------+-------+------+
//! | locate | format | flags | zero |
//! +--------+--------+-------+------+
//! ```
//!
//! `time` is the greatest time by which a message so far is indexed, because the times of a file
//! never decrease. The flags say which values are there.

use evenfall_feed_formats::Format;
use evenfall_feed_formats::books::{
    OrderSide, QuoteRow, QuoteTick, TRADE_KINDS, TopOfBook, TradeRow,
};
use evenfall_feed_formats::itch::{Alpha, Stock};

use crate::files::BOOK_RECORD_BYTES;

const RECORD: usize = BOOK_RECORD_BYTES as usize;
const HAS_SYMBOL: u8 = 1;
const HAS_PRICE: u8 = 2;
const HAS_ORDER: u8 = 4;
const HAS_MATCH: u8 = 8;
const IS_PRINTABLE: u8 = 16;
const HAS_BID: u8 = 2;
const HAS_ASK: u8 = 4;
const IS_UNDONE: u8 = 8;
const BEGINS_NANOSECOND: u8 = 16;

/// The message out of which a row was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowOrigin {
    /// The time by which the row is found.
    pub(crate) time_ns: i64,
    /// Number of the message in its stream.
    pub(crate) number: u64,
    /// The time of the message's release.
    pub(crate) recorded_ns: i64,
    pub(crate) format: Format,
}

/// The record of a row, filled from the front.
struct Filled([u8; RECORD]);

impl Filled {
    fn new(origin: &RowOrigin, event_ns: u64, symbol: Option<Stock>) -> Self {
        let mut filled = Self([0; RECORD]);
        filled.put(0, origin.time_ns.to_le_bytes());
        filled.put(8, origin.number.to_le_bytes());
        filled.put(16, origin.recorded_ns.to_le_bytes());
        filled.put(24, event_ns.to_le_bytes());
        if let Some(symbol) = symbol {
            filled.put(32, symbol.0);
        }
        filled.0[74] = origin.format.0;
        filled
    }

    fn put(&mut self, at: usize, bytes: [u8; 8]) {
        self.0[at..at + 8].copy_from_slice(&bytes);
    }

    fn set_flags(&mut self, flags: [(u8, bool); 5]) {
        self.0[75] = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum();
    }
}

fn word(record: &[u8], at: usize) -> [u8; 8] {
    record[at..at + 8].try_into().expect("eight bytes of a record")
}

fn number(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(word(record, at))
}

/// Where a record's row came from.
pub(crate) fn origin_of(record: &[u8]) -> RowOrigin {
    RowOrigin {
        time_ns: i64::from_le_bytes(word(record, 0)),
        number: number(record, 8),
        recorded_ns: i64::from_le_bytes(word(record, 16)),
        format: Format(record[74]),
    }
}

fn symbol_of(record: &[u8]) -> Option<Stock> {
    (record[75] & HAS_SYMBOL != 0).then(|| Alpha(word(record, 32)))
}

/// Appends the record of a trade.
pub(crate) fn put_trade(origin: &RowOrigin, row: &TradeRow, out: &mut Vec<u8>) {
    let mut filled = Filled::new(origin, row.time_ns, row.symbol);
    filled.put(40, row.price.unwrap_or(0).to_le_bytes());
    filled.put(48, row.shares.to_le_bytes());
    filled.put(56, row.order_reference.unwrap_or(0).to_le_bytes());
    filled.put(64, row.match_number.unwrap_or(0).to_le_bytes());
    filled.0[72] = row.kind.bytes().next().unwrap_or(0);
    filled.0[73] = row.side.map_or(0, |side| side.letter() as u8);
    let flags = [
        (HAS_SYMBOL, row.symbol.is_some()),
        (HAS_PRICE, row.price.is_some()),
        (HAS_ORDER, row.order_reference.is_some()),
        (HAS_MATCH, row.match_number.is_some()),
        (IS_PRINTABLE, row.printable),
    ];
    filled.set_flags(flags);
    out.extend_from_slice(&filled.0);
}

/// The trade of a record. A type that no version has written is empty.
pub(crate) fn trade_of(record: &[u8]) -> TradeRow {
    let has = |flag: u8| record[75] & flag != 0;
    TradeRow {
        time_ns: number(record, 24),
        kind: TRADE_KINDS.into_iter().find(|kind| kind.as_bytes() == &record[72..73]).unwrap_or(""),
        symbol: symbol_of(record),
        price: has(HAS_PRICE).then(|| i64::from_le_bytes(word(record, 40))),
        shares: number(record, 48),
        side: match record[73] {
            b'B' => Some(OrderSide::Bid),
            b'S' => Some(OrderSide::Ask),
            _ => None,
        },
        order_reference: has(HAS_ORDER).then(|| number(record, 56)),
        match_number: has(HAS_MATCH).then(|| number(record, 64)),
        printable: has(IS_PRINTABLE),
    }
}

/// Appends the record of a change of best prices.
pub(crate) fn put_tick(origin: &RowOrigin, tick: &QuoteTick, out: &mut Vec<u8>) {
    let QuoteRow { time_ns, symbol, bid, ask } = tick.quote;
    let mut filled = Filled::new(origin, time_ns, symbol);
    for (at, top) in [(40, bid), (56, ask)] {
        filled.put(at, top.map_or(0, |top| top.price).to_le_bytes());
        filled.put(at + 8, top.map_or(0, |top| top.shares).to_le_bytes());
    }
    filled.0[72..74].copy_from_slice(&tick.locate.to_le_bytes());
    let flags = [
        (HAS_SYMBOL, symbol.is_some()),
        (HAS_BID, bid.is_some()),
        (HAS_ASK, ask.is_some()),
        (IS_UNDONE, tick.is_undone),
        (BEGINS_NANOSECOND, tick.begins_nanosecond),
    ];
    filled.set_flags(flags);
    out.extend_from_slice(&filled.0);
}

/// The change of best prices of a record.
pub(crate) fn tick_of(record: &[u8]) -> QuoteTick {
    let has = |flag: u8| record[75] & flag != 0;
    let top = |at: usize| TopOfBook {
        price: i64::from_le_bytes(word(record, at)),
        shares: number(record, at + 8),
    };
    QuoteTick {
        quote: QuoteRow {
            time_ns: number(record, 24),
            symbol: symbol_of(record),
            bid: has(HAS_BID).then(|| top(40)),
            ask: has(HAS_ASK).then(|| top(56)),
        },
        locate: u16::from_le_bytes([record[72], record[73]]),
        is_undone: has(IS_UNDONE),
        begins_nanosecond: has(BEGINS_NANOSECOND),
    }
}

/// Bytes of a record that says how far trades and quotes go.
pub(crate) const EDGE_BYTES: usize = 40;

/// How far the trades and quotes of a stream go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DerivedEdge {
    /// Messages with smaller numbers have all their rows.
    pub(crate) messages: u64,
    /// The first message from which the books were made.
    pub(crate) from: u64,
    /// Records of trades by then.
    pub(crate) trades: u64,
    /// Records of changes of best prices by then.
    pub(crate) quotes: u64,
}

impl DerivedEdge {
    /// The record of the edge.
    pub(crate) fn record(&self, time_ns: i64) -> [u8; EDGE_BYTES] {
        let mut record = [0; EDGE_BYTES];
        record[..8].copy_from_slice(&time_ns.to_le_bytes());
        let words = [self.messages, self.from, self.trades, self.quotes];
        for (place, word) in record[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        record
    }

    /// The edge of a record.
    pub(crate) fn of(record: &[u8]) -> Self {
        Self {
            messages: number(record, 8),
            from: number(record, 16),
            trades: number(record, 24),
            quotes: number(record, 32),
        }
    }
}
