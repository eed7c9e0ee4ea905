//! Rows in the formats that people and programs read.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::StreamWriter;
use arrow::util::pretty::pretty_format_batches;
use parquet::arrow::ArrowWriter;

type Failure = Box<dyn std::error::Error>;

/// Rows of a printed table at most. A table has columns of equal width, so that all its rows are
/// held before the first one is printed.
const TABLE_ROWS: usize = 10_000;

/// A format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table for people; 10,000 rows at most.
    Table,
    /// Lines of CSV, with a header.
    Csv,
    /// One JSON object a line.
    Json,
    /// An Arrow stream.
    Arrow,
    /// A Parquet file.
    Parquet,
}

/// Where rows go.
pub(crate) struct Output {
    writer: Writer,
    /// The file under a name of its own until it is whole.
    beside: Option<FileBeside>,
}

enum Writer {
    Table { batches: Vec<RecordBatch>, rows: usize, left_out: usize, out: Sink },
    Csv(Box<arrow::csv::Writer<Sink>>),
    Json(arrow::json::LineDelimitedWriter<Sink>),
    Arrow(Box<StreamWriter<Sink>>),
    Parquet(Box<ArrowWriter<Sink>>),
}

type Sink = Box<dyn Write + Send>;

/// A file that takes its name when it is whole, so that an interrupted statement leaves a file of
/// that name as it was.
struct FileBeside {
    unfinished: PathBuf,
    name: PathBuf,
    is_whole: bool,
}

/// The file of this process that is not whole, for an end of the process that drops nothing.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

fn note_unfinished(file: Option<PathBuf>) {
    *UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner) = file;
}

/// Removes the file that is not whole, before the process ends.
pub(crate) fn remove_unfinished() {
    let file = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(file) = file {
        let _ = std::fs::remove_file(file);
    }
}

impl FileBeside {
    fn create(name: &Path) -> Result<(Self, File), Failure> {
        let mut beside = name.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let unfinished = PathBuf::from(beside);
        let file = File::create_new(&unfinished)
            .map_err(|error| format!("cannot write {}: {error}", name.display()))?;
        note_unfinished(Some(unfinished.clone()));
        Ok((Self { unfinished, name: name.to_owned(), is_whole: false }, file))
    }

    fn take_name(&mut self) -> Result<(), Failure> {
        std::fs::rename(&self.unfinished, &self.name)
            .map_err(|error| format!("cannot write {}: {error}", self.name.display()))?;
        self.is_whole = true;
        note_unfinished(None);
        Ok(())
    }
}

impl Drop for FileBeside {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}

impl Output {
    /// Begins the output of rows of this schema.
    ///
    /// # Errors
    /// A file that cannot be made, and a schema that the format cannot hold.
    pub(crate) fn begin(
        format: OutputFormat,
        out: Option<&Path>,
        schema: &SchemaRef,
    ) -> Result<Self, Failure> {
        let (beside, sink): (_, Sink) = match out {
            None => (None, Box::new(BufWriter::new(std::io::stdout()))),
            Some(name) => {
                let (beside, file) = FileBeside::create(name)?;
                (Some(beside), Box::new(BufWriter::new(file)))
            }
        };
        let writer = match format {
            OutputFormat::Table => {
                // An answer without rows has a header as well.
                let batches = vec![RecordBatch::new_empty(schema.clone())];
                Writer::Table { batches, rows: 0, left_out: 0, out: sink }
            }
            OutputFormat::Csv => Writer::Csv(Box::new(arrow::csv::Writer::new(sink))),
            OutputFormat::Json => Writer::Json(arrow::json::LineDelimitedWriter::new(sink)),
            OutputFormat::Arrow => Writer::Arrow(Box::new(StreamWriter::try_new(sink, schema)?)),
            OutputFormat::Parquet => {
                Writer::Parquet(Box::new(ArrowWriter::try_new(sink, schema.clone(), None)?))
            }
        };
        Ok(Self { writer, beside })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// The errors of the format and of the file.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        match &mut self.writer {
            Writer::Table { batches, rows, left_out, .. } => {
                let taken = batch.num_rows().min(TABLE_ROWS - *rows);
                batches.push(batch.slice(0, taken));
                *rows += taken;
                *left_out += batch.num_rows() - taken;
            }
            Writer::Csv(writer) => writer.write(batch)?,
            Writer::Json(writer) => writer.write(batch)?,
            Writer::Arrow(writer) => writer.write(batch)?,
            Writer::Parquet(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    /// Ends the output. A file has its name now.
    ///
    /// # Errors
    /// The errors of the format and of the file.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        match self.writer {
            Writer::Table { batches, left_out, mut out, .. } => {
                writeln!(out, "{}", pretty_format_batches(&batches)?)?;
                out.flush()?;
                if left_out > 0 {
                    eprintln!(
                        "evenfall query: {left_out} rows are not shown; --format csv has all"
                    );
                }
            }
            Writer::Csv(writer) => writer.into_inner().flush()?,
            Writer::Json(mut writer) => {
                writer.finish()?;
                writer.into_inner().flush()?;
            }
            Writer::Arrow(mut writer) => {
                writer.finish()?;
                writer.into_inner()?.flush()?;
            }
            Writer::Parquet(writer) => writer.into_inner()?.flush()?,
        }
        self.beside.as_mut().map_or(Ok(()), FileBeside::take_name)
    }
}
