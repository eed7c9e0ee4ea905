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
    /// The messages of all places, whichever process of the author published them.
    published: Vec<Vec<u8>>,
    /// The numbers of the first places, where a process of the author was told.
    numbers: Vec<Option<u64>>,
    /// The first place of the process that lives, once the roots have told it.
    base: Option<u64>,
    /// The place that the process publishes next.
    next: u64,
    is_over: bool,
}

/// All authors of a run.
#[derive(Debug)]
pub struct Places {
    lines: BTreeMap<NodeIndex, Line>,
    /// Starts of authors that had died.
    restarts: u64,
}

impl Places {
    /// Authors that have published nothing.
    pub fn new(authors: core::ops::Range<u32>) -> Self {
        let lines = authors.map(|author| (NodeIndex(author), Line::default())).collect();
        Self { lines, restarts: 0 }
    }

    fn line(&mut self, author: NodeIndex) -> &mut Line {
        self.lines.entry(author).or_default()
    }

    /// An author is started again.
    pub fn started_again(&mut self, author: NodeIndex) {
        self.restarts += 1;
        self.line(author).base = None;
    }

    /// The roots told a process of an author how many messages of the author are in the feed.
    pub fn begun(&mut self, author: NodeIndex, before: u64) -> Result<(), String> {
        let line = self.line(author);
        let (told, published) = (line.numbers.len() as u64, line.published.len() as u64);
        (line.base, line.next) = (Some(before), before);
        if !(told..=published).contains(&before) {
            return Err(format!("begins at place {before} behind {told} answers of {published}"));
        }
        line.numbers.resize(before as usize, None);
        Ok(())
    }

    /// The next message of an author whose line has begun: one that a process before has published
    /// and that is not in the feed, or else a new one.
    pub fn next(&mut self, author: NodeIndex, at: SimTime) -> Option<Vec<u8>> {
        let line = self.line(author);
        line.base?;
        let again = line.published.get(line.next as usize).cloned();
        Some(again.unwrap_or_else(|| message(author, line.next, at)))
    }

    /// Whether a process of an author has not published all again that a process before it had.
    pub fn is_behind(&mut self, author: NodeIndex) -> bool {
        let line = self.line(author);
        line.base.is_some() && line.next < line.published.len() as u64
    }

    /// An author published its next message.
    pub fn publish(&mut self, author: NodeIndex, message: Vec<u8>) {
        let line = self.line(author);
        if line.next == line.published.len() as u64 {
            line.published.push(message);
        }
        line.next += 1;
    }

    /// An author learned the number of a place. Returns the message of that place.
    pub fn answer(
        &mut self,
        author: NodeIndex,
        place: u64,
        number: u64,
    ) -> Result<Vec<u8>, String> {
        let line = self.line(author);
        let place = line.base.unwrap_or(0) + place;
        let due = line.numbers.len() as u64;
        if place != due {
            return Err(format!("place {place} is answered when {due} is next"));
        }
        line.numbers.push(Some(number));
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
            let differs = |(place, told): (usize, &Option<u64>)| {
                told.is_some_and(|told| sent.get(place) != Some(&told)).then_some(place)
            };
            let wrong = line.numbers.iter().enumerate().find_map(differs);
            let has_all = sent.len() >= line.numbers.len() && wrong.is_none();
            run.expect(Check::Places, has_all, || {
                format!("{author} was told another number of place {wrong:?} than the feed has")
            });
            let (published, numbers) = (line.published.len(), line.numbers.len());
            run.expect(Check::Answered, line.is_over && published == numbers, || {
                let over = line.is_over;
                format!("{author} has {numbers} numbers of {published}; the line is over: {over}")
            });
        }
        run.counts.push(("places answered", answered));
        run.counts.push(("authors started again", self.restarts));
    }
}
