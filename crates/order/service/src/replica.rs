//! The thread that owns the machine: calls in, committed cycles applied, replies out.

use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use evenfall_core::{ClockReading, NodeId, Timestamp};
use evenfall_host::writes::Writes;
use evenfall_host::{Waker, interrupt, random};
use evenfall_order_machine::keys::{Call, Command, Keys, Reply};
use evenfall_order_machine::{Canopus, Config, Event, Request, journal};
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port};

use crate::shared::Shared;
use crate::{ServiceError, Settings, front};

/// Calls that wait for the replica thread. A connection that has one more waits with it.
const INPUTS_MAX: usize = 8_192;
/// Calls that are taken between two turns of the loop.
const INPUTS_PER_TURN: usize = 1_024;
/// Time between two reports of which sessions live, and between two looks for sessions that do not:
/// a quarter of the shortest timeout of a session.
const SESSIONS_EVERY: Duration = Duration::from_millis(250);
/// Bytes of requests of one node in a cycle: a value of the longest length, with room around it.
const BATCH_BYTES: usize = 2 << 20;
/// A revision is a cycle and, below it, the number of a request in the cycle.
const REQUEST_BITS: u32 = 24;

/// The answer to a call or a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call was applied at this revision.
    Applied(Reply, u64),
    /// Whether the call was or will be applied is unknown. The client has to ask again.
    Unknown,
}

/// What connections ask of the replica thread.
#[derive(Debug)]
pub enum Input {
    /// A call, as [`Call::encode`] writes it.
    Call(Bytes, SyncSender<Answer>),
    /// A wait until all that was answered before is applied here.
    Sync(SyncSender<Answer>),
}

/// How connections reach the replica thread.
#[derive(Clone, Debug)]
pub struct Inbox {
    inputs: SyncSender<Input>,
    waker: Waker,
}

impl Inbox {
    /// Hands a call in. The answer comes through the receiver; a receiver that ends without an
    /// answer means that the replica has stopped.
    pub fn call(&self, call: &Call) -> Receiver<Answer> {
        self.ask(|answer| Input::Call(call.encode(), answer))
    }

    /// Asks to be told when all that was answered before is applied here.
    pub fn sync(&self) -> Receiver<Answer> {
        self.ask(Input::Sync)
    }

    fn ask(&self, input: impl FnOnce(SyncSender<Answer>) -> Input) -> Receiver<Answer> {
        let (answer, receiver) = sync_channel(1);
        // An error means that the replica has stopped, and the receiver says the same.
        let _ = self.inputs.send(input(answer));
        self.waker.wake();
        receiver
    }
}

/// The time of this host in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// A random number that is not 0.
///
/// # Errors
/// The kernel gives none.
pub fn random_number() -> Result<u64, ServiceError> {
    let failed = |error| ServiceError::Io("read a random number".into(), error);
    // ZooKeeper's sessions are positive numbers of 64 bits with a sign.
    Ok((random::number().map_err(failed)? >> 1) | 1)
}

/// What the replica thread keeps beside the machine.
struct Owner {
    node: NodeId,
    /// The name under which this life of the replica proposes.
    client: u64,
    last: u64,
    calls: HashMap<u64, SyncSender<Answer>>,
    syncs: HashMap<u64, SyncSender<Answer>>,
    shared: Arc<Shared>,
    bytes_max: usize,
    wants_checkpoint: bool,
    /// Since when a session was not touched, as this replica saw it.
    silent: HashMap<u64, (u64, Instant)>,
    sessions_at: Instant,
    ended: Option<ServiceError>,
}

/// Runs a replica until SIGINT or SIGTERM. `started` is called once, when clients can connect.
///
/// # Errors
/// When an address cannot be had, when the log cannot be read, or when the disk fails.
pub fn run(settings: &Settings, started: impl FnOnce()) -> Result<(), ServiceError> {
    let failed = |what: String| move |error| ServiceError::Io(what, error);
    let at = settings.directory.display();
    let _lock = lock(&settings.directory)?;
    let writes = Writes::open(&settings.directory).map_err(failed(format!("open {at}")))?;
    let log = writes.read(journal::LOG).map_err(ServiceError::Disk)?;
    let tree = settings.tree()?;
    let node = NodeId(settings.node as u32);
    let machine = Canopus::new(config(), tree, node, random_number()?, &log)?;
    drop(log);
    let address = settings.replicas[settings.node];
    let mut port = evenfall_port::open(address, options())?;
    let listen = settings.listen;
    let listener = TcpListener::bind(listen).map_err(failed(format!("listen on {listen}")))?;
    let (inputs, taken) = sync_channel(INPUTS_MAX);
    let inbox = Inbox { inputs, waker: port.waker() };
    let keys = RwLock::new(Keys::new(settings.bytes_max));
    let shared = Arc::new(Shared::new(keys, inbox, settings.node));
    let _watch = interrupt::watch(port.waker())?;
    let mut owner = Owner {
        node,
        client: random_number()?,
        last: 0,
        calls: HashMap::new(),
        syncs: HashMap::new(),
        shared: Arc::clone(&shared),
        bytes_max: settings.bytes_max,
        wants_checkpoint: false,
        silent: HashMap::new(),
        sessions_at: Instant::now(),
        ended: None,
    };
    let mut machines = [machine];
    let mut turns = Loop::new().with_writes(0, writes);
    // The first input is a clock reading. The machine tells what its log has before that.
    let reading = ClockReading::default();
    let mut take = |_: &Canopus, _: Timestamp, event: Event| owner.take(event);
    turns.adopt_clock(reading, &mut machines, port.as_mut(), &mut take)?;
    front::start(&shared, listener)?;
    started();
    owner.drive(&mut turns, &mut machines, port.as_mut(), &taken)
}

/// Keeps a second replica from writing into the same directory.
fn lock(directory: &Path) -> Result<File, ServiceError> {
    let failed = |error| ServiceError::Io(format!("lock {}", directory.display()), error);
    evenfall_host::lock::directory(directory).map_err(failed)
}

/// The options of a replica's port: room for the longest states of a few cycles.
pub fn options() -> Options {
    Options {
        receive_buffer_bytes: 16 << 20,
        send_buffer_bytes: 16 << 20,
        queue_frames_max: 4_096,
        ..Options::default()
    }
}

/// The configuration of a replica's machine.
pub fn config() -> Config {
    Config {
        batch_bytes: BATCH_BYTES,
        // Loopback carries the longest datagrams, and everything stays on loopback.
        datagram_bytes: 60_000,
        ..Config::default()
    }
}

impl Owner {
    fn drive(
        mut self,
        turns: &mut Loop,
        machines: &mut [Canopus; 1],
        port: &mut dyn Port,
        taken: &Receiver<Input>,
    ) -> Result<(), ServiceError> {
        while !interrupt::raised() {
            turns.turn(machines, port, None, &mut |_, _, event| self.take(event))?;
            for input in taken.try_iter().take(INPUTS_PER_TURN) {
                self.put_in(input, turns, &mut machines[0], port)?;
            }
            if self.sessions_at.elapsed() >= SESSIONS_EVERY {
                self.sessions_at = Instant::now();
                for command in self.look_at_sessions() {
                    let call = Call { session: 0, sequence: 0, at_ms: now_ms(), command };
                    let (answer, _) = sync_channel(1);
                    let input = Input::Call(call.encode(), answer);
                    self.put_in(input, turns, &mut machines[0], port)?;
                }
                self.shared.note(&machines[0]);
            }
            if core::mem::take(&mut self.wants_checkpoint) {
                let snapshot = self.shared.keys().encode();
                let give = |m: &mut Canopus, _: Timestamp| m.checkpoint(snapshot);
                let machine = &mut machines[0];
                turns.input(0, machine, port, give, &mut |_, _, event| self.take(event))?;
            }
            if let Some(error) = self.ended.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Hands a call or a sync to the machine. A call that the machine refuses was not proposed.
    fn put_in(
        &mut self,
        input: Input,
        turns: &mut Loop,
        machine: &mut Canopus,
        port: &mut dyn Port,
    ) -> Result<(), ServiceError> {
        self.last += 1;
        let (client, sequence) = (self.client, self.last);
        let is_in = match input {
            Input::Call(body, answer) => {
                self.calls.insert(sequence, answer);
                let request = Request { client, sequence, body };
                turns.input(
                    0,
                    machine,
                    port,
                    |machine, now| machine.submit(now, request),
                    &mut |_, _, event| self.take(event),
                )?
            }
            Input::Sync(answer) => {
                self.syncs.insert(sequence, answer);
                turns.input(
                    0,
                    machine,
                    port,
                    |machine, now| machine.read(now, sequence),
                    &mut |_, _, event| self.take(event),
                )?
            }
        };
        if let Err(error) = is_in {
            tracing::debug!("a call was refused: {error}");
            let answer = self.calls.remove(&sequence).or_else(|| self.syncs.remove(&sequence));
            tell(answer, Answer::Unknown);
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Committed { state, reads, .. } => {
                let mut number = 0;
                for set in &state.sets {
                    for request in &set.requests {
                        number += 1;
                        let revision = state.cycle << REQUEST_BITS | number;
                        let reply = self.shared.apply(revision, &request.body);
                        if set.node == self.node && request.client == self.client {
                            let answer = self.calls.remove(&request.sequence);
                            tell(answer, Answer::Applied(reply, revision));
                        }
                    }
                }
                for read in reads {
                    let revision = self.shared.keys().revision();
                    let answer = self.syncs.remove(&read.token);
                    tell(answer, Answer::Applied(Reply::default(), revision));
                }
            }
            Event::Installed { snapshot, unknown, .. } => {
                match Keys::decode(&snapshot, self.bytes_max) {
                    Ok(keys) => self.shared.replace(keys),
                    Err(error) => self.ended = Some(ServiceError::Snapshot(error)),
                }
                for (_, sequence) in unknown {
                    tell(self.calls.remove(&sequence), Answer::Unknown);
                }
            }
            Event::CheckpointWanted => self.wants_checkpoint = true,
            Event::Stopped(error) => self.ended = Some(ServiceError::Disk(error)),
            Event::DiskFull(error) => {
                tracing::warn!("the disk is full, this replica waits: {error}")
            }
            Event::DiskBack => tracing::info!("the disk has room again"),
            Event::Expelled => tracing::warn!("the other replicas go on without this one"),
            Event::Joined(cycle) => tracing::info!("this replica takes part from cycle {cycle} on"),
            Event::Behind(cycle) => {
                tracing::info!("cycle {cycle} is missing: a snapshot is fetched")
            }
            _ => {}
        }
    }

    /// Signs of life of the sessions that are connected here, and ends of sessions that have been
    /// silent everywhere for longer than their timeout.
    fn look_at_sessions(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let alive = self.shared.take_alive();
        if !alive.is_empty() {
            commands.push(Command::Touch(alive));
        }
        let (now, keys) = (Instant::now(), self.shared.keys());
        self.silent.retain(|id, _| keys.session(*id).is_some());
        for (session, known) in keys.sessions() {
            let since = self.silent.entry(session).or_insert((known.touched, now));
            if since.0 != known.touched {
                *since = (known.touched, now);
            }
            // Signs of life come up to this much later than the client gave them.
            let timeout = Duration::from_millis(known.timeout_ms.into()) + 2 * SESSIONS_EVERY;
            if now.duration_since(since.1) > timeout {
                commands.push(Command::Expire { session, touched: known.touched });
            }
        }
        commands
    }
}

/// Answers a call or a sync. A client that has gone takes no answer.
fn tell(answer: Option<SyncSender<Answer>>, what: Answer) {
    if let Some(answer) = answer {
        let _ = answer.try_send(what);
    }
}
