//! `evenfall store read`, `tail` and `export`, which share the choice of records and the output.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_core::StorageError;
use evenfall_feed_formats::codec::Clock;
use evenfall_host::interrupt;
use evenfall_store_engine::{Listed, RecordSource};
use evenfall_store_recording::MessageRow;
use evenfall_store_recording::catalog::{names, streams};
use evenfall_store_recording::files::is_message_file_of;
use evenfall_store_recording::follow::StreamFollower;
use evenfall_store_recording::read::{
    file_span, joined, read_messages, recording_span, venue_clock,
};

use super::Place;
use super::output::{Format, Messages, Records};
use super::times::{self, time_ns};
use crate::Outcome;

/// How often a followed file is checked for new records.
const LOOK_EVERY: Duration = Duration::from_millis(100);
type Failure = Box<dyn std::error::Error>;

/// The choice of records: a subject and two times.
#[derive(clap::Args, Debug)]
struct Choice {
    #[command(flatten)]
    place: Place,
    /// A file, a recording, or a symbol in the recordings, such as aapl.
    name: String,
    /// First time: nanoseconds, 2026-11-21T09:30:00Z, or a time of day such as 16:00 or 09:30:00.5
    /// by the venue's clock on the recording's day.
    #[arg(long, value_name = "TIME", value_parser = time_ns, allow_hyphen_values = true)]
    from: Option<i64>,
    /// Last time, in the same forms.
    #[arg(long, value_name = "TIME", value_parser = time_ns, allow_hyphen_values = true)]
    to: Option<i64>,
}

/// Arguments of `evenfall store read`.
#[derive(clap::Args, Debug)]
pub struct Read {
    #[command(flatten)]
    choice: Choice,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// The file to write. Without it, standard output.
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
    format: Format,
    /// Print new records until Ctrl-C. For a file or recording of a server, as text.
    #[arg(long, short = 'f')]
    follow: bool,
}

/// Arguments of `evenfall store export`.
#[derive(clap::Args, Debug)]
pub struct Export {
    #[command(flatten)]
    choice: Choice,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "parquet")]
    format: Format,
    /// The file to write.
    #[arg(long, short)]
    out: PathBuf,
}

/// The subject of a name.
enum Subject {
    File(Listed),
    Recording(String),
    /// A symbol, and the recordings that are searched for it.
    Symbol(String, Vec<String>),
}

impl Choice {
    /// The chosen times. A time of day counts on the subject's only day, by the clock of the venue.
    fn times(&self, source: &dyn RecordSource, subject: &Subject) -> Result<(i64, i64), Failure> {
        let (from, to) = self.times_as_given(source, subject)?;
        match from <= to {
            true => Ok((from, to)),
            false => Err("--from is later than --to: no time is between them".into()),
        }
    }

    fn times_as_given(
        &self,
        source: &dyn RecordSource,
        subject: &Subject,
    ) -> Result<(i64, i64), Failure> {
        let (from, to) = (self.from.unwrap_or(i64::MIN), self.to.unwrap_or(i64::MAX));
        let is_asked =
            self.from.is_some_and(times::is_of_day) || self.to.is_some_and(times::is_of_day);
        let reach = if is_asked { span(source, subject)? } else { None };
        let Some((first, last)) = reach.filter(|(first, _)| !times::is_of_day(*first)) else {
            return Ok((from, to));
        };
        let clock = clock_of(source, subject)?;
        let date = clock.date_of(first);
        let Some(date) = date.filter(|_| clock.date_of(last) == date) else {
            let words = "is a time of day, and there are several days: give the date too, such as \
                         2012-06-21T13:30:00Z";
            return Err(format!("--from or --to {words}").into());
        };
        let of_day = |ns: i64| match u64::try_from(ns) {
            Ok(day_ns) if times::is_of_day(ns) => clock.of_day_ns(date, day_ns).unwrap_or(ns),
            _ => ns,
        };
        Ok((of_day(from), of_day(to)))
    }

    /// Says on standard error that nothing was found, because a header without rows looks like a
    /// mistake of the program.
    fn say_if_nothing(&self, source: &dyn RecordSource, subject: &Subject, count: u64) -> Outcome {
        if count == 0 && self.from.or(self.to).is_some() {
            eprintln!("note: no message between these times{}", reach(source, subject)?);
        }
        Ok(())
    }

    fn subject(&self, source: &dyn RecordSource) -> Result<Subject, Failure> {
        let name = &self.name;
        if let Some(file) = source.listed()?.into_iter().find(|file| file.name == *name) {
            return Ok(Subject::File(file));
        }
        let recordings = names(source)?;
        if recordings.contains(name) {
            return Ok(Subject::Recording(name.clone()));
        }
        Ok(Subject::Symbol(name.to_uppercase(), recordings))
    }
}

/// Gives the messages of a recording, and says on standard error what retention has removed.
fn messages(
    source: &dyn RecordSource,
    recording: &str,
    symbol: Option<&str>,
    (from, to): (i64, i64),
    each: &mut dyn FnMut(MessageRow) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (stream, first) in read_messages(source, recording, symbol, from..=to, each)? {
        eprintln!("note: stream {stream} of {recording} begins with message {first}: retention");
    }
    Ok(())
}

/// All messages for which a recording or a symbol stands.
fn rows(
    source: &dyn RecordSource,
    subject: &Subject,
    times: (i64, i64),
    each: &mut dyn FnMut(MessageRow) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match subject {
        Subject::File(_) => Ok(()),
        Subject::Recording(name) => messages(source, name, None, times, each),
        Subject::Symbol(symbol, recordings) => {
            say_cost(source, symbol, recordings)?;
            let mut found = 0u64;
            for name in recordings {
                messages(source, name, Some(symbol), times, &mut |row| {
                    found += 1;
                    each(row)
                })?;
            }
            if found > 0 {
                return Ok(());
            }
            let place = "no file, no recording and, between these times, no message of the symbol";
            let reach = reach(source, subject)?;
            Err(format!("{place} {symbol}: see `store ls`{reach}").into())
        }
    }
}

/// The clock of the venue of a subject's messages.
fn clock_of(source: &dyn RecordSource, subject: &Subject) -> Result<Clock, Failure> {
    let name = match subject {
        Subject::File(_) => None,
        Subject::Recording(name) => Some(name),
        Subject::Symbol(_, all) => all.first(),
    };
    Ok(name.map_or(Ok(Clock::Epoch), |name| venue_clock(source, name))?)
}

/// The first and the last time of a subject's messages.
fn span(source: &dyn RecordSource, subject: &Subject) -> Result<Option<(i64, i64)>, Failure> {
    let recordings = match subject {
        Subject::File(file) => return Ok(file_span(source, file)?),
        Subject::Recording(name) => std::slice::from_ref(name),
        Subject::Symbol(_, all) => &all[..],
    };
    let spans = recordings.iter().map(|name| recording_span(source, name));
    Ok(spans.into_iter().try_fold(None, |all, span| span.map(|span| joined(all, span)))?)
}

/// The first and last time of a subject's messages, in words for an empty result.
fn reach(source: &dyn RecordSource, subject: &Subject) -> Result<String, Failure> {
    let reach = span(source, subject)?;
    let what = match subject {
        Subject::File(_) => "this file reaches",
        Subject::Recording(_) => "this recording reaches",
        Subject::Symbol(..) => "recordings here reach",
    };
    Ok(reach.map_or_else(String::new, |(from, to)| {
        format!("; {what} from {} to {}", times::words(from), times::words(to))
    }))
}

/// Warns of the cost, since symbols have no index: an execution does not name its symbol, and the
/// order that it executes does.
fn say_cost(source: &dyn RecordSource, symbol: &str, recordings: &[String]) -> Outcome {
    let is_read =
        |file: &&Listed| recordings.iter().any(|name| is_message_file_of(&file.name, name));
    let listed = source.listed()?;
    let messages: u64 = listed.iter().filter(is_read).map(|file| file.records).sum();
    eprintln!(
        "note: symbols have no index: {messages} messages are read to find those of {symbol}"
    );
    Ok(())
}

fn records(
    source: &dyn RecordSource,
    file: &Listed,
    numbers: std::ops::Range<u64>,
    out: &mut Records,
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

fn write(choice: &Choice, format: Format, out: Option<&Path>) -> Result<u64, Failure> {
    let source = choice.place.source()?;
    let subject = choice.subject(&*source)?;
    let (from, to) = choice.times(&*source, &subject)?;
    if let Subject::File(file) = &subject {
        let mut out = Records::new(&file.schema, format, out)?;
        let numbers = source.between(&file.name, from, to)?;
        let count = numbers.end - numbers.start;
        records(&*source, file, numbers, &mut out)?;
        out.finish()?;
        choice.say_if_nothing(&*source, &subject, count)?;
        return Ok(count);
    }
    let mut out = Messages::new(format, out)?;
    let mut count = 0;
    rows(&*source, &subject, (from, to), &mut |row| {
        count += 1;
        out.write(row)
    })?;
    out.finish()?;
    choice.say_if_nothing(&*source, &subject, count)?;
    Ok(count)
}

/// Runs `store read`.
pub fn read(args: &Read) -> Outcome {
    write(&args.choice, args.format, args.out.as_deref()).map(drop)
}

/// Runs `store export`.
pub fn export(args: &Export) -> Outcome {
    let count = write(&args.choice, args.format, Some(&args.out))?;
    println!("{count} rows in {}", args.out.display());
    Ok(())
}

/// Runs `store tail`.
pub fn tail(args: &Tail) -> Outcome {
    if args.follow {
        return follow(args);
    }
    let source = args.choice.place.source()?;
    let subject = args.choice.subject(&*source)?;
    let (from, to) = args.choice.times(&*source, &subject)?;
    if let Subject::File(file) = &subject {
        let mut out = Records::new(&file.schema, args.format, None)?;
        let mut numbers = source.between(&file.name, from, to)?;
        numbers.start = numbers.start.max(numbers.end.saturating_sub(args.count));
        let count = numbers.end - numbers.start;
        records(&*source, file, numbers, &mut out)?;
        out.finish()?;
        return args.choice.say_if_nothing(&*source, &subject, count);
    }
    let mut last = VecDeque::new();
    rows(&*source, &subject, (from, to), &mut |row| {
        last.push_back(row);
        if last.len() as u64 > args.count {
            last.pop_front();
        }
        Ok(())
    })?;
    let mut out = Messages::new(args.format, None)?;
    let count = last.len() as u64;
    last.into_iter().try_for_each(|row| out.write(row))?;
    out.finish()?;
    args.choice.say_if_nothing(&*source, &subject, count)
}

/// Runs `store tail --follow`.
fn follow(args: &Tail) -> Outcome {
    if !args.choice.place.is_served() {
        return Err("--follow takes the tcp:// address of a server: nobody writes a directory \
                    while it is read"
            .into());
    }
    interrupt::install()?;
    let source = args.choice.place.source()?;
    match args.choice.subject(&*source)? {
        Subject::File(file) => follow_file(args, &*source, &file),
        Subject::Recording(name) => follow_recording(args, &*source, &name),
        Subject::Symbol(..) => Err("--follow takes a file or a recording".into()),
    }
}

/// Sleeps. Returns whether to continue.
fn pause() -> bool {
    std::thread::sleep(LOOK_EVERY);
    !interrupt::raised()
}

fn follow_file(args: &Tail, source: &dyn RecordSource, file: &Listed) -> Outcome {
    let mut out = Records::new(&file.schema, args.format, None)?;
    let there = source.between(&file.name, i64::MIN, i64::MAX)?;
    let mut next = there.start.max(there.end.saturating_sub(args.count));
    loop {
        let end = source.between(&file.name, i64::MIN, i64::MAX)?.end;
        if end > next {
            records(source, file, next..end, &mut out)?;
            out.flush()?;
            next = end;
        }
        if !pause() {
            return out.finish();
        }
    }
}

fn follow_recording(args: &Tail, source: &dyn RecordSource, name: &str) -> Outcome {
    let mut out = Messages::new(args.format, None)?;
    let mut last = VecDeque::new();
    let mut all = Vec::new();
    for stream in streams(source, name)? {
        let mut following = StreamFollower::new(source, name, stream)?;
        following.read_new::<Failure>(source, name, &mut |row| {
            last.push_back(row);
            if last.len() as u64 > args.count {
                last.pop_front();
            }
            Ok(())
        })?;
        all.push(following);
    }
    last.into_iter().try_for_each(|row| out.write(row))?;
    loop {
        out.flush()?;
        if !pause() {
            return out.finish();
        }
        for following in &mut all {
            following.read_new(source, name, &mut |row| out.write(row))?;
        }
    }
}
