//! Order books, rebuilt from ITCH or LOBSTER, as two tables: trades, and the best bid and ask.
//!
//! **Trades.** An execution, hidden ones too, is a trade. ITCH does not say the price and the side
//! of an execution, so that both come from the order that was executed. An order that was never
//! added leaves both unknown. An order that replaced an order which was never added has a price,
//! and no side.
//!
//! **Quotes.** Matching one incoming order takes several messages of the same nanosecond, and the
//! books between them never existed for anybody. A quote is therefore the best bid and ask at the
//! **end** of a nanosecond, and is given only when it differs from the quote before:
//!
//! ```text
//!  ns      1            2                    3
//!          add 10.00    add 10.01 delete it  execute 10.00
//!  quotes  10.00        (none: undone)       empty          with the time of the execution
//! ```
//!
//! The end of a nanosecond is known by the next message with another time, or when the caller says
//! that nothing follows ([`Books::end_nanosecond`]). Books start empty, at the first message and at
//! each start of messages of ITCH, because venues number orders anew each day.
//!
//! **Ticks.** A file that grows with its messages cannot wait for the end of a nanosecond, because
//! a reader may come in the middle of one. It keeps a [`QuoteTick`] for each message that changes a
//! best price ([`Books::take_ticks`]), and [`TickFolder`] makes the quotes out of them. The ticks
//! of a message depend on the messages up to it alone, so that a writer which begins again after a
//! crash makes the same ones.
//!
//! Venues that state price levels in the place of orders have [`levels`].

use crate::codec::{Format, ITCH, LOBSTER};
use crate::itch::{Code, Stock, Symbols, View};
use crate::lobster::LobsterLine;
use core::hash::{BuildHasherDefault, Hasher};
use std::collections::BTreeMap;

pub mod levels;
#[cfg(test)]
mod tests;

/// The limit of [`Books`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BooksConfig {
    /// Orders that are followed at a time. Nasdaq has up to two million at the open; an order takes
    /// some 50 bytes. Orders beyond the limit are in no book, and their executions have no price.
    pub live_orders_max: usize,
}

impl Default for BooksConfig {
    fn default() -> Self {
        Self { live_orders_max: 4 << 20 }
    }
}

/// A side of a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderSide {
    /// Orders that buy.
    Bid,
    /// Orders that sell.
    Ask,
}

impl OrderSide {
    /// The side of ITCH's letter.
    fn of(code: Code) -> Option<Self> {
        match code.0 {
            b'B' => Some(Self::Bid),
            b'S' => Some(Self::Ask),
            _ => None,
        }
    }

    /// The letter of tables: B or S.
    pub fn letter(self) -> char {
        match self {
            Self::Bid => 'B',
            Self::Ask => 'S',
        }
    }
}

/// The orders of one price and side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceLevel {
    /// Price in 1/10,000 dollar; of a book of [`levels`], in units of its codec's last decimal.
    pub price: i64,
    /// Shares of all orders.
    pub shares: u64,
    /// Number of orders.
    pub orders: u64,
}

/// The kinds of executions, of ITCH and of LOBSTER. See [`TradeRow::kind`].
pub const TRADE_KINDS: [&str; 5] = ["E", "C", "P", "4", "5"];

/// An execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TradeRow {
    /// The message's own time in nanoseconds.
    pub time_ns: u64,
    /// Letter of ITCH (E, C, P) or digit of LOBSTER (4, 5).
    pub kind: &'static str,
    /// The security.
    pub symbol: Option<Stock>,
    /// Price in 1/10,000 dollar.
    pub price: Option<i64>,
    /// Shares executed.
    pub shares: u64,
    /// Side of the order that rested in the book.
    pub side: Option<OrderSide>,
    /// The order that rested in the book.
    pub order_reference: Option<u64>,
    /// The match, as broken trades name it.
    pub match_number: Option<u64>,
    /// Whether the trade counts towards the volume.
    pub printable: bool,
}

/// The best prices at the end of a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuoteRow {
    /// The nanosecond.
    pub time_ns: u64,
    /// The security.
    pub symbol: Option<Stock>,
    /// The highest price at which somebody buys, and all shares at it.
    pub bid: Option<TopOfBook>,
    /// The lowest price at which somebody sells, and all shares at it.
    pub ask: Option<TopOfBook>,
}

/// Price and size of the best level of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopOfBook {
    /// Price in the unit of [`PriceLevel::price`].
    pub price: i64,
    /// Shares of all orders of that price.
    pub shares: u64,
}

/// A row of one of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookRow {
    /// Of the table of trades.
    Trade(TradeRow),
    /// Of the table of quotes.
    Quote(QuoteRow),
}

/// The best prices of a security after a message that changed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuoteTick {
    /// The quote, if no later message of its nanosecond changes the security's best prices.
    pub quote: QuoteRow,
    /// The venue's number of the security.
    pub locate: u16,
    /// Whether the prices are again those at the end of the nanosecond before. The tick then makes
    /// no quote.
    pub is_undone: bool,
    /// Whether this is the first tick of its nanosecond.
    pub begins_nanosecond: bool,
}

/// A trade, or a change of best prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickedRow {
    /// An execution.
    Trade(TradeRow),
    /// A change of the best prices.
    Tick(QuoteTick),
}

/// Makes quotes out of ticks: of each nanosecond the last tick of each security, in the order of
/// the ticks, without those that are undone. `P` is what the caller keeps beside a tick.
#[derive(Clone, Debug)]
pub struct TickFolder<P> {
    /// The ticks of the present nanosecond, by security: the place in the order, and the tick.
    /// There are at most as many as securities.
    ticks: BTreeMap<u16, (u64, P, QuoteTick)>,
    order: u64,
}

impl<P: Copy> Default for TickFolder<P> {
    fn default() -> Self {
        Self { ticks: BTreeMap::new(), order: 0 }
    }
}

impl<P: Copy> TickFolder<P> {
    /// Takes the next tick. The quotes of the nanosecond before come first.
    pub fn take(&mut self, place: P, tick: QuoteTick, each: &mut impl FnMut(P, QuoteRow)) {
        if tick.begins_nanosecond {
            self.end_nanosecond(each);
        }
        self.order += 1;
        self.ticks.insert(tick.locate, (self.order, place, tick));
    }

    /// Gives the quotes of the present nanosecond, because no further tick belongs to it.
    pub fn end_nanosecond(&mut self, each: &mut impl FnMut(P, QuoteRow)) {
        // Nearly all nanoseconds have ticks of one security.
        if self.ticks.len() == 1
            && let Some((_, (_, place, tick))) = self.ticks.pop_first()
        {
            if !tick.is_undone {
                each(place, tick.quote);
            }
            return;
        }
        let mut ticks: Vec<_> = core::mem::take(&mut self.ticks).into_values().collect();
        ticks.sort_unstable_by_key(|(order, ..)| *order);
        for (_, place, tick) in ticks.into_iter().filter(|(.., tick)| !tick.is_undone) {
            each(place, tick.quote);
        }
    }
}

/// What [`Books`] counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BooksCounts {
    /// Orders that were not followed, because the limit was reached.
    pub over_limit: u64,
    /// Executions, cancels, deletes and replaces of orders that were never added.
    pub unknown_orders: u64,
}

/// An order in the books.
#[derive(Clone, Copy, Debug)]
struct LiveOrder {
    price: i64,
    shares: u64,
    locate: u16,
    /// `None` for an order that replaced an unknown one; such an order is in no book.
    side: Option<OrderSide>,
    /// The book's generation when the order came.
    generation: u32,
}

/// Multiplies a venue's number, because the table takes the high and the low bits of a hash. The
/// numbers come from a venue and not from an attacker.
#[derive(Clone, Copy, Debug, Default)]
struct ReferenceHasher(u64);

impl Hasher for ReferenceHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The golden ratio, as in Fibonacci hashing.
        let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// Orders by the venue's number. A tree of millions of orders would take a miss of the cache for
/// each of its floors, and nothing here iterates over the table.
#[allow(clippy::disallowed_types, reason = "orders are only looked up by their numbers")]
type LiveOrders = std::collections::HashMap<u64, LiveOrder, BuildHasherDefault<ReferenceHasher>>;

/// One side of a book: levels with the best one last, because most changes are near the best
/// price, and then few levels move.
#[derive(Clone, Debug, Default)]
struct BookSide {
    levels: Vec<PriceLevel>,
}

impl BookSide {
    /// The place of a price, or where it would be. `is_better` orders the levels.
    fn place(&self, side: OrderSide, price: i64) -> Result<usize, usize> {
        self.levels.binary_search_by(|level| match side {
            OrderSide::Bid => level.price.cmp(&price),
            OrderSide::Ask => price.cmp(&level.price),
        })
    }

    fn add(&mut self, side: OrderSide, price: i64, shares: u64) {
        match self.place(side, price) {
            Ok(place) => {
                let level = &mut self.levels[place];
                level.shares += shares;
                level.orders += 1;
            }
            Err(place) => self.levels.insert(place, PriceLevel { price, shares, orders: 1 }),
        }
    }

    /// Takes shares of an order away, and the order too when it `is_gone`.
    fn reduce(&mut self, side: OrderSide, price: i64, shares: u64, is_gone: bool) {
        let Ok(place) = self.place(side, price) else { return };
        let level = &mut self.levels[place];
        level.shares = level.shares.saturating_sub(shares);
        level.orders -= u64::from(is_gone);
        if level.orders == 0 {
            self.levels.remove(place);
        }
    }

    fn top(&self) -> Option<TopOfBook> {
        // Orders of no shares stand in a level and offer nothing.
        let best = self.levels.iter().rev().find(|level| level.shares > 0)?;
        Some(TopOfBook { price: best.price, shares: best.shares })
    }
}

/// The book of one security.
#[derive(Clone, Debug, Default)]
struct OrderBook {
    bids: BookSide,
    asks: BookSide,
    /// The quote that was given last.
    last: (Option<TopOfBook>, Option<TopOfBook>),
    /// The tick that was given last.
    ticked: (Option<TopOfBook>, Option<TopOfBook>),
    /// Whether the book is in the list of changed books.
    is_changed: bool,
    /// Grows when the venue gives the book's number to another security.
    generation: u32,
}

impl OrderBook {
    fn side_mut(&mut self, side: OrderSide) -> &mut BookSide {
        match side {
            OrderSide::Bid => &mut self.bids,
            OrderSide::Ask => &mut self.asks,
        }
    }
}

/// The books of all securities of a stream.
#[derive(Clone, Debug, Default)]
pub struct Books {
    config: BooksConfig,
    orders: LiveOrders,
    /// By the venue's number of the security; LOBSTER's only security is 0.
    books: Vec<OrderBook>,
    symbols: Symbols,
    /// The present nanosecond.
    now_ns: u64,
    /// Books that changed in the present nanosecond, in the order of the changes.
    changed: Vec<u16>,
    /// Books that the present message changed: one, or two when an order moves between books.
    touched: Vec<u16>,
    /// Whether a tick of the present nanosecond was given.
    has_ticked: bool,
    counts: BooksCounts,
}

/// What a message does to its order.
#[derive(Clone, Copy, Debug)]
struct OrderChange {
    locate: u16,
    reference: u64,
    shares: u64,
}

impl Books {
    /// Empty books.
    pub fn new(config: BooksConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Empty books of messages of this security, of which none names it. See
    /// [`Symbols::of_symbol`].
    pub fn of_symbol(config: BooksConfig, symbol: Option<Stock>) -> Self {
        Self { symbols: Symbols::of_symbol(symbol), ..Self::new(config) }
    }

    /// Counts of what could not be followed.
    pub fn counts(&self) -> BooksCounts {
        self.counts
    }

    /// Orders that are followed at present.
    pub fn live_orders(&self) -> usize {
        self.orders.len()
    }

    /// The nanosecond of the last message that was read, as messages state their times.
    pub fn present_ns(&self) -> u64 {
        self.now_ns
    }

    /// The best levels of a side of a book, the best one first.
    pub fn levels(&self, locate: u16, side: OrderSide) -> impl Iterator<Item = PriceLevel> {
        let book = self.books.get(usize::from(locate));
        let levels = book.map(|book| match side {
            OrderSide::Bid => &book.bids.levels,
            OrderSide::Ask => &book.asks.levels,
        });
        levels.into_iter().flatten().rev().copied()
    }

    /// The venue's number of a symbol, for [`levels`](Self::levels). `None` stands for the only
    /// security of messages that name none, such as LOBSTER's, and so does its symbol.
    pub fn locate(&self, symbol: Option<Stock>) -> Option<u16> {
        match symbol.filter(|symbol| self.symbols.only_symbol() != Some(*symbol)) {
            Some(symbol) => self.symbols.locate(symbol).and_then(|at| u16::try_from(at).ok()),
            None => (self.symbols.is_empty() && !self.books.is_empty()).then_some(0),
        }
    }

    /// The symbol of a book. Number 0 is LOBSTER's only security, and no security of ITCH.
    fn symbol_of(&self, locate: u16) -> Option<Stock> {
        let known = self.symbols.symbol(locate.into());
        known.or(self.symbols.only_symbol().filter(|_| locate == 0))
    }

    /// The time that a message states, in nanoseconds since the origin of its format's clock.
    /// `None` for messages that change no book.
    pub fn stated_ns(format: Format, message: &[u8]) -> Option<u64> {
        match format {
            ITCH => View::decode(message).ok().map(|view| view.timestamp_ns()),
            LOBSTER => LobsterLine::parse(message).map(|line| line.time_ns),
            _ => None,
        }
    }

    /// Takes the next message of the stream. Rows of the nanosecond before come first. Messages of
    /// other formats, and bytes that are no message, change nothing. Returns whether the message
    /// was read, and so had a time that may have ended the nanosecond before.
    #[inline]
    pub fn take(&mut self, format: Format, message: &[u8], each: &mut impl FnMut(BookRow)) -> bool {
        match format {
            ITCH => {
                let Ok(view) = View::decode(message) else { return false };
                self.take_itch(&view, each);
            }
            LOBSTER => {
                let Some(line) = LobsterLine::parse(message) else { return false };
                self.take_lobster(&line, each);
            }
            _ => return false,
        }
        true
    }

    /// As [`take`](Self::take), with a tick for each change of best prices in place of the quotes.
    /// The row of a message is given with the message.
    #[inline]
    pub fn take_ticks(
        &mut self,
        format: Format,
        message: &[u8],
        each: &mut impl FnMut(TickedRow),
    ) -> bool {
        let mut trade = |row| match row {
            BookRow::Trade(row) => each(TickedRow::Trade(row)),
            // The ticks of the quote were given with their messages.
            BookRow::Quote(_) => {}
        };
        if !self.take(format, message, &mut trade) {
            return false;
        }
        for at in 0..self.touched.len() {
            let locate = self.touched[at];
            let Some(book) = self.books.get_mut(usize::from(locate)) else { continue };
            let (bid, ask) = (book.bids.top(), book.asks.top());
            if book.ticked == (bid, ask) {
                continue;
            }
            book.ticked = (bid, ask);
            let is_undone = book.last == (bid, ask);
            let symbol = self.symbol_of(locate);
            let quote = QuoteRow { time_ns: self.now_ns, symbol, bid, ask };
            let begins_nanosecond = !core::mem::replace(&mut self.has_ticked, true);
            each(TickedRow::Tick(QuoteTick { quote, locate, is_undone, begins_nanosecond }));
        }
        true
    }

    /// Gives the quotes of the present nanosecond, because no further message has its time.
    pub fn end_nanosecond(&mut self, each: &mut impl FnMut(BookRow)) {
        let mut changed = core::mem::take(&mut self.changed);
        for locate in changed.drain(..) {
            let book = &mut self.books[usize::from(locate)];
            book.is_changed = false;
            let (bid, ask) = (book.bids.top(), book.asks.top());
            if book.last != (bid, ask) {
                book.last = (bid, ask);
                let symbol = self.symbol_of(locate);
                each(BookRow::Quote(QuoteRow { time_ns: self.now_ns, symbol, bid, ask }));
            }
        }
        // The list keeps its room.
        self.changed = changed;
    }

    fn begin(&mut self, time_ns: u64, each: &mut impl FnMut(BookRow)) {
        self.touched.clear();
        if time_ns != self.now_ns {
            self.end_nanosecond(each);
            self.now_ns = time_ns;
            self.has_ticked = false;
        }
    }

    fn take_itch(&mut self, view: &View<'_>, each: &mut impl FnMut(BookRow)) {
        self.begin(view.timestamp_ns(), each);
        let locate = view.stock_locate();
        let before = self.symbols.symbol(locate.into());
        // A locate number that goes to another security must not show orders of the earlier one.
        if self.symbols.observe(view) && before.is_some() {
            self.begin_security(locate);
        }
        match view {
            View::SystemEvent(m) if m.event_code() == Code(b'O') => self.begin_day(),
            View::AddOrder(m) => {
                let (price, shares) = (m.price().0.into(), m.shares().into());
                self.add(m.order_reference(), locate, OrderSide::of(m.side()), price, shares);
            }
            View::AddOrderMpid(m) => {
                let (price, shares) = (m.price().0.into(), m.shares().into());
                self.add(m.order_reference(), locate, OrderSide::of(m.side()), price, shares);
            }
            View::OrderExecuted(m) => {
                let shares = m.executed_shares().into();
                let order = self.reduce(m.order_reference(), shares);
                let trade =
                    self.trade("E", OrderChange { locate, reference: m.order_reference(), shares });
                // The message has no price of its own: the trade is at the price of the order that
                // rested.
                let (price, side) = (order.map(|o| o.price), order.and_then(|o| o.side));
                let match_number = Some(m.match_number());
                each(BookRow::Trade(TradeRow { price, side, match_number, ..trade }));
            }
            View::OrderExecutedWithPrice(m) => {
                let shares = m.executed_shares().into();
                let order = self.reduce(m.order_reference(), shares);
                let trade =
                    self.trade("C", OrderChange { locate, reference: m.order_reference(), shares });
                let (price, side) =
                    (Some(m.execution_price().0.into()), order.and_then(|o| o.side));
                let printable = m.printable() == Code(b'Y');
                let match_number = Some(m.match_number());
                each(BookRow::Trade(TradeRow { price, side, match_number, printable, ..trade }));
            }
            View::OrderCancel(m) => {
                self.reduce(m.order_reference(), m.cancelled_shares().into());
            }
            View::OrderDelete(m) => {
                self.remove(m.order_reference());
            }
            View::OrderReplace(m) => {
                let side = self.remove(m.original_reference()).and_then(|order| order.side);
                let (price, shares) = (m.price().0.into(), m.shares().into());
                self.add(m.new_reference(), locate, side, price, shares);
            }
            View::Trade(m) => {
                let shares = m.shares().into();
                let trade =
                    self.trade("P", OrderChange { locate, reference: m.order_reference(), shares });
                let (price, side) = (Some(m.price().0.into()), OrderSide::of(m.side()));
                let match_number = Some(m.match_number());
                each(BookRow::Trade(TradeRow { price, side, match_number, ..trade }));
            }
            _ => {}
        }
    }

    fn take_lobster(&mut self, line: &LobsterLine, each: &mut impl FnMut(BookRow)) {
        self.begin(line.time_ns, each);
        let reference = u64::try_from(line.order).unwrap_or(0);
        let side = if line.direction < 0 { OrderSide::Ask } else { OrderSide::Bid };
        let change = OrderChange { locate: 0, reference, shares: line.shares };
        // A line states price and side of its order, also of an order from before the file.
        let (price, stated) = (Some(line.price), Some(side));
        match line.kind {
            Some("1") => self.add(reference, 0, stated, line.price, line.shares),
            Some("2") => drop(self.reduce(reference, line.shares)),
            Some("3") => drop(self.remove(reference)),
            Some("4") => {
                self.reduce(reference, line.shares);
                each(BookRow::Trade(TradeRow { price, side: stated, ..self.trade("4", change) }));
            }
            Some("5") => {
                each(BookRow::Trade(TradeRow { price, side: stated, ..self.trade("5", change) }));
            }
            _ => {}
        }
    }

    /// A trade without what only its message says.
    fn trade(&self, kind: &'static str, change: OrderChange) -> TradeRow {
        TradeRow {
            time_ns: self.now_ns,
            kind,
            symbol: self.symbol_of(change.locate),
            price: None,
            shares: change.shares,
            side: None,
            order_reference: (change.reference > 0).then_some(change.reference),
            match_number: None,
            printable: true,
        }
    }

    /// The book of a security, which is then looked at when the nanosecond ends.
    fn changed_book(&mut self, locate: u16) -> &mut OrderBook {
        let place = usize::from(locate);
        if self.books.len() <= place {
            self.books.resize_with(place + 1, OrderBook::default);
        }
        let book = &mut self.books[place];
        if !book.is_changed {
            book.is_changed = true;
            self.changed.push(locate);
        }
        if !self.touched.contains(&locate) {
            self.touched.push(locate);
        }
        book
    }

    /// Adds an order. A number that is in use already is the number of the new order from now on.
    fn add(
        &mut self,
        reference: u64,
        locate: u16,
        side: Option<OrderSide>,
        price: i64,
        shares: u64,
    ) {
        self.forget(reference);
        if self.orders.len() >= self.config.live_orders_max {
            self.counts.over_limit += 1;
            return;
        }
        let book = self.changed_book(locate);
        if let Some(side) = side {
            book.side_mut(side).add(side, price, shares);
        }
        let generation = book.generation;
        self.orders.insert(reference, LiveOrder { price, shares, locate, side, generation });
    }

    /// Takes shares of an order. An order without shares leaves its book. Returns the order as it
    /// was.
    fn reduce(&mut self, reference: u64, shares: u64) -> Option<LiveOrder> {
        let Some(order) = self.orders.get_mut(&reference) else {
            self.counts.unknown_orders += 1;
            return None;
        };
        if order.shares <= shares {
            return self.remove(reference);
        }
        let before = *order;
        order.shares -= shares;
        self.reduce_book(&before, shares, false);
        Some(before)
    }

    fn remove(&mut self, reference: u64) -> Option<LiveOrder> {
        let order = self.forget(reference);
        self.counts.unknown_orders += u64::from(order.is_none());
        order
    }

    /// Takes an order out of its book, where there is one.
    fn forget(&mut self, reference: u64) -> Option<LiveOrder> {
        let order = self.orders.remove(&reference)?;
        self.reduce_book(&order, order.shares, true);
        Some(order)
    }

    fn reduce_book(&mut self, order: &LiveOrder, shares: u64, is_gone: bool) {
        let book = self.changed_book(order.locate);
        if let Some(side) = order.side.filter(|_| book.generation == order.generation) {
            book.side_mut(side).reduce(side, order.price, shares, is_gone);
        }
    }

    /// Empties all books: the venue numbers orders and securities anew.
    fn begin_day(&mut self) {
        self.orders.clear();
        self.books.clear();
        self.changed.clear();
    }

    /// Empties the book of a number that the venue gave to another security. The orders of the
    /// security before stay known, and are in no book.
    fn begin_security(&mut self, locate: u16) {
        if let Some(book) = self.books.get_mut(usize::from(locate)) {
            let (is_changed, generation) = (book.is_changed, book.generation.wrapping_add(1));
            *book = OrderBook { is_changed, generation, ..OrderBook::default() };
        }
    }
}
