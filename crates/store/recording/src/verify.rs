//! A recording compared with its feed.

use evenfall_feed_formats::MessageSource;
use evenfall_feed_formats::sharding::{ContentHash, trees_of};
use evenfall_store_engine::{RecordSource, StoreError};

use crate::catalog::Catalog;
use crate::replay::StreamReplay;

/// The comparison of a recording with a feed.
#[derive(Debug, Default)]
pub struct FeedComparison {
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
struct ComparedStream<'a> {
    replay: StreamReplay<'a>,
    next: Option<u64>,
    ended: bool,
}

impl ComparedStream<'_> {
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
pub fn compare_with_feed(
    source: &dyn RecordSource,
    name: &str,
    feed: &mut dyn MessageSource,
) -> Result<FeedComparison, Box<dyn std::error::Error>> {
    let catalog = Catalog::read(source)?;
    let Some(trees) = trees_of_recording(&catalog, name) else {
        let there: Vec<&str> = catalog.recordings().map(|there| &there.name[..]).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Err(format!("there is no recording {name}; recordings here: {there}").into());
    };
    let mut all = Vec::new();
    for stream in 0..trees {
        let replay = StreamReplay::new(source, name, stream, i64::MIN..=i64::MAX)?;
        all.push(ComparedStream { replay, next: None, ended: false });
    }
    let mut seen = FeedComparison::default();
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
pub fn content_hash(
    source: &dyn RecordSource,
    name: &str,
) -> Result<(u64, String), Box<dyn std::error::Error>> {
    let trees = trees_of_recording(&Catalog::read(source)?, name).unwrap_or(1);
    let mut hash = ContentHash::new(trees as usize);
    for stream in 0..trees {
        let mut replay = StreamReplay::new(source, name, stream, i64::MIN..=i64::MAX)?;
        while let Some(message) = replay.next_message()? {
            hash.update(stream as usize, &message.bytes);
        }
    }
    Ok((hash.messages(), hash.finish_hex()))
}

/// Trees of the run that made a recording: a stream of each.
fn trees_of_recording(catalog: &Catalog, name: &str) -> Option<u32> {
    Some(catalog.recording(name)?.streams().max()? + 1)
}
