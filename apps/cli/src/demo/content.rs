//! What the messages of receivers are compared with.
//!
//! A root that lives to its end says how many messages it sent, and their hash. A root that was
//! killed says nothing, and its log lacks the last messages that it sent. The messages of each
//! receiver are then compared with the beginning of the feed, up to as many messages of each tree
//! as the receiver released.

use std::collections::{BTreeMap, BTreeSet};

use evenfall_feed_formats::sharding::{ContentHash, trees_of};
use evenfall_feed_service::{Feed, input};
use serde_json::Value;

/// Messages of each tree.
type Counts = Vec<u64>;

/// What was sent.
pub enum SentContent {
    /// The messages with this hash.
    All(String),
    /// The beginning of this feed over so many trees, up to an unknown message.
    Beginning { feed: Box<Feed>, trees: u32 },
}

impl SentContent {
    /// Whether these receivers, by their summaries, released exactly what was sent.
    ///
    /// # Errors
    /// When the feed can no longer be read.
    pub fn are_equal(&self, summaries: &[Value]) -> Result<Vec<bool>, Box<dyn std::error::Error>> {
        let (feed, trees) = match self {
            Self::All(hash) => {
                let is_equal = |summary: &Value| summary["content_hash"] == hash.as_str();
                return Ok(summaries.iter().map(is_equal).collect());
            }
            Self::Beginning { feed, trees } => (feed, *trees),
        };
        let counts: Vec<Option<Counts>> = summaries.iter().map(released).collect();
        let wanted = counts.iter().flatten().cloned().collect();
        let hashes = beginnings(feed, trees, wanted)?;
        let judged = summaries.iter().zip(counts).map(|(summary, counts)| {
            // Nothing released agrees with every beginning, and proves nothing.
            let counts = counts.filter(|counts| counts.iter().any(|count| *count > 0));
            let hash = counts.and_then(|counts| hashes.get(&counts));
            hash.is_some_and(|hash| summary["content_hash"] == hash.as_str())
        });
        Ok(judged.collect())
    }
}

/// The released messages of each tree; `None` for a receiver without a summary.
fn released(summary: &Value) -> Option<Counts> {
    let trees = summary["trees"].as_array()?;
    let tally = |tree: &Value| {
        // A recorder's counters as a receiver are a part of its own.
        let receiver = tree.get("receiver").unwrap_or(tree);
        receiver["tally"]["released"].as_u64()
    };
    trees.iter().map(tally).collect()
}

/// The hashes of beginnings of a feed. A beginning that the feed is too short for has none.
fn beginnings(
    feed: &Feed,
    trees: u32,
    mut wanted: BTreeSet<Counts>,
) -> Result<BTreeMap<Counts, String>, Box<dyn std::error::Error>> {
    wanted.retain(|counts| counts.len() == trees as usize);
    let mut open: Vec<(Counts, ContentHash, u64)> = wanted
        .into_iter()
        .map(|counts| {
            let left = counts.iter().sum();
            (counts, ContentHash::new(trees as usize), left)
        })
        .collect();
    let mut source = input::open(feed)?;
    let mut taken = vec![0; trees as usize];
    let mut done = BTreeMap::new();
    loop {
        // Beginnings that are whole, among them that of no message.
        for (counts, hash, _) in open.extract_if(.., |(_, _, left)| *left == 0) {
            done.insert(counts, hash.finish_hex());
        }
        let next = if open.is_empty() { None } else { source.next_message()? };
        let Some(message) = next else { return Ok(done) };
        for tree in trees_of(message.shard_key, trees).map(|tree| tree as usize) {
            for (counts, hash, left) in &mut open {
                if taken[tree] < counts[tree] {
                    hash.update(tree, &message.bytes);
                    *left -= 1;
                }
            }
            taken[tree] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use evenfall_feed_service::Synthetic;
    use serde_json::json;

    use super::*;

    fn feed() -> Feed {
        let synthetic = Synthetic { messages: 500, ..Synthetic::default() };
        Feed { synthetic, rate: Some(1_000.0), ..Feed::default() }
    }

    fn summary(feed: &Feed, trees: u32, messages: usize) -> Value {
        let mut hash = ContentHash::new(trees as usize);
        let mut counts = vec![0; trees as usize];
        let mut source = input::open(feed).unwrap();
        for _ in 0..messages {
            let message = source.next_message().unwrap().unwrap();
            for tree in trees_of(message.shard_key, trees).map(|tree| tree as usize) {
                hash.update(tree, &message.bytes);
                counts[tree] += 1;
            }
        }
        let trees: Vec<Value> =
            counts.iter().map(|count| json!({ "tally": { "released": count } })).collect();
        json!({ "content_hash": hash.finish_hex(), "trees": trees })
    }

    #[test]
    fn receivers_of_a_killed_root_are_compared_with_the_beginning_of_the_feed() {
        let feed = feed();
        for trees in [1, 3] {
            let mut all: Vec<Value> =
                [1, 250, 250, 500, 0].map(|n| summary(&feed, trees, n)).into();
            all[2]["content_hash"] = "another".into();
            all.push(Value::Null);
            let sent = SentContent::Beginning { feed: Box::new(feed.clone()), trees };
            let judged = sent.are_equal(&all).unwrap();
            assert_eq!(judged, [true, true, false, true, false, false], "{trees} trees");
        }
    }

    #[test]
    fn more_messages_than_the_feed_has_are_no_beginning_of_it() {
        let (feed, mut longer) = (feed(), feed());
        longer.synthetic.messages = 600;
        let sent = SentContent::Beginning { feed: Box::new(feed), trees: 1 };
        assert_eq!(sent.are_equal(&[summary(&longer, 1, 600)]).unwrap(), [false]);
    }
}
