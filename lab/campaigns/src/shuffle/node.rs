//! A node of a simulated shuffle: the shuffle itself, or a rival.

use evenfall_collectives_machine::{Shuffle, ShuffleEvent};
use evenfall_sim::any_machine;

use super::plain::Plain;

/// The machine of a node.
#[derive(Debug)]
pub(super) enum Node {
    Shuffle(Box<Shuffle>),
    Plain(Box<Plain>),
}

any_machine! {
    impl Machine for Node {
        type Event = ShuffleEvent;

        Shuffle(shuffle) => shuffle.poll_event(),
        Plain(plain) => plain.poll_event(),
    }
}

impl Node {
    /// Messages with at least one byte here, complete messages, and bytes of all messages; `None`
    /// when the shuffle has ended at this node.
    pub(super) fn progress(&self, operation: u64) -> Option<(usize, usize, u64)> {
        match self {
            Self::Shuffle(shuffle) => shuffle.progress(operation),
            Self::Plain(plain) => Some(plain.progress()),
        }
    }

    /// Whether this node grants packets of the incomplete message from `from`. The shuffle grants
    /// to all messages at once.
    pub(super) fn works_on(&self, from: usize) -> bool {
        match self {
            Self::Shuffle(_) => true,
            Self::Plain(plain) => plain.works_on(from),
        }
    }
}
