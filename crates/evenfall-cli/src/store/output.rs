//! Where what is read goes: CSV, JSON lines or Parquet, to standard output or a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use evenfall_node::store::export::{ParquetFile, csv, csv_header};
use evenfall_node::store::messages::{self, MessageFile, Row};
use evenfall_store::Schema;

type Failure = Box<dyn std::error::Error>;
type Out = Box<dyn Write + Send>;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A header, and a line each; bytes in hex.
    Csv,
    /// A JSON object a line; bytes in hex. Messages only.
    Json,
    /// Parquet.
    Parquet,
}

fn to(out: Option<&Path>) -> Result<Out, Failure> {
    Ok(match out {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Box::new(BufWriter::new(file))
        }
        None => Box::new(BufWriter::new(std::io::stdout())),
    })
}

/// Records of a file, going out.
pub enum Records {
    /// As text.
    Csv(Schema, Out),
    /// As Parquet.
    Parquet(Box<ParquetFile<Out>>),
}

impl Records {
    pub fn new(schema: &Schema, format: Format, out: Option<&Path>) -> Result<Self, Failure> {
        let mut out = to(out)?;
        match format {
            Format::Csv => {
                writeln!(out, "{}", csv_header(schema))?;
                Ok(Self::Csv(schema.clone(), out))
            }
            Format::Parquet => Ok(Self::Parquet(Box::new(ParquetFile::new(schema, out)?))),
            Format::Json => Err("records of a file go out as csv or parquet".into()),
        }
    }

    pub fn write(&mut self, records: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Csv(schema, out) => Ok(csv(schema, records, out)?),
            Self::Parquet(file) => Ok(file.write(records)?),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Csv(_, mut out) => Ok(out.flush()?),
            Self::Parquet(file) => Ok(file.finish()?),
        }
    }
}

/// Messages of a recording, going out.
pub enum Messages {
    /// As text.
    Csv(Out),
    /// As text.
    Json(Out),
    /// As Parquet.
    Parquet(Box<MessageFile<Out>>),
}

impl Messages {
    pub fn new(format: Format, out: Option<&Path>) -> Result<Self, Failure> {
        let mut out = to(out)?;
        Ok(match format {
            Format::Csv => {
                writeln!(out, "{}", messages::COLUMNS.join(","))?;
                Self::Csv(out)
            }
            Format::Json => Self::Json(out),
            Format::Parquet => Self::Parquet(Box::new(MessageFile::new(out)?)),
        })
    }

    pub fn write(&mut self, row: Row) -> Result<(), Failure> {
        match self {
            Self::Csv(out) => Ok(messages::csv(&row, out)?),
            Self::Json(out) => Ok(messages::json(&row, out)?),
            Self::Parquet(file) => Ok(file.write(row)?),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Csv(mut out) | Self::Json(mut out) => Ok(out.flush()?),
            Self::Parquet(file) => Ok(file.finish()?),
        }
    }
}
