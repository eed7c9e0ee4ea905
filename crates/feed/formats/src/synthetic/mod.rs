//! Synthetic ITCH: a feed without a download whose references are all valid.
//!
//! A demo, a test and a benchmark need a feed of any size at once. Real feeds are large and not
//! ours to give away. Random bytes in ITCH's shape would do for a link, but not for a receiver that
//! keeps books. Each symbol therefore has a book. Orders are executed at the best price, and
//! cancelled, deleted and replaced by references that exist. Shares never fall below zero, and no
//! book is crossed.
//!
//! The day starts with a system event, the directory, trading states and short sale tests. All of
//! them come at the mean rate, and end as the market opens at 09:30. The day ends with the closing
//! system events, when there is room. Between these messages, types come as often as on a real day,
//! and symbols follow Zipf's law. Times come in bursts by the measured numbers of one real open
//! (`facts.rs`).
//!
//! One seed gives one feed. Memory is bounded: 4,096 orders of 24 bytes a symbol at most.

mod arrivals;
mod book;
mod facts;
mod plain;
pub mod trades;

#[cfg(test)]
mod tests;

use crate::codec::ITCH;
use crate::error::FeedError;
use crate::itch::codec::Header;
use crate::itch::{self, Alpha, Code, ItchKind, Owned, Price4, Stock};
use crate::source::{FeedMessage, MessageSource};
use arrivals::Arrivals;
use book::{Book, ORDERS_MAX, UNITS_PER_CENT};
use bytes::BytesMut;
use evenfall_core::{Prng, math};
use facts::{MIX, WHOLE_EXECUTION};

/// 09:30, the time at which trading opens.
pub const OPEN_NS: u64 = 34_200_000_000_000;

/// The last time that 48 bits can state.
const TIME_NS_MAX: u64 = (1 << 48) - 1;

/// Messages a symbol has at the start of the day: directory, trading action, short sale test.
const MESSAGES_PER_SYMBOL: u64 = 3;

/// Codes of the system events that open and close a day; the decline levels follow the first.
const OPENING: [u8; 3] = *b"OSQ";
const CLOSING: [u8; 3] = *b"MEC";

/// Symbols that are tried for one with an order, or with room for an order, before another type is
/// sent.
const SYMBOL_TRIES: usize = 32;

/// Slowest mean rate in messages per second. Bursts change in bins of 10 ms, and the generator
/// should not look through thousands of bins for a message.
const MEAN_RATE_MIN: f64 = 1.0;

/// Bytes of messages that share one allocation.
const CHUNK_BYTES: usize = 64 * 1024;

/// The feed to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The same seed gives the same feed.
    pub seed: u64,
    /// Securities traded, 1 to 65,535; their locates start at 1.
    pub symbols: u16,
    /// Messages in all, the directory included.
    pub messages: u64,
    /// Mean number of messages per second, at least 1. With bursts, single seconds differ from it
    /// by a factor of up to ten, as in a real feed.
    pub mean_rate: f64,
    /// How much busier the first symbols are: the n-th symbol has n^-exponent of the first symbol's
    /// messages. At the open of 2019-12-30 the exponent was about 1. With 0 all symbols are equal.
    pub zipf_exponent: f64,
    /// Whether the rate follows the bursts of a real open, or stays the same.
    pub bursts: bool,
}

impl Default for Config {
    /// 100,000 messages of 1,000 symbols at the mean rate of the real open, 68,070 a second.
    fn default() -> Self {
        Self {
            seed: 1,
            symbols: 1_000,
            messages: 100_000,
            mean_rate: 68_070.0,
            zipf_exponent: 1.0,
            bursts: true,
        }
    }
}

/// A configuration that describes no feed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No symbols.
    #[error("a synthetic feed of 0 symbols: give 1 to 65,535")]
    Symbols,
    /// A mean rate that is not a finite number from 1 on.
    #[error("a mean rate of {0} messages/s: give a finite number from 1 on")]
    MeanRate(f64),
    /// An exponent outside 0 to 4. With 4, nine messages in ten belong to one symbol.
    #[error("a Zipf exponent of {0}: give 0 to 4")]
    ZipfExponent(f64),
}

/// Makes the feed, message by message.
#[derive(Clone, Debug)]
pub struct Generator {
    config: Config,
    prng: Prng,
    arrivals: Arrivals,
    /// Chances of symbols up to and with each, in the order of activity.
    symbol_chances: Vec<f64>,
    /// Locate of each symbol in that order.
    locates: Vec<u16>,
    /// Books by locate, the first one unused.
    books: Vec<Book>,
    mix_total: u64,
    index: u64,
    last_reference: u64,
    last_match: u64,
    buffer: BytesMut,
}

impl Generator {
    /// A feed from its beginning.
    ///
    /// # Errors
    /// [`ConfigError`] names the parameter that is out of range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let Config { seed, symbols, mean_rate, zipf_exponent, bursts, .. } = config;
        if symbols == 0 {
            return Err(ConfigError::Symbols);
        }
        if !(MEAN_RATE_MIN..f64::INFINITY).contains(&mean_rate) {
            return Err(ConfigError::MeanRate(mean_rate));
        }
        if !(0.0..=4.0).contains(&zipf_exponent) {
            return Err(ConfigError::ZipfExponent(zipf_exponent));
        }
        let mut prng = Prng::new(seed);
        let arrivals = Arrivals::new(prng.fork(1), OPEN_NS, mean_rate, bursts);
        // Locates go by name, activity does not.
        let mut locates: Vec<u16> = (1..=symbols).collect();
        prng.fork(2).shuffle(&mut locates);
        let mut prices = prng.fork(3);
        Ok(Self {
            config,
            arrivals,
            symbol_chances: zipf(symbols, zipf_exponent),
            locates,
            books: (0..=symbols).map(|_| Book::new(&mut prices)).collect(),
            mix_total: MIX.iter().map(|&(_, weight)| weight).sum(),
            index: 0,
            last_reference: 0,
            last_match: 0,
            buffer: BytesMut::new(),
            prng,
        })
    }

    /// The symbol of a locate: A to Z, AA to ZZ, and so on.
    pub fn symbol(locate: u16) -> Stock {
        let mut raw = [b' '; 8];
        let (mut left, mut letters) = (u32::from(locate), 0);
        while left > 0 {
            left -= 1;
            raw[letters] = b'A' + (left % 26) as u8;
            letters += 1;
            left /= 26;
        }
        raw[..letters].reverse();
        Alpha(raw)
    }

    /// Messages before the market opens.
    fn opening_messages(&self) -> u64 {
        MESSAGES_PER_SYMBOL * u64::from(self.config.symbols) + OPENING.len() as u64 + 1
    }

    fn next_owned(&mut self) -> Owned {
        let opening = self.opening_messages();
        if self.index < opening {
            let ahead_ns = (opening - self.index) as f64 * 1e9 / self.config.mean_rate;
            return self.opening(self.index, OPEN_NS.saturating_sub(ahead_ns as u64));
        }
        let time_ns = self.arrivals.next().min(TIME_NS_MAX);
        let left = self.config.messages - self.index;
        let has_room = self.config.messages >= opening + CLOSING.len() as u64;
        if has_room && left <= CLOSING.len() as u64 {
            return plain::system_event(time_ns, CLOSING[CLOSING.len() - left as usize]);
        }
        self.trading(time_ns)
    }

    fn trading(&mut self, timestamp_ns: u64) -> Owned {
        let mut kind = self.draw_kind();
        let mut locate = self.draw_symbol();
        for _ in 0..SYMBOL_TRIES {
            if self.fits(kind, locate) {
                return self.make(kind, timestamp_ns, locate);
            }
            locate = self.draw_symbol();
        }
        // Nearly all books are empty, or all that were tried are full.
        kind = match self.books[usize::from(locate)].len() {
            0 => ItchKind::AddOrder,
            _ => ItchKind::OrderDelete,
        };
        self.make(kind, timestamp_ns, locate)
    }

    fn draw_kind(&mut self) -> ItchKind {
        let mut ticket = self.prng.below(self.mix_total);
        for (kind, weight) in MIX {
            if ticket < weight {
                return kind;
            }
            ticket -= weight;
        }
        ItchKind::AddOrder
    }

    fn draw_symbol(&mut self) -> u16 {
        let draw = self.prng.unit();
        let place = self.symbol_chances.partition_point(|&chance| chance <= draw);
        self.locates[place.min(self.locates.len() - 1)]
    }

    /// Whether this symbol's book can take a message of this kind.
    fn fits(&self, kind: ItchKind, locate: u16) -> bool {
        let book = &self.books[usize::from(locate)];
        match kind {
            ItchKind::AddOrder | ItchKind::AddOrderMpid => book.len() < ORDERS_MAX,
            ItchKind::OrderDelete
            | ItchKind::OrderReplace
            | ItchKind::OrderExecuted
            | ItchKind::OrderExecutedWithPrice
            | ItchKind::OrderCancel => book.len() > 0,
            ItchKind::BrokenTrade => self.last_match > 0,
            _ => true,
        }
    }

    fn make(&mut self, kind: ItchKind, timestamp_ns: u64, stock_locate: u16) -> Owned {
        match kind {
            ItchKind::AddOrder | ItchKind::AddOrderMpid => {
                self.add(kind, timestamp_ns, stock_locate)
            }
            ItchKind::OrderDelete | ItchKind::OrderReplace | ItchKind::OrderCancel => {
                self.change(kind, timestamp_ns, stock_locate)
            }
            ItchKind::OrderExecuted | ItchKind::OrderExecutedWithPrice => {
                self.execute(kind, timestamp_ns, stock_locate)
            }
            _ => self.other(kind, timestamp_ns, stock_locate),
        }
    }

    fn add(&mut self, kind: ItchKind, timestamp_ns: u64, stock_locate: u16) -> Owned {
        self.last_reference += 1;
        let buy = self.prng.chance(0.5);
        let book = &mut self.books[usize::from(stock_locate)];
        let order = book.add(&mut self.prng, self.last_reference, buy);
        let add = itch::AddOrder {
            stock_locate,
            timestamp_ns,
            order_reference: order.reference,
            side: Code(if buy { b'B' } else { b'S' }),
            shares: order.shares,
            stock: Self::symbol(stock_locate),
            price: Price4(order.price_cents * UNITS_PER_CENT),
            ..Default::default()
        };
        if kind == ItchKind::AddOrder {
            return Owned::AddOrder(add);
        }
        Owned::AddOrderMpid(itch::AddOrderMpid {
            stock_locate,
            timestamp_ns,
            order_reference: add.order_reference,
            side: add.side,
            shares: add.shares,
            stock: add.stock,
            price: add.price,
            attribution: self.participant(),
            ..Default::default()
        })
    }

    /// Deletes, reduces or replaces an order.
    fn change(&mut self, kind: ItchKind, timestamp_ns: u64, stock_locate: u16) -> Owned {
        let book = &mut self.books[usize::from(stock_locate)];
        let at = book.any(&mut self.prng).expect("a book with an order was chosen");
        let order = book.order(at);
        if kind == ItchKind::OrderCancel && order.shares > 1 {
            let cancelled_shares = 1 + self.prng.below(u64::from(order.shares) - 1) as u32;
            book.reduce(at, cancelled_shares);
            let order_reference = order.reference;
            return Owned::OrderCancel(itch::OrderCancel {
                stock_locate,
                timestamp_ns,
                order_reference,
                cancelled_shares,
                ..Default::default()
            });
        }
        book.remove(at);
        if kind == ItchKind::OrderReplace {
            self.last_reference += 1;
            let new = book.add(&mut self.prng, self.last_reference, order.buy);
            return Owned::OrderReplace(itch::OrderReplace {
                stock_locate,
                timestamp_ns,
                original_reference: order.reference,
                new_reference: new.reference,
                shares: new.shares,
                price: Price4(new.price_cents * UNITS_PER_CENT),
                ..Default::default()
            });
        }
        let order_reference = order.reference;
        Owned::OrderDelete(itch::OrderDelete {
            stock_locate,
            timestamp_ns,
            order_reference,
            ..Default::default()
        })
    }

    /// Executes the best order of a side, wholly or in part.
    fn execute(&mut self, kind: ItchKind, timestamp_ns: u64, stock_locate: u16) -> Owned {
        let book = &mut self.books[usize::from(stock_locate)];
        let buy = self.prng.chance(0.5);
        let best = book.best(buy).or_else(|| book.best(!buy));
        let at = best.expect("a book with an order was chosen");
        let order = book.order(at);
        let whole = order.shares == 1 || self.prng.chance(WHOLE_EXECUTION);
        let executed_shares = match whole {
            true => order.shares,
            false => 1 + self.prng.below(u64::from(order.shares) - 1) as u32,
        };
        book.reduce(at, executed_shares);
        self.last_match += 1;
        let (order_reference, match_number) = (order.reference, self.last_match);
        if kind == ItchKind::OrderExecuted {
            return Owned::OrderExecuted(itch::OrderExecuted {
                stock_locate,
                timestamp_ns,
                order_reference,
                executed_shares,
                match_number,
                ..Default::default()
            });
        }
        // Better for the order by a cent: lower when it buys, higher when it sells.
        let cents = if order.buy { order.price_cents.max(2) - 1 } else { order.price_cents + 1 };
        Owned::OrderExecutedWithPrice(itch::OrderExecutedWithPrice {
            stock_locate,
            timestamp_ns,
            order_reference,
            executed_shares,
            match_number,
            printable: Code(b'Y'),
            execution_price: Price4(cents * UNITS_PER_CENT),
            ..Default::default()
        })
    }
}

impl MessageSource for Generator {
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
        if self.index == self.config.messages {
            return Ok(None);
        }
        let message = self.next_owned();
        if self.buffer.capacity() < itch::MESSAGE_BYTES_MAX {
            self.buffer = BytesMut::with_capacity(CHUNK_BYTES);
        }
        message.encode_into(&mut self.buffer);
        let bytes = self.buffer.split().freeze();
        let header = Header { locate: message.stock_locate(), time_ns: message.timestamp_ns() };
        let (time_ns, shard_key) = (header.time_ns, header.shard_key());
        let index = self.index;
        self.index += 1;
        Ok(Some(FeedMessage { index, time_ns, shard_key, format: ITCH, bytes }))
    }
}

/// Chances of symbols up to and with each, by Zipf's law.
fn zipf(symbols: u16, exponent: f64) -> Vec<f64> {
    let weights = (1..=symbols).map(|rank| math::pow(f64::from(rank), -exponent));
    let total: f64 = weights.clone().sum();
    let mut sum = 0.0;
    weights
        .map(|weight| {
            sum += weight / total;
            sum
        })
        .collect()
}
