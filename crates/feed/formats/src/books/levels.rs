//! Books of venues that state price levels in the place of orders, and their trades.
//!
//! A venue such as CME sends no orders for most purposes. It says how the levels of a book change:
//! "insert a level of this price in the second place of the bids". A codec tells such messages in
//! one form for all venues ([`MarketCodec`]), and [`LevelBooks`] makes trades and the best bid and
//! ask out of them:
//!
//! ```text
//!  bids          10.00 x 5      9.99 x 7      9.98 x 2
//!  insert at 1   10.01 x 1      10.00 x 5     9.99 x 7      9.98 x 2
//!  remove at 2   10.01 x 1      9.99 x 7      9.98 x 2
//! ```
//!
//! Levels of before the first message are unknown until a message states them: a place without a
//! known level is empty, and an unknown best level is no quote. Levels beyond the depth that the
//! venue keeps fall out of the book unsaid. The depth comes from the definition of a security, and
//! is [`DEPTH`] before its definition.
//!
//! As in [`Books`](super::Books), a quote is the best bid and ask at the end of a nanosecond of the
//! venue. The caller's `P` goes with each message, and comes back with the rows of the message.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{OrderSide, PriceLevel, TopOfBook};
use crate::itch::Symbols;

/// Levels of a side while nothing states the depth of the book: CME keeps ten for most futures, and
/// fewer for options.
pub const DEPTH: usize = 10;
/// Books at a time. A venue with options has hundreds of thousands of securities; an empty book
/// takes some 200 bytes.
const BOOKS_MAX: usize = 1 << 20;

/// Tells what messages say of books of levels and of trades.
pub trait MarketCodec: Sync {
    /// Decimals of the prices: 12,345 with four decimals is 1.2345.
    fn price_decimals(&self) -> u8;

    /// Gives what a message says, in its order. Bytes that are no message say nothing.
    fn read_updates(&self, message: MarketMessage<'_>, each: &mut dyn FnMut(MarketUpdate<'_>));
}

/// A message with the time at which it was recorded: some venues state a part of the time alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarketMessage<'a> {
    /// The bytes of the message.
    pub bytes: &'a [u8],
    /// When it was recorded or captured, in nanoseconds since 1970.
    pub recorded_ns: i64,
}

/// Something that a message says, with the venue's time of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarketUpdate<'a> {
    /// Nanoseconds since the origin of the codec's clock.
    pub time_ns: u64,
    /// What is said.
    pub change: MarketChange<'a>,
}

/// What a message may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarketChange<'a> {
    /// The name of a security.
    Name(SecurityName<'a>),
    /// A book is empty from now on; `None` for all books of the stream.
    Reset {
        /// The venue's number of the security.
        security: Option<u32>,
    },
    /// The levels of the same message that follow are the whole book.
    Snapshot {
        /// The venue's number of the security.
        security: u32,
        /// The number of the last change that is in the snapshot.
        sequence: u32,
    },
    /// A change of a level.
    Level(LevelChange),
    /// A trade.
    Trade(LevelTrade),
}

/// The definition of a security.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityName<'a> {
    /// The venue's number.
    pub security: u32,
    /// The symbol, of any length.
    pub name: &'a str,
    /// Levels of a side that the venue keeps.
    pub depth: Option<usize>,
}

/// What happens to a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelAction {
    /// A new level takes the place, and those behind it move away by one.
    Insert,
    /// The level in this place has these values from now on.
    Replace,
    /// The level leaves, and those behind it move up by one.
    Remove,
    /// The levels from the best one to this one leave.
    RemoveBest,
    /// All levels of the side leave.
    RemoveAll,
}

/// A change of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelChange {
    /// The venue's number of the security.
    pub security: u32,
    /// Number of the change among those of the security.
    pub sequence: u32,
    /// Whether the level is part of a snapshot.
    pub is_snapshot: bool,
    /// The side of the book.
    pub side: OrderSide,
    /// The place of the level, the best one is 0. A venue counts to 255 at most.
    pub level: usize,
    /// What happens to the level.
    pub action: LevelAction,
    /// Its price; `None` leaves the level unknown.
    pub price: Option<i64>,
    /// Size of all orders of the level.
    pub size: u64,
    /// Number of the orders.
    pub orders: u64,
}

/// A trade as a message states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelTrade {
    /// The type of the message.
    pub kind: &'static str,
    /// The venue's number of the security.
    pub security: u32,
    /// The price.
    pub price: Option<i64>,
    /// The size.
    pub size: u64,
    /// The side of the orders that rested, where the venue says it.
    pub resting: Option<OrderSide>,
}

/// A row of one of the two tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarketRow {
    /// Of the table of trades.
    Trade(MarketTrade),
    /// Of the table of quotes.
    Quote(MarketQuote),
}

/// A trade with its time and the name of its security.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarketTrade {
    /// The venue's time.
    pub time_ns: u64,
    /// The name of the security, where a message has told it.
    pub name: Option<Arc<str>>,
    /// What the message says.
    pub stated: LevelTrade,
}

/// The best prices of a security at the end of a nanosecond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarketQuote {
    /// The nanosecond.
    pub time_ns: u64,
    /// The venue's number of the security.
    pub security: u32,
    /// The name of the security, where a message has told it.
    pub name: Option<Arc<str>>,
    /// The best bid.
    pub bid: Option<TopOfBook>,
    /// The best ask.
    pub ask: Option<TopOfBook>,
}

/// A side of a book, the best level first. A place whose level is unknown has none.
#[derive(Clone, Debug, Default)]
struct LevelSide {
    levels: Vec<Option<PriceLevel>>,
}

impl LevelSide {
    fn apply_change(&mut self, change: &LevelChange, depth: usize) {
        let (at, levels) = (change.level, &mut self.levels);
        let level = change.price.map(|price| {
            let (shares, orders) = (change.size, change.orders);
            PriceLevel { price, shares, orders }
        });
        match change.action {
            LevelAction::Insert => {
                if levels.len() < at {
                    levels.resize(at, None);
                }
                levels.insert(at, level);
            }
            LevelAction::Replace => {
                if levels.len() <= at {
                    levels.resize(at + 1, None);
                }
                levels[at] = level;
            }
            LevelAction::Remove if at < levels.len() => drop(levels.remove(at)),
            LevelAction::Remove => {}
            LevelAction::RemoveBest => {
                let end = levels.len().min(at + 1);
                levels.drain(..end);
            }
            LevelAction::RemoveAll => levels.clear(),
        }
        levels.truncate(depth);
    }

    fn best_level(&self) -> Option<TopOfBook> {
        let level = self.levels.first().copied().flatten()?;
        Some(TopOfBook { price: level.price, shares: level.shares })
    }
}

/// The book of one security.
#[derive(Clone, Debug)]
struct LevelBook<P> {
    bids: LevelSide,
    asks: LevelSide,
    depth: usize,
    /// The number of the last change.
    sequence: u32,
    /// The quote that was given last.
    last: (Option<TopOfBook>, Option<TopOfBook>),
    /// What came with the last message of the present nanosecond that changed the book.
    changed_by: Option<P>,
}

impl<P> Default for LevelBook<P> {
    fn default() -> Self {
        Self {
            bids: LevelSide::default(),
            asks: LevelSide::default(),
            depth: DEPTH,
            sequence: 0,
            last: (None, None),
            changed_by: None,
        }
    }
}

/// The books of all securities of a stream.
#[derive(Clone, Debug)]
pub struct LevelBooks<P> {
    books: BTreeMap<u32, LevelBook<P>>,
    names: Symbols,
    /// The present nanosecond.
    now_ns: u64,
    /// Books that changed in the present nanosecond, in the order of their first changes.
    changed: Vec<u32>,
    /// Whether the snapshot that is being read is newer than its book.
    takes_snapshot: bool,
    over_limit: u64,
}

impl<P> Default for LevelBooks<P> {
    fn default() -> Self {
        Self {
            books: BTreeMap::new(),
            names: Symbols::new(),
            now_ns: 0,
            changed: Vec::new(),
            takes_snapshot: false,
            over_limit: 0,
        }
    }
}

impl<P: Copy> LevelBooks<P> {
    /// The nanosecond of the last update.
    pub fn present_ns(&self) -> u64 {
        self.now_ns
    }

    /// Changes of books beyond the limit of books, which are in no book.
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// The name of a security.
    pub fn security_name(&self, security: u32) -> Option<&Arc<str>> {
        self.names.security_name(security)
    }

    /// The venue's number of the security that has this name, or else of the security that has this
    /// number and a book: a recording may lack the definitions.
    pub fn find_security(&self, name: &str) -> Option<u32> {
        let mut names = self.names.security_names();
        let named = names.find(|(_, known)| &***known == name).map(|(security, _)| security);
        let numbered =
            || name.parse::<u32>().ok().filter(|security| self.books.contains_key(security));
        named.or_else(numbered)
    }

    /// The securities that have names or books: their names, or their numbers where they have no
    /// name.
    pub fn known_securities(&self) -> Vec<String> {
        let named = self.names.security_names().map(|(_, name)| name.to_string());
        let unnamed = self.books.keys().filter(|number| self.security_name(**number).is_none());
        named.chain(unnamed.map(u32::to_string)).collect()
    }

    /// The known levels of a side of a book, the best one first.
    pub fn levels(&self, security: u32, side: OrderSide) -> impl Iterator<Item = PriceLevel> {
        let book = self.books.get(&security);
        let levels = book.map(|book| match side {
            OrderSide::Bid => &book.bids.levels,
            OrderSide::Ask => &book.asks.levels,
        });
        levels.into_iter().flatten().copied().flatten()
    }

    /// Takes the next message of the stream. Quotes of the nanosecond before come first.
    pub fn take_message(
        &mut self,
        codec: &dyn MarketCodec,
        message: MarketMessage<'_>,
        place: P,
        each: &mut dyn FnMut(P, MarketRow),
    ) {
        codec.read_updates(message, &mut |update| self.take_update(&update, place, &mut *each));
    }

    /// Takes one update of a message.
    pub fn take_update(
        &mut self,
        update: &MarketUpdate<'_>,
        place: P,
        each: &mut dyn FnMut(P, MarketRow),
    ) {
        if update.time_ns != self.now_ns {
            self.end_nanosecond(&mut *each);
            self.now_ns = update.time_ns;
        }
        match &update.change {
            MarketChange::Name(named) => {
                self.names.learn_name(named.security, named.name);
                if let Some(depth) = named.depth
                    && let Some(book) = self.book_mut(named.security)
                {
                    book.depth = depth;
                }
            }
            MarketChange::Trade(stated) => {
                let name = self.security_name(stated.security).cloned();
                let trade = MarketTrade { time_ns: self.now_ns, name, stated: *stated };
                each(place, MarketRow::Trade(trade));
            }
            MarketChange::Reset { security: Some(security) } => self.empty_book(*security, place),
            MarketChange::Reset { security: None } => {
                let all: Vec<u32> = self.books.keys().copied().collect();
                all.into_iter().for_each(|security| self.empty_book(security, place));
            }
            MarketChange::Snapshot { security, sequence } => {
                let known = self.books.get(security).map_or(0, |book| book.sequence);
                self.takes_snapshot = *sequence >= known;
                if self.takes_snapshot {
                    self.empty_book(*security, place);
                    if let Some(book) = self.book_mut(*security) {
                        book.sequence = *sequence;
                    }
                }
            }
            MarketChange::Level(change) if change.is_snapshot && !self.takes_snapshot => {}
            MarketChange::Level(change) => self.change_level(change, place),
        }
    }

    fn change_level(&mut self, change: &LevelChange, place: P) {
        let Some(book) = self.changed_book(change.security, place) else { return };
        // The entries of a snapshot have the number of the whole.
        book.sequence = change.sequence;
        let depth = book.depth;
        let side = match change.side {
            OrderSide::Bid => &mut book.bids,
            OrderSide::Ask => &mut book.asks,
        };
        side.apply_change(change, depth);
    }

    /// Takes all levels of a book away. The venue may number its changes anew.
    fn empty_book(&mut self, security: u32, place: P) {
        let Some(book) = self.changed_book(security, place) else { return };
        book.bids.levels.clear();
        book.asks.levels.clear();
        book.sequence = 0;
    }

    fn book_mut(&mut self, security: u32) -> Option<&mut LevelBook<P>> {
        if self.books.len() >= BOOKS_MAX && !self.books.contains_key(&security) {
            self.over_limit += 1;
            return None;
        }
        Some(self.books.entry(security).or_default())
    }

    /// A book, which is then looked at when the nanosecond ends.
    fn changed_book(&mut self, security: u32, place: P) -> Option<&mut LevelBook<P>> {
        let book = self.book_mut(security)?;
        let is_first = book.changed_by.replace(place).is_none();
        if is_first {
            self.changed.push(security);
        }
        self.books.get_mut(&security)
    }

    /// Gives the quotes of the present nanosecond, because no further message has its time.
    pub fn end_nanosecond(&mut self, each: &mut dyn FnMut(P, MarketRow)) {
        let mut changed = core::mem::take(&mut self.changed);
        for security in changed.drain(..) {
            let Some(book) = self.books.get_mut(&security) else { continue };
            let (bid, ask) = (book.bids.best_level(), book.asks.best_level());
            let Some(place) = book.changed_by.take() else { continue };
            if book.last == (bid, ask) {
                continue;
            }
            book.last = (bid, ask);
            let name = self.names.security_name(security).cloned();
            let quote = MarketQuote { time_ns: self.now_ns, security, name, bid, ask };
            each(place, MarketRow::Quote(quote));
        }
        // The list keeps its room.
        self.changed = changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A codec whose messages are the places of updates in a list.
    struct Listed(Vec<MarketUpdate<'static>>);

    impl MarketCodec for Listed {
        fn price_decimals(&self) -> u8 {
            2
        }

        fn read_updates(&self, message: MarketMessage<'_>, each: &mut dyn FnMut(MarketUpdate<'_>)) {
            let listed = message.bytes.iter().filter_map(|at| self.0.get(usize::from(*at)));
            listed.copied().for_each(each);
        }
    }

    fn level(sequence: u32, level: usize, action: LevelAction, price: i64) -> LevelChange {
        LevelChange {
            security: 7,
            sequence,
            is_snapshot: false,
            side: OrderSide::Bid,
            level,
            action,
            price: Some(price),
            size: price as u64 * 2,
            orders: 1,
        }
    }

    fn update(time_ns: u64, change: MarketChange<'static>) -> MarketUpdate<'static> {
        MarketUpdate { time_ns, change }
    }

    fn prices_of(books: &LevelBooks<u64>) -> Vec<i64> {
        books.levels(7, OrderSide::Bid).map(|level| level.price).collect()
    }

    /// Books after these changes, each in a message and a nanosecond of its own.
    fn books_after(changes: &[LevelChange]) -> LevelBooks<u64> {
        let mut books = LevelBooks::default();
        for (ns, change) in (1..).zip(changes) {
            let update = update(ns, MarketChange::Level(*change));
            books.take_update(&update, ns, &mut |_, _| {});
        }
        books
    }

    #[test]
    fn levels_move_as_the_venue_says() {
        use LevelAction::{Insert, Remove, RemoveAll, RemoveBest, Replace};
        let start = [
            level(1, 0, Insert, 100),
            level(2, 1, Insert, 99),
            level(3, 0, Insert, 101),
            level(4, 3, Insert, 97),
        ];
        assert_eq!(prices_of(&books_after(&start)), [101, 100, 99, 97]);
        for (change, left) in [
            (level(5, 1, Remove, 0), &[101, 99, 97][..]),
            (level(5, 9, Remove, 0), &[101, 100, 99, 97]),
            (level(5, 0, Replace, 102), &[102, 100, 99, 97]),
            (level(5, 1, RemoveBest, 0), &[99, 97]),
            (level(5, 0, RemoveAll, 0), &[]),
        ] {
            let books = books_after(&[&start[..], &[change]].concat());
            assert_eq!(prices_of(&books), left, "{change:?}");
        }
        // A book of two levels loses the third.
        let mut books = LevelBooks::<u64>::default();
        let name = SecurityName { security: 7, name: "A-B", depth: Some(2) };
        books.take_update(&update(1, MarketChange::Name(name)), 0, &mut |_, _| {});
        for change in start {
            books.take_update(&update(2, MarketChange::Level(change)), 1, &mut |_, _| {});
        }
        assert_eq!(prices_of(&books), [101, 100]);
    }

    #[test]
    fn a_level_behind_unknown_ones_is_no_quote() {
        let mut rows = Vec::new();
        let mut books = LevelBooks::default();
        let second = level(1, 1, LevelAction::Insert, 99);
        let first = level(2, 0, LevelAction::Replace, 100);
        for (ns, change) in [(1, second), (2, first)] {
            let update = update(ns, MarketChange::Level(change));
            books.take_update(&update, ns, &mut |place, row| rows.push((place, row)));
        }
        books.end_nanosecond(&mut |place, row| rows.push((place, row)));
        let [(2, MarketRow::Quote(quote))] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(quote.bid, Some(TopOfBook { price: 100, shares: 200 }));
        assert_eq!(prices_of(&books), [100, 99]);
    }

    #[test]
    fn a_quote_is_the_best_price_at_the_end_of_a_nanosecond_with_the_name_of_its_security() {
        let name = SecurityName { security: 7, name: "UD:1V: VT 2212999999", depth: None };
        let trade = LevelTrade {
            kind: "T",
            security: 7,
            price: Some(100),
            size: 3,
            resting: Some(OrderSide::Bid),
        };
        let listed = Listed(vec![
            update(1, MarketChange::Name(name)),
            update(1, MarketChange::Level(level(1, 0, LevelAction::Insert, 100))),
            update(2, MarketChange::Level(level(2, 0, LevelAction::Insert, 101))),
            update(2, MarketChange::Trade(trade)),
            update(2, MarketChange::Level(level(3, 0, LevelAction::Remove, 0))),
            update(3, MarketChange::Reset { security: None }),
        ]);
        let (mut rows, mut books) = (Vec::new(), LevelBooks::default());
        for (place, bytes) in [(10, &[0, 1][..]), (11, &[2, 3, 4]), (12, &[5])] {
            let message = MarketMessage { bytes, recorded_ns: 0 };
            books.take_message(&listed, message, place, &mut |place, row| rows.push((place, row)));
        }
        books.end_nanosecond(&mut |place, row| rows.push((place, row)));
        let told: Vec<_> = rows
            .iter()
            .map(|(place, row)| match row {
                MarketRow::Trade(row) => {
                    (*place, row.time_ns, row.name.as_deref(), row.stated.price)
                }
                MarketRow::Quote(row) => {
                    (*place, row.time_ns, row.name.as_deref(), row.bid.map(|bid| bid.price))
                }
            })
            .collect();
        let named = Some("UD:1V: VT 2212999999");
        // The quote of the second nanosecond was undone in it.
        let expected = [(10, 1, named, Some(100)), (11, 2, named, Some(100)), (12, 3, named, None)];
        assert_eq!(told, expected);
        assert_eq!(books.find_security("UD:1V: VT 2212999999"), Some(7));
        assert_eq!((books.find_security("7"), books.find_security("8")), (Some(7), None));
    }

    #[test]
    fn a_snapshot_that_is_older_than_its_book_changes_nothing() {
        for (sequence, left) in [(4, [100]), (5, [90]), (6, [90])] {
            let mut books = books_after(&[level(5, 0, LevelAction::Insert, 100)]);
            let of_snapshot =
                LevelChange { is_snapshot: true, ..level(sequence, 0, LevelAction::Replace, 90) };
            for change in
                [MarketChange::Snapshot { security: 7, sequence }, MarketChange::Level(of_snapshot)]
            {
                books.take_update(&update(9, change), 9, &mut |_, _| {});
            }
            assert_eq!(prices_of(&books), left, "{sequence}");
        }
    }
}
