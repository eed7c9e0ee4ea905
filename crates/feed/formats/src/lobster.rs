//! LOBSTER message CSV: one line per event of one symbol's book.
//!
//! ```text
//! 34200.004241176,1,16113575,18,5853300,1
//! seconds         | order id | |       direction: 1 buy, -1 sell
//! since midnight  |          | price in 1/10,000 dollar
//!                 type       shares
//! ```
//!
//! A message is the line without its newline. The file has no header, and every line ends with a
//! newline. A file that ends without a newline was cut, and a number that lost digits would still
//! parse.
//!
//! Source: LOBSTER output documentation, lobsterdata.com (types 1 to 7).

use crate::codec::{Clock, Codec, Format, LOBSTER};
use crate::error::{Fault, FeedError};
use crate::event::Event;
use crate::input::Input;
use crate::itch::Symbols;
use crate::source::{Message, Source};
use std::io::Read;

/// Longest line taken; a real one has about 40 bytes.
const LINE_BYTES_MAX: usize = 256;

/// Fields of a line.
const FIELDS: usize = 6;

/// A LOBSTER message file as a [`Source`]; the shard key is 0, because a file is of one symbol.
#[derive(Debug)]
pub struct LobsterSource<R> {
    input: Input<R>,
}

impl<R: Read> LobsterSource<R> {
    /// Reads `reader`; `name` is what errors call it.
    pub fn new(reader: R, name: &str) -> Self {
        Self { input: Input::new(reader, name) }
    }

    /// Bytes of the next line, its newline included; `None` at the end.
    fn line_length(&mut self) -> Result<Option<usize>, FeedError> {
        if self.input.at_end()? {
            return Ok(None);
        }
        let ahead = self.input.peek(LINE_BYTES_MAX);
        if let Some(end) = ahead.iter().position(|&byte| byte == b'\n') {
            return Ok(Some(end + 1));
        }
        let found = ahead.len() as u64;
        if found < LINE_BYTES_MAX as u64 {
            return Err(self.input.short("line without newline", found + 1));
        }
        let max = LINE_BYTES_MAX as u64;
        Err(self.input.error(Fault::TooLarge { what: "line", found: found + 1, max }))
    }
}

impl<R: Read> Source for LobsterSource<R> {
    fn next_message(&mut self) -> Result<Option<Message>, FeedError> {
        let Some(length) = self.line_length()? else { return Ok(None) };
        let line = self.input.look(length, "line")?;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (text_bytes, time) = (line.len(), parse_line(line));
        let Some(time_ns) = time else {
            let found = format!("\"{}\"", line.escape_ascii());
            return Err(self.input.error(Fault::Malformed { what: "LOBSTER line", found }));
        };
        let mut bytes = self.input.take(length);
        bytes.truncate(text_bytes);
        let index = self.input.next_index();
        Ok(Some(Message { index, time_ns, shard_key: 0, format: LOBSTER, bytes }))
    }
}

/// Whether a file with this beginning is LOBSTER message CSV.
fn is_message_csv(head: &[u8]) -> bool {
    // Order book files are CSV too. Their lines hold whole numbers only and have 4 fields per
    // level, so neither the time nor the count fits.
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    parse_line(line.strip_suffix(b"\r").unwrap_or(line)).is_some()
}

/// The time of a line in nanoseconds since midnight; `None` when it is no line of the format.
fn parse_line(line: &[u8]) -> Option<u64> {
    let mut fields = line.split(|&byte| byte == b',');
    let time_ns = parse_seconds(fields.next()?)?;
    let mut count = 1;
    for field in fields {
        let digits = field.strip_prefix(b"-").unwrap_or(field);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        count += 1;
    }
    (count == FIELDS).then_some(time_ns)
}

/// Decimal seconds to nanoseconds; digits beyond the ninth are dropped.
fn parse_seconds(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|&byte| byte == b'.')?;
    let (whole, fraction) = (&text[..point], &text[point + 1..]);
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

    fn clock(&self) -> Clock {
        Clock::Midnight { zone: "America/New_York" }
    }

    fn is_file(&self, head: &[u8]) -> bool {
        is_message_csv(head)
    }

    fn open(&self, reader: Box<dyn Read + Send>, name: &str) -> Option<Box<dyn Source + Send>> {
        Some(Box::new(LobsterSource::new(reader, name)))
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        Some(match Line::parse(message)?.kind {
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

    fn events(&self, message: &[u8], _: &mut Symbols, each: &mut dyn FnMut(Event)) {
        let Some(line) = Line::parse(message) else { return };
        each(Event {
            kind: line.kind,
            event_ns: Some(line.time_ns),
            order_reference: u64::try_from(line.order).ok(),
            side: Some(if line.is_buy { 'B' } else { 'S' }),
            shares: Some(line.shares),
            price: Some(line.price),
            printable: matches!(line.kind, Some("4" | "5" | "6")).then_some(true),
            ..Event::default()
        });
    }
}

/// The values of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
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
    /// Whether the order buys.
    pub is_buy: bool,
}

impl Line {
    /// Reads a line; `None` when the text is no line of the format, or a number does not fit.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let time_ns = parse_line(line)?;
        let mut fields = std::str::from_utf8(line).ok()?.split(',').skip(1);
        let kind = fields.next()?;
        let kind = KINDS.find(kind).filter(|_| kind.len() == 1).map(|at| &KINDS[at..=at]);
        let (order, shares) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (price, side) = (fields.next()?.parse().ok()?, fields.next()?);
        Some(Self { time_ns, kind, order, shares, price, is_buy: !side.starts_with('-') })
    }
}
