//! Writes record batches as a Parquet file or as an Arrow IPC stream. The batches are the same.

use std::io::Write;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{TimestampMicrosecondType, TimestampNanosecondType};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

/// The form in which batches are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFormat {
    /// A Parquet file with Snappy compression. The file is small, and can be read only when the
    /// file is complete.
    Parquet,
    /// An Arrow IPC stream without compression. A reader can use each batch as soon as it arrives.
    Arrow,
}

/// The unit of times in a file. Some readers take no nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeResolution {
    /// Nanoseconds, as the store has them.
    #[default]
    Nanoseconds,
    /// Microseconds, cut. Spark reads no other instants of Parquet.
    Microseconds,
}

/// A writer for batches of one schema.
pub struct BatchWriter<W: Write + Send> {
    schema: SchemaRef,
    resolution: TimeResolution,
    form: Form<W>,
}

enum Form<W: Write + Send> {
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<StreamWriter<W>>),
}

/// The schema with times in this unit.
fn schema_in(schema: &SchemaRef, resolution: TimeResolution) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Timestamp(TimeUnit::Nanosecond, zone)
            if resolution == TimeResolution::Microseconds =>
        {
            let kind = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
            Arc::new(field.as_ref().clone().with_data_type(kind))
        }
        _ => Arc::clone(field),
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Times of nanoseconds as microseconds. Other columns stay.
fn in_microseconds(column: &ArrayRef) -> ArrayRef {
    let DataType::Timestamp(TimeUnit::Nanosecond, zone) = column.data_type() else {
        return Arc::clone(column);
    };
    let times = column.as_primitive::<TimestampNanosecondType>();
    let cut = times.unary::<_, TimestampMicrosecondType>(|ns| ns.div_euclid(1_000));
    Arc::new(cut.with_timezone_opt(zone.clone()))
}

impl<W: Write + Send> BatchWriter<W> {
    /// Begins a file or a stream.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or `out`.
    pub fn new(
        kind: BatchFormat,
        resolution: TimeResolution,
        schema: &SchemaRef,
        out: W,
    ) -> Result<Self, ParquetError> {
        let schema = schema_in(schema, resolution);
        let form = match kind {
            BatchFormat::Parquet => {
                let properties = parquet::file::properties::WriterProperties::builder()
                    .set_compression(parquet::basic::Compression::SNAPPY)
                    .build();
                let writer = ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties))?;
                Form::Parquet(Box::new(writer))
            }
            BatchFormat::Arrow => Form::Arrow(Box::new(StreamWriter::try_new(out, &schema)?)),
        };
        Ok(Self { schema, resolution, form })
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or the file.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let converted;
        let batch = match self.resolution {
            TimeResolution::Nanoseconds => batch,
            TimeResolution::Microseconds => {
                let columns = batch.columns().iter().map(in_microseconds).collect();
                converted = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
                &converted
            }
        };
        match &mut self.form {
            Form::Parquet(writer) => writer.write(batch),
            Form::Arrow(writer) => Ok(writer.write(batch)?),
        }
    }

    /// Ends the file or the stream.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or the file.
    pub fn finish(self) -> Result<(), ParquetError> {
        match self.form {
            Form::Parquet(writer) => writer.close().map(drop),
            Form::Arrow(writer) => {
                let mut out = writer.into_inner()?;
                Ok(out.flush()?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use arrow_array::TimestampNanosecondArray;
    use arrow_schema::Field;
    use parquet::basic::{LogicalType, TimeUnit as ParquetUnit};
    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    /// Two instants in UTC, one of them before 1970.
    fn instants() -> RecordBatch {
        let utc: Arc<str> = "UTC".into();
        let kind = DataType::Timestamp(TimeUnit::Nanosecond, Some(Arc::clone(&utc)));
        let schema = Schema::new(vec![Field::new("time", kind, false)]);
        let times = TimestampNanosecondArray::from(vec![1_577_716_200_000_001_999, -1]);
        let times: ArrayRef = Arc::new(times.with_timezone(utc));
        RecordBatch::try_new(Arc::new(schema), vec![times]).unwrap()
    }

    /// Spark 3 and 4 open instants of microseconds alone. A reader in New York takes a time that is
    /// not adjusted to UTC for its own.
    #[test]
    fn parquet_states_that_times_are_instants_and_their_unit() {
        let batch = instants();
        for (resolution, unit) in [
            (TimeResolution::Nanoseconds, ParquetUnit::NANOS),
            (TimeResolution::Microseconds, ParquetUnit::MICROS),
        ] {
            let mut file = Vec::new();
            let schema = batch.schema();
            let mut writer =
                BatchWriter::new(BatchFormat::Parquet, resolution, &schema, &mut file).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
            let reader = SerializedFileReader::new(bytes::Bytes::from(file)).unwrap();
            let about = reader.metadata().file_metadata();
            assert_eq!(about.num_rows(), 2);
            let stated = about.schema_descr().column(0).logical_type_ref().cloned();
            assert_eq!(stated, Some(LogicalType::timestamp(true, unit)), "{resolution:?}");
        }
    }

    #[test]
    fn microseconds_are_cut_towards_the_past_and_stay_in_utc() {
        let cut = in_microseconds(instants().column(0));
        let times = cut.as_primitive::<TimestampMicrosecondType>();
        assert_eq!(times.values()[..], [1_577_716_200_000_001, -1]);
        assert_eq!(times.timezone(), Some("UTC"));
    }
}
