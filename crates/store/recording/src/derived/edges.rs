//! How far the trades and quotes of a recording go, as a reader finds them.

use std::ops::Range;

use evenfall_store_engine::{RecordSource, StoreError};

use super::records::{DerivedEdge, origin_of, tick_of};
use crate::files::{derived_name, quotes_name, trades_name};
use crate::records::number_of;
use crate::replay::{first_where, last_record};
use crate::snapshot::StreamSnapshot;

/// The rows of a table in the file of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DerivedRows {
    /// The file.
    pub(crate) file: String,
    /// Its records.
    pub(crate) records: Range<u64>,
    /// The messages whose rows these records are.
    pub(crate) messages: Range<u64>,
}

impl DerivedRows {
    /// Whether the rows of all of these messages are there.
    pub(crate) fn has(&self, messages: &Range<u64>) -> bool {
        self.messages.start <= messages.start && messages.end <= self.messages.end
    }
}

/// The trades and quotes of a stream that the store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DerivedStream {
    pub(crate) trades: DerivedRows,
    pub(crate) quotes: DerivedRows,
}

/// The trades and quotes of a recording's streams, in the order of the streams. A stream without
/// such files has none.
pub(crate) type DerivedStreams = Vec<Option<DerivedStream>>;

fn records_of(source: &dyn RecordSource, file: &str) -> Result<Range<u64>, StoreError> {
    source.between(file, i64::MIN, i64::MAX)
}

/// The number of the message of a file's last row.
pub(crate) fn last_record_number(
    source: &dyn RecordSource,
    file: &str,
) -> Result<Option<u64>, StoreError> {
    Ok(last_record(source, file)?.map(|record| number_of(&record)))
}

/// The last edge of a stream whose rows are all there.
pub(crate) fn last_edge(
    source: &dyn RecordSource,
    recording: &str,
    stream: u32,
) -> Result<Option<DerivedEdge>, StoreError> {
    let file = derived_name(recording, stream);
    let edges = records_of(source, &file)?;
    if edges.is_empty() {
        return Ok(None);
    }
    // The edge first: its rows were appended before it.
    let last = DerivedEdge::of(&source.numbers(&file, edges.end - 1..edges.end)?);
    let trades = records_of(source, &trades_name(recording, stream))?.end;
    let quotes = records_of(source, &quotes_name(recording, stream))?.end;
    let is_there = |edge: &DerivedEdge| edge.trades <= trades && edge.quotes <= quotes;
    if is_there(&last) {
        return Ok(Some(last));
    }
    // A crash has taken rows, and not the edges behind them.
    let missing =
        first_where(source, &file, edges.clone(), |record| !is_there(&DerivedEdge::of(record)))?;
    if missing == edges.start {
        return Ok(None);
    }
    let found = DerivedEdge::of(&source.numbers(&file, missing - 1..missing)?);
    Ok(Some(found))
}

impl DerivedStream {
    /// What the store has of a stream's trades and quotes, up to the stream's end. The edge may be
    /// behind or ahead of that end.
    pub(crate) fn find(
        source: &dyn RecordSource,
        recording: &str,
        stream: &StreamSnapshot,
        edge: &DerivedEdge,
    ) -> Result<Self, StoreError> {
        let end = stream.numbers().end;
        let find = |file: String, records: u64| -> Result<DerivedRows, StoreError> {
            let there = records_of(source, &file)?;
            let mut records = there.start.min(records)..records;
            let mut from = edge.from;
            if there.start > 0 && !records.is_empty() {
                // Retention has removed rows: those of messages before the first row are unknown.
                let first = source.numbers(&file, records.start..records.start + 1)?;
                from = from.max(origin_of(&first).number + 1);
            }
            if edge.messages > end {
                let is_later = |record: &[u8]| origin_of(record).number >= end;
                records.end = first_where(source, &file, records.clone(), is_later)?;
            }
            let messages = from..edge.messages.min(end);
            Ok(DerivedRows { file, records, messages })
        };
        let trades = find(trades_name(recording, stream.stream()), edge.trades)?;
        let mut quotes = find(quotes_name(recording, stream.stream()), edge.quotes)?;
        if quotes.messages.end < end {
            leave_last_nanosecond(source, &mut quotes)?;
        }
        Ok(Self { trades, quotes })
    }
}

/// Leaves the rows of the last nanosecond out, because messages behind the edge may belong to it.
fn leave_last_nanosecond(
    source: &dyn RecordSource,
    quotes: &mut DerivedRows,
) -> Result<(), StoreError> {
    while !quotes.records.is_empty() {
        let last = quotes.records.end - 1;
        let record = source.numbers(&quotes.file, last..last + 1)?;
        quotes.records.end = last;
        quotes.messages.end = origin_of(&record).number;
        if tick_of(&record).begins_nanosecond {
            return Ok(());
        }
    }
    quotes.messages.end = quotes.messages.start;
    Ok(())
}
