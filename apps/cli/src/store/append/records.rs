//! Appends records of a table to a file with a schema.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_store_engine::import::{CsvReader, StampUnit};
use evenfall_store_engine::{Client, Level, RemoteFile, Store, StoreError, StoreFile};
use evenfall_store_format::layout::record_time;
use evenfall_store_format::{Error as StoreFormatError, Field, Schema};

use super::Window;
use crate::Outcome;

/// Bytes gathered before they are appended.
const BATCH_BYTES: usize = 256 << 10;

enum Sink<'a> {
    Store(&'a Store, Arc<StoreFile>),
    Server(Box<Client>, RemoteFile),
}

impl Sink<'_> {
    fn schema(&self) -> &Schema {
        match self {
            Self::Store(_, file) => &file.schema,
            Self::Server(_, file) => &file.schema,
        }
    }

    /// Appends records, and returns when they have reached the level.
    fn append(&mut self, records: &[u8], level: Level) -> Outcome {
        match self {
            Self::Store(store, file) => store.append(file, records, level).map(drop)?,
            Self::Server(client, file) => {
                client.append(file, records, level)?;
                while let Some(completion) = client.completion()? {
                    completion.first?;
                }
            }
        }
        Ok(())
    }
}

/// Records on their way into a file, with or without a window.
struct Intake<'a> {
    sink: Sink<'a>,
    level: Level,
    window: Option<Window>,
    sequence: Option<Field>,
    /// The lines of the records in the window, and of records that it refused or dropped.
    waiting: HashMap<Bytes, u64>,
    /// Name of the table, for errors.
    place: String,
    batch: Vec<u8>,
    /// The line of each record of the batch.
    lines: Vec<u64>,
    appended: u64,
}

impl Intake<'_> {
    fn take(&mut self, line: u64, record: Vec<u8>) -> Outcome {
        let Some(window) = &mut self.window else { return self.push(line, &record) };
        let time_ns = record_time(&record);
        let sequence = self.sequence.as_ref().map_or(line, |field| field.whole(&record) as u64);
        let record = Bytes::from(record);
        self.waiting.insert(record.clone(), line);
        window.offer(format_args!("line {line}"), sequence, time_ns, record);
        while let Some(record) = self.window.as_mut().and_then(Window::poll) {
            self.push_ordered(&record)?;
        }
        Ok(())
    }

    /// Takes a record that has left the window.
    fn push_ordered(&mut self, record: &[u8]) -> Outcome {
        let line = self.waiting.remove(record).unwrap_or_default();
        self.push(line, record)
    }

    fn push(&mut self, line: u64, record: &[u8]) -> Outcome {
        self.batch.extend_from_slice(record);
        self.lines.push(line);
        if self.batch.len() < BATCH_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Outcome {
        let (batch, lines) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.lines));
        self.append_named(&batch, &lines)
    }

    /// Appends records. A store refuses a batch whole, for one record. The batch is then cut in
    /// halves, until the records before the refused record are appended and its line is known.
    fn append_named(&mut self, records: &[u8], lines: &[u64]) -> Outcome {
        let Err(error) = self.sink.append(records, self.level) else {
            self.appended += lines.len() as u64;
            return Ok(());
        };
        if !is_of_a_record(&*error) {
            return Err(error);
        }
        if let [line] = lines {
            return Err(format!("{}, line {line}: {error}", self.place).into());
        }
        let size = usize::from(self.sink.schema().record_bytes);
        let half = lines.len() / 2;
        self.append_named(&records[..half * size], &lines[..half])?;
        self.append_named(&records[half * size..], &lines[half..])
    }

    fn finish(&mut self) -> Outcome {
        while let Some(record) = self.window.as_mut().and_then(Window::drain) {
            self.push_ordered(&record)?;
        }
        if self.batch.is_empty() { Ok(()) } else { self.flush() }
    }
}

/// Whether the store refused an append for the time of one of its records.
fn is_of_a_record(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        error.downcast_ref(),
        Some(StoreError::Store(
            StoreFormatError::TimeAhead { .. } | StoreFormatError::TimeWentBack { .. }
        ))
    )
}

/// Appends the records of a CSV. The records before a wrong line are appended, and the line is
/// named.
pub fn append(store: &Store, name: &str, table: CsvTable<'_>, level: Level) -> Outcome {
    let file = store.file(name).map_err(|error| match &error {
        StoreError::Store(StoreFormatError::UnknownFile { .. }) => {
            format!("{error}; make it with `store create --schema`").into()
        }
        _ => Box::<dyn std::error::Error>::from(error),
    })?;
    take_all(Sink::Store(store, file), name, table, level)
}

/// Appends the records of a CSV to a file of a server.
pub fn append_to_server(
    mut client: Client,
    name: &str,
    table: CsvTable<'_>,
    level: Level,
) -> Outcome {
    let file = client.open(name)?;
    take_all(Sink::Server(Box::new(client), file), name, table, level)
}

/// A table to append.
#[derive(Clone, Copy)]
pub struct CsvTable<'a> {
    /// Its file; - for standard input.
    pub path: &'a Path,
    /// The unit of its stamps, when the user states one.
    pub unit: Option<StampUnit>,
}

impl CsvTable<'_> {
    /// The lines of the table, unpacked where gzip has packed them.
    fn open(self) -> Result<Box<dyn BufRead>, Box<dyn std::error::Error>> {
        let named = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let mut packed: Box<dyn BufRead> = match self.path.as_os_str() == "-" {
            true => Box::new(std::io::stdin().lock()),
            false => Box::new(BufReader::new(File::open(self.path).map_err(named)?)),
        };
        let head = packed.fill_buf().map_err(named)?;
        match head.starts_with(&[0x1f, 0x8b]) {
            true => Ok(Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(packed)))),
            false => Ok(packed),
        }
    }
}

fn take_all(sink: Sink<'_>, name: &str, table: CsvTable<'_>, level: Level) -> Outcome {
    let place = table.path.display().to_string();
    let mut lines = table.open()?;
    let schema = sink.schema().clone();
    let mut intake = Intake {
        sink,
        window: Window::of(schema.arrival.window_ns),
        sequence: schema.field(&schema.arrival.sequence).cloned(),
        level,
        waiting: HashMap::new(),
        place: place.clone(),
        batch: Vec::new(),
        lines: Vec::new(),
        appended: 0,
    };
    let mut text = String::new();
    let wrong = |line: u64, why: &dyn std::fmt::Display| format!("{place}, line {line}: {why}");
    lines.read_line(&mut text).map_err(|why| wrong(1, &why))?;
    let columns = CsvReader::new(&schema, text.trim_end()).map_err(|why| wrong(1, &why))?;
    let columns = columns.with_unit(table.unit);
    let mut taken: Outcome = Ok(());
    for line in 2.. {
        text.clear();
        taken = match lines.read_line(&mut text) {
            Ok(0) => break,
            Ok(_) if text.trim().is_empty() => continue,
            Ok(_) => columns.record(text.trim_end()).map_err(|why| wrong(line, &why)),
            Err(why) => Err(wrong(line, &why)),
        }
        .map_err(Into::into)
        .and_then(|record| intake.take(line, record));
        if taken.is_err() {
            break;
        }
    }
    let finished = intake.finish();
    println!("{} records appended to {name}", intake.appended);
    let window = intake.window.as_ref().map_or(Ok(()), |window| window.finish(name));
    taken.and(finished).and(window)
}
