//! The formats: each has a tag, a name, a way to be recognised in a file and a way to be read.
//!
//! A message's first bytes do not say its format: 51 of 20,560 datagrams of a MIAX capture have the
//! length and the first letter of an ITCH message. So the format is found out once, where a feed is
//! opened, from all of its structure or from the user's word, and travels with each message as a
//! [`Format`] tag. Whoever looks inside a message asks [`of`] for the tag's codec.
//!
//! A new format is one file that implements [`Codec`], and one line in [`CODECS`]. A tag never
//! changes its meaning, because recordings keep tags.

use core::fmt;
use std::io::Read;

pub use evenfall_core::Format;
use jiff::civil::Date;

use crate::event::Event;
use crate::itch::Symbols;
use crate::source::Source;

/// NASDAQ TotalView-ITCH 5.0.
pub const ITCH: Format = Format(1);
/// LOBSTER message CSV.
pub const LOBSTER: Format = Format(2);
/// CME MDP 3.0, packets of SBE messages.
pub const MDP3: Format = Format(3);
/// MIAX MACH, packets of the Top of Market feed.
pub const MACH: Format = Format(4);

/// All codecs. The place in the list means nothing.
pub const CODECS: [&dyn Codec; 4] = [
    &crate::framed::ItchCodec,
    &crate::lobster::LobsterCodec,
    &crate::mdp3::Mdp3,
    &crate::mach::Mach,
];

/// What a message's own time counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Midnight of the trading day, in this zone of the IANA time zone database.
    Midnight {
        /// Such as `America/New_York`.
        zone: &'static str,
    },
    /// 1970 in UTC.
    Epoch,
}

/// Place and time in front of a packet that carries several messages.
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

    /// What a message's own time counts from.
    fn clock(&self) -> Clock;

    /// Whether a file that starts so is of the format.
    fn is_file(&self, _head: &[u8]) -> bool {
        false
    }

    /// Reads a file of the format; `name` is what errors call the file. `None` of a format that
    /// only comes in captures.
    fn open(&self, _reader: Box<dyn Read + Send>, _name: &str) -> Option<Box<dyn Source + Send>> {
        None
    }

    /// Whether a datagram of a capture is of the format, down to the datagram's last byte.
    fn is_packet(&self, _datagram: &[u8]) -> bool {
        false
    }

    /// Number and time of a packet, where the format puts both in front.
    fn packet_head(&self, _packet: &[u8]) -> Option<PacketHead> {
        None
    }

    /// What a message of a live feed must stay in order with; see [`crate::Message::shard_key`].
    fn shard_key(&self, _message: &[u8]) -> u32 {
        0
    }

    /// The name of a message's type, for counts; `None` of bytes that are no such message.
    fn type_name(&self, message: &[u8]) -> Option<&'static str>;

    /// What a message says; `None` of bytes that are no such message. A format that is not decoded
    /// gives the name of the type and leaves the rest out. `symbols` is what earlier messages of
    /// the feed said about securities.
    fn event(&self, message: &[u8], _symbols: &mut Symbols) -> Option<Event> {
        Some(Event { kind: Some(self.type_name(message)?), ..Event::default() })
    }
}

impl fmt::Debug for dyn Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The codec of a tag; `None` of opaque bytes and of a later version's tag.
pub fn of(format: Format) -> Option<&'static dyn Codec> {
    CODECS.into_iter().find(|codec| codec.format() == format)
}

/// The codec of a word of the command line.
///
/// # Errors
/// Says which words there are.
pub fn named(word: &str) -> Result<&'static dyn Codec, String> {
    CODECS.into_iter().find(|codec| codec.word() == word).ok_or_else(|| {
        let words: Vec<&str> = CODECS.iter().map(|codec| codec.word()).collect();
        format!("{word} is no format: {}", words.join(", "))
    })
}

/// The name of a tag for people.
pub fn name(format: Format) -> &'static str {
    of(format).map_or("opaque", Codec::name)
}

/// The format of bytes that carry no tag, such as a recording of an earlier version: the one that
/// reads every one of them, and opaque when none does.
pub fn of_untagged<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Format {
    let mut left = CODECS.to_vec();
    let mut is_empty = true;
    for message in messages {
        left.retain(|codec| codec.type_name(message).is_some());
        is_empty = false;
    }
    left.first().filter(|_| !is_empty).map_or(Format::OPAQUE, |codec| codec.format())
}

/// The format of a capture whose first datagrams are these; opaque when no codec takes all of them.
pub(crate) fn of_packets<'a>(datagrams: impl Iterator<Item = &'a [u8]> + Clone) -> Format {
    let takes_all =
        |codec: &&dyn Codec| datagrams.clone().all(|datagram| codec.is_packet(datagram));
    let is_empty = datagrams.clone().next().is_none();
    let found = CODECS.into_iter().find(|codec| !is_empty && takes_all(codec));
    found.map_or(Format::OPAQUE, |codec| codec.format())
}

/// Nanoseconds of a day without a change of the clocks.
pub const DAY_NS: u64 = 86_400_000_000_000;

impl Clock {
    /// A message's own time as nanoseconds since 1970. A time of day is counted from midnight of
    /// `date`; whole days in `time_ns` are days behind `date`.
    ///
    /// `None` when a time of day has no date, or the result does not fit 64 bits.
    pub fn epoch_ns(self, date: Option<Date>, time_ns: u64) -> Option<i64> {
        let Self::Midnight { zone } = self else { return i64::try_from(time_ns).ok() };
        let days = i32::try_from(time_ns / DAY_NS).ok()?;
        let date = date?.checked_add(jiff::Span::new().try_days(days).ok()?).ok()?;
        of_day(zone, date, time_ns % DAY_NS)
    }

    /// A time of day in the venue's zone as nanoseconds since 1970.
    pub fn of_day_ns(self, date: Date, day_ns: u64) -> Option<i64> {
        of_day(self.zone(), date, day_ns)
    }

    /// The zone that people at the venue mean.
    fn zone(self) -> &'static str {
        match self {
            Self::Midnight { zone } => zone,
            Self::Epoch => "UTC",
        }
    }

    /// The date, in the venue's zone, of nanoseconds since 1970.
    pub fn date_of(self, epoch_ns: i64) -> Option<Date> {
        let at = jiff::Timestamp::from_nanosecond(epoch_ns.into()).ok()?;
        Some(at.in_tz(self.zone()).ok()?.date())
    }
}

fn of_day(zone: &str, date: Date, day_ns: u64) -> Option<i64> {
    let midnight = date.in_tz(zone).ok()?.timestamp().as_nanosecond();
    i64::try_from(midnight + i128::from(day_ns)).ok()
}

/// The date in a file's name: `2019-12-30`, `20191230` or Nasdaq's `12302019`. `None` when the
/// name has no date, or two that differ.
///
/// ```
/// use evenfall_feed_formats::codec::date_in_name;
/// assert_eq!(date_in_name("01302019.NASDAQ_ITCH50.gz").unwrap().to_string(), "2019-01-30");
/// assert_eq!(date_in_name("day.itch50"), None);
/// ```
pub fn date_in_name(name: &str) -> Option<Date> {
    let mut found = None;
    let joined = |text: &str| {
        let (year, rest) = text.split_at_checked(4)?;
        let (month, rest) = rest.strip_prefix('-')?.split_at_checked(2)?;
        digits_date(&[year, month, rest.strip_prefix('-')?].concat())
    };
    // Eight digits are a date when no further digit touches them.
    let runs = name.split(|c: char| !c.is_ascii_digit()).filter_map(digits_date);
    let dashed = (0..name.len()).filter_map(|at| joined(name.get(at..at + 10)?));
    for date in runs.chain(dashed) {
        if found.replace(date).is_some_and(|other| other != date) {
            return None;
        }
    }
    found
}

/// Eight digits as a date, year first or year last.
fn digits_date(text: &str) -> Option<Date> {
    if text.len() != 8 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |range: core::ops::Range<usize>| text[range].parse::<i16>().ok();
    let date = |year: i16, month: i16, day: i16| {
        // Electronic books begin in the eighties.
        let is_near = (1980..2100).contains(&year);
        is_near.then(|| Date::new(year, month as i8, day as i8).ok()).flatten()
    };
    date(part(0..4)?, part(4..6)?, part(6..8)?)
        .or_else(|| date(part(4..8)?, part(0..2)?, part(2..4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_words_are_each_of_one_codec() {
        for codec in CODECS {
            assert_eq!(of(codec.format()).unwrap().word(), codec.word());
            assert_eq!(named(codec.word()).unwrap().format(), codec.format());
            assert_ne!(codec.format(), Format::OPAQUE);
        }
        // Recordings keep tags: these numbers never change.
        assert_eq!([ITCH, LOBSTER, MDP3, MACH].map(|format| format.0), [1, 2, 3, 4]);
        assert!(named("fix").unwrap_err().contains("itch, lobster, mdp3, mach"));
        assert!(of(Format(200)).is_none());
    }

    #[test]
    fn a_date_is_read_off_the_names_that_venues_give() {
        for (name, date) in [
            ("nasdaq_20191230_aapl.itch50", "2019-12-30"),
            ("01302019.NASDAQ_ITCH50", "2019-01-30"),
            ("12202019.NASDAQ_ITCH50.gz", "2019-12-20"),
            ("LOBSTER_SampleFile_AAPL_2012-06-21_1.zip", "2012-06-21"),
            ("AAPL_2012-06-21_34200000_57600000_message_1.csv", "2012-06-21"),
            ("x-2019-12-30-20191230.pcap", "2019-12-30"),
        ] {
            assert_eq!(
                date_in_name(name).map(|date| date.to_string()),
                Some(date.into()),
                "{name}"
            );
        }
        for name in
            ["", "day.itch50", "2012-06-21_2012-06-22.zip", "20191330", "120191230", "Mdp3.v6.1"]
        {
            assert_eq!(date_in_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_time_of_day_counts_from_the_venues_midnight_in_winter_and_summer() {
        let clock = Clock::Midnight { zone: "America/New_York" };
        let at = |date: &str, ns| {
            let ns = clock.epoch_ns(Some(date.parse().unwrap()), ns).unwrap();
            jiff::Timestamp::from_nanosecond(ns.into()).unwrap().to_string()
        };
        let open = 34_200_000_000_000;
        assert_eq!(at("2019-12-30", open), "2019-12-30T14:30:00Z");
        assert_eq!(at("2012-06-21", open), "2012-06-21T13:30:00Z");
        // The second day of a feed of two, over the change to summer time.
        assert_eq!(at("2019-03-08", 3 * DAY_NS + open), "2019-03-11T13:30:00Z");
        assert_eq!(clock.epoch_ns(None, open), None);
        assert_eq!(Clock::Epoch.epoch_ns(None, 5), Some(5));
        assert_eq!(clock.date_of(1_577_676_600_000_000_000).unwrap().to_string(), "2019-12-29");
    }
}
