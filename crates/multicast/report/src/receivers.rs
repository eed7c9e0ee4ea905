//! The figures of single receivers.
//!
//! Thousands of receivers do not fit into a cache. The ledger counts a few hundred frames at a
//! time, because the memory then delivers their receivers at once.

use core::hint::black_box;

use evenfall_core::NodeId;

use super::sample::Fine;

/// Binary digits kept of a single receiver's delay, an error of at most 1.6 %. There may be
/// thousands of receivers.
const DIGITS: u32 = 5;
/// Frames that wait: 8 KiB, which the nearest cache holds beside the lines of their receivers.
const WAITING_MAX: usize = 256;

/// Figures of one receiver.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    pub(super) id: NodeId,
    pub(super) delay: Fine,
    pub(super) delivered: u64,
    pub(super) repaired: u64,
    pub(super) duplicates: u64,
    /// Frames and hedge wins by the neighbour whose copy won. A receiver has few neighbours.
    pub(super) edges: Vec<(NodeId, u64, u64)>,
}

impl Receiver {
    /// Reads what a frame of this delay changes.
    fn touch(&self, delay_ns: i64) -> u64 {
        let frames = self.edges.first().map_or(0, |edge| edge.1);
        frames ^ u64::from(self.delay.count(delay_ns))
    }

    fn count(&mut self, entry: &Entry) {
        self.delivered += u64::from(entry.delivered);
        let Some(delay_ns) = entry.delay_ns else { return };
        self.delay.record(delay_ns);
        self.repaired += u64::from(entry.repaired);
        let hedge_win = u64::from(entry.hedge_win);
        match self.edges.iter_mut().find(|(via, ..)| *via == entry.via) {
            Some((_, frames, wins)) => {
                *frames += 1;
                *wins += hedge_win;
            }
            None => self.edges.push((entry.via, 1, hedge_win)),
        }
    }
}

/// What a released frame changes at its receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) index: u32,
    /// The neighbour whose copy came first.
    pub(super) via: NodeId,
    /// `None` when no message of the frame waited for a receiver.
    pub(super) delay_ns: Option<i64>,
    /// Messages that the receiver released for the first time.
    pub(super) delivered: u16,
    /// Messages that came by repair.
    pub(super) repaired: u16,
    pub(super) hedge_win: bool,
}

/// All receivers, in the order in which they enrolled.
#[derive(Clone, Debug, Default)]
pub(super) struct Receivers {
    counted: Vec<Receiver>,
    /// By receiver, the bound on the error of its clock. `u64::MAX` when no bound is known.
    bounds_ns: Vec<u64>,
    waiting: Vec<Entry>,
}

impl Receivers {
    pub(super) fn len(&self) -> usize {
        self.counted.len()
    }

    pub(super) fn enrol(&mut self, id: NodeId) {
        self.counted.push(Receiver {
            id,
            delay: Fine::new(DIGITS),
            delivered: 0,
            repaired: 0,
            duplicates: 0,
            edges: Vec::new(),
        });
        self.bounds_ns.push(0);
    }

    pub(super) fn bound_ns(&mut self, index: usize) -> &mut u64 {
        &mut self.bounds_ns[index]
    }

    pub(super) fn duplicates(&mut self, index: usize, count: u64) {
        self.counted[index].duplicates += count;
    }

    /// Counts a frame now or later.
    pub(super) fn count(&mut self, entry: Entry) {
        self.waiting.push(entry);
        if self.waiting.len() >= WAITING_MAX {
            self.settle();
        }
    }

    /// Counts the frames that wait.
    pub(super) fn settle(&mut self) {
        let Self { counted, waiting, .. } = self;
        for entry in waiting.iter() {
            let receiver = &counted[entry.index as usize];
            black_box(receiver.delivered ^ receiver.edges.len() as u64);
        }
        for entry in waiting.iter() {
            black_box(counted[entry.index as usize].touch(entry.delay_ns.unwrap_or(0)));
        }
        waiting.drain(..).for_each(|entry| counted[entry.index as usize].count(&entry));
    }

    /// The figures, once no frame waits any more.
    pub(super) fn counted(&self) -> &[Receiver] {
        debug_assert!(self.waiting.is_empty(), "frames wait");
        &self.counted
    }
}
