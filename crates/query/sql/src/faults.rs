//! Why a table of the store could not be read: its name, the rows, and how far the scan came.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use datafusion::common::DataFusionError;
use evenfall_store_recording::tables::{TableError, TableName};

/// A table that could not be read.
#[derive(Debug)]
struct UnreadableTable {
    table: String,
    scan: Option<BrokenScan>,
    cause: TableError,
}

/// How far a scan came.
#[derive(Debug)]
pub(crate) struct BrokenScan {
    /// The numbers of what was to be read, from 0 on.
    pub(crate) numbers: Range<u64>,
    /// What is numbered: rows, or the messages out of which rows are made.
    pub(crate) numbered: &'static str,
    /// Rows that were read before the error.
    pub(crate) rows_read: u64,
}

impl fmt::Display for UnreadableTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.table)?;
        if let Some(BrokenScan { numbers, numbered, rows_read }) = &self.scan {
            // People count from 1.
            let (first, last) = (numbers.start.saturating_add(1), numbers.end);
            write!(f, ", {numbered} {first} to {last}, after {rows_read} rows")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl Error for UnreadableTable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

/// The error of a table that could not be opened or searched.
pub(crate) fn table_error(table: &TableName, cause: TableError) -> DataFusionError {
    let is_named = !matches!(cause, TableError::Store(_) | TableError::Arrow(_));
    if is_named {
        // All other errors say by themselves what they are about.
        return DataFusionError::External(Box::new(cause));
    }
    let table = table.to_string();
    DataFusionError::External(Box::new(UnreadableTable { table, scan: None, cause }))
}

/// The error of a scan that did not reach its end.
pub(crate) fn scan_error(
    table: &TableName,
    scan: BrokenScan,
    cause: TableError,
) -> DataFusionError {
    let (table, scan) = (table.to_string(), Some(scan));
    DataFusionError::External(Box::new(UnreadableTable { table, scan, cause }))
}
