//! `evenfall store append`: records a feed file, or two sides of a feed as a single recording.

mod records;

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_feed_formats::arbiter::FeedSide;
use evenfall_feed_formats::capture::CopyChoice;
use evenfall_feed_formats::codec::{self, LOBSTER};
use evenfall_feed_formats::itch::Stock;
use evenfall_feed_formats::source::PacketOrigin;
use evenfall_feed_formats::{Date, FeedMessage, Format, MessageSource};
use evenfall_feed_service::input;
use evenfall_host::interrupt;
use evenfall_runtime::program::Stopped;
use evenfall_store_engine::import::StampUnit;
use evenfall_store_engine::{Freshness, Store, StoreAckLevel};
use evenfall_store_format::schema::{ArrivalOrder, Sides};
use evenfall_store_recording::intake::{FeedDay, IntakeFailure, expect_no_messages};
use evenfall_store_recording::{Catalog, LateWindow, RecordingWriter};
use humantime::parse_duration;

use super::create::new_name;
use super::open_as;
use super::storage_args::Appends;
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Arguments of `evenfall store append`.
#[derive(clap::Args, Debug)]
pub struct Append {
    /// The store's directory; a missing directory is created. With --csv also tcp://127.0.0.1:7410
    /// for a server.
    dir: PathBuf,
    /// Name of the recording.
    #[arg(value_parser = new_name)]
    name: String,
    /// The feed: ITCH 5.0, pcap or LOBSTER; - for standard input.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Append these records to a file that `store create` made, in the form of `store read`; - for
    /// standard input. The header names the columns.
    #[arg(long, conflicts_with_all = ["feed", "arbitrate", "sides", "window", "symbol"])]
    csv: Option<PathBuf>,
    /// Unit of the stamps of --csv: ns, us, ms or s. By default ns, and stamps that look like
    /// another unit are refused.
    #[arg(long, requires = "csv", value_name = "UNIT", value_parser = stamp_unit)]
    time_unit: Option<StampUnit>,
    #[arg(long, help = crate::feed::format_help())]
    format: Option<String>,
    /// The trading day of a feed whose messages state only times of day, such as 2019-12-30. By
    /// default, the date in the file's name.
    #[arg(long)]
    date: Option<Date>,
    /// The capture holds sides A and B of channels whose packets have numbers. Record the first
    /// copy of each packet, in order of the numbers, and refuse a capture without two sides. First
    /// copies are the default where two sides are recognised; --sides both keeps all packets.
    #[arg(long, conflicts_with_all = ["sides", "window"])]
    arbitrate: bool,
    #[command(flatten)]
    arrival: ArrivalArgs,
    #[arg(
        long,
        default_value = "local",
        help = format!("Where records are when they are acknowledged: {}", StoreAckLevel::list())
    )]
    ack: StoreAckLevel,
    #[command(flatten)]
    key: super::KeyArg,
    #[command(flatten)]
    appends: Appends,
}

/// How records arrive. `store create` keeps these arguments for later appends to the same file.
#[derive(clap::Args, Debug)]
pub struct ArrivalArgs {
    /// Put the first copies of sides A and B of a captured feed into "one" recording (as
    /// --arbitrate does), "both" sides into one recording as they were captured, or the sides
    /// "apart" into two recordings, NAME-a and NAME-b.
    #[arg(long, value_parser = sides)]
    sides: Option<Sides>,
    /// Sort records that go back in time by at most this, such as 1s, and drop copies (by the
    /// packet's number, where there are sides). Records that go back by more are refused. Records
    /// that wait in the window are not acknowledged.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    window: Option<Duration>,
    /// The symbol of a feed whose messages name none, which is LOBSTER's. By default, the symbol in
    /// the file's name, such as AAPL_2012-06-21_34200000_57600000_message_10.csv.
    #[arg(long, value_parser = symbol_word)]
    symbol: Option<String>,
}

fn symbol_word(word: &str) -> Result<String, String> {
    let is_blank = |byte: u8| byte == b' ';
    let known = Stock::new(word).filter(|_| !word.is_empty() && !word.bytes().any(is_blank));
    known.map(|_| word.to_owned()).ok_or_else(|| "a symbol of one to eight letters".into())
}

fn stamp_unit(word: &str) -> Result<StampUnit, String> {
    StampUnit::named(word).ok_or_else(|| "ns, us, ms or s".into())
}

fn sides(word: &str) -> Result<Sides, String> {
    match word {
        "one" => Ok(Sides::One),
        "apart" => Ok(Sides::Apart),
        "both" => Ok(Sides::Both),
        _ => Err("one, both or apart".into()),
    }
}

impl ArrivalArgs {
    /// The arrival as a property of a file.
    pub fn arrival(&self) -> ArrivalOrder {
        let window_ns = self.window.map_or(0, |window| window.as_nanos());
        let window_ns = u64::try_from(window_ns).unwrap_or(u64::MAX);
        let symbol = self.symbol.clone().unwrap_or_default();
        ArrivalOrder { window_ns, sides: self.sides, symbol, ..ArrivalOrder::default() }
    }

    /// Whether a symbol is stated.
    pub fn has_symbol(&self) -> bool {
        self.symbol.is_some()
    }

    /// Names of the recordings of a feed with this arrival.
    pub fn names(name: &str, arrival: &ArrivalOrder) -> Vec<String> {
        match arrival.sides {
            Some(Sides::Apart) => vec![format!("{name}-a"), format!("{name}-b")],
            _ => vec![name.to_owned()],
        }
    }
}

pub fn append(args: &Append) -> Outcome {
    let address = args.dir.to_str().and_then(|place| place.strip_prefix("tcp://"));
    let csv = args.csv.as_ref().map(|path| records::CsvTable { path, unit: args.time_unit });
    if let (Some(table), Some(address)) = (csv, address) {
        let client = super::connect(address, &args.key, Freshness::Published)?;
        return records::append_to_server(client, &args.name, table, args.ack);
    }
    if let Some(table) = csv {
        let store = open_as(args.appends.config(&args.dir)?)?;
        let taken = records::append(&store, &args.name, table, args.ack);
        store.close()?;
        return taken;
    }
    let feed = args.feed.as_ref().ok_or(
        "there is nothing to append: give --feed FILE for a recording, or --csv FILE for the \
         records of a file that `store create` made",
    )?;
    // A recording that a signal cuts short looks like a whole one, so that it is named.
    interrupt::install()?;
    let config = args.appends.config(&args.dir)?;
    let format = input::format_named(args.format.as_deref())?;
    let messages = input::open_file(feed, format)?.source;
    let date = input::date_of(feed, &*messages, args.date);
    let store = open_as(config)?;
    let taken = record(args, feed, messages, date, &store);
    // A full disk fails both. The error of the recording says how to begin again.
    let closed = store.close();
    taken?;
    // The messages are acknowledged, so that nobody needs to record them again.
    Ok(closed.map_err(|error| {
        let error = evenfall_runtime::causes::with_causes(&error);
        format!("{error}; what is recorded stays, and the next opening of the store goes on here")
    })?)
}

fn record(
    args: &Append,
    feed: &Path,
    mut messages: Box<dyn MessageSource + Send>,
    date: Option<Date>,
    store: &Store,
) -> Outcome {
    let catalog = Catalog::read(store)?;
    let arrival = arrival_of_both(args, &catalog, messages.only_symbol())?;
    let names = ArrivalArgs::names(&args.name, &arrival);
    let is_arbitrated = arrival.sides.map(|sides| sides == Sides::One);
    messages.choose_copies(CopyChoice::of_setting(is_arbitrated))?;
    let first = messages.next_message()?;
    let day = FeedDay { date };
    day.check(first.as_ref()).map_err(|error| unknown_day(feed, &error))?;
    let is_unnamed = first.as_ref().is_some_and(|message| message.format == LOBSTER);
    if args.arrival.has_symbol() && !is_unnamed {
        return Err("--symbol is for messages that name no symbol, which are those of LOBSTER: \
                    leave it away"
            .into());
    }
    let mut imports = Vec::new();
    for name in &names {
        expect_no_messages(store, &catalog, name)?;
        let recorder = RecordingWriter::with_arrival(store, name, 1, args.ack, arrival.clone())?;
        imports.push(StreamImport::new(recorder, arrival.window_ns));
    }
    let stopped = |place: usize, error: Failure| unfinished(args, &names[place], &*error);
    let taken = take_all(first, &mut *messages, day, &mut imports, &stopped);
    // The advice is printed as after any other stop, and the exit code is that of the signal.
    let taken = taken.map_err(|error| match Stopped::by_signal() {
        Some(signal) => {
            aside!("evenfall: {error}");
            signal.into()
        }
        None => error,
    });
    // The messages before a damage are recorded, and the damage is reported.
    let mut windows: Outcome = Ok(());
    for (name, import) in names.iter().zip(&mut imports) {
        import.finish().map_err(|error| unfinished(args, name, &*error))?;
        say!("{} messages recorded as {name}", import.recorder.messages());
        let finish = |window| finish_window(name, window);
        windows = windows.and(import.window.as_ref().map_or(Ok(()), finish));
    }
    messages.remarks().iter().for_each(|remark| say!("{remark}"));
    if is_unnamed && arrival.symbol.is_empty() {
        say!("{}", without_symbol(catalog.recording(&names[0]).is_some()));
    }
    taken.and(windows)
}

/// The error of a feed whose day is unknown, and what to do.
fn unknown_day(feed: &Path, error: &IntakeFailure) -> Failure {
    format!(
        "{}: {error}: give --date YYYY-MM-DD, or a file name with the date, such as \
         20191230.itch50",
        feed.display()
    )
    .into()
}

/// The remark on messages that have no symbol, and what to do the next time.
fn without_symbol(is_created: bool) -> &'static str {
    match is_created {
        true => {
            "the rows have no symbol, which is stated when a recording is created: `store create \
             --symbol`"
        }
        false => {
            "the rows have no symbol: neither the messages nor the file's name states one, and \
             --symbol does"
        }
    }
}

/// The error of a recording that stopped in the middle. The recording has the first messages of the
/// feed, and its name is taken.
fn unfinished(args: &Append, name: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    let error = evenfall_runtime::causes::with_causes(error);
    format!(
        "{error}; {name} has only the first messages of the feed: to begin again, delete it with \
         `evenfall store delete {} {name}`",
        args.dir.display()
    )
    .into()
}

/// The arrival of the recording, which the command may state but not contradict. `found` is the
/// symbol in the file's name.
fn arrival_of_both(
    args: &Append,
    catalog: &Catalog,
    found: Option<Stock>,
) -> Result<ArrivalOrder, Failure> {
    let mut said = args.arrival.arrival();
    if args.arbitrate {
        said.sides = Some(Sides::One);
    }
    let first_side = format!("{}-a", args.name);
    let created = catalog.recording(&args.name).or_else(|| catalog.recording(&first_side));
    let created = created.map(|recording| recording.arrival.clone());
    match created {
        None => {
            if let Some(symbol) = found.filter(|_| said.symbol.is_empty()) {
                said.symbol = symbol.to_string();
            }
            Ok(said)
        }
        Some(created) if said == ArrivalOrder::default() || said == created => Ok(created),
        Some(_) => Err(format!(
            "{} was created with another window, other sides or another symbol: leave --window, \
             --sides, --arbitrate and --symbol away, or choose a name",
            args.name
        )
        .into()),
    }
}

/// Prints the counts of the window of a file or recording.
///
/// # Errors
/// When records were refused, or numbers were used again with other values.
fn finish_window(of: &str, window: &LateWindow) -> Outcome {
    let counts = window.counts();
    say!(
        "{} came out of order, {} copies, {} refused, {} given out early",
        counts.reordered,
        counts.duplicates,
        counts.too_late,
        counts.early
    );
    Ok(window.judge().map_err(|error| format!("{of}: {error}"))?)
}

/// A recording that is being written, with or without a window.
struct StreamImport<'a> {
    recorder: RecordingWriter<'a>,
    window: Option<LateWindow>,
    /// Number of the next message.
    next: u64,
}

impl<'a> StreamImport<'a> {
    fn new(recorder: RecordingWriter<'a>, window_ns: u64) -> Self {
        Self { recorder, window: LateWindow::of_width(window_ns), next: 0 }
    }

    /// Takes a message. Its sequence identifies copies, and orders equal times.
    fn take(&mut self, sequence: u64, time_ns: i64, message: &FeedMessage) -> Outcome {
        let FeedMessage { format, bytes, .. } = message;
        let Some(window) = &mut self.window else { return self.push(time_ns, *format, bytes) };
        let held = [&time_ns.to_le_bytes()[..], &[format.0], bytes].concat();
        let remark =
            window.offer(&format_args!("message {sequence}"), sequence, time_ns, held.into());
        if let Some(remark) = remark {
            aside!("{remark}");
        }
        while let Some(held) = self.window.as_mut().and_then(LateWindow::poll_record) {
            self.push_held(&held)?;
        }
        Ok(())
    }

    fn push_held(&mut self, held: &[u8]) -> Outcome {
        let Some((time, [format, bytes @ ..])) = held.split_first_chunk::<8>() else {
            return Ok(());
        };
        self.push(i64::from_le_bytes(*time), Format(*format), bytes)
    }

    fn push(&mut self, time_ns: i64, format: Format, bytes: &[u8]) -> Outcome {
        self.recorder.push(0, self.next, time_ns, format, bytes)?;
        self.next += 1;
        Ok(())
    }

    /// Returns when all taken messages are recorded.
    fn finish(&mut self) -> Outcome {
        while let Some(held) = self.window.as_mut().and_then(LateWindow::drain_record) {
            self.push_held(&held)?;
        }
        Ok(self.recorder.flush()?)
    }
}

/// Records all messages: as one feed, or in two recordings with each side as it was captured.
fn take_all(
    first: Option<FeedMessage>,
    messages: &mut dyn MessageSource,
    day: FeedDay,
    imports: &mut [StreamImport<'_>],
    stopped: &dyn Fn(usize, Failure) -> Failure,
) -> Outcome {
    let mut sides = SidesApart::default();
    let mut next = first;
    while let Some(message) = next {
        if interrupt::raised() {
            return Err(stopped(0, "stopped by a signal".into()));
        }
        let (mut sequence, mut time_ns) = (message.index, day.epoch_ns(&message)?);
        let mut place = 0;
        if imports.len() > 1 {
            let origin = messages.origin().unwrap_or_default();
            place = sides.place_of(&origin)?;
            // With a window, sides are ordered by the venue's numbers and times, not by the
            // capture's.
            if imports[place].window.is_some() {
                sequence = origin.sequence.ok_or_else(|| no_number(&message))?;
                let sent_ns = origin.sent_ns.and_then(|sent_ns| i64::try_from(sent_ns).ok());
                time_ns = sent_ns.unwrap_or(time_ns);
            }
        }
        let taken = imports[place].take(sequence, time_ns, &message);
        taken.map_err(|error| stopped(place, error))?;
        next = match messages.next_message() {
            // A signal ends a read that waits for the bytes of a pipe.
            Err(_) if interrupt::raised() => {
                return Err(stopped(0, "stopped by a signal".into()));
            }
            found => found?,
        };
    }
    Ok(())
}

fn no_number(message: &FeedMessage) -> Failure {
    let name = codec::name(message.format);
    format!("message {} ({name}) has no packet number to go by", message.index).into()
}

/// Tells the sides of a capture apart.
#[derive(Default)]
struct SidesApart {
    /// Whether a side was recognised by equal packets.
    has_sides: bool,
    /// The channels that were not recognised as a side.
    channels: Vec<u32>,
}

impl SidesApart {
    /// The import of a message: the first for side A and for channels without a second side, the
    /// second for side B. Where no side is recognised, the channel that sends first is A.
    fn place_of(&mut self, origin: &PacketOrigin) -> Result<usize, Failure> {
        self.has_sides |= origin.side.is_some();
        match origin.side {
            Some(FeedSide::B) => return Ok(1),
            Some(_) => return Ok(0),
            None if self.has_sides => return Ok(0),
            None => {}
        }
        if !self.channels.contains(&origin.channel) {
            self.channels.push(origin.channel);
        }
        let place = self.channels.iter().position(|channel| *channel == origin.channel);
        place.filter(|place| *place < 2).ok_or_else(|| {
            "a third channel, and no two have equal packets under equal numbers: --sides both \
             keeps all of them"
                .into()
        })
    }
}
