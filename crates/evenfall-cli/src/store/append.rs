//! `evenfall store append`: a feed file into the store, or two sides of one feed as one.

use std::path::PathBuf;

use evenfall_feed::arbiter::{Arbiter, Counts, Event, Limits, Side};
use evenfall_feed::{Message, Source};
use evenfall_node::input;
use evenfall_node::store::Level;
use evenfall_node::store::recording::{Recorder, streams};

use super::backing::Backing;
use super::{feed_of, open_as};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Arguments of `evenfall store append`.
#[derive(clap::Args, Debug)]
pub struct Append {
    /// The store's directory; made when it is not there.
    dir: PathBuf,
    /// Name of the recording.
    name: String,
    /// The feed: ITCH 5.0, pcap or LOBSTER.
    #[arg(long)]
    feed: PathBuf,
    /// The capture holds sides A and B of one CME MDP 3.0 feed: record the first copy of each
    /// packet, in order of the packets' numbers and under the venue's sending time.
    #[arg(long)]
    arbitrate: bool,
    /// memory, local or object.
    #[arg(long, default_value = "local")]
    ack: Level,
    #[command(flatten)]
    backing: Backing,
}

/// Runs it.
pub fn append(args: &Append) -> Outcome {
    let mut messages = input::open(&feed_of(&args.feed))?;
    let store = open_as(args.backing.config(&args.dir)?)?;
    if !streams(&store, &args.name)?.is_empty() {
        store.close()?;
        return Err(format!("there is a recording {} already: choose a name", args.name).into());
    }
    let mut recorder = Recorder::new(&store, &args.name, 1, args.ack)?;
    let taken = match args.arbitrate {
        true => arbitrated(&mut messages, &mut recorder),
        false => whole(&mut messages, &mut recorder),
    };
    // What came before a damage is recorded, and the damage is said.
    recorder.flush()?;
    println!("{} messages recorded as {}", recorder.messages(), args.name);
    drop(recorder);
    store.close()?;
    taken
}

fn whole(messages: &mut dyn Source, recorder: &mut Recorder<'_>) -> Outcome {
    while let Some(message) = messages.next_message()? {
        let time_ns = i64::try_from(message.time_ns).unwrap_or(i64::MAX);
        recorder.push(0, message.index, time_ns, &message.bytes)?;
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
        _ => Err("a third channel: --arbitrate takes the two sides of one feed".into()),
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
