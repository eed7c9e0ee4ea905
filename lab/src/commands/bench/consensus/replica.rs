//! One replica of `evenfall bench consensus`, in a process of its own: a machine on a socket, a map
//! of keys to values, and connections of the load generator.
//!
//! ```text
//!  connection ──> reader thread ──requests──> replica thread: machine, UDP port, log, map
//!      ^                                           │ executes what is committed
//!      └────────────── answers of a cycle ─────────┘
//!
//!  request  sequence u64, key u64, value        answer  sequence u64
//! ```
//!
//! The replica prints its address, answers until SIGTERM, and then prints a line of JSON
//! ([`ReplicaEnd`]).

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenfall_campaigns::consensus::ordered::{Ordered, Replicas};
use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_consensus_machine::{
    ClientRequest, Config, ConsensusError, Event, LeafMember, LeafOnlyTree, LeaseKey, SecondRound,
    SuperLeaf, journal,
};
use evenfall_core::math::{FNV_BASIS, fnv1a};
use evenfall_core::{ClockReading, NodeId, Timestamp};
use evenfall_host::writes::Writes;
use evenfall_host::{Waker, interrupt, random};
use evenfall_port::run::Loop;
use evenfall_runtime::program::Outcome;
use humantime::parse_duration;
use serde::{Deserialize, Serialize};

/// Bytes of the sequence in front of a request, and of an answer.
pub const SEQUENCE_BYTES: usize = 8;
/// Bytes of a key.
pub const KEY_BYTES: usize = 8;
/// Bytes that one read of a connection takes.
const CHUNK_BYTES: usize = 64 << 10;
/// Limit of the chunks that wait for the replica thread. A connection with a further chunk waits,
/// so that the generator waits too.
const CHUNKS_MAX: usize = 64;

/// Arguments of the hidden `evenfall bench consensus-replica`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The protocol.
    #[arg(long, default_value_t = Protocol::Canopus)]
    protocol: Protocol,
    /// Number of this replica.
    #[arg(long)]
    node: u32,
    /// Addresses of all replicas.
    #[arg(long, value_delimiter = ',')]
    replicas: Vec<SocketAddr>,
    /// Number of super-leaves.
    #[arg(long)]
    racks: usize,
    /// How super-leaves agree which of their states a cycle has.
    #[arg(long)]
    second_round: SecondRound,
    /// Bytes of a value.
    #[arg(long)]
    value_bytes: usize,
    /// Shortest time between the starts of two cycles, or between two batches of a rival.
    #[arg(long, value_parser = parse_duration)]
    cycle_every: Duration,
    /// Cycles under way at once.
    #[arg(long)]
    pipeline: u64,
    /// Directory of the log. Without it the replica keeps no log.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// The last line of a replica.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReplicaEnd {
    /// Cycles that were committed.
    pub cycles: u64,
    /// Requests that were executed.
    pub executed: u64,
    /// A digest of the executed requests, in order. The digest is 0 with EPaxos, because its
    /// replicas may execute requests that have no key in common in different orders.
    pub digest: u64,
    /// Number of datagrams that this replica dropped because its port was too slow.
    pub dropped: u64,
}

/// The tree of this many racks. The replicas are spread over the racks in the order of their names.
pub fn tree(replicas: &[SocketAddr], racks: usize) -> Result<LeafOnlyTree, ConsensusError> {
    let size = replicas.len().div_ceil(racks.max(1)).max(1);
    let member = |(node, address): (usize, &SocketAddr)| LeafMember {
        node: NodeId(node as u32),
        address: *address,
    };
    let members: Vec<LeafMember> = replicas.iter().enumerate().map(member).collect();
    let path = |rack: usize| if racks > 1 { vec![rack as u8] } else { Vec::new() };
    let leaf = |(rack, members): (usize, &[LeafMember])| SuperLeaf {
        path: path(rack),
        members: members.to_vec(),
    };
    LeafOnlyTree::new(members.chunks(size).enumerate().map(leaf).collect())
}

/// A connection of the load generator, by the name under which its requests are ordered.
type Connections = Arc<Mutex<HashMap<u64, TcpStream>>>;

/// The owner of a replica. The owner executes requests on a map, as the replicas in benchmarks of
/// other protocols do.
struct Owner {
    node: NodeId,
    is_total: bool,
    map: HashMap<u64, Box<[u8]>>,
    connections: Connections,
    answers: HashMap<u64, Vec<u8>>,
    end: ReplicaEnd,
    wants_checkpoint: bool,
    failure: Option<String>,
}

impl Owner {
    fn take(&mut self, event: Event) {
        match event {
            Event::Committed { state, .. } => {
                self.end.cycles += 1;
                for set in &state.sets {
                    if self.is_total {
                        self.end.digest =
                            fnv1a(self.end.digest ^ set.number, &set.node.0.to_le_bytes());
                    }
                    self.end.executed += set.requests.len() as u64;
                    let is_own = set.node == self.node;
                    for request in &set.requests {
                        self.execute(&request.body);
                        if is_own {
                            let answers = self.answers.entry(request.client).or_default();
                            answers.extend_from_slice(&request.sequence.to_le_bytes());
                        }
                    }
                }
                self.answer();
            }
            Event::CheckpointWanted => self.wants_checkpoint = true,
            Event::Stopped(error) | Event::DiskFull(error) => {
                self.failure = Some(error.to_string());
            }
            Event::Expelled => aside!("replica {} was suspected and expelled", self.node),
            _ => {}
        }
    }

    fn execute(&mut self, body: &[u8]) {
        let Some((key, value)) = body.split_first_chunk() else { return };
        let known = self.map.entry(u64::from_le_bytes(*key)).or_default();
        match known.len() == value.len() {
            true => known.copy_from_slice(value),
            false => *known = value.into(),
        }
    }

    /// Sends the answers of a cycle. A connection has room for the answers, because the answers to
    /// all requests that the generator has under way fit the buffers of a socket.
    fn answer(&mut self) {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for (client, answers) in &mut self.answers {
            if let Some(mut stream) = connections.get(client)
                && !answers.is_empty()
            {
                // A generator that has gone takes no answers.
                let _ = stream.write_all(answers);
            }
            answers.clear();
        }
    }

    fn snapshot(&self) -> Bytes {
        let mut all: Vec<_> = self.map.iter().collect();
        all.sort_unstable();
        all.iter().flat_map(|(key, value)| [&key.to_le_bytes(), &value[..]].concat()).collect()
    }
}

/// Runs a replica until SIGTERM.
pub fn main(args: &Args) -> Outcome {
    interrupt::install()?;
    let own = args.replicas.get(args.node as usize).ok_or("--node: no such replica")?;
    let options = evenfall_consensus_replica::options();
    let mut port = evenfall_port::open(*own, options)?;
    let mut machines = [machine(args, random::number()?)?];
    let mut turns = Loop::new();
    if let Some(dir) = &args.dir {
        turns = turns.with_writes(0, Writes::open(dir)?);
        if std::fs::metadata(dir.join(journal::LOG)).is_ok() {
            return Err("--dir: has a log already".into());
        }
    }
    let connections = Connections::default();
    let (chunks, taken) = sync_channel(CHUNKS_MAX);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let door = Door {
        node: args.node,
        frame_bytes: SEQUENCE_BYTES + KEY_BYTES + args.value_bytes,
        connections: Arc::clone(&connections),
        chunks,
        waker: port.waker(),
    };
    std::thread::spawn(move || door.accept(&listener));
    let _watch = interrupt::watch(port.waker())?;
    let mut owner = Owner {
        node: NodeId(args.node),
        is_total: args.protocol.is_total(),
        map: HashMap::new(),
        connections,
        answers: HashMap::new(),
        end: ReplicaEnd { cycles: 0, executed: 0, digest: FNV_BASIS, dropped: 0 },
        wants_checkpoint: false,
        failure: None,
    };
    let reading = ClockReading::default();
    turns.adopt_clock(reading, &mut machines, port.as_mut(), &mut |_, _, e| owner.take(e))?;
    say!("serving {address}");
    let frame_bytes = SEQUENCE_BYTES + KEY_BYTES + args.value_bytes;
    while !interrupt::raised() {
        turns.turn(&mut machines, port.as_mut(), None, &mut |_, _, event| owner.take(event))?;
        for (client, chunk) in taken.try_iter().take(CHUNKS_MAX) {
            let submit =
                |replica: &mut Ordered, now| submit(replica, now, client, &chunk, frame_bytes);
            let events = &mut |_: &Ordered, _, event| owner.take(event);
            turns.input(0, &mut machines[0], port.as_mut(), submit, events)??;
        }
        if core::mem::take(&mut owner.wants_checkpoint) {
            let snapshot = owner.snapshot();
            let give = |replica: &mut Ordered, now| {
                replica.checkpoint(&snapshot);
                replica.settle(now);
            };
            let events = &mut |_: &Ordered, _, event| owner.take(event);
            turns.input(0, &mut machines[0], port.as_mut(), give, events)?;
        }
        if let Some(failure) = owner.failure {
            return Err(failure.into());
        }
    }
    owner.end.dropped = machines[0].dropped();
    say!("{}", serde_json::to_string(&owner.end)?);
    Ok(())
}

/// The replica that the arguments ask for.
fn machine(args: &Args, seed: u64) -> Result<Ordered, ConsensusError> {
    let usual = evenfall_consensus_replica::config();
    let replicas = Replicas {
        protocol: args.protocol,
        config: Config {
            cycle_every: args.cycle_every,
            pipeline: args.pipeline,
            second_round: args.second_round,
            ..usual
        },
        tree: &tree(&args.replicas, args.racks)?,
        leader: 0,
        // As in the public benchmarks, no two clients write the same key.
        has_keys: false,
        in_memory: args.dir.is_none(),
    };
    replicas.replica(args.node, seed)
}

/// Submits the requests of a chunk.
fn submit(
    replica: &mut Ordered,
    now: Timestamp,
    client: u64,
    chunk: &Bytes,
    frame_bytes: usize,
) -> Result<(), ConsensusError> {
    for at in (0..chunk.len()).step_by(frame_bytes) {
        let frame = chunk.slice(at..at + frame_bytes);
        let sequence = frame.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let body = frame.slice(SEQUENCE_BYTES..);
        replica.write(now, ClientRequest { client, sequence, body }, LeaseKey::ALL)?;
    }
    replica.settle(now);
    Ok(())
}

/// Where the load generator connects.
struct Door {
    node: u32,
    frame_bytes: usize,
    connections: Connections,
    chunks: SyncSender<(u64, Bytes)>,
    waker: Waker,
}

impl Door {
    fn accept(self, listener: &TcpListener) {
        let door = Arc::new(self);
        for (number, stream) in (0_u64..).zip(listener.incoming()) {
            let Ok(stream) = stream else { return };
            let door = Arc::clone(&door);
            std::thread::spawn(move || {
                if let Err(error) = door.read(number << 32 | u64::from(door.node), stream) {
                    aside!("a connection of the generator: {error}");
                }
            });
        }
    }

    fn read(&self, client: u64, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let own = stream.try_clone()?;
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).insert(client, own);
        let (mut buffer, mut kept) = (vec![0; CHUNK_BYTES], 0);
        loop {
            let count = stream.read(&mut buffer[kept..])?;
            if count == 0 {
                return Ok(());
            }
            let length = kept + count;
            let whole = length / self.frame_bytes * self.frame_bytes;
            if whole > 0 {
                let chunk = Bytes::copy_from_slice(&buffer[..whole]);
                if self.chunks.send((client, chunk)).is_err() {
                    return Ok(());
                }
                self.waker.wake();
            }
            buffer.copy_within(whole..length, 0);
            kept = length - whole;
        }
    }
}
