//! Writes records and messages as CSV, JSON lines, Parquet or Arrow, to standard output or a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use evenfall_store_engine::export::{csv, csv_header};
use evenfall_store_format::Schema;
use evenfall_store_recording::rows::{self as messages, MessageRow};

#[cfg(feature = "arrow")]
use self::sheets::{MessageSheet, RecordSheet};
#[cfg(not(feature = "arrow"))]
use self::sheets_absent::{MessageSheet, RecordSheet};

type Failure = Box<dyn std::error::Error>;
type Out = Box<dyn Write + Send>;

/// A format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A header, then a line for each record; bytes in hex.
    Csv,
    /// A JSON object on each line; bytes in hex. For messages only.
    Json,
    /// Parquet.
    Parquet,
    /// An Arrow IPC stream, such as pyarrow reads from a pipe.
    Arrow,
}

/// A file whose errors name it.
struct Named {
    file: File,
    path: PathBuf,
}

impl Named {
    fn name(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| self.name(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| self.name(&error))
    }
}

/// Opens the output. Callers refuse a format before this call, because opening empties an existing
/// file.
fn to(out: Option<&Path>) -> Result<Out, Failure> {
    Ok(match out {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Box::new(BufWriter::new(Named { file, path: path.to_owned() }))
        }
        None => Box::new(BufWriter::new(evenfall_runtime::program::Stdout)),
    })
}

/// A writer for the records of a file.
pub enum Records {
    Csv(Schema, Out),
    /// Writes Parquet or Arrow.
    Sheet(Box<RecordSheet>),
}

impl Records {
    pub fn new(schema: &Schema, format: Format, out: Option<&Path>) -> Result<Self, Failure> {
        match format {
            Format::Csv => {
                let mut out = to(out)?;
                writeln!(out, "{}", csv_header(schema))?;
                Ok(Self::Csv(schema.clone(), out))
            }
            Format::Parquet | Format::Arrow => {
                Ok(Self::Sheet(Box::new(RecordSheet::begin(format, schema, out)?)))
            }
            Format::Json => {
                Err("the records of a file can be written as csv, parquet or arrow".into())
            }
        }
    }

    pub fn write(&mut self, records: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Csv(schema, out) => Ok(csv(schema, records, out)?),
            Self::Sheet(sheet) => Ok(sheet.write(records)?),
        }
    }

    /// Makes all written text visible at once. Only text can be flushed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Csv(_, out) => Ok(out.flush()?),
            Self::Sheet(_) => Ok(()),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Csv(_, mut out) => Ok(out.flush()?),
            Self::Sheet(sheet) => Ok(sheet.finish()?),
        }
    }
}

/// A writer for the messages of a recording.
pub enum Messages {
    Csv(Out),
    Json(Out),
    /// Writes Parquet or Arrow.
    Sheet(Box<MessageSheet>),
}

impl Messages {
    pub fn new(format: Format, out: Option<&Path>) -> Result<Self, Failure> {
        Ok(match format {
            Format::Csv => {
                let mut out = to(out)?;
                writeln!(out, "{}", messages::COLUMNS.join(","))?;
                Self::Csv(out)
            }
            Format::Json => Self::Json(to(out)?),
            Format::Parquet | Format::Arrow => {
                Self::Sheet(Box::new(MessageSheet::begin(format, out)?))
            }
        })
    }

    pub fn write(&mut self, row: MessageRow) -> Result<(), Failure> {
        match self {
            Self::Csv(out) => Ok(messages::csv(&row, out)?),
            Self::Json(out) => Ok(messages::json(&row, out)?),
            Self::Sheet(sheet) => Ok(sheet.write(row)?),
        }
    }

    /// Makes all written text visible at once. Only text can be flushed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Csv(out) | Self::Json(out) => Ok(out.flush()?),
            Self::Sheet(_) => Ok(()),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Csv(mut out) | Self::Json(mut out) => Ok(out.flush()?),
            Self::Sheet(sheet) => Ok(sheet.finish()?),
        }
    }
}

/// Parquet files and Arrow streams.
#[cfg(feature = "arrow")]
mod sheets {
    use evenfall_store_engine::export;
    use evenfall_store_engine::sheet::Kind;
    use evenfall_store_format::Schema;
    use evenfall_store_recording::rows::{self as messages, MessageRow};

    use super::{Failure, Format, Out, Path, to};

    fn kind(format: Format) -> Kind {
        if format == Format::Arrow { Kind::Arrow } else { Kind::Parquet }
    }

    pub struct RecordSheet(export::RecordSheet<Out>);

    impl RecordSheet {
        pub fn begin(format: Format, schema: &Schema, out: Option<&Path>) -> Result<Self, Failure> {
            Ok(Self(export::RecordSheet::new(kind(format), schema, to(out)?)?))
        }

        pub fn write(&mut self, records: &[u8]) -> Result<(), Failure> {
            Ok(self.0.write(records)?)
        }

        pub fn finish(self) -> Result<(), Failure> {
            Ok(self.0.finish()?)
        }
    }

    pub struct MessageSheet(messages::MessageSheet<Out>);

    impl MessageSheet {
        pub fn begin(format: Format, out: Option<&Path>) -> Result<Self, Failure> {
            Ok(Self(messages::MessageSheet::new(kind(format), to(out)?)?))
        }

        pub fn write(&mut self, row: MessageRow) -> Result<(), Failure> {
            Ok(self.0.write(row)?)
        }

        pub fn finish(self) -> Result<(), Failure> {
            Ok(self.0.finish()?)
        }
    }
}

/// The types of `sheets` in a build without Arrow. No value of them can be made.
#[cfg(not(feature = "arrow"))]
mod sheets_absent {
    use evenfall_store_format::Schema;
    use evenfall_store_recording::MessageRow;

    use super::{Failure, Format, Path};
    use crate::missing::words;

    pub enum RecordSheet {}

    impl RecordSheet {
        pub fn begin(_: Format, _: &Schema, _: Option<&Path>) -> Result<Self, Failure> {
            Err(words("output as Parquet or Arrow", "arrow").into())
        }

        pub fn write(&mut self, _: &[u8]) -> Result<(), Failure> {
            match *self {}
        }

        pub fn finish(self) -> Result<(), Failure> {
            match self {}
        }
    }

    pub enum MessageSheet {}

    impl MessageSheet {
        pub fn begin(_: Format, _: Option<&Path>) -> Result<Self, Failure> {
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
    use super::*;

    /// Formats that this build refuses for records.
    fn refused() -> Vec<Format> {
        let sheets = [Format::Parquet, Format::Arrow].into_iter();
        [Format::Json].into_iter().chain(sheets.filter(|_| cfg!(not(feature = "arrow")))).collect()
    }

    #[test]
    fn a_format_that_is_refused_leaves_the_output_file_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let (there, absent) = (directory.path().join("there"), directory.path().join("absent"));
        std::fs::write(&there, "kept").expect("a file");
        for format in refused() {
            for path in [&there, &absent] {
                assert!(Records::new(&Schema::opaque(8), format, Some(path)).is_err());
            }
        }
        assert_eq!(std::fs::read_to_string(&there).expect("a file"), "kept");
        assert!(!absent.exists());
    }

    #[test]
    fn a_full_disk_under_the_output_is_named() {
        let mut full = to(Some(Path::new("/dev/full"))).expect("a device");
        let error = full.write_all(b"word").and_then(|()| full.flush()).expect_err("no room");
        assert!(error.to_string().starts_with("/dev/full: "), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
