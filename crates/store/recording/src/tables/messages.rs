//! `messages` of formats that are read into events, and `raw` of all formats.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::batches::{MessageTable, fields_of};
use super::shredded::read_events;
use super::{
    BATCH_ROWS, RowSummary, Snapshot, TableError, TableInfo, TableName, check_columns, of_rows,
};
use crate::rows::MessageRow;
use crate::snapshot::{RecordingSnapshot, RowSelection};

/// `messages` or `raw` of a recording at one moment.
pub(super) struct MessageSnapshot {
    info: TableInfo,
    recording: Arc<RecordingSnapshot>,
    table: MessageTable,
}

impl MessageSnapshot {
    pub(super) fn open(
        recording: Arc<RecordingSnapshot>,
        table: MessageTable,
    ) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(recording.name(), table.name()),
            schema: table.schema(),
            sorted_by: Vec::from(table.sorted_by()),
            rows: Some(recording.count(&recording.rows())?),
            times: recording.span()?,
        };
        Ok(Self { info, recording, table })
    }
}

impl Snapshot for MessageSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.recording.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        let times: RangeInclusive<i64> = from_ns..=to_ns;
        Ok(self.recording.between(times)?)
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        // The files of a stream's sizes end their segments at different messages.
        rows.parts(n, 1)
    }

    fn summary(&self, rows: &RowSelection) -> Result<RowSummary, TableError> {
        let count = Some(self.recording.count(rows)?);
        let is_whole = *rows == self.recording.rows();
        let times = self.info.times.filter(|_| is_whole);
        Ok(RowSummary { count, times, columns: Vec::new() })
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let mut gathered: Vec<MessageRow> = Vec::with_capacity(BATCH_ROWS);
        let mut has_ended = false;
        let mut give = |gathered: &mut Vec<MessageRow>| -> Result<ControlFlow<()>, TableError> {
            let batch = match columns.is_empty() {
                true => of_rows(gathered.len())?,
                false => self.table.batch(gathered, columns)?,
            };
            gathered.clear();
            Ok(each(batch))
        };
        let mut take = |row: MessageRow| -> Result<ControlFlow<()>, TableError> {
            gathered.push(row);
            if gathered.len() < BATCH_ROWS {
                return Ok(ControlFlow::Continue(()));
            }
            let answer = give(&mut gathered)?;
            has_ended = answer.is_break();
            Ok(answer)
        };
        match self.table {
            MessageTable::Messages => {
                let fields = fields_of(columns);
                read_events(&self.recording, rows, &fields, &mut take)?;
            }
            MessageTable::Raw => self.recording.read(rows, None, &mut take)?,
        }
        if !has_ended && !gathered.is_empty() {
            let _ = give(&mut gathered)?;
        }
        Ok(())
    }
}
