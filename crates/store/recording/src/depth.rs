//! The order book of a symbol at a time, made out of the messages before it.

use std::ops::RangeInclusive;

pub use evenfall_feed_formats::books::PriceLevel;
use evenfall_feed_formats::books::{Books, BooksConfig, OrderSide};
use evenfall_feed_formats::codec::{self, Clock, DAY_NS};
use evenfall_feed_formats::event::PRICE_DECIMALS;
use evenfall_feed_formats::itch::{Stock, Symbols, View};

use crate::records::RecordedMessage;
use crate::snapshot::{ALL_TIMES, RecordingSnapshot, StreamSnapshot};
use crate::tables::{PRICE_DIGITS, TableError, TableName};

/// The levels of a book, the best of each side first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookDepth {
    /// Buy orders.
    pub bids: Vec<PriceLevel>,
    /// Sell orders.
    pub asks: Vec<PriceLevel>,
}

/// The type of prices in tables.
pub fn price_type() -> arrow_schema::DataType {
    arrow_schema::DataType::Decimal128(PRICE_DIGITS, PRICE_DECIMALS as i8)
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
    clock: Clock,
    /// The instants of the day of `at_ns`, and its place in that day.
    day: Option<(std::ops::Range<i64>, u64)>,
}

impl StatedLimit {
    fn new(at_ns: i64, clock: Clock) -> Self {
        let day = || {
            let date = clock.date_of(at_ns)?;
            let midnight = clock.of_day_ns(date, 0)?;
            let next = clock.of_day_ns(date.tomorrow().ok()?, 0)?;
            Some((midnight..next, u64::try_from(at_ns - midnight).ok()?))
        };
        let day = match clock {
            Clock::Epoch => None,
            Clock::Midnight { .. } => day(),
        };
        Self { at_ns, clock, day }
    }

    fn is_later(&self, stated_ns: u64, recorded: &RecordedMessage) -> bool {
        match (self.clock, &self.day) {
            (Clock::Epoch, _) => i64::try_from(stated_ns).map_or(true, |ns| ns > self.at_ns),
            (Clock::Midnight { .. }, Some((day, limit_ns))) => {
                recorded.time_ns >= day.end
                    || (recorded.time_ns >= day.start && stated_ns % DAY_NS > *limit_ns)
            }
            // A moment beyond all calendars.
            (Clock::Midnight { .. }, None) => self.at_ns < 0,
        }
    }
}

impl RecordingSnapshot {
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
            let depth = BookDepth { bids: best(OrderSide::Bid), asks: best(OrderSide::Ask) };
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
        let mut books = Books::new(config);
        let mut limit: Option<StatedLimit> = None;
        let mut replay = stream.replay(&**self.source(), stream.numbers(), &at.indexed_times())?;
        while goes_on()
            && let Some(recorded) = replay.next_message()?
        {
            let format = recorded.format.unwrap_or(untagged);
            if let DepthTime::Stated(at_ns) = at {
                let Some(stated_ns) = Books::stated_ns(format, &recorded.bytes) else { continue };
                let limit = limit.get_or_insert_with(|| {
                    let clock = codec::of(format).map_or(Clock::Epoch, |codec| codec.clock());
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

    /// The symbols that the messages of ITCH name. All messages are read, so that only an error
    /// that lists them asks for it.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn named_symbols(&self, goes_on: &dyn Fn() -> bool) -> Result<Vec<String>, TableError> {
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
        let mut known: Vec<String> = known.map(|symbol| symbol.to_string()).collect();
        known.sort_unstable();
        known.dedup();
        Ok(known)
    }
}
