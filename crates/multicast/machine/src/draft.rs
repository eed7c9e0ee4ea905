//! A frame on which the roots of a feed agree before it leaves. A root that asks voters hands out
//! drafts, and seals and sends a frame when its draft is agreed.

use bytes::Bytes;
use evenfall_core::{Format, SyncTime};

use crate::wire::{Messages, OriginHeader};

/// Messages in a frame that follow each other in the line of one author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerMark {
    /// The random number of the author; 0 for messages that are of no author.
    pub author: u64,
    /// The place of the first message.
    pub place: u64,
    /// The number of messages.
    pub count: u16,
}

/// A frame that is not sealed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    fixed: OriginHeader,
    body: Bytes,
    /// The authors of the messages, in the order of the frame; none when the roots have the
    /// messages from elsewhere.
    marks: Vec<ProducerMark>,
}

impl Draft {
    /// A frame of the feed with these messages, which are of no author.
    pub fn new(fixed: OriginHeader, body: Bytes) -> Self {
        Self { fixed, body, marks: Vec::new() }
    }

    /// The header of the frame, without a deadline.
    pub fn fixed(&self) -> &OriginHeader {
        &self.fixed
    }

    /// The bytes of the messages.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The number of the frame.
    pub fn sequence(&self) -> u64 {
        self.fixed.sequence
    }

    /// The number of the first message of the frame.
    pub fn first_message(&self) -> u64 {
        self.fixed.first_message
    }

    /// The number of messages.
    pub fn count(&self) -> u16 {
        self.fixed.count
    }

    /// The format of the messages.
    pub fn format(&self) -> Format {
        self.fixed.format
    }

    /// When the frame was made.
    pub fn origin(&self) -> SyncTime {
        self.fixed.origin
    }

    /// The authors of the messages.
    pub fn marks(&self) -> &[ProducerMark] {
        &self.marks
    }

    /// The same frame with the authors of its messages.
    pub fn marked(self, marks: Vec<ProducerMark>) -> Self {
        Self { marks, ..self }
    }

    /// The messages of the frame.
    pub fn messages(&self) -> impl Iterator<Item = Bytes> {
        Messages::new(self.body.clone(), self.fixed.count).into_iter().flatten()
    }

    /// The frame and the message behind this one.
    pub fn next(&self) -> (u64, u64) {
        (self.fixed.sequence + 1, self.fixed.first_message + u64::from(self.fixed.count))
    }
}
