//! NASDAQ TotalView-ITCH 5.0: every message type, read in place and written back.
//!
//! A day has 370 million messages of 12 to 50 bytes, so nothing is copied for reading. A [`View`]
//! is the borrowed bytes, whose length was checked once, and each accessor is one big-endian load.
//! One table holds the layout of every type. Kinds, views, owned messages, encoding, the field list
//! and the CSV come from it, and the compiler checks that the fields of each type lie end to end.
//!
//! Decoding is total: any bytes give a message or an [`ItchError`] that names the fault.

pub(crate) mod codec;
mod layout;
mod symbols;
mod types;

#[cfg(test)]
mod tests;

pub use layout::{
    AddOrder, AddOrderMpid, BrokenTrade, CrossTrade, DirectListingCapitalRaise, IpoQuotingPeriod,
    ItchKind, LuldAuctionCollar, MarketParticipantPosition, MwcbDeclineLevel, MwcbStatus, Noii,
    OperationalHalt, OrderCancel, OrderDelete, OrderExecuted, OrderExecutedWithPrice, OrderReplace,
    Owned, RegShoRestriction, RetailPriceImprovement, StockDirectory, StockTradingAction,
    SystemEvent, Trade, View, view,
};
pub use symbols::Symbols;
pub use types::{Alpha, Code, Mpid, Price4, Price8, Stock};

use core::fmt;
use types::Wire;

/// Bytes of the header that every message starts with.
pub const HEADER_BYTES: usize = 11;

/// Bytes of the longest message (NOII).
pub const MESSAGE_BYTES_MAX: usize = 50;

/// One field of a message type, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItchField {
    /// The field's name, as in the accessor.
    pub name: &'static str,
    /// Bytes from the type letter.
    pub offset: usize,
    /// Bytes of the field.
    pub width: usize,
}

/// Bytes that are no ITCH 5.0 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ItchError {
    /// No byte, so no type.
    #[error("an ITCH message of no bytes")]
    Empty,
    /// A type letter that ITCH 5.0 does not have.
    #[error(
        "unknown ITCH 5.0 message type '{}' (0x{letter:02x}), {length} bytes",
        .letter.escape_ascii()
    )]
    UnknownType {
        /// The first byte.
        letter: u8,
        /// Bytes of the message.
        length: usize,
    },
    /// A known type with another length than the specification gives it.
    #[error(
        "ITCH message '{}' ({}) has {} bytes, and this message has {found}",
        char::from(.kind.letter()),
        .kind.name(),
        .kind.length()
    )]
    WrongLength {
        /// The type.
        kind: ItchKind,
        /// Bytes found; [`ItchKind::length`] is what it should be.
        found: usize,
    },
}

/// The 48-bit timestamp of a message that has been decoded.
#[inline]
fn timestamp_ns(bytes: &[u8]) -> u64 {
    let high = u64::from(u16::read(&bytes[5..7]));
    high << 32 | u64::from(u32::read(&bytes[7..HEADER_BYTES]))
}

impl View<'_> {
    /// Index of the security in this day's directory; 0 when the message is of no security.
    #[inline]
    pub fn stock_locate(&self) -> u16 {
        u16::read(&self.bytes()[1..3])
    }

    /// Nasdaq's own tracking number.
    #[inline]
    pub fn tracking_number(&self) -> u16 {
        u16::read(&self.bytes()[3..5])
    }

    /// Nanoseconds since midnight.
    #[inline]
    pub fn timestamp_ns(&self) -> u64 {
        timestamp_ns(self.bytes())
    }

    /// The symbol, for kinds that carry one.
    #[inline]
    pub fn stock(&self) -> Option<Stock> {
        let offset = self.kind().stock_offset()?;
        Some(Stock::read(&self.bytes()[offset..offset + Stock::WIDTH]))
    }
}

impl ItchKind {
    /// The first line of a CSV of messages of this kind.
    pub fn csv_header(self) -> String {
        let mut line = String::from("type,stock_locate,tracking_number,seconds");
        for field in self.fields() {
            line.push(',');
            line.push_str(field.name);
        }
        line
    }
}

/// One line of CSV: letter, locate, tracking number, seconds since midnight, then the fields.
impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.timestamp_ns();
        let letter = char::from(self.kind().letter());
        write!(f, "{letter},{},{}", self.stock_locate(), self.tracking_number())?;
        write!(f, ",{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)?;
        self.write_fields(f)
    }
}
