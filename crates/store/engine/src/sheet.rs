//! Writes record batches as a Parquet file or as an Arrow IPC stream. The batches are the same.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

/// The form in which batches are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Parquet file with Snappy compression. The file is small, and can be read only when the
    /// file is complete.
    Parquet,
    /// An Arrow IPC stream without compression. A reader can use each batch as soon as it arrives.
    Arrow,
}

/// A writer for batches of one schema.
pub enum Sheet<W: Write + Send> {
    /// Writes Parquet.
    Parquet(Box<ArrowWriter<W>>),
    /// Writes an Arrow stream.
    Arrow(Box<StreamWriter<W>>),
}

impl<W: Write + Send> Sheet<W> {
    /// Begins a sheet.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or `out`.
    pub fn new(kind: Kind, schema: &SchemaRef, out: W) -> Result<Self, ParquetError> {
        Ok(match kind {
            Kind::Parquet => {
                let properties = parquet::file::properties::WriterProperties::builder()
                    .set_compression(parquet::basic::Compression::SNAPPY)
                    .build();
                let writer = ArrowWriter::try_new(out, SchemaRef::clone(schema), Some(properties))?;
                Self::Parquet(Box::new(writer))
            }
            Kind::Arrow => Self::Arrow(Box::new(StreamWriter::try_new(out, schema)?)),
        })
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or the file.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        match self {
            Self::Parquet(writer) => writer.write(batch),
            Self::Arrow(writer) => Ok(writer.write(batch)?),
        }
    }

    /// Ends the sheet.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or the file.
    pub fn finish(self) -> Result<(), ParquetError> {
        match self {
            Self::Parquet(writer) => writer.close().map(drop),
            Self::Arrow(writer) => {
                let mut out = writer.into_inner()?;
                Ok(out.flush()?)
            }
        }
    }
}
