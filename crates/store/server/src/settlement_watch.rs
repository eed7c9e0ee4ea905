//! When the process of a store asks the objects again for which some of its files wait.
//!
//! Objects that have the metadata of a file may still fail to give its records. The store is then
//! opened again for nothing, and each such opening closes all connections. So every opening after
//! which files still wait doubles the time to the next question.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use evenfall_store_engine::Store;

/// How long a store whose files wait for the objects goes on before it asks whether they answer.
const ASK_EVERY_MIN: Duration = Duration::from_secs(5);
/// The longest time between two questions. Whoever brings the objects back may as well open the
/// store again by hand.
const ASK_EVERY_MAX: Duration = Duration::from_secs(600);

/// The questions of one process, over all lives of its store.
pub(crate) struct SettlementWatch {
    every: Duration,
    asked_at: Instant,
    /// The question that is under way.
    answered: Option<Receiver<bool>>,
    /// Whether the store is being opened again because of an answer.
    is_reopening: bool,
}

impl Default for SettlementWatch {
    fn default() -> Self {
        let (every, asked_at) = (ASK_EVERY_MIN, Instant::now());
        Self { every, asked_at, answered: None, is_reopening: false }
    }
}

impl SettlementWatch {
    /// Begins anew for a store that was just opened, in which files wait or do not.
    pub(crate) fn begin_life(&mut self, awaits_objects: bool) {
        let was_in_vain = std::mem::take(&mut self.is_reopening) && awaits_objects;
        self.every = match awaits_objects {
            false => ASK_EVERY_MIN,
            true if was_in_vain => (2 * self.every).min(ASK_EVERY_MAX),
            true => self.every,
        };
        (self.asked_at, self.answered) = (Instant::now(), None);
    }

    /// Whether the store is to be opened again, because the objects answer. Never waits.
    pub(crate) fn look(&mut self, store: &Store) -> bool {
        let Some(answered) = &self.answered else {
            if self.asked_at.elapsed() >= self.every {
                (self.asked_at, self.answered) = (Instant::now(), store.ask_to_settle());
            }
            return false;
        };
        match answered.try_recv() {
            Ok(true) => self.is_reopening = true,
            Err(TryRecvError::Empty) => {}
            Ok(false) | Err(TryRecvError::Disconnected) => self.answered = None,
        }
        self.is_reopening
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_in_vain_come_more_and_more_seldom() {
        let mut watch = SettlementWatch::default();
        let mut reopen = |awaits_objects| {
            watch.is_reopening = true;
            watch.begin_life(awaits_objects);
            watch.every.as_secs()
        };
        let in_vain: Vec<u64> = (0..8).map(|_| reopen(true)).collect();
        assert_eq!(in_vain, [10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(reopen(false), 5);
        assert_eq!(reopen(true), 10);
        // A life that began for another reason says nothing about the objects.
        watch.begin_life(true);
        assert_eq!(watch.every.as_secs(), 10);
    }
}
