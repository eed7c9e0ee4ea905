//! SQL by the program `evenfall-query`, whose rows come as an Arrow stream over a pipe.
//!
//! The engine has more code than all the rest of the package together, so that the package starts
//! the program and does not contain it.

use std::io::{BufReader, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::SchemaRef;
use pyo3::prelude::*;

use crate::errors::RowsError;
use crate::rows::{RowSource, Rows};
use crate::waits::run_beside;

/// The name of the program, and of the variable that says where it is.
const PROGRAM: &str = "evenfall-query";
const VARIABLE: &str = "EVENFALL_QUERY";

/// Rows of a statement in SQL over the tables of a store.
#[pyfunction]
#[pyo3(name = "query", signature = (place, sql, *, recording = None))]
pub(crate) fn query_place(
    py: Python<'_>,
    place: PathBuf,
    sql: String,
    recording: Option<String>,
) -> PyResult<Rows> {
    let statement = Statement { place, sql, recording };
    let rows = run_beside(py, move || QueryRows::begin(statement))?;
    Ok(Rows::new(rows?))
}

/// A statement and where it is asked.
struct Statement {
    place: PathBuf,
    sql: String,
    recording: Option<String>,
}

/// The program while it answers.
struct RunningProgram {
    child: Child,
    rows: StreamReader<BufReader<ChildStdout>>,
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Statement {
    /// Starts the program, and reads the columns of its answer.
    fn start(&self) -> Result<RunningProgram, RowsError> {
        let program = std::env::var_os(VARIABLE).unwrap_or_else(|| PROGRAM.into());
        let mut command = Command::new(&program);
        command.arg(&self.place).arg(&self.sql).args(["--format", "arrow"]);
        if let Some(recording) = &self.recording {
            command.arg("--recording").arg(recording);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            RowsError::Query(format!(
                "{}: {error}; SQL is answered by the program {PROGRAM}: install it with `cargo \
                 install --path apps/query`, or say where it is by {VARIABLE}",
                program.display()
            ))
        })?;
        let Some(rows) = child.stdout.take() else { return Err(failure_of(&mut child)) };
        match StreamReader::try_new(BufReader::new(rows), None) {
            Ok(rows) => Ok(RunningProgram { child, rows }),
            Err(_) => Err(failure_of(&mut child)),
        }
    }
}

/// What the program said before it failed.
fn failure_of(child: &mut Child) -> RowsError {
    let mut said = String::new();
    if let Some(errors) = &mut child.stderr {
        errors.read_to_string(&mut said).ok();
    }
    child.wait().ok();
    let said = said.trim();
    let words = said.strip_prefix("evenfall query: ").unwrap_or(said);
    let words = if words.is_empty() { "evenfall-query ended without an answer" } else { words };
    RowsError::Query(words.to_owned())
}

/// The rows of a statement. Each reading runs the statement anew.
struct QueryRows {
    statement: Statement,
    schema: SchemaRef,
    /// The run that told the columns, for the first reading.
    begun: Mutex<Option<RunningProgram>>,
}

impl QueryRows {
    fn begin(statement: Statement) -> Result<Self, RowsError> {
        let running = statement.start()?;
        let schema = running.rows.schema();
        Ok(Self { statement, schema, begun: Mutex::new(Some(running)) })
    }
}

impl RowSource for QueryRows {
    fn title(&self) -> String {
        self.statement.sql.trim().to_owned()
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn read(&self, each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>) -> Result<(), RowsError> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut running = begun.map_or_else(|| self.statement.start(), Ok)?;
        for batch in running.rows.by_ref() {
            let Ok(batch) = batch else { return Err(failure_of(&mut running.child)) };
            if each(batch).is_break() {
                return Ok(());
            }
        }
        match running.child.wait() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(failure_of(&mut running.child)),
        }
    }
}
