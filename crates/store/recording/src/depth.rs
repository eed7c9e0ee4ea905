//! The book of a symbol at a time, made out of the messages before it.

use std::ops::RangeInclusive;

pub use evenfall_feed_formats::books::PriceLevel;
use evenfall_feed_formats::books::levels::{LevelBooks, MarketMessage};
use evenfall_feed_formats::books::{Books, BooksConfig, OrderSide};
use evenfall_feed_formats::codec::{self, Codec, DAY_NS, TimeOrigin};
use evenfall_feed_formats::event::PRICE_DECIMALS;
use evenfall_feed_formats::itch::{Stock, Symbols, View};

use crate::records::RecordedMessage;
use crate::snapshot::{ALL_TIMES, RecordingSnapshot, StreamSnapshot};
use crate::tables::{TableError, TableName, price_type_of};

/// The levels of a book, the best of each side first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookDepth {
    /// Buy orders.
    pub bids: Vec<PriceLevel>,
    /// Sell orders.
    pub asks: Vec<PriceLevel>,
    /// Decimals of the prices.
    pub price_decimals: u8,
}

impl Default for BookDepth {
    fn default() -> Self {
        Self { bids: Vec::new(), asks: Vec::new(), price_decimals: PRICE_DECIMALS }
    }
}

impl BookDepth {
    /// The type of the prices in tables.
    pub fn price_type(&self) -> arrow_schema::DataType {
        price_type_of(self.price_decimals)
    }
}

/// The type of prices of ITCH in tables.
pub fn price_type() -> arrow_schema::DataType {
    price_type_of(PRICE_DECIMALS)
}

/// The last moment of a book, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepthTime {
    /// By the times under which the store finds messages.
    Indexed(i64),
    /// By the times that messages state. A message without a time of its own changes no book.
    Stated(i64),
}

impl DepthTime {
    /// The indexed times of the messages to read.
    fn indexed_times(self) -> RangeInclusive<i64> {
        match self {
            Self::Indexed(at_ns) => i64::MIN..=at_ns,
            Self::Stated(_) => ALL_TIMES,
        }
    }
}

/// Tells which messages state a time after the moment of a book. A time of day is on the day of the
/// message's release. The limits of one day are kept, because asking a time zone for each message
/// would take longer than the books.
struct StatedLimit {
    at_ns: i64,
    clock: TimeOrigin,
    /// The instants of the day of `at_ns`, and its place in that day.
    day: Option<(std::ops::Range<i64>, u64)>,
}

impl StatedLimit {
    fn new(at_ns: i64, clock: TimeOrigin) -> Self {
        let day = || {
            let date = clock.date_of(at_ns)?;
            let midnight = clock.of_day_ns(date, 0)?;
            let next = clock.of_day_ns(date.tomorrow().ok()?, 0)?;
            Some((midnight..next, u64::try_from(at_ns - midnight).ok()?))
        };
        let day = match clock {
            TimeOrigin::Epoch => None,
            TimeOrigin::Midnight { .. } => day(),
        };
        Self { at_ns, clock, day }
    }

    fn is_later(&self, stated_ns: u64, recorded: &RecordedMessage) -> bool {
        match (self.clock, &self.day) {
            (TimeOrigin::Epoch, _) => i64::try_from(stated_ns).map_or(true, |ns| ns > self.at_ns),
            (TimeOrigin::Midnight { .. }, Some((day, limit_ns))) => {
                recorded.time_ns >= day.end
                    || (recorded.time_ns >= day.start && stated_ns % DAY_NS > *limit_ns)
            }
            // A moment beyond all calendars.
            (TimeOrigin::Midnight { .. }, None) => self.at_ns < 0,
        }
    }
}

impl RecordingSnapshot {
    /// The best `levels` of each side of the book of a symbol of any length, by the codec of the
    /// recording. See [`depth`](Self::depth). A security that no message of the recording names has
    /// the venue's number in the place of the symbol.
    ///
    /// # Errors
    /// As [`depth`](Self::depth), and [`TableError::NotGiven`] for a format without books.
    pub fn depth_of(
        &self,
        symbol: Option<&str>,
        at: DepthTime,
        levels: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<BookDepth>, TableError> {
        if let Some(format) = self.bookless_format() {
            let table = TableName::of_recording(self.name(), "book");
            return Err(TableError::NotGiven { table, format });
        }
        let own = self.own_codec().and_then(|codec| Some((codec, codec.market_codec()?)));
        let Some((codec, market)) = own else {
            return match symbol.map(Stock::new) {
                // A text that is no symbol of the venue is a symbol that no message names.
                Some(None) => Ok(None),
                Some(stock) => self.depth(stock, at, levels, goes_on),
                None => self.depth(None, at, levels, goes_on),
            };
        };
        let mut found = None;
        for stream in self.streams() {
            let books = self.level_books_at(stream, codec, at, goes_on)?;
            let security = symbol.and_then(|symbol| books.find_security(symbol.trim_end()));
            let Some(security) = security else { continue };
            let best = |side| -> Vec<PriceLevel> {
                let known = books.levels(security, side).filter(|level| level.shares > 0);
                known.take(levels).collect()
            };
            let (bids, asks) = (best(OrderSide::Bid), best(OrderSide::Ask));
            let is_empty = bids.is_empty() && asks.is_empty();
            let depth = BookDepth { bids, asks, price_decimals: market.price_decimals() };
            // The definitions of securities may be in another stream than their books.
            if !is_empty {
                return Ok(Some(depth));
            }
            found = Some(depth);
        }
        Ok(found)
    }

    /// The books of levels of a stream at a moment.
    fn level_books_at(
        &self,
        stream: &StreamSnapshot,
        codec: &'static dyn Codec,
        at: DepthTime,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<LevelBooks<()>, TableError> {
        let mut books = LevelBooks::default();
        let Some(market) = codec.market_codec() else { return Ok(books) };
        let limit = match at {
            DepthTime::Stated(at_ns) => Some(StatedLimit::new(at_ns, codec.clock())),
            DepthTime::Indexed(_) => None,
        };
        let mut is_later = false;
        let mut replay = stream.replay(&**self.source(), stream.numbers(), &at.indexed_times())?;
        while !is_later
            && goes_on()
            && let Some(recorded) = replay.next_message()?
        {
            if recorded.format != Some(codec.format()) {
                continue;
            }
            let recorded_ns = recorded.time_ns;
            let message = MarketMessage { bytes: &recorded.bytes, recorded_ns };
            market.read_updates(message, &mut |update| {
                is_later |= limit.as_ref().is_some_and(|at| at.is_later(update.time_ns, &recorded));
                if !is_later {
                    books.take_update(&update, (), &mut |(), _| {});
                }
            });
        }
        match books.over_limit() {
            0 => Ok(books),
            _ => {
                let table = TableName::of_recording(self.name(), "book");
                Err(TableError::TooManyBooks { table })
            }
        }
    }

    /// The best `levels` of each side of a symbol's book, after all messages up to this moment, its
    /// own messages too. Messages of a stream are in order of their times, so that reading ends at
    /// the first later one. No symbol stands for the only security of messages that name none, such
    /// as LOBSTER's. `None` when no message has named the symbol by then.
    ///
    /// `goes_on` is asked before each message. Once it says no, reading ends, and the answer is of
    /// no use.
    ///
    /// # Errors
    /// [`TableError::TooManyOrders`], and the errors of the source.
    pub fn depth(
        &self,
        symbol: Option<Stock>,
        at: DepthTime,
        levels: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<BookDepth>, TableError> {
        let mut found = None;
        for stream in self.streams() {
            let books = self.books_at(stream, at, goes_on)?;
            let Some(locate) = books.locate(symbol) else { continue };
            // A level without shares offers nothing, as in the table of quotes.
            let best = |side| -> Vec<PriceLevel> {
                books.levels(locate, side).filter(|level| level.shares > 0).take(levels).collect()
            };
            let (bids, asks) = (best(OrderSide::Bid), best(OrderSide::Ask));
            let depth = BookDepth { bids, asks, ..BookDepth::default() };
            // All orders of a symbol are in one stream. Its directory may be in every stream.
            if depth != BookDepth::default() {
                return Ok(Some(depth));
            }
            found = Some(depth);
        }
        Ok(found)
    }

    /// The books of a stream at a moment.
    fn books_at(
        &self,
        stream: &StreamSnapshot,
        at: DepthTime,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Books, TableError> {
        let config = BooksConfig::default();
        let untagged = self.untagged_format()?;
        let mut books = Books::of_symbol(config, self.only_symbol());
        let mut limit: Option<StatedLimit> = None;
        let mut replay = stream.replay(&**self.source(), stream.numbers(), &at.indexed_times())?;
        while goes_on()
            && let Some(recorded) = replay.next_message()?
        {
            let format = recorded.format.unwrap_or(untagged);
            if let DepthTime::Stated(at_ns) = at {
                let Some(stated_ns) = Books::stated_ns(format, &recorded.bytes) else { continue };
                let limit = limit.get_or_insert_with(|| {
                    let clock = codec::of(format).map_or(TimeOrigin::Epoch, |codec| codec.clock());
                    StatedLimit::new(at_ns, clock)
                });
                if limit.is_later(stated_ns, &recorded) {
                    break;
                }
            }
            books.take(format, &recorded.bytes, &mut |_| {});
        }
        if books.counts().over_limit > 0 {
            let table = TableName::of_recording(self.name(), "quotes");
            let orders_max = config.live_orders_max;
            return Err(TableError::TooManyOrders { table, orders_max });
        }
        Ok(books)
    }

    /// The symbols that the messages name, and of a format with books of levels the numbers of
    /// securities without a name too. All messages are read, so that only an error that lists them
    /// asks for it.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn named_symbols(&self, goes_on: &dyn Fn() -> bool) -> Result<Vec<String>, TableError> {
        if let Some(codec) = self.own_codec() {
            let mut known = Vec::new();
            for stream in self.streams() {
                let end = DepthTime::Indexed(i64::MAX);
                known.extend(self.level_books_at(stream, codec, end, goes_on)?.known_securities());
            }
            known.sort_unstable();
            known.dedup();
            return Ok(known);
        }
        let mut symbols = Symbols::new();
        for stream in self.streams() {
            let mut replay = stream.replay(&**self.source(), stream.numbers(), &ALL_TIMES)?;
            while goes_on()
                && let Some(recorded) = replay.next_message()?
            {
                if let Ok(view) = View::decode(&recorded.bytes) {
                    symbols.observe(&view);
                }
            }
        }
        let known = (0..=u16::MAX.into()).filter_map(|number| symbols.symbol(number));
        let known = known.chain(self.only_symbol());
        let mut known: Vec<String> = known.map(|symbol| symbol.to_string()).collect();
        known.sort_unstable();
        known.dedup();
        Ok(known)
    }
}
