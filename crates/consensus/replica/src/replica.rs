//! The machine of a replica, its port and its log: requests and reads in, events out.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_consensus_machine::external_membership::WantedChange;
use evenfall_consensus_machine::{
    ClientRequest, Config, Consensus, ConsensusError, ConsensusStart, ConsensusStatus, Event,
    LeaseKey, journal,
};
use evenfall_core::{ClockReading, NodeId, Timestamp};
use evenfall_host::writes::Writes;
use evenfall_host::{Waker, random};
use evenfall_port::run::Loop;
use evenfall_port::sealed::{self, Sealed};
use evenfall_port::{Options, Port};

use crate::{
    MembershipService, RackSettings, ReplicaError, Settings, cluster, external_membership,
};

/// Limit of the bytes of a node's requests in one cycle. The longest value of a key fits, with room
/// for its call.
const BATCH_BYTES: usize = 2 << 20;
/// How often the membership service is read in the time after which a rack has vanished.
const READS_PER_VANISHED: u32 = 8;
/// Longest datagram between hosts. Ethernet carries it in one piece, with room for the headers of
/// tunnels.
const NETWORK_BYTES: usize = 1_400;
/// Time between two lines about the replicas that a replica waits for: replicas of one cluster are
/// started within seconds of each other.
const AWAITED_EVERY: Duration = Duration::from_secs(5);
/// The lists of the membership service that wait to be taken: a newer list replaces an older one,
/// so that the service's thread may wait.
const LISTS_MAX: usize = 1;
/// What the seal of replicas' datagrams is bound to. Replicas of builds that called the protocol
/// `order` have the same words, so that the two talk to each other.
const SEALED_FOR: &str = "evenfall order v2 datagrams";

/// What takes the events of a replica.
pub type Take<'a> = &'a mut dyn FnMut(Event);

/// The machine of a replica, whatever its protocol.
type AnyConsensus = Box<dyn Consensus>;

/// See the module documentation.
pub struct Replica {
    machines: [AnyConsensus; 1],
    turns: Loop,
    port: Box<dyn Port>,
    replicas: Vec<SocketAddr>,
    /// What the membership service outside has.
    lists: Receiver<Option<Bytes>>,
    /// The thread that talks to the membership service outside.
    membership: Option<SyncSender<WantedChange>>,
    /// Why the last list of the service was refused; empty when it was taken.
    refused: String,
    /// When this replica last looked for other replicas that it waits for.
    awaited_at: Instant,
    /// Keeps a second replica from writing into the same directory.
    _lock: File,
}

/// A random number that is not 0 and has 63 bits.
///
/// # Errors
/// The kernel gives none.
pub fn random_number() -> Result<u64, ReplicaError> {
    let failed = |error| ReplicaError::Io("read a random number".into(), error);
    Ok((random::number().map_err(failed)? >> 1) | 1)
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
    let RackSettings { second_round, round_trip, .. } = settings.racks;
    let lease_cycles = settings.lease_cycles;
    let mut config = Config { lease_cycles, second_round, ..config().across(round_trip) };
    if settings.key.is_some() {
        config.datagram_bytes = NETWORK_BYTES - sealed::OVERHEAD_BYTES;
    }
    config
}

/// What the machine of a replica with this log is made of.
fn start_of(
    settings: &Settings,
    config: Config,
    log: Bytes,
) -> Result<ConsensusStart, ReplicaError> {
    let (tree, me) = (settings.tree()?, NodeId(settings.node as u32));
    Ok(ConsensusStart { config, tree, me, seed: random_number()?, log })
}

/// The error of a replica whose machine was not made. When the log is the reason, the error names
/// the log.
fn name_refused_log(settings: &Settings, error: ConsensusError) -> ReplicaError {
    match error {
        ConsensusError::Log(_)
        | ConsensusError::Record(_)
        | ConsensusError::OtherNode(_)
        | ConsensusError::OtherLeases { .. }
        | ConsensusError::OtherPipeline { .. }
        | ConsensusError::OtherRounds(_) => {
            ReplicaError::Log(settings.directory.join(journal::LOG), error)
        }
        _ => error.into(),
    }
}

/// Keeps a second replica from writing into the same directory.
fn lock(directory: &Path) -> Result<File, ReplicaError> {
    let failed = |error| ReplicaError::Io(format!("lock {}", directory.display()), error);
    evenfall_host::lock::directory(directory).map_err(failed)
}

/// The port of a replica. Its datagrams are sealed where there is a key.
fn open_port(settings: &Settings) -> Result<Box<dyn Port>, ReplicaError> {
    let address = settings.replicas[settings.node];
    let Some(key) = &settings.key else { return Ok(evenfall_port::open(address, options())?) };
    let port = evenfall_port::open(address, options().keyed())?;
    let failed = |error| ReplicaError::Io("read a random number".into(), error);
    Ok(Box::new(Sealed::new(port, key, SEALED_FOR).map_err(failed)?))
}

impl Replica {
    /// A replica of Canopus with the log of its directory. The membership service is for a [second
    /// round](RackSettings::second_round) that is decided outside.
    ///
    /// # Errors
    /// When an address cannot be had, or when the log cannot be read.
    pub fn open(
        settings: &Settings,
        membership: Option<Box<dyn MembershipService>>,
    ) -> Result<Self, ReplicaError> {
        Self::open_with(settings, membership, ConsensusStart::open_canopus)
    }

    /// As [`open`](Self::open), with the protocol of the machine that `open_machine` makes. All
    /// replicas need the same protocol. A directory belongs to the protocol of its first start.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what `open_machine` refuses.
    pub fn open_with(
        settings: &Settings,
        membership: Option<Box<dyn MembershipService>>,
        open_machine: impl FnOnce(ConsensusStart) -> Result<AnyConsensus, ConsensusError>,
    ) -> Result<Self, ReplicaError> {
        let at = settings.directory.display();
        let failed = |error| ReplicaError::Io(format!("open {at}"), error);
        let lock = lock(&settings.directory)?;
        let writes = Writes::open(&settings.directory).map_err(failed)?;
        let log = writes.read(journal::LOG).map_err(ReplicaError::Disk)?;
        let (config, log_bytes) = (configured(settings), log.len() as u64);
        let machine = open_machine(start_of(settings, config, log)?);
        let machine = machine.map_err(|error| name_refused_log(settings, error))?;
        cluster::check(settings)?;
        let advice = "give this replica an empty directory while the others run";
        writes.warn_of_cut(journal::LOG, log_bytes, machine.status().logged_bytes, advice);
        let port = open_port(settings)?;
        let (give, lists) = sync_channel(LISTS_MAX);
        let every = config.vanish_after / READS_PER_VANISHED;
        let start = |service| external_membership::start(service, give, port.waker(), every);
        Ok(Self {
            machines: [machine],
            turns: Loop::new().with_writes(0, writes),
            replicas: settings.replicas.clone(),
            lists,
            membership: membership.map(start).transpose()?,
            refused: String::new(),
            awaited_at: Instant::now(),
            port,
            _lock: lock,
        })
    }

    /// The machine, to look at.
    pub fn machine(&self) -> &dyn Consensus {
        self.machines[0].as_ref()
    }

    /// What ends the wait of [`turn`](Self::turn).
    pub fn waker(&self) -> Waker {
        self.port.waker()
    }

    /// Starts the machine. A clock reading is its first input. Before it, the machine reports the
    /// contents of its log.
    ///
    /// # Errors
    /// When the port fails.
    pub fn start(&mut self, take: Take<'_>) -> Result<(), ReplicaError> {
        let Self { turns, machines, port, .. } = self;
        let mut take = |_: &AnyConsensus, _: Timestamp, event: Event| take(event);
        turns.adopt_clock(ClockReading::default(), machines, port.as_mut(), &mut take)?;
        Ok(())
    }

    /// Does what is due, and waits for more when nothing is.
    ///
    /// # Errors
    /// When the port fails.
    pub fn turn(&mut self, take: Take<'_>) -> Result<(), ReplicaError> {
        let Self { turns, machines, port, membership, .. } = self;
        turns.turn(machines, port.as_mut(), None, &mut |_, _, event| {
            pass(event, membership, take);
        })?;
        while let Ok(list) = self.lists.try_recv() {
            let taken =
                self.input(take, |machine, now| machine.take_external_list(now, list.as_ref()))?;
            self.warn_of_refused(taken);
        }
        self.warn_of_awaited();
        Ok(())
    }

    /// Proposes a request, and returns why the machine refuses it. `lease` is the write lease that
    /// the request needs.
    ///
    /// # Errors
    /// When the port fails.
    pub fn submit(
        &mut self,
        request: ClientRequest,
        lease: LeaseKey,
        take: Take<'_>,
    ) -> Result<Result<(), ConsensusError>, ReplicaError> {
        self.input(take, |machine, now| machine.propose(now, request, lease))
    }

    /// Asks for a moment that is behind all writes that were answered before, or behind all such
    /// writes of one lease.
    ///
    /// # Errors
    /// When the port fails.
    pub fn read(
        &mut self,
        token: u64,
        lease: Option<LeaseKey>,
        take: Take<'_>,
    ) -> Result<Result<(), ConsensusError>, ReplicaError> {
        self.input(take, |machine, now| machine.read_index(now, token, lease))
    }

    /// Hands in the plan that the rack of this place among all racks leaves.
    ///
    /// # Errors
    /// When the port fails.
    pub fn retire(
        &mut self,
        rack: usize,
        take: Take<'_>,
    ) -> Result<Result<(), ConsensusError>, ReplicaError> {
        self.input(take, |machine, now| machine.retire_rack(now, rack))
    }

    /// Gives the checkpoint that the replica wants: about this many bytes, which `put` adds.
    ///
    /// # Errors
    /// When the port fails.
    pub fn checkpoint(
        &mut self,
        bytes: usize,
        put: impl FnOnce(&mut Vec<u8>),
        take: Take<'_>,
    ) -> Result<(), ReplicaError> {
        self.input(take, |machine, now| machine.compact(now, bytes, Box::new(put)))
    }

    /// Hands something to the machine.
    fn input<T>(
        &mut self,
        take: Take<'_>,
        give: impl FnOnce(&mut dyn Consensus, Timestamp) -> T,
    ) -> Result<T, ReplicaError> {
        let Self { turns, machines: [machine], port, membership, .. } = self;
        let mut take = |_: &AnyConsensus, _: Timestamp, event| pass(event, membership, take);
        let give = |machine: &mut AnyConsensus, now| give(machine.as_mut(), now);
        Ok(turns.input(0, machine, port.as_mut(), give, &mut take)?)
    }

    /// Says which replicas have to answer before this one takes requests.
    fn warn_of_awaited(&mut self) {
        if self.awaited_at.elapsed() < AWAITED_EVERY {
            return;
        }
        self.awaited_at = Instant::now();
        let ConsensusStatus { awaited, finds_earlier_list, .. } = self.machines[0].status();
        if awaited.is_empty() && !finds_earlier_list {
            return;
        }
        if finds_earlier_list {
            tracing::error!(
                "all replicas are new, and the membership service has the list of an earlier \
                 cluster: if its directories are gone, stop all replicas and remove the key"
            );
            return;
        }
        let at: Vec<String> =
            awaited.iter().map(|node| self.replicas[node.0 as usize].to_string()).collect();
        tracing::warn!(
            "waits for the replicas at {}: a replica with an empty log takes part when all others \
             have told what they know of it",
            at.join(", ")
        );
    }

    /// Says once why the list of the membership service is refused.
    fn warn_of_refused(&mut self, taken: Result<(), ConsensusError>) {
        let said = taken.err().map(|error| error.to_string()).unwrap_or_default();
        if !said.is_empty() && said != self.refused {
            tracing::warn!("{said}: no rack that vanishes is left out");
        }
        self.refused = said;
    }
}

/// Says what an event means for an operator, and hands the event to the owner unless it is for the
/// membership service.
fn pass(event: Event, membership: &mut Option<SyncSender<WantedChange>>, take: Take<'_>) {
    match &event {
        Event::DiskFull(error) => {
            tracing::warn!("the disk is full, this replica waits: {error}");
        }
        Event::DiskBack => tracing::info!("the disk has room again"),
        Event::Expelled => tracing::warn!("the other replicas go on without this one"),
        Event::Joined(cycle) => tracing::info!("this replica takes part from cycle {cycle} on"),
        Event::Learns => tracing::warn!(
            "the log is empty, and the other replicas know an earlier log of this one: it learns \
             from them before it votes"
        ),
        Event::Learned => tracing::info!("this replica votes again"),
        Event::Behind(cycle) => tracing::info!("cycle {cycle} is missing: a snapshot is fetched"),
        _ => {}
    }
    let Event::ExternalChangeWanted(wanted) = event else { return take(event) };
    // A thread that is still busy gets the change after the next heartbeat.
    let asked = membership.as_ref().map(|asks| asks.try_send(wanted));
    if let Some(Err(TrySendError::Disconnected(_))) = asked {
        *membership = None;
        tracing::error!("the thread of the membership service has ended: start this replica again");
    }
}
