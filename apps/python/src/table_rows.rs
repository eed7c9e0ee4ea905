//! Rows of a table of the store: some columns, some times, a symbol.
//!
//! A recording's tables state each instant twice, by the venue's wall clock without a zone and in
//! UTC. Frames of Python have zones, so that one column says both: here `time` is the instant in
//! the venue's zone, and there is no `utc`.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow_select::filter::filter_record_batch;
use evenfall::recording::{RowSelection, Snapshot, TableName, Tables};
use evenfall_feed_formats::codec::TimeOrigin;
use evenfall_store_recording::names::near_names;
use evenfall_store_recording::tables::TableError;

use crate::errors::RowsError;
use crate::place::StorePlace;
use crate::rows::RowSource;

/// The zone of a clock, by its name in the IANA database.
pub(crate) fn zone_of(clock: TimeOrigin) -> &'static str {
    match clock {
        TimeOrigin::Midnight { zone } => zone,
        TimeOrigin::Epoch => "UTC",
    }
}

/// The instant of a row in the venue's zone.
fn time_field(name: &str, clock: TimeOrigin, is_nullable: bool) -> Field {
    let zone = Some(zone_of(clock).into());
    Field::new(name, DataType::Timestamp(TimeUnit::Nanosecond, zone), is_nullable)
}

/// The same instants in another zone.
fn in_zone(instants: &ArrayRef, clock: TimeOrigin) -> ArrayRef {
    let instants = instants.as_primitive::<TimestampNanosecondType>().clone();
    Arc::new(instants.with_timezone(zone_of(clock)))
}

/// A column that people see.
#[derive(Clone)]
struct ShownColumn {
    field: Field,
    /// Its place in the table.
    place: usize,
    /// Whether its instants are moved into the venue's zone.
    is_zoned: bool,
}

/// The columns of a table as people see them.
fn shown_columns(table: &Schema, clock: TimeOrigin) -> Vec<ShownColumn> {
    let utc = table.index_of("utc").ok();
    let shown = table.fields().iter().enumerate().filter_map(|(place, field)| {
        match (field.name().as_str(), utc) {
            ("utc", _) => None,
            ("time", Some(place)) => {
                let field = time_field("time", clock, field.is_nullable());
                Some(ShownColumn { field, place, is_zoned: true })
            }
            _ => Some(ShownColumn { field: (**field).clone(), place, is_zoned: false }),
        }
    });
    shown.collect()
}

/// Rows of `messages` as people see them.
pub(crate) fn zoned_messages(
    messages: &RecordBatch,
    clock: TimeOrigin,
) -> Result<RecordBatch, ArrowError> {
    let shown = shown_columns(&messages.schema(), clock);
    let columns = shown.iter().map(|shown| {
        let column = messages.column(shown.place);
        if shown.is_zoned { in_zone(column, clock) } else { Arc::clone(column) }
    });
    let columns = columns.collect();
    let fields: Vec<Field> = shown.iter().map(|shown| shown.field.clone()).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

/// What is asked of a table.
#[derive(Clone, Debug)]
pub(crate) struct TableQuestion {
    /// Recording and table, or a user's file.
    pub(crate) name: TableName,
    /// The times under which the rows are kept.
    pub(crate) times: RangeInclusive<i64>,
    /// The only symbol.
    pub(crate) symbol: Option<String>,
    /// Names of columns; `None` for all.
    pub(crate) columns: Option<Vec<String>>,
    /// Only so many rows, the last ones.
    pub(crate) last: Option<usize>,
}

/// The rows that answer a question. Each reading opens the table at that moment.
pub(crate) struct TableRows {
    place: Arc<StorePlace>,
    question: TableQuestion,
    clock: TimeOrigin,
    shown: Vec<ShownColumn>,
    /// Place of the symbol in the table, when rows are chosen by it.
    symbol_place: Option<usize>,
    schema: SchemaRef,
}

impl TableRows {
    /// Checks a question. `clock` is the venue's.
    ///
    /// # Errors
    /// An unknown table or column, and the errors of the store.
    pub(crate) fn new(
        place: Arc<StorePlace>,
        question: TableQuestion,
        clock: TimeOrigin,
    ) -> Result<Self, RowsError> {
        let snapshot = place.tables()?.open(&question.name)?;
        let table = Arc::clone(&snapshot.info().schema);
        let all = shown_columns(&table, clock);
        let shown = match &question.columns {
            None => all,
            Some(names) => {
                let names = names.iter().map(|name| find_column(&question, &all, name));
                names.collect::<Result<_, _>>()?
            }
        };
        let symbol_place = match &question.symbol {
            None => None,
            Some(symbol) => Some(table.index_of("symbol").map_err(|_| {
                RowsError::NotFound(format!(
                    "{} has no symbols, and {symbol} is asked for",
                    question.name
                ))
            })?),
        };
        let fields: Vec<Field> = shown.iter().map(|column| column.field.clone()).collect();
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { place, question, clock, shown, symbol_place, schema })
    }

    /// The rows of a batch as people see them; `None` when the symbol has none.
    fn show_batch(&self, batch: &RecordBatch) -> Result<Option<RecordBatch>, TableError> {
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        let symbols = self.symbol_place.map(|_| batch.column(self.shown.len()));
        let mut batch = batch.clone();
        if let (Some(symbols), Some(wanted)) = (symbols, &self.question.symbol) {
            let symbols = symbols.as_string::<i32>();
            let is_wanted: BooleanArray =
                symbols.iter().map(|symbol| Some(symbol == Some(wanted.as_str()))).collect();
            if is_wanted.true_count() == 0 {
                return Ok(None);
            }
            batch = filter_record_batch(&batch, &is_wanted)?;
        }
        let columns = self.shown.iter().zip(batch.columns()).map(|(shown, column)| {
            if shown.is_zoned { in_zone(column, self.clock) } else { Arc::clone(column) }
        });
        let (columns, schema) = (columns.collect(), Arc::clone(&self.schema));
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(Some(RecordBatch::try_new_with_options(schema, columns, &options)?))
    }

    /// Refuses a symbol that no message of the recording names.
    fn expect_symbol(&self) -> Result<(), RowsError> {
        let (Some(symbol), Some(recording)) =
            (&self.question.symbol, &self.question.name.recording)
        else {
            return Ok(());
        };
        let messages = TableName::of_recording(recording, "messages");
        let snapshot = self.place.tables()?.open(&messages)?;
        let column = snapshot.info().schema.index_of("symbol").map_err(TableError::from)?;
        let mut known = BTreeSet::new();
        let mut is_known = false;
        snapshot.scan(&snapshot.rows(), &[column], &mut |batch| {
            for name in batch.column(0).as_string::<i32>().iter().flatten() {
                is_known |= name == symbol;
                if !known.contains(name) {
                    known.insert(name.to_owned());
                }
            }
            if is_known { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if is_known {
            return Ok(());
        }
        let near = near_names(symbol, &known.into_iter().collect::<Vec<_>>());
        Err(RowsError::NotFound(format!("recording {recording} has no symbol {symbol}{near}")))
    }

    /// The rows to scan: those of the times, and of tables of messages only the last ones that are
    /// asked for.
    fn selected_rows(&self, snapshot: &dyn Snapshot) -> Result<RowSelection, TableError> {
        let times = &self.question.times;
        let is_all = *times == (i64::MIN..=i64::MAX);
        let mut rows = match is_all {
            true => snapshot.rows(),
            false => snapshot.between(*times.start(), *times.end())?,
        };
        let there: u64 = rows.ranges.iter().map(|range| range.end - range.start).sum();
        let is_dense = is_all && snapshot.info().rows == Some(there);
        if let Some(last) = self.question.last.filter(|_| is_dense && self.symbol_place.is_none()) {
            let mut left = last as u64;
            for range in rows.ranges.iter_mut().rev() {
                range.start = range.start.max(range.end.saturating_sub(left));
                left -= range.end - range.start;
            }
            rows.ranges.retain(|range| !range.is_empty());
        }
        Ok(rows)
    }
}

fn find_column(
    question: &TableQuestion,
    all: &[ShownColumn],
    name: &str,
) -> Result<ShownColumn, RowsError> {
    let found = all.iter().find(|column| column.field.name() == name);
    found.cloned().ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|column| column.field.name().as_str()).collect();
        let words = format!("{} has no column {name}; it has {}", question.name, known.join(", "));
        RowsError::NotFound(words)
    })
}

/// The last rows of batches that go by.
struct LastRows {
    batches: VecDeque<RecordBatch>,
    rows: usize,
    most: usize,
}

impl LastRows {
    fn push(&mut self, batch: RecordBatch) {
        self.rows += batch.num_rows();
        self.batches.push_back(batch);
        while let Some(first) = self.batches.front() {
            let spare = self.rows.saturating_sub(self.most);
            if spare == 0 {
                break;
            }
            let cut = spare.min(first.num_rows());
            self.rows -= cut;
            let rest = first.slice(cut, first.num_rows() - cut);
            self.batches.pop_front();
            if rest.num_rows() > 0 {
                self.batches.push_front(rest);
            }
        }
    }
}

impl RowSource for TableRows {
    fn title(&self) -> String {
        match &self.question.symbol {
            Some(symbol) => format!("{} of {symbol}", self.question.name),
            None => self.question.name.to_string(),
        }
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn clock(&self) -> TimeOrigin {
        self.clock
    }

    fn read(&self, each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>) -> Result<(), RowsError> {
        let read = self.read_table(each);
        if read.is_err() {
            // A connection that has failed once stays failed.
            self.place.forget_server();
        }
        read
    }
}

impl TableRows {
    fn read_table(
        &self,
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), RowsError> {
        let snapshot = self.place.tables()?.open(&self.question.name)?;
        let rows = self.selected_rows(&*snapshot)?;
        let places: Vec<usize> =
            self.shown.iter().map(|column| column.place).chain(self.symbol_place).collect();
        let most = self.question.last.unwrap_or(0);
        let mut last = LastRows { batches: VecDeque::new(), rows: 0, most };
        let mut failed = None;
        let mut is_empty = true;
        snapshot.scan(&rows, &places, &mut |batch| {
            match self.show_batch(&batch) {
                Ok(None) => return ControlFlow::Continue(()),
                Ok(Some(batch)) if self.question.last.is_some() => last.push(batch),
                Ok(Some(batch)) => {
                    is_empty = false;
                    return each(batch);
                }
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            is_empty = false;
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if is_empty {
            self.expect_symbol()?;
        }
        let _ = last.batches.into_iter().try_for_each(each);
        Ok(())
    }
}
