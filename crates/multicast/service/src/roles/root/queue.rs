//! The messages between a root's feed and their frames.

use std::collections::VecDeque;

use evenfall_core::SyncTime;
use evenfall_feed_formats::FeedMessage;

/// A message that is in no frame yet.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) message: FeedMessage,
    pub(super) scheduled: SyncTime,
}

/// The messages that were taken from the feed and are in no frame yet, in the order of the feed.
///
/// A root that asks voters may lose the lead before its messages are agreed. The messages stay
/// here, because a feed is read once: either they come back in frames of another root, or this root
/// leads again and publishes them again.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Queued>,
    /// How many of them the root has.
    given: usize,
}

impl Queue {
    /// The first message that the root does not have.
    pub(super) fn again(&self) -> Option<&Queued> {
        self.waiting.get(self.given)
    }

    /// The root has taken [`again`](Self::again), or else this message.
    pub(super) fn give(&mut self, message: &FeedMessage, scheduled: SyncTime) {
        if self.again().is_none() {
            self.push(message.clone(), scheduled);
        }
        self.given += 1;
    }

    /// Adds a message that the root does not have.
    pub(super) fn push(&mut self, message: FeedMessage, scheduled: SyncTime) {
        self.waiting.push_back(Queued { message, scheduled });
    }

    /// The message at this place, counted from the last frame.
    pub(super) fn get(&self, place: usize) -> Option<&Queued> {
        self.waiting.get(place)
    }

    /// Takes the first message, which is in a frame now.
    pub(super) fn framed(&mut self) -> Option<Queued> {
        self.given = self.given.saturating_sub(1);
        self.waiting.pop_front()
    }

    /// The root has forgotten the messages that are in no frame.
    pub(super) fn forgotten(&mut self) {
        self.given = 0;
    }

    /// Messages that are in no frame come again by themselves.
    pub(super) fn clear(&mut self) {
        (self.waiting, self.given) = Default::default();
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use evenfall_feed_formats::Format;

    use super::*;

    fn message(index: u64) -> FeedMessage {
        let (time_ns, shard_key, format) = (0, 0, Format::OPAQUE);
        FeedMessage { index, time_ns, shard_key, format, bytes: Bytes::new() }
    }

    #[test]
    fn messages_that_were_published_in_vain_are_published_again_unless_another_root_framed_them() {
        let mut queue = Queue::default();
        (0..4).for_each(|index| queue.give(&message(index), SyncTime::ZERO));
        assert!(queue.again().is_none());
        assert_eq!(queue.framed().unwrap().message.index, 0);
        queue.forgotten();
        // Another root frames the next message.
        assert_eq!(queue.framed().unwrap().message.index, 1);
        for index in [2, 3] {
            let again = queue.again().unwrap().message.clone();
            assert_eq!(again.index, index);
            queue.give(&again, SyncTime::ZERO);
        }
        queue.give(&message(4), SyncTime::ZERO);
        let left: Vec<u64> =
            std::iter::from_fn(|| queue.framed()).map(|queued| queued.message.index).collect();
        assert_eq!(left, [2, 3, 4]);
    }
}
