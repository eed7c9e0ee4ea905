//! What a message says, in the columns that a person queries: type, symbol, side, shares, price.
//!
//! ITCH has two dozen layouts and LOBSTER is text, and a table has one set of columns. An
//! [`Event`] holds what most equity feeds share; what a message does not say is `None`. It is a
//! reading beside the message and never in its place: names of market makers, imbalances and the
//! like are in the bytes alone.

use crate::itch::{Code, Owned, Price4, Stock, Symbols, View};
use crate::lobster;

/// Decimals of [`Event::price`].
pub const PRICE_DECIMALS: u8 = 4;

/// What one message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Type letter of ITCH; digit of LOBSTER, 1 to 7.
    pub kind: Option<char>,
    /// Index of the security in the day's directory.
    pub stock_locate: Option<u16>,
    /// Nasdaq's own tracking number.
    pub tracking_number: Option<u16>,
    /// The venue's time in nanoseconds since midnight.
    pub event_ns: Option<u64>,
    /// The security, by the message itself or by an earlier one with the same locate.
    pub symbol: Option<Stock>,
    /// The order; of a replacement, the one that left.
    pub order_reference: Option<u64>,
    /// The order that came in a replacement.
    pub new_reference: Option<u64>,
    /// B buy, S sell.
    pub side: Option<char>,
    /// Shares entered, executed, cancelled or crossed.
    pub shares: Option<u64>,
    /// Price in 1/10,000 dollar.
    pub price: Option<i64>,
    /// The match, as broken trades name it.
    pub match_number: Option<u64>,
}

/// Reads messages in their order; learns the symbols as they pass.
#[derive(Clone, Debug, Default)]
pub struct Events {
    symbols: Symbols,
}

impl Events {
    /// One that knows no symbol yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the next message of the feed says; of neither ITCH nor LOBSTER, nothing.
    pub fn read(&mut self, message: &[u8]) -> Event {
        match View::decode(message) {
            Ok(view) => {
                self.symbols.observe(&view);
                of_itch(&view, self.symbols.symbol(view.stock_locate()))
            }
            Err(_) => lobster::Line::parse(message).map_or_else(Event::default, of_lobster),
        }
    }
}

fn letter(code: Code) -> Option<char> {
    code.0.is_ascii_graphic().then_some(char::from(code.0))
}

fn dollars(price: Price4) -> Option<i64> {
    Some(i64::from(price.0))
}

fn of_itch(view: &View<'_>, symbol: Option<Stock>) -> Event {
    let event = Event {
        kind: Some(char::from(view.kind().letter())),
        stock_locate: Some(view.stock_locate()),
        tracking_number: Some(view.tracking_number()),
        event_ns: Some(view.timestamp_ns()),
        symbol: view.stock().or(symbol),
        ..Event::default()
    };
    let order = |reference: u64, shares: u32| Event {
        order_reference: Some(reference),
        shares: Some(u64::from(shares)),
        ..event
    };
    match view.to_owned() {
        Owned::AddOrder(m) => Event {
            side: letter(m.side),
            price: dollars(m.price),
            ..order(m.order_reference, m.shares)
        },
        Owned::AddOrderMpid(m) => Event {
            side: letter(m.side),
            price: dollars(m.price),
            ..order(m.order_reference, m.shares)
        },
        Owned::OrderExecuted(m) => Event {
            match_number: Some(m.match_number),
            ..order(m.order_reference, m.executed_shares)
        },
        Owned::OrderExecutedWithPrice(m) => Event {
            match_number: Some(m.match_number),
            price: dollars(m.execution_price),
            ..order(m.order_reference, m.executed_shares)
        },
        Owned::OrderCancel(m) => order(m.order_reference, m.cancelled_shares),
        Owned::OrderDelete(m) => Event { order_reference: Some(m.order_reference), ..event },
        Owned::OrderReplace(m) => Event {
            new_reference: Some(m.new_reference),
            price: dollars(m.price),
            ..order(m.original_reference, m.shares)
        },
        Owned::Trade(m) => Event {
            side: letter(m.side),
            price: dollars(m.price),
            match_number: Some(m.match_number),
            ..order(m.order_reference, m.shares)
        },
        Owned::CrossTrade(m) => Event {
            shares: Some(m.shares),
            price: dollars(m.cross_price),
            match_number: Some(m.match_number),
            ..event
        },
        Owned::BrokenTrade(m) => Event { match_number: Some(m.match_number), ..event },
        _ => event,
    }
}

fn of_lobster(line: lobster::Line) -> Event {
    Event {
        kind: line.kind,
        event_ns: Some(line.time_ns),
        order_reference: Some(line.order),
        side: Some(if line.is_buy { 'B' } else { 'S' }),
        shares: Some(line.shares),
        price: Some(line.price),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::itch::{AddOrder, Alpha, OrderExecuted, OrderReplace};

    #[test]
    fn itch_of_one_security_reads_with_its_symbol_from_the_first_order_on() {
        let stock = Alpha::new("AAPL").unwrap();
        let (side, price) = (Code(b'S'), Price4(2_900_100));
        let (order_reference, shares) = (7, 300);
        let add = AddOrder { order_reference, side, shares, stock, price, ..Default::default() };
        let add = AddOrder { stock_locate: 13, timestamp_ns: 5, ..add };
        let done = OrderExecuted { stock_locate: 13, executed_shares: 100, ..Default::default() };
        let replaced = OrderReplace { original_reference: 7, new_reference: 8, ..done_locate() };
        let mut events = Events::new();
        assert_eq!(events.read(&done.encode()).symbol, None);
        let first = events.read(&add.encode());
        assert_eq!((first.kind, first.side, first.price), (Some('A'), Some('S'), Some(2_900_100)));
        assert_eq!((first.event_ns, first.shares), (Some(5), Some(300)));
        let later = events.read(&done.encode());
        assert_eq!((later.symbol, later.shares, later.price), (Some(stock), Some(100), None));
        let last = events.read(&replaced.encode());
        assert_eq!((last.order_reference, last.new_reference), (Some(7), Some(8)));
    }

    fn done_locate() -> OrderReplace {
        OrderReplace { stock_locate: 13, ..Default::default() }
    }

    #[test]
    fn lobster_reads_and_other_bytes_say_nothing() {
        let mut events = Events::new();
        let event = events.read(b"34200.004241176,1,16113575,18,5853300,-1");
        assert_eq!(event.event_ns, Some(34_200_004_241_176));
        assert_eq!((event.kind, event.side), (Some('1'), Some('S')));
        assert_eq!((event.order_reference, event.shares), (Some(16_113_575), Some(18)));
        assert_eq!(event.price, Some(5_853_300));
        let halt = events.read(b"34713.685155243,7,0,0,-1,-1");
        assert_eq!((halt.kind, halt.price), (Some('7'), Some(-1)));
        for other in [&b""[..], b"Z", b"1,2", b"34200.1,1,99999999999999999999,1,1,1"] {
            assert_eq!(events.read(other), Event::default());
        }
    }
}
