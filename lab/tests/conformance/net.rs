//! What plays a scene: the simulator, or threads with ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenfall_core::{Machine, Timestamp};
use evenfall_host::clock::{ClockWatch, MonotonicClock, SyncSource};
use evenfall_port::memory::Switch;
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port};
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

/// What plays scenes.
pub trait Net {
    /// Whether forwarding installs are carried out.
    const FORWARDS: bool;

    /// Plays until all machines are done. What each has to tell.
    fn play<M: Machine, T: Send>(&self, scene: &Scene<'_, M, T>) -> Vec<T>;
}

/// The simulator: a host for each machine, 50 us apart.
pub struct Simulated<const FORWARDS: bool>;

impl<const FORWARDS: bool> Net for Simulated<FORWARDS> {
    const FORWARDS: bool = FORWARDS;

    fn play<M: Machine, T: Send>(&self, scene: &Scene<'_, M, T>) -> Vec<T> {
        let mut world = World::new(Wire::new(Duration::from_micros(50)), 1);
        let at: Vec<SocketAddr> =
            (0..scene.nodes).map(|node| world.address(NodeIndex(node as u32))).collect();
        for node in 0..scene.nodes {
            let clock = ClockSpec { origin: Some(START), ..ClockSpec::default() };
            let host = world.add_host(HostSpec { clock, ..HostSpec::default() });
            let machine = (scene.make)(node, &at, START);
            let node = world.add_node(Strict::new(machine), host);
            if FORWARDS {
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
}

/// A kind of port.
pub trait Ports {
    /// Whether forwarding installs are carried out.
    const FORWARDS: bool;

    /// Opens as many ports as a scene has machines.
    fn open(&self, count: usize) -> Vec<Box<dyn Port>>;
}

/// Sockets on loopback.
pub struct Udp;

impl Ports for Udp {
    const FORWARDS: bool = false;

    fn open(&self, count: usize) -> Vec<Box<dyn Port>> {
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let open = |_| evenfall_port::open(any, Options::default()).expect("loopback");
        (0..count).map(open).collect()
    }
}

/// Ports in memory.
pub struct Memory<const FORWARDS: bool>;

impl<const FORWARDS: bool> Ports for Memory<FORWARDS> {
    const FORWARDS: bool = FORWARDS;

    fn open(&self, count: usize) -> Vec<Box<dyn Port>> {
        let switch = Switch::new();
        let open = |_| -> Box<dyn Port> {
            let port = switch.port(Options::default()).expect("memory");
            Box::new(if FORWARDS { port.forwarding() } else { port })
        };
        (0..count).map(open).collect()
    }
}

/// A thread for each machine, on a port of this kind.
pub struct Real<P>(pub P);

impl<P: Ports> Net for Real<P> {
    const FORWARDS: bool = P::FORWARDS;

    fn play<M: Machine, T: Send>(&self, scene: &Scene<'_, M, T>) -> Vec<T> {
        let ports = self.0.open(scene.nodes);
        let at: Vec<SocketAddr> = ports.iter().map(|port| port.local_addr()).collect();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (at, done) = (&at, &done);
            let run = |(node, port)| scope.spawn(move || act(scene, node, port, at, done));
            let threads: Vec<_> = ports.into_iter().enumerate().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("a machine's thread")).collect()
        })
    }
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
