//! The thread that owns a machine: calls in, events out, datagrams and writes between.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenfall_core::{ClockReading, Machine, SharedKey, Timestamp};
use evenfall_files_machine::FilesRefusal;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::writes::Writes;
use evenfall_host::{Waker, interrupt, random};
use evenfall_port::run::Loop;
use evenfall_port::sealed::Sealed;
use evenfall_port::{Options, Port};

use crate::ServiceError;

/// Limit of the calls that wait for the owner. A request with a further call waits until there is
/// room.
const INPUTS_MAX: usize = 4_096;
/// Calls that are taken between two turns of the loop.
const INPUTS_PER_TURN: usize = 256;
/// Kernel memory for datagrams on their way. A primary sends each follower up to 4 MiB before the
/// follower answers.
const BUFFER_BYTES: usize = 16 << 20;
/// Limit of the datagrams that wait in this process while the kernel takes no more. Each datagram
/// has 57 KiB at most.
const QUEUE_FRAMES_MAX: usize = 1_024;

/// How a call with a token ended.
pub type EndedCall = Result<(), FilesRefusal>;

/// The requests that wait, by the tokens of their calls.
#[derive(Debug, Default)]
pub struct WaitingRequests {
    last: u64,
    waits: HashMap<u64, SyncSender<EndedCall>>,
}

impl WaitingRequests {
    fn begin(&mut self, to: SyncSender<EndedCall>) -> u64 {
        self.last += 1;
        self.waits.insert(self.last, to);
        self.last
    }

    /// The call of this token has ended.
    pub fn end(&mut self, token: u64, ended: EndedCall) {
        if let Some(to) = self.waits.remove(&token) {
            // The request that asked may be gone. Its channel has room for the only answer.
            let _ = to.try_send(ended);
        }
    }
}

/// A call of the machine.
pub type OwnerInput<M> = Box<dyn FnOnce(&mut M, &mut WaitingRequests, Timestamp) + Send>;

/// A call that ends later.
#[derive(Debug)]
pub struct PendingCall(Receiver<EndedCall>);

impl PendingCall {
    /// The end of the call; `None` when it has not come in this time. A process that ends leaves
    /// the end unknown.
    pub fn wait(&self, patience: Duration) -> Option<EndedCall> {
        match self.0.recv_timeout(patience) {
            Ok(ended) => Some(ended),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(FilesRefusal::Unknown)),
        }
    }
}

/// How requests reach the owner.
#[derive(Debug)]
pub struct OwnerInbox<M> {
    inputs: SyncSender<OwnerInput<M>>,
    waker: Waker,
}

impl<M> Clone for OwnerInbox<M> {
    fn clone(&self) -> Self {
        Self { inputs: self.inputs.clone(), waker: self.waker.clone() }
    }
}

impl<M: 'static> OwnerInbox<M> {
    fn put(&self, input: OwnerInput<M>) {
        // An error means that the owner has ended. The channel of the answer then ends too.
        let _ = self.inputs.send(input);
        self.waker.wake();
    }

    /// Calls the machine, and waits for what the call returns.
    ///
    /// # Errors
    /// [`FilesRefusal::Unknown`] when the process ends.
    pub fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut M, Timestamp) -> T + Send + 'static,
    ) -> Result<T, FilesRefusal> {
        let (answer, answered) = sync_channel(1);
        self.put(Box::new(move |machine, _, now| {
            let _ = answer.send(call(machine, now));
        }));
        answered.recv().map_err(|_| FilesRefusal::Unknown)
    }

    /// Calls the machine with a new token. The machine names the token when the call ends. The
    /// calls of a thread are made in the order in which the thread asked for them.
    pub fn begin(
        &self,
        call: impl FnOnce(&mut M, Timestamp, u64) -> Result<(), FilesRefusal> + Send + 'static,
    ) -> PendingCall {
        let (to, ended) = sync_channel(1);
        self.put(Box::new(move |machine, waits, now| {
            let token = waits.begin(to);
            if let Err(refusal) = call(machine, now, token) {
                waits.end(token, Err(refusal));
            }
        }));
        PendingCall(ended)
    }
}

/// The time of this host in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// A random number.
///
/// # Errors
/// The kernel gives none.
pub fn random_number() -> Result<u64, ServiceError> {
    random::number().map_err(|error| ServiceError::Io("read a random number".into(), error))
}

/// Keeps a second process from writing into the same directory.
///
/// # Errors
/// When another process has the directory, or the directory cannot be made.
pub fn lock(directory: &Path) -> Result<File, ServiceError> {
    let failed = |error| ServiceError::Io(format!("lock {}", directory.display()), error);
    evenfall_host::lock::directory(directory).map_err(failed)
}

/// A machine with its port and its disk.
pub struct Owner<M: Machine> {
    machines: [M; 1],
    turns: Loop,
    port: Box<dyn Port>,
    taken: Receiver<OwnerInput<M>>,
    waits: WaitingRequests,
    told: VecDeque<M::Event>,
    /// Time between two calls of `look`.
    every: Duration,
    _watch: interrupt::Watch,
}

impl<M: Machine + 'static> Owner<M> {
    /// The owner of a machine whose datagrams come to `address`, and how requests reach it. Under
    /// a key its datagrams are sealed.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn new(
        machine: M,
        (address, key): (SocketAddr, Option<&SharedKey>),
        writes: Writes,
        every: Duration,
    ) -> Result<(Self, OwnerInbox<M>), ServiceError> {
        let options = Options {
            keyed: key.is_some(),
            receive_buffer_bytes: BUFFER_BYTES,
            send_buffer_bytes: BUFFER_BYTES,
            queue_frames_max: QUEUE_FRAMES_MAX,
            ..Options::default()
        };
        let mut port = evenfall_port::open(address, options)?;
        if let Some(key) = key {
            let sealed = Sealed::new(port, key, "evenfall files v2 datagrams");
            let failed = |error| ServiceError::Io("read a random number".into(), error);
            port = Box::new(sealed.map_err(failed)?);
        }
        for note in port.notes() {
            tracing::warn!("{address}: {note}");
        }
        let (inputs, taken) = sync_channel(INPUTS_MAX);
        let inbox = OwnerInbox { inputs, waker: port.waker() };
        let _watch = interrupt::watch(port.waker())?;
        let turns = Loop::new().with_writes(0, writes);
        let (machines, waits, told) = ([machine], WaitingRequests::default(), VecDeque::new());
        Ok((Self { machines, turns, port, taken, waits, told, every, _watch }, inbox))
    }

    /// Runs until SIGINT or SIGTERM. `take` gets each event, and may answer with a call. `look` is
    /// called from time to time.
    ///
    /// # Errors
    /// When the port ends.
    pub fn run(
        mut self,
        mut take: impl FnMut(&M, &mut WaitingRequests, M::Event) -> Option<OwnerInput<M>>,
        mut look: impl FnMut(&mut M),
    ) -> Result<(), ServiceError> {
        look(&mut self.machines[0]);
        let told = &mut self.told;
        let mut events = |_: &M, _: Timestamp, event: M::Event| told.push_back(event);
        let reading = ClockReading::default();
        self.turns.adopt_clock(reading, &mut self.machines, self.port.as_mut(), &mut events)?;
        let mut look_at = MonotonicClock::now() + self.every;
        while !interrupt::raised() {
            let told = &mut self.told;
            let mut events = |_: &M, _: Timestamp, event: M::Event| told.push_back(event);
            let port = self.port.as_mut();
            self.turns.turn(&mut self.machines, port, Some(look_at), &mut events)?;
            for _ in 0..INPUTS_PER_TURN {
                let Ok(input) = self.taken.try_recv() else { break };
                self.put_in(input)?;
            }
            while let Some(event) = self.told.pop_front() {
                if let Some(input) = take(&self.machines[0], &mut self.waits, event) {
                    self.put_in(input)?;
                }
            }
            let now = MonotonicClock::now();
            if now >= look_at {
                look_at = now + self.every;
                look(&mut self.machines[0]);
            }
        }
        Ok(())
    }

    fn put_in(&mut self, input: OwnerInput<M>) -> Result<(), ServiceError> {
        let (waits, told) = (&mut self.waits, &mut self.told);
        let call = |machine: &mut M, now: Timestamp| {
            input(machine, waits, now);
        };
        let mut events = |_: &M, _: Timestamp, event: M::Event| told.push_back(event);
        let machine = &mut self.machines[0];
        self.turns.input(0, machine, self.port.as_mut(), call, &mut events)?;
        Ok(())
    }
}
