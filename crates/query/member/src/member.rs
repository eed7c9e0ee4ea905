//! Drives bursts on the socket of a member.
//!
//! Sorting a million keys takes longer than other ranks wait for an answer. A piece of work of
//! more than [`IN_PLACE_ITEMS`] items therefore runs in a thread beside the socket's, which wakes
//! the socket's thread when the work is done. Shorter work runs in place, because waking a thread
//! twice takes longer than the work.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use evenfall_collectives_member::{GroupDriver, GroupError, GroupMember};
use evenfall_core::Timestamp;
use evenfall_host::Waker;
use evenfall_host::clock::MonotonicClock;
use evenfall_query_burst::burst::{Burst, BurstEvent, BurstProgram, DoneWork, SortPhases, Work};
use evenfall_query_burst::sort::{MilliSort, SortConfig, SortRecords, SortedRecords};

/// Items of the longest work that runs in the thread of the socket: a thousand keys are sorted in
/// 30 us, and waking a thread and being woken by it takes as long.
pub(crate) const IN_PLACE_ITEMS: u64 = 1_000;

/// A burst that has ended at this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstRun<O> {
    /// The result of this rank.
    pub output: O,
    /// When the burst began at this rank, by the host's monotonic clock.
    pub began: Timestamp,
    /// Time from the begin at this rank to its result.
    pub took: Duration,
    /// The phases of this time.
    pub phases: SortPhases,
}

/// The thread that works. It ends when this value is dropped.
pub(crate) struct WorkThread {
    tasks: Option<Sender<Work>>,
    done: Receiver<DoneWork>,
    thread: Option<JoinHandle<()>>,
}

impl WorkThread {
    pub(crate) fn start(waker: Waker) -> Self {
        let (tasks, waiting) = channel::<Work>();
        let (answer, done) = channel();
        let thread = spawn(move || {
            // Both ends are gone when the member is dropped, which ends the thread.
            while let Ok(work) = waiting.recv() {
                if answer.send(work.run()).is_err() {
                    return;
                }
                waker.wake();
            }
        });
        Self { tasks: Some(tasks), done, thread: Some(thread) }
    }

    pub(crate) fn begin(&self, work: Work) {
        let tasks = self.tasks.as_ref().expect("there until the drop");
        tasks.send(work).expect("work does not panic");
    }

    /// Work that is done.
    pub(crate) fn take_done(&self) -> Option<DoneWork> {
        self.done.try_recv().ok()
    }
}

impl Drop for WorkThread {
    fn drop(&mut self) {
        self.tasks = None;
        // A panic of the thread was told by the panic itself.
        self.thread.take().map(JoinHandle::join).transpose().ok();
    }
}

/// A member of a group that takes part in bursts, one after the other.
pub struct BurstMember<P: BurstProgram> {
    driver: GroupDriver<Burst<P>>,
    worker: WorkThread,
    rank: usize,
    ranks: usize,
}

impl<P: BurstProgram> BurstMember<P> {
    /// Takes the member of a group. No call of the member may be under way.
    pub fn new(member: GroupMember) -> Self {
        let (rank, ranks) = (member.rank(), member.group().members().len());
        let driver = member.drive_machine(Burst::new);
        let worker = WorkThread::start(driver.waker());
        Self { driver, worker, rank, ranks }
    }

    /// The rank of this member.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Members of the group.
    pub fn rank_count(&self) -> usize {
        self.ranks
    }

    /// Takes part in a burst, and returns when all ranks have what this rank sent. All ranks make
    /// this call with the same kind of program.
    ///
    /// # Errors
    /// When the burst fails at any rank, the socket fails, or a signal arrives.
    pub fn run_burst(&mut self, program: P) -> Result<BurstRun<P::Output>, GroupError> {
        let Self { driver, worker, .. } = self;
        let mut events = Vec::new();
        let mut run = None;
        let began = MonotonicClock::now();
        driver.input(|burst, now| burst.start(now, program), &mut |event| events.push(event))?;
        loop {
            let mut has_moved = false;
            while let Some(work) = driver.machine().poll_work() {
                if work.items > IN_PLACE_ITEMS {
                    worker.begin(work);
                    continue;
                }
                let (done, keep) = (work.run(), &mut |event| events.push(event));
                driver.input(|burst, now| burst.handle_work(now, done), keep)?;
            }
            while let Some(done) = worker.take_done() {
                let keep = &mut |event| events.push(event);
                driver.input(|burst, now| burst.handle_work(now, done), keep)?;
                has_moved = true;
            }
            for event in events.drain(..) {
                match event {
                    BurstEvent::Result { output, took, phases } => {
                        run = Some(BurstRun { output, began, took, phases });
                    }
                    BurstEvent::Failed(failure) => return Err(GroupError::Failed(failure)),
                    BurstEvent::Ended => {}
                }
            }
            if !driver.machine().is_running()
                && let Some(run) = run.take()
            {
                return Ok(run);
            }
            if !has_moved {
                driver.turn(&mut |event| events.push(event))?;
            }
        }
    }

    /// The member, for calls of the group.
    pub fn into_member(self) -> GroupMember {
        self.driver.into_member(Burst::into_group)
    }
}

/// A member of a group that sorts.
pub struct SortMember {
    member: BurstMember<MilliSort>,
    config: SortConfig,
}

impl SortMember {
    /// Takes the member of a group. All ranks state the same configuration.
    pub fn new(member: GroupMember, config: SortConfig) -> Self {
        Self { member: BurstMember::new(member), config }
    }

    /// Sorts the records of all ranks. This rank ends with the records that follow those of the
    /// rank before it. Equal keys keep the order of ranks, and of places there.
    ///
    /// # Errors
    /// As for [`BurstMember::run_burst`].
    ///
    /// # Panics
    /// When the records are not whole.
    pub fn sort_records(
        &mut self,
        records: SortRecords,
    ) -> Result<BurstRun<SortedRecords>, GroupError> {
        let (rank, ranks) = (self.member.rank() as u16, self.member.rank_count());
        self.member.run_burst(MilliSort::new(self.config.clone(), rank, ranks, records))
    }

    /// The member, for calls of the group.
    pub fn into_member(self) -> GroupMember {
        self.member.into_member()
    }
}
