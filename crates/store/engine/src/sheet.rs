//! Record batches going out, as a Parquet file or as an Arrow IPC stream: the batches are the same.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

/// How batches go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Parquet file, with Snappy: small, and whole only at its end.
    Parquet,
    /// An Arrow IPC stream, uncompressed: each batch can be used as soon as it has come.
    Arrow,
}

/// Batches of one schema, going out.
pub enum Sheet<W: Write + Send> {
    /// As Parquet.
    Parquet(Box<ArrowWriter<W>>),
    /// As an Arrow stream.
    Arrow(Box<StreamWriter<W>>),
}

impl<W: Write + Send> Sheet<W> {
    /// Begins one.
    ///
    /// # Errors
    /// What Parquet, Arrow or `out` says.
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
    /// What Parquet, Arrow or the file says.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        match self {
            Self::Parquet(writer) => writer.write(batch),
            Self::Arrow(writer) => Ok(writer.write(batch)?),
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// What Parquet, Arrow or the file says.
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
