//! `evenfall store bars`: what a file has in each interval of time, out of the index.

use std::io::{self, Write};

use evenfall_runtime::listing::printable;
use evenfall_runtime::output_file::{Out, open_output};
use evenfall_store_engine::FileListing;
use evenfall_store_engine::bars::{TimeBar, TimeBars};
use evenfall_store_engine::export::write_whole;
use evenfall_store_format::{Field, Schema};
use evenfall_store_recording::names::near_names;
use humantime::parse_duration;

use super::{Choice, Failure, Question, Subject};
use crate::Outcome;

/// Arguments of `evenfall store bars`.
#[derive(clap::Args, Debug)]
pub struct Bars {
    #[command(flatten)]
    choice: Choice,
    /// Length of an interval, such as 1m. Intervals begin at whole multiples of it since 1970, UTC.
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    every: i64,
    /// Fields whose aggregates are printed, such as price,size. By default, all fields that have
    /// "aggregate": true in the file's schema.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    fields: Vec<String>,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// An interval in nanoseconds.
fn parse_interval(text: &str) -> Result<i64, String> {
    let every = parse_duration(text).map_err(|error| error.to_string())?;
    let every_ns = i64::try_from(every.as_nanos()).ok().filter(|every_ns| *every_ns > 0);
    every_ns.ok_or_else(|| "an interval has 1ns to 292 years".into())
}

/// What a bar has of each field, in the order of the columns.
const VALUES: [&str; 5] = ["first", "least", "greatest", "last", "sum"];

/// A field of the bars.
struct BarField<'a> {
    field: &'a Field,
    /// Its place among the aggregates of a summary.
    place: usize,
}

impl BarField<'_> {
    /// The values of [`VALUES`].
    fn values(&self, bar: &TimeBar) -> [i128; 5] {
        let aggregate = &bar.summary.aggregates[self.place];
        let (first, last) = (self.field.whole(&bar.first), self.field.whole(&bar.last));
        [first, aggregate.min, aggregate.max, last, aggregate.sum]
    }
}

/// Why a field of the file cannot be in its bars; `None` when it can.
fn refusal_of(file: &FileListing, name: &str) -> Option<String> {
    let (shown, of) = (printable(name), printable(&file.name));
    match file.schema.field(name) {
        Some(field) if field.aggregate => None,
        Some(_) => {
            Some(format!("field {shown} of {of} lacks \"aggregate\": true in the file's schema"))
        }
        None => {
            let known: Vec<String> =
                file.schema.aggregates().map(|field| field.name.clone()).collect();
            Some(format!("{of} has no field {shown}{}", near_names(name, &known)))
        }
    }
}

/// The fields that are asked for, in the order of the schema.
fn choose_fields<'a>(
    file: &'a FileListing,
    wanted: &[String],
) -> Result<Vec<BarField<'a>>, Failure> {
    if let Some(why) = wanted.iter().find_map(|name| refusal_of(file, name)) {
        return Err(why.into());
    }
    let all = file.schema.aggregates().enumerate().map(|(place, field)| BarField { field, place });
    Ok(all.filter(|of| wanted.is_empty() || wanted.contains(&of.field.name)).collect())
}

/// The file that is asked for. Recordings and symbols have no aggregates.
fn file_of<'a>(args: &Bars, question: &'a Question) -> Result<&'a FileListing, Failure> {
    match &question.subject {
        Subject::File(file) => Ok(file),
        Subject::Recording(recording) => Err(format!(
            "bars are made of a file of your own, and {} is a recording: ask `evenfall query` for \
             its bars",
            printable(recording.name())
        )
        .into()),
        Subject::Symbol(..) => {
            let name = args.choice.name.as_deref().unwrap_or_default();
            let catalog = args.choice.place.catalog(&question.source)?;
            let known: Vec<String> = catalog.files().map(|file| file.name.clone()).collect();
            let near = near_names(name, &known);
            Err(format!("there is no file {}{near}: see `store ls`", printable(name)).into())
        }
    }
}

/// Prints bars as CSV or JSON lines.
struct BarWriter<'a> {
    schema: &'a Schema,
    fields: Vec<BarField<'a>>,
    out: Out,
}

impl BarWriter<'_> {
    fn write_head(&mut self) -> io::Result<()> {
        write!(self.out, "time,count")?;
        for of in &self.fields {
            for value in VALUES {
                write!(self.out, ",{}_{value}", of.field.name)?;
            }
        }
        writeln!(self.out)
    }

    fn write_csv(&mut self, bar: &TimeBar) -> io::Result<()> {
        write!(self.out, "{},{}", bar.start_ns, bar.summary.count)?;
        for of in &self.fields {
            for number in of.values(bar) {
                self.out.write_all(b",")?;
                write_whole(self.schema, of.field, number, &mut self.out)?;
            }
        }
        writeln!(self.out)
    }

    /// The fields have an object of their own, because one of them may be named `time` or `count`.
    fn write_json(&mut self, bar: &TimeBar) -> io::Result<()> {
        let (start_ns, count) = (bar.start_ns, bar.summary.count);
        write!(self.out, "{{\"time\":{start_ns},\"count\":{count},\"fields\":{{")?;
        for (at, of) in self.fields.iter().enumerate() {
            let name = serde_json::Value::from(of.field.name.as_str());
            write!(self.out, "{}{name}:", if at == 0 { "" } else { "," })?;
            for (value, number) in VALUES.into_iter().zip(of.values(bar)) {
                write!(self.out, "{}\"{value}\":", if value == VALUES[0] { "{" } else { "," })?;
                write_whole(self.schema, of.field, number, &mut self.out)?;
            }
            self.out.write_all(b"}")?;
        }
        writeln!(self.out, "}}}}")
    }
}

/// Runs `store bars`.
pub fn print_bars(args: &Bars) -> Outcome {
    let question = Question::of(&args.choice)?;
    let file = file_of(args, &question)?;
    let fields = choose_fields(file, &args.fields)?;
    question.say_published()?;
    let times = question.times(&args.choice)?;
    if fields.is_empty() {
        aside!(
            "note: no field of the file's schema has \"aggregate\": true, so its bars are counts"
        );
    }
    let mut bars = TimeBars::new(&*question.source, &file.name, times, args.every)?.peekable();
    if bars.peek().is_none() {
        let between = if question.is_cut(&args.choice) { " between these times" } else { "" };
        let (name, reach) = (printable(&file.name), question.reach()?);
        return Err(format!("{name} has no record{between}, so it has no bar{reach}").into());
    }
    let (out, _) = open_output(None)?;
    let mut writer = BarWriter { schema: &file.schema, fields, out };
    if !args.json {
        writer.write_head()?;
    }
    for bar in bars {
        let bar = bar?;
        match args.json {
            true => writer.write_json(&bar)?,
            false => writer.write_csv(&bar)?,
        }
    }
    Ok(writer.out.flush()?)
}
