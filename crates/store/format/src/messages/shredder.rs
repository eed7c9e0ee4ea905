//! Takes messages apart by their layouts, and puts them together.

use std::ops::Range;

use super::{
    DAY_NS, FormatLayout, KindLayout, LineField, LineForm, MessageField, MessageLayout,
    PLAIN_LENGTH_MAX,
};
use crate::error::{Error, Result};

const SECOND_NS: u64 = 1_000_000_000;
/// Digits of the greatest number in a line.
const DIGITS_MAX: usize = 18;

/// The values of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShreddedMessage<'a> {
    /// The time of day that the message states.
    pub day_ns: Option<u64>,
    numbers: [Option<i64>; MessageField::NUMBERS.len()],
    texts: [Option<&'a [u8]>; MessageField::TEXTS.len()],
    /// Bytes that no value covers.
    pub rest: Vec<u8>,
}

impl<'a> ShreddedMessage<'a> {
    /// The number in this field; `None` for fields of text, too.
    pub fn number(&self, field: MessageField) -> Option<i64> {
        self.numbers[field.number_place()?]
    }

    /// The text in this field: ASCII without padding; `None` for fields of numbers, too.
    pub fn text(&self, field: MessageField) -> Option<&'a [u8]> {
        self.texts[field.text_place()?]
    }

    /// Sets a number. Fields of text take none.
    pub fn set_number(&mut self, field: MessageField, value: Option<i64>) {
        if let Some(place) = field.number_place() {
            self.numbers[place] = value;
        }
    }

    /// Sets a text. Fields of numbers take none.
    pub fn set_text(&mut self, field: MessageField, value: Option<&'a [u8]>) {
        if let Some(place) = field.text_place() {
            self.texts[place] = value;
        }
    }

    fn clear(&mut self) {
        let mut rest = std::mem::take(&mut self.rest);
        rest.clear();
        *self = Self { rest, ..Self::default() };
    }
}

/// A kind with the bytes that no field covers.
#[derive(Clone, Debug)]
struct CheckedKind {
    layout: KindLayout,
    rest: Vec<Range<usize>>,
}

#[derive(Clone, Debug)]
enum CheckedLayout {
    Kinds { by_letter: Vec<Option<u8>>, kinds: Vec<CheckedKind> },
    Line(Vec<LineField>),
}

/// Layouts that were checked, so that messages can be taken apart and put together by them.
#[derive(Clone, Debug)]
pub struct MessageShredder {
    by_tag: Vec<(u8, CheckedLayout)>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::Schema { what: what.into() }
}

impl CheckedKind {
    fn new(layout: &KindLayout) -> Result<Self> {
        let name = layout.letter.escape_ascii();
        let mut at = 1;
        let mut rest = Vec::new();
        let mut fields = layout.fields.clone();
        fields.sort_unstable_by_key(|place| place.at);
        for place in &fields {
            let (start, len) = (usize::from(place.at), usize::from(place.len));
            let len_max = if place.field.text_place().is_some() { 64 } else { 8 };
            let is_wrong = place.field == MessageField::Type || !(1..=len_max).contains(&len);
            if start < at || is_wrong {
                return Err(wrong(format!("messages {name}: {:?} has a wrong place", place.field)));
            }
            if fields.iter().filter(|other| other.field == place.field).count() > 1 {
                return Err(wrong(format!("messages {name}: {:?} is there twice", place.field)));
            }
            rest.extend((start > at).then_some(at..start));
            at = start + len;
        }
        let end = usize::from(layout.len);
        if at > end || end > PLAIN_LENGTH_MAX {
            return Err(wrong(format!("messages {name} are shorter than their fields")));
        }
        rest.extend((end > at).then_some(at..end));
        Ok(Self { layout: layout.clone(), rest })
    }

    fn shred_bytes<'a>(&self, message: &'a [u8], out: &mut ShreddedMessage<'a>) -> Option<()> {
        if message.len() != usize::from(self.layout.len) {
            return None;
        }
        out.set_text(MessageField::Type, Some(plain_text(&message[..1])?));
        for place in &self.layout.fields {
            let start = usize::from(place.at);
            let bytes = &message[start..start + usize::from(place.len)];
            if place.field.text_place().is_some() {
                let padding = bytes.iter().rev().take_while(|byte| **byte == b' ').count();
                let text = plain_text(&bytes[..bytes.len() - padding])?;
                out.set_text(place.field, (!text.is_empty()).then_some(text));
                continue;
            }
            let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
            if place.field == MessageField::Time {
                out.day_ns = Some(value).filter(|value| *value < DAY_NS);
                out.day_ns?;
                continue;
            }
            let value = i64::try_from(value).ok().filter(|value| place.field.takes(*value))?;
            out.set_number(place.field, Some(value));
        }
        for piece in &self.rest {
            out.rest.extend_from_slice(&message[piece.clone()]);
        }
        Some(())
    }

    fn assemble(&self, values: &ShreddedMessage<'_>, out: &mut Vec<u8>) -> Option<()> {
        let begin = out.len();
        out.resize(begin + usize::from(self.layout.len), b' ');
        let message = &mut out[begin..];
        message[0] = self.layout.letter;
        for place in &self.layout.fields {
            let start = usize::from(place.at);
            let to = &mut message[start..start + usize::from(place.len)];
            if place.field.text_place().is_some() {
                let text = values.text(place.field).unwrap_or_default();
                to.get_mut(..text.len())?.copy_from_slice(text);
                continue;
            }
            let value = match place.field {
                MessageField::Time => values.day_ns?,
                field => u64::try_from(values.number(field)?).ok()?,
            };
            let bytes = value.to_be_bytes();
            let (above, low) = bytes.split_at(8 - to.len());
            if above.iter().any(|byte| *byte != 0) {
                return None;
            }
            to.copy_from_slice(low);
        }
        let mut rest = &values.rest[..];
        for piece in &self.rest {
            let (these, others) = rest.split_at_checked(piece.len())?;
            message[piece.clone()].copy_from_slice(these);
            rest = others;
        }
        rest.is_empty().then_some(())
    }
}

/// Text that any program may show; `None` for other bytes.
fn plain_text(bytes: &[u8]) -> Option<&[u8]> {
    bytes.iter().all(|byte| (b' '..=b'~').contains(byte)).then_some(bytes)
}

/// A whole number. A needless zero is found when the message is put together again.
fn parse_number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if !digits.iter().all(u8::is_ascii_digit) || !(1..=DIGITS_MAX).contains(&digits.len()) {
        return None;
    }
    let value = digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit & 0xf));
    Some(if digits.len() < text.len() { -value } else { value })
}

/// Seconds with at most nine decimals as nanoseconds.
fn parse_seconds(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let decimals = text.get(point + 1..).unwrap_or_default();
    let whole = u64::try_from(parse_number(&text[..point])?).ok()?;
    if decimals.len() > 9 || !decimals.iter().all(u8::is_ascii_digit) || whole >= DAY_NS / SECOND_NS
    {
        return None;
    }
    let digits = decimals.iter().chain(std::iter::repeat(&b'0')).take(9);
    Some(whole * SECOND_NS + digits.fold(0, |ns, digit| ns * 10 + u64::from(digit & 0xf)))
}

fn put_seconds(day_ns: u64, is_short: bool, out: &mut Vec<u8>) {
    put_number((day_ns / SECOND_NS) as i64, out);
    let mut decimals = *b".000000000";
    let mut left = day_ns % SECOND_NS;
    for digit in decimals[1..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let zeros = decimals.iter().rev().take_while(|digit| **digit == b'0').count();
    let len = match (is_short, decimals.len() - zeros) {
        (false, _) => decimals.len(),
        // Whole seconds have no point.
        (true, 1) => 0,
        (true, len) => len,
    };
    out.extend_from_slice(&decimals[..len]);
}

fn put_number(value: i64, out: &mut Vec<u8>) {
    out.extend((value < 0).then_some(b'-'));
    let mut digits = [0; 20];
    let (mut at, mut left) = (digits.len(), value.unsigned_abs());
    while left > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

impl LineField {
    fn check(&self) -> Result<()> {
        let is_text = self.field.text_place().is_some();
        let fits = match self.form {
            LineForm::Seconds | LineForm::ShortSeconds => self.field == MessageField::Time,
            LineForm::Number => self.field.number_place().is_some(),
            LineForm::Text | LineForm::Words(_) => is_text,
        };
        match fits {
            true => Ok(()),
            false => Err(wrong(format!("{:?} is no {:?}", self.field, self.form))),
        }
    }

    fn shred_bytes<'a>(&'a self, text: &'a [u8], out: &mut ShreddedMessage<'a>) -> Option<()> {
        match &self.form {
            LineForm::Seconds | LineForm::ShortSeconds => out.day_ns = Some(parse_seconds(text)?),
            LineForm::Number => {
                let value = parse_number(text).filter(|value| self.field.takes(*value))?;
                out.set_number(self.field, Some(value));
            }
            LineForm::Text => out.set_text(self.field, Some(plain_text(text)?)),
            LineForm::Words(words) => {
                let found = words.iter().find(|(word, _)| word.as_bytes() == text)?;
                out.set_text(self.field, Some(plain_text(found.1.as_bytes())?));
            }
        }
        Some(())
    }

    fn assemble(&self, values: &ShreddedMessage<'_>, out: &mut Vec<u8>) -> Option<()> {
        match &self.form {
            LineForm::Seconds => put_seconds(values.day_ns?, false, out),
            LineForm::ShortSeconds => put_seconds(values.day_ns?, true, out),
            LineForm::Number => put_number(values.number(self.field)?, out),
            LineForm::Text => out.extend_from_slice(values.text(self.field)?),
            LineForm::Words(words) => {
                let text = values.text(self.field)?;
                let found = words.iter().find(|(_, shown)| shown.as_bytes() == text)?;
                out.extend_from_slice(found.0.as_bytes());
            }
        }
        Some(())
    }
}

fn shred_line<'a>(
    fields: &'a [LineField],
    message: &'a [u8],
    out: &mut ShreddedMessage<'a>,
) -> Option<()> {
    let mut at = 0;
    for (place, field) in fields.iter().enumerate() {
        if place > 0 {
            message.get(at).filter(|byte| **byte == b',')?;
            at += 1;
        }
        let left = &message[at..];
        let len = left.iter().position(|byte| *byte == b',').unwrap_or(left.len());
        field.shred_bytes(&left[..len], out)?;
        at += len;
    }
    out.rest.extend_from_slice(&message[at..]);
    Some(())
}

fn assemble_line(
    fields: &[LineField],
    values: &ShreddedMessage<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    for (place, field) in fields.iter().enumerate() {
        out.extend((place > 0).then_some(b','));
        field.assemble(values, out)?;
    }
    out.extend_from_slice(&values.rest);
    Some(())
}

impl CheckedLayout {
    fn new(layout: &MessageLayout) -> Result<Self> {
        match layout {
            MessageLayout::Line(fields) => {
                fields.iter().try_for_each(LineField::check)?;
                Ok(Self::Line(fields.clone()))
            }
            MessageLayout::Kinds(layouts) => {
                let mut by_letter = vec![None; 256];
                let mut kinds = Vec::with_capacity(layouts.len().min(256));
                for layout in layouts {
                    let place = &mut by_letter[usize::from(layout.letter)];
                    if place.is_some() {
                        return Err(wrong("two kinds of messages begin with one letter"));
                    }
                    *place = Some(kinds.len() as u8);
                    kinds.push(CheckedKind::new(layout)?);
                }
                Ok(Self::Kinds { by_letter, kinds })
            }
        }
    }

    fn shred_bytes<'a>(&'a self, message: &'a [u8], out: &mut ShreddedMessage<'a>) -> Option<()> {
        match self {
            Self::Line(fields) => shred_line(fields, message, out),
            Self::Kinds { by_letter, kinds } => {
                let place = by_letter[usize::from(*message.first()?)]?;
                kinds[usize::from(place)].shred_bytes(message, out)
            }
        }
    }

    fn assemble(&self, values: &ShreddedMessage<'_>, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Line(fields) => assemble_line(fields, values, out),
            Self::Kinds { by_letter, kinds } => {
                let [letter] = values.text(MessageField::Type)? else { return None };
                kinds[usize::from(by_letter[usize::from(*letter)]?)].assemble(values, out)
            }
        }
    }
}

impl MessageShredder {
    /// A shredder by these layouts, one for each format.
    ///
    /// # Errors
    /// [`Error::Schema`] for a layout that contradicts itself. A crafted file may have one.
    pub fn new(layouts: &[FormatLayout]) -> Result<Self> {
        let mut by_tag: Vec<(u8, CheckedLayout)> = Vec::with_capacity(layouts.len().min(256));
        for one in layouts {
            if by_tag.iter().any(|(tag, _)| *tag == one.tag) {
                return Err(wrong(format!("two layouts of the format {}", one.tag)));
            }
            by_tag.push((one.tag, CheckedLayout::new(&one.layout)?));
        }
        Ok(Self { by_tag })
    }

    fn of(&self, tag: u8) -> Option<&CheckedLayout> {
        self.by_tag.iter().find(|(known, _)| *known == tag).map(|(_, layout)| layout)
    }

    /// Takes a message apart. Returns whether `out` has all of it: the message is put together
    /// again into `scratch` and compared, so that no mistake of a layout costs a byte.
    pub fn shred_message<'a>(
        &'a self,
        tag: u8,
        message: &'a [u8],
        out: &mut ShreddedMessage<'a>,
        scratch: &mut Vec<u8>,
    ) -> bool {
        out.clear();
        let Some(layout) = self.of(tag).filter(|_| message.len() <= PLAIN_LENGTH_MAX) else {
            return false;
        };
        scratch.clear();
        let is_whole = layout.shred_bytes(message, out).is_some()
            && layout.assemble(out, scratch).is_some()
            && scratch[..] == *message;
        if !is_whole {
            out.clear();
        }
        is_whole
    }

    /// Puts a message together at the end of `out`. Returns whether these values are a message.
    pub fn assemble_message(
        &self,
        tag: u8,
        values: &ShreddedMessage<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        self.of(tag).and_then(|layout| layout.assemble(values, out)).is_some()
    }
}
