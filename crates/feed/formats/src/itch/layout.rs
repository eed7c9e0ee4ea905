//! The layout of every message. Kinds, views, owned messages and the field table all come from the
//! one table at the end of this file.
//!
//! ```text
//!  0       1       3       5                       11                    length of the type
//!  +-------+-------+-------+-----------------------+---------------------+
//!  | type  | stock | track | nanoseconds since     | fields of the type  |   all big-endian
//!  | letter| locate| number| midnight (48 bits)    |                     |
//!  +-------+-------+-------+-----------------------+---------------------+
//! ```
//!
//! Source: Nasdaq TotalView-ITCH 5.0 specification, section 4 (message formats), with the direct
//! listing message that later revisions add.

use super::types::{Alpha, Code, Mpid, Price4, Price8, Stock, Wire};
use super::{HEADER_BYTES, ItchError, ItchField};
use bytes::BufMut;
use core::fmt;

/// The place of `stock` among the fields, found while compiling.
const fn stock_offset(fields: &[ItchField]) -> Option<usize> {
    let mut i = 0;
    while i < fields.len() {
        if matches!(fields[i].name.as_bytes(), b"stock") {
            return Some(fields[i].offset);
        }
        i += 1;
    }
    None
}

/// Whether the fields lie one after the other and end where the message ends.
const fn contiguous(fields: &[ItchField], length: usize) -> bool {
    let mut next = HEADER_BYTES;
    let mut i = 0;
    while i < fields.len() {
        if fields[i].offset != next {
            return false;
        }
        next += fields[i].width;
        i += 1;
    }
    next == length
}

macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $letter:literal $name:ident $length:literal {
            $( $(#[$field_doc:meta])* $offset:literal $field:ident : $type:ty, )*
        }
    )*) => {
        /// The type of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ItchKind {
            $( $(#[$doc])* $name, )*
        }

        impl ItchKind {
            /// Every kind, in the order of the specification.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];

            /// The kind of this type letter; `None` for a letter that ITCH 5.0 does not have.
            #[inline]
            pub const fn from_letter(letter: u8) -> Option<Self> {
                match letter {
                    $( $letter => Some(Self::$name), )*
                    _ => None,
                }
            }

            /// The type letter, the first byte of the message.
            pub const fn letter(self) -> u8 {
                match self { $( Self::$name => $letter, )* }
            }

            /// Bytes of a message of this kind, the letter included.
            #[inline]
            pub const fn length(self) -> usize {
                match self { $( Self::$name => $length, )* }
            }

            /// The name of the type.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$name => stringify!($name), )* }
            }

            /// The fields behind the common header.
            pub const fn fields(self) -> &'static [ItchField] {
                match self {
                    $( Self::$name => const {
                        &[$( ItchField {
                            name: stringify!($field),
                            offset: $offset,
                            width: <$type as Wire>::WIDTH,
                        }, )*]
                    }, )*
                }
            }

            /// Where the symbol is, for kinds that carry one.
            pub const fn stock_offset(self) -> Option<usize> {
                match self {
                    $( Self::$name => const { stock_offset(ItchKind::$name.fields()) }, )*
                }
            }
        }

        $( const _: () = assert!(contiguous(ItchKind::$name.fields(), $length)); )*

        /// A message that is read in place: borrowed bytes of the right length, from which a field
        /// is read when it is asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum View<'a> {
            $( $(#[$doc])* $name(view::$name<'a>), )*
        }

        impl<'a> View<'a> {
            /// Reads one message.
            ///
            /// # Errors
            /// [`ItchError`] when the slice is empty, its type is unknown, or its length is not
            /// that of its type. Field values are not checked, because every pattern of bits is a
            /// value.
            #[inline]
            pub fn decode(bytes: &'a [u8]) -> Result<Self, ItchError> {
                let Some(&letter) = bytes.first() else { return Err(ItchError::Empty) };
                match letter {
                    $( $letter => match bytes.try_into() {
                        Ok(bytes) => Ok(Self::$name(view::$name { bytes })),
                        Err(_) => Err(ItchError::WrongLength {
                            kind: ItchKind::$name,
                            found: bytes.len(),
                        }),
                    }, )*
                    _ => Err(ItchError::UnknownType { letter, length: bytes.len() }),
                }
            }

            /// The type of the message.
            #[inline]
            pub fn kind(&self) -> ItchKind {
                match self { $( Self::$name(_) => ItchKind::$name, )* }
            }

            /// The bytes of the message, from the type letter on.
            #[inline]
            pub fn bytes(&self) -> &'a [u8] {
                match self { $( Self::$name(view) => view.bytes, )* }
            }

            /// An owned copy with public fields.
            pub fn to_owned(&self) -> Owned {
                match self { $( Self::$name(view) => Owned::$name(view.to_owned()), )* }
            }

            /// Writes the values after the common header, with a comma before each.
            pub(super) fn write_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $( Self::$name(_view) => {
                        $( write!(f, ",{}", _view.$field())?; )*
                        Ok(())
                    } )*
                }
            }
        }

        /// A message as values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Owned {
            $( $(#[$doc])* $name($name), )*
        }

        impl Owned {
            /// Appends the message to `out`.
            pub fn encode_into(&self, out: &mut impl BufMut) {
                match self { $( Self::$name(message) => out.put_slice(&message.encode()), )* }
            }

            /// The type of the message.
            pub fn kind(&self) -> ItchKind {
                match self { $( Self::$name(_) => ItchKind::$name, )* }
            }

            /// Index of the security in this day's directory.
            pub fn stock_locate(&self) -> u16 {
                match self { $( Self::$name(message) => message.stock_locate, )* }
            }

            /// Nanoseconds since midnight.
            pub fn timestamp_ns(&self) -> u64 {
                match self { $( Self::$name(message) => message.timestamp_ns, )* }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name {
                /// Index of the security in this day's directory; 0 when it is of no security.
                pub stock_locate: u16,
                /// Nasdaq's own tracking number.
                pub tracking_number: u16,
                /// Nanoseconds since midnight; the wire keeps the low 48 bits, which is 78 hours.
                pub timestamp_ns: u64,
                $( $(#[$field_doc])* pub $field: $type, )*
            }

            impl $name {
                /// The message on the wire, without a length in front.
                pub fn encode(&self) -> [u8; $length] {
                    let mut out = [0; $length];
                    out[0] = $letter;
                    self.stock_locate.write(&mut out[1..3]);
                    self.tracking_number.write(&mut out[3..5]);
                    out[5..HEADER_BYTES].copy_from_slice(&self.timestamp_ns.to_be_bytes()[2..]);
                    $( self.$field.write(&mut out[$offset..$offset + <$type as Wire>::WIDTH]); )*
                    out
                }
            }
        )*

        /// The view of each type. [`View`] is the union of these types.
        pub mod view {
            use super::*;
            $(
                $(#[$doc])*
                #[derive(Clone, Copy, Debug, PartialEq, Eq)]
                pub struct $name<'a> {
                    pub(super) bytes: &'a [u8; $length],
                }

                impl $name<'_> {
                    /// Index of the security in this day's directory.
                    #[inline]
                    pub fn stock_locate(&self) -> u16 {
                        u16::read(&self.bytes[1..3])
                    }
                    /// Nasdaq's own tracking number.
                    #[inline]
                    pub fn tracking_number(&self) -> u16 {
                        u16::read(&self.bytes[3..5])
                    }
                    /// Nanoseconds since midnight.
                    #[inline]
                    pub fn timestamp_ns(&self) -> u64 {
                        super::super::timestamp_ns(self.bytes)
                    }
                    $(
                        $(#[$field_doc])*
                        #[inline]
                        pub fn $field(&self) -> $type {
                            <$type>::read(&self.bytes[$offset..$offset + <$type as Wire>::WIDTH])
                        }
                    )*
                    /// An owned copy with public fields.
                    pub fn to_owned(&self) -> super::$name {
                        super::$name {
                            stock_locate: self.stock_locate(),
                            tracking_number: self.tracking_number(),
                            timestamp_ns: self.timestamp_ns(),
                            $( $field: self.$field(), )*
                        }
                    }
                }
            )*
        }
    };
}

messages! {
    /// An event of the whole market: start and end of messages, system hours, market hours.
    b'S' SystemEvent 12 {
        /// O S Q M E C: start of messages, system, market; end of market, system, messages.
        11 event_code: Code,
    }
    /// A security that is traded today, and the locate it goes by.
    b'R' StockDirectory 39 {
        /// The symbol.
        11 stock: Stock,
        /// Listing market or tier: Q G S N A P Z V, or space.
        19 market_category: Code,
        /// Standing with the listing rules: D E Q S G H J K C N, or space.
        20 financial_status: Code,
        /// Shares in a round lot.
        21 round_lot_size: u32,
        /// Y when only round lots are taken.
        25 round_lots_only: Code,
        /// Class of the issue, by the specification's appendix.
        26 issue_classification: Code,
        /// Sub-type of the issue, by the specification's appendix.
        27 issue_sub_type: Alpha<2>,
        /// P live, T test.
        29 authenticity: Code,
        /// Y when held by the short sale threshold rule; N, or space.
        30 short_sale_threshold: Code,
        /// Y when the security is set up for an IPO release.
        31 ipo_flag: Code,
        /// Reference price tier of limit up / limit down: 1, 2, or space.
        32 luld_reference_price_tier: Code,
        /// Y for an exchange traded product.
        33 etp_flag: Code,
        /// Leverage of the product.
        34 etp_leverage_factor: u32,
        /// Y when the product moves against its index.
        38 inverse_indicator: Code,
    }
    /// A security is halted, paused, quoted only, or trades.
    b'H' StockTradingAction 25 {
        /// The symbol.
        11 stock: Stock,
        /// H halted, P paused, Q quotation only, T trading.
        19 trading_state: Code,
        /// Reserved.
        20 reserved: Code,
        /// Why, by the specification's appendix.
        21 reason: Alpha<4>,
    }
    /// The short sale price test of Reg SHO for a security.
    b'Y' RegShoRestriction 20 {
        /// The symbol.
        11 stock: Stock,
        /// 0 none, 1 in effect by a drop today, 2 remains in effect.
        19 action: Code,
    }
    /// A market participant's standing in a security.
    b'L' MarketParticipantPosition 26 {
        /// The participant.
        11 mpid: Mpid,
        /// The symbol.
        15 stock: Stock,
        /// Y for a primary market maker.
        23 primary_market_maker: Code,
        /// N normal, P passive, S syndicate, R pre-syndicate, L penalty.
        24 market_maker_mode: Code,
        /// A active, E excused, W withdrawn, S suspended, D deleted.
        25 participant_state: Code,
    }
    /// The day's price levels of the market-wide circuit breaker.
    b'V' MwcbDeclineLevel 35 {
        /// Level 1.
        11 level_1: Price8,
        /// Level 2.
        19 level_2: Price8,
        /// Level 3.
        27 level_3: Price8,
    }
    /// A level of the market-wide circuit breaker was breached.
    b'W' MwcbStatus 12 {
        /// 1, 2 or 3.
        11 breached_level: Code,
    }
    /// When quoting of an IPO is released.
    b'K' IpoQuotingPeriod 28 {
        /// The symbol.
        11 stock: Stock,
        /// Seconds since midnight.
        19 release_time_s: u32,
        /// A anticipated, C cancelled or postponed.
        23 release_qualifier: Code,
        /// The IPO price.
        24 ipo_price: Price4,
    }
    /// The auction collar of a security in a limit up / limit down pause.
    b'J' LuldAuctionCollar 35 {
        /// The symbol.
        11 stock: Stock,
        /// The price the collars stand around.
        19 reference_price: Price4,
        /// The upper collar.
        23 upper_price: Price4,
        /// The lower collar.
        27 lower_price: Price4,
        /// How often the collar was extended.
        31 extension: u32,
    }
    /// Trading of a security stops or resumes on one market.
    b'h' OperationalHalt 21 {
        /// The symbol.
        11 stock: Stock,
        /// Q Nasdaq, B BX, X PSX.
        19 market_code: Code,
        /// H halted, T resumed.
        20 halt_action: Code,
    }
    /// A new order in the book.
    b'A' AddOrder 36 {
        /// The order's reference number of the day.
        11 order_reference: u64,
        /// B buy, S sell.
        19 side: Code,
        /// Shares.
        20 shares: u32,
        /// The symbol.
        24 stock: Stock,
        /// The limit.
        32 price: Price4,
    }
    /// A new order in the book, with the name of the participant that entered it.
    b'F' AddOrderMpid 40 {
        /// The order's reference number of the day.
        11 order_reference: u64,
        /// B buy, S sell.
        19 side: Code,
        /// Shares.
        20 shares: u32,
        /// The symbol.
        24 stock: Stock,
        /// The limit.
        32 price: Price4,
        /// The participant that entered the order.
        36 attribution: Mpid,
    }
    /// An order in the book was executed, wholly or in part, at its own price.
    b'E' OrderExecuted 31 {
        /// The order.
        11 order_reference: u64,
        /// Shares executed.
        19 executed_shares: u32,
        /// The match, as broken trades name it.
        23 match_number: u64,
    }
    /// An order in the book was executed at another price than its own.
    b'C' OrderExecutedWithPrice 36 {
        /// The order.
        11 order_reference: u64,
        /// Shares executed.
        19 executed_shares: u32,
        /// The match.
        23 match_number: u64,
        /// N when the execution is not to be counted in volumes, else Y.
        31 printable: Code,
        /// The price.
        32 execution_price: Price4,
    }
    /// Part of an order was cancelled.
    b'X' OrderCancel 23 {
        /// The order.
        11 order_reference: u64,
        /// Shares taken away.
        19 cancelled_shares: u32,
    }
    /// An order left the book.
    b'D' OrderDelete 19 {
        /// The order.
        11 order_reference: u64,
    }
    /// An order was replaced by another order on the same side of the same security.
    b'U' OrderReplace 35 {
        /// The order that left.
        11 original_reference: u64,
        /// The order that came.
        19 new_reference: u64,
        /// Shares of the new order.
        27 shares: u32,
        /// Limit of the new order.
        31 price: Price4,
    }
    /// A match against an order that was not displayed.
    b'P' Trade 44 {
        /// The order; zero since non-displayed orders have no number.
        11 order_reference: u64,
        /// Side of the hidden order; always B since 2014.
        19 side: Code,
        /// Shares.
        20 shares: u32,
        /// The symbol.
        24 stock: Stock,
        /// The price.
        32 price: Price4,
        /// The match.
        36 match_number: u64,
    }
    /// A cross of a security is done.
    b'Q' CrossTrade 40 {
        /// Shares matched.
        11 shares: u64,
        /// The symbol.
        19 stock: Stock,
        /// The cross price.
        27 cross_price: Price4,
        /// The match.
        31 match_number: u64,
        /// O opening, C closing, H halted or IPO.
        39 cross_type: Code,
    }
    /// An earlier match is void.
    b'B' BrokenTrade 19 {
        /// The match.
        11 match_number: u64,
    }
    /// Net order imbalance before a cross.
    b'I' Noii 50 {
        /// Shares that match at the reference price.
        11 paired_shares: u64,
        /// Shares that do not.
        19 imbalance_shares: u64,
        /// B buy, S sell, N none, O too few orders, P paused.
        27 imbalance_direction: Code,
        /// The symbol.
        28 stock: Stock,
        /// Clearing price of the cross orders alone.
        36 far_price: Price4,
        /// Clearing price of cross and book orders together.
        40 near_price: Price4,
        /// The price the imbalance is counted at.
        44 reference_price: Price4,
        /// O opening, C closing, H halted or IPO, A extended trading close.
        48 cross_type: Code,
        /// How far the near price is from the reference price, L for less than 1 %.
        49 price_variation: Code,
    }
    /// Retail interest at the best prices.
    b'N' RetailPriceImprovement 20 {
        /// The symbol.
        11 stock: Stock,
        /// B bid, S ask, A both, N none.
        19 interest_flag: Code,
    }
    /// Price discovery of a direct listing with capital raise.
    b'O' DirectListingCapitalRaise 48 {
        /// The symbol.
        11 stock: Stock,
        /// Y when the security may be released for trading, else N.
        19 open_eligibility: Code,
        /// Lowest price the listing may open at.
        20 minimum_price: Price4,
        /// Highest price the listing may open at.
        24 maximum_price: Price4,
        /// The current expected price.
        28 near_execution_price: Price4,
        /// When that price was set, nanoseconds since midnight.
        32 near_execution_time_ns: u64,
        /// The lower collar.
        40 lower_collar: Price4,
        /// The upper collar.
        44 upper_collar: Price4,
    }
}
