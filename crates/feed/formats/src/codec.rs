//! The formats: each has a tag, a name, a way to be recognised in a file and a way to be read.
//!
//! A message's first bytes do not tell its format: 51 of 20,560 datagrams of a MIAX capture have
//! the length and the first letter of an ITCH message. The format is therefore found once, where a
//! feed is opened, from all of its structure or from the user's word. The format then travels with
//! each message as a [`Format`] tag. Code that reads a message asks [`of`] for the tag's codec.
//!
//! # Another format
//!
//! Two files change for a format of captures. Recorder, subscriber, export and fuzz targets go over
//! [`CODECS`], so nothing changes there. A format with columns of its own has a paragraph under
//! "Other formats" in `docs/query.md`. A format that has files of its own ([`Codec::open`]) is
//! also named to people, in `error.rs` of this crate, `feed/service/src/settings.rs`, the help of
//! `demo` and of `store append`, `docs/configuration.md` and README.md.
//!
//! 1. `codec/NAME.rs`: a [`Codec`], as in the example below. To begin from a codec of the crate,
//!    copy `codec/mach.rs`, a whole one in one file, with columns, names of securities, quotes,
//!    trades and tests. `codec/mdp3.rs` and `codec/mdp3/entries.rs` read SBE messages: blocks
//!    and groups of entries, whose fields have other places in each template.
//! 2. This file: `mod NAME;`, a tag with the next free number, and an entry in [`CODECS`].
//!    Recordings keep tags, so a tag never changes its meaning.
//!
//! What a codec has to know:
//!
//! - A [`FeedMessage`](crate::FeedMessage) of a file is what [`Codec::open`] gives. A message of a
//!   capture is a whole UDP datagram, in which the venue may have packed several messages about
//!   several securities. [`Codec::events`] therefore gives an [`Event`] for **each** of the venue's
//!   messages. A subscriber that filters by symbol gets the datagram when one of the events has a
//!   wanted symbol, or has none. A table shows one row for the datagram, with the fields on which
//!   all of its events agree ([`Events::read`](crate::event::Events::read)). A message whose fields
//!   are not decoded gives an event with its kind alone; the fuzz target asserts that.
//! - The format of a channel of a capture is found from its first datagrams, for three of four of
//!   which [`Codec::is_packet`] must hold. The function reads a datagram to the last byte, because
//!   bytes of one format may look like another format by chance. A codec that accepts datagrams of
//!   another codec as well names the other codec in [`Codec::yields_to`].
//! - The codec brings the columns of the table `messages` of its recordings ([`Codec::columns`],
//!   [`crate::columns`]), with whatever decimals and lengths the venue has. Prices with more
//!   decimals than an [`Event`] has are in the codec's own columns only.
//! - The tables `trades` and `quotes`, and the book at a time, are made out of what the codec says
//!   of price levels and trades ([`Codec::market_codec`], [`crate::books::levels`]). A codec that
//!   says nothing of them has these tables refused by its name.
//! - [`Event::price`] is in 1/10,000 dollar, [`Event::event_ns`] counts from [`Codec::clock`], and
//!   a symbol has 8 bytes, padded with spaces ([`Stock::new`](crate::itch::Stock)). A venue that
//!   names a security once and then only numbers it is read with [`Symbols::learn`] and
//!   [`Symbols::symbol`].
//! - Any bytes may come. Read with `get` and `first_chunk`, never by an index. The fuzz target
//!   `feed` gives every codec of the list any bytes.
//!
//! ```
//! use evenfall_feed_formats::Format;
//! use evenfall_feed_formats::codec::{TimeOrigin, Codec};
//! use evenfall_feed_formats::event::Event;
//! use evenfall_feed_formats::itch::{Alpha, Symbols};
//!
//! /// A packet holds any number of trades of 20 bytes, little-endian: symbol, price with 2
//! /// decimals (u32), nanoseconds since 1970 (u64).
//! struct Trades;
//!
//! fn event(trade: &[u8; 20]) -> Event {
//!     let symbol = core::str::from_utf8(&trade[..8]).ok().and_then(Alpha::new);
//!     let [cents, ns] = [8..12, 12..20].map(|at| {
//!         trade[at].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
//!     });
//!     let price = Some(cents as i64 * 100);
//!     Event { kind: Some("Trade"), symbol, price, event_ns: Some(ns), ..Event::default() }
//! }
//!
//! impl Codec for Trades {
//!     fn format(&self) -> Format {
//!         Format(200)
//!     }
//!     fn word(&self) -> &'static str {
//!         "trades"
//!     }
//!     fn name(&self) -> &'static str {
//!         "Example trades"
//!     }
//!     fn clock(&self) -> TimeOrigin {
//!         TimeOrigin::Epoch
//!     }
//!     fn is_packet(&self, datagram: &[u8]) -> bool {
//!         self.type_name(datagram).is_some()
//!     }
//!     fn type_name(&self, message: &[u8]) -> Option<&'static str> {
//!         let is_whole = !message.is_empty() && message.len().is_multiple_of(20);
//!         is_whole.then_some("Trade")
//!     }
//!     fn events(&self, message: &[u8], _: &mut Symbols, each: &mut dyn FnMut(Event)) {
//!         let (trades, rest) = message.as_chunks();
//!         trades.iter().filter(|_| rest.is_empty()).map(event).for_each(each);
//!     }
//! }
//!
//! let trade = |symbol: &[u8; 8], cents: u32| {
//!     [&symbol[..], &cents.to_le_bytes(), &7_u64.to_le_bytes()].concat()
//! };
//! let packet = [trade(b"AAPL    ", 10_000), trade(b"MSFT    ", 20_000)].concat();
//! let mut prices = Vec::new();
//! Trades.events(&packet, &mut Symbols::new(), &mut |event| prices.extend(event.price));
//! assert_eq!(prices, [1_000_000, 2_000_000]);
//! assert!(!Trades.is_packet(&packet[1..]));
//! ```

mod mach;
mod mdp3;

use core::fmt;
use std::io::Read;

pub use evenfall_core::Format;

use crate::books::levels::MarketCodec;
use crate::columns::{ColumnSink, MessageColumn, TYPE_COLUMNS};
use crate::error::UnknownFormat;
use crate::event::{EVENT_COLUMNS, Event};
use crate::itch::Symbols;
use crate::source::MessageSource;

/// NASDAQ TotalView-ITCH 5.0.
pub const ITCH: Format = Format(1);
/// LOBSTER message CSV.
pub const LOBSTER: Format = Format(2);
/// CME MDP 3.0, packets of SBE messages.
pub const MDP3: Format = Format(3);
/// MIAX MACH, packets of the Top of Market feed.
pub const MACH: Format = Format(4);

/// All codecs, in any order. Where nothing names the format, the only codec that recognises the
/// bytes is taken; see [`Codec::yields_to`] for bytes that several codecs recognise.
pub const CODECS: &[&dyn Codec] =
    &[&crate::framed::ItchCodec, &crate::lobster::LobsterCodec, &mdp3::Mdp3, &mach::Mach];

/// The origin of a message's own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOrigin {
    /// Midnight of the trading day, in this zone of the IANA time zone database.
    Midnight {
        /// The zone, such as `America/New_York`.
        zone: &'static str,
    },
    /// 1970 in UTC.
    Epoch,
}

/// The number and the time at the head of a packet of several messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead {
    /// The packet's number on its channel.
    pub sequence: u64,
    /// When the venue sent the packet, in nanoseconds since 1970.
    pub sent_ns: u64,
}

/// A format.
pub trait Codec: Sync {
    /// The tag that messages of the format carry.
    fn format(&self) -> Format;

    /// The format's word on the command line and in settings.
    fn word(&self) -> &'static str;

    /// The format's name for people.
    fn name(&self) -> &'static str;

    /// The origin of a message's own time.
    fn clock(&self) -> TimeOrigin;

    /// Whether a file with this beginning is of the format.
    fn is_file(&self, _head: &[u8]) -> bool {
        false
    }

    /// Reads a file of the format. Errors call the file `name`. `None` for a format that comes only
    /// in captures.
    fn open(
        &self,
        _reader: Box<dyn Read + Send>,
        _name: &str,
    ) -> Option<Box<dyn MessageSource + Send>> {
        None
    }

    /// Whether a datagram of a capture is of the format, down to the datagram's last byte.
    fn is_packet(&self, _datagram: &[u8]) -> bool {
        false
    }

    /// Formats whose bytes this codec recognises as well: their codecs go before this one. Two
    /// families of SBE messages differ in the schema alone, for instance, so that a codec that
    /// takes any schema yields to the codecs of single schemas.
    fn yields_to(&self) -> &'static [Format] {
        &[]
    }

    /// Number and time of a packet, where the format has both at the head of a packet.
    fn packet_head(&self, _packet: &[u8]) -> Option<PacketHead> {
        None
    }

    /// A message's own time in nanoseconds since the origin of [`Codec::clock`], for messages that
    /// come out of an envelope. `None` where the message states none.
    fn own_time_ns(&self, _message: &[u8]) -> Option<u64> {
        None
    }

    /// The key of the messages with which this message must stay in order, for messages that come
    /// live ([`crate::FeedMessage::live`]). A [`MessageSource`] of this codec sets the keys of its
    /// messages itself, and the key of a bare datagram of a capture is its
    /// [`channel`](crate::pcap::channel).
    fn shard_key(&self, _message: &[u8]) -> u32 {
        0
    }

    /// The name of a message's type, for counts; `None` for bytes that are no message of the
    /// format. A datagram of several messages has the name of the first.
    fn type_name(&self, message: &[u8]) -> Option<&'static str>;

    /// The contents of a message: one event, or one for each of the venue's messages in a datagram
    /// of a capture. Bytes that are no message of the format give no event. A format that is not
    /// decoded gives only the name of the type. `symbols` has the securities that earlier messages
    /// named.
    fn events(&self, message: &[u8], _symbols: &mut Symbols, each: &mut dyn FnMut(Event)) {
        let kind = self.type_name(message);
        kind.into_iter().for_each(|_| each(Event { kind, ..Event::default() }));
    }

    /// The columns of a table of the format's messages. The first is the type.
    fn columns(&self) -> &'static [MessageColumn] {
        TYPE_COLUMNS
    }

    /// Puts what a message states into the columns, and ends each row: one row, or one for each
    /// statement of a datagram. Bytes that are no message of the format give no row. `symbols` has
    /// the securities that earlier messages named.
    fn put_rows(&self, message: &[u8], _symbols: &mut Symbols, sink: &mut dyn ColumnSink) {
        let Some(name) = self.type_name(message) else { return };
        sink.put_text(0, name);
        sink.end_row();
    }

    /// Whether the columns are the format's own, and not those that [`Event`]s have.
    fn has_own_columns(&self) -> bool {
        self.columns() != EVENT_COLUMNS
    }

    /// The column with the venue's time of a row, in nanoseconds since the origin of
    /// [`Codec::clock`]; `None` for a format whose own columns have no such time.
    fn time_column(&self) -> Option<usize> {
        None
    }

    /// Learns the securities that a message names, as [`Codec::put_rows`] does.
    fn learn_names(&self, _message: &[u8], _symbols: &mut Symbols) {}

    /// What messages say of books of price levels and of trades; `None` for a format that is read
    /// into [`Books`](crate::books::Books) by orders, or not at all.
    fn market_codec(&self) -> Option<&dyn MarketCodec> {
        None
    }
}

impl fmt::Debug for dyn Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The codec of a tag; `None` for opaque bytes and for tags of later versions.
pub fn of(format: Format) -> Option<&'static dyn Codec> {
    CODECS.iter().copied().find(|codec| codec.format() == format)
}

/// The codec of a word of the command line.
///
/// # Errors
/// The known words.
pub fn named(word: &str) -> Result<&'static dyn Codec, UnknownFormat> {
    let found = CODECS.iter().copied().find(|codec| codec.word() == word);
    found.ok_or_else(|| UnknownFormat(word.to_owned()))
}

/// The words of all formats, for help and errors.
pub fn words() -> String {
    let words: Vec<&str> = CODECS.iter().map(|codec| codec.word()).collect();
    words.join(", ")
}

/// The name of a tag for people.
pub fn name(format: Format) -> &'static str {
    of(format).map_or("opaque", Codec::name)
}

/// The format of bytes without a tag, such as a recording of an earlier version. The result is the
/// format that reads all of the messages, or opaque when no format reads them.
pub fn of_untagged<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Format {
    let mut left = CODECS.to_vec();
    let mut is_empty = true;
    for message in messages {
        left.retain(|codec| codec.type_name(message).is_some());
        is_empty = false;
    }
    chosen(left).filter(|_| !is_empty).map_or(Format::OPAQUE, |codec| codec.format())
}

/// The codec of a file that starts so.
#[cfg(feature = "files")]
pub(crate) fn of_file(head: &[u8]) -> Option<&'static dyn Codec> {
    chosen(CODECS.iter().copied().filter(|codec| codec.is_file(head)))
}

/// Of codecs that all recognise the same bytes, the codec that yields to no other codec. `None`
/// when several are left: then the bytes do not say their format, and nothing is guessed.
fn chosen<'a>(all: impl IntoIterator<Item = &'a dyn Codec>) -> Option<&'a dyn Codec> {
    let all: Vec<&dyn Codec> = all.into_iter().collect();
    let yields = |codec: &&dyn Codec| {
        codec.yields_to().iter().any(|to| all.iter().any(|other| other.format() == *to))
    };
    let mut left = all.iter().copied().filter(|codec| !yields(codec));
    left.next().filter(|_| left.next().is_none())
}

/// The codec that takes at least three of four of these datagrams or messages. A damaged datagram
/// among a channel's first does not hide the channel's format. `wanted` leaves one codec to choose.
pub(crate) fn of_most<'a>(
    items: impl Iterator<Item = &'a [u8]> + Clone,
    wanted: Option<Format>,
    is_taken: impl Fn(&dyn Codec, &[u8]) -> bool,
) -> Option<&'static dyn Codec> {
    let total = items.clone().count();
    let takes_most = |codec: &&dyn Codec| {
        let taken = items.clone().filter(|item| is_taken(*codec, item)).count();
        taken > 0 && taken * 4 >= total * 3
    };
    let asked = |codec: &&dyn Codec| wanted.is_none_or(|format| codec.format() == format);
    let found = CODECS.iter().copied().filter(asked).filter(takes_most);
    chosen_of(found)
}

fn chosen_of(all: impl IntoIterator<Item = &'static dyn Codec>) -> Option<&'static dyn Codec> {
    chosen(all).map(Codec::format).and_then(of)
}

/// Nanoseconds of a day without a change of the clocks.
pub const DAY_NS: u64 = 86_400_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A codec that takes any SBE packet, of whatever schema; or one that takes any bytes.
    struct Wide(Format, &'static [Format]);

    impl Codec for Wide {
        fn format(&self) -> Format {
            self.0
        }

        fn word(&self) -> &'static str {
            "wide"
        }

        fn name(&self) -> &'static str {
            "any packet"
        }

        fn clock(&self) -> TimeOrigin {
            TimeOrigin::Epoch
        }

        fn yields_to(&self) -> &'static [Format] {
            self.1
        }

        fn type_name(&self, _: &[u8]) -> Option<&'static str> {
            None
        }
    }

    #[test]
    fn a_codec_of_many_schemas_yields_to_the_codec_of_one_wherever_it_stands() {
        let any_schema = Wide(Format(201), &[MDP3]);
        let narrow: &dyn Codec = &mdp3::Mdp3;
        for both in [[&any_schema, narrow], [narrow, &any_schema]] {
            assert_eq!(chosen(both).map(Codec::format), Some(MDP3));
        }
        assert_eq!(chosen([&any_schema as &dyn Codec]).map(Codec::format), Some(Format(201)));
    }

    #[test]
    fn bytes_that_two_codecs_claim_alike_are_of_no_format() {
        let (one, other) = (Wide(Format(201), &[]), Wide(Format(202), &[]));
        assert!(chosen([&one as &dyn Codec, &other]).is_none());
        assert!(chosen([]).is_none());
    }

    #[test]
    fn no_codec_yields_in_a_circle_or_to_itself() {
        for codec in CODECS {
            let mut asked = codec.yields_to().to_vec();
            for _ in CODECS {
                assert!(!asked.contains(&codec.format()), "{}", codec.word());
                let next = asked.iter().filter_map(|format| of(*format));
                asked = next.flat_map(Codec::yields_to).copied().collect();
            }
        }
    }

    #[test]
    fn tags_and_words_are_each_of_one_codec() {
        for codec in CODECS {
            assert!(named("fix").unwrap_err().to_string().contains(codec.word()));
            assert_eq!(of(codec.format()).unwrap().word(), codec.word());
            assert_eq!(named(codec.word()).unwrap().format(), codec.format());
            assert_ne!(codec.format(), Format::OPAQUE);
        }
        // Recordings keep tags, so these numbers never change. New tags need not be listed here.
        assert_eq!([ITCH, LOBSTER, MDP3, MACH].map(|format| format.0), [1, 2, 3, 4]);
        assert!(of(Format(200)).is_none());
    }
}
