//! Wakes the threads that wait for appends.
//!
//! A reader at the end of a file that grows needs the next record as soon as it is there. A reader
//! that looks at fixed intervals has the record half an interval late in the mean. So a waiting
//! thread has an [`AppendSignal`] and lays it at every file for which it waits. An append makes its
//! records readable and then raises the signals at its file.
//!
//! The thread lays the signal first, then looks at the file, then waits. So no wake-up is lost: an
//! append that comes after the look finds the signal. An append to a file without signals pays for
//! reading one number.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::{StoreFile, lock};

/// The wake-up of one waiting thread.
#[derive(Debug, Default)]
pub struct AppendSignal {
    is_raised: Mutex<bool>,
    raised: Condvar,
}

impl AppendSignal {
    /// Wakes the thread that waits, or that will wait next.
    pub fn raise(&self) {
        let was_raised = std::mem::replace(&mut *lock(&self.is_raised), true);
        // The thread has not looked since the last wake-up, and sees all when it does.
        if !was_raised {
            self.raised.notify_one();
        }
    }

    /// Waits until the signal is raised or the moment has come, and lowers the signal. Without a
    /// moment the wait ends with the signal alone. Returns whether the signal was raised.
    pub fn wait_until(&self, until: Option<Instant>) -> bool {
        let mut is_raised = lock(&self.is_raised);
        while !*is_raised {
            let Some(until) = until else {
                is_raised = self.raised.wait(is_raised).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.raised.wait_timeout(is_raised, left);
            is_raised = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        *is_raised = false;
        true
    }
}

/// A signal at a file.
#[derive(Debug)]
struct LaidSignal {
    signal: Arc<AppendSignal>,
    /// How many watches have laid it. An append raises it once for all of them.
    watches: usize,
}

/// The signals that lie at a file.
#[derive(Debug, Default)]
pub(crate) struct FileSignals {
    /// Length of `signals`. An append reads the number after it has held the file's lock, so that
    /// it sees every signal that was laid before a look at the file.
    count: AtomicUsize,
    signals: Mutex<Vec<LaidSignal>>,
}

impl FileSignals {
    /// Raises all signals. The caller does not hold the file's appender, for which the woken
    /// threads ask next.
    pub(crate) fn raise(&self) {
        if self.count.load(Relaxed) > 0 {
            lock(&self.signals).iter().for_each(|laid| laid.signal.raise());
        }
    }
}

/// A signal at a file, until this value is dropped.
#[derive(Debug)]
#[must_use = "the signal is taken away when this is dropped"]
pub struct AppendWatch {
    file: Arc<StoreFile>,
    signal: Arc<AppendSignal>,
}

impl AppendWatch {
    /// Lays the signal at the file. Appends and a deletion raise the signal.
    pub fn new(file: &Arc<StoreFile>, signal: &Arc<AppendSignal>) -> Self {
        let mut signals = lock(&file.signals.signals);
        match signals.iter_mut().find(|laid| Arc::ptr_eq(&laid.signal, signal)) {
            Some(laid) => laid.watches += 1,
            None => signals.push(LaidSignal { signal: Arc::clone(signal), watches: 1 }),
        }
        file.signals.count.store(signals.len(), Relaxed);
        Self { file: Arc::clone(file), signal: Arc::clone(signal) }
    }

    /// The file.
    pub fn file(&self) -> &Arc<StoreFile> {
        &self.file
    }
}

impl Drop for AppendWatch {
    fn drop(&mut self) {
        let mut signals = lock(&self.file.signals.signals);
        let at = signals.iter().position(|laid| Arc::ptr_eq(&laid.signal, &self.signal));
        let Some(at) = at else { return };
        signals[at].watches -= 1;
        if signals[at].watches == 0 {
            signals.swap_remove(at);
        }
        self.file.signals.count.store(signals.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreConfig};
    use evenfall_store_format::Schema;

    #[test]
    fn a_signal_lies_at_a_file_once_until_its_last_watch_ends() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(dir.path())).unwrap().store;
        let file = store.create("a", &Schema::opaque(16)).unwrap();
        let signals: [Arc<AppendSignal>; 2] = Default::default();
        let laid = || lock(&file.signals.signals).iter().map(|laid| laid.watches).collect();
        let mut watches: Vec<AppendWatch> =
            (0..4_097).map(|turn| AppendWatch::new(&file, &signals[turn % 2])).collect();
        assert_eq!(
            (Vec::<usize>::from([2_049, 2_048]), 2),
            (laid(), file.signals.count.load(Relaxed))
        );
        watches.drain(2..);
        assert_eq!(Vec::<usize>::from([1, 1]), laid());
        file.signals.raise();
        let now = Some(Instant::now());
        assert!(signals.iter().all(|signal| signal.wait_until(now)), "each is raised");
        drop(watches.remove(0));
        file.signals.raise();
        assert!(!signals[0].wait_until(now) && signals[1].wait_until(now));
        drop(watches);
        assert_eq!(file.signals.count.load(Relaxed), 0);
    }
}
