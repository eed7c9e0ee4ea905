//! The rows of `messages` and `raw`: one for each message.

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};
use evenfall_feed_formats::Format;
use evenfall_feed_formats::event::Event;
use evenfall_store_format::messages::MessageField;

use super::columns::{
    MessagePlace, TableColumn, ints, longs, place_array, prices, schema_of, signed, symbol_array,
    texts,
};
use crate::rows::{self, MessageRow};

/// A table with a row for every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageTable {
    Messages,
    Raw,
}

impl MessageTable {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Raw => "raw",
        }
    }

    pub(super) fn sorted_by(self) -> [&'static str; 2] {
        match self {
            Self::Messages => ["stream", "seq"],
            Self::Raw => ["stream", "number"],
        }
    }

    pub(super) fn schema(self) -> SchemaRef {
        match self {
            Self::Messages => schema_of(&MESSAGE_COLUMNS),
            Self::Raw => rows::arrow_schema(),
        }
    }

    pub(super) fn batch(
        self,
        rows: &[MessageRow],
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        match self {
            Self::Messages => messages_batch(rows, columns),
            Self::Raw => rows::raw_batch(rows)?.project(columns),
        }
    }
}

/// The columns of `messages`, in order.
const MESSAGE_COLUMNS: [TableColumn; 15] = [
    TableColumn::Time,
    TableColumn::Utc,
    TableColumn::Recorded,
    TableColumn::Ts,
    TableColumn::Stream,
    TableColumn::Seq,
    TableColumn::Type,
    TableColumn::Locate,
    TableColumn::OrderRef,
    TableColumn::NewOrderRef,
    TableColumn::Side,
    TableColumn::Shares,
    TableColumn::Symbol,
    TableColumn::Price,
    TableColumn::Match,
];

/// Which values of an event are values of its message, and no filler or value of another message.
struct Stated {
    order_ref: bool,
    new_order_ref: bool,
    side: bool,
    shares: bool,
    price: bool,
    match_number: bool,
}

impl Stated {
    fn of(event: &Event) -> Self {
        let has = |letters: &[&str]| event.kind.is_some_and(|kind| letters.contains(&kind));
        // LOBSTER's types 1 to 5 are ITCH's A, X, D, E and P.
        Self {
            order_ref: has(&["A", "F", "E", "C", "X", "D", "U", "P", "1", "2", "3", "4", "5"]),
            new_order_ref: has(&["U"]),
            side: has(&["A", "F", "P", "1", "5"]),
            shares: has(&["A", "F", "E", "C", "X", "U", "P", "1", "2", "4", "5"]),
            price: has(&["A", "F", "C", "U", "P", "1", "5"]),
            match_number: has(&["E", "C", "P"]),
        }
    }
}

/// The values of messages that these columns of `messages` need.
pub(super) fn fields_of(columns: &[usize]) -> Vec<MessageField> {
    let mut fields = Vec::new();
    for column in columns.iter().filter_map(|at| MESSAGE_COLUMNS.get(*at)) {
        // The type of a message tells which of its values it states.
        let with_type = |field| [Some(MessageField::Type), Some(field)];
        fields.extend(match column {
            TableColumn::Type => [Some(MessageField::Type), None],
            TableColumn::Locate => [Some(MessageField::Locate), None],
            TableColumn::Symbol => [Some(MessageField::Locate), Some(MessageField::Symbol)],
            TableColumn::OrderRef => with_type(MessageField::OrderRef),
            TableColumn::NewOrderRef => with_type(MessageField::NewOrderRef),
            TableColumn::Side => with_type(MessageField::Side),
            TableColumn::Shares => with_type(MessageField::Shares),
            TableColumn::Price => with_type(MessageField::Price),
            TableColumn::Match => with_type(MessageField::Match),
            _ => [None, None],
        });
    }
    let mut fields: Vec<MessageField> = fields.into_iter().flatten().collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

fn messages_batch(rows: &[MessageRow], columns: &[usize]) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<TableColumn> = columns.iter().map(|at| MESSAGE_COLUMNS[*at]).collect();
    let arrays = columns.iter().map(|column| message_array(*column, rows));
    RecordBatch::try_new(schema_of(&columns), arrays.collect::<Result<_, _>>()?)
}

fn message_array(column: TableColumn, rows: &[MessageRow]) -> Result<ArrayRef, ArrowError> {
    let places = rows.iter().map(|row| {
        let format = row.recorded.format.unwrap_or(Format::OPAQUE);
        MessagePlace::of(row.stream, &row.recorded, format).with_event_time(row.event.event_ns)
    });
    if let Some(array) = place_array(column, places) {
        return Ok(array);
    }
    let events = rows.iter().map(|row| (&row.event, Stated::of(&row.event)));
    Ok(match column {
        TableColumn::Type => texts(rows.iter().map(|row| row.event.kind)),
        TableColumn::Locate => ints(rows.iter().map(|row| row.event.stock_locate.map(i32::from))),
        TableColumn::OrderRef => longs(events.map(|(event, stated)| {
            // Reference 0 stands for an order that is not shown.
            let shown = event.order_reference.filter(|reference| *reference != 0);
            signed(shown.filter(|_| stated.order_ref))
        })),
        TableColumn::NewOrderRef => {
            longs(events.map(|(event, stated)| {
                signed(event.new_reference.filter(|_| stated.new_order_ref))
            }))
        }
        TableColumn::Side => {
            let sides = events.map(|(event, stated)| match event.side.filter(|_| stated.side) {
                Some('B') => Some("B"),
                Some('S') => Some("S"),
                _ => None,
            });
            texts(sides)
        }
        TableColumn::Shares => {
            longs(events.map(|(event, stated)| signed(event.shares.filter(|_| stated.shares))))
        }
        TableColumn::Symbol => symbol_array(rows.iter().map(|row| row.event.symbol)),
        TableColumn::Price => {
            prices(events.map(|(event, stated)| event.price.filter(|_| stated.price)))?
        }
        TableColumn::Match => longs(
            events
                .map(|(event, stated)| signed(event.match_number.filter(|_| stated.match_number))),
        ),
        other => unreachable!("messages have no column {other:?}"),
    })
}
