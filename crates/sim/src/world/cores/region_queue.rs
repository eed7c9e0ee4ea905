//! The gate through which threads get the regions of a window, one by one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{hint, thread};

use evenfall_core::Machine;

use super::{Area, Common};
use crate::network::Divisible;

/// Looks at a flag before a waiting thread lets other threads of the machine run.
const SPINS: u32 = 200;
/// Bits of the ticket that count regions. Threads that ask in vain count too.
const TAKEN_BITS: u32 = 24;

/// Hands regions out to threads, window after window.
pub(super) struct RegionQueue {
    /// The window and, in the low bits, how many of its regions are taken.
    ticket: AtomicU64,
    /// Regions that were worked on, in all windows.
    done: AtomicU64,
    regions: u64,
    /// For each region, whether the owner calls machines in it. The main thread works on these
    /// regions itself.
    pub(super) called: Vec<bool>,
    closed: AtomicBool,
}

impl RegionQueue {
    pub(super) fn new(called: Vec<bool>) -> Self {
        let regions = called.len() as u64;
        let (ticket, done) = (AtomicU64::new(regions), AtomicU64::new(0));
        Self { ticket, done, regions, called, closed: AtomicBool::new(false) }
    }

    /// Opens the next window; all of its regions can be taken.
    pub(super) fn open(&self) {
        let window = (self.ticket.load(Ordering::Relaxed) >> TAKEN_BITS) + 1;
        self.ticket.store(window << TAKEN_BITS, Ordering::Release);
    }

    /// The next region of the window; `None` when all are taken.
    fn take(&self) -> Option<usize> {
        let taken = |ticket: u64| ticket & ((1 << TAKEN_BITS) - 1);
        if taken(self.ticket.load(Ordering::Relaxed)) >= self.regions {
            return None;
        }
        let region = taken(self.ticket.fetch_add(1, Ordering::AcqRel));
        (region < self.regions).then_some(region as usize)
    }

    /// Takes regions until none is left.
    pub(super) fn work<M: Machine, N: Divisible>(
        &self,
        areas: &[Mutex<Area<'_, M, N>>],
        common: &Common<'_, N>,
    ) {
        while let Some(region) = self.take() {
            if !self.called[region] {
                lock(&areas[region]).work(common, None);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// The work of every thread but the main thread.
    pub(super) fn help<M: Machine, N: Divisible>(
        &self,
        areas: &[Mutex<Area<'_, M, N>>],
        common: &Common<'_, N>,
    ) {
        let _closing = Closing(self);
        loop {
            let ticket = self.ticket.load(Ordering::Acquire);
            self.work(areas, common);
            wait(|| {
                self.ticket.load(Ordering::Acquire) >> TAKEN_BITS != ticket >> TAKEN_BITS
                    || self.closed.load(Ordering::Acquire)
            });
            if self.closed.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Waits until every region was worked on in this many windows; false when a thread has failed.
    pub(super) fn wait_for(&self, windows: u64) -> bool {
        let is_done = || self.done.load(Ordering::Acquire) == windows * self.regions;
        wait(|| is_done() || self.closed.load(Ordering::Acquire));
        is_done()
    }
}

/// Ends the work of all threads when it is dropped, also by a panic.
pub(super) struct Closing<'a>(pub(super) &'a RegionQueue);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

fn wait(mut is_over: impl FnMut() -> bool) {
    let mut spins = 0;
    while !is_over() {
        spins += 1;
        if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
