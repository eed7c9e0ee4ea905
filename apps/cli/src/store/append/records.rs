//! Appends records of a table to a file with a schema.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use evenfall_runtime::listing::printable;
use evenfall_store_engine::import::{CsvReader, StampUnit};
use evenfall_store_engine::{Client, Store, StoreAckLevel, StoreError};
use evenfall_store_format::Error as StoreFormatError;
use evenfall_store_recording::{RecordAppendError, RecordAppender};

use super::finish_window;
use crate::Outcome;

/// Appends the records of a CSV. The records before a wrong line are appended, and the line is
/// named.
pub fn append(store: &Store, name: &str, table: CsvTable<'_>, level: StoreAckLevel) -> Outcome {
    let appender = RecordAppender::to_store(store, name, level, "line");
    let appender = appender.map_err(|error| match &error {
        StoreError::Store(StoreFormatError::UnknownFile { .. }) => {
            format!("{error}; make it with `store create --schema`").into()
        }
        _ => Box::<dyn std::error::Error>::from(error),
    })?;
    take_all(appender, name, table)
}

/// Appends the records of a CSV to a file of a server.
pub fn append_to_server(
    client: Client,
    name: &str,
    table: CsvTable<'_>,
    level: StoreAckLevel,
) -> Outcome {
    take_all(RecordAppender::to_server(client, name, level, "line")?, name, table)
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

fn take_all(mut appender: RecordAppender<'_>, name: &str, table: CsvTable<'_>) -> Outcome {
    let place = table.path.display().to_string();
    let mut lines = table.open()?;
    let schema = appender.schema().clone();
    let mut text = String::new();
    let wrong = |line: u64, why: &dyn std::fmt::Display| format!("{place}, line {line}: {why}");
    lines.read_line(&mut text).map_err(|why| wrong(1, &why))?;
    let columns = CsvReader::new(&schema, text.trim_end()).map_err(|why| wrong(1, &why))?;
    let columns = columns.with_unit(table.unit);
    if let [first, others @ ..] = columns.ignored_columns() {
        let all = others.iter().fold(printable(first), |all, name| all + ", " + &printable(name));
        aside!("note: {place}: columns that {name} lacks are left out: {all}");
    }
    let refused = |error: RecordAppendError| -> Box<dyn std::error::Error> {
        match error {
            RecordAppendError::Record { position, why } => wrong(position, &why).into(),
            error => error.into(),
        }
    };
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
        .and_then(|record| appender.push(line, &record).map_err(refused));
        appender.take_remarks().iter().for_each(|remark| aside!("{remark}"));
        if taken.is_err() {
            break;
        }
    }
    let finished = appender.finish().map_err(refused);
    say!("{} records appended to {name}", appender.records_appended());
    let window = appender.window().map_or(Ok(()), |window| finish_window(name, window));
    taken.and(finished).and(window)
}
