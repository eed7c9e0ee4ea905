//! Messages of a feed as Arrow columns: those of a recording's `messages`, and beside them when the
//! message was due, when it was released, and how many were lost before it.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, Int64Builder, TimestampNanosecondBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use evenfall::recording::{MessageRow, RecordedMessage};
use evenfall::subscriber::FeedUpdate;
use evenfall_feed_formats::codec::TimeOrigin;
use evenfall_store_recording::tables::messages_batch;

use crate::feed::FeedState;
use crate::table_rows::zoned_messages;

/// A batch that is being gathered.
pub(crate) struct FeedBatch {
    rows: Vec<MessageRow>,
    deadlines: TimestampNanosecondBuilder,
    lost: Int64Builder,
    /// The bytes of the messages, when they are asked for.
    bytes: Option<BinaryBuilder>,
}

impl FeedBatch {
    /// A batch of at most so many rows.
    pub(crate) fn new(most: usize, with_bytes: bool) -> Self {
        Self {
            rows: Vec::with_capacity(most.min(4_096)),
            deadlines: TimestampNanosecondBuilder::new().with_data_type(utc()),
            lost: Int64Builder::new(),
            bytes: with_bytes.then(BinaryBuilder::new),
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Adds a message, or what was lost before the next message of its tree.
    pub(crate) fn push(&mut self, state: &mut FeedState, update: FeedUpdate) {
        let event = state.count_update(&update);
        match update {
            FeedUpdate::Message(message) => {
                let released_ns = signed_ns(message.released.nanos());
                let deadline_ns = message.deadline.map(|deadline| signed_ns(deadline.nanos()));
                self.deadlines.append_option(deadline_ns);
                self.lost.append_option(
                    state.lost_before.remove(&message.stream).unwrap_or(Some(0)).map(signed_ns),
                );
                if let Some(bytes) = &mut self.bytes {
                    bytes.append_value(&message.bytes);
                }
                let recorded = RecordedMessage {
                    number: message.number,
                    time_ns: released_ns,
                    format: Some(message.format),
                    indexed_ns: released_ns,
                    // The columns are made out of the event.
                    bytes: Vec::new(),
                };
                self.rows.push(MessageRow { stream: message.stream, recorded, event });
            }
            FeedUpdate::Lost { stream, messages, .. } => {
                let before = state.lost_before.entry(stream).or_insert(Some(0));
                *before = before.zip(messages).map(|(before, more)| before + more);
            }
            _ => {}
        }
    }

    /// The batch, with times by the venue's clock.
    ///
    /// # Errors
    /// The errors of Arrow.
    pub(crate) fn finish(mut self, clock: TimeOrigin) -> Result<RecordBatch, ArrowError> {
        let messages = zoned_messages(&messages_batch(&self.rows)?, clock)?;
        let mut fields = Vec::new();
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (field, column) in messages.schema().fields().iter().zip(messages.columns()) {
            let is_release = field.name() == "recorded";
            let name = if is_release { "released" } else { field.name() };
            fields.push(Field::new(name, field.data_type().clone(), field.is_nullable()));
            columns.push(Arc::clone(column));
            if is_release {
                fields.push(Field::new("deadline", utc(), true));
                columns.push(Arc::new(self.deadlines.finish()));
            }
        }
        fields.push(Field::new("lost", DataType::Int64, true));
        columns.push(Arc::new(self.lost.finish()));
        if let Some(mut bytes) = self.bytes {
            fields.push(Field::new("message", DataType::Binary, false));
            columns.push(Arc::new(bytes.finish()));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
    }
}

fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn signed_ns(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
