//! Publishers that are processes of their own.
//!
//! A publisher in the process of the root dies with the root. A publisher in a process of its own
//! outlives the root, and goes on with the next root. Such a publisher is a [`ProducerSession`]
//! here. It numbers its messages from 0: the **place** of a message in the author's **line**. The
//! roots give each message a second number, which is the number in the feed. A line lasts as long
//! as the process of its author. All processes that publish under one **name** have one line after
//! the other.
//!
//! ```text
//!  publisher ──ProduceRequest: 7 to 9──> leading root: is place 7 the next one of this line?
//!    ^                                      │ frame, with the marks (author, place, count)
//!    │                                      v
//!    │                        the order of the voters ──> ProducerTable of every voter
//!    │                                      │ taken
//!    └─ProduceResponse: they are 40 to 42───┘
//! ```
//!
//! The obvious way fails: a leading root that remembers what it took from an author takes this
//! memory with it when it dies. Its successor then cannot tell a message that was sent again from a
//! new message. So the marks of a frame are part of what the voters agree on:
//!
//! - **A place is in the feed once.** Every voter refuses a frame whose marks are not the next
//!   places of their lines. A root that leads takes a message only when its place is the next one.
//!   When the lead changes, the new root goes on from the lines that the voters agreed on, and
//!   nothing that an earlier root had taken counts any more.
//! - **An answer is final.** A root answers with the numbers of agreed frames alone. Every later
//!   root has these frames and gives the same answer.
//! - **An author sends again** from the first place that has no answer, to the root that leads. A
//!   place that is in the feed already is answered with its number and not taken again.
//! - **The end of a line** is agreed on as well, so that every later root knows that the author has
//!   finished.
//! - **The begin of a line** is agreed on before the line has a message, and ends the earlier lines
//!   of the same name. So a process that was started again learns how many messages of its name are
//!   in the feed, and no message of the process before it can follow.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | the datagrams between authors and roots |
//! | [`session`] | the machine of an author |
//! | [`ingress`] | a root's side: admits messages and answers |

pub mod ingress;
pub mod session;
pub mod wire;

use std::collections::{BTreeMap, VecDeque};

use evenfall_multicast_machine::ProducerMark;

pub use ingress::{ProducerIngress, ProducerList, letter_key};
pub use session::{ProducerEvent, ProducerSession};

/// Messages of an author that may have no answer yet. The roots keep the numbers of as many places,
/// so that a lost answer can be given again. At a vote of five milliseconds, an author publishes
/// 200,000 messages a second.
pub const WINDOW: usize = 1_024;
/// Lines of a run. A publisher that is started again is another author with another line.
/// The numbers that the roots keep for as many lines take 2 MiB.
pub const LINES_MAX: usize = 256;

/// Places that follow each other, with numbers in the feed that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedRange {
    /// The first place.
    pub place: u64,
    /// The number of that message in the feed.
    pub number: u64,
    /// The number of messages.
    pub count: u32,
}

/// One author as the voters know it.
#[derive(Clone, Debug, Default)]
struct ProducerEntry {
    /// The name that the author shares with the processes before it; 0 when it has none.
    name: u64,
    /// Messages in the earlier lines of the name.
    base: u64,
    /// The place that is taken next.
    next: u64,
    /// The numbers of the last places, at most [`WINDOW`].
    numbers: VecDeque<u64>,
    /// Whether no message follows.
    is_over: bool,
    /// Whether the author itself has ended the line.
    is_finished: bool,
}

/// A change of an author, on which the voters agree before it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// The line of an author begins.
    Begin {
        /// The author.
        author: u64,
        /// The name of the author; 0 for none.
        name: u64,
    },
    /// No message of an author follows behind this many.
    End {
        /// The author.
        author: u64,
        /// The number of messages.
        places: u64,
    },
}

impl SessionChange {
    /// The author.
    pub fn author(&self) -> u64 {
        let (Self::Begin { author, .. } | Self::End { author, .. }) = self;
        *author
    }
}

/// The lines of all authors as the voters agreed on them.
#[derive(Clone, Debug, Default)]
pub struct ProducerTable {
    lines: BTreeMap<u64, ProducerEntry>,
}

impl ProducerTable {
    /// The next place of an author.
    pub fn next(&self, author: u64) -> u64 {
        self.lines.get(&author).map_or(0, |line| line.next)
    }

    /// Whether no message of this author follows.
    pub fn is_over(&self, author: u64) -> bool {
        self.lines.get(&author).is_some_and(|line| line.is_over)
    }

    /// The name of an author; 0 for none.
    pub fn name(&self, author: u64) -> u64 {
        self.lines.get(&author).map_or(0, |line| line.name)
    }

    /// Whether an author of this name is known. 0 is no name.
    pub fn has(&self, name: u64) -> bool {
        name != 0 && self.lines.values().any(|line| line.name == name)
    }

    /// The messages in the earlier lines of this author's name.
    pub fn base(&self, author: u64) -> u64 {
        self.lines.get(&author).map_or(0, |line| line.base)
    }

    /// Whether an author of this name has said that no message follows.
    pub fn has_finished(&self, name: u64) -> bool {
        self.lines.values().any(|line| line.name == name && line.is_finished)
    }

    /// The authors that have said that no message follows.
    pub fn finished(&self) -> usize {
        self.lines.values().filter(|line| line.is_finished).count()
    }

    /// Whether this author has said that no message follows.
    pub fn is_finished(&self, author: u64) -> bool {
        self.lines.get(&author).is_some_and(|line| line.is_finished)
    }

    /// Whether an author is known.
    pub fn knows(&self, author: u64) -> bool {
        self.lines.contains_key(&author)
    }

    /// The number of known authors.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether no author is known.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether the messages of a frame with these marks are the next ones of their lines.
    pub fn fits(&self, marks: &[ProducerMark]) -> bool {
        let mut ahead: BTreeMap<u64, u64> = BTreeMap::new();
        for mark in marks.iter().filter(|mark| mark.author != 0) {
            let next = ahead.entry(mark.author).or_insert_with(|| self.next(mark.author));
            let is_open = self.knows(mark.author) && !self.is_over(mark.author);
            if *next != mark.place || !is_open {
                return false;
            }
            *next += u64::from(mark.count);
        }
        true
    }

    /// Takes the messages of a frame that [fits](Self::fits). `first_message` is its first number.
    pub fn take(&mut self, marks: &[ProducerMark], first_message: u64) {
        let mut number = first_message;
        for mark in marks {
            let end = number + u64::from(mark.count);
            if mark.author != 0 {
                let line = self.lines.entry(mark.author).or_default();
                line.next += u64::from(mark.count);
                line.numbers.extend(number..end);
                let excess = line.numbers.len().saturating_sub(WINDOW);
                line.numbers.drain(..excess);
            }
            number = end;
        }
    }

    /// Grants the change of an author. Returns whether the change holds, and holds for the first
    /// time.
    pub fn grant(&mut self, change: &SessionChange) -> bool {
        match *change {
            SessionChange::Begin { author, name } => self.begin(author, name),
            SessionChange::End { author, places } => self.end(author, places),
        }
    }

    /// Begins the line of an author, and ends the lines of the processes before it.
    fn begin(&mut self, author: u64, name: u64) -> bool {
        if author == 0 || self.knows(author) || self.lines.len() >= LINES_MAX {
            return false;
        }
        let mut base = 0;
        for earlier in self.lines.values_mut().filter(|line| name != 0 && line.name == name) {
            base += earlier.next;
            earlier.is_over = true;
            // Nobody is left who waits for these numbers.
            earlier.numbers = VecDeque::new();
        }
        self.lines.insert(author, ProducerEntry { name, base, ..ProducerEntry::default() });
        true
    }

    fn end(&mut self, author: u64, places: u64) -> bool {
        let line = self.lines.get_mut(&author);
        let Some(line) = line.filter(|line| line.next == places && !line.is_over) else {
            return false;
        };
        (line.is_over, line.is_finished) = (true, true);
        true
    }

    /// The numbers of the places from `from` on, in at most `max` stretches.
    pub fn stretches(&self, author: u64, from: u64, max: usize) -> Vec<NumberedRange> {
        let mut all: Vec<NumberedRange> = Vec::new();
        let Some(line) = self.lines.get(&author) else { return all };
        let kept = line.next - line.numbers.len() as u64;
        let skipped = from.saturating_sub(kept) as usize;
        for (place, number) in (kept.max(from)..).zip(line.numbers.iter().skip(skipped)) {
            let is_full = all.len() == max;
            match all.last_mut() {
                Some(last) if last.number + u64::from(last.count) == *number => last.count += 1,
                _ if is_full => break,
                _ => all.push(NumberedRange { place, number: *number, count: 1 }),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
