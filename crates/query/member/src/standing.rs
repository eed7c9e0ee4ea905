//! Standing workers and whoever asks them, on sockets.
//!
//! A worker stands in a thread of its own ([`StandingThread`]) beside a recorder, or as the whole
//! process ([`answer_questions`]). Long work runs in a thread beside the socket's, as in
//! [`member`](crate::member), so that a worker that scans a million rows answers meanwhile and
//! counts as living.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};

use evenfall_collectives_member::{GroupDriver, GroupError, GroupSocket};
use evenfall_query_burst::desk::recent::{RecentCounters, RecentRows, RecentSnapshot};
use evenfall_query_burst::desk::{DeskAsk, DeskOutput, DeskWorkerPlan, RecentSource};
use evenfall_query_burst::standing::{
    AskError, AskerEvent, BurstAsker, BurstWorker, HeldRows, StandingConfig, WorkMachine,
    WorkerCounters, WorkerEvent,
};

use crate::member::{IN_PLACE_ITEMS, WorkThread};

/// Rows of the last seconds that one thread adds to and another reads.
#[derive(Clone, Debug)]
pub struct SharedRows(Arc<Mutex<RecentRows>>);

impl SharedRows {
    /// Shares these rows.
    pub fn new(rows: RecentRows) -> Self {
        Self(Arc::new(Mutex::new(rows)))
    }

    /// Does something with the rows. No question is waited for: a question reads a snapshot.
    pub fn with<T>(&self, act: impl FnOnce(&mut RecentRows) -> T) -> T {
        // Rows whose writer panicked are whole, because each push leaves them so.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RecentSource for SharedRows {
    fn snapshot(&self) -> RecentSnapshot {
        self.with(|rows| rows.snapshot())
    }

    fn held(&self) -> HeldRows {
        self.with(|rows| rows.held())
    }
}

/// A worker with the questions of a desk.
pub type DeskWorker = BurstWorker<DeskWorkerPlan<SharedRows>>;

/// A machine on a socket, with a thread for long work.
struct Worked<M: WorkMachine> {
    driver: GroupDriver<M>,
    thread: WorkThread,
}

impl<M: WorkMachine> Worked<M> {
    fn new(socket: GroupSocket, machine: M) -> Self {
        let driver = socket.drive_machine(machine);
        let thread = WorkThread::start(driver.waker());
        Self { driver, thread }
    }

    /// Takes in what has arrived, does the work that follows, and waits when there is nothing to
    /// do: a tenth of a second at most.
    fn turn(&mut self, events: &mut Vec<M::Event>) -> Result<(), GroupError> {
        let keep = &mut |event| events.push(event);
        let mut has_moved = false;
        while let Some(work) = self.driver.machine().poll_work() {
            if work.items > IN_PLACE_ITEMS {
                self.thread.begin(work);
                continue;
            }
            let done = work.run();
            self.driver.input(|machine, now| machine.handle_work(now, done), keep)?;
            has_moved = true;
        }
        while let Some(done) = self.thread.take_done() {
            self.driver.input(|machine, now| machine.handle_work(now, done), keep)?;
            has_moved = true;
        }
        if !has_moved {
            self.driver.turn(keep)?;
        }
        Ok(())
    }
}

/// What a standing worker has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandingCounters {
    /// Questions.
    pub worker: WorkerCounters,
    /// Datagrams that were no questions, did not open under the key, or came twice.
    pub malformed: u64,
}

/// Answers questions until `each` breaks. `each` is called after every turn, a tenth of a second
/// apart at most, with what has happened in the turn.
///
/// # Errors
/// When the socket fails, or a signal arrives.
pub fn answer_questions(
    socket: GroupSocket,
    worker: DeskWorker,
    each: &mut dyn FnMut(StandingCounters, &[WorkerEvent]) -> ControlFlow<()>,
) -> Result<(), GroupError> {
    let mut worked = Worked::new(socket, worker);
    let mut events = Vec::new();
    loop {
        worked.turn(&mut events)?;
        let malformed = worked.driver.malformed();
        let counters = StandingCounters { worker: worked.driver.machine().counters(), malformed };
        if each(counters, &events).is_break() {
            return Ok(());
        }
        events.clear();
    }
}

/// Counters that another thread reads, by their order in [`StandingThread::counters`].
#[derive(Default)]
struct SharedCounters([AtomicU64; 8]);

impl SharedCounters {
    fn set(&self, counters: StandingCounters) {
        let StandingCounters { worker, malformed } = counters;
        let all = [
            worker.calls,
            worker.questions,
            worker.failed,
            worker.refused,
            worker.other_versions,
            worker.early_dropped,
            worker.answers_dropped,
            malformed,
        ];
        for (shared, value) in self.0.iter().zip(all) {
            shared.store(value, Ordering::Relaxed);
        }
    }

    fn read(&self) -> StandingCounters {
        let [
            calls,
            questions,
            failed,
            refused,
            other_versions,
            early_dropped,
            answers_dropped,
            malformed,
        ] = self.0.each_ref().map(|shared| shared.load(Ordering::Relaxed));
        let worker = WorkerCounters {
            calls,
            questions,
            failed,
            refused,
            other_versions,
            early_dropped,
            answers_dropped,
        };
        StandingCounters { worker, malformed }
    }
}

/// A worker in a thread of its own. The thread ends when this value is dropped.
pub struct StandingThread {
    address: SocketAddr,
    rows: SharedRows,
    counters: Arc<SharedCounters>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StandingThread {
    /// Answers questions about these rows on this socket. `note` is called with what happens, for
    /// a log.
    pub fn start(
        socket: GroupSocket,
        worker: DeskWorker,
        rows: SharedRows,
        note: impl Fn(&WorkerEvent) + Send + 'static,
    ) -> Self {
        let address = socket.address();
        let (counters, is_stopping) =
            (Arc::new(SharedCounters::default()), Arc::new(AtomicBool::new(false)));
        let (shared, stopping) = (counters.clone(), is_stopping.clone());
        let thread = spawn(move || {
            let mut each = |counters, events: &[WorkerEvent]| {
                shared.set(counters);
                events.iter().for_each(&note);
                match stopping.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            // A signal ends the whole process, and its owner says so.
            let _ = answer_questions(socket, worker, &mut each);
        });
        Self { address, rows, counters, is_stopping, thread: Some(thread) }
    }

    /// Where questions are taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of questions.
    pub fn counters(&self) -> StandingCounters {
        self.counters.read()
    }

    /// Rows, bytes and counts of the rows.
    pub fn held(&self) -> (usize, usize, RecentCounters) {
        self.rows.with(|rows| (rows.rows(), rows.bytes(), rows.counters()))
    }
}

impl Drop for StandingThread {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // A panic of the thread was told by the panic itself.
        self.thread.take().map(JoinHandle::join).transpose().ok();
    }
}

/// Asks standing workers, one question after the other.
pub struct DeskClient {
    worked: Worked<BurstAsker<DeskAsk>>,
}

impl DeskClient {
    /// Asks these workers from this socket. `first` is a random number.
    pub fn new(
        socket: GroupSocket,
        workers: Vec<SocketAddr>,
        config: StandingConfig,
        first: u32,
    ) -> Self {
        let asker = BurstAsker::new(socket.address(), workers, config, first);
        Self { worked: Worked::new(socket, asker) }
    }

    /// Asks, and waits for the answer or for the end of its time.
    ///
    /// # Errors
    /// When the socket fails, or a signal arrives.
    pub fn ask(&mut self, ask: DeskAsk) -> Result<AskerEvent<DeskOutput>, GroupError> {
        let mut events = Vec::new();
        loop {
            let begin = |asker: &mut BurstAsker<DeskAsk>, now| asker.ask(now, ask.clone());
            let begun = self.worked.driver.input(begin, &mut |event| events.push(event))?;
            if begun != Err(AskError::Busy) {
                break;
            }
            // Whoever asked before has failed, and nobody waits for that answer.
            self.worked.turn(&mut events)?;
            events.clear();
        }
        loop {
            if let Some(event) = events.pop() {
                return Ok(event);
            }
            self.worked.turn(&mut events)?;
        }
    }
}
