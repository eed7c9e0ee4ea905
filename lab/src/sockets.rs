//! The real network: TCP between namespaces of this machine, over routers with limited links.
//!
//! ```text
//!   coordinator (the policy)  --part, way-->  reader thread in the client's namespace
//!                             <--"done"-----     |  ^
//!                                        length  v  | bytes
//!                                             server thread in the copy's namespace
//! ```
//!
//! The switches are routers of the kernel or bridges of Open vSwitch ([`Switches`]). Before
//! routers, a reader asks from the address of the path that the policy chose. Bridges get rules for
//! the path ([`Controller`]), and their counters are what the policy learns. A path by hash is that
//! of the source port with both. A change of address or port is a new connection, which asks for
//! the rest; bytes of the old connection that are under way are lost.
//!
//! A reader asks for at most [`AHEAD_BYTES`] that have not arrived. When another copy takes over
//! the rest of a part, the reader throws away what it has asked for beyond its own bytes, and keeps
//! the connection.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenfall_files_flow::{
    FlowId, FlowRoute, LinkIndex, Policy, ThreeTier, Topology, TopologyNode,
};
use evenfall_host::interrupt;
use evenfall_studies::files::scene::{self, FlowNetwork, ReadPlan, ReadTimes, Way};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

use crate::controller::{Controller, PathSteps};
use crate::networks::{Fabric, NetworkLab};

/// Port of the servers.
const PORT: u16 = 7_000;
/// First source port of flows whose path is hashed, and the number of such ports. The kernel hands
/// out the ports from 32,768 on to other connections.
const PORTS: (u16, u16) = (10_000, 20_000);
/// First source port of flows with rules of a controller, and the number of such ports.
const STEERED_PORTS: (u16, u16) = (2_000, 5_000);
/// Bytes that are read or written at once.
const PIECE_BYTES: usize = 64 << 10;
/// Most bytes that are asked for and have not arrived: twice what the queue before a link holds, so
/// that TCP's congestion control limits a flow and not its reader.
const AHEAD_BYTES: u64 = 300_000;
/// How long a thread waits for bytes or connections before it looks whether the run is over.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that a flow tries in a row.
const TRIES: u32 = 20;
/// A run in which no part of a read ends for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The kind of the switches between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switches {
    /// Namespaces that route in the kernel, with an address of each host for each path.
    Routers,
    /// Bridges of Open vSwitch's userspace datapath, with rules for each read by OpenFlow 1.3.
    OpenVswitch,
}

/// The controller, and the source port of the next flow with rules.
struct Steered {
    controller: Controller,
    port: u16,
}

/// A data centre of namespaces with a server on every host.
pub struct Sockets {
    // The controller's connections end before the switches.
    steered: Option<Mutex<Steered>>,
    lab: NetworkLab,
    fabric: Fabric,
    spec: ThreeTier,
    /// The port by which a switch reaches a neighbour, by numbers of nodes.
    ports: BTreeMap<(usize, usize), u32>,
    is_over: Arc<Mutex<bool>>,
}

/// A connection of a reader.
struct Connection {
    /// The number of its way.
    way: u32,
    stream: TcpStream,
    /// Bytes that were asked for and have not arrived, without `stale`.
    asked: u64,
    /// Bytes that will arrive first, and that belong to another copy's part now.
    stale: u64,
}

/// What the coordinator wants of a reader, and how far the reader is.
struct Want {
    /// Bytes that have arrived, and bytes that shall arrive, since the flow began.
    moved: u64,
    target: u64,
    /// Whether the coordinator knows that all wanted bytes are there.
    is_told: bool,
    /// The number of the way, the reader's address on it, and the server's address.
    way: (u32, SocketAddrV4, SocketAddrV4),
    is_over: bool,
}

/// What the coordinator and a reader share.
struct Shared {
    want: Mutex<Want>,
    changed: Condvar,
}

type Told = (FlowId, Result<(), String>);

/// One run.
struct Flows<'a> {
    sockets: &'a Sockets,
    topology: Topology,
    begun: Instant,
    flows: BTreeMap<FlowId, (Arc<Shared>, u64)>,
    tell: Sender<Told>,
    told: Receiver<Told>,
    heard: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bits(bytes_per_s: f64) -> u64 {
    (bytes_per_s * 8.0).round() as u64
}

impl Sockets {
    /// Makes the namespaces of `spec`, and starts the servers.
    ///
    /// # Errors
    /// When this process is not root, the kernel has no such links, or there are no such switches.
    pub fn new(
        spec: &ThreeTier,
        switches: Switches,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let fabric = Fabric {
            pods: spec.pods as usize,
            racks: spec.racks as usize,
            hosts: spec.hosts as usize,
            aggs: spec.aggs as usize,
            cores: spec.cores as usize,
            host_bits_per_s: bits(spec.host_bytes_per_s),
            rack_bits_per_s: bits(spec.rack_bytes_per_s),
            core_bits_per_s: bits(spec.core_bytes_per_s),
        };
        let (lab, steered) = match switches {
            Switches::Routers => (NetworkLab::with_fabric(fabric)?, None),
            Switches::OpenVswitch => {
                let lab = NetworkLab::with_switches(fabric)?;
                let controller = Controller::new(&lab, fabric.switch_count())?;
                (lab, Some(Mutex::new(Steered { controller, port: 0 })))
            }
        };
        let (ports, is_over) = (fabric.ports(), Arc::default());
        let sockets = Self { steered, lab, fabric, spec: spec.clone(), ports, is_over };
        for host in 0..fabric.host_count() {
            let address = SocketAddrV4::new(fabric.address(host, None), PORT);
            let failed = |source| evenfall_host::Error::Os {
                what: format!("listen on {address}"),
                source,
                advice: "",
            };
            let listener = sockets.lab.hosts.within(host, || TcpListener::bind(address))?;
            let listener = listener.map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let is_over = Arc::clone(&sockets.is_over);
            std::thread::spawn(move || serve(&listener, &is_over));
        }
        Ok(sockets)
    }

    /// Runs all reads to their ends.
    ///
    /// # Errors
    /// When a connection fails, no byte comes for a minute, or a signal came.
    pub fn run(&self, plan: ReadPlan<'_>, policy: &mut dyn Policy) -> Result<ReadTimes, String> {
        let (tell, told) = channel();
        let (now, topology) = (Instant::now(), self.spec.build());
        let flows = BTreeMap::new();
        let mut network =
            Flows { sockets: self, topology, begun: now, flows, tell, told, heard: now };
        scene::run(plan, policy, &mut network)
    }

    /// The lab, for its processes and rules.
    pub fn lab(&self) -> &NetworkLab {
        &self.lab
    }

    /// The seconds that each set-up of a path by rules has taken since the last call.
    pub fn setups_s(&self) -> Vec<f64> {
        self.steered.as_ref().map_or(Vec::new(), |steered| lock(steered).controller.setups_s())
    }

    /// The address from which a client asks, so that the answers take this way. `before` is the
    /// address from which the client asks at present.
    fn source(
        &self,
        topology: &Topology,
        flow: FlowId,
        way: Way<'_>,
        before: Option<SocketAddrV4>,
    ) -> Result<SocketAddrV4, String> {
        let to = way.ends[1].0 as usize;
        Ok(match (way.route, &self.steered) {
            (FlowRoute::Path(_), Some(steered)) => {
                let mut steered = lock(steered);
                let from = before.unwrap_or_else(|| {
                    steered.port = (steered.port + 1) % STEERED_PORTS.1;
                    let port = STEERED_PORTS.0 + steered.port;
                    SocketAddrV4::new(self.fabric.address(to, None), port)
                });
                let ends = [self.server(way.ends[0]), from];
                let link = |link: &LinkIndex| topology.links()[link.0 as usize];
                let links: Vec<_> = way.path.iter().map(link).collect();
                // The first link is that from the sender to its switch.
                let ports = links.iter().skip(1).map(|link| {
                    let (from, to) = (link.from.0 as usize, link.to.0 as usize);
                    (from - self.fabric.host_count(), self.ports[&(from, to)])
                });
                let steps = PathSteps { ends, ports: ports.collect() };
                steered.controller.set_up(flow, &steps)?;
                from
            }
            (FlowRoute::Path(_), None) => {
                let path = self.path(topology, way.path);
                SocketAddrV4::new(self.fabric.address(to, path), 0)
            }
            (FlowRoute::Port(port), _) => {
                let port = PORTS.0 + port % PORTS.1;
                SocketAddrV4::new(self.fabric.address(to, None), port)
            }
        })
    }

    fn server(&self, from: TopologyNode) -> SocketAddrV4 {
        SocketAddrV4::new(self.fabric.address(from.0 as usize, None), PORT)
    }

    /// The number of a path in the fabric; `None` within a rack.
    fn path(&self, topology: &Topology, path: &[LinkIndex]) -> Option<usize> {
        let node = |link: &LinkIndex| topology.links()[link.0 as usize].to.0 as usize;
        let over: Vec<usize> = path.iter().map(node).collect();
        let first = self.fabric.host_count();
        let below = self.fabric.aggs + self.fabric.racks;
        let agg = |node: usize| (node - first - self.fabric.cores) % below;
        match over[..] {
            [_, up, _, _] => Some(self.fabric.path(agg(up), 0, 0)),
            [_, up, core, down, _, _] => Some(self.fabric.path(agg(up), core - first, agg(down))),
            _ => None,
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        *lock(&self.is_over) = true;
    }
}

/// Accepts connections until the run is over.
fn serve(listener: &TcpListener, is_over: &Mutex<bool>) {
    use rustix::event::{PollFd, PollFlags, poll};
    let look = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    while !*lock(is_over) {
        let mut wanted = [PollFd::new(listener, PollFlags::IN)];
        // An interrupted wait is a short wait.
        let _ = poll(&mut wanted, Some(&look));
        while let Ok((stream, _)) = listener.accept() {
            // The end of a connection ends its thread, and its reader asks again if need be.
            std::thread::spawn(move || drop(answer(stream)));
        }
    }
}

/// Sends as many bytes as each request asks for, until the reader leaves.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let piece = [0_u8; PIECE_BYTES];
    let mut length = [0; 8];
    loop {
        stream.read_exact(&mut length)?;
        let mut left = u64::from_le_bytes(length);
        while left > 0 {
            let len = left.min(PIECE_BYTES as u64) as usize;
            stream.write_all(&piece[..len])?;
            left -= len as u64;
        }
    }
}

/// Connects from one address to another, in the namespace of this thread.
fn dial(from: SocketAddrV4, to: SocketAddrV4) -> io::Result<TcpStream> {
    let open = |port: u16| -> io::Result<TcpStream> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(*from.ip(), port))?;
        connect(&socket, &to)?;
        Ok(TcpStream::from(socket))
    };
    let is_taken = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
    };
    match open(from.port()) {
        // An earlier connection had the port. The next one is as good for a hash.
        Err(error) if from.port() >= PORTS.0 && is_taken(&error) => {
            open(PORTS.0 + PORTS.1 + from.port() % 2_000)
        }
        done => done,
    }
}

/// Reads what the coordinator wants until the flow is over.
fn read_flow(flow: FlowId, shared: &Shared, tell: &Sender<Told>) {
    let mut connection: Option<Connection> = None;
    let (mut piece, mut failures) = (vec![0; PIECE_BYTES], 0);
    loop {
        let (need, way) = {
            let mut want = lock(&shared.want);
            loop {
                if want.is_over {
                    return;
                }
                if want.moved < want.target {
                    break;
                }
                // Bytes that are under way belong to the other copy's part now.
                if let Some(open) = &mut connection {
                    open.stale += std::mem::take(&mut open.asked);
                }
                if !want.is_told {
                    want.is_told = true;
                    // The coordinator may have ended.
                    drop(tell.send((flow, Ok(()))));
                }
                want = shared.changed.wait(want).unwrap_or_else(PoisonError::into_inner);
            }
            (want.target - want.moved, want.way)
        };
        match step(&mut connection, &mut piece, need, way) {
            Ok(len) => {
                lock(&shared.want).moved += len as u64;
                failures = 0;
            }
            Err(error) => {
                connection = None;
                failures += 1;
                if failures == TRIES {
                    // The coordinator may have ended.
                    drop(tell.send((flow, Err(format!("{} to {}: {error}", way.1, way.2)))));
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Reads once, over a connection of the wanted way. Returns the number of bytes, 0 after a silence
/// or when all of them belong to another copy's part.
fn step(
    connection: &mut Option<Connection>,
    piece: &mut [u8],
    need: u64,
    (way, from, server): (u32, SocketAddrV4, SocketAddrV4),
) -> io::Result<usize> {
    connection.take_if(|open| open.way != way);
    let open = match connection {
        Some(open) => open,
        none => {
            let stream = dial(from, server)?;
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_nodelay(true)?;
            none.insert(Connection { way, stream, asked: 0, stale: 0 })
        }
    };
    let wanted = need.min(AHEAD_BYTES);
    let is_worth = wanted == need || open.asked + PIECE_BYTES as u64 <= AHEAD_BYTES;
    if open.asked < wanted && is_worth {
        open.stream.write_all(&(wanted - open.asked).to_le_bytes())?;
        open.asked = wanted;
    }
    let most = if open.stale > 0 { open.stale } else { need };
    let most = piece.len().min(most as usize);
    match open.stream.read(&mut piece[..most]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(len) if open.stale > 0 => {
            open.stale -= len as u64;
            Ok(0)
        }
        Ok(len) => {
            open.asked -= len as u64;
            Ok(len)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => Ok(0),
        Err(error) => Err(error),
    }
}

impl Flows<'_> {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

impl FlowNetwork for Flows<'_> {
    fn start(&mut self, _: u64, flow: FlowId, way: Way<'_>, bytes: u64) {
        let from = match self.sockets.source(&self.topology, flow, way, None) {
            Ok(from) => from,
            Err(error) => return drop(self.tell.send((flow, Err(error)))),
        };
        let reader = way.ends[1].0 as usize;
        let way = (0, from, self.sockets.server(way.ends[0]));
        let want = Want { moved: 0, target: bytes, is_told: false, way, is_over: false };
        let shared = Arc::new(Shared { want: Mutex::new(want), changed: Condvar::new() });
        self.flows.insert(flow, (Arc::clone(&shared), 0));
        let (tell, failed) = (self.tell.clone(), self.tell.clone());
        // The thread of the reader is in the namespace of the thread that starts it.
        let started = self.sockets.lab.hosts.within(reader, move || {
            std::thread::spawn(move || read_flow(flow, &shared, &tell));
        });
        if let Err(error) = started {
            drop(failed.send((flow, Err(error.to_string()))));
        }
    }

    fn stop(&mut self, _: u64, flow: FlowId) {
        if let Some(steered) = &self.sockets.steered
            && let Err(error) = lock(steered).controller.take_down(flow)
        {
            drop(self.tell.send((flow, Err(error))));
        }
        if let Some((shared, _)) = self.flows.remove(&flow) {
            lock(&shared.want).is_over = true;
            shared.changed.notify_one();
        }
    }

    fn left(&mut self, _: u64, flow: FlowId) -> f64 {
        let Some((shared, seen)) = self.flows.get_mut(&flow) else { return 0.0 };
        let want = lock(&shared.want);
        *seen = want.moved;
        want.target.saturating_sub(want.moved) as f64
    }

    fn resize(&mut self, _: u64, flow: FlowId, bytes: u64) {
        let Some((shared, seen)) = self.flows.get_mut(&flow) else { return };
        let mut want = lock(&shared.want);
        // A flow that has all of its bytes was not asked for its length.
        let from = if want.is_told { want.moved } else { *seen };
        (want.target, want.is_told) = (from + bytes, false);
        shared.changed.notify_one();
    }

    fn reroute(&mut self, _: u64, flow: FlowId, way: Way<'_>) {
        let Some((shared, _)) = self.flows.get(&flow) else { return };
        let (_, before, server_before) = lock(&shared.want).way;
        let server = self.sockets.server(way.ends[0]);
        match self.sockets.source(&self.topology, flow, way, Some(before)) {
            Ok(from) if (from, server) == (before, server_before) => {}
            Ok(from) => {
                let mut want = lock(&shared.want);
                want.way = (want.way.0 + 1, from, server);
            }
            Err(error) => drop(self.tell.send((flow, Err(error)))),
        }
    }

    fn counted(&mut self, rack: u32) -> Result<BTreeMap<FlowId, u64>, String> {
        let Some(steered) = &self.sockets.steered else { return Ok(BTreeMap::new()) };
        let fabric = &self.sockets.fabric;
        let (pod, rack) = (rack as usize / fabric.racks, rack as usize % fabric.racks);
        let switch = fabric.cores + pod * (fabric.aggs + fabric.racks) + fabric.aggs + rack;
        lock(steered).controller.counted(switch)
    }

    fn wait(&mut self, until: u64) -> Result<(u64, Option<FlowId>), String> {
        loop {
            if interrupt::raised() {
                return Err("interrupted".into());
            }
            let left = Duration::from_nanos(until.saturating_sub(self.now())).min(LOOK);
            match self.told.recv_timeout(left) {
                // The flow may have been stopped, or may have been given more meanwhile.
                Ok((flow, Ok(()))) => {
                    self.heard = Instant::now();
                    let is_done = self.flows.get(&flow).is_some_and(|(shared, _)| {
                        let want = lock(&shared.want);
                        want.is_told && want.moved >= want.target
                    });
                    if is_done {
                        return Ok((self.now(), Some(flow)));
                    }
                }
                Ok((_, Err(error))) => return Err(error),
                Err(_) if !self.flows.is_empty() && self.heard.elapsed() > SILENCE_MAX => {
                    return Err("no part of a read has ended for a minute".into());
                }
                Err(RecvTimeoutError::Timeout) if self.now() >= until => {
                    return Ok((self.now(), None));
                }
                Err(_) => {}
            }
        }
    }
}

impl Drop for Flows<'_> {
    fn drop(&mut self) {
        for (shared, _) in self.flows.values() {
            lock(&shared.want).is_over = true;
            shared.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
