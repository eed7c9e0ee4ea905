//! The thread that owns the machine: calls in, committed cycles applied, replies out.

use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use evenfall_core::{ClockReading, NodeId, Timestamp};
use evenfall_host::writes::Writes;
use evenfall_host::{Waker, interrupt, random};
use evenfall_order_machine::keys::{BYTES_MAX, Call, Command, Keys, Kind, REAPED_MAX, Reply};
use evenfall_order_machine::outside::Wanted;
use evenfall_order_machine::{Canopus, Config, Event, LeaseKey, OrderError, Request, journal};
use evenfall_port::run::Loop;
use evenfall_port::sealed::{self, Sealed};
use evenfall_port::{Options, Port};

use crate::shared::{Notice, Shared};
use crate::{Membership, Racks, ServiceError, Settings, cluster, front, leased, outside};

/// Limit of the calls that wait for the replica thread. The thread of the connections waits with a
/// further call.
const INPUTS_MAX: usize = 8_192;
/// Calls that are taken between two turns of the loop.
const INPUTS_PER_TURN: usize = 1_024;
/// Time between two reports of which sessions live, and between two looks for sessions that do not:
/// a quarter of the shortest timeout of a session.
const SESSIONS_EVERY: Duration = Duration::from_millis(250);
/// Limit of the bytes of a node's requests in one cycle. The longest value fits, with room for its
/// call.
const BATCH_BYTES: usize = 2 << 20;
/// Most bytes of the keys in one call that deletes keys.
const REAPED_BYTES_MAX: usize = 256 << 10;
/// How often the membership service is read in the time after which a rack has vanished.
const READS_PER_VANISHED: u32 = 8;
/// Longest datagram between hosts. Ethernet carries it in one piece, with room for the headers of
/// tunnels.
const NETWORK_BYTES: usize = 1_400;
/// Time between two lines about the replicas that a replica waits for: replicas of one cluster are
/// started within seconds of each other.
const AWAITED_EVERY: Duration = Duration::from_secs(5);

/// The answer to a call or a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call was applied at this revision.
    Applied(Reply, u64),
    /// Whether the call was or will be applied is unknown. The client has to ask again.
    Unknown,
}

/// The request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The number of the connection.
    pub connection: u64,
    /// The number of the request on this connection.
    pub slot: u64,
}

/// A request of a connection to the replica thread.
#[derive(Debug)]
pub enum Input {
    /// A call, as [`Call::encode`] writes it, and the write lease that it needs.
    Call(Bytes, LeaseKey, Option<Asked>),
    /// A wait until this replica has applied everything that was answered before, or every such
    /// change of these keys.
    Sync(Asked, Option<LeaseKey>),
    /// The rack of this place among all racks is to leave as planned.
    Retire(usize),
    /// What the membership service outside has.
    Outside(Option<Bytes>),
    /// The thread of the connections has ended.
    FrontEnded,
}

impl Input {
    /// The input of a call.
    pub fn call(call: &Call, asked: Option<Asked>) -> Self {
        Self::Call(call.encode(), leased::of_command(&call.command), asked)
    }
}

/// How connections reach the replica thread.
#[derive(Clone, Debug)]
pub struct Inbox {
    inputs: SyncSender<Input>,
    waker: Waker,
}

impl Inbox {
    /// The inbox of a replica thread that this waker wakes.
    pub fn new(inputs: SyncSender<Input>, waker: Waker) -> Self {
        Self { inputs, waker }
    }

    /// Hands a call or a sync in, and waits while there is no room. The answer comes as a notice.
    pub fn send(&self, input: Input) {
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

/// A random number that is not 0.
///
/// # Errors
/// The kernel gives none.
pub fn random_number() -> Result<u64, ServiceError> {
    let failed = |error| ServiceError::Io("read a random number".into(), error);
    // ZooKeeper's sessions are positive numbers of 64 bits with a sign.
    Ok((random::number().map_err(failed)? >> 1) | 1)
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
    calls: HashMap<u64, (u64, Asked)>,
    syncs: HashMap<u64, Asked>,
    shared: Arc<Shared>,
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
    /// When this replica last said which other replicas it waits for.
    awaited_at: Instant,
    /// The thread that talks to the membership service outside.
    membership: Option<SyncSender<Wanted>>,
    /// Why the last list of the service was refused; empty when it was taken.
    refused: String,
    ended: Option<ServiceError>,
}

/// Runs a replica until SIGINT or SIGTERM. `started` is called once, when clients can connect. The
/// membership service is for a [second round](Racks::second_round) that is decided outside.
///
/// # Errors
/// When an address cannot be had, when the log cannot be read, or when the disk fails.
pub fn run(
    settings: &Settings,
    membership: Option<Box<dyn Membership>>,
    started: impl FnOnce(),
) -> Result<(), ServiceError> {
    let failed = |what: String| move |error| ServiceError::Io(what, error);
    let at = settings.directory.display();
    let _lock = lock(&settings.directory)?;
    let writes = Writes::open(&settings.directory).map_err(failed(format!("open {at}")))?;
    let log = writes.read(journal::LOG).map_err(ServiceError::Disk)?;
    let config = configured(settings);
    let machine = machine(settings, config, &log)?;
    cluster::check(settings)?;
    let advice = "give this replica an empty directory while the others run";
    writes.warn_of_cut(journal::LOG, log.len() as u64, machine.logged_bytes(), advice);
    let node = machine.node();
    drop(log);
    let address = settings.replicas[settings.node];
    let mut port = match &settings.key {
        Some(key) => {
            let port = evenfall_port::open(address, options().keyed())?;
            let sealed = Sealed::new(port, key, "evenfall order v2 datagrams");
            Box::new(sealed.map_err(failed("read a random number".into()))?)
        }
        None => evenfall_port::open(address, options())?,
    };
    let listen = settings.listen;
    if settings.key.is_none() && !listen.ip().is_loopback() {
        return Err(evenfall_host::Error::Unkeyed { address: listen, verb: "listen on" }.into());
    }
    let listener = TcpListener::bind(listen).map_err(failed(format!("listen on {listen}")))?;
    let (inputs, taken) = sync_channel(INPUTS_MAX);
    let inbox = Inbox::new(inputs, port.waker());
    let front = Waker::new().map_err(failed("make a waker".into()))?;
    let shared = Arc::new(Shared::new(settings.clone(), inbox, front.clone()));
    let _watch = interrupt::watch(port.waker())?;
    let every = config.vanish_after / READS_PER_VANISHED;
    let membership = membership.map(|service| outside::start(service, shared.inbox.clone(), every));
    let mut owner = Owner {
        node,
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
        awaited_at: Instant::now(),
        membership: membership.transpose()?,
        refused: String::new(),
        ended: None,
    };
    let mut machines = [machine];
    let mut turns = Loop::new().with_writes(0, writes);
    // A clock reading is the first input of the machine. Before it, the machine reports the
    // contents of its log.
    let reading = ClockReading::default();
    let mut take = |_: &Canopus, _: Timestamp, event: Event| owner.take(event);
    turns.adopt_clock(reading, &mut machines, port.as_mut(), &mut take)?;
    owner.age_what_was_logged();
    front::start(&shared, listener, front)?;
    started();
    owner.drive(&mut turns, &mut machines, port.as_mut(), &taken)
}

/// The machine of a replica with this log.
fn machine(settings: &Settings, config: Config, log: &Bytes) -> Result<Canopus, ServiceError> {
    let node = NodeId(settings.node as u32);
    let machine = Canopus::new(config, settings.tree()?, node, random_number()?, log);
    machine.map_err(|error| match error {
        OrderError::Log(_)
        | OrderError::Record(_)
        | OrderError::OtherNode(_)
        | OrderError::OtherLeases { .. }
        | OrderError::OtherPipeline { .. }
        | OrderError::OtherRounds(_) => {
            ServiceError::Log(settings.directory.join(journal::LOG), error)
        }
        _ => error.into(),
    })
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

/// The settings of the machine for those of a replica.
fn configured(settings: &Settings) -> Config {
    let Racks { second_round, round_trip, .. } = settings.racks;
    let lease_cycles = settings.lease_cycles;
    let mut config = Config { lease_cycles, second_round, ..config().across(round_trip) };
    if settings.key.is_some() {
        config.datagram_bytes = NETWORK_BYTES - sealed::OVERHEAD_BYTES;
    }
    config
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
                let mut commands = self.look_at_sessions();
                if self.reaped_at.elapsed() >= self.shared.settings.zookeeper.reap_every() {
                    self.reaped_at = Instant::now();
                    commands.extend(self.look_at_keys());
                }
                for command in commands {
                    let call =
                        Call { session: 0, opened: 0, sequence: 0, at_ms: now_ms(), command };
                    let input = Input::call(&call, None);
                    self.put_in(input, turns, &mut machines[0], port)?;
                }
                self.shared.note(&machines[0]);
                self.warn_of_awaited(&machines[0]);
            }
            if core::mem::take(&mut self.wants_checkpoint) {
                let shared = Arc::clone(&self.shared);
                let give = |m: &mut Canopus, _: Timestamp| {
                    let keys = shared.keys();
                    m.checkpoint_with(keys.bytes(), |out| keys.put(out))
                };
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
        let sequence = self.last;
        let is_in = match input {
            Input::Outside(list) => {
                let give = |machine: &mut Canopus, now| machine.outside(now, list.as_ref());
                let taken =
                    turns.input(0, machine, port, give, &mut |_, _, event| self.take(event))?;
                self.warn_of_refused(taken);
                return Ok(());
            }
            Input::FrontEnded => return Err(ServiceError::FrontEnded),
            Input::Retire(rack) => {
                let retire = |machine: &mut Canopus, now| {
                    let leaf = machine.leaves().nth(rack);
                    leaf.map_or(Ok(()), |leaf| machine.retire(now, leaf))
                };
                turns.input(0, machine, port, retire, &mut |_, _, event| self.take(event))?
            }
            Input::Call(body, lease, asked) => {
                let connection = asked.map_or(0, |asked| asked.connection + 1);
                let client = self.client.wrapping_add(connection);
                asked.map(|asked| self.calls.insert(sequence, (client, asked)));
                let request = Request { client, sequence, body };
                turns.input(
                    0,
                    machine,
                    port,
                    |machine, now| machine.submit_to(now, request, lease),
                    &mut |_, _, event| self.take(event),
                )?
            }
            Input::Sync(asked, lease) => {
                self.syncs.insert(sequence, asked);
                turns.input(
                    0,
                    machine,
                    port,
                    |machine, now| match lease {
                        Some(lease) => machine.read_of(now, sequence, lease),
                        None => machine.read(now, sequence),
                    },
                    &mut |_, _, event| self.take(event),
                )?
            }
        };
        if let Err(error) = is_in {
            tracing::debug!("a call was refused: {error}");
            // The refused call may have proposed a limit, which has to be proposed again.
            self.limit_asked = None;
            let call = self.calls.remove(&sequence).map(|(_, asked)| asked);
            let asked = call.or_else(|| self.syncs.remove(&sequence));
            self.tell(asked, Answer::Unknown);
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
                let answer = Answer::Applied(Reply::default(), revision);
                let due = reads.iter().filter_map(|read| self.syncs.remove(&read.token));
                self.shared.tell(due.map(|asked| Notice::Answer(asked, answer.clone())));
            }
            Event::Installed { snapshot, unknown, .. } => {
                match Keys::decode(&snapshot) {
                    Ok(keys) => self.shared.replace(keys),
                    Err(error) => self.ended = Some(ServiceError::Snapshot(error)),
                }
                for (_, sequence) in unknown {
                    let asked = self.calls.remove(&sequence).map(|(_, asked)| asked);
                    self.tell(asked, Answer::Unknown);
                }
            }
            Event::Answered(token) => {
                self.shared.counters.reads_at_once.fetch_add(1, Relaxed);
                let asked = self.syncs.remove(&token);
                let revision = self.shared.keys().revision();
                self.tell(asked, Answer::Applied(Reply::default(), revision));
            }
            Event::CheckpointWanted => self.wants_checkpoint = true,
            Event::OutsideWanted(wanted) => {
                // A thread that is still busy gets the change after the next heartbeat.
                let asked = self.membership.as_ref().map(|asks| asks.try_send(wanted));
                if let Some(Err(TrySendError::Disconnected(_))) = asked {
                    self.membership = None;
                    tracing::error!(
                        "the thread of the membership service has ended: start this replica again"
                    );
                }
            }
            Event::Stopped(error) => self.ended = Some(ServiceError::Disk(error)),
            Event::DiskFull(error) => {
                tracing::warn!("the disk is full, this replica waits: {error}")
            }
            Event::DiskBack => tracing::info!("the disk has room again"),
            Event::Expelled => tracing::warn!("the other replicas go on without this one"),
            Event::Joined(cycle) => tracing::info!("this replica takes part from cycle {cycle} on"),
            Event::Learns => tracing::warn!(
                "the log is empty, and the other replicas know an earlier log of this one: it \
                 learns from them before it votes"
            ),
            Event::Learned => tracing::info!("this replica votes again"),
            Event::Behind(cycle) => {
                tracing::info!("cycle {cycle} is missing: a snapshot is fetched")
            }
            _ => {}
        }
    }

    /// Says which replicas have to answer before this one takes requests.
    fn warn_of_awaited(&mut self, machine: &Canopus) {
        if self.awaited_at.elapsed() < AWAITED_EVERY {
            return;
        }
        let (awaited, finds_earlier_list) = (machine.awaited(), machine.finds_earlier_list());
        if awaited.is_empty() && !finds_earlier_list {
            return;
        }
        self.awaited_at = Instant::now();
        if finds_earlier_list {
            tracing::error!(
                "all replicas are new, and the membership service has the list of an earlier \
                 cluster: if its directories are gone, stop all replicas and remove the key"
            );
            return;
        }
        let replicas = &self.shared.settings.replicas;
        let at: Vec<String> =
            awaited.iter().map(|node| replicas[node.0 as usize].to_string()).collect();
        tracing::warn!(
            "waits for the replicas at {}: a replica with an empty log takes part when all others \
             have told what they know of it",
            at.join(", ")
        );
    }

    /// Says once why the list of the membership service is refused.
    fn warn_of_refused(&mut self, taken: Result<(), OrderError>) {
        let said = taken.err().map(|error| error.to_string()).unwrap_or_default();
        if !said.is_empty() && said != self.refused {
            tracing::warn!("{said}: no rack that vanishes is left out");
        }
        self.refused = said;
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
            let Kind::Timed(ttl_ms) = entry.kind else {
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
        let nodes = self.shared.settings.replicas.len() as u32;
        (!over.is_empty()).then_some(Command::Reap { node: self.node.0, nodes, keys: over })
    }

    /// Answers a call or a sync of a client.
    fn tell(&self, asked: Option<Asked>, answer: Answer) {
        self.shared.tell(asked.map(|asked| Notice::Answer(asked, answer)));
    }
}
