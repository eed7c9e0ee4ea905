//! `evenfall store read`, `tail` and `export`, which share the choice of records and the output.

#[cfg(feature = "arrow")]
pub mod bars;
#[cfg(not(feature = "arrow"))]
pub mod bars {
    pub use crate::missing::Args as Bars;

    pub fn print_bars(_: &Bars) -> crate::Outcome {
        crate::missing::main("bars of a store", "arrow")
    }
}

use std::collections::{BTreeSet, VecDeque};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_core::StorageError;
use evenfall_feed_formats::codec::{self, TimeOrigin};
use evenfall_host::interrupt;
use evenfall_runtime::listing::printable;
use evenfall_store_engine::{FileListing, KnownEnd, RecordSource};
use evenfall_store_format::layout::record_time;
use evenfall_store_recording::names::near_names;
use evenfall_store_recording::times::{self, TimeArg, TimeRangeError};
use evenfall_store_recording::{Catalog, MessageRow, RecordingFollower, RecordingSnapshot};

use super::Place;
use super::output::{
    MessageOutput, RecordLines, TableFormat, TableTarget, TimeUnit, write_file, write_table,
};
use super::times::words;
use crate::Outcome;

/// How long a wait for new records is, so that Ctrl-C ends it soon.
const WAIT_TIME: Duration = Duration::from_millis(250);

/// Limit of messages that are read to find the symbols nearest to an unknown one. A venue names its
/// symbols before the first order.
const NAMING_MESSAGES: u64 = 1_000_000;

/// Names that an error lists.
const NAMES_SHOWN: usize = 8;

type Failure = Box<dyn std::error::Error>;

/// The choice of records: a subject and two times.
#[derive(clap::Args, Debug)]
struct Choice {
    #[command(flatten)]
    place: Place,
    /// A file, a recording, or a symbol in the recordings, such as aapl. Not needed where the store
    /// has one recording, or no recording and one file.
    name: Option<String>,
    /// First time: a date, "2026-11-21 09:30" or 09:30 by the venue's clock; an instant such as
    /// 2026-11-21T14:30:00Z or with any offset; or a number with its unit, such as 1577716200s.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<TimeArg>,
    /// Last time, in the same forms. A date stands for its whole day.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<TimeArg>,
}

/// Arguments of `evenfall store read`.
#[derive(clap::Args, Debug)]
pub struct Read {
    #[command(flatten)]
    choice: Choice,
    /// Writes a table of the recording in place of the feed: messages, trades or quotes, with the
    /// columns that SQL shows. The output is Parquet or Arrow; `evenfall query` prints text.
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Format of the output. Without it, the ending of the file's name states the format, and
    /// standard output is CSV.
    #[arg(long, value_enum)]
    format: Option<TableFormat>,
    /// Unit of times in Parquet and Arrow. Spark reads us alone.
    #[arg(long, value_enum, default_value = "ns")]
    time_unit: TimeUnit,
    /// The file to write. Without it, standard output. The file takes its name when it is complete.
    #[arg(long, short)]
    out: Option<PathBuf>,
}

/// Arguments of `evenfall store tail`.
#[derive(clap::Args, Debug)]
pub struct Tail {
    #[command(flatten)]
    choice: Choice,
    /// Number of records or messages.
    #[arg(long, short = 'n', default_value_t = 10)]
    count: u64,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "csv")]
    format: TableFormat,
    /// Print new records until Ctrl-C. For a file or recording of a server, as text.
    #[arg(long, short = 'f')]
    follow: bool,
}

/// Arguments of `evenfall store export`.
#[derive(clap::Args, Debug)]
pub struct Export {
    #[command(flatten)]
    choice: Choice,
    /// Writes a table of the recording in place of the feed: messages, trades or quotes, with the
    /// columns that SQL shows. The output is Parquet or Arrow; `evenfall query` prints text.
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Format of the output. Without it, the ending of the file's name states the format.
    #[arg(long, value_enum)]
    format: Option<TableFormat>,
    /// Unit of times in Parquet and Arrow. Spark reads us alone.
    #[arg(long, value_enum, default_value = "ns")]
    time_unit: TimeUnit,
    /// The file to write. The file takes its name when it is complete.
    #[arg(long, short)]
    out: PathBuf,
}

impl Choice {
    /// The name, or the only one that can be meant.
    fn name_in(&self, catalog: &Catalog) -> Result<String, String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let recordings: Vec<&str> = catalog.recordings().map(|one| one.name.as_str()).collect();
        let files: Vec<&str> = catalog.files().map(|file| file.name.as_str()).collect();
        match (&*recordings, &*files) {
            ([only], _) | ([], [only]) => Ok((*only).to_owned()),
            ([], []) => Err("the store is empty".into()),
            _ => {
                let all: Vec<String> = { recordings.iter().chain(&files) }
                    .take(NAMES_SHOWN)
                    .map(|name| printable(name).to_string())
                    .collect();
                Err(format!("name what to read: {}; `store ls` lists all", all.join(", ")))
            }
        }
    }
}

/// What a name stands for, at one moment.
enum Subject {
    File(FileListing),
    Recording(Box<RecordingSnapshot>),
    /// A symbol, and the recordings that are searched for it.
    Symbol(String, Vec<RecordingSnapshot>),
}

impl Subject {
    fn recordings(&self) -> &[RecordingSnapshot] {
        match self {
            Self::File(_) => &[],
            Self::Recording(recording) => std::slice::from_ref(recording),
            Self::Symbol(_, recordings) => recordings,
        }
    }
}

/// A subject in its store. The list of the store's files was read once.
struct Question {
    source: Arc<dyn RecordSource>,
    subject: Subject,
}

impl Question {
    fn of(choice: &Choice) -> Result<Self, Failure> {
        let source = choice.place.source()?;
        let catalog = choice.place.catalog(&source)?;
        let name = &choice.name_in(&catalog)?;
        let open = |files| RecordingSnapshot::open(Arc::clone(&source), files);
        let subject = if let Some(file) = catalog.file(name) {
            Subject::File(file.clone())
        } else if let Some(files) = catalog.recording(name) {
            Subject::Recording(Box::new(open(files)?))
        } else {
            let all = catalog.recordings().map(open).collect::<Result<_, _>>()?;
            Subject::Symbol(name.to_uppercase(), all)
        };
        Ok(Self { source, subject })
    }

    /// Says on standard error when the source has the published records alone: the primary may
    /// have more.
    fn say_published(&self) -> Result<(), Failure> {
        let names: Vec<String> = match &self.subject {
            Subject::File(file) => vec![file.name.clone()],
            of_recordings => {
                let streams = of_recordings.recordings().iter().flat_map(|one| one.streams());
                streams.flat_map(|stream| stream.file_names()).map(str::to_owned).collect()
            }
        };
        for name in names {
            if let Some(end) = self.source.published_end(&name)? {
                let name = printable(&name);
                aside!(
                    "note: {name} is read up to record {end} (excluded), as its primary has \
                     published it; --fresh asks the primary for newer ones"
                );
            }
        }
        Ok(())
    }

    /// The chosen times, both included.
    fn times(&self, choice: &Choice) -> Result<RangeInclusive<i64>, Failure> {
        let both = [choice.from, choice.to];
        let needs = |of: fn(TimeArg) -> bool| both.into_iter().flatten().any(of);
        let clock = match needs(TimeArg::needs_clock) {
            true => self.clock()?,
            false => TimeOrigin::Epoch,
        };
        let span = if needs(TimeArg::lacks_day) { self.span()? } else { None };
        let range = times::resolve_range(choice.from, choice.to, clock, span);
        range.map_err(|wrong| match wrong {
            TimeRangeError::Empty => "--from is later than --to: no time is between them".into(),
            TimeRangeError::SeveralDays => {
                "--from or --to is a time of day, and there are several \
                                            days: give the date too, such as \"2012-06-21 09:30\""
                    .into()
            }
            TimeRangeError::Beyond => "--from or --to is no time".into(),
        })
    }

    /// The clock of the venue.
    fn clock(&self) -> Result<TimeOrigin, Failure> {
        let first = self.subject.recordings().first();
        Ok(first.map_or(Ok(TimeOrigin::Epoch), RecordingSnapshot::venue_clock)?)
    }

    /// The first and the last time of the subject.
    fn span(&self) -> Result<Option<(i64, i64)>, Failure> {
        if let Subject::File(file) = &self.subject {
            let all = self.source.between(&file.name, i64::MIN, i64::MAX)?;
            let Some(last) = all.end.checked_sub(1).filter(|last| *last >= all.start) else {
                return Ok(None);
            };
            let time = |number: u64| -> Result<i64, Failure> {
                Ok(record_time(&self.source.numbers(&file.name, number..number + 1)?))
            };
            return Ok(Some((time(all.start)?, time(last)?)));
        }
        let mut span: Option<(i64, i64)> = None;
        for recording in self.subject.recordings() {
            if let Some((first, last)) = recording.span()? {
                span = Some(span.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
            }
        }
        Ok(span)
    }

    /// The first and last time of the subject, in words for an empty result.
    fn reach(&self) -> Result<String, Failure> {
        let what = match self.subject {
            Subject::File(_) => "this file reaches",
            Subject::Recording(_) => "this recording reaches",
            Subject::Symbol(..) => "recordings here reach",
        };
        Ok(self.span()?.map_or_else(String::new, |(from, to)| {
            format!("; {what} from {} to {}", words(from), words(to))
        }))
    }

    /// Says on standard error that nothing was found, because a header without rows looks like a
    /// mistake of the program.
    fn say_if_nothing(&self, choice: &Choice, count: u64) -> Outcome {
        if count == 0 && self.is_cut(choice) {
            aside!("note: no message between these times{}", self.reach()?);
        }
        Ok(())
    }

    fn is_cut(&self, choice: &Choice) -> bool {
        choice.from.or(choice.to).is_some()
    }

    /// Gives all messages for which a recording or a symbol stands.
    fn messages(
        &self,
        times: &RangeInclusive<i64>,
        each: &mut dyn FnMut(MessageRow) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let symbol = match &self.subject {
            Subject::Symbol(symbol, _) => Some(symbol.as_str()),
            _ => None,
        };
        let mut found = 0u64;
        for recording in self.subject.recordings() {
            say_retention(recording);
            let rows = recording.between(times.clone())?;
            if let Some(symbol) = symbol {
                say_cost(symbol, &rows);
            }
            recording.read::<Failure>(&rows, symbol, &mut |row| {
                found += 1;
                each(row)?;
                Ok(ControlFlow::Continue(()))
            })?;
        }
        match symbol {
            Some(symbol) if found == 0 => {
                let none =
                    "no file, no recording and, between these times, no message of the symbol";
                let near = near_names(symbol, &self.known_names()?);
                Err(format!("{none} {symbol}: see `store ls`{near}{}", self.reach()?).into())
            }
            _ => Ok(()),
        }
    }

    /// The recordings, and the symbols that their first messages name.
    fn known_names(&self) -> Result<Vec<String>, Failure> {
        let (mut known, mut symbols) = (Vec::new(), BTreeSet::new());
        let mut left = NAMING_MESSAGES;
        for recording in self.subject.recordings() {
            known.push(recording.name().to_owned());
            recording.read::<Failure>(&recording.rows(), None, &mut |row| {
                symbols.extend(row.event.symbol);
                left = left.saturating_sub(1);
                let is_over = left == 0 || interrupt::raised();
                Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        known.extend(symbols.iter().map(ToString::to_string));
        Ok(known)
    }
}

/// Says which messages retention has removed.
fn say_retention(recording: &RecordingSnapshot) {
    for stream in recording.streams() {
        let (number, first) = (stream.stream(), stream.numbers().start);
        if stream.is_shortened() {
            let name = recording.name();
            aside!("note: stream {number} of {name} begins with message {first}: retention");
        }
    }
}

/// Warns of the cost, since symbols have no index: an execution does not name its symbol, and the
/// order that it executes does.
fn say_cost(symbol: &str, rows: &evenfall_store_recording::RowSelection) {
    let messages: u64 = rows.ranges.iter().map(|range| range.end - range.start).sum();
    aside!("note: symbols have no index: {messages} messages are read to find those of {symbol}");
}

/// Writes records of a user's file as text.
fn write_lines(
    source: &dyn RecordSource,
    file: &FileListing,
    numbers: std::ops::Range<u64>,
    out: &mut RecordLines,
) -> Outcome {
    source.read(&file.name, numbers, &mut |part| {
        let failed = |error: Failure| StorageError::Failed {
            name: "output".into(),
            what: error.to_string(),
        };
        Ok(out.write(&part).map_err(failed)?)
    })?;
    Ok(())
}

/// Writes records of a user's file in any form.
fn write_records(
    source: &Arc<dyn RecordSource>,
    file: &FileListing,
    numbers: std::ops::Range<u64>,
    target: TableTarget<'_>,
) -> Outcome {
    if target.format.is_columnar() {
        return write_file(source, &file.name, numbers, target);
    }
    let mut out = RecordLines::begin(&file.schema, target)?;
    write_lines(&**source, file, numbers, &mut out)?;
    out.finish()
}

/// An answer without a row must not take the place of an earlier file.
fn expect_rows(question: &Question, count: u64, target: TableTarget<'_>) -> Outcome {
    match target.path.filter(|path| count == 0 && path.is_file()) {
        Some(path) => {
            let reach = question.reach()?;
            Err(format!("{}: no rows to replace it by{reach}; it stays", path.display()).into())
        }
        None => Ok(()),
    }
}

/// Writes a table of a recording.
fn write_recorded_table(
    question: &Question,
    table: &str,
    times: &RangeInclusive<i64>,
    target: TableTarget<'_>,
) -> Result<u64, Failure> {
    let Subject::Recording(recording) = &question.subject else {
        return Err("--table takes a recording".into());
    };
    if !target.format.is_columnar() {
        return Err(format!(
            "--table writes Parquet or Arrow: --out {table}.parquet; for text ask in SQL, evenfall \
             query STORE \"SELECT * FROM {}.{table}\" --format csv",
            recording.name()
        )
        .into());
    }
    write_table(&question.source, recording.name(), table, times, target)
}

/// Says on standard error where the fields of a format are whose packets hold more than a line.
fn say_own_columns(question: &Question) {
    for recording in question.subject.recordings() {
        let codec = recording.stated_format().and_then(codec::of);
        if let Some(codec) = codec.filter(|codec| codec.has_own_columns()) {
            let (name, format) = (printable(recording.name()), codec.name());
            aside!(
                "note: {name} has packets of {format}, a line each; --table messages has their \
                 fields"
            );
        }
    }
}

fn write(choice: &Choice, table: Option<&str>, target: TableTarget<'_>) -> Result<u64, Failure> {
    let question = Question::of(choice)?;
    question.say_published()?;
    let times = question.times(choice)?;
    if let Some(table) = table {
        let count = write_recorded_table(&question, table, &times, target)?;
        question.say_if_nothing(choice, count)?;
        return Ok(count);
    }
    say_own_columns(&question);
    let count = if let Subject::File(file) = &question.subject {
        let numbers = question.source.between(&file.name, *times.start(), *times.end())?;
        let count = numbers.end - numbers.start;
        expect_rows(&question, count, target)?;
        write_records(&question.source, file, numbers, target)?;
        count
    } else {
        let mut out = MessageOutput::begin(target)?;
        let mut count = 0;
        question.messages(&times, &mut |row| {
            count += 1;
            out.write(row)
        })?;
        expect_rows(&question, count, target)?;
        out.finish()?;
        count
    };
    question.say_if_nothing(choice, count)?;
    Ok(count)
}

/// Runs `store read`.
pub fn read(args: &Read) -> Outcome {
    let (time_unit, path) = (args.time_unit, args.out.as_deref());
    let named = path.map(TableFormat::of_name);
    let format = args.format.map_or_else(|| named.unwrap_or(Ok(TableFormat::Csv)), Ok)?;
    let target = TableTarget { format, time_unit, path };
    write(&args.choice, args.table.as_deref(), target).map(drop)
}

/// Runs `store export`.
pub fn export(args: &Export) -> Outcome {
    let (time_unit, path) = (args.time_unit, Some(&*args.out));
    let format = args.format.map_or_else(|| TableFormat::of_name(&args.out), Ok)?;
    let target = TableTarget { format, time_unit, path };
    let count = write(&args.choice, args.table.as_deref(), target)?;
    say!("{count} rows in {}", args.out.display());
    Ok(())
}

/// Standard output in this format.
fn standard_output(format: TableFormat) -> TableTarget<'static> {
    TableTarget { format, time_unit: TimeUnit::Ns, path: None }
}

/// Runs `store tail`.
pub fn tail(args: &Tail) -> Outcome {
    if args.follow {
        return follow(args);
    }
    let question = Question::of(&args.choice)?;
    question.say_published()?;
    let times = question.times(&args.choice)?;
    let target = standard_output(args.format);
    if let Subject::File(file) = &question.subject {
        let mut numbers = question.source.between(&file.name, *times.start(), *times.end())?;
        numbers.start = numbers.start.max(numbers.end.saturating_sub(args.count));
        let count = numbers.end - numbers.start;
        write_records(&question.source, file, numbers, target)?;
        return question.say_if_nothing(&args.choice, count);
    }
    let mut last = VecDeque::new();
    question.messages(&times, &mut |row| {
        last.push_back(row);
        if last.len() as u64 > args.count {
            last.pop_front();
        }
        Ok(())
    })?;
    let mut out = MessageOutput::begin(target)?;
    let count = last.len() as u64;
    last.into_iter().try_for_each(|row| out.write(row))?;
    out.finish()?;
    question.say_if_nothing(&args.choice, count)
}

/// Runs `store tail --follow`.
fn follow(args: &Tail) -> Outcome {
    if !args.choice.place.is_served() {
        return Err("--follow takes the tcp:// address of a server: nobody writes a directory \
                    while it is read"
            .into());
    }
    interrupt::install()?;
    let question = Question::of(&args.choice)?;
    match &question.subject {
        Subject::File(file) => follow_file(args, &*question.source, file),
        Subject::Recording(recording) => follow_recording(args, recording),
        Subject::Symbol(..) => Err("--follow takes a file or a recording".into()),
    }
}

fn follow_file(args: &Tail, source: &dyn RecordSource, file: &FileListing) -> Outcome {
    if args.format.is_columnar() {
        return Err("--follow prints text: --format csv".into());
    }
    let mut out = RecordLines::begin(&file.schema, standard_output(args.format))?;
    let there = source.between(&file.name, i64::MIN, i64::MAX)?;
    let mut next = there.start.max(there.end.saturating_sub(args.count));
    let mut known = [KnownEnd { name: file.name.clone(), end: next }];
    while !interrupt::raised() {
        let end = source.between(&file.name, i64::MIN, i64::MAX)?.end;
        if end > next {
            write_lines(source, file, next..end, &mut out)?;
            out.flush()?;
            next = end;
        }
        known[0].end = next;
        source.wait_past(&known, Instant::now() + WAIT_TIME)?;
    }
    out.finish()
}

fn follow_recording(args: &Tail, recording: &RecordingSnapshot) -> Outcome {
    let mut out = MessageOutput::begin(standard_output(args.format))?;
    let mut follower = RecordingFollower::beginning_with(recording, args.count)?;
    let mut last = VecDeque::new();
    follower.read_new::<Failure>(&mut |row| {
        last.push_back(row);
        if last.len() as u64 > args.count {
            last.pop_front();
        }
        Ok(())
    })?;
    last.into_iter().try_for_each(|row| out.write(row))?;
    loop {
        out.flush()?;
        if interrupt::raised() {
            return out.finish();
        }
        follower.wait_new(Instant::now() + WAIT_TIME)?;
        follower.read_new::<Failure>(&mut |row| out.write(row))?;
    }
}
