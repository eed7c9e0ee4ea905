//! `trades` and `quotes` of formats whose messages are not read into either.
//!
//! The tables have a name and columns, so that a list of all tables is made without a failure, and
//! each question for their rows is refused by the name of the format.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::books::BookTable;
use super::columns::schema_of;
use super::{Snapshot, TableError, TableInfo, TableName};
use crate::snapshot::{RecordingSnapshot, RowSelection};

/// A table of which no row can be read.
pub(super) struct RefusedSnapshot {
    info: TableInfo,
    recording: Arc<RecordingSnapshot>,
    /// The name of the format.
    format: String,
}

impl RefusedSnapshot {
    pub(super) fn open(
        recording: Arc<RecordingSnapshot>,
        format: String,
        table: BookTable,
    ) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(recording.name(), table.name()),
            schema: schema_of(table.columns()),
            sorted_by: table.sorted_by().to_vec(),
            rows: None,
            times: recording.span()?,
        };
        Ok(Self { info, recording, format })
    }
}

impl Snapshot for RefusedSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.recording.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        Ok(RowSelection { times: from_ns..=to_ns, ..self.recording.rows() })
    }

    fn parts(&self, rows: &RowSelection, _: usize) -> Vec<RowSelection> {
        Vec::from([rows.clone()])
    }

    fn scan(
        &self,
        _: &RowSelection,
        _: &[usize],
        _: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        let (table, format) = (self.info.name.clone(), self.format.clone());
        Err(TableError::NotGiven { table, format })
    }
}
