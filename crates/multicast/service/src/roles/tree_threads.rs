//! The threads of a receiver of several trees, one a tree.
//!
//! Each thread has the machine of one tree, with its loop and its port. The first tree stays on the
//! thread of the role, which also keeps the clock, the run log and the pages. A message is released
//! on the thread of its tree, so no other thread has to wake up between a deadline and its release.
//! All threads hand their messages to one sink, which one of them has at a time. Everything else
//! goes to the thread of the role after the turn: records of the log, counters, and the end of a
//! stream.

use std::collections::BTreeSet;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use evenfall_core::{Clock, Machine, SyncTime, Timestamp};
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_host::{Waker, pin};
use evenfall_multicast_machine::{Receiver, ReceiverEvent, ReceiverStatus, Release};
use evenfall_port::Port;
use evenfall_port::run::Loop;
use evenfall_runtime::process::{HOUSEKEEPING, SourceReading};
use serde::Serialize;

use super::part::TreeMember;
use super::receiver::{Delivery, Sink};
use super::{RoleError, RoleProcess, file_error};
use crate::runlog::RunLogRecord;
use crate::settings::{MulticastNode, Settings};

/// Records of a tree that wait for the thread of the role before they wake it. The thread wakes
/// up by itself ten times a second, and a record has 80 bytes in memory.
const RECORDS_WAKE: usize = 1_024;

/// Orders to the threads. An order stands until a greater one replaces it.
const STAY: u8 = 0;
const LEAVE: u8 = 1;
const STOP: u8 = 2;

/// What a thread of a receiver has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiverThread {
    /// The first tree of the thread.
    pub tree: u32,
    /// Datagrams that came to its socket.
    pub received: u64,
    /// Datagrams of other trees among them, which it handed on.
    pub strayed: u64,
    /// Processor time of the thread, in microseconds.
    pub cpu_us: u64,
}

impl ReceiverThread {
    /// The calling thread, which reads this port.
    pub(super) fn of_port(tree: u32, port: &dyn Port) -> Self {
        let counters = port.counters();
        let cpu_us = thread_cpu().as_micros() as u64;
        Self { tree, received: counters.received, strayed: counters.strayed, cpu_us }
    }
}

/// A sink that the threads of a receiver share.
pub(super) struct SharedSink<'a, 's>(pub(super) &'a Mutex<&'s mut (dyn Sink + Send)>);

impl SharedSink<'_, '_> {
    fn with<T>(&self, call: impl FnOnce(&mut dyn Sink) -> T) -> T {
        // After a panic in the sink the process ends, and says so at the thread that panicked.
        let mut sink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut **sink)
    }
}

impl Sink for SharedSink<'_, '_> {
    fn released(&mut self, release: &Release, at: SyncTime) {
        self.with(|sink| sink.released(release, at));
    }

    fn hand_over(&mut self, release: &Release, clock: &Clock) -> SyncTime {
        // The clock is read when this thread has the sink.
        self.with(|sink| sink.hand_over(release, clock))
    }

    fn lost(&mut self, stream: u32, first_message: Option<u64>, messages: Option<u64>) {
        self.with(|sink| sink.lost(stream, first_message, messages));
    }

    fn wants_to_stop(&self) -> bool {
        self.with(|sink| sink.wants_to_stop())
    }
}

/// What a thread tells the thread of the role at times.
#[derive(Clone, Copy, Default)]
pub(super) struct TreeState {
    pub(super) status: ReceiverStatus,
    is_placed: bool,
    /// Datagrams that the loop of the thread refused.
    pub(super) refused: u64,
    pub(super) thread: ReceiverThread,
    /// Whether the root knows that this node leaves.
    has_left: bool,
}

/// What the trees tell the thread of the role after a turn.
#[derive(Default)]
struct TreeNews {
    records: Vec<RunLogRecord>,
    finished: BTreeSet<u32>,
    failed: Option<RoleError>,
}

/// What the threads of a receiver share besides the sink.
pub(super) struct TreeBoard {
    news: Mutex<TreeNews>,
    reading: Mutex<SourceReading>,
    states: Vec<Mutex<TreeState>>,
    order: AtomicU8,
    has_panicked: AtomicBool,
    /// Wakes the thread of the role.
    role: Waker,
    /// Wakes the threads of the other trees.
    trees: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All that is shared here is whole after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TreeBoard {
    /// The board of these machines, each of which will have this port.
    pub(super) fn new(
        process: &RoleProcess,
        machines: &[Receiver],
        ports: &[Box<dyn Port>],
    ) -> Self {
        let state = |machine: &Receiver| {
            Mutex::new(TreeState { status: machine.status(), ..TreeState::default() })
        };
        Self {
            news: Mutex::default(),
            reading: Mutex::new(process.base.source_reading()),
            states: machines.iter().map(state).collect(),
            order: AtomicU8::new(STAY),
            has_panicked: AtomicBool::new(false),
            role: process.base.port.waker(),
            trees: ports.iter().map(|port| port.waker()).collect(),
        }
    }

    /// The last state of each tree that has a thread here.
    pub(super) fn read_states(&self) -> impl Iterator<Item = TreeState> {
        self.states.iter().map(|state| *lock(state))
    }

    /// Moves what the threads have told into the delivery of the thread of the role.
    pub(super) fn take_news<S>(&self, delivery: &mut Delivery<'_, S>) {
        // The records are moved out of their list, so that the list keeps its memory.
        let mut news = lock(&self.news);
        delivery.records.append(&mut news.records);
        delivery.finished.append(&mut news.finished);
        let failed = news.failed.take();
        drop(news);
        if self.has_panicked.load(Ordering::Acquire) && failed.is_none() {
            let why = "the thread of a tree ended by a panic";
            delivery.failed.get_or_insert(RoleError::Part(why.into()));
        }
        delivery.failed = delivery.failed.take().or(failed);
    }

    /// Hands the source's last reading of the clock to the threads, if it is a new one.
    pub(super) fn tell_reading(&self, reading: SourceReading) {
        let before = mem::replace(&mut *lock(&self.reading), reading);
        if before.count != reading.count {
            self.trees.iter().for_each(Waker::wake);
        }
    }

    /// Makes the machines of all threads say good-bye.
    pub(super) fn leave(&self) {
        self.order(LEAVE);
    }

    /// Whether the root knows that all machines leave.
    pub(super) fn has_left(&self) -> bool {
        self.states.iter().all(|state| lock(state).has_left)
    }

    /// Whether all machines have their places. The thread of the role asks every turn.
    pub(super) fn has_places(&self) -> bool {
        self.states.iter().all(|state| lock(state).is_placed)
    }

    fn order(&self, order: u8) {
        self.order.fetch_max(order, Ordering::AcqRel);
        self.trees.iter().for_each(Waker::wake);
    }
}

/// Stops all threads when it is dropped, also while the thread of the role panics.
pub(super) struct StopThreads<'a>(pub(super) &'a TreeBoard);

impl Drop for StopThreads<'_> {
    fn drop(&mut self) {
        self.0.order(STOP);
    }
}

/// Tells the thread of the role when a thread ends by a panic.
struct TellPanic<'a>(&'a TreeBoard);

impl Drop for TellPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_panicked.store(true, Ordering::Release);
        }
        self.0.role.wake();
    }
}

/// The thread of one tree.
struct TreeThread<'d, 'a, 's> {
    board: &'a TreeBoard,
    /// The place of its state among those of the board.
    place: usize,
    delivery: Delivery<'d, SharedSink<'a, 's>>,
    /// Streams whose end was told.
    told: usize,
    /// Readings of the clock that were taken.
    readings: u64,
    is_leaving: bool,
    has_left: bool,
}

impl TreeThread<'_, '_, '_> {
    fn on(&mut self, machine: &Receiver, event: ReceiverEvent) {
        self.has_left |= self.is_leaving && Receiver::has_left(&event);
        self.delivery.on(machine.stream(), event);
    }

    /// Takes a new reading of the clock, if there is one.
    fn keep_time(
        &mut self,
        driver: &mut Loop,
        machines: &mut [Receiver; 1],
        port: &mut dyn Port,
    ) -> Result<(), RoleError> {
        let SourceReading { count, reading } = *lock(&self.board.reading);
        if count != self.readings {
            self.readings = count;
            let on = &mut |machine: &Receiver, _: Timestamp, event| self.on(machine, event);
            driver.adopt_clock(reading, machines, port, on)?;
            match machines[0].clock() {
                Some(clock) => self.delivery.clock = clock,
                None => self.delivery.clock.set(reading),
            }
        }
        Ok(())
    }

    /// Tells the thread of the role what this turn has brought.
    fn tell_news(&mut self) {
        let Delivery { records, finished, failed, .. } = &mut self.delivery;
        let has_ended = failed.is_some() || finished.len() > self.told;
        if records.is_empty() && !has_ended {
            return;
        }
        self.told = finished.len();
        let mut news = lock(&self.board.news);
        news.records.append(records);
        news.finished.extend(finished.iter());
        news.failed = news.failed.take().or(failed.take());
        let wakes = has_ended || news.records.len() >= RECORDS_WAKE;
        drop(news);
        if wakes {
            self.board.role.wake();
        }
    }

    fn tell_state(&self, driver: &Loop, machine: &Receiver, port: &dyn Port) {
        let counters = driver.counters();
        *lock(&self.board.states[self.place]) = TreeState {
            status: machine.status(),
            is_placed: machine.has_place(),
            refused: counters.malformed + counters.undispatched,
            thread: ReceiverThread::of_port(machine.stream(), port),
            has_left: self.has_left,
        };
    }

    /// Turns the machine until the thread of the role orders the end, or the port fails.
    fn play(&mut self, machine: Receiver, port: &mut dyn Port) -> Result<(), RoleError> {
        let mut driver = Loop::new();
        let mut machines = [machine];
        let mut tell_at = MonotonicClock::now();
        let mut was = (false, false);
        loop {
            self.keep_time(&mut driver, &mut machines, port)?;
            let on = &mut |machine: &Receiver, _: Timestamp, event| self.on(machine, event);
            driver.turn(&mut machines, port, Some(tell_at), on)?;
            self.tell_news();
            let order = self.board.order.load(Ordering::Acquire);
            let (now, is) = (MonotonicClock::now(), (machines[0].has_place(), self.has_left));
            if now >= tell_at || is != was || order == STOP {
                (tell_at, was) = (now + HOUSEKEEPING, is);
                self.tell_state(&driver, &machines[0], port);
                if self.has_left {
                    self.board.role.wake();
                }
            }
            if order == STOP {
                return Ok(());
            }
            if order == LEAVE && !mem::replace(&mut self.is_leaving, true) {
                machines[0].leave();
            }
        }
    }
}

/// What all threads of a receiver begin with.
pub(super) struct TreeStart<'a, 's> {
    pub(super) settings: &'a Settings,
    pub(super) node: &'a MulticastNode,
    pub(super) board: &'a TreeBoard,
    pub(super) sink: &'a Mutex<&'s mut (dyn Sink + Send)>,
    pub(super) clock: Clock,
}

impl<'a> TreeStart<'a, '_> {
    /// Starts the threads of these machines, each with its port. A thread returns the hash of its
    /// messages.
    pub(super) fn start_threads<'scope>(
        &self,
        scope: &'scope Scope<'scope, 'a>,
        machines: Vec<Receiver>,
        ports: Vec<Box<dyn Port>>,
    ) -> Result<Vec<ScopedJoinHandle<'scope, ContentHash>>, RoleError> {
        let each = machines.into_iter().zip(ports).enumerate();
        each.map(|(place, (machine, port))| self.start_thread(scope, place, machine, port))
            .collect()
    }

    fn start_thread<'scope>(
        &self,
        scope: &'scope Scope<'scope, 'a>,
        place: usize,
        machine: Receiver,
        mut port: Box<dyn Port>,
    ) -> Result<ScopedJoinHandle<'scope, ContentHash>, RoleError> {
        let Self { settings, node, board, sink, clock } = *self;
        let name = format!("evenfall-tree-{}", machine.stream());
        let run = move || {
            let _panic = TellPanic(board);
            let mut sink = SharedSink(sink);
            let mut thread = TreeThread {
                board,
                place,
                delivery: Delivery::new(&mut sink, settings, node, clock),
                told: 0,
                readings: 0,
                is_leaving: false,
                has_left: false,
            };
            let ended = schedule_thread(settings).and_then(|()| thread.play(machine, &mut *port));
            if let Err(error) = ended {
                thread.delivery.failed = Some(error);
                thread.tell_news();
            }
            thread.delivery.hash
        };
        let builder = std::thread::Builder::new().name(name.clone());
        builder.spawn_scoped(scope, run).map_err(|error| file_error(name.as_ref(), error))
    }
}

/// Gives the calling thread the real-time priority of the role's thread, which threads do not
/// inherit.
fn schedule_thread(settings: &Settings) -> Result<(), RoleError> {
    let priority = settings.io.real_time;
    Ok(priority.map_or(Ok(()), |priority| pin::schedule(pin::ThreadSchedule::Fifo(priority)))?)
}
