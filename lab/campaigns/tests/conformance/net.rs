//! Plays a scene on the simulator, or on threads with ports.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenfall_core::{Machine, Timestamp};
use evenfall_host::clock::{ClockWatch, MonotonicClock, SyncSource};
use evenfall_host::lab::Lab;
use evenfall_port::memory::Switch;
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port, PortKind};
use evenfall_sim::{ClockSpec, Discard, HostSpec, NodeIndex, SimTime, Strict, Wire, World};

/// Time between two calls of the owner for each machine.
const TICK: Duration = Duration::from_millis(1);
/// Time after which a scene counts as endless: 30 times the duration of the longest scene.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hosts of a lab: as many as the largest scene has machines.
const HOSTS: usize = 7;

/// Local time at the start of a simulated scene, as if the hosts had started an hour ago.
const START: Timestamp = Timestamp::from_nanos(3_600_000_000_000);

/// Makes the machine of a node from its number, the addresses of all nodes and the node's local
/// time.
pub type Make<'a, M> = &'a (dyn Fn(usize, &[SocketAddr], Timestamp) -> M + Sync);

/// A scene: machines, the actions of their owner, and the condition of its end.
pub struct Scene<'a, M, T> {
    /// Number of nodes.
    pub nodes: usize,
    /// Makes the machine of a node.
    pub make: Make<'a, M>,
    /// The owner's action on each machine, about once a millisecond. A call counts as an input.
    pub owner: &'a (dyn Fn(usize, &mut M, Timestamp) + Sync),
    /// The record of a machine that is done, else `None`. The scene ends when all machines are
    /// done.
    pub done: &'a (dyn Fn(usize, &M) -> Option<T> + Sync),
}

/// The drivers on which scenes play. The simulator and the ports in memory can carry out forwarding
/// installs (`forwards`).
#[derive(Debug)]
pub enum Net {
    /// The simulator: a host for each machine, 50 us apart.
    Simulated { forwards: bool },
    /// A thread for each machine, on a port of this kind at loopback.
    Opened(PortKind),
    /// A thread for each machine, on a port of this kind in a host of its own.
    Hosts { kind: PortKind, lab: Lab },
    /// A thread for each machine, on a port in memory.
    Memory { forwards: bool },
}

impl Net {
    /// Every kind of port that this process can open.
    pub fn opened() -> impl Iterator<Item = Self> {
        let skip = |name: &str, lacks: &str| println!("skipped: ports of kind {name}: {lacks}");
        PortKind::available(skip).map(Self::Opened)
    }

    /// Every kind of port in hosts with links between them. All hosts compute and check checksums.
    pub fn in_hosts() -> impl Iterator<Item = Self> {
        let skip = |name: &str, lacks: &str| println!("skipped: {name} in hosts: {lacks}");
        PortKind::available(skip).filter_map(|kind| {
            let lab = Lab::new(HOSTS).and_then(|lab| {
                (0..HOSTS).try_for_each(|host| lab.turn_off_checksums(host))?;
                Ok(lab)
            });
            let lab = lab.inspect_err(|error| println!("skipped: hosts: {error}")).ok()?;
            Some(Self::Hosts { kind, lab })
        })
    }

    /// Whether forwarding installs are carried out.
    pub fn forwards(&self) -> bool {
        match self {
            Self::Opened(kind) | Self::Hosts { kind, .. } => kind.forwards(),
            Self::Simulated { forwards } | Self::Memory { forwards } => *forwards,
        }
    }

    /// Plays a scene until all machines are done. Returns their records.
    pub fn play<M: Machine, T: Send>(&self, scene: &Scene<'_, M, T>) -> Vec<T> {
        let switch = Switch::new();
        let open = |number| -> Box<dyn Port> {
            match self {
                Self::Opened(kind) => {
                    // A kernel forwards single datagrams only.
                    let segmentation = !kind.forwards();
                    let options = Options { kind: *kind, segmentation, ..Options::default() };
                    evenfall_port::open(kind.test_address(number), options).expect("loopback")
                }
                Self::Hosts { kind, lab } => {
                    let segmentation = !kind.forwards();
                    let options =
                        Options { kind: *kind, segmentation, ..Options::default().keyed() };
                    let address = (lab.address(number), 0).into();
                    let opened = lab.within(number, || evenfall_port::open(address, options));
                    opened.expect("a host").expect("a port")
                }
                _ => {
                    let port = switch.port(Options::default()).expect("memory");
                    Box::new(if self.forwards() { port.forwarding() } else { port })
                }
            }
        };
        match self {
            Self::Simulated { forwards } => simulate(scene, *forwards),
            _ => run((0..scene.nodes).map(open).collect(), scene),
        }
    }
}

fn simulate<M: Machine, T: Send>(scene: &Scene<'_, M, T>, forwards: bool) -> Vec<T> {
    let mut world = World::new(Wire::new(Duration::from_micros(50)), 1);
    let at: Vec<SocketAddr> =
        (0..scene.nodes).map(|node| world.address(NodeIndex(node as u32))).collect();
    for node in 0..scene.nodes {
        let clock = ClockSpec { origin: Some(START), ..ClockSpec::default() };
        let host = world.add_host(HostSpec { clock, ..HostSpec::default() });
        let machine = (scene.make)(node, &at, START);
        let node = world.add_node(Strict::new(machine), host);
        if forwards {
            world.offload(node);
        }
    }
    let mut now = SimTime::ZERO;
    while now.since(SimTime::ZERO) < PATIENCE {
        now = now + TICK;
        world.run_until(now, &mut Discard);
        for node in 0..scene.nodes {
            let owner = |machine: &mut Strict<M>, now| {
                machine.input(now, |machine| (scene.owner)(node, machine, now));
            };
            world.call(NodeIndex(node as u32), &mut Discard, owner);
        }
        let told = |node| (scene.done)(node, &world.machine(NodeIndex(node as u32)).inner);
        if let Some(all) = (0..scene.nodes).map(told).collect() {
            return all;
        }
    }
    panic!("the scene is not over after {PATIENCE:?} of simulated time");
}

fn run<M: Machine, T: Send>(ports: Vec<Box<dyn Port>>, scene: &Scene<'_, M, T>) -> Vec<T> {
    let at: Vec<SocketAddr> = ports.iter().map(|port| port.local_addr()).collect();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (at, done) = (&at, &done);
        let run = |(node, port)| scope.spawn(move || act(scene, node, port, at, done));
        let threads: Vec<_> = ports.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a machine's thread")).collect()
    })
}

fn act<M: Machine, T: Send>(
    scene: &Scene<'_, M, T>,
    node: usize,
    mut port: Box<dyn Port>,
    at: &[SocketAddr],
    done: &AtomicUsize,
) -> T {
    let start = MonotonicClock::now();
    let mut machines = [Strict::new((scene.make)(node, at, start))];
    let watch = ClockWatch::start(SyncSource::SameHost, PATIENCE).expect("a thread");
    let mut turn = Loop::new().with_clock(watch);
    let mut counted = false;
    // A machine that is done goes on until all are done, because other machines may need it.
    while done.load(Ordering::Acquire) < scene.nodes {
        let tick = MonotonicClock::now() + TICK;
        while MonotonicClock::now() < tick {
            turn.turn(&mut machines, port.as_mut(), Some(tick), &mut |_, _, _| {})
                .expect("loopback");
        }
        let owner = |machine: &mut Strict<M>, now| {
            machine.input(now, |machine| (scene.owner)(node, machine, now));
        };
        turn.input(0, &mut machines[0], port.as_mut(), owner, &mut |_, _, _| {}).expect("loopback");
        if !counted && (scene.done)(node, &machines[0].inner).is_some() {
            counted = true;
            done.fetch_add(1, Ordering::Release);
        }
        assert!(MonotonicClock::now().since(start) < PATIENCE, "node {node}: not over");
    }
    (scene.done)(node, &machines[0].inner).expect("it was done")
}
