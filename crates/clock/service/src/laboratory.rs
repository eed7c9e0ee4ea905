//! Nodes on this machine whose clocks are wrong on purpose. All of them read one monotonic clock
//! below the planted ones, so that the true error of each reading is known.
//!
//! Every node is a thread with a port of its own. The probes pass through the kernel, and the
//! threads compete for the cores of this machine as processes do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenfall_core::{
    Arrival, ClockError, ClockReading, Install, Machine, Malformed, Prng, SyncTime, Timestamp,
    Transmit,
};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port};

use crate::mesh::Member;
use crate::{ClockSettings, Mesh, Plant, View};

/// Time between two samples of a node. No multiple of the time between two readings.
const SAMPLE_EVERY: Duration = Duration::from_millis(37);

/// What is planted.
#[derive(Clone, Debug, PartialEq)]
pub struct Planted {
    /// Nodes. The first is the reference, and its clock is planted too.
    pub hosts: u32,
    /// Clocks are up to this much ahead or behind.
    pub offset: Duration,
    /// Clocks are up to this much too fast or too slow, in parts per billion.
    pub drift_ppb: u32,
    /// Samples of each node. The first one is taken when the node knows its time, and the others
    /// follow 27 times a second.
    pub samples: u32,
    /// The nodes' clocks.
    pub clock: ClockSettings,
    /// Seed of what is planted.
    pub seed: u64,
}

/// One look at the clock of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The node.
    pub node: u32,
    /// What the node showed less what the reference showed at the same instant, in nanoseconds.
    pub error_ns: i64,
    /// The proven bound at the time, in nanoseconds.
    pub proven_ns: Option<u64>,
    /// The assumed bound at the time, in nanoseconds.
    pub assumed_ns: Option<u64>,
}

/// A node's part: its port, its clock and what is planted there.
struct Host {
    node: u32,
    port: Box<dyn Port>,
    mesh: Mesh,
    plant: Plant,
}

/// What a node showed at an instant of the monotonic clock.
struct Shown {
    node: u32,
    at: Timestamp,
    run_ns: u64,
    proven_ns: Option<u64>,
    assumed_ns: Option<u64>,
}

/// Runs the nodes, and compares every sample with the truth.
///
/// # Errors
/// When a port cannot be opened, or a thread cannot be started.
pub fn run(planted: &Planted) -> Result<Vec<Sample>, Error> {
    let hosts = hosts(planted)?;
    let (truth, reference) = (hosts[0].plant, hosts[0].mesh.view());
    let (left, shown) = (AtomicU32::new(planted.hosts), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let turning: Vec<_> = hosts
            .into_iter()
            .map(|host| scope.spawn(|| host.turn(planted.samples, &left, &shown)))
            .collect();
        turning.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let base_ns = reference.standing().base_ns;
    let sample = |shown: Shown| {
        let right = truth.shown(shown.at).nanos().saturating_add_signed(base_ns);
        let (node, run) = (shown.node, SyncTime::from_nanos(shown.run_ns));
        let error_ns = run.signed_since(SyncTime::from_nanos(right));
        Sample { node, error_ns, proven_ns: shown.proven_ns, assumed_ns: shown.assumed_ns }
    };
    let shown = shown.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(shown.into_iter().filter(|shown| shown.node > 0).map(sample).collect())
}

fn hosts(planted: &Planted) -> Result<Vec<Host>, Error> {
    let mut prng = Prng::new(planted.seed);
    let options = Options { kernel_timestamps: true, ..Options::default() };
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let open = |_| evenfall_port::open(any, options.clone());
    let ports: Result<Vec<Box<dyn Port>>, Error> = (0..planted.hosts).map(open).collect();
    let ports = ports?;
    let addresses: Vec<_> = ports.iter().map(|port| port.local_addr()).collect();
    let since = MonotonicClock::now();
    let mut either_way = |most: u64| prng.below(2 * most + 1) as i64 - most as i64;
    let host = |(node, port): (u32, Box<dyn Port>)| {
        let offset_ns = either_way(evenfall_core::time::nanos(planted.offset));
        let drift_ppb = either_way(planted.drift_ppb.into());
        let plant = Plant { offset_ns, drift_ppb, since };
        let member = Member { addresses: addresses.clone(), place: node };
        let mesh = Mesh::new(&planted.clock, member, None, None, (since, plant));
        Host { node, port, mesh, plant }
    };
    Ok((0..).zip(ports).map(host).collect())
}

/// No machine: the loop drives the clock alone.
struct Nobody;

impl Machine for Nobody {
    type Event = ();

    fn handle(&mut self, _: Timestamp, _: Arrival) -> Result<(), Malformed> {
        Ok(())
    }

    fn handle_timeout(&mut self, _: Timestamp) {}

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn poll_install(&mut self) -> Option<Install> {
        None
    }

    fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
        None
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }
}

impl Host {
    /// Turns until every node has its samples, so that no node misses the probes of another.
    fn turn(
        mut self,
        samples: u32,
        left: &AtomicU32,
        shown: &Mutex<Vec<Shown>>,
    ) -> Result<(), Error> {
        let (node, view, mut turn) = (self.node, self.mesh.view(), Loop::new());
        turn.set_beside(self.mesh.beside());
        let mut reading = None;
        let mut own = Vec::new();
        let mut sample_at = MonotonicClock::now();
        while left.load(Ordering::Acquire) > 0 {
            let port = self.port.as_mut();
            turn.turn::<Nobody>(&mut [], port, Some(sample_at), &mut |_, _, ()| {})?;
            reading = turn.reading().or(reading);
            let now = MonotonicClock::now();
            if now < sample_at {
                continue;
            }
            sample_at = now + SAMPLE_EVERY;
            let Some(reading) = reading.filter(|_| own.len() < samples as usize) else { continue };
            own.push(look(node, now, reading, &view));
            if own.len() == samples as usize {
                left.fetch_sub(1, Ordering::Release);
            }
        }
        shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(own);
        Ok(())
    }
}

fn look(node: u32, at: Timestamp, reading: ClockReading, view: &View) -> Shown {
    let standing = view.standing();
    let assumed_ns = match reading.error {
        ClockError::Within(bound) => Some(evenfall_core::time::nanos(bound)),
        _ => None,
    };
    // What the rate of the clock adds until the next reading counts for both bounds.
    let more = assumed_ns.zip(standing.assumed_ns).map_or(0, |(with, own)| with.abs_diff(own));
    Shown {
        node,
        at,
        run_ns: at.nanos().saturating_add_signed(reading.offset_ns),
        proven_ns: standing.proven_ns.map(|ns| ns.saturating_add(more)),
        assumed_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but the bounds depends on the load of this machine, and the proven bound holds under any
    /// load: a probe that waits is late and never early.
    #[test]
    fn planted_clocks_are_found_within_their_proven_bounds() {
        let planted = Planted {
            hosts: 4,
            offset: Duration::from_millis(20),
            drift_ppb: 100_000,
            samples: 200,
            clock: ClockSettings { mesh: true, ..ClockSettings::default() },
            seed: 1,
        };
        let samples = run(&planted).expect("loopback has ports");
        let outside = |sample: &&Sample| match sample.proven_ns {
            Some(bound) => sample.error_ns.unsigned_abs() > bound,
            None => true,
        };
        let wrong: Vec<&Sample> = samples.iter().filter(outside).collect();
        println!("{} samples, {} outside of their proven bounds", samples.len(), wrong.len());
        assert_eq!(samples.len(), 3 * 200);
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
