//! `evenfall store append`: a feed file into the store, or two sides of one feed as one.

mod records;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use evenfall_feed_formats::arbiter::{Arbiter, Counts, Event, Limits, Side};
use evenfall_feed_formats::{Message, Source};
use evenfall_feed_service::input;
use evenfall_multicast_recorder::recording::{Recorder, Replay, arrival_of, streams};
use evenfall_store_engine::{Level, Store};
use evenfall_store_format::ordering::{Offered, Ordering, OrderingConfig};
use evenfall_store_format::schema::{Arrival, Sides};

use super::backing::Backing;
use super::{feed_of, open_as};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Arguments of `evenfall store append`.
#[derive(clap::Args, Debug)]
pub struct Append {
    /// The store's directory; made when it is not there. With --csv also tcp://127.0.0.1:7410 of a
    /// server.
    dir: PathBuf,
    /// Name of the recording.
    name: String,
    /// The feed: ITCH 5.0, pcap or LOBSTER.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Records of a file that `store create` made, as `store read` prints them; - for standard
    /// input. Its header names the columns.
    #[arg(long, conflicts_with_all = ["feed", "arbitrate", "sides", "window"])]
    csv: Option<PathBuf>,
    /// The capture holds sides A and B of one CME MDP 3.0 feed: record the first copy of each
    /// packet, in order of the packets' numbers and under the venue's sending time.
    #[arg(long, conflicts_with_all = ["sides", "window"])]
    arbitrate: bool,
    #[command(flatten)]
    arrival: ArrivalArgs,
    /// memory, local, replica or object.
    #[arg(long, default_value = "local")]
    ack: Level,
    #[command(flatten)]
    backing: Backing,
}

/// How records come; what `store create` has said of a file need not be said again.
#[derive(clap::Args, Debug)]
pub struct ArrivalArgs {
    /// What becomes of sides A and B of a capture of one feed: one recording (as --arbitrate), or
    /// two, NAME-a and NAME-b, each as it was captured.
    #[arg(long, value_parser = sides)]
    sides: Option<Sides>,
    /// Sort what goes back in time by no more than this, such as 1s; drop copies (by the packet's
    /// number, where there are sides); refuse what comes later. What waits in the window is not
    /// acknowledged.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    window: Option<Duration>,
}

fn sides(word: &str) -> Result<Sides, String> {
    match word {
        "one" => Ok(Sides::One),
        "apart" => Ok(Sides::Apart),
        _ => Err("one or apart".into()),
    }
}

impl ArrivalArgs {
    /// As a property of a file.
    pub fn arrival(&self) -> Arrival {
        let window_ns = self.window.map_or(0, |window| window.as_nanos());
        let window_ns = u64::try_from(window_ns).unwrap_or(u64::MAX);
        Arrival { window_ns, sides: self.sides, ..Arrival::default() }
    }

    /// Names of the recordings of a feed that comes like this.
    pub fn names(name: &str, arrival: &Arrival) -> Vec<String> {
        match arrival.sides {
            Some(Sides::Apart) => vec![format!("{name}-a"), format!("{name}-b")],
            _ => vec![name.to_owned()],
        }
    }
}

/// Refused messages that are named one by one; the others are counted.
const NAMED_MAX: u64 = 10;

/// Runs it.
pub fn append(args: &Append) -> Outcome {
    let address = args.dir.to_str().and_then(|place| place.strip_prefix("tcp://"));
    if let (Some(table), Some(address)) = (&args.csv, address) {
        let client = super::connect(address)?;
        return records::append_to_server(client, &args.name, table, args.ack);
    }
    if let Some(table) = &args.csv {
        let store = open_as(args.backing.config(&args.dir)?)?;
        let taken = records::append(&store, &args.name, table, args.ack);
        store.close()?;
        return taken;
    }
    let feed = args.feed.as_ref().ok_or(
        "what is to be appended? Give --feed FILE for a recording, or --csv FILE for the records \
         of a file that `store create` made",
    )?;
    let config = args.backing.config(&args.dir)?;
    let mut messages = input::open(&feed_of(feed))?;
    let store = open_as(config)?;
    let taken = record(args, &mut messages, &store);
    store.close()?;
    taken
}

fn record(args: &Append, messages: &mut dyn Source, store: &Store) -> Outcome {
    let arrival = arrival_of_both(args, store)?;
    let names = ArrivalArgs::names(&args.name, &arrival);
    let is_apart = arrival.sides == Some(Sides::Apart);
    let mut tapes = Vec::new();
    for name in &names {
        for stream in streams(store, name)? {
            let mut there = Replay::new(store, name, stream, i64::MIN..=i64::MAX)?;
            if there.next_message()?.is_some() {
                return Err(format!("there is a recording {name} already: choose a name").into());
            }
        }
        let recorder = Recorder::with_arrival(store, name, 1, args.ack, arrival.clone())?;
        tapes.push(Tape::new(recorder, arrival.window_ns));
    }
    let taken = match (arrival.sides == Some(Sides::One), is_apart) {
        (true, _) => arbitrated(messages, &mut tapes[0].recorder),
        (_, true) => apart(messages, &mut tapes),
        _ => whole(messages, &mut tapes[0]),
    };
    // What came before a damage is recorded, and the damage is said.
    let mut refused = 0;
    for (name, tape) in names.iter().zip(&mut tapes) {
        tape.finish()?;
        println!("{} messages recorded as {name}", tape.recorder.messages());
        refused += tape.window.as_ref().map_or(0, Window::say_counts);
    }
    match refused {
        0 => taken,
        _ => taken.and(Err(format!(
            "{refused} messages came later than the window and were refused: give a longer --window"
        )
        .into())),
    }
}

/// What the recording was created with, or what the command says; not one thing and another.
fn arrival_of_both(args: &Append, store: &Store) -> Result<Arrival, Failure> {
    let mut said = args.arrival.arrival();
    if args.arbitrate {
        said.sides = Some(Sides::One);
    }
    let created = match arrival_of(store, &args.name)? {
        None => arrival_of(store, &format!("{}-a", args.name))?,
        there => there,
    };
    match created {
        None => Ok(said),
        Some(created) if said == Arrival::default() || said == created => Ok(created),
        Some(_) => Err(format!(
            "{} was created with another window or other sides: leave --window, --sides and \
             --arbitrate away, or choose a name",
            args.name
        )
        .into()),
    }
}

/// A window for what comes late, and what it refused.
struct Window {
    ordering: Ordering,
    refused: u64,
}

impl Window {
    /// Of no width none.
    fn of(window_ns: u64) -> Option<Self> {
        let config = OrderingConfig { window_ns, ..OrderingConfig::default() };
        (window_ns > 0).then(|| Self { ordering: Ordering::new(config), refused: 0 })
    }

    /// Takes a record; `what` names it where it comes too late.
    fn offer(&mut self, what: impl Display, sequence: u64, time_ns: i64, record: Bytes) {
        if let Offered::TooLate { limit_ns, .. } = self.ordering.offer(time_ns, sequence, record) {
            self.refused += 1;
            if self.refused <= NAMED_MAX {
                eprintln!("refused: {what} of {time_ns} ns, behind {limit_ns} ns");
            }
        }
    }

    /// The next record whose turn it is.
    fn poll(&mut self) -> Option<Bytes> {
        self.ordering.poll()
    }

    /// The next record, once nothing more comes.
    fn drain(&mut self) -> Option<Bytes> {
        self.ordering.drain()
    }

    /// Says what it did; gives how much it refused.
    fn say_counts(&self) -> u64 {
        let counts = self.ordering.counts();
        println!(
            "{} came out of order, {} copies, {} refused, {} given out early",
            counts.reordered, counts.duplicates, counts.too_late, counts.early
        );
        self.refused
    }
}

/// A recording that is written, perhaps behind a window.
struct Tape<'a> {
    recorder: Recorder<'a>,
    window: Option<Window>,
    /// Number of the next message.
    next: u64,
}

impl<'a> Tape<'a> {
    fn new(recorder: Recorder<'a>, window_ns: u64) -> Self {
        Self { recorder, window: Window::of(window_ns), next: 0 }
    }

    /// Takes a message; its sequence tells copies, and sorts equal times.
    fn take(&mut self, sequence: u64, time_ns: i64, bytes: &[u8]) -> Outcome {
        let Some(window) = &mut self.window else { return self.push(time_ns, bytes) };
        let held = [&time_ns.to_le_bytes(), bytes].concat();
        window.offer(format_args!("message {sequence}"), sequence, time_ns, held.into());
        while let Some(held) = self.window.as_mut().and_then(Window::poll) {
            self.push_held(&held)?;
        }
        Ok(())
    }

    fn push_held(&mut self, held: &[u8]) -> Outcome {
        let Some((time, bytes)) = held.split_first_chunk::<8>() else { return Ok(()) };
        self.push(i64::from_le_bytes(*time), bytes)
    }

    fn push(&mut self, time_ns: i64, bytes: &[u8]) -> Outcome {
        self.recorder.push(0, self.next, time_ns, bytes)?;
        self.next += 1;
        Ok(())
    }

    /// Everything taken is recorded when it returns.
    fn finish(&mut self) -> Outcome {
        while let Some(held) = self.window.as_mut().and_then(Window::drain) {
            self.push_held(&held)?;
        }
        Ok(self.recorder.flush()?)
    }
}

fn whole(messages: &mut dyn Source, tape: &mut Tape<'_>) -> Outcome {
    while let Some(message) = messages.next_message()? {
        let time_ns = i64::try_from(message.time_ns).unwrap_or(i64::MAX);
        tape.take(message.index, time_ns, &message.bytes)?;
    }
    Ok(())
}

/// Each side as it was captured, under the capture's times; behind a window, under the venue's.
fn apart(messages: &mut dyn Source, tapes: &mut [Tape<'_>]) -> Outcome {
    let mut channels = Vec::new();
    while let Some(message) = messages.next_message()? {
        let tape = match side_of(&message, &mut channels)? {
            Side::A => &mut tapes[0],
            Side::B => &mut tapes[1],
        };
        let (mut sequence, mut time_ns) = (message.index, message.time_ns);
        if tape.window.is_some() {
            (sequence, time_ns) = packet_head(&message.bytes)
                .ok_or_else(|| format!("message {} is no packet of MDP 3.0", message.index))?;
        }
        tape.take(sequence, i64::try_from(time_ns).unwrap_or(i64::MAX), &message.bytes)?;
    }
    Ok(())
}

/// Number and sending time of a packet of MDP 3.0, its first twelve bytes.
fn packet_head(bytes: &[u8]) -> Option<(u64, u64)> {
    let (sequence, rest) = bytes.split_first_chunk::<4>()?;
    let sent_ns = rest.first_chunk::<8>()?;
    Some((u32::from_le_bytes(*sequence).into(), u64::from_le_bytes(*sent_ns)))
}

/// Which side a channel is: the first that sends is A.
fn side_of(message: &Message, channels: &mut Vec<u32>) -> Result<Side, Failure> {
    if !channels.contains(&message.shard_key) {
        channels.push(message.shard_key);
    }
    match channels.iter().position(|channel| *channel == message.shard_key) {
        Some(0) => Ok(Side::A),
        Some(1) => Ok(Side::B),
        _ => Err("a third channel: only the two sides of one feed can be told apart".into()),
    }
}

fn arbitrated(messages: &mut dyn Source, recorder: &mut Recorder<'_>) -> Outcome {
    let mut arbiter = Arbiter::new(None, Limits::default());
    let mut channels = Vec::new();
    while let Some(message) = messages.next_message()? {
        let side = side_of(&message, &mut channels)?;
        let (sequence, _) = packet_head(&message.bytes)
            .ok_or_else(|| format!("message {} is no packet of MDP 3.0", message.index))?;
        arbiter.offer(side, sequence, message.bytes);
        take(&mut arbiter, recorder)?;
    }
    // What neither side has will not come any more.
    while arbiter.held().0 > 0 {
        arbiter.abandon();
        take(&mut arbiter, recorder)?;
    }
    let Counts { first_a, first_b, ignored, lost, .. } = arbiter.counts();
    println!("{first_a} came first by side A, {first_b} by side B; {ignored} copies, {lost} lost");
    Ok(())
}

/// Records what is in order now.
fn take(arbiter: &mut Arbiter, recorder: &mut Recorder<'_>) -> Outcome {
    while let Some(event) = arbiter.poll() {
        match event {
            Event::Message { sequence, bytes } => {
                let (_, sent_ns) = packet_head(&bytes).unwrap_or_default();
                let sent_ns = i64::try_from(sent_ns).unwrap_or(i64::MAX);
                recorder.push(0, sequence, sent_ns, &bytes)?;
            }
            Event::Gap(_) => {}
            Event::Lost(range) => {
                eprintln!("lost: packets {} to {}, by both sides", range.start, range.end - 1);
            }
        }
    }
    Ok(())
}
