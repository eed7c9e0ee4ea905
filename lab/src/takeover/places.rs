//! The places of authors: each is in the feed once, in order, under the number of its answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use evenfall_sim::{NodeIndex, Run, SimTime};

use super::checks::Check;

/// First byte of a message of an author. A message of the roots' owner begins with the number of
/// the root.
const TAG: u8 = b'A';
/// Bytes of a message of an author.
const BYTES: usize = 21;

/// The message of a place.
pub fn message(author: NodeIndex, place: u64, at: SimTime) -> Vec<u8> {
    let mut message = vec![TAG];
    message.extend(author.0.to_le_bytes());
    message.extend(place.to_le_bytes());
    message.extend(at.nanos().to_le_bytes());
    message
}

/// The author, the place and the time of publication of a message.
pub fn read(message: &[u8]) -> Option<(NodeIndex, u64, SimTime)> {
    if message.len() != BYTES || message[0] != TAG {
        return None;
    }
    let word = |at: usize| message[at..at + 8].try_into().map(u64::from_le_bytes);
    let author = u32::from_le_bytes(message[1..5].try_into().ok()?);
    Some((NodeIndex(author), word(5).ok()?, SimTime::from_nanos(word(13).ok()?)))
}

/// One author.
#[derive(Debug, Default)]
struct Line {
    published: Vec<Vec<u8>>,
    /// The numbers of the first places, as the author was told.
    numbers: Vec<u64>,
    is_over: bool,
}

/// All authors of a run.
#[derive(Debug)]
pub struct Places {
    lines: BTreeMap<NodeIndex, Line>,
}

impl Places {
    /// Authors that have published nothing.
    pub fn new(authors: core::ops::Range<u32>) -> Self {
        Self { lines: authors.map(|author| (NodeIndex(author), Line::default())).collect() }
    }

    fn line(&mut self, author: NodeIndex) -> &mut Line {
        self.lines.entry(author).or_default()
    }

    /// The place of the next message.
    pub fn published(&mut self, author: NodeIndex) -> u64 {
        self.line(author).published.len() as u64
    }

    /// An author published a message.
    pub fn publish(&mut self, author: NodeIndex, message: Vec<u8>) {
        self.line(author).published.push(message);
    }

    /// An author learned the number of a place. Returns the message of that place.
    pub fn answer(
        &mut self,
        author: NodeIndex,
        place: u64,
        number: u64,
    ) -> Result<Vec<u8>, String> {
        let line = self.line(author);
        let due = line.numbers.len() as u64;
        if place != due {
            return Err(format!("place {place} is answered when {due} is next"));
        }
        line.numbers.push(number);
        let message = line.published.get(place as usize).cloned();
        message.ok_or_else(|| format!("place {place} is answered and was not published"))
    }

    /// An author learned that its line is over.
    pub fn over(&mut self, author: NodeIndex) {
        self.line(author).is_over = true;
    }

    /// Compares the lines with the whole feed, by number.
    pub fn judge(&self, feed: &BTreeMap<u64, Bytes>, run: &mut Run<Check>) {
        let mut sent: BTreeMap<NodeIndex, Vec<u64>> = BTreeMap::new();
        for (number, message) in feed {
            let Some((author, place, _)) = read(message) else { continue };
            let numbers = sent.entry(author).or_default();
            let due = numbers.len() as u64;
            run.expect(Check::Places, place == due, || {
                format!("message {number} is place {place} of {author} when {due} is next")
            });
            numbers.push(*number);
        }
        let mut answered = 0;
        for (author, line) in &self.lines {
            let sent = sent.remove(author).unwrap_or_default();
            answered += line.numbers.len() as u64;
            run.expect(Check::Places, sent.starts_with(&line.numbers), || {
                let pairs = || line.numbers.iter().zip(&sent);
                let wrong = pairs().position(|(told, sent)| told != sent);
                format!("{author} was told another number of place {wrong:?} than the feed has")
            });
            let (published, numbers) = (line.published.len(), line.numbers.len());
            run.expect(Check::Answered, line.is_over && published == numbers, || {
                let over = line.is_over;
                format!("{author} has {numbers} numbers of {published}; the line is over: {over}")
            });
        }
        run.counts.push(("places answered", answered));
    }
}
