//! `evenfall store verify`: checks that every byte is as it was written, and that a recording
//! equals its feed.

use std::path::PathBuf;

use evenfall_feed_formats::Source;
use evenfall_feed_formats::sharding::{ContentHash, trees_of};
use evenfall_feed_service::input;
use evenfall_multicast_recorder::recording::{Replay, names, streams};
use evenfall_store_engine::{Archive, RecordSource, StoreError, seal};

use super::{expect_store, feed_of, objects_at, open_to_read};
use crate::Outcome;

/// Arguments of `evenfall store verify`.
#[derive(clap::Args, Debug)]
pub struct Verify {
    /// The store's directory; with --objects, the directory of its objects.
    dir: PathBuf,
    /// Check only the objects.
    #[arg(long)]
    objects: bool,
    /// Compare a recording with this feed, byte for byte.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Name of the recording.
    #[arg(long, default_value = "feed")]
    name: String,
    /// The store was left by a crash: accept a torn end of a journal, and a recording that ends
    /// before its feed.
    #[arg(long)]
    partial: bool,
}

/// The comparison of a recording with a feed.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Messages that are equal, from the first on, in each stream.
    pub equal: u64,
    /// Messages of the feed that are not recorded.
    pub missing: u64,
    /// Messages recorded after a missing one, which a crash took.
    pub behind_gap: u64,
    /// The first difference, in words.
    pub difference: Option<String>,
    /// Hash of the feed.
    pub hash: String,
}

/// One stream while it is compared.
struct Stream<'a> {
    replay: Replay<'a>,
    next: Option<u64>,
    ended: bool,
}

impl Stream<'_> {
    /// The next message that follows without a gap. Messages after a gap are counted.
    fn next_message(&mut self, behind_gap: &mut u64) -> Result<Option<Vec<u8>>, StoreError> {
        if self.ended {
            return Ok(None);
        }
        let Some(message) = self.replay.next_message()? else {
            self.ended = true;
            return Ok(None);
        };
        if self.next.is_some_and(|next| next != message.number) {
            self.ended = true;
            *behind_gap += 1;
            while self.replay.next_message()?.is_some() {
                *behind_gap += 1;
            }
            return Ok(None);
        }
        self.next = Some(message.number + 1);
        Ok(Some(message.bytes))
    }
}

/// Compares the recording with the feed, message by message.
pub fn compare(
    source: &dyn RecordSource,
    name: &str,
    feed: &mut dyn Source,
) -> Result<Comparison, Box<dyn std::error::Error>> {
    let numbers = streams(source, name)?;
    let Some(trees) = numbers.last().map(|last| last + 1) else {
        let there = names(source)?.join(", ");
        let there =
            if there.is_empty() { "there are none".into() } else { format!("there are: {there}") };
        return Err(format!("there is no recording {name}: name it with --name; {there}").into());
    };
    let mut all = Vec::new();
    for stream in 0..trees {
        let replay = Replay::new(source, name, stream, i64::MIN..=i64::MAX)?;
        all.push(Stream { replay, next: None, ended: false });
    }
    let mut seen = Comparison::default();
    let mut hash = ContentHash::new(trees as usize);
    while let Some(message) = feed.next_message()? {
        for stream in trees_of(message.shard_key, trees) {
            hash.update(stream as usize, &message.bytes);
            match all[stream as usize].next_message(&mut seen.behind_gap)? {
                Some(bytes) if bytes == message.bytes => seen.equal += 1,
                Some(_) => {
                    let index = message.index;
                    let what =
                        format!("message {index} of the feed has other content in stream {stream}");
                    seen.difference = Some(what);
                    return Ok(seen);
                }
                None => seen.missing += 1,
            }
        }
    }
    seen.hash = hash.finish_hex();
    for (at, stream) in all.iter_mut().enumerate() {
        if stream.next_message(&mut seen.behind_gap)?.is_some() {
            seen.difference = Some(format!("stream {at} goes on behind the end of the feed"));
        }
    }
    Ok(seen)
}

/// Hash of a recording, computed as the demo and its receivers compute the hash of a feed.
pub fn hash_of(
    source: &dyn RecordSource,
    name: &str,
) -> Result<(u64, String), Box<dyn std::error::Error>> {
    let trees = streams(source, name)?.last().map_or(1, |last| last + 1);
    let mut hash = ContentHash::new(trees as usize);
    for stream in 0..trees {
        let mut replay = Replay::new(source, name, stream, i64::MIN..=i64::MAX)?;
        while let Some(message) = replay.next_message()? {
            hash.update(stream as usize, &message.bytes);
        }
    }
    Ok((hash.messages(), hash.finish_hex()))
}

pub fn verify(args: &Verify) -> Outcome {
    let seen = match args.objects {
        true => seal::verify_archive(&objects_at(&args.dir)?)?,
        false => {
            expect_store(&args.dir)?;
            seal::verify_directory(&args.dir)?
        }
    };
    if args.objects && seen.bytes == 0 {
        return Err(format!("{}: no object is there to verify", args.dir.display()).into());
    }
    let commits = if seen.commits == 1 { "commit" } else { "commits" };
    println!("{} segments, {} {commits}, {} bytes", seen.segments, seen.commits, seen.bytes);
    let mut damaged = 0;
    for finding in &seen.findings {
        let is_excused = finding.is_torn_end && args.partial;
        damaged += u64::from(!is_excused);
        let kind = if is_excused { "note: torn by the crash: " } else { "" };
        println!("  {kind}{}: {}", finding.place, finding.what);
    }
    for other in &seen.others {
        println!("  note: {other} is not a file of the store; its bytes prove nothing");
    }
    if damaged > 0 {
        let torn = seen.findings.iter().filter(|finding| finding.is_torn_end).count();
        let hint = match torn {
            0 => "",
            _ => "; a crash may leave this: --partial accepts torn ends",
        };
        return Err(format!("{damaged} places are not as they were written{hint}").into());
    }
    let Some(feed) = &args.feed else { return Ok(()) };
    let source: Box<dyn RecordSource> = match args.objects {
        true => Box::new(Archive::open(&objects_at(&args.dir)?)?),
        false => Box::new(open_to_read(&args.dir)?),
    };
    let mut feed = input::open(&feed_of(feed))?;
    judge(&compare(&*source, &args.name, &mut feed)?, args)
}

fn judge(seen: &Comparison, args: &Verify) -> Outcome {
    let (name, equal) = (&args.name, seen.equal);
    if let Some(difference) = &seen.difference {
        let words = format!("recording {name}: {equal} messages are equal, then {difference}");
        return Err(words.into());
    }
    if seen.missing == 0 {
        println!("recording {name} equals the feed: {equal} messages, blake3 {}", seen.hash);
        return Ok(());
    }
    let of = equal + seen.missing;
    let mut words = format!("recording {name} holds the first {equal} of {of} messages, equal");
    if seen.behind_gap > 0 {
        words.push_str(&format!("; {} more behind a gap", seen.behind_gap));
    }
    if !args.partial {
        return Err(format!("{words}; --partial accepts this after a crash").into());
    }
    println!("{words}");
    Ok(())
}
