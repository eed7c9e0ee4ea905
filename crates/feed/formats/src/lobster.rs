//! LOBSTER message CSV: one line per event of one symbol's book.
//!
//! ```text
//! 34200.004241176,1,16113575,18,5853300,1,null
//! seconds         | order id | |       |  attribution: the participant (files from 2021 on)
//! since midnight  |          | |       direction: 1 buy, -1 sell
//!                 type       | price in 1/10,000 dollar
//!                            shares
//! ```
//!
//! A message is the line without its newline. What the files of LOBSTER and of the tools that
//! rewrite them have besides is read too: whole seconds, a byte-order mark, a line of names in
//! front, and numbers that end in `.0`. A last line without a newline is a message when it has all
//! its fields, because the direction is 1 or -1 and cannot have lost digits.
//!
//! LOBSTER fills the fields that an event lacks: a halt (type 7) has shares and order 0, the price
//! -1, 0 or 1 for the kind of halt, and direction -1. A cross (type 6) has order -1 and direction
//! -1. A hidden execution (type 5) has order 0. These fillers are read as no value.
//!
//! Source: LOBSTER output documentation, lobsterdata.com (types 1 to 7).

use crate::codec::{Codec, Format, LOBSTER, TimeOrigin};
use crate::columns::{ColumnSink, MessageColumn};
use crate::error::{FeedError, FeedFault};
use crate::event::{EVENT_COLUMNS, Event};
use crate::input::Input;
use crate::itch::{Mpid, Stock, Symbols};
use crate::source::{DayWatch, FeedMessage, MessageSource};
use std::io::Read;

/// Longest line taken; a real line has about 40 bytes.
const LINE_BYTES_MAX: usize = 256;

/// Fields that every line has. Further fields are text.
const FIELDS: usize = 6;

/// The mark that some editors and spreadsheets write in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A LOBSTER message file as a [`MessageSource`]; the shard key is 0, because a file is of one
/// symbol.
#[derive(Debug)]
pub struct LobsterSource<R> {
    input: Input<R>,
    days: DayWatch,
    /// Whether the next line is the first.
    is_start: bool,
    /// Lines of names that were left out.
    headers: u64,
    /// Whether the last line ends without a newline.
    is_unended: bool,
    /// The symbol in the name.
    symbol: Option<Stock>,
}

/// The symbol in the name of a message file, which LOBSTER calls
/// `AAPL_2012-06-21_34200000_57600000_message_10.csv`. `None` for names of another form.
///
/// ```
/// use evenfall_feed_formats::{itch::Stock, lobster::symbol_in_name};
/// let name = "days.zip: AAPL_2012-06-21_34200000_57600000_message_10.csv";
/// assert_eq!(symbol_in_name(name), Stock::new("AAPL"));
/// assert_eq!(symbol_in_name("20191230.itch50"), None);
/// ```
pub fn symbol_in_name(name: &str) -> Option<Stock> {
    // An archive's name and a blank stand in front of the name of an entry.
    let file = name.rsplit(['/', ' ']).next()?;
    let (symbol, rest) = file.split_once('_')?;
    let (date, rest) = rest.split_once('_')?;
    let is_letter = |byte: u8| {
        byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
    };
    let is_of_date = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    let is_date = date.len() == "2012-06-21".len() && date.bytes().enumerate().all(is_of_date);
    let is_named = !symbol.is_empty() && symbol.bytes().all(is_letter);
    let is_message_file = rest.to_ascii_lowercase().contains("message");
    Stock::new(symbol).filter(|_| is_named && is_date && is_message_file)
}

impl<R: Read> LobsterSource<R> {
    /// Reads `reader`; `name` is what errors call it.
    pub fn new(reader: R, name: &str) -> Self {
        let (input, days) = (Input::new(reader, name), DayWatch::default());
        let symbol = symbol_in_name(name);
        Self { input, days, is_start: true, headers: 0, is_unended: false, symbol }
    }

    /// Bytes of the next line, its newline included; `None` at the end. The line of names in front
    /// is left out.
    fn line_length(&mut self) -> Result<Option<usize>, FeedError> {
        if self.is_start && self.input.peek(BYTE_ORDER_MARK.len()) == BYTE_ORDER_MARK {
            self.input.take(BYTE_ORDER_MARK.len());
        }
        while !self.input.at_end()? {
            let ahead = self.input.peek(LINE_BYTES_MAX);
            let Some(end) = ahead.iter().position(|&byte| byte == b'\n') else {
                return self.last_length().map(Some);
            };
            let is_header = self.is_start && is_header(text(&ahead[..=end]));
            self.is_start = false;
            if !is_header {
                return Ok(Some(end + 1));
            }
            self.headers += 1;
            self.input.take(end + 1);
        }
        Ok(None)
    }

    /// Bytes of a line behind which the file ends.
    fn last_length(&mut self) -> Result<usize, FeedError> {
        let ahead = self.input.peek(LINE_BYTES_MAX);
        let (found, is_whole) = (ahead.len(), is_whole(ahead));
        if found == LINE_BYTES_MAX {
            let (found, max) = (found as u64 + 1, LINE_BYTES_MAX as u64);
            return Err(self.input.error(FeedFault::TooLarge { what: "line", found, max }));
        }
        // A reader that failed may have lost the rest of the line.
        if !is_whole || self.input.has_failed() {
            return Err(self.input.short("line without newline", found as u64 + 1));
        }
        self.is_unended = true;
        Ok(found)
    }
}

impl<R: Read> MessageSource for LobsterSource<R> {
    fn next_message(&mut self) -> Result<Option<FeedMessage>, FeedError> {
        let Some(length) = self.line_length()? else { return Ok(None) };
        let line = text(self.input.look(length, "line")?);
        let (text_bytes, time) = (line.len(), parse_line(line));
        let Some(time_ns) = time else {
            let found = format!("\"{}\"", line.escape_ascii());
            return Err(self.input.error(FeedFault::Malformed { what: "LOBSTER line", found }));
        };
        self.days.check(time_ns).map_err(|fault| self.input.error(fault))?;
        let mut bytes = self.input.take(length);
        bytes.truncate(text_bytes);
        let index = self.input.next_index();
        Ok(Some(FeedMessage { index, time_ns, shard_key: 0, format: LOBSTER, bytes }))
    }

    fn only_symbol(&self) -> Option<Stock> {
        self.symbol
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.headers > 0 {
            notes.push("the first line has the names of the columns and is no message".to_owned());
        }
        if self.is_unended {
            notes.push(
                "the last line has no newline; it has all its fields and is in the feed".to_owned(),
            );
        }
        notes
    }
}

/// A line without its end.
fn text(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Whether a file with this beginning is LOBSTER message CSV.
fn is_message_csv(head: &[u8]) -> bool {
    // Order book files are CSV too. Their lines hold whole numbers and have 4 fields per level, so
    // that neither the type nor the direction fits.
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    let mut lines = head.split(|&byte| byte == b'\n').map(text);
    let first = lines.next().unwrap_or_default();
    is_whole(first) || is_header(first) && lines.next().is_some_and(is_whole)
}

/// Whether a line consists of names of columns: no name begins as a number does.
fn is_header(line: &[u8]) -> bool {
    let is_name = |field: &[u8]| {
        let name = field.trim_ascii();
        let name = name.strip_prefix(b"\"").unwrap_or(name);
        name.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_')
    };
    let mut fields = 0;
    line.split(|&byte| byte == b',').inspect(|_| fields += 1).all(is_name) && fields >= FIELDS
}

/// Whether a line has all its fields, with a known type and a direction.
fn is_whole(line: &[u8]) -> bool {
    let line = LobsterLine::parse(text(line));
    line.is_some_and(|line| line.kind.is_some() && line.direction.abs() == 1)
}

/// The time of a line in nanoseconds since midnight; `None` when it is no line of the format.
fn parse_line(line: &[u8]) -> Option<u64> {
    let mut fields = line.split(|&byte| byte == b',');
    let time_ns = parse_seconds(fields.next()?)?;
    for _ in 1..FIELDS {
        whole_number(fields.next()?)?;
    }
    // Further fields are text: the participant, and whatever a tool has added.
    let is_text = |field: &[u8]| field.iter().all(|byte| *byte >= b' ');
    fields.all(is_text).then_some(time_ns)
}

/// The digits of a whole number with its sign, without the `.0` that tools write behind whole
/// numbers in a column of floating-point numbers.
fn whole_number(field: &[u8]) -> Option<&[u8]> {
    let point = field.iter().position(|&byte| byte == b'.').unwrap_or(field.len());
    let (number, fraction) = field.split_at(point);
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    let is_whole = fraction.iter().skip(1).all(|byte| *byte == b'0');
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && is_whole;
    is_number.then_some(number)
}

/// Decimal seconds to nanoseconds; digits beyond the ninth are dropped.
fn parse_seconds(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b"0"[..]),
    };
    // Five digits hold a day of seconds. The bound keeps the product far from overflow.
    if whole.is_empty() || whole.len() > 9 || fraction.is_empty() {
        return None;
    }
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let mut ns = whole.iter().try_fold(0, |sum, byte| Some(sum * 10 + digit(byte)?))?;
    for place in 0..9 {
        ns = ns * 10 + fraction.get(place).map_or(Some(0), digit)?;
    }
    fraction.iter().all(u8::is_ascii_digit).then_some(ns)
}

/// The digits of all types, from which one is taken as text.
const KINDS: &str = "1234567";

/// The codec of LOBSTER message CSV.
pub(crate) struct LobsterCodec;

impl Codec for LobsterCodec {
    fn format(&self) -> Format {
        LOBSTER
    }

    fn word(&self) -> &'static str {
        "lobster"
    }

    fn name(&self) -> &'static str {
        "LOBSTER message CSV"
    }

    fn clock(&self) -> TimeOrigin {
        TimeOrigin::Midnight { zone: "America/New_York" }
    }

    fn is_file(&self, head: &[u8]) -> bool {
        is_message_csv(head)
    }

    fn open(
        &self,
        reader: Box<dyn Read + Send>,
        name: &str,
    ) -> Option<Box<dyn MessageSource + Send>> {
        Some(Box::new(LobsterSource::new(reader, name)))
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        Some(match LobsterLine::parse(message)?.kind {
            Some("1") => "Submission",
            Some("2") => "PartialCancellation",
            Some("3") => "Deletion",
            Some("4") => "VisibleExecution",
            Some("5") => "HiddenExecution",
            Some("6") => "Cross",
            Some("7") => "Halt",
            _ => "other type of LOBSTER",
        })
    }

    fn events(&self, message: &[u8], symbols: &mut Symbols, each: &mut dyn FnMut(Event)) {
        let Some(line) = LobsterLine::parse(message) else { return };
        let common = Event {
            kind: line.kind,
            event_ns: Some(line.time_ns),
            symbol: symbols.only_symbol(),
            attribution: line.attribution,
            ..Event::default()
        };
        if line.kind == Some("7") {
            return each(Event { trading_state: line.trading_state(), ..common });
        }
        let is_cross = line.kind == Some("6");
        let side = if line.direction < 0 { 'S' } else { 'B' };
        each(Event {
            order_reference: u64::try_from(line.order).ok().filter(|order| *order > 0),
            side: Some(side).filter(|_| !is_cross),
            shares: Some(line.shares),
            price: Some(line.price),
            printable: matches!(line.kind, Some("4" | "5" | "6")).then_some(true),
            ..common
        });
    }

    fn columns(&self) -> &'static [MessageColumn] {
        EVENT_COLUMNS
    }

    fn put_rows(&self, message: &[u8], symbols: &mut Symbols, sink: &mut dyn ColumnSink) {
        self.events(message, symbols, &mut |event| event.put_row(sink));
    }
}

/// The values of a line, as the file has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LobsterLine {
    /// Nanoseconds since midnight.
    pub time_ns: u64,
    /// The digit of the type, 1 to 7.
    pub kind: Option<&'static str>,
    /// The order's number; -1 for a cross (type 6), which belongs to no order.
    pub order: i64,
    /// Shares.
    pub shares: u64,
    /// Price in 1/10,000 dollar. For a halt (type 7), the kind of halt.
    pub price: i64,
    /// 1 for an order that buys, -1 for an order that sells, and for an event without an order.
    pub direction: i64,
    /// The participant, in files from 2021 on; `None` where the file has `null`.
    pub attribution: Option<Mpid>,
}

impl LobsterLine {
    /// Reads a line; `None` when the text is no line of the format, or a number does not fit.
    pub fn parse(line: &[u8]) -> Option<Self> {
        fn number<T: core::str::FromStr>(field: Option<&[u8]>) -> Option<T> {
            std::str::from_utf8(whole_number(field?)?).ok()?.parse().ok()
        }
        let time_ns = parse_line(line)?;
        let mut fields = line.split(|&byte| byte == b',').skip(1);
        let kind: u64 = number(fields.next())?;
        let kind =
            usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind.checked_sub(1)?..kind));
        let (order, shares) = (number(fields.next())?, number(fields.next())?);
        let (price, direction) = (number(fields.next())?, number(fields.next())?);
        let attribution = fields.next().and_then(|field| std::str::from_utf8(field).ok());
        let attribution = attribution.filter(|text| !matches!(*text, "" | "null"));
        let attribution = attribution.and_then(Mpid::new);
        Some(Self { time_ns, kind, order, shares, price, direction, attribution })
    }

    /// What a halt (type 7) says of trading, in the letters of ITCH.
    fn trading_state(&self) -> Option<char> {
        match self.price {
            -1 => Some('H'),
            0 => Some('Q'),
            1 => Some('T'),
            _ => None,
        }
    }
}
