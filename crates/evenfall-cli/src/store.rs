//! `evenfall store`: the files of a store, from its directory or from its objects alone.

pub mod bench;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use evenfall_feed::sharding::{ContentHash, shard_of};
use evenfall_node::input;
use evenfall_node::settings::Feed;
use evenfall_node::store::export::{ParquetFile, csv, csv_header};
use evenfall_node::store::recording::{Recorder, replay, streams};
use evenfall_node::store::{Archive, Level, RecordSource, Store, StoreConfig, seal};
use serde_json::json;

use crate::Outcome;

/// Records read and written at once.
const PART_RECORDS: u64 = 65_536;

/// Arguments of `evenfall store`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the files.
    Ls(Place),
    /// Record a feed file: every message, byte for byte.
    Append(Append),
    /// Print the records of a file, or the messages of a recording, between two times.
    Read(Read),
    /// Write a file as Parquet.
    Export(Export),
    /// Read every byte and say what is not as it was written.
    Verify(Verify),
}

/// Where a store is.
#[derive(clap::Args, Debug)]
struct Place {
    /// The store's directory; with --objects, the directory or address of its objects.
    dir: PathBuf,
    /// Read objects alone, as a second node does.
    #[arg(long)]
    objects: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Arguments of `evenfall store append`.
#[derive(clap::Args, Debug)]
struct Append {
    /// The store's directory; made when it is not there.
    dir: PathBuf,
    /// Name of the recording.
    name: String,
    /// The feed: ITCH 5.0, pcap or LOBSTER.
    #[arg(long)]
    feed: PathBuf,
    /// memory, local or object.
    #[arg(long, default_value = "local")]
    ack: Level,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Csv,
}

/// Arguments of `evenfall store read`.
#[derive(clap::Args, Debug)]
struct Read {
    #[command(flatten)]
    place: Place,
    /// A file, or a recording.
    #[arg(long, short)]
    name: String,
    /// First time, in ns.
    #[arg(long, default_value_t = i64::MIN, allow_hyphen_values = true)]
    from: i64,
    /// Last time, in ns.
    #[arg(long, default_value_t = i64::MAX, allow_hyphen_values = true)]
    to: i64,
    /// How to print.
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
}

/// Arguments of `evenfall store export`.
#[derive(clap::Args, Debug)]
struct Export {
    #[command(flatten)]
    place: Place,
    /// The file.
    #[arg(long, short)]
    name: String,
    /// The Parquet file to write.
    #[arg(long, short)]
    out: PathBuf,
}

/// Arguments of `evenfall store verify`.
#[derive(clap::Args, Debug)]
struct Verify {
    /// The store's directory.
    dir: PathBuf,
    /// Compare a recording with this feed, byte for byte.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Name of that recording.
    #[arg(long, default_value = "feed")]
    name: String,
}

/// Runs it.
pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Ls(args) => ls(args),
        Command::Append(args) => append(args),
        Command::Read(args) => read(args),
        Command::Export(args) => export(args),
        Command::Verify(args) => verify(args),
    }
}

/// Opens a store, and says on stderr what it dropped.
pub fn open(dir: &Path) -> Result<Store, Box<dyn std::error::Error>> {
    let opened = Store::open(StoreConfig::new(dir))?;
    for loss in &opened.losses {
        let kind = if loss.is_torn_end { "note" } else { "damage" };
        eprintln!("{kind}: {}: {}", loss.place, loss.what);
    }
    Ok(opened.store)
}

fn source(place: &Place) -> Result<Box<dyn RecordSource>, Box<dyn std::error::Error>> {
    if place.objects {
        return Ok(Box::new(Archive::open(&place.dir.display().to_string())?));
    }
    if !place.dir.is_dir() {
        return Err(format!("{}: no such directory", place.dir.display()).into());
    }
    Ok(Box::new(open(&place.dir)?))
}

fn ls(place: &Place) -> Outcome {
    for file in source(place)?.listed()? {
        let bytes = file.records * u64::from(file.schema.record_bytes);
        if place.json {
            let schema = &file.schema;
            let line = json!({"name": file.name, "records": file.records, "bytes": bytes,
                "schema": schema});
            println!("{line}");
        } else {
            println!("{:>12} records {bytes:>14} bytes  {}", file.records, file.name);
        }
    }
    Ok(())
}

fn feed_of(path: &Path) -> Feed {
    Feed { file: Some(path.to_owned()), ..Feed::default() }
}

fn append(args: &Append) -> Outcome {
    let store = open(&args.dir)?;
    if !streams(&store, &args.name)?.is_empty() {
        return Err(format!("there is a recording {} already: choose a name", args.name).into());
    }
    let mut messages = input::open(&feed_of(&args.feed))?;
    let mut recorder = Recorder::new(&store, &args.name, args.ack);
    while let Some(message) = messages.next_message()? {
        let time_ns = i64::try_from(message.time_ns).unwrap_or(i64::MAX);
        recorder.push(0, message.index, time_ns, &message.bytes)?;
    }
    recorder.flush()?;
    println!("{} messages recorded as {}", recorder.messages(), args.name);
    drop(recorder);
    store.close()?;
    Ok(())
}

fn read(args: &Read) -> Outcome {
    let source = source(&args.place)?;
    let Format::Csv = args.format;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if let Some(file) = source.listed()?.into_iter().find(|file| file.name == args.name) {
        writeln!(out, "{}", csv_header(&file.schema))?;
        let numbers = source.between(&args.name, args.from, args.to)?;
        let mut next = numbers.start;
        while next < numbers.end {
            let until = (next + PART_RECORDS).min(numbers.end);
            csv(&file.schema, &source.numbers(&args.name, next..until)?, &mut out)?;
            next = until;
        }
        return Ok(out.flush()?);
    }
    let streams = streams(&*source, &args.name)?;
    if streams.is_empty() {
        return Err(format!("no file and no recording {}: see `store ls`", args.name).into());
    }
    writeln!(out, "stream,number,time_ns,message")?;
    for stream in streams {
        let mut failed = Ok(());
        replay(&*source, &args.name, stream, args.from..=args.to, &mut |message| {
            let mut line = || {
                write!(out, "{stream},{},{},", message.number, message.time_ns)?;
                message.bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
                writeln!(out)
            };
            if failed.is_ok() {
                failed = line();
            }
            Ok(())
        })?;
        failed?;
    }
    Ok(out.flush()?)
}

fn export(args: &Export) -> Outcome {
    let source = source(&args.place)?;
    let listed = source.listed()?.into_iter().find(|file| file.name == args.name);
    let file = listed.ok_or_else(|| format!("no file {}: see `store ls`", args.name))?;
    let out = std::fs::File::create(&args.out)
        .map_err(|error| format!("{}: {error}", args.out.display()))?;
    let mut parquet = ParquetFile::new(&file.schema, BufWriter::new(out))?;
    let mut next = 0;
    while next < file.records {
        let until = (next + PART_RECORDS).min(file.records);
        parquet.write(&source.numbers(&args.name, next..until)?)?;
        next = until;
    }
    parquet.finish()?;
    println!("{} records in {}", file.records, args.out.display());
    Ok(())
}

/// Hash of a recording, as the demo and its receivers make it of a feed.
pub fn hash_of(
    source: &dyn RecordSource,
    name: &str,
) -> Result<(u64, String), Box<dyn std::error::Error>> {
    let streams = streams(source, name)?;
    let trees = streams.last().map_or(1, |last| last + 1);
    let mut hash = ContentHash::new(trees as usize);
    for stream in streams {
        replay(source, name, stream, i64::MIN..=i64::MAX, &mut |message| {
            hash.update(stream as usize, &message.bytes);
            Ok(())
        })?;
    }
    Ok((hash.messages(), hash.finish_hex()))
}

fn verify(args: &Verify) -> Outcome {
    let seen = seal::verify_directory(&args.dir)?;
    println!("{} segments, {} commits, {} bytes", seen.segments, seen.commits, seen.bytes);
    for finding in &seen.findings {
        println!("  {}: {}", finding.place, finding.what);
    }
    for other in &seen.others {
        println!("  note: {other} has no checksum of its own until the store is stopped cleanly");
    }
    if !seen.findings.is_empty() {
        return Err(format!("{} places are not as they were written", seen.findings.len()).into());
    }
    let Some(feed) = &args.feed else { return Ok(()) };
    let store = open(&args.dir)?;
    let (messages, found) = hash_of(&store, &args.name)?;
    let trees = streams(&store, &args.name)?.last().map_or(1, |last| last + 1);
    let mut hash = ContentHash::new(trees as usize);
    let mut source = input::open(&feed_of(feed))?;
    while let Some(message) = source.next_message()? {
        hash.update(shard_of(message.shard_key, trees) as usize, &message.bytes);
    }
    let (of_feed, wanted) = (hash.messages(), hash.finish_hex());
    store.close()?;
    if found != wanted {
        let what = format!("{messages} messages recorded, {of_feed} in the feed, and they differ");
        return Err(what.into());
    }
    println!("recording {} equals the feed: {messages} messages, blake3 {found}", args.name);
    Ok(())
}
