//! MIAX MACH: packets of one exchange message each, several to a datagram, of the Top of Market
//! feed.
//!
//! ```text
//!  0          8        10     11        12                                      little-endian
//!  +----------+--------+------+---------+------+-- ...
//!  | sequence | length | type | session | kind | message        type 0 heartbeat, 1 start and
//!  +----------+--------+------+---------+------+-- ...               2 end of session, 3 message
//! ```
//!
//! The length counts the twelve bytes in front. A message is read when it has the length of its
//! kind in version 1.9, down to the last byte, because other feeds of MIAX have equal letters for
//! other messages.
//!
//! Messages state the nanoseconds of a second, and a message of its own states the second. The
//! second is taken from the recorded time instead: that which is nearest. Then each message has its
//! time by itself, also where a reader begins in the middle.
//!
//! The book of an option is its best bid and offer. Prices have four decimals. Those of the wide
//! message of both sides (D) have two or four, by the version of the feed, so that they stay
//! unknown, and the option has no quote until the next message.
//!
//! Source: MIAX Multicast Communication Header (MACH) and Top of Market Feed 1.9.

use crate::books::OrderSide;
use crate::books::levels::{
    LevelAction, LevelChange, LevelTrade, MarketChange, MarketCodec, MarketMessage, MarketUpdate,
    SecurityName,
};
use crate::codec::{Codec, Format, MACH, TimeOrigin};
use crate::columns::{ColumnSink, MessageColumn, TYPE_COLUMN};
use crate::itch::Symbols;

/// Bytes in front of a message.
const HEAD_BYTES: usize = 12;
/// The types that a packet may have.
const TYPE_MAX: u8 = 3;
/// The type of a packet with an exchange message.
const TYPE_MESSAGE: u8 = 3;
/// Decimals of prices.
const DECIMALS: u8 = 4;
/// From two decimals to four.
const TWO_DECIMALS: u32 = 100;
/// Nanoseconds of a second.
const SECOND_NS: i64 = 1_000_000_000;

pub(crate) struct Mach;

/// A packet of a datagram.
#[derive(Clone, Copy)]
struct MachPacket<'a> {
    sequence: u64,
    packet_type: u8,
    session: u8,
    /// The exchange message, which begins with its kind; empty for a packet without a message.
    message: &'a [u8],
}

/// The first packet, and the bytes behind it.
fn split_packet(rest: &[u8]) -> Option<(MachPacket<'_>, &[u8])> {
    let head: &[u8; HEAD_BYTES] = rest.first_chunk()?;
    let length = usize::from(u16::from_le_bytes([head[8], head[9]]));
    let (packet, behind) = rest.split_at_checked(length)?;
    let message = packet.get(HEAD_BYTES..)?;
    if head[10] > TYPE_MAX || head[10] == TYPE_MESSAGE && message.is_empty() {
        return None;
    }
    let sequence = u64::from_le_bytes(*head.first_chunk()?);
    Some((MachPacket { sequence, packet_type: head[10], session: head[11], message }, behind))
}

/// Whether a datagram holds whole packets to its last byte.
fn is_whole(datagram: &[u8]) -> bool {
    let mut rest = datagram;
    while !rest.is_empty() {
        let Some((_, behind)) = split_packet(rest) else { return false };
        rest = behind;
    }
    !datagram.is_empty()
}

/// The packets of a datagram; none of a datagram that is not whole.
fn packets_of(datagram: &[u8]) -> impl Iterator<Item = MachPacket<'_>> {
    let mut rest = if is_whole(datagram) { datagram } else { &[] };
    core::iter::from_fn(move || {
        let (packet, behind) = split_packet(rest)?;
        rest = behind;
        Some(packet)
    })
}

/// The name of a packet's type, or of its message's kind.
fn packet_name(packet: &MachPacket<'_>) -> &'static str {
    match (packet.packet_type, packet.message.first()) {
        (0, _) => "Heartbeat",
        (1, _) => "StartOfSession",
        (2, _) => "EndOfSession",
        (_, Some(b'1')) => "SystemTime",
        (_, Some(b'B' | b'W')) => "TopOfMarketBid",
        (_, Some(b'O' | b'A')) => "TopOfMarketOffer",
        (_, Some(b'd' | b'D')) => "TopOfMarketBidAndOffer",
        (_, Some(b'T')) => "LastSale",
        (_, Some(b'X')) => "TradeCancel",
        (_, Some(b'P')) => "SeriesUpdate",
        (_, Some(b'S')) => "SystemState",
        _ => "other message of MACH",
    }
}

fn short_at(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes).into())
}

fn long_at(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*message.get(at..)?.first_chunk()?))
}

/// What a message says of one side of an option, or of a trade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MachStatement {
    /// The second, of the messages that state it.
    seconds: Option<u32>,
    /// Nanoseconds of the second.
    ns: Option<u32>,
    product: Option<u32>,
    side: Option<OrderSide>,
    /// With four decimals.
    price: Option<u32>,
    size: Option<u32>,
    /// The part of the size that is of priority customers.
    customer_size: Option<u32>,
    condition: Option<u8>,
    trade: Option<u32>,
    /// 0 for a new trade.
    correction: Option<u8>,
}

impl MachStatement {
    /// A statement of a message that states time and product.
    fn of_product(message: &[u8]) -> Self {
        let (ns, product) = (long_at(message, 1), long_at(message, 5));
        Self { ns: ns.filter(|ns| i64::from(*ns) < SECOND_NS), product, ..Self::default() }
    }

    /// A side of two bytes a number, from this place on.
    fn with_compact_side(self, message: &[u8], at: usize, side: OrderSide) -> Self {
        Self {
            side: Some(side),
            price: short_at(message, at).map(|price| price * TWO_DECIMALS),
            size: short_at(message, at + 2),
            customer_size: short_at(message, at + 4),
            condition: message.get(at + 6).copied(),
            ..self
        }
    }

    /// A side of four bytes a number, from this place on.
    fn with_wide_side(self, message: &[u8], at: usize, side: OrderSide) -> Self {
        Self {
            side: Some(side),
            price: long_at(message, at),
            size: long_at(message, at + 4),
            customer_size: long_at(message, at + 8),
            condition: message.get(at + 12).copied(),
            ..self
        }
    }

    /// A trade, whose price stands in this place.
    fn with_trade(self, message: &[u8], price_at: usize) -> Self {
        Self {
            trade: long_at(message, 9),
            correction: message.get(13).copied(),
            price: long_at(message, price_at),
            size: long_at(message, price_at + 4),
            condition: message.get(price_at + 8).copied(),
            ..self
        }
    }
}

/// Gives what a message says: both sides one after the other, and of a message that is not read
/// nothing but that it is there.
fn each_statement(message: &[u8], each: &mut dyn FnMut(&MachStatement)) {
    let stated = MachStatement::of_product(message);
    match (message.first(), message.len()) {
        (Some(b'1'), 5) => {
            each(&MachStatement { seconds: long_at(message, 1), ..MachStatement::default() });
        }
        (Some(b'B'), 16) => each(&stated.with_compact_side(message, 9, OrderSide::Bid)),
        (Some(b'O'), 16) => each(&stated.with_compact_side(message, 9, OrderSide::Ask)),
        (Some(b'W'), 22) => each(&stated.with_wide_side(message, 9, OrderSide::Bid)),
        (Some(b'A'), 22) => each(&stated.with_wide_side(message, 9, OrderSide::Ask)),
        (Some(b'd'), 23) => {
            each(&stated.with_compact_side(message, 9, OrderSide::Bid));
            each(&stated.with_compact_side(message, 16, OrderSide::Ask));
        }
        (Some(b'D'), 35) => {
            for (at, side) in [(9, OrderSide::Bid), (22, OrderSide::Ask)] {
                let wide = stated.with_wide_side(message, at, side);
                each(&MachStatement { price: None, ..wide });
            }
        }
        (Some(b'T'), 28) => each(&stated.with_trade(message, 19)),
        (Some(b'X'), 23) => each(&stated.with_trade(message, 14)),
        (Some(b'P'), SERIES_BYTES) => each(&stated),
        _ => each(&MachStatement::default()),
    }
}

/// Bytes of the definition of an option.
const SERIES_BYTES: usize = 73;
/// Bytes of a message about the state of the system, whose last byte is the state.
const STATE_BYTES: usize = 18;

/// The name of the option that a message defines, as the options industry writes it: root, day of
/// expiry, call or put, and the strike in 1/1,000 dollar.
fn option_name(message: &[u8]) -> Option<String> {
    if message.first() != Some(&b'P') || message.len() != SERIES_BYTES {
        return None;
    }
    let text = |at: usize, len: usize| core::str::from_utf8(message.get(at..at + len)?).ok();
    let (root, expiry) = (text(20, 6)?.trim(), text(28, 6)?);
    let (strike, right) = (long_at(message, 34)? / 10, text(38, 1)?);
    (!root.is_empty()).then(|| format!("{root:<6}{expiry}{right}{strike:08}"))
}

/// The instant with these nanoseconds of a second that is nearest to the recorded time.
fn instant_of(recorded_ns: i64, ns: u32) -> u64 {
    let second = recorded_ns.saturating_sub(recorded_ns.rem_euclid(SECOND_NS));
    let instant = second.saturating_add(ns.into());
    let near = [instant.saturating_sub(SECOND_NS), instant, instant.saturating_add(SECOND_NS)];
    let nearest = near.into_iter().min_by_key(|at| at.abs_diff(recorded_ns));
    u64::try_from(nearest.unwrap_or(recorded_ns)).unwrap_or(0)
}

/// The columns, in the order in which [`put_row`] puts their values.
const COLUMNS: &[MessageColumn] = &[
    TYPE_COLUMN,
    MessageColumn::unsigned("packet_sequence", 64),
    MessageColumn::unsigned("packet_type", 8),
    MessageColumn::unsigned("session", 8),
    MessageColumn::unsigned("seconds", 32).in_unit("s"),
    MessageColumn::unsigned("nanoseconds", 32).in_unit("ns"),
    MessageColumn::unsigned("product_id", 32),
    MessageColumn::text("symbol").at_most(21).as_derived(),
    MessageColumn::text("side").at_most(1),
    MessageColumn::decimal("price", DECIMALS).in_unit("dollar"),
    MessageColumn::unsigned("size", 32),
    MessageColumn::unsigned("customer_size", 32),
    MessageColumn::text("condition").at_most(1),
    MessageColumn::unsigned("trade_id", 32),
    MessageColumn::unsigned("correction", 8),
];

/// Puts a statement into [`COLUMNS`].
fn put_row(
    packet: &MachPacket<'_>,
    stated: &MachStatement,
    symbols: &Symbols,
    sink: &mut dyn ColumnSink,
) {
    sink.put_text(0, packet_name(packet));
    sink.put_unsigned(1, packet.sequence);
    sink.put_unsigned(2, packet.packet_type.into());
    sink.put_unsigned(3, packet.session.into());
    for (column, number) in [
        (4, stated.seconds),
        (5, stated.ns),
        (6, stated.product),
        (10, stated.size),
        (11, stated.customer_size),
        (13, stated.trade),
        (14, stated.correction.map(u32::from)),
    ] {
        number.inspect(|number| sink.put_unsigned(column, u64::from(*number)));
    }
    let symbol = stated.product.and_then(|product| symbols.security_name(product));
    symbol.inspect(|symbol| sink.put_text(7, symbol));
    let side = stated.side.map(OrderSide::letter);
    side.inspect(|letter| sink.put_text(8, letter.encode_utf8(&mut [0; 4])));
    stated.price.inspect(|price| sink.put_decimal(9, i64::from(*price)));
    let condition = stated.condition.filter(u8::is_ascii_graphic).map(char::from);
    condition.inspect(|letter| sink.put_text(12, letter.encode_utf8(&mut [0; 4])));
    sink.end_row();
}

impl Codec for Mach {
    fn format(&self) -> Format {
        MACH
    }

    fn word(&self) -> &'static str {
        "mach"
    }

    fn name(&self) -> &'static str {
        "MIAX MACH"
    }

    fn clock(&self) -> TimeOrigin {
        TimeOrigin::Epoch
    }

    fn is_packet(&self, datagram: &[u8]) -> bool {
        is_whole(datagram)
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        packets_of(message).next().map(|packet| packet_name(&packet))
    }

    fn columns(&self) -> &'static [MessageColumn] {
        COLUMNS
    }

    fn put_rows(&self, message: &[u8], symbols: &mut Symbols, sink: &mut dyn ColumnSink) {
        self.learn_names(message, symbols);
        for packet in packets_of(message) {
            each_statement(packet.message, &mut |stated| put_row(&packet, stated, symbols, sink));
        }
    }

    fn learn_names(&self, message: &[u8], symbols: &mut Symbols) {
        for packet in packets_of(message) {
            if let (Some(name), Some(product)) =
                (option_name(packet.message), long_at(packet.message, 5))
            {
                symbols.learn_name(product, &name);
            }
        }
    }

    fn market_codec(&self) -> Option<&dyn MarketCodec> {
        Some(self)
    }
}

impl MarketCodec for Mach {
    fn price_decimals(&self) -> u8 {
        DECIMALS
    }

    fn read_updates(&self, message: MarketMessage<'_>, each: &mut dyn FnMut(MarketUpdate<'_>)) {
        let recorded_ns = message.recorded_ns;
        for packet in packets_of(message.bytes) {
            if let (Some(name), Some(security)) =
                (option_name(packet.message), long_at(packet.message, 5))
            {
                let change =
                    MarketChange::Name(SecurityName { security, name: &name, depth: Some(1) });
                let ns = MachStatement::of_product(packet.message).ns;
                let time_ns = instant_of(recorded_ns, ns.unwrap_or(0));
                each(MarketUpdate { time_ns, change });
            }
            each_statement(packet.message, &mut |stated| {
                let ns = MachStatement::of_product(packet.message).ns;
                if let (Some(ns), Some(change)) = (ns, change_of(&packet, stated)) {
                    each(MarketUpdate { time_ns: instant_of(recorded_ns, ns), change });
                }
            });
        }
    }
}

/// What a statement does to the book of its option, or the trade that it is.
fn change_of<'a>(packet: &MachPacket<'_>, stated: &MachStatement) -> Option<MarketChange<'a>> {
    // Products are numbered anew when the system starts.
    if packet.message.len() == STATE_BYTES
        && packet.message.first() == Some(&b'S')
        && packet.message.last() == Some(&b'S')
    {
        return Some(MarketChange::Reset { security: None });
    }
    let security = stated.product?;
    let size = u64::from(stated.size?);
    let price = stated.price.map(i64::from);
    if let Some(side) = stated.side {
        return Some(MarketChange::Level(LevelChange {
            security,
            sequence: 0,
            is_snapshot: false,
            side,
            level: 0,
            action: LevelAction::Replace,
            // A side without a price or a size offers nothing.
            price: price.filter(|price| *price > 0 && size > 0),
            size,
            orders: 0,
        }));
    }
    // A correction or a cancel changes a trade that was given before.
    let is_new = packet.message.first() == Some(&b'T') && stated.correction == Some(0);
    is_new.then_some(MarketChange::Trade(LevelTrade {
        kind: packet_name(packet),
        security,
        price,
        size,
        resting: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::TopOfBook;
    use crate::books::levels::{LevelBooks, MarketRow};
    use crate::columns::{ColumnBuffers, ColumnValues};

    fn packet(message: &[u8]) -> Vec<u8> {
        let length = (HEAD_BYTES + message.len()) as u16;
        [&5u64.to_le_bytes()[..], &length.to_le_bytes(), &[3, 1], message].concat()
    }

    /// A message of this kind about product 77, at 5 ns of a second.
    fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
        [&[kind][..], &5u32.to_le_bytes(), &77u32.to_le_bytes(), rest].concat()
    }

    /// A compact side: price with two decimals, size, size of customers, condition.
    fn side(price: u16, size: u16) -> Vec<u8> {
        [price, size, 1].map(u16::to_le_bytes).concat().into_iter().chain([b'A']).collect()
    }

    fn series() -> Vec<u8> {
        let mut series = message(b'P', b"AAPL       AAPL  20161021");
        series.extend_from_slice(&1_150_000u32.to_le_bytes());
        series.push(b'C');
        series.resize(SERIES_BYTES, b' ');
        series
    }

    fn sale() -> Vec<u8> {
        let mut sale = message(b'T', &9u32.to_le_bytes());
        sale.extend_from_slice(&[0; 6]);
        sale.extend_from_slice(&81_500u32.to_le_bytes());
        sale.extend_from_slice(&10u32.to_le_bytes());
        sale.push(b'R');
        sale
    }

    #[test]
    fn datagrams_are_told_by_the_lengths_of_all_their_packets() {
        let two = [packet(&[b'T', 1, 2, 3]), packet(&[b'B', 1, 2, 3])].concat();
        assert_eq!(Mach.type_name(&two), Some("LastSale"));
        for end in 0..two.len() {
            assert_eq!(Mach.is_packet(&two[..end]), end == 16, "cut at {end}");
        }
        assert!(!Mach.is_packet(b"A\0\0 no packet of MACH"));
    }

    #[test]
    fn each_packet_is_a_row_and_both_sides_are_two() {
        let both = message(b'd', &[side(815, 10), side(840, 376)].concat());
        let unread = message(b'B', b"another length");
        let datagram = [series(), both, sale(), unread].map(|message| packet(&message)).concat();
        let mut rows = ColumnBuffers::new(Mach.columns());
        Mach.put_rows(&datagram, &mut Symbols::new(), &mut rows);
        let values = |name: &str| {
            let found = rows.columns().find(|(column, _)| column.name == name);
            found.expect("a column").1.clone()
        };
        let texts = |name: &str| match values(name) {
            ColumnValues::Text(texts) => {
                texts.iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let symbol = Some("AAPL  161021C00115000".to_owned());
        assert_eq!(texts("symbol"), [symbol.clone(), symbol.clone(), symbol.clone(), symbol, None]);
        let sides = texts("side");
        let sides: Vec<_> = sides.iter().map(Option::as_deref).collect();
        assert_eq!(sides, [None, Some("B"), Some("S"), None, None]);
        let prices = vec![None, Some(81_500), Some(84_000), Some(81_500), None];
        assert_eq!(values("price"), ColumnValues::Decimal(prices));
        let sizes = vec![None, Some(10), Some(376), Some(10), None];
        assert_eq!(values("size"), ColumnValues::Unsigned(sizes));
        let trades = vec![None, None, None, Some(9), None];
        assert_eq!(values("trade_id"), ColumnValues::Unsigned(trades));
    }

    #[test]
    fn sides_and_sales_are_quotes_and_trades_at_the_nearest_second() {
        // Recorded just before a second ends; the venue's clock was in the next one.
        let recorded_ns = 8 * SECOND_NS - 100;
        let mut rows = Vec::new();
        let mut books = LevelBooks::<()>::default();
        let datagram = [series(), message(b'B', &side(815, 10)), sale()];
        let datagram = datagram.map(|message| packet(&message)).concat();
        let message = MarketMessage { bytes: &datagram, recorded_ns };
        books.take_message(&Mach, message, (), &mut |(), row| rows.push(row));
        books.end_nanosecond(&mut |(), row| rows.push(row));
        let [MarketRow::Trade(trade), MarketRow::Quote(quote)] = &rows[..] else {
            panic!("{rows:?}")
        };
        assert_eq!((trade.time_ns, quote.time_ns), (8_000_000_005, 8_000_000_005));
        assert_eq!((trade.stated.price, trade.stated.size), (Some(81_500), 10));
        assert_eq!(quote.bid, Some(TopOfBook { price: 81_500, shares: 10 }));
        assert_eq!((quote.ask, quote.name.as_deref()), (None, Some("AAPL  161021C00115000")));
    }

    #[test]
    fn a_side_without_a_size_and_one_of_unknown_decimals_are_no_quote() {
        let wide = [[1u32, 2, 3].map(u32::to_le_bytes).concat(), vec![b'A']].concat();
        let wide = message(b'D', &[wide.clone(), wide].concat());
        for empties in [message(b'B', &side(815, 0)), wide] {
            let mut quotes = Vec::new();
            let mut books = LevelBooks::<()>::default();
            let first = packet(&message(b'B', &side(800, 1)));
            for (bytes, recorded_ns) in [(first, 0), (packet(&empties), SECOND_NS)] {
                let message = MarketMessage { bytes: &bytes, recorded_ns };
                books.take_message(&Mach, message, (), &mut |(), row| quotes.push(row));
            }
            books.end_nanosecond(&mut |(), row| quotes.push(row));
            let bids: Vec<_> = quotes
                .iter()
                .map(|row| match row {
                    MarketRow::Quote(quote) => quote.bid.map(|bid| bid.price),
                    MarketRow::Trade(trade) => panic!("{trade:?}"),
                })
                .collect();
            assert_eq!(bids, [Some(80_000), None]);
        }
    }
}
