//! Publishers that are processes of their own.
//!
//! A publisher in the process of the root dies with the root. A publisher in a process of its own
//! outlives the root, and goes on with the next root. Such a publisher is an [`Author`] here. It
//! numbers its messages from 0: the **place** of a message in the author's **line**. The roots give
//! each message a second number, which is the number in the feed.
//!
//! ```text
//!  Author ──Say: places 7 to 9──> leading root: is place 7 the next one of this line?
//!    ^                               │ frame, with the marks (author, place, count)
//!    │                               v
//!    │                            the order of the voters ──> Lines of every voter
//!    │                               │ taken
//!    └──Answer: 7 to 9 are 40 to 42──┘
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
//!
//! | module | what it holds |
//! |---|---|
//! | [`letter`] | the datagrams between authors and roots |
//! | [`author`] | the machine of an author |
//! | [`reception`] | a root's side: admits messages and answers |

pub mod author;
pub mod letter;
pub mod reception;

use std::collections::{BTreeMap, VecDeque};

pub use author::{Author, AuthorEvent};
pub use reception::Reception;

/// Messages of an author that may have no answer yet. The roots keep the numbers of as many places,
/// so that a lost answer can be given again. At a vote of five milliseconds, an author publishes
/// 200,000 messages a second.
pub const WINDOW: usize = 1_024;
/// Authors of a run. A publisher that is started again is another author. The numbers that the
/// roots keep for as many authors take 2 MiB.
pub const LINES_MAX: usize = 256;

/// Messages in a frame that follow each other in the line of one author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The random number of the author; 0 for messages that are of no author.
    pub author: u64,
    /// The place of the first message.
    pub place: u64,
    /// The number of messages.
    pub count: u16,
}

/// Places that follow each other, with numbers in the feed that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first place.
    pub place: u64,
    /// The number of that message in the feed.
    pub number: u64,
    /// The number of messages.
    pub count: u32,
}

/// One author as the voters know it.
#[derive(Clone, Debug, Default)]
struct Line {
    /// The place that is taken next.
    next: u64,
    /// The numbers of the last places, at most [`WINDOW`].
    numbers: VecDeque<u64>,
    is_over: bool,
}

/// The lines of all authors as the voters agreed on them.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    lines: BTreeMap<u64, Line>,
}

impl Lines {
    /// The next place of an author.
    pub fn next(&self, author: u64) -> u64 {
        self.lines.get(&author).map_or(0, |line| line.next)
    }

    /// Whether no message of this author follows.
    pub fn is_over(&self, author: u64) -> bool {
        self.lines.get(&author).is_some_and(|line| line.is_over)
    }

    /// The authors whose lines are over.
    pub fn over(&self) -> usize {
        self.lines.values().filter(|line| line.is_over).count()
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
    pub fn fits(&self, marks: &[Mark]) -> bool {
        let mut ahead: BTreeMap<u64, u64> = BTreeMap::new();
        let mut known = self.lines.len();
        for mark in marks.iter().filter(|mark| mark.author != 0) {
            let next = ahead.entry(mark.author).or_insert_with(|| {
                known += usize::from(!self.knows(mark.author));
                self.next(mark.author)
            });
            if *next != mark.place || self.is_over(mark.author) {
                return false;
            }
            *next += u64::from(mark.count);
        }
        known <= LINES_MAX
    }

    /// Takes the messages of a frame that [fits](Self::fits). `first_message` is its first number.
    pub fn take(&mut self, marks: &[Mark], first_message: u64) {
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

    /// Ends the line of an author behind this many messages. Returns whether the line was not over
    /// and has so many messages.
    pub fn close(&mut self, author: u64, places: u64) -> bool {
        let has_room = self.knows(author) || self.lines.len() < LINES_MAX;
        if author == 0 || self.next(author) != places || self.is_over(author) || !has_room {
            return false;
        }
        self.lines.entry(author).or_default().is_over = true;
        true
    }

    /// The numbers of the places from `from` on, in at most `max` stretches.
    pub fn stretches(&self, author: u64, from: u64, max: usize) -> Vec<Stretch> {
        let mut all: Vec<Stretch> = Vec::new();
        let Some(line) = self.lines.get(&author) else { return all };
        let kept = line.next - line.numbers.len() as u64;
        let skipped = from.saturating_sub(kept) as usize;
        for (place, number) in (kept.max(from)..).zip(line.numbers.iter().skip(skipped)) {
            let is_full = all.len() == max;
            match all.last_mut() {
                Some(last) if last.number + u64::from(last.count) == *number => last.count += 1,
                _ if is_full => break,
                _ => all.push(Stretch { place, number: *number, count: 1 }),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
