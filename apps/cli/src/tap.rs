//! `evenfall tap`: takes a feed as a participant does, without the key of the run.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use evenfall_core::{Format, Timestamp};
use evenfall_feed_formats::codec;
use evenfall_feed_formats::framed::{write_end, write_frame};
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_feed_service::tap::{Tap, TapEvent, TapProtocol, TapSettings, TapStatus};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{interrupt, process};
use evenfall_runtime::settings::{Io, read_key};
use humantime::parse_duration;
use serde::Serialize;

use crate::Outcome;

/// How the feed comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// MoldUDP64, of a gateway or of a venue.
    Mold,
    /// Plain datagrams of a gateway, a message each.
    Plain,
    /// The same, sealed for this participant alone, who has a key (`--key-file`).
    Sealed,
}

/// Arguments of `evenfall tap`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where the feed comes to: an address of this host, or a multicast group.
    #[arg(value_name = "ADDRESS", value_parser = evenfall_runtime::address::look_up)]
    address: SocketAddr,
    /// How the feed comes.
    #[arg(long, value_enum, default_value = "mold")]
    protocol: Protocol,
    /// The key of this participant, for `--protocol sealed`: the file that the venue gave it.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Ask this address for messages that are missing (MoldUDP64).
    #[arg(long, value_name = "ADDRESS", value_parser = evenfall_runtime::address::look_up)]
    request: Option<SocketAddr>,
    /// Join the group on the interface with this address.
    #[arg(long, value_name = "ADDR")]
    interface: Option<Ipv4Addr>,
    /// The first sequence that is wanted: 1 asks for the whole session. By default the tap begins
    /// with the first message that comes.
    #[arg(long, value_name = "SEQUENCE", value_parser = clap::value_parser!(u64).range(1..))]
    from: Option<u64>,
    /// How long missing messages are waited for.
    #[arg(long, default_value = "500ms", value_name = "DURATION", value_parser = parse_duration)]
    gap_timeout: Duration,
    /// End when no message has come for this long, also while heartbeats come. Otherwise the tap
    /// waits for the end of the session, or for Ctrl-C.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    silence: Option<Duration>,
    /// Print a line for each message: its sequence, and what it says or its bytes in hexadecimal.
    #[arg(long, conflicts_with = "json")]
    print: bool,
    /// Write the messages into this file, each behind its 2-byte length, as ITCH files have them.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Lose this share of the datagrams on purpose, to try requests: .01 is 1 %.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", value_parser = crate::feed::share)]
    drop: f64,
    /// Seed of these losses.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of kernel memory for datagrams that wait.
    #[arg(long, value_name = "BYTES", default_value_t = Io::default().receive_buffer_bytes)]
    receive_buffer: usize,
    /// End at once when standard input ends. The program that started this process holds the other
    /// end.
    #[arg(long, hide = true)]
    lifeline: bool,
    /// Print the summary as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The summary of a tap.
#[derive(Serialize)]
struct Tapped {
    #[serde(flatten)]
    status: TapStatus,
    /// Hash of the messages in their order, as `feed info` and a run of one tree compute it.
    content_hash: String,
    /// From the first message to the last.
    seconds: f64,
    /// Why the tap ended.
    ended: &'static str,
}

/// What is done with each message.
struct Taking<'a> {
    args: &'a Args,
    hash: ContentHash,
    out: Option<BufWriter<File>>,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl Taking<'_> {
    fn take(&mut self, sequence: u64, format: Format, message: &[u8]) -> Outcome {
        let now = MonotonicClock::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.hash.update(0, message);
        if self.args.print {
            say!("{sequence} {}", words_of(format, message));
        }
        // A length of zero would end the file.
        if let Some(out) = self.out.as_mut().filter(|_| !message.is_empty()) {
            let mut frame = Vec::with_capacity(message.len() + 2);
            write_frame(&mut frame, message);
            out.write_all(&frame).map_err(|error| self.unwritten(&error))?;
        }
        Ok(())
    }

    /// Ends the file.
    fn finish(&mut self) -> Outcome {
        let Some(out) = &mut self.out else { return Ok(()) };
        let mut end = Vec::new();
        write_end(&mut end);
        let ended = out.write_all(&end).and_then(|()| out.flush());
        Ok(ended.map_err(|error| self.unwritten(&error))?)
    }

    /// An error of the file, with its name.
    fn unwritten(&self, error: &io::Error) -> String {
        let path = self.args.write.as_deref().unwrap_or(Path::new("")).display();
        format!("{path}: {error}")
    }
}

/// What a message says: its type and its bytes.
fn words_of(format: Format, message: &[u8]) -> String {
    let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
    match codec::of(format).and_then(|codec| codec.type_name(message)) {
        Some(name) => format!("{name} {hex}"),
        None => hex,
    }
}

pub fn main(args: &Args) -> Outcome {
    if args.protocol != Protocol::Mold && (args.request.is_some() || args.from.is_some()) {
        let why = "--request and --from: plain datagrams have no requests; leave both out, or take \
                   the feed as MoldUDP64";
        return Err(why.into());
    }
    let protocol = match (args.protocol, &args.key_file) {
        (Protocol::Mold, None) => TapProtocol::Mold,
        (Protocol::Plain, None) => TapProtocol::Plain,
        (Protocol::Sealed, Some(file)) => {
            TapProtocol::Sealed(read_key(file).map_err(|error| format!("--key-file: {error}"))?)
        }
        (Protocol::Sealed, None) => {
            return Err("--protocol sealed needs --key-file: the key of this participant".into());
        }
        (Protocol::Mold | Protocol::Plain, Some(_)) => {
            return Err("--key-file: only datagrams of --protocol sealed have a key".into());
        }
    };
    if args.address.port() == 0 {
        let why = format!(
            "{}: nobody can send to port 0; name the port that the feed goes to",
            args.address
        );
        return Err(why.into());
    }
    if args.lifeline {
        process::end_with_stdin()?;
    }
    interrupt::install()?;
    let settings = TapSettings {
        protocol,
        request: args.request,
        interface: args.interface,
        from: args.from,
        gap_timeout: args.gap_timeout,
        drop: args.drop,
        seed: args.seed,
        receive_buffer_bytes: args.receive_buffer,
        ..TapSettings::new(args.address)
    };
    let mut tap = Tap::open(&settings)?;
    let out = args.write.as_ref().map(|path| {
        File::create(path).map(BufWriter::new).map_err(|e| format!("{}: {e}", path.display()))
    });
    let hash = ContentHash::new(1);
    let mut taking = Taking { args, hash, out: out.transpose()?, first: None, last: None };
    let ended = follow(&mut tap, &mut taking)?;
    taking.finish()?;
    let took = taking.first.zip(taking.last).map(|(first, last)| last.since(first));
    let tapped = Tapped {
        status: tap.status(),
        content_hash: taking.hash.finish_hex(),
        seconds: took.unwrap_or_default().as_secs_f64(),
        ended,
    };
    show(args, &tapped)?;
    match (tapped.status.messages, tapped.status.refused) {
        (0, 0) => Err(format!("no message came to {}", args.address).into()),
        (0, refused) => {
            let why = format!(
                "no message came to {}, and {refused} datagrams were refused: is --protocol that \
                 of the gateway, and --key-file the key of this participant?",
                args.address
            );
            Err(why.into())
        }
        _ => Ok(()),
    }
}

/// Takes messages until the feed ends. Returns why it ended.
fn follow(
    tap: &mut Tap,
    taking: &mut Taking<'_>,
) -> Result<&'static str, Box<dyn std::error::Error>> {
    let args = taking.args;
    let mut heard = MonotonicClock::now();
    loop {
        let until = args.silence.map_or(Timestamp::MAX, |silence| heard + silence);
        match tap.next(until)? {
            TapEvent::Message { sequence, format, bytes } => {
                heard = MonotonicClock::now();
                taking.take(sequence, format, &bytes)?;
            }
            TapEvent::Lost(lost) => {
                let (count, first, last) = (lost.end - lost.start, lost.start, lost.end - 1);
                aside!("evenfall: lost {count} messages, sequences {first} to {last}");
            }
            TapEvent::Note(text) => aside!("evenfall: {text}"),
            TapEvent::End => return Ok("the session ended"),
            TapEvent::Quiet if interrupt::raised() => return Ok("stopped by a signal"),
            TapEvent::Quiet => return Ok("no message came any more"),
        }
    }
}

fn show(args: &Args, tapped: &Tapped) -> Outcome {
    if args.json {
        say!("{}", serde_json::to_string(tapped)?);
        return Ok(());
    }
    let Tapped { status, content_hash, seconds, ended } = tapped;
    say!(
        "{ended}: {} messages in {seconds:.1} s, {} lost, {} gaps, {} messages after {} requests",
        status.messages,
        status.lost,
        status.gaps,
        status.rerequested,
        status.requests
    );
    if status.dropped > 0 {
        say!("{} datagrams were lost on purpose (--drop)", status.dropped);
    }
    if status.refused > 0 {
        say!("{} datagrams were not of this feed", status.refused);
    }
    say!("blake3 of the messages: {content_hash}");
    Ok(())
}
