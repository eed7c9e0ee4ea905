//! The codec of ITCH 5.0, which reads messages into common columns.

use super::{
    Alpha, Code, HEADER_BYTES, ItchKind, Owned, Price4, Stock, Symbols, View, timestamp_ns,
};
use crate::codec::DAY_NS;
use crate::event::{Event, kind_text};
use crate::sharding::GLOBAL;

/// The header that every message has, also a message of an unknown type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub locate: u16,
    pub time_ns: u64,
}

impl Header {
    /// Reads the header of a message of an unknown type. A later version of the feed adds types,
    /// and their bytes can be carried without being understood. When the type is no letter or
    /// digit, or the time is beyond a day, the bytes are damaged.
    pub fn of_unknown(message: &[u8]) -> Option<Self> {
        let is_type = message.first().is_some_and(u8::is_ascii_alphanumeric);
        if !is_type || message.len() < HEADER_BYTES || ItchKind::from_letter(message[0]).is_some() {
            return None;
        }
        let locate = u16::from_be_bytes([message[1], message[2]]);
        let time_ns = timestamp_ns(message);
        (time_ns < DAY_NS).then_some(Self { locate, time_ns })
    }

    pub fn of(view: &View<'_>) -> Self {
        Self { locate: view.stock_locate(), time_ns: view.timestamp_ns() }
    }

    /// Locate 0 belongs to no security. Such a message, a system event or a circuit breaker of the
    /// whole market, concerns all securities.
    pub fn shard_key(self) -> u32 {
        if self.locate == 0 { GLOBAL } else { self.locate.into() }
    }
}

/// The contents of a message.
pub(crate) fn event(message: &[u8], symbols: &mut Symbols) -> Option<Event> {
    let view = View::decode(message).ok()?;
    symbols.observe(&view);
    Some(of_itch(&view, symbols.symbol(view.stock_locate().into())))
}

fn letter(code: Code) -> Option<char> {
    code.0.is_ascii_graphic().then_some(char::from(code.0))
}

fn dollars(price: Price4) -> Option<i64> {
    Some(i64::from(price.0))
}

/// Nasdaq numbers orders from 1 on. Trades of hidden orders have 0 in the place of the number.
fn reference(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// Text of which some is there. Fields without a value are filled with spaces.
fn stated<const N: usize>(text: Alpha<N>) -> Option<Alpha<N>> {
    (!text.trimmed().is_empty()).then_some(text)
}

fn of_itch(view: &View<'_>, symbol: Option<Stock>) -> Event {
    let event = Event {
        kind: kind_text(view.kind().letter()),
        stock_locate: Some(view.stock_locate()),
        tracking_number: Some(view.tracking_number()),
        event_ns: Some(view.timestamp_ns()),
        symbol: view.stock().and_then(stated).or(symbol),
        ..Event::default()
    };
    let order = |number: u64, shares: u32| Event {
        order_reference: reference(number),
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
            attribution: stated(m.attribution),
            price: dollars(m.price),
            ..order(m.order_reference, m.shares)
        },
        Owned::OrderExecuted(m) => Event {
            match_number: Some(m.match_number),
            printable: Some(true),
            ..order(m.order_reference, m.executed_shares)
        },
        Owned::OrderExecutedWithPrice(m) => Event {
            match_number: Some(m.match_number),
            price: dollars(m.execution_price),
            printable: Some(m.printable == Code(b'Y')),
            ..order(m.order_reference, m.executed_shares)
        },
        Owned::OrderCancel(m) => order(m.order_reference, m.cancelled_shares),
        Owned::OrderDelete(m) => Event { order_reference: reference(m.order_reference), ..event },
        Owned::OrderReplace(m) => Event {
            new_reference: reference(m.new_reference),
            price: dollars(m.price),
            ..order(m.original_reference, m.shares)
        },
        Owned::Trade(m) => Event {
            side: letter(m.side),
            price: dollars(m.price),
            match_number: Some(m.match_number),
            printable: Some(true),
            ..order(m.order_reference, m.shares)
        },
        // A cross without shares did not take place, and its price is a filler.
        Owned::CrossTrade(m) => Event {
            shares: Some(m.shares),
            price: dollars(m.cross_price).filter(|_| m.shares > 0),
            match_number: Some(m.match_number),
            printable: Some(true),
            ..event
        },
        Owned::StockTradingAction(m) => Event { trading_state: letter(m.trading_state), ..event },
        Owned::OperationalHalt(m) => Event { trading_state: letter(m.halt_action), ..event },
        Owned::BrokenTrade(m) => Event { match_number: Some(m.match_number), ..event },
        _ => event,
    }
}
