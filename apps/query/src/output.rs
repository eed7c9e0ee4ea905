//! Rows in the formats that people and programs read.

use std::fmt;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array as _, ArrayRef, AsArray as _, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use arrow::util::pretty::pretty_format_batches;
use evenfall_runtime::listing::is_deceptive;
use evenfall_runtime::output_file::{Out, UnfinishedFile, open_file};
use parquet::arrow::ArrowWriter;

type Failure = Box<dyn std::error::Error>;

/// Limit of the rows of a printed table. All rows are held before the first one is printed, because
/// each column has one width.
const TABLE_ROWS: usize = 10_000;
/// Limit of the bytes of the rows of a printed table. The text of a table takes several times as
/// many bytes, and a single value may have a gigabyte.
const TABLE_BYTES: usize = 64 << 20;

/// A format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table for people; 10,000 rows and 64 MiB at most.
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
    failed: FirstError,
    /// The file that takes its name when it is whole; `None` for standard output.
    file: Option<UnfinishedFile>,
}

enum Writer {
    Table { batches: Vec<RecordBatch>, rows: usize, bytes: usize, left_out: usize, out: Sink },
    Csv(Box<arrow::csv::Writer<Sink>>),
    Json(arrow::json::LineDelimitedWriter<Sink>),
    Arrow(Box<StreamWriter<Sink>>),
    Parquet(Box<ArrowWriter<Sink>>),
}

/// The first error of a [`Sink`], with its kind. The writers of Arrow keep only its words.
#[derive(Clone, Default)]
struct FirstError(Arc<Mutex<Option<io::Error>>>);

impl FirstError {
    fn take(&self) -> Option<io::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The error to report: that of the sink, and otherwise that of the format.
    fn explain_error(&self, error: Failure, is_standard: bool) -> Failure {
        match self.take() {
            Some(cause) => UnwrittenRows { cause, is_standard }.into(),
            None => error,
        }
    }
}

/// Bytes on their way to a file or to standard output.
struct Sink {
    out: Out,
    failed: FirstError,
}

impl Sink {
    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| {
            if error.kind() != ErrorKind::Interrupted {
                let copy = io::Error::new(error.kind(), error.to_string());
                let mut failed = self.failed.0.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(copy);
            }
        })
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.note(flushed)
    }
}

/// Rows that could not be written.
#[derive(Debug)]
struct UnwrittenRows {
    cause: io::Error,
    is_standard: bool,
}

impl fmt::Display for UnwrittenRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The error of a file names the file.
        let place = if self.is_standard { "standard output: " } else { "" };
        write!(f, "{place}{}", self.cause)
    }
}

impl std::error::Error for UnwrittenRows {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

/// Whether the reader of standard output has seen enough, as with `| head`. A statement then ends
/// quietly, and so does a prompt.
pub(crate) fn is_reader_gone(error: &(dyn std::error::Error + 'static)) -> bool {
    let unwritten = error.downcast_ref::<UnwrittenRows>();
    unwritten.is_some_and(|unwritten| {
        unwritten.is_standard && unwritten.cause.kind() == ErrorKind::BrokenPipe
    })
}

/// A table on a terminal. The texts of a table are those of a feed, and may hold bytes that move
/// the cursor or change colours.
fn printable_table(batches: &[RecordBatch]) -> Result<String, Failure> {
    let table = pretty_format_batches(batches)?.to_string();
    let is_shown = |letter: char| letter == '\n' || !is_deceptive(letter);
    if table.chars().all(is_shown) {
        return Ok(table);
    }
    let show = |letter: char| match is_shown(letter) {
        true => letter.to_string(),
        false => letter.escape_unicode().to_string(),
    };
    Ok(table.chars().map(show).collect())
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
        let (out, file): (Out, _) = match out {
            None => (Box::new(BufWriter::new(io::stdout())), None),
            Some(name) => {
                let (out, file) = open_file(name)?;
                (out, Some(file))
            }
        };
        let failed = FirstError::default();
        let sink = Sink { out, failed: failed.clone() };
        let writer = Writer::begin(format, sink, schema)
            .map_err(|error| failed.explain_error(error, file.is_none()))?;
        Ok(Self { writer, failed, file })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// The errors of the format and of the file.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        let written = self.writer.write(batch);
        written.map_err(|error| self.failed.explain_error(error, self.file.is_none()))
    }

    /// Ends the output. A file has its name now.
    ///
    /// # Errors
    /// The errors of the format and of the file.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Self { writer, failed, file } = self;
        writer.finish().map_err(|error| failed.explain_error(error, file.is_none()))?;
        Ok(file.map_or(Ok(()), UnfinishedFile::keep)?)
    }
}

/// Bytes of the values of these rows. A batch may be a slice of a much larger one, whose buffers
/// have the other rows too.
fn bytes_of_rows(rows: &RecordBatch) -> usize {
    let of_column = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8View => column.as_string_view().total_bytes_len(),
        DataType::BinaryView => column.as_binary_view().total_bytes_len(),
        kind if kind.is_nested() => column.get_array_memory_size(),
        _ => column.to_data().get_slice_memory_size().unwrap_or(usize::MAX),
    };
    rows.columns().iter().map(of_column).fold(0, usize::saturating_add)
}

impl Writer {
    fn begin(format: OutputFormat, sink: Sink, schema: &SchemaRef) -> Result<Self, Failure> {
        Ok(match format {
            OutputFormat::Table => {
                // An answer without rows has a header as well.
                let batches = vec![RecordBatch::new_empty(schema.clone())];
                Self::Table { batches, rows: 0, bytes: 0, left_out: 0, out: sink }
            }
            OutputFormat::Csv => Self::Csv(Box::new(arrow::csv::Writer::new(sink))),
            OutputFormat::Json => Self::Json(arrow::json::LineDelimitedWriter::new(sink)),
            OutputFormat::Arrow => Self::Arrow(Box::new(StreamWriter::try_new(sink, schema)?)),
            OutputFormat::Parquet => {
                Self::Parquet(Box::new(ArrowWriter::try_new(sink, schema.clone(), None)?))
            }
        })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        match self {
            Self::Table { batches, rows, bytes, left_out, .. } => {
                let first = batch.slice(0, batch.num_rows().min(TABLE_ROWS - *rows));
                *bytes = bytes.saturating_add(bytes_of_rows(&first));
                let taken = if *bytes > TABLE_BYTES { 0 } else { first.num_rows() };
                // A slice without rows would keep all memory of its batch.
                if taken > 0 {
                    batches.push(first);
                }
                *rows += taken;
                *left_out += batch.num_rows() - taken;
            }
            Self::Csv(writer) => writer.write(batch)?,
            Self::Json(writer) => writer.write(batch)?,
            Self::Arrow(writer) => writer.write(batch)?,
            Self::Parquet(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Table { batches, left_out, mut out, .. } => {
                writeln!(out, "{}", printable_table(&batches)?)?;
                out.flush()?;
                if left_out > 0 {
                    aside!("evenfall query: {left_out} rows are not shown; --format csv has all");
                }
            }
            Self::Csv(writer) => writer.into_inner().flush()?,
            Self::Json(mut writer) => {
                writer.finish()?;
                writer.into_inner().flush()?;
            }
            Self::Arrow(mut writer) => {
                writer.finish()?;
                writer.into_inner()?.flush()?;
            }
            Self::Parquet(writer) => writer.into_inner()?.flush()?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn table_shows_letters_that_move_the_cursor_as_escapes() {
        let table = |text: &str| {
            let texts: ArrayRef = Arc::new(StringArray::from(vec![text]));
            let batch = RecordBatch::try_from_iter([("symbol", texts)]).unwrap();
            printable_table(&[batch]).unwrap()
        };
        assert!(table("A\u{1b}[2J").contains("A\\u{1b}[2J"));
        assert!(table("\u{202e}AAPL").contains("\\u{202e}AAPL"));
        assert!(table("Müller").contains("| Müller |"));
        assert_eq!(table("one\ntwo").lines().count(), 6);
    }

    #[test]
    fn few_rows_of_a_large_batch_are_shown() {
        // DataFusion gives the groups of a query as slices of one batch.
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![0; TABLE_BYTES / 8 + 1]));
        let batch = RecordBatch::try_from_iter([("count", numbers)]).unwrap();
        let sink = Sink { out: Box::new(io::sink()), failed: FirstError::default() };
        let mut writer = Writer::begin(OutputFormat::Table, sink, &batch.schema()).unwrap();
        writer.write(&batch.slice(0, 5)).unwrap();
        writer.write(&batch.slice(5, 6)).unwrap();
        let Writer::Table { rows, left_out, .. } = writer else { unreachable!() };
        assert_eq!((rows, left_out), (11, 0));
    }
}
