//! The machine beside a plain program, which keeps every order in a list and looks at all of them.

use super::*;
use crate::itch::{
    AddOrder, AddOrderMpid, Alpha, OrderCancel, OrderDelete, OrderExecuted, OrderExecutedWithPrice,
    OrderReplace, Owned, Price4, StockDirectory, SystemEvent, Trade,
};
use evenfall_core::Prng;

/// An order of the plain program.
#[derive(Clone, Copy)]
struct PlainOrder {
    reference: u64,
    locate: u16,
    side: Option<OrderSide>,
    price: i64,
    shares: u64,
}

/// Executions and quotes by the words of the tables' definition, without any index.
#[derive(Default)]
struct PlainBooks {
    orders: Vec<PlainOrder>,
    /// Symbols of locates, the latest first.
    symbols: Vec<(u16, Stock)>,
    last: Vec<(u16, [Option<TopOfBook>; 2])>,
    trades: Vec<TradeRow>,
    quotes: Vec<QuoteRow>,
}

impl PlainBooks {
    fn take_order(&mut self, reference: u64) -> Option<PlainOrder> {
        let place = self.orders.iter().position(|order| order.reference == reference)?;
        Some(self.orders.remove(place))
    }

    fn reduce(&mut self, reference: u64, by: u64) -> Option<PlainOrder> {
        let order = self.take_order(reference)?;
        if order.shares > by {
            self.orders.push(PlainOrder { shares: order.shares - by, ..order });
        }
        Some(order)
    }

    fn add(&mut self, order: PlainOrder) {
        self.take_order(order.reference);
        self.orders.push(order);
    }

    fn symbol(&self, locate: u16) -> Option<Stock> {
        self.symbols.iter().find(|(known, _)| *known == locate).map(|(_, symbol)| *symbol)
    }

    fn top(&self, locate: u16, side: OrderSide) -> Option<TopOfBook> {
        let here = |order: &&PlainOrder| order.locate == locate && order.side == Some(side);
        let all: Vec<&PlainOrder> = self.orders.iter().filter(here).collect();
        let prices = all.iter().filter(|order| order.shares > 0).map(|order| order.price);
        let price = if side == OrderSide::Bid { prices.max() } else { prices.min() }?;
        let shares = all.iter().filter(|o| o.price == price).map(|o| o.shares).sum();
        Some(TopOfBook { price, shares })
    }

    /// One message, and whether another of its nanosecond follows.
    fn take(&mut self, message: &Owned, is_last_of_ns: bool) {
        let (locate, time_ns) = (message.stock_locate(), message.timestamp_ns());
        let add = |reference, side, price: Price4, shares: u32| PlainOrder {
            reference,
            locate,
            side: OrderSide::of(side),
            price: price.0.into(),
            shares: shares.into(),
        };
        let named = |reference: u64| (reference > 0).then_some(reference);
        let trade = TradeRow {
            time_ns,
            kind: "E",
            symbol: None,
            price: None,
            shares: 0,
            side: None,
            order_reference: None,
            match_number: None,
            printable: true,
        };
        match *message {
            Owned::StockDirectory(m) => self.symbols.insert(0, (locate, m.stock)),
            Owned::AddOrder(m) => {
                self.symbols.insert(0, (locate, m.stock));
                self.add(add(m.order_reference, m.side, m.price, m.shares));
            }
            Owned::AddOrderMpid(m) => {
                self.symbols.insert(0, (locate, m.stock));
                self.add(add(m.order_reference, m.side, m.price, m.shares));
            }
            Owned::OrderExecuted(m) => {
                let order = self.reduce(m.order_reference, m.executed_shares.into());
                self.trades.push(TradeRow {
                    symbol: self.symbol(locate),
                    price: order.map(|order| order.price),
                    side: order.and_then(|order| order.side),
                    shares: m.executed_shares.into(),
                    order_reference: named(m.order_reference),
                    match_number: Some(m.match_number),
                    ..trade
                });
            }
            Owned::OrderExecutedWithPrice(m) => {
                let order = self.reduce(m.order_reference, m.executed_shares.into());
                self.trades.push(TradeRow {
                    kind: "C",
                    symbol: self.symbol(locate),
                    price: Some(m.execution_price.0.into()),
                    side: order.and_then(|order| order.side),
                    shares: m.executed_shares.into(),
                    order_reference: named(m.order_reference),
                    match_number: Some(m.match_number),
                    printable: m.printable == Code(b'Y'),
                    ..trade
                });
            }
            Owned::OrderCancel(m) => {
                self.reduce(m.order_reference, m.cancelled_shares.into());
            }
            Owned::OrderDelete(m) => drop(self.take_order(m.order_reference)),
            Owned::OrderReplace(m) => {
                let side = self.take_order(m.original_reference).and_then(|order| order.side);
                self.add(PlainOrder {
                    side,
                    ..add(m.new_reference, Code(b' '), m.price, m.shares)
                });
            }
            Owned::Trade(m) => {
                self.symbols.insert(0, (locate, m.stock));
                self.trades.push(TradeRow {
                    kind: "P",
                    symbol: self.symbol(locate),
                    price: Some(m.price.0.into()),
                    side: OrderSide::of(m.side),
                    shares: m.shares.into(),
                    order_reference: named(m.order_reference),
                    match_number: Some(m.match_number),
                    ..trade
                });
            }
            _ => {}
        }
        if is_last_of_ns {
            self.quote_all(time_ns);
        }
    }

    fn quote_all(&mut self, time_ns: u64) {
        for locate in 0..LOCATES {
            let tops = [OrderSide::Bid, OrderSide::Ask].map(|side| self.top(locate, side));
            let symbol = self.symbol(locate);
            let last = self.last.iter_mut().find(|(known, _)| *known == locate);
            let before = last.as_ref().map_or([None, None], |(_, tops)| *tops);
            if before == tops {
                continue;
            }
            match last {
                Some(last) => last.1 = tops,
                None => self.last.push((locate, tops)),
            }
            let [bid, ask] = tops;
            self.quotes.push(QuoteRow { time_ns, symbol, bid, ask });
        }
    }
}

const LOCATES: u16 = 4;

fn stock(locate: u16) -> Stock {
    Alpha::new(["ZERO", "ONE", "TWO", "THREE"][usize::from(locate)]).unwrap()
}

/// The fields that messages about orders have.
#[derive(Clone, Copy, Default)]
struct OrderFields {
    stock_locate: u16,
    timestamp_ns: u64,
    order_reference: u64,
    new_reference: u64,
    match_number: u64,
    price: Price4,
    shares: u32,
    side: Code,
}

/// A message about few orders, prices and securities, so that everything meets everything.
fn random_message(prng: &mut Prng, timestamp_ns: u64) -> Owned {
    let mut below = |limit: u64| prng.below(limit);
    let fields = OrderFields {
        stock_locate: below(LOCATES.into()) as u16,
        timestamp_ns,
        order_reference: below(24),
        new_reference: below(24),
        match_number: below(1 << 40),
        price: Price4(100 + below(6) as u32),
        shares: below(5) as u32 * 100,
        side: Code(*b"BSBSBS ".get(below(7) as usize).unwrap()),
    };
    message_of(b"AAFECXDUP"[below(9) as usize], fields)
}

/// The message of this type.
fn message_of(letter: u8, fields: OrderFields) -> Owned {
    let OrderFields { stock_locate, timestamp_ns, order_reference, price, shares, side, .. } =
        fields;
    let (match_number, new_reference) = (fields.match_number, fields.new_reference);
    let (stock, tracking_number) = (stock(stock_locate), 0);
    match letter {
        b'A' => Owned::AddOrder(AddOrder {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
            side,
            shares,
            stock,
            price,
        }),
        b'F' => Owned::AddOrderMpid(AddOrderMpid {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
            side,
            shares,
            stock,
            price,
            ..Default::default()
        }),
        b'E' => Owned::OrderExecuted(OrderExecuted {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
            executed_shares: shares,
            match_number,
        }),
        b'C' => Owned::OrderExecutedWithPrice(OrderExecutedWithPrice {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
            executed_shares: shares,
            match_number,
            printable: Code(if shares > 200 { b'Y' } else { b'N' }),
            execution_price: price,
        }),
        b'X' => Owned::OrderCancel(OrderCancel {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
            cancelled_shares: shares,
        }),
        b'D' => Owned::OrderDelete(OrderDelete {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
        }),
        b'U' => Owned::OrderReplace(OrderReplace {
            stock_locate,
            tracking_number,
            timestamp_ns,
            original_reference: order_reference,
            new_reference,
            shares,
            price,
        }),
        _ => Owned::Trade(Trade {
            stock_locate,
            tracking_number,
            timestamp_ns,
            order_reference,
            side,
            shares,
            stock,
            price,
            match_number,
        }),
    }
}

fn encoded(message: &Owned) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes);
    bytes
}

/// The rows of a whole stream.
fn rows_of(format: Format, messages: &[Vec<u8>]) -> (Vec<TradeRow>, Vec<QuoteRow>) {
    let mut books = Books::new(BooksConfig::default());
    let (mut trades, mut quotes) = (Vec::new(), Vec::new());
    let mut each = |row| match row {
        BookRow::Trade(trade) => trades.push(trade),
        BookRow::Quote(quote) => quotes.push(quote),
    };
    for message in messages {
        books.take(format, message, &mut each);
    }
    books.end_nanosecond(&mut each);
    (trades, quotes)
}

/// Quotes of one nanosecond have no order among securities.
fn sorted(mut quotes: Vec<QuoteRow>) -> Vec<QuoteRow> {
    quotes.sort_by_key(|quote| (quote.time_ns, quote.symbol));
    quotes
}

/// Messages of a seed. Half of them share their nanosecond with the message before.
fn random_session(seed: u64) -> Vec<Owned> {
    let mut prng = Prng::new(seed);
    let mut time_ns = 0;
    let next = |_| {
        time_ns += prng.below(2);
        random_message(&mut prng, time_ns)
    };
    (0..400).map(next).collect()
}

fn plain_rows(messages: &[Owned]) -> (Vec<TradeRow>, Vec<QuoteRow>) {
    let mut plain = PlainBooks::default();
    for (place, message) in messages.iter().enumerate() {
        let next = messages.get(place + 1).map(Owned::timestamp_ns);
        plain.take(message, next != Some(message.timestamp_ns()));
    }
    // A security may get its symbol within the nanosecond of its first quote.
    (plain.trades, sorted(plain.quotes))
}

#[test]
fn trades_and_quotes_are_those_of_a_plain_program() {
    for seed in 0..60 {
        let messages = random_session(seed);
        let bytes: Vec<Vec<u8>> = messages.iter().map(encoded).collect();
        let (trades, quotes) = rows_of(ITCH, &bytes);
        let plain = plain_rows(&messages);
        assert!(plain.0.len() > 50, "the test has to trade");
        assert_eq!((trades, sorted(quotes)), plain, "seed {seed}");
    }
}

/// The rows that the ticks of a stream make, each with the place of its message.
fn folded(
    messages: &[Owned],
    keep: impl Fn(QuoteTick) -> QuoteTick,
) -> (Vec<TradeRow>, Vec<QuoteRow>) {
    let mut books = Books::new(BooksConfig::default());
    let (mut trades, mut quotes, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let mut folder = TickFolder::default();
    let mut give = |place: usize, quote| {
        places.push(place);
        quotes.push(quote);
    };
    for (place, message) in messages.iter().enumerate() {
        books.take_ticks(ITCH, &encoded(message), &mut |row| match row {
            TickedRow::Trade(trade) => trades.push(trade),
            TickedRow::Tick(tick) => folder.take(place, keep(tick), &mut give),
        });
    }
    folder.end_nanosecond(&mut give);
    assert!(places.is_sorted(), "quotes are in the order of their messages");
    (trades, sorted(quotes))
}

#[test]
fn folded_ticks_are_the_quotes_of_a_plain_program() {
    for seed in 0..60 {
        let messages = random_session(seed);
        assert_eq!(folded(&messages, |tick| tick), plain_rows(&messages), "seed {seed}");
    }
    // The mutants: every tick ends its nanosecond, and what is undone is given.
    let messages = random_session(1);
    let ends = |tick| QuoteTick { begins_nanosecond: true, ..tick };
    assert_ne!(folded(&messages, ends), plain_rows(&messages));
    let undone = |tick| QuoteTick { is_undone: false, ..tick };
    assert_ne!(folded(&messages, undone), plain_rows(&messages));
}

#[test]
fn the_plain_program_refuses_quotes_from_the_middle_of_a_nanosecond() {
    let messages = random_session(1);
    let mut books = Books::new(BooksConfig::default());
    let mut quotes = Vec::new();
    let mut each = |row| {
        if let BookRow::Quote(quote) = row {
            quotes.push(quote);
        }
    };
    for message in &messages {
        books.take(ITCH, &encoded(message), &mut each);
        // The mutant: each message ends its nanosecond.
        books.end_nanosecond(&mut each);
    }
    assert_ne!(sorted(quotes), plain_rows(&messages).1);
}

#[test]
fn the_plain_program_refuses_a_trade_with_the_price_of_another_order() {
    let messages = random_session(1);
    let mut books = Books::new(BooksConfig::default());
    let (mut trades, mut last_price) = (Vec::new(), None);
    for message in &messages {
        books.take(ITCH, &encoded(message), &mut |row| {
            if let BookRow::Trade(trade) = row {
                // The mutant: an execution has the price of the order that came last.
                let price = if trade.kind == "E" { last_price } else { trade.price };
                trades.push(TradeRow { price, ..trade });
            }
        });
        if let Owned::AddOrder(add) = message {
            last_price = Some(add.price.0.into());
        }
    }
    assert_ne!(trades, plain_rows(&messages).0);
}

/// Fields of a message of security 1 about 100 shares.
fn of_order(order_reference: u64, timestamp_ns: u64) -> OrderFields {
    let (stock_locate, shares, match_number) = (1, 100, 9);
    OrderFields {
        stock_locate,
        timestamp_ns,
        order_reference,
        shares,
        match_number,
        ..OrderFields::default()
    }
}

fn add(reference: u64, side: u8, price: u32, time_ns: u64) -> Owned {
    let (side, price) = (Code(side), Price4(price));
    message_of(b'A', OrderFields { side, price, ..of_order(reference, time_ns) })
}

fn replace(old: u64, new_reference: u64, price: u32, time_ns: u64) -> Owned {
    let price = Price4(price);
    message_of(b'U', OrderFields { new_reference, price, ..of_order(old, time_ns) })
}

fn execute(reference: u64, time_ns: u64) -> Owned {
    message_of(b'E', of_order(reference, time_ns))
}

fn delete(reference: u64, time_ns: u64) -> Owned {
    message_of(b'D', of_order(reference, time_ns))
}

fn rows(messages: &[Owned]) -> (Vec<TradeRow>, Vec<QuoteRow>) {
    rows_of(ITCH, &messages.iter().map(encoded).collect::<Vec<_>>())
}

fn prices(quotes: &[QuoteRow]) -> Vec<(u64, Option<i64>, Option<i64>)> {
    let price = |top: Option<TopOfBook>| top.map(|top| top.price);
    quotes.iter().map(|q| (q.time_ns, price(q.bid), price(q.ask))).collect()
}

#[test]
fn what_is_undone_within_a_nanosecond_leaves_no_quote() {
    let (trades, quotes) = rows(&[
        add(1, b'B', 1000, 1),
        add(2, b'B', 1001, 2),
        delete(2, 2),
        add(3, b'S', 1003, 3),
        add(4, b'S', 1002, 3),
        execute(1, 4),
    ]);
    let expected = [(1, Some(1000), None), (3, Some(1000), Some(1002)), (4, None, Some(1002))];
    assert_eq!(prices(&quotes), expected);
    // After an execution the quote has the trade's time.
    assert_eq!((trades[0].time_ns, trades[0].price), (4, Some(1000)));
}

#[test]
fn an_execution_has_the_price_and_the_side_of_the_order_as_it_was_replaced_last() {
    let (trades, quotes) = rows(&[
        add(1, b'S', 1000, 1),
        replace(1, 2, 1005, 2),
        replace(2, 3, 1007, 3),
        execute(3, 4),
    ]);
    let trade = trades[0];
    assert_eq!((trade.price, trade.side), (Some(1007), Some(OrderSide::Ask)));
    assert_eq!((trade.order_reference, trade.match_number), (Some(3), Some(9)));
    assert_eq!(prices(&quotes)[2..], [(3, None, Some(1007)), (4, None, None)]);
    // Neither of the earlier numbers is an order any more.
    assert_eq!(
        rows(&[add(1, b'S', 1000, 1), replace(1, 2, 1005, 2), execute(1, 3)]).0[0].price,
        None
    );
}

#[test]
fn orders_that_were_never_added_have_no_price_and_their_replacements_no_side() {
    let (trades, quotes) = rows(&[execute(1, 1), replace(5, 6, 1005, 2), execute(6, 3)]);
    assert_eq!((trades[0].price, trades[0].side), (None, None));
    assert_eq!((trades[1].price, trades[1].side), (Some(1005), None));
    assert_eq!(quotes, [], "an order without a side is in no book");
    assert_eq!(rows(&[execute(0, 1)]).0[0].order_reference, None);
}

#[test]
fn lobster_has_its_own_prices_and_one_book() {
    let lines = [
        "1.000000001,1,7,100,5853300,1",
        "1.000000002,1,8,50,5853300,1,UBSS",
        "1.000000003,2,7,40,5853300,1",
        "1.000000004,4,7,60,5853300,1",
        "1.000000005,4,99,10,5853200,-1",
        "1.000000006,5,0,30,5853250,-1",
        "1.000000007,7,0,0,-1,-1",
        "1.000000008,6,-1,500,5853000,-1",
        "1.000000009,3,8,50,5853300,1",
    ];
    let lines: Vec<Vec<u8>> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
    let (trades, quotes) = rows_of(LOBSTER, &lines);
    let told: Vec<_> =
        trades.iter().map(|t| (t.kind, t.price, t.side, t.order_reference)).collect();
    let (bid, ask) = (Some(OrderSide::Bid), Some(OrderSide::Ask));
    let expected = [
        ("4", Some(5_853_300), bid, Some(7)),
        ("4", Some(5_853_200), ask, Some(99)),
        ("5", Some(5_853_250), ask, None),
    ];
    assert_eq!(told, expected);
    let sizes: Vec<_> = quotes.iter().map(|quote| quote.bid.map(|bid| bid.shares)).collect();
    assert_eq!(sizes, [Some(100), Some(150), Some(110), Some(50), None]);
    assert!(trades.iter().all(|trade| trade.symbol.is_none()));
}

#[test]
fn books_of_one_symbol_name_it_where_the_messages_do_not() {
    let stock = Alpha::new("AAPL");
    let mut books = Books::of_symbol(BooksConfig::default(), stock);
    assert_eq!((books.locate(stock), books.locate(None)), (None, None), "no message has come");
    let mut named = Vec::new();
    let mut each = |row| match row {
        TickedRow::Trade(trade) => named.push(trade.symbol),
        TickedRow::Tick(tick) => named.push(tick.quote.symbol),
    };
    for line in [&b"1.000000001,1,7,100,5853300,1"[..], b"1.000000002,5,0,30,5853250,-1"] {
        books.take_ticks(LOBSTER, line, &mut each);
    }
    assert_eq!(named, [stock, stock]);
    assert_eq!((books.locate(stock), books.locate(None)), (Some(0), Some(0)));
    assert_eq!(books.locate(Alpha::new("MSFT")), None);
    // Number 0 of ITCH is no security, and a number without a name stays without one.
    let mut unnamed = Vec::new();
    let execute = encoded(&execute(5, 1));
    books.take(ITCH, &execute, &mut |row| unnamed.push(row));
    assert!(matches!(&unnamed[..], [.., BookRow::Trade(TradeRow { symbol: None, .. })]));
}

#[test]
fn a_new_day_or_another_security_begins_with_an_empty_book() {
    let mut books = Books::new(BooksConfig::default());
    let mut quotes = Vec::new();
    let mut each = |row| quotes.push(row);
    books.take(ITCH, &encoded(&add(1, b'B', 1000, 5)), &mut each);
    let other = Alpha::new("OTHER").unwrap();
    let directory =
        StockDirectory { stock_locate: 1, stock: other, timestamp_ns: 6, ..Default::default() };
    books.take(ITCH, &directory.encode(), &mut each);
    assert_eq!(books.levels(1, OrderSide::Bid).count(), 0);
    // The order of the security before is in no book, and its end changes none.
    books.take(ITCH, &encoded(&delete(1, 7)), &mut each);
    let start = SystemEvent { event_code: Code(b'O'), timestamp_ns: 1, ..Default::default() };
    books.take(ITCH, &encoded(&add(2, b'B', 1000, 8)), &mut each);
    assert_eq!((books.live_orders(), books.levels(1, OrderSide::Bid).count()), (1, 1));
    books.take(ITCH, &start.encode(), &mut each);
    assert_eq!((books.live_orders(), books.levels(1, OrderSide::Bid).count()), (0, 0));
    assert_eq!(books.locate(Some(other)), None, "the add named the first security again");
}

#[test]
fn orders_beyond_the_limit_are_counted_and_in_no_book() {
    let mut books = Books::new(BooksConfig { live_orders_max: 2 });
    let mut trades = Vec::new();
    let mut each = |row| {
        if let BookRow::Trade(trade) = row {
            trades.push(trade);
        }
    };
    let messages = [
        add(1, b'B', 1000, 1),
        add(2, b'B', 1001, 2),
        add(3, b'B', 1002, 3),
        replace(2, 4, 1003, 4),
        execute(3, 5),
        execute(4, 6),
    ];
    for message in &messages {
        books.take(ITCH, &encoded(message), &mut each);
    }
    assert_eq!((trades[0].price, trades[1].price), (None, Some(1003)));
    assert_eq!(books.counts(), BooksCounts { over_limit: 1, unknown_orders: 1 });
    let levels: Vec<_> = books.levels(1, OrderSide::Bid).collect();
    assert_eq!(levels, [PriceLevel { price: 1000, shares: 100, orders: 1 }]);
}
