//! The machine that runs a burst: one rank's part of a sort or of a query.
//!
//! A burst is a [`BurstProgram`]: a value that answers what has happened (a call is here, a piece
//! of work is done) with [`Actions`] (make a call, do work, this is the result). The machine
//! carries the actions out on a [`ProcessGroup`]. A program therefore knows nothing of datagrams,
//! and the machine knows nothing of keys.
//!
//! # Work on other cores
//!
//! Sorting keys takes longer than a round trip. A rank that sorts in the thread of its socket
//! answers nobody meanwhile. A program therefore asks for [`Work`], and the owner carries it out:
//!
//! ```text
//!  program --Actions::work--> poll_work --> owner: a thread, or the model of a simulator
//!  program <----worked------- handle_work <-- Work::run
//! ```
//!
//! A service runs the work on threads. A simulator runs it at once and hands the result in when
//! the modelled cores would have finished ([`Work::kind`] and [`Work::items`] say how much it is).
//! [`Burst::run_work`] does all waiting work in place, which suits tests and small inputs.
//!
//! # A failure ends all of it
//!
//! A call that fails names a rank. The machine then gives up all numbers of the burst
//! ([`ProcessGroup::release`]), so that every rank that waits for this one is told, also in calls
//! that this rank never made. Each living rank ends with [`BurstEvent::Failed`].

use core::any::Any;
use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use evenfall_collectives_machine::RankFailure;
use evenfall_collectives_machine::group::{
    Collective, CollectiveEvent, CollectiveOutcome, ProcessGroup,
};
use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};

/// What kind of work a piece of work is, so that a simulator knows what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// Sorts the keys of this rank; items are keys.
    SortKeys,
    /// Copies values into the order of their keys; items are values.
    PermuteValues,
    /// Merges sorted lists of pivots; items are pivots.
    MergePivots,
    /// Merges sorted lists of keys; items are keys.
    MergeKeys,
    /// Copies received values to their places; items are values.
    PlaceValues,
    /// Reads rows and adds them up by key; items are rows.
    Scan,
    /// Joins rows by key; items are rows of both sides.
    Join,
}

/// The result of a piece of work, whose type its program knows.
pub type WorkResult = Box<dyn Any + Send>;

/// The result of a job whose type its program knows.
pub(crate) fn take_result<T: 'static>(result: WorkResult) -> T {
    *result.downcast().expect("the job's own result")
}

/// A piece of work that needs a core for longer than a message does.
pub struct Work {
    number: u64,
    job: u32,
    /// The kind of the work.
    pub kind: WorkKind,
    /// How many items it has, in the unit of its kind.
    pub items: u64,
    run: Box<dyn FnOnce() -> WorkResult + Send>,
}

impl Work {
    /// Does the work, on any thread.
    pub fn run(self) -> DoneWork {
        DoneWork { number: self.number, job: self.job, result: (self.run)() }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({:?}, {} items)", self.kind, self.items)
    }
}

/// Work that is done.
pub struct DoneWork {
    number: u64,
    job: u32,
    result: WorkResult,
}

impl DoneWork {
    /// Number of its question, which is the epoch of the question's group.
    pub(crate) fn question(&self) -> u32 {
        (self.number >> 32) as u32
    }
}

impl fmt::Debug for DoneWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DoneWork({})", self.job)
    }
}

/// A call that a program makes.
#[derive(Debug)]
struct StepCall {
    step: u32,
    ranks: Arc<[u16]>,
    call: Collective,
}

/// What a program wants done.
#[derive(Debug)]
pub struct Actions<O> {
    now: Timestamp,
    calls: Vec<StepCall>,
    work: Vec<Work>,
    begun: Vec<&'static str>,
    ended: Vec<&'static str>,
    output: Option<O>,
}

impl<O> Actions<O> {
    fn new(now: Timestamp) -> Self {
        let (begun, ended) = (Vec::new(), Vec::new());
        Self { now, calls: Vec::new(), work: Vec::new(), begun, ended, output: None }
    }

    /// Makes the call of a step among these ranks, which are ascending numbers of the group. A root
    /// and the order of messages count places in `ranks`.
    pub fn call(&mut self, step: u32, ranks: Arc<[u16]>, call: Collective) {
        self.calls.push(StepCall { step, ranks, call });
    }

    /// Asks for work. Its result comes to [`BurstProgram::worked`] with the number of the job.
    pub fn work<T: Any + Send>(
        &mut self,
        job: u32,
        kind: WorkKind,
        items: usize,
        run: impl FnOnce() -> T + Send + 'static,
    ) {
        let run = Box::new(move || Box::new(run()) as WorkResult);
        self.work.push(Work { number: 0, job, kind, items: items as u64, run });
    }

    /// A phase begins now. Phases may overlap.
    pub fn begin_phase(&mut self, name: &'static str) {
        self.begun.push(name);
    }

    /// A phase has ended.
    pub fn end_phase(&mut self, name: &'static str) {
        self.ended.push(name);
    }

    /// The result of this rank.
    pub fn finish(&mut self, output: O) {
        self.output = Some(output);
    }
}

/// One rank's part of a burst. An error is a rank whose bytes made no sense.
pub trait BurstProgram {
    /// The result of this rank.
    type Output;

    /// Steps that the program counts on any rank: the numbers of its calls are below.
    const STEPS: u32;

    /// The burst begins at this rank.
    fn begin(&mut self, out: &mut Actions<Self::Output>);

    /// A message of a step has arrived, before the step is complete.
    ///
    /// # Errors
    /// When the bytes make no sense.
    fn arrived(
        &mut self,
        step: u32,
        from: u16,
        body: &bytes::Bytes,
        out: &mut Actions<Self::Output>,
    ) -> Result<(), u16> {
        let _ = (step, from, body, out);
        Ok(())
    }

    /// Everything that a step brings to this rank is here.
    ///
    /// # Errors
    /// The rank whose bytes make no sense.
    fn here(
        &mut self,
        step: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<Self::Output>,
    ) -> Result<(), u16>;

    /// Work is done.
    ///
    /// # Errors
    /// The rank whose bytes made the work fail.
    fn worked(
        &mut self,
        job: u32,
        result: WorkResult,
        out: &mut Actions<Self::Output>,
    ) -> Result<(), u16>;
}

/// How long each phase of a burst took at one rank.
pub type SortPhases = BTreeMap<&'static str, Duration>;

/// Events of a burst for its owner.
#[derive(Debug)]
pub enum BurstEvent<O> {
    /// This rank has its result. Other ranks may still need what it sent.
    Result {
        /// The result.
        output: O,
        /// Time from the begin at this rank to the result.
        took: Duration,
        /// The phases of this time.
        phases: SortPhases,
    },
    /// All ranks have what this rank sent. The next burst may begin.
    Ended,
    /// The burst has failed at this rank, and nothing more of it follows.
    Failed(RankFailure),
}

#[derive(Debug)]
struct Running<P> {
    program: P,
    first: u64,
    began: Timestamp,
    /// Calls that have begun and not ended.
    open: usize,
    has_result: bool,
    phases: BTreeMap<&'static str, (Timestamp, Duration)>,
}

/// One rank that takes part in bursts, one after the other.
#[derive(Debug)]
pub struct Burst<P: BurstProgram> {
    group: ProcessGroup,
    running: Option<Running<P>>,
    work: VecDeque<Work>,
    events: VecDeque<BurstEvent<P::Output>>,
}

impl<P: BurstProgram> Burst<P> {
    /// A rank that waits for its first burst.
    pub fn new(group: ProcessGroup) -> Self {
        Self { group, running: None, work: VecDeque::new(), events: VecDeque::new() }
    }

    /// The group.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The group, when no more bursts follow.
    pub fn into_group(self) -> ProcessGroup {
        self.group
    }

    /// Whether a burst runs at this rank.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins a burst. All ranks begin the same bursts in the same order; a burst that still runs
    /// here is given up.
    pub fn start(&mut self, now: Timestamp, program: P) {
        if let Some(old) = self.running.take() {
            let rank = self.group.rank() as u16;
            self.group.release(old.first, Some(RankFailure::Disagrees { rank }));
        }
        self.work.clear();
        let first = self.group.reserve(u64::from(P::STEPS));
        let (open, has_result, phases) = (0, false, BTreeMap::new());
        self.running = Some(Running { program, first, began: now, open, has_result, phases });
        self.act(now, |program, out| {
            program.begin(out);
            Ok(())
        });
        self.follow(now);
    }

    /// The next work to do.
    pub fn poll_work(&mut self) -> Option<Work> {
        self.work.pop_front()
    }

    /// Hands in work that is done. Work of an earlier burst is ignored.
    pub fn handle_work(&mut self, now: Timestamp, done: DoneWork) {
        if self.running.as_ref().is_some_and(|running| running.first == done.number) {
            self.act(now, |program, out| program.worked(done.job, done.result, out));
            self.follow(now);
        }
    }

    /// Does all work that waits, in this thread.
    pub fn run_work(&mut self, now: Timestamp) {
        while let Some(work) = self.poll_work() {
            self.handle_work(now, work.run());
        }
    }

    /// Gives the burst up, if one runs. All ranks that wait for this one are told of the failure.
    pub fn give_up(&mut self, failure: RankFailure) {
        self.fail(failure);
    }

    fn fail(&mut self, failure: RankFailure) {
        let Some(running) = self.running.take() else { return };
        self.work.clear();
        self.group.release(running.first, Some(failure));
        self.events.push_back(BurstEvent::Failed(failure));
    }

    /// Lets the program act, and carries its actions out.
    fn act(
        &mut self,
        now: Timestamp,
        go: impl FnOnce(&mut P, &mut Actions<P::Output>) -> Result<(), u16>,
    ) {
        let Some(running) = &mut self.running else { return };
        let mut out = Actions::new(now);
        if let Err(rank) = go(&mut running.program, &mut out) {
            return self.fail(RankFailure::Disagrees { rank });
        }
        let number = running.first;
        self.work.extend(out.work.into_iter().map(|work| Work { number, ..work }));
        for name in out.begun {
            running.phases.entry(name).or_default().0 = out.now;
        }
        for name in out.ended {
            let phase = running.phases.entry(name).or_default();
            phase.1 += out.now.since(phase.0);
        }
        if let Some(output) = out.output {
            running.has_result = true;
            let phases = running.phases.iter().map(|(&name, phase)| (name, phase.1)).collect();
            let took = now.since(running.began);
            self.events.push_back(BurstEvent::Result { output, took, phases });
        }
        running.open += out.calls.len();
        for StepCall { step, ranks, call } in out.calls {
            if self.group.call_among(now, number + u64::from(step), ranks, call).is_err() {
                // The program asked for a call that no group can make.
                let rank = self.group.rank() as u16;
                return self.fail(RankFailure::Disagrees { rank });
            }
        }
    }

    /// Hands the events of the group to the program.
    fn follow(&mut self, now: Timestamp) {
        while let Some(event) = self.group.poll_event() {
            let Some(running) = &mut self.running else { continue };
            let first = running.first;
            let step = |call: u64| {
                let step = call.checked_sub(first).filter(|&step| step < u64::from(P::STEPS));
                step.map(|step| step as u32)
            };
            match event {
                CollectiveEvent::Arrived { call, from, body } => {
                    if let Some(step) = step(call) {
                        self.act(now, |program, out| program.arrived(step, from, &body, out));
                    }
                }
                CollectiveEvent::Here { call, outcome } => {
                    if let Some(step) = step(call) {
                        self.act(now, |program, out| program.here(step, outcome, out));
                    }
                }
                CollectiveEvent::Done { call, .. } if step(call).is_some() => running.open -= 1,
                CollectiveEvent::Done { .. } => {}
                CollectiveEvent::Failed { call, failure } => {
                    if step(call).is_some() {
                        self.fail(failure);
                    }
                }
            }
        }
        if let Some(running) = &self.running
            && running.has_result
            && running.open == 0
        {
            self.group.release(running.first, None);
            self.running = None;
            self.events.push_back(BurstEvent::Ended);
        }
    }
}

impl<P: BurstProgram> Machine for Burst<P> {
    type Event = BurstEvent<P::Output>;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let result = self.group.handle(now, arrival);
        self.follow(now);
        result
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.group.handle_timeout(now);
        self.follow(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.group.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.group.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.group.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.group.poll_timeout()
    }
}
