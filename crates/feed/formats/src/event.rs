//! The contents of a message in the columns that people query: type, symbol, side, shares, price.
//!
//! ITCH has two dozen layouts and LOBSTER is text, but a table has one set of columns. An [`Event`]
//! holds the fields that most equity feeds share. A field that the message lacks is `None`. An
//! event stands beside the message and never replaces it: names of market makers, imbalances and
//! other fields are only in the bytes.

use crate::codec::{self, Codec, Format};
use crate::columns::{ColumnSink, MessageColumn, TYPE_COLUMN};
use crate::itch::{Alpha, Mpid, Stock, Symbols};

/// Decimals of [`Event::price`].
pub const PRICE_DECIMALS: u8 = 4;

/// The letters and digits of all types, to take one of them as text.
const KINDS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The text of a type that is a letter or a digit, for [`Event::kind`]; `None` for other bytes.
pub fn kind_text(character: u8) -> Option<&'static str> {
    let at = KINDS.bytes().position(|known| known == character)?;
    KINDS.get(at..=at)
}

/// The contents of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Type letter of ITCH, digit of LOBSTER (1 to 7), or the name of the type where the format is
    /// not decoded.
    pub kind: Option<&'static str>,
    /// Index of the security in the day's directory.
    pub stock_locate: Option<u16>,
    /// Nasdaq's own tracking number.
    pub tracking_number: Option<u16>,
    /// The venue's time in nanoseconds, counted from midnight or from the epoch: the codec's
    /// [`clock`](crate::codec::Codec::clock) says which.
    pub event_ns: Option<u64>,
    /// The security, named by the message itself or by an earlier message with the same locate.
    pub symbol: Option<Stock>,
    /// The order. For a replacement, the old order.
    pub order_reference: Option<u64>,
    /// The new order of a replacement.
    pub new_reference: Option<u64>,
    /// B buy, S sell.
    pub side: Option<char>,
    /// Shares entered, executed, cancelled or crossed.
    pub shares: Option<u64>,
    /// Price in 1/10,000 dollar. Codecs of feeds with other decimals scale their prices.
    pub price: Option<i64>,
    /// The match, as broken trades name it.
    pub match_number: Option<u64>,
    /// For an execution, a trade or a cross: whether it counts towards the volume. Executions
    /// inside a cross do not count, because the cross is reported as a whole.
    pub printable: Option<bool>,
    /// Whether the security trades from this message on: H halted, P paused, Q quoted only, T
    /// trading. ITCH's letters, which LOBSTER's kinds of halt are read as.
    pub trading_state: Option<char>,
    /// The participant that entered the order.
    pub attribution: Option<Mpid>,
}

/// The columns of formats that are read into events.
pub const EVENT_COLUMNS: &[MessageColumn] = &[
    TYPE_COLUMN,
    MessageColumn::unsigned("stock_locate", 16),
    MessageColumn::unsigned("tracking_number", 16),
    MessageColumn::unsigned("event_ns", 64).in_unit("ns"),
    MessageColumn::text("symbol").at_most(8).as_derived(),
    MessageColumn::unsigned("order_reference", 64),
    MessageColumn::unsigned("new_reference", 64),
    MessageColumn::text("side").at_most(1),
    MessageColumn::unsigned("shares", 64),
    MessageColumn::decimal("price", PRICE_DECIMALS).in_unit("dollar"),
    MessageColumn::unsigned("match_number", 64),
    MessageColumn::boolean("printable"),
    MessageColumn::text("trading_state").at_most(1),
    MessageColumn::text("attribution").at_most(4),
];

impl Event {
    /// Puts the fields into [`EVENT_COLUMNS`], as one row.
    pub fn put_row(&self, sink: &mut dyn ColumnSink) {
        // Text of at most eight bytes is written beside the heap.
        let mut letter = [0; 4];
        let mut put_letter = |sink: &mut dyn ColumnSink, column, value: Option<char>| {
            if let Some(value) = value {
                sink.put_text(column, value.encode_utf8(&mut letter));
            }
        };
        self.kind.inspect(|kind| sink.put_text(0, kind));
        self.stock_locate.inspect(|locate| sink.put_unsigned(1, u64::from(*locate)));
        self.tracking_number.inspect(|number| sink.put_unsigned(2, u64::from(*number)));
        self.event_ns.inspect(|ns| sink.put_unsigned(3, *ns));
        self.symbol.inspect(|symbol| put_alpha(sink, 4, symbol));
        self.order_reference.inspect(|reference| sink.put_unsigned(5, *reference));
        self.new_reference.inspect(|reference| sink.put_unsigned(6, *reference));
        put_letter(sink, 7, self.side);
        self.shares.inspect(|shares| sink.put_unsigned(8, *shares));
        self.price.inspect(|price| sink.put_decimal(9, *price));
        self.match_number.inspect(|number| sink.put_unsigned(10, *number));
        self.printable.inspect(|printable| sink.put_boolean(11, *printable));
        put_letter(sink, 12, self.trading_state);
        self.attribution.inspect(|participant| put_alpha(sink, 13, participant));
        sink.end_row();
    }

    /// The fields on which two messages of a datagram agree, and the type of the first.
    fn agreed(&self, other: &Self) -> Self {
        fn both<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.filter(|one| other.as_ref() == Some(one))
        }
        Self {
            kind: self.kind,
            stock_locate: both(self.stock_locate, other.stock_locate),
            tracking_number: both(self.tracking_number, other.tracking_number),
            event_ns: both(self.event_ns, other.event_ns),
            symbol: both(self.symbol, other.symbol),
            order_reference: both(self.order_reference, other.order_reference),
            new_reference: both(self.new_reference, other.new_reference),
            side: both(self.side, other.side),
            shares: both(self.shares, other.shares),
            price: both(self.price, other.price),
            match_number: both(self.match_number, other.match_number),
            printable: both(self.printable, other.printable),
            trading_state: both(self.trading_state, other.trading_state),
            attribution: both(self.attribution, other.attribution),
        }
    }
}

/// Puts text without its padding. Bytes that would break a line of CSV are escaped.
fn put_alpha<const N: usize>(sink: &mut dyn ColumnSink, column: usize, text: &Alpha<N>) {
    let trimmed = text.trimmed();
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"' | b'\\');
    match core::str::from_utf8(trimmed) {
        Ok(plain) if trimmed.iter().all(is_plain) => sink.put_text(column, plain),
        _ => sink.put_text(column, &text.to_string()),
    }
}

/// Reads messages in their order, and learns symbols from them.
#[derive(Clone, Debug, Default)]
pub struct Events {
    symbols: Symbols,
}

impl Events {
    /// A reader that knows no symbol yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader of messages of this security, of which none names it. See [`Symbols::of_symbol`].
    pub fn of_symbol(symbol: Option<Stock>) -> Self {
        Self { symbols: Symbols::of_symbol(symbol) }
    }

    /// The contents of the next message of the feed. The event is empty for opaque bytes, and for
    /// bytes that are no message of their format. A datagram of several messages gives the fields
    /// on which they agree, and the type of the first.
    pub fn read(&mut self, format: Format, message: &[u8]) -> Event {
        self.read_each(format, message, |_| {})
    }

    /// Like [`read`](Self::read), and hands each message of a datagram to `each` as well.
    pub fn read_each(&mut self, format: Format, message: &[u8], each: impl FnMut(&Event)) -> Event {
        let codec = codec::of(format);
        codec.map_or_else(Event::default, |codec| self.read_by(codec, message, each))
    }

    /// Names the security of an event that was read before it came here, as [`read`](Self::read)
    /// names it, and learns the name that the event states.
    pub fn name_security(&mut self, event: &mut Event) {
        let Some(locate) = event.stock_locate.map(u32::from) else {
            event.symbol = event.symbol.or(self.symbols.only_symbol());
            return;
        };
        match event.symbol {
            Some(symbol) => drop(self.symbols.learn(locate, symbol)),
            None => event.symbol = self.symbols.symbol(locate),
        }
    }

    /// Whether a reader of these securities needs the next message of the feed: one of its events
    /// has one of the securities, or has none. Opaque bytes concern everybody.
    pub fn concerns(&mut self, format: Format, message: &[u8], securities: &[Stock]) -> bool {
        codec::of(format).is_none_or(|codec| self.concerns_by(codec, message, securities))
    }

    fn concerns_by(&mut self, codec: &dyn Codec, message: &[u8], securities: &[Stock]) -> bool {
        let (mut is_read, mut is_wanted) = (false, false);
        codec.events(message, &mut self.symbols, &mut |event| {
            is_read = true;
            is_wanted |= event.symbol.is_none_or(|symbol| securities.contains(&symbol));
        });
        is_wanted || !is_read
    }

    fn read_by(
        &mut self,
        codec: &dyn Codec,
        message: &[u8],
        mut each: impl FnMut(&Event),
    ) -> Event {
        let mut common = None;
        codec.events(message, &mut self.symbols, &mut |event| {
            each(&event);
            common = Some(common.map_or(event, |before: Event| before.agreed(&event)));
        });
        common.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{ITCH, LOBSTER, MACH};
    use crate::itch::{AddOrder, Code, OrderExecuted, OrderReplace, Price4};

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
        assert_eq!(events.read(ITCH, &done.encode()).symbol, None);
        let first = events.read(ITCH, &add.encode());
        assert_eq!((first.kind, first.side, first.price), (Some("A"), Some('S'), Some(2_900_100)));
        assert_eq!((first.event_ns, first.shares), (Some(5), Some(300)));
        let later = events.read(ITCH, &done.encode());
        assert_eq!((later.symbol, later.shares, later.price), (Some(stock), Some(100), None));
        let last = events.read(ITCH, &replaced.encode());
        assert_eq!((last.order_reference, last.new_reference), (Some(7), Some(8)));
    }

    /// Packets of numbers. The number 0 concerns all securities, another number a security and its
    /// price.
    struct Numbers;

    impl Codec for Numbers {
        fn format(&self) -> Format {
            Format(200)
        }

        fn word(&self) -> &'static str {
            "numbers"
        }

        fn name(&self) -> &'static str {
            "Packets of numbers"
        }

        fn clock(&self) -> codec::TimeOrigin {
            codec::TimeOrigin::Epoch
        }

        fn type_name(&self, message: &[u8]) -> Option<&'static str> {
            (!message.is_empty()).then_some("Number")
        }

        fn events(&self, message: &[u8], _: &mut Symbols, each: &mut dyn FnMut(Event)) {
            for number in message {
                let symbol = (*number > 0).then(|| Alpha::new(&number.to_string()).unwrap());
                let price = Some(i64::from(*number));
                each(Event {
                    kind: Some("Number"),
                    symbol,
                    price,
                    side: Some('B'),
                    ..Event::default()
                });
            }
        }
    }

    #[test]
    fn a_datagram_of_several_securities_reaches_the_subscribers_of_each() {
        let wanted = [Alpha::new("7").unwrap()];
        let mut events = Events::new();
        for (packet, is_wanted) in [
            (&[7_u8][..], true),
            (&[8], false),
            (&[8, 9, 7], true),
            (&[8, 9], false),
            (&[8, 0], true),
        ] {
            assert_eq!(events.concerns_by(&Numbers, packet, &wanted), is_wanted, "{packet:?}");
        }
        // Bytes that nobody can read may concern anybody.
        assert!(events.concerns_by(&Numbers, b"", &wanted));
        assert!(events.concerns(Format::OPAQUE, b"any", &wanted));
    }

    #[test]
    fn a_datagram_of_several_messages_reads_as_what_they_have_in_common() {
        let mut all = Vec::new();
        let event = Events::new().read_by(&Numbers, &[7, 8], |event| all.push(event.price));
        assert_eq!((event.kind, event.side), (Some("Number"), Some('B')));
        assert_eq!((event.symbol, event.price), (None, None));
        assert_eq!(all, [Some(7), Some(8)]);
        let of_one = Events::new().read_by(&Numbers, &[7, 7], |_| {});
        assert_eq!((of_one.symbol, of_one.price), (Alpha::new("7"), Some(7)));
    }

    fn done_locate() -> OrderReplace {
        OrderReplace { stock_locate: 13, ..Default::default() }
    }

    #[test]
    fn lobster_reads_and_other_bytes_say_nothing() {
        let mut events = Events::new();
        let event = events.read(LOBSTER, b"34200.004241176,1,16113575,18,5853300,-1");
        assert_eq!(event.event_ns, Some(34_200_004_241_176));
        assert_eq!((event.kind, event.side), (Some("1"), Some('S')));
        assert_eq!((event.order_reference, event.shares), (Some(16_113_575), Some(18)));
        assert_eq!(event.price, Some(5_853_300));
        for other in [&b""[..], b"Z", b"1,2", b"34200.1,1,99999999999999999999,1,1,1"] {
            for format in [ITCH, LOBSTER, MACH, Format::OPAQUE, Format(99)] {
                assert_eq!(events.read(format, other), Event::default());
            }
        }
    }

    #[test]
    fn messages_that_name_no_security_have_the_symbol_of_their_file() {
        let stock = Alpha::new("AAPL");
        let mut events = Events::of_symbol(stock);
        assert_eq!(events.read(LOBSTER, b"34200.1,1,7,18,5853300,-1").symbol, stock);
        let mut out_of_columns = Event::default();
        events.name_security(&mut out_of_columns);
        assert_eq!(out_of_columns.symbol, stock);
        // A message of a venue with numbers names its security, or its number is of none.
        let system = crate::itch::SystemEvent::default();
        assert_eq!(events.read(ITCH, &system.encode()).symbol, None);
        assert!(!events.concerns(LOBSTER, b"34200.1,1,7,18,5853300,-1", &[Stock::default()]));
    }

    #[test]
    fn values_that_lobster_fills_in_are_none() {
        let read = |line: &str| Events::new().read(LOBSTER, line.as_bytes());
        for (code, state) in [("-1", 'H'), ("0", 'Q'), ("1", 'T')] {
            let halt = read(&format!("34713.685155243,7,0,0,{code},-1"));
            let (kind, event_ns) = (Some("7"), Some(34_713_685_155_243));
            let stated = Event { kind, event_ns, trading_state: Some(state), ..Event::default() };
            assert_eq!(halt, stated);
        }
        let cross = read("34200.1,6,-1,5000,5853300,-1");
        assert_eq!((cross.shares, cross.price), (Some(5_000), Some(5_853_300)));
        assert_eq!((cross.order_reference, cross.side, cross.printable), (None, None, Some(true)));
        let hidden = read("34200.1,5,0,100,5853300,1");
        assert_eq!((hidden.order_reference, hidden.side), (None, Some('B')));
        assert_eq!((hidden.shares, hidden.price), (Some(100), Some(5_853_300)));
        let cancel = read("34200.1,2,16113575,18,5853300,1");
        assert_eq!((cancel.order_reference, cancel.printable), (Some(16_113_575), None));
    }

    #[test]
    fn values_that_itch_fills_in_are_none() {
        use crate::itch::{AddOrderMpid, CrossTrade, Mpid, StockTradingAction, Trade};
        let stock = Alpha::new("AAPL").unwrap();
        let read = |message: &[u8]| Events::new().read(ITCH, message);
        let hidden =
            Trade { side: Code(b'B'), shares: 7, stock, price: Price4(5), ..Trade::default() };
        let hidden = read(&hidden.encode());
        assert_eq!((hidden.order_reference, hidden.price), (None, Some(5)));
        // A halt and a cross that did not take place have no price.
        let halted = StockTradingAction { stock, trading_state: Code(b'H'), ..Default::default() };
        let halted = read(&halted.encode());
        assert_eq!((halted.price, halted.shares, halted.side), (None, None, None));
        assert_eq!(halted.trading_state, Some('H'));
        let cross = |shares| CrossTrade { stock, shares, ..Default::default() };
        assert_eq!(read(&cross(0).encode()).price, None);
        assert_eq!(read(&cross(1).encode()).price, Some(0));
        let of_no_security = read(&crate::itch::SystemEvent::default().encode());
        assert_eq!((of_no_security.symbol, of_no_security.price), (None, None));
        assert_eq!(read(&StockTradingAction::default().encode()).symbol, None);
        let named = |attribution| AddOrderMpid { attribution, ..AddOrderMpid::default() };
        let maker = Mpid::new("UBSS");
        assert_eq!(read(&named(maker.unwrap()).encode()).attribution, maker);
        assert_eq!(read(&named(Mpid::default()).encode()).attribution, None);
    }

    #[test]
    fn a_packet_of_cme_or_of_miax_states_its_type_alone() {
        let packet = [&[0; 12][..], &[10, 0, 0, 0, 46, 0, 1, 0, 9, 0]].concat();
        let event = Events::new().read(codec::MDP3, &packet);
        let kind = Some("MDIncrementalRefreshBook");
        assert_eq!(event, Event { kind, ..Event::default() });
        let event = Events::new().read(MACH, &[0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 1]);
        assert_eq!(event, Event { kind: Some("Heartbeat"), ..Event::default() });
    }

    #[test]
    fn what_a_cross_counts_again_is_not_printable() {
        use crate::itch::{CrossTrade, OrderExecutedWithPrice};
        let mut events = Events::new();
        let inside = |printable| OrderExecutedWithPrice {
            executed_shares: 100,
            printable: Code(printable),
            ..Default::default()
        };
        let cross = CrossTrade { shares: 300, ..Default::default() };
        let read =
            [inside(b'N').encode().to_vec(), cross.encode().into(), inside(b'Y').encode().into()]
                .map(|message| events.read(ITCH, &message));
        assert_eq!(read.map(|event| event.printable), [Some(false), Some(true), Some(true)]);
        let volume: u64 =
            read.iter().filter(|e| e.printable == Some(true)).flat_map(|e| e.shares).sum();
        assert_eq!(volume, 400);
    }
}
