//! A rank whose work takes modelled time on cores of its own.
//!
//! A machine of the simulator takes no time for its inputs, and the simulator charges for datagrams
//! alone. Work of a burst ([`Work`]) belongs to other cores: the rank takes the work, and hands in
//! its result when the modelled cores would have finished. All cores of a rank do one piece of work
//! after the other, except that pivots are merged by a core that has nothing else to do: the values
//! are put in order meanwhile, which may not delay the partition.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::{
    Arrival, ClockReading, Install, Machine, Malformed, Prng, Timestamp, Transmit,
};
use evenfall_query_burst::burst::{Burst, BurstEvent, BurstProgram, Work, WorkKind};

/// What work costs, in nanoseconds an item on all cores of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkModel {
    /// Sorting keys at the fastest rank.
    pub sort_ns: f64,
    /// How much longer the slowest rank takes for a key. Between the two, the time of a rank
    /// follows the power 2.5 of a uniform number.
    pub sort_spread_ns: f64,
    /// Copying a value into the order of keys, or to its place.
    pub copy_ns: f64,
    /// Merging a key of sorted lists of keys.
    pub merge_ns: f64,
    /// Merging a pivot, on one core.
    pub pivot_ns: f64,
    /// Reading a row, or joining it.
    pub row_ns: f64,
}

impl WorkModel {
    fn takes(&self, work: &Work, prng: &mut Prng) -> Duration {
        let each = match work.kind {
            WorkKind::SortKeys => {
                let u = prng.unit();
                self.sort_ns + self.sort_spread_ns * u * u * u.sqrt()
            }
            WorkKind::PermuteValues | WorkKind::PlaceValues => self.copy_ns,
            WorkKind::MergePivots => self.pivot_ns,
            WorkKind::MergeKeys => self.merge_ns,
            WorkKind::Scan | WorkKind::Join => self.row_ns,
        };
        Duration::from_nanos((each * work.items as f64) as u64)
    }
}

/// A rank of a burst on a simulated host.
pub struct WorkedBurst<P: BurstProgram> {
    /// The burst.
    pub burst: Burst<P>,
    model: WorkModel,
    prng: Prng,
    /// When the cores are free, and when the core of the pivots is.
    free: [Timestamp; 2],
    /// Work, in the order of its end.
    under_way: VecDeque<(Timestamp, Work)>,
}

impl<P: BurstProgram> WorkedBurst<P> {
    /// A rank that waits for its first burst. The generator draws how long its work takes.
    pub fn new(burst: Burst<P>, model: WorkModel, prng: Prng) -> Self {
        let free = [Timestamp::ZERO; 2];
        Self { burst, model, prng, free, under_way: VecDeque::new() }
    }

    /// Begins a burst.
    pub fn start_burst(&mut self, now: Timestamp, program: P) {
        self.burst.start(now, program);
        self.take_work(now);
    }

    fn take_work(&mut self, now: Timestamp) {
        while let Some(work) = self.burst.poll_work() {
            let free = &mut self.free[usize::from(work.kind == WorkKind::MergePivots)];
            *free = (*free).max(now) + self.model.takes(&work, &mut self.prng);
            let ends = *free;
            let at = self.under_way.partition_point(|(other, _)| *other <= ends);
            self.under_way.insert(at, (ends, work));
        }
    }
}

impl<P: BurstProgram> Machine for WorkedBurst<P> {
    type Event = BurstEvent<P::Output>;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let result = self.burst.handle(now, arrival);
        self.take_work(now);
        result
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.burst.poll_timeout().is_some_and(|due| due <= now) {
            self.burst.handle_timeout(now);
        }
        while self.under_way.front().is_some_and(|(ends, _)| *ends <= now) {
            let Some((_, work)) = self.under_way.pop_front() else { break };
            self.burst.handle_work(now, work.run());
        }
        self.take_work(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.burst.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.burst.poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.burst.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.burst.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let work = self.under_way.front().map(|(ends, _)| *ends);
        work.into_iter().chain(self.burst.poll_timeout()).min()
    }
}
