//! The report of a run: its figures, its verdict, and the fairness log as rows.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, TimestampNanosecondArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use evenfall_multicast_report::FairnessRow;
use evenfall_multicast_service::report::{self, Report, verdict};
use pyo3::prelude::*;

use crate::errors::RowsError;
use crate::rows::{RowSource, Rows};
use crate::waits::run_beside;

/// Messages of a batch of the fairness log.
const BATCH_MESSAGES: usize = 8_192;

/// A value of Rust as Python's dictionaries, lists and numbers.
pub(crate) fn python_value<'py>(
    py: Python<'py>,
    value: &impl serde::Serialize,
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// Reads the logs of a run and judges it.
#[pyfunction]
#[pyo3(name = "report", signature = (directory = None))]
pub(crate) fn read_report(py: Python<'_>, directory: Option<PathBuf>) -> PyResult<PyReport> {
    let directory = directory.unwrap_or_else(|| PathBuf::from("run"));
    let read = directory.clone();
    let report = run_beside(py, move || report::read(&read, None))?;
    Ok(PyReport { report: report.map_err(RowsError::Report)?, directory })
}

/// What a run was like.
#[pyclass(frozen, name = "Report", module = "evenfall")]
pub(crate) struct PyReport {
    report: Report,
    directory: PathBuf,
}

#[pymethods]
impl PyReport {
    /// The figures of `evenfall report --json`.
    #[getter(figures)]
    fn figures_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_value(py, &self.report.outcome.results)
    }

    /// The run in a sentence.
    #[getter(verdict)]
    fn verdict_sentence(&self) -> String {
        verdict::sentence(&self.report)
    }

    /// What a reader must know before the figures are believed.
    #[getter(warnings)]
    fn warning_list(&self) -> Vec<String> {
        self.report.warnings.clone()
    }

    /// The page, as the text of an HTML file.
    #[pyo3(name = "html")]
    fn html_page(&self) -> String {
        self.report.html()
    }

    /// The fairness log: a row for each message.
    #[pyo3(name = "messages")]
    fn message_rows(&self) -> Rows {
        Rows::new(FairnessRows { directory: self.directory.clone() })
    }

    fn __repr__(&self) -> String {
        format!("<Report of {}: {}>", self.directory.display(), self.verdict_sentence())
    }

    fn _repr_html_(&self) -> String {
        let text = self.verdict_sentence();
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!("<p>{text}</p>")
    }
}

/// The fairness log of a run, read out of its logs at each request.
struct FairnessRows {
    directory: PathBuf,
}

/// A column of the log.
struct LogColumn {
    name: &'static str,
    /// Whether the values are instants.
    is_time: bool,
    value: fn(&FairnessRow) -> Option<u64>,
}

/// The columns, in the order of `evenfall report --csv`.
const COLUMNS: [LogColumn; 11] = [
    LogColumn { name: "stream", is_time: false, value: |row| Some(row.stream.into()) },
    LogColumn { name: "message", is_time: false, value: |row| Some(row.message) },
    LogColumn { name: "scheduled", is_time: true, value: |row| Some(row.scheduled_ns) },
    LogColumn { name: "sent", is_time: true, value: |row| Some(row.sent_ns) },
    LogColumn { name: "deadline", is_time: true, value: |row| row.deadline_ns },
    LogColumn { name: "first_arrival", is_time: true, value: |row| arrived(row.first_arrival_ns) },
    LogColumn { name: "last_arrival", is_time: true, value: |row| arrived(row.last_arrival_ns) },
    LogColumn { name: "first_release", is_time: true, value: |row| arrived(row.first_release_ns) },
    LogColumn { name: "last_release", is_time: true, value: |row| arrived(row.last_release_ns) },
    LogColumn { name: "receivers", is_time: false, value: |row| Some(row.receivers.into()) },
    LogColumn { name: "late", is_time: false, value: |row| Some(row.late.into()) },
];

/// The log has zero for a message that no receiver had.
fn arrived(ns: u64) -> Option<u64> {
    Some(ns).filter(|ns| *ns > 0)
}

fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn log_batch(schema: &SchemaRef, rows: &[FairnessRow]) -> Result<RecordBatch, ArrowError> {
    let columns = COLUMNS.iter().map(|column| -> ArrayRef {
        let values = rows.iter().map(|row| (column.value)(row).and_then(|v| i64::try_from(v).ok()));
        match column.is_time {
            true => {
                let times: TimestampNanosecondArray = values.collect();
                Arc::new(times.with_timezone("UTC"))
            }
            false => Arc::new(values.collect::<Int64Array>()),
        }
    });
    RecordBatch::try_new(Arc::clone(schema), columns.collect())
}

impl RowSource for FairnessRows {
    fn title(&self) -> String {
        format!("the messages of {}", self.directory.display())
    }

    fn schema(&self) -> SchemaRef {
        let field = |column: &LogColumn| {
            let kind = if column.is_time { utc() } else { DataType::Int64 };
            Field::new(column.name, kind, true)
        };
        Arc::new(Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>()))
    }

    fn read(&self, each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>) -> Result<(), RowsError> {
        let schema = self.schema();
        let mut gathered = Vec::with_capacity(BATCH_MESSAGES);
        let mut failed = None;
        let mut is_over = false;
        let mut give = |gathered: &mut Vec<FairnessRow>| {
            match log_batch(&schema, gathered) {
                Ok(batch) => is_over = is_over || each(batch).is_break(),
                Err(error) => failed = failed.take().or(Some(error)),
            }
            gathered.clear();
        };
        report::read(
            &self.directory,
            Some(&mut |row: &FairnessRow| {
                gathered.push(*row);
                if gathered.len() == BATCH_MESSAGES {
                    give(&mut gathered);
                }
            }),
        )
        .map_err(RowsError::Report)?;
        if !gathered.is_empty() {
            give(&mut gathered);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}
