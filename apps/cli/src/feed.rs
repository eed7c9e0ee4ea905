//! `evenfall feed`: the contents of a market-data file, a generated file, and a file played as a
//! live MoldUDP64 session.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use evenfall_feed_formats::MessageSource;
use evenfall_feed_formats::file::FileShape;
use evenfall_feed_formats::framed::{write_end, write_frame};
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_feed_formats::{Format, codec};
use evenfall_feed_service::input;
use evenfall_feed_service::player::{Player, PlayerStage};
use evenfall_feed_service::{Feed, Synthetic};
use evenfall_host::interrupt;
use evenfall_runtime::causes::with_causes;
use evenfall_runtime::listing::printable;
use evenfall_runtime::output_file::{open_file, remove_unfinished};
use evenfall_runtime::program::run_until_signal;
use evenfall_runtime::settings::read_key;
use flate2::Compression;
use flate2::write::GzEncoder;
use humantime::parse_duration;
use serde_json::json;

use crate::Outcome;

/// Bytes that are gathered before they are written or compressed.
const WRITE_BYTES: usize = 64 << 10;

/// Arguments of `evenfall feed`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Play a file as a live MoldUDP64 session, with losses if wanted, and with a re-request
    /// server.
    Play(Box<Play>),
    /// Print the contents of a file: format, messages, time span, messages by type, content hash.
    Info(Info),
    /// Write generated ITCH 5.0 into a file, compressed if the file's name ends in .gz.
    Make(Make),
}

/// Arguments of `evenfall feed play`.
#[derive(clap::Args, Debug)]
struct Play {
    /// A market-data file of any format of `evenfall feed info`.
    file: PathBuf,
    #[arg(long, help = format_help())]
    format: Option<String>,
    /// For a capture with sides A and B: play only the first copy of each packet (true; a capture
    /// without two sides is refused), or all copies (false). By default the first copies are played
    /// where two sides are recognised.
    #[arg(long, value_name = "BOOL")]
    arbitrate: Option<bool>,
    /// Destination of side A: an address or a multicast group.
    #[arg(long, value_name = "ADDR:PORT", value_parser = evenfall_runtime::address::look_up)]
    mold: SocketAddr,
    /// Destination of side B, which loses packets independently of side A.
    #[arg(long, value_name = "ADDR:PORT", value_parser = evenfall_runtime::address::look_up)]
    mold_b: Option<SocketAddr>,
    /// Address of the interface over which a group is reached.
    #[arg(long, value_name = "ADDR")]
    interface: Option<Ipv4Addr>,
    /// Answer requests for missing messages at this address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = evenfall_runtime::address::look_up)]
    serve_requests: Option<SocketAddr>,
    /// Play at this many messages per second.
    #[arg(long, value_name = "MSG/S", conflicts_with_all = ["speed", "fit"])]
    rate: Option<f64>,
    /// Play by the messages' own times, this many times as fast.
    #[arg(long, value_name = "TIMES", conflicts_with = "fit")]
    speed: Option<f64>,
    /// Play by the messages' own times, scaled so that the whole file takes this long, such as 30s.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "silence")]
    fit: Option<Duration>,
    /// Cut silences between two messages to this length, such as 500ms.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "rate")]
    silence: Option<Duration>,
    /// Share of packets that each side loses at random: .05 is 5 %.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    drop: f64,
    /// Seed of the random losses.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long the end is announced and requests are answered, counted from the end or the last
    /// request.
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    linger: Duration,
    /// The key file of the run. MoldUDP64 itself carries no key, but without a key evenfall sends
    /// nothing beyond loopback.
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The help of `--format`, for all commands with a feed file.
pub fn format_help() -> String {
    format!(
        "The format of the messages: {}, or opaque for the bytes of every datagram of a capture; \
         the content says it by default",
        codec::words()
    )
}

/// Arguments of `evenfall feed info`.
#[derive(clap::Args, Debug)]
struct Info {
    /// The market-data file; - for standard input.
    file: PathBuf,
    #[arg(long, help = format_help())]
    format: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Arguments of `evenfall feed make`.
#[derive(clap::Args, Debug)]
struct Make {
    /// The file to write.
    out: PathBuf,
    /// Number of messages.
    #[arg(
        long,
        default_value_t = Synthetic::default().messages,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    messages: u64,
    /// Seed of the feed. The same seed gives the same file.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of securities.
    #[arg(long, default_value_t = Synthetic::default().symbols)]
    symbols: u16,
    /// Mean number of messages per second.
    #[arg(long, value_name = "MSG/S", default_value_t = Synthetic::default().mean_rate)]
    mean_rate: f64,
    /// Keep the rate constant, instead of following the bursts of a real open.
    #[arg(long)]
    steady: bool,
}

/// Reads a share, from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be 0 to 1".to_owned()) }
}

pub fn main(args: &Args) -> Outcome {
    match &args.command {
        Command::Play(play) => self::play(play),
        Command::Info(args) => info(args),
        Command::Make(args) => make(args),
    }
}

fn play(args: &Play) -> Outcome {
    if let Some(path) = &args.key_file {
        // MoldUDP64 has no key. The file only shows that its owner may send beyond loopback.
        read_key(path).map_err(|why| format!("--key-file {why}"))?;
    }
    let feed = Feed {
        file: Some(args.file.clone()),
        format: args.format.clone(),
        arbitrate: args.arbitrate,
        rate: args.rate,
        fit: args.fit,
        silence: args.silence,
        speed: args.speed.unwrap_or(1.0),
        ..Feed::default()
    };
    let stage = PlayerStage {
        a: args.mold,
        b: args.mold_b,
        interface: args.interface,
        serve: args.serve_requests,
        drop: args.drop,
        seed: args.seed,
        linger: args.linger,
        keyed: args.key_file.is_some(),
    };
    interrupt::install()?;
    let mut player = Player::open(&feed, stage)?;
    if !args.json {
        let beside = args.mold_b.map_or_else(String::new, |b| format!(" and {b}"));
        say!("playing {} to {}{beside}", args.file.display(), args.mold);
    }
    let played = player.run()?;
    if args.json {
        say!("{}", serde_json::to_string(&played)?);
        return Ok(());
    }
    say!("{} messages in {} packets a side", played.messages, played.packets);
    if played.too_large > 0 {
        say!("  {} messages were not played: no packet holds them", played.too_large);
    }
    player.remarks().iter().for_each(|remark| say!("  {remark}"));
    say!("  lost on purpose: {} of side A, {} of side B", played.dropped_a, played.dropped_b);
    say!("  requests: {}, of which {} answered", played.requests, played.answers);
    say!("  content: blake3 {}", played.content_hash);
    Ok(())
}

/// The contents of a file.
struct Found {
    shape: &'static str,
    formats: BTreeMap<Format, u64>,
    date: Option<String>,
    symbol: Option<String>,
    first_ns: Option<u64>,
    last_ns: u64,
    bytes: u64,
    kinds: BTreeMap<&'static str, u64>,
    remarks: Vec<String>,
    hash: ContentHash,
}

impl Found {
    fn span(&self) -> Duration {
        Duration::from_nanos(self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns)))
    }

    /// The names of the formats, the most frequent first.
    fn format_names(&self) -> String {
        let mut formats: Vec<(&Format, &u64)> = self.formats.iter().collect();
        formats.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let names: Vec<&str> = formats.iter().map(|(format, _)| codec::name(**format)).collect();
        names.join(" and ")
    }
}

fn info(args: &Info) -> Outcome {
    let path = &args.file;
    // Names and the words of a file are of other people, so that they are printed with escapes.
    let file = input::open_file(path, input::format_named(args.format.as_deref())?)
        .map_err(|error| printable(&with_causes(&error)))?;
    let mut source = file.source;
    let mut found = Found {
        shape: file.shape.map_or("unknown", FileShape::name),
        formats: BTreeMap::new(),
        date: input::date_of(path, &*source, None).map(|date| date.to_string()),
        symbol: source.only_symbol().map(|symbol| symbol.to_string()),
        first_ns: None,
        last_ns: 0,
        bytes: 0,
        kinds: BTreeMap::new(),
        remarks: Vec::new(),
        hash: ContentHash::new(1),
    };
    let damage = loop {
        let message = match source.next_message() {
            Ok(Some(message)) => message,
            Ok(None) => break None,
            Err(error) => break Some(error),
        };
        found.first_ns.get_or_insert(message.time_ns);
        found.last_ns = found.last_ns.max(message.time_ns);
        found.bytes += message.bytes.len() as u64;
        *found.formats.entry(message.format).or_default() += 1;
        let codec = codec::of(message.format);
        let kind = match codec {
            Some(codec) => codec.type_name(&message.bytes).unwrap_or("unknown type"),
            None => "opaque",
        };
        *found.kinds.entry(kind).or_default() += 1;
        found.hash.update(0, &message.bytes);
    };
    found.remarks = source.remarks();
    show(args, &found)?;
    damage.map_or(Ok(()), |error| Err(printable(&error.to_string()).into()))
}

fn show(args: &Info, found: &Found) -> Outcome {
    let messages = found.hash.messages();
    let format = found.format_names();
    if args.json {
        let object = json!({
            "format": found.shape,
            "messages_format": format,
            "date": found.date,
            "symbol": found.symbol,
            "messages": messages,
            "message_bytes": found.bytes,
            "first_ns": found.first_ns,
            "last_ns": found.last_ns,
            "span_s": found.span().as_secs_f64(),
            "types": found.kinds,
            "remarks": found.remarks,
            "content_hash": found.hash.finish_hex(),
        });
        say!("{object}");
        return Ok(());
    }
    let is_shape = found.shape == format || format.is_empty();
    let of = if is_shape { String::new() } else { format!(" of {format}") };
    say!("{}: {}{of}", printable(&args.file.display().to_string()), found.shape);
    if let Some(date) = &found.date {
        say!("day: {date}");
    }
    if let Some(symbol) = &found.symbol {
        say!("symbol: {symbol}");
    }
    say!("{messages} messages, {} bytes, over {:?}", found.bytes, found.span());
    for (kind, count) in &found.kinds {
        say!("  {kind:<28}{count:>12}");
    }
    found.remarks.iter().for_each(|remark| say!("note: {}", printable(remark)));
    say!("content: blake3 {}", found.hash.finish_hex());
    Ok(())
}

fn make(args: &Make) -> Outcome {
    let synthetic = Synthetic {
        seed: args.seed,
        symbols: args.symbols,
        messages: args.messages,
        mean_rate: args.mean_rate,
        bursts: !args.steady,
    };
    let mut source = input::open(&Feed { synthetic, ..Feed::default() })?;
    let (mut file, unfinished) = open_file(&args.out)?;
    // A file that a signal cuts short would pass for a whole feed.
    run_until_signal(remove_unfinished, || {
        let messages = if args.out.extension().is_some_and(|ending| ending == "gz") {
            let mut packed = GzEncoder::new(&mut file, Compression::default());
            let messages = write_all(&mut *source, &mut packed)?;
            packed.finish()?;
            messages
        } else {
            write_all(&mut *source, &mut file)?
        };
        file.flush()?;
        unfinished.keep()?;
        say!("{}: {messages} messages", args.out.display());
        Ok(())
    })
}

/// Writes every message after its length, and the mark that ends a session. Returns the number of
/// messages.
fn write_all(
    source: &mut dyn MessageSource,
    out: &mut impl Write,
) -> Result<u64, Box<dyn std::error::Error>> {
    let mut frames = Vec::with_capacity(WRITE_BYTES);
    let mut messages = 0;
    while let Some(message) = source.next_message()? {
        write_frame(&mut frames, &message.bytes);
        messages += 1;
        if frames.len() >= WRITE_BYTES {
            out.write_all(&frames)?;
            frames.clear();
        }
    }
    write_end(&mut frames);
    out.write_all(&frames)?;
    Ok(messages)
}
