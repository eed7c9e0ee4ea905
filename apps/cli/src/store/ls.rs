//! `evenfall store ls`: what a store has, as people ask for it.

use std::sync::Arc;

use evenfall_feed_formats::codec::{self, Format};
use evenfall_runtime::listing::printable;
use evenfall_store_engine::{FileListing, RecordSource};
use evenfall_store_recording::{Catalog, RecordingFiles, RecordingSnapshot};
use serde_json::json;

use super::Place;
use super::times::words;
use crate::Outcome;

/// Arguments of `evenfall store ls`.
#[derive(clap::Args, Debug)]
pub struct Ls {
    #[command(flatten)]
    place: Place,
    /// List every file of the store, also those that a recording is made of.
    #[arg(long)]
    files: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// A recording as a line of the list.
struct RecordingLine {
    name: String,
    messages: u64,
    streams: usize,
    bytes: u64,
    /// The first and the last time.
    span: Option<(i64, i64)>,
    /// The format of the messages, as the first one states it.
    format: Option<Format>,
}

fn bytes_of(file: &FileListing) -> u64 {
    file.records * u64::from(file.schema.record_bytes)
}

impl RecordingLine {
    fn of(
        source: &Arc<dyn RecordSource>,
        files: &RecordingFiles,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let recording = RecordingSnapshot::open(Arc::clone(source), files)?;
        let numbers = recording.streams().iter().map(|stream| stream.numbers());
        Ok(Self {
            name: recording.name().to_owned(),
            messages: numbers.map(|numbers| numbers.end - numbers.start).sum(),
            streams: recording.streams().len(),
            bytes: files.files().map(bytes_of).sum(),
            span: recording.span()?,
            format: recording.stated_format(),
        })
    }

    fn print(&self, is_json: bool) {
        let Self { name, messages, streams, bytes, span, format } = self;
        if is_json {
            let (first, last) = span.unzip();
            // The word of settings and of the column `format`.
            let format = format.map(|format| codec::of(format).map_or("opaque", |one| one.word()));
            let line = json!({"kind": "recording", "name": name, "messages": messages,
                "streams": streams, "bytes": bytes, "first_ns": first, "last_ns": last,
                "format": format});
            say!("{line}");
            return;
        }
        let (from, to) = span.map_or(("-".into(), "-".into()), |(a, b)| (words(a), words(b)));
        let streams = if *streams == 1 { String::new() } else { format!("  {streams} streams") };
        let format = format.map_or_else(String::new, |one| format!("  {}", codec::name(one)));
        let name = printable(name);
        say!("{messages:>12} messages {bytes:>14} bytes  {name}  {from} to {to}{streams}{format}");
    }
}

fn print_file(file: &FileListing, is_json: bool) {
    let bytes = bytes_of(file);
    if is_json {
        let line = json!({"kind": "file", "name": file.name, "records": file.records,
            "bytes": bytes, "schema": file.schema});
        say!("{line}");
    } else {
        say!("{:>12} records  {bytes:>14} bytes  {}", file.records, printable(&file.name));
    }
}

/// Runs `store ls`.
pub fn list_store(args: &Ls) -> Outcome {
    let source = args.place.source()?;
    if args.files {
        source.listed()?.iter().for_each(|file| print_file(file, args.json));
        return Ok(());
    }
    let catalog = Catalog::read(&*source)?;
    for recording in catalog.recordings() {
        RecordingLine::of(&source, recording)?.print(args.json);
    }
    catalog.files().for_each(|file| print_file(file, args.json));
    Ok(())
}
