//! What plays a scene: the simulator, or threads with ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenfall_core::{Machine, Timestamp};
use evenfall_host::clock::{ClockWatch, MonotonicClock, SyncSource};
use evenfall_port::memory::Switch;
use evenfall_port::run::Loop;
use evenfall_port::{Kind, Options, Port};
use evenfall_sim::{ClockSpec, Discard, HostSpec, NodeIndex, SimTime, Strict, Wire, World};

/// How often the owner looks at each machine.
const TICK: Duration = Duration::from_millis(1);
/// A scene that is not over by then never will be; 30 times what the longest one takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What local clocks show when a simulated scene begins: an hour after their hosts started.
const START: Timestamp = Timestamp::from_nanos(3_600_000_000_000);

/// Makes the machine of a node, given everybody's address and the node's local time.
pub type Make<'a, M> = &'a (dyn Fn(usize, &[SocketAddr], Timestamp) -> M + Sync);

/// Machines, what their owner does, and when they are done.
pub struct Scene<'a, M, T> {
    /// How many.
    pub nodes: usize,
    /// Makes each.
    pub make: Make<'a, M>,
    /// Called on each machine every millisecond or so, as an input.
    pub owner: &'a (dyn Fn(usize, &mut M, Timestamp) + Sync),
    /// What a machine has to tell in the end; the scene is over when all have something.
    pub done: &'a (dyn Fn(usize, &M) -> Option<T> + Sync),
}

/// What plays scenes. The simulator and the ports in memory forward by themselves, or do not.
#[derive(Debug)]
pub enum Net {
    /// The simulator: a host for each machine, 50 us apart.
    Simulated { forwards: bool },
    /// A thread for each machine, on a port of this kind at loopback.
    Opened(Kind),
    /// A thread for each machine, on a port in memory.
    Memory { forwards: bool },
}

impl Net {
    /// Every kind of port.
    pub fn opened() -> impl Iterator<Item = Self> {
        Kind::NAMED.iter().map(|(_, kind)| Self::Opened(*kind))
    }

    /// Whether forwarding installs are carried out.
    pub fn forwards(&self) -> bool {
        match self {
            Self::Opened(kind) => kind.forwards(),
            Self::Simulated { forwards } | Self::Memory { forwards } => *forwards,
        }
    }

    /// Plays until all machines are done. What each has to tell.
    pub fn play<M: Machine, T: Send>(&self, scene: &Scene<'_, M, T>) -> Vec<T> {
        let switch = Switch::new();
        let open = |_| -> Box<dyn Port> {
            match self {
                Self::Opened(kind) => {
                    let options = Options { kind: *kind, ..Options::default() };
                    evenfall_port::open((Ipv4Addr::LOCALHOST, 0).into(), options).expect("loopback")
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
    // Whoever is done stays until all are: others may need it.
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
