//! The thread that owns the machine: calls in, committed cycles applied, replies out.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use evenfall_consensus_machine::{ClientRequest, ConsensusError, Event, LeaseKey};
use evenfall_consensus_replica::{MembershipService, Replica, ReplicaError, random_number};
use evenfall_core::NodeId;
use evenfall_host::{Waker, interrupt};
use evenfall_keys_machine::{BYTES_MAX, Command, KeyCall, KeyLifetime, KeyReply, Keys, REAPED_MAX};

use crate::shared::{Notice, SharedKeys};
use crate::{KeysError, Settings, front, leased};

/// Limit of the calls that wait for the replica thread. The thread of the connections waits with a
/// further call.
const INPUTS_MAX: usize = 8_192;
/// Calls that are taken between two turns of the loop.
const INPUTS_PER_TURN: usize = 1_024;
/// Time between two reports of which sessions live, and between two looks for sessions that do not:
/// a quarter of the shortest timeout of a session.
const SESSIONS_EVERY: Duration = Duration::from_millis(250);
/// Most bytes of the keys in one call that deletes keys.
const REAPED_BYTES_MAX: usize = 256 << 10;

/// The answer to a call or a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaAnswer {
    /// The call was applied at this revision.
    Applied(KeyReply, u64),
    /// Whether the call was or will be applied is unknown. The client has to ask again.
    Unknown,
    /// The call was not applied, and never will be: it has this many bytes, more than the replicas
    /// agree on at once.
    TooLong(usize),
}

/// The request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedRequest {
    /// The number of the connection.
    pub connection: u64,
    /// The number of the request on this connection.
    pub slot: u64,
}

/// A request of a connection to the replica thread.
#[derive(Debug)]
pub enum ConnectionInput {
    /// A call, as [`KeyCall::encode`] writes it, and the write lease that it needs.
    Call(Bytes, LeaseKey, Option<AskedRequest>),
    /// A wait until this replica has applied everything that was answered before, or every such
    /// change of these keys.
    Sync(AskedRequest, Option<LeaseKey>),
    /// The rack of this place among all racks is to leave as planned.
    Retire(usize),
    /// The thread of the connections has ended.
    FrontEnded,
}

impl ConnectionInput {
    /// The input of a call.
    pub fn call(call: &KeyCall, asked: Option<AskedRequest>) -> Self {
        Self::Call(call.encode(), leased::of_command(&call.command), asked)
    }
}

/// How connections reach the replica thread.
#[derive(Clone, Debug)]
pub struct ReplicaInbox {
    inputs: SyncSender<ConnectionInput>,
    waker: Waker,
}

impl ReplicaInbox {
    /// The inbox of a replica thread that this waker wakes.
    pub fn new(inputs: SyncSender<ConnectionInput>, waker: Waker) -> Self {
        Self { inputs, waker }
    }

    /// Hands a call or a sync in, and waits while there is no room. The answer comes as a notice.
    pub fn send(&self, input: ConnectionInput) {
        if let Err(TrySendError::Full(input)) = self.inputs.try_send(input) {
            self.wake();
            // An error means that the replica has stopped, and the process ends.
            let _ = self.inputs.send(input);
        }
    }

    /// Wakes the replica thread for what was handed in.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

/// The time of this host in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// The state of the replica thread beside the machine.
struct Owner {
    node: NodeId,
    /// The name under which this life of the replica proposes. The calls of a connection have this
    /// name plus the number of the connection, because a call that waits for its lease holds up the
    /// later calls of its client.
    client: u64,
    last: u64,
    /// The client and the connection of each call that waits, by its number.
    calls: HashMap<u64, (u64, AskedRequest)>,
    syncs: HashMap<u64, AskedRequest>,
    shared: Arc<SharedKeys>,
    /// Whether the limit of the keys was compared with that of the settings.
    has_compared: bool,
    /// The last committed cycle when this replica last proposed a limit.
    limit_asked: Option<u64>,
    wants_checkpoint: bool,
    /// For each session, the number of its signs of life, and when this replica first saw that
    /// number.
    silent: HashMap<u64, (u64, Instant)>,
    sessions_at: Instant,
    /// For each timed key, the revision at which the key was last set, and when this replica saw
    /// that revision first.
    ages: HashMap<String, (u64, Instant)>,
    reaped_at: Instant,
    ended: Option<KeysError>,
}

/// Runs a replica until SIGINT or SIGTERM. `started` is called once, when clients can connect. The
/// membership service is for a second round (`racks.second_round`) that is decided outside.
///
/// # Errors
/// When an address cannot be had, when the log cannot be read, or when the disk fails.
pub fn run(
    settings: &Settings,
    membership: Option<Box<dyn MembershipService>>,
    started: impl FnOnce(),
) -> Result<(), KeysError> {
    run_replica(settings, Replica::open(&settings.replica, membership)?, started)
}

/// As [`run`], over a replica of any protocol that the caller has opened with the same settings:
/// see [`Replica::open_with`]. The protocol has to give all requests one order.
///
/// # Errors
/// When an address cannot be had, or when the disk fails.
pub fn run_replica(
    settings: &Settings,
    replica: Replica,
    started: impl FnOnce(),
) -> Result<(), KeysError> {
    let started = |_: &Arc<SharedKeys>| {
        started();
        Ok(())
    };
    run_observed(settings, replica, started)
}

/// As [`run_replica`], and shows the shared state to `started`, whose error ends the replica.
pub(crate) fn run_observed(
    settings: &Settings,
    mut replica: Replica,
    started: impl FnOnce(&Arc<SharedKeys>) -> Result<(), KeysError>,
) -> Result<(), KeysError> {
    let listen = settings.listen;
    if settings.replica.key.is_none() && !listen.ip().is_loopback() {
        let error = evenfall_host::Error::Unkeyed { address: listen, verb: "listen on" };
        return Err(ReplicaError::from(error).into());
    }
    let failed = |what: String| move |error| KeysError::Io(what, error);
    let listener = TcpListener::bind(listen).map_err(failed(format!("listen on {listen}")))?;
    let (inputs, taken) = sync_channel(INPUTS_MAX);
    let inbox = ReplicaInbox::new(inputs, replica.waker());
    let front = Waker::new().map_err(failed("make a waker".into()))?;
    let shared = Arc::new(SharedKeys::new(settings.clone(), inbox, front.clone()));
    let _watch = interrupt::watch(replica.waker()).map_err(ReplicaError::from)?;
    let mut owner = Owner {
        node: replica.machine().node(),
        client: random_number()?,
        last: 0,
        calls: HashMap::new(),
        syncs: HashMap::new(),
        shared: Arc::clone(&shared),
        has_compared: false,
        limit_asked: None,
        wants_checkpoint: false,
        silent: HashMap::new(),
        sessions_at: Instant::now(),
        ages: HashMap::new(),
        reaped_at: Instant::now(),
        ended: None,
    };
    replica.start(&mut |event| owner.take(event))?;
    owner.age_what_was_logged();
    front::start(&shared, listener, front)?;
    started(&shared)?;
    owner.drive(replica, &taken)
}

impl Owner {
    fn drive(
        mut self,
        mut replica: Replica,
        taken: &Receiver<ConnectionInput>,
    ) -> Result<(), KeysError> {
        while !interrupt::raised() {
            replica.turn(&mut |event| self.take(event))?;
            for input in taken.try_iter().take(INPUTS_PER_TURN) {
                self.put_in(input, &mut replica)?;
            }
            if self.sessions_at.elapsed() >= SESSIONS_EVERY {
                self.sessions_at = Instant::now();
                let mut commands = self.look_at_sessions();
                if self.reaped_at.elapsed() >= self.shared.settings.zookeeper.reap_every() {
                    self.reaped_at = Instant::now();
                    commands.extend(self.look_at_keys());
                }
                for command in commands {
                    let call =
                        KeyCall { session: 0, opened: 0, sequence: 0, at_ms: now_ms(), command };
                    self.put_in(ConnectionInput::call(&call, None), &mut replica)?;
                }
                self.shared.note(&replica.machine().status());
            }
            if core::mem::take(&mut self.wants_checkpoint) {
                let shared = Arc::clone(&self.shared);
                let bytes = shared.keys().bytes();
                // The keys are held while they are written, and no longer: an event that follows
                // may change them.
                let put = |out: &mut Vec<u8>| shared.keys().put(out);
                replica.checkpoint(bytes, put, &mut |event| self.take(event))?;
            }
            if let Some(error) = self.ended.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Hands a call or a sync to the machine. A call that the machine refuses was not proposed.
    fn put_in(&mut self, input: ConnectionInput, replica: &mut Replica) -> Result<(), KeysError> {
        self.last += 1;
        let sequence = self.last;
        let is_in = match input {
            ConnectionInput::FrontEnded => return Err(KeysError::FrontEnded),
            ConnectionInput::Retire(rack) => replica.retire(rack, &mut |event| self.take(event))?,
            ConnectionInput::Call(body, lease, asked) => {
                let connection = asked.map_or(0, |asked| asked.connection + 1);
                let client = self.client.wrapping_add(connection);
                asked.map(|asked| self.calls.insert(sequence, (client, asked)));
                let request = ClientRequest { client, sequence, body };
                replica.submit(request, lease, &mut |event| self.take(event))?
            }
            ConnectionInput::Sync(asked, lease) => {
                self.syncs.insert(sequence, asked);
                replica.read(sequence, lease, &mut |event| self.take(event))?
            }
        };
        if let Err(error) = is_in {
            tracing::debug!("a call was refused: {error}");
            // The refused call may have proposed a limit, which has to be proposed again.
            self.limit_asked = None;
            let call = self.calls.remove(&sequence).map(|(_, asked)| asked);
            let asked = call.or_else(|| self.syncs.remove(&sequence));
            let answer = match error {
                ConsensusError::TooLong { bytes, .. } => ReplicaAnswer::TooLong(bytes),
                _ => ReplicaAnswer::Unknown,
            };
            self.tell(asked, answer);
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Committed { state, reads, .. } => {
                for set in &state.sets {
                    let is_mine = set.node == self.node;
                    let calls = &mut self.calls;
                    self.shared.apply(&set.requests, |request| {
                        // An earlier life of this replica may have used the same number.
                        let (client, asked) = *calls.get(&request.sequence).filter(|_| is_mine)?;
                        let is_it = client == request.client;
                        is_it.then(|| calls.remove(&request.sequence)).map(|_| asked)
                    });
                }
                let revision = self.shared.keys().revision();
                let answer = ReplicaAnswer::Applied(KeyReply::default(), revision);
                let due = reads.iter().filter_map(|read| self.syncs.remove(&read.token));
                self.shared.tell(due.map(|asked| Notice::Answer(asked, answer.clone())));
            }
            Event::Installed { snapshot, unknown, .. } => {
                match Keys::decode(&snapshot) {
                    Ok(keys) => self.shared.replace(keys),
                    Err(error) => self.ended = Some(KeysError::Snapshot(error)),
                }
                for (_, sequence) in unknown {
                    let asked = self.calls.remove(&sequence).map(|(_, asked)| asked);
                    self.tell(asked, ReplicaAnswer::Unknown);
                }
            }
            Event::Answered(token) => {
                self.shared.counters.reads_at_once.fetch_add(1, Relaxed);
                let asked = self.syncs.remove(&token);
                let revision = self.shared.keys().revision();
                self.tell(asked, ReplicaAnswer::Applied(KeyReply::default(), revision));
            }
            Event::CheckpointWanted => self.wants_checkpoint = true,
            Event::Stopped(error) => self.ended = Some(ReplicaError::Disk(error).into()),
            _ => {}
        }
    }

    /// Signs of life of the sessions that are connected here, and ends of sessions that have been
    /// silent everywhere for longer than their timeout.
    fn look_at_sessions(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let alive = self.shared.take_alive();
        // A rack that comes back after the loss of a disk waits for some cycles of the others, and
        // without changes there are none.
        let is_rack_out = self.shared.counters.racks_out.load(Relaxed) != 0;
        if !alive.is_empty() || is_rack_out {
            commands.push(Command::Touch(alive));
        }
        let limit = self.shared.keys().limit();
        commands.extend(self.look_at_limit(limit));
        let (now, keys) = (Instant::now(), self.shared.keys());
        self.silent.retain(|id, _| keys.session(*id).is_some());
        for (session, known) in keys.sessions() {
            let since = self.silent.entry(session).or_insert((known.touched, now));
            if since.0 != known.touched {
                *since = (known.touched, now);
            }
            // A sign of life arrives up to this much later than the client gave it.
            let timeout = Duration::from_millis(known.timeout_ms.into()) + 2 * SESSIONS_EVERY;
            if now.duration_since(since.1) > timeout {
                commands.push(Command::Expire { session, touched: known.touched });
            }
        }
        commands
    }

    /// Proposes a limit of the keys while there is none. A warning says once that the limit which
    /// holds is not that of the settings.
    fn look_at_limit(&mut self, limit: Option<usize>) -> Option<Command> {
        let own = self.shared.settings.bytes_max;
        let Some(limit) = limit else {
            // Without a new cycle, the last proposal still waits.
            let cycle = self.shared.counters.cycle.load(Relaxed);
            let is_new = self.limit_asked.replace(cycle) != Some(cycle);
            let bytes = own.unwrap_or(BYTES_MAX) as u64;
            return is_new.then_some(Command::Limit { bytes, is_first: true });
        };
        let was_compared = core::mem::replace(&mut self.has_compared, true);
        if !was_compared && own.is_some_and(|own| own != limit) {
            tracing::warn!(
                "the replicas have agreed that the keys may take {} MiB, and --keys-mib counts at \
                 the first start alone: `evenfall kv limit` sets another limit",
                limit >> 20
            );
        }
        None
    }

    /// The age of a timed key from the log is what the clock of this host says. The age of any
    /// other timed key counts from when this replica sees the key, by a clock that does not step.
    fn age_what_was_logged(&mut self) {
        let (now, now_ms, keys) = (Instant::now(), now_ms(), self.shared.keys());
        for (key, entry) in keys.mortal() {
            let age = Duration::from_millis(now_ms.saturating_sub(entry.modified_ms));
            let since = now.checked_sub(age).unwrap_or(now);
            self.ages.insert(key.to_owned(), (entry.modified, since));
        }
    }

    /// The command that deletes containers without children and timed keys whose time is over, as
    /// far as this replica knows.
    fn look_at_keys(&mut self) -> Option<Command> {
        let (now, keys) = (Instant::now(), self.shared.keys());
        let (mut over, mut ages) = (Vec::new(), HashMap::new());
        for (key, entry) in keys.mortal() {
            let KeyLifetime::Timed(ttl_ms) = entry.kind else {
                let is_left = entry.is_left();
                over.extend(is_left.then(|| (key.to_owned(), entry.children_modified)));
                continue;
            };
            let known = self.ages.get(key).filter(|(modified, _)| *modified == entry.modified);
            let since = known.map_or(now, |(_, since)| *since);
            ages.insert(key.to_owned(), (entry.modified, since));
            let is_over = now.duration_since(since) > Duration::from_millis(ttl_ms);
            if is_over && entry.children.is_empty() {
                over.push((key.to_owned(), entry.modified));
            }
        }
        self.ages = ages;
        over.truncate(REAPED_MAX);
        let mut bytes = 0;
        over.retain(|(key, _)| {
            bytes += key.len();
            bytes <= REAPED_BYTES_MAX
        });
        let nodes = self.shared.settings.replica.replicas.len() as u32;
        (!over.is_empty()).then_some(Command::Reap { node: self.node.0, nodes, keys: over })
    }

    /// Answers a call or a sync of a client.
    fn tell(&self, asked: Option<AskedRequest>, answer: ReplicaAnswer) {
        self.shared.tell(asked.map(|asked| Notice::Answer(asked, answer)));
    }
}
