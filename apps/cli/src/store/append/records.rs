//! Appends records of a table to a file with a schema.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use evenfall_store_engine::import::Table;
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
    batch: Vec<u8>,
    appended: u64,
}

impl Intake<'_> {
    fn take(&mut self, line: u64, record: Vec<u8>) -> Outcome {
        let Some(window) = &mut self.window else { return self.push(&record) };
        let time_ns = record_time(&record);
        let sequence = self.sequence.as_ref().map_or(line, |field| field.whole(&record) as u64);
        window.offer(format_args!("line {line}"), sequence, time_ns, record.into());
        while let Some(record) = self.window.as_mut().and_then(Window::poll) {
            self.push(&record)?;
        }
        Ok(())
    }

    fn push(&mut self, record: &[u8]) -> Outcome {
        self.batch.extend_from_slice(record);
        if self.batch.len() < BATCH_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Outcome {
        self.sink.append(&self.batch, self.level)?;
        let record_bytes = usize::from(self.sink.schema().record_bytes);
        self.appended += (self.batch.len() / record_bytes) as u64;
        self.batch.clear();
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        while let Some(record) = self.window.as_mut().and_then(Window::drain) {
            self.push(&record)?;
        }
        if self.batch.is_empty() { Ok(()) } else { self.flush() }
    }
}

/// Appends the records of a CSV. The records before a wrong line are appended, and the line is
/// named.
pub fn append(store: &Store, name: &str, table: &Path, level: Level) -> Outcome {
    let file = store.file(name).map_err(|error| match &error {
        StoreError::Store(StoreFormatError::UnknownFile { .. }) => {
            format!("{error}; make it with `store create --schema`").into()
        }
        _ => Box::<dyn std::error::Error>::from(error),
    })?;
    take_all(Sink::Store(store, file), name, table, level)
}

/// Appends the records of a CSV to a file of a server.
pub fn append_to_server(mut client: Client, name: &str, table: &Path, level: Level) -> Outcome {
    let file = client.open(name)?;
    take_all(Sink::Server(Box::new(client), file), name, table, level)
}

fn take_all(sink: Sink<'_>, name: &str, table: &Path, level: Level) -> Outcome {
    let place = table.display();
    let mut lines: Box<dyn BufRead> = match table.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => {
            let file = File::open(table).map_err(|error| format!("{place}: {error}"))?;
            Box::new(BufReader::new(file))
        }
    };
    let schema = sink.schema().clone();
    let mut intake = Intake {
        sink,
        window: Window::of(schema.arrival.window_ns),
        sequence: schema.field(&schema.arrival.sequence).cloned(),
        level,
        batch: Vec::new(),
        appended: 0,
    };
    let mut text = String::new();
    lines.read_line(&mut text)?;
    let wrong = |line: u64, why: &dyn std::fmt::Display| format!("{place}, line {line}: {why}");
    let columns = Table::new(&schema, text.trim_end()).map_err(|why| wrong(1, &why))?;
    let mut taken: Outcome = Ok(());
    for line in 2.. {
        text.clear();
        taken = match lines.read_line(&mut text) {
            Ok(0) => break,
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
    let refused = intake.window.as_ref().map_or(0, Window::say_counts);
    taken.and(finished)?;
    match refused {
        0 => Ok(()),
        refused => {
            Err(format!("{refused} records came later than the window of {name} and were refused")
                .into())
        }
    }
}
