//! Writes records and messages as CSV, JSON lines, Parquet or Arrow, to standard output or a file.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use evenfall_runtime::output_file::{Out, UnfinishedFile, open_output};
use evenfall_store_engine::export::{csv, csv_header};
use evenfall_store_format::Schema;
use evenfall_store_recording::rows::{self as messages, MessageRow};

#[cfg(feature = "arrow")]
use self::columns::MessageColumns;
#[cfg(not(feature = "arrow"))]
use self::columns_absent::MessageColumns;

#[cfg(feature = "arrow")]
pub use self::columns::{write_file, write_table};
#[cfg(not(feature = "arrow"))]
pub use self::columns_absent::{write_file, write_table};

type Failure = Box<dyn std::error::Error>;

/// A format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// A header, then a line for each record; bytes in hex.
    Csv,
    /// A JSON object on each line; bytes in hex. For messages only.
    Json,
    /// Parquet.
    Parquet,
    /// An Arrow IPC stream, such as pyarrow reads from a pipe.
    Arrow,
}

/// Endings of names, and the formats that they stand for.
const ENDINGS: [(&str, TableFormat); 8] = [
    ("csv", TableFormat::Csv),
    ("json", TableFormat::Json),
    ("jsonl", TableFormat::Json),
    ("ndjson", TableFormat::Json),
    ("parquet", TableFormat::Parquet),
    ("arrow", TableFormat::Arrow),
    ("arrows", TableFormat::Arrow),
    ("ipc", TableFormat::Arrow),
];

impl TableFormat {
    /// The format of a file by the ending of its name.
    ///
    /// # Errors
    /// No format has this ending.
    pub fn of_name(path: &Path) -> Result<Self, String> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let known = ENDINGS.iter().find(|(known, _)| *known == ending);
        known.map(|(_, format)| *format).ok_or_else(|| {
            let all: Vec<&str> = ENDINGS.iter().map(|(ending, _)| *ending).collect();
            format!(
                "{}: no format has this ending; end the name in one of {}, or give --format",
                path.display(),
                all.join(", ")
            )
        })
    }

    /// Whether the format has columns of values in place of text.
    pub fn is_columnar(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

/// The unit of times in Parquet and Arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimeUnit {
    /// Nanoseconds, all that the store has.
    Ns,
    /// Microseconds, cut. Spark reads no nanoseconds.
    Us,
}

/// The form and the place of an output.
#[derive(Clone, Copy, Debug)]
pub struct TableTarget<'a> {
    pub format: TableFormat,
    #[cfg_attr(not(feature = "arrow"), expect(dead_code, reason = "only Parquet has units"))]
    pub time_unit: TimeUnit,
    /// The file; `None` for standard output.
    pub path: Option<&'a Path>,
}

/// Writes the records of a file as CSV.
pub struct RecordLines {
    schema: Schema,
    out: Out,
    file: UnfinishedFile,
}

impl RecordLines {
    pub fn begin(schema: &Schema, target: TableTarget<'_>) -> Result<Self, Failure> {
        if target.format == TableFormat::Json {
            return Err("the records of a file can be written as csv, parquet or arrow".into());
        }
        let (mut out, file) = open_output(target.path)?;
        writeln!(out, "{}", csv_header(schema))?;
        Ok(Self { schema: schema.clone(), out, file })
    }

    pub fn write(&mut self, records: &[u8]) -> Result<(), Failure> {
        Ok(csv(&self.schema, records, &mut self.out)?)
    }

    /// Makes all written text visible at once.
    pub fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    pub fn finish(mut self) -> Result<(), Failure> {
        self.out.flush()?;
        Ok(self.file.keep()?)
    }
}

/// A writer for the messages of a recording.
pub enum MessageOutput {
    Csv(Out, UnfinishedTable),
    Json(Out, UnfinishedTable),
    /// Writes Parquet or Arrow.
    Columns(Box<MessageColumns>),
}

/// The file of a writer.
pub struct UnfinishedTable(UnfinishedFile);

impl MessageOutput {
    pub fn begin(target: TableTarget<'_>) -> Result<Self, Failure> {
        Ok(match target.format {
            TableFormat::Csv => {
                let (mut out, file) = open_output(target.path)?;
                writeln!(out, "{}", messages::COLUMNS.join(","))?;
                Self::Csv(out, UnfinishedTable(file))
            }
            TableFormat::Json => {
                let (out, file) = open_output(target.path)?;
                Self::Json(out, UnfinishedTable(file))
            }
            TableFormat::Parquet | TableFormat::Arrow => {
                Self::Columns(Box::new(MessageColumns::begin(target)?))
            }
        })
    }

    pub fn write(&mut self, row: MessageRow) -> Result<(), Failure> {
        match self {
            Self::Csv(out, _) => Ok(messages::csv(&row, out)?),
            Self::Json(out, _) => Ok(messages::json(&row, out)?),
            Self::Columns(columns) => columns.write(row),
        }
    }

    /// Makes all written text visible at once. Only text can be flushed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Csv(out, _) | Self::Json(out, _) => Ok(out.flush()?),
            Self::Columns(_) => Ok(()),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Csv(mut out, file) | Self::Json(mut out, file) => {
                out.flush()?;
                Ok(file.0.keep()?)
            }
            Self::Columns(columns) => columns.finish(),
        }
    }
}

/// Parquet files and Arrow streams.
#[cfg(feature = "arrow")]
mod columns {
    use std::ops::{ControlFlow, Range, RangeInclusive};
    use std::sync::Arc;

    use evenfall_store_engine::RecordSource;
    use evenfall_store_engine::batch_writer::{BatchFormat, BatchWriter, TimeResolution};
    use evenfall_store_recording::rows::{MessageBatchWriter, MessageRow};
    use evenfall_store_recording::{RowSelection, Snapshot, StoreTables, TableName, Tables as _};

    use super::{Failure, Out, TableFormat, TableTarget, TimeUnit, UnfinishedFile, open_output};

    fn form(target: TableTarget<'_>) -> (BatchFormat, TimeResolution) {
        let format = match target.format {
            TableFormat::Arrow => BatchFormat::Arrow,
            _ => BatchFormat::Parquet,
        };
        let resolution = match target.time_unit {
            TimeUnit::Ns => TimeResolution::Nanoseconds,
            TimeUnit::Us => TimeResolution::Microseconds,
        };
        (format, resolution)
    }

    /// Writes records of a user's file.
    pub fn write_file(
        source: &Arc<dyn RecordSource>,
        name: &str,
        numbers: Range<u64>,
        target: TableTarget<'_>,
    ) -> Result<(), Failure> {
        let table = StoreTables::new(Arc::clone(source)).open(&TableName::of_file(name))?;
        let (file, _) = write_rows(&*table, &RowSelection::of(vec![numbers]), target)?;
        Ok(file.keep()?)
    }

    /// Writes the rows of a table of a recording between two times. Returns how many there are.
    pub fn write_table(
        source: &Arc<dyn RecordSource>,
        recording: &str,
        table: &str,
        times: &RangeInclusive<i64>,
        target: TableTarget<'_>,
    ) -> Result<u64, Failure> {
        let name = TableName::of_recording(recording, table);
        let table = StoreTables::new(Arc::clone(source)).open(&name)?;
        let rows = table.between(*times.start(), *times.end())?;
        let (file, count) = write_rows(&*table, &rows, target)?;
        // An answer without a row must not take the place of an earlier file.
        if let Some(path) = target.path.filter(|path| count == 0 && path.is_file()) {
            return Err(format!("{}: no rows to replace it by; it stays", path.display()).into());
        }
        file.keep()?;
        Ok(count)
    }

    /// Writes rows of a table with all of its columns. Returns the file, which the caller keeps,
    /// and the number of rows.
    fn write_rows(
        table: &dyn Snapshot,
        rows: &RowSelection,
        target: TableTarget<'_>,
    ) -> Result<(UnfinishedFile, u64), Failure> {
        let schema = &table.info().schema;
        let (format, resolution) = form(target);
        let (out, file) = open_output(target.path)?;
        let mut writer = BatchWriter::new(format, resolution, schema, out)?;
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let (mut written, mut count) = (Ok(()), 0);
        table.scan(rows, &columns, &mut |batch| {
            count += batch.num_rows() as u64;
            written = writer.write(&batch);
            if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        written?;
        writer.finish()?;
        Ok((file, count))
    }

    /// Writes messages of a recording.
    pub struct MessageColumns {
        writer: MessageBatchWriter<Out>,
        file: UnfinishedFile,
    }

    impl MessageColumns {
        pub fn begin(target: TableTarget<'_>) -> Result<Self, Failure> {
            let (format, resolution) = form(target);
            let (out, file) = open_output(target.path)?;
            Ok(Self { writer: MessageBatchWriter::new(format, resolution, out)?, file })
        }

        pub fn write(&mut self, row: MessageRow) -> Result<(), Failure> {
            Ok(self.writer.write(row)?)
        }

        pub fn finish(self) -> Result<(), Failure> {
            self.writer.finish()?;
            Ok(self.file.keep()?)
        }
    }
}

/// The parts of `columns` in a build without Arrow.
#[cfg(not(feature = "arrow"))]
mod columns_absent {
    use std::ops::{Range, RangeInclusive};
    use std::sync::Arc;

    use evenfall_store_engine::RecordSource;
    use evenfall_store_recording::MessageRow;

    use super::{Failure, TableTarget};
    use crate::missing::words;

    pub fn write_file(
        _: &Arc<dyn RecordSource>,
        _: &str,
        _: Range<u64>,
        _: TableTarget<'_>,
    ) -> Result<(), Failure> {
        Err(words("output as Parquet or Arrow", "arrow").into())
    }

    pub fn write_table(
        _: &Arc<dyn RecordSource>,
        _: &str,
        _: &str,
        _: &RangeInclusive<i64>,
        _: TableTarget<'_>,
    ) -> Result<u64, Failure> {
        Err(words("output as Parquet or Arrow", "arrow").into())
    }

    /// No value of this type can be made.
    pub enum MessageColumns {}

    impl MessageColumns {
        pub fn begin(_: TableTarget<'_>) -> Result<Self, Failure> {
            Err(words("output as Parquet or Arrow", "arrow").into())
        }

        pub fn write(&mut self, _: MessageRow) -> Result<(), Failure> {
            match *self {}
        }

        pub fn finish(self) -> Result<(), Failure> {
            match self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn target(format: TableFormat, path: &Path) -> TableTarget<'_> {
        TableTarget { format, time_unit: TimeUnit::Ns, path: Some(path) }
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn an_output_that_is_not_finished_leaves_the_file_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("there");
        fs::write(&path, "kept").expect("a file");
        let schema = Schema::opaque(8);
        assert!(RecordLines::begin(&schema, target(TableFormat::Json, &path)).is_err());
        let mut lines =
            RecordLines::begin(&schema, target(TableFormat::Csv, &path)).expect("an output");
        lines.write(&[0; 8]).expect("a line");
        drop(lines);
        for format in
            [TableFormat::Csv, TableFormat::Json, TableFormat::Parquet, TableFormat::Arrow]
        {
            drop(MessageOutput::begin(target(format, &path)));
        }
        assert_eq!(fs::read_to_string(&path).expect("a file"), "kept");
        assert_eq!(names_in(directory.path()), ["there"]);
        RecordLines::begin(&schema, target(TableFormat::Csv, &path))
            .and_then(RecordLines::finish)
            .expect("an output");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "time\n");
        assert_eq!(names_in(directory.path()), ["there"]);
    }

    #[test]
    fn a_link_stays_and_a_directory_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("there"), directory.path().join("link"));
        fs::write(&path, "old").expect("a file");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        MessageOutput::begin(target(TableFormat::Json, &link))
            .and_then(MessageOutput::finish)
            .expect("written");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read_to_string(&path).expect("a file"), "");
        let refused = open_output(Some(directory.path())).err().expect("a refusal").to_string();
        assert!(refused.contains("this is a directory"), "{refused}");
    }
}
