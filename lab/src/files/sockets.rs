//! The real network: TCP between namespaces of this machine, over routers with limited links.
//!
//! ```text
//!   coordinator (the policy)  --part, way-->  reader thread in the client's namespace
//!                             <--"done"-----     |  ^
//!                                        length  v  | bytes
//!                                             server thread in the copy's namespace
//! ```
//!
//! A reader asks from the address of the path that the policy chose, or from the source port whose
//! hash the switches take. A change of the way is a new connection, which asks for the rest; bytes
//! of the old connection that are under way are lost.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenfall_files_flow::{FlowId, LinkIndex, NodeIndex, Policy, Route, ThreeTier, Topology};
use evenfall_host::interrupt;
use evenfall_host::lab::{Fabric, Lab};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

use super::scene::{self, Network, Plan, Times, Way};

/// Port of the servers.
const PORT: u16 = 7_000;
/// First source port of flows whose path is hashed, and the number of such ports. The kernel hands
/// out the ports from 32,768 on to other connections.
const PORTS: (u16, u16) = (10_000, 20_000);
/// Bytes that are read or written at once.
const PIECE_BYTES: usize = 64 << 10;
/// How long a thread waits for bytes or connections before it looks whether the run is over.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that a flow tries in a row.
const TRIES: u32 = 20;
/// A run in which no part of a read ends for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A data centre of namespaces with a server on every host.
pub struct Sockets {
    lab: Lab,
    fabric: Fabric,
    spec: ThreeTier,
    is_over: Arc<Mutex<bool>>,
}

/// What the coordinator wants of a reader, and how far the reader is.
struct Want {
    /// Bytes that have arrived, and bytes that shall arrive, since the flow began.
    moved: u64,
    target: u64,
    /// Whether the coordinator knows that all wanted bytes are there.
    is_told: bool,
    /// The number of the way, and the way's own address.
    way: (u32, SocketAddrV4),
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
    /// When this process is not root, or the kernel has no such links.
    pub fn new(spec: &ThreeTier) -> Result<Self, evenfall_host::Error> {
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
        let lab = Lab::with_fabric(fabric)?;
        let sockets = Self { lab, fabric, spec: spec.clone(), is_over: Arc::default() };
        for host in 0..fabric.host_count() {
            let address = SocketAddrV4::new(fabric.address(host, None), PORT);
            let failed = |source| evenfall_host::Error::Os {
                what: format!("listen on {address}"),
                source,
                advice: "",
            };
            let listener = sockets.lab.within(host, || TcpListener::bind(address))?;
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
    pub fn run(&self, plan: Plan<'_>, policy: &mut dyn Policy) -> Result<Times, String> {
        let (tell, told) = channel();
        let (now, topology) = (Instant::now(), self.spec.build());
        let flows = BTreeMap::new();
        let mut network =
            Flows { sockets: self, topology, begun: now, flows, tell, told, heard: now };
        scene::run(plan, policy, &mut network)
    }

    /// The address from which a client asks, so that the answers take this way.
    fn source(&self, topology: &Topology, way: Way<'_>) -> SocketAddrV4 {
        let to = way.ends[1].0 as usize;
        match way.route {
            Route::Path(_) => {
                let path = self.path(topology, way.path);
                SocketAddrV4::new(self.fabric.address(to, path), 0)
            }
            Route::Port(port) => {
                let port = PORTS.0 + port % PORTS.1;
                SocketAddrV4::new(self.fabric.address(to, None), port)
            }
        }
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
        Err(error) if from.port() > 0 && is_taken(&error) => {
            open(PORTS.0 + PORTS.1 + from.port() % 2_000)
        }
        done => done,
    }
}

/// Reads what the coordinator wants until the flow is over.
fn read_flow(flow: FlowId, server: SocketAddrV4, shared: &Shared, tell: &Sender<Told>) {
    let mut connection: Option<(u32, TcpStream, u64)> = None;
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
                connection.take_if(|(_, _, asked)| *asked > 0);
                if !want.is_told {
                    want.is_told = true;
                    // The coordinator may have ended.
                    drop(tell.send((flow, Ok(()))));
                }
                want = shared.changed.wait(want).unwrap_or_else(PoisonError::into_inner);
            }
            (want.target - want.moved, want.way)
        };
        match step(&mut connection, &mut piece, server, need, way) {
            Ok(len) => {
                lock(&shared.want).moved += len as u64;
                failures = 0;
            }
            Err(error) => {
                connection = None;
                failures += 1;
                if failures == TRIES {
                    // The coordinator may have ended.
                    drop(tell.send((flow, Err(format!("{} to {server}: {error}", way.1)))));
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Reads once, over a connection of the wanted way. Returns the number of bytes, 0 after a silence.
fn step(
    connection: &mut Option<(u32, TcpStream, u64)>,
    piece: &mut [u8],
    server: SocketAddrV4,
    need: u64,
    (number, from): (u32, SocketAddrV4),
) -> io::Result<usize> {
    connection.take_if(|(own, _, _)| *own != number);
    let (_, stream, asked) = match connection {
        Some(open) => open,
        none => {
            let stream = dial(from, server)?;
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_nodelay(true)?;
            none.insert((number, stream, 0))
        }
    };
    if *asked < need {
        stream.write_all(&(need - *asked).to_le_bytes())?;
        *asked = need;
    }
    let most = piece.len().min(need as usize);
    match stream.read(&mut piece[..most]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(len) => {
            *asked -= len as u64;
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

    fn server(&self, from: NodeIndex) -> SocketAddrV4 {
        SocketAddrV4::new(self.sockets.fabric.address(from.0 as usize, None), PORT)
    }
}

impl Network for Flows<'_> {
    fn start(&mut self, _: u64, flow: FlowId, way: Way<'_>, bytes: u64) {
        let from = self.sockets.source(&self.topology, way);
        let want = Want { moved: 0, target: bytes, is_told: false, way: (0, from), is_over: false };
        let shared = Arc::new(Shared { want: Mutex::new(want), changed: Condvar::new() });
        self.flows.insert(flow, (Arc::clone(&shared), 0));
        let (server, tell) = (self.server(way.ends[0]), self.tell.clone());
        let failed = self.tell.clone();
        // The thread of the reader is in the namespace of the thread that starts it.
        let started = self.sockets.lab.within(way.ends[1].0 as usize, move || {
            std::thread::spawn(move || read_flow(flow, server, &shared, &tell));
        });
        if let Err(error) = started {
            drop(failed.send((flow, Err(error.to_string()))));
        }
    }

    fn stop(&mut self, _: u64, flow: FlowId) {
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
        let from = self.sockets.source(&self.topology, way);
        if let Some((shared, _)) = self.flows.get(&flow) {
            let mut want = lock(&shared.want);
            want.way = (want.way.0 + 1, from);
        }
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
mod tests {
    use super::*;
    use crate::files::{Params, Steering};

    /// Two pods of two racks of two hosts. Links above the racks have half of the rate of a host.
    fn spec() -> ThreeTier {
        let (host, half) = (12.5e6, 6.25e6);
        ThreeTier {
            pods: 2,
            racks: 2,
            hosts: 2,
            aggs: 2,
            cores: 2,
            host_bytes_per_s: host,
            rack_bytes_per_s: half,
            core_bytes_per_s: half,
        }
    }

    fn sockets() -> Option<Sockets> {
        let skip = |error: &evenfall_host::Error| println!("skipped: {error}");
        Sockets::new(&spec()).inspect_err(skip).ok()
    }

    #[test]
    fn each_policy_reads_all_blocks_over_real_connections() {
        let Some(sockets) = sockets() else { return };
        let mut params = Params { spec: spec(), part_bytes: 100_000, ..Params::default() };
        (params.load.rate, params.load.reads, params.load.bytes) = (4.0, 12, 400_000);
        for (name, steering) in Steering::ALL {
            params.steering = steering;
            let (times, bound_s) =
                params.run_on(1, |plan, policy| sockets.run(plan, policy)).expect("it runs");
            assert!(times.reads_s.iter().all(|s| *s > bound_s / 4.0), "{name}: {times:?}");
        }
    }

    #[test]
    fn a_flow_changes_its_way_and_its_length_while_it_reads() {
        let Some(sockets) = sockets() else { return };
        let (mut topology, (tell, told)) = (spec().build(), channel());
        let ends = [NodeIndex(0), NodeIndex(7)];
        let paths = topology.paths(ends[0], ends[1]);
        let way = |route, path| Way { ends, route, path: paths.path(path) };
        let (begun, flows) = (Instant::now(), BTreeMap::new());
        let mut network =
            Flows { sockets: &sockets, topology, begun, flows, tell, told, heard: begun };
        let flow = FlowId(1);
        network.start(0, flow, way(Route::Path(0), 0), 3_000_000);
        let end_of = |network: &mut Flows<'_>| loop {
            let until = network.now() + 1_000_000;
            if let (_, Some(ended)) = network.wait(until).expect("it moves") {
                break ended;
            }
        };
        for route in [Route::Path(5), Route::Port(9)] {
            network.reroute(0, flow, way(route, 5));
            while network.left(0, flow) > 2_500_000.0 {
                std::thread::yield_now();
            }
        }
        let left = network.left(0, flow);
        assert!(left > 0.0, "the link carries 6 MB a second");
        network.resize(0, flow, (left / 2.0) as u64);
        assert_eq!(end_of(&mut network), flow);
        network.left(0, flow);
        network.resize(0, flow, 100_000);
        assert_eq!(end_of(&mut network), flow);
        assert_eq!(network.left(0, flow), 0.0);
        network.stop(0, flow);
    }
}
