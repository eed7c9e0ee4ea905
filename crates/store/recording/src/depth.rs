//! The order book of a symbol at a time, made out of the messages before it.

use std::ops::RangeInclusive;

use evenfall_feed_formats::books::{Books, BooksConfig, OrderSide, PriceLevel};
use evenfall_feed_formats::itch::Stock;

use crate::snapshot::RecordingSnapshot;
use crate::tables::{TableError, TableName};

/// The levels of a book, the best of each side first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookDepth {
    /// Buy orders.
    pub bids: Vec<PriceLevel>,
    /// Sell orders.
    pub asks: Vec<PriceLevel>,
}

impl RecordingSnapshot {
    /// The best `levels` of each side of a symbol's book, after all messages that are indexed by
    /// `at_ns` (nanoseconds since 1970) or an earlier time. All messages of a stream up to then are
    /// read. `None` when no message has named the symbol by then.
    ///
    /// # Errors
    /// [`TableError::TooManyOrders`], and the errors of the source.
    pub fn depth(
        &self,
        symbol: Stock,
        at_ns: i64,
        levels: usize,
    ) -> Result<Option<BookDepth>, TableError> {
        let config = BooksConfig::default();
        let times: RangeInclusive<i64> = i64::MIN..=at_ns;
        let untagged = self.untagged_format()?;
        let mut found = None;
        for stream in self.streams() {
            let mut books = Books::new(config);
            let mut replay = stream.replay(&**self.source(), stream.numbers(), &times)?;
            while let Some(recorded) = replay.next_message()? {
                books.take(recorded.format.unwrap_or(untagged), &recorded.bytes, &mut |_| {});
            }
            if books.counts().over_limit > 0 {
                let table = TableName::of_recording(self.name(), "quotes");
                return Err(TableError::TooManyOrders {
                    table,
                    orders_max: config.live_orders_max,
                });
            }
            let Some(locate) = books.locate(symbol) else { continue };
            let best = |side| books.levels(locate, side).take(levels).collect::<Vec<_>>();
            let depth = BookDepth { bids: best(OrderSide::Bid), asks: best(OrderSide::Ask) };
            // All orders of a symbol are in one stream. Its directory may be in every stream.
            if depth != BookDepth::default() {
                return Ok(Some(depth));
            }
            found = Some(depth);
        }
        Ok(found)
    }
}
