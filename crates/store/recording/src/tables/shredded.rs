//! The messages of a stream as rows of `messages`, out of columns where the store has columns.
//!
//! The messages of a sealed chunk are values in columns already. Rows of a table need some of these
//! values and no bytes, so nothing is put together only to be taken apart again. Messages of open
//! chunks, of objects and of servers come as bytes, and so do parts of long messages.

use std::ops::ControlFlow;

use bytes::Bytes;
use evenfall_feed_formats::Format;
use evenfall_feed_formats::codec::DAY_NS;
use evenfall_feed_formats::event::{Event, kind_text};
use evenfall_feed_formats::itch::{Alpha, Stock};
use evenfall_store_engine::{RecordSource, StoreError};
use evenfall_store_format::columnar::{MessageValues, ShreddedColumns};
use evenfall_store_format::messages::MessageField;

use super::TableError;
use crate::decode::DecodedStream;
use crate::records::{RecordedMessage, number_of};
use crate::replay::{ClassCursor, StreamReplay};
use crate::rows::MessageRow;
use crate::snapshot::{RecordingSnapshot, RowSelection};

/// Messages of one file out of columns.
struct ColumnBlock {
    columns: ShreddedColumns,
    at: usize,
}

/// The messages of one size of a stream.
struct EventCursor {
    records: ClassCursor,
    block: Option<ColumnBlock>,
    /// The record before which the file has no columns.
    as_records_until: u64,
}

/// A message without its bytes.
fn without_bytes(columns: &ShreddedColumns, at: usize) -> RecordedMessage {
    let recorded_ns = columns.recorded_ns[at];
    RecordedMessage {
        number: columns.numbers[at],
        time_ns: recorded_ns,
        format: Some(Format(columns.tags[at])),
        indexed_ns: recorded_ns,
        bytes: Vec::new(),
    }
}

/// Sets the value of a field of an event.
fn set_value(event: &mut Event, field: MessageField, values: &MessageValues, at: usize) {
    let (number, text) = match values {
        MessageValues::Numbers(values) => (values[at], None),
        MessageValues::Texts(values) => (None, values[at].as_ref().map(Bytes::as_ref)),
    };
    let unsigned = number.and_then(|number| u64::try_from(number).ok());
    let letter = match text {
        Some([letter]) => Some(*letter),
        _ => None,
    };
    match field {
        MessageField::Type => event.kind = letter.and_then(kind_text),
        MessageField::Locate => {
            event.stock_locate = unsigned.and_then(|locate| u16::try_from(locate).ok());
        }
        MessageField::OrderRef => {
            event.order_reference = unsigned.filter(|reference| *reference > 0);
        }
        MessageField::NewOrderRef => event.new_reference = unsigned,
        MessageField::Side => event.side = letter.map(char::from),
        MessageField::Shares => event.shares = unsigned,
        MessageField::Symbol => event.symbol = text.and_then(padded_symbol),
        MessageField::Price => event.price = number,
        MessageField::Match => event.match_number = unsigned,
        MessageField::Time | MessageField::Tracking => {}
    }
}

fn padded_symbol(text: &[u8]) -> Option<Stock> {
    let mut symbol = Alpha(*b"        ");
    symbol.0.get_mut(..text.len())?.copy_from_slice(text);
    Some(symbol)
}

impl EventCursor {
    fn new(records: ClassCursor) -> Self {
        Self { records, block: None, as_records_until: 0 }
    }

    /// Reads columns, when the cursor has nothing in memory and the store has columns.
    fn fill(
        &mut self,
        source: &dyn RecordSource,
        fields: &[MessageField],
    ) -> Result<(), StoreError> {
        if self.block.as_ref().is_some_and(|block| block.at < block.columns.numbers.len()) {
            return Ok(());
        }
        self.block = None;
        let unread = self
            .records
            .unread_records()
            .filter(|unread| !unread.is_empty() && unread.start >= self.as_records_until);
        let Some(unread) = unread else { return Ok(()) };
        let found = source.read_messages(self.records.name(), unread.clone(), fields)?;
        let Some(columns) = found.filter(|columns| !columns.numbers.is_empty()) else {
            // The columns of a file end where its last sealed chunk does, or at a raw one.
            self.as_records_until = unread.start + RECORDS_AT_ONCE;
            return Ok(());
        };
        let records = columns.records();
        if columns.is_shredded.contains(&false) {
            self.as_records_until = unread.start + records;
            return Ok(());
        }
        self.records.pass_over(records);
        self.block = Some(ColumnBlock { columns, at: 0 });
        Ok(())
    }

    /// The number of the next message.
    fn number(&mut self, source: &dyn RecordSource) -> Result<Option<u64>, StoreError> {
        match &self.block {
            Some(block) => Ok(block.columns.numbers.get(block.at).copied()),
            None => Ok(self.records.head(source)?.map(number_of)),
        }
    }
}

/// Records after which a file without columns is asked for columns again.
const RECORDS_AT_ONCE: u64 = 16_384;

/// A message of the table.
enum TableMessage {
    Recorded(RecordedMessage),
    Shredded(RecordedMessage, Event),
}

/// The messages of a stream in order, out of columns where there are any.
struct EventReplay<'a> {
    source: &'a dyn RecordSource,
    fields: &'a [MessageField],
    cursors: Vec<EventCursor>,
    next: Option<u64>,
    end: u64,
}

impl<'a> EventReplay<'a> {
    fn new(
        source: &'a dyn RecordSource,
        replay: StreamReplay<'a>,
        fields: &'a [MessageField],
    ) -> Self {
        let end = replay.end;
        let cursors = replay.cursors.into_iter().map(EventCursor::new).collect();
        Self { source, fields, cursors, next: None, end }
    }

    fn next_message(&mut self) -> Result<Option<TableMessage>, StoreError> {
        loop {
            let mut first: Option<(u64, usize)> = None;
            for (at, cursor) in self.cursors.iter_mut().enumerate() {
                cursor.fill(self.source, self.fields)?;
                if let Some(number) = cursor.number(self.source)? {
                    first = Some(first.map_or((number, at), |best| best.min((number, at))));
                }
            }
            let Some((number, at)) = first.filter(|(number, _)| *number < self.end) else {
                return Ok(None);
            };
            let cursor = &mut self.cursors[at];
            let taken = match &mut cursor.block {
                None => cursor.records.take(self.source)?.map(TableMessage::Recorded),
                Some(ColumnBlock { columns, at }) => {
                    let mut event = Event {
                        event_ns: Some(columns.wall_ns[*at].rem_euclid(DAY_NS as i64) as u64),
                        ..Event::default()
                    };
                    for (field, values) in self.fields.iter().zip(&columns.values) {
                        set_value(&mut event, *field, values, *at);
                    }
                    let message = without_bytes(columns, *at);
                    *at += 1;
                    Some(TableMessage::Shredded(message, event))
                }
            };
            // A message that was pushed again after a crash may be in two files of sizes.
            if self.next.is_none_or(|next| number >= next)
                && let Some(message) = taken
            {
                self.next = Some(number + 1);
                return Ok(Some(message));
            }
        }
    }
}

/// Gives the selected messages with these fields, until `each` breaks. Messages out of columns come
/// without their bytes, and their other fields are empty.
///
/// # Errors
/// The errors of the source and of `each`.
pub(super) fn read_events(
    recording: &RecordingSnapshot,
    rows: &RowSelection,
    fields: &[MessageField],
    each: &mut dyn FnMut(MessageRow) -> Result<ControlFlow<()>, TableError>,
) -> Result<(), TableError> {
    let source = &**recording.source();
    let wants_symbols = fields.contains(&MessageField::Symbol);
    for (stream, numbers) in recording.selected(rows) {
        let mut decoder = recording.decoder_at(numbers.start)?;
        let from = DecodedStream { source, stream };
        let replay = stream.replay(source, numbers, &rows.times)?;
        let mut replay = EventReplay::new(source, replay, fields);
        while let Some(message) = replay.next_message()? {
            let row = match message {
                TableMessage::Recorded(recorded) => decoder.decode(from, recorded, None)?.0,
                TableMessage::Shredded(recorded, mut event) => {
                    if wants_symbols {
                        decoder.name_security(from, &mut event)?;
                    }
                    MessageRow { stream: stream.stream(), recorded, event }
                }
            };
            if each(row)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
