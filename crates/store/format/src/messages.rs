//! Messages of recordings as values of columns, and back, byte for byte.
//!
//! A recording keeps messages as the venue sent them, in records whose last field is bytes. A
//! column of bytes compresses badly, and no other program reads it. The store knows no venue.
//! Whoever opens the store knows the formats ([`MessageLayouts`]), and describes how the fields of
//! a message lie in its bytes ([`FormatLayout`]). A chunk keeps the descriptions of its own
//! messages in its footer. So any build with columns reads any chunk, and only the writer knows
//! formats.
//!
//! ```text
//!  0           8           16       18       19
//! +-----------+-----------+--------+--------+-------------------
//! | time  i64 | number u64| length | format | message, then zero        a record of a recording
//! +-----------+-----------+--------+--------+-------------------
//! ```
//!
//! Taking a message apart is called shredding, and putting it together assembling, as for the
//! records of Dremel. A message that does not come back equal is not shredded
//! ([`MessageShredder::shred_message`]): a number with a leading zero in a line of text, for
//! instance, or a text that is not ASCII. The columns then have its bytes.
//!
//! | layout | formats | a value that no column has |
//! |---|---|---|
//! | [`MessageLayout::Kinds`] | binary messages of fixed lengths, told apart by the first byte | all its bytes are in `rest`, one behind the other |
//! | [`MessageLayout::Line`] | lines of text with commas between the fields | the end of the line, in `rest` |

pub mod parts;
mod quarters;
mod shredder;

use std::fmt::{self, Debug};

use serde::{Deserialize, Serialize};

pub use self::quarters::QuarterMemo;
pub use self::shredder::{MessageShredder, ShreddedMessage};
use crate::schema::{FieldType, Schema};

/// Nanoseconds of a day.
pub const DAY_NS: u64 = 86_400_000_000_000;
/// First byte of the number in a record.
pub const NUMBER_AT: usize = 8;
/// First byte of the length in a record.
pub const LENGTH_AT: usize = 16;
/// The byte of the format in a record.
pub const FORMAT_AT: usize = 18;
/// First byte of the message in a record.
pub const MESSAGE_AT: usize = 19;
/// Flag in the length of a message whose own time follows it. The largest record is shorter than
/// this value.
pub const OWN_TIME: u16 = 1 << 15;
/// Flag in the length of a part of a message. The length of a whole message is below this value.
pub const PART: u16 = 1 << 14;
/// The greatest length of a whole message without a time of its own.
pub const PLAIN_LENGTH_MAX: usize = PART as usize - 1;
/// The greatest price that other programs read: a decimal of 64 bits has eighteen digits.
const PRICE_MAX: i64 = 999_999_999_999_999_999;
/// Decimals of prices.
pub const PRICE_DECIMALS: u8 = 4;

/// A value of a message that has a column. The column has the name of the table of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageField {
    /// The time of day in nanoseconds, which becomes a part of the column `time`.
    Time,
    /// The type of the message: text.
    Type,
    /// The security's number.
    Locate,
    /// The venue's own number for tracking.
    Tracking,
    /// The order.
    OrderRef,
    /// The order that replaces it.
    NewOrderRef,
    /// `B` or `S`: text.
    Side,
    /// Shares.
    Shares,
    /// The security: text.
    Symbol,
    /// The price, in units of `10^-PRICE_DECIMALS`.
    Price,
    /// The match.
    Match,
}

impl MessageField {
    /// The fields whose values are numbers.
    pub const NUMBERS: [Self; 7] = [
        Self::Locate,
        Self::Tracking,
        Self::OrderRef,
        Self::NewOrderRef,
        Self::Shares,
        Self::Price,
        Self::Match,
    ];
    /// The fields whose values are text.
    pub const TEXTS: [Self; 3] = [Self::Type, Self::Side, Self::Symbol];

    /// The name of the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Type => "type",
            Self::Locate => "locate",
            Self::Tracking => "tracking",
            Self::OrderRef => "order_ref",
            Self::NewOrderRef => "new_order_ref",
            Self::Side => "side",
            Self::Shares => "shares",
            Self::Symbol => "symbol",
            Self::Price => "price",
            Self::Match => "match",
        }
    }

    /// Whether the numbers of the column have 32 bits.
    pub fn is_narrow(self) -> bool {
        matches!(self, Self::Locate | Self::Tracking)
    }

    /// Whether other programs read this number in the column.
    fn takes(self, value: i64) -> bool {
        match self {
            Self::Locate | Self::Tracking => i32::try_from(value).is_ok(),
            Self::Shares => value >= 0,
            Self::Price => (-PRICE_MAX..=PRICE_MAX).contains(&value),
            _ => true,
        }
    }

    fn number_place(self) -> Option<usize> {
        Self::NUMBERS.iter().position(|field| *field == self)
    }

    fn text_place(self) -> Option<usize> {
        Self::TEXTS.iter().position(|field| *field == self)
    }
}

/// Where a value lies in a binary message. Numbers are big-endian and have no sign. Text is padded
/// with spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldPlace {
    /// The value.
    pub field: MessageField,
    /// Its first byte.
    pub at: u16,
    /// Its bytes.
    pub len: u16,
}

/// The layout of the binary messages that begin with one letter, which is their type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindLayout {
    /// The first byte.
    pub letter: u8,
    /// Bytes of the message.
    pub len: u16,
    /// The values with columns.
    pub fields: Vec<FieldPlace>,
}

/// How a value is written in a line of text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineForm {
    /// Seconds since midnight with nine decimals.
    Seconds,
    /// Seconds since midnight without the zeros at the end of the decimals.
    ShortSeconds,
    /// A whole number.
    Number,
    /// Text.
    Text,
    /// One of these words, and what the column has for it.
    Words(Vec<(String, String)>),
}

/// A field of a line of text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineField {
    /// The value.
    pub field: MessageField,
    /// How it is written.
    pub form: LineForm,
}

/// How the values of a message lie in its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageLayout {
    /// Binary messages whose first byte tells their length and fields.
    Kinds(Vec<KindLayout>),
    /// Lines of text that begin with these fields.
    Line(Vec<LineField>),
}

/// The layout of the messages of a format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatLayout {
    /// The format's tag in a record.
    pub tag: u8,
    /// The layout.
    pub layout: MessageLayout,
}

/// What a program knows of the messages in the records of recordings.
pub trait MessageLayouts: Send + Sync {
    /// The layouts of messages, when records of this schema are messages of a recording. A format
    /// may have several layouts. A chunk takes the one that fits the most of its messages.
    fn layouts_of(&self, schema: &Schema) -> Option<Vec<FormatLayout>>;

    /// What the venue's clock shows at the time of a message, in nanoseconds since 1970 of that
    /// clock. The message was recorded under an instant, and states a time of day or none.
    fn wall_ns(&self, tag: u8, recorded_ns: i64, day_ns: Option<u64>) -> Option<i64>;

    /// The type of a message that has no layout.
    fn type_name(&self, tag: u8, message: &[u8]) -> Option<&'static str>;
}

impl Debug for dyn MessageLayouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageLayouts")
    }
}

/// The layouts that a program knows, if it knows any.
pub type InstalledLayouts = Option<&'static dyn MessageLayouts>;

/// Whether records of this schema have the fields of a record of a recording where these belong.
pub fn is_message_record(schema: &Schema) -> bool {
    let has = |name: &str, at: usize, len: usize, kind| {
        schema.field(name).is_some_and(|field| {
            (usize::from(field.offset), usize::from(field.len), field.kind) == (at, len, kind)
        })
    };
    let room = usize::from(schema.record_bytes).saturating_sub(MESSAGE_AT);
    has("time", 0, 8, FieldType::Time)
        && has("number", NUMBER_AT, 8, FieldType::U64)
        && has("length", LENGTH_AT, 2, FieldType::U16)
        && has("format", FORMAT_AT, 1, FieldType::U8)
        && has("message", MESSAGE_AT, room, FieldType::Bytes)
}
